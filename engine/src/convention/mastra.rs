//! Mastra's exporters.
//!
//! `mastra.span.type` tells what a span is and goes before OpenInference's kind, which marks nested levels of one
//! model call. Tokens are on the outermost or on the innermost of these levels.

use super::Convention;
use super::lines::{Says, line};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "mastra",
    title: "Mastra (`@mastra/otel-exporter`, `@mastra/arize`)",
    session: "a memory thread (`memory: { thread, resource }`), or `tracingOptions: { metadata: { sessionId } }`",
    agent: "the agent's `name`",
    lines: &[
        line(Says::Operation(operation), 8, "mastra.span.type"),
        line(Says::User, 60, "mastra.metadata.userId"),
        line(Says::Run, 60, "mastra.metadata.runId"),
        line(Says::ToolArguments, 55, "mastra.tool_call.input"),
        line(Says::ToolArguments, 56, "mastra.mcp_tool_call.input"),
        line(Says::ToolResult, 55, "mastra.tool_call.output"),
        line(Says::ToolResult, 56, "mastra.mcp_tool_call.output"),
        line(Says::Input, 61, "mastra.agent_run.input"),
        line(Says::Input, 62, "mastra.model_generation.input"),
        line(Says::Input, 63, "mastra.model_step.input"),
        line(Says::Output, 61, "mastra.agent_run.output"),
        line(Says::Output, 62, "mastra.model_generation.output"),
        line(Says::Output, 63, "mastra.model_step.output"),
    ],
    ..Convention::NONE
};

fn operation(kind: &str) -> Option<Operation> {
    Some(match kind {
        "agent_run" => Operation::InvokeAgent,
        "model_generation" | "model_step" | "model_inference" => Operation::Chat,
        "tool_call" | "mcp_tool_call" => Operation::ExecuteTool,
        "rag_embedding" => Operation::Embeddings,
        "scorer_run" | "scorer_step" => Operation::Evaluation,
        "model_chunk" | "processor_run" | "memory_operation" | "generic" => Operation::Other,
        kind if kind.starts_with("workflow") => Operation::Other,
        _ => return None,
    })
}
