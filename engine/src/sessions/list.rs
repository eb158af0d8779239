//! Sessions in a list: which come first is found out by glances, a bounded number of traces at a time, so that a long list never
//! holds up a stage; rows are made of those alone.

use std::collections::BTreeSet;

use super::key::SessionId;
use super::outline::peek;
use super::record::TraceRecord;
use super::rules::Rules;
use super::session::Session;
use super::table::{SessionTable, named};
use super::view::{agent, dollars, is_flagged};
use crate::explained::{SessionFilter, SessionRow, Sort};
use crate::loops::worst;
use crate::span::TraceId;
use crate::view::{SessionView, TokensView};

/// What a list is to have.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Which sessions.
    pub filter: &'a SessionFilter,
    /// In which order.
    pub sort: Sort,
    /// How many of them.
    pub most: usize,
}

/// Where a session stands in an order; the first comes first.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    rank: u64,
    start: u64,
    id: String,
    tenant: String,
    scope: String,
}

/// A part of a list.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Of the sessions that fit so many as are wanted, the first of them.
    pub places: BTreeSet<Place>,
    /// How many fit.
    pub total: u64,
    /// The session after which to go on; `None` at the end.
    pub next: Option<SessionId>,
}

/// A part of a search.
#[derive(Clone, Debug, Default)]
pub struct Sought {
    /// The session that holds the trace, if it was found.
    pub session: Option<SessionId>,
    /// The session after which to go on; `None` at the end.
    pub next: Option<SessionId>,
}

/// What there is of an id, if its scope is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Found {
    /// Nothing.
    #[default]
    Nothing,
    /// One session.
    One(Box<SessionView>),
    /// Several; these are their scopes.
    Several(Vec<String>),
}

/// The first of the sessions after `after` that fit, until `budget` traces were looked at.
pub(super) fn places(
    sessions: &SessionTable,
    after: Option<&SessionId>,
    wanted: &Wanted<'_>,
    (budget, rules): (usize, &Rules),
) -> Part {
    let (mut part, mut looked) = (Part::default(), 0);
    for session in sessions.following(wanted.filter.agent.tenant.as_deref(), after) {
        let glance = peek(session, wanted, rules);
        // What it takes to tell that a session does not fit is little, whatever its size.
        looked += 1 + glance.looked;
        if let Some(outline) = glance.outline {
            part.total += 1;
            let (rank, start) = (outline.rank(wanted.sort), outline.start);
            part.add((rank, start), named(&session.id), wanted.most);
        }
        if looked >= budget {
            part.next = Some(SessionId::clone(&session.id));
            break;
        }
    }
    part
}

/// Rows of sessions, until `budget` traces were looked at.
pub(super) fn rows(
    sessions: &SessionTable,
    ids: &[SessionId],
    (budget, rules): (usize, &Rules),
) -> Vec<Option<SessionRow>> {
    let (mut rows, mut looked) = (Vec::new(), 0);
    for id in ids {
        let session = sessions.get(id);
        looked += session.map_or(1, |session| session.traces.len());
        rows.push(session.and_then(|session| Some(row(session, session.first()?, rules))));
        if looked >= budget {
            break;
        }
    }
    rows
}

/// Looks for a trace in `budget` sessions after `after`.
pub(super) fn find(
    sessions: &SessionTable,
    tenant: &str,
    after: Option<&SessionId>,
    (trace, budget): (TraceId, usize),
) -> Sought {
    let mut sought = Sought::default();
    for (looked, session) in sessions.following(Some(tenant), after).enumerate() {
        if session.traces.number(trace).is_some() {
            return Sought { session: Some(SessionId::clone(&session.id)), next: None };
        }
        if looked + 1 >= budget {
            sought.next = Some(SessionId::clone(&session.id));
            break;
        }
    }
    sought
}

impl Place {
    /// The session.
    pub fn session(self) -> SessionId {
        let Self { tenant, id, scope, .. } = self;
        SessionId { tenant, id, scope }
    }
}

impl Part {
    fn add(&mut self, (rank, start): (u64, u64), name: (&str, &str, &str), most: usize) {
        let place = || {
            let SessionId { tenant, id, scope } = SessionId::from(name);
            Place { rank, start, id, tenant, scope }
        };
        let full = self.places.len() >= most;
        // Most are far behind, and need no copy of their id.
        if full && self.places.last().is_none_or(|last| (last.rank, last.start) < (rank, start)) {
            return;
        }
        self.places.insert(place());
        if self.places.len() > most {
            self.places.pop_last();
        }
    }
}

fn row(session: &Session, first: &TraceRecord, rules: &Rules) -> SessionRow {
    let scores = session.scores(rules);
    let traces = || session.traces.iter();
    let loops = || traces().flat_map(TraceRecord::weighing_loops);
    let sum =
        |of: fn(&TraceRecord) -> Option<u64>| traces().filter_map(of).reduce(u64::saturating_add);
    let (input, output) = (sum(|trace| trace.tokens.input), sum(|trace| trace.tokens.output));
    let cost = traces().filter_map(|trace| trace.cost).reduce(i64::saturating_add);
    let end = traces().map(|trace| trace.sent_end.0).max().unwrap_or_default();
    SessionRow {
        session_id: session.id.id.clone(),
        scope: session.id.scope.clone(),
        agent: agent(first),
        start_unix_nano: first.start.0.to_string(),
        end_unix_nano: end.to_string(),
        open: !session.closed,
        total_traces: session.traces.len() as u64,
        traces_evaluated: session.reliability.result().map_or(0, |result| result.evaluated),
        flagged: traces().filter(|trace| is_flagged(trace)).count() as u64,
        reliability: scores.reliability.map(crate::math::Quanta::to_f64),
        consistency: scores.consistency.map(crate::math::Quanta::to_f64),
        loops: loops().count() as u64,
        worst_loop: worst(loops()),
        tool_calls: traces().map(|trace| trace.course.calls.len() as u64).sum(),
        tokens: TokensView { input, output },
        cost_usd: dollars(cost),
    }
}
