//! Traces that left their session, for which updates may still arrive.

use serde::{Deserialize, Serialize};

use super::newest::Newest;
use super::tally::Tally;
use crate::tenants::TraceKey;

/// Why a trace left its session.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Fate {
    /// Its session was evicted: the trace is final.
    Evicted,
    /// It moved to another session, which must not count again what this tally has counted.
    Moved(Box<Tally>),
}

/// The last traces that left.
pub(super) type Departed = Newest<TraceKey, Fate>;

impl Departed {
    /// Whether the trace left because its session was evicted.
    pub(super) fn is_evicted(&self, trace: TraceKey) -> bool {
        matches!(self.get(&trace), Some(Fate::Evicted))
    }

    /// What a moved trace has counted. The trace stays in the table: an assemble stage that was restored from an earlier state may
    /// send it to its former session once more.
    pub(super) fn arrive(&self, trace: TraceKey) -> Option<Tally> {
        match self.get(&trace)? {
            Fate::Evicted => None,
            Fate::Moved(tally) => Some(Tally::clone(tally)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::TraceId;
    use crate::tenants::Shares;

    #[test]
    fn what_a_trace_has_counted_stays_known_when_it_has_arrived() {
        let mut departed = Departed::new(1);
        let trace = TraceKey::from(TraceId([1; 16]));
        departed.insert(trace, Fate::Moved(Box::default()), &Shares::default());
        assert!(departed.arrive(trace).is_some());
        assert!(departed.arrive(trace).is_some() && !departed.is_evicted(trace));
        departed.insert(trace, Fate::Evicted, &Shares::default());
        assert!(departed.arrive(trace).is_none() && departed.is_evicted(trace));
    }
}
