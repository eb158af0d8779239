//! Reports over agentgauge's own API, with the real binary: published figures are reproduced.

use std::fs;
use std::path::Path;

use agentgauge::clock::Clock;
use agentgauge::ingest::report::v1::{self, Agent, ReportRequest, ReportResponse, Run, report};
use serde_json::{Value, json};
use tonic::client::Grpc;
use tonic::transport::Endpoint;

use crate::support::daemon::{Daemon, until};

/// A run of an agent as JSON.
fn run(agent: &str, task: &str, run: &str) -> Value {
    json!({ "agent": { "service_name": "bench", "agent_name": agent }, "task_id": task, "run_id": run })
}

fn send(daemon: &Daemon, reports: &[Value]) {
    for chunk in reports.chunks(50) {
        let body = json!({ "reports": chunk }).to_string();
        let (status, answer) = daemon.post("/api/v1/reports", &body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, &answer["accepted"]), (200, &json!(chunk.len())), "{answer}");
        // Again, as a client that lost the answer would: nothing changes.
        assert_eq!(daemon.post("/api/v1/reports", &body).0, 200);
    }
}

/// A score of an agent over all runs settles at this.
fn settles(daemon: &Daemon, agent: &str, score: &str, expected: &Value) {
    let labels = format!("{{service_name=\"bench\",gen_ai_agent_name=\"{agent}\",window=\"all\"}}");
    let series = format!("agentgauge_agent_{score}_score{labels}");
    daemon.settles_at(&series, expected.as_f64().unwrap());
}

#[test]
fn published_figures_come_out_as_they_were_published() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors/hal-published-open.json");
    let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let daemon = Daemon::start();
    let mut checked = 0;
    for (number, case) in file["cases"].as_array().unwrap().iter().enumerate() {
        let agent = format!("agent{number}");
        let (input, expected) = (&case["input"], &case["expected"]);
        if input["confidences_success"].is_array() {
            let mut reports = Vec::new();
            for (outcome, list) in
                [("success", "confidences_success"), ("failure", "confidences_failure")]
            {
                for (at, confidence) in input[list].as_array().unwrap().iter().enumerate() {
                    let run = run(&agent, "airline", &format!("{outcome}{at}"));
                    reports.push(
                        json!({ "id": "o", "run": run, "name": "outcome", "label": outcome }),
                    );
                    reports.push(
                        json!({ "id": "c", "run": run, "name": "confidence", "score": confidence }),
                    );
                }
            }
            send(&daemon, &reports);
            settles(&daemon, &agent, "calibration", &expected["p_cal"]);
            settles(&daemon, &agent, "auroc", &expected["p_auroc"]);
            settles(&daemon, &agent, "brier", &expected["p_brier"]);
            settles(&daemon, &agent, "accuracy", &expected["accuracy"]);
            checked += 1;
        }
        if let Some(rates) = input["success_rate_per_task_of_5_runs"].as_object() {
            let mut reports = Vec::new();
            for (task, rate) in rates {
                for at in 0_u32..5 {
                    let success = f64::from(at) < (rate.as_f64().unwrap() * 5.0).round();
                    let run = run(&agent, task, &at.to_string());
                    reports.push(
                        json!({ "id": "o", "run": run, "name": "outcome", "score": success }),
                    );
                }
            }
            send(&daemon, &reports);
            let consistency = &expected["c_out_head_formula_computed"];
            settles(&daemon, &agent, "outcome_consistency", consistency);
            settles(&daemon, &agent, "accuracy", &expected["accuracy"]);
            checked += 1;
        }
    }
    assert!(checked >= 2, "cases are missing");
}

#[test]
fn what_is_wrong_with_a_report_is_said_and_the_others_count() {
    let daemon = Daemon::start();
    let good = json!({ "session_id": "s", "name": "coherence", "score": 0.5 });
    let bad = [
        (json!({ "session_id": "s", "name": "coherence", "score": 4 }), "score_ranges"),
        (
            json!({ "session_id": "s", "name": "coherence", "score": "much" }),
            "`score`: expected a number or a boolean",
        ),
        (json!({ "session_id": "s", "name": "coherence" }), "neither a `score` nor a `label`"),
        (json!({ "session_id": "s", "score": 1 }), "`name` is missing"),
        (json!({ "name": "coherence", "score": 1 }), "a target is missing"),
        (
            json!({ "session_id": "s", "trace_id": "x", "name": "coherence", "score": 1 }),
            "only one of",
        ),
        (json!({ "trace_id": "xyz", "name": "coherence", "score": 1 }), "32 hex digits"),
        (
            json!({ "run": { "task_id": "t", "run_id": "r" }, "name": "outcome", "score": 1 }),
            "run.agent",
        ),
        (json!({ "session_id": "s", "name": "coherence", "scores": 1 }), "scores"),
        (json!({ "session_id": "s", "name": 5, "score": 1 }), "`name`: invalid type: integer `5`"),
        (
            json!({ "run": { "task_id": [], "run_id": "r" }, "name": "outcome", "score": 1 }),
            "`run`: `task_id`: ",
        ),
        (json!({ "session_id": "s", "x".repeat(100_000): 1 }), "unknown field `xx"),
        (json!("coherence"), "expected a report as an object"),
        (json!({ "run": 1, "name": "outcome", "score": 1 }), "`run`: "),
    ];
    let reports: Vec<&Value> = bad.iter().map(|(report, _)| report).chain([&good]).collect();
    let (status, answer) =
        daemon.post("/api/v1/reports", &json!({ "reports": reports }).to_string());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["accepted"]), (200, &json!(1)));
    for (at, (_, why)) in bad.iter().enumerate() {
        let said = &answer["rejected"][at];
        assert_eq!(said["index"], json!(at));
        let error = said["error"].as_str().unwrap();
        assert!(error.contains(why) && error.len() <= 256, "{said} does not say {why}");
    }
    for (path, body, why) in [
        ("reports", "{", "breaks off"),
        ("reports", r#"{"report": []}"#, "reports"),
        ("reports", r#"{"reports": {"name": "coherence"}}"#, "with a list"),
        ("deployments", r#"{"service_name": "s", "accept": "yes"}"#, "`accept`: invalid type"),
        ("agents/baseline", r#"{"service_name": 1}"#, "`service_name`: invalid type"),
        ("deployments", "1", "expected a deployment as an object"),
    ] {
        let (status, answer) = daemon.post(&format!("/api/v1/{path}"), body);
        assert!(status == 400 && answer.contains(why), "{body}: {status} {answer}");
    }
    assert_eq!(daemon.post("/api/v1/reports", "{}").0, 200);
}

#[test]
fn a_report_finds_a_session_whose_name_is_too_long_to_be_kept_whole() {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__CONVENTION__MAX_NAME_BYTES", "16")]);
    let id = "a session of a very long name";
    let report = json!({ "session_id": id, "name": "coherence", "score": 0.5 });
    daemon.post("/api/v1/reports", &json!({ "reports": [report] }).to_string());
    daemon.settles_at("agentgauge_spans_repaired_total{reason=\"name_cut\"}", 1.0);
}

#[tokio::test]
async fn the_same_reports_come_over_grpc() {
    let daemon = tokio::task::spawn_blocking(Daemon::start).await.unwrap();
    let agent =
        Agent { agent_name: "a".to_owned(), service_name: "bench".to_owned(), ..Agent::default() };
    let of_run = |run: &str, score: f64| v1::Report {
        id: "o".to_owned(),
        target: Some(report::Target::Run(Run {
            agent: Some(agent.clone()),
            task_id: "t".to_owned(),
            run_id: run.to_owned(),
            perturbation: String::new(),
        })),
        name: "outcome".to_owned(),
        score: Some(score),
        ..v1::Report::default()
    };
    let reports = vec![of_run("1", 1.0), of_run("2", 1.0), of_run("3", 0.0), v1::Report::default()];
    let channel =
        Endpoint::new(format!("http://{}", daemon.grpc)).unwrap().connect().await.unwrap();
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/agentgauge.v1.ReportService/Report");
    let codec = tonic_prost::ProstCodec::<ReportRequest, ReportResponse>::default();
    let request = tonic::Request::new(ReportRequest { reports });
    let answer = client.unary(request, path, codec).await.unwrap().into_inner();
    assert_eq!((answer.accepted, answer.rejected.len(), answer.rejected[0].index), (3, 1, 3));
    let settled = move || settles(&daemon, "a", "outcome_consistency", &json!(1.0 / 9.0));
    tokio::task::spawn_blocking(settled).await.unwrap();
}

/// A turn of agent `support` that is a run at the task `refund`, in a session of the run's name.
fn send_run(daemon: &Daemon, trace: u8, run: &str) {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let start = Clock::system().now().0;
    let span = json!({
        "traceId": format!("{trace:032x}"), "spanId": "0000000000000001", "name": "invoke_agent support",
        "startTimeUnixNano": start.to_string(), "endTimeUnixNano": (start + 1_000).to_string(),
        "attributes": [
            text("gen_ai.operation.name", "invoke_agent"), text("gen_ai.agent.name", "support"),
            text("gen_ai.conversation.id", &format!("session {run}")),
            text("agentgauge.task.id", "refund"), text("agentgauge.run.id", run),
        ],
    });
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": [text("service.name", "bench")] },
        "scopeSpans": [{ "spans": [span] }],
    }]});
    let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &body.to_string());
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn an_outcome_by_task_and_run_fails_its_trace_whether_it_comes_first_or_when_that_is_done() {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "100ms")]);
    let failed = |id: &str| {
        let run = run("support", "refund", id);
        send(&daemon, &[json!({ "id": "ci", "run": run, "name": "outcome", "label": "failure" })]);
    };
    let outcome = |id: &str| -> Value {
        let session = daemon.get(&format!("/api/v1/sessions/session%20{id}"));
        let session: Value = serde_json::from_str(&session).unwrap();
        session["traces"][0]["signals"]["outcome"]["score"].clone()
    };
    send_run(&daemon, 1, "after");
    daemon.settles_at("agentgauge_traces_total{service_name=\"bench\"", 1.0);
    assert_eq!(outcome("after"), Value::Null);
    failed("after");
    until(|| outcome("after") == json!(0.0));
    failed("first");
    send_run(&daemon, 2, "first");
    until(|| outcome("first") == json!(0.0));
    send_run(&daemon, 3, "neither");
    daemon.settles_at("agentgauge_traces_total{service_name=\"bench\"", 3.0);
    assert_eq!(outcome("neither"), Value::Null);
}

#[test]
fn an_outcome_of_a_trace_that_is_sealed_counts_in_whichever_shard_the_session_is() {
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__ENGINE__SHARDS", "3"),
        ("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "50ms"),
        ("AGENTGAUGE__ASSEMBLE__LATE_HORIZON", "50ms"),
    ]);
    for trace in 1..=6_u8 {
        send_run(&daemon, trace, &trace.to_string());
    }
    // None of them is held to be revised any more.
    daemon.settles_at("agentgauge_held_bytes{what=\"traces\"}", 0.0);
    let failed = |trace: u8| json!({ "id": "ci", "trace_id": format!("{trace:032x}"), "name": "outcome", "score": 0 });
    send(&daemon, &(1..=5).map(failed).collect::<Vec<_>>());
    // Each was sent twice, and the later one holds.
    daemon.settles_at("agentgauge_reports_total{outcome=\"late\"}", 10.0);
    daemon.settles_at("agentgauge_reports_total{outcome=\"applied\"}", 10.0);
    let outcome = |trace: u8| -> Value {
        let session = daemon.get(&format!("/api/v1/sessions/session%20{trace}"));
        let session: Value = serde_json::from_str(&session).unwrap();
        session["traces"][0]["signals"]["outcome"]["score"].clone()
    };
    for trace in 1..=5 {
        until(|| outcome(trace) == json!(0.0));
    }
    assert_eq!(outcome(6), Value::Null);
}

#[test]
fn a_report_that_says_it_is_of_the_future_can_be_corrected() {
    let daemon = Daemon::start();
    let outcome = || -> Value {
        let session = daemon.get("/api/v1/sessions/session%201");
        let session: Value = serde_json::from_str(&session).unwrap();
        session["traces"][0]["signals"]["outcome"]["score"].clone()
    };
    let report = |label: &str| json!({ "id": "ci", "run": run("support", "refund", "1"), "name": "outcome", "label": label });
    send_run(&daemon, 1, "1");
    daemon.settles_at("agentgauge_traces_total{service_name=\"bench\"", 1.0);
    let mut of_future = report("failure");
    of_future["time_unix_nano"] = json!(u64::MAX.to_string());
    send(&daemon, &[of_future]);
    until(|| outcome() == json!(0.0));
    send(&daemon, &[report("success")]);
    until(|| outcome() == json!(1.0));
    assert_eq!(outcome(), json!(1.0));
    // Each is sent twice.
    daemon.settles_at("agentgauge_spans_repaired_total{reason=\"time_in_future\"}", 2.0);
}

/// One broken rule on a span event is one of all runs, as the source's N is all tasks: it says nothing of how many were looked at.
#[test]
fn a_violation_on_one_of_a_hundred_runs_leaves_compliance_at_99_hundredths() {
    let daemon = Daemon::start();
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let end = Clock::system().now().0;
    let rule = json!([{
        "name": "agentgauge.constraint.violation", "timeUnixNano": end.to_string(),
        "attributes": [
            text("agentgauge.constraint.id", "no_pii"),
            text("agentgauge.constraint.severity", "high"),
        ],
    }]);
    let run = |number: u32| {
        json!({
            "traceId": format!("{:032x}", number + 1), "spanId": format!("{:016x}", number + 1),
            "name": "invoke_agent careful", "startTimeUnixNano": (end - 1_000_000_000).to_string(),
            "endTimeUnixNano": end.to_string(),
            "events": if number == 7 { rule.clone() } else { json!([]) },
            "attributes": [
                text("gen_ai.operation.name", "invoke_agent"), text("gen_ai.agent.name", "careful"),
                text("agentgauge.task.id", &format!("task {number}")),
                text("agentgauge.run.id", "first"), text("agentgauge.outcome", "success"),
            ],
        })
    };
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "bench")]},
        "scopeSpans": [{"spans": (0..100).map(run).collect::<Vec<_>>()}],
    }]});
    let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    for (score, expected) in [("compliance", 0.99), ("harm", 0.0), ("safety", 0.99)] {
        settles(&daemon, "careful", score, &json!(expected));
    }
}
