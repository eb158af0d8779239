//! Checks a done trace against expectations.

use std::collections::BTreeMap;

use serde_json::Value;

use super::TraceView;
use super::observed::observed;
use crate::expect::spec::{CorrectnessSpec, Rubric};
use crate::expect::{Details, Judgements, LayerResult, LayerStatus, QueryResult, Suite};
use crate::expect::{judge, span_assertions};
use crate::facts::{Expectation, ExpectedLayer, ExpectedStatus, TraceFacts};
use crate::judging::{JudgedText, Judges, RubricRequest};

/// Checks a trace with its texts against every query that it answers; returns the results in the order of the files, and the rules
/// that have to be judged and are not in `judgements`.
pub fn expectations(
    trace: &TraceFacts,
    laid: &TraceView<'_>,
    suites: &[Suite],
    judgements: &Judgements,
) -> (Vec<Expectation>, Vec<RubricRequest>) {
    let task = trace.attempt.as_ref().and_then(|attempt| attempt.task.as_deref());
    let input = trace.content.as_ref().and_then(|content| content.input.as_deref());
    let mut answered = suites
        .iter()
        .flat_map(|suite| suite.answered(task, input).into_iter().map(move |query| (suite, query)))
        .peekable();
    // Most traces answer no query.
    if answered.peek().is_none() {
        return (Vec::new(), Vec::new());
    }
    let observed = observed(trace, laid);
    let mut asked = BTreeMap::new();
    let expectations = answered
        .map(|(suite, query)| {
            let result = suite.evaluate(query, &observed, judgements);
            let spec = query.correctness.iter();
            let judges = suite.spec().judges();
            let rules =
                spec.flat_map(|spec| unjudged(spec, &judges, &result.correctness, judgements));
            let texts = span_assertions::for_judges(&query.span_assertions, &observed);
            let texts = texts.map(|(rubric, field, text)| of_text(rubric, field, text, &judges));
            let texts = texts.filter(|rubric| !judgements.contains_key(&rubric.key));
            asked.extend(rules.chain(texts).map(|rubric| (rubric.key.clone(), rubric)));
            expectation(query.query.clone(), result)
        })
        .collect();
    (expectations, asked.into_values().collect())
}

/// The rules that the evaluation of a layer needed, and that have no judgement.
fn unjudged<'a>(
    spec: &'a CorrectnessSpec,
    judges: &'a Judges,
    layer: &LayerResult,
    judgements: &'a Judgements,
) -> impl Iterator<Item = RubricRequest> + 'a {
    let reached = layer.details.get("judge_calls").and_then(Value::as_array);
    let reached: Vec<String> =
        reached.into_iter().flatten().filter_map(|rule| rule.as_str().map(str::to_owned)).collect();
    reached.into_iter().filter(|rule| !judgements.contains_key(rule)).map(|rule| {
        let rubric = spec.rubric(&rule);
        RubricRequest {
            scale: rubric.and_then(|rubric| rubric.scale.clone()).unwrap_or_default(),
            examples: rubric
                .and_then(|rubric| rubric.few_shot_examples.clone())
                .unwrap_or_default(),
            judges: judges.clone(),
            key: rule.clone(),
            rule,
            judged: None,
        }
    })
}

/// The request for a rule about a field of a span.
fn of_text(rubric: &Rubric, field: &str, text: String, judges: &Judges) -> RubricRequest {
    RubricRequest {
        key: judge::key(&rubric.rule, &text),
        rule: rubric.rule.clone(),
        judged: Some(JudgedText { field: field.to_owned(), text }),
        judges: judges.clone(),
        ..RubricRequest::default()
    }
}

fn expectation(query: String, result: QueryResult) -> Expectation {
    let hard_fail = result.hard_fail();
    let QueryResult { correctness, path, retrieval, cost } = result;
    Expectation {
        query,
        hard_fail,
        correctness: Some(layer(correctness)),
        path: Some(layer(path)),
        retrieval: Some(layer(retrieval)),
        cost: Some(layer(cost)),
    }
}

fn layer(result: LayerResult) -> ExpectedLayer {
    let LayerResult { status, problems, notes, details } = result;
    let status = match status {
        LayerStatus::Skip => ExpectedStatus::Skip,
        LayerStatus::Pass => ExpectedStatus::Pass,
        LayerStatus::Warn => ExpectedStatus::Warn,
        LayerStatus::Fail => ExpectedStatus::Fail,
    };
    ExpectedLayer { status, problems, notes, details: json(details) }
}

fn json(details: Details) -> String {
    let object = details.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Value::Object(object).to_string()
}
