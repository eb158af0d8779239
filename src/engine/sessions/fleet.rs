//! All agents of a shard: bounded, first come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::key::Agent;
use super::pane;
use super::summary::Summary;
use crate::engine::options::AgentOptions;
use crate::engine::span::Timestamp;
use crate::engine::update::{AgentKey, SessionUpdate};

/// The agents by name, and which of them changed.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    agents: BTreeMap<Agent, Summary>,
    dirty: BTreeSet<Agent>,
    gone: BTreeSet<Agent>,
    // The agent that was asked for last, if it is still among the dirty and not among the gone.
    current: Option<Agent>,
    overflow: Agent,
    widths: Arc<[u64]>,
    /// How long an agent of which nothing is held is remembered.
    remember: Duration,
    shard: u32,
    // One sequence for all agents: an agent that comes back goes on above its tombstone.
    revision: u64,
    options: AgentOptions,
}

/// The agents as they are written down.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Saved<A> {
    // Pairs, since the order of the map is the reader's.
    agents: Vec<(Agent, A)>,
    revision: u64,
}

impl Fleet {
    /// No agents yet; one is forgotten when it was quiet for `idle` and the longest window.
    pub(super) fn new(shard: u32, options: AgentOptions, idle: Duration) -> Self {
        let longest = options.windows.iter().max().copied().unwrap_or_default();
        Self {
            agents: BTreeMap::new(),
            dirty: BTreeSet::new(),
            gone: BTreeSet::new(),
            current: None,
            overflow: Agent::overflow(),
            widths: pane::widths(&options.windows),
            remember: idle.saturating_add(longest),
            shard,
            revision: 0,
            options,
        }
    }

    /// What outlives the process.
    pub(super) fn save(&self) -> Saved<&Summary> {
        let agents = self.agents.iter().map(|(agent, summary)| (agent.clone(), summary));
        Saved { agents: agents.collect(), revision: self.revision }
    }

    /// Takes over what an earlier process held; everything counts as changed.
    pub(super) fn restore(&mut self, saved: Saved<Summary>) {
        self.revision = saved.revision;
        for (agent, held) in saved.agents {
            self.summary(&agent).restore(held);
        }
    }

    /// The agent that something with this key counts towards, and whether that is
    /// `__overflow__` for want of room.
    pub(super) fn resolve(&self, key: AgentKey) -> (Agent, bool) {
        let agent = Agent::from(key);
        if let Some((known, _)) = self.agents.get_key_value(&agent) {
            return (known.clone(), false);
        }
        let others = self.agents.len() - usize::from(self.agents.contains_key(&self.overflow));
        if others < self.options.max_agents {
            (agent, false)
        } else {
            (self.overflow.clone(), true)
        }
    }

    /// An agent's summary, which then counts as changed.
    pub(super) fn summary(&mut self, agent: &Agent) -> &mut Summary {
        if !self.current.as_ref().is_some_and(|current| current.is(agent)) {
            self.dirty.insert(agent.clone());
            self.gone.remove(agent);
            self.current = Some(agent.clone());
        }
        self.agents.entry(agent.clone()).or_insert_with(|| {
            let AgentOptions { last_traces, max_signals_per_agent, .. } = self.options;
            Summary::new(Arc::clone(&self.widths), last_traces, max_signals_per_agent)
        })
    }

    /// How many agents are known.
    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    /// Counts from zero again; every agent counts as changed.
    pub(super) fn restart_counts(&mut self) {
        self.agents.values_mut().for_each(Summary::restart_counts);
        self.dirty.extend(self.agents.keys().cloned());
    }

    /// When panes or agents may have to go next.
    pub(super) fn poll_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        let width = self.widths.first().copied().unwrap_or(NO_WINDOWS);
        let edge = (now.0 / width).saturating_add(1).saturating_mul(width);
        (!self.agents.is_empty()).then_some(Timestamp(edge))
    }

    /// Lets old panes go, and agents that nothing was heard of for long.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        self.current = None;
        for (agent, summary) in &mut self.agents {
            summary.expire(now);
            if summary.held == 0 && summary.active.after(self.remember) <= now {
                self.gone.insert(agent.clone());
            }
        }
        for agent in &self.gone {
            self.dirty.insert(agent.clone());
        }
    }

    /// One message for each agent that changed, in the order of their names.
    pub(super) fn drain(&mut self) -> Vec<SessionUpdate> {
        self.current = None;
        let dirty = std::mem::take(&mut self.dirty);
        dirty.iter().filter_map(|agent| self.message(agent)).collect()
    }

    fn message(&mut self, agent: &Agent) -> Option<SessionUpdate> {
        let summary = self.agents.get_mut(agent)?;
        let gone = self.gone.remove(agent) || summary.is_void();
        let announced = std::mem::replace(&mut summary.announced, true);
        let update = if gone { SessionUpdate::default() } else { summary.drain() };
        if gone {
            self.agents.remove(agent);
        }
        if gone && !announced {
            return None;
        }
        self.revision += 1;
        Some(SessionUpdate {
            agent: Some(agent.key().clone()),
            shard: self.shard,
            revision: self.revision,
            tombstone: gone,
            ..update
        })
    }
}

/// Nanoseconds between two looks at the agents if there are no windows.
const NO_WINDOWS: u64 = 60_000_000_000;
