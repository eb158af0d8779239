//! Calibration: does the agent's confidence match the share of runs that succeed?
//!
//! ```text
//! ECE   = sum over bins of n_b / N * |accuracy_b - confidence_b| = sum |successes_b - sum of c_b| / N
//! P_cal = 1 - ECE
//! ```
//!
//! Source: Princeton, agent reliability, "Calibration Score". Ten bins `[i * 0.1, (i + 1) * 0.1)`, the last one closed, with
//! edges computed as floats: 0.3, 0.6 and 0.7 are below theirs. A confidence outside `[0,1]` is in no bin, but counts in N.

use crate::math::{Quanta, ratio};

/// Sums by bin of the difference between confidence and outcome.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Bins([i128; 10]);

impl Bins {
    pub(super) fn observe(&mut self, confidence: Quanta, success: bool) {
        if let Some(bin) = self.bin(confidence) {
            *bin += excess(confidence, success);
        }
    }

    pub(super) fn forget(&mut self, confidence: Quanta, success: bool) {
        if let Some(bin) = self.bin(confidence) {
            *bin -= excess(confidence, success);
        }
    }

    /// `P_cal` over `n` runs, whether in a bin or not; `None` if there are none.
    pub(super) fn calibration(&self, n: u64) -> Option<f64> {
        let off: i128 = self.0.iter().map(|excess| excess.abs()).sum();
        (n > 0).then(|| 1.0 - ratio(off, i128::from(n) * i128::from(Quanta::ONE)))
    }

    fn bin(&mut self, confidence: Quanta) -> Option<&mut i128> {
        if !(0..=Quanta::ONE).contains(&confidence.0) {
            return None;
        }
        let value = confidence.to_f64();
        let edges = (1..10_u8).filter(|edge| f64::from(*edge) * 0.1 <= value);
        self.0.get_mut(edges.count())
    }
}

fn excess(confidence: Quanta, success: bool) -> i128 {
    i128::from(confidence.0) - if success { i128::from(Quanta::ONE) } else { 0 }
}
