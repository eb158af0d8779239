//! The digest of an output, as bytes: words as distances between their numbers, the embedding as its counts, each in as many
//! bits as they need.

use super::codec::Codec;
use crate::engine::bytes::{Reader, Writer};
use crate::engine::update::OutputDigest;

/// The greatest number of low bits.
const WIDEST: u32 = 24;

/// Writes a digest that has no embedding of a model.
pub(super) fn write(digest: &OutputDigest, codec: &mut Codec, to: &mut Writer) {
    let (mut known, mut others) = (Vec::with_capacity(digest.tokens.len()), Vec::new());
    for token in &digest.tokens {
        match codec.word(*token) {
            Some(number) => known.push(number),
            None => others.push(*token),
        }
    }
    known.sort_unstable();
    // Each is greater than the one before it.
    let mut least = 0;
    for number in &mut known {
        let above = *number - least;
        least = *number + 1;
        *number = above;
    }
    rice(&known, to);
    to.number(others.len() as u64);
    others.iter().for_each(|token| to.raw(&token.to_le_bytes()));
    let folded: Vec<u64> = digest.embedding.iter().map(|count| fold(*count)).collect();
    rice(&folded, to);
}

/// Reads it.
pub(super) fn read(codec: &Codec, from: &mut Reader<'_>) -> OutputDigest {
    let mut least = 0;
    let known = read_rice(from).into_iter().map(|above| {
        let number = least + above;
        least = number + 1;
        codec.read_word(usize::try_from(number).unwrap_or(usize::MAX))
    });
    let mut tokens: Vec<u64> = known.collect();
    tokens.extend((0..from.size()).map(|_| u64::from_le_bytes(from.array())));
    // They are a set, in order.
    tokens.sort_unstable();
    let embedding = read_rice(from).into_iter().map(unfold).collect();
    OutputDigest { tokens, embedding, ..OutputDigest::default() }
}

/// Numbers by Rice's code: so many low bits as they are, the rest as so many ones.
fn rice(numbers: &[u64], to: &mut Writer) {
    to.number(numbers.len() as u64);
    let Some(mean) = numbers.iter().sum::<u64>().checked_div(numbers.len() as u64) else { return };
    // Near the mean is the best that there is.
    let near = mean.max(1).ilog2().min(WIDEST);
    let length = |low: u32| numbers.iter().map(|number| number >> low).sum::<u64>();
    let bits = |low: u32| length(low) + u64::from(low) * numbers.len() as u64;
    let low = (near.saturating_sub(1)..=near).min_by_key(|low| bits(*low)).unwrap_or(0);
    to.number(u64::from(low));
    let mut bits = BitWriter { to, pending: 0, count: 0 };
    for number in numbers {
        let mut ones = number >> low;
        while ones >= u64::from(WIDEST) {
            bits.push((1 << WIDEST) - 1, WIDEST);
            ones -= u64::from(WIDEST);
        }
        // And a zero.
        bits.push((1 << ones) - 1, u32::try_from(ones).unwrap_or(0) + 1);
        bits.push(number & ((1 << low) - 1), low);
    }
    bits.finish();
}

fn read_rice(from: &mut Reader<'_>) -> Vec<u64> {
    let length = from.size();
    if length == 0 {
        return Vec::new();
    }
    let low = u32::try_from(from.number()).unwrap_or(0).min(WIDEST);
    let mut bits = BitReader { from, pending: 0, count: 0 };
    let number = |_| {
        let mut high = 0_u64;
        while bits.take(1) == 1 {
            high += 1;
        }
        high << low | bits.take(low)
    };
    (0..length).map(number).collect()
}

fn fold(count: i32) -> u64 {
    u64::from((count.cast_unsigned() << 1) ^ (count >> 31).cast_unsigned())
}

fn unfold(folded: u64) -> i32 {
    let count = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
    i32::try_from(count).unwrap_or_default()
}

/// Bits, the lowest of each byte first.
struct BitWriter<'a> {
    to: &'a mut Writer,
    pending: u64,
    count: u32,
}

impl BitWriter<'_> {
    /// At most 24 bits.
    fn push(&mut self, bits: u64, count: u32) {
        self.pending |= bits << self.count;
        self.count += count;
        if self.count >= 32 {
            self.to.raw(&self.pending.to_le_bytes()[..4]);
            self.pending >>= 32;
            self.count -= 32;
        }
    }

    fn finish(self) {
        let bytes = usize::try_from(self.count.div_ceil(8)).unwrap_or(0);
        self.to.raw(&self.pending.to_le_bytes()[..bytes]);
    }
}

struct BitReader<'a, 'b> {
    from: &'a mut Reader<'b>,
    pending: u64,
    count: u32,
}

impl BitReader<'_, '_> {
    fn take(&mut self, count: u32) -> u64 {
        while self.count < count {
            let [byte] = self.from.array();
            self.pending |= u64::from(byte) << self.count;
            self.count += 8;
        }
        let bits = self.pending & ((1 << count) - 1);
        self.pending >>= count;
        self.count -= count;
        bits
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            words in prop::collection::btree_set(any::<u64>(), 0..40),
            small in prop::collection::vec(-9_i32..9, 0..300),
            any in prop::collection::vec(any::<i16>(), 0..30),
        ) {
            let mut codec = Codec::new(Arc::default());
            for embedding in [small, any.into_iter().map(i32::from).collect()] {
                let tokens = words.iter().copied().collect();
                let digest = OutputDigest { tokens, embedding, ..OutputDigest::default() };
                let mut writer = Writer::default();
                write(&digest, &mut codec, &mut writer);
                writer.raw(&[7]);
                let mut reader = Reader(&writer.0);
                prop_assert_eq!(read(&codec, &mut reader), digest);
                prop_assert_eq!(reader.array(), [7]);
            }
        }
    }

    #[test]
    fn a_word_that_is_known_and_a_small_count_take_few_bits() {
        let mut codec = Codec::new(Arc::default());
        let embedding = (0..256).map(|at| at % 5 - 2).collect();
        let digest = OutputDigest {
            tokens: (0..100).map(|at| at << 50).collect(),
            embedding,
            ..OutputDigest::default()
        };
        let mut writer = Writer::default();
        write(&digest, &mut codec, &mut writer);
        assert!(writer.0.len() < 100 / 8 + 256 * 3 / 8 + 12, "{}", writer.0.len());
    }
}
