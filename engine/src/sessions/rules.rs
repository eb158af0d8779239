//! The options of the stage in the form that scoring uses.

use std::collections::BTreeMap;
use std::time::Duration;

use super::verdict::PASS;
use crate::limits::Limits;
use crate::math::Quanta;
use crate::options::{EmptyScore, LoopOptions, Profile, SessionOptions};
use crate::score::agent_reliability::AgentReliability;
use crate::score::risk::{TraceRisk, risk};
use crate::score::trajectory_gate::GateRule;
use crate::signal::name::CONFIDENCE;
use crate::signal::{self, SIGNALS, SignalName, loop_detection, thresholds};
use crate::small_map::SmallMap;

/// The rules for signals and scores.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Weights in force.
    pub(super) weights: SmallMap<SignalName, f64>,
    /// Whether only the documents' signals are used, rounded as they do.
    pub(super) pandaprobe: bool,
    /// Whether a score over nothing is 1.
    pub(super) empty_is_one: bool,
    /// A `loop_detection` below this is a loop.
    pub(super) loop_threshold: f64,
    /// The trajectory gate's numbers.
    pub(super) gate: GateRule,
    /// Quiet time after which a session closes.
    pub(super) session_idle: Duration,
    /// How long a loop counts as running after it last grew.
    pub(super) loop_hold: Duration,
    /// Quiet time after which an open trace stalls.
    pub(super) stall_after: Duration,
    /// Most traces of one session.
    pub(super) max_traces: usize,
    /// Most bytes of memory that the traces of one session take.
    pub(super) max_session_bytes: usize,
    /// Most names of scores reported for one session.
    pub(super) max_reports: usize,
    /// What a loop is.
    pub(super) loops: LoopOptions,
    /// The limits of runs.
    pub(super) limits: Limits,
    /// Scores from which signals pass, as configured.
    thresholds: BTreeMap<String, f64>,
    // For each built-in signal its weight, if it has one, and the score from which it passes.
    ours: [(Option<f64>, f64); SIGNALS.len()],
}

impl Rules {
    /// Reads the options; the profile `pandaprobe` knows the documents' four signals only.
    pub(super) fn new(options: SessionOptions, loops: LoopOptions) -> Self {
        let pandaprobe = options.profile == Profile::Pandaprobe;
        // Configured weights override the defaults one by one, as in the documents.
        let mut weights = SessionOptions::default().signal_weights;
        weights.extend(options.signal_weights);
        let weights = weights
            .into_iter()
            .filter(|(name, _)| !pandaprobe || signal::of(name).is_some_and(|of| of.in_documents));
        let mut rules = Self {
            weights: weights.map(|(name, weight)| (SignalName::from(name), weight)).collect(),
            pandaprobe,
            empty_is_one: options.empty_score == EmptyScore::One,
            loop_threshold: options.loop_detection_threshold,
            gate: GateRule {
                window: options.gate_window,
                target: options.gate_target,
                gain: options.gate_gain,
                drop: options.gate_drop,
            },
            session_idle: options.session_idle,
            loop_hold: options.loop_hold,
            stall_after: options.stall_after,
            max_traces: options.max_traces_per_session,
            max_session_bytes: options.max_session_bytes,
            max_reports: options.max_reports_per_session,
            loops,
            limits: options.limits.limits(),
            thresholds: options.signal_thresholds,
            ours: [(None, PASS); SIGNALS.len()],
        };
        rules.ours = std::array::from_fn(|at| {
            let signal = SIGNALS[at].name;
            (rules.weights.get(&SignalName::from(signal)).copied(), rules.threshold_of(signal))
        });
        rules
    }

    /// The weight of a signal, if it has one.
    pub(super) fn weight(&self, signal: &SignalName) -> Option<f64> {
        match signal {
            SignalName::Ours(at) => self.ours.get(usize::from(*at))?.0,
            SignalName::Other(_) => self.weights.get(signal).copied(),
        }
    }

    /// The weighted risk of each signal that has a weight.
    pub(super) fn risks<'a>(
        &self,
        signals: impl IntoIterator<Item = (&'a SignalName, Quanta)>,
    ) -> impl Iterator<Item = (&'a SignalName, Quanta)> {
        let risk = |(name, score)| Some((name, risk(score, self.weight(name)?)?));
        signals.into_iter().filter_map(risk)
    }

    /// The combined risk of signals with different names.
    pub(super) fn risk<'a>(
        &self,
        signals: impl IntoIterator<Item = (&'a SignalName, Quanta)>,
    ) -> TraceRisk {
        TraceRisk::of(self.risks(signals).map(|(name, risk)| (*name == CONFIDENCE, risk)))
    }

    /// The score from which a signal passes.
    pub(super) fn threshold(&self, signal: &SignalName) -> f64 {
        match signal {
            SignalName::Ours(at) => {
                self.ours.get(usize::from(*at)).map_or(PASS, |(_, threshold)| *threshold)
            }
            SignalName::Other(name) => self.threshold_of(name),
        }
    }

    /// As configured, else as its source says, else one half.
    fn threshold_of(&self, signal: &str) -> f64 {
        if signal == loop_detection::NAME {
            return self.loop_threshold;
        }
        let own = || thresholds::of(signal).map(|metric| metric.threshold.to_f64());
        self.thresholds.get(signal).copied().or_else(own).unwrap_or(PASS)
    }

    /// The reliability of a session with these risks, if it has any.
    pub(super) fn reliability(&self, risks: &AgentReliability) -> Option<Quanta> {
        self.quanta(risks.result().map(|result| result.score))
    }

    /// A score of a session that has traces, as the profile shows it.
    pub(super) fn quanta(&self, score: Option<f64>) -> Option<Quanta> {
        let empty = self.empty_is_one.then_some(1.0);
        score.or(empty).and_then(|score| Quanta::from_f64(self.shown(score)))
    }

    /// The score as the profile shows it: rounded to four decimals, or unrounded.
    pub(super) fn shown(&self, score: f64) -> f64 {
        if self.pandaprobe { four_decimals(score) } else { score }
    }
}

/// The float nearest to the correctly rounded decimal.
///
/// Formatting rounds the exact value of the float, as the documents' language does;
/// multiplying, rounding and dividing would not.
pub(super) fn four_decimals(value: f64) -> f64 {
    format!("{value:.4}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_that_is_set_leaves_the_others_as_they_are() {
        let signal_weights = [("tool_correctness".to_owned(), 1.0)].into();
        let rules = Rules::new(
            SessionOptions { signal_weights, ..SessionOptions::default() },
            LoopOptions::default(),
        );
        assert_eq!(rules.weights.len(), SessionOptions::default().signal_weights.len());
        assert_eq!(
            rules.weights[&SignalName::from("tool_correctness")].to_bits(),
            1.0_f64.to_bits()
        );
    }

    #[test]
    fn the_documents_profile_weighs_only_their_signals() {
        let options = SessionOptions { profile: Profile::Pandaprobe, ..SessionOptions::default() };
        let rules = Rules::new(options, LoopOptions::default());
        let documents = ["coherence", "confidence", "loop_detection", "tool_correctness"];
        assert!(rules.weights.iter().map(|(name, _)| name.as_str()).eq(documents));
        assert_eq!(rules.shown(0.123_45).to_bits(), 0.1235_f64.to_bits());
        assert_eq!(four_decimals(0.000_25).to_bits(), 0.0003_f64.to_bits());
    }
}
