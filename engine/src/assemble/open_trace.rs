//! A trace that can still change.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calls::Calls;
use super::judgement::{PendingJudgement, Questions};
use super::sealed::Ending;
use super::{NEVER, TRACE_FULL};
use crate::convention::whole_words;
use crate::embedding::Embedded;
use crate::facts::{
    AgentKey, CountedUsage, Loop, OverBy, SessionKey, ToldLoops, TraceFacts, TraceState,
};
use crate::judging::{JudgeRequest, JudgeRules};
use crate::loops;
use crate::options::{AssembleOptions, LoopOptions};
use crate::span::{Log, Operation, Pause, RECORD_SCOPE, REPORTED_LOOP, Span, Timestamp};
use crate::tenants::TraceKey;
use crate::trace::{
    Added, Rules, Spans, Symbol, Symbols, TraceContents, TraceView, Transcript, evaluate,
    transcript,
};

/// What the session has counted for a trace, by its last update.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum Counted {
    /// Nothing, as the update was uncertain.
    Nothing,
    /// What counts for an open trace.
    Open,
    /// All that it had when it was done.
    Done,
}

/// A trace, and what was sent about it.
#[derive(Debug, Deserialize, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is true or not by itself")]
pub(super) struct OpenTrace {
    // Serialised beside the trace.
    #[serde(skip)]
    pub(super) id: TraceKey,
    /// The number of the turn under its trace id: zero is the first, and each later turn is held under an id of its own.
    pub(super) turn: u16,
    pub(super) parts: TraceContents,
    revision: u64,
    pub(super) opened: Timestamp,
    pub(super) touched: Timestamp,
    /// When the newest span or log record arrived.
    pub(super) heard: Timestamp,
    /// When it was last done.
    closed: Timestamp,
    /// When it is sealed, or checked for being done.
    pub(super) deadline: Timestamp,
    pub(super) state: State,
    pub(super) partial: bool,
    /// Whether something of its agent's activity was left out for want of room.
    pub(super) cut: bool,
    /// Why it is considered done, or is not yet.
    pub(super) evidence: OverBy,
    pub(super) without_root: WithoutRoot,
    /// Whether it is a turn from log records, and its session has a later turn.
    #[serde(default)]
    pub(super) followed: bool,
    counted: Counted,
    /// Whether its root has arrived since it was last checked.
    #[serde(skip)]
    pub(super) root_is_new: bool,
    sent: Option<Box<AnnouncedSession>>,
    // Few traces have any.
    told: Option<Box<Announced>>,
    /// Whether it has a span that a convention recognised and that does not belong to an evaluator.
    recognised: bool,
    pub(super) counted_ignored: bool,
    /// Whether it was sent as done, or found to have nothing to send, and nothing has arrived since.
    done_told: bool,
    /// Whether texts that a judge would have read were left out or dropped.
    pub(super) lacks_judge_texts: bool,
    /// Whether its root shows that it is unsampled and not flagged, and it has not been checked for loops yet.
    #[serde(skip)]
    pub(super) is_unsampled: bool,
    /// Whether its texts are left out, but are still in the batches since the last drain.
    #[serde(skip)]
    pub(super) leaves_texts_out: bool,
    /// Whether a judge may read it: something other than a tool call failed, or a root does not show that it is unsampled.
    pub(super) wanted: bool,
    /// When changes of the open trace have to be sent at the latest.
    pub(super) tell_at: Timestamp,
    /// The time of its entry among the deadlines; never later than its deadline.
    #[serde(skip)]
    pub(super) queued: Timestamp,
    /// Whether the next drain checks it.
    #[serde(skip)]
    pub(super) look: Pending,
    #[serde(skip)]
    signs: Signs,
    // Counts of its calls, if it is long and they were needed.
    #[serde(skip)]
    calls: Option<Box<Calls>>,
    /// Whether it has been decided if its metrics are judged.
    pub(super) decided: bool,
    /// Present only if a judge was asked.
    pub(super) judgement: Option<Box<PendingJudgement>>,
    /// Present only if an embedding model was asked.
    pub(super) embedding: Option<Box<PendingEmbedding>>,
}

/// The session to which a trace was sent; names that many sessions have in common are shared.
#[derive(Debug, Deserialize, Serialize)]
struct AnnouncedSession {
    tenant: Symbol,
    scope: Symbol,
    source: Symbol,
    id: Arc<str>,
}

/// The judge for which a request is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    /// The rules for what it is asked.
    pub(super) rules: &'a JudgeRules,
    /// Whether it does not read transcripts at present.
    pub(super) unread: bool,
}

/// What an embedding model was asked about a trace, and its answer.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct PendingEmbedding {
    /// Hash of the texts that were last sent to it.
    pub(super) asked: Option<u64>,
    /// Its results for these texts or earlier ones.
    pub(super) embedded: Option<Embedded>,
}

/// The state of a trace.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum State {
    Open,
    Done,
    Sealed,
}

/// What was learned from the missing root of a trace, or from others about it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum WithoutRoot {
    /// Nothing.
    Unnoticed,
    /// It was quiet for `rootless_idle` without a root, and that was learned from it.
    Quiet,
    /// When it was done, it would have been made final early, had roots of its service not arrived late.
    Spared,
}

/// Whether the next drain checks a trace.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Pending {
    /// Nothing has arrived.
    #[default]
    No,
    /// Something has arrived; it may not be worth sending.
    News,
    /// Something has arrived that must be sent.
    Tell,
}

/// Signs of whether a trace is worth evaluating. A sign may be present without reason, but is never missing.
#[derive(Clone, Debug, Default)]
struct Signs {
    /// Whether it has a span without a parent.
    rooted: bool,
    /// Whether its root is from a log record, so that its end is not known.
    turn: bool,
    /// Whether an agent was invoked.
    invoked: bool,
    /// When the last span without a parent ended.
    root_end: Timestamp,
    /// The last time that the agent stopped to wait for a person, or continued; few traces have any.
    pause: Option<Box<Pause>>,
    /// Number of tool spans.
    tools: u32,
    /// Number of calls in the output of models and in log records.
    called: u32,
}

impl PendingEmbedding {
    /// Whether the answer to the last question has not arrived.
    pub(super) fn is_open(&self) -> bool {
        self.asked != self.embedded.as_ref().map(|embedded| embedded.texts)
    }
}

/// What was sent to sessions and may have to be taken back.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Announced {
    // Few traces have loops.
    loops: Option<Box<AnnouncedLoops>>,
    // The usage of a done trace that was reopened: as sent to its present session, and to the last one that it left.
    spending: Option<CountedUsage>,
    spent: Option<CountedUsage>,
}

/// The loops that were sent to sessions.
#[derive(Debug, Default, Deserialize, Serialize)]
struct AnnouncedLoops {
    // By agent: loops sent to the present session of the trace, and to those that it left.
    telling: BTreeMap<AgentKey, Vec<Loop>>,
    left: BTreeMap<AgentKey, Vec<Loop>>,
    // Loops sent while nothing was counted, and the agent under which they were sent.
    shown: (AgentKey, Vec<Loop>),
}

/// Number of spans from which on calls are counted on arrival.
const LONG: usize = 256;

/// The pause between two searches of such a trace, for each of its spans: searches take a small part of the time, however often
/// spans arrive.
const PAUSE_PER_SPAN: Duration = Duration::from_micros(100);

/// How long a trace is held whose agent reported that it waits for a person, in multiples of `trace_max_age`.
const LONG_PAUSE: u32 = 24;

impl OpenTrace {
    /// A trace that begins at `now`.
    pub(super) fn new(id: TraceKey, now: Timestamp, deadline: Timestamp) -> Self {
        Self {
            id,
            turn: 0,
            parts: TraceContents::default(),
            revision: 0,
            opened: now,
            touched: now,
            heard: now,
            closed: now,
            deadline,
            state: State::Open,
            partial: false,
            cut: false,
            evidence: OverBy::default(),
            without_root: WithoutRoot::Unnoticed,
            followed: false,
            counted: Counted::Nothing,
            root_is_new: false,
            sent: None,
            told: None,
            recognised: false,
            counted_ignored: false,
            done_told: false,
            lacks_judge_texts: false,
            is_unsampled: false,
            leaves_texts_out: false,
            wanted: false,
            tell_at: NEVER,
            queued: deadline,
            look: Pending::No,
            signs: Signs::default(),
            calls: None,
            decided: false,
            judgement: None,
            embedding: None,
        }
    }

    /// Whether the trace is done, was sent as such, and was counted.
    pub(super) fn is_told(&self) -> bool {
        let done =
            self.state == State::Done && (self.counted != Counted::Nothing || self.sent.is_none());
        done && self.done_told
    }

    /// Notes that the current state of the trace is sent.
    pub(super) fn mark_sent(&mut self) {
        self.tell_at = NEVER;
        self.done_told = self.state == State::Done;
        if self.done_told {
            // It waits only for late spans, which most traces do not get.
            self.calls = None;
            self.parts.spans.fit();
        }
    }

    /// Raises the revision by a number of changes that are not sent yet.
    pub(super) fn revise(&mut self, changes: u64) {
        self.revision += changes;
        self.done_told = false;
    }

    /// The last update of a trace that was sent except for being sealed; `None` if no session knows the trace.
    pub(super) fn sealed_update(&mut self) -> Option<Box<TraceFacts>> {
        let sent = self.sent.take()?;
        let mut last = Box::<TraceFacts>::default();
        last.trace_id = self.id.id;
        last.revision = self.revision + 1;
        last.state = TraceState::Sealed;
        last.session = Some(sent.into_key());
        last.unchanged = true;
        Some(last)
    }

    /// The judge's questions and answers; added empty if there are none.
    pub(super) fn judgement(&mut self) -> &mut PendingJudgement {
        let decided = self.decided;
        self.judgement.get_or_insert_with(|| Box::new(PendingJudgement::new(decided)))
    }

    /// The embedding model's results for its texts.
    pub(super) fn embedded(&self) -> Option<&Embedded> {
        self.embedding.as_ref()?.embedded.as_ref()
    }

    /// The request to the judge.
    pub(super) fn request(
        &self,
        trace: &TraceView<'_>,
        update: &TraceFacts,
        questions: Questions,
        reader: Reader<'_>,
    ) -> JudgeRequest {
        let Reader { rules, unread } = reader;
        let (metrics, mut rubrics) = questions;
        let mut truncated = false;
        for judged in rubrics.iter_mut().filter_map(|rubric| rubric.judged.as_mut()) {
            let kept = whole_words(&judged.text, rules.max_transcript_bytes).len();
            truncated |= kept < judged.text.len();
            judged.text.truncate(kept);
        }
        let unread = unread || self.lacks_judge_texts;
        let read = || transcript(trace, rules.max_transcript_bytes);
        let (mut transcript, root) = if unread { (Transcript::default(), None) } else { read() };
        transcript.truncated |= truncated;
        let (trace_id, agent) = (self.id.id, update.agent.clone().unwrap_or_default());
        let answered = self
            .judgement
            .as_ref()
            .map(|judgement| judgement.answered().clone())
            .unwrap_or_default();
        JudgeRequest { trace_id, root, agent, metrics, rubrics, transcript, unread, answered }
    }

    /// Fills in what is not serialised.
    pub(super) fn restored(&mut self, symbols: &mut Symbols) {
        self.parts.restored(symbols);
        self.sent =
            self.sent.take().map(|sent| Box::new(AnnouncedSession::of(&sent.into_key(), symbols)));
        let spans = &self.parts.spans;
        let tools = spans.operations().filter(|operation| *operation == Operation::ExecuteTool);
        self.signs = Signs {
            rooted: spans.has_root(),
            turn: spans.has_root_of(RECORD_SCOPE),
            invoked: spans.operations().any(|operation| operation == Operation::InvokeAgent),
            root_end: spans.root_end().unwrap_or_default(),
            pause: spans.pause().map(Box::new),
            tools: count(tools.count()),
            called: if spans.reports_loop() { MANY } else { count(spans.calls_of_models()) },
        };
        self.parts.logs().for_each(|log| self.signs.note_log(log));
        self.queued = self.due();
    }

    /// Drops the texts that only a judge would have read.
    pub(super) fn drop_texts(&mut self) {
        (self.lacks_judge_texts, self.leaves_texts_out) = (true, false);
        self.parts.spans.drop_readable_texts();
    }

    /// When the trace has to be checked.
    pub(super) fn due(&self) -> Timestamp {
        if self.state == State::Open { self.deadline.min(self.tell_at) } else { self.deadline }
    }

    /// Adds a span if there is room, else returns the reason; of two spans with one id, one is kept.
    pub(super) fn take(
        &mut self,
        span: &Span,
        options: &AssembleOptions,
        loops: &LoopOptions,
        add: impl FnOnce(&mut Spans, &Span) -> Added,
    ) -> Result<Added, &'static str> {
        if !self.has_room_for(span, options) && !self.parts.spans.contains(span.span_id) {
            self.cut |= span.operation != Operation::Other;
            return Err(TRACE_FULL);
        }
        let added = add(&mut self.parts.spans, span);
        if added != Added::Dropped {
            self.note(span, loops);
        }
        Ok(added)
    }

    /// Notes that `new` spans or log records were applied: the trace is open again and its timer restarts, unless it is older than
    /// `trace_max_age`. Returns whether it was done.
    pub(super) fn touch(&mut self, new: u64, now: Timestamp, options: &AssembleOptions) -> bool {
        self.revise(new);
        self.touched = self.touched.max(now);
        self.heard = self.heard.max(now);
        let reopened = self.state == State::Done;
        self.deadline = self.quiet_at(now, options);
        if reopened {
            self.revise(1);
            self.state = State::Open;
        }
        self.wait_to_tell(now, options);
        reopened
    }

    /// Makes changes of the trace be sent after `trace_idle`, if nothing sends them before.
    pub(super) fn wait_to_tell(&mut self, now: Timestamp, options: &AssembleOptions) {
        if self.tell_at == NEVER {
            self.tell_at = now.after(options.trace_idle);
        }
    }

    /// When the trace is checked after an arrival. A trace older than `trace_max_age` is done again `trace_idle` after the last
    /// time, so that it is evaluated no more often than others.
    fn quiet_at(&self, now: Timestamp, options: &AssembleOptions) -> Timestamp {
        if !self.is_of_age(now, options) {
            return now.after(options.trace_idle).min(self.oldest(options));
        }
        match self.state {
            State::Open | State::Sealed => self.deadline,
            State::Done => self.closed.after(options.trace_idle).max(now),
        }
    }

    /// Whether it is older than `trace_max_age`.
    pub(super) fn is_of_age(&self, now: Timestamp, options: &AssembleOptions) -> bool {
        self.opened.after(options.trace_max_age) <= now
    }

    /// When the trace is done, whatever is missing.
    pub(super) fn oldest(&self, options: &AssembleOptions) -> Timestamp {
        self.opened.after(options.trace_max_age).max(self.heard)
    }

    /// When the trace is done by this evidence, if nothing more arrives.
    pub(super) fn done_at(&self, evidence: OverBy, options: &AssembleOptions) -> Timestamp {
        let oldest = self.oldest(options);
        if self.waits() {
            return oldest;
        }
        let quiet = match evidence {
            OverBy::ParentsCome | OverBy::LocalParent if self.is_agents() => return oldest,
            OverBy::NothingKnown | OverBy::ParentsCome | OverBy::LocalParent => {
                options.rootless_idle
            }
            OverBy::Root if self.goes_on() => options.rootless_idle,
            OverBy::Root
            | OverBy::RemoteParent
            | OverBy::ParentsNeverCome
            | OverBy::Age
            | OverBy::Room
            | OverBy::EndOfInput => options.trace_idle,
        };
        self.heard.after(quiet).min(oldest)
    }

    /// Makes the trace done. Without its root it can be reopened until it was quiet for `trace_max_age`, unless such roots never
    /// arrive. So can a turn that nothing has ended. If its agent waits for a person, that time is `LONG_PAUSE` times as long.
    pub(super) fn close(
        &mut self,
        now: Timestamp,
        evidence: OverBy,
        never: bool,
        options: &AssembleOptions,
    ) {
        self.state = State::Done;
        self.evidence = evidence;
        self.revise(1);
        self.closed = now;
        self.deadline = now.after(options.late_horizon);
        let quiet = options.trace_max_age;
        if self.goes_on() || (evidence != OverBy::Root && self.is_agents() && !never) {
            self.deadline = self.deadline.max(self.heard.after(quiet));
        }
        if self.waits() {
            self.deadline = self.deadline.max(self.heard.after(quiet.saturating_mul(LONG_PAUSE)));
        }
    }

    /// Whether it waits for a root at `now` only because others arrived late.
    pub(super) fn is_spared(&self, now: Timestamp, options: &AssembleOptions) -> bool {
        let early = self.heard.after(options.trace_idle).after(options.late_horizon);
        self.without_root == WithoutRoot::Spared && self.state == State::Done && early <= now
    }

    /// Whether its root was expected, and was or is waited for until the trace is older than `trace_max_age`.
    pub(super) fn waits_for_root(&self) -> bool {
        matches!(self.evidence, OverBy::Age | OverBy::ParentsCome | OverBy::LocalParent)
    }

    /// Whether it becomes final without its root before it is older than `trace_max_age`, as such roots never arrive.
    pub(super) fn ends_early(&self, options: &AssembleOptions) -> bool {
        let waits = matches!(self.evidence, OverBy::Room | OverBy::EndOfInput) || self.followed;
        let early = self.state == State::Done && self.deadline < self.oldest(options);
        early && !waits && !self.is_rooted() && self.is_agents()
    }

    /// Shortens the wait, as another turn has begun: only late spans are waited for.
    pub(super) fn shorten(&mut self, now: Timestamp, options: &AssembleOptions) {
        let wait = match self.state {
            State::Open => options.trace_idle,
            State::Done | State::Sealed => options.late_horizon,
        };
        self.deadline = self.deadline.min(now.after(wait));
    }

    /// Whether the trace is a turn that only the next one ends, which has not begun.
    fn goes_on(&self) -> bool {
        self.signs.turn && !self.followed
    }

    /// Whether something continued after its root had ended; only the next turn ends a turn from log records.
    fn outlasts_root(&self) -> bool {
        !self.signs.turn && self.parts.spans.outlast_root()
    }

    /// Whether its root has arrived and shows its end: nothing ended after it, or at least no parent is missing.
    pub(super) fn root_tells_end(&self) -> bool {
        self.is_rooted() && !(self.outlasts_root() && self.parts.spans.lack_parent())
    }

    /// Whether its agent waits for a person, and its root has not ended.
    fn waits(&self) -> bool {
        let waits = |pause: &Pause| pause.waits && self.signs.root_end < pause.at;
        !self.followed && self.signs.pause.as_deref().is_some_and(waits)
    }

    /// Whether a model, a tool or an agent is at work in it, or may be later: some libraries record parts of an agent's run, such
    /// as guardrails, as spans, and the innermost of them end first.
    pub(super) fn is_agents(&self) -> bool {
        let behaves = |operation| {
            matches!(operation, Operation::Chat | Operation::ExecuteTool | Operation::InvokeAgent)
        };
        self.recognised || self.parts.spans.operations().any(behaves)
    }

    /// Notes the signs of a span that is added.
    fn note(&mut self, span: &Span, options: &LoopOptions) {
        self.signs.note(span);
        self.recognised |= span.convention.is_some() && span.operation != Operation::Evaluation;
        self.calls.iter_mut().for_each(|calls| calls.note(span, options));
    }

    /// Notes the signs of a log record that is added.
    pub(super) fn note_log(&mut self, log: &Log, options: &LoopOptions) {
        self.signs.note_log(log);
        self.calls.iter_mut().for_each(|calls| calls.note_log(log, options));
    }

    /// Whether it has a span without a parent.
    pub(super) fn is_rooted(&self) -> bool {
        self.signs.rooted
    }

    /// Whether it has a span without a parent or an agent's span, and an agent is at work.
    pub(super) fn begins(&self) -> bool {
        self.signs.invoked || (self.signs.rooted && self.is_agents())
    }

    /// How it ended, for sealing.
    pub(super) fn ending(&self, options: &AssembleOptions) -> Ending {
        let logs = self.parts.logs().map(|log| log.time);
        let end = self.parts.spans.end().into_iter().chain(logs).max().unwrap_or_default();
        Ending {
            // A trace that lost its place for want of room gets no further turn.
            end: if self.evidence == OverBy::Room { Timestamp(u64::MAX) } else { end },
            turns: self.turn.saturating_add(1),
            rootless: !self.is_rooted(),
            early: self.ends_early(options),
        }
    }

    /// Whether the trace may continue the previous one, or be continued by the next: then a loop may span both. This requires the
    /// root, as the span that invokes an agent ends last.
    pub(super) fn is_linked(&self) -> bool {
        self.signs.rooted && (!self.signs.invoked || self.parts.spans.goes_on())
    }

    /// Notes that the trace is searched for loops now; if it is long, and was searched recently, returns when it may be searched
    /// instead.
    pub(super) fn search(&mut self) -> Option<Timestamp> {
        let spans = count(self.parts.spans.len());
        let calls = self.calls.as_mut()?;
        let again = calls.searched.after(PAUSE_PER_SPAN.saturating_mul(spans));
        if self.touched < again {
            return Some(again);
        }
        calls.searched = self.touched;
        None
    }

    /// Whether the trace may have a loop: a tool that is not allowed to repeat was called often enough. `few` is a buffer to count
    /// the calls of a short trace.
    pub(super) fn may_loop(&mut self, options: &LoopOptions, few: &mut Calls) -> bool {
        let least = loops::least(options);
        let Signs { tools, called, .. } = self.signs;
        if tools.saturating_add(called) < count(least.known.min(least.names)) {
            return false;
        }
        let (parts, tools) = (&self.parts, usize::try_from(tools).unwrap_or(usize::MAX));
        if parts.spans.len() < LONG {
            few.count(parts, options);
            return few.may_loop(tools, options);
        }
        let calls = self.calls.get_or_insert_with(|| {
            let mut calls = Box::<Calls>::default();
            calls.count(parts, options);
            calls
        });
        calls.may_loop(tools, options)
    }

    /// Whether anything was sent to sessions that may have to be taken back.
    pub(super) fn has_told(&self) -> bool {
        self.told.is_some()
    }

    /// Whether the loops of an update differ from those that were sent.
    pub(super) fn has_news(&self, update: Option<&TraceFacts>) -> bool {
        let Some(update) = update else { return false };
        let agent = update.agent.clone().unwrap_or_default();
        let told = self.told.as_ref().and_then(|told| told.loops.as_ref()).and_then(|told| {
            let shown = Some(&told.shown).filter(|(of, _)| *of == agent).map(|(_, loops)| loops);
            if update.uncertain { shown } else { told.telling.get(&agent) }
        });
        told.map_or(&[][..], Vec::as_slice) != update.loops
    }

    /// Notes the session to which the trace is sent; returns the tombstone for the previous one, if that was another.
    pub(super) fn leave(
        &mut self,
        session: Option<&SessionKey>,
        symbols: &mut Symbols,
    ) -> Option<Box<TraceFacts>> {
        let stays = match (&self.sent, session) {
            (Some(sent), Some(session)) => sent.is(session),
            (sent, session) => sent.is_none() && session.is_none(),
        };
        if stays {
            return None;
        }
        let sent = session.map(|session| Box::new(AnnouncedSession::of(session, symbols)));
        let old = mem::replace(&mut self.sent, sent)?;
        if let Some(told) = &mut self.told {
            if let Some(loops) = &mut told.loops {
                loops.left.append(&mut loops.telling);
            }
            told.spent = told.spending.take().or(told.spent);
        }
        Some(Box::new(TraceFacts {
            trace_id: self.id.id,
            revision: self.revision,
            tombstone: true,
            session: Some(old.into_key()),
            ..TraceFacts::default()
        }))
    }

    /// Before anything more is added, notes what its session has counted, if it was sent there as done: the trace may then move to
    /// another session, which must not count this again.
    pub(super) fn note_spending(&mut self, rules: &Rules) {
        if self.counted != Counted::Done {
            return;
        }
        self.counted = Counted::Open;
        let all = evaluate(self.id.id, &self.parts.view(), rules, AgentKey::default(), true);
        if let Some(all) = all {
            self.told.get_or_insert_default().spending = Some(CountedUsage::of(&all));
        }
    }

    /// Fills in what the stage knows, and notes what the update reports.
    pub(super) fn stamp(&mut self, update: &mut TraceFacts) {
        if !update.loops.is_empty() {
            let told = self.told.get_or_insert_default().loops.get_or_insert_default();
            if update.uncertain {
                told.shown = (update.agent.clone().unwrap_or_default(), update.loops.clone());
            } else {
                told.shown = Default::default();
                told.telling.insert(update.agent.clone().unwrap_or_default(), update.loops.clone());
            }
        }
        self.counted = match self.state {
            _ if update.uncertain => Counted::Nothing,
            State::Done => Counted::Done,
            State::Open | State::Sealed => Counted::Open,
        };
        update.state = match self.state {
            State::Open => TraceState::Open,
            State::Done => TraceState::Done,
            State::Sealed => TraceState::Sealed,
        };
        update.revision = self.revision;
        update.turn = self.turn;
        update.touched_unix_nano = self.touched.0;
        update.last_heard_unix_nano = update.last_heard_unix_nano.max(self.heard.0);
        (update.partial, update.evidence) = (self.partial || self.cut, self.evidence);
        update.told = self.told.as_ref().map(|told| told.to_sessions()).unwrap_or_default();
    }
}

impl AnnouncedSession {
    fn of(key: &SessionKey, symbols: &mut Symbols) -> Self {
        let [tenant, scope, source] =
            [&key.tenant, &key.scope, &key.source].map(|name| symbols.of(name));
        Self { tenant, scope, source, id: Arc::clone(&key.id) }
    }

    fn is(&self, key: &SessionKey) -> bool {
        *self.id == *key.id
            && *self.scope == *key.scope
            && *self.source == *key.source
            && *self.tenant == *key.tenant
    }

    fn into_key(self) -> SessionKey {
        SessionKey {
            tenant: Arc::clone(self.tenant.text()),
            id: self.id,
            scope: Arc::clone(self.scope.text()),
            source: Arc::clone(self.source.text()),
        }
    }
}

impl Announced {
    /// What was sent to the sessions that the trace left.
    fn to_sessions(&self) -> Vec<ToldLoops> {
        let left = self.loops.iter().flat_map(|loops| &loops.left);
        let loops = left.map(|(agent, loops)| ToldLoops {
            agent: Some(agent.clone()),
            loops: loops.clone(),
            spent: None,
        });
        let spent =
            self.spent.map(|spent| ToldLoops { spent: Some(spent), ..ToldLoops::default() });
        loops.chain(spent).collect()
    }
}

impl Signs {
    fn note(&mut self, span: &Span) {
        self.rooted |= span.parent.is_none();
        if span.parent.is_none() {
            self.root_end = self.root_end.max(span.end);
        }
        self.note_pause(span.remarks.as_ref().and_then(|remarks| remarks.pause));
        self.turn |= span.parent.is_none() && span.scope == RECORD_SCOPE;
        self.invoked |= span.operation == Operation::InvokeAgent;
        self.tools += u32::from(span.operation == Operation::ExecuteTool);
        let called = span.model.as_ref().map_or(0, |model| model.tool_calls.len());
        let called = if is_report_of_loop(span) { MANY } else { count(called) };
        self.called = self.called.saturating_add(called);
    }

    fn note_log(&mut self, log: &Log) {
        self.called = self.called.saturating_add(count(log.tool_calls.len()));
        self.note_pause(log.pause);
    }

    fn note_pause(&mut self, pause: Option<Pause>) {
        if self.pause.as_deref() < pause.as_ref() {
            self.pause = pause.map(Box::new);
        }
    }
}

/// The number of calls of a loop that the agent itself reports: enough for any threshold.
const MANY: u32 = u32::MAX;

fn is_report_of_loop(span: &Span) -> bool {
    span.scope == RECORD_SCOPE && &*span.name == REPORTED_LOOP
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
