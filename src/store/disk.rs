//! The file system as the store sees it: one flat directory of named files.
//!
//! Written bytes are safe once their file is synced; a new, changed or removed name is safe once the directory is synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory.
pub trait Disk: Send + Sync {
    /// Creates an empty file; it replaces a file with this name.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file to be read from its beginning.
    ///
    /// # Errors
    ///
    /// Fails if the system does, or there is no such file.
    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>>;

    /// Reads `bytes` bytes of a file, from byte `at` on.
    ///
    /// # Errors
    ///
    /// Fails if the system does, or the file is shorter.
    fn read_at(&self, name: &str, at: u64, bytes: usize) -> io::Result<Vec<u8>>;

    /// Writes into a file from byte `at` on, which may be past its end; nothing is synced.
    ///
    /// # Errors
    ///
    /// Fails if the system does, or there is no such file.
    fn write_at(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts a file to its first `bytes`, and syncs it.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()>;

    /// The names of all files and their sizes in bytes, in order.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Renames a file; it replaces a file that has the new name.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Syncs the directory, which makes the names of files safe.
    ///
    /// # Errors
    ///
    /// Fails if the system does; changes of names since the last sync may then be lost.
    fn sync_names(&self) -> io::Result<()>;

    /// Whether this is still the directory that was opened; false if it was removed, renamed or replaced by another one.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn is_there(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// The path of a file for error messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// A file that is appended to.
pub trait DiskFile: Write + Send {
    /// Syncs the file, which makes what was written safe.
    ///
    /// # Errors
    ///
    /// Fails if the system does; what was written since the last sync may then be lost, even if another sync succeeds.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the file to its first `bytes`, and continues there.
    ///
    /// # Errors
    ///
    /// Fails if the system does.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

/// A directory of the file system. Only the owner may read its files, as requests hold prompts. If it is renamed or replaced, every
/// call fails until it is back: another directory at its path belongs to somebody else.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    // `None` if the directory cannot be opened.
    identity: Option<Identity>,
    // Held open, so that no other directory gets its identity.
    _opened: Option<Arc<File>>,
}

/// The device and the inode of a directory.
type Identity = (u64, u64);

impl Folder {
    /// The directory at `path`, which is created if it is missing; its name is then safe.
    ///
    /// # Errors
    ///
    /// Fails if it is missing and cannot be created, or its name cannot be made safe.
    pub fn new(path: &Path) -> io::Result<Self> {
        make(path, sync_directory)?;
        Ok(Self::there(path))
    }

    /// The existing directory at `path`.
    pub(super) fn there(path: &Path) -> Self {
        let opened = File::open(path).ok();
        let metadata = opened.as_ref().and_then(|opened| opened.metadata().ok());
        let identity = metadata.as_ref().map(identity);
        Self { path: path.to_owned(), identity, _opened: opened.map(Arc::new) }
    }

    /// The path of a file, for access to it.
    ///
    /// # Errors
    ///
    /// Fails if the directory is not the one that was opened.
    fn at(&self, name: &str) -> io::Result<PathBuf> {
        if self.is_there()? { Ok(self.path.join(name)) } else { Err(replaced()) }
    }
}

/// The identity of a directory; on systems without inodes all are the same.
fn identity(metadata: &fs::Metadata) -> Identity {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (metadata.dev(), metadata.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        (0, 0)
    }
}

fn replaced() -> io::Error {
    let why = "the directory was removed, renamed or replaced";
    io::Error::new(io::ErrorKind::NotFound, why)
}

/// Creates a directory, and those above it, if they are missing; `sync` makes their names safe, which are in the directories above
/// them. Otherwise a loss of power could lose the directory with everything that is safe in it.
fn make(path: &Path, mut sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let named = path.ancestors().take_while(|path| !path.as_os_str().is_empty());
    let missing: Vec<&Path> = named.take_while(|path| !path.exists()).collect();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    missing.into_iter().try_for_each(|made| sync(above(made)))
}

/// The parent directory of a path.
fn above(path: &Path) -> &Path {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or_else(|| Path::new("."))
}

/// Syncs the names in a directory. A directory can be opened and synced on Unix only; other systems keep names in order themselves.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Opens a file for writing, and creates it if it is missing, readable only by the owner.
pub(super) fn private(path: &Path, truncate: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(truncate);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Disk for Folder {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(private(&self.at(name)?, true)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(self.at(name)?)?))
    }

    fn read_at(&self, name: &str, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.at(name)?)?;
        file.seek(SeekFrom::Start(at))?;
        let mut found = vec![0; bytes];
        file.read_exact(&mut found)?;
        Ok(found)
    }

    fn write_at(&self, name: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.at(name)?)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)
    }

    fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.at(name)?)?;
        file.set_len(bytes)?;
        file.sync_all()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.at("")?)? {
            let entry = entry?;
            // A link stands for its file, as when it is opened; a dangling link stands for nothing.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            if let (true, Some(name)) = (metadata.is_file(), entry.file_name().to_str()) {
                files.push((name.to_owned(), metadata.len()));
            }
        }
        files.sort();
        Ok(files)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from)?, self.at(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name)?)
    }

    fn sync_names(&self) -> io::Result<()> {
        sync_directory(&self.at("")?)
    }

    fn is_there(&self) -> io::Result<bool> {
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        match fs::metadata(&self.path) {
            Ok(found) => Ok(self.identity.is_none_or(|own| own == identity(&found))),
            Err(error) if absent.contains(&error.kind()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)?;
        self.seek(SeekFrom::Start(bytes)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_listed_as_its_file_and_one_to_nothing_is_not() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = elsewhere.path().join("kept");
        fs::write(&kept, "marks").unwrap();
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, folder.path().join(name)).unwrap();
        };
        link(&kept, "end.marks");
        link(&elsewhere.path().join("gone"), "snapshot");
        link(elsewhere.path(), "folder");
        let disk = Folder::there(folder.path());
        assert_eq!(disk.list().unwrap(), [("end.marks".to_owned(), 5)]);
    }

    #[test]
    fn the_name_of_a_new_directory_is_synced_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        let mut synced = Vec::new();
        let mut make = |path: &Path| {
            make(path, |directory| {
                synced.push(directory.to_owned());
                Ok(())
            })
            .unwrap();
            std::mem::take(&mut synced)
        };
        let new = base.join("one/two/three");
        assert_eq!(make(&new), [base.join("one/two"), base.join("one"), base.to_owned()]);
        assert!(new.is_dir());
        assert!(make(&new).is_empty(), "nothing is new");
        assert_eq!(make(&new.with_file_name("four")), [base.join("one/two")]);
        assert_eq!(above(Path::new("store")), Path::new("."));
    }
}
