//! An invalid part costs only itself, in JSON as in protobuf: one table of cases, each in both.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Batch, Compression, Encoding, Refusal, RequestCounts, Signal};
use proptest::prelude::*;
use serde_json::Value;

use super::decode::{recorded, to_json};

/// One odd span among nine good ones: its fields after ids and times, in both encodings, and the result.
#[derive(Default)]
struct Case {
    name: &'static str,
    json: Vec<u8>,
    /// `None`: protobuf has no way to say it.
    protobuf: Option<Vec<u8>>,
    rejected: Option<&'static str>,
    repaired: &'static [(&'static str, u64)],
    /// Repairs that JSON alone needs: protobuf has room for what was meant, or cannot say it.
    only_json: &'static [(&'static str, u64)],
    /// What the span then says.
    says: &'static str,
}

const TRACE: [u8; 16] = [0x5a; 16];
const START: u64 = 1_790_000_000_000_000_000;

fn decoder() -> Decoder {
    let options = ConventionOptions { keep_texts: true, ..ConventionOptions::default() };
    Decoder::new(IngestLimits::default(), options)
}

/// A field of protobuf that has a length.
fn field(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut bytes);
    prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
    bytes.extend_from_slice(inner);
    bytes
}

fn varint(number: u32, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number) << 3, &mut bytes);
    prost::encoding::encode_varint(value, &mut bytes);
    bytes
}

fn fixed(number: u8, value: u64) -> Vec<u8> {
    [&[number << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn key_value(key: &[u8], value: &[u8]) -> Vec<u8> {
    [field(1, key), field(2, value)].concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    field(1, text)
}

/// A span of a tool whose arguments are a value.
fn arguments(json: &[u8], protobuf: Option<&[u8]>) -> (Vec<u8>, Option<Vec<u8>>) {
    let named = br#""attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
        {"key": "gen_ai.tool.name", "value": {"stringValue": "search"}},
        {"key": "gen_ai.tool.call.arguments", "value": "#;
    let json = [&named[..], json, b"}]"].concat();
    let protobuf = protobuf.map(|value| {
        [
            field(9, &key_value(b"gen_ai.operation.name", &string(b"execute_tool"))),
            field(9, &key_value(b"gen_ai.tool.name", &string(b"search"))),
            field(9, &key_value(b"gen_ai.tool.call.arguments", value)),
        ]
        .concat()
    });
    (json, protobuf)
}

impl Case {
    fn new(name: &'static str, json: &[u8], protobuf: Option<&[u8]>) -> Self {
        let (json, protobuf) = (json.to_vec(), protobuf.map(<[u8]>::to_vec));
        Self { name, json, protobuf, ..Self::default() }
    }

    /// The value of an attribute.
    fn value(name: &'static str, json: &str, protobuf: &[u8]) -> Self {
        Self::value_of_bytes(name, json.as_bytes(), protobuf)
    }

    fn value_of_bytes(name: &'static str, json: &[u8], protobuf: &[u8]) -> Self {
        let (json, protobuf) = arguments(json, Some(protobuf));
        Self { name, json, protobuf, ..Self::default() }
    }

    fn says(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    fn repaired(self, repaired: &'static [(&'static str, u64)]) -> Self {
        Self { repaired, ..self }
    }

    fn only_json(self, only_json: &'static [(&'static str, u64)]) -> Self {
        Self { only_json, ..self }
    }

    fn rejected(self, why: &'static str) -> Self {
        Self { rejected: Some(why), ..self }
    }

    fn expected(&self, encoding: Encoding) -> RequestCounts {
        let also = if encoding == Encoding::Json { self.only_json } else { &[] };
        RequestCounts {
            spans: 10,
            rejected: self.rejected.map(|why| (why, 1)).into_iter().collect(),
            repaired: self.repaired.iter().chain(also).copied().collect::<BTreeMap<_, _>>(),
            ..RequestCounts::default()
        }
    }
}

/// Ten spans, the sixth of which has these additional fields.
fn in_json(odd: &[u8]) -> Vec<u8> {
    let mut body = br#"{"resourceSpans": [{"scopeSpans": [{"spans": ["#.to_vec();
    for at in 0..10 {
        let trace: String = TRACE.iter().map(|byte| format!("{byte:02x}")).collect();
        body.extend_from_slice(if at == 0 { b"" } else { b"," });
        let base = format!(
            r#"{{"traceId": "{trace}", "spanId": "{:016x}", "startTimeUnixNano": "{START}", "endTimeUnixNano": {}"#,
            at + 1,
            START + 1
        );
        body.extend_from_slice(base.as_bytes());
        let rest = if at == 5 { odd } else { br#""name": "good""# };
        body.extend_from_slice(if rest.is_empty() { b"" } else { b", " });
        body.extend_from_slice(rest);
        body.extend_from_slice(b"}");
    }
    body.extend_from_slice(b"]}]}]}");
    body
}

fn in_protobuf(odd: &[u8]) -> Vec<u8> {
    let span = |at: u64| {
        let rest = if at == 5 { odd.to_vec() } else { field(5, b"good") };
        let ids = [field(1, &TRACE), field(2, &(at + 1).to_be_bytes())].concat();
        field(2, &[ids, fixed(7, START), fixed(8, START + 1), rest].concat())
    };
    let spans: Vec<u8> = (0..10).flat_map(span).collect();
    field(1, &field(2, &spans))
}

fn decode(encoding: Encoding, body: &[u8]) -> Result<Batch, Refusal> {
    decoder().decode_plain(Signal::Traces, encoding, body)
}

fn strings() -> Vec<Case> {
    let spoiled = &[("invalid_utf8", 1)];
    vec![
        Case::new("nothing is odd", br#""name": "good""#, Some(&field(5, b"good"))),
        Case::value(
            "the first half of a pair",
            r#"{"stringValue": "Z\ud83d"}"#,
            &string(b"Z\xed\xa0\xbd"),
        )
        .repaired(spoiled)
        .says("Z?"),
        Case::value(
            "the second half of a pair",
            r#"{"stringValue": "\uDE00Z"}"#,
            &string(b"\xed\xb8\x80Z"),
        )
        .repaired(spoiled)
        .says("?Z"),
        Case::value(
            "two first halves, and a whole one",
            r#"{"stringValue": "\ud83d\ud83dZ\ud83d\ude00"}"#,
            &string("??Z😀".as_bytes()),
        )
        .only_json(spoiled)
        .says("??Z😀"),
        Case::value("a whole pair", r#"{"stringValue": "\ud83d\ude00"}"#, &string("😀".as_bytes()))
            .says("😀"),
        Case::value(
            "an escaped backslash before what looks like a half",
            r#"{"stringValue": "\\ud83d"}"#,
            &string(br"\ud83d"),
        ),
        Case::value_of_bytes(
            "bytes that are not UTF-8",
            b"{\"stringValue\": \"a\xffb\xfe\"}",
            &string(b"a\xffb\xfe"),
        )
        .repaired(spoiled)
        .says("a?b?"),
        Case::value_of_bytes(
            "an emoji whose last byte was cut off",
            b"{\"stringValue\": \"a\xf0\x9f\x98\"}",
            &string(b"a\xf0\x9f\x98"),
        )
        .repaired(spoiled)
        .says("a???"),
        Case::value(
            "half a pair in a key, and one in its value",
            r#"{"kvlistValue": {"values": [{"key": "k\ud83d", "value": {"stringValue": "\ud83d"}}]}}"#,
            &field(6, &field(1, &key_value(b"k\xed\xa0\xbd", &string(b"\xed\xa0\xbd")))),
        )
        .repaired(&[("invalid_utf8", 2)])
        .says("k?"),
    ]
}

fn strings_elsewhere() -> Vec<Case> {
    let spoiled = &[("invalid_utf8", 1)];
    vec![
        Case::new("in a name", br#""name": "n\ud83d""#, Some(&field(5, b"n\xed\xa0\xbd")))
            .repaired(spoiled)
            .says("n?"),
        Case::new(
            "in the message of a status",
            br#""status": {"code": 2, "message": "m\ud83d"}"#,
            Some(&field(15, &[field(2, b"m\xed\xa0\xbd"), varint(3, 2)].concat())),
        )
        .repaired(spoiled),
        Case::new(
            "in an event: its name, a key and a value",
            br#""events": [{"name": "\ud83d", "attributes": [{"key": "\ud83d", "value": {"stringValue": "\ud83d"}}]}]"#,
            Some(&field(
                11,
                &[
                    field(2, b"\xed\xa0\xbd"),
                    field(3, &key_value(b"\xed\xa0\xbd", &string(b"\xed\xa0\xbd"))),
                ]
                .concat(),
            )),
        )
        .repaired(&[("invalid_utf8", 3)]),
        Case::new("in the id of a trace", br#""traceId": "\ud83d""#, None)
            .rejected("invalid_trace_id")
            .repaired(spoiled),
        Case::new("in the id of a parent", br#""parentSpanId": "\ud83d""#, None)
            .repaired(&[("invalid_parent_id", 1), ("invalid_utf8", 1)]),
        Case::new("in a name that nobody knows", br#""n\ud83d": 1"#, None).repaired(spoiled),
        Case::value_of_bytes(
            "control characters as they are",
            b"{\"stringValue\": \"a\nb\tc\"}",
            &string(b"a\nb\tc"),
        )
        .only_json(&[("control_character", 2)])
        .says(r"a\nb\tc"),
    ]
}

fn content() -> Vec<Case> {
    let messages =
        r#"[{"role":"user","content":"half \ud83d"},{"role":"assistant","content":"yes"}]"#;
    let escaped = serde_json::to_string(messages).unwrap();
    let chat = |key: &str, value: &str| {
        format!(r#"{{"key": "{key}", "value": {{"stringValue": {value}}}}}"#)
    };
    let (operation, input) = ("gen_ai.operation.name", "gen_ai.input.messages");
    let json =
        format!("\"attributes\": [{}, {}]", chat(operation, "\"chat\""), chat(input, &escaped));
    let protobuf = [
        field(9, &key_value(operation.as_bytes(), &string(b"chat"))),
        field(9, &key_value(input.as_bytes(), &string(messages.as_bytes()))),
    ]
    .concat();
    let of = |name, text: &str| {
        let json = serde_json::json!({"stringValue": text}).to_string();
        Case::value(name, &json, &string(text.as_bytes()))
    };
    vec![
        Case::new("half a pair in messages that are JSON", json.as_bytes(), Some(&protobuf))
            .says("half ?"),
        of("half a pair in arguments that are JSON", r#"{"b": "Z\ud83d", "a": 1}"#)
            .says(r#"{"a":1,"b":"Z?"}"#),
        of("numbers in them that no float holds", r#"{"b": [1e400, NaN, -Infinity], "a": 1}"#)
            .says(r#"{"a":1,"b":[null,null,null]}"#),
        of("a word in them that is none", r#"{"b": nothing}"#).says("nothing"),
    ]
}

fn numbers() -> Vec<Case> {
    let odd = &[("invalid_number", 1)];
    let double = |name, json: &str, value: f64| {
        Case::value(name, &format!(r#"{{"doubleValue": {json}}}"#), &fixed(4, value.to_bits()))
    };
    let int = |name, json: &str, value: i64| {
        Case::value(name, &format!(r#"{{"intValue": {json}}}"#), &varint(3, value.cast_unsigned()))
    };
    let no_int = |name, json: &str| {
        Case::value(name, &format!(r#"{{"intValue": {json}}}"#), b"").only_json(odd)
    };
    let no_start = |name, json: &str| {
        let json = format!(r#""startTimeUnixNano": {json}"#);
        Case::new(name, json.as_bytes(), Some(&fixed(7, 0)))
            .repaired(&[("time_missing", 1)])
            .only_json(odd)
    };
    vec![
        double("more than a float holds", "1e400", f64::INFINITY).only_json(odd),
        double("less than a float holds", "-1e400", f64::NEG_INFINITY).only_json(odd),
        double("many digits", &"9".repeat(400), f64::INFINITY).only_json(odd),
        double("nearer to 0 than a float gets", "1e-400", 0.0),
        double("minus 0", "-0", -0.0),
        double("no number, as Python writes it", "NaN", f64::NAN).only_json(odd),
        double("infinite, as Python writes it", "-Infinity", f64::NEG_INFINITY).only_json(odd),
        double("no number, as protobuf's JSON has it", r#""NaN""#, f64::NAN),
        double("infinite, as protobuf's JSON has it", r#""Infinity""#, f64::INFINITY),
        double("a float in a string", r#""2.5""#, 2.5).says("2.5"),
        Case::value("a text for a float", r#"{"doubleValue": "much"}"#, b"").only_json(odd),
        int("minus 0 for a whole number", "-0", 0).says("\"0\""),
        int("the least", "-9223372036854775808", i64::MIN).says("-9223372036854775808"),
        int("the greatest, in a string", r#""9223372036854775807""#, i64::MAX),
        int("a whole number as a float", "1e3", 1_000).says("1000"),
        int("a whole float in a string", r#""5.0""#, 5).says("\"5\""),
        no_int("one too many", "9223372036854775808"),
        no_int("far too many", "1e400"),
        no_int("far too many, in a string", r#""99999999999999999999999999""#),
        no_int("a broken one", "0.5"),
        no_start("a time before all others", "-1"),
        no_start("a time that 64 bits do not hold", "18446744073709551616"),
        no_start("a time that a float does not hold", "1e400"),
        no_start("a text for a time", r#""now""#),
    ]
}

fn twice() -> Vec<Case> {
    let other = [0x6b; 16];
    vec![
        Case::new(
            "the id of a trace",
            format!(r#""traceId": "{}""#, "6b".repeat(16)).as_bytes(),
            Some(&field(1, &other)),
        )
        .says("107"),
        Case::new(
            "a name",
            br#""name": "first", "name": "last""#,
            Some(&[field(5, b"first"), field(5, b"last")].concat()),
        )
        .says("last"),
        Case::new(
            "the key of an attribute",
            br#""attributes": [{"key": "user.id", "value": {"stringValue": "first"}},
                {"key": "user.id", "value": {"stringValue": "last"}}]"#,
            Some(
                &[
                    field(9, &key_value(b"user.id", &string(b"first"))),
                    field(9, &key_value(b"user.id", &string(b"last"))),
                ]
                .concat(),
            ),
        ),
        Case::value(
            "a value",
            r#"{"stringValue": "first", "stringValue": "last"}"#,
            &[string(b"first"), string(b"last")].concat(),
        )
        .says("last"),
        Case::value(
            "a value, of two kinds",
            r#"{"stringValue": "first", "intValue": "2"}"#,
            &[string(b"first"), varint(3, 2)].concat(),
        )
        .says("\"2\""),
        Case::value(
            "a value, of two kinds the other way around",
            r#"{"int_value": 2, "stringValue": "last", "boolValue": null}"#,
            &[varint(3, 2), string(b"last")].concat(),
        )
        .says("last"),
        Case::value(
            "a key in arguments that are JSON",
            r#"{"stringValue": "{\"a\": 1, \"a\": 2}"}"#,
            &string(br#"{"a": 1, "a": 2}"#),
        )
        .says(r#"{"a":2}"#),
    ]
}

fn nesting() -> Vec<Case> {
    let lists = |name, depth: usize| {
        let (mut json, mut protobuf) = (r#"{"intValue": 7}"#.to_owned(), varint(3, 7));
        for _ in 1..depth {
            json = format!(r#"{{"arrayValue": {{"values": [{json}]}}}}"#);
            protobuf = field(5, &field(1, &protobuf));
        }
        Case::value(name, &json, &protobuf)
    };
    let maps = |name, depth: usize| {
        let (mut json, mut protobuf) = (r#"{"intValue": 7}"#.to_owned(), varint(3, 7));
        for _ in 1..depth {
            let entry = format!(r#"{{"key": "k", "value": {json}}}"#);
            json = format!(
                r#"{{"kvlistValue": {{"values": [{entry}, {{"key": "l", "value": {{}}}}]}}}}"#
            );
            let entries = [field(1, &key_value(b"k", &protobuf)), field(1, &key_value(b"l", b""))];
            protobuf = field(6, &entries.concat());
        }
        Case::value(name, &json, &protobuf)
    };
    let unknown = format!(r#""unknown": {}1{}"#, "[".repeat(10_000), "]".repeat(10_000));
    vec![
        lists("lists, as deep as they may be", 32).says("[7]"),
        lists("lists, too deep by one", 33).repaired(&[("too_deep", 1)]).says("[null]"),
        lists("lists, far too deep", 10_000).repaired(&[("too_deep", 1)]).says("[null]"),
        maps("maps, as deep as they may be", 32).says("7"),
        maps("maps, too deep by one", 33).repaired(&[("too_deep", 2)]),
        maps("maps, far too deep", 5_000).repaired(&[("too_deep", 2)]),
        Case::new("what nobody reads", unknown.as_bytes(), Some(&field(99, &[0xff; 100]))),
    ]
}

fn types() -> Vec<Case> {
    let once = &[("wrong_type", 1)];
    let value =
        |name, json: &str, protobuf: &[u8]| Case::value(name, json, protobuf).repaired(once);
    vec![
        Case::new("a number for a name", br#""name": 5"#, Some(&varint(5, 5))).repaired(once),
        Case::new("a number for the id of a parent", br#""parentSpanId": 5"#, Some(&varint(4, 5)))
            .repaired(once),
        Case::new("a number for the id of a trace", br#""traceId": 5"#, None)
            .rejected("invalid_trace_id")
            .repaired(once),
        Case::new(
            "a list for a count",
            br#""droppedAttributesCount": [1]"#,
            Some(&field(10, b"1")),
        )
        .repaired(once),
        Case::new("a number for a status", br#""status": 2"#, Some(&varint(15, 2))).repaired(once),
        Case::new(
            "a list for a code",
            br#""status": {"code": [2]}"#,
            Some(&field(15, &field(3, b"2"))),
        )
        .repaired(once),
        Case::new("a number for attributes", br#""attributes": 5"#, Some(&varint(9, 5)))
            .repaired(once),
        Case::new(
            "a number for an attribute, beside a good one",
            br#""attributes": [5, {"key": "user.id", "value": {"stringValue": "me"}}]"#,
            Some(&[varint(9, 5), field(9, &key_value(b"user.id", &string(b"me")))].concat()),
        )
        .repaired(once)
        .says("me"),
        Case::new(
            "a number for a key",
            br#""attributes": [{"key": 5, "value": {"stringValue": "me"}}]"#,
            Some(&field(9, &[varint(1, 5), field(2, &string(b"me"))].concat())),
        )
        .repaired(once),
        Case::new("a number for an event", br#""events": [5]"#, Some(&varint(11, 5)))
            .repaired(once),
        Case::new("a number for a link", br#""links": [5]"#, Some(&varint(13, 5))).repaired(once),
        Case::new(
            "a number for the id in a link",
            br#""links": [{"traceId": 5}]"#,
            Some(&field(13, &varint(1, 5))),
        )
        .repaired(once),
        value("a number for a string", r#"{"stringValue": 5}"#, &varint(1, 5)),
        value("a string for a flag", r#"{"boolValue": "true"}"#, &field(2, b"true")),
        value("an object for a whole number", r#"{"intValue": {}}"#, &field(3, b"")),
        value("a flag for a float", r#"{"doubleValue": true}"#, &varint(4, 1)),
        value("a number for a list", r#"{"arrayValue": 5}"#, &varint(5, 5)),
        value("a number for a map", r#"{"kvlistValue": 5}"#, &varint(6, 5)),
        value("a number in a map", r#"{"kvlistValue": {"values": [5]}}"#, &field(6, &varint(1, 5))),
        value("a number for bytes", r#"{"bytesValue": 5}"#, &varint(7, 5)),
        value(
            "another kind too",
            r#"{"intValue": 5, "stringValue": 5}"#,
            &[varint(3, 5), varint(1, 5)].concat(),
        )
        .says("\"5\""),
        Case::value("bytes", r#"{"bytesValue": "aGk/"}"#, &field(7, b"hi?")).says("hi?"),
        Case::value(
            "bytes in the other alphabet",
            r#"{"bytesValue": "-_8"}"#,
            &field(7, &[0xfb, 0xff]),
        ),
        Case::new("an empty object, as PHP writes it", br#""status": [], "attributes": []"#, None),
        Case::new("nothing at all", br#""name": null, "status": null, "events": null"#, Some(b"")),
    ]
}

#[test]
fn what_is_odd_costs_itself_alone_in_both_encodings() {
    for case in [strings(), strings_elsewhere(), content(), numbers(), twice(), nesting(), types()]
        .into_iter()
        .flatten()
    {
        let name = case.name;
        let from_json = decode(Encoding::Json, &in_json(&case.json));
        let from_json = from_json.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(from_json.tally, case.expected(Encoding::Json), "{name}");
        let kept = usize::from(case.rejected.is_none());
        assert_eq!(from_json.spans.len(), 9 + kept, "{name}");
        let said = serde_json::to_value(&from_json.spans[5]).unwrap();
        let said =
            format!("{} {said}", said["tool"]["arguments"]["text"].as_str().unwrap_or_default());
        assert!(kept == 0 || said.contains(case.says), "{name}: {said}");
        let Some(protobuf) = &case.protobuf else { continue };
        let from_protobuf = decode(Encoding::Protobuf, &in_protobuf(protobuf));
        let from_protobuf = from_protobuf.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(from_protobuf.tally, case.expected(Encoding::Protobuf), "{name}");
        assert_eq!(from_json.spans, from_protobuf.spans, "{name}");
        assert_eq!(from_json.reports, from_protobuf.reports, "{name}");
    }
}

#[test]
fn around_the_spans_too_what_is_odd_costs_itself_alone() {
    let span = r#"{"traceId": "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a", "spanId": "0000000000000001"}"#;
    let span_of = [field(1, &TRACE), field(2, &1_u64.to_be_bytes())].concat();
    let spans = format!(r#""spans": [{span}]"#);
    let scoped = format!(r#""scopeSpans": [{{{spans}}}]"#);
    let (in_scope, in_resource) = (field(2, &span_of), field(2, &field(2, &span_of)));
    for (resource, encoded, why) in [
        (
            format!(r#"{{"resource": 5, {scoped}}}"#),
            [varint(1, 5), in_resource.clone()].concat(),
            "wrong_type",
        ),
        (
            format!(r#"{{"resource": {{"attributes": 5}}, {scoped}}}"#),
            [field(1, &varint(1, 5)), in_resource.clone()].concat(),
            "wrong_type",
        ),
        (
            format!(r#"{{"scopeSpans": [{{"scope": 5, {spans}}}]}}"#),
            field(2, &[varint(1, 5), in_scope.clone()].concat()),
            "wrong_type",
        ),
        (
            format!(r#"{{"scopeSpans": [{{"scope": {{"name": "\ud83d"}}, {spans}}}]}}"#),
            field(2, &[field(1, &field(1, b"\xed\xa0\xbd")), in_scope].concat()),
            "invalid_utf8",
        ),
        (
            format!(
                r#"{{"resource": {{"attributes": [{{"key": "service.name", "value": {{"stringValue": "s\ud83d"}}}}]}}, {scoped}}}"#
            ),
            [
                field(1, &field(1, &key_value(b"service.name", &string(b"s\xed\xa0\xbd")))),
                in_resource,
            ]
            .concat(),
            "invalid_utf8",
        ),
    ] {
        let json = format!(r#"{{"resourceSpans": [{resource}]}}"#);
        let from_json = decode(Encoding::Json, json.as_bytes()).unwrap();
        let from_protobuf = decode(Encoding::Protobuf, &field(1, &encoded)).unwrap();
        assert_eq!(from_json.spans, from_protobuf.spans, "{json}");
        assert_eq!(from_json.tally, from_protobuf.tally, "{json}");
        assert_eq!(from_json.spans.len(), 1, "{json}");
        assert_eq!(from_json.tally.repaired.get(why), Some(&1), "{json}: {:?}", from_json.tally);
    }
    let ten = String::from_utf8(in_json(b"")).unwrap();
    let eleven = ten.replacen("\"spans\": [", "\"spans\": [5, ", 1);
    let tally = decode(Encoding::Json, eleven.as_bytes()).unwrap().tally;
    assert_eq!((tally.spans, tally.rejected.get("malformed_span")), (11, Some(&1)));
}

#[test]
fn json_of_another_shape_is_refused_and_says_what_was_expected() {
    let refused = |signal, json: &str| {
        let body = bytes::Bytes::from(json.to_owned());
        let decoder = decoder();
        let prepared = decoder.prepare(signal, Encoding::Json, Compression::None, body).unwrap();
        decoder.decode(prepared, None, None).map(|batch| batch.tally)
    };
    for (signal, json, says) in [
        (
            Signal::Traces,
            r#"{"resourceSpans": {"scopeSpans": []}}"#,
            "`resourceSpans` must be a list",
        ),
        (Signal::Logs, r#"{"resource_logs": 5}"#, "`resourceLogs` must be a list"),
        (Signal::Traces, r#"{"resourceLogs": []}"#, "expected `resourceSpans`"),
        (Signal::Logs, r#"{"resourceSpans": []}"#, "traces go to /v1/traces"),
        (Signal::Metrics, r#"{"resource_spans": []}"#, "expected `resourceMetrics`"),
    ] {
        let error = refused(signal, json).unwrap_err().to_string();
        assert!(error.contains(says), "{json}: {error}");
    }
    for json in ["{}", r#"{"resourceSpans": null}"#, r#"{"other": 1}"#] {
        assert_eq!(refused(Signal::Traces, json).unwrap(), RequestCounts::default(), "{json}");
    }
    for (signal, json, why, count) in [
        (Signal::Traces, r#"{"resourceSpans": [{"scopeSpans": {"spans": []}}]}"#, "not_a_list", 1),
        (
            Signal::Traces,
            r#"{"resourceSpans": [{"scopeSpans": [{"spans": {"name": "a"}}]}]}"#,
            "not_a_list",
            1,
        ),
        (
            Signal::Logs,
            r#"{"resourceLogs": [{"scopeLogs": [{"logRecords": "a"}]}]}"#,
            "not_a_list",
            1,
        ),
        (
            Signal::Traces,
            r#"{"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": [{}, {}]}, {"spans": [{}]}]}]}"#,
            "instrumentation_library",
            3,
        ),
    ] {
        let tally = refused(signal, json).unwrap();
        assert_eq!(tally.rejected, BTreeMap::from([(why, count)]), "{json}");
        assert_eq!(tally.spans + tally.logs, count, "{json}");
    }
}

#[test]
fn records_of_old_instrumentation_libraries_are_rejected_and_told_of() {
    // By the field that they had in protobuf; beside them a span is taken.
    let old = |records: usize| {
        field(1000, &[field(1, b""), field(2, b"").repeat(records), field(3, b"u")].concat())
    };
    let now = 1_790_000_000_000_000_000_u64;
    let span = [field(1, &[1; 16]), field(2, &[2; 8]), fixed(7, now), fixed(8, now + 1)].concat();
    let new = field(2, &field(2, &span));
    for (signal, taken) in [(Signal::Traces, 1), (Signal::Logs, 0)] {
        let resource = [old(2), if taken == 1 { new.clone() } else { Vec::new() }, old(1)].concat();
        let batch =
            decoder().decode_plain(signal, Encoding::Protobuf, &field(1, &resource)).unwrap();
        let tally = &batch.tally;
        assert_eq!(tally.rejected, BTreeMap::from([("instrumentation_library", 3)]), "{signal:?}");
        assert_eq!((batch.spans.len(), tally.spans + tally.logs), (taken, 3 + taken as u64));
    }
}

#[test]
fn a_report_too_costs_itself_alone() {
    let (trace, now) = ("5a".repeat(16), 1_790_000_000_000_000_000_u64);
    let json = format!(
        r#"{{"reports": [
            {{"trace_id": "{trace}", "name": "quality", "label": "pass", "time_unix_nano": {now}, "id": "a"}},
            {{"trace_id": "{trace}", "name": "q\ud83d", "score": 0.5, "time_unix_nano": {now}, "id": "\ud83d"}},
            {{"session_id": "s\ude00", "name": "quality", "score": 1, "time_unix_nano": {now}, "id": "c"}},
            {{"run": {{"agent": {{"service_name": "s\ud83d"}}, "task_id": "t", "run_id": "r"}}, "name": "quality",
              "score": 1, "time_unix_nano": {now}, "id": "d"}}]}}"#
    );
    let half = b"\xed\xa0\xbd";
    let report = |fields: &[Vec<u8>]| field(1, &[&fields.concat()[..], &fixed(9, now)].concat());
    let score = |score: f64| fixed(7, score.to_bits());
    let agent = field(1, &field(2, &[b"s", &half[..]].concat()));
    let run = field(5, &[agent, field(2, b"t"), field(3, b"r")].concat());
    let protobuf = [
        report(&[
            field(2, trace.as_bytes()),
            field(6, b"quality"),
            field(8, b"pass"),
            field(1, b"a"),
        ]),
        report(&[
            field(2, trace.as_bytes()),
            field(6, &[b"q", &half[..]].concat()),
            score(0.5),
            field(1, half),
        ]),
        report(&[field(4, b"s\xed\xb8\x80"), field(6, b"quality"), score(1.0), field(1, b"c")]),
        report(&[run, field(6, b"quality"), score(1.0), field(1, b"d")]),
    ]
    .concat();
    let of =
        |encoding, body: &[u8]| decoder().decode_plain(Signal::Reports, encoding, body).unwrap();
    let from_json = of(Encoding::Json, json.as_bytes());
    let from_protobuf = of(Encoding::Protobuf, &protobuf);
    assert_eq!(from_json.tally.reports, 4, "{:?}", from_json.tally);
    assert_eq!(from_json.tally.repaired, BTreeMap::from([("invalid_utf8", 4)]));
    assert_eq!(from_json.tally, from_protobuf.tally);
    assert_eq!(from_json.reports, from_protobuf.reports);
    let cut = decoder().decode_plain(
        Signal::Reports,
        Encoding::Protobuf,
        &protobuf[..protobuf.len() - 1],
    );
    assert!(cut.is_err());
}

#[test]
fn what_broke_off_is_refused_whole() {
    for case in [strings(), strings_elsewhere(), numbers(), nesting()].into_iter().flatten() {
        let body = in_json(&case.json);
        for at in (0..body.len()).rev().step_by(1 + body.len() / 97) {
            assert!(decode(Encoding::Json, &body[..at]).is_err(), "{}, {at}", case.name);
        }
        let Some(protobuf) = &case.protobuf else { continue };
        let body = in_protobuf(protobuf);
        for at in (1..body.len()).rev().step_by(1 + body.len() / 97) {
            assert!(decode(Encoding::Protobuf, &body[..at]).is_err(), "{}, {at}", case.name);
        }
    }
    // Neither is it JSON if its structure is not.
    for (from, to) in
        [("[{", "[{{"), ("\"good\"", "good"), (", ", ",, "), ("\"name\": ", "\"name\" ")]
    {
        let body =
            String::from_utf8(in_json(br#""name": "\ud83d""#)).unwrap().replacen(from, to, 1);
        assert!(decode(Encoding::Json, body.as_bytes()).is_err(), "{from} {to}");
    }
}

#[test]
fn a_byte_order_mark_before_a_request_says_nothing() {
    for odd in [&br#""name": "good""#[..], br#""name": "\ud83d""#] {
        let body = in_json(odd);
        let marked = [b"\xef\xbb\xbf", &body[..]].concat();
        let spans = |body: &[u8]| decode(Encoding::Json, body).unwrap().spans;
        assert_eq!(spans(&marked), spans(&body));
    }
}

#[test]
fn a_text_of_another_encoding_is_told_so() {
    let body = String::from_utf8(in_json(br#""name": "good""#)).unwrap();
    let little: Vec<u8> = body.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = body.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for (mark, text) in
        [(&b""[..], &little), (b"\xff\xfe", &little), (b"", &big), (b"\xfe\xff", &big)]
    {
        let refusal = decode(Encoding::Json, &[mark, &text[..]].concat()).unwrap_err();
        assert!(refusal.to_string().contains("UTF-8"), "{refusal}");
    }
}

/// Puts marks into the strings of a value: into those whose turn it is, at a place among their characters.
fn mark(value: &mut Value, turns: &mut impl FnMut() -> Option<usize>) -> u64 {
    match value {
        Value::String(text) => {
            let Some(place) = turns() else { return 0 };
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            text.insert(
                places.get(place % (places.len() + 1)).copied().unwrap_or(text.len()),
                MARK,
            );
            1
        }
        Value::Array(items) => items.iter_mut().map(|item| mark(item, turns)).sum(),
        Value::Object(map) => map.values_mut().map(|item| mark(item, turns)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// A character that no recording has.
const MARK: char = '\u{e000}';

/// What was recorded, as JSON.
static RECORDED: LazyLock<Vec<(Signal, Vec<u8>)>> = LazyLock::new(|| {
    let recorded = recorded().into_iter();
    recorded.map(|(signal, body)| (signal, to_json(signal, &body))).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whichever strings are cut, the request is what it is with a question mark there.
    #[test]
    fn halves_of_pairs_refuse_nothing(
        which in any::<prop::sample::Index>(),
        every in 1_usize..40,
        first in any::<usize>(),
        half in prop::sample::select(vec!["\\ud83d", "\\uDBFF", "\\ude00", "\\udc00"]),
    ) {
        let (signal, body) = which.get(&RECORDED);
        let mut request: Value = serde_json::from_slice(body).unwrap();
        let mut turn = first % every;
        let marked = mark(&mut request, &mut || {
            turn += 1;
            turn.is_multiple_of(every).then_some(first.wrapping_add(turn))
        });
        let text = request.to_string();
        let cut = decoder().decode_plain(*signal, Encoding::Json, text.replace(MARK, half).as_bytes());
        let mut cut = cut.map_err(|refusal| TestCaseError::fail(refusal.to_string()))?;
        let mended = decoder().decode_plain(*signal, Encoding::Json, text.replace(MARK, "?").as_bytes()).unwrap();
        let counted = cut.tally.repaired.remove("invalid_utf8");
        prop_assert_eq!(counted.unwrap_or(0), marked);
        prop_assert_eq!(&cut.tally, &mended.tally);
        prop_assert_eq!(cut.spans, mended.spans);
        prop_assert_eq!(cut.logs, mended.logs);
        prop_assert_eq!(cut.reports, mended.reports);
    }

    /// Wherever halves and numbers that no float holds are put, keys and names of fields included, nothing is refused.
    #[test]
    fn halves_of_pairs_anywhere_refuse_nothing(
        which in any::<prop::sample::Index>(),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..8),
    ) {
        let (signal, body) = which.get(&RECORDED);
        let text = String::from_utf8(body.clone()).unwrap();
        let mut parts: Vec<String> = text.split('"').map(str::to_owned).collect();
        for (place, first) in places {
            let part = place.get(&parts);
            // After an escape it is no end of a string; a half there would be escaped itself.
            if part.ends_with('\\') {
                continue;
            }
            let at = parts.iter().position(|other| std::ptr::eq(other, part)).unwrap();
            let is_string = parts[..at].iter().filter(|part| !part.ends_with('\\')).count() % 2 == 1;
            if is_string {
                parts[at].push_str(if first { "\\ud83d" } else { "\\ude00" });
            }
        }
        let decoded = decoder().decode_plain(*signal, Encoding::Json, parts.join("\"").as_bytes());
        prop_assert!(decoded.is_ok(), "{:?}", decoded.err());
    }
}
