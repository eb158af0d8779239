//! Expectations in the real binary: a question that the file knows, and what came of the answer.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[path = "support/daemon.rs"]
mod daemon;

use std::fs;

use opentelemetry::KeyValue;
use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::{Value, json};

use self::daemon::Daemon;

const SPEC: &str = "agent: support
queries:
  - query: Can I get a refund?
    correctness: {expected_in_answer: [30 days]}
    path: {forbidden_tools: [pay_out], max_tool_calls: 0}
";

fn message(role: &str, text: &str) -> String {
    json!([{ "role": role, "parts": [{ "type": "text", "content": text }] }]).to_string()
}

/// An agent is asked, calls one tool and answers.
fn turn(tracer: &impl Tracer<Span: Send + Sync + 'static>, question: &str, tool: &str) {
    let root = tracer
        .span_builder("invoke_agent support")
        .with_attributes([
            KeyValue::new("gen_ai.operation.name", "invoke_agent"),
            KeyValue::new("gen_ai.agent.name", "support"),
            KeyValue::new("gen_ai.conversation.id", "session-1"),
            KeyValue::new("gen_ai.input.messages", message("user", question)),
            KeyValue::new("gen_ai.output.messages", message("assistant", "Within 30 days.")),
        ])
        .start(tracer);
    let context = opentelemetry::Context::current_with_span(root);
    let call = tracer.span_builder(format!("execute_tool {tool}")).with_attributes([
        KeyValue::new("gen_ai.operation.name", "execute_tool"),
        KeyValue::new("gen_ai.tool.name", tool.to_owned()),
    ]);
    drop(call.start_with_context(tracer, &context));
    context.span().end();
}

#[test]
fn a_done_trace_is_held_against_the_query_that_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("spec.yaml");
    fs::write(&spec, SPEC).unwrap();
    let files = json!([spec]).to_string();
    let daemon = Daemon::start_with(&[("AGENTGAUGE__EXPECT__FILES", &files)]);

    // The exporter sends from here, on this runtime.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("http://{}/v1/traces", daemon.otlp_http))
        .build()
        .unwrap();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter)
        .with_resource(Resource::builder_empty().with_service_name("shop").build())
        .build();
    let tracer = provider.tracer("agent");
    turn(&tracer, "Can I get a refund?", "search");
    turn(&tracer, "Can I get a refund?", "pay_out");
    turn(&tracer, "Who are you?", "pay_out");

    let settles = |layer: &str, result: &str, expected: f64| {
        let labels = "service_name=\"shop\",gen_ai_agent_name=\"support\",gen_ai_agent_version=\"\",deployment_environment_name=\"\"";
        let series = format!(
            "agentgauge_expectations_total{{{labels},layer=\"{layer}\",result=\"{result}\"}}"
        );
        daemon.settles_at(&series, expected);
    };
    settles("correctness", "pass", 2.0);
    settles("path", "warn", 1.0);
    settles("path", "fail", 1.0);
    settles("cost", "skip", 2.0);

    let session: Value = serde_json::from_str(&daemon.get("/api/v1/sessions/session-1")).unwrap();
    let traces = session["traces"].as_array().unwrap();
    assert!(traces.iter().all(|trace| trace["content"] == "dropped"), "{session}");
    let held: Vec<&Value> =
        traces.iter().flat_map(|t| t["expectations"].as_array().unwrap()).collect();
    assert_eq!(held.len(), 2, "{session}");
    let failed = held.iter().find(|held| held["hard_fail"] == true).unwrap();
    assert_eq!(failed["query"], "Can I get a refund?");
    assert_eq!(
        failed["path"]["problems"],
        json!(["tool calls: 1 > 0", "forbidden tools were used: pay_out"])
    );
    assert!(!session.to_string().contains("Within 30 days"), "{session}");
}
