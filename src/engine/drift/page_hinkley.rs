//! Page-Hinkley: has the mean of a series moved, up or down?
//!
//! ```text
//! z    = clamp((x - m) / max(s, sigma_floor) * sqrt(n / (n + 1)), -max_step, max_step)
//! up   = max(0, up + z - delta)
//! down = max(0, down - z - delta)
//! alarm if up > lambda or down > lambda; then all starts anew
//! ```
//!
//! `m` and `s` are mean and sample deviation of the first `n` values, which are those before `x` but no more than `baseline`.
//! Before `warm_up` values nothing is summed. The shift is taken to have begun after the sum was last 0.
//!
//! Sources: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954); D. V. Hinkley, "Inference about the
//! change-point from cumulative sum tests", Biometrika 58 (1971), whose sum less its least value so far is `up`; for running
//! estimates in place of a known mean and deviation D. M. Hawkins, "Self-starting cusum charts for location and scale", The
//! Statistician 36 (1987), without his transform to a normal. Ours are the floor, without which a series that never varied
//! alarms at anything, the greatest step, and the end of the baseline.

use serde::{Deserialize, Serialize};

use super::DriftOptions;
use crate::engine::math::{Quanta, ratio};
use crate::engine::span::Timestamp;

/// The state of one series.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PageHinkley {
    /// Values since the series began.
    seen: u64,
    // Since the last alarm:
    count: u64,
    sum: i128,
    baseline: Baseline,
    up: Side,
    down: Side,
}

/// Which way a mean went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// To lower values.
    Down,
    /// To higher values.
    Up,
}

/// A mean that moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Which way.
    pub direction: Direction,
    /// Mean since the alarm before, up to where the shift began.
    pub before: f64,
    /// Mean from where the shift began.
    pub after: f64,
    /// Place of the value that gave the alarm, counted from 0 at the start of the series.
    pub index: u64,
    /// Time of the value that gave the alarm.
    pub at: Timestamp,
    /// Place of the first value after which the sum stayed above 0.
    pub began_index: u64,
    /// Time of that value.
    pub began: Timestamp,
}

/// What is usual.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Baseline {
    count: u64,
    sum: i128,
    squares: i128,
}

/// The cumulative sum in one direction, and the values in it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Side {
    steps: f64,
    count: u64,
    sum: i128,
    began: Timestamp,
}

impl PageHinkley {
    /// Takes the next value of the series with its time; returns the shift if it gives an alarm.
    pub fn observe(
        &mut self,
        value: Quanta,
        at: Timestamp,
        options: &DriftOptions,
    ) -> Option<Shift> {
        self.seen += 1;
        self.count += 1;
        self.sum += i128::from(value.0);
        if self.baseline.count >= options.warm_up.max(2) {
            let step = self.baseline.step(value, options);
            self.up.add(step - options.delta, value, at);
            self.down.add(-step - options.delta, value, at);
        }
        if self.baseline.count < options.baseline.max(options.warm_up).max(2) {
            self.baseline.observe(value);
        }
        let sides = [(Direction::Up, self.up), (Direction::Down, self.down)];
        let (direction, side) = sides.into_iter().find(|(_, side)| side.steps > options.lambda)?;
        let shift = self.shift(direction, &side, at);
        *self = Self { seen: self.seen, ..Self::default() };
        Some(shift)
    }

    fn shift(&self, direction: Direction, side: &Side, at: Timestamp) -> Shift {
        let mean = |sum: i128, count: u64| ratio(sum, i128::from(count)) / Quanta::ONE as f64;
        Shift {
            direction,
            before: mean(self.sum - side.sum, self.count - side.count),
            after: mean(side.sum, side.count),
            index: self.seen - 1,
            at,
            began_index: self.seen - side.count,
            began: side.began,
        }
    }
}

impl Baseline {
    fn observe(&mut self, value: Quanta) {
        self.count += 1;
        self.sum += i128::from(value.0);
        self.squares += i128::from(value.0) * i128::from(value.0);
    }

    /// How many deviations a value lies from the mean of these.
    fn step(&self, value: Quanta, options: &DriftOptions) -> f64 {
        let (n, one) = (self.count as f64, Quanta::ONE as f64);
        let mean = ratio(self.sum, i128::from(self.count)) / one;
        let square = ratio(self.squares, i128::from(self.count)) / one / one;
        let deviation = ((square - mean * mean).max(0.0) * n / (n - 1.0)).sqrt();
        let sigma = deviation.max(options.sigma_floor).max(f64::EPSILON);
        let step = (value.to_f64() - mean) / sigma * (n / (n + 1.0)).sqrt();
        step.max(-options.max_step).min(options.max_step)
    }
}

impl Side {
    fn add(&mut self, step: f64, value: Quanta, at: Timestamp) {
        if self.steps + step <= 0.0 {
            *self = Self::default();
            return;
        }
        if self.count == 0 {
            self.began = at;
        }
        self.steps += step;
        self.count += 1;
        self.sum += i128::from(value.0);
    }
}

/// Returns a bound on the false alarms of each value of a steady series, whatever its distribution, as far as its mean
/// and deviation are known.
///
/// ```text
/// rate  = 2 exp(-theta lambda)
/// theta = the root above 0 of  exp(theta M) / (1 + M^2) + M^2 / (1 + M^2) exp(-theta / M) = exp(theta delta)
/// ```
///
/// with `M` = `max_step`. The left side is the greatest moment generating function of steps with mean 0, deviation 1 and no
/// more than `M` (G. Bennett, JASA 57, 1962); that a cumulative sum with such a root alarms no more often than once in
/// `exp(theta lambda)` values is G. Lorden's (Annals of Mathematical Statistics 42, 1971). Both directions may alarm. 0
/// where no steady series can: `max_step` is not over `delta`.
pub fn false_alarm_rate(options: &DriftOptions) -> f64 {
    let (m, delta) = (options.max_step, options.delta);
    if m <= delta {
        return 0.0;
    }
    let share = 1.0 / (1.0 + m * m);
    let excess = |theta: f64| {
        let steps = share * (theta * (m - delta)).exp();
        steps + (1.0 - share) * (-theta * (1.0 / m + delta)).exp() - 1.0
    };
    // Convex, 0 at 0, falling there and rising in the end: the root is where it is 0 again.
    let (mut low, mut high) = (0.0, (1.0 / share).ln() / (m - delta));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if excess(middle) < 0.0 { low = middle } else { high = middle }
    }
    (2.0 * (-low * options.lambda).exp()).min(1.0)
}

/// Enough to make an interval smaller than the floats in it.
const HALVINGS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn alarms(values: impl IntoIterator<Item = f64>, options: &DriftOptions) -> Vec<Shift> {
        let mut series = PageHinkley::default();
        let at = |index: usize| Timestamp(1000 * u64::try_from(index).unwrap());
        let observed = values.into_iter().enumerate().filter_map(|(index, value)| {
            series.observe(Quanta::from_f64(value).unwrap(), at(index), options)
        });
        observed.collect()
    }

    #[test]
    fn a_fall_is_found_with_its_begin_and_both_means() {
        let values = (0..60).map(|index| if index < 40 { 0.9 } else { 0.4 });
        let shifts = alarms(values, &DriftOptions::default());
        let [shift] = shifts.as_slice() else { panic!("{shifts:?}") };
        assert_eq!(shift.direction, Direction::Down);
        assert!((shift.before - 0.9).abs() < 1e-9 && (shift.after - 0.4).abs() < 1e-9);
        assert_eq!((shift.began_index, shift.began), (40, Timestamp(40_000)));
        assert_eq!(shift.at, Timestamp(1000 * shift.index));
        assert!(shift.index < 52, "{shift:?}");
    }

    #[test]
    fn after_an_alarm_the_new_level_is_the_usual_one() {
        let values = (0..200).map(|index| if (40..120).contains(&index) { 0.4 } else { 0.9 });
        let shifts = alarms(values, &DriftOptions::default());
        let directions: Vec<Direction> = shifts.iter().map(|shift| shift.direction).collect();
        assert_eq!(directions, [Direction::Down, Direction::Up]);
        assert_eq!(shifts[1].began_index, 120);
    }

    #[test]
    fn one_outlier_is_no_shift() {
        let values = (0..200).map(|index| if index == 100 { 0.0 } else { 1.0 });
        assert_eq!(alarms(values, &DriftOptions::default()), []);
    }

    #[test]
    fn a_slow_decline_does_not_become_the_usual_level() {
        let values = (0..600).map(|index| 0.9 - 0.0005 * f64::from(index));
        let shifts = alarms(values, &DriftOptions::default());
        assert!(!shifts.is_empty());
        assert!(shifts.iter().all(|shift| shift.direction == Direction::Down));
    }

    #[test]
    fn nothing_is_said_before_the_warm_up_is_over() {
        let options = DriftOptions { warm_up: 50, ..DriftOptions::default() };
        let values = (0..49).map(|index| if index < 20 { 1.0 } else { 0.0 });
        assert_eq!(alarms(values, &options), []);
    }

    #[test]
    fn the_rate_of_false_alarms_falls_with_lambda() {
        let rate =
            |lambda: f64| false_alarm_rate(&DriftOptions { lambda, ..DriftOptions::default() });
        assert!(rate(15.0) < 1.0 / 4000.0 && rate(15.0) > 1.0 / 5000.0, "{}", rate(15.0));
        assert!(rate(16.0) < rate(15.0));
        // The greatest step of a coin is its only one, so the root is that of cosh(theta) = exp(delta theta).
        let coin = DriftOptions { max_step: 1.0, lambda: 1.0, ..DriftOptions::default() };
        let theta = -(false_alarm_rate(&coin) / 2.0).ln();
        assert!((theta.cosh() - (0.5 * theta).exp()).abs() < 1e-9, "{theta}");
        let options = DriftOptions { max_step: 0.5, ..DriftOptions::default() };
        assert!(false_alarm_rate(&options) < 1e-12);
    }
}
