//! CPU per span, from request bytes to the gauges: pre-scan, decode, conventions, all stages.
//!
//! One thread, no network; divide by the spans of the workload, which the item counter shows. What a span takes in
//! instructions is the same in every run, however busy the machine is: `count spans|gauges lean|content PASSES` does
//! nothing but so many passes, for `valgrind --tool=callgrind`. Take one count from another with more passes, and
//! divide by the spans of those that it has more; each prints its own.

mod support;

use std::env;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use divan::Bencher;
use divan::counter::ItemsCount;
use support::{Content, Workload};

/// As in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Traces of one request, and requests of one pass.
const TRACES: u64 = 40;
const REQUESTS: u64 = 25;
const START: u64 = 1_790_000_000_000_000_000;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["count", what, content, passes, ..] = arguments[..] {
        count(what, content, passes);
    } else {
        divan::main();
    }
}

/// So many passes, and how many spans they had.
#[expect(clippy::expect_used, clippy::print_stdout, reason = "run by hand")]
fn count(what: &str, content: &str, passes: &str) {
    let content = if content == "content" { Content::Full } else { Content::Lean };
    let passes: u64 = passes.parse().expect("a number of passes");
    let (workload, requests) = workload(content);
    let decoder = decoder();
    for _ in 0..passes {
        if what == "gauges" {
            drop(divan::black_box(to_gauges(&decoder, &requests)));
        } else {
            to_spans(&decoder, &requests);
        }
    }
    println!("{} spans", passes * TRACES * REQUESTS * workload.spans_per_trace);
}

fn workload(content: Content) -> (Workload, Vec<Vec<u8>>) {
    let workload =
        Workload { agents: 10, sessions: 200, first_session: 0, spans_per_trace: 13, content };
    let requests =
        (0..REQUESTS).map(|number| workload.request(number * TRACES, TRACES, START)).collect();
    (workload, requests)
}

#[divan::bench(args = [Content::Lean, Content::Full])]
fn bytes_to_spans(bencher: Bencher<'_, '_>, content: Content) {
    let (workload, requests) = workload(content);
    let decoder = decoder();
    bencher
        .counter(ItemsCount::new(TRACES * REQUESTS * workload.spans_per_trace))
        .bench_local(|| to_spans(&decoder, &requests));
}

#[divan::bench(args = [Content::Lean, Content::Full])]
fn bytes_to_gauges(bencher: Bencher<'_, '_>, content: Content) {
    let (workload, requests) = workload(content);
    let decoder = decoder();
    bencher
        .counter(ItemsCount::new(TRACES * REQUESTS * workload.spans_per_trace))
        .bench_local(|| to_gauges(&decoder, &requests));
}

fn decoder() -> Decoder {
    Decoder::new(IngestLimits::default(), ConventionOptions::default())
}

fn to_spans(decoder: &Decoder, requests: &[Vec<u8>]) {
    for request in requests {
        divan::black_box(decode(decoder, request));
    }
}

fn to_gauges(decoder: &Decoder, requests: &[Vec<u8>]) -> Pipeline {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    for (number, request) in (0_u64..).zip(requests) {
        let now = Timestamp(START + number * 1_000_000_000);
        let batch = decode(decoder, request);
        pipeline.apply(batch.spans, batch.logs, batch.reports, now);
        pipeline.advance(now);
    }
    // Every trace gets done and its score reaches the board.
    pipeline.advance(Timestamp(START + (REQUESTS + 60) * 1_000_000_000));
    assert_eq!(pipeline.board().len(), 10);
    pipeline
}

#[expect(clippy::expect_used, reason = "the workload is valid")]
fn decode(decoder: &Decoder, request: &[u8]) -> agentgauge::ingest::Batch {
    decoder.decode_plain(Signal::Traces, Encoding::Protobuf, request).expect("valid")
}
