//! What is learned from traces for the sake of others: which agents there are, and whether parents of spans come.
//!
//! All shards look into one table, as the traces of a service are in any of them. A shard only reads it: what it learned it hands
//! out, and whoever owns the table adds that, in whatever order and however often. So what is known does not depend on the number of
//! shards. Only news is handed out, so a busy service costs little.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::{Agents, Names};
use super::parents::{Parents, ParentsSeen};
use super::recent::{Join, LearnedKey, Recent, Saved};
use crate::count::Counts;
use crate::options::AssembleOptions;
use crate::tenants::Shares;

/// What all shards know.
#[derive(Clone, Debug)]
pub struct Learned {
    pub(super) names: Names,
    pub(super) parents: Parents,
    counts: Counts,
}

/// What a shard has learned that the table does not have.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Lessons {
    names: BTreeMap<LearnedKey, Agents>,
    parents: BTreeMap<LearnedKey, ParentsSeen>,
}

/// The serialised tables.
#[derive(Debug, Deserialize, Serialize)]
struct Tables<N, P> {
    names: N,
    parents: P,
}

/// The tables that were read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedLearned(Tables<Saved<Agents>, Saved<ParentsSeen>>);

impl Learned {
    /// Nothing yet; at most `max_learned` entries of each kind, of which tenants have these shares.
    pub fn new(options: &AssembleOptions, shares: Shares) -> Self {
        let mut names = Names::new(options.max_learned);
        names.shared_by(shares.clone());
        let parents = Parents::new(options.max_learned, options.trace_max_age, shares);
        Self { names, parents, counts: Counts::default() }
    }

    /// Adds what a shard has learned.
    pub fn learn(&mut self, lessons: Lessons) {
        let Self { names, parents, counts } = self;
        let forgotten = join(names, lessons.names) + join(&mut parents.kinds, lessons.parents);
        counts.add_many("learned", "forgotten", forgotten);
    }

    /// Counts of what had to be forgotten.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sets all counts to zero.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// The tables for a snapshot.
    pub fn save(&self) -> impl Serialize + '_ {
        Tables { names: self.names.save(), parents: self.parents.kinds.save() }
    }

    /// Takes over the tables of a snapshot.
    pub fn restore(&mut self, SavedLearned(saved): SavedLearned) {
        self.names.restore(saved.names);
        self.parents.kinds.restore(saved.parents);
    }
}

impl Lessons {
    /// Whether nothing was learned.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.parents.is_empty()
    }

    /// Adds the agents of a service and scope.
    pub(super) fn named(&mut self, (source, agents): (LearnedKey, Agents)) {
        self.names.entry(source).or_default().join(agents);
    }

    /// Adds what a trace showed of the parents of one kind of spans.
    pub(super) fn showed(&mut self, kind: LearnedKey, seen: ParentsSeen) {
        self.parents.entry(kind).or_default().join(seen);
    }
}

/// Adds values to a table; returns how many entries had to be forgotten for it.
fn join<V: Join + Default>(table: &mut Recent<V>, values: BTreeMap<LearnedKey, V>) -> u64 {
    values.into_iter().for_each(|(topic, value)| table.learn(topic).join(value));
    table.take_forgotten()
}
