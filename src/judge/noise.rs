//! The noise of a judge: how much two judgements of the same trace differ.
//!
//! ```text
//! noise = sqrt( sum (first - second)^2 / 2n )        over the last n pairs of a metric
//! ```
//!
//! The variance of a distribution is half the mean squared difference of two draws, so this is the standard deviation of a
//! single judgement. Traces are chosen by hash, so that every machine chooses the same.

use std::collections::{BTreeMap, VecDeque};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::metric::Metric;
use crate::engine::math::Quanta;
use crate::engine::span::TraceId;

/// The last pairs of scores, by metric.
#[derive(Clone, Debug, Default)]
pub struct Noise {
    // The difference of each pair, the oldest first.
    pairs: BTreeMap<Metric, VecDeque<i64>>,
}

impl Noise {
    /// Adds two scores of one trace; returns the noise of the metric, in `[0,1]`.
    pub fn observe(&mut self, metric: Metric, first: Quanta, second: Quanta) -> f64 {
        let pairs = self.pairs.entry(metric).or_default();
        pairs.push_back(first.0.saturating_sub(second.0));
        if pairs.len() > MAX_PAIRS {
            pairs.pop_front();
        }
        let squares: i128 = pairs.iter().map(|d| i128::from(*d) * i128::from(*d)).sum();
        let one = Quanta::ONE as f64;
        (squares as f64 / (2.0 * pairs.len() as f64)).sqrt() / one
    }
}

/// Whether a trace is among the share of traces that are judged twice.
pub fn is_picked(trace_id: TraceId, share: f64) -> bool {
    // The hash has 53 bits here, which a float holds exactly.
    ((xxh3_64_with_seed(&trace_id.0, SEED) >> 11) as f64) < share * (1_u64 << 53) as f64
}

/// The number of pairs of a metric that count.
const MAX_PAIRS: usize = 200;

/// The seed of the hash, which keeps the choice independent of others by hashes of traces.
const SEED: u64 = 0x006e_6f69_7365;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_the_deviation_of_one_judgement() {
        let mut noise = Noise::default();
        let score = |value| Quanta::from_f64(value).unwrap();
        assert!(noise.observe(Metric::Confidence, score(0.5), score(0.5)) < 1e-12);
        let two = noise.observe(Metric::Confidence, score(0.5), score(0.7));
        assert!((two - 0.1).abs() < 1e-12, "{two}");
        assert!(noise.observe(Metric::PlanQuality, score(1.0), score(1.0)) < 1e-12);
        for _ in 0..MAX_PAIRS {
            noise.observe(Metric::Confidence, score(0.2), score(0.2));
        }
        assert!(noise.observe(Metric::Confidence, score(0.2), score(0.2)) < 1e-12);
    }

    #[test]
    fn a_share_of_traces_is_judged_twice() {
        let picked = |share| {
            (0..10_000_u128).filter(|id| is_picked(TraceId(id.to_be_bytes()), share)).count()
        };
        assert_eq!((picked(0.0), picked(1.0)), (0, 10_000));
        assert!((400..600).contains(&picked(0.05)), "{}", picked(0.05));
    }
}
