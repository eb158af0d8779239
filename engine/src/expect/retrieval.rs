//! Layer 2.5: the results of a retriever. A problem is a warning; results that cannot be read are not checked.
//!
//! ```text
//! forbid_empty        fails if all results were empty, and the answer says something and does not refuse
//! min_results         items of all results >= least; only if each is a list
//! expected_sources    each is in the text of the results, in any case
//! facts_in_context    which expected terms of the answer are in there; does not affect the status
//! ```
//!
//! Empty is null, `[]`, space, or one of `empty_markers`. A result is that of a call of the tool; a text that is the
//! JSON of a list or object is read as that. If calls have no results, the documents that the trace names count as
//! one list of ids; AgentCI has no such rule.
//!
//! Source: AgentCI v2, `engine/retrieval.py`; not in the metrics reference.

use serde_json::{Value, json};

use super::observed::{Observed, ObservedTool};
use super::result::{Findings, LayerResult, LayerStatus};
use super::spec::{CorrectnessSpec, ResultFormat, RetrievalSpec};

/// Texts by which an answer says that it does not know, if the file has none of its own.
const REFUSALS: [&str; 15] = [
    "can't answer",
    "can't find",
    "cannot answer",
    "cannot find",
    "could not find",
    "couldn't find",
    "do not have information",
    "don't have information",
    "don't have that information",
    "i do not know",
    "i don't know",
    "no information",
    "no results",
    "unable to answer",
    "unable to find",
];

/// The results of a retriever.
struct Results {
    values: Vec<Value>,
    /// Whether they are ids, not texts.
    ids: bool,
}

/// Checks what was retrieved against the expectations.
pub fn evaluate(
    spec: &RetrievalSpec,
    correctness: Option<&CorrectnessSpec>,
    observed: &Observed,
) -> LayerResult {
    let mut found = Findings::default();
    match read(spec, observed) {
        Ok(results) => {
            forbid_empty(&mut found, spec, &results, observed.answer.as_deref());
            min_results(&mut found, spec, &results);
            let text = text(&results).to_lowercase();
            sources(&mut found, spec, &text);
            facts(&mut found, spec, correctness, &results, &text);
        }
        Err(why) => found.cannot(&why),
    }
    found.result(LayerStatus::Warn)
}

/// The results, or the reason why they cannot be read.
fn read(spec: &RetrievalSpec, observed: &Observed) -> Result<Results, String> {
    let held = |tool: &&ObservedTool| tool.result.as_ref().is_some_and(|result| !result.is_null());
    let calls = || observed.tools.iter().filter(|tool| tool.name.as_ref() == Some(&spec.tool));
    // If any call has a result, results are sent: a call of the retriever without one found nothing.
    let captured = observed.tools.iter().any(|tool| held(&tool));
    if calls().next().is_some() && captured {
        let result = |tool: &ObservedTool| {
            as_read(tool.result.clone().unwrap_or_default(), spec.result_format)
        };
        let values: Option<Vec<Value>> = calls().map(result).collect();
        let values = values.ok_or("a result is not of the expected format")?;
        return Ok(Results { values, ids: false });
    }
    if !observed.retrieved.is_empty() {
        return Ok(Results { values: vec![json!(observed.retrieved)], ids: true });
    }
    Err(match calls().next() {
        None => format!("{} was not called", spec.tool),
        Some(_) => format!("what {} gave back is not known", spec.tool),
    })
}

/// A result in the expected format; `None` if it is not of that format.
fn as_read(value: Value, format: Option<ResultFormat>) -> Option<Value> {
    let parsed: Option<Value> = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    let structure = |value: &Value| value.is_array() || value.is_object();
    let text = |value: Value| match value {
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Value::String(value.to_string())
        }
        Value::Null | Value::String(_) => value,
    };
    match format {
        _ if value.is_null() => Some(value),
        Some(ResultFormat::Text) => Some(text(value)),
        Some(ResultFormat::List) => Some(parsed.unwrap_or(value)).filter(Value::is_array),
        Some(ResultFormat::Json) => Some(parsed.unwrap_or(value)).filter(structure),
        None if structure(&value) => Some(value),
        None => Some(parsed.filter(structure).unwrap_or_else(|| text(value))),
    }
}

fn forbid_empty(
    found: &mut Findings,
    spec: &RetrievalSpec,
    results: &Results,
    answer: Option<&str>,
) {
    let markers = spec.empty_markers.as_deref().unwrap_or_default();
    let is_marker = |text: &str| markers.iter().any(|marker| marker.trim().to_lowercase() == text);
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.trim().is_empty() || is_marker(&text.trim().to_lowercase()),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
    };
    let empty = results.values.iter().all(is_empty);
    found.details.insert("empty", json!(empty));
    if !spec.forbid_empty {
        return;
    }
    let answer = answer.unwrap_or_default();
    let grounded = !empty || answer.trim().is_empty() || refuses(answer, spec);
    found.details.insert("forbid_empty", json!(grounded));
    found.check(
        grounded,
        if empty {
            "nothing was retrieved, and nothing claimed"
        } else {
            "something was retrieved"
        }
        .to_owned(),
        "nothing was retrieved, and the answer claims something all the same".to_owned(),
    );
}

fn refuses(answer: &str, spec: &RetrievalSpec) -> bool {
    let answer = answer.replace('\u{2019}', "'").to_lowercase();
    match spec.refusal_markers.as_deref().filter(|markers| !markers.is_empty()) {
        Some(markers) => markers.iter().any(|marker| answer.contains(&marker.to_lowercase())),
        None => REFUSALS.iter().any(|marker| answer.contains(marker)),
    }
}

fn min_results(found: &mut Findings, spec: &RetrievalSpec, results: &Results) {
    let Some(least) = spec.min_results else { return };
    let lists: Option<Vec<&Vec<Value>>> = results.values.iter().map(Value::as_array).collect();
    let Some(lists) = lists else {
        return found.cannot("a result is not a list, so its items cannot be counted");
    };
    let count: u64 = lists.iter().map(|list| list.len() as u64).sum();
    found.details.insert("results", json!(count));
    found.check(
        count >= least,
        format!("results: {count} >= {least}"),
        format!("results: {count} < {least}"),
    );
}

fn sources(found: &mut Findings, spec: &RetrievalSpec, text: &str) {
    let sources = spec.expected_sources.as_deref().unwrap_or_default();
    if sources.is_empty() {
        return;
    }
    let missing: Vec<&str> = sources
        .iter()
        .filter(|source| !text.contains(&source.to_lowercase()))
        .map(String::as_str)
        .collect();
    found.details.insert("missing_sources", json!(missing));
    found.check(
        missing.is_empty(),
        "all expected sources were retrieved".to_owned(),
        format!("expected sources were not retrieved: {}", missing.join(", ")),
    );
}

fn facts(
    found: &mut Findings,
    spec: &RetrievalSpec,
    correctness: Option<&CorrectnessSpec>,
    results: &Results,
    text: &str,
) {
    if !spec.facts_in_context {
        return;
    }
    let terms = correctness.into_iter().flat_map(|correctness| {
        [&correctness.expected_in_answer, &correctness.any_expected_in_answer]
    });
    let terms: Vec<&String> = terms.flatten().flatten().collect();
    if terms.is_empty() || results.ids {
        return found.cannot("facts_in_context: there are no terms, or no texts");
    }
    let missing: Vec<&str> = terms
        .iter()
        .filter(|term| !text.contains(&term.to_lowercase()))
        .map(|term| term.as_str())
        .collect();
    found.note(match missing.as_slice() {
        [] => "all expected terms were retrieved".to_owned(),
        missing => format!("expected terms that were not retrieved: {}", missing.join(", ")),
    });
    found.details.insert("ungrounded_terms", json!(missing));
}

/// All results as one text to search: texts as they are, anything else as JSON.
fn text(results: &Results) -> String {
    let texts = results.values.iter().filter(|value| !value.is_null());
    let texts = texts.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: Value) -> RetrievalSpec {
        serde_json::from_value(text).unwrap()
    }

    fn called(result: Option<Value>, answer: &str) -> Observed {
        let tool = |name: &str, result| ObservedTool {
            name: Some(name.to_owned()),
            result,
            ..ObservedTool::default()
        };
        let tools = vec![tool("search", result), tool("other", Some(json!("done")))];
        Observed { tools, answer: Some(answer.to_owned()), ..Observed::default() }
    }

    fn status(spec: &RetrievalSpec, observed: &Observed) -> LayerStatus {
        evaluate(spec, None, observed).status
    }

    #[test]
    fn an_answer_to_nothing_must_say_so() {
        let spec =
            spec(json!({"tool": "search", "forbid_empty": true, "empty_markers": ["None."]}));
        for empty in [None, Some(json!([])), Some(json!("  ")), Some(json!(" none. "))] {
            assert_eq!(status(&spec, &called(empty.clone(), "It is 5.")), LayerStatus::Warn);
            assert_eq!(status(&spec, &called(empty, "I don\u{2019}t know.")), LayerStatus::Pass);
        }
        for something in [json!({}), json!([1]), json!("a"), json!(0)] {
            assert_eq!(status(&spec, &called(Some(something), "It is 5.")), LayerStatus::Pass);
        }
    }

    #[test]
    fn items_are_counted_and_sources_searched() {
        let spec = spec(json!({
            "tool": "search", "min_results": 2, "expected_sources": ["Refunds.md"],
        }));
        let listed = called(Some(json!(r#"[{"source": "refunds.md"}, {"source": "b"}]"#)), "");
        assert_eq!(status(&spec, &listed), LayerStatus::Pass);
        let few = called(Some(json!(["refunds.md"])), "");
        assert_eq!(evaluate(&spec, None, &few).problems.len(), 1);
        let text = called(Some(json!("from refunds.md")), "");
        let result = evaluate(&spec, None, &text);
        assert_eq!((result.status, result.problems.len()), (LayerStatus::Pass, 0), "{result:?}");
    }

    #[test]
    fn what_cannot_be_read_is_skipped() {
        let listed = spec(json!({"tool": "search", "min_results": 1, "result_format": "list"}));
        assert_eq!(status(&listed, &called(Some(json!("x")), "")), LayerStatus::Skip);
        assert_eq!(status(&listed, &Observed::default()), LayerStatus::Skip);
        let mut unknown = called(None, "");
        unknown.tools[1].result = None;
        assert_eq!(status(&listed, &unknown), LayerStatus::Skip);
        unknown.retrieved = vec!["a.md".into()];
        assert_eq!(status(&listed, &unknown), LayerStatus::Pass);
    }

    #[test]
    fn terms_that_were_not_retrieved_are_only_told() {
        let spec = spec(json!({"tool": "search", "facts_in_context": true}));
        let correctness = CorrectnessSpec {
            expected_in_answer: Some(vec!["30 days".into(), "free".into()]),
            ..CorrectnessSpec::default()
        };
        let result =
            evaluate(&spec, Some(&correctness), &called(Some(json!("within 30 Days")), ""));
        assert_eq!(result.status, LayerStatus::Pass);
        assert_eq!(result.details["ungrounded_terms"], json!(["free"]));
    }
}
