//! The share of runs that succeed, from the runs with a reported outcome and from a predictor that is known for all runs.
//!
//! ```text
//! estimate = mean(y - w f) over runs with a known outcome + w mean(f) over the others
//! variance = var(y - w f) / n + w^2 var(f) / N
//! w        = cov(y, f) / ((1 + n/N) var(f))
//! ```
//!
//! Runs whose outcomes are known with different probabilities (all flagged runs, and a share of the others) are weighted by the
//! inverse of the probability:
//!
//! ```text
//! estimate = mean_w(y) + w (mean(f) over all runs - mean_w(f))         mean_w(y) = sum(y / p) / sum(1 / p)
//! variance = sum over probabilities p of W_p^2 q_p (1 - q_p) / n_p + W_p (q_p - mean_w(y))^2 / (n + N), all over the gain
//! w        = sum((y - mean_w(y)) (f - mean_w(f)) / p^2) / sum((f - mean_w(f))^2 / p^2)
//! ```
//!
//! `W_p` is the share of the weights that runs of probability `p` have, and `q_p` their share of successes; where it is used for a
//! variance, two of each kind are added, as a few runs of great weight with equal outcomes are no proof (Hajek's ratio estimator,
//! and Agresti and Coull's shares within strata).
//!
//! The interval at all times at once is the asymptotic confidence sequence of I. Waudby-Smith, D. Arbour, R. Sinha, E. H. Kennedy
//! and A. Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences" (arXiv 2103.06476), over the number of
//! runs that have that variance:
//!
//! ```text
//! estimate +- sqrt(v 2 (n r^2 + 1) / (n^2 r^2) ln(sqrt(n r^2 + 1) / 0.05))         v = variance of a share, two of each kind added
//! ```
//!
//! `y` is 1 for a success, `f` a number that every run has, `n` outcomes are known and `N` are not. Source: Angelopoulos, Duchi and
//! Zrnic, "PPI++: Efficient Prediction-Powered Inference", arXiv 2311.01453, for means. `f` need not be a probability: `w` scales
//! it and gives it a sign. If it says nothing about `y`, `w` is near 0, and only labels count.
//!
//! This departs from the source in two ways. `w` is tuned on the same `n` labels as the share, so the remaining variance counts
//! `(n - 1) / (n - 2)` times, as in regression; otherwise ten labels always seem to gain. And the interval of a share is wider the
//! nearer the share is to one half, so an estimate with less variance may have a wider interval: then only labels count as well.

use crate::view::SuccessView;

/// The normal distribution's quantile of 95 % intervals.
const Z: f64 = 1.959_963_984_540_054;

/// Least number of known outcomes for an interval.
pub(super) const LEAST_TOLD: usize = 5;

/// `r^2` of the interval at all times, which makes it narrowest after some fifty runs.
const ALWAYS: f64 = 0.157;

/// A run with a known outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LabelledRun {
    /// 1 for a success, 0 for none.
    pub(super) label: f64,
    /// The predictor, which is known for every run.
    pub(super) predictor: f64,
    /// The probability that its outcome was reported, in `(0,1]`; `None`: not known.
    pub(super) probability: Option<f64>,
}

/// The runs without a known outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Others {
    /// Their number.
    pub(super) runs: u64,
    /// Mean of the predictor over them.
    pub(super) mean: f64,
    /// Variance of the predictor, divided by their number.
    pub(super) variance: f64,
}

/// A mean with the variance of its estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    /// The estimate.
    estimate: f64,
    /// Its variance.
    variance: f64,
    /// The predictor's weight.
    weight: f64,
}

/// The mean of labels by prediction-powered inference; `weight` is tuned if it is `None`. `None` without labels or other runs.
fn powered_mean(told: &[LabelledRun], others: Others, weight: Option<f64>) -> Option<Mean> {
    if told.is_empty() || others.runs == 0 {
        return None;
    }
    let (runs, many) = (told.len() as f64, others.runs as f64);
    let (label, predictor) =
        (mean(told.iter().map(|run| run.label)), mean(told.iter().map(|run| run.predictor)));
    let weight = weight.unwrap_or_else(|| {
        let products = told.iter().map(|run| (run.label - label) * (run.predictor - predictor));
        let ratio = mean(products) / ((1.0 + runs / many) * pooled(told, others));
        if ratio.is_finite() { ratio } else { 0.0 }
    });
    let rest = || told.iter().map(|run| run.label - weight * run.predictor);
    Some(Mean {
        estimate: mean(rest()) + weight * others.mean,
        variance: variance(rest()) / runs + weight * weight * others.variance / many,
        weight,
    })
}

/// A share of successes, and its effective number of runs: the number that would have its variance if all had the same probability.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    estimate: f64,
    worth: f64,
}

/// The share of successes with Wilson's interval. The gain by predictions counts as more known outcomes, so that there is an
/// interval even if all or none succeed; predictions are left out if they would widen it. `None` below [`LEAST_TOLD`].
pub(super) fn success_ratio(told: &[LabelledRun], others: Option<Others>) -> Option<SuccessView> {
    if told.len() < LEAST_TOLD {
        return None;
    }
    let chances = || told.iter().map(|run| run.probability.unwrap_or(1.0));
    let least = chances().fold(1.0, f64::min);
    let alike = chances().all(|chance| chance <= least);
    let (alone, powered) = if alike { unweighted(told, others) } else { weighted(told, others) };
    let width = |share: Share| {
        let (lower, upper) = wilson(share);
        upper - lower
    };
    let share = powered.filter(|powered| width(*powered) < width(alone)).unwrap_or(alone);
    let (lower, upper) = wilson(share);
    let (always_lower, always_upper) = always(share);
    Some(SuccessView {
        estimate: share.estimate,
        lower,
        upper,
        always_lower,
        always_upper,
        told: told.len() as u64,
        selected: told.iter().filter(|run| run.probability.is_none()).count() as u64,
        sessions: told.len() as u64 + others.map_or(0, |others| others.runs),
    })
}

/// The share by labels alone, and that with predictions if its variance is less, if all runs had the same probability.
fn unweighted(told: &[LabelledRun], others: Option<Others>) -> (Share, Option<Share>) {
    let runs = told.len() as f64;
    let share = mean(told.iter().map(|run| run.label));
    let alone = share * (1.0 - share) / runs;
    let powered = others.and_then(|others| powered_mean(told, others, None));
    let powered = powered.and_then(|mean| {
        let worth = runs * spared(alone, mean.variance, runs)?;
        Some(Share { estimate: mean.estimate.clamp(0.0, 1.0), worth })
    });
    (Share { estimate: share, worth: runs }, powered)
}

/// The variance of labels alone, divided by that with predictions, whose weight was tuned on `runs` runs; `None` if the latter is
/// not less.
fn spared(alone: f64, powered: f64, runs: f64) -> Option<f64> {
    let powered = powered * (runs - 1.0) / (runs - 2.0);
    (powered > 0.0 && powered < alone).then(|| alone / powered)
}

/// The share by labels alone, and that with predictions if its variance is less, if the runs' probabilities differ.
fn weighted(told: &[LabelledRun], others: Option<Others>) -> (Share, Option<Share>) {
    let weight = |run: &LabelledRun| 1.0 / run.probability.unwrap_or(1.0);
    let total: f64 = told.iter().map(weight).sum();
    let share_of = |run: &LabelledRun| weight(run) / total;
    let over = |of: &dyn Fn(&LabelledRun) -> f64| -> f64 {
        told.iter().map(|run| share_of(run) * of(run)).sum()
    };
    let (label, predictor) = (over(&|run| run.label), over(&|run| run.predictor));
    let (many, of_all) = others.map_or((told.len() as f64, None), |others| {
        let (runs, many) = (told.len() as f64, others.runs as f64);
        let own: f64 = told.iter().map(|run| run.predictor).sum();
        let all = (own + others.mean * many) / (runs + many);
        (runs + many, Some((all, others.variance / (runs + many))))
    });
    let (variance, middle) = stratified(told, total, label, many);
    let share = Share { estimate: label, worth: middle * (1.0 - middle) / variance };
    let squares = |of: &dyn Fn(&LabelledRun) -> f64| -> f64 {
        told.iter().map(|run| share_of(run).powi(2) * of(run)).sum()
    };
    let alone = squares(&|run| (run.label - label).powi(2));
    let products = squares(&|run| (run.label - label) * (run.predictor - predictor));
    let tuned = products / squares(&|run| (run.predictor - predictor).powi(2));
    let Some((all, spread)) = of_all.filter(|_| tuned.is_finite()) else { return (share, None) };
    let rest = squares(&|run| (run.label - label - tuned * (run.predictor - predictor)).powi(2));
    // The number of equally weighted runs that these are worth; a few of great weight say nothing.
    let kish = 1.0 / squares(&|_| 1.0);
    let spared = spared(alone, rest + tuned * tuned * spread, kish).filter(|_| kish > 2.0);
    let estimate = (label + tuned * (all - predictor)).clamp(0.0, 1.0);
    (share, spared.map(|spared| Share { estimate, worth: share.worth * spared }))
}

/// The variance of the weighted share, summed over the runs of each probability, and the smoothed share that it belongs to.
fn stratified(told: &[LabelledRun], total: f64, label: f64, many: f64) -> (f64, f64) {
    let mut runs: Vec<&LabelledRun> = told.iter().collect();
    let chance = |run: &LabelledRun| run.probability.unwrap_or(1.0);
    runs.sort_by(|one, other| chance(one).total_cmp(&chance(other)));
    let (mut variance, mut middle) = (0.0, 0.0);
    for alike in runs.chunk_by(|one, other| chance(one).total_cmp(&chance(other)).is_eq()) {
        let count = alike.len() as f64;
        let weight = count / chance(alike[0]) / total;
        let successes: f64 = alike.iter().map(|run| run.label).sum();
        let share = (successes + 2.0) / (count + 4.0);
        variance += weight * weight * share * (1.0 - share) / count;
        variance += weight * (successes / count - label).powi(2) / many;
        middle += weight * share;
    }
    (variance, middle)
}

/// The interval of a share that holds at all times at once, over its effective number of runs.
fn always(Share { estimate: share, worth: runs }: Share) -> (f64, f64) {
    let smoothed = (share * runs + 2.0) / (runs + 4.0);
    let times = runs * ALWAYS + 1.0;
    let half = (smoothed * (1.0 - smoothed) * 2.0 * times / (runs * runs * ALWAYS)
        * (times.sqrt() / 0.05).ln())
    .sqrt();
    ((share - half).max(0.0), (share + half).min(1.0))
}

/// Wilson's score interval of a share, over its effective number of runs.
fn wilson(Share { estimate: share, worth: runs }: Share) -> (f64, f64) {
    let square = Z * Z / runs;
    let middle = share + square / 2.0;
    let half = Z * (share * (1.0 - share) / runs + square / (4.0 * runs)).sqrt();
    let bound = |sum: f64| (sum / (1.0 + square)).clamp(0.0, 1.0);
    (bound(middle - half), bound(middle + half))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

/// The variance, divided by the number of values as in the source.
fn variance(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let middle = mean(values.clone());
    mean(values.map(|value| (value - middle).powi(2)))
}

/// The variance of the predictor over all runs, divided by one less than their number.
fn pooled(told: &[LabelledRun], others: Others) -> f64 {
    let (runs, many) = (told.len() as f64, others.runs as f64);
    let own = mean(told.iter().map(|run| run.predictor));
    let squares = variance(told.iter().map(|run| run.predictor)) * runs;
    let between = runs * many / (runs + many) * (own - others.mean).powi(2);
    (squares + others.variance * many + between) / (runs + many - 1.0)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        labels: Vec<f64>,
        predictions: Vec<f64>,
        others: Vec<f64>,
        weight: Option<f64>,
        estimate: f64,
        lower: f64,
        upper: f64,
    }

    fn others(values: &[f64]) -> Others {
        let all = || values.iter().copied();
        Others { runs: values.len() as u64, mean: mean(all()), variance: variance(all()) }
    }

    fn told(labels: &[f64], predictors: &[f64]) -> Vec<LabelledRun> {
        let pairs = labels.iter().zip(predictors);
        pairs
            .map(|(label, predictor)| LabelledRun {
                label: *label,
                predictor: *predictor,
                probability: None,
            })
            .collect()
    }

    #[test]
    fn means_are_those_of_the_authors_package() {
        let cases = include_str!("../../../tests/data/ppi/cases.json");
        let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let told = told(&case.labels, &case.predictions);
            let mean = powered_mean(&told, others(&case.others), case.weight).unwrap();
            let half = Z * mean.variance.sqrt();
            let ours = [mean.estimate, mean.estimate - half, mean.estimate + half];
            for (own, theirs) in ours.into_iter().zip([case.estimate, case.lower, case.upper]) {
                assert!((own - theirs).abs() < 1e-9, "{own} {theirs}");
            }
        }
    }

    #[test]
    fn without_others_or_with_a_predictor_that_says_nothing_labels_alone_are_left() {
        let labels = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0];
        let alone = success_ratio(&told(&labels, &[0.0; 6]), None).unwrap();
        // (4 + 1.92) / (6 + 3.84) and 1.96 / (6 + 3.84) times the root of 4 x 2 / 6 + 0.96 to either side.
        assert!((alone.lower - 0.299_993).abs() < 1e-5 && (alone.upper - 0.903_227).abs() < 1e-5);
        let constant = Others { runs: 100, mean: 0.0, variance: 0.0 };
        let same = success_ratio(&told(&labels, &[0.0; 6]), Some(constant)).unwrap();
        assert_eq!(
            (same.estimate, same.lower, same.upper, same.sessions),
            (alone.estimate, alone.lower, alone.upper, 106)
        );
        assert_eq!(success_ratio(&told(&labels[..4], &[0.0; 4]), None), None);
        let all = success_ratio(&told(&[1.0; 8], &[0.0; 8]), None).unwrap();
        assert!(all.estimate > 0.999_999 && all.lower < 0.7 && all.upper > 0.999_999);
    }

    /// One outcome in ten of 300 is reported; what is known for all runs correlates with failure as in docs/outcomes.md.
    #[test]
    fn intervals_cover_as_often_as_those_of_labels_alone_and_are_narrower() {
        let mut draws = (0_u64..)
            .map(|draw| (xxh3_64(&draw.to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64);
        let (mut covered, mut covered_alone, mut width, mut width_alone) = (0, 0, 0.0, 0.0);
        const DRAWS: u32 = 2_000;
        for _ in 0..DRAWS {
            let mut next = || draws.next().unwrap();
            let mut run = || {
                let predictor = next();
                LabelledRun {
                    label: if next() < 0.95 - 0.5 * predictor { 1.0 } else { 0.0 },
                    predictor,
                    probability: Some(0.1),
                }
            };
            let runs: Vec<LabelledRun> = (0..300).map(|_| run()).collect();
            let (few, many) = runs.split_at(30);
            let predictors: Vec<f64> = many.iter().map(|run| run.predictor).collect();
            let powered = success_ratio(few, Some(others(&predictors))).unwrap();
            let alone = success_ratio(few, None).unwrap();
            let covers = |found: SuccessView| found.lower <= 0.7 && 0.7 <= found.upper;
            covered += u32::from(covers(powered));
            covered_alone += u32::from(covers(alone));
            assert!(powered.upper - powered.lower <= alone.upper - alone.lower);
            width += powered.upper - powered.lower;
            width_alone += alone.upper - alone.lower;
        }
        let share = |covered: u32| f64::from(covered) / f64::from(DRAWS);
        assert!(share(covered) > 0.93, "{}", share(covered));
        assert!((share(covered) - share(covered_alone)).abs() < 0.02, "{}", share(covered_alone));
        assert!(width < 0.97 * width_alone, "{}", width / width_alone);
    }

    /// All that are flagged are told, and one in ten of the others; they fail in 80 % and in 10 %.
    #[test]
    fn runs_that_were_told_with_different_chances_are_weighted_by_them() {
        let mut draws = (0_u64..)
            .map(|draw| (xxh3_64(&(draw << 1).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64);
        let (mut covered, mut alone, mut sum, mut unweighted) = (0_u32, 0_u32, 0.0, 0.0);
        const DRAWS: u32 = 2_000;
        let truth = 1.0 - (0.15 * 0.8 + 0.85 * 0.1);
        for _ in 0..DRAWS {
            let mut next = || draws.next().unwrap();
            let (mut told, mut rest) = (Vec::new(), Vec::new());
            for _ in 0..600 {
                let (is_flagged, predictor) = (next() < 0.15, next());
                let fails = if is_flagged { 0.8 } else { 0.1 } + 0.12 * (predictor - 0.5);
                let label = if next() < fails { 0.0 } else { 1.0 };
                if is_flagged || next() < 0.1 {
                    let probability = Some(if is_flagged { 1.0 } else { 0.1 });
                    told.push(LabelledRun { label, predictor, probability });
                } else {
                    rest.push(predictor);
                }
            }
            let found = success_ratio(&told, Some(others(&rest))).unwrap();
            let covers = |found: SuccessView| found.lower <= truth && truth <= found.upper;
            covered += u32::from(covers(found));
            // What says nothing is left out: labels alone, of as many runs.
            let (silent, rest) =
                (|run: &mut LabelledRun| run.predictor = 0.0, vec![0.0; rest.len()]);
            told.iter_mut().for_each(silent);
            let labels = success_ratio(&told, Some(others(&rest))).unwrap();
            assert!(found.upper - found.lower <= labels.upper - labels.lower);
            alone += u32::from(covers(labels));
            sum += found.estimate;
            unweighted += mean(told.iter().map(|run| run.label));
            assert_eq!(found.selected, 0);
        }
        let runs = f64::from(DRAWS);
        let (share, alone) = (f64::from(covered) / runs, f64::from(alone) / runs);
        assert!(share > 0.93 && (share - alone).abs() < 0.02, "{share} {alone}");
        assert!((sum / runs - truth).abs() < 0.01, "{}", sum / runs);
        assert!((unweighted / runs - truth).abs() > 0.2, "without weights it is far off");
    }

    #[test]
    fn the_interval_at_all_times_is_seldom_ever_wrong() {
        let mut draws = (0_u64..)
            .map(|draw| (xxh3_64(&(!draw).to_le_bytes()) >> 11) as f64 / (1_u64 << 53) as f64);
        for truth in [0.95, 0.74, 0.5] {
            let wrong = (0..1_000).filter(|_| {
                let (mut runs, mut successes) = (0.0, 0.0);
                (0..500).any(|_| {
                    runs += 1.0;
                    successes += if draws.next().unwrap() < truth { 1.0 } else { 0.0 };
                    let (lower, upper) = always(Share { estimate: successes / runs, worth: runs });
                    runs >= 5.0 && !(lower..=upper).contains(&truth)
                })
            });
            let wrong = wrong.count();
            assert!(wrong < 80, "{truth}: {wrong} of 1000 were wrong at some time");
        }
    }
}
