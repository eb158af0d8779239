//! Credal's agent reliability score over a list of runs, in floats, component by component.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::score::ars::{ArsOptions, ArsRun};

/// The score and its components, each 0 to 100.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ars {
    /// `None` without any component.
    pub score: Option<f64>,
    /// Score and share of each component that has data.
    pub components: BTreeMap<&'static str, (f64, f64)>,
    /// Accuracy, cost, latency and source fidelity of each test case, where they have data.
    pub cases: BTreeMap<String, BTreeMap<&'static str, f64>>,
}

/// The score of these runs, each of which must occur once.
pub fn ars(runs: &[ArsRun], options: &ArsOptions) -> Ars {
    let all: Vec<&ArsRun> = runs.iter().collect();
    let mut by_case: BTreeMap<String, Vec<&ArsRun>> = BTreeMap::new();
    for run in runs {
        if let Some(case) = &run.case {
            by_case.entry(case.to_string()).or_default().push(run);
        }
    }
    let mut scores = of_case(&all, options);
    let cases = by_case.iter().map(|(case, runs)| (case.clone(), of_case(runs, options))).collect();
    let steadiness: Vec<f64> = by_case.values().filter_map(|runs| steadiness(runs)).collect();
    scores.extend(mean(&steadiness).map(|mean| ("consistency", 100.0 * mean)));
    scores.extend(trajectory(&all, options).map(|score| ("trajectory", 100.0 * score)));
    let weights = &options.weights;
    let weights: BTreeMap<&str, f64> = [
        ("accuracy", weights.accuracy),
        ("source_fidelity", weights.source_fidelity),
        ("consistency", weights.consistency),
        ("trajectory", weights.trajectory),
        ("latency", weights.latency),
        ("cost", weights.cost),
    ]
    .into();
    let whole: f64 = scores.keys().filter_map(|name| weights.get(name)).sum();
    if whole <= 0.0 {
        return Ars { cases, ..Ars::default() };
    }
    let components: BTreeMap<&'static str, (f64, f64)> = scores
        .into_iter()
        .filter_map(|(name, score)| Some((name, (score, weights.get(name)? / whole))))
        .collect();
    Ars {
        score: Some(components.values().map(|(score, share)| score * share).sum()),
        components,
        cases,
    }
}

/// The components that are also shown for single test cases.
fn of_case(runs: &[&ArsRun], options: &ArsOptions) -> BTreeMap<&'static str, f64> {
    let latencies: Vec<f64> = runs.iter().filter_map(|run| run.latency_seconds).collect();
    let costs: Vec<f64> = runs.iter().filter_map(|run| run.cost_usd).collect();
    let fidelities: Vec<f64> = runs.iter().filter_map(|run| fidelity(run, options)).collect();
    let scores = [
        ("accuracy", mean(&accuracies(runs)).map(|mean| 100.0 * mean)),
        ("source_fidelity", mean(&fidelities)),
        ("latency", under(&latencies, options.latency_ceiling_seconds)),
        ("cost", under(&costs, options.cost_ceiling_usd)),
    ];
    scores.into_iter().filter_map(|(name, score)| Some((name, score?))).collect()
}

fn accuracies(runs: &[&ArsRun]) -> Vec<f64> {
    runs.iter().filter_map(|run| Some(run.accuracy?.to_f64())).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn under(values: &[f64], ceiling: Option<f64>) -> Option<f64> {
    Some(100.0 * (1.0 - mean(values)? / ceiling?).clamp(0.0, 1.0))
}

/// One minus the coefficient of variation of the accuracies.
fn steadiness(runs: &[&ArsRun]) -> Option<f64> {
    let scores = accuracies(runs);
    let mean = mean(&scores).filter(|mean| *mean > 0.0 && scores.len() >= 2)?;
    let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
    let deviation = (squares / (scores.len() - 1) as f64).sqrt();
    Some((1.0 - deviation / mean).clamp(0.0, 1.0))
}

/// The source fidelity of one run, 0 to 100.
fn fidelity(run: &ArsRun, options: &ArsOptions) -> Option<f64> {
    let retrieved: BTreeSet<&str> = run.retrieved.iter().map(AsRef::as_ref).collect();
    let cited: BTreeSet<&str> = run.cited.iter().map(AsRef::as_ref).collect();
    if retrieved.is_empty() && cited.is_empty() {
        return options.fidelity_of_nothing;
    }
    if retrieved.is_empty() {
        return Some(options.fidelity_without_retrieval);
    }
    if cited.is_empty() {
        return Some(0.0);
    }
    let both = cited.iter().filter(|document| retrieved.contains(**document)).count() as f64;
    let (precision, coverage) = (both / cited.len() as f64, both / retrieved.len() as f64);
    Some(100.0 * (0.6 * precision + 0.4 * coverage))
}

/// The trajectory component: half the share of tool calls that succeeded, half the mean of optimum over loops.
fn trajectory(runs: &[&ArsRun], options: &ArsOptions) -> Option<f64> {
    let calls: u64 = runs.iter().map(|run| run.tool_calls).sum();
    if calls == 0 {
        return None;
    }
    let successes: u64 = runs.iter().map(|run| run.tool_successes).sum();
    let success = successes as f64 / calls as f64;
    let paths: Vec<f64> = runs
        .iter()
        .filter(|run| run.loops > 0)
        .filter_map(|run| {
            let own = run.case.as_deref().and_then(|case| options.optimum_loops_by_case.get(case));
            let optimum = own.copied().or(options.optimum_loops)?;
            Some((optimum as f64 / run.loops as f64).min(1.0))
        })
        .collect();
    Some(mean(&paths).map_or(success, |path| 0.5 * success + 0.5 * path))
}
