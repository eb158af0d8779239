//! Which agent a service speaks for while its root span is still on its way.
//!
//! The span that names the agent is often the root, which ends and comes last. Until then a trace goes by the name of
//! its service; if that service is known to speak for an agent, the trace is shown and counted in flight as that
//! agent's. A trace that is done has the name that its own spans give it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::update::{AgentKey, TraceState, TraceUpdate};

/// The agents that services were last seen to speak for, at most so many.
#[derive(Clone, Debug)]
pub(super) struct Names {
    max: usize,
    len: usize,
    // By tenant, then by service.
    agents: BTreeMap<String, BTreeMap<String, AgentKey>>,
}

/// The same as it is written down: by tenant and service.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Saved<T: Ord, A> {
    agents: BTreeMap<(T, T), A>,
}

impl Names {
    /// Nothing is known yet.
    pub(super) fn new(max: usize) -> Self {
        Self { max, len: 0, agents: BTreeMap::new() }
    }

    /// What outlives the process.
    pub(super) fn save(&self) -> Saved<&str, &AgentKey> {
        let agents = self.agents.iter().flat_map(|(tenant, services)| {
            services.iter().map(|(service, agent)| ((tenant.as_str(), service.as_str()), agent))
        });
        Saved { agents: agents.collect() }
    }

    /// Takes over what an earlier process knew.
    pub(super) fn restore(&mut self, saved: Saved<String, AgentKey>) {
        self.len = saved.agents.len();
        self.agents.clear();
        for ((tenant, service), agent) in saved.agents {
            self.agents.entry(tenant).or_default().insert(service, agent);
        }
    }

    /// Learns from an update that names its agent; names the agent of one that cannot yet.
    pub(super) fn resolve(&mut self, update: &mut TraceUpdate) {
        let may_be_another = !update.complete && update.state == TraceState::Open;
        let Some(agent) = &mut update.agent else { return };
        let services = self.agents.get_mut(&agent.tenant);
        let known = services.and_then(|services| services.get_mut(&agent.service_name));
        let named = agent.agent_name != agent.service_name;
        match known {
            Some(known) if named && known != agent => known.clone_from(agent),
            Some(known) if !named && may_be_another => agent.clone_from(known),
            None if named && self.len < self.max => {
                self.len += 1;
                let services = self.agents.entry(agent.tenant.clone()).or_default();
                services.insert(agent.service_name.clone(), agent.clone());
            }
            Some(_) | None => {}
        }
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
        TraceUpdate { agent: Some(agent), complete, state, ..TraceUpdate::default() }
    }

    #[test]
    fn an_open_trace_without_a_root_goes_by_the_agent_of_its_service() {
        let mut names = Names::new(1);
        let mut name = |mut update| {
            names.resolve(&mut update);
            update.agent.unwrap().agent_name
        };
        assert_eq!(name(update("service", false, TraceState::Open)), "service");
        assert_eq!(name(update("agent", true, TraceState::Done)), "agent");
        assert_eq!(name(update("service", false, TraceState::Open)), "agent");
        // What its own spans say holds once they are in.
        assert_eq!(name(update("service", true, TraceState::Open)), "service");
        assert_eq!(name(update("service", false, TraceState::Done)), "service");
    }
}
