//! The last runs at a task: those with the greatest (start, id), up to a limit.
//!
//! A displaced run is not kept. When a later one is subtracted, there is room again, which only a caller that still has the run can
//! fill: [`LastRuns::lacks`] shows that, and [`LastRuns::refill`] adds the run.

use std::sync::Arc;

use super::trajectory::{Likeness, Pairs, Trajectory};
use super::{Formula, Resources};
use crate::span::Timestamp;

/// The order of the runs at a task: by start and id.
pub(super) type Moment = (Timestamp, Arc<str>);

/// One of the last runs.
#[derive(Clone, Debug)]
pub(super) struct LastRun {
    pub(super) at: Moment,
    /// Its trajectory, if it succeeded and called a tool.
    pub(super) trajectory: Option<Trajectory>,
    pub(super) resources: Resources,
}

/// The last runs, and the sums over pairs of them.
#[derive(Clone, Debug, Default)]
pub(super) struct LastRuns {
    // Each with its similarity to the earlier ones. Invariant: ascending, and none below `floor`.
    runs: Vec<(LastRun, Vec<Option<Likeness>>)>,
    /// A moment above every displaced run; `None`: no run was displaced.
    floor: Option<Moment>,
    pairs: Pairs,
}

impl LastRuns {
    /// Adds a run, unless it is older than all runs of a full list.
    pub(super) fn insert(&mut self, run: LastRun, limit: usize, formula: Formula) {
        if limit == 0 || self.floor.as_ref().is_some_and(|floor| run.at < *floor) {
            return;
        }
        self.add(run, formula);
        if self.runs.len() > limit {
            self.take(0);
            self.floor = self.runs.first().map(|(oldest, _)| oldest.at.clone());
        }
    }

    /// Removes a run; its place stays empty.
    pub(super) fn remove(&mut self, at: &Moment) {
        if let Ok(place) = self.runs.binary_search_by(|(run, _)| run.at.cmp(at)) {
            self.take(place);
        }
    }

    /// Whether there is room for a displaced run.
    pub(super) fn lacks(&self, limit: usize) -> bool {
        self.floor.is_some() && self.runs.len() < limit
    }

    /// Adds the last of the displaced runs; ignores a run that was not displaced.
    pub(super) fn refill(&mut self, run: LastRun, formula: Formula) {
        if self.floor.as_ref().is_some_and(|floor| run.at < *floor) {
            self.floor = Some(run.at.clone());
            self.add(run, formula);
        }
    }

    /// Notes that no displaced run is left.
    pub(super) fn have_all(&mut self) {
        self.floor = None;
    }

    /// The resources of the runs, oldest first.
    pub(super) fn resources(&self) -> impl Iterator<Item = &Resources> + Clone {
        self.runs.iter().map(|(run, _)| &run.resources)
    }

    /// Sums over pairs.
    pub(super) fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    fn add(&mut self, run: LastRun, formula: Formula) {
        let others = self.runs.iter().map(|(other, _)| other.trajectory.as_ref());
        let pairs = match &run.trajectory {
            Some(own) => own.compared(others, formula),
            None => vec![None; self.runs.len()],
        };
        pairs.iter().flatten().for_each(|pair| self.pairs.observe(*pair));
        let place = self.runs.partition_point(|(other, _)| other.at < run.at);
        for ((_, earlier), pair) in self.runs[place..].iter_mut().zip(&pairs[place..]) {
            earlier.insert(place, *pair);
        }
        self.runs.insert(place, (run, pairs[..place].to_vec()));
    }

    fn take(&mut self, place: usize) -> Option<LastRun> {
        (place < self.runs.len()).then(|| {
            let (run, mut pairs) = self.runs.remove(place);
            let later = self.runs[place..].iter_mut();
            pairs.extend(later.map(|(_, earlier)| earlier.remove(place)));
            pairs.into_iter().flatten().for_each(|pair| self.pairs.forget(pair));
            run
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_gave_way_comes_back_where_there_is_room() {
        let run = |start: u64| LastRun {
            at: (Timestamp(start), Arc::from("run")),
            trajectory: Trajectory::new(&[Arc::from("search")], 10),
            resources: Resources::default(),
        };
        let mut last = LastRuns::default();
        (1..=3).for_each(|start| last.insert(run(start), 2, Formula::Corrected));
        last.remove(&run(3).at);
        last.insert(run(1), 2, Formula::Corrected);
        assert_eq!(last.resources().count(), 1);
        assert_eq!(last.pairs().sequence(), None);
        assert!(last.lacks(2));
        last.refill(run(2), Formula::Corrected);
        assert_eq!(last.resources().count(), 1);
        last.refill(run(1), Formula::Corrected);
        assert_eq!(last.pairs().sequence(), Some(1.0));
        assert!(!last.lacks(2));
    }
}
