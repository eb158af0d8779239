//! The last runs at a task: those of greatest (start, id), up to a limit.
//!
//! A run that gives way is never compared again, also if a later one is taken back: so what is kept does not depend
//! on how often a run comes.

use std::sync::Arc;

use super::trajectory::{Pairs, Trajectory};
use super::{Formula, Resources};
use crate::engine::span::Timestamp;

/// What orders the runs at a task.
pub(super) type Moment = (Timestamp, Arc<str>);

/// One of the last runs.
#[derive(Clone, Debug)]
pub(super) struct LastRun {
    pub(super) at: Moment,
    /// Of a successful run that called any tool.
    pub(super) trajectory: Option<Trajectory>,
    pub(super) resources: Resources,
}

/// The last runs, and the sums over pairs of them.
#[derive(Clone, Debug, Default)]
pub(super) struct LastRuns {
    // Invariant: ascending, and all over `gone`.
    runs: Vec<LastRun>,
    /// The last run that gave way.
    gone: Option<Moment>,
    pairs: Pairs,
}

impl LastRuns {
    /// Adds a run, unless it is older than what there is room for.
    pub(super) fn insert(&mut self, run: LastRun, limit: usize, formula: Formula) {
        if self.gone.as_ref().is_some_and(|gone| *gone >= run.at) {
            return;
        }
        let mut place = self.runs.partition_point(|other| other.at < run.at);
        if self.runs.len() >= limit {
            if place == 0 {
                self.gone = Some(run.at);
                return;
            }
            self.gone = self.take(0, formula).map(|oldest| oldest.at);
            place -= 1;
        }
        if let Some(own) = &run.trajectory {
            self.pairs.observe(own, trajectories(&self.runs), formula);
        }
        self.runs.insert(place, run);
    }

    /// Takes back a run; nothing fills its place.
    pub(super) fn remove(&mut self, at: &Moment, formula: Formula) {
        if let Ok(place) = self.runs.binary_search_by(|run| run.at.cmp(at)) {
            self.take(place, formula);
        }
    }

    /// What the runs used, oldest first.
    pub(super) fn resources(&self) -> Vec<Resources> {
        self.runs.iter().map(|run| run.resources).collect()
    }

    /// Sums over pairs.
    pub(super) fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    fn take(&mut self, place: usize, formula: Formula) -> Option<LastRun> {
        (place < self.runs.len()).then(|| {
            let run = self.runs.remove(place);
            if let Some(own) = &run.trajectory {
                self.pairs.forget(own, trajectories(&self.runs), formula);
            }
            run
        })
    }
}

fn trajectories(runs: &[LastRun]) -> impl Iterator<Item = &Trajectory> {
    runs.iter().filter_map(|run| run.trajectory.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_gave_way_does_not_come_back() {
        let run = |start: u64| LastRun {
            at: (Timestamp(start), Arc::from("run")),
            trajectory: Trajectory::new(&[Arc::from("search")], 10),
            resources: Resources::default(),
        };
        let mut last = LastRuns::default();
        (1..=3).for_each(|start| last.insert(run(start), 2, Formula::Corrected));
        last.remove(&run(3).at, Formula::Corrected);
        last.insert(run(1), 2, Formula::Corrected);
        assert_eq!(last.resources().len(), 1);
        assert_eq!(last.pairs().sequence(), None);
        last.insert(run(4), 2, Formula::Corrected);
        assert_eq!(last.pairs().sequence(), Some(1.0));
    }
}
