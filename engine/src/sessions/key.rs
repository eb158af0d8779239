//! The keys of sessions and agents, and their order.

use std::cmp::Ordering;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::hash::FixedHasher;
use crate::span::TraceId;
use crate::tenants::TraceKey;
use crate::update::{AgentKey, ScopedId, SessionKey};

/// A session. Sessions of one id stand next to each other.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionId {
    /// The tenant; empty without tenants.
    pub tenant: String,
    /// The session id.
    pub id: String,
    /// Its scope; see [`SessionKey`].
    pub scope: String,
}

impl SessionId {
    /// The session among those of its tenant.
    pub fn scoped(&self) -> ScopedId {
        ScopedId { id: self.id.clone(), scope: self.scope.clone() }
    }

    /// The trace that has this id among those of the session's tenant.
    pub(super) fn trace(&self, trace: TraceId) -> TraceKey {
        TraceKey::new(trace, Some(&self.tenant))
    }
}

/// Tenant, id and scope.
impl From<(&str, &str, &str)> for SessionId {
    fn from((tenant, id, scope): (&str, &str, &str)) -> Self {
        Self { tenant: tenant.to_owned(), id: id.to_owned(), scope: scope.to_owned() }
    }
}

impl From<&SessionKey> for SessionId {
    fn from(key: &SessionKey) -> Self {
        Self::from((&*key.tenant, &*key.id, &*key.scope))
    }
}

/// An agent, shared by everything that counts towards it.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "AgentKey")]
pub(super) struct Agent(Arc<Named>);

#[derive(Debug)]
struct Named {
    key: AgentKey,
    /// The parts of the key in the order of comparison, so that one comparison does.
    joined: String,
    hash: u64,
}

impl Agent {
    /// The agent that stands for all that have no series of their own.
    pub(super) fn overflow() -> Self {
        Self::from(AgentKey { service_name: OVERFLOW.to_owned(), ..AgentKey::default() })
    }

    /// Whether both are the same one in memory.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The key as it is sent.
    pub(super) fn key(&self) -> &AgentKey {
        &self.0.key
    }

    /// The [`hash`] of its key.
    pub(super) fn hash(&self) -> u64 {
        self.0.hash
    }
}

impl From<AgentKey> for Agent {
    fn from(key: AgentKey) -> Self {
        let parts =
            [&key.tenant, &key.service_name, &key.agent_name, &key.agent_version, &key.environment];
        let (joined, hash) = (parts.map(String::as_str).join("\0"), hash(&key));
        Self(Arc::new(Named { key, joined, hash }))
    }
}

impl Serialize for Agent {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.key.serialize(to)
    }
}

impl Ord for Agent {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is(other) {
            return Ordering::Equal;
        }
        // Parts that contain the separator may join to the same text.
        self.0.joined.cmp(&other.0.joined).then_with(|| parts(self).cmp(&parts(other)))
    }
}

impl PartialEq for Agent {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.key() == other.key()
    }
}

impl Hash for Agent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl Eq for Agent {}

impl PartialOrd for Agent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The hash by which an agent of this key is found.
pub(super) fn hash(key: &AgentKey) -> u64 {
    BuildHasherDefault::<FixedHasher>::default().hash_one(key)
}

fn parts(agent: &Agent) -> [&str; 5] {
    let key = agent.key();
    [&key.tenant, &key.service_name, &key.agent_name, &key.agent_version, &key.environment]
}

/// The service name of the agent that stands for all others.
pub(super) const OVERFLOW: &str = "__overflow__";
