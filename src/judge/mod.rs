//! The judge: asks a language model what no formula can find out about a trace, and reports its answers.
//!
//! ```text
//! engine --JudgeRequest--> Handle --queue--> Worker --TraceCase--> one call after the other --Report--> engine
//! ```
//!
//! [`metric`] lists the calls of each score, [`stage`] has the question of one call and the form of its answer, and `prompts/` has
//! the wording; all of that is pure. [`wire`] has the formats of endpoints. [`worker`] spends the money: it samples nothing and
//! invents nothing, and a score that it cannot get stays absent.

pub mod budget;
pub mod canary;
pub mod case;
mod client;
mod form;
pub mod meter;
pub mod metric;
mod money;
pub mod noise;
pub mod options;
mod pace;
pub mod prompt;
pub mod queue;
pub mod reply;
pub mod stage;
mod trace_questions;
mod verdict;
pub mod wire;
pub mod worker;

pub use metric::Metric;
pub use options::JudgeOptions;
pub use queue::Handle;
pub use stage::Stage;
pub use worker::{Judge, JudgeError, JudgeParts};
