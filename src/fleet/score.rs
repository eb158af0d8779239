//! The session stage of a partition: traces by session in, updates of agents out.
//!
//! Nothing is sent before the partition has caught up, so that no counter falls. Then the owner sends its whole state, and after it
//! a notice that this was all: what an earlier owner sent and this one does not have is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::assemble::GENERATION;
use super::options::Role;
use super::partition::{Begin, PartitionState, Room, Stage, TakenOver, TimeSource};
use super::wire::{Hop, Map, Message, Record};
use crate::engine::facts::Began;
use crate::engine::pipeline::EngineOptions;
use crate::engine::saved;
use crate::engine::sessions::Sessions;
use crate::engine::span::{Report, Target, Timestamp};
use crate::engine::time::WallShift;

/// A function that takes the sessions of a stage that run away.
pub type Runaways = std::sync::Arc<dyn Fn(&mut Sessions, Timestamp) + Send + Sync>;

/// The stage that assembles sessions from traces.
pub(super) struct ScoreStage {
    pub(super) options: EngineOptions,
    pub(super) map: Map,
    pub(super) runaways: Runaways,
    /// How often the whole state is sent again: more than once in the life of a record, as the topic deletes records that are not
    /// replaced.
    pub(super) tell_all_interval: Duration,
}

/// The shards of a partition, with their sessions.
pub(super) struct SessionShards {
    map: Map,
    generation: u64,
    shards: Vec<(u32, Sessions)>,
    // The room that the shards share, in bytes.
    room: Room,
    due: Vec<Option<Timestamp>>,
    changed: BTreeSet<usize>,
    began: bool,
    told_all: Timestamp,
    tell_all_interval: Duration,
    runaways: Runaways,
}

impl Stage for ScoreStage {
    type State = SessionShards;

    const ROLE: Role = Role::Score;

    const HOP: Hop = Hop::Traces;

    const BEGIN: Begin = Begin::Lookback;

    const PACE: TimeSource = TimeSource::Records;

    fn take_over(&self, taken: &TakenOver<'_>) -> Result<SessionShards, String> {
        let mut shards = Vec::new();
        for shard in self.map.shards(taken.partition) {
            let mut stage = self.options.sessions_stage(shard);
            let name = shard.to_string();
            if let Some(bytes) = taken.checkpoint.and_then(|held| held.sections.get(&name)) {
                let read = saved::read_with(&mut bytes.as_slice(), |from| stage.restore(from));
                read.map_err(|error| format!("section {name}: {error}"))?;
            }
            shards.push((shard, stage));
        }
        Ok(SessionShards {
            map: self.map,
            generation: taken.generation,
            due: shards.iter().map(|(_, stage)| stage.poll_timeout()).collect(),
            changed: (0..shards.len()).collect(),
            room: Room::new(self.options.session.max_bytes, shards.len()),
            shards,
            began: false,
            told_all: Timestamp(0),
            tell_all_interval: self.tell_all_interval,
            runaways: self.runaways.clone(),
        })
    }
}

impl PartitionState for SessionShards {
    fn apply(
        &mut self,
        message: Message,
        _: i64,
        now: Timestamp,
        _: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        match message {
            Message::Trace(update) => {
                let session = update.session.as_ref().ok_or("malformed")?;
                let place = self.place(&session.tenant, &session.id).ok_or("misdirected")?;
                self.change(place, |stage| stage.handle(update, now));
                Ok(())
            }
            Message::Report(report) => {
                // The shards of this partition that take the report; a sealed trace may be in a session of any shard.
                let takers = self.map.route().report(&report).sessions;
                let is_late = matches!(report.target, Target::Trace(_));
                let is_taker = |shard: &u32| {
                    is_late || takers.contains(&usize::try_from(*shard).unwrap_or(usize::MAX))
                };
                let shards = self.shards.iter().enumerate();
                let here = shards.filter(|(_, (shard, _))| is_taker(shard));
                let here: Vec<usize> = here.map(|(place, _)| place).collect();
                if here.is_empty() {
                    return Err("misdirected");
                }
                for place in here {
                    self.change(place, |stage| stage.report(Report::clone(&report), now));
                }
                Ok(())
            }
            Message::Inputs(_)
            | Message::Session(_)
            | Message::Tick
            | Message::Responses(_)
            | Message::Learned(_)
            | Message::Began(_) => Err("misdirected"),
        }
    }

    fn due(&self) -> Option<Timestamp> {
        self.due.iter().flatten().min().copied()
    }

    fn timers(&mut self, now: Timestamp, _: &mut Vec<Record>) {
        for place in 0..self.shards.len() {
            if self.due[place].is_some_and(|due| due <= now) {
                self.change(place, |stage| stage.handle_timeout(now));
            }
        }
    }

    fn shift_to(&mut self, shift: WallShift) {
        for place in 0..self.shards.len() {
            self.change(place, |stage| stage.shift_to(shift));
        }
    }

    fn listen(&mut self, now: Timestamp) {
        for place in 0..self.shards.len() {
            self.change(place, |stage| stage.take_over(now));
        }
    }

    fn publish(&mut self, now: Timestamp, out: &mut Vec<Record>) {
        let first = !std::mem::replace(&mut self.began, true);
        if self.told_all.after(self.tell_all_interval) <= now {
            self.told_all = now;
            self.shards.iter_mut().for_each(|(_, stage)| stage.tell_all());
            self.changed = (0..self.shards.len()).collect();
        }
        for place in std::mem::take(&mut self.changed) {
            let (shard, stage) = &mut self.shards[place];
            if first {
                // Dropped: the previous owner reported the runaways from before this one caught up.
                stage.runaways();
            }
            (self.runaways)(stage, now);
            let begin = out.len();
            for mut update in stage.drain() {
                update.revision = update.revision.saturating_add(self.generation << GENERATION);
                out.extend(self.map.to_agent(update));
            }
            if first {
                let revision = self.generation << GENERATION;
                let began = Message::Began(Began { shard: *shard, revision });
                out.extend(self.map.to_all_agents(*shard, &began));
            }
            for record in &mut out[begin..] {
                record.envelope.shard = *shard;
                record.envelope.generation = self.generation;
                record.envelope.time = now;
            }
        }
    }

    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>> {
        let shards = self.shards.iter();
        shards
            .map(|(shard, stage)| Some((shard.to_string(), super::wire::pack(&stage.save())?)))
            .collect()
    }

    fn give_up(&mut self) {}

    fn holds(&self) -> (&'static str, usize) {
        ("sessions", self.shards.iter().map(|(_, stage)| stage.open_sessions()).sum())
    }

    fn holds_bytes(&self) -> Option<(&'static str, usize)> {
        Some(("sessions", self.shards.iter().map(|(_, stage)| stage.held_bytes()).sum()))
    }

    fn sessions(&self, shard: u32) -> Option<&Sessions> {
        let (_, stage) = self.shards.iter().find(|(held, _)| *held == shard)?;
        Some(stage)
    }

    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)> {
        let shards = self.shards.iter();
        let counts = shards.flat_map(|(shard, stage)| {
            stage.counts().iter().map(|(what, why, n)| (shard.to_string(), what, why, n))
        });
        counts.collect()
    }
}

impl SessionShards {
    fn place(&self, tenant: &str, id: &str) -> Option<usize> {
        let shard = self.map.route().session(tenant, id);
        let place = self.map.place(shard);
        let found = self.shards.get(place).filter(|(held, _)| usize::try_from(*held) == Ok(shard));
        found.map(|_| place)
    }

    fn change(&mut self, place: usize, change: impl FnOnce(&mut Sessions)) {
        let held = self.shards.iter().map(|(_, stage)| stage.held_bytes()).sum();
        let stage = &mut self.shards[place].1;
        stage.set_max_bytes(self.room.beside(held, stage.held_bytes()));
        change(stage);
        self.due[place] = stage.poll_timeout();
        self.changed.insert(place);
    }
}
