//! Drops through the whole engine, from spans: found in time, held while the level is bad, over when it is good again, and the same
//! whatever the shards and whenever the state is saved and restored.

use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::agents::{Agents, BASELINE};
use agentgauge::engine::facts::{
    AgentKey, AgentParts, DoneTrace, Effort, RunTrace, ScopedId, SessionFacts,
};
use agentgauge::engine::math::Quanta;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::span::{
    Attempt, Operation, Report, Resource, RunTarget, SessionName, Source, Span, SpanId, Target,
    Timestamp, ToolFacts, TraceId,
};
use agentgauge::engine::view::{AgentView, DropView};
use proptest::prelude::*;

use crate::recorded;

const SECOND: u64 = 1_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const BEGIN: Timestamp = Timestamp(1_800_000_000 * SECOND);

/// An engine that is fed with traces, one after the other.
struct Run {
    options: EngineOptions,
    route: Route,
    pipeline: Pipeline,
    now: Timestamp,
    random: u64,
    traces: u64,
    gap: Duration,
}

impl Run {
    fn new(shards: u32, seed: u64) -> Self {
        let options = EngineOptions::default();
        let route = Route::new(shards, 7);
        let pipeline = Pipeline::routed(&options, route);
        Self { options, route, pipeline, now: BEGIN, random: seed, traces: 0, gap: MINUTE }
    }

    /// With twelve hours of a past, one trace a minute.
    fn after(seed: u64, level: f64) -> Self {
        let mut run = Self::new(2, seed);
        run.traces("1", level, 720);
        run
    }

    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A trace of a version, and the time until its verdict counts.
    fn trace(&mut self, version: &str, failed: bool) {
        self.traces += 1;
        let spans = spans(self.traces, version, self.now, failed);
        self.pipeline.apply(spans, Vec::new(), Vec::new(), self.now);
        self.now = self.now.after(self.gap);
        self.pipeline.advance(self.now);
    }

    /// This many traces, of which this share fails; the severities of the verdicts.
    fn traces(&mut self, version: &str, level: f64, count: u32) -> Vec<&'static str> {
        let mut severities = Vec::new();
        for _ in 0..count {
            let before = self.drop(version).map_or("quiet", |drop| drop.severity);
            let failed = self.random() < level;
            self.trace(version, failed);
            let after = self.drop(version).map_or("quiet", |drop| drop.severity);
            severities.extend((after != before).then_some(after));
        }
        severities
    }

    /// Traces until the verdicts of a version come to this; how many there were.
    fn until(&mut self, version: &str, level: f64, severity: &str) -> u32 {
        (1..5_000).find(|_| self.traces(version, level, 1) == [severity]).unwrap()
    }

    fn view(&self, version: &str) -> Option<&AgentView> {
        self.pipeline.board().get(&agent(version)).map(|update| &update.view)
    }

    fn stream(&self, version: &str, stream: &str) -> Option<DropView> {
        let mut drops = self.view(version).into_iter().flat_map(|view| &view.drops);
        drops.find(|drop| drop.stream == stream).cloned()
    }

    fn drop(&self, version: &str) -> Option<DropView> {
        self.stream(version, "verdict")
    }

    fn report(&mut self, target: Target, name: &str, score: bool) {
        let report = Report {
            target,
            name: Arc::from(name),
            score: Quanta(if score { Quanta::ONE } else { 0 }),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(""),
            judge: None,
            time: self.now,
            tenant: None,
        };
        self.pipeline.apply(Vec::new(), Vec::new(), vec![report], self.now);
    }

    /// The same in the next process.
    fn restarted(mut self) -> Self {
        let next = Pipeline::routed(&self.options, self.route);
        let before = std::mem::replace(&mut self.pipeline, next);
        self.pipeline = recorded::restarted(before, &self.options, self.route);
        self.pipeline.apply(Vec::new(), Vec::new(), Vec::new(), self.now);
        self
    }

    /// What stage 3 would write down.
    fn saved(&mut self) -> Vec<u8> {
        let (.., agents) = self.pipeline.lasting();
        rmp_serde::to_vec_named(&agents.save()).unwrap()
    }
}

fn agent(version: &str) -> AgentKey {
    AgentParts {
        service_name: "shop".into(),
        agent_name: "support".into(),
        agent_version: version.into(),
        ..AgentParts::default()
    }
    .into()
}

/// A root and a tool call, which fails with it.
fn spans(number: u64, version: &str, at: Timestamp, failed: bool) -> Vec<Span> {
    let resource = Resource { service_name: Some(Arc::from("shop")), ..Resource::default() };
    let root = Span {
        trace_id: TraceId((u128::from(number) << 64 | 1).to_be_bytes()),
        span_id: SpanId([1; 8]),
        start: at,
        end: at.after(Duration::from_millis(20)),
        operation: Operation::InvokeAgent,
        convention: Some("test"),
        resource: Arc::new(resource),
        agent_name: Some(Arc::from("support")),
        agent_version: Some(Arc::from(version)),
        session: Some(SessionName { attribute: Arc::from("session.id"), id: session(number) }),
        failed,
        ..Span::default()
    };
    let tool = ToolFacts { name: Some(Arc::from("book_flight")), ..ToolFacts::default() };
    let call = Span {
        span_id: SpanId([2; 8]),
        parent: Some(root.span_id),
        end: at.after(Duration::from_millis(10)),
        operation: Operation::ExecuteTool,
        tool: Some(tool),
        ..root.clone()
    };
    vec![call, root]
}

fn session(number: u64) -> Arc<str> {
    Arc::from(format!("session-{number}"))
}

#[test]
fn a_drop_is_critical_within_the_aim_and_says_what_is_wrong() {
    let mut traces = 0;
    for seed in 0..4 {
        let mut run = Run::after(seed, 0.01);
        assert_eq!(run.drop("1").unwrap().severity, "quiet");
        let change = run.now;
        traces += run.until("1", 0.4, "critical");
        let drop = run.drop("1").unwrap();
        assert_eq!((drop.pages, drop.against), (true, "past"));
        let found = drop.drop.unwrap();
        let since: u64 = found.since_unix_nano.parse().unwrap();
        assert!(since > change.0 - 600 * SECOND && since < run.now.0, "{found:?}");
        assert!(found.from < 0.05 && found.to > 0.2 && found.confidence > 0.7, "{found:?}");
        assert_eq!(found.signal.as_deref(), Some("error"));
        assert_eq!(found.tool.as_deref(), Some("book_flight"));
        assert_eq!(found.sessions.len(), 2, "{found:?}");
        // The tool fails with it, which only warns.
        assert_eq!(run.stream("1", "tool_failures").unwrap().severity, "warning");
        assert_eq!(run.stream("1", "loops").unwrap().severity, "quiet");
    }
    // The aim is a mean of 25.
    assert!(traces <= 100, "{traces}");
}

#[test]
fn a_healthy_agent_is_quiet() {
    for (seed, level) in [(1, 0.0), (2, 0.01), (3, 0.05)] {
        let severities = Run::after(seed, level).traces("1", level, 300);
        assert!(!severities.contains(&"critical"), "{level} {severities:?}");
    }
}

#[test]
fn a_drop_holds_while_it_is_bad_and_ends_when_it_is_good() {
    let mut run = Run::after(4, 0.01);
    run.until("1", 0.4, "critical");
    let sessions = run.drop("1").unwrap().drop.unwrap().sessions;
    assert_eq!(run.traces("1", 0.4, 400), Vec::<&str>::new());
    let held = run.drop("1").unwrap().drop.unwrap();
    assert_eq!(held.sessions, sessions, "what a page links to stays");
    assert!(held.traces > 400 && (held.to - 0.4).abs() < 0.08, "{held:?}");
    run.until("1", 0.01, "recovering");
    run.until("1", 0.01, "quiet");
    assert_eq!(run.drop("1").unwrap().drop, None);
}

#[test]
fn a_new_agent_is_held_against_its_objective() {
    let mut run = Run::new(2, 5);
    assert_eq!(run.traces("1", 0.02, 60), Vec::<&str>::new());
    assert_eq!(run.drop("1").unwrap().against, "objective");
    let mut bad = Run::new(2, 6);
    assert!(bad.until("1", 0.5, "critical") <= 70);
    assert_eq!(bad.drop("1").unwrap().against, "objective");
    let mut tolerant = Run::new(2, 6);
    tolerant.options.drops.objectives = [("support".to_owned(), 0.4)].into();
    tolerant.pipeline = Pipeline::routed(&tolerant.options, tolerant.route);
    assert!(!tolerant.traces("1", 0.5, 90).contains(&"critical"));
}

#[test]
fn a_worse_version_is_told_from_a_bad_day_of_all() {
    let mut worse = Run::after(7, 0.01);
    assert!(worse.until("2", 0.3, "critical") <= 60);
    let drop = worse.drop("2").unwrap();
    assert_eq!((drop.against, drop.version_before.as_deref()), ("version_before", Some("1")));
    assert_eq!(worse.drop("1").unwrap().severity, "quiet");
    // Both continue, and fail alike.
    let mut all = Run::after(8, 0.01);
    for _ in 0..200 {
        all.traces("1", 0.4, 1);
        all.traces("2", 0.4, 1);
    }
    assert_eq!(all.drop("1").unwrap().severity, "critical");
    let drop = all.drop("2").unwrap();
    assert_eq!((drop.severity, drop.against, drop.version_before), ("critical", "past", None));
    // A version of equal quality has its own past in the end.
    let mut equal = Run::after(9, 0.01);
    equal.traces("2", 0.01, 20);
    assert_eq!(equal.drop("2").unwrap().against, "version_before");
    equal.traces("2", 0.01, 300);
    assert_eq!(equal.drop("2").unwrap().against, "past");
}

#[test]
fn a_level_that_is_accepted_is_usual() {
    let mut run = Run::after(10, 0.01);
    run.until("1", 0.3, "critical");
    run.traces("1", 0.3, 300);
    run.report(Target::Agent(Box::new(agent("2"))), BASELINE, true);
    run.report(Target::Agent(Box::new(agent("1"))), "outcome", true);
    assert_eq!(run.drop("1").unwrap().severity, "critical", "of another one, or of another name");
    run.report(Target::Agent(Box::new(agent("1"))), BASELINE, true);
    let drop = run.drop("1").unwrap();
    assert_eq!((drop.severity, &drop.drop), ("quiet", &None));
    assert!((drop.usual - 0.3).abs() < 0.06, "{drop:?}");
    assert!(!run.traces("1", 0.3, 500).contains(&"critical"));
}

#[test]
fn an_outcome_counts_once_whenever_it_is_told() {
    let mut run = Run::new(1, 11);
    for told in 0..30_u64 {
        run.trace("1", false);
        let trace = TraceId((u128::from(run.traces) << 64 | 1).to_be_bytes());
        let target = if told % 2 == 0 {
            Target::Trace(trace)
        } else {
            Target::Session { tenant: None, id: session(run.traces), scope: None }
        };
        // And again: a repeated trace is no other one.
        run.report(target.clone(), "outcome", false);
        run.report(target, "outcome", told % 3 == 0);
        run.pipeline.advance(run.now);
    }
    let outcome = run.stream("1", "outcome").unwrap();
    assert_eq!(outcome.severity, "critical");
    assert_eq!(outcome.drop.unwrap().traces, 30);
    assert_eq!(run.drop("1").unwrap().severity, "quiet");
}

#[test]
fn what_is_usual_outlives_a_silence_in_which_the_agent_is_forgotten() {
    let mut run = Run::new(2, 12);
    run.options.agents.memory = Duration::from_secs(2 * 86_400);
    run.pipeline = Pipeline::routed(&run.options, run.route);
    run.traces("1", 0.05, 720);
    let usual = run.drop("1").unwrap().usual;
    run.now = run.now.after(Duration::from_secs(5 * 86_400));
    run.pipeline.advance(run.now);
    assert_eq!(run.view("1"), None, "it has no series any more");
    run = run.restarted();
    run.trace("1", false);
    let drop = run.drop("1").unwrap();
    assert!((drop.usual - usual).abs() < 0.01, "{drop:?} {usual}");
    assert_eq!(drop.against, "past");
}

#[test]
fn a_restart_in_the_middle_of_rising_evidence_delays_nothing() {
    let mut run = Run::after(13, 0.01);
    let mut other = Run::after(13, 0.01);
    let mut severities = Vec::new();
    for _ in 0..40 {
        let expected = run.traces("1", 0.4, 1);
        other = other.restarted();
        assert_eq!(other.traces("1", 0.4, 1), expected);
        assert_eq!(other.view("1"), run.view("1"));
        assert_eq!(other.saved(), run.saved(), "bit for bit");
        severities.extend(expected);
    }
    assert!(severities.contains(&"critical"), "{severities:?}");
}

#[test]
fn the_last_trace_and_the_usual_silence_are_told() {
    let mut run = Run::new(1, 14);
    run.traces("1", 0.0, 1_600);
    let view = run.view("1").unwrap();
    let last: u64 = view.last_trace_unix_nano.as_ref().unwrap().parse().unwrap();
    assert_eq!(last, run.now.0 - 60 * SECOND);
    // A silence shows ten seconds late, when the trace is done.
    assert_eq!(view.usual_gap_seconds, Some(3.0 * 64.0 + 10.0));
}

/// A trace of version 1 with this many tool calls, each of another tool.
fn busy(number: u64, at: Timestamp, calls: u8) -> Vec<Span> {
    let mut spans = spans(number, "1", at, false);
    let call = spans.remove(0);
    spans.extend((0..calls).map(|call_number| Span {
        span_id: SpanId([call_number + 2; 8]),
        tool: Some(ToolFacts {
            name: Some(Arc::from(format!("tool {call_number}"))),
            ..ToolFacts::default()
        }),
        ..call.clone()
    }));
    spans
}

/// Many traces at a time; those that fail have more tool calls; the outcome of half of them is reported, and more of them fail in
/// the end.
fn predicted(shards: u32, restarts: bool, turned: bool) -> (Vec<u8>, Vec<DropView>) {
    let mut run = Run::new(shards, 17);
    for tick in 0..140 {
        let (mut all, mut told) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            run.traces += 1;
            let failed = run.random() < if tick < 100 { 0.3 } else { 0.9 };
            let drawn = run.random();
            let more = (0..6).filter(|step| drawn * 6.0 > f64::from(*step)).count();
            let calls = u8::try_from(more).unwrap() + if failed { 5 } else { 1 };
            all.extend(busy(run.traces, run.now, calls));
            if run.random() < 0.5 {
                told.push((session(run.traces), failed));
            }
        }
        if turned {
            all.reverse();
        }
        run.pipeline.apply(all, Vec::new(), Vec::new(), run.now);
        run.now = run.now.after(MINUTE);
        run.pipeline.advance(run.now);
        for (id, failed) in told {
            run.report(Target::Session { tenant: None, id, scope: None }, "outcome", !failed);
        }
        if restarts && tick % 7 == 3 {
            run = run.restarted();
        }
    }
    run.now = run.now.after(MINUTE);
    run.pipeline.advance(run.now);
    let saved = run.saved();
    // The state of an agent is as old as its last trace, except for the share of the false pages.
    let drops = run.restarted().view("1").unwrap().drops.clone();
    (saved, drops)
}

#[test]
fn predictions_of_a_model_that_learns_are_the_same_on_any_shards_in_any_order_and_over_restarts() {
    let (saved, drops) = predicted(1, false, false);
    let stream = drops.iter().find(|drop| drop.stream == "predicted_failure").unwrap();
    assert_eq!((stream.severity, stream.against), ("critical", "past"), "{stream:?}");
    for (shards, restarts, turned) in
        [(1, true, false), (2, false, false), (4, true, true), (3, false, true)]
    {
        let (other, also) = predicted(shards, restarts, turned);
        assert_eq!(also, drops, "{shards} {restarts} {turned}");
        assert_eq!(other, saved, "{shards} {restarts} {turned}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Many traces at a time, of two versions, with restarts: the state is the same with any number of shards.
    #[test]
    fn nothing_depends_on_the_number_of_shards(
        seed in any::<u64>(),
        gap in 0_u64..40,
        ticks in prop::collection::vec((1_usize..20, 0.0_f64..1.0, any::<bool>()), 2..12),
    ) {
        let run = |shards: u32, restarts: bool| {
            let mut run = Run::new(shards, seed);
            run.gap = Duration::from_secs(gap);
            for (tick, (count, level, new)) in ticks.iter().enumerate() {
                let mut all = Vec::new();
                for _ in 0..*count {
                    run.traces += 1;
                    let failed = run.random() < *level;
                    let version = if *new && tick > ticks.len() / 2 { "2" } else { "1" };
                    all.extend(spans(run.traces, version, run.now, failed));
                }
                run.pipeline.apply(all, Vec::new(), Vec::new(), run.now);
                run.now = run.now.after(run.gap);
                run.pipeline.advance(run.now);
                if restarts && tick % 3 == 1 {
                    run = run.restarted();
                }
            }
            run.now = run.now.after(MINUTE);
            run.pipeline.advance(run.now);
            let saved = run.saved();
            // The state of an agent is as old as its last trace, except for the share of the false pages.
            let run = run.restarted();
            let views = ["1", "2"].map(|version| run.view(version).cloned()).into_iter().flatten();
            let drops: Vec<_> = views.map(|view| (view.drops, view.versions)).collect();
            (saved, drops)
        };
        let (saved, drops) = run(1, false);
        prop_assert!(!drops.is_empty());
        for (shards, restarts) in [(2, false), (4, false), (1, true), (4, true)] {
            let (other, also) = run(shards, restarts);
            prop_assert_eq!(&also, &drops, "{} {}", shards, restarts);
            prop_assert_eq!(other, saved.clone(), "{} {}", shards, restarts);
        }
    }
}

/// The streams after outcomes of runs that all ended long before, one in ten of which failed, and which arrived together in this
/// order.
fn drops_of_runs(order: impl Iterator<Item = u64>) -> Vec<DropView> {
    let mut stage = Agents::new(Arc::default());
    let run = |number: u64| Arc::<str>::from(format!("run {number}"));
    let effort = |number| Effort { model_calls: number % 7, ..Effort::default() };
    let trace = |number: u64| RunTrace {
        trace_id: TraceId(u128::from(number + 1).to_be_bytes()),
        attempt: Some(Attempt {
            task: Some("book".into()),
            run: Some(run(number)),
            ..Attempt::default()
        }),
        session: ScopedId { id: "nightly".into(), ..ScopedId::default() },
        start_unix_nano: BEGIN.0 + number * SECOND,
        end_unix_nano: BEGIN.0 + number * SECOND,
        effort: effort(number),
        ..RunTrace::default()
    };
    let done = |number: u64| DoneTrace {
        trace_id: Some(trace(number).trace_id),
        start_unix_nano: BEGIN.0 + number * SECOND,
        at_unix_nano: BEGIN.0 + number * SECOND,
        touched_unix_nano: BEGIN.0 + number * SECOND,
        looped: Some(false),
        effort: Some(effort(number)),
        ..DoneTrace::default()
    };
    let told = SessionFacts {
        agent: Some(agent("1")),
        revision: 1,
        run_traces: (0..OUTCOMES).map(trace).collect(),
        done_traces: (0..OUTCOMES).map(done).collect(),
        ..SessionFacts::default()
    };
    stage.handle(told, BEGIN.after(MINUTE));
    stage.drain();
    for number in order {
        let report = Report {
            target: Target::Run(Box::new(RunTarget {
                agent: agent("1"),
                task: "book".into(),
                run: run(number),
                perturbation: None,
            })),
            name: "outcome".into(),
            score: Quanta(if number.is_multiple_of(10) { 0 } else { Quanta::ONE }),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: "".into(),
            judge: None,
            time: BEGIN,
            tenant: None,
        };
        stage.report(report, BEGIN.after(60 * MINUTE));
    }
    stage.drain().pop().unwrap().view.drops
}

const OUTCOMES: u64 = 200;

#[test]
fn outcomes_of_runs_that_come_together_count_in_the_order_of_the_runs() {
    let in_order = drops_of_runs(0..OUTCOMES);
    let failed = |number: &u64| number.is_multiple_of(10);
    let sorted = (0..OUTCOMES).filter(failed).chain((0..OUTCOMES).filter(|run| !failed(run)));
    assert_eq!(drops_of_runs(sorted), in_order);
    // What each run took teaches how likely such a run fails.
    for stream in ["outcome", "predicted_failure"] {
        assert!(in_order.iter().any(|drop| drop.stream == stream), "{stream}: {in_order:?}");
    }
}

#[test]
fn outcomes_that_are_told_each_night_page_as_others_do() {
    let of_session = |number| Target::Session { tenant: None, id: session(number), scope: None };
    let of_trace = |number: u64| Target::Trace(spans(number, "1", BEGIN, false)[0].trace_id);
    for of in [of_session as fn(u64) -> Target, of_trace] {
        let mut run = Run::new(2, 5);
        for (night, level) in [0.02, 0.02, 0.02, 0.02, 0.5].into_iter().enumerate() {
            let first = run.traces + 1;
            run.traces("1", 0.0, 100);
            // The sessions have ended before that.
            run.now = run.now.after(720 * MINUTE);
            run.pipeline.advance(run.now);
            assert!(run.pipeline.document().sessions.is_empty());
            if night == 3 {
                run = run.restarted();
            }
            for number in first..=run.traces {
                let failed = run.random() < level;
                run.report(of(number), "outcome", !failed);
                // Told twice, it counts once.
                run.report(of(number), "outcome", false);
            }
            let drop = run.stream("1", "outcome").unwrap();
            assert_eq!(drop.severity == "critical", level > 0.1, "night {night}: {drop:?}");
        }
        let found = run.stream("1", "outcome").and_then(|drop| drop.drop).unwrap();
        assert!(found.from < 0.1 && found.to > 0.3 && found.traces <= 100, "{found:?}");
    }
}
