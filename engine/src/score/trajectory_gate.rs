//! The trajectory gate: does a series of scores climb, stall or fall?
//!
//! ```text
//! first value, or value >= peak + gain:  peak = max(peak, value), turns = 0, no breach
//! otherwise turns += 1, and
//!   stalled   if turns >= window and peak < target
//!   regressed if value < peak - drop
//!   on either, turns = 0: it fires once
//! ```
//!
//! Source: PandaProbe's harness, `evaluation/trajectory.py`. The gate consumes each
//! done trace once and is not revised; a missing score is skipped.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// The numbers of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateRule {
    /// Values without gain after which a low peak is a stall.
    pub window: u64,
    /// The peak below which no gain is a stall.
    pub target: f64,
    /// The rise above the peak that counts as a gain.
    pub gain: f64,
    /// The drop below the peak that is a regression.
    pub drop: f64,
}

/// The state of one series.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct TrajectoryGate {
    // Minus infinity before the first value.
    peak: f64,
    turns_since_gain: u32,
}

/// The verdict on one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateStep {
    /// The greatest value so far.
    pub peak: f64,
    /// Values since the last gain, after this one.
    pub turns_since_gain: u32,
    /// Whether there was no gain for too long, with the peak below the target.
    pub stalled: bool,
    /// Whether the value is more than the drop below the peak.
    pub regressed: bool,
}

impl TrajectoryGate {
    /// Folds in the next value of the series.
    pub fn observe(&mut self, value: f64, rule: &GateRule) -> GateStep {
        let (mut stalled, mut regressed) = (false, false);
        if value < self.peak + rule.gain {
            self.turns_since_gain = self.turns_since_gain.saturating_add(1);
            stalled = u64::from(self.turns_since_gain) >= rule.window && self.peak < rule.target;
            regressed = value < self.peak - rule.drop;
        } else {
            self.turns_since_gain = 0;
            self.peak = self.peak.max(value);
        }
        if stalled || regressed {
            self.turns_since_gain = 0;
        }
        let Self { peak, turns_since_gain } = *self;
        GateStep { peak, turns_since_gain, stalled, regressed }
    }
}

/// By the bits of the peak, which is a number.
impl PartialEq for TrajectoryGate {
    fn eq(&self, other: &Self) -> bool {
        let bits = |gate: &Self| (gate.peak.to_bits(), gate.turns_since_gain);
        bits(self) == bits(other)
    }
}

impl Eq for TrajectoryGate {}

impl Hash for TrajectoryGate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.peak.to_bits());
        state.write_u64(self.turns_since_gain.into());
    }
}

/// The state before the first value.
impl Default for TrajectoryGate {
    fn default() -> Self {
        Self { peak: f64::NEG_INFINITY, turns_since_gain: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: GateRule = GateRule { window: 5, target: 0.5, gain: 0.02, drop: 0.15 };

    #[test]
    fn a_low_flat_series_stalls_at_the_sixth_value_and_again_five_later() {
        let mut gate = TrajectoryGate::default();
        let stalls: Vec<usize> = (1..=12).filter(|_| gate.observe(0.3, &RULE).stalled).collect();
        assert_eq!(stalls, [6, 11]);
    }

    #[test]
    fn a_drop_below_the_peak_regresses_once() {
        let mut gate = TrajectoryGate::default();
        assert!(!gate.observe(0.9, &RULE).regressed);
        assert!(!gate.observe(0.75, &RULE).regressed);
        assert!(gate.observe(0.74, &RULE).regressed);
    }
}
