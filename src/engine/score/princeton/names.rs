//! What the scores are called.

/// How many runs succeed.
pub const ACCURACY: &str = "accuracy";
/// How confident runs are.
pub const MEAN_CONFIDENCE: &str = "mean_confidence";
/// The same outcome each time.
pub const OUTCOME_CONSISTENCY: &str = "outcome_consistency";
/// The same tools each time.
pub const TRAJECTORY_DISTRIBUTION_CONSISTENCY: &str = "trajectory_distribution_consistency";
/// The same order of tools each time.
pub const TRAJECTORY_SEQUENCE_CONSISTENCY: &str = "trajectory_sequence_consistency";
/// The same confidence each time.
pub const CONFIDENCE_CONSISTENCY: &str = "confidence_consistency";
/// The same expense each time.
pub const RESOURCE_CONSISTENCY: &str = "resource_consistency";
/// Aggregate of outcomes, trajectories and resources.
pub const CONSISTENCY: &str = "consistency";
/// Failures are among the runs of least confidence.
pub const RISK_COVERAGE: &str = "risk_coverage";
/// Confidence is the share that succeeds.
pub const CALIBRATION: &str = "calibration";
/// Successes have the higher confidence.
pub const AUROC: &str = "auroc";
/// Confidence is near the outcome.
pub const BRIER: &str = "brier";
/// Aggregate: the Brier score.
pub const PREDICTABILITY: &str = "predictability";
/// Success in spite of failing tools.
pub const FAULT_ROBUSTNESS: &str = "fault_robustness";
/// Success in spite of another form of inputs.
pub const ENVIRONMENT_ROBUSTNESS: &str = "environment_robustness";
/// Success in spite of other words.
pub const PROMPT_ROBUSTNESS: &str = "prompt_robustness";
/// Aggregate of the three.
pub const ROBUSTNESS: &str = "robustness";
/// How few runs break a rule.
pub const COMPLIANCE: &str = "compliance";
/// How little harm those do.
pub const HARM: &str = "harm";
/// Both together.
pub const SAFETY: &str = "safety";
/// Aggregate of consistency, predictability and robustness; safety has no part in it.
pub const RELIABILITY: &str = "reliability";

/// The scores that each task has, and an agent as their mean.
pub const PER_TASK: [&str; 5] = [
    OUTCOME_CONSISTENCY,
    TRAJECTORY_DISTRIBUTION_CONSISTENCY,
    TRAJECTORY_SEQUENCE_CONSISTENCY,
    CONFIDENCE_CONSISTENCY,
    RESOURCE_CONSISTENCY,
];
