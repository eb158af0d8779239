//! A plain list of spans, as tools write them for their own tests, at the top or under `spans`. Each span is an object with a name,
//! times and attributes, which are as in OTLP or an object of plain values.
//!
//! The list becomes an OTLP request. Spans without a trace id form one trace, whose id is a hash of the text. The parent of a span
//! without an id is the innermost span that encloses it in time.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

/// The request, as OTLP JSON; `None` if the text is no such list.
pub(super) fn request(text: &[u8]) -> Option<Vec<u8>> {
    let mut sent: Value = serde_json::from_slice(text).ok()?;
    let list = match sent.as_object_mut() {
        Some(holder) if holder.contains_key("resourceSpans") => return None,
        Some(holder) => holder.get_mut("spans")?,
        None => &mut sent,
    };
    let spans = std::mem::take(list.as_array_mut()?);
    let is_span = |span: &Value| span.get("name").is_some_and(Value::is_string);
    if spans.is_empty() || !spans.iter().all(is_span) {
        return None;
    }
    let trace_id = format!("{:032x}", xxh3_128(text).max(1));
    let parents = parents(&spans);
    let mut sent: Vec<Value> = Vec::with_capacity(spans.len());
    for ((at, span), parent) in spans.into_iter().enumerate().zip(parents) {
        let Value::Object(mut span) = span else { continue };
        if text_of(&span, "traceId", "trace_id").is_none() {
            span.insert("traceId".to_owned(), json!(trace_id));
        }
        if text_of(&span, "spanId", "span_id").is_none() {
            span.insert("spanId".to_owned(), json!(span_id(at)));
            if text_of(&span, "parentSpanId", "parent_span_id").is_none() {
                span.insert("parentSpanId".to_owned(), json!(parent.map(span_id)));
            }
        }
        otlp_attributes(&mut span);
        for event in span.get_mut("events").and_then(Value::as_array_mut).into_iter().flatten() {
            event.as_object_mut().into_iter().for_each(otlp_attributes);
        }
        sent.push(Value::Object(span));
    }
    let request = json!({"resourceSpans": [{"scopeSpans": [{"spans": sent}]}]});
    serde_json::to_vec(&request).ok()
}

/// For each span the index of the innermost span that encloses it; of two spans with the same times the later in the list is the
/// outer one, as spans are written when they end.
fn parents(spans: &[Value]) -> Vec<Option<usize>> {
    let times: Vec<(u64, u64)> = spans
        .iter()
        .map(|span| (time(span, "startTimeUnixNano"), time(span, "endTimeUnixNano")))
        .collect();
    let mut outermost_first: Vec<usize> = (0..spans.len()).collect();
    outermost_first.sort_by_key(|at| (times[*at].0, Reverse(times[*at].1), Reverse(*at)));
    let mut parents = vec![None; spans.len()];
    let mut open: Vec<usize> = Vec::new();
    for at in outermost_first {
        let (start, end) = times[at];
        open.retain(|other| times[*other].1 >= start);
        parents[at] = open.iter().rev().copied().find(|other| times[*other].1 >= end);
        open.push(at);
    }
    parents
}

fn time(span: &Value, name: &str) -> u64 {
    let time = span.get(name);
    time.and_then(|time| time.as_u64().or_else(|| time.as_str()?.trim().parse().ok())).unwrap_or(0)
}

/// The text under either name, if it is not empty.
fn text_of<'a>(span: &'a Map<String, Value>, camel: &str, snake: &str) -> Option<&'a str> {
    let text = span.get(camel).or_else(|| span.get(snake)).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}

fn span_id(at: usize) -> String {
    format!("{:016x}", at + 1)
}

/// Converts attributes that are an object to OTLP's form.
fn otlp_attributes(holder: &mut Map<String, Value>) {
    if let Some(attributes) = holder.get_mut("attributes")
        && let Value::Object(plain) = attributes
    {
        *attributes = key_values(plain);
    }
}

fn key_values(plain: &Map<String, Value>) -> Value {
    plain.iter().map(|(key, value)| json!({"key": key, "value": any_value(value)})).collect()
}

fn any_value(value: &Value) -> Value {
    match value {
        Value::Null => json!({}),
        Value::Bool(flag) => json!({"boolValue": flag}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number}),
        Value::String(text) => json!({"stringValue": text}),
        Value::Array(values) => {
            json!({"arrayValue": {"values": values.iter().map(any_value).collect::<Vec<_>>()}})
        }
        Value::Object(map) => json!({"kvlistValue": {"values": key_values(map)}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_without_ids_are_nested_by_their_times() {
        let span = |name: &str, start: u64, end: u64| json!({"name": name, "startTimeUnixNano": start, "endTimeUnixNano": end.to_string()});
        let list = [
            span("tool", 30, 40),
            span("call", 10, 20),
            span("call", 30, 60),
            span("agent", 10, 70),
            span("root", 10, 70),
            span("after", 70, 90),
        ];
        assert_eq!(parents(&list), [Some(2), Some(3), Some(3), Some(4), None, None]);
    }

    #[test]
    fn plain_values_become_those_of_otlp() {
        let text = br#"{"spans": [{"name": "a", "spanId": "00000000000000aa", "attributes": {"s": "x", "n": 2, "f": 0.5, "l": [true], "m": {"k": null}}}]}"#;
        let sent: Value = serde_json::from_slice(&request(text).unwrap()).unwrap();
        let span = &sent["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["spanId"], "00000000000000aa");
        assert_eq!(span["traceId"].as_str().map(str::len), Some(32));
        let of = |key: &str| {
            let mut sent = span["attributes"].as_array().unwrap().iter();
            sent.find(|sent| sent["key"] == key).map(|sent| &sent["value"]).unwrap()
        };
        assert_eq!(*of("s"), json!({"stringValue": "x"}));
        assert_eq!(*of("n"), json!({"intValue": 2}));
        assert_eq!(*of("f"), json!({"doubleValue": 0.5}));
        assert_eq!(*of("l"), json!({"arrayValue": {"values": [{"boolValue": true}]}}));
        assert_eq!(*of("m"), json!({"kvlistValue": {"values": [{"key": "k", "value": {}}]}}));
    }

    #[test]
    fn anything_else_is_no_list() {
        for text in ["[]", "{}", "[1]", r#"{"resourceSpans": []}"#, r#"[{"run_type": "llm"}]"#, "x"]
        {
            assert_eq!(request(text.as_bytes()), None, "{text}");
        }
    }
}
