//! MLflow tracing over OTLP with `MLFLOW_ENABLE_OTEL_GENAI_SEMCONV`: GenAI spans, whose chains are named `[CHAIN]`.
//!
//! What names an agent of LangChain is still in the metadata of each run. Of the chains nothing tells which is an agent's run.

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark, Trigger, langchain};

/// The convention.
pub(super) struct MlflowGenAi;

impl Convention for MlflowGenAi {
    fn name(&self) -> &'static str {
        "mlflow_genai"
    }

    fn title(&self) -> &'static str {
        "MLflow tracing 3 (`MLFLOW_ENABLE_OTEL_GENAI_SEMCONV`)"
    }

    fn session(&self) -> &'static str {
        "as without this variable"
    }

    fn agent(&self) -> &'static str {
        "`name=\"...\"` for `create_agent` of LangChain, else the name of the span of type `AGENT`"
    }

    fn marks(&self) -> &'static [Mark] {
        &[Mark::Scope("mlflow.tracing")]
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "`lc_agent_name` in `metadata` names the agent. Agents that it calls are not told apart from it.",
        ]
    }

    fn looks_for(&self) -> &'static [Trigger] {
        &[Trigger::Key("metadata")]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        draft.agent_name.offer(49, langchain::agent_in_metadata(raw));
    }
}
