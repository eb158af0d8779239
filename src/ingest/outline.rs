//! The outline of a span for plans, read from its bytes without checks.

use std::str;

use super::builder::status;
use super::wire::{Fields, Wire, head, short_text, value};
use crate::engine::convention::{Names, Outline, Plain, RawPair};

/// The fields of a span that are not in its outline.
pub(super) struct Frame<'a> {
    pub(super) trace_id: &'a [u8],
    pub(super) span_id: &'a [u8],
    pub(super) parent: &'a [u8],
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) flags: u32,
}

/// Reads a span; `None` if it does not have the usual form, valid or not.
#[inline(never)] // Its few values stay in registers if nothing is around it.
pub(super) fn read<'a>(
    sent: &'a [u8],
    names: &Names,
    outline: &mut Outline<'a>,
) -> Option<Frame<'a>> {
    let mut path = outline.begin(names);
    let mut fields = Fields::of(sent);
    let mut frame = Frame::begin(&mut fields, outline);
    loop {
        // Most fields are attributes.
        let attribute = match fields.bytes(9) {
            Some(attribute) => attribute,
            None => match fields.next() {
                None => break,
                Some(field) => match field.ok()? {
                    (9, Wire::Bytes(attribute)) => attribute,
                    field => {
                        frame.take(field, outline)?;
                        continue;
                    }
                },
            },
        };
        // Most heads are known, and need not be read.
        let (head, rest) = path.head(attribute).or_else(|| head(attribute))?;
        if let Some((sent, text)) = short_text(rest) {
            outline.push(RawPair { head, sent, value: Some(Plain::Text(text)) });
        } else {
            let (sent, value) = value(rest)?;
            outline.push(RawPair { head, sent, value });
        }
    }
    outline.end(&path);
    Some(frame)
}

impl<'a> Frame<'a> {
    /// Takes the fields before the attributes, as long as they come in the order of their numbers, as they mostly do.
    #[inline]
    fn begin(fields: &mut Fields<'a>, outline: &mut Outline<'a>) -> Self {
        let trace_id = fields.bytes(1).unwrap_or_default();
        let span_id = fields.bytes(2).unwrap_or_default();
        let parent = fields.bytes(4).unwrap_or_default();
        outline.name = fields.bytes(5).unwrap_or_default();
        // Its kind is not used.
        let _ = fields.small(6);
        let (start, end) = (fields.fixed64(7), fields.fixed64(8));
        let (start, end) = (start.unwrap_or_default(), end.unwrap_or_default());
        Self { trace_id, span_id, parent, start, end, flags: 0 }
    }

    /// Takes a field other than an attribute.
    #[inline]
    fn take(&mut self, field: (u32, Wire<'a>), outline: &mut Outline<'a>) -> Option<()> {
        match field {
            (1, Wire::Bytes(id)) => self.trace_id = id,
            (2, Wire::Bytes(id)) => self.span_id = id,
            (4, Wire::Bytes(id)) => self.parent = id,
            // A span with two names is read in full, as errors in the first name are counted, too.
            (5, Wire::Bytes(name)) if outline.name.is_empty() => outline.name = name,
            (7, Wire::Fixed64(time)) => self.start = time,
            (8, Wire::Fixed64(time)) => self.end = time,
            (10, Wire::Varint(_)) => {}
            (15, Wire::Bytes(sent)) => {
                for field in Fields::of(sent) {
                    match field.ok()? {
                        (2, Wire::Bytes(message)) => drop(str::from_utf8(message).ok()?),
                        (3, Wire::Varint(code)) => outline.status = status(code),
                        (2 | 3, _) => return None,
                        _ => {}
                    }
                }
            }
            (16, Wire::Fixed32(flags)) => self.flags = flags,
            // Events, links, and fields of another type.
            (1 | 2 | 4 | 5 | 7..=11 | 13 | 15 | 16, _) => return None,
            _ => {}
        }
        Some(())
    }
}
