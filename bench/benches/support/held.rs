//! Resident bytes per open trace, session, run and task.
//!
//! Each figure is measured in a process of its own, by the growth of the resident set over many of them; sealed traces are sealed
//! as they arrive, so that the peak is what is held. The memory left after a burst is the growth over what a first, smaller burst
//! left, once every trace and session of both is gone and others have come.

use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use agentgauge::engine::count::Counts;
use agentgauge::engine::facts::{Effort, RunTrace};
use agentgauge::engine::options::{AgentOptions, ConventionOptions};
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::run_scores::AgentRuns;
use agentgauge::engine::score::ars::ArsOptions;
use agentgauge::engine::score::princeton::TaskOptions;
use agentgauge::engine::sessions::Sessions;
use agentgauge::engine::span::{Attempt, Timestamp, TraceId};
use agentgauge::engine::time::Moment;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use agentgauge::memory;

use super::support::{Content, Workload};

const START: u64 = 1_790_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// Traces of a request.
const AT_ONCE: usize = 20;

/// What is held when the resident set is read, and how many.
const CASES: [(&str, Case, u64); 9] = [
    ("open trace of 13 spans", Case::Traces { open: true, each: 1 }, 50_000),
    ("idle session of 1 closed trace", Case::Traces { open: false, each: 1 }, 50_000),
    ("idle session of 8 closed traces", Case::Traces { open: false, each: 8 }, 50_000),
    ("run of 8 calls, in all windows", Case::Runs { per_task: 1_000, old: false }, 10_000),
    ("task of 10 runs, in all windows", Case::Runs { per_task: 10, old: false }, 10_000),
    ("task of 10 old runs, in one", Case::Runs { per_task: 10, old: true }, 10_000),
    ("session of 1 trace that has gone", Case::Burst { each: 1 }, 50_000),
    ("session of 8 traces that has gone", Case::Burst { each: 8 }, 20_000),
    ("idle session of 100 closed traces", Case::Traces { open: false, each: 100 }, 2_000),
];

#[derive(Clone, Copy)]
enum Case {
    /// Traces, with this many in each session.
    Traces { open: bool, each: u64 },
    /// Runs of one agent, with this many of each task; old ones are in no window but that of all runs.
    Runs { per_task: u64, old: bool },
    /// Sessions with this many traces, all at once, which are then removed.
    Burst { each: u64 },
}

/// Sessions, and the decoder of their requests.
struct Fed {
    workload: Workload,
    decoder: Decoder,
    pipeline: Pipeline,
    now: Timestamp,
    /// The next trace.
    next: u64,
}

/// Runs the command line, in a process with the named allocator.
pub(crate) fn run(allocator: &str) -> io::Result<()> {
    memory::take_small_pages();
    let mut arguments = std::env::args().skip(1);
    let mut out = io::stdout().lock();
    if arguments.next().as_deref() == Some("measure") {
        let numbers: Vec<u64> = arguments.filter_map(|number| number.parse().ok()).collect();
        let [case, full, many] = numbers[..] else { return Err(io::Error::other("three numbers")) };
        let case = usize::try_from(case).ok().filter(|case| *case < CASES.len());
        let case = case.ok_or_else(|| io::Error::other("there is no such case"))?;
        return writeln!(out, "{}", measure(case, full == 1, many));
    }
    let smoke = std::env::args().any(|argument| argument == "--test");
    writeln!(out, "Resident bytes, {allocator}\n")?;
    writeln!(out, "| {:<33} | {:>6} | {:>8} | {:>8} |", "of each", "of", "lean", "content")?;
    writeln!(out, "|{:-<35}|{:->7}:|{:->9}:|{:->9}:|", "", "", "", "")?;
    for (case, (name, held, many)) in CASES.iter().enumerate() {
        let many = if smoke { 300 } else { *many };
        let texts: &[&str] = match held {
            Case::Traces { .. } | Case::Burst { .. } => &["0", "1"],
            Case::Runs { .. } => &["0"],
        };
        let mut figures = Vec::new();
        for full in texts {
            let output = Command::new(std::env::current_exe()?)
                .args(["measure", &case.to_string(), *full, &many.to_string()])
                .output()?;
            figures.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let content = figures.get(1).map_or("", String::as_str);
        writeln!(out, "| {name:<33} | {many:>6} | {:>8} | {content:>8} |", figures[0])?;
    }
    Ok(())
}

fn measure(case: usize, full: bool, many: u64) -> i64 {
    let content = if full { Content::Full } else { Content::Lean };
    match CASES[case].1 {
        Case::Traces { open, each } => measure_traces(open, each, content, many),
        Case::Runs { per_task, old } => measure_runs(per_task, old, many),
        Case::Burst { each } => measure_burst(each, content, many),
    }
}

/// Bytes of a session, or of an open trace.
fn measure_traces(open: bool, each: u64, content: Content, many: u64) -> i64 {
    let mut options = EngineOptions::default();
    let long = Duration::from_secs(100_000_000);
    if open {
        (options.assemble.trace_idle, options.assemble.rootless_idle) = (long, long);
        options.assemble.trace_max_age = long;
    } else {
        (options.assemble.trace_idle, options.assemble.late_horizon) =
            (Duration::ZERO, Duration::ZERO);
    }
    options.session.session_idle = long;
    // The ids of final traces are a separate list, of a million at most, whatever the sessions are.
    options.assemble.max_sealed_traces = 1_000;
    let mut fed = Fed::new(&options, content);
    // Traces that are to stay open come at once. Of the others few are open at a time.
    let apart = if open { SECOND / 100 } else { SECOND };
    let mut held = |sessions| {
        fed.feed(sessions, each, apart);
        if !open {
            // The last ones are sealed.
            fed.wait(Duration::from_secs(60));
        }
        resident_bytes()
    };
    // Memory that is held before the first trace, or once, does not count.
    let before = held(many / 5);
    let grown = held(many) - before;
    grown / many.cast_signed()
}

/// Bytes that are left of each session after its removal.
fn measure_burst(each: u64, content: Content, many: u64) -> i64 {
    let mut fed = Fed::new(&EngineOptions::default(), content);
    let mut burst = |sessions| {
        fed.feed(sessions, each, SECOND / 100);
        let peak = resident_bytes();
        fed.wait(Duration::from_secs(3 * 3_600));
        assert_eq!(fed.held(), 0, "sessions are still there");
        // Traffic continues at a slow pace, and memory is returned as in the daemon.
        fed.feed(200, 1, SECOND);
        thread::sleep(memory::KEPT_FOR);
        memory::give_back();
        (peak, resident_bytes())
    };
    let (_, before) = burst(many / 10);
    let (peak, after) = burst(many);
    // The output need not be read.
    let _ = writeln!(
        io::stderr(),
        "{} MB before, {} MB at the peak, {} MB after",
        before >> 20,
        peak >> 20,
        after >> 20
    );
    (after - before) / many.cast_signed()
}

impl Fed {
    fn new(options: &EngineOptions, content: Content) -> Self {
        let workload =
            Workload { agents: 10, sessions: 0, first_session: 0, spans_per_trace: 13, content };
        Self {
            workload,
            decoder: Decoder::new(IngestLimits::default(), ConventionOptions::default()),
            pipeline: Pipeline::new(options, 1),
            now: Timestamp(START),
            next: 0,
        }
    }

    /// Applies traces of new sessions, each a turn of every one after the other, this many nanoseconds apart.
    #[expect(clippy::expect_used, reason = "the workload is valid")]
    fn feed(&mut self, sessions: u64, each: u64, apart: u64) {
        self.workload.first_session += self.workload.sessions;
        self.workload.sessions = sessions;
        for first in (self.next..self.next + sessions * each).step_by(AT_ONCE) {
            self.next = first + AT_ONCE as u64;
            self.now = Timestamp(self.now.0 + apart);
            // The workload's traces are a millisecond apart; these have just begun.
            let start = self.now.0 - first * MILLI;
            let request = self.workload.request(first, AT_ONCE as u64, start);
            let batch = self
                .decoder
                .decode_plain(Signal::Traces, Encoding::Protobuf, &request)
                .expect("valid");
            self.pipeline.apply(batch.spans, batch.logs, batch.reports, self.now);
            self.pipeline.advance(self.now);
        }
    }

    /// Lets time pass.
    fn wait(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(0);
        self.now = Timestamp(self.now.0 + nanos);
        self.pipeline.advance(self.now);
        self.pipeline.apply(Vec::new(), Vec::new(), Vec::new(), self.now);
    }

    fn held(&mut self) -> usize {
        let (_, _, sessions, _) = self.pipeline.lasting();
        sessions.iter().map(Sessions::held_sessions).sum()
    }
}

/// Bytes of a run, or of a task with its runs if they are few.
fn measure_runs(per_task: u64, old: bool, many: u64) -> i64 {
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
            task: Some(format!("task {}", number / per_task).into()),
            run: Some(format!("run {number}").into()),
            success: Some(number % 3 > 0),
            ..Attempt::default()
        };
        let trace = RunTrace {
            trace_id: TraceId(u128::from(number + 1).to_be_bytes()),
            attempt: Some(attempt),
            start_unix_nano: START + number,
            end_unix_nano: START + number + SECOND,
            actions: (0..8)
                .map(|call| Arc::from(format!("tool {}", (number + call) % 5)))
                .collect(),
            effort: Effort { model_calls: 4, nanos: SECOND, ..Effort::default() },
            ..RunTrace::default()
        };
        runs.trace(trace, Moment { now, wall: now }, &mut counts);
    }
    let grown = resident_bytes() - before;
    assert_eq!(runs.len() as u64, total, "a bound bit");
    drop(runs);
    grown * 10 / 9 / many.cast_signed()
}

/// The resident set, as reported by the kernel.
#[expect(clippy::expect_used, reason = "Linux has it")]
fn resident_bytes() -> i64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("a proc file system");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<i64>().ok())
        .expect("resident pages");
    pages * 4096
}
