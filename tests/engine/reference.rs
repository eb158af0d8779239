//! Whatever arrives, in whatever order, how often and how late: every signal, loop and score is what the reference model computes
//! from the decoded data.

use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::facts::AgentParts;
use agentgauge::engine::math::Quanta;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{
    Arguments, Attempt, IdHash, ModelFacts, Operation, Remarks, Report, Resource, RunTarget,
    SessionName, Source, Span, SpanId, Status, Target, Text, Timestamp, Tokens, ToolFacts, TraceId,
};
use agentgauge::reference::compare::{Comparison, compare};
use agentgauge::reference::gather::Recorded;
use proptest::prelude::*;

use crate::recorded::{Delivery, Item, apply, captures, deliveries, items, reordered};

const SECOND: u64 = 1_000_000_000;
/// The kind of a step that is an agent's work.
const AGENT: u8 = 4;
/// When the first thing arrives: all runs began in the last minutes.
const NOW: Timestamp = Timestamp(1_800_000_000 * SECOND);

/// One model or tool call.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug)]
struct Step {
    /// 0: a model call, 4: an agent, else a tool call.
    kind: u8,
    tool: Option<u8>,
    /// Two values, in the names' order; two more are always the same.
    arguments: Option<(u8, u8)>,
    result: Option<u8>,
    failed: bool,
    /// It ends for a person to answer; an agent's span never comes.
    interrupted: bool,
    /// A person refused it.
    refused: bool,
    milliseconds: u64,
    /// It begins before the one before it has ended.
    overlaps: bool,
    /// The step of the run that it is below, which may be itself, or one below it; else it is below the root.
    below: Option<u8>,
    tokens: Option<(u16, u16)>,
    asked: Option<bool>,
    says: Option<u8>,
}

/// One trace.
#[derive(Clone, Debug)]
struct Run {
    agent: u8,
    session: Option<u8>,
    ago_seconds: u64,
    root: Root,
    steps: Vec<Step>,
    input: Option<u8>,
    output: Option<u8>,
    task: Option<u8>,
    /// Absent: its session.
    attempt: Option<u8>,
    success: Option<bool>,
    /// The report about it by task and run: that it failed, time.
    outcomes: Vec<(bool, u8)>,
    /// Reports about it: name, identifier, tenths, time; and whether the judge sent it.
    reports: Vec<(u8, u8, u8, u8, bool)>,
}

#[derive(Clone, Copy, Debug)]
enum Root {
    Agent {
        failed: bool,
    },
    Other,
    /// Each step is below a span that never comes.
    Missing,
}

const TEXTS: [&str; 5] = [
    "the order 7 was refunded",
    "The order 7 was refunded today",
    "no flight to Paris is left",
    "of the and",
    "a flight to Paris, booked",
];
const TOOLS: [&str; 3] = ["search", "read", "write"];
const SIGNALS: [&str; 5] =
    ["coherence", "confidence", "tool_correctness", "task_completion", "constraint_violation"];

fn step() -> impl Strategy<Value = Step> {
    let maybe = |of: std::ops::Range<u8>| prop::option::weighted(0.8, of);
    let call = (0..5_u8, maybe(0..3), maybe(0..2), maybe(0..2), maybe(0..2));
    let time = (
        prop::sample::select(vec![0_u64, 1, 40, 1_100, 2_500]),
        prop::bool::weighted(0.1),
        prop::option::weighted(0.4, 0..4_u8),
    );
    let model = (
        prop::option::weighted(0.7, (0..500_u16, 0..90_u16)),
        prop::option::weighted(0.3, any::<bool>()),
        prop::option::weighted(0.3, 0..5_u8),
    );
    let seldom = || prop::bool::weighted(0.1);
    let ends = (prop::bool::weighted(0.2), seldom(), seldom());
    (call, ends, time, model).prop_map(
        |(
            (kind, tool, a, b, result),
            (failed, interrupted, refused),
            (milliseconds, overlaps, below),
            (tokens, asked, says),
        )| {
            Step {
                kind,
                tool,
                arguments: a.zip(b),
                result,
                failed,
                interrupted,
                refused,
                milliseconds,
                overlaps,
                below,
                tokens,
                asked,
                says,
            }
        },
    )
}

/// Steps, some of which are repeated.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stretch = (prop::collection::vec(step(), 1..4), 1..5_usize);
    prop::collection::vec(stretch, 0..3).prop_map(|stretches| {
        stretches.into_iter().flat_map(|(steps, times)| steps.repeat(times)).collect()
    })
}

fn run() -> impl Strategy<Value = Run> {
    let root = prop_oneof![
        4 => prop::bool::weighted(0.2).prop_map(|failed| Root::Agent { failed }),
        1 => Just(Root::Other),
        1 => Just(Root::Missing),
    ];
    let text = || prop::option::weighted(0.8, 0..5_u8);
    let report = (0..5_u8, 0..2_u8, 0..=10_u8, 0..9_u8, any::<bool>());
    let whose = (0..2_u8, prop::option::weighted(0.8, 0..2_u8), 0..330_u64);
    let task = (
        prop::option::weighted(0.5, 0..2_u8),
        prop::option::weighted(0.7, 0..3_u8),
        prop::option::weighted(0.3, any::<bool>()),
        prop::collection::vec((any::<bool>(), 0..9_u8), 0..3),
    );
    (whose, root, steps(), (text(), text()), task, prop::collection::vec(report, 0..3)).prop_map(
        |(
            (agent, session, ago_seconds),
            root,
            steps,
            (input, output),
            (task, attempt, success, outcomes),
            reports,
        )| {
            Run {
                agent,
                session,
                ago_seconds,
                root,
                steps,
                input,
                output,
                task,
                attempt,
                success,
                outcomes,
                reports,
            }
        },
    )
}

fn trace_id(number: usize) -> TraceId {
    TraceId([u8::try_from(number + 1).unwrap(); 16])
}

fn shared(text: impl Into<String>) -> Arc<str> {
    Arc::from(text.into())
}

fn said(number: Option<u8>) -> Option<Text> {
    number.map(|number| Text { rank: 0, text: shared(TEXTS[usize::from(number)]) })
}

/// The data that a run sends.
fn sent(number: usize, run: &Run) -> Vec<Item> {
    let resource = Resource { service_name: Some(shared("shop")), ..Resource::default() };
    let session = run.session.map(|session| SessionName {
        attribute: shared("session.id"),
        id: shared(format!("session {session} of {}", run.agent)),
    });
    let start = NOW.0 - run.ago_seconds * SECOND - 60 * SECOND;
    let root = Span {
        trace_id: trace_id(number),
        span_id: SpanId([0, 0, 0, 0, 0, 0, 1, 0]),
        start: Timestamp(start),
        resource: Arc::new(resource),
        agent_name: Some(shared(format!("agent {}", run.agent))),
        session,
        input: said(run.input),
        output: said(run.output),
        ..Span::default()
    };
    let mut spans: Vec<Span> = Vec::new();
    let mut now = start + 1;
    for (at, step) in run.steps.iter().enumerate() {
        let begins = if step.overlaps { now.saturating_sub(SECOND / 100).max(start) } else { now };
        now = begins + step.milliseconds * SECOND / 1000 + 7;
        let above = step.below.map(|below| u64::from(below) % run.steps.len() as u64 + 1);
        // An agent is at work for longer than until the next step.
        let is_agent = step.kind == AGENT;
        let end =
            if is_agent { now + u64::from(step.result.unwrap_or(0)) * 3 * SECOND } else { now };
        if is_agent && step.interrupted {
            continue;
        }
        spans.push(Span {
            span_id: SpanId((at as u64 + 1).to_be_bytes()),
            parent: Some(above.map_or(root.span_id, |above| SpanId(above.to_be_bytes()))),
            start: Timestamp(begins),
            end: Timestamp(end),
            input: step.arguments.filter(|_| is_agent).and_then(|_| said(Some(0))),
            output: None,
            ..of_step(&root, step)
        });
    }
    let end = Timestamp(now + 1);
    let attempt = Attempt {
        task: run.task.map(|task| shared(task.to_string())),
        run: run.attempt.map(|attempt| shared(attempt.to_string())),
        success: run.success,
        ..Attempt::default()
    };
    let attempt = (run.task.is_some() || run.success.is_some()).then(|| Box::new(attempt));
    match run.root {
        Root::Agent { failed } => {
            let operation = Operation::InvokeAgent;
            let status = if failed { Status::Error } else { Status::Ok };
            spans.push(Span { operation, failed, status, end, attempt, ..root });
        }
        Root::Other => spans.push(Span { end, attempt, name: shared("POST /"), ..root }),
        Root::Missing => {}
    }
    let mut items: Vec<Item> = spans.into_iter().map(|span| Item::Span(Box::new(span))).collect();
    items
        .extend(run.reports.iter().map(|report| Item::Report(Box::new(reported(number, *report)))));
    let of_run = run.outcomes.iter().filter_map(|outcome| reported_of_run(number, run, *outcome));
    items.extend(of_run.map(|report| Item::Report(Box::new(report))));
    items
}

/// The outcome of a trace's run; `None` if it has none.
fn reported_of_run(number: usize, run: &Run, (failed, time): (bool, u8)) -> Option<Report> {
    let agent = AgentParts {
        service_name: "shop".into(),
        agent_name: format!("agent {}", run.agent).into(),
        ..AgentParts::default()
    }
    .into();
    let session = run.session.map(|session| format!("session {session} of {}", run.agent));
    let session = session.unwrap_or_else(|| trace_id(number).to_string());
    let target = RunTarget {
        agent,
        task: shared(run.task?.to_string()),
        run: shared(run.attempt.map_or(session, |attempt| attempt.to_string())),
        perturbation: None,
    };
    Some(Report {
        target: Target::Run(Box::new(target)),
        name: shared("outcome"),
        source: Source::Reported,
        ..reported(number, (0, 0, if failed { 3 } else { 10 }, time, false))
    })
}

fn of_step(root: &Span, step: &Step) -> Span {
    let failed = step.failed;
    let Step { interrupted, refused, .. } = *step;
    let remarks = Remarks { interrupted, refused, ..Remarks::default() };
    let remarks = (interrupted || refused).then(|| Box::new(remarks));
    let span = Span { failed, name: shared("step"), remarks, ..root.clone() };
    if step.kind == 0 {
        let (input, output) = step.tokens.unzip();
        let tokens = Tokens {
            input: input.map(u64::from),
            output: output.map(u64::from),
            ..Tokens::default()
        };
        let model = Some(ModelFacts {
            model: Some(shared("gpt-4o-mini")),
            tokens,
            asked_by_user: step.asked,
            compacted: step.overlaps,
            local: step.refused,
            ..ModelFacts::default()
        });
        let output = said(step.says);
        return Span { operation: Operation::Chat, model, output, ..span };
    }
    if step.kind == AGENT {
        let name = step.tool.map(|tool| shared(format!("worker {tool}")));
        let agent_name = name.or_else(|| root.agent_name.clone());
        let input_hash = step.arguments.map(|(given, _)| IdHash::from(given.to_string().as_str()));
        // Some work at their own conversation.
        let item = |item: u8| SessionName {
            attribute: shared("item"),
            id: shared(format!("item {item}")),
        };
        let session = step.says.map(item).or_else(|| root.session.clone());
        let operation = Operation::InvokeAgent;
        return Span { operation, agent_name, input_hash, session, ..span };
    }
    // Numbers represent values, each at its place: comparing their hashes compares the numbers.
    let arguments = step.arguments.map(|(a, b)| {
        let values = [u64::from(a) << 32 | 1, u64::from(b) << 32 | 2, 3, 4];
        let text = format!(r#"{{"a":{a},"b":{b},"c":0,"d":0}}"#);
        Arguments::from_canonical(text.as_bytes(), &values, true)
    });
    let tool = Some(ToolFacts {
        name: step.tool.map(|tool| shared(TOOLS[usize::from(tool)])),
        arguments,
        result_hash: step.result.map(u64::from),
        ..ToolFacts::default()
    });
    Span { operation: Operation::ExecuteTool, tool, ..span }
}

fn reported(
    number: usize,
    (name, identifier, tenths, time, is_judged): (u8, u8, u8, u8, bool),
) -> Report {
    Report {
        target: Target::Trace(trace_id(number)),
        name: shared(SIGNALS[usize::from(name)]),
        score: Quanta::from_f64(f64::from(tenths) / 10.0).unwrap(),
        label: None,
        success: None,
        explanation: None,
        source: if is_judged { Source::Judge } else { Source::Reported },
        identifier: shared(identifier.to_string()),
        judge: None,
        time: Timestamp(u64::from(time)),
        tenant: None,
    }
}

/// Delivers items as `delivery` says, some of them twice, and compares the results with the model's.
fn compared(items: &[Item], delivery: &Delivery) -> Comparison {
    let mut options = EngineOptions::default();
    options.assemble.keep_content = true;
    // Of five values three are the same where one of a call's four is another.
    options.loops.near_repeat_similarity = 0.5;
    let mut recorded = Recorded::default();
    for item in items.iter().cloned() {
        match item {
            Item::Span(span) => recorded.spans.push(*span),
            Item::Log(log) => recorded.logs.push(*log),
            Item::Report(report) => recorded.reports.push(*report),
        }
    }
    let mut delivered = reordered(items, &delivery.order);
    let again: Vec<Item> = delivered.iter().step_by(delivery.twice.max(1)).cloned().collect();
    delivered.extend(again);
    let mut pipeline = Pipeline::new(&options, delivery.shards);
    let mut now = NOW;
    for batch in delivered.chunks(delivery.batch.max(1)) {
        apply(&mut pipeline, batch, now);
        now = now.after(delivery.pause);
        pipeline.advance(now);
    }
    pipeline.finish(now);
    compare(&recorded, &options, now, &pipeline.document())
}

proptest! {
    #[test]
    fn random_runs_are_what_the_reference_model_says(
        runs in prop::collection::vec(run(), 1..9),
        delivery in deliveries(),
    ) {
        let items: Vec<Item> =
            runs.iter().enumerate().flat_map(|(number, run)| sent(number, run)).collect();
        let comparison = compared(&items, &delivery);
        prop_assert!(comparison.differences.is_empty(), "{:#?}", comparison.differences);
    }
}

#[test]
fn captures_in_any_order_are_what_the_reference_model_says() {
    let folders = std::fs::read_dir(captures()).unwrap().map(|entry| entry.unwrap().path());
    let complete = folders.filter(|path| path.join("expected.json").exists());
    let mut names: Vec<String> =
        complete.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(names.len() >= 60, "captures are missing: {names:?}");
    // Backwards at first, all of it twice, in small batches, so that traces are done before all of them is in.
    let order: Vec<u16> = (0..61).map(|at| u16::MAX - at * 977).collect();
    let pause = Duration::from_millis(400);
    let delivery = Delivery { shards: 3, order, twice: 1, batch: 2, pause };
    let mut values = 0;
    for name in names {
        let comparison = compared(&items(&name), &delivery);
        assert!(comparison.differences.is_empty(), "{name}: {:#?}", comparison.differences);
        values += comparison.count();
    }
    assert!(values > 15_000, "only {values} values were compared");
}
