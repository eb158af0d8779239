//! LlamaIndex: OpenInference spans of its own names, or its own exporter's, which sends names alone.

use super::raw::RawSpan;
use super::{Convention, Mark};
use crate::span::Operation;

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
        "Without a kind, by the name: `FunctionTool.call` is a tool of unknown name, `*.chat`, `*.complete` and their streaming and `a` forms are model calls, `*Agent.run` an agent.",
    ],
    generic_names: &["agent", "AgentWorkflow", "CodeActAgent", "FunctionAgent", "ReActAgent"],
    operation,
    ..Convention::NONE
};

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
