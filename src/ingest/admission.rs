//! One budget of bytes for everything that is being read, decoded or applied, over all transports.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Overloaded, Refusal};

/// When a sender that found no room should come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The budget. Clones share it.
#[derive(Clone, Debug)]
pub struct Admission {
    max: usize,
    used: Arc<AtomicUsize>,
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Admitted {
    bytes: usize,
    admission: Admission,
}

/// Why there is no share.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NotAdmitted {
    /// Not even an idle daemon would have that much.
    Never(Refusal),
    /// Others have it at the moment.
    Later(Overloaded),
}

impl Admission {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, used: Arc::default() }
    }

    /// A share of nothing yet.
    pub fn open(&self) -> Admitted {
        Admitted { bytes: 0, admission: self.clone() }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Admitted {
    /// Makes the share larger.
    ///
    /// # Errors
    ///
    /// Fails, and leaves the share as it is, if there is not enough left.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NotAdmitted> {
        let max = self.admission.max;
        if self.bytes.saturating_add(bytes) > max {
            return Err(NotAdmitted::Never(Refusal::TooLarge {
                what: "the decoded request",
                max,
                key: "ingest.max_decoded_bytes",
            }));
        }
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        match self.admission.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => {
                self.bytes += bytes;
                Ok(())
            }
            Err(_) => Err(NotAdmitted::Later(Overloaded { retry_after: RETRY_AFTER })),
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let admission = Admission::new(10);
        let mut first = admission.open();
        first.grow(6).unwrap();
        let mut second = admission.open();
        assert!(matches!(second.grow(5), Err(NotAdmitted::Later(_))));
        assert!(matches!(second.grow(11), Err(NotAdmitted::Never(_))));
        drop(first);
        second.grow(5).unwrap();
        second.grow(5).unwrap();
        assert_eq!(admission.used(), 10);
        drop(second);
        assert_eq!(admission.used(), 0);
    }
}
