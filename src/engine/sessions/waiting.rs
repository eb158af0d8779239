//! Scores reported for sessions that are not there yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::SessionId;
use crate::engine::span::{Report, Timestamp};

/// Reports that wait for their session, at most so many and so long.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Waiting {
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

    /// Takes the reports that waited for a session.
    pub(super) fn arrive(&mut self, session: &SessionId) -> Vec<Report> {
        if self.reports.is_empty() {
            return Vec::new();
        }
        let session = Arc::new(session.clone());
        let range = (Arc::clone(&session), 0)..=(Arc::clone(&session), u64::MAX);
        let ages: Vec<u64> = self.reports.range(range).map(|((_, age), _)| *age).collect();
        ages.into_iter()
            .filter_map(|age| {
                self.by_age.remove(&age);
                self.reports.remove(&(Arc::clone(&session), age))
            })
            .collect()
    }

    /// When the first one has waited long enough.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.by_age.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    /// Drops those that waited long enough; returns how many.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) -> u64 {
        let mut dropped = 0;
        while self.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.pop_oldest();
            dropped += 1;
        }
        dropped
    }

    fn pop_oldest(&mut self) {
        if let Some((age, (_, session))) = self.by_age.pop_first() {
            self.reports.remove(&(session, age));
        }
    }
}
