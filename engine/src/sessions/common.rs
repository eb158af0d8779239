//! Parts that are equal in many trace records or sessions of a shard, each stored once.

use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use super::record::{Call, Course, TraceRecord};
use super::scoring::{Signals, TraceScores};
use super::verdict::Gates;
use crate::facts::OutputDigest;
use crate::hash::FixedMap;
use crate::math::words::Vocabulary;

/// Number of known parts at which all are forgotten; records keep the parts that they have.
const MOST: usize = 4_096;

/// A course or a score with more entries is assumed to be unique to its trace, and not shared.
const LARGEST: usize = 64;

/// What the records and the sessions of a shard share.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    courses: Pool<Course>,
    scores: Pool<TraceScores>,
    gates: Pool<Gates>,
    words: Vocabulary,
    // The scores of a record before it is scored.
    unscored: Arc<TraceScores>,
    // The gates of a session before a trace of it is done.
    no_gates: Arc<Gates>,
    // Buffers for the calls, the signals and the gates of the next record, which are mostly known already.
    calls: Vec<Call>,
    signals: Signals,
    next_gates: Gates,
}

#[derive(Clone, Debug)]
struct Pool<T>(FixedMap<Arc<T>, ()>);

impl Common {
    /// An empty list for the calls of a course.
    pub(super) fn room_for_calls(&mut self) -> Vec<Call> {
        mem::take(&mut self.calls)
    }

    /// An empty list for signals.
    pub(super) fn room_for_signals(&mut self) -> Signals {
        mem::take(&mut self.signals)
    }

    /// This course, shared with records that have an equal one.
    pub(super) fn course(&mut self, mut course: Course) -> Arc<Course> {
        if let Some(known) = self.courses.known(&course) {
            course.calls.clear();
            course.calls.shrink_to(LARGEST);
            self.calls = course.calls;
            return known;
        }
        course.calls.shrink_to_fit();
        let parts = parts_of(&course);
        self.courses.add(Arc::new(course), parts)
    }

    /// These scores, shared with records that have equal ones.
    pub(super) fn scored(&mut self, mut scored: TraceScores) -> Arc<TraceScores> {
        let known = self.scores.known(&scored).unwrap_or_else(|| {
            let (exact, parts) = (scored.clone(), scored.signals.len());
            self.scores.add(Arc::new(exact), parts)
        });
        scored.signals.clear();
        self.signals = scored.signals;
        known
    }

    /// A copy of these gates that can be changed.
    pub(super) fn room_for_gates(&mut self, gates: &Gates) -> Gates {
        let mut next = mem::take(&mut self.next_gates);
        next.clear();
        next.extend(gates.iter().map(|(name, gate)| (name.clone(), *gate)));
        next
    }

    /// These gates, shared with sessions that have equal ones.
    pub(super) fn gates(&mut self, gates: Gates) -> Arc<Gates> {
        let known = self.gates.known(&gates).unwrap_or_else(|| {
            let all = gates.iter().map(|(name, gate)| (name.clone(), *gate)).collect();
            self.gates.add(Arc::new(all), gates.len())
        });
        self.next_gates = gates;
        known
    }

    /// Shares gates after deserialisation.
    pub(super) fn share_gates(&mut self, gates: &Arc<Gates>) -> Arc<Gates> {
        self.gates.share(Arc::clone(gates), gates.len())
    }

    /// The gates of a session without done traces.
    pub(super) fn no_gates(&self) -> Arc<Gates> {
        Arc::clone(&self.no_gates)
    }

    /// The scores of a record that is not scored yet.
    pub(super) fn unscored(&self) -> Arc<TraceScores> {
        Arc::clone(&self.unscored)
    }

    /// This digest, whose words are shared with those of other answers.
    pub(super) fn output(&mut self, mut digest: OutputDigest) -> OutputDigest {
        self.words.list(&mut digest.tokens);
        digest
    }

    /// Shares the parts of a deserialised record with others.
    pub(super) fn share(&mut self, record: &mut TraceRecord) {
        record.words_mut().into_iter().for_each(|words| self.words.list(words));
        record.course = self.courses.share(Arc::clone(&record.course), parts_of(&record.course));
        record.scored = self.scores.share(Arc::clone(&record.scored), record.scored.signals.len());
    }
}

fn parts_of(course: &Course) -> usize {
    course.calls.len() + course.models.len()
}

impl<T: Eq + Hash> Pool<T> {
    /// The item that is equal to this one, if there is one.
    fn known(&self, item: &T) -> Option<Arc<T>> {
        self.0.get_key_value(item).map(|(known, ())| Arc::clone(known))
    }

    fn share(&mut self, item: Arc<T>, parts: usize) -> Arc<T> {
        self.known(&item).unwrap_or_else(|| self.add(item, parts))
    }

    fn add(&mut self, item: Arc<T>, parts: usize) -> Arc<T> {
        if parts <= LARGEST {
            if self.0.len() >= MOST {
                self.0.clear();
            }
            self.0.insert(Arc::clone(&item), ());
        }
        item
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(FixedMap::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_equal_is_kept_once_and_no_more_than_so_many_are_known() {
        let mut pool = Pool::default();
        let mut of = |number: usize, parts| pool.share(Arc::new(number), parts);
        let first = of(7, 1);
        assert!(Arc::ptr_eq(&first, &of(7, 1)));
        for number in 0..2 * MOST {
            assert_eq!(*of(number, 1), number);
        }
        assert!(!Arc::ptr_eq(&of(usize::MAX, LARGEST + 1), &of(usize::MAX, LARGEST + 1)));
        assert_eq!(of(7, 1), first);
        assert!(pool.0.len() <= MOST);
    }
}
