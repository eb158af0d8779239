//! What drops are found by is told once, and which traces stall.

use super::*;
use crate::facts::DoneTrace;
use crate::math::Quanta;
use crate::span::Guardrail;
use crate::span::{Report, Source, Target};

fn done_traces(stage: &mut Sessions) -> Vec<DoneTrace> {
    stage.drain().into_iter().flat_map(|update| update.done_traces).collect()
}

#[test]
fn a_verdict_is_told_once_and_is_that_of_computed_signals_alone() {
    let mut stage = stage();
    let failing = || trace(1, 1).error().reported("error", Quanta::ONE).done();
    stage.handle(failing(), at(2));
    let done = done_traces(&mut stage);
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!((done[0].failed, &*done[0].signal), (Some(true), "error"));
    assert_eq!(
        done[0].risk_quanta,
        Some(Quanta::ONE / 4),
        "by all signals: a step of four is wasted"
    );
    assert_eq!((done[0].looped, done[0].tools_failed), (Some(false), None));
    assert_eq!((done[0].outcome_failed, &*done[0].session.id), (None, "s"));
    stage.handle(failing().revision(2), at(3));
    assert_eq!(done_traces(&mut stage), []);
}

#[test]
fn the_tool_is_the_one_that_failed_last_or_loops() {
    let call = |name: &str, error: Option<bool>, end: u64| ToolCall {
        name: Arc::from(name),
        error,
        error_type: error.filter(|error| *error).map(|_| format!("{name} error").into()),
        end_unix_nano: end,
        ..ToolCall::default()
    };
    let tools = vec![
        call("first", Some(true), 1),
        call("last", Some(true), 3),
        call("fine", Some(false), 4),
        call("silent", None, 5),
    ];
    let mut stage = stage();
    let update = TraceFacts { tools: tools.clone(), ..trace(1, 1).error().done() };
    stage.handle(update, at(2));
    let done = done_traces(&mut stage).remove(0);
    assert_eq!((done.tool.as_str(), done.tools_failed), ("last", Some(true)));
    assert_eq!(done.error_type, "last error");
    let update = TraceFacts { tools, ..trace(2, 1).looping(10, Severity::Critical).done() };
    stage.handle(update, at(2));
    let done = done_traces(&mut stage).remove(0);
    assert_eq!((done.tool.as_str(), &*done.signal), ("search", "tool_loop"));
    assert_eq!(done.error_type, "", "a loop is no error");
    assert_eq!(done.looped, Some(true));
}

#[test]
fn an_outcome_is_told_with_the_verdict_or_when_it_comes_and_never_again() {
    let mut stage = stage();
    stage.handle(trace(1, 1).reported("outcome", 0).done(), at(2));
    assert_eq!(done_traces(&mut stage)[0].outcome_failed, Some(true));
    stage.handle(trace(1, 1).reported("outcome", Quanta::ONE).done().revision(2), at(3));
    assert_eq!(done_traces(&mut stage), []);
    stage.handle(trace(2, 1).done(), at(2));
    assert_eq!(done_traces(&mut stage)[0].outcome_failed, None);
    let mut judged = trace(2, 1).reported("outcome", 0).done().revision(2);
    judged.reported[0].source = "judge".to_owned();
    stage.handle(judged, at(3));
    assert_eq!(done_traces(&mut stage), [], "a judge reads what failed sooner than what did not");
    let outcome = TraceFacts {
        touched_unix_nano: at(90).0,
        ..trace(2, 1).reported("outcome", Quanta::ONE).done().revision(3)
    };
    stage.handle(outcome, at(90));
    let later = done_traces(&mut stage).remove(0);
    assert_eq!((later.outcome_failed, later.failed, later.looped), (Some(false), None, None));
    assert_eq!(later.at_unix_nano, at(90).0);
}

#[test]
fn an_outcome_of_a_session_is_told_once() {
    let mut stage = stage();
    stage.handle(trace(1, 1).done(), at(2));
    done_traces(&mut stage);
    let report = |score: i64, source: Source, time: u64| Report {
        target: Target::Session { tenant: None, id: Arc::from("s"), scope: None },
        name: Arc::from("outcome"),
        score: Quanta(score),
        label: None,
        explanation: None,
        source,
        identifier: Arc::from("x"),
        judge: None,
        time: at(time),
        tenant: None,
    };
    stage.report(report(0, Source::Judge, 3), at(3));
    assert_eq!(done_traces(&mut stage), []);
    stage.report(report(0, Source::Reported, 4), at(4));
    let outcome = done_traces(&mut stage).remove(0);
    assert_eq!((outcome.outcome_failed, outcome.trace_id), (Some(true), None));
    stage.report(report(Quanta::ONE, Source::Reported, 5), at(5));
    assert_eq!(done_traces(&mut stage), []);
}

#[test]
fn an_open_trace_of_which_nothing_comes_stalls_until_something_does() {
    let mut stage = stage();
    let stalled = |stage: &mut Sessions| only(stage.drain()).silences.stalled();
    let heard = |revision: u64, second: u64| TraceFacts {
        touched_unix_nano: at(second).0,
        ..trace(1, 1).revision(revision)
    };
    stage.handle(heard(1, 10), at(10));
    assert_eq!(stalled(&mut stage), 0);
    let due = at(910);
    assert!(stage.poll_timeout().is_some_and(|next| next <= due));
    stage.handle_timeout(Timestamp(due.0 - 1));
    stage.drain();
    stage.handle_timeout(due);
    assert_eq!(stalled(&mut stage), 1);
    stage.handle(heard(2, 920), at(920));
    assert_eq!(stalled(&mut stage), 0);
    stage.handle_timeout(at(2_000));
    assert_eq!(stalled(&mut stage), 1);
    stage.handle(heard(3, 2_010).done(), at(2_010));
    assert_eq!(stalled(&mut stage), 0);
}

#[test]
fn an_agent_that_waits_for_somebody_is_not_stalled_and_shows_nothing_of_what_is_usual() {
    let mut stage = stage();
    let heard = |revision: u64, second: u64, since: Option<u64>| {
        let remarks = Remarks {
            waits_since_unix_nano: since.map(|since| at(since).0),
            previous_session: Some("before".to_owned()),
            guardrails: vec![Guardrail { name: Some("pii".into()), result: None }],
            accepted_edits: 2,
            rejected_edits: 1,
            ..Remarks::default()
        };
        TraceFacts {
            touched_unix_nano: at(second).0,
            remarks: Some(Box::new(remarks)),
            ..trace(1, 1).revision(revision)
        }
    };
    stage.handle(heard(1, 10, Some(10)), at(10));
    stage.handle_timeout(at(1_700));
    let update = only(stage.drain());
    assert_eq!(
        (update.silences.stalled(), counter(&update, Counter::Edits, &["accepted"])),
        (0, 0)
    );
    let view = stage.session("", "s").unwrap();
    assert_eq!(view.previous_session_id.as_deref(), Some("before"));
    assert_eq!(view.traces[0].waits_since_unix_nano.as_deref(), Some("10000000000"));
    assert_eq!(view.traces[0].guardrails[0].name.as_deref(), Some("pii"));
    stage.handle(heard(2, 1_700, None), at(1_700));
    assert_eq!(only(stage.drain()).silences.ended.len(), 0);
    // It went on, and then nothing came.
    stage.handle_timeout(at(2_700));
    assert_eq!(only(stage.drain()).silences.stalled(), 1);
    stage.handle(heard(3, 2_701, None).done(), at(2_701));
    let update = only(stage.drain());
    let edits = |decision| counter(&update, Counter::Edits, &[decision]);
    assert_eq!((update.silences.ended.len(), edits("accepted"), edits("rejected")), (1, 2, 1));
}

#[test]
fn a_step_that_takes_long_time_and_again_is_healthy_for_its_agent_alone() {
    let mut stage = stage();
    let heard = |agent: &str, id: u8, revision: u64, second: u64| TraceFacts {
        touched_unix_nano: at(second).0,
        ..trace(id, 1).agent(agent).session(agent).revision(revision)
    };
    // Each of twenty traces has a step of twenty minutes; those of another agent have none.
    for id in 1..=20 {
        let begin = u64::from(id) * 3_000;
        stage.handle(heard("slow", id, 1, begin), at(begin));
        stage.handle(heard("quick", 100 + id, 1, begin), at(begin));
        stage.handle(heard("quick", 100 + id, 2, begin + 5).done(), at(begin + 5));
        stage.handle(heard("slow", id, 2, begin + 1_200).done(), at(begin + 1_200));
    }
    let begin = 21 * 3_000;
    stage.handle(heard("slow", 50, 1, begin), at(begin));
    stage.handle(heard("quick", 150, 1, begin), at(begin));
    let stalled = |stage: &mut Sessions, second: u64| -> Vec<u64> {
        stage.handle_timeout(at(begin + second));
        // Everybody counts as changed.
        stage.restart_counts();
        stage.drain().iter().map(|update| update.silences.stalled()).collect()
    };
    assert_eq!(stalled(&mut stage, 899), [0, 0]);
    assert_eq!(stalled(&mut stage, 1_200), [1, 0]);
    assert_eq!(stalled(&mut stage, 1_350), [1, 1]);
}
