//! Knowledge from some traces that helps with others: which agents there are, and whether parents of spans arrive.
//!
//! All shards read one table, as the traces of a service may be in any of them. A shard hands out what it learned, and the table's
//! owner adds that, in any order and any number of times. So the knowledge does not depend on the number of shards. Only news is
//! handed out, so a busy service costs little.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::{Agents, Names};
use super::parents::{Parents, ParentsSeen};
use super::recent::{Join, LearnedKey, Recent, Saved};
use crate::count::Counts;
use crate::options::AssembleOptions;
use crate::tenants::Shares;

/// The knowledge of all shards.
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

/// The tables read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedLearned(Tables<Saved<Agents>, Saved<ParentsSeen>>);

impl Learned {
    /// Empty tables of at most `max_learned` entries each, which tenants share by these shares.
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

    /// Counts of forgotten entries.
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

    /// Takes over the tables from a snapshot.
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

    /// Adds what a trace showed about the parents of one kind of spans.
    pub(super) fn showed(&mut self, kind: LearnedKey, seen: ParentsSeen) {
        self.parents.entry(kind).or_default().join(seen);
    }
}

/// Adds values to a table; returns how many entries were forgotten for them.
fn join<V: Join + Default>(table: &mut Recent<V>, values: BTreeMap<LearnedKey, V>) -> u64 {
    values.into_iter().for_each(|(topic, value)| table.learn(topic).join(value));
    table.take_forgotten()
}
