//! Outcomes of runs, reported by task and run.
//!
//! Sessions of one run may be in any shard, so every shard receives every outcome. It delivers the outcome to its sessions that
//! have traces of the run, and remembers it for `report_wait` for sessions that get one later. The agent stage scores the run
//! itself.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Sessions;
use super::outcomes::SessionRuns;
use crate::facts::{SessionId, TraceFacts};
use crate::math::Quanta;
use crate::runs::{RunName, tells_outcome};
use crate::span::{Report, RunTarget, Timestamp};
use crate::tenants::{Shares, TenantHash, tenant_hash};

/// An outcome of a run; of two, the greater one applies, which is the later one.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct RunOutcome {
    time: Timestamp,
    identifier: Arc<str>,
    score: Quanta,
    success: bool,
}

/// The hash of a run's name. A collision only costs reading the sessions of the other run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct RunHash(u64);

/// For each run, the sessions, in memory or evicted, that have traces of it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct RunIndex(BTreeMap<RunHash, BTreeSet<Arc<SessionId>>>);

/// Outcomes of runs that are remembered for sessions that get a trace of the run later, bounded in number and in time. At the
/// bound, the oldest one of the tenant that holds the most relative to its share is forgotten.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RunOutcomes {
    outcomes: BTreeMap<RunName, (RunOutcome, u64)>,
    // Invariant: the order of age is that of deadlines, as all wait equally long and time does not go back.
    by_age: BTreeMap<u64, (Timestamp, RunName)>,
    // The ages of a tenant's outcomes; no tenant without any.
    #[serde(skip)]
    by_tenant: BTreeMap<TenantHash, BTreeSet<u64>>,
    next: u64,
    #[serde(skip)]
    max: usize,
    #[serde(skip)]
    wait: Duration,
}

impl RunOutcome {
    /// The outcome of a run in a report; `None` if it reports something else.
    fn of(report: &Report) -> Option<Self> {
        let Report { time, identifier, score, .. } = report;
        tells_outcome(report).then(|| Self {
            time: *time,
            identifier: Arc::clone(identifier),
            score: *score,
            success: report.is_success(),
        })
    }

    /// Whether the run succeeded.
    pub(super) fn is_success(&self) -> bool {
        self.success
    }
}

impl From<&RunName> for RunHash {
    fn from(RunName { agent, task, run }: &RunName) -> Self {
        let [tenant, service, name, version, environment] = agent.texts();
        let parts = [tenant, service, name, version, environment, &**task, &**run];
        Self(xxh3_64(parts.join("\0").as_bytes()))
    }
}

impl RunIndex {
    /// The sessions that have traces of a run, and perhaps some of a run with the same hash.
    pub(super) fn sessions(&self, run: &RunName) -> Vec<Arc<SessionId>> {
        self.0.get(&RunHash::from(run)).into_iter().flatten().cloned().collect()
    }

    /// How many runs there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a session that got a trace of a run; returns whether the run already has `most` sessions, so that this one is left out.
    pub(super) fn insert(&mut self, run: RunHash, session: &Arc<SessionId>, most: usize) -> bool {
        let sessions = self.0.entry(run).or_default();
        let is_full = sessions.len() >= most && !sessions.contains(session);
        if !is_full {
            sessions.insert(Arc::clone(session));
        }
        is_full
    }

    /// Removes a session that has no trace of a run any more.
    pub(super) fn remove(&mut self, run: RunHash, session: &SessionId) {
        if let Some(sessions) = self.0.get_mut(&run) {
            sessions.remove(session);
            if sessions.is_empty() {
                self.0.remove(&run);
            }
        }
    }

    /// Removes an ending session from its runs.
    pub(super) fn forget(&mut self, session: &SessionId, runs: Option<&SessionRuns>) {
        for run in runs.into_iter().flat_map(SessionRuns::hashes) {
            self.remove(run, session);
        }
    }

    /// Removes a session whose runs are no longer known.
    pub(super) fn lost(&mut self, session: &SessionId) {
        self.0.retain(|_, sessions| {
            sessions.remove(session);
            !sessions.is_empty()
        });
    }
}

impl RunOutcomes {
    /// An empty table for `max` outcomes, each for `wait`.
    pub(super) fn new(max: usize, wait: Duration) -> Self {
        let (outcomes, by_age, by_tenant) = Default::default();
        Self { outcomes, by_age, by_tenant, next: 0, max, wait }
    }

    /// Takes over the outcomes from a snapshot; returns how many were forgotten, as it may have been written with a larger bound.
    pub(super) fn restore(&mut self, saved: Self, shares: &Shares) -> u64 {
        *self = Self { max: self.max, wait: self.wait, ..saved };
        for (age, (_, run)) in &self.by_age {
            self.by_tenant.entry(tenant(run)).or_default().insert(*age);
        }
        self.make_room(shares)
    }

    /// Remembers an outcome, unless a later one is known; returns whether another run's outcome was forgotten for it.
    fn insert(
        &mut self,
        run: RunName,
        outcome: RunOutcome,
        now: Timestamp,
        shares: &Shares,
    ) -> bool {
        if let Some((known, age)) = self.outcomes.get(&run) {
            if *known > outcome {
                return false;
            }
            self.remove(*age);
        }
        self.by_tenant.entry(tenant(&run)).or_default().insert(self.next);
        self.by_age.insert(self.next, (now.after(self.wait), run.clone()));
        self.outcomes.insert(run, (outcome, self.next));
        self.next += 1;
        self.make_room(shares) > 0
    }

    /// When the first outcome is dropped.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.by_age.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    /// Drops the outcomes that were remembered for long enough.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((age, (deadline, _))) = self.by_age.first_key_value()
            && *deadline <= now
        {
            self.remove(*age);
        }
    }

    /// Forgets outcomes while there are too many; returns how many.
    fn make_room(&mut self, shares: &Shares) -> u64 {
        let mut forgotten = 0;
        while self.outcomes.len() > self.max {
            let counts = self.by_tenant.iter().map(|(tenant, ages)| (*tenant, ages.len()));
            let most_over_share =
                shares.most_over_share(counts).and_then(|tenant| self.by_tenant.get(&tenant));
            let Some(oldest) = most_over_share.and_then(BTreeSet::first).copied() else { break };
            self.remove(oldest);
            forgotten += 1;
        }
        forgotten
    }

    fn remove(&mut self, age: u64) {
        let Some((_, run)) = self.by_age.remove(&age) else { return };
        self.outcomes.remove(&run);
        if let Entry::Occupied(mut ages) = self.by_tenant.entry(tenant(&run)) {
            ages.get_mut().remove(&age);
            if ages.get().is_empty() {
                ages.remove();
            }
        }
    }
}

fn tenant(run: &RunName) -> TenantHash {
    tenant_hash(Some(&run.agent.tenant))
}

impl Sessions {
    /// Accepts the outcome of a run, for its present and future traces.
    pub(super) fn report_run(&mut self, target: &RunTarget, report: &Report) {
        let Some(outcome) = RunOutcome::of(report) else {
            self.shared.counts.add("reports", "misdirected");
            return;
        };
        let run = RunName::from(target);
        for id in self.shared.runs.sessions(&run) {
            self.change_known(&id, |session, shared| session.report_run(&run, &outcome, shared));
        }
        self.remember(vec![(run, outcome)]);
    }

    /// Remembers outcomes for future traces.
    pub(super) fn remember(&mut self, outcomes: Vec<(RunName, RunOutcome)>) {
        for (run, outcome) in outcomes {
            let over = self.run_outcomes.insert(run, outcome, self.shared.now, &self.shares);
            // It may have reached all traces of its run already.
            self.shared.counts.add_many("run_outcomes", "forgotten", u64::from(over));
        }
    }

    /// The run of an update of this session, with its remembered outcome, if there is one.
    pub(super) fn run_of(
        &self,
        session: &SessionId,
        update: &TraceFacts,
    ) -> Option<(RunName, RunOutcome)> {
        if self.run_outcomes.outcomes.is_empty() {
            return None;
        }
        let run = RunName::of(update.agent.as_ref()?, update.attempt.as_deref(), &session.id)?;
        let (outcome, _) = self.run_outcomes.outcomes.get(&run)?;
        let outcome = outcome.clone();
        Some((run, outcome))
    }
}
