//! Writes snapshots when they are due: a barrier goes through the stages, and each sends what it holds.

use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::Check;
use super::durable::{CLOCK, PACE, SavedClock, section};
use super::router::Router;
use super::store_metrics::StoreMetrics;
use crate::blocking::blocking;
use crate::clock::Clock;
use crate::engine::facts::Barrier;
use crate::store::{Budget, Committer, Disk, KEPT, Refused, Section, SnapshotWriter, keep_newest};
use crate::telemetry;
use crate::webhook::SharedPace;

/// Time between two checks whether a snapshot is due.
const LOOK: Duration = Duration::from_millis(200);

/// Time between two looks whether all files are there.
const LOOK_AT_FILES: Duration = Duration::from_secs(2);

/// The least time between a snapshot and one that would free little, which is asked for to make room.
const REST: Duration = Duration::from_secs(10);

/// How many times as long as the last snapshot took that time is.
const RESTS: u32 = 10;

/// How long to wait for requests on their way, and for the next section of a snapshot.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes snapshots when they are due.
pub(super) struct Snapshots {
    pub(super) committer: Committer,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) budget: Arc<Budget>,
    pub(super) metrics: Arc<StoreMetrics>,
    /// Spans and log records that are in the log.
    pub(super) items: Arc<AtomicU64>,
    pub(super) clock: Clock,
    pub(super) snapshot_bytes: u64,
    pub(super) snapshot_spans: u64,
    /// The record after which the newest snapshot is.
    pub(super) last: u64,
    pub(super) course: Course,
}

/// What is known of the snapshots so far.
#[derive(Default)]
pub(super) struct Course {
    // The bytes and the items of the log when the last snapshot began.
    written: (u64, u64),
    // Whether somebody removed files, so that only a new snapshot has everything.
    incomplete: bool,
    // When it was last looked whether all files are there.
    looked: Duration,
    // Whether one was asked for, to make room, since the last one began.
    pressed: bool,
    // Why the last one could not be written.
    failed: Option<Refused>,
    // Until when none is written that would free little, and none again that could not be written.
    rests_until: Duration,
}

/// The ways to and from the stages that a snapshot needs: barriers go in, sections come out.
pub(super) struct Stream {
    pub(super) router: Router,
    pub(super) epoch: Arc<AtomicU64>,
    pub(super) saved: mpsc::Receiver<(u64, Option<Section>)>,
    /// The pace of the webhook, if there is one.
    pub(super) pace: Option<SharedPace>,
}

impl Snapshots {
    /// A check that fails while the log cannot be written.
    pub(super) fn check(&self) -> Check {
        let metrics = Arc::clone(&self.metrics);
        Arc::new(move || metrics.fails().map_or(Ok(()), |failure| Err(failure.why.to_string())))
    }

    /// Writes snapshots until `stopping` is set, and then a last one, so that the next start has nothing to replay.
    pub(super) async fn run(mut self, mut stream: Stream, mut stopping: watch::Receiver<bool>) {
        self.course.looked = self.clock.elapsed();
        loop {
            let stop = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            self.look(&mut stream, stop).await;
            if stop {
                return;
            }
        }
    }

    /// Writes a snapshot if one is due, or if this is the `last` look.
    async fn look(&mut self, stream: &mut Stream, last: bool) {
        let is_due = self.is_due();
        let mut lacks_files = false;
        if last || self.clock.elapsed().saturating_sub(self.course.looked) >= LOOK_AT_FILES {
            self.course.looked = self.clock.elapsed();
            self.course.incomplete |= !self.committer.is_whole(self.last).await;
            lacks_files = self.course.incomplete;
        }
        if let Some(failure) = self.metrics.fails().filter(|_| !last) {
            self.probe(failure.bytes).await;
        }
        if last || lacks_files || is_due {
            self.take(stream).await;
        }
    }

    /// Finds out whether the log takes as much as it could not: while the daemon is not ready, no request may come that would show it.
    async fn probe(&self, bytes: u64) {
        match self.committer.probe(bytes).await {
            Ok(()) => self.metrics.took(bytes),
            Err(why) => self.metrics.fell_short(bytes, why),
        }
    }

    /// Whether a snapshot is due: the log has grown enough, or the last one could not be written, or one was asked for to make room: the
    /// budget bites, or the disk has begun to fail, as it may be full.
    fn is_due(&mut self) -> bool {
        let (written, items) = self.course.written;
        let grown = self.budget.written().saturating_sub(written);
        let items = self.items.load(Ordering::Relaxed).saturating_sub(items);
        // The bytes of all snapshots, mostly twice the state: less is written for snapshots than for the log, or, where a start would take
        // long or room is short, less than four times as much.
        let both = self.budget.snapshots();
        let long = items >= self.snapshot_spans && grown >= both / 8;
        self.course.pressed |= self.metrics.was_pressed() | self.budget.was_pressed();
        // One that frees little of the log may free sessions on disk, or be smaller than those before; it may as well free nothing.
        let rested = self.clock.elapsed() >= self.course.rests_until;
        let pressed = self.course.pressed && (rested || grown > both / 8);
        let again = self.course.failed.is_some() && rested && self.metrics.fails().is_none();
        pressed || again || long || grown >= self.snapshot_bytes.max(both)
    }

    async fn take(&mut self, stream: &mut Stream) {
        let seq = self.committer.ledger().applied();
        let pressed = mem::take(&mut self.course.pressed);
        let failed = self.course.failed.take();
        if seq == self.last && !self.course.incomplete && !pressed {
            return;
        }
        let begun = self.clock.elapsed();
        self.course.written = (self.budget.written(), self.items.load(Ordering::Relaxed));
        let fails = self.metrics.fails();
        let is_full = fails.is_some_and(|failure| failure.why == Refused::Disk);
        // Where there is no room for two snapshots, one has to do.
        let keep = if self.budget.is_tight() || fails.is_some() { 1 } else { KEPT };
        if is_full || failed == Some(Refused::Disk) || !self.budget.has_room_for_snapshot() {
            self.make_room().await;
        }
        self.budget.set_rescuing(is_full);
        let released = self.write(stream, seq, keep).await;
        self.budget.set_rescuing(false);
        match &released {
            Ok(released) => {
                (self.last, self.course.incomplete) = (seq, false);
                self.committer.release(*released).await;
            }
            Err(error) => {
                self.course.failed = Some(Refused::of(error));
                tracing::error!(%error, "a snapshot could not be written");
            }
        }
        let ended = self.clock.elapsed();
        self.course.rests_until = ended + REST.max(ended.saturating_sub(begun) * RESTS);
        let open = self.committer.ledger().applied().saturating_sub(self.last);
        self.metrics.snapshot(released.is_ok(), open);
    }

    /// Removes what is there only for the case that the newest snapshot is damaged, so that the next one has room: the snapshot before
    /// it, and the log between the two.
    async fn make_room(&self) {
        if self.last == 0 {
            return;
        }
        let (disk, budget, last) = (Arc::clone(&self.disk), Arc::clone(&self.budget), self.last);
        let kept = blocking(move || keep_newest(disk.as_ref(), &budget, last)).await;
        match kept.map_err(io::Error::from).flatten() {
            Ok(true) => self.committer.release(last).await,
            // Somebody removed it.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "an older snapshot cannot be removed"),
        }
    }

    /// Sends a barrier through the stages, and writes the state that each has as it passes; returns the sequence number up to which the
    /// log is not needed.
    async fn write(&self, stream: &mut Stream, seq: u64, keep: usize) -> io::Result<u64> {
        let _step = telemetry::step("store.snapshot");
        let (sections, inbox) = mpsc::channel(1);
        let (disk, budget) = (Arc::clone(&self.disk), Arc::clone(&self.budget));
        let all = stream.stages() + 5;
        let writer =
            blocking(move || write(SnapshotWriter::begin(disk, budget, seq)?, all, inbox, keep));
        let gathered = self.gather(stream, seq, sections).await;
        // It ends before the next one begins, which may have the same name.
        let written = writer.await?;
        gathered?;
        written
    }

    /// Sends a barrier through the stages, and hands on the section of each, and of what belongs to none.
    async fn gather(
        &self,
        stream: &mut Stream,
        seq: u64,
        sections: mpsc::Sender<Section>,
    ) -> io::Result<()> {
        let mut missing = stream.stages();
        let epoch = stream.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        let Stream { router, saved, pace, .. } = stream;
        // Late ones, of snapshots that were given up: there has to be room for those of this one.
        while saved.try_recv().is_ok() {}
        let clock = SavedClock { now: self.clock.now(), shift: self.clock.shift() };
        // Requests that come meanwhile wait for it, so it does not wait for ever for a disk that hangs.
        let none_on_the_way = timeout(PATIENCE, router.on_the_way.write()).await;
        let none_on_the_way = none_on_the_way.map_err(io::Error::from)?;
        let first = [
            section("route".to_owned(), &router.route),
            section(CLOCK.to_owned(), &clock),
            router.saved_resolve(),
        ];
        router.barrier(Barrier { epoch, log_sequence: Some(seq) }).await.map_err(|_| absent())?;
        drop(none_on_the_way);
        for section in first {
            // If the writer has failed, its error is returned. The sections of the stages are taken all the same: there would be no
            // room for those of the next snapshot.
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
        // Likewise: a call that is missing would be made again, and one too many is replayed.
        let pace = pace.as_ref().map(SharedPace::save).unwrap_or_default();
        let _ = sections.send(section(PACE.to_owned(), &pace).ok_or_else(absent)?).await;
        Ok(())
    }
}

impl Stream {
    /// The number of shards of all stages.
    fn stages(&self) -> usize {
        self.router.assemble.len() + self.router.sessions.len() + 1
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use prometheus::TextEncoder;
    use serde_json::json;

    use super::*;
    use crate::clock::Hand;
    use crate::config::Config;
    use crate::daemon::durable::{Directory, recover_from};
    use crate::daemon::tasks::ToSessions;
    use crate::daemon::tasks::barriers::BarrierRoom;
    use crate::daemon::{Board, Common, Health, spawn};
    use crate::engine::facts::{SessionKey, TraceFacts};
    use crate::engine::options::ConventionOptions;
    use crate::ingest::decode::{Decoder, IngestLimits};
    use crate::ingest::{Batch, Compression, Encoding, Overloaded, Request, Signal, Sink};
    use crate::store::tests::simulated::Simulated;
    use crate::store::{Durability, Lock, Watch as _};

    /// How long a test waits for what should come.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Stages with a store on a disk that a test owns, by a clock that it sets.
    struct Rig {
        router: Router,
        snapshots: Snapshots,
        stream: Stream,
        health: Arc<Health>,
        hand: Hand,
        requests: u64,
        _folder: tempfile::TempDir,
    }

    impl Rig {
        fn new(disk: &Simulated, edit: impl FnOnce(&mut Config)) -> Self {
            let mut config = Config::default();
            config.engine.shards = 2;
            config.store.durability = Durability::Fsync;
            edit(&mut config);
            let (clock, hand) = Hand::clock(1_800_000_000);
            let health = Health::new(clock.wall()).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let lock = Lock::take(folder.path()).unwrap();
            let directory = Directory { lock, disk: Arc::new(disk.clone()) };
            let options = config.engine_options(Vec::new().into());
            let recovered = recover_from(directory, &config, &options, &clock, health.registry());
            let (stages, recovered) = recovered.unwrap();
            let (durable, snapshots) = recovered.start(&config);
            let (saving, saved) = mpsc::channel(4 * stages.assemble.len() + 2);
            let common = Common {
                barrier_room: Arc::new(BarrierRoom::new(config.ingest.max_decoded_bytes)),
                clock,
                health: health.clone(),
                judge: None,
                embedder: None,
                webhook: None,
                durable: Some(durable.clone()),
                saving: Some(saving),
            };
            let board = Arc::new(Board::new(config.api));
            let capacity = config.engine.channel_capacity;
            let (router, _, _) = spawn(stages, capacity, &board, &common, Some(durable)).unwrap();
            let stream =
                Stream { router: router.clone(), epoch: Arc::default(), saved, pace: None };
            Self { router, snapshots, stream, health, hand, requests: 0, _folder: folder }
        }

        /// A request with a trace of its own.
        fn batch(&mut self) -> Batch {
            self.requests += 1;
            let now = self.snapshots.clock.now();
            let chat =
                json!({ "key": "gen_ai.operation.name", "value": { "stringValue": "chat" } });
            let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [{
                "traceId": format!("{:032x}", self.requests), "spanId": "0000000000000001", "name": "step",
                "startTimeUnixNano": now.0.to_string(), "endTimeUnixNano": now.0.to_string(),
                "attributes": [chat],
            }]}]}]});
            let body = bytes::Bytes::from(body.to_string());
            let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
            let (signal, encoding, compression) =
                (Signal::Traces, Encoding::Json, Compression::None);
            let prepared = decoder.prepare(signal, encoding, compression, body.clone()).unwrap();
            let batch = decoder.decode(prepared, Some(now), None).unwrap();
            let request = Request { signal, encoding, compression, sent: None, tenant: None, body };
            Batch { arrival: now, request: Some(request), ..batch }
        }

        async fn send(&mut self) -> Result<(), Overloaded> {
            let batch = self.batch();
            self.router.submit(batch).await.map(drop)
        }

        async fn look(&mut self) {
            self.snapshots.look(&mut self.stream, false).await;
        }

        /// Snapshots that were written.
        fn written(&self) -> u64 {
            self.count("store_snapshots_total{outcome=\"written\"}")
        }

        /// One of the daemon's own counters.
        fn count(&self, series: &str) -> u64 {
            let page = TextEncoder.encode_to_string(&self.health.registry().gather()).unwrap();
            let series = format!("agentgauge_{series} ");
            let count = page.lines().find_map(|line| line.strip_prefix(&series));
            count.map_or(0, |count| count.parse().unwrap())
        }
    }

    async fn until(mut there: impl FnMut() -> bool) {
        let comes = async {
            while !there() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, comes).await.expect("it comes");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_that_begins_while_requests_have_all_places_lets_them_through() {
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |config| config.engine.channel_capacity = 1);
        rig.send().await.unwrap();
        // One request for each shard, and more.
        let router = rig.router.clone();
        disk.hold_syncs(true);
        let mut requests = Vec::new();
        for _ in 0..8 {
            let (batch, router) = (rig.batch(), router.clone());
            requests.push(tokio::spawn(async move { router.submit(batch).await }));
        }
        until(|| disk.syncing() > 0).await;
        let Rig { mut snapshots, mut stream, .. } = rig;
        let snapshot = tokio::spawn(async move {
            snapshots.take(&mut stream).await;
            snapshots.last
        });
        until(|| router.on_the_way.try_read().is_err()).await;
        disk.hold_syncs(false);
        let mut taken = 0;
        for request in requests {
            let answer = timeout(PATIENCE, request).await.expect("every request is answered");
            taken += u64::from(answer.unwrap().is_ok());
        }
        assert!(taken > 0, "no request had a place");
        let last = timeout(PATIENCE, snapshot).await.expect("the snapshot ends").unwrap();
        assert_eq!(last, 1, "the snapshot was written");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_store_takes_requests_again_once_a_snapshot_can_free_some() {
        let disk = Simulated::default();
        // Of an earlier process, and needed by nobody.
        let mut left = disk.create("away-0-000000000001").unwrap();
        left.write_all(&[0; 1 << 20]).unwrap();
        left.sync().unwrap();
        disk.sync_names().unwrap();
        let mut rig = Rig::new(&disk, |config| config.store.max_bytes = 1 << 20);
        let mut refused = 0;
        while rig.send().await.is_err() {
            refused += 1;
            assert!(refused < 10, "the store is full for good");
            rig.hand.pass(60);
            rig.look().await;
        }
        assert!(refused > 0, "the store was not full");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn snapshots_that_make_no_room_are_far_apart() {
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |_| ());
        rig.send().await.unwrap();
        rig.look().await;
        assert_eq!(rig.written(), 0, "nobody needs room");
        let durable = rig.router.durable.clone().unwrap();
        for _ in 0..60 {
            rig.hand.pass(1);
            // Little goes into the log, and much does not.
            durable.note_time(rig.snapshots.clock.now()).await;
            rig.snapshots.metrics.refused(1, 1_000, Refused::Budget);
            rig.look().await;
        }
        assert!((2..=7).contains(&rig.written()), "{} in a minute", rig.written());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_that_makes_room_is_written_at_once() {
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |_| ());
        for round in 1..=5 {
            for _ in 0..20 {
                rig.send().await.unwrap();
            }
            rig.snapshots.metrics.refused(1, 1_000, Refused::Budget);
            rig.look().await;
            assert_eq!(rig.written(), round);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_for_which_too_much_would_wait_is_given_up_and_the_next_one_is_written() {
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |config| config.ingest.max_decoded_bytes = 1 << 20);
        rig.send().await.unwrap();
        // One assemble shard has passed the barrier, and goes on; the other one has not.
        let (sessions, now) = (rig.router.sessions.clone(), rig.snapshots.clock.now());
        let barrier = Barrier { epoch: 1_000, log_sequence: Some(1) };
        sessions[0].send(ToSessions::Barrier(0, barrier)).await.unwrap();
        let text = "x".repeat(10_000);
        for number in 0..200 {
            let id = format!("{number}{text}").into();
            let session = Some(SessionKey { id, ..SessionKey::default() });
            let facts = TraceFacts { session, ..TraceFacts::default() };
            let message = ToSessions::Traces(0, vec![Box::new(facts)], now);
            sessions[0].send(message).await.unwrap();
        }
        let given_up = timeout(PATIENCE, rig.stream.saved.recv()).await.expect("it is given up");
        let (epoch, section) = given_up.unwrap();
        assert!(epoch == 1_000 && section.is_none());
        assert_eq!(rig.count("limits_reached_total{limit=\"snapshot_waiting\"}"), 1);
        // The barrier goes on all the same.
        sessions[0].send(ToSessions::Barrier(1, barrier)).await.unwrap();
        for from in 0..2 {
            sessions[1].send(ToSessions::Barrier(from, barrier)).await.unwrap();
        }
        let mut saved = Vec::new();
        for _ in 0..2 {
            let next = timeout(PATIENCE, rig.stream.saved.recv()).await.expect("a section");
            saved.push(next.unwrap().1.unwrap().name);
        }
        assert_eq!(saved, ["sessions/1", "agents"]);
        rig.snapshots.take(&mut rig.stream).await;
        assert_eq!(rig.written(), 1);
    }

    /// The log alone can fill a disk that is smaller than the store may become, and then there is no room for the snapshot that would free
    /// it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_that_the_store_itself_has_filled_takes_requests_again() {
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |config| config.store.segment_bytes = 2_000);
        for _ in 0..2 {
            for _ in 0..40 {
                rig.send().await.unwrap();
            }
            rig.snapshots.take(&mut rig.stream).await;
        }
        assert_eq!(rig.written(), 2);
        let used: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
        disk.limit(Some(usize::try_from(used).unwrap() + 3_000));
        let mut filled = 0;
        while rig.send().await.is_ok() {
            filled += 1;
            assert!(filled < 100, "the disk has no limit");
        }
        let mut refused = 0;
        while rig.send().await.is_err() {
            refused += 1;
            assert!(refused < 10, "the disk is full for good");
            rig.hand.pass(60);
            rig.look().await;
        }
        assert_eq!(rig.count("store_snapshot_failing"), 0);
        assert!(rig.written() > 2 && filled > 0);
    }

    /// The disk has no more room than the store may take.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_that_is_being_written_is_within_the_limit() {
        const MAX_BYTES: u64 = 60_000;
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |config| {
            config.store.max_bytes = MAX_BYTES;
            config.store.segment_bytes = 2_000;
            config.store.snapshot_bytes = 4_000;
        });
        // Beside it there are the marks, and a snapshot may be larger than the one before.
        disk.limit(Some(usize::try_from(MAX_BYTES + MAX_BYTES / 10).unwrap()));
        let mut accepted = 0;
        for round in 0..400 {
            accepted += u64::from(rig.send().await.is_ok());
            if round % 4 == 0 {
                rig.hand.pass(15);
                rig.look().await;
            }
            let sizes = disk.list().unwrap().into_iter().map(|(_, bytes)| bytes);
            assert!(sizes.sum::<u64>() <= MAX_BYTES + MAX_BYTES / 10);
        }
        assert_eq!(rig.count("store_snapshots_total{outcome=\"failed\"}"), 0);
        assert_eq!(rig.count("store_refused_total{reason=\"disk_full\"}"), 0);
        assert!(rig.written() > 10 && accepted > 100, "{} {accepted}", rig.written());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_that_could_not_be_written_is_tried_again_after_a_rest() {
        let disk = Simulated::default();
        let mut rig = Rig::new(&disk, |_| ());
        rig.send().await.unwrap();
        let used: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
        disk.limit(Some(usize::try_from(used).unwrap() + 100));
        rig.snapshots.take(&mut rig.stream).await;
        let counts =
            |rig: &Rig| (rig.written(), rig.count("store_snapshots_total{outcome=\"failed\"}"));
        assert_eq!(counts(&rig), (0, 1));
        assert_eq!(rig.count("store_snapshot_failing"), 1);
        disk.limit(None);
        rig.look().await;
        assert_eq!(counts(&rig), (0, 1), "it rests");
        rig.hand.pass(10);
        rig.look().await;
        assert_eq!(counts(&rig), (1, 1));
        assert_eq!(rig.count("store_snapshot_failing"), 0);
        rig.hand.pass(10);
        rig.look().await;
        assert_eq!(counts(&rig), (1, 1), "nobody needs another one");
    }
}
