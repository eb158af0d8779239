//! Input of drop detection is sent once; which traces stall.

use super::*;
use crate::facts::{DoneTrace, TurnStart};
use crate::math::Quanta;
use crate::span::Guardrail;
use crate::span::{Report, Source, Target};

fn done_traces(stage: &mut Sessions) -> Vec<DoneTrace> {
    stage.drain().into_iter().flat_map(|update| update.done_traces).collect()
}

/// An outcome of session `s`, made at this second.
fn outcome(score: i64, source: Source, time: u64) -> Report {
    Report {
        target: Target::Session { tenant: None, id: Arc::from("s"), scope: None },
        name: Arc::from("outcome"),
        score: Quanta(score),
        label: None,
        success: None,
        explanation: None,
        source,
        identifier: Arc::from("x"),
        judge: None,
        time: at(time),
        tenant: None,
    }
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
fn all_is_told_anew_for_whoever_forgets_but_what_is_told_once() {
    let mut stage = stage();
    stage.handle(trace(1, 1).error().done(), at(2));
    let first = stage.drain();
    assert!(!first[0].panes.is_empty() && !first[0].done_traces.is_empty(), "{first:?}");
    assert_eq!(stage.drain(), []);
    stage.tell_all();
    let anew = stage.drain();
    let told_once = |facts: &SessionFacts| SessionFacts {
        revision: 0,
        done_traces: Vec::new(),
        ..facts.clone()
    };
    assert_eq!(anew.iter().map(told_once).collect::<Vec<_>>(), [told_once(&first[0])]);
    assert!(anew[0].done_traces.is_empty() && anew[0].revision > first[0].revision);
}

/// Whether each of these traces failed, in order.
fn failed(traces: Vec<TraceFacts>) -> Vec<Option<bool>> {
    let mut stage = stage();
    traces.into_iter().for_each(|update| stage.handle(update.done(), at(100)));
    let updates = stage.drain();
    let done: Vec<_> =
        updates.iter().flat_map(|update| &update.done_traces).map(|done| done.failed).collect();
    let fails = done.iter().filter(|failed| **failed == Some(true)).count() as u64;
    let of = |update| counter(update, Counter::TraceEvaluations, &["trace_risk", "fail"]);
    assert_eq!(updates.iter().map(of).sum::<u64>(), fails);
    done
}

#[test]
fn an_answer_that_repeats_an_earlier_one_fails_no_trace_that_a_user_began() {
    let begun = |turn_start| {
        let answers =
            |id| TraceFacts { turn_start, ..trace(id, 10 * u64::from(id)).output(&[7, 8]) };
        failed(vec![answers(1), answers(2)])
    };
    assert_eq!(begun(TurnStart::Asked), [Some(false), Some(false)]);
    assert_eq!(begun(TurnStart::Continued), [Some(false), Some(true)]);
    assert_eq!(begun(TurnStart::Unknown), [Some(false), Some(true)]);
    let told = |id| TraceFacts { turn_start: TurnStart::Asked, ..trace(id, 10) };
    assert_eq!(failed(vec![told(1).error()]), [Some(true)], "something else failed it");
}

#[test]
fn retries_that_went_well_in_the_end_fail_no_trace() {
    let call = |error: bool| ToolCall {
        name: Arc::from("search"),
        error: Some(error),
        ..ToolCall::default()
    };
    let tried = |severity, errors: &[bool], last: u64| {
        let mut update = trace(1, 1).looping(last + 1, severity);
        let retry = Loop { kind: LoopKind::ErrorRetry, ..update.loops[0].clone() };
        update.loops = vec![Loop { calls: Some((0, last)), ..retry }];
        TraceFacts { tools: errors.iter().map(|error| call(*error)).collect(), ..update }
    };
    let good = || tried(Severity::Warning, &[true, true, true, false], 2);
    assert_eq!(failed(vec![good()]), [Some(false)]);
    let never = tried(Severity::Warning, &[true, true, true], 2);
    assert_eq!(failed(vec![never]), [Some(true)], "it never did");
    let late = tried(Severity::Critical, &[true, true, true, false], 2);
    assert_eq!(failed(vec![late]), [Some(true)], "there were too many");
    let mut both = good();
    both.loops.push(trace(1, 1).looping(3, Severity::Warning).loops.remove(0));
    assert_eq!(failed(vec![both]), [Some(true)], "another loop");
    let mut other = good();
    other.tools[3].name = Arc::from("other");
    assert_eq!(failed(vec![other]), [Some(true)], "another tool went well");
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
    judged.reported[0].source = Source::Judge;
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
fn an_outcome_of_a_session_tells_of_no_trace_that_has_one_of_its_own() {
    for (is_told, has_ended) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut stage = stage();
        let last = if is_told { trace(1, 1).reported("outcome", 0) } else { trace(1, 1) };
        stage.handle(last.done(), at(2));
        stage.handle_timeout(at(if has_ended { 7_200 } else { 3 }));
        done_traces(&mut stage);
        stage.report(outcome(0, Source::Reported, 7_201), at(7_201));
        let told = done_traces(&mut stage);
        assert_eq!((told.len(), told[0].effort.is_none()), (1, is_told), "ended: {has_ended}");
    }
}

#[test]
fn an_outcome_of_a_session_is_told_once() {
    let mut stage = stage();
    stage.handle(trace(1, 1).done(), at(2));
    done_traces(&mut stage);
    stage.report(outcome(0, Source::Judge, 3), at(3));
    assert_eq!(done_traces(&mut stage), []);
    stage.report(outcome(0, Source::Reported, 4), at(4));
    let told = done_traces(&mut stage).remove(0);
    assert_eq!((told.outcome_failed, told.trace_id), (Some(true), None));
    stage.report(outcome(Quanta::ONE, Source::Reported, 5), at(5));
    assert_eq!(done_traces(&mut stage), []);
}

/// The outcomes of sessions that agents received, with whether the session's effort is known.
fn session_outcomes(stage: &mut Sessions) -> Vec<(String, Option<bool>, bool)> {
    let mut told = Vec::new();
    for update in stage.drain() {
        let agent = update.agent.as_ref().map(|agent| agent.agent_name.to_string());
        let of_sessions = update.done_traces.into_iter().filter(|done| done.trace_id.is_none());
        told.extend(of_sessions.map(|done| {
            (agent.clone().unwrap_or_default(), done.outcome_failed, done.effort.is_some())
        }));
    }
    told
}

fn scoped(mut update: TraceFacts, scope: &str) -> TraceFacts {
    update.session.as_mut().unwrap().scope = scope.into();
    update
}

#[test]
fn an_outcome_of_a_session_counts_once_it_is_certain_whose_the_session_is() {
    // A namespace is the scope from the start; without one the session moves when the root names the agent.
    for scopes in [["shop", "shop"], ["shop", "a"]] {
        let mut stage = stage();
        let open = TraceFacts { uncertain: true, ..trace(1, 1).agent("") };
        stage.handle(scoped(open, scopes[0]), at(12));
        stage.report(outcome(0, Source::Reported, 13), at(13));
        assert_eq!(session_outcomes(&mut stage), [], "{scopes:?}");
        if scopes[0] != scopes[1] {
            let gone = TraceFacts { tombstone: true, ..trace(1, 1).revision(2) };
            stage.handle(scoped(gone, scopes[0]), at(20));
        }
        stage.handle(scoped(trace(1, 1).done().revision(2), scopes[1]), at(20));
        let told = [("a".to_owned(), Some(true), true)];
        assert_eq!(session_outcomes(&mut stage), told, "{scopes:?}");
        stage.report(outcome(Quanta::ONE, Source::Reported, 21), at(21));
        stage.handle(scoped(trace(1, 1).done().revision(3), scopes[1]), at(22));
        stage.handle_timeout(at(22 + 7_200));
        stage.report(outcome(0, Source::Reported, 8_000), at(8_000));
        assert_eq!(session_outcomes(&mut stage), [], "{scopes:?}");
    }
}

#[test]
fn an_outcome_of_a_session_waits_for_what_its_first_trace_takes() {
    for ends in [false, true] {
        let mut stage = stage();
        stage.handle(trace(1, 1), at(2));
        stage.report(outcome(0, Source::Reported, 3), at(3));
        assert_eq!(session_outcomes(&mut stage), []);
        if ends {
            stage.handle(trace(1, 1).done().revision(2), at(4));
        } else {
            stage.finish(at(4));
        }
        let told = [("a".to_owned(), Some(true), ends)];
        assert_eq!(session_outcomes(&mut stage), told);
    }
}

#[test]
fn an_outcome_of_a_session_goes_along_with_its_traces_and_counts_once() {
    let mut stage = stage();
    stage.handle(scoped(trace(1, 1).done(), "a"), at(2));
    stage.report(outcome(0, Source::Reported, 3), at(3));
    assert_eq!(session_outcomes(&mut stage).len(), 1);
    // A late span names another agent, and with it another scope; then yet another one.
    for (revision, from, to) in [(2, "a", "b"), (3, "b", "c")] {
        let gone = TraceFacts { tombstone: true, ..trace(1, 1).revision(revision) };
        stage.handle(scoped(gone, from), at(4));
        let moved = trace(1, 1).agent(to).done().revision(revision);
        stage.handle(scoped(moved, to), at(4));
        assert_eq!(session_outcomes(&mut stage), [], "{to}");
        let is_failed = stage.session("", "s").unwrap().signals.contains_key("outcome");
        assert!(is_failed, "{to}: it still fails the last trace");
    }
    // The session that it left may come again, with an outcome of its own.
    stage.handle(scoped(trace(2, 10).done(), "a"), at(11));
    let target = Target::Session { tenant: None, id: "s".into(), scope: Some("a".into()) };
    stage.report(Report { target, ..outcome(0, Source::Reported, 12) }, at(12));
    assert_eq!(session_outcomes(&mut stage).len(), 1);
}

#[test]
fn an_open_trace_of_which_nothing_comes_stalls_until_something_does() {
    let mut stage = stage();
    let stalled = |stage: &mut Sessions| only(stage.drain()).silences.stalled();
    let last_heard = |revision: u64, second: u64| TraceFacts {
        touched_unix_nano: at(second).0,
        ..trace(1, 1).revision(revision)
    };
    stage.handle(last_heard(1, 10), at(10));
    assert_eq!(stalled(&mut stage), 0);
    let due = at(910);
    assert!(stage.poll_timeout().is_some_and(|next| next <= due));
    stage.handle_timeout(Timestamp(due.0 - 1));
    stage.drain();
    stage.handle_timeout(due);
    assert_eq!(stalled(&mut stage), 1);
    stage.handle(last_heard(2, 920), at(920));
    assert_eq!(stalled(&mut stage), 0);
    stage.handle_timeout(at(2_000));
    assert_eq!(stalled(&mut stage), 1);
    stage.handle(last_heard(3, 2_010).done(), at(2_010));
    assert_eq!(stalled(&mut stage), 0);
}

/// What the next process has, which starts at that second.
fn taken_over(stage: &Sessions, second: u64) -> Sessions {
    let saved = crate::saved::write(&stage.save()).unwrap();
    let mut next = super::stage();
    crate::saved::read_with(&mut saved.as_slice(), |from| next.restore(from)).unwrap();
    next.restart_counts();
    next.take_over(at(second));
    next
}

#[test]
fn silence_counts_from_when_the_process_took_the_shard_over() {
    let update = |second: u64, revision| TraceFacts {
        touched_unix_nano: at(second).0,
        ..trace(1, 10).revision(revision)
    };
    let stalled = |stage: &mut Sessions, second: u64| -> u64 {
        stage.handle_timeout(at(second));
        stage.drain().iter().map(|update| update.silences.stalled()).sum()
    };
    let mut stage = stage();
    stage.handle(update(20, 1), at(20));
    assert_eq!(stalled(&mut stage, 40), 0);
    // For 25 minutes there was no process.
    let mut next = taken_over(&stage, 1_540);
    assert_eq!(stalled(&mut next, 1_540), 0);
    assert_eq!(stalled(&mut next, 1_540 + 899), 0);
    assert_eq!(stalled(&mut next, 1_540 + 900), 1);
    // Nobody knows whether one that stalled before still does.
    let mut third = taken_over(&next, 2_500);
    assert_eq!(stalled(&mut third, 2_500), 0);
    // Its next span ended no silence of all that time, but one of 1,000 seconds.
    third.handle(update(3_500, 2), at(3_500));
    third.handle(update(3_501, 3).done(), at(3_501));
    assert_eq!(ended_silences(&only(third.drain())), [(0, 1)]);
    // Nor was one lost in silence that the daemon did not listen to.
    for (quiet, lost) in [(60, 0), (900, 1)] {
        let mut next = taken_over(&stage, 1_540);
        let evidence = crate::facts::OverBy::Age;
        let update = TraceFacts { evidence, ..update(20, 2).done() };
        next.handle(update, at(1_540 + quiet));
        let weeks = only(next.drain()).silences.weeks;
        assert_eq!(weeks.values().map(|week| week.lost).sum::<u64>(), lost, "{quiet}");
    }
}

#[test]
fn an_agent_that_waits_for_somebody_is_not_stalled_and_shows_nothing_of_what_is_usual() {
    let mut stage = stage();
    let last_heard = |revision: u64, second: u64, since: Option<u64>| {
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
    stage.handle(last_heard(1, 10, Some(10)), at(10));
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
    stage.handle(last_heard(2, 1_700, None), at(1_700));
    assert_eq!(ended_silences(&only(stage.drain())), []);
    // It went on, and then nothing came.
    stage.handle_timeout(at(2_700));
    assert_eq!(only(stage.drain()).silences.stalled(), 1);
    stage.handle(last_heard(3, 2_701, None).done(), at(2_701));
    let update = only(stage.drain());
    let edits = |decision| counter(&update, Counter::Edits, &[decision]);
    assert_eq!((edits("accepted"), edits("rejected")), (2, 1));
    assert_eq!(ended_silences(&update), [(0, 1)]);
}

/// Done traces by the longest silence that something ended.
fn ended_silences(update: &SessionFacts) -> Vec<(u8, u64)> {
    let weeks = update.silences.weeks.values();
    weeks.flat_map(|week| week.ended.iter().map(|(level, traces)| (*level, *traces))).collect()
}

#[test]
fn a_silence_counts_for_the_agent_whose_the_trace_turns_out_to_be() {
    for scopes in [["shop", "shop"], ["shop", "a"]] {
        let mut stage = stage();
        let last_heard = |revision: u64, second: u64| TraceFacts {
            touched_unix_nano: at(second).0,
            ..trace(1, 1).revision(revision)
        };
        let unnamed = |revision, second| {
            let unnamed = TraceFacts { uncertain: true, ..last_heard(revision, second).agent("") };
            scoped(unnamed, scopes[0])
        };
        // Twice for a quarter of an hour, once for half an hour.
        for (revision, second) in [(1, 10), (2, 1_000), (3, 3_000), (4, 4_000)] {
            stage.handle(unnamed(revision, second), at(second));
        }
        let update = only(stage.drain());
        assert_eq!((update.silences.weeks.len(), update.silences.open.len()), (0, 0));
        if scopes[0] != scopes[1] {
            let gone = TraceFacts { tombstone: true, ..last_heard(5, 4_001) };
            stage.handle(scoped(gone, scopes[0]), at(4_001));
        }
        for revision in [5, 6] {
            stage.handle(scoped(last_heard(revision, 4_001).done(), scopes[1]), at(4_001));
        }
        let updates = stage.drain();
        let update = updates.iter().find(|update| !update.tombstone).unwrap();
        assert_eq!(update.agent.as_ref().map(|agent| &*agent.agent_name), Some("a"));
        assert_eq!(ended_silences(update), [(2, 1)], "{scopes:?}");
    }
}

#[test]
fn a_step_that_takes_long_time_and_again_is_healthy_for_its_agent_alone() {
    let mut stage = stage();
    let last_heard = |agent: &str, id: u8, revision: u64, second: u64| TraceFacts {
        touched_unix_nano: at(second).0,
        ..trace(id, 1).agent(agent).session(agent).revision(revision)
    };
    // Each of twenty traces has a step of twenty minutes; those of another agent have none.
    for id in 1..=20 {
        let begin = u64::from(id) * 3_000;
        stage.handle(last_heard("slow", id, 1, begin), at(begin));
        stage.handle(last_heard("quick", 100 + id, 1, begin), at(begin));
        stage.handle(last_heard("quick", 100 + id, 2, begin + 5).done(), at(begin + 5));
        stage.handle(last_heard("slow", id, 2, begin + 1_200).done(), at(begin + 1_200));
    }
    let begin = 21 * 3_000;
    stage.handle(last_heard("slow", 50, 1, begin), at(begin));
    stage.handle(last_heard("quick", 150, 1, begin), at(begin));
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

#[test]
fn an_outcome_that_is_told_after_its_session_has_ended_counts_once() {
    let options = SessionOptions { max_outstanding_outcomes: 3, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    let of = |id: &str, scope: Option<&str>| Report {
        target: Target::Session { tenant: None, id: id.into(), scope: scope.map(Arc::from) },
        ..outcome(0, Source::Reported, 4)
    };
    stage.handle(trace(1, 1).done(), at(2));
    stage.handle(trace(2, 2).agent("b").reported("outcome", 0).done(), at(2));
    stage.handle_timeout(at(7_200));
    done_traces(&mut stage);
    assert_eq!(stage.held_sessions(), 0);
    // Our judge's are none.
    stage.report(outcome(0, Source::Judge, 3), at(7_201));
    assert_eq!(done_traces(&mut stage), []);
    stage.report(of("s", None), at(7_202));
    let mut told = stage.drain();
    let update = told.pop().unwrap();
    assert_eq!(update.agent.as_ref().map(|agent| &*agent.agent_name), Some("a"), "of the first");
    let [done] = &update.done_traces[..] else { panic!("{update:?}") };
    assert_eq!((done.outcome_failed, done.trace_id), (Some(true), None));
    assert_eq!((done.start_unix_nano, done.at_unix_nano), (at(1).0, at(7_202).0));
    assert_eq!((done.failed, &*done.session.id), (None, "s"));
    assert!(done.effort.is_none(), "the last trace has an outcome of its own");
    stage.report(of("s", None), at(7_203));
    assert_eq!(done_traces(&mut stage), [], "it was told");
    // The second of its traces had a reported outcome before it ended.
    let of_trace = |id: u8| Report { target: Target::Trace(TraceId([id; 16])), ..of("", None) };
    for (id, told) in [(1, 1), (2, 0), (1, 0)] {
        stage.report(of_trace(id), at(7_204));
        assert_eq!(done_traces(&mut stage).len(), told, "trace {id}");
    }
    // Of two sessions of one id it is not known which one is meant.
    for (id, scope) in [(3, "x"), (4, "y"), (5, "z")] {
        let mut update = trace(id, 8_000).session("t").reported("outcome", 0).done();
        update.session.as_mut().unwrap().scope = scope.into();
        stage.handle(update, at(8_000));
    }
    stage.handle_timeout(at(20_000));
    done_traces(&mut stage);
    stage.report(of("t", None), at(20_001));
    assert_eq!(done_traces(&mut stage), []);
    for (scope, told) in [("y", 1), ("x", 1), ("none", 0), ("y", 0)] {
        stage.report(of("t", Some(scope)), at(20_002));
        assert_eq!(done_traces(&mut stage).len(), told, "scope {scope}");
    }
    stage.report(of("t", None), at(20_003));
    assert_eq!(done_traces(&mut stage).len(), 1, "one is left");
}

#[test]
fn over_the_bound_the_outcome_of_the_session_that_ended_first_is_not_outstanding_any_more() {
    let options = SessionOptions { max_outstanding_outcomes: 2, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    for (id, session) in [(1, "first"), (2, "second")] {
        let second = 10 * u64::from(id);
        stage.handle(trace(id, second).session(session).done(), at(second));
    }
    stage.handle_timeout(at(7_200));
    done_traces(&mut stage);
    for (session, told) in [("first", 0), ("second", 1)] {
        let target = Target::Session { tenant: None, id: session.into(), scope: None };
        stage.report(Report { target, ..outcome(0, Source::Reported, 4) }, at(7_201));
        assert_eq!(done_traces(&mut stage).len(), told, "{session}");
    }
    stage.handle_timeout(at(7_201 + 600));
    assert_eq!(stage.counts().get("reports", "unmatched"), 1);
}

#[test]
fn a_session_that_goes_on_after_its_end_is_told_no_second_outcome_of_what_has_ended() {
    let mut stage = stage();
    stage.handle(trace(1, 1).done(), at(2));
    stage.handle_timeout(at(7_200));
    stage.handle(trace(2, 7_300).done(), at(7_300));
    done_traces(&mut stage);
    stage.report(outcome(0, Source::Reported, 7_301), at(7_301));
    assert_eq!(done_traces(&mut stage).len(), 1);
    stage.handle_timeout(at(20_000));
    stage.report(outcome(0, Source::Reported, 20_001), at(20_001));
    assert_eq!(done_traces(&mut stage), []);
}

#[test]
fn a_score_of_a_sealed_trace_replaces_what_it_outranks_and_has_a_bound() {
    let options = SessionOptions { max_reports_per_session: 2, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    stage.handle(trace(1, 1).done(), at(2));
    stage.handle(trace(1, 1).sealed(), at(400));
    done_traces(&mut stage);
    let mut report = |name: &str, score: i64, time: u64, became: &'static str| {
        let target = Target::Trace(TraceId([1; 16]));
        let before = stage.counts().get("reports", became);
        let report = outcome(score, Source::Reported, time);
        stage.report(Report { target, name: name.into(), ..report }, at(time));
        assert_eq!(stage.counts().get("reports", became), before + 1, "{name} at {time}");
        let told = done_traces(&mut stage);
        let view = stage.session("", "s").unwrap();
        let signals = &view.traces[0].signals;
        (told, signals.get(name).map(|signal| signal.score))
    };
    let (told, score) = report("outcome", 0, 500, "applied");
    assert_eq!((told.len(), told[0].outcome_failed, score), (1, Some(true), Some(0.0)));
    assert_eq!(told[0].at_unix_nano, at(500).0);
    let (told, score) = report("outcome", Quanta::ONE, 499, "duplicate");
    assert_eq!((told.len(), score), (0, Some(0.0)), "an earlier one");
    let (told, score) = report("outcome", Quanta::ONE, 501, "applied");
    assert_eq!((told.len(), score), (0, Some(1.0)), "a correction");
    assert_eq!(report("helpfulness", 0, 502, "applied").1, Some(0.0));
    assert_eq!(report("politeness", 0, 503, "trace_full").1, None);
}

#[test]
fn a_score_of_a_trace_without_a_tenant_is_for_the_only_one_that_has_the_trace() {
    for has_ended in [false, true] {
        let mut stage = stage();
        for (tenant, id) in [("shop", 1), ("shop", 2), ("bank", 2)] {
            let mut update = trace(id, 1).done();
            update.session.as_mut().unwrap().tenant = tenant.into();
            stage.handle(update, at(2));
        }
        stage.handle_timeout(at(if has_ended { 7_200 } else { 3 }));
        assert_eq!(stage.held_sessions() == 0, has_ended);
        done_traces(&mut stage);
        let told =
            [(1, None), (2, None), (1, Some("bank")), (2, Some("bank"))].map(|(id, tenant)| {
                let (target, tenant) = (Target::Trace(TraceId([id; 16])), tenant.map(Arc::from));
                stage.report(
                    Report { target, tenant, ..outcome(0, Source::Reported, 4) },
                    at(7_201),
                );
                done_traces(&mut stage).len()
            });
        assert_eq!(told, [1, 0, 0, 1], "ended: {has_ended}");
    }
}
