//! The lock that reserves a directory for one process.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::disk::private;
use super::error::StoreError;

/// The lock on a directory, held while the process uses it; the system releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    // The directory itself, as the file may be removed; `None` if directories cannot be locked.
    _directory: Option<File>,
}

impl Lock {
    /// Locks the directory.
    ///
    /// # Errors
    ///
    /// Fails if another process holds it, or the directory cannot be written to.
    pub fn take(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.to_owned();
        let unusable = |source| StoreError::Directory { path: directory.to_owned(), source };
        let file = private(&directory.join(NAME), false).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(StoreError::Directory { path, source }),
        }
        let opened = File::open(directory).ok();
        match opened.as_ref().map(File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => Err(StoreError::InUse { path }),
            Some(Ok(())) => Ok(Self { _file: file, _directory: opened }),
            None | Some(Err(TryLockError::Error(_))) => Ok(Self { _file: file, _directory: None }),
        }
    }
}

/// The name of the file that is locked.
const NAME: &str = "lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_user_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        let error = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains("`store.directory`") && error.contains("in use"), "{error}");
        // Not even if the file is removed.
        std::fs::remove_file(folder.path().join(NAME)).unwrap();
        let error = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
        drop(lock);
        assert!(Lock::take(folder.path()).is_ok());
        let error = Lock::take(&folder.path().join("missing")).unwrap_err().to_string();
        assert!(error.contains("`store.directory`"), "{error}");
    }
}
