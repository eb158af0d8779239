//! Expectations in the real binary: a query in the file, and the result for the answer.

use std::fs;

use opentelemetry::KeyValue;
use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::{Value, json};

use crate::support::daemon::Daemon;

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
        let labels = "service_name=\"shop\",gen_ai_agent_name=\"support\"";
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

/// Two agents, the second of which takes over and looks a document up.
fn handed_over(result: Option<&str>) -> Value {
    let span = |name: &str, start: u64, end: u64, attributes: Value| json!({"name": name, "startTimeUnixNano": start, "endTimeUnixNano": end, "attributes": attributes});
    let mut call = json!({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"});
    if let Some(result) = result {
        call["gen_ai.tool.call.result"] = json!(result);
    }
    json!([
        span(
            "turn",
            1_000_000,
            90_000_000,
            json!({
                "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "front",
                "gen_ai.input.messages": message("user", "Why was I charged?"),
                "gen_ai.output.messages": message("assistant", "For May."),
            })
        ),
        span(
            "chat m",
            2_000_000,
            20_000_000,
            json!({
                "gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
                "gen_ai.input.messages": message("user", "Why was I charged?"),
            })
        ),
        span(
            "turn",
            30_000_000,
            80_000_000,
            json!({
                "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "billing",
            })
        ),
        span("execute_tool search", 40_000_000, 50_000_000, call),
        span("grade", 60_000_000, 70_000_000, json!({})),
    ])
}

/// The layers of the one query of a file against the one trace of a list of spans.
fn layers(spec: &str, spans: &Value) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let (list, file) = (folder.path().join("spans.json"), folder.path().join("spec.yaml"));
    fs::write(&list, spans.to_string()).unwrap();
    fs::write(&file, spec).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .args(["replay", "--output", "json", "--expect"])
        .args([&file, &list])
        .output()
        .unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["sessions"][0]["traces"][0]["expectations"][0].clone()
}

#[test]
fn handoffs_results_and_spans_are_looked_at_where_the_trace_has_them() {
    let spec =
        |rest: &str| format!("agent: front\nqueries:\n  - query: Why was I charged?\n{rest}");
    let found = Some("[{\"id\": \"d1\"}, {\"id\": \"d2\"}]");

    let path = "    path: {expected_handoff: billing, max_handoff_count: 0}\n";
    let path = layers(&spec(path), &handed_over(found))["path"].clone();
    assert_eq!(
        (&path["status"], &path["details"]["handoffs"]),
        (&json!("warn"), &json!(["billing"]))
    );
    assert_eq!(path["problems"], json!(["handoffs: 1 > 0"]), "{path}");

    let assertion = |kind: &str, name: &str, field: &str, value: &str| {
        let rest = format!(
            "    span_assertions:\n      - selector: {{kind: {kind}, name: {name}}}\n        asserts: [{{type: contains, field: {field}, value: {value}}}]\n"
        );
        let layers = layers(&spec(&rest), &handed_over(found));
        layers["correctness"]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(assertion("TOOL", "search", "attributes.tool.result", "d2"), "pass");
    assert_eq!(assertion("TOOL", "search", "output_data", "d9"), "fail");
    assert_eq!(assertion("LLM", "chat m", "input_data", "charged"), "pass");
    assert_eq!(assertion("NODE", "front", "output_data", "May"), "pass");
    assert_eq!(assertion("NODE", "grade", "name", "grade"), "pass");
    assert_eq!(assertion("NODE", "rank", "name", "rank"), "fail");
    // Not on the wire, which is no failure.
    assert_eq!(assertion("NODE", "grade", "output_data", "x"), "skip");
    assert_eq!(assertion("GUARDRAIL", "pii", "name", "pii"), "skip");

    let retrieval = spec("    retrieval: {tool: search, min_results: 3}\n");
    let status = |result| layers(&retrieval, &handed_over(result))["retrieval"]["status"].clone();
    assert_eq!((status(found), status(None)), (json!("warn"), json!("skip")));
}
