//! A session at rest, as bytes: nothing of it is lost, and it is whole again as soon as somebody speaks of it.
//!
//! ```text
//! flags, touched (8 bytes), tenant, id, scope, number of traces,
//! of each trace: length, id (16 bytes), the rest; so that one of them is found, and changed, without the others,
//! revisions of traces that left, states of gates, panes that the session counts in for each agent, reports
//! ```
//!
//! Times are written as distances, names as numbers, and what follows from the rest is not written at all. What few
//! sessions have is written as it is saved. A session that does not rest, or of which something does not follow as it
//! should, stays as it is: after a restart with other options that may be so.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::codec::Codec;
use super::held::Held;
use super::key::{Agent, SessionId};
use super::packed_trace as trace;
use super::rules::Rules;
use super::run;
use super::scoring::{named, unasked};
use super::session::{Session, Standing};
use crate::engine::bytes::{Reader, Writer};
use crate::engine::score::risk::TraceRisk;
use crate::engine::score::trajectory_gate::TrajectoryGate;
use crate::engine::span::{Timestamp, TraceId};

const CLOSED: u8 = 1;
const CLOSE_COUNTED: u8 = 2;
const REPORTS: u8 = 4;

/// A session as bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed<'a>(pub(super) &'a [u8]);

/// Packs a session; gives it back if it does not rest.
pub(super) fn pack(
    mut session: Box<Session>,
    rules: &Rules,
    codec: &mut Codec,
) -> Result<Vec<u8>, Box<Session>> {
    if !rests(&session, rules, codec) {
        return Err(session);
    }
    // What times are told by.
    let base = session.touched.0;
    let mut to = Writer(Vec::with_capacity(64 + 64 * session.order.len()));
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    to.raw(&[flag(session.closed, CLOSED)
        | flag(session.close_counted, CLOSE_COUNTED)
        | flag(!session.reports.is_empty(), REPORTS)]);
    to.raw(&session.touched.0.to_le_bytes());
    to.bytes(session.id.tenant.as_bytes());
    to.bytes(session.id.id.as_bytes());
    to.bytes(session.id.scope.as_bytes());
    to.number(session.order.len() as u64);
    for (_, id) in std::mem::take(&mut session.order) {
        if let Some(held) = session.traces.remove(&id) {
            to.bytes(&trace::write(*held, base, codec).0);
        }
    }
    tail(&session, codec, &mut to);
    Ok(to.0)
}

impl<'a> Packed<'a> {
    /// The tenant, the id and the scope.
    pub(super) fn name(self) -> (&'a str, &'a str, &'a str) {
        let mut from = Reader(self.0);
        from.array::<9>();
        name(&mut from)
    }

    /// The session as it was.
    pub(super) fn unpack(self, rules: &Rules, codec: &Codec) -> Session {
        let mut from = Reader(self.0);
        let [flags] = from.array();
        let base = u64::from_le_bytes(from.array());
        let id = &Arc::new(SessionId::from(name(&mut from)));
        let mut session = Session::new(Arc::clone(id));
        session.closed = flags & CLOSED > 0;
        session.close_counted = flags & CLOSE_COUNTED > 0;
        session.touched = Timestamp(base);
        let mut runs = Vec::new();
        for _ in 0..from.size() {
            let (held, tells) = trace::read(from.bytes(), (id, base), Some(rules), codec);
            runs.extend(tells.then_some(held.id));
            session.take_back(held);
        }
        read_tail(&mut session, codec, &mut from);
        if flags & REPORTS > 0 {
            session.reports = rmp_serde::from_slice(from.bytes()).unwrap_or_default();
        }
        for id in runs {
            let Some(held) = session.traces.get(&id) else { continue };
            let run = run::trace(held, &session.id, &session.reports);
            let run = run.map(|run| Box::new((held.agent.clone(), run)));
            session.traces.entry(id).and_modify(|held| held.run = run);
        }
        session.placed = session.placing(rules);
        session.spent = session.spending();
        session.filed = session.place();
        session
    }

    /// The time that the times of its traces are told by, and its traces as bytes, in their order.
    pub(super) fn records(self) -> (u64, impl ExactSizeIterator<Item = &'a [u8]>) {
        let mut from = Reader(self.0);
        from.array::<1>();
        let base = u64::from_le_bytes(from.array());
        name(&mut from);
        (base, (0..from.size()).map(move |_| from.bytes()))
    }

    /// Where it belongs in the order in which sessions go.
    pub(super) fn place(self) -> (Standing, Timestamp) {
        let mut from = Reader(self.0);
        let [flags] = from.array();
        let standing = if flags & CLOSED > 0 { Standing::Closed } else { Standing::Open };
        (standing, Timestamp(u64::from_le_bytes(from.array())))
    }

    /// The session once nothing more will come of a trace, and the trace's agent; `None` if it is not held as one that is
    /// done.
    pub(super) fn seal(
        self,
        trace: TraceId,
        revision: u64,
        codec: &mut Codec,
    ) -> Option<(Vec<u8>, Agent)> {
        let mut from = Reader(self.0);
        from.array::<9>();
        name(&mut from);
        for _ in 0..from.size() {
            let before = self.0.len() - from.0.len();
            let record = from.bytes();
            if !record.starts_with(&trace.0) {
                continue;
            }
            let (record, agent) = trace::seal(record, revision, codec)?;
            let mut to = Writer(Vec::with_capacity(self.0.len() + 8));
            to.raw(self.0.get(..before)?);
            to.bytes(&record);
            to.raw(from.0);
            return Some((to.0, agent));
        }
        None
    }
}

/// Reads tenant, id and scope; they were texts.
fn name<'a>(from: &mut Reader<'a>) -> (&'a str, &'a str, &'a str) {
    let mut text = || std::str::from_utf8(from.bytes()).unwrap_or_default();
    (text(), text(), text())
}

/// Whether all of a session follows from what is written of it.
fn rests(session: &Session, rules: &Rules, codec: &Codec) -> bool {
    let quiet = session.growing.is_empty()
        && session.looping.is_empty()
        && session.stalled.is_empty()
        && session.deadline.is_none()
        && !session.is_unsettled()
        && !session.order.is_empty();
    let as_told = |held: &Held| {
        let given = held.given.as_ref().map(|given| given.contribution.unasked);
        risk(held, rules) == held.scored.risk
            && given == Some(unasked(&held.update, &held.scored.signals, rules))
    };
    let known = |held: &Held| !session.restored || as_told(held);
    let tells = |held: &Held| match &held.run {
        Some(told) => run::trace(held, &session.id, &session.reports).as_ref() == Some(&told.1),
        None => true,
    };
    let mut traces = session.traces.values();
    quiet
        && traces.all(|held| trace::rests(held, codec) && known(held) && tells(held))
        && session.placed == session.placing(rules)
        && session.spent == session.spending()
        && session.marks.values().all(|(end, panes)| codec.panes(panes, *end).is_some())
        && session.marks.iter().map(|(agent, (end, _))| (agent, *end)).eq(newest(session))
}

fn risk(held: &Held, rules: &Rules) -> TraceRisk {
    let signals = held.scored.signals.iter();
    TraceRisk::new(signals.map(|(name, (score, _))| (name.as_ref(), *score)), &rules.weights)
}

/// The agents that the session counts for, and when the newest trace of each ended.
fn newest(session: &Session) -> BTreeMap<&Agent, Timestamp> {
    let mut newest: BTreeMap<&Agent, Timestamp> = BTreeMap::new();
    for held in session.traces.values() {
        let end = newest.entry(&held.agent).or_default();
        *end = held.end().max(*end);
    }
    newest
}

/// Writes what is not of one trace.
fn tail(session: &Session, codec: &mut Codec, to: &mut Writer) {
    to.number(session.left.len() as u64);
    for (id, revision) in &session.left {
        to.raw(&id.0);
        to.number(*revision);
    }
    to.number(session.gates.len() as u64);
    for (name, gate) in session.gates.iter() {
        codec.name(name, to);
        let (peak, turns) = gate.parts();
        to.number(turns << 1 | u64::from(peak.is_some()));
        peak.into_iter().for_each(|peak| to.raw(&peak.to_le_bytes()));
    }
    for (end, panes) in session.marks.values() {
        to.number(codec.panes(panes, *end).unwrap_or(0));
    }
    if !session.reports.is_empty() {
        // A list of bytes takes all that is written to it.
        to.bytes(&rmp_serde::to_vec_named(&session.reports).unwrap_or_default());
    }
}

fn read_tail(session: &mut Session, codec: &Codec, from: &mut Reader<'_>) {
    for _ in 0..from.size() {
        let id = TraceId(from.array());
        session.left.insert(id, from.number());
    }
    for _ in 0..from.size() {
        let (name, turns) = (codec.read_name(from), from.number());
        let peak = (turns & 1 > 0).then(|| f64::from_le_bytes(from.array()));
        session.gates.insert(named(&name), TrajectoryGate::of_parts(peak, turns >> 1));
    }
    let marks = newest(session).into_iter();
    let marks =
        marks.map(|(agent, end)| (agent.clone(), (end, codec.read_panes(from.number(), end))));
    session.marks = marks.collect();
}
