//! One pass of the workload, from request bytes to the gauges.

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use divan::Bencher;
use divan::counter::ItemsCount;

use crate::support::{Content, Workload};

/// Traces of one request, and requests of one pass.
pub(crate) const TRACES: u64 = 40;
pub(crate) const REQUESTS: u64 = 25;
const START: u64 = 1_790_000_000_000_000_000;

pub(crate) fn workload(content: Content) -> (Workload, Vec<Vec<u8>>) {
    let workload =
        Workload { agents: 10, sessions: 200, first_session: 0, spans_per_trace: 13, content };
    let requests =
        (0..REQUESTS).map(|number| workload.request(number * TRACES, TRACES, START)).collect();
    (workload, requests)
}

pub(crate) fn decoder() -> Decoder {
    Decoder::new(IngestLimits::default(), ConventionOptions::default())
}

#[divan::bench(args = [Content::Lean, Content::Full])]
fn bytes_to_gauges(bencher: Bencher<'_, '_>, content: Content) {
    let (workload, requests) = workload(content);
    let decoder = decoder();
    bencher
        .counter(ItemsCount::new(TRACES * REQUESTS * workload.spans_per_trace))
        .bench_local(|| to_gauges(&decoder, &requests));
}

pub(crate) fn to_gauges(decoder: &Decoder, requests: &[Vec<u8>]) -> Pipeline {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    for (number, request) in (0_u64..).zip(requests) {
        let now = Timestamp(START + number * 1_000_000_000);
        let batch = decode(decoder, request);
        pipeline.apply(batch.spans, batch.logs, batch.reports, now);
        pipeline.advance(now);
    }
    // Every trace is done and its score reaches the board.
    pipeline.advance(Timestamp(START + (REQUESTS + 60) * 1_000_000_000));
    assert_eq!(pipeline.board().len(), 10);
    pipeline
}

#[expect(clippy::expect_used, reason = "the workload is valid")]
pub(crate) fn decode(decoder: &Decoder, request: &[u8]) -> agentgauge::ingest::Batch {
    decoder.decode_plain(Signal::Traces, Encoding::Protobuf, request).expect("valid")
}
