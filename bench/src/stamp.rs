//! Stamps new ids and recent times into bytes that are encoded once, so that no span that is sent is a duplicate.
//!
//! Trace ids, span ids, times, session names and ids of calls have a fixed width; their positions are found once by walking the
//! wire format.

use std::ops::Range;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::workload::{ID, SESSION, ending_in};

/// Sessions that traces are drawn from.
const SESSIONS: u64 = 50_000;

/// Digits of a session's name or a call's id.
const DIGITS: usize = 16;

/// A request whose ids and times can be replaced.
pub(super) struct Template {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    /// The number of its spans.
    pub(super) spans: u64,
}

/// The values in which two sendings of a template differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// The seed of new ids: under the same seed, the same old id becomes the same new one.
    pub(super) seed: u64,
    /// The time that times in the template count from, Unix nanoseconds.
    pub(super) start: u64,
}

/// Finds the positions of ids and times in a request.
pub(super) struct Finder {
    sessions: Vec<String>,
    ids: Vec<String>,
}

/// The position of an id or a time, and the position of the old value that the new one is made from.
#[derive(Clone, Copy, Debug)]
struct Mark {
    what: What,
    at: usize,
    old: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    TraceId,
    SpanId,
    Time,
    /// The name of a session, drawn by the trace id.
    Session,
    /// The id of a call, made from the span id.
    Id,
}

/// The fields of a message: their numbers, and the positions of their values.
struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
    end: usize,
}

impl Template {
    /// The number of bytes of the request.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the stamped request to `out`.
    pub(super) fn write(&self, stamp: Stamp, out: &mut Vec<u8>) {
        let first = out.len();
        out.extend_from_slice(&self.bytes);
        // Invariant: marks were found in these bytes, with their whole width after them.
        for Mark { what, at, old } in &self.marks {
            let place = &mut out[first + at..];
            let hash = |width| xxh3_64_with_seed(&self.bytes[*old..old + width], stamp.seed);
            match what {
                What::TraceId => {
                    let new = xxh3_128_with_seed(&self.bytes[*old..old + 16], stamp.seed);
                    place[..16].copy_from_slice(&new.to_be_bytes());
                }
                What::SpanId => place[..8].copy_from_slice(&hash(8).to_be_bytes()),
                What::Time => {
                    let offset: [u8; 8] = std::array::from_fn(|byte| self.bytes[old + byte]);
                    let new = stamp.start.wrapping_add(u64::from_le_bytes(offset));
                    place[..8].copy_from_slice(&new.to_le_bytes());
                }
                What::Session => {
                    let name = format!("{:016x}", hash(16) % SESSIONS);
                    place[..DIGITS].copy_from_slice(name.as_bytes());
                }
                What::Id => {
                    place[..DIGITS].copy_from_slice(format!("{:016x}", hash(8)).as_bytes());
                }
            }
        }
    }
}

impl Finder {
    /// A finder for requests of [`super::workload`].
    pub(super) fn new() -> Self {
        Self { sessions: ending_in(SESSION), ids: ending_in(ID) }
    }

    /// The template of a request.
    pub(super) fn template(&self, request: &ExportTraceServiceRequest) -> Template {
        let bytes = request.encode_to_vec();
        let mut marks = Vec::new();
        let mut spans = 0;
        // ExportTraceServiceRequest.resource_spans, ResourceSpans.scope_spans, ScopeSpans.spans
        for resource in within(&bytes, 0..bytes.len(), 1) {
            for scope in within(&bytes, resource, 2) {
                for span in within(&bytes, scope, 2) {
                    spans += 1;
                    self.span(&bytes, span, &mut marks);
                }
            }
        }
        Template { bytes, marks, spans }
    }

    fn span(&self, bytes: &[u8], span: Range<usize>, marks: &mut Vec<Mark>) {
        let (mut trace_id, mut span_id) = (span.start, span.start);
        for (number, value) in fields(bytes, span) {
            let at = value.start;
            match number {
                // trace_id, which comes first as fields are encoded in order
                1 => {
                    trace_id = at;
                    marks.push(Mark { what: What::TraceId, at, old: at });
                }
                // span_id
                2 => {
                    span_id = at;
                    marks.push(Mark { what: What::SpanId, at, old: at });
                }
                // parent_span_id
                4 => marks.push(Mark { what: What::SpanId, at, old: at }),
                // start_time_unix_nano, end_time_unix_nano
                7 | 8 => marks.push(Mark { what: What::Time, at, old: at }),
                // attributes
                9 => marks.extend(self.attribute(bytes, value, trace_id, span_id)),
                _ => {}
            }
        }
    }

    fn attribute(
        &self,
        bytes: &[u8],
        attribute: Range<usize>,
        trace_id: usize,
        span_id: usize,
    ) -> Option<Mark> {
        // KeyValue.key
        let key = within(bytes, attribute.clone(), 1).next()?;
        let is_one_of =
            |keys: &[String]| keys.iter().any(|of| of.as_bytes() == &bytes[key.clone()]);
        let (what, old) = match (is_one_of(&self.sessions), is_one_of(&self.ids)) {
            (true, _) => (What::Session, trace_id),
            (_, true) => (What::Id, span_id),
            _ => return None,
        };
        // KeyValue.value, AnyValue.string_value
        let text = within(bytes, attribute, 2).find_map(|value| within(bytes, value, 1).next());
        let text = text.filter(|text| text.len() >= DIGITS)?;
        Some(Mark { what, at: text.end - DIGITS, old })
    }
}

/// The positions of the values of one field.
fn within(bytes: &[u8], message: Range<usize>, wanted: u32) -> impl Iterator<Item = Range<usize>> {
    fields(bytes, message).filter(move |(number, _)| *number == wanted).map(|(_, value)| value)
}

fn fields(bytes: &[u8], message: Range<usize>) -> Fields<'_> {
    Fields { bytes, at: message.start, end: message.end }
}

impl Iterator for Fields<'_> {
    type Item = (u32, Range<usize>);

    /// The next field; `None` at the end, and at bytes that are no field.
    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.bytes.get(self.at..self.end).filter(|rest| !rest.is_empty())?;
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        let length = match wire_type {
            WireType::Varint => {
                let before = rest.len();
                let mut ahead = rest;
                decode_varint(&mut ahead).ok()?;
                before - ahead.len()
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => usize::try_from(decode_varint(&mut rest).ok()?).ok()?,
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        let start = self.end - rest.len();
        self.at = start.checked_add(length).filter(|end| *end <= self.end)?;
        Some((number, start..self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use opentelemetry_proto::tonic::trace::v1::Span;

    use super::*;
    use crate::workload::Workload;
    use agentgauge::engine::options::ConventionOptions;
    use agentgauge::engine::span::Operation;
    use agentgauge::ingest::decode::{Decoder, IngestLimits};
    use agentgauge::ingest::{Batch, Encoding, Signal};

    const START: u64 = 1_800_000_000_000_000_000;

    fn stamped(workload: Workload, batch: usize, seed: u64) -> Vec<Vec<u8>> {
        let requests = workload.block(1).requests(batch);
        let write = |request| {
            let mut bytes = Vec::new();
            Finder::new().template(request).write(Stamp { seed, start: START }, &mut bytes);
            bytes
        };
        requests.iter().map(write).collect()
    }

    fn spans(requests: &[Vec<u8>]) -> Vec<Span> {
        let decoded =
            requests.iter().map(|bytes| ExportTraceServiceRequest::decode(&**bytes).unwrap());
        let resources = decoded.flat_map(|request| request.resource_spans);
        resources.flat_map(|of| of.scope_spans).flat_map(|of| of.spans).collect()
    }

    /// The result of agentgauge's own ingest.
    fn read(bytes: &[u8]) -> Batch {
        let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
        decoder.decode_plain(Signal::Traces, Encoding::Protobuf, bytes).unwrap()
    }

    #[test]
    fn ids_are_new_under_a_new_seed_and_traces_keep_their_shape() {
        let mut seen = BTreeSet::new();
        let mut traces = BTreeSet::new();
        for seed in 0..3 {
            for batch in [512, 1] {
                let spans = spans(&stamped(Workload::Lean, batch, seed * 2 + batch as u64));
                let ids: BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
                assert_eq!(ids.len(), 512);
                for span in &spans {
                    let parent = &span.parent_span_id;
                    assert!(parent.is_empty() || ids.contains(parent));
                    assert!(seen.insert(span.span_id.clone()), "an id came again");
                }
                traces.extend(spans.iter().map(|span| span.trace_id.clone()));
            }
        }
        assert_eq!(traces.len() as u64, 6 * Workload::Lean.block(1).traces);
    }

    #[test]
    fn times_are_recent_and_in_order() {
        for span in spans(&stamped(Workload::Lean, 512, 1)) {
            assert!(span.start_time_unix_nano >= START);
            assert!(span.end_time_unix_nano > span.start_time_unix_nano);
            assert!(span.end_time_unix_nano < START + 5_000_000_000);
        }
    }

    #[test]
    fn our_own_ingest_reads_every_span_as_what_it_is() {
        for workload in [Workload::Lean, Workload::Content] {
            let batch = read(&stamped(workload, 512, 7)[0]);
            assert_eq!((batch.tally.spans, batch.spans.len()), (512, 512));
            assert!(batch.tally.rejected.is_empty() && batch.tally.repaired.is_empty());
            let of = |operation| {
                batch.spans.iter().filter(|span| span.operation == operation).collect::<Vec<_>>()
            };
            assert!(of(Operation::Chat).len() > 140 && of(Operation::ExecuteTool).len() > 120);
            for root in of(Operation::InvokeAgent) {
                assert!(root.session.is_some());
            }
            let responses: BTreeSet<_> = of(Operation::Chat)
                .iter()
                .filter_map(|span| span.model.as_ref()?.response_id)
                .collect();
            assert_eq!(responses.len(), of(Operation::Chat).len());
        }
    }
}
