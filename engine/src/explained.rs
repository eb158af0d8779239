//! What people ask about after a number: which sessions are worst, and why a trace has the score that it has.
//! Objects of the query API. Absent is null; fields may be added, these keep their names and meaning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::facts::AgentKey;
use super::loops::Severity;
use super::view::{
    AgentName, LoopView, PredictionView, SignalView, TokensView, ToolView, TraceView,
};

/// Which sessions somebody asks for; what is `None` does not matter.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SessionFilter {
    /// Whose sessions.
    pub agent: AgentFilter,
    /// Whether they are open.
    pub open: Option<bool>,
    /// Whether they have a loop that is known by more than names.
    pub loops: Option<bool>,
    /// Whether a trace of theirs fails.
    pub failing: Option<bool>,
    /// Whether they go on over a limit, or a trace of theirs does.
    pub over_limit: Option<bool>,
    /// Whether nothing has come of an open trace of theirs for `session.stall_after`.
    pub silent: Option<bool>,
    /// A part of their id.
    pub id: Option<String>,
    /// A part of the name of a tool that they called.
    pub tool: Option<String>,
    /// Whose they are.
    pub user: Option<String>,
}

/// Which agents somebody asks for; an empty text asks for agents of which it was not sent.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct AgentFilter {
    /// `service.name`; empty: where it was not sent.
    pub service_name: Option<String>,
    /// The agent's name.
    pub agent_name: Option<String>,
    /// The agent's version.
    pub agent_version: Option<String>,
    /// The deployment environment.
    pub environment: Option<String>,
    /// The tenant, for those who see more than one.
    pub tenant: Option<String>,
}

/// In which order sessions come; of equal ones the one that started first.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// By start of the first trace.
    #[default]
    Start,
    /// The one that ended last first.
    Recent,
    /// The least reliable first, of equal ones the one that ended last; those without a score last.
    Reliability,
    /// The one with the most loops first, of equal ones the one that ended last.
    Loops,
    /// The costliest first, of equal ones the one that ended last; those of unknown cost last.
    Cost,
}

/// One session in a list.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct SessionRow {
    /// The session id.
    pub session_id: String,
    /// Tells sessions of one id apart: the namespace of their services, or the name of their outermost agent; empty: nothing does.
    pub scope: String,
    /// The agent of its first trace.
    pub agent: AgentName,
    /// First start of its first trace.
    pub start_unix_nano: String,
    /// End of the trace that ended last.
    pub end_unix_nano: String,
    /// More may come.
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
    /// Loops, without those that are known by names alone.
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

/// Why a trace has the score that it has.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct TraceExplanation {
    /// The session that it is part of.
    pub session_id: String,
    /// Tells sessions of one id apart: the namespace of their services, or the name of their outermost agent; empty: nothing does.
    pub scope: String,
    /// The tenant of that session; empty: none.
    pub tenant: String,
    /// The whole in one sentence.
    pub reason: String,
    /// The trace.
    pub trace: TraceView,
    /// Why it is taken for over: root, remote_parent, parents_never_come, nothing_known, age, room, end_of_input; or what it waits
    /// for: parents_come, local_parent, nothing_known. While spans come, as it was last.
    pub decided_on: String,
    /// Its verdicts are counted: its root is in, or it is final without one.
    pub counted: bool,
    /// Not all of it is known: it was taken for over before its root came, or was full, so that what its agent did later was left out.
    pub partial: bool,
    /// The scores of its session as they are.
    pub now: Outlook,
    /// Where its predicted failure comes from; left out where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictionView>,
    /// Its signals, the greatest risk first.
    pub signals: Vec<SignalExplanation>,
    /// The worst loops, twenty at most, that have a call in it, or whose text it repeats.
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
    /// Its weight; null if it has no part in scores.
    pub weight: Option<f64>,
    /// weight * (1 - score); null without a weight.
    pub risk: Option<f64>,
    /// Its risk is the trace's.
    pub decides: bool,
    /// What it was made of, one sentence each.
    pub evidence: Vec<String>,
    /// What the scores would be if this trace did not have it.
    pub without: Outlook,
}

/// One loop: its calls, and what it does.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct LoopExplanation {
    /// The loop.
    #[serde(flatten)]
    pub found: LoopView,
    /// Its first calls, at most 100; empty for a repeated output.
    pub calls: Vec<CallView>,
    /// What the scores would be without it: the signal that it lowers taken as if it were not there, in all of its traces.
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

/// Scores as they are, or as they would be.
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

    /// Whether an agent is one that is asked for; `None`: nothing is known of it.
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
