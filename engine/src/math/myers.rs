//! Edit distance and longest common subsequence by bits: 64 cells of the dynamic programming table in one word.
//!
//! Source: Myers, "A fast bit-vector algorithm for approximate string matching based on dynamic programming" (1999), in
//! the form of Hyyrö (2003), whose blocks hand the difference at their lower edge to the next; Hyyrö, "Bit-parallel
//! LCS-length computation revisited" (2004).

/// A sequence of symbols, each represented by its index among the distinct ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// The distinct symbols, ascending.
    symbols: Box<[u64]>,
    /// The symbol at each position, as an index into `symbols`.
    places: Box<[u32]>,
}

/// A sequence prepared for comparison with others.
#[derive(Clone, Debug)]
pub struct Pattern<'s> {
    sequence: &'s Sequence,
    /// For each symbol its positions: one bit a position, `blocks` words a symbol; at the end those of all other symbols, which
    /// have none.
    masks: Vec<u64>,
    blocks: usize,
}

/// 64 cells of a column: for each whether it is one more, or one less, than the one above it.
#[derive(Clone, Copy)]
struct Block {
    more: u64,
    less: u64,
}

/// Carries between blocks: whether a cell is one more, or one less, than the one to its left.
#[derive(Clone, Copy)]
struct Step {
    more: u64,
    less: u64,
}

impl Sequence {
    /// A sequence of symbols.
    pub fn new(sequence: &[u64]) -> Self {
        let mut symbols = sequence.to_vec();
        symbols.sort_unstable();
        symbols.dedup();
        let place =
            |symbol: &u64| symbols.binary_search(symbol).ok().and_then(|at| u32::try_from(at).ok());
        Self { places: sequence.iter().filter_map(place).collect(), symbols: symbols.into() }
    }

    /// Its number of symbols.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has no symbols.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The distinct symbols, ascending, each with its number of occurrences.
    pub fn counts(&self) -> Box<[(u64, u64)]> {
        let mut counts: Box<[(u64, u64)]> =
            self.symbols.iter().map(|symbol| (*symbol, 0)).collect();
        for place in &self.places {
            counts[*place as usize].1 += 1;
        }
        counts
    }
}

impl<'s> Pattern<'s> {
    /// Prepares a sequence.
    pub fn new(sequence: &'s Sequence) -> Self {
        let blocks = sequence.len().div_ceil(64);
        let mut masks = vec![0; (sequence.symbols.len() + 1) * blocks];
        for (at, place) in sequence.places.iter().enumerate() {
            masks[*place as usize * blocks + at / 64] |= 1 << (at % 64);
        }
        Self { sequence, masks, blocks }
    }

    /// The least number of insertions, deletions and replacements that lead to another sequence.
    pub fn edit_distance(&self, text: &Sequence) -> usize {
        if self.blocks == 0 {
            return text.len();
        }
        let rows = self.rows(text);
        let lowest = (self.sequence.len() - 1) % 64;
        let mut distance = self.sequence.len();
        let mut last = |step: Step| {
            distance += usize::from(step.more != 0);
            distance -= usize::from(step.less != 0);
        };
        // The row above the first: each column costs one more insertion.
        let first = Step { more: 1, less: 0 };
        let new = Block { more: u64::MAX, less: 0 };
        if self.blocks == 1 {
            let mut block = new;
            for place in &text.places {
                last(block.advance(self.masks[rows[*place as usize]], first, lowest));
            }
            return distance;
        }
        let mut column = vec![new; self.blocks];
        for place in &text.places {
            let row = rows[*place as usize];
            let mut step = first;
            for (at, block) in column.iter_mut().enumerate() {
                let edge = if at + 1 == self.blocks { lowest } else { 63 };
                step = block.advance(self.masks[row + at], step, edge);
            }
            last(step);
        }
        distance
    }

    /// The length of the longest common subsequence with another sequence.
    pub fn common(&self, text: &Sequence) -> usize {
        let rows = self.rows(text);
        // A bit is set if a cell is no more than the one above it. Bits beyond the last row are never cleared.
        let mut column = vec![u64::MAX; self.blocks];
        for place in &text.places {
            let row = rows[*place as usize];
            let mut carry = 0;
            for (block, mask) in column.iter_mut().zip(&self.masks[row..]) {
                let met = *block & mask;
                let (sum, over) = block.overflowing_add(met);
                let (sum, over_again) = sum.overflowing_add(carry);
                carry = u64::from(over || over_again);
                *block = sum | (*block & !met);
            }
        }
        column.iter().map(|block| block.count_zeros() as usize).sum()
    }

    /// The index at which the masks of each symbol of another sequence begin.
    fn rows(&self, text: &Sequence) -> Vec<usize> {
        let (own, mut at) = (&self.sequence.symbols, 0);
        let row = |symbol: &u64| {
            while at < own.len() && own[at] < *symbol {
                at += 1;
            }
            let known = own.get(at) == Some(symbol);
            (if known { at } else { own.len() }) * self.blocks
        };
        text.symbols.iter().map(row).collect()
    }
}

impl Block {
    /// Advances one column to the right; returns the step at the cell `lowest`, given the step above the block.
    fn advance(&mut self, mask: u64, above: Step, lowest: usize) -> Step {
        let vertical = mask | self.less;
        let equal = mask | above.less;
        let diagonal = ((equal & self.more).wrapping_add(self.more) ^ self.more) | equal;
        let more = self.less | !(diagonal | self.more);
        let less = self.more & diagonal;
        let step = Step { more: (more >> lowest) & 1, less: (less >> lowest) & 1 };
        let more = more << 1 | above.more;
        let less = less << 1 | above.less;
        self.more = less | !(vertical | more);
        self.less = more & vertical;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(a: &[u64], b: &[u64]) -> usize {
        Pattern::new(&Sequence::new(a)).edit_distance(&Sequence::new(b))
    }

    #[test]
    fn distances_that_are_known() {
        let of = |text: &str| -> Vec<u64> { text.bytes().map(u64::from).collect() };
        for (a, b, distance) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("abc", "cba", 2),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(between(&of(a), &of(b)), distance, "{a} {b}");
        }
    }

    #[test]
    fn common_subsequences_that_are_known() {
        let of = |text: &str| Sequence::new(&text.bytes().map(u64::from).collect::<Vec<_>>());
        for (a, b, length) in [
            ("", "", 0),
            ("", "abc", 0),
            ("abc", "", 0),
            ("kitten", "sitting", 4),
            ("abc", "cba", 1),
        ] {
            assert_eq!(Pattern::new(&of(a)).common(&of(b)), length, "{a} {b}");
        }
    }

    #[test]
    fn blocks_hand_their_edge_on() {
        for length in [63, 64, 65, 127, 128, 129, 200] {
            let long = vec![7; length];
            let common =
                |a: &[u64], b: &[u64]| Pattern::new(&Sequence::new(a)).common(&Sequence::new(b));
            assert_eq!((common(&long, &[7]), common(&[7], &long)), (1, 1));
            assert_eq!(common(&long, &vec![7; length + 3]), length);
            assert_eq!(common(&long, &vec![8; length]), 0);
            assert_eq!(between(&long, &[7]), length - 1);
            assert_eq!(between(&[7], &long), length - 1);
            assert_eq!(between(&long, &vec![8; length]), length);
        }
    }
}
