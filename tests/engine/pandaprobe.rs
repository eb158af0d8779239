//! PandaProbe's session metrics and the computed part of its trace metrics, as that product computes them: floats, rounded to four decimals,
//! 1.0 for nothing.

use std::collections::BTreeMap;

use agentgauge::reference::score::{TraceScore, round4, scores, trace};
use agentgauge::reference::text::{jaccard, tokens};

/// The four signals, their weights and the names of their risks, in the order of the source.
pub(crate) const SIGNALS: [(&str, f64, &str); 4] = [
    ("confidence", 1.0, "confidence_risk"),
    ("loop_detection", 1.0, "loop_risk"),
    ("tool_correctness", 0.8, "tool_risk"),
    ("coherence", 1.0, "coherence_risk"),
];

/// One trace: its id, and its signals if it has an entry at all.
pub(crate) type Trace = (String, Option<BTreeMap<String, f64>>);

/// A session score and everything that goes with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Rounded.
    pub(crate) score: f64,
    /// The reason of the score, in words.
    pub(crate) reason: String,
    /// Further numbers, rounded; empty if there was nothing to evaluate.
    pub(crate) numbers: BTreeMap<&'static str, f64>,
    /// Numbers of each evaluated trace, rounded.
    pub(crate) per_trace: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Flagged traces, in order.
    pub(crate) flagged: Vec<String>,
}

/// The result of loop detection for an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Detection {
    /// Rounded.
    pub(crate) score: f64,
    /// Why nothing was compared.
    pub(crate) note: Option<&'static str>,
    /// Cosine, Jaccard and hybrid of each compared output with its index, rounded.
    pub(crate) comparisons: Vec<(usize, [f64; 3])>,
}

/// The result of coherence for an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coherence {
    /// Unrounded: it is compared with the threshold before it is rounded.
    pub(crate) score: f64,
    /// The distance, unrounded.
    pub(crate) gap: f64,
    /// Why nothing was compared.
    pub(crate) note: Option<&'static str>,
}

/// The weights in force: overrides over the defaults; unknown names are kept and have no effect.
pub(crate) fn weights(overrides: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut merged: BTreeMap<String, f64> =
        SIGNALS.iter().map(|(name, weight, _)| ((*name).to_owned(), *weight)).collect();
    merged.extend(overrides.iter().map(|(name, weight)| (name.clone(), *weight)));
    merged
}

/// `agent_reliability` of a session.
pub(crate) fn agent_reliability(traces: &[Trace], weights: &BTreeMap<String, f64>) -> Report {
    if let Some(empty) = nothing(traces) {
        return empty;
    }
    let evaluated = evaluated(traces, weights, |score| score.risk.is_some());
    let risks: Vec<TraceScore> = evaluated.iter().map(|(_, _, score)| score.clone()).collect();
    let total = scores(&risks);
    let (Some(score), Some(raw), Some(top), Some(max)) =
        (total.reliability, total.raw_risk, total.mean_top_k_risk, total.max_risk)
    else {
        return unevaluable();
    };
    let over = |score: &TraceScore| score.risk.is_some_and(|risk| risk > 0.5);
    let flagged: Vec<String> =
        evaluated.iter().filter(|(_, _, score)| over(score)).map(|(id, ..)| id.clone()).collect();
    let n = evaluated.len();
    let reason = match flagged.len() {
        0 => format!("No elevated risk across {n} traces."),
        some => format!("Elevated risk in {some} of {n} traces."),
    };
    Report {
        score: round4(score),
        reason,
        numbers: numbers(
            traces,
            n,
            &[("raw_risk", raw), ("mean_top_k_risk", top), ("max_risk", max)],
        ),
        per_trace: details(&evaluated, |score| vec![("step_risk", score.risk)]),
        flagged,
    }
}

/// `agent_consistency` of a session.
pub(crate) fn agent_consistency(traces: &[Trace], weights: &BTreeMap<String, f64>) -> Report {
    if let Some(empty) = nothing(traces) {
        return empty;
    }
    let evaluated = evaluated(traces, weights, |score| score.uncertainty.is_some());
    let risks: Vec<TraceScore> = evaluated.iter().map(|(_, _, score)| score.clone()).collect();
    let total = scores(&risks);
    let (Some(score), Some(rms)) = (total.consistency, total.rms) else { return unevaluable() };
    let (n, score) = (evaluated.len(), round4(score));
    let reason = match score {
        score if score >= 0.8 => format!("Consistent performance across {n} traces."),
        score if score >= 0.5 => format!("Moderate instability detected across {n} traces."),
        _ => format!("High instability across {n} traces; multiple signals compound."),
    };
    Report {
        score,
        reason,
        numbers: numbers(traces, n, &[("raw_instability", rms)]),
        per_trace: details(&evaluated, |score| {
            vec![
                ("situational_penalty", score.penalty),
                ("weighted_uncertainty", score.uncertainty),
            ]
        }),
        flagged: Vec::new(),
    }
}

/// `loop_detection` of an output after the earlier ones of its session, oldest first; `embed` gives the vector of a
/// text. `None` if a text that is needed has no vector.
pub(crate) fn loop_detection(
    earlier: &[String],
    current: &str,
    embed: &dyn Fn(&str) -> Option<Vec<f64>>,
) -> Option<Detection> {
    let skipped = |note| Some(Detection { score: 1.0, note: Some(note), ..Detection::default() });
    if earlier.is_empty() {
        return skipped("no session context provided");
    }
    if current.is_empty() {
        return skipped("empty_output");
    }
    let window = &earlier[earlier.len().saturating_sub(3)..];
    let compared: Vec<&String> = window.iter().filter(|text| !text.is_empty()).collect();
    if compared.is_empty() {
        return skipped("no_previous_outputs");
    }
    let (own_tokens, own_vector) = (tokens(current), embed(current)?);
    let mut worst: f64 = 0.0;
    let mut comparisons = Vec::new();
    for (at, text) in compared.iter().enumerate() {
        let cosine = similarity(&own_vector, &embed(text)?);
        let jaccard = jaccard(&own_tokens, &tokens(text));
        worst = worst.max(cosine * jaccard);
        // The source numbers the compared outputs as if they were the newest, even if some between them were left out.
        let index = earlier.len() - compared.len() + at;
        comparisons.push((index, [cosine, jaccard, cosine * jaccard].map(round4)));
    }
    Some(Detection { score: round4((1.0 - worst).clamp(0.0, 1.0)), note: None, comparisons })
}

/// `coherence` of an answer; `None` if a text that is needed has no vector.
pub(crate) fn coherence(
    input: &str,
    output: &str,
    embed: &dyn Fn(&str) -> Option<Vec<f64>>,
) -> Option<Coherence> {
    if input.is_empty() || output.is_empty() {
        return Some(Coherence { score: 1.0, gap: 0.0, note: Some("empty_input_or_output") });
    }
    let gap = distance(&embed(input)?, &embed(output)?);
    Some(Coherence { score: (1.0 - gap).clamp(0.0, 1.0), gap, note: None })
}

/// `argument_correctness` of a trace with this many tool calls, by a judge's verdicts, whose number may differ; not rounded.
pub(crate) fn argument_correctness(tool_calls: u64, verdicts: &[&str]) -> f64 {
    if tool_calls == 0 || verdicts.is_empty() {
        return 1.0;
    }
    let correct = verdicts.iter().filter(|verdict| **verdict == "yes").count();
    correct as f64 / verdicts.len() as f64
}

/// One minus the cosine distance.
fn similarity(a: &[f64], b: &[f64]) -> f64 {
    1.0 - distance(a, b)
}

/// The cosine distance clamped to `[0,1]`; 1 where a vector is zero.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(x, y)| x * y).sum();
    let norm = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    let norms = norm(a) * norm(b);
    let cosine = if norms > 0.0 { dot / norms } else { 0.0 };
    (1.0 - cosine).clamp(0.0, 1.0)
}

/// The report of a session without traces, or without any entry of signals; `None` for others.
fn nothing(traces: &[Trace]) -> Option<Report> {
    let none = traces.iter().all(|(_, signals)| signals.is_none());
    none.then(|| Report {
        score: 1.0,
        reason: "No traces or signals to evaluate.".to_owned(),
        ..Report::default()
    })
}

fn unevaluable() -> Report {
    Report { score: 1.0, reason: "No evaluable traces.".to_owned(), ..Report::default() }
}

/// Further numbers of a trace.
type Details = Vec<(&'static str, Option<f64>)>;

/// A trace that counts: its id, its signals, and its score.
type Evaluated<'a> = (String, &'a BTreeMap<String, f64>, TraceScore);

/// The traces that count, with their four signals scored.
fn evaluated<'a>(
    traces: &'a [Trace],
    weights: &BTreeMap<String, f64>,
    counts: fn(&TraceScore) -> bool,
) -> Vec<Evaluated<'a>> {
    let known: BTreeMap<String, f64> = weights
        .iter()
        .filter(|(name, _)| SIGNALS.iter().any(|(known, ..)| known == name))
        .map(|(name, weight)| (name.clone(), *weight))
        .collect();
    let scored = traces.iter().filter_map(|(id, signals)| {
        let signals = signals.as_ref()?;
        Some((id.clone(), signals, trace(signals, &known)))
    });
    scored.filter(|(_, _, score)| counts(score)).collect()
}

fn numbers(
    traces: &[Trace],
    n: usize,
    rounded: &[(&'static str, f64)],
) -> BTreeMap<&'static str, f64> {
    let counts = [("total_traces_in_session", traces.len() as f64), ("traces_evaluated", n as f64)];
    counts.into_iter().chain(rounded.iter().map(|(name, value)| (*name, round4(*value)))).collect()
}

/// The unweighted risks of each trace, with the further numbers of the score.
fn details(
    evaluated: &[Evaluated<'_>],
    more: fn(&TraceScore) -> Details,
) -> BTreeMap<String, BTreeMap<&'static str, f64>> {
    let detail = |(id, signals, score): &Evaluated<'_>| {
        let risks =
            SIGNALS.iter().filter_map(|(name, _, risk)| Some((*risk, 1.0 - signals.get(*name)?)));
        let more = more(score).into_iter().filter_map(|(name, value)| Some((name, value?)));
        (id.clone(), risks.chain(more).map(|(name, value)| (name, round4(value))).collect())
    };
    evaluated.iter().map(detail).collect()
}
