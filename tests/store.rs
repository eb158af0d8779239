//! The real binary with a store: killed under load, ended in order, with damaged, full and foreign directories.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use serde_json::Value;

/// Looks before a test gives up, and the time between two of them.
const LOOKS: u32 = 400;
const BETWEEN: Duration = Duration::from_millis(50);

/// How the name of the log's first file begins.
const FIRST_SEGMENT: &str = "log-00000000000000000001-";

struct Daemon {
    process: Child,
    otlp_http: String,
    http: String,
}

fn command(directory: &Path, environment: &[(&str, &str)]) -> Command {
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
    fn start(directory: &Path, environment: &[(&str, &str)]) -> Self {
        Self::of(command(directory, environment).spawn().unwrap())
    }

    fn of(mut process: Child) -> Self {
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let bound: Value = serde_json::from_str(&line).unwrap();
        let address = |key: &str| bound[key].as_str().unwrap().to_owned();
        Self { process, otlp_http: address("otlp_http"), http: address("http") }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.http).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn metric(&self, name: &str) -> f64 {
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
    fn sessions(&self) -> Vec<Value> {
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

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    fn ends_well(mut self) {
        self.signal("-TERM");
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }

    fn dies(mut self) {
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

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// A part of a trace, numbered by its trace; three traces make a session. The first part has the tool calls, some of
/// them in a loop, the second the root.
fn request(number: usize, base: u64) -> Vec<u8> {
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
    let resource =
        Resource { attributes: vec![attribute("service.name", "shop")], ..Resource::default() };
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    let spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec()
}

/// Posts a request; its status, or none if the daemon went away.
fn post(address: &str, body: &[u8]) -> Option<(u16, String)> {
    send(address, ("/v1/traces", "application/x-protobuf"), body)
}

/// Posts reports, likewise.
fn report(address: &str, reports: &Value) -> Option<(u16, String)> {
    let body = serde_json::json!({ "reports": reports }).to_string();
    send(address, ("/api/v1/reports", "application/json"), body.as_bytes())
}

fn send(address: &str, target: (&str, &str), body: &[u8]) -> Option<(u16, String)> {
    send_as(None, address, target, body)
}

/// Posts with a token.
fn send_as(
    token: Option<&str>,
    address: &str,
    (path, content_type): (&str, &str),
    body: &[u8],
) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: {content_type}\r\n{}\
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

fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "spans of this test are of today")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

/// What all senders share.
struct Load {
    address: Mutex<String>,
    next: AtomicUsize,
    total: usize,
    acknowledged: Mutex<BTreeSet<usize>>,
    recordings: PathBuf,
    base: u64,
    over: AtomicBool,
}

impl Load {
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
fn traces(sessions: &[Value]) -> BTreeSet<usize> {
    // A session that is not there yet has none.
    let traces = sessions.iter().flat_map(|session| session["traces"].as_array());
    traces
        .flatten()
        .map(|trace| usize::from_str_radix(trace["trace_id"].as_str().unwrap(), 16).unwrap() - 1)
        .collect()
}

fn replayed(recordings: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .args(["replay", "--output", "json"])
        .arg(recordings)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(name: &str, default: usize) -> usize {
    let found = std::env::vars_os().find(|(key, _)| key == name);
    found.map_or(default, |(_, value)| value.to_str().unwrap().parse().unwrap())
}

/// What of an agent is the same whenever it is looked at: its scores over all traces and all runs.
const LASTING: [&str; 9] = [
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

fn scores(agents: &Value) -> Vec<String> {
    let agents = agents.as_array().unwrap().iter();
    let mut scores: Vec<_> = agents
        .filter(|agent| agent["traces"].as_u64() > Some(0))
        .map(|agent| LASTING.map(|key| agent[key].to_string()).join(" "))
        .collect();
    scores.sort();
    scores
}

fn survives_kills(durability: &str, kills: usize) {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let environment = [("AGENTGAUGE__STORE__DURABILITY", durability)];
    let mut daemon = Daemon::start(store.path(), &environment);
    let load = Arc::new(Load {
        address: Mutex::new(daemon.otlp_http.clone()),
        next: AtomicUsize::new(0),
        total: (kills + 1) * 60,
        acknowledged: Mutex::default(),
        recordings: recordings.path().to_owned(),
        base: now(),
        over: AtomicBool::new(false),
    });
    let senders: Vec<_> = (0..6)
        .map(|_| {
            let load = Arc::clone(&load);
            std::thread::spawn(move || load.send())
        })
        .collect();
    let mut replays = 0.0;
    for kill in 1..=kills {
        // Somewhere in the middle of what is under way.
        while load.acknowledged.lock().unwrap().len() < kill * 60 - 17 {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let acknowledged = load.acknowledged.lock().unwrap().clone();
        daemon.dies();
        daemon = Daemon::start(store.path(), &environment);
        assert_eq!(daemon.get("/readyz"), "ready\n");
        let shown = traces(&daemon.sessions());
        let lost: Vec<usize> = acknowledged
            .iter()
            .map(|number| number / 2)
            .filter(|trace| !shown.contains(trace))
            .collect();
        assert!(lost.is_empty(), "kill {kill}: acknowledged, and lost: {lost:?}");
        assert!(daemon.metric("agentgauge_store_recovered{what=\"lost_records\"}") < 1.0);
        replays += daemon.metric("agentgauge_store_recovered{what=\"records\"}");
        load.address.lock().unwrap().clone_from(&daemon.otlp_http);
    }
    for sender in senders {
        sender.join().unwrap();
    }
    assert_eq!(load.acknowledged.lock().unwrap().len(), load.total);
    assert!(replays > 0.0, "nothing was ever replayed");
    equals_the_replay(&daemon, recordings.path());
    daemon.ends_well();
    // In order, there is nothing to replay, and nothing changes.
    let daemon = Daemon::start(store.path(), &environment);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 1.0);
    equals_the_replay(&daemon, recordings.path());
    if durability == "fsync" {
        let mut names = fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let first = names.find(|name| name.to_string_lossy().starts_with(FIRST_SEGMENT));
        assert_eq!(first, None, "the log is never let go");
    }
}

/// Waits until every trace is done, and compares what is shown with an offline replay of what was acknowledged.
fn equals_the_replay(daemon: &Daemon, recordings: &Path) {
    let expected = replayed(recordings);
    equal_scores(daemon, &expected);
    let sessions = daemon.sessions();
    let expected = expected["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), expected.len());
    for (session, expected) in sessions.iter().zip(expected) {
        assert_eq!(session, expected, "bit for bit");
    }
}

/// Waits until agents have the scores of a replay.
fn equal_scores(daemon: &Daemon, expected: &Value) {
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

#[test]
fn no_kill_loses_what_was_acknowledged_and_the_scores_are_those_of_a_replay() {
    survives_kills("fsync", number("AGENTGAUGE_KILLS", 20));
}

#[test]
fn what_is_flushed_outlives_the_process() {
    survives_kills("flush", number("AGENTGAUGE_KILLS", 20).div_ceil(5));
}

/// A trace of an agent that begins to fail at a certain one, from now.
fn drifting(trace: usize, fails_from: usize) -> Vec<u8> {
    let start = now();
    let span = |id: u64, parent: u64, attributes: Vec<KeyValue>| Span {
        trace_id: (trace as u128 + 1).to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: if parent == 0 { Vec::new() } else { parent.to_be_bytes().to_vec() },
        name: "step".to_owned(),
        start_time_unix_nano: start,
        end_time_unix_nano: start + 1_000,
        attributes,
        ..Span::default()
    };
    let mut root = vec![
        attribute("gen_ai.operation.name", "invoke_agent"),
        attribute("gen_ai.agent.name", "drifting"),
        attribute("gen_ai.conversation.id", &format!("session-{trace}")),
    ];
    let mut call = vec![
        attribute("gen_ai.operation.name", "execute_tool"),
        attribute("gen_ai.tool.name", "search"),
    ];
    if trace >= fails_from {
        root.push(attribute("error.type", "timeout"));
        call.push(attribute("error.type", "timeout"));
    }
    let resource =
        Resource { attributes: vec![attribute("service.name", "shop")], ..Resource::default() };
    let scope_spans = vec![ScopeSpans {
        spans: vec![span(1, 0, root), span(2, 1, call)],
        ..ScopeSpans::default()
    }];
    let spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec()
}

/// What was reported of a run.
fn reported(number: usize) -> Value {
    let run = serde_json::json!({
        "agent": { "service_name": "bench", "agent_name": "reported" },
        "task_id": format!("task-{}", number % 4),
        "run_id": number.to_string(),
    });
    serde_json::json!([
        { "id": "ci", "run": run, "name": "outcome", "score": number % 7 > 1 },
        { "id": "self", "run": run, "name": "confidence", "score": (number % 10) as f64 / 10.0 },
    ])
}

/// An agent by its name.
fn agent(daemon: &Daemon, name: &str) -> Value {
    let agents: Value = serde_json::from_str(&daemon.get("/api/v1/agents")).unwrap();
    let found = agents["agents"].as_array().unwrap().iter();
    let mut found = found.filter(|agent| agent["agent_name"] == name);
    found.next().cloned().unwrap_or(Value::Null)
}

#[test]
fn runs_that_were_only_reported_and_shifts_of_scores_outlive_kills() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Long enough for a restart: a trace that came later than this would be left out.
    let environment = [
        ("AGENTGAUGE__DRIFT__LAG", "8s"),
        ("AGENTGAUGE__ENGINE__SHARDS", "3"),
        // Some of what comes back is in a snapshot, some in the log.
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "4096"),
    ];
    let mut daemon = Daemon::start(store.path(), &environment);
    let (total, kills) = (100, [13, 50, 61, 90]);
    for number in 0..total {
        let body = drifting(number, 50);
        fs::write(recordings.path().join(format!("{number:06}-traces.pb")), &body).unwrap();
        assert_eq!(post(&daemon.otlp_http, &body).unwrap().0, 200);
        assert_eq!(report(&daemon.http, &reported(number)).unwrap().0, 200);
        if kills.contains(&number) {
            daemon.dies();
            daemon = Daemon::start(store.path(), &environment);
            assert_eq!(daemon.get("/readyz"), "ready\n");
            let scores = &agent(&daemon, "reported")["score_samples"];
            assert_eq!(scores["accuracy"].as_u64(), Some(number as u64 + 1), "{scores}");
        }
    }
    // Another one, that never died and was told the same.
    let other = tempfile::tempdir().unwrap();
    let undisturbed = Daemon::start(other.path(), &environment);
    for number in 0..total {
        assert_eq!(report(&undisturbed.http, &reported(number)).unwrap().0, 200);
    }
    for daemon in [&undisturbed, &daemon] {
        let all = (0..LOOKS).any(|_| {
            std::thread::park_timeout(BETWEEN);
            agent(daemon, "reported")["score_samples"]["accuracy"].as_u64() == Some(total as u64)
        });
        assert!(all, "{}", agent(daemon, "reported")["score_samples"]);
    }
    for key in LASTING {
        let told = agent(&undisturbed, "reported")[key].clone();
        assert_eq!(agent(&daemon, "reported")[key], told, "{key}");
    }
    let expected = replayed(recordings.path());
    let expected = &expected["agents"][0]["change_points"];
    assert!(!expected.as_array().unwrap().is_empty());
    let shown = |daemon: &Daemon| {
        let found = (0..LOOKS).any(|_| {
            std::thread::park_timeout(BETWEEN);
            agent(daemon, "drifting")["change_points"] == *expected
        });
        assert!(found, "{} is not {expected}", agent(daemon, "drifting")["change_points"]);
    };
    shown(&daemon);
    daemon.ends_well();
    shown(&Daemon::start(store.path(), &environment));
}

#[test]
fn a_stop_under_load_loses_nothing_and_leaves_nothing_to_replay() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start(store.path(), &[]);
    let load = Arc::new(Load {
        address: Mutex::new(daemon.otlp_http.clone()),
        next: AtomicUsize::new(0),
        total: usize::MAX,
        acknowledged: Mutex::default(),
        recordings: recordings.path().to_owned(),
        base: now(),
        over: AtomicBool::new(false),
    });
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let load = Arc::clone(&load);
            std::thread::spawn(move || load.send())
        })
        .collect();
    while load.acknowledged.lock().unwrap().len() < 150 {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    daemon.ends_well();
    load.over.store(true, Ordering::Relaxed);
    // What was under way at the end was not acknowledged: it is among the last few.
    let before = load.acknowledged.lock().unwrap().clone();
    for sender in senders {
        sender.join().unwrap();
    }
    let daemon = Daemon::start(store.path(), &[]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 1.0);
    let shown = traces(&daemon.sessions());
    for number in before {
        assert!(shown.contains(&(number / 2)), "request {number} is lost");
    }
}

/// Starts a daemon that should not start.
fn fails(directory: &Path, environment: &[(&str, &str)]) -> String {
    let Output { status, stderr, .. } =
        command(directory, environment).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "{text}");
    text
}

#[test]
fn a_directory_that_cannot_be_used_is_named_with_its_setting() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    let text = fails(store.path(), &[]);
    assert!(text.contains("`store.directory`") && text.contains("in use"), "{text}");
    daemon.ends_well();
    let file = store.path().join("lock");
    let text = fails(&file, &[]);
    assert!(text.contains("`store.directory`") && text.contains("lock"), "{text}");
    let text = fails(Path::new(""), &[]);
    assert!(text.contains("`store.directory`"), "{text}");
}

/// A copy of what a release left behind.
fn left_behind(release: &str) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/store").join(release);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, store.path().join(path.file_name().unwrap())).unwrap();
    }
    store
}

#[test]
fn what_an_earlier_release_left_behind_is_read_and_what_a_later_one_did_is_refused() {
    let store = left_behind("0.1");
    let daemon = Daemon::start(store.path(), &[]);
    for (what, count) in [("records", 10.0), ("bad_snapshots", 0.0), ("lost_records", 0.0)] {
        let found = daemon.metric(&format!("agentgauge_store_recovered{{what=\"{what}\"}}"));
        assert!((found - count).abs() < 0.5, "{what}: {found}");
    }
    // Its records say nothing of tenants: they are nobody's.
    let page: Value = serde_json::from_str(&daemon.get("/api/v1/agents")).unwrap();
    let agents = page["agents"].as_array().unwrap();
    assert!(!agents.is_empty() && agents.iter().all(|agent| agent.get("tenant").is_none()));
    daemon.ends_well();
    let store = left_behind("0.1");
    let name = "snapshot-00000000000000000040";
    let mut bytes = fs::read(store.path().join(name)).unwrap();
    bytes[6] = 9;
    let sum = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    fs::write(store.path().join(name), bytes).unwrap();
    let text = fails(store.path(), &[]);
    assert!(text.contains(name) && text.contains("`store.directory`"), "{text}");
    assert!(text.contains("format 9"), "{text}");
}

/// Senders with tenants, and one without; whoever asks needs no token, and so sees all.
const TENANTS: &str = r#"[access]
open = ["read", "metrics"]
tokens = [
  { name = "shop", env = "SHOP", tenant = "shop", may = ["ingest"] },
  { name = "bank", env = "BANK", tenant = "bank", may = ["ingest"] },
  { name = "plain", env = "PLAIN", may = ["ingest"] },
]
"#;

#[test]
fn what_is_replayed_is_whose_it_was() {
    let store = tempfile::tempdir().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), TENANTS).unwrap();
    let senders = [("SHOP", "shop"), ("BANK", "bank"), ("PLAIN", "")];
    let token = |variable: &str| format!("a-token-of-{variable}-0123456789");
    let start = || {
        let mut command = command(store.path(), &[]);
        command.arg("--config").arg(config.path());
        command.envs(senders.map(|(variable, _)| (variable, token(variable))));
        Daemon::of(command.spawn().unwrap())
    };
    let shown = |daemon: &Daemon| {
        senders.map(|(_, tenant)| {
            let path = format!("/api/v1/sessions/session-0?tenant={tenant}");
            let session: Value = serde_json::from_str(&daemon.get(&path)).unwrap();
            let reported = session["signals"]["helpfulness"]["score"].as_f64();
            (session["agent"]["tenant"].clone(), reported, traces(&[session]))
        })
    };
    let daemon = start();
    let base = now();
    // One session id, and to each sender a trace of it; what is reported of a session is its sender's alone.
    for (trace, (variable, _)) in senders.into_iter().enumerate() {
        let token = token(variable);
        for number in [2 * trace, 2 * trace + 1] {
            let target = ("/v1/traces", "application/x-protobuf");
            let body = request(number, base);
            let answer = send_as(Some(&token), &daemon.otlp_http, target, &body).unwrap();
            assert_eq!(answer.0, 200, "{}", answer.1);
        }
        let score = serde_json::json!({
            "session_id": "session-0", "name": "helpfulness", "score": trace as f64 / 4.0
        });
        let body = serde_json::json!({ "reports": [score] }).to_string();
        let target = ("/api/v1/reports", "application/json");
        let answer = send_as(Some(&token), &daemon.http, target, body.as_bytes()).unwrap();
        assert_eq!(answer.0, 200, "{}", answer.1);
    }
    let expected = [("shop", 0_u8), ("bank", 1), ("", 2)].map(|(tenant, trace)| {
        let tenant = if tenant.is_empty() { Value::Null } else { tenant.into() };
        (tenant, Some(f64::from(trace) / 4.0), BTreeSet::from([usize::from(trace)]))
    });
    let mut before = shown(&daemon);
    for _ in 0..LOOKS {
        if before == expected {
            break;
        }
        std::thread::park_timeout(BETWEEN);
        before = shown(&daemon);
    }
    assert_eq!(before, expected);
    daemon.dies();
    // From the log alone, then from a snapshot.
    for records in [9.0, 0.0] {
        let daemon = start();
        let found = daemon.metric("agentgauge_store_recovered{what=\"records\"}");
        assert!((found - records).abs() < 0.5, "{found}");
        assert_eq!(shown(&daemon), expected);
        daemon.ends_well();
    }
}

#[test]
fn a_full_disk_refuses_for_now_and_loses_nothing_when_there_is_room_again() {
    let store = tempfile::tempdir().unwrap();
    // No file can grow beyond this; to the log it is a disk without room.
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -S -f 40; exec \"$0\" \"$@\"";
    let inner = command(store.path(), &[("AGENTGAUGE__LOG__LEVEL", "error")]);
    shell.args(["-c", script]).arg(inner.get_program()).args(inner.get_args());
    shell.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let daemon = Daemon::of(shell.stdout(Stdio::piped()).spawn().unwrap());
    let base = now();
    let mut acknowledged = 0;
    loop {
        match post(&daemon.otlp_http, &request(acknowledged, base)).unwrap() {
            (200, _) => acknowledged += 1,
            (503, answer) => break assert!(answer.to_lowercase().contains("retry-after")),
            (status, answer) => panic!("{status}: {answer}"),
        }
        assert!(acknowledged < 1_000, "the limit never bites");
    }
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"write\"}") > 0.5);
    let id = daemon.process.id().to_string();
    assert!(
        Command::new("prlimit")
            .args(["--fsize=unlimited", "--pid", &id])
            .status()
            .unwrap()
            .success()
    );
    for _ in 0..20 {
        assert_eq!(post(&daemon.otlp_http, &request(acknowledged, base)).unwrap().0, 200);
        acknowledged += 1;
    }
    daemon.dies();
    let daemon = Daemon::start(store.path(), &[]);
    let shown = traces(&daemon.sessions());
    assert!((0..acknowledged).all(|number| shown.contains(&(number / 2))), "{shown:?}");
}

/// Calls that say that a sync failed, as long as a file is there.
const BROKEN_SYNC: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int broken(void) { return access(getenv("BROKEN_DISK"), F_OK) == 0; }
    int fsync(int fd) { errno = EIO; return broken() ? -1 : syscall(SYS_fsync, fd); }
    int fdatasync(int fd) { errno = EIO; return broken() ? -1 : syscall(SYS_fdatasync, fd); }
"#;

/// What a disk says after a sync that failed is not to be believed: it may have dropped what it could not write.
#[cfg(target_os = "linux")]
#[test]
fn a_sync_that_failed_ends_the_process_with_an_error_and_nothing_acknowledged_is_lost() {
    let (store, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [source, library, broken] =
        ["sync.c", "sync.so", "broken"].map(|name| tools.path().join(name));
    fs::write(&source, BROKEN_SYNC).unwrap();
    // As the crate's own parts in C are compiled.
    let compiler =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiler.unwrap().success());
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("BROKEN_DISK", broken.to_str().unwrap()),
        ("AGENTGAUGE__LOG__LEVEL", "error"),
    ];
    let mut inner = command(store.path(), &environment);
    let mut daemon = Daemon::of(inner.stderr(Stdio::piped()).spawn().unwrap());
    let (base, acknowledged) = (now(), 40);
    for number in 0..acknowledged {
        assert_eq!(post(&daemon.otlp_http, &request(number, base)).unwrap().0, 200);
    }
    fs::write(&broken, "").unwrap();
    // It ends, so that it may have no time to answer.
    let answer = post(&daemon.otlp_http, &request(acknowledged, base));
    assert!(answer.is_none_or(|(status, _)| status == 503));
    let mut said = String::new();
    daemon.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(daemon.process.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("`store.directory`") && said.contains("failed to sync"), "{said}");
    drop(daemon);
    let daemon = Daemon::start(store.path(), &[]);
    let shown = traces(&daemon.sessions());
    assert!((0..acknowledged).all(|number| shown.contains(&(number / 2))), "{shown:?}");
}

/// However few bytes they are: what a start takes its time over is bounded.
#[test]
fn what_is_replayed_is_bounded_in_spans_too() {
    let store = tempfile::tempdir().unwrap();
    let environment = [
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "1000000000"),
        ("AGENTGAUGE__STORE__SNAPSHOT_SPANS", "60"),
    ];
    let daemon = Daemon::start(store.path(), &environment);
    let (base, mut sent) = (now(), 0);
    let written = "agentgauge_store_snapshots_total{outcome=\"written\"} 2";
    while !daemon.get("/metrics").contains(written) {
        assert!(sent < 5_000);
        assert_eq!(post(&daemon.otlp_http, &request(sent, base)).unwrap().0, 200);
        sent += 1;
    }
    daemon.dies();
    let daemon = Daemon::start(store.path(), &environment);
    let replayed = daemon.metric("agentgauge_store_recovered{what=\"records\"}");
    assert!(sent > 20 && replayed < sent as f64 / 2.0, "{replayed} of {sent}");
    assert_eq!(traces(&daemon.sessions()).len(), sent.div_ceil(2));
}

/// Waits until a session is shown as a replay shows it.
fn equals(daemon: &Daemon, session: &Value) {
    let path = format!("/api/v1/sessions/{}", session["session_id"].as_str().unwrap());
    let mut shown = Value::Null;
    for _ in 0..LOOKS {
        shown = serde_json::from_str(&daemon.get(&path)).unwrap_or_default();
        if shown == *session {
            break;
        }
        std::thread::park_timeout(BETWEEN);
    }
    assert_eq!(shown, *session, "bit for bit");
}

/// Files of sessions for which there was no room.
fn away(store: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.to_string_lossy().contains("/away-")).collect();
    files.sort();
    files
}

/// Room for two sessions in each shard.
const LITTLE_ROOM: [(&str, &str); 4] = [
    ("AGENTGAUGE__SESSION__MAX_SESSIONS", "2"),
    ("AGENTGAUGE__ENGINE__SHARDS", "2"),
    ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "20000"),
    ("AGENTGAUGE__STORE__SEGMENT_BYTES", "20000"),
];

/// All first parts, then all second ones, each acknowledged: every session is left alone for long.
fn speak_again(daemon: &mut Daemon, (store, recordings): (&Path, &Path), count: usize) {
    let base = now();
    let order = (0..count).step_by(2).chain((1..count).step_by(2));
    for (place, number) in order.enumerate() {
        let body = request(number, base);
        fs::write(recordings.join(format!("{place:06}-traces.pb")), &body).unwrap();
        assert_eq!(post(&daemon.otlp_http, &body).unwrap().0, 200);
        if place % (count / 4) == count / 8 {
            daemon.process.kill().unwrap();
            daemon.process.wait().unwrap();
            *daemon = Daemon::start(store, &LITTLE_ROOM);
        }
    }
}

/// Many more sessions than there is room for: the others are on disk, are spoken of again, and kills change nothing of that.
#[test]
fn sessions_that_left_for_want_of_room_come_back() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 400);
    let expected = replayed(recordings.path());
    expected["sessions"].as_array().unwrap().iter().for_each(|session| equals(&daemon, session));
    equal_scores(&daemon, &expected);
    assert!(daemon.metric("agentgauge_held{what=\"sessions_away\"}") > 50.0);
    assert!(daemon.metric("agentgauge_sessions_away_total{event=\"returned\"}") > 10.0);
    assert!(daemon.metric("agentgauge_store_bytes{what=\"away\"}") > 10_000.0);
    assert!(!daemon.get("/metrics").contains("event=\"lost\""));
    assert!(!daemon.get("/metrics").contains("limit=\"sessions_evicted\""));
    let list: Value = serde_json::from_str(&daemon.get("/api/v1/sessions")).unwrap();
    assert_eq!(list["partial"], true, "those that are away are in no list");
    daemon.ends_well();
    // What is away is named in the snapshot: nothing is replayed, and with room for all the same is shown.
    let daemon = Daemon::start(store.path(), &[("AGENTGAUGE__ENGINE__SHARDS", "2")]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 1.0);
    expected["sessions"].as_array().unwrap().iter().for_each(|session| equals(&daemon, session));
    equal_scores(&daemon, &expected);
}

#[test]
fn damage_to_a_session_on_disk_costs_that_one_alone() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 240);
    let expected = replayed(recordings.path());
    let sessions = expected["sessions"].as_array().unwrap();
    sessions.iter().for_each(|session| equals(&daemon, session));
    daemon.ends_well();
    let hurt = "session-17";
    let mut found = 0;
    for path in away(store.path()) {
        let mut bytes = fs::read(&path).unwrap();
        let places: Vec<usize> = (0..bytes.len().saturating_sub(hurt.len()))
            .filter(|at| bytes[*at..].starts_with(hurt.as_bytes()))
            .collect();
        places.iter().for_each(|at| bytes[*at] ^= 1);
        found += places.len();
        fs::write(&path, bytes).unwrap();
    }
    assert!(found > 0);
    let daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    let others = sessions.iter().filter(|session| session["session_id"] != hurt);
    others.for_each(|session| equals(&daemon, session));
    assert!(daemon.get(&format!("/api/v1/sessions/{hurt}")).contains("error"));
    // Whoever speaks of it again finds that out.
    let score = serde_json::json!({ "session_id": hurt, "name": "quality", "score": 0.5 });
    let (status, answer) = report(&daemon.http, &serde_json::json!([score])).unwrap();
    assert_eq!(status, 200, "{answer}");
    let lost = "agentgauge_sessions_away_total{event=\"lost\"} 1\n";
    let told = (0..LOOKS).any(|_| {
        std::thread::park_timeout(BETWEEN);
        daemon.get("/metrics").contains(lost)
    });
    assert!(told, "{}", daemon.get("/metrics"));
}

/// They go with the second snapshot that names nothing in them; what is away stays within its part of the budget.
#[test]
fn files_of_sessions_that_are_not_needed_go() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 240);
    daemon.ends_well();
    let before = away(store.path());
    assert!(before.len() > 2, "{before:?}");
    // Sessions close, and are let go of: nothing that is there is needed any more.
    let soon = [("AGENTGAUGE__SESSION__SESSION_IDLE", "500ms")];
    let environment: Vec<_> = LITTLE_ROOM.into_iter().chain(soon).collect();
    let daemon = Daemon::start(store.path(), &environment);
    let base = now();
    let gone = (0..LOOKS).any(|look| {
        let body = request(10_000 + usize::try_from(look).unwrap(), base);
        assert_eq!(post(&daemon.otlp_http, &body).unwrap().0, 200);
        std::thread::park_timeout(BETWEEN);
        let after = away(store.path());
        !before.iter().any(|path| after.contains(path))
    });
    assert!(gone, "{:?}", away(store.path()));
}

#[test]
fn files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let store = parent.path().join("made");
    let daemon = Daemon::start(&store, &[]);
    assert_eq!(post(&daemon.otlp_http, &request(0, now())).unwrap().0, 200);
    daemon.ends_well();
    assert_eq!(fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in fs::read_dir(&store).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
}

#[test]
fn damage_in_the_middle_is_named_and_can_be_skipped() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    for number in 0..40 {
        assert_eq!(post(&daemon.otlp_http, &request(number, now())).unwrap().0, 200);
    }
    daemon.dies();
    let logs = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("log-");
    let log = fs::read_dir(store.path()).unwrap().map(Result::unwrap).find(logs).unwrap().path();
    let mut bytes = fs::read(&log).unwrap();
    bytes[2_000] ^= 4;
    fs::write(&log, bytes).unwrap();
    let text = fails(store.path(), &[]);
    let name = log.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(name) && text.contains("byte") && text.contains("skip"), "{text}");
    let daemon = Daemon::start(store.path(), &[("AGENTGAUGE__STORE__DAMAGED_RECORDS", "skip")]);
    let count =
        |what: &str| daemon.metric(&format!("agentgauge_store_recovered{{what=\"{what}\"}}"));
    assert!((0.5..1.5).contains(&count("lost_records")) && count("records") > 38.5);
}

#[test]
fn over_its_budget_it_refuses_for_now_and_goes_on_when_a_snapshot_has_freed_some() {
    let store = tempfile::tempdir().unwrap();
    let environment = [
        ("AGENTGAUGE__INGEST__MAX_REQUEST_BYTES", "65536"),
        ("AGENTGAUGE__INGEST__MAX_DECODED_BYTES", "67108864"),
        ("AGENTGAUGE__STORE__MAX_BYTES", "1200000"),
        // Only the budget asks for one.
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "1000000000"),
    ];
    let daemon = Daemon::start(store.path(), &environment);
    let (base, mut refused, mut number) = (now(), 0, 0);
    while refused < 3 || number < 4_000 {
        match post(&daemon.otlp_http, &request(number % 300, base)).unwrap() {
            (200, _) => number += 1,
            (503, answer) => {
                assert!(answer.to_lowercase().contains("retry-after"), "{answer}");
                refused += 1;
                std::thread::park_timeout(Duration::from_millis(20));
            }
            (status, answer) => panic!("{status}: {answer}"),
        }
        if number >= 20_000 {
            panic!("the budget never bites");
        }
    }
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"budget\"}") > 2.5);
    assert!(daemon.metric("agentgauge_store_snapshots_total{outcome=\"written\"}") > 0.5);
    let size = |entry: fs::DirEntry| entry.metadata().unwrap().len();
    let bytes: u64 = fs::read_dir(store.path()).unwrap().map(|entry| size(entry.unwrap())).sum();
    assert!(bytes < 1_300_000, "{bytes}");
    daemon.ends_well();
}
