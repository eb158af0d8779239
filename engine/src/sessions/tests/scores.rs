//! What a session is scored from, what was reported of it, and the order in which sessions come.

use super::*;
use crate::math::Quanta;
use crate::options::{EmptyScore, Profile};
use crate::span::{Report, Source, Target};

#[test]
fn a_session_is_scored_from_its_done_traces_in_order() {
    let mut stage = stage();
    stage.handle(trace(2, 20).error().done(), at(30));
    stage.handle(trace(1, 10).done(), at(31));
    stage.handle(trace(3, 30).error(), at(32));
    let view = stage.session("", "s").unwrap();
    assert_eq!(ids(&view), [hex(1), hex(2), hex(3)]);
    assert_eq!((view.total_traces, view.traces_evaluated), (3, 2));
    assert_eq!((view.max_risk, view.reliability), (Some(1.0), Some(0.0)));
    assert_eq!(view.flagged, [hex(2)]);
    assert_eq!(view.agent.agent_name.as_deref(), Some("a"));
    assert_eq!(view.session_source, "session.id");
}

#[test]
fn a_session_over_nothing_has_no_score_unless_the_empty_score_is_one() {
    let empty_score = EmptyScore::One;
    let options = SessionOptions { empty_score, ..SessionOptions::default() };
    for (options, score) in [(SessionOptions::default(), None), (options, Some(1.0))] {
        let mut stage = stage_of(options, AgentOptions::default());
        stage.handle(trace(1, 10), at(20));
        let view = stage.session("", "s").unwrap();
        assert_eq!((view.reliability, view.consistency), (score, score));
        assert_eq!((view.traces_evaluated, view.max_risk), (0, None));
    }
}

#[test]
fn a_score_of_a_session_waits_for_it_and_the_one_to_believe_stays() {
    let mut stage = stage();
    let report = |source, time, score| Report {
        target: Target::Session { tenant: None, id: "s".into(), scope: None },
        name: "helpfulness".into(),
        score: Quanta(score),
        label: None,
        success: None,
        explanation: None,
        source,
        identifier: "x".into(),
        judge: None,
        time: Timestamp(time),
        tenant: None,
    };
    stage.report(report(Source::Reported, 1, 500), at(1));
    stage.report(report(Source::Judge, 2, 600), at(1));
    stage.handle(trace(1, 10), at(20));
    let view = stage.session("", "s").unwrap();
    assert_eq!(view.signals["helpfulness"].source, "reported");
    let id = Arc::from("response");
    let other =
        Report { target: Target::Response { tenant: None, id }, ..report(Source::Judge, 1, 1) };
    stage.report(other, at(21));
    let lost = Target::Session { tenant: Some("t".into()), id: "s".into(), scope: None };
    stage.report(Report { target: lost, ..report(Source::Judge, 1, 1) }, at(21));
    stage.handle_timeout(at(700));
    assert_eq!(
        (stage.counts().get("reports", "misdirected"), stage.counts().get("reports", "unmatched")),
        (1, 1)
    );
}

#[test]
fn further_signals_without_a_weight_have_no_sums() {
    let agents = AgentOptions { max_signals_per_agent: 1, ..AgentOptions::default() };
    let mut stage = stage_of(SessionOptions::default(), agents);
    stage.handle(trace(1, 10).reported("a", 1).reported("b", 2).reported("error", 3).done(), at(1));
    let sum = everything(&only(stage.drain()));
    assert!(sum.signals.contains_key("a") && !sum.signals.contains_key("b"));
    assert_eq!(sum.signals["error"].sum_quanta, 3);
    assert_eq!(stage.counts().get("signals", "agent_full"), 1);
    assert!(stage.session("", "s").unwrap().traces[0].signals.contains_key("b"));
}

#[test]
fn the_documents_profile_shows_four_decimals() {
    let profile = Profile::Pandaprobe;
    let options = SessionOptions { profile, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    for (id, score) in [(1, 911_111_111_111), (2, 955_555_555_555)] {
        stage.handle(trace(id, u64::from(id)).reported("confidence", score).error().done(), at(20));
    }
    let view = stage.session("", "s").unwrap();
    assert_eq!((view.reliability, view.consistency), (Some(0.9111), Some(0.9297)));
    assert!(view.traces[0].signals.keys().eq(["confidence", "loop_detection"]));
}

#[test]
fn a_low_flat_session_stalls_at_its_sixth_trace() {
    let mut stage = stage();
    for id in 1..=6 {
        let score = Quanta::ONE / 5;
        stage.handle(trace(id, u64::from(id)).reported("coherence", score).done(), at(20));
    }
    assert_eq!(counter(&only(stage.drain()), Counter::GateBreaches, &["coherence", "stall"]), 1);
}

#[test]
fn sessions_come_by_the_start_of_their_first_trace_then_id() {
    let mut stage = stage();
    for (id, start, session) in [(1, 30, "a"), (2, 10, "c"), (3, 10, "b"), (4, 20, "c")] {
        stage.handle(trace(id, start).session(session), at(40));
    }
    let ids: Vec<_> = stage.sessions().map(|view| view.session_id).collect();
    assert_eq!(ids, ["b", "c", "a"]);
}

#[test]
fn a_failed_outcome_fails_its_trace_and_that_of_a_session_its_last_trace() {
    let mut stage = stage();
    let failed = Attempt { success: Some(false), ..Attempt::default() };
    let failed = TraceFacts { attempt: Some(Box::new(failed)), ..trace(2, 20) };
    stage.handle(trace(1, 10).done(), at(30));
    stage.handle(failed.done(), at(31));
    assert_eq!(stage.session("", "s").unwrap().flagged, [hex(2)]);

    let outcome = Report {
        target: Target::Session { tenant: None, id: "q".into(), scope: None },
        name: "outcome".into(),
        score: Quanta(0),
        label: None,
        success: None,
        explanation: None,
        source: Source::Reported,
        identifier: "x".into(),
        judge: None,
        time: Timestamp(1),
        tenant: None,
    };
    stage.handle(trace(3, 10).session("q").done(), at(32));
    stage.report(outcome, at(33));
    assert_eq!(stage.session("", "q").unwrap().flagged, [hex(3)]);
    // Whichever is the last one, in whatever order they come.
    stage.handle(trace(5, 50).session("q").done(), at(34));
    stage.handle(trace(4, 40).session("q").done(), at(35));
    assert_eq!(stage.session("", "q").unwrap().flagged, [hex(5)]);
    let gone = TraceFacts { tombstone: true, ..trace(5, 50).session("q").revision(2) };
    stage.handle(gone, at(36));
    assert_eq!(stage.session("", "q").unwrap().flagged, [hex(4)]);
}

#[test]
fn drops_hear_of_an_outcome_apart_from_the_verdict() {
    let mut stage = stage();
    let failed = Attempt { success: Some(false), ..Attempt::default() };
    let failed = TraceFacts { attempt: Some(Box::new(failed)), ..trace(1, 10) };
    stage.handle(failed.done(), at(20));
    stage.handle_timeout(at(10_000));
    let update = only(stage.drain());
    let done: Vec<_> =
        update.done_traces.iter().map(|done| (done.failed, done.outcome_failed)).collect();
    assert_eq!(done, [(Some(false), Some(true))]);
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["outcome", "fail"]), 1);
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["trace_risk", "fail"]), 1);
}

#[test]
fn scores_of_agents_and_sessions_do_not_change_with_how_many_traces_are_judged() {
    let window = |judged: u8| {
        let mut stage = stage();
        for id in 1..=20 {
            let mut update = trace(id, 10 + u64::from(id)).done();
            for (name, score) in [("confidence", Quanta::ONE / 4), ("tool_correctness", 0)] {
                let (name, score_quanta) = (name.to_owned(), score);
                update.reported.extend((id <= judged).then_some(ReportedScore {
                    name,
                    score_quanta,
                    source: Source::Judge,
                    ..ReportedScore::default()
                }));
            }
            stage.handle(update, at(60));
        }
        let session = stage.session("", "s").unwrap();
        let mut agents = crate::agents::Agents::new(Default::default());
        agents.handle(only(stage.drain()), at(60));
        let update = agents.drain().remove(0);
        let all = (update.view.reliability, update.view.consistency);
        let windows = (update.view.windows["5m"].clone(), update.view.windows["last_50"].clone());
        (all, windows.0, windows.1, update.counters, session)
    };
    let (none, one, all) = (window(0), window(1), window(20));
    let of_session =
        |of: &SessionView| (of.reliability, of.consistency, of.max_risk, of.traces_evaluated);
    assert_eq!(of_session(&none.4), of_session(&one.4));
    assert_eq!(of_session(&none.4), of_session(&all.4));
    assert_eq!((none.0, none.1.failure_ratio), (one.0, one.1.failure_ratio));
    assert_eq!((none.0, none.1.failure_ratio), (all.0, all.1.failure_ratio));
    let judged = |view: &crate::view::WindowView| {
        let risk = view.judged_reliability.map(|score| format!("{:.3}", 1.0 - score));
        (view.traces_judged, risk)
    };
    for (window, traces) in [(&none, 0), (&one, 1), (&all, 20)] {
        // The greatest risk is that of a tool_correctness of 0, which weighs 0.8.
        let risk = (traces > 0).then(|| "0.800".to_owned());
        assert_eq!(judged(&window.1), (traces, risk.clone()));
        assert_eq!(judged(&window.2), (traces, risk.clone()));
        let (session, asked) = (&window.4, usize::try_from(traces).unwrap());
        let score = session.judged_reliability.map(|score| format!("{:.3}", 1.0 - score));
        assert_eq!((session.traces_judged, score), (traces, risk));
        // Each trace is shown with the judge's word, and flagged by it.
        assert_eq!(session.flagged.len(), asked);
        assert!((window.1.signals["confidence"] - 0.75).abs() < 1e-9);
        let expected = (traces > 0).then_some(0.25);
        assert_eq!(window.1.signals.get("judged_confidence").copied(), expected);
        assert_eq!(window.3.get(Counter::TraceEvaluations, &["trace_risk", "pass"]), Some(20));
    }
}
