//! Numbers in order, with quick access to the sum of the greatest of them.
//!
//! A few numbers are one sorted list; many are blocks of up to [`FULL`] with the sum of each, so that adding a number costs a
//! search over the blocks and a move within one, and the sum of the greatest k costs a scan of the blocks.

use serde::{Deserialize, Serialize, Serializer};

/// Most numbers in a block; a larger one is split.
const FULL: usize = 512;

/// Number of numbers below which a block is merged with a neighbour, if both fit into one.
const SPARSE: usize = FULL / 4;

/// A multiset of numbers; serialised as their list.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Vec<i64>")]
pub enum Ordered {
    /// A few, ascending.
    SmallMap(Vec<i64>),
    /// Many.
    Many(Box<Blocks>),
}

/// Many numbers in blocks.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    len: usize,
    // Invariant: ascending, within and over blocks; none empty.
    blocks: Vec<Vec<i64>>,
    /// The sum of each block.
    sums: Vec<i128>,
}

impl Ordered {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        match self {
            Self::SmallMap(numbers) => numbers.len(),
            Self::Many(blocks) => blocks.len,
        }
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a number.
    pub fn insert(&mut self, number: i64) {
        match self {
            Self::SmallMap(numbers) => {
                // Most multisets have few numbers, and there are many multisets.
                if numbers.len() == numbers.capacity() {
                    numbers.reserve_exact(1 + numbers.len() / 2);
                }
                numbers.insert(numbers.partition_point(|other| *other < number), number);
                if numbers.len() > SPARSE {
                    *self = Self::Many(Box::new(Blocks::of(std::mem::take(numbers))));
                }
            }
            Self::Many(blocks) => blocks.insert(number),
        }
    }

    /// Removes a number once; returns whether it was there.
    pub fn remove(&mut self, number: i64) -> bool {
        match self {
            Self::SmallMap(numbers) => {
                let place = numbers.binary_search(&number);
                place.map(|place| numbers.remove(place)).is_ok()
            }
            Self::Many(blocks) => {
                let removed = blocks.remove(number);
                if blocks.len < SPARSE / 2 {
                    *self = Self::SmallMap(self.iter().collect());
                }
                removed
            }
        }
    }

    /// The greatest number.
    pub fn greatest(&self) -> Option<i64> {
        match self {
            Self::SmallMap(numbers) => numbers.last().copied(),
            Self::Many(blocks) => blocks.blocks.last()?.last().copied(),
        }
    }

    /// The sum of the `k` greatest, or of all if there are fewer.
    pub fn sum_of_greatest(&self, k: usize) -> i128 {
        match self {
            Self::SmallMap(numbers) => {
                numbers.iter().rev().take(k).map(|one| i128::from(*one)).sum()
            }
            Self::Many(blocks) => blocks.sum_of_greatest(k),
        }
    }

    /// All numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = i64> {
        let (few, many): (&[i64], &[Vec<i64>]) = match self {
            Self::SmallMap(numbers) => (numbers, &[]),
            Self::Many(blocks) => (&[], &blocks.blocks),
        };
        few.iter().chain(many.iter().flatten()).copied()
    }
}

impl Default for Ordered {
    fn default() -> Self {
        Self::SmallMap(Vec::new())
    }
}

impl Blocks {
    /// One block of these numbers, which must be ascending and not empty.
    fn of(numbers: Vec<i64>) -> Self {
        let sum = numbers.iter().map(|number| i128::from(*number)).sum();
        Self { len: numbers.len(), blocks: vec![numbers], sums: vec![sum] }
    }

    /// Adds a number.
    fn insert(&mut self, number: i64) {
        self.len += 1;
        if self.blocks.is_empty() {
            self.blocks.push(vec![number]);
            self.sums.push(i128::from(number));
            return;
        }
        let at = self.block_of(number).min(self.blocks.len() - 1);
        let block = &mut self.blocks[at];
        let place = block.partition_point(|other| *other < number);
        block.insert(place, number);
        self.sums[at] += i128::from(number);
        if block.len() > FULL {
            let upper = block.split_off(FULL / 2);
            let sum = upper.iter().map(|number| i128::from(*number)).sum();
            self.sums[at] -= sum;
            self.blocks.insert(at + 1, upper);
            self.sums.insert(at + 1, sum);
        }
    }

    /// Removes a number once; returns whether it was there.
    fn remove(&mut self, number: i64) -> bool {
        let at = self.block_of(number);
        let Some(block) = self.blocks.get_mut(at) else { return false };
        let Ok(place) = block.binary_search(&number) else { return false };
        block.remove(place);
        self.len -= 1;
        self.sums[at] -= i128::from(number);
        if block.is_empty() {
            self.blocks.remove(at);
            self.sums.remove(at);
        } else if block.len() < SPARSE {
            self.join(at.saturating_sub(1));
        }
        true
    }

    /// The sum of the `k` greatest, or of all if there are fewer.
    fn sum_of_greatest(&self, k: usize) -> i128 {
        let (mut missing, mut total) = (k, 0);
        for (block, sum) in self.blocks.iter().zip(&self.sums).rev() {
            if block.len() > missing {
                let tail = block.iter().rev().take(missing);
                return total + tail.map(|number| i128::from(*number)).sum::<i128>();
            }
            missing -= block.len();
            total += sum;
        }
        total
    }

    /// The first block whose last number is not less than this one.
    fn block_of(&self, number: i64) -> usize {
        self.blocks.partition_point(|block| block.last().is_some_and(|last| *last < number))
    }

    /// Merges a block with the next, if there is one and both fit into one.
    fn join(&mut self, at: usize) {
        let fits = |next: &Vec<i64>| self.blocks[at].len() + next.len() <= FULL;
        if self.blocks.get(at + 1).is_some_and(fits) {
            let next = self.blocks.remove(at + 1);
            self.blocks[at].extend(next);
            let sum = self.sums.remove(at + 1);
            self.sums[at] += sum;
        }
    }
}

/// Equal numbers make equal multisets, in either form.
impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Ordered {}

impl From<Vec<i64>> for Ordered {
    fn from(numbers: Vec<i64>) -> Self {
        let mut ordered = Self::default();
        numbers.into_iter().for_each(|number| ordered.insert(number));
        ordered
    }
}

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_sorted_list(
            steps in proptest::collection::vec((any::<bool>(), -40..400_i64), 0..4_000), k in 0..3_000_usize,
        ) {
            let (mut ordered, mut list) = (Ordered::default(), Vec::new());
            for (adds, number) in steps {
                // More come than go.
                if adds || number % 4 > 0 {
                    ordered.insert(number);
                    list.push(number);
                } else {
                    let held = list.iter().position(|other| *other == number);
                    prop_assert_eq!(ordered.remove(number), held.is_some());
                    held.into_iter().for_each(|at| { list.swap_remove(at); });
                }
            }
            list.sort_unstable();
            prop_assert_eq!(ordered.iter().collect::<Vec<_>>(), list.clone());
            prop_assert_eq!(ordered.greatest(), list.last().copied());
            let sum: i128 = list.iter().rev().take(k).map(|number| i128::from(*number)).sum();
            prop_assert_eq!(ordered.sum_of_greatest(k), sum);
            for number in list {
                prop_assert!(ordered.remove(number));
            }
            prop_assert!(ordered.is_empty() && matches!(ordered, Ordered::SmallMap(_)));
        }
    }

    #[test]
    fn blocks_that_shrink_are_joined() {
        let mut ordered = Ordered::default();
        (0..10_000).for_each(|number| ordered.insert(number));
        let blocks = |ordered: &Ordered| match ordered {
            Ordered::SmallMap(_) => 0,
            Ordered::Many(blocks) => blocks.blocks.len(),
        };
        assert!(blocks(&ordered) > 20);
        (0..10_000).filter(|number| number % 50 > 0).for_each(|number| {
            assert!(ordered.remove(number));
        });
        assert_eq!(ordered.len(), 200);
        assert!((1..4).contains(&blocks(&ordered)), "{}", blocks(&ordered));
    }
}
