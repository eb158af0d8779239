//! Walks protobuf without allocating, before anything decodes it.
//!
//! A few kilobytes of gzip can hold millions of empty spans, each of which costs hundreds of bytes once decoded. The walk counts
//! what decoding would create, adds up its cost, and stops at the maximal nesting of values. The content of a record is freed
//! before the next record is decoded: for short records it takes a megabyte at most in each decoding thread, and is not counted.

use std::borrow::Cow;
use std::mem::size_of;

use super::report::v1;
use super::wire::{Fields, Wire, pair};
use super::{Refusal, Signal};
use crate::engine::convention::{RawEvent, RawLog, RawSpan, RawValue};
use crate::engine::span::{Log, Resource, Span};

/// Counts and estimates of the content of a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Scan {
    /// Spans, log records or metric data points.
    pub records: u64,
    /// All nested messages.
    pub items: usize,
    /// The most that decoding allocates, in bytes.
    pub estimated_bytes: usize,
    /// Whether values nest deeper than the bound; values below it are not read.
    pub deep: bool,
}

/// Bounds of the walk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The greatest number of nested messages.
    pub max_items: usize,
    /// The deepest nesting of values inside values; deeper ones are left out.
    pub max_nesting: usize,
}

/// A type of message: the bytes that one costs, and the fields that are messages.
struct Message {
    name: &'static str,
    bytes: usize,
    record: bool,
    value: bool,
    /// The field of keys and values, which are mostly plain; 0 if there is none.
    pairs: u32,
    fields: &'static [(u32, &'static Self)],
}

/// Walks a request.
///
/// # Errors
///
/// Refuses what is malformed or over a bound.
pub fn scan(signal: Signal, body: &[u8], bounds: Bounds) -> Result<Scan, Refusal> {
    let mut walk = Walk { bounds, scan: Scan::default(), skipped: 0 };
    walk.message(root(signal), body, 0)?;
    Ok(walk.scan)
}

/// Walks a request. If the request is too short to exceed the number of items, the content of short spans and log records is
/// skipped, and errors in them are found when they are decoded. Of the counts only `records` is complete.
///
/// # Errors
///
/// As [`scan`], for the parts that are walked.
pub(super) fn records(signal: Signal, body: &[u8], bounds: Bounds) -> Result<Scan, Refusal> {
    // No item is shorter than its tag and its length.
    let many = body.len() / 2 > bounds.max_items;
    let whole = many || !matches!(signal, Signal::Traces | Signal::Logs);
    let skipped = if whole { 0 } else { SHORT_RECORD };
    let mut walk = Walk { bounds, scan: Scan::default(), skipped };
    walk.message(root(signal), body, 0)?;
    Ok(walk.scan)
}

fn root(signal: Signal) -> &'static Message {
    match signal {
        Signal::Traces => &TRACES,
        Signal::Logs => &LOGS,
        Signal::Metrics => &METRICS,
        Signal::Reports => &REPORTS,
    }
}

struct Walk {
    bounds: Bounds,
    scan: Scan,
    // The size in bytes up to which records are not walked; 0: all are walked.
    skipped: usize,
}

impl Walk {
    /// Walks one message; the depth of the recursion is bounded by `max_nesting` and the schema.
    fn message(&mut self, message: &Message, sent: &[u8], nesting: usize) -> Result<(), Refusal> {
        for field in Fields::of(sent) {
            let (number, wire) = field.map_err(|malformed| malformed.within(message.name))?;
            let Wire::Bytes(bytes) = wire else { continue };
            if number == message.pairs && self.plain(bytes, nesting) {
                continue;
            }
            match message.fields.iter().find(|(known, _)| *known == number) {
                Some((_, inner)) => self.inner(inner, bytes, nesting)?,
                None => self.scan.estimated_bytes += bytes.len(),
            }
        }
        Ok(())
    }

    fn inner(&mut self, message: &Message, sent: &[u8], nesting: usize) -> Result<(), Refusal> {
        self.scan.items += 1;
        self.scan.records += u64::from(message.record);
        // A growing vector has room for up to twice its elements.
        self.scan.estimated_bytes += 2 * message.bytes;
        if self.scan.items > self.bounds.max_items {
            let max = self.bounds.max_items;
            return Err(Refusal::TooLarge {
                what: "the number of items",
                max,
                key: "ingest.max_request_items",
            });
        }
        if message.record && sent.len() <= self.skipped {
            self.scan.estimated_bytes += sent.len();
            return Ok(());
        }
        let nesting = nesting + usize::from(message.value);
        if nesting > self.bounds.max_nesting {
            // Decoding leaves this value out.
            self.scan.deep = true;
            return Ok(());
        }
        self.message(message, sent, nesting)
    }

    /// Counts a key and a value of the usual form; `false` if they have another form, or a bound might be reached.
    #[inline]
    fn plain(&mut self, sent: &[u8], nesting: usize) -> bool {
        let room = nesting < self.bounds.max_nesting && self.scan.items + 1 < self.bounds.max_items;
        let plain = room && pair(sent).is_some();
        if plain {
            self.scan.items += 2;
            self.scan.estimated_bytes += 2 * (KEY_VALUE.bytes + ANY_VALUE.bytes) + sent.len();
        }
        plain
    }
}

const fn plain(
    name: &'static str,
    bytes: usize,
    fields: &'static [(u32, &'static Message)],
) -> Message {
    Message { name, bytes, record: false, value: false, pairs: 0, fields }
}

/// The bytes of one span: borrowed from the request, and as the engine's [`Span`].
const SPAN_BYTES: usize = size_of::<RawSpan<'_>>() + size_of::<Span>();

/// The bytes of one log record: borrowed from the request, and as the engine's [`Log`] and up to two spans that are made from it.
const LOG_BYTES: usize = size_of::<RawLog<'_>>() + size_of::<Log>() + 2 * size_of::<Span>();

/// The bytes of one attribute.
const KEY_VALUE_BYTES: usize = size_of::<(Cow<'_, str>, RawValue<'_>)>();

/// The largest short record, in bytes: nearly all records without texts are short, and most with texts.
const SHORT_RECORD: usize = 16 << 10;

static TRACES: Message = plain("ExportTraceServiceRequest", 0, &[(1, &RESOURCE_SPANS)]);
static RESOURCE_SPANS: Message =
    plain("ResourceSpans", size_of::<Resource>(), &[(1, &RESOURCE), (2, &SCOPE_SPANS)]);
static SCOPE_SPANS: Message = plain("ScopeSpans", 0, &[(2, &SPAN), (1, &SCOPE)]);
static SPAN: Message = Message {
    name: "Span",
    bytes: SPAN_BYTES,
    record: true,
    value: false,
    pairs: 9,
    fields: &[(9, &KEY_VALUE), (11, &EVENT), (13, &LINK), (15, &STATUS)],
};
static EVENT: Message = plain("Event", size_of::<RawEvent<'_>>(), &[(3, &KEY_VALUE)]);
static LINK: Message = plain("Link", size_of::<(&[u8], &[u8])>(), &[(4, &KEY_VALUE)]);
static STATUS: Message = plain("Status", 0, &[]);
static RESOURCE: Message = Message {
    name: "Resource",
    bytes: 0,
    record: false,
    value: false,
    pairs: 1,
    fields: &[(1, &KEY_VALUE), (3, &ENTITY)],
};
static ENTITY: Message = plain("EntityRef", 0, &[]);
static SCOPE: Message = plain("InstrumentationScope", 0, &[(3, &KEY_VALUE)]);
static KEY_VALUE: Message = Message {
    name: "KeyValue",
    bytes: KEY_VALUE_BYTES,
    record: false,
    value: false,
    pairs: 0,
    fields: &[(2, &ANY_VALUE)],
};
static ANY_VALUE: Message = Message {
    name: "AnyValue",
    bytes: size_of::<RawValue<'_>>(),
    record: false,
    value: true,
    pairs: 0,
    fields: &[(5, &ARRAY), (6, &KEY_VALUES)],
};
static ARRAY: Message = plain("ArrayValue", 0, &[(1, &ANY_VALUE)]);
static KEY_VALUES: Message = plain("KeyValueList", 0, &[(1, &KEY_VALUE)]);
static LOGS: Message = plain("ExportLogsServiceRequest", 0, &[(1, &RESOURCE_LOGS)]);
static RESOURCE_LOGS: Message =
    plain("ResourceLogs", size_of::<Resource>(), &[(1, &RESOURCE), (2, &SCOPE_LOGS)]);
static SCOPE_LOGS: Message = plain("ScopeLogs", 0, &[(2, &LOG), (1, &SCOPE)]);
static LOG: Message = Message {
    name: "LogRecord",
    bytes: LOG_BYTES,
    record: true,
    value: false,
    pairs: 6,
    fields: &[(5, &ANY_VALUE), (6, &KEY_VALUE)],
};
static METRICS: Message = plain("ExportMetricsServiceRequest", 0, &[(1, &RESOURCE_METRICS)]);
static RESOURCE_METRICS: Message = plain("ResourceMetrics", 0, &[(2, &SCOPE_METRICS)]);
static SCOPE_METRICS: Message = plain("ScopeMetrics", 0, &[(2, &METRIC)]);
static METRIC: Message =
    plain("Metric", 0, &[(5, &POINTS), (7, &POINTS), (9, &POINTS), (10, &POINTS), (11, &POINTS)]);
static POINTS: Message = plain("data points", 0, &[(1, &POINT)]);
static POINT: Message =
    Message { name: "data point", bytes: 0, record: true, value: false, pairs: 0, fields: &[] };
static REPORTS: Message = plain("ReportRequest", 0, &[(1, &REPORT)]);
static REPORT: Message = Message {
    name: "Report",
    bytes: size_of::<v1::Report>() + size_of::<crate::engine::span::Report>(),
    record: true,
    value: false,
    pairs: 0,
    fields: &[(5, &RUN)],
};
static RUN: Message = plain("Run", 0, &[(1, &AGENT)]);
static AGENT: Message = plain("Agent", size_of::<v1::Agent>(), &[]);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { max_items: 1_000, max_nesting: 32 };

    /// A message of one length-delimited field.
    fn field(number: u8, inner: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
        bytes.extend_from_slice(inner);
        bytes
    }

    fn nested(depth: usize) -> Vec<u8> {
        let mut value = vec![0x18, 1];
        for _ in 1..depth {
            value = field(5, &field(1, &value));
        }
        field(1, &field(2, &field(2, &field(9, &field(2, &value)))))
    }

    #[test]
    fn empty_spans_are_counted_before_they_cost() {
        let spans: Vec<u8> = field(2, &[]).repeat(900);
        let scan = scan(Signal::Traces, &field(1, &field(2, &spans)), BOUNDS).unwrap();
        assert_eq!((scan.records, scan.items), (900, 902));
        assert!(scan.estimated_bytes > 900 * SPAN_BYTES);
        assert_eq!(records(Signal::Traces, &field(1, &field(2, &spans)), BOUNDS).unwrap(), scan);
        let spans: Vec<u8> = field(2, &[]).repeat(1_001);
        let refused = super::scan(Signal::Traces, &field(1, &field(2, &spans)), BOUNDS);
        assert!(matches!(refused, Err(Refusal::TooLarge { .. })));
    }

    #[test]
    fn nesting_is_bounded_whatever_the_stack() {
        let looked = |depth| scan(Signal::Traces, &nested(depth), BOUNDS).unwrap();
        assert_eq!((looked(32).deep, looked(33).deep, looked(1_000).deep), (false, true, true));
        // The first value that is too deep is noticed, nothing in it is.
        assert_eq!(
            (looked(33).items, looked(1_000).items),
            (looked(32).items + 2, looked(33).items)
        );
    }

    #[test]
    fn short_records_are_counted_by_their_bytes() {
        let request = |span: &[u8]| field(1, &field(2, &field(2, span)));
        let events = request(&field(11, &[]).repeat(100));
        let looked = scan(Signal::Traces, &events, BOUNDS).unwrap();
        let counted = records(Signal::Traces, &events, BOUNDS).unwrap();
        assert_eq!((looked.records, looked.items, counted.records), (1, 103, 1));
        assert!(counted.estimated_bytes > 2 * SPAN_BYTES + 200);
        // Long records are walked, and so are all records of a request that may have too many items.
        let long = request(&[field(5, &[b'a'; SHORT_RECORD]), field(11, &[])].concat());
        let looked = |body: &[u8], bounds| records(Signal::Traces, body, bounds).unwrap().items;
        assert_eq!(looked(&long, Bounds { max_items: 1 << 20, ..BOUNDS }), 4);
        assert_eq!(looked(&events, Bounds { max_items: 103, ..BOUNDS }), 103);
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            for signal in [Signal::Traces, Signal::Logs, Signal::Metrics, Signal::Reports] {
                let looked = scan(signal, &body, BOUNDS);
                let counted = records(signal, &body, BOUNDS);
                prop_assert!(looked.is_err() || counted.is_ok());
                if let (Ok(looked), Ok(counted)) = (looked, counted) {
                    prop_assert_eq!(looked.records, counted.records);
                }
            }
        }
    }
}
