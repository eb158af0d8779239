//! Whether the judge is unavailable, and how many traces can wait for it.
//!
//! ```text
//! most = deadline * concurrency / time that a trace takes
//! ```
//!
//! A trace that waits behind that many is not judged in time. A trace is assumed to need as long as the last ones needed, and no
//! less than the oldest in progress has taken: so a silent endpoint is known to be slow before its first call times out.

use std::time::Duration;

use super::options::JudgeOptions;
use crate::engine::span::Timestamp;

/// The pace of the judge.
#[derive(Debug)]
pub(super) struct JudgeThroughput {
    /// Why no call would be made, and when that was noticed; `None` if one may.
    pub(super) away: Option<(&'static str, Timestamp)>,
    deadline_nanos: u64,
    concurrency: usize,
    // When the judgement of each trace in progress began.
    begun: Vec<Timestamp>,
    // How long a trace takes; `None` before the first.
    trace_nanos: Option<u64>,
}

impl JudgeThroughput {
    /// The pace of a judge before its first trace.
    pub(super) fn new(options: &JudgeOptions) -> Self {
        Self {
            away: None,
            deadline_nanos: nanos(options.deadline),
            concurrency: options.concurrency.max(1),
            begun: Vec::new(),
            trace_nanos: None,
        }
    }

    /// Notes that the judgement of a trace begins.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.begun.push(now);
    }

    /// Notes that a trace is judged whose judgement began at `begun`.
    pub(super) fn end(&mut self, begun: Timestamp, now: Timestamp) {
        let Some(at) = self.begun.iter().position(|at| *at == begun) else { return };
        self.begun.swap_remove(at);
        let took = now.0.saturating_sub(begun.0);
        // A moving average, in which the last traces count most.
        self.trace_nanos = Some(self.trace_nanos.map_or(took, |before| before / 4 * 3 + took / 4));
    }

    /// How many traces can wait at `now` and be judged in time; at least one.
    pub(super) fn max_useful(&self, now: Timestamp) -> usize {
        let oldest = self.begun.iter().map(|begun| now.0.saturating_sub(begun.0)).max();
        let takes = oldest.max(self.trace_nanos).unwrap_or(0).max(1);
        let each = usize::try_from(self.deadline_nanos / takes).unwrap_or(usize::MAX);
        each.saturating_mul(self.concurrency).max(1)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(second: u64) -> Timestamp {
        Timestamp(second * SECOND)
    }

    fn pace() -> JudgeThroughput {
        let deadline = Duration::from_secs(300);
        JudgeThroughput::new(&JudgeOptions { deadline, concurrency: 4, ..JudgeOptions::default() })
    }

    #[test]
    fn as_many_may_wait_as_are_judged_in_time() {
        let mut pace = pace();
        assert!(pace.max_useful(at(0)) > 1_000_000, "nothing is known");
        pace.begin(at(0));
        pace.end(at(0), at(3));
        assert_eq!(pace.max_useful(at(3)), 400);
        pace.begin(at(3));
        pace.end(at(3), at(10));
        assert_eq!(pace.max_useful(at(10)), 300, "a quarter of 7 s and three of 3 s");
        pace.end(at(3), at(90));
        assert_eq!(pace.max_useful(at(90)), 300, "nothing that is not out ends");
    }

    #[test]
    fn a_silent_judge_is_known_to_be_slow_while_it_is_silent() {
        let mut pace = pace();
        pace.begin(at(0));
        let known: Vec<usize> = [1, 10, 30, 300, 3_000].map(|now| pace.max_useful(at(now))).into();
        assert_eq!(known, [1_200, 120, 40, 4, 1]);
    }
}
