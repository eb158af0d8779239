//! Scores reported for a session as a whole, and outcomes of the session and of the runs that its traces belong to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::outstanding::Outstanding;
use super::record::TraceRecord;
use super::run;
use super::run_outcomes::{RunHash, RunOutcome};
use super::session::{Session, ShardContext};
use crate::runs::{RunName, is_about_runs, is_outcome, tells_outcome};
use crate::span::{Report, Timestamp, TraceId};

/// The runs that the traces of a session belong to.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct SessionRuns {
    // The number of traces of each run in this session.
    traces: BTreeMap<RunHash, usize>,
    // The reported outcomes. Invariant: after `take_orphaned_outcomes`, each of their runs has a trace here.
    outcomes: BTreeMap<RunName, RunOutcome>,
}

/// A run, and its last trace in this session.
pub(super) type LastOfRun = (RunName, Option<TraceId>);

impl SessionRuns {
    /// The runs.
    pub(super) fn hashes(&self) -> impl Iterator<Item = RunHash> + '_ {
        self.traces.keys().copied()
    }
}

impl Session {
    /// Accepts a reported score of the session as a whole; for each name the one from the most trusted source is kept, then the
    /// latest.
    pub(super) fn report(&mut self, report: Report, shared: &mut ShardContext) {
        let rank = |report: &Report| {
            let Report { source, time, identifier, score, .. } = report;
            (*source, *time, Arc::clone(identifier), *score, report.is_success())
        };
        let reports = &self.rare().reports;
        let held = reports.get(&report.name);
        if held.is_none() && reports.len() >= shared.rules.max_reports {
            shared.counts.add("reports", "session_full");
        } else if held.is_none_or(|held| rank(held) < rank(&report)) {
            let (about_runs, is_outcome) = (is_about_runs(&report.name), is_outcome(&report.name));
            let Self { id, traces, rare, .. } = self;
            let reports = &mut rare.get_or_insert_default().reports;
            reports.insert(Arc::clone(&report.name), report);
            for record in traces.iter_mut().filter(|_| about_runs) {
                let run = run::trace(record, id, reports, &shared.rules);
                record.tell_run(run, &mut shared.shard_agents);
            }
            if let Some((_, last)) = self.traces.last_place().filter(|_| is_outcome) {
                self.rescore(last, None, shared);
                self.refresh(shared);
            }
            self.tell_outcome(shared);
        }
    }

    /// Accepts a reported score of a trace that is sealed; fails with the reason that counters use.
    pub(super) fn report_trace(
        &mut self,
        trace: TraceId,
        report: &Report,
        shared: &mut ShardContext,
    ) -> Result<(), &'static str> {
        let Some(record) = self.traces.get_mut(trace) else { return Err("unmatched") };
        let before = record.bytes();
        let became = record.report(report.into(), shared.rules.max_reports, shared.now);
        self.trace_bytes = (self.trace_bytes - before) + record.bytes();
        became?;
        self.rescore(trace, None, shared);
        self.note_refused(trace, shared);
        self.refresh(shared);
        Ok(())
    }

    /// Accepts the outcome of a run, if any of its traces is here; the latest one applies.
    pub(super) fn report_run(
        &mut self,
        run: &RunName,
        outcome: &RunOutcome,
        shared: &mut ShardContext,
    ) {
        let last = self.last_of(run);
        let runs = self.rare.as_mut().and_then(|rare| rare.runs.as_mut());
        let (Some(last), Some(runs)) = (last, runs) else { return };
        if runs.outcomes.get(run).is_none_or(|held| held < outcome) {
            runs.outcomes.insert(run.clone(), outcome.clone());
            self.rescore(last, None, shared);
            self.refresh(shared);
        }
    }

    /// Removes the outcomes of runs that have no trace here any more: another session may get one.
    pub(super) fn take_orphaned_outcomes(&mut self) -> Vec<(RunName, RunOutcome)> {
        let Some(rare) = &mut self.rare else { return Vec::new() };
        let Some(runs) = &mut rare.runs else { return Vec::new() };
        let SessionRuns { traces, outcomes } = &mut **runs;
        let (own, orphaned) = std::mem::take(outcomes)
            .into_iter()
            .partition(|(run, _)| traces.contains_key(&RunHash::from(run)));
        let orphaned: BTreeMap<_, _> = orphaned;
        *outcomes = own;
        rare.runs.take_if(|runs| runs.traces.is_empty());
        orphaned.into_iter().collect()
    }

    /// The outcome that applies to a trace: the session's if it is the last trace of the session, the run's if it is the last of
    /// the run in this session; the worse of both.
    pub(super) fn reported_outcome(&self, number: usize) -> Option<bool> {
        let is_last = number + 1 == self.traces.len();
        let of_session = if is_last { self.outcome() } else { None };
        of_session.into_iter().chain(self.outcome_of_run(number)).min()
    }

    /// The traces whose outcome changes because the last trace of the session was `last`, and is another one now.
    pub(super) fn traces_with_changed_outcome(
        &self,
        last: Option<(Timestamp, TraceId)>,
    ) -> Vec<TraceId> {
        let now = self.traces.last_place();
        if now == last || self.outcome().is_none() {
            return Vec::new();
        }
        now.into_iter().chain(last).map(|(_, trace)| trace).collect()
    }

    /// The traces whose outcome changes because the last traces of these runs have changed.
    pub(super) fn outlived_in_runs(&self, runs: Vec<LastOfRun>) -> Vec<TraceId> {
        let mut stale = Vec::new();
        for (run, last) in runs {
            let now = self.last_of(&run);
            if now != last {
                stale.extend(now.into_iter().chain(last));
            }
        }
        stale
    }

    /// Moves a trace to the run of its next record, or out of all runs. Returns its old and new run, if their outcomes are known,
    /// with their last traces before the move.
    pub(super) fn change_run(
        &mut self,
        trace: TraceId,
        form: Option<&TraceRecord>,
        shared: &mut ShardContext,
    ) -> Vec<LastOfRun> {
        let own = &*self.id.id;
        let former = if self.rare().runs.is_some() { self.traces.get(trace) } else { None };
        let from = former.and_then(|record| record.run_name(own));
        let to = form.and_then(|record| record.run_name(own));
        if from.is_none() && to.is_none() {
            return Vec::new();
        }
        let runs = self.rare.get_or_insert_default().runs.get_or_insert_default();
        if let Some(hash) = to.as_ref().map(RunHash::from) {
            *runs.traces.entry(hash).or_default() += 1;
            let is_full = shared.runs.insert(hash, &self.id, shared.max_sessions_per_run);
            shared.counts.add_many("run_sessions", "run_full", u64::from(is_full));
        }
        if let Some(hash) = from.as_ref().map(RunHash::from)
            && let Some(traces) = runs.traces.get_mut(&hash)
        {
            *traces -= 1;
            if *traces == 0 {
                runs.traces.remove(&hash);
                shared.runs.remove(hash, &self.id);
            }
        }
        let also = from.filter(|from| to.as_ref() != Some(from));
        let known = to.into_iter().chain(also).filter(|run| runs.outcomes.contains_key(run));
        let known: Vec<RunName> = known.collect();
        known.into_iter().map(|run| (run.clone(), self.last_of(&run))).collect()
    }

    /// The outcome of the session, if it was reported.
    fn outcome(&self) -> Option<bool> {
        self.outcome_report().map(Report::is_success)
    }

    /// The latest report of the session's outcome, the judge's aside.
    fn outcome_report(&self) -> Option<&Report> {
        let told = self.rare().reports.values().filter(|report| tells_outcome(report));
        told.max_by_key(|report| {
            (report.time, &report.identifier, report.score, report.is_success())
        })
    }

    /// The outcome of a trace's run, if the trace is the last one of the run in this session.
    fn outcome_of_run(&self, number: usize) -> Option<bool> {
        let runs = self.rare().runs.as_ref().filter(|runs| !runs.outcomes.is_empty())?;
        let record = &self.traces[number];
        let run = record.run_name(&self.id.id)?;
        let outcome = runs.outcomes.get(&run)?;
        (self.last_of(&run) == Some(record.id)).then(|| outcome.is_success())
    }

    /// The last trace of a run in this session.
    fn last_of(&self, run: &RunName) -> Option<TraceId> {
        let mut latest_first = self.traces.iter().rev();
        let last = latest_first.find(|record| record.is_of(run, &self.id.id));
        last.map(|record| record.id)
    }

    /// Sends the session's outcome to the agent of its first trace, once: when it is certain which agent that is, and the session's
    /// effort is as complete as it can be.
    pub(super) fn tell_outcome(&mut self, shared: &mut ShardContext) {
        let may_tell = !self.rare().has_reported_outcome && (self.done > 0 || self.closed);
        let Some(report) = self.outcome_report().filter(|_| may_tell) else { return };
        if let Some(outcome) = Outstanding::of_session(self) {
            outcome.report(report, shared);
            self.rare_mut().has_reported_outcome = true;
        }
    }
}
