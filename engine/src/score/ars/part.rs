//! The components of the score, by name.

use super::Component;
use crate::math::named_array::{Named, NamedArray};
use crate::named::named;

named! {
    /// A component of the score; in the order of names.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum ComponentName {
        /// Mean rubric score or outcome.
        Accuracy = "accuracy",
        /// Steadiness over the runs of a test case.
        Consistency = "consistency",
        /// Spend under its ceiling.
        Cost = "cost",
        /// Response time under its ceiling.
        Latency = "latency",
        /// Citations against retrieved documents.
        SourceFidelity = "source_fidelity",
        /// Success of tools and length of the path.
        Trajectory = "trajectory",
    }
}

/// The components that have data.
pub type Components = NamedArray<ComponentName, Component, 6>;

impl ComponentName {
    /// The components that the source shows for each test case.
    pub(super) const OF_CASE: [Self; 4] =
        [Self::Accuracy, Self::Cost, Self::Latency, Self::SourceFidelity];
}

impl Named for ComponentName {
    const KEYS: &'static [Self] = &Self::ALL;

    fn text(self) -> &'static str {
        self.name()
    }

    fn place(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_place() {
        assert!(ComponentName::ALL.is_sorted_by_key(|part| part.name()));
        assert!(ComponentName::ALL.iter().enumerate().all(|(at, part)| part.place() == at));
    }
}
