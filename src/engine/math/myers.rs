//! Edit distance by bits: 64 cells of the table of dynamic programming in one word.
//!
//! Source: Myers, "A fast bit-vector algorithm for approximate string matching based on dynamic programming" (1999), in
//! the form of Hyyrö (2003), whose blocks hand the difference at their lower edge to the next.

/// A sequence made ready to be compared with others.
#[derive(Clone, Debug)]
pub struct Pattern {
    length: usize,
    /// The distinct symbols, ascending.
    symbols: Vec<u64>,
    /// Of each symbol, where it stands: one bit a position, `blocks` words a symbol.
    masks: Vec<u64>,
    blocks: usize,
}

/// What is known of 64 cells in a column: where a cell is one more, or one less, than the one above it.
#[derive(Clone, Copy)]
struct Block {
    more: u64,
    less: u64,
}

/// How a cell differs from the one to its left.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Step {
    Less,
    Same,
    More,
}

impl Pattern {
    /// Makes a sequence ready.
    pub fn new(sequence: &[u64]) -> Self {
        let mut symbols = sequence.to_vec();
        symbols.sort_unstable();
        symbols.dedup();
        let blocks = sequence.len().div_ceil(64);
        let mut masks = vec![0; symbols.len() * blocks];
        for (at, symbol) in sequence.iter().enumerate() {
            if let Ok(row) = symbols.binary_search(symbol) {
                masks[row * blocks + at / 64] |= 1 << (at % 64);
            }
        }
        Self { length: sequence.len(), symbols, masks, blocks }
    }

    /// How many insertions, deletions and replacements lead to another sequence.
    pub fn edit_distance(&self, text: &[u64]) -> usize {
        if self.length == 0 {
            return text.len();
        }
        let mut column = vec![Block { more: u64::MAX, less: 0 }; self.blocks];
        let nowhere = vec![0; self.blocks];
        let mut distance = self.length;
        for symbol in text {
            let masks = self.symbols.binary_search(symbol).map_or(&nowhere[..], |row| {
                &self.masks[row * self.blocks..(row + 1) * self.blocks]
            });
            // The row above the first: each column costs one insertion more.
            let mut step = Step::More;
            for (at, (block, mask)) in column.iter_mut().zip(masks).enumerate() {
                let lowest = if at + 1 == self.blocks { (self.length - 1) % 64 } else { 63 };
                step = block.advance(*mask, step, lowest);
            }
            match step {
                Step::Less => distance -= 1,
                Step::Same => {}
                Step::More => distance += 1,
            }
        }
        distance
    }
}

impl Block {
    /// Goes one column to the right; returns the step at the cell `lowest`, given the one above the block.
    fn advance(&mut self, mask: u64, above: Step, lowest: usize) -> Step {
        let vertical = mask | self.less;
        let equal = mask | u64::from(above == Step::Less);
        let diagonal = ((equal & self.more).wrapping_add(self.more) ^ self.more) | equal;
        let more = self.less | !(diagonal | self.more);
        let less = self.more & diagonal;
        let step = match ((more >> lowest) & 1, (less >> lowest) & 1) {
            (1, _) => Step::More,
            (_, 1) => Step::Less,
            (_, _) => Step::Same,
        };
        let more = more << 1 | u64::from(above == Step::More);
        let less = less << 1 | u64::from(above == Step::Less);
        self.more = less | !(vertical | more);
        self.less = more & vertical;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(Pattern::new(&of(a)).edit_distance(&of(b)), distance, "{a} {b}");
        }
    }

    #[test]
    fn blocks_hand_their_edge_on() {
        for length in [63, 64, 65, 127, 128, 129, 200] {
            let long = vec![7; length];
            assert_eq!(Pattern::new(&long).edit_distance(&[7]), length - 1);
            assert_eq!(Pattern::new(&[7]).edit_distance(&long), length - 1);
            assert_eq!(Pattern::new(&long).edit_distance(&vec![8; length]), length);
        }
    }
}
