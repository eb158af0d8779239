//! Why a trace has its score: each signal with its source and evidence, each loop with its calls, and what the scores would be
//! without it.
//!
//! ```text
//! without a signal: risk = max over the other signals of w_i * (1 - s_i)
//! without a loop:   the signal that it lowers (tool_loop, or loop_detection for a repeated output) as it would be
//!                   with the other loops alone, in every trace that has a call in it
//! ```
//!
//! Then the session's formulas are applied to its traces, with the actual risks replaced by those.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::chain;
use super::record::TraceRecord;
use super::rules::Rules;
use super::scoring::{self, Signal, Signals};
use super::session::Session;
use super::view;
use crate::explained::{CallView, LoopExplanation, Outlook, SignalExplanation, TraceExplanation};
use crate::facts::{Loop, OutputDigest, ToolCall};
use crate::loops::{self, Evidence, Found, worst};
use crate::math::Quanta;
use crate::score::risk::TraceRisk;
use crate::signal::{self, Grounds, SignalName, loop_detection, tool_loop};
use crate::span::{Source, TraceId};

/// At most this many loops are explained, the worst ones, and this many calls of each are shown.
const MAX_LOOPS: usize = 20;
const MAX_CALLS: usize = 100;

/// Explains a trace; `None` if the session does not hold it.
pub(super) fn explain(
    session: &Session,
    trace: TraceId,
    rules: &Rules,
) -> Option<TraceExplanation> {
    let held = session.traces.get(trace)?;
    let explainer = Explainer { session, held, loops: all_loops(session), rules };
    let found = explainer.loops_through(trace);
    let signals = held.scored.signals.iter();
    let mut signals: Vec<SignalExplanation> =
        signals.map(|(name, scored)| explainer.signal(name, scored, &found)).collect();
    signals.sort_by(|a, b| b.risk.unwrap_or(-1.0).total_cmp(&a.risk.unwrap_or(-1.0)));
    let now = explainer.outlook(&BTreeMap::new());
    let shown = worst_loops(&found);
    let of_calls = shown.iter().filter(|entry| entry.kind.is_of_calls());
    let mut chains = BTreeMap::new();
    for entry in of_calls {
        let ids = &entry.trace_ids[..];
        chains.entry(ids).or_insert_with(|| Chain::new(session, ids, rules));
    }
    let calls = |entry: &Loop| match chains.get(&entry.trace_ids[..]) {
        Some(chain) if entry.kind.is_of_calls() => chain.calls_of(entry),
        Some(_) | None => Vec::new(),
    };
    Some(TraceExplanation {
        session_id: session.id.id.to_string(),
        scope: session.id.scope.to_string(),
        tenant: session.id.tenant.to_string(),
        reason: reason(held, &signals),
        trace: view::trace(held, rules),
        prediction: None,
        decided_on: held.course.evidence.name().to_owned(),
        counted: !held.course.uncertain && !held.course.unjudged && held.is_done(),
        partial: held.course.partial,
        now,
        signals,
        loops: shown.iter().map(|entry| explainer.looped(entry, calls(entry))).collect(),
    })
}

/// All loops of a session, with the trace in which each ends, in order.
type Loops<'a> = Vec<(TraceId, &'a Loop)>;

/// Explains one trace.
struct Explainer<'a> {
    session: &'a Session,
    held: &'a TraceRecord,
    /// All loops of the session.
    loops: Loops<'a>,
    rules: &'a Rules,
}

/// The worst loops, in the order in which they were found.
fn worst_loops<'a>(found: &[&'a Loop]) -> Vec<&'a Loop> {
    let mut places: Vec<usize> = (0..found.len()).collect();
    places.sort_by_key(|at| Reverse((found[*at].severity, found[*at].count)));
    places.truncate(MAX_LOOPS);
    places.sort_unstable();
    places.into_iter().map(|at| found[at]).collect()
}

fn all_loops(session: &Session) -> Loops<'_> {
    let traces = session.traces.iter();
    traces.flat_map(|held| held.all_loops().map(|entry| (held.id, entry))).collect()
}

impl<'a> Explainer<'a> {
    /// The loops that have a call in a trace, or whose text its output repeats.
    fn loops_through(&self, trace: TraceId) -> Vec<&'a Loop> {
        let is_in = |(owner, entry): &&(TraceId, &'a Loop)| {
            *owner == trace || (entry.kind.is_of_calls() && entry.trace_ids.contains(&trace))
        };
        self.loops.iter().filter(is_in).map(|(_, entry)| *entry).collect()
    }

    fn signal(&self, name: &SignalName, scored: &Signal, found: &[&Loop]) -> SignalExplanation {
        let Self { held, rules, .. } = *self;
        let Signal { score, source, .. } = *scored;
        let risk = rules.risks([(name, score)]).next().map(|(_, risk)| risk);
        // A computed confidence stays if the judge's replaces it.
        let rest = Changed::of(held, rules, |other, own| {
            let is_it = other == name && own.source == source;
            (!is_it).then_some(own.score)
        });
        SignalExplanation {
            name: name.to_string(),
            signal: view::explained(held, name, scored, rules),
            threshold: rules.threshold(name),
            weight: rules.weight(name),
            risk: risk.map(Quanta::to_f64),
            decides: risk.is_some_and(|risk| risk.0 > 0) && risk == held.scored.risk.risk,
            evidence: self.evidence(name.as_str(), source, found),
            without: self.outlook(&BTreeMap::from([(held.id, rest)])),
        }
    }

    /// What a signal was computed from.
    fn evidence(&self, name: &str, source: Source, found: &[&Loop]) -> Vec<String> {
        let Self { session, held, rules, .. } = *self;
        if source != Source::Computed {
            return reported(held, name, source);
        }
        let Some(by) = signal::of(name).and_then(|known| known.computed) else { return Vec::new() };
        let loops = found.iter().filter(|entry| entry.kind.is_of_calls());
        let repeated = held.rare().output_repeat.iter().flat_map(|entry| &entry.trace_ids);
        let grounds = Grounds {
            loops: loops.map(|entry| described(entry)).collect(),
            compared: compared(session, held),
            repeated: repeated.filter(|id| **id != held.id).map(TraceId::to_string).collect(),
        };
        (by.evidence)(&scoring::facts(held, &[], rules), &grounds)
    }

    fn looped(&self, entry: &Loop, calls: Vec<CallView>) -> LoopExplanation {
        let trace = self.held.id;
        let ids = entry.trace_ids.iter().copied();
        // A repeated output is the later trace's alone.
        let ids = ids.filter(|id| entry.kind.is_of_calls() || *id == trace).chain([trace]);
        let changed = ids.filter_map(|id| Some((id, self.without(id, entry)?)));
        LoopExplanation {
            found: view::found_loop(entry),
            calls,
            without: self.outlook(&changed.collect()),
        }
    }

    /// The risks of a trace without a loop; `None` if the trace is not in the session.
    fn without(&self, id: TraceId, entry: &Loop) -> Option<Changed> {
        let held = self.session.traces.get(id)?;
        let (name, score) = if entry.kind.is_of_calls() {
            let others = self.loops_through(id).into_iter();
            let others = others.filter(|other| other.kind.is_of_calls() && *other != entry);
            (tool_loop::NAME, tool_loop::score(worst(others)))
        } else {
            (loop_detection::NAME, Quanta(Quanta::ONE))
        };
        Some(Changed::of(held, self.rules, |signal, own| {
            // A reported score stays.
            let ours = signal.as_str() == name && own.source == Source::Computed;
            Some(if ours { score } else { own.score })
        }))
    }

    /// The risk of the trace and the session's scores, with changed risks for some traces; without the judge's scores.
    fn outlook(&self, changed: &BTreeMap<TraceId, Changed>) -> Outlook {
        let Self { session, held, rules, .. } = *self;
        let (mut reliability, mut consistency) =
            (session.reliability.clone(), session.consistency());
        let mut own = held.scored.risk.risk;
        for (id, changed) in changed {
            if *id == held.id {
                own = changed.all.risk;
            }
            let given = session.traces.get(*id).filter(|held| !held.panes.is_empty());
            let Some(given) = given.map(|held| &held.scored) else { continue };
            given.own_risk().into_iter().for_each(|risk| reliability.forget(risk));
            changed.own.risk.into_iter().for_each(|risk| reliability.observe(risk));
            given.own_uncertainty().into_iter().for_each(|own| consistency.forget(own));
            changed.own.uncertainty.into_iter().for_each(|own| consistency.observe(own));
        }
        Outlook {
            trace_risk: own.map(Quanta::to_f64),
            session_reliability: reliability.result().map(|result| rules.shown(result.score)),
            session_consistency: consistency.result().map(|result| rules.shown(result.score)),
        }
    }
}

/// What an output was compared with, and by which embeddings: hashed ones if there is no model or it could not be asked.
fn compared(session: &Session, held: &TraceRecord) -> String {
    let current = held.output();
    let number = session.traces.number(held.id);
    let earlier = number.map(|number| session.traces.earlier(number)).unwrap_or_default();
    let outputs = earlier.iter().filter_map(|earlier| earlier.output()).zip(current.iter().cycle());
    let by_model = |(earlier, current): (&OutputDigest, &&OutputDigest)| {
        loop_detection::of_one_model(earlier, current).is_some()
    };
    let (model, hashed): (Vec<bool>, Vec<bool>) = outputs.map(by_model).partition(|by| *by);
    let by = match (model.len(), hashed.len()) {
        (0, 0) => return "there is no output to compare with".to_owned(),
        (_, 0) => "the embedding model".to_owned(),
        (0, _) => "hashed embeddings".to_owned(),
        (model, hashed) => {
            format!("the embedding model ({model}) and hashed embeddings ({hashed})")
        }
    };
    format!("compared with the outputs of the traces before it, three at most, by {by}")
}

/// All sources of a score, including the one that applies.
fn reported(held: &TraceRecord, name: &str, source: Source) -> Vec<String> {
    let said = held.rare().reported.iter();
    let said = said.filter(|score| score.name == name && score.source == source);
    said.map(|score| {
        let by = match (score.identifier.as_str(), &score.judge) {
            ("", _) => String::new(),
            (rule, Some(judge)) => format!(" by {judge}, of the rule {rule}"),
            (identifier, None) => format!(" by {identifier}"),
        };
        let label = score.label.as_ref().map(|label| format!(", labelled {label}"));
        let value = Quanta(score.score_quanta).to_f64();
        format!("{}{by}: {value}{}", source.name(), label.unwrap_or_default())
    })
    .collect()
}

fn described(entry: &Loop) -> String {
    let tools = match entry.tools.as_slice() {
        [] if entry.tool.is_empty() => "an unknown tool".to_owned(),
        [] => entry.tool.to_string(),
        tools => tools.join(", "),
    };
    let Loop { kind, severity, count, evidence, .. } = entry;
    let seen_by = match evidence {
        Evidence::Names => "names alone, which moves no score",
        Evidence::Results => "names and results",
        Evidence::Arguments => "names and arguments",
        Evidence::Full => "names, arguments and results",
        Evidence::Text => "text",
    };
    format!("{kind} of {tools}, {count} times: {severity}, by {seen_by}")
}

fn reason(held: &TraceRecord, signals: &[SignalExplanation]) -> String {
    if !held.is_done() {
        return "the trace is still open: it has no part in scores yet".to_owned();
    }
    let Some(risk) = held.scored.risk.risk else {
        return "no signal with a weight could be measured: the trace has no part in scores"
            .to_owned();
    };
    let deciding: Vec<&str> =
        signals.iter().filter(|signal| signal.decides).map(|signal| signal.name.as_str()).collect();
    if deciding.is_empty() {
        return "all signals are at their best: the risk is 0".to_owned();
    }
    let over = if held.scored.risk.is_flagged() { ", over 0.5: the trace is flagged" } else { "" };
    format!("the risk is {}, from {}{over}", risk.to_f64(), deciding.join(" and "))
}

/// The risks that a trace would have with other signals.
#[derive(Clone, Copy, Debug)]
struct Changed {
    /// With the judge's scores.
    all: TraceRisk,
    /// Without them, as in the session's scores.
    own: TraceRisk,
}

impl Changed {
    /// With these scores; signals without one are left out.
    fn of(
        held: &TraceRecord,
        rules: &Rules,
        score: impl Fn(&SignalName, &Signal) -> Option<Quanta>,
    ) -> Self {
        let risk = |signals: &Signals| {
            rules.risk(signals.iter().filter_map(|(name, own)| Some((name, score(name, own)?))))
        };
        Self { all: risk(&held.scored.signals), own: risk(&held.scored.own_signals()) }
    }
}

/// The traces of a loop, with their calls and all loops among them.
struct Chain<'a> {
    traces: Vec<&'a TraceRecord>,
    calls: Vec<ToolCall>,
    // For each call, the index of its trace.
    owners: Vec<usize>,
    // The loops over all of the traces.
    found: Vec<Found>,
}

impl<'a> Chain<'a> {
    fn new(session: &'a Session, ids: &[TraceId], rules: &Rules) -> Self {
        let traces = ids.iter().filter_map(|id| session.traces.get(*id));
        let traces: Vec<&TraceRecord> = traces.collect();
        let (calls, owners) = chain::calls(&traces);
        // A loop within one trace has its positions.
        let mut found = match &traces[..] {
            [] | [_] => Vec::new(),
            _ => loops::find_between(&calls, &chain::compactions(&traces), &[], &rules.loops),
        };
        let is_over_all = |found: &Found| {
            let ends = (owners.first(), owners.last());
            (owners.get(found.calls.start), owners.get(found.calls.end - 1)) == ends
        };
        found.retain(is_over_all);
        Self { traces, calls, owners, found }
    }

    /// The calls of a loop: by its positions, else by searching again; if too little is kept for that, the longest sequence of
    /// calls to its tools.
    fn calls_of(&self, entry: &Loop) -> Vec<CallView> {
        let Self { traces, calls, owners, found } = self;
        let found = found.iter().find(|found| {
            (found.entry.kind, found.entry.count, &found.entry.tools)
                == (entry.kind, entry.count, &entry.tools)
        });
        let place = |at| usize::try_from(at).unwrap_or(usize::MAX);
        let told = entry.calls.map(|(first, last)| place(first)..place(last).saturating_add(1));
        let range = told.or_else(|| found.map(|found| found.calls.clone()));
        let places: Vec<usize> = match range {
            // Calls made within its calls are not part of the loop.
            Some(range) => {
                let within = |at: usize| calls.get(at).map(|call| call.within);
                let first = within(range.start);
                range.filter(|at| within(*at) == first).take(MAX_CALLS).collect()
            }
            None => longest(calls, entry).take(MAX_CALLS).collect(),
        };
        places
            .into_iter()
            .filter_map(|at| {
                let (owner, call) = (*owners.get(at)?, calls.get(at)?);
                let first = owners.partition_point(|other| *other < owner);
                Some(CallView {
                    trace_id: traces.get(owner)?.id.to_string(),
                    index: (at - first) as u64,
                    call: view::tool(call),
                })
            })
            .collect()
    }
}

fn longest(calls: &[ToolCall], entry: &Loop) -> std::ops::Range<usize> {
    let is_of = |call: &ToolCall| call.name == entry.tool || entry.tools.contains(&call.name);
    let (mut best, mut from) = (0..0, 0);
    for (at, call) in calls.iter().enumerate() {
        if !is_of(call) {
            from = at + 1;
        } else if at + 1 - from > best.len() {
            best = from..at + 1;
        }
    }
    best
}
