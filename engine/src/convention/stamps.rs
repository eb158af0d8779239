//! Stamps in a tool's result: the id of its call, ids of requests, their times, and how long they took. They differ each time, and
//! do not mean progress.
//!
//! They are recognised by their keys, and in texts by a word before a number with a fraction and a unit (`3 failed in 0.12s`).
//! Whatever may be progress is kept: other numbers, dates and ids, everything in a result that reports something as still running,
//! and everything in a result without other content. The id of the call is removed even there, as it is not part of the answer.

use std::borrow::Cow;

use memchr::memchr_iter;

use super::json::{Json, Object};

/// A result without its stamps.
pub(super) fn without(mut value: Json<'_>) -> Json<'_> {
    if has_stamps(&value) {
        let are_stamps = !is_running(&value) && says_more(&value);
        remove(&mut value, if are_stamps { is_stamp } else { is_call_id });
    }
    without_measures(&mut value);
    value
}

/// The values in a list or an object; none in others.
fn values<'j, 'v>(value: &'j Json<'v>) -> impl Iterator<Item = &'j Json<'v>> {
    let items = value.as_list().unwrap_or_default();
    items.iter().chain(value.as_object().into_iter().flat_map(Object::values))
}

fn has_stamps(value: &Json<'_>) -> bool {
    let own = value.as_object().is_some_and(|map| map.iter().any(is_stamp));
    own || values(value).any(has_stamps)
}

/// Whether a result reports a state in which something is still to come: its times may be the progress.
fn is_running(value: &Json<'_>) -> bool {
    let is_state = |(key, value): (&str, &Json<'_>)| {
        let state = value.as_str().filter(|_| STATES.iter().any(|state| is_named(key, state)));
        state.is_some_and(|state| RUNNING.iter().any(|running| is_named(state, running)))
    };
    let own = value.as_object().is_some_and(|map| map.iter().any(is_state));
    own || values(value).any(is_running)
}

/// Whether there is anything but stamps.
fn says_more(value: &Json<'_>) -> bool {
    let Some(map) = value.as_object() else {
        return values(value).next().is_none() || values(value).any(says_more);
    };
    // MCP's fields around a text have no content.
    let is_said = |key: &str| key != "type" && key != "isError";
    let more = |(key, value): (&str, &Json<'_>)| {
        is_said(key) && !is_stamp((key, value)) && says_more(value)
    };
    map.is_empty() || map.iter().any(more)
}

fn remove(value: &mut Json<'_>, is_one: fn((&str, &Json<'_>)) -> bool) {
    match value {
        Json::Object(map) => {
            map.retain(|key, value| !is_one((key, value)));
            map.values_mut().for_each(|inner| remove(inner, is_one));
        }
        Json::List(items) => items.iter_mut().for_each(|inner| remove(inner, is_one)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => {}
    }
}

/// Whether an entry of an object is a stamp.
fn is_stamp((key, value): (&str, &Json<'_>)) -> bool {
    may_be_stamp(key)
        && value.is_scalar()
        && (is_call_id((key, value))
            || STAMPS.iter().any(|stamp| is_named(key, stamp))
            || MEASURES.iter().any(|name| begins(key, name)))
}

/// Whether an entry of an object is the id that the model gave the call.
fn is_call_id((key, value): (&str, &Json<'_>)) -> bool {
    value.is_scalar() && CALL_IDS.iter().any(|id| is_named(key, id))
}

/// Whether a key begins like that of a stamp; most do not.
fn may_be_stamp(key: &str) -> bool {
    // In lower case, and `_` as 0x7f.
    let first = key.as_bytes().first_chunk().map(|first: &[u8; 2]| first.map(|byte| byte | 0x20));
    let first = first.unwrap_or_default();
    matches!(
        &first,
        b"co"
            | b"du"
            | b"el"
            | b"ex"
            | b"la"
            | b"qu"
            | b"re"
            | b"se"
            | b"sp"
            | b"ti"
            | b"to"
            | b"tr"
    ) || matches!(&first, b"x-" | b"x\x7f" | b"xr" | b"xc" | b"`t")
}

/// Letters and digits, in lower case: `X-Request-ID`, `requestId` and `request_id` are alike.
fn letters(name: &str) -> impl Iterator<Item = u8> {
    name.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase())
}

fn is_named(name: &str, letters_of: &str) -> bool {
    letters(name).eq(letters_of.bytes())
}

/// Whether a key begins with this word: `took_ms`, `elapsedTime`; not `durations`, `tooken`.
fn begins(key: &str, word: &str) -> bool {
    let start = key.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let rest = start.get(..word.len()).filter(|start| start.eq_ignore_ascii_case(word));
    rest.is_some() && !start.as_bytes().get(word.len()).is_some_and(u8::is_ascii_lowercase)
}

/// Removes measured durations from all texts.
fn without_measures(value: &mut Json<'_>) {
    match value {
        Json::Text(text) => {
            if let Some(kept) = unmeasured(text) {
                *text = Cow::Owned(kept);
            }
        }
        Json::Object(map) => map.values_mut().for_each(without_measures),
        Json::List(items) => items.iter_mut().for_each(without_measures),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// A text without the numbers of measured durations; `None`: it has none.
fn unmeasured(text: &str) -> Option<String> {
    let (mut kept, mut from) = (String::new(), 0);
    for point in memchr_iter(b'.', text.as_bytes()) {
        if let Some((start, end)) =
            measured(text.as_bytes(), point).filter(|(start, _)| *start >= from)
        {
            kept.push_str(&text[from..start]);
            from = end;
        }
    }
    (from > 0).then(|| kept + &text[from..])
}

/// Where a number with this decimal point begins and ends, if it is a measured duration: `in 0.12s`, `(0.00s)`, `Time: 1.2 s`.
fn measured(text: &[u8], point: usize) -> Option<(usize, usize)> {
    let digits = |bytes: &mut dyn Iterator<Item = &u8>| {
        bytes.take(LONGEST).take_while(|byte| byte.is_ascii_digit()).count()
    };
    let (whole, fraction) =
        (digits(&mut text[..point].iter().rev()), digits(&mut text[point + 1..].iter()));
    let (start, end) = (point - whole, point + 1 + fraction);
    let after = text.get(end..)?;
    let after = after.strip_prefix(b" ").unwrap_or(after);
    let unit =
        after.iter().take_while(|byte| byte.is_ascii_alphabetic() || !byte.is_ascii()).count();
    let is_timed = whole > 0 && fraction > 0 && UNITS.contains(&&after[..unit]);
    let is_told = match text[..start] {
        [.., b'(' | b'\t'] => true,
        [.., b' ' | b':' | b'='] => {
            let before = text[..start].trim_ascii_end();
            let before =
                before.strip_suffix(b":").or_else(|| before.strip_suffix(b"=")).unwrap_or(before);
            let word =
                before.iter().rev().take(LONGEST).take_while(|byte| byte.is_ascii_alphabetic());
            let word = &before[before.len() - word.count()..];
            WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
        }
        _ => false,
    };
    (is_timed && is_told).then_some((start, end))
}

/// Keys of stamps, in letters and digits alone.
const STAMPS: [&str; 16] = [
    "requestid",
    "xrequestid",
    "correlationid",
    "xcorrelationid",
    "traceid",
    "spanid",
    "traceparent",
    "timestamp",
    "requesttimestamp",
    "responsetimestamp",
    "servertimestamp",
    "servertime",
    "responsetime",
    "responsetimems",
    "querytimems",
    "executiontimems",
];

/// Keys of the ids of calls, in letters and digits alone.
const CALL_IDS: [&str; 2] = ["toolcallid", "tooluseid"];

/// Words with which keys of measured durations begin.
const MEASURES: [&str; 4] = ["took", "elapsed", "duration", "latency"];

/// Keys of states.
const STATES: [&str; 4] = ["status", "state", "phase", "stage"];

/// States in which something is still to come.
const RUNNING: [&str; 14] = [
    "running",
    "pending",
    "queued",
    "inqueue",
    "inprogress",
    "processing",
    "waiting",
    "starting",
    "started",
    "active",
    "building",
    "executing",
    "scheduled",
    "working",
];

/// Units of durations.
const UNITS: [&[u8]; 10] = [
    b"s",
    b"sec",
    b"secs",
    b"second",
    b"seconds",
    b"ms",
    b"us",
    "µs".as_bytes(),
    "μs".as_bytes(),
    b"ns",
];

/// Words before a measured duration.
const WORDS: [&[u8]; 5] = [b"in", b"took", b"time", b"elapsed", b"duration"];

/// The longest number or word that is considered.
const LONGEST: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    fn kept(text: &str) -> String {
        without(json::read(text).unwrap()).to_string()
    }

    #[test]
    fn ids_of_requests_times_and_durations_are_left_out() {
        for (result, expected) in [
            (r#"{"results":[],"took_ms":12,"request_id":"9f"}"#, r#"{"results":[]}"#),
            (
                r#"{"status":"not_found","timestamp":"2026-11-30T03:01:00Z"}"#,
                r#"{"status":"not_found"}"#,
            ),
            (
                r#"{"meta":{"requestId":"a","X-Request-ID":"b","latencyMs":3},"rows":[1]}"#,
                r#"{"meta":{},"rows":[1]}"#,
            ),
            (r#"[{"v":1,"elapsed":0.2},{"v":2,"duration_s":5}]"#, r#"[{"v":1},{"v":2}]"#),
            (
                r#"{"toolUseId":"c","content":[{"text":"18 C"}]}"#,
                r#"{"content":[{"text":"18 C"}]}"#,
            ),
            (
                r#"{"tool_call_id":"c","status":"running","took":1}"#,
                r#"{"status":"running","took":1}"#,
            ),
        ] {
            assert_eq!(kept(result), expected, "{result}");
        }
    }

    #[test]
    fn every_key_begins_with_letters_that_are_looked_for() {
        let others = ["X-Request-ID", "x_correlation_id", "@timestamp", "Took", "ELAPSED_MS"];
        for name in STAMPS.iter().chain(&CALL_IDS).chain(&MEASURES).chain(&others) {
            assert!(may_be_stamp(name), "{name}");
        }
    }

    #[test]
    fn what_may_be_progress_is_kept() {
        for result in [
            r#"{"progress":10,"offset":200,"count":3,"percent":"10 %","cursor":"c9","id":"9f"}"#,
            r#"{"status":"running","elapsed_s":30}"#,
            r#"{"job":{"state":"IN_PROGRESS"},"timestamp":1}"#,
            r#"{"timestamp":"2026-11-30T03:01:00Z"}"#,
            r#"{"data":{"request_id":"a"}}"#,
            r#"{"content":[{"type":"text","text":{"timestamp":1}}],"isError":false}"#,
            r#"{"updated_at":"2026-11-30","next_time":"10:00","tooken":1,"durations":2}"#,
            r#"{"duration":{"days":2},"done":true}"#,
        ] {
            assert_eq!(kept(result), result);
        }
    }

    #[test]
    fn measured_durations_are_left_out_of_texts() {
        for (text, expected) in [
            ("3 failed in 0.12s", "3 failed in s"),
            (
                "Tests: 1 failed\nTime:        1.234 s, estimated 2 s",
                "Tests: 1 failed\nTime:         s, estimated 2 s",
            ),
            ("--- FAIL: TestX (0.00s)\nFAIL\tpkg\t0.012s", "--- FAIL: TestX (s)\nFAIL\tpkg\ts"),
            ("took=12.5ms, took 3.25 µs.", "took=ms, took  µs."),
        ] {
            assert_eq!(unmeasured(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "ready in 30 s",
            "processed 12.5s of 60.0s",
            "in 0.12 steps",
            "v1.2.3",
            "in .5s",
            "in 1.s",
            "10.5 %",
            ".",
            "",
            "é.é",
        ] {
            assert_eq!(unmeasured(text), None, "{text}");
        }
    }
}
