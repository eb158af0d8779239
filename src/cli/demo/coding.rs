//! A coding agent in the demo: Claude Code's log records, configured as in docs/guides/claude-code.md.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::turn::{float, text};

/// A prompt, its answer, and the tools that the agent calls for it with their inputs; the last call may fail.
type Task = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const TASKS: &[Task] = &[
    (
        "Why does the checkout test fail since Monday?",
        "It compares a price with a rounded one; since Monday prices have three decimals.",
        &[
            ("Read", r#"{"file_path": "tests/checkout.py"}"#),
            ("Bash", r#"{"command": "git log --oneline -5 src/checkout.py"}"#),
            ("Bash", r#"{"command": "pytest tests/checkout.py -q"}"#),
        ],
    ),
    (
        "Add a retry to the parcel client.",
        "The client tries three times now, with a pause that grows, and there is a test for it.",
        &[
            ("Grep", r#"{"pattern": "class ParcelClient"}"#),
            ("Read", r#"{"file_path": "src/parcel.py"}"#),
            ("Edit", r#"{"file_path": "src/parcel.py"}"#),
            ("Bash", r#"{"command": "pytest tests/parcel.py -q"}"#),
        ],
    ),
    (
        "Write down how refunds are booked.",
        "docs/refunds.md has the accounts, who signs, and what happens at the end of a month.",
        &[
            ("Read", r#"{"file_path": "src/refunds.py"}"#),
            ("Write", r#"{"file_path": "docs/refunds.md"}"#),
        ],
    ),
];

/// Prompts in a session.
const PER_SESSION: u64 = 3;

/// The records of one prompt that was answered at `end`, as they are sent.
pub(super) fn prompt(number: u64, seed: u64, end: u64) -> ExportLogsServiceRequest {
    let place = usize::try_from(number).unwrap_or_default() % TASKS.len();
    let (question, answer, commands) = TASKS[place];
    let session = format!("dev-{:04x}-{}", seed & 0xffff, number / PER_SESSION);
    let common = [
        text("session.id", &session),
        text("prompt.id", &format!("{session}-prompt-{number}")),
        text("user.id", "ana"),
    ];
    let mut records = Vec::new();
    // A second for each.
    let mut at = end.saturating_sub(SECOND * (2 + 2 * commands.len() as u64));
    let mut add = |event: &str, attributes: Vec<KeyValue>| {
        let name = [text("event.name", event)];
        records.push(LogRecord {
            time_unix_nano: at,
            observed_time_unix_nano: at,
            body: Some(body(&format!("claude_code.{event}"))),
            attributes: common.iter().cloned().chain(name).chain(attributes).collect(),
            ..LogRecord::default()
        });
        at += SECOND;
    };
    add("user_prompt", vec![text("prompt", question)]);
    for (step, (tool, input)) in commands.iter().enumerate() {
        let id = format!("{session}-{number}-{step}");
        add("api_request", asked(&id, 0.021));
        let fails = number % 4 == 1 && step + 1 == commands.len();
        add(
            "tool_result",
            vec![
                text("tool_name", tool),
                text("tool_use_id", &id),
                text("tool_input", input),
                text("success", if fails { "false" } else { "true" }),
                float("duration_ms", 640.0),
            ],
        );
    }
    let last = format!("{session}-{number}-answer");
    add("api_request", asked(&last, 0.034));
    add("assistant_response", vec![text("response", answer), text("request_id", &last)]);
    let scope = InstrumentationScope {
        name: "com.anthropic.claude_code.events".to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_logs =
        vec![ScopeLogs { scope: Some(scope), log_records: records, ..ScopeLogs::default() }];
    let attributes =
        vec![text("service.name", "claude-code"), text("deployment.environment.name", "laptops")];
    let resource = Some(Resource { attributes, ..Resource::default() });
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs { resource, scope_logs, ..ResourceLogs::default() }],
    }
}

const SECOND: u64 = 1_000_000_000;

fn asked(id: &str, cost: f64) -> Vec<KeyValue> {
    vec![
        text("model", "claude-sonnet-4-5"),
        text("request_id", id),
        float("input_tokens", 310.0),
        float("cache_read_tokens", 18_400.0),
        float("output_tokens", 240.0),
        float("cost_usd", cost),
        float("duration_ms", 950.0),
    ]
}

fn body(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_owned())) }
}
