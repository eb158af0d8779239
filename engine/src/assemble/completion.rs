//! When a trace is done, and which agent it is shown under until then.
//!
//! | Evidence | The trace is done |
//! |---|---|
//! | a span without a parent has arrived | after `trace_idle` |
//! | the missing parent of an agent's or a workflow's span is in another process | after `trace_idle` |
//! | parents of such spans never arrived in earlier traces | after `trace_idle` |
//! | they did arrive, or the missing parent of an agent's span is in the same process | at `trace_max_age` |
//! | none | after `rootless_idle` |
//!
//! A root that ended before other spans did, while a parent is missing, does not count as evidence, as it may be the root of a
//! request that only started the work: the trace is treated like one without a root.
//!
//! A trace that was done without its root is sealed once it was quiet for `trace_max_age`: so a run that continues after a pause is
//! one trace, however long it lasts. If no span has named its agent until then, and the root was expected, its verdicts are
//! skipped: the success of half a run says nothing.
//!
//! "Such" spans have the same tenant, service, scope, operation and, for agents and spans of no known operation, name. A trace is
//! quiet while it gets no input. A trace that is done without its root waits for it, and nothing of it is counted before it is
//! sealed: so what was learned decides when it shows in gauges, but not what is counted. Only if traces of the same kind repeatedly
//! became final without a root are further ones final after `late_horizon`.

use super::ages::AGES;
use super::open_trace::{OpenTrace, Pending, State, WithoutRoot};
use super::parents::too_late;
use super::{Assembler, Learned, Lessons, Timestamp, TraceKey};
use crate::facts::{AgentKey, OverBy, TraceFacts};
use crate::span::Span;
use crate::trace::{TraceView, is_turn, named_agent, scope_by_agent, source};

impl Assembler {
    /// The number of open traces of each of [`AGES`].
    pub fn ages(&self, now: Timestamp) -> [usize; AGES.len()] {
        self.ages.at(now)
    }

    /// Makes a trace done that was quiet for a while, or schedules another check.
    pub(super) fn close_or_wait(&mut self, id: TraceKey, now: Timestamp, known: &Learned) {
        let Some(held) = self.traces.get_mut(id) else { return };
        let rooted = held.root_tells_end();
        let is_quiet = held.heard.after(self.options.rootless_idle) <= now;
        if is_quiet && !rooted && held.has_begun() && held.without_root != WithoutRoot::Quiet {
            held.without_root = WithoutRoot::Quiet;
            known.parents.quiet(id.id, &held.parts.spans, &mut self.lessons);
        }
        let spans = &held.parts.spans;
        let evidence = if rooted { OverBy::Root } else { known.parents.outlook(spans) };
        let done = held.done_at(evidence, &self.options);
        if done > now {
            if held.is_rooted() && held.evidence != evidence {
                // It was sent at once, before this was known.
                held.tell_at = now;
            }
            held.evidence = evidence;
            // What is learned until then may improve the evidence.
            held.deadline = done.min(now.after(self.options.rootless_idle));
            return;
        }
        let of_age = held.oldest(&self.options) <= now;
        let waited = matches!(evidence, OverBy::ParentsCome | OverBy::LocalParent);
        let evidence = if of_age && waited { OverBy::Age } else { evidence };
        self.close(id, now, evidence, known);
    }

    /// Makes an open trace done.
    pub(super) fn close(
        &mut self,
        id: TraceKey,
        now: Timestamp,
        evidence: OverBy,
        known: &Learned,
    ) {
        let Some(held) = self.traces.get_mut(id) else { return };
        let spans = &held.parts.spans;
        let recent_batches = known.parents.recent_batches(spans, now, &mut self.lessons);
        let rooted = evidence == OverBy::Root || held.root_tells_end();
        let never = !rooted && known.parents.never_come(spans, &recent_batches);
        let spared = never && known.parents.come_late(spans, now);
        if spared {
            held.without_root = WithoutRoot::Spared;
        }
        // From then on spans reopen it, each for at most `trace_idle`; it counts once.
        if held.is_of_age(now, &self.options) && !held.partial {
            held.partial = true;
            self.counts.add("traces_partial", "age");
        }
        self.ages.remove(held.opened);
        let evidence = if rooted { OverBy::Root } else { evidence };
        held.close(now, evidence, never && !spared, &self.options);
        self.deadlines.mark(id, held, Pending::News);
        self.deadlines.reschedule(id, held);
    }

    /// Marks a trace that is about to be sealed for lack of room as partial, unless it is done and has its root.
    pub(super) fn take_for_over(&mut self, id: TraceKey, evidence: OverBy) {
        let Some(held) = self.traces.get_mut(id) else { return };
        if held.state == State::Open || !held.root_tells_end() {
            held.cut |= held.waits_for_root();
            (held.partial, held.evidence) = (true, evidence);
            self.counts.add("traces_partial", "room");
        }
    }

    /// Learns from a trace that becomes final without a root.
    pub(super) fn learn_at_end(&mut self, id: TraceKey, known: &Learned) {
        let without = |held: &&OpenTrace| held.has_begun() && !held.root_tells_end();
        let Some(held) = self.traces.get(id).filter(without) else { return };
        if !matches!(held.evidence, OverBy::Room | OverBy::EndOfInput) {
            let trace = (id.id, held.opened);
            known.parents.without(trace, &held.parts.spans, &mut self.lessons);
        }
    }

    /// Learns that roots arrive, from the root of a trace that was made final early without it, or would have been.
    pub(super) fn too_late<'s>(&mut self, spans: impl Iterator<Item = &'s Span>, now: Timestamp) {
        for root in spans.filter(|span| span.parent.is_none()) {
            too_late(&root.resource, now, &mut self.lessons);
        }
    }

    /// Notes spans of a sealed trace, which accepts no more.
    pub(super) fn dropped<'s>(
        &mut self,
        id: TraceKey,
        spans: impl Iterator<Item = &'s Span> + Clone,
        now: Timestamp,
    ) {
        let roots = spans.clone().filter(|span| span.parent.is_none()).count();
        // A root that was in time may be resent.
        if roots > 0 && self.sealed.finds_root(id) {
            self.too_late(spans.clone(), now);
        }
        let rootless = self.sealed.ending(id).is_some_and(|ending| ending.rootless);
        let missed = if rootless { roots } else { 0 };
        self.counts.add_many("late", "root_dropped", missed as u64);
        self.counts.add_many("late", "dropped", (spans.count() - missed) as u64);
    }

    /// Sets the agent of an update and whether it is certain. It is certain once nothing more is waited for, whatever arrived
    /// first; in a turn from log records, once the prompt has arrived and an agent is named. If nothing has named the agent by
    /// then, it gets the service's name; before that, the one agent known there.
    pub(super) fn name(
        &self,
        held: &OpenTrace,
        trace: &TraceView<'_>,
        update: &mut TraceFacts,
        known: Option<&Learned>,
    ) {
        let Some(agent) = &mut update.agent else { return };
        let (unnamed, sealed) = (agent.agent_name.is_empty(), held.state == State::Sealed);
        let ended = held.state != State::Open && held.evidence == OverBy::Root;
        let over = sealed || (update.complete && ended);
        update.uncertain = !over && (unnamed || !is_turn(trace));
        let only = known.filter(|_| unnamed).zip(source(trace)).and_then(|(known, source)| {
            let (resource, scope) = source;
            known.names.only(resource, scope, held.touched)
        });
        // The span that names the agent and shows how it ended was waited for in vain, or there was no room for further spans.
        let half = held.cut || held.waits_for_root();
        // A later turn may be merely the work of a sub-agent whose caller began before it.
        update.unjudged = (unnamed || held.turn > 0) && over && !update.complete && half;
        if unnamed && over {
            *agent = agent.with(|parts| parts.agent_name.clone_from(&parts.service_name));
            // Until now, the agent could not be known.
            if sealed && only.is_none_or(|only| only.agent_name != agent.agent_name) {
                update.last_heard_unix_nano = held.deadline.0;
            }
        } else if unnamed {
            only.into_iter().for_each(|known| *agent = presume(agent, known));
        }
        scope_by_agent(update, self.rules.scope);
    }

    /// Learns the agent of a trace, once that is certain.
    pub(super) fn learn_name(&mut self, id: TraceKey, update: &TraceFacts, known: &Learned) {
        let Some((held, agent)) = self.traces.get(id).zip(update.agent.as_ref()) else { return };
        let news = known.names.news(held.parts.spans.sources(), agent, held.touched);
        news.for_each(|news| self.lessons.named(news));
    }

    /// Learns the agent of a trace that is not sent yet and whose root has arrived, if no agent is known for one of its sources.
    pub(super) fn learn_name_of(&mut self, id: TraceKey, known: &Learned) {
        let Some(held) = self.traces.get(id) else { return };
        let spans = &held.parts.spans;
        let mut sources = spans.sources();
        if sources.any(|(resource, scope)| known.names.knows_none(resource, scope))
            && let Some(agent) = named_agent(&held.parts.view(), &mut self.agents)
        {
            let news = known.names.news(spans.sources(), &agent, held.touched);
            news.for_each(|news| self.lessons.named(news));
        }
    }

    /// Takes what was learned since the last call, for the table of all shards.
    pub fn lessons(&mut self) -> Lessons {
        std::mem::take(&mut self.lessons)
    }
}

/// An agent with the name of the known one; it keeps the version and environment that its own spans state.
fn presume(agent: &AgentKey, known: &AgentKey) -> AgentKey {
    agent.with(|parts| {
        parts.agent_name.clone_from(&known.agent_name);
        for (own, known) in [
            (&mut parts.agent_version, &known.agent_version),
            (&mut parts.environment, &known.environment),
        ] {
            if own.is_empty() {
                own.clone_from(known);
            }
        }
    })
}
