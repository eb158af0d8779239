//! MLflow tracing over OTLP: every value is JSON, quotes included.

use std::borrow::Cow;

use super::draft::{Draft, name};
use super::lines::{Concept, line};
use super::raw::RawSpan;
use super::{Convention, Trigger, langchain, messages};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "mlflow",
    title: "MLflow tracing 3",
    session: "set `session.id` as an attribute of the root span (`span.set_attribute(\"session.id\", \"...\")`): the trace's own session metadata is not exported over OTLP; LangGraph's `thread_id` is read",
    agent: "`Agent(..., name=\"...\")` of Pydantic AI, else the name of the span of type `AGENT`, else of the root",
    lines: &[
        line(Concept::Operation(of_kind), 78, "mlflow.spanType"),
        line(Concept::User, 77, "mlflow.trace.user"),
        line(Concept::ToolArguments, 75, "mlflow.spanInputs"),
        line(Concept::ToolResult, 75, "mlflow.spanOutputs"),
        line(Concept::Model, 55, "mlflow.llm.model"),
        line(Concept::Cost, 50, "mlflow.llm.cost"),
        line(Concept::Input, 64, "mlflow.traceInputs"),
        line(Concept::Input, 65, "mlflow.spanInputs"),
        line(Concept::Output, 64, "mlflow.traceOutputs"),
        line(Concept::Output, 65, "mlflow.spanOutputs"),
        line(Concept::Task, 60, "mlflow.eval.requestId"),
        line(Concept::Run, 50, "mlflow.sourceRun"),
    ],
    also: &[
        "`mlflow.chat.tokenUsage`: `input_tokens`, `output_tokens`, `cache_read_input_tokens`.",
        "`lc_agent_name` in `metadata` names the agent, and the chain of that name is the agent's run; a root that is another chain is the workflow.",
        "Pydantic AI (`mlflow.message.format`): `name` is the agent's.",
        "A tool of DSPy is named without `Tool.` before it.",
    ],
    generic_names: &["Agent.run", "Agent.run_sync", "Agent.run_stream", "Agent.iter"],
    looks_for: &[Trigger::Key("mlflow.chat.tokenUsage"), Trigger::Key("mlflow.spanType")],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let kind = raw.attributes.get("mlflow.spanType").and_then(name);
    kind.filter(|kind| *kind == "CHAIN")?;
    Some((77, langchain::part_by_metadata(raw)?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let usage = raw.attributes.get("mlflow.chat.tokenUsage").and_then(messages::parsed);
    let count = |key: &str| usage.as_ref()?.get(key)?.as_u64();
    draft.input_tokens.offer(60, count("input_tokens"));
    draft.output_tokens.offer(60, count("output_tokens"));
    draft.cached_tokens.offer(60, count("cache_read_input_tokens"));
    draft.cache_written_tokens.offer(60, count("cache_creation_input_tokens"));
    if is_own(raw) {
        draft.agent_name.offer(49, langchain::agent_in_metadata(raw));
        langchain::root_chain(raw, draft);
        let format = raw.attributes.get("mlflow.message.format").and_then(name);
        if format.as_deref() == Some("pydantic_ai")
            && draft.operation.get() == Some(&Operation::InvokeAgent)
        {
            draft.agent_name.offer(48, raw.attributes.get("name").and_then(name));
        }
        if draft.operation.get() == Some(&Operation::ExecuteTool) {
            draft.tool_name.offer(90, raw.name.strip_prefix("Tool.").map(Cow::from));
        }
    }
}

/// Whether a span is MLflow's.
fn is_own(raw: &RawSpan<'_>) -> bool {
    raw.attributes.get("mlflow.spanType").is_some()
}

fn of_kind(kind: &str) -> Option<Operation> {
    Some(match kind {
        "LLM" | "CHAT_MODEL" => Operation::Chat,
        "TOOL" => Operation::ExecuteTool,
        "AGENT" => Operation::InvokeAgent,
        "EMBEDDING" => Operation::Embeddings,
        "RETRIEVER" | "RERANKER" => Operation::Retrieval,
        "EVALUATOR" => Operation::Evaluation,
        "CHAIN" | "PARSER" | "MEMORY" | "WORKFLOW" | "TASK" | "GUARDRAIL" | "UNKNOWN" => {
            Operation::Other
        }
        _ => return None,
    })
}
