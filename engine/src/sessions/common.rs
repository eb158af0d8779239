//! Parts that many trace records of a shard have in common, each kept once.

use std::hash::Hash;
use std::sync::Arc;

use super::record::{Course, TraceRecord};
use super::scoring::Scored;
use crate::hash::FixedMap;

/// How many parts are known at most; then all are forgotten, and records keep those that they have.
const MOST: usize = 4_096;

/// A course or a score with more entries is taken for that of a single trace, and not shared.
const LARGEST: usize = 64;

/// What the records of a shard share.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    courses: Pool<Course>,
    scores: Pool<Scored>,
}

#[derive(Clone, Debug)]
struct Pool<T>(FixedMap<Arc<T>, ()>);

impl Common {
    /// This course, shared with records that have the same.
    pub(super) fn course(&mut self, course: Course) -> Arc<Course> {
        let parts = parts_of(&course);
        self.courses.of(course, parts)
    }

    /// These scores, shared with records that have the same.
    pub(super) fn scored(&mut self, scored: Scored) -> Arc<Scored> {
        let parts = scored.signals.len();
        self.scores.of(scored, parts)
    }

    /// Makes a deserialised record share its parts with others.
    pub(super) fn share(&mut self, record: &mut TraceRecord) {
        record.course = self.courses.share(Arc::clone(&record.course), parts_of(&record.course));
        record.scored = self.scores.share(Arc::clone(&record.scored), record.scored.signals.len());
    }
}

fn parts_of(course: &Course) -> usize {
    course.calls.len() + course.models.len()
}

impl<T: Eq + Hash> Pool<T> {
    fn of(&mut self, item: T, parts: usize) -> Arc<T> {
        if let Some((known, ())) = self.0.get_key_value(&item) {
            return Arc::clone(known);
        }
        self.add(Arc::new(item), parts)
    }

    /// The same for an item that is already in an `Arc`.
    fn share(&mut self, item: Arc<T>, parts: usize) -> Arc<T> {
        match self.0.get_key_value(&*item) {
            Some((known, ())) => Arc::clone(known),
            None => self.add(item, parts),
        }
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
        let first = pool.of(7, 1);
        assert!(Arc::ptr_eq(&first, &pool.of(7, 1)));
        for number in 0..2 * MOST {
            assert_eq!(*pool.of(number, 1), number);
        }
        assert!(!Arc::ptr_eq(&pool.of(usize::MAX, LARGEST + 1), &pool.of(usize::MAX, LARGEST + 1)));
        assert!(pool.0.len() <= MOST);
        assert_eq!(pool.of(7, 1), first);
    }
}
