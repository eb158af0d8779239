//! OTLP protobuf: decoded by prost, borrowed by the builder.

use std::borrow::Cow;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use super::builder::{Builder, Sent, SentLog, event, status};
use super::prescan::Scan;
use super::repair::repaired;
use super::{Refusal, Signal, report};
use crate::engine::convention::{RawAttributes, RawScope, RawValue};

/// Decodes a request that the pre-scan has let through.
pub(super) fn decode(
    signal: Signal,
    body: Bytes,
    scan: &Scan,
    builder: &mut Builder<'_>,
) -> Result<(), Refusal> {
    let body = mended(body, scan, builder);
    match signal {
        Signal::Traces => traces(&parsed(body)?, builder),
        Signal::Logs => logs(&parsed(body)?, builder),
        Signal::Metrics => builder.tally().metric_points = scan.records,
        Signal::Reports => report::protobuf(parsed(body)?, builder),
    }
    Ok(())
}

/// Replaces the bytes that are not UTF-8, each by a question mark, so that the rest of the request survives.
fn mended(body: Bytes, scan: &Scan, builder: &mut Builder<'_>) -> Bytes {
    if scan.bad_strings.is_empty() {
        return body;
    }
    let mut bytes = Vec::from(body);
    for range in &scan.bad_strings {
        repaired(builder.tally(), "invalid_utf8");
        let mut at = range.start;
        for chunk in bytes[range.clone()].to_vec().utf8_chunks() {
            at += chunk.valid().len();
            bytes[at..at + chunk.invalid().len()].fill(b'?');
            at += chunk.invalid().len();
        }
    }
    bytes.into()
}

fn parsed<M: Message + Default>(body: Bytes) -> Result<M, Refusal> {
    M::decode(body).map_err(|error| {
        let mut why = error.to_string();
        why.truncate(why.floor_char_boundary(256));
        Refusal::Malformed { what: "request", why }
    })
}

fn traces(request: &ExportTraceServiceRequest, builder: &mut Builder<'_>) {
    for resource_spans in &request.resource_spans {
        builder.resource(attributes(
            resource_spans.resource.as_ref().map_or(&[], |resource| &resource.attributes),
        ));
        for scope_spans in &resource_spans.scope_spans {
            let scope = scope(scope_spans.scope.as_ref());
            for sent in &scope_spans.spans {
                builder.span(span(sent), &scope);
            }
        }
    }
}

fn logs(request: &ExportLogsServiceRequest, builder: &mut Builder<'_>) {
    for resource_logs in &request.resource_logs {
        builder.resource(attributes(
            resource_logs.resource.as_ref().map_or(&[], |resource| &resource.attributes),
        ));
        for scope_logs in &resource_logs.scope_logs {
            let scope = scope(scope_logs.scope.as_ref());
            for sent in &scope_logs.log_records {
                builder.log(log(sent), &scope);
            }
        }
    }
}

fn span(span: &Span) -> Sent<'_> {
    let events = span
        .events
        .iter()
        .map(|sent| event(&sent.name, sent.time_unix_nano, attributes(&sent.attributes)));
    Sent {
        trace_id: &span.trace_id,
        span_id: &span.span_id,
        parent: &span.parent_span_id,
        name: &span.name,
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        status: span.status.as_ref().map(|sent| status(sent.code.into())).unwrap_or_default(),
        status_message: span.status.as_ref().map(|sent| sent.message.as_str()).unwrap_or_default(),
        attributes: attributes(&span.attributes),
        events: events.collect(),
        links: span.links.iter().map(|link| (&link.trace_id[..], &link.span_id[..])).collect(),
        dropped_attributes: span.dropped_attributes_count,
    }
}

fn log(log: &LogRecord) -> SentLog<'_> {
    SentLog {
        trace_id: &log.trace_id,
        span_id: &log.span_id,
        time: log.time_unix_nano,
        observed: log.observed_time_unix_nano,
        event_name: &log.event_name,
        body: value(log.body.as_ref()),
        attributes: attributes(&log.attributes),
    }
}

fn scope(scope: Option<&InstrumentationScope>) -> RawScope<'_> {
    scope
        .map(|scope| RawScope { name: (&*scope.name).into(), version: (&*scope.version).into() })
        .unwrap_or_default()
}

fn attributes(list: &[KeyValue]) -> RawAttributes<'_> {
    RawAttributes(
        list.iter().map(|entry| (Cow::from(&*entry.key), value(entry.value.as_ref()))).collect(),
    )
}

fn value(sent: Option<&AnyValue>) -> RawValue<'_> {
    let Some(sent) = sent.and_then(|sent| sent.value.as_ref()) else { return RawValue::Null };
    match sent {
        any_value::Value::StringValue(text) => RawValue::Str(text.into()),
        any_value::Value::BoolValue(flag) => RawValue::Bool(*flag),
        any_value::Value::IntValue(number) => RawValue::Int(*number),
        any_value::Value::DoubleValue(number) => RawValue::Double(*number),
        any_value::Value::BytesValue(bytes) => RawValue::Bytes(bytes.into()),
        any_value::Value::ArrayValue(list) => {
            RawValue::Array(list.values.iter().map(|item| value(Some(item))).collect())
        }
        any_value::Value::KvlistValue(list) => RawValue::Map(attributes(&list.values).0),
        // An index into a dictionary that this signal does not have.
        any_value::Value::StringValueStrindex(_) => RawValue::Null,
    }
}
