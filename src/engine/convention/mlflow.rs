//! MLflow tracing over OTLP: every value is JSON, quotes included.

use super::draft::Draft;
use super::lines::{Line, Says, line};
use super::messages;
use super::raw::RawSpan;
use super::{Convention, Look};
use crate::engine::span::Operation;

/// The convention.
pub(super) struct Mlflow;

const LINES: &[Line] = &[
    line(Says::Operation(operation), 78, "mlflow.spanType"),
    line(Says::User, 77, "mlflow.trace.user"),
    line(Says::ToolArguments, 75, "mlflow.spanInputs"),
    line(Says::ToolResult, 75, "mlflow.spanOutputs"),
    line(Says::Model, 55, "mlflow.llm.model"),
    line(Says::Cost, 50, "mlflow.llm.cost"),
    line(Says::Input, 64, "mlflow.traceInputs"),
    line(Says::Input, 65, "mlflow.spanInputs"),
    line(Says::Output, 64, "mlflow.traceOutputs"),
    line(Says::Output, 65, "mlflow.spanOutputs"),
    line(Says::Task, 60, "mlflow.eval.requestId"),
    line(Says::Run, 50, "mlflow.sourceRun"),
];

impl Convention for Mlflow {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn title(&self) -> &'static str {
        "MLflow tracing 3"
    }

    fn session(&self) -> &'static str {
        "set `session.id` as an attribute of the root span (`span.set_attribute(\"session.id\", \"...\")`): the trace's own session metadata is not exported over OTLP; LangGraph's `thread_id` is read"
    }

    fn lines(&self) -> &'static [Line] {
        LINES
    }

    fn also(&self) -> &'static [&'static str] {
        &["`mlflow.chat.tokenUsage`: `input_tokens`, `output_tokens`, `cache_read_input_tokens`."]
    }

    fn looks_for(&self) -> &'static [Look] {
        &[Look::Key("mlflow.chat.tokenUsage"), Look::Key("mlflow.spanType")]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        let usage = raw.attributes.get("mlflow.chat.tokenUsage").and_then(messages::parsed);
        let count = |key: &str| usage.as_ref()?.get(key)?.as_u64();
        draft.input_tokens.offer(60, count("input_tokens"));
        draft.output_tokens.offer(60, count("output_tokens"));
        draft.cached_tokens.offer(60, count("cache_read_input_tokens"));
        let metadata = raw.attributes.get("metadata").filter(|_| is_own(raw));
        let agent = metadata.and_then(messages::parsed);
        let agent = agent.as_ref().and_then(|metadata| metadata.get("lc_agent_name")?.as_str());
        draft.agent_name.offer(49, agent.map(|agent| agent.to_owned().into()));
    }
}

/// Whether a span is MLflow's at all.
fn is_own(raw: &RawSpan<'_>) -> bool {
    raw.attributes.get("mlflow.spanType").is_some()
}

fn operation(kind: &str) -> Option<Operation> {
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
