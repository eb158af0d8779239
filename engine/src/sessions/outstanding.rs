//! Outcomes that may still be reported for ended sessions and their traces: evaluations often run hours later.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Sessions;
use super::newest::{Newest, OfTenant};
use super::record::TraceRecord;
use super::session::{Session, ShardContext};
use crate::facts::{AgentKey, DoneTrace, Effort, SessionId};
use crate::runs::tells_outcome;
use crate::span::{Report, Timestamp, TraceId};
use crate::tenants::{TenantHash, TraceKey, tenant_hash};

/// What an outcome may be reported for.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) enum Ended {
    /// A session as a whole.
    Session(Arc<SessionId>),
    /// A trace.
    Trace(TraceKey),
}

/// What is needed to count an outcome once it is reported.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Outstanding {
    agent: AgentKey,
    trace: Option<TraceId>,
    start: Timestamp,
    // For a session, that of its last done trace, unless that trace had an outcome of its own.
    effort: Option<Effort>,
    session: Arc<SessionId>,
}

/// The newest of the sessions and traces that have ended without an outcome.
pub(super) type OutstandingOutcomes = Newest<Ended, Outstanding>;

impl OfTenant for Ended {
    fn tenant(&self) -> TenantHash {
        match self {
            Self::Session(session) => tenant_hash(Some(&session.tenant)),
            Self::Trace(trace) => trace.tenant,
        }
    }
}

impl Outstanding {
    /// What is needed to count an outcome of the session: the agent of its first trace. `None` while it is uncertain which agent
    /// that is.
    pub(super) fn of_session(session: &Session) -> Option<Self> {
        let first = session.first().filter(|first| !first.course.uncertain)?;
        let mut done = session.traces.iter().filter(|record| !record.panes.is_empty());
        // The trace's own outcome decides what is learned from it, and which prediction it replaces.
        let last = done.next_back().filter(|last| !last.has_reported_outcome());
        Some(Self {
            agent: first.agent().clone(),
            trace: None,
            start: first.start,
            effort: last.map(TraceRecord::effort),
            session: Arc::clone(&session.id),
        })
    }

    fn of_trace(record: &TraceRecord, session: &Arc<SessionId>) -> Self {
        Self {
            agent: record.agent().clone(),
            trace: Some(record.id),
            start: record.start,
            effort: Some(record.effort()),
            session: Arc::clone(session),
        }
    }

    /// Sends this outcome to the agent.
    pub(super) fn report(self, outcome: &Report, shared: &mut ShardContext) {
        let done = DoneTrace {
            trace_id: self.trace,
            start_unix_nano: self.start.0,
            at_unix_nano: shared.wall().0,
            touched_unix_nano: shared.now.0,
            outcome_failed: Some(!outcome.is_success()),
            effort: self.effort,
            session: self.session.scoped(),
            ..DoneTrace::default()
        };
        shared.shard_agents.summary(&self.agent).tell_done(done);
    }
}

impl Session {
    /// What an outcome may still be reported for after the session has ended: itself, and its counted traces, if they have no
    /// reported outcome yet.
    pub(super) fn outstanding_outcomes(&self) -> impl Iterator<Item = (Ended, Outstanding)> {
        let is_told = self.rare().has_reported_outcome;
        let session = if is_told { None } else { Outstanding::of_session(self) };
        let session = session.map(|ended| (Ended::Session(Arc::clone(&self.id)), ended));
        let counted = self.traces.iter().filter(|record| record.is_settled());
        let without_outcome = counted.filter(|record| !record.has_reported_outcome());
        let traces = without_outcome.map(|record| {
            (Ended::Trace(self.id.trace(record.id)), Outstanding::of_trace(record, &self.id))
        });
        session.into_iter().chain(traces)
    }
}

impl Sessions {
    /// Applies the outcome of a session that has ended. Returns whether it was outstanding, for exactly one session with this id
    /// and, if given, this scope.
    pub(super) fn tell_of_ended_session(
        &mut self,
        (tenant, id, scope): (&str, &str, Option<&str>),
        report: &Report,
    ) -> bool {
        let first = Arc::new(SessionId::from((tenant, id, scope.unwrap_or_default())));
        let first = Ended::Session(first);
        if scope.is_some() {
            return self.tell_outstanding(&first, report);
        }
        let of_id = |subject: &&Ended| match subject {
            Ended::Session(of) => *of.tenant == *tenant && *of.id == *id,
            Ended::Trace(_) => false,
        };
        let ended = self.outstanding.keys(first..).take_while(of_id);
        self.tell_only(&ended.take(2).cloned().collect::<Vec<_>>(), report)
    }

    /// Applies the outcome of a trace whose session has ended. Returns whether it was outstanding, for exactly one trace with this
    /// id and, if given, this tenant.
    pub(super) fn tell_of_ended_trace(
        &mut self,
        tenant: Option<&str>,
        trace: TraceId,
        report: &Report,
    ) -> bool {
        let of = |tenant| Ended::Trace(TraceKey { id: trace, tenant });
        let whose = tenant.map(|tenant| tenant_hash(Some(tenant)));
        let ended = self.outstanding.keys(of(whose.unwrap_or(0))..=of(whose.unwrap_or(u64::MAX)));
        self.tell_only(&ended.take(2).cloned().collect::<Vec<_>>(), report)
    }

    fn tell_only(&mut self, ended: &[Ended], report: &Report) -> bool {
        let [only] = ended else { return false };
        self.tell_outstanding(only, report)
    }

    /// Applies the outcome of what has ended; returns whether it was outstanding, for an agent that is still known.
    fn tell_outstanding(&mut self, subject: &Ended, report: &Report) -> bool {
        let ended = self.outstanding.get(subject).filter(|_| tells_outcome(report));
        if !ended.is_some_and(|ended| self.shared.shard_agents.has(&ended.agent)) {
            return false;
        }
        if let Some(ended) = self.outstanding.remove(subject) {
            ended.report(report, &mut self.shared);
        }
        true
    }

    /// Shares the agents in outstanding outcomes with the rest of the shard, after a restart.
    pub(super) fn share_outstanding(&mut self) {
        for ended in self.outstanding.values_mut() {
            ended.agent = self.shared.shard_agents.known(&ended.agent);
        }
    }
}
