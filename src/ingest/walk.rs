//! OTLP protobuf, borrowed from the bytes: no message is built, nothing is copied, only what is used is looked at.
//!
//! Fields may come in any order (Go's Collector sends a resource after its spans), and more than once: of a value the
//! last holds, messages and lists are merged, as protobuf has it. The pre-scan has bounded nesting and counts before.
//! A string that is not UTF-8 is mended alone, so that the rest of the request survives.

use std::borrow::Cow;
use std::{mem, str};

use super::builder::{Builder, Sent, SentLog, event, status};
use super::repair::repaired;
use super::wire::{Fields, Malformed, Plain, Wire, pair};
use crate::engine::convention::{RawAttributes, RawScope, RawValue, Scope};

/// What is built, and how many strings had to be mended.
struct Walk<'a, 'w, 'b> {
    builder: &'w mut Builder<'b>,
    record: fn(&mut Self, &'a [u8], Scope) -> Result<()>,
    mended: u64,
    // A list that is used again for each span.
    attributes: RawAttributes<'a>,
    // Strings that were met lately: one that comes again need not be checked again.
    met: [&'a str; MET],
}

type Result<T> = std::result::Result<T, Malformed>;

/// Strings that are remembered, and how long they may be: keys and names, which come again, are short.
const MET: usize = 128;
const MAX_MET_BYTES: usize = 64;

/// Attributes that most spans are below.
const USUAL_ATTRIBUTES: usize = 16;

/// Walks an `ExportTraceServiceRequest`.
///
/// # Errors
///
/// Says what is wrong with its first message that is none.
pub(super) fn traces(body: &[u8], builder: &mut Builder<'_>) -> Result<()> {
    Walk::new(builder, |walk, sent, scope| {
        let span = walk.span(sent)?;
        walk.attributes = walk.builder.span(span, scope);
        Ok(())
    })
    .request(body)
}

/// Walks an `ExportLogsServiceRequest`.
///
/// # Errors
///
/// As [`traces`].
pub(super) fn logs(body: &[u8], builder: &mut Builder<'_>) -> Result<()> {
    Walk::new(builder, |walk, sent, scope| {
        let log = walk.log(sent)?;
        walk.builder.log(log, scope);
        Ok(())
    })
    .request(body)
}

impl<'a, 'w, 'b> Walk<'a, 'w, 'b> {
    fn new(
        builder: &'w mut Builder<'b>,
        record: fn(&mut Self, &'a [u8], Scope) -> Result<()>,
    ) -> Self {
        let attributes = RawAttributes::with_capacity(USUAL_ATTRIBUTES);
        Self { builder, record, mended: 0, attributes, met: [""; MET] }
    }

    /// Walks down to the records: requests, resources and scopes have the same fields for spans and logs.
    fn request(mut self, body: &'a [u8]) -> Result<()> {
        for field in Fields::of(body) {
            if let (1, wire) = field? {
                self.resource(wire.bytes()?)?;
            }
        }
        if self.mended > 0 {
            repaired(self.builder.tally(), "invalid_utf8", self.mended);
        }
        Ok(())
    }

    fn resource(&mut self, sent: &'a [u8]) -> Result<()> {
        let mut attributes = RawAttributes::default();
        for field in Fields::of(sent) {
            match field? {
                (1, wire) => {
                    for field in Fields::of(wire.bytes()?) {
                        match field? {
                            (1, wire) => self.attribute(wire, &mut attributes)?,
                            (2, wire) => drop(wire.varint()?),
                            (3, wire) => drop(wire.bytes()?),
                            _ => {}
                        }
                    }
                }
                (3, wire) => drop(wire.bytes()?),
                _ => {}
            }
        }
        self.builder.resource(attributes);
        for field in Fields::of(sent) {
            if let (2, wire) = field? {
                self.scope(wire.bytes()?)?;
            }
        }
        Ok(())
    }

    fn scope(&mut self, sent: &'a [u8]) -> Result<()> {
        let mut scope = RawScope::default();
        for field in Fields::of(sent) {
            match field? {
                (1, wire) => {
                    for field in Fields::of(wire.bytes()?) {
                        match field? {
                            (1, wire) => scope.name = self.text(wire)?,
                            (2, wire) => scope.version = self.text(wire)?,
                            (3, wire) => drop(self.key_value(wire)?),
                            (4, wire) => drop(wire.varint()?),
                            _ => {}
                        }
                    }
                }
                (3, wire) => drop(wire.bytes()?),
                _ => {}
            }
        }
        let scope = self.builder.scope(&scope);
        for field in Fields::of(sent) {
            if let (2, wire) = field? {
                (self.record)(self, wire.bytes()?, scope)?;
            }
        }
        Ok(())
    }

    fn span(&mut self, sent: &'a [u8]) -> Result<Sent<'a>> {
        let attributes = mem::take(&mut self.attributes);
        let mut span = Sent { attributes, ..Sent::default() };
        for field in Fields::of(sent) {
            let (number, wire) = field?;
            match number {
                1 => span.trace_id = wire.bytes()?,
                2 => span.span_id = wire.bytes()?,
                4 => span.parent = wire.bytes()?,
                5 => span.name = self.text(wire)?,
                7 => span.start = wire.fixed64()?,
                8 => span.end = wire.fixed64()?,
                9 => self.attribute(wire, &mut span.attributes)?,
                10 => span.dropped_attributes = low32(wire.varint()?),
                11 => {
                    let (name, time, attributes) = self.span_event(wire.bytes()?)?;
                    span.events.push(event(name, time, attributes));
                }
                13 => span.links.push(self.link(wire.bytes()?)?),
                15 => {
                    for field in Fields::of(wire.bytes()?) {
                        match field? {
                            (2, wire) => span.status_message = self.text(wire)?,
                            // An enum is the low half of its number, as a signed one.
                            (3, wire) => {
                                let code = low32(wire.varint()?).cast_signed();
                                span.status = status(code.into());
                            }
                            _ => {}
                        }
                    }
                }
                3 => drop(wire.bytes()?),
                6 | 12 | 14 => drop(wire.varint()?),
                16 => wire.fixed32()?,
                _ => {}
            }
        }
        Ok(span)
    }

    fn span_event(&mut self, sent: &'a [u8]) -> Result<(Cow<'a, str>, u64, RawAttributes<'a>)> {
        let (mut name, mut time, mut attributes) = (Cow::default(), 0, RawAttributes::default());
        for field in Fields::of(sent) {
            match field? {
                (1, wire) => time = wire.fixed64()?,
                (2, wire) => name = self.text(wire)?,
                (3, wire) => self.attribute(wire, &mut attributes)?,
                (4, wire) => drop(wire.varint()?),
                _ => {}
            }
        }
        Ok((name, time, attributes))
    }

    fn link(&mut self, sent: &'a [u8]) -> Result<(&'a [u8], &'a [u8])> {
        let mut ids: (&[u8], &[u8]) = (&[], &[]);
        for field in Fields::of(sent) {
            match field? {
                (1, wire) => ids.0 = wire.bytes()?,
                (2, wire) => ids.1 = wire.bytes()?,
                (3, wire) => drop(wire.bytes()?),
                (4, wire) => drop(self.key_value(wire)?),
                (5, wire) => drop(wire.varint()?),
                (6, wire) => wire.fixed32()?,
                _ => {}
            }
        }
        Ok(ids)
    }

    fn log(&mut self, sent: &'a [u8]) -> Result<SentLog<'a>> {
        let mut log = SentLog::default();
        for field in Fields::of(sent) {
            let (number, wire) = field?;
            match number {
                1 => log.time = wire.fixed64()?,
                5 => self.any_value(wire, &mut log.body)?,
                6 => self.attribute(wire, &mut log.attributes)?,
                9 => log.trace_id = wire.bytes()?,
                10 => log.span_id = wire.bytes()?,
                11 => log.observed = wire.fixed64()?,
                12 => log.event_name = self.text(wire)?,
                2 | 7 => drop(wire.varint()?),
                3 => drop(wire.bytes()?),
                8 => wire.fixed32()?,
                _ => {}
            }
        }
        Ok(log)
    }

    #[inline]
    fn attribute(&mut self, sent: Wire<'a>, attributes: &mut RawAttributes<'a>) -> Result<()> {
        let (key, value) = self.key_value(sent)?;
        attributes.push(key, value);
        Ok(())
    }

    #[inline]
    fn key_value(&mut self, sent: Wire<'a>) -> Result<(Cow<'a, str>, RawValue<'a>)> {
        let sent = sent.bytes()?;
        match pair(sent) {
            Some((key, Plain::Text(text))) => {
                Ok((self.mending(key), RawValue::Str(self.mending(text))))
            }
            Some((key, Plain::Int(number))) => {
                Ok((self.mending(key), RawValue::Int(number.into())))
            }
            None => self.any_key_value(sent),
        }
    }

    fn any_key_value(&mut self, sent: &'a [u8]) -> Result<(Cow<'a, str>, RawValue<'a>)> {
        let (mut key, mut value) = (Cow::default(), RawValue::Null);
        for field in Fields::of(sent) {
            match field? {
                (1, wire) => key = self.text(wire)?,
                (2, wire) => self.any_value(wire, &mut value)?,
                (3, wire) => drop(wire.varint()?),
                _ => {}
            }
        }
        Ok((key, value))
    }

    /// Reads a value over the one that is there.
    #[inline]
    fn any_value(&mut self, sent: Wire<'a>, value: &mut RawValue<'a>) -> Result<()> {
        for field in Fields::of(sent.bytes()?) {
            let (number, wire) = field?;
            match number {
                1 => *value = RawValue::Str(self.text(wire)?),
                2 => *value = RawValue::Bool(wire.varint()? != 0),
                3 => *value = RawValue::Int(wire.varint()?.cast_signed()),
                4 => *value = RawValue::Double(f64::from_bits(wire.fixed64()?)),
                5 => self.array(wire, value)?,
                6 => self.map(wire, value)?,
                7 => *value = RawValue::Bytes(wire.bytes()?.into()),
                8 => {
                    // An index into a dictionary that these signals do not have.
                    wire.varint()?;
                    *value = RawValue::Null;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn array(&mut self, sent: Wire<'a>, value: &mut RawValue<'a>) -> Result<()> {
        let held = mem::take(value);
        let mut items = if let RawValue::Array(items) = held { items } else { Vec::new() };
        for field in Fields::of(sent.bytes()?) {
            if let (1, wire) = field? {
                let mut item = RawValue::Null;
                self.any_value(wire, &mut item)?;
                items.push(item);
            }
        }
        *value = RawValue::Array(items);
        Ok(())
    }

    fn map(&mut self, sent: Wire<'a>, value: &mut RawValue<'a>) -> Result<()> {
        let held = mem::take(value);
        let mut entries = if let RawValue::Map(entries) = held { entries } else { Vec::new() };
        for field in Fields::of(sent.bytes()?) {
            if let (1, wire) = field? {
                entries.push(self.key_value(wire)?);
            }
        }
        *value = RawValue::Map(entries);
        Ok(())
    }

    #[inline]
    fn text(&mut self, wire: Wire<'a>) -> Result<Cow<'a, str>> {
        Ok(self.mending(wire.bytes()?))
    }

    #[inline]
    fn mending(&mut self, bytes: &'a [u8]) -> Cow<'a, str> {
        let met = if bytes.len() <= MAX_MET_BYTES { self.met.get_mut(slot(bytes)) } else { None };
        if let Some(met) = met.as_deref().filter(|met| met.as_bytes() == bytes) {
            return Cow::Borrowed(met);
        }
        match str::from_utf8(bytes) {
            Ok(text) => {
                if let Some(met) = met {
                    *met = text;
                }
                Cow::Borrowed(text)
            }
            Err(_) => {
                self.mended += 1;
                Cow::Owned(mended(bytes))
            }
        }
    }
}

/// Where a string is among those that were met, by its length and three of its bytes.
fn slot(bytes: &[u8]) -> usize {
    let middle = bytes.get(bytes.len() / 2).copied().unwrap_or_default();
    let last = bytes.last().copied().unwrap_or_default();
    let before = bytes.iter().rev().nth(3).copied().unwrap_or_default();
    (bytes.len() + 5 * usize::from(middle) + 11 * usize::from(last) + 23 * usize::from(before))
        % MET
}

/// Replaces the bytes that are not UTF-8, each by a question mark.
fn mended(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text
}

/// The low half, as protobuf reads 32-bit numbers.
fn low32(number: u64) -> u32 {
    let [.., a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_mended_byte_by_byte() {
        assert_eq!(mended(b"a\xff\xfeb\xe2\x82"), "a??b??");
        assert_eq!(mended("grün".as_bytes()), "grün");
    }
}
