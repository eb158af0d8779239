//! Spring AI, by Micrometer's observations.
//!
//! `gen_ai.operation.name` is `framework` on all but model spans, and `spring.ai.kind` is the kind of those. Prompts and answers
//! are on no span. If a model requests tools, the usage of each further call in the same run contains in Spring AI 1 that of the
//! earlier calls, and no attribute separates these from calls that a program makes one after another: tokens are read as sent.

use super::Convention;
use super::lines::{Concept, line};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "spring_ai",
    title: "Spring AI (Micrometer Tracing)",
    session: "pass `.advisors(a -> a.param(ChatMemory.CONVERSATION_ID, \"...\"))`",
    agent: "`gen_ai.agent.name` on a span around the call; a `ChatClient` has no name",
    lines: &[
        line(Concept::Operation(operation), 66, "spring.ai.kind"),
        line(Concept::ToolName, 66, "spring.ai.tool.definition.name"),
        line(Concept::ToolArguments, 82, "spring.ai.tool.call.arguments"),
        line(Concept::ToolResult, 82, "spring.ai.tool.call.result"),
    ],
    also: &[
        "Arguments and results of tools are sent with `spring.ai.tools.observations.include-content=true`. A tool that throws an exception has not failed where Spring AI returns its message to the model.",
        "Where the model calls tools, Spring AI 1 adds the usage of the earlier calls of the same `ChatClient` call to that of each later one; it is read as it is sent.",
    ],
    generic_names: &["spring_ai chat_client"],
    ..Convention::NONE
};

fn operation(kind: &str) -> Option<Operation> {
    match kind {
        "chat_client" => Some(Operation::InvokeAgent),
        "tool_call" => Some(Operation::ExecuteTool),
        _ => None,
    }
}
