//! What the stage of sessions tells the stage of agents.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{AgentKey, Attempt, ReportedScore, ScopedId, facts, is_default};
use crate::counters::Counters;
use crate::distributions::Distribution;
use crate::few::Few;
use crate::limits::RunLimit;
use crate::loops::LoopLabels;
use crate::predict::{EffortSums, Spread};
use crate::span::TraceId;

facts! {
    /// A sum over those traces that tell what is summed.
    #[derive(Copy)]
    pub struct PartialSum {
        /// Traces that tell.
        pub traces: u64,
        /// Their sum.
        pub sum: u64,
    }

    /// What a trace took, or several of one run or session.
    #[derive(Copy)]
    pub struct Effort {
        /// Model calls.
        pub model_calls: u64,
        /// Tool calls.
        pub tool_calls: u64,
        /// Tool calls of which the wire tells whether they failed.
        pub judged_calls: u64,
        /// Tool calls that failed.
        pub failed_calls: u64,
        /// Model calls that failed.
        pub failed_model_calls: u64,
        /// Model calls that were stopped before their end or refused, and agents that were stopped as a whole.
        pub stopped_calls: u64,
        /// Tokens written.
        pub output_tokens: PartialSum,
        /// Cost in 1e-12 USD.
        pub cost_quanta: PartialSum,
        /// From the first start of a trace to its last end, in nanoseconds; pauses between traces left out.
        pub nanos: u64,
        /// The longest call of a model or a tool, in nanoseconds.
        pub longest_call_nanos: u64,
        /// Distinct words of the last answer; absent: no text arrived.
        pub answer_words: Option<u64>,
        /// Hash of the name of the tool that was called last; absent: none was, or its name is not told.
        pub last_tool: Option<u64>,
        /// Hash of the names of the models that the last trace called that called any; absent: none did, or no name is told.
        pub last_models: Option<u64>,
    }

    /// What a done trace adds to a run of its agent. Key: trace_id. Full replacement.
    pub struct RunTrace {
        /// The trace.
        pub trace_id: TraceId,
        /// It is not done any more, or not this agent's.
        pub gone: bool,
        /// What it says of the attempt.
        pub attempt: Option<Attempt>,
        /// The session.
        pub session: ScopedId,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, likewise.
        pub end_unix_nano: u64,
        /// Names of its tool calls, in order; empty: unknown.
        pub actions: Vec<String>,
        /// What it took.
        pub effort: Effort,
        /// Time spent in model calls, in nanoseconds.
        pub model_nanos: u64,
        /// Failed model and tool calls.
        pub errors: u64,
        /// Cost in 1e-12 USD; absent: not known.
        pub cost_quanta: Option<i64>,
        /// It is judged whatever the rate, where what is flagged is.
        pub flagged: bool,
        /// Its risk by all signals but the outcome, as if our judge had not been asked, in quanta of 1e-12.
        pub risk_quanta: Option<i64>,
        /// Scores of the trace; and those of its session that the trace has none of.
        pub reported: Vec<ReportedScore>,
        /// Its signals, in quanta of 1e-12, in the order of their names.
        pub signals: Vec<(Cow<'static, str>, i64)>,
    }

    /// Traces of one risk.
    #[derive(Copy)]
    pub struct Level {
        /// Risk, in steps of 1e-4.
        pub level: i32,
        /// Traces.
        pub count: u64,
    }

    /// A signal over traces.
    #[derive(Copy)]
    pub struct SignalSum {
        /// Traces that have it.
        pub count: u64,
        /// Sum of its scores, in quanta of 1e-12.
        pub sum_quanta: i128,
    }

    /// What one shard knows of one agent in one pane of one window. Full replacement.
    pub struct PaneSum {
        /// Width of the pane, in nanoseconds.
        pub width_nanos: u64,
        /// `floor(end / width)`.
        pub index: u64,
        /// Done traces that ended in it.
        pub traces: u64,
        /// Those with a risk.
        pub risk_count: u64,
        /// Their risks, as far as nobody had to be asked.
        pub levels: Vec<Level>,
        /// The risks of those that our judge was asked about, with what it said.
        pub judged_levels: Vec<Level>,
        /// Those with an uncertainty.
        pub uncertainty_count: u64,
        /// Sum of their squares, in quanta squared.
        pub uncertainty_squares: i128,
        /// Sums of signals, by name.
        pub signals: Few<Cow<'static, str>, SignalSum>,
        /// Sessions whose newest trace of this agent lies in this pane.
        pub sessions: u64,
        /// What they took.
        pub efforts: EffortSums,
    }

    /// One of the last N traces.
    pub struct LastTrace {
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// The trace.
        pub trace_id: TraceId,
        /// Its risk, in quanta of 1e-12, as far as nobody had to be asked.
        pub risk_quanta: Option<i64>,
        /// Its weighted uncertainty, likewise.
        pub uncertainty_quanta: Option<i64>,
        /// Its risk with what our judge said, if that was asked.
        pub judged_quanta: Option<i64>,
    }

    /// What drops are found by, of a trace that was done for the first time; or an outcome that was told of a trace or of a
    /// session later, on its own. What is absent is not known, or was told before.
    pub struct DoneTrace {
        /// The trace; absent: it is about a session.
        pub trace_id: Option<TraceId>,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// Wall time: the end of the trace; of an outcome that was told later, when it was.
        pub at_unix_nano: u64,
        /// Arrival of the newest thing of it.
        pub touched_unix_nano: u64,
        /// Its risk, by all signals.
        pub risk_quanta: Option<i64>,
        /// The verdict by computed signals alone.
        pub failed: Option<bool>,
        /// The outcome that somebody told is no success.
        pub outcome_failed: Option<bool>,
        /// One of its tool calls failed, of those that tell.
        pub tools_failed: Option<bool>,
        /// It has a loop.
        pub looped: Option<bool>,
        /// What it took; of an outcome of a session, what its last done trace took.
        pub effort: Option<Effort>,
        /// The session.
        pub session: ScopedId,
        /// The computed signal with the greatest risk, where there is any.
        pub signal: String,
        /// The tool that failed last or loops; empty: none.
        pub tool: String,
    }

    /// Silences of an agent's traces by level, as `silences.rs` has it.
    pub struct Silences {
        /// Done traces, each once.
        pub traces: u64,
        /// Silences that something ended.
        pub ended: BTreeMap<u8, u64>,
        /// Open traces that are silent.
        pub open: BTreeMap<u8, u64>,
    }

    /// Bucket counts (not cumulative), one more than there are bounds.
    pub struct ScoreHistogram {
        /// Counts of the buckets.
        pub buckets: Vec<u64>,
        /// All of them.
        pub count: u64,
        /// Sum of the scores, in quanta of 1e-12.
        pub sum_quanta: i128,
        /// At most one for each bucket; none where scores are taken back.
        pub exemplars: Vec<Exemplar>,
    }

    /// The trace of a bucket that ended last.
    pub struct Exemplar {
        /// The bucket.
        pub bucket: u32,
        /// When the trace ended, in nanoseconds since the Unix epoch.
        pub end_unix_nano: u64,
        /// The trace.
        pub trace_id: TraceId,
        /// Its score, in quanta of 1e-12.
        pub score_quanta: i64,
    }

    /// What one shard of the session stage knows of one agent. Key: (agent, shard).
    pub struct SessionUpdate {
        /// Whose numbers these are.
        pub agent: Option<AgentKey>,
        /// The shard that says so.
        pub shard: u32,
        /// Replaces every lower one.
        pub revision: u64,
        /// The shard holds nothing of this agent any more.
        pub tombstone: bool,
        /// Whether it is not certain of any trace that it is this agent's.
        pub uncertain: bool,
        /// Changed panes only; a pane without traces is deleted.
        pub panes: Vec<PaneSum>,
        /// The greatest N by (start, trace id) on this shard.
        pub last: Vec<LastTrace>,
        /// Monotone since the process started.
        pub counters: Counters,
        /// What earlier processes counted, of the families whose totals are shown.
        pub earlier: Counters,
        /// Open sessions.
        pub sessions_active: u64,
        /// Sessions in which a loop goes on.
        pub sessions_looping: BTreeMap<LoopLabels, u64>,
        /// Sessions that go on over a limit, or have a trace that does.
        pub sessions_over_limit: BTreeMap<RunLimit, u64>,
        /// Open sessions, as they stand.
        pub open_reliability: Option<ScoreHistogram>,
        /// Open sessions, likewise.
        pub open_consistency: Option<ScoreHistogram>,
        /// Closed sessions, each once.
        pub closed_reliability: Option<ScoreHistogram>,
        /// Closed sessions, likewise.
        pub closed_consistency: Option<ScoreHistogram>,
        /// Scores of single traces by signal, each trace once, at done.
        pub trace_signals: Few<Cow<'static, str>, ScoreHistogram>,
        /// Traces that are part of a run, as far as they changed.
        pub run_traces: Vec<RunTrace>,
        /// Traces that were done for the first time since the last message.
        pub done_traces: Vec<DoneTrace>,
        /// Nothing but panes is told: what else was told before stays.
        pub panes_only: bool,
        /// How long its traces are silent.
        pub silences: Silences,
        /// What its traces took, each trace once.
        pub distributions: Few<Distribution, ScoreHistogram>,
        /// How much effort its sessions took.
        pub spread: Arc<Spread>,
        /// How much its done traces took, each alone.
        pub trace_spread: Arc<Spread>,
    }
}

impl SessionUpdate {
    /// Whether more sessions loop or are over a limit in some way than an earlier update of this shard and agent said.
    pub fn runs_further_away_than(&self, earlier: &Self) -> bool {
        grows(&self.sessions_looping, &earlier.sessions_looping)
            || grows(&self.sessions_over_limit, &earlier.sessions_over_limit)
    }
}

fn grows<L: Ord>(counts: &BTreeMap<L, u64>, earlier: &BTreeMap<L, u64>) -> bool {
    counts.iter().any(|(label, count)| *count > earlier.get(label).copied().unwrap_or(0))
}

impl Effort {
    /// Both together; the answer, the last tool and the last models are those of `other`, which came later, if it has any.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let longest = self.longest_call_nanos.max(other.longest_call_nanos);
        Self {
            answer_words: other.answer_words.or(self.answer_words),
            last_tool: other.last_tool.or(self.last_tool),
            last_models: other.last_models.or(self.last_models),
            longest_call_nanos: longest,
            ..self.combined(other, u64::saturating_add)
        }
    }

    /// What is left without `other`, which was added; the answer, what was called last and the longest call stay.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combined(other, u64::saturating_sub)
    }

    fn combined(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let told = |one: PartialSum, two: PartialSum| PartialSum {
            traces: of(one.traces, two.traces),
            sum: of(one.sum, two.sum),
        };
        Self {
            model_calls: of(self.model_calls, other.model_calls),
            tool_calls: of(self.tool_calls, other.tool_calls),
            judged_calls: of(self.judged_calls, other.judged_calls),
            failed_calls: of(self.failed_calls, other.failed_calls),
            failed_model_calls: of(self.failed_model_calls, other.failed_model_calls),
            stopped_calls: of(self.stopped_calls, other.stopped_calls),
            output_tokens: told(self.output_tokens, other.output_tokens),
            cost_quanta: told(self.cost_quanta, other.cost_quanta),
            nanos: of(self.nanos, other.nanos),
            longest_call_nanos: self.longest_call_nanos,
            answer_words: self.answer_words,
            last_tool: self.last_tool,
            last_models: self.last_models,
        }
    }
}

impl DoneTrace {
    /// When its facts count among those of all agents: as they came, whichever shard tells them.
    pub fn turn(&self) -> (u64, u64, Option<TraceId>, &ScopedId) {
        (self.touched_unix_nano, self.start_unix_nano, self.trace_id, &self.session)
    }

    /// Whether it is of a trace that was done for the first time, and not an outcome that was told later.
    pub fn is_first(&self) -> bool {
        self.looped.is_some()
    }

    /// What is told once under this name: the facts of a trace that was done, or an outcome that was told later.
    pub fn name(&self) -> Vec<u8> {
        let ScopedId { id, scope } = &self.session;
        let about = match &self.trace_id {
            Some(trace) => trace.0.to_vec(),
            None => [id.as_bytes(), b"\0", scope.as_bytes()].concat(),
        };
        [&[u8::from(self.is_first())], &about[..]].concat()
    }
}
