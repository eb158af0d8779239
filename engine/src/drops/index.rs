//! Finds watches without a look at all of them: an agent may have thousands of versions.

use std::collections::{BTreeMap, BTreeSet};

use super::before;
use super::watch::AgentWatch;
use crate::facts::AgentKey;
use crate::span::Timestamp;
use crate::tenants::{TenantHash, tenant_hash};

/// The watched agents, by what they are looked up for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Index {
    // By a hash of all versions of an agent: these versions, by the time of their last trace.
    versions: BTreeMap<u64, BTreeSet<(Timestamp, AgentKey)>>,
    // By version: the versions that began while it was the latest.
    after: BTreeMap<AgentKey, BTreeSet<AgentKey>>,
    // By tenant: its agents, by the time of their last trace.
    tenants: BTreeMap<TenantHash, BTreeSet<(Timestamp, AgentKey)>>,
}

impl Index {
    /// The index of these watches.
    pub(super) fn of(watches: &BTreeMap<AgentKey, AgentWatch>) -> Self {
        let mut index = Self::default();
        watches.iter().for_each(|(agent, watch)| index.insert(agent, watch));
        index
    }

    /// Adds a watch.
    pub(super) fn insert(&mut self, agent: &AgentKey, watch: &AgentWatch) {
        self.add_latest(agent, watch.told);
        if let Some(before) = before(agent, watch) {
            self.after.entry(before).or_default().insert(agent.clone());
        }
    }

    /// Removes a watch.
    pub(super) fn remove(&mut self, agent: &AgentKey, watch: &AgentWatch) {
        self.remove_latest(agent, watch.told);
        if let Some(before) = before(agent, watch) {
            remove_from(&mut self.after, &before, agent);
        }
    }

    /// Moves an agent whose last trace was at `from`, as it has one at `to`.
    pub(super) fn move_to(&mut self, agent: &AgentKey, from: Timestamp, to: Timestamp) {
        if from != to {
            self.remove_latest(agent, from);
            self.add_latest(agent, to);
        }
    }

    /// The other version of an agent with the latest trace.
    pub(super) fn latest_before(&self, agent: &AgentKey) -> Option<&AgentKey> {
        let versions = self.versions.get(&agent.hash_of_all_versions())?.iter();
        versions.rev().map(|(_, version)| version).find(|version| *version != agent)
    }

    /// The versions that began while this one was the latest.
    pub(super) fn versions_after(&self, agent: &AgentKey) -> impl Iterator<Item = &AgentKey> {
        self.after.get(agent).into_iter().flatten()
    }

    /// The tenants and their numbers of watched agents.
    pub(super) fn held(&self) -> impl Iterator<Item = (TenantHash, usize)> {
        self.tenants.iter().map(|(tenant, agents)| (*tenant, agents.len()))
    }

    /// The agent of a tenant that has been silent for longest.
    pub(super) fn oldest_of(&self, tenant: TenantHash) -> Option<&AgentKey> {
        self.tenants.get(&tenant)?.first().map(|(_, agent)| agent)
    }

    /// The agent that has been silent for longest.
    pub(super) fn oldest(&self) -> Option<&AgentKey> {
        let oldest = self.tenants.values().filter_map(BTreeSet::first);
        oldest.min().map(|(_, agent)| agent)
    }

    fn add_latest(&mut self, agent: &AgentKey, at: Timestamp) {
        let latest = (at, agent.clone());
        self.versions.entry(agent.hash_of_all_versions()).or_default().insert(latest.clone());
        self.tenants.entry(tenant_hash(Some(&agent.tenant))).or_default().insert(latest);
    }

    fn remove_latest(&mut self, agent: &AgentKey, at: Timestamp) {
        let latest = (at, agent.clone());
        remove_from(&mut self.versions, &agent.hash_of_all_versions(), &latest);
        remove_from(&mut self.tenants, &tenant_hash(Some(&agent.tenant)), &latest);
    }
}

/// Removes a value from the set of a key, and the set with its last value.
fn remove_from<K: Ord, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
