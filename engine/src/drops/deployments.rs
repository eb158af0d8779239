//! Reported deployments: when a version of an agent was rolled out, and whether its level is declared to be the usual one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::facts::{AgentKey, AgentParts};
use crate::span::{Report, Timestamp};
use crate::tenants::{Shares, TenantHash, tenant_hash};

/// The name of a report of a deployment.
pub const DEPLOYMENT: &str = "deployment";

/// One deployment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Deployment {
    /// The agents: an empty field, except the tenant, matches any. The version is the one that was rolled out; empty: not reported.
    pub(super) agents: AgentKey,
    /// What distinguishes it from other deployments of these agents; empty: its time does.
    id: Arc<str>,
    /// Its name; `None`: not reported.
    pub(super) name: Option<Arc<str>>,
    /// When it was, by wall time.
    pub(super) at: Timestamp,
    /// Whether it accepts whatever level it brings as the usual one.
    pub(super) is_accepted: bool,
}

/// The deployments that were reported last, in the order of their reports.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Deployments(Vec<Deployment>);

impl Deployment {
    /// The deployment in a report that arrived at this wall time; its time is at most that.
    pub(crate) fn of(agents: &AgentKey, report: &Report, wall: Timestamp) -> Self {
        let told = Some(report.time).filter(|time| time.0 > 0);
        Self {
            agents: agents.clone(),
            id: Arc::clone(&report.identifier),
            name: report.label.clone(),
            at: told.unwrap_or(wall).min(wall),
            is_accepted: report.score.0 > 0,
        }
    }

    /// Whether it is of this agent, in any version.
    pub(super) fn is_of(&self, agent: &AgentKey) -> bool {
        let AgentParts { tenant, service_name, agent_name, environment, .. } = &*self.agents;
        let is = |wanted: &Arc<str>, name: &Arc<str>| wanted.is_empty() || wanted == name;
        *tenant == agent.tenant
            && is(service_name, &agent.service_name)
            && is(agent_name, &agent.agent_name)
            && is(environment, &agent.environment)
    }

    /// Whether it rolled out this version of the agent, or does not state the version.
    pub(super) fn is_of_version(&self, agent: &AgentKey) -> bool {
        let version = &self.agents.agent_version;
        self.is_of(agent) && (version.is_empty() || *version == agent.agent_version)
    }

    fn tenant(&self) -> TenantHash {
        tenant_hash(Some(&self.agents.tenant))
    }

    fn is_the_same_as(&self, other: &Self) -> bool {
        self.agents == other.agents
            && self.id == other.id
            && (!self.id.is_empty() || self.at == other.at)
    }
}

impl Deployments {
    /// Remembers a deployment, unless it is known; at the bound, the tenant that holds the most relative to its share loses its
    /// oldest one. Returns whether the deployment is new, and whether one was lost.
    pub(super) fn insert(
        &mut self,
        deployment: Deployment,
        max: usize,
        shares: &Shares,
    ) -> (bool, bool) {
        if self.0.iter().any(|known| known.is_the_same_as(&deployment)) {
            return (false, false);
        }
        self.0.push(deployment);
        let over = self.0.len() > max.max(1);
        if over {
            let mut held: BTreeMap<TenantHash, usize> = BTreeMap::new();
            self.0.iter().for_each(|known| *held.entry(known.tenant()).or_default() += 1);
            let goes = shares.most_over_share(held.into_iter());
            let oldest = self.0.iter().position(|known| Some(known.tenant()) == goes);
            oldest.into_iter().for_each(|oldest| drop(self.0.remove(oldest)));
        }
        (true, over)
    }

    /// The deployments of an agent, of any version, the newest first.
    pub(super) fn of(&self, agent: &AgentKey) -> Vec<&Deployment> {
        let mut own: Vec<_> = self.0.iter().filter(|known| known.is_of(agent)).collect();
        own.sort_by_key(|known| std::cmp::Reverse(known.at));
        own
    }

    /// Whether a deployment that names this version accepts whatever level it brings.
    pub(super) fn accept(&self, agent: &AgentKey) -> bool {
        self.0.iter().any(|known| {
            known.is_accepted
                && !known.agents.agent_version.is_empty()
                && known.is_of_version(agent)
        })
    }
}
