//! How long an instance may believe that what it owns is still its own.
//!
//! The brokers give its partitions to others when they have not heard of it for the session timeout. One that was stopped
//! and goes on does not know that yet; so what it owns counts only as long as it was in touch with them within that time. A
//! lapse lasts until the worker has given everything up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::span::Timestamp;

/// Shared by a worker and those who ask; clones are the same lease.
#[derive(Clone, Debug)]
pub struct Lease {
    clock: Clock,
    patience: Duration,
    touched: Arc<AtomicU64>,
    lapsed: Arc<AtomicBool>,
}

impl Lease {
    /// A lease that lapses after so long a silence.
    pub(super) fn new(clock: Clock, patience: Duration) -> Self {
        let touched = Arc::new(AtomicU64::new(clock.now().0));
        Self { clock, patience, touched, lapsed: Arc::default() }
    }

    /// The brokers were heard of. A lapse stays.
    pub(super) fn touch(&self) {
        if !self.has_lapsed() {
            self.touched.store(self.clock.now().0, Ordering::SeqCst);
        }
    }

    /// Whether it has lapsed and nothing was given up since.
    pub(super) fn has_lapsed(&self) -> bool {
        let touched = Timestamp(self.touched.load(Ordering::SeqCst));
        if touched.after(self.patience) < self.clock.now() {
            self.lapsed.store(true, Ordering::SeqCst);
        }
        self.lapsed.load(Ordering::SeqCst)
    }

    /// Everything was given up.
    pub(super) fn renew(&self) {
        self.touched.store(self.clock.now().0, Ordering::SeqCst);
        self.lapsed.store(false, Ordering::SeqCst);
    }

    /// Whether what is owned is to be shown.
    pub fn holds(&self) -> bool {
        !self.has_lapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Hand;

    #[test]
    fn a_lapse_lasts_until_everything_was_given_up() {
        let (clock, hand) = Hand::clock(1_800_000_000);
        let lease = Lease::new(clock, Duration::from_secs(45));
        assert!(lease.holds());
        hand.step(3_600_000);
        assert!(lease.holds(), "the wall clock has no say in it");
        hand.pass(60);
        assert!(!lease.holds());
        lease.touch();
        assert!(!lease.holds());
        lease.renew();
        assert!(lease.holds());
    }
}
