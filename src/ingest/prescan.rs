//! Walks protobuf without allocating, before anything decodes it.
//!
//! A few kilobytes of gzip can hold millions of empty spans, each of which costs hundreds of bytes once decoded. The
//! walk counts what decoding would make, adds up what that would cost, bounds nesting, and finds strings that are
//! not UTF-8, which would make a strict decoder drop the whole request.

use std::mem::size_of;
use std::ops::Range;

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, span};

use super::{Refusal, Signal};
use crate::engine::update;

/// What a request holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Scan {
    /// Spans, log records or metric data points.
    pub records: u64,
    /// Messages inside messages, all of them.
    pub items: usize,
    /// What decoding allocates, at most, in bytes.
    pub estimated_bytes: usize,
    /// Where strings are that are not UTF-8.
    pub bad_strings: Vec<Range<usize>>,
}

/// Bounds of the walk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Messages inside messages.
    pub max_items: usize,
    /// Values inside values.
    pub max_nesting: usize,
}

/// Strings that are not UTF-8 beyond which a request is refused: nobody sends that by mistake.
const MAX_BAD_STRINGS: usize = 100_000;

/// What a field holds.
#[derive(Clone, Copy)]
enum Field {
    Text,
    Message(&'static Message),
    Other,
}

/// A message: what it costs, and its fields.
struct Message {
    name: &'static str,
    bytes: usize,
    record: bool,
    value: bool,
    field: fn(u64) -> Field,
}

/// Walks a request.
///
/// # Errors
///
/// Refuses what is malformed or over a bound.
pub fn scan(signal: Signal, body: &[u8], bounds: Bounds) -> Result<Scan, Refusal> {
    let root = match signal {
        Signal::Traces => &TRACES,
        Signal::Logs => &LOGS,
        Signal::Metrics => &METRICS,
        Signal::Reports => &REPORTS,
    };
    let mut walk = Walk { body, bounds, scan: Scan::default() };
    walk.message(root, 0..body.len(), 0)?;
    Ok(walk.scan)
}

struct Walk<'a> {
    body: &'a [u8],
    bounds: Bounds,
    scan: Scan,
}

impl Walk<'_> {
    /// Walks one message; the depth of the recursion is bounded by `max_nesting` and the schema.
    fn message(
        &mut self,
        message: &Message,
        range: Range<usize>,
        nesting: usize,
    ) -> Result<(), Refusal> {
        let malformed = |why: &str| Refusal::Malformed { what: message.name, why: why.to_owned() };
        let mut at = range.start;
        while at < range.end {
            let (tag, next) =
                varint(self.body, at, range.end).ok_or_else(|| malformed("a truncated tag"))?;
            let (number, wire) = (tag >> 3, tag & 7);
            if number == 0 {
                return Err(malformed("field number 0"));
            }
            at = match wire {
                0 => {
                    varint(self.body, next, range.end)
                        .ok_or_else(|| malformed("a truncated number"))?
                        .1
                }
                1 => next + 8,
                5 => next + 4,
                2 => {
                    let (length, start) = varint(self.body, next, range.end)
                        .ok_or_else(|| malformed("a truncated length"))?;
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let end = start.saturating_add(length);
                    if end > range.end {
                        return Err(malformed("a field longer than its message"));
                    }
                    self.field((message.field)(number), start..end, nesting)?;
                    end
                }
                _ => return Err(malformed("an unknown wire type")),
            };
            if at > range.end {
                return Err(malformed("a truncated number"));
            }
        }
        Ok(())
    }

    fn field(&mut self, field: Field, range: Range<usize>, nesting: usize) -> Result<(), Refusal> {
        match field {
            Field::Other => self.scan.estimated_bytes += range.len(),
            Field::Text => {
                self.scan.estimated_bytes += range.len();
                if std::str::from_utf8(&self.body[range.clone()]).is_err() {
                    self.scan.bad_strings.push(range);
                    if self.scan.bad_strings.len() > MAX_BAD_STRINGS {
                        let why = "more than 100,000 strings are not UTF-8".to_owned();
                        return Err(Refusal::Malformed { what: "request", why });
                    }
                }
            }
            Field::Message(message) => {
                self.scan.items += 1;
                self.scan.records += u64::from(message.record);
                // A growing vector holds up to twice what is in it.
                self.scan.estimated_bytes += 2 * message.bytes;
                if self.scan.items > self.bounds.max_items {
                    let max = self.bounds.max_items;
                    return Err(Refusal::TooLarge {
                        what: "the number of items",
                        max,
                        key: "ingest.max_request_items",
                    });
                }
                let nesting = nesting + usize::from(message.value);
                if nesting > self.bounds.max_nesting {
                    let why = format!(
                        "values nest deeper than {} (`ingest.max_nesting`)",
                        self.bounds.max_nesting
                    );
                    return Err(Refusal::Malformed { what: "attribute", why });
                }
                self.message(message, range, nesting)?;
            }
        }
        Ok(())
    }
}

/// Reads a varint of at most ten bytes; returns it and where it ends.
fn varint(body: &[u8], start: usize, end: usize) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (count, at) in (start..end).enumerate().take(10) {
        let byte = *body.get(at)?;
        value |= u64::from(byte & 0x7f) << (7 * count);
        if byte < 0x80 {
            return Some((value, at + 1));
        }
    }
    None
}

const fn plain(name: &'static str, bytes: usize, field: fn(u64) -> Field) -> Message {
    Message { name, bytes, record: false, value: false, field }
}

/// What one decoded span costs: as protobuf, and as the engine's.
const SPAN_BYTES: usize = size_of::<Span>() + size_of::<crate::engine::span::Span>();

static TRACES: Message = plain("ExportTraceServiceRequest", 0, |field| match field {
    1 => Field::Message(&RESOURCE_SPANS),
    _ => Field::Other,
});
static RESOURCE_SPANS: Message =
    plain("ResourceSpans", size_of::<ResourceSpans>(), |field| match field {
        1 => Field::Message(&RESOURCE),
        2 => Field::Message(&SCOPE_SPANS),
        3 => Field::Text,
        _ => Field::Other,
    });
static SCOPE_SPANS: Message = plain("ScopeSpans", size_of::<ScopeSpans>(), |field| match field {
    1 => Field::Message(&SCOPE),
    2 => Field::Message(&SPAN),
    3 => Field::Text,
    _ => Field::Other,
});
static SPAN: Message = Message {
    name: "Span",
    bytes: SPAN_BYTES,
    record: true,
    value: false,
    field: |field| match field {
        3 | 5 => Field::Text,
        9 => Field::Message(&KEY_VALUE),
        11 => Field::Message(&EVENT),
        13 => Field::Message(&LINK),
        15 => Field::Message(&STATUS),
        _ => Field::Other,
    },
};
static EVENT: Message = plain("Event", size_of::<span::Event>(), |field| match field {
    2 => Field::Text,
    3 => Field::Message(&KEY_VALUE),
    _ => Field::Other,
});
static LINK: Message = plain("Link", size_of::<span::Link>(), |field| match field {
    3 => Field::Text,
    4 => Field::Message(&KEY_VALUE),
    _ => Field::Other,
});
static STATUS: Message = plain("Status", 0, |field| match field {
    2 => Field::Text,
    _ => Field::Other,
});
static RESOURCE: Message = plain("Resource", size_of::<Resource>(), |field| match field {
    1 => Field::Message(&KEY_VALUE),
    3 => Field::Message(&ENTITY),
    _ => Field::Other,
});
static ENTITY: Message = plain("EntityRef", 96, |field| match field {
    1..=4 => Field::Text,
    _ => Field::Other,
});
static SCOPE: Message = plain("InstrumentationScope", 0, |field| match field {
    1 | 2 => Field::Text,
    3 => Field::Message(&KEY_VALUE),
    _ => Field::Other,
});
static KEY_VALUE: Message = plain("KeyValue", size_of::<KeyValue>(), |field| match field {
    1 => Field::Text,
    2 => Field::Message(&ANY_VALUE),
    _ => Field::Other,
});
static ANY_VALUE: Message = Message {
    name: "AnyValue",
    bytes: size_of::<AnyValue>(),
    record: false,
    value: true,
    field: |field| match field {
        1 => Field::Text,
        5 => Field::Message(&ARRAY),
        6 => Field::Message(&KEY_VALUES),
        _ => Field::Other,
    },
};
static ARRAY: Message = plain("ArrayValue", 0, |field| match field {
    1 => Field::Message(&ANY_VALUE),
    _ => Field::Other,
});
static KEY_VALUES: Message = plain("KeyValueList", 0, |field| match field {
    1 => Field::Message(&KEY_VALUE),
    _ => Field::Other,
});
static LOGS: Message = plain("ExportLogsServiceRequest", 0, |field| match field {
    1 => Field::Message(&RESOURCE_LOGS),
    _ => Field::Other,
});
static RESOURCE_LOGS: Message =
    plain("ResourceLogs", size_of::<ResourceSpans>(), |field| match field {
        1 => Field::Message(&RESOURCE),
        2 => Field::Message(&SCOPE_LOGS),
        3 => Field::Text,
        _ => Field::Other,
    });
static SCOPE_LOGS: Message = plain("ScopeLogs", size_of::<ScopeSpans>(), |field| match field {
    1 => Field::Message(&SCOPE),
    2 => Field::Message(&LOG),
    3 => Field::Text,
    _ => Field::Other,
});
static LOG: Message = Message {
    name: "LogRecord",
    bytes: size_of::<LogRecord>() + size_of::<crate::engine::span::Log>(),
    record: true,
    value: false,
    field: |field| match field {
        3 | 12 => Field::Text,
        5 => Field::Message(&ANY_VALUE),
        6 => Field::Message(&KEY_VALUE),
        _ => Field::Other,
    },
};
static METRICS: Message = plain("ExportMetricsServiceRequest", 0, |field| match field {
    1 => Field::Message(&RESOURCE_METRICS),
    _ => Field::Other,
});
static RESOURCE_METRICS: Message = plain("ResourceMetrics", 0, |field| match field {
    2 => Field::Message(&SCOPE_METRICS),
    _ => Field::Other,
});
static SCOPE_METRICS: Message = plain("ScopeMetrics", 0, |field| match field {
    2 => Field::Message(&METRIC),
    _ => Field::Other,
});
static METRIC: Message = plain("Metric", 0, |field| match field {
    5 | 7 | 9 | 10 | 11 => Field::Message(&POINTS),
    _ => Field::Other,
});
static POINTS: Message = plain("data points", 0, |field| match field {
    1 => Field::Message(&POINT),
    _ => Field::Other,
});
static POINT: Message =
    Message { name: "data point", bytes: 0, record: true, value: false, field: |_| Field::Other };
static REPORTS: Message = plain("ReportRequest", 0, |field| match field {
    1 => Field::Message(&REPORT),
    _ => Field::Other,
});
static REPORT: Message = Message {
    name: "Report",
    bytes: size_of::<update::Report>() + size_of::<crate::engine::span::Report>(),
    record: true,
    value: false,
    field: |field| match field {
        1..=4 | 6 | 8 => Field::Text,
        5 => Field::Message(&RUN),
        _ => Field::Other,
    },
};
static RUN: Message = plain("Run", 0, |field| match field {
    1 => Field::Message(&AGENT_KEY),
    2..=4 => Field::Text,
    _ => Field::Other,
});
static AGENT_KEY: Message = plain("AgentKey", size_of::<update::AgentKey>(), |field| match field {
    1..=5 => Field::Text,
    _ => Field::Other,
});

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
        let spans: Vec<u8> = field(2, &[]).repeat(1_001);
        let refused = super::scan(Signal::Traces, &field(1, &field(2, &spans)), BOUNDS);
        assert!(matches!(refused, Err(Refusal::TooLarge { .. })));
    }

    #[test]
    fn nesting_is_bounded_whatever_the_stack() {
        assert!(scan(Signal::Traces, &nested(32), BOUNDS).is_ok());
        assert!(scan(Signal::Traces, &nested(33), BOUNDS).is_err());
        assert!(scan(Signal::Traces, &nested(1_000), BOUNDS).is_err());
    }

    #[test]
    fn strings_that_are_no_utf8_are_found() {
        let body = field(1, &field(2, &field(2, &field(3, b"a\xff"))));
        let scan = scan(Signal::Traces, &body, BOUNDS).unwrap();
        assert_eq!(scan.bad_strings, vec![body.len() - 2..body.len(); 1]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            for signal in [Signal::Traces, Signal::Logs, Signal::Metrics, Signal::Reports] {
                let _ = scan(signal, &body, BOUNDS);
            }
        }
    }
}
