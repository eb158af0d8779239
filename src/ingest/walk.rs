//! OTLP protobuf, borrowed from the bytes: no message is built, nothing is copied, and only fields that are used are read.
//!
//! Fields may come in any order (Go's Collector sends a resource after its spans), and more than once: the last of several values
//! is read, and messages and lists are merged, as protobuf demands. The pre-scan has bounded the counts before. A string that is
//! not UTF-8, a field of another type and a value that nests too deep are mended or left out alone, so that the rest of the request
//! survives.

use std::borrow::Cow;
use std::{mem, str};

use super::builder::{Builder, EncodedLog, EncodedSpan, OLD_SCOPE, event, low32, status};
use super::outline;
use super::repair::Odd;
use super::wire::{Fields, Malformed, Wire, pair};
use crate::engine::convention::{Outline, Plain, RawAttributes, RawScope, RawValue, Scope, mend};

/// A walk over a request: the builder that gets its records, and counts of mended values.
struct Walk<'a, 'w, 'b> {
    builder: &'w mut Builder<'b>,
    record: fn(&mut Self, &'a [u8], Scope) -> Result<()>,
    max_nesting: usize,
    of_logs: bool,
    // The number of values around the current one.
    nesting: usize,
    odd: Odd,
    // A list that is reused for each span.
    attributes: RawAttributes<'a>,
    // The outline of the current span, for its plan.
    outline: Outline<'a>,
}

type Result<T> = std::result::Result<T, Malformed>;

/// The field of a resource's instrumentation libraries, which are called scopes today.
const OLD_SCOPES: u32 = 1000;

/// A number of attributes that most spans stay below.
const USUAL_ATTRIBUTES: usize = 16;

/// Walks an `ExportTraceServiceRequest`.
///
/// # Errors
///
/// Returns what is wrong with the first malformed message.
pub(super) fn traces(body: &[u8], max_nesting: usize, builder: &mut Builder<'_>) -> Result<()> {
    Walk::new(max_nesting, builder, Walk::planned_or_not).request(body)
}

/// Walks an `ExportLogsServiceRequest`.
///
/// # Errors
///
/// As [`traces`].
pub(super) fn logs(body: &[u8], max_nesting: usize, builder: &mut Builder<'_>) -> Result<()> {
    Walk::new(max_nesting, builder, |walk, sent, scope| {
        let log = walk.log(sent)?;
        walk.builder.log(log, scope);
        Ok(())
    })
    .of_logs()
    .request(body)
}

impl<'a, 'w, 'b> Walk<'a, 'w, 'b> {
    fn new(
        max_nesting: usize,
        builder: &'w mut Builder<'b>,
        record: fn(&mut Self, &'a [u8], Scope) -> Result<()>,
    ) -> Self {
        let attributes = RawAttributes::with_capacity(USUAL_ATTRIBUTES);
        let odd = Odd::default();
        let outline = Outline::default();
        Self { builder, record, max_nesting, of_logs: false, nesting: 0, odd, attributes, outline }
    }

    fn of_logs(self) -> Self {
        Self { of_logs: true, ..self }
    }

    /// Walks a request down to its records: requests, resources and scopes have the same fields for spans and logs.
    fn request(mut self, body: &'a [u8]) -> Result<()> {
        for field in Fields::of(body) {
            match field? {
                (1, Wire::Bytes(sent)) => self.resource(sent)?,
                (1, _) => self.odd.types += 1,
                _ => {}
            }
        }
        self.odd.add_to(self.builder.tally());
        Ok(())
    }

    /// Rejects the records of an instrumentation library, the name of scopes before OTLP 1.0.
    fn old_scope(&mut self, sent: &'a [u8]) -> Result<()> {
        let mut fields = Fields::of(sent);
        while fields.next_bytes(2)?.is_some() {
            self.builder.reject(OLD_SCOPE, self.of_logs);
        }
        Ok(())
    }

    fn resource(&mut self, sent: &'a [u8]) -> Result<()> {
        let (mut last, mut several) = (None, false);
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(sent)) => several |= last.replace(sent).is_some(),
                (1 | 2, Wire::Varint(_) | Wire::Fixed64(_) | Wire::Fixed32(_)) => {
                    self.odd.types += 1;
                }
                (OLD_SCOPES, Wire::Bytes(sent)) => self.old_scope(sent)?,
                _ => {}
            }
        }
        let whole = last.filter(|_| !several);
        if !whole.is_some_and(|whole| self.builder.known_resource(whole)) {
            let before = self.odd;
            let mut attributes = RawAttributes::default();
            let mut fields = Fields::of(sent);
            while let Some(sent) = fields.next_bytes(1)? {
                self.resource_attributes(sent, &mut attributes)?;
            }
            let is_sound = self.builder.resource(attributes) && self.odd == before;
            if let Some(whole) = whole.filter(|_| is_sound) {
                self.builder.keep_resource(whole);
            }
        }
        let mut fields = Fields::of(sent);
        while let Some(sent) = fields.next_bytes(2)? {
            self.scope(sent)?;
        }
        Ok(())
    }

    fn resource_attributes(
        &mut self,
        sent: &'a [u8],
        attributes: &mut RawAttributes<'a>,
    ) -> Result<()> {
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(sent)) => self.attribute(sent, attributes)?,
                (1, _) => self.odd.types += 1,
                // Entities are not used.
                (3, Wire::Bytes(sent)) => Fields::of(sent).try_for_each(|field| field.map(drop))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn scope(&mut self, sent: &'a [u8]) -> Result<()> {
        let mut scope = RawScope::default();
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(sent)) => {
                    for field in Fields::of(sent) {
                        match field? {
                            (1, Wire::Bytes(sent)) => scope.name = self.mending(sent),
                            (2, Wire::Bytes(sent)) => scope.version = self.mending(sent),
                            (3, Wire::Bytes(sent)) => drop(self.key_value(sent)?),
                            (1 | 2, _) => self.odd.types += 1,
                            _ => {}
                        }
                    }
                }
                (1 | 2, Wire::Varint(_) | Wire::Fixed64(_) | Wire::Fixed32(_)) => {
                    self.odd.types += 1;
                }
                _ => {}
            }
        }
        let scope = self.builder.scope(&scope);
        let mut fields = Fields::of(sent);
        while let Some(sent) = fields.next_bytes(2)? {
            (self.record)(self, sent, scope)?;
        }
        Ok(())
    }

    /// Builds a span by its plan, or in full if it has none.
    fn planned_or_not(&mut self, sent: &'a [u8], scope: Scope) -> Result<()> {
        let frame = outline::read(sent, self.builder.names(), &mut self.outline);
        if frame.as_ref().is_some_and(|frame| self.builder.planned(frame, &self.outline, scope)) {
            return Ok(());
        }
        let before = self.odd;
        let span = self.span(sent)?;
        // A span that had to be mended gets no plan.
        let outline = frame.filter(|_| self.odd == before).map(|_| &self.outline);
        self.attributes = self.builder.span(span, outline, scope);
        Ok(())
    }

    fn span(&mut self, sent: &'a [u8]) -> Result<EncodedSpan<'a>> {
        let attributes = mem::take(&mut self.attributes);
        let mut span = EncodedSpan { attributes, ..EncodedSpan::default() };
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(id)) => span.trace_id = id,
                (2, Wire::Bytes(id)) => span.span_id = id,
                (4, Wire::Bytes(id)) => span.parent = id,
                (5, Wire::Bytes(name)) => span.name = self.mending(name),
                (7, Wire::Fixed64(time)) => span.start = time,
                (8, Wire::Fixed64(time)) => span.end = time,
                (9, Wire::Bytes(sent)) => self.attribute(sent, &mut span.attributes)?,
                (10, Wire::Varint(count)) => span.dropped_attributes = low32(count),
                (11, Wire::Bytes(sent)) => {
                    let (name, time, attributes) = self.span_event(sent)?;
                    span.events.push(event(name, time, attributes));
                }
                (13, Wire::Bytes(sent)) => span.links.push(self.link(sent)?),
                (15, Wire::Bytes(sent)) => {
                    for field in Fields::of(sent) {
                        match field? {
                            (2, Wire::Bytes(sent)) => span.status_message = self.mending(sent),
                            (3, Wire::Varint(code)) => span.status = status(code),
                            (2 | 3, _) => self.odd.types += 1,
                            _ => {}
                        }
                    }
                }
                (16, Wire::Fixed32(flags)) => span.flags = flags,
                (1 | 2 | 4 | 5 | 7..=11 | 13 | 15 | 16, _) => self.odd.types += 1,
                _ => {}
            }
        }
        Ok(span)
    }

    fn span_event(&mut self, sent: &'a [u8]) -> Result<(Cow<'a, str>, u64, RawAttributes<'a>)> {
        let (mut name, mut time, mut attributes) = (Cow::default(), 0, RawAttributes::default());
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Fixed64(sent)) => time = sent,
                (2, Wire::Bytes(sent)) => name = self.mending(sent),
                (3, Wire::Bytes(sent)) => self.attribute(sent, &mut attributes)?,
                (1..=3, _) => self.odd.types += 1,
                _ => {}
            }
        }
        Ok((name, time, attributes))
    }

    fn link(&mut self, sent: &'a [u8]) -> Result<(&'a [u8], &'a [u8])> {
        let mut ids: (&[u8], &[u8]) = (&[], &[]);
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(id)) => ids.0 = id,
                (2, Wire::Bytes(id)) => ids.1 = id,
                (4, Wire::Bytes(sent)) => drop(self.key_value(sent)?),
                (1 | 2, _) => self.odd.types += 1,
                _ => {}
            }
        }
        Ok(ids)
    }

    fn log(&mut self, sent: &'a [u8]) -> Result<EncodedLog<'a>> {
        let mut log = EncodedLog::default();
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Fixed64(time)) => log.time = time,
                (5, Wire::Bytes(sent)) => self.any_value(sent, &mut log.body)?,
                (6, Wire::Bytes(sent)) => self.attribute(sent, &mut log.attributes)?,
                (9, Wire::Bytes(id)) => log.trace_id = id,
                (10, Wire::Bytes(id)) => log.span_id = id,
                (11, Wire::Fixed64(time)) => log.observed = time,
                (12, Wire::Bytes(name)) => log.event_name = self.mending(name),
                (1 | 5 | 6 | 9..=12, _) => self.odd.types += 1,
                _ => {}
            }
        }
        Ok(log)
    }

    #[inline]
    fn attribute(&mut self, sent: &'a [u8], attributes: &mut RawAttributes<'a>) -> Result<()> {
        let (key, value) = self.key_value(sent)?;
        attributes.push(key, value);
        Ok(())
    }

    #[inline]
    fn key_value(&mut self, sent: &'a [u8]) -> Result<(Cow<'a, str>, RawValue<'a>)> {
        let Some((key, value)) = pair(sent) else { return self.any_key_value(sent) };
        let value = match value {
            Plain::Text(text) => RawValue::Str(self.mending(text)),
            Plain::Bool(flag) => RawValue::Bool(flag),
            Plain::Int(number) => RawValue::Int(number),
            Plain::Double(number) => RawValue::Double(number),
        };
        Ok((self.mending(key), value))
    }

    fn any_key_value(&mut self, sent: &'a [u8]) -> Result<(Cow<'a, str>, RawValue<'a>)> {
        let (mut key, mut value) = (Cow::default(), RawValue::Null);
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(sent)) => key = self.mending(sent),
                (2, Wire::Bytes(_)) if self.is_deepest() => self.odd.deep += 1,
                (2, Wire::Bytes(sent)) => self.any_value(sent, &mut value)?,
                (1 | 2, _) => self.odd.types += 1,
                _ => {}
            }
        }
        Ok((key, value))
    }

    /// Reads a value into `value`, which may hold an earlier one.
    #[inline]
    fn any_value(&mut self, sent: &'a [u8], value: &mut RawValue<'a>) -> Result<()> {
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(text)) => *value = RawValue::Str(self.mending(text)),
                (2, Wire::Varint(flag)) => *value = RawValue::Bool(flag != 0),
                (3, Wire::Varint(number)) => *value = RawValue::Int(number.cast_signed()),
                (4, Wire::Fixed64(bits)) => *value = RawValue::Double(f64::from_bits(bits)),
                (5, Wire::Bytes(sent)) => self.array(sent, value)?,
                (6, Wire::Bytes(sent)) => self.map(sent, value)?,
                (7, Wire::Bytes(bytes)) => *value = RawValue::Bytes(bytes.into()),
                // An index into a dictionary that these signals do not have.
                (8, Wire::Varint(_)) => *value = RawValue::Null,
                (1..=8, _) => self.odd.types += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn array(&mut self, sent: &'a [u8], value: &mut RawValue<'a>) -> Result<()> {
        let held = mem::take(value);
        let mut items = if let RawValue::Array(items) = held { items } else { Vec::new() };
        self.nesting += 1;
        for field in Fields::of(sent) {
            let mut item = RawValue::Null;
            match field? {
                (1, Wire::Bytes(_)) if self.is_deepest() => self.odd.deep += 1,
                (1, Wire::Bytes(sent)) => self.any_value(sent, &mut item)?,
                (1, _) => {
                    self.odd.types += 1;
                    continue;
                }
                _ => continue,
            }
            items.push(item);
        }
        self.nesting -= 1;
        *value = RawValue::Array(items);
        Ok(())
    }

    fn map(&mut self, sent: &'a [u8], value: &mut RawValue<'a>) -> Result<()> {
        let held = mem::take(value);
        let mut entries = if let RawValue::Map(entries) = held { entries } else { Vec::new() };
        self.nesting += 1;
        for field in Fields::of(sent) {
            match field? {
                (1, Wire::Bytes(sent)) if self.is_deepest() => {
                    entries.push(self.any_key_value(sent)?);
                }
                (1, Wire::Bytes(sent)) => entries.push(self.key_value(sent)?),
                (1, _) => self.odd.types += 1,
                _ => {}
            }
        }
        self.nesting -= 1;
        *value = RawValue::Map(entries);
        Ok(())
    }

    /// Whether values inside the current one are left out.
    fn is_deepest(&self) -> bool {
        self.nesting >= self.max_nesting
    }

    fn mending(&mut self, bytes: &'a [u8]) -> Cow<'a, str> {
        str::from_utf8(bytes).map_or_else(
            |_| {
                self.odd.strings += 1;
                Cow::Owned(mend::utf8(bytes))
            },
            Cow::Borrowed,
        )
    }
}
