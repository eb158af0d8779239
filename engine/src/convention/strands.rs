//! AWS Strands Agents and AgentCore: GenAI spans with one span event per message.
//!
//! A tool's arguments are the content of its `gen_ai.tool.message`, its result the message of its `gen_ai.choice`. The
//! root's tokens are cumulative over the agent's life and are not read.

use super::draft::Draft;
use super::lines::{Concept, line};
use super::raw::{RawSpan, RawValue};
use super::{Convention, Trigger, text};
use crate::span::Operation;

/// The result of a node of a graph or a swarm.
const NODE_STATUS: &str = "gen_ai.agent.status";

pub(super) const CONVENTION: Convention = Convention {
    name: "strands",
    title: "AWS Strands Agents, Bedrock AgentCore",
    session: "`Agent(trace_attributes={\"session.id\": \"...\"})`",
    agent: "`Agent(name=\"...\")`",
    lines: &[
        line(Concept::Failed(error_status), 30, "gen_ai.tool.status"),
        line(Concept::Failed(failed_status), 31, NODE_STATUS),
    ],
    also: &[
        "On tool spans: arguments from the span event `gen_ai.tool.message` (`content`), the result from `gen_ai.choice` (`message`).",
        "The span of a graph or a swarm names no agent: the trace is that of the first agent in it.",
        "A graph or a swarm of which a node (`execute_node`) failed has failed, whatever its own status.",
    ],
    generic_names: &["invoke_graph", "invoke_swarm", "Strands Agents"],
    looks_for: &[Trigger::Event, Trigger::Key(NODE_STATUS)],
    read,
    ..Convention::NONE
};

fn read<'v>(raw: &'v RawSpan<'_>, draft: &mut Draft<'v>) {
    let is_node = raw.attributes.str("gen_ai.operation.name") == Some("execute_node");
    if is_node && raw.attributes.get(NODE_STATUS).is_some_and(failed_status) {
        draft.remarks().failed_run = true;
    }
    if draft.operation.get() != Some(&Operation::ExecuteTool) {
        return;
    }
    for event in &raw.events {
        match &*event.name {
            "gen_ai.tool.message" => {
                let content = event.attributes.get("content");
                draft
                    .arguments
                    .offer(80, content.and_then(|value| text::arguments(value, draft.keep_texts)));
            }
            "gen_ai.choice" => {
                let message = event.attributes.get("message");
                draft.result_hash.offer(80, message.and_then(text::result));
            }
            _ => {}
        }
    }
}

fn failed_status(status: &RawValue<'_>) -> bool {
    status.as_str().is_some_and(|status| status.eq_ignore_ascii_case("failed"))
}

fn error_status(status: &RawValue<'_>) -> bool {
    status.as_str() == Some("error")
}
