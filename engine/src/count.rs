//! Counts of what a stage could not use, and of other events in it; the shell exports them.

use std::collections::BTreeMap;

/// Monotone counts by what was counted and why.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts(BTreeMap<(&'static str, &'static str), u64>);

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, what: &'static str, why: &'static str) {
        self.add_many(what, why, 1);
    }

    /// Counts `n` more.
    pub fn add_many(&mut self, what: &'static str, why: &'static str, n: u64) {
        if n > 0 {
            *self.0.entry((what, why)).or_default() += n;
        }
    }

    /// The count so far.
    pub fn get(&self, what: &'static str, why: &'static str) -> u64 {
        self.0.get(&(what, why)).copied().unwrap_or(0)
    }

    /// All counts, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        self.0.iter().map(|((what, why), count)| (*what, *why, *count))
    }
}
