//! The agent reliability score: no order, duplication, replacement or removal changes it, and it is the slow model's.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentgauge::engine::math::Quanta;
use agentgauge::engine::score::ars::{ArsAgent, ArsOptions, ArsRun, ArsWeights};
use agentgauge::reference::credal;
use proptest::prelude::*;

/// Names of test cases, runs and documents: few, so that they meet.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn name() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(&NAMES[..]).prop_map(Arc::from)
}

fn documents() -> impl Strategy<Value = Vec<Arc<str>>> {
    prop::collection::vec(name(), 0..5)
}

/// Accuracies that are even, extreme, or as they come.
fn accuracy() -> impl Strategy<Value = Option<Quanta>> {
    let value = prop_oneof![Just(0.0), Just(1.0), Just(0.7), 0.0..=1.0];
    prop::option::of(value.prop_map(|value| Quanta::from_f64(value).unwrap()))
}

fn run() -> impl Strategy<Value = ArsRun> {
    let what = (prop::option::of(name()), name(), accuracy(), documents(), documents());
    let how = (0_u64..6, 0_u64..6, 0_u64..9);
    let spent = (prop::option::of(0.0..60.0), prop::option::of(0.0..2.0));
    (what, how, spent).prop_map(|(what, how, spent)| {
        let (case, id, accuracy, retrieved, cited) = what;
        let (tool_calls, tool_successes, loops) = how;
        let (latency_seconds, cost_usd) = spent;
        ArsRun {
            case,
            id,
            accuracy,
            retrieved,
            cited,
            tool_calls,
            tool_successes: tool_successes.min(tool_calls),
            loops,
            latency_seconds,
            cost_usd,
        }
    })
}

fn options() -> impl Strategy<Value = ArsOptions> {
    let weight = || prop_oneof![Just(0.0), 0.01..1.0];
    let weights = (weight(), weight(), weight(), weight(), weight(), weight());
    let ceilings = (prop::option::of(1.0..60.0), prop::option::of(0.1..2.0));
    let optimum = prop::option::of(1_u64..5);
    let by_case =
        prop::collection::btree_map(name().prop_map(|name| name.to_string()), 1_u64..5, 0..3);
    let nothing = (prop::option::of(0.0..100.0), 0.0..100.0);
    (weights, ceilings, optimum, by_case, nothing).prop_map(
        |(weights, ceilings, optimum_loops, optimum_loops_by_case, nothing)| {
            let (accuracy, source_fidelity, consistency, trajectory, latency, cost) = weights;
            ArsOptions {
                weights: ArsWeights {
                    accuracy,
                    source_fidelity,
                    consistency,
                    trajectory,
                    latency,
                    cost,
                },
                latency_ceiling_seconds: ceilings.0,
                cost_ceiling_usd: ceilings.1,
                optimum_loops,
                optimum_loops_by_case,
                fidelity_of_nothing: nothing.0,
                fidelity_without_retrieval: nothing.1,
                ..ArsOptions::default()
            }
        },
    )
}

type Key = (Option<Arc<str>>, Arc<str>);

fn key(run: &ArsRun) -> Key {
    (run.case.clone(), run.id.clone())
}

/// The runs that hold after these came, the last of each kept.
fn last(runs: &[ArsRun]) -> BTreeMap<Key, ArsRun> {
    runs.iter().map(|run| (key(run), run.clone())).collect()
}

fn agent<'a>(options: &ArsOptions, runs: impl IntoIterator<Item = &'a ArsRun>) -> ArsAgent {
    let mut agent = ArsAgent::new(options.clone());
    runs.into_iter().for_each(|run| assert!(agent.upsert(run.clone())));
    agent
}

fn same(ours: f64, exact: f64) -> bool {
    (ours - exact).abs() <= 1e-9
}

proptest! {
    #[test]
    fn the_score_is_the_slow_models(runs in prop::collection::vec(run(), 0..60), options in options()) {
        let agent = agent(&options, &runs);
        let held: Vec<ArsRun> = last(&runs).into_values().collect();
        let exact = credal::ars(&held, &options);
        let ours = agent.score();
        prop_assert_eq!(ours.is_some(), exact.score.is_some());
        if let Some((ours, score)) = ours.zip(exact.score) {
            prop_assert!(same(ours.score, score), "{} against {}", ours.score, score);
            prop_assert!(ours.components.keys().eq(exact.components.keys().copied()));
            for (name, (score, share)) in &exact.components {
                let component = ours.components.named(name).unwrap();
                prop_assert!(same(component.score, *score), "{name}: {component:?} against {score}");
                prop_assert!(same(component.weight, *share), "{name}: {component:?} against {share}");
                prop_assert!(component.samples > 0);
            }
        }
        let cases = agent.cases();
        prop_assert!(cases.keys().map(AsRef::as_ref).eq(exact.cases.keys().map(String::as_str)));
        for (ours, exact) in cases.values().zip(exact.cases.values()) {
            prop_assert!(ours.components.keys().eq(exact.keys()));
            prop_assert!(ours.components.values().zip(exact.values()).all(|(a, b)| same(*a, *b)));
        }
    }

    #[test]
    fn order_duplication_replacement_and_removal_leave_no_trace(
        runs in prop::collection::vec(run(), 1..40),
        further in prop::collection::vec(run(), 0..20),
        order in prop::collection::vec(any::<u32>(), 40),
        options in options(),
    ) {
        let held = last(&runs);
        let plain = agent(&options, held.values());
        let mut shuffled: Vec<(u32, &ArsRun)> = order.iter().copied().zip(held.values()).collect();
        shuffled.sort_by_key(|(place, _)| *place);
        // What came before is replaced or removed, and everything comes twice.
        let mut other = agent(&options, &further);
        for (_, run) in shuffled.iter().chain(&shuffled) {
            other.upsert((*run).clone());
        }
        for run in further.iter().filter(|run| !held.contains_key(&key(run))) {
            other.remove(run.case.as_deref(), &run.id);
        }
        prop_assert_eq!(&other, &plain);
        let bits = |agent: &ArsAgent| agent.score().map(|ars| ars.score.to_bits());
        prop_assert_eq!(bits(&other), bits(&plain));
        prop_assert_eq!(other.cases(), plain.cases());
        for run in held.values() {
            prop_assert!(other.remove(run.case.as_deref(), &run.id));
        }
        prop_assert_eq!(other, ArsAgent::new(options));
    }
}
