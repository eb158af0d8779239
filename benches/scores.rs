//! Scores, kept up to date: what one more word about a trace or a run costs, with everything held that came before.
//!
//! An update takes one value back, adds another and reads the scores. The engine reads scores over runs once a drain, not
//! once a run; here they are read each time.

use std::sync::Arc;

use agentgauge::engine::math::Quanta;
use agentgauge::engine::score::agent_consistency::AgentConsistency;
use agentgauge::engine::score::agent_reliability::AgentReliability;
use agentgauge::engine::score::ars::{ArsAgent, ArsOptions, ArsRun};
use agentgauge::engine::score::princeton::{AgentTasks, Resources, RunRecord, TaskOptions};
use agentgauge::engine::span::Timestamp;
use divan::Bencher;

/// As in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs at each task.
const RUNS_PER_TASK: u64 = 10;

const TOOLS: [&str; 8] = ["search", "read", "write", "list", "open", "close", "fetch", "send"];

fn main() {
    divan::main();
}

/// A number that looks random, of another.
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

/// All scores over runs; each is said anew in turn. Without calls there are no pair terms.
#[divan::bench(args = [10, 100, 1_000, 10_000], consts = [0, 8], sample_size = 100)]
fn run_scores<const CALLS: usize>(bencher: Bencher<'_, '_>, runs: u64) {
    let (mut tasks, mut ars) = agent(runs, CALLS);
    let mut next = runs;
    bencher
        .with_inputs(|| {
            next += 1;
            let run = run(next, runs, CALLS);
            let ars = ars_run(&run);
            (run, ars)
        })
        .bench_local_values(|(run, ars_run)| {
            tasks.upsert(run);
            ars.upsert(ars_run);
            (tasks.scores(), ars.score())
        });
}

/// The same without reading.
#[divan::bench(args = [10, 100, 1_000, 10_000], consts = [0, 8], sample_size = 100)]
fn run_updates<const CALLS: usize>(bencher: Bencher<'_, '_>, runs: u64) {
    let (mut tasks, mut ars) = agent(runs, CALLS);
    let mut next = runs;
    bencher
        .with_inputs(|| {
            next += 1;
            let run = run(next, runs, CALLS);
            let ars = ars_run(&run);
            (run, ars)
        })
        .bench_local_values(|(run, ars_run)| (tasks.upsert(run), ars.upsert(ars_run)));
}

/// Successful runs at one task that are compared with so many others; divide by them.
#[divan::bench(args = [5, 10, 50], sample_size = 100)]
fn pair_terms_of_64_calls(bencher: Bencher<'_, '_>, last_runs: usize) {
    let options = TaskOptions { last_runs, ..TaskOptions::default() };
    let mut tasks = AgentTasks::new(options);
    let one = |number: u64| {
        let all = run(number, u64::MAX, 64);
        RunRecord { task: Some(Arc::from("task")), success: Some(true), ..all }
    };
    let mut next = 0;
    (0..50).for_each(|_| {
        tasks.upsert(one(next));
        next += 1;
    });
    bencher
        .with_inputs(|| {
            next += 1;
            one(next)
        })
        .bench_local_values(|run| tasks.upsert(run));
}

fn agent(runs: u64, calls: usize) -> (AgentTasks, ArsAgent) {
    let mut tasks = AgentTasks::new(TaskOptions::default());
    let ceilings = ArsOptions {
        latency_ceiling_seconds: Some(1_000.0),
        cost_ceiling_usd: Some(10.0),
        optimum_loops: Some(2),
        ..ArsOptions::default()
    };
    let mut ars = ArsAgent::new(ceilings);
    for number in 0..runs {
        let run = run(number, runs, calls);
        ars.upsert(ars_run(&run));
        tasks.upsert(run);
    }
    (tasks, ars)
}
