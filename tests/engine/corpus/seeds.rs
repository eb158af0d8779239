//! Output of this code, or its input, as seeds for changes.

use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::facts::{Loop, SessionFacts, ToolCall, TraceFacts};
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::saved;
use agentgauge::engine::span::Timestamp;
use agentgauge::store::{
    Committer, Durability, KEPT, Kind, Opened, Record, Refused, Section, SnapshotWriter,
    StoreOptions, Watch,
};
use serde::Serialize;

use super::stored::{FILES, Memory};
use crate::recorded;

/// Nobody watches.
struct Nobody;

impl Watch for Nobody {
    fn nanos(&self) -> u64 {
        0
    }

    fn committed(&self, _: u64, _: u64, _: u64) {}

    fn missing(&self, _: &str) {}

    fn refused(&self, _: u64, _: u64, _: Refused) {}
}

/// The files of a store with a few records and a snapshot.
pub(super) fn store() -> Vec<Vec<u8>> {
    let disk = Memory::default();
    let options = StoreOptions { durability: Durability::Flush, ..StoreOptions::default() };
    let opened = Opened::open(Arc::new(disk.clone()), &options).unwrap();
    let budget = Arc::clone(opened.budget());
    let committer = Committer::start(opened, Duration::ZERO, Arc::new(Nobody)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (number, kind) in
        [Kind::Request, Kind::Judged, Kind::Clock, Kind::Request].iter().enumerate()
    {
        let arrival = Timestamp(number as u64);
        let payload = vec![b'x'; 8 * (number + 1)].into();
        let ticket = runtime.block_on(committer.append(Record { arrival, kind: *kind, payload }));
        ticket.unwrap().applied();
    }
    drop(committer);
    let mut snapshot = SnapshotWriter::begin(Arc::new(disk.clone()), budget, 2).unwrap();
    for name in ["clock", "assemble-0"] {
        let section = Section { name: name.to_owned(), bytes: name.repeat(9).into_bytes() };
        snapshot.section(&section).unwrap();
    }
    snapshot.finish(KEPT).unwrap();
    let files = disk.files().clone();
    let seeds = FILES.iter().enumerate().map(|(number, name)| {
        let found = files.iter().find(|(found, _)| found.starts_with(name));
        let (found, content) = found.unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()));
        let salt = found.strip_prefix(name).and_then(|rest| rest.strip_suffix(".wal"));
        let salt = salt.map_or(0, |salt| u32::from_str_radix(salt, 16).unwrap());
        let head = [&[u8::try_from(number).unwrap()], &salt.to_be_bytes()[..]].concat();
        [head, content.clone()].concat()
    });
    seeds.collect()
}

/// What stages hold of two captures.
pub(super) fn states() -> Vec<Vec<u8>> {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    let mut now = Timestamp(1_800_000_000_000_000_000);
    for capture in ["oi-openai", "openlit"] {
        for (spans, logs, reports) in recorded::batches(&recorded::captures().join(capture)) {
            pipeline.apply(spans, logs, reports, now);
            now = now.after(Duration::from_secs(20));
            pipeline.advance(now);
        }
    }
    let (_, assemble, sessions, agents) = pipeline.lasting();
    let states = [
        saved::write(&assemble[0].save()),
        saved::write(&sessions[0].save()),
        saved::write(&agents.save()),
    ];
    let seed = |(number, state): (usize, Result<Vec<u8>, _>)| {
        [vec![u8::try_from(number).unwrap()], state.unwrap()].concat()
    };
    states.into_iter().enumerate().map(seed).collect()
}

/// A record between stages, as it is written.
#[derive(Serialize)]
struct Envelope {
    message: Message,
    shard: u32,
    generation: u64,
    time: Timestamp,
}

#[derive(Serialize)]
enum Message {
    Trace(Box<TraceFacts>),
    Session(Box<SessionFacts>),
    Tick,
}

pub(super) fn records() -> Vec<Vec<u8>> {
    let update = TraceFacts {
        tools: vec![
            ToolCall::default(),
            ToolCall { name: Arc::from("search"), ..ToolCall::default() },
        ],
        loops: vec![Loop::default()],
        cost_quanta: Some(7),
        ..TraceFacts::default()
    };
    let session = SessionFacts { shard: 3, revision: 9, ..SessionFacts::default() };
    let messages =
        [Message::Trace(Box::new(update)), Message::Session(Box::new(session)), Message::Tick];
    let record = |message| {
        saved::write(&Envelope { message, shard: 3, generation: 5, time: Timestamp(9) }).unwrap()
    };
    let records: Vec<_> = messages.into_iter().map(record).collect();
    let read = |record: &Vec<u8>| agentgauge::fleet::rewritten(record).is_some();
    assert!(records.iter().all(read), "they are written as workers do");
    records
}

pub(super) fn replies() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"verdict": 0.5, "reason": "half of it"}"#,
        "```json\n{\"score\": 0.75, \"reason\": null}\n```",
        r#"{"score": 4, "label": "PASS", "rationale": "it says so"}"#,
        r#"{"violations": [{"rule": "no_pii", "violated": true, "severity": 0.9, "quote": "x"}]}"#,
        r#"{"task": "t", "outcome": "o"}"#,
        r#"{"tools_called": [{"name": "a"}], "available_tools": ["a", "b"]}"#,
        r#"{"choices": [{"message": {"content": "{\"verdict\": 1}"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 3}}"#,
        r#"{"content": [{"type": "text", "text": "{\"score\": 1}"}], "stop_reason": "end_turn", "usage": {"input_tokens": 10, "output_tokens": 3}}"#,
        r#"{"candidates": [{"content": {"parts": [{"text": "{}"}]}, "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2}}"#,
    ])
}

pub(super) fn configs() -> Vec<Vec<u8>> {
    let all = include_str!("../../../config/agentgauge.toml");
    let sections = all.split("\n[").skip(1).map(|section| format!("[{section}\n").into_bytes());
    let others = texts(&[
        include_str!("../../../config/starter.toml"),
        "assemble.trace_idle = \"5s\"\nsession.max_sessions = 10\nstore.durability = \"fsync\"\n",
        "[access]\ntokens = [{ name = \"a\", env = \"A\", tenant = \"t\", may = [\"ingest\"] }]\n[tenants]\nshares = { t = 0.5 }\n",
        "[[convention.logs]]\nscope = \"my\"\n[limits]\nagents = { a = { trace_cost_usd = 0.5, trace_duration = \"1h\" } }\n",
    ]);
    sections.chain(others).collect()
}

pub(super) fn queries() -> Vec<Vec<u8>> {
    texts(&[
        "/api/v1/sessions?detail=row&limit=25&sort=recent&offset=100000&open=true&loops=false&failing=true",
        "/api/v1/sessions?id=a%20b&tool=search&user=u&service_name=s&agent_name=&tenant=t&sort=cost",
        "/api/v1/sessions/a%2Fb?scope=shop&tenant=t",
        "/api/v1/traces/0102030405060708090a0b0c0d0e0f10?session=s&scope=x",
        "/api/v1/agents?service_name=s&agent_version=1&environment=production&limit=1000",
        "/api/v1/agents/history?service_name=s&agent_name=a&range=1d",
        "/api/v1/fleet?limit=10",
        "/api/v1/problems",
        "/api/v1/alerts",
        "/runbook/AgentStalled",
        "/metrics",
        "/assets/page.js",
    ])
}

pub(super) fn reports() -> Vec<Vec<u8>> {
    let body = r#"{"reports": [{"trace_id": "0102030405060708090a0b0c0d0e0f10", "name": "outcome", "score": 1, "label": "pass"},
        {"run": {"service_name": "s", "task": "t", "run": "1"}, "name": "confidence", "score": 0.5, "time_unix_nano": "5"},
        {"session_id": "s", "scope": "x", "name": "quality", "score": 0.25, "explanation": "\u00e9"}]}"#;
    let acceptance = r#"{"service_name": "s", "agent_name": "a", "stream": "verdict"}"#;
    let deployment = r#"{"service_name": "s", "agent_version": "2", "accept": true, "id": "d", "name": "n", "time_unix_nano": "7"}"#;
    let protobuf = b"\x0a\x14\x22\x01s\x1a\x07outcome\x29\0\0\0\0\0\0\xf0?";
    let parts: [&[u8]; 4] =
        [protobuf, body.as_bytes(), acceptance.as_bytes(), deployment.as_bytes()];
    let parts = parts.iter().enumerate();
    parts.map(|(kind, body)| [&[u8::try_from(kind).unwrap()], *body].concat()).collect()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
