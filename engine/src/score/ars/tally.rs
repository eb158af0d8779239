//! Sums over runs, from which any run can be subtracted.

use super::options::ArsOptions;
use super::part::ComponentName;
use super::run::Contribution;
use crate::math::{Quanta, ratio};

/// A mean as its sum and count.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Mean {
    sum: i128,
    count: u64,
}

/// The sums of a set of runs that components are computed from.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Tally {
    pub(super) runs: u64,
    accuracy: Mean,
    /// Sum of the squares of the accuracies, in quanta squared.
    squares: i128,
    fidelity: Mean,
    tool_calls: i128,
    tool_successes: i128,
    /// Number of runs with a tool call.
    tool_runs: u64,
    path: Mean,
    latency: Mean,
    cost: Mean,
}

/// A component in `[0,1]`, and the number of runs or test cases that it was measured over.
pub(super) type Measured = (f64, u64);

impl Mean {
    pub(super) fn observe(&mut self, value: Option<Quanta>) {
        if let Some(value) = value {
            self.sum += i128::from(value.0);
            self.count += 1;
        }
    }

    pub(super) fn forget(&mut self, value: Option<Quanta>) {
        if let Some(value) = value {
            self.sum -= i128::from(value.0);
            self.count -= 1;
        }
    }

    /// The mean and the count; `None` over nothing.
    pub(super) fn result(&self) -> Option<Measured> {
        let whole = i128::from(self.count) * i128::from(Quanta::ONE);
        (self.count > 0).then(|| (ratio(self.sum, whole), self.count))
    }

    /// How far the mean is below a ceiling, as a share of it in `[0,1]`; `None` without a ceiling above 0.
    fn below(&self, ceiling: Option<f64>) -> Option<Measured> {
        let ceiling = ceiling.filter(|ceiling| *ceiling > 0.0)?;
        self.result().map(|(mean, count)| ((1.0 - mean / ceiling).clamp(0.0, 1.0), count))
    }
}

impl Tally {
    pub(super) fn observe(&mut self, run: &Contribution) {
        self.runs += 1;
        self.accuracy.observe(run.accuracy);
        self.squares += square(run.accuracy);
        self.fidelity.observe(run.fidelity);
        self.tool_calls += i128::from(run.tool_calls);
        self.tool_successes += i128::from(run.tool_successes);
        self.tool_runs += u64::from(run.tool_calls > 0);
        self.path.observe(run.path);
        self.latency.observe(run.latency);
        self.cost.observe(run.cost);
    }

    pub(super) fn forget(&mut self, run: &Contribution) {
        self.runs -= 1;
        self.accuracy.forget(run.accuracy);
        self.squares -= square(run.accuracy);
        self.fidelity.forget(run.fidelity);
        self.tool_calls -= i128::from(run.tool_calls);
        self.tool_successes -= i128::from(run.tool_successes);
        self.tool_runs -= u64::from(run.tool_calls > 0);
        self.path.forget(run.path);
        self.latency.forget(run.latency);
        self.cost.forget(run.cost);
    }

    /// A component of these runs; not consistency, which is over test cases.
    pub(super) fn component(&self, part: ComponentName, options: &ArsOptions) -> Option<Measured> {
        match part {
            ComponentName::Accuracy => self.accuracy.result(),
            ComponentName::SourceFidelity => self.fidelity.result(),
            ComponentName::Trajectory => self.trajectory(),
            ComponentName::Latency => self.latency.below(options.latency_ceiling_seconds),
            ComponentName::Cost => self.cost.below(options.cost_ceiling_usd),
            ComponentName::Consistency => None,
        }
    }

    /// One minus the coefficient of variation of the accuracies, in `[0,1]`; `None` with fewer than two, or a mean of 0.
    ///
    /// With `n` values, their sum `a` and their squares' sum `b`, the square of the coefficient is `(n b - a^2) / a^2 * n / (n -
    /// 1)`, whose numerator and denominator are exact up to ten million runs.
    pub(super) fn steadiness(&self) -> Option<Quanta> {
        let (n, sum) = (i128::from(self.accuracy.count), self.accuracy.sum);
        if n < 2 || sum == 0 {
            return None;
        }
        let variation =
            (ratio(n * self.squares - sum * sum, sum * sum) * ratio(n, n - 1)).max(0.0).sqrt();
        Quanta::from_f64((1.0 - variation).clamp(0.0, 1.0))
    }

    /// Half the success of all tool calls and half the mean path, or, without a path, the success alone; `None` without tool calls.
    fn trajectory(&self) -> Option<Measured> {
        if self.tool_calls == 0 {
            return None;
        }
        let success = ratio(self.tool_successes, self.tool_calls);
        let score = self.path.result().map_or(success, |(path, _)| 0.5 * success + 0.5 * path);
        Some((score, self.tool_runs))
    }
}

fn square(accuracy: Option<Quanta>) -> i128 {
    accuracy.map_or(0, |score| i128::from(score.0) * i128::from(score.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(accuracies: &[f64]) -> Tally {
        let mut tally = Tally::default();
        for accuracy in accuracies {
            let accuracy = Quanta::from_f64(*accuracy);
            tally.observe(&Contribution { accuracy, ..Contribution::default() });
        }
        tally
    }

    #[test]
    fn steadiness_is_one_minus_the_coefficient_of_variation() {
        let steadiness = |accuracies: &[f64]| tally(accuracies).steadiness();
        assert_eq!(steadiness(&[0.7, 0.7, 0.7]), Some(Quanta(Quanta::ONE)));
        // Mean 0.5, sample deviation 0.1 * sqrt(2).
        assert_eq!(steadiness(&[0.4, 0.6]), Quanta::from_f64(1.0 - 0.2 * 2.0_f64.sqrt()));
        assert_eq!(steadiness(&[1.0, 0.0]), Some(Quanta(0)));
        assert_eq!(steadiness(&[0.0, 0.0]), None);
        assert_eq!(steadiness(&[0.7]), None);
    }

    #[test]
    fn forgetting_undoes_observing() {
        let mut both = tally(&[0.1, 0.7]);
        let accuracy = Quanta::from_f64(0.1);
        both.forget(&Contribution { accuracy, ..Contribution::default() });
        assert_eq!(both, tally(&[0.7]));
    }
}
