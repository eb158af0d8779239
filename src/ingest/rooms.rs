//! Lists of spans that are reused, as the kernel has to clear new memory.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::span::Span;

/// Emptied lists of spans of earlier batches. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Rooms(Arc<Mutex<Vec<Vec<Span>>>>);

/// The most lists that are kept: as many as clients mostly have requests under way.
const MOST: usize = 8;

/// The fewest spans that a kept list has room for: smaller lists are created as fast. A list of a larger request would keep much
/// memory.
const LEAST_SPANS: usize = 64;
const MOST_SPANS: usize = 1_024;

impl Rooms {
    /// An empty list with room for `spans` spans.
    pub(super) fn take(&self, spans: usize) -> Vec<Span> {
        let is_kept = (LEAST_SPANS..=MOST_SPANS).contains(&spans);
        let kept = is_kept.then(|| self.kept(Vec::pop)).flatten();
        let mut list = kept.unwrap_or_default();
        list.reserve_exact(spans);
        list
    }

    /// Keeps the list of a batch that was applied, if there is room for it.
    pub fn give_back(&self, mut spans: Vec<Span>) {
        if (LEAST_SPANS..=MOST_SPANS).contains(&spans.capacity()) {
            spans.clear();
            self.kept(|lists| {
                if lists.len() < MOST {
                    lists.push(spans);
                }
            });
        }
    }

    fn kept<T>(&self, with: impl FnOnce(&mut Vec<Vec<Span>>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_used_again_and_few_are_kept() {
        let rooms = Rooms::default();
        let mut list = rooms.take(100);
        list.push(Span::default());
        let address = list.as_ptr();
        rooms.give_back(list);
        let again = rooms.take(80);
        assert!(again.is_empty() && again.as_ptr() == address);
        for spans in [1, LEAST_SPANS - 1, MOST_SPANS + 1] {
            rooms.give_back(Vec::with_capacity(spans));
        }
        assert_eq!(rooms.kept(|lists| lists.len()), 0);
        (0..=MOST).for_each(|_| rooms.give_back(Vec::with_capacity(MOST_SPANS)));
        assert_eq!(rooms.kept(|lists| lists.len()), MOST);
        // A request of one span does not take one of them.
        assert_eq!((rooms.take(1).capacity(), rooms.kept(|lists| lists.len())), (1, MOST));
    }
}
