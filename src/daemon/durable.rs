//! The store beside the stages: the log in front of them, and recovery before they start.

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
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::snapshots::{Course, Snapshots};
use super::store_metrics::StoreMetrics;
use super::{StartError, convention, seed};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::embedding::Embedded;
use crate::engine::expect::Suite;
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
    Committer, Disk, Durability, FileSessionStore, Folder, Kind, Lock, Opened, Record, Refused,
    Section, Snapshot, StoreError, Ticket,
};
use crate::webhook::SavedPace;

/// When a sender should retry whose request could not be made durable.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long timers wait until their time is in the log.
const TIMERS_WAIT: Duration = Duration::from_secs(1);

/// The most records that are read and decoded ahead of the replay.
const AHEAD: usize = 16;

/// Bytes of the buffer into which a section is inflated.
const PIECE: usize = 128 << 10;

/// The name of the section that holds the time of a snapshot.
pub(super) const CLOCK: &str = "clock";

/// The name of the section that holds the pace of the webhook.
pub(super) const PACE: &str = "webhook";

/// The step of a replay: timers that are due within one step run together, and the log has the times at which timers ran with this
/// precision.
const STEP: Duration = Duration::from_millis(100);

/// The log, as the router uses it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Durable {
    pub(super) committer: Committer,
    // Spans and log records that were appended since the start or replayed at it.
    items: Arc<AtomicU64>,
    clock: Clock,
    // The shift of wall time that is in the log.
    shift: Arc<Mutex<WallShift>>,
    // The last time that is in the log.
    noted: Arc<AtomicU64>,
    // Held while a time is noted.
    noting: Arc<Mutex<()>>,
    // The lock on the directory, held as long as anything can write.
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
    pace: SavedPace,
}

impl Durable {
    /// Appends a record, and returns when it is as safe as configured.
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

    /// If the wall clock was set, writes the new shift to the log, before the records whose timestamps it moves.
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

    /// If no record has noted it, notes in the log that timers due by `now` run, before they run: what they count is not counted
    /// again after a crash. If the disk takes too long, they do not wait for it.
    pub(super) async fn note_time(&self, now: Timestamp) {
        let is_noted = || Timestamp(self.noted.load(Ordering::Relaxed)).after(STEP) > now;
        if is_noted() {
            return;
        }
        let noting = async {
            // One record is enough for all shards, which advance together.
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
        Refused::Directory => Lacks::Directory,
        Refused::Busy => Lacks::Turn,
    };
    Overloaded { retry_after: RETRY_AFTER, lacks }
}

/// The time of a snapshot, and the shift of wall time then.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct SavedClock {
    pub(super) now: Timestamp,
    pub(super) shift: WallShift,
}

/// The answers of a judge or an embedding model in the log: they were paid for.
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

    /// The pace of the webhook when the snapshot was written.
    pub(super) fn pace(&self) -> SavedPace {
        self.pace.clone()
    }

    /// Opens the log for appends; returns it and the writer of snapshots.
    ///
    /// # Errors
    ///
    /// Fails if the system has no thread for writing.
    pub(super) fn start(self, config: &Config) -> Result<(Durable, Snapshots), StoreError> {
        let Self { lock, opened, metrics, items, clock, shift, .. } = self;
        let items = Arc::new(AtomicU64::new(items));
        let (disk, budget) = (Arc::clone(opened.disk()), Arc::clone(opened.budget()));
        let last = opened.recovery.base();
        let found = &opened.recovery.found;
        let lost = found.lost_records + found.lost_marks > 0;
        let watch: Arc<StoreMetrics> = Arc::clone(&metrics);
        let committer = Committer::start(opened, config.store.commit_interval, watch)?;
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
            last,
            // Replayed records count as written: after a long replay a snapshot is due soon.
            course: Course::beginning(lost),
        };
        Ok((durable, snapshots))
    }
}

/// A state as a section; `None` if it cannot be serialised, which is a bug.
pub(super) fn section<S: Serialize>(name: String, state: &S) -> Option<Section> {
    let written = saved::write(state).map_err(io::Error::other);
    match written.and_then(|bytes| zstd::encode_all(bytes.as_slice(), 1)) {
        Ok(bytes) => Some(Section { name, bytes }),
        Err(error) => {
            tracing::error!(%error, name, "cannot encode the state of a stage");
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

/// Restores the stages from a snapshot, with the snapshot's number of shards, on which no result depends.
fn restore(
    options: &EngineOptions,
    shards: u32,
    snapshot: &Snapshot,
    clock: SavedClock,
) -> Result<Pipeline, StoreError> {
    let route: Route = read(snapshot, "route")?;
    if route.shards() != shards {
        let (kept, asked) = (route.shards(), shards);
        tracing::warn!(
            kept,
            asked,
            "`engine.shards` keeps the value that the store was written with"
        );
    }
    let mut pipeline = Pipeline::routed(options, route);
    pipeline.shift_to(clock.shift);
    pipeline.learned().restore(read(snapshot, "learned")?);
    let (resolve, assemble, sessions, agents) = pipeline.lasting();
    resolve.restore(read(snapshot, "resolve")?);
    // This is most of the time of a start, so shards are restored in parallel.
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

/// Recovers the stages from the store; they are empty without one.
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
    // The replay uses the options of the run, so that the stages know what the judge was asked; it is not called meanwhile.
    let options = EngineOptions {
        judging: config.judge.rules(),
        embedding: config.embed.wanted(),
        ..config.engine_options(expected)
    };
    if config.store.durability == Durability::Memory {
        return Ok((fresh(config, &options).into_stages(clock.now()), None));
    }
    let directory = Path::new(&config.store.directory);
    let folder = Folder::new(directory)
        .map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
    let directory = Directory { lock: Lock::take(directory)?, disk: Arc::new(folder) };
    let (stages, recovered) = recover_from(directory, config, &options, clock, registry)?;
    Ok((stages, Some(recovered)))
}

/// A directory that only this process uses.
pub(super) struct Directory {
    pub(super) lock: Lock,
    pub(super) disk: Arc<dyn Disk>,
}

/// Recovers the stages from the store in a directory.
pub(super) fn recover_from(
    directory: Directory,
    config: &Config,
    options: &EngineOptions,
    clock: &Clock,
    registry: &crate::registry::Registry,
) -> Result<(Stages, Recovered), StartError> {
    let begun = clock.elapsed();
    let Directory { lock, disk } = directory;
    let mut opened = Opened::open(disk, &config.store)?;
    let (mut last, mut pace) = (SavedClock::default(), SavedPace::default());
    let mut pipeline = match opened.recovery.take_snapshot() {
        Some(snapshot) => {
            (last, pace) = (read(&snapshot, CLOCK)?, read(&snapshot, PACE)?);
            restore(options, config.engine.shards, &snapshot, last)?
        }
        None => fresh(config, options),
    };
    let restored = clock.elapsed().saturating_sub(begun);
    let session_stores = session_stores(config, &opened, &mut pipeline)?;
    pipeline.use_session_store(session_stores);
    pipeline.leave_board();
    let (replayed, items) = replay(config, &mut last, &opened, &mut pipeline)?;
    clock.resume(last.now, last.shift);
    // Timers that the previous process has run are already counted.
    pipeline.advance_in_steps(last.now.after(STEP).min(clock.now()), STEP);
    pipeline.shift_to(clock.shift());
    let stages = pipeline.into_stages(clock.now());
    let metrics = StoreMetrics::new(registry, clock.clone(), Arc::clone(opened.budget()))?;
    let took = clock.elapsed().saturating_sub(begun);
    metrics.recovered(&opened.recovery.found, replayed, took);
    if opened.is_full {
        metrics.fell_short(0, Refused::Disk);
    }
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
            "the marks of the log's end are missing: it is unknown whether acknowledged records at its end are lost"
        );
    }
    let (clock, shift) = (clock.clone(), last.shift);
    Ok((stages, Recovered { lock, opened, metrics, items, clock, shift, pace }))
}

/// Empty stages.
fn fresh(config: &Config, options: &EngineOptions) -> Pipeline {
    Pipeline::routed(options, Route::new(config.engine.shards, seed()))
}

/// The session stores of all shards, which hold evicted sessions.
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

/// Feeds the log to the stages, each record at the time of its arrival, and moves `clock` to the last of them; returns the number
/// of records, and of the spans and log records in them. Another thread reads ahead.
fn replay(
    config: &Config,
    clock: &mut SavedClock,
    opened: &Opened,
    pipeline: &mut Pipeline,
) -> Result<(u64, u64), StoreError> {
    // What was acknowledged stays acknowledged, even if a limit was lowered since.
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
            // A record that only holds the time was not sent by a client.
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
