//! Whether calls may be in a loop, whatever order they came in.
//!
//! The calls of a loop failed all of them, or have their arguments in common, or nearly, or came without any. Where arguments have so few
//! values that none of them may differ, they are told apart by all of these.

use std::hash::Hasher;
use std::mem;

use super::Least;
use crate::hash::FixedHasher;
use crate::options::LoopOptions;

/// How many calls have something in common.
#[derive(Debug)]
pub struct Repeats {
    similarity: f64,
    // A hash of the values of each call's arguments.
    values: Vec<u64>,
    // Arguments that may be like any others.
    any: usize,
    // No arguments.
    bare: usize,
    failed: usize,
}

impl Repeats {
    /// Of no calls yet.
    pub fn new(options: &LoopOptions) -> Self {
        let similarity = options.near_repeat_similarity;
        Self { similarity, values: Vec::new(), any: 0, bare: 0, failed: 0 }
    }

    /// Adds a call by the sorted hashes of the values in its arguments; `None`: these are not on the wire.
    pub fn add(&mut self, values: Option<&[u64]>) {
        let Some(values) = values else {
            self.bare += 1;
            return;
        };
        // Others have one value less of these, or one more, at the least. Of none it is not told whether they were left out.
        let count = values.len() as f64;
        if values.is_empty() || count / (count + 1.0) >= self.similarity {
            self.any += 1;
            return;
        }
        let mut hash = FixedHasher::default();
        values.iter().for_each(|value| hash.write_u64(*value));
        self.values.push(hash.finish());
    }

    /// Something failed that may be one of the calls.
    pub fn fail(&mut self) {
        self.failed += 1;
    }

    /// Arguments that are not on the wire may be told elsewhere.
    pub fn guess(&mut self) {
        self.any += mem::take(&mut self.bare);
    }

    /// Whether enough calls have something in common.
    pub fn reach(mut self, least: Least) -> bool {
        self.values.sort_unstable();
        let same = self.values.chunk_by(|one, next| one == next).map(<[u64]>::len).max();
        let any = least.known.min(least.names);
        self.failed >= any
            || same.unwrap_or(0) + self.any >= any
            || self.bare + self.any >= least.names
    }
}
