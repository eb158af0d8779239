//! Agents that send log records: each has a dialect, which defines the names of its events and how to identify its turns.
//!
//! A record becomes a span of the trace of its turn, so all later stages handle it as a span. Ids are hashes of the records'
//! content, so that a resent record is the same span. If the records of a prompt have its id, the trace is identified by session
//! and prompt; if only the order of the records shows the turn, the assemble stage finds it (`assemble/turns.rs`). A record of an
//! agent that sends spans, too, goes into the trace that it names, and completes the span of its call there.

use std::borrow::Cow;
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::draft::{count, flag, name, number};
use super::raw::{RawLog, RawValue};
use super::{Caps, Conventions, DecodedLog, Emitter, LogConvention, identity, text};
use crate::math::Quanta;
use crate::span::{
    IdHash, Log, ModelFacts, Operation, RECORD_SCOPE, REPORTED_LOOP, Remarks, Resource,
    SessionName, Span, SpanId, Status, Text, Timestamp, Tokens, ToolFacts, TraceId,
};

/// The log records of an agent: the names of its events and attributes, and how to identify its turns.
#[derive(Clone, Debug)]
pub(super) struct Dialect {
    /// The names of its events, without the prefix, and of its attributes.
    pub(super) names: LogConvention,
    /// A prefix that the names of its events may have.
    pub(super) prefix: &'static str,
    /// The event of a model's answer, in a separate record.
    pub(super) answer: Option<&'static str>,
    /// The size of what a tool returned.
    pub(super) result_size: Option<&'static str>,
    /// The id of the agent that made a call, if that is not the turn's.
    pub(super) sub_agent_id: Option<&'static str>,
    /// Whether it also sends spans of its calls, so that its records go into the traces that they name.
    pub(super) has_spans: bool,
    /// Whether the version of its service is not the agent's.
    pub(super) other_version: bool,
    /// Finds the turn of a record by the ids of its session and its prompt.
    pub(super) turn: fn(&str, Option<&str>) -> Turn,
    /// Adds facts that no single attribute has; returns whether the record counts.
    pub(super) mend: fn(&RawLog<'_>, &mut RecordFacts<'_>) -> bool,
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EventKind {
    /// The prompt of a user, which begins a turn.
    Prompt,
    /// A model call that has ended.
    Model,
    /// A model call that failed.
    ModelError,
    /// A tool that is about to be called.
    ToolBegun,
    /// A tool call that has ended.
    Tool,
    /// A model's answer, in a separate record.
    Answer,
    /// The agent's own report that it is in a loop.
    Loop,
}

/// Which turn of its session a record belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// The turn of the prompt with this hash.
    Prompt(u64),
    /// No turn of a user: work in the background with this hash, which is a trace of its own.
    Apart(u64),
    /// The turn that was in progress at the time of the record.
    Order,
}

/// The facts of a record, before it becomes a span.
#[derive(Debug, Default)]
pub(super) struct RecordFacts<'r> {
    pub(super) kind: Option<EventKind>,
    pub(super) input: Option<Cow<'r, str>>,
    pub(super) output: Option<Cow<'r, str>>,
    pub(super) tokens: Tokens,
    pub(super) result: Option<u64>,
    /// The key that joins a model call and its answer, if their records have no response id.
    pub(super) call_key: Option<String>,
    /// The name of the tool, if it is not the value of the tool attribute.
    pub(super) tool: Option<Cow<'r, str>>,
    pub(super) failed: bool,
    /// Whether a person refused the tool call.
    pub(super) refused: bool,
    /// Whether the prompt is a command of the agent's client, which may run without a model.
    pub(super) is_command: bool,
    /// Who did the recorded work, if that was not the agent itself.
    pub(super) helper: Option<Helper<'r>>,
}

/// Who is at work beside the agent itself.
#[derive(Debug)]
pub(super) enum Helper<'r> {
    /// A sub-agent.
    Agent(Cow<'r, str>),
    /// A part of the client, such as one that writes titles or shortens the conversation.
    Component(Cow<'r, str>),
}

impl Dialect {
    /// The dialect with these names, without anything else.
    pub(super) fn of(names: LogConvention) -> Self {
        Self {
            names,
            prefix: "",
            answer: None,
            result_size: None,
            sub_agent_id: None,
            has_spans: false,
            other_version: false,
            turn: by_prompt,
            mend: |_, _| true,
        }
    }

    /// The name of a record's event without its prefix, if the record is of this dialect.
    pub(super) fn event<'r>(&self, raw: &'r RawLog<'_>, of_scope: bool) -> Option<&'r str> {
        let attribute = raw.attributes.str("event.name");
        let named = attribute.or_else(|| Some(&*raw.event_name).filter(|name| !name.is_empty()));
        let named = named.or_else(|| raw.body.as_str())?;
        match named.strip_prefix(self.prefix).filter(|_| !self.prefix.is_empty()) {
            Some(event) => Some(event),
            None if of_scope => Some(named),
            // A dialect of the configuration may be known by its events alone.
            None if self.names.scope.is_empty() => self.kind(named).map(|_| named),
            None => None,
        }
    }

    /// Whether a scope of this name is one of the dialect's.
    pub(super) fn is_of(&self, scope: &str) -> bool {
        !self.names.scope.is_empty() && scope.starts_with(&self.names.scope)
    }

    /// The size of a tool's result, which replaces a result that is not sent, if the arguments are known: otherwise equal sizes
    /// mean nothing.
    fn size<'r, 'a>(&self, raw: &'r RawLog<'a>) -> Option<&'r RawValue<'a>> {
        get(raw, &self.names.tool_arguments)?;
        raw.attributes.get(self.result_size?)
    }

    /// The name under which the dialect is counted.
    fn known_name(&self) -> &'static str {
        super::names().find(|name| *name == self.names.name).unwrap_or("custom")
    }

    fn kind(&self, event: &str) -> Option<EventKind> {
        let names = &self.names;
        let events = [
            (&names.prompts, EventKind::Prompt),
            (&names.model_calls, EventKind::Model),
            (&names.model_errors, EventKind::ModelError),
            (&names.tool_decisions, EventKind::ToolBegun),
            (&names.tool_calls, EventKind::Tool),
            (&names.loops, EventKind::Loop),
        ];
        let known = events.iter().find(|(known, _)| known.iter().any(|known| known == event));
        let answer = self.answer.filter(|known| *known == event).map(|_| EventKind::Answer);
        known.map(|(_, kind)| *kind).or(answer)
    }

    /// Reads the attributes of a record.
    fn decode<'r>(&self, raw: &'r RawLog<'_>, kind: EventKind) -> RecordFacts<'r> {
        let names = &self.names;
        let tokens = |list: &[String]| get(raw, list).and_then(count);
        let success = get(raw, &names.success).and_then(flag);
        RecordFacts {
            kind: Some(kind),
            input: get(raw, &names.input).and_then(RawValue::as_str).map(Cow::from),
            output: get(raw, &names.output).and_then(RawValue::as_str).map(Cow::from),
            tokens: Tokens {
                input: tokens(&names.input_tokens),
                cached: tokens(&names.cached_tokens),
                cache_written: tokens(&names.cache_written_tokens),
                output: tokens(&names.output_tokens),
            },
            result: get(raw, &names.tool_result).or_else(|| self.size(raw)).and_then(text::result),
            failed: kind == EventKind::ModelError || success == Some(false),
            refused: false,
            is_command: false,
            call_key: None,
            tool: None,
            helper: get(raw, &names.sub_agent).and_then(name).map(Helper::Agent),
        }
    }
}

/// A record that is about to become a span, with its dialect, session and turn.
struct Record<'r, 'a> {
    caps: Caps<'r>,
    dialect: &'r Dialect,
    raw: &'r RawLog<'a>,
    facts: RecordFacts<'r>,
    session: SessionName,
    trace_id: TraceId,
    span_id: SpanId,
    resource: Arc<Resource>,
}

impl Conventions {
    /// Reads a record of an agent that sends log records; `None` if it has no dialect.
    pub(super) fn spoken(&self, raw: &RawLog<'_>, emitter: Emitter<'_>) -> Option<DecodedLog> {
        let Emitter { scope, resource } = emitter;
        let mut dialects = self.dialects.iter().enumerate();
        let (dialect, event) = dialects.find_map(|(at, dialect)| {
            Some((dialect, dialect.event(raw, scope.dialect == Some(at))?))
        })?;
        let unused = |why| Some(DecodedLog { unused: vec![why], ..DecodedLog::default() });
        let Some(kind) = dialect.kind(event) else { return unused("log_not_recognised") };
        let mut facts = dialect.decode(raw, kind);
        if !(dialect.mend)(raw, &mut facts) {
            return unused("log_repeats");
        }
        let caps = self.caps();
        let Some(session) = session_of_record(&caps, raw, dialect, resource) else {
            return unused("log_without_session");
        };
        let key = session_key(resource.tenant.as_deref().unwrap_or_default(), &session.id);
        let prompt = get(raw, &dialect.names.prompt_id).and_then(name);
        let turn = (dialect.turn)(&session.id, prompt.as_deref());
        let own = raw.trace_id.filter(|_| dialect.has_spans);
        let trace_id = own.unwrap_or_else(|| match turn {
            Turn::Prompt(id) | Turn::Apart(id) => TraceId::of_turn(key, id),
            Turn::Order if kind == EventKind::Prompt => TraceId::of_turn(key, raw.time.0),
            Turn::Order => TraceId::of_session(key),
        });
        let mut resource = Arc::clone(resource);
        if dialect.other_version && resource.service_version.is_some() {
            Arc::make_mut(&mut resource).service_version = None;
        }
        let span_id = SpanId::of(&[&identity(raw, event).to_be_bytes()]);
        let record = Record { caps, dialect, raw, facts, session, trace_id, span_id, resource };
        let mut reading = record.read(turn, own.is_some());
        reading.repaired = record.caps.cuts();
        Some(reading)
    }
}

impl Record<'_, '_> {
    fn read(&self, turn: Turn, own: bool) -> DecodedLog {
        let mut reading = DecodedLog::default();
        match self.facts.kind {
            // The agent itself sends the span of the turn, before or after this record.
            Some(EventKind::Prompt) if own => reading.log = self.said(),
            Some(EventKind::Prompt) => reading.spans.push(self.prompt()),
            Some(EventKind::Answer) if self.answers().is_none() => {
                reading.unused.push("log_without_content");
            }
            Some(EventKind::Model | EventKind::ModelError | EventKind::Answer) => {
                let call = self.model_call();
                let apart = matches!(turn, Turn::Apart(_)) && !own;
                reading.spans.extend(apart.then(|| Span { parent: None, ..self.prompt() }));
                self.below_another(call, &mut reading.spans);
            }
            Some(EventKind::ToolBegun | EventKind::Tool) => {
                let call = self.tool_call();
                self.below_another(call, &mut reading.spans);
            }
            Some(EventKind::Loop) => reading.spans.push(Span {
                name: Arc::from(REPORTED_LOOP),
                end: self.raw.time,
                ..self.bare(Operation::Other)
            }),
            None => reading.unused.push("log_not_recognised"),
        }
        reading
    }

    /// Makes the common part of all spans of a record: it is a moment of a turn.
    fn bare(&self, operation: Operation) -> Span {
        let Record { dialect, raw, session, resource, .. } = self;
        let above = match raw.span_id.filter(|_| dialect.has_spans && raw.trace_id.is_some()) {
            Some(span) => span,
            None => self.trace_id.prompt(),
        };
        Span {
            trace_id: self.trace_id,
            span_id: self.span_id,
            parent: Some(above),
            start: raw.time,
            end: raw.time,
            operation,
            failed: self.facts.failed && !self.facts.refused,
            convention: Some(dialect.known_name()),
            scope: RECORD_SCOPE,
            session: Some(session.clone()),
            user: raw
                .attributes
                .get("user.id")
                .and_then(name)
                .map(|user| Arc::from(self.caps.name(&user))),
            agent_id: self.shared(dialect.sub_agent_id.and_then(|key| raw.attributes.get(key))),
            resource: Arc::clone(resource),
            ..Span::default()
        }
    }

    fn shared(&self, value: Option<&RawValue<'_>>) -> Option<Arc<str>> {
        value.and_then(name).map(|name| Arc::from(self.caps.name(&name)))
    }

    /// Makes the root span of a turn; for a command of the client it is not an agent's span.
    fn prompt(&self) -> Span {
        let command = self.facts.is_command;
        let operation = if command { Operation::Other } else { Operation::InvokeAgent };
        let named = self.resource.service_name.as_deref().unwrap_or(&self.dialect.names.name);
        Span {
            span_id: self.trace_id.prompt(),
            parent: None,
            // A name without the agent's, which `agent_name` has.
            name: Arc::from(INVOKE_AGENT),
            agent_name: Some(Arc::from(self.caps.name(named))),
            input: self.text_of(self.facts.input.as_deref()),
            failed: false,
            ..self.bare(operation)
        }
    }

    /// Makes the log record of a user's prompt, for a turn whose span the agent itself sends.
    fn said(&self) -> Option<Log> {
        let Record { raw, trace_id, .. } = self;
        Some(Log {
            trace_id: *trace_id,
            span_id: raw.span_id,
            time: raw.time,
            index: raw.index,
            id: identity(raw, "prompt"),
            input: Some(self.text_of(self.facts.input.as_deref())?),
            output: None,
            tool_calls: Vec::new(),
            tool_results: Vec::new(),
            failed: false,
            error_type: None,
            asked_by_user: Some(true),
            violations: Vec::new(),
            pause: None,
            tenant: self.resource.tenant.clone(),
        })
    }

    /// The id in the first of these attributes that is present.
    fn id(&self, list: &[String]) -> Option<IdHash> {
        get(self.raw, list).and_then(name).map(|id| self.caps.hashed_id(&id))
    }

    /// The id of the response, or its substitute.
    fn response_id(&self) -> Option<IdHash> {
        let call_key =
            || self.facts.call_key.as_deref().map(|call_key| self.caps.hashed_id(call_key));
        self.id(&self.dialect.names.response_id).or_else(call_key)
    }

    fn model_call(&self) -> Span {
        let (names, raw, facts) = (&self.dialect.names, self.raw, &self.facts);
        let cost = get(raw, &names.cost_usd).and_then(number).and_then(Quanta::from_f64);
        Span {
            start: self.start(),
            remarks: self.remarks(None),
            model: Some(ModelFacts {
                model: self.shared(get(raw, &names.model)),
                response_id: self.response_id(),
                tokens: facts.tokens,
                cost,
                ..ModelFacts::default()
            }),
            output: self.text_of(facts.output.as_deref()),
            ..self.bare(Operation::Chat)
        }
    }

    fn tool_call(&self) -> Span {
        let (names, raw) = (&self.dialect.names, self.raw);
        let named = self.facts.tool.as_deref().map(|name| Arc::from(self.caps.name(name)));
        Span {
            start: self.start(),
            tool: Some(ToolFacts {
                name: named.or_else(|| self.shared(get(raw, &names.tool_name))),
                call_id: self.id(&names.call_id),
                arguments: get(raw, &names.tool_arguments)
                    .and_then(|value| text::arguments(value, true)),
                result_hash: self.facts.result,
                phantom: false,
            }),
            remarks: self.remarks(accepted_edit(self)),
            // Without a status, the call has begun and nothing more is known.
            status: if self.facts.kind == Some(EventKind::Tool) {
                Status::Ok
            } else {
                Status::Unset
            },
            ..self.bare(Operation::ExecuteTool)
        }
    }

    /// The record's remarks about its call: the kind of error, whether a person accepted an edit or refused the call.
    fn remarks(&self, accepted_edit: Option<bool>) -> Option<Box<Remarks>> {
        let RecordFacts { failed, refused, .. } = self.facts;
        let keys = Some(&self.dialect.names.error_type).filter(|_| failed && !refused);
        let error_type = keys.and_then(|keys| get(self.raw, keys)).and_then(name);
        let error_type = error_type.map(|kind| Arc::from(self.caps.name(&kind)));
        let remarks = Remarks { accepted_edit, error_type, refused, ..Remarks::default() };
        (remarks != Remarks::default()).then(|| Box::new(remarks))
    }

    /// Adds a call, below a span of its maker if that was not the agent itself.
    fn below_another(&self, call: Span, spans: &mut Vec<Span>) {
        let (operation, who) = match &self.facts.helper {
            None => return spans.push(call),
            Some(Helper::Agent(who)) => (Operation::InvokeAgent, self.caps.name(who)),
            Some(Helper::Component(who)) => (Operation::Other, self.caps.name(who)),
        };
        // Each record has such a span of its own, which moves with it.
        let span_id = SpanId::of(&[&self.span_id.0, b"aside"]);
        let agent = operation == Operation::InvokeAgent;
        spans.push(Span {
            span_id,
            name: Arc::from(if agent { INVOKE_AGENT } else { who }),
            agent_name: agent.then(|| Arc::from(who)),
            start: call.start,
            failed: false,
            ..self.bare(operation)
        });
        spans.push(Span { parent: Some(span_id), ..call });
    }

    fn text_of(&self, text: Option<&str>) -> Option<Text> {
        text::ranked(RANK, text.map(Cow::from)).map(|text| self.caps.text(text))
    }

    /// `Some` if an answer has a text, and an id that joins it to its model call.
    fn answers(&self) -> Option<()> {
        self.response_id()?;
        self.facts.output.as_deref().map(|_| ())
    }

    /// The start of a call: its record is made at its end.
    fn start(&self) -> Timestamp {
        let lasted = get(self.raw, &self.dialect.names.duration_ms).and_then(number);
        let lasted = lasted.filter(|lasted| (0.0..=MAX_MS).contains(lasted)).unwrap_or(0.0);
        self.raw.time.before(std::time::Duration::from_secs_f64(lasted / 1e3))
    }
}

/// Finds a turn by the id of its prompt, else by the order of records.
pub(super) fn by_prompt(session: &str, prompt: Option<&str>) -> Turn {
    match prompt {
        Some(prompt) if prompt != session => Turn::Prompt(xxh3_64(prompt.as_bytes())),
        Some(_) | None => Turn::Order,
    }
}

/// The value of the first attribute that is present.
pub(super) fn get<'r, 'a>(raw: &'r RawLog<'a>, list: &[String]) -> Option<&'r RawValue<'a>> {
    list.iter().find_map(|key| raw.attributes.get(key))
}

/// The session that a record names, else that of its resource.
fn session_of_record(
    caps: &Caps<'_>,
    raw: &RawLog<'_>,
    dialect: &Dialect,
    resource: &Resource,
) -> Option<SessionName> {
    let own = dialect.names.session.iter().find_map(|key| {
        let id = raw.attributes.get(key).and_then(name)?;
        Some(SessionName { attribute: Arc::from(key.as_str()), id: Arc::from(caps.id(&id)) })
    });
    own.or_else(|| resource.session.clone())
}

/// Whether a tool's change to a file was accepted, by a person or by a person's settings; `None` if not known.
fn accepted_edit(record: &Record<'_, '_>) -> Option<bool> {
    let tool = get(record.raw, &record.dialect.names.tool_name)?.as_str()?;
    let decision = record.raw.attributes.str("decision").filter(|_| EDIT_TOOLS.contains(&tool))?;
    match decision {
        "accept" | "auto_accept" | "modify" | "approved" | "approved_for_session" => Some(true),
        "reject" | "denied" | "abort" => Some(false),
        _ => None,
    }
}

/// The tools by which coding agents change files.
const EDIT_TOOLS: [&str; 8] =
    ["Edit", "MultiEdit", "NotebookEdit", "Write", "apply_patch", "edit", "replace", "write_file"];

/// A hash of a tenant and a session id.
fn session_key(tenant: &str, session: &str) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(tenant.len() as u64).to_be_bytes());
    hash.update(tenant.as_bytes());
    hash.update(session.as_bytes());
    hash.digest()
}

/// The name of an agent's span, without the agent's name.
const INVOKE_AGENT: &str = "invoke_agent";

/// The rank of a record's text.
const RANK: u8 = 50;

/// The longest duration of a call, in milliseconds: a month.
const MAX_MS: f64 = 2.7e9;
