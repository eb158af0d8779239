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

use crate::math::Quanta;

/// A trace is flagged if its risk is greater than this.
pub const FLAG_OVER: Quanta = Quanta(Quanta::ONE / 2);

/// The contribution of one trace to the scores.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct TraceRisk {
    /// The greatest risk of its signals; `None` if no signal with a weight is present.
    pub risk: Option<Quanta>,
    /// Sum of the risks of all signals but confidence; `None` without confidence.
    pub penalty: Option<Quanta>,
    /// Weighted uncertainty; `None` without confidence.
    pub uncertainty: Option<Quanta>,
}

/// The risk of a signal with this score and weight.
pub fn risk(score: Quanta, weight: f64) -> Option<Quanta> {
    Quanta::from_f64(weight * (1.0 - score.to_f64()))
}

impl TraceRisk {
    /// The contribution of a trace, given for each of its signals whether it is confidence, which consistency needs, and its risk.
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

    /// Whether the risk is greater than one half.
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
        let confidence = risk(quanta(0.9), 1.0).unwrap();
        let correctness = risk(quanta(0.5), 0.8).unwrap();
        let risk = TraceRisk::of([(true, confidence), (false, correctness)]);
        assert_eq!(risk.risk, Some(quanta(0.4)));
        assert_eq!(risk.penalty, Some(quanta(0.4)));
        assert_eq!(risk.uncertainty, Some(quanta(0.14)));
        assert!(!risk.is_flagged());
    }

    #[test]
    fn without_confidence_there_is_no_uncertainty() {
        let risk = TraceRisk::of([(false, risk(quanta(0.0), 1.0).unwrap())]);
        assert_eq!((risk.risk, risk.uncertainty), (Some(quanta(1.0)), None));
        assert!(risk.is_flagged());
    }
}
