//! The parameters of the query API.

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query as Params};
use axum::http::StatusCode;
use axum::http::request::Parts;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::history::Range;
use super::http::Exporter;
use super::query::Query;
use crate::access::Identity;
use crate::engine::explained::{AgentFilter, Sort};
use crate::fair;
use crate::refused::Refused;

/// The entries on one page by default, and at most.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

/// The greatest offset of a page: entries after it are better found by a filter.
const MAX_OFFSET: usize = 100_000;

/// The most bytes of the message about a bad request.
const MAX_MESSAGE_BYTES: usize = 512;

/// The parameters of a list of agents.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AgentParams {
    /// `service.name`; empty: where it was not sent.
    pub(super) service_name: Option<String>,
    /// The agent's name.
    pub(super) agent_name: Option<String>,
    /// The agent's version.
    pub(super) agent_version: Option<String>,
    /// The deployment environment.
    pub(super) environment: Option<String>,
    /// The tenant, for those who see more than one.
    pub(super) tenant: Option<String>,
    /// Things on the page: 100, at most 1000.
    pub(super) limit: Option<usize>,
    /// Things to leave out before it, at most 100000.
    pub(super) offset: Option<usize>,
    /// How far back sparklines go: an hour, unless a longer history is kept (`api.history_agents`).
    pub(super) range: Range,
}

/// The parameters of a list of sessions.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SessionParams {
    /// `service.name`; empty: where it was not sent.
    pub(super) service_name: Option<String>,
    /// The name of an agent with a trace in the session.
    pub(super) agent_name: Option<String>,
    /// The agent's version.
    pub(super) agent_version: Option<String>,
    /// The deployment environment.
    pub(super) environment: Option<String>,
    /// The tenant, for those who see more than one.
    pub(super) tenant: Option<String>,
    /// Only open sessions, or only closed ones.
    pub(super) open: Option<bool>,
    /// Only sessions with loops, or only those without.
    pub(super) loops: Option<bool>,
    /// Only sessions with a failing trace, or only those without.
    pub(super) failing: Option<bool>,
    /// Only sessions that still run over a limit (`[limits]`), or have a trace that does, or only the others.
    pub(super) over_limit: Option<bool>,
    /// Only sessions with an open trace that is silent for `session.stall_after`, or only those without.
    pub(super) silent: Option<bool>,
    /// Only sessions whose id contains this text.
    pub(super) id: Option<String>,
    /// Only sessions that called a tool whose name contains this text.
    pub(super) tool: Option<String>,
    /// Only sessions of this user.
    pub(super) user: Option<String>,
    /// The order.
    pub(super) sort: Sort,
    /// Whole sessions, of at most 10000 traces and 32 MiB together (beyond that the page ends before its limit), or one row for
    /// each.
    pub(super) detail: ListDetail,
    /// Things on the page: 100, at most 1000.
    pub(super) limit: Option<usize>,
    /// Things to leave out before it, at most 100000.
    pub(super) offset: Option<usize>,
}

/// How much of each session a list contains.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum ListDetail {
    /// All of it, with its traces.
    #[default]
    Full,
    /// A row.
    Row,
}

/// Exactly one agent; a name that is left out was not sent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OneAgent {
    /// `service.name`.
    pub(super) service_name: String,
    /// The agent's name.
    pub(super) agent_name: String,
    /// The agent's version.
    pub(super) agent_version: String,
    /// The deployment environment.
    pub(super) environment: String,
    /// The tenant, for those who see more than one.
    pub(super) tenant: String,
    /// How far back, as far as the history is kept; with a store a week.
    pub(super) range: Range,
}

/// The scope that selects one of several sessions with the same id.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SessionScope {
    /// Its scope; needed only if several sessions have the id, in which case the answer (409) names them.
    pub(super) scope: Option<String>,
    /// The tenant, for those who see more than one.
    pub(super) tenant: String,
}

/// One session, by an id that a path may not be able to contain: clients take `.` and `..` in a path for steps, escaped or not.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneSession {
    /// The session id.
    pub(super) id: String,
    /// Its scope; needed only if several sessions have the id, in which case the answer (409) names them.
    pub(super) scope: Option<String>,
    /// The tenant, for those who see more than one.
    #[serde(default)]
    pub(super) tenant: String,
}

/// Where to find a trace.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TraceParams {
    /// The session that holds it; without it all are searched.
    pub(super) session: Option<String>,
    /// The scope of that session.
    pub(super) scope: Option<String>,
    /// The tenant, for those who see more than one; without it, all tenants are searched, or a session without a tenant.
    pub(super) tenant: Option<String>,
}

/// No parameters: a client that sends a filter would take the answer for a filtered one.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParams {}

/// A request to the API: the exporter, the sender and the parameters.
pub(super) struct ApiRequest<Q, P> {
    pub(super) exporter: Exporter<Q>,
    pub(super) identity: Identity,
    /// The requester whose turn it is, for answers that are made in turns.
    pub(super) requester: fair::Requester,
    pub(super) params: P,
}

impl<Q: Query, P: DeserializeOwned> FromRequestParts<Exporter<Q>> for ApiRequest<Q, P> {
    type Rejection = Refused;

    async fn from_request_parts(
        parts: &mut Parts,
        exporter: &Exporter<Q>,
    ) -> Result<Self, Refused> {
        let Ok(identity) = Identity::from_request_parts(parts, exporter).await;
        let requester = parts.extensions.get().cloned().unwrap_or_default();
        let Params(params) =
            Params::from_request_parts(parts, exporter).await.map_err(|why| unread(&why))?;
        Ok(Self { exporter: exporter.clone(), identity, requester, params })
    }
}

impl AgentParams {
    /// The requested agents, of those that the identity may see.
    pub(super) fn filter(self, identity: &Identity) -> AgentFilter {
        let Self { service_name, agent_name, agent_version, environment, tenant, .. } = self;
        let tenant = identity.scope(tenant);
        AgentFilter { service_name, agent_name, agent_version, environment, tenant }
    }
}

/// The refusal of parameters that could not be read.
fn unread(rejection: &QueryRejection) -> Refused {
    let why = rejection.body_text();
    bad_request(why.strip_prefix("Failed to deserialize query string: ").unwrap_or(&why))
}

/// The limit and the offset of a page.
pub(super) fn bounds(
    limit: Option<usize>,
    offset: Option<usize>,
) -> Result<(usize, usize), Refused> {
    let offset = offset.unwrap_or(0);
    if offset > MAX_OFFSET {
        return Err(bad_request(
            "`offset` is at most 100000; filter or sort to reach later entries",
        ));
    }
    Ok((limit.unwrap_or(PAGE).min(MAX_PAGE), offset))
}

/// The refusal of a bad request, in the parser's words, truncated: they may repeat a long part of the request.
pub(super) fn bad_request(message: &str) -> Refused {
    let end =
        (0..=MAX_MESSAGE_BYTES.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
    let message = message.get(..end.unwrap_or_default()).unwrap_or_default();
    Refused::new(StatusCode::BAD_REQUEST, "bad_request", message)
}
