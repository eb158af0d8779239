//! What stages save and restore is what they held: a restart at any moment changes no result.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::agent_facts::AgentFacts;
use agentgauge::engine::facts::{AgentKey, AgentParts};
use agentgauge::engine::math::Quanta;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::span::{Attempt, Report, RunTarget, Source, Span, Target, Timestamp};
use proptest::prelude::*;

use crate::recorded::{self, Batch, batches};

const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);

/// The folders of all captures.
fn captures() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(recorded::captures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders
}

fn options() -> EngineOptions {
    let mut options = EngineOptions::default();
    options.assemble.keep_content = true;
    options.session.session_idle = Duration::from_secs(60);
    options
}

/// The same with attempts at tasks: every trace is a run, and runs are reported that have none.
fn attempted(batches: Vec<Batch>) -> Vec<Batch> {
    let attempt = |span: &mut Span| {
        let [which, good, ..] = span.trace_id.0;
        let task = Some(Arc::from(format!("task-{}", which % 3)));
        let success = Some(good % 3 > 0);
        span.attempt = Some(Box::new(Attempt { task, success, ..Attempt::default() }));
    };
    let report = |number: usize| {
        let target = RunTarget {
            agent: AgentParts { service_name: "bench".into(), ..AgentParts::default() }.into(),
            task: Arc::from(format!("task-{}", number % 2)),
            run: Arc::from((number / 2).to_string()),
            perturbation: number.is_multiple_of(5).then(|| Arc::from("prompt")),
        };
        Report {
            target: Target::Run(Box::new(target)),
            name: Arc::from(if number.is_multiple_of(3) { "confidence" } else { "outcome" }),
            score: Quanta(if number.is_multiple_of(4) { 0 } else { Quanta::ONE }),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from("ci"),
            judge: None,
            time: NOW.after(Duration::from_secs(number as u64)),
            tenant: None,
        }
    };
    let batches = batches.into_iter().enumerate();
    let batches = batches.map(|(number, (mut spans, logs, mut reports))| {
        spans.iter_mut().for_each(attempt);
        reports.extend([report(2 * number), report(2 * number + 1)]);
        let named = spans.iter().filter(|span| span.agent_name.is_some());
        reports.extend(named.filter_map(|span| of_run(span, report(4 * number))));
        (spans, logs, reports)
    });
    batches.collect()
}

/// The same of the run that a span's session is.
fn of_run(span: &Span, report: Report) -> Option<Report> {
    let text = |text: &Option<Arc<str>>| text.clone().unwrap_or_default();
    let agent = AgentParts {
        service_name: text(&span.resource.service_name),
        agent_name: text(&span.agent_name),
        agent_version: text(&span.agent_version),
        environment: text(&span.resource.environment),
        ..AgentParts::default()
    }
    .into();
    let target = RunTarget {
        agent,
        task: span.attempt.as_ref()?.task.clone()?,
        run: Arc::clone(&span.session.as_ref()?.id),
        perturbation: None,
    };
    Some(Report { target: Target::Run(Box::new(target)), name: Arc::from("outcome"), ..report })
}

/// The pipeline of the next process.
fn restarted(before: Pipeline, route: Route, now: Timestamp) -> Pipeline {
    let mut after = recorded::restarted(before, &options(), route);
    // The rest of what stage 3 holds follows from what stage 2 says.
    after.apply(Vec::new(), Vec::new(), Vec::new(), now);
    after
}

/// The content of the board, without what belongs to a process.
fn board(pipeline: &Pipeline) -> BTreeMap<AgentKey, AgentFacts> {
    // An agent with only counters left is removed with them.
    let counted = |update: &AgentFacts| {
        update.view.traces > 0 || update.sessions_active > 0 || update.runs > 0
    };
    let updates = pipeline.board().iter().filter(|(_, update)| counted(update));
    let updates = updates.map(|(key, update)| {
        let mut update = update.clone();
        update.counters.retain(|_| false);
        update.closed_sessions.retain(|_, _| false);
        update.trace_signals.retain(|_, _| false);
        (update.view.loops, update.view.tokens, update.view.cost_usd) = Default::default();
        (key.clone(), update)
    });
    updates.collect()
}

fn run(
    batches: &[Batch],
    (shards, pause): (u32, Duration),
    (restarts, overlap): (&[usize], usize),
) -> (String, BTreeMap<AgentKey, AgentFacts>) {
    let route = Route::new(shards, 7);
    let mut pipeline = Pipeline::routed(&options(), route);
    let mut now = NOW;
    for (number, (spans, logs, reports)) in batches.iter().enumerate() {
        if restarts.contains(&number) {
            pipeline = restarted(pipeline, route, now);
            // The log has again what the snapshot had already.
            for (spans, logs, reports) in &batches[number.saturating_sub(overlap)..number] {
                pipeline.apply(spans.clone(), logs.clone(), reports.clone(), now);
            }
        }
        pipeline.apply(spans.clone(), logs.clone(), reports.clone(), now);
        now = now.after(pause);
        pipeline.advance(now);
    }
    let board = board(&pipeline);
    pipeline.finish(now);
    (serde_json::to_string_pretty(&pipeline.document()).unwrap(), board)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_restart_at_any_moment_changes_no_result(
        which in any::<prop::sample::Index>(),
        shards in 1_u32..5,
        pause in 0_u64..20_000,
        restarts in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        overlap in 0_usize..3,
    ) {
        let captures = captures();
        let capture = &captures[which.index(captures.len())];
        let batches = attempted(batches(capture));
        prop_assume!(!batches.is_empty());
        let restarts: Vec<usize> =
            restarts.iter().map(|at| at.index(batches.len())).collect();
        let with = (shards, Duration::from_millis(pause));
        let (expected, expected_board) = run(&batches, with, (&[], 0));
        let (actual, actual_board) = run(&batches, with, (&restarts, overlap));
        prop_assert_eq!(actual, expected, "{}", capture.display());
        prop_assert!(expected_board.values().any(|update| !update.run_scores.is_empty()));
        prop_assert_eq!(actual_board, expected_board, "{}", capture.display());
    }
}

#[test]
fn counters_begin_at_zero_in_every_process() {
    let batches = batches(&captures()[0]);
    let route = Route::new(2, 7);
    let mut pipeline = Pipeline::routed(&options(), route);
    for (spans, logs, reports) in batches {
        pipeline.apply(spans, logs, reports, NOW);
    }
    pipeline.advance(NOW.after(Duration::from_secs(3_600)));
    let stages = pipeline.into_stages(NOW.after(Duration::from_secs(3_600)));
    assert!(stages.assemble.iter().all(|stage| stage.counts().iter().next().is_none()));
    for update in stages.board.values() {
        assert!(update.counters.is_empty() && update.trace_signals.is_empty(), "{update:?}");
        assert!(update.view.traces > 0);
    }
}
