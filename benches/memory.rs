//! Resident bytes per open trace and per session.
//!
//! Each figure is measured in a process of its own, by the growth of the resident set over many of them; traces that
//! are sealed are sealed as they come, so that the peak is what is held. Prints a table; `--test` runs it at a small
//! size.

mod support;

use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use support::{Content, Workload};

const START: u64 = 1_790_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// What is held when the resident set is read.
const CASES: [(&str, bool, u64); 3] = [
    ("open trace of 13 spans", true, 1),
    ("session of 1 closed trace", false, 1),
    ("session of 8 closed traces", false, 8),
];

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("measure") {
        let numbers: Vec<u64> = arguments.filter_map(|number| number.parse().ok()).collect();
        let [case, full, many] = numbers[..] else { return Err(io::Error::other("three numbers")) };
        return writeln!(
            io::stdout(),
            "{}",
            measure(usize::try_from(case).unwrap_or(0), full == 1, many)
        );
    }
    let smoke = std::env::args().any(|argument| argument == "--test");
    let many = if smoke { "300" } else { "10000" };
    let mut out = io::stdout().lock();
    writeln!(out, "{:<28} {:>12} {:>12}", "resident bytes per", "lean", "content")?;
    for (case, (name, ..)) in CASES.iter().enumerate() {
        let mut figures = Vec::new();
        for full in ["0", "1"] {
            let output = Command::new(std::env::current_exe()?)
                .args(["measure", &case.to_string(), full, many])
                .output()?;
            figures.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        writeln!(out, "{name:<28} {:>12} {:>12}", figures[0], figures[1])?;
    }
    Ok(())
}

#[expect(clippy::expect_used, reason = "the workload is valid")]
fn measure(case: usize, full: bool, many: u64) -> u64 {
    let (_, open, each) = CASES[case];
    let content = if full { Content::Full } else { Content::Lean };
    let workload = Workload { agents: 10, sessions: many, spans_per_trace: 13, content };
    let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
    let mut options = EngineOptions::default();
    if !open {
        (options.assemble.trace_idle, options.assemble.late_horizon) =
            (Duration::ZERO, Duration::ZERO);
    }
    options.session.session_idle = Duration::from_secs(1_000_000);
    let mut pipeline = Pipeline::new(&options, 1);
    // What is there before the first trace, or once, does not count.
    let mut before = 0;
    for (step, first) in (0..many * each).step_by(20).enumerate() {
        if first == many * each / 10 / 20 * 20 {
            before = resident_bytes();
        }
        let now = Timestamp(START + step as u64 * SECOND / 100);
        let request = workload.request(first, 20, START);
        let batch =
            decoder.decode_plain(Signal::Traces, Encoding::Protobuf, &request).expect("valid");
        pipeline.apply(batch.spans, batch.logs, batch.reports, now);
        if !open {
            pipeline.advance(now);
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    drop(pipeline);
    // A tenth of all was there before.
    grown * 10 / 9 / many
}

/// The resident set, as the kernel counts it.
#[expect(clippy::expect_used, reason = "Linux has it")]
fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("a proc file system");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .expect("resident pages");
    pages * 4096
}
