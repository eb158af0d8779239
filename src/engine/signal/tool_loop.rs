//! Tool loop: 1 without a loop of tool calls, 0.4 at a warning, 0 at a critical one.
//!
//! Ours. A repeated output is `loop_detection`'s business and does not count here.

use crate::engine::loops::{CRITICAL, OUTPUT_REPEAT};
use crate::engine::math::Quanta;
use crate::engine::update::Loop;

/// The signal's name.
pub const NAME: &str = "tool_loop";

/// Computes the signal from the loops of a trace.
pub fn score(loops: &[Loop]) -> Quanta {
    let tool_loops: Vec<&Loop> = loops.iter().filter(|found| found.kind != OUTPUT_REPEAT).collect();
    Quanta(match tool_loops.as_slice() {
        [] => Quanta::ONE,
        found if found.iter().any(|found| found.severity == CRITICAL) => 0,
        _ => Quanta::ONE / 10 * 4,
    })
}
