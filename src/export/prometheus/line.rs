//! The text of a sample: labels, and a number.
//!
//! A page mostly repeats the same few dozen bytes, so plain text is copied, and little is handled letter by letter: labels with
//! something to escape, and numbers that are neither whole nor short.

use std::borrow::Cow;
use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::facts::AgentKey;

/// The most bytes of a label value; longer ones are cut.
const MAX_LABEL_BYTES: usize = 128;

/// Bytes of the hash at the end of a label value that is not whole, with the sign before it.
const HASH_BYTES: usize = 9;

/// Whole numbers below this are exact as floats.
const WHOLE: u64 = 1 << 53;

/// The labels of an agent. Those whose value is empty mean the same to Prometheus as none.
pub(in super::super) fn agent_labels(agent: &AgentKey) -> [(&'static str, &str); 5] {
    [
        ("service_name", &agent.service_name),
        ("gen_ai_agent_name", &agent.agent_name),
        ("gen_ai_agent_version", &agent.agent_version),
        ("deployment_environment_name", &agent.environment),
        ("tenant", &agent.tenant),
    ]
}

/// Writes the labels of an agent: those that are not empty, and the first always.
pub(super) fn label_block(agent: &AgentKey) -> String {
    let mut block = String::new();
    for (name, value) in agent_labels(agent) {
        if block.is_empty() {
            label(name, value, &mut block);
        } else if !value.is_empty() {
            block.push(',');
            label(name, value, &mut block);
        }
    }
    block
}

/// Writes a label and its value.
pub(super) fn label(name: &str, value: &str, text: &mut String) {
    text.push_str(name);
    text.push_str("=\"");
    let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if value.len() <= MAX_LABEL_BYTES && value.bytes().all(is_plain) {
        text.push_str(value);
    } else {
        escape(&shown(value), text);
    }
    text.push('"');
}

fn escape(value: &str, text: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

/// The value of a label as it is exported: cut, with spaces for control characters, which some parsers cannot read, and for those
/// that change the direction of the text around them, as in a title of an alert. A value that is not whole ends in a hash of it, so
/// that different values stay different.
pub(in super::super) fn shown(value: &str) -> Cow<'_, str> {
    let is_readable = |c: char| c == '\n' || !(c.is_control() || breaks_or_turns_text(c));
    if value.len() <= MAX_LABEL_BYTES && value.chars().all(is_readable) {
        return Cow::Borrowed(value);
    }
    let kept = &value[..value.floor_char_boundary(MAX_LABEL_BYTES - HASH_BYTES)];
    let mut shown: String = kept.chars().map(|c| if is_readable(c) { c } else { ' ' }).collect();
    // Writing to a string cannot fail.
    let _ = write!(shown, "~{:08x}", xxh3_64(value.as_bytes()) >> 32);
    Cow::Owned(shown)
}

/// Whether this ends a line, or changes the direction of the text after it.
fn breaks_or_turns_text(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes a count, as the float that is nearest to it.
pub(super) fn count(count: u64, text: &mut String) {
    if count < WHOLE {
        text.push_str(itoa::Buffer::new().format(count));
    } else {
        let _ = write!(text, "{}", count as f64);
    }
}

/// Writes a number as the shortest decimal that reads as the same number, without an exponent.
pub(super) fn number(value: f64, text: &mut String) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is not the same afterwards goes another way"
    )]
    let whole = value as u64;
    if whole < WHOLE && (whole as f64).to_bits() == value.to_bits() {
        return count(whole, text);
    }
    let mut buffer = ryu::Buffer::new();
    let shortest = buffer.format(value);
    if value.is_finite() && !shortest.contains('e') {
        text.push_str(shortest.strip_suffix(".0").unwrap_or(shortest));
    } else {
        // Writing to a string cannot fail.
        let _ = write!(text, "{value}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut text = String::new();
        write(&mut text);
        text
    }

    #[test]
    fn a_label_has_nothing_that_turns_the_text_after_it() {
        let turns = ['\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'];
        for turns in turns {
            let value = format!("bad{turns}txt");
            let shown = shown(&value);
            assert!(shown.starts_with("bad txt~") && shown.len() == 7 + HASH_BYTES, "{shown:?}");
        }
        assert_eq!(shown("سلام\u{200d}"), "سلام\u{200d}", "others stay");
    }

    #[test]
    fn numbers_of_every_kind_are_written_as_the_standard_library_writes_them() {
        let whole = 9_007_199_254_740_992.0;
        let odd =
            [0.0, -0.0, 1.0, 0.1, 0.3, 1e-5, 1e-7, 1e15, 1e16, 1e17, 1e300, f64::MIN_POSITIVE];
        let odd = odd.into_iter().chain([whole - 1.0, whole, whole + 2.0, 123_456.75, 5e-324]);
        let odd = odd.chain([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX]);
        for value in odd.flat_map(|value| [value, -value]) {
            assert_eq!(written(|text| number(value, text)), value.to_string());
        }
        let tie = written(|text| number(f64::from_bits(4_828_056_311_471_870_378), text));
        assert!(["587638819758645.2", "587638819758645.3"].contains(&tie.as_str()), "{tie}");
        for value in [0, 1, WHOLE - 1, WHOLE, WHOLE + 1, u64::MAX] {
            assert_eq!(written(|text| count(value, text)), (value as f64).to_string());
        }
    }

    proptest! {
        /// Where two decimals are as short and as near, either may be written.
        #[test]
        fn any_number_is_read_as_it_was_and_as_short_as_the_standard_library_writes_it(
            bits in any::<u64>(), share in 0.0_f64..1.0, whole in any::<u64>(), quanta in 0_i64..2_000_000_000_000,
        ) {
            let score = quanta as f64 / 1e12;
            for value in [f64::from_bits(bits), share, share * 1e9, whole as f64, score] {
                let (ours, theirs) = (written(|text| number(value, text)), value.to_string());
                let read: f64 = ours.parse().unwrap();
                prop_assert!(read.to_bits() == value.to_bits() || value.is_nan(), "{}", ours);
                prop_assert_eq!((ours.len(), ours.contains('e')), (theirs.len(), false), "{}", theirs);
            }
            prop_assert_eq!(written(|text| count(whole, text)), (whole as f64).to_string());
        }
    }
}
