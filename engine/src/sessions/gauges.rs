//! What a session shows while it lasts: that it is open and with which scores, what it took, what loops in it and what stalls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::key::Agent;
use super::rules::Rules;
use super::session::{Restless, Session, Shared, Spending};
use super::summary::SessionScores;
use crate::loops::LoopLabels;
use crate::span::TraceId;
use crate::update::Effort;

impl Session {
    /// Brings the gauges up to date: whether it is open, with which scores, and what loops.
    pub(super) fn refresh(&mut self, shared: &mut Shared) {
        let placed = self.placing(&shared.rules);
        if placed != self.placed {
            if let Some((agent, scores)) = self.placed.take() {
                shared.fleet.summary(&agent).unopen(scores);
            }
            if let Some((agent, scores)) = &placed {
                shared.fleet.summary(agent).open(*scores);
            }
            self.placed = placed;
        }
        self.spend(shared);
        self.deadline = None;
        let Some(mut restless) = self.restless.take() else { return };
        let looping = self.loops_going_on(&mut restless.growing, shared);
        for (agent, labels) in restless.looping.difference(&looping) {
            shared.fleet.summary(agent).stop_looping(*labels);
        }
        for (agent, labels) in looping.difference(&restless.looping) {
            shared.fleet.summary(agent).start_looping(*labels);
            if labels.evidence.weighs() {
                let runaway = shared.runaways.entry((Arc::clone(&self.id), labels.kind));
                let worst = runaway.or_insert(*labels);
                *worst = worst.worse(*labels);
            }
        }
        restless.looping = looping;
        let stalled = self.stalling(&restless.open, shared);
        restless.stand(stalled, shared);
        self.restless = Some(restless).filter(|restless| !restless.is_empty());
    }

    /// Whose open session it is and with which scores; `None` if it is closed.
    pub(super) fn placing(&self, rules: &Rules) -> Option<(Agent, SessionScores)> {
        let first = self.first().filter(|_| !self.closed)?;
        Some((first.agent().clone(), self.scores(rules)))
    }

    /// What its done traces took.
    pub(super) fn took(&self) -> Effort {
        let done = self.traces.iter().rev().filter(|record| !record.panes.is_empty());
        let answer = done.filter_map(|record| record.output.as_ref()).next();
        let answer_words = answer.map(|output| output.tokens.len() as u64);
        Effort { answer_words, ..self.took }
    }

    /// Whose effort is how much; `None` before a trace is done.
    fn spending(&self) -> Option<Spending> {
        let first = self.first().filter(|_| self.done > 0)?;
        let agent = first.agent().clone();
        let mark = self.marks.get(&agent).copied().unwrap_or_default();
        Some(Spending { agent, start: first.start, mark, effort: self.took() })
    }

    /// Tells its agent what it took, if that has changed.
    fn spend(&mut self, shared: &mut Shared) {
        let spending = self.spending();
        if spending == self.spent {
            return;
        }
        if let Some(Spending { agent, start, mark, effort }) = self.spent.take() {
            shared.fleet.summary(&agent).unspend(start, mark, &effort);
        }
        if let Some(Spending { agent, start, mark, effort }) = &spending {
            shared.fleet.summary(agent).spend(*start, *mark, effort);
        }
        self.spent = spending;
    }

    /// What loops have grown within `loop_hold`, in traces that are open or done: however short a loop was, it is seen for that long.
    fn loops_going_on(
        &mut self,
        growing: &mut BTreeSet<TraceId>,
        shared: &Shared,
    ) -> BTreeSet<(Agent, LoopLabels)> {
        let mut looping = BTreeSet::new();
        if self.closed {
            growing.clear();
            return looping;
        }
        let Self { traces, deadline, .. } = self;
        growing.retain(|trace| {
            let Some(record) = traces.get(*trace) else { return false };
            let mut goes_on = false;
            for (&(kind, evidence), growth) in &record.rare().growth {
                let until = growth.at.after(shared.rules.loop_hold);
                if until > shared.now {
                    let labels = LoopLabels { kind, severity: growth.severity, evidence };
                    looping.insert((record.agent().clone(), labels));
                    *deadline = Some(deadline.map_or(until, |other| other.min(until)));
                    goes_on = true;
                }
            }
            goes_on
        });
        looping
    }

    /// How many of its open traces nothing has come of for `stall_after`, by agent; the rest have a deadline.
    fn stalling(&mut self, open: &BTreeSet<TraceId>, shared: &Shared) -> BTreeMap<Agent, u64> {
        let mut stalled: BTreeMap<Agent, u64> = BTreeMap::new();
        for record in open.iter().filter_map(|trace| self.traces.get(*trace)) {
            let due = record.touched(shared.now).after(shared.rules.stall_after);
            if due <= shared.now {
                *stalled.entry(record.agent().clone()).or_default() += 1;
            } else if self.deadline.is_none_or(|other| due < other) {
                self.deadline = Some(due);
            }
        }
        stalled
    }
}

impl Restless {
    fn is_empty(&self) -> bool {
        let Self { growing, looping, open, stalled } = self;
        growing.is_empty() && looping.is_empty() && open.is_empty() && stalled.is_empty()
    }

    /// Tells agents how many of its traces stall.
    pub(super) fn stand(&mut self, stalled: BTreeMap<Agent, u64>, shared: &mut Shared) {
        if self.stalled == stalled {
            return;
        }
        for (agent, traces) in std::mem::replace(&mut self.stalled, stalled) {
            shared.fleet.summary(&agent).stalled -= traces;
        }
        for (agent, traces) in &self.stalled {
            shared.fleet.summary(agent).stalled += traces;
        }
    }
}
