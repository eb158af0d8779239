//! The cost of a scrape: a thousand agents, rendered from the board, with the default families and with all; the item counter shows
//! series.

mod support;

use std::sync::Arc;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::Timestamp;
use agentgauge::export::board::Board;
use agentgauge::export::prometheus::{Detail, Exposition, Format, render};
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use divan::Bencher;
use divan::counter::ItemsCount;
use support::{Content, Workload};

const AGENTS: u64 = 1_000;
const START: u64 = 1_790_000_000_000_000_000;

fn main() {
    divan::main();
}

/// A board with three done traces of every agent.
#[expect(clippy::expect_used, reason = "the workload is valid")]
fn board() -> Arc<Board> {
    let workload = Workload {
        agents: AGENTS,
        sessions: AGENTS,
        first_session: 0,
        spans_per_trace: 5,
        content: Content::Lean,
    };
    let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    for first in (0..3 * AGENTS).step_by(100) {
        let request = workload.request(first, 100, START);
        let batch =
            decoder.decode_plain(Signal::Traces, Encoding::Protobuf, &request).expect("valid");
        pipeline.apply(batch.spans, batch.logs, batch.reports, Timestamp(START));
    }
    pipeline.advance(Timestamp(START + 20_000_000_000));
    let board = Arc::new(Board::default());
    pipeline.board().values().for_each(|update| board.apply(update.clone()));
    board
}

/// A scrape takes the page in pieces, as the daemon sends it.
#[divan::bench(args = [Detail::Core, Detail::Full])]
fn a_thousand_agents(bencher: Bencher<'_, '_>, detail: Detail) {
    let board = board();
    let page = render(&board.sorted(), Format::Text, detail);
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    bencher.counter(ItemsCount::new(series)).bench_local(|| {
        let pieces = Exposition::new(board.sorted(), Format::Text, detail);
        pieces.map(|piece| piece.len()).sum::<usize>()
    });
}
