//! Argument correctness: the share of tool calls with correct arguments, by a judge's verdict on each.
//!
//! ```text
//! score = correct verdicts / verdicts
//! ```
//!
//! Source: PandaProbe, `trace/argument_correctness/metric.py`. The divisor is the number of verdicts, not of
//! calls, as a judge may give more or fewer verdicts than there are calls. Departure: without calls, or without a verdict, the
//! signal is absent rather than 1.

use crate::math::{Quanta, ratio};

/// The signal's name.
pub const NAME: &str = "argument_correctness";

/// Computes the signal from the number of tool calls of the trace, and from the verdicts on whether arguments were correct.
///
/// `None` without a call, whatever the verdicts, and without a verdict.
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
