//! LangChain and LangGraph, whichever library instruments them: the names of graphs and chains whose kind is not that of an agent.
//!
//! A graph is a chain, and its nodes are chains below it; one of these may be called `agent`. So the user's name for the whole is
//! that of the trace's root, or `lc_agent_name` in the metadata of every run below an agent.

use std::borrow::Cow;

use super::draft::Draft;
use super::json::Json;
use super::raw::RawSpan;
use super::{Convention, Mark, is_generic, messages};
use crate::span::Operation;

pub(super) const CONVENTION: Convention = Convention {
    name: "langchain",
    title: "LangChain, LangGraph (by OpenInference, traceAI)",
    session: "`configurable: {\"thread_id\": \"...\"}` in the run's config, or as OpenInference does",
    agent: "`name=\"...\"` for `create_agent`, `create_react_agent` or `compile`",
    marks: &[
        Mark::Scope("openinference.instrumentation.langchain"),
        Mark::Scope("@arizeai/openinference-instrumentation-langchain"),
        Mark::Scope("traceai_langchain"),
    ],
    also: &[
        "`lc_agent_name` in `metadata` names the agent; the chain of that name is the agent's run.",
        "Steps of middleware (`*.before_agent`, `*.after_agent` and the like) are no agents, and a run with `tool.name` is a tool, whatever their kind.",
        "A run of LangGraph (`ls_integration` in `metadata`) that is no node of another graph is an agent, if its graph has a name of its own. `call_agent` is the supervisor's step around an agent.",
        "`ParentCommand`, by which a tool or a node hands off to the graph around, is no failure, nor are interrupts.",
        "A chain that is a trace's root is its workflow: pass `name=\"...\"` to `create_agent` or `compile`.",
    ],
    generic_names: &[
        "AgentExecutor",
        "CompiledStateGraph",
        "LangGraph",
        "langsmith",
        "RunnableLambda",
        "RunnableParallel",
        "RunnableSequence",
    ],
    operation,
    read,
    ..Convention::NONE
};

fn operation(raw: &RawSpan<'_>) -> Option<(u8, Operation)> {
    let kind = |key: &str| raw.attributes.str(key);
    let kind = kind("openinference.span.kind").or_else(|| kind("gen_ai.span.kind"))?;
    if !matches!(kind, "AGENT" | "CHAIN") {
        return None;
    }
    if raw.attributes.get("tool.name").is_some() {
        return Some((9, Operation::ExecuteTool));
    }
    let part = part_by_metadata(raw);
    let is_graph = || is_graph(raw) && !is_generic(&raw.name);
    Some((9, part.or_else(|| is_graph().then_some(Operation::InvokeAgent))?))
}

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    draft.agent_name.offer(49, agent_in_metadata(raw));
    root_chain(raw, draft);
}

/// The agent that the metadata of a run names.
pub(super) fn agent_in_metadata(raw: &RawSpan<'_>) -> Option<Cow<'static, str>> {
    let metadata = messages::parsed(raw.attributes.get("metadata")?)?;
    Some(metadata.get("lc_agent_name")?.as_str()?.to_owned().into())
}

/// The kind of a chain, by its name and the agent that its metadata names.
pub(super) fn part_by_metadata(raw: &RawSpan<'_>) -> Option<Operation> {
    // Most names of chains are in no metadata.
    let metadata = raw.attributes.str("metadata");
    let agent = metadata.filter(|metadata| metadata.contains(&*raw.name));
    let agent = agent.and_then(|_| agent_in_metadata(raw));
    part(&raw.name, agent.as_deref())
}

/// Whether a chain is the run of a graph rather than one of its nodes.
fn is_graph(raw: &RawSpan<'_>) -> bool {
    let metadata = raw.attributes.get("metadata").filter(|metadata| {
        // Most chains are nodes.
        metadata.as_str().is_some_and(|text| !text.contains("langgraph_node"))
    });
    let integration = |metadata: &Json<'_>| {
        metadata.get("ls_integration").and_then(Json::as_str) == Some("langgraph")
    };
    metadata.and_then(messages::parsed).as_ref().is_some_and(integration)
}

/// The kind of a chain, by its name and the agent that its metadata names: that agent's run, or a step of middleware.
/// Instrumentations take every chain with `agent` in its name for an agent.
pub(super) fn part(chain: &str, agent: Option<&str>) -> Option<Operation> {
    if chain == CALL || HOOKS.iter().any(|hook| chain.ends_with(hook)) {
        return Some(Operation::Other);
    }
    (agent == Some(chain)).then_some(Operation::InvokeAgent)
}

/// The function of langgraph-supervisor that runs an agent as a node of its graph.
const CALL: &str = "call_agent";

/// The ends of the names of middleware's steps.
const HOOKS: [&str; 4] = [".before_agent", ".after_agent", ".before_model", ".after_model"];

/// Offers the name of a chain that is a trace's root.
pub(super) fn root_chain<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    if raw.parent.is_none() && draft.operation.get() == Some(&Operation::Other) {
        draft.workflow.offer(80, Cow::from(&*raw.name));
    }
}
