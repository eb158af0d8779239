//! The cost of a judge for the stages, which do not wait for it, in instructions: `count CASE PASSES` does nothing but this many
//! passes, for `valgrind --tool=callgrind`. Subtract one count from another with more passes, and divide by the difference in
//! items; each prints its own.
//!
//! `off`, `reads`, `full` and `away` measure from request bytes to done traces, without a judge and with one that reads, has no
//! room, or is unavailable, with texts, or without them after `lean`. `redact` redacts the transcript of one trace.

mod support;

use std::env;
use std::sync::Arc;

use agentgauge::engine::assemble::texts::SpanBatch;
use agentgauge::engine::assemble::{Assembler, Learned};
use agentgauge::engine::judging::JudgeAvailability;
use agentgauge::engine::options::{AssembleOptions, ConventionOptions, CostOptions, LoopOptions};
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::tenants::Shares;
use agentgauge::engine::trace::Transcript;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use agentgauge::judge::JudgeOptions;
use agentgauge::judge::options::Format;
use agentgauge::outbound::redact::Redactor;
use support::{Content, Workload};

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Traces of one request, and requests of one pass.
const TRACES: u64 = 40;
const REQUESTS: u64 = 25;
const SPANS: u64 = 13;
const START: u64 = 1_790_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

#[expect(clippy::expect_used, clippy::print_stdout, reason = "run by hand")]
fn main() {
    let requests = requests(env::args().any(|argument| argument == "lean"));
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (case, passes) = match arguments[..] {
        ["count", case, passes, ..] => (case, passes.parse().expect("a number of passes")),
        _ => ("reads", 1_u64),
    };
    if case == "redact" {
        let transcript = transcript(&requests);
        let options = JudgeOptions::default();
        let redactor = Redactor::new(&options.redact_keys, &options.redact_patterns).expect("ours");
        for _ in 0..passes {
            drop(divan::black_box(redactor.transcript(transcript.clone())));
        }
        println!("{passes} transcripts of {} bytes", transcript.bytes());
    } else {
        let asked: usize = (0..passes).map(|_| divan::black_box(pass(case, &requests)).len()).sum();
        println!("{} spans, {asked} transcripts", passes * TRACES * REQUESTS * SPANS);
    }
}

/// A transcript of one trace.
#[expect(clippy::expect_used, reason = "the workload has some")]
fn transcript(requests: &[Vec<u8>]) -> Transcript {
    pass("reads", requests).into_iter().next().expect("a share is sampled")
}

/// Turns of 13 spans, mostly with texts.
fn requests(lean: bool) -> Vec<Vec<u8>> {
    let workload = Workload {
        agents: 10,
        sessions: 200,
        first_session: 0,
        spans_per_trace: SPANS,
        content: if lean { Content::Lean } else { Content::Full },
    };
    (0..REQUESTS).map(|number| workload.request(number * TRACES, TRACES, START)).collect()
}

/// From request bytes to final traces; returns what was sent to a judge.
#[expect(clippy::expect_used, reason = "the workload is valid")]
fn pass(case: &str, requests: &[Vec<u8>]) -> Vec<Transcript> {
    let options = JudgeOptions { format: Format::Openai, ..JudgeOptions::default() };
    let rules = options.rules().filter(|_| case != "off");
    let conventions =
        ConventionOptions { keep_texts: rules.is_some(), ..ConventionOptions::default() };
    let decoder = Decoder::new(IngestLimits::default(), conventions);
    let assemble = AssembleOptions::default();
    let (idle, horizon) = (assemble.trace_idle, assemble.late_horizon);
    let mut known = Learned::new(&assemble, Shares::default());
    let mut stage =
        Assembler::new(assemble, LoopOptions::default(), &CostOptions::default()).judging(rules);
    stage.attend(match case {
        "full" => JudgeAvailability::Full(Arc::new([0].into())),
        "away" => JudgeAvailability::Away,
        _ => JudgeAvailability::Available,
    });
    let mut asked = Vec::new();
    let mut drain = |stage: &mut Assembler, now| {
        stage.handle_timeout(now, &known);
        drop(divan::black_box(stage.drain(&known)));
        known.learn(stage.lessons());
        let read = stage.requests().into_iter().filter(|request| !request.unread);
        asked.extend(read.map(|request| request.transcript));
    };
    for (number, request) in (0..).zip(requests) {
        let now = Timestamp(START + number * SECOND);
        let batch =
            decoder.decode_plain(Signal::Traces, Encoding::Protobuf, request).expect("valid");
        let places = (0..batch.spans.len()).collect();
        stage.spans(SpanBatch { all: Arc::new(batch.spans), places }, now);
        drain(&mut stage, now);
    }
    let last = Timestamp(START + REQUESTS * SECOND);
    let mut now = last;
    for _ in 0..idle.as_secs() + 2 {
        now = Timestamp(now.0 + SECOND);
        drain(&mut stage, now);
    }
    drain(&mut stage, now.after(horizon).after(idle));
    asked
}
