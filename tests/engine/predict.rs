//! How much effort a session took and how likely it failed, through all stages: the same for any order, any shards and after a
//! restart.

use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::facts::AgentKey;
use agentgauge::engine::judging::JudgeRules;
use agentgauge::engine::math::Quanta;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::sessions::Sessions;
use agentgauge::engine::span::{
    Operation, Report, SessionName, Source, Span, SpanId, Target, Timestamp, ToolFacts, TraceId,
};
use agentgauge::engine::view::{Document, SessionView};
use proptest::prelude::*;

use crate::evicted::{MemoryStore, session_stores};
use crate::recorded;

const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000_000);
const SESSIONS: u64 = 60;

/// The spans of session `number`, which makes as many tool calls.
fn session(number: u64) -> Vec<Span> {
    let start = BEGIN.after(Duration::from_secs(number));
    let root = Span {
        trace_id: TraceId((u128::from(number) << 64 | 1).to_be_bytes()),
        span_id: SpanId([1; 8]),
        start,
        end: start.after(Duration::from_millis(number)),
        operation: Operation::InvokeAgent,
        convention: Some("test"),
        agent_name: Some(Arc::from("support")),
        session: Some(SessionName { attribute: Arc::from("session.id"), id: name(number) }),
        ..Span::default()
    };
    let calls = (0..number).map(|call| Span {
        span_id: SpanId((call + 2).to_be_bytes()),
        parent: Some(root.span_id),
        operation: Operation::ExecuteTool,
        tool: Some(ToolFacts {
            name: Some(Arc::from(format!("tool {call}"))),
            ..ToolFacts::default()
        }),
        ..root.clone()
    });
    calls.chain([root.clone()]).collect()
}

fn name(number: u64) -> Arc<str> {
    Arc::from(format!("session {number}"))
}

fn outcome(number: u64, failed: bool) -> Report {
    Report {
        target: Target::Session { tenant: None, id: name(number), scope: None },
        name: Arc::from("outcome"),
        score: Quanta(if failed { 0 } else { Quanta::ONE }),
        label: None,
        success: None,
        explanation: None,
        source: Source::Reported,
        identifier: Arc::from(""),
        judge: None,
        time: BEGIN,
        tenant: None,
    }
}

/// The sessions after these have come, some of them with an outcome.
fn sessions(
    order: &[u64],
    outcomes: &[(u64, bool)],
    shards: u32,
    restarts: bool,
) -> Vec<SessionView> {
    document(order, outcomes, shards, restarts).sessions
}

/// Likewise all that is held.
fn document(order: &[u64], outcomes: &[(u64, bool)], shards: u32, restarts: bool) -> Document {
    let (options, route) = (EngineOptions::default(), Route::new(shards, 7));
    let mut pipeline = Pipeline::routed(&options, route);
    let now = BEGIN.after(Duration::from_secs(SESSIONS));
    for number in order {
        pipeline.apply(session(*number), Vec::new(), Vec::new(), now);
    }
    let now = now.after(Duration::from_secs(60));
    pipeline.advance(now);
    if restarts {
        pipeline = recorded::restarted(pipeline, &options, route);
    }
    let reports = outcomes.iter().map(|(number, failed)| outcome(*number, *failed)).collect();
    pipeline.apply(Vec::new(), Vec::new(), reports, now);
    pipeline.document()
}

fn chance(sessions: &[SessionView], number: u64) -> f64 {
    let session = sessions.iter().find(|session| *session.session_id == *name(number));
    session.unwrap().predicted_failure.unwrap()
}

#[test]
fn below_twenty_sessions_nothing_is_said() {
    let few = sessions(&(1..20).collect::<Vec<_>>(), &[], 2, false);
    assert!(few.iter().all(|session| session.effort.is_none() && session.prediction.is_none()));
    let enough = sessions(&(1..=20).collect::<Vec<_>>(), &[], 2, false);
    assert!(enough.iter().all(|session| session.predicted_failure.is_some()));
}

#[test]
fn more_effort_is_more_likely_a_failure_until_outcomes_say_that_it_is_not() {
    let all: Vec<u64> = (1..=SESSIONS).collect();
    let untold = sessions(&all, &[], 2, false);
    assert!(chance(&untold, 55) > 2.0 * chance(&untold, 5));
    let longest = &untold[usize::try_from(SESSIONS).unwrap() - 1];
    let prediction = longest.prediction.as_ref().unwrap();
    assert!((prediction.more_than["tool_calls"] - 119.0 / 120.0).abs() < 1e-12);
    // Nothing reported tokens or dollars.
    assert!(!prediction.more_than.contains_key("cost"), "{prediction:?}");
    let outcomes: Vec<(u64, bool)> = (1..=50).map(|number| (number, number <= 20)).collect();
    let told = sessions(&all, &outcomes, 2, false);
    assert!(chance(&told, 5) > chance(&told, 55));
    assert_eq!(told[0].prediction.as_ref().unwrap().outcomes_known, 50);
    // An outcome is a separate signal, and moves no other number.
    for (before, after) in untold.iter().zip(&told) {
        assert_eq!((before.effort, before.consistency), (after.effort, after.consistency));
    }
}

#[test]
fn each_done_trace_has_a_chance_by_itself_among_the_traces_of_its_agent() {
    let all: Vec<u64> = (1..=30).collect();
    let (options, route) = (EngineOptions::default(), Route::new(2, 7));
    let mut pipeline = Pipeline::routed(&options, route);
    let now = BEGIN.after(Duration::from_secs(SESSIONS));
    // Ten sessions of three traces each: the session's number is that of its last trace.
    for number in &all {
        let own = Some(SessionName { attribute: Arc::from("session.id"), id: name(number / 3) });
        let spans = session(*number).into_iter().map(|span| Span { session: own.clone(), ..span });
        pipeline.apply(spans.collect(), Vec::new(), Vec::new(), now);
    }
    pipeline.advance(now.after(Duration::from_secs(60)));
    let document = pipeline.document();
    // Ten sessions are too few to say anything of one, thirty traces are not.
    assert!(document.sessions.iter().all(|session| session.predicted_failure.is_none()));
    let traces: Vec<_> = document.sessions.iter().flat_map(|session| &session.traces).collect();
    let chances: Vec<f64> = traces.iter().map(|trace| trace.predicted_failure.unwrap()).collect();
    assert!(chances.is_sorted() && chances[29] > 2.0 * chances[0], "{chances:?}");
    // More than 29 traces took, with itself counted half.
    assert!((traces[29].effort.unwrap() - 29.5 / 30.0).abs() < 0.34, "{:?}", traces[29].effort);
    let (key, session) = (&document.agents[0].agent, &document.sessions[9]);
    let learned = pipeline.board()[&AgentKey::from(key)].learned();
    let mut trace = session.traces[0].clone();
    let predicted = learned.look_at_trace(&session.name(), &mut trace).unwrap();
    let carried: f64 = learned.explain(&predicted).carried_by.values().sum();
    let odds = trace.predicted_failure.map(|chance| (chance / (1.0 - chance)).ln()).unwrap();
    assert!((carried - odds).abs() < 1e-9, "what carries it adds up to it");
    let few = sessions(&all[..19], &[], 1, false);
    let shown = serde_json::to_value(&few[0].traces[0]).unwrap();
    assert!(shown.get("predicted_failure").is_none() && shown.get("effort").is_none());
}

#[test]
fn how_often_sessions_succeed_is_told_from_outcomes_and_from_the_effort_of_all() {
    let all: Vec<u64> = (1..=SESSIONS).collect();
    // The outcome of every other session is reported: the longer they are, the more of them failed.
    let outcomes: Vec<(u64, bool)> =
        (1..=SESSIONS).step_by(2).map(|number| (number, number * number % 59 < number)).collect();
    let told = document(&all, &outcomes, 2, false);
    let agent = &told.agents[0];
    let failed = outcomes.iter().filter(|(_, failed)| *failed).count() as f64;
    for window in ["all", "1h"] {
        let success = agent.success[window];
        assert_eq!((success.told, success.selected), (30, 30), "{window}");
        assert_eq!(success.sessions, SESSIONS, "{window}");
        assert!(success.lower < success.estimate && success.estimate < success.upper);
        assert!((success.estimate - (1.0 - failed / 30.0)).abs() < 0.05, "{success:?}");
        // Wilson's interval of the labels alone.
        let (share, square) = (1.0 - failed / 30.0, 1.96_f64.powi(2) / 30.0);
        let alone = 2.0 * (square * (share * (1.0 - share) + square / 4.0)).sqrt() / (1.0 + square);
        assert!(success.upper - success.lower < 0.97 * alone, "{success:?} {alone}");
    }
    let effort = agent.signal_auroc["effort"];
    assert!(effort.auroc > 0.6 && effort.sessions == 30, "{effort:?}");
    assert!((agent.signal_auroc["error"].auroc - 0.5).abs() < 1e-12);
    // It is the outcome that lowers it, and nothing else.
    assert!((agent.signal_auroc["reliability"].auroc - 0.5).abs() < 1e-12);
    // The signal of an outcome does not count as a prediction of it.
    assert!(!agent.signal_auroc.contains_key("outcome"), "{:?}", agent.signal_auroc);
    let calibration = agent.calibration.unwrap();
    assert!(calibration.brier < calibration.brier_of_base, "{calibration:?}");
    // Four outcomes are too few.
    let few = document(&all, &outcomes[..4], 2, false);
    assert!(few.agents[0].success.is_empty() && few.agents[0].calibration.is_none());
}

#[test]
fn sessions_that_are_always_judged_weigh_less_than_those_that_stand_for_others() {
    let judging = Some(JudgeRules { sample_rate: 0.25, flagged: true, ..JudgeRules::default() });
    let options = EngineOptions { judging, ..EngineOptions::default() };
    let mut pipeline = Pipeline::routed(&options, Route::new(2, 7));
    let now = BEGIN.after(Duration::from_secs(SESSIONS));
    // The first ten end in an error, are judged all and fail; of the others every fourth is judged, and succeeds.
    for number in 1..=50 {
        let spans = session(number).into_iter();
        let spans = spans.map(|span| Span { failed: number <= 10, ..span }).collect();
        pipeline.apply(spans, Vec::new(), Vec::new(), now);
    }
    let now = now.after(Duration::from_secs(60));
    pipeline.advance(now);
    let judged = (1..=10).chain((14..=50).step_by(4));
    let by_judge = |number| Report { source: Source::Judge, ..outcome(number, number <= 10) };
    pipeline.apply(Vec::new(), Vec::new(), judged.map(by_judge).collect(), now);
    let success = pipeline.document().agents[0].success["all"];
    assert_eq!((success.told, success.selected, success.sessions), (20, 0, 50));
    // 40 of 50, and not 10 of 20.
    assert!((success.estimate - 0.8).abs() < 0.05, "{success:?}");
    assert!(success.lower > 0.5 && success.always_lower < success.lower, "{success:?}");
    // Selected reports of others do not count beside it.
    let others = (11..=13).map(|number| outcome(number, true)).collect();
    pipeline.apply(Vec::new(), Vec::new(), others, now);
    assert_eq!(pipeline.document().agents[0].success["all"].told, 20);
}

#[test]
fn an_outcome_that_changes_is_taken_back() {
    let all: Vec<u64> = (1..=SESSIONS).collect();
    let told = |outcomes: &[(u64, bool)]| sessions(&all, outcomes, 2, false);
    let late = Report { time: BEGIN.after(Duration::from_secs(1)), ..outcome(7, true) };
    let (options, route) = (EngineOptions::default(), Route::new(2, 7));
    let mut pipeline = Pipeline::routed(&options, route);
    let now = BEGIN.after(Duration::from_secs(SESSIONS));
    all.iter().for_each(|number| pipeline.apply(session(*number), Vec::new(), Vec::new(), now));
    pipeline.advance(now.after(Duration::from_secs(60)));
    pipeline.apply(Vec::new(), Vec::new(), vec![outcome(7, false), late], now);
    let changed = pipeline.document().sessions;
    let predicted = |sessions: &[SessionView]| {
        sessions.iter().map(|session| session.predicted_failure).collect::<Vec<_>>()
    };
    assert_eq!(predicted(&changed), predicted(&told(&[(7, true)])));
    assert_ne!(predicted(&changed), predicted(&told(&[(7, false)])));
}

#[test]
fn a_score_of_a_trace_counts_as_ever_once_the_trace_is_sealed() {
    // Of evicted sessions one a shard stays in memory.
    let sessions = |told_after: u64, shards: u32, evicted: bool| {
        let mut options = EngineOptions::default();
        if evicted {
            options.session.max_sessions = 1;
        }
        let mut pipeline = Pipeline::routed(&options, Route::new(shards, 7));
        if evicted {
            let store = MemoryStore::default();
            pipeline.use_session_store(session_stores(Some(&store), shards));
        }
        let begin = BEGIN.after(Duration::from_secs(SESSIONS));
        (1..=40).for_each(|number| {
            pipeline.apply(session(number), Vec::new(), Vec::new(), begin);
        });
        pipeline.advance(begin.after(Duration::from_secs(told_after)));
        let report = |number: u64, name: &str, identifier: &str, failed: bool| Report {
            target: Target::Trace(session(number)[0].trace_id),
            name: Arc::from(name),
            identifier: Arc::from(identifier),
            ..outcome(number, failed)
        };
        let reports = (1..=30).flat_map(|number| {
            let outcome = report(number, "outcome", "b", number <= 10);
            let of_other = report(number, "outcome", "a", number > 10);
            [outcome, of_other, report(number, "helpfulness", "a", false)]
        });
        let now = begin.after(Duration::from_secs(1_500));
        pipeline.apply(Vec::new(), Vec::new(), reports.collect(), now);
        let (_, _, stages, _) = pipeline.lasting();
        let held: usize = stages.iter().map(Sessions::held_sessions).sum();
        assert_eq!(evicted, held < 40);
        pipeline.finish(now);
        pipeline.document()
    };
    let early = sessions(20, 1, false);
    assert!(early.sessions[0].traces[0].signals.contains_key("helpfulness"));
    assert_eq!(early.agents[0].success["all"].told, 30);
    for (shards, evicted) in [(1, false), (4, false), (1, true), (3, true)] {
        let late = sessions(1_000, shards, evicted);
        assert_eq!(late.sessions, early.sessions, "{shards} shards, evicted: {evicted}");
        assert_eq!(late.agents[0].success, early.agents[0].success);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_order_any_shards_and_a_restart_say_the_same(
        order in Just((1..=30_u64).collect::<Vec<_>>()).prop_shuffle(),
        failed in prop::collection::vec(any::<Option<bool>>(), 30),
        shards in 1..5_u32,
    ) {
        let outcomes: Vec<(u64, bool)> =
            (1..).zip(failed).filter_map(|(number, failed)| Some((number, failed?))).collect();
        let mut in_order = order.clone();
        in_order.sort_unstable();
        let one = document(&in_order, &outcomes, 1, false);
        prop_assert_eq!(&document(&order, &outcomes, shards, false), &one);
        let again = document(&order, &outcomes, shards, true);
        prop_assert_eq!(&again.sessions, &one.sessions);
        let learned = |document: &Document| {
            let agent = document.agents[0].clone();
            (agent.success, agent.signal_auroc, agent.calibration)
        };
        prop_assert_eq!(learned(&again), learned(&one));
    }
}
