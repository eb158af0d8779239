//! The wall clock is set while stages hold data: no timer moves, windows follow the clock, and drops are found as soon.

use std::time::Duration;

use agentgauge::engine::agents::Agents;
use agentgauge::engine::facts::{AgentKey, AgentParts, DoneTrace, RunTrace, SessionFacts};
use agentgauge::engine::options::SessionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::sessions::Sessions;
use agentgauge::engine::span::{Attempt, Timestamp, TraceId};
use agentgauge::engine::time::WallShift;
use agentgauge::engine::view::{Document, DropView};
use proptest::prelude::*;

use crate::recorded::{Item, apply, items, reordered};

const SECOND: u64 = 1_000_000_000;
const HOUR: i64 = 3_600 * 1_000_000_000;
const NOW: Timestamp = Timestamp(1_800_000_000 * SECOND);

fn shifted(at: Timestamp, shift: i64) -> u64 {
    at.0.saturating_add_signed(shift)
}

/// The spans of a capture, the last of them ending at this wall time.
fn ending(capture: &str, at: u64) -> Vec<Item> {
    let mut items = items(capture);
    let spans = items.iter().filter_map(|item| match item {
        Item::Span(span) => Some(span.end.0),
        Item::Log(_) | Item::Report(_) => None,
    });
    let last = spans.max().unwrap_or_default();
    for item in &mut items {
        if let Item::Span(span) = item {
            span.start = Timestamp(at - (last - span.start.0));
            span.end = Timestamp(at - (last - span.end.0));
        }
    }
    items
}

/// How many sessions are open, and the traces in the shortest window, by agent.
fn shown(pipeline: &mut Pipeline) -> (usize, u64) {
    let open = pipeline.lasting().2.iter().map(Sessions::open_sessions).sum();
    let agents = pipeline.board().values();
    let windows = agents.filter_map(|agent| agent.view.windows.get("5m"));
    (open, windows.map(|window| window.traces).sum())
}

#[test]
fn windows_go_where_the_wall_clock_goes_and_sessions_stay_open() {
    for step in [-20 * HOUR / 3_600, -HOUR, HOUR, 24 * HOUR] {
        let mut pipeline = Pipeline::new(&EngineOptions::default(), 2);
        apply(&mut pipeline, &ending("oi-openai", NOW.0), NOW);
        let done = NOW.after(Duration::from_secs(15));
        pipeline.advance(done);
        let (open, traces) = shown(&mut pipeline);
        assert!(open > 0 && traces > 0);

        pipeline.shift_to(WallShift(step));
        let after = done.after(Duration::from_secs(10));
        pipeline.advance(after);
        let left = if step.abs() < 300 * 1_000_000_000 { traces } else { 0 };
        assert_eq!(shown(&mut pipeline), (open, left), "a step of {step} ns");
        // By clients that were set too.
        apply(&mut pipeline, &ending("oi-anthropic", shifted(after, step)), after);
        pipeline.advance(after.after(Duration::from_secs(15)));
        let (both, in_window) = shown(&mut pipeline);
        assert!(both >= open && in_window > left, "a step of {step} ns: {both}, {in_window}");

        // It is corrected, and continues.
        pipeline.shift_to(WallShift(0));
        let right = after.after(Duration::from_secs(30));
        pipeline.advance(right);
        let (_, before) = shown(&mut pipeline);
        apply(&mut pipeline, &ending("oi-langgraph", right.0), right);
        pipeline.advance(right.after(Duration::from_secs(15)));
        let (all, in_window) = shown(&mut pipeline);
        assert!(all >= both && in_window > before, "a step of {step} ns: {all}, {in_window}");
    }
}

/// What sessions come to, and how many are open after each pause, if the wall clock is set so at the pauses.
fn run(items: &[Item], pauses: &[u64], shifts: &[i64]) -> (Document, Vec<usize>) {
    let idle = Duration::from_secs(60);
    let session = SessionOptions { session_idle: idle, ..SessionOptions::default() };
    let mut pipeline = Pipeline::new(&EngineOptions { session, ..EngineOptions::default() }, 2);
    let (mut now, mut open) = (NOW, Vec::new());
    for (number, batch) in items.chunks(items.len().div_ceil(pauses.len())).enumerate() {
        apply(&mut pipeline, batch, now);
        if let Some(shift) = shifts.get(number) {
            pipeline.shift_to(WallShift(*shift));
        }
        now = now.after(Duration::from_secs(pauses[number % pauses.len()]));
        pipeline.advance(now);
        open.push(shown(&mut pipeline).0);
    }
    pipeline.finish(now);
    let mut document = pipeline.document();
    // Agents are shown with their windows, which are by the wall clock.
    document.agents.clear();
    (document, open)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn no_step_changes_a_session_or_when_it_closes(
        order in prop::collection::vec(any::<u16>(), 1..40),
        pauses in prop::collection::vec(0..90_u64, 4..12),
        shifts in prop::collection::vec(prop_oneof![-30 * HOUR..30 * HOUR, Just(0), Just(i64::MIN), Just(i64::MAX)], 0..12),
    ) {
        let all: Vec<Item> = ["oi-openai", "oi-langgraph", "openlit-scores"]
            .into_iter()
            .flat_map(|capture| ending(capture, NOW.0))
            .collect();
        let items = reordered(&all, &order);
        prop_assert_eq!(run(&items, &pauses, &shifts), run(&items, &pauses, &[]));
    }
}

fn agents() -> Agents {
    EngineOptions::default().agents_stage()
}

fn agent() -> AgentKey {
    AgentParts { agent_name: "a".into(), ..AgentParts::default() }.into()
}

/// A shard's facts about a done trace.
fn done(revision: u64, end: u64, arrival: Timestamp, failed: bool) -> SessionFacts {
    let trace = DoneTrace {
        trace_id: Some(TraceId(u128::from(revision).to_be_bytes())),
        at_unix_nano: end,
        touched_unix_nano: arrival.0,
        failed: Some(failed),
        looped: Some(false),
        ..DoneTrace::default()
    };
    SessionFacts {
        agent: Some(agent()),
        revision,
        done_traces: vec![trace],
        ..SessionFacts::default()
    }
}

/// Traces until a drop is critical, if the clock was wrong by this much in the middle of the past; traces in progress when the
/// clock is set ended by the old clock.
fn found_after(wrong: i64, under_way: bool) -> (u64, DropView) {
    let mut stage = agents();
    let (mut now, mut revision, mut before) = (NOW, 0, 0);
    let mut next = |stage: &mut Agents, shift: i64, failed: bool| {
        stage.shift_to(WallShift(shift));
        revision += 1;
        let ended_by = if under_way { before } else { shift };
        before = shift;
        stage.handle(done(revision, shifted(now, ended_by), now, failed), now);
        now = now.after(Duration::from_secs(60));
        stage.drain().pop().unwrap().view.drops[0].clone()
    };
    for minute in 0..600 {
        next(&mut stage, if (200..300).contains(&minute) { wrong } else { 0 }, minute % 50 == 0);
    }
    let mut found = (1..200).map(|traces| (traces, next(&mut stage, 0, traces % 2 == 0)));
    found.find(|(_, drop)| drop.severity == "critical").unwrap()
}

#[test]
fn no_step_delays_a_drop_or_moves_its_begin() {
    let expected = found_after(0, false);
    let seen = |(traces, drop): (u64, DropView)| (traces, drop.drop.unwrap().since_unix_nano);
    for wrong in [-HOUR, 24 * HOUR, 5_000 * HOUR, -5_000 * HOUR] {
        assert_eq!(found_after(wrong, false), expected, "{wrong}");
        assert_eq!(seen(found_after(wrong, true)), seen(expected.clone()), "{wrong}, under way");
    }
}

#[test]
fn a_run_of_the_future_leaves_the_windows_when_the_clock_is_set_back() {
    let mut stage = agents();
    let run = |number: u64, end: u64| {
        let attempt = Attempt {
            task: Some("task".into()),
            run: Some(format!("run {number}").into()),
            success: Some(true),
            ..Attempt::default()
        };
        let trace = RunTrace {
            trace_id: TraceId(u128::from(number).to_be_bytes()),
            attempt: Some(attempt),
            start_unix_nano: end - SECOND,
            end_unix_nano: end,
            ..RunTrace::default()
        };
        SessionFacts {
            run_traces: vec![trace],
            revision: number,
            agent: Some(agent()),
            ..SessionFacts::default()
        }
    };
    let runs_in = |stage: &mut Agents, window: &str| {
        stage.drain().last().and_then(|update| {
            let scores = update.run_scores.get(window)?;
            scores.scores.values().map(|(_, samples)| *samples).max()
        })
    };
    stage.shift_to(WallShift(24 * HOUR));
    stage.handle(run(1, shifted(NOW, 24 * HOUR)), NOW);
    assert_eq!(runs_in(&mut stage, "5m"), Some(1));
    stage.shift_to(WallShift(0));
    stage.handle_timeout(NOW.after(Duration::from_secs(10)));
    assert_eq!(runs_in(&mut stage, "5m"), None, "it would be there for a day");
    stage.handle(run(2, NOW.0), NOW.after(Duration::from_secs(20)));
    assert_eq!(runs_in(&mut stage, "5m"), Some(1));
}
