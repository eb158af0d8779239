//! Tool arguments in canonical form, so that equal calls compare equal whichever library wrote them.
//!
//! The form is JSON with sorted keys; JSON inside a JSON string is unwrapped, at most twice; a Python `repr` is understood;
//! wrappers that libraries put around arguments, and run ids inside them, are removed. Anything but JSON becomes a JSON string.
//! Arguments that were partly masked or cut off count as unknown: others may look the same.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::json::{self, Json, Object, Written};
use super::masked;
use super::messages;
use super::python;
use super::raw::RawValue;
use super::stamps;
use crate::span::{self, Arguments};

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

/// Keys under which a wrapper may have the arguments.
const WRAPPERS: [&str; 3] = ["args", "input_str", "kwargs"];

/// Returns the canonical arguments of a value as sent, with their text if that is to be kept; `None` if part of them was masked or cut off.
pub(super) fn canonical(value: &RawValue<'_>, keep_text: bool) -> Option<Arguments> {
    // About as long as the value as sent, so that memory is reserved once.
    let mut text = Written::new();
    text.reserve(value.as_str().map_or(0, str::len));
    let mut values = SmallVec::<[u64; 16]>::new();
    let mut is_lost = false;
    let mut scalar = |place, scalar: &[u8]| {
        is_lost |= masked::is_masked(scalar);
        values.push(span::placed(xxh3_64(scalar), place));
    };
    let flat = value.as_str().and_then(json::flat);
    if let Some(flat) = flat.filter(|flat| !may_wrap(flat.keys())) {
        flat.write_scalars(&mut text, &mut scalar);
    } else {
        let value = sorted(unwrap(read(Json::of(value))));
        value.write_scalars(&mut text, &mut scalar);
        is_lost |= value.as_str().is_some_and(masked::is_cut);
    }
    (!is_lost).then(|| Arguments::from_canonical(&text, &values, keep_text))
}

/// Returns the hash of a tool's result, without the ids that frameworks wrap around it, and without request ids and times, which
/// differ each time; `None` if it was masked.
pub(super) fn result_hash(value: &RawValue<'_>) -> Option<u64> {
    hash_of(Json::of(value))
}

/// Returns the hash of a tool's result that is JSON already.
pub(super) fn hash_of(value: Json<'_>) -> Option<u64> {
    let value = read(value);
    let said = text_of(&value).and_then(python::content).map(without_ids);
    let result = said.or_else(|| match &value {
        Json::Text(_) => None,
        Json::List(parts) if parts.iter().all(is_text) => Some(without_ids(value.clone())),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => {
            let content = messages::content_of_tool(&value).map(without_ids);
            let content = content.or_else(|| said_by_sub_agent(&value));
            content.or_else(|| without_stamps(&value)).map(read)
        }
    });
    let value = sorted(stamps::without(result.unwrap_or(value)));
    let mut text = Written::new();
    value.write(&mut text);
    (!masked::is_masked(&text)).then(|| xxh3_64(&text))
}

/// Whether a tool's result states a failure in the terms of a library or a protocol; free text of the tool is never interpreted.
pub(super) fn is_failure(value: &RawValue<'_>) -> bool {
    static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("rror"));
    // Most results contain none of `error`, `isError` and `is_error`.
    if value.as_str().is_some_and(|text| ERROR.find(text.as_bytes()).is_none()) {
        return false;
    }
    let value = read(Json::of(value));
    let in_text = text_of(&value).is_some_and(python::is_failure);
    in_text || (value.as_str().is_none() && messages::failed_tool(&value))
}

/// The text of a result, which may be alone under `output`.
fn text_of<'j>(result: &'j Json<'_>) -> Option<&'j str> {
    let alone = result.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("output"));
    alone.unwrap_or(result).as_str()
}

/// The answer of a sub-agent that was called as a tool: Mastra returns it together with ids of the sub-agent's thread and calls.
fn said_by_sub_agent<'v>(value: &Json<'v>) -> Option<Json<'v>> {
    let map = value.as_object()?;
    let text = map.get("text").filter(|text| text.as_text().is_some())?;
    let others = || map.keys().filter(|key| *key != "text");
    (others().count() > 0 && others().all(|key| key.starts_with("subAgent"))).then(|| text.clone())
}

/// A result in parts with texts, without the ids and times of the result and its parts; `None` if it is not such a result.
fn without_stamps<'v>(result: &Json<'v>) -> Option<Json<'v>> {
    let parts = result.get("content")?.as_list().filter(|parts| !parts.is_empty())?;
    if !parts.iter().all(is_text) {
        return None;
    }
    let entries = lasting(result.as_object()?).into_entries();
    let entries = entries.map(|(key, value)| match &*key {
        "content" => (key, without_ids(value)),
        _ => (key, value),
    });
    Some(Json::Object(entries.collect()))
}

/// A content without the ids and times of its texts, each of which gets an id from LangChain.
fn without_ids(content: Json<'_>) -> Json<'_> {
    let Json::List(parts) = content else { return content };
    Json::List(parts.into_iter().map(without_id).collect())
}

/// A text without its id and times, and with what is in it, as MCP answers in JSON.
fn without_id(part: Json<'_>) -> Json<'_> {
    let Some(text) = part.as_object().filter(|_| is_text(&part)).map(lasting) else { return part };
    let entries = text.into_entries();
    let entries = entries.map(|(key, value)| match &*key {
        "text" => (key, read(value)),
        _ => (key, value),
    });
    Json::Object(entries.collect())
}

/// Whether a part of a content is a text.
fn is_text(part: &Json<'_>) -> bool {
    part.get("type").and_then(Json::as_str) == Some("text")
}

/// The lasting entries of a result or a part: all except ids and times.
fn lasting<'v>(map: &Object<'v>) -> Object<'v> {
    const STAMPS: [&str; 3] = ["id", "created_at", "finished_at"];
    map.clone().into_entries().filter(|(key, _)| !STAMPS.contains(&&**key)).collect()
}

/// Whether a key is a library's bookkeeping rather than an argument or a result.
pub(super) fn is_bookkeeping(key: &str) -> bool {
    BOOKKEEPING.contains(&key) || key == "kwargs"
}

/// The intended JSON value: a string that holds JSON or Python is replaced by its content.
fn read(mut value: Json<'_>) -> Json<'_> {
    for _ in 0..2 {
        let inner = match &value {
            Json::Text(Cow::Borrowed(text)) => inside(text),
            Json::Text(Cow::Owned(text)) => inside(text).map(Json::into_owned),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => None,
        };
        match inner {
            Some(inner) => value = inner,
            None => break,
        }
    }
    value
}

/// The value of a text that holds JSON or Python.
fn inside(text: &str) -> Option<Json<'_>> {
    may_be_json(text).then(|| json::read(text)).flatten().or_else(|| python::parse(text))
}

/// Whether a text begins like JSON, which most texts do not.
fn may_be_json(text: &str) -> bool {
    let first = text.trim_start().bytes().next();
    first.is_some_and(|byte| {
        matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n')
    })
}

/// Whether an object with these keys may be a wrapper around arguments.
fn may_wrap<'k>(mut keys: impl Iterator<Item = &'k str>) -> bool {
    keys.any(|key| WRAPPERS.contains(&key))
}

/// Takes off the wrappers that libraries put around arguments.
fn unwrap(value: Json<'_>) -> Json<'_> {
    if let Some(content) = content_of_call(&value) {
        return read(content);
    }
    let Json::Object(map) = value else { return value };
    if !may_wrap(map.keys()) {
        return Json::Object(map);
    }
    let empty = |value: &Json<'_>| match value {
        Json::List(items) => items.is_empty(),
        Json::Object(entries) => entries.is_empty(),
        Json::Null => true,
        Json::Bool(_) | Json::Number(_) | Json::Text(_) => false,
    };
    let only = |wrapper: &[&str]| {
        map.keys().all(|key| wrapper.contains(&key) || BOOKKEEPING.contains(&key))
    };
    if let Some(Json::Text(text)) = map.get("input_str").filter(|_| only(&["input_str", "kwargs"]))
    {
        return read(Json::Text(text.clone()));
    }
    let (args, kwargs) = (map.get("args"), map.get("kwargs"));
    if !only(&["args", "kwargs"]) {
        return Json::Object(map);
    }
    match (args, kwargs) {
        (args, Some(Json::Object(kwargs))) if args.is_none_or(empty) => {
            Json::Object(kwargs.clone())
        }
        (Some(Json::List(args)), kwargs) if kwargs.is_none_or(empty) => {
            // LangChain.js passes a tool its arguments as one JSON text.
            let inner = args.first().filter(|text| args.len() == 1 && text.as_text().is_some());
            let inner = inner.map(|text| read(text.clone()));
            let inner = inner.filter(|inner| inner.as_object().is_some());
            inner.unwrap_or_else(|| Json::List(args.clone()))
        }
        _ => Json::Object(map),
    }
}

/// The arguments of a call that is written as a single message of the role `tool`, as TanStack AI does.
fn content_of_call<'v>(value: &Json<'v>) -> Option<Json<'v>> {
    let [message] = value.as_list()? else { return None };
    let is_call = message.as_object()?.len() == 2
        && message.get("role").and_then(Json::as_str) == Some("tool");
    message.get("content").filter(|_| is_call).cloned()
}

fn sorted(value: Json<'_>) -> Json<'_> {
    match value {
        Json::Object(map) => Json::Object(map.sorted(sorted)),
        Json::List(items) => Json::List(items.into_iter().map(sorted).collect()),
        other @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical_of(text: &str) -> String {
        canonical(&RawValue::Str(text.into()), true).unwrap().text().unwrap().to_string()
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
            r#"[{"role":"tool","content":"{\"city\":\"Paris\",\"days\":2}"}]"#,
            r#"{"input_str":"{'city': 'Paris', 'days': 2}","tags":["x"],"metadata":{"run":"a1"},"kwargs":{"tool_call_id":"c1"}}"#,
        ] {
            assert_eq!(canonical_of(text), expected, "{text}");
        }
    }

    #[test]
    fn a_value_is_one_with_the_keys_that_it_stands_under() {
        let values =
            |text: &str| canonical(&RawValue::Str(text.into()), false).unwrap().values().to_vec();
        let differ = |one: &str, other: &str| values(one) != values(other);
        // Money goes back; a task is done, the next one begins.
        assert!(differ(r#"{"from":"a","to":"b"}"#, r#"{"from":"b","to":"a"}"#));
        let tasks = |one: &str, two: &str| {
            format!(r#"{{"todos":[{{"id":1,"is":"{one}"}},{{"id":2,"is":"{two}"}}]}}"#)
        };
        assert!(differ(&tasks("done", "begun"), &tasks("begun", "done")));
        assert!(differ(r#"{"args":["a","b"]}"#, r#"{"args":["b","a"]}"#));
        assert!(differ("[[1,2],[3]]", "[[3],[1,2]]"));
        // The order of an inner list of scalars says little.
        assert!(!differ(r#"{"tags":["a","b"],"x":1}"#, r#"{"x":1,"tags":["b","a","b"]}"#));
        // Another library's form of the same call.
        let (bare, named) = (values("\"Paris\""), values(r#"{"city":"Paris"}"#));
        assert!(bare != named && span::is_same_value(bare[0], named[0]));
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
        let sub_agent = r#"{"text":"18 C","subAgentThreadId":"t-1","subAgentToolResults":[{"toolCallId":"c"}]}"#;
        assert_eq!(result("a"), result_hash(&RawValue::Str(sub_agent.into())));
        let other = r#"{"text":"18 C","place":"Paris"}"#;
        assert_ne!(result("a"), result_hash(&RawValue::Str(other.into())));
        let wrapped = r#"{"output":{"lc":1,"type":"constructor","id":["x","ToolMessage"],"kwargs":{"content":"18 C","tool_call_id":"c"}}}"#;
        assert_eq!(result("a"), result_hash(&RawValue::Str(wrapped.into())));
        let bare = r#"{"name":"get_weather","tool_call_id":"d","content":"18 C"}"#;
        assert_eq!(result("a"), result_hash(&RawValue::Str(bare.into())));
        let output = r#"{"type":"function_call_output","call_id":"d","output":"18 C"}"#;
        assert_eq!(result("a"), result_hash(&RawValue::Str(output.into())));
        let bedrock = |id: u8, text: &str| {
            let parts = format!(r#"[{{"text":"{text}"}}]"#);
            let text = format!(r#"{{"toolUseId":"{id}","status":"success","content":{parts}}}"#);
            result_hash(&RawValue::Str(text.into()))
        };
        assert_eq!(bedrock(1, "18 C"), bedrock(2, "18 C"));
        assert_ne!(bedrock(1, "18 C"), bedrock(1, "19 C"));
        let parts = |text: &str, stamp: u8| {
            let part = format!(
                r#"{{"type":"text","text":"{text}","id":"{stamp}","created_at":"{stamp}"}}"#
            );
            let result = format!(r#"{{"content":[{part}],"state":"success","id":"{stamp}"}}"#);
            result_hash(&RawValue::Str(result.into()))
        };
        assert_eq!(parts("18 C", 1), parts("18 C", 2));
        assert_ne!(parts("18 C", 1), parts("19 C", 1));
    }

    #[test]
    fn a_result_is_the_same_whatever_ids_langchain_gave_its_texts() {
        let forms: [fn(&str, &str) -> String; 5] = [
            |parts, id| {
                format!(r#"{{"type":"tool","data":{{"content":{parts},"tool_call_id":"{id}"}}}}"#)
            },
            |parts, id| {
                format!(
                    r#"{{"output":{{"type":"constructor","kwargs":{{"type":"tool","content":{parts},"tool_call_id":"{id}"}}}}}}"#
                )
            },
            |parts, _| parts.to_owned(),
            |parts, id| {
                let parts = parts.replace('"', "'");
                format!("content={parts} name='get_weather' tool_call_id='{id}'")
            },
            |parts, id| {
                let parts = parts.replace('"', "'");
                format!(r#"{{"output":"content={parts} name='f' tool_call_id='{id}'"}}"#)
            },
        ];
        for form in forms {
            let result = |text: &str, id: &str| {
                let parts = format!(r#"[{{"type":"text","text":"{text}","id":"lc_{id}"}}]"#);
                result_hash(&RawValue::Str(form(&parts, id).into()))
            };
            assert_eq!(result("18 C", "a"), result("18 C", "b"));
            assert_ne!(result("18 C", "a"), result("19 C", "a"));
        }
        let things = |id: u8| result_hash(&RawValue::Str(format!(r#"[{{"id":{id}}}]"#).into()));
        assert_ne!(things(1), things(2));
    }

    #[test]
    fn a_result_is_the_same_whenever_it_was_told_and_however_long_it_took() {
        let forms: [fn(&str, u8) -> String; 3] = [
            |rows, at| format!(r#"{{"took_ms":{at},"rows":{rows},"request_id":"{at}f"}}"#),
            |rows, at| format!("{{'rows': {rows}, 'timestamp': '2026-11-30T03:0{at}:00Z'}}"),
            |rows, at| {
                let text = format!(r#"{{\"rows\":{rows},\"took\":{at}}}"#);
                format!(r#"{{"content":[{{"type":"text","text":"{text}"}}],"isError":false}}"#)
            },
        ];
        let hash = |text: String| result_hash(&RawValue::Str(text.into()));
        for form in forms {
            assert_eq!(hash(form("[]", 1)), hash(form("[]", 2)), "{}", form("[]", 1));
            assert_ne!(hash(form("[]", 1)), hash(form("[5]", 1)), "{}", form("[]", 1));
        }
        let tests = |failed: u8, took: u8| hash(format!("{failed} failed in 0.{took}2s"));
        assert!(tests(3, 1) == tests(3, 2) && tests(3, 1) != tests(2, 1));
        let progress = |done: u8| hash(format!(r#"{{"took":1,"done":"{done} %"}}"#));
        assert_ne!(progress(10), progress(20));
    }

    #[test]
    fn a_result_tells_of_a_failure_in_words_of_a_library_or_a_protocol_alone() {
        let is_failure = |text: &str| is_failure(&RawValue::Str(text.to_owned().into()));
        for failed in [
            r#"{"type":"tool","data":{"content":"no order","tool_call_id":"c","status":"error"}}"#,
            r#"{"output":{"lc":1,"type":"constructor","id":["x","ToolMessage"],"kwargs":{"content":"no order","type":"tool","tool_call_id":"c","status":"error"}},"kwargs":{"name":"x"}}"#,
            r#"{"output":{"content":"no order","type":"tool","tool_call_id":"c","status":"error"}}"#,
            "content='no order' name='get_order' tool_call_id='c' status='error'",
            "content=[{'type': 'text', 'text': 'no order'}] tool_call_id='c' status='error'",
            r#"{"content":[{"type":"text","text":"no order"}],"isError":true}"#,
            r#"{"type":"tool_result","tool_use_id":"c","is_error":true,"content":"no order"}"#,
            r#"{"toolUseId":"c","status":"error","content":[{"text":"no order"}]}"#,
        ] {
            assert!(is_failure(failed), "{failed}");
        }
        for answer in [
            "error: no order",
            r#"{"status":"error","order":null}"#,
            r#"{"error":"no order"}"#,
            r#"{"isError":true}"#,
            r#"{"type":"tool","data":{"content":"{\"status\":\"error\"}","tool_call_id":"c","status":"success"}}"#,
            "content='tool_call_id= status=error' tool_call_id='c'",
            "tool_call_id='c' status='error'",
        ] {
            assert!(!is_failure(answer), "{answer}");
        }
    }
}
