//! Risk-coverage: are the runs that an agent is least sure of those that fail?
//!
//! ```text
//! risk(c) = share of failures among the max(1, trunc(c N)) most confident     c = 0, 1/99, .., 1
//! AURC    = area under risk, by trapezoids
//! P_rc    = clip(1 - (AURC - AURC*) / (error - AURC* + 1e-8), 0, 1)            AURC*: successes first
//! ```
//!
//! Source: Princeton, agent reliability, "Risk-Coverage Score". 1 where no order could be better or worse: all succeed, all
//! fail. Where confidences are equal the source's result depends on the order of its input (from 0 to 0.76 on its own data); here
//! each of them counts with the mean risk of its group, which is the mean over all orders.

use super::outcome::Outcomes;
use crate::engine::math::ratio;

/// `P_rc` of all outcomes, given also by confidence, greatest first, all of which are looked at; `None` if there is none.
pub(super) fn score(total: Outcomes, best_first: impl Iterator<Item = Outcomes>) -> Option<f64> {
    if total.runs == 0 {
        return None;
    }
    let observed = area(total.runs, best_first);
    let right = Outcomes { runs: total.successes, successes: total.successes };
    let wrong = Outcomes { runs: total.failures(), successes: 0 };
    let best = area(total.runs, [right, wrong].into_iter());
    let error = ratio(i128::from(total.failures()), i128::from(total.runs));
    let possible = error - best;
    if possible <= 1e-8 {
        return Some(1.0);
    }
    Some((1.0 - (observed - best) / (possible + 1e-8)).clamp(0.0, 1.0))
}

/// The area under the risk of `n` runs in groups of equal confidence.
fn area(n: u64, mut groups: impl Iterator<Item = Outcomes>) -> f64 {
    let mut before = Outcomes::default();
    let mut group = Outcomes::default();
    let mut last: Option<(f64, f64)> = None;
    let mut area = 0.0;
    for point in 0..100_u8 {
        // As numpy's linspace has it.
        let coverage = if point == 99 { 1.0 } else { f64::from(point) * (1.0 / 99.0) };
        let covered = covered(coverage, n);
        while before.runs + group.runs < covered {
            before.merge(group);
            let Some(next) = groups.next() else { break };
            group = next;
        }
        let risk = risk(before, group, covered);
        if let Some((coverage_before, risk_before)) = last {
            area += (coverage - coverage_before) * (risk_before + risk) / 2.0;
        }
        last = Some((coverage, risk));
    }
    area
}

/// The share of failures among the first `covered` of whole groups and one that is cut.
fn risk(before: Outcomes, group: Outcomes, covered: u64) -> f64 {
    if before.failures() + group.failures() == 0 {
        return 0.0;
    }
    let (size, taken) = (group.runs.max(1) as f64, (covered - before.runs) as f64);
    let failures = before.failures() as f64 + group.failures() as f64 * taken / size;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_confidences_are_worth_nothing() {
        let total = Outcomes { runs: 4, successes: 2 };
        let tied = score(total, [total].into_iter()).unwrap();
        assert!(tied < 1e-6, "{tied}");
    }

    #[test]
    fn failures_last_are_best() {
        let total = Outcomes { runs: 4, successes: 2 };
        let (right, wrong) =
            (Outcomes { runs: 2, successes: 2 }, Outcomes { runs: 2, successes: 0 });
        assert!((score(total, [right, wrong].into_iter()).unwrap() - 1.0).abs() < 1e-12);
        assert!(score(total, [wrong, right].into_iter()).unwrap() < 1e-12);
        assert_eq!(score(Outcomes::default(), [].into_iter()), None);
    }
}
