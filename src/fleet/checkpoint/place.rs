//! The storage of checkpoints: named objects in folders, in a directory that instances share or in S3.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[cfg(feature = "s3")]
use super::s3::Bucket;
use crate::blocking::blocking;
use crate::store::{Disk, Folder};

/// A directory or a bucket.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Directory(PathBuf),
    #[cfg(feature = "s3")]
    S3(Bucket),
}

/// The suffix of a file that is still being written.
const PART: &str = ".part";

impl Place {
    /// The place that `fleet.checkpoints` names: `s3://bucket/prefix`, or a directory, which is created if it is missing.
    pub(super) fn open(place: &str) -> io::Result<Self> {
        if place.starts_with("s3://") {
            #[cfg(feature = "s3")]
            return Bucket::open(place).map(Self::S3);
            #[cfg(not(feature = "s3"))]
            return Err(io::Error::other(
                "this build lacks the feature `s3`: name a directory, or use a packaged build, which has it",
            ));
        }
        let directory = Path::new(place.strip_prefix("file://").unwrap_or(place));
        Folder::new(directory)?;
        Ok(Self::Directory(directory.to_owned()))
    }

    /// Creates an empty object, which must not exist yet.
    ///
    /// # Errors
    ///
    /// Fails with [`io::ErrorKind::AlreadyExists`] if the object exists, and if the storage fails.
    pub(super) async fn create(&self, folder: &str, name: &str) -> io::Result<()> {
        match self {
            Self::Directory(base) => in_directory(base, folder, name, create).await,
            #[cfg(feature = "s3")]
            Self::S3(bucket) => bucket.create(folder, name).await,
        }
    }

    /// Writes an object completely, or not at all.
    pub(super) async fn put(&self, folder: &str, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        match self {
            Self::Directory(base) => {
                in_directory(base, folder, name, move |folder, name| put(folder, name, &bytes))
                    .await
            }
            #[cfg(feature = "s3")]
            Self::S3(bucket) => bucket.put(folder, name, bytes).await,
        }
    }

    /// Reads an object.
    pub(super) async fn get(&self, folder: &str, name: &str) -> io::Result<Vec<u8>> {
        match self {
            Self::Directory(base) => {
                in_directory(base, folder, name, |folder, name| std::fs::read(folder.path(name)))
                    .await
            }
            #[cfg(feature = "s3")]
            Self::S3(bucket) => bucket.get(folder, name).await,
        }
    }

    /// The names of the objects in a folder, in any order; none if there is no such folder.
    pub(super) async fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match self {
            Self::Directory(base) => {
                let names = |folder: &Folder, _: &str| {
                    Ok(folder.list()?.into_iter().map(|(name, _)| name).collect())
                };
                in_directory(base, folder, "", names).await
            }
            #[cfg(feature = "s3")]
            Self::S3(bucket) => bucket.list(folder).await,
        }
    }

    /// Removes an object.
    pub(super) async fn delete(&self, folder: &str, name: &str) -> io::Result<()> {
        match self {
            Self::Directory(base) => in_directory(base, folder, name, Folder::remove).await,
            #[cfg(feature = "s3")]
            Self::S3(bucket) => bucket.delete(folder, name).await,
        }
    }
}

/// Does `work` on a thread that may block on a local or network disk.
async fn in_directory<T: Send + 'static>(
    base: &Path,
    folder: &str,
    name: &str,
    work: impl FnOnce(&Folder, &str) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (folder, name) = (base.join(folder), name.to_owned());
    let done = blocking(move || work(&Folder::new(&folder)?, &name));
    done.await?
}

fn create(folder: &Folder, name: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(folder.path(name))?.sync_all()?;
    folder.sync_names()
}

fn put(folder: &Folder, name: &str, bytes: &[u8]) -> io::Result<()> {
    let part = format!("{name}{PART}");
    let mut file = folder.create(&part)?;
    let written = file.write_all(bytes).and_then(|()| file.sync());
    let renamed = written.and_then(|()| folder.rename(&part, name));
    if let Err(error) = renamed {
        // Removed to make room, as the disk may be full; if that fails, the file does no harm.
        let _ = folder.remove(&part);
        return Err(error);
    }
    folder.sync_names()
}
