//! Chat messages, in the shapes that libraries write them: what the user asked, what the assistant said and which
//! tools the model called.
//!
//! Understood are the GenAI convention's parts, the chat APIs' `content` and `tool_calls`, and LangChain's
//! serialised messages; alone, in lists, and under `messages`, `generations` or `choices`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::arguments;
use super::raw::RawValue;
use crate::engine::span::ToolFacts;

/// How deep a message may hide in wrappers.
const MAX_DEPTH: usize = 6;

/// Names under which a wrapper keeps the user's text, and the assistant's.
const USER_KEYS: [&str; 7] =
    ["input", "question", "query", "prompt", "user_input", "task", "content"];
const ASSISTANT_KEYS: [&str; 8] =
    ["output", "answer", "response", "result", "final_answer", "text", "content", "return_value"];

/// Who said something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    User,
    Assistant,
    Tool,
    Other,
}

/// The JSON value of an attribute: a string that holds JSON stays a string.
pub(super) fn json(value: &RawValue<'_>) -> Value {
    match value {
        RawValue::Null => Value::Null,
        RawValue::Str(text) => Value::String(text.to_string()),
        RawValue::Bool(value) => Value::Bool(*value),
        RawValue::Int(value) => Value::from(*value),
        RawValue::Double(value) => {
            serde_json::Number::from_f64(*value).map_or(Value::Null, Value::Number)
        }
        RawValue::Bytes(bytes) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
        RawValue::Array(items) => Value::Array(items.iter().map(json).collect()),
        RawValue::Map(entries) => Value::Object(
            entries
                .iter()
                .map(|(key, value)| (key.to_string(), json(value)))
                .collect::<Map<_, _>>(),
        ),
    }
}

/// The JSON value of an attribute that holds JSON, as text or as structure; `None` for plain text.
pub(super) fn parsed(value: &RawValue<'_>) -> Option<Value> {
    match json(value) {
        Value::String(text) if text.trim_start().starts_with(['{', '[', '"']) => {
            serde_json::from_str(&text).ok()
        }
        Value::String(_) | Value::Null => None,
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Some(other)
        }
    }
}

/// What the user asked, from an attribute that holds messages or plain text: the last user message.
pub(super) fn user_text(value: &RawValue<'_>) -> Option<String> {
    text_of(value, Role::User, &USER_KEYS)
}

/// What the assistant said, from an attribute that holds messages or plain text: its last message.
pub(super) fn assistant_text(value: &RawValue<'_>) -> Option<String> {
    text_of(value, Role::Assistant, &ASSISTANT_KEYS)
}

/// The tool calls of a model's output, in order.
pub(super) fn tool_calls(value: &RawValue<'_>) -> Vec<ToolFacts> {
    let mut calls = Vec::new();
    if let Some(value) = parsed(value) {
        collect_calls(&value, &mut calls, 0);
    }
    calls
}

/// The tool calls of one message.
pub(super) fn calls_of_message(message: &Value) -> Vec<ToolFacts> {
    let mut calls = Vec::new();
    collect_calls(message, &mut calls, 0);
    calls
}

/// The content of a message from a tool, without the ids around it; `None` if it is no such message.
pub(super) fn content_of_tool(value: &Value) -> Option<Value> {
    let wrapped = value.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("output"));
    let value = wrapped.unwrap_or(value);
    let message = body(value)?;
    (role(value) == Some(Role::Tool)).then(|| message.get("content").cloned()).flatten()
}

fn text_of(value: &RawValue<'_>, wanted: Role, keys: &[&str]) -> Option<String> {
    let plain = || value.as_str().map(str::to_owned);
    let text = match parsed(value) {
        Some(Value::String(text)) => Some(text),
        Some(parsed) if has_messages(&parsed, 0) => last_text(&parsed, wanted, 0),
        Some(Value::Object(map)) if wanted == Role::User && is_call(&map) => last_argument(&map),
        Some(Value::Object(map)) => {
            let named = keys.iter().find_map(|key| map.get(*key).and_then(Value::as_str));
            named.map(str::to_owned).or_else(plain).or_else(|| Some(Value::Object(map).to_string()))
        }
        Some(other) => plain().or_else(|| Some(other.to_string())),
        None => plain(),
    };
    text.filter(|text| !text.is_empty())
}

/// Whether a value is what a decorated function was called with.
fn is_call(map: &Map<String, Value>) -> bool {
    !map.is_empty() && map.keys().all(|key| key == "args" || key == "kwargs")
}

/// The text that a decorated function was called with: its last by place, else by name.
fn last_argument(call: &Map<String, Value>) -> Option<String> {
    let by_place = call.get("args").and_then(Value::as_array).into_iter().flatten();
    let by_name = call.get("kwargs").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let text = by_place
        .filter_map(Value::as_str)
        .next_back()
        .or_else(|| by_name.filter_map(Value::as_str).next_back());
    text.map(str::to_owned)
}

/// Whether there are messages anywhere in the wrappers that we know.
fn has_messages(value: &Value, depth: usize) -> bool {
    role(value).is_some()
        || (depth < MAX_DEPTH && children(value).any(|child| has_messages(child, depth + 1)))
}

/// The text of the last message of a role that has one, in document order.
fn last_text(value: &Value, wanted: Role, depth: usize) -> Option<String> {
    match role(value) {
        Some(role) if role == wanted => message_text(value),
        Some(_) => None,
        None if depth < MAX_DEPTH => {
            let children: Vec<&Value> = children(value).collect();
            children.into_iter().rev().find_map(|child| last_text(child, wanted, depth + 1))
        }
        None => None,
    }
}

/// What a list or a known wrapper holds.
fn children(value: &Value) -> impl Iterator<Item = &Value> {
    const WRAPPERS: [&str; 8] =
        ["messages", "generations", "choices", "message", "update", "output", "outputs", "input"];
    let items = value.as_array().into_iter().flatten();
    let inside = WRAPPERS
        .iter()
        .filter_map(|key| value.get(*key))
        .filter(|child| child.is_array() || child.is_object());
    items.chain(inside)
}

/// Who said a message; `None` if the value is no message.
fn role(value: &Value) -> Option<Role> {
    let map = value.as_object()?;
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    // LangChain's constructors name their class as the last part of `id`.
    let class =
        || map.get("id").and_then(Value::as_array).and_then(|id| id.last()).and_then(Value::as_str);
    let name = match (text("role"), text("type")) {
        (Some(role), _) => role,
        (None, Some("constructor")) => class()?,
        (None, Some(kind)) if map.contains_key("content") || map.contains_key("data") => kind,
        (None, _) => return None,
    };
    Some(match name.to_ascii_lowercase().as_str() {
        "user" | "human" | "humanmessage" => Role::User,
        "assistant" | "ai" | "model" | "aimessage" | "aimessagechunk" => Role::Assistant,
        "tool" | "toolmessage" => Role::Tool,
        "text" | "tool_call" | "image_url" | "tool_use" | "reasoning" => return None,
        _ => Role::Other,
    })
}

/// Where a message keeps its fields.
fn body(value: &Value) -> Option<&Map<String, Value>> {
    let map = value.as_object()?;
    let inner = ["data", "kwargs"].iter().find_map(|key| map.get(*key).and_then(Value::as_object));
    Some(inner.unwrap_or(map))
}

fn message_text(message: &Value) -> Option<String> {
    let body = body(message)?;
    let content = ["parts", "content"]
        .iter()
        .find_map(|key| body.get(*key).filter(|content| !content.is_null()))?;
    let text = match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(part_text).collect::<Vec<_>>().join("\n"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            part_text(content)?.to_owned()
        }
    };
    (!text.is_empty()).then_some(text)
}

fn part_text(part: &Value) -> Option<&str> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
    let own = || part.get("content").or_else(|| part.get("text")).and_then(Value::as_str);
    part.as_str()
        .or_else(|| matches!(kind, "text" | "output_text" | "input_text").then(own).flatten())
}

/// Tool calls as parts, as `tool_calls` of a message, or of the messages inside.
fn collect_calls(value: &Value, calls: &mut Vec<ToolFacts>, depth: usize) {
    let Some(body) =
        body(value).filter(|_| role(value).is_some() || value.get("tool_calls").is_some())
    else {
        if depth < MAX_DEPTH {
            children(value).for_each(|child| collect_calls(child, calls, depth + 1));
        }
        return;
    };
    if role(value).is_some_and(|role| role != Role::Assistant) {
        return;
    }
    let list = |key: &str| body.get(key).and_then(Value::as_array).into_iter().flatten();
    let is_call = |part: &&Value| {
        matches!(
            part.get("type").and_then(Value::as_str),
            Some("tool_call" | "tool_use" | "function_call")
        )
    };
    calls.extend(list("parts").chain(list("content")).filter(is_call).filter_map(call));
    if calls.is_empty() || !list("tool_calls").any(|_| true) {
        calls.extend(list("tool_calls").filter_map(call));
    }
}

fn call(value: &Value) -> Option<ToolFacts> {
    let function = value.get("function").unwrap_or(value);
    let name = function.get("name").and_then(Value::as_str)?;
    let arguments = ["arguments", "args", "input"].iter().find_map(|key| function.get(*key));
    let raw = |value: &Value| {
        RawValue::Str(value.as_str().map_or_else(|| value.to_string(), str::to_owned).into())
    };
    Some(ToolFacts {
        name: Some(Arc::from(name)),
        call_id: value.get("id").and_then(Value::as_str).map(Arc::from),
        arguments: arguments
            .filter(|value| !value.is_null())
            .map(|value| arguments::canonical(&raw(value))),
        result_hash: None,
        phantom: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawValue<'_> {
        RawValue::Str(text.into())
    }

    #[test]
    fn the_last_user_message_is_what_was_asked() {
        for text in [
            r#"[{"role":"user","parts":[{"type":"text","content":"old"}]},{"role":"user","parts":[{"type":"text","content":"Hi"}]}]"#,
            r#"[{"role":"user","content":"old"},{"role":"assistant","content":"x"},{"role":"user","content":[{"type":"text","text":"Hi"}]}]"#,
            r#"{"messages":[[{"lc":1,"type":"constructor","id":["langchain","schema","messages","HumanMessage"],"kwargs":{"content":"Hi","type":"human"}}]]}"#,
            r#"{"messages":[{"type":"human","data":{"content":"Hi"}},{"type":"ai","data":{"content":"x"}}]}"#,
            r#"{"question":"Hi"}"#,
            "Hi",
        ] {
            assert_eq!(user_text(&raw(text)).as_deref(), Some("Hi"), "{text}");
        }
    }

    #[test]
    fn the_last_assistant_message_is_the_answer() {
        for text in [
            r#"[{"role":"assistant","parts":[{"type":"text","content":"Hello"},{"type":"tool_call","name":"f"}]}]"#,
            r#"{"generations":[[{"text":"Hello","type":"ChatGeneration","message":{"lc":1,"type":"constructor","id":["x","AIMessage"],"kwargs":{"content":"Hello"}}}]]}"#,
            r#"{"choices":[{"message":{"role":"assistant","content":"Hello"}}]}"#,
            r#"{"answer":"Hello"}"#,
            "Hello",
        ] {
            assert_eq!(assistant_text(&raw(text)).as_deref(), Some("Hello"), "{text}");
        }
        // Structured output is its own text; a call without text is none.
        assert_eq!(
            assistant_text(&raw(r#"{"city":"Paris"}"#)).as_deref(),
            Some(r#"{"city":"Paris"}"#)
        );
        assert_eq!(
            assistant_text(&raw(
                r#"[{"role":"assistant","parts":[{"type":"tool_call","name":"f"}]}]"#
            )),
            None
        );
    }

    #[test]
    fn calls_come_from_the_assistant_alone() {
        for text in [
            r#"[{"role":"assistant","parts":[{"type":"tool_call","id":"1","name":"f","arguments":{"b":1,"a":2}}]}]"#,
            r#"[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]}]"#,
            r#"{"messages":[{"type":"ai","data":{"content":"","tool_calls":[{"name":"f","args":{"a":2,"b":1},"id":"1"}]}}]}"#,
        ] {
            let calls = tool_calls(&raw(text));
            assert_eq!(calls.len(), 1, "{text}");
            assert_eq!(calls[0].name.as_deref(), Some("f"));
            assert_eq!(calls[0].arguments.as_ref().unwrap().as_str(), r#"{"a":2,"b":1}"#);
        }
        let tool =
            r#"[{"role":"tool","parts":[{"type":"tool_call_response","id":"1","result":"x"}]}]"#;
        assert_eq!(tool_calls(&raw(tool)), []);
    }
}
