//! The earlier calls with which a call is compared, to find the one that is the same, as recorded by another library or a log
//! record.
//!
//! Only calls in progress when the call begins can be the same, so those that ended before are passed over. If thousands of calls
//! are in progress at once, comparing each with each would take longer than the trace is worth: the comparisons of one reading are
//! bounded. Spans are compared in the order of their times, so which ones are left out does not depend on when they arrived.

use smallvec::SmallVec;

use crate::span::Timestamp;

/// The calls of a trace that a later one may repeat, and how much may still be compared.
#[derive(Debug)]
pub(super) struct Candidates {
    // Their indices, in order; among them may be calls that have ended.
    calls: SmallVec<[usize; FEW]>,
    // The number of them at which those that have ended are dropped: twice the number left the last time.
    room: usize,
    // How long after its end a call may be repeated.
    late: u64,
    steps_left: usize,
    is_cut: bool,
}

impl Candidates {
    /// No calls yet, of a trace of `spans` spans; each may be repeated until `late` nanoseconds after its end.
    pub(super) fn new(spans: usize, late: u64) -> Self {
        let steps_left = STEPS.max(spans.saturating_mul(STEPS_PER_SPAN));
        Self { calls: SmallVec::new(), room: FEW, late, steps_left, is_cut: false }
    }

    /// Adds a call, or one that now ends later; `at` is its index.
    pub(super) fn add(&mut self, at: usize) {
        if self.calls.last().is_none_or(|last| *last < at) {
            self.calls.push(at);
        } else if let Err(place) = self.calls.binary_search(&at) {
            self.calls.insert(place, at);
        }
    }

    /// Drops calls that had ended when a call begins; only now and then, as it looks at all of them. Calls begin in order.
    pub(super) fn drop_ended(&mut self, start: Timestamp, end: impl Fn(usize) -> Timestamp) {
        if self.calls.len() >= self.room {
            let late = self.late;
            self.calls.retain(|at| end(*at).0.saturating_add(late) >= start.0);
            self.room = 2 * self.calls.len().max(FEW / 2);
        }
    }

    /// The first call for which this is true; `is_same` adds the steps that it takes beyond the first.
    pub(super) fn find(
        &mut self,
        mut is_same: impl FnMut(usize, &mut usize) -> bool,
    ) -> Option<usize> {
        for at in &self.calls {
            let mut steps = 1;
            if self.steps_left == 0 {
                self.is_cut = true;
                return None;
            }
            let same = is_same(*at, &mut steps);
            self.steps_left = self.steps_left.saturating_sub(steps);
            if same {
                return Some(*at);
            }
        }
        None
    }

    /// Takes a step; returns whether it may be taken.
    pub(super) fn step(&mut self) -> bool {
        self.is_cut |= self.steps_left == 0;
        self.steps_left = self.steps_left.saturating_sub(1);
        !self.is_cut
    }

    /// Whether something was not compared.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// So many calls are never looked through for those that have ended.
const FEW: usize = 16;

/// The steps of a comparison in which more than libraries and times is looked at.
pub(super) const CLOSER: usize = 16;

/// Most steps in one reading of a small trace: enough for two libraries to record 500 calls at one time.
const STEPS: usize = 262_144 * CLOSER;

/// Most steps for each span of a large one.
const STEPS_PER_SPAN: usize = 64 * CLOSER;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_have_ended_are_passed_over_unless_they_end_later() {
        let mut candidates = Candidates::new(1_000, 5);
        let mut looked = 0;
        for at in 0..1_000 {
            candidates.drop_ended(Timestamp(10 * at as u64), |at| Timestamp(10 * at as u64 + 4));
            assert_eq!(
                candidates.find(|_, _| {
                    looked += 1;
                    false
                }),
                None
            );
            candidates.add(at);
        }
        assert!(looked < 16 * 1_000 && !candidates.is_cut());
        candidates.add(3);
        candidates.add(3);
        assert_eq!(candidates.find(|at, _| at < 900), Some(3));
        assert_eq!(candidates.find(|at, _| at > 3 && at < 900), None);
    }

    #[test]
    fn what_is_compared_has_a_bound() {
        let mut candidates = Candidates::new(1, 5);
        candidates.add(0);
        let mut long = |_: usize, steps: &mut usize| {
            *steps += STEPS / 2;
            false
        };
        assert_eq!((candidates.find(&mut long), candidates.find(&mut long)), (None, None));
        assert!(!candidates.is_cut());
        assert_eq!(candidates.find(|_, _| true), None);
        assert!(candidates.is_cut() && !candidates.step());
    }
}
