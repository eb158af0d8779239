//! Protobuf's wire format: the fields of a message, in the order sent, borrowed from its bytes.

use super::Refusal;
use crate::engine::convention::Plain;

/// A field's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields of a message by their numbers; after an error there are no more.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// The key and the value of an attribute in the usual form: key and value in this order, each once, and the value a single text,
/// boolean or number; `None` for any other attribute, valid or not. Always inlined, with its parts, however the crate is split for
/// compilation.
#[expect(clippy::inline_always, reason = "one in fifty instructions of a span")]
#[inline(always)]
pub(super) fn pair(message: &[u8]) -> Option<(&[u8], Plain<'_>)> {
    let (key, rest) = key(message)?;
    Some((key, plain(whole(rest)?)?))
}

/// Splits an attribute whose key comes first into its head, which is all before the length of its value, and the rest.
pub(super) fn head(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, rest) = key(message)?;
    message.split_at_checked(message.len() - rest.len())
}

/// The key of an attribute that begins with its key, and the bytes after the tag of its value.
#[inline]
fn key(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let [0x0a, rest @ ..] = message else { return None };
    let (key, rest) = prefixed(rest)?;
    let [0x12, rest @ ..] = rest else { return None };
    Some((key, rest))
}

/// The bytes of an attribute's value, which follow its head, and the text in it, if the value is a string so short that its length,
/// and that of the value around it, have one byte.
#[inline]
pub(super) fn short_text(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let [around @ ..0x80, sent @ ..] = rest else { return None };
    let [0x0a, length, text @ ..] = sent else { return None };
    let fits = usize::from(*around) == sent.len() && usize::from(*length) == text.len();
    fits.then_some((sent, text))
}

/// The bytes of an attribute's value of any kind, which follow its head, and the value, if it is plain.
#[inline(never)]
pub(super) fn value(rest: &[u8]) -> Option<(&[u8], Option<Plain<'_>>)> {
    let sent = whole(rest)?;
    Some((sent, plain(sent)))
}

/// Bytes that follow their length, if nothing follows them.
#[inline]
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let (whole, []) = prefixed(bytes)? else { return None };
    Some(whole)
}

/// The value in a value's bytes, if it is a single string, boolean or number and nothing else.
#[expect(clippy::inline_always, reason = "one in fifty instructions of a span")]
#[inline(always)]
fn plain(value: &[u8]) -> Option<Plain<'_>> {
    match value {
        [0x0a, rest @ ..] => whole(rest).map(Plain::Text),
        [0x10, flag @ 0..=1] => Some(Plain::Bool(*flag == 1)),
        [0x18, rest @ ..] => {
            let mut fields = Fields::of(rest);
            let number = fields.varint().ok()?.cast_signed();
            fields.rest.is_empty().then_some(Plain::Int(number))
        }
        [0x21, bits @ ..] => {
            let bits = u64::from_le_bytes(bits.try_into().ok()?);
            Some(Plain::Double(f64::from_bits(bits)))
        }
        _ => None,
    }
}

/// Splits off a length prefix: the bytes that it counts, and the rest.
#[inline]
fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    short(bytes).or_else(|| long(bytes))
}

/// [`prefixed`] for a length of one byte or two; `None` if it has more bytes or exceeds the bytes that are left.
#[inline]
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match bytes {
        [length @ ..0x80, rest @ ..] => rest.split_at_checked((*length).into()),
        [low, high @ ..0x80, rest @ ..] => rest.split_at_checked(two(*low, *high).into()),
        _ => None,
    }
}

/// [`prefixed`] for a length of any size.
#[inline(never)]
fn long(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields::of(bytes);
    let length = fields.varint().ok()?;
    fields.rest.split_at_checked(usize::try_from(length).ok()?)
}

/// The value of a varint of two bytes.
#[inline]
fn two(low: u8, high: u8) -> u16 {
    u16::from(low & 0x7f) | u16::from(high) << 7
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Malformed(pub(super) &'static str);

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        // Nearly all tags and most lengths have one byte, nearly all others two.
        match self.rest {
            [byte @ ..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            [low, high @ ..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(two(*low, *high).into())
            }
            _ => self.long_varint(),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            // The tenth byte has room for one bit.
            if at == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(Malformed("a number that does not end"))
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed("a field longer than its message"))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(Malformed("a truncated number"))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Takes the next field if it is the string or message of this number, and less than 16 KiB.
    #[inline]
    pub(super) fn bytes(&mut self, number: u8) -> Option<&'a [u8]> {
        let (taken, rest) = short(self.tagged(number << 3 | 2)?)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next string or message with this number, after any other fields; `None` if there is none.
    #[inline]
    pub(super) fn next_bytes(&mut self, number: u8) -> Result<Option<&'a [u8]>, Malformed> {
        loop {
            if let Some(taken) = self.bytes(number) {
                return Ok(Some(taken));
            }
            match self.next().transpose()? {
                Some((other, Wire::Bytes(taken))) if other == u32::from(number) => {
                    return Ok(Some(taken));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Takes the next field if it is the number of 64 bits of this number.
    #[inline]
    pub(super) fn fixed64(&mut self, number: u8) -> Option<u64> {
        let (bits, rest) = self.tagged(number << 3 | 1)?.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*bits))
    }

    /// Takes the next field if it is the varint of this number, and less than 128.
    #[inline]
    pub(super) fn small(&mut self, number: u8) -> Option<u8> {
        let [value @ ..0x80, rest @ ..] = self.tagged(number << 3)? else { return None };
        self.rest = rest;
        Some(*value)
    }

    /// The bytes after the tag, if this tag comes next.
    #[inline]
    fn tagged(&self, tag: u8) -> Option<&'a [u8]> {
        let (first, rest) = self.rest.split_first()?;
        (*first == tag).then_some(rest)
    }

    /// Reads a field of any kind, and returns it with the bytes after it; after an error there are none.
    #[inline(never)]
    fn any(mut self) -> (Result<(u32, Wire<'a>), Malformed>, &'a [u8]) {
        let field = self.field();
        let rest = if field.is_ok() { self.rest } else { &[] };
        (field, rest)
    }

    fn field(&mut self) -> Result<(u32, Wire<'a>), Malformed> {
        let tag =
            u32::try_from(self.varint()?).map_err(|_| Malformed("a field number too large"))?;
        if tag < 1 << 3 {
            return Err(Malformed("field number 0"));
        }
        let wire = if tag & 7 == 2 {
            let length = self.varint()?;
            Wire::Bytes(self.take(length)?)
        } else {
            self.number(tag & 7)?
        };
        Ok((tag >> 3, wire))
    }

    fn number(&mut self, wire_type: u32) -> Result<Wire<'a>, Malformed> {
        match wire_type {
            0 => self.varint().map(Wire::Varint),
            1 => self.fixed().map(u64::from_le_bytes).map(Wire::Fixed64),
            5 => self.fixed().map(u32::from_le_bytes).map(Wire::Fixed32),
            _ => Err(Malformed("an unknown wire type")),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Wire<'a>), Malformed>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        // Nearly all fields are strings and messages of less than 16 KiB, and times.
        if let [tag @ 0x08..0x80, rest @ ..] = self.rest {
            let number = u32::from(tag >> 3);
            if tag & 7 == 2
                && let Some((taken, rest)) = short(rest)
            {
                self.rest = rest;
                return Some(Ok((number, Wire::Bytes(taken))));
            }
            if tag & 7 == 1
                && let Some((bits, rest)) = rest.split_first_chunk()
            {
                self.rest = rest;
                return Some(Ok((number, Wire::Fixed64(u64::from_le_bytes(*bits)))));
            }
        }
        if self.rest.is_empty() {
            return None;
        }
        // By value, so that the bytes stay in registers.
        let (field, rest) = Self::of(self.rest).any();
        self.rest = rest;
        Some(field)
    }
}

impl Malformed {
    /// The refusal of a request that has the error in a message with this name.
    pub(super) fn within(self, what: &'static str) -> Refusal {
        Refusal::Malformed { what, why: self.0.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(message: &[u8]) -> Result<Vec<u32>, Malformed> {
        Fields::of(message).map(|field| field.map(|(number, _)| number)).collect()
    }

    #[test]
    fn a_field_has_a_number_and_a_value_of_its_length() {
        let message = [&[0x08, 0x96, 0x01][..], &[0x12, 2, b'a', b'b'], &[0x19], &[7; 8]].concat();
        let read: Vec<_> = Fields::of(&message).map(Result::unwrap).collect();
        let [(1, Wire::Varint(150)), (2, Wire::Bytes(b"ab")), (3, Wire::Fixed64(number))] =
            read[..]
        else {
            panic!("{read:?}");
        };
        assert_eq!(number, 0x0707_0707_0707_0707);
    }

    #[test]
    fn most_attributes_are_pairs() {
        assert_eq!(pair(b"\x0a\x01k\x12\x03\x0a\x01v"), Some((&b"k"[..], Plain::Text(b"v"))));
        assert_eq!(pair(b"\x0a\x00\x12\x02\x18\x05"), Some((&b""[..], Plain::Int(5))));
        assert_eq!(pair(b"\x0a\x01k\x12\x03\x18\x96\x01"), Some((&b"k"[..], Plain::Int(150))));
        assert_eq!(pair(b"\x0a\x01k\x12\x02\x10\x01"), Some((&b"k"[..], Plain::Bool(true))));
        let half = b"\x0a\x01k\x12\x09\x21\0\0\0\0\0\0\xe0\x3f";
        assert_eq!(pair(half), Some((&b"k"[..], Plain::Double(0.5))));
        for other in [
            &b""[..],
            b"\x0a\x01k",
            b"\x0a\x02k",
            b"\x0a\x01k\x12\x00",
            b"\x12\x03\x0a\x01v\x0a\x01k",
            b"\x0a\x01k\x12\x03\x0a\x01v\x0a\x01k",
            b"\x0a\x01k\x12\x03\x0a\x00v",
            b"\x0a\x01k\x12\x04\x18\x80\x80\x80",
            b"\x0a\x01k\x12\x02\x10\x02",
            b"\x0a\x01k\x12\x05\x21\x01\x02\x03\x04",
        ] {
            assert_eq!(pair(other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_no_field_ends_the_message() {
        for (message, why) in [
            (&[0x80][..], "a number that does not end"),
            (&[0xff; 11], "a number that does not end"),
            (&[0x0a, 2, b'a'], "a field longer than its message"),
            (&[0x0d, 1, 2, 3], "a truncated number"),
            (&[0x0b], "an unknown wire type"),
            (&[0x02, 0], "field number 0"),
            (&[0x80, 0x80, 0x80, 0x80, 0x10, 0], "a field number too large"),
        ] {
            assert_eq!(fields(message), Err(Malformed(why)), "{message:?}");
        }
        assert_eq!(fields(&[]), Ok(vec![]));
    }
}
