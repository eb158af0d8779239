//! Results for people and scripts: the objects of `replay --output json` and of the JSON API. Absent is null; ids are hex, times
//! are strings, numbers are not rounded. Fields may be added, but the existing ones keep their names and meaning.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::facts::{AgentKey, AgentParts, Effort, ScopedId, StepKind, SubAgent};
use super::limits::Exceeded;
use super::loops::{Evidence, LoopKind, Severity};
use super::math::{Quanta, ratio};
use super::small_map::SmallMap;
use super::span::Guardrail;

/// The whole document: `{"sessions": [...], "agents": [...]}`.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Document {
    /// Sessions, by start of their first trace, then id.
    pub sessions: Vec<SessionView>,
    /// Agents, by name.
    pub agents: Vec<AgentView>,
}

/// The names of an agent; null where nothing was sent.
#[derive(Clone, Debug, Default, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct AgentName {
    /// `service.name`.
    pub service_name: Option<String>,
    /// The agent's name.
    pub agent_name: Option<String>,
    /// The agent's version.
    pub agent_version: Option<String>,
    /// The deployment environment.
    pub environment: Option<String>,
    /// The tenant of the agent; left out if senders have no tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl From<&AgentKey> for AgentName {
    /// An agent's names as results have them: empty is absent.
    fn from(key: &AgentKey) -> Self {
        let present = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            service_name: present(&key.service_name),
            agent_name: present(&key.agent_name),
            agent_version: present(&key.agent_version),
            environment: present(&key.environment),
            tenant: present(&key.tenant),
        }
    }
}

impl From<&AgentName> for AgentKey {
    /// The names as keys have them: absent is empty.
    fn from(name: &AgentName) -> Self {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        AgentParts {
            tenant: text(&name.tenant),
            service_name: text(&name.service_name),
            agent_name: text(&name.agent_name),
            agent_version: text(&name.agent_version),
            environment: text(&name.environment),
        }
        .into()
    }
}

/// A score and who made it.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct SignalView {
    /// In `[0,1]`, higher is better.
    pub score: f64,
    /// `computed`, `judge` or `reported`.
    pub source: String,
    /// The evaluator: for the judge, its model and the version of the prompts; null if the score is computed or the evaluator was
    /// not sent.
    pub evaluator: Option<String>,
    /// The reason, if the judge gave one.
    pub explanation: Option<String>,
    /// Whether the score is at least the signal's threshold.
    pub passed: bool,
    /// The source document's name for a score of this height; null if it has none.
    pub band: Option<&'static str>,
}

/// Tokens; null if they were not sent.
#[derive(Clone, Copy, Debug, Default, Eq, JsonSchema, PartialEq, Serialize)]
pub struct TokensView {
    /// Tokens read, cached ones included.
    pub input: Option<u64>,
    /// Tokens written, reasoning included.
    pub output: Option<u64>,
}

/// One tool call.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct ToolView {
    /// The tool; null if unknown.
    pub name: Option<String>,
    /// The JSON value after canonicalisation; a string if it is not JSON; null if not sent or not kept.
    pub arguments: Option<serde_json::Value>,
    /// Whether it failed; null if not known.
    pub error: Option<bool>,
    /// The kind of error, from `error.type` or the type of the exception; left out if neither was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// Its start.
    pub start_unix_nano: String,
    /// Its end.
    pub end_unix_nano: String,
}

/// One step of a trace: a call of a model, a tool or another agent.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct StepView {
    /// `model`, `tool` or `agent`.
    #[schemars(with = "String")]
    pub kind: StepKind,
    /// The model, the tool or the agent; null if unknown.
    pub name: Option<String>,
    /// Its span, hex.
    pub span_id: String,
    /// Its start.
    pub start_unix_nano: String,
    /// Its end.
    pub end_unix_nano: String,
    /// Whether it failed; null if not known.
    pub error: Option<bool>,
    /// The kind of error, from `error.type` or the type of the exception; left out if neither was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// For a model: its tokens.
    pub tokens: TokensView,
    /// For a model: its cost in dollars.
    pub cost_usd: Option<f64>,
    /// Seconds until the first chunk of the response, for a model that streams; left out if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_chunk_seconds: Option<f64>,
    /// For a tool: the JSON value of its arguments; null if not sent.
    pub arguments: Option<serde_json::Value>,
    /// For a tool: the first 4 KiB of its result; null if not sent.
    pub result: Option<String>,
}

/// One loop.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct LoopView {
    /// `exact_repeat` and so on.
    #[schemars(with = "String")]
    pub kind: LoopKind,
    /// `warning` or `critical`.
    #[schemars(with = "String")]
    pub severity: Severity,
    /// The tool; for a cycle, the first one.
    pub tool: Option<String>,
    /// The tools of one period of a cycle, in order; else the tool alone.
    pub tools: Vec<String>,
    /// Calls in the run; full periods for a cycle.
    pub count: u64,
    /// `full`, `arguments`, `results`, `names` or `text`; a loop with evidence of names alone changes no score.
    #[schemars(with = "String")]
    pub evidence: Evidence,
    /// The traces that the run spans.
    pub trace_ids: Vec<String>,
    /// For a run within one trace, the index of its first call among the tool calls of that trace, from 0.
    pub first: Option<u64>,
    /// Likewise, the index of its last call.
    pub last: Option<u64>,
    /// Spans of its calls, at most a hundred; empty if the run spans several traces.
    pub span_ids: Vec<String>,
    /// Tokens spent in the loop.
    pub tokens: TokensView,
    /// Dollars spent in the loop.
    pub cost_usd: Option<f64>,
}

/// What an agent below the outermost one did.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct SubAgentView {
    /// Its name.
    pub name: String,
    /// Model calls.
    pub model_calls: u64,
    /// Tool calls.
    pub tool_calls: u64,
    /// Calls of either that failed.
    pub errors: u64,
    /// Loops of its tool calls.
    pub loops: u64,
    /// Tokens read, as far as they are known.
    pub input_tokens: u64,
    /// Tokens written, likewise.
    pub output_tokens: u64,
    /// Dollars, likewise.
    pub cost_usd: f64,
}

impl From<&SubAgent> for SubAgentView {
    fn from(part: &SubAgent) -> Self {
        Self {
            name: part.name.clone(),
            model_calls: part.model_calls,
            tool_calls: part.tool_calls,
            errors: part.errors,
            loops: part.loops,
            input_tokens: part.input_tokens,
            output_tokens: part.output_tokens,
            cost_usd: ratio(i128::from(part.cost_quanta), i128::from(Quanta::ONE)),
        }
    }
}

/// A limit that a run exceeded.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct LimitView {
    /// `model_calls`, `tool_calls`, `tokens`, `cost_usd`, `duration` or `calls_without_tool`.
    pub limit: &'static str,
    /// The kind of run: `trace` or `session`.
    pub run: &'static str,
    /// What was used: a number, dollars, or seconds.
    pub used: f64,
    /// The limit, likewise.
    pub most: f64,
}

impl From<Exceeded> for LimitView {
    fn from(Exceeded { limit, used, most }: Exceeded) -> Self {
        Self {
            limit: limit.name(),
            run: limit.run().name(),
            used: limit.shown(used),
            most: limit.shown(most),
        }
    }
}

/// What a trace states about the attempt at a task that it is part of.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct AttemptView {
    /// The task or test case.
    pub task: Option<Arc<str>>,
    /// The experiment or suite run.
    pub run: Option<Arc<str>>,
    /// The repetition.
    pub trial: Option<Arc<str>>,
    /// `success`, `failure`, or null if not reported.
    pub outcome: Option<&'static str>,
    /// Whether the agent gave up or handed over.
    pub abstained: Option<bool>,
    /// `none`, `fault`, `environment`, `prompt`, as sent.
    pub perturbation: Option<Arc<str>>,
    /// The disturbance among those of its kind.
    pub perturbation_id: Option<Arc<str>>,
    /// Whether it is the undisturbed run with which others are compared.
    pub baseline: Option<bool>,
    /// Tools that should be called, in order.
    pub expected_tools: Vec<Arc<str>>,
    /// Documents found, by id.
    pub retrieved_documents: Vec<Arc<str>>,
    /// Documents cited, by id.
    pub cited_documents: Vec<Arc<str>>,
    /// Rules broken.
    pub violations: Vec<ViolationView>,
}

/// A rule that an agent broke.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct ViolationView {
    /// The rule.
    pub constraint: Arc<str>,
    /// `low`, `medium`, `high`; null if not said.
    pub severity: Option<Arc<str>>,
    /// Who found it: for the judge, its model and the version of the prompts; null if not known.
    pub evaluator: Option<String>,
    /// The reason, if the judge gave one.
    pub explanation: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// One trace, explained.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct TraceView {
    /// Hex.
    pub trace_id: String,
    /// The id on its spans, if the trace is a later turn under that id: the earlier turns were sealed when it began. Left out if
    /// the id is the trace's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_trace_id: Option<String>,
    /// First start of its spans.
    pub start_unix_nano: String,
    /// Last end of its spans.
    pub end_unix_nano: String,
    /// Whether a root arrived.
    pub complete: bool,
    /// The status of the root, as sent: `ok`, `error`, `unset`; null without a root.
    pub status: Option<&'static str>,
    /// Whether the root or the last model call failed.
    pub error: bool,
    /// The kind of error of the outermost failed span that reports one; left out if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// The trace's agent.
    pub agent: AgentName,
    /// The user's text of the turn.
    pub input: Option<String>,
    /// The final assistant text of the turn.
    pub output: Option<String>,
    /// `kept` or `dropped`.
    pub content: &'static str,
    /// Tool calls in order of start.
    pub tools: Vec<ToolView>,
    /// Calls of models, tools and other agents in order of start, at most 1000; empty where content is not kept.
    pub steps: Vec<StepView>,
    /// Model calls, each once.
    pub llm_calls: u64,
    /// Seconds in model calls; calls in parallel add up.
    pub model_seconds: f64,
    /// Tokens of the model calls, as far as they are known; null where none is.
    pub tokens: TokensView,
    /// Dollars of the model calls, likewise.
    pub cost_usd: Option<f64>,
    /// Successful model calls with unknown tokens, which are therefore missing above.
    pub calls_without_tokens: u64,
    /// Likewise, those with unknown cost.
    pub calls_without_cost: u64,
    /// Models called, sorted.
    pub models: Vec<String>,
    /// The user; null if not sent.
    pub user: Option<String>,
    /// Task, outcome, conditions, documents and violations; null if nothing was sent.
    pub attempt: Option<AttemptView>,
    /// Results of guardrails, in order, at most 100; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guardrails: Vec<Guardrail>,
    /// Since when the agent has been waiting for a person; left out if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_since_unix_nano: Option<String>,
    /// Changes to files that people accepted, as reported by a coding agent; left out if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub accepted_edits: u64,
    /// Changes that people rejected, likewise.
    #[serde(skip_serializing_if = "is_zero")]
    pub rejected_edits: u64,
    /// Loops found in or ending in this trace.
    pub loops: Vec<LoopView>,
    /// Limits that it exceeded; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitView>,
    /// What agents below the outermost one did; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sub_agents: Vec<SubAgentView>,
    /// AgentCI's count of adjacent calls of equal name.
    pub adjacent_tool_repeats: u64,
    /// Signals by name.
    pub signals: BTreeMap<String, SignalView>,
    /// Weighted risk of each signal that has a part in the scores.
    pub risks: BTreeMap<String, f64>,
    /// The greatest of these risks; null without any.
    pub risk: Option<f64>,
    /// Null without a confidence.
    pub weighted_uncertainty: Option<f64>,
    /// Null without a confidence.
    pub situational_penalty: Option<f64>,
    /// Results of the expectations of the queries that it answers.
    pub expectations: Vec<ExpectationView>,
    /// Effort compared with the agent's other traces, as for sessions; left out of open traces, and while fewer than twenty are
    /// done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<f64>,
    /// The probability that the run of this trace failed, judging by this trace alone, in `[0,1]`; left out with the effort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_failure: Option<f64>,
    /// What it used, if it is done.
    #[serde(skip)]
    pub took: Option<Effort>,
}

/// A trace against one query's expectations, layer by layer.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct ExpectationView {
    /// The query's text in the file.
    pub query: String,
    /// Whether a failure must stop a build.
    pub hard_fail: bool,
    /// `correctness`, `path`, `retrieval` and `cost`.
    #[serde(flatten)]
    pub layers: BTreeMap<&'static str, LayerView>,
}

/// One layer of expectations.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct LayerView {
    /// `skip`, `pass`, `warn` or `fail`.
    pub status: &'static str,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
    /// What holds, and what could not be checked.
    pub notes: Vec<String>,
    /// The underlying numbers, by the source document's names.
    pub details: serde_json::Value,
}

/// One session.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct SessionView {
    /// The session id.
    pub session_id: String,
    /// Distinguishes sessions with the same id: the namespace of their services, or the name of their outermost agent; empty: there
    /// is neither.
    pub scope: String,
    /// The attribute that named it, `trace` or `instance`.
    pub session_source: String,
    /// The agent of its first trace.
    pub agent: AgentName,
    /// The session that it continues; left out if no span states one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_session_id: Option<String>,
    /// Scores reported for the session as a whole.
    pub signals: BTreeMap<String, SignalView>,
    /// Its traces by (start, id).
    pub traces: Vec<TraceView>,
    /// All traces.
    pub total_traces: u64,
    /// Traces with at least one weighted signal that needs no judge: those that the reliability covers.
    pub traces_evaluated: u64,
    /// `agent_reliability`, in `[0,1]`, from signals that are computed or reported; null over nothing.
    pub reliability: Option<f64>,
    /// Traces with a weighted signal from the judge: those that the judged reliability covers.
    pub traces_judged: u64,
    /// From all signals of the traces that the judge was asked about, in `[0,1]`; null over none.
    pub judged_reliability: Option<f64>,
    /// `agent_consistency`, in `[0,1]`, from confidences that are computed or reported; null without any.
    pub consistency: Option<f64>,
    /// The ensemble before it is clamped.
    pub raw_risk: Option<f64>,
    /// The greatest risk of a trace.
    pub max_risk: Option<f64>,
    /// Mean of the top 15 %.
    pub mean_top_k_risk: Option<f64>,
    /// Root mean square of the weighted uncertainties.
    pub rms: Option<f64>,
    /// Ids of traces whose risk is over 0.5.
    pub flagged: Vec<String>,
    /// The band of the reliability, as the source document names it.
    pub band: Option<&'static str>,
    /// Weights in force.
    pub signal_weights: BTreeMap<String, f64>,
    /// Effort compared with the agent's other sessions, in `[0,1]`: the mean share of those with fewer model calls, tool calls,
    /// tokens, dollars, less time and a shorter longest call; null with fewer than twenty sessions.
    pub effort: Option<f64>,
    /// The probability that it failed, in `[0,1]`: from its effort, and from the known outcomes of the agent's runs; null with
    /// fewer than twenty sessions.
    pub predicted_failure: Option<f64>,
    /// Where the prediction comes from; null without one.
    pub prediction: Option<PredictionView>,
    /// Limits that all of its traces together exceeded; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitView>,
    /// What its done traces used.
    #[serde(skip)]
    pub took: Effort,
}

/// Where a prediction comes from.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct PredictionView {
    /// The share of the agent's sessions, or of its traces, that used less, in `[0,1]`, by `model_calls`, `tool_calls`,
    /// `output_tokens`, `cost`, `duration`, `longest_call`; left out if not known.
    pub more_than: BTreeMap<&'static str, f64>,
    /// What each feature adds to the log-odds of failure.
    pub carried_by: BTreeMap<&'static str, f64>,
    /// Sessions of the agent whose outcome is known.
    pub outcomes_known: u64,
}

/// One agent.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct AgentView {
    /// The agent.
    #[serde(flatten)]
    pub agent: AgentName,
    /// Sessions seen.
    pub sessions: u64,
    /// Done traces seen.
    pub traces: u64,
    /// Done traces with at least one weighted signal.
    pub traces_evaluated: u64,
    /// The document's formula over all its traces in memory; null over nothing.
    pub reliability: Option<f64>,
    /// Likewise.
    pub consistency: Option<f64>,
    /// Done traces by signal and verdict, each trace once, as it was when it was first done; `trace_risk` is all signals together.
    /// Left out in a replay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub verdicts: BTreeMap<String, VerdictsView>,
    /// Loops by kind.
    pub loops: BTreeMap<String, u64>,
    /// Tokens spent.
    pub tokens: TokensView,
    /// Dollars spent.
    pub cost_usd: Option<f64>,
    /// Scores by window (`5m`, `1h`, ..., `last_50`), where there are any.
    pub windows: SmallMap<Arc<str>, WindowView>,
    /// Every score over runs, by the name of its family without `agentgauge_agent_` and `_score`; only what exists.
    /// All are in `[0,1]`. `pass_hat_k` is an object by k.
    pub scores: BTreeMap<String, ScoreValue>,
    /// How many runs, tasks or confidences each score is over.
    pub score_samples: BTreeMap<String, u64>,
    /// The agent reliability score by component; null without data.
    pub ars: Option<ArsView>,
    /// Its streams, and whether they are in a drop; empty before the first done trace.
    pub drops: Vec<DropView>,
    /// Reported deployments of any version of it, the newest first; the last 32.
    pub deployments: Vec<DeploymentView>,
    /// When something of it last arrived, also for an open trace; null before the first trace that counts.
    pub last_trace_unix_nano: Option<String>,
    /// What agents below it did in its done traces; its own numbers include this.
    pub sub_agents: Vec<SubAgentView>,
    /// Models without a price in any table, and how many of their calls report tokens but no cost.
    pub unpriced_models: BTreeMap<String, u64>,
    /// Open traces that have been silent for longer than usual.
    pub traces_stalled: u64,
    /// Longest usual silence in seconds; null before twenty gaps over a day are known.
    pub usual_gap_seconds: Option<f64>,
    /// Differences to earlier versions.
    pub versions: Vec<VersionView>,
    /// Tasks, by id.
    pub tasks: Vec<TaskView>,
    /// Estimated share of its sessions that succeed, by window (`all`, `5m`, `1h`, ...), if five outcomes in it are known.
    pub success: BTreeMap<String, SuccessView>,
    /// How well each signal, `reliability` (without the outcome in it), `effort` and `predicted_failure` separate its failed
    /// sessions from the others, if five of each are known.
    pub signal_auroc: BTreeMap<String, AurocView>,
    /// How accurate predicted failures have been; null before five failed and five successful sessions are known.
    pub calibration: Option<CalibrationView>,
}

/// How many traces pass.
#[derive(Clone, Copy, Debug, Default, Eq, JsonSchema, PartialEq, Serialize)]
pub struct VerdictsView {
    /// Those that pass.
    pub pass: u64,
    /// Those that fail.
    pub fail: u64,
}

/// An estimated share of sessions that succeed.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct SuccessView {
    /// In `[0,1]`.
    pub estimate: f64,
    /// Lower bound of the 95 % interval.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
    /// Lower bound of the 95 % interval that holds at all times at once: for readers who watch until it crosses a line.
    pub always_lower: f64,
    /// Upper bound of that interval.
    pub always_upper: f64,
    /// Sessions whose outcome is known: those that the judge was asked about, if there are five, else all.
    pub told: u64,
    /// Those of them whose outcome was reported by others than the judge, by an unknown selection.
    pub selected: u64,
    /// Sessions in the window, as far as they are counted.
    pub sessions: u64,
}

/// How well a number separates failed sessions from others.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct AurocView {
    /// The probability that a failed session has a greater risk than a successful one, in `[0,1]`; 0.5 is chance.
    pub auroc: f64,
    /// Sessions that have both the number and an outcome.
    pub sessions: u64,
}

/// How accurate predicted probabilities of failure are, each computed without the session's own outcome.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct CalibrationView {
    /// Mean squared error, in `[0,1]`.
    pub brier: f64,
    /// The same for always predicting the share of sessions that fail: the value to beat.
    pub brier_of_base: f64,
    /// Expected calibration error over ten bins, in `[0,1]`.
    pub expected_error: f64,
    /// Sessions that have both a prediction and an outcome.
    pub sessions: u64,
}

/// A score, or one for each k.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ScoreValue {
    /// In `[0,1]`; `ars` in `[0,100]`.
    One(f64),
    /// By k.
    ByK(BTreeMap<u32, f64>),
}

/// The agent reliability score, from 0 to 100. The weights and ceilings are agentgauge's, not the source's.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct ArsView {
    /// From 0 to 100.
    pub score: f64,
    /// The source's band.
    pub band: &'static str,
    /// Components that have data: score from 0 to 100, weight after renormalising, samples.
    pub components: BTreeMap<String, ArsComponentView>,
}

/// One component of the agent reliability score.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct ArsComponentView {
    /// From 0 to 100.
    pub score: f64,
    /// Its part in the score.
    pub weight: f64,
    /// How many runs or cases it covers.
    pub samples: u64,
}

/// One stream of an agent, compared with its usual level.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct DropView {
    /// Which stream: `verdict`, `outcome`, `predicted_failure`, `tool_failures`, `loops`, `effort`, `cost`, `latency`. Levels of the last three are
    /// mean percentiles among the agent's usual traces, those of `predicted_failure` shares of the traces with an outcome, those of the others shares
    /// of traces.
    pub stream: &'static str,
    /// Whether its drops page; otherwise they warn.
    pub pages: bool,
    /// `quiet`, `recovering`, `warning`, `critical`.
    pub severity: &'static str,
    /// What it is compared with: `objective`, `past`, `version_before`.
    pub against: &'static str,
    /// That version; null if it is compared with something else.
    pub version_before: Option<String>,
    /// The usual level, or that of the objective, in `[0,1]`.
    pub usual: f64,
    /// Evidence of a drop relative to what a page takes; from 1 on, it is a drop.
    pub evidence: f64,
    /// The drop; null while there is none.
    pub drop: Option<DropFoundView>,
}

/// A deployment, as it was reported.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct DeploymentView {
    /// When.
    pub unix_nano: String,
    /// The version that was rolled out; empty: not reported.
    pub agent_version: String,
    /// Its name; null: not reported.
    pub name: Option<String>,
    /// Whether its level was declared to be the usual one, whatever it is.
    pub accepted: bool,
}

/// A drop, or a possible one.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct DropFoundView {
    /// Estimated end of the first trace that belongs to it.
    pub since_unix_nano: String,
    /// Level before the drop, in `[0,1]`.
    pub from: f64,
    /// Level since then, in `[0,1]`.
    pub to: f64,
    /// Traces since then.
    pub traces: u64,
    /// The probability that the level left what is tolerated, in `[0,1]`, if streams do so once a month.
    pub confidence: f64,
    /// The computed signal behind most of the failures; null: none.
    pub signal: Option<String>,
    /// The tool that fails or loops in them; null: none.
    pub tool: Option<String>,
    /// The kind of error of more than half of them, from `error.type` or the type of the exception; null: none.
    pub error_type: Option<String>,
    /// At most two of the sessions with failures, as they were when the drop was found.
    pub sessions: Vec<SessionName>,
}

impl SessionView {
    /// The key of the session among those of its tenant.
    pub fn name(&self) -> ScopedId {
        ScopedId { id: self.session_id.as_str().into(), scope: self.scope.as_str().into() }
    }
}

impl From<ScopedId> for SessionName {
    fn from(ScopedId { id: session_id, scope }: ScopedId) -> Self {
        Self { session_id: session_id.to_string(), scope: scope.to_string() }
    }
}

/// A session of a known tenant.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct SessionName {
    /// The session id.
    pub session_id: String,
    /// Its scope.
    pub scope: String,
}

/// How a version of an agent differs from an earlier one, at 95 % confidence at any time.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct VersionView {
    /// The earlier version.
    pub baseline: String,
    /// Difference of the means of 1 - risk; below 0 means worse.
    pub estimate: f64,
    /// Least difference of the means that is consistent with the data; below 0 means worse.
    pub lower: f64,
    /// Greatest difference, likewise.
    pub upper: f64,
    /// Whether zero lies outside of these bounds.
    pub differs: bool,
}

/// One task.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct TaskView {
    /// The task's id.
    pub task_id: String,
    /// Runs with an outcome.
    pub runs: u64,
    /// Of these, successes.
    pub successes: u64,
    /// Scores of this task alone.
    pub scores: BTreeMap<String, f64>,
    /// The agent reliability score's components of this task alone, from 0 to 100.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ars_components: BTreeMap<String, f64>,
}

impl AgentView {
    /// Replaces the numbers from counters by the sums over the agent's traces in these sessions; without any traces it stays
    /// unchanged. Verdicts are left out, as they reflect what was known when they counted.
    pub fn add_up(&mut self, sessions: &[SessionView]) {
        self.verdicts.clear();
        let own = || {
            let traces = sessions.iter().flat_map(|session| &session.traces);
            traces.filter(|trace| trace.agent == self.agent)
        };
        if own().next().is_none() {
            return;
        }
        let mut loops = BTreeMap::new();
        for entry in own().flat_map(|trace| &trace.loops) {
            *loops.entry(entry.kind.name().to_owned()).or_default() += 1;
        }
        let sum = |of: fn(&TokensView) -> Option<u64>| {
            own().filter_map(|trace| of(&trace.tokens)).reduce(u64::saturating_add)
        };
        let tokens =
            TokensView { input: sum(|tokens| tokens.input), output: sum(|tokens| tokens.output) };
        let cost = own().filter_map(|trace| trace.cost_usd).reduce(|sum, cost| sum + cost);
        (self.loops, self.tokens, self.cost_usd) = (loops, tokens, cost);
    }
}

/// An agent over one window.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct WindowView {
    /// Traces in the window.
    pub traces: u64,
    /// Sessions with a trace in the window.
    pub sessions: u64,
    /// Traces with at least one weighted signal that needs no judge: those that the reliability covers.
    pub traces_evaluated: u64,
    /// Traces with a confidence: those that the consistency covers.
    pub traces_with_confidence: u64,
    /// Traces with a weighted signal from the judge: those that the judged reliability covers.
    pub traces_judged: u64,
    /// From signals that are computed or reported; null over nothing.
    pub reliability: Option<f64>,
    /// From all signals of the traces that the judge was asked about; null over none.
    pub judged_reliability: Option<f64>,
    /// Share of the evaluated traces that fail, with a risk over one half; null over nothing.
    pub failure_ratio: Option<f64>,
    /// Null over nothing.
    pub consistency: Option<f64>,
    /// The greatest risk.
    pub max_risk: Option<f64>,
    /// Means of the signals.
    pub signals: SmallMap<Cow<'static, str>, f64>,
}
