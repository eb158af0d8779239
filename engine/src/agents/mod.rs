//! Stage 3: merges the reports of all shards about each agent into one set of numbers.
//!
//! For each agent, every shard of the session stage sends full replacements of the panes that changed; this stage keeps the newest
//! version of each pane and the sum over shards. Sums are integers, so the numbers have the same bits for any number of shards.

mod agent;
mod memory_bounds;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::agent::Agent;
use crate::agent_facts::AgentFacts;
use crate::count::Counts;
use crate::drops::{DEPLOYMENT, Deployment, Drops, SavedDrops, Stream};
use crate::facts::{AgentKey, DoneTrace, SessionFacts, Silences};
use crate::pipeline::EngineOptions;
use crate::run_scores::{self, AgentRuns, SavedAgentRuns};
use crate::runs::tells_outcome;
use crate::small_map::SmallMap;
use crate::span::{Report, RunTarget, Target, Timestamp};
use crate::tenants::tenant_hash;
use crate::time::WallShift;
use crate::view::AgentView;
use crate::window::{last_traces, pane_width, window_begin, window_name};

/// The name of a report that declares an agent's present level to be the usual one. Its label names a stream; without one: all.
pub const BASELINE: &str = "baseline";

/// The stage: all agents.
#[derive(Debug)]
pub struct Agents {
    options: Arc<EngineOptions>,
    // By name.
    windows: Vec<(Arc<str>, Duration)>,
    // Names of the window over everything and of the one over the last traces.
    all: Arc<str>,
    last: Arc<str>,
    drops: Drops,
    agents: BTreeMap<AgentKey, Agent>,
    // Agents with series of their own, in order of arrival; at most `max_agents`.
    exported: BTreeSet<AgentKey>,
    // Exported agents without anything that is certain to be theirs: they make way for others.
    uncertain: BTreeSet<AgentKey>,
    // Agents that lost their series to others since the last call of `drain`.
    displaced: BTreeSet<AgentKey>,
    dirty: BTreeSet<AgentKey>,
    // The sum over the runs of all agents.
    run_bytes: usize,
    // Dirty agents for which more sessions run away than in their last update.
    urgent: BTreeSet<AgentKey>,
    // Whether an agent without series of its own has changed.
    overflowed: bool,
    now: Timestamp,
    // How far wall time is ahead of `now`.
    shift: WallShift,
    // Wall time until which no pane expires.
    edge: Timestamp,
    counts: Counts,
}

/// The stage in a snapshot. What the shards sent is left out, as they send it again.
#[derive(Debug, Deserialize, Serialize)]
struct Saved<A, D> {
    exported: Vec<AgentKey>,
    agents: Vec<(AgentKey, A)>,
    // Follows from messages about single traces that are sent only once.
    drops: D,
    now: Timestamp,
}

/// The part of an agent's state that no shard can send again.
#[derive(Debug, Deserialize, Serialize)]
struct SavedAgent<R> {
    runs: Option<R>,
}

/// The stage, read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedAgents(Saved<SavedAgent<SavedAgentRuns>, SavedDrops>);

impl Agents {
    /// An empty stage.
    pub fn new(options: Arc<EngineOptions>) -> Self {
        let EngineOptions { agents, drops, shares, .. } = &*options;
        let named = |window: &Duration| (window_name(*window).into(), *window);
        Self {
            windows: agents.windows.iter().map(named).collect(),
            all: run_scores::ALL.into(),
            last: format!("last_{}", agents.last_traces).into(),
            drops: Drops::new(drops.clone(), agents.max_agents).shared_by(shares.clone()),
            options,
            agents: BTreeMap::new(),
            exported: BTreeSet::new(),
            uncertain: BTreeSet::new(),
            displaced: BTreeSet::new(),
            dirty: BTreeSet::new(),
            run_bytes: 0,
            urgent: BTreeSet::new(),
            overflowed: false,
            now: Timestamp::default(),
            shift: WallShift::default(),
            edge: Timestamp::default(),
            counts: Counts::default(),
        }
    }

    /// Applies an update of an agent by a shard, unless a newer one by that shard was applied.
    pub fn handle(&mut self, mut update: SessionFacts, now: Timestamp) {
        self.now = self.now.max(now);
        let wall = self.wall();
        let key = update.agent.take().unwrap_or_default();
        let agent = match self.agents.get_mut(&key) {
            Some(agent) => agent,
            None => self.agents.entry(key.clone()).or_default(),
        };
        let shard = agent.shards.entry(update.shard).or_default();
        if update.revision < shard.revision {
            self.counts.add("session_updates", "stale");
            return;
        }
        if !update.run_traces.is_empty() {
            let runs = agent.runs.get_or_insert_with(|| Box::new(new_runs(&self.options)));
            let before = runs.bytes();
            for trace in std::mem::take(&mut update.run_traces) {
                runs.trace(trace, self.shift.moment(now), &mut self.counts);
            }
            self.run_bytes = self.run_bytes - before + runs.bytes();
        }
        let mut done = std::mem::take(&mut update.done_traces);
        if let Some(runs) = &mut agent.runs {
            done.retain_mut(|trace| runs.keep_what_counts(trace));
        }
        let (mut has_learned, mut is_urgent) = (false, false);
        if update.tombstone {
            agent.forget(update.shard);
        } else {
            let shard = agent.shards.entry(update.shard).or_default();
            shard.revision = update.revision;
            let panes = std::mem::take(&mut update.panes);
            let (number, revision) = (update.shard, update.revision);
            if !update.panes_only {
                has_learned = !shard.rest.silences.has_counts_of(&update.silences);
                is_urgent = update.runs_further_away_than(&shard.rest);
                shard.rest = update;
            }
            panes.into_iter().for_each(|pane| agent.replace(number, revision, pane, wall));
        }
        let is_certain = agent.is_certain();
        if self.export(&key, is_certain) {
            self.drops.observe(&key, done, self.shift);
        } else {
            // An agent that shares its series with others has no usual level of its own.
            self.counts.add_many("drops", "overflow", done.len() as u64);
        }
        if has_learned {
            let unnamed = key.unnamed_of_service(&self.agents);
            let others = key.other_versions(&self.agents).chain(unnamed);
            let of_service = (key.agent_name == key.service_name)
                .then(|| key.others_of_service(&self.agents))
                .into_iter()
                .flatten();
            let learners = others.chain(of_service).filter(|(_, agent)| agent.is_silent());
            let learners: Vec<AgentKey> = learners.map(|(key, _)| key.clone()).collect();
            self.dirty.extend(learners);
        }
        if is_urgent {
            self.urgent.insert(key.clone());
        }
        self.dirty.insert(key);
        self.make_room_for_runs();
    }

    /// Makes drops count the traces that were received, in order of arrival, however they were batched.
    pub fn settle(&mut self) {
        let after = self.drops.settle(&self.options.drift, &mut self.counts);
        self.dirty.extend(after.into_iter().filter(|key| self.agents.contains_key(key)));
    }

    /// Drops what a shard sent under a lower revision: since then it has sent its whole state.
    pub fn began(&mut self, shard: u32, revision: u64) {
        for (key, agent) in &mut self.agents {
            if agent.began(shard, revision) {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Every agent in memory.
    pub fn keys(&self) -> impl Iterator<Item = &AgentKey> {
        self.agents.keys()
    }

    /// The stage for a snapshot; must be settled.
    pub fn save(&self) -> impl Serialize + '_ {
        let agents = self.agents.iter().map(|(key, agent)| {
            let runs = agent.runs.as_ref().map(|runs| runs.save());
            (key.clone(), SavedAgent { runs })
        });
        Saved {
            exported: self.exported.iter().cloned().collect(),
            agents: agents.collect(),
            drops: self.drops.save(),
            now: self.now,
        }
    }

    /// Takes over the agents from a snapshot; all of them count as changed. The shards must send the rest before the next
    /// [`Agents::drain`].
    pub fn restore(&mut self, saved: SavedAgents) {
        let Saved { exported, agents, drops, now } = saved.0;
        self.drops.restore(drops);
        self.now = self.now.max(now);
        self.exported.extend(exported.into_iter().take(self.options.agents.max_agents));
        for (key, SavedAgent { runs }) in agents {
            let agent = self.agents.entry(key.clone()).or_default();
            if let Some(runs) = runs {
                let mut held = new_runs(&self.options);
                held.restore(runs, self.shift.moment(self.now), &mut self.counts);
                self.run_bytes += held.bytes();
                agent.runs = Some(Box::new(held));
            }
            self.dirty.insert(key);
        }
        self.make_room_for_runs();
    }

    /// Applies a report about a run, whether or not the agent has traces, or about an agent.
    pub fn report(&mut self, report: Report, now: Timestamp) {
        self.now = self.now.max(now);
        match &report.target {
            Target::Run(target) => {
                let target = RunTarget::clone(target);
                self.report_run(&target, report, now);
            }
            Target::Agent(agents) if &*report.name == DEPLOYMENT => self.deploy(agents, &report),
            Target::Agent(agent) => self.accept(agent, &report),
            Target::Trace(_) | Target::Response { .. } | Target::Session { .. } => {
                self.counts.add("reports", "misdirected");
            }
        }
    }

    /// Accepts the present level of an agent as the usual one.
    fn accept(&mut self, agent: &AgentKey, report: &Report) {
        // Traces that arrived before the report count before it.
        self.settle();
        let stream = report.label.as_deref();
        if &*report.name != BASELINE || stream.is_some_and(|name| Stream::named(name).is_none()) {
            self.counts.add("reports", "misdirected");
        } else if self.drops.accept(agent, stream, self.now) {
            self.counts.add("reports", "applied");
            self.dirty.insert(agent.clone());
        } else {
            self.counts.add("reports", "nothing_to_accept");
        }
    }

    /// Remembers a deployment of these agents.
    fn deploy(&mut self, agents: &AgentKey, report: &Report) {
        // Traces that arrived before the report count before it.
        self.settle();
        let deployment = Deployment::of(agents, report, self.shift.wall(self.now));
        let is_new =
            self.drops.deploy(&deployment, self.now, &self.options.shares, &mut self.counts);
        self.counts.add("reports", if is_new { "applied" } else { "duplicate" });
        if is_new {
            let of_tenant =
                self.agents.range(AgentKey::first_of(&agents.tenant)..).map(|(key, _)| key);
            let of_tenant = of_tenant.take_while(|key| key.tenant == agents.tenant);
            self.dirty.extend(of_tenant.cloned());
        }
    }

    fn report_run(&mut self, target: &RunTarget, report: Report, now: Timestamp) {
        let key = target.agent.clone();
        let known = self.agents.contains_key(&key);
        let own = self.agents.range(AgentKey::first_of(&key.tenant)..).map(|(key, _)| key);
        if !known
            && (self.agents.len() >= self.options.agents.max_agents
                || self.is_at_quota(&key.tenant, own))
        {
            self.counts.add("reports", "agents_full");
            return;
        }
        let agent = self.agents.entry(key.clone()).or_default();
        let runs = agent.runs.get_or_insert_with(|| Box::new(new_runs(&self.options)));
        // Outcomes that arrive together count in the order of their runs, in whatever order they were sent.
        let start = runs.start(target).unwrap_or(report.time);
        let last = runs.last_trace(target);
        let (effort, session) = last.map(|trace| (trace.effort, trace.session.clone())).unzip();
        let outcome = tells_outcome(&report).then(|| DoneTrace {
            start_unix_nano: start.0,
            at_unix_nano: self.shift.wall(self.now).0,
            touched_unix_nano: self.now.0,
            outcome_failed: Some(!report.is_success()),
            effort,
            session: session.unwrap_or_default(),
            ..DoneTrace::default()
        });
        let before = runs.bytes();
        runs.report(target, report, self.shift.moment(now), &mut self.counts);
        self.run_bytes = self.run_bytes - before + runs.bytes();
        self.make_room_for_runs();
        // Only the first outcome of a run counts, as for a session, and only if the run is held with it: otherwise it would count
        // again each time it is sent.
        let outcome = outcome.filter(|_| {
            let runs = self.agents.get_mut(&key).and_then(|agent| agent.runs.as_mut());
            runs.is_some_and(|runs| runs.count_report(target))
        });
        if self.export(&key, true) {
            self.drops.observe(&key, outcome, self.shift);
        }
        self.dirty.insert(key);
    }

    /// Gives an agent series of its own while there is room; an agent with something certain to be its own may displace one
    /// without. Returns whether it has series of its own.
    fn export(&mut self, key: &AgentKey, is_certain: bool) -> bool {
        if !self.exported.contains(key) {
            let is_full = self.exported.len() >= self.options.agents.max_agents;
            let own = self.exported.range(AgentKey::first_of(&key.tenant)..);
            let is_at_quota = self.is_at_quota(&key.tenant, own);
            let has_room = !is_full && !is_at_quota;
            let gets_it = has_room || is_certain && self.displace(&key.tenant, !is_at_quota);
            if !gets_it {
                let label = if is_full { "agent" } else { "agent_of_tenant" };
                self.counts.add("label_values_limited", label);
                return false;
            }
            self.exported.insert(key.clone());
        }
        if is_certain {
            self.uncertain.remove(key);
        } else {
            self.uncertain.insert(key.clone());
        }
        true
    }

    /// Takes the series from the last agent that has nothing certain to be its own: one of this tenant, else, if `of_any`, one of
    /// any tenant. Returns whether there was one.
    fn displace(&mut self, tenant: &str, of_any: bool) -> bool {
        let of_tenant = self.uncertain.range(AgentKey::first_of(tenant)..);
        let of_tenant = of_tenant.take_while(|key| *key.tenant == *tenant).last();
        let last = of_tenant.or_else(|| self.uncertain.last().filter(|_| of_any)).cloned();
        let Some(last) = last else { return false };
        self.uncertain.remove(&last);
        self.exported.remove(&last);
        self.dirty.insert(last.clone());
        self.displaced.insert(last)
    }

    /// Whether a tenant has its quota of agents; `agents` begins with its own.
    fn is_at_quota<'a>(&self, tenant: &str, agents: impl Iterator<Item = &'a AgentKey>) -> bool {
        let quota =
            self.options.shares.quota(tenant_hash(Some(tenant)), self.options.agents.max_agents);
        agents.take_while(|key| *key.tenant == *tenant).nth(quota - 1).is_some()
    }

    /// The time of the next edge of a pane, while there is anything to expire.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let next = self.next_edge()?;
        let pane = self.agents.values().any(Agent::has_panes_or_runs).then_some(next);
        pane.map(|due| self.shift.time(due))
    }

    /// When the open pane of the narrowest window ends, by wall time.
    fn next_edge(&self) -> Option<Timestamp> {
        let width = self.options.agents.windows.iter().map(|window| pane_width(*window)).min()?;
        Some(Timestamp((self.wall().0 / width).saturating_add(1).saturating_mul(width)))
    }

    /// The least end of a trace in each window, by name.
    fn window_begins(&self) -> BTreeMap<Arc<str>, Timestamp> {
        let wall = self.wall();
        let windows = self.windows.iter();
        windows.map(|(name, window)| (Arc::clone(name), window_begin(*window, wall))).collect()
    }

    fn wall(&self) -> Timestamp {
        self.shift.wall(self.now)
    }

    /// Sets how far wall time is ahead of engine time, after the wall clock was set. No timer moves; what is then in no window is
    /// dropped.
    pub fn shift_to(&mut self, shift: WallShift) {
        let is_back = shift < self.shift;
        if shift == self.shift {
            return;
        }
        self.shift = shift;
        self.edge = Timestamp::default();
        let wall = self.wall();
        for (key, agent) in self.agents.iter_mut().filter(|_| is_back) {
            agent.runs.iter_mut().for_each(|runs| runs.expire_ahead(wall));
            self.dirty.insert(key.clone());
        }
        self.handle_timeout(self.now);
    }

    /// Drops the panes and runs that have expired.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        let wall = self.wall();
        if wall < self.edge {
            return;
        }
        self.edge = self.next_edge().unwrap_or_default();
        self.drops.forget_ahead(wall);
        for (key, agent) in &mut self.agents {
            let memory = self.options.agents.run_memory;
            if agent.shards.is_empty()
                && let Some(runs) = agent.runs.take_if(|runs| runs.is_idle(now, memory))
            {
                self.run_bytes -= runs.bytes();
                self.counts.add("runs", "idle");
                self.dirty.insert(key.clone());
            }
            let left = agent.runs.as_mut().is_some_and(|runs| runs.expire(wall));
            if agent.expire(wall) || left {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Takes the updates of the agents that have changed since the last call, in the order of their keys.
    pub fn drain(&mut self) -> Vec<AgentFacts> {
        self.drain_some(usize::MAX)
    }

    /// Takes the updates of at most `most` agents that have changed, and that of the shared series with the last of them; none once
    /// all were taken.
    pub fn drain_some(&mut self, most: usize) -> Vec<AgentFacts> {
        self.settle();
        let mut updates = Vec::with_capacity(self.dirty.len().min(most));
        while updates.len() < most
            && let Some(key) = self.dirty.pop_first()
        {
            self.urgent.remove(&key);
            updates.extend(self.take(key));
        }
        if self.dirty.is_empty() && std::mem::take(&mut self.overflowed) {
            let shared = AgentKey::overflow();
            let others = self
                .agents
                .iter()
                .filter(|(key, _)| **key == shared || !self.exported.contains(*key));
            let others: Vec<&Agent> = others.map(|(_, agent)| agent).collect();
            updates.push(self.update(shared, &others));
        }
        updates
    }

    /// Whether more sessions of an agent run away, which pages people.
    pub fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Takes the updates of at most `most` agents for which more sessions run away.
    pub fn drain_urgent(&mut self, most: usize) -> Vec<AgentFacts> {
        self.settle();
        let mut updates = Vec::new();
        while updates.len() < most
            && let Some(key) = self.urgent.pop_first()
        {
            self.dirty.remove(&key);
            updates.extend(self.take(key));
        }
        updates
    }

    /// The update of an agent that has series of its own, or had.
    fn take(&mut self, key: AgentKey) -> Option<AgentFacts> {
        let is_displaced = self.displaced.remove(&key);
        let is_exported = self.exported.contains(&key);
        let held = self.agents.get(&key).filter(|agent| !agent.is_empty());
        let Some(agent) = held.filter(|_| is_exported) else {
            if held.is_none() {
                self.agents.remove(&key);
                self.exported.remove(&key);
                self.uncertain.remove(&key);
            }
            self.overflowed |= !is_exported;
            return (is_exported || is_displaced).then(|| AgentFacts::gone(key));
        };
        let mut update = self.update(key.clone(), &[agent]);
        self.drops.look_at(&key, &mut update.view, &self.options.drift, self.shift);
        self.add_last_heard(&key, agent, &mut update.view);
        self.add_silences_of_versions(&key, &mut update);
        if agent.runs.is_some() {
            let begins = self.window_begins();
            let runs = self.agents.get_mut(&key).and_then(|agent| agent.runs.as_mut());
            if let Some(runs) = runs {
                update.add_runs(runs, &begins, self.options.judging.as_ref());
            }
        }
        Some(update)
    }

    /// Adds when an agent was last heard of, by wall time: open traces and those not certain to be its own are included, as they
    /// may count only long after. What is usual is extended by that delay.
    fn add_last_heard(&self, key: &AgentKey, agent: &Agent, view: &mut AgentView) {
        let Some(counted) = self.drops.last_trace(key) else { return };
        let heard =
            agent.shards.values().map(|shard| Timestamp(shard.rest.last_heard_unix_nano)).max();
        let last = heard.map_or(counted, |heard| heard.max(counted));
        view.last_trace_unix_nano = Some(self.shift.wall(last).0.to_string());
        let late = self.options.assemble.trace_idle.as_secs_f64();
        view.usual_gap_seconds = view.usual_gap_seconds.map(|gap| gap + late);
    }

    /// Adds to the silences of an agent what others show: from its other versions, how many traces are lost and, while it has too
    /// few traces of its own, what is usual. Traces get the name of their service if no span names their agent, and in many traces
    /// only the root does: so what is lost under the service's name counts for the other agents of the service.
    fn add_silences_of_versions(&self, key: &AgentKey, update: &mut AgentFacts) {
        let silences = &mut update.silences;
        if silences.open.is_empty() {
            return;
        }
        if key.agent_name.is_empty() {
            self.add_silences_of_service(key, silences);
        } else {
            let knows_enough = silences.knows_enough();
            for (_, agent) in key.other_versions(&self.agents) {
                if knows_enough {
                    agent.add_lost_to(silences);
                } else {
                    agent.add_done_silences_to(silences);
                }
            }
            if key.agent_name != key.service_name {
                let unnamed = key.with(|parts| parts.agent_name.clone_from(&parts.service_name));
                let itself = self.agents.get_key_value(&unnamed);
                let unnamed = itself.into_iter().chain(unnamed.other_versions(&self.agents));
                unnamed.for_each(|(_, agent)| agent.add_lost_to(silences));
            }
        }
        update.view.traces_stalled = silences.stalled();
    }

    /// For traces whose agent no span has named yet, adds what is usual from that agent of their service whose traces are usually
    /// silent for longest, and from all of its agents how many are lost.
    fn add_silences_of_service(&self, key: &AgentKey, silences: &mut Silences) {
        let mut by_name: BTreeMap<&str, Silences> = BTreeMap::new();
        for (other, agent) in key.others_of_service(&self.agents) {
            agent.add_done_silences_to(by_name.entry(&other.agent_name).or_default());
        }
        let longest = by_name.iter().max_by_key(|(_, silences)| silences.usual());
        let longest = longest.map(|(name, _)| *name).filter(|_| !silences.knows_enough());
        for (name, others) in &by_name {
            if longest == Some(name) {
                silences.learn_from(others);
            } else {
                silences.add_losses_of(others);
            }
        }
    }

    /// Counts of what could not be used, and of what exceeded a bound.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Restarts the counts from zero.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// The numbers of one agent, or of several that share their series.
    fn update(&self, key: AgentKey, agents: &[&Agent]) -> AgentFacts {
        // Usually there is one agent, whose windows are used directly.
        let window = |width: u64| {
            let held = agents.iter().filter_map(|agent| agent.windows.get(&width));
            let held = held.map(Cow::Borrowed).reduce(|mut sum, more| {
                sum.to_mut().merge(&more);
                sum
            });
            held.unwrap_or_default()
        };
        let all = window(0);
        let mut update = AgentFacts { agent: key, ..AgentFacts::default() };
        let most = self.windows.len() + 1;
        update.populations = SmallMap::with_capacity(most);
        update.populations.insert(Arc::clone(&self.all), all.population());
        let all = all.scores();
        let mut views = SmallMap::with_capacity(most);
        for (name, length) in &self.windows {
            let merged = window(pane_width(*length));
            update.populations.insert(Arc::clone(name), merged.population());
            views.insert(Arc::clone(name), merged.view());
        }
        let shards = agents.iter().flat_map(|agent| agent.shards.values());
        let shards = shards.map(|shard| &shard.rest);
        if self.options.agents.last_traces > 0 {
            let last = shards.clone().flat_map(|shard| shard.last.iter().rev());
            views
                .insert(Arc::clone(&self.last), last_traces(last, self.options.agents.last_traces));
        }
        shards.for_each(|shard| update.add(shard));
        update.view = update.describe(&all, views);
        update
    }
}

fn new_runs(options: &EngineOptions) -> AgentRuns {
    AgentRuns::new(&options.agents, &options.tasks, &options.ars)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::facts::{AgentParts, OVERFLOW};
    use crate::facts::{Level, PaneSum, RunTrace};
    use crate::limits::RunLimit;
    use crate::math::Quanta;
    use crate::options::AgentOptions;
    use crate::silences::tests::done;
    use crate::span::{Attempt, Source, TraceId};
    use crate::view::{DropView, WindowView};

    const MINUTE: u64 = 60_000_000_000;

    fn update(agent: &str, shard: u32, revision: u64, panes: Vec<PaneSum>) -> SessionFacts {
        SessionFacts {
            agent: Some(AgentParts { service_name: agent.into(), ..AgentParts::default() }.into()),
            shard,
            revision,
            panes,
            sessions_active: 1,
            ..SessionFacts::default()
        }
    }

    fn pane(index: u64, level: i32, count: u64) -> PaneSum {
        PaneSum {
            width_nanos: MINUTE,
            index,
            traces: count,
            risk_count: count,
            levels: [Level { level, count }].into_iter().collect(),
            ..PaneSum::default()
        }
    }

    fn hour(updates: &[AgentFacts]) -> &WindowView {
        &updates.last().unwrap().view.windows["1h"]
    }

    #[test]
    fn a_pane_replaces_itself_and_leaves_with_its_window() {
        let mut stage = Agents::new(Arc::default());
        let now = Timestamp(100 * MINUTE);
        stage.handle(update("a", 0, 1, vec![pane(100, 5_000, 1)]), now);
        assert_eq!(hour(&stage.drain()).reliability, Some(0.5));
        stage.handle(update("a", 0, 2, vec![pane(100, 1_000, 2)]), now);
        let updates = stage.drain();
        assert_eq!((hour(&updates).traces, hour(&updates).reliability), (2, Some(0.9)));
        stage.handle(update("a", 0, 1, vec![pane(100, 9_000, 9)]), now);
        assert_eq!(stage.counts().get("session_updates", "stale"), 1);
        stage.handle_timeout(Timestamp(160 * MINUTE));
        assert_eq!(stage.drain(), []);
        stage.handle_timeout(Timestamp(161 * MINUTE));
        assert_eq!(hour(&stage.drain()).reliability, None);
    }

    #[test]
    fn agents_over_the_bound_share_a_series_and_known_ones_keep_theirs() {
        let mut stage = Agents::new(Arc::new(EngineOptions {
            agents: AgentOptions { max_agents: 1, ..AgentOptions::default() },
            ..EngineOptions::default()
        }));
        let now = Timestamp(100 * MINUTE);
        for (agent, level) in [("known", 0), ("x", 1_000), ("y", 2_000)] {
            stage.handle(update(agent, 0, 1, vec![pane(100, level, 1)]), now);
        }
        let updates = stage.drain();
        let names: Vec<&str> = updates.iter().map(|update| &*update.agent.service_name).collect();
        assert_eq!(names, ["known", OVERFLOW]);
        assert_eq!((updates[1].view.windows["1h"].traces, updates[1].sessions_active), (2, 2));
    }

    #[test]
    fn an_agent_of_which_nothing_is_certain_makes_way() {
        let mut stage = Agents::new(Arc::new(EngineOptions {
            agents: AgentOptions { max_agents: 1, ..AgentOptions::default() },
            ..EngineOptions::default()
        }));
        let now = Timestamp(100 * MINUTE);
        let uncertain = |agent: &str| SessionFacts {
            uncertain: true,
            ..update(agent, 0, 1, vec![pane(100, 0, 1)])
        };
        let named = |updates: Vec<AgentFacts>| -> Vec<(String, bool)> {
            let named = |update: AgentFacts| (update.agent.service_name.to_string(), update.gone);
            updates.into_iter().map(named).collect()
        };
        let [seems, is, other, shared] =
            ["seems", "is", "other", OVERFLOW].map(|name| (name.to_owned(), false));
        stage.handle(uncertain("seems"), now);
        stage.handle(uncertain("other"), now);
        assert_eq!(named(stage.drain()), [seems.clone(), shared.clone()]);
        stage.handle(update("is", 0, 1, vec![pane(100, 0, 1)]), now);
        assert_eq!(named(stage.drain()), [is, (seems.0, true), shared.clone()]);
        // What is certain keeps its series.
        stage.handle(SessionFacts { uncertain: false, revision: 2, ..uncertain("other") }, now);
        assert_eq!(named(stage.drain()), [shared]);
        assert!(stage.counts().get("label_values_limited", "agent") > 0, "{other:?}");
    }

    #[test]
    fn an_agent_of_which_more_sessions_run_away_is_taken_before_others() {
        let over = |revision: u64, sessions: u64| SessionFacts {
            sessions_over_limit: BTreeMap::from([(RunLimit::TraceCost, sessions)]),
            ..update("z", 0, revision, vec![])
        };
        let named = |updates: Vec<AgentFacts>| -> Vec<String> {
            updates.into_iter().map(|update| update.agent.service_name.to_string()).collect()
        };
        let now = Timestamp(100 * MINUTE);
        let mut stage = Agents::new(Arc::default());
        stage.handle(update("a", 0, 1, vec![pane(100, 0, 1)]), now);
        stage.handle(over(1, 1), now);
        assert!(stage.is_urgent());
        assert_eq!(named(stage.drain_urgent(10)), ["z"]);
        assert!(!stage.is_urgent());
        assert_eq!(named(stage.drain()), ["a"]);
        for (revision, sessions, is_urgent) in [(2, 1, false), (3, 2, true), (4, 0, true)] {
            stage.handle(over(revision, sessions), now);
            assert_eq!(stage.is_urgent(), is_urgent, "{sessions}");
        }
        assert_eq!(named(stage.drain()), ["z"]);
        assert!(!stage.is_urgent());
    }

    /// One update of an agent of service `a` with so many done traces, one of which is silent.
    fn silent(name: &str, version: &str, traces: u64, ended: &[(u8, u64)]) -> SessionFacts {
        let update = update("a", 0, traces + 1, vec![]);
        let agent = update.agent.map(|agent| {
            agent.with(|parts| {
                (parts.agent_name, parts.agent_version) = (name.into(), version.into());
            })
        });
        let silences = Silences { open: [(2, 1)].into(), ..done(0, traces, ended) };
        SessionFacts { agent, silences, ..update }
    }

    /// How many traces of an agent stall, if it has an update: as counted, and as shown.
    fn stalled(stage: &mut Agents, name: &str, version: &str) -> Option<(u64, u64)> {
        let updates = stage.drain().into_iter();
        let mut of = updates.filter(|update| {
            (&*update.agent.agent_name, &*update.agent.agent_version) == (name, version)
        });
        of.next().map(|update| (update.silences.stalled(), update.view.traces_stalled))
    }

    #[test]
    fn a_new_version_is_as_silent_as_its_agent_usually_is() {
        let now = Timestamp(100 * MINUTE);
        let mut stage = Agents::new(Arc::default());
        stage.handle(silent("n", "2", 1, &[]), now);
        assert_eq!(stalled(&mut stage, "n", "2"), Some((1, 1)));
        // What an older version shows holds for the new one at once, and as long as it has few traces.
        stage.handle(silent("n", "1", 2_000, &[(2, 60)]), now);
        assert_eq!(stalled(&mut stage, "n", "2"), Some((0, 0)));
        stage.handle(silent("n", "2", 40, &[]), now);
        assert_eq!(stalled(&mut stage, "n", "2"), Some((0, 0)));
        // Its own traces show something else.
        stage.handle(silent("n", "2", 300, &[]), now);
        assert_eq!(stalled(&mut stage, "n", "2"), Some((1, 1)));
    }

    #[test]
    fn a_trace_that_no_span_has_named_the_agent_of_is_as_silent_as_any_agent_of_its_service() {
        let now = Timestamp(100 * MINUTE);
        let mut stage = Agents::new(Arc::default());
        stage.handle(silent("", "2", 0, &[]), now);
        assert_eq!(stalled(&mut stage, "", "2"), Some((1, 1)));
        // One in a thousand traces of the service, but one in ten of one agent.
        stage.handle(silent("quick", "1", 10_000, &[]), now);
        assert_eq!(stalled(&mut stage, "", "2"), Some((1, 1)));
        stage.handle(silent("slow", "1", 100, &[(2, 10)]), now);
        assert_eq!(stalled(&mut stage, "", "2"), Some((0, 0)));
        // No other agent is lent anything.
        stage.handle(silent("new", "2", 1, &[]), now);
        assert_eq!(stalled(&mut stage, "new", "2"), Some((1, 1)));
        // Nor another environment or service.
        let elsewhere = |change: fn(&mut AgentParts)| {
            let update = silent("", "2", 0, &[]);
            SessionFacts { agent: update.agent.map(|agent| agent.with(change)), ..update }
        };
        stage.handle(elsewhere(|parts| parts.environment = "test".into()), now);
        assert_eq!(stalled(&mut stage, "", "2"), Some((1, 1)));
        stage.handle(elsewhere(|parts| parts.service_name = "b".into()), now);
        assert_eq!(stalled(&mut stage, "", "2"), Some((1, 1)));
    }

    /// The streams of an agent after these scores of runs, each by name, run and time, were reported.
    fn streams_of(agents: AgentOptions, told: &[(&str, &str, u64)]) -> Vec<DropView> {
        let mut stage = Agents::new(Arc::new(EngineOptions { agents, ..EngineOptions::default() }));
        let now = Timestamp(100 * MINUTE);
        stage.handle(update("a", 0, 1, vec![pane(100, 0, 1)]), now);
        for (minutes, (name, run, time)) in (0..).zip(told) {
            stage.report(report_of(name, run, *time), Timestamp(now.0 + minutes * MINUTE));
        }
        stage.drain().pop().unwrap().view.drops
    }

    /// A score of 0 of a run of agent `a`.
    fn report_of(name: &str, run: &str, time: u64) -> Report {
        let target = RunTarget {
            agent: update("a", 0, 1, vec![]).agent.unwrap(),
            task: "t".into(),
            run: run.into(),
            perturbation: None,
        };
        Report {
            target: Target::Run(Box::new(target)),
            name: name.into(),
            score: Quanta(0),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: "ci".into(),
            judge: None,
            time: Timestamp(time),
            tenant: None,
        }
    }

    #[test]
    fn an_outcome_of_a_run_that_is_not_held_counts_nothing_however_often_it_is_sent() {
        let agents = AgentOptions { max_runs: 1, ..AgentOptions::default() };
        let (newer, older) = (("outcome", "r", 20), ("outcome", "q", 10));
        let one = streams_of(agents.clone(), &[newer]);
        assert!(one.iter().any(|stream| stream.stream == "outcome"), "{one:?}");
        assert_eq!(streams_of(agents.clone(), &[&[newer], &[older; 50][..]].concat()), one);
        // Fifty failures are a drop.
        let runs: Vec<String> = (0..50).map(|run| run.to_string()).collect();
        let each: Vec<_> = runs.iter().map(|run| ("outcome", &**run, 10)).collect();
        assert_ne!(streams_of(AgentOptions::default(), &each), one);
        // There is room for one report of each run.
        let agents = AgentOptions { max_traces_per_run: 1, ..agents };
        let full = ("helpfulness", "r", 20);
        let refused = streams_of(agents.clone(), &[&[full], &[newer; 50][..]].concat());
        assert_eq!(refused, streams_of(agents, &[full]));
    }

    /// A step of a run that failed: what comes of it, in order.
    #[derive(Clone, Copy)]
    enum Step {
        /// Its trace is known to be of the run.
        Run,
        /// Its trace is done, and says that it failed if this is so.
        Done(bool),
        /// The trace's outcome is reported later.
        Later,
        /// The outcome is reported by the name of the run.
        Reported,
    }

    /// The stream of outcomes of an agent after forty runs with these outcomes.
    fn outcomes_after(steps: &[Step]) -> Option<DropView> {
        let mut stage = Agents::new(Arc::default());
        let mut revision = 0;
        for number in 0..40_u64 {
            let now = Timestamp((100 + number) * MINUTE);
            let trace_id = TraceId(u128::from(number + 1).to_be_bytes());
            let (task, run): (Arc<str>, Arc<str>) = ("t".into(), number.to_string().into());
            let done = |outcome_failed, looped| DoneTrace {
                trace_id: Some(trace_id),
                start_unix_nano: now.0,
                at_unix_nano: now.0,
                touched_unix_nano: now.0,
                outcome_failed,
                looped,
                ..DoneTrace::default()
            };
            for step in steps {
                revision += 1;
                let mut facts = update("a", 0, revision, vec![]);
                match step {
                    Step::Run => facts.run_traces.push(RunTrace {
                        trace_id,
                        attempt: Some(Attempt {
                            task: Some(Arc::clone(&task)),
                            run: Some(Arc::clone(&run)),
                            success: Some(false),
                            ..Attempt::default()
                        }),
                        start_unix_nano: now.0,
                        end_unix_nano: now.0,
                        ..RunTrace::default()
                    }),
                    Step::Done(failed) => {
                        facts.done_traces.push(done(failed.then_some(true), Some(false)));
                    }
                    Step::Later => facts.done_traces.push(done(Some(true), None)),
                    Step::Reported => {
                        stage.report(report_of("outcome", &run, now.0), now);
                        continue;
                    }
                }
                stage.handle(facts, now);
                stage.settle();
            }
        }
        let drops = stage.drain().pop().unwrap().view.drops;
        drops.into_iter().find(|stream| stream.stream == "outcome")
    }

    #[test]
    fn an_outcome_of_a_run_counts_once_whoever_tells_it_first() {
        use Step::{Done, Later, Reported, Run};
        let once = outcomes_after(&[Run, Done(true)]);
        assert!(once.is_some());
        for steps in [
            &[Run, Done(true), Reported][..],
            &[Run, Done(true), Reported, Reported],
            &[Reported, Run, Done(true)],
            &[Run, Reported, Done(true)],
            &[Run, Done(false), Reported, Later],
            &[Run, Done(false), Later, Reported],
            &[Run, Reported, Done(false), Later, Reported],
        ] {
            assert_eq!(outcomes_after(steps), once);
        }
        // A trace that is of no run that was reported counts as ever.
        assert_eq!(outcomes_after(&[Done(false), Later]), once);
    }

    #[test]
    fn an_agent_that_every_shard_forgot_is_gone() {
        let mut stage = Agents::new(Arc::default());
        stage.handle(update("a", 0, 1, vec![pane(100, 0, 1)]), Timestamp(100 * MINUTE));
        stage.drain();
        stage.handle(SessionFacts { tombstone: true, ..update("a", 0, 2, vec![]) }, Timestamp(0));
        assert!(stage.drain()[0].gone);
    }

    proptest! {
        #[test]
        fn any_order_and_split_over_shards_has_the_same_bits(
            panes in prop::collection::vec((90..101_u64, 0..10_001_i32, 1..5_u64), 1..30),
            shards in prop::collection::vec(0..8_u32, 30),
            order in any::<u64>(),
        ) {
            let run = |split: &dyn Fn(usize) -> u32, reversed: bool| {
                let mut stage = Agents::new(Arc::default());
                // One full replacement a shard, of the panes that fell to it.
                let mut sums: BTreeMap<u32, BTreeMap<u64, PaneSum>> = BTreeMap::new();
                for (at, (index, level, count)) in panes.iter().enumerate() {
                    let held = sums.entry(split(at)).or_default().entry(*index).or_insert_with(|| pane(*index, 0, 0));
                    held.traces += count;
                    held.risk_count += count;
                    held.levels.push(Level { level: *level, count: *count });
                }
                let mut updates: Vec<SessionFacts> =
                    sums.into_iter().map(|(shard, panes)| update("a", shard, 1, panes.into_values().collect())).collect();
                if reversed { updates.reverse() }
                updates.into_iter().for_each(|update| stage.handle(update, Timestamp(100 * MINUTE)));
                stage.drain().remove(0).view.windows
            };
            let one = run(&|_| 0, false);
            prop_assert_eq!(run(&|at| shards[at], order % 2 == 0), one);
        }
    }
}
