//! One run of an agent at a task, the input of the scores.

use std::sync::Arc;

use crate::math::Quanta;
use crate::span::Timestamp;

/// One attempt at a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRecord {
    /// The task; without one the run does not count for consistency.
    pub task: Option<Arc<str>>,
    /// Unique within the agent and the task.
    pub id: Arc<str>,
    /// When it began; runs are ordered by this and the id.
    pub start: Timestamp,
    /// Whether it succeeded; `None`: not known.
    pub success: Option<bool>,
    /// How sure the agent was, in `[0,1]`. A value further than 100 from zero counts as unknown.
    pub confidence: Option<Quanta>,
    /// The condition under which it ran.
    pub condition: Condition,
    /// Names of the tools that it called, in order.
    pub actions: Vec<Arc<str>>,
    /// The resources that it used.
    pub resources: Resources,
    /// The severity of each broken rule; empty: none was broken, `None`: not known.
    pub violations: Option<Vec<Severity>>,
    /// Whether rules were checked, whether or not any was found broken. A report of a broken rule alone does not show which other
    /// runs were checked.
    pub looked: bool,
}

/// The disturbance under which a run took place.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Condition {
    /// No disturbance.
    #[default]
    Baseline,
    /// Tools or services were made to fail.
    Fault,
    /// The format or structure of inputs was changed.
    Environment,
    /// The instructions were rephrased.
    Prompt,
}

/// The severity of a broken rule.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// Weighs 0.25.
    Low,
    /// Weighs 0.5; also for an unnamed or unknown severity.
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

/// The resources that a run used; `None`: not known.
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
    /// Number of errors.
    pub errors: Option<f64>,
    /// Mean seconds of a model call.
    pub call_latency_seconds: Option<f64>,
}
