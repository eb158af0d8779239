//! One budget of bytes for all requests in flight, over all transports.
//!
//! A request takes room for its body while it is read, then for what decoding it allocates, and returns all of it when its batch
//! has been applied. Requests wait in [`super::entrance`]; none waits here, so nothing can deadlock: a request that finds no room
//! is answered at once, and its sender retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Overloaded, Refusal};

/// The budget; clones share it.
#[derive(Clone, Debug)]
pub struct Admission {
    max_bytes: usize,
    // Invariant: the sum of what the permits hold; at most `max_bytes`.
    taken_bytes: Arc<AtomicUsize>,
}

/// A request's share of the budget, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Admission,
    bytes: usize,
}

/// Why there is no room.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NoRoom {
    /// The request needs more than the whole budget.
    Ever(Refusal),
    /// Other requests hold the budget at the moment.
    Yet(Overloaded),
}

/// The time after which a sender that found no room is asked to retry; requests in flight take less.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Admission {
    /// A budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, taken_bytes: Arc::default() }
    }

    /// The bytes held by requests in flight.
    pub fn taken_bytes(&self) -> usize {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// A permit that holds nothing yet.
    pub fn permit(&self) -> Permit {
        Permit { admission: self.clone(), bytes: 0 }
    }
}

impl Permit {
    /// Takes `bytes` more.
    ///
    /// # Errors
    ///
    /// Fails, and leaves the permit unchanged, if `bytes` is more than the whole budget or than what is left of it.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let max = self.admission.max_bytes;
        let wanted = self.bytes.saturating_add(bytes);
        if wanted > max {
            let what = "what the request decodes to";
            let key = "ingest.max_decoded_bytes";
            return Err(NoRoom::Ever(Refusal::TooLarge { what, max, key }));
        }
        self.admission
            .taken_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(bytes).filter(|taken| *taken <= max)
            })
            .map_err(|_| NoRoom::Yet(Overloaded::after(RETRY_AFTER)))?;
        self.bytes = wanted;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.taken_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_permit_took_comes_back() {
        let admission = Admission::new(100);
        let mut first = admission.permit();
        assert_eq!(first.grow(60), Ok(()));
        assert_eq!(first.grow(40), Ok(()));
        let mut second = admission.permit();
        assert!(matches!(second.grow(1), Err(NoRoom::Yet(_))));
        drop(first);
        assert_eq!(admission.taken_bytes(), 0);
        assert_eq!(second.grow(100), Ok(()));
    }

    #[test]
    fn more_than_the_whole_budget_never_fits() {
        let admission = Admission::new(100);
        let mut permit = admission.permit();
        assert!(matches!(permit.grow(101), Err(NoRoom::Ever(_))));
        assert_eq!(permit.grow(60), Ok(()));
        assert!(matches!(permit.grow(41), Err(NoRoom::Ever(_))));
        assert!(matches!(permit.grow(usize::MAX), Err(NoRoom::Ever(_))));
        assert_eq!(admission.taken_bytes(), 60);
    }

    proptest! {
        #[test]
        fn the_budget_is_the_sum_of_the_permits(sizes in prop::collection::vec(0..50usize, 0..40)) {
            let admission = Admission::new(200);
            let mut permits = Vec::new();
            for size in sizes {
                let mut permit = admission.permit();
                if permit.grow(size).is_ok() {
                    permits.push(permit);
                } else {
                    permits.pop();
                }
                let held: usize = permits.iter().map(|permit| permit.bytes).sum();
                prop_assert_eq!(admission.taken_bytes(), held);
                prop_assert!(held <= 200);
            }
        }
    }
}
