//! PandaProbe: session metrics, trace metrics, the client's trajectory gate.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use agentgauge::engine::math::Quanta;
use agentgauge::engine::math::text::{digest, to_text};
use agentgauge::engine::math::words::Words;
use agentgauge::engine::score::agent_consistency::AgentConsistency;
use agentgauge::engine::score::agent_reliability::AgentReliability;
use agentgauge::engine::score::risk::{TraceRisk, risk};
use agentgauge::engine::score::trajectory_gate::{GateRule, TrajectoryGate};
use agentgauge::engine::signal::{self, confidence, thresholds};
use agentgauge::reference;
use agentgauge::reference::score::round4;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::{Check, same};
use crate::pandaprobe::{self, Report, SIGNALS, Trace};

pub(super) fn check_of(family: &str) -> Option<Check> {
    match family {
        "pp-agent-consistency" => Some(consistency),
        "pp-agent-reliability" => Some(reliability),
        "pp-argument-correctness" => Some(argument_correctness),
        "pp-coherence" => Some(coherence),
        "pp-harness-trajectory-gate" => Some(gate),
        "pp-loop-detection" => Some(loop_detection),
        "pp-session-pipeline" => Some(pipeline),
        "pp-to-text" => Some(text),
        "pp-tokenize-jaccard" => Some(tokenize),
        _ => None,
    }
}

fn reliability(case: &Value, tolerance: f64) -> Result<(), String> {
    let (traces, weights) = session(&case["input"]);
    let report = pandaprobe::agent_reliability(&traces, &weights);
    same_report(&report, &case["expected"], &weights, tolerance)?;
    if let Some(flagged) = case["expected"].get("flagged") {
        same("flagged", flagged, &json!(report.flagged), tolerance)?;
    }
    incremental(&traces, &weights)
}

fn consistency(case: &Value, tolerance: f64) -> Result<(), String> {
    let (traces, weights) = session(&case["input"]);
    let report = pandaprobe::agent_consistency(&traces, &weights);
    // Compensated summation in newer Pythons may move a detail by one unit of the fourth decimal.
    same_report(&report, &case["expected"], &weights, tolerance)?;
    incremental(&traces, &weights)
}

/// The traces of a case and the weights in force.
fn session(input: &Value) -> (Vec<Trace>, BTreeMap<String, f64>) {
    let traces = input["traces"].as_array().unwrap().iter().map(|trace| {
        let signals =
            trace["signals"].as_object().map(|signals| numbers(&Value::Object(signals.clone())));
        (trace["id"].as_str().unwrap().to_owned(), signals)
    });
    (traces.collect(), pandaprobe::weights(&numbers(&input["signal_weights"])))
}

fn numbers(value: &Value) -> BTreeMap<String, f64> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
}

fn same_report(
    report: &Report,
    expected: &Value,
    weights: &BTreeMap<String, f64>,
    tolerance: f64,
) -> Result<(), String> {
    for (name, wanted) in expected.as_object().unwrap() {
        let ours = match name.as_str() {
            "score" => json!(report.score),
            "reason" => json!(report.reason),
            "per_trace" => json!(report.per_trace),
            "signal_weights" => json!(weights),
            "flagged" => json!(report.flagged),
            name => json!(report.numbers.get(name)),
        };
        same(name, wanted, &ours, tolerance)?;
    }
    Ok(())
}

/// The engine's integers against the slow model, unrounded; what is forgotten leaves no trace.
fn incremental(traces: &[Trace], weights: &BTreeMap<String, f64>) -> Result<(), String> {
    let known: BTreeMap<String, f64> = SIGNALS
        .iter()
        .filter_map(|(name, ..)| Some(((*name).to_owned(), *weights.get(*name)?)))
        .collect();
    let mut reliability = AgentReliability::default();
    let mut consistency = AgentConsistency::default();
    let mut exact = Vec::new();
    for (at, (_, signals)) in traces.iter().enumerate() {
        let Some(signals) = signals else { continue };
        let risk = TraceRisk::of(signals.iter().filter_map(|(name, score)| {
            let risk = risk(Quanta::from_f64(*score).unwrap(), *known.get(name)?)?;
            Some((name == confidence::NAME, risk))
        }));
        exact.push(reference::score::trace(signals, &known));
        // Something else comes and goes in between.
        let other = Quanta(Quanta::ONE / 7 * i64::try_from(at % 9).unwrap());
        reliability.observe(other);
        consistency.observe(other);
        risk.risk.into_iter().for_each(|risk| reliability.observe(risk));
        risk.uncertainty.into_iter().for_each(|uncertainty| consistency.observe(uncertainty));
        reliability.forget(other);
        consistency.forget(other);
    }
    let exact = reference::score::scores(&exact);
    let ours = reliability.result();
    let pairs = [
        ("reliability", exact.reliability, ours.map(|found| found.score)),
        ("raw risk", exact.raw_risk, ours.map(|found| found.raw_risk)),
        ("mean of the top", exact.mean_top_k_risk, ours.map(|found| found.mean_top_k_risk)),
        ("greatest risk", exact.max_risk, ours.map(|found| found.max_risk)),
        ("consistency", exact.consistency, consistency.result().map(|found| found.score)),
        ("root mean square", exact.rms, consistency.result().map(|found| found.rms)),
    ];
    for (name, exact, ours) in pairs {
        same(&format!("incremental {name}"), &json!(exact), &json!(ours), 1e-9)?;
    }
    Ok(())
}

fn loop_detection(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let vectors = vectors(&input["embeddings"]);
    let embed = |text: &str| vectors.get(text).cloned();
    let earlier: Vec<String> =
        input["history_outputs"].as_array().unwrap().iter().map(to_text).collect();
    let found =
        pandaprobe::loop_detection(&earlier, &to_text(&input["current_output"]), &embed).unwrap();
    let expected = &case["expected"];
    same("score", &expected["score"], &json!(found.score), tolerance)?;
    same("note", expected.get("note").unwrap_or(&Value::Null), &json!(found.note), tolerance)?;
    if found.note.is_some() {
        return Ok(());
    }
    // A threshold of 0 falls back to the default, and the rounded score is compared.
    let threshold = input["threshold"].as_f64().filter(|threshold| *threshold > 0.0).unwrap_or(0.5);
    let worst = found.comparisons.iter().map(|(_, values)| values[2]).fold(0.0, f64::max);
    let comparisons: Vec<Value> = found.comparisons.iter().map(|(index, [cosine, jaccard, hybrid])| {
        json!({"trace_index": index, "cosine_similarity": cosine, "jaccard_similarity": jaccard, "hybrid_score": hybrid})
    }).collect();
    same("threshold", &expected["threshold"], &json!(threshold), tolerance)?;
    same("success", &expected["success"], &json!(found.score >= threshold), tolerance)?;
    same("window_size", &expected["window_size"], &json!(comparisons.len()), tolerance)?;
    same("max_hybrid", &expected["max_hybrid"], &json!(round4(worst)), tolerance)?;
    same("comparisons", &expected["comparisons"], &json!(comparisons), tolerance)
}

fn vectors(value: &Value) -> BTreeMap<String, Vec<f64>> {
    let vector =
        |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    value.as_object().unwrap().iter().map(|(text, value)| (text.clone(), vector(value))).collect()
}

fn coherence(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let vectors = vectors(&input["embeddings"]);
    let (question, answer) = (to_text(&input["input"]), to_text(&input["output"]));
    let requests = Cell::new(0);
    let embed = |text: &str| {
        // Both texts go out in one request.
        requests.set(1);
        vectors.get(text).cloned()
    };
    let found = pandaprobe::coherence(&question, &answer, &embed).unwrap();
    let threshold = threshold("coherence", input);
    let compared = found.note.is_none();
    let ours = json!({
        "score": round4(found.score),
        "coherence_gap": round4(found.gap),
        "embed_calls": requests.get(),
        "note": found.note,
        "threshold": compared.then_some(threshold),
        "success": compared.then_some(found.score >= threshold),
    });
    same("coherence", &case["expected"], &ours, tolerance)?;
    // The engine has no score where the source has a perfect one for nothing.
    let engine = vectors
        .get(&question)
        .zip(vectors.get(&answer))
        .filter(|_| compared)
        .and_then(|(input, output)| signal::coherence::score(input, output));
    let exact = compared.then_some(found.score);
    same("engine", &json!(exact), &json!(engine.map(Quanta::to_f64)), 1e-9)
}

fn argument_correctness(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let calls = input["tool_calls"].as_u64().unwrap();
    let verdicts: Vec<&str> =
        input["verdicts"].as_array().unwrap().iter().map(|said| said.as_str().unwrap()).collect();
    let score = pandaprobe::argument_correctness(calls, &verdicts);
    // Verdicts and the reason are asked for only if the first answer names a call.
    let stages = ["ToolCallContext", "ArgumentVerdicts", "ArgumentCorrectnessReason"];
    let asked = if calls == 0 { &stages[..1] } else { &stages[..] };
    let success = score >= threshold("argument_correctness", input);
    let ours = json!({ "score": score, "success": success, "judge_calls": asked });
    same("argument_correctness", &case["expected"], &ours, tolerance)?;
    let correct: Vec<bool> = verdicts.iter().map(|verdict| *verdict == "yes").collect();
    let engine = signal::argument_correctness::score(calls, &correct);
    let exact = (calls > 0 && !verdicts.is_empty()).then_some(score);
    same("engine", &json!(exact), &json!(engine.map(Quanta::to_f64)), 1e-9)
}

/// The threshold of a case, else the metric's own.
fn threshold(metric: &str, input: &Value) -> f64 {
    let own = thresholds::of(metric).unwrap().threshold.to_f64();
    input["threshold"].as_f64().unwrap_or(own)
}

/// A session run: traces sorted by start, the four signals in order, then both scores.
fn pipeline(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let vectors = vectors(&input["embeddings"]);
    let embed = |text: &str| vectors.get(text).cloned();
    let weights = pandaprobe::weights(&numbers(&input["signal_weights"]));
    let mut traces = input["traces"].as_array().unwrap().clone();
    traces.sort_by(|a, b| {
        a["started_at"].as_f64().unwrap().total_cmp(&b["started_at"].as_f64().unwrap())
    });
    let mut earlier: Vec<String> = Vec::new();
    let mut signals: Vec<Trace> = Vec::new();
    for trace in &traces {
        let (question, answer) = (to_text(&trace["input"]), to_text(&trace["output"]));
        let found = pandaprobe::loop_detection(&earlier, &answer, &embed).map(|found| found.score);
        let scores = [
            ("confidence", trace["confidence"].as_f64()),
            (
                "coherence",
                pandaprobe::coherence(&question, &answer, &embed).map(|found| round4(found.score)),
            ),
            ("loop_detection", found),
            ("tool_correctness", trace["tool_correctness"].as_f64()),
        ];
        let present =
            scores.into_iter().filter_map(|(name, score)| Some((name.to_owned(), score?)));
        let present: BTreeMap<String, f64> = present.collect();
        let id = trace["id"].as_str().unwrap().to_owned();
        signals.push((id, Some(present).filter(|present| !present.is_empty())));
        earlier.push(answer);
    }
    let reliability = pandaprobe::agent_reliability(&signals, &weights);
    let consistency = pandaprobe::agent_consistency(&signals, &weights);
    let with_signals: BTreeMap<&String, &BTreeMap<String, f64>> =
        signals.iter().filter_map(|(id, signals)| Some((id, signals.as_ref()?))).collect();
    let evaluated =
        |report: &Report| report.numbers.get("traces_evaluated").copied().unwrap_or(0.0);
    for (name, wanted) in case["expected"].as_object().unwrap() {
        let ours = match name.as_str() {
            "signals" => json!(with_signals),
            "agent_reliability" => json!(reliability.score),
            "flagged" => json!(reliability.flagged),
            "agent_reliability_evaluated" => json!(evaluated(&reliability)),
            "agent_consistency" => json!(consistency.score),
            "agent_consistency_evaluated" => json!(evaluated(&consistency)),
            name => panic!("unknown field {name}"),
        };
        // A trace without any signal may have an empty entry.
        let wanted = match wanted.as_object() {
            Some(map) if name == "signals" => Value::Object(
                map.iter()
                    .filter(|(_, value)| **value != json!({}))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
            ),
            _ if wanted.is_null() => json!(0.0),
            _ => wanted.clone(),
        };
        same(name, &wanted, &ours, tolerance)?;
    }
    incremental(&signals, &weights)
}

fn gate(case: &Value, tolerance: f64) -> Result<(), String> {
    let config = &case["input"]["config"];
    let rule = GateRule {
        window: config["gate_window"].as_u64().unwrap(),
        target: config["gate_target"].as_f64().unwrap(),
        gain: config["gate_gain"].as_f64().unwrap(),
        drop: config["gate_drop"].as_f64().unwrap(),
    };
    let mut gate = TrajectoryGate::default();
    let values = case["input"]["values"].as_array().unwrap();
    for (at, (value, wanted)) in values.iter().zip(case["expected"].as_array().unwrap()).enumerate()
    {
        let verdict = gate.observe(value.as_f64().unwrap(), &rule);
        let ours = json!({
            "peak": verdict.peak,
            "turns_since_gain": verdict.turns_since_gain,
            "stalled": verdict.stalled,
            "regressed": verdict.regressed,
        });
        same(&format!("value {at}"), wanted, &ours, tolerance)?;
    }
    Ok(())
}

fn text(case: &Value, tolerance: f64) -> Result<(), String> {
    let text = to_text(&case["input"]["value"]);
    let expected = &case["expected"];
    same("text", &expected["text"], &json!(text), tolerance)?;
    same("is_empty", &expected["is_empty"], &json!(text.is_empty()), tolerance)?;
    same("tokens", &hashes_of(&expected["tokens"]), &json!(token_hashes(&text)), tolerance)?;
    same("slow tokens", &expected["tokens"], &json!(reference::text::tokens(&text)), tolerance)
}

fn tokenize(case: &Value, tolerance: f64) -> Result<(), String> {
    let text = |name: &str| case["input"][name].as_str().unwrap();
    let expected = &case["expected"];
    let (a, b) = (reference::text::tokens(text("a")), reference::text::tokens(text("b")));
    same("tokens_a", &expected["tokens_a"], &json!(a), tolerance)?;
    same("tokens_b", &expected["tokens_b"], &json!(b), tolerance)?;
    same("jaccard", &expected["jaccard"], &json!(reference::text::jaccard(&a, &b)), tolerance)?;
    let (a, b) = (token_hashes(text("a")), token_hashes(text("b")));
    same("hashes of tokens_a", &hashes_of(&expected["tokens_a"]), &json!(a), tolerance)?;
    same("hashes of tokens_b", &hashes_of(&expected["tokens_b"]), &json!(b), tolerance)?;
    same("incremental jaccard", &expected["jaccard"], &json!(a.jaccard(&b)), 1e-9)
}

/// The hashes of a text's tokens, in order.
fn token_hashes(text: &str) -> Words {
    digest(text).map(|digest| digest.tokens).unwrap_or_default()
}

/// The hashes of the tokens in a list, in order.
fn hashes_of(tokens: &Value) -> Value {
    let tokens = tokens.as_array().unwrap().iter().map(|token| token.as_str().unwrap());
    json!(tokens.map(|token| xxh3_64(token.as_bytes())).collect::<BTreeSet<u64>>())
}
