//! The agents of each service and scope of spans: learned when a root names one, or when nothing more can.
//!
//! The span that names the agent is often the root, which ends and comes last. Until then a trace without a name is shown
//! under the one agent that is known of its service and scope, and under no name if none or several are known. It is never
//! counted under a presumed name.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::parents::{hash, of_service};
use super::recent::{Recent, Saved, Topic};
use crate::facts::AgentKey;
use crate::span::{Resource, Timestamp};
use crate::tenants::Shares;

/// The agents of services and scopes.
#[derive(Clone, Debug)]
pub(super) struct Names {
    sources: Recent<Agents>,
}

/// The agents that were named last, and when; at most two, as only a single known agent is presumed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Agents(Vec<(AgentKey, Timestamp)>);

/// How long an agent stays known without being named again.
const MEMORY: Duration = Duration::from_secs(86_400);

impl Names {
    /// An empty table of at most `max` services and scopes.
    pub(super) fn new(max: usize) -> Self {
        Self { sources: Recent::new(max) }
    }

    /// Sets the shares of tenants by which room is made.
    pub(super) fn shared_by(&mut self, shares: Shares) {
        self.sources.shared_by(shares);
    }

    /// Whether no agent is known of this resource and scope.
    pub(super) fn knows_none(&self, resource: &Resource, scope: u64) -> bool {
        self.sources.get(key(resource, scope)).is_none()
    }

    /// The agent of this resource and scope, if exactly one is known at `now`.
    pub(super) fn only(
        &self,
        resource: &Resource,
        scope: u64,
        now: Timestamp,
    ) -> Option<&AgentKey> {
        let Agents(agents) = self.sources.get(key(resource, scope))?;
        let mut known = agents.iter().filter(|(_, named)| named.after(MEMORY) > now);
        known.next().filter(|_| known.next().is_none()).map(|(agent, _)| agent)
    }

    /// Learns that a trace with spans of these sources is of this agent.
    pub(super) fn learn<'a>(
        &mut self,
        sources: impl Iterator<Item = (&'a Arc<Resource>, u64)>,
        agent: &AgentKey,
        now: Timestamp,
    ) {
        let mut last: Option<(&Arc<Resource>, u64)> = None;
        let own = |resource: &Resource| {
            resource.service_name.as_deref().unwrap_or_default() == agent.service_name
        };
        for (resource, scope) in sources.filter(|(resource, _)| own(resource)) {
            let last = last.replace((resource, scope));
            if last.is_some_and(|(other, of)| Arc::ptr_eq(other, resource) && of == scope) {
                continue;
            }
            let Agents(agents) = self.sources.learn(key(resource, scope));
            match agents.iter_mut().find(|(known, _)| known.agent_name == agent.agent_name) {
                Some((known, named)) => {
                    *named = now.max(*named);
                    if known != agent {
                        known.clone_from(agent);
                    }
                }
                None => {
                    if agents.len() > 1 {
                        agents.sort_by_key(|(_, named)| std::cmp::Reverse(*named));
                        agents.pop();
                    }
                    agents.push((agent.clone(), now));
                }
            }
        }
    }

    /// The number of entries forgotten since the last call.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        self.sources.take_forgotten()
    }

    /// The agents for a snapshot.
    pub(super) fn save(&self) -> Saved<&Agents> {
        self.sources.save()
    }

    /// Takes over the agents of a snapshot.
    pub(super) fn restore(&mut self, saved: Saved<Agents>) {
        self.sources.restore(saved);
    }
}

fn key(resource: &Resource, scope: u64) -> Topic {
    let (tenant, service) = of_service(resource);
    (tenant, hash([service, scope, 0], 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::AgentParts;

    #[test]
    fn an_agent_is_presumed_as_long_as_it_is_the_only_one() {
        let resource =
            Arc::new(Resource { service_name: Some("shop".into()), ..Resource::default() });
        let agent = |name: &str| {
            AgentParts {
                service_name: "shop".to_owned(),
                agent_name: name.to_owned(),
                ..AgentParts::default()
            }
            .into()
        };
        let at = |hour: u64| Timestamp(hour * 3_600_000_000_000);
        let mut names = Names::new(10);
        let only = |names: &Names, hour| {
            names.only(&resource, 1, at(hour)).map(|agent| agent.agent_name.clone())
        };
        assert!(names.knows_none(&resource, 1));
        names.learn([(&resource, 1)].into_iter(), &agent("one"), at(0));
        assert_eq!(only(&names, 1).as_deref(), Some("one"));
        assert!(names.knows_none(&resource, 2));
        names.learn([(&resource, 1)].into_iter(), &agent("two"), at(10));
        assert_eq!(only(&names, 11), None);
        assert_eq!(only(&names, 25).as_deref(), Some("two"));
        names.learn([(&resource, 1)].into_iter(), &agent("three"), at(26));
        names.learn([(&resource, 1)].into_iter(), &agent("three"), at(36));
        assert_eq!(only(&names, 35).as_deref(), Some("three"));
    }
}
