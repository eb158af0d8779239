//! Runs: attempts at tasks, assembled from the traces of an agent and from reports about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gather::reports;
use super::loops::plus;
use super::sessions::{Scored, Session};
use super::signals::{believed, quanta, succeeds};
use super::trace::Trace;
use crate::engine::math::Quanta;
use crate::engine::score::ars::ArsRun;
use crate::engine::score::princeton::{Condition, Resources, RunRecord, Severity};
use crate::engine::span::{Attempt, Report, RunTarget, Source, Target, Timestamp};
use crate::engine::view::AgentName;

const OUTCOMES: [&str; 3] = ["outcome", "task_completion", "goal_success"];
const ACCURACIES: [&str; 3] = ["accuracy", "correctness", "answer_correctness"];
const VIOLATION: &str = "constraint_violation";

/// The key of a run: its task, if there is one, and the id of the attempt.
type Key = (Option<Arc<str>>, Arc<str>);

/// The parts of a run.
#[derive(Default)]
struct Run<'s> {
    /// Its traces, by start.
    traces: Vec<&'s Scored>,
    /// The reports about its traces, their sessions and the run itself.
    told: Vec<Report>,
    perturbation: Option<(Timestamp, Arc<str>)>,
}

/// The runs of an agent, in the form for scores over runs.
pub(super) fn runs(
    agent: &AgentName,
    sessions: &[Session],
    all: &[Report],
) -> (Vec<RunRecord>, Vec<ArsRun>) {
    let mut runs: BTreeMap<Key, Run<'_>> = BTreeMap::new();
    for session in sessions {
        for scored in session.traces.iter().filter(|scored| scored.trace.agent == *agent) {
            let told = told(scored, &session.reports);
            if scored.trace.attempt.is_some() || !told.is_empty() {
                let run = runs.entry(key(&scored.trace)).or_default();
                run.traces.push(scored);
                run.told.extend(told);
            }
        }
    }
    let of_agent = |target: &RunTarget| AgentName::from(&target.agent) == *agent;
    let targets: BTreeSet<&RunTarget> = all
        .iter()
        .filter_map(|report| match &report.target {
            Target::Run(target) => Some(&**target),
            Target::Trace(_)
            | Target::Response { .. }
            | Target::Session { .. }
            | Target::Agent(_) => None,
        })
        .filter(|target| of_agent(target))
        .collect();
    let keys: BTreeSet<Key> = targets
        .iter()
        .map(|target| (Some(Arc::clone(&target.task)), Arc::clone(&target.run)))
        .collect();
    for key in keys {
        let run = (agent.clone(), key.clone());
        let is_own = |target: &Target| is_of(target, &run);
        let disturbed = all.iter().filter(|report| is_own(&report.target));
        let disturbed = disturbed.filter_map(|report| match &report.target {
            Target::Run(target) => Some((report.time, target.perturbation.clone()?)),
            Target::Trace(_)
            | Target::Response { .. }
            | Target::Session { .. }
            | Target::Agent(_) => None,
        });
        let disturbed = disturbed.max();
        let run = runs.entry(key.clone()).or_default();
        run.told.extend(reports(all, is_own));
        run.perturbation = disturbed;
    }
    let made = runs.into_iter().map(|(key, mut run)| {
        run.traces.sort_by_key(|scored| (scored.trace.start, scored.trace.id));
        (record(&key, &run), ars(&key, &run))
    });
    made.unzip()
}

/// The reports about a trace that count for its run; those of its session count for names without a report about the trace.
fn told(scored: &Scored, of_session: &[Report]) -> Vec<Report> {
    let about = |report: &&Report| {
        let name = &*report.name;
        name == "confidence"
            || name == VIOLATION
            || OUTCOMES.contains(&name)
            || ACCURACIES.contains(&name)
    };
    let own: Vec<Report> = scored.trace.reports.iter().filter(about).cloned().collect();
    let has = |name: &Arc<str>| own.iter().any(|report| report.name == *name);
    let names: BTreeSet<&Arc<str>> =
        of_session.iter().filter(about).map(|report| &report.name).collect();
    let others = names.into_iter().filter(|name| !has(name));
    let others: Vec<Report> =
        others.filter_map(|name| believed(of_session, &[name], None).cloned()).collect();
    own.into_iter().chain(others).collect()
}

/// The agent and the key of the run of a trace, by which reports name it; `None` if the trace names no task.
pub(super) fn named(trace: &Trace) -> Option<(AgentName, Key)> {
    let key = key(trace);
    key.0.is_some().then(|| (trace.agent.clone(), key))
}

/// Whether a report is about this run.
pub(super) fn is_of(target: &Target, (agent, (task, id)): &(AgentName, Key)) -> bool {
    match target {
        Target::Run(target) => {
            AgentName::from(&target.agent) == *agent
                && task.as_ref() == Some(&target.task)
                && *id == target.run
        }
        Target::Trace(_) | Target::Response { .. } | Target::Session { .. } | Target::Agent(_) => {
            false
        }
    }
}

fn key(trace: &Trace) -> Key {
    let attempt = trace.attempt.clone().unwrap_or_default();
    let Some(task) = attempt.task else {
        return (None, Arc::from(trace.id.to_string()));
    };
    let id = match (attempt.run, attempt.trial) {
        (Some(run), Some(trial)) => Arc::from(format!("{run}/{trial}")),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => Arc::from(trace.session.id.as_str()),
    };
    (Some(task), id)
}

impl Run<'_> {
    fn attempts(&self) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.traces.iter().filter_map(|scored| scored.trace.attempt.as_ref())
    }

    fn score(&self, names: &[&str]) -> Option<Quanta> {
        believed(&self.told, names, None).map(|report| report.score)
    }

    fn success(&self) -> Option<bool> {
        let told = believed(&self.told, &OUTCOMES, None).map(succeeds);
        told.or_else(|| self.attempts().rev().find_map(|attempt| attempt.success))
    }

    fn start(&self) -> u64 {
        let started = self.traces.iter().map(|scored| scored.trace.start).min();
        started.or_else(|| self.told.iter().map(|report| report.time.0).min()).unwrap_or(0)
    }

    fn condition(&self) -> Condition {
        let said = || self.attempts().find_map(|attempt| attempt.perturbation.clone());
        let name = self.perturbation.as_ref().map(|(_, name)| Arc::clone(name)).or_else(said);
        match name.as_deref() {
            _ if self.attempts().find_map(|attempt| attempt.baseline) == Some(true) => {
                Condition::Baseline
            }
            Some("fault") => Condition::Fault,
            Some("environment" | "structural") => Condition::Environment,
            Some("prompt") => Condition::Prompt,
            Some(_) | None => Condition::Baseline,
        }
    }

    fn sum(&self, of: impl Fn(&Scored) -> u64) -> f64 {
        self.traces.iter().map(|scored| of(scored)).sum::<u64>() as f64
    }

    fn calls(&self) -> impl Iterator<Item = &super::tools::Call> {
        self.traces.iter().flat_map(|scored| &scored.trace.calls)
    }

    fn failed_calls(&self) -> usize {
        self.calls().filter(|call| call.failed == Some(true)).count()
    }

    fn cost(&self) -> Option<f64> {
        self.traces.iter().fold(None, |sum, scored| plus(sum, scored.trace.cost))
    }

    /// The severity of each broken rule; `None` if nothing is known about rules.
    fn violations(&self) -> Option<Vec<Severity>> {
        let mut found: BTreeSet<(Arc<str>, Option<Arc<str>>)> = BTreeSet::new();
        for violation in self.attempts().flat_map(|attempt| &attempt.violations) {
            found.insert((Arc::clone(&violation.constraint), violation.severity.clone()));
        }
        let told: Vec<&Report> =
            self.told.iter().filter(|report| &*report.name == VIOLATION).collect();
        let looked = !found.is_empty() || !told.is_empty();
        let broken = told.into_iter().filter(|report| quanta(report.score.0) < 1.0);
        found.extend(broken.map(|report| (Arc::clone(&report.identifier), report.label.clone())));
        let severity = |name: Option<Arc<str>>| match name.as_deref() {
            Some("low") => Severity::Low,
            Some("high") => Severity::High,
            Some(_) | None => Severity::Medium,
        };
        looked.then(|| found.into_iter().map(|(_, name)| severity(name)).collect())
    }

    fn looked(&self) -> bool {
        self.told.iter().any(|report| {
            let verdict = report.source == Source::Judge || quanta(report.score.0) >= 1.0;
            &*report.name == VIOLATION && verdict
        })
    }
}

fn record((task, id): &Key, run: &Run<'_>) -> RunRecord {
    let known = |value: f64| (!run.traces.is_empty()).then_some(value);
    let model_calls = run.sum(|scored| scored.trace.model_calls as u64);
    let errors = run.sum(|scored| scored.trace.failed_model_calls as u64);
    let seconds = |nanos: f64| nanos / 1e9;
    RunRecord {
        task: task.clone(),
        id: Arc::clone(id),
        start: Timestamp(run.start()),
        success: run.success(),
        confidence: run.score(&["confidence"]),
        condition: run.condition(),
        actions: run.calls().map(|call| call.name.clone().unwrap_or_default()).collect(),
        resources: Resources {
            cost_usd: run.cost(),
            time_seconds: known(seconds(run.sum(lasted))),
            api_calls: known(model_calls),
            actions: known(run.calls().count() as f64),
            errors: known(run.failed_calls() as f64 + errors),
            call_latency_seconds: (model_calls > 0.0)
                .then(|| seconds(run.sum(|scored| scored.trace.model_nanos)) / model_calls),
        },
        violations: run.violations(),
        looked: run.looked(),
    }
}

fn ars((task, id): &Key, run: &Run<'_>) -> ArsRun {
    let calls = run.calls().count();
    let own = run.success().map(|success| Quanta(if success { Quanta::ONE } else { 0 }));
    let all = |of: fn(&Attempt) -> &Vec<Arc<str>>| {
        let mut all: Vec<Arc<str>> = Vec::new();
        for name in run.attempts().flat_map(of) {
            if !all.contains(name) {
                all.push(Arc::clone(name));
            }
        }
        all
    };
    ArsRun {
        case: task.clone(),
        id: Arc::clone(id),
        accuracy: ACCURACIES.iter().find_map(|name| run.score(&[name])).or(own),
        retrieved: all(|attempt| &attempt.retrieved),
        cited: all(|attempt| &attempt.cited),
        tool_calls: calls as u64,
        tool_successes: (calls - run.failed_calls()) as u64,
        loops: run.traces.iter().map(|scored| scored.trace.model_calls as u64).sum(),
        latency_seconds: (!run.traces.is_empty()).then(|| run.sum(lasted) / 1e9),
        cost_usd: run.cost(),
    }
}

fn lasted(scored: &Scored) -> u64 {
    scored.trace.end.saturating_sub(scored.trace.start)
}
