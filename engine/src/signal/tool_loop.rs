//! Tool loop: 1 without a loop of tool calls, 0.4 at a warning, 0 at a critical one.
//!
//! Ours. A loop of which nothing but names is on the wire does not count: what differs may not have been sent. A repeated output is `loop_detection`'s business and does not count here.

use crate::loops::Severity;
use crate::math::Quanta;

/// The signal's name.
pub const NAME: &str = "tool_loop";

/// Computes the signal from the worst severity of the loops that a trace has a call in.
pub fn score(severity: Option<Severity>) -> Quanta {
    Quanta(match severity {
        None => Quanta::ONE,
        Some(Severity::Warning) => Quanta::ONE / 10 * 4,
        Some(Severity::Critical) => 0,
    })
}
