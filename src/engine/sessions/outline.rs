//! What lists of sessions go by. Of a session at rest it is read without unpacking it, which would take twenty times as long.

use super::codec::Codec;
use super::key::Agent;
use super::list::Wanted;
use super::packed::Packed;
use super::packed_trace::{self, Skimmed};
use super::rules::Rules;
use super::session::{Session, Standing};
use super::shelf::Kept;
use crate::engine::explained::Sort;
use crate::engine::math::Quanta;
use crate::engine::score::agent_reliability::AgentReliability;

/// A session, as far as lists go by it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Outline {
    /// Start of its first trace.
    pub(super) start: u64,
    /// End of the trace that ended last.
    end: u64,
    pub(super) loops: u64,
    cost: Option<i64>,
    /// Only where the order goes by it.
    reliability: Option<Quanta>,
}

/// What came of looking at a session.
#[derive(Debug, Default)]
pub(super) struct Glance {
    /// What is to be known of it, if it fits.
    pub(super) outline: Option<Outline>,
    /// How many of its traces that took.
    pub(super) looked: usize,
}

/// Looks at a session as far as it takes.
pub(super) fn glance(kept: &Kept<'_>, wanted: &Wanted<'_>, rules: &Rules, codec: &Codec) -> Glance {
    match kept {
        Kept::Awake(session) => awake(session, wanted, rules),
        Kept::AtRest(packed) => at_rest(*packed, wanted, rules, codec),
    }
}

fn awake(session: &Session, wanted: &Wanted<'_>, rules: &Rules) -> Glance {
    let Some(first) = session.first().filter(|first| {
        wanted.filter.open.is_none_or(|open| open != session.closed)
            && wanted.filter.agent.admits_key(first.update.agent.as_ref())
    }) else {
        return Glance::default();
    };
    let mut outline = Outline { start: first.update.start_unix_nano, ..Outline::default() };
    let traces = session.traces.values();
    traces.for_each(|held| outline.add(&Skimmed::of(held)));
    outline.reliability = by_score(wanted).then(|| session.scores(rules).reliability).flatten();
    Glance { outline: outline.wanted(wanted), looked: session.traces.len() }
}

fn at_rest(packed: Packed<'_>, wanted: &Wanted<'_>, rules: &Rules, codec: &Codec) -> Glance {
    let closed = packed.place().0 == Standing::Closed;
    if wanted.filter.open.is_some_and(|open| open == closed) {
        return Glance::default();
    }
    let (base, records) = packed.records();
    let looked = records.len();
    let by_score = by_score(wanted);
    let (mut outline, mut risks) = (Outline::default(), AgentReliability::default());
    for (number, record) in records.enumerate() {
        let trace = packed_trace::skim(record, base, by_score.then_some(rules), codec);
        if number == 0 {
            if !wanted.filter.agent.admits_key(trace.agent.as_ref().map(Agent::key)) {
                return Glance::default();
            }
            outline.start = trace.start;
        }
        outline.add(&trace);
        trace.risk.into_iter().for_each(|risk| risks.observe(risk));
    }
    outline.reliability = by_score.then(|| rules.reliability(&risks)).flatten();
    Glance { outline: outline.wanted(wanted), looked }
}

fn by_score(wanted: &Wanted<'_>) -> bool {
    wanted.sort == Sort::Reliability
}

impl Outline {
    /// Where it stands in an order; smaller comes first.
    pub(super) fn rank(&self, sort: Sort) -> u64 {
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        match sort {
            Sort::Start => 0,
            Sort::Recent => u64::MAX - self.end,
            Sort::Reliability => self.reliability.map_or(u64::MAX, |score| number(score.0)),
            Sort::Loops => u64::MAX - self.loops,
            Sort::Cost => self.cost.map_or(u64::MAX, |cost| u64::MAX - 1 - number(cost)),
        }
    }

    fn add(&mut self, trace: &Skimmed) {
        self.end = self.end.max(trace.end);
        self.loops += trace.loops;
        let costs = self.cost.into_iter().chain(trace.cost);
        self.cost = costs.reduce(i64::saturating_add);
    }

    fn wanted(self, wanted: &Wanted<'_>) -> Option<Self> {
        let fits = wanted.filter.loops.is_none_or(|loops| loops == (self.loops > 0));
        fits.then_some(self)
    }
}
