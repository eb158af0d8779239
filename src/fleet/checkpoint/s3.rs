//! Checkpoints in S3, or in a store that speaks its protocol.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

/// A bucket, and the prefix of the checkpoints in it.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    store: Arc<AmazonS3>,
    prefix: Path,
}

impl Bucket {
    /// Opens `s3://bucket/prefix`; the credentials are in the environment variables that Amazon's own tools use.
    pub(super) fn open(place: &str) -> io::Result<Self> {
        // The client uses the process's TLS provider; this fails if one is installed already.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let rest = place.trim_start_matches("s3://");
        let prefix = rest.split_once('/').map_or("", |(_, prefix)| prefix);
        let store = AmazonS3Builder::from_env().with_url(place).build().map_err(failed)?;
        Ok(Self { store: Arc::new(store), prefix: Path::from(prefix) })
    }

    pub(super) async fn create(&self, folder: &str, name: &str) -> io::Result<()> {
        let created = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = self.path(folder, name);
        let put = self.store.put_opts(&path, PutPayload::new(), created);
        put.await.map(drop).map_err(failed)
    }

    pub(super) async fn put(&self, folder: &str, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let path = self.path(folder, name);
        let put = self.store.put(&path, bytes.into());
        put.await.map(drop).map_err(failed)
    }

    pub(super) async fn get(&self, folder: &str, name: &str) -> io::Result<Vec<u8>> {
        let path = self.path(folder, name);
        let found = self.store.get(&path).await.map_err(failed)?;
        found.bytes().await.map(Vec::from).map_err(failed)
    }

    pub(super) async fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let folder = self.path(folder, "");
        let found = self.store.list(Some(&folder)).try_collect::<Vec<_>>().await.map_err(failed)?;
        Ok(found.iter().filter_map(|of| of.location.filename().map(str::to_owned)).collect())
    }

    pub(super) async fn delete(&self, folder: &str, name: &str) -> io::Result<()> {
        let path = self.path(folder, name);
        self.store.delete(&path).await.map_err(failed)
    }

    fn path(&self, folder: &str, name: &str) -> Path {
        let (folder, name) = (Path::from(folder), Path::from(name));
        self.prefix.parts().chain(folder.parts()).chain(name.parts()).collect()
    }
}

fn failed(error: Error) -> io::Error {
    let is_there = matches!(error, Error::AlreadyExists { .. });
    let kind = if is_there { ErrorKind::AlreadyExists } else { ErrorKind::Other };
    io::Error::new(kind, error)
}
