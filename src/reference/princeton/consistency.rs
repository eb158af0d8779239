//! Consistency: how much runs at one task resemble each other.
//!
//! ```text
//! C_out    = (2p - 1)^2                                  corrected
//!          = clip(1 - s^2 / (p (1 - p) + 1e-8))          methodology
//! C_traj_d = 1 - mean over pairs of JS divergence (bits)  corrected
//!          = 1 - mean over pairs of JS distance (nats)    methodology
//! C_traj_s = 1 - mean over pairs of edit distance / longer length
//! C_conf   = exp(-CV)
//! C_res    = exp(-mean of CVs)
//! ```
//!
//! CV is the sample standard deviation over the mean. `C_out` is computed from rewards in `[0,1]`, as in the reference's own
//! function; its evaluations truncate each reward to a whole number before, and so does this model: a run succeeded or did not.
//! Errors with a mean of 0 that differ (some would have to be negative) have an infinite CV, which counts in no mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::score::princeton::Formula;

/// Names of the tools that a run called, in order.
pub type Trajectory = Vec<Arc<str>>;

/// `C_out` of the rewards of one task's runs, each in `[0,1]`; `None` with fewer than two.
pub fn outcome(rewards: &[f64], formula: Formula) -> Option<f64> {
    let n = rewards.len() as f64;
    let p = rewards.iter().sum::<f64>() / n;
    (rewards.len() >= 2).then(|| match formula {
        Formula::Corrected => (2.0 * p - 1.0).powi(2),
        Formula::Methodology => {
            let variance = rewards.iter().map(|y| (y - p).powi(2)).sum::<f64>() / (n - 1.0);
            (1.0 - variance / (p * (1.0 - p) + 1e-8)).clamp(0.0, 1.0)
        }
    })
}

/// `C_traj_d` over the trajectories of successful runs; empty ones are left out. `None` with fewer than two.
pub fn trajectory_distribution(trajectories: &[Trajectory], formula: Formula) -> Option<f64> {
    let distance = mean_over_pairs(trajectories, |a, b| match formula {
        Formula::Corrected => js_divergence(a, b) / std::f64::consts::LN_2,
        Formula::Methodology => js_divergence(a, b).sqrt(),
    })?;
    Some(1.0 - distance)
}

/// `C_traj_s` over the trajectories of successful runs; empty ones are left out. `None` with fewer than two.
pub fn trajectory_sequence(trajectories: &[Trajectory]) -> Option<f64> {
    mean_over_pairs(trajectories, |a, b| {
        1.0 - edit_distance(a, b) as f64 / a.len().max(b.len()) as f64
    })
}

/// `C_conf` of the confidences of one task's runs; `None` with fewer than two or a mean not above zero.
pub fn confidence(confidences: &[f64]) -> Option<f64> {
    coefficient_of_variation(confidences).map(|cv| (-cv).exp())
}

/// The CV of each resource, given in the order cost, time, API calls, actions, errors, latency: zeros are left out,
/// except those of errors.
pub fn resource_variations(resources: &[Vec<f64>; 6]) -> [Option<f64>; 6] {
    let [cost, time, api_calls, actions, errors, latency] = resources;
    let without_zeros = |values: &[f64]| {
        let used: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        coefficient_of_variation(&used)
    };
    [
        without_zeros(cost),
        without_zeros(time),
        without_zeros(api_calls),
        without_zeros(actions),
        error_variation(errors),
        without_zeros(latency),
    ]
}

/// The CV of errors, infinite if they differ and their mean is 0.
fn error_variation(errors: &[f64]) -> Option<f64> {
    let is_balanced = errors.iter().sum::<f64>().abs() < f64::EPSILON;
    let differ = errors.windows(2).any(|pair| (pair[0] - pair[1]).abs() > f64::EPSILON);
    if is_balanced && differ { Some(f64::INFINITY) } else { coefficient_of_variation(errors) }
}

/// `C_res` of the resources of one task's runs; `None` if none of them has a CV.
pub fn resource(resources: &[Vec<f64>; 6]) -> Option<f64> {
    let variations = resource_variations(resources).into_iter().flatten();
    let variations: Vec<f64> = variations.filter(|cv| cv.is_finite()).collect();
    super::mean(&variations).map(|cv| (-cv).exp())
}

/// Sample standard deviation over mean; `None` with fewer than two or a mean not above zero.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let mean = super::mean(values).filter(|mean| *mean > 0.0 && values.len() >= 2)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt() / mean)
}

/// The edit distance, by the whole table of dynamic programming.
pub fn edit_distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
            };
        }
    }
    table[a.len()][b.len()]
}

/// The length of the longest common subsequence, by the whole table of dynamic programming.
pub fn common_length<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, x) in a.iter().enumerate() {
        for (j, y) in b.iter().enumerate() {
            table[i + 1][j + 1] =
                if x == y { table[i][j] + 1 } else { table[i][j + 1].max(table[i + 1][j]) };
        }
    }
    table[a.len()][b.len()]
}

fn mean_over_pairs(
    trajectories: &[Trajectory],
    of: impl Fn(&[Arc<str>], &[Arc<str>]) -> f64,
) -> Option<f64> {
    let compared: Vec<&Trajectory> =
        trajectories.iter().filter(|trajectory| !trajectory.is_empty()).collect();
    let mut values = Vec::new();
    for (at, a) in compared.iter().enumerate() {
        values.extend(compared.iter().skip(at + 1).map(|b| of(a, b)));
    }
    super::mean(&values)
}

/// Jensen-Shannon divergence of how often each tool is called, in nats.
fn js_divergence(a: &[Arc<str>], b: &[Arc<str>]) -> f64 {
    let mut shares: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for (at, trajectory) in [a, b].into_iter().enumerate() {
        for action in trajectory {
            shares.entry(action).or_default()[at] += 1.0;
        }
    }
    let divergence = |share: f64, middle: f64| {
        if share > 0.0 { share * (share / middle).ln() } else { 0.0 }
    };
    let total: f64 = shares
        .values()
        .map(|[in_a, in_b]| {
            let (p, q) = (in_a / a.len() as f64, in_b / b.len() as f64);
            let middle = (p + q) / 2.0;
            divergence(p, middle) + divergence(q, middle)
        })
        .sum();
    (total / 2.0).max(0.0)
}
