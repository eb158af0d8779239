//! LlamaIndex: OpenInference spans with names of its own, or spans of its own exporter, which has other facts in the call's
//! arguments, as Python writes them, and in events.

use std::borrow::Cow;

use super::draft::{self, Draft, count, name};
use super::json::Json;
use super::raw::{RawEvent, RawSpan, RawValue};
use super::{Convention, Mark, messages, python, text};
use crate::span::{Operation, Tokens};

pub(super) const CONVENTION: Convention = Convention {
    name: "llama_index",
    title: "LlamaIndex",
    session: "`with using_session(session_id=\"...\"):` of OpenInference around the run",
    agent: "`gen_ai.agent.name` on a span around the run",
    marks: &[
        Mark::Scope("openinference.instrumentation.llama_index"),
        Mark::Scope("llama_index"),
        Mark::Scope("llamaindex"),
    ],
    also: &[
        "Spans `*._prepare_chat_with_tools` prepare a model call and are none, whatever their kind.",
        "Without a kind, by the name: `FunctionTool.call` and `.acall` are a tool, `*.chat`, `*.complete` and their streaming and `a` forms are model calls, `*Agent.run` an agent.",
        "`llamaindex.step.input_summary`: `tool_name`, `tool_kwargs` and `tool_id` of a tool's call, which is a tool of unknown name without it, and `current_agent_name` of a step. Where it is cut off, what is missing is not known.",
        "The span events `LLMChatStartEvent` (`messages`) and `LLMChatEndEvent` (`response.raw.*`, `response.message.blocks`) of a model call.",
    ],
    generic_names: &["agent", "AgentWorkflow", "CodeActAgent", "FunctionAgent", "ReActAgent"],
    operation,
    read,
    ..Convention::NONE
};

/// The arguments of a step, as Python writes them.
const SUMMARY: &str = "llamaindex.step.input_summary";

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let (class, method) = raw.name.rsplit_once('.')?;
    let method = method.trim_start_matches("stream_").trim_start_matches("astream_");
    let operation = match method {
        "_prepare_chat_with_tools" => return Some((2, Operation::Other)),
        "call" | "acall" if class.ends_with("Tool") => Operation::ExecuteTool,
        "chat" | "achat" | "complete" | "acomplete" | "chat_with_tools" | "achat_with_tools" => {
            Operation::Chat
        }
        "run" if class.ends_with("Agent") || class.ends_with("AgentWorkflow") => {
            Operation::InvokeAgent
        }
        _ => return None,
    };
    Some((92, operation))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let summary = raw.attributes.str(SUMMARY);
    match draft.operation.get() {
        Some(Operation::ExecuteTool) => {
            let Some(call) = summary.and_then(|text| python::fields(text, "ToolCall")) else {
                return;
            };
            let named =
                |key: &str| Some(Cow::Owned(call.get(key).and_then(Json::as_str)?.to_owned()));
            draft.tool_name.offer(75, named("tool_name"));
            draft.tool_call_id.offer(75, named("tool_id"));
            let asked = call.get("tool_kwargs").map(ToString::to_string);
            let asked = asked.map(|asked| RawValue::Str(asked.into()));
            let keep = draft.keep_texts;
            draft.arguments.offer(75, asked.and_then(|asked| text::arguments(&asked, keep)));
        }
        Some(Operation::InvokeAgent) => {
            // The class and its method.
            draft.agent_name.offer(96, raw.name.strip_suffix(".run").map(Cow::from));
        }
        Some(Operation::Chat) => {
            for event in &raw.events {
                match &*event.name {
                    "LLMChatStartEvent" => asked(event, draft),
                    "LLMChatEndEvent" => answered(event, draft),
                    _ => {}
                }
            }
        }
        Some(_) | None => {
            let agent = summary.and_then(|text| text.strip_suffix("')"));
            let agent = agent.and_then(|text| text.rsplit_once("current_agent_name='"));
            draft.agent_name.offer(75, agent.map(|(_, agent)| Cow::from(agent)));
        }
    }
}

fn asked<'v>(event: &'v RawEvent<'_>, draft: &mut Draft<'v>) {
    draft.model.offer(76, event.attributes.get("model_dict.model_name").and_then(draft::model));
    if let Some(messages) = event.attributes.get("messages") {
        draft.offer_input(75, || messages::asked(messages));
    }
}

fn answered<'v>(event: &'v RawEvent<'_>, draft: &mut Draft<'v>) {
    let raw = |key: &str| event.attributes.get(key);
    draft.model.offer(75, raw("response.raw.model").and_then(draft::model));
    draft.response_id.offer(75, raw("response.raw.id").and_then(name));
    let tokens = |key: &str| raw(key).and_then(count);
    draft.offer_tokens(
        75,
        Tokens {
            input: tokens("response.raw.usage.prompt_tokens")
                .or_else(|| tokens("response.additional_kwargs.prompt_tokens")),
            cached: tokens("response.raw.usage.prompt_tokens_details.cached_tokens"),
            cache_written: None,
            output: tokens("response.raw.usage.completion_tokens")
                .or_else(|| tokens("response.additional_kwargs.completion_tokens")),
        },
    );
    let said = raw("response.raw.choices").filter(|choices| choices.as_str() != Some("null"));
    if let Some(said) = said.or_else(|| raw("response.message.blocks")) {
        draft.offer_output(75, || messages::said(said));
    }
}
