//! The agents of each service and scope of spans: learned when a root names one, or when no other span can.
//!
//! The span that names the agent is often the root, which ends and arrives last. Until then a trace without a name is shown under
//! the one known agent of its service and scope, and without a name if none or several are known. It is never counted under a
//! presumed name.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::parents::{hash, of_service};
use super::recent::{Join, LearnedKey, Recent};
use crate::facts::AgentKey;
use crate::span::{Resource, Timestamp};

/// The agents of services and scopes.
pub(super) type Names = Recent<Agents>;

/// The latest agents to be named, each with the time, the latest first; at most two, as only a single known agent is presumed.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Agents(Vec<(AgentKey, Timestamp)>);

/// Most known agents of a service and scope.
const MOST: usize = 2;

/// How long an agent stays known without being named again.
const MEMORY: Duration = Duration::from_secs(86_400);

/// How long an agent is not news after it was named, nor another version or environment of it.
const RENEWED: Duration = Duration::from_secs(3_600);
const CHANGED: Duration = Duration::from_secs(60);

impl Join for Agents {
    fn join(&mut self, Self(others): Self) {
        let Self(agents) = self;
        for (agent, at) in others {
            match agents.iter_mut().find(|(known, _)| known.agent_name == agent.agent_name) {
                Some(known) if (known.1, &known.0) < (at, &agent) => *known = (agent, at),
                Some(_) => {}
                None => agents.push((agent, at)),
            }
        }
        agents.sort_by(|(one, at), (other, then)| (then, other).cmp(&(at, one)));
        agents.truncate(MOST);
    }
}

impl Names {
    /// Whether no agent is known for this resource and scope.
    pub(super) fn knows_none(&self, resource: &Resource, scope: u64) -> bool {
        self.get(key(resource, scope)).is_none()
    }

    /// The agent of this resource and scope, if exactly one is known at `now`.
    pub(super) fn only(
        &self,
        resource: &Resource,
        scope: u64,
        now: Timestamp,
    ) -> Option<&AgentKey> {
        let Agents(agents) = self.get(key(resource, scope))?;
        let mut known = agents.iter().filter(|(_, named)| named.after(MEMORY) > now);
        known.next().filter(|_| known.next().is_none()).map(|(agent, _)| agent)
    }

    /// The news in the fact that a trace with spans of these sources belongs to this agent.
    pub(super) fn news<'a>(
        &self,
        sources: impl Iterator<Item = (&'a Arc<Resource>, u64)>,
        agent: &AgentKey,
        now: Timestamp,
    ) -> impl Iterator<Item = (LearnedKey, Agents)> {
        let mut last: Option<(&Arc<Resource>, u64)> = None;
        let own = |(resource, _): &(&Arc<Resource>, u64)| {
            resource.service_name.as_deref().unwrap_or_default() == &*agent.service_name
        };
        sources.filter(own).filter_map(move |(resource, scope)| {
            let last = last.replace((resource, scope));
            if last.is_some_and(|(other, of)| Arc::ptr_eq(other, resource) && of == scope) {
                return None;
            }
            let source = key(resource, scope);
            self.is_news(source, agent, now).then(|| (source, Agents(vec![(agent.clone(), now)])))
        })
    }

    /// Whether it is news that this source has this agent. It becomes news again after a while, and before it is forgotten for want
    /// of room; a third agent is no news, as two known ones already rule out presuming one.
    fn is_news(&self, source: LearnedKey, agent: &AgentKey, now: Timestamp) -> bool {
        let Some(Agents(agents)) = self.get(source) else { return true };
        match agents.iter().find(|(known, _)| known.agent_name == agent.agent_name) {
            Some((known, named)) => {
                let lasts = if known == agent { RENEWED } else { CHANGED };
                named.after(lasts) <= now || !self.is_safe(source)
            }
            None => agents.iter().filter(|(_, named)| named.after(RENEWED) > now).count() < MOST,
        }
    }
}

fn key(resource: &Resource, scope: u64) -> LearnedKey {
    let (tenant, service) = of_service(resource);
    (tenant, hash([service, scope, 0], 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::facts::AgentParts;

    fn agent(name: &str, version: &str) -> AgentKey {
        AgentParts {
            service_name: "shop".into(),
            agent_name: name.into(),
            agent_version: version.into(),
            ..AgentParts::default()
        }
        .into()
    }

    fn shop() -> Arc<Resource> {
        Arc::new(Resource { service_name: Some("shop".into()), ..Resource::default() })
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// Learns that a trace of the shop is of this agent; returns whether that is news.
    fn learn(names: &mut Names, agent: &AgentKey, now: Timestamp) -> bool {
        let resource = shop();
        let news: Vec<_> = names.news([(&resource, 1); 2].into_iter(), agent, now).collect();
        let told = news.len();
        news.into_iter().for_each(|(source, agents)| names.learn(source).join(agents));
        assert!(told <= 1, "a source is told once");
        told > 0
    }

    #[test]
    fn an_agent_is_presumed_as_long_as_it_is_the_only_one() {
        let (resource, hour) = (shop(), |hour: u64| at(hour * 3_600));
        let mut names = Names::new(10);
        let only = |names: &Names, then| {
            names.only(&resource, 1, hour(then)).map(|agent| agent.agent_name.clone())
        };
        assert!(names.knows_none(&resource, 1));
        learn(&mut names, &agent("one", ""), hour(0));
        assert_eq!(only(&names, 1).as_deref(), Some("one"));
        assert!(names.knows_none(&resource, 2));
        learn(&mut names, &agent("two", ""), hour(10));
        assert_eq!(only(&names, 11), None);
        assert_eq!(only(&names, 25).as_deref(), Some("two"));
        learn(&mut names, &agent("three", ""), hour(26));
        learn(&mut names, &agent("three", ""), hour(36));
        assert_eq!(only(&names, 35).as_deref(), Some("three"));
    }

    #[test]
    fn a_busy_source_is_seldom_news() {
        let mut names = Names::new(10);
        let mut told = |agents: &[AgentKey], from: u64| {
            let mut told = 0;
            for second in from..from + 3_600 {
                for agent in agents {
                    told += u32::from(learn(&mut names, agent, at(second)));
                }
            }
            told
        };
        assert_eq!(told(&[agent("one", "1")], 0), 1);
        assert_eq!(told(&[agent("one", "1")], 3_600), 1);
        // Two versions at once: which of them it is changes each minute at most.
        assert!(told(&[agent("one", "1"), agent("one", "2")], 7_200) <= 61);
        let many: Vec<_> = (0..9).map(|name| agent(&format!("agent {name}"), "")).collect();
        assert!(told(&many, 20_000) <= 2);
        assert_eq!(told(&[agent("one", "3")], 200_000), 1);
    }

    #[test]
    fn a_busy_source_stays_known_in_a_flood_of_others() {
        let mut names = Names::new(10);
        let (mut told, mut unknown) = (0, 0);
        for other in 0..1_000 {
            told += u32::from(learn(&mut names, &agent("one", ""), at(other)));
            assert!(!names.knows_none(&shop(), 1));
            names.learn((0, other)).join(Agents(vec![(agent("x", ""), at(other))]));
            unknown += u32::from(names.knows_none(&shop(), 1));
        }
        assert!(told < 300 && unknown < 2, "told {told} times, unknown {unknown} times");
        assert!(names.take_forgotten() > 980);
    }

    proptest! {
        #[test]
        fn the_order_in_which_agents_are_learned_makes_no_difference(
            (some, shuffled) in prop::collection::vec((0_u8..4, 0_u8..3, 0_u64..6), 0..24)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
            split in 0_usize..24,
        ) {
            let join = |named: &[(u8, u8, u64)]| {
                let mut agents = Agents::default();
                for (name, version, seconds) in named {
                    let agent = agent(&name.to_string(), &version.to_string());
                    agents.join(Agents(vec![(agent, at(*seconds))]));
                }
                agents
            };
            let (first, second) = shuffled.split_at(split.min(shuffled.len()));
            let mut parts = join(first);
            parts.join(join(second));
            prop_assert_eq!(parts, join(&some));
        }
    }
}
