//! The engine: pure state machines that turn spans into scores.
//!
//! Nothing in here does IO, reads a clock, takes a lock or logs. Each stage owns its state by value, receives the time as an
//! argument, and returns values:
//! ```text
//! Span, Log, Report --> assemble --TraceFacts--> sessions --SessionFacts--> agents --AgentFacts-->
//! ```
//!
//! All stages have the same interface: `handle(input, now)`, `poll_timeout()`,
//! `handle_timeout(now)`, `drain()`.

pub mod agent_facts;
pub mod agents;
pub mod assemble;
pub mod convention;
pub mod count;
pub mod counters;
pub mod detect;
pub mod distributions;
pub mod drift;
pub mod drops;
pub mod embedding;
pub mod expect;
pub mod explained;
pub mod facts;
mod hash;
pub mod judging;
pub mod limits;
pub mod loops;
pub mod math;
mod named;
pub mod options;
pub mod pipeline;
pub mod predict;
pub mod price;
pub mod resolve;
pub mod route;
pub mod run_scores;
pub mod runs;
pub mod saved;
pub mod score;
pub mod sessions;
pub mod signal;
pub mod silences;
pub mod small_map;
mod sorted;
pub mod span;
pub mod tenants;
pub mod time;
pub mod trace;
pub mod view;
pub mod waiting;
pub mod window;
