//! A real exporter, the real binary, a scrape: spans in, a score out.

use std::process::Command;
use std::sync::{Arc, Mutex};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter as Export};
use serde_json::Value;

use crate::support::daemon::Daemon;

/// Keeps what the SDK hands out, to be sent by an exporter under test.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl Export for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// Two turns of one session; in the second the agent calls a tool three times with the same
/// arguments and result.
fn session(agent: &str) -> (Resource, Vec<SpanData>) {
    let resource = Resource::builder_empty().with_service_name("shop").build();
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(kept.clone())
        .with_resource(resource.clone())
        .build();
    let tracer = provider.tracer("agent");
    for calls in [1, 3] {
        let root = tracer
            .span_builder(format!("invoke_agent {agent}"))
            .with_attributes([
                KeyValue::new("gen_ai.operation.name", "invoke_agent"),
                KeyValue::new("gen_ai.agent.name", agent.to_owned()),
                KeyValue::new("gen_ai.conversation.id", "session-1"),
            ])
            .start(&tracer);
        let context = opentelemetry::Context::current_with_span(root);
        for _ in 0..calls {
            tracer
                .span_builder("execute_tool search")
                .with_kind(SpanKind::Internal)
                .with_attributes([
                    KeyValue::new("gen_ai.operation.name", "execute_tool"),
                    KeyValue::new("gen_ai.tool.name", "search"),
                    KeyValue::new("gen_ai.tool.call.arguments", r#"{"query":"refund"}"#),
                    KeyValue::new("gen_ai.tool.call.result", "nothing"),
                ])
                .start_with_context(&tracer, &context)
                .end();
        }
        context.span().end();
    }
    let spans = kept.0.lock().unwrap().clone();
    (resource, spans)
}

fn send(mut exporter: SpanExporter, agent: &str) {
    let (resource, spans) = session(agent);
    exporter.set_resource(&resource);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(exporter.export(spans)).unwrap();
}

fn shows_scores_and_the_loop(daemon: &Daemon, agent: &str) {
    let labels = format!("{{service_name=\"shop\",gen_ai_agent_name=\"{agent}\"");
    // Both turns: one may be done before the other.
    daemon.settles_at(&format!("agentgauge_agent_window_traces{labels}"), 2.0);
    let reliability = daemon.metric(&format!("agentgauge_agent_reliability_score{labels}"));
    assert!((0.0..1.0).contains(&reliability), "{reliability}");
    let loops = daemon.metric(&format!("agentgauge_loops_detected_total{labels}"));
    assert!(loops >= 1.0, "{loops}");
    let sessions: Value = serde_json::from_str(&daemon.get("/api/v1/sessions")).unwrap();
    assert_eq!(sessions["sessions"][0]["session_id"], "session-1");
}

#[test]
fn spans_of_the_grpc_exporter_become_a_score() {
    let daemon = Daemon::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let exporter = runtime.block_on(async {
        SpanExporter::builder()
            .with_tonic()
            .with_endpoint(format!("http://{}", daemon.grpc))
            .build()
            .unwrap()
    });
    let (resource, spans) = session("by-grpc");
    let mut exporter = exporter;
    exporter.set_resource(&resource);
    runtime.block_on(exporter.export(spans)).unwrap();
    shows_scores_and_the_loop(&daemon, "by-grpc");
    #[cfg(unix)]
    daemon.ends_well();
}

#[test]
fn spans_of_the_http_exporter_become_a_score() {
    let daemon = Daemon::start();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("http://{}/v1/traces", daemon.otlp_http))
        .build()
        .unwrap();
    send(exporter, "by-http");
    shows_scores_and_the_loop(&daemon, "by-http");
}

#[test]
fn the_demo_shows_its_agents_and_where_to_look() {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .args(["demo", "--for", "6s"])
        .env("AGENTGAUGE__LISTEN__OTLP_GRPC", "127.0.0.1:0")
        .env("AGENTGAUGE__LISTEN__OTLP_HTTP", "127.0.0.1:0")
        .env("AGENTGAUGE__LISTEN__HTTP", "127.0.0.1:0")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{error}");
    assert!(text.starts_with("Open http://127.0.0.1:"), "{text}");
    assert!(text.contains("/metrics"), "{text}");
    assert!(text.contains("refunds 1.5 is released"), "{text}{error}");
}
