//! The lock that gives a directory to one process.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::disk::private;
use super::error::StoreError;

/// The lock on a directory, held while the process uses it; the system releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the directory.
    ///
    /// # Errors
    ///
    /// Fails if another process has it, or it cannot be written to.
    pub fn take(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.to_owned();
        let unusable = |source| StoreError::Directory { path: directory.to_owned(), source };
        let file = private(&directory.join(NAME), false).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path }),
            Err(TryLockError::Error(source)) => Err(StoreError::Directory { path, source }),
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
        drop(lock);
        assert!(Lock::take(folder.path()).is_ok());
        let error = Lock::take(&folder.path().join("missing")).unwrap_err().to_string();
        assert!(error.contains("`store.directory`"), "{error}");
    }
}
