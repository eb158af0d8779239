//! Resident bytes per open trace, session, run and task.
//!
//! Each figure is measured in a process of its own, by the growth of the resident set over many of them; traces that
//! are sealed are sealed as they come, so that the peak is what is held. Prints a table; `--test` runs it at a small
//! size.

mod support;

use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use agentgauge::engine::count::Counts;
use agentgauge::engine::options::{AgentOptions, ConventionOptions};
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::run_scores::AgentRuns;
use agentgauge::engine::score::ars::ArsOptions;
use agentgauge::engine::score::princeton::TaskOptions;
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::update::{Attempt, RunTrace};
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use support::{Content, Workload};

const START: u64 = 1_790_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// What is held when the resident set is read.
const CASES: [(&str, Held); 6] = [
    ("open trace of 13 spans", Held::Traces { open: true, each: 1 }),
    ("session of 1 closed trace", Held::Traces { open: false, each: 1 }),
    ("session of 8 closed traces", Held::Traces { open: false, each: 8 }),
    ("run of 8 calls, in all windows", Held::Runs { per_task: 1_000, old: false }),
    ("task of 10 runs, in all windows", Held::Runs { per_task: 10, old: false }),
    ("task of 10 old runs, in one", Held::Runs { per_task: 10, old: true }),
];

#[derive(Clone, Copy)]
enum Held {
    /// Traces, so many of each session.
    Traces { open: bool, each: u64 },
    /// Runs of one agent, so many of each task; old ones are in no window but that of all.
    Runs { per_task: u64, old: bool },
}

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
    writeln!(out, "{:<32} {:>12} {:>12}", "resident bytes per", "lean", "content")?;
    for (case, (name, ..)) in CASES.iter().enumerate() {
        let mut figures = Vec::new();
        let texts: &[&str] = match CASES[case].1 {
            Held::Traces { .. } => &["0", "1"],
            Held::Runs { .. } => &["0"],
        };
        for full in texts {
            let output = Command::new(std::env::current_exe()?)
                .args(["measure", &case.to_string(), *full, many])
                .output()?;
            figures.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let content = figures.get(1).map_or("", String::as_str);
        writeln!(out, "{name:<32} {:>12} {content:>12}", figures[0])?;
    }
    Ok(())
}

#[expect(clippy::expect_used, reason = "the workload is valid")]
fn measure(case: usize, full: bool, many: u64) -> u64 {
    let (open, each) = match CASES[case].1 {
        Held::Traces { open, each } => (open, each),
        Held::Runs { per_task, old } => return measure_runs(per_task, old, many),
    };
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
        // A session is quiet for a while between two of its traces.
        let now = Timestamp(START + step as u64 * SECOND / 20);
        let request = workload.request(first, 20, START);
        let batch =
            decoder.decode_plain(Signal::Traces, Encoding::Protobuf, &request).expect("valid");
        pipeline.apply(batch.spans, batch.logs, batch.reports, now);
        if !open {
            pipeline.advance(now);
        }
    }
    // And after the last one.
    let end = Timestamp(START + (many * each).div_ceil(20) * SECOND / 20 + 60 * SECOND);
    pipeline.apply(Vec::new(), Vec::new(), Vec::new(), end);
    let grown = resident_bytes().saturating_sub(before);
    drop(pipeline);
    // A tenth of all was there before.
    grown * 10 / 9 / many
}

/// Bytes of a run, or of a task with its runs if these are few.
fn measure_runs(per_task: u64, old: bool, many: u64) -> u64 {
    let options = AgentOptions { max_runs: usize::MAX - 1, ..AgentOptions::default() };
    let tasks = TaskOptions { max_tasks: usize::MAX, ..TaskOptions::default() };
    let mut runs = AgentRuns::new(&options, &tasks, &ArsOptions::default());
    let mut counts = Counts::default();
    let few = per_task < 100;
    let total = if few { many * per_task } else { many };
    let now = Timestamp(START + SECOND * if old { 30 * 86_400 } else { 60 });
    let mut before = 0;
    for number in 0..total {
        if number == total / 10 {
            before = resident_bytes();
        }
        let attempt = Attempt {
            task: Some(format!("task {}", number / per_task)),
            run: Some(format!("run {number}")),
            success: Some(number % 3 > 0),
            ..Attempt::default()
        };
        let trace = RunTrace {
            trace_id: u128::from(number + 1).to_be_bytes().to_vec(),
            attempt: Some(attempt),
            start_unix_nano: START + number,
            end_unix_nano: START + number + SECOND,
            actions: (0..8).map(|call| format!("tool {}", (number + call) % 5)).collect(),
            model_calls: 4,
            ..RunTrace::default()
        };
        runs.trace(trace, now, &mut counts);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!(runs.len() as u64, total, "a bound bit");
    drop(runs);
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
