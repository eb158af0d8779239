//! What the stage of traces tells the stage of sessions.

use serde::{Deserialize, Serialize};

use super::{AgentKey, SessionKey, facts, is_default};
use crate::counters::Counter;
use crate::loops::{Evidence, LoopKind, Severity};
use crate::math::text::Embedding;
use crate::span::{SpanId, Status, TraceId};

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

    /// What a trace says beside its calls.
    pub struct Remarks {
        /// The session that its session continues.
        pub previous_session: Option<String>,
        /// What guardrails came to, in order of start; the first so many.
        pub guardrails: Vec<Guardrail>,
        /// Since when the agent has been waiting for somebody, in nanoseconds since the Unix epoch; absent: it is not.
        pub waits_since_unix_nano: Option<u64>,
        /// Changes to files that people accepted.
        pub accepted_edits: u64,
        /// Those that they rejected.
        pub rejected_edits: u64,
        /// When the conversation was cut down to a summary, in order, in nanoseconds since the Unix epoch.
        pub compacted_unix_nano: Vec<u64>,
    }

    /// What a guardrail came to.
    pub struct Guardrail {
        /// Its name; absent: not sent.
        pub name: Option<String>,
        /// What it decided, in its own words; absent: not sent.
        pub result: Option<String>,
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
        /// The hashed embedding, of counts.
        pub embedding: Embedding,
        /// What an embedding model made of the text, of length one, in steps of 1e-6; only if one was asked.
        pub model_embedding: Embedding,
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
        /// Time until the first piece of the answer, in nanoseconds, of a model that streams.
        pub first_chunk_nanos: Option<u64>,
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
        /// What it says beside its calls; of few traces anything.
        pub remarks: Option<Box<Remarks>>,
        /// Names of the models called, sorted.
        pub models: Vec<String>,
        /// Of these those that no table has a price for, and how many of their calls tell tokens but no cost.
        pub unpriced: Vec<(String, u64)>,
        /// Time spent in model calls, all together.
        pub model_nanos: u64,
        /// The longest of them.
        pub longest_model_nanos: u64,
        /// Model calls that failed.
        pub failed_model_calls: u64,
        /// Model calls that were stopped before their end or refused, and the agent as a whole, if it was.
        pub stopped_calls: u64,
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
}

impl ToolCall {
    /// How long it took, in nanoseconds, if that is known.
    pub fn took_nanos(&self) -> Option<u64> {
        self.timed.then(|| self.end_unix_nano.saturating_sub(self.start_unix_nano))
    }
}

impl Spent {
    /// All that a trace says it has spent.
    pub fn of(update: &TraceUpdate) -> Self {
        let tools = update.tools.iter().map(|tool| tool.error);
        let tokens = update.tokens.unwrap_or_default();
        let repeats = update.adjacent_tool_repeats;
        Self::new(tokens, update.cost_quanta, tools, update.llm_calls, repeats)
    }

    /// What so many tokens, such a cost in 1e-12 USD, and calls come to; of each tool call it is told whether it failed.
    pub fn new(
        tokens: Tokens,
        cost: Option<i64>,
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

impl SubAgent {
    /// The families of what is counted of it.
    pub const FAMILIES: [Counter; 6] = [
        Counter::SubAgentCostUsd,
        Counter::SubAgentErrors,
        Counter::SubAgentLoops,
        Counter::SubAgentModelCalls,
        Counter::SubAgentTokens,
        Counter::SubAgentToolCalls,
    ];

    /// What is counted of it: the family, the labels after its name, how much.
    pub fn counts(&self) -> [(Counter, &'static [&'static str], u64); 7] {
        [
            (Counter::SubAgentCostUsd, &[], self.cost_quanta),
            (Counter::SubAgentErrors, &[], self.errors),
            (Counter::SubAgentLoops, &[], self.loops),
            (Counter::SubAgentModelCalls, &[], self.model_calls),
            (Counter::SubAgentTokens, &["input"], self.input_tokens),
            (Counter::SubAgentTokens, &["output"], self.output_tokens),
            (Counter::SubAgentToolCalls, &[], self.tool_calls),
        ]
    }

    /// Adds what was counted of it under these labels after its name.
    pub fn count(&mut self, family: Counter, labels: &[String], more: u64) {
        let sum = match (family, labels) {
            (Counter::SubAgentCostUsd, []) => &mut self.cost_quanta,
            (Counter::SubAgentErrors, []) => &mut self.errors,
            (Counter::SubAgentLoops, []) => &mut self.loops,
            (Counter::SubAgentModelCalls, []) => &mut self.model_calls,
            (Counter::SubAgentTokens, [kind]) if kind == "input" => &mut self.input_tokens,
            (Counter::SubAgentTokens, [kind]) if kind == "output" => &mut self.output_tokens,
            (Counter::SubAgentToolCalls, []) => &mut self.tool_calls,
            _ => return,
        };
        *sum = sum.saturating_add(more);
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
