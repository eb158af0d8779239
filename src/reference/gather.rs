//! Groups decoded data by trace: each span, record and report once, whatever order they came in.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::signals::succeeds;
use crate::engine::span::{
    IdHash, Log, Operation, RECORD_SCOPE, Report, Span, SpanId, Target, Timestamp, TraceId,
};

/// All decoded data.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Spans, in any order.
    pub spans: Vec<Span>,
    /// Log records, in any order.
    pub logs: Vec<Log>,
    /// Reports, in any order.
    pub reports: Vec<Report>,
}

/// The decoded data of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct GatheredTrace {
    pub(super) spans: Vec<Span>,
    /// Its log records, by (time, index, id).
    pub(super) logs: Vec<Log>,
    pub(super) reports: Vec<Report>,
}

/// The traces that have spans.
pub(super) fn traces(recorded: &Recorded) -> BTreeMap<TraceId, GatheredTrace> {
    let mut traces: BTreeMap<TraceId, BTreeMap<SpanId, Span>> = BTreeMap::new();
    for span in in_their_turns(&recorded.spans) {
        let spans = traces.entry(span.trace_id).or_default();
        let held = spans.entry(span.span_id).or_insert_with(|| span.clone());
        if witness(&span, held) == Ordering::Greater {
            *held = span;
        }
    }
    let mut parts: BTreeMap<TraceId, GatheredTrace> = traces
        .into_iter()
        .map(|(id, spans)| {
            (id, GatheredTrace { spans: spans.into_values().collect(), ..GatheredTrace::default() })
        })
        .collect();
    for (id, parts) in &mut parts {
        let mut logs: BTreeMap<u64, Log> = BTreeMap::new();
        for log in recorded.logs.iter().filter(|log| log.trace_id == *id) {
            let held = logs.entry(log.id).or_insert_with(|| log.clone());
            held.index = held.index.min(log.index);
        }
        parts.logs = logs.into_values().collect();
        parts.logs.sort_by_key(|log| (log.time, log.index, log.id));
        parts.reports = reports(&recorded.reports, |target| match target {
            Target::Trace(of) => of == id,
            Target::Response { tenant, id: response } => {
                trace_of_response(&recorded.spans, tenant.as_ref(), response) == Some(*id)
            }
            Target::Session { .. } | Target::Run(_) | Target::Agent(_) => false,
        });
    }
    parts
}

/// The reports about a target: for each (name, identifier) the one to believe, which is of the highest-ranking source, then the
/// latest, then the greatest.
pub(super) fn reports(all: &[Report], about: impl Fn(&Target) -> bool) -> Vec<Report> {
    let mut best: BTreeMap<(&str, &str), &Report> = BTreeMap::new();
    let rank = |report: &Report| (report.source, report.time, report.score, succeeds(report));
    for report in all.iter().filter(|report| about(&report.target)) {
        let held = best.entry((&report.name, &report.identifier)).or_insert(report);
        if rank(report) > rank(held) {
            *held = report;
        }
    }
    best.into_values().cloned().collect()
}

/// The trace of a response id; the least, if several have it.
fn trace_of_response(spans: &[Span], tenant: Option<&Arc<str>>, response: &str) -> Option<TraceId> {
    let claims = |span: &&Span| {
        let id = span.model.as_ref().and_then(|model| model.response_id);
        id == Some(IdHash::from(response)) && span.resource.tenant.as_ref() == tenant
    };
    spans.iter().filter(claims).map(|span| span.trace_id).min()
}

/// Orders two spans with one id, of which the greater is kept: facts that count are compared first, then the rest.
fn witness(one: &Span, other: &Span) -> Ordering {
    let bare = |span: &Span| {
        let named = matches!(span.operation, Operation::InvokeAgent | Operation::Other);
        let mut bare = Span { convention: None, ..span.clone() };
        if !named {
            bare.name = Arc::default();
        }
        if span.operation == Operation::ExecuteTool {
            bare.output = None;
        }
        bare.input.iter_mut().for_each(|text| text.text = Arc::default());
        bare
    };
    (bare(one), one).cmp(&(bare(other), other))
}

/// Moves spans that only the order of prompts assigns to a turn into the turn of the latest prompt of their session that is not
/// later than their end; returns all spans.
fn in_their_turns(spans: &[Span]) -> Vec<Span> {
    let prompts: BTreeSet<([u8; 8], Timestamp, TraceId, SpanId)> = spans
        .iter()
        .filter(|span| span.parent.is_none())
        .filter_map(|span| Some((session_of_turn(span)?, span.start, span.trace_id, span.span_id)))
        .collect();
    let place = |span: &Span| {
        let session = session_of_turn(span).filter(|_| span.parent.is_some())?;
        let is_some_turn = span.trace_id.0[10..] == [0; 6];
        let before = |(of, at, ..): &&([u8; 8], Timestamp, TraceId, SpanId)| {
            *of == session && *at <= span.end
        };
        is_some_turn.then(|| prompts.iter().rev().find(before)).flatten()
    };
    let known: BTreeSet<SpanId> = spans.iter().map(|span| span.span_id).collect();
    let moved = |span: &Span| match place(span) {
        Some((_, _, turn, root)) => Span {
            trace_id: *turn,
            // A span whose parent is not in its session becomes a child of the prompt.
            parent: span.parent.filter(|parent| known.contains(parent)).or(Some(*root)),
            ..span.clone()
        },
        None => span.clone(),
    };
    spans.iter().map(moved).collect()
}

/// The session of a span from a log record, as the bytes in its trace id.
fn session_of_turn(span: &Span) -> Option<[u8; 8]> {
    let [a, b, c, d, e, f, g, h, x, y, ..] = span.trace_id.0;
    (span.scope == RECORD_SCOPE && [x, y] == [0xa6, 0x75]).then_some([a, b, c, d, e, f, g, h])
}
