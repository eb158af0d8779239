//! A hash with a fixed seed, the same in every process, for maps that are only looked up by key.
//!
//! No output may depend on the order of such a map: it is sorted first, or comes from an ordered index beside the map.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A map for look-ups.
pub(crate) type FixedMap<K, V> = HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// The hash so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u8(&mut self, byte: u8) {
        // The end of a text, or a small value; the length of each text is part of its own hash.
        self.0 = self.0.rotate_left(5) ^ u64::from(byte);
    }

    fn write_u64(&mut self, number: u64) {
        // The constant is odd, so that different numbers stay different.
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_i64(&mut self, number: i64) {
        self.write_u64(number.cast_unsigned());
    }

    fn write_usize(&mut self, number: usize) {
        // The length of a list.
        self.0 ^= number as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
