//! Conventions: the names that each instrumentation library uses.
//!
//! The only place that knows attribute names. A convention is one file with a `CONVENTION`, and one line in
//! [`CONVENTIONS`]; it is recognised by attributes and scope, never by schema URL.

mod ag2;
mod agent_framework;
mod agentgauge;
mod agentops;
mod agentscope;
mod anthropic;
mod arguments;
mod autogen;
mod aws_distro;
mod beeai;
mod braintrust;
mod caps;
mod claude_code;
mod codex;
mod copilot;
mod custom;
mod dialect;
mod draft;
mod dspy;
mod evaluation;
mod fast_agent;
mod finish;
mod flat;
mod gemini_cli;
mod genkit;
mod google_adk;
mod google_genai_oi;
mod haystack;
mod haystack_oi;
mod index;
mod json;
mod judgeval;
mod laminar;
mod langchain;
mod langfuse;
mod langsmith;
mod langwatch;
mod lines;
mod litellm;
mod livekit;
mod llama_index;
mod logfire;
mod masked;
mod mastra;
pub mod mend;
mod messages;
mod mirascope;
mod mlflow;
mod mlflow_genai;
mod names;
mod netra;
mod openai_agents;
mod openhands;
mod openinference;
mod openlit;
mod openlit_steps;
mod openllmetry;
mod otel_genai;
mod page;
mod pipecat;
mod plan;
mod pydantic_ai;
mod python;
mod quarkus;
mod qwen_code;
mod raw;
mod score_record;
mod span_kind;
mod spring_ai;
mod stamps;
mod strands;
mod text;
mod upsonic;
mod usage;
mod vercel_ai;
mod voltagent;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub use caps::{Caps, id_within, whole_words};
pub use custom::{LogConvention, concepts};
pub use evaluation::{SentReport, trace_id};
pub use names::Names;
pub use page::page;
pub use raw::{
    Outline, Plain, RawAttributes, RawEvent, RawLink, RawLog, RawPair, RawResource, RawScope,
    RawSpan, RawValue,
};
pub use score_record::{OWN_SCOPE, RESULT, ScoreValue, score_attributes, sender_attributes};

use self::dialect::Dialect;
use self::draft::{Draft, lower, name};
use self::finish::Naming;
use self::index::{Hits, Index};
use self::json::Json;
use self::lines::Line;
use super::options::ConventionOptions;
use super::span::{
    Log, Operation, Pause, Report, Resource, SessionName, Span, Target, ToolFacts, ToolResult,
    Violation,
};

/// The names that one library or specification uses: a file states the differences from [`Self::NONE`].
///
/// Most of a convention is a table of lines; what lines cannot express is code. The documentation is written from both.
struct Convention {
    /// Its name in counts.
    name: &'static str,
    /// The library and its versions, for people.
    title: &'static str,
    /// What a user sets to get a session id, as a line of Markdown.
    session: &'static str,
    /// What names the agent, as a line of Markdown.
    agent: &'static str,
    /// The keys and scopes by which it is recognised; without any it is read on every span.
    marks: &'static [Mark],
    /// The attributes it reads.
    lines: &'static [Line],
    /// What it reads beyond the lines, each as a sentence of Markdown.
    also: &'static [&'static str],
    /// Names that mean no tool.
    phantoms: &'static [&'static str],
    /// Names that the library gives to agents that the user did not name, in any case.
    generic_names: &'static [&'static str],
    /// The triggers of its code: without any of them on a span, `operation` and `read` are not called. If it is empty, they are
    /// called on every span that is recognised by a mark.
    looks_for: &'static [Trigger],
    /// The operation of a span, if no line shows it, with a rank like that of a line.
    operation: fn(&RawSpan<'_>) -> Option<(u8, Operation)>,
    /// Offers to the draft what no line finds on a span.
    read: for<'v> fn(&'v RawSpan<'_>, &mut Draft<'v>),
    /// The dialect of its agents, if they send log records instead of spans.
    dialect: Option<fn() -> Dialect>,
    /// Writes the facts of a log record into the draft; the text is the event's name, wherever it was.
    log: fn(&RawLog<'_>, &str, &mut LogDraft),
}

impl Convention {
    /// A convention that reads nothing.
    const NONE: Self = Self {
        name: "",
        title: "",
        session: "",
        agent: "",
        marks: &[],
        lines: &[],
        also: &[],
        phantoms: &[],
        generic_names: &[],
        looks_for: &[],
        operation: |_| None,
        read: |_, _| {},
        dialect: None,
        log: |_, _, _| {},
    };
}

/// A mark by which a convention is recognised.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// A span attribute.
    Key(&'static str),
    /// The beginning of the scope's name.
    Scope(&'static str),
}

/// A trigger of a convention's code on a span.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    /// An attribute.
    Key(&'static str),
    /// Attributes whose names begin with this, which ends in a dot.
    Keys(&'static str),
    /// An event.
    Event,
    /// Spans of this name.
    Span(&'static str),
}

/// All conventions, in the order of the documentation; ranks decide which of them wins.
const CONVENTIONS: &[Convention] = &[
    otel_genai::CONVENTION,
    openinference::CONVENTION,
    openllmetry::CONVENTION,
    langfuse::CONVENTION,
    vercel_ai::CONVENTION,
    mastra::CONVENTION,
    langchain::CONVENTION,
    langsmith::CONVENTION,
    laminar::CONVENTION,
    openhands::CONVENTION,
    langwatch::CONVENTION,
    logfire::CONVENTION,
    pydantic_ai::CONVENTION,
    mlflow::CONVENTION,
    mlflow_genai::CONVENTION,
    strands::CONVENTION,
    google_adk::CONVENTION,
    agent_framework::CONVENTION,
    autogen::CONVENTION,
    ag2::CONVENTION,
    openlit::CONVENTION,
    openlit_steps::CONVENTION,
    anthropic::CONVENTION,
    claude_code::CONVENTION,
    codex::CONVENTION,
    gemini_cli::CONVENTION,
    qwen_code::CONVENTION,
    copilot::CONVENTION,
    litellm::CONVENTION,
    llama_index::CONVENTION,
    haystack::CONVENTION,
    haystack_oi::CONVENTION,
    spring_ai::CONVENTION,
    quarkus::CONVENTION,
    genkit::CONVENTION,
    dspy::CONVENTION,
    openai_agents::CONVENTION,
    google_genai_oi::CONVENTION,
    aws_distro::CONVENTION,
    beeai::CONVENTION,
    braintrust::CONVENTION,
    voltagent::CONVENTION,
    agentops::CONVENTION,
    judgeval::CONVENTION,
    mirascope::CONVENTION,
    netra::CONVENTION,
    upsonic::CONVENTION,
    agentscope::CONVENTION,
    fast_agent::CONVENTION,
    livekit::CONVENTION,
    pipecat::CONVENTION,
    span_kind::CONVENTION,
    agentgauge::CONVENTION,
];

/// Names that libraries give to agents that the user did not name.
pub fn generic_names() -> impl Iterator<Item = &'static str> {
    CONVENTIONS.iter().flat_map(|convention| convention.generic_names).copied()
}

/// Whether some library gives this name to an agent that the user did not name.
pub(super) fn is_generic(name: &str) -> bool {
    // By length, which rules out most names: this is called for each span.
    static GENERIC: LazyLock<BTreeMap<usize, Vec<&str>>> = LazyLock::new(|| {
        let mut by_length: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for name in generic_names() {
            by_length.entry(name.len()).or_default().push(name);
        }
        by_length
    });
    let of_length = GENERIC.get(&name.len());
    of_length.is_some_and(|names| names.iter().any(|generic| generic.eq_ignore_ascii_case(name)))
}

/// Whether a name is a random id: a UUID, or as many hex digits.
pub(super) fn is_random(name: &str) -> bool {
    name.len() >= 32 && name.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// The names of all conventions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CONVENTIONS.iter().map(|convention| convention.name)
}

/// Attributes that name a session, best first.
pub const SESSION_KEYS: &[&str] = &[
    "langfuse.session.id",
    "session.id",
    "gen_ai.conversation.id",
    "gen_ai.session.id",
    "traceloop.association.properties.session_id",
    "ai.telemetry.metadata.sessionId",
    "ai.settings.context.sessionId",
    "mastra.metadata.sessionId",
    "gcp.vertex.agent.session_id",
    "anthropic.session.id",
    "langsmith.metadata.session_id",
    "langsmith.metadata.thread_id",
    "langsmith.metadata.conversation_id",
    "mlflow.trace.session",
    "spring.ai.chat.client.conversation.id",
    "lmnr.association.properties.session_id",
    "langwatch.thread.id",
    "traceloop.association.properties.thread_id",
    "langfuse.trace.metadata.langfuse_session_id",
    "langfuse.observation.metadata.langfuse_session_id",
    "langfuse.trace.metadata.session_id",
    "langfuse.observation.metadata.session_id",
    "langfuse.trace.metadata.thread_id",
    "langfuse.observation.metadata.thread_id",
    "mastra.metadata.threadId",
    "anthropic.session.thread.id",
    "wandb.thread_id",
    "confident.trace.thread_id",
    "judgment.session_id",
    "mirascope.ops.session.id",
    "netra.session_id",
];

/// Attributes whose JSON value may hold a session id.
pub const SESSION_JSON_KEYS: &[&str] =
    &["metadata{session_id}", "metadata{thread_id}", "metadata{sessionId}"];

/// Reads spans, log records and resources by all conventions.
#[derive(Clone, Debug)]
pub struct Conventions {
    options: ConventionOptions,
    index: Arc<Index>,
    // The dialects of the configuration come first.
    dialects: Arc<[Dialect]>,
}

/// The facts of an instrumentation scope for all its spans and records.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Hash of its name.
    id: u64,
    /// The conventions that are read in it, as bits.
    recognised: u64,
    /// The dialect of its log records.
    dialect: Option<usize>,
    /// Whether it is agentgauge's own, so that its records are scores that were sent back.
    own: bool,
}

/// The sender of a span or a record: a scope of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Emitter<'r> {
    /// The scope.
    pub scope: Scope,
    /// The resource.
    pub resource: &'r Arc<Resource>,
}

/// The result of reading a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecodedSpan {
    /// The span.
    pub span: Span,
    /// The scores on it.
    pub reports: Vec<Report>,
    /// What was cut in it; see [`Caps::cuts`].
    pub repaired: Vec<&'static str>,
    /// The reasons why something on it was not used.
    pub unused: Vec<&'static str>,
}

/// The result of reading a log record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecodedLog {
    /// The record, if it belongs to a trace and has facts about it.
    pub log: Option<Log>,
    /// The spans made from the record of an agent that sends log records.
    pub spans: Vec<Span>,
    /// The score in it.
    pub reports: Vec<Report>,
    /// What was cut in it; see [`Caps::cuts`].
    pub repaired: Vec<&'static str>,
    /// The reasons why it was not used.
    pub unused: Vec<&'static str>,
}

/// The facts that conventions find in a log record.
#[derive(Debug, Default)]
struct LogDraft {
    recognised: bool,
    failed: bool,
    error_type: Option<String>,
    input: Option<String>,
    output: Option<String>,
    tool_calls: Vec<ToolFacts>,
    tool_results: Vec<ToolResult>,
    asked_by_user: Option<bool>,
    violations: Vec<Violation>,
    waits: Option<bool>,
}

impl Conventions {
    /// Makes a reader with these options.
    pub fn new(options: ConventionOptions) -> Self {
        let index = Arc::new(Index::new(&options));
        let configured = options.logs.iter().cloned().map(Dialect::of);
        let known = CONVENTIONS.iter().filter_map(|convention| Some(convention.dialect?()));
        let dialects = configured.chain(known).collect();
        Self { options, index, dialects }
    }

    /// Returns a reader that runs the code of every recognised convention on each span, to test the triggers.
    pub fn asking_all(mut self) -> Self {
        Arc::get_mut(&mut self.index).into_iter().for_each(Index::ask_all);
        self
    }

    /// Reads a resource, and returns it with what was cut in it. The tenant comes from the connection, never from an attribute.
    pub fn resource(
        &self,
        raw: &RawResource<'_>,
        tenant: Option<&Arc<str>>,
    ) -> (Arc<Resource>, Vec<&'static str>) {
        let caps = self.caps();
        let first = |keys: &[&str]| {
            let value = keys.iter().find_map(|key| raw.attributes.get(key)).and_then(name);
            value.map(|value| Arc::from(caps.name(&value)))
        };
        let instance = raw.attributes.get("service.instance.id").and_then(name);
        let mut draft = Draft::default();
        let hits = Hits::once(&self.index, &raw.attributes);
        hits.take_attempt(&raw.attributes, &mut draft);
        let resource = Resource {
            service_name: first(&["service.name"]),
            service_namespace: first(&["service.namespace"]),
            service_version: first(&["service.version"]),
            instance_id: instance.map(|id| Arc::from(caps.id(&id))),
            environment: first(&["deployment.environment.name", "deployment.environment"]),
            agent_name: first(&["gen_ai.main_agent.name"]),
            session: self.session_of(&hits, &raw.attributes).map(|session| SessionName {
                attribute: Arc::from(session.attribute),
                id: Arc::from(caps.id(&session.id)),
            }),
            tenant: tenant.cloned(),
            attempt: draft.take_attempt(&caps),
        };
        (Arc::new(resource), caps.cuts())
    }

    /// Reads a scope.
    pub fn scope(&self, raw: &RawScope<'_>) -> Scope {
        Scope {
            id: xxh3_64(raw.name.as_bytes()),
            recognised: self.index.by_scope(raw),
            dialect: self.dialects.iter().position(|dialect| dialect.is_of(&raw.name)),
            own: raw.name == OWN_SCOPE,
        }
    }

    /// Reads a span; names that were read before are shared.
    pub fn span(&self, raw: &RawSpan<'_>, emitter: Emitter<'_>, names: &mut Names) -> DecodedSpan {
        let hits = Hits::new(&self.index, &raw.attributes, emitter.scope.recognised).on(raw);
        let mut draft = Draft::new(self.options.keep_texts);
        hits.take_operation(raw, &mut draft);
        hits.take_rest(raw, &mut draft);
        let operation = draft.operation.get().copied().unwrap_or_default();
        let caps = self.caps();
        let results = if hits.may_be_scored() {
            evaluation::of_span(&caps, raw, operation, emitter.resource.tenant.as_ref())
        } else {
            evaluation::Results::new()
        };
        let span = Naming { caps: &caps, names }.finish(raw, &hits, &mut draft, emitter);
        let mut reading = DecodedSpan { span, repaired: caps.cuts(), ..DecodedSpan::default() };
        for result in results {
            match result {
                Ok(report) => reading.reports.push(report),
                Err(why) => reading.unused.push(why),
            }
        }
        reading
    }

    /// Reads a log record.
    pub fn log(&self, raw: &RawLog<'_>, emitter: Emitter<'_>) -> DecodedLog {
        let Emitter { scope, resource } = emitter;
        // agentgauge's own scores, sent back.
        if scope.own {
            return DecodedLog { unused: vec!["own_score"], ..DecodedLog::default() };
        }
        if let Some(reading) = self.spoken(raw, emitter) {
            return reading;
        }
        let named = raw
            .attributes
            .str("event.name")
            .or_else(|| raw.body.as_str().filter(|body| *body == evaluation::RESULT));
        let event =
            if raw.event_name.is_empty() { named.unwrap_or_default() } else { &raw.event_name };
        let (caps, mut reading) = (self.caps(), DecodedLog::default());
        if event == evaluation::RESULT {
            let own = raw.trace_id.map(Target::Trace);
            match evaluation::of_log(
                &caps,
                &raw.attributes,
                own,
                raw.time,
                resource.tenant.as_ref(),
            ) {
                Ok(report) => reading.reports.push(report),
                Err(why) => reading.unused.push(why),
            }
            reading.repaired = caps.cuts();
            return reading;
        }
        let mut draft = LogDraft::default();
        for convention in CONVENTIONS {
            (convention.log)(raw, event, &mut draft);
        }
        let text = |text: Option<String>| Some(caps.text(text::ranked(90, text.map(Cow::Owned))?));
        let (input, output) = (text(draft.input), text(draft.output));
        let says = draft.failed
            || draft.waits.is_some()
            || input.is_some()
            || output.is_some()
            || draft.asked_by_user.is_some()
            || !draft.tool_calls.is_empty()
            || !draft.tool_results.is_empty()
            || !draft.violations.is_empty();
        match raw.trace_id {
            Some(trace_id) if says => {
                reading.log = Some(Log {
                    trace_id,
                    span_id: raw.span_id,
                    time: raw.time,
                    index: raw.index,
                    id: identity(raw, event),
                    input,
                    output,
                    tool_calls: draft.tool_calls,
                    tool_results: draft.tool_results,
                    failed: draft.failed,
                    error_type: draft.error_type.map(|kind| Arc::from(caps.name(&kind))),
                    asked_by_user: draft.asked_by_user,
                    violations: caps.violations(draft.violations),
                    pause: draft.waits.map(|waits| Pause { at: raw.time, waits }),
                    tenant: resource.tenant.clone(),
                });
            }
            Some(_) if draft.recognised => reading.unused.push("log_without_content"),
            None if draft.recognised => reading.unused.push("log_without_trace"),
            Some(_) | None => reading.unused.push("log_not_recognised"),
        }
        reading.repaired = caps.cuts();
        reading
    }
}

/// Operations that do not count: steps of workflows, memory, messages between agents.
const OTHER_OPERATIONS: [&str; 32] = [
    "agent_step",
    "chain",
    "create_memory",
    "create_memory_store",
    "decide",
    "delete_memory",
    "delete_memory_store",
    "execute_event_loop_cycle",
    "execute_node",
    "execute_task",
    "executor.process",
    "guardrail",
    "invoke_workflow",
    "memory_operation",
    "message.send",
    "model_chunk",
    "model_generation",
    "plan",
    "processor_run",
    "react",
    "run_guardrail",
    "search_memory",
    "stt",
    "tts",
    "unknown",
    "update_memory",
    "upsert_memory",
    "workflow",
    "workflow.build",
    "workflow.run",
    "workflow_run",
    "workflow_step",
];

/// The operation of a span, by the name of its operation or kind.
fn operation_named(name: &str) -> Option<Operation> {
    match &*lower(name) {
        "chat" | "text_completion" | "generate_content" | "completion" | "llm" | "generation" => {
            Some(Operation::Chat)
        }
        "create_agent" => Some(Operation::CreateAgent),
        "embeddings" | "embedding" => Some(Operation::Embeddings),
        "evaluation" | "evaluator" => Some(Operation::Evaluation),
        "execute_tool" | "tool" => Some(Operation::ExecuteTool),
        "invoke_agent" | "invoke_graph" | "invoke_swarm" | "process_thread_run" | "agent" => {
            Some(Operation::InvokeAgent)
        }
        "retrieval" | "retriever" | "rerank" | "reranker" => Some(Operation::Retrieval),
        name if OTHER_OPERATIONS.contains(&name) => Some(Operation::Other),
        _ => None,
    }
}

/// A hash of the content of a record, which is the same whenever the record is resent.
fn identity(raw: &RawLog<'_>, event: &str) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&raw.trace_id.unwrap_or_default().0);
    hash.update(&raw.span_id.unwrap_or_default().0);
    hash.update(&raw.time.0.to_be_bytes());
    hash.update(event.as_bytes());
    hash.update(Json::of(&raw.body).to_string().as_bytes());
    for (key, value) in raw.attributes.iter() {
        hash.update(key.as_bytes());
        hash.update(Json::of(value).to_string().as_bytes());
    }
    hash.digest()
}

#[cfg(test)]
mod tests;
