//! Princeton's agent reliability, as its methodology page and its authors' later code define it.
//!
//! Source: Princeton, agent reliability, "Methodology". One file per dimension; this one has the short ones, and everything over a
//! list of runs.

pub mod consistency;
pub mod predictability;
pub mod safety;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::math::Quanta;
use crate::engine::score::princeton::{
    AggregateWeights, Condition, Formula, RunRecord, TaskOptions,
};

/// A score by its name.
pub type Scores = BTreeMap<&'static str, f64>;

/// Arithmetic mean; `None` over nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The share of runs that succeeded; `None` over nothing.
pub fn accuracy(outcomes: &[bool]) -> Option<f64> {
    mean(&outcomes.iter().map(|success| f64::from(u8::from(*success))).collect::<Vec<_>>())
}

/// `min(accuracy disturbed / accuracy undisturbed, 1)`; `None` if a side is empty or never succeeds undisturbed.
pub fn robustness(baseline: &[bool], disturbed: &[bool]) -> Option<f64> {
    let baseline = accuracy(baseline).filter(|accuracy| *accuracy >= 1e-8)?;
    accuracy(disturbed).map(|accuracy| (accuracy / baseline).min(1.0))
}

/// tau-bench's pass^k: over tasks with at least `k` runs, the mean of `C(successes, k) / C(runs, k)`; `None` if
/// there is no such task.
pub fn pass_hat_k(tasks: &[Vec<bool>], k: usize) -> Option<f64> {
    let choose = |n: usize| (0..k).map(|i| n.saturating_sub(i) as f64 / (i + 1) as f64).product();
    let ratio = |outcomes: &Vec<bool>| {
        let (all, right): (f64, f64) =
            (choose(outcomes.len()), choose(outcomes.iter().filter(|success| **success).count()));
        right / all
    };
    let ratios: Vec<f64> = tasks.iter().filter(|outcomes| outcomes.len() >= k).map(ratio).collect();
    mean(&ratios)
}

/// Weighted mean of the parts that exist; `None` if none does.
pub fn weighted(parts: &[(f64, Option<f64>)]) -> Option<f64> {
    let present: Vec<(f64, f64)> = parts
        .iter()
        .filter(|(weight, _)| *weight > 0.0)
        .filter_map(|(weight, value)| Some((*weight, (*value)?)))
        .collect();
    let total: f64 = present.iter().map(|(weight, _)| weight).sum();
    (!present.is_empty())
        .then(|| present.iter().map(|(weight, value)| weight * value).sum::<f64>() / total)
}

/// Adds `consistency`, `predictability`, `robustness` and `reliability`, over the parts that exist.
pub fn aggregate(scores: &mut Scores, weights: &AggregateWeights) {
    let of = |name: &str| scores.get(name).copied();
    let trajectory = weighted(&[
        (weights.trajectory_distribution, of("trajectory_distribution_consistency")),
        (weights.trajectory_sequence, of("trajectory_sequence_consistency")),
    ]);
    let consistency = weighted(&[
        (weights.outcome, of("outcome_consistency")),
        (weights.trajectory, trajectory),
        (weights.resource, of("resource_consistency")),
    ]);
    let robustness = weighted(&[
        (weights.fault, of("fault_robustness")),
        (weights.environment, of("environment_robustness")),
        (weights.prompt, of("prompt_robustness")),
    ]);
    let predictability = of("brier");
    let reliability = weighted(&[
        (weights.consistency, consistency),
        (weights.predictability, predictability),
        (weights.robustness, robustness),
    ]);
    let found = [
        ("consistency", consistency),
        ("predictability", predictability),
        ("robustness", robustness),
        ("reliability", reliability),
    ];
    scores.extend(found.into_iter().filter_map(|(name, value)| Some((name, value?))));
}

/// All scores over the runs of an agent, which contain each (task, id) once, in any order.
pub fn scores(runs: &[RunRecord], options: &TaskOptions) -> Scores {
    let primary = primary_runs(runs);
    let mut all: BTreeMap<&'static str, Option<f64>> = BTreeMap::new();
    let mut over_tasks: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for task in by_task(&primary).values() {
        for (name, value) in task_scores(task, options) {
            over_tasks.entry(name).or_default().push(value);
        }
    }
    all.extend(over_tasks.iter().map(|(name, values)| (*name, mean(values))));
    let predictions: Vec<predictability::Prediction> = primary
        .iter()
        .filter_map(|run| Some((run.confidence.map(Quanta::to_f64)?, run.success?)))
        .collect();
    let outcomes: Vec<bool> = primary.iter().filter_map(|run| run.success).collect();
    all.insert("accuracy", accuracy(&outcomes));
    let confidences: Vec<f64> = predictions.iter().map(|(confidence, _)| *confidence).collect();
    all.insert("mean_confidence", mean(&confidences));
    all.insert("risk_coverage", predictability::risk_coverage(&predictions));
    all.insert("calibration", predictability::calibration(&predictions));
    all.insert("auroc", predictability::auroc(&predictions));
    all.insert("brier", predictability::brier(&predictions));
    let under = |condition: Condition| -> Vec<bool> {
        let runs = runs.iter().filter(|run| run.condition == condition);
        runs.filter_map(|run| run.success).collect()
    };
    let baseline = under(Condition::Baseline);
    all.insert("fault_robustness", robustness(&baseline, &under(Condition::Fault)));
    all.insert("environment_robustness", robustness(&baseline, &under(Condition::Environment)));
    all.insert("prompt_robustness", robustness(&baseline, &under(Condition::Prompt)));
    let safety = safety::safety(&safety::analysed(runs));
    all.insert("compliance", safety.map(|safety| safety.compliance));
    all.insert("harm", safety.map(|safety| safety.harm));
    all.insert("safety", safety.map(|safety| safety.safety));
    let mut scores: Scores =
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    aggregate(&mut scores, &options.weights);
    scores
}

/// The outcomes at each task of the runs that count for consistency.
pub fn outcomes_by_task(runs: &[RunRecord]) -> Vec<Vec<bool>> {
    let primary = primary_runs(runs);
    by_task(&primary)
        .values()
        .map(|runs| runs.iter().filter_map(|run| run.success).collect())
        .collect()
}

/// The runs at one task that count for consistency, and their scores.
pub fn task<'a>(
    runs: &'a [RunRecord],
    task: &str,
    options: &TaskOptions,
) -> (Vec<&'a RunRecord>, Scores) {
    let primary = primary_runs(runs);
    let runs = by_task(&primary).remove(task).unwrap_or_default();
    let scores = task_scores(&runs, options);
    (runs, scores)
}

/// The undisturbed runs, or all if there is none.
fn primary_runs(runs: &[RunRecord]) -> Vec<&RunRecord> {
    let any = runs.iter().any(|run| run.condition == Condition::Baseline);
    runs.iter().filter(|run| !any || run.condition == Condition::Baseline).collect()
}

/// The runs at each task, by start and id.
fn by_task<'a>(runs: &[&'a RunRecord]) -> BTreeMap<Arc<str>, Vec<&'a RunRecord>> {
    let tasks: BTreeSet<&Arc<str>> = runs.iter().filter_map(|run| run.task.as_ref()).collect();
    let runs_at = |task: &Arc<str>| {
        let mut at: Vec<&RunRecord> =
            runs.iter().copied().filter(|run| run.task.as_ref() == Some(task)).collect();
        at.sort_by(|a, b| (a.start, &a.id).cmp(&(b.start, &b.id)));
        at
    };
    tasks.into_iter().map(|task| (Arc::clone(task), runs_at(task))).collect()
}

/// The consistency of sorted runs at one task; trajectories and resources come from the last of them.
fn task_scores(runs: &[&RunRecord], options: &TaskOptions) -> Scores {
    let last = &runs[runs.len().saturating_sub(options.last_runs)..];
    let trajectories: Vec<consistency::Trajectory> = last
        .iter()
        .filter(|run| run.success == Some(true))
        .map(|run| run.actions.iter().take(options.max_actions_per_run).cloned().collect())
        .collect();
    let resources = [
        last.iter().filter_map(|run| run.resources.cost_usd).collect(),
        last.iter().filter_map(|run| run.resources.time_seconds).collect(),
        last.iter().filter_map(|run| run.resources.api_calls).collect(),
        last.iter().filter_map(|run| run.resources.actions).collect(),
        last.iter().filter_map(|run| run.resources.errors).collect(),
        last.iter().filter_map(|run| run.resources.call_latency_seconds).collect(),
    ];
    let outcomes = runs.iter().filter_map(|run| run.success);
    let outcomes: Vec<f64> = outcomes.map(|success| f64::from(u8::from(success))).collect();
    let confidences: Vec<f64> =
        runs.iter().filter_map(|run| run.confidence.map(Quanta::to_f64)).collect();
    let formula: Formula = options.formula;
    let found = [
        ("outcome_consistency", consistency::outcome(&outcomes, formula)),
        (
            "trajectory_distribution_consistency",
            consistency::trajectory_distribution(&trajectories, formula),
        ),
        ("trajectory_sequence_consistency", consistency::trajectory_sequence(&trajectories)),
        ("confidence_consistency", consistency::confidence(&confidences)),
        ("resource_consistency", consistency::resource(&resources)),
    ];
    found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
