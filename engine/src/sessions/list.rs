//! Lists of sessions. Cards show which sessions come first, a bounded number of cards at a time, so that a long list never blocks a
//! stage; rows are made for those sessions alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::card::Card;
use super::record::TraceRecord;
use super::rules::Rules;
use super::session::Session;
use super::table::SessionTable;
use super::view::{agent, dollars, is_flagged};
use crate::explained::{SessionFilter, SessionRow, Sort};
use crate::facts::SessionId;
use crate::loops::worst;
use crate::tenants::tenant_hash;
use crate::view::{SessionView, TokensView};

/// The request for a list.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The filter.
    pub filter: &'a SessionFilter,
    /// The order.
    pub sort: Sort,
    /// The length.
    pub most: usize,
}

/// The cost of reading a session, or one of its traces, in cards.
pub const LOOK: usize = 20;

/// The position of a session in an order.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct ListPosition {
    rank: (u64, u64),
    id: Arc<str>,
    tenant: Arc<str>,
    scope: Arc<str>,
}

/// A part of a list.
#[derive(Clone, Debug, Default)]
pub struct ListPart {
    /// The first of the sessions that pass the filter, as many as are requested.
    pub places: BTreeSet<ListPosition>,
    /// How many pass the filter.
    pub total: u64,
    /// The number after which to continue; `None` at the end.
    pub next: Option<u32>,
    /// The work done, in cards.
    pub work: usize,
}

/// The result of a search by id.
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

/// The first of the matching sessions after `after`, until `budget` is used up.
pub(super) fn places(
    sessions: &SessionTable,
    after: Option<u32>,
    wanted: &Wanted<'_>,
    budget: usize,
) -> ListPart {
    let Wanted { filter, sort, most } = *wanted;
    let tenant = filter.agent.tenant.as_deref().map(|tenant| tenant_hash(Some(tenant)));
    let (mut part, mut fit) = (ListPart::default(), Vec::new());
    for (number, card) in sessions.cards(after.map_or(0, |after| after.saturating_add(1))) {
        part.work += 1;
        if let Some(card) = card.filter(|card| card.may_fit(filter, tenant))
            && looks_like(sessions.at(number), card, filter, &mut part.work)
        {
            fit.push((card.rank(sort), number));
        }
        if part.work >= budget {
            part.next = Some(number);
            break;
        }
    }
    part.total = fit.len() as u64;
    if fit.len() > most {
        // Ties that names decide are rare.
        let name = |number| {
            let (tenant, id, scope) = sessions.name(number);
            (id, tenant, scope)
        };
        fit.select_nth_unstable_by(most, |(rank, a), (other, b)| {
            rank.cmp(other).then_with(|| name(*a).cmp(&name(*b)))
        });
        fit.truncate(most);
    }
    part.places =
        fit.into_iter().map(|(rank, number)| ListPosition::new(rank, number, sessions)).collect();
    part
}

/// Rows of sessions, until `budget` traces were read.
pub(super) fn rows(
    sessions: &SessionTable,
    ids: &[SessionId],
    budget: usize,
    rules: &Rules,
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

/// Whether a session passes the parts of the filter that its card cannot decide; adds the work that this took.
fn looks_like(
    session: Option<&Session>,
    card: &Card,
    filter: &SessionFilter,
    work: &mut usize,
) -> bool {
    let SessionFilter { id, tool, user, agent, over_limit, silent, .. } = filter;
    let asks_agent = card.asks_agents(agent);
    let asks_names = id.is_some() || tool.is_some() || user.is_some();
    if !asks_agent && !asks_names && over_limit.is_none() && silent.is_none() {
        return true;
    }
    *work += LOOK;
    let fits = |session: &&Session| {
        id.as_ref().is_none_or(|part| session.id.id.contains(part.as_str()))
            && over_limit.is_none_or(|over| over == session.goes_on_over_a_limit())
            && silent.is_none_or(|silent| silent == session.has_silent_traces())
    };
    let Some(session) = session.filter(fits) else { return false };
    if asks_agent {
        *work += LOOK * session.traces.len();
        if !session.traces.iter().any(|trace| agent.admits(Some(trace.named()))) {
            return false;
        }
    }
    if tool.is_none() && user.is_none() {
        return true;
    }
    *work += LOOK * session.traces.len();
    let any = |of: &dyn Fn(&TraceRecord) -> bool| session.traces.iter().any(of);
    let called = |tool: &String| {
        any(&|trace| trace.course.calls.iter().any(|call| call.name.contains(tool.as_str())))
    };
    let of = |user: &String| any(&|trace| trace.said().user.as_deref() == Some(user.as_str()));
    tool.as_ref().is_none_or(called) && user.as_ref().is_none_or(of)
}

impl ListPosition {
    fn new(rank: (u64, u64), number: u32, sessions: &SessionTable) -> Self {
        let SessionId { tenant, id, scope } = SessionId::from(sessions.name(number));
        Self { rank, id, tenant, scope }
    }

    /// The session.
    pub fn session(self) -> SessionId {
        let Self { tenant, id, scope, .. } = self;
        SessionId { tenant, id, scope }
    }
}

fn row(session: &Session, first: &TraceRecord, rules: &Rules) -> SessionRow {
    let scores = session.scores(rules);
    let traces = || session.traces.iter();
    let loops = || traces().flat_map(TraceRecord::weighing_loops);
    let sum =
        |of: fn(&TraceRecord) -> Option<u64>| traces().filter_map(of).reduce(u64::saturating_add);
    let (input, output) = (sum(|trace| trace.tokens().input), sum(|trace| trace.tokens().output));
    let cost = traces().filter_map(TraceRecord::cost).reduce(i64::saturating_add);
    let end = traces().map(|trace| trace.sent_end.0).max().unwrap_or_default();
    SessionRow {
        session_id: session.id.id.to_string(),
        scope: session.id.scope.to_string(),
        agent: agent(first),
        start_unix_nano: first.start.0.to_string(),
        end_unix_nano: end.to_string(),
        open: !session.closed,
        total_traces: session.traces.len() as u64,
        traces_evaluated: session.reliability.result().map_or(0, |result| result.evaluated),
        flagged: traces().filter(|trace| is_flagged(trace)).count() as u64,
        reliability: scores.reliability().map(crate::math::Quanta::to_f64),
        consistency: scores.consistency().map(crate::math::Quanta::to_f64),
        loops: loops().count() as u64,
        worst_loop: worst(loops()),
        tool_calls: traces().map(|trace| trace.course.calls.len() as u64).sum(),
        tokens: TokensView { input, output },
        cost_usd: dollars(cost),
    }
}
