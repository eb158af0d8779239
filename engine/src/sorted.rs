//! A sorted list in blocks, whose memory is little more than that of its items, however many there are.
//!
//! The keys of items need not be in the list: the caller that looks for an item says how each of the others compares with it.

use std::cmp::Ordering;
use std::collections::VecDeque;

/// Most items of a block.
const BLOCK: usize = 256;

/// Items in an order, each once.
#[derive(Clone, Debug)]
pub(crate) struct Sorted<T> {
    // Invariant: no block is empty. Deques, as items are often removed from the front.
    blocks: Vec<VecDeque<T>>,
}

impl<T> Default for Sorted<T> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<T: Copy> Sorted<T> {
    /// All items, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.blocks.iter().flatten().copied()
    }

    /// The first item.
    pub(crate) fn first(&self) -> Option<T> {
        self.at(0, 0)
    }

    /// The items from the searched one on; `place` says how an item compares with it.
    pub(crate) fn from<'a>(
        &'a self,
        place: &dyn Fn(T) -> Ordering,
    ) -> impl Iterator<Item = T> + use<'a, T> {
        let (block, at) = self.seek(place);
        let blocks = self.blocks.get(block..).unwrap_or_default();
        blocks.iter().flatten().skip(at).copied()
    }

    /// Inserts an item in order, unless an equal one is there; returns whether it did.
    pub(crate) fn insert(&mut self, item: T, place: impl Fn(T) -> Ordering) -> bool {
        let (mut block, mut at) = self.seek(&place);
        if self.at(block, at).is_some_and(|found| place(found) == Ordering::Equal) {
            return false;
        }
        // Between two blocks, it is added at the end of the first if that has room.
        let before = block.checked_sub(1).and_then(|before| self.blocks.get(before));
        if let Some(before) = before.filter(|before| at == 0 && before.len() < BLOCK) {
            (block, at) = (block - 1, before.len());
        }
        match self.blocks.get_mut(block) {
            None => self.blocks.push(VecDeque::from([item])),
            Some(items) => {
                items.insert(at, item);
                if items.len() > BLOCK {
                    let rest = items.split_off(BLOCK / 2);
                    items.shrink_to_fit();
                    self.blocks.insert(block + 1, rest);
                }
            }
        }
        true
    }

    /// Removes an item; returns whether it was there.
    pub(crate) fn remove(&mut self, place: impl Fn(T) -> Ordering) -> bool {
        let (block, at) = self.seek(&place);
        if self.at(block, at).is_none_or(|found| place(found) != Ordering::Equal) {
            return false;
        }
        let length = |at: usize| self.blocks.get(at).map_or(BLOCK, VecDeque::len);
        let (here, next) = (length(block) - 1, length(block + 1));
        if let Some(items) = self.blocks.get_mut(block) {
            items.remove(at);
        }
        if here == 0 {
            self.blocks.remove(block);
        } else if here + next <= BLOCK / 2 {
            let next = self.blocks.remove(block + 1);
            if let Some(items) = self.blocks.get_mut(block) {
                items.extend(next);
            }
        }
        true
    }

    fn at(&self, block: usize, at: usize) -> Option<T> {
        self.blocks.get(block)?.get(at).copied()
    }

    /// The first item that is not before the searched one: its block, and its index in the block.
    fn seek(&self, place: impl Fn(T) -> Ordering) -> (usize, usize) {
        let before = |item: &T| place(*item) == Ordering::Less;
        if self.first().is_none_or(|first| !before(&first)) {
            return (0, 0);
        }
        let block = self.blocks.partition_point(|block| block.back().is_some_and(before));
        let at = self.blocks.get(block).map_or(0, |block| block.partition_point(before));
        (block, at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_set_holds(
            steps in prop::collection::vec((any::<bool>(), 0_u32..2_000), 0..3_000),
            from in 0_u32..2_000,
        ) {
            let (mut sorted, mut set) = (Sorted::default(), BTreeSet::new());
            for (insert, item) in steps {
                let place = |other: u32| other.cmp(&item);
                if insert {
                    prop_assert_eq!(sorted.insert(item, place), set.insert(item));
                } else {
                    prop_assert_eq!(sorted.remove(place), set.remove(&item));
                }
            }
            prop_assert!(sorted.iter().eq(set.iter().copied()));
            prop_assert!(sorted.from(&|other| other.cmp(&from)).eq(set.range(from..).copied()));
            prop_assert!(sorted.blocks.iter().all(|block| (1..=BLOCK).contains(&block.len())));
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_blocks() {
        let mut sorted = Sorted::default();
        for item in 0..10_000_u32 {
            sorted.insert(item, |other: u32| other.cmp(&item));
        }
        assert!(sorted.blocks.len() <= 10_000 / BLOCK + 1);
    }
}
