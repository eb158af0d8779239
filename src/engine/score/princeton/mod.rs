//! Princeton's agent reliability: consistency, predictability, robustness and safety of an agent that runs at the
//! same tasks again and again.
//!
//! Source: Princeton, agent reliability, "Methodology" (metrics.md 2).

mod options;
mod record;

pub use options::{AggregateWeights, Formula, TaskOptions};
pub use record::{Condition, Resources, RunRecord, Severity};
