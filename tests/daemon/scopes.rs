//! Two agents that both have a session 42, over OTLP and the API.

use agentgauge::clock::Clock;
use serde_json::{Value, json};

use crate::support::daemon::Daemon;

/// A turn of session 42 of an agent, whose root comes last.
fn send(daemon: &Daemon, trace: u8, agent: &str) {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let start = Clock::system().now().0;
    let span = |id: u8, parent: &str, attributes: Vec<Value>| {
        json!({
            "traceId": format!("{trace:032x}"), "spanId": format!("{id:016x}"), "parentSpanId": parent, "name": "x",
            "startTimeUnixNano": start.to_string(), "endTimeUnixNano": (start + 1_000).to_string(),
            "attributes": attributes,
        })
    };
    let chat = vec![text("gen_ai.operation.name", "chat"), text("gen_ai.conversation.id", "42")];
    let root = vec![
        text("gen_ai.operation.name", "invoke_agent"),
        text("gen_ai.agent.name", agent),
        text("gen_ai.conversation.id", "42"),
    ];
    for span in [span(2, "0000000000000001", chat), span(1, "", root)] {
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": [text("service.name", "shop")] },
            "scopeSpans": [{ "spans": [span] }],
        }]});
        let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &body.to_string());
        assert_eq!(status, 200, "{answer}");
    }
}

fn ask(daemon: &Daemon, path: &str) -> Value {
    serde_json::from_str(&daemon.get(path)).unwrap()
}

fn fed(settings: &[(&str, &str)]) -> Daemon {
    let daemon = Daemon::start_with(settings);
    send(&daemon, 1, "billing");
    send(&daemon, 2, "support");
    for agent in ["billing", "support"] {
        let series =
            format!("agentgauge_traces_total{{service_name=\"shop\",gen_ai_agent_name=\"{agent}\"");
        daemon.settles_at(&series, 1.0);
    }
    daemon
}

#[test]
fn an_id_of_two_agents_is_two_sessions() {
    let daemon = fed(&[("AGENTGAUGE__SESSION__REPORT_WAIT", "1s")]);
    let rows = ask(&daemon, "/api/v1/sessions?detail=row");
    let scopes = rows["sessions"].as_array().unwrap().iter().map(|row| &row["scope"]);
    assert_eq!(scopes.collect::<Vec<_>>(), ["billing", "support"]);
    // The id alone is not enough, and the answer says what is.
    let error = &ask(&daemon, "/api/v1/sessions/42")["error"];
    assert_eq!(
        (&error["code"], &error["scopes"]),
        (&json!("session_ambiguous"), &json!(["billing", "support"]))
    );
    assert_eq!(
        error["message"],
        "2 sessions have this id; say which with `scope`: `billing`, `support`"
    );
    let one = ask(&daemon, "/api/v1/sessions/42?scope=support");
    assert_eq!((&one["total_traces"], &one["agent"]["agent_name"]), (&json!(1), &json!("support")));
    assert_eq!(ask(&daemon, "/api/v1/sessions/42?scope=x")["error"]["code"], "session_not_found");
    for query in ["", "?session=42", "?session=42&scope=support"] {
        let found = ask(&daemon, &format!("/api/v1/traces/{:032x}{query}", 2));
        assert_eq!((&found["session_id"], &found["scope"]), (&json!("42"), &json!("support")));
    }
    let elsewhere = format!("/api/v1/traces/{:032x}?session=42&scope=billing", 2);
    assert_eq!(ask(&daemon, &elsewhere)["error"]["code"], "trace_not_found");

    // An outcome of one of them belongs to that one, and an outcome without a scope to none.
    let report = |report: &Value| {
        daemon.post("/api/v1/reports", &json!({ "reports": [report] }).to_string())
    };
    let failed = json!({ "session_id": "42", "name": "outcome", "label": "failure" });
    assert_eq!(report(&failed).0, 200);
    let mut named = failed;
    named["scope"] = json!("support");
    assert_eq!(report(&named).0, 200);
    daemon.settles_at("agentgauge_reports_total{outcome=\"ambiguous\"}", 1.0);
    let outcome = |scope: &str| {
        ask(&daemon, &format!("/api/v1/sessions/42?scope={scope}"))["signals"]["outcome"]["score"]
            .clone()
    };
    assert_eq!((outcome("billing"), outcome("support")), (Value::Null, json!(0.0)));
    let alone = json!({ "trace_id": format!("{:032x}", 1), "scope": "billing", "name": "outcome", "score": 1 });
    let (_, answer) = report(&alone);
    assert!(answer.contains("`scope` is that of a session: it needs `session_id`"), "{answer}");
}

#[test]
fn with_tenant_as_the_scope_it_is_one() {
    let daemon = fed(&[("AGENTGAUGE__SESSION__SCOPE", "tenant")]);
    let one = ask(&daemon, "/api/v1/sessions/42");
    assert_eq!((&one["total_traces"], &one["scope"]), (&json!(2), &json!("")));
}
