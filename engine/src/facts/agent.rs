//! The agent under which something is counted.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::ops::{Bound, Deref};
use std::sync::{Arc, LazyLock};

use hashbrown::HashTable;
use serde::{Deserialize, Serialize, Serializer};

use super::{facts, is_default};
use crate::hash::FixedHasher;

/// The service name of the agent that stands for all agents over `max_agents`.
pub const OVERFLOW: &str = "__overflow__";

/// Number of known agents at which all are forgotten. Keys in use stay valid.
const MOST: usize = 4_096;

facts! {
    /// The parts of an agent's key.
    pub struct AgentParts {
        /// Authenticated tenant; empty: without tenants.
        pub tenant: Arc<str>,
        /// `service.name`.
        pub service_name: Arc<str>,
        /// `gen_ai.agent.name`; empty: no span named it.
        pub agent_name: Arc<str>,
        /// Its version; empty: not sent.
        pub agent_version: Arc<str>,
        /// `deployment.environment.name`; empty: not sent.
        pub environment: Arc<str>,
    }
}

/// The agent under which a trace counts: its parts, shared by everything that refers to it. Keys are ordered by their parts.
#[derive(Clone, Deserialize)]
#[serde(from = "AgentParts")]
pub struct AgentKey(Arc<Agent>);

struct Agent {
    parts: AgentParts,
    // The parts in order, each with an end mark that sorts before anything that may follow within a part, so that bytes sort like
    // the parts.
    order: Box<[u8]>,
    hash: u64,
    unversioned: u64,
}

/// The agents of a shard's traces, so that traces of one agent share its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentKeys(HashTable<AgentKey>);

impl AgentParts {
    /// The parts, in their order.
    pub fn texts(&self) -> [&str; 5] {
        let Self { tenant, service_name, agent_name, agent_version, environment } = self;
        [tenant, service_name, agent_name, agent_version, environment]
    }
}

impl AgentKey {
    /// The agent that stands for all agents without series of their own.
    pub(crate) fn overflow() -> Self {
        AgentParts { service_name: OVERFLOW.into(), ..AgentParts::default() }.into()
    }

    /// The key that sorts before all agents of a tenant.
    pub(crate) fn first_of(tenant: &str) -> Self {
        AgentParts { tenant: tenant.into(), ..AgentParts::default() }.into()
    }

    /// A copy of this key with some parts changed.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(&mut AgentParts)) -> Self {
        let mut parts = self.0.parts.clone();
        change(&mut parts);
        parts.into()
    }

    /// The other versions of this agent in the same environment that are in `held`, in no particular order.
    pub fn other_versions<'a, V>(
        &'a self,
        held: &'a BTreeMap<Self, V>,
    ) -> impl Iterator<Item = (&'a Self, &'a V)> {
        // They are on both sides of it.
        let before = held.range::<Self, _>(..self).rev();
        let after = held.range::<Self, _>((Bound::Excluded(self), Bound::Unbounded));
        let before = before.take_while(|(other, _)| other.is_called_as(self));
        let after = after.take_while(|(other, _)| other.is_called_as(self));
        before.chain(after).filter(|(other, _)| other.environment == self.environment)
    }

    /// The agents of the same service and environment that have a name, of those in `held`, in order.
    pub fn others_of_service<'a, V>(
        &'a self,
        held: &'a BTreeMap<Self, V>,
    ) -> impl Iterator<Item = (&'a Self, &'a V)> {
        self.of_service(held).filter(|(other, _)| !other.agent_name.is_empty())
    }

    /// The agents of the same service and environment without a name, of those in `held`, in order.
    pub fn unnamed_of_service<'a, V>(
        &'a self,
        held: &'a BTreeMap<Self, V>,
    ) -> impl Iterator<Item = (&'a Self, &'a V)> {
        // They sort before the others of the service.
        self.of_service(held).take_while(|(other, _)| other.agent_name.is_empty())
    }

    /// The agents of the same service and environment that are in `held`, in order.
    fn of_service<'a, V>(
        &'a self,
        held: &'a BTreeMap<Self, V>,
    ) -> impl Iterator<Item = (&'a Self, &'a V)> {
        let AgentParts { tenant, service_name, .. } = &**self;
        let first = AgentParts {
            tenant: Arc::clone(tenant),
            service_name: Arc::clone(service_name),
            ..AgentParts::default()
        };
        let agents = held.range(Self::from(first)..);
        agents
            .take_while(move |(other, _)| {
                (&other.tenant, &other.service_name) == (&self.tenant, &self.service_name)
            })
            .filter(|(other, _)| other.environment == self.environment)
    }

    /// Whether both are versions or environments of one agent: they differ in nothing else, and are adjacent in the order.
    fn is_called_as(&self, other: &Self) -> bool {
        (&self.tenant, &self.service_name, &self.agent_name)
            == (&other.tenant, &other.service_name, &other.agent_name)
    }

    /// Whether both point to the same agent in memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A hash of its parts, the same in every process.
    pub(crate) fn hash(&self) -> u64 {
        self.0.hash
    }

    /// A hash of its parts without the version, the same in every process.
    pub(crate) fn hash_of_all_versions(&self) -> u64 {
        self.0.unversioned
    }
}

impl AgentKeys {
    /// The key of these parts: tenant, service, agent, version and environment.
    pub(crate) fn of(&mut self, parts: [&str; 5]) -> AgentKey {
        let hash = hash(parts);
        if let Some(known) = self.0.find(hash, |known| known.texts() == parts) {
            return known.clone();
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let [tenant, service_name, agent_name, agent_version, environment] = parts.map(Arc::from);
        let parts = AgentParts { tenant, service_name, agent_name, agent_version, environment };
        let key = AgentKey::from(parts);
        self.0.insert_unique(hash, key.clone(), AgentKey::hash);
        key
    }
}

fn hash(parts: [&str; 5]) -> u64 {
    BuildHasherDefault::<FixedHasher>::default().hash_one(parts)
}

fn order(parts: [&str; 5]) -> Box<[u8]> {
    let mut order = Vec::with_capacity(parts.iter().map(|part| part.len() + 2).sum());
    for part in parts {
        for byte in part.bytes() {
            order.push(byte);
            if byte == 0 {
                order.push(u8::MAX);
            }
        }
        order.extend([0, 0]);
    }
    order.into()
}

impl From<AgentParts> for AgentKey {
    fn from(parts: AgentParts) -> Self {
        let texts @ [tenant, service_name, agent_name, _, environment] = parts.texts();
        let unversioned = hash([tenant, service_name, agent_name, "", environment]);
        let (order, hash) = (order(texts), hash(texts));
        Self(Arc::new(Agent { parts, order, hash, unversioned }))
    }
}

impl Deref for AgentKey {
    type Target = AgentParts;

    fn deref(&self) -> &AgentParts {
        &self.0.parts
    }
}

impl Default for AgentKey {
    fn default() -> Self {
        static EMPTY: LazyLock<AgentKey> = LazyLock::new(|| AgentParts::default().into());
        EMPTY.clone()
    }
}

impl Serialize for AgentKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.parts.serialize(to)
    }
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.parts.fmt(f)
    }
}

impl PartialEq for AgentKey {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || (self.0.hash == other.0.hash && self.0.order == other.0.order)
    }
}

impl Eq for AgentKey {}

impl Ord for AgentKey {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is(other) { Ordering::Equal } else { self.0.order.cmp(&other.0.order) }
    }
}

impl PartialOrd for AgentKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for AgentKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts() -> impl Strategy<Value = AgentParts> {
        let part = || "[\0\u{1}a\u{ff}]{0,3}".prop_map(Arc::from);
        (part(), part(), part(), part(), part()).prop_map(
            |(tenant, service_name, agent_name, agent_version, environment)| AgentParts {
                tenant,
                service_name,
                agent_name,
                agent_version,
                environment,
            },
        )
    }

    proptest! {
        #[test]
        fn keys_are_equal_and_ordered_as_their_parts_are(one in parts(), other in parts()) {
            let (key, other_key) = (AgentKey::from(one.clone()), AgentKey::from(other.clone()));
            prop_assert_eq!(key.cmp(&other_key), one.cmp(&other));
            prop_assert_eq!(key == other_key, one == other);
            let mut known = AgentKeys::default();
            let shared = known.of(one.texts());
            prop_assert!(shared.is(&known.of(one.texts())));
            prop_assert_eq!(&shared, &key);
            prop_assert_eq!(known.of(other.texts()), other_key);
        }
    }

    #[test]
    fn no_more_than_so_many_agents_are_known() {
        let mut known = AgentKeys::default();
        for number in 0..2 * MOST {
            let name = number.to_string();
            assert_eq!(*known.of(["", "", &name, "", ""]).agent_name, *name);
        }
        assert!(known.0.len() <= MOST);
    }
}
