//! How long traces have been open.

use std::collections::BTreeMap;

use crate::span::Timestamp;

/// Open traces by the minute in which they opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Ages(BTreeMap<u64, usize>);

/// Ages by which open traces are shown, youngest first, each with the minutes after which a trace is older.
pub const AGES: [(&str, u64); 5] =
    [("under_1m", 1), ("1m_to_5m", 5), ("5m_to_15m", 15), ("15m_to_1h", 60), ("over_1h", u64::MAX)];

impl Ages {
    /// Adds a trace that opened at this time.
    pub(super) fn add(&mut self, opened: Timestamp) {
        *self.0.entry(minute(opened)).or_default() += 1;
    }

    /// Removes a trace that opened at this time.
    pub(super) fn remove(&mut self, opened: Timestamp) {
        if let Some(traces) = self.0.get_mut(&minute(opened)) {
            *traces -= 1;
            if *traces == 0 {
                self.0.remove(&minute(opened));
            }
        }
    }

    /// The number of open traces of each of [`AGES`].
    pub(super) fn at(&self, now: Timestamp) -> [usize; AGES.len()] {
        let mut counts = [0; AGES.len()];
        for (opened, traces) in &self.0 {
            let age = minute(now).saturating_sub(*opened);
            let place = AGES.iter().position(|(_, older)| age < *older);
            counts[place.unwrap_or(AGES.len() - 1)] += traces;
        }
        counts
    }
}

fn minute(time: Timestamp) -> u64 {
    time.0 / 60_000_000_000
}
