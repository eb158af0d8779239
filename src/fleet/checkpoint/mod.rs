//! Checkpoints: the state of a partition, and the offset to continue from, in a directory or an object store.
//!
//! ```text
//! {topic}/{partition}/{generation}.owner              created once, by the instance that owns the partition from then on
//! {topic}/{partition}/{generation}-{offset}.state     the state before the record at that offset
//! ```
//!
//! A generation is one owner. The newest state is that of the highest generation, so an owner that was replaced without knowing it
//! can write without harm. A generation is at least the time in seconds, so it rises even if the store was lost.
//!
//! ```text
//! byte 0   "agck"
//!      4   version
//!      5   CRC-32C of what follows, big-endian
//!      9   MessagePack, compressed with Zstandard
//! ```

mod place;
#[cfg(feature = "s3")]
mod s3;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use self::place::Place;
use super::wire::{pack, unpack};
use crate::blocking::blocking;
use crate::engine::span::Timestamp;
use crate::telemetry;

/// The first bytes of a file.
const MAGIC: &[u8; 4] = b"agck";

/// The version that is written, and the only one that is read.
const VERSION: u8 = 24;

/// Bytes of the head, before the state.
const HEAD: usize = 9;

/// How many states are kept: if the newest cannot be read, the other one is used.
const KEPT: usize = 2;

/// How long the store may take for one operation.
const PATIENCE: Duration = Duration::from_secs(30);

/// The level of compression, which costs little time.
const LEVEL: i32 = 1;

/// The store of checkpoints.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints {
    place: Place,
    partitions: u32,
    runtime: Handle,
}

/// The state of a partition, as its owner wrote it.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Checkpoint {
    /// The number of partitions of the cluster, which decides which keys are in which partition.
    pub(super) partitions: u32,
    /// The offset of the first record that is not in the state.
    pub(super) next: i64,
    /// The CRC-32C of the record before that one, if one was read: if another record is in its place, the topic was recreated.
    pub(super) last_record: Option<u32>,
    /// The time of the partition.
    pub(super) now: Timestamp,
    /// The generation of the last known owner of each shard of the previous stage.
    pub(super) senders: BTreeMap<u32, u64>,
    /// The sections of the state, by name.
    pub(super) sections: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    /// The offset and the CRC-32C of the last record before it, if it was read and the topic still has it, which begins at `low`.
    /// It is read once more, because a recreated topic has another record there.
    pub(super) fn last_record_from(&self, low: i64) -> Option<(i64, u32)> {
        let sum = self.last_record.filter(|_| self.next > low)?;
        Some((self.next - 1, sum))
    }
}

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The place cannot be used at all.
    #[error("checkpoints cannot be kept at {place} (`fleet.checkpoints`)")]
    Place {
        /// The option.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// An operation of the store failed.
    #[error("the store of checkpoints (`fleet.checkpoints`) failed: {0}")]
    Store(#[from] io::Error),
    /// The store takes too long.
    #[error("the store of checkpoints (`fleet.checkpoints`) did not answer in time")]
    Slow,
    /// The checkpoint was written by a release with another format.
    #[error(
        "checkpoint {name} is of version {version}, and this release reads {VERSION}: run the release that wrote it, or name \
         an empty `fleet.checkpoints` to begin anew"
    )]
    OtherFormat {
        /// The file.
        name: String,
        /// Its version.
        version: u8,
    },
    /// The checkpoint belongs to a cluster with another number of partitions.
    #[error(
        "checkpoint {name} is of a cluster with {partitions} partitions, and `fleet.partitions` is {here}: it is for good, and the \
         same for all instances; set it to {partitions}, or name another `fleet.prefix` and an empty `fleet.checkpoints` to begin anew"
    )]
    OtherPartitions {
        /// The file.
        name: String,
        /// Their number in the checkpoint's cluster.
        partitions: u32,
        /// Their number according to the option.
        here: u32,
    },
    /// The state could not be encoded.
    #[error("a checkpoint could not be encoded")]
    Unwritable,
    /// The partition has a new owner.
    #[error("the partition has a new owner")]
    Replaced,
}

impl Checkpoints {
    /// Opens the checkpoints at this place, a directory or `s3://bucket/prefix`; for the latter the credentials are in the
    /// environment variables that Amazon's own tools use. Checkpoints of a cluster with another number of partitions are refused.
    /// `runtime` runs the operations of the store.
    ///
    /// # Errors
    ///
    /// Fails if checkpoints cannot be kept at that place.
    pub(super) fn open(
        place: &str,
        partitions: u32,
        runtime: Handle,
    ) -> Result<Self, CheckpointError> {
        let open = Place::open(place);
        let open =
            open.map_err(|source| CheckpointError::Place { place: place.to_owned(), source })?;
        Ok(Self { place: open, partitions, runtime })
    }

    /// Makes the caller the owner of a partition: returns its generation, which is higher than all before it, and the newest state,
    /// if there is one. A caller that has `claimed` it before, and did nothing with it, keeps that generation unless another has
    /// claimed it since. Blocks its thread.
    ///
    /// # Errors
    ///
    /// Fails if the store does, or if it has a state of another format or of another number of partitions.
    pub(super) fn claim(
        &self,
        of: &str,
        claimed: Option<u64>,
        now: Timestamp,
    ) -> Result<(u64, Option<Checkpoint>), CheckpointError> {
        let names = self.names(of)?;
        // Before anything is written: a checkpoint that cannot be used may be tried repeatedly.
        let newest = self.newest(of, &names)?;
        let last = names.last().and_then(|name| generation(name)).unwrap_or(0);
        if claimed == Some(last) {
            return Ok((last, newest));
        }
        let mut own = (last + 1).max(now.0 / 1_000_000_000);
        loop {
            match self.wait(self.place.create(of, &format!("{own:020}.owner"))) {
                Ok(()) => break,
                Err(CheckpointError::Store(error))
                    if error.kind() == io::ErrorKind::AlreadyExists =>
                {
                    own += 1;
                }
                Err(error) => return Err(error),
            }
        }
        let states = |names: &[String]| {
            let states = names.iter().filter(|name| name.ends_with(".state")).cloned();
            states.collect::<Vec<_>>()
        };
        // What the previous owner wrote until then.
        let now = self.names(of)?;
        let newest = if states(&now) == states(&names) { newest } else { self.newest(of, &now)? };
        Ok((own, newest))
    }

    /// The newest state among these files that can be read.
    fn newest(&self, of: &str, names: &[String]) -> Result<Option<Checkpoint>, CheckpointError> {
        for name in names.iter().rev().filter(|name| name.ends_with(".state")) {
            let bytes = self.wait(self.place.get(of, name))?;
            match read(name, &bytes)? {
                Some(found) if found.partitions == self.partitions => return Ok(Some(found)),
                Some(Checkpoint { partitions, .. }) => {
                    let (name, here) = (format!("{of}/{name}"), self.partitions);
                    return Err(CheckpointError::OtherPartitions { name, partitions, here });
                }
                None => {
                    tracing::error!("checkpoint {of}/{name} is damaged: using the previous one");
                }
            }
        }
        Ok(None)
    }

    /// Writes a state on another thread; the outcome is received once.
    pub(super) fn write_beside(
        &self,
        of: String,
        own: u64,
        checkpoint: Checkpoint,
    ) -> Receiver<Result<(), CheckpointError>> {
        let (done, told) = sync_channel(1);
        let this = self.clone();
        let work = blocking(move || this.write(&of, own, &checkpoint));
        self.runtime.spawn(async move {
            let written = work.await.unwrap_or_else(|why| Err(CheckpointError::Store(why.into())));
            // If the worker has ended, nothing waits for it.
            let _ = done.send(written);
        });
        told
    }

    /// Writes a state, and removes all but the newest `KEPT`. Blocks its thread.
    ///
    /// # Errors
    ///
    /// Fails if the store does, or if the partition has a new owner in the meantime.
    pub(super) fn write(
        &self,
        of: &str,
        own: u64,
        checkpoint: &Checkpoint,
    ) -> Result<(), CheckpointError> {
        let _step = telemetry::step("fleet.checkpoint");
        let packed = pack(checkpoint).ok_or(CheckpointError::Unwritable)?;
        let packed = zstd::encode_all(packed.as_slice(), LEVEL);
        let packed = packed.map_err(|_| CheckpointError::Unwritable)?;
        let mut bytes = Vec::with_capacity(HEAD + packed.len());
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        bytes.extend_from_slice(&crc32c::crc32c(&packed).to_be_bytes());
        bytes.extend_from_slice(&packed);
        let name = format!("{own:020}-{:020}.state", checkpoint.next.max(0));
        self.wait(self.place.put(of, &name, bytes))?;
        let names = self.names(of)?;
        if names.last().and_then(|name| generation(name)).is_some_and(|last| last > own) {
            return Err(CheckpointError::Replaced);
        }
        let states: Vec<&String> = names.iter().filter(|name| name.ends_with(".state")).collect();
        let old = states.iter().rev().skip(KEPT).copied();
        // The `.owner` files of earlier owners, and their unfinished states, are of no use.
        let others = names.iter().filter(|name| !name.ends_with(".state"));
        for name in old.chain(others.filter(|name| generation(name) < Some(own))) {
            self.wait(self.place.delete(of, name))?;
        }
        Ok(())
    }

    /// The names of the files of a partition, in order.
    fn names(&self, of: &str) -> Result<Vec<String>, CheckpointError> {
        let mut names = self.wait(self.place.list(of))?;
        names.retain(|name| generation(name).is_some());
        names.sort();
        Ok(names)
    }

    fn wait<T>(&self, work: impl Future<Output = io::Result<T>>) -> Result<T, CheckpointError> {
        let done = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await });
        Ok(done.map_err(|_| CheckpointError::Slow)??)
    }
}

/// The generation at the beginning of a name; `None` if it is no file of checkpoints.
fn generation(name: &str) -> Option<u64> {
    name.get(..20)?.parse().ok()
}

/// Reads a state; `None` if it is damaged.
fn read(name: &str, bytes: &[u8]) -> Result<Option<Checkpoint>, CheckpointError> {
    let Some((head, body)) = bytes.split_at_checked(HEAD) else { return Ok(None) };
    let Some((version, sum)) = head.strip_prefix(MAGIC).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    if sum != crc32c::crc32c(body).to_be_bytes() {
        return Ok(None);
    }
    if *version != VERSION {
        return Err(CheckpointError::OtherFormat { name: name.to_owned(), version: *version });
    }
    let unpacked = zstd::decode_all(body).ok();
    Ok(unpacked.and_then(|bytes| unpack(&bytes).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(5_000_000_000);

    fn state(next: i64) -> Checkpoint {
        let sections = [("a".to_owned(), vec![1, 2, 3])].into();
        Checkpoint { partitions: 8, next, now: NOW, sections, ..Checkpoint::default() }
    }

    /// A store in a folder, from a thread that may block.
    fn with(test: impl FnOnce(&Checkpoints, &std::path::Path)) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let place = folder.path().join("deep").join("er");
        let store =
            Checkpoints::open(&place.to_string_lossy(), 8, runtime.handle().clone()).unwrap();
        test(&store, &place.join("t").join("3"));
    }

    #[test]
    fn an_owner_goes_on_from_the_newest_state_under_a_higher_generation() {
        with(|store, folder| {
            assert_eq!(store.claim("t/3", None, NOW).unwrap(), (5, None));
            for next in 1..5 {
                store.write("t/3", 5, &state(next)).unwrap();
            }
            assert_eq!(store.claim("t/3", None, NOW).unwrap(), (6, Some(state(4))));
            assert_eq!(store.claim("t/33", None, NOW).unwrap(), (5, None));
            store.write("t/3", 6, &state(4)).unwrap();
            // Two states and the owner.
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 3);
        });
    }

    #[test]
    fn one_who_was_replaced_is_told_and_does_no_harm() {
        with(|store, _| {
            store.claim("t/3", None, NOW).unwrap();
            store.write("t/3", 5, &state(1)).unwrap();
            store.claim("t/3", None, NOW).unwrap();
            store.write("t/3", 6, &state(2)).unwrap();
            let replaced = store.write("t/3", 5, &state(9)).unwrap_err();
            assert!(matches!(replaced, CheckpointError::Replaced), "{replaced}");
            assert_eq!(store.claim("t/3", None, NOW).unwrap(), (7, Some(state(2))));
        });
    }

    #[test]
    fn a_damaged_state_gives_way_to_the_one_before_and_a_later_release_s_is_named() {
        with(|store, folder| {
            store.claim("t/3", None, NOW).unwrap();
            store.write("t/3", 5, &state(1)).unwrap();
            store.write("t/3", 5, &state(2)).unwrap();
            let newest = folder.join(format!("{:020}-{:020}.state", 5, 2));
            let whole = std::fs::read(&newest).unwrap();
            for at in [0, 6, whole.len() - 1] {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                std::fs::write(&newest, damaged).unwrap();
                assert_eq!(store.claim("t/3", None, NOW).unwrap().1, Some(state(1)), "byte {at}");
            }
            let mut later = whole;
            later[4] = VERSION + 1;
            std::fs::write(&newest, later).unwrap();
            let error = store.claim("t/3", None, NOW).unwrap_err().to_string();
            assert!(
                error.contains(&format!("version {}", VERSION + 1))
                    && error.contains("`fleet.checkpoints`"),
                "{error}"
            );
        });
    }

    #[test]
    fn who_claims_again_keeps_what_nobody_else_has_claimed_since() {
        with(|store, folder| {
            let (own, _) = store.claim("t/3", None, NOW).unwrap();
            for _ in 0..3 {
                assert_eq!(store.claim("t/3", Some(own), NOW).unwrap(), (own, None));
            }
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
            let (other, _) = store.claim("t/3", None, NOW).unwrap();
            store.write("t/3", other, &state(2)).unwrap();
            assert_eq!(store.claim("t/3", Some(own), NOW).unwrap(), (other + 1, Some(state(2))));
        });
    }

    #[test]
    fn a_state_of_another_number_of_partitions_is_refused_and_nothing_is_written() {
        with(|store, folder| {
            let (own, _) = store.claim("t/3", None, NOW).unwrap();
            store.write("t/3", own, &state(1)).unwrap();
            let files = || std::fs::read_dir(folder).unwrap().count();
            let before = files();
            let other = Checkpoints { partitions: 16, ..store.clone() };
            for _ in 0..3 {
                let error = other.claim("t/3", None, NOW).unwrap_err().to_string();
                assert!(
                    error.contains("8 partitions") && error.contains("`fleet.partitions` is 16"),
                    "{error}"
                );
            }
            assert_eq!(files(), before);
            assert_eq!(store.claim("t/3", None, NOW).unwrap().1, Some(state(1)));
        });
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = file.path().join("below");
        let open = |place: &str| Checkpoints::open(place, 8, runtime.handle().clone());
        let error = open(&place.to_string_lossy()).unwrap_err();
        assert!(error.to_string().contains("`fleet.checkpoints`"), "{error}");
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_build_without_s3_says_so() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let error =
            Checkpoints::open("s3://bucket/prefix", 8, runtime.handle().clone()).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("feature `s3`"), "{why}");
    }
}
