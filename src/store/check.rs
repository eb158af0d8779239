//! Checks whether a start could use a directory, without changing it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::disk::{Disk, Folder};
use super::error::StoreError;
use super::log::{LOG_MAGIC, Segment};
use super::record::{FILE_HEAD, Head, VERSION, read_head};
use super::snapshot::{self, SNAPSHOT_MAGIC};

/// Checks that a directory can be written to, or created if it is missing, and that this release can read the files in it.
///
/// # Errors
///
/// Fails as a start would.
pub fn check(directory: &Path) -> Result<(), StoreError> {
    let unusable = |source| StoreError::Directory { path: directory.to_owned(), source };
    let found = nearest(directory).map_err(unusable)?;
    writable(&found).map_err(unusable)?;
    if found != directory {
        return Ok(());
    }
    let disk = Folder::there(directory);
    for (name, bytes) in disk.list().map_err(unusable)? {
        let magic = if Segment::of(&name, bytes).is_some() {
            LOG_MAGIC
        } else if snapshot::is_one(&name) {
            SNAPSHOT_MAGIC
        } else {
            continue;
        };
        let (path, mut head) = (disk.path(&name), Vec::new());
        let mut file =
            disk.open(&name).map_err(StoreError::read(path.clone()))?.take(FILE_HEAD as u64);
        file.read_to_end(&mut head).map_err(StoreError::read(path.clone()))?;
        if let Head::Other(found) = read_head(magic, &head) {
            return Err(StoreError::OtherFormat { path, found, known: VERSION });
        }
    }
    Ok(())
}

/// The directory, or the nearest existing one above it.
fn nearest(directory: &Path) -> io::Result<PathBuf> {
    for path in directory.ancestors() {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Ok(path.to_owned()),
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Whether files can be created in a directory; if the system cannot tell, a start finds out.
fn writable(directory: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Access, access};
        access(directory, Access::WRITE_OK | Access::EXEC_OK)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = directory;
    Ok(())
}
