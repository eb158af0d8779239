//! Outcomes by confidence (a level each), in blocks: most questions about all levels are answered by the sums of blocks.
//!
//! A block has the sums of its runs and of its won pairs. So a change costs a pass over its own block, all pairs cost a pass over
//! the blocks, and a walk that stops at a hundred places reads at most a hundred blocks.

use super::outcome::Outcomes;
use crate::math::Quanta;

/// Most levels in a block; a larger one is split.
const FULL: usize = 32;

/// Number of levels below which a block is merged with a neighbour, if both fit into one.
const SPARSE: usize = FULL / 4;

/// The numbers of runs and of successes for each confidence.
#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    len: usize,
    // Invariant: descending by confidence, within and over blocks; none empty.
    blocks: Vec<Block>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    levels: Vec<(Quanta, Outcomes)>,
    /// The sum over the levels.
    total: Outcomes,
    /// For the pairs of a success and a failure in this block, twice the number whose success is the more confident, plus the
    /// number of tied pairs.
    twice_won: u128,
}

/// A walk over the runs, the most confident first, that stops at given places.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    blocks: std::slice::Iter<'a, Block>,
    levels: std::slice::Iter<'a, (Quanta, Outcomes)>,
    /// The outcomes of all levels above the current one.
    pub(super) before: Outcomes,
    /// The outcomes of the current level.
    pub(super) level: Outcomes,
}

impl Levels {
    /// The number of different confidences.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a run.
    pub(super) fn observe(&mut self, confidence: Quanta, success: bool) {
        self.merge(confidence, Outcomes { runs: 1, successes: u64::from(success) });
    }

    /// Adds runs of one confidence.
    pub(super) fn merge(&mut self, confidence: Quanta, outcomes: Outcomes) {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
        }
        let at = self.block_of(confidence).min(self.blocks.len() - 1);
        let block = &mut self.blocks[at];
        match block.find(confidence) {
            Ok(place) => block.levels[place].1.merge(outcomes),
            Err(place) => {
                block.levels.insert(place, (confidence, outcomes));
                self.len += 1;
            }
        }
        if block.levels.len() > FULL {
            let lower = block.levels.split_off(FULL / 2);
            block.settle();
            self.blocks.insert(at + 1, Block::new(lower));
        } else {
            block.settle();
        }
    }

    /// Subtracts a run that was observed.
    pub(super) fn forget(&mut self, confidence: Quanta, success: bool) {
        let at = self.block_of(confidence);
        let Some(block) = self.blocks.get_mut(at) else { return };
        let Ok(place) = block.find(confidence) else { return };
        block.levels[place].1.forget(success);
        if block.levels[place].1.runs == 0 {
            block.levels.remove(place);
            self.len -= 1;
        }
        block.settle();
        if block.levels.is_empty() {
            self.blocks.remove(at);
        } else if block.levels.len() < SPARSE {
            self.join(at.saturating_sub(1));
        }
    }

    /// All levels, the most confident first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Quanta, Outcomes)> {
        self.blocks.iter().flat_map(|block| &block.levels).copied()
    }

    /// For all pairs of a success and a failure, twice the number whose success is the more confident, plus the number of tied
    /// pairs.
    pub(super) fn twice_won(&self) -> u128 {
        let (mut won, mut successes_above) = (0, 0);
        for block in &self.blocks {
            let across = u128::from(2 * successes_above) * u128::from(block.total.failures());
            won += block.twice_won + across;
            successes_above += block.total.successes;
        }
        won
    }

    /// A walk that starts before the first run.
    pub(super) fn best_first(&self) -> Walk<'_> {
        Walk {
            blocks: self.blocks.iter(),
            levels: [].iter(),
            before: Outcomes::default(),
            level: Outcomes::default(),
        }
    }

    /// The first block whose least confidence is not greater than this one.
    fn block_of(&self, confidence: Quanta) -> usize {
        self.blocks.partition_point(|block| {
            block.levels.last().is_some_and(|(least, _)| *least > confidence)
        })
    }

    /// Merges a block with the next, if there is one and both fit into one.
    fn join(&mut self, at: usize) {
        let fits = |next: &Block| self.blocks[at].levels.len() + next.levels.len() <= FULL;
        if self.blocks.get(at + 1).is_some_and(fits) {
            let next = self.blocks.remove(at + 1);
            self.blocks[at].levels.extend(next.levels);
            self.blocks[at].settle();
        }
    }
}

impl Block {
    fn new(levels: Vec<(Quanta, Outcomes)>) -> Self {
        let mut block = Self { levels, ..Self::default() };
        block.settle();
        block
    }

    /// The index of a confidence, or where it would be.
    fn find(&self, confidence: Quanta) -> Result<usize, usize> {
        self.levels.binary_search_by(|(level, _)| confidence.cmp(level))
    }

    /// Recomputes the sums over the levels.
    fn settle(&mut self) {
        let (mut total, mut twice_won) = (Outcomes::default(), 0);
        for (_, level) in &self.levels {
            let won = 2 * total.successes + level.successes;
            twice_won += u128::from(level.failures()) * u128::from(won);
            total.merge(*level);
        }
        (self.total, self.twice_won) = (total, twice_won);
    }
}

impl Walk<'_> {
    /// Advances to the level of the run at position `runs`, counted from 1; the run must exist, and must not be behind.
    pub(super) fn cover(&mut self, runs: u64) {
        while self.before.runs + self.level.runs < runs {
            self.before.merge(self.level);
            self.level = Outcomes::default();
            match self.levels.next() {
                Some((_, level)) => self.level = *level,
                None if !self.enter(runs) => return,
                None => {}
            }
        }
    }

    /// Advances to the block of the run at position `runs`; returns whether there is one.
    fn enter(&mut self, runs: u64) -> bool {
        for block in self.blocks.by_ref() {
            if self.before.runs + block.total.runs >= runs {
                self.levels = block.levels.iter();
                return true;
            }
            self.before.merge(block.total);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_by_confidence(
            steps in proptest::collection::vec((any::<bool>(), 0..300_i64, any::<bool>()), 0..2_000),
            stops in proptest::collection::btree_set(1..1_500_u64, 0..40),
        ) {
            let (mut levels, mut map) = (Levels::default(), BTreeMap::<Quanta, Outcomes>::new());
            for (adds, confidence, success) in steps {
                let confidence = Quanta(confidence);
                let held = map.entry(confidence).or_default();
                let there = if success { held.successes > 0 } else { held.failures() > 0 };
                // More come than go.
                if adds || confidence.0 % 4 > 0 {
                    held.observe(success);
                    levels.observe(confidence, success);
                } else if there {
                    held.forget(success);
                    levels.forget(confidence, success);
                }
                if map[&confidence].runs == 0 {
                    map.remove(&confidence);
                }
            }
            let list: Vec<(Quanta, Outcomes)> = map.into_iter().rev().collect();
            prop_assert_eq!(levels.iter().collect::<Vec<_>>(), list.clone());
            prop_assert_eq!(levels.len(), list.len());
            let (mut above, mut won) = (Outcomes::default(), 0_u128);
            for (_, level) in &list {
                won += u128::from(level.failures() * (2 * above.successes + level.successes));
                above.merge(*level);
            }
            prop_assert_eq!(levels.twice_won(), won);
            let mut walk = levels.best_first();
            for stop in stops.into_iter().filter(|stop| *stop <= above.runs) {
                walk.cover(stop);
                let mut before = Outcomes::default();
                let level = list.iter().find(|(_, level)| {
                    let here = before.runs + level.runs >= stop;
                    if !here { before.merge(*level) }
                    here
                });
                prop_assert_eq!((walk.before, Some(walk.level)), (before, level.map(|(_, level)| *level)));
            }
            for (confidence, level) in list {
                (0..level.successes).for_each(|_| levels.forget(confidence, true));
                (0..level.failures()).for_each(|_| levels.forget(confidence, false));
            }
            prop_assert!(levels.blocks.is_empty());
        }
    }

    #[test]
    fn blocks_that_shrink_are_joined() {
        let mut levels = Levels::default();
        (0..4_000).for_each(|confidence| levels.observe(Quanta(confidence), true));
        assert!(levels.blocks.len() > 100);
        (0..4_000).filter(|number| number % 50 > 0).for_each(|confidence| {
            levels.forget(Quanta(confidence), true);
        });
        assert_eq!(levels.len(), 80);
        assert!(levels.blocks.len() < 14, "{}", levels.blocks.len());
    }
}
