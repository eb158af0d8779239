//! What things are filed under: sessions and agents, in an order.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::engine::update::AgentKey;

/// A session of a tenant.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct SessionId {
    /// The tenant; empty without tenants.
    pub(super) tenant: String,
    /// The session id.
    pub(super) id: String,
}

/// An agent, shared by everything that counts towards it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Agent(Arc<AgentKey>);

impl Agent {
    /// The agent that stands for all that have no series of their own.
    pub(super) fn overflow() -> Self {
        Self::from(AgentKey { service_name: OVERFLOW.to_owned(), ..AgentKey::default() })
    }

    /// The key as it is sent.
    pub(super) fn key(&self) -> &AgentKey {
        &self.0
    }
}

impl From<AgentKey> for Agent {
    fn from(key: AgentKey) -> Self {
        Self(Arc::new(key))
    }
}

impl Ord for Agent {
    fn cmp(&self, other: &Self) -> Ordering {
        parts(self).cmp(&parts(other))
    }
}

impl PartialOrd for Agent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn parts(agent: &Agent) -> [&str; 5] {
    let key = agent.key();
    [&key.tenant, &key.service_name, &key.agent_name, &key.agent_version, &key.environment]
}

/// The service name of the agent that stands for all others.
const OVERFLOW: &str = "__overflow__";
