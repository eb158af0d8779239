//! MLflow tracing over OTLP with `MLFLOW_ENABLE_OTEL_GENAI_SEMCONV`: GenAI spans, whose chains are named `[CHAIN]`.
//!
//! The name of a LangChain agent is still in the metadata of each run. Nothing shows which of the chains is an agent's run.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark, Trigger, langchain};

pub(super) const CONVENTION: Convention = Convention {
    name: "mlflow_genai",
    title: "MLflow tracing 3 (`MLFLOW_ENABLE_OTEL_GENAI_SEMCONV`)",
    session: "as without this variable",
    agent: "`name=\"...\"` for `create_agent` of LangChain, else the name of the span of type `AGENT`",
    marks: &[Mark::Scope("mlflow.tracing")],
    also: &[
        "`lc_agent_name` in `metadata` names the agent. Agents that it calls are not told apart from it.",
    ],
    looks_for: &[Trigger::Key("metadata")],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.agent_name.offer(49, langchain::agent_in_metadata(raw));
}
