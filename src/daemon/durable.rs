//! What outlives the process: the log in front of the stages, and recovery before they start.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::router::Router;
use super::store_metrics::StoreMetrics;
use super::{StartError, convention, seed};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::embedding::Embedded;
use crate::engine::expect::Suite;
use crate::engine::judging::JudgeReply;
use crate::engine::pipeline::{EngineOptions, Pipeline, Stages};
use crate::engine::route::Route;
use crate::engine::sessions::{Attic, Sessions};
use crate::engine::span::{Report, TraceId};
use crate::engine::update::Barrier;
use crate::ingest::decode::Decoder;
use crate::ingest::{Batch, Overloaded, Request};
use crate::store::{
    Budget, Committer, Disk, Durability, FileAttic, Folder, KEPT, Kind, Lock, Opened, Record,
    Section, Snapshot, SnapshotWriter, StoreError, Ticket,
};

/// When a sender whose request could not be made durable should come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How often it is looked whether a snapshot is due.
const LOOK: Duration = Duration::from_millis(200);

/// How long a stage may take until the barrier has passed it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Timers of a replay that are due within this time run together.
const STEP: Duration = Duration::from_millis(100);

/// The log, as the way in sees it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Durable {
    pub(super) committer: Committer,
    // Held as long as anybody can write.
    _lock: Arc<Lock>,
}

/// A store that was opened and replayed.
pub(super) struct Recovered {
    lock: Lock,
    opened: Opened,
    metrics: Arc<StoreMetrics>,
}

/// Writes snapshots when they are due.
pub(super) struct Snapshots {
    committer: Committer,
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    metrics: Arc<StoreMetrics>,
    snapshot_bytes: u64,
    // What had been written to the log when the last one began.
    written: u64,
    last: u64,
}

/// What goes on below while a snapshot is made.
pub(super) struct Stream {
    pub(super) router: Router,
    pub(super) epoch: Arc<AtomicU64>,
    pub(super) saved: mpsc::Receiver<(u64, Option<Section>)>,
}

impl Durable {
    /// Returns when the record is as safe as the configuration asks for.
    pub(super) async fn append(&self, record: Record) -> Result<Ticket, Overloaded> {
        let appended = self.committer.append(record).await;
        appended.map_err(|_| Overloaded { retry_after: RETRY_AFTER })
    }
}

/// What a judge or an embedding model said, as the log holds it: it was paid for.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    replies: Vec<JudgeReply>,
    reports: Vec<Report>,
    #[serde(default)]
    embedded: Vec<(TraceId, Embedded)>,
}

impl Told {
    /// Its bytes in the log.
    pub(super) fn bytes(batch: &Batch) -> Option<Bytes> {
        #[derive(Serialize)]
        struct Told<'b> {
            replies: &'b [JudgeReply],
            reports: &'b [Report],
            embedded: &'b [(TraceId, Embedded)],
        }
        let Batch { judged: replies, reports, embedded, .. } = batch;
        // Strings and numbers: there is nothing in it that cannot be written.
        rmp_serde::to_vec_named(&Told { replies, reports, embedded }).ok().map(Bytes::from)
    }
}

impl Recovered {
    /// Takes appends from here on.
    pub(super) fn start(self, config: &Config) -> (Durable, Snapshots) {
        let Self { lock, opened, metrics } = self;
        let (disk, budget) = (Arc::clone(opened.disk()), Arc::clone(opened.budget()));
        let last = opened.recovery.base();
        let watch: Arc<StoreMetrics> = Arc::clone(&metrics);
        let committer = Committer::start(opened, config.store.commit_interval, watch);
        let durable = Durable { committer: committer.clone(), _lock: Arc::new(lock) };
        let snapshot_bytes = config.store.snapshot_bytes;
        // What was replayed counts as written: after a long replay a snapshot is due soon.
        let snapshots =
            Snapshots { committer, disk, budget, metrics, snapshot_bytes, written: 0, last };
        (durable, snapshots)
    }
}

impl Snapshots {
    /// Writes snapshots until `stopping` says so, and then a last one, so that the next start has nothing to replay.
    pub(super) async fn run(mut self, mut stream: Stream, mut stopping: watch::Receiver<bool>) {
        loop {
            let stop = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            if stop || self.is_due() {
                self.take(&mut stream).await;
            }
            if stop {
                return;
            }
        }
    }

    /// The log has grown enough, or its budget bites.
    fn is_due(&self) -> bool {
        let grown = self.budget.written().saturating_sub(self.written);
        // Twice the state: what is written for snapshots stays below what is written for the log.
        let least = self.snapshot_bytes.max(self.budget.snapshots());
        self.metrics.was_pressed() || self.budget.was_pressed() || grown >= least
    }

    async fn take(&mut self, stream: &mut Stream) {
        let seq = self.committer.ledger().applied();
        if seq == self.last {
            return;
        }
        self.written = self.budget.written();
        // With no room for a second one, one has to do.
        let keep = if self.budget.is_tight() { 1 } else { KEPT };
        let released = self.write(stream, seq, keep).await;
        match &released {
            Ok(released) => {
                self.last = seq;
                self.committer.release(*released).await;
            }
            Err(error) => tracing::error!(%error, "a snapshot could not be written"),
        }
        let open = self.committer.ledger().applied().saturating_sub(self.last);
        self.metrics.snapshot(released.is_ok(), open);
    }

    /// Sends a barrier through the stages, and writes what they hold when it passes them.
    async fn write(&self, stream: &mut Stream, seq: u64, keep: usize) -> io::Result<u64> {
        let epoch = stream.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        let (sections, inbox) = mpsc::channel(1);
        let (disk, budget) = (Arc::clone(&self.disk), Arc::clone(&self.budget));
        let Stream { router, saved, .. } = stream;
        let mut missing = router.assemble.len() + router.sessions.len() + 1;
        let all = missing + 2;
        let writer = spawn_blocking(move || write(disk, budget, (seq, keep), (all, inbox)));
        for section in [section("route".to_owned(), &router.route), router.saved_resolve()] {
            let section = section.ok_or_else(absent)?;
            sections.send(section).await.map_err(|_| absent())?;
        }
        router.barrier(Barrier { epoch, log_sequence: Some(seq) }).await.map_err(|_| absent())?;
        while missing > 0 {
            let next = timeout(PATIENCE, saved.recv()).await.map_err(io::Error::from)?;
            let (of, section) = next.ok_or_else(absent)?;
            // One of a snapshot that was given up comes late.
            if of == epoch {
                missing -= 1;
                let section = section.ok_or_else(absent)?;
                // If the writer has given up it says why below; the stages are let go on.
                let _ = sections.send(section).await;
            }
        }
        drop(sections);
        writer.await.map_err(io::Error::other)?
    }
}

/// Writes so many sections as they come; fewer are no snapshot.
fn write(
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    (seq, keep): (u64, usize),
    (sections, mut inbox): (usize, mpsc::Receiver<Section>),
) -> io::Result<u64> {
    let mut writer = SnapshotWriter::begin(disk, budget, seq)?;
    for _ in 0..sections {
        writer.section(&inbox.blocking_recv().ok_or_else(absent)?)?;
    }
    writer.finish(keep)
}

fn absent() -> io::Error {
    io::Error::other("not every stage said what it holds")
}

/// A state as a section; `None` if it cannot be written down, which no state is meant to be.
pub(super) fn section<S: Serialize>(name: String, state: &S) -> Option<Section> {
    let written = rmp_serde::to_vec_named(state).map_err(io::Error::other);
    match written.and_then(|bytes| zstd::encode_all(bytes.as_slice(), 1)) {
        Ok(bytes) => Some(Section { name, bytes }),
        Err(error) => {
            tracing::error!(%error, name, "cannot write down what a stage holds");
            None
        }
    }
}

/// Reads a section of a snapshot.
fn read<T: DeserializeOwned>(snapshot: &Snapshot, name: &str) -> Result<T, StoreError> {
    let fail = |why: String| StoreError::Section { section: name.to_owned(), why };
    let bytes = snapshot.sections.get(name).ok_or_else(|| fail("it is not there".to_owned()))?;
    let bytes = zstd::decode_all(bytes.as_slice()).map_err(|error| fail(error.to_string()))?;
    rmp_serde::from_slice(&bytes).map_err(|error| fail(error.to_string()))
}

/// The stages as a snapshot has them. The number of shards is the snapshot's: no result depends on it.
fn restore(
    options: &EngineOptions,
    shards: u32,
    snapshot: &Snapshot,
) -> Result<Pipeline, StoreError> {
    let route: Route = read(snapshot, "route")?;
    if route.shards() != shards {
        let (kept, asked) = (route.shards(), shards);
        tracing::warn!(kept, asked, "`engine.shards` stays what the store was written with");
    }
    let mut pipeline = Pipeline::routed(options, route);
    let (resolve, assemble, sessions, agents) = pipeline.lasting();
    resolve.restore(read(snapshot, "resolve")?);
    for (shard, stage) in assemble.iter_mut().enumerate() {
        stage.restore(read(snapshot, &format!("assemble/{shard}"))?);
    }
    for (shard, stage) in sessions.iter_mut().enumerate() {
        stage.restore(read(snapshot, &format!("sessions/{shard}"))?);
    }
    // The first snapshots had nothing of it.
    if snapshot.sections.contains_key("agents") {
        agents.restore(read(snapshot, "agents")?);
    }
    Ok(pipeline)
}

/// The stages as the store has them, or empty ones where nothing outlives the process.
///
/// # Errors
///
/// Fails if the store cannot be used or read.
pub(super) fn recover(
    config: &Config,
    expected: Arc<[Suite]>,
    clock: &Clock,
    registry: &prometheus::Registry,
) -> Result<(Stages, Option<Recovered>), StartError> {
    // As it was read before, so it is read again: what a judge was asked is known, and nobody is asked meanwhile.
    let options = EngineOptions {
        judging: config.judge.rules(),
        embedding: config.embed.wanted(),
        ..config.engine_options(expected)
    };
    let fresh = || Pipeline::routed(&options, Route::new(config.engine.shards, seed()));
    if config.store.durability == Durability::Memory {
        return Ok((fresh().into_stages(clock.now()), None));
    }
    let begun = clock.now();
    let directory = Path::new(&config.store.directory);
    let folder = Folder::new(directory)
        .map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
    let lock = Lock::take(directory)?;
    let disk: Arc<dyn Disk> = Arc::new(folder);
    let mut opened = Opened::open(disk, &config.store)?;
    let mut pipeline = match opened.recovery.take_snapshot() {
        Some(snapshot) => restore(&options, config.engine.shards, &snapshot)?,
        None => fresh(),
    };
    let attics = attics(config, &opened, &mut pipeline)?;
    pipeline.keep_away(attics);
    pipeline.leave_board();
    let replayed = replay(config, clock, &opened, &mut pipeline)?;
    let stages = pipeline.into_stages(clock.now());
    let metrics = StoreMetrics::new(registry, clock.clone(), Arc::clone(opened.budget()))?;
    let took = Duration::from_nanos(clock.now().0.saturating_sub(begun.0));
    metrics.recovered(&opened.recovery.found, replayed, took);
    let found = opened.recovery.found;
    tracing::info!(
        records = replayed,
        cut_bytes = found.cut_bytes,
        lost_records = found.lost_records,
        bad_snapshots = found.bad_snapshots,
        seconds = took.as_secs_f64(),
        "recovered the store"
    );
    Ok((stages, Some(Recovered { lock, opened, metrics })))
}

/// Where sessions of each shard go for which there is no room.
fn attics(
    config: &Config,
    opened: &Opened,
    pipeline: &mut Pipeline,
) -> Result<Vec<Box<dyn Attic + Send>>, StoreError> {
    let (_, _, sessions, _) = pipeline.lasting();
    let open = |(shard, stage): (usize, &mut Sessions)| {
        let (disk, budget) = (Arc::clone(opened.disk()), Arc::clone(opened.budget()));
        let of = (shard, config.store.segment_bytes);
        FileAttic::open(disk, budget, of, stage.attic_places()).map(|attic| Box::new(attic) as _)
    };
    sessions.iter_mut().enumerate().map(open).collect()
}

/// Feeds the log to the stages, each record at the time at which it arrived; returns how many there were.
fn replay(
    config: &Config,
    clock: &Clock,
    opened: &Opened,
    pipeline: &mut Pipeline,
) -> Result<u64, StoreError> {
    let decoder = Decoder::new(config.ingest.clone(), convention(config));
    let (mut replayed, mut refused) = (0, 0);
    for found in opened.recovery.replay(opened.disk().as_ref()) {
        let (_, Record { arrival, payload, kind }) = found?;
        clock.not_before(arrival);
        replayed += 1;
        if kind == Kind::Judged {
            pipeline.advance_in_steps(arrival, STEP);
            match rmp_serde::from_slice::<Told>(&payload) {
                Ok(Told { replies, reports, embedded }) => {
                    pipeline.judged(replies, reports, arrival);
                    pipeline.embedded(embedded, arrival);
                }
                Err(_) => refused += 1,
            }
            continue;
        }
        let batch = Request::from_bytes(payload).and_then(|request| {
            let Request { signal, encoding, compression, sent, tenant, body } = request;
            let prepared = decoder.prepare(signal, encoding, compression, body).ok()?;
            decoder.decode(prepared, Some(sent.unwrap_or(arrival)), tenant.as_ref()).ok()
        });
        pipeline.advance_in_steps(arrival, STEP);
        match batch {
            Some(batch) => pipeline.apply(batch.spans, batch.logs, batch.reports, arrival),
            None => refused += 1,
        }
    }
    if refused > 0 {
        tracing::warn!(refused, "requests of the log are over limits that were lowered since");
    }
    Ok(replayed)
}
