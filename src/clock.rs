//! The only clock: wall-clock time that never goes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::span::Timestamp;

/// Reads the time; clones share what they have read, so time goes forward for all of them.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    // Invariant: the greatest time that was handed out, Unix nanoseconds.
    last: Arc<AtomicU64>,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// The time, never before one that was read earlier, even if the system's clock was set back.
    pub fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
        let system = SystemTime::now();
        let since = system.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Nanoseconds fit until the year 2554.
        self.forward(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time is not before `at`, whatever the system's clock says: something was recorded then.
    pub fn not_before(&self, at: Timestamp) {
        self.forward(at.0);
    }

    /// How long it is until `at`; zero if that is past.
    pub fn until(&self, at: Timestamp) -> Duration {
        Duration::from_nanos(at.0.saturating_sub(self.now().0))
    }

    fn forward(&self, nanos: u64) -> Timestamp {
        Timestamp(self.last.fetch_max(nanos, Ordering::Relaxed).max(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let clock = Clock::system();
        let copy = clock.clone();
        assert_eq!(clock.forward(5), Timestamp(5));
        assert_eq!(copy.forward(3), Timestamp(5));
        assert_eq!(clock.forward(7), Timestamp(7));
    }

    #[test]
    fn what_is_past_is_due() {
        let clock = Clock::system();
        let now = clock.now();
        assert!(now > Timestamp(1_700_000_000_000_000_000));
        assert_eq!(clock.until(now), Duration::ZERO);
        assert!(clock.until(Timestamp(now.0 + 60_000_000_000)) > Duration::from_secs(1));
    }
}
