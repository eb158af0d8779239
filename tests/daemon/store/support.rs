//! The real binary with a store in a directory, the data of senders, and the results that it must show.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use serde_json::Value;

/// Looks before a test gives up, and the time between two of them.
pub(crate) const LOOKS: u32 = 400;
pub(crate) const BETWEEN: Duration = Duration::from_millis(50);

pub(crate) struct Daemon {
    pub(crate) process: Child,
    pub(crate) otlp_http: String,
    pub(crate) http: String,
}

pub(crate) fn command(directory: &Path, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
    command
        .args(["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"])
        .args(["--http", "127.0.0.1:0"])
        .env("AGENTGAUGE__STORE__DURABILITY", "fsync")
        .env("AGENTGAUGE__STORE__DIRECTORY", directory)
        .env("AGENTGAUGE__STORE__SEGMENT_BYTES", "65536")
        .env("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "131072")
        .env("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "300ms")
        .env("AGENTGAUGE__ASSEMBLE__ROOTLESS_IDLE", "20s")
        .env("AGENTGAUGE__ASSEMBLE__KEEP_CONTENT", "true")
        .envs(environment.iter().copied())
        .stdout(Stdio::piped());
    command
}

impl Daemon {
    pub(crate) fn start(directory: &Path, environment: &[(&str, &str)]) -> Self {
        Self::of(command(directory, environment).spawn().unwrap())
    }

    pub(crate) fn of(mut process: Child) -> Self {
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let bound: Value = serde_json::from_str(&line).unwrap();
        let address = |key: &str| bound[key].as_str().unwrap().to_owned();
        Self { process, otlp_http: address("otlp_http"), http: address("http") }
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.http).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Whether it says that it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz") == "ready\n"
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics");
        let line = page.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{page}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// All sessions, in the order of their first trace, then id.
    pub(crate) fn sessions(&self) -> Vec<Value> {
        let mut ids = Vec::new();
        loop {
            let path = format!("/api/v1/sessions?limit=500&offset={}", ids.len());
            let page: Value = serde_json::from_str(&self.get(&path)).unwrap();
            let page = page["sessions"].as_array().unwrap();
            if page.is_empty() {
                break;
            }
            ids.extend(page.iter().map(|row| row["session_id"].as_str().unwrap().to_owned()));
        }
        let view = |id: &String| self.get(&format!("/api/v1/sessions/{id}"));
        let views = ids.iter().map(|id| serde_json::from_str(&view(id)).unwrap());
        let mut sessions: Vec<Value> = views.collect();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        sessions.sort_by_key(|session| {
            (text(&session["traces"][0]["start_unix_nano"]), text(&session["session_id"]))
        });
        sessions
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    pub(crate) fn ends_well(self) {
        self.ends_well_by("-TERM");
    }

    pub(crate) fn ends_well_by(mut self, signal: &str) {
        self.signal(signal);
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }

    pub(crate) fn dies(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Gone already if the test ended it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a daemon that should not start.
pub(crate) fn fails(directory: &Path, environment: &[(&str, &str)]) -> String {
    let mut process = command(directory, environment).stderr(Stdio::piped()).spawn().unwrap();
    let mut bound = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut bound).unwrap();
    if !bound.is_empty() {
        // It has started, and would run for ever.
        process.kill().unwrap();
    }
    let Output { status, stderr, .. } = process.wait_with_output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert!(bound.is_empty() && !status.success(), "{bound}{text}");
    text
}

pub(crate) fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// A part of a trace, numbered by its trace; three traces make a session. The first part has the tool calls, some of
/// them in a loop, the second the root.
pub(crate) fn request(number: usize, base: u64) -> Vec<u8> {
    let (trace, root) = (number / 2, number % 2 == 1);
    let session = format!("session-{}", trace / 3);
    let start = base + trace as u64 * 1_000_000;
    let span = |id: u64, name: &str, attributes: Vec<KeyValue>| Span {
        trace_id: (trace as u128 + 1).to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: if id == 1 { Vec::new() } else { 1_u64.to_be_bytes().to_vec() },
        name: name.to_owned(),
        start_time_unix_nano: start + id * 1_000,
        end_time_unix_nano: start + id * 1_000 + 900 + u64::from(id == 1) * 100_000,
        attributes,
        ..Span::default()
    };
    let spans = if root {
        vec![span(
            1,
            "invoke_agent busy",
            vec![
                attribute("gen_ai.operation.name", "invoke_agent"),
                attribute("gen_ai.agent.name", &format!("agent-{}", trace % 5)),
                attribute("gen_ai.conversation.id", &session),
                attribute("gen_ai.output.messages", &format!("answer {} of {session}", trace % 4)),
                attribute("agentgauge.task.id", &format!("task-{}", trace % 3)),
                attribute("agentgauge.run.id", &format!("run-{trace}")),
                attribute("agentgauge.outcome", if trace % 11 < 8 { "success" } else { "failure" }),
            ],
        )]
    } else {
        let calls = 2 + trace as u64 % 5;
        let call = |id: u64| {
            let argument = if trace.is_multiple_of(4) { 0 } else { id };
            let failed = trace.is_multiple_of(7) && id == 3;
            let mut attributes = vec![
                attribute("gen_ai.operation.name", "execute_tool"),
                attribute("gen_ai.tool.name", "search"),
                attribute("gen_ai.tool.call.arguments", &format!("{{\"query\":{argument}}}")),
                attribute("gen_ai.tool.call.result", "nothing"),
            ];
            attributes.extend(failed.then(|| attribute("error.type", "timeout")));
            span(id, "execute_tool search", attributes)
        };
        (2..2 + calls).map(call).collect()
    };
    exported(spans)
}

/// A request with these spans.
pub(crate) fn exported(spans: Vec<Span>) -> Vec<u8> {
    // Agents of one namespace take part in each other's sessions.
    let attributes =
        vec![attribute("service.name", "shop"), attribute("service.namespace", "shop")];
    let resource = Resource { attributes, ..Resource::default() };
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    let spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec()
}

/// Posts a request; its status, or none if the daemon went away.
pub(crate) fn post(address: &str, body: &[u8]) -> Option<(u16, String)> {
    send(address, ("/v1/traces", "application/x-protobuf"), body)
}

/// Posts reports, likewise.
pub(crate) fn report(address: &str, reports: &Value) -> Option<(u16, String)> {
    let body = serde_json::json!({ "reports": reports }).to_string();
    send(address, ("/api/v1/reports", "application/json"), body.as_bytes())
}

pub(crate) fn send(address: &str, target: (&str, &str), body: &[u8]) -> Option<(u16, String)> {
    send_as(None, address, target, body)
}

/// Posts with a token.
pub(crate) fn send_as(
    token: Option<&str>,
    address: &str,
    (path, content_type): (&str, &str),
    body: &[u8],
) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n{}\
         content-length: {}\r\nconnection: close\r\n\r\n",
        token.unwrap_or_default(),
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer))
}

pub(crate) fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "spans of this test are of today")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

/// What all senders share.
pub(crate) struct Load {
    pub(crate) address: Mutex<String>,
    next: AtomicUsize,
    total: usize,
    pub(crate) acknowledged: Mutex<BTreeSet<usize>>,
    recordings: PathBuf,
    base: u64,
    pub(crate) over: AtomicBool,
}

impl Load {
    /// This many senders at work on this many requests.
    pub(crate) fn start(
        daemon: &Daemon,
        recordings: &Path,
        senders: usize,
        total: usize,
    ) -> (Arc<Self>, Vec<JoinHandle<()>>) {
        let load = Arc::new(Self {
            address: Mutex::new(daemon.otlp_http.clone()),
            next: AtomicUsize::new(0),
            total,
            acknowledged: Mutex::default(),
            recordings: recordings.to_owned(),
            base: now(),
            over: AtomicBool::new(false),
        });
        let sender = || {
            let load = Arc::clone(&load);
            std::thread::spawn(move || load.send())
        };
        let senders = (0..senders).map(|_| sender()).collect();
        (load, senders)
    }

    /// Sends requests one after the other, each until it is acknowledged, as an exporter does.
    fn send(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.total {
                return;
            }
            let body = request(number, self.base);
            fs::write(self.recordings.join(format!("{number:06}-traces.pb")), &body).unwrap();
            while !self.over.load(Ordering::Relaxed) {
                let address = self.address.lock().unwrap().clone();
                match post(&address, &body) {
                    Some((200, _)) => break,
                    Some((503, _)) | None => std::thread::park_timeout(Duration::from_millis(5)),
                    Some((status, answer)) => panic!("{status}: {answer}"),
                }
            }
            self.acknowledged.lock().unwrap().insert(number);
        }
    }
}

/// The traces that are shown, by number.
pub(crate) fn traces(sessions: &[Value]) -> BTreeSet<usize> {
    // A session that is not there yet has none.
    let traces = sessions.iter().flat_map(|session| session["traces"].as_array());
    traces
        .flatten()
        .map(|trace| usize::from_str_radix(trace["trace_id"].as_str().unwrap(), 16).unwrap() - 1)
        .collect()
}

pub(crate) fn replayed(recordings: &Path) -> Value {
    replayed_with(recordings, &[])
}

/// Likewise, with these settings.
pub(crate) fn replayed_with(recordings: &Path, environment: &[(&str, &str)]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .args(["replay", "--output", "json"])
        .arg(recordings)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What of an agent is the same whenever it is looked at: its scores over all traces and all runs.
pub(crate) const LASTING: [&str; 9] = [
    "service_name",
    "agent_name",
    "traces",
    "reliability",
    "consistency",
    "scores",
    "score_samples",
    "ars",
    "tasks",
];

pub(crate) fn scores(agents: &Value) -> Vec<String> {
    let agents = agents.as_array().unwrap().iter();
    let mut scores: Vec<_> = agents
        .filter(|agent| agent["traces"].as_u64() > Some(0))
        .map(|agent| LASTING.map(|key| agent[key].to_string()).join(" "))
        .collect();
    scores.sort();
    scores
}

/// Waits until agents have the scores of a replay.
pub(crate) fn equal_scores(daemon: &Daemon, expected: &Value) {
    let mut agents = Value::Null;
    for _ in 0..LOOKS {
        agents = serde_json::from_str(&daemon.get("/api/v1/agents")).unwrap();
        if scores(&agents["agents"]) == scores(&expected["agents"]) {
            break;
        }
        std::thread::park_timeout(BETWEEN);
    }
    assert_eq!(scores(&agents["agents"]), scores(&expected["agents"]));
}
