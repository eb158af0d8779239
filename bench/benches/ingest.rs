//! CPU per span, from request bytes to the gauges: pre-scan, decode, conventions, all stages.
//!
//! One thread, no network; divide by the spans of the workload, which the item counter shows. The instructions per span are the
//! same in every run, however busy the machine is: `count spans|gauges lean|content PASSES` does nothing but this many passes, for
//! `valgrind --tool=callgrind`. Subtract one count from another with more passes, and divide by the difference in spans; each
//! prints its own.

#[path = "support/pass.rs"]
mod pass;
mod support;

use std::env;

use agentgauge::ingest::decode::Decoder;
use divan::Bencher;
use divan::counter::ItemsCount;
use pass::{REQUESTS, TRACES, decode, decoder, to_gauges, workload};
use support::Content;

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["count", what, content, passes, ..] = arguments[..] {
        count(what, content, passes);
    } else {
        divan::main();
    }
}

/// Runs this many passes, and prints how many spans they had.
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

#[divan::bench(args = [Content::Lean, Content::Full])]
fn bytes_to_spans(bencher: Bencher<'_, '_>, content: Content) {
    let (workload, requests) = workload(content);
    let decoder = decoder();
    bencher
        .counter(ItemsCount::new(TRACES * REQUESTS * workload.spans_per_trace))
        .bench_local(|| to_spans(&decoder, &requests));
}

fn to_spans(decoder: &Decoder, requests: &[Vec<u8>]) {
    for request in requests {
        divan::black_box(decode(decoder, request));
    }
}
