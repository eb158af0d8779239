//! LangChain and LangGraph, whichever library instruments them: the names of graphs and chains whose kind is not that of an agent.
//!
//! A graph is a chain, and its nodes are chains below it, of which one may be called `agent`. So the user's name for the whole is
//! that of the trace's root, or `lc_agent_name` in the metadata of every run below an agent.

use std::borrow::Cow;

use super::draft::Draft;
use super::raw::RawSpan;
use super::{Convention, Mark, messages};
use crate::span::Operation;

/// The convention.
pub(super) struct LangChain;

impl Convention for LangChain {
    fn name(&self) -> &'static str {
        "langchain"
    }

    fn title(&self) -> &'static str {
        "LangChain, LangGraph (by OpenInference)"
    }

    fn session(&self) -> &'static str {
        "`configurable: {\"thread_id\": \"...\"}` in the run's config, or as OpenInference does"
    }

    fn agent(&self) -> &'static str {
        "`name=\"...\"` for `create_agent`, `create_react_agent` or `compile`"
    }

    fn marks(&self) -> &'static [Mark] {
        &[
            Mark::Scope("openinference.instrumentation.langchain"),
            Mark::Scope("@arizeai/openinference-instrumentation-langchain"),
        ]
    }

    fn also(&self) -> &'static [&'static str] {
        &[
            "`lc_agent_name` in `metadata` names the agent.",
            "A chain that is a trace's root is its workflow: pass `name=\"...\"` to `create_agent` or `compile`.",
        ]
    }

    fn generic_names(&self) -> &'static [&'static str] {
        &[
            "AgentExecutor",
            "CompiledStateGraph",
            "LangGraph",
            "langsmith",
            "RunnableLambda",
            "RunnableParallel",
            "RunnableSequence",
        ]
    }

    fn read<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
        draft.agent_name.offer(49, agent_in_metadata(raw));
        root_chain(raw, draft);
    }
}

/// The agent that the metadata of a run names.
pub(super) fn agent_in_metadata(raw: &RawSpan<'_>) -> Option<Cow<'static, str>> {
    let metadata = messages::parsed(raw.attributes.get("metadata")?)?;
    Some(metadata.get("lc_agent_name")?.as_str()?.to_owned().into())
}

/// Offers the name of a chain that is a trace's root.
pub(super) fn root_chain<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if raw.parent.is_none() && draft.operation.get() == Some(&Operation::Other) {
        draft.workflow.offer(80, Cow::from(&*raw.name));
    }
}
