//! The sessions that were evicted to disk: files of one shard, which are only appended to.
//!
//! ```text
//! away-{shard}-{number}:  a head as the log's, then the bytes of one session after the other
//! ```
//!
//! The stage that evicts a session knows its place and its CRC-32C, and saves them with the rest of its state. So a file is synced
//! before a snapshot may name it, and is removed when nothing in it is needed and no kept snapshot can name it. A start begins a
//! new file.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;

use super::budget::Budget;
use super::disk::{Disk, DiskFile};
use super::error::StoreError;
use super::record::{FILE_HEAD, Head, VERSION, head, read_head};
use super::snapshot::KEPT;
use crate::engine::sessions::{SessionPlace, SessionStore};

/// The files of one shard.
pub struct FileSessionStore {
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    shard: usize,
    file_bytes: u64,
    files: BTreeMap<u64, Stored>,
    // The file that is written to, with its number.
    open: Option<(u64, Box<dyn DiskFile>)>,
    // Full files that are not synced yet.
    closed: Vec<Box<dyn DiskFile>>,
    // Whether a sync failed: then it is unknown what is on disk.
    failed: bool,
    // Whether the last session could not be stored on disk, which is logged once.
    refuses: bool,
    // The file of the last session that could not be read, which is logged once, too.
    unread: Cell<Option<u64>>,
}

/// The state of one file.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    bytes: u64,
    /// The number of needed sessions in it.
    live: u64,
    /// The number of finished snapshots when the last session in it became unneeded; those that began later cannot name it.
    needless: Option<u64>,
}

impl FileSessionStore {
    /// Opens the session store of a shard; `places` are those that a snapshot names.
    ///
    /// # Errors
    ///
    /// Fails if files cannot be listed, or if a needed one has another format.
    pub fn open(
        disk: Arc<dyn Disk>,
        budget: Arc<Budget>,
        shard: usize,
        file_bytes: u64,
        places: impl Iterator<Item = SessionPlace>,
    ) -> Result<Self, StoreError> {
        let mut files: BTreeMap<u64, Stored> = BTreeMap::new();
        for (name, bytes) in disk.list().map_err(StoreError::read(disk.path("")))? {
            if let Some(number) = number_of(&name, shard) {
                files.insert(number, Stored { bytes, ..Stored::default() });
                budget.add_evicted(bytes);
            }
        }
        // A missing file is listed as well, so that its number is not used again.
        places.for_each(|place| files.entry(place.file).or_default().live += 1);
        let session_store = Self {
            disk,
            budget,
            shard,
            file_bytes,
            files,
            open: None,
            closed: Vec::new(),
            failed: false,
            refuses: false,
            unread: Cell::new(None),
        };
        for (number, _) in session_store.files.iter().filter(|(_, file)| file.live > 0) {
            let name = session_store.name(*number);
            session_store.budget.use_evicted(name.clone());
            let head = session_store.disk.read_at(&name, 0, FILE_HEAD).unwrap_or_default();
            if let Head::Other(found) = read_head(AWAY_MAGIC, &head) {
                return Err(StoreError::OtherFormat {
                    path: session_store.disk.path(&name),
                    found,
                    known: VERSION,
                });
            }
        }
        Ok(session_store)
    }

    fn name(&self, number: u64) -> String {
        format!("{}{number:012}", prefix(self.shard))
    }

    /// Appends to the open file, or to a new one; returns the file's number and where the bytes begin in it.
    fn append(&mut self, bytes: &[u8]) -> io::Result<(u64, u64)> {
        let full = |file: &Stored| file.bytes >= self.file_bytes;
        if self.open.as_ref().is_none_or(|(number, _)| self.files.get(number).is_none_or(full)) {
            let begun = self.begin();
            if self.open.is_none() {
                begun?;
            }
            // If no further file can be begun, a full one is used.
        }
        let Some((number, file)) = &mut self.open else { return Err(io::Error::other("no file")) };
        let stored = self.files.entry(*number).or_default();
        let at = stored.bytes;
        if let Err(error) = file.write_all(bytes) {
            // If the end of the file is unknown, the next session goes into another.
            if file.cut(at).is_err() {
                self.close();
            }
            return Err(error);
        }
        stored.bytes += bytes.len() as u64;
        self.budget.add_evicted(bytes.len() as u64);
        Ok((*number, at))
    }

    /// Creates the next file to write to. A file that cannot be begun leaves nothing behind: while a disk is full or files cannot
    /// be opened, every eviction tries it.
    fn begin(&mut self) -> io::Result<()> {
        let number = self.files.last_key_value().map_or(1, |(last, _)| last + 1);
        let name = self.name(number);
        let begun = self.disk.create(&name).and_then(|mut file| {
            file.write_all(&head(AWAY_MAGIC, self.shard as u64))?;
            Ok(file)
        });
        let file = begun.inspect_err(|_| {
            let removed = self.disk.remove(&name);
            if removed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                // It may exist, so its number is not used again.
                self.files.insert(number, Stored::default());
            }
        })?;
        self.close();
        self.files.insert(number, Stored { bytes: FILE_HEAD as u64, ..Stored::default() });
        self.budget.add_evicted(FILE_HEAD as u64);
        self.budget.use_evicted(name);
        self.open = Some((number, file));
        Ok(())
    }

    /// Closes the open file, so that the next session goes into another.
    fn close(&mut self) {
        self.closed.extend(self.open.take().map(|(_, file)| file));
    }

    fn sync(&mut self) -> io::Result<()> {
        let open = self.open.iter_mut().map(|(_, file)| file);
        self.closed.iter_mut().chain(open).try_for_each(|file| file.sync())?;
        self.closed.clear();
        Ok(())
    }

    /// Whether at least one byte in `of` is in unneeded files, so that snapshots would free it.
    fn has_needless(&self, of: u64) -> bool {
        let needless: u64 =
            self.files.values().filter(|file| file.is_needless()).map(|file| file.bytes).sum();
        let all: u64 = self.files.values().map(|file| file.bytes).sum();
        needless > 0 && needless.saturating_mul(of) >= all
    }

    /// Removes the files that no kept snapshot can name, and notes which files the next snapshots will not name.
    fn tidy(&mut self) {
        let needless =
            |(number, _): &(u64, _)| self.files.get(number).is_some_and(Stored::is_needless);
        if self.open.as_ref().is_some_and(needless) {
            self.open = None;
        }
        let open = self.open.as_ref().map(|(number, _)| *number);
        let finished = self.budget.finished();
        let mut gone = Vec::new();
        for (number, file) in self.files.iter_mut().filter(|(_, file)| file.is_needless()) {
            let since = *file.needless.get_or_insert(finished);
            if Some(*number) != open && finished >= since + KEPT as u64 {
                gone.push((*number, file.bytes));
            }
        }
        for (number, bytes) in gone {
            // Before it is removed: nothing else removes it.
            self.budget.unuse_evicted(&self.name(number));
            if let Err(error) = self.disk.remove(&self.name(number))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "a file that is not needed cannot be removed");
                continue;
            }
            self.files.remove(&number);
            self.budget.remove_evicted(bytes);
        }
    }

    /// Forgets files that were removed by others: they take no room, and nothing more is written to them. Their numbers are not
    /// used again.
    fn let_go_of_missing(&mut self) {
        // A directory that cannot be read is checked again.
        let Ok(files) = self.disk.list() else { return };
        let there: BTreeSet<u64> =
            files.iter().filter_map(|(name, _)| number_of(name, self.shard)).collect();
        for (number, file) in self.files.iter_mut().filter(|(number, _)| !there.contains(number)) {
            self.budget.remove_evicted(mem::take(&mut file.bytes));
            self.open.take_if(|(open, _)| open == number);
        }
    }

    /// Notes whether a session could be stored on disk, and logs each change.
    fn note(&mut self, why: Option<&io::Error>) {
        match why {
            Some(error) if !self.refuses => {
                tracing::error!(%error, "sessions cannot be evicted to disk, and are closed instead");
            }
            None if self.refuses => tracing::info!("sessions are evicted to disk again"),
            Some(_) | None => {}
        }
        self.refuses = why.is_some();
    }
}

impl Stored {
    /// Whether nothing in the file is needed.
    fn is_needless(&self) -> bool {
        self.live == 0
    }
}

impl SessionStore for FileSessionStore {
    fn put(&mut self, bytes: &[u8]) -> Option<SessionPlace> {
        let length = u32::try_from(bytes.len()).ok()?;
        let has_room = self.budget.has_room_for_evicted(bytes.len() as u64);
        let share = if has_room { WORTHWHILE } else { u64::MAX };
        if (self.budget.is_full_of_evicted() || !has_room) && self.has_needless(share) {
            self.budget.press();
        }
        if !has_room {
            return None;
        }
        match self.append(bytes) {
            Ok((number, at)) => {
                self.note(None);
                self.files.entry(number).or_default().live += 1;
                Some(SessionPlace { file: number, at, bytes: length, sum: crc32c::crc32c(bytes) })
            }
            Err(error) => {
                self.note(Some(&error));
                None
            }
        }
    }

    fn get(&self, place: SessionPlace) -> Option<Vec<u8>> {
        let name = self.name(place.file);
        let found = self.disk.read_at(&name, place.at, usize::try_from(place.bytes).ok()?);
        let whole = found.and_then(|bytes| match crc32c::crc32c(&bytes) == place.sum {
            true => Ok(bytes),
            false => Err(io::ErrorKind::InvalidData.into()),
        });
        whole
            .inspect_err(|error| {
                // All sessions of a missing file are unreadable.
                if self.unread.replace(Some(place.file)) != Some(place.file) {
                    tracing::error!(%error, file = name, at = place.at, "a session on disk is damaged");
                }
            })
            .ok()
    }

    fn free(&mut self, place: SessionPlace) {
        if let Some(file) = self.files.get_mut(&place.file) {
            file.live = file.live.saturating_sub(1);
        }
    }

    fn keep(&mut self) -> bool {
        if !self.failed
            && let Err(error) = self.sync()
        {
            tracing::error!(%error, "sessions on disk are not safe: no snapshot is written any more");
            self.failed = true;
        }
        self.let_go_of_missing();
        self.tidy();
        !self.failed
    }
}

fn prefix(shard: usize) -> String {
    format!("evicted-{shard}-")
}

/// The number in the name of a file, if it belongs to this shard.
fn number_of(name: &str, shard: usize) -> Option<u64> {
    name.strip_prefix(&prefix(shard))?.parse().ok()
}

/// While there is room, snapshots are requested once they would free one byte in this many.
const WORTHWHILE: u64 = 4;

/// The first bytes of a file's head.
const AWAY_MAGIC: &[u8; 6] = b"AGAWAY";

#[cfg(test)]
mod tests {
    use super::super::tests::simulated::{Dice, Simulated};
    use super::*;

    fn budget(max: u64) -> Arc<Budget> {
        Arc::new(Budget::new(max))
    }

    fn open(disk: &Simulated, budget: &Arc<Budget>, named: &[SessionPlace]) -> FileSessionStore {
        let (disk, budget) = (Arc::new(disk.clone()), Arc::clone(budget));
        FileSessionStore::open(disk, budget, 3, 10_000, named.iter().copied()).unwrap()
    }

    fn thing(key: usize) -> Vec<u8> {
        vec![u8::try_from(key % 251).unwrap(); 1_000 + key]
    }

    fn files(disk: &Simulated) -> usize {
        disk.list().unwrap().len()
    }

    #[test]
    fn what_was_put_there_is_there_after_a_loss_of_power_if_a_snapshot_may_name_it() {
        for seed in 0..200 {
            let (disk, mut dice) = (Simulated::default(), Dice::new(seed));
            let mut session_store = open(&disk, &budget(1 << 30), &[]);
            let named: Vec<SessionPlace> =
                (0..30).map(|key| session_store.put(&thing(key)).unwrap()).collect();
            assert!(session_store.keep());
            // The snapshot makes names safe.
            disk.sync_names().unwrap();
            (30..50).for_each(|key| assert!(session_store.put(&thing(key)).is_some()));
            disk.power_loss(&mut dice);
            let mut session_store = open(&disk, &budget(1 << 30), &named);
            // Later changes do not damage the present content.
            (0..50).for_each(|key| assert!(session_store.put(&thing(key)).is_some()));
            for (key, place) in named.iter().enumerate() {
                assert_eq!(session_store.get(*place), Some(thing(key)), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_file_goes_when_no_snapshot_that_is_kept_can_name_it() {
        let (disk, budget) = (Simulated::default(), budget(1 << 30));
        let mut session_store = open(&disk, &budget, &[]);
        let places: Vec<SessionPlace> =
            (0..100).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        let before = files(&disk);
        assert!(before > 5 && session_store.keep());
        // The snapshot that was begun names them all, and is finished when nothing is needed any more.
        places.iter().for_each(|place| session_store.free(*place));
        budget.add_finished();
        // The two that follow name none of them; the first of them does not release anything yet.
        assert!(session_store.keep());
        budget.add_finished();
        assert!(session_store.keep());
        assert_eq!(files(&disk), before);
        budget.add_finished();
        assert!(session_store.keep());
        assert_eq!((files(&disk), budget.evicted()), (0, 0));
    }

    #[test]
    fn what_an_earlier_process_left_and_nobody_needs_goes() {
        let disk = Simulated::default();
        let mut session_store = open(&disk, &budget(1 << 30), &[]);
        let places: Vec<SessionPlace> =
            (0..40).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        let budget = budget(1 << 30);
        let mut session_store = open(&disk, &budget, &places[39..]);
        let before = (files(&disk), budget.evicted());
        for _ in 0..3 {
            assert!(session_store.keep());
            budget.add_finished();
        }
        assert_eq!(session_store.get(places[39]), Some(thing(39)));
        assert!(before.0 > 3 && files(&disk) == 1 && budget.evicted() < before.1, "{before:?}");
        let place = session_store.put(&thing(1)).unwrap();
        assert!(place.file > places[39].file, "a file is never written to by two");
    }

    #[test]
    fn what_is_damaged_is_not_given_and_the_rest_is() {
        let disk = Simulated::default();
        let mut session_store = open(&disk, &budget(1 << 30), &[]);
        let places: Vec<SessionPlace> =
            (0..5).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        let at = usize::try_from(places[2].at).unwrap();
        disk.damage(&session_store.name(places[2].file), |bytes| bytes[at + 7] ^= 1);
        let found: Vec<_> =
            places.iter().map(|place| session_store.get(*place).is_some()).collect();
        assert_eq!(found, [true, true, false, true, true]);
    }

    #[test]
    fn it_takes_half_of_the_budget_and_asks_for_a_snapshot_that_would_make_room() {
        let (disk, budget) = (Simulated::default(), budget(100_000));
        let mut session_store = open(&disk, &budget, &[]);
        let places: Vec<SessionPlace> =
            (0..100).map_while(|key| session_store.put(&thing(key))).collect();
        assert!(places.len() > 20 && budget.evicted() <= 50_000 && budget.has_room(50_000));
        assert!(!budget.was_pressed(), "all of it is needed");
        places.iter().for_each(|place| session_store.free(*place));
        assert_eq!(session_store.put(&thing(1)), None);
        assert!(budget.was_pressed());
    }

    #[test]
    fn a_snapshot_is_asked_for_where_a_good_part_of_the_files_would_go_by_it() {
        let (disk, budget) = (Simulated::default(), budget(200_000));
        let mut session_store = open(&disk, &budget, &[]);
        let places: Vec<SessionPlace> =
            (0..65).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        assert!(budget.is_full_of_evicted() && !budget.was_pressed());
        let last = places.last().unwrap().file;
        assert!(last > 5, "files are small beside the whole");
        // One of many files is not needed.
        places.iter().filter(|place| place.file == 1).for_each(|place| session_store.free(*place));
        assert!(session_store.put(&thing(1)).is_some());
        assert!(!budget.was_pressed(), "little would go by it");
        places.iter().filter(|place| place.file == 2).for_each(|place| session_store.free(*place));
        assert!(session_store.put(&thing(1)).is_some());
        assert!(budget.was_pressed());
    }

    #[test]
    fn a_full_disk_takes_nothing_and_a_failed_sync_is_never_made_good() {
        let disk = Simulated::default();
        let mut session_store = open(&disk, &budget(1 << 30), &[]);
        let place = session_store.put(&thing(1)).unwrap();
        disk.limit(Some(1_500));
        assert_eq!(session_store.put(&thing(2)), None);
        disk.limit(None);
        let next = session_store.put(&thing(3)).unwrap();
        assert!(session_store.keep());
        let found = [session_store.get(place), session_store.get(next)];
        assert_eq!(found, [Some(thing(1)), Some(thing(3))]);
        session_store.put(&thing(4)).unwrap();
        disk.fail_syncs();
        assert!(!session_store.keep());
        disk.power_loss(&mut Dice::new(1));
        assert!(!session_store.keep());
    }

    #[test]
    fn sessions_for_which_a_disk_has_no_room_leave_no_files_behind() {
        let (disk, budget) = (Simulated::default(), budget(1 << 30));
        let mut session_store = open(&disk, &budget, &[]);
        let sizes = || disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum::<u64>();
        for key in 0..500 {
            // Some have no room for a head.
            let used = usize::try_from(sizes()).unwrap();
            disk.limit(Some(used + if key % 7 == 0 { 3 } else { 900 }));
            assert_eq!(session_store.put(&thing(key)), None);
        }
        assert!(files(&disk) <= 1, "{} files", files(&disk));
        disk.limit(None);
        let places: Vec<SessionPlace> =
            (0..50).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        for (key, place) in places.iter().enumerate() {
            assert_eq!(session_store.get(*place), Some(thing(key)));
        }
        assert_eq!(budget.evicted(), sizes());
    }

    #[test]
    fn where_no_further_file_can_be_opened_a_full_one_takes_more() {
        let disk = Simulated::default();
        let mut session_store = open(&disk, &budget(1 << 30), &[]);
        let first = session_store.put(&thing(0)).unwrap();
        disk.limit_files(Some(0));
        let rest: Vec<SessionPlace> =
            (1..40).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        assert!(rest.iter().all(|place| place.file == first.file));
        disk.limit_files(None);
        assert!(session_store.put(&thing(40)).unwrap().file > first.file);
        assert!(session_store.keep());
        assert_eq!(session_store.get(rest[38]), Some(thing(39)));
    }

    #[test]
    fn files_that_somebody_removed_are_told_of_once_and_take_no_room() {
        let (disk, budget) = (Simulated::default(), budget(1 << 30));
        let mut session_store = open(&disk, &budget, &[]);
        let places: Vec<SessionPlace> =
            (0..40).map(|key| session_store.put(&thing(key)).unwrap()).collect();
        let missing = || {
            let files = disk.list().unwrap();
            budget.missing_evicted(|name| files.iter().any(|(there, _)| there == name))
        };
        assert_eq!(missing(), Vec::<String>::new());
        let gone = [places[0].file, places[39].file].map(|number| session_store.name(number));
        gone.iter().for_each(|name| disk.remove(name).unwrap());
        assert_eq!((missing(), missing()), (gone.to_vec(), Vec::new()));
        let before = budget.evicted();
        assert!(session_store.keep());
        let there: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
        assert!(budget.evicted() < before && budget.evicted() == there);
        // Nothing is put where it would not be found.
        let next = session_store.put(&thing(1)).unwrap();
        assert!(next.file > places[39].file);
        assert_eq!(session_store.get(next), Some(thing(1)));
    }

    #[test]
    fn another_format_is_refused_if_it_is_needed() {
        let disk = Simulated::default();
        let mut session_store = open(&disk, &budget(1 << 30), &[]);
        let place = session_store.put(&thing(1)).unwrap();
        disk.damage(&session_store.name(place.file), |bytes| {
            bytes[6] += 1;
            let sum = crc32c::crc32c(&bytes[..16]);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        });
        let open = |named: &[SessionPlace]| {
            let disk = Arc::new(disk.clone());
            FileSessionStore::open(disk, budget(1 << 30), 3, 10_000, named.iter().copied()).err()
        };
        assert!(matches!(open(&[place]), Some(StoreError::OtherFormat { .. })));
        assert!(open(&[]).is_none());
    }
}
