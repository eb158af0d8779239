//! Scores: one number over many traces.
//!
//! Every accumulator has `observe` and `forget`, which undo each other exactly, so that a revised trace is subtracted and added
//! again without drift.

pub mod agent_consistency;
pub mod agent_reliability;
pub mod ars;
pub mod princeton;
pub mod risk;
pub mod trajectory_gate;
