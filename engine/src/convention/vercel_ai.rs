//! Vercel AI SDK 4 to 6 (`ai.*`), and the settings that version 7 adds to its GenAI spans.
//!
//! `ai.generateText` and its like are the whole run, with the sum of its tokens; `.doGenerate` and `.doStream` are the
//! model calls in it. A tool's result is JSON in a JSON string.

use super::draft::Draft;
use super::json::Json;
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Trigger, messages, otel_genai, usage};
use crate::span::{Operation, Tokens};

pub(super) const CONVENTION: Convention = Convention {
    name: "vercel_ai",
    title: "Vercel AI SDK 4 to 7",
    session: "4 to 6: `experimental_telemetry: { isEnabled: true, functionId: \"agent\", metadata: { sessionId } }`; 7: `runtimeContext: { sessionId }` with `telemetry: { includeRuntimeContext: { sessionId: true } }` and the integration's `runtimeContext: true`, as the defaults of both drop the context",
    agent: "`functionId`",
    lines: &[
    line(Concept::Operation(operation), 30, "ai.operationId"),
    line(Concept::User, 40, "ai.telemetry.metadata.userId"),
    line(Concept::User, 50, "ai.settings.context.userId"),
    line(Concept::AgentName, 30, "ai.telemetry.functionId"),
    line(Concept::AgentVersion, 40, "ai.telemetry.metadata.agentVersion"),
    line(Concept::AgentVersion, 41, "ai.settings.context.agentVersion"),
    line(Concept::Environment, 40, "ai.telemetry.metadata.environment"),
    line(Concept::Environment, 41, "ai.settings.context.environment"),
    line(Concept::Failed(error), 71, "ai.response.finishReason"),
    line(Concept::Failed(error), 72, "ai.finishReason"),
    line(Concept::Stopped(otel_genai::stopped), 71, "ai.response.finishReason"),
    line(Concept::Stopped(otel_genai::stopped), 73, "ai.finishReason"),
    line(Concept::ToolName, 30, "ai.toolCall.name"),
    line(Concept::ToolCallId, 30, "ai.toolCall.id"),
    line(Concept::ToolArguments, 20, "ai.toolCall.args"),
    line(Concept::ToolResult, 20, "ai.toolCall.result"),
    line(Concept::Model, 25, "ai.response.model"),
    line(Concept::Model, 65, "ai.model.id"),
    line(Concept::RequestedModel, 30, "ai.model.id"),
    line(Concept::Provider, 40, "ai.model.provider"),
    line(Concept::ResponseId, 20, "ai.response.id"),
    line(Concept::InputTokens, 55, "ai.usage.inputTokens"),
    line(Concept::InputTokens, 56, "ai.usage.promptTokens"),
    line(Concept::CachedTokens, 40, "ai.usage.cachedInputTokens"),
    line(Concept::CachedTokens, 41, "ai.usage.inputTokenDetails.cacheReadTokens"),
    line(Concept::CacheWrittenTokens, 41, "ai.usage.inputTokenDetails.cacheWriteTokens"),
    line(Concept::OutputTokens, 55, "ai.usage.outputTokens"),
    line(Concept::OutputTokens, 56, "ai.usage.completionTokens"),
    line(Concept::Input, 54, "ai.prompt.messages"),
    line(Concept::Input, 55, "ai.prompt"),
    line(Concept::Output, 54, "ai.response.text"),
    line(Concept::Output, 55, "ai.result.text"),
    line(Concept::Output, 56, "ai.response.object"),
    line(Concept::Output, 57, "ai.response.toolCalls"),
    line(Concept::Output, 58, "ai.result.toolCalls"),
],
    also: &[
            "`anthropic` in `ai.response.providerMetadata`: the tokens read from a cache and put into one, which the input tokens of versions 4 and 5 do not contain.",
        ],
    generic_names: // The last is what OpenCode calls all its calls.
        &["ai.generateObject", "ai.generateText", "ai.streamObject", "ai.streamText", "session.llm"],
    looks_for: &[Trigger::Key(METADATA)],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let metadata = raw.attributes.get(METADATA).and_then(messages::parsed);
    let of_anthropic = metadata.as_ref().and_then(|metadata| metadata.get("anthropic"));
    if let Some(anthropic) =
        of_anthropic.filter(|_| draft.operation.get() == Some(&Operation::Chat))
    {
        draft.offer_tokens(5, by_anthropic(anthropic, draft));
    }
}

/// The provider's own data beside its response, as JSON.
const METADATA: &str = "ai.response.providerMetadata";

/// The tokens of a call by Anthropic's data: its usage object or, in version 4, only the tokens that the input count excludes.
fn by_anthropic(anthropic: &Json<'_>, draft: &Draft<'_>) -> Tokens {
    if let Some(usage) = anthropic.get("usage").filter(|usage| usage.as_object().is_some()) {
        return usage::tokens(usage);
    }
    let count = |key: &str| anthropic.get(key)?.as_u64();
    let (cached, cache_written) =
        (count("cacheReadInputTokens"), count("cacheCreationInputTokens"));
    let beside = cached.unwrap_or(0).saturating_add(cache_written.unwrap_or(0));
    let input = draft.input_tokens.get().map(|input| input.saturating_add(beside));
    Tokens { input, cached, cache_written, output: None }
}

fn operation(id: &str) -> Option<Operation> {
    Some(match id {
        "ai.toolCall" => Operation::ExecuteTool,
        "ai.generateText" | "ai.streamText" | "ai.generateObject" | "ai.streamObject" => {
            Operation::InvokeAgent
        }
        id if id.starts_with("ai.embed") => Operation::Embeddings,
        id if id.ends_with(".doGenerate") || id.ends_with(".doStream") => Operation::Chat,
        id if id.starts_with("ai.") => Operation::Other,
        _ => return None,
    })
}

fn error(reason: &RawValue<'_>) -> bool {
    reason.as_str() == Some("error")
}
