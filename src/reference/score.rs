//! Risks and scores of a list of traces, as defined by PandaProbe's session metrics.
//!
//! ```text
//! risk_i      = w_i * (1 - s_i)                  for every signal that is present and weighted
//! risk        = max_i risk_i
//! penalty     = sum of risk_i over all but confidence
//! wu          = (1 + penalty) * risk_confidence
//! k           = max(1, ceil(0.15 n))
//! raw_risk    = 0.9 * mean(k greatest risks) + 0.1 * max risk
//! reliability = clamp(1 - raw_risk, 0, 1)
//! consistency = clamp(1 - sqrt(mean(wu^2)), 0, 1)
//! ```

use std::collections::BTreeMap;

/// The signal that consistency is based on.
const CONFIDENCE: &str = "confidence";

/// The other signals of the documents, in their order.
const ORDER: [&str; 3] = ["loop_detection", "tool_correctness", "coherence"];

/// The risks and scores of one trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceScore {
    /// Weighted risk by signal.
    pub risks: BTreeMap<String, f64>,
    /// The greatest weighted risk; `None` without any signal.
    pub risk: Option<f64>,
    /// The sum of the weighted risks except that of confidence; `None` without a confidence.
    pub penalty: Option<f64>,
    /// The weighted uncertainty; `None` without a confidence.
    pub uncertainty: Option<f64>,
}

/// Scores of many traces.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// The number of traces with a risk.
    pub evaluated: u64,
    /// The reliability, in `[0,1]`; `None` over nothing, as are the next three.
    pub reliability: Option<f64>,
    /// The raw risk; the reliability is one minus it, clamped.
    pub raw_risk: Option<f64>,
    /// The mean of the `k` greatest risks.
    pub mean_top_k_risk: Option<f64>,
    /// The greatest risk.
    pub max_risk: Option<f64>,
    /// The consistency, in `[0,1]`; `None` without any confidence, as is the next.
    pub consistency: Option<f64>,
    /// The root mean square of the weighted uncertainties.
    pub rms: Option<f64>,
}

/// The risks of one trace from its signals, each in `[0,1]`, and their weights.
pub fn trace(signals: &BTreeMap<String, f64>, weights: &BTreeMap<String, f64>) -> TraceScore {
    let risks: BTreeMap<String, f64> = signals
        .iter()
        .filter_map(|(name, score)| Some((name.clone(), weights.get(name)? * (1.0 - score))))
        .collect();
    let risk = risks.values().copied().max_by(f64::total_cmp);
    let confidence = risks.get(CONFIDENCE).copied();
    // Floats: the documents add up in this order.
    let rank = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
    let mut others: Vec<(&String, &f64)> =
        risks.iter().filter(|(name, _)| *name != CONFIDENCE).collect();
    others.sort_by_key(|(name, _)| rank(name));
    let others: f64 = others.into_iter().map(|(_, risk)| risk).sum();
    TraceScore {
        risk,
        penalty: confidence.map(|_| others),
        uncertainty: confidence.map(|confidence| (1.0 + others) * confidence),
        risks,
    }
}

/// The scores over these traces, in any order.
pub fn scores(traces: &[TraceScore]) -> Scores {
    let mut risks: Vec<f64> = traces.iter().filter_map(|trace| trace.risk).collect();
    risks.sort_by(|a, b| b.total_cmp(a));
    let mut scores = Scores { evaluated: risks.len() as u64, ..Scores::default() };
    if let Some(max) = risks.first().copied() {
        let k = (risks.len() * 15).div_ceil(100).max(1);
        let top = risks.iter().take(k).sum::<f64>() / k as f64;
        let raw = 0.9 * top + 0.1 * max;
        scores.reliability = Some((1.0 - raw).clamp(0.0, 1.0));
        scores.raw_risk = Some(raw);
        scores.mean_top_k_risk = Some(top);
        scores.max_risk = Some(max);
    }
    let squares: Vec<f64> =
        traces.iter().filter_map(|trace| trace.uncertainty).map(|wu| wu * wu).collect();
    if !squares.is_empty() {
        let rms = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
        scores.consistency = Some((1.0 - rms).clamp(0.0, 1.0));
        scores.rms = Some(rms);
    }
    scores
}

/// Rounds to four decimals, correctly from the float, ties to even.
pub fn round4(value: f64) -> f64 {
    format!("{value:.4}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
        values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn one_bad_trace_in_a_hundred_shows() {
        let mut traces = vec![TraceScore { risk: Some(0.0), ..TraceScore::default() }; 99];
        traces.push(TraceScore { risk: Some(1.0), ..TraceScore::default() });
        let reliability = scores(&traces).reliability.unwrap();
        assert!((reliability - 0.84).abs() < 1e-12, "{reliability}");
    }

    #[test]
    fn a_signal_without_a_weight_has_no_part() {
        let weights = named(&[("confidence", 1.0), ("tool_correctness", 0.8)]);
        let signals = named(&[("confidence", 0.9), ("tool_correctness", 0.5), ("other", 0.0)]);
        let score = trace(&signals, &weights);
        assert!((score.risk.unwrap() - 0.4).abs() < 1e-12);
        assert!((score.uncertainty.unwrap() - 0.14).abs() < 1e-12);
    }

    #[test]
    fn a_score_over_nothing_is_absent() {
        assert_eq!(scores(&[TraceScore::default()]), Scores::default());
    }
}
