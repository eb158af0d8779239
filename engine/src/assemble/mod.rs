//! Stage 1: spans, log records and reports become traces, keyed by tenant and trace id.
//!
//! A trace is done when its root has ended and it was quiet, or when its root is no longer waited for (`completion.rs`); a late span
//! reopens it; then it is sealed, and what begins later under its id is a trace of its own (`later_turns.rs`). Its facts are sent on as
//! a full [`TraceFacts`] under a higher revision when it is done, reopened, reported on or sealed. An open trace is sent at once
//! only for what cannot wait: a new or growing loop, with the span that closes it, and the possibility that the trace continues in
//! another one, as a loop may span both. Everything else is sent once every `trace_idle`. A trace older than `trace_max_age` that
//! gets more spans is done again no more often than that.

mod ages;
mod calls;
mod completion;
mod deadlines;
mod full;
mod judgement;
mod later_turns;
mod learned;
mod memory_bounds;
mod names;
mod open_trace;
mod parents;
mod quietest;
mod recent;
mod reports;
mod requests;
mod resources;
pub mod saved;
mod sealed;
pub mod texts;
mod traces;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::mem;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::ages::AGES;
pub use self::deadlines::AtMost;
pub use self::learned::{Learned, Lessons, SavedLearned};

use self::ages::Ages;
use self::calls::Calls;
use self::deadlines::Deadlines;
use self::full::SESSION_FULL;
use self::memory_bounds::HeldBytes;
use self::open_trace::{OpenTrace, Pending, State};
use self::quietest::Quietest;
use self::resources::Resources;
use self::sealed::Sealed;
use self::texts::{Keeping, RecentBatches, SpanBatch};
use self::traces::Traces;
use self::turns::Turns;

use super::count::Counts;
use super::embedding::{EmbedRequest, Embedded};
use super::expect::{Judgements, Suite};
use super::facts::{AgentKey, AgentKeys, OverBy, SessionId, TraceFacts};
use super::judging::{JudgeAvailability, JudgeReply, JudgeRequest, JudgeRules, RubricRequest};
use super::math::Quanta;
use super::options::{AssembleOptions, CostOptions, LoopOptions, SessionScope};
use super::price::Prices;
use super::span::{Log, Operation, Report, Span, Target, Timestamp, TraceId};
use super::tenants::{Shares, TraceKey};
use super::trace::{
    Added, Bytes, Rules, Symbols, TraceView, evaluate, expectations, has_loop, ignored, may_repeat,
};
use super::waiting::Waiting;

/// An input of the stage.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Input {
    /// A span.
    Span(Box<Span>),
    /// A log record.
    Log(Box<Log>),
    /// A report about a trace.
    Report(Box<Report>),
    /// A judge's reply about a trace.
    Judged(Box<JudgeReply>),
    /// An embedding model's results for the texts of a trace.
    Embedded(TraceKey, Embedded),
}

/// The stage: all traces of one shard.
#[derive(Debug)]
pub struct Assembler {
    options: AssembleOptions,
    rules: Rules,
    // The rules with texts kept, for expectations and embeddings.
    with_texts: Rules,
    suites: Arc<[Suite]>,
    judging: Option<JudgeRules>,
    attention: JudgeAvailability,
    // Batches since the last drain.
    recent_batches: RecentBatches,
    // Invariant: the sum over all traces that are not sealed.
    bytes: HeldBytes,
    // The quietest of the traces with long texts that only people and models read.
    quietest_with_texts: Quietest,
    requests: Vec<JudgeRequest>,
    // Most bytes of a text that is sent to an embedding model; `None`: there is no model.
    embedding: Option<usize>,
    embed_requests: Vec<EmbedRequest>,
    traces: Traces,
    resources: Resources,
    symbols: Symbols,
    agents: AgentKeys,
    // What was learned since the last call of `lessons`.
    lessons: Lessons,
    // A buffer to count the calls of a short trace.
    calls: Calls,
    // Ages of the open traces.
    ages: Ages,
    // The quietest of the open traces.
    quietest: Quietest,
    shares: Shares,
    // Invariant: one entry for each held trace, at its `queued`.
    deadlines: Deadlines,
    // Last updates of traces that were removed.
    sealed_updates: Vec<Box<TraceFacts>>,
    sealed: Sealed,
    // Full sessions, as the session stages list them.
    full_sessions: BTreeSet<Arc<SessionId>>,
    turns: Turns,
    // Reports for traces that have not arrived.
    waiting: Waiting<TraceId>,
    // Reports about traces that are sealed.
    late_reports: Vec<Report>,
    // The judge's costs, by minute.
    paid: BTreeMap<u64, i64>,
    counts: Counts,
}

/// Spans and log records for which there was no room.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Refused {
    /// Those of full traces.
    pub trace_full: u64,
    /// Those that would begin another trace of a full session.
    pub session_full: u64,
}

/// The current evaluation of a trace.
struct Evaluation {
    update: Box<TraceFacts>,
    /// Rules for its answer that no judge has judged.
    rubrics: Vec<RubricRequest>,
    /// Its texts, if they are to be embedded.
    texts: Option<EmbedRequest>,
}

impl Assembler {
    /// An empty stage.
    pub fn new(options: AssembleOptions, loops: LoopOptions, cost: &CostOptions) -> Self {
        let rules = Rules {
            fallback: options.session_fallback,
            scope: SessionScope::default(),
            loops,
            keep_content: options.keep_content,
            prices: Prices::new(cost),
        };
        Self {
            with_texts: Rules { keep_content: true, ..rules.clone() },
            rules,
            suites: Arc::default(),
            judging: None,
            attention: JudgeAvailability::default(),
            recent_batches: RecentBatches::default(),
            bytes: HeldBytes::default(),
            quietest_with_texts: Quietest::default(),
            requests: Vec::new(),
            embedding: None,
            embed_requests: Vec::new(),
            traces: Traces::default(),
            resources: Resources::default(),
            symbols: Symbols::default(),
            agents: AgentKeys::default(),
            lessons: Lessons::default(),
            calls: Calls::default(),
            ages: Ages::default(),
            quietest: Quietest::default(),
            shares: Shares::default(),
            deadlines: Deadlines::default(),
            sealed_updates: Vec::new(),
            full_sessions: BTreeSet::new(),
            sealed: Sealed::default(),
            turns: Turns::default(),
            waiting: Waiting::new(options.max_waiting_reports, options.report_wait),
            late_reports: Vec::new(),
            paid: BTreeMap::new(),
            counts: Counts::default(),
            options,
        }
    }

    /// Sets the scope that distinguishes sessions with the same id.
    #[must_use]
    pub fn scoped_by(mut self, scope: SessionScope) -> Self {
        (self.rules.scope, self.with_texts.scope) = (scope, scope);
        self
    }

    /// Sets the shares by which tenants divide the bounds.
    #[must_use]
    pub fn shared_by(self, shares: Shares) -> Self {
        Self { shares, ..self }
    }

    /// Sets the expectations that every done trace is checked against.
    #[must_use]
    pub fn expecting(self, suites: Arc<[Suite]>) -> Self {
        Self { suites, ..self }
    }

    /// Asks for judgements of the traces that these rules pick; see [`Self::requests`].
    #[must_use]
    pub fn judging(self, rules: Option<JudgeRules>) -> Self {
        Self { judging: rules, ..self }
    }

    /// Asks for embeddings of the texts of done traces, each text truncated to this many bytes; see [`Self::embed_requests`].
    #[must_use]
    pub fn embedding(self, max_text_bytes: Option<usize>) -> Self {
        Self { embedding: max_text_bytes, ..self }
    }

    /// Applies one input that arrived at `now`.
    pub fn handle(&mut self, input: Input, now: Timestamp) {
        match input {
            Input::Span(span) if span.is_of_turn() => self.add_record_span(*span, now),
            Input::Span(span) => self.span(*span, now),
            Input::Log(log) => self.log(*log, now),
            Input::Report(report) => self.report(*report, now),
            Input::Judged(reply) => self.judged(*reply, now),
            Input::Embedded(id, embedded) => self.embedded(id, embedded, now),
        }
    }

    /// Applies a span of a known trace that arrived alone.
    fn span(&mut self, span: Span, now: Timestamp) {
        if self.recent_batches.is_empty() {
            self.group(iter::once(&span), now);
        } else {
            self.together(SpanBatch::one(span), now);
        }
    }

    /// The next moment at which a timer fires.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let trace = self.deadlines.next();
        trace.into_iter().chain(self.waiting.poll_timeout()).min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp, known: &Learned) {
        self.handle_some_timeouts(now, usize::MAX, known);
    }

    /// Runs at most `at_most` of the timers that are due, the earliest first; returns whether all have run. So when thousands of
    /// traces are done at once, only a few are handled at a time.
    pub fn handle_some_timeouts(
        &mut self,
        now: Timestamp,
        at_most: usize,
        known: &Learned,
    ) -> bool {
        for _ in 0..at_most {
            let due = self.deadlines.first().filter(|(due, _)| *due <= now);
            let Some((due, id)) = due else {
                self.give_up_reports(now);
                return true;
            };
            match self.traces.get(id).map(|held| held.state) {
                None => self.deadlines.remove((due, id)),
                Some(State::Open) => self.look_at_open(id, due, known),
                Some(State::Done | State::Sealed) => {
                    self.learn_at_end(id, known);
                    self.seal(id);
                }
            }
        }
        false
    }

    /// Runs the timers of an open trace: closes it if it is done, and makes it be sent if that is due.
    fn look_at_open(&mut self, id: TraceKey, due: Timestamp, known: &Learned) {
        if self.traces.get(id).is_some_and(|held| held.deadline <= due) {
            self.close_or_wait(id, due, known);
        }
        let Some(held) = self.traces.get_mut(id) else { return };
        if held.state == State::Open && held.tell_at <= due {
            held.tell_at = NEVER;
            self.deadlines.mark(id, held, Pending::Tell);
        }
        self.deadlines.reschedule(id, held);
    }

    /// Ends the input: every trace becomes done, then sealed.
    pub fn finish(&mut self, now: Timestamp, known: &Learned) {
        for id in self.deadlines.traces().collect::<Vec<_>>() {
            if self.traces.get(id).is_some_and(|held| held.state == State::Open) {
                self.close(id, now, OverBy::EndOfInput, known);
            }
            self.seal(id);
        }
        self.give_up_reports(NEVER);
    }

    /// Makes the next drain send all changes, even those that could wait.
    pub fn tell_all(&mut self) {
        for id in self.deadlines.open().collect::<Vec<_>>() {
            let Some(held) = self.traces.get_mut(id) else { continue };
            if mem::replace(&mut held.tell_at, NEVER) != NEVER {
                self.deadlines.mark(id, held, Pending::Tell);
            }
        }
    }

    /// Takes the updates since the last call: tombstones first, then the others in order of trace id. A trace without a named agent
    /// is shown under the one that is `known`.
    pub fn drain(&mut self, known: &Learned) -> Vec<Box<TraceFacts>> {
        let mut updates = Vec::new();
        self.drain_into(&mut updates, known);
        updates
    }

    /// The same, into an empty buffer.
    pub fn drain_into(&mut self, updates: &mut Vec<Box<TraceFacts>>, known: &Learned) {
        self.drain_some_into(updates, AtMost { traces: usize::MAX, spans: usize::MAX }, known);
    }

    /// Takes the updates of `at_most` of the traces that have changed since they were last checked, the first ones in the order of
    /// trace ids; returns whether these were all. So when thousands of traces change at once, they are evaluated a few at a time.
    pub fn drain_some(&mut self, at_most: AtMost, known: &Learned) -> (Vec<Box<TraceFacts>>, bool) {
        let mut updates = Vec::new();
        let all = self.drain_some_into(&mut updates, at_most, known);
        (updates, all)
    }

    fn drain_some_into(
        &mut self,
        updates: &mut Vec<Box<TraceFacts>>,
        at_most: AtMost,
        known: &Learned,
    ) -> bool {
        let mut tombstones = Vec::new();
        updates.append(&mut self.sealed_updates);
        let sealed_updates = updates.len();
        let spans = |id| self.traces.get(id).map_or(0, |held| held.parts.len());
        for id in self.deadlines.take_marked(at_most, spans) {
            tombstones.extend(self.send_update(id, known, updates));
        }
        let all = !self.deadlines.has_marked();
        if all {
            self.recent_batches.forget();
        }
        if sealed_updates > 0 {
            updates.sort_by_key(|update| update.trace_id);
        }
        updates.splice(..0, tombstones);
        all
    }

    /// Adds the update of a trace, if it has news; returns the tombstone for the session to which the trace was sent before.
    fn send_update(
        &mut self,
        id: TraceKey,
        known: &Learned,
        updates: &mut Vec<Box<TraceFacts>>,
    ) -> Option<Box<TraceFacts>> {
        let held = self.traces.get_mut(id)?;
        let look = mem::take(&mut held.look);
        if !held.has_begun() {
            if held.state == State::Sealed {
                let late = held.parts.len() as u64;
                self.remove(id);
                self.counts.add_many("late", "dropped", late);
            }
            return None;
        }
        // Updates of an old trace can wait until it is done again.
        let old = held.is_of_age(held.touched, &self.options);
        let linked = held.is_linked() && !old;
        let due = look == Pending::Tell || held.state != State::Open || linked;
        let is_unsampled = mem::take(&mut held.is_unsampled);
        let may_loop = (is_unsampled || !due) && held.may_loop(&self.rules.loops, &mut self.calls);
        if mem::take(&mut held.root_is_new) && !due {
            self.learn_name_of(id, known);
        }
        let held = self.traces.get_mut(id)?;
        let undecided =
            (is_unsampled || held.leaves_texts_out) && self.decide(id, is_unsampled, may_loop);
        if !due && may_loop && !undecided && self.waits_for_search(id) {
            return None;
        }
        if !due && !(may_loop && (undecided || self.may_have_news(id))) {
            return None;
        }
        let update = self.read_and_ask(id, undecided, known);
        let held = self.traces.get_mut(id)?;
        held.leaves_texts_out = false;
        if !due && !held.has_news(update.as_deref()) {
            return None;
        }
        held.mark_sent();
        if let Some(update) = update.as_ref().filter(|update| is_named(update)) {
            self.learn_name(id, update, known);
        }
        let held = self.traces.get_mut(id)?;
        let session = update.as_ref().and_then(|update| update.session.as_ref());
        let tombstone = held.leave(session, &mut self.symbols);
        match update {
            Some(mut update) => {
                held.stamp(&mut update);
                updates.push(update);
            }
            None if held.state != State::Open && !held.counted_ignored => {
                held.counted_ignored = true;
                self.counts.add("traces_ignored", ignored(&held.parts));
            }
            None => {}
        }
        if held.state == State::Sealed {
            self.remove(id);
        }
        tombstone
    }

    /// Whether an open trace was searched for loops too recently, given its length, to be searched again; its next update is then
    /// due when that is allowed.
    fn waits_for_search(&mut self, id: TraceKey) -> bool {
        let Some(held) = self.traces.get_mut(id) else { return false };
        let Some(again) = held.search() else { return false };
        held.tell_at = held.tell_at.min(again);
        if held.due() < held.queued {
            self.deadlines.reschedule(id, held);
        }
        true
    }

    /// Whether an open trace has a loop, or something was sent about it that may have to be taken back.
    fn may_have_news(&self, id: TraceKey) -> bool {
        let Some(held) = self.traces.get(id) else { return false };
        let trace = || held.parts.view();
        let loops = may_repeat(&held.parts, &self.rules.loops) && has_loop(&trace(), &self.rules);
        debug_assert_eq!(
            loops,
            evaluate(id.id, &trace(), &self.rules, AgentKey::default(), false)
                .is_some_and(|all| !all.loops.is_empty())
        );
        loops || held.has_told()
    }

    /// Counts of inputs that could not be used or changed nothing.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Numbers of spans and log records for which there was no room, since the counts were last restarted.
    pub fn refused(&self) -> Refused {
        let count = |why| ["spans", "logs"].iter().map(|what| self.counts.get(what, why)).sum();
        Refused { trace_full: count(TRACE_FULL), session_full: count(SESSION_FULL) }
    }

    /// Sets all counts to zero.
    pub fn restart_counts(&mut self) {
        self.counts = Counts::default();
    }

    /// The number of traces that can still change.
    pub fn open_traces(&self) -> usize {
        self.traces.len()
    }

    /// Estimated bytes of memory that these take.
    pub fn held_bytes(&self) -> usize {
        self.bytes.all().all
    }

    /// The spans that later prompts may move to another turn, weighed as `assemble.max_turn_spans` does.
    pub fn held_turn_spans(&self) -> usize {
        self.turns.held()
    }

    /// Sets its bounds, in place of `assemble.max_bytes` and `assemble.max_turn_spans`; they are enforced from the next input on.
    pub fn set_room(&mut self, max_bytes: usize, max_turn_spans: usize) {
        self.options.max_bytes = max_bytes;
        self.options.max_turn_spans = max_turn_spans;
    }

    /// Applies spans of one trace that arrived at `now`.
    fn group<'s>(&mut self, spans: impl Iterator<Item = &'s Span> + Clone, now: Timestamp) {
        let Some(first) = spans.clone().next() else { return };
        let sent = TraceKey::from(first);
        match self.turn_of(sent) {
            (id, _) if id == sent => self.group_of(id, spans, now),
            (id, end) => self.further_spans((sent, id), end, spans, now),
        }
    }

    /// Applies spans of one trace, which may be held under another id than the one on the spans.
    fn group_of<'s>(
        &mut self,
        id: TraceKey,
        spans: impl Iterator<Item = &'s Span> + Clone,
        now: Timestamp,
    ) {
        let Some(sent) = spans.clone().next().map(TraceKey::from) else { return };
        if self.is_of_full_session(id, spans.clone(), now) {
            return self.counts.add_many("spans", SESSION_FULL, spans.count() as u64);
        }
        if !self.open((sent, id), now) {
            return self.dropped(id, spans, now);
        }
        let (readers, reads) = (self.has_readers(), self.attention.reads(id.tenant));
        // The texts of a trace that has lost some are not read any more.
        if reads && !readers && self.traces.get(id).is_some_and(|held| !held.lacks_judge_texts) {
            self.make_text_room(id, spans.clone());
        }
        let Self { traces, resources, symbols, counts, options, rules, bytes, .. } = self;
        let keeping = Keeping::new(readers, reads, self.judging.as_ref());
        let Some(held) = traces.get_mut(id) else { return };
        held.note_spending(rules);
        held.parts.spans.expect(spans.clone().count().min(options.max_spans_per_trace));
        let (mut taken, was_rooted, before) = (0, held.is_rooted(), held.bytes());
        let was_cut = held.cut;
        let spared = held.is_spared(now, options);
        for span in spans.clone() {
            let texts = keeping.texts(bytes.after(before, held.bytes()).extra, counts);
            let resource = resources.shared(&span.resource);
            match held.take(span, options, &rules.loops, |spans, span| {
                spans.add(span, resource, symbols, texts)
            }) {
                Ok(added) => {
                    // Of two spans with one id, one is left out, whatever the order of arrival.
                    if added != Added::New {
                        counts.add("spans", "duplicate");
                    }
                    if added == Added::Dropped {
                        continue;
                    }
                    taken += 1;
                }
                Err(why) => {
                    counts.add("spans", why);
                    continue;
                }
            }
            keeping.note(held, span, texts);
            counts.add_many("texts", TRACE_FULL, u64::from(held.slim(options.max_trace_bytes)));
        }
        bytes.change(id, before, held.bytes());
        counts.add_many("traces_partial", FULL, u64::from(held.cut && !was_cut));
        if taken > 0 {
            let rooted = !was_rooted && held.is_rooted();
            held.root_is_new |= rooted;
            self.touch(id, taken, now);
            if rooted && spared {
                self.too_late(spans, now);
            }
        }
        self.make_room();
    }

    /// Notes the arrival of spans or log records of a trace, which reopens it if it was done.
    fn touch(&mut self, id: TraceKey, taken: u64, now: Timestamp) {
        let Some(held) = self.traces.get_mut(id) else { return };
        let reopened = held.touch(taken, now, &self.options);
        self.counts.add_many("late", "revised", u64::from(reopened));
        if reopened {
            self.ages.add(held.opened);
        }
        // For an old trace nothing but its loops is sent before it is done again.
        let tells = reopened && !held.is_of_age(now, &self.options);
        self.deadlines.touched(id, held, tells);
        if reopened {
            self.deadlines.reschedule(id, held);
        }
    }

    fn log(&mut self, log: Log, now: Timestamp) {
        let sent = TraceKey::from(&log);
        let (id, end) = self.turn_of(sent);
        if (id != sent && log.time <= end) || !self.open((sent, id), now) {
            return self.counts.add("late", "dropped");
        }
        let Some(held) = self.traces.get_mut(id) else { return };
        if let Some(other) = held.parts.others.get_or_insert_default().logs.get_mut(&log.id) {
            // Only the position in its request may differ; the lower one is kept.
            other.index = other.index.min(log.index);
            self.counts.add("logs", "duplicate");
        } else if !held.has_room(&self.options) {
            self.counts.add("logs", TRACE_FULL);
            let was_cut = mem::replace(&mut held.cut, true);
            self.counts.add_many("traces_partial", FULL, u64::from(!was_cut));
        } else {
            let before = held.bytes();
            held.note_spending(&self.rules);
            held.note_log(&log, &self.rules.loops);
            held.parts.add_log(log);
            let slims = held.slim(self.options.max_trace_bytes);
            self.counts.add_many("texts", TRACE_FULL, u64::from(slims));
            self.bytes.change(id, before, held.bytes());
            self.touch(id, 1, now);
            self.make_room();
        }
    }

    /// Opens the trace if there is none, given the id on its spans; returns whether it accepts input, which a sealed trace does
    /// not.
    fn open(&mut self, (sent, id): (TraceKey, TraceKey), now: Timestamp) -> bool {
        let state = self.traces.get(id).map(|held| held.state);
        if state.map_or_else(|| self.sealed.contains(id), |state| state == State::Sealed) {
            return false;
        }
        if state.is_none() {
            self.make_room_for_trace(id.tenant);
            let due = now.after(self.options.trace_idle);
            self.ages.add(now);
            let mut held = Box::new(OpenTrace::new(id, now, due));
            held.turn = self.number_of_turn((sent, id));
            self.recent_batches.begins(id, &mut held);
            self.deadlines.insert(&held);
            self.bytes.change(id, Bytes::default(), held.bytes());
            self.traces.insert(held);
            for report in self.take_waiting(id) {
                self.apply_report(id, report, now);
            }
        }
        true
    }

    /// Evaluates the current state of a trace. A done trace is checked against expectations and gets the embedding model's results;
    /// both need its texts, which leave the stage only if content is kept.
    fn read(
        &self,
        held: &OpenTrace,
        trace: &TraceView<'_>,
        agent: AgentKey,
        known: Option<&Learned>,
    ) -> Option<Evaluation> {
        let done = held.state != State::Open;
        if !done || (self.suites.is_empty() && self.embedding.is_none()) {
            let mut update = evaluate(held.id.id, trace, &self.rules, agent, done)?;
            self.name(held, trace, &mut update, known);
            return Some(Evaluation { update, rubrics: Vec::new(), texts: None });
        }
        let mut update = evaluate(held.id.id, trace, &self.with_texts, agent, done)?;
        self.name(held, trace, &mut update, known);
        let none = Judgements::new();
        let judgements = held.judgement.as_ref().map_or(&none, |judgement| judgement.judgements());
        let (expected, rubrics) = expectations(&update, trace, &self.suites, judgements);
        update.expectations = expected;
        let content = update.content.as_ref();
        let texts = self
            .embedding
            .zip(content)
            .and_then(|(max, content)| EmbedRequest::new(held.id, content, max));
        let embedded = held.embedded().zip(texts.as_ref());
        if let Some((embedded, _)) =
            embedded.filter(|(embedded, asked)| embedded.texts == asked.texts)
        {
            embedded.fill(&mut update);
        }
        if !self.rules.keep_content {
            update.content = None;
            update.tools.iter_mut().for_each(|call| call.arguments = None);
        }
        Some(Evaluation { update, rubrics, texts })
    }

    /// Seals a trace; it is removed with the next drain, or at once if all of it was sent.
    fn seal(&mut self, id: TraceKey) {
        if self.traces.get(id).is_some_and(OpenTrace::is_told) {
            let Some(mut held) = self.remove(id) else { return };
            self.sealed_updates.extend(held.sealed_update());
            return self.note_sealed(id, held.ending(&self.options));
        }
        let Some(held) = self.traces.get_mut(id) else { return };
        self.deadlines.remove((held.queued, id));
        if held.state == State::Open {
            self.ages.remove(held.opened);
        }
        self.bytes.change(id, held.bytes(), Bytes::default());
        let ending = held.ending(&self.options);
        held.state = State::Sealed;
        held.revise(1);
        self.deadlines.mark(id, held, Pending::News);
        if held.has_begun() {
            self.note_sealed(id, ending);
        }
    }

    fn remove(&mut self, id: TraceKey) -> Option<Box<OpenTrace>> {
        let held = self.traces.remove(id)?;
        self.bytes.change(id, held.bytes(), Bytes::default());
        self.deadlines.remove((held.queued, id));
        Some(held)
    }
}

/// The reason for leaving out spans and log records of a full trace.
const TRACE_FULL: &str = "trace_full";

/// The reason counted for a trace that is partial because spans or log records were left out.
const FULL: &str = "full";

/// Whether an update's agent can be trusted: once the root has arrived, later spans seldom name another one.
fn is_named(update: &TraceFacts) -> bool {
    let named = update.agent.as_ref().is_some_and(|agent| !agent.agent_name.is_empty());
    !update.uncertain || (update.complete && named)
}

/// When a trace without news has to be sent.
const NEVER: Timestamp = Timestamp(u64::MAX);

#[cfg(test)]
mod tests;
