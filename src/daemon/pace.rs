//! Decides when a stage sends its updates, which it could do at any time.

use std::time::Duration;

use crate::engine::span::Timestamp;

/// The pace of updates: at once after a pause, otherwise so rarely that sending them takes a small part of the time.
#[derive(Debug, Default)]
pub(super) struct Pace {
    // Whether anything may have changed since the last updates.
    waits: bool,
    // Nothing is sent before this time.
    next: Timestamp,
}

impl Pace {
    /// Notes that something may have changed.
    pub(super) fn note(&mut self) {
        self.waits = true;
    }

    /// When to send updates; `None` if there are none.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.waits.then_some(self.next)
    }

    /// Whether it is time to send updates.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Notes that all updates were sent by `ended`, which took `took`. That excludes the turns of other tasks, which take far
    /// longer on a busy core.
    pub(super) fn note_round(&mut self, took: Duration, ended: Timestamp) {
        let pause = took.saturating_mul(SHARE).clamp(LEAST, MOST);
        *self = Self { waits: false, next: ended.after(pause) };
    }
}

/// The length of the pause after updates, as a multiple of the time that they took.
const SHARE: u32 = 20;

/// The bounds of the pause; a gauge may lag by the upper one, which is well below any scrape interval.
const LEAST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn the_first_word_after_a_pause_is_said_at_once_and_the_next_waits() {
        let mut pace = Pace::default();
        assert_eq!(pace.due(), None);
        pace.note();
        let now = Timestamp(1_000 * MILLISECOND);
        assert!(pace.is_due(now));
        pace.note_round(Duration::ZERO, now);
        assert_eq!(pace.due(), None);
        pace.note();
        assert!(!pace.is_due(now));
        assert_eq!(pace.due(), Some(now.after(LEAST)));
    }

    #[test]
    fn what_takes_long_is_said_less_often_but_never_too_seldom() {
        let mut pace = Pace::default();
        for (took, pause) in [(2, 40), (1_000, 500)] {
            let ended = Timestamp(took * MILLISECOND);
            pace.note_round(Duration::from_millis(took), ended);
            pace.note();
            assert_eq!(pace.due(), Some(Timestamp((took + pause) * MILLISECOND)));
        }
    }
}
