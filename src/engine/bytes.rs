//! Numbers and texts as few bytes, for what is only kept in this process.
//!
//! A reader never fails: what it reads was written here. Past the end there is nothing but zeros.

use std::borrow::Cow;

/// Bytes that grow.
#[derive(Debug, Default)]
pub(in crate::engine) struct Writer(pub(in crate::engine) Vec<u8>);

/// Bytes that are read one after the other.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Reader<'a>(pub(in crate::engine) &'a [u8]);

impl Writer {
    /// A number: seven bits a byte, so that small ones are short.
    pub(in crate::engine) fn number(&mut self, number: u64) {
        let mut left = number;
        while left >= 0x80 {
            self.0.push(low(left) | 0x80);
            left >>= 7;
        }
        self.0.push(low(left));
    }

    /// A number of either sign: small ones of both are short.
    pub(in crate::engine) fn signed(&mut self, number: i64) {
        self.number((number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned());
    }

    /// A span of time in nanoseconds: short if it is in whole micro- or milliseconds, as many clocks have it.
    pub(in crate::engine) fn time(&mut self, nanos: u64) {
        self.scaled(nanos, 0, 0);
    }

    /// How far one time is from another.
    pub(in crate::engine) fn apart(&mut self, from: u64, to: u64) {
        self.scaled(to.abs_diff(from), u64::from(to < from), 1);
    }

    /// A number in units of a power of a thousand, which the lowest two bits say; above them `low`, of so many bits.
    fn scaled(&mut self, number: u64, low: u64, bits: u32) {
        let (mut number, mut power) = (number, 0);
        while power < 3 && number > 0 && number.is_multiple_of(1_000) {
            number /= 1_000;
            power += 1;
        }
        // What does not fit goes behind a head that no other number has.
        let room = u64::MAX >> (2 + bits);
        if number < room {
            self.number((number << bits | low) << 2 | power);
        } else {
            self.number((room << bits | low) << 2 | power);
            self.number(number);
        }
    }

    /// Bytes of a length that the reader knows.
    pub(in crate::engine) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes and how many there are.
    pub(in crate::engine) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }
}

impl<'a> Reader<'a> {
    /// A number.
    pub(in crate::engine) fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0_u32);
        loop {
            let [byte] = self.array();
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    }

    /// A number that counts or numbers something here.
    pub(in crate::engine) fn size(&mut self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    /// A number of either sign.
    pub(in crate::engine) fn signed(&mut self) -> i64 {
        let number = self.number();
        (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
    }

    /// A span of time in nanoseconds.
    pub(in crate::engine) fn time(&mut self) -> u64 {
        self.scaled(0).0
    }

    /// A time that is so far from this one.
    pub(in crate::engine) fn apart(&mut self, from: u64) -> u64 {
        let (number, before) = self.scaled(1);
        if before > 0 { from.wrapping_sub(number) } else { from.wrapping_add(number) }
    }

    fn scaled(&mut self, bits: u32) -> (u64, u64) {
        const UNITS: [u64; 4] = [1, 1_000, 1_000_000, 1_000_000_000];
        let head = self.number();
        let unit = UNITS[usize::from((head & 3).to_le_bytes()[0])];
        let low = head >> 2 & ((1 << bits) - 1);
        let number = match head >> (2 + bits) {
            number if number == u64::MAX >> (2 + bits) => self.number(),
            number => number,
        };
        (number.wrapping_mul(unit), low)
    }

    /// As many bytes.
    pub(in crate::engine) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        if let Some((bytes, rest)) = self.0.split_first_chunk::<N>() {
            array = *bytes;
            self.0 = rest;
        } else {
            self.0 = &[];
        }
        array
    }

    /// So many bytes, if there are as many.
    pub(in crate::engine) fn some(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at_checked(length).unwrap_or((self.0, &[]));
        self.0 = rest;
        bytes
    }

    /// Bytes that were written with their length.
    pub(in crate::engine) fn bytes(&mut self) -> &'a [u8] {
        let length = self.size();
        self.some(length)
    }

    /// A text that was written as bytes.
    pub(in crate::engine) fn text(&mut self) -> Cow<'a, str> {
        let bytes = self.bytes();
        // Where it is one, which takes a tenth of the time to tell that mending it would.
        str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
    }
}

/// The lowest eight bits.
fn low(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            number in any::<u64>(), signed in any::<i64>(), from in any::<u64>(), text in any::<Vec<u8>>(),
        ) {
            let mut writer = Writer::default();
            writer.number(number);
            writer.signed(signed);
            writer.time(number);
            writer.time(number / 1_000_000 * 1_000_000);
            writer.apart(from, number);
            writer.bytes(&text);
            writer.raw(&[7]);
            let mut reader = Reader(&writer.0);
            prop_assert_eq!(reader.number(), number);
            prop_assert_eq!(reader.signed(), signed);
            prop_assert_eq!(reader.time(), number);
            prop_assert_eq!(reader.time(), number / 1_000_000 * 1_000_000);
            prop_assert_eq!(reader.apart(from), number);
            prop_assert_eq!(reader.bytes(), text.as_slice());
            prop_assert_eq!(reader.array(), [7]);
            prop_assert_eq!((reader.number(), reader.bytes()), (0, [].as_slice()));
        }
    }

    #[test]
    fn small_numbers_are_short() {
        let mut writer = Writer::default();
        writer.number(127);
        writer.signed(-64);
        writer.time(31_000);
        writer.apart(20_000_000, 5_000_000);
        assert_eq!(writer.0.len(), 4);
    }
}
