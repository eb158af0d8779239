//! OTLP JSON, read leniently: null is absent, numbers may be strings, ids are hex in any case, enums are numbers or
//! names, names are camel or snake case, unknown fields are ignored, and fields of another type count as absent.
//!
//! What JSON cannot express (half an emoji, a number that no float holds) is mended once the strict reader has refused it. If a
//! name occurs twice, the last value is read.

use std::borrow::Cow;
use std::cell::Cell;
use std::str;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Number;

use super::builder::{Builder, EncodedLog, EncodedSpan, OLD_SCOPE, event, low32, status};
use super::prescan::{Bounds, Scan};
use super::repair::Odd;
use super::tree::Json;
use super::{Refusal, Signal};
use crate::engine::convention::mend::{self, Mended, Numbers, Rules};
use crate::engine::convention::{RawAttributes, RawScope, RawValue, Scope};
use crate::engine::span::Status;

/// The bytes of one decoded JSON value: itself and its entry in a list or an ordered map.
const VALUE_BYTES: usize = 160;

/// Levels of JSON that OTLP itself needs, and that each level of nested values adds.
const OUTER_LEVELS: usize = 16;
const LEVELS_PER_VALUE: usize = 4;

/// The decoders for bytes in protobuf's JSON: either alphabet, with or without the padding.
const BASE64: [GeneralPurpose; 2] = {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    [GeneralPurpose::new(&STANDARD, lenient), GeneralPurpose::new(&URL_SAFE, lenient)]
};

/// The names that protobuf's JSON has for numbers that JSON cannot express.
const NAMED: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Estimates what decoding costs, by a walk over the bytes that allocates nothing.
pub(super) fn scan(body: &[u8], bounds: Bounds) -> Result<Scan, Refusal> {
    let (mut items, mut depth, mut in_string, mut escaped) = (1_usize, 0_usize, false, false);
    let (max_depth, mut deep) = (max_depth(bounds), false);
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
                deep |= depth > max_depth;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    // An attribute has about eight JSON items.
    if items / 8 > bounds.max_items {
        return Err(Refusal::TooLarge {
            what: "the number of items",
            max: bounds.max_items,
            key: "ingest.max_request_items",
        });
    }
    // A request that has to be mended is held twice, and its copy is up to twice as long.
    let estimated_bytes = 3 * body.len() + items * VALUE_BYTES;
    Ok(Scan { estimated_bytes, items, deep, ..Scan::default() })
}

/// The deepest nesting of brackets that is read.
fn max_depth(bounds: Bounds) -> usize {
    OUTER_LEVELS + LEVELS_PER_VALUE * bounds.max_nesting
}

/// Decodes a request that passed the scan.
pub(super) fn decode(
    signal: Signal,
    body: &[u8],
    scan: &Scan,
    bounds: Bounds,
    builder: &mut Builder<'_>,
) -> Result<(), Refusal> {
    let body = unmarked(body);
    if is_utf16(body) {
        let why = "it must be in UTF-8, and looks like UTF-16 or UTF-32".to_owned();
        return Err(Refusal::Malformed { what: "JSON", why });
    }
    let reader = Reader { max_nesting: bounds.max_nesting, odd: Cell::default() };
    let mended = match reader.as_it_is(body, scan.deep)? {
        Some(request) => return reader.request(signal, &request, builder),
        None => reader.mend(body, max_depth(bounds)),
    };
    let request = strictly(&mended).map_err(|error| malformed(&error))?;
    reader.request(signal, &request, builder)
}

/// The reason for rejecting another value where a list of records, or of their scopes, belongs: it counts as one record.
const NO_LIST: &str = "not_a_list";

/// The lists of requests by signal.
const LISTS: [(Signal, &str, &str); 3] = [
    (Signal::Traces, "resourceSpans", "traces go to /v1/traces"),
    (Signal::Logs, "resourceLogs", "logs go to /v1/logs"),
    (Signal::Metrics, "resourceMetrics", "metrics go to /v1/metrics"),
];

/// Refuses a request of another signal, and one whose list is not a list: none of it would be read.
fn expect(signal: Signal, request: &Json<'_>) -> Result<(), Refusal> {
    let Some((_, own, _)) = LISTS.iter().find(|(of, ..)| *of == signal) else { return Ok(()) };
    let why = match get(request, own) {
        Some(_) if is_no_list(request, own) => format!("`{own}` must be a list"),
        Some(_) => return Ok(()),
        None => match LISTS.iter().find(|(_, name, _)| get(request, name).is_some()) {
            Some((_, other, way)) => {
                format!("expected `{own}`, and it has `{other}` in its place; {way}")
            }
            None => return Ok(()),
        },
    };
    Err(Refusal::Malformed { what: "JSON", why })
}

/// Whether there is another value where a list belongs. An empty object has nothing to lose.
fn is_no_list(holder: &Json<'_>, name: &str) -> bool {
    get(holder, name).is_some_and(|value| {
        value.as_list().is_none() && value.as_object().is_none_or(|object| !object.is_empty())
    })
}

/// Parses JSON whose nesting is known to be bounded.
fn strictly(text: &str) -> serde_json::Result<Json<'_>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.disable_recursion_limit();
    Json::deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value))
}

/// Whether a text is JSON, or would be once it is mended.
pub(super) fn is_nearly(text: &[u8]) -> bool {
    let is_json = |text: &[u8]| serde_json::from_slice::<IgnoredAny>(text).is_ok();
    let rules = Rules { max_depth: usize::MAX, numbers: Numbers::Named, controls: true };
    is_json(text) || is_json(mend::json(text, rules).text.as_bytes())
}

/// The text without a byte order mark.
pub(super) fn unmarked(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Whether a text is in an encoding that has a zero in every ASCII character: JSON begins with one, and contains no zero byte.
fn is_utf16(text: &[u8]) -> bool {
    matches!(text, [0xfe, 0xff, ..] | [0xff, 0xfe, ..] | [0, _, ..] | [_, 0, ..])
}

fn malformed(error: &serde_json::Error) -> Refusal {
    let (line, column) = (error.line(), error.column());
    let what = if error.is_eof() { "it breaks off" } else { "a syntax error" };
    Refusal::Malformed { what: "JSON", why: format!("{what} at line {line}, column {column}") }
}

struct Reader {
    max_nesting: usize,
    odd: Cell<Odd>,
}

impl Reader {
    /// Parses a request unchanged; `None` if it has to be mended.
    fn as_it_is<'a>(&self, body: &'a [u8], deep: bool) -> Result<Option<Json<'a>>, Refusal> {
        let Some(text) = str::from_utf8(body).ok().filter(|_| !deep) else { return Ok(None) };
        match strictly(text) {
            // A truncated request cannot be mended.
            Err(error) if error.is_eof() => Err(malformed(&error)),
            parsed => Ok(parsed.ok()),
        }
    }

    /// Mends the text of a request that cannot be parsed unchanged.
    fn mend(&self, body: &[u8], max_depth: usize) -> String {
        // The text that is cut off here is in a value that nests too deep, which is counted elsewhere, or in an unused field.
        let rules = Rules { max_depth, numbers: Numbers::Named, controls: true };
        let Mended { text, strings, numbers, controls, deep: _ } = mend::json(body, rules);
        self.odd.update(|odd| Odd { strings, numbers, controls, ..odd });
        text
    }

    fn request(
        &self,
        signal: Signal,
        request: &Json<'_>,
        builder: &mut Builder<'_>,
    ) -> Result<(), Refusal> {
        if request.as_object().is_none() {
            let why = "the request is not an object".to_owned();
            return Err(Refusal::Malformed { what: "JSON", why });
        }
        expect(signal, request)?;
        match signal {
            Signal::Traces => self.traces(request, builder),
            Signal::Logs => self.logs(request, builder),
            Signal::Metrics => builder.tally().metric_points = self.metric_points(request),
            Signal::Reports => super::report::json(request, builder)?,
        }
        self.odd.get().add_to(builder.tally());
        Ok(())
    }

    fn traces(&self, request: &Json<'_>, builder: &mut Builder<'_>) {
        for resource_spans in self.list(request, "resourceSpans") {
            builder.resource(
                self.object(resource_spans, "resource")
                    .map(|resource| self.attributes(resource))
                    .unwrap_or_default(),
            );
            for scope_spans in self.list(resource_spans, "scopeSpans") {
                let scope = builder.scope(&self.scope(scope_spans));
                for span in self.list(scope_spans, "spans") {
                    self.span(span, scope, builder);
                }
                if is_no_list(scope_spans, "spans") {
                    builder.reject(NO_LIST, false);
                }
            }
            if is_no_list(resource_spans, "scopeSpans") {
                builder.reject(NO_LIST, false);
            }
            for scope_spans in self.list(resource_spans, "instrumentationLibrarySpans") {
                self.list(scope_spans, "spans").for_each(|_| builder.reject(OLD_SCOPE, false));
            }
        }
    }

    fn logs(&self, request: &Json<'_>, builder: &mut Builder<'_>) {
        for resource_logs in self.list(request, "resourceLogs") {
            builder.resource(
                self.object(resource_logs, "resource")
                    .map(|resource| self.attributes(resource))
                    .unwrap_or_default(),
            );
            for scope_logs in self.list(resource_logs, "scopeLogs") {
                let scope = builder.scope(&self.scope(scope_logs));
                for log in self.list(scope_logs, "logRecords") {
                    self.log(log, scope, builder);
                }
                if is_no_list(scope_logs, "logRecords") {
                    builder.reject(NO_LIST, true);
                }
            }
            if is_no_list(resource_logs, "scopeLogs") {
                builder.reject(NO_LIST, true);
            }
            for scope_logs in self.list(resource_logs, "instrumentationLibraryLogs") {
                self.list(scope_logs, "logRecords").for_each(|_| builder.reject(OLD_SCOPE, true));
            }
        }
    }

    fn span(&self, span: &Json<'_>, scope: Scope, builder: &mut Builder<'_>) {
        if span.as_object().is_none() {
            return builder.reject("malformed_span", false);
        }
        let status = self.object(span, "status");
        let events = self.objects(span, "events").map(|sent| {
            let (name, time) = (self.text(sent, "name"), self.number(sent, "timeUnixNano"));
            event(name.into(), time, self.attributes(sent))
        });
        let ids = ["traceId", "spanId", "parentSpanId"].map(|name| self.id(span, name));
        let links: Vec<_> = self
            .objects(span, "links")
            .map(|link| (self.id(link, "traceId"), self.id(link, "spanId")))
            .collect();
        let sent = EncodedSpan {
            trace_id: &ids[0],
            span_id: &ids[1],
            parent: &ids[2],
            name: self.text(span, "name").into(),
            start: self.number(span, "startTimeUnixNano"),
            end: self.number(span, "endTimeUnixNano"),
            status: status.map(|status| self.code(status)).unwrap_or_default(),
            status_message: status
                .map(|status| self.text(status, "message"))
                .unwrap_or_default()
                .into(),
            attributes: self.attributes(span),
            events: events.collect(),
            links: links.iter().map(|(trace_id, span_id)| (&trace_id[..], &span_id[..])).collect(),
            dropped_attributes: u32::try_from(self.number(span, "droppedAttributesCount"))
                .unwrap_or(u32::MAX),
            flags: low32(self.number(span, "flags")),
        };
        builder.span(sent, None, scope);
    }

    fn log(&self, log: &Json<'_>, scope: Scope, builder: &mut Builder<'_>) {
        if log.as_object().is_none() {
            return builder.reject("malformed_log", true);
        }
        let ids = ["traceId", "spanId"].map(|name| self.id(log, name));
        let sent = EncodedLog {
            trace_id: &ids[0],
            span_id: &ids[1],
            time: self.number(log, "timeUnixNano"),
            observed: self.number(log, "observedTimeUnixNano"),
            event_name: self.text(log, "eventName").into(),
            body: get(log, "body").map(|body| self.value(body, 1)).unwrap_or_default(),
            attributes: self.attributes(log),
        };
        builder.log(sent, scope);
    }

    fn attributes<'a>(&self, holder: &'a Json<'a>) -> RawAttributes<'a> {
        self.key_values(holder, "attributes", 1).into_iter().collect()
    }

    fn key_values<'a>(
        &self,
        holder: &'a Json<'a>,
        name: &str,
        nesting: usize,
    ) -> Vec<(Cow<'a, str>, RawValue<'a>)> {
        self.objects(holder, name)
            .map(|entry| {
                let value = get(entry, "value").map(|value| self.value(value, nesting));
                (Cow::from(self.text(entry, "key")), value.unwrap_or_default())
            })
            .collect()
    }

    /// Reads a value, the last one if there are several; one that nests too deep is null.
    fn value<'a>(&self, sent: &'a Json<'a>, nesting: usize) -> RawValue<'a> {
        if nesting > self.max_nesting {
            self.odd.update(|odd| Odd { deep: odd.deep + 1, ..odd });
            return RawValue::Null;
        }
        let mut value = RawValue::Null;
        let Some(kinds) = self.of_type(sent, Json::as_object) else { return value };
        for (kind, sent) in kinds.iter().filter(|(_, sent)| !sent.is_null()) {
            let read = match &**kind {
                "stringValue" | "string_value" => {
                    self.of_type(sent, Json::as_str).map(|text| RawValue::Str(text.into()))
                }
                "boolValue" | "bool_value" => self.of_type(sent, Json::as_bool).map(RawValue::Bool),
                "intValue" | "int_value" => self.whole(sent).map(RawValue::Int),
                "doubleValue" | "double_value" => self.double(sent).map(RawValue::Double),
                "bytesValue" | "bytes_value" => {
                    self.of_type(sent, bytes).map(|bytes| RawValue::Bytes(bytes.into()))
                }
                "arrayValue" | "array_value" => self.of_type(sent, some_object).map(|array| {
                    let items = self.list(array, "values");
                    RawValue::Array(items.map(|item| self.value(item, nesting + 1)).collect())
                }),
                "kvlistValue" | "kvlist_value" => self
                    .of_type(sent, some_object)
                    .map(|map| RawValue::Map(self.key_values(map, "values", nesting + 1))),
                _ => None,
            };
            value = read.unwrap_or(value);
        }
        value
    }

    /// Reads a value by `read`; one of another type is counted and absent.
    fn of_type<'a, T>(
        &self,
        value: &'a Json<'a>,
        read: impl Fn(&'a Json<'a>) -> Option<T>,
    ) -> Option<T> {
        let read = read(value);
        // PHP writes an empty list as an empty object, so that is not counted.
        if read.is_none() && value.as_list().is_none_or(|list| !list.is_empty()) {
            self.odd.update(|odd| Odd { types: odd.types + 1, ..odd });
        }
        read
    }

    fn list<'a>(
        &self,
        holder: &'a Json<'a>,
        name: &str,
    ) -> impl Iterator<Item = &'a Json<'a>> + use<'a> {
        let list = get(holder, name).and_then(|list| self.of_type(list, Json::as_list));
        list.into_iter().flatten()
    }

    /// The objects in a list.
    fn objects<'a>(&self, holder: &'a Json<'a>, name: &str) -> impl Iterator<Item = &'a Json<'a>> {
        self.list(holder, name).filter_map(|item| self.of_type(item, some_object))
    }

    fn object<'a>(&self, holder: &'a Json<'a>, name: &str) -> Option<&'a Json<'a>> {
        get(holder, name).and_then(|object| self.of_type(object, some_object))
    }

    fn text<'a>(&self, holder: &'a Json<'a>, name: &str) -> &'a str {
        get(holder, name).and_then(|text| self.of_type(text, Json::as_str)).unwrap_or_default()
    }

    /// An unsigned number, or 0 if it is absent.
    fn number(&self, holder: &Json<'_>, name: &str) -> u64 {
        get(holder, name).and_then(|number| self.whole(number)).unwrap_or(0)
    }

    /// A whole number in any of its spellings; one that is not whole or out of range is counted and absent.
    fn whole<N: TryFrom<i128>>(&self, sent: &Json<'_>) -> Option<N> {
        let number = match sent {
            Json::Number(number) => whole_number(number),
            Json::Text(text) => {
                let text = text.trim();
                text.parse().ok().or_else(|| whole_float(text.parse().ok()?))
            }
            Json::Null | Json::Bool(_) | Json::List(_) | Json::Object(_) => {
                return self.of_type(sent, |_| None);
            }
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        // Numbers that were mended to a name are counted already.
        if number.is_none() && sent.as_str().is_none_or(|text| !NAMED.contains(&text)) {
            self.odd.update(|odd| Odd { numbers: odd.numbers + 1, ..odd });
        }
        number
    }

    fn double(&self, sent: &Json<'_>) -> Option<f64> {
        let text = match sent {
            Json::Text(text) => text.trim(),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => {
                return self.of_type(sent, Json::as_f64);
            }
        };
        let number = text.parse().ok();
        if number.is_none() {
            self.odd.update(|odd| Odd { numbers: odd.numbers + 1, ..odd });
        }
        number
    }

    /// The bytes of a hex id; one byte, which is no valid id, if it is not hex.
    fn id(&self, holder: &Json<'_>, name: &str) -> Vec<u8> {
        let hex = self.text(holder, name).as_bytes();
        let digit =
            |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pairs = hex.chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        pairs.collect::<Option<Vec<u8>>>().unwrap_or_else(|| vec![1])
    }

    fn code(&self, holder: &Json<'_>) -> Status {
        match get(holder, "code") {
            Some(Json::Text(name)) if name == "STATUS_CODE_OK" => Status::Ok,
            Some(Json::Text(name)) if name == "STATUS_CODE_ERROR" => Status::Error,
            Some(Json::Text(name)) if name == "STATUS_CODE_UNSET" => Status::Unset,
            Some(code) => self.whole(code).map(status).unwrap_or_default(),
            None => Status::Unset,
        }
    }

    fn scope<'a>(&self, holder: &'a Json<'a>) -> RawScope<'a> {
        let scope = self.object(holder, "scope");
        scope
            .map(|scope| RawScope {
                name: self.text(scope, "name").into(),
                version: self.text(scope, "version").into(),
            })
            .unwrap_or_default()
    }

    fn metric_points(&self, request: &Json<'_>) -> u64 {
        let scopes = self
            .list(request, "resourceMetrics")
            .flat_map(|resource| self.list(resource, "scopeMetrics"));
        let metrics = scopes.flat_map(|scope| self.list(scope, "metrics"));
        const KINDS: [&str; 5] = ["gauge", "sum", "histogram", "exponentialHistogram", "summary"];
        let points = metrics.flat_map(|metric| {
            let kinds = KINDS.iter().filter_map(|kind| get(metric, kind));
            kinds.flat_map(|kind| self.list(kind, "dataPoints"))
        });
        points.count() as u64
    }
}

/// A field by its camel-case name, or by the snake-case one of the schema; null is absent.
fn get<'a>(value: &'a Json<'a>, name: &str) -> Option<&'a Json<'a>> {
    let snake = || {
        let mut snake = String::with_capacity(name.len() + 4);
        for c in name.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        value.get(&snake)
    };
    value.get(name).or_else(snake).filter(|value| !value.is_null())
}

fn some_object<'a>(value: &'a Json<'a>) -> Option<&'a Json<'a>> {
    value.as_object().map(|_| value)
}

fn bytes(value: &Json<'_>) -> Option<Vec<u8>> {
    let text = value.as_str()?;
    BASE64.iter().find_map(|base64| base64.decode(text).ok())
}

fn whole_number(number: &Number) -> Option<i128> {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    whole.or_else(|| whole_float(number.as_f64()?))
}

/// A float that is a whole number of at most 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "it is whole, and in range")]
fn whole_float(number: f64) -> Option<i128> {
    const MAX: f64 = 18_446_744_073_709_551_616.0;
    (number.fract() == 0.0 && number.abs() <= MAX).then_some(number as i128)
}
