//! What lists of sessions go by.

use super::list::Wanted;
use super::record::TraceRecord;
use super::rules::Rules;
use super::session::Session;
use super::view::is_flagged;
use crate::explained::{SessionFilter, Sort};
use crate::math::Quanta;

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
pub(super) struct Peeked {
    /// What is to be known of it, if it fits.
    pub(super) outline: Option<Outline>,
    /// How many of its traces that took.
    pub(super) looked: usize,
}

/// Looks at a session as far as it takes.
pub(super) fn peek(session: &Session, wanted: &Wanted<'_>, rules: &Rules) -> Peeked {
    let Some(first) = session.first().filter(|first| {
        wanted.filter.open.is_none_or(|open| open != session.closed)
            && wanted.filter.id.as_ref().is_none_or(|part| session.id.id.contains(part.as_str()))
            && wanted.filter.agent.admits_key(Some(first.named()))
    }) else {
        return Peeked::default();
    };
    let mut outline = Outline { start: first.start.0, ..Outline::default() };
    session.traces.iter().for_each(|record| outline.add(record));
    let by_score = wanted.sort == Sort::Reliability;
    outline.reliability = by_score.then(|| session.scores(rules).reliability).flatten();
    let fits = wanted.filter.loops.is_none_or(|loops| loops == (outline.loops > 0))
        && does(session, wanted.filter);
    Peeked { outline: fits.then_some(outline), looked: session.traces.len() }
}

/// Whether a session did what is asked for.
fn does(session: &Session, filter: &SessionFilter) -> bool {
    let any = |of: &dyn Fn(&TraceRecord) -> bool| session.traces.iter().any(of);
    let called = |tool: &String| {
        any(&|trace: &TraceRecord| {
            trace.course.calls.iter().any(|call| call.name.contains(tool.as_str()))
        })
    };
    let of = |user: &String| any(&|trace: &TraceRecord| trace.rare().user.as_ref() == Some(user));
    filter.failing.is_none_or(|failing| failing == any(&|trace: &TraceRecord| is_flagged(trace)))
        && filter.tool.as_ref().is_none_or(called)
        && filter.user.as_ref().is_none_or(of)
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

    fn add(&mut self, trace: &TraceRecord) {
        self.end = self.end.max(trace.sent_end.0);
        self.loops += trace.weighing_loops().count() as u64;
        let costs = self.cost.into_iter().chain(trace.cost);
        self.cost = costs.reduce(i64::saturating_add);
    }
}
