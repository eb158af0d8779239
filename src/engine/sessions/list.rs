//! Sessions in a list: one row each, a bounded number of traces at a time, so that a long list never holds up a stage.

use super::held::Held;
use super::key::SessionId;
use super::rules::Rules;
use super::session::Session;
use super::shelf::Shelf;
use super::view::{agent, dollars, is_flagged};
use crate::engine::explained::{SessionFilter, SessionRow};
use crate::engine::loops::{CRITICAL, WARNING};
use crate::engine::span::TraceId;
use crate::engine::view::TokensView;

/// A part of a list.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Rows of the sessions that fit, in the order of their tenants and ids.
    pub rows: Vec<SessionRow>,
    /// The session after which to go on; `None` at the end.
    pub next: Option<SessionId>,
}

/// A part of a search.
#[derive(Clone, Debug, Default)]
pub struct Sought {
    /// The session that holds the trace, if it was found.
    pub session: Option<String>,
    /// The id after which to go on; `None` at the end.
    pub next: Option<String>,
}

/// Sessions after `after` that fit, until `budget` traces were looked at.
pub(super) fn rows(
    sessions: &Shelf,
    after: Option<&SessionId>,
    filter: &SessionFilter,
    (budget, rules): (usize, &Rules),
) -> Part {
    let (mut part, mut looked) = (Part::default(), 0);
    for session in sessions.following(filter.agent.tenant.as_deref(), after, rules) {
        // What it takes to tell that a session does not fit is little, whatever its size.
        looked += 1;
        if let Some(first) = session.first()
            && fits(&session, first, filter)
        {
            looked += session.traces.len();
            let row = row(&session, first, rules);
            if filter.loops.is_none_or(|loops| loops == (row.loops > 0)) {
                part.rows.push(row);
            }
        }
        if looked >= budget {
            part.next = Some(SessionId::clone(&session.id));
            break;
        }
    }
    part
}

/// Looks for a trace in `budget` sessions after `after`.
pub(super) fn find(
    sessions: &Shelf,
    tenant: &str,
    after: Option<&str>,
    (trace, budget): (TraceId, usize),
    rules: &Rules,
) -> Sought {
    let mut sought = Sought::default();
    let after = after.map(|id| SessionId { tenant: tenant.to_owned(), id: id.to_owned() });
    for (looked, session) in sessions.following(Some(tenant), after.as_ref(), rules).enumerate() {
        if session.traces.contains_key(&trace) {
            return Sought { session: Some(session.id.id.clone()), next: None };
        }
        if looked + 1 >= budget {
            sought.next = Some(session.id.id.clone());
            break;
        }
    }
    sought
}

fn fits(session: &Session, first: &Held, filter: &SessionFilter) -> bool {
    filter.open.is_none_or(|open| open != session.closed) && filter.agent.admits(&agent(first))
}

fn row(session: &Session, first: &Held, rules: &Rules) -> SessionRow {
    let scores = session.scores(rules);
    let traces = || session.traces.values().map(AsRef::as_ref);
    let loops =
        || traces().flat_map(|held: &Held| held.loops().iter().chain(&held.scored.output_repeat));
    let worst = loops().map(|found| found.severity == CRITICAL).max();
    let sum = |of: fn(&Held) -> Option<u64>| traces().filter_map(of).reduce(u64::saturating_add);
    let input = sum(|held| held.update.tokens.and_then(|tokens| tokens.input));
    let output = sum(|held| held.update.tokens.and_then(|tokens| tokens.output));
    let cost = traces().filter_map(|held| held.update.cost_quanta).reduce(i64::saturating_add);
    let end = traces().map(|held| held.update.end_unix_nano).max().unwrap_or_default();
    SessionRow {
        session_id: session.id.id.clone(),
        agent: agent(first),
        start_unix_nano: first.update.start_unix_nano.to_string(),
        end_unix_nano: end.to_string(),
        open: !session.closed,
        total_traces: session.traces.len() as u64,
        traces_evaluated: session.reliability.result().map_or(0, |result| result.evaluated),
        flagged: traces().filter(|held| is_flagged(held)).count() as u64,
        reliability: scores.reliability.map(crate::engine::math::Quanta::to_f64),
        consistency: scores.consistency.map(crate::engine::math::Quanta::to_f64),
        loops: loops().count() as u64,
        worst_loop: worst.map(|critical| if critical { CRITICAL } else { WARNING }.to_owned()),
        tool_calls: traces().map(|held| held.update.tools.len() as u64).sum(),
        tokens: TokensView { input, output },
        cost_usd: dollars(cost),
    }
}
