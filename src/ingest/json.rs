//! OTLP JSON, read leniently: null is absent, numbers may be strings, ids are hex in any case, enums are numbers or
//! names, names are camel or snake case, and what is unknown is ignored.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::builder::{Builder, Sent, SentLog, event, status};
use super::prescan::{Bounds, Scan};
use super::{Refusal, Signal};
use crate::engine::convention::{RawAttributes, RawScope, RawValue, Scope};
use crate::engine::span::Status;

/// What one JSON value costs decoded, in bytes: itself and its place in a list or an ordered map.
const VALUE_BYTES: usize = 160;

/// JSON levels that OTLP itself needs, and that one value inside another adds.
const OUTER_LEVELS: usize = 16;
const LEVELS_PER_VALUE: usize = 4;

/// Estimates what decoding costs, by a walk over the bytes that allocates nothing.
pub(super) fn scan(body: &[u8], bounds: Bounds) -> Result<Scan, Refusal> {
    let (mut items, mut depth, mut in_string, mut escaped) = (1_usize, 0_usize, false, false);
    let max_depth = OUTER_LEVELS + LEVELS_PER_VALUE * bounds.max_nesting;
    for byte in body {
        if in_string {
            in_string = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b',' | b':' => items += 1,
            b'{' | b'[' => {
                items += 1;
                depth += 1;
                if depth > max_depth {
                    let why = format!(
                        "values nest deeper than {} (`ingest.max_nesting`)",
                        bounds.max_nesting
                    );
                    return Err(Refusal::Malformed { what: "JSON", why });
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    // An attribute is about eight of these.
    if items / 8 > bounds.max_items {
        return Err(Refusal::TooLarge {
            what: "the number of items",
            max: bounds.max_items,
            key: "ingest.max_request_items",
        });
    }
    Ok(Scan { estimated_bytes: body.len() + items * VALUE_BYTES, items, ..Scan::default() })
}

/// Decodes a request that the scan has let through.
pub(super) fn decode(
    signal: Signal,
    body: &[u8],
    bounds: Bounds,
    builder: &mut Builder<'_>,
) -> Result<(), Refusal> {
    let request = parse(body)?;
    let malformed =
        || Refusal::Malformed { what: "JSON", why: "the request is not an object".to_owned() };
    if !request.is_object() {
        return Err(malformed());
    }
    let reader = Reader { max_nesting: bounds.max_nesting };
    match signal {
        Signal::Traces => reader.traces(&request, builder),
        Signal::Logs => reader.logs(&request, builder),
        Signal::Metrics => builder.tally().metric_points = metric_points(&request),
        Signal::Reports => super::report::json(&request, builder),
    }
    Ok(())
}

/// Parses JSON whose nesting is known to be bounded.
fn parse(body: &[u8]) -> Result<Value, Refusal> {
    let text = String::from_utf8_lossy(body);
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    deserializer.disable_recursion_limit();
    let value =
        Value::deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| Refusal::Malformed {
        what: "JSON",
        why: format!(
            "{:?} error at line {}, column {}",
            error.classify(),
            error.line(),
            error.column()
        ),
    })
}

struct Reader {
    max_nesting: usize,
}

impl Reader {
    fn traces(&self, request: &Value, builder: &mut Builder<'_>) {
        for resource_spans in list(request, "resourceSpans") {
            builder
                .resource(self.attributes(get(resource_spans, "resource").unwrap_or(&Value::Null)));
            for scope_spans in list(resource_spans, "scopeSpans") {
                let scope = builder.scope(&scope(scope_spans));
                for span in list(scope_spans, "spans") {
                    self.span(span, scope, builder);
                }
            }
        }
    }

    fn logs(&self, request: &Value, builder: &mut Builder<'_>) {
        for resource_logs in list(request, "resourceLogs") {
            builder
                .resource(self.attributes(get(resource_logs, "resource").unwrap_or(&Value::Null)));
            for scope_logs in list(resource_logs, "scopeLogs") {
                let scope = builder.scope(&scope(scope_logs));
                for log in list(scope_logs, "logRecords") {
                    self.log(log, scope, builder);
                }
            }
        }
    }

    fn span(&self, span: &Value, scope: Scope, builder: &mut Builder<'_>) {
        if !span.is_object() {
            return builder.reject("malformed_span", false);
        }
        let status_of = get(span, "status");
        let events = list(span, "events").map(|sent| {
            event(text(sent, "name").into(), number(sent, "timeUnixNano"), self.attributes(sent))
        });
        let ids = [id(span, "traceId"), id(span, "spanId"), id(span, "parentSpanId")];
        let links: Vec<_> =
            list(span, "links").map(|link| (id(link, "traceId"), id(link, "spanId"))).collect();
        let sent = Sent {
            trace_id: &ids[0],
            span_id: &ids[1],
            parent: &ids[2],
            name: text(span, "name").into(),
            start: number(span, "startTimeUnixNano"),
            end: number(span, "endTimeUnixNano"),
            status: status_of.map(code).unwrap_or_default(),
            status_message: status_of
                .map(|status| text(status, "message"))
                .unwrap_or_default()
                .into(),
            attributes: self.attributes(span),
            events: events.collect(),
            links: links.iter().map(|(trace_id, span_id)| (&trace_id[..], &span_id[..])).collect(),
            dropped_attributes: u32::try_from(number(span, "droppedAttributesCount"))
                .unwrap_or(u32::MAX),
        };
        builder.span(sent, scope);
    }

    fn log(&self, log: &Value, scope: Scope, builder: &mut Builder<'_>) {
        if !log.is_object() {
            return builder.reject("malformed_log", true);
        }
        let ids = [id(log, "traceId"), id(log, "spanId")];
        let sent = SentLog {
            trace_id: &ids[0],
            span_id: &ids[1],
            time: number(log, "timeUnixNano"),
            observed: number(log, "observedTimeUnixNano"),
            event_name: text(log, "eventName").into(),
            body: get(log, "body").map(|body| self.value(body, 1)).unwrap_or_default(),
            attributes: self.attributes(log),
        };
        builder.log(sent, scope);
    }

    fn attributes<'a>(&self, holder: &'a Value) -> RawAttributes<'a> {
        self.key_values(holder, "attributes", 1).into_iter().collect()
    }

    fn key_values<'a>(
        &self,
        holder: &'a Value,
        name: &str,
        nesting: usize,
    ) -> Vec<(Cow<'a, str>, RawValue<'a>)> {
        list(holder, name)
            .filter_map(|entry| {
                let key = get(entry, "key")?.as_str()?;
                Some((
                    Cow::from(key),
                    get(entry, "value").map(|value| self.value(value, nesting)).unwrap_or_default(),
                ))
            })
            .collect()
    }

    /// A value; one that nests too deep is absent.
    fn value<'a>(&self, value: &'a Value, nesting: usize) -> RawValue<'a> {
        if nesting > self.max_nesting {
            return RawValue::Null;
        }
        let found = |name: &str| get(value, name);
        if let Some(text) =
            found("stringValue").or_else(|| found("bytesValue")).and_then(Value::as_str)
        {
            RawValue::Str(text.into())
        } else if let Some(flag) = found("boolValue").and_then(Value::as_bool) {
            RawValue::Bool(flag)
        } else if let Some(number) = found("intValue") {
            integer(number).map_or(RawValue::Null, RawValue::Int)
        } else if let Some(number) = found("doubleValue") {
            double(number).map_or(RawValue::Null, RawValue::Double)
        } else if let Some(array) = found("arrayValue") {
            RawValue::Array(
                list(array, "values").map(|item| self.value(item, nesting + 1)).collect(),
            )
        } else if let Some(map) = found("kvlistValue") {
            RawValue::Map(self.key_values(map, "values", nesting + 1))
        } else {
            RawValue::Null
        }
    }
}

/// A field by its camel-case name, or by the snake-case one of the schema; null is absent.
fn get<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    let snake = || {
        let mut snake = String::with_capacity(name.len() + 4);
        for c in name.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        map.get(&snake)
    };
    map.get(name).or_else(snake).filter(|value| !value.is_null())
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    get(value, name).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    get(value, name).and_then(Value::as_str).unwrap_or_default()
}

/// An unsigned number, or 0 where there is none.
fn number(value: &Value, name: &str) -> u64 {
    let number = get(value, name);
    number
        .and_then(|number| number.as_u64().or_else(|| number.as_str()?.trim().parse().ok()))
        .unwrap_or(0)
}

fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn double(value: &Value) -> Option<f64> {
    let named = |text: &str| match text.trim() {
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        text => text.parse().ok(),
    };
    value.as_f64().or_else(|| named(value.as_str()?))
}

/// The bytes of a hex id; what is not hex has no bytes, which is no valid id.
fn id(value: &Value, name: &str) -> Vec<u8> {
    let hex = text(value, name).as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = hex.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().unwrap_or_else(|| vec![1])
}

fn code(value: &Value) -> Status {
    match get(value, "code").and_then(Value::as_str) {
        Some("STATUS_CODE_OK") => Status::Ok,
        Some("STATUS_CODE_ERROR") => Status::Error,
        Some(_) | None => status(get(value, "code").and_then(integer).unwrap_or(0)),
    }
}

fn scope(holder: &Value) -> RawScope<'_> {
    get(holder, "scope")
        .map(|scope| RawScope {
            name: text(scope, "name").into(),
            version: text(scope, "version").into(),
        })
        .unwrap_or_default()
}

fn metric_points(request: &Value) -> u64 {
    let scopes =
        list(request, "resourceMetrics").flat_map(|resource| list(resource, "scopeMetrics"));
    let metrics = scopes.flat_map(|scope| list(scope, "metrics"));
    const KINDS: [&str; 5] = ["gauge", "sum", "histogram", "exponentialHistogram", "summary"];
    let points = metrics.flat_map(|metric| {
        KINDS.iter().filter_map(|kind| get(metric, kind)).flat_map(|kind| list(kind, "dataPoints"))
    });
    points.count() as u64
}
