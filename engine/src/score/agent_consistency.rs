//! Agent consistency: how steady an agent is over many traces.
//!
//! ```text
//! score = clamp(1 - sqrt(mean(wu^2)), 0, 1)     over traces that have a confidence
//! ```
//!
//! Source: PandaProbe, session metrics, "Agent Consistency". Exact: the squares are summed as
//! integers of 1e-24.

use serde::{Deserialize, Serialize};

use crate::math::{Quanta, ratio};

/// Sum of squared weighted uncertainties.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct AgentConsistency {
    /// Traces observed.
    pub count: u64,
    /// Sum of squares, in quanta squared.
    pub squares: i128,
}

/// The score and its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Consistency {
    /// In `[0,1]`.
    pub score: f64,
    /// Root mean square of the weighted uncertainties.
    pub rms: f64,
    /// Number of traces that were evaluated.
    pub evaluated: u64,
}

impl AgentConsistency {
    /// Adds a trace's weighted uncertainty.
    pub fn observe(&mut self, uncertainty: Quanta) {
        self.count += 1;
        self.squares += square(uncertainty);
    }

    /// Subtracts a weighted uncertainty that was observed.
    pub fn forget(&mut self, uncertainty: Quanta) {
        self.count -= 1;
        self.squares -= square(uncertainty);
    }

    /// Adds the traces of another accumulator.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.squares += other.squares;
    }

    /// Subtracts the traces of another accumulator.
    pub fn unmerge(&mut self, other: Self) {
        self.count -= other.count;
        self.squares -= other.squares;
    }

    /// The score; `None` before the first trace with a confidence.
    pub fn result(&self) -> Option<Consistency> {
        let n = i128::from(self.count);
        (n > 0).then(|| {
            let rms = ratio(self.squares, n).sqrt() / ratio(i128::from(Quanta::ONE), 1);
            Consistency { score: (1.0 - rms).clamp(0.0, 1.0), rms, evaluated: self.count }
        })
    }
}

fn square(uncertainty: Quanta) -> i128 {
    i128::from(uncertainty.0) * i128::from(uncertainty.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_mean_square_is_taken_from_one() {
        let mut score = AgentConsistency::default();
        assert_eq!(score.result(), None);
        for value in [0.3, 0.4] {
            score.observe(Quanta::from_f64(value).unwrap());
        }
        let result = score.result().unwrap();
        assert!((result.rms - 0.125_f64.sqrt()).abs() < 1e-12);
        score.forget(Quanta::from_f64(0.4).unwrap());
        assert!((score.result().unwrap().score - 0.7).abs() < 1e-12);
    }
}
