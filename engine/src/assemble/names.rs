//! Which agents a service speaks for, by the scopes of its spans: learned when a root says so, or when nothing more can.
//!
//! The span that names the agent is often the root, which ends and comes last. Until then a trace that names nobody is shown
//! under the one agent that is known of its service and scope, and under no name where none is, or several are. It is never
//! counted under what is only presumed.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::parents::{hash, of_service};
use super::recent::{Recent, Saved, Topic};
use crate::span::{Resource, Timestamp};
use crate::tenants::Shares;
use crate::update::AgentKey;

/// The agents of services and scopes.
#[derive(Clone, Debug)]
pub(super) struct Names {
    sources: Recent<Agents>,
}

/// The agents that were named last, by name, and when: of more than two it tells nothing which they are.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Agents(Vec<(AgentKey, Timestamp)>);

/// How long an agent is known that is not named again.
const MEMORY: Duration = Duration::from_secs(86_400);

impl Names {
    /// Nothing is known yet, and of at most so many services and scopes something will be.
    pub(super) fn new(max: usize) -> Self {
        Self { sources: Recent::new(max) }
    }

    /// Makes room by these shares of tenants.
    pub(super) fn shared_by(&mut self, shares: Shares) {
        self.sources.shared_by(shares);
    }

    /// Whether no agent is known that spans from there speak for.
    pub(super) fn knows_none(&self, resource: &Resource, scope: u64) -> bool {
        self.sources.get(key(resource, scope)).is_none()
    }

    /// The one agent that spans from there speak for, as far as is known then.
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

    /// A trace with spans from there is this agent's.
    pub(super) fn learn<'a>(
        &mut self,
        sources: impl Iterator<Item = (&'a Arc<Resource>, u64)>,
        agent: &AgentKey,
        now: Timestamp,
    ) {
        let mut last = None;
        let own = |resource: &Resource| {
            resource.service_name.as_deref().unwrap_or_default() == agent.service_name
        };
        for (resource, scope) in sources.filter(|(resource, _)| own(resource)) {
            let key = key(resource, scope);
            if last.replace(key) == Some(key) {
                continue;
            }
            let Agents(agents) = self.sources.learn(key);
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

    /// How often something was forgotten since this was last asked.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        self.sources.take_forgotten()
    }

    /// What outlives the process.
    pub(super) fn save(&self) -> Saved<&Agents> {
        self.sources.save()
    }

    /// Takes over what an earlier process knew.
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

    #[test]
    fn an_agent_is_presumed_as_long_as_it_is_the_only_one() {
        let resource =
            Arc::new(Resource { service_name: Some("shop".into()), ..Resource::default() });
        let agent = |name: &str| AgentKey {
            service_name: "shop".to_owned(),
            agent_name: name.to_owned(),
            ..AgentKey::default()
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
