//! Answers to questions about a number: which sessions are worst, and why a trace has its score. Objects of the query API. Absent
//! is null; fields may be added, but the existing ones keep their names and meaning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::facts::AgentKey;
use super::loops::Severity;
use super::view::{
    AgentName, LoopView, PredictionView, SignalView, TokensView, ToolView, TraceView,
};

/// Selects sessions; a field that is `None` does not restrict.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SessionFilter {
    /// The agent of the sessions.
    pub agent: AgentFilter,
    /// Whether they are open.
    pub open: Option<bool>,
    /// Whether they have a loop with more evidence than names.
    pub loops: Option<bool>,
    /// Whether one of their traces fails.
    pub failing: Option<bool>,
    /// Whether they, or one of their traces, run over a limit.
    pub over_limit: Option<bool>,
    /// Whether one of their open traces has been silent for `session.stall_after`.
    pub silent: Option<bool>,
    /// A part of the session id.
    pub id: Option<String>,
    /// A part of the name of a tool that they called.
    pub tool: Option<String>,
    /// The user.
    pub user: Option<String>,
}

/// Selects agents; an empty text selects agents for which the attribute was not sent.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct AgentFilter {
    /// `service.name`; empty: not sent.
    pub service_name: Option<String>,
    /// The agent's name.
    pub agent_name: Option<String>,
    /// The agent's version.
    pub agent_version: Option<String>,
    /// The deployment environment.
    pub environment: Option<String>,
    /// The tenant, for users who can read more than one.
    pub tenant: Option<String>,
}

/// The order of sessions; among equal ones, the one that started first comes first.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// By start of the first trace.
    #[default]
    Start,
    /// The one that ended last first.
    Recent,
    /// The least reliable first, then the one that ended last; sessions without a score come last.
    Reliability,
    /// The one with the most loops first, then the one that ended last.
    Loops,
    /// The costliest first, then the one that ended last; sessions of unknown cost come last.
    Cost,
}

/// One session in a list.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct SessionRow {
    /// The session id.
    pub session_id: String,
    /// Distinguishes sessions with the same id: the namespace of their services, or the name of their outermost agent; empty: there
    /// is neither.
    pub scope: String,
    /// The agent of its first trace.
    pub agent: AgentName,
    /// First start of its first trace.
    pub start_unix_nano: String,
    /// End of the trace that ended last.
    pub end_unix_nano: String,
    /// More traces may follow.
    pub open: bool,
    /// All traces.
    pub total_traces: u64,
    /// Traces with at least one weighted signal.
    pub traces_evaluated: u64,
    /// Traces whose risk is over 0.5.
    pub flagged: u64,
    /// `agent_reliability`, in `[0,1]`; null over nothing.
    pub reliability: Option<f64>,
    /// `agent_consistency`, in `[0,1]`; null without any confidence.
    pub consistency: Option<f64>,
    /// Loops, without those whose evidence is names alone.
    pub loops: u64,
    /// `warning` or `critical`; null without loops.
    #[schemars(with = "Option<String>")]
    pub worst_loop: Option<Severity>,
    /// Tool calls.
    pub tool_calls: u64,
    /// Tokens of the model calls.
    pub tokens: TokensView,
    /// Dollars of the model calls.
    pub cost_usd: Option<f64>,
}

/// Why a trace has its score.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct TraceExplanation {
    /// The session that it is part of.
    pub session_id: String,
    /// Distinguishes sessions with the same id: the namespace of their services, or the name of their outermost agent; empty: there
    /// is neither.
    pub scope: String,
    /// The tenant of that session; empty: none.
    pub tenant: String,
    /// The explanation in one sentence.
    pub reason: String,
    /// The trace.
    pub trace: TraceView,
    /// Why the trace is considered done: root, remote_parent, parents_never_come, nothing_known, age, room, end_of_input; or what
    /// it waits for: parents_come, local_parent, nothing_known. While spans arrive, the last reason.
    pub decided_on: String,
    /// Its verdicts are counted: its root has arrived, or it is final without one.
    pub counted: bool,
    /// Not all of it is known: it was considered done before its root arrived, or it was full, so that later activity was left out.
    pub partial: bool,
    /// The current scores of its session.
    pub now: Outlook,
    /// Where its predicted failure comes from; left out if there is no prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// Its signals, the greatest risk first.
    pub signals: Vec<SignalExplanation>,
    /// The worst loops, at most twenty, that have a call in it, or whose text it repeats.
    pub loops: Vec<LoopExplanation>,
}

/// One signal of a trace: where it comes from and what it does.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct SignalExplanation {
    /// Its name.
    pub name: String,
    /// The score and who made it.
    #[serde(flatten)]
    pub signal: SignalView,
    /// The score from which it passes.
    pub threshold: f64,
    /// Its weight; null if it is not part of the scores.
    pub weight: Option<f64>,
    /// weight * (1 - score); null without a weight.
    pub risk: Option<f64>,
    /// Its risk is the trace's risk.
    pub decides: bool,
    /// What it was computed from, one sentence each.
    pub evidence: Vec<String>,
    /// What the scores would be without this trace's value of the signal.
    pub without: Outlook,
}

/// One loop: its calls, and its effect.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct LoopExplanation {
    /// The loop.
    #[serde(flatten)]
    pub found: LoopView,
    /// Its first calls, at most 100; empty for a repeated output.
    pub calls: Vec<CallView>,
    /// What the scores would be without it: the signal that it lowers is left out in all of its traces.
    pub without: Outlook,
}

/// One call of a loop.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct CallView {
    /// The trace that it is in.
    pub trace_id: String,
    /// Its position among the tool calls of that trace, from 0.
    pub index: u64,
    /// The call.
    #[serde(flatten)]
    pub call: ToolView,
}

/// Scores, actual or hypothetical.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Outlook {
    /// The trace's greatest risk; null without any.
    pub trace_risk: Option<f64>,
    /// The reliability of its session; null over nothing.
    pub session_reliability: Option<f64>,
    /// The consistency of its session; null without any confidence.
    pub session_consistency: Option<f64>,
}

impl AgentFilter {
    /// Only this agent.
    pub fn exactly(agent: &AgentName) -> Self {
        let AgentName { tenant, service_name, agent_name, agent_version, environment } = agent;
        let sent = |name: &Option<String>| Some(name.clone().unwrap_or_default());
        Self {
            service_name: sent(service_name),
            agent_name: sent(agent_name),
            agent_version: sent(agent_version),
            environment: sent(environment),
            tenant: sent(tenant),
        }
    }

    /// Whether the filter selects this agent; `None`: nothing is known about the agent.
    pub fn admits(&self, agent: Option<&AgentKey>) -> bool {
        let fits = |asked: &Option<String>, sent: fn(&AgentKey) -> &str| {
            asked.as_deref().is_none_or(|asked| asked == agent.map_or("", |agent| sent(agent)))
        };
        fits(&self.service_name, |agent| &agent.service_name)
            && fits(&self.agent_name, |agent| &agent.agent_name)
            && fits(&self.agent_version, |agent| &agent.agent_version)
            && fits(&self.environment, |agent| &agent.environment)
            && fits(&self.tenant, |agent| &agent.tenant)
    }
}
