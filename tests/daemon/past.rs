//! The daemon's history of agents over a restart, and the state of alerts that it receives.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::collector::Collector;
use crate::support::daemon::{Daemon, until};
use crate::support::turn::spans;

fn ask(daemon: &Daemon, path: &str) -> Value {
    serde_json::from_str(&daemon.get(path)).unwrap()
}

fn keeping(directory: &Path) -> Daemon {
    Daemon::start_with(&[
        ("AGENTGAUGE__STORE__DIRECTORY", directory.to_str().unwrap()),
        ("AGENTGAUGE__STORE__DURABILITY", "flush"),
        ("AGENTGAUGE__API__HISTORY_STEP", "100ms"),
    ])
}

#[cfg(unix)]
#[test]
fn the_past_of_an_agent_outlives_the_daemon() {
    let store = tempfile::tempdir().unwrap();
    let past = "/api/v1/agents/history?service_name=shop&agent_name=a&range=6h";
    let points = |daemon: &Daemon| ask(daemon, past)["traces"].as_array().map_or(0, Vec::len);
    let daemon = keeping(store.path());
    assert_eq!(ask(&daemon, "/api/v1/about")["history_seconds"], 7 * 86_400);
    assert_eq!(daemon.post("/v1/traces", &spans()).0, 404, "spans go elsewhere");
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans()).0, 200);
    until(|| points(&daemon) > 2);
    until(|| ask(&daemon, past)["traces"].as_array().unwrap().last() == Some(&json!(1)));
    daemon.ends_well();

    let daemon = keeping(store.path());
    until(|| points(&daemon) > 2);
    let kept = ask(&daemon, past);
    assert_eq!((&kept["traces"][0], &kept["step_seconds"]), (&json!(1), &json!(60.0)));
    assert_eq!(kept["failure_ratio"]["last_50"][0], 0.0, "{kept}");
    let row = &ask(&daemon, "/api/v1/fleet?range=7d")["agents"][0];
    assert_eq!(row["spark"], json!([0.0]));
    let refused = ask(&daemon, "/api/v1/fleet?range=2d");
    assert!(refused["error"]["message"].as_str().unwrap().contains("7d"), "{refused}");
    // Without a directory there is the last hour, and nothing of before.
    let forgetful = Daemon::start();
    assert_eq!(ask(&forgetful, "/api/v1/about")["history_seconds"], 3_600);
}

#[test]
fn prometheus_says_what_became_of_alerts() {
    let answer = json!({ "status": "success", "data": { "alerts": [
        { "labels": { "alertname": "AgentStopped", "service_name": "shop", "gen_ai_agent_name": "a" },
          "annotations": { "summary": "silent" }, "state": "pending", "activeAt": "2026-01-02T03:04:05Z" },
        { "labels": { "alertname": "SomebodyElses" }, "annotations": {}, "state": "firing" },
    ] } });
    let prometheus = Collector::answering(move |_| answer.to_string().into_bytes());
    let daemon =
        Daemon::start_with(&[("AGENTGAUGE__LINKS__PROMETHEUS_URL", prometheus.url.as_str())]);
    assert_eq!(ask(&daemon, "/api/v1/about")["prometheus"], true);
    let page = ask(&daemon, "/api/v1/alerts");
    assert_eq!((&page["source"], &page["problem"]), (&json!("prometheus"), &Value::Null));
    assert_eq!(page["alerts"].as_array().unwrap().len(), 1, "{page}");
    assert_eq!(page["alerts"][0]["name"], "AgentStopped");
    assert_eq!(page["alerts"][0]["state"], "pending");
    // Many who look ask once.
    ask(&daemon, "/api/v1/alerts");
    let told = prometheus.told();
    assert_eq!(
        told.iter().map(|asked| asked.path.as_str()).collect::<Vec<_>>(),
        ["/api/v1/alerts"]
    );
}

#[test]
fn a_prometheus_that_is_not_there_is_said_so() {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__LINKS__PROMETHEUS_URL", "http://127.0.0.1:1")]);
    let page = ask(&daemon, "/api/v1/alerts");
    assert_eq!(page["source"], "rules");
    assert_eq!(page["problem"], "Prometheus could not be asked (connect)");
    assert_eq!(page["alerts"], json!([]));
}
