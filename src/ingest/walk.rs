//! OTLP protobuf, borrowed from the bytes: no message is built, nothing is copied, only what is used is looked at.
//!
//! Fields may come in any order (Go's Collector sends a resource after its spans), and more than once: of a value the
//! last holds, messages and lists are merged, as protobuf has it. The pre-scan has bounded nesting and counts before.

use std::borrow::Cow;
use std::{mem, str};

use super::Refusal;
use super::builder::{Builder, Sent, SentLog, event, status};
use crate::engine::convention::{RawAttributes, RawScope, RawValue};

/// A field's value on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

/// The fields of a message, in the order sent.
struct Fields<'a> {
    rest: &'a [u8],
}

type Result<T> = std::result::Result<T, Refusal>;

/// Walks an `ExportTraceServiceRequest`.
pub(super) fn traces(body: &[u8], builder: &mut Builder<'_>) -> Result<()> {
    envelope(body, builder, &mut |sent, scope, builder| {
        builder.span(span(sent)?, scope);
        Ok(())
    })
}

/// Walks an `ExportLogsServiceRequest`.
pub(super) fn logs(body: &[u8], builder: &mut Builder<'_>) -> Result<()> {
    envelope(body, builder, &mut |sent, scope, builder| {
        builder.log(log(sent)?, scope);
        Ok(())
    })
}

/// What is done with each span or record, in its scope.
type Record<'f, 'b> = dyn FnMut(&[u8], &RawScope<'_>, &mut Builder<'b>) -> Result<()> + 'f;

/// Walks down to the records: requests, resources and scopes have the same fields for spans and logs.
fn envelope<'b>(body: &[u8], builder: &mut Builder<'b>, record: &mut Record<'_, 'b>) -> Result<()> {
    for field in Fields::of(body) {
        if let (1, wire) = field? {
            resource(wire.bytes()?, builder, record)?;
        }
    }
    Ok(())
}

fn resource<'b>(sent: &[u8], builder: &mut Builder<'b>, record: &mut Record<'_, 'b>) -> Result<()> {
    let mut attributes = RawAttributes::default();
    for field in Fields::of(sent) {
        match field? {
            (1, wire) => {
                for field in Fields::of(wire.bytes()?) {
                    match field? {
                        (1, wire) => attributes.0.push(key_value(wire.bytes()?)?),
                        (2, wire) => drop(wire.varint()?),
                        (3, wire) => drop(wire.bytes()?),
                        _ => {}
                    }
                }
            }
            (3, wire) => drop(wire.text()?),
            _ => {}
        }
    }
    builder.resource(attributes);
    for field in Fields::of(sent) {
        if let (2, wire) = field? {
            scope(wire.bytes()?, builder, record)?;
        }
    }
    Ok(())
}

fn scope<'b>(sent: &[u8], builder: &mut Builder<'b>, record: &mut Record<'_, 'b>) -> Result<()> {
    let mut scope = RawScope::default();
    for field in Fields::of(sent) {
        match field? {
            (1, wire) => {
                for field in Fields::of(wire.bytes()?) {
                    match field? {
                        (1, wire) => scope.name = wire.text()?.into(),
                        (2, wire) => scope.version = wire.text()?.into(),
                        (3, wire) => drop(key_value(wire.bytes()?)?),
                        (4, wire) => drop(wire.varint()?),
                        _ => {}
                    }
                }
            }
            (3, wire) => drop(wire.text()?),
            _ => {}
        }
    }
    for field in Fields::of(sent) {
        if let (2, wire) = field? {
            record(wire.bytes()?, &scope, builder)?;
        }
    }
    Ok(())
}

fn span(sent: &[u8]) -> Result<Sent<'_>> {
    let mut span = Sent::default();
    for field in Fields::of(sent) {
        let (number, wire) = field?;
        match number {
            1 => span.trace_id = wire.bytes()?,
            2 => span.span_id = wire.bytes()?,
            3 => drop(wire.text()?),
            4 => span.parent = wire.bytes()?,
            5 => span.name = wire.text()?,
            7 => span.start = wire.fixed64()?,
            8 => span.end = wire.fixed64()?,
            9 => span.attributes.0.push(key_value(wire.bytes()?)?),
            10 => span.dropped_attributes = low32(wire.varint()?),
            11 => {
                let (name, time, attributes) = span_event(wire.bytes()?)?;
                span.events.push(event(name, time, attributes));
            }
            13 => span.links.push(link(wire.bytes()?)?),
            15 => {
                for field in Fields::of(wire.bytes()?) {
                    match field? {
                        (2, wire) => span.status_message = wire.text()?,
                        // An enum is the low half of its number, as a signed one.
                        (3, wire) => {
                            let code = low32(wire.varint()?).cast_signed();
                            span.status = status(code.into());
                        }
                        _ => {}
                    }
                }
            }
            6 | 12 | 14 => drop(wire.varint()?),
            16 => wire.fixed32()?,
            _ => {}
        }
    }
    Ok(span)
}

fn span_event(sent: &[u8]) -> Result<(&str, u64, RawAttributes<'_>)> {
    let (mut name, mut time, mut attributes) = ("", 0, RawAttributes::default());
    for field in Fields::of(sent) {
        match field? {
            (1, wire) => time = wire.fixed64()?,
            (2, wire) => name = wire.text()?,
            (3, wire) => attributes.0.push(key_value(wire.bytes()?)?),
            (4, wire) => drop(wire.varint()?),
            _ => {}
        }
    }
    Ok((name, time, attributes))
}

fn link(sent: &[u8]) -> Result<(&[u8], &[u8])> {
    let mut ids: (&[u8], &[u8]) = (&[], &[]);
    for field in Fields::of(sent) {
        match field? {
            (1, wire) => ids.0 = wire.bytes()?,
            (2, wire) => ids.1 = wire.bytes()?,
            (3, wire) => drop(wire.text()?),
            (4, wire) => drop(key_value(wire.bytes()?)?),
            (5, wire) => drop(wire.varint()?),
            (6, wire) => wire.fixed32()?,
            _ => {}
        }
    }
    Ok(ids)
}

fn log(sent: &[u8]) -> Result<SentLog<'_>> {
    let mut log = SentLog::default();
    for field in Fields::of(sent) {
        let (number, wire) = field?;
        match number {
            1 => log.time = wire.fixed64()?,
            5 => any_value(wire.bytes()?, &mut log.body)?,
            6 => log.attributes.0.push(key_value(wire.bytes()?)?),
            9 => log.trace_id = wire.bytes()?,
            10 => log.span_id = wire.bytes()?,
            11 => log.observed = wire.fixed64()?,
            12 => log.event_name = wire.text()?,
            2 | 7 => drop(wire.varint()?),
            3 => drop(wire.text()?),
            8 => wire.fixed32()?,
            _ => {}
        }
    }
    Ok(log)
}

fn key_value(sent: &[u8]) -> Result<(Cow<'_, str>, RawValue<'_>)> {
    let (mut key, mut value) = ("", RawValue::Null);
    for field in Fields::of(sent) {
        match field? {
            (1, wire) => key = wire.text()?,
            (2, wire) => any_value(wire.bytes()?, &mut value)?,
            (3, wire) => drop(wire.varint()?),
            _ => {}
        }
    }
    Ok((key.into(), value))
}

/// Reads a value over the one that is there.
fn any_value<'a>(sent: &'a [u8], value: &mut RawValue<'a>) -> Result<()> {
    for field in Fields::of(sent) {
        let (number, wire) = field?;
        match number {
            1 => *value = RawValue::Str(wire.text()?.into()),
            2 => *value = RawValue::Bool(wire.varint()? != 0),
            3 => *value = RawValue::Int(wire.varint()?.cast_signed()),
            4 => *value = RawValue::Double(f64::from_bits(wire.fixed64()?)),
            5 => {
                let held = mem::take(value);
                let mut items = if let RawValue::Array(items) = held { items } else { Vec::new() };
                for field in Fields::of(wire.bytes()?) {
                    if let (1, wire) = field? {
                        let mut item = RawValue::Null;
                        any_value(wire.bytes()?, &mut item)?;
                        items.push(item);
                    }
                }
                *value = RawValue::Array(items);
            }
            6 => {
                let held = mem::take(value);
                let mut entries = if let RawValue::Map(held) = held { held } else { Vec::new() };
                for field in Fields::of(wire.bytes()?) {
                    if let (1, wire) = field? {
                        entries.push(key_value(wire.bytes()?)?);
                    }
                }
                *value = RawValue::Map(entries);
            }
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

impl<'a> Fields<'a> {
    fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn varint(&mut self) -> Result<u64> {
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
        Err(malformed("a varint that does not end"))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| malformed("a truncated field"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        if tag > u64::from(u32::MAX) {
            return Err(malformed("a field number beyond the largest"));
        }
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(fixed(self.take(8)?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            _ => return Err(malformed("an unknown wire type")),
        };
        match tag >> 3 {
            0 => Err(malformed("field number 0")),
            number => Ok((number, wire)),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // An error is the last that is heard of a message.
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Result<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(another_type()) }
    }

    fn text(self) -> Result<&'a str> {
        str::from_utf8(self.bytes()?).map_err(|_| malformed("a string that is not UTF-8"))
    }

    fn varint(self) -> Result<u64> {
        if let Self::Varint(number) = self { Ok(number) } else { Err(another_type()) }
    }

    fn fixed64(self) -> Result<u64> {
        if let Self::Fixed64(number) = self { Ok(number) } else { Err(another_type()) }
    }

    fn fixed32(self) -> Result<()> {
        if let Self::Fixed32 = self { Ok(()) } else { Err(another_type()) }
    }
}

fn fixed(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The low half, as protobuf reads 32-bit numbers.
fn low32(number: u64) -> u32 {
    let [.., a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn another_type() -> Refusal {
    malformed("a field of another type")
}

fn malformed(why: &str) -> Refusal {
    Refusal::Malformed { what: "request", why: why.to_owned() }
}
