//! AgentCI: sequences, sets, layers, verdicts.

use agentgauge::engine::expect::judge::{self, JudgeVerdict, Judgement, Label};
use agentgauge::engine::expect::observed::ObservedTool;
use agentgauge::engine::expect::result::{Details, LayerResult};
use agentgauge::engine::expect::spec::{CorrectnessSpec, MatchMode};
use agentgauge::engine::expect::{Baseline, Judgements, Observed};
use agentgauge::engine::expect::{correctness, cost, path, sets};
use agentgauge::engine::math::sequence::{adjacent_repeats, edit_similarity, lcs_similarity};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Check, fixtures, same};

pub(super) fn check_of(family: &str) -> Option<Check> {
    match family {
        "aci-correctness" => Some(correctness_layer),
        "aci-cost" => Some(cost_layer),
        "aci-judge-threshold" => Some(judge_threshold),
        "aci-judge-verdict" => Some(judge_verdict),
        "aci-match-modes" => Some(match_modes),
        "aci-otel-fixtures" => Some(fixtures::check),
        "aci-path" => Some(path_layer),
        "aci-sequences" => Some(sequences),
        "aci-tool-sets" => Some(tool_sets),
        _ => None,
    }
}

fn sequences(case: &Value, tolerance: f64) -> Result<(), String> {
    let (a, b) = (names(&case["input"]["a"]), names(&case["input"]["b"]));
    let expected = &case["expected"];
    same("lcs", &expected["lcs"], &json!(lcs_similarity(&a, &b)), tolerance)?;
    same("edit", &expected["edit"], &json!(edit_similarity(&a, &b)), tolerance)?;
    same("loops_a", &expected["loops_a"], &json!(adjacent_repeats(&a)), tolerance)
}

fn tool_sets(case: &Value, tolerance: f64) -> Result<(), String> {
    let (expected, used) = (names(&case["input"]["expected"]), names(&case["input"]["used"]));
    let (expected, used) = (expected.into_iter().collect(), used.into_iter().collect());
    let ours = json!({
        "recall": sets::recall(&expected, &used),
        "precision": sets::precision(&expected, &used),
        "f1": sets::f1(&expected, &used),
    });
    same("sets", &case["expected"], &ours, tolerance)
}

fn match_modes(case: &Value, tolerance: f64) -> Result<(), String> {
    let (used, reference) = (names(&case["input"]["used"]), names(&case["input"]["reference"]));
    let modes = [MatchMode::Strict, MatchMode::Unordered, MatchMode::Subset, MatchMode::Superset];
    let ours = modes.map(|mode| (mode.name().to_owned(), json!(mode.holds(&used, &reference))));
    same("modes", &case["expected"], &Value::Object(Map::from_iter(ours)), tolerance)
}

fn path_layer(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let tool = |name: &str| ObservedTool { name: Some(name.to_owned()), ..Default::default() };
    let tools = names(&input["used"]).into_iter().map(tool).collect();
    let observed = Observed { tools, ..Observed::default() };
    let baseline = input["baseline"].is_array().then(|| Baseline {
        tools: names(&input["baseline"]).into_iter().map(str::to_owned).collect(),
        cost_usd: 0.0,
    });
    let result = path::evaluate(&read(&input["spec"]), &observed, baseline.as_ref());
    let details = result.details.clone();
    same_layer(&case["expected"], ("warnings", &result), details, tolerance)
}

fn cost_layer(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let actual = &input["actual"];
    let observed = Observed {
        llm_calls: actual["llm_calls"].as_u64().unwrap(),
        total_tokens: actual["tokens"].as_u64(),
        cost_usd: actual["cost"].as_f64(),
        duration_ms: actual["latency"].as_f64(),
        ..Observed::default()
    };
    let baseline = input["baseline"].is_object().then(|| Baseline {
        tools: Vec::new(),
        cost_usd: input["baseline"]["cost"].as_f64().unwrap(),
    });
    let result = cost::evaluate(&read(&input["spec"]), &observed, baseline.as_ref());
    let details = result.details.clone();
    same_layer(&case["expected"], ("warnings", &result), details, tolerance)
}

/// `judge_verdicts` has the judge's verdict on each rule, `judge_calls` the rules that were really asked.
fn correctness_layer(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let judgement = |value: &Value| match value.as_array() {
        Some(pair) => Judgement::Single(verdict(&pair[0], &pair[1])),
        None => Judgement::Failed(value.to_string()),
    };
    let verdicts = input["judge_verdicts"].as_object().unwrap();
    let judgements: Judgements =
        verdicts.iter().map(|(rule, value)| (rule.clone(), judgement(value))).collect();
    let spec: CorrectnessSpec = read(&input["spec"]);
    let result = correctness::evaluate(&spec, input["answer"].as_str(), &judgements);
    let details = result.details.clone();
    same_layer(&case["expected"], ("failures", &result), details, tolerance)
}

fn judge_threshold(case: &Value, tolerance: f64) -> Result<(), String> {
    let score = judge::score_threshold(case["input"]["threshold"].as_f64().unwrap());
    same("score", &case["expected"]["score"], &json!(score), tolerance)
}

/// Three kinds of case: an answer to be read, one verdict, or several, against a threshold.
fn judge_verdict(case: &Value, tolerance: f64) -> Result<(), String> {
    let input = &case["input"];
    let threshold = input["threshold"].as_f64();
    let ours = if let Some(raw) = input["raw"].as_str() {
        let read = judge::parse(raw);
        json!({"score": read.score, "label": read.label})
    } else if let Some(verdicts) = input["ensemble"].as_array() {
        let verdicts: Vec<JudgeVerdict> =
            verdicts.iter().map(|entry| verdict(&entry["score"], &entry["label"])).collect();
        let outcome = judge::ensemble(&verdicts, threshold.unwrap()).unwrap();
        json!({"passed": outcome.passed, "score": outcome.score, "label": outcome.label})
    } else {
        let outcome = judge::single(&verdict(&input["score"], &input["label"]), threshold.unwrap());
        json!({"passed": outcome.passed})
    };
    same("verdict", &case["expected"], &ours, tolerance)
}

fn verdict(score: &Value, label: &Value) -> JudgeVerdict {
    let label = Label::deserialize(label).unwrap();
    JudgeVerdict { score: score.as_i64().unwrap(), label, rationale: None, judge: None }
}

/// Status, number of problems, and the numbers of the layer.
fn same_layer(
    expected: &Value,
    (count, result): (&str, &LayerResult),
    details: Details,
    tolerance: f64,
) -> Result<(), String> {
    let mut ours = Map::from_iter([
        ("status".to_owned(), json!(result.status)),
        (count.to_owned(), json!(result.problems.len())),
    ]);
    ours.extend(details.into_iter().map(|(name, value)| (name.to_owned(), value)));
    same("layer", expected, &Value::Object(ours), tolerance)
}

fn read<T: DeserializeOwned>(spec: &Value) -> T {
    serde_json::from_value(spec.clone()).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}
