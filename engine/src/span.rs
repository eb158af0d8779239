//! The normalised span, log record and report: what the engine is fed.
//!
//! A convention has already read the attributes; from here on there are concepts, not
//! attribute names. Absent is `None`, never an empty string and never zero.

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

/// The scope of spans that are made of log records; the name of a scope has this hash by chance alone.
pub const RECORD_SCOPE: u64 = 0x7265_636f_7264_6564;

/// The name of the span by which an agent reports that it is in a loop.
pub const REPORTED_LOOP: &str = "agentgauge.loop_detected";

/// The bytes in the middle of the trace id of a turn that log records tell of.
const TURN_MARK: [u8; 2] = [0xa6, 0x75];

/// A W3C trace id: 16 bytes, not all zero.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TraceId(pub [u8; 16]);

/// A W3C span id: 8 bytes, not all zero.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SpanId(pub [u8; 8]);

/// The hash of an id that is only compared with others: of a tool call, or of a model's answer.
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
    /// The creation of an agent: not behaviour.
    CreateAgent,
    /// An embedding call: not behaviour by itself.
    Embeddings,
    /// A judge at work: not the agent's behaviour.
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
    /// Nothing was said.
    #[default]
    Unset,
    /// The application said it went well.
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

/// What the resource of a span says; shared by all spans of one export.
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

/// Sorted hashes of the distinct values in arguments, each with its place ([`placed`]); mostly few.
pub type Values = SmallVec<[u64; 3]>;

/// The hash of a value at a place: the upper half is of the value, the lower half of the place.
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

/// What a tool span says of its call.
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
    /// Whether it is no call of the agent but a framework's bookkeeping.
    pub phantom: bool,
}

/// What a model was told of a tool call that it had made.
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
    /// The counts as they are meant, by the sum that the span tells, if it does.
    ///
    /// There are none if a call is said to have read and written nothing: libraries write zeros where nobody told them. Tokens of a cache are
    /// added to the input where it does not contain them: where they are more than it, or the sum has all of them side by side.
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

/// What a model span says of its call.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ModelFacts {
    /// The model that answered, else the one that was asked.
    pub model: Option<Arc<str>>,
    /// The model that was asked, if it has another name.
    #[serde(default)]
    pub requested: Option<Arc<str>>,
    /// The provider's id of the answer.
    pub response_id: Option<IdHash>,
    /// Tokens of this call.
    pub tokens: Tokens,
    /// Cost in US dollars.
    pub cost: Option<Quanta>,
    /// Tool calls in the model's output, in order; never those of its input.
    pub tool_calls: Vec<ToolFacts>,
    /// Results of earlier tool calls, from the end of its input.
    pub tool_results: Vec<ToolResult>,
    /// Whether a user's message ends its input; `None`: not on the wire.
    pub asked_by_user: Option<bool>,
    /// Whether the conversation before it was cut down to a summary: the model may not know what it did.
    #[serde(default)]
    pub compacted: bool,
    /// Time until the first piece of a streamed answer came, in nanoseconds.
    #[serde(default)]
    pub first_chunk_nanos: Option<u64>,
    /// Whether a server of one's own runs the model: no price ships for that.
    #[serde(default)]
    pub local: bool,
}

/// What a span or a trace says of the attempt at a task that it is part of.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Attempt {
    /// The task or test case that is run repeatedly.
    pub task: Option<Arc<str>>,
    /// The experiment or suite run.
    pub run: Option<Arc<str>>,
    /// The repetition.
    pub trial: Option<Arc<str>>,
    /// Whether the task succeeded; `None`: nobody said.
    pub success: Option<bool>,
    /// Whether the agent says that it gave up or handed over.
    pub abstained: Option<bool>,
    /// The kind of disturbance that it ran under: `none`, `fault`, `environment`, `prompt`.
    pub perturbation: Option<Arc<str>>,
    /// The disturbance among those of its kind.
    pub perturbation_id: Option<Arc<str>>,
    /// Whether it is the undisturbed run that others are compared with.
    pub baseline: Option<bool>,
    /// The answer that is right.
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

/// What few spans and log records say beside calls: of their session, of guardrails, of people.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Remarks {
    /// The session that the span's session continues.
    pub previous_session: Option<Arc<str>>,
    /// A guardrail that looked at what went in or came out.
    pub guardrail: Option<Guardrail>,
    /// The last time that the agent stopped to wait for somebody, or went on.
    pub pause: Option<Pause>,
    /// The kind of error that ended the span, if it failed: the name of a class, a code.
    pub error_type: Option<Arc<str>>,
    /// The agent that a tool call began, whose work is below it.
    #[serde(default)]
    pub begins: Option<Arc<str>>,
    /// Whether a person accepted the change to a file that a tool call was to make.
    pub accepted_edit: Option<bool>,
    /// Whether the span ended before its work was done, for a person to answer: what is left is done in another run.
    #[serde(default)]
    pub interrupted: bool,
    /// Whether a person refused the tool call, so that it did not run.
    #[serde(default)]
    pub refused: bool,
    /// Whether the run that the span is a part of failed with it, whatever the span of the run says.
    #[serde(default)]
    pub failed_run: bool,
}

/// What a guardrail came to.
#[derive(
    Clone, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[schemars(rename = "GuardrailView")]
pub struct Guardrail {
    /// Its name; null if not sent.
    pub name: Option<Arc<str>>,
    /// What it decided, in its own words; null if not sent.
    pub result: Option<Arc<str>>,
}

/// An agent stopped to wait for somebody, or went on. The order is that of time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Pause {
    /// When it stopped or went on.
    pub at: Timestamp,
    /// Whether it waits from then on.
    pub waits: bool,
}

/// A text and its rank among texts of the same thing.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Text {
    /// 0 is best: the convention's order of preference within one span.
    pub rank: u8,
    /// The text itself, at most `max_text_bytes` long; empty where nobody reads it.
    pub text: Arc<str>,
}

/// One span, normalised. The order is total, so that of two spans with one id the same one is kept, whichever comes first.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Span {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Its parent; `None` for a root.
    pub parent: Option<SpanId>,
    /// Whether its parent is of another process; `None`: not said.
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
    /// Whether something stopped it before its end (the greatest length, a filter, a guardrail, a limit of turns) or the model refused.
    #[serde(default)]
    pub stopped: bool,
    /// Whether it is the streamed answer to a model request that has a span of its own, which ended before the answer began.
    #[serde(default)]
    pub streamed: bool,
    /// The convention that recognised the span; `None`: it is no agent telemetry.
    #[serde(deserialize_with = "saved::optional")]
    pub convention: Option<Name>,
    /// Hash of the scope's name: tells libraries apart.
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
    /// The model call, on model spans; on agent spans all model calls together, if the span says what they used.
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
    /// Hash of an agent's input, if that is a proper text: what the agent was given tells one invocation from another.
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
    /// Hash of the record: tells a duplicate.
    pub id: u64,
    /// The user's text, if the record has it.
    pub input: Option<Text>,
    /// The assistant's text, if the record has it.
    pub output: Option<Text>,
    /// Tool calls in a model's output, if the record has it.
    pub tool_calls: Vec<ToolFacts>,
    /// Results of tools in a model's input, if the record has it.
    pub tool_results: Vec<ToolResult>,
    /// Whether the record says that the model call of its span failed.
    #[serde(default)]
    pub failed: bool,
    /// The kind of error of that.
    pub error_type: Option<Arc<str>>,
    /// Whether a user's message ends the model's input in the record; `None`: the record has no input.
    pub asked_by_user: Option<bool>,
    /// Rules that were broken, by the record.
    pub violations: Vec<Violation>,
    /// The moment at which the agent began to wait for somebody, or went on.
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
    /// We, from the trace.
    Computed,
    /// Our judge.
    Judge,
    /// Somebody else, in a report.
    #[default]
    Reported,
}

/// A score that somebody made of a trace or a session.
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
    /// Of an outcome, whether it is a success: as its label says or, of a grade without such a label, as the signal's threshold does;
    /// `None`: only 1 is one.
    pub success: Option<bool>,
    /// The reason for the score, if our judge gave one.
    pub explanation: Option<Arc<str>>,
    /// Who made it.
    pub source: Source,
    /// Evaluator and version; reports with the same target, name and identifier are duplicates.
    pub identifier: Arc<str>,
    /// Our judge, with its model and the version of its prompts, where the identifier is the rule that was broken.
    #[serde(default)]
    pub judge: Option<Arc<str>>,
    /// When the score was made: of two reports of one source, the later wins, then the greater
    /// (identifier, score).
    pub time: Timestamp,
    /// The authenticated tenant of the sender: the report holds for this tenant's trace; `None`: for that of any.
    #[serde(default)]
    pub tenant: Option<Arc<str>>,
}

impl Report {
    /// Whether it is a success, if it tells an outcome.
    pub fn is_success(&self) -> bool {
        self.success.unwrap_or(self.score.0 >= Quanta::ONE)
    }
}

impl Span {
    /// Whether it was made of a log record and its trace is a turn that log records tell of.
    pub(super) fn is_of_turn(&self) -> bool {
        self.scope == RECORD_SCOPE && self.trace_id.session_of_turn().is_some()
    }
}

impl Text {
    /// The rank of a text that is just the JSON of something else: any other text of the turn is better.
    pub const LOOSE: u8 = 200;

    /// The fact that there is a text of this rank, without its words.
    #[must_use]
    pub fn unread(self) -> Self {
        Self { text: Arc::default(), ..self }
    }
}

/// Has ids shown in hex, and written as bytes, not as lists of numbers.
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
    /// The trace id of a turn that log records tell of. All turns of a session have the first eight bytes in common, so they are
    /// found in one place.
    pub(super) fn of_turn(session: u64, turn: u64) -> Self {
        let [[a, b, c, d, e, f, g, h], [_, _, i, j, k, l, m, n]] =
            [session.to_be_bytes(), turn.to_be_bytes()];
        let [x, y] = TURN_MARK;
        // All zero says that the turn is not known.
        let last = if [i, j, k, l, m, n] == [0; 6] { 1 } else { n };
        Self([a, b, c, d, e, f, g, h, x, y, i, j, k, l, m, last])
    }

    /// The id that stands for some turn of a session; the order of its records tells which one.
    pub(super) fn of_session(session: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = session.to_be_bytes();
        let [x, y] = TURN_MARK;
        Self([a, b, c, d, e, f, g, h, x, y, 0, 0, 0, 0, 0, 0])
    }

    /// The session of a turn, as [`Self::of_turn`] took it; `None`: the id is not that of a turn that log records tell of.
    pub(super) fn session_of_turn(self) -> Option<u64> {
        let [a, b, c, d, e, f, g, h, x, y, ..] = self.0;
        ([x, y] == TURN_MARK).then(|| u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Whether the id stands for some turn of its session that is not known.
    pub(super) fn is_some_turn(self) -> bool {
        self.session_of_turn().is_some_and(|session| self == Self::of_session(session))
    }

    /// The span id of the root of a turn.
    pub(super) fn prompt(self) -> SpanId {
        SpanId::of(&[&self.0, b"prompt"])
    }

    /// The id under which a further turn of this trace is held: its number is added to the first two bytes, bit by bit. The same, of that
    /// id, is the id as it was sent.
    pub(super) fn of_further_turn(self, turn: u16) -> Self {
        let Self([a, b, rest @ ..]) = &self;
        let [x, y] = turn.to_be_bytes();
        let mut id = [0; 16];
        id[..2].copy_from_slice(&[a ^ x, b ^ y]);
        id[2..].copy_from_slice(rest);
        Self(id)
    }

    /// The bytes that decide the shard; those of all turns of a session are the same, and those of all turns of one trace id.
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

    /// The hash that is this number; zero stands for none.
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
    /// The time since an earlier moment; zero if that is still to come.
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
    /// Arguments of a text that is canonical JSON already, and of the hashes of its values; see `convention::arguments`. The text is
    /// left out unless it is to be kept.
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

    /// Sorted hashes of the distinct scalar values, each with the keys that it stands under.
    pub fn values(&self) -> &Values {
        &self.values
    }
}

impl Status {
    /// The name that results carry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unset => "unset",
            Self::Ok => "ok",
            Self::Error => "error",
        }
    }
}

impl Source {
    /// The name that results carry.
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
