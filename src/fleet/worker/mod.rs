//! The loop of a stage: one thread, one consumer, and the partitions that the group assigned to it.
//!
//! ```text
//! taken over:  checkpoint -> state -> replay up to the end as it was -> live: tells
//! given up:    what was sent has arrived -> checkpoint -> offset committed -> the next owner begins
//! ```
//!
//! A new owner continues from the offset of the checkpoint; the committed one follows it and is a hint for people. Records are
//! applied in order, each once by its offset; their output is sent at least once and replaces itself downstream. At the end of the
//! records a due timer becomes a record, a tick. So the state, and everything that was ever sent, follows from records.

mod checkpointing;
mod takeover;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use tokio::sync::watch;

use self::checkpointing::Writing;
use super::checkpoint::Checkpoints;
use super::context::{Context, consumer};
use super::lease::Lease;
use super::metrics::WorkerMetrics;
use super::options::FleetOptions;
use super::outbox::{Outbox, SendOutcome};
use super::owned::{OwnedPartition, RecordRole};
use super::partition::{Begin, PartitionState, Stage, TimeSource};
use super::question::{Question, answer};
use super::topics::look;
use super::wire::{Hop, Map, Record};
use crate::clock::Clock;
use crate::engine::span::Timestamp;
use crate::ingest::kafka::{Change, KafkaOptions, Problem, SourceError, Status, fatal};

/// How long a poll waits for a record.
const POLL: Duration = Duration::from_millis(50);

/// The most records that are applied before timers have their turn.
const BURST: usize = 256;

/// How long brokers may take to answer, and to confirm records that were sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is said of a topic whose offsets went back below what was read.
const GONE_BACK: &str = "records that were read are gone from the end of the topic: it was recreated or restored, or a broker lost them; \
                         reading it from its first record, with the current state";

/// What is said where the brokers deleted records that it was about to read.
const GONE: &str = "records were deleted before they were read; the topic keeps them too briefly (`fleet.retention`)";

/// The message about a lapsed lease.
const LAPSED: &str =
    "the brokers did not answer for `fleet.session_timeout`, so others may have its partitions";

/// The outcome of a record of a partition that the worker does not own.
const NOT_HELD: &str = "not_held";

/// The outcome of a record that the brokers refuse for its size.
const TOO_LARGE: &str = "too_large";

/// The outcome of a record at which the stage panicked.
const INTERNAL: &str = "internal";

/// The most records that are left out because the stage panics at them; at one more it cannot continue.
const MAX_LEFT_OUT: usize = 1000;

/// The pause before a failed attempt is repeated.
const AGAIN: Duration = Duration::from_millis(500);

/// The parts that a worker is made of.
pub(super) struct Setup<'s> {
    pub(super) kafka: &'s KafkaOptions,
    pub(super) fleet: &'s FleetOptions,
    pub(super) checkpoints: Checkpoints,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) status: Arc<Status>,
    pub(super) lease: Lease,
    pub(super) questions: Option<Receiver<Question>>,
    pub(super) stopping: watch::Receiver<bool>,
}

/// A stage at work.
pub(super) struct Worker<S: Stage> {
    stage: S,
    topic: String,
    fleet: FleetOptions,
    consumer: BaseConsumer<Context>,
    kafka: KafkaOptions,
    outbox: Outbox,
    checkpoints: Checkpoints,
    clock: Clock,
    metrics: Arc<WorkerMetrics>,
    status: Arc<Status>,
    lease: Lease,
    questions: Option<Receiver<Question>>,
    stopping: watch::Receiver<bool>,
    held: BTreeMap<i32, OwnedPartition<S::State>>,
    out: Vec<Record>,
    told: Timestamp,
    saved: Timestamp,
    /// The partitions whose checkpoints are still to be written in this round.
    unsaved: VecDeque<i32>,
    /// The checkpoint that is being written.
    writing: Option<Writing>,
    /// The records at which the stage panicked, which are left out, as (partition, offset).
    left_out: BTreeSet<(i32, i64)>,
    /// Why all partitions must be dropped unsaved and requested again, if they must.
    broken: Option<String>,
    /// Whether it has dropped them and could not request them yet.
    anew: bool,
    /// Why it cannot continue.
    fatal: Option<String>,
}

impl<S: Stage> Worker<S> {
    pub(super) fn new(stage: S, setup: Setup<'_>) -> Result<Self, SourceError> {
        let Setup { kafka, fleet, checkpoints, clock, metrics, .. } = setup;
        let (status, lease, stopping) = (setup.status, setup.lease, setup.stopping);
        let context = Context::new(status.clone(), lease.clone());
        let consumer = consumer(kafka, fleet, S::ROLE)?.create_with_context(context)?;
        let outbox = Outbox::new(kafka, &fleet.prefix)?;
        Ok(Self {
            stage,
            topic: S::HOP.topic(&fleet.prefix),
            fleet: fleet.clone(),
            consumer,
            kafka: kafka.clone(),
            outbox,
            checkpoints,
            told: clock.now(),
            saved: clock.now(),
            unsaved: VecDeque::new(),
            writing: None,
            left_out: BTreeSet::new(),
            clock,
            metrics,
            status,
            lease,
            questions: setup.questions,
            stopping,
            held: BTreeMap::new(),
            out: Vec::new(),
            broken: None,
            anew: false,
            fatal: None,
        })
    }

    /// Works until it is told to stop or cannot continue; returns why it cannot. Blocks its thread.
    pub(super) fn run(mut self) -> Option<String> {
        self.find_topics();
        if let Err(error) = self.consumer.subscribe(&[&self.topic]) {
            return Some(format!("{error}; check `fleet.prefix`"));
        }
        while !self.stopping() && self.fatal.is_none() {
            if self.lease.has_lapsed() {
                self.broken.get_or_insert_with(|| LAPSED.to_owned());
            }
            if let Some(why) = self.broken.clone()
                && !self.begin_anew(&why)
            {
                continue;
            }
            self.change_assignment();
            let wait = if self.answer() { Duration::ZERO } else { POLL };
            self.read(wait);
            self.keep_time();
        }
        let all: Vec<i32> = self.held.keys().copied().collect();
        if self.fatal.is_none() {
            self.hand_over(&all);
        } else {
            // Another instance has its place, and the partitions.
            self.forget(&all);
        }
        self.consumer.context().assignment.close(&self.consumer);
        self.show();
        self.fatal
    }

    fn stopping(&self) -> bool {
        // An error means that the sender, and so the daemon, has ended.
        *self.stopping.borrow() || self.stopping.has_changed().is_err()
    }

    /// Waits until the topics exist, with the number of partitions that all instances must agree on.
    fn find_topics(&self) {
        while !self.stopping() {
            let problem =
                match look(self.consumer.client(), &self.fleet.prefix, self.fleet.partitions) {
                    Ok(None) => return self.status.well(),
                    Ok(Some(why)) => Problem::Other { why },
                    Err(error) => Problem::Unreachable { why: error.to_string() },
                };
            self.status.problem(problem);
            std::thread::sleep(AGAIN);
        }
    }

    /// Applies the available records, at most `BURST` of them.
    fn read(&mut self, mut wait: Duration) {
        for _ in 0..BURST {
            let message = match self.consumer.poll(wait) {
                Some(Ok(message)) => message,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(held) = self.held.get_mut(&partition) {
                        held.expected = None;
                        held.at_end = true;
                        held.live = true;
                    }
                    return;
                }
                Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                    self.fatal = Some(fatal(&self.consumer, &error));
                    return;
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "no Kafka record");
                    return;
                }
                None => return,
            };
            wait = Duration::ZERO;
            let (partition, offset) = (message.partition(), message.offset());
            let Some(held) = self.held.get_mut(&partition) else {
                self.metrics.record(Err(NOT_HELD));
                continue;
            };
            let payload = message.payload().unwrap_or_default();
            let sum = crc32c::crc32c(payload);
            match held.role(offset, sum) {
                RecordRole::LastOfCheckpoint if S::BEGIN == Begin::Lookback => {
                    held.next = offset + 1;
                    held.live |= held.next >= held.target;
                    continue;
                }
                RecordRole::Foreign => {
                    drop(message);
                    self.read_from_the_first(partition);
                    continue;
                }
                RecordRole::LastOfCheckpoint | RecordRole::Next => {}
            }
            if offset < held.next {
                let gone = held.next - offset;
                tracing::error!(topic = self.topic, partition, gone, "{GONE_BACK}");
                self.metrics.gone(gone);
                held.part.restart_offsets();
            }
            let gone = held.go_on_to(offset, S::HOP == Hop::Agents);
            if gone > 0 {
                tracing::error!(topic = self.topic, partition, gone, "{GONE}");
                self.metrics.gone(gone);
            }
            held.last_record = Some(sum);
            held.live |= held.next >= held.target;
            if self.left_out.contains(&(partition, offset)) {
                continue;
            }
            let out = &mut self.out;
            let applied = catch_unwind(AssertUnwindSafe(|| held.apply(payload, offset, out)));
            drop(message);
            match applied {
                Ok(result) => {
                    self.metrics.record(result);
                    self.send();
                }
                Err(_) => self.leave_out(partition, offset),
            }
        }
    }

    /// Answers questions about sessions; returns whether there were any.
    fn answer(&self) -> bool {
        let partition = |shard: u32| i32::try_from(shard % self.fleet.partitions.max(1)).ok();
        let held = |shard: u32| self.held.get(&partition(shard)?)?.part.sessions(shard);
        self.questions.as_ref().is_some_and(|questions| answer(questions, held))
    }

    /// Runs timers or writes ticks, sends changes, writes checkpoints, and updates the metrics.
    fn keep_time(&mut self) {
        let moment = self.clock.moment();
        let now = moment.now;
        for (partition, held) in &mut self.held {
            held.follow(moment);
            held.listen(now);
            if !(held.live && held.at_end) {
                continue;
            }
            let time = held.time(now);
            match (S::PACE, u32::try_from(*partition)) {
                (TimeSource::Records, Ok(partition)) if held.wants_tick(time) => {
                    self.out.push(Map::tick(S::HOP, partition, time));
                }
                (TimeSource::Records, _) => {}
                (TimeSource::Clock, _) => held.advance(time, &mut self.out),
            }
        }
        self.send();
        if self.told.after(self.fleet.tell_interval) <= now {
            self.told = now;
            for held in self.held.values_mut().filter(|held| held.live) {
                held.part.publish(held.now, &mut self.out);
            }
            self.send();
            self.show();
        }
        if self.saved.after(self.fleet.checkpoint_interval) <= now && self.unsaved.is_empty() {
            self.saved = now;
            let changed = self.held.iter().filter(|(_, held)| held.saved != Some(held.next));
            self.unsaved = changed.map(|(partition, _)| *partition).collect();
        }
        self.save_next();
        self.outbox.poll();
        self.note_undelivered();
    }

    /// Counts the records that were refused as too large. If another record that follows from a state was lost, that state must not
    /// be saved.
    fn note_undelivered(&mut self) {
        (0..self.outbox.too_large()).for_each(|_| self.metrics.record(Err(TOO_LARGE)));
        if let Some(why) = self.outbox.lost() {
            self.broken.get_or_insert(why);
        }
    }

    fn send(&mut self) {
        for record in std::mem::take(&mut self.out) {
            let goes_on = || !self.stopping() && !self.lease.has_lapsed();
            match self.outbox.send(&record, goes_on) {
                SendOutcome::OnItsWay => {}
                SendOutcome::LeftOut(why) => self.metrics.record(Err(why)),
                SendOutcome::Failed(why) => {
                    // A record that follows from the state was not sent, so the state must not be saved.
                    self.broken.get_or_insert(why);
                    return;
                }
            }
        }
    }

    /// Extends the lease if the brokers answer, for times when the consumer is not polled for long: it keeps its place in the group
    /// by itself.
    fn keep_lease(&self) {
        if self.lease.is_old() && self.consumer.fetch_metadata(Some(&self.topic), PATIENCE).is_ok()
        {
            self.lease.touch();
        }
    }

    /// Makes the changes of the assignment that the group requests.
    fn change_assignment(&mut self) {
        while let Some(change) = self.consumer.context().assignment.change() {
            let change = match change {
                Change::Revoke(partitions) => {
                    let numbers = numbers(&partitions);
                    if self.consumer.assignment_lost() {
                        self.forget(&numbers);
                    } else {
                        self.hand_over(&numbers);
                    }
                    Change::Revoke(partitions)
                }
                Change::Assign(partitions) => Change::Assign(self.take_over(&numbers(&partitions))),
            };
            if let Err(error) = self.consumer.context().assignment.make(&self.consumer, &change) {
                let why = format!("the assignment of Kafka partitions did not change: {error}");
                self.broken.get_or_insert(why);
            }
            self.show();
        }
    }

    fn forget(&mut self, partitions: &[i32]) {
        let health = self.metrics.health();
        for partition in partitions {
            if let Some(mut held) = self.held.remove(partition) {
                held.part.give_up();
                for (who, ..) in held.part.counts() {
                    health.forget(&counted_as::<S>(&who, held.generation));
                }
                let (shard, (what, _)) = (partition.to_string(), held.part.holds());
                health.held(what, &shard).set(0);
                if let Some((what, _)) = held.part.holds_bytes() {
                    health.held_bytes(what, &shard).set(0);
                }
                if held.part.open_traces(Timestamp::default()).is_some() {
                    health.open_traces(&shard).iter().for_each(|gauge| gauge.set(0));
                }
            }
        }
    }

    /// Drops all partitions unsaved, as the brokers may have given them to others, and requests partitions again. Returns whether
    /// it has requested them; until then it owns none and has to try again.
    fn begin_anew(&mut self, why: &str) -> bool {
        if !self.anew {
            let all: Vec<i32> = self.held.keys().copied().collect();
            let (role, partitions) = (S::ROLE.name(), all.len());
            tracing::warn!(role, partitions, "gave up its partitions, and begins anew: {why}");
            self.forget(&all);
            self.unsaved.clear();
            self.out.clear();
            self.metrics.restarted();
            // The old consumer leaves the group, so that it gets no partitions while there is no new one.
            self.consumer.context().assignment.close(&self.consumer);
            self.consumer.unsubscribe();
            self.show();
        }
        self.anew = true;
        if let Err(error) = self.make_clients() {
            let (role, why) = (S::ROLE.name(), error.to_string());
            tracing::error!(role, "cannot begin anew: {why}");
            self.metrics.problem(why);
            // This tells the group that it has left; its remaining messages are of no use.
            drop(self.consumer.poll(POLL));
            std::thread::sleep(AGAIN);
            return false;
        }
        (self.anew, self.broken) = (false, None);
        self.metrics.well();
        self.lease.renew();
        self.show();
        true
    }

    /// Makes a new producer and a new consumer, and subscribes.
    fn make_clients(&mut self) -> Result<(), SourceError> {
        // Records that still wait to be delivered come from the dropped state.
        let outbox = Outbox::new(&self.kafka, &self.fleet.prefix)?;
        // A new consumer is a new member of the group, for which the assignment of the old one does not matter.
        let context = Context::new(self.status.clone(), self.lease.clone());
        let fresh: BaseConsumer<Context> =
            consumer(&self.kafka, &self.fleet, S::ROLE)?.create_with_context(context)?;
        fresh.subscribe(&[&self.topic])?;
        (self.outbox, self.consumer) = (outbox, fresh);
        Ok(())
    }

    /// Updates the metrics of the worker and its partitions.
    fn show(&self) {
        let now = self.clock.now();
        let lags = self.held.iter().map(|(partition, held)| {
            let behind = now.0.saturating_sub(held.now.0);
            (*partition, if held.live && held.at_end || held.now.0 == 0 { 0 } else { behind })
        });
        self.metrics.lags(lags.collect());
        let behind = self.held.values().filter(|held| !held.live);
        let (behind, partial) = behind
            .fold((0, 0), |(all, partial), held| (all + 1, partial + usize::from(!held.whole)));
        self.metrics.held(self.held.len(), behind, partial);
        let health = self.metrics.health();
        for (partition, held) in &self.held {
            let (shard, (what, count)) = (partition.to_string(), held.part.holds());
            health.held(what, &shard).set(count);
            if let Some((what, bytes)) = held.part.holds_bytes() {
                health.held_bytes(what, &shard).set(bytes);
            }
            if let Some(ages) = held.part.open_traces(held.now) {
                let gauges = health.open_traces(&shard);
                gauges.iter().zip(ages).for_each(|(gauge, count)| gauge.set(count));
            }
            for (who, what, why, count) in held.part.counts() {
                health.counts(&counted_as::<S>(&who, held.generation), [(what, why, count)]);
            }
        }
    }
}

/// The name under which a stage of a partition is counted, as long as the partition is held.
fn counted_as<S: Stage>(stage: &str, generation: u64) -> String {
    format!("{}/{stage}@{generation}", S::ROLE.name())
}

fn numbers(partitions: &TopicPartitionList) -> Vec<i32> {
    partitions
        .elements()
        .iter()
        .map(rdkafka::topic_partition_list::TopicPartitionListElem::partition)
        .collect()
}
