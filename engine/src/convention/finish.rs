//! Makes the engine's span from a draft: names and texts are cut to their limits, and names are shared.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::draft::{Draft, SessionDraft, name, names_response, tool_named, without_placeholder};
use super::index::Hits;
use super::json::Json;
use super::{
    Caps, Conventions, Emitter, Names, RawAttributes, RawSpan, lines, messages, otel_genai,
};
use crate::span::{
    IdHash, ModelFacts, Operation, SessionName, Span, Status, Text, Tokens, ToolFacts,
};

/// What cuts names to their limit and shares those that were read before.
pub(super) struct Naming<'n> {
    pub(super) caps: &'n Caps<'n>,
    pub(super) names: &'n mut Names,
}

impl Conventions {
    /// The best session key among attributes.
    pub(super) fn session_of<'v>(
        &self,
        hits: &Hits<'_>,
        attributes: &'v RawAttributes<'_>,
    ) -> Option<SessionDraft<'v>> {
        hits.sessions(attributes).find_map(|(attribute, value)| {
            let id = name(value).filter(|id| !names_response(id))?;
            Some(SessionDraft { attribute, id })
        })
    }
}

impl Caps<'_> {
    /// A session id inside the JSON value of an attribute.
    fn session_in_json(
        &self,
        hits: &Hits<'_>,
        attributes: &RawAttributes<'_>,
    ) -> Option<SessionName> {
        hits.session_json(attributes).find_map(|(key, inner, value)| {
            let value = messages::parsed(value)?;
            let id = match value.get(inner)? {
                Json::Text(id) => without_placeholder(id)?.to_owned(),
                Json::Number(id) => id.to_string(),
                Json::Null | Json::Bool(_) | Json::List(_) | Json::Object(_) => return None,
            };
            Some(SessionName { attribute: Arc::from(key), id: Arc::from(self.id(&id)) })
        })
    }

    /// Adds to a span the values that are read from texts, and those that few spans have.
    pub(super) fn finish_texts(&self, draft: &mut Draft<'_>, span: &mut Span) {
        if let Some(tool) = &mut span.tool {
            tool.arguments = draft.arguments.take();
            tool.result_hash = draft.result_hash.take();
        }
        if let Some(model) = &mut span.model {
            let foreign = draft.foreign.take() == Some(true);
            model.cost = draft.cost.take().filter(|_| !foreign);
            model.tool_calls = draft.tool_calls.take().unwrap_or_default();
            model.tool_results = draft.tool_results.take().unwrap_or_default();
            model.asked_by_user = draft.asked_by_user.take();
            model.compacted = draft.compacted.take() == Some(true);
        }
        let result = draft.result.take().filter(|_| span.tool.is_some());
        let output = result.or_else(|| draft.output.take());
        span.attempt = draft.take_attempt(self);
        span.remarks = draft.take_remarks(self);
        let input = draft.input.take();
        let proper = input.as_ref().filter(|text| text.rank < Text::LOOSE);
        let given = proper.filter(|_| span.operation == Operation::InvokeAgent);
        span.input_hash = given.map(|text| IdHash::from(self.words(&text.text)));
        span.input = input.map(|text| self.input(text));
        span.output = output.map(|text| self.text(text));
    }
}

impl Naming<'_> {
    /// Returns a name, cut to its limit and shared.
    fn share(&mut self, name: &str) -> Arc<str> {
        self.names.share(self.caps.name(name))
    }

    /// Returns an id, kept as [`Caps::id`] and shared.
    fn share_id(&mut self, id: &str) -> Arc<str> {
        self.names.share(&self.caps.id(id))
    }

    /// Makes the span of a draft.
    pub(super) fn finish(
        &mut self,
        raw: &RawSpan<'_>,
        hits: &Hits<'_>,
        draft: &mut Draft<'_>,
        emitter: Emitter<'_>,
    ) -> Span {
        let operation = draft.operation.take().unwrap_or_default();
        // A key mapped in the configuration precedes the list of session keys; a convention's own value follows it.
        let (custom, late) = match draft.session.take_ranked() {
            Some((0, session)) => (Some(session), None),
            Some((_, session)) => (None, Some(session)),
            None => (None, None),
        };
        let session =
            custom.or_else(|| self.caps.conventions.session_of(hits, &raw.attributes)).or(late);
        if is_interrupted(raw) {
            draft.remarks().interrupted = true;
        }
        let is_tool = operation == Operation::ExecuteTool;
        let repeated = draft.repeated.take() == Some(true);
        let without_status = raw.status == Status::Ok && draft.always_ok.take() == Some(true);
        let status = if repeated || without_status { Status::Unset } else { raw.status };
        let failed = !repeated
            && (status == Status::Error || fails(raw, status, draft))
            && !draft.is_interrupted()
            && !is_control_flow(raw)
            && !is_blocked(raw, draft);
        let mut shared = |name: Option<Cow<'_, str>>| name.map(|name| self.share(&name));
        let mut span = Span {
            trace_id: raw.trace_id,
            span_id: raw.span_id,
            parent: raw.parent,
            remote_parent: raw.remote_parent,
            start: draft.streamed_nanos.map_or(raw.start, |nanos| {
                raw.end.before(Duration::from_nanos(nanos)).min(raw.start)
            }),
            end: raw.end,
            operation,
            status,
            failed,
            stopped: draft.stopped,
            streamed: draft.streamed_nanos.is_some(),
            convention: draft.convention.take(),
            agent_name: shared(draft.agent_name.take()),
            workflow: shared(draft.take_workflow()),
            agent_id: shared(draft.agent_id.take()),
            agent_version: shared(draft.agent_version.take()),
            environment: shared(draft.environment.take()),
            user: shared(draft.user.take()),
            session: session.map(|session| SessionName {
                id: self.share_id(&session.id),
                attribute: self.names.share(session.attribute),
            }),
            session_in_json: self.caps.session_in_json(hits, &raw.attributes),
            tool: is_tool.then(|| self.tool(draft, hits, raw)),
            model: self.model(operation, draft),
            name: self.share(&raw.name),
            attempt: None,
            remarks: None,
            input: None,
            output: None,
            input_hash: None,
            scope: emitter.scope.id,
            resource: Arc::clone(emitter.resource),
        };
        self.caps.finish_texts(draft, &mut span);
        for call in span.model.iter_mut().flat_map(|model| &mut model.tool_calls) {
            call.phantom |= call.name.as_deref().is_some_and(|name| hits.phantom(name));
        }
        if span.failed {
            let kind = draft.error_type.take().or_else(|| exception(raw).map(Cow::Borrowed));
            if let Some(kind) = kind.filter(|kind| !UNNAMED_ERRORS.contains(&&**kind)) {
                span.remarks.get_or_insert_default().error_type = Some(self.share(&kind));
            }
        }
        span
    }

    fn tool(&mut self, draft: &mut Draft<'_>, hits: &Hits<'_>, raw: &RawSpan<'_>) -> ToolFacts {
        let name = draft.tool_name.take().or_else(|| tool_named(&raw.name).map(Cow::from));
        ToolFacts {
            phantom: name.as_deref().is_some_and(|name| hits.phantom(name)),
            name: name.map(|name| self.share(&name)),
            call_id: draft.tool_call_id.take().map(|id| self.caps.hashed_id(&id)),
            ..ToolFacts::default()
        }
    }

    /// The facts of a model span's call, or of all calls of an agent span, if that reports their tokens.
    fn model(&mut self, operation: Operation, draft: &mut Draft<'_>) -> Option<ModelFacts> {
        let tokens = Tokens {
            input: draft.input_tokens.take(),
            cached: draft.cached_tokens.take(),
            cache_written: draft.cache_written_tokens.take(),
            output: draft.output_tokens.take(),
        }
        .normalised(draft.total_tokens.take());
        let says = operation == Operation::Chat
            || (operation == Operation::InvokeAgent
                && (tokens.input.is_some() || tokens.output.is_some()));
        let name = draft.model.take();
        let requested = draft.requested_model.take().filter(|asked| Some(asked) != name.as_ref());
        says.then(|| ModelFacts {
            model: name.map(|name| self.share(&name)),
            requested: requested.map(|name| self.share(&name)),
            response_id: draft.response_id.take().map(|id| self.caps.hashed_id(&id)),
            tokens,
            first_chunk_nanos: draft.first_chunk_nanos.take(),
            local: draft.local.take() == Some(true),
            ..ModelFacts::default()
        })
    }
}

/// Whether an attribute or an exception shows that a span failed. An exception counts only if the status is unset: otherwise it may
/// have been handled.
fn fails(raw: &RawSpan<'_>, status: Status, draft: &Draft<'_>) -> bool {
    let succeeded_anyway = draft.succeeded_anyway.get() == Some(&true);
    let raised = status == Status::Unset && lines::has_event(raw, "exception");
    !succeeded_anyway && (draft.failed || raised)
}

/// The type of the last exception that ended the span.
fn exception<'v>(raw: &'v RawSpan<'_>) -> Option<&'v str> {
    let is_one = |name: &str| ["exception", otel_genai::EXCEPTION].contains(&name);
    let mut told = raw.events.iter().rev().filter(|event| is_one(&event.name));
    told.find_map(|event| event.attributes.str("exception.type"))
}

/// What libraries write as the kind of an unknown error: the first by the semantic conventions, the second by Mastra.
const UNNAMED_ERRORS: [&str; 2] = ["_OTHER", "unknown"];

/// Whether an apparent failure is how LangGraph or Genkit waits for a person: `interrupt` raises an exception, which ends the run
/// until a person answers.
fn is_interrupted(raw: &RawSpan<'_>) -> bool {
    errors(raw).any(is_interrupt)
}

/// Types and messages of the errors that ended a span.
fn errors<'r>(raw: &'r RawSpan<'_>) -> impl Iterator<Item = &'r str> {
    let exceptions = raw.events.iter().filter(|event| event.name == "exception");
    let told = exceptions.flat_map(|event| {
        ["exception.type", "exception.message"]
            .into_iter()
            .filter_map(|key| event.attributes.str(key))
    });
    let attributes = ["error.type", "langfuse.observation.status_message"]
        .into_iter()
        .filter_map(|key| raw.attributes.str(key));
    told.chain(attributes).chain([&*raw.status_message])
}

/// The name of the class in an exception's type or message.
fn class(told: &str) -> &str {
    let path = told.split(['(', ':']).next().unwrap_or_default();
    path.rsplit('.').next().unwrap_or_default().trim()
}

/// Whether an exception's type or message is that of an interrupt.
pub(super) fn is_interrupt(told: &str) -> bool {
    INTERRUPTS.contains(&class(told)) || told.starts_with("(Interrupt(value=")
}

/// Exceptions of LangGraph and of Genkit that are not failures.
const INTERRUPTS: [&str; 3] = ["GraphInterrupt", "NodeInterrupt", "ToolInterruptError"];

/// Whether an apparent failure is LangGraph's way to continue in the surrounding graph: a tool or a node that hands off raises an
/// exception.
fn is_control_flow(raw: &RawSpan<'_>) -> bool {
    errors(raw).any(|told| ["ParentCommand", "GraphBubbleUp"].contains(&class(told)))
}

/// Whether a guardrail ended the work of a span: OpenAI's Agents SDK ends a run with an exception, whose class or message libraries
/// write somewhere in a text.
pub(super) fn is_tripped(raw: &RawSpan<'_>) -> bool {
    const TOLD: [&str; 2] = ["GuardrailTripwireTriggered", "Guardrail tripwire triggered"];
    let error = raw.attributes.get("error").and_then(messages::parsed);
    let message = error.as_ref().and_then(|error| error.get("message")?.as_str());
    let mut errors = errors(raw).chain(message);
    errors.any(|error| TOLD.iter().any(|told| error.contains(told)))
}

/// Whether an apparent failure is a guardrail's decision, which is then recorded.
fn is_blocked(raw: &RawSpan<'_>, draft: &mut Draft<'_>) -> bool {
    if !is_tripped(raw) {
        return false;
    }
    let error = raw.attributes.get("error").and_then(messages::parsed);
    let name = error.as_ref().and_then(|error| error.get("data")?.get("guardrail")?.as_str());
    let name = name.and_then(without_placeholder).map(|name| Cow::Owned(name.to_owned()));
    draft.remarks().guardrail.offer(99, name);
    draft.remarks().guardrail_result.offer(99, Cow::Borrowed("tripwire triggered"));
    true
}
