//! Google's `generateContent`.
//!
//! `POST {url}/models/{model}:generateContent`, key in `x-goog-api-key`. The schema is sent as `responseJsonSchema`.

use serde_json::{Value, json};

use super::{Answer, Call, Dialect, NoAnswer, Request, count, texts};
use crate::outbound::with_path;
use crate::secret::Secret;

/// The finish reasons with which Gemini refuses.
const REFUSALS: [&str; 6] =
    ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE"];

pub(super) fn request(url: &str, key: Option<&Secret>, call: &Call<'_>) -> Request {
    let mut config = json!({ "maxOutputTokens": call.max_output_tokens });
    if call.dialect.has_temperature() {
        config["temperature"] = json!(call.temperature);
    }
    if call.dialect < Dialect::Bare {
        config["responseMimeType"] = json!("application/json");
    }
    if call.dialect.has_schema() {
        config["responseJsonSchema"] = call.stage.sent_schema();
    }
    let body = json!({
        "systemInstruction": { "parts": [{ "text": call.prompt.system }] },
        "contents": [{ "role": "user", "parts": [{ "text": call.prompt.user }] }],
        "generationConfig": config,
    });
    let url = if url.contains(":generateContent") {
        url.to_owned()
    } else {
        let model = call.model.strip_prefix("models/").unwrap_or(call.model);
        with_path(url, &format!("models/{model}:generateContent"))
    };
    let headers = key.map(|key| ("x-goog-api-key", key.reveal().to_owned())).into_iter().collect();
    Request { url, headers, body }
}

pub(super) fn answer(reply: &Value) -> (Answer, Option<NoAnswer>) {
    let candidate = reply.pointer("/candidates/0");
    let parts = candidate.and_then(|candidate| candidate.pointer("/content/parts")?.as_array());
    let said = parts.map(|parts| {
        // Parts with thoughts are not the answer.
        let said = parts.iter().filter(|part| part["thought"] != true);
        said.filter_map(|part| part.get("text")?.as_str()).collect::<String>()
    });
    let (text, missing) = texts(said);
    let blocked = reply.pointer("/promptFeedback/blockReason").is_some();
    let why = match candidate.and_then(|candidate| candidate.get("finishReason")?.as_str()) {
        Some(reason) if REFUSALS.contains(&reason) => Some(NoAnswer::Refused),
        Some("MAX_TOKENS") => Some(NoAnswer::CutOff),
        _ if blocked => Some(NoAnswer::Refused),
        Some(_) | None => missing,
    };
    let output = count(reply, "/usageMetadata/candidatesTokenCount");
    let thought = count(reply, "/usageMetadata/thoughtsTokenCount");
    let answer = Answer {
        text,
        input_tokens: count(reply, "/usageMetadata/promptTokenCount"),
        output_tokens: output.map(|output| output.saturating_add(thought.unwrap_or(0))).or(thought),
    };
    (answer, why)
}
