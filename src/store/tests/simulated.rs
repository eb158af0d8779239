//! A disk that forgets, for tests.
//!
//! After a crash of the machine a file has its synced content, and of every later write all, nothing, its first bytes or zeros;
//! names are as of the last sync of names, with any of the later changes. The disk can be full, can fail to sync or delay syncs,
//! and the machine can crash at any call.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::store::disk::{Disk, DiskFile};

/// A source of numbers that are the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides.max(1)
    }

    pub(crate) fn size(&mut self, sides: usize) -> usize {
        usize::try_from(self.roll(sides as u64)).unwrap()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Simulated(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    // Notified when syncs are no longer delayed.
    let_go: Condvar,
}

#[derive(Default)]
struct State {
    files: Vec<Inode>,
    names: BTreeMap<String, usize>,
    safe_names: BTreeMap<String, usize>,
    unsafe_names: Vec<Name>,
    calls: u64,
    crash_at: Option<u64>,
    crashed: bool,
    capacity: Option<usize>,
    fails_to_sync: bool,
    files_left: Option<usize>,
    holds_syncs: bool,
    syncing: usize,
}

#[derive(Clone, Default)]
struct Inode {
    now: Vec<u8>,
    safe: Vec<u8>,
    since: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

#[derive(Clone)]
enum Name {
    Put(String, usize),
    Remove(String),
    Rename(String, String),
}

impl Simulated {
    /// The machine crashes at the call of this number, counted from now.
    pub(crate) fn crash_after(&self, calls: Option<u64>) {
        let mut state = self.state();
        state.crash_at = calls.map(|calls| state.calls + calls);
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The disk has room for this many bytes.
    pub(crate) fn limit(&self, bytes: Option<usize>) {
        self.state().capacity = bytes;
    }

    /// Syncs fail from now on.
    pub(crate) fn fail_syncs(&self) {
        self.state().fails_to_sync = true;
    }

    /// This many more files can be created.
    pub(crate) fn limit_files(&self, more: Option<usize>) {
        self.state().files_left = more;
    }

    /// Whether syncs of files wait, until this is called again.
    pub(crate) fn hold_syncs(&self, hold: bool) {
        self.state().holds_syncs = hold;
        self.0.let_go.notify_all();
    }

    /// The number of waiting syncs.
    pub(crate) fn syncing(&self) -> usize {
        self.state().syncing
    }

    /// The machine restarts after a crash: unsynced content is lost, in part.
    pub(crate) fn power_loss(&self, dice: &mut Dice) {
        let mut state = self.state();
        let mut names = std::mem::take(&mut state.safe_names);
        for change in std::mem::take(&mut state.unsafe_names) {
            if dice.roll(2) == 0 {
                change.apply(&mut names);
            }
        }
        for inode in &mut state.files {
            inode.forget(dice);
        }
        state.names.clone_from(&names);
        state.safe_names = names;
        state.crash_at = None;
        state.crashed = false;
        state.fails_to_sync = false;
    }

    /// The bytes of a file, to be damaged.
    pub(crate) fn damage(&self, name: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let number = state.names[name];
        let inode = &mut state.files[number];
        damage(&mut inode.now);
        inode.safe.clone_from(&inode.now);
    }

    /// A separate disk with the same content.
    pub(crate) fn copy(&self) -> Self {
        let state = self.state();
        let copy = State {
            files: state.files.clone(),
            names: state.names.clone(),
            safe_names: state.safe_names.clone(),
            unsafe_names: state.unsafe_names.clone(),
            ..State::default()
        };
        Self(Arc::new(Shared { state: Mutex::new(copy), let_go: Condvar::new() }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_names(&self, change: Name) -> io::Result<()> {
        let mut state = self.state();
        let crash = state.call();
        state.unsafe_names.push(change.clone());
        crash?;
        change.apply(&mut state.names);
        Ok(())
    }
}

impl State {
    /// Counts a call; fails from the crash on.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        self.crashed |= self.crash_at.is_some_and(|at| self.calls >= at);
        if self.crashed { Err(io::Error::other("the machine crashed")) } else { Ok(()) }
    }
}

impl Name {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Put(name, inode) => drop(names.insert(name, inode)),
            Self::Remove(name) => drop(names.remove(&name)),
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(&from) {
                    names.insert(to, inode);
                }
            }
        }
    }
}

impl Inode {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.now.resize(self.now.len().max(end), 0);
        self.now[at..end].copy_from_slice(bytes);
        self.since.push(Change::Write(at, bytes.to_vec()));
    }

    fn forget(&mut self, dice: &mut Dice) {
        let mut left = std::mem::take(&mut self.safe);
        for change in std::mem::take(&mut self.since) {
            match change {
                Change::Write(at, mut bytes) => {
                    match dice.roll(4) {
                        0 => continue,
                        1 => bytes.truncate(dice.size(bytes.len() + 1)),
                        2 => bytes.fill(0),
                        _ => {}
                    }
                    let end = at + bytes.len();
                    left.resize(left.len().max(end), 0);
                    left[at..end].copy_from_slice(&bytes);
                }
                Change::Cut(bytes) => {
                    if dice.roll(2) == 0 {
                        left.truncate(bytes);
                    }
                }
            }
        }
        self.now.clone_from(&left);
        self.safe = left;
    }
}

impl Disk for Simulated {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = {
            let mut state = self.state();
            if let Some(left) = &mut state.files_left {
                *left = left.checked_sub(1).ok_or_else(|| io::Error::other("too many files"))?;
            }
            state.files.push(Inode::default());
            state.files.len() - 1
        };
        self.change_names(Name::Put(name.to_owned(), number))?;
        Ok(Box::new(Handle { disk: self.clone(), number, at: 0 }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        let mut state = self.state();
        state.call()?;
        let number = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(io::Cursor::new(state.files[*number].now.clone())))
    }

    fn read_at(&self, name: &str, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        state.call()?;
        let number = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let found = state.files[*number].now.get(at..at + bytes);
        Ok(found.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec())
    }

    fn write_at(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let number = *self.state().names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let at = usize::try_from(at).map_err(io::Error::other)?;
        Handle { disk: self.clone(), number, at }.write_all(bytes)
    }

    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let number = *self.state().names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let mut handle = Handle { disk: self.clone(), number, at: 0 };
        handle.cut(bytes)?;
        handle.sync()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut state = self.state();
        state.call()?;
        let names = state.names.iter();
        Ok(names
            .map(|(name, number)| (name.clone(), state.files[*number].now.len() as u64))
            .collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change_names(Name::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_names(Name::Remove(name.to_owned()))
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        state.unsafe_names.clear();
        state.safe_names = state.names.clone();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("simulated").join(name)
    }
}

struct Handle {
    disk: Simulated,
    number: usize,
    at: usize,
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let used: usize = state.names.values().map(|number| state.files[*number].now.len()).sum();
        let room = state.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(used));
        let some = &bytes[..bytes.len().min(room)];
        let crash = state.call();
        state.files[self.number].write(self.at, some);
        self.at += some.len();
        crash?;
        if some.is_empty() && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for Handle {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.syncing += 1;
        while state.holds_syncs {
            state = self.disk.0.let_go.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.syncing -= 1;
        state.call()?;
        if state.fails_to_sync {
            return Err(io::Error::other("the disk failed"));
        }
        let inode = &mut state.files[self.number];
        inode.since.clear();
        inode.safe = inode.now.clone();
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let crash = state.call();
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let inode = &mut state.files[self.number];
        inode.since.push(Change::Cut(bytes));
        crash?;
        inode.now.truncate(bytes);
        self.at = bytes;
        Ok(())
    }
}
