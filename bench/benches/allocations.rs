//! Allocations per span, from request bytes to the gauges: the table has those of a pass; divide by its items, which are spans.
//! Blocks that grow count as allocations too. As in the ingest bench, there is one thread and no network.

#[path = "support/pass.rs"]
mod pass;
mod support;

use divan::AllocProfiler;
use mimalloc::MiMalloc;

/// The daemon's allocator, with counters.
#[global_allocator]
static ALLOCATOR: AllocProfiler<MiMalloc> = AllocProfiler::new(MiMalloc);

fn main() {
    divan::main();
}
