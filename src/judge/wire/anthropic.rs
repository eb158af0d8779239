//! Anthropic's messages.
//!
//! `POST {url}/messages`, key in `x-api-key`. The schema is that of the one tool that the model must call; the input of the call is
//! the answer.

use serde_json::{Value, json};

use super::{Answer, Call, NoAnswer, Request, count, texts};
use crate::outbound::with_path;
use crate::secret::Secret;

/// The version of the format.
const VERSION: &str = "2023-06-01";

pub(super) fn request(url: &str, key: Option<&Secret>, call: &Call<'_>) -> Request {
    let mut body = json!({
        "model": call.model,
        "max_tokens": call.max_output_tokens,
        "system": call.prompt.system,
        "messages": [{ "role": "user", "content": call.prompt.user }],
    });
    if call.dialect.has_temperature() {
        body["temperature"] = json!(call.temperature);
    }
    if call.dialect.has_schema() {
        let name = call.stage.name();
        body["tools"] = json!([{
            "name": name,
            "description": "Takes the answer.",
            "input_schema": call.stage.sent_schema(),
        }]);
        body["tool_choice"] = json!({ "type": "tool", "name": name });
    }
    let key = key.map(|key| ("x-api-key", key.reveal().to_owned()));
    let headers = key.into_iter().chain([("anthropic-version", VERSION.to_owned())]).collect();
    Request { url: with_path(url, "messages"), headers, body }
}

pub(super) fn answer(reply: &Value) -> (Answer, Option<NoAnswer>) {
    let blocks = reply.get("content").and_then(Value::as_array);
    let called = blocks.and_then(|blocks| {
        let called = blocks.iter().find(|block| block["type"] == "tool_use")?;
        Some(called.get("input")?.to_string())
    });
    let said = || {
        let texts = blocks?.iter().filter(|block| block["type"] == "text");
        Some(texts.filter_map(|block| block.get("text")?.as_str()).collect::<String>())
    };
    let (text, missing) = texts(called.or_else(said));
    let why = match reply.get("stop_reason").and_then(Value::as_str) {
        Some("refusal") => Some(NoAnswer::Refused),
        Some("max_tokens") => Some(NoAnswer::CutOff),
        Some(_) | None => missing,
    };
    let cached = ["/usage/cache_read_input_tokens", "/usage/cache_creation_input_tokens"];
    let cached = cached.iter().filter_map(|pointer| count(reply, pointer));
    let cached = cached.fold(0, u64::saturating_add);
    let answer = Answer {
        text,
        input_tokens: count(reply, "/usage/input_tokens").map(|own| own.saturating_add(cached)),
        output_tokens: count(reply, "/usage/output_tokens"),
    };
    (answer, why)
}
