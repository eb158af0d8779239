//! Facts about the stage, and the property that arrival does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::engine::explained::{SessionFilter, Sort};
use crate::engine::math::Quanta;
use crate::engine::score::agent_consistency::AgentConsistency;
use crate::engine::score::agent_reliability::AgentReliability;
use crate::engine::span::Source;
use crate::engine::update::{
    AgentKey, Expectation, ExpectedLayer, ExpectedStatus, Family, Loop, OutputDigest, PaneSum,
    ReportedScore, SessionKey, Spent, Tokens, ToldLoops, ToolCall,
};

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
fn an_older_revision_is_stale_and_a_newer_one_replaces() {
    let mut stage = stage();
    stage.handle(trace(1, 10).revision(2).error().done(), at(20));
    stage.handle(trace(1, 10).revision(1).done(), at(21));
    assert_eq!(stage.counts().get("trace_updates", "stale"), 1);
    assert_eq!(stage.session("", "s").unwrap().reliability, Some(0.0));
    stage.handle(trace(1, 10).revision(3).done(), at(22));
    assert_eq!(stage.session("", "s").unwrap().reliability, Some(0.75));
    let update = only(stage.drain());
    assert_eq!(everything(&update).traces, 1);
    assert_eq!(counter(&update, "traces", &[]), 1);
}

#[test]
fn a_trace_that_left_stays_away_and_counts_once_where_it_went() {
    let mut stage = stage();
    let update = || trace(1, 10).tokens(7, 3).done();
    stage.handle(update(), at(20));
    stage.drain();
    let gone = TraceUpdate { tombstone: true, ..update().revision(2) };
    stage.handle(gone, at(21));
    stage.handle(update(), at(22));
    assert_eq!(stage.session("", "s"), None);
    stage.handle(update().revision(2).session("other"), at(23));
    assert_eq!(ids(&stage.session("", "other").unwrap()), [hex(1)]);
    let update = only(stage.drain());
    assert_eq!(counter(&update, "traces", &[]), 1);
    assert_eq!(counter(&update, "tokens", &["input"]), 7);
    assert_eq!((everything(&update).traces, everything(&update).sessions), (1, 1));
}

#[test]
fn a_repeated_output_is_a_loop_and_a_late_trace_rescores_those_after_it() {
    let mut stage = stage();
    stage.handle(trace(2, 20).output(&[7]).done(), at(30));
    stage.handle(trace(3, 30).output(&[8]).done(), at(31));
    let loops = |stage: &Sessions| {
        let view = stage.session("", "s").unwrap();
        let traces = view.traces.iter();
        traces
            .map(|trace| {
                trace.loops.iter().map(|found| found.trace_ids.clone()).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let none: Vec<Vec<Vec<String>>> = vec![vec![], vec![]];
    assert_eq!(loops(&stage), none);
    stage.handle(trace(1, 10).output(&[8]).done(), at(32));
    let found: Vec<Vec<Vec<String>>> = vec![vec![], vec![], vec![vec![hex(1), hex(3)]]];
    assert_eq!(loops(&stage), found);
    let update = only(stage.drain());
    assert_eq!(counter(&update, "loops", &["output_repeat"]), 1);
    assert_eq!(counter(&update, "trace_evaluations", &["loop_detection", "fail"]), 1);
    assert_eq!(counter(&update, "trace_evaluations", &["loop_detection", "pass"]), 2);
    assert_eq!(counter(&update, "trace_evaluations", &["coherence", "skipped"]), 3);
}

#[test]
fn verdicts_count_a_trace_once_however_often_it_reopens() {
    let mut stage = stage();
    stage.handle(trace(1, 10).done(), at(20));
    stage.drain();
    stage.handle(trace(1, 10).revision(2), at(21));
    assert_eq!(everything(&only(stage.drain())).traces, 0);
    stage.handle(trace(1, 10).revision(3).error().done(), at(22));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "trace_evaluations", &["error", "pass"]), 1);
    assert_eq!(counter(&update, "trace_evaluations", &["error", "fail"]), 0);
    assert_eq!(everything(&update).traces, 1);
}

#[test]
fn expectations_count_a_trace_once_and_are_shown() {
    let expected = |status: ExpectedStatus| {
        let layer = ExpectedLayer {
            status: status.into(),
            problems: vec!["too slow".to_owned()],
            details: r#"{"loops":2}"#.to_owned(),
            ..ExpectedLayer::default()
        };
        Expectation {
            query: "q".to_owned(),
            hard_fail: true,
            path: Some(layer),
            ..Expectation::default()
        }
    };
    let trace = |revision, status| {
        let mut update = trace(1, 10).revision(revision).done();
        update.expectations = vec![expected(status)];
        update
    };
    let mut stage = stage();
    stage.handle(trace(1, ExpectedStatus::Warn), at(20));
    stage.handle(trace(2, ExpectedStatus::Fail), at(21));
    stage.drain();
    stage.handle(trace(3, ExpectedStatus::Fail), at(22));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "expectations", &["correctness", "skip"]), 1);
    let path = ["warn", "fail"].map(|result| counter(&update, "expectations", &["path", result]));
    assert_eq!(path.iter().sum::<u64>(), 1);
    let view = stage.session("", "s").unwrap();
    let [held] = view.traces[0].expectations.as_slice() else { panic!("{view:?}") };
    let layer = &held.layers["path"];
    assert_eq!((held.query.as_str(), held.hard_fail, layer.status), ("q", true, "fail"));
    assert_eq!((&layer.details["loops"], held.layers["cost"].status), (&2.into(), "skip"));
}

#[test]
fn a_loop_counts_in_flight_and_goes_on_until_it_was_quiet() {
    let mut stage = stage();
    stage.handle(trace(1, 10).looping(3, "warning"), at(20));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "loops_detected", &["exact_repeat", "warning"]), 1);
    assert_eq!(counter(&update, "tokens", &["input"]), 0);
    assert_eq!(looping(&update), [("warning".to_owned(), 1)]);
    stage.handle(trace(1, 10).revision(2).looping(10, "critical"), at(40));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "loops_detected", &["exact_repeat", "warning"]), 1);
    assert_eq!(counter(&update, "loops_detected", &["exact_repeat", "critical"]), 1);
    assert_eq!(counter(&update, "loops", &["exact_repeat"]), 1);
    assert_eq!(looping(&update), [("critical".to_owned(), 1)]);
    // Not grown: the hold runs from 40 s.
    stage.handle(trace(1, 10).revision(3).looping(10, "critical"), at(60));
    stage.handle_timeout(at(339));
    assert_eq!(looping(&only(stage.drain())), [("critical".to_owned(), 1)]);
    stage.handle_timeout(at(340));
    assert_eq!(looping(&only(stage.drain())), []);
}

#[test]
fn a_critical_loop_counts_the_same_seen_at_once_or_step_by_step() {
    let mut stage = stage();
    stage.handle(trace(1, 10).looping(10, "critical").done(), at(20));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "loops_detected", &["exact_repeat", "warning"]), 1);
    assert_eq!(counter(&update, "loops_detected", &["exact_repeat", "critical"]), 1);
    assert_eq!(counter(&update, "loop_wasted_tokens", &["input"]), 5);
    assert_eq!(looping(&update), []);
}

#[test]
fn spend_counts_by_the_excess_and_never_falls() {
    let mut stage = stage();
    let tools =
        [Some(true), Some(false), None].map(|error| ToolCall { error, ..ToolCall::default() });
    let update =
        TraceUpdate { tools: tools.into(), llm_calls: 4, ..trace(1, 10).tokens(9, 1).done() };
    stage.handle(update, at(20));
    stage.handle(trace(1, 10).revision(2).tokens(5, 4).done(), at(21));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "tokens", &["input"]), 9);
    assert_eq!(counter(&update, "tokens", &["output"]), 4);
    assert_eq!(counter(&update, "model_calls", &[]), 4);
    assert_eq!(counter(&update, "tool_calls", &["unknown"]), 1);
}

#[test]
fn a_quiet_session_closes_counts_once_and_goes_later() {
    let mut stage = stage();
    stage.handle(trace(1, 10).error().done(), at(20));
    assert_eq!(only(stage.drain()).sessions_active, 1);
    stage.handle_timeout(at(20 + 1800));
    assert_eq!(stage.open_sessions(), 0);
    let update = only(stage.drain());
    assert_eq!(counter(&update, "sessions_closed", &["idle", "fail"]), 1);
    assert_eq!(update.closed_reliability.as_ref().unwrap().count, 1);
    assert_eq!((update.open_reliability, update.sessions_active), (None, 0));
    stage.handle(trace(2, 1900).done(), at(1900));
    assert_eq!(stage.open_sessions(), 1);
    assert!(stage.session("", "s").is_some());
    stage.handle_timeout(at(1900 + 3600));
    assert_eq!((stage.session("", "s"), stage.held_sessions()), (None, 0));
    let update = only(stage.drain());
    assert_eq!(update.closed_reliability.as_ref().unwrap().count, 1);
    assert_eq!((everything(&update).traces, everything(&update).sessions), (2, 1));
}

#[test]
fn over_the_cap_the_quietest_session_goes_and_its_traces_are_final() {
    let options = SessionOptions { max_sessions: 1, ..SessionOptions::default() };
    let mut stage = Sessions::new(0, options, LoopOptions::default(), AgentOptions::default());
    stage.handle(trace(1, 10).done(), at(20));
    stage.handle(trace(2, 20).session("other").done(), at(30));
    stage.handle(trace(1, 10).revision(2).error().done(), at(31));
    assert_eq!(stage.session("", "s"), None);
    assert_eq!(
        (stage.counts().get("sessions", "evicted"), stage.counts().get("trace_updates", "late")),
        (1, 1)
    );
    let update = only(stage.drain());
    assert_eq!(counter(&update, "sessions_closed", &["evicted", "pass"]), 1);
    assert_eq!((everything(&update).traces, everything(&update).sessions), (2, 2));
    assert_eq!(update.sessions_active, 1);
}

#[test]
fn the_end_of_input_closes_sessions_and_keeps_them() {
    let mut stage = stage();
    stage.handle(trace(1, 10).done(), at(20));
    stage.finish(at(20));
    let update = only(stage.drain());
    assert_eq!(counter(&update, "sessions_closed", &["finished", "pass"]), 1);
    assert_eq!((stage.sessions().count(), stage.open_sessions()), (1, 0));
}

#[test]
fn a_trace_over_the_cap_of_its_session_is_refused() {
    let options = SessionOptions { max_traces_per_session: 1, ..SessionOptions::default() };
    let mut stage = Sessions::new(0, options, LoopOptions::default(), AgentOptions::default());
    stage.handle(trace(1, 10), at(20));
    stage.handle(trace(2, 10), at(20));
    stage.handle(trace(1, 10).revision(2).done(), at(20));
    assert_eq!(stage.counts().get("trace_updates", "session_full"), 1);
    assert_eq!(stage.session("", "s").unwrap().traces_evaluated, 1);
}

#[test]
fn over_the_cap_agents_share_the_overflow() {
    let agents = AgentOptions { max_agents: 1, ..AgentOptions::default() };
    let mut stage = Sessions::new(0, SessionOptions::default(), LoopOptions::default(), agents);
    for (id, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "a")] {
        stage.handle(trace(id, 10).agent(name).session(name).done(), at(20));
    }
    let updates = stage.drain();
    let traces: Vec<_> = updates
        .iter()
        .map(|update| (update.agent.clone().unwrap().service_name, everything(update).traces))
        .collect();
    assert_eq!(traces, [("__overflow__".to_owned(), 2), ("svc".to_owned(), 2)]);
    assert_eq!(stage.counts().get("trace_updates", "agent_overflow"), 2);
}

#[test]
fn an_agent_that_a_trace_only_seemed_to_be_leaves_no_trace() {
    let mut stage = stage();
    stage.handle(trace(1, 10).agent("svc"), at(20));
    assert_eq!(only(stage.drain()).sessions_active, 1);
    stage.handle(trace(1, 10).revision(2).agent("real").done(), at(21));
    let updates = stage.drain();
    let gone: Vec<_> = updates.iter().map(|update| (update.tombstone, update.revision)).collect();
    assert_eq!(gone, [(false, 2), (true, 3)]);
    assert_eq!(stage.agents(), 1);
}

#[test]
fn an_agent_is_forgotten_a_window_after_its_last_session() {
    let mut stage = stage();
    stage.handle(trace(1, 10).done(), at(20));
    let mut now = at(20);
    let mut last = stage.drain();
    while let Some(next) = stage.poll_timeout() {
        assert!(next > now, "time goes on");
        now = next;
        stage.handle_timeout(now);
        let updates = stage.drain();
        last = if updates.is_empty() { last } else { updates };
    }
    assert!(only(last).tombstone);
    assert_eq!(now, at(20 + 86_400 + 1800));
    assert_eq!((stage.agents(), stage.held_sessions()), (0, 0));
}

#[test]
fn a_score_of_a_session_waits_for_it_and_the_one_to_believe_stays() {
    let mut stage = stage();
    let report = |source, time, score| Report {
        target: Target::Session { tenant: None, id: "s".into() },
        name: "helpfulness".into(),
        score: Quanta(score),
        label: None,
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
    let other = Report { target: Target::Trace(TraceId([1; 16])), ..report(Source::Judge, 1, 1) };
    stage.report(other, at(21));
    let lost = Target::Session { tenant: Some("t".into()), id: "s".into() };
    stage.report(Report { target: lost, ..report(Source::Judge, 1, 1) }, at(21));
    stage.handle_timeout(at(700));
    assert_eq!(
        (stage.counts().get("reports", "misdirected"), stage.counts().get("reports", "unmatched")),
        (1, 1)
    );
}

#[test]
fn what_cannot_be_used_is_counted() {
    let mut stage = stage();
    stage.handle(TraceUpdate { trace_id: vec![1; 15], ..trace(1, 10) }, at(1));
    stage.handle(TraceUpdate { trace_id: vec![0; 16], ..trace(1, 10) }, at(1));
    stage.handle(TraceUpdate { session: None, ..trace(1, 10) }, at(1));
    stage.handle(trace(1, 10).session(""), at(1));
    stage.handle(TraceUpdate { agent: None, ..trace(1, 10) }, at(1));
    stage.handle(TraceUpdate { state: 99, ..trace(1, 10) }, at(1));
    assert_eq!(stage.counts().get("trace_updates", "malformed"), 6);
    let odd = Loop { kind: "spiral".to_owned(), ..Loop::default() };
    stage.handle(TraceUpdate { loops: vec![odd], ..trace(1, 10) }, at(1));
    assert_eq!(stage.counts().get("loops", "malformed"), 1);
}

#[test]
fn further_signals_without_a_weight_have_no_sums() {
    let agents = AgentOptions { max_signals_per_agent: 1, ..AgentOptions::default() };
    let mut stage = Sessions::new(0, SessionOptions::default(), LoopOptions::default(), agents);
    stage.handle(trace(1, 10).reported("a", 1).reported("b", 2).reported("error", 3).done(), at(1));
    let sum = everything(&only(stage.drain()));
    assert!(sum.signals.contains_key("a") && !sum.signals.contains_key("b"));
    assert_eq!(sum.signals["error"].sum_quanta, Some(3.into()));
    assert_eq!(stage.counts().get("signals", "agent_full"), 1);
    assert!(stage.session("", "s").unwrap().traces[0].signals.contains_key("b"));
}

#[test]
fn the_documents_profile_shows_four_decimals() {
    let profile = crate::engine::options::Profile::Pandaprobe;
    let options = SessionOptions { profile, ..SessionOptions::default() };
    let mut stage = Sessions::new(0, options, LoopOptions::default(), AgentOptions::default());
    for (id, score) in [(1, 911_111_111_111), (2, 955_555_555_555)] {
        stage.handle(trace(id, u64::from(id)).reported("confidence", score).error().done(), at(20));
    }
    let view = stage.session("", "s").unwrap();
    assert_eq!((view.reliability, view.consistency), (Some(0.9111), Some(0.9297)));
    assert!(view.traces[0].signals.keys().eq(["confidence", "loop_detection"]));
}

#[test]
fn a_session_over_nothing_has_no_score_unless_the_empty_score_is_one() {
    let empty_score = crate::engine::options::EmptyScore::One;
    let options = SessionOptions { empty_score, ..SessionOptions::default() };
    for (options, score) in [(SessionOptions::default(), None), (options, Some(1.0))] {
        let mut stage = Sessions::new(0, options, LoopOptions::default(), AgentOptions::default());
        stage.handle(trace(1, 10), at(20));
        let view = stage.session("", "s").unwrap();
        assert_eq!((view.reliability, view.consistency), (score, score));
        assert_eq!((view.traces_evaluated, view.max_risk), (0, None));
    }
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
fn a_trace_that_left_before_it_came_is_remembered_for_a_while() {
    let mut stage = stage();
    stage.handle(TraceUpdate { tombstone: true, ..trace(1, 10).revision(5) }, at(20));
    stage.handle_timeout(at(21));
    stage.handle(trace(1, 10).revision(4), at(22));
    assert_eq!((stage.session("", "s"), stage.counts().get("trace_updates", "stale")), (None, 1));
    assert_eq!((stage.open_sessions(), stage.held_sessions()), (0, 1));
    stage.handle_timeout(at(20 + 1800));
    assert_eq!(stage.held_sessions(), 0);
}

#[test]
fn a_trace_that_was_done_where_it_was_is_not_done_again_where_it_goes() {
    let mut before = stage();
    before.handle(trace(1, 10).done(), at(20));
    before.handle(TraceUpdate { tombstone: true, ..trace(1, 10).revision(2) }, at(21));
    assert_eq!(counter(&only(before.drain()), "traces", &[]), 1);
    let told = ToldLoops { spent: Some(Spent::default()), ..ToldLoops::default() };
    let mut after = stage();
    let there = trace(1, 10).revision(2).session("other").done();
    after.handle(TraceUpdate { told: vec![told], ..there }, at(22));
    assert_eq!(counter(&only(after.drain()), "traces", &[]), 0);
}

#[test]
fn a_session_rests_when_it_was_quiet_and_is_sealed_as_it_is() {
    let mut stage = stage();
    for (id, second) in [(1, 10), (2, 20)] {
        stage.handle(detailed(trace(id, second).tokens(7, 3).done()), at(100));
    }
    stage.drain();
    let before = views(&stage);
    stage.handle_timeout(at(111));
    stage.drain();
    assert_eq!(views(&stage), before);
    let id = SessionId { tenant: String::new(), id: "s".to_owned() };
    assert!(stage.sessions.awake(&id).is_none());
    let sealed = |id| {
        let TraceUpdate { trace_id, session, .. } = trace(id, 10);
        let state = TraceState::Sealed.into();
        TraceUpdate { trace_id, session, state, unchanged: true, ..TraceUpdate::default() }
    };
    for word in [sealed(1).revision(2), sealed(1).revision(2)] {
        stage.handle(word, at(112));
        assert!(stage.sessions.awake(&id).is_none());
        assert_eq!(stage.counts().get("trace_updates", "unheld"), 0);
    }
    for word in [sealed(1).revision(1), sealed(3).revision(2)] {
        stage.handle(word, at(112));
    }
    assert_eq!(stage.counts().get("trace_updates", "unheld"), 2);
    stage.handle(detailed(trace(1, 10).tokens(7, 3).done()), at(112));
    assert_eq!(stage.counts().get("trace_updates", "stale"), 1);
    assert_eq!(views(&stage), before);
    stage.handle(detailed(trace(2, 20).tokens(7, 3).revision(3)), at(113));
    assert_eq!(stage.session("", "s").unwrap().traces_evaluated, 1);
}

#[test]
fn a_low_flat_session_stalls_at_its_sixth_trace() {
    let mut stage = stage();
    for id in 1..=6 {
        let score = Quanta::ONE / 5;
        stage.handle(trace(id, u64::from(id)).reported("coherence", score).done(), at(20));
    }
    assert_eq!(counter(&only(stage.drain()), "gate_breaches", &["coherence", "stall"]), 1);
}

/// One step of a script.
#[derive(Clone, Debug)]
struct Step {
    update: TraceUpdate,
    again: bool,
    drain: bool,
}

proptest! {
    #[test]
    fn arrival_does_not_matter(updates in updates(), order in any::<u64>()) {
        let plain = run(script(&updates, None));
        let mixed = run(script(&updates, Some(order)));
        prop_assert_eq!(plain.0.sessions().collect::<Vec<_>>(), mixed.0.sessions().collect::<Vec<_>>());
        prop_assert_eq!(&plain.1, &mixed.1);
    }

    #[test]
    fn what_is_kept_up_to_date_is_what_a_new_start_gives(updates in updates(), order in any::<u64>()) {
        let (stage, panes) = run(script(&updates, Some(order)));
        let (fresh, fresh_panes) = run(newest(&updates).into_iter().map(Step::plain).collect());
        prop_assert_eq!(stage.sessions().collect::<Vec<_>>(), fresh.sessions().collect::<Vec<_>>());
        prop_assert_eq!(panes, fresh_panes);
        for view in stage.sessions() {
            let held = stage.sessions.iter(&stage.shared.rules).find(|session| session.id.id == view.session_id).unwrap();
            let mut reliability = AgentReliability::default();
            let mut consistency = AgentConsistency::default();
            for held in held.traces.values().filter(|held| scoring::is_done(&held.update)) {
                held.scored.risk.risk.into_iter().for_each(|risk| reliability.observe(risk));
                held.scored.risk.uncertainty.into_iter().for_each(|risk| consistency.observe(risk));
            }
            prop_assert_eq!(view.reliability, reliability.result().map(|result| result.score));
            prop_assert_eq!(view.consistency, consistency.result().map(|result| result.score));
        }
    }

    #[test]
    fn a_session_at_rest_is_what_it_was(updates in updates(), order in any::<u64>(), moments in any::<u64>()) {
        let (mut plain, mut resting) = (stage(), stage());
        for (number, step) in script(&updates, Some(order)).into_iter().enumerate() {
            let update = detailed(step.update);
            plain.handle(update.clone(), at(100));
            resting.handle(update, at(100));
            prop_assert_eq!(plain.drain(), resting.drain());
            if moments >> (number % 64) & 1 == 1 {
                pack(&mut resting);
                prop_assert_eq!(views(&plain), views(&resting));
            }
        }
        pack(&mut resting);
        for view in views(&plain).iter().filter(|view| view.traces_evaluated == view.total_traces) {
            let id = SessionId { tenant: String::new(), id: view.session_id.clone() };
            prop_assert!(resting.sessions.awake(&id).is_none(), "{view:?}");
        }
        for sort in [Sort::Start, Sort::Recent, Sort::Reliability, Sort::Loops, Sort::Cost] {
            for loops in [None, Some(true)] {
                let filter = SessionFilter { loops, ..SessionFilter::default() };
                let expected = sorted(&plain, sort, &filter);
                prop_assert_eq!(listed(&plain, sort, &filter), expected.clone(), "{:?}", sort);
                prop_assert_eq!(listed(&resting, sort, &filter), expected, "{:?}", sort);
            }
        }
        for view in views(&plain) {
            let id = u8::from_str_radix(&view.traces[0].trace_id[..2], 16).unwrap();
            prop_assert_eq!(found(&resting, TraceId([id; 16])), Some(view.session_id));
        }
        prop_assert_eq!(plain.counts(), resting.counts());
        let written = |stage: &Sessions| rmp_serde::to_vec_named(&Written(&stage.sessions, &stage.shared.rules)).unwrap();
        prop_assert_eq!(written(&plain), written(&resting));
        plain.finish(at(100));
        resting.finish(at(100));
        prop_assert_eq!(plain.drain(), resting.drain());
        prop_assert_eq!(views(&plain), views(&resting));
        plain.handle_timeout(at(100_000));
        resting.handle_timeout(at(100_000));
        prop_assert_eq!(plain.drain(), resting.drain());
        prop_assert_eq!((plain.held_sessions(), resting.held_sessions(), resting.open_sessions()), (0, 0, 0));
    }

    #[test]
    fn counters_never_fall_and_gauges_come_back_to_nothing(updates in updates(), order in any::<u64>()) {
        let mut stage = stage();
        let mut counters: BTreeMap<(String, String, Vec<String>), u64> = BTreeMap::new();
        for step in script(&updates, Some(order)) {
            stage.handle(step.update, at(100));
            for update in stage.drain() {
                let agent = update.agent.clone().unwrap().agent_name;
                for Family { name, counters: values } in update.counters {
                    for value in values {
                        let key = (agent.clone(), name.clone(), value.labels);
                        let before = counters.insert(key, value.value).unwrap_or(0);
                        prop_assert!(before <= value.value);
                    }
                }
            }
        }
        stage.finish(at(100));
        for update in stage.drain() {
            prop_assert_eq!(update.sessions_active, 0);
            prop_assert_eq!((update.open_reliability, update.open_consistency), (None, None));
            prop_assert!(update.sessions_looping.is_empty());
        }
    }
}

/// Updates of few traces in few sessions: the revisions of a trace are distinct, and when its
/// session changes it leaves the old one first.
fn updates() -> impl Strategy<Value = Vec<TraceUpdate>> {
    let form = (1_u8..6, 0_u8..3, 0_u8..2, 1_u64..8, any::<(bool, bool, bool)>(), 0_u64..4);
    prop::collection::vec(form, 1..24).prop_map(|forms| {
        let mut revision = 0;
        let mut sessions: BTreeMap<u8, String> = BTreeMap::new();
        let mut updates = Vec::new();
        for (id, session, agent, start, (error, done, looping), output) in forms {
            revision += 1;
            let session = format!("s{session}");
            if let Some(old) = sessions.insert(id, session.clone()).filter(|old| *old != session) {
                let left = trace(id, start).revision(revision).session(&old);
                updates.push(TraceUpdate { tombstone: true, ..left });
            }
            let mut update = trace(id, start).revision(revision).session(&session);
            update = update.agent(&format!("a{agent}")).tokens(output, start);
            update = if output > 0 { update.output(&[output]) } else { update };
            update = if error { update.error() } else { update };
            update = if looping { update.looping(start, "warning") } else { update };
            updates.push(if done { update.done() } else { update });
        }
        updates
    })
}

/// The newest update of each trace in each session.
fn newest(updates: &[TraceUpdate]) -> Vec<TraceUpdate> {
    let keyed = updates.iter().map(|update| {
        ((update.session.clone().unwrap().id, update.trace_id.clone()), update.clone())
    });
    keyed.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// The updates as they are, or, with a seed, mixed up and some of them twice.
fn script(updates: &[TraceUpdate], seed: Option<u64>) -> Vec<Step> {
    let Some(mut seed) = seed else { return updates.iter().cloned().map(Step::plain).collect() };
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let steps = updates.iter().cloned();
    let mut steps: Vec<_> = steps
        .map(|update| (next(), Step { update, again: next() % 3 == 0, drain: next() % 3 == 0 }))
        .collect();
    let twice: Vec<_> = steps.iter().filter(|(_, step)| step.again).cloned().collect();
    steps.extend(twice.into_iter().map(|(_, step)| (next(), step)));
    steps.sort_by_key(|(rank, _)| *rank);
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Runs a script; returns the stage and the panes that a receiver ends up with.
fn run(steps: Vec<Step>) -> (Sessions, BTreeMap<(String, u64, u64), PaneSum>) {
    let mut stage = stage();
    let mut panes: BTreeMap<(String, u64, u64), PaneSum> = BTreeMap::new();
    let mut receive = |updates: Vec<SessionUpdate>| {
        for update in updates {
            let agent = update.agent.unwrap().agent_name;
            if update.tombstone {
                panes.retain(|(other, ..), _| *other != agent);
            }
            for pane in update.panes {
                let key = (agent.clone(), pane.width_nanos, pane.index);
                if pane.traces == 0 {
                    panes.remove(&key);
                } else {
                    panes.insert(key, pane);
                }
            }
        }
    };
    for step in steps {
        stage.handle(step.update, at(100));
        if step.drain {
            receive(stage.drain());
        }
    }
    stage.finish(at(100));
    receive(stage.drain());
    (stage, panes)
}

impl Step {
    fn plain(update: TraceUpdate) -> Self {
        Self { update, again: false, drain: false }
    }
}

/// Lets every session rest that can.
fn pack(stage: &mut Sessions) {
    let ids: Vec<_> = stage.sessions.ids().collect();
    for id in ids {
        stage.sessions.pack(&id, &stage.shared.rules);
    }
}

/// Ids in an order, asked for a session at a time.
fn listed(stage: &Sessions, sort: Sort, filter: &SessionFilter) -> Vec<String> {
    let (mut places, mut after, mut total) = (BTreeSet::new(), None, 0);
    loop {
        let part = stage.places(after.as_ref(), &Wanted { filter, sort, most: 9 }, 1);
        places.extend(part.places);
        total += part.total;
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(total, places.len() as u64);
    places.into_iter().map(|place| place.session().id).collect()
}

/// The same by rows of all sessions.
fn sorted(stage: &Sessions, sort: Sort, filter: &SessionFilter) -> Vec<String> {
    let ids: Vec<_> = stage.sessions.ids().map(|id| SessionId::clone(&id)).collect();
    let mut rows: Vec<_> = stage.rows(&ids, usize::MAX).into_iter().flatten().collect();
    rows.retain(|row| filter.loops.is_none_or(|loops| loops == (row.loops > 0)));
    let nanos = |text: &str| text.parse::<u64>().unwrap();
    let by = |row: &SessionRow| match sort {
        Sort::Start => 0.0,
        Sort::Recent => -(nanos(&row.end_unix_nano) as f64),
        Sort::Reliability => row.reliability.unwrap_or(f64::INFINITY),
        Sort::Loops => -(row.loops as f64),
        // What costs less than nothing costs nothing.
        Sort::Cost => row.cost_usd.map_or(f64::INFINITY, |cost| -cost.max(0.0)),
    };
    let rest = |row: &SessionRow| (nanos(&row.start_unix_nano), row.session_id.clone());
    rows.sort_by(|a, b| by(a).total_cmp(&by(b)).then_with(|| rest(a).cmp(&rest(b))));
    rows.into_iter().map(|row| row.session_id).collect()
}

/// The session of a trace, asked for a session at a time.
fn found(stage: &Sessions, trace: TraceId) -> Option<String> {
    let mut after = None;
    loop {
        let Sought { session, next } = stage.find("", after.as_deref(), trace, 1);
        if session.is_some() || next.is_none() {
            return session;
        }
        after = next;
    }
}

fn views(stage: &Sessions) -> Vec<SessionView> {
    stage.sessions().collect()
}

/// An update with something of everything, as its start decides.
fn detailed(update: TraceUpdate) -> TraceUpdate {
    let number = update.start_unix_nano / 1_000_000_000;
    let odd = |what: u64| (number >> what) & 1 == 1;
    let call = |at: u64| ToolCall {
        name: format!("tool {}", at % 3),
        error: [None, Some(false), Some(true)][usize::try_from((at + number) % 3).unwrap()],
        start_unix_nano: update.start_unix_nano + at,
        end_unix_nano: update.start_unix_nano + 7 * at,
        arguments_hash: odd(0).then_some(at),
        result_hash: odd(1).then_some(u64::MAX - at),
        arguments: (at == 4).then(|| "{}".to_owned()),
        ..ToolCall::default()
    };
    let attempt =
        crate::engine::update::Attempt { task: Some("t".to_owned()), ..Default::default() };
    TraceUpdate {
        tools: (0..number).map(call).collect(),
        cost_quanta: odd(1).then_some(-5 + 9 * i64::try_from(number).unwrap()),
        models: (0..number % 3).map(|model| format!("model {model}")).collect(),
        user: odd(2).then(|| "someone".to_owned()),
        attempt: odd(2).then(|| Box::new(attempt)),
        complete: odd(0),
        llm_calls: number,
        model_nanos: number << 40,
        touched_unix_nano: at(90).0 + number,
        ..update
    }
}

fn stage() -> Sessions {
    Sessions::new(3, SessionOptions::default(), LoopOptions::default(), AgentOptions::default())
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::default().after(Duration::from_secs(seconds))
}

/// An open trace of session `s` and agent `a` that starts at this second.
fn trace(id: u8, second: u64) -> TraceUpdate {
    TraceUpdate {
        trace_id: vec![id; 16],
        revision: 1,
        session: Some(SessionKey { source: "session.id".to_owned(), ..SessionKey::default() }),
        agent: Some(AgentKey { service_name: "svc".to_owned(), ..AgentKey::default() }),
        state: TraceState::Open.into(),
        start_unix_nano: at(second).0,
        end_unix_nano: at(second).0 + 1,
        steps: 4,
        wasted_steps: 1,
        ..TraceUpdate::default()
    }
    .session("s")
    .agent("a")
}

impl TraceUpdate {
    fn done(self) -> Self {
        Self { state: TraceState::Done.into(), ..self }
    }

    fn revision(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    fn session(mut self, id: &str) -> Self {
        self.session.as_mut().unwrap().id = id.to_owned();
        self
    }

    fn agent(mut self, name: &str) -> Self {
        self.agent.as_mut().unwrap().agent_name = name.to_owned();
        self
    }

    fn error(self) -> Self {
        Self { error: true, ..self }
    }

    fn tokens(self, input: u64, output: u64) -> Self {
        Self { tokens: Some(Tokens { input: Some(input), output: Some(output) }), ..self }
    }

    fn output(self, tokens: &[u64]) -> Self {
        let embedding = (0..16).map(|index| i32::from(tokens.contains(&index))).collect();
        let digest = OutputDigest { tokens: tokens.into(), embedding, ..OutputDigest::default() };
        Self { output_digest: Some(digest), ..self }
    }

    fn looping(mut self, count: u64, severity: &str) -> Self {
        self.loops = vec![Loop {
            kind: "exact_repeat".to_owned(),
            severity: severity.to_owned(),
            tool: "search".to_owned(),
            count,
            evidence: "full".to_owned(),
            tokens: Some(Tokens { input: Some(5), output: None }),
            ..Loop::default()
        }];
        self
    }

    fn reported(mut self, name: &str, score_quanta: i64) -> Self {
        let source = "reported".to_owned();
        let name = name.to_owned();
        self.reported.push(ReportedScore {
            name,
            score_quanta,
            source,
            ..ReportedScore::default()
        });
        self
    }
}

fn only(updates: Vec<SessionUpdate>) -> SessionUpdate {
    assert_eq!(updates.len(), 1, "{updates:?}");
    updates.into_iter().next().unwrap()
}

fn everything(update: &SessionUpdate) -> PaneSum {
    update.panes.iter().find(|pane| pane.width_nanos == 0).cloned().unwrap()
}

fn counter(update: &SessionUpdate, family: &str, labels: &[&str]) -> u64 {
    let family = update.counters.iter().find(|found| found.name == family);
    let mut counters = family.into_iter().flat_map(|family| &family.counters);
    counters.find(|counter| counter.labels == labels).map_or(0, |counter| counter.value)
}

fn looping(update: &SessionUpdate) -> Vec<(String, u64)> {
    update.sessions_looping.iter().map(|gauge| (gauge.labels[1].clone(), gauge.value)).collect()
}

fn ids(view: &SessionView) -> Vec<String> {
    view.traces.iter().map(|trace| trace.trace_id.clone()).collect()
}

fn hex(id: u8) -> String {
    TraceId([id; 16]).to_string()
}
