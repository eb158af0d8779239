//! The query API: JSON over HTTP. `openapi.rs` describes it, from these types.
//!
//! A page of a list has `limit` (100, at most 1000) and `offset` (at most 100000), and states the total. A request that
//! cannot be read is answered with 400 `bad_request`; one for a missing thing with 404 and a code for the kind of thing.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::about::AboutView;
use super::alerts::AlertsPage;
use super::history::{HistoryView, Lookback, Range};
use super::http::Exporter;
use super::live;
use super::openapi::openapi;
use super::params::{
    AgentParams, ApiRequest, ListDetail, NoParams, OneAgent, OneSession, SessionParams,
    SessionScope, TraceParams, bad_request, bounds,
};
use super::problems::ProblemsPage;
use super::query::{ListRequest, Listing, Query};
use crate::access::Identity;
use crate::blocking::{NotDone, blocking};
use crate::engine::agent_facts::{AgentFacts, look_at_explanation, look_at_session};
use crate::engine::explained::{AgentFilter, SessionFilter, SessionRow, TraceExplanation};
use crate::engine::facts::{AgentKey, AgentParts};
use crate::engine::loops::Severity;
use crate::engine::sessions::Found;
use crate::engine::span::TraceId;
use crate::engine::view::{AgentName, AgentView, SessionView, TokensView};
use crate::export::board::{Board, headline};
use crate::fair::{self, Grant};
use crate::refused::Refused;

/// The most traces, and bytes, on a page of whole sessions: beyond them the page ends early, after one session at least.
const MAX_TRACES: usize = 10_000;
const MAX_SESSIONS_BYTES: usize = 32 << 20;

/// The most scopes that are named when several sessions have an id.
const MAX_SCOPES: usize = 20;

/// The points of a sparkline.
const SPARK: usize = 60;

/// Agents, on pages.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct AgentsPage {
    /// The page, by name.
    pub(super) agents: Vec<AgentView>,
    /// The number of agents on all pages.
    pub(super) total: u64,
}

/// The fleet, on pages.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct FleetPage {
    /// The page, by name.
    pub(super) agents: Vec<FleetRow>,
    /// The number of agents on all pages.
    pub(super) total: u64,
    /// Models of agents on all pages without a known price, and how many of their calls report tokens and no cost.
    pub(super) unpriced_models: BTreeMap<String, u64>,
    /// The totals of all agents, on all pages.
    pub(super) totals: FleetTotals,
}

/// The totals of all agents of a list.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub(super) struct FleetTotals {
    /// Agents with a drop that pages.
    pub(super) dropping: u64,
    /// Open sessions.
    pub(super) sessions_active: u64,
    /// Sessions with a running loop that is known by more than names.
    pub(super) sessions_looping: u64,
    /// Sessions that still run over a limit, or have a trace that does: of each agent the greatest number of any limit.
    pub(super) sessions_over_limit: u64,
    /// Open traces that are silent for long.
    pub(super) traces_stalled: u64,
    /// Done traces.
    pub(super) traces: u64,
    /// Dollars spent; null without any known.
    pub(super) cost_usd: Option<f64>,
}

/// One agent in a list.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(super) struct FleetRow {
    /// The agent.
    #[serde(flatten)]
    pub(super) agent: AgentName,
    /// The window of the scores: that of the last traces if there is one.
    pub(super) window: Option<String>,
    /// Reliability in the window, in `[0,1]`; null if there is none.
    pub(super) reliability: Option<f64>,
    /// Consistency in the window, in `[0,1]`; null if there is none.
    pub(super) consistency: Option<f64>,
    /// Share of failing traces in the window; null if it is empty.
    pub(super) failure_ratio: Option<f64>,
    /// The share of failing traces that is usual; null before the first done trace.
    pub(super) usual: Option<f64>,
    /// The source of `usual`: `past`, `version_before` or `objective`; null if `usual` is null.
    pub(super) usual_by: Option<&'static str>,
    /// Done traces in the window.
    pub(super) window_traces: u64,
    /// Done traces.
    pub(super) traces: u64,
    /// Open sessions.
    pub(super) sessions_active: u64,
    /// Sessions with a running loop that is known by more than names.
    pub(super) sessions_looping: u64,
    /// Sessions that still run over a limit, or have a trace that does: the greatest number of any limit.
    pub(super) sessions_over_limit: u64,
    /// Open traces that are silent for long.
    pub(super) traces_stalled: u64,
    /// When data of the agent last arrived, including open traces; null before the first trace that counts.
    pub(super) last_trace_unix_nano: Option<String>,
    /// Loops found.
    pub(super) loops: u64,
    /// The severity of its worst drop; null without a drop.
    pub(super) drop: Option<Severity>,
    /// Tokens spent.
    pub(super) tokens: TokensView,
    /// Dollars spent; null without any known.
    pub(super) cost_usd: Option<f64>,
    /// The share of failing traces over the recent points of the history, oldest first.
    pub(super) spark: Vec<Option<f64>>,
}

/// Sessions, on pages: whole.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct SessionsPage {
    /// The page.
    #[schemars(with = "Vec<SessionView>")]
    sessions: Vec<Box<RawValue>>,
    /// The number of matching sessions on all pages.
    pub(super) total: u64,
    /// Whether sessions are missing: those that other instances hold, or that were evicted to disk.
    pub(super) partial: bool,
}

/// Sessions, on pages: with `detail=row`.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct SessionRowsPage {
    /// The page.
    pub(super) sessions: Vec<SessionRow>,
    /// The number of matching sessions on all pages.
    pub(super) total: u64,
    /// Whether sessions are missing: those that other instances hold, or that were evicted to disk.
    pub(super) partial: bool,
}

/// The routes.
pub(super) fn router<Q: Query>() -> Router<Exporter<Q>> {
    Router::new()
        .route("/api/v1/openapi.json", get(|| async { Json(openapi()) }))
        .route("/api/v1/agents", get(agents::<Q>))
        .route("/api/v1/agents/history", get(history::<Q>))
        .route("/api/v1/fleet", get(fleet::<Q>))
        .route("/api/v1/problems", get(problems::<Q>))
        .route("/api/v1/alerts", get(alerts::<Q>))
        .route("/api/v1/about", get(about::<Q>))
        .route("/api/v1/events", get(live::events::<Q>))
        .route("/api/v1/sessions", get(sessions::<Q>))
        .route("/api/v1/sessions/{id}", get(session::<Q>))
        .route("/api/v1/session", get(session_of::<Q>))
        .route("/api/v1/traces/{id}", get(trace::<Q>))
}

type Answer<T> = Result<Json<T>, Refused>;

/// The name in a path.
type Named = Result<Path<String>, PathRejection>;

async fn agents<Q: Query>(request: ApiRequest<Q, AgentParams>) -> Answer<AgentsPage> {
    request.exporter.agents(&request.identity, request.params).map(Json)
}

async fn fleet<Q: Query>(request: ApiRequest<Q, AgentParams>) -> Answer<FleetPage> {
    request.exporter.fleet(&request.identity, &request.requester, request.params).await.map(Json)
}

async fn problems<Q: Query>(request: ApiRequest<Q, AgentParams>) -> Answer<ProblemsPage> {
    request.exporter.problems(&request.identity, request.params).await.map(Json)
}

async fn alerts<Q: Query>(request: ApiRequest<Q, NoParams>) -> Answer<AlertsPage> {
    request.exporter.alerts(&request.identity).await.map(Json)
}

async fn about<Q: Query>(request: ApiRequest<Q, NoParams>) -> Json<AboutView> {
    Json(request.exporter.described())
}

async fn history<Q: Query>(request: ApiRequest<Q, OneAgent>) -> Answer<HistoryView> {
    request.exporter.history(&request.identity, &request.requester, request.params).await.map(Json)
}

async fn sessions<Q: Query>(request: ApiRequest<Q, SessionParams>) -> Result<Response, Refused> {
    let ApiRequest { exporter, identity, params, .. } = request;
    let detail = params.detail;
    let page = exporter.session_rows(&identity, params).await?;
    if detail == ListDetail::Row {
        return Ok(Json(page).into_response());
    }
    let (mut sessions, mut traces, mut bytes) = (Vec::new(), 0, 0);
    for row in page.sessions {
        let tenant = row.agent.tenant.as_deref().unwrap_or_default();
        // A session that was evicted meanwhile is left out.
        let session = exporter.query.session(tenant, &row.session_id, Some(&row.scope)).await;
        let Found::One(mut session) = session else { continue };
        exporter.look_at(&mut session);
        traces += session.traces.len();
        // Serialising cannot fail, as the keys of all maps are strings.
        let Ok(session) = to_raw_value(&session) else { continue };
        bytes += session.get().len();
        if (traces > MAX_TRACES || bytes > MAX_SESSIONS_BYTES) && !sessions.is_empty() {
            break;
        }
        sessions.push(session);
    }
    Ok(Json(SessionsPage { sessions, total: page.total, partial: page.partial }).into_response())
}

async fn session<Q: Query>(id: Named, request: ApiRequest<Q, SessionScope>) -> Answer<SessionView> {
    let Path(id) = id.map_err(|rejection| bad_request(&rejection.body_text()))?;
    request.exporter.session(&request.identity, &id, request.params).await.map(Json)
}

async fn session_of<Q: Query>(request: ApiRequest<Q, OneSession>) -> Answer<SessionView> {
    let OneSession { id, scope, tenant } = request.params;
    request.exporter.session(&request.identity, &id, SessionScope { scope, tenant }).await.map(Json)
}

async fn trace<Q: Query>(
    id: Named,
    request: ApiRequest<Q, TraceParams>,
) -> Answer<TraceExplanation> {
    let Path(id) = id.map_err(|rejection| bad_request(&rejection.body_text()))?;
    request.exporter.trace(&request.identity, &id, request.params).await.map(Json)
}

/// The answers of the JSON API and of gRPC, restricted to what the identity may see.
impl<Q: Query> Exporter<Q> {
    pub(super) fn agents(
        &self,
        identity: &Identity,
        params: AgentParams,
    ) -> Result<AgentsPage, Refused> {
        let (updates, total, _) = paged(&self.board, identity, params, |_| {})?;
        let agents = updates.iter().map(|update| update.shown()).collect();
        Ok(AgentsPage { agents, total })
    }

    pub(super) async fn fleet(
        &self,
        identity: &Identity,
        requester: &fair::Requester,
        params: AgentParams,
    ) -> Result<FleetPage, Refused> {
        let mut unpriced_models = BTreeMap::new();
        let range = params.range;
        let (updates, total, totals) = paged(&self.board, identity, params, |update| {
            for (model, calls) in &update.view.unpriced_models {
                *unpriced_models.entry(model.clone()).or_default() += calls;
            }
        })?;
        let lookback = Lookback { range, now: (self.now)() };
        let agents = match range {
            Range::Hour => rows(&self.board, &updates, lookback),
            Range::SixHours | Range::Day | Range::Week => {
                let (board, turn) = (Arc::clone(&self.board), self.pasts.turn(requester).await?);
                reading(turn, move || rows(&board, &updates, lookback)).await?
            }
        };
        Ok(FleetPage { agents, total, totals, unpriced_models })
    }

    /// The facts about the daemon that the page needs.
    pub(super) fn described(&self) -> AboutView {
        let history_seconds = self.board.remembers().as_secs();
        AboutView { history_seconds, ..self.about.clone() }
    }

    pub(super) async fn history(
        &self,
        identity: &Identity,
        requester: &fair::Requester,
        agent: OneAgent,
    ) -> Result<HistoryView, Refused> {
        let OneAgent { service_name, agent_name, agent_version, environment, tenant, range } =
            agent;
        let tenant = identity.instead_of(&tenant).into();
        let [service_name, agent_name, agent_version, environment] =
            [service_name, agent_name, agent_version, environment]
                .map(|name| Arc::from(self.kept(&name)));
        let key = AgentKey::from(AgentParts {
            tenant,
            service_name,
            agent_name,
            agent_version,
            environment,
        });
        let board = Arc::clone(&self.board);
        let lookback = Lookback { range, now: (self.now)() };
        let turn = self.pasts.turn(requester).await?;
        let history =
            reading(turn, move || board.history(&key, AgentName::from(&key), lookback)).await?;
        history.ok_or_else(|| missing("agent_not_found", "no agent of exactly these names is held"))
    }

    pub(super) async fn session_rows(
        &self,
        identity: &Identity,
        params: SessionParams,
    ) -> Result<SessionRowsPage, Refused> {
        let (limit, offset) = bounds(params.limit, params.offset)?;
        let SessionParams { service_name, agent_name, agent_version, environment, .. } = params;
        let tenant = identity.scope(params.tenant);
        let agent = AgentFilter { service_name, agent_name, agent_version, environment, tenant };
        let SessionParams { open, loops, failing, over_limit, silent, .. } = params;
        let kept = |name: Option<String>| name.map(|name| self.kept(&name).to_owned());
        let [tool, user] = [params.tool, params.user].map(kept);
        let id = params.id.map(|id| self.kept_id(&id).into_owned());
        let filter =
            SessionFilter { agent, open, loops, failing, over_limit, silent, id, tool, user };
        let request = ListRequest { filter, sort: params.sort, limit, offset };
        let Listing { rows: sessions, total, partial } = self.query.list(request).await;
        Ok(SessionRowsPage { sessions, total, partial })
    }

    /// Adds to a session and its traces what was learned about their agents.
    fn look_at(&self, session: &mut SessionView) {
        look_at_session(session, |agent| self.board.agent(agent));
    }

    pub(super) async fn session(
        &self,
        identity: &Identity,
        id: &str,
        SessionScope { scope, tenant }: SessionScope,
    ) -> Result<SessionView, Refused> {
        let scope = scope.as_deref().map(|scope| self.kept(scope));
        match self.query.session(identity.instead_of(&tenant), &self.kept_id(id), scope).await {
            Found::One(mut session) => {
                self.look_at(&mut session);
                Ok(*session)
            }
            Found::Several(scopes) => Err(ambiguous(scopes)),
            Found::Nothing => {
                let message = "no session with this id is known; it may have been evicted";
                Err(missing("session_not_found", message))
            }
        }
    }

    pub(super) async fn trace(
        &self,
        identity: &Identity,
        id: &str,
        params: TraceParams,
    ) -> Result<TraceExplanation, Refused> {
        let Some(trace) = trace_id(id) else {
            return Err(bad_request("a trace id is 32 hex digits, not all zero"));
        };
        let tenant = identity.scope(params.tenant);
        let scope = params.scope.as_deref().map(|scope| self.kept(scope));
        let session = params.session.as_deref().map(|id| self.kept_id(id));
        let session = session.as_deref().map(|id| (id, scope));
        let Some(mut explanation) = self.query.explain(tenant.as_deref(), session, trace).await
        else {
            let message = "no trace with this id is known; its session may have been evicted";
            return Err(missing("trace_not_found", message));
        };
        look_at_explanation(&mut explanation, |agent| self.board.agent(agent));
        Ok(explanation)
    }
}

/// A page of the agents that match, their number, and their totals. Calls `look` for each that matches.
fn paged(
    board: &Board,
    identity: &Identity,
    params: AgentParams,
    look: impl FnMut(&Arc<AgentFacts>),
) -> Result<(Vec<Arc<AgentFacts>>, u64, FleetTotals), Refused> {
    let (limit, offset) = bounds(params.limit, params.offset)?;
    let filter = params.filter(identity);
    let updates = board.wanted(|update| filter.admits(Some(&update.agent)));
    let total = updates.len() as u64;
    updates.iter().for_each(look);
    let totals = totals(&updates);
    Ok((updates.into_iter().skip(offset).take(limit).collect(), total, totals))
}

fn totals(updates: &[Arc<AgentFacts>]) -> FleetTotals {
    let sum = |of: fn(&AgentFacts) -> u64| updates.iter().map(|update| of(update)).sum();
    let costs = updates.iter().filter_map(|update| update.view.cost_usd);
    FleetTotals {
        dropping: sum(|update| u64::from(worst_drop(update) == Some(Severity::Critical))),
        sessions_active: sum(|update| update.sessions_active),
        sessions_looping: sum(|update| update.looping),
        sessions_over_limit: sum(over_limit),
        traces_stalled: sum(|update| update.view.traces_stalled),
        traces: sum(|update| update.view.traces),
        cost_usd: costs.reduce(|sum, cost| sum + cost),
    }
}

/// The number of sessions over a limit: the greatest of any limit, as a session may be over several.
pub(super) fn over_limit(update: &AgentFacts) -> u64 {
    update.sessions_over_limit.values().copied().max().unwrap_or(0)
}

/// The worst severity of the drops of an agent; none if it has no drop.
pub(super) fn worst_drop(update: &AgentFacts) -> Option<Severity> {
    let drops = &update.view.drops;
    [Severity::Critical, Severity::Warning]
        .into_iter()
        .find(|severity| drops.iter().any(|drop| drop.severity == severity.name()))
}

fn rows(board: &Board, updates: &[Arc<AgentFacts>], lookback: Lookback) -> Vec<FleetRow> {
    updates.iter().map(|update| fleet_row(board, update, lookback)).collect()
}

/// Runs a function that reads the disk on a thread where it may block. The turn ends when the function has run, even if the caller
/// has stopped waiting: the function cannot be cancelled.
async fn reading<T: Send + 'static>(
    turn: Grant,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    let read = blocking(move || {
        let _turn = turn;
        read()
    })
    .await;
    read.map_err(|why| {
        let status = match why {
            NotDone::NoThread => StatusCode::SERVICE_UNAVAILABLE,
            NotDone::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused::new(status, "history", &format!("the past could not be read: {why}"))
    })
}

/// The row of an agent in a list.
pub(super) fn fleet_row(board: &Board, update: &AgentFacts, lookback: Lookback) -> FleetRow {
    let (window, scores) = headline(update).unzip();
    let view = &update.view;
    let verdict = view.drops.iter().find(|drop| drop.stream == "verdict");
    FleetRow {
        agent: AgentName::from(&update.agent),
        window: window.map(ToString::to_string),
        reliability: scores.and_then(|scores| scores.reliability),
        consistency: scores.and_then(|scores| scores.consistency),
        failure_ratio: scores.and_then(|scores| scores.failure_ratio),
        usual: verdict.map(|drop| drop.usual),
        usual_by: verdict.map(|drop| drop.against),
        window_traces: scores.map_or(0, |scores| scores.traces),
        traces: view.traces,
        sessions_active: update.sessions_active,
        sessions_looping: update.looping,
        sessions_over_limit: over_limit(update),
        traces_stalled: update.view.traces_stalled,
        last_trace_unix_nano: view.last_trace_unix_nano.clone(),
        loops: view.loops.values().sum(),
        drop: worst_drop(update),
        tokens: view.tokens,
        cost_usd: view.cost_usd,
        spark: window
            .map_or_else(Vec::new, |name| board.failing(&update.agent, name, SPARK, lookback)),
    }
}

/// The refusal of a request for an id that several sessions have; it names the first of their scopes.
fn ambiguous(mut scopes: Vec<String>) -> Refused {
    let count = scopes.len();
    scopes.truncate(MAX_SCOPES);
    let named: Vec<String> = scopes.iter().map(|scope| format!("`{scope}`")).collect();
    let named = named.join(", ");
    let message = format!("{count} sessions have this id; say which with `scope`: {named}");
    let refused = Refused::new(StatusCode::CONFLICT, "session_ambiguous", &message);
    Refused { scopes, ..refused }
}

fn missing(code: &'static str, message: &str) -> Refused {
    Refused::new(StatusCode::NOT_FOUND, code, message)
}

fn trace_id(text: &str) -> Option<TraceId> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = TraceId(u128::from_str_radix(text, 16).ok()?.to_be_bytes());
    (is_hex && !id.is_zero()).then_some(id)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;
    use crate::fair::{Entered, Fair};

    #[tokio::test]
    async fn a_turn_lasts_until_the_past_is_read_even_if_nobody_waits_for_it() {
        let turns = Fair::new(1, 1);
        let requester = fair::Requester::default();
        let Entered::AtOnce(turn) = turns.enter(&requester, 1, Duration::ZERO).await else {
            panic!("there is room")
        };
        let (go, goes) = channel::<()>();
        {
            let mut asked = pin!(reading(turn, move || goes.recv()));
            let polled = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
            assert!(polled.is_pending());
        }
        assert_eq!(turns.free(), 0);
        go.send(()).unwrap();
        let next = turns.enter(&requester, 1, Duration::from_secs(30)).await;
        assert!(matches!(next, Entered::AtOnce(_) | Entered::Waited(_)));
    }
}
