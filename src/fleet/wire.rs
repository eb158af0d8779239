//! Records between the stages: their topics and partitions, and their content.
//!
//! ```text
//! shard     = hash(key) % 256           for good: state, counters and sums belong to a shard
//! partition = shard % partitions        so all of a shard is in one partition
//! ```
//!
//! Spans are keyed by trace, traces by session, and updates of agents by (agent, shard, pane). The topic of the latter is
//! compacted, so each of its records must make sense without the others.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::assemble::{Input, Lessons};
use crate::engine::drops::DEPLOYMENT;
use crate::engine::facts::{AgentKey, AgentParts, Began, SessionFacts, TraceFacts};
use crate::engine::route::Route;
use crate::engine::saved;
use crate::engine::span::{IdHash, Report, Target, Timestamp, TraceId};

/// The number of logical shards of each stage.
pub(super) const SHARDS: u32 = 256;

/// A topic between two stages.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Hop {
    /// To assemble.
    Spans,
    /// To score.
    Traces,
    /// To fleet.
    Agents,
}

/// All hops.
pub(super) const HOPS: [Hop; 3] = [Hop::Spans, Hop::Traces, Hop::Agents];

/// The content of a record.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Message {
    /// A trace, to its session.
    Trace(Box<TraceFacts>),
    /// The state of an agent in a shard.
    Session(Box<SessionFacts>),
    /// Spans, log records and reports of one trace.
    Inputs(Vec<Input>),
    /// A report without other inputs.
    Report(Box<Report>),
    /// The ids of responses in spans, with their traces.
    Responses(Vec<Response>),
    /// What a partition has learned from traces, for other partitions.
    Learned(Lessons),
    /// Notice that a shard has a new owner, which has sent its whole state.
    Began(Began),
    /// A tick: time advances to that of the envelope, for timers that are due while no other record arrives.
    Tick,
}

/// A response of a model, and its trace.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Response {
    /// Authenticated tenant; `None`: without tenants.
    pub(super) tenant: Option<Arc<str>>,
    /// The provider's id of the response.
    pub(super) id: IdHash,
    pub(super) trace_id: TraceId,
}

/// The payload of a record.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Envelope {
    pub(super) message: Message,
    /// The logical shard of the sender.
    pub(super) shard: u32,
    /// The generation of its owner; records of a replaced owner are ignored. Zero if that is not checked, as for a gateway.
    pub(super) generation: u64,
    /// The time to which the receiver advances: when the request arrived, or when the sender handed it on.
    pub(super) time: Timestamp,
}

/// A record to be sent, with its destination.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) hop: Hop,
    pub(super) partition: u32,
    pub(super) key: Vec<u8>,
    pub(super) envelope: Envelope,
}

/// The mapping from keys to shards and partitions; the same in every instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    route: Route,
    partitions: u32,
}

/// The route of sessions, and the number of shards; the same in every instance.
pub fn shards() -> (Route, usize) {
    (Map::new(SHARDS).route, usize::try_from(SHARDS).unwrap_or(0))
}

impl Hop {
    pub(super) fn topic(self, prefix: &str) -> String {
        let name = match self {
            Self::Spans => "spans",
            Self::Traces => "traces",
            Self::Agents => "agents",
        };
        format!("{prefix}.{name}")
    }
}

impl Map {
    pub(super) fn new(partitions: u32) -> Self {
        Self { route: Route::new(SHARDS, 0), partitions: partitions.clamp(1, SHARDS) }
    }

    /// The route to shards; it has no seed, as it must be the same in every instance.
    pub(super) fn route(self) -> Route {
        self.route
    }

    /// The shards of a partition.
    pub(super) fn shards(self, partition: u32) -> impl Iterator<Item = u32> + use<> {
        (partition..SHARDS).step_by(usize::try_from(self.partitions).unwrap_or(1))
    }

    /// The index of a shard among those of its partition.
    pub(super) fn place(self, shard: usize) -> usize {
        shard / usize::try_from(self.partitions).unwrap_or(1)
    }

    fn partition(self, shard: usize) -> u32 {
        u32::try_from(shard).unwrap_or(0) % self.partitions
    }

    /// A record about a trace, for the assemble stage.
    pub(super) fn to_trace(self, trace: TraceId, message: Message) -> Record {
        let (hop, partition) = (Hop::Spans, self.partition(self.route.trace(trace)));
        Record { hop, partition, key: trace.0.to_vec(), envelope: envelope(message) }
    }

    /// The partition that knows the trace of this response.
    pub(super) fn of_response(self, id: IdHash) -> u32 {
        self.partition(self.route.response(id))
    }

    /// A record about responses, to the partition that knows them.
    pub(super) fn to_responses(self, partition: u32, message: Message) -> Record {
        let key = partition.to_be_bytes().to_vec();
        Record { hop: Hop::Spans, partition, key, envelope: envelope(message) }
    }

    /// Records about what this partition has learned, for all other partitions of spans. They do not advance time.
    pub(super) fn to_other_partitions(self, own: u32, lessons: &Lessons) -> Vec<Record> {
        let record = |partition| Record {
            hop: Hop::Spans,
            partition,
            key: [b"learned", &own.to_be_bytes()[..]].concat(),
            envelope: envelope(Message::Learned(lessons.clone())),
        };
        (0..self.partitions).filter(|partition| *partition != own).map(record).collect()
    }

    /// A tick for a partition, with the time to advance to.
    pub(super) fn tick(hop: Hop, partition: u32, now: Timestamp) -> Record {
        let envelope = Envelope { time: now, ..envelope(Message::Tick) };
        Record { hop, partition, key: Vec::new(), envelope }
    }

    /// A trace, to its session.
    pub(super) fn to_session(self, update: Box<TraceFacts>) -> Record {
        let session = update.session.clone().unwrap_or_default();
        let message = Message::Trace(update);
        self.about_session(&session.tenant, &session.id, message)
    }

    fn about_session(self, tenant: &str, id: &str, message: Message) -> Record {
        let partition = self.partition(self.route.session(tenant, id));
        let key = [tenant.as_bytes(), b"\0", id.as_bytes()].concat();
        Record { hop: Hop::Traces, partition, key, envelope: envelope(message) }
    }

    /// An update of an agent as records: everything but the panes under one key, and each pane under its own. Data that is sent
    /// once has a key that no other record has.
    pub(super) fn to_agent(self, mut update: SessionFacts) -> Vec<Record> {
        let agent = update.agent.clone().unwrap_or_default();
        let partition = self.of_agent(&agent);
        let name = name_of(&agent).to_be_bytes();
        let shard = update.shard.to_be_bytes();
        let record = |what: &[u8], update| {
            let key = [&name[..], &shard, what].concat();
            let message = Message::Session(Box::new(update));
            Record { hop: Hop::Agents, partition, key, envelope: envelope(message) }
        };
        let mut once = bare(&update);
        once.run_traces = std::mem::take(&mut update.run_traces);
        once.done_traces = std::mem::take(&mut update.done_traces);
        let panes: Vec<_> = std::mem::take(&mut update.panes)
            .into_iter()
            .map(|pane| {
                let what = [pane.width_nanos.to_be_bytes(), pane.index.to_be_bytes()].concat();
                (what, SessionFacts { panes: vec![pane], ..bare(&once) })
            })
            .collect();
        let told = !once.run_traces.is_empty() || !once.done_traces.is_empty();
        let revision = update.revision.to_be_bytes();
        let mut records = vec![record(b"", update)];
        records.extend(panes.into_iter().map(|(what, update)| record(&what, update)));
        records.extend(told.then(|| record(&[b"once", &revision[..]].concat(), once)));
        records
    }

    /// Records for every partition of agents, which say that a shard has sent its whole state.
    pub(super) fn to_all_agents(self, shard: u32, message: &Message) -> Vec<Record> {
        let record = |partition| Record {
            hop: Hop::Agents,
            partition,
            key: [b"began", &shard.to_be_bytes()[..]].concat(),
            envelope: envelope(message.clone()),
        };
        (0..self.partitions).map(record).collect()
    }

    /// A report, for all partitions that take it; `None` if it cannot be encoded.
    pub(super) fn to_report(self, report: &Report) -> Option<Vec<Record>> {
        let message = Message::Report(Box::new(report.clone()));
        let records = match &report.target {
            Target::Trace(trace) => vec![self.to_trace(*trace, message)],
            Target::Response { id, .. } => {
                let partition = self.of_response(IdHash::from(&**id));
                vec![self.to_responses(partition, message)]
            }
            Target::Session { tenant, id, .. } => {
                vec![self.about_session(tenant.as_deref().unwrap_or_default(), id, message)]
            }
            Target::Run(run) => {
                let mut records = vec![self.about_agent(&run.agent, message)?];
                if !self.route.report(report).sessions.is_empty() {
                    records.extend(self.to_all_sessions(report)?);
                }
                records
            }
            // A deployment does not say which agents it affects, so each partition searches its own.
            Target::Agent(agent) if &*report.name == DEPLOYMENT => {
                let Record { hop, key, envelope, .. } = self.about_agent(agent, message)?;
                let record = |partition| Record {
                    hop,
                    partition,
                    key: key.clone(),
                    envelope: envelope.clone(),
                };
                (0..self.partitions).map(record).collect()
            }
            Target::Agent(agent) => vec![self.about_agent(agent, message)?],
        };
        Some(records)
    }

    /// A report, for all partitions of sessions; `None` if it cannot be encoded.
    pub(super) fn to_all_sessions(self, report: &Report) -> Option<Vec<Record>> {
        let message = Message::Report(Box::new(report.clone()));
        let key = key_of_report(&message)?;
        let record = |partition| Record {
            hop: Hop::Traces,
            partition,
            key: key.clone(),
            envelope: envelope(message.clone()),
        };
        Some((0..self.partitions).map(record).collect())
    }

    fn about_agent(self, agent: &AgentKey, message: Message) -> Option<Record> {
        let key = key_of_report(&message)?;
        let partition = self.of_agent(agent);
        Some(Record { hop: Hop::Agents, partition, key, envelope: envelope(message) })
    }

    /// The partition of an agent; all its versions share one, as they are compared.
    fn of_agent(self, agent: &AgentKey) -> u32 {
        let AgentParts { tenant, service_name, agent_name, environment, .. } = &**agent;
        let name = [&**service_name, agent_name, environment].join("\0");
        self.partition(self.route.session(tenant, &name))
    }
}

/// An empty update of the same agent, from the same shard and under the same revision.
fn bare(update: &SessionFacts) -> SessionFacts {
    SessionFacts {
        agent: update.agent.clone(),
        shard: update.shard,
        revision: update.revision,
        panes_only: true,
        ..SessionFacts::default()
    }
}

fn envelope(message: Message) -> Envelope {
    Envelope { message, shard: 0, generation: 0, time: Timestamp::default() }
}

/// The key of a report that is not keyed by its target; `None` if the report cannot be encoded.
fn key_of_report(message: &Message) -> Option<Vec<u8>> {
    Some([b"report", &xxh3_64(&pack(message)?).to_be_bytes()[..]].concat())
}

/// The hash of an agent's name, for keys of records.
fn name_of(agent: &AgentKey) -> u64 {
    xxh3_64(agent.texts().join("\0").as_bytes())
}

/// Encodes a value for records and checkpoints, with the names of its fields, so that fields can be added; `None` if it fails.
pub(super) fn pack<T: Serialize + ?Sized>(value: &T) -> Option<Vec<u8>> {
    let packed = saved::write(value);
    packed
        .inspect_err(|error| tracing::error!(%error, "the state of a stage cannot be written"))
        .ok()
}

/// Reads what [`pack`] wrote.
pub(super) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, saved::ReadError> {
    saved::read(bytes)
}

/// Reads a record between the stages as a worker does, and encodes it again; `None` if it cannot be read.
pub fn rewritten(record: &[u8]) -> Option<Vec<u8>> {
    pack(&unpack::<Envelope>(record).ok()?)
}
