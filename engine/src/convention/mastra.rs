//! Mastra's exporters.
//!
//! `mastra.span.type` is the kind of a span and precedes OpenInference's kind, which marks nested levels of one model call. Tokens
//! are on the outermost or on the innermost of these levels.

use super::Convention;
use super::lines::{Concept, line};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "mastra",
    title: "Mastra (`@mastra/otel-exporter`, `@mastra/arize`)",
    session: "a memory thread (`memory: { thread, resource }`), or `tracingOptions: { metadata: { sessionId } }`",
    agent: "the agent's `name`",
    lines: &[
        line(Concept::Operation(operation), 8, "mastra.span.type"),
        line(Concept::User, 60, "mastra.metadata.userId"),
        line(Concept::Run, 60, "mastra.metadata.runId"),
        line(Concept::ToolArguments, 55, "mastra.tool_call.input"),
        line(Concept::ToolArguments, 56, "mastra.mcp_tool_call.input"),
        line(Concept::ToolResult, 55, "mastra.tool_call.output"),
        line(Concept::ToolResult, 56, "mastra.mcp_tool_call.output"),
        line(Concept::Input, 61, "mastra.agent_run.input"),
        line(Concept::Input, 62, "mastra.model_generation.input"),
        line(Concept::Input, 63, "mastra.model_step.input"),
        line(Concept::Output, 61, "mastra.agent_run.output"),
        line(Concept::Output, 62, "mastra.model_generation.output"),
        line(Concept::Output, 63, "mastra.model_step.output"),
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
