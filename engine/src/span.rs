//! The normalised span, log record and report: the input of the engine.
//!
//! A convention has already read the attributes; from here on the code knows concepts, not attribute names. Absent is `None`, never
//! an empty string and never zero.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::facts::AgentKey;
use super::math::Quanta;
use super::saved::{self, Name};

/// The scope of spans that are made from log records; a real scope's name has this hash only by chance.
pub const RECORD_SCOPE: u64 = 0x7265_636f_7264_6564;

/// The name of the span by which an agent reports that it is in a loop.
pub const REPORTED_LOOP: &str = "agentgauge.loop_detected";

/// The bytes in the middle of the trace id of a turn from log records.
const TURN_MARK: [u8; 2] = [0xa6, 0x75];

/// A W3C trace id: 16 bytes, not all zero.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TraceId(pub [u8; 16]);

/// A W3C span id: 8 bytes, not all zero.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SpanId(pub [u8; 8]);

/// The hash of an id that is only compared with others: of a tool call, or of a model's response.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct IdHash(NonZeroU64);

/// Nanoseconds since the Unix epoch.
///
/// Span times order things; arrival times drive timeouts. Both are of this type.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct Timestamp(pub u64);

/// What a span is about, in OpenTelemetry GenAI words.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum Operation {
    /// A model call.
    Chat,
    /// The creation of an agent, which is not behaviour.
    CreateAgent,
    /// An embedding call: not behaviour by itself.
    Embeddings,
    /// A judge at work, which is not the agent's behaviour.
    Evaluation,
    /// A tool call.
    ExecuteTool,
    /// An agent at work.
    InvokeAgent,
    /// Anything else: chains, HTTP, databases.
    #[default]
    Other,
    /// A search for documents.
    Retrieval,
}

/// A span's status, as sent.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum Status {
    /// Nothing was sent.
    #[default]
    Unset,
    /// The application reported success.
    Ok,
    /// The operation failed.
    Error,
}

/// A session id and the attribute that carried it.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionName {
    /// The attribute's name, as it goes into `session_source`.
    pub attribute: Arc<str>,
    /// The session id.
    pub id: Arc<str>,
}

/// What the resource of a span states; shared by all spans of one export.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Resource {
    /// `service.name`.
    pub service_name: Option<Arc<str>>,
    /// `service.namespace`.
    pub service_namespace: Option<Arc<str>>,
    /// `service.version`.
    pub service_version: Option<Arc<str>>,
    /// `service.instance.id`.
    pub instance_id: Option<Arc<str>>,
    /// `deployment.environment.name`.
    pub environment: Option<Arc<str>>,
    /// The agent's name, if the resource names one.
    pub agent_name: Option<Arc<str>>,
    /// A session id among the resource attributes.
    pub session: Option<SessionName>,
    /// The authenticated tenant; never read from an attribute.
    pub tenant: Option<Arc<str>>,
    /// Task and conditions, for all spans that do not state their own.
    pub attempt: Option<Box<Attempt>>,
}

/// Sorted hashes of the distinct values in arguments, each with its place ([`placed`]); usually few.
pub type Values = SmallVec<[u64; 3]>;

/// The hash of a value at a place: the upper half is from the value, the lower half from the place.
pub fn placed(value: u64, place: u64) -> u64 {
    const LOWER: u64 = u64::MAX >> 32;
    value & !LOWER | place & LOWER
}

/// Whether two hashes are of the same value, wherever it stands.
pub fn is_same_value(one: u64, other: u64) -> bool {
    one >> 32 == other >> 32
}

/// A tool call's arguments in canonical form, by which calls are compared.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Arguments {
    hash: u64,
    values: Values,
    // Only where texts are kept.
    text: Option<Arc<str>>,
}

/// What a tool span states about its call.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ToolFacts {
    /// The tool's name; unknown names are never equal to each other.
    pub name: Option<Arc<str>>,
    /// The id that the model gave the call.
    pub call_id: Option<IdHash>,
    /// The arguments, canonical.
    pub arguments: Option<Arguments>,
    /// Hash of the canonical result.
    pub result_hash: Option<u64>,
    /// Whether it is a framework's bookkeeping rather than a call by the agent.
    pub phantom: bool,
}

/// The result that a model received for a tool call that it had made.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: Option<IdHash>,
    /// Whether it is marked as an error.
    pub failed: bool,
    /// Hash of the canonical result; `None`: not sent.
    pub hash: Option<u64>,
}

/// Token counts of one model call.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Tokens {
    /// Tokens read, cached ones included.
    pub input: Option<u64>,
    /// Tokens read that came from a cache.
    pub cached: Option<u64>,
    /// Tokens read that were put into a cache.
    pub cache_written: Option<u64>,
    /// Tokens written, reasoning included.
    pub output: Option<u64>,
}

impl Tokens {
    /// The counts with their intended meaning, in view of the sum on the span, if there is one.
    ///
    /// There are none if a call appears to have read and written nothing: libraries write zeros when the counts are unknown. Tokens
    /// from a cache are added to the input if it does not contain them: if they are more than the input, or if the sum counts all
    /// of them separately.
    pub fn normalised(self, total: Option<u64>) -> Self {
        if (self.input, self.output) == (Some(0), Some(0)) {
            return Self::default();
        }
        let of_cache = self.cached.unwrap_or(0).saturating_add(self.cache_written.unwrap_or(0));
        if of_cache == 0 {
            return self;
        }
        let apart = |input: &u64| {
            let sum = input.saturating_add(of_cache).saturating_add(self.output.unwrap_or(0));
            of_cache > *input || total == Some(sum)
        };
        let input = self
            .input
            .map(|input| if apart(&input) { input.saturating_add(of_cache) } else { input });
        Self { input, ..self }
    }
}

/// What a model span states about its call.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ModelFacts {
    /// The model that responded, else the requested one.
    pub model: Option<Arc<str>>,
    /// The requested model, if its name differs.
    #[serde(default)]
    pub requested: Option<Arc<str>>,
    /// The provider's id of the response.
    pub response_id: Option<IdHash>,
    /// Tokens of this call.
    pub tokens: Tokens,
    /// Cost in US dollars.
    pub cost: Option<Quanta>,
    /// Tool calls in the model's output, in order; never those of its input.
    pub tool_calls: Vec<ToolFacts>,
    /// Results of earlier tool calls, from the end of its input.
    pub tool_results: Vec<ToolResult>,
    /// Whether a user's message ends its input; `None`: not sent.
    pub asked_by_user: Option<bool>,
    /// Whether the preceding conversation was cut down to a summary: the model may not know what it did.
    #[serde(default)]
    pub compacted: bool,
    /// Time to the first chunk of a streamed response, in nanoseconds.
    #[serde(default)]
    pub first_chunk_nanos: Option<u64>,
    /// Whether the model is self-hosted, so that no shipped price applies.
    #[serde(default)]
    pub local: bool,
}

/// What a span or a trace states about the attempt at a task that it is part of.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Attempt {
    /// The task or test case, which is run repeatedly.
    pub task: Option<Arc<str>>,
    /// The experiment or suite run.
    pub run: Option<Arc<str>>,
    /// The repetition.
    pub trial: Option<Arc<str>>,
    /// Whether the task succeeded; `None`: not reported.
    pub success: Option<bool>,
    /// Whether the agent reports that it gave up or handed over.
    pub abstained: Option<bool>,
    /// The kind of disturbance that it ran under: `none`, `fault`, `environment`, `prompt`.
    pub perturbation: Option<Arc<str>>,
    /// The disturbance among those of its kind.
    pub perturbation_id: Option<Arc<str>>,
    /// Whether it is the undisturbed run with which others are compared.
    pub baseline: Option<bool>,
    /// The correct answer.
    pub expected_output: Option<Arc<str>>,
    /// The tools that should be called, in order.
    pub expected_tools: Vec<Arc<str>>,
    /// Documents that were found, by id.
    pub retrieved: Vec<Arc<str>>,
    /// Documents that the answer cites, by id.
    pub cited: Vec<Arc<str>>,
    /// Rules that were broken.
    pub violations: Vec<Violation>,
}

/// A rule that an agent broke.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Violation {
    /// The rule.
    pub constraint: Arc<str>,
    /// How bad it is: `low`, `medium`, `high`; `None`: not said.
    pub severity: Option<Arc<str>>,
}

/// What few spans and log records state apart from calls: about their session, guardrails, and people.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Remarks {
    /// The session that the span's session continues.
    pub previous_session: Option<Arc<str>>,
    /// A guardrail that checked the input or the output.
    pub guardrail: Option<Guardrail>,
    /// The last time that the agent stopped to wait for a person, or continued.
    pub pause: Option<Pause>,
    /// The kind of error that ended the span, if it failed: the name of a class, a code.
    pub error_type: Option<Arc<str>>,
    /// The agent that a tool call started, whose work is below it.
    #[serde(default)]
    pub begins: Option<Arc<str>>,
    /// Whether a person accepted the change to a file that a tool call was to make.
    pub accepted_edit: Option<bool>,
    /// Whether the span ended before its work was done, to let a person answer: the rest is done in another run.
    #[serde(default)]
    pub interrupted: bool,
    /// Whether a person refused the tool call, so that it did not run.
    #[serde(default)]
    pub refused: bool,
    /// Whether the run that the span is part of failed with it, whatever the span of the run states.
    #[serde(default)]
    pub failed_run: bool,
}

/// The result of a guardrail.
#[derive(
    Clone, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[schemars(rename = "GuardrailView")]
pub struct Guardrail {
    /// Its name; null if not sent.
    pub name: Option<Arc<str>>,
    /// Its decision, in its own words; null if not sent.
    pub result: Option<Arc<str>>,
}

/// An agent stopped to wait for a person, or continued. The order is that of time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Pause {
    /// When it stopped or continued.
    pub at: Timestamp,
    /// Whether it waits from then on.
    pub waits: bool,
}

/// A text and its rank among texts of the same thing.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Text {
    /// 0 is best: the convention's order of preference within one span.
    pub rank: u8,
    /// The text itself, at most `max_text_bytes` long; empty if nothing reads it.
    pub text: Arc<str>,
}

/// One span, normalised. The order is total: of two spans with one id the same one is kept, whatever the order of arrival.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Span {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Its parent; `None` for a root.
    pub parent: Option<SpanId>,
    /// Whether its parent is in another process; `None`: not sent.
    #[serde(default)]
    pub remote_parent: Option<bool>,
    /// Start, by the client's clock (repaired if absurd).
    pub start: Timestamp,
    /// End, by the client's clock, never before `start`.
    pub end: Timestamp,
    /// The span's name.
    pub name: Arc<str>,
    /// What the span is about.
    pub operation: Operation,
    /// Its status, as sent; unset where its library says OK whatever happened.
    pub status: Status,
    /// Whether it failed, by its status or any other sign that the convention knows.
    pub failed: bool,
    /// Whether something stopped it early (the maximum length, a filter, a guardrail, a limit of turns) or the model refused.
    #[serde(default)]
    pub stopped: bool,
    /// Whether it is the streamed response to a model request that has a span of its own, which ended before the response began.
    #[serde(default)]
    pub streamed: bool,
    /// The convention that recognised the span; `None`: it is not agent telemetry.
    #[serde(deserialize_with = "saved::optional")]
    pub convention: Option<Name>,
    /// Hash of the scope's name, to distinguish libraries.
    pub scope: u64,
    /// The resource's facts.
    pub resource: Arc<Resource>,
    /// Agent name on this span.
    pub agent_name: Option<Arc<str>>,
    /// The workflow that the span is part of; only on spans of agents and of steps.
    pub workflow: Option<Arc<str>>,
    /// Agent id on this span; only on spans of agents and of steps.
    pub agent_id: Option<Arc<str>>,
    /// Agent version on this span.
    pub agent_version: Option<Arc<str>>,
    /// Environment on this span.
    pub environment: Option<Arc<str>>,
    /// The best session key among the span's own attributes, by the configured order.
    pub session: Option<SessionName>,
    /// A session id inside a JSON value.
    pub session_in_json: Option<SessionName>,
    /// The user.
    pub user: Option<Arc<str>>,
    /// The tool call, on tool spans.
    pub tool: Option<ToolFacts>,
    /// The model call, on model spans; on agent spans the sum of all model calls, if the span reports their usage.
    pub model: Option<ModelFacts>,
    /// Task, outcome, documents; boxed, as few spans have any.
    pub attempt: Option<Box<Attempt>>,
    /// Remarks on its session, on guardrails, on people; boxed, as few spans have any.
    #[serde(default)]
    pub remarks: Option<Box<Remarks>>,
    /// The user's text; on a model span the last message of the user, never the history.
    pub input: Option<Text>,
    /// The assistant's text; on a model span its answer, on an agent span the final answer.
    pub output: Option<Text>,
    /// Hash of an agent's input, if that is a proper text: different inputs mean different invocations.
    #[serde(default)]
    pub input_hash: Option<IdHash>,
}

/// One log record that a convention recognised, normalised.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Log {
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// The span it belongs to.
    pub span_id: Option<SpanId>,
    /// When it happened, else when it was observed (repaired if absurd).
    pub time: Timestamp,
    /// Position in its request: orders records of equal time.
    pub index: u32,
    /// Hash of the record, to recognise duplicates.
    pub id: u64,
    /// The user's text, if the record has it.
    pub input: Option<Text>,
    /// The assistant's text, if the record has it.
    pub output: Option<Text>,
    /// Tool calls in a model's output, if the record has it.
    pub tool_calls: Vec<ToolFacts>,
    /// Results of tools in a model's input, if the record has it.
    pub tool_results: Vec<ToolResult>,
    /// Whether the record states that the model call of its span failed.
    #[serde(default)]
    pub failed: bool,
    /// The kind of error, if it failed.
    pub error_type: Option<Arc<str>>,
    /// Whether a user's message ends the model's input in the record; `None`: the record has no input.
    pub asked_by_user: Option<bool>,
    /// Rules that were broken, according to the record.
    pub violations: Vec<Violation>,
    /// The moment at which the agent started to wait for a person, or continued.
    #[serde(default)]
    pub pause: Option<Pause>,
    /// The authenticated tenant; never read from an attribute.
    #[serde(default)]
    pub tenant: Option<Arc<str>>,
}

/// What a report is about.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Target {
    /// A trace.
    Trace(TraceId),
    /// The trace of the model call with this response id.
    Response {
        /// Authenticated tenant.
        tenant: Option<Arc<str>>,
        /// The provider's response id.
        id: Arc<str>,
    },
    /// A session.
    Session {
        /// Authenticated tenant.
        tenant: Option<Arc<str>>,
        /// The session id.
        id: Arc<str>,
        /// Its scope; `None`: whichever session has the id, if only one does.
        scope: Option<Arc<str>>,
    },
    /// One attempt of an agent at a task.
    Run(Box<RunTarget>),
    /// An agent as a whole.
    Agent(Box<AgentKey>),
}

/// One attempt of an agent at a task, whether or not it has traces.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct RunTarget {
    /// The agent that made the attempt.
    pub agent: AgentKey,
    /// The task.
    pub task: Arc<str>,
    /// The run.
    pub run: Arc<str>,
    /// The kind of disturbance that it ran under, if the report says.
    pub perturbation: Option<Arc<str>>,
}

/// Who made a score. The order is the precedence: the greatest wins.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub enum Source {
    /// The engine, from the trace.
    Computed,
    /// The judge.
    Judge,
    /// A reporter outside of agentgauge.
    #[default]
    Reported,
}

/// A score of a trace or a session, as it was reported.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Report {
    /// What the report is about.
    pub target: Target,
    /// The signal's name, mapped by config.
    pub name: Arc<str>,
    /// The score, in `[0,1]`.
    pub score: Quanta,
    /// The score's label, if it has one.
    pub label: Option<Arc<str>>,
    /// For an outcome, whether it is a success: as its label says or, for a grade without such a label, by the signal's threshold;
    /// `None`: only 1 is a success.
    pub success: Option<bool>,
    /// The reason for the score, if the judge gave one.
    pub explanation: Option<Arc<str>>,
    /// Who made it.
    pub source: Source,
    /// Evaluator and version; reports with the same target, name and identifier are duplicates.
    pub identifier: Arc<str>,
    /// The judge, with its model and the version of its prompts, if the identifier is the rule that was broken.
    #[serde(default)]
    pub judge: Option<Arc<str>>,
    /// When the score was made: of two reports from one source, the later wins, then the greater (identifier, score).
    pub time: Timestamp,
    /// The authenticated tenant of the sender: the report applies to this tenant's trace; `None`: to that of any tenant.
    #[serde(default)]
    pub tenant: Option<Arc<str>>,
}

impl Report {
    /// Whether it is a success, if it states an outcome.
    pub fn is_success(&self) -> bool {
        self.success.unwrap_or(self.score.0 >= Quanta::ONE)
    }
}

impl Span {
    /// Whether it was made from a log record and its trace is a turn from log records.
    pub(super) fn is_of_turn(&self) -> bool {
        self.scope == RECORD_SCOPE && self.trace_id.session_of_turn().is_some()
    }

    /// When a turn from log records begins with it; `None`: it is no prompt.
    pub fn prompts_at(&self) -> Option<Timestamp> {
        (self.parent.is_none() && self.is_of_turn()).then_some(self.start)
    }
}

impl Text {
    /// The rank of a text that is merely the JSON of something else: any other text of the turn is preferred.
    pub const LOOSE: u8 = 200;

    /// A text of this rank without its words, as a sign that there is one.
    #[must_use]
    pub fn unread(self) -> Self {
        Self { text: Arc::default(), ..self }
    }
}

/// Displays ids in hex, and serialises them as bytes rather than lists of numbers.
macro_rules! ids {
    ($($id:ident)*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $id {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_bytes(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Ok(Self(from.deserialize_bytes(Bytes)?))
            }
        }
    )*};
}

ids!(TraceId SpanId);

/// Reads an id of `N` bytes.
struct Bytes<const N: usize>;

impl<const N: usize> Visitor<'_> for Bytes<N> {
    type Value = [u8; N];

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{N} bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<[u8; N], E> {
        bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
    }
}

impl TraceId {
    /// The trace id of a turn from log records. The ids of all turns of a session share the first eight bytes, so they are adjacent
    /// in sorted tables.
    pub(super) fn of_turn(session: u64, turn: u64) -> Self {
        let [[a, b, c, d, e, f, g, h], [_, _, i, j, k, l, m, n]] =
            [session.to_be_bytes(), turn.to_be_bytes()];
        let [x, y] = TURN_MARK;
        // All zero means that the turn is not known.
        let last = if [i, j, k, l, m, n] == [0; 6] { 1 } else { n };
        Self([a, b, c, d, e, f, g, h, x, y, i, j, k, l, m, last])
    }

    /// The id that stands for an unknown turn of a session; the order of its records shows which one.
    pub(super) fn of_session(session: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = session.to_be_bytes();
        let [x, y] = TURN_MARK;
        Self([a, b, c, d, e, f, g, h, x, y, 0, 0, 0, 0, 0, 0])
    }

    /// The session of a turn, as passed to [`Self::of_turn`]; `None`: the id is not that of a turn from log records.
    pub(super) fn session_of_turn(self) -> Option<u64> {
        let [a, b, c, d, e, f, g, h, x, y, ..] = self.0;
        ([x, y] == TURN_MARK).then(|| u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Whether the id stands for an unknown turn of its session.
    pub(super) fn is_some_turn(self) -> bool {
        self.session_of_turn().is_some_and(|session| self == Self::of_session(session))
    }

    /// The span id of the root of a turn.
    pub(super) fn prompt(self) -> SpanId {
        SpanId::of(&[&self.0, b"prompt"])
    }

    /// The id under which a later turn of this trace is held: its number is combined with the first two bytes by exclusive or.
    /// Applied to that id again, it gives the id as sent.
    pub(super) fn of_further_turn(self, turn: u16) -> Self {
        let Self([a, b, rest @ ..]) = &self;
        let [x, y] = turn.to_be_bytes();
        let mut id = [0; 16];
        id[..2].copy_from_slice(&[a ^ x, b ^ y]);
        id[2..].copy_from_slice(rest);
        Self(id)
    }

    /// The bytes that decide the shard; all turns of a session share them, and so do all turns of one trace id.
    pub(super) fn routed_by(&self) -> &[u8] {
        let bytes = if self.session_of_turn().is_some() { 0..8 } else { 2..16 };
        self.0.get(bytes).unwrap_or(&self.0)
    }

    /// Whether the id is all zero, which the specification forbids.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl SpanId {
    /// The id that these parts hash to.
    pub(super) fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Xxh3::new();
        for part in parts {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.digest().max(1).to_be_bytes())
    }

    /// Whether the id is all zero, which the specification forbids.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 8]
    }
}

impl IdHash {
    /// The hash as a number, which is not zero.
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// The hash of the bytes of an id.
    pub(crate) fn of(id: &[u8]) -> Self {
        Self(NonZeroU64::new(xxh3_64(id)).unwrap_or(NonZeroU64::MIN))
    }

    /// The hash with this number; zero stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }
}

impl From<&str> for IdHash {
    fn from(id: &str) -> Self {
        Self::of(id.as_bytes())
    }
}

impl Timestamp {
    /// The time since an earlier moment; zero if that moment is in the future.
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `duration` later, at most the end of time.
    #[must_use]
    pub fn after(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// The moment `duration` earlier, at least the epoch.
    #[must_use]
    pub fn before(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Arguments {
    /// Arguments from a text that is already canonical JSON, and from the hashes of its values; see `convention::arguments`. The
    /// text is dropped unless it is to be kept.
    pub fn from_canonical(text: &[u8], values: &[u64], keep_text: bool) -> Self {
        let mut distinct = Values::from_slice(values);
        distinct.sort_unstable();
        distinct.dedup();
        let kept = keep_text.then(|| String::from_utf8_lossy(text).into());
        Self { hash: xxh3_64(text), values: distinct, text: kept }
    }

    /// Hash of the canonical JSON text.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The canonical JSON text; `None` where texts are not kept.
    pub fn text(&self) -> Option<&Arc<str>> {
        self.text.as_ref()
    }

    /// Sorted hashes of the distinct scalar values, each with the keys under which it occurs.
    pub fn values(&self) -> &Values {
        &self.values
    }
}

impl Status {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unset => "unset",
            Self::Ok => "ok",
            Self::Error => "error",
        }
    }
}

impl Source {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Computed => "computed",
            Self::Judge => "judge",
            Self::Reported => "reported",
        }
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
