//! One run of an agent at a task: what the scores are made of.

use std::sync::Arc;

use crate::math::Quanta;
use crate::span::Timestamp;

/// One attempt at a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRecord {
    /// The task; without one the run has no part in consistency.
    pub task: Option<Arc<str>>,
    /// Unique within the agent and the task.
    pub id: Arc<str>,
    /// When it began; with the id, what orders runs.
    pub start: Timestamp,
    /// Whether it succeeded; `None`: nobody said.
    pub success: Option<bool>,
    /// How sure the agent was, in `[0,1]`. What is further than 100 from zero is taken as not said.
    pub confidence: Option<Quanta>,
    /// Under what it ran.
    pub condition: Condition,
    /// Names of the tools that it called, in order.
    pub actions: Vec<Arc<str>>,
    /// What it used.
    pub resources: Resources,
    /// How bad each rule was broken; empty: none was, `None`: nobody said.
    pub violations: Option<Vec<Severity>>,
    /// Somebody looked for broken rules, whether or not any was found. Who tells of a broken rule alone does not say which other runs
    /// were looked at.
    pub looked: bool,
}

/// Under which disturbance a run took place.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Condition {
    /// None.
    #[default]
    Baseline,
    /// Tools or services were made to fail.
    Fault,
    /// The format or structure of inputs was changed.
    Environment,
    /// The instructions were said in other words.
    Prompt,
}

/// How bad it is that a rule was broken.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// Weighs 0.25.
    Low,
    /// Weighs 0.5; also what nobody named, or named otherwise.
    #[default]
    Medium,
    /// Weighs 1.
    High,
}

impl Severity {
    /// Reads `low`, `medium` or `high`; anything else, capitals too, is medium, as in the source's code.
    pub fn named(name: Option<&str>) -> Self {
        match name {
            Some("low") => Self::Low,
            Some("high") => Self::High,
            Some(_) | None => Self::Medium,
        }
    }
}

/// What a run used; `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resources {
    /// US dollars.
    pub cost_usd: Option<f64>,
    /// Seconds from start to end.
    pub time_seconds: Option<f64>,
    /// Model calls.
    pub api_calls: Option<f64>,
    /// Tool calls.
    pub actions: Option<f64>,
    /// Errors met.
    pub errors: Option<f64>,
    /// Mean seconds of a model call.
    pub call_latency_seconds: Option<f64>,
}
