//! All runs of one agent, and their scores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::last_runs::LastRun;
use super::names::Scores;
use super::pool::Pool;
use super::robustness::Robustness;
use super::run::{Facts, RunKey};
use super::safety::Safety;
use super::sides::Sides;
use super::task::Task;
use super::trajectory::Trajectory;
use super::{Condition, RunRecord, TaskOptions, aggregate};

/// The runs of one agent, and their scores, kept up to date run by run.
///
/// The scores do not depend on the order in which runs arrive, nor on how often, within the bounds of the options.
#[derive(Clone, Debug, Default)]
pub struct AgentTasks {
    options: TaskOptions,
    tasks: BTreeMap<Arc<str>, Task>,
    /// Runs without a task, and runs at a task that is not held: they count in scores that need no task.
    taskless: BTreeMap<(Option<Arc<str>>, Arc<str>), Facts>,
    /// The runs that can still be revised.
    open: BTreeSet<RunKey>,
    /// The last settled run: it cannot be revised.
    settled: Option<RunKey>,
    pools: Sides<Pool>,
    robustness: Robustness,
    safety: Safety,
    refused: Refused,
}

/// Numbers of runs that do not count, or not in all scores, by reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Refused {
    /// Runs whose task was over the limit: they count as if they had none.
    pub over_max_tasks: u64,
    /// Runs that are settled, or began before a settled one.
    pub settled: u64,
}

/// One task, over the runs that count for consistency.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskView<'a> {
    /// Its name.
    pub task: &'a Arc<str>,
    /// Number of runs at it.
    pub runs: u64,
    /// Number of runs whose outcome is known.
    pub evaluated: u64,
    /// Number of runs that succeeded.
    pub successes: u64,
    /// Those of the five consistencies that exist.
    pub scores: BTreeMap<&'static str, f64>,
}

impl AgentTasks {
    /// Most runs of a task that are compared.
    pub const MAX_LAST_RUNS: usize = 50;

    /// An agent without runs.
    pub fn new(options: TaskOptions) -> Self {
        let last_runs = options.last_runs.min(Self::MAX_LAST_RUNS);
        Self { options: TaskOptions { last_runs, ..options }, ..Self::default() }
    }

    /// Adds a run, or replaces the one with the same task and id; returns whether it was accepted.
    pub fn upsert(&mut self, run: RunRecord) -> bool {
        let task = run.task.clone();
        let old = self.retract(task.as_deref(), &run.id);
        // If the new run is on the side of the old one, its task is put back into that pool only once, with the new run.
        let of_task = old.and_then(|(condition, of_task)| of_task.then_some(condition));
        let again = of_task.is_some_and(|old| Sides::<Pool>::are_one(old, run.condition));
        if let Some(old) = of_task.filter(|_| !again) {
            self.put_back(task.as_deref(), old);
        }
        let taken = old.is_some() || self.admits(&run);
        if taken {
            self.add(run, again);
            self.settle();
        }
        taken
    }

    /// Subtracts a run, unless it is settled or unknown.
    pub fn remove(&mut self, task: Option<&str>, id: &str) {
        if let Some((condition, true)) = self.retract(task, id) {
            self.put_back(task, condition);
        }
        if let Some(task) = task.filter(|task| self.tasks.get(*task).is_some_and(Task::is_empty)) {
            self.tasks.remove(task);
        }
    }

    /// Whether runs at a task were subtracted, so that runs earlier than those held here have to be compared again.
    pub fn lacks_earlier(&self, task: &str) -> bool {
        self.tasks.get(task).is_some_and(|task| {
            let Sides { undisturbed, disturbed } = &task.sides;
            [undisturbed, disturbed].iter().any(|side| side.lacks_earlier(&self.options))
        })
    }

    /// Adds back runs at a task, the latest by (start, id) first, until none is lacking; `latest_first` are all of its runs.
    pub fn refill(&mut self, task: &str, latest_first: impl Iterator<Item = RunRecord>) {
        for run in latest_first {
            if !self.lacks_earlier(task) {
                return;
            }
            // If it was added before there was room for the task, it is not one of the task's runs.
            if self.taskless.contains_key(&(run.task.clone(), Arc::clone(&run.id))) {
                continue;
            }
            self.refill_side(task, run.condition, Some(run));
        }
        for condition in [Condition::Baseline, Condition::Fault] {
            self.refill_side(task, condition, None);
        }
    }

    fn refill_side(&mut self, task: &str, condition: Condition, run: Option<RunRecord>) {
        let Some(task) = self.tasks.get_mut(task) else { return };
        let repeats = task.sides.under(condition);
        if repeats.lacks_earlier(&self.options) {
            let pool = self.pools.under(condition);
            pool.forget_task(repeats);
            let run = run.map(|run| last_run(&run, &self.options));
            repeats.refill(run, &self.options);
            pool.observe_task(repeats);
        }
    }

    /// The scores that exist.
    pub fn scores(&self) -> Scores {
        let mut scores = Scores::default();
        self.primary_pool().score(&mut scores);
        self.robustness.score(&mut scores);
        self.safety.score(&mut scores);
        aggregate::complete(&mut scores, &self.options.weights);
        scores
    }

    /// pass^k for those `k` from 1 to 8 for which some task has enough runs with an outcome.
    pub fn pass_hat_k(&self) -> BTreeMap<u32, f64> {
        self.primary_pool().pass_hat_k.results()
    }

    /// The tasks that count for consistency, by name.
    pub fn tasks(&self) -> impl Iterator<Item = TaskView<'_>> {
        let any_undisturbed = self.pools.undisturbed.runs > 0;
        self.tasks.iter().filter_map(move |(task, all)| {
            let repeats = all.sides.primary(any_undisturbed);
            (repeats.runs > 0).then(|| TaskView {
                task,
                runs: repeats.runs,
                evaluated: repeats.outcomes.runs,
                successes: repeats.outcomes.successes,
                scores: repeats.named_scores(),
            })
        })
    }

    /// Whether there are too many different confidences for exact discrimination and risk-coverage.
    pub fn is_approximate(&self) -> bool {
        self.primary_pool().predictability.is_approximate()
    }

    /// The numbers of runs refused so far.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The pool of the undisturbed runs, or, if there are none, of all runs.
    fn primary_pool(&self) -> &Pool {
        self.pools.primary(self.pools.undisturbed.runs > 0)
    }

    /// Whether a new run can be added; counts it if not, or if it cannot count for its task.
    fn admits(&mut self, run: &RunRecord) -> bool {
        let late = self.settled.as_ref().is_some_and(|settled| *settled >= RunKey::new(run));
        let over = run.task.as_deref().is_some_and(|task| !self.has_room_for(task));
        self.refused.over_max_tasks += u64::from(over && !late);
        self.refused.settled += u64::from(late);
        !late
    }

    /// Whether runs at a task count for it.
    fn has_room_for(&self, task: &str) -> bool {
        self.tasks.contains_key(task) || self.tasks.len() < self.options.max_tasks
    }

    /// Adds a run; `again`: its task was removed from the pool already.
    fn add(&mut self, run: RunRecord, again: bool) {
        let facts = Facts::new(&run);
        self.open.insert(RunKey::new(&run));
        if let Some(success) = facts.success {
            self.robustness.observe(facts.condition, success);
        }
        self.safety.observe(facts.worst, facts.looked);
        self.pools.under(facts.condition).observe(&facts);
        let Some(task) = run.task.clone().filter(|task| self.has_room_for(task)) else {
            self.taskless.insert((run.task, run.id), facts);
            return;
        };
        let last = last_run(&run, &self.options);
        let task = self.tasks.entry(task).or_default();
        let repeats = task.sides.under(facts.condition);
        let pool = self.pools.under(facts.condition);
        if !again {
            pool.forget_task(repeats);
        }
        repeats.observe(&facts, last, &self.options);
        pool.observe_task(repeats);
        task.runs.insert(run.id, facts);
    }

    /// Subtracts a run that can still be revised, and removes its task from the pool; returns the condition under which it ran, and
    /// whether it counted for its task.
    fn retract(&mut self, task: Option<&str>, id: &str) -> Option<(Condition, bool)> {
        let (key, facts, of_task) = self.close(task, id)?;
        if let Some(success) = facts.success {
            self.robustness.forget(facts.condition, success);
        }
        self.safety.forget(facts.worst, facts.looked);
        let pool = self.pools.under(facts.condition);
        pool.forget(&facts);
        if let Some(task) = task.filter(|_| of_task).and_then(|task| self.tasks.get_mut(task)) {
            let repeats = task.sides.under(facts.condition);
            pool.forget_task(repeats);
            repeats.forget(&facts, &(key.start, key.id));
        }
        Some((facts.condition, of_task))
    }

    /// Puts a task that was removed from the pool back, with its scores recomputed.
    fn put_back(&mut self, task: Option<&str>, condition: Condition) {
        if let Some(task) = task.and_then(|task| self.tasks.get_mut(task)) {
            let repeats = task.sides.under(condition);
            repeats.rescore(&self.options);
            self.pools.under(condition).observe_task(repeats);
        }
    }

    /// Forgets what is needed to revise a run; its contribution stays. Also returns whether it counted for its task.
    fn close(&mut self, task: Option<&str>, id: &str) -> Option<(RunKey, Facts, bool)> {
        let of_task = task.and_then(|task| {
            let name = Arc::clone(self.tasks.get_key_value(task)?.0);
            Some((name, self.tasks.get_mut(task)?.runs.remove_entry(id)?))
        });
        let (key, facts, of_task) = match of_task {
            Some((name, (id, facts))) => {
                (RunKey { start: facts.start, task: Some(name), id }, facts, true)
            }
            None => {
                let key = (task.map(Arc::from), Arc::from(id));
                let ((task, id), facts) = self.taskless.remove_entry(&key)?;
                (RunKey { start: facts.start, task, id }, facts, false)
            }
        };
        self.open.remove(&key);
        Some((key, facts, of_task))
    }

    /// Settles the earliest runs over the bound of runs that can be revised.
    fn settle(&mut self) {
        while self.open.len() > self.options.max_runs {
            let Some(key) = self.open.pop_first() else { break };
            self.close(key.task.as_deref(), &key.id);
            self.settled = self.settled.take().max(Some(key));
        }
    }
}

/// The parts of a run that are compared.
fn last_run(run: &RunRecord, options: &TaskOptions) -> LastRun {
    LastRun {
        at: (run.start, Arc::clone(&run.id)),
        trajectory: (run.success == Some(true))
            .then(|| Trajectory::new(&run.actions, options.max_actions_per_run))
            .flatten(),
        resources: run.resources,
    }
}
