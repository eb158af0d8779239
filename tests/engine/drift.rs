//! Versions compared over simulated series: equal ones are distinguished no more often than allowed, others are in time.

use agentgauge::engine::drift::DriftOptions;
use agentgauge::engine::drift::sequential::{Difference, MeanSequence, difference};
use agentgauge::engine::math::Quanta;

/// Evenly spread numbers in `[0,1)` from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The next value of a series.
type Score = fn(&mut Random) -> f64;

/// Kinds of scores that agents have, each steady.
const KINDS: [(&str, Score); 8] = [
    ("always 1", |_| 1.0),
    ("rare failures", |random| f64::from(u8::from(random.next() >= 0.02))),
    ("some failures", |random| f64::from(u8::from(random.next() >= 0.1))),
    ("frequent failures", |random| f64::from(u8::from(random.next() >= 0.2))),
    ("a coin", |random| f64::from(u8::from(random.next() >= 0.5))),
    ("even", Random::next),
    ("mostly high", |random| 1.0 - random.next().powi(4)),
    ("bell", |random| (0..12).map(|_| random.next()).sum::<f64>() / 12.0),
];

fn quanta(value: f64) -> Quanta {
    Quanta::from_f64(value).unwrap()
}

/// The first time that two versions are distinguished, with the number of values of each that this took.
fn first_difference(
    seed: u64,
    length: u64,
    options: &DriftOptions,
    scores: [&dyn Fn(&mut Random) -> f64; 2],
) -> Option<(u64, Difference)> {
    let mut random = Random(seed);
    let mut versions = [MeanSequence::default(); 2];
    (1..=length).find_map(|count| {
        for (version, score) in versions.iter_mut().zip(scores) {
            assert!(version.observe(quanta(score(&mut random)), options));
        }
        let found = difference(&versions[0], &versions[1], options)?;
        found.excludes_zero().then_some((count, found))
    })
}

#[test]
fn equal_versions_are_told_apart_no_more_often_than_alpha() {
    let options = DriftOptions::default();
    let pairs = 100;
    for (name, score) in KINDS {
        let wrong = (0..pairs)
            .filter(|seed| first_difference(*seed, 1_000, &options, [&score, &score]).is_some())
            .count();
        assert!(wrong as f64 <= options.alpha * pairs as f64, "{name}: {wrong} of {pairs}");
    }
}

#[test]
fn different_versions_are_told_apart_with_the_true_difference_in_the_interval() {
    let options = DriftOptions::default();
    let success =
        |share: f64| move |random: &mut Random| f64::from(u8::from(random.next() < share));
    let (better, worse) = (success(0.9), success(0.6));
    for seed in 0..100 {
        let (count, found) = first_difference(seed, 2_000, &options, [&better, &worse]).unwrap();
        assert!(count < 300, "seed {seed}: {count}");
        assert!(found.upper < 0.0 && found.lower <= -0.3, "seed {seed}: {found:?}");
        let (_, other) = first_difference(seed, 2_000, &options, [&worse, &better]).unwrap();
        assert!(other.lower > 0.0, "seed {seed}: {other:?}");
    }
}
