//! The store beside the stages: the log in front of them, their snapshots, and recovery before they start.

use std::io::{self, BufReader};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::router::Router;
use super::store_metrics::StoreMetrics;
use super::{Check, StartError, convention, seed};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::embedding::Embedded;
use crate::engine::expect::Suite;
use crate::engine::facts::Barrier;
use crate::engine::judging::JudgeReply;
use crate::engine::pipeline::{EngineOptions, Pipeline, Stages};
use crate::engine::route::Route;
use crate::engine::saved;
use crate::engine::sessions::{SessionStore, Sessions};
use crate::engine::span::{Report, Timestamp};
use crate::engine::tenants::TraceKey;
use crate::engine::time::WallShift;
use crate::ingest::decode::{Decoder, IngestLimits};
use crate::ingest::{Batch, Lacks, Overloaded, Request};
use crate::store::{
    Budget, Committer, Disk, Durability, FileSessionStore, Folder, KEPT, Kind, Lock, Opened,
    Record, Refused, Section, Snapshot, SnapshotWriter, StoreError, Ticket,
};
use crate::telemetry;

/// When a sender whose request could not be made durable should come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Time between two checks whether a snapshot is due.
const LOOK: Duration = Duration::from_millis(200);

/// Time between two looks whether all files are there.
const LOOK_AT_FILES: Duration = Duration::from_secs(2);

/// How long timers wait for their time to be in the log.
const TIMERS_WAIT: Duration = Duration::from_secs(1);

/// How long to wait for the next section of a snapshot.
const PATIENCE: Duration = Duration::from_secs(60);

/// Records that are read and decoded ahead of the replay, at most.
const AHEAD: usize = 16;

/// Bytes of the buffer into which a section is inflated.
const PIECE: usize = 128 << 10;

/// The name of the section that holds the time of a snapshot.
const CLOCK: &str = "clock";

/// The step of a replay: timers that are due within it run together, and the log has the times at which timers ran to within it.
const STEP: Duration = Duration::from_millis(100);

/// The log, as the router uses it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Durable {
    pub(super) committer: Committer,
    // Spans and log records that were appended since the start or replayed at it.
    items: Arc<AtomicU64>,
    clock: Clock,
    // The shift of wall time that the log holds.
    shift: Arc<Mutex<WallShift>>,
    // The last time that the log holds.
    noted: Arc<AtomicU64>,
    // Held by who notes a time.
    noting: Arc<Mutex<()>>,
    // The lock on the directory, held as long as anybody can write.
    _lock: Arc<Lock>,
}

/// A store that was opened and replayed.
pub(super) struct Recovered {
    lock: Lock,
    opened: Opened,
    metrics: Arc<StoreMetrics>,
    items: u64,
    clock: Clock,
    shift: WallShift,
}

/// Writes snapshots when they are due.
pub(super) struct Snapshots {
    committer: Committer,
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    metrics: Arc<StoreMetrics>,
    items: Arc<AtomicU64>,
    clock: Clock,
    snapshot_bytes: u64,
    snapshot_spans: u64,
    // The bytes and the items of the log when the last snapshot began.
    written: (u64, u64),
    last: u64,
    // Whether somebody removed files, so that only a new snapshot has everything.
    incomplete: bool,
}

/// The ways to and from the stages that a snapshot needs: barriers go in, sections come out.
pub(super) struct Stream {
    pub(super) router: Router,
    pub(super) epoch: Arc<AtomicU64>,
    pub(super) saved: mpsc::Receiver<(u64, Option<Section>)>,
}

impl Durable {
    /// Appends a record, and returns when it is as safe as the configuration asks for.
    pub(super) async fn append(&self, record: Record, items: usize) -> Result<Ticket, Overloaded> {
        self.note_shift(record.arrival).await?;
        let arrival = record.arrival;
        let appended = self.committer.append(record).await;
        self.items.fetch_add(items as u64, Ordering::Relaxed);
        if appended.is_ok() {
            self.noted.fetch_max(arrival.0, Ordering::Relaxed);
        }
        appended.map_err(overloaded)
    }

    /// If the wall clock was set, writes the new shift to the log, before the records whose stamps it moves.
    async fn note_shift(&self, now: Timestamp) -> Result<(), Overloaded> {
        let shift = self.clock.shift();
        let mut told = self.shift.lock().await;
        if *told != shift {
            let payload = Bytes::copy_from_slice(&shift.0.to_le_bytes());
            let record = Record { arrival: now, kind: Kind::Clock, payload };
            let appended = self.committer.append(record).await;
            appended.map_err(overloaded)?.applied();
            *told = shift;
        }
        Ok(())
    }

    /// Notes in the log that timers run which are due by `now`, before they do, if no record says so: what they count is not counted
    /// again after a crash. If the disk takes too long, they do not wait for it.
    pub(super) async fn note_time(&self, now: Timestamp) {
        let is_noted = || Timestamp(self.noted.load(Ordering::Relaxed)).after(STEP) > now;
        if is_noted() {
            return;
        }
        let noting = async {
            // One record will do for all shards, which go on together.
            let _turn = self.noting.lock().await;
            if !is_noted() {
                let (committer, shift) = (self.committer.clone(), self.clock.shift());
                let payload = Bytes::copy_from_slice(&shift.0.to_le_bytes());
                let record = Record { arrival: now, kind: Kind::Clock, payload };
                let appended = tokio::spawn(async move {
                    // The committer counts and logs a refusal.
                    if let Ok(ticket) = committer.append(record).await {
                        ticket.applied();
                    }
                });
                let _ = appended.await;
                self.noted.fetch_max(now.0, Ordering::Relaxed);
            }
        };
        if timeout(TIMERS_WAIT, noting).await.is_err() {
            self.noted.fetch_max(now.0, Ordering::Relaxed);
        }
    }
}

fn overloaded(why: Refused) -> Overloaded {
    let lacks = match why {
        Refused::Budget => Lacks::Budget,
        Refused::Disk => Lacks::Disk,
        Refused::Write | Refused::Stopped => Lacks::Store,
        Refused::Busy => Lacks::Turn,
    };
    Overloaded { retry_after: RETRY_AFTER, lacks }
}

/// The time of a snapshot, and the shift of wall time then.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct SavedClock {
    now: Timestamp,
    shift: WallShift,
}

/// The answers of a judge or an embedding model, as the log holds them: they were paid for.
#[derive(Debug, Deserialize)]
pub(super) struct Answers {
    replies: Vec<JudgeReply>,
    reports: Vec<Report>,
    embedded: Vec<(TraceKey, Embedded)>,
}

impl Answers {
    /// The bytes of a batch's answers in the log.
    pub(super) fn bytes(batch: &Batch) -> Option<Bytes> {
        #[derive(Serialize)]
        struct Answers<'b> {
            replies: &'b [JudgeReply],
            reports: &'b [Report],
            embedded: &'b [(TraceKey, Embedded)],
        }
        let Batch { judged: replies, reports, embedded, .. } = batch;
        // They are strings and numbers, which can always be serialised.
        saved::write(&Answers { replies, reports, embedded }).ok().map(Bytes::from)
    }
}

impl Recovered {
    /// How many acknowledged records were missing from the log.
    pub(super) fn lost_records(&self) -> u64 {
        self.opened.recovery.found.lost_records
    }

    /// Opens the log for appends; returns it and the writer of snapshots.
    pub(super) fn start(self, config: &Config) -> (Durable, Snapshots) {
        let Self { lock, opened, metrics, items, clock, shift } = self;
        let items = Arc::new(AtomicU64::new(items));
        let (disk, budget) = (Arc::clone(opened.disk()), Arc::clone(opened.budget()));
        let last = opened.recovery.base();
        let watch: Arc<StoreMetrics> = Arc::clone(&metrics);
        let committer = Committer::start(opened, config.store.commit_interval, watch);
        let durable = Durable {
            committer: committer.clone(),
            items: Arc::clone(&items),
            clock: clock.clone(),
            shift: Arc::new(Mutex::new(shift)),
            noted: Arc::default(),
            noting: Arc::default(),
            _lock: Arc::new(lock),
        };
        let snapshots = Snapshots {
            committer,
            disk,
            budget,
            metrics,
            items,
            clock,
            snapshot_bytes: config.store.snapshot_bytes,
            snapshot_spans: config.store.snapshot_spans,
            // Replayed records count as written: after a long replay a snapshot is due soon.
            written: (0, 0),
            last,
            incomplete: false,
        };
        (durable, snapshots)
    }
}

impl Snapshots {
    /// A check that fails while the log cannot be written.
    pub(super) fn check(&self) -> Check {
        let metrics = Arc::clone(&self.metrics);
        Arc::new(move || metrics.fails().map_or(Ok(()), |failure| Err(failure.why.to_string())))
    }

    /// Writes snapshots until `stopping` is set, and then a last one, so that the next start has nothing to replay.
    pub(super) async fn run(mut self, mut stream: Stream, mut stopping: watch::Receiver<bool>) {
        let mut looked = self.clock.elapsed();
        loop {
            let stop = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let mut lacks_files = false;
            if stop || self.clock.elapsed().saturating_sub(looked) >= LOOK_AT_FILES {
                looked = self.clock.elapsed();
                self.incomplete |= !self.committer.is_whole(self.last).await;
                lacks_files = self.incomplete;
            }
            if let Some(failure) = self.metrics.fails().filter(|_| !stop) {
                self.probe(failure.bytes).await;
            }
            if stop || lacks_files || self.is_due() {
                self.take(&mut stream).await;
            }
            if stop {
                return;
            }
        }
    }

    /// Finds out whether the log takes as much as it could not: while the daemon is not ready, no request may come that would show it.
    async fn probe(&self, bytes: u64) {
        match self.committer.probe(bytes).await {
            Ok(()) => self.metrics.took(bytes),
            Err(why) => self.metrics.fell_short(bytes, why),
        }
    }

    /// Whether a snapshot is due: the log has grown enough, or its budget bites, or the disk has begun to fail, as it may be full.
    fn is_due(&self) -> bool {
        let (written, items) = self.written;
        let grown = self.budget.written().saturating_sub(written);
        let items = self.items.load(Ordering::Relaxed).saturating_sub(items);
        // The bytes of all snapshots, mostly twice the state: less is written for snapshots than for the log, or, where a start would take
        // long, less than four times as much.
        let both = self.budget.snapshots();
        let long = items >= self.snapshot_spans && grown >= both / 8;
        let pressed = self.metrics.was_pressed() | self.budget.was_pressed();
        pressed || long || grown >= self.snapshot_bytes.max(both)
    }

    async fn take(&mut self, stream: &mut Stream) {
        let seq = self.committer.ledger().applied();
        if seq == self.last && !self.incomplete {
            return;
        }
        self.written = (self.budget.written(), self.items.load(Ordering::Relaxed));
        // Where there is no room for two snapshots, one has to do.
        let keep = if self.budget.is_tight() || self.metrics.fails().is_some() { 1 } else { KEPT };
        let released = self.write(stream, seq, keep).await;
        match &released {
            Ok(released) => {
                (self.last, self.incomplete) = (seq, false);
                self.committer.release(*released).await;
            }
            Err(error) => tracing::error!(%error, "a snapshot could not be written"),
        }
        let open = self.committer.ledger().applied().saturating_sub(self.last);
        self.metrics.snapshot(released.is_ok(), open);
    }

    /// Sends a barrier through the stages, and writes the state that each has as it passes; returns the sequence number up to which the
    /// log is not needed.
    async fn write(&self, stream: &mut Stream, seq: u64, keep: usize) -> io::Result<u64> {
        let _step = telemetry::step("store.snapshot");
        let epoch = stream.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        let (sections, inbox) = mpsc::channel(1);
        let (disk, budget) = (Arc::clone(&self.disk), Arc::clone(&self.budget));
        let Stream { router, saved, .. } = stream;
        let mut missing = router.assemble.len() + router.sessions.len() + 1;
        let all = missing + 4;
        let writer = spawn_blocking(move || {
            write(SnapshotWriter::begin(disk, budget, seq)?, all, inbox, keep)
        });
        let clock = SavedClock { now: self.clock.now(), shift: self.clock.shift() };
        let none_on_the_way = router.on_the_way.write().await;
        let first = [
            section("route".to_owned(), &router.route),
            section(CLOCK.to_owned(), &clock),
            router.saved_resolve(),
        ];
        router.barrier(Barrier { epoch, log_sequence: Some(seq) }).await.map_err(|_| absent())?;
        drop(none_on_the_way);
        for section in first {
            // If the writer has failed, its error is returned below. The sections of the stages are taken all the same: there would
            // be no room for those of the next snapshot.
            let _ = sections.send(section.ok_or_else(absent)?).await;
        }
        while missing > 0 {
            let next = timeout(PATIENCE, saved.recv()).await.map_err(io::Error::from)?;
            let (of, section) = next.ok_or_else(absent)?;
            // A section of another epoch is a late one, of a snapshot that was given up.
            if of == epoch {
                missing -= 1;
                let _ = sections.send(section.ok_or_else(absent)?).await;
            }
        }
        // After all shards, as each adds to it: of what they hold nothing is missing.
        let learned = router.saved_learned().ok_or_else(absent)?;
        let _ = sections.send(learned).await;
        drop(sections);
        writer.await.map_err(io::Error::other)?
    }
}

/// Writes this many sections as they come, and finishes the snapshot; fails if fewer come.
fn write(
    mut writer: SnapshotWriter,
    sections: usize,
    mut inbox: mpsc::Receiver<Section>,
    keep: usize,
) -> io::Result<u64> {
    for _ in 0..sections {
        writer.section(&inbox.blocking_recv().ok_or_else(absent)?)?;
    }
    writer.finish(keep)
}

fn absent() -> io::Error {
    io::Error::other("not every stage said what it holds")
}

/// A state as a section; `None` if it cannot be serialised, which is an error of the code.
pub(super) fn section<S: Serialize>(name: String, state: &S) -> Option<Section> {
    let written = saved::write(state).map_err(io::Error::other);
    match written.and_then(|bytes| zstd::encode_all(bytes.as_slice(), 1)) {
        Ok(bytes) => Some(Section { name, bytes }),
        Err(error) => {
            tracing::error!(%error, name, "cannot write down what a stage holds");
            None
        }
    }
}

/// Reads a section of a snapshot as a value.
fn read<T: DeserializeOwned>(snapshot: &Snapshot, name: &str) -> Result<T, StoreError> {
    read_into(snapshot, name, |from| T::deserialize(from))
}

/// Reads a section of a snapshot by `take`, which gets it piece by piece: the section is inflated as it is read.
fn read_into<T>(
    snapshot: &Snapshot,
    name: &str,
    take: impl FnOnce(&mut saved::Source<'_>) -> Result<T, saved::ReadError>,
) -> Result<T, StoreError> {
    let fail = |why: String| StoreError::Section { section: name.to_owned(), why };
    let bytes = snapshot.sections.get(name).ok_or_else(|| fail("it is not there".to_owned()))?;
    let inflated = zstd::Decoder::with_buffer(bytes.as_slice());
    let inflated = inflated.map_err(|error| fail(error.to_string()))?;
    let mut from = BufReader::with_capacity(PIECE, inflated);
    saved::read_with(&mut from, take).map_err(|error| fail(error.to_string()))
}

/// Restores the stages from a snapshot, with the snapshot's number of shards: no result depends on it.
fn restore(
    options: &EngineOptions,
    shards: u32,
    snapshot: &Snapshot,
    clock: SavedClock,
) -> Result<Pipeline, StoreError> {
    let route: Route = read(snapshot, "route")?;
    if route.shards() != shards {
        let (kept, asked) = (route.shards(), shards);
        tracing::warn!(kept, asked, "`engine.shards` stays what the store was written with");
    }
    let mut pipeline = Pipeline::routed(options, route);
    pipeline.shift_to(clock.shift);
    pipeline.learned().restore(read(snapshot, "learned")?);
    let (resolve, assemble, sessions, agents) = pipeline.lasting();
    resolve.restore(read(snapshot, "resolve")?);
    // This takes most of the time of a start, so shards are restored in parallel.
    thread::scope(|scope| {
        let shards = assemble.iter_mut().zip(sessions).enumerate();
        let shards = shards.map(|(shard, (assemble, sessions))| {
            scope.spawn(move || -> Result<(), StoreError> {
                assemble.restore(read(snapshot, &format!("assemble/{shard}"))?);
                let name = format!("sessions/{shard}");
                read_into(snapshot, &name, |from| sessions.restore(from))
            })
        });
        let shards: Vec<_> = shards.collect();
        let done =
            shards.into_iter().map(|shard| shard.join().unwrap_or_else(|why| resume_unwind(why)));
        done.collect::<Result<(), StoreError>>()
    })?;
    agents.restore(read(snapshot, "agents")?);
    Ok(pipeline)
}

/// Recovers the stages from the store; they are empty where there is none.
///
/// # Errors
///
/// Fails if the store cannot be used or read.
pub(super) fn recover(
    config: &Config,
    expected: Arc<[Suite]>,
    clock: &Clock,
    registry: &crate::registry::Registry,
) -> Result<(Stages, Option<Recovered>), StartError> {
    // The replay uses the options of the run, so that the stages know what the judge was asked; nobody is asked meanwhile.
    let options = EngineOptions {
        judging: config.judge.rules(),
        embedding: config.embed.wanted(),
        ..config.engine_options(expected)
    };
    let fresh = || Pipeline::routed(&options, Route::new(config.engine.shards, seed()));
    if config.store.durability == Durability::Memory {
        return Ok((fresh().into_stages(clock.now()), None));
    }
    let begun = clock.elapsed();
    let directory = Path::new(&config.store.directory);
    let folder = Folder::new(directory)
        .map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
    let lock = Lock::take(directory)?;
    let disk: Arc<dyn Disk> = Arc::new(folder);
    let mut opened = Opened::open(disk, &config.store)?;
    let mut last = SavedClock::default();
    let mut pipeline = match opened.recovery.take_snapshot() {
        Some(snapshot) => {
            last = read(&snapshot, CLOCK)?;
            restore(&options, config.engine.shards, &snapshot, last)?
        }
        None => fresh(),
    };
    let restored = clock.elapsed().saturating_sub(begun);
    let session_stores = session_stores(config, &opened, &mut pipeline)?;
    pipeline.use_session_store(session_stores);
    pipeline.leave_board();
    let (replayed, items) = replay(config, &mut last, &opened, &mut pipeline)?;
    clock.resume(last.now, last.shift);
    // Timers that the process before has run have counted.
    pipeline.advance_in_steps(last.now.after(STEP).min(clock.now()), STEP);
    pipeline.shift_to(clock.shift());
    let stages = pipeline.into_stages(clock.now());
    let metrics = StoreMetrics::new(registry, clock.clone(), Arc::clone(opened.budget()))?;
    let took = clock.elapsed().saturating_sub(begun);
    metrics.recovered(&opened.recovery.found, replayed, took);
    let found = opened.recovery.found;
    tracing::info!(
        records = replayed,
        cut_bytes = found.cut_bytes,
        lost_records = found.lost_records,
        bad_snapshots = found.bad_snapshots,
        seconds = took.as_secs_f64(),
        seconds_of_snapshot = restored.as_secs_f64(),
        "recovered the store"
    );
    if found.lost_records > 0 {
        tracing::error!(
            lost_records = found.lost_records,
            "acknowledged records are missing from the log and were left out"
        );
    }
    if found.lost_marks > 0 {
        tracing::error!(
            "the marks of where the log ended were gone: whether it lost acknowledged records at its end is not known"
        );
    }
    let (clock, shift) = (clock.clone(), last.shift);
    Ok((stages, Some(Recovered { lock, opened, metrics, items, clock, shift })))
}

/// The session stores of all shards, which take the sessions that are evicted.
fn session_stores(
    config: &Config,
    opened: &Opened,
    pipeline: &mut Pipeline,
) -> Result<Vec<Box<dyn SessionStore + Send>>, StoreError> {
    let (_, _, sessions, _) = pipeline.lasting();
    let open = |(shard, stage): (usize, &mut Sessions)| {
        let (disk, budget) = (Arc::clone(opened.disk()), Arc::clone(opened.budget()));
        let file_bytes = config.store.segment_bytes;
        FileSessionStore::open(disk, budget, shard, file_bytes, stage.session_places())
            .map(|session_store| Box::new(session_store) as _)
    };
    sessions.iter_mut().enumerate().map(open).collect()
}

/// A decoded record of the log.
enum Read {
    Answered(Answers),
    Batch(Box<Batch>),
    /// The time, and the shift of wall time from then on.
    Shift(WallShift),
    /// It cannot be decoded.
    Refused,
}

/// Feeds the log to the stages, each record at the time at which it arrived, and moves `clock` to the last of them; returns the number
/// of records, and of the spans and log records in them. Another thread reads ahead.
fn replay(
    config: &Config,
    clock: &mut SavedClock,
    opened: &Opened,
    pipeline: &mut Pipeline,
) -> Result<(u64, u64), StoreError> {
    // What was acknowledged stays so, though a limit was lowered since.
    let limits = IngestLimits {
        max_request_bytes: usize::MAX,
        max_request_items: usize::MAX,
        ..config.ingest.clone()
    };
    let decoder = Decoder::new(limits, convention(config));
    let (mut replayed, mut items, mut refused) = (0, 0, 0);
    thread::scope(|scope| {
        let (ahead, records) = sync_channel(AHEAD);
        let (recovery, disk) = (&opened.recovery, Arc::clone(opened.disk()));
        scope.spawn(move || {
            for found in recovery.replay(disk.as_ref()) {
                let record = found.map(|(_, record)| (record.arrival, decode(&decoder, record)));
                let failed = record.is_err();
                if ahead.send(record).is_err() || failed {
                    return;
                }
            }
        });
        for record in records {
            let (arrival, read) = record?;
            clock.now = clock.now.max(arrival);
            // A record that only tells the time is none that anybody sent.
            replayed += u64::from(!matches!(read, Read::Shift(_)));
            pipeline.advance_in_steps(arrival, STEP);
            match read {
                Read::Answered(Answers { replies, reports, embedded }) => {
                    pipeline.judged(replies, reports, arrival);
                    pipeline.embedded(embedded, arrival);
                }
                Read::Batch(batch) => {
                    let Batch { spans, logs, reports, .. } = *batch;
                    items += (spans.len() + logs.len()) as u64;
                    pipeline.apply(spans, logs, reports, arrival);
                }
                Read::Shift(shift) => {
                    clock.shift = shift;
                    pipeline.shift_to(shift);
                }
                Read::Refused => refused += 1,
            }
        }
        Ok(())
    })?;
    if refused > 0 {
        tracing::error!(refused, "records of the log cannot be decoded, and are lost");
    }
    Ok((replayed, items))
}

fn decode(decoder: &Decoder, Record { arrival, payload, kind }: Record) -> Read {
    if kind == Kind::Judged {
        return saved::read(payload.as_ref()).map_or(Read::Refused, Read::Answered);
    }
    if kind == Kind::Clock {
        let shift = payload.as_ref().try_into().map(i64::from_le_bytes);
        return shift.map_or(Read::Refused, |shift| Read::Shift(WallShift(shift)));
    }
    let batch = Request::from_bytes(payload).and_then(|request| {
        let Request { signal, encoding, compression, sent, tenant, body } = request;
        let prepared = decoder.prepare(signal, encoding, compression, body).ok()?;
        decoder.decode(prepared, Some(sent.unwrap_or(arrival)), tenant.as_ref()).ok()
    });
    batch.map_or(Read::Refused, |batch| Read::Batch(Box::new(batch)))
}
