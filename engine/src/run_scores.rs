//! Scores over the runs of one agent, in every window at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::facts::{DoneTrace, RunTrace, ScopedId};
use super::math::{Quanta, ratio};
use super::options::AgentOptions;
use super::predict::{KnownRun, MOST_COMPARED, Ranking, Spread, TaskRuns};
use super::runs::{Change, Run, RunKey, Runs, SavedRuns};
use super::score::ars::{ArsAgent, ArsOptions, ArsRun};
use super::score::princeton::{AgentTasks, Condition, Resources, RunRecord, Severity, TaskOptions};
use super::span::{Report, RunTarget, Timestamp};
use super::time::Moment;
use super::view::{ArsComponentView, ArsView, TaskView};

/// The name of the window over all runs in memory.
pub const ALL: &str = "all";

/// Most sessions with an outcome that are learned from: the latest ones.
pub const MOST_KNOWN: usize = 512;

/// Scores over runs in one window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunScores {
    /// Scores in `[0,1]`, `ars` in `[0,100]`, each with the number of its samples.
    pub scores: BTreeMap<&'static str, (f64, u64)>,
    /// The chance that all of k runs succeed, by k.
    pub pass_hat_k: BTreeMap<u32, f64>,
    /// The agent reliability score.
    pub ars: Option<ArsView>,
}

/// The runs of one agent and their scores.
#[derive(Debug)]
pub struct AgentRuns {
    runs: Runs,
    held: RunTable,
    views: Vec<View>,
    // Actions of one run that are compared.
    max_actions: usize,
    /// When a trace or a report of a run was last applied.
    touched: Timestamp,
    // The scores; `None` if a run has changed since they were computed.
    scores: Option<BTreeMap<String, RunScores>>,
    // Runs with an outcome and the efforts of tasks; `None` in the same cases as `scores`.
    known: Option<Arc<[KnownRun]>>,
    at_tasks: Option<Arc<BTreeMap<Arc<str>, TaskRuns>>>,
}

/// The runs of an agent in a snapshot; scores follow from them.
#[derive(Debug, Deserialize, Serialize)]
struct Saved<R> {
    runs: R,
    touched: Timestamp,
}

/// The runs of an agent, read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct SavedAgentRuns(Saved<SavedRuns>);

/// All runs in memory. Invariant: each is once in `by_start`, and once in `by_task` if it has a task.
#[derive(Debug, Default)]
struct RunTable {
    runs: BTreeMap<RunKey, Arc<Run>>,
    by_start: BTreeSet<(Timestamp, RunKey)>,
    by_task: BTreeMap<Arc<str>, BTreeSet<(Timestamp, Arc<str>)>>,
}

/// The runs that a view covers.
#[derive(Clone, Copy, Debug)]
enum Scope {
    All,
    /// Runs that ended in the open pane or in the earlier panes of a window; panes have this width in nanoseconds.
    Window(u64),
    /// The last runs, by (start, key), up to this number.
    Last(usize),
}

#[derive(Debug)]
struct View {
    name: String,
    scope: Scope,
    tasks: AgentTasks,
    ars: ArsAgent,
    // By end, or by start in a view of the last runs.
    members: BTreeSet<(Timestamp, RunKey)>,
}

impl AgentRuns {
    /// No runs yet; windows are those of the scores over traces.
    pub fn new(options: &AgentOptions, tasks: &TaskOptions, ars: &ArsOptions) -> Self {
        // `Runs` keeps the bound; a view briefly has one more run while a new run replaces another.
        let max_runs = options.max_runs.saturating_add(1);
        let view = |name: String, scope| View {
            name,
            scope,
            tasks: AgentTasks::new(TaskOptions { max_runs, ..tasks.clone() }),
            ars: ArsAgent::new(ArsOptions { max_runs, ..ars.clone() }),
            members: BTreeSet::new(),
        };
        let mut views = vec![view(ALL.to_owned(), Scope::All)];
        for window in &options.windows {
            let scope = Scope::Window(super::window::pane_width(*window));
            views.push(view(super::window::window_name(*window), scope));
        }
        if options.last_traces > 0 {
            let name = format!("last_{}", options.last_traces);
            views.push(view(name, Scope::Last(options.last_traces)));
        }
        Self {
            runs: Runs::new(options.max_runs, options.max_traces_per_run),
            max_actions: tasks.max_actions_per_run,
            held: RunTable::default(),
            views,
            touched: Timestamp::default(),
            scores: None,
            known: None,
            at_tasks: None,
        }
    }

    /// Replaces the contribution of a trace to its run, or removes it.
    pub fn trace(&mut self, trace: RunTrace, now: Moment, counts: &mut Counts) {
        let changes = self.runs.trace(trace, counts);
        self.apply(changes, now, counts);
    }

    /// Applies a report about a run.
    pub fn report(&mut self, target: &RunTarget, report: Report, now: Moment, counts: &mut Counts) {
        let changes = self.runs.report(target, report, counts);
        self.apply(changes, now, counts);
    }

    /// Notes that an outcome was reported by the name of this run; returns whether it counts: see [`Runs::count_report`].
    pub fn count_report(&mut self, target: &RunTarget) -> bool {
        self.runs.count_report(&RunKey::from(target))
    }

    /// Removes the outcome from the message about a trace, if an earlier one was reported by the name of its run; returns whether
    /// anything is left.
    pub fn keep_what_counts(&mut self, told: &mut DoneTrace) -> bool {
        if let Some(trace) = told.trace_id.filter(|_| told.outcome_failed.is_some())
            && !self.runs.count_trace(trace)
        {
            told.outcome_failed = None;
        }
        told.is_first() || told.outcome_failed.is_some()
    }

    /// The last trace of a run; `None` if it has none.
    pub fn last_trace(&self, target: &RunTarget) -> Option<&RunTrace> {
        self.runs.last_trace(&RunKey::from(target))
    }

    /// The start of a run's first trace, or the time of its first report; `None` if the run is not known.
    pub fn start(&self, target: &RunTarget) -> Option<Timestamp> {
        Some(self.held.runs.get(&RunKey::from(target))?.start)
    }

    /// The runs for a snapshot.
    pub(super) fn save(&self) -> impl Serialize + '_ {
        Saved { runs: self.runs.save(), touched: self.touched }
    }

    /// Takes over the runs from a snapshot.
    pub(super) fn restore(&mut self, saved: SavedAgentRuns, now: Moment, counts: &mut Counts) {
        let Saved { runs, touched } = saved.0;
        let changes = self.runs.restore(runs, counts);
        self.apply(changes, now, counts);
        self.touched = touched;
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        self.held.runs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.held.runs.is_empty()
    }

    /// Estimated bytes of memory of the runs.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
    }

    /// Forgets the oldest runs until all take at most `bytes`.
    pub fn forget_to(&mut self, bytes: usize, now: Moment, counts: &mut Counts) {
        while self.bytes() > bytes
            && let Some(oldest) = self.runs.forget_oldest(counts)
        {
            self.apply(vec![Change::Gone(oldest)], now, counts);
        }
    }

    /// Whether no run has changed for this long.
    pub fn is_idle(&self, now: Timestamp, idle: Duration) -> bool {
        self.touched.after(idle) <= now
    }

    /// After the wall clock was set back: removes runs from windows if they ended more than a window's length ahead, as they would
    /// otherwise stay until the clock gets there.
    pub fn expire_ahead(&mut self, wall: Timestamp) {
        for view in &mut self.views {
            let Scope::Window(width) = view.scope else { continue };
            while let Some(member) =
                view.members.last().filter(|(end, _)| is_ahead(*end, width, wall)).cloned()
            {
                view.members.remove(&member);
                view.forget(&member.1);
                view.refill(&member.1, &self.held);
                self.scores = None;
            }
        }
    }

    /// Removes runs that are too old for their windows; returns whether there were any.
    pub fn expire(&mut self, wall: Timestamp) -> bool {
        let mut any = false;
        for view in &mut self.views {
            let Scope::Window(width) = view.scope else { continue };
            while let Some((end, key)) =
                view.members.first().filter(|(end, _)| !is_in(*end, width, wall))
            {
                let member = (*end, key.clone());
                view.members.remove(&member);
                view.forget(&member.1);
                view.refill(&member.1, &self.held);
                any = true;
            }
        }
        if any {
            self.scores = None;
        }
        any
    }

    /// The scores of each window that has any.
    pub fn scores(&mut self) -> &BTreeMap<String, RunScores> {
        let views = &self.views;
        self.scores.get_or_insert_with(|| {
            let scored = views.iter().map(|view| (view.name.clone(), view.scores()));
            scored.filter(|(_, scores)| *scores != RunScores::default()).collect()
        })
    }

    /// The last [`MOST_KNOWN`] sessions with a run whose outcome is known, by start of the last such run. `probability` gives the
    /// probability that the judge is asked about a run, flagged or not; it must be a pure function.
    pub fn known(&mut self, probability: impl Fn(bool) -> Option<f64>) -> Arc<[KnownRun]> {
        let held = &self.held;
        Arc::clone(self.known.get_or_insert_with(|| {
            let mut sessions: BTreeMap<Arc<ScopedId>, KnownRun> = BTreeMap::new();
            let mut latest: Vec<Arc<ScopedId>> = Vec::new();
            let probability = |run: &Run| run.judged.then(|| probability(run.flagged)).flatten();
            for (_, key) in held.by_start.iter().rev() {
                let Some(run) = held.runs.get(key) else { continue };
                let (Some(success), Some(session)) = (run.success, &run.session) else { continue };
                if let Some(known) = sessions.get_mut(session) {
                    known.effort = run.effort.plus(known.effort);
                    known.add_signals(&run.signals);
                    known.risks.extend(&run.risks);
                    let others = [known.probability, probability(run)].into_iter().flatten();
                    known.probability = others.reduce(f64::max);
                } else if latest.len() < MOST_KNOWN {
                    latest.push(Arc::clone(session));
                    let (task, session) = (key.task.clone(), Arc::clone(session));
                    let mut known = KnownRun {
                        session,
                        task,
                        end: run.end,
                        effort: run.effort,
                        signals: BTreeMap::new(),
                        risks: run.risks.clone(),
                        failed: !success,
                        probability: probability(run),
                    };
                    known.add_signals(&run.signals);
                    sessions.insert(Arc::clone(&known.session), known);
                } else {
                    break;
                }
            }
            latest.iter().rev().filter_map(|session| sessions.remove(session)).collect()
        }))
    }

    /// The runs at each task that has two or more, for comparison.
    pub fn at_tasks(&mut self) -> Arc<BTreeMap<Arc<str>, TaskRuns>> {
        let RunTable { runs, by_task, .. } = &self.held;
        Arc::clone(self.at_tasks.get_or_insert_with(|| {
            let enough = by_task.iter().filter(|(_, held)| held.len() > 1);
            let tasks = enough.map(|(task, held)| {
                let key =
                    |id: &Arc<str>| RunKey { task: Some(Arc::clone(task)), id: Arc::clone(id) };
                let held = held.iter().filter_map(|(_, id)| runs.get(&key(id)));
                let held = held.filter(|run| run.traces > 0);
                let ranking = Ranking::from(&Spread::of_runs(held.clone().map(|run| &run.effort)));
                let results = held.rev().take(MOST_COMPARED).filter_map(|run| {
                    Some((Arc::clone(run.session.as_ref()?), run.results.clone()))
                });
                (Arc::clone(task), TaskRuns { ranking, results: results.collect() })
            });
            Arc::new(tasks.collect())
        }))
    }

    /// The tasks, by id.
    pub fn tasks(&self) -> Vec<TaskView> {
        let Some(all) = self.views.first() else { return Vec::new() };
        let mut cases = all.ars.cases();
        let tasks = all.tasks.tasks().map(|task| TaskView {
            task_id: task.task.to_string(),
            runs: task.runs,
            successes: task.successes,
            scores: named(task.scores),
            ars_components: cases
                .remove(task.task)
                .map(|case| named(case.components))
                .unwrap_or_default(),
        });
        tasks.collect()
    }

    fn apply(&mut self, changes: Vec<Change>, moment: Moment, counts: &mut Counts) {
        self.touched = self.touched.max(moment.now);
        for change in changes {
            (self.scores, self.known, self.at_tasks) = (None, None, None);
            let (key, run) = match change {
                Change::Set(key, run) => (key, Some(Arc::<Run>::from(run))),
                Change::Gone(key) => (key, None),
            };
            if let Some(old) = self.held.remove(&key) {
                self.views.iter_mut().for_each(|view| view.retract(&key, &old));
            }
            if let Some(run) = run {
                let is_cut = key.task.is_some() && run.actions.len() > self.max_actions;
                counts.add_many("run_actions", "cut", u64::from(is_cut));
                for view in &mut self.views {
                    view.admit(&key, &run, moment.wall, counts);
                }
                self.held.insert(key.clone(), run);
            }
            for view in &mut self.views {
                view.fill(&self.held, counts);
                view.refill(&key, &self.held);
            }
        }
    }
}

impl RunTable {
    fn insert(&mut self, key: RunKey, run: Arc<Run>) {
        if let Some(task) = &key.task {
            let at_task = self.by_task.entry(Arc::clone(task)).or_default();
            at_task.insert((run.start, Arc::clone(&key.id)));
        }
        self.by_start.insert((run.start, key.clone()));
        self.runs.insert(key, run);
    }

    fn remove(&mut self, key: &RunKey) -> Option<Arc<Run>> {
        let run = self.runs.remove(key)?;
        if let Some(task) = &key.task
            && let Some(at_task) = self.by_task.get_mut(task)
        {
            at_task.remove(&(run.start, Arc::clone(&key.id)));
            if at_task.is_empty() {
                self.by_task.remove(task);
            }
        }
        self.by_start.remove(&(run.start, key.clone()));
        Some(run)
    }

    /// The runs at a task, the latest first.
    fn latest_first(&self, task: &Arc<str>) -> impl Iterator<Item = (RunKey, &Run)> {
        let places = self.by_task.get(task).into_iter().flatten().rev();
        places.filter_map(|(_, id)| {
            let key = RunKey { task: Some(Arc::clone(task)), id: Arc::clone(id) };
            let run = self.runs.get(&key)?;
            Some((key, &**run))
        })
    }
}

impl View {
    /// Adds a run if it belongs here; a view of the last runs that is not full cannot decide, and is left to `fill`.
    fn admit(&mut self, key: &RunKey, run: &Run, wall: Timestamp, counts: &mut Counts) {
        match self.scope {
            Scope::All => {}
            Scope::Window(width) if is_in(run.end, width, wall) => {
                self.members.insert((run.end, key.clone()));
            }
            Scope::Window(_) => return,
            Scope::Last(most) => {
                let place = (run.start, key.clone());
                if self.members.first().is_none_or(|first| place < *first) {
                    return;
                }
                self.members.insert(place);
                if self.members.len() > most
                    && let Some((_, least)) = self.members.pop_first()
                {
                    self.forget(&least);
                }
            }
        }
        self.take(key, run, counts);
    }

    /// Fills up a view of the last runs. Invariant: its members are the greatest of all by (start, key).
    fn fill(&mut self, held: &RunTable, counts: &mut Counts) {
        let Scope::Last(most) = self.scope else { return };
        while self.members.len() < most {
            let next = match self.members.first() {
                Some(first) => held.by_start.range(..first).next_back(),
                None => held.by_start.last(),
            };
            let Some((start, key)) = next else { return };
            let Some(run) = held.runs.get(key) else { return };
            self.members.insert((*start, key.clone()));
            self.take(key, run, counts);
        }
    }

    /// Compares again the earlier runs that replace a removed run at its task.
    fn refill(&mut self, gone: &RunKey, held: &RunTable) {
        let Some(task) = &gone.task else { return };
        if !self.tasks.lacks_earlier(task) {
            return;
        }
        let Self { scope, members, tasks, .. } = self;
        let is_member = |key: &RunKey, run: &Run| match scope {
            Scope::All => true,
            Scope::Window(_) => members.contains(&(run.end, key.clone())),
            Scope::Last(_) => members.contains(&(run.start, key.clone())),
        };
        let members = held.latest_first(task).filter(|(key, run)| is_member(key, run));
        tasks.refill(task, members.map(|(key, run)| record(&key, run)));
    }

    fn take(&mut self, key: &RunKey, run: &Run, counts: &mut Counts) {
        let over = self.tasks.refused().over_max_tasks;
        let taken = self.tasks.upsert(record(key, run)) && self.ars.upsert(ars_run(key, run));
        if !taken {
            counts.add("runs", "refused");
        } else if self.tasks.refused().over_max_tasks > over {
            counts.add("runs", "without_task");
        }
    }

    /// Removes a run, if it is in this view.
    fn retract(&mut self, key: &RunKey, run: &Run) {
        let member = match self.scope {
            Scope::All => true,
            Scope::Window(_) => self.members.remove(&(run.end, key.clone())),
            Scope::Last(_) => self.members.remove(&(run.start, key.clone())),
        };
        if member {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: &RunKey) {
        self.tasks.remove(key.task.as_deref(), &key.id);
        self.ars.remove(key.task.as_deref(), &key.id);
    }

    fn scores(&self) -> RunScores {
        let scores = self.tasks.scores();
        let mut scores: BTreeMap<&'static str, (f64, u64)> = scores
            .iter()
            .map(|(name, score)| (renamed(name), (score.value, score.samples)))
            .collect();
        let ars = self.ars.score().map(|ars| ArsView {
            score: ars.score,
            band: ars.band,
            components: ars
                .components
                .iter()
                .map(|(name, component)| {
                    let (score, weight, samples) =
                        (component.score, component.weight, component.samples);
                    (name.to_owned(), ArsComponentView { score, weight, samples })
                })
                .collect(),
        });
        if let Some(ars) = &ars {
            let samples = ars.components.values().map(|component| component.samples).max();
            scores.insert("ars", (ars.score, samples.unwrap_or(0)));
        }
        RunScores { scores, pass_hat_k: self.tasks.pass_hat_k(), ars }
    }
}

fn named(scores: BTreeMap<&'static str, f64>) -> BTreeMap<String, f64> {
    scores.into_iter().map(|(name, value)| (renamed(name).to_owned(), value)).collect()
}

/// The names under which Princeton's scores are exported, as some of the original names belong to other scores.
fn renamed(name: &'static str) -> &'static str {
    match name {
        "consistency" => "princeton_consistency",
        "reliability" => "princeton_reliability",
        "environment_robustness" => "structural_robustness",
        other => other,
    }
}

/// Whether a time is in the open pane of this width, in one of the earlier panes of a window, or later.
fn is_in(end: Timestamp, width: u64, wall: Timestamp) -> bool {
    (end.0 / width).saturating_add(super::window::PANES) >= wall.0 / width
}

/// Whether a time is ahead of the open pane by more than the length of a window.
fn is_ahead(end: Timestamp, width: u64, wall: Timestamp) -> bool {
    end.0 / width > (wall.0 / width).saturating_add(super::window::PANES)
}

fn record(key: &RunKey, run: &Run) -> RunRecord {
    let seconds = |nanos: u64| ratio(i128::from(nanos), 1_000_000_000);
    let has_traces = run.traces > 0;
    let known = |value: f64| has_traces.then_some(value);
    let count = |count: u64| ratio(i128::from(count), 1);
    let calls = run.effort.model_calls;
    let latency =
        (calls > 0).then(|| ratio(i128::from(run.model_nanos), i128::from(calls) * 1_000_000_000));
    RunRecord {
        task: key.task.clone(),
        id: key.id.clone(),
        start: run.start,
        success: run.success,
        confidence: run.confidence,
        condition: condition(run),
        actions: run.actions.clone(),
        resources: Resources {
            cost_usd: run.cost.map(Quanta::to_f64),
            time_seconds: known(seconds(run.effort.nanos)),
            api_calls: known(count(calls)),
            actions: known(count(run.actions.len() as u64)),
            errors: known(count(run.errors)),
            call_latency_seconds: latency,
        },
        violations: run.violations.as_ref().map(|severities| {
            severities.iter().map(|severity| Severity::named(severity.as_deref())).collect()
        }),
        looked: run.looked,
    }
}

fn condition(run: &Run) -> Condition {
    match run.perturbation.as_deref() {
        _ if run.baseline == Some(true) => Condition::Baseline,
        Some("fault") => Condition::Fault,
        Some("environment" | "structural") => Condition::Environment,
        Some("prompt") => Condition::Prompt,
        Some(_) | None => Condition::Baseline,
    }
}

fn ars_run(key: &RunKey, run: &Run) -> ArsRun {
    let tool_calls = run.actions.len() as u64;
    ArsRun {
        case: key.task.clone(),
        id: key.id.clone(),
        accuracy: run.accuracy,
        retrieved: run.retrieved.clone(),
        cited: run.cited.clone(),
        tool_calls,
        tool_successes: tool_calls.saturating_sub(run.effort.failed_calls),
        loops: run.effort.model_calls,
        latency_seconds: (run.traces > 0)
            .then(|| ratio(i128::from(run.effort.nanos), 1_000_000_000)),
        cost_usd: run.cost.map(Quanta::to_f64),
    }
}
