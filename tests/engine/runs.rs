//! Scores over runs, in every window, are those of the slow model over the existing runs, whatever order their traces and reports
//! arrive in, how often, and what they said before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::count::Counts;
use agentgauge::engine::facts::{AgentKey, Effort, RunTrace, ScopedId};
use agentgauge::engine::math::Quanta;
use agentgauge::engine::options::AgentOptions;
use agentgauge::engine::run_scores::AgentRuns;
use agentgauge::engine::score::ars::ArsOptions;
use agentgauge::engine::score::princeton::{Condition, Resources, RunRecord, TaskOptions};
use agentgauge::engine::span::{Attempt, Report, RunTarget, Source, Target, Timestamp, TraceId};
use agentgauge::engine::time::Moment;
use agentgauge::reference::princeton;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
/// When everything has come: half a pane into the hundredth hour.
const NOW: Timestamp = Timestamp(100 * 3600 * SECOND + 2 * SECOND);
const MOMENT: Moment = Moment { now: NOW, wall: NOW };
const WINDOW: Duration = Duration::from_secs(300);
const LAST: usize = 4;

/// The last state of one trace: its run, or nothing.
#[derive(Clone, Debug)]
struct One {
    task: u8,
    ago_seconds: u64,
    success: Option<bool>,
    disturbed: bool,
    actions: Vec<Arc<str>>,
    gone: bool,
    /// Reported apart from the trace: identifier and confidence in tenths; the last holds.
    confidences: Vec<(u8, u8)>,
}

fn one() -> impl Strategy<Value = One> {
    let name = proptest::sample::select(vec!["search", "read", "write"]).prop_map(Arc::from);
    (
        0..3_u8,
        // Within the window, at its edge, and long before.
        prop_oneof![0..400_u64, 0..100_000_u64],
        proptest::option::of(any::<bool>()),
        proptest::bool::weighted(0.2),
        proptest::collection::vec(name, 0..6),
        proptest::bool::weighted(0.2),
        proptest::collection::vec((0..3_u8, 0..=10_u8), 0..3),
    )
        .prop_map(|(task, ago_seconds, success, disturbed, actions, gone, confidences)| One {
            task,
            ago_seconds,
            success,
            disturbed,
            actions,
            gone,
            confidences,
        })
}

/// Traces by number, with what each said before.
fn world() -> impl Strategy<Value = Vec<(One, Vec<One>)>> {
    proptest::collection::vec((one(), proptest::collection::vec(one(), 0..3)), 0..14)
}

fn start(one: &One) -> Timestamp {
    Timestamp(NOW.0 - (one.ago_seconds + 10) * SECOND)
}

fn end(one: &One) -> Timestamp {
    Timestamp(NOW.0 - one.ago_seconds * SECOND)
}

fn trace(number: usize, one: &One) -> RunTrace {
    let attempt = Attempt {
        task: Some(format!("task {}", one.task).into()),
        run: Some(format!("run {number}").into()),
        success: one.success,
        perturbation: one.disturbed.then(|| "fault".into()),
        ..Attempt::default()
    };
    RunTrace {
        trace_id: TraceId([u8::try_from(number + 1).unwrap(); 16]),
        gone: one.gone,
        attempt: Some(attempt),
        session: ScopedId { id: "s".into(), ..ScopedId::default() },
        start_unix_nano: start(one).0,
        end_unix_nano: end(one).0,
        actions: one.actions.clone(),
        effort: Effort {
            model_calls: 2,
            nanos: end(one).0.saturating_sub(start(one).0),
            ..Effort::default()
        },
        model_nanos: SECOND,
        ..RunTrace::default()
    }
}

fn reports(number: usize, one: &One) -> Vec<(RunTarget, Report)> {
    let said = one.confidences.iter().enumerate();
    said.map(|(at, (id, tenths))| {
        let target = RunTarget {
            agent: AgentKey::default(),
            task: Arc::from(format!("task {}", one.task)),
            run: Arc::from(format!("run {number}")),
            perturbation: None,
        };
        let report = Report {
            target: Target::Run(Box::new(target.clone())),
            name: Arc::from("confidence"),
            score: Quanta::from_f64(f64::from(*tenths) / 10.0).unwrap(),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(id.to_string()),
            judge: None,
            time: Timestamp(at as u64),
            tenant: None,
        };
        (target, report)
    })
    .collect()
}

/// The runs as the slow model takes them.
fn records(world: &[(One, Vec<One>)]) -> Vec<(Timestamp, RunRecord)> {
    let held = world.iter().enumerate().filter(|(_, (one, _))| !one.gone);
    held.map(|(number, (one, _))| {
        let record = RunRecord {
            task: Some(Arc::from(format!("task {}", one.task))),
            id: Arc::from(format!("run {number}")),
            start: start(one),
            success: one.success,
            confidence: one
                .confidences
                .last()
                .map(|(_, tenths)| Quanta::from_f64(f64::from(*tenths) / 10.0).unwrap()),
            condition: if one.disturbed { Condition::Fault } else { Condition::Baseline },
            actions: one.actions.clone(),
            resources: Resources {
                cost_usd: None,
                time_seconds: Some(10.0),
                api_calls: Some(2.0),
                actions: Some(one.actions.len() as f64),
                errors: Some(0.0),
                call_latency_seconds: Some(0.5),
            },
            violations: None,
            looked: false,
        };
        (end(one), record)
    })
    .collect()
}

#[test]
fn a_run_whose_actions_are_not_all_compared_is_counted() {
    let cuts = |max_actions_per_run: usize| {
        let tasks = TaskOptions { max_actions_per_run, ..TaskOptions::default() };
        let mut runs = AgentRuns::new(&AgentOptions::default(), &tasks, &ArsOptions::default());
        let mut counts = Counts::default();
        let one = One {
            task: 0,
            ago_seconds: 0,
            success: Some(true),
            disturbed: false,
            actions: vec![Arc::from("search"), Arc::from("read")],
            gone: false,
            confidences: Vec::new(),
        };
        runs.trace(trace(0, &one), MOMENT, &mut counts);
        counts.get("run_actions", "cut")
    };
    assert_eq!([2, 1].map(cuts), [0, 1]);
}

/// Applies everything in the order of the keys, some of it twice; the states of one trace keep their order.
fn lived(world: &[(One, Vec<One>)], keys: &[u16]) -> AgentRuns {
    let options =
        AgentOptions { windows: vec![WINDOW], last_traces: LAST, ..AgentOptions::default() };
    let mut runs = AgentRuns::new(&options, &TaskOptions::default(), &ArsOptions::default());
    let mut counts = Counts::default();
    let mut keys = keys.iter().cycle().copied();
    // The states of a trace come in order: each one sorts after the previous one.
    let mut events: Vec<(u32, usize, Event<'_>)> = Vec::new();
    for (number, (one, before)) in world.iter().enumerate() {
        let mut key = 0_u32;
        for word in before.iter().chain([one]) {
            key += u32::from(keys.next().unwrap());
            events.push((key, number, Event::Trace(word)));
        }
        if !one.gone {
            for (target, report) in reports(number, one) {
                let key = u32::from(keys.next().unwrap());
                events.push((key, number, Event::Report(Box::new((target, report)))));
            }
        }
    }
    events.sort_by_key(|(key, number, _)| (*key, *number));
    for (key, number, event) in &events {
        for _ in 0..=(key % 2) {
            match event {
                Event::Trace(one) => runs.trace(trace(*number, one), MOMENT, &mut counts),
                Event::Report(sent) => {
                    let (target, report) = &**sent;
                    runs.report(target, report.clone(), MOMENT, &mut counts);
                }
            }
        }
    }
    runs
}

enum Event<'w> {
    Trace(&'w One),
    Report(Box<(RunTarget, Report)>),
}

/// The slow model's scores by the engine's names.
fn exact(runs: &[RunRecord]) -> BTreeMap<String, f64> {
    let scores = princeton::scores(runs, &TaskOptions::default());
    let renamed = scores.into_iter().map(|(name, value)| {
        let name = match name {
            "consistency" | "reliability" => format!("princeton_{name}"),
            "environment_robustness" => "structural_robustness".to_owned(),
            other => other.to_owned(),
        };
        (name, value)
    });
    renamed.collect()
}

proptest! {
    #[test]
    fn every_window_is_what_the_slow_model_says(
        world in world(),
        one in proptest::collection::vec(any::<u16>(), 1..30),
        another in proptest::collection::vec(any::<u16>(), 1..30),
    ) {
        let (mut first, mut second) = (lived(&world, &one), lived(&world, &another));
        prop_assert_eq!(first.scores(), second.scores());
        prop_assert_eq!(first.tasks(), second.tasks());
        let all = records(&world);
        let mut last = all.clone();
        last.sort_by(|(_, a), (_, b)| (a.start, &a.task, &a.id).cmp(&(b.start, &b.task, &b.id)));
        last.drain(..last.len().saturating_sub(LAST));
        // Panes of a sixtieth of the window: the open one, and sixty before it.
        let pane = 5 * SECOND;
        let oldest = (NOW.0 / pane - 60) * pane;
        let recent = all.iter().filter(|(end, _)| end.0 >= oldest).cloned().collect();
        for (window, runs) in [("all", all), ("5m", recent), ("last_4", last)] {
            let runs: Vec<RunRecord> = runs.into_iter().map(|(_, run)| run).collect();
            let exact = exact(&runs);
            let ours: BTreeMap<String, f64> = first.scores().get(window).map(|scores| {
                let scores = scores.scores.iter().filter(|(name, _)| **name != "ars");
                scores.map(|(name, (value, _))| ((*name).to_owned(), *value)).collect()
            }).unwrap_or_default();
            prop_assert!(ours.keys().eq(exact.keys()), "{}: {:?}\n{:?}", window, ours, exact);
            for (name, exact) in exact {
                let close = (ours[&name] - exact).abs() < 1e-9;
                prop_assert!(close, "{} {}: {} {}", window, name, ours[&name], exact);
            }
        }
    }
}
