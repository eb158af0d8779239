//! Agent reliability: worst-case risk over many traces.
//!
//! ```text
//! k        = max(1, ceil(0.15 n))
//! raw_risk = 0.9 * mean(k greatest risks) + 0.1 * max risk
//! score    = clamp(1 - raw_risk, 0, 1)
//! ```
//!
//! Source: PandaProbe, session metrics, "Agent Reliability". Exact: the risks are integers,
//! and the result is one division.

use serde::{Deserialize, Serialize};

use crate::math::ordered::Ordered;
use crate::math::{Quanta, ratio};

/// The risks of all traces, in order, so that the greatest 15 % are found quickly.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct AgentReliability {
    risks: Ordered,
}

/// The score and its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reliability {
    /// In `[0,1]`.
    pub score: f64,
    /// The risk before the score is clamped.
    pub raw_risk: f64,
    /// Mean of the `k` greatest risks.
    pub mean_top_k_risk: f64,
    /// The greatest risk.
    pub max_risk: f64,
    /// Number of traces that were evaluated.
    pub evaluated: u64,
}

impl AgentReliability {
    /// An accumulator without traces.
    pub const fn new() -> Self {
        Self { risks: Ordered::SmallMap(Vec::new()) }
    }

    /// Adds a trace's risk.
    pub fn observe(&mut self, risk: Quanta) {
        self.risks.insert(risk.0);
    }

    /// Subtracts a risk that was observed; one that was not is ignored.
    pub fn forget(&mut self, risk: Quanta) {
        self.risks.remove(risk.0);
    }

    /// The score; `None` before the first trace.
    pub fn result(&self) -> Option<Reliability> {
        let n = self.risks.len() as u64;
        let k = top(n);
        let sum = self.risks.sum_of_greatest(usize::try_from(k).unwrap_or(usize::MAX));
        let max = i128::from(self.risks.greatest()?);
        Some(ensemble(n, sum, max, i128::from(Quanta::ONE)))
    }
}

/// The score of `n` risks given as (risk, count), greatest first, in steps of `1/one`.
///
/// Reads only as far as the top 15 %. `None` if `n` is 0.
pub fn reliability(
    n: u64,
    greatest_first: impl IntoIterator<Item = (i128, u64)>,
    one: i128,
) -> Option<Reliability> {
    let mut risks = greatest_first.into_iter().filter(|(_, count)| *count > 0).peekable();
    let (max, _) = *risks.peek()?;
    let mut missing = top(n);
    let mut sum = 0;
    for (risk, count) in risks {
        let taken = count.min(missing);
        sum += risk * i128::from(taken);
        missing -= taken;
        if missing == 0 {
            break;
        }
    }
    Some(ensemble(n, sum, max, one))
}

/// The number of traces in the top 15 % of `n`.
fn top(n: u64) -> u64 {
    (n * 15).div_ceil(100).max(1)
}

/// The score, given the sum of the top risks and the greatest risk.
fn ensemble(n: u64, sum: i128, max: i128, one: i128) -> Reliability {
    let k = i128::from(top(n));
    // 0.9 * sum / k + 0.1 * max over one common denominator.
    let raw_risk = ratio(9 * sum + max * k, 10 * k * one);
    Reliability {
        score: (1.0 - raw_risk).clamp(0.0, 1.0),
        raw_risk,
        mean_top_k_risk: ratio(sum, k * one),
        max_risk: ratio(max, one),
        evaluated: n,
    }
}

/// The band of a score, as the source document names it.
pub fn band(score: f64) -> &'static str {
    match score {
        score if score >= 0.9 => "highly reliable",
        score if score >= 0.7 => "generally reliable",
        score if score >= 0.5 => "moderate risk",
        score if score >= 0.3 => "elevated risk",
        _ => "high risk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(risks: &[f64]) -> Option<Reliability> {
        let mut score = AgentReliability::default();
        risks.iter().for_each(|risk| score.observe(Quanta::from_f64(*risk).unwrap()));
        score.result()
    }

    #[test]
    fn nothing_has_no_score() {
        assert_eq!(scored(&[]), None);
    }

    #[test]
    fn one_catastrophe_in_a_hundred_traces_costs_sixteen_points() {
        let mut risks = vec![0.0; 99];
        risks.push(1.0);
        let result = scored(&risks).unwrap();
        assert!((result.score - 0.84).abs() < 1e-12);
        assert!((result.max_risk - 1.0).abs() < 1e-12);
    }

    #[test]
    fn forgetting_undoes_observing() {
        let mut score = AgentReliability::default();
        score.observe(Quanta(3));
        let before = score.clone();
        score.observe(Quanta(7));
        score.forget(Quanta(7));
        assert_eq!(score, before);
    }
}
