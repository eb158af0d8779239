//! Outcome: 1 if the trace achieved its purpose, 0 if it did not, as reported or judged.
//!
//! agentgauge's own. It is reported about the trace, or by it. A report about a session counts for its last trace, one about a run
//! for the run's last trace in each of its sessions; the worst of all reports applies. Without a report it is the judge's score
//! (`task_completion`). It is never computed, so drops, which are found by computed signals, have a separate stream for it.
//!
//! Reports of it are scores named `outcome`, `task_completion` or `goal_success`. If the label states the result (pass, fail, true,
//! yes, success, ...), it decides, also if the value is out of range. Otherwise an `outcome` is a success only at 1, like
//! Princeton's rewards, and the other two, which are grades, from their threshold on (`session.signal_thresholds`, one half by
//! default).

use super::thresholds;
use crate::math::Quanta;
use crate::span::Source;

/// The signal's name.
pub const NAME: &str = "outcome";

/// Names of scores that state whether a task succeeded.
pub const TOLD_BY: [&str; 3] = [NAME, "task_completion", "goal_success"];

/// Those of them that are grades: they state how much of the task was done.
const GRADES: [&str; 2] = ["task_completion", "goal_success"];

/// The threshold of a grade that has no other.
const HALF: f64 = 0.5;

/// Whether a reported score states that the task succeeded: by its label, if that states either, else, for a grade, by the signal's
/// threshold; `None` if it is no outcome, or one like a reward that only 1 makes a success.
pub fn success_of(
    name: &str,
    label: Option<bool>,
    score: Quanta,
    threshold: Option<f64>,
) -> Option<bool> {
    let by_grade = || {
        let own = || thresholds::of(name).map_or(HALF, |metric| metric.threshold.to_f64());
        GRADES.contains(&name).then(|| score.to_f64() >= threshold.unwrap_or_else(own))
    };
    label.filter(|_| TOLD_BY.contains(&name)).or_else(by_grade)
}

/// The signal and its source; `None` if no outcome was reported or judged. `of_session`: the outcome reported for the session or
/// the run, if this is its last trace.
pub fn score(
    of_trace: Option<bool>,
    of_session: Option<bool>,
    judged: Option<Quanta>,
) -> Option<(Quanta, Source)> {
    let told = of_trace.into_iter().chain(of_session).min();
    let told =
        told.map(|success| (Quanta(if success { Quanta::ONE } else { 0 }), Source::Reported));
    told.or_else(|| Some((judged?, Source::Judge)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_goes_before_a_grade_and_a_grade_has_a_threshold() {
        let at = |name, label, tenths: i64, threshold| {
            success_of(name, label, Quanta(Quanta::ONE / 10 * tenths), threshold)
        };
        for grade in ["task_completion", "goal_success"] {
            assert_eq!(
                [5, 4].map(|tenths| at(grade, None, tenths, None)),
                [Some(true), Some(false)]
            );
            assert_eq!(at(grade, None, 8, Some(0.9)), Some(false));
            assert_eq!(at(grade, Some(false), 10, None), Some(false));
        }
        assert_eq!(at("outcome", Some(true), 9, None), Some(true));
        assert_eq!(at("outcome", None, 9, Some(0.1)), None);
        assert_eq!(at("helpfulness", Some(true), 9, None), None);
    }

    #[test]
    fn the_worse_of_what_is_reported_goes_before_the_judge() {
        let (one, half) = (Quanta(Quanta::ONE), Quanta(Quanta::ONE / 2));
        assert_eq!(score(None, None, None), None);
        assert_eq!(score(None, None, Some(half)), Some((half, Source::Judge)));
        assert_eq!(score(Some(true), None, Some(half)), Some((one, Source::Reported)));
        assert_eq!(score(Some(true), Some(false), None), Some((Quanta(0), Source::Reported)));
    }
}
