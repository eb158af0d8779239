//! An agent's turn on the wire.

#![allow(dead_code, reason = "no test needs all of it")]

use agentgauge::clock::Clock;
use serde_json::{Value, json};

/// An agent's turn with an answer that gives a key away, as OTLP.
pub(crate) fn spans() -> String {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let now = Clock::system().now().0;
    json!({ "resourceSpans": [{
        "resource": { "attributes": [text("service.name", "shop")] },
        "scopeSpans": [{ "spans": [{
            "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331",
            "name": "invoke_agent a", "startTimeUnixNano": now.to_string(), "endTimeUnixNano": (now + 1000).to_string(),
            "attributes": [
                text("gen_ai.operation.name", "invoke_agent"), text("gen_ai.agent.name", "a"),
                text("gen_ai.conversation.id", "s-judged"),
            ],
        }, {
            "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203332", "parentSpanId": "b7ad6b7169203331",
            "name": "execute_tool search", "startTimeUnixNano": now.to_string(), "endTimeUnixNano": (now + 500).to_string(),
            "attributes": [
                text("gen_ai.operation.name", "execute_tool"), text("gen_ai.tool.name", "search"),
                text("gen_ai.tool.call.arguments", r#"{"q": "refund", "api_key": "very-hidden"}"#),
                text("gen_ai.tool.call.result", "refunded under 4711"),
            ],
        }] }],
    }] })
    .to_string()
}

/// The same with a question and an answer.
pub(crate) fn spans_saying(question: &str, answer: &str) -> String {
    let mut spans: Value = serde_json::from_str(&spans()).unwrap();
    let message = |role: &str, text: &str| {
        json!([{ "role": role, "parts": [{ "type": "text", "content": text }] }]).to_string()
    };
    let said = [
        ("gen_ai.input.messages", message("user", question)),
        ("gen_ai.output.messages", message("assistant", answer)),
    ];
    let root = &mut spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"];
    for (key, value) in said {
        root.as_array_mut().unwrap().push(json!({ "key": key, "value": { "stringValue": value } }));
    }
    spans.to_string()
}
