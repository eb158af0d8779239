//! What an attribute says, as data: the tables of the conventions are made of these lines, spans are read by them
//! and the documentation is written from them.

use std::borrow::Cow;
use std::time::Duration;

use super::draft::{self, Draft, SessionDraft, count, lower, name, number};
use super::json::Json;
use super::raw::{RawSpan, RawValue};
use super::{messages, text};
use crate::math::Quanta;
use crate::span::Operation;

/// One attribute that a convention reads.
pub(super) struct Line {
    pub(super) says: Says,
    /// Its rank: among all conventions, the lowest holds.
    pub(super) rank: u8,
    pub(super) key: &'static str,
}

/// What an attribute is about, in the order of reading: what a span is comes first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Says {
    /// What the span is about, by the words of the library.
    Operation(fn(&str) -> Option<Operation>),
    Session,
    User,
    AgentName,
    /// The workflow that an agent is part of, whose name the agent has if no span names it.
    Workflow,
    AgentId,
    AgentVersion,
    Environment,
    /// Whether the span failed, which it did if this is true of the value.
    Failed(fn(&RawValue<'_>) -> bool),
    /// What kind of error ended the span, if it failed.
    ErrorType,
    /// Whether something stopped the span before its end, which it did if this is true of the value.
    Stopped(fn(&RawValue<'_>) -> bool),
    ToolName,
    ToolCallId,
    ToolArguments,
    ToolResult,
    Model,
    /// The model that was asked for, whose price stands in for that of a model which has none.
    RequestedModel,
    ResponseId,
    InputTokens,
    CachedTokens,
    CacheWrittenTokens,
    OutputTokens,
    /// The sum of what was read and written, which tells whether the input has what came from a cache.
    TotalTokens,
    Cost,
    /// Whether the conversation before the span was cut down to a summary.
    Compacted,
    Input,
    Output,
    Task,
    Run,
    Trial,
    /// Whether the task succeeded, by the words of the library.
    Success(fn(&str) -> Option<bool>),
    Abstained,
    Perturbation,
    PerturbationId,
    Baseline,
    ExpectedOutput,
    ExpectedTools,
    Retrieved,
    Cited,
    /// The session that the span's session continues.
    PreviousSession,
    /// Seconds until the first piece of a streamed answer.
    FirstChunk,
    /// A guardrail's name.
    Guardrail,
    /// What a guardrail decided.
    GuardrailResult,
}

/// Makes one line of a table.
pub(super) const fn line(says: Says, rank: u8, key: &'static str) -> Line {
    Line { says, rank, key }
}

impl Says {
    /// The concepts that a configuration can map attributes to.
    pub(super) const ALL: [Self; 43] = [
        Self::Operation(super::operation_named),
        Self::Session,
        Self::User,
        Self::AgentName,
        Self::Workflow,
        Self::AgentId,
        Self::AgentVersion,
        Self::Environment,
        Self::Failed(truth),
        Self::ErrorType,
        Self::Stopped(truth),
        Self::ToolName,
        Self::ToolCallId,
        Self::ToolArguments,
        Self::ToolResult,
        Self::Model,
        Self::RequestedModel,
        Self::ResponseId,
        Self::InputTokens,
        Self::CachedTokens,
        Self::CacheWrittenTokens,
        Self::OutputTokens,
        Self::TotalTokens,
        Self::Cost,
        Self::Compacted,
        Self::Input,
        Self::Output,
        Self::Task,
        Self::Run,
        Self::Trial,
        Self::Success(success_named),
        Self::Abstained,
        Self::Perturbation,
        Self::PerturbationId,
        Self::Baseline,
        Self::ExpectedOutput,
        Self::ExpectedTools,
        Self::Retrieved,
        Self::Cited,
        Self::PreviousSession,
        Self::FirstChunk,
        Self::Guardrail,
        Self::GuardrailResult,
    ];

    /// Its name in the configuration and the documentation.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Operation(_) => "operation",
            Self::Session => "session",
            Self::User => "user",
            Self::AgentName => "agent_name",
            Self::Workflow => "workflow",
            Self::AgentId => "agent_id",
            Self::AgentVersion => "agent_version",
            Self::Environment => "environment",
            Self::Failed(_) => "failed",
            Self::ErrorType => "error_type",
            Self::Stopped(_) => "stopped",
            Self::ToolName => "tool_name",
            Self::ToolCallId => "tool_call_id",
            Self::ToolArguments => "tool_arguments",
            Self::ToolResult => "tool_result",
            Self::Model => "model",
            Self::RequestedModel => "requested_model",
            Self::ResponseId => "response_id",
            Self::InputTokens => "input_tokens",
            Self::CachedTokens => "cached_tokens",
            Self::CacheWrittenTokens => "cache_written_tokens",
            Self::TotalTokens => "total_tokens",
            Self::OutputTokens => "output_tokens",
            Self::Cost => "cost_usd",
            Self::Compacted => "compacted",
            Self::Input => "input",
            Self::Output => "output",
            Self::Task => "task",
            Self::Run => "run",
            Self::Trial => "trial",
            Self::Success(_) => "outcome",
            Self::Abstained => "abstained",
            Self::Perturbation => "perturbation",
            Self::PerturbationId => "perturbation_id",
            Self::Baseline => "baseline",
            Self::ExpectedOutput => "expected_output",
            Self::ExpectedTools => "expected_tools",
            Self::Retrieved => "retrieved_documents",
            Self::Cited => "cited_documents",
            Self::PreviousSession => "previous_session",
            Self::FirstChunk => "first_chunk_seconds",
            Self::Guardrail => "guardrail",
            Self::GuardrailResult => "guardrail_result",
        }
    }

    /// Its place in the order of reading.
    pub(super) fn order(self) -> usize {
        Self::ALL.iter().position(|other| other.name() == self.name()).unwrap_or(usize::MAX)
    }

    /// Whether the concept is read on spans of this operation: a tool's name on a model span is only a request. A model's tokens
    /// on an agent span are a sum, for traces in which no model call has a span.
    pub(super) fn belongs_on(self, operation: Operation) -> bool {
        match self {
            Self::ToolName | Self::ToolCallId | Self::ToolArguments | Self::ToolResult => {
                operation == Operation::ExecuteTool
            }
            Self::ResponseId | Self::Compacted | Self::FirstChunk => operation == Operation::Chat,
            Self::Model
            | Self::RequestedModel
            | Self::InputTokens
            | Self::CachedTokens
            | Self::CacheWrittenTokens
            | Self::OutputTokens
            | Self::TotalTokens
            | Self::Stopped(_)
            | Self::Cost => matches!(operation, Operation::Chat | Operation::InvokeAgent),
            Self::Input | Self::Output => operation != Operation::ExecuteTool,
            Self::Workflow | Self::AgentId => {
                matches!(operation, Operation::InvokeAgent | Operation::Other)
            }
            Self::Operation(_)
            | Self::Session
            | Self::User
            | Self::AgentName
            | Self::AgentVersion
            | Self::Environment
            | Self::Failed(_)
            | Self::ErrorType
            | Self::Task
            | Self::Run
            | Self::Trial
            | Self::Success(_)
            | Self::Abstained
            | Self::Perturbation
            | Self::PerturbationId
            | Self::Baseline
            | Self::ExpectedOutput
            | Self::ExpectedTools
            | Self::Retrieved
            | Self::Cited
            | Self::PreviousSession
            | Self::Guardrail
            | Self::GuardrailResult => true,
        }
    }

    /// Offers the draft what the value says.
    pub(super) fn take<'v>(
        self,
        rank: u8,
        key: &'v str,
        value: &'v RawValue<'_>,
        draft: &mut Draft<'v>,
    ) {
        match self {
            Self::Operation(named) => {
                draft.operation.offer(rank, word(value).and_then(|word| named(&word)));
            }
            Self::Session => {
                let named = name(value).map(|id| SessionDraft { attribute: key, id });
                draft.session.offer(rank, named);
            }
            Self::User => draft.user.offer(rank, name(value)),
            Self::AgentName => draft.agent_name.offer(rank, name(value)),
            Self::Workflow => draft.workflow.offer(rank, name(value)),
            Self::AgentId => draft.agent_id.offer(rank, name(value)),
            Self::AgentVersion => draft.agent_version.offer(rank, name(value)),
            Self::Environment => draft.environment.offer(rank, name(value)),
            Self::Failed(failed) => draft.failed |= failed(value),
            Self::ErrorType => draft.error_type.offer(rank, name(value)),
            Self::Stopped(stopped) => draft.stopped |= stopped(value),
            Self::ToolName => draft.tool_name.offer(rank, name(value)),
            Self::ToolCallId => draft.tool_call_id.offer(rank, name(value)),
            Self::ToolArguments if draft.arguments.wants(rank) => {
                draft.arguments.offer(rank, text::arguments(value, draft.keep_texts));
            }
            Self::ToolResult if draft.result_hash.wants(rank) => {
                if draft.keep_texts {
                    draft.result.offer(rank, text::plain(rank, value));
                }
                draft.result_hash.offer(rank, text::result(value));
            }
            Self::Model => draft.model.offer(rank, draft::model(value)),
            Self::RequestedModel => draft.requested_model.offer(rank, draft::model(value)),
            Self::ResponseId => draft.response_id.offer(rank, name(value)),
            Self::InputTokens => draft.input_tokens.offer(rank, count(value)),
            Self::CachedTokens => draft.cached_tokens.offer(rank, count(value)),
            Self::CacheWrittenTokens => draft.cache_written_tokens.offer(rank, count(value)),
            Self::OutputTokens => draft.output_tokens.offer(rank, count(value)),
            Self::TotalTokens => draft.total_tokens.offer(rank, count(value)),
            Self::Cost => draft.cost.offer(rank, cost(value)),
            Self::Compacted => draft.compacted.offer(rank, draft::flag(value)),
            Self::Input => draft.ask(rank, || messages::asked(value)),
            Self::Output => draft.say(rank, || messages::said(value)),
            Self::Task => draft.attempt().task.offer(rank, name(value)),
            Self::Run => draft.attempt().run.offer(rank, name(value)),
            Self::Trial => draft.attempt().trial.offer(rank, name(value)),
            Self::Success(named) => {
                draft.attempt().success.offer(rank, word(value).and_then(|word| named(&word)));
            }
            Self::Abstained => draft.attempt().abstained.offer(rank, draft::flag(value)),
            Self::Perturbation => draft.attempt().perturbation.offer(rank, name(value)),
            Self::PerturbationId => draft.attempt().perturbation_id.offer(rank, name(value)),
            Self::Baseline => draft.attempt().baseline.offer(rank, draft::flag(value)),
            Self::ExpectedOutput => draft.attempt().expected_output.offer(rank, name(value)),
            Self::ExpectedTools => draft.attempt().expected_tools.offer(rank, draft::names(value)),
            Self::Retrieved => draft.attempt().retrieved.offer(rank, draft::names(value)),
            Self::Cited => draft.attempt().cited.offer(rank, draft::names(value)),
            Self::PreviousSession => draft.remarks().previous_session.offer(rank, name(value)),
            Self::FirstChunk => draft.first_chunk_nanos.offer(rank, nanos(value)),
            Self::Guardrail => draft.remarks().guardrail.offer(rank, name(value)),
            Self::GuardrailResult => draft.remarks().guardrail_result.offer(rank, word(value)),
            Self::ToolArguments | Self::ToolResult => {}
        }
    }
}

/// Whether a task succeeded, by the words that libraries use for it.
pub(super) fn success_named(word: &str) -> Option<bool> {
    match &*lower(word) {
        "success" | "succeeded" | "pass" | "passed" | "true" | "completed" | "resolved" => {
            Some(true)
        }
        "failure" | "fail" | "failed" | "false" | "error" | "unresolved" => Some(false),
        _ => None,
    }
}

/// Whether a value means yes.
pub(super) fn truth(value: &RawValue<'_>) -> bool {
    draft::flag(value) == Some(true)
}

/// Whether a value is there and says something.
pub(super) fn present(value: &RawValue<'_>) -> bool {
    name(value).is_some()
}

/// Whether a span has an event of this name.
pub(super) fn has_event(raw: &RawSpan<'_>, name: &str) -> bool {
    raw.events.iter().any(|event| event.name == name)
}

/// A word; a JSON string is read, as some libraries write every value as JSON.
pub(super) fn word<'v>(value: &'v RawValue<'_>) -> Option<Cow<'v, str>> {
    match value {
        RawValue::Bool(flag) => Some((if *flag { "true" } else { "false" }).into()),
        RawValue::Null
        | RawValue::Str(_)
        | RawValue::Int(_)
        | RawValue::Double(_)
        | RawValue::Bytes(_)
        | RawValue::Array(_)
        | RawValue::Map(_) => name(value),
    }
}

/// Seconds, as nanoseconds; no call lasts for longer than a day.
pub(super) fn nanos(value: &RawValue<'_>) -> Option<u64> {
    let seconds = number(value).filter(|seconds| (0.0..=86_400.0).contains(seconds))?;
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).ok()
}

/// Dollars, as a number or as the total of JSON details.
fn cost(value: &RawValue<'_>) -> Option<Quanta> {
    let total = || {
        let details = messages::parsed(value)?;
        ["total", "total_cost"].iter().find_map(|key| details.get(key).and_then(Json::as_f64))
    };
    number(value).or_else(total).filter(|cost| *cost >= 0.0).and_then(Quanta::from_f64)
}
