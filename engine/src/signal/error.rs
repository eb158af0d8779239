//! Error: 0 when the trace ended in error, else 1.
//!
//! Ours (the source documents ignore a trace's status): a trace ended in error if its root or its last
//! model call failed. A failed tool that the agent survived does not count.

use crate::math::Quanta;

/// The signal's name.
pub const NAME: &str = "error";

/// Computes the signal.
pub fn score(error: bool) -> Quanta {
    Quanta(if error { 0 } else { Quanta::ONE })
}
