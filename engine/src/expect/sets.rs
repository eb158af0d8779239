//! Expected tools (E) against used tools (U), as sets, in which repeats count once.
//!
//! ```text
//! recall    = |E n U| / |E|                          1 if nothing is expected
//! precision = |E n U| / |U|                          if nothing is used: 1 if nothing is expected, else 0
//! f1        = 2 * precision * recall / (precision + recall)    0 if both are 0
//! ```
//!
//! Source: AgentCI v2, metrics reference, "Set-Based Metrics"; `engine/metrics.py`, by which two empty sets have an f1
//! of 1 (its comment says 0).

use std::collections::BTreeSet;

/// The fraction of the expected tools that was used, in `[0,1]`.
pub fn recall(expected: &BTreeSet<&str>, used: &BTreeSet<&str>) -> f64 {
    if expected.is_empty() { 1.0 } else { common(expected, used) / expected.len() as f64 }
}

/// The fraction of the used tools that was expected, in `[0,1]`.
pub fn precision(expected: &BTreeSet<&str>, used: &BTreeSet<&str>) -> f64 {
    match (used.is_empty(), expected.is_empty()) {
        (true, true) => 1.0,
        (true, false) => 0.0,
        (false, _) => common(expected, used) / used.len() as f64,
    }
}

/// Harmonic mean of precision and recall, in `[0,1]`.
pub fn f1(expected: &BTreeSet<&str>, used: &BTreeSet<&str>) -> f64 {
    let (precision, recall) = (precision(expected, used), recall(expected, used));
    let sum = precision + recall;
    if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 }
}

fn common(a: &BTreeSet<&str>, b: &BTreeSet<&str>) -> f64 {
    a.intersection(b).count() as f64
}
