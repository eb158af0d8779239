//! A daemon whose time a test controls: spans arrive over OTLP, and exported values are read over HTTP.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::clock::Hand;

/// Unix seconds.
const START: u64 = 1_800_000_000;

/// Seconds between two batches of an exporter, and between two scrapes.
const BATCH: u64 = 5;

/// A daemon, the time, and all names of agents under which a series ever existed.
struct Watched {
    daemon: Daemon,
    hand: Hand,
    now: u64,
    names: BTreeSet<String>,
}

impl Watched {
    async fn start() -> Self {
        let mut config = Config::default();
        let listen = &mut config.listen;
        for address in [&mut listen.otlp_grpc, &mut listen.otlp_http, &mut listen.http] {
            "127.0.0.1:0".clone_into(address);
        }
        let (clock, hand) = Hand::clock(START);
        let daemon = Daemon::start_by(clock, &config).await.unwrap();
        Self { daemon, hand, now: START, names: BTreeSet::new() }
    }

    /// Time passes; exported values are checked as often as an exporter sends.
    async fn pass(&mut self, seconds: u64) {
        let end = self.now + seconds;
        while self.now < end {
            let step = BATCH.min(end - self.now);
            self.now += step;
            self.hand.pass(step);
            self.look().await;
        }
    }

    async fn send(&mut self, span: Value) {
        let text =
            |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": [text("service.name", "shop")] },
            "scopeSpans": [{ "spans": [span] }],
        }]});
        let address = self.daemon.bound().otlp_http.unwrap();
        let (status, answer) = call(address, "POST", "/v1/traces", &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        self.look().await;
    }

    /// The page of metrics, once everything due has been done.
    async fn look(&mut self) -> String {
        // Timers run after the inputs that came with a barrier, so their results pass with the next barrier, stage by stage.
        for _ in 0..3 {
            self.daemon.flush().await;
        }
        let (status, page) = call(self.daemon.bound().http, "GET", "/metrics", "").await;
        assert_eq!(status, 200);
        let named = page.split("gen_ai_agent_name=\"").skip(1);
        self.names.extend(named.map(|rest| rest.split('"').next().unwrap().to_owned()));
        page
    }
}

/// Status and answer of a request.
async fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A span of a run, begun and ended at these seconds.
fn span(run: u64, id: u64, start: u64, end: u64, attributes: &[(&str, &str)]) -> Value {
    let text =
        |(key, value): &(&str, &str)| json!({ "key": key, "value": { "stringValue": value } });
    let parent = if id == 1 { String::new() } else { format!("{:016x}", 1) };
    json!({
        "traceId": format!("{:032x}", run + 1), "spanId": format!("{id:016x}"), "parentSpanId": parent,
        "name": "step", "startTimeUnixNano": (start * 1_000_000_000).to_string(),
        "endTimeUnixNano": (end * 1_000_000_000).to_string(),
        "attributes": attributes.iter().map(text).collect::<Vec<_>>(),
        "status": { "code": if id == 1 { 2 } else { 0 } },
    })
}

/// A failing run as an SDK sends it, each span when it ends: a model call, a slow tool call, and the root, which alone names agent
/// and session.
async fn run(watched: &mut Watched, run: u64, step: u64) {
    let begun = watched.now;
    watched.pass(1).await;
    let chat = [("gen_ai.operation.name", "chat")];
    watched.send(span(run, 2, begun, begun + 1, &chat)).await;
    watched.pass(step).await;
    let tool = [("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", "search")];
    watched.send(span(run, 3, begun + 1, begun + 1 + step, &tool)).await;
    watched.pass(1).await;
    let conversation = format!("conversation {run}");
    let root = [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "support"),
        ("gen_ai.conversation.id", conversation.as_str()),
    ];
    watched.send(span(run, 1, begun, watched.now, &root)).await;
}

/// The sum of all series whose line contains all of this.
fn sum(page: &str, parts: &[&str]) -> f64 {
    let lines = page.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

async fn five_failing_runs_are_their_agents(step: u64) {
    let mut watched = Watched::start().await;
    let verdicts = "agentgauge_trace_evaluations_total{";
    for number in 0..5 {
        run(&mut watched, number, step).await;
        watched.pass(30).await;
        let page = watched.look().await;
        let of = |verdict: &str| sum(&page, &[verdicts, "signal=\"trace_risk\"", verdict]);
        let counted = (of("verdict=\"fail\""), of("verdict=\"pass\""));
        assert_eq!(counted, ((number + 1) as f64, 0.0), "{step} s, run {number}");
    }
    // The same long after: nothing was waiting to be counted under another name.
    watched.pass(3_700).await;
    let page = watched.look().await;
    let of_agent =
        [verdicts, "gen_ai_agent_name=\"support\"", "signal=\"trace_risk\"", "verdict=\"fail\""];
    assert!((sum(&page, &of_agent) - 5.0).abs() < f64::EPSILON, "{page}");
    assert!((sum(&page, &["agentgauge_traces_total{"]) - 5.0).abs() < f64::EPSILON, "{page}");
    assert!(sum(&page, &["agentgauge_late_spans_total{outcome=\"dropped\"}"]).abs() < f64::EPSILON);
    let names: Vec<&str> = watched.names.iter().map(String::as_str).collect();
    assert_eq!(names, ["support"], "a series under a name that no span said");
    watched.daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_takes_90_seconds_makes_no_phantom() {
    five_failing_runs_are_their_agents(90).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_takes_7_minutes_makes_no_phantom() {
    five_failing_runs_are_their_agents(420).await;
}
