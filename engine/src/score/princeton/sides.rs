//! Undisturbed and disturbed runs, kept apart.
//!
//! Consistency and predictability are over the undisturbed runs or, if there are none, over the disturbed ones, which are then all
//! runs. So the two are never added.

use super::Condition;

/// A value for the undisturbed runs, and one for the disturbed ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Sides<T> {
    pub(super) undisturbed: T,
    pub(super) disturbed: T,
}

impl<T> Sides<T> {
    /// The side of runs under this condition.
    pub(super) fn under(&mut self, condition: Condition) -> &mut T {
        match condition {
            Condition::Baseline => &mut self.undisturbed,
            Condition::Fault | Condition::Environment | Condition::Prompt => &mut self.disturbed,
        }
    }

    /// Whether runs under both conditions are on one side.
    pub(super) fn are_one(a: Condition, b: Condition) -> bool {
        (a == Condition::Baseline) == (b == Condition::Baseline)
    }

    /// The side that counts, given whether the agent has any undisturbed run.
    pub(super) fn primary(&self, any_undisturbed: bool) -> &T {
        if any_undisturbed { &self.undisturbed } else { &self.disturbed }
    }
}
