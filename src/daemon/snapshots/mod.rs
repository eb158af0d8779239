//! Writes snapshots when they are due: a barrier passes through the stages, and each sends its state.

#[cfg(test)]
mod tests;

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

/// Time between two checks whether all files exist.
const LOOK_AT_FILES: Duration = Duration::from_secs(2);

/// The least time between a snapshot and another one that would free little, and was requested to make room.
const REST: Duration = Duration::from_secs(10);

/// That time is at least this many times as long as the last snapshot took.
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
    /// The number of the record that the newest snapshot follows.
    pub(super) last: u64,
    pub(super) course: Course,
}

/// The history of snapshots so far.
#[derive(Default)]
pub(super) struct Course {
    // The bytes and the items of the log when the last snapshot began.
    written: (u64, u64),
    // Whether files were removed by others, so that only a new snapshot is complete.
    incomplete: bool,
    // When the existence of all files was last checked.
    looked: Duration,
    // Whether a snapshot was requested, to make room, since the last one began.
    pressed: bool,
    // Why the last one could not be written.
    failed: Option<Refused>,
    // Until then no snapshot is written that would free little, and none is retried that could not be written.
    rests_until: Duration,
}

impl Course {
    /// The history at the start of a process, whose log `lost` acknowledged records or not. If it did, a snapshot is due at once:
    /// without one, each start finds the damage again.
    pub(super) fn beginning(lost: bool) -> Self {
        Self { incomplete: lost, pressed: lost, ..Self::default() }
    }
}

/// The channels to and from the stages that a snapshot needs: barriers go in, sections come out.
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

    /// Writes snapshots until `stopping` is set, and then a last one, so that the next start has nothing to replay. Sets `lost` if
    /// that one cannot be written although files are gone, so that the log cannot be replayed either.
    pub(super) async fn run(
        mut self,
        mut stream: Stream,
        mut stopping: watch::Receiver<bool>,
        lost: watch::Sender<bool>,
    ) {
        self.course.looked = self.clock.elapsed();
        loop {
            let stop = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            self.look(&mut stream, stop).await;
            if stop {
                lost.send_replace(self.course.incomplete && self.course.failed.is_some());
                return;
            }
        }
    }

    /// Writes a snapshot if one is due, or if this is the `last` check.
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
        // Without the directory nothing can be written.
        let is_gone = self.metrics.fails().is_some_and(|it| it.why == Refused::Directory);
        if last || (!is_gone && (lacks_files || is_due)) {
            self.take(stream).await;
        }
    }

    /// Tests whether the log accepts as many bytes as it last could not: while the daemon is not ready, no request may arrive that
    /// would show it.
    async fn probe(&self, bytes: u64) {
        match self.committer.probe(bytes).await {
            Ok(()) => self.metrics.took(bytes),
            Err(why) => self.metrics.fell_short(bytes, why),
        }
    }

    /// Whether a snapshot is due: the log has grown enough, or the last one could not be written, or one was requested to make
    /// room, because the budget is exhausted, or the disk has begun to fail, as it may be full.
    fn is_due(&mut self) -> bool {
        let (written, items) = self.course.written;
        let grown = self.budget.written().saturating_sub(written);
        let items = self.items.load(Ordering::Relaxed).saturating_sub(items);
        // The bytes of all snapshots, mostly twice the state. So less is written for snapshots than for the log, or, if a start
        // would take long or room is short, less than four times as much.
        let both = self.budget.snapshots();
        let long = items >= self.snapshot_spans && grown >= both / 8;
        self.course.pressed |= self.metrics.was_pressed() | self.budget.was_pressed();
        // A snapshot that frees little of the log may free sessions on disk, or be smaller than those before; it may as well free
        // nothing.
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
        // If there is no room for two snapshots, one has to be enough.
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

    /// Removes what is kept only in case the newest snapshot is damaged, so that the next one has room: the snapshot before it, and
    /// the log between the two.
    async fn make_room(&self) {
        if self.last == 0 {
            return;
        }
        let (disk, budget, last) = (Arc::clone(&self.disk), Arc::clone(&self.budget), self.last);
        let kept = blocking(move || keep_newest(disk.as_ref(), &budget, last)).await;
        match kept.map_err(io::Error::from).flatten() {
            Ok(true) => self.committer.release(last).await,
            // Another process removed it.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "an older snapshot cannot be removed"),
        }
    }

    /// Sends a barrier through the stages, and writes the state that each has as the barrier passes; returns the sequence number up
    /// to which the log is not needed.
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

    /// Sends a barrier through the stages, and hands on the section of each stage, and the sections that belong to none.
    async fn gather(
        &self,
        stream: &mut Stream,
        seq: u64,
        sections: mpsc::Sender<Section>,
    ) -> io::Result<()> {
        let mut missing = stream.stages();
        let epoch = stream.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        let Stream { router, saved, pace, .. } = stream;
        // Late sections of abandoned snapshots: there has to be room for those of this one.
        while saved.try_recv().is_ok() {}
        let clock = SavedClock { now: self.clock.now(), shift: self.clock.shift() };
        // Requests that arrive meanwhile wait for it, so it does not wait for ever for a hanging disk.
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
            // A section of another epoch is a late one, of an abandoned snapshot.
            if of == epoch {
                missing -= 1;
                let _ = sections.send(section.ok_or_else(absent)?).await;
            }
        }
        // After all shards, as each adds to it: nothing that they hold is missing then.
        let learned = router.saved_learned().ok_or_else(absent)?;
        let _ = sections.send(learned).await;
        // Likewise: a missing call would be made again, and one too many is replayed.
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

/// Writes this many sections as they arrive, and finishes the snapshot; fails if fewer arrive.
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
    io::Error::other("not every stage reported its state")
}
