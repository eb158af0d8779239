//! Sessions: their traces in order, the loops that span several traces, and their scores.

use std::collections::BTreeMap;

use super::gather::reports;
use super::loops::{self, Found, Spend};
use super::names::SessionKey;
use super::runs;
use super::score::{self, Scores, TraceScore, round4};
use super::signals::{self, Place, Signal, Worth, believed, quanta, reported_outcome};
use super::tools::Call;
use super::trace::{Trace, TurnStart};
use crate::engine::loops::{Evidence, LoopKind, Severity};
use crate::engine::options::{EmptyScore, Profile, SessionOptions};
use crate::engine::pipeline::EngineOptions;
use crate::engine::span::{Report, Target, TraceId};

/// A session.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) key: SessionKey,
    /// Signals of the session as a whole.
    pub(super) signals: BTreeMap<String, Signal>,
    pub(super) reports: Vec<Report>,
    /// Its traces, by (start, id).
    pub(super) traces: Vec<Scored>,
    /// Its scores without the judge's answers.
    pub(super) scores: Scores,
    /// Its scores over the judged traces, by all of their signals.
    pub(super) judged: Scores,
    pub(super) reliability: Option<f64>,
    pub(super) consistency: Option<f64>,
}

/// A trace in its session.
#[derive(Clone, Debug)]
pub(super) struct Scored {
    pub(super) trace: Trace,
    pub(super) loops: Vec<Entry>,
    pub(super) worth: Worth,
}

/// A loop, with the traces that it spans.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) found: Found,
    pub(super) traces: Vec<TraceId>,
    /// The indices of its first and last call, if it is within a trace that is no part of a chain.
    pub(super) places: Option<(u64, u64)>,
}

/// The sessions of these traces.
pub(super) fn sessions(
    traces: Vec<Trace>,
    all: &[Report],
    options: &EngineOptions,
) -> Vec<Session> {
    let mut by_key: BTreeMap<(String, String, String), Vec<Trace>> = BTreeMap::new();
    for trace in traces {
        let SessionKey { tenant, id, scope, .. } = trace.session.clone();
        by_key.entry((tenant, id, scope)).or_default().push(trace);
    }
    let known: Vec<(String, String, String)> = by_key.keys().cloned().collect();
    let sessions = by_key.into_iter().map(|((tenant, id, scope), mut traces)| {
        traces.sort_by_key(|trace| (trace.start, trace.id));
        let alone =
            || known.iter().filter(|(of, other, _)| *of == tenant && *other == id).count() < 2;
        let reports = reports(all, |target| match target {
            Target::Session { tenant: of, id: named, scope: within } => {
                of.as_deref().unwrap_or_default() == tenant
                    && **named == *id
                    && within.as_deref().map_or_else(alone, |within| within == scope)
            }
            Target::Trace(_) | Target::Response { .. } | Target::Run(_) | Target::Agent(_) => false,
        });
        let outcomes = outcomes(&traces, &reports, all);
        session(&traces, reports, &outcomes, options)
    });
    sessions.collect()
}

/// The reported outcome of each trace: that of the session counts for its last trace, that of a run for the last trace of the run
/// in the session; if a trace has both, the worse counts.
fn outcomes(traces: &[Trace], of_session: &[Report], all: &[Report]) -> Vec<Option<bool>> {
    let at = |at: usize| {
        let last = at + 1 == traces.len();
        let of_session = reported_outcome(of_session).filter(|_| last);
        let of_run = runs::named(&traces[at]).and_then(|run| {
            let is_last =
                traces[at + 1..].iter().all(|later| runs::named(later).as_ref() != Some(&run));
            let is_its = |target: &Target| runs::is_of(target, &run);
            reported_outcome(&reports(all, is_its)).filter(|_| is_last)
        });
        of_session.into_iter().chain(of_run).min()
    };
    (0..traces.len()).map(at).collect()
}

fn session(
    traces: &[Trace],
    reports: Vec<Report>,
    outcomes: &[Option<bool>],
    options: &EngineOptions,
) -> Session {
    let linked = loops_of(traces, options);
    let rules = &options.session;
    let worths: Vec<Worth> = (0..traces.len())
        .map(|at| {
            let place =
                Place { earlier: &traces[..at], loops: linked[at].1, outcome: outcomes[at] };
            signals::worth(&traces[at], &place, rules)
        })
        .collect();
    let mut scored: Vec<Scored> = Vec::new();
    for (at, (worth, (mut loops, _))) in worths.into_iter().zip(linked).enumerate() {
        loops.extend(output_repeat(&traces[at], &traces[..at], &worth, rules));
        scored.push(Scored { trace: traces[at].clone(), loops, worth });
    }
    let own: Vec<TraceScore> = scored.iter().map(|one| one.worth.own.clone()).collect();
    let judged: Vec<TraceScore> =
        scored.iter().filter(|one| one.worth.is_judged).map(|one| one.worth.all.clone()).collect();
    let (scores, judged) = (score::scores(&own), score::scores(&judged));
    let empty = (rules.empty_score == EmptyScore::One).then_some(1.0);
    let shown = |score: Option<f64>| score.or(empty).map(|score| round(score, rules));
    Session {
        key: traces.first().map(|trace| trace.session.clone()).unwrap_or_default(),
        signals: of_reports(&reports),
        reliability: shown(scores.reliability),
        consistency: shown(scores.consistency),
        reports,
        traces: scored,
        scores,
        judged,
    }
}

/// A score as the profile shows it.
pub(super) fn round(score: f64, options: &SessionOptions) -> f64 {
    if options.profile == Profile::Pandaprobe { round4(score) } else { score }
}

fn of_reports(reports: &[Report]) -> BTreeMap<String, Signal> {
    let best = reports.iter().filter_map(|report| believed(reports, &[&report.name], None));
    best.map(|report| {
        let signal = Signal { score: quanta(report.score.0), source: report.source };
        (report.name.to_string(), signal)
    })
    .collect()
}

/// The loops that end in each trace, and the worst severity of the loops that it is part of, except loops known by names alone.
/// Traces that continue one another without new input are searched as one.
fn loops_of(traces: &[Trace], options: &EngineOptions) -> Vec<(Vec<Entry>, Option<Severity>)> {
    let mut linked: Vec<(Vec<Entry>, Option<Severity>)> = vec![(Vec::new(), None); traces.len()];
    for chain in chains(traces, options.loops.max_traces.max(1)) {
        let entries = match &chain[..] {
            [alone] => own_loops(&traces[*alone], *alone),
            chain => chained(traces, chain, options),
        };
        for (first, last, entry) in entries {
            let severity = Some(entry.found.severity).filter(|_| weighs(&entry));
            linked[first..=last].iter_mut().for_each(|(_, worst)| *worst = (*worst).max(severity));
            linked[last].0.push(entry);
        }
    }
    linked
}

/// Whether a loop affects scores: a loop known by names alone does not.
pub(super) fn weighs(entry: &Entry) -> bool {
    entry.found.evidence != Evidence::Names
}

/// The chains of traces that continue one another, as indices of at most `most` traces each.
fn chains(traces: &[Trace], most: usize) -> Vec<Vec<usize>> {
    let goes_on = |at: usize| {
        let continues = match traces[at].begun {
            TurnStart::Continued => true,
            TurnStart::Unknown => traces[at - 1].is_unfinished,
            TurnStart::Asked => false,
        };
        continues && begins_after(&traces[at - 1], &traces[at])
    };
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut length = 0;
    for at in 0..traces.len() {
        length = if at > 0 && goes_on(at) { length + 1 } else { 0 };
        match chains.last_mut().filter(|_| length % most > 0) {
            Some(chain) => chain.push(at),
            None => chains.push(vec![at]),
        }
    }
    chains
}

/// Whether a trace began when the previous one was over: to a millisecond, if it began in whole milliseconds; or to a second, if
/// they overlap for at most half of the time of either.
fn begins_after(before: &Trace, after: &Trace) -> bool {
    let end = before.end.max(before.start);
    let common = end.saturating_sub(after.start);
    let shorter = (end - before.start).min(after.end.max(after.start) - after.start);
    let cut = after.start.is_multiple_of(1_000_000) && common <= 1_000_000;
    common == 0 || cut || (common <= 1_000_000_000 && common <= shorter / 2)
}

fn own_loops(trace: &Trace, at: usize) -> Vec<(usize, usize, Entry)> {
    let entry = |found: &Found| {
        let last = found.calls.end.saturating_sub(1) as u64;
        let places = (found.kind != LoopKind::Reported).then_some((found.calls.start as u64, last));
        (at, at, Entry { found: found.clone(), traces: vec![trace.id], places })
    };
    trace.loops.iter().map(entry).collect()
}

/// The loops of a chain, with the indices of the traces in which they begin and end. The result of a call may be in a later trace.
fn chained(
    traces: &[Trace],
    chain: &[usize],
    options: &EngineOptions,
) -> Vec<(usize, usize, Entry)> {
    let mut calls: Vec<(usize, Call)> = Vec::new();
    for at in chain {
        let trace = &traces[*at];
        for (place, told) in trace.results.iter().enumerate() {
            let again =
                trace.results[place + 1..].iter().any(|other| other.call_id == told.call_id);
            let asked = calls.iter_mut().rev().find(|(_, call)| call.id == told.call_id);
            if let Some((_, call)) = asked.filter(|_| told.call_id.is_some() && !again) {
                call.result = call.result.or(told.hash);
                call.failed = call.failed.map(|failed| failed || told.failed);
            }
        }
        calls.extend(trace.calls.iter().map(|call| {
            let within = call.within.map(|(_, place)| (*at, place));
            (*at, Call { within, ..call.clone() })
        }));
    }
    let spends: Vec<Spend> = chain
        .iter()
        .map(|at| Spend {
            start: traces[*at].start,
            end: traces[*at].end,
            input_tokens: traces[*at].input_tokens,
            output_tokens: traces[*at].output_tokens,
            cost: traces[*at].cost,
        })
        .collect();
    let (owners, calls): (Vec<usize>, Vec<Call>) = calls.into_iter().unzip();
    let compacted: Vec<u64> = chain.iter().flat_map(|at| &traces[*at].compacted).copied().collect();
    let found = loops::find_apart(&calls, &compacted, &spends, &options.loops).into_iter();
    found
        .map(|found| {
            let (start, end) = (found.calls.start, found.calls.end - 1);
            let (first, last) = (owners[start], owners[end]);
            let traces = traces[first..=last].iter().map(|trace| trace.id).collect();
            let earlier = owners.iter().filter(|owner| **owner < first).count();
            let places = ((start - earlier) as u64, (end - earlier) as u64);
            // A loop over several traces names the traces, and no spans.
            let found = Found { spans: Vec::new(), ..found };
            (first, last, Entry { found, traces, places: (first == last).then_some(places) })
        })
        .collect()
}

/// The loop of an output that repeats an earlier one.
fn output_repeat(
    trace: &Trace,
    earlier: &[Trace],
    worth: &Worth,
    options: &SessionOptions,
) -> Option<Entry> {
    let repeats = worth.novelty? < options.loop_detection_threshold;
    let before = signals::repeated(trace, earlier).filter(|_| repeats)?;
    let found = Found {
        kind: LoopKind::OutputRepeat,
        severity: Severity::Warning,
        evidence: Evidence::Text,
        count: 2,
        tools: Vec::new(),
        calls: 0..0,
        time: 0..0,
        spans: Vec::new(),
        input_tokens: None,
        output_tokens: None,
        cost: None,
    };
    Some(Entry { found, traces: vec![before.id, trace.id], places: None })
}
