//! The board: the agents as they stand, for everybody who reads. The one concurrent map.

use std::sync::Arc;

use dashmap::DashMap;

use crate::engine::agents::AgentUpdate;
use crate::engine::update::AgentKey;

/// The newest word on each agent.
#[derive(Debug, Default)]
pub struct Board {
    agents: DashMap<AgentKey, Arc<AgentUpdate>>,
}

impl Board {
    /// Writes an agent down, or wipes it off if it is gone.
    pub fn apply(&self, update: AgentUpdate) {
        if update.gone {
            self.agents.remove(&update.agent);
        } else {
            self.agents.insert(update.agent.clone(), Arc::new(update));
        }
    }

    /// All agents, in the order of their names.
    #[expect(clippy::disallowed_methods, reason = "sorted before anybody sees it")]
    pub fn sorted(&self) -> Vec<Arc<AgentUpdate>> {
        let mut agents: Vec<_> = self.agents.iter().map(|entry| entry.value().clone()).collect();
        agents.sort_by(|a, b| a.agent.cmp(&b.agent));
        agents
    }

    /// How many agents there are.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }
}
