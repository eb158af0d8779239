//! The webhook against a scripted endpoint.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ring::hmac;
use serde_json::{Value, json};

use agentgauge::clock::Clock;

use crate::support::daemon::{Daemon, until};

const DEADLINE: Duration = Duration::from_secs(30);
const SECRET: &str = "a secret of ours";

/// One request: its headers by lower-case name, and its body.
struct Call {
    head: String,
    body: String,
}

impl Call {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).unwrap().1
    }

    fn is_signed(&self) -> bool {
        let text = format!("{}.{}", self.header("x-agentgauge-timestamp"), self.body);
        let tag = self.header("x-agentgauge-signature").strip_prefix("v1=").unwrap();
        let tag: Vec<u8> = (0..tag.len() / 2)
            .map(|at| u8::from_str_radix(&tag[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        hmac::verify(&key, text.as_bytes(), &tag).is_ok()
    }
}

/// Answers with these statuses, one after the other, then always with the last; returns its address, and the received calls.
fn endpoint(statuses: &'static [u16]) -> (String, Receiver<Call>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/runaway", listener.local_addr().unwrap());
    let (sender, calls) = mpsc::channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.iter();
        let mut status = 200;
        for stream in listener.incoming() {
            status = statuses.next().copied().unwrap_or(status);
            if sender.send(answer(stream.unwrap(), status)).is_err() {
                return;
            }
        }
    });
    (url, calls)
}

fn answer(mut stream: TcpStream, status: u16) -> Call {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let call = Call { head: head.to_owned(), body: body.to_owned() };
        if body.len() == call.header("content-length").parse::<usize>().unwrap() {
            write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .unwrap();
            return call;
        }
    }
}

fn daemon(url: &str, more: &[(&str, &str)]) -> Daemon {
    let mut environment = vec![
        ("AGENTGAUGE__WEBHOOK__URL", url),
        ("AGENTGAUGE__WEBHOOK__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__WEBHOOK__SEVERITY", "warning"),
        ("AGENTGAUGE_WEBHOOK_SECRET", SECRET),
    ];
    environment.extend(more);
    Daemon::start_with(&environment)
}

const SENT: &str = "agentgauge_webhook_sessions_total{outcome=\"sent\"}";

/// A running turn: this many model calls of an agent, without the root that comes last, or with it.
fn turn(calls: u64, is_over: bool) -> String {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let end = Clock::system().now().0;
    let span = |id: u64, operation: &str, seconds: u64| {
        json!({
            "traceId": format!("{:032x}", 7), "spanId": format!("{id:016x}"), "name": "span",
            "parentSpanId": if id == 1 { String::new() } else { format!("{:016x}", 1) },
            "startTimeUnixNano": (end - seconds * 1_000_000_000).to_string(), "endTimeUnixNano": end.to_string(),
            "attributes": [
                text("gen_ai.operation.name", operation), text("gen_ai.agent.name", "deep"),
                text("gen_ai.conversation.id", "research"), text("gen_ai.request.model", "of-ours"),
            ],
        })
    };
    let root = is_over.then(|| span(1, "invoke_agent", calls + 1));
    let chats = (0..calls).map(|call| span(call + 2, "chat", calls - call));
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "shop")]},
        "scopeSpans": [{"spans": chats.chain(root).collect::<Vec<_>>()}],
    }]})
    .to_string()
}

/// How many sessions pass a filter.
fn listed(daemon: &Daemon, filter: &str) -> u64 {
    let list = daemon.get(&format!("/api/v1/sessions?detail=row&{filter}"));
    serde_json::from_str::<Value>(&list).unwrap()["total"].as_u64().unwrap()
}

/// The session that is the example of a kind of problem.
fn example(daemon: &Daemon, kind: &str) -> String {
    let found: Value = serde_json::from_str(&daemon.get("/api/v1/problems")).unwrap();
    let problems = found["problems"].as_array().unwrap();
    let problem = problems.iter().find(|problem| problem["kind"] == kind).unwrap();
    problem["session"]["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_run_over_a_limit_is_told_while_it_runs() {
    let (url, calls) = endpoint(&[200]);
    let daemon = daemon(
        &url,
        &[
            ("AGENTGAUGE__WEBHOOK__DRY_RUN", "false"),
            ("AGENTGAUGE__WEBHOOK__SEVERITY", "critical"),
            ("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "100ms"),
            ("AGENTGAUGE__SESSION__STALL_AFTER", "1s"),
            ("AGENTGAUGE__LIMITS__AGENTS", "{ deep = { trace_model_calls = 10 } }"),
        ],
    );
    let series = |family: &str, labels: &str| {
        format!("agentgauge_{family}{{service_name=\"shop\",gen_ai_agent_name=\"deep\"{labels}}}")
    };
    let limit = ",kind=\"run_limit\",limit=\"model_calls\",run=\"trace\"";
    let send = |calls, is_over| {
        let (status, answer) =
            daemon.post_to(&daemon.otlp_http, "/v1/traces", &turn(calls, is_over));
        assert_eq!(status, 200, "{answer}");
    };
    send(9, false);
    daemon.settles_at(&series("agent_stalled_traces", ""), 1.0);
    assert!(!daemon.get("/metrics").contains("agentgauge_sessions_over_limit{"));
    assert_eq!(listed(&daemon, "silent=true"), 1);
    assert_eq!(listed(&daemon, "silent=false") + listed(&daemon, "over_limit=true"), 0);
    assert_eq!(example(&daemon, "stall"), "research");
    send(12, false);
    daemon.settles_at(&series("sessions_over_limit", limit), 1.0);
    let body: Value = serde_json::from_str(&calls.recv_timeout(DEADLINE).unwrap().body).unwrap();
    assert_eq!((&body["kind"], &body["limit"]), (&"run_limit".into(), &"model_calls".into()));
    assert_eq!((&body["severity"], &body["session_id"]), (&"critical".into(), &"research".into()));
    assert_eq!(
        body["limits"],
        json!([{"limit": "model_calls", "run": "trace", "used": 12.0, "most": 10.0}])
    );
    assert_eq!(listed(&daemon, "over_limit=true"), 1);
    assert_eq!(example(&daemon, "run_limit"), "research");
    send(12, true);
    daemon.settles_at(&series("run_limits_exceeded_total", limit), 1.0);
    daemon.settles_at(&series("traces_total", ""), 1.0);
    let stalled = series("agent_stalled_traces", "");
    until(|| !daemon.get("/metrics").contains(&stalled));
    assert!(!daemon.get("/metrics").contains(&stalled));
    let explained: Value =
        serde_json::from_str(&daemon.get(&format!("/api/v1/traces/{:032x}", 7))).unwrap();
    assert_eq!(explained["trace"]["limits"][0]["most"], 10.0);
}

/// A running turn of this agent, in its own session: three model calls in three seconds, and, before them, a tool call.
fn run_of(agent: &str, number: u64, with_tool: bool) -> String {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let count =
        |key: &str, value: u64| json!({"key": key, "value": {"intValue": value.to_string()}});
    let end = Clock::system().now().0;
    let span = |id: u64, seconds: u64, attributes: Vec<Value>| {
        let own = [text("gen_ai.agent.name", agent), text("gen_ai.conversation.id", agent)];
        json!({
            "traceId": format!("{:032x}", 100 + number), "spanId": format!("{:016x}", 1_000 * number + id),
            "name": "span", "parentSpanId": format!("{:016x}", 1_000 * number),
            "startTimeUnixNano": (end - seconds * 1_000_000_000).to_string(), "endTimeUnixNano": end.to_string(),
            "attributes": own.into_iter().chain(attributes).collect::<Vec<_>>(),
        })
    };
    let chat = |id: u64| {
        let cost = json!({"key": "gen_ai.usage.cost", "value": {"doubleValue": 0.5}});
        let told =
            [count("gen_ai.usage.input_tokens", 100), count("gen_ai.usage.output_tokens", 10)];
        let call =
            [text("gen_ai.operation.name", "chat"), text("gen_ai.request.model", "ours"), cost];
        span(1 + id, 3 - id, call.into_iter().chain(told).collect())
    };
    let call =
        vec![text("gen_ai.operation.name", "execute_tool"), text("gen_ai.tool.name", "look")];
    let tool = with_tool.then(|| span(9, 4, call));
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "shop")]},
        "scopeSpans": [{"spans": tool.into_iter().chain((0..3).map(chat)).collect::<Vec<_>>()}],
    }]})
    .to_string()
}

#[test]
fn every_run_limit_is_shown_while_the_run_goes_on_and_no_other_one() {
    let limits = [
        ("model_calls", "3"),
        ("tool_calls", "1"),
        ("tokens", "330"),
        ("cost_usd", "1.5"),
        ("duration", "\"3s\""),
        ("calls_without_tool", "3"),
    ];
    let all = ["trace", "session"].map(|run| limits.map(|(limit, most)| (run, limit, most)));
    let all: Vec<_> = all.into_iter().flatten().collect();
    let tables = all
        .iter()
        .map(|(run, limit, most)| format!("{run}_{limit}_agent = {{ {run}_{limit} = {most} }}"));
    let tables = format!("{{ {} }}", tables.collect::<Vec<_>>().join(", "));
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "100ms"),
        ("AGENTGAUGE__LIMITS__AGENTS", &tables),
    ]);
    for (number, (run, limit, _)) in (1..).zip(&all) {
        // Of sessions, traces without any tool call are counted.
        let with_tool = (*run, *limit) != ("session", "calls_without_tool");
        let body = run_of(&format!("{run}_{limit}_agent"), number, with_tool);
        let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &body);
        assert_eq!(status, 200, "{answer}");
    }
    for (run, limit, _) in &all {
        let series = format!(
            "agentgauge_sessions_over_limit{{service_name=\"shop\",gen_ai_agent_name=\"{run}_{limit}_agent\",kind=\"run_limit\",limit=\"{limit}\",run=\"{run}\"}}"
        );
        daemon.settles_at(&series, 1.0);
    }
    let page = daemon.get("/metrics");
    let over = page.lines().filter(|line| line.starts_with("agentgauge_sessions_over_limit{"));
    assert_eq!(over.count(), all.len(), "{page}");
}

#[test]
fn a_looping_session_is_told_once_signed_and_with_evidence() {
    let (url, calls) = endpoint(&[503, 200]);
    let daemon = daemon(&url, &[("AGENTGAUGE__WEBHOOK__DRY_RUN", "false")]);
    daemon.send_capture("oi-openai");
    let (first, second) =
        (calls.recv_timeout(DEADLINE).unwrap(), calls.recv_timeout(DEADLINE).unwrap());
    assert!(first.is_signed() && second.is_signed());
    assert_eq!(first.body, second.body);
    assert_eq!(first.header("x-agentgauge-delivery"), second.header("x-agentgauge-delivery"));
    let body: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!(body["event"], "session_runaway");
    assert_eq!(body["session_id"], "sess-7f3a-0001");
    let page = body["url"].as_str().unwrap();
    assert!(
        page.starts_with("http://127.0.0.1:9464/#/session/sess%2D7f3a%2D0001?scope="),
        "{page}"
    );
    assert!(body["scope"].is_string());
    assert_eq!((&body["kind"], &body["severity"]), (&"exact_repeat".into(), &"warning".into()));
    let found = &body["loops"][0];
    assert_eq!(found["tool"], "search_docs");
    assert!(found["count"].as_u64().unwrap() >= 3);
    assert!(!second.body.contains("Mars"), "an argument got out: {}", second.body);
    assert!(!daemon.get("/metrics").contains(SECRET));
    daemon.settles_at(SENT, 1.0);
    // The session keeps looping: there is no further call.
    assert!(calls.recv_timeout(Duration::from_millis(500)).is_err());
}

#[test]
fn what_is_replayed_after_a_crash_is_not_told_again() {
    is_not_told_again(Daemon::crashes);
}

/// There is nothing to replay then: the last snapshot has all.
#[test]
fn what_was_told_before_a_stop_is_not_told_again() {
    is_not_told_again(Daemon::ends_well);
}

fn is_not_told_again(ends: impl FnOnce(Daemon)) {
    let (url, calls) = endpoint(&[200]);
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        daemon(
            &url,
            &[
                ("AGENTGAUGE__WEBHOOK__DRY_RUN", "false"),
                ("AGENTGAUGE__WEBHOOK__SEVERITY", "critical"),
                ("AGENTGAUGE__LIMITS__TRACE_MODEL_CALLS", "3"),
                ("AGENTGAUGE__LIMITS__TRACE_TOOL_CALLS", "1"),
                ("AGENTGAUGE__STORE__DURABILITY", "fsync"),
                ("AGENTGAUGE__STORE__DIRECTORY", folder.path().to_str().unwrap()),
            ],
        )
    };
    let send = |daemon: &Daemon, body: &str| {
        let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", body);
        assert_eq!(status, 200, "{answer}");
    };
    let told =
        || -> Value { serde_json::from_str(&calls.recv_timeout(DEADLINE).unwrap().body).unwrap() };
    let first = start();
    send(&first, &run_of("first", 1, false));
    assert_eq!(told()["session_id"], "first");
    first.settles_at(SENT, 1.0);
    ends(first);
    let second = start();
    until(|| second.get("/readyz").contains("ready\n"));
    send(&second, &run_of("second", 2, false));
    assert_eq!(told()["session_id"], "second");
    // A change of the first one is held back, as it was reported within the cooldown.
    let over = "agentgauge_webhook_sessions_total{outcome=\"cooldown\"}";
    send(&second, &run_of("first", 3, true));
    second.settles_at(over, 1.0);
    second.settles_at(SENT, 1.0);
}

#[test]
fn a_call_that_is_under_way_at_a_stop_is_finished() {
    let (url, calls) = endpoint(&[503, 200]);
    let daemon = daemon(&url, &[("AGENTGAUGE__WEBHOOK__DRY_RUN", "false")]);
    daemon.send_capture("oi-openai");
    let first = calls.recv_timeout(DEADLINE).unwrap();
    daemon.ends_well();
    // It ended after the second attempt.
    assert_eq!(calls.try_recv().unwrap().body, first.body);
}

#[test]
fn by_default_nothing_is_sent() {
    let (url, calls) = endpoint(&[200]);
    let daemon = daemon(&url, &[]);
    daemon.send_capture("oi-openai");
    daemon.settles_at("agentgauge_webhook_sessions_total{outcome=\"dry_run\"}", 1.0);
    assert!(!daemon.get("/metrics").contains(SENT));
    assert!(calls.try_recv().is_err());
}

#[test]
fn a_loop_that_is_not_bad_enough_is_not_told() {
    let (url, calls) = endpoint(&[200]);
    let daemon = daemon(
        &url,
        &[
            ("AGENTGAUGE__WEBHOOK__DRY_RUN", "false"),
            ("AGENTGAUGE__WEBHOOK__SEVERITY", "critical"),
            ("AGENTGAUGE__LIMITS__TRACE_COST_USD", "1.5"),
        ],
    );
    daemon.send_capture("oi-openai");
    daemon.metric("agentgauge_loops_detected_total{");
    // A session over a limit is critical: calls are made in order, so the first one is about it.
    let run = run_of("costly", 1, false);
    let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &run);
    assert_eq!(status, 200, "{answer}");
    let first: Value = serde_json::from_str(&calls.recv_timeout(DEADLINE).unwrap().body).unwrap();
    assert_eq!(first["session_id"], "costly");
    daemon.settles_at(SENT, 1.0);
}

#[test]
fn what_the_endpoint_refuses_is_not_sent_again() {
    let (url, calls) = endpoint(&[400]);
    let daemon = daemon(&url, &[("AGENTGAUGE__WEBHOOK__DRY_RUN", "false")]);
    daemon.send_capture("oi-openai");
    assert!(calls.recv_timeout(DEADLINE).unwrap().is_signed());
    daemon.settles_at("agentgauge_webhook_sessions_total{outcome=\"failed\"}", 1.0);
    assert!(calls.recv_timeout(Duration::from_millis(1_500)).is_err());
}

#[test]
fn a_webhook_that_cannot_be_used_stops_the_start() {
    for (url, allow, words) in [
        ("https://hook.example/runaway", "false", "webhook.secret_file"),
        ("http://hook.example/runaway", "false", "webhook.allow_http"),
        ("http://169.254.169.254/", "true", "link-local"),
        ("nowhere", "false", "webhook.url"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
            .args(["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"])
            .args(["--http", "127.0.0.1:0"])
            .env("AGENTGAUGE__WEBHOOK__URL", url)
            .env("AGENTGAUGE__WEBHOOK__ALLOW_HTTP", allow)
            .env_remove("AGENTGAUGE_WEBHOOK_SECRET")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(64), "{url}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(words), "{url}: {message}");
    }
}
