//! Gauges of agents that follow a session while it lasts: that it is open, its scores, its usage, its loops, its silent traces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::compact_effort::CompactEffort;
use super::record::{TraceEffort, TraceRecord};
use super::rules::Rules;
use super::session::{AnnouncedEffort, Session, ShardContext, TimedState};
use super::summary::SessionScores;
use crate::counters::Counter;
use crate::facts::{AgentKey, Effort};
use crate::limits::{Cause, Exceeded, LimitScope, RunLimit, Usage};
use crate::loops::LoopLabels;
use crate::silences::{self, Level};
use crate::span::TraceId;

impl Session {
    /// Updates the gauges to the current session and time.
    pub(super) fn refresh(&mut self, shared: &mut ShardContext) {
        let placed = self.placing(&shared.rules);
        if placed != self.placed {
            if let Some((agent, scores)) = self.placed.take() {
                shared.shard_agents.summary(&agent).remove_open(scores);
            }
            if let Some((agent, scores)) = &placed {
                shared.shard_agents.summary(agent).open(*scores);
            }
            self.placed = placed;
        }
        self.spend(shared);
        let Some(mut restless) = self.restless.take() else { return };
        restless.deadline = None;
        let mut runaways = self.loops_going_on(&mut restless, shared);
        runaways.extend(self.limits_gone_over(&mut restless, shared));
        shared.shard_agents.update_runaways(&restless.runaways, &runaways);
        for (_, cause) in runaways.difference(&restless.runaways) {
            if cause.weighs() {
                let runaway = shared.runaways.entry((Arc::clone(&self.id), cause.kind()));
                let (worst, _) = runaway.or_insert((*cause, shared.now));
                *worst = worst.worse(*cause);
            }
        }
        restless.runaways = runaways;
        let silent = self.silent(&mut restless, shared);
        restless.stand(silent, shared);
        self.restless = Some(restless).filter(|restless| !restless.is_empty());
    }

    /// The agent under whose open sessions it counts, and its scores; `None` if it is closed.
    pub(super) fn placing(&self, rules: &Rules) -> Option<(AgentKey, SessionScores)> {
        let first = self.first().filter(|_| !self.closed)?;
        Some((first.agent().clone(), self.scores(rules)))
    }

    /// The effort of its done traces.
    pub(super) fn took(&self) -> Effort {
        Effort {
            answer_words: self.done_from_last().find_map(TraceRecord::answer_words),
            last_tool: self.done_from_last().find_map(TraceRecord::last_tool),
            last_models: self.done_from_last().find_map(TraceRecord::last_models),
            ended_in_error: self.done_from_last().next().is_some_and(|record| record.course.error),
            ..self.took.effort()
        }
    }

    /// Its done traces, the one that started last first.
    pub(super) fn done_from_last(&self) -> impl Iterator<Item = &TraceRecord> {
        self.traces.iter().rev().filter(|record| !record.panes.is_empty())
    }

    /// Replaces the effort of a trace in the sums of its agent and of this session.
    pub(super) fn retake(
        &mut self,
        before: Option<TraceEffort>,
        after: Option<TraceEffort>,
        shared: &mut ShardContext,
    ) {
        if before == after {
            return;
        }
        self.effort_changed = true;
        if let Some(TraceEffort { agent, start, effort }) = before {
            shared.shard_agents.summary(&agent).forget_effort(start, &effort);
            self.took = CompactEffort::from(self.took.effort().minus(effort));
            if effort.longest_call_nanos == self.took.longest_call_nanos {
                let done = self.done_from_last().map(|record| record.times.longest_call_nanos());
                self.took.longest_call_nanos = done.max().unwrap_or(0);
            }
        }
        if let Some(TraceEffort { agent, start, effort }) = after {
            shared.shard_agents.summary(&agent).observe_effort(start, &effort);
            self.took = CompactEffort::from(self.took.effort().plus(effort));
        }
    }

    /// The session's effort, and the agent that receives it; `None` before a trace is done.
    fn spending(&self) -> Option<AnnouncedEffort> {
        let first = self.first().filter(|_| self.done > 0)?;
        let answer_words = self.done_from_last().find_map(TraceRecord::answer_words);
        let effort = (&Effort { answer_words, ..self.took.effort() }).into();
        Some(AnnouncedEffort { agent: first.agent().clone(), start: first.start, effort })
    }

    /// Sends the session's effort to its agent, if it has changed. Not inlined, so that profiles show it.
    #[inline(never)]
    fn spend(&mut self, shared: &mut ShardContext) {
        let first = self.first().map(|first| (first.agent(), first.start));
        let told = self.spent.as_ref().map(|spent| (&spent.agent, spent.start));
        if !self.effort_changed && (told.is_none() || told == first) {
            return;
        }
        self.effort_changed = false;
        let after = self.spending();
        let before = std::mem::replace(&mut self.spent, after.clone());
        let mut tell = |agent: &AgentKey,
                        before: Option<&AnnouncedEffort>,
                        after: Option<&AnnouncedEffort>| {
            let [before, after] = [before, after].map(|of| of.map(|of| (of.start, of.effort)));
            let mark = self.mark_of(agent);
            shared.shard_agents.summary(agent).spend(mark, before, after);
        };
        match (&before, &after) {
            (Some(old), Some(new)) if old == new => {}
            (Some(old), Some(new)) if old.agent == new.agent => {
                tell(&new.agent, Some(old), Some(new));
            }
            (old, new) => {
                old.iter().for_each(|old| tell(&old.agent, Some(old), None));
                new.iter().for_each(|new| tell(&new.agent, None, Some(new)));
            }
        }
    }

    /// The loops that have grown within `loop_hold`, in open and done traces: even the shortest loop is shown for that long.
    fn loops_going_on(
        &self,
        TimedState { growing, deadline, .. }: &mut TimedState,
        shared: &ShardContext,
    ) -> BTreeSet<(AgentKey, Cause)> {
        let mut looping = BTreeSet::new();
        if self.closed {
            growing.clear();
            return looping;
        }
        growing.retain(|trace| {
            let Some(record) = self.traces.get(*trace) else { return false };
            let mut goes_on = false;
            for (&(kind, evidence), growth) in &record.rare().growth {
                let until = growth.at.after(shared.rules.loop_hold);
                if until > shared.now {
                    let labels = LoopLabels { kind, severity: growth.severity, evidence };
                    looping.insert((record.agent().clone(), Cause::Loop(labels)));
                    *deadline = Some(deadline.map_or(until, |other| other.min(until)));
                    goes_on = true;
                }
            }
            goes_on
        });
        looping
    }

    /// Finds the limits that a trace and its session exceed, and counts each once.
    pub(super) fn hold_against_limits(&mut self, trace: TraceId, shared: &mut ShardContext) {
        let ShardContext { rules, shard_agents, now, .. } = shared;
        let Some(record) = self.traces.get_mut(trace) else { return };
        let at = record.touched(*now);
        let usage = record.usage();
        let exceeded = rules.limits.exceeded(record.named(), LimitScope::Trace, &usage);
        let found: Vec<Exceeded> = exceeded.collect();
        record.count_limits(found.iter().map(|found| found.limit), shard_agents);
        let of_trace = found.into_iter().map(|found| (Some(trace), found));
        let of_session = self.exceeded(rules);
        if let Some(first) = self.first().filter(|first| !first.course.uncertain) {
            let agent = first.agent().clone();
            for Exceeded { limit, .. } in &of_session {
                if self.over.insert(*limit) {
                    shard_agents.summary(&agent).count(Counter::RunLimits, &limit.values(), 1);
                }
            }
        }
        let of_session = of_session.into_iter().map(|found| (None, found));
        let found: Vec<(Option<TraceId>, Exceeded)> = of_trace.chain(of_session).collect();
        self.fall_below(|run, limit| {
            run.is_none_or(|run| run == trace)
                && !found.iter().any(|(of, found)| (*of, found.limit) == (run, limit))
        });
        for (run, Exceeded { limit, used, .. }) in found {
            let over = &mut self.restless.get_or_insert_default().over;
            let grown = over.entry((run, limit)).or_insert((used, at));
            if used > grown.0 {
                *grown = (used, at);
            }
        }
    }

    /// Notes that a trace has left; without it the session may no longer be over a limit.
    pub(super) fn leave_limits(&mut self, trace: TraceId, rules: &Rules) {
        let Some(restless) = self.restless.as_mut().filter(|restless| !restless.over.is_empty())
        else {
            return;
        };
        restless.over.retain(|(run, _), _| *run != Some(trace));
        let still = self.exceeded(rules);
        self.fall_below(|run, limit| {
            run.is_none() && !still.iter().any(|found| found.limit == limit)
        });
    }

    /// Forgets limits that are no longer exceeded, so that exceeding them again counts as new.
    fn fall_below(&mut self, is_below: impl Fn(Option<TraceId>, RunLimit) -> bool) {
        let Some(restless) = &mut self.restless else { return };
        let over = restless.over.iter_mut().filter(|((run, limit), _)| is_below(*run, *limit));
        over.for_each(|(_, (used, _))| *used = 0);
    }

    /// The session limits that it exceeds, among those that are set for the agent of its first trace.
    pub(super) fn exceeded(&self, rules: &Rules) -> Vec<Exceeded> {
        let Some(first) = self.first() else { return Vec::new() };
        let mut usage = Usage { sums: self.used.sums(), ..Usage::default() };
        if rules.limits.has(first.named(), RunLimit::SessionDuration) {
            let end = self.traces.iter().map(TraceRecord::end).max().unwrap_or_default();
            usage.nanos = end.0.saturating_sub(first.start.0);
        }
        if rules.limits.has(first.named(), RunLimit::SessionCallsWithoutTool) {
            let last = self.traces.iter().rev();
            let without = last.take_while(|record| record.course.calls.is_empty());
            usage.calls_without_tool = without.map(|record| record.course.llm_calls).sum();
        }
        rules.limits.exceeded(first.named(), LimitScope::Session, &usage).collect()
    }

    /// Whether the gauges count it as running over a limit.
    pub(super) fn goes_on_over_a_limit(&self) -> bool {
        let runaways = self.restless.iter().flat_map(|restless| &restless.runaways);
        runaways.into_iter().any(|(_, cause)| matches!(cause, Cause::Limit(_)))
    }

    /// Whether the gauges count one of its open traces as silent for long.
    pub(super) fn has_silent_traces(&self) -> bool {
        self.restless.as_ref().is_some_and(|restless| !restless.silent.is_empty())
    }

    /// The limits whose excess has grown within `loop_hold`. A limit that stays exceeded is kept, so that it does not count as
    /// grown when the trace is sent again.
    fn limits_gone_over(
        &self,
        TimedState { over, deadline, .. }: &mut TimedState,
        shared: &ShardContext,
    ) -> BTreeSet<(AgentKey, Cause)> {
        let mut runaways = BTreeSet::new();
        over.retain(|(run, limit), (used, at)| {
            let until = at.after(shared.rules.loop_hold);
            let is_shown = !self.closed && until > shared.now;
            let record = match run {
                Some(trace) => self.traces.get(*trace),
                None => self.first(),
            };
            if let Some(record) = record.filter(|_| is_shown) {
                runaways.insert((record.agent().clone(), Cause::Limit(*limit)));
                *deadline = Some(deadline.map_or(until, |other| other.min(until)));
            }
            record.is_some() && (is_shown || *used > 0)
        });
        runaways
    }

    /// How many of its open traces are silent, by agent and level; sets the deadline of the next level.
    fn silent(
        &self,
        TimedState { open, deadline, .. }: &mut TimedState,
        shared: &ShardContext,
    ) -> BTreeMap<(AgentKey, Level), u64> {
        let stall_after = shared.rules.stall_after;
        let mut silent: BTreeMap<(AgentKey, Level), u64> = BTreeMap::new();
        for record in open.quietest_first().filter_map(|trace| self.traces.get(trace)) {
            let last_heard = record.touched(shared.now).max(shared.since);
            let level = silences::level(shared.now.0.saturating_sub(last_heard.0), stall_after);
            if let Some(level) = level {
                *silent.entry((record.agent().clone(), level)).or_default() += 1;
            }
            let due = silences::next_edge(level, stall_after)
                .map(|next| last_heard.after(Duration::from_nanos(next)));
            *deadline = (*deadline).into_iter().chain(due).min();
            if level.is_none() {
                // None of the others has been silent for longer.
                break;
            }
        }
        silent
    }
}

impl TimedState {
    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        // A deadline always belongs to one of the other fields.
        let Self { deadline: _, growing, over, runaways, open, silent } = self;
        growing.is_empty()
            && over.is_empty()
            && runaways.is_empty()
            && open.is_empty()
            && silent.is_empty()
    }

    /// Updates the number of silent traces of the session in its agents.
    pub(super) fn stand(
        &mut self,
        silent: BTreeMap<(AgentKey, Level), u64>,
        shared: &mut ShardContext,
    ) {
        if self.silent == silent {
            return;
        }
        for ((agent, level), traces) in std::mem::replace(&mut self.silent, silent) {
            shared.shard_agents.summary(&agent).silences.remove_open(level, traces);
        }
        for ((agent, level), traces) in &self.silent {
            shared.shard_agents.summary(agent).silences.open(*level, *traces);
        }
    }
}
