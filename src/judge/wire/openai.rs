//! Chat completions, as OpenAI defined them and many other servers accept them.
//!
//! `POST {url}/chat/completions`, key as bearer, or in `api-key` if the address is Azure's. The schema is sent as
//! `response_format`.

use serde_json::{Value, json};

use super::{Answer, Call, NoAnswer, Request, count, texts};
use crate::outbound::{bearer, with_path};
use crate::secret::Secret;

pub(super) fn request(url: &str, key: Option<&Secret>, call: &Call<'_>) -> Request {
    let mut body = json!({
        "model": call.model,
        "messages": [
            { "role": "system", "content": call.prompt.system },
            { "role": "user", "content": call.prompt.user },
        ],
    });
    if call.dialect.has_temperature() {
        body["max_tokens"] = json!(call.max_output_tokens);
        body["temperature"] = json!(call.temperature);
    } else {
        body["max_completion_tokens"] = json!(call.max_output_tokens);
    }
    if call.dialect.has_schema() {
        body["response_format"] = json!({
            "type": "json_schema",
            "json_schema": {
                "name": call.stage.name(),
                "strict": call.stage.is_closed(),
                "schema": call.stage.sent_schema(),
            },
        });
    }
    let headers = key.map(|key| bearer(url, key)).into_iter().collect();
    Request { url: with_path(url, "chat/completions"), headers, body }
}

pub(super) fn answer(reply: &Value) -> (Answer, Option<NoAnswer>) {
    let choice = reply.pointer("/choices/0");
    let message = choice.and_then(|choice| choice.get("message"));
    let refused = message.and_then(|message| message.get("refusal")?.as_str());
    let said = message.and_then(|message| content(message.get("content")?));
    let (text, missing) = texts(said.map(|text| spoken(&text).to_owned()));
    let why = match choice.and_then(|choice| choice.get("finish_reason")?.as_str()) {
        Some("content_filter") => Some(NoAnswer::Refused),
        _ if refused.is_some_and(|refusal| !refusal.is_empty()) => Some(NoAnswer::Refused),
        Some("length") => Some(NoAnswer::CutOff),
        Some(_) | None => missing,
    };
    let answer = Answer {
        text,
        input_tokens: count(reply, "/usage/prompt_tokens"),
        output_tokens: count(reply, "/usage/completion_tokens"),
    };
    (answer, why)
}

/// The text of a message's content, which is a text or a list of parts.
fn content(content: &Value) -> Option<String> {
    if let Some(text) = content.as_str() {
        return Some(text.to_owned());
    }
    let parts = content.as_array()?;
    Some(parts.iter().filter_map(|part| part.get("text")?.as_str()).collect())
}

/// The answer without the thinking before it, which servers that do not know the model's format of thinking leave in.
fn spoken(text: &str) -> &str {
    let is_answer = text.trim_start().starts_with(['{', '`']);
    text.split_once("</think>").filter(|_| !is_answer).map_or(text, |(_, spoken)| spoken)
}
