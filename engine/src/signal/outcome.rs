//! Outcome: 1 if the trace did what it was there for, 0 if it did not, as reported or judged.
//!
//! Ours. Reported of the trace, or by it. A report about a session counts for its last trace, one about a run for the run's last trace
//! in each of its sessions; the worst of all reports holds. Only without a report it is our judge's score (`task_completion`). It is
//! never computed, so drops, which are found by computed signals, have a stream of its own for it.

use crate::math::Quanta;
use crate::span::Source;

/// The signal's name.
pub const NAME: &str = "outcome";

/// The signal and its source; `None` if no outcome was reported or judged. `of_session`: the outcome reported of the session or the
/// run, if this is its last trace.
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
    fn the_worse_of_what_is_reported_goes_before_the_judge() {
        let (one, half) = (Quanta(Quanta::ONE), Quanta(Quanta::ONE / 2));
        assert_eq!(score(None, None, None), None);
        assert_eq!(score(None, None, Some(half)), Some((half, Source::Judge)));
        assert_eq!(score(Some(true), None, Some(half)), Some((one, Source::Reported)));
        assert_eq!(score(Some(true), Some(false), None), Some((Quanta(0), Source::Reported)));
    }
}
