//! The body of a call: which session runs away, and why. It never contains a text or an argument.

use std::iter;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::pace::Key;
use crate::engine::limits::{Cause, RunLimit};
use crate::engine::loops::Severity;
use crate::engine::span::Timestamp;
use crate::engine::view::{AgentName, LimitView, LoopView, SessionView, TraceView};

/// A session that runs away.
#[derive(Clone, Debug)]
pub struct Runaway {
    /// Its tenant; empty without tenants.
    pub tenant: String,
    /// The loop that it is in, or the limit that it exceeded.
    pub cause: Cause,
    /// When the loop or the limit was noticed.
    pub at: Timestamp,
    /// The session at that time.
    pub session: Box<SessionView>,
}

#[derive(Serialize)]
struct Body<'r> {
    event: &'static str,
    unix_nano: String,
    tenant: Option<&'r str>,
    session_id: &'r str,
    scope: &'r str,
    session_source: &'r str,
    agent: &'r AgentName,
    /// The link to the session on the page.
    url: String,
    kind: &'static str,
    severity: Severity,
    /// The limit that it, or one of its traces, exceeded; null for a loop.
    limit: Option<&'static str>,
    total_traces: u64,
    reliability: Option<f64>,
    consistency: Option<f64>,
    cost_usd: Option<f64>,
    /// Its loops, the newest last.
    loops: Vec<&'r LoopView>,
    /// The exceeded limits, those of the session last.
    limits: Vec<&'r LimitView>,
}

/// The most loops, and the most limits, in one body.
const MAX_LOOPS: usize = 20;

impl Runaway {
    /// The keys for its pace: the session, and the newest of its traces that run away.
    pub(super) fn keys(&self) -> Vec<Key> {
        let runs_away = |trace: &&TraceView| {
            !trace.limits.is_empty() || trace.loops.iter().any(|found| found.evidence.weighs())
        };
        let traces = self.session.traces.iter().rev().filter(runs_away).take(MAX_LOOPS);
        let traces = traces.map(|trace| Key::Trace(self.tenant.clone(), trace.trace_id.clone()));
        let session = Key::Session(self.tenant.clone(), self.session.name());
        iter::once(session).chain(traces).collect()
    }

    /// The body, as JSON; `base` is the address of the page.
    pub(super) fn body(&self, base: &str) -> String {
        let session = &self.session;
        let traces = &session.traces;
        let loops = traces.iter().flat_map(|trace| &trace.loops);
        let loops: Vec<&LoopView> = loops.filter(|found| found.evidence.weighs()).collect();
        let of_traces = traces.iter().flat_map(|trace| &trace.limits);
        let limits: Vec<&LimitView> = of_traces.chain(&session.limits).collect();
        let costs = traces.iter().filter_map(|trace| trace.cost_usd);
        let body = Body {
            event: "session_runaway",
            unix_nano: self.at.0.to_string(),
            tenant: Some(self.tenant.as_str()).filter(|tenant| !tenant.is_empty()),
            session_id: &session.session_id,
            scope: &session.scope,
            session_source: &session.session_source,
            agent: &session.agent,
            url: format!("{base}/#/session/{}{}", encoded(&session.session_id), self.query()),
            kind: self.cause.kind(),
            severity: self.cause.severity(),
            limit: self.cause.as_limit().map(RunLimit::name),
            total_traces: session.total_traces,
            reliability: session.reliability,
            consistency: session.consistency,
            cost_usd: costs.reduce(|sum, cost| sum + cost),
            loops: loops[loops.len().saturating_sub(MAX_LOOPS)..].to_vec(),
            limits: limits[limits.len().saturating_sub(MAX_LOOPS)..].to_vec(),
        };
        // Invariant: serialising cannot fail, as the keys of all maps are strings.
        serde_json::to_string(&body).unwrap_or_default()
    }

    /// The query of the link, which distinguishes the session from others with the same id.
    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("scope", &self.session.scope);
        if !self.tenant.is_empty() {
            query.append_pair("tenant", &self.tenant);
        }
        format!("?{}", query.finish())
    }
}

/// Percent-encodes a part of a path.
fn encoded(part: &str) -> String {
    utf8_percent_encode(part, NON_ALPHANUMERIC).to_string()
}
