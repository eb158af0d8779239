//! The hash of trace ids: what is looked up for each span has to be cheap.

use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hashes trace ids.
pub(super) type TraceHash = BuildHasherDefault<TraceHasher>;

/// One pass of xxh3; the same ids have the same hash in every process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TraceHasher(u64);

impl Hasher for TraceHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // The length of an array, which is the same for all.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
