//! How well signals and predictions separate an agent's failed runs from the others, and how accurate the predicted probabilities
//! are.
//!
//! ```text
//! AUROC = P(x of a failed run > x of another) + P(equal) / 2
//! Brier = mean((chance - failed)^2)
//! ECE   = sum over ten bins of chances of (share of runs in it) |mean chance - share that failed|
//! ```
//!
//! A run's outcome is compared with the probability from the model without this run, to first order (one step of Newton's method
//! from the fitted coefficients; Rahnama Rad and Maleki, "A scalable estimate of the out-of-sample prediction error via approximate
//! leave-one-out cross-validation", arXiv 1801.10243).

use std::collections::BTreeMap;

use super::model::{KnownRun, Model};
use crate::score::agent_reliability::AgentReliability;
use crate::signal::outcome;
use crate::view::{AurocView, CalibrationView};

/// Least number of runs of each kind, failed and not, for a result.
const LEAST: usize = 5;

/// Bins of probabilities.
const BINS: usize = 10;

/// How good signals and predictions have been for an agent's runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// The AUROC of each signal, of `reliability` (over the session's traces, by all signals except the outcome), `effort` and
    /// `predicted_failure`; for signals and `reliability`, where higher is better, 1 minus the score is used.
    pub auroc: BTreeMap<String, AurocView>,
    /// The calibration of the predictions; `None` before there are enough outcomes.
    pub calibration: Option<CalibrationView>,
}

/// Compares signals and predictions of these runs with their outcomes.
pub(super) fn quality(model: &Model, known: &[KnownRun]) -> Quality {
    let mut told: BTreeMap<&str, Vec<(f64, bool)>> = BTreeMap::new();
    for run in known {
        // The outcome as a signal is left out, as the others are compared with it.
        let signals = run.signals.iter().filter(|(name, _)| name.as_ref() != outcome::NAME);
        let signals = signals.map(|(name, score)| (&**name, 1.0 - score.to_f64()));
        let mut reliability = AgentReliability::default();
        run.risks.iter().for_each(|risk| reliability.observe(*risk));
        let reliability = reliability.result().map(|result| ("reliability", 1.0 - result.score));
        for (name, value) in signals.chain(reliability) {
            told.entry(name).or_default().push((value, run.failed));
        }
    }
    let left_out = model.left_out(known);
    let efforts = left_out.iter().map(|(effort, _, failed)| (*effort, *failed));
    told.insert("effort", efforts.collect());
    let chances = left_out.iter().map(|(_, chance, failed)| (*chance, *failed));
    let chances: Vec<(f64, bool)> = chances.collect();
    let calibration = calibration(&chances);
    told.insert("predicted_failure", chances);
    let auroc = told.into_iter();
    Quality {
        auroc: auroc.filter_map(|(name, runs)| Some((name.to_owned(), auroc_of(runs)?))).collect(),
        calibration,
    }
}

fn enough(runs: &[(f64, bool)]) -> bool {
    let failed = runs.iter().filter(|(_, failed)| *failed).count();
    failed >= LEAST && runs.len() - failed >= LEAST
}

/// The AUROC, by ranks; equal values share their mean rank. `None` without enough runs.
fn auroc_of(mut runs: Vec<(f64, bool)>) -> Option<AurocView> {
    if !enough(&runs) {
        return None;
    }
    runs.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut pairs, mut below) = (0.0, 0.0);
    for alike in runs.chunk_by(|one, other| one.0.total_cmp(&other.0).is_eq()) {
        let failed = alike.iter().filter(|(_, failed)| *failed).count() as f64;
        let others = alike.len() as f64 - failed;
        pairs += failed * (below + others / 2.0);
        below += others;
    }
    let failed = runs.len() as f64 - below;
    Some(AurocView { auroc: pairs / (failed * below), sessions: runs.len() as u64 })
}

fn calibration(chances: &[(f64, bool)]) -> Option<CalibrationView> {
    if !enough(chances) {
        return None;
    }
    let runs = chances.len() as f64;
    let number = |failed: bool| if failed { 1.0 } else { 0.0 };
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / runs;
    let base = mean(&mut chances.iter().map(|(_, failed)| number(*failed)));
    let mut bins = [(0.0, 0.0); BINS];
    for (chance, failed) in chances {
        let bin = (1..BINS).filter(|edge| *chance >= *edge as f64 / BINS as f64).count();
        bins[bin].0 += chance;
        bins[bin].1 += number(*failed);
    }
    Some(CalibrationView {
        brier: mean(&mut chances.iter().map(|(chance, failed)| (chance - number(*failed)).powi(2))),
        brier_of_base: base * (1.0 - base),
        expected_error: mean(&mut bins.iter().map(|(chances, failed)| (chances - failed).abs())),
        sessions: chances.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_auroc_counts_the_pairs_that_are_in_order() {
        let runs: Vec<(f64, bool)> =
            (0..10).map(|i| (f64::from(i / 2), i % 2 == 1)).chain([(9.0, true)]).collect();
        let pairs = runs.iter().filter(|(_, failed)| *failed).flat_map(|failed| {
            let others = runs.iter().filter(|(_, failed)| !*failed);
            others.map(move |other| match failed.0.total_cmp(&other.0) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            })
        });
        let expected = pairs.sum::<f64>() / 30.0;
        let found = auroc_of(runs.clone()).unwrap();
        assert!((found.auroc - expected).abs() < 1e-12 && found.sessions == 11, "{found:?}");
        assert_eq!(auroc_of(runs[..9].to_vec()), None);
    }

    #[test]
    fn chances_that_are_right_have_no_calibration_error() {
        let runs: Vec<(f64, bool)> = (0..20).map(|i| (0.25, i % 4 == 0)).collect();
        let found = calibration(&runs).unwrap();
        assert!(found.expected_error < 1e-12, "{found:?}");
        assert_eq!((found.brier, found.brier_of_base), (0.1875, 0.1875));
    }
}
