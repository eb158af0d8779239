//! Assertions on single spans, as part of layer 1: each must hold for every span that its selector finds, and the selector
//! must find one.
//!
//! A field is `name`, `input_data`, `output_data` and so on, or a path into `attributes` and `metadata`, whose rest is one key,
//! else key by key. A tool call has the attributes `tool.args`, `tool.args.NAME` and, if it is known, `tool.result`. A value that
//! is not a text is compared as Python writes it; a list or object as JSON. Arguments and results that are not known are not
//! checked; AgentCI always has them.
//!
//! A judge is asked about the field alone, whatever the results of the other checks, and about equal texts once.
//!
//! Source: AgentCI v2, `engine/span_assertions.py`; not in the metrics reference.

use serde_json::{Map, Value, json};

use super::correctness::judged;
use super::judge::{self, Judgements};
use super::observed::{Observed, ObservedSpan, ObservedTool};
use super::result::{Findings, LayerResult};
use super::span_spec::{SpanAssert, SpanAssertion, SpanCheck, SpanKind, SpanSelector};
use super::spec::Rubric;
use crate::math::text::to_text;

/// Checks the spans of a trace against the assertions.
pub fn evaluate(
    assertions: &[SpanAssertion],
    observed: &Observed,
    judgements: &Judgements,
) -> LayerResult {
    let mut found = Findings::default();
    for SpanAssertion { selector, asserts } in assertions {
        let name = format!("{} {}", selector.kind.name(), selector.name);
        let Some(spans) = select(selector, observed) else {
            found.cannot(&format!("{name}: such spans are not held"));
            continue;
        };
        if spans.is_empty() {
            found.check(false, String::new(), format!("{name}: there is no such span"));
        }
        for (span, assert) in spans.iter().flat_map(|span| asserts.iter().map(move |a| (span, a))) {
            let what = format!("{name}, {}", assert.field);
            match field(&span.fields, &assert.field).map(text) {
                Some(value) => check(&mut found, &what, assert, &value, judgements),
                None if span.is_unknown(&assert.field) => {
                    found.cannot(&format!("{what}: not known"));
                }
                None => {
                    found.check(false, String::new(), format!("{what}: there is no such field"));
                }
            }
        }
    }
    found.hard_result()
}

/// The texts to be judged: each with its rule and its field.
pub fn for_judges<'a>(
    assertions: &'a [SpanAssertion],
    observed: &'a Observed,
) -> impl Iterator<Item = (&'a Rubric, &'a str, String)> {
    assertions.iter().flat_map(|SpanAssertion { selector, asserts }| {
        let judged = asserts.iter().filter_map(|assert| Some((assert.rubric()?, &*assert.field)));
        let judged: Vec<(&Rubric, &str)> = judged.collect();
        // Most assertions need no judge.
        let spans = if judged.is_empty() { None } else { select(selector, observed) };
        let texts = |span: Selected| {
            let text = |(rubric, path)| Some((rubric, path, field(&span.fields, path).map(text)?));
            judged.iter().copied().filter_map(text).collect::<Vec<_>>()
        };
        spans.into_iter().flatten().flat_map(texts).collect::<Vec<_>>()
    })
}

/// A span that a selector finds.
struct Selected {
    fields: Map<String, Value>,
    /// Fields that are not known, together with all below them.
    unknown: Vec<&'static str>,
}

impl Selected {
    fn is_unknown(&self, field: &str) -> bool {
        let within = |path: &&str| {
            field.strip_prefix(*path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.unknown.iter().any(within)
    }
}

/// The spans that a selector finds; `None` if it is not known whether there are any. The absence of a handoff or guardrail is never
/// sent, so for these it is `None` if none is found.
fn select(selector: &SpanSelector, observed: &Observed) -> Option<Vec<Selected>> {
    let held = observed.spans.as_ref().map(|spans| {
        spans.iter().filter(|span| span.kind == selector.kind && span.name == selector.name)
    });
    let held = held.map(|spans| spans.map(whole));
    match selector.kind {
        SpanKind::Tool => {}
        SpanKind::Llm | SpanKind::Node => return Some(held?.collect()),
        SpanKind::Handoff | SpanKind::Guardrail => {
            return Some(held?.collect()).filter(|spans: &Vec<Selected>| !spans.is_empty());
        }
    }
    let calls = observed.tools.iter().filter(|tool| tool.name.as_ref() == Some(&selector.name));
    Some(held.into_iter().flatten().chain(calls.map(tool)).collect())
}

/// A span as a selector finds it; its missing fields are unknown.
fn whole(span: &ObservedSpan) -> Selected {
    let mut fields = span.fields.clone();
    fields.insert("name".to_owned(), json!(span.name));
    let unknown = ["input_data", "output_data", "attributes", "metadata"];
    let unknown = unknown.into_iter().filter(|field| !fields.contains_key(*field)).collect();
    Selected { fields, unknown }
}

/// A tool call as a selector finds it.
fn tool(call: &ObservedTool) -> Selected {
    let mut attributes = Map::new();
    let mut unknown = Vec::new();
    if call.arguments.is_none() {
        unknown.extend(["input_data", "attributes.tool.args"]);
    }
    if call.result.is_none() {
        unknown.extend(["output_data", "attributes.tool.result"]);
    }
    if let Some(arguments) = &call.arguments {
        attributes.insert("tool.args".to_owned(), arguments.clone());
        for (key, value) in arguments.as_object().into_iter().flatten() {
            attributes.insert(format!("tool.args.{key}"), value.clone());
        }
    }
    if let Some(result) = &call.result {
        attributes.insert("tool.result".to_owned(), result.clone());
    }
    let name = call.name.clone().map_or(Value::Null, Value::String);
    let fields = Map::from_iter([
        ("name".to_owned(), name),
        ("input_data".to_owned(), json!(call.arguments)),
        ("output_data".to_owned(), json!(call.result)),
        ("attributes".to_owned(), Value::Object(attributes)),
    ]);
    Selected { fields, unknown }
}

/// The value of a field, if it is there and not null.
fn field<'s>(span: &'s Map<String, Value>, path: &str) -> Option<&'s Value> {
    let (top, rest) = path.split_once('.').unwrap_or((path, ""));
    let value = span.get(top)?;
    let nested = matches!(top, "attributes" | "metadata") && !rest.is_empty();
    let value = if nested { nested_value(value, rest)? } else { value };
    (!value.is_null()).then_some(value)
}

fn nested_value<'s>(value: &'s Value, path: &str) -> Option<&'s Value> {
    let object = value.as_object()?;
    object.get(path).or_else(|| {
        let (key, rest) = path.split_once('.')?;
        nested_value(object.get(key)?, rest)
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Null | Value::Number(_) | Value::String(_) => to_text(value),
        Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn check(
    found: &mut Findings,
    what: &str,
    assert: &SpanAssert,
    value: &str,
    judgements: &Judgements,
) {
    let (holds, expected) = match &assert.check {
        SpanCheck::Contains(part) => (value.contains(part), format!("contains \"{part}\"")),
        SpanCheck::NotContains(part) => {
            (!value.contains(part), format!("does not contain \"{part}\""))
        }
        SpanCheck::Equals(whole) => (value == whole, format!("is \"{whole}\"")),
        SpanCheck::Regex(pattern) => {
            (pattern.search(value) == Ok(true), format!("has /{}/", pattern.source()))
        }
        SpanCheck::Judge(rubric) => {
            let judgement = judgements.get(&judge::key(&rubric.rule, value));
            return judged(found, what, &rubric.rule, rubric.threshold, judgement);
        }
    };
    found.check(
        holds,
        format!("{what}: {expected}"),
        format!("{what}: not true that it {expected}"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::result::LayerStatus;

    fn run(assertion: Value, observed: &Observed) -> LayerResult {
        let assertion: SpanAssertion = serde_json::from_value(assertion).unwrap();
        evaluate(&[assertion], observed, &Judgements::new())
    }

    fn searches() -> Observed {
        let search = |query: &str| ObservedTool {
            name: Some("search".to_owned()),
            arguments: Some(
                json!({"query": query, "filter": {"lang": "en"}, "deep": true, "k": 5}),
            ),
            ..ObservedTool::default()
        };
        Observed { tools: vec![search("refund policy"), search("refunds")], ..Observed::default() }
    }

    fn on_search(kind: &str, field: &str, value: &str) -> LayerStatus {
        let assertion = json!({
            "selector": {"kind": "TOOL", "name": "search"},
            "asserts": [{"type": kind, "field": field, "value": value}],
        });
        run(assertion, &searches()).status
    }

    #[test]
    fn an_assertion_must_hold_for_every_call() {
        use LayerStatus::{Fail, Pass, Skip};
        for (kind, field, value, status) in [
            ("contains", "attributes.tool.args.query", "refund", Pass),
            ("contains", "attributes.tool.args.query", "policy", Fail),
            ("not_contains", "attributes.tool.args.query", "order", Pass),
            ("equals", "attributes.tool.args.filter.lang", "en", Fail),
            ("equals", "name", "search", Pass),
            ("equals", "attributes.tool.args.deep", "True", Pass),
            ("equals", "attributes.tool.args.k", "5", Pass),
            ("regex", "attributes.tool.args.query", "^refund(s| p)", Pass),
            ("regex", "output_data", ".", Skip),
            ("equals", "attributes.tool.result.total", "5", Skip),
            ("equals", "attributes.tool.args.page", "5", Fail),
            ("equals", "attributes.nothing", "", Fail),
        ] {
            assert_eq!(on_search(kind, field, value), status, "{kind} {field} {value}");
        }
    }

    #[test]
    fn a_judge_is_asked_about_each_text() {
        use crate::expect::judge::{JudgeVerdict, Judgement, Label};
        let assertion: SpanAssertion = serde_json::from_value(json!({
            "selector": {"kind": "TOOL", "name": "search"},
            "asserts": [
                {"type": "llm_judge", "field": "attributes.tool.args.query", "rule": "It is a question."},
                {"type": "llm_judge", "field": "attributes.tool.args.k", "rule": "It is small.", "threshold": 0.5},
                {"type": "llm_judge", "field": "output_data", "rule": "It is found."},
                {"type": "contains", "field": "name", "value": "x"},
            ],
        }))
        .unwrap();
        let observed = searches();
        let asked: Vec<_> = for_judges(std::slice::from_ref(&assertion), &observed)
            .map(|(rubric, field, text)| format!("{} {field}: {text}", rubric.rule))
            .collect();
        // What is not known is not asked about.
        assert_eq!(
            asked,
            [
                "It is a question. attributes.tool.args.query: refund policy",
                "It is small. attributes.tool.args.k: 5",
                "It is a question. attributes.tool.args.query: refunds",
                "It is small. attributes.tool.args.k: 5",
            ]
        );
        let asserts = assertion.asserts.into_iter().take(2).collect();
        let assertions = [SpanAssertion { asserts, ..assertion }];
        let verdict = |score| {
            Judgement::Single(JudgeVerdict {
                score,
                label: Label::Borderline,
                rationale: None,
                judge: None,
            })
        };
        let run = |judged: &[(&str, &str, i64)]| {
            let judged = judged.iter();
            let judged =
                judged.map(|(rule, text, score)| (judge::key(rule, text), verdict(*score)));
            evaluate(&assertions, &observed, &judged.collect())
        };
        let question = "It is a question.";
        let good =
            [(question, "refund policy", 4), (question, "refunds", 5), ("It is small.", "5", 3)];
        assert_eq!(run(&good).status, LayerStatus::Pass);
        // A rubric that was not judged is no failure, and does not pass.
        assert_eq!(run(&good[..2]).status, LayerStatus::Warn);
        let bad = run(&[(question, "refund policy", 3), good[1], good[2]]);
        assert_eq!(bad.status, LayerStatus::Fail);
        assert_eq!(
            bad.problems,
            ["TOOL search, attributes.tool.args.query: scored 3, below 4: It is a question."]
        );
        // The answer's judgement by the same rule is not the field's.
        let of_answer = [(question.to_owned(), verdict(5))].into();
        assert_eq!(evaluate(&assertions, &observed, &of_answer).status, LayerStatus::Skip);
    }

    #[test]
    fn a_selector_must_find_a_span_if_such_spans_are_held() {
        let assertion = |kind: &str| {
            json!({
                "selector": {"kind": kind, "name": "grade"},
                "asserts": [{"type": "equals", "field": "metadata.a.b", "value": "c"}],
            })
        };
        let mut observed = searches();
        assert_eq!(run(assertion("TOOL"), &observed).status, LayerStatus::Fail);
        assert_eq!(run(assertion("NODE"), &observed).status, LayerStatus::Skip);
        let fields = Map::from_iter([("metadata".to_owned(), json!({"a": {"b": "c"}}))]);
        observed.spans =
            Some(vec![ObservedSpan { kind: SpanKind::Node, name: "grade".into(), fields }]);
        assert_eq!(run(assertion("NODE"), &observed).status, LayerStatus::Pass);
        assert_eq!(run(assertion("LLM"), &observed).status, LayerStatus::Fail);
        assert_eq!(run(assertion("GUARDRAIL"), &observed).status, LayerStatus::Skip);
        let bare = ObservedSpan { kind: SpanKind::Node, name: "grade".into(), fields: Map::new() };
        observed.spans = Some(vec![bare]);
        assert_eq!(run(assertion("NODE"), &observed).status, LayerStatus::Skip);
    }
}
