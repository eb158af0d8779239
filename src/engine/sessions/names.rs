//! Which agent a service speaks for while its root span is still on its way.
//!
//! The span that names the agent is often the root, which ends and comes last. Until then a trace goes by the name of
//! its service; if that service is known to speak for an agent, the trace is shown and counted in flight as that
//! agent's. A trace that is done has the name that its own spans give it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::update::{AgentKey, TraceState, TraceUpdate};

/// The agents that services were last seen to speak for, at most so many.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Names {
    #[serde(skip)]
    max: usize,
    // By tenant and service.
    agents: BTreeMap<(String, String), AgentKey>,
}

impl Names {
    /// Nothing is known yet.
    pub(super) fn new(max: usize) -> Self {
        Self { max, agents: BTreeMap::new() }
    }

    /// Takes over what an earlier process knew.
    pub(super) fn restore(&mut self, saved: Self) {
        self.agents = saved.agents;
    }

    /// Learns from an update that names its agent; names the agent of one that cannot yet.
    pub(super) fn resolve(&mut self, update: TraceUpdate) -> TraceUpdate {
        let Some(agent) = &update.agent else { return update };
        let service = (agent.tenant.clone(), agent.service_name.clone());
        let named = agent.agent_name != agent.service_name;
        let room = self.agents.len() < self.max || self.agents.contains_key(&service);
        if named && room {
            self.agents.insert(service, agent.clone());
        } else if !named && !update.complete && update.state() == TraceState::Open {
            let agent = self.agents.get(&service).or(update.agent.as_ref()).cloned();
            return TraceUpdate { agent, ..update };
        }
        update
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(agent_name: &str, complete: bool, state: TraceState) -> TraceUpdate {
        let agent = AgentKey {
            service_name: "service".to_owned(),
            agent_name: agent_name.to_owned(),
            ..AgentKey::default()
        };
        TraceUpdate { agent: Some(agent), complete, state: state.into(), ..TraceUpdate::default() }
    }

    #[test]
    fn an_open_trace_without_a_root_goes_by_the_agent_of_its_service() {
        let mut names = Names::new(1);
        let mut name = |update| names.resolve(update).agent.unwrap().agent_name;
        assert_eq!(name(update("service", false, TraceState::Open)), "service");
        assert_eq!(name(update("agent", true, TraceState::Done)), "agent");
        assert_eq!(name(update("service", false, TraceState::Open)), "agent");
        // What its own spans say holds once they are in.
        assert_eq!(name(update("service", true, TraceState::Open)), "service");
        assert_eq!(name(update("service", false, TraceState::Done)), "service");
    }
}
