//! Princeton's agent reliability: consistency, predictability, robustness and safety of an agent that repeatedly runs at the same
//! tasks.
//!
//! Source: Princeton, agent reliability, "Methodology". [`AgentTasks`] holds the runs of one agent and updates all scores as runs
//! are added, changed and removed:
//!
//! ```text
//! RunRecord --> Task: Repeats (outcomes, confidences, last runs) --per task--> Pool (means over tasks; predictability) --> scores
//!          \--> Robustness, Safety (over all runs) ----------------------------------------------------------------------/
//! ```
//!
//! Outcomes, confidences and violations count for all runs; trajectories and resources for the last runs at each task.

pub mod aggregate;
pub mod names;

mod agent;
mod calibration;
mod confidence;
mod last_runs;
mod levels;
mod options;
mod outcome;
mod pass_hat_k;
mod pool;
mod predictability;
mod record;
mod resource;
mod risk_coverage;
mod robustness;
mod run;
mod safety;
mod score;
mod sides;
mod task;
mod trajectory;

pub use agent::{AgentTasks, Refused, TaskView};
pub use names::{Name, Scores};
pub use options::{AggregateWeights, Formula, TaskOptions};
pub use outcome::Outcomes;
pub use record::{Condition, Resources, RunRecord, Severity};
pub use score::Score;
