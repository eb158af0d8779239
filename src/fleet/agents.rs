//! The agents stage of a partition: updates of agents in, series out.
//!
//! Each owner reads the updates of agents from the beginning of the compacted topic. A checkpoint has the data that is sent only
//! once (runs, the usual values of each agent) and the offset up to which it has them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::options::Role;
use super::partition::{Begin, PartitionState, Stage, TakenOver, TimeSource, section};
use super::wire::{Hop, Message, Record, pack};
use crate::engine::agent_facts::AgentFacts;
use crate::engine::agents::{Agents, SavedAgents};
use crate::engine::facts::{AgentKey, OVERFLOW, SessionFacts};
use crate::engine::pipeline::EngineOptions;
use crate::engine::span::Timestamp;
use crate::engine::time::WallShift;
use crate::export::board::Board;

/// How many done traces are remembered, so that a trace that the next owner of a shard sends again counts once.
const REMEMBERED: usize = 65_536;

/// The stage that sums up agents.
pub(super) struct FleetStage {
    pub(super) options: EngineOptions,
    pub(super) board: Arc<Board>,
}

/// The agents of a partition.
pub(super) struct AgentShards {
    partition: u32,
    stage: Agents,
    board: Arc<Board>,
    // The offset up to which the state has the data that is sent only once.
    known: i64,
    recent: Recent,
    shown: BTreeSet<AgentKey>,
}

/// The done traces that were received last.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Recent {
    // Their names, by which they are recognised.
    order: VecDeque<u128>,
    #[serde(skip)]
    names: BTreeSet<u128>,
    // How many traces were left out because they were among these.
    #[serde(skip)]
    duplicates: u64,
}

impl Stage for FleetStage {
    type State = AgentShards;

    const ROLE: Role = Role::Fleet;

    const HOP: Hop = Hop::Agents;

    const BEGIN: Begin = Begin::Everything;

    const PACE: TimeSource = TimeSource::Clock;

    fn take_over(&self, taken: &TakenOver<'_>) -> Result<AgentShards, String> {
        let mut stage = self.options.agents_stage();
        let saved: Option<SavedAgents> = section(taken.checkpoint, AGENTS)?;
        saved.into_iter().for_each(|saved| stage.restore(saved));
        let mut recent: Recent = section(taken.checkpoint, RECENT)?.unwrap_or_default();
        recent.names = recent.order.iter().copied().collect();
        Ok(AgentShards {
            partition: taken.partition,
            stage,
            board: Arc::clone(&self.board),
            known: taken.checkpoint.map_or(0, |checkpoint| checkpoint.next),
            recent,
            shown: BTreeSet::new(),
        })
    }
}

impl PartitionState for AgentShards {
    fn apply(
        &mut self,
        message: Message,
        offset: i64,
        now: Timestamp,
        _: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        match message {
            Message::Session(mut update) => {
                if offset < self.known {
                    update.run_traces.clear();
                    update.done_traces.clear();
                }
                self.recent.leave_out_known(&mut update);
                self.stage.handle(*update, now);
                // After each update, so that the state follows from the records alone.
                self.stage.settle();
                Ok(())
            }
            Message::Began(began) => {
                self.stage.began(began.shard, began.revision);
                Ok(())
            }
            Message::Report(_) if offset < self.known => Ok(()),
            Message::Report(report) => {
                self.stage.report(*report, now);
                self.stage.settle();
                Ok(())
            }
            Message::Trace(_)
            | Message::Inputs(_)
            | Message::Tick
            | Message::Responses(_)
            | Message::Learned(_) => Err("misdirected"),
        }
    }

    fn restart_offsets(&mut self) {
        self.known = 0;
    }

    fn due(&self) -> Option<Timestamp> {
        self.stage.poll_timeout()
    }

    fn timers(&mut self, now: Timestamp, _: &mut Vec<Record>) {
        self.stage.handle_timeout(now);
    }

    fn shift_to(&mut self, shift: WallShift) {
        self.stage.shift_to(shift);
    }

    fn publish(&mut self, _: Timestamp, _: &mut Vec<Record>) {
        for mut update in self.stage.drain() {
            if &*update.agent.service_name == OVERFLOW && update.agent.agent_name.is_empty() {
                // Each partition has its own overflow agent, as each series has one owner.
                let name = format!("partition {}", self.partition).into();
                update.agent = update.agent.with(|parts| parts.agent_name = name);
            }
            if update.gone {
                self.shown.remove(&update.agent);
            } else {
                self.shown.insert(update.agent.clone());
            }
            self.board.apply(update);
        }
    }

    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>> {
        let (agents, recent) = (pack(&self.stage.save())?, pack(&self.recent)?);
        Some([(AGENTS.to_owned(), agents), (RECENT.to_owned(), recent)].into())
    }

    fn give_up(&mut self) {
        for agent in std::mem::take(&mut self.shown) {
            self.board.apply(AgentFacts::gone(agent));
        }
    }

    fn holds(&self) -> (&'static str, usize) {
        ("agents", self.shown.len())
    }

    fn holds_bytes(&self) -> Option<(&'static str, usize)> {
        Some(("runs", self.stage.run_bytes()))
    }

    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)> {
        let duplicates = ("done_traces", "duplicate", self.recent.duplicates);
        let counts = self.stage.counts().iter().chain([duplicates]);
        counts.map(|(what, why, n)| (self.partition.to_string(), what, why, n)).collect()
    }
}

impl Recent {
    /// Removes the done traces that are among the recent ones from an update, and adds the others to those.
    fn leave_out_known(&mut self, update: &mut SessionFacts) {
        let agent = update.agent.clone().unwrap_or_default();
        update.done_traces.retain(|trace| self.is_new(trace.name(&agent)));
    }

    /// Adds a done trace with this name to the recent ones; returns whether it was not among them.
    fn is_new(&mut self, name: u128) -> bool {
        let new = self.names.insert(name);
        if !new {
            self.duplicates += 1;
            return false;
        }
        self.order.push_back(name);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
        true
    }
}

/// The names of the sections.
const AGENTS: &str = "agents";
const RECENT: &str = "recent";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::facts::{AgentParts, DoneTrace, ScopedId};
    use crate::fleet::wire::unpack;

    fn told(tenant: &str, start: u64) -> SessionFacts {
        let agent = AgentParts { tenant: tenant.into(), ..AgentParts::default() };
        let outcome = DoneTrace {
            start_unix_nano: start,
            session: ScopedId { id: "42".into(), scope: "support".into() },
            outcome_failed: Some(true),
            ..DoneTrace::default()
        };
        let done_traces = vec![outcome];
        SessionFacts { agent: Some(agent.into()), done_traces, ..SessionFacts::default() }
    }

    #[test]
    fn an_outcome_that_is_told_again_is_left_out_and_one_of_another_session_of_its_id_is_not() {
        let mut recent = Recent::default();
        let is_new = |recent: &mut Recent, mut update: SessionFacts| {
            recent.leave_out_known(&mut update);
            !update.done_traces.is_empty()
        };
        for (tenant, start, expected) in
            [("shop", 1, true), ("bank", 1, true), ("shop", 2, true), ("shop", 1, false)]
        {
            assert_eq!(is_new(&mut recent, told(tenant, start)), expected, "{tenant} {start}");
        }
        assert_eq!(recent.duplicates, 1);
        let mut read: Recent = unpack(&pack(&recent).unwrap()).unwrap();
        read.names = read.order.iter().copied().collect();
        assert!(!is_new(&mut read, told("bank", 1)));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let mut recent = Recent::default();
        assert!((0..=REMEMBERED as u128).all(|name| recent.is_new(name)));
        assert!(recent.is_new(0) && !recent.is_new(REMEMBERED as u128));
        assert_eq!((recent.order.len(), recent.names.len()), (REMEMBERED, REMEMBERED));
    }
}
