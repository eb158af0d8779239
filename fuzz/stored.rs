//! What must hold for any bytes in the store's directory, in what stages wrote down, and in a record between stages.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentgauge::engine::agents::SavedAgents;
use agentgauge::engine::assemble::saved::SavedTraces;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::saved;
use agentgauge::fleet::rewritten;
use agentgauge::store::{DamagedRecords, Disk, DiskFile, Durability, Opened, Record, StoreOptions};

/// How the names of files begin that the first byte chooses from.
pub(crate) const FILES: [&str; 3] =
    ["log-00000000000000000001-", "snapshot-00000000000000000002", "end.marks"];

/// A mark that says that no record was acknowledged.
const NO_RECORD: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0x8a, 0xb2, 0x28, 0x8c];

/// A start succeeds or is refused, tells of each record once and in order, and the next start finds the same.
///
/// The first byte chooses the file, four more are the salt in the name of one of the log.
pub(crate) fn log(bytes: &[u8]) {
    let Some(([file, salt @ ..], content)) = bytes.split_first_chunk::<5>() else { return };
    let kind = usize::from(*file) % FILES.len();
    let mut name = FILES[kind].to_owned();
    if kind == 0 {
        name = format!("{name}{:08x}.wal", u32::from_be_bytes(*salt));
    }
    for damaged_records in [DamagedRecords::Skip, DamagedRecords::Refuse] {
        let disk = Memory::default();
        // Without any, a start is refused whatever else there is.
        disk.files().insert(FILES[2].to_owned(), NO_RECORD.to_vec());
        disk.files().insert(name.clone(), content.to_vec());
        let first = records(&disk, damaged_records);
        if let Some(found) = &first {
            assert!(found.is_sorted_by(|(one, _), (next, _)| one < next), "out of order");
            assert_eq!(records(&disk, damaged_records), first, "the next start");
        }
    }
}

/// What is there after a start; `None`: it is refused.
fn records(disk: &Memory, damaged_records: DamagedRecords) -> Option<Vec<(u64, Record)>> {
    let durability = Durability::Flush;
    let options = StoreOptions { damaged_records, durability, ..StoreOptions::default() };
    let opened = Opened::open(Arc::new(disk.clone()), &options).ok()?;
    let found: Result<Vec<_>, _> = opened.recovery.replay(opened.disk().as_ref()).collect();
    Some(found.expect("it was looked through"))
}

/// What a stage wrote down is read, or refused.
pub(crate) fn saved(bytes: &[u8]) {
    let Some((stage, mut state)) = bytes.split_first() else { return };
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    let (_, assemble, sessions, agents) = pipeline.lasting();
    match stage % 3 {
        0 => {
            let read = saved::read::<SavedTraces>(state);
            read.into_iter().for_each(|state| assemble[0].restore(state));
        }
        1 => drop(saved::read_with(&mut state, |source| sessions[0].restore(source))),
        _ => {
            let read = saved::read::<SavedAgents>(state);
            read.into_iter().for_each(|state| agents.restore(state));
        }
    }
}

/// A record that is read is written as it will be read again.
pub(crate) fn record(bytes: &[u8]) {
    if let Some(once) = rewritten(bytes) {
        assert_eq!(rewritten(&once).as_ref(), Some(&once));
    }
}

/// A directory in memory.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

struct MemoryFile {
    disk: Memory,
    name: String,
}

impl Memory {
    pub(crate) fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, name: &str, then: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        self.files().get_mut(name).map(then).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for Memory {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.files().insert(name.to_owned(), Vec::new());
        Ok(Box::new(MemoryFile { disk: self.clone(), name: name.to_owned() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Cursor::new(self.with(name, |file| file.clone())?)))
    }

    fn read_at(&self, name: &str, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let read = |file: &mut Vec<u8>| file.get(at..at.checked_add(bytes)?).map(<[u8]>::to_vec);
        self.with(name, read)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn write_at(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        self.with(name, |file| {
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(bytes);
        })
    }

    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        self.with(name, |file| file.truncate(bytes))
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.files().iter().map(|(name, file)| (name.clone(), file.len() as u64)).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        name.into()
    }
}

impl Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.with(&self.name, |file| file.extend_from_slice(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.disk.truncate(&self.name, bytes)
    }
}
