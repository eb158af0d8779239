//! A span, log record or resource as received, borrowed from its bytes.
//!
//! This is the seam between decoding and conventions: the decoders of every encoding
//! build these, conventions read them, and nothing is copied in between.

use std::borrow::Cow;
use std::slice;

use crate::span::{SpanId, Status, Timestamp, TraceId};

/// An attribute value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RawValue<'a> {
    /// No value was set.
    #[default]
    Null,
    /// A string; invalid UTF-8 is already repaired.
    Str(Cow<'a, str>),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float, NaN and infinities included.
    Double(f64),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
    /// A list.
    Array(Vec<Self>),
    /// A map, in the order sent; of equal keys the last holds.
    Map(Vec<(Cow<'a, str>, Self)>),
}

/// A value of the usual kinds, as received: a string may contain invalid UTF-8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain<'a> {
    /// The bytes of a string.
    Text(&'a [u8]),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float, NaN and infinities included.
    Double(f64),
}

/// An attribute as received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawPair<'a> {
    /// The bytes before its value, as they were encoded: its key.
    pub head: &'a [u8],
    /// The bytes of its value, as they were encoded.
    pub sent: &'a [u8],
    /// The decoded value, if it is plain.
    pub value: Option<Plain<'a>>,
}

/// What a plan reads of a span without events and links.
#[derive(Debug, Default)]
pub struct Outline<'a> {
    /// The bytes of its name.
    pub name: &'a [u8],
    /// Status code.
    pub status: Status,
    /// Attributes, in the order sent.
    pub(super) pairs: Vec<RawPair<'a>>,
    /// Where these attributes lead in the tree of plans; `None`: nowhere.
    pub(super) node: Option<usize>,
}

impl<'a> Outline<'a> {
    /// Adds an attribute after the others.
    #[inline]
    pub fn push(&mut self, pair: RawPair<'a>) {
        self.pairs.push(pair);
    }
}

/// The attributes of something, in the order sent; of equal keys the last holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawAttributes<'a> {
    entries: Vec<(Cow<'a, str>, RawValue<'a>)>,
    // Invariant: has the bit of every key's length. Most requested keys are absent, and so is any key of their length.
    lengths: u64,
}

/// A resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawResource<'a> {
    /// Its attributes.
    pub attributes: RawAttributes<'a>,
}

/// An instrumentation scope.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawScope<'a> {
    /// Its name; empty if none was sent.
    pub name: Cow<'a, str>,
    /// Its version; empty if none was sent.
    pub version: Cow<'a, str>,
}

/// A span event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawEvent<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// When it happened; 0 if not sent.
    pub time: Timestamp,
    /// Its attributes.
    pub attributes: RawAttributes<'a>,
}

/// A span link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLink {
    /// The linked trace.
    pub trace_id: TraceId,
    /// The linked span.
    pub span_id: SpanId,
}

/// A span with valid ids and repaired times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawSpan<'a> {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Its parent; `None` for a root.
    pub parent: Option<SpanId>,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Start.
    pub start: Timestamp,
    /// End, never before `start`.
    pub end: Timestamp,
    /// Status code.
    pub status: Status,
    /// Status message; empty if none.
    pub status_message: Cow<'a, str>,
    /// Attributes.
    pub attributes: RawAttributes<'a>,
    /// Events, in the order sent.
    pub events: Vec<RawEvent<'a>>,
    /// Links, in the order sent.
    pub links: Vec<RawLink>,
    /// How many attributes the SDK dropped.
    pub dropped_attributes: u32,
    /// Whether its parent is in another process; `None`: not sent.
    pub remote_parent: Option<bool>,
}

/// A log record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawLog<'a> {
    /// The trace; `None` if not sent.
    pub trace_id: Option<TraceId>,
    /// The span; `None` if not sent.
    pub span_id: Option<SpanId>,
    /// When it happened, else when it was observed, else its arrival.
    pub time: Timestamp,
    /// Position in its request.
    pub index: u32,
    /// The event's name; empty if not sent.
    pub event_name: Cow<'a, str>,
    /// Its body.
    pub body: RawValue<'a>,
    /// Its attributes.
    pub attributes: RawAttributes<'a>,
}

impl<'a> RawAttributes<'a> {
    /// Makes an empty list with room for so many attributes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), lengths: 0 }
    }

    /// Returns the list emptied, for other attributes.
    #[must_use]
    pub fn cleared(mut self) -> Self {
        self.entries.clear();
        self.lengths = 0;
        self
    }

    /// Adds an attribute after the others.
    pub fn push(&mut self, key: Cow<'a, str>, value: RawValue<'a>) {
        self.lengths |= length_bit(&key);
        self.entries.push((key, value));
    }

    /// All keys and values, in order.
    pub fn iter(&self) -> slice::Iter<'_, (Cow<'a, str>, RawValue<'a>)> {
        self.entries.iter()
    }

    /// Returns the key and the value at a place in the order.
    pub fn at(&self, place: usize) -> Option<&(Cow<'a, str>, RawValue<'a>)> {
        self.entries.get(place)
    }

    /// Returns the number of attributes, those with equal keys and those without a value included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the last value under `key`, unless it is null.
    #[inline]
    pub fn get(&self, key: &str) -> Option<&RawValue<'a>> {
        if self.lengths & length_bit(key) == 0 {
            return None;
        }
        let (_, value) = self.entries.iter().rev().find(|(name, _)| name == key)?;
        (*value != RawValue::Null).then_some(value)
    }

    /// Returns the string under `key`, if it is one and not empty.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str().filter(|text| !text.is_empty())
    }
}

impl<'a> FromIterator<(Cow<'a, str>, RawValue<'a>)> for RawAttributes<'a> {
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, RawValue<'a>)>>(entries: I) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        let lengths = entries.iter().fold(0, |all, (key, _)| all | length_bit(key));
        Self { entries, lengths }
    }
}

impl RawValue<'_> {
    /// Returns the string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }
}

#[inline]
fn length_bit(key: &str) -> u64 {
    1 << (key.len() % 64)
}
