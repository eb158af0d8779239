//! Allocations per span, from request bytes to the gauges: the table has those of a pass; divide by its items, which are spans.
//! Blocks that grow count as allocations too. As in the ingest bench, there is one thread and no network.

#[path = "support/pass.rs"]
mod pass;
mod support;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};
use mimalloc::MiMalloc;
use pass::{REQUESTS, TRACES, decoder, to_gauges, workload};
use support::Content;

/// As in the daemon, with counters.
#[global_allocator]
static ALLOCATOR: AllocProfiler<MiMalloc> = AllocProfiler::new(MiMalloc);

fn main() {
    divan::main();
}

#[divan::bench(args = [Content::Lean, Content::Full], sample_count = 10, sample_size = 1)]
fn bytes_to_gauges(bencher: Bencher<'_, '_>, content: Content) {
    let (workload, requests) = workload(content);
    let decoder = decoder();
    bencher
        .counter(ItemsCount::new(TRACES * REQUESTS * workload.spans_per_trace))
        .bench_local(|| to_gauges(&decoder, &requests));
}
