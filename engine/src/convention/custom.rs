//! Custom attributes, mapped in the configuration; they precede every convention.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lines::Concept;

/// How an agent describes its work in log records: which events have which meaning, and which attributes, best first. Anything left
/// out has the usual names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default = "LogConvention::usual", deny_unknown_fields)]
pub struct LogConvention {
    /// Its name in messages.
    pub name: String,
    /// The prefix of the names of its scopes; empty: its events are recognised by their names alone.
    pub scope: String,
    /// Events that begin a turn: a user's prompts.
    pub prompts: Vec<String>,
    /// Events of model calls that have ended.
    pub model_calls: Vec<String>,
    /// Events of model calls that failed.
    pub model_errors: Vec<String>,
    /// Events of tools that are about to be called.
    pub tool_decisions: Vec<String>,
    /// Events of tool calls that have ended.
    pub tool_calls: Vec<String>,
    /// Events by which the agent itself reports that it is in a loop.
    pub loops: Vec<String>,
    /// The session.
    pub session: Vec<String>,
    /// The prompt that started a turn; without it a turn lasts from one prompt to the next.
    pub prompt_id: Vec<String>,
    /// The user's text, for a prompt.
    pub input: Vec<String>,
    /// The model's text.
    pub output: Vec<String>,
    /// The model.
    pub model: Vec<String>,
    /// An id of the model's answer.
    pub response_id: Vec<String>,
    /// Tokens read, cached ones included.
    pub input_tokens: Vec<String>,
    /// Those of them that came from a cache.
    pub cached_tokens: Vec<String>,
    /// Those of them that were written to a cache.
    pub cache_written_tokens: Vec<String>,
    /// Tokens written, reasoning included.
    pub output_tokens: Vec<String>,
    /// The cost of the call, in US dollars.
    pub cost_usd: Vec<String>,
    /// How long it took, in milliseconds.
    pub duration_ms: Vec<String>,
    /// The tool.
    pub tool_name: Vec<String>,
    /// The id of the tool call.
    pub call_id: Vec<String>,
    /// The arguments of the tool call.
    pub tool_arguments: Vec<String>,
    /// What the tool returned.
    pub tool_result: Vec<String>,
    /// Whether the tool call succeeded.
    pub success: Vec<String>,
    /// The kind of error of a call that failed.
    pub error_type: Vec<String>,
    /// The agent that made the call, if that is not the turn's.
    pub sub_agent: Vec<String>,
}

/// The concepts that attributes can be mapped to.
pub fn concepts() -> impl Iterator<Item = &'static str> {
    Concept::ALL.iter().map(|concept| concept.name())
}

/// The mapped attributes, best first for each concept; the configuration is checked against [`concepts`] when it is
/// read.
pub(super) fn rules(
    mapping: &BTreeMap<String, Vec<String>>,
) -> impl Iterator<Item = (Concept, &str)> {
    mapping.iter().flat_map(|(name, keys)| {
        let found = Concept::ALL.iter().find(|concept| concept.name() == name);
        found.into_iter().flat_map(|concept| keys.iter().map(|key| (*concept, key.as_str())))
    })
}

/// Names of events or attributes, best first.
pub(super) fn list<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

impl LogConvention {
    /// The usual names, and no events.
    pub fn usual() -> Self {
        Self {
            name: "custom".to_owned(),
            session: list(["session.id", "gen_ai.conversation.id", "conversation.id"]),
            prompt_id: list(["prompt.id", "prompt_id"]),
            input: list(["prompt"]),
            output: list(["response_text", "response"]),
            model: list(["gen_ai.response.model", "gen_ai.request.model", "model"]),
            response_id: list(["gen_ai.response.id", "response_id"]),
            input_tokens: list(["gen_ai.usage.input_tokens", "input_tokens", "input_token_count"]),
            cached_tokens: list(["gen_ai.usage.cache_read.input_tokens", "cached_token_count"]),
            cache_written_tokens: list(["gen_ai.usage.cache_creation.input_tokens"]),
            output_tokens: list([
                "gen_ai.usage.output_tokens",
                "output_tokens",
                "output_token_count",
            ]),
            cost_usd: list(["cost_usd"]),
            duration_ms: list(["duration_ms"]),
            tool_name: list(["gen_ai.tool.name", "tool_name", "function_name"]),
            call_id: list(["gen_ai.tool.call.id", "call_id"]),
            tool_arguments: list(["gen_ai.tool.call.arguments", "arguments", "function_args"]),
            tool_result: list(["gen_ai.tool.call.result", "output"]),
            success: list(["success"]),
            error_type: list(["error.type", "error_type"]),
            sub_agent: list(["sub_agent", "subagent_name"]),
            ..Self::default()
        }
    }
}
