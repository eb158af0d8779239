//! Options of the scores over repeated runs.

use serde::{Deserialize, Serialize};

/// How runs at tasks are scored.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskOptions {
    /// Latest runs of a task whose trajectories and resources are compared, at most 50.
    pub last_runs: usize,
    /// Tasks of one agent; runs at further ones are refused.
    pub max_tasks: usize,
    /// Runs of one agent that can still be revised; over it the earliest is settled: it keeps counting, and what more comes
    /// of it, or of a run that began before it, is refused.
    // In the daemon `agents.max_runs` says it.
    #[serde(skip)]
    pub max_runs: usize,
    /// Tool calls of a run that are compared; what follows is cut.
    pub max_actions_per_run: usize,
    /// `corrected` (what the authors use since June 2026) or `methodology` (what their page says).
    pub formula: Formula,
    /// Weights of the aggregates' parts.
    pub weights: AggregateWeights,
}

/// Which form of the formulas applies that were corrected by their authors.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Formula {
    /// Outcomes by `(2p - 1)^2`, trajectories by Jensen-Shannon divergence in bits.
    #[default]
    Corrected,
    /// Outcomes by the ratio of variances, trajectories by Jensen-Shannon distance in nats.
    Methodology,
}

/// Weights of the parts of each aggregate; over the parts that exist they come to one. A part whose weight is
/// not above 0 is left out.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AggregateWeights {
    /// Of consistency: the same outcome.
    pub outcome: f64,
    /// Of consistency: the same way there.
    pub trajectory: f64,
    /// Of trajectory: the same tools.
    pub trajectory_distribution: f64,
    /// Of trajectory: the same order.
    pub trajectory_sequence: f64,
    /// Of consistency: the same expense.
    pub resource: f64,
    /// Of robustness: failing tools.
    pub fault: f64,
    /// Of robustness: another form of inputs.
    pub environment: f64,
    /// Of robustness: other words.
    pub prompt: f64,
    /// Of reliability.
    pub consistency: f64,
    /// Of reliability.
    pub predictability: f64,
    /// Of reliability.
    pub robustness: f64,
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self {
            last_runs: 5,
            max_tasks: 1_000,
            max_runs: 10_000,
            max_actions_per_run: 1_000,
            formula: Formula::Corrected,
            weights: AggregateWeights::default(),
        }
    }
}

impl AggregateWeights {
    /// Each weight.
    pub fn all(&self) -> [f64; 11] {
        [
            self.outcome,
            self.trajectory,
            self.trajectory_distribution,
            self.trajectory_sequence,
            self.resource,
            self.fault,
            self.environment,
            self.prompt,
            self.consistency,
            self.predictability,
            self.robustness,
        ]
    }
}

impl Default for AggregateWeights {
    fn default() -> Self {
        Self {
            outcome: 1.0,
            trajectory: 1.0,
            trajectory_distribution: 1.0,
            trajectory_sequence: 1.0,
            resource: 1.0,
            fault: 1.0,
            environment: 1.0,
            prompt: 1.0,
            consistency: 1.0,
            predictability: 1.0,
            robustness: 1.0,
        }
    }
}
