//! Group commit: one thread writes, many wait.
//!
//! While a group is written and synced the next one queues up, so the more records wait, the more of them share one sync. Each
//! record is answered when its group is safe. After a failed sync all records are refused, for good.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::error::{Refused, StoreError};
use super::log::Log;
use super::record::Record;
use crate::telemetry;

/// An observer of what the store does.
pub trait Watch: Send + Sync {
    /// Reads the time, in nanoseconds that do not go back.
    fn nanos(&self) -> u64;

    /// Notes that a group of `records` was committed, as `bytes` of log, within `nanos`.
    fn committed(&self, records: u64, bytes: u64, nanos: u64);

    /// Notes that a file in use was removed by another process.
    fn missing(&self, name: &str);

    /// Notes that `records`, which would be `bytes` of log, were not appended.
    fn refused(&self, records: u64, bytes: u64, why: Refused);
}

/// A handle that appends records. Clones share the writing thread, which ends with the last of them.
#[derive(Clone)]
pub struct Committer {
    jobs: SyncSender<Job>,
    ledger: Ledger,
    stopped: watch::Receiver<bool>,
}

/// The ledger of applied records; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    // The number of the next record; 0 until the committer starts.
    next: u64,
    unapplied: BTreeSet<u64>,
}

/// A record that is safe and not applied yet.
#[derive(Debug)]
pub struct Ticket {
    seq: u64,
    ledger: Ledger,
}

enum Job {
    Append { record: Record, reply: oneshot::Sender<Result<Ticket, Refused>> },
    Probe { bytes: u64, reply: oneshot::Sender<Result<(), Refused>> },
    Release { seq: u64, done: oneshot::Sender<()> },
    Look { last: u64, reply: oneshot::Sender<bool> },
}

struct Writer {
    log: Log,
    interval: Duration,
    ledger: Ledger,
    watch: Arc<dyn Watch>,
    stopped: watch::Sender<bool>,
}

impl Committer {
    /// Starts the writing thread. A group waits for `interval` before it is written.
    ///
    /// # Errors
    ///
    /// Fails if the system has no thread for it.
    pub fn start(
        opened: super::Opened,
        interval: Duration,
        watch: Arc<dyn Watch>,
    ) -> Result<Self, StoreError> {
        let log = opened.into_log();
        let (jobs, inbox) = sync_channel(MAX_WAITING);
        let ledger = Ledger::default();
        ledger.open().next = log.next();
        let (stopped_sender, stopped) = watch::channel(false);
        let writer =
            Writer { log, interval, ledger: ledger.clone(), watch, stopped: stopped_sender };
        let named = thread::Builder::new().name("store".to_owned());
        named.spawn(move || writer.run(&inbox)).map_err(StoreError::Thread)?;
        Ok(Self { jobs, ledger, stopped })
    }

    /// Appends a record; returns when it is safe.
    ///
    /// # Errors
    ///
    /// Fails if there is no room, too many records wait, or the store has stopped. Then the record is not in the log, except that
    /// it may be if the store has stopped.
    pub async fn append(&self, record: Record) -> Result<Ticket, Refused> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Append { record, reply })?;
        answer.await.unwrap_or(Err(Refused::Stopped))
    }

    /// Tests whether the disk accepts this many bytes, which are removed again.
    ///
    /// # Errors
    ///
    /// Fails if it does not, too many records wait, or the store has stopped.
    pub async fn probe(&self, bytes: u64) -> Result<(), Refused> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Probe { bytes, reply })?;
        answer.await.unwrap_or(Err(Refused::Stopped))
    }

    /// Checks that all files exist, among them the snapshot after record `last`; false if another process removed one, or the
    /// directory, so that only a new snapshot is complete.
    pub async fn is_whole(&self, last: u64) -> bool {
        let (reply, answer) = oneshot::channel();
        // A thread that has ended, or is busy, does not check.
        self.send(Job::Look { last, reply }).is_err() || answer.await.unwrap_or(true)
    }

    fn send(&self, job: Job) -> Result<(), Refused> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Refused::Busy,
            TrySendError::Disconnected(_) => Refused::Stopped,
        })
    }

    /// Removes the log up to record `seq`, which is not needed; returns when that is done.
    pub async fn release(&self, seq: u64) {
        let (done, released) = oneshot::channel();
        let mut job = Job::Release { seq, done };
        while let Err(TrySendError::Full(back)) = self.jobs.try_send(job) {
            job = back;
            tokio::time::sleep(FULL).await;
        }
        // Fails if the writer has ended; then nothing is removed.
        let _ = released.await;
    }

    /// The ledger of applied records.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Waits until the log has stopped; nothing is appended after that.
    pub async fn stopped(&self) {
        // An error means that the writing thread has ended, which means the same.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

impl Ledger {
    /// The record up to which all records are applied.
    pub fn applied(&self) -> u64 {
        let open = self.open();
        open.unapplied.first().copied().unwrap_or(open.next).saturating_sub(1)
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// The sequence number of the record.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Notes that the record is applied, so that a snapshot that begins later includes it. A record whose ticket is dropped instead
    /// is replayed at the next start.
    pub fn applied(self) {
        self.ledger.open().unapplied.remove(&self.seq);
    }
}

impl Writer {
    fn run(mut self, inbox: &Receiver<Job>) {
        let mut group = Vec::new();
        while let Ok(job) = inbox.recv() {
            self.take(job, &mut group);
            if !self.interval.is_zero() && !group.is_empty() {
                thread::sleep(self.interval);
            }
            let mut bytes = 0;
            while bytes < MAX_GROUP_BYTES {
                match inbox.try_recv() {
                    Ok(job) => {
                        if let Job::Append { record, .. } = &job {
                            bytes += record.payload.len();
                        }
                        self.take(job, &mut group);
                    }
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            self.commit(std::mem::take(&mut group));
            if self.log.has_stopped() {
                self.stopped.send_replace(true);
            }
        }
    }

    fn take(&mut self, job: Job, group: &mut Vec<(Record, oneshot::Sender<Answer>)>) {
        match job {
            Job::Append { record, reply } => group.push((record, reply)),
            Job::Probe { bytes, reply } => {
                let _ = reply.send(self.log.probe(bytes));
            }
            Job::Look { last, reply } => {
                let _ = reply.send(self.is_whole(last));
            }
            Job::Release { seq, done } => {
                // A segment that cannot be removed is removed after the next snapshot.
                let _ = self.log.release(seq);
                let _ = done.send(());
            }
        }
    }

    fn is_whole(&mut self, last: u64) -> bool {
        if self.log.find_directory() == Err(Refused::Directory) {
            // Noted although nothing may arrive that would be refused.
            self.watch.refused(0, 0, Refused::Directory);
            return false;
        }
        // A directory that cannot be read is checked again.
        let missing = self.log.missing(last).unwrap_or_default();
        missing.iter().for_each(|name| self.watch.missing(name));
        missing.is_empty()
    }

    /// Writes a group. If it cannot be written as a whole, it is tried record by record, so that one large record does not keep out
    /// those that fit.
    fn commit(&mut self, group: Vec<(Record, oneshot::Sender<Answer>)>) {
        if group.is_empty() {
            return;
        }
        let (records, replies): (Vec<Record>, Vec<_>) = group.into_iter().unzip();
        match self.append(&records) {
            Ok(first) => {
                for (seq, reply) in (first..).zip(replies) {
                    // If its sender has disconnected, the ticket is dropped, and the record is replayed at the next start.
                    let _ = reply.send(Ok(Ticket { seq, ledger: self.ledger.clone() }));
                }
            }
            Err(Refused::Budget | Refused::Disk | Refused::Write) if records.len() > 1 => {
                for pair in records.into_iter().zip(replies) {
                    self.commit(vec![pair]);
                }
            }
            Err(why) => {
                self.watch.refused(records.len() as u64, bytes(&records), why);
                for reply in replies {
                    let _ = reply.send(Err(why));
                }
            }
        }
    }

    fn append(&mut self, records: &[Record]) -> Result<u64, Refused> {
        let begun = self.watch.nanos();
        let _step = telemetry::step("store.write");
        let first = self.log.commit(records)?;
        let took = self.watch.nanos().saturating_sub(begun);
        let count = records.len() as u64;
        let mut open = self.ledger.open();
        open.unapplied.extend(first..first + count);
        open.next = first + count;
        drop(open);
        self.watch.committed(count, bytes(records), took);
        Ok(first)
    }
}

/// The bytes of log that records take.
fn bytes(records: &[Record]) -> u64 {
    records.iter().filter_map(Record::frame_bytes).sum()
}

type Answer = Result<Ticket, Refused>;

/// How long to wait for room among the waiting records.
const FULL: Duration = Duration::from_millis(10);

/// How many records may wait to be written; more are refused.
const MAX_WAITING: usize = 4096;

/// Bytes of payload after which a group takes no more records.
const MAX_GROUP_BYTES: usize = 1 << 20;
