//! Argument correctness: how many tool calls had the right arguments, as a judge says of each.
//!
//! ```text
//! score = correct verdicts / verdicts
//! ```
//!
//! Source: PandaProbe, `trace/argument_correctness/metric.py` (metrics.md 1.6). It is divided by the verdicts, not by the
//! calls: a judge may give more or fewer than there are calls. Departure: without calls, or without a verdict, the
//! signal is absent rather than 1.

use crate::math::{Quanta, ratio};

/// The signal's name.
pub const NAME: &str = "argument_correctness";

/// Computes the signal from how many tool calls the trace has, and whether the arguments were right by each verdict.
///
/// `None` without a call, whatever the judge says, and without a verdict.
pub fn score(calls: u64, verdicts: &[bool]) -> Option<Quanta> {
    if calls == 0 {
        return None;
    }
    let correct = verdicts.iter().filter(|correct| **correct).count();
    Quanta::from_f64(ratio(i128::try_from(correct).ok()?, i128::try_from(verdicts.len()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_counted_and_not_calls() {
        assert_eq!(score(1, &[true, false, false, false]), Quanta::from_f64(0.25));
        assert_eq!(score(8, &[true]), Some(Quanta(Quanta::ONE)));
    }

    #[test]
    fn nothing_to_judge_is_not_perfect() {
        assert_eq!(score(0, &[true]), None);
        assert_eq!(score(3, &[]), None);
    }
}
