//! The meaning of attributes, as data: the tables of the conventions are made of these lines, spans are read by them and the
//! documentation is written from them.

use std::borrow::Cow;
use std::time::Duration;

use super::draft::{self, Draft, SessionDraft, count, lower, name, number};
use super::json::Json;
use super::raw::{RawSpan, RawValue};
use super::{arguments, messages, text};
use crate::math::Quanta;
use crate::price;
use crate::span::Operation;

/// One attribute that a convention reads.
pub(super) struct Line {
    pub(super) concept: Concept,
    /// Its rank: among all conventions, the lowest wins.
    pub(super) rank: u8,
    pub(super) key: &'static str,
}

/// Makes one line of a table.
pub(super) const fn line(concept: Concept, rank: u8, key: &'static str) -> Line {
    Line { concept, rank, key }
}

/// The list of concepts. Each has its name, the spans on which it is read and, if a line can define what a value means, the default
/// meaning.
macro_rules! concepts {
    ($($(#[$about:meta])* $concept:ident $(($meant:ty = $usual:expr))?, $name:literal on $spans:ident;)*) => {
        /// The concept of an attribute, in the order of reading: the operation of a span comes first.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Concept {
            $($(#[$about])* $concept $(($meant))?,)*
        }

        impl Concept {
            /// The concepts that a configuration can map attributes to.
            pub(super) const ALL: &[Self] = &[$(Self::$concept $(($usual))?,)*];

            /// Its name in the configuration and the documentation.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$concept { .. } => $name,)*
                }
            }

            /// Whether the concept is read on spans of this operation: a tool's name on a model span is only a request. A model's
            /// tokens on an agent span are a sum, for traces in which no model call has a span.
            pub(super) fn belongs_on(self, operation: Operation) -> bool {
                match self {
                    $(Self::$concept { .. } => $spans(operation),)*
                }
            }
        }
    };
}

concepts! {
    /// The operation of the span, in the library's terms.
    Operation(fn(&str) -> Option<Operation> = super::operation_named), "operation" on all;
    Session, "session" on all;
    User, "user" on all;
    AgentName, "agent_name" on all;
    /// The workflow that an agent is part of; the agent gets its name if no span names it.
    Workflow, "workflow" on agents;
    AgentId, "agent_id" on agents;
    AgentVersion, "agent_version" on all;
    Environment, "environment" on all;
    /// Whether the span failed: it did if this function is true for the value.
    Failed(fn(&RawValue<'_>) -> bool = truth), "failed" on all;
    /// What kind of error ended the span, if it failed.
    ErrorType, "error_type" on all;
    /// Whether something stopped the span early: it was stopped if this function is true for the value.
    Stopped(fn(&RawValue<'_>) -> bool = truth), "stopped" on calls_and_sums;
    ToolName, "tool_name" on tools;
    ToolCallId, "tool_call_id" on tools;
    ToolArguments, "tool_arguments" on tools;
    ToolResult, "tool_result" on tools;
    Model, "model" on calls_and_sums;
    /// The provider of the model; a self-hosted model has no shipped price.
    Provider, "provider" on calls_and_sums;
    /// The requested model, whose price is used if the responding model has none.
    RequestedModel, "requested_model" on calls_and_sums;
    ResponseId, "response_id" on calls;
    InputTokens, "input_tokens" on calls_and_sums;
    CachedTokens, "cached_tokens" on calls_and_sums;
    CacheWrittenTokens, "cache_written_tokens" on calls_and_sums;
    OutputTokens, "output_tokens" on calls_and_sums;
    /// The sum of input and output tokens, which shows whether the input includes cached tokens.
    TotalTokens, "total_tokens" on calls_and_sums;
    Cost, "cost_usd" on calls_and_sums;
    /// The currency of the cost: a cost in other currencies counts as unknown.
    Currency, "cost_currency" on calls_and_sums;
    /// Whether the conversation before the span was cut down to a summary.
    Compacted, "compacted" on calls;
    Input, "input" on all_but_tools;
    Output, "output" on all_but_tools;
    Task, "task" on all;
    Run, "run" on all;
    Trial, "trial" on all;
    /// Whether the task succeeded, in the library's terms.
    Success(fn(&str) -> Option<bool> = success_named), "outcome" on all;
    Abstained, "abstained" on all;
    Perturbation, "perturbation" on all;
    PerturbationId, "perturbation_id" on all;
    Baseline, "baseline" on all;
    ExpectedOutput, "expected_output" on all;
    ExpectedTools, "expected_tools" on all;
    Retrieved, "retrieved_documents" on all;
    Cited, "cited_documents" on all;
    /// The session that the span's session continues.
    PreviousSession, "previous_session" on all;
    /// Seconds until the first chunk of a streamed response.
    FirstChunk, "first_chunk_seconds" on calls;
    /// A guardrail's name.
    Guardrail, "guardrail" on all;
    /// The decision of a guardrail.
    GuardrailResult, "guardrail_result" on all;
}

fn all(_: Operation) -> bool {
    true
}

fn tools(operation: Operation) -> bool {
    operation == Operation::ExecuteTool
}

fn all_but_tools(operation: Operation) -> bool {
    !tools(operation)
}

fn calls(operation: Operation) -> bool {
    operation == Operation::Chat
}

fn calls_and_sums(operation: Operation) -> bool {
    matches!(operation, Operation::Chat | Operation::InvokeAgent)
}

fn agents(operation: Operation) -> bool {
    matches!(operation, Operation::InvokeAgent | Operation::Other)
}

impl Concept {
    /// Its place in the order of reading.
    pub(super) fn order(self) -> usize {
        Self::ALL.iter().position(|other| other.name() == self.name()).unwrap_or(usize::MAX)
    }

    /// Offers the value to the draft.
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
                draft.failed |= arguments::is_failure(value);
            }
            Self::Model => draft.model.offer(rank, draft::model(value)),
            Self::Provider => {
                let is_local = name(value).map(|provider| price::is_local(provider.as_bytes()));
                draft.local.offer(rank, is_local);
            }
            Self::RequestedModel => draft.requested_model.offer(rank, draft::model(value)),
            Self::ResponseId => draft.response_id.offer(rank, name(value)),
            Self::InputTokens => draft.input_tokens.offer(rank, count(value)),
            Self::CachedTokens => draft.cached_tokens.offer(rank, count(value)),
            Self::CacheWrittenTokens => draft.cache_written_tokens.offer(rank, count(value)),
            Self::OutputTokens => draft.output_tokens.offer(rank, count(value)),
            Self::TotalTokens => draft.total_tokens.offer(rank, count(value)),
            Self::Cost => draft.cost.offer(rank, cost(value)),
            Self::Currency => {
                let named = name(value);
                let foreign = named.map(|name| !name.eq_ignore_ascii_case("USD"));
                draft.foreign.offer(rank, foreign);
            }
            Self::Compacted => draft.compacted.offer(rank, draft::flag(value)),
            Self::Input => draft.offer_input(rank, || messages::asked(value)),
            Self::Output => draft.offer_output(rank, || messages::said(value)),
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

/// Whether a task succeeded, in terms that libraries use.
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

/// Whether a value is present and not empty.
pub(super) fn present(value: &RawValue<'_>) -> bool {
    name(value).is_some()
}

/// Whether a span has an event of this name.
pub(super) fn has_event(raw: &RawSpan<'_>, name: &str) -> bool {
    raw.events.iter().any(|event| event.name == name)
}

/// A word; a JSON string is read, as some libraries write every value as JSON.
pub(super) fn word<'v>(value: &'v RawValue<'_>) -> Option<Cow<'v, str>> {
    let RawValue::Bool(flag) = value else { return name(value) };
    Some((if *flag { "true" } else { "false" }).into())
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
