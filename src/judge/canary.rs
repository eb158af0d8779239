//! Canaries: traces with known answers, which show whether the judge has changed.
//!
//! ```text
//! drift = mean( judged - known )        over the canaries of one round, by metric
//! ```
//!
//! If a provider changes the model under its name, or a prompt does not suit the model, that shows here before it shows in the
//! scores. Rounds are paid from the same budget as all other calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::metric::Metric;
use crate::engine::math::Quanta;
use crate::files;

/// A trace with known answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canary {
    /// Its name, for messages.
    pub name: String,
    /// The trace that is shown to the judge, in the form of a transcript.
    pub trace: Value,
    /// The known scores, in `[0,1]`, by metric.
    pub known: BTreeMap<Metric, f64>,
}

/// Why the canaries cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// The file cannot be read.
    #[error("failed to read {}, which `judge.canaries_file` names: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is not a list of canaries.
    #[error("{}, which `judge.canaries_file` names, is not a list of traces with known answers: {why}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// The canaries in a file; the built-in ones if no file is named.
///
/// # Errors
///
/// Fails if the file cannot be read, does not have the right form, or has a known score outside `[0,1]`.
pub fn canaries(file: &Path) -> Result<Vec<Canary>, CanaryError> {
    let path = || file.to_owned();
    let text = if file.as_os_str().is_empty() {
        include_str!("canaries.json").to_owned()
    } else {
        files::read_text(file).map_err(|source| CanaryError::Read { path: path(), source })?
    };
    let form = |why: String| CanaryError::Form { path: path(), why };
    let canaries: Vec<Canary> =
        serde_json::from_str(&text).map_err(|error| form(error.to_string()))?;
    for canary in &canaries {
        if let Some((metric, score)) =
            canary.known.iter().find(|(_, score)| !(0.0..=1.0).contains(*score))
        {
            let (name, metric) = (&canary.name, metric.name());
            return Err(form(format!("{metric} of `{name}` is {score}, not between 0 and 1")));
        }
    }
    Ok(canaries)
}

/// The differences between judged and known scores in one round, by metric.
#[derive(Clone, Debug, Default)]
pub struct Round {
    // The sum of the differences, and their number.
    off: BTreeMap<Metric, (i64, i64)>,
}

impl Round {
    /// Adds a judged score and the known one.
    pub fn observe(&mut self, metric: Metric, judged: Quanta, known: f64) {
        let known = Quanta::from_f64(known).unwrap_or_default();
        let (sum, count) = self.off.entry(metric).or_default();
        *sum = sum.saturating_add(judged.0.saturating_sub(known.0));
        *count += 1;
    }

    /// The drift of a metric, in `[-1,1]`; `None` if nothing was judged by it.
    pub fn drift(&self, metric: Metric) -> Option<f64> {
        self.off.get(&metric).map(|(sum, count)| Quanta(sum / count).to_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_know_every_metric_at_both_ends() {
        let canaries = canaries(Path::new("")).unwrap();
        for metric in
            Metric::ALL.into_iter().filter(|metric| *metric != Metric::ConstraintViolation)
        {
            let known = || canaries.iter().filter_map(|canary| canary.known.get(&metric));
            assert!(known().any(|score| *score > 0.7), "{}", metric.name());
            assert!(known().any(|score| *score < 0.4), "{}", metric.name());
        }
    }

    #[test]
    fn drift_is_the_mean_of_what_a_round_is_off() {
        let mut round = Round::default();
        round.observe(Metric::Confidence, Quanta::from_f64(0.9).unwrap(), 1.0);
        round.observe(Metric::Confidence, Quanta::from_f64(0.3).unwrap(), 0.0);
        assert_eq!(round.drift(Metric::Confidence), Some(0.1));
        assert_eq!(round.drift(Metric::PlanQuality), None);
    }

    #[test]
    fn a_file_that_is_none_says_why() {
        let path = std::env::temp_dir().join(format!("canaries-{}.json", std::process::id()));
        for (text, part) in [
            ("{", "not a list of traces"),
            (r#"[{"name": "n", "trace": {}, "known": {"confidence": 2}}]"#, "not between 0 and 1"),
            (r#"[{"name": "n", "trace": {}, "known": {"mood": 1}}]"#, "mood"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = canaries(&path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("judge.canaries_file"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(canaries(&path).unwrap_err().to_string().contains("failed to read"));
    }
}
