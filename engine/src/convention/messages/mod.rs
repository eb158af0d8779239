//! Chat messages, in the shapes that libraries write: the user's question, the assistant's answer, the model's tool calls, and
//! their results.
//!
//! Understood are the GenAI convention's parts, the chat and responses APIs of OpenAI, Anthropic's and Bedrock's
//! content blocks, Gemini's contents, the AI SDK's and LangChain's serialised messages; alone, in lists, and under
//! the wrappers of [`WRAPPERS`].

#[cfg(test)]
mod tests;
mod texts;

use std::borrow::Cow;
use std::iter;
use std::sync::Arc;

use super::draft::lower;
use super::json::{self, Json, Object};
use super::raw::RawValue;
use super::{arguments, python};
use crate::span::{IdHash, ToolFacts, ToolResult};
use texts::texts;

/// Bytes above which a list of messages is read from its end.
const LONG_BYTES: usize = 4_096;

/// How deep a message may be inside wrappers.
const MAX_DEPTH: usize = 6;

/// Keys under which messages may be.
const WRAPPERS: [&str; 12] = [
    "messages",
    "replies",
    "contents",
    "generations",
    "choices",
    "candidates",
    "message",
    "update",
    "output",
    "outputs",
    "content",
    "response",
];

/// The key under which a wrapper has its input: the latest part of an input, but before everything else in an output.
const CAME_IN: [&str; 1] = ["input"];

/// Names under which a wrapper keeps the user's text, and the assistant's.
const USER_KEYS: [&str; 8] =
    ["input", "question", "query", "prompt", "user_input", "task", "content", "text"];
const ASSISTANT_KEYS: [&str; 9] = [
    "output",
    "answer",
    "response",
    "result",
    "final_answer",
    "text",
    "content",
    "return_value",
    "raw",
];

/// The author of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    User,
    Assistant,
    Tool,
    Other,
}

impl Role {
    /// The role of this name; `None` if it is not the name of a role.
    fn named(name: &str) -> Option<Self> {
        Some(match &*lower(name) {
            "user" | "human" | "humanmessage" => Self::User,
            "assistant" | "ai" | "model" | "aimessage" | "aimessagechunk" => Self::Assistant,
            "tool" | "toolmessage" | "function" | "tool-response" => Self::Tool,
            "text" | "tool_call" | "tool_call_response" | "tool_result" | "tool-result"
            | "tool-call" | "image_url" | "tool_use" | "reasoning" | "thinking" | "uri"
            | "blob" | "file" => return None,
            _ => Self::Other,
        })
    }
}

/// The facts of an input.
#[derive(Debug, Default, PartialEq)]
pub(super) struct InputFacts<'v> {
    /// The text of the last user message that has one.
    pub(super) text: Option<Cow<'v, str>>,
    /// Results of tools after the last message that has none: this call is the first to see them.
    pub(super) results: Vec<ToolResult>,
    /// Whether a user's message comes last, instructions aside, or there are only instructions.
    pub(super) by_user: Option<bool>,
    /// Whether the text is not a message but the written form of some other value.
    pub(super) loose: bool,
}

/// The facts of an output.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OutputFacts<'v> {
    /// The text of the last assistant message after the last user's that has one.
    pub(super) text: Option<Cow<'v, str>>,
    /// The tool calls after the last user's message, in order.
    pub(super) calls: Vec<ToolFacts>,
    /// Whether the text is not a message but the written form of some other value.
    pub(super) loose: bool,
}

/// The calls in a list of messages, and the results, each in order.
pub(super) fn exchanged(history: &[Json<'_>]) -> (Vec<ToolFacts>, Vec<ToolResult>) {
    let mut messages = Vec::new();
    history.iter().for_each(|message| collect(message, Role::User, &mut messages, 0));
    let calls = messages.iter().flat_map(Message::calls).collect();
    (calls, messages.iter().flat_map(Message::results).collect())
}

/// The JSON value of an attribute that holds JSON or Python, as text or as structure; `None` for plain text.
pub(super) fn parsed<'v>(value: &'v RawValue<'_>) -> Option<Json<'v>> {
    let Some(text) = value.as_str() else {
        return (!matches!(value, RawValue::Null)).then(|| Json::of(value));
    };
    if !text.trim_start().starts_with(['{', '[', '"']) {
        return None;
    }
    json::read(text).or_else(|| python::parse(text))
}

/// Reads an attribute that holds a model's or an agent's input: messages or plain text.
pub(super) fn asked<'v>(value: &'v RawValue<'_>) -> InputFacts<'v> {
    let long = value.as_str().filter(|text| text.len() > LONG_BYTES);
    long.and_then(asked_last).unwrap_or_else(|| asked_in_all(value))
}

/// Reads the end of a list of messages, as a history is as long as its session; `None` if the end does not suffice. The rest is
/// only checked to be JSON.
fn asked_last(text: &str) -> Option<InputFacts<'_>> {
    let items = json::items(text)?;
    let few = iter::successors(Some(2), |few| Some(few * 2)).take_while(|few| *few < items.len());
    few.into_iter().find_map(|few| {
        let last = items[items.len() - few..].iter().map(|item| json::parse(item));
        let last = Json::List(last.collect::<Option<_>>()?);
        let mut messages = Vec::new();
        collect(&last, Role::User, &mut messages, 0);
        let (asked, whole) = asked_by(&messages);
        (whole && asked.text.is_some()).then_some(asked)
    })
}

fn asked_in_all<'v>(value: &'v RawValue<'_>) -> InputFacts<'v> {
    if let Some((text, last)) = value.as_str().and_then(|list| texts(list, Role::User)) {
        let by_user = Some(last != Role::Assistant);
        return InputFacts { text, by_user, ..InputFacts::default() };
    }
    let parsed = parsed(value);
    let messages =
        parsed.as_ref().map(|parsed| messages_in(parsed, Role::User)).unwrap_or_default();
    if !messages.is_empty() {
        return asked_by(&messages).0;
    }
    let only = |map: &Object<'v>| {
        let only = map.values().next().filter(|_| map.len() == 1)?;
        only.as_text().cloned()
    };
    let (text, loose) = match &parsed {
        None => plain(value),
        Some(Json::Object(map)) if is_call(map) => (last_argument(map), false),
        Some(Json::Object(map)) => match named(map, &USER_KEYS).cloned().or_else(|| only(map)) {
            Some(text) => (Some(text), false),
            None => (as_it_is(value, &parsed), true),
        },
        Some(Json::Text(text)) => (Some(text.clone()), false),
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_)) => {
            (as_it_is(value, &parsed), true)
        }
    };
    let text = text.filter(|text| !text.is_empty());
    InputFacts { by_user: text.is_some().then_some(true), text, results: Vec::new(), loose }
}

/// Reads an attribute that holds the output of a model or an agent: messages or plain text.
pub(super) fn said<'v>(value: &'v RawValue<'_>) -> OutputFacts<'v> {
    if let Some((text, _)) = value.as_str().and_then(|list| texts(list, Role::Assistant)) {
        return OutputFacts { text, ..OutputFacts::default() };
    }
    let parsed = parsed(value);
    let messages =
        parsed.as_ref().map(|parsed| messages_in(parsed, Role::Assistant)).unwrap_or_default();
    if !messages.is_empty() {
        return said_in(&messages);
    }
    let (text, loose) = match &parsed {
        None => plain(value),
        Some(Json::Text(text)) => (Some(text.clone()), false),
        Some(Json::Object(map)) => match named(map, &ASSISTANT_KEYS) {
            Some(text) => (Some(text.clone()), false),
            None => (as_it_is(value, &parsed), true),
        },
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_)) => {
            (as_it_is(value, &parsed), true)
        }
    };
    OutputFacts { text: text.filter(|text| !text.is_empty()), calls: Vec::new(), loose }
}

/// Plain text, and whether it is the `repr` of an object.
fn plain<'v>(value: &'v RawValue<'_>) -> (Option<Cow<'v, str>>, bool) {
    let text = value.as_str();
    (text.map(Cow::Borrowed), text.is_some_and(python::is_object))
}

/// A value as it was written; `None` if it is empty.
fn as_it_is<'v>(value: &'v RawValue<'_>, parsed: &Option<Json<'_>>) -> Option<Cow<'v, str>> {
    let parsed = parsed.as_ref()?;
    let empty = match parsed {
        Json::Null => true,
        Json::List(items) => items.is_empty(),
        Json::Object(map) => map.is_empty(),
        Json::Bool(_) | Json::Number(_) | Json::Text(_) => false,
    };
    let text = || value.as_str().map_or_else(|| parsed.to_string().into(), Cow::Borrowed);
    (!empty).then(text)
}

/// Reads a model's answer from a list of the convention's events; the others are its input.
pub(super) fn choices<'v>(value: &'v RawValue<'_>) -> OutputFacts<'v> {
    let Some(Json::List(events)) = parsed(value) else { return OutputFacts::default() };
    let choices = events
        .iter()
        .filter(|event| event.get("event.name").and_then(Json::as_str) == Some("gen_ai.choice"));
    let messages: Vec<Message<'_, 'v>> =
        choices.flat_map(|choice| messages_in(choice, Role::Assistant)).collect();
    said_in(&messages)
}

/// The content of a message from a tool, without the ids around it; `None` if it is not such a message.
pub(super) fn content_of_tool<'v>(value: &Json<'v>) -> Option<Json<'v>> {
    let message = message_of_tool(value)?;
    let key = if is_item(message, "function_call_output") { "output" } else { "content" };
    message.get(key).cloned()
}

/// A message from a tool, also if it is wrapped; `None` if it is not such a message.
fn message_of_tool<'t, 'v>(value: &'t Json<'v>) -> Option<&'t Object<'v>> {
    let wrapped = value.as_object().and_then(|map| map.get("output")).filter(|inner| {
        let mut keys = value.as_object().into_iter().flat_map(Object::keys);
        inner.as_object().is_some()
            && keys.all(|key| key == "output" || arguments::is_bookkeeping(key))
    });
    let value = wrapped.unwrap_or(value);
    let message = body(value)?;
    let is_message =
        role(value) == Some(Role::Tool) || CALL_IDS.iter().any(|id| message.contains_key(id));
    is_message.then_some(message)
}

/// Whether a tool's result states a failure: in a message or a part of one, or in MCP's terms.
pub(super) fn failed_tool(value: &Json<'_>) -> bool {
    let message = message_of_tool(value).is_some_and(|message| result_of(message).failed);
    let of_mcp = value.get("isError") == Some(&Json::Bool(true))
        && value.get("content").and_then(Json::as_list).is_some();
    message || of_mcp || result_in(value).is_some_and(|result| result.failed)
}

/// The name in a message from a tool; `None` if it is not such a message or has no name.
pub(super) fn name_of_tool(value: &RawValue<'_>) -> Option<String> {
    let value = parsed(value)?;
    let value = value.get("output").filter(|inner| inner.as_object().is_some()).unwrap_or(&value);
    let name = body(value)?.get("name")?.as_str().filter(|name| !name.is_empty())?;
    (role(value) == Some(Role::Tool)).then(|| name.to_owned())
}

/// A message, or bare content whose role follows from where it was.
struct Message<'t, 'v> {
    role: Role,
    body: Option<&'t Object<'v>>,
    content: Option<&'t Json<'v>>,
}

/// The messages in a value, in document order; bare content counts as one of `role`.
fn messages_in<'t, 'v>(value: &'t Json<'v>, role: Role) -> Vec<Message<'t, 'v>> {
    let mut found = Vec::new();
    collect(value, role, &mut found, 0);
    let is_content = |item: &Json<'_>| {
        item.as_object().is_some()
            && (part_text(item).is_some() || call_in(item).is_some() || result_in(item).is_some())
    };
    if found.is_empty()
        && let Some(items) = value.as_list().filter(|items| !items.is_empty())
        && items.iter().all(is_content)
    {
        found.push(Message { role, body: None, content: Some(value) });
    }
    found
}

fn collect<'t, 'v>(
    value: &'t Json<'v>,
    whose: Role,
    found: &mut Vec<Message<'t, 'v>>,
    depth: usize,
) {
    if let Some(role) = role(value) {
        let body = body(value);
        let content = body.and_then(|body| {
            let keys = ["parts", "content", "text"].iter();
            keys.filter_map(|key| body.get(key)).find(|content| **content != Json::Null)
        });
        found.push(Message { role, body, content });
    } else if depth < MAX_DEPTH {
        let items = value.as_list().into_iter().flatten();
        let (first, last) = match whose {
            Role::User => (&[][..], &CAME_IN[..]),
            Role::Assistant | Role::Tool | Role::Other => (&CAME_IN[..], &[][..]),
        };
        let keys = first.iter().chain(&WRAPPERS).chain(last);
        let keys = keys.filter(|_| value.as_object().is_some());
        let inside = keys.filter_map(|key| value.get(key)).filter(|child| !child.is_scalar());
        items.chain(inside).for_each(|child| collect(child, whose, found, depth + 1));
    }
}

/// The facts of the last messages, and whether they reach back to one without results, so that all results after it are included.
fn asked_by<'v>(messages: &[Message<'_, 'v>]) -> (InputFacts<'v>, bool) {
    let mut results: Vec<ToolResult> = Vec::new();
    let (mut by_user, mut whole) = (None, false);
    for message in messages.iter().rev() {
        let own = message.results();
        // Instructions may come anywhere, and are by none of the participants.
        if own.is_empty() && message.role == Role::Other {
            continue;
        }
        if own.is_empty() {
            by_user = by_user.or_else(|| Some(message.role == Role::User));
            whole = true;
            break;
        }
        by_user = by_user.or_else(|| Some(message.role == Role::User && message.text().is_some()));
        // From the last one backwards.
        results.extend(own.into_iter().rev());
    }
    results.reverse();
    let by_user = by_user.or_else(|| (!messages.is_empty()).then_some(true));
    let users = messages.iter().rev().filter(|message| message.role == Role::User);
    let text = users.into_iter().find_map(Message::text);
    (InputFacts { text, results, by_user, loose: false }, whole)
}

/// The facts of the messages after the last one of a user: earlier ones may belong to earlier turns, as in the state of a graph.
fn said_in<'v>(messages: &[Message<'_, 'v>]) -> OutputFacts<'v> {
    let earlier = messages.iter().rposition(Message::is_of_user).map_or(0, |at| at + 1);
    let own = messages[earlier..].iter().filter(|message| message.role == Role::Assistant);
    let own: Vec<&Message<'_, '_>> = own.collect();
    let last = own.iter().rposition(|message| message.text().is_some());
    OutputFacts {
        text: last.and_then(|last| whole(&own[..=last])),
        calls: own.iter().flat_map(|message| message.calls()).collect(),
        loose: false,
    }
}

/// The text of the last message, joined with the preceding pieces of it, as ADK sends a streamed answer.
fn whole<'v>(messages: &[&Message<'_, 'v>]) -> Option<Cow<'v, str>> {
    let (last, before) = messages.split_last()?;
    let pieces = before.iter().rev().take_while(|message| message.is_piece()).count();
    let pieces = before[before.len() - pieces..].iter().filter_map(|piece| piece.text());
    let text = last.text()?;
    let mut call_key = pieces.collect::<String>();
    if call_key.is_empty() {
        return Some(text);
    }
    call_key.push_str(&text);
    Some(call_key.into())
}

impl<'t, 'v> Message<'t, 'v> {
    /// Whether it is by a user and has more than tool results.
    fn is_of_user(&self) -> bool {
        self.role == Role::User && (self.results().is_empty() || self.text().is_some())
    }

    fn text(&self) -> Option<Cow<'v, str>> {
        let text = match self.content? {
            Json::Text(text) => text.clone(),
            Json::List(parts) => call_key(parts),
            other @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) => {
                match other.get("parts").and_then(Json::as_list) {
                    Some(parts) => call_key(parts),
                    None => part_text(other)?.clone(),
                }
            }
        };
        (!text.is_empty()).then_some(text)
    }

    /// Whether the answer continues in the next message: its finish reason is present and empty.
    fn is_piece(&self) -> bool {
        let reason = self.body.and_then(|body| body.get("finish_reason"));
        reason.is_some_and(|reason| reason.as_str() == Some(""))
    }

    fn parts(&self) -> &'t [Json<'v>] {
        self.content.and_then(Json::as_list).unwrap_or_default()
    }

    /// Tool calls as parts, else those listed beside the content.
    fn calls(&self) -> Vec<ToolFacts> {
        let parts: Vec<ToolFacts> = self.parts().iter().filter_map(call_in).collect();
        if !parts.is_empty() {
            return parts;
        }
        let Some(body) = self.body else { return parts };
        let listed = ["tool_calls", "toolCalls"].iter().filter_map(|key| body.get(key)?.as_list());
        // As the provider sent them; older versions of LangChain have nothing else.
        let sent = || body.get("additional_kwargs")?.get("tool_calls")?.as_list();
        let listed: Vec<ToolFacts> = listed.flatten().filter_map(call).collect();
        let listed = if listed.is_empty() {
            sent().into_iter().flatten().filter_map(call).collect()
        } else {
            listed
        };
        if !listed.is_empty() {
            return listed;
        }
        let alone = if is_item(body, "function_call") {
            call_of(body)
        } else {
            body.get("function_call").and_then(call)
        };
        alone.into_iter().collect()
    }

    /// Results as parts, else the message itself where a tool sent it.
    fn results(&self) -> Vec<ToolResult> {
        let parts: Vec<ToolResult> = self.parts().iter().filter_map(result_in).collect();
        if !parts.is_empty() || self.role != Role::Tool {
            return parts;
        }
        self.body.map(result_of).into_iter().collect()
    }
}

/// The texts of parts, each on lines of its own.
fn call_key<'v>(parts: &[Json<'v>]) -> Cow<'v, str> {
    let mut texts = parts.iter().filter_map(part_text);
    let Some(first) = texts.next() else { return Cow::default() };
    let mut call_key = first.clone();
    for text in texts {
        let call_key = call_key.to_mut();
        call_key.push('\n');
        call_key.push_str(text);
    }
    call_key
}

/// Whether a value holds the arguments of a decorated function.
fn is_call(map: &Object<'_>) -> bool {
    !map.is_empty() && map.keys().all(|key| key == "args" || key == "kwargs")
}

/// The last text among the arguments of a decorated function, by position or else by name.
fn last_argument<'v>(call: &Object<'v>) -> Option<Cow<'v, str>> {
    let by_place = call.get("args").and_then(Json::as_list).into_iter().flatten();
    let by_name = call.get("kwargs").and_then(Json::as_object).into_iter().flat_map(Object::values);
    let text = by_place
        .filter_map(Json::as_text)
        .next_back()
        .or_else(|| by_name.filter_map(Json::as_text).next_back());
    text.cloned()
}

fn named<'t, 'v>(map: &'t Object<'v>, keys: &[&str]) -> Option<&'t Cow<'v, str>> {
    keys.iter().find_map(|key| map.get(key).and_then(Json::as_text))
}

/// The author of a message; `None` if the value is not a message.
fn role(value: &Json<'_>) -> Option<Role> {
    let map = value.as_object()?;
    let text = |key: &str| map.get(key).and_then(Json::as_str);
    // LangChain's constructors name their class as the last part of `id`.
    let class =
        || map.get("id").and_then(Json::as_list).and_then(|id| id.last()).and_then(Json::as_str);
    let name = match (text("role"), text("type")) {
        (Some(role), _) => role,
        (None, Some("constructor")) => class()?,
        (None, Some("function_call")) => "assistant",
        (None, Some("function_call_output")) => "tool",
        (None, Some(kind)) if map.contains_key("content") || map.contains_key("data") => kind,
        // An answer by Mastra.
        (None, _) if map.get("toolCalls").is_some_and(|calls| calls.as_list().is_some()) => {
            "assistant"
        }
        (None, _) => return None,
    };
    Role::named(name)
}

/// The object that has the fields of a message.
fn body<'t, 'v>(value: &'t Json<'v>) -> Option<&'t Object<'v>> {
    let map = value.as_object()?;
    let inner = ["data", "kwargs"].iter().find_map(|key| map.get(key).and_then(Json::as_object));
    Some(inner.unwrap_or(map))
}

fn is_item(map: &Object<'_>, kind: &str) -> bool {
    map.get("type").and_then(Json::as_str) == Some(kind)
}

fn part_text<'t, 'v>(part: &'t Json<'v>) -> Option<&'t Cow<'v, str>> {
    let kind = ["type", "kind"].iter().find_map(|key| part.get(key)?.as_str()).unwrap_or("text");
    let own = || part.get("content").or_else(|| part.get("text")).and_then(Json::as_text);
    part.as_text()
        .or_else(|| matches!(kind, "text" | "output_text" | "input_text").then(own).flatten())
}

/// The tool call in a part.
fn call_in(part: &Json<'_>) -> Option<ToolFacts> {
    match part.get("type").or_else(|| part.get("kind")).and_then(Json::as_str) {
        Some(
            "tool_call" | "tool_use" | "function_call" | "tool-call" | "server_tool_use"
            | "server_tool_call",
        ) => call(part),
        Some(_) => None,
        None if part.get("toolName").is_some() => call(part),
        // Bedrock, Gemini, Haystack and Genkit name the kind by the key.
        None => {
            let mut keys =
                ["toolUse", "function_call", "functionCall", "tool_call", "toolRequest"].iter();
            call(keys.find_map(|key| part.get(key))?)
        }
    }
}

/// The tool result in a part.
fn result_in(part: &Json<'_>) -> Option<ToolResult> {
    match part.get("type").or_else(|| part.get("kind")).and_then(Json::as_str) {
        Some(
            "tool_call_response"
            | "tool_result"
            | "tool-result"
            | "tool-return"
            | "server_tool_call_response"
            | "server_tool_result"
            | "function_call_output"
            | "tool-error",
        ) => part.as_object().map(result_of),
        Some(_) => None,
        None => {
            let keys = ["toolResult", "function_response", "functionResponse"];
            let mut keys = keys.iter().chain(&["tool_call_result", "toolResponse"]);
            keys.find_map(|key| part.get(key)?.as_object()).map(result_of)
        }
    }
}

fn call(value: &Json<'_>) -> Option<ToolFacts> {
    call_of(value.get("function").unwrap_or(value).as_object()?).map(|call| ToolFacts {
        call_id: call.call_id.or_else(|| value.as_object().and_then(id_of)),
        ..call
    })
}

fn call_of(function: &Object<'_>) -> Option<ToolFacts> {
    let name = named(function, &["name", "toolName", "tool_name"])?;
    let arguments =
        ["arguments", "args", "input", "toolInput"].iter().find_map(|key| function.get(key));
    let canonical = |value: &Json<'_>| {
        // As if it had been sent as text, so that both forms are equal.
        let text = value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed);
        arguments::canonical(&RawValue::Str(text), true)
    };
    Some(ToolFacts {
        name: Some(Arc::from(&**name)),
        call_id: id_of(function),
        arguments: arguments.filter(|value| **value != Json::Null).and_then(canonical),
        result_hash: None,
        phantom: false,
    })
}

/// Keys under which a tool's message has the id of its call.
const CALL_IDS: [&str; 4] = ["tool_call_id", "toolCallId", "toolUseId", "tool_use_id"];

/// The id of a call, under any of its names; an item's own `id` counts only if there is no other. Haystack's results contain the
/// call.
fn id_of(map: &Object<'_>) -> Option<IdHash> {
    let keys = ["call_id", "tool_call_id", "toolCallId", "toolUseId", "tool_use_id", "ref", "id"];
    let of_call = || named(map.get("origin")?.as_object()?, &["id"]);
    named(map, &keys).or_else(of_call).map(|id| IdHash::from(&**id))
}

fn result_of(map: &Object<'_>) -> ToolResult {
    let content = ["content", "result", "response", "output"].iter().find_map(|key| map.get(key));
    let marked =
        ["is_error", "isError", "error"].iter().any(|key| map.get(key) == Some(&Json::Bool(true)));
    let status = map.get("status").and_then(Json::as_str).unwrap_or_default();
    // The AI SDK marks an error in the type of the part, or of the output inside.
    let typed = |value: &Object<'_>| {
        value
            .get("type")
            .and_then(Json::as_str)
            .is_some_and(|kind| matches!(kind, "tool-error" | "error-text" | "error-json"))
    };
    // Google's API answers a model with `error` where a function failed.
    let raised = |value: &Object<'_>| {
        value.len() == 1 && value.get("error").is_some_and(|error| *error != Json::Null)
    };
    let response = map.get("response").and_then(Json::as_object).is_some_and(raised);
    let inside = content.and_then(Json::as_object).is_some_and(typed) || response;
    ToolResult {
        call_id: id_of(map),
        failed: marked || inside || typed(map) || matches!(status, "error" | "failure"),
        hash: content
            .filter(|content| **content != Json::Null)
            .cloned()
            .and_then(arguments::hash_of),
    }
}
