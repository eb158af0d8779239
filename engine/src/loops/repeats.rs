//! Whether calls may be in a loop, whatever their order.
//!
//! The calls of a loop have all failed, have the same or nearly the same arguments, or have no known arguments. If arguments have
//! so few values that none may differ, all their values are compared.

use std::hash::Hasher;
use std::mem;

use smallvec::SmallVec;

use super::Least;
use crate::hash::FixedHasher;
use crate::options::LoopOptions;

/// Counts of calls that have something in common.
#[derive(Debug)]
pub struct Repeats {
    similarity: f64,
    // Hashes of all values of the arguments, for calls whose values may not differ.
    values: SmallVec<[u64; 32]>,
    // Number of calls whose arguments may be similar to those of any others.
    any: usize,
    // Number of calls without arguments.
    bare: usize,
    failed: usize,
}

impl Repeats {
    /// The counts of no calls.
    pub fn new(options: &LoopOptions) -> Self {
        let similarity = options.near_repeat_similarity;
        Self { similarity, values: SmallVec::new(), any: 0, bare: 0, failed: 0 }
    }

    /// Adds a call by the sorted hashes of the values in its arguments; `None`: these were not sent.
    pub fn add(&mut self, values: Option<&[u64]>) {
        let Some(values) = values else {
            self.bare += 1;
            return;
        };
        // Arguments that are not equal differ in at least one value, left out or added. Without values it is not known whether they
        // were left out.
        let count = values.len() as f64;
        if values.is_empty() || count / (count + 1.0) >= self.similarity {
            self.any += 1;
            return;
        }
        let mut hash = FixedHasher::default();
        values.iter().for_each(|value| hash.write_u64(*value));
        self.values.push(hash.finish());
    }

    /// Counts a failure that may be that of a call.
    pub fn fail(&mut self) {
        self.failed += 1;
    }

    /// Counts calls without arguments as similar to any others, as their arguments may be known from another source.
    pub fn guess(&mut self) {
        self.any += mem::take(&mut self.bare);
    }

    /// Whether enough calls for a loop have something in common.
    pub fn reach(mut self, least: Least) -> bool {
        self.values.sort_unstable();
        let same = self.values.chunk_by(|one, next| one == next).map(<[u64]>::len).max();
        let any = least.known.min(least.names);
        self.failed >= any
            || same.unwrap_or(0) + self.any >= any
            || self.bare + self.any >= least.names
    }
}
