//! Scores, kept up to date: the cost of one more report about a trace or a run, with all earlier ones held.
//!
//! An update removes one value, adds another and reads the scores. The engine reads scores over runs once per drain, not once per
//! run; here they are read each time. Sequences of calls are compared with bit vectors, as the engine does, and with the table of
//! dynamic programming.

use std::cell::RefCell;
use std::sync::Arc;

use agentgauge::engine::math::Quanta;
use agentgauge::engine::math::myers::{Pattern, Sequence};
use agentgauge::engine::score::agent_consistency::AgentConsistency;
use agentgauge::engine::score::agent_reliability::AgentReliability;
use agentgauge::engine::score::ars::{ArsAgent, ArsOptions, ArsRun};
use agentgauge::engine::score::princeton::{AgentTasks, Resources, RunRecord, TaskOptions};
use agentgauge::engine::span::Timestamp;
use agentgauge::reference::princeton::consistency::{common_length, edit_distance};
use divan::Bencher;

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs at each task.
const RUNS_PER_TASK: u64 = 10;

const TOOLS: [&str; 8] = ["search", "read", "write", "list", "open", "close", "fetch", "send"];

fn main() {
    divan::main();
}

/// A number that looks random, derived from another.
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

/// Every other risk is 0.
fn risk(number: u64) -> Quanta {
    let steps = i64::try_from(mixed(number) % 20_000).unwrap_or(0);
    Quanta((steps - 10_000).max(0) * (Quanta::ONE / 10_000))
}

#[divan::bench(args = [10, 100, 1_000, 10_000, 100_000], sample_size = 100)]
fn session_scores(bencher: Bencher<'_, '_>, traces: u64) {
    let (mut reliability, mut consistency) =
        (AgentReliability::default(), AgentConsistency::default());
    (0..traces).for_each(|number| {
        reliability.observe(risk(number));
        consistency.observe(risk(number));
    });
    let mut next = 0;
    bencher.bench_local(|| {
        let (old, new) = (risk(next), risk(next + traces));
        next += 1;
        reliability.forget(old);
        reliability.observe(new);
        consistency.forget(old);
        consistency.observe(new);
        (reliability.result(), consistency.result())
    });
}

fn run(number: u64, runs: u64, calls: usize) -> RunRecord {
    let random = mixed(number);
    let actions = (0..calls as u64)
        .map(|at| Arc::from(TOOLS[usize::try_from(mixed(random ^ at) % 8).unwrap_or(0)]))
        .collect();
    let some = |bits: u32| f64::from(u32::try_from((random >> bits) % 1_000).unwrap_or(0) + 1);
    RunRecord {
        task: Some(Arc::from(format!("task {}", number % runs / RUNS_PER_TASK))),
        id: Arc::from(format!("run {}", number % runs)),
        start: Timestamp(number),
        success: Some(!random.is_multiple_of(4)),
        confidence: Quanta::from_f64(some(8) / 1_000.0),
        actions,
        resources: Resources {
            cost_usd: Some(some(16) / 100.0),
            time_seconds: Some(some(24)),
            api_calls: Some(some(32)),
            actions: Some(calls as f64),
            errors: Some(0.0),
            call_latency_seconds: Some(some(40)),
        },
        violations: Some(Vec::new()),
        ..RunRecord::default()
    }
}

fn ars_run(run: &RunRecord) -> ArsRun {
    ArsRun {
        case: run.task.clone(),
        id: Arc::clone(&run.id),
        accuracy: run.confidence,
        retrieved: Vec::new(),
        cited: Vec::new(),
        tool_calls: run.actions.len() as u64,
        tool_successes: run.actions.len() as u64,
        loops: 3,
        latency_seconds: run.resources.time_seconds,
        cost_usd: run.resources.cost_usd,
    }
}

/// Scores over runs, each of which is reported again in turn.
struct ScoredRuns {
    tasks: AgentTasks,
    ars: ArsAgent,
    calls: usize,
    runs: u64,
    /// The next report about a run.
    next: u64,
}

impl ScoredRuns {
    /// This many runs with this many calls.
    fn new(runs: u64, calls: usize) -> Self {
        let ceilings = ArsOptions {
            latency_ceiling_seconds: Some(1_000.0),
            cost_ceiling_usd: Some(10.0),
            optimum_loops: Some(2),
            ..ArsOptions::default()
        };
        let (tasks, ars) = (AgentTasks::new(TaskOptions::default()), ArsAgent::new(ceilings));
        let mut held = Self { tasks, ars, calls, runs, next: 0 };
        for _ in 0..runs {
            let said = held.said();
            held.upsert(said);
        }
        held
    }

    fn said(&mut self) -> (RunRecord, ArsRun) {
        let run = run(self.next, self.runs, self.calls);
        self.next += 1;
        let ars = ars_run(&run);
        (run, ars)
    }

    fn upsert(&mut self, (run, ars): (RunRecord, ArsRun)) {
        self.tasks.upsert(run);
        self.ars.upsert(ars);
    }
}

/// All scores over runs, read after each update. Without calls there are no pair terms.
#[divan::bench(args = [10, 100, 1_000, 10_000], consts = [0, 8], sample_size = 100)]
fn run_scores<const CALLS: usize>(bencher: Bencher<'_, '_>, runs: u64) {
    let held = RefCell::new(ScoredRuns::new(runs, CALLS));
    bencher.with_inputs(|| held.borrow_mut().said()).bench_local_values(|said| {
        let mut held = held.borrow_mut();
        held.upsert(said);
        (held.tasks.scores(), held.ars.score())
    });
}

/// The same without reading.
#[divan::bench(args = [10, 100, 1_000, 10_000], consts = [0, 8], sample_size = 100)]
fn run_updates<const CALLS: usize>(bencher: Bencher<'_, '_>, runs: u64) {
    let held = RefCell::new(ScoredRuns::new(runs, CALLS));
    bencher
        .with_inputs(|| held.borrow_mut().said())
        .bench_local_values(|said| held.borrow_mut().upsert(said));
}

/// Successful runs at one task that are compared with this many others; divide by them.
#[divan::bench(args = [5, 10, 50], sample_size = 100)]
fn pair_terms_of_64_calls(bencher: Bencher<'_, '_>, last_runs: usize) {
    let options = TaskOptions { last_runs, ..TaskOptions::default() };
    let tasks = RefCell::new(AgentTasks::new(options));
    let mut next = 0;
    let mut one = || {
        next += 1;
        let all = run(next, u64::MAX, 64);
        RunRecord { task: Some(Arc::from("task")), success: Some(true), ..all }
    };
    for _ in 0..50 {
        tasks.borrow_mut().upsert(one());
    }
    bencher.with_inputs(one).bench_local_values(|run| tasks.borrow_mut().upsert(run));
}

/// Lengths of sequences that are compared, and their numbers of symbols.
const SEQUENCES: [(u64, u64); 5] = [(8, 10), (16, 10), (64, 10), (256, 30), (1_000, 30)];

/// Two sequences of one length, a tenth of whose symbols differ.
fn sequences((length, symbols): (u64, u64)) -> [Vec<u64>; 2] {
    let symbol = |at: u64| mixed(at) % symbols;
    let differs = |at: u64| if mixed(at ^ 1 << 40).is_multiple_of(10) { 1 << 20 } else { 0 };
    [(0..length).map(symbol).collect(), (0..length).map(|at| symbol(at + differs(at))).collect()]
}

/// Both are prepared once, as the engine keeps them.
#[divan::bench(args = SEQUENCES)]
fn lcs_by_bits(bencher: Bencher<'_, '_>, of: (u64, u64)) {
    let [one, other] = sequences(of).map(|sequence| Sequence::new(&sequence));
    let pattern = Pattern::new(&one);
    bencher.bench_local(|| divan::black_box(&pattern).common(&other));
}

#[divan::bench(args = SEQUENCES)]
fn lcs_by_table(bencher: Bencher<'_, '_>, of: (u64, u64)) {
    let [one, other] = sequences(of);
    bencher.bench_local(|| common_length(divan::black_box(&one), &other));
}

/// Both are prepared once, as the engine keeps them.
#[divan::bench(args = SEQUENCES)]
fn edit_distance_by_bits(bencher: Bencher<'_, '_>, of: (u64, u64)) {
    let [one, other] = sequences(of).map(|sequence| Sequence::new(&sequence));
    let pattern = Pattern::new(&one);
    bencher.bench_local(|| divan::black_box(&pattern).edit_distance(&other));
}

#[divan::bench(args = SEQUENCES)]
fn edit_distance_by_table(bencher: Bencher<'_, '_>, of: (u64, u64)) {
    let [one, other] = sequences(of);
    bencher.bench_local(|| edit_distance(divan::black_box(&one), &other));
}
