//! OTLP protobuf: decodes requests that passed the pre-scan.

use std::borrow::Cow;
use std::str;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::builder::Builder;
use super::prescan::{self, Bounds, Scan};
use super::repair::Odd;
use super::wire::{Fields, Malformed, Wire};
use super::{Refusal, Signal, report, walk};
use crate::engine::convention::mend;

/// Decodes a request that passed the pre-scan.
pub(super) fn decode(
    signal: Signal,
    body: &[u8],
    scan: &Scan,
    bounds: Bounds,
    builder: &mut Builder<'_>,
) -> Result<(), Refusal> {
    let walked = match signal {
        Signal::Traces => {
            builder.expect(scan.records);
            walk::traces(body, bounds.max_nesting, builder)
        }
        Signal::Logs => walk::logs(body, bounds.max_nesting, builder),
        Signal::Metrics => {
            builder.tally().metric_points = scan.records;
            Ok(())
        }
        // Reports are few and small.
        Signal::Reports => return reports(body, builder),
    };
    // The pre-scan names the malformed message, as the walk does not know the names of messages.
    let named = || prescan::scan(signal, body, bounds).err();
    walked.map_err(|malformed| named().unwrap_or_else(|| malformed.within("request")))
}

/// Takes the reports of a request; strings that are not UTF-8 are mended if the request was refused otherwise.
fn reports(body: &[u8], builder: &mut Builder<'_>) -> Result<(), Refusal> {
    let mut odd = Odd::default();
    let sent = parsed(body).or_else(|refusal| {
        let mended = mended(body, &REPORTS, &mut odd.strings);
        let mended = mended.map_err(|malformed| malformed.within("request"))?;
        if odd.strings == 0 { Err(refusal) } else { parsed(&mended[..]) }
    })?;
    odd.add_to(builder.tally());
    report::protobuf(sent, builder);
    Ok(())
}

/// The messages inside a message, by their field numbers. All other fields with a length are strings.
struct Inside(&'static [(u32, Self)]);

const REPORTS: Inside = Inside(&[(1, REPORT)]);
const REPORT: Inside = Inside(&[(5, RUN)]);
const RUN: Inside = Inside(&[(1, Inside(&[]))]);

/// Copies a message with its strings made UTF-8, and adds the number of mended strings to `strings`.
fn mended(message: &[u8], inside: &Inside, strings: &mut u64) -> Result<Vec<u8>, Malformed> {
    let mut mended = Vec::with_capacity(message.len());
    for field in Fields::of(message) {
        let (number, wire) = field?;
        let sent = match wire {
            Wire::Varint(value) => {
                encode_key(number, WireType::Varint, &mut mended);
                encode_varint(value, &mut mended);
                continue;
            }
            Wire::Fixed64(value) => {
                encode_key(number, WireType::SixtyFourBit, &mut mended);
                mended.extend(value.to_le_bytes());
                continue;
            }
            // No known field has this type.
            Wire::Fixed32(_) => continue,
            Wire::Bytes(sent) => sent,
        };
        let value = match inside.0.iter().find(|(known, _)| *known == number) {
            Some((_, inner)) => Cow::Owned(self::mended(sent, inner, strings)?),
            None if str::from_utf8(sent).is_ok() => Cow::Borrowed(sent),
            None => {
                *strings += 1;
                Cow::Owned(mend::utf8(sent).into_bytes())
            }
        };
        encode_key(number, WireType::LengthDelimited, &mut mended);
        encode_varint(value.len() as u64, &mut mended);
        mended.extend_from_slice(&value);
    }
    Ok(mended)
}

fn parsed<M: Message + Default>(body: &[u8]) -> Result<M, Refusal> {
    M::decode(body).map_err(|error| {
        let mut why = error.to_string();
        why.truncate(why.floor_char_boundary(256));
        Refusal::Malformed { what: "request", why }
    })
}

#[cfg(test)]
mod tests {
    //! prost decodes the same bytes, and both build the same or both refuse.

    use std::borrow::Cow;
    use std::fs;
    use std::path::Path;
    use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::{
        AnyValue, InstrumentationScope, KeyValue, any_value,
    };
    use opentelemetry_proto::tonic::logs::v1::LogRecord;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::engine::convention::{Conventions, Names, RawAttributes, RawScope, RawValue};
    use crate::engine::options::ConventionOptions;
    use crate::ingest::Batch;
    use crate::ingest::builder::{EncodedLog, EncodedSpan, event, status};
    use crate::ingest::repair::Repair;

    const BOUNDS: Bounds = Bounds { max_items: 1 << 20, max_nesting: 32 };

    fn traces(request: &ExportTraceServiceRequest, builder: &mut Builder<'_>) {
        for resource_spans in &request.resource_spans {
            builder.resource(attributes(
                resource_spans.resource.as_ref().map_or(&[], |resource| &resource.attributes),
            ));
            for scope_spans in &resource_spans.scope_spans {
                let scope = builder.scope(&scope(scope_spans.scope.as_ref()));
                for sent in &scope_spans.spans {
                    builder.span(span(sent), None, scope);
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
                let scope = builder.scope(&scope(scope_logs.scope.as_ref()));
                for sent in &scope_logs.log_records {
                    builder.log(log(sent), scope);
                }
            }
        }
    }

    fn span(span: &Span) -> EncodedSpan<'_> {
        let events = span.events.iter().map(|sent| {
            event((&*sent.name).into(), sent.time_unix_nano, attributes(&sent.attributes))
        });
        EncodedSpan {
            trace_id: &span.trace_id,
            span_id: &span.span_id,
            parent: &span.parent_span_id,
            name: (&*span.name).into(),
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
            status: span
                .status
                .as_ref()
                .map(|sent| status(i64::from(sent.code).cast_unsigned()))
                .unwrap_or_default(),
            status_message: span
                .status
                .as_ref()
                .map(|sent| sent.message.as_str())
                .unwrap_or_default()
                .into(),
            attributes: attributes(&span.attributes),
            events: events.collect(),
            links: span.links.iter().map(|link| (&link.trace_id[..], &link.span_id[..])).collect(),
            dropped_attributes: span.dropped_attributes_count,
            flags: span.flags,
        }
    }

    fn log(log: &LogRecord) -> EncodedLog<'_> {
        EncodedLog {
            trace_id: &log.trace_id,
            span_id: &log.span_id,
            time: log.time_unix_nano,
            observed: log.observed_time_unix_nano,
            event_name: (&*log.event_name).into(),
            body: value(log.body.as_ref()),
            attributes: attributes(&log.attributes),
        }
    }

    fn scope(scope: Option<&InstrumentationScope>) -> RawScope<'_> {
        scope
            .map(|scope| RawScope {
                name: (&*scope.name).into(),
                version: (&*scope.version).into(),
            })
            .unwrap_or_default()
    }

    fn key_values(list: &[KeyValue]) -> impl Iterator<Item = (Cow<'_, str>, RawValue<'_>)> {
        list.iter().map(|entry| (Cow::from(&*entry.key), value(entry.value.as_ref())))
    }

    fn attributes(list: &[KeyValue]) -> RawAttributes<'_> {
        key_values(list).collect()
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
            any_value::Value::KvlistValue(list) => {
                RawValue::Map(key_values(&list.values).collect())
            }
            // An index into a dictionary that this signal does not have.
            any_value::Value::StringValueStrindex(_) => RawValue::Null,
        }
    }

    fn build(names: &mut Names, run: impl FnOnce(&mut Builder<'_>) -> Option<()>) -> Option<Batch> {
        let options = ConventionOptions { keep_texts: true, ..ConventionOptions::default() };
        build_by(&Conventions::new(options), names, run)
    }

    fn build_by(
        conventions: &Conventions,
        names: &mut Names,
        run: impl FnOnce(&mut Builder<'_>) -> Option<()>,
    ) -> Option<Batch> {
        let day = std::time::Duration::from_secs(86_400);
        let repair = Repair::new(None, day, day);
        let mut builder = Builder::new(conventions, names, repair, None);
        run(&mut builder)?;
        Some(builder.finish())
    }

    fn by_prost(signal: Signal, body: &[u8]) -> Result<Batch, prost::DecodeError> {
        let mut error = None;
        let batch = build(&mut Names::without_plans(), |builder| {
            let decoded = if signal == Signal::Logs {
                ExportLogsServiceRequest::decode(body).map(|request| logs(&request, builder))
            } else {
                ExportTraceServiceRequest::decode(body).map(|request| traces(&request, builder))
            };
            decoded.map_err(|why| error = Some(why)).ok()
        });
        batch.ok_or_else(|| error.unwrap())
    }

    fn by_walk(signal: Signal, body: &[u8], names: &mut Names) -> Option<Batch> {
        build(names, |builder| decode(signal, body, &Scan::default(), BOUNDS, builder).ok())
    }

    fn alike(one: &Batch, other: &Batch) -> Result<(), TestCaseError> {
        // NaN is not equal to itself, but is written alike.
        prop_assert_eq!(format!("{:?}", one.spans), format!("{:?}", other.spans));
        prop_assert_eq!(format!("{:?}", one.logs), format!("{:?}", other.logs));
        prop_assert_eq!(format!("{:?}", one.reports), format!("{:?}", other.reports));
        prop_assert_eq!(&one.tally, &other.tally);
        Ok(())
    }

    /// Compares plans, including those of earlier requests, with full decoding, and that with prost.
    fn agree(signal: Signal, body: &[u8], names: &mut Names) -> Result<(), TestCaseError> {
        let without_texts = Conventions::new(ConventionOptions::default());
        let [planned, walk] = [&mut *names, &mut Names::without_plans()].map(|names| {
            build_by(&without_texts, names, |builder| {
                decode(signal, body, &Scan::default(), BOUNDS, builder).ok()
            })
        });
        if let (Some(planned), Some(walk)) = (planned, walk) {
            alike(&planned, &walk)?;
        }
        let walk = by_walk(signal, body, &mut Names::without_plans());
        for _ in 0..3 {
            let planned = by_walk(signal, body, names);
            prop_assert_eq!(planned.is_some(), walk.is_some());
            if let (Some(planned), Some(walk)) = (planned, &walk) {
                alike(&planned, walk)?;
            }
        }
        let prost = match by_prost(signal, body) {
            Ok(prost) => prost,
            // The walk mends what prost refuses, skips unused fields and, like other readers of protobuf, fields of another type.
            Err(error) if error.to_string().contains("UTF-8") => return Ok(()),
            Err(error) if error.to_string().contains("(expected ") => return Ok(()),
            Err(error) => {
                prop_assert!(walk.is_none(), "{}", error);
                return Ok(());
            }
        };
        let walk = walk.ok_or_else(|| TestCaseError::fail("the walk refuses what prost reads"))?;
        alike(&prost, &walk)
    }

    fn recorded() -> Vec<(Signal, Vec<u8>)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures");
        let files = crate::ingest::file::list(&[root]).unwrap().into_iter();
        let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "pb"));
        files
            .map(|path| {
                let logs = path.file_name().unwrap().to_string_lossy().contains("logs");
                let signal = if logs { Signal::Logs } else { Signal::Traces };
                (signal, fs::read(path).unwrap())
            })
            .collect()
    }

    #[test]
    fn the_walk_and_prost_agree_on_what_was_recorded() {
        let mut names = Names::default();
        for (signal, body) in recorded() {
            agree(signal, &body, &mut names).unwrap();
        }
    }

    #[test]
    fn many_of_what_was_recorded_have_a_plan() {
        let (mut names, mut spans) = (Names::default(), 0);
        for (signal, body) in recorded() {
            // One client after the other, as there is room for the plans of a few.
            for _ in 0..3 {
                spans += by_walk(signal, &body, &mut names).unwrap().tally.spans;
            }
        }
        // The other spans come from libraries whose attributes need code, or have events.
        assert!(4 * names.planned() > spans, "{} of {spans} spans had a plan", names.planned());
    }

    #[test]
    fn code_that_is_not_asked_has_nothing_to_say() {
        let conventions = Conventions::new(ConventionOptions::default());
        let asking_all = Conventions::new(ConventionOptions::default()).asking_all();
        for (signal, body) in recorded() {
            let [some, all] = [&conventions, &asking_all].map(|conventions| {
                build_by(conventions, &mut Names::without_plans(), |builder| {
                    decode(signal, &body, &Scan::default(), BOUNDS, builder).ok()
                })
            });
            let (some, all) = (some.unwrap(), all.unwrap());
            assert_eq!(some.spans, all.spans);
            assert_eq!(some.reports, all.reports);
            assert_eq!(some.tally, all.tally);
        }
    }

    /// The fields of a message in reverse, and of the messages in its first two fields down to a depth.
    fn reversed(message: &[u8], depth: usize) -> Vec<u8> {
        let mut fields = Vec::new();
        let mut rest = message;
        while !rest.is_empty() {
            let (number, wire) = prost::encoding::decode_key(&mut rest).unwrap();
            let before = rest;
            let context = prost::encoding::DecodeContext::default();
            prost::encoding::skip_field(wire, number, &mut rest, context).unwrap();
            let mut value = &before[..before.len() - rest.len()];
            let mut field = Vec::new();
            encode_key(number, wire, &mut field);
            if depth > 0 && number <= 2 && wire == WireType::LengthDelimited {
                prost::encoding::decode_varint(&mut value).unwrap();
                let inner = reversed(value, depth - 1);
                encode_varint(inner.len() as u64, &mut field);
                field.extend(inner);
            } else {
                field.extend_from_slice(value);
            }
            fields.push(field);
        }
        fields.reverse();
        fields.concat()
    }

    #[test]
    fn they_agree_whatever_the_order_of_the_fields() {
        let mut names = Names::default();
        for (signal, body) in recorded() {
            for depth in 0..2 {
                let body = reversed(&body, depth);
                assert_eq!(
                    by_prost(signal, &body).unwrap().tally,
                    by_walk(signal, &body, &mut names).unwrap().tally
                );
                agree(signal, &body, &mut names).unwrap();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn they_agree_on_what_was_damaged(
            which in any::<prop::sample::Index>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let recorded = RECORDED.get_or_init(recorded);
            let (signal, body) = which.get(recorded);
            let mut body = body[..body.len().min(20_000)].to_vec();
            for (at, byte) in damage {
                let at = at.index(body.len());
                body[at] = byte;
            }
            if let Some(cut) = cut {
                body.truncate(cut.index(body.len()));
            }
            // What the pre-scan refuses is not decoded at all.
            if prescan::scan(*signal, &body, BOUNDS).is_ok() {
                agree(*signal, &body, &mut primed())?;
            }
        }

        #[test]
        fn they_agree_on_any_bytes(body in prop::collection::vec(any::<u8>(), 0..64), logs in any::<bool>()) {
            let signal = if logs { Signal::Logs } else { Signal::Traces };
            if prescan::scan(signal, &body, BOUNDS).is_ok() {
                agree(signal, &body, &mut Names::default())?;
            }
        }
    }

    /// Names with the plans of all recordings.
    fn primed() -> MutexGuard<'static, Names> {
        let names = PRIMED.get_or_init(|| {
            let mut names = Names::default();
            for (signal, body) in
                RECORDED.get_or_init(recorded).iter().chain(RECORDED.get_or_init(recorded))
            {
                by_walk(*signal, body, &mut names);
            }
            Mutex::new(names)
        });
        names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    static PRIMED: OnceLock<Mutex<Names>> = OnceLock::new();
    static RECORDED: OnceLock<Vec<(Signal, Vec<u8>)>> = OnceLock::new();
}
