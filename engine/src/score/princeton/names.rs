//! The names of the scores.

use super::score::Score;
use crate::math::named_array::{Named, NamedArray};
use crate::named::named;

named! {
    /// A score; in the order of names.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Name {
        /// Share of runs that succeed.
        Accuracy = "accuracy",
        /// Whether successes have the higher confidence.
        Auroc = "auroc",
        /// Nearness of confidence to the outcome.
        Brier = "brier",
        /// Whether confidence agrees with the share of runs that succeed.
        Calibration = "calibration",
        /// Share of runs that break no rule.
        Compliance = "compliance",
        /// The same confidence each time.
        ConfidenceConsistency = "confidence_consistency",
        /// Aggregate of outcomes, trajectories and resources.
        Consistency = "consistency",
        /// Success in spite of another form of inputs.
        EnvironmentRobustness = "environment_robustness",
        /// Success in spite of failing tools.
        FaultRobustness = "fault_robustness",
        /// How little harm the runs that break a rule do.
        Harm = "harm",
        /// Mean confidence of runs.
        MeanConfidence = "mean_confidence",
        /// The same outcome each time.
        OutcomeConsistency = "outcome_consistency",
        /// Aggregate: the Brier score.
        Predictability = "predictability",
        /// Success in spite of other words.
        PromptRobustness = "prompt_robustness",
        /// Aggregate of consistency, predictability and robustness; safety has no part in it.
        Reliability = "reliability",
        /// The same expense each time.
        ResourceConsistency = "resource_consistency",
        /// Whether failures are among the runs of least confidence.
        RiskCoverage = "risk_coverage",
        /// Aggregate of the three robustness scores.
        Robustness = "robustness",
        /// Compliance and harm together.
        Safety = "safety",
        /// The same tools each time.
        TrajectoryDistributionConsistency = "trajectory_distribution_consistency",
        /// The same order of tools each time.
        TrajectorySequenceConsistency = "trajectory_sequence_consistency",
    }
}

/// The scores of an agent that exist.
pub type Scores = NamedArray<Name, Score, 21>;

/// The scores of each task; those of an agent are their means over tasks.
pub const PER_TASK: [Name; 5] = [
    Name::OutcomeConsistency,
    Name::TrajectoryDistributionConsistency,
    Name::TrajectorySequenceConsistency,
    Name::ConfidenceConsistency,
    Name::ResourceConsistency,
];

impl Named for Name {
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
        assert!(Name::ALL.is_sorted_by_key(|name| name.name()));
        assert!(Name::ALL.iter().enumerate().all(|(at, name)| name.place() == at));
    }
}
