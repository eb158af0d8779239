//! Scores of sessions as a whole, and whose they are; what came of a run goes to the sessions that have traces of it.
//!
//! A report that names a scope is that session's. One that names an id alone is taken where one session has the id; where none
//! has, or several have, it waits: a trace whose root has not come may be in a session that it leaves.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Sessions;
use super::key::SessionId;
use super::session::Session;
use crate::span::{Report, Target, Timestamp};

impl Sessions {
    /// Takes a score of a session as a whole; one of which it is not known whose it is waits.
    pub fn report(&mut self, report: Report, now: Timestamp) {
        self.advance(now);
        if let Target::Run(run) = &report.target {
            return self.report_run(run, &report);
        }
        let Some(session) = target(&report) else {
            self.shared.counts.add("reports", "misdirected");
            return;
        };
        match &self.known(session)[..] {
            [id] if self.sessions.contains(id) => {
                self.change_known(id, |session, shared| session.report(report, shared));
            }
            _ => self.let_wait(report),
        }
    }

    /// The sessions of a tenant that have this id, and, if it is told, this scope, in the order of their scopes; those without
    /// traces are none.
    pub(super) fn known(
        &self,
        (tenant, id, scope): (&str, &str, Option<&str>),
    ) -> Vec<Arc<SessionId>> {
        let mut known = self.sessions.of_id(tenant, id);
        known.extend(self.away.of_id(tenant, id));
        known.retain(|id| scope.is_none_or(|scope| id.scope == scope));
        known.sort_unstable();
        known
    }

    /// Lets a report wait until it is known whose it is.
    pub(super) fn let_wait(&mut self, report: Report) {
        let Some((tenant, id, _)) = target(&report) else { return };
        let id = Arc::new(SessionId::from((tenant, id, "")));
        let displaced = self.waiting.insert(id, report, self.shared.now, &self.shares);
        self.shared.counts.add_many("reports", "waiting_full", u64::from(displaced));
    }

    /// Hands on the reports that wait for sessions of the same id, as far as it is known whose they are.
    pub(super) fn deliver_waiting(&mut self, SessionId { tenant, id, .. }: &SessionId) {
        let known = self.known((tenant, id, None));
        for id in known.iter().filter(|id| self.sessions.contains(id)).cloned().collect::<Vec<_>>()
        {
            for report in self.waiting.take(&id, known.len() == 1) {
                self.change_known(&id, |session, shared| session.report(report, shared));
            }
        }
    }

    /// Gives up the reports that waited long enough.
    pub(super) fn give_up_reports(&mut self, now: Timestamp) {
        for report in self.waiting.handle_timeout(now) {
            let several = target(&report).is_some_and(|session| self.known(session).len() > 1);
            let why = if several { "ambiguous" } else { "unmatched" };
            self.shared.counts.add("reports", why);
        }
    }
}

impl Session {
    /// Lets go of the reports that named its id alone, if its traces have left: another session of the id may have them now.
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
