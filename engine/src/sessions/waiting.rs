//! Scores reported for sessions that are not there yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::SessionId;
use super::reports::target;
use crate::span::{Report, Timestamp};

/// Reports that wait for their session, at most so many and so long.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Waiting {
    // By id, whatever the scope.
    reports: BTreeMap<(Arc<SessionId>, u64), Report>,
    // Invariant: as `wait` is one for all and time does not go back, age orders deadlines.
    by_age: BTreeMap<u64, (Timestamp, Arc<SessionId>)>,
    next: u64,
    #[serde(skip)]
    max: usize,
    #[serde(skip)]
    wait: Duration,
}

impl Waiting {
    /// Makes room for `max` reports that wait for `wait`.
    pub(super) fn new(max: usize, wait: Duration) -> Self {
        Self { reports: BTreeMap::new(), by_age: BTreeMap::new(), next: 0, max, wait }
    }

    /// Takes over what waited in an earlier process.
    pub(super) fn restore(&mut self, saved: Self) {
        *self = Self { max: self.max, wait: self.wait, ..saved };
    }

    /// Lets a report wait; returns whether one had to go for it.
    pub(super) fn insert(
        &mut self,
        session: Arc<SessionId>,
        report: Report,
        now: Timestamp,
    ) -> bool {
        self.by_age.insert(self.next, (now.after(self.wait), Arc::clone(&session)));
        self.reports.insert((session, self.next), report);
        self.next += 1;
        let over = self.reports.len() > self.max;
        if over {
            self.pop_oldest();
        }
        over
    }

    /// Whether any waits for a session of this id.
    pub(super) fn has_any(&self, session: &SessionId) -> bool {
        !self.reports.is_empty() && self.of_id(session).next().is_some()
    }

    /// Takes the reports that wait for a session: those that name its scope, and, where it alone has its id, those that name
    /// none.
    pub(super) fn take(&mut self, session: &SessionId, is_alone: bool) -> Vec<Report> {
        let is_its = |report: &Report| match target(report) {
            Some((.., Some(scope))) => scope == session.scope,
            Some((.., None)) => is_alone,
            None => false,
        };
        let of_id = self.of_id(session).filter(|(_, report)| is_its(report));
        let keys: Vec<_> = of_id.map(|(key, _)| key.clone()).collect();
        keys.into_iter()
            .filter_map(|key| {
                self.by_age.remove(&key.1);
                self.reports.remove(&key)
            })
            .collect()
    }

    /// All that wait for a session of this id, the oldest first.
    fn of_id(
        &self,
        SessionId { tenant, id, .. }: &SessionId,
    ) -> impl Iterator<Item = (&(Arc<SessionId>, u64), &Report)> {
        let id = Arc::new(SessionId::from((tenant.as_str(), id.as_str(), "")));
        self.reports.range((Arc::clone(&id), 0)..=(id, u64::MAX))
    }

    /// When the first one has waited long enough.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.by_age.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    /// Lets go of those that waited long enough.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) -> Vec<Report> {
        let mut given_up = Vec::new();
        while self.poll_timeout().is_some_and(|deadline| deadline <= now) {
            given_up.extend(self.pop_oldest());
        }
        given_up
    }

    fn pop_oldest(&mut self) -> Option<Report> {
        let (age, (_, session)) = self.by_age.pop_first()?;
        self.reports.remove(&(session, age))
    }
}
