//! Messages from the assemble stage to the session stage.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{AgentKey, SessionKey, facts, is_default};
use crate::counters::Counter;
use crate::loops::{Evidence, LoopKind, Severity};
use crate::math::Quanta;
use crate::math::text::Embedding;
use crate::math::words::Words;
use crate::signal::CONSTRAINT_VIOLATION;
use crate::span::{
    Attempt, Guardrail, IdHash, Report, Source, SpanId, Status, ToolResult, TraceId, Values,
};

/// The state of a trace: whether it may change.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum TraceState {
    /// Spans may still arrive.
    #[default]
    Open,
    /// The root ended and the trace was quiet, or the trace timed out; a late span reopens it.
    Done,
    /// Final: nothing can change it.
    Sealed,
}

/// Why a trace is done, or what an open one waits for; in rising order of the length of the wait.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum OverBy {
    /// Its root has arrived.
    #[default]
    Root,
    /// The parent of an agent's span is in another process and did not arrive: that span is the root.
    RemoteParent,
    /// A parent is missing, and parents of such spans never arrive.
    ParentsNeverCome,
    /// A parent is missing, and nothing is known about it.
    NothingKnown,
    /// The parent of an agent's span is in the same process: its caller is still running.
    LocalParent,
    /// A parent is missing, and parents of such spans usually arrive.
    ParentsCome,
    /// The trace was open for `trace_max_age`.
    Age,
    /// There was no room for the trace.
    Room,
    /// The input ended.
    EndOfInput,
}

/// Whether a trace began with new input of a user.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum TurnStart {
    /// Not known, and no text of the trace answers a user.
    #[default]
    Unknown,
    /// A user's message began it.
    Asked,
    /// It continues the previous trace.
    Continued,
}

/// The kind of callee of a step.
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

/// The verdict on one layer of an expectation.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum ExpectedStatus {
    /// Nothing was expected, or nothing expected could be checked.
    #[default]
    Skip,
    /// As expected.
    Pass,
    /// Not quite as expected.
    Warn,
    /// Not as expected.
    Fail,
}

facts! {
    /// One tool call, in order of start.
    pub struct ToolCall {
        /// The tool; empty: unknown.
        pub name: Arc<str>,
        /// Canonical JSON text; absent: not sent.
        pub arguments: Option<Arc<str>>,
        /// Hash of the canonical result; absent: not sent.
        pub result_hash: Option<u64>,
        /// Whether the call failed; absent: not known.
        pub error: Option<bool>,
        /// The kind of error, if the call failed: the name of a class, a code.
        pub error_type: Option<Arc<str>>,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, in nanoseconds since the Unix epoch.
        pub end_unix_nano: u64,
        /// Hash of the canonical arguments; absent: not sent.
        pub arguments_hash: Option<u64>,
        /// Sorted hashes of the distinct values in the arguments; only where the run may continue in the next trace.
        pub argument_values: Values,
        /// Hash of the id that the model gave the call; only where the run may continue in the next trace.
        pub call_id: Option<IdHash>,
        /// Whether start and end are those of the call, rather than of the model call that requested it.
        pub timed: bool,
        /// The series that the call belongs to, as the index of the span (a tool call or a parallel agent) that contains it; an
        /// index past the last span if that span has not arrived; absent: the trace's own series.
        pub within: Option<u32>,
        /// Its span, or the span of the model call that requested it; zero: unknown, as for a call that arrived with an earlier
        /// trace.
        pub span_id: SpanId,
    }

    /// What a trace reports apart from its calls.
    pub struct Remarks {
        /// The session that the trace's session continues.
        pub previous_session: Option<String>,
        /// Verdicts of guardrails, in order of start; only the first ones, up to a bound.
        pub guardrails: Vec<Guardrail>,
        /// When the agent started to wait for a person, in nanoseconds since the Unix epoch; absent: it does not wait.
        pub waits_since_unix_nano: Option<u64>,
        /// Changes to files that people accepted.
        pub accepted_edits: u64,
        /// Changes to files that people rejected.
        pub rejected_edits: u64,
        /// When the conversation was cut down to a summary, in order, in nanoseconds since the Unix epoch.
        pub compacted_unix_nano: Vec<u64>,
    }

    /// Tokens of a trace, a loop or a step; absent: not known.
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
        /// The tool that is called; for a cycle, the first one.
        pub tool: Arc<str>,
        /// Calls in the run; for a cycle, full periods.
        pub count: u64,
        /// How much of its calls was sent.
        pub evidence: Evidence,
        /// The traces of the run, in order.
        pub trace_ids: Vec<TraceId>,
        /// Indices of its first and last call among the tool calls of its trace; absent: the run spans several traces.
        pub calls: Option<(u64, u64)>,
        /// Spans of its calls, where they are known; only the first ones, up to a bound.
        pub span_ids: Vec<SpanId>,
        /// Tokens spent in it.
        pub tokens: Option<Tokens>,
        /// Cost in 1e-12 USD.
        pub cost_quanta: Option<i64>,
        /// The tools of one period, in order.
        pub tools: Vec<Arc<str>>,
    }

    /// A score that was reported for a trace or a session.
    pub struct ReportedScore {
        /// The signal.
        pub name: String,
        /// The score, in quanta of 1e-12.
        pub score_quanta: i64,
        /// Who made it: the judge or another reporter.
        pub source: Source,
        /// Evaluator and version.
        pub identifier: String,
        /// When it was made, in nanoseconds since the Unix epoch.
        pub time_unix_nano: u64,
        /// The score's label, if it has one.
        pub label: Option<String>,
        /// For an outcome, whether it is a success, as in [`Report`].
        pub success: Option<bool>,
        /// The reason for the score, if the judge gave one.
        pub explanation: Option<String>,
        /// The judge, with its model and the version of its prompts, if `identifier` is the rule that was broken.
        pub judge: Option<String>,
    }

    /// What the similarity of an output to those of neighbouring traces is computed from.
    pub struct OutputDigest {
        /// The distinct tokens.
        pub tokens: Words,
        /// The hashed embedding, made of counts of tokens.
        pub embedding: Embedding,
        /// The embedding of the text by an embedding model.
        pub by_model: Option<Box<ModelEmbedding>>,
    }

    /// The embedding of a text by a model.
    pub struct ModelEmbedding {
        /// The vector, of length one, in steps of 1e-6.
        pub embedding: Embedding,
        /// Hash of the model's name.
        pub embedder: u64,
    }

    /// Texts of a trace, present only if content is kept.
    pub struct Content {
        /// What the user said.
        pub input: Option<Arc<str>>,
        /// What the agent answered.
        pub output: Option<Arc<str>>,
        /// The agent's calls, in order of start.
        pub steps: Vec<Step>,
    }

    /// A call of a model, a tool or another agent.
    pub struct Step {
        /// What is called.
        pub kind: StepKind,
        /// The model, the tool or the agent; empty: unknown.
        pub name: Arc<str>,
        /// Its span.
        pub span_id: SpanId,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, in nanoseconds since the Unix epoch.
        pub end_unix_nano: u64,
        /// Whether it failed; absent: not known.
        pub error: Option<bool>,
        /// The kind of error, if it failed.
        pub error_type: Option<Arc<str>>,
        /// Tokens of a model call.
        pub tokens: Option<Tokens>,
        /// Cost of a model call, in 1e-12 USD.
        pub cost_quanta: Option<i64>,
        /// Time to the first chunk of a streamed response, in nanoseconds.
        pub first_chunk_nanos: Option<u64>,
        /// Arguments of a tool call, as canonical JSON.
        pub arguments: Option<Arc<str>>,
        /// Result of a tool call, truncated.
        pub result: Option<Arc<str>>,
    }

    /// What a trace has used that was done before a span named its session.
    #[derive(Copy)]
    pub struct CountedUsage {
        /// Tokens read.
        pub input_tokens: u64,
        /// Tokens written.
        pub output_tokens: u64,
        /// Cost in 1e-12 USD.
        pub cost_quanta: u64,
        /// Successful tool calls.
        pub tools_ok: u64,
        /// Tool calls that failed.
        pub tools_failed: u64,
        /// Tool calls whose outcome is not known.
        pub tools_unknown: u64,
        /// Model calls.
        pub model_calls: u64,
        /// Tool calls of the same tool as the call before.
        pub adjacent_tool_repeats: u64,
    }

    /// What was counted for a trace in another session before it left it: loops of an agent, or its usage.
    pub struct ToldLoops {
        /// The agent under which it was counted.
        pub agent: Option<AgentKey>,
        /// The loops.
        pub loops: Vec<Loop>,
        /// The usage.
        pub spent: Option<CountedUsage>,
    }

    /// What an agent below the outermost one did in a trace.
    pub struct SubAgent {
        /// Its name.
        pub name: String,
        /// Model calls.
        pub model_calls: u64,
        /// Tool calls.
        pub tool_calls: u64,
        /// Model and tool calls that failed.
        pub errors: u64,
        /// Loops of its tool calls.
        pub loops: u64,
        /// Tokens read, as far as they are known.
        pub input_tokens: u64,
        /// Tokens written, as far as they are known.
        pub output_tokens: u64,
        /// Cost in 1e-12 USD, as far as it is known.
        pub cost_quanta: u64,
    }

    /// One layer of an expectation, evaluated for the trace.
    pub struct ExpectedLayer {
        /// Its verdict.
        pub status: ExpectedStatus,
        /// What was not as expected.
        pub problems: Vec<String>,
        /// Other remarks.
        pub notes: Vec<String>,
        /// Details as a JSON object; empty: none.
        pub details: String,
    }

    /// How a trace met the expectations of a query that it answers.
    pub struct Expectation {
        /// The query.
        pub query: String,
        /// Whether it must stop a build.
        pub hard_fail: bool,
        /// The layer for the answer.
        pub correctness: Option<ExpectedLayer>,
        /// The layer for the tools that were called.
        pub path: Option<ExpectedLayer>,
        /// The layer for the documents that were found.
        pub retrieval: Option<ExpectedLayer>,
        /// The layer for the cost.
        pub cost: Option<ExpectedLayer>,
    }

    /// One trace, as assembled so far. Key: trace_id. Replaces every lower revision.
    pub struct TraceFacts {
        /// The trace.
        pub trace_id: TraceId,
        /// The number of the turn under the trace id on its spans: zero is the first, and each later turn has an id of its own
        /// here.
        pub turn: u16,
        /// Distinct spans, log records and reports applied, plus changes of state.
        pub revision: u64,
        /// Whether the trace has left this session, which must forget it.
        pub tombstone: bool,
        /// Its session.
        pub session: Option<SessionKey>,
        /// Its agent.
        pub agent: Option<AgentKey>,
        /// Its state: whether it may change.
        pub state: TraceState,
        /// Start, in nanoseconds since the Unix epoch.
        pub start_unix_nano: u64,
        /// End, in nanoseconds since the Unix epoch.
        pub end_unix_nano: u64,
        /// Whether a root arrived.
        pub complete: bool,
        /// The root's status, as sent; absent: no root arrived.
        pub status: Option<Status>,
        /// Whether the trace failed.
        pub error: bool,
        /// The kind of error of the outermost failed span that reports one.
        pub error_type: Option<Arc<str>>,
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
        /// The digest of the output; absent: no output text arrived (not the same as an empty one).
        pub output_digest: Option<OutputDigest>,
        /// Texts, if content is kept.
        pub content: Option<Content>,
        /// Model and tool calls.
        pub steps: u64,
        /// Model and tool calls that failed or repeat an earlier call and its result.
        pub wasted_steps: u64,
        /// Successful model calls without token counts; `tokens` leaves them out.
        pub calls_without_tokens: u64,
        /// Successful model calls of unknown cost; the cost leaves them out.
        pub calls_without_cost: u64,
        /// Tool calls of the same tool as the call before.
        pub adjacent_tool_repeats: u64,
        /// The most model calls in a row without a tool call.
        pub calls_without_tool: u64,
        /// Agents below the outermost one, in the order of their names.
        pub sub_agents: Vec<SubAgent>,
        /// Arrival time of the newest span, log record or report applied.
        pub touched_unix_nano: u64,
        /// Arrival time of the newest span or log record applied; for a trace that nothing named before it was sealed, the time at
        /// which it was due to be sealed.
        pub last_heard_unix_nano: u64,
        /// Whether the trace was ended early (age, shutdown, eviction), or something was left out because it was full.
        pub partial: bool,
        /// What other sessions counted before the trace moved to this one, so that it counts once.
        pub told: Vec<ToldLoops>,
        /// Whether it began with new input of a user.
        pub turn_start: TurnStart,
        /// Whether it ended with a tool call rather than an answer: the next trace may continue it.
        pub unfinished: bool,
        /// Results of earlier traces' tool calls that its model calls received; only if it may continue one of these traces.
        pub results: Vec<ToolResult>,
        /// The user.
        pub user: Option<String>,
        /// The attempt at a task that it is part of.
        pub attempt: Option<Box<Attempt>>,
        /// Remarks apart from its calls; few traces have any.
        pub remarks: Option<Box<Remarks>>,
        /// Names of the models called, sorted.
        pub models: SmallVec<[Arc<str>; 1]>,
        /// Models without a price in any table, each with the number of its calls that report tokens but no cost.
        pub unpriced: Vec<(Arc<str>, u64)>,
        /// Time spent in all model calls, in nanoseconds.
        pub model_nanos: u64,
        /// Time spent in the longest model call, in nanoseconds.
        pub longest_model_nanos: u64,
        /// Model calls that failed.
        pub failed_model_calls: u64,
        /// Model calls that were stopped early or refused; one more if the agent as a whole was stopped.
        pub stopped_calls: u64,
        /// How it met the expectations of queries; only once it is done.
        pub expectations: Vec<Expectation>,
        /// Similarity of the output to the input by an embedding model, in 1e-12; absent: no model was asked, or a text is missing.
        pub coherence_quanta: Option<i64>,
        /// Whether nothing of it counts yet: its root, or the name of its agent, is missing and may still arrive.
        pub uncertain: bool,
        /// Whether its verdicts count as skipped, because the span that names its agent and shows how it ended is missing.
        pub unjudged: bool,
        /// Why it is considered done, or what it waits for.
        pub evidence: OverBy,
        /// Whether nothing has arrived since it was sent as done: only the state is new, and only trace, revision and session are
        /// sent with it.
        pub unchanged: bool,
    }
}

impl ToolCall {
    /// How long it took, in nanoseconds, if that is known.
    pub fn took_nanos(&self) -> Option<u64> {
        self.timed.then(|| self.end_unix_nano.saturating_sub(self.start_unix_nano))
    }
}

impl From<&Report> for ReportedScore {
    fn from(report: &Report) -> Self {
        Self {
            name: report.name.to_string(),
            score_quanta: report.score.0,
            source: report.source,
            identifier: report.identifier.to_string(),
            time_unix_nano: report.time.0,
            label: report.label.as_ref().map(ToString::to_string),
            success: report.success,
            explanation: report.explanation.as_ref().map(ToString::to_string),
            judge: report.judge.as_ref().map(ToString::to_string),
        }
    }
}

impl ReportedScore {
    /// Merges a score into the scores of a trace, which are sorted by name, and violations by rule. For each name or rule the score
    /// from the most trusted source is kept, among these the latest, then the one with the greater (identifier, score).
    ///
    /// # Errors
    ///
    /// `duplicate` if another one is preferred, `trace_full` if there would be more than `most`.
    pub fn join(self, scores: &mut Vec<Self>, most: usize) -> Result<(), &'static str> {
        match scores.binary_search_by(|held| held.subject().cmp(&self.subject())) {
            Ok(at) if scores[at].rank() >= self.rank() => return Err("duplicate"),
            Ok(at) => scores[at] = self,
            Err(_) if scores.len() >= most => return Err("trace_full"),
            Err(at) => scores.insert(at, self),
        }
        Ok(())
    }

    /// What it scores: its name and, for a violation, the rule.
    fn subject(&self) -> (&str, &str) {
        let rule = if self.name == CONSTRAINT_VIOLATION { self.identifier.as_str() } else { "" };
        (&self.name, rule)
    }

    /// Whether it is a success, if it states an outcome.
    pub fn is_success(&self) -> bool {
        self.success.unwrap_or(self.score_quanta >= Quanta::ONE)
    }

    fn rank(&self) -> (Source, u64, &str, i64, bool) {
        let Self { source, time_unix_nano, identifier, score_quanta, .. } = self;
        (*source, *time_unix_nano, identifier, *score_quanta, self.is_success())
    }
}

impl CountedUsage {
    /// The total usage of a trace.
    pub fn of(update: &TraceFacts) -> Self {
        let tools = update.tools.iter().map(|tool| tool.error);
        let tokens = update.tokens.unwrap_or_default();
        let repeats = update.adjacent_tool_repeats;
        Self::new(tokens, update.cost_quanta, tools, update.llm_calls, repeats)
    }

    /// The sum of tokens, cost in 1e-12 USD, and calls; `tools` has for each tool call whether it failed.
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
    /// The families of the counters of a sub-agent.
    pub const FAMILIES: [Counter; 6] = [
        Counter::SubAgentCostUsd,
        Counter::SubAgentErrors,
        Counter::SubAgentLoops,
        Counter::SubAgentModelCalls,
        Counter::SubAgentTokens,
        Counter::SubAgentToolCalls,
    ];

    /// Its counters: the family, the labels after its name, and the amount of each.
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

    /// Adds `more` to the amount that a counter of this family, with these labels after the name, has.
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
    /// The layers by name, in order; an absent one counts as skipped.
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
    /// Its name in results.
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
    /// Its name in results and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}
