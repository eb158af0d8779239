//! Scores reported for sessions that are not there yet. Where there is no room, the oldest report goes of the tenant that uses the most of
//! its share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::SessionId;
use super::reports::target;
use crate::span::{Report, Timestamp};
use crate::tenants::{Shares, TenantHash, tenant_hash};

/// Reports that wait for their session; bounded in number and in time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Waiting {
    // By id, whatever the scope.
    reports: BTreeMap<(Arc<SessionId>, u64), Report>,
    // Invariant: the order of age is that of deadlines, as all wait equally long and time does not go back.
    by_age: BTreeMap<u64, (Timestamp, Arc<SessionId>)>,
    // Invariant: the ages of all reports, none of them empty.
    #[serde(skip)]
    by_tenant: BTreeMap<TenantHash, BTreeSet<u64>>,
    next: u64,
    #[serde(skip)]
    max: usize,
    #[serde(skip)]
    wait: Duration,
}

impl Waiting {
    /// No reports yet; at most `max` wait, each for `wait`.
    pub(super) fn new(max: usize, wait: Duration) -> Self {
        let (reports, by_age, by_tenant) = Default::default();
        Self { reports, by_age, by_tenant, next: 0, max, wait }
    }

    /// Takes over the reports of a snapshot.
    pub(super) fn restore(&mut self, saved: Self) {
        *self = Self { max: self.max, wait: self.wait, ..saved };
        for (age, (_, session)) in &self.by_age {
            self.by_tenant.entry(whose(session)).or_default().insert(*age);
        }
    }

    /// Adds a report; returns whether another one was dropped for it.
    pub(super) fn insert(
        &mut self,
        session: Arc<SessionId>,
        report: Report,
        now: Timestamp,
        shares: &Shares,
    ) -> bool {
        self.by_tenant.entry(whose(&session)).or_default().insert(self.next);
        self.by_age.insert(self.next, (now.after(self.wait), Arc::clone(&session)));
        self.reports.insert((session, self.next), report);
        self.next += 1;
        let over = self.reports.len() > self.max;
        if over {
            let held = self.by_tenant.iter().map(|(tenant, ages)| (*tenant, ages.len()));
            let greediest = shares.greediest(held).and_then(|tenant| self.by_tenant.get(&tenant));
            let oldest = greediest.and_then(BTreeSet::first).copied();
            oldest.into_iter().for_each(|age| drop(self.remove(age)));
        }
        over
    }

    /// Whether any report waits for a session of this id.
    pub(super) fn has_any(&self, session: &SessionId) -> bool {
        !self.reports.is_empty() && self.of_id(session).next().is_some()
    }

    /// Takes the reports that wait for a session: those that name its scope and, if it is the only one of its id, those that name no
    /// scope.
    pub(super) fn take(&mut self, session: &SessionId, is_alone: bool) -> Vec<Report> {
        let is_its = |report: &Report| match target(report) {
            Some((.., Some(scope))) => *scope == *session.scope,
            Some((.., None)) => is_alone,
            None => false,
        };
        let of_id = self.of_id(session).filter(|(_, report)| is_its(report));
        let keys: Vec<_> = of_id.map(|(key, _)| key.clone()).collect();
        keys.into_iter().filter_map(|(_, age)| self.remove(age)).collect()
    }

    /// The reports that wait for a session of this id, the oldest first.
    fn of_id(
        &self,
        SessionId { tenant, id, .. }: &SessionId,
    ) -> impl Iterator<Item = (&(Arc<SessionId>, u64), &Report)> {
        let id = Arc::new(SessionId::from((&**tenant, &**id, "")));
        self.reports.range((Arc::clone(&id), 0)..=(id, u64::MAX))
    }

    /// When the first report is dropped.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.by_age.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    /// Drops the reports that have waited long enough.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) -> Vec<Report> {
        let mut given_up = Vec::new();
        while let Some((age, (deadline, _))) = self.by_age.first_key_value() {
            if *deadline > now {
                break;
            }
            let age = *age;
            given_up.extend(self.remove(age));
        }
        given_up
    }

    fn remove(&mut self, age: u64) -> Option<Report> {
        let (_, session) = self.by_age.remove(&age)?;
        let tenant = whose(&session);
        if let Some(ages) = self.by_tenant.get_mut(&tenant) {
            ages.remove(&age);
            if ages.is_empty() {
                self.by_tenant.remove(&tenant);
            }
        }
        self.reports.remove(&(session, age))
    }
}

/// Whose session it is.
fn whose(session: &SessionId) -> TenantHash {
    tenant_hash(Some(&session.tenant))
}
