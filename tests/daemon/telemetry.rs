//! The daemon's telemetry about itself, sent to another daemon, which accepts OTLP, and counts it.

use crate::support::daemon::{Daemon, until};
use crate::support::turn;

/// Spans and log records that a daemon was given.
fn given(collector: &Daemon, family: &str) -> u64 {
    let page = collector.get("/metrics");
    let of = format!("agentgauge_{family}_received_total{{");
    let lines = page.lines().filter(|line| line.starts_with(&of));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn each_request_and_slow_step_has_a_span_elsewhere_and_none_of_what_it_tells_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Daemon::start();
    let endpoint = format!("http://{}", collector.otlp_http);
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__TELEMETRY__OTLP_ENDPOINT", &endpoint),
        ("AGENTGAUGE__TELEMETRY__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__TELEMETRY__SAMPLE_RATE", "1.0"),
        ("AGENTGAUGE__TELEMETRY__LOGS", "true"),
        ("AGENTGAUGE__STORE__DURABILITY", "fsync"),
        ("AGENTGAUGE__STORE__DIRECTORY", folder.path().to_str().unwrap()),
    ]);
    for _ in 0..5 {
        let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &turn::spans());
        assert_eq!(status, 200, "{answer}");
    }
    // A span of each request, and one of each write to the log at least: the queue is sent every few seconds.
    until(|| given(&collector, "spans") >= 10);
    until(|| given(&collector, "log_records") >= 1);
    assert!(given(&collector, "spans") >= 10 && given(&collector, "log_records") >= 1);
    let sent = daemon.metric("agentgauge_telemetry_out_total{outcome=\"sent\",signal=\"spans\"}");
    assert!(sent >= 10.0);
    // None of it is an agent's, and none of it is its own input.
    assert_eq!(given(&daemon, "spans"), 2 * 5);
    assert!(!collector.get("/metrics").contains("gen_ai_agent_name="));
    #[cfg(unix)]
    daemon.ends_well();
}

#[test]
fn a_daemon_is_not_told_of_by_its_own_spans() {
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .arg("check")
        .env("AGENTGAUGE__TELEMETRY__OTLP_ENDPOINT", "http://localhost:4318")
        .env("AGENTGAUGE__TELEMETRY__ALLOW_HTTP", "true")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(64));
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(told.contains("this daemon's own `listen.otlp_http`"), "{told}");
}
