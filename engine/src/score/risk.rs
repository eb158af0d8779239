//! The risk and the weighted uncertainty of one trace.
//!
//! ```text
//! risk_i  = w_i * (1 - s_i)                       for every signal i that is present
//! risk    = max_i risk_i
//! penalty = sum of risk_i over all but confidence
//! wu      = (1 + penalty) * risk_confidence        absent without confidence
//! ```
//!
//! Source: PandaProbe, session metrics, "Agent Reliability" and "Agent Consistency".
//! Not clamped: a weight of 2 gives risks up to 2.

use serde::{Deserialize, Serialize};

use crate::few::Few;
use crate::math::Quanta;

/// The signal that consistency builds on.
pub const CONFIDENCE: &str = "confidence";

/// A trace is flagged when its risk is over this.
pub const FLAG_OVER: Quanta = Quanta(Quanta::ONE / 2);

/// What signals weigh, by name.
pub type Weights = Few<String, f64>;

/// What one trace contributes to the scores.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct TraceRisk {
    /// The greatest of its risks; `None` if no signal with a weight is present.
    pub risk: Option<Quanta>,
    /// Sum of the risks of all but confidence; `None` without confidence.
    pub penalty: Option<Quanta>,
    /// Weighted uncertainty; `None` without confidence.
    pub uncertainty: Option<Quanta>,
}

/// The risk that a signal of this weight makes; one without a weight has no part in scores.
pub fn risk(score: Quanta, weight: f64) -> Option<Quanta> {
    Quanta::from_f64(weight * (1.0 - score.to_f64()))
}

impl TraceRisk {
    /// Computes what these signals, each of another name, contribute.
    pub fn new<'a>(
        signals: impl IntoIterator<Item = (&'a str, Quanta)>,
        weights: &Weights,
    ) -> Self {
        Self::of(signals.into_iter().filter_map(|(name, score)| {
            Some((name == CONFIDENCE, risk(score, *weights.get(name)?)?))
        }))
    }

    /// Likewise, of risks, each with whether it is that of confidence.
    pub fn of(risks: impl IntoIterator<Item = (bool, Quanta)>) -> Self {
        let (mut risk, mut own, mut sum) = (None, None, 0);
        for (is_confidence, one) in risks {
            risk = risk.max(Some(one));
            sum += one.0;
            if is_confidence {
                own = Some(one);
            }
        }
        let penalty = own.map(|own| Quanta(sum - own.0));
        let uncertainty = own
            .zip(penalty)
            .and_then(|(own, penalty)| Quanta::from_f64((1.0 + penalty.to_f64()) * own.to_f64()));
        Self { risk, penalty, uncertainty }
    }

    /// Returns whether the risk is over one half, strictly.
    pub fn is_flagged(&self) -> bool {
        self.risk.is_some_and(|risk| risk > FLAG_OVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quanta(value: f64) -> Quanta {
        Quanta::from_f64(value).unwrap()
    }

    #[test]
    fn the_worst_weighted_risk_is_the_risk() {
        let weights = [("confidence", 1.0), ("tool_correctness", 0.8)];
        let weights = weights.map(|(name, weight)| (name.to_owned(), weight)).into_iter().collect();
        let risk = TraceRisk::new(
            [
                ("confidence", quanta(0.9)),
                ("tool_correctness", quanta(0.5)),
                ("other", quanta(0.0)),
            ],
            &weights,
        );
        assert_eq!(risk.risk, Some(quanta(0.4)));
        assert_eq!(risk.penalty, Some(quanta(0.4)));
        assert_eq!(risk.uncertainty, Some(quanta(0.14)));
        assert!(!risk.is_flagged());
    }

    #[test]
    fn without_confidence_there_is_no_uncertainty() {
        let weights = [("error".to_owned(), 1.0)].into_iter().collect();
        let risk = TraceRisk::new([("error", quanta(0.0))], &weights);
        assert_eq!((risk.risk, risk.uncertainty), (Some(quanta(1.0)), None));
        assert!(risk.is_flagged());
    }
}
