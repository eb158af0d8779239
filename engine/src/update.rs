//! What one stage tells the next.
//!
//! Every hop is an idempotent upsert: what is told replaces everything of a lower revision under the same key, so a stage
//! may see it late, twice or again after a restart. The receiver keeps the highest revision; an equal one is accepted.
//! Within a process these structs are moved; between processes, and in snapshots, they are `MessagePack` with the names of
//! those fields that do not have their default.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits::RunLimit;
use super::loops::{Evidence, LoopKind, LoopLabels, Severity};
use super::predict::{EffortSums, Spread};
use super::span::{SpanId, Status, TraceId};

/// Structs whose fields are left out where they have their default, when they are written: so they are written with names, never
/// by their order.
macro_rules! facts {
    ($($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$doc])* #[serde(skip_serializing_if = "is_default")] pub $field: $kind,)*
        }
    )*};
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether more may come of a trace.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum TraceState {
    /// Spans may still come.
    #[default]
    Open,
    /// The root ended and it was quiet, or it timed out; a late span re-opens it.
    Done,
    /// Final: nothing can change it any more.
    Sealed,
}

/// What tells that a trace is over, or what an open one waits for; in rising order of how long that is waited for.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum OverBy {
    /// Its root is in.
    #[default]
    Root,
    /// The parent of an agent's span is of another process, and did not come: that span is the root.
    RemoteParent,
    /// Parents of such spans do not come.
    ParentsNeverCome,
    /// A parent is missing of which nothing is known.
    NothingKnown,
    /// The parent of an agent's span is of the same process: its caller still runs.
    LocalParent,
    /// Parents of such spans come.
    ParentsCome,
    /// It was open for `trace_max_age`.
    Age,
    /// There was no room for it.
    Room,
    /// The input ended.
    EndOfInput,
}

/// Whether new user input began a trace.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum TurnStart {
    /// The wire does not tell, and nothing in the trace is an answer to anybody.
    #[default]
    Unknown,
    /// A user's message began it.
    Asked,
    /// It goes on with the trace before it.
    Continued,
}

/// What a step of a trace calls.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A model.
    #[default]
    Model,
    /// A tool.
    Tool,
    /// Another agent.
    Agent,
}

/// How a layer of what was expected went.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum ExpectedStatus {
    /// Nothing was asked, or nothing of it could be checked.
    #[default]
    Skip,
    /// As expected.
    Pass,
    /// Not quite.
    Warn,
    /// Not as expected.
    Fail,
}

facts! {
    /// Whose series a trace counts towards.
    pub struct AgentKey {
        /// Authenticated tenant; empty: without tenants.
        pub tenant: String,
        /// `service.name`.
        pub service_name: String,
        /// `gen_ai.agent.name`; empty: no span named it.
        pub agent_name: String,
        /// Its version; empty: not told.
        pub agent_version: String,
        /// `deployment.environment.name`; empty: not told.
        pub environment: String,
    }

    /// Which conversation a trace belongs to.
    pub struct SessionKey {
        /// Authenticated tenant; empty: without tenants.
        pub tenant: String,
        /// The session id.
        pub id: String,
        /// Tells sessions of one id apart: the namespace of their services, or their agent; empty: the id is one's own.
        pub scope: String,
        /// The attribute that named the session, `trace` or `instance`.
        pub source: String,
    }

    /// A session of a tenant that is known.
    pub struct ScopedId {
        /// The session id.
        pub id: String,
        /// Its scope, as [`SessionKey`] has it.
        pub scope: String,
    }

    /// One tool call, in order of start.
    pub struct ToolCall {
        /// The tool; empty: unknown.
        pub name: String,
        /// Canonical JSON text; absent: not sent.
        pub arguments: Option<String>,
        /// Hash of the canonical result; absent: not sent.
        pub result_hash: Option<u64>,
        /// Absent: the wire does not tell.
        pub error: Option<bool>,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, likewise.
        pub end_unix_nano: u64,
        /// Hash of the canonical arguments; absent: not sent.
        pub arguments_hash: Option<u64>,
        /// Sorted hashes of the distinct values in the arguments; only where the run may go on in the next trace.
        pub argument_values: Vec<u64>,
        /// Hash of the id that the model gave the call; likewise.
        pub call_id: Option<u64>,
        /// Start and end are those of the call, not of the model call that asked for it.
        pub timed: bool,
        /// Its span, or that of the model call that asked for it; zero: unknown, as of a call that came with an earlier trace.
        pub span_id: SpanId,
    }

    /// What a model was told of an earlier call.
    #[derive(Copy)]
    pub struct CallResult {
        /// Hash of the id that the model gave the call.
        pub call_id: u64,
        /// It is marked as an error.
        pub failed: bool,
        /// Hash of the canonical result; absent: not sent.
        pub hash: Option<u64>,
    }

    /// A rule that an agent broke.
    pub struct Violation {
        /// The rule.
        pub constraint: String,
        /// `low`, `medium`, `high`; absent: not said.
        pub severity: Option<String>,
    }

    /// What a trace says of the attempt at a task that it is part of.
    pub struct Attempt {
        /// The task that is run repeatedly.
        pub task: Option<String>,
        /// The experiment.
        pub run: Option<String>,
        /// The repetition.
        pub trial: Option<String>,
        /// Whether the task succeeded; absent: nobody said.
        pub success: Option<bool>,
        /// The agent says that it gave up or handed over.
        pub abstained: Option<bool>,
        /// `none`, `fault`, `environment`, `prompt`; absent: not said.
        pub perturbation: Option<String>,
        /// Which disturbance of its kind.
        pub perturbation_id: Option<String>,
        /// It is the undisturbed run that others are compared with.
        pub baseline: Option<bool>,
        /// The answer that is right.
        pub expected_output: Option<String>,
        /// The tools that should be called, in order.
        pub expected_tools: Vec<String>,
        /// Documents that were found, by id.
        pub retrieved: Vec<String>,
        /// Documents that the answer cites, by id.
        pub cited: Vec<String>,
        /// Rules that were broken.
        pub violations: Vec<Violation>,
    }

    /// Tokens of a trace or of a loop; absent: not told.
    #[derive(Copy)]
    pub struct Tokens {
        /// Tokens read, cached ones included.
        pub input: Option<u64>,
        /// Tokens written, reasoning included.
        pub output: Option<u64>,
    }

    /// One loop: an unbroken run of tool calls.
    pub struct Loop {
        /// Its kind.
        pub kind: LoopKind,
        /// How bad it is.
        pub severity: Severity,
        /// The tool that is called; of a cycle the first.
        pub tool: String,
        /// Calls in the run; full periods of a cycle.
        pub count: u64,
        /// How much of it is on the wire.
        pub evidence: Evidence,
        /// The traces of the run, in order.
        pub trace_ids: Vec<TraceId>,
        /// Of a run within one trace the places of its first and last call among the tool calls of that.
        pub calls: Option<(u64, u64)>,
        /// Spans of its calls, of those that tell; the first so many.
        pub span_ids: Vec<SpanId>,
        /// Tokens spent in it.
        pub tokens: Option<Tokens>,
        /// Cost in 1e-12 USD.
        pub cost_quanta: Option<i64>,
        /// The tools of one period, in order.
        pub tools: Vec<String>,
    }

    /// A score that somebody reported for a trace or a session.
    pub struct ReportedScore {
        /// The signal.
        pub name: String,
        /// The score, in quanta of 1e-12.
        pub score_quanta: i64,
        /// `reported`, `judge`.
        pub source: String,
        /// Evaluator and version.
        pub identifier: String,
        /// When it was made, in nanoseconds since the Unix epoch.
        pub time_unix_nano: u64,
        /// What it was called, if it was.
        pub label: Option<String>,
        /// Why, if our judge said.
        pub explanation: Option<String>,
        /// Our judge, its model and version of the prompts, where `identifier` is the rule that was broken.
        pub judge: Option<String>,
    }

    /// What the output's similarity to its neighbours is computed from.
    pub struct OutputDigest {
        /// Sorted hashes of the distinct tokens.
        pub tokens: Vec<u64>,
        /// The hashed embedding: integer counts, so that a cosine has the same bits everywhere.
        pub embedding: Vec<i32>,
        /// What an embedding model made of the text, of length one, in steps of 1e-6; only if one was asked.
        pub model_embedding: Vec<i32>,
        /// Hash of that model's name.
        pub embedder: u64,
    }

    /// Texts, present only where content is kept.
    pub struct Content {
        /// What the user said.
        pub input: Option<String>,
        /// What the agent answered.
        pub output: Option<String>,
        /// What it did, in order of start.
        pub steps: Vec<Step>,
    }

    /// A call of a model, a tool or another agent.
    pub struct Step {
        /// Of what.
        pub kind: StepKind,
        /// The model, the tool or the agent; empty: unknown.
        pub name: String,
        /// Its span.
        pub span_id: SpanId,
        /// When it began, Unix nanoseconds.
        pub start_unix_nano: u64,
        /// When it ended.
        pub end_unix_nano: u64,
        /// Whether it failed; `None` where the wire does not tell.
        pub error: Option<bool>,
        /// Of a model.
        pub tokens: Option<Tokens>,
        /// In 1e-12 USD, of a model.
        pub cost_quanta: Option<i64>,
        /// Canonical JSON, of a tool.
        pub arguments: Option<String>,
        /// What a tool gave back, cut to a length.
        pub result: Option<String>,
    }

    /// What a trace has spent that was done before a span named its session.
    #[derive(Copy)]
    pub struct Spent {
        /// Tokens read.
        pub input_tokens: u64,
        /// Tokens written.
        pub output_tokens: u64,
        /// Cost in 1e-12 USD.
        pub cost_quanta: u64,
        /// Tool calls that went well.
        pub tools_ok: u64,
        /// Tool calls that failed.
        pub tools_failed: u64,
        /// Tool calls of which the wire does not tell.
        pub tools_unknown: u64,
        /// Model calls.
        pub model_calls: u64,
        /// Equal tool names next to each other.
        pub adjacent_tool_repeats: u64,
    }

    /// What a trace has told another session of, as it stood when it left: loops of an agent, or what it spent.
    pub struct ToldLoops {
        /// Under whose name.
        pub agent: Option<AgentKey>,
        /// The loops.
        pub loops: Vec<Loop>,
        /// What was spent.
        pub spent: Option<Spent>,
    }

    /// What an agent below the outermost one did in a trace.
    pub struct SubAgent {
        /// Its name.
        pub name: String,
        /// Model calls.
        pub model_calls: u64,
        /// Tool calls.
        pub tool_calls: u64,
        /// Calls of either that failed.
        pub errors: u64,
        /// Loops of its tool calls.
        pub loops: u64,
        /// Tokens read, as far as they are known.
        pub input_tokens: u64,
        /// Tokens written, likewise.
        pub output_tokens: u64,
        /// Cost in 1e-12 USD, likewise.
        pub cost_quanta: u64,
    }

    /// One layer of what a trace was expected to be.
    pub struct ExpectedLayer {
        /// How it went.
        pub status: ExpectedStatus,
        /// What was not as expected.
        pub problems: Vec<String>,
        /// What else there is to say.
        pub notes: Vec<String>,
        /// A JSON object; empty: none.
        pub details: String,
    }

    /// A trace against the expectations of a query that it answers.
    pub struct Expectation {
        /// The query.
        pub query: String,
        /// It must stop a build.
        pub hard_fail: bool,
        /// The answer.
        pub correctness: Option<ExpectedLayer>,
        /// The tools on the way.
        pub path: Option<ExpectedLayer>,
        /// The documents found.
        pub retrieval: Option<ExpectedLayer>,
        /// What it cost.
        pub cost: Option<ExpectedLayer>,
    }

    /// One trace, as assembled so far. Key: trace_id. Replaces every lower revision.
    pub struct TraceUpdate {
        /// The trace.
        pub trace_id: TraceId,
        /// Distinct spans, logs and reports applied, plus changes of state.
        pub revision: u64,
        /// The trace left this session: forget it here.
        pub tombstone: bool,
        /// Its session.
        pub session: Option<SessionKey>,
        /// Its agent.
        pub agent: Option<AgentKey>,
        /// Whether more may come.
        pub state: TraceState,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, likewise.
        pub end_unix_nano: u64,
        /// A root arrived.
        pub complete: bool,
        /// The root's status, as sent; absent: no root arrived.
        pub status: Option<Status>,
        /// The trace failed.
        pub error: bool,
        /// Tool calls, in order of start.
        pub tools: Vec<ToolCall>,
        /// Model calls.
        pub llm_calls: u64,
        /// Tokens of all model calls.
        pub tokens: Option<Tokens>,
        /// Cost in 1e-12 USD; absent: not known.
        pub cost_quanta: Option<i64>,
        /// Loops of tool calls.
        pub loops: Vec<Loop>,
        /// Scores that were reported or judged.
        pub reported: Vec<ReportedScore>,
        /// Absent: no output text arrived (not the same as an empty one).
        pub output_digest: Option<OutputDigest>,
        /// Texts.
        pub content: Option<Content>,
        /// Model and tool calls.
        pub steps: u64,
        /// Those that failed or repeat an earlier call and its result.
        pub wasted_steps: u64,
        /// Successful model calls that do not say how many tokens they took: what the tokens leave out.
        pub calls_without_tokens: u64,
        /// Likewise of which the price is not known.
        pub calls_without_cost: u64,
        /// Equal tool names next to each other.
        pub adjacent_tool_repeats: u64,
        /// The most model calls in a row without a tool call.
        pub calls_without_tool: u64,
        /// Agents below the outermost one, in the order of their names.
        pub sub_agents: Vec<SubAgent>,
        /// Arrival time of the newest thing applied.
        pub touched_unix_nano: u64,
        /// A trace was taken before its time (age, shutdown, eviction).
        pub partial: bool,
        /// What other sessions were told before the trace came to this one, so that it counts once.
        pub told: Vec<ToldLoops>,
        /// Whether new user input began it.
        pub turn_start: TurnStart,
        /// It ended on a tool call, not on an answer: the next trace may go on with it.
        pub unfinished: bool,
        /// What its model calls were told of calls of earlier traces; only if it may go on with one.
        pub results: Vec<CallResult>,
        /// The user.
        pub user: Option<String>,
        /// What it says of an attempt at a task.
        pub attempt: Option<Box<Attempt>>,
        /// Names of the models called, sorted.
        pub models: Vec<String>,
        /// Of these those that no table has a price for, and how many of their calls tell tokens but no cost.
        pub unpriced: Vec<(String, u64)>,
        /// Time spent in model calls, all together.
        pub model_nanos: u64,
        /// Model calls that failed.
        pub failed_model_calls: u64,
        /// Only of a trace that is done.
        pub expectations: Vec<Expectation>,
        /// Nearness of the output to the input, by an embedding model; absent: none was asked, or a text is missing.
        pub coherence_quanta: Option<i64>,
        /// Nothing is counted of it yet: no root is in, and one may still come, or nobody has named its agent and somebody may.
        pub uncertain: bool,
        /// Why it is taken for over, or is not yet.
        pub evidence: OverBy,
        /// Nothing has come since it was told as done: only the state is new, and of the rest no more is sent than trace,
        /// revision and session.
        pub unchanged: bool,
    }

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
        /// Tokens written.
        pub output_tokens: PartialSum,
        /// Cost in 1e-12 USD.
        pub cost_quanta: PartialSum,
        /// From the first start of a trace to its last end, in nanoseconds; pauses between traces left out.
        pub nanos: u64,
        /// Distinct words of the last answer; absent: no text arrived.
        pub answer_words: Option<u64>,
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
        pub signals: BTreeMap<String, SignalSum>,
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
        /// What it took.
        pub effort: Option<Effort>,
        /// The session.
        pub session: ScopedId,
        /// The computed signal with the greatest risk, where there is any.
        pub signal: String,
        /// The tool that failed last or loops; empty: none.
        pub tool: String,
    }

    /// One series of a family of counters.
    pub struct Counter {
        /// Label values, in the order of the family's labels.
        pub labels: Vec<String>,
        /// Its value.
        pub value: u64,
    }

    /// Counters of one name.
    pub struct Family {
        /// The name.
        pub name: String,
        /// The series.
        pub counters: Vec<Counter>,
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
        /// Changed panes only; a pane without traces is deleted.
        pub panes: Vec<PaneSum>,
        /// The greatest N by (start, trace id) on this shard.
        pub last: Vec<LastTrace>,
        /// Monotone since the process started.
        pub counters: Vec<Family>,
        /// What earlier processes counted, of the families whose totals are shown.
        pub earlier: Vec<Family>,
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
        pub trace_signals: BTreeMap<String, ScoreHistogram>,
        /// Traces that are part of a run, as far as they changed.
        pub run_traces: Vec<RunTrace>,
        /// Traces that were done for the first time since the last message.
        pub done_traces: Vec<DoneTrace>,
        /// Nothing but panes is told: what else was told before stays.
        pub panes_only: bool,
        /// How long its traces are silent.
        pub silences: Silences,
        /// What its traces took, by [`Distribution`](super::distributions::Distribution), each trace once.
        pub distributions: BTreeMap<String, ScoreHistogram>,
        /// How much effort its sessions took.
        pub spread: Arc<Spread>,
    }

    /// A marker that divides what came before it from what comes after.
    /// A stage passes it on when it has come in on all of its inputs.
    #[derive(Copy)]
    pub struct Barrier {
        /// Which one it is.
        pub epoch: u64,
        /// What a stage holds when it has come in on all inputs goes into the snapshot
        /// of the state after this record of the log; absent: no snapshot.
        pub log_sequence: Option<u64>,
    }

    /// A response that a trace has.
    pub struct Response {
        /// Absent: without tenants.
        pub tenant: Option<String>,
        /// The provider's id of the response.
        pub id: String,
        /// The trace.
        pub trace_id: TraceId,
    }

    /// A shard of the session stage has a new owner, who has told everything that the shard holds: what was told of it under a
    /// lower revision and not again is no more.
    #[derive(Copy)]
    pub struct Began {
        /// The shard.
        pub shard: u32,
        /// What is of a lower revision was told by an earlier owner.
        pub revision: u64,
    }
}

impl DoneTrace {
    /// When its facts count among those of all agents: as they came, whichever shard tells them.
    pub fn turn(&self) -> (u64, u64, Option<TraceId>, &ScopedId) {
        (self.touched_unix_nano, self.start_unix_nano, self.trace_id, &self.session)
    }

    /// What is told once under this name: the facts of a trace that was done, or an outcome that was told later.
    pub fn name(&self) -> Vec<u8> {
        let ScopedId { id, scope } = &self.session;
        let about = match &self.trace_id {
            Some(trace) => trace.0.to_vec(),
            None => [id.as_bytes(), b"\0", scope.as_bytes()].concat(),
        };
        [&[u8::from(self.looped.is_some())], &about[..]].concat()
    }
}

impl Effort {
    /// Both together; the answer is that of `other`, which came later, if it has one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let answer = other.answer_words.or(self.answer_words);
        Self { answer_words: answer, ..self.combined(other, u64::saturating_add) }
    }

    /// What is left without `other`, which was added; the answer stays.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combined(other, u64::saturating_sub)
    }

    fn combined(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        let told = |one: PartialSum, two: PartialSum| PartialSum {
            traces: of(one.traces, two.traces),
            sum: of(one.sum, two.sum),
        };
        Self {
            model_calls: of(self.model_calls, other.model_calls),
            tool_calls: of(self.tool_calls, other.tool_calls),
            judged_calls: of(self.judged_calls, other.judged_calls),
            failed_calls: of(self.failed_calls, other.failed_calls),
            output_tokens: told(self.output_tokens, other.output_tokens),
            cost_quanta: told(self.cost_quanta, other.cost_quanta),
            nanos: of(self.nanos, other.nanos),
            answer_words: self.answer_words,
        }
    }
}

impl ToolCall {
    /// How long it took, in nanoseconds, if that is known.
    pub fn took_nanos(&self) -> Option<u64> {
        self.timed.then(|| self.end_unix_nano.saturating_sub(self.start_unix_nano))
    }
}

impl SubAgent {
    /// The families of what is counted of it.
    pub const FAMILIES: [&str; 6] = [
        "sub_agent_cost_usd",
        "sub_agent_errors",
        "sub_agent_loops",
        "sub_agent_model_calls",
        "sub_agent_tokens",
        "sub_agent_tool_calls",
    ];

    /// What is counted of it: the family, the labels after its name, how much.
    pub fn counts(&self) -> [(&'static str, &'static [&'static str], u64); 7] {
        [
            ("sub_agent_cost_usd", &[], self.cost_quanta),
            ("sub_agent_errors", &[], self.errors),
            ("sub_agent_loops", &[], self.loops),
            ("sub_agent_model_calls", &[], self.model_calls),
            ("sub_agent_tokens", &["input"], self.input_tokens),
            ("sub_agent_tokens", &["output"], self.output_tokens),
            ("sub_agent_tool_calls", &[], self.tool_calls),
        ]
    }

    /// Adds what was counted of it under these labels after its name.
    pub fn count(&mut self, family: &str, labels: &[String], more: u64) {
        let sum = match (family, labels) {
            ("sub_agent_cost_usd", []) => &mut self.cost_quanta,
            ("sub_agent_errors", []) => &mut self.errors,
            ("sub_agent_loops", []) => &mut self.loops,
            ("sub_agent_model_calls", []) => &mut self.model_calls,
            ("sub_agent_tokens", [kind]) if kind == "input" => &mut self.input_tokens,
            ("sub_agent_tokens", [kind]) if kind == "output" => &mut self.output_tokens,
            ("sub_agent_tool_calls", []) => &mut self.tool_calls,
            _ => return,
        };
        *sum = sum.saturating_add(more);
    }
}

impl SessionKey {
    /// Whether it is that of one trace alone, which named none.
    pub fn is_own(&self) -> bool {
        self.source == "trace"
    }

    /// Whether a span or a resource named it.
    pub fn is_named(&self) -> bool {
        !matches!(&*self.source, "trace" | "instance")
    }
}

impl Spent {
    /// All that a trace says it has spent.
    pub fn of(update: &TraceUpdate) -> Self {
        let tools = update.tools.iter().map(|tool| tool.error);
        let told = (update.tokens.unwrap_or_default(), update.cost_quanta);
        Self::new(told, tools, update.llm_calls, update.adjacent_tool_repeats)
    }

    /// What so many tokens, such a cost in 1e-12 USD, and calls come to; of each tool call it is told whether it failed.
    pub fn new(
        (tokens, cost): (Tokens, Option<i64>),
        tools: impl Iterator<Item = Option<bool>>,
        model_calls: u64,
        adjacent_tool_repeats: u64,
    ) -> Self {
        let mut spent = Self {
            input_tokens: tokens.input.unwrap_or(0),
            output_tokens: tokens.output.unwrap_or(0),
            cost_quanta: cost.and_then(|cost| u64::try_from(cost).ok()).unwrap_or(0),
            model_calls,
            adjacent_tool_repeats,
            ..Self::default()
        };
        for failed in tools {
            let calls = match failed {
                Some(false) => &mut spent.tools_ok,
                Some(true) => &mut spent.tools_failed,
                None => &mut spent.tools_unknown,
            };
            *calls += 1;
        }
        spent
    }
}

impl OverBy {
    /// As results carry it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::RemoteParent => "remote_parent",
            Self::ParentsNeverCome => "parents_never_come",
            Self::NothingKnown => "nothing_known",
            Self::LocalParent => "local_parent",
            Self::ParentsCome => "parents_come",
            Self::Age => "age",
            Self::Room => "room",
            Self::EndOfInput => "end_of_input",
        }
    }
}

impl Expectation {
    /// The layers by name, in order; one that is absent is skipped.
    pub fn layers(&self) -> [(&'static str, Option<&ExpectedLayer>); 4] {
        [
            ("correctness", self.correctness.as_ref()),
            ("path", self.path.as_ref()),
            ("retrieval", self.retrieval.as_ref()),
            ("cost", self.cost.as_ref()),
        ]
    }
}

impl ExpectedStatus {
    /// As results and labels carry it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}
