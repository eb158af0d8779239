//! The aggregates: dimensions, and reliability over them.
//!
//! ```text
//! R_Con  = 1/3 C_out + 1/3 (C_traj_d + C_traj_s) / 2 + 1/3 C_res
//! R_Pred = P_brier
//! R_Rob  = 1/3 (R_fault + R_environment + R_prompt)
//! R      = 1/3 (R_Con + R_Pred + R_Rob)
//! ```
//!
//! Source: Princeton, agent reliability, "Overall Reliability". Weights are over the parts that exist, at each level, as in the
//! authors' code: an agent with one dimension has that one as R. Safety has no part in it.

use super::AggregateWeights;
use super::names::{Name, Scores};
use super::score::Score;

/// Adds the aggregates of the scores that exist.
pub fn complete(scores: &mut Scores, weights: &AggregateWeights) {
    let of = |name| scores.get(name);
    let trajectory = mean(&[
        (weights.trajectory_distribution, of(Name::TrajectoryDistributionConsistency)),
        (weights.trajectory_sequence, of(Name::TrajectorySequenceConsistency)),
    ]);
    let consistency = mean(&[
        (weights.outcome, of(Name::OutcomeConsistency)),
        (weights.trajectory, trajectory),
        (weights.resource, of(Name::ResourceConsistency)),
    ]);
    let predictability = of(Name::Brier);
    let robustness = mean(&[
        (weights.fault, of(Name::FaultRobustness)),
        (weights.environment, of(Name::EnvironmentRobustness)),
        (weights.prompt, of(Name::PromptRobustness)),
    ]);
    let reliability = mean(&[
        (weights.consistency, consistency),
        (weights.predictability, predictability),
        (weights.robustness, robustness),
    ]);
    scores.set(Name::Consistency, consistency);
    scores.set(Name::Predictability, predictability);
    scores.set(Name::Robustness, robustness);
    scores.set(Name::Reliability, reliability);
}

/// Weighted mean of the parts that exist and have a weight above 0; its samples are those of the smallest part.
fn mean(parts: &[(f64, Option<Score>)]) -> Option<Score> {
    let (mut total, mut sum, mut samples) = (0.0, 0.0, None);
    for (weight, part) in parts.iter().filter(|(weight, _)| weight.is_finite() && *weight > 0.0) {
        let Some(part) = part else { continue };
        total += weight;
        sum += weight * part.value;
        samples = Some(samples.map_or(part.samples, |least: u64| least.min(part.samples)));
    }
    samples.map(|samples| Score { value: sum / total, samples })
}
