//! All agents of a shard: the first `max_agents` to arrive. An agent without any trace that is certain to be its own takes no slot
//! from one that has such a trace: its traces may turn out to be another agent's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};

use super::pane::{self, Widths};
use super::summary::Summary;
use crate::facts::{AgentKey, SessionFacts};
use crate::limits::Cause;
use crate::options::AgentOptions;
use crate::span::Timestamp;
use crate::tenants::{Shares, TenantCounts, TenantHash, tenant_hash};
use crate::time::Moment;

/// The agents of a shard, and which of them changed since they were last sent.
#[derive(Clone, Debug)]
pub(super) struct ShardAgents {
    // In no particular order.
    agents: Vec<(AgentKey, Summary)>,
    // Invariant: has the index of each agent in `agents`.
    places: HashTable<usize>,
    // Invariant: the number of agents of each tenant, without `__overflow__`: those with a trace that is certain to be theirs, and
    // the others.
    certain: TenantCounts,
    uncertain: TenantCounts,
    shares: Shares,
    dirty: BTreeSet<AgentKey>,
    // Agents with a session that began to run away since they were last sent.
    urgent: BTreeSet<AgentKey>,
    gone: BTreeSet<AgentKey>,
    // The last agent looked up and its index, as long as it is dirty and not gone.
    current: Option<(AgentKey, usize)>,
    overflow: AgentKey,
    widths: Widths,
    // The wall time until which no pane leaves its window.
    edge: Timestamp,
    /// How long an agent without traces is remembered, normally and when there is no room for other agents.
    remember: Duration,
    remember_in_need: Duration,
    shard: u32,
    // One sequence for all agents, so that an agent that returns has a higher revision than its tombstone.
    revision: u64,
    options: AgentOptions,
}

/// The agents in a snapshot.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Saved<A> {
    // Pairs: the reader sorts them.
    agents: Vec<(AgentKey, A)>,
    revision: u64,
}

impl ShardAgents {
    /// No agents yet. An agent is forgotten after being quiet for `agents.memory` or, if there is no room for others, for `idle`
    /// and the longest window.
    pub(super) fn new(shard: u32, options: AgentOptions, idle: Duration) -> Self {
        let longest = options.windows.iter().max().copied().unwrap_or_default();
        Self {
            agents: Vec::new(),
            places: HashTable::new(),
            certain: TenantCounts::default(),
            uncertain: TenantCounts::default(),
            shares: Shares::default(),
            dirty: BTreeSet::new(),
            urgent: BTreeSet::new(),
            gone: BTreeSet::new(),
            current: None,
            overflow: AgentKey::overflow(),
            widths: pane::widths(&options.windows),
            edge: Timestamp::default(),
            remember: options.memory.max(idle.saturating_add(longest)),
            remember_in_need: idle.saturating_add(longest),
            shard,
            revision: 0,
            options,
        }
    }

    /// Sets the shares by which tenants divide `max_agents`.
    pub(super) fn shared_by(&mut self, shares: Shares) {
        self.shares = shares;
    }

    /// Widths of panes.
    pub(super) fn widths(&self) -> Widths {
        Arc::clone(&self.widths)
    }

    /// The agents for a snapshot.
    pub(super) fn save(&self) -> Saved<&Summary> {
        let agents = self.agents.iter().map(|(agent, summary)| (agent.clone(), summary));
        let mut agents: Vec<_> = agents.collect();
        agents.sort_by(|(a, _), (b, _)| a.cmp(b));
        Saved { agents, revision: self.revision }
    }

    /// Takes over the agents from a snapshot; all count as changed.
    pub(super) fn restore(&mut self, saved: Saved<Summary>) {
        self.revision = saved.revision;
        for (agent, held) in saved.agents {
            let is_certain = !held.uncertain;
            self.summary(&agent).restore(held);
            if is_certain {
                self.mark_certain(&agent);
            }
        }
    }

    /// The agent under which a trace with this key counts and, if that is `__overflow__`, why.
    pub(super) fn resolve(
        &self,
        key: &AgentKey,
        is_certain: bool,
    ) -> (AgentKey, Option<&'static str>) {
        let known = self.held(key).filter(|(_, summary)| !is_certain || !summary.uncertain);
        if let Some((known, _)) = known {
            return (known.clone(), None);
        }
        let counts = self.counts(!is_certain);
        if counts.all() >= self.options.max_agents {
            (self.overflow.clone(), Some("agent_overflow"))
        } else if counts.is_at_quota(tenant_of(key), &self.shares, self.options.max_agents) {
            (self.overflow.clone(), Some("tenant_overflow"))
        } else {
            (self.known(key), None)
        }
    }

    /// The agent of this key, shared with everything that refers to it.
    pub(super) fn known(&self, key: &AgentKey) -> AgentKey {
        let known = self.held(key).map(|(known, _)| known.clone());
        known.unwrap_or_else(|| key.clone())
    }

    /// Whether this agent is known.
    pub(super) fn has(&self, key: &AgentKey) -> bool {
        self.place(key).is_some()
    }

    fn held(&self, key: &AgentKey) -> Option<&(AgentKey, Summary)> {
        self.place(key).map(|place| &self.agents[place])
    }

    fn place(&self, agent: &AgentKey) -> Option<usize> {
        self.places.find(agent.hash(), |place| self.agents[*place].0 == *agent).copied()
    }

    /// Adds an agent's index to the lookup table.
    fn index(&mut self, place: usize) {
        let Self { places, agents, .. } = self;
        let hash = |place: &usize| agents[*place].0.hash();
        places.insert_unique(hash(&place), place, hash);
    }

    /// Removes an agent's index from the lookup table.
    fn unindex(&mut self, place: usize) {
        let hash = self.agents[place].0.hash();
        if let Ok(found) = self.places.find_entry(hash, |other| *other == place) {
            found.remove();
        }
    }

    fn counts(&self, uncertain: bool) -> &TenantCounts {
        if uncertain { &self.uncertain } else { &self.certain }
    }

    /// Counts one more trace of an agent.
    pub(super) fn hold(&mut self, agent: &AgentKey, is_certain: bool) -> &mut Summary {
        if is_certain && self.summary(agent).uncertain {
            self.mark_certain(agent);
        }
        let summary = self.summary(agent);
        summary.held += 1;
        summary
    }

    /// Notes that a trace is certain to be this agent's.
    fn mark_certain(&mut self, agent: &AgentKey) {
        self.summary(agent).uncertain = false;
        if *agent != self.overflow {
            self.uncertain.remove(tenant_of(agent));
            self.certain.add(tenant_of(agent));
        }
    }

    /// An agent's summary, which then counts as changed.
    pub(super) fn summary(&mut self, agent: &AgentKey) -> &mut Summary {
        let place = match &self.current {
            Some((current, place)) if current.is(agent) => *place,
            Some(_) | None => self.turn_to(agent),
        };
        &mut self.agents[place].1
    }

    fn turn_to(&mut self, agent: &AgentKey) -> usize {
        let place = self.place(agent).unwrap_or_else(|| {
            let summary = Summary::new(Arc::clone(&self.widths), &self.options);
            if *agent != self.overflow {
                self.uncertain.add(tenant_of(agent));
            }
            self.agents.push((agent.clone(), summary));
            self.index(self.agents.len() - 1);
            self.agents.len() - 1
        });
        if !std::mem::replace(&mut self.agents[place].1.changed, true) {
            self.dirty.insert(agent.clone());
        }
        self.gone.remove(agent);
        self.current = Some((agent.clone(), place));
        place
    }

    /// How many agents are known.
    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    /// Restarts all counters from zero; every agent counts as changed.
    pub(super) fn restart_counts(&mut self) {
        for (agent, summary) in &mut self.agents {
            summary.restart_counts();
            self.dirty.insert(agent.clone());
        }
    }

    /// Marks every agent as changed, with all of its panes.
    pub(super) fn tell_all(&mut self) {
        for (agent, summary) in &mut self.agents {
            summary.tell_all();
            self.dirty.insert(agent.clone());
        }
    }

    /// The wall time at which the next pane or agent may have to be removed.
    pub(super) fn poll_timeout(&self, wall: Timestamp) -> Option<Timestamp> {
        (!self.agents.is_empty()).then(|| self.edge_after(wall))
    }

    fn edge_after(&self, wall: Timestamp) -> Timestamp {
        let width = self.widths.first().copied().unwrap_or(NO_WINDOWS);
        Timestamp((wall.0 / width).saturating_add(1).saturating_mul(width))
    }

    /// Removes panes that are in no window any more after the wall clock was set.
    pub(super) fn stepped(&mut self, moment: Moment, is_back: bool) {
        let agents: Vec<AgentKey> = self.agents.iter().map(|(agent, _)| agent.clone()).collect();
        for agent in agents.iter().filter(|_| is_back) {
            self.summary(agent).forget_ahead(moment.wall);
        }
        self.agents.iter_mut().for_each(|(_, summary)| summary.stepped());
        self.edge = Timestamp::default();
        self.handle_timeout(moment);
    }

    /// Removes panes that are in no window, and agents that were quiet for long; returns how many agents were removed early, to
    /// make room.
    pub(super) fn handle_timeout(&mut self, Moment { now, wall }: Moment) -> usize {
        if wall < self.edge {
            return 0;
        }
        self.edge = self.edge_after(wall);
        self.current = None;
        for (agent, summary) in &mut self.agents {
            summary.expire(wall);
            if summary.held == 0 && summary.active.after(self.remember) <= now {
                self.gone.insert(agent.clone());
            }
        }
        let making_room = self.make_room(now);
        for agent in &self.gone {
            self.dirty.insert(agent.clone());
        }
        making_room
    }

    /// If there is no room for another agent, removes a few of the quietest ones; returns how many.
    fn make_room(&mut self, now: Timestamp) -> usize {
        let max = self.options.max_agents;
        if [false, true].into_iter().all(|uncertain| {
            let counts = self.counts(uncertain);
            counts.all() < max && !counts.is_any_at_quota(&self.shares, max)
        }) {
            return 0;
        }
        let mut staying = [self.certain.all(), self.uncertain.all()];
        for place in self.gone.iter().filter_map(|agent| self.place(agent)) {
            if let Some((agent, summary)) = self.agents.get(place)
                && *agent != self.overflow
            {
                staying[usize::from(summary.uncertain)] -= 1;
            }
        }
        let in_need = |agent: &AgentKey, uncertain: bool| {
            staying[usize::from(uncertain)] >= max
                || self.counts(uncertain).is_at_quota(tenant_of(agent), &self.shares, max)
        };
        let is_quiet = |summary: &Summary| {
            summary.held == 0 && summary.active.after(self.remember_in_need) <= now
        };
        let quiet = self.agents.iter().filter(|(agent, summary)| {
            is_quiet(summary)
                && *agent != self.overflow
                && !self.gone.contains(agent)
                && in_need(agent, summary.uncertain)
        });
        let mut quiet: Vec<(Timestamp, &AgentKey)> =
            quiet.map(|(agent, summary)| (summary.active, agent)).collect();
        quiet.sort_unstable();
        quiet.truncate((max / 16).max(1));
        let quiet: Vec<AgentKey> = quiet.into_iter().map(|(_, agent)| agent.clone()).collect();
        let count = quiet.len();
        self.gone.extend(quiet);
        count
    }

    /// One update for each agent that changed, in the order of their names, at most `most`.
    pub(super) fn drain(&mut self, most: usize) -> Vec<SessionFacts> {
        self.current = None;
        let mut updates = Vec::with_capacity(self.dirty.len().min(most));
        while updates.len() < most
            && let Some(agent) = self.dirty.pop_first()
        {
            self.urgent.remove(&agent);
            updates.extend(self.message(&agent));
        }
        updates
    }

    /// The same for agents with a session that began to run away.
    pub(super) fn drain_urgent(&mut self, most: usize) -> Vec<SessionFacts> {
        self.current = None;
        let mut updates = Vec::new();
        while updates.len() < most
            && let Some(agent) = self.urgent.pop_first()
        {
            self.dirty.remove(&agent);
            updates.extend(self.message(&agent));
        }
        updates
    }

    /// Whether a session began to run away since its agent was last sent.
    pub(super) fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Replaces the agents and causes under which a session runs away.
    pub(super) fn update_runaways(
        &mut self,
        before: &BTreeSet<(AgentKey, Cause)>,
        after: &BTreeSet<(AgentKey, Cause)>,
    ) {
        for (agent, cause) in before.difference(after) {
            self.summary(agent).remove_runaway(*cause);
        }
        for (agent, cause) in after.difference(before) {
            self.summary(agent).add_runaway(*cause);
            self.urgent.insert(agent.clone());
        }
        let (before, after) = (looping(before), looping(after));
        before.difference(&after).for_each(|agent| self.summary(agent).looping -= 1);
        after.difference(&before).for_each(|agent| self.summary(agent).looping += 1);
    }

    fn message(&mut self, agent: &AgentKey) -> Option<SessionFacts> {
        let place = self.place(agent)?;
        let (_, summary) = self.agents.get_mut(place)?;
        summary.changed = false;
        let gone = self.gone.remove(agent) || summary.is_void();
        let uncertain = summary.uncertain;
        let announced = std::mem::replace(&mut summary.announced, true);
        let mut update = if gone { SessionFacts::default() } else { summary.drain() };
        if gone {
            let last = self.agents.len() - 1;
            self.unindex(place);
            if last > place {
                self.unindex(last);
            }
            self.agents.swap_remove(place);
            if *agent != self.overflow {
                let counts = if uncertain { &mut self.uncertain } else { &mut self.certain };
                counts.remove(tenant_of(agent));
            }
            if last > place {
                self.index(place);
            }
        }
        if gone && !announced {
            return None;
        }
        self.revision += 1;
        (update.agent, update.shard) = (Some(agent.clone()), self.shard);
        (update.revision, update.tombstone, update.uncertain) = (self.revision, gone, uncertain);
        Some(update)
    }
}

/// The agents under which a session loops.
fn looping(runaways: &BTreeSet<(AgentKey, Cause)>) -> BTreeSet<&AgentKey> {
    let loops = |cause: Cause| cause.weighs() && cause.as_loop().is_some();
    runaways.iter().filter(|(_, cause)| loops(*cause)).map(|(agent, _)| agent).collect()
}

fn tenant_of(agent: &AgentKey) -> TenantHash {
    tenant_hash(Some(&agent.tenant))
}

/// How often agents are checked if there are no windows, in nanoseconds.
const NO_WINDOWS: u64 = 60_000_000_000;
