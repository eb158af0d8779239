//! Tool arguments in canonical form, so that equal calls compare equal whichever library wrote them.
//!
//! JSON with sorted keys; JSON inside a JSON string is unwrapped, twice at most; a Python `repr` is
//! understood; wrappers that libraries put around arguments, and the run ids inside them, are taken off. What is
//! not JSON becomes a JSON string.

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::messages;
use super::python;
use super::raw::RawValue;
use crate::engine::span::Arguments;

/// Keys that a wrapper may have beside the arguments: bookkeeping of the library, with ids of the run.
const BOOKKEEPING: [&str; 8] = [
    "callbacks",
    "config",
    "metadata",
    "run_id",
    "run_name",
    "sanitize_inputs_outputs",
    "tags",
    "inputs",
];

/// Returns the canonical arguments of a value as sent.
pub(super) fn canonical(value: &RawValue<'_>) -> Arguments {
    let value = sorted(unwrap(decoded(value)));
    let mut values = Vec::new();
    collect(&value, &mut values);
    Arguments::from_canonical(text_of(&value), values)
}

/// Hashes of all scalar values.
fn collect(value: &Value, values: &mut Vec<u64>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, values)),
        Value::Object(map) => map.values().for_each(|item| collect(item, values)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            values.push(xxh3_64(text_of(value).as_bytes()));
        }
    }
}

/// Returns the hash of a tool's result, without the ids that frameworks wrap around it.
pub(super) fn result_hash(value: &RawValue<'_>) -> u64 {
    hash(messages::json(value))
}

/// Returns the hash of a tool's result that is JSON already.
pub(super) fn hash_of(value: &Value) -> u64 {
    hash(value.clone())
}

fn hash(value: Value) -> u64 {
    let value = read(value);
    let result = match &value {
        Value::String(text) => python::content(text).map(Value::String),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            messages::content_of_tool(&value).map(read)
        }
    };
    xxh3_64(text_of(&sorted(result.unwrap_or(value))).as_bytes())
}

/// Returns whether a key is a library's bookkeeping rather than an argument or a result.
pub(super) fn keeps_books(key: &str) -> bool {
    BOOKKEEPING.contains(&key) || key == "kwargs"
}

fn decoded(value: &RawValue<'_>) -> Value {
    read(messages::json(value))
}

/// The JSON value that was meant: a string that holds JSON, or Python, is read.
fn read(mut value: Value) -> Value {
    for _ in 0..2 {
        let Value::String(text) = &value else { break };
        let json = || serde_json::from_str(text).ok();
        match may_be_json(text).then(json).flatten().or_else(|| python::parse(text)) {
            Some(inner) => value = inner,
            None => break,
        }
    }
    value
}

/// Whether a text begins like JSON, which most texts do not.
fn may_be_json(text: &str) -> bool {
    let first = text.trim_start().bytes().next();
    first.is_some_and(|byte| {
        matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n')
    })
}

/// The JSON of a value.
fn text_of(value: &Value) -> String {
    // Fails only for maps whose keys are no strings, which a value has not.
    serde_json::to_string(value).unwrap_or_default()
}

/// Takes off what libraries put around the arguments.
fn unwrap(value: Value) -> Value {
    let Value::Object(map) = value else { return value };
    let empty = |value: &Value| match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    let only = |wrapper: &[&str]| {
        map.keys().all(|key| wrapper.contains(&key.as_str()) || BOOKKEEPING.contains(&key.as_str()))
    };
    if let Some(Value::String(text)) =
        map.get("input_str").filter(|_| only(&["input_str", "kwargs"]))
    {
        let text = RawValue::Str(text.as_str().into());
        return decoded(&text);
    }
    let calls = only(&["args", "kwargs"]);
    match (map.get("args"), map.get("kwargs")) {
        (args, Some(Value::Object(kwargs))) if calls && args.is_none_or(empty) => {
            Value::Object(kwargs.clone())
        }
        (Some(Value::Array(args)), kwargs) if calls && kwargs.is_none_or(empty) => {
            // LangChain.js hands a tool its arguments as one JSON text.
            let inner = args.first().filter(|_| args.len() == 1 && args[0].is_string());
            let inner = inner.map(|text| read(text.clone())).filter(Value::is_object);
            inner.unwrap_or_else(|| Value::Array(args.clone()))
        }
        _ => Value::Object(map),
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            if map.keys().is_sorted() && map.values().all(is_scalar) {
                return Value::Object(map);
            }
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(
                entries.into_iter().map(|(key, value)| (key, sorted(value))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

fn is_scalar(value: &Value) -> bool {
    !value.is_array() && !value.is_object()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical_of(text: &str) -> String {
        canonical(&RawValue::Str(text.into())).as_str().to_owned()
    }

    #[test]
    fn equal_arguments_have_one_form() {
        let expected = r#"{"city":"Paris","days":2}"#;
        for text in [
            r#"{"days": 2, "city": "Paris"}"#,
            r#""{\"days\":2,\"city\":\"Paris\"}""#,
            "{'city': 'Paris', 'days': 2}",
            r#"{"args":[],"kwargs":{"city":"Paris","days":2}}"#,
            r#"{"args":[],"sanitize_inputs_outputs":true,"kwargs":{"city":"Paris","days":2}}"#,
            r#"{"kwargs":{"city":"Paris","days":2}}"#,
            r#"{"args":["{\"city\":\"Paris\",\"days\":2}"]}"#,
            r#"{"input_str":"{'city': 'Paris', 'days': 2}","tags":["x"],"metadata":{"run":"a1"},"kwargs":{"tool_call_id":"c1"}}"#,
        ] {
            assert_eq!(canonical_of(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_a_string() {
        assert_eq!(canonical_of("Paris"), r#""Paris""#);
        assert_eq!(canonical_of("find 'x' in y"), r#""find 'x' in y""#);
    }

    #[test]
    fn a_result_is_the_same_whatever_id_its_call_had() {
        let result = |id: &str| {
            let text =
                format!(r#"{{"type":"tool","data":{{"content":"18 C","tool_call_id":"{id}"}}}}"#);
            result_hash(&RawValue::Str(text.into()))
        };
        assert_eq!(result("a"), result("b"));
        assert_eq!(result("a"), result_hash(&RawValue::Str("18 C".into())));
        let wrapped = r#"{"output":{"lc":1,"type":"constructor","id":["x","ToolMessage"],"kwargs":{"content":"18 C","tool_call_id":"c"}}}"#;
        assert_eq!(result("a"), result_hash(&RawValue::Str(wrapped.into())));
    }
}
