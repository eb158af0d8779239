//! A trace as its session keeps it: its facts, its scores, and its contribution to its agent.
//!
//! Parts that many traces have in common are shared ([`Course`], [`TraceScores`]); parts that few have are behind a pointer ([`Rare`]).

use std::num::NonZeroU8;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::bytes;
use super::card::Marks;
use super::chain::Link;
use super::common::Common;
use super::optional::OptionalNumber;
use super::pane::PaneSet;
use super::scoring::TraceScores;
use super::shard_agents::ShardAgents;
use super::tally::{CountedLoops, Growths, Tally, growth};
use super::times::{Times, ToolTimes};
use crate::counters::Counter;
use crate::distributions::TraceUsage;
use crate::facts::{
    AgentKey, Content, CountedUsage, Effort, Expectation, Loop, OutputDigest, OverBy, PartialSum,
    Remarks, ReportedScore, RunTrace, SubAgent, Tokens, ToolCall, TraceFacts, TraceState,
    TurnStart,
};
use crate::limits::{LimitSet, RunLimit, Usage, UsageSums};
use crate::loops::{LoopKind, Severity, worst};
use crate::math::Quanta;
use crate::math::words::Words;
use crate::runs::RunName;
use crate::silences::{Level, level};
use crate::span::{Attempt, IdHash, SpanId, Status, Timestamp, ToolResult, TraceId, Values};
use crate::trace::attempt_bytes;

/// One trace.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct TraceRecord {
    pub(super) id: TraceId,
    pub(super) start: Timestamp,
    /// The end as sent, which may be before the start.
    pub(super) sent_end: Timestamp,
    /// Arrival of its newest span or record; zero: unknown.
    pub(super) arrived: Timestamp,
    pub(super) revision: u64,
    // Read and written; `UNKNOWN`: not sent, or in `rare` because they are too many for here.
    tokens: [u32; 2],
    cost_quanta: OptionalNumber,
    pub(super) course: Arc<Course>,
    pub(super) scored: Arc<TraceScores>,
    /// The panes in which it counts; empty exactly while it is not done.
    pub(super) panes: PaneSet,
    /// Times of its calls.
    pub(super) times: Times,
    said: Option<Box<TextFacts>>,
    rare: Option<Box<Rare>>,
    pub(super) state: TraceState,
    counted: Counted,
    /// Whether its session's card counts it as failing.
    #[serde(skip)]
    on_card_as_flagged: bool,
}

/// What a trace did, as far as it is equal in other traces.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct Course {
    /// The agent under which it counts, which may be `__overflow__`.
    pub(super) agent: AgentKey,
    /// The agent's own key, if it counts under `__overflow__`.
    named: Option<AgentKey>,
    /// The attribute that named the session.
    pub(super) session_source: Arc<str>,
    pub(super) complete: bool,
    pub(super) status: Option<Status>,
    pub(super) error: bool,
    pub(super) error_type: Option<Arc<str>>,
    pub(super) turn_start: TurnStart,
    pub(super) unfinished: bool,
    pub(super) uncertain: bool,
    pub(super) unjudged: bool,
    pub(super) partial: bool,
    pub(super) turn: u16,
    pub(super) evidence: OverBy,
    pub(super) llm_calls: u64,
    pub(super) failed_model_calls: u64,
    pub(super) stopped_calls: u64,
    pub(super) steps: u64,
    pub(super) wasted_steps: u64,
    pub(super) calls_without_tokens: u64,
    pub(super) calls_without_cost: u64,
    pub(super) adjacent_tool_repeats: u64,
    pub(super) calls_without_tool: u64,
    pub(super) models: SmallVec<[Arc<str>; 1]>,
    pub(super) unpriced: Vec<(Arc<str>, u64)>,
    pub(super) calls: Vec<Call>,
}

impl Course {
    /// How many tool calls have a known outcome, and how many of these failed.
    pub(super) fn told_calls(&self) -> (u64, u64) {
        let told = self.calls.iter().filter_map(|call| call.error);
        told.fold((0, 0), |(told, failed), error| (told + 1, failed + u64::from(error)))
    }
}

/// A tool call, as far as it is equal to other calls.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub(super) struct Call {
    /// The tool's name; empty: unknown.
    pub(super) name: Arc<str>,
    pub(super) error: Option<bool>,
    pub(super) error_type: Option<Arc<str>>,
    timed: bool,
    /// The series that it belongs to; calls made within the same span share it.
    within: Option<u32>,
}

/// Parts of traces whose spans have texts or users.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct TextFacts {
    output: Option<OutputDigest>,
    pub(super) user: Option<Box<str>>,
    pub(super) results: Box<[ToolResult]>,
    // Empty, or one for each call; `texts` likewise.
    hashes: Box<[Hashes]>,
    texts: Box<[CallTexts]>,
}

/// Parts that few traces have.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Rare {
    pub(super) attempt: Option<Box<Attempt>>,
    pub(super) remarks: Option<Box<Remarks>>,
    pub(super) reported: Vec<ReportedScore>,
    pub(super) content: Option<Box<Content>>,
    pub(super) expectations: Vec<Expectation>,
    pub(super) sub_agents: Vec<SubAgent>,
    pub(super) coherence: Option<Quanta>,
    // Present if one of the numbers does not fit into the record.
    tokens: Option<Box<Tokens>>,
    loops: Vec<Loop>,
    // Absent if everything it has counted is in `Counted`.
    tally: Option<Box<Tally>>,
    /// How far its loops have grown, by kind and evidence.
    pub(super) growth: Growths,
    /// Present exactly while it is part of a chain of traces.
    pub(super) link: Option<Box<Link>>,
    /// Its contribution to a run, as last sent to that run's agent.
    run: Option<Box<(AgentKey, RunTrace)>>,
    // How many of its loops are counted on its session's card.
    #[serde(skip)]
    listed_loops: u32,
    /// The loop in which its output repeats that of an earlier trace; known of done traces only.
    pub(super) output_repeat: Option<Box<Loop>>,
}

/// Hashes of a call's arguments and result.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Hashes {
    arguments: OptionalNumber,
    result: OptionalNumber,
}

/// Further parts of a call, kept if content is kept or if the next trace may continue with the call.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct CallTexts {
    arguments: Option<Arc<str>>,
    argument_values: Values,
    call_id: Option<IdHash>,
}

/// What a trace has counted, in most cases.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Counted {
    /// Whether its verdicts are counted.
    done: bool,
    /// Whether an outcome of it was sent to its agent.
    outcome: bool,
    /// Whether all of its usage is counted.
    spend: bool,
    /// Limits whose excess is counted.
    limits: LimitSet,
    /// One more than the level of the longest silence after which the open trace continued; `NonZeroU8`, so that the option takes
    /// one byte.
    silence: Option<NonZeroU8>,
}

/// What a new record of a trace takes over from the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct CarriedOver {
    tally: Tally,
    growth: Growths,
    run: Option<Box<(AgentKey, RunTrace)>>,
}

/// What a trace has added to sums, so that exactly this can be subtracted.
#[derive(Clone, Debug)]
pub(super) struct Contribution {
    pub(super) took: TraceEffort,
    pub(super) scored: Arc<TraceScores>,
    pub(super) end: Timestamp,
    pub(super) panes: PaneSet,
}

/// The effort of a trace, and the agent under which it counts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TraceEffort {
    pub(super) agent: AgentKey,
    pub(super) start: Timestamp,
    pub(super) effort: Effort,
}

impl From<Tally> for CarriedOver {
    fn from(tally: Tally) -> Self {
        Self { tally, ..Self::default() }
    }
}

impl TraceRecord {
    /// The record of a trace of this agent, not scored yet; `session_source` is the attribute that named its session.
    pub(super) fn new(
        update: Box<TraceFacts>,
        agent: AgentKey,
        session_source: Arc<str>,
        common: &mut Common,
    ) -> Self {
        let output = update.output_digest.map(|digest| common.output(digest));
        let mut said = TextFacts::of(output, update.user, update.results);
        let tokens = update.tokens.unwrap_or_default();
        let few = few(tokens.input).zip(few(tokens.output));
        let rare = Rare {
            attempt: update.attempt,
            remarks: update.remarks,
            reported: update.reported,
            content: update.content.map(Box::new),
            expectations: update.expectations,
            sub_agents: update.sub_agents,
            coherence: update.coherence_quanta.map(Quanta),
            tokens: few.is_none().then(|| Box::new(tokens)),
            loops: update.loops,
            ..Rare::default()
        };
        let mut calls = common.room_for_calls();
        let start = Timestamp(update.start_unix_nano);
        let of_models = (update.model_nanos, update.longest_model_nanos);
        let times = Times::new(start, update.tools.iter().map(times_of), of_models);
        said.take_calls(update.tools, &mut calls);
        let course = Course {
            named: update.agent.filter(|named| *named != agent),
            agent,
            session_source,
            complete: update.complete,
            status: update.status,
            error: update.error,
            error_type: update.error_type,
            turn_start: update.turn_start,
            unfinished: update.unfinished,
            uncertain: update.uncertain,
            unjudged: update.unjudged,
            partial: update.partial,
            turn: update.turn,
            evidence: update.evidence,
            llm_calls: update.llm_calls,
            failed_model_calls: update.failed_model_calls,
            stopped_calls: update.stopped_calls,
            steps: update.steps,
            wasted_steps: update.wasted_steps,
            calls_without_tokens: update.calls_without_tokens,
            calls_without_cost: update.calls_without_cost,
            adjacent_tool_repeats: update.adjacent_tool_repeats,
            calls_without_tool: update.calls_without_tool,
            models: update.models,
            unpriced: update.unpriced,
            calls,
        };
        Self {
            id: update.trace_id,
            start,
            sent_end: Timestamp(update.end_unix_nano),
            arrived: Timestamp(update.touched_unix_nano),
            revision: update.revision,
            tokens: few.map_or([UNKNOWN; 2], |(input, output)| [input, output]),
            cost_quanta: OptionalNumber::from(update.cost_quanta.map(i64::cast_unsigned)),
            course: common.course(course),
            scored: common.unscored(),
            panes: PaneSet::default(),
            times,
            said: (!said.is_empty()).then(|| Box::new(said)),
            rare: (!rare.is_empty()).then(|| Box::new(rare)),
            state: update.state,
            counted: Counted::default(),
            on_card_as_flagged: false,
        }
    }

    /// Estimated bytes of memory that it takes; they do not change when it is scored or sent.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.times.bytes()
            + size_of_val(&*self.course.calls)
            + self.said.as_deref().map_or(0, TextFacts::bytes)
            + self.rare().bytes()
    }

    /// The agent under which it counts, which may be `__overflow__`.
    pub(super) fn agent(&self) -> &AgentKey {
        &self.course.agent
    }

    /// The agent's own key.
    pub(super) fn named(&self) -> &AgentKey {
        self.course.named.as_ref().unwrap_or(&self.course.agent)
    }

    /// The run that it is part of, given its session's id; `None` if it names no task.
    pub(super) fn run_name(&self, session: &str) -> Option<RunName> {
        RunName::of(self.named(), self.rare().attempt.as_deref(), session)
    }

    /// Whether it is part of this run.
    pub(super) fn is_of(&self, run: &RunName, session: &str) -> bool {
        let task = self.rare().attempt.as_ref().and_then(|attempt| attempt.task.as_deref());
        task == Some(&*run.task) && self.run_name(session).as_ref() == Some(run)
    }

    /// The parts that few traces have; empty where this one has none.
    pub(super) fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NOTHING)
    }

    /// The parts of traces whose spans have texts or users; empty if this one has none.
    pub(super) fn said(&self) -> &TextFacts {
        self.said.as_deref().unwrap_or(&SILENT)
    }

    /// The digest of its answer.
    pub(super) fn output(&self) -> Option<&OutputDigest> {
        self.said.as_deref()?.output.as_ref()
    }

    /// The words of its answer.
    pub(super) fn words_mut(&mut self) -> Option<&mut Words> {
        Some(&mut self.said.as_deref_mut()?.output.as_mut()?.tokens)
    }

    /// Tokens that it read and wrote.
    pub(super) fn tokens(&self) -> Tokens {
        if let Some(tokens) = self.rare().tokens.as_deref() {
            return *tokens;
        }
        let [input, output] =
            self.tokens.map(|tokens| (tokens != UNKNOWN).then_some(u64::from(tokens)));
        Tokens { input, output }
    }

    /// What it cost, in 1e-12 USD.
    pub(super) fn cost(&self) -> Option<i64> {
        Option::<u64>::from(self.cost_quanta).map(u64::cast_signed)
    }

    /// Sets a rare part, unless the part is empty and the trace has no rare parts.
    fn keep<T>(&mut self, is_some: bool, of: fn(&mut Rare) -> &mut T, value: T) {
        if is_some || self.rare.is_some() {
            *of(self.rare.get_or_insert_default()) = value;
        }
    }

    /// Whether it counts in scores: its root ended and it was quiet, or it timed out.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, TraceState::Done | TraceState::Sealed)
    }

    /// Seals the trace at this revision, and counts what is only counted then. Returns its agent, or `None` if it is not done.
    pub(super) fn seal(
        &mut self,
        revision: u64,
        shard_agents: &mut ShardAgents,
    ) -> Option<AgentKey> {
        if !self.is_done() || self.revision > revision {
            return None;
        }
        (self.revision, self.state) = (revision, TraceState::Sealed);
        self.count(shard_agents);
        Some(self.agent().clone())
    }

    /// Adds a score that was reported after it was sealed; fails as [`ReportedScore::join`] does.
    pub(super) fn report(
        &mut self,
        score: ReportedScore,
        most: usize,
        now: Timestamp,
    ) -> Result<(), &'static str> {
        score.join(&mut self.rare.get_or_insert_default().reported, most)?;
        self.arrived = self.arrived.max(now);
        Ok(())
    }

    /// What the next record of the trace takes over.
    pub(super) fn into_carried_over(self) -> CarriedOver {
        let tally = self.tally();
        let Rare { growth, run, .. } = self.rare.map(|rare| *rare).unwrap_or_default();
        CarriedOver { tally, growth, run }
    }

    /// Takes over what the previous record has counted and sent.
    pub(super) fn go_on_from(&mut self, CarriedOver { tally, growth, run }: CarriedOver) {
        if !tally.is_nothing() {
            self.keep_tally(tally);
        }
        self.keep(!growth.is_empty(), |rare| &mut rare.growth, growth);
        self.keep(run.is_some(), |rare| &mut rare.run, run);
    }

    /// Its tool calls, in order of start, each with its start and its end.
    fn timed_calls(&self) -> impl Iterator<Item = (&Call, (Timestamp, Timestamp))> {
        let calls = &self.course.calls;
        calls.iter().zip(self.times.of_tools(self.start, calls.len()))
    }

    /// Its tool calls, in order of start.
    pub(super) fn calls(&self) -> impl Iterator<Item = ToolCall> + '_ {
        let said = self.said();
        let calls = self.timed_calls().enumerate();
        calls.map(|(at, (call, (start, end)))| {
            let Call { name, error, error_type, timed, within } = call;
            let hashes = said.hashes.get(at);
            let texts = said.texts.get(at);
            ToolCall {
                name: name.clone(),
                arguments: texts.and_then(|texts| texts.arguments.clone()),
                result_hash: hashes.and_then(|hashes| hashes.result.into()),
                error: *error,
                error_type: error_type.clone(),
                start_unix_nano: start.0,
                end_unix_nano: end.0,
                arguments_hash: hashes.and_then(|hashes| hashes.arguments.into()),
                argument_values: texts
                    .map(|texts| texts.argument_values.clone())
                    .unwrap_or_default(),
                call_id: texts.and_then(|texts| texts.call_id),
                timed: *timed,
                within: *within,
                // Not kept: a loop over several traces names traces, not spans.
                span_id: SpanId::default(),
            }
        })
    }

    /// Hashes of what its tools returned, as far as that was sent.
    pub(super) fn results(&self) -> impl Iterator<Item = u64> + '_ {
        self.said().hashes.iter().filter_map(|hashes| hashes.result.into())
    }

    /// The failed call that ended last; of several that ended at the same time, the last by name.
    pub(super) fn last_failed(&self) -> Option<&Call> {
        let failed = self.timed_calls().filter(|(call, _)| call.error == Some(true));
        failed
            .max_by_key(|(call, (_, end))| (*end, &call.name, &call.error_type))
            .map(|(call, _)| call)
    }

    /// Loops of tool calls that end in it.
    pub(super) fn loops(&self) -> &[Loop] {
        let rare = self.rare();
        rare.link.as_ref().map_or(&rare.loops, |link| &link.ended)
    }

    /// Its loops of tool calls, and its repeated output.
    pub(super) fn all_loops(&self) -> impl Iterator<Item = &Loop> {
        self.loops().iter().chain(self.rare().output_repeat.as_deref())
    }

    /// Its loops with more evidence than names.
    pub(super) fn weighing_loops(&self) -> impl Iterator<Item = &Loop> {
        self.all_loops().filter(|found| found.evidence.weighs())
    }

    /// The worst severity of a loop with more evidence than names that has a call in it.
    pub(super) fn loop_severity(&self) -> Option<Severity> {
        let rare = self.rare();
        match &rare.link {
            Some(link) => link.severity,
            None => worst(&rare.loops),
        }
    }

    /// Whether it is in no chain of traces, and its loops with more evidence than names are warnings of a tool that failed and then
    /// succeeded.
    pub(super) fn made_good(&self) -> bool {
        let Rare { link, loops, .. } = self.rare();
        let calls = &self.course.calls;
        let made_good = |retry: &Loop| {
            let Some((first, last)) = retry.calls else { return false };
            let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let Some(head) = calls.get(place(first)) else { return false };
            let later = calls.iter().skip(place(last)).skip(1);
            let mut again =
                later.filter(|call| (&call.name, call.within) == (&head.name, head.within));
            again.next().is_some_and(|call| call.error == Some(false))
        };
        let weighing = || loops.iter().filter(|found| found.evidence.weighs());
        let is_retry = |found: &Loop| {
            found.kind == LoopKind::ErrorRetry && found.severity == Severity::Warning
        };
        link.is_none() && weighing().all(|found| is_retry(found) && made_good(found))
    }

    /// Sets its link in a chain of traces; returns whether that changed.
    pub(super) fn link(&mut self, link: Option<Link>) -> bool {
        let is_new = self.rare().link.as_deref() != link.as_ref();
        if is_new {
            self.keep(link.is_some(), |rare| &mut rare.link, link.map(Box::new));
        }
        is_new
    }

    /// Sets the loop in which its output repeats an earlier one.
    pub(super) fn repeat(&mut self, repeat: Option<Loop>) {
        self.keep(repeat.is_some(), |rare| &mut rare.output_repeat, repeat.map(Box::new));
    }

    /// What its session's card counts for it.
    pub(super) fn marks(&self) -> Marks {
        Marks { loops: self.rare().listed_loops, flagged: self.on_card_as_flagged }
    }

    /// Notes what its session's card counts for it.
    pub(super) fn set_marks(&mut self, Marks { loops, flagged }: Marks) {
        self.keep(loops > 0, |rare| &mut rare.listed_loops, loops);
        self.on_card_as_flagged = flagged;
    }

    /// Its position in the order of the session.
    pub(super) fn position(&self) -> (Timestamp, TraceId) {
        (self.start, self.id)
    }

    /// Its end, never before its start.
    pub(super) fn end(&self) -> Timestamp {
        self.sent_end.max(self.start)
    }

    /// When its newest span or record arrived; `now` if that is unknown or later.
    pub(super) fn touched(&self, now: Timestamp) -> Timestamp {
        if self.arrived.0 == 0 { now } else { self.arrived.min(now) }
    }

    /// Whether it is open, the arrival of its newest span is known, and it does not wait for a person.
    pub(super) fn may_be_silent(&self) -> bool {
        self.state == TraceState::Open && self.arrived.0 > 0 && self.waits_since().is_none()
    }

    /// Since when it waits for a person; `None` if it does not.
    pub(super) fn waits_since(&self) -> Option<Timestamp> {
        self.rare().remarks.as_ref()?.waits_since_unix_nano.map(Timestamp)
    }

    /// When its conversation was compacted, in Unix nanoseconds.
    pub(super) fn compactions(&self) -> &[u64] {
        self.rare().remarks.as_ref().map_or(&[], |remarks| &remarks.compacted_unix_nano)
    }

    /// For how many nanoseconds up to `end` nothing has arrived, as far as a process knows that has been listening since `since`.
    pub(super) fn silent_for(&self, end: Timestamp, since: Timestamp) -> u64 {
        end.0.saturating_sub(self.touched(end).max(since).0)
    }

    /// Notes the silence that the next record of the trace ends, if it was long and the trace is open.
    pub(super) fn end_silence(&mut self, next: &Self, since: Timestamp, stall_after: Duration) {
        if self.may_be_silent() {
            let ended = level(self.silent_for(next.arrived, since), stall_after);
            let ended = ended.and_then(|level| NonZeroU8::new(level.saturating_add(1)));
            self.counted.silence = self.counted.silence.max(ended);
        }
    }

    /// The longest silence after which it continued while it was open; `None`: it had no long one.
    pub(super) fn silence(&self) -> Option<Level> {
        self.counted.silence.map(|level| level.get() - 1)
    }

    /// The nanoseconds of `silence` at its end, if it is long and its root was awaited in vain.
    pub(super) fn lost(&self, silence: u64, stall_after: Duration) -> Option<u64> {
        let is_lost = self.course.evidence == OverBy::Age && level(silence, stall_after).is_some();
        is_lost.then_some(silence)
    }

    /// Its effort.
    pub(super) fn effort(&self) -> Effort {
        let told = |number: Option<u64>| PartialSum {
            traces: u64::from(number.is_some()),
            sum: number.unwrap_or_default(),
        };
        let course = &self.course;
        let (judged_calls, failed_calls) = course.told_calls();
        Effort {
            model_calls: course.llm_calls,
            tool_calls: course.calls.len() as u64,
            judged_calls,
            failed_calls,
            failed_model_calls: course.failed_model_calls,
            stopped_calls: course.stopped_calls,
            output_tokens: told(self.tokens().output),
            cost_quanta: told(self.cost().and_then(|cost| u64::try_from(cost).ok())),
            nanos: self.sent_end.0.saturating_sub(self.start.0),
            longest_call_nanos: self.times.longest_call_nanos(),
            answer_words: self.answer_words(),
            last_tool: self.last_tool(),
            last_models: self.last_models(),
            ended_in_error: course.error,
        }
    }

    /// Distinct words of its answer.
    pub(super) fn answer_words(&self) -> Option<u64> {
        self.output().map(|output| output.tokens.len() as u64)
    }

    /// Hash of the name of the tool that it called last.
    pub(super) fn last_tool(&self) -> Option<u64> {
        let name = &self.course.calls.last()?.name;
        (!name.is_empty()).then(|| xxh3_64(name.as_bytes()))
    }

    /// Hash of the names of the models that it called.
    pub(super) fn last_models(&self) -> Option<u64> {
        let models = &self.course.models;
        let hash = |hash, name: &Arc<str>| xxh3_64_with_seed(name.as_bytes(), hash);
        (!models.is_empty()).then(|| models.iter().fold(0, hash))
    }

    /// Whether it is flagged for the judge whatever the sampling rate, as `JudgeRules` says.
    pub(super) fn is_always_judged(&self) -> bool {
        let rare = self.rare();
        let failed_hard = rare.expectations.iter().any(|expectation| expectation.hard_fail);
        self.course.error || !rare.loops.is_empty() || failed_hard
    }

    /// Its usage, for its limits.
    pub(super) fn usage(&self) -> Usage {
        let Tokens { input, output } = self.tokens();
        let cost_quanta = self.cost().and_then(|cost| u64::try_from(cost).ok()).unwrap_or(0);
        Usage {
            sums: UsageSums {
                model_calls: self.course.llm_calls,
                tool_calls: self.course.calls.len() as u64,
                tokens: input.unwrap_or(0).saturating_add(output.unwrap_or(0)),
                cost_quanta,
            },
            nanos: self.sent_end.0.saturating_sub(self.start.0),
            calls_without_tool: self.course.calls_without_tool,
        }
    }

    /// Its usage, for the distributions of its agent.
    pub(super) fn taken(&self) -> TraceUsage {
        let Tokens { input, output } = self.tokens();
        TraceUsage {
            usage: self.usage(),
            tells_tokens: input.or(output).is_some(),
            tells_cost: self.cost().is_some(),
        }
    }

    /// Its usage, as counters count it.
    fn spent(&self) -> CountedUsage {
        let Course { calls, llm_calls, adjacent_tool_repeats, .. } = &*self.course;
        let tools = calls.iter().map(|call| call.error);
        CountedUsage::new(self.tokens(), self.cost(), tools, *llm_calls, *adjacent_tool_repeats)
    }

    /// Its contribution; `None` while it is not done.
    pub(super) fn contribution(&self) -> Option<Contribution> {
        (!self.panes.is_empty()).then(|| Contribution {
            took: self.took(),
            scored: Arc::clone(&self.scored),
            end: self.end(),
            panes: self.panes,
        })
    }

    /// Its effort, as it counts among the traces of its agent.
    pub(super) fn took(&self) -> TraceEffort {
        TraceEffort { agent: self.agent().clone(), start: self.start, effort: self.effort() }
    }

    /// Whether its contribution with these scores would be exactly `given`.
    pub(super) fn contributes(&self, given: &Contribution, scored: &TraceScores) -> bool {
        self.is_done()
            && given.end == self.end()
            && given.scored.adds_like(scored)
            && given.took == self.took()
    }

    /// Whether its verdicts are counted.
    pub(super) fn is_settled(&self) -> bool {
        self.counted.done
    }

    /// Whether an outcome of it was sent to its agent.
    pub(super) fn has_reported_outcome(&self) -> bool {
        self.counted.outcome
    }

    /// Notes that its verdicts are counted and that its outcome, if it has one, was sent to its agent.
    pub(super) fn settle(&mut self, has_outcome: bool) {
        self.counted.done = true;
        self.counted.outcome |= has_outcome;
    }

    /// Notes that its outcome was sent to its agent.
    pub(super) fn tell_outcome(&mut self) {
        self.counted.outcome = true;
    }

    /// What it has counted.
    pub(super) fn tally(&self) -> Tally {
        let Counted { done, outcome, spend, limits, silence } = self.counted;
        if let Some(tally) = &self.rare().tally {
            return Tally { done, outcome, limits, silence, ..Tally::clone(tally) };
        }
        let spend = if spend { self.spent() } else { CountedUsage::default() };
        Tally { done, outcome, spend, limits, silence, ..Tally::default() }
    }

    fn keep_tally(&mut self, tally: Tally) {
        let spend = tally.spend == self.spent();
        let Tally { done, outcome, limits, silence, .. } = tally;
        self.counted = Counted { done, outcome, spend, limits, silence };
        let plain = tally.loops.is_empty() && (spend || tally.spend == CountedUsage::default());
        let tally = (!plain).then(|| Box::new(tally));
        self.keep(tally.is_some(), |rare| &mut rare.tally, tally);
    }

    /// The loops that it counts.
    fn counting_loops(&self) -> impl Iterator<Item = &Loop> {
        let rare = self.rare();
        let begun = rare.link.as_ref().map_or(&rare.loops, |link| &link.begun);
        begun.iter().chain(self.sealed_repeat())
    }

    /// Its repeated output, once it is certain: which output it repeats depends on earlier traces, which may arrive later.
    fn sealed_repeat(&self) -> Option<&Loop> {
        let is_sealed = self.state == TraceState::Sealed;
        self.rare().output_repeat.as_deref().filter(|_| is_sealed)
    }

    /// Moves what its loops have counted to `counted`.
    pub(super) fn release_loop_counts(&mut self, counted: &mut CountedLoops) {
        if self.rare().tally.as_ref().is_some_and(|tally| !tally.loops.is_empty()) {
            let mut tally = self.tally();
            counted.add(&mut tally);
            self.keep_tally(tally);
        }
    }

    /// Takes from `counted` what its loops count.
    pub(super) fn assign_loop_counts(&mut self, counted: &mut CountedLoops) {
        if !counted.is_empty() && self.counting_loops().next().is_some() {
            let mut tally = self.tally();
            counted.share(self.counting_loops(), &mut tally);
            self.keep_tally(tally);
        }
    }

    /// Takes the rest of `counted`.
    pub(super) fn assign_remaining_counts(&mut self, counted: CountedLoops) {
        if !counted.is_empty() {
            let mut tally = self.tally();
            counted.leave(&mut tally);
            self.keep_tally(tally);
        }
    }

    /// Leaves its chain, and keeps of what its loops have counted what the loops within it count; returns the rest.
    pub(super) fn leave_chain(&mut self) -> CountedLoops {
        let mut counted = CountedLoops::default();
        if self.rare().link.is_some() {
            self.link(None);
            self.release_loop_counts(&mut counted);
            self.assign_loop_counts(&mut counted);
        }
        counted
    }

    /// Raises its agent's counters by what it has not counted yet, once its agent is certain.
    pub(super) fn count(&mut self, shard_agents: &mut ShardAgents) {
        if self.course.uncertain {
            return;
        }
        let mut loops = self.counting_loops().peekable();
        let spends = self.course.complete || self.is_done();
        if loops.peek().is_none() && (!spends || self.counted.spend) {
            return;
        }
        let summary = shard_agents.summary(self.agent());
        let mut tally = self.tally();
        tally.count_loops(loops, self.agent(), summary);
        if spends {
            tally.count_spend(self.spent(), summary);
        }
        self.keep_tally(tally);
    }

    /// Raises the counters that are labelled with names from its spans; returns how often there was no room for a name.
    pub(super) fn count_names(&self, shard_agents: &mut ShardAgents) -> u64 {
        let summary = shard_agents.summary(self.agent());
        let mut over = 0;
        let mut count = |family, labels: &[&str], more| {
            over += u64::from(more > 0 && !summary.count_named(family, labels, more));
        };
        for (model, calls) in &self.course.unpriced {
            count(Counter::UnpricedCalls, &[model], *calls);
        }
        if let Some(remarks) = &self.rare().remarks {
            count(Counter::Edits, &["accepted"], remarks.accepted_edits);
            count(Counter::Edits, &["rejected"], remarks.rejected_edits);
        }
        for part in &self.rare().sub_agents {
            for (family, labels, more) in part.counts() {
                count(family, &[&[part.name.as_str()], labels].concat(), more);
            }
        }
        over
    }

    /// Counts the limits that it exceeds, each once, once its agent is certain.
    pub(super) fn count_limits(
        &mut self,
        exceeded: impl Iterator<Item = RunLimit>,
        shard_agents: &mut ShardAgents,
    ) {
        if self.course.uncertain {
            return;
        }
        for limit in exceeded {
            if self.counted.limits.insert(limit) {
                shard_agents.summary(&self.course.agent).count(
                    Counter::RunLimits,
                    &limit.values(),
                    1,
                );
            }
        }
    }

    /// Notes how far its loops have grown; returns whether it has loops.
    pub(super) fn grow(&mut self, now: Timestamp) -> bool {
        let growth = growth(self.loops(), &self.rare().growth, self.touched(now));
        let has_any = !growth.is_empty();
        self.keep(has_any, |rare| &mut rare.growth, growth);
        has_any
    }

    /// Sends its contribution to a run to its agent, if that has changed, and its removal to its former agent.
    pub(super) fn tell_run(&mut self, run: Option<RunTrace>, shard_agents: &mut ShardAgents) {
        let told = self.rare().run.as_deref();
        let same = match (told, &run) {
            (Some(told), Some(run)) => told.0 == *self.agent() && told.1 == *run,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            return;
        }
        if let Some((agent, _)) = told.filter(|told| run.is_none() || told.0 != *self.agent()) {
            let gone = RunTrace { trace_id: self.id, gone: true, ..RunTrace::default() };
            shard_agents.summary(agent).tell_run(self.id, gone);
        }
        let agent = self.agent().clone();
        if let Some(run) = &run {
            shard_agents.summary(&agent).tell_run(self.id, run.clone());
        }
        self.keep(run.is_some(), |rare| &mut rare.run, run.map(|run| Box::new((agent, run))));
    }
}

impl Rare {
    /// Empty.
    const fn none() -> Self {
        Self {
            attempt: None,
            remarks: None,
            reported: Vec::new(),
            content: None,
            expectations: Vec::new(),
            sub_agents: Vec::new(),
            coherence: None,
            tokens: None,
            loops: Vec::new(),
            tally: None,
            growth: Growths::new(),
            link: None,
            run: None,
            listed_loops: 0,
            output_repeat: None,
        }
    }

    /// Whether all parts that an update brings are empty.
    fn is_empty(&self) -> bool {
        self.attempt.is_none()
            && self.remarks.is_none()
            && self.reported.is_empty()
            && self.content.is_none()
            && self.expectations.is_empty()
            && self.sub_agents.is_empty()
            && self.coherence.is_none()
            && self.tokens.is_none()
            && self.loops.is_empty()
    }

    /// The bytes of memory of the parts that an update brings.
    fn bytes(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        // The message about a run has the attempt once more.
        let of_run = |attempt: &Attempt| size_of::<RunTrace>() + 2 * attempt_bytes(attempt);
        let lists = [
            self.reported.iter().map(bytes::of_reported).sum::<usize>(),
            self.expectations.iter().map(bytes::of_expectation).sum(),
            self.loops.iter().map(bytes::of_loop).sum(),
            size_of_val(&*self.sub_agents),
        ];
        size_of::<Self>()
            + lists.into_iter().sum::<usize>()
            + self.attempt.as_deref().map_or(0, of_run)
            + self.remarks.as_deref().map_or(0, bytes::of_remarks)
            + self.content.as_deref().map_or(0, bytes::of_content)
    }
}

impl TextFacts {
    /// What a trace has beside its calls.
    fn of(output: Option<OutputDigest>, user: Option<String>, results: Vec<ToolResult>) -> Self {
        let (user, results) = (user.map(String::into_boxed_str), results.into_boxed_slice());
        Self { output, user, results, ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        let Self { output, user, results, hashes, texts } = self;
        output.is_none()
            && user.is_none()
            && results.is_empty()
            && hashes.is_empty()
            && texts.is_empty()
    }

    /// The bytes of memory that it takes.
    fn bytes(&self) -> usize {
        let Self { output, user, results, hashes, texts } = self;
        let of_texts = |call: &CallTexts| {
            let CallTexts { arguments, argument_values, .. } = call;
            size_of::<CallTexts>()
                + size_of_val(&**argument_values)
                + arguments.as_deref().map_or(0, str::len)
        };
        size_of::<Self>()
            + output.as_ref().map_or(0, bytes::of_output)
            + user.as_deref().map_or(0, str::len)
            + texts.iter().map(of_texts).sum::<usize>()
            + size_of_val(&**results)
            + size_of_val(&**hashes)
    }

    /// Moves the parts of calls that are shared with other calls, except times, to `shared`, and keeps the rest here.
    fn take_calls(&mut self, calls: Vec<ToolCall>, shared: &mut Vec<Call>) {
        if calls.iter().any(|call| call.arguments_hash.or(call.result_hash).is_some()) {
            let hashes = calls.iter().map(|call| Hashes {
                arguments: call.arguments_hash.into(),
                result: call.result_hash.into(),
            });
            self.hashes = hashes.collect();
        }
        let has_texts = |call: &ToolCall| {
            call.arguments.is_some() || call.call_id.is_some() || !call.argument_values.is_empty()
        };
        let any_texts = calls.iter().any(has_texts);
        let mut texts = Vec::with_capacity(if any_texts { calls.len() } else { 0 });
        shared.extend(calls.into_iter().map(|call| {
            let ToolCall { name, error, error_type, timed, within, .. } = call;
            let ToolCall { arguments, argument_values, call_id, .. } = call;
            if any_texts {
                texts.push(CallTexts { arguments, argument_values, call_id });
            }
            Call { name, error, error_type, timed, within }
        }));
        self.texts = texts.into_boxed_slice();
    }
}

fn times_of(call: &ToolCall) -> ToolTimes {
    let ToolCall { start_unix_nano, end_unix_nano, timed, .. } = *call;
    ToolTimes { start: Timestamp(start_unix_nano), end: Timestamp(end_unix_nano), timed }
}

/// A number of tokens as a record stores it; `None`: it does not fit.
fn few(tokens: Option<u64>) -> Option<u32> {
    let Some(tokens) = tokens else { return Some(UNKNOWN) };
    u32::try_from(tokens).ok().filter(|tokens| *tokens != UNKNOWN)
}

/// A number of tokens that is not known.
const UNKNOWN: u32 = u32::MAX;

/// These parts, for a trace that has none.
static SILENT: LazyLock<TextFacts> = LazyLock::new(TextFacts::default);

/// The rare parts, for a trace that has none.
static NOTHING: Rare = Rare::none();
