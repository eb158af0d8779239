//! The outline of a span for plans, read from its bytes without checks.

use std::str;

use super::builder::status;
use super::wire::{Fields, Wire, key_and_value, plain};
use crate::engine::convention::{Outline, RawPair};

/// The fields of a span that are not in its outline.
#[derive(Default)]
pub(super) struct Frame<'a> {
    pub(super) trace_id: &'a [u8],
    pub(super) span_id: &'a [u8],
    pub(super) parent: &'a [u8],
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) flags: u32,
}

/// Reads a span; `None` if it does not have the usual form, valid or not.
pub(super) fn read<'a>(sent: &'a [u8], outline: &mut Outline<'a>) -> Option<Frame<'a>> {
    outline.clear();
    let mut frame = Frame::default();
    for field in Fields::of(sent) {
        match field.ok()? {
            (9, Wire::Bytes(sent)) => {
                let (key, sent) = key_and_value(sent)?;
                outline.push(RawPair { key, sent, value: plain(sent) });
            }
            (1, Wire::Bytes(id)) => frame.trace_id = id,
            (2, Wire::Bytes(id)) => frame.span_id = id,
            (4, Wire::Bytes(id)) => frame.parent = id,
            // A span with two names is read in full, as errors in the first name are counted, too.
            (5, Wire::Bytes(name)) if outline.name.is_empty() => outline.name = name,
            (7, Wire::Fixed64(time)) => frame.start = time,
            (8, Wire::Fixed64(time)) => frame.end = time,
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
            (16, Wire::Fixed32(flags)) => frame.flags = flags,
            // Events, links, and fields of another type.
            (1 | 2 | 4 | 5 | 7..=11 | 13 | 15 | 16, _) => return None,
            _ => {}
        }
    }
    Some(frame)
}
