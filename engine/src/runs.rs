//! Runs: one attempt of an agent at a task, assembled from its traces and from reports.
//!
//! A run is the agent's traces with the same task and the same run and trial id; without these ids, those of one session. A trace
//! without a task that has an outcome or a verdict is a run of its own. Its actions are its tool calls in order, its resources the
//! sums, its outcome the last one reported, else what its traces say. A run that was only reported has no traces.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::facts::{AgentKey, Effort, ReportedScore, RunTrace, ScopedId};
use super::math::Quanta;
use super::predict::Results;
use super::sessions::reported_bytes;
use super::signal::CONSTRAINT_VIOLATION;
use super::signal::outcome::TOLD_BY as OUTCOMES;
use super::span::{Attempt, Report, RunTarget, Source, Timestamp, TraceId, Violation};
use super::trace::attempt_bytes;

/// Names of scores that say how good an answer was, the most preferred first.
const ACCURACIES: [&str; 3] = ["accuracy", "correctness", "answer_correctness"];

/// Name of the score that is the agent's own confidence.
const CONFIDENCE: &str = "confidence";

/// The key of a run among those of its agent.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct RunKey {
    /// The task; `None`: the run is a single trace without one.
    pub task: Option<Arc<str>>,
    /// The run.
    pub id: Arc<str>,
}

/// A run as reports name it.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct RunName {
    /// The agent that made the attempt.
    pub agent: AgentKey,
    /// The task.
    pub task: Arc<str>,
    /// The run.
    pub run: Arc<str>,
}

/// One attempt, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Start of its first trace, else the time of its first report.
    pub start: Timestamp,
    /// End of its last trace, else the time of its last report.
    pub end: Timestamp,
    /// The number of its traces.
    pub traces: u64,
    /// Whether the task succeeded.
    pub success: Option<bool>,
    /// The agent's own confidence, in `[0,1]`.
    pub confidence: Option<Quanta>,
    /// How good the answer was, in `[0,1]`: a rubric's score, else the outcome.
    pub accuracy: Option<Quanta>,
    /// The kind of disturbance, as sent: `none`, `fault`, `environment`, `prompt`; `None`: not sent.
    pub perturbation: Option<Arc<str>>,
    /// Whether it is the undisturbed run with which others are compared.
    pub baseline: Option<bool>,
    /// Names of its tool calls, in order.
    pub actions: Vec<Arc<str>>,
    /// What its tools returned.
    pub results: Results,
    /// The effort of all its traces together.
    pub effort: Effort,
    /// The worst score that a trace has for each signal, in the order of the signals' names.
    pub signals: Vec<(Cow<'static, str>, Quanta)>,
    /// The risks of its traces by all signals except the outcome.
    pub risks: Vec<Quanta>,
    /// Whether the judge judged the outcome of one of its traces.
    pub judged: bool,
    /// Whether one of its traces is flagged: it is judged whatever the rate, if flagged traces are.
    pub flagged: bool,
    /// The session of its last trace; `None`: it has no trace.
    pub session: Option<Arc<ScopedId>>,
    /// Failed model and tool calls.
    pub errors: u64,
    /// Cost in US dollars; `None`: not known.
    pub cost: Option<Quanta>,
    /// Time spent in model calls, in nanoseconds.
    pub model_nanos: u64,
    /// Severities of the rules that it broke; `None`: nothing was reported about rules.
    pub violations: Option<Vec<Option<Arc<str>>>>,
    /// Whether rules were checked: by the judge, or by a reporter that found none broken.
    pub looked: bool,
    /// Documents found.
    pub retrieved: Vec<Arc<str>>,
    /// Documents cited.
    pub cited: Vec<Arc<str>>,
}

/// A change of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The run is as it is here.
    Set(RunKey, Box<Run>),
    /// The run was removed.
    Gone(RunKey),
}

/// The runs of one agent.
#[derive(Debug, Default)]
pub struct Runs {
    max: usize,
    max_traces: usize,
    parts: BTreeMap<RunKey, RunSources>,
    traces: BTreeMap<TraceId, RunKey>,
    bytes: usize,
    // By `RunSources::since`. Invariant: one entry for each run held.
    oldest_first: BTreeSet<(Timestamp, RunKey)>,
}

/// The traces and reports that a run is made of.
#[derive(Debug, Default, Deserialize, Serialize)]
struct RunSources {
    // Its age: see `began`.
    since: Timestamp,
    // In the order of their starts. A list, as most runs have one trace and a node of a map has room for eleven.
    traces: Vec<((Timestamp, TraceId), RunTrace)>,
    reports: BTreeMap<(Arc<str>, Arc<str>), Report>,
    // The kind of disturbance that was reported last.
    perturbation: Option<(Timestamp, Arc<str>)>,
    // The source of the outcome that counted; `None`: none was reported.
    counted: Option<Teller>,
    // The bytes that it takes, as included in the sum over all runs.
    #[serde(skip)]
    bytes: usize,
}

/// The source of the outcome of a run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Teller {
    /// A report by the name of the run.
    Report,
    /// Its traces, each by itself, or reports about them.
    Traces,
}

/// The runs of an agent, read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct SavedRuns(Vec<(RunKey, RunSources)>);

/// Whether a score of this name is about a run.
pub fn is_about_runs(name: &str) -> bool {
    name == CONFIDENCE
        || name == CONSTRAINT_VIOLATION
        || OUTCOMES.contains(&name)
        || ACCURACIES.contains(&name)
}

/// Whether the reported outcome, the judge's aside, is a success: that of the last report, else what the trace itself says. `None`
/// if no outcome was reported.
pub fn reported_outcome(reported: &[ReportedScore], attempt: Option<&Attempt>) -> Option<bool> {
    let told = reported.iter().filter(|score| {
        OUTCOMES.contains(&score.name.as_str()) && score.source == Source::Reported
    });
    let last = told.max_by_key(|score| {
        let ReportedScore { time_unix_nano, identifier, score_quanta, .. } = score;
        (*time_unix_nano, identifier.as_str(), *score_quanta, score.is_success())
    });
    last.map(ReportedScore::is_success).or_else(|| attempt.and_then(|attempt| attempt.success))
}

/// The last score that the judge gave an outcome, in `[0,1]`.
pub fn judged_outcome(reported: &[ReportedScore]) -> Option<Quanta> {
    let judged = reported
        .iter()
        .filter(|score| OUTCOMES.contains(&score.name.as_str()) && score.source == Source::Judge);
    let last = judged
        .max_by_key(|score| (score.time_unix_nano, score.identifier.as_str(), score.score_quanta));
    last.map(|score| Quanta(score.score_quanta.clamp(0, Quanta::ONE)))
}

/// Whether a report states an outcome and is not the judge's.
pub fn tells_outcome(report: &Report) -> bool {
    report.source == Source::Reported && is_outcome(&report.name)
}

/// Whether a score of this name is an outcome.
pub fn is_outcome(name: &str) -> bool {
    OUTCOMES.contains(&name)
}

impl RunName {
    /// The run that a trace of this agent and session is part of; `None` if it names no task.
    pub fn of(agent: &AgentKey, attempt: Option<&Attempt>, session: &str) -> Option<Self> {
        let attempt = attempt?;
        let task = Arc::clone(attempt.task.as_ref()?);
        Some(Self { agent: agent.clone(), task, run: id_of(attempt, session) })
    }
}

impl From<&RunTarget> for RunName {
    fn from(RunTarget { agent, task, run, .. }: &RunTarget) -> Self {
        Self { agent: agent.clone(), task: Arc::clone(task), run: Arc::clone(run) }
    }
}

impl From<&RunTarget> for RunKey {
    fn from(RunTarget { task, run, .. }: &RunTarget) -> Self {
        Self { task: Some(Arc::clone(task)), id: Arc::clone(run) }
    }
}

impl Runs {
    /// No runs yet; holds at most `max`, beyond which the oldest is dropped. At most `max_traces` traces and as many reports of one
    /// run are held: otherwise, if all traces named the same run, each would cost as much as all of them.
    pub fn new(max: usize, max_traces: usize) -> Self {
        Self { max: max.max(1), max_traces: max_traces.max(1), ..Self::default() }
    }

    /// Replaces the contribution of a trace to its run, or removes it; returns the runs that changed.
    pub fn trace(&mut self, trace: RunTrace, counts: &mut Counts) -> Vec<Change> {
        let id = trace.trace_id;
        if id.is_zero() {
            counts.add("run_traces", "malformed");
            return Vec::new();
        }
        let key = (!trace.gone).then(|| key_of(&trace, id));
        let mut changes = Vec::new();
        if let Some(old) = self.traces.remove(&id) {
            let moved = key.as_ref() != Some(&old);
            if let Some(parts) = self.parts.get_mut(&old) {
                parts.traces.retain(|((_, other), _)| *other != id);
            }
            if moved {
                changes.extend(self.settled(&old));
            }
        }
        if let Some(key) = key {
            let start = Timestamp(trace.start_unix_nano);
            changes.extend(self.room(&key, start, counts));
            let Some(parts) = self.parts.get_mut(&key) else { return changes };
            if parts.traces.len() >= self.max_traces {
                counts.add("run_traces", "run_full");
                return changes;
            }
            let place = parts.traces.partition_point(|(other, _)| *other < (start, id));
            parts.traces.insert(place, ((start, id), trace));
            parts.traces.shrink_to_fit();
            self.traces.insert(id, key.clone());
            changes.extend(self.settled(&key));
        }
        changes
    }

    /// Applies a report about a run; returns the runs that changed.
    pub fn report(
        &mut self,
        target: &RunTarget,
        report: Report,
        counts: &mut Counts,
    ) -> Vec<Change> {
        let key = RunKey::from(target);
        let mut changes = self.room(&key, report.time, counts);
        let Some(parts) = self.parts.get_mut(&key) else { return changes };
        let perturbation = target.perturbation.as_ref().map(|name| (report.time, Arc::clone(name)));
        let disturbed = perturbation > parts.perturbation;
        if disturbed {
            parts.perturbation = perturbation;
        }
        let held = parts.reports.get(&(report.name.clone(), report.identifier.clone()));
        let rank =
            |report: &Report| (report.source, report.time, report.score, report.is_success());
        let is_known = held.is_some_and(|held| rank(held) >= rank(&report));
        if is_known || (held.is_none() && parts.reports.len() >= self.max_traces) {
            counts.add("reports", if is_known { "duplicate" } else { "run_full" });
            if disturbed {
                changes.extend(self.settled(&key));
            }
            return changes;
        }
        parts.reports.insert((report.name.clone(), report.identifier.clone()), report);
        counts.add("reports", "applied");
        changes.extend(self.settled(&key));
        changes
    }

    /// Notes that an outcome was reported by the name of the run; returns whether it counts: the run is held and has this outcome,
    /// and no other one was counted before, be it of the run or of its traces.
    pub fn count_report(&mut self, run: &RunKey) -> bool {
        let Some(parts) = self.parts.get_mut(run) else { return false };
        let counts = parts.counted.is_none() && parts.reports.values().any(tells_outcome);
        if counts {
            parts.counted = Some(Teller::Report);
        }
        counts
    }

    /// Notes that an outcome of a trace was reported; returns whether it counts: none was reported by the name of its run before.
    pub fn count_trace(&mut self, trace: TraceId) -> bool {
        let run = self.traces.get(&trace);
        let Some(parts) = run.and_then(|run| self.parts.get_mut(run)) else { return true };
        *parts.counted.get_or_insert(Teller::Traces) == Teller::Traces
    }

    /// The last trace of a run.
    pub fn last_trace(&self, run: &RunKey) -> Option<&RunTrace> {
        self.parts.get(run)?.traces.last().map(|(_, trace)| trace)
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Estimated bytes of memory of the runs.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The traces and reports of each run, for a snapshot.
    pub(super) fn save(&self) -> impl Serialize + '_ {
        self.parts.iter().collect::<Vec<_>>()
    }

    /// Takes over the runs from a snapshot; returns each of them as changed.
    pub(super) fn restore(&mut self, saved: SavedRuns, counts: &mut Counts) -> Vec<Change> {
        for (key, mut parts) in saved.0 {
            parts.bytes = parts.weigh(&key);
            self.bytes += parts.bytes;
            self.oldest_first.insert((parts.since, key.clone()));
            self.traces.extend(parts.traces.iter().map(|((_, id), _)| (*id, key.clone())));
            self.parts.insert(key, parts);
        }
        while self.parts.len() > self.max && self.forget_oldest(counts).is_some() {}
        let runs = self.parts.iter();
        runs.map(|(key, parts)| Change::Set(key.clone(), Box::new(parts.run()))).collect()
    }

    /// Adds a run that is not held yet; at the bound the oldest one is dropped.
    fn room(&mut self, key: &RunKey, since: Timestamp, counts: &mut Counts) -> Vec<Change> {
        if self.parts.contains_key(key) {
            return Vec::new();
        }
        self.parts.insert(key.clone(), RunSources { since, ..RunSources::default() });
        self.oldest_first.insert((since, key.clone()));
        if self.parts.len() <= self.max {
            return Vec::new();
        }
        self.forget_oldest(counts).map(Change::Gone).into_iter().collect()
    }

    /// Drops the oldest run; returns its key.
    pub(super) fn forget_oldest(&mut self, counts: &mut Counts) -> Option<RunKey> {
        let (_, oldest) = self.oldest_first.pop_first()?;
        counts.add("runs", "forgotten");
        let parts = self.parts.remove(&oldest).unwrap_or_default();
        self.bytes -= parts.bytes;
        for ((_, trace), _) in parts.traces {
            self.traces.remove(&trace);
        }
        Some(oldest)
    }

    /// The change of a run whose parts have changed; removes the run if it has no parts left.
    fn settled(&mut self, key: &RunKey) -> Option<Change> {
        let parts = self.parts.get_mut(key)?;
        self.bytes -= parts.bytes;
        if parts.traces.is_empty() && parts.reports.is_empty() {
            self.oldest_first.remove(&(parts.since, key.clone()));
            self.parts.remove(key);
            return Some(Change::Gone(key.clone()));
        }
        parts.bytes = parts.weigh(key);
        self.bytes += parts.bytes;
        let since = parts.began();
        if since != parts.since {
            self.oldest_first.remove(&(parts.since, key.clone()));
            self.oldest_first.insert((since, key.clone()));
            parts.since = since;
        }
        Some(Change::Set(key.clone(), Box::new(parts.run())))
    }
}

/// The worst score of these traces for each signal.
fn worst_signals<'a>(
    traces: impl Iterator<Item = &'a RunTrace>,
) -> Vec<(Cow<'static, str>, Quanta)> {
    let mut worst: Vec<(Cow<'static, str>, Quanta)> = Vec::new();
    for (name, score) in traces.flat_map(|trace| &trace.signals) {
        match worst.binary_search_by(|(held, _)| held.cmp(name)) {
            Ok(at) => worst[at].1 = worst[at].1.min(Quanta(*score)),
            Err(at) => worst.insert(at, (name.clone(), Quanta(*score))),
        }
    }
    worst
}

impl RunSources {
    /// The start of its first trace, or the time of its first report if that was earlier, whatever the order of arrival.
    fn began(&self) -> Timestamp {
        let first = self.traces.first().map(|((start, _), _)| *start);
        let reports = self.reports.values().map(|report| report.time);
        first.into_iter().chain(reports).min().unwrap_or(self.since)
    }

    /// Estimated bytes of memory of the sources and of the run made from them: what both contain counts twice, and shared names
    /// count each time.
    fn weigh(&self, key: &RunKey) -> usize {
        let traces = self.traces.iter().map(|(_, trace)| weight(trace)).sum::<usize>();
        let reports = self.reports.values().map(|report| {
            let Report { name, identifier, label, explanation, .. } = report;
            let said = [Some(name), Some(identifier), label.as_ref(), explanation.as_ref()];
            size_of::<Report>() + said.into_iter().flatten().map(|said| said.len()).sum::<usize>()
        });
        let names = key.id.len() + key.task.as_ref().map_or(0, |task| task.len());
        size_of::<Self>() + size_of::<Run>() + names + traces + reports.sum::<usize>()
    }

    fn run(&self) -> Run {
        let traces = || self.traces.iter().map(|(_, trace)| trace);
        let attempts: Vec<&Attempt> = traces().filter_map(|trace| trace.attempt.as_ref()).collect();
        let times = || self.reports.values().map(|report| report.time);
        let start = traces().map(|trace| Timestamp(trace.start_unix_nano)).min();
        let end = traces().map(|trace| Timestamp(trace.end_unix_nano)).max();
        let success = self.reported(&OUTCOMES).map(|(_, success)| success);
        let success = success.or_else(|| attempts.iter().rev().find_map(|attempt| attempt.success));
        let own = success.map(|success| Quanta(if success { Quanta::ONE } else { 0 }));
        Run {
            start: start.or_else(|| times().min()).unwrap_or_default(),
            end: end.or_else(|| times().max()).unwrap_or_default(),
            traces: self.traces.len() as u64,
            success,
            confidence: self.score(&[CONFIDENCE]),
            accuracy: ACCURACIES.iter().find_map(|name| self.score(&[name])).or(own),
            perturbation: self
                .perturbation
                .as_ref()
                .map(|(_, name)| Arc::clone(name))
                .or_else(|| attempts.iter().find_map(|attempt| attempt.perturbation.clone())),
            baseline: attempts.iter().find_map(|attempt| attempt.baseline),
            actions: traces().flat_map(|trace| &trace.actions).cloned().collect(),
            results: Results::of_all(traces().map(|trace| &trace.results)),
            effort: traces().map(|trace| trace.effort).fold(Effort::default(), Effort::plus),
            signals: worst_signals(traces()),
            risks: traces().filter_map(|trace| trace.risk_quanta).map(Quanta).collect(),
            judged: traces().any(|trace| judged_outcome(&trace.reported).is_some()),
            flagged: traces().any(|trace| trace.flagged),
            session: traces().next_back().map(|trace| Arc::new(trace.session.clone())),
            errors: sum(traces().map(|trace| trace.errors)),
            cost: traces()
                .filter_map(|trace| trace.cost_quanta)
                .reduce(i64::saturating_add)
                .map(Quanta),
            model_nanos: sum(traces().map(|trace| trace.model_nanos)),
            violations: self.violations(&attempts),
            looked: self.looked(),
            retrieved: distinct(&attempts, |attempt| &attempt.retrieved),
            cited: distinct(&attempts, |attempt| &attempt.cited),
        }
    }

    /// The best score under these names: from the source of the highest rank, then the latest.
    fn score(&self, names: &[&str]) -> Option<Quanta> {
        self.reported(names).map(|(score, _)| score)
    }

    /// The same, and whether it is a success, if it states an outcome.
    fn reported(&self, names: &[&str]) -> Option<(Quanta, bool)> {
        let named = |name: &str| names.contains(&name);
        let reports = self.reports.values().filter(|report| named(&report.name)).map(|report| {
            let told = (report.score, report.is_success());
            (report.source, report.time.0, &*report.identifier, told)
        });
        let own = self.traces.iter().flat_map(|(_, trace)| &trace.reported);
        let own = own.filter(|score| named(&score.name)).map(|score| {
            let told = (Quanta(score.score_quanta), score.is_success());
            (score.source, score.time_unix_nano, score.identifier.as_str(), told)
        });
        reports.chain(own).max().map(|(.., told)| told)
    }

    /// Whether there is a verdict on rules, and not just a report of a broken one.
    fn looked(&self) -> bool {
        let is_verdict =
            |source: Source, score: i64| source == Source::Judge || score >= Quanta::ONE;
        let mut of_run =
            self.reports.values().filter(|report| &*report.name == CONSTRAINT_VIOLATION);
        let of_traces = self.traces.iter().flat_map(|(_, trace)| &trace.reported);
        let mut of_traces = of_traces.filter(|score| score.name == CONSTRAINT_VIOLATION);
        of_run.any(|report| is_verdict(report.source, report.score.0))
            || of_traces.any(|score| is_verdict(score.source, score.score_quanta))
    }

    /// Severities of broken rules, in the order of the rules; `None` if neither traces nor reports mention rules.
    fn violations(&self, attempts: &[&Attempt]) -> Option<Vec<Option<Arc<str>>>> {
        let own = attempts.iter().flat_map(|attempt| &attempt.violations);
        let mut found: BTreeSet<Violation> = own.cloned().collect();
        let mut looked = !found.is_empty();
        for report in self.reports.values().filter(|report| &*report.name == CONSTRAINT_VIOLATION) {
            looked = true;
            if report.score.0 < Quanta::ONE {
                found.insert(Violation {
                    constraint: Arc::clone(&report.identifier),
                    severity: report.label.clone(),
                });
            }
        }
        let reported = self.traces.iter().flat_map(|(_, trace)| &trace.reported);
        for score in reported.filter(|score| score.name == CONSTRAINT_VIOLATION) {
            looked = true;
            if score.score_quanta < Quanta::ONE {
                found.insert(Violation {
                    constraint: Arc::from(score.identifier.as_str()),
                    severity: score.label.as_deref().map(Arc::from),
                });
            }
        }
        looked.then(|| found.into_iter().map(|violation| violation.severity).collect())
    }
}

/// The bytes of memory that a trace takes, and the run made from it.
fn weight(trace: &RunTrace) -> usize {
    let RunTrace { attempt, session, actions, results, reported, signals, .. } = trace;
    let actions = actions.iter().map(|name| 2 * size_of_val(name) + name.len());
    size_of::<RunTrace>()
        + attempt.as_ref().map_or(0, |attempt| 2 * attempt_bytes(attempt))
        + session.id.len()
        + session.scope.len()
        + actions.sum::<usize>()
        + 2 * results.bytes()
        + reported.iter().map(reported_bytes).sum::<usize>()
        + 2 * size_of_val(&**signals)
}

fn key_of(trace: &RunTrace, id: TraceId) -> RunKey {
    let attempt = trace.attempt.as_ref();
    let Some(task) = attempt.and_then(|attempt| attempt.task.clone()) else {
        return RunKey { task: None, id: Arc::from(id.to_string()) };
    };
    let id = attempt.map(|attempt| id_of(attempt, &trace.session.id)).unwrap_or_default();
    RunKey { task: Some(task), id }
}

/// The id of the run of a trace in this session.
fn id_of(attempt: &Attempt, session: &str) -> Arc<str> {
    match (&attempt.run, &attempt.trial) {
        (Some(run), Some(trial)) => Arc::from(format!("{run}/{trial}")),
        (Some(one), None) | (None, Some(one)) => Arc::clone(one),
        (None, None) => Arc::from(session),
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// All names of these attempts, each once, in the order in which they first occur.
fn distinct(attempts: &[&Attempt], of: fn(&Attempt) -> &Vec<Arc<str>>) -> Vec<Arc<str>> {
    let mut seen = BTreeSet::new();
    let names = attempts.iter().flat_map(|attempt| of(attempt));
    names.filter(|name| seen.insert(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Target;

    fn trace(id: u8, task: &str, session: &str, start: u64) -> RunTrace {
        RunTrace {
            trace_id: TraceId([id; 16]),
            attempt: Some(Attempt { task: Some(task.into()), ..Attempt::default() }),
            session: ScopedId { id: session.into(), ..ScopedId::default() },
            start_unix_nano: start,
            end_unix_nano: start + 5,
            actions: vec![Arc::from(format!("tool{id}"))],
            effort: Effort { nanos: 5, ..Effort::default() },
            ..RunTrace::default()
        }
    }

    fn target() -> RunTarget {
        RunTarget {
            agent: AgentKey::default(),
            task: Arc::from("t"),
            run: Arc::from("s"),
            perturbation: None,
        }
    }

    fn report(name: &str, score: f64, time: u64) -> Report {
        Report {
            target: Target::Run(Box::new(target())),
            name: Arc::from(name),
            score: Quanta::from_f64(score).unwrap(),
            label: None,
            success: None,
            explanation: None,
            source: Source::Reported,
            identifier: Arc::from(time.to_string()),
            judge: None,
            time: Timestamp(time),
            tenant: None,
        }
    }

    fn set(changes: Vec<Change>) -> Run {
        match changes.into_iter().next_back() {
            Some(Change::Set(_, run)) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_run_is_the_traces_of_one_session_and_one_task() {
        let (mut runs, mut counts) = (Runs::new(10, 9), Counts::default());
        runs.trace(trace(2, "t", "s", 20), &mut counts);
        let run = set(runs.trace(trace(1, "t", "s", 10), &mut counts));
        assert_eq!((run.traces, run.start.0, run.end.0, run.effort.nanos), (2, 10, 25, 10));
        assert_eq!(
            run.actions.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
            ["tool1", "tool2"]
        );
        set(runs.trace(trace(3, "other", "s", 30), &mut counts));
        assert_eq!(runs.len(), 2);
        let gone = RunTrace { gone: true, ..trace(3, "other", "s", 30) };
        assert!(matches!(&runs.trace(gone, &mut counts)[..], [Change::Gone(_)]));
    }

    #[test]
    fn only_one_is_success_and_the_last_outcome_holds() {
        let (mut runs, mut counts) = (Runs::new(10, 9), Counts::default());
        let run = set(runs.report(&target(), report("outcome", 0.99, 1), &mut counts));
        assert_eq!((run.success, run.accuracy), (Some(false), Some(Quanta(0))));
        let run = set(runs.report(&target(), report("task_completion", 1.0, 3), &mut counts));
        assert_eq!(run.success, Some(true));
        let run = set(runs.report(&target(), report("outcome", 0.0, 2), &mut counts));
        assert_eq!(run.success, Some(true));
        let run = set(runs.trace(trace(1, "t", "s", 10), &mut counts));
        assert_eq!((run.success, run.traces, run.violations), (Some(true), 1, None));
    }

    #[test]
    fn a_graded_outcome_is_what_its_report_says() {
        let (mut runs, mut counts) = (Runs::new(10, 9), Counts::default());
        let graded = |success, time| Report {
            success: Some(success),
            ..report("task_completion", 0.85, time)
        };
        let run = set(runs.report(&target(), graded(true, 1), &mut counts));
        assert_eq!((run.success, run.accuracy), (Some(true), Some(Quanta(Quanta::ONE))));
        let run = set(runs.report(&target(), graded(false, 2), &mut counts));
        assert_eq!(run.success, Some(false));
        let scores: Vec<ReportedScore> =
            [graded(false, 1), graded(true, 2)].iter().map(ReportedScore::from).collect();
        assert_eq!(reported_outcome(&scores, None), Some(true));
    }

    #[test]
    fn over_the_bound_the_oldest_run_goes() {
        let (mut runs, mut counts) = (Runs::new(1, 9), Counts::default());
        runs.trace(trace(1, "t", "a", 10), &mut counts);
        let changes = runs.trace(trace(2, "t", "b", 20), &mut counts);
        assert!(matches!(&changes[0], Change::Gone(key) if &*key.id == "a"));
        assert_eq!((runs.len(), counts.get("runs", "forgotten")), (1, 1));
    }

    #[test]
    fn the_bytes_of_all_runs_are_the_sum_of_those_held() {
        let (mut runs, mut counts) = (Runs::new(2, 9), Counts::default());
        let check = |runs: &Runs| {
            let each = runs.parts.iter().map(|(key, parts)| parts.weigh(key));
            assert_eq!(runs.bytes(), each.sum::<usize>());
            runs.bytes()
        };
        runs.trace(trace(1, "t", "s", 10), &mut counts);
        let one = check(&runs);
        let long = vec![Arc::from("a name of some length"); 1_000];
        runs.trace(RunTrace { actions: long, ..trace(2, "t", "s", 20) }, &mut counts);
        assert!(check(&runs) > one + 1_000 * 50);
        runs.report(&target(), report("outcome", 1.0, 1), &mut counts);
        let before = check(&runs);
        runs.trace(trace(2, "t", "s", 20), &mut counts);
        assert!(check(&runs) < before - 1_000 * 50);
        let saved = rmp_serde::to_vec_named(&runs.save()).unwrap();
        let mut restored = Runs::new(2, 9);
        restored.restore(rmp_serde::from_slice(&saved).unwrap(), &mut counts);
        assert_eq!(check(&restored), check(&runs));
        runs.trace(trace(3, "t", "b", 30), &mut counts);
        runs.trace(trace(4, "t", "c", 40), &mut counts);
        assert_eq!(counts.get("runs", "forgotten"), 1);
        check(&runs);
        for (id, session) in [(3, "b"), (4, "c")] {
            let gone = RunTrace { gone: true, ..trace(id, "t", session, 30) };
            runs.trace(gone, &mut counts);
        }
        assert_eq!((check(&runs), runs.len()), (0, 0));
    }

    #[test]
    fn of_one_run_so_many_traces_and_reports_are_held() {
        let (mut runs, mut counts) = (Runs::new(10, 2), Counts::default());
        let run =
            set((1..3).flat_map(|id| runs.trace(trace(id, "t", "s", 10), &mut counts)).collect());
        assert_eq!(run.traces, 2);
        assert!(runs.trace(trace(3, "t", "s", 10), &mut counts).is_empty());
        // One that is held may change, and one that leaves makes room.
        assert_eq!(set(runs.trace(trace(2, "t", "s", 30), &mut counts)).end.0, 35);
        runs.trace(trace(1, "t", "other", 10), &mut counts);
        assert_eq!(set(runs.trace(trace(3, "t", "s", 10), &mut counts)).traces, 2);
        // One that moves here from another run leaves that.
        let moved = runs.trace(trace(1, "t", "s", 10), &mut counts);
        assert!(matches!(&moved[..], [Change::Gone(key)] if &*key.id == "other"));
        assert_eq!(counts.get("run_traces", "run_full"), 2);
        for time in 1..4 {
            runs.report(&target(), report("outcome", 1.0, time), &mut counts);
        }
        assert_eq!(counts.get("reports", "run_full"), 1);
    }

    #[test]
    fn a_violation_makes_a_run_analysed_and_so_does_a_clean_verdict() {
        let (mut runs, mut counts) = (Runs::new(10, 9), Counts::default());
        let clean = report("constraint_violation", 1.0, 1);
        let run = set(runs.report(&target(), clean, &mut counts));
        assert_eq!((run.violations, run.looked), (Some(Vec::new()), true));
        let broken =
            Report { label: Some(Arc::from("high")), ..report("constraint_violation", 0.0, 2) };
        let run = set(runs.report(&target(), broken, &mut counts));
        assert_eq!(run.violations, Some(vec![Some(Arc::from("high"))]));
        assert!(run.looked);
    }

    #[test]
    fn who_tells_of_a_broken_rule_alone_has_not_looked_at_other_runs() {
        let (mut runs, mut counts) = (Runs::new(10, 9), Counts::default());
        let broken = report("constraint_violation", 0.0, 2);
        let run = set(runs.report(&target(), broken, &mut counts));
        assert_eq!((run.violations, run.looked), (Some(vec![None]), false));
    }

    #[test]
    fn a_verdict_of_the_judge_says_that_it_looked() {
        let (mut runs, mut counts) = (Runs::new(10, 9), Counts::default());
        let broken = Report { source: Source::Judge, ..report("constraint_violation", 0.0, 2) };
        assert!(set(runs.report(&target(), broken, &mut counts)).looked);
    }
}
