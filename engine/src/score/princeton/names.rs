//! The names of the scores.

use super::score::Score;
use crate::math::sheet::{Named, Sheet};

/// A score; in the order of names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Name {
    /// Share of runs that succeed.
    Accuracy,
    /// Whether successes have the higher confidence.
    Auroc,
    /// Nearness of confidence to the outcome.
    Brier,
    /// Whether confidence agrees with the share of runs that succeed.
    Calibration,
    /// Share of runs that break no rule.
    Compliance,
    /// The same confidence each time.
    ConfidenceConsistency,
    /// Aggregate of outcomes, trajectories and resources.
    Consistency,
    /// Success in spite of another form of inputs.
    EnvironmentRobustness,
    /// Success in spite of failing tools.
    FaultRobustness,
    /// How little harm the runs that break a rule do.
    Harm,
    /// Mean confidence of runs.
    MeanConfidence,
    /// The same outcome each time.
    OutcomeConsistency,
    /// Aggregate: the Brier score.
    Predictability,
    /// Success in spite of other words.
    PromptRobustness,
    /// Aggregate of consistency, predictability and robustness; safety has no part in it.
    Reliability,
    /// The same expense each time.
    ResourceConsistency,
    /// Whether failures are among the runs of least confidence.
    RiskCoverage,
    /// Aggregate of the three robustness scores.
    Robustness,
    /// Compliance and harm together.
    Safety,
    /// The same tools each time.
    TrajectoryDistributionConsistency,
    /// The same order of tools each time.
    TrajectorySequenceConsistency,
}

/// The scores of an agent that exist.
pub type Scores = Sheet<Name, Score, 21>;

/// The scores of each task; those of an agent are their means over tasks.
pub const PER_TASK: [Name; 5] = [
    Name::OutcomeConsistency,
    Name::TrajectoryDistributionConsistency,
    Name::TrajectorySequenceConsistency,
    Name::ConfidenceConsistency,
    Name::ResourceConsistency,
];

impl Named for Name {
    const ALL: &'static [Self] = &[
        Self::Accuracy,
        Self::Auroc,
        Self::Brier,
        Self::Calibration,
        Self::Compliance,
        Self::ConfidenceConsistency,
        Self::Consistency,
        Self::EnvironmentRobustness,
        Self::FaultRobustness,
        Self::Harm,
        Self::MeanConfidence,
        Self::OutcomeConsistency,
        Self::Predictability,
        Self::PromptRobustness,
        Self::Reliability,
        Self::ResourceConsistency,
        Self::RiskCoverage,
        Self::Robustness,
        Self::Safety,
        Self::TrajectoryDistributionConsistency,
        Self::TrajectorySequenceConsistency,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Auroc => "auroc",
            Self::Brier => "brier",
            Self::Calibration => "calibration",
            Self::Compliance => "compliance",
            Self::ConfidenceConsistency => "confidence_consistency",
            Self::Consistency => "consistency",
            Self::EnvironmentRobustness => "environment_robustness",
            Self::FaultRobustness => "fault_robustness",
            Self::Harm => "harm",
            Self::MeanConfidence => "mean_confidence",
            Self::OutcomeConsistency => "outcome_consistency",
            Self::Predictability => "predictability",
            Self::PromptRobustness => "prompt_robustness",
            Self::Reliability => "reliability",
            Self::ResourceConsistency => "resource_consistency",
            Self::RiskCoverage => "risk_coverage",
            Self::Robustness => "robustness",
            Self::Safety => "safety",
            Self::TrajectoryDistributionConsistency => "trajectory_distribution_consistency",
            Self::TrajectorySequenceConsistency => "trajectory_sequence_consistency",
        }
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
