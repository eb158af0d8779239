//! Delivers reported scores to their sessions, and outcomes of runs to the sessions that have traces of the run.
//!
//! A report that names a scope goes to that session. A report that names an id alone goes to the session with that id if there is
//! exactly one; otherwise it waits, as a trace whose root has not arrived may still move to another session.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Sessions;
use super::session::Session;
use crate::facts::SessionId;
use crate::span::{Report, Target, Timestamp, TraceId};
use crate::tenants::{TenantHash, tenant_hash};
use crate::waiting::Subject;

/// The tenant and the id of sessions with any scope.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct AnyScope {
    tenant: Arc<str>,
    id: Arc<str>,
}

impl From<&SessionId> for AnyScope {
    fn from(SessionId { tenant, id, .. }: &SessionId) -> Self {
        Self { tenant: Arc::clone(tenant), id: Arc::clone(id) }
    }
}

/// The sessions that a report is about.
impl Subject for AnyScope {
    fn of(report: &Report) -> Option<Self> {
        let Target::Session { tenant, id, .. } = &report.target else { return None };
        Some(Self { tenant: tenant.clone().unwrap_or_default(), id: Arc::clone(id) })
    }

    fn tenant(report: &Report) -> TenantHash {
        tenant_hash(target(report).map(|(tenant, ..)| tenant))
    }
}

impl Sessions {
    /// Accepts a reported score of a session as a whole; it waits until its session is known.
    pub fn report(&mut self, report: Report, now: Timestamp) {
        self.advance(now);
        if let Target::Run(run) = &report.target {
            return self.report_run(run, &report);
        }
        if let Target::Trace(trace) = report.target {
            return self.report_trace(trace, &report);
        }
        let Some(session) = target(&report) else {
            self.shared.counts.add("reports", "misdirected");
            return;
        };
        match &self.known(session)[..] {
            [id] if self.sessions.contains(id) => {
                self.change_known(id, |session, shared| session.report(report, shared));
            }
            [] if self.tell_of_ended_session(session, &report) => {}
            _ => self.let_wait(report),
        }
    }

    /// Accepts a reported score of a sealed trace, if the trace is in this shard or its outcome is still outstanding.
    fn report_trace(&mut self, trace: TraceId, report: &Report) {
        let tenant = report.tenant.as_deref();
        if let Some((number, _)) = self.sessions.of_trace(tenant, trace) {
            let mut became = Ok(());
            self.change_at(number, |session, shared| {
                became = session.report_trace(trace, report, shared);
            });
            self.shared.counts.add("reports", became.err().unwrap_or("applied"));
        } else {
            let is_told = self.tell_of_ended_trace(tenant, trace, report);
            self.shared.counts.add_many("reports", "applied", u64::from(is_told));
        }
    }

    /// The sessions of a tenant with this id and, if given, this scope, in the order of their scopes; without sessions that have no
    /// traces.
    pub(super) fn known(
        &self,
        (tenant, id, scope): (&str, &str, Option<&str>),
    ) -> Vec<Arc<SessionId>> {
        let mut known = self.sessions.of_id(tenant, id);
        known.extend(self.evicted.of_id(tenant, id));
        known.retain(|id| scope.is_none_or(|scope| *id.scope == *scope));
        known.sort_unstable();
        known
    }

    /// Makes a report wait until its session is known.
    pub(super) fn let_wait(&mut self, report: Report) {
        let displaced = self.waiting.insert(report, self.shared.now, &self.shares);
        self.shared.counts.add_many("reports", "waiting_full", u64::from(displaced));
    }

    /// Whether any report is waiting for a session with this id.
    pub(super) fn has_waiting(&self, session: &SessionId) -> bool {
        !self.waiting.is_empty() && self.waiting.has_any(&AnyScope::from(session))
    }

    /// Delivers the waiting reports for this id whose session is known by now.
    pub(super) fn deliver_waiting(&mut self, session: &SessionId) {
        let known = self.known((&session.tenant, &session.id, None));
        for id in known.iter().filter(|id| self.sessions.contains(id)).cloned().collect::<Vec<_>>()
        {
            // A report without a scope is for a session that is the only one with its id.
            let reports = self.waiting.take(&AnyScope::from(session), |report| {
                let scope = target(report).and_then(|(.., scope)| scope);
                scope.map_or(known.len() == 1, |scope| *scope == *id.scope)
            });
            for report in reports {
                self.change_known(&id, |session, shared| session.report(report, shared));
            }
        }
    }

    /// Drops the reports that have waited for `report_wait`.
    pub(super) fn give_up_reports(&mut self, now: Timestamp) {
        for report in self.waiting.handle_timeout(now) {
            let several = target(&report).is_some_and(|session| self.known(session).len() > 1);
            let why = if several { "ambiguous" } else { "unmatched" };
            self.shared.counts.add("reports", why);
        }
    }
}

impl Session {
    /// Removes the reports that named its id alone, if all its traces have moved: they may be for the session that has them now.
    pub(super) fn take_unscoped_reports(&mut self) -> Vec<Report> {
        if !self.traces.is_empty() || self.rare().reports.is_empty() {
            return Vec::new();
        }
        let reports = &mut self.rare_mut().reports;
        let (unscoped, own): (BTreeMap<_, _>, _) = std::mem::take(reports)
            .into_iter()
            .partition(|(_, report)| target(report).is_some_and(|(.., scope)| scope.is_none()));
        *reports = own;
        unscoped.into_values().collect()
    }
}

/// The tenant, the id and the scope that a report names.
pub(super) fn target(report: &Report) -> Option<(&str, &str, Option<&str>)> {
    match &report.target {
        Target::Session { tenant, id, scope } => {
            Some((tenant.as_deref().unwrap_or_default(), id, scope.as_deref()))
        }
        Target::Trace(_) | Target::Response { .. } | Target::Run(_) | Target::Agent(_) => None,
    }
}
