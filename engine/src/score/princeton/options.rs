//! Options of the scores over repeated runs.

use serde::{Deserialize, Serialize};

use super::AgentTasks;

crate::options! {
    /// How runs of tasks are scored.
    pub struct TaskOptions in "tasks" {
        /// Latest runs of a task whose trajectories and resources are compared, at most 50.
        pub last_runs: usize = 5, within 2..=AgentTasks::MAX_LAST_RUNS;
        /// Tasks of one agent; runs at further ones count as if they had none.
        pub max_tasks: usize = 1_000, within 1..=1_000_000;
        /// Runs of one agent that can still be revised; over it the earliest is settled: it keeps counting, and what more comes
        /// of it, or of a run that began before it, is refused.
        // In the daemon `agents.max_runs` says it.
        #[serde(skip)]
        pub max_runs: usize = 10_000;
        /// Tool calls of a run that are compared; the rest is cut.
        pub max_actions_per_run: usize = 1_000, within 1..=10_000;
        /// Which formulas apply: corrected (what the authors use since June 2026), methodology (as on their page).
        pub formula: Formula = Formula::Corrected;
        /// Weights of the parts of Princeton's aggregates, over those that exist.
        pub weights: AggregateWeights = AggregateWeights::default();
    }
}

/// Which form applies of the formulas that their authors corrected.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Formula {
    /// Outcomes by `(2p - 1)^2`, trajectories by Jensen-Shannon divergence in bits.
    #[default]
    Corrected,
    /// Outcomes by the ratio of variances, trajectories by Jensen-Shannon distance in nats.
    Methodology,
}

crate::options! {
    /// Weights of the parts of each aggregate; over the parts that exist they are normalised to one. A part whose weight is not
    /// above 0 is left out.
    pub struct AggregateWeights in "tasks.weights" {
        /// Of consistency: the same outcome.
        pub outcome: f64 = 1.0;
        /// Of consistency: the same way there.
        pub trajectory: f64 = 1.0;
        /// Of trajectory: the same tools.
        pub trajectory_distribution: f64 = 1.0;
        /// Of trajectory: the same order.
        pub trajectory_sequence: f64 = 1.0;
        /// Of consistency: the same expense.
        pub resource: f64 = 1.0;
        /// Of robustness: failing tools.
        pub fault: f64 = 1.0;
        /// Of robustness: another form of inputs.
        pub environment: f64 = 1.0;
        /// Of robustness: other words.
        pub prompt: f64 = 1.0;
        /// Of reliability.
        pub consistency: f64 = 1.0;
        /// Of reliability.
        pub predictability: f64 = 1.0;
        /// Of reliability.
        pub robustness: f64 = 1.0;
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
