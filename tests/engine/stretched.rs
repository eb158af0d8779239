//! Captures as SDKs send them, only slower: each span when it ends, so children first and the root last, in batches of five
//! seconds, each run stretched to ten minutes. The result is the same as if everything arrived at once.
//!
//! If only the order of log records assigns them to turns, the records of a session arrive in that order, as agents send them, and
//! the session is the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use agentgauge::engine::counters::Counter;
use agentgauge::engine::facts::AgentKey;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{Operation, RECORD_SCOPE, Span, SpanId, Target, Timestamp, TraceId};
use serde_json::{Value, json};

use crate::recorded::{Item, apply, captures, items};

const BATCH: Duration = Duration::from_secs(5);
const RUN: Duration = Duration::from_secs(600);
/// After the last run: nothing is waited for any longer, and sessions are still there.
const REST: Duration = Duration::from_secs(4_000);

/// Counters by agent, family and labels.
type Counted = BTreeMap<(AgentKey, Counter, Vec<String>), u64>;

fn options() -> EngineOptions {
    let mut options = EngineOptions::default();
    options.assemble.keep_content = true;
    // All is to be seen when it is over.
    options.session.session_idle = Duration::from_secs(86_400);
    options
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// When each span is over: not before those below it, whatever the rounding of clocks says.
fn ends(items: &[Item]) -> BTreeMap<(TraceId, SpanId), u64> {
    let spans = || {
        items.iter().filter_map(|item| match item {
            Item::Span(span) => Some(span),
            Item::Log(_) | Item::Report(_) => None,
        })
    };
    let parents: BTreeMap<_, _> =
        spans().map(|span| ((span.trace_id, span.span_id), span.parent)).collect();
    let mut ends = BTreeMap::new();
    for span in spans().filter(|span| span.operation != Operation::Evaluation) {
        let (mut at, mut depth) = (Some(span.span_id), 0);
        while let Some(id) = at.filter(|_| depth < 100 && (depth == 0 || !ordered(span, items))) {
            let end: &mut u64 = ends.entry((span.trace_id, id)).or_default();
            *end = span.end.0.max(*end);
            (at, depth) = (parents.get(&(span.trace_id, id)).copied().flatten(), depth + 1);
        }
    }
    ends
}

/// Whether only the order of records assigns a span to its turn.
fn ordered(span: &Span, items: &[Item]) -> bool {
    let session = |span: &Span| (span.scope == RECORD_SCOPE).then(|| span.trace_id.0[..8].to_vec());
    let stands_for_some = |item: &Item| match item {
        Item::Span(other) => other.trace_id.0[10..] == [0; 6] && session(other) == session(span),
        Item::Log(_) | Item::Report(_) => false,
    };
    session(span).is_some() && items.iter().any(stands_for_some)
}

/// What a span keeps running: its trace, or its whole session.
fn run_of(span: &Span, items: &[Item]) -> TraceId {
    let mut id = span.trace_id;
    if ordered(span, items) {
        id.0[10..].fill(0);
    }
    id
}

/// The time in which each trace ran; evaluators come after that.
fn extents(items: &[Item]) -> BTreeMap<TraceId, (u64, u64)> {
    let mut extents: BTreeMap<TraceId, (u64, u64)> = BTreeMap::new();
    let spans = items.iter().filter_map(|item| match item {
        Item::Span(span) => Some(span),
        Item::Log(_) | Item::Report(_) => None,
    });
    for span in spans.filter(|span| span.operation != Operation::Evaluation) {
        let (start, end) = extents.entry(run_of(span, items)).or_insert((u64::MAX, 0));
        (*start, *end) = ((*start).min(span.start.0), (*end).max(span.end.0));
    }
    extents
}

/// Each thing and when it is sent: a run begins when the one before it has ended.
fn stretched(items: &[Item]) -> Vec<(Timestamp, Item)> {
    let (extents, ends) = (extents(items), ends(items));
    let mut order: Vec<_> = extents.iter().map(|(id, (start, _))| (*start, *id)).collect();
    order.sort_unstable();
    let begun = order.first().map_or(0, |(start, _)| *start);
    let turns: BTreeMap<TraceId, u64> =
        order.iter().enumerate().map(|(turn, (_, id))| (*id, turn as u64)).collect();
    let place = |trace: &TraceId, time: u64| {
        let Some((start, end)) = extents.get(trace) else { return u64::MAX };
        let into = time.clamp(*start, *end) - start;
        let into = u128::from(into) * u128::from(nanos(RUN)) / u128::from((end - start).max(1));
        turns[trace] * nanos(RUN) + u64::try_from(into).unwrap()
    };
    let last = turns.len() as u64 * nanos(RUN);
    let batch = |place: u64| Timestamp(begun + (place.min(last) / nanos(BATCH) + 1) * nanos(BATCH));
    let mut sent: Vec<(Timestamp, u64, Item)> = items
        .iter()
        .map(|item| {
            let (at, ended) = match item {
                // Of spans that end together the inner one began later.
                Item::Span(span) => {
                    let end = ends.get(&(span.trace_id, span.span_id)).copied();
                    let run = run_of(span, items);
                    (place(&run, end.unwrap_or(u64::MAX)), u64::MAX - span.start.0)
                }
                Item::Log(log) => (place(&log.trace_id, log.time.0), 0),
                Item::Report(report) => match &report.target {
                    Target::Trace(id) => (place(id, u64::MAX), u64::MAX),
                    // With the run that it was made in, or after.
                    Target::Response { .. }
                    | Target::Session { .. }
                    | Target::Run(_)
                    | Target::Agent(_) => {
                        let before = order.iter().rev().find(|(start, _)| *start <= report.time.0);
                        (before.map_or(last, |(_, id)| place(id, u64::MAX)), u64::MAX)
                    }
                },
            };
            (batch(at), ended, item.clone())
        })
        .collect();
    sent.sort_by_key(|(at, ended, _)| (*at, *ended));
    sent.into_iter().map(|(at, _, item)| (at, item)).collect()
}

fn counted(pipeline: &Pipeline) -> Counted {
    let mut counted = Counted::new();
    for (agent, update) in pipeline.board() {
        for (family, labels, value) in update.counters.iter() {
            counted.insert((agent.clone(), *family, labels.to_vec()), *value);
        }
    }
    counted
}

/// The state at the end, without what depends on arrival times.
fn left(pipeline: &mut Pipeline, now: Timestamp) -> (Value, Counted) {
    pipeline.advance(now.after(REST));
    let counted = counted(pipeline);
    let mut document = pipeline.document();
    for agent in &mut document.agents {
        agent.drops.clear();
        (agent.last_trace_unix_nano, agent.usual_gap_seconds) = (None, None);
        agent.windows.retain(|_, _| false);
    }
    (json!({"sessions": document.sessions, "agents": document.agents}), counted)
}

/// The first thing that differs.
fn difference(at: &str, one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => one
            .iter()
            .find_map(|(key, value)| difference(&format!("{at}/{key}"), value, &other[key])),
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.find_map(|(n, (one, other))| difference(&format!("{at}/{n}"), one, other))
        }
        _ if one == other => None,
        _ => Some(format!("{at}: at once {one}, stretched {other}")),
    }
}

/// The problems of a capture when it is stretched.
fn wrong(capture: &str) -> Vec<String> {
    let sent = stretched(&items(capture));
    let end = sent.last().map_or(Timestamp(0), |(at, _)| *at);
    let mut at_once = Pipeline::new(&options(), 1);
    let all: Vec<Item> = sent.iter().map(|(_, item)| item.clone()).collect();
    apply(&mut at_once, &all, end);
    let (document, counters) = left(&mut at_once, end);
    let mut truth: BTreeSet<String> =
        at_once.board().keys().map(|agent| agent.agent_name.to_string()).collect();
    // While nothing above them is in, agents that others call are what spans say.
    for (_, item) in &sent {
        if let Item::Span(span) = item {
            truth.extend(span.agent_name.as_deref().map(str::to_owned));
            if span.operation == Operation::InvokeAgent {
                let name = span.name.trim_start_matches("invoke_agent").trim();
                truth.insert(name.to_owned());
            }
        }
    }
    let own: BTreeSet<&AgentKey> = at_once.board().keys().collect();
    let mut slowly = Pipeline::new(&options(), 1);
    let mut wrong = BTreeSet::new();
    let look = |slowly: &Pipeline, wrong: &mut BTreeSet<String>| {
        for (agent, update) in slowly.board() {
            if !agent.agent_name.is_empty() && !truth.contains(&*agent.agent_name) {
                wrong.insert(format!("a series of {agent:?}"));
            }
            if !own.contains(agent) && !update.counters.is_empty() {
                wrong.insert(format!("a counter of {agent:?}: {:?}", update.counters));
            }
        }
    };
    for batch in sent.chunk_by(|(one, _), (next, _)| one == next) {
        let now = batch[0].0;
        while let Some(due) = slowly.poll_timeout().filter(|due| *due <= now) {
            slowly.advance(due);
            look(&slowly, &mut wrong);
        }
        let batch: Vec<Item> = batch.iter().map(|(_, item)| item.clone()).collect();
        apply(&mut slowly, &batch, now);
        look(&slowly, &mut wrong);
    }
    let (slow_document, slow_counters) = left(&mut slowly, end);
    look(&slowly, &mut wrong);
    let mut wrong: Vec<String> = wrong.into_iter().collect();
    wrong.extend(difference("", &document, &slow_document));
    let keys: BTreeSet<_> = counters.keys().chain(slow_counters.keys()).collect();
    for key in keys {
        let (one, other) = (counters.get(key), slow_counters.get(key));
        if one != other {
            wrong.push(format!("{} {:?} {:?}: {one:?}, {other:?}", key.0.agent_name, key.1, key.2));
        }
    }
    wrong
}

#[test]
fn captures_that_come_slowly_and_root_last_are_what_they_are_at_once() {
    let folders = fs::read_dir(captures()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = folders
        .filter(|path| path.join("expected.json").exists())
        .map(|path: std::path::PathBuf| name(&path))
        .collect();
    names.sort();
    assert!(names.len() >= 60, "captures are missing: {names:?}");
    let mut all = BTreeMap::new();
    for name in names {
        let wrong = wrong(&name);
        if !wrong.is_empty() {
            all.insert(name, wrong);
        }
    }
    assert!(all.is_empty(), "{all:#?}");
}

fn name(folder: &Path) -> String {
    folder.file_name().unwrap().to_string_lossy().into_owned()
}
