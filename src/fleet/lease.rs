//! The lease: how long an instance may rely on owning its partitions.
//!
//! The brokers give the partitions of an instance to others when they have not heard from it for the session timeout. An instance
//! that was paused and continues does not know that yet. So it owns its partitions only while its last contact with the brokers is
//! less than that time ago. A lapse lasts until the worker has given up all partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::span::Timestamp;

/// The lease of a worker; clones share it.
#[derive(Clone, Debug)]
pub struct Lease {
    clock: Clock,
    patience: Duration,
    touched: Arc<AtomicU64>,
    lapsed: Arc<AtomicBool>,
}

impl Lease {
    /// A lease that lapses `patience` after the last contact.
    pub(super) fn new(clock: Clock, patience: Duration) -> Self {
        let touched = Arc::new(AtomicU64::new(clock.now().0));
        Self { clock, patience, touched, lapsed: Arc::default() }
    }

    /// Notes contact with the brokers; a lapse stays.
    pub(super) fn touch(&self) {
        if !self.has_lapsed() {
            self.touched.store(self.clock.now().0, Ordering::SeqCst);
        }
    }

    /// Whether it has lapsed and was not renewed since.
    pub(super) fn has_lapsed(&self) -> bool {
        let touched = Timestamp(self.touched.load(Ordering::SeqCst));
        if touched.after(self.patience) < self.clock.now() {
            self.lapsed.store(true, Ordering::SeqCst);
        }
        self.lapsed.load(Ordering::SeqCst)
    }

    /// Whether enough of it has passed that contact should be sought.
    pub(super) fn is_old(&self) -> bool {
        let touched = Timestamp(self.touched.load(Ordering::SeqCst));
        touched.after(self.patience / 4) < self.clock.now()
    }

    /// Restarts the lease, once all partitions are given up.
    pub(super) fn renew(&self) {
        self.touched.store(self.clock.now().0, Ordering::SeqCst);
        self.lapsed.store(false, Ordering::SeqCst);
    }

    /// Whether the lease holds, so that agents may be shown.
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
        assert!(!lease.is_old());
        hand.pass(12);
        assert!(lease.is_old() && lease.holds());
        hand.pass(48);
        assert!(!lease.holds());
        lease.touch();
        assert!(!lease.holds());
        lease.renew();
        assert!(lease.holds());
    }
}
