//! Conventions: what each instrumentation library calls things.
//!
//! The only place that knows attribute names. A convention is one file and one line in
//! [`CONVENTIONS`]; it recognises by attributes and scope, never by schema URL.

mod arguments;
mod custom;
mod draft;
mod evaluation;
mod langfuse;
mod messages;
mod openinference;
mod openllmetry;
mod otel_genai;
mod python;
mod raw;
mod text;

use std::sync::Arc;

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

pub use custom::CONCEPTS;
pub use raw::{RawAttributes, RawEvent, RawLink, RawLog, RawResource, RawScope, RawSpan, RawValue};

use self::draft::{Draft, meant, name};
use super::options::ConventionOptions;
use super::span::{
    Log, ModelFacts, Operation, Report, Resource, SessionName, Span, Status, Target, Text, Tokens,
    ToolFacts,
};

/// What one library or specification calls things.
trait Convention: Sync {
    /// Its name in counts.
    fn name(&self) -> &'static str;

    /// Offers what it finds on a span.
    fn read(&self, raw: &RawSpan<'_>, scope: &RawScope<'_>, draft: &mut Draft);

    /// Takes what it finds in a log record; `event` is the event's name, wherever it was.
    fn log(&self, _raw: &RawLog<'_>, _event: &str, _draft: &mut LogDraft) {}
}

/// All conventions; the order says nothing, ranks do.
const CONVENTIONS: &[&dyn Convention] = &[
    &langfuse::Langfuse,
    &openinference::OpenInference,
    &openllmetry::OpenLlmetry,
    &otel_genai::OtelGenAi,
];

/// Attributes that name a session, best first.
pub const SESSION_KEYS: &[&str] = &[
    "langfuse.session.id",
    "session.id",
    "gen_ai.conversation.id",
    "traceloop.association.properties.session_id",
    "ai.telemetry.metadata.sessionId",
    "ai.settings.context.sessionId",
    "mastra.metadata.sessionId",
    "gcp.vertex.agent.session_id",
    "anthropic.session.id",
];

/// Attributes whose JSON value may hold a session id.
pub const SESSION_JSON_KEYS: &[&str] = &["metadata{session_id}", "metadata{thread_id}"];

/// Reads spans, log records and resources by all conventions.
#[derive(Clone, Debug)]
pub struct Conventions {
    options: ConventionOptions,
}

/// What was read from a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The span.
    pub span: Span,
    /// Scores on it.
    pub reports: Vec<Report>,
    /// Why something on it was of no use.
    pub unused: Vec<&'static str>,
}

/// What was read from a log record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogReading {
    /// The record, if it belongs to a trace and says something about it.
    pub log: Option<Log>,
    /// The score in it.
    pub reports: Vec<Report>,
    /// Why it was of no use.
    pub unused: Vec<&'static str>,
}

/// What conventions say of a log record.
#[derive(Debug, Default)]
struct LogDraft {
    recognised: bool,
    input: Option<String>,
    output: Option<String>,
    tool_calls: Vec<ToolFacts>,
}

impl Conventions {
    /// Reads by these options.
    pub fn new(options: ConventionOptions) -> Self {
        Self { options }
    }

    /// Reads a resource; the tenant comes from the connection, never from an attribute.
    pub fn resource(&self, raw: &RawResource<'_>, tenant: Option<&Arc<str>>) -> Arc<Resource> {
        let first = |keys: &[&str]| {
            let value = keys.iter().find_map(|key| raw.attributes.get(key)).and_then(name);
            value.map(|value| self.cap_name(value))
        };
        Arc::new(Resource {
            service_name: first(&["service.name"]),
            service_version: first(&["service.version"]),
            instance_id: first(&["service.instance.id"]),
            environment: first(&["deployment.environment.name", "deployment.environment"]),
            agent_name: first(&["gen_ai.main_agent.name"]),
            session: self.session_of(&raw.attributes),
            tenant: tenant.cloned(),
        })
    }

    /// Reads a span.
    pub fn span(
        &self,
        raw: &RawSpan<'_>,
        scope: &RawScope<'_>,
        resource: &Arc<Resource>,
    ) -> Reading {
        let mut draft = Draft::default();
        custom::read(&self.options.attributes, raw, &mut draft);
        for convention in CONVENTIONS {
            convention.read(raw, scope, &mut draft);
        }
        let attributes = &raw.attributes;
        draft.user.offer(90, attributes.get("user.id").and_then(name));
        let environment = attributes
            .get("deployment.environment.name")
            .or_else(|| attributes.get("deployment.environment"));
        draft.environment.offer(90, environment.and_then(name));
        let operation = draft.operation.get().copied().unwrap_or_default();
        let results = evaluation::of_span(self, raw, operation, resource.tenant.as_ref());
        let mut reading = Reading { span: self.finish(draft, raw, resource), ..Reading::default() };
        for result in results {
            match result {
                Ok(report) => reading.reports.push(report),
                Err(why) => reading.unused.push(why),
            }
        }
        reading
    }

    /// Reads a log record.
    pub fn log(&self, raw: &RawLog<'_>, _: &RawScope<'_>, resource: &Arc<Resource>) -> LogReading {
        let named = raw
            .attributes
            .str("event.name")
            .or_else(|| raw.body.as_str().filter(|body| *body == evaluation::RESULT));
        let event =
            if raw.event_name.is_empty() { named.unwrap_or_default() } else { &raw.event_name };
        let mut reading = LogReading::default();
        if event == evaluation::RESULT {
            let own = raw.trace_id.map(Target::Trace);
            match evaluation::of_log(self, &raw.attributes, own, raw.time, resource.tenant.as_ref())
            {
                Ok(report) => reading.reports.push(report),
                Err(why) => reading.unused.push(why),
            }
            return reading;
        }
        let mut draft = LogDraft::default();
        for convention in CONVENTIONS {
            convention.log(raw, event, &mut draft);
        }
        let says = draft.input.is_some() || draft.output.is_some() || !draft.tool_calls.is_empty();
        match raw.trace_id {
            Some(trace_id) if says => {
                let text = |text: Option<String>| {
                    text.map(|text| self.cap_text(Text { rank: 90, text: Arc::from(text) }))
                };
                reading.log = Some(Log {
                    trace_id,
                    span_id: raw.span_id,
                    time: raw.time,
                    index: raw.index,
                    id: identity(raw, event),
                    input: text(draft.input),
                    output: text(draft.output),
                    tool_calls: draft.tool_calls,
                });
            }
            Some(_) if draft.recognised => reading.unused.push("log_without_content"),
            None if draft.recognised => reading.unused.push("log_without_trace"),
            Some(_) | None => reading.unused.push("log_not_recognised"),
        }
        reading
    }

    /// The best session key among attributes.
    fn session_of(&self, attributes: &RawAttributes<'_>) -> Option<SessionName> {
        self.options.session_keys.iter().find_map(|key| {
            let id = attributes.get(key).and_then(name)?;
            Some(SessionName { attribute: Arc::from(key.as_str()), id: self.cap_name(id) })
        })
    }

    /// A session id inside the JSON value of an attribute.
    fn session_in_json(&self, attributes: &RawAttributes<'_>) -> Option<SessionName> {
        self.options.session_json_keys.iter().find_map(|key| {
            let (attribute, inner) = key.strip_suffix('}')?.split_once('{')?;
            let value = attributes.get(attribute).and_then(messages::parsed)?;
            let id = match value.get(inner)? {
                Value::String(id) => meant(id)?.to_owned(),
                Value::Number(id) => id.to_string(),
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
            };
            Some(SessionName {
                attribute: Arc::from(key.as_str()),
                id: self.cap_name(Arc::from(id)),
            })
        })
    }

    fn finish(&self, draft: Draft, raw: &RawSpan<'_>, resource: &Arc<Resource>) -> Span {
        let operation = draft.operation.take().unwrap_or_default();
        let cap = |name: Option<Arc<str>>| name.map(|name| self.cap_name(name));
        let name = self.cap_name(Arc::from(&*raw.name));
        let custom_session = draft
            .session
            .take()
            .map(|id| SessionName { attribute: Arc::from("custom"), id: self.cap_name(id) });
        let tool = (operation == Operation::ExecuteTool).then(|| {
            let from_span =
                || raw.name.trim_start_matches("execute_tool ").trim_end_matches(".tool").trim();
            let name = draft.tool_name.take().or_else(|| meant(from_span()).map(Arc::from));
            ToolFacts {
                phantom: name.as_deref().is_some_and(|name| draft.phantoms.contains(name)),
                name: cap(name),
                call_id: cap(draft.tool_call_id.take()),
                arguments: draft.arguments.take(),
                result_hash: draft.result_hash.take(),
            }
        });
        let model = (operation == Operation::Chat).then(|| ModelFacts {
            model: cap(draft.model.take()),
            response_id: cap(draft.response_id.take()),
            tokens: Tokens { input: draft.input_tokens.take(), output: draft.output_tokens.take() },
            cost: draft.cost.take(),
            tool_calls: draft.tool_calls.take().unwrap_or_default(),
        });
        Span {
            trace_id: raw.trace_id,
            span_id: raw.span_id,
            parent: raw.parent,
            start: raw.start,
            end: raw.end,
            name,
            operation,
            status: raw.status,
            failed: match raw.status {
                Status::Error => true,
                Status::Ok => false,
                Status::Unset => draft.failed,
            },
            convention: draft.convention.take(),
            resource: resource.clone(),
            agent_name: cap(draft.agent_name.take()),
            agent_version: cap(draft.agent_version.take()),
            environment: cap(draft.environment.take()),
            session: custom_session.or_else(|| self.session_of(&raw.attributes)),
            session_in_json: self.session_in_json(&raw.attributes),
            user: cap(draft.user.take()),
            tool,
            model,
            input: draft.input.take().map(|text| self.cap_text(text)),
            output: draft.output.take().map(|text| self.cap_text(text)),
        }
    }

    fn cap_name(&self, name: Arc<str>) -> Arc<str> {
        if name.len() <= self.options.max_name_bytes {
            name
        } else {
            Arc::from(capped(&name, self.options.max_name_bytes))
        }
    }

    fn cap_text(&self, text: Text) -> Text {
        let max = self.options.max_text_bytes;
        if text.text.len() <= max {
            text
        } else {
            Text { text: Arc::from(capped(&text.text, max)), ..text }
        }
    }
}

/// What a span is about, by the name of its operation or kind.
fn operation_named(name: &str) -> Option<Operation> {
    match name.to_ascii_lowercase().as_str() {
        "chat" | "text_completion" | "generate_content" | "llm" | "generation" => {
            Some(Operation::Chat)
        }
        "create_agent" => Some(Operation::CreateAgent),
        "embeddings" | "embedding" => Some(Operation::Embeddings),
        "evaluation" | "evaluator" => Some(Operation::Evaluation),
        "execute_tool" | "tool" => Some(Operation::ExecuteTool),
        "invoke_agent" | "agent" => Some(Operation::InvokeAgent),
        "retrieval" | "retriever" => Some(Operation::Retrieval),
        "invoke_workflow"
        | "chain"
        | "plan"
        | "execute_event_loop_cycle"
        | "agent_step"
        | "execute_task" => Some(Operation::Other),
        _ => None,
    }
}

/// A text cut to at most `max` bytes, at a character.
fn capped(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// A hash of what a record says, so that it is the same record whenever it comes again.
fn identity(raw: &RawLog<'_>, event: &str) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&raw.trace_id.unwrap_or_default().0);
    hash.update(&raw.span_id.unwrap_or_default().0);
    hash.update(&raw.time.0.to_be_bytes());
    hash.update(event.as_bytes());
    hash.update(messages::json(&raw.body).to_string().as_bytes());
    for (key, value) in &raw.attributes.0 {
        hash.update(key.as_bytes());
        hash.update(messages::json(value).to_string().as_bytes());
    }
    hash.digest()
}

#[cfg(test)]
mod tests;
