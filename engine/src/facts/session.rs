//! Messages from the session stage to the agent stage.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use super::{AgentKey, ReportedScore, ScopedId, facts, is_default};
use crate::counters::Counters;
use crate::distributions::Distribution;
use crate::limits::RunLimit;
use crate::loops::LoopLabels;
use crate::predict::{EffortSums, Results, Spread};
use crate::small_map::SmallMap;
use crate::span::{Attempt, TraceId};

facts! {
    /// A sum over the traces that report an amount.
    #[derive(Copy)]
    pub struct PartialSum {
        /// Traces that report the amount.
        pub traces: u64,
        /// The sum of their amounts.
        pub sum: u64,
    }

    /// The effort of a trace, or of several traces of one run or session.
    #[derive(Copy)]
    pub struct Effort {
        /// Model calls.
        pub model_calls: u64,
        /// Tool calls.
        pub tool_calls: u64,
        /// Tool calls whose success or failure is known.
        pub judged_calls: u64,
        /// Tool calls that failed.
        pub failed_calls: u64,
        /// Model calls that failed.
        pub failed_model_calls: u64,
        /// Model calls that were stopped early or refused; one more for each trace whose agent was stopped as a whole.
        pub stopped_calls: u64,
        /// Tokens written.
        pub output_tokens: PartialSum,
        /// Cost in 1e-12 USD.
        pub cost_quanta: PartialSum,
        /// From the first start in a trace to the last end, in nanoseconds, summed over traces: pauses between traces are left out.
        pub nanos: u64,
        /// The longest call of a model or a tool, in nanoseconds.
        pub longest_call_nanos: u64,
        /// Distinct words of the last answer; absent: no text arrived.
        pub answer_words: Option<u64>,
        /// Hash of the name of the tool that was called last; absent: none was called, or its name is unknown.
        pub last_tool: Option<u64>,
        /// Hash of the names of the models called by the last trace that called any; absent: none did, or no name is known.
        pub last_models: Option<u64>,
        /// Whether the last trace ended in an error.
        pub ended_in_error: bool,
    }

    /// The contribution of a done trace to a run of its agent. Key: trace_id. Full replacement.
    pub struct RunTrace {
        /// The trace.
        pub trace_id: TraceId,
        /// Whether the trace is no longer done, or no longer this agent's.
        pub gone: bool,
        /// The attempt that it is part of.
        pub attempt: Option<Attempt>,
        /// The session.
        pub session: ScopedId,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, in nanoseconds since the Unix epoch.
        pub end_unix_nano: u64,
        /// Names of the tools that it called, in order; an empty name: unknown.
        pub actions: Vec<Arc<str>>,
        /// What its tools returned.
        pub results: Results,
        /// Its effort.
        pub effort: Effort,
        /// Time spent in model calls, in nanoseconds.
        pub model_nanos: u64,
        /// Failed model and tool calls.
        pub errors: u64,
        /// Cost in 1e-12 USD; absent: not known.
        pub cost_quanta: Option<i64>,
        /// Whether it is flagged: it is judged whatever the rate, if flagged traces are.
        pub flagged: bool,
        /// Its risk by all signals except the outcome, without the judge's scores, in quanta of 1e-12.
        pub risk_quanta: Option<i64>,
        /// Reported scores of the trace, and those of its session for which the trace has no score.
        pub reported: Vec<ReportedScore>,
        /// Its signals, in quanta of 1e-12, in the order of their names.
        pub signals: Vec<(Cow<'static, str>, i64)>,
    }

    /// The number of traces with one risk.
    #[derive(Copy)]
    pub struct Level {
        /// Risk, in steps of 1e-4.
        pub level: i32,
        /// Traces.
        pub count: u64,
    }

    /// The sum of a signal over traces.
    #[derive(Copy)]
    pub struct SignalSum {
        /// Traces that have it.
        pub count: u64,
        /// Sum of its scores, in quanta of 1e-12.
        pub sum_quanta: i128,
    }

    /// The state of one pane of one window, for one agent on one shard. Full replacement.
    pub struct PaneSum {
        /// Width of the pane, in nanoseconds.
        pub width_nanos: u64,
        /// `floor(end / width)`.
        pub index: u64,
        /// Done traces that ended in it.
        pub traces: u64,
        /// Traces of these with a risk.
        pub risk_count: u64,
        /// Their risks, without the judge's scores.
        pub levels: SmallVec<[Level; 4]>,
        /// Risks with the judge's scores, of the traces that the judge was asked about.
        pub judged_levels: SmallVec<[Level; 4]>,
        /// Traces of these with an uncertainty.
        pub uncertainty_count: u64,
        /// Sum of the squares of their uncertainties, in quanta squared.
        pub uncertainty_squares: i128,
        /// Sums of signals, by name.
        pub signals: SmallMap<Cow<'static, str>, SignalSum>,
        /// Sessions whose newest trace of this agent lies in this pane.
        pub sessions: u64,
        /// Sums of these sessions' efforts.
        pub efforts: EffortSums,
    }

    /// One of the last N traces of an agent.
    #[derive(Copy)]
    pub struct LastTrace {
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// The trace.
        pub trace_id: TraceId,
        /// Its risk without the judge's scores, in quanta of 1e-12.
        pub risk_quanta: Option<i64>,
        /// Its weighted uncertainty without the judge's scores, in quanta of 1e-12.
        pub uncertainty_quanta: Option<i64>,
        /// Its risk with the judge's scores, in quanta of 1e-12; absent: the judge was not asked.
        pub judged_quanta: Option<i64>,
    }

    /// The facts of a trace that was first done, to detect drops; or an outcome of a trace or a session that was reported later, by
    /// itself. An absent fact is not known, or was sent before.
    pub struct DoneTrace {
        /// The trace; absent: the outcome is that of a session.
        pub trace_id: Option<TraceId>,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// Wall time of the end of the trace; for an outcome that was reported later, the wall time of its arrival.
        pub at_unix_nano: u64,
        /// When its newest span, log record or report arrived, in engine time, not wall time.
        pub touched_unix_nano: u64,
        /// Its risk, by all signals.
        pub risk_quanta: Option<i64>,
        /// Whether the trace failed, by computed signals alone.
        pub failed: Option<bool>,
        /// Whether the reported outcome is not a success.
        pub outcome_failed: Option<bool>,
        /// Whether one of its tool calls failed; absent: not known for any call.
        pub tools_failed: Option<bool>,
        /// Whether it has a loop.
        pub looped: Option<bool>,
        /// Its effort; for an outcome of a session or a run, that of its last done trace, unless that trace has a reported outcome
        /// of its own.
        pub effort: Option<Effort>,
        /// The session.
        pub session: ScopedId,
        /// The computed signal with the greatest risk; empty: none has any.
        pub signal: Cow<'static, str>,
        /// The tool that failed last or loops; empty: none.
        pub tool: String,
        /// The kind of error by which that tool failed, else the trace; empty: not known.
        pub error_type: String,
    }

    /// Silences of an agent's traces, by level; see `silences.rs`.
    pub struct Silences {
        /// Its done traces, by the week of engine time in which they were first done.
        pub weeks: BTreeMap<u64, SilencesOfWeek>,
        /// Open traces that are silent.
        pub open: BTreeMap<u8, u64>,
    }

    /// Silences of the traces that were first done in one week.
    pub struct SilencesOfWeek {
        /// These traces, each once.
        pub traces: u64,
        /// Those that continued after a silence, by the longest such silence of each.
        pub ended: BTreeMap<u8, u64>,
        /// Those that waited for their root until `assemble.trace_max_age` and were silent at the end.
        pub lost: u64,
        /// Their total silence at the end, in nanoseconds.
        pub lost_nanos: u64,
    }

    /// A histogram of scores, or of amounts.
    pub struct ScoreHistogram {
        /// Counts of the buckets, not cumulative; one more than there are bounds.
        pub buckets: BucketCounts,
        /// The sum of all counts.
        pub count: u64,
        /// Sum of the scores, in quanta of 1e-12.
        pub sum_quanta: i128,
        /// Exemplars in the order of their buckets, at most one for each; none where scores can be subtracted.
        pub exemplars: SmallVec<[Exemplar; 2]>,
    }

    /// The trace in a bucket that ended last.
    #[derive(Copy)]
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

    /// The state of one agent on one shard of the session stage. Key: (agent, shard).
    pub struct SessionFacts {
        /// The agent.
        pub agent: Option<AgentKey>,
        /// The shard.
        pub shard: u32,
        /// Revision: an update replaces every one with a lower revision.
        pub revision: u64,
        /// Whether the shard has nothing left of this agent.
        pub tombstone: bool,
        /// Whether no trace is certain to be this agent's.
        pub uncertain: bool,
        /// Panes that changed; one without traces and sessions is deleted.
        pub panes: Vec<PaneSum>,
        /// The last N traces on this shard, by (start, trace id).
        pub last: Arc<VecDeque<LastTrace>>,
        /// Counters, monotone since the process started.
        pub counters: Counters,
        /// Counters of earlier processes, of the families whose totals are shown.
        pub earlier: Counters,
        /// The latest `last_heard_unix_nano` of its traces, including those that are not certain to be its own.
        pub last_heard_unix_nano: u64,
        /// Open sessions.
        pub sessions_active: u64,
        /// Sessions with a running loop, by labels; a session with loops of several kinds counts once for each kind.
        pub sessions_looping: BTreeMap<LoopLabels, u64>,
        /// Sessions with a running loop that has more evidence than names, each counted once.
        pub looping: u64,
        /// Sessions that keep running over a limit, or that have a trace that does.
        pub sessions_over_limit: BTreeMap<RunLimit, u64>,
        /// Current reliabilities of open sessions.
        pub open_reliability: Option<ScoreHistogram>,
        /// Current consistencies of open sessions.
        pub open_consistency: Option<ScoreHistogram>,
        /// Reliabilities of closed sessions, each session once.
        pub closed_reliability: Option<ScoreHistogram>,
        /// Consistencies of closed sessions, each session once.
        pub closed_consistency: Option<ScoreHistogram>,
        /// Scores of traces by signal, each trace once, when it is done.
        pub trace_signals: SmallMap<Cow<'static, str>, ScoreHistogram>,
        /// Traces that are part of a run, if they changed.
        pub run_traces: Vec<RunTrace>,
        /// Traces that were first done, and outcomes that were reported, since the last update.
        pub done_traces: Vec<DoneTrace>,
        /// Whether the update has only panes: the other numbers stay as sent before.
        pub panes_only: bool,
        /// How long its traces have been silent.
        pub silences: Silences,
        /// Distributions of what its traces used, each trace once.
        pub distributions: SmallMap<Distribution, ScoreHistogram>,
        /// The effort of its sessions.
        pub spread: Arc<Spread>,
        /// The effort of its done traces, each by itself.
        pub trace_spread: Arc<Spread>,
    }
}

/// The most buckets that a histogram has.
const MOST_BUCKETS: usize = 10;

/// Counts of the buckets of a histogram; serialised as their list.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct BucketCounts {
    len: usize,
    // Invariant: zero from `len` on.
    counts: [u64; MOST_BUCKETS],
}

impl BucketCounts {
    /// Widens to at least this many buckets, within the maximum.
    pub(crate) fn widen(&mut self, buckets: usize) {
        self.len = self.len.max(buckets.min(MOST_BUCKETS));
    }
}

impl From<&[u64]> for BucketCounts {
    /// The first counts, up to the maximum.
    fn from(counts: &[u64]) -> Self {
        let mut held = Self::default();
        held.widen(counts.len());
        held.iter_mut().zip(counts).for_each(|(held, count)| *held = *count);
        held
    }
}

impl TryFrom<Vec<u64>> for BucketCounts {
    type Error = &'static str;

    fn try_from(counts: Vec<u64>) -> Result<Self, Self::Error> {
        let fits = counts.len() <= MOST_BUCKETS;
        fits.then(|| counts.as_slice().into()).ok_or("more buckets than any histogram has")
    }
}

impl From<BucketCounts> for Vec<u64> {
    fn from(counts: BucketCounts) -> Self {
        counts.to_vec()
    }
}

impl Deref for BucketCounts {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.counts[..self.len]
    }
}

impl DerefMut for BucketCounts {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.counts[..self.len]
    }
}

impl ScoreHistogram {
    /// Adds another histogram; for each bucket the greatest exemplar stays.
    pub(crate) fn add(&mut self, other: &Self) {
        self.buckets.widen(other.buckets.len());
        for (held, count) in self.buckets.iter_mut().zip(&*other.buckets) {
            *held += count;
        }
        self.count += other.count;
        self.sum_quanta += other.sum_quanta;
        if self.exemplars.is_empty() {
            self.exemplars.clone_from(&other.exemplars);
        } else if !other.exemplars.is_empty() {
            let all = &mut self.exemplars;
            all.extend_from_slice(&other.exemplars);
            all.sort_by_key(|one| (one.bucket, Reverse((one.end_unix_nano, one.trace_id))));
            all.dedup_by_key(|one| one.bucket);
        }
    }

    /// The exemplar of a bucket.
    pub fn exemplar(&self, bucket: u32) -> Option<&Exemplar> {
        self.exemplars.iter().find(|exemplar| exemplar.bucket == bucket)
    }
}

impl SessionFacts {
    /// Whether some kind of loop or some limit has more sessions than in an earlier update of this shard and agent.
    pub fn runs_further_away_than(&self, earlier: &Self) -> bool {
        grows(&self.sessions_looping, &earlier.sessions_looping)
            || grows(&self.sessions_over_limit, &earlier.sessions_over_limit)
    }
}

fn grows<L: Ord>(counts: &BTreeMap<L, u64>, earlier: &BTreeMap<L, u64>) -> bool {
    counts.iter().any(|(label, count)| *count > earlier.get(label).copied().unwrap_or(0))
}

impl Effort {
    /// The sum of both efforts; the answer, the last tool and the last models are those of `other`, the later one, if it has any,
    /// and the way of ending is that of `other`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let longest = self.longest_call_nanos.max(other.longest_call_nanos);
        Self {
            answer_words: other.answer_words.or(self.answer_words),
            last_tool: other.last_tool.or(self.last_tool),
            last_models: other.last_models.or(self.last_models),
            ended_in_error: other.ended_in_error,
            longest_call_nanos: longest,
            ..self.combined(other, u64::saturating_add)
        }
    }

    /// Subtracts `other`, which was added; the answer, the last tool, the last models, the longest call and the end stay.
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
            ended_in_error: self.ended_in_error,
        }
    }
}

impl DoneTrace {
    /// The position of its facts among those of all agents: the order of arrival, whichever shard sends them.
    pub fn turn(&self) -> (u64, u64, Option<TraceId>, &ScopedId) {
        (self.touched_unix_nano, self.start_unix_nano, self.trace_id, &self.session)
    }

    /// Whether it has the facts of a trace that was first done, rather than an outcome that was reported later.
    pub fn is_first(&self) -> bool {
        self.looped.is_some()
    }

    /// A hash that is unique among all such messages of all agents: for a trace's facts, or for an outcome that was reported later,
    /// of that trace or of the session that began then. It is the same in every process, and when the message is sent again.
    pub fn name(&self, agent: &AgentKey) -> u128 {
        let ScopedId { id, scope } = &self.session;
        let mut hasher = Xxh3::with_seed(agent.hash());
        hasher.update(&[u8::from(self.is_first()), u8::from(self.trace_id.is_some())]);
        if let Some(trace) = &self.trace_id {
            hasher.update(&trace.0);
        } else {
            hasher.update(&self.start_unix_nano.to_le_bytes());
            hasher.update(&(id.len() as u64).to_le_bytes());
            hasher.update(id.as_bytes());
            hasher.update(scope.as_bytes());
        }
        hasher.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::AgentParts;

    #[test]
    fn a_done_trace_has_the_name_of_no_other_agents_nor_of_another_sessions_of_its_id() {
        let agent = |tenant: &str, version: &str| {
            let (tenant, agent_version) = (tenant.into(), version.into());
            AgentKey::from(AgentParts { tenant, agent_version, ..AgentParts::default() })
        };
        let trace = DoneTrace { trace_id: Some(TraceId([7; 16])), ..DoneTrace::default() };
        let outcome = |id: &str, scope: &str, start: u64| DoneTrace {
            start_unix_nano: start,
            session: ScopedId { id: id.into(), scope: scope.into() },
            ..DoneTrace::default()
        };
        let told = [
            trace.clone(),
            DoneTrace { looped: Some(false), ..trace.clone() },
            outcome("42", "", 1),
            outcome("42", "", 2),
            outcome("4", "2", 1),
            outcome("", "42", 1),
        ];
        let agents = [agent("shop", "1"), agent("bank", "1"), agent("shop", "2")];
        let names = agents.iter().flat_map(|agent| told.iter().map(|told| told.name(agent)));
        let names: Vec<_> = names.collect();
        for (number, name) in names.iter().enumerate() {
            assert!(!names[..number].contains(name), "{number}");
        }
        // A resent message has the same name, whatever else is sent with it.
        let again = DoneTrace { touched_unix_nano: 9, start_unix_nano: 5, ..trace };
        assert_eq!(again.name(&agents[0]), names[0]);
    }
}
