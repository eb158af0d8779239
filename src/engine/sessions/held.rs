//! One trace of a session: its newest form, its scores, and what it has given to its agent.

use serde::{Deserialize, Serialize};

use super::chain::Link;
use super::fleet::Fleet;
use super::key::Agent;
use super::pane::{Contribution, PaneKey};
use super::rules::Rules;
use super::scoring::{Scored, is_done, unasked};
use super::tally::{Growths, Tally, growth};
use crate::engine::loops::{Severity, worst};
use crate::engine::span::{Timestamp, TraceId};
use crate::engine::update::{Effort, Loop, RunTrace, TraceState, TraceUpdate};

/// One trace.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Held {
    pub(super) id: TraceId,
    pub(super) update: TraceUpdate,
    /// Whose it is, `__overflow__` included.
    pub(super) agent: Agent,
    pub(super) scored: Scored,
    /// Present exactly while the trace is done.
    pub(super) given: Option<Given>,
    pub(super) tally: Tally,
    /// How far its loops have grown, by kind and evidence.
    pub(super) growth: Growths,
    /// Present exactly while it is one of a chain of traces.
    pub(super) link: Option<Box<Link>>,
    /// What it was last said to add to a run, and whose.
    pub(super) run: Option<Box<(Agent, RunTrace)>>,
}

/// What outlives one form of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    pub(super) given: Option<Given>,
    pub(super) tally: Tally,
    pub(super) growth: Growths,
    pub(super) run: Option<Box<(Agent, RunTrace)>>,
}

/// What a trace has given, as it must be taken back.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Given {
    pub(super) agent: Agent,
    pub(super) contribution: Contribution,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    pub(super) panes: Vec<PaneKey>,
    /// What it took.
    pub(super) effort: Effort,
}

impl Held {
    /// A trace in this form; what its earlier form has given and counted goes on.
    pub(super) fn new(id: TraceId, update: TraceUpdate, agent: Agent, past: Past) -> Self {
        let Past { given, tally, growth, run } = past;
        let (scored, link) = (Scored::default(), None);
        Self { id, update, agent, scored, given, tally, growth, link, run }
    }

    /// Takes note that nothing more will come, under this revision; returns the agent, or `None` if it is not done.
    pub(super) fn seal(&mut self, revision: u64) -> Option<Agent> {
        if !is_done(&self.update) || self.update.revision > revision {
            return None;
        }
        (self.update.revision, self.update.state) = (revision, TraceState::Sealed);
        Some(self.agent.clone())
    }

    /// Returns whether there is nothing of it that time alone could change: it is done, and what follows from it stands.
    pub(super) fn rests(&self) -> bool {
        let told = self.run.as_deref().is_none_or(|(agent, _)| *agent == self.agent);
        is_done(&self.update) && (self.tally.done || self.update.uncertain) && told
    }

    /// What outlives this form of the trace.
    pub(super) fn into_past(self) -> Past {
        Past { given: self.given, tally: self.tally, growth: self.growth, run: self.run }
    }

    /// Loops of tool calls whose runs end in it.
    pub(super) fn loops(&self) -> &[Loop] {
        self.link.as_ref().map_or(&self.update.loops, |link| &link.ended)
    }

    /// Those of them that weigh, and a repeated output.
    pub(super) fn weighing_loops(&self) -> impl Iterator<Item = &Loop> {
        let found = self.loops().iter().chain(&self.scored.output_repeat);
        found.filter(|found| found.evidence.weighs())
    }

    /// The worst severity of a loop that weighs and has a call in it.
    pub(super) fn loop_severity(&self) -> Option<Severity> {
        match &self.link {
            Some(link) => link.severity,
            None => worst(&self.update.loops),
        }
    }

    /// Its place in the session.
    pub(super) fn position(&self) -> (Timestamp, TraceId) {
        (Timestamp(self.update.start_unix_nano), self.id)
    }

    /// What it adds to its agent, if it is done: of its signals those that have sums there.
    pub(super) fn contribution(&self, rules: &Rules, fleet: &mut Fleet) -> Option<Contribution> {
        if !is_done(&self.update) {
            return None;
        }
        let summary = fleet.summary(&self.agent);
        let signals = self.scored.signals.iter();
        let signals = signals
            .filter(|(name, _)| rules.weights.contains_key(name.as_ref()) || summary.admits(name))
            .map(|(name, (score, _))| (name.clone(), *score))
            .collect();
        let risk = &self.scored.risk;
        let unasked = unasked(&self.update, &self.scored.signals, rules);
        Some(Contribution { risk: risk.risk, uncertainty: risk.uncertainty, signals, unasked })
    }

    /// Returns whether it has given exactly this, to its agent, at its time.
    pub(super) fn gives(&self, contribution: Option<&Contribution>) -> bool {
        match (&self.given, contribution) {
            (None, None) => true,
            (Some(given), Some(contribution)) => {
                given.contribution == *contribution
                    && given.agent == self.agent
                    && given.end == self.end()
                    && given.effort == Effort::of(&self.update)
                    && given.start.0 == self.update.start_unix_nano
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Gives to its agent; returns how many windows it is not in.
    pub(super) fn give(
        &mut self,
        contribution: Contribution,
        wall: Timestamp,
        fleet: &mut Fleet,
    ) -> usize {
        let (start, end) = (Timestamp(self.update.start_unix_nano), self.end());
        let summary = fleet.summary(&self.agent);
        let (panes, missed) = summary.observe((start, end, self.id), &contribution, wall);
        let (agent, effort) = (self.agent.clone(), Effort::of(&self.update));
        self.given = Some(Given { agent, contribution, start, end, panes, effort });
        missed
    }

    /// Takes back what it has given.
    pub(super) fn take_back(&mut self, fleet: &mut Fleet) -> Option<Given> {
        let given = self.given.take()?;
        let summary = fleet.summary(&given.agent);
        summary.forget((given.start, self.id), &given.contribution, &given.panes);
        Some(given)
    }

    /// Says what it adds to a run, if that has changed; to its former agent, that it adds nothing any more.
    pub(super) fn tell_run(&mut self, run: Option<RunTrace>, fleet: &mut Fleet) {
        let told = self.run.take();
        let same = match (&told, &run) {
            (Some(told), Some(run)) => told.0 == self.agent && told.1 == *run,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            self.run = told;
            return;
        }
        if let Some((agent, _)) =
            told.map(|told| *told).filter(|told| run.is_none() || told.0 != self.agent)
        {
            let gone = RunTrace { trace_id: self.id, gone: true, ..RunTrace::default() };
            fleet.summary(&agent).tell_run(self.id, gone);
        }
        if let Some(run) = run {
            fleet.summary(&self.agent).tell_run(self.id, run.clone());
            self.run = Some(Box::new((self.agent.clone(), run)));
        }
    }

    /// Raises its agent's counters by what it has more than it counted, once it is certain whose it is.
    pub(super) fn count(&mut self, fleet: &mut Fleet) {
        if self.update.uncertain {
            return;
        }
        let summary = fleet.summary(&self.agent);
        let begun = self.link.as_ref().map_or(&self.update.loops, |link| &link.begun);
        // What an output repeats is known once all that were done with it are in.
        let is_settled = self.tally.done;
        let repeat = self.scored.output_repeat.iter().filter(|_| is_settled);
        let loops = begun.iter().chain(repeat);
        self.tally.count_loops(loops, &self.agent, summary);
        if self.update.complete || is_done(&self.update) {
            self.tally.count_spend(&self.update, summary);
        }
    }

    /// Notes how far its loops have grown; returns whether it has any.
    pub(super) fn grow(&mut self, now: Timestamp) -> bool {
        self.growth = growth(self.loops(), &self.growth, self.touched(now));
        !self.growth.is_empty()
    }

    /// When the newest thing of it arrived; if that is not known, or ahead of the time: now.
    pub(super) fn touched(&self, now: Timestamp) -> Timestamp {
        let touched = self.update.touched_unix_nano;
        if touched == 0 { now } else { Timestamp(touched).min(now) }
    }

    /// When it ended; never before its start.
    pub(super) fn end(&self) -> Timestamp {
        Timestamp(self.update.end_unix_nano.max(self.update.start_unix_nano))
    }
}
