//! Risk-coverage: are failures the runs with the least confidence?
//!
//! ```text
//! risk(c) = share of failures among the max(1, trunc(c N)) most confident     c = 0, 1/99, .., 1
//! AURC    = area under risk, by trapezoids
//! P_rc    = clip(1 - (AURC - AURC*) / (error - AURC* + 1e-8), 0, 1)            AURC*: successes first
//! ```
//!
//! Source: Princeton, agent reliability, "Risk-Coverage Score". 1 if no order could be better or worse, as all succeed or all
//! fail. For equal confidences the source's result depends on the order of its input (from 0 to 0.76 on its own data); here
//! each of them counts with the mean risk of its group, which is the mean over all orders.

use super::levels::Levels;
use super::outcome::Outcomes;
use crate::math::ratio;

/// `P_rc` of the outcomes, given in total and by confidence; `None` if there are none.
pub(super) fn score(total: Outcomes, levels: &Levels) -> Option<f64> {
    if total.runs == 0 {
        return None;
    }
    let (observed, best) = areas(total, levels);
    let error = ratio(i128::from(total.failures()), i128::from(total.runs));
    let possible = error - best;
    if possible <= 1e-8 {
        return Some(1.0);
    }
    Some((1.0 - (observed - best) / (possible + 1e-8)).clamp(0.0, 1.0))
}

/// The areas under the risk: with the runs in order of confidence, and with successes first.
fn areas(total: Outcomes, levels: &Levels) -> (f64, f64) {
    let mut walk = levels.best_first();
    let (mut observed, mut best) = (Area::default(), Area::default());
    for coverage in COVERAGES {
        let covered = covered(coverage, total.runs);
        walk.cover(covered);
        observed.add(coverage, risk(walk.before, walk.level, covered));
        let failures = covered.saturating_sub(total.successes);
        best.add(coverage, if failures == 0 { 0.0 } else { failures as f64 / covered as f64 });
    }
    (observed.area, best.area)
}

/// An area by trapezoids, point by point.
#[derive(Clone, Copy, Default)]
struct Area {
    area: f64,
    last: Option<(f64, f64)>,
}

impl Area {
    fn add(&mut self, x: f64, y: f64) {
        if let Some((last_x, last_y)) = self.last {
            self.area += (x - last_x) * (last_y + y) / 2.0;
        }
        self.last = Some((x, y));
    }
}

/// The share of failures among the first `covered` runs: those of whole levels, and a part of the next level.
fn risk(before: Outcomes, level: Outcomes, covered: u64) -> f64 {
    if before.failures() + level.failures() == 0 {
        return 0.0;
    }
    let (size, taken) = (level.runs.max(1) as f64, (covered - before.runs) as f64);
    let failures = before.failures() as f64 + level.failures() as f64 * taken / size;
    failures / covered as f64
}

fn covered(coverage: f64, n: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to n; to be truncated, as the source does"
    )]
    let covered = (coverage * n as f64) as u64;
    covered.clamp(1, n)
}

/// The evaluated coverages, equal to numpy's `linspace(0, 1, 100)`.
const COVERAGES: [f64; 100] = {
    let mut coverages = [1.0; 100];
    let mut point = 0;
    while point < 99 {
        coverages[point] = point as f64 * (1.0 / 99.0);
        point += 1;
    }
    coverages
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Quanta;

    fn of(levels: &[(u64, u64)]) -> Option<f64> {
        let (mut total, mut held) = (Outcomes::default(), Levels::default());
        for (below, (runs, successes)) in (0..).zip(levels) {
            let outcomes = Outcomes { runs: *runs, successes: *successes };
            total.merge(outcomes);
            held.merge(Quanta(Quanta::ONE - below), outcomes);
        }
        score(total, &held)
    }

    #[test]
    fn equal_confidences_are_worth_nothing() {
        let tied = of(&[(4, 2)]).unwrap();
        assert!(tied < 1e-6, "{tied}");
    }

    #[test]
    fn failures_last_are_best() {
        assert!((of(&[(2, 2), (2, 0)]).unwrap() - 1.0).abs() < 1e-12);
        assert!(of(&[(2, 0), (2, 2)]).unwrap() < 1e-12);
        assert_eq!(of(&[]), None);
    }
}
