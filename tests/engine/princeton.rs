//! Princeton's scores, kept run by run, are those of the slow model whatever order, duplicates and revisions come.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentgauge::engine::math::Quanta;
use agentgauge::engine::math::myers::{Pattern, Sequence};
use agentgauge::engine::score::princeton::{
    AgentTasks, Condition, Formula, Name, Refused, Resources, RunRecord, Severity, TaskOptions,
};
use agentgauge::engine::span::Timestamp;
use agentgauge::reference::princeton;
use agentgauge::reference::princeton::consistency::{common_length, edit_distance};
use agentgauge::reference::princeton::predictability::{Prediction, aurc};
use proptest::prelude::*;

/// How the runs of an agent come.
#[derive(Clone, Debug)]
struct History {
    /// A sort key for each run, again and again.
    order: Vec<u16>,
    /// What else happens around each run, again and again.
    noise: Vec<(bool, bool, bool)>,
    /// What the run first looked like, or another run that is taken back.
    others: Vec<RunRecord>,
}

fn quanta(value: f64) -> Quanta {
    Quanta::from_f64(value).unwrap()
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => Just(Condition::Baseline),
        1 => Just(Condition::Fault),
        1 => Just(Condition::Environment),
        1 => Just(Condition::Prompt),
    ]
}

fn confidence() -> impl Strategy<Value = Option<Quanta>> {
    prop_oneof![
        1 => Just(None),
        4 => (0..=10_i32).prop_map(|tenths| Some(quanta(f64::from(tenths) / 10.0))),
        2 => (-0.2..1.2_f64).prop_map(|value| Some(quanta(value))),
    ]
}

fn resources() -> impl Strategy<Value = Resources> {
    let amount = || proptest::option::of(prop_oneof![1 => Just(0.0), 3 => 0.001..5_000.0_f64]);
    let count = || proptest::option::of((0..6_u8).prop_map(f64::from));
    (amount(), amount(), count(), count(), count(), amount()).prop_map(
        |(cost_usd, time_seconds, api_calls, actions, errors, call_latency_seconds)| Resources {
            cost_usd,
            time_seconds,
            api_calls,
            actions,
            errors,
            call_latency_seconds,
        },
    )
}

fn actions() -> impl Strategy<Value = Vec<Arc<str>>> {
    let name = proptest::sample::select(vec!["search", "read", "write", "book", "cancel"]);
    proptest::collection::vec(name.prop_map(Arc::from), 0..90)
}

fn violations() -> impl Strategy<Value = Option<Vec<Severity>>> {
    let severity = proptest::sample::select(vec![Severity::Low, Severity::Medium, Severity::High]);
    proptest::option::of(proptest::collection::vec(severity, 0..3))
}

fn run() -> impl Strategy<Value = RunRecord> {
    let name = (proptest::option::weighted(0.9, 0..3_u8), 0..40_u8, 0..20_u64);
    let said = (proptest::option::weighted(0.9, any::<bool>()), confidence(), condition());
    (name, said, actions(), resources(), violations()).prop_map(
        |((task, id, start), (success, confidence, condition), actions, resources, violations)| {
            RunRecord {
                task: task.map(|task| Arc::from(format!("task {task}"))),
                id: Arc::from(format!("run {id}")),
                start: Timestamp(start),
                success,
                confidence,
                condition,
                actions,
                resources,
                // A broken rule with a verdict, and without.
                looked: violations.as_ref().is_some_and(|found| found.len() % 2 == 0),
                violations,
            }
        },
    )
}

/// Runs without a repeated task and id.
fn runs() -> impl Strategy<Value = Vec<RunRecord>> {
    proptest::collection::vec(run(), 0..40).prop_map(|runs| {
        let distinct: BTreeMap<_, RunRecord> =
            runs.into_iter().map(|run| ((run.task.clone(), Arc::clone(&run.id)), run)).collect();
        distinct.into_values().collect()
    })
}

fn history() -> impl Strategy<Value = History> {
    let order = proptest::collection::vec(any::<u16>(), 1..40);
    let noise = proptest::collection::vec(any::<(bool, bool, bool)>(), 1..20);
    let others = proptest::collection::vec(run(), 1..5);
    (order, noise, others).prop_map(|(order, noise, others)| History { order, noise, others })
}

fn formula() -> impl Strategy<Value = Formula> {
    proptest::sample::select(vec![Formula::Corrected, Formula::Methodology])
}

/// Lets the runs come as the history has it; at the end they are these.
fn lived(runs: &[RunRecord], history: &History, options: &TaskOptions) -> AgentTasks {
    let mut agent = AgentTasks::new(options.clone());
    let mut gone: Vec<RunRecord> = Vec::new();
    for (at, run) in ordered(runs, &history.order).into_iter().enumerate() {
        let other = &history.others[at % history.others.len()];
        let (revised, twice, more) = history.noise[at % history.noise.len()];
        if revised {
            let (task, id) = (run.task.clone(), Arc::clone(&run.id));
            agent.upsert(RunRecord { task, id, ..other.clone() });
        }
        agent.upsert(run.clone());
        if twice {
            agent.upsert(run.clone());
        }
        if more {
            let passing = RunRecord { id: Arc::from(format!("gone {at}")), ..other.clone() };
            agent.upsert(passing.clone());
            gone.push(passing);
        }
        if let Some(passing) = gone.pop_if(|_| twice) {
            agent.remove(passing.task.as_deref(), &passing.id);
        }
    }
    gone.iter().for_each(|passing| agent.remove(passing.task.as_deref(), &passing.id));
    agent
}

fn ordered<'a>(runs: &'a [RunRecord], order: &[u16]) -> Vec<&'a RunRecord> {
    let mut ordered: Vec<(u16, &RunRecord)> = order.iter().cycle().copied().zip(runs).collect();
    ordered.sort_by_key(|(key, _)| *key);
    ordered.into_iter().map(|(_, run)| run).collect()
}

/// The engine's scores are the slow model's, by name and within 1e-9.
fn equals_the_slow_model(
    agent: &AgentTasks,
    runs: &[RunRecord],
    options: &TaskOptions,
) -> Result<(), TestCaseError> {
    let ours: BTreeMap<&str, f64> =
        agent.scores().iter().map(|(name, score)| (name, score.value)).collect();
    let exact = princeton::scores(runs, options);
    prop_assert!(ours.keys().eq(exact.keys()), "{ours:?}\n{exact:?}");
    for (name, exact) in exact {
        prop_assert!((ours[name] - exact).abs() < 1e-9, "{name}: {} {exact}", ours[name]);
    }
    let outcomes = princeton::outcomes_by_task(runs);
    let pass = agent.pass_hat_k();
    for k in 1..=8 {
        let exact = princeton::pass_hat_k(&outcomes, k);
        let ours = pass.get(&u32::try_from(k).unwrap());
        prop_assert_eq!(ours.is_some(), exact.is_some());
        let same = exact.zip(ours).is_none_or(|(exact, ours)| (exact - ours).abs() < 1e-9);
        prop_assert!(same, "pass^{}: {:?} {:?}", k, ours, exact);
    }
    let counted: Vec<(u64, u64)> =
        agent.tasks().map(|task| (task.evaluated, task.successes)).collect();
    let exact: Vec<(u64, u64)> = outcomes
        .iter()
        .map(|task| (task.len() as u64, task.iter().filter(|success| **success).count() as u64))
        .collect();
    prop_assert_eq!(counted, exact);
    Ok(())
}

proptest! {
    #[test]
    fn scores_do_not_depend_on_how_runs_come(
        runs in runs(), one in history(), another in history(), formula in formula(),
    ) {
        let options = TaskOptions { last_runs: 50, formula, ..TaskOptions::default() };
        let (first, second) = (lived(&runs, &one, &options), lived(&runs, &another, &options));
        equals_the_slow_model(&first, &runs, &options)?;
        prop_assert_eq!(first.scores(), second.scores());
        prop_assert_eq!(first.pass_hat_k(), second.pass_hat_k());
        prop_assert_eq!(first.tasks().collect::<Vec<_>>(), second.tasks().collect::<Vec<_>>());
        prop_assert_eq!(first.refused(), Refused::default());
    }

    #[test]
    fn trajectories_and_resources_are_of_the_last_runs(
        runs in runs(), history in history(), last_runs in 0..5_usize, limit in 1..90_usize,
    ) {
        let options =
            TaskOptions { last_runs, max_actions_per_run: limit, ..TaskOptions::default() };
        let mut agent = AgentTasks::new(options.clone());
        for (at, run) in ordered(&runs, &history.order).into_iter().enumerate() {
            // The facts of a run change; when it began and its key do not.
            let other = history.others[at % history.others.len()].clone();
            agent.upsert(RunRecord {
                actions: other.actions,
                resources: other.resources,
                success: other.success,
                ..run.clone()
            });
        }
        for run in ordered(&runs, &history.order).into_iter().rev() {
            agent.upsert(run.clone());
        }
        equals_the_slow_model(&agent, &runs, &options)?;
    }

    #[test]
    fn what_is_taken_back_leaves_nothing(runs in runs(), history in history()) {
        let options = TaskOptions { last_runs: 50, ..TaskOptions::default() };
        let mut agent = lived(&runs, &history, &options);
        runs.iter().for_each(|run| agent.remove(run.task.as_deref(), &run.id));
        prop_assert_eq!(format!("{agent:?}"), format!("{:?}", AgentTasks::new(options)));
    }

    #[test]
    fn sequences_compare_by_bits_as_by_table(
        a in proptest::collection::vec(0..4_u64, 0..200),
        b in proptest::collection::vec(0..5_u64, 0..200),
    ) {
        let (one, other) = (Sequence::new(&a), Sequence::new(&b));
        let pattern = Pattern::new(&one);
        prop_assert_eq!(pattern.edit_distance(&other), edit_distance(&a, &b));
        prop_assert_eq!(pattern.common(&other), common_length(&a, &b));
    }

    #[test]
    fn equal_confidences_count_as_the_mean_over_their_orders(
        predictions in proptest::collection::vec((0..3_u8, any::<bool>()), 1..6),
    ) {
        let tied: Vec<Prediction> =
            predictions.iter().map(|(level, success)| (f64::from(*level), *success)).collect();
        let orders = permutations(tied.len());
        let told_apart = orders.iter().map(|order| {
            let nudged: Vec<Prediction> = tied
                .iter()
                .zip(order)
                .map(|((confidence, success), place)| (confidence + f64::from(*place) / 100.0, *success))
                .collect();
            aurc(&nudged).unwrap()
        });
        let mean = told_apart.sum::<f64>() / orders.len() as f64;
        prop_assert!((aurc(&tied).unwrap() - mean).abs() < 1e-12);
    }
}

fn permutations(n: usize) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    for next in 0..u8::try_from(n).unwrap() {
        all = all
            .into_iter()
            .flat_map(|order: Vec<u8>| {
                (0..=order.len()).map(move |at| {
                    let mut longer = order.clone();
                    longer.insert(at, next);
                    longer
                })
            })
            .collect();
    }
    all
}

fn attempt(task: &str, id: u64, success: bool) -> RunRecord {
    RunRecord {
        task: Some(Arc::from(task)),
        id: Arc::from(format!("{id}")),
        start: Timestamp(id),
        success: Some(success),
        ..RunRecord::default()
    }
}

#[test]
fn runs_at_a_task_too_many_count_without_it_and_are_counted() {
    let mut agent = AgentTasks::new(TaskOptions { max_tasks: 1, ..TaskOptions::default() });
    let accuracy = |agent: &AgentTasks| {
        let scores = agent.scores();
        let mut all = scores.iter().map(|(name, score)| (name, score.value, score.samples));
        all.find(|(name, ..)| *name == "accuracy").map(|(_, value, samples)| (value, samples))
    };
    for id in 0..3 {
        agent.upsert(attempt("known", id, true));
        agent.upsert(attempt("new", id, false));
    }
    assert_eq!(agent.refused(), Refused { over_max_tasks: 3, settled: 0 });
    assert_eq!(agent.tasks().count(), 1);
    assert_eq!(accuracy(&agent), Some((0.5, 6)));
    // They can be revised and taken back.
    agent.upsert(attempt("new", 2, true));
    assert_eq!(accuracy(&agent), Some((4.0 / 6.0, 6)));
    agent.remove(Some("new"), "2");
    assert_eq!(accuracy(&agent), Some((3.0 / 5.0, 5)));
    // Once there is room, a task has the runs that come or change from then on.
    (0..3).for_each(|id| agent.remove(Some("known"), &format!("{id}")));
    assert_eq!((agent.tasks().count(), accuracy(&agent)), (0, Some((0.0, 2))));
    agent.upsert(attempt("new", 0, false));
    let task = agent.tasks().next().unwrap();
    assert_eq!((task.task.as_ref(), task.runs), ("new", 1));
    agent.upsert(attempt("new", 1, true));
    assert_eq!((agent.tasks().next().unwrap().runs, accuracy(&agent)), (2, Some((0.5, 2))));
    (0..2).for_each(|id| agent.remove(Some("new"), &format!("{id}")));
    assert_eq!((agent.tasks().count(), accuracy(&agent)), (0, None));
}

#[test]
fn a_settled_run_counts_on_and_only_once() {
    let mut agent = AgentTasks::new(TaskOptions { max_runs: 2, ..TaskOptions::default() });
    for id in 0..5 {
        agent.upsert(attempt("task", id, true));
    }
    let seen = |agent: &AgentTasks| {
        let task = agent.tasks().next().unwrap();
        (task.runs, task.successes)
    };
    assert_eq!(seen(&agent), (5, 5));
    for id in 0..5 {
        agent.upsert(attempt("task", id, false));
    }
    assert_eq!(seen(&agent), (5, 3));
    assert_eq!(agent.refused(), Refused { over_max_tasks: 0, settled: 3 });
    agent.remove(Some("task"), "0");
    assert_eq!(seen(&agent), (5, 3));
}

#[test]
fn disturbed_runs_count_for_consistency_only_where_there_are_no_others() {
    let mut agent = AgentTasks::new(TaskOptions::default());
    for (id, success) in [(1, true), (2, false)] {
        agent.upsert(RunRecord { condition: Condition::Fault, ..attempt("task", id, success) });
    }
    let outcome = |agent: &AgentTasks| agent.scores().get(Name::OutcomeConsistency).unwrap();
    assert!(outcome(&agent).value < 1e-12);
    for id in 3..6 {
        agent.upsert(attempt("task", id, true));
    }
    assert!((outcome(&agent).value - 1.0).abs() < 1e-12);
    let fault = agent.scores().get(Name::FaultRobustness).unwrap();
    assert!((fault.value - 0.5).abs() < 1e-12);
    assert_eq!(fault.samples, 2);
}
