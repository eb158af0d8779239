//! Drops as users see them: real OTLP in, `/metrics` and the API out, and accepting a level as usual.

use agentgauge::clock::Clock;
use serde_json::{Value, json};

use crate::support::daemon::Daemon;

const SECOND: u64 = 1_000_000_000;
const LABELS: &str = "service_name=\"shop\",gen_ai_agent_name=\"a\",gen_ai_agent_version=\"1\"";

/// Traces of this many seconds ago, in this order, each with whether it fails.
fn traces(begin: usize, traces: &[(u64, bool)]) -> String {
    let now = Clock::system().now().0;
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let spans = traces.iter().enumerate().flat_map(|(number, (ago, failed))| {
        let end = now - ago * SECOND;
        let trace = format!("{:032x}", begin + number + 1);
        let status = json!({ "code": if *failed { 2 } else { 1 } });
        let span = |id: &str, parent: &str, attributes: Value| {
            json!({
                "traceId": trace, "spanId": id, "parentSpanId": parent, "name": "step",
                "startTimeUnixNano": (end - SECOND).to_string(), "endTimeUnixNano": end.to_string(),
                "status": status, "attributes": attributes,
            })
        };
        let session = text("gen_ai.conversation.id", &format!("session {}", begin + number));
        let agent = json!([
            text("gen_ai.operation.name", "invoke_agent"),
            text("gen_ai.agent.name", "a"),
            text("gen_ai.agent.version", "1"),
            session,
        ]);
        let tool = json!([
            text("gen_ai.operation.name", "execute_tool"),
            text("gen_ai.tool.name", "book")
        ]);
        [span("b7ad6b7169203331", "", agent), span("b7ad6b7169203332", "b7ad6b7169203331", tool)]
    });
    json!({ "resourceSpans": [{
        "resource": { "attributes": [text("service.name", "shop")] },
        "scopeSpans": [{ "spans": spans.collect::<Vec<_>>() }],
    }] })
    .to_string()
}

fn send(daemon: &Daemon, body: &str) {
    let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", body);
    assert_eq!(status, 200, "{answer}");
}

fn series(family: &str, labels: &str) -> String {
    format!("agentgauge_agent_{family}{{{LABELS}{labels}}}")
}

fn drops(daemon: &Daemon) -> Value {
    let page: Value = serde_json::from_str(&daemon.get("/api/v1/agents")).unwrap();
    page["agents"][0]["drops"].clone()
}

#[test]
fn a_drop_is_on_the_page_with_where_to_look_until_its_level_is_accepted() {
    let daemon = Daemon::start();
    // Ten hours of a past: two traces in a hundred fail.
    let past: Vec<(u64, bool)> = (0..300).map(|at| (36_060 - 120 * at, at % 50 == 7)).collect();
    send(&daemon, &traces(0, &past));
    daemon.settles_at(&series("drop", ",stream=\"verdict\",severity=\"critical\""), 0.0);
    daemon.settles_at("agentgauge_traces_total", 300.0);
    assert!(daemon.metric(&series("drop_baseline", ",stream=\"verdict\"")) < 0.05);
    let quiet = daemon.get("/metrics");
    for family in ["drop_level", "drop_start_timestamp_seconds", "drop_against", "drop_example"] {
        assert!(!quiet.contains(&format!("agentgauge_agent_{family}{{")), "{family}");
    }
    // Then every second one.
    let bad: Vec<(u64, bool)> = (0..40).map(|at| (100 - at, at % 2 == 0)).collect();
    send(&daemon, &traces(300, &bad));
    for severity in ["critical", "warning"] {
        let labels = format!(",stream=\"verdict\",severity=\"{severity}\"");
        daemon.settles_at(&series("drop", &labels), 1.0);
    }
    daemon.settles_at("agentgauge_traces_total", 340.0);
    let now = Clock::system().now().0 as f64 / 1e9;
    let ago = now - daemon.metric(&series("drop_start_timestamp_seconds", ",stream=\"verdict\""));
    assert!((60.0..300.0).contains(&ago), "{ago}");
    let level = daemon.metric(&series("drop_level", ",stream=\"verdict\""));
    assert!((0.4..=0.7).contains(&level), "{level}");
    daemon.settles_at(
        &series("drop_against", ",stream=\"verdict\",against=\"past\",version_before=\"\""),
        1.0,
    );
    assert!(daemon.metric(&series("failure_ratio_traces", ",window=\"1h\"")) > 39.0);
    assert!(now - daemon.metric(&series("last_trace_timestamp_seconds", "")) < 120.0);
    let page = daemon.get("/metrics");
    let example =
        page.lines().find(|line| line.starts_with("agentgauge_agent_drop_example{")).unwrap();
    assert!(example.contains("stream=\"verdict\",signal=\"error\",tool=\"book\""), "{example}");
    let found = drops(&daemon);
    assert_eq!(
        (&found[0]["stream"], &found[0]["severity"]),
        (&json!("verdict"), &json!("critical"))
    );
    let session = &found[0]["drop"]["sessions"][0];
    let id = session["session_id"].as_str().unwrap().replace(' ', "%20");
    let path = format!("/api/v1/sessions/{id}?scope={}", session["scope"].as_str().unwrap());
    let shown: Value = serde_json::from_str(&daemon.get(&path)).unwrap();
    assert_eq!(shown["traces"][0]["error"], json!(true), "{shown}");
    let rows: Value = serde_json::from_str(&daemon.get("/api/v1/fleet")).unwrap();
    assert_eq!(rows["agents"][0]["drop"], json!("critical"));

    let accept = |body: Value| {
        let (status, answer) = daemon.post("/api/v1/agents/baseline", &body.to_string());
        (status, serde_json::from_str::<Value>(&answer).unwrap()["accepted"].clone())
    };
    let agent = json!({ "service_name": "shop", "agent_name": "a", "agent_version": "1" });
    let with = |key: &str, value: &str| {
        let mut agent = agent.clone();
        agent[key] = json!(value);
        agent
    };
    let (status, answer) =
        daemon.post("/api/v1/agents/baseline", &with("stream", "verdicts").to_string());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("malformed")));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("there is no stream `verdicts`"), "{message}");
    assert_eq!(accept(json!({ "stream": "verdict" })).0, 400, "no agent is named");
    assert_eq!(accept(with("agent", "a")).0, 400);
    assert_eq!(accept(with("agent_version", "2")), (200, json!(1)));
    daemon.settles_at("agentgauge_reports_total{outcome=\"nothing_to_accept\"}", 1.0);
    assert_eq!(accept(with("stream", "verdict")), (200, json!(1)));
    daemon.settles_at(&series("drop", ",stream=\"verdict\",severity=\"critical\""), 0.0);
    let usual = drops(&daemon)[0]["usual"].as_f64().unwrap();
    assert!((0.3..=0.7).contains(&usual), "{usual}");
    // The other streams are as they were.
    daemon.settles_at(&series("drop", ",stream=\"tool_failures\",severity=\"warning\""), 1.0);
}

#[test]
fn a_deployment_is_shown_accepts_what_it_brings_and_outlives_a_crash() {
    let store = tempfile::tempdir().unwrap();
    let directory = store.path().to_str().unwrap();
    let environment =
        [("AGENTGAUGE__STORE__DIRECTORY", directory), ("AGENTGAUGE__STORE__DURABILITY", "fsync")];
    let daemon = Daemon::start_with(&environment);
    let bad: Vec<(u64, bool)> = (0..120).map(|at| (36_060 - 120 * at, at % 2 == 0)).collect();
    send(&daemon, &traces(0, &bad));
    daemon.settles_at(&series("drop", ",stream=\"verdict\",severity=\"critical\""), 1.0);
    let tell = |body: Value| {
        let (status, answer) = daemon.post("/api/v1/deployments", &body.to_string());
        (status, serde_json::from_str::<Value>(&answer).unwrap()["accepted"].clone())
    };
    assert_eq!(tell(json!({ "service_name": "shop", "release": "1" })).0, 400);
    assert_eq!(tell(json!({ "id": "1" })).0, 400, "no agent is named");
    assert_eq!(
        tell(json!({ "service_name": "", "accept": true })).0,
        400,
        "a variable that is unset"
    );
    // For all agents of the service, and for a missing one.
    assert_eq!(tell(json!({ "service_name": "shop", "id": "1", "name": "tools" })).0, 200);
    assert_eq!(tell(json!({ "agent_name": "b", "accept": true })), (200, json!(1)));
    let release = json!({
        "service_name": "shop", "agent_name": "a", "agent_version": "1", "id": "2", "name": "release 1",
        "accept": true, "time_unix_nano": "1700000000000000000",
    });
    daemon.settles_at(&series("drop", ",stream=\"verdict\",severity=\"critical\""), 1.0);
    assert_eq!(tell(release.clone()), (200, json!(1)));
    daemon.settles_at(&series("drop", ",stream=\"verdict\",severity=\"critical\""), 0.0);
    assert_eq!(tell(release), (200, json!(1)));
    daemon.settles_at("agentgauge_duplicates_total{what=\"reports\"}", 1.0);
    let shown = |daemon: &Daemon| {
        let page: Value = serde_json::from_str(&daemon.get("/api/v1/agents")).unwrap();
        let shown = page["agents"][0]["deployments"].as_array().unwrap().clone();
        let parts = |one: &Value| (one["name"].clone(), one["accepted"].clone());
        (shown.iter().map(parts).collect::<Vec<_>>(), shown[1]["unix_nano"].clone())
    };
    let expected = (
        vec![(json!("tools"), json!(false)), (json!("release 1"), json!(true))],
        json!("1700000000000000000"),
    );
    assert_eq!(shown(&daemon), expected);
    daemon.crashes();
    let daemon = Daemon::start_with(&environment);
    daemon.settles_at(&series("drop", ",stream=\"verdict\",severity=\"critical\""), 0.0);
    assert_eq!(shown(&daemon), expected);
    assert_eq!(drops(&daemon)[0]["against"], json!("past"));
}
