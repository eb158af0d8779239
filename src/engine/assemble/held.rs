//! A trace that can still change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::NEVER;
use super::calls::Calls;
use super::hearing::{Asked, Hearing};
use crate::engine::embedding::Embedded;
use crate::engine::judging::{JudgeRequest, JudgeRules};
use crate::engine::loops;
use crate::engine::options::LoopOptions;
use crate::engine::span::{Log, Operation, SpanId, Timestamp, TraceId};
use crate::engine::trace::{Laid, Parts, Sign, Transcript, transcript, whole_words};
use crate::engine::update::{
    AgentKey, Loop, SessionKey, Spent, ToldLoops, TraceState, TraceUpdate,
};

/// A trace, and what was told of it.
#[derive(Debug, Deserialize, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is true or not by itself")]
pub(super) struct Held {
    pub(super) parts: Parts,
    /// Who sent its first part. Nobody else can add to it; before there were tenants all was nobody's.
    #[serde(default)]
    pub(super) tenant: Option<Arc<str>>,
    pub(super) revision: u64,
    pub(super) opened: Timestamp,
    pub(super) touched: Timestamp,
    /// When it is done, or sealed.
    pub(super) deadline: Timestamp,
    pub(super) state: State,
    pub(super) partial: bool,
    sent: Option<Box<SessionKey>>,
    // Loops by agent, as told to the session it is in, and to those that it left.
    telling: BTreeMap<AgentKey, Vec<Loop>>,
    told: BTreeMap<AgentKey, Vec<Loop>>,
    // Likewise what it has spent, of one that was done without a root: that counts before its session is known.
    #[serde(default)]
    spending: Option<Box<Spent>>,
    #[serde(default)]
    spent: Option<Box<Spent>>,
    pub(super) counted_ignored: bool,
    /// The revision at which it was last told, or found to have nothing to tell, as one that is done.
    #[serde(default)]
    pub(super) done_at: Option<u64>,
    /// Texts of it were left out, as a judge was away or had too much to do.
    #[serde(default)]
    pub(super) untold: bool,
    /// As its root stands, it is neither sampled nor flagged: nobody has been asked yet whether it has a loop.
    #[serde(skip)]
    pub(super) passed_over: bool,
    /// Its texts are not in it; what came since the last drain has them.
    #[serde(skip)]
    pub(super) bare: bool,
    /// Something failed that is no tool call, or a root does not pass it over: it may be for a judge to read.
    #[serde(default, alias = "failed")]
    pub(super) wanted: bool,
    /// When what is new of it while it is open has to be told at the latest.
    #[serde(default = "never")]
    pub(super) tell_at: Timestamp,
    /// Where its entry among the deadlines is; never later than it is due.
    #[serde(skip)]
    pub(super) queued: Timestamp,
    /// Whether it is among those to look at with the next drain.
    #[serde(skip)]
    pub(super) look: Look,
    #[serde(skip)]
    signs: Signs,
    #[serde(skip)]
    calls: Calls,
    /// Whether its metrics are judged has been decided.
    #[serde(default)]
    pub(super) decided: bool,
    /// Present only where a judge was asked.
    #[serde(default)]
    pub(super) hearing: Option<Box<Hearing>>,
    /// The texts that an embedding model was asked about, and what it made of them.
    #[serde(default)]
    pub(super) texts_asked: Option<u64>,
    #[serde(default)]
    pub(super) embedded: Option<Box<Embedded>>,
}

/// Where a trace stands.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum State {
    Open,
    Done,
    Sealed,
}

/// Whether a trace is to be looked at.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Look {
    /// Nothing has come.
    #[default]
    No,
    /// Something has come; it may not be worth telling.
    News,
    /// What has come has to be told.
    Tell,
}

/// What tells, without reading a trace, whether it is worth it. Signs may be there for nothing, never the other way round.
#[derive(Clone, Copy, Debug, Default)]
struct Signs {
    /// A span without a parent is in.
    rooted: bool,
    /// An agent was invoked: it begins with a question and ends with an answer...
    invoked: bool,
    /// ...unless its first model call's input ends with something else.
    first_model: Option<(Timestamp, Timestamp, SpanId)>,
    goes_on: bool,
    /// Tool spans, and calls in the output of models.
    tools: usize,
    called: usize,
}

impl Held {
    /// A trace of this tenant that was not there before `now`.
    pub(super) fn new(tenant: Option<Arc<str>>, now: Timestamp, deadline: Timestamp) -> Self {
        Self {
            parts: Parts::default(),
            tenant,
            revision: 0,
            opened: now,
            touched: now,
            deadline,
            state: State::Open,
            partial: false,
            sent: None,
            telling: BTreeMap::new(),
            told: BTreeMap::new(),
            spending: None,
            spent: None,
            counted_ignored: false,
            done_at: None,
            untold: false,
            passed_over: false,
            bare: false,
            wanted: false,
            tell_at: NEVER,
            queued: deadline,
            look: Look::No,
            signs: Signs::default(),
            calls: Calls::none(),
            decided: false,
            hearing: None,
            texts_asked: None,
            embedded: None,
        }
    }

    /// Whether it is done and nothing has come since that was told.
    pub(super) fn is_told(&self) -> bool {
        self.state == State::Done && self.done_at == Some(self.revision)
    }

    /// That nothing more will come of a trace of which everything else was told; `None` if nobody knows of it.
    pub(super) fn farewell(&self, id: TraceId) -> Option<TraceUpdate> {
        Some(TraceUpdate {
            trace_id: id.0.to_vec(),
            revision: self.revision + 1,
            state: TraceState::Sealed.into(),
            session: Some(self.sent.as_deref()?.clone()),
            unchanged: true,
            ..TraceUpdate::default()
        })
    }

    /// The trace before the judge.
    pub(super) fn hearing(&mut self) -> &mut Hearing {
        let decided = self.decided;
        self.hearing.get_or_insert_with(|| Box::new(Hearing::new(decided)))
    }

    /// What the judge is given.
    pub(super) fn request(
        &self,
        (trace_id, trace): (TraceId, &Laid<'_>),
        update: &TraceUpdate,
        (metrics, mut rubrics): Asked,
        (rules, unread): (&JudgeRules, bool),
    ) -> JudgeRequest {
        for judged in rubrics.iter_mut().filter_map(|rubric| rubric.judged.as_mut()) {
            let kept = whole_words(&judged.text, rules.max_transcript_bytes).len();
            judged.text.truncate(kept);
        }
        let unread = unread || self.untold;
        let read = || transcript(trace, rules.max_transcript_bytes);
        let (transcript, root) = if unread { (Transcript::default(), None) } else { read() };
        let agent = update.agent.clone().unwrap_or_default();
        let answered =
            self.hearing.as_ref().map(|hearing| hearing.answered().clone()).unwrap_or_default();
        JudgeRequest { trace_id, root, agent, metrics, rubrics, transcript, unread, answered }
    }

    /// Fills in what is not written down.
    pub(super) fn restored(&mut self) {
        self.parts.spans.count_texts();
        self.parts.spans.signs().for_each(|sign| self.signs.note(sign));
        self.parts.logs.values().for_each(|log| self.signs.note_log(log));
        self.queued = self.due();
    }

    /// Does without the texts that only a judge would have read.
    pub(super) fn forgo_texts(&mut self) {
        (self.untold, self.bare) = (true, false);
        self.parts.spans.forgo();
    }

    /// When it has to be looked at.
    pub(super) fn due(&self) -> Timestamp {
        if self.state == State::Open { self.deadline.min(self.tell_at) } else { self.deadline }
    }

    /// Takes the sign of a span that is added.
    pub(super) fn note(&mut self, sign: Sign) {
        self.signs.note(sign);
        self.calls.note(sign);
    }

    /// Takes the signs of a log record that is added.
    pub(super) fn note_log(&mut self, log: &Log) {
        self.signs.note_log(log);
    }

    /// Whether a span without a parent is in.
    pub(super) fn is_rooted(&self) -> bool {
        self.signs.rooted
    }

    /// Whether it may go on with the trace before it, or the next one with it: then a loop may be in both. That it has no
    /// root yet tells nothing: what invokes an agent ends last.
    pub(super) fn is_linked(&self) -> bool {
        self.signs.rooted && (!self.signs.invoked || self.signs.goes_on)
    }

    /// Whether it may have a loop: some tool was called often enough.
    pub(super) fn may_loop(&mut self, options: &LoopOptions) -> bool {
        let least = loops::least(options);
        let Signs { tools, called, .. } = self.signs;
        if called > 0 || tools < least.known.min(least.names) {
            // Names and arguments may be those that the model said.
            return tools + called >= least.known.min(least.names);
        }
        self.calls.may_loop(least, &self.parts.spans)
    }

    /// Whether a reading has loops that were not told.
    pub(super) fn has_news(&self, update: Option<&TraceUpdate>) -> bool {
        let Some(update) = update else { return false };
        let agent = update.agent.clone().unwrap_or_default();
        self.telling.get(&agent).map_or(&[][..], Vec::as_slice) != update.loops
    }

    /// Notes the session that it is told to; returns the tombstone for the one that it was told to before.
    pub(super) fn leave(
        &mut self,
        id: TraceId,
        session: Option<&SessionKey>,
    ) -> Option<TraceUpdate> {
        if self.sent.as_deref() == session {
            return None;
        }
        let old = std::mem::replace(&mut self.sent, session.cloned().map(Box::new))?;
        let telling = std::mem::take(&mut self.telling);
        self.told.extend(telling);
        self.spent = self.spending.take().or_else(|| self.spent.take());
        Some(TraceUpdate {
            trace_id: id.0.to_vec(),
            revision: self.revision,
            tombstone: true,
            session: Some(*old),
            ..TraceUpdate::default()
        })
    }

    /// Fills in what the stage knows.
    pub(super) fn stamp(&mut self, update: TraceUpdate) -> TraceUpdate {
        if !update.loops.is_empty() {
            self.telling.insert(update.agent.clone().unwrap_or_default(), update.loops.clone());
        }
        if self.state != State::Open && !update.complete {
            self.spending = Some(Box::new(Spent::of(&update)));
        }
        let told = self.told.iter().map(|(agent, loops)| ToldLoops {
            agent: Some(agent.clone()),
            loops: loops.clone(),
            spent: None,
        });
        let spent = self.spent.as_deref();
        let told = told
            .chain(spent.map(|spent| ToldLoops { spent: Some(*spent), ..ToldLoops::default() }));
        let state = match self.state {
            State::Open => TraceState::Open,
            State::Done => TraceState::Done,
            State::Sealed => TraceState::Sealed,
        };
        TraceUpdate {
            revision: self.revision,
            state: state.into(),
            touched_unix_nano: self.touched.0,
            partial: self.partial,
            told: told.collect(),
            ..update
        }
    }
}

impl Signs {
    fn note(&mut self, sign: Sign) {
        self.rooted |= sign.root;
        self.invoked |= sign.operation == Operation::InvokeAgent;
        self.tools += usize::from(sign.operation == Operation::ExecuteTool);
        if let Some((called, asked_by_user)) = sign.model {
            self.called += called;
            if self.first_model.is_none_or(|first| sign.place <= first) {
                self.first_model = Some(sign.place);
                self.goes_on = asked_by_user == Some(false);
            }
        }
    }

    fn note_log(&mut self, log: &Log) {
        self.called += log.tool_calls.len();
    }
}

fn never() -> Timestamp {
    NEVER
}
