//! Drift over simulated series: steady ones alarm no more often than they may, planted shifts are found in time.

use agentgauge::engine::drift::DriftOptions;
use agentgauge::engine::drift::page_hinkley::{Direction, PageHinkley, Shift, false_alarm_rate};
use agentgauge::engine::drift::sequential::{Difference, MeanSequence, difference};
use agentgauge::engine::math::Quanta;
use agentgauge::engine::span::Timestamp;

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

fn shifts(values: impl IntoIterator<Item = f64>, options: &DriftOptions) -> Vec<Shift> {
    let mut series = PageHinkley::default();
    let times = (0..).map(|second| Timestamp(second * 1_000_000_000));
    let observed = values.into_iter().zip(times);
    observed.filter_map(|(value, at)| series.observe(quanta(value), at, options)).collect()
}

#[test]
fn steady_series_alarm_no_more_often_than_the_bound_says() {
    let options = DriftOptions::default();
    let (series, length) = (200_u32, 2_000_u32);
    for (name, score) in KINDS {
        let alarms: usize = (0..series)
            .map(|seed| {
                let mut random = Random(u64::from(seed));
                shifts((0..length).map(|_| score(&mut random)), &options).len()
            })
            .sum();
        let rate = alarms as f64 / f64::from(series * length);
        assert!(rate <= false_alarm_rate(&options), "{name}: {alarms} alarms");
    }
}

/// Each series changes at its 150th value.
fn planted(before: Score, after: Score) -> impl Iterator<Item = Shift> {
    (0..200).map(move |seed| {
        let mut random = Random(seed);
        let values = (0..300).map(|index| {
            let score = if index < 150 { before } else { after };
            score(&mut random)
        });
        let shifts = shifts(values, &DriftOptions::default());
        *shifts.iter().find(|shift| shift.index >= 150).unwrap()
    })
}

#[test]
fn a_fall_of_success_is_found_within_eighty_values() {
    for found in planted(
        |random| f64::from(u8::from(random.next() < 0.95)),
        |random| f64::from(u8::from(random.next() < 0.6)),
    ) {
        assert_eq!(found.direction, Direction::Down);
        assert!(found.index < 230, "{found:?}");
        assert!(found.before > found.after + 0.2, "{found:?}");
        assert_eq!(found.at, Timestamp(found.index * 1_000_000_000));
        assert_eq!(found.began, Timestamp(found.began_index * 1_000_000_000));
    }
}

#[test]
fn a_rise_by_two_deviations_is_found_within_thirty_values() {
    let even = |random: &mut Random| 0.3 * random.next();
    // An even spread over 0.3 has a deviation of 0.087.
    for found in planted(even, |random| 0.17 + 0.3 * random.next()) {
        assert_eq!(found.direction, Direction::Up);
        assert!(found.index < 180, "{found:?}");
    }
}

/// The first time that two versions are told apart, with how many values of each that took.
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
