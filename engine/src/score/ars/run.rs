//! The contribution of one run to the components.
//!
//! ```text
//! precision = |cited and retrieved| / |cited|          distinct documents
//! coverage  = |cited and retrieved| / |retrieved|
//! fidelity  = 0.6 precision + 0.4 coverage
//! path      = min(1, optimum / loops)
//! ```
//!
//! Source: Credal, agent reliability score, "Source Fidelity" and "Trajectory Efficiency". A run that cited nothing of
//! what it retrieved has a fidelity of 0: precision has no data, coverage is 0.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::options::ArsOptions;
use crate::math::{Quanta, ratio};

/// One run of an agent, as it was observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArsRun {
    /// The test case that it is a trial of; a run without one does not count for consistency.
    pub case: Option<Arc<str>>,
    /// Its id, unique within its test case.
    pub id: Arc<str>,
    /// Rubric score or outcome, in `[0,1]`; anything else is taken as absent.
    pub accuracy: Option<Quanta>,
    /// Documents that were retrieved.
    pub retrieved: Vec<Arc<str>>,
    /// Documents that the answer cites.
    pub cited: Vec<Arc<str>>,
    /// Number of tool calls.
    pub tool_calls: u64,
    /// Number of tool calls that succeeded; counts up to `tool_calls`.
    pub tool_successes: u64,
    /// Steps of the agent's loop, which are its model calls; 0 if not known.
    pub loops: u64,
    /// Duration from end to end, in seconds; a value that is negative or not finite counts as absent.
    pub latency_seconds: Option<f64>,
    /// Spend, in US dollars; a value that is negative or not finite counts as absent.
    pub cost_usd: Option<f64>,
}

/// The numbers of a run that are added up, quantised once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Contribution {
    /// In `[0,1]`.
    pub(super) accuracy: Option<Quanta>,
    /// In `[0,1]`.
    pub(super) fidelity: Option<Quanta>,
    /// Tool calls made.
    pub(super) tool_calls: u64,
    /// At most `tool_calls`.
    pub(super) tool_successes: u64,
    /// In `[0,1]`.
    pub(super) path: Option<Quanta>,
    /// Seconds.
    pub(super) latency: Option<Quanta>,
    /// US dollars.
    pub(super) cost: Option<Quanta>,
}

impl Contribution {
    pub(super) fn new(run: &ArsRun, options: &ArsOptions) -> Self {
        let optimum = options.optimum_loops_of(run.case.as_deref());
        Self {
            accuracy: run.accuracy.filter(|score| (0..=Quanta::ONE).contains(&score.0)),
            fidelity: fidelity(&run.retrieved, &run.cited, options),
            tool_calls: run.tool_calls,
            tool_successes: run.tool_successes.min(run.tool_calls),
            path: optimum.and_then(|optimum| path(optimum, run.loops)),
            latency: not_negative(run.latency_seconds),
            cost: not_negative(run.cost_usd),
        }
    }
}

fn fidelity(retrieved: &[Arc<str>], cited: &[Arc<str>], options: &ArsOptions) -> Option<Quanta> {
    let retrieved: BTreeSet<&str> = retrieved.iter().map(AsRef::as_ref).collect();
    let cited: BTreeSet<&str> = cited.iter().map(AsRef::as_ref).collect();
    let percent = |score: f64| Quanta::from_f64((score / 100.0).clamp(0.0, 1.0));
    match (retrieved.len(), cited.len()) {
        (0, 0) => options.fidelity_of_nothing.and_then(percent),
        (0, _) => percent(options.fidelity_without_retrieval),
        (_, 0) => Some(Quanta(0)),
        (retrieved_count, cited_count) => {
            let both = i128::try_from(cited.intersection(&retrieved).count()).ok()?;
            let retrieved = i128::try_from(retrieved_count).ok()?;
            let cited = i128::try_from(cited_count).ok()?;
            // 0.6 both / cited + 0.4 both / retrieved over one common denominator.
            Quanta::from_f64(ratio(both * (6 * retrieved + 4 * cited), 10 * retrieved * cited))
        }
    }
}

fn path(optimum: u64, loops: u64) -> Option<Quanta> {
    let needed = i128::from(optimum.min(loops));
    Quanta::from_f64(ratio(needed, i128::from(loops)))
}

fn not_negative(value: Option<f64>) -> Option<Quanta> {
    value.filter(|value| *value >= 0.0).and_then(Quanta::from_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn fidelity_is_precision_and_coverage() {
        let options = ArsOptions::default();
        let of = |retrieved: &[&str], cited: &[&str]| {
            fidelity(&documents(retrieved), &documents(cited), &options)
        };
        assert_eq!(of(&["a", "b"], &["a", "b"]), Some(Quanta(Quanta::ONE)));
        // Half of what is cited was retrieved, a quarter of what was retrieved is cited.
        assert_eq!(of(&["a", "b", "c", "d"], &["a", "x", "a"]), Quanta::from_f64(0.4));
        assert_eq!(of(&["a"], &[]), Some(Quanta(0)));
        assert_eq!(of(&[], &["x"]), Quanta::from_f64(0.25));
        assert_eq!(of(&[], &[]), None);
        let neutral = ArsOptions { fidelity_of_nothing: Some(50.0), ..options };
        assert_eq!(fidelity(&[], &[], &neutral), Quanta::from_f64(0.5));
    }

    #[test]
    fn a_path_is_never_better_than_the_optimum() {
        assert_eq!(path(3, 4), Quanta::from_f64(0.75));
        assert_eq!(path(3, 2), Some(Quanta(Quanta::ONE)));
        assert_eq!(path(3, 0), None);
    }

    #[test]
    fn what_is_no_measurement_is_absent() {
        let run = ArsRun {
            accuracy: Some(Quanta(Quanta::ONE + 1)),
            latency_seconds: Some(-1.0),
            cost_usd: Some(f64::NAN),
            ..ArsRun::default()
        };
        assert_eq!(Contribution::new(&run, &ArsOptions::default()), Contribution::default());
    }
}
