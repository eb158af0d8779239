//! Trajectory consistency: does an agent take the same path to success each time?
//!
//! ```text
//! C_traj_d = 1 - mean over pairs of JS(P, Q)                        corrected: divergence, in bits
//!          = 1 - mean over pairs of sqrt(JS(P, Q))                  methodology: distance, in nats
//! JS(P, Q) = 1/2 sum_a P_a log(P_a / M_a) + Q_a log(Q_a / M_a)      M = (P + Q) / 2
//! C_traj_s = 1 - mean over pairs of edit distance / longer length
//! ```
//!
//! P is the share of each tool in all calls of a run; the means are over pairs of successful runs that called any tool.
//!
//! Source: Princeton, agent reliability, "Trajectory Distribution Consistency" and "Trajectory Sequence Consistency". Tools are
//! known by the hash of their name, so that nothing depends on the order of arrival of names; each addend is rounded to 2^-60 and
//! summed as an integer, so that nothing depends on the order of tools.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Formula;
use super::score::Mean;
use crate::math::Quanta;
use crate::math::myers::{Pattern, Sequence};

/// The tool calls of a successful run; never empty.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trajectory {
    actions: Sequence,
    /// The number of calls of each tool, by ascending hash.
    counts: Box<[(u64, u64)]>,
}

/// The similarity of two trajectories.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Likeness {
    distribution: Quanta,
    sequence: Quanta,
}

/// Sums over all pairs of trajectories.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Pairs {
    distribution: Mean,
    sequence: Mean,
}

impl Trajectory {
    /// The trajectory of the first `limit` calls; `None` if there are none.
    pub(super) fn new(names: &[Arc<str>], limit: usize) -> Option<Self> {
        let names = names.iter().take(limit);
        let hashes: Vec<u64> = names.map(|name| xxh3_64(name.as_bytes())).collect();
        let actions = Sequence::new(&hashes);
        let counts = actions.counts();
        (!actions.is_empty()).then_some(Self { actions, counts })
    }

    /// The similarity of this trajectory to each of the others.
    pub(super) fn compared<'a>(
        &self,
        others: impl Iterator<Item = Option<&'a Self>>,
        formula: Formula,
    ) -> Vec<Option<Likeness>> {
        let pattern = Pattern::new(&self.actions);
        let compare = |other: &Self| Likeness {
            distribution: similarity_of_counts(self, other, formula),
            sequence: similarity_of_order(&pattern, self, other),
        };
        others.map(|other| other.map(compare)).collect()
    }
}

impl Pairs {
    /// Adds a pair.
    pub(super) fn observe(&mut self, pair: Likeness) {
        self.distribution.observe(pair.distribution);
        self.sequence.observe(pair.sequence);
    }

    /// Subtracts a pair that was observed.
    pub(super) fn forget(&mut self, pair: Likeness) {
        self.distribution.forget(pair.distribution);
        self.sequence.forget(pair.sequence);
    }

    /// `C_traj_d`; `None` without a pair.
    pub(super) fn distribution(&self) -> Option<f64> {
        self.distribution.result().map(|score| score.value)
    }

    /// `C_traj_s`; `None` without a pair.
    pub(super) fn sequence(&self) -> Option<f64> {
        self.sequence.result().map(|score| score.value)
    }
}

/// The similarity of the shares of tools; the bits do not depend on the order of the two.
fn similarity_of_counts(a: &Trajectory, b: &Trajectory, formula: Formula) -> Quanta {
    let bits = js_divergence(a, b);
    let distance = match formula {
        Formula::Corrected => bits,
        Formula::Methodology => (bits * std::f64::consts::LN_2).sqrt(),
    };
    Quanta::from_f64(1.0 - distance).unwrap_or_default()
}

fn similarity_of_order(pattern: &Pattern<'_>, a: &Trajectory, b: &Trajectory) -> Quanta {
    let longer = a.actions.len().max(b.actions.len());
    let alike = longer - pattern.edit_distance(&b.actions);
    Quanta::from_f64(alike as f64 / longer as f64).unwrap_or_default()
}

/// Jensen-Shannon divergence in bits, in `[0,1]`.
fn js_divergence(a: &Trajectory, b: &Trajectory) -> f64 {
    let (calls_a, calls_b) = (a.actions.len() as f64, b.actions.len() as f64);
    let (mut at_a, mut at_b, mut total) = (0, 0, 0_i128);
    loop {
        let (next_a, next_b) = (a.counts.get(at_a), b.counts.get(at_b));
        let tool = match (next_a, next_b) {
            (Some((tool_a, _)), Some((tool_b, _))) => tool_a.min(tool_b),
            (Some((tool, _)), None) | (None, Some((tool, _))) => tool,
            (None, None) => break,
        };
        let count = |next: Option<&(u64, u64)>| {
            next.filter(|(of, _)| of == tool).map_or(0, |(_, count)| *count)
        };
        let (in_a, in_b) = (count(next_a), count(next_b));
        at_a += usize::from(in_a > 0);
        at_b += usize::from(in_b > 0);
        let (p, q) = (in_a as f64 / calls_a, in_b as f64 / calls_b);
        let middle = (p + q) / 2.0;
        total += addend(p, middle) + addend(q, middle);
    }
    (total as f64 / FINE / 2.0).clamp(0.0, 1.0)
}

/// Number of steps in one, to which the addends of a divergence are rounded.
const FINE: f64 = (1_u64 << 60) as f64;

/// `share * log2(share / middle)` in steps; at most 1 in absolute value.
fn addend(share: f64, middle: f64) -> i128 {
    if share <= 0.0 {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "within 2^60")]
    let steps = (share * (share / middle).log2() * FINE).round() as i128;
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &[&str], b: &[&str], formula: Formula) -> (f64, f64) {
        let trajectory = |names: &[&str]| {
            Trajectory::new(&names.iter().map(|name| Arc::from(*name)).collect::<Vec<_>>(), 100)
        };
        let (a, b) = (trajectory(a).unwrap(), trajectory(b).unwrap());
        let mut pairs = Pairs::default();
        a.compared([Some(&b)].into_iter(), formula)
            .into_iter()
            .flatten()
            .for_each(|pair| pairs.observe(pair));
        (pairs.distribution().unwrap(), pairs.sequence().unwrap())
    }

    #[test]
    fn only_the_share_of_each_tool_counts_for_the_distribution() {
        let (distribution, sequence) = of(&["a", "b"], &["b", "b", "a", "a"], Formula::Methodology);
        assert!((distribution - 1.0).abs() < 1e-12);
        assert!((sequence - 0.25).abs() < 1e-12);
    }

    #[test]
    fn disjoint_runs_are_nothing_alike_but_by_the_page() {
        assert!(of(&["a"], &["b"], Formula::Corrected).0.abs() < 1e-12);
        let (page, _) = of(&["a"], &["b"], Formula::Methodology);
        assert!((page - 0.167_445_388_842_302_3).abs() < 1e-12);
    }

    #[test]
    fn a_run_without_calls_has_no_trajectory() {
        assert_eq!(Trajectory::new(&[], 100), None);
    }
}
