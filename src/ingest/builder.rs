//! The one place where decoded spans and log records become the engine's types, whatever their encoding.

use std::borrow::Cow;
use std::sync::Arc;

use super::outline::Frame;
use super::repair::{Repair, ids, parent, rejected, repaired, usage};
use super::report::MAX_LISTED;
use super::{Batch, RequestCounts, Rooms};
use crate::engine::convention::{
    Caps, Conventions, Emitter, Names, Outline, RawAttributes, RawEvent, RawLink, RawLog,
    RawResource, RawScope, RawSpan, RawValue, Scope,
};
use crate::engine::span::{Report, Resource, SpanId, Status, Timestamp, TraceId};

/// The reason for rejecting records in lists of scopes under their name before OTLP 1.0.
pub(super) const OLD_SCOPE: &str = "instrumentation_library";

/// Builds a batch.
pub(super) struct Builder<'a> {
    conventions: &'a Conventions,
    repair: Repair,
    tenant: Option<&'a Arc<str>>,
    resource: Arc<Resource>,
    names: &'a mut Names,
    batch: Batch,
}

/// A span as it is encoded: ids as bytes, times as numbers.
#[derive(Default)]
pub(super) struct EncodedSpan<'a> {
    pub(super) trace_id: &'a [u8],
    pub(super) span_id: &'a [u8],
    pub(super) parent: &'a [u8],
    pub(super) name: Cow<'a, str>,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) status: Status,
    pub(super) status_message: Cow<'a, str>,
    pub(super) attributes: RawAttributes<'a>,
    pub(super) events: Vec<RawEvent<'a>>,
    pub(super) links: Vec<(&'a [u8], &'a [u8])>,
    pub(super) dropped_attributes: u32,
    pub(super) flags: u32,
}

/// A log record as it is encoded.
#[derive(Default)]
pub(super) struct EncodedLog<'a> {
    pub(super) trace_id: &'a [u8],
    pub(super) span_id: &'a [u8],
    pub(super) time: u64,
    pub(super) observed: u64,
    pub(super) event_name: Cow<'a, str>,
    pub(super) body: RawValue<'a>,
    pub(super) attributes: RawAttributes<'a>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        conventions: &'a Conventions,
        names: &'a mut Names,
        repair: Repair,
        tenant: Option<&'a Arc<str>>,
    ) -> Self {
        let batch = Batch { arrival: repair.arrival.unwrap_or_default(), ..Batch::default() };
        Self { conventions, repair, tenant, resource: Arc::default(), names, batch }
    }

    /// Takes the lists of its spans from `rooms`.
    pub(super) fn with_rooms(mut self, rooms: Rooms) -> Self {
        self.batch.rooms = rooms;
        self
    }

    /// Reserves room for the spans that the pre-scan counted.
    pub(super) fn expect(&mut self, spans: u64) {
        self.batch.spans = self.batch.rooms.take(usize::try_from(spans).unwrap_or(0));
    }

    /// Sets the resource of the records that follow; returns whether nothing in it had to be mended.
    pub(super) fn resource(&mut self, attributes: RawAttributes<'_>) -> bool {
        let (resource, mended) =
            self.conventions.resource(&RawResource { attributes }, self.tenant);
        self.resource = resource;
        let is_sound = mended.is_empty();
        self.repaired(mended);
        is_sound
    }

    /// Remembers the current resource by its bytes.
    pub(super) fn keep_resource(&mut self, sent: &[u8]) {
        self.names.keep_resource(sent, &self.resource);
    }

    /// Sets the resource of the records that follow to the one with these bytes, if it is known; returns whether it is.
    pub(super) fn known_resource(&mut self, sent: &[u8]) -> bool {
        let Some(resource) = self.names.resource(sent, self.tenant) else { return false };
        self.resource = Arc::clone(resource);
        true
    }

    /// Prepares for spans or records of this scope.
    pub(super) fn scope(&self, raw: &RawScope<'_>) -> Scope {
        self.conventions.scope(raw)
    }

    /// The names and plans of earlier requests and records.
    pub(super) fn names(&self) -> &Names {
        self.names
    }

    /// Builds a span by its plan; returns whether it has one and valid ids.
    pub(super) fn planned(
        &mut self,
        frame: &Frame<'_>,
        outline: &Outline<'_>,
        scope: Scope,
    ) -> bool {
        let Ok((trace_id, span_id)) = ids(frame.trace_id, frame.span_id) else { return false };
        let Batch { spans, tally, .. } = &mut self.batch;
        let emitter = Emitter { scope, resource: &self.resource };
        let planned = self.conventions.planned(outline, emitter, self.names, spans);
        let Some(span) = planned else { return false };
        tally.spans += 1;
        (span.trace_id, span.span_id) = (trace_id, span_id);
        span.parent = parent(frame.parent, tally).filter(|parent| *parent != span_id);
        (span.start, span.end) = self.repair.times(frame.start, frame.end, tally);
        span.remote_parent = remote_parent(frame.flags);
        usage(span, tally);
        true
    }

    /// Builds a span, and a plan for similar spans if it has an outline; returns the emptied list of its attributes for reuse.
    pub(super) fn span<'s>(
        &mut self,
        sent: EncodedSpan<'s>,
        outline: Option<&Outline<'s>>,
        scope: Scope,
    ) -> RawAttributes<'s> {
        let tally = &mut self.batch.tally;
        tally.spans += 1;
        let (trace_id, span_id) = match ids(sent.trace_id, sent.span_id) {
            Ok(ids) => ids,
            Err(why) => {
                rejected(tally, why);
                return sent.attributes.cleared();
            }
        };
        let (start, end) = self.repair.times(sent.start, sent.end, tally);
        let links = sent.links.iter().filter_map(|(trace_id, span_id)| {
            let (trace_id, span_id) = ids(trace_id, span_id).ok()?;
            Some(RawLink { trace_id, span_id })
        });
        let raw = RawSpan {
            trace_id,
            span_id,
            parent: parent(sent.parent, tally).filter(|parent| *parent != span_id),
            name: sent.name,
            start,
            end,
            status: sent.status,
            status_message: sent.status_message,
            attributes: sent.attributes,
            events: sent.events,
            links: links.collect(),
            dropped_attributes: sent.dropped_attributes,
            remote_parent: remote_parent(sent.flags),
        };
        let mut reading =
            self.conventions.span(&raw, Emitter { scope, resource: &self.resource }, self.names);
        if let Some(outline) = outline {
            let plan = || self.conventions.plan(outline, &raw, scope, &reading.span);
            self.names.learn(outline, scope, plan);
        }
        usage(&mut reading.span, &mut self.batch.tally);
        self.batch.spans.push(reading.span);
        self.reports(reading.reports);
        self.repaired(reading.repaired);
        self.unused(reading.unused);
        raw.attributes.cleared()
    }

    pub(super) fn log(&mut self, sent: EncodedLog<'_>, scope: Scope) {
        let tally = &mut self.batch.tally;
        let index = u32::try_from(tally.logs).unwrap_or(u32::MAX);
        tally.logs += 1;
        let trace_id = sent.trace_id.try_into().map(TraceId).ok().filter(|id| !id.is_zero());
        let span_id = sent.span_id.try_into().map(SpanId).ok().filter(|id| !id.is_zero());
        let raw = RawLog {
            trace_id,
            span_id,
            time: self.repair.time(sent.time, sent.observed, tally),
            index,
            event_name: sent.event_name,
            body: sent.body,
            attributes: sent.attributes,
        };
        let mut reading = self.conventions.log(&raw, Emitter { scope, resource: &self.resource });
        reading.spans.iter_mut().for_each(|span| usage(span, &mut self.batch.tally));
        self.batch.logs.extend(reading.log);
        self.batch.spans.extend(reading.spans);
        self.reports(reading.reports);
        self.repaired(reading.repaired);
        self.unused(reading.unused);
    }

    /// Rejects a span or record that cannot be read at all.
    pub(super) fn reject(&mut self, why: &'static str, logs: bool) {
        let tally = &mut self.batch.tally;
        *(if logs { &mut tally.logs } else { &mut tally.spans }) += 1;
        rejected(tally, why);
    }

    /// Adds a report of agentgauge's own API, or notes why it is rejected.
    pub(super) fn report(
        &mut self,
        index: usize,
        read: impl FnOnce(&Caps<'_>, Option<&Arc<str>>) -> Result<Report, String>,
    ) {
        let caps = self.conventions.caps();
        match read(&caps, self.tenant) {
            Ok(mut report) => {
                self.batch.tally.reports += 1;
                if report.time.0 == 0 {
                    report.time = self.batch.arrival;
                }
                self.repaired(caps.cuts());
                self.reports(vec![report]);
            }
            Err(mut why) => {
                rejected(&mut self.batch.tally, "report");
                // `why` can repeat a part of the report.
                why.truncate(why.floor_char_boundary(MAX_WHY_BYTES));
                if self.batch.tally.rejected_reports.len() < MAX_LISTED {
                    self.batch.tally.rejected_reports.push((index, why));
                }
            }
        }
    }

    pub(super) fn tally(&mut self) -> &mut RequestCounts {
        &mut self.batch.tally
    }

    pub(super) fn finish(self) -> Batch {
        self.batch
    }

    /// Adds reports, which belong to the tenant of the sender, whatever they are about.
    fn reports(&mut self, reports: Vec<Report>) {
        let Self { tenant, repair, batch: Batch { reports: all, tally, .. }, .. } = self;
        all.extend(reports.into_iter().map(|report| Report {
            tenant: tenant.cloned(),
            time: repair.reported(report.time, tally),
            ..report
        }));
    }

    fn repaired(&mut self, mended: Vec<&'static str>) {
        for why in mended {
            repaired(&mut self.batch.tally, why, 1);
        }
    }

    fn unused(&mut self, unused: Vec<&'static str>) {
        for why in unused {
            *self.batch.tally.unused.entry(why).or_default() += 1;
        }
    }
}

/// The most bytes of the explanation for a rejected report.
const MAX_WHY_BYTES: usize = 256;

/// The status of a code, by the low half of its number; that of unknown codes is unset.
pub(super) fn status(code: u64) -> Status {
    match low32(code) {
        1 => Status::Ok,
        2 => Status::Error,
        _ => Status::Unset,
    }
}

/// The low half of a number, as protobuf reads 32-bit numbers.
pub(super) fn low32(number: u64) -> u32 {
    let [.., a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Whether a span's parent belongs to another process, by the span's flags; `None` if they do not say.
fn remote_parent(flags: u32) -> Option<bool> {
    const KNOWN: u32 = 0x100;
    const REMOTE: u32 = 0x200;
    (flags & KNOWN > 0).then_some(flags & REMOTE > 0)
}

/// An event.
pub(super) fn event<'a>(
    name: Cow<'a, str>,
    time: u64,
    attributes: RawAttributes<'a>,
) -> RawEvent<'a> {
    RawEvent { name, time: Timestamp(time), attributes }
}
