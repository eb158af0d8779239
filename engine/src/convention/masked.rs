//! Values that replace others, which were removed before sending.
//!
//! Redaction replaces a text by marks or a word in brackets: `****` (the Collector's redaction processor), `[REDACTED]`, `<PERSON>`
//! (Presidio), `[Scrubbed due to 'auth']` (Logfire), `HIDDEN:non-empty` (Koog). Limits of attributes cut texts off. Two such values
//! may be equal although the originals differ.

/// The longest text in brackets that stands for another one, in bytes.
const LONGEST_BYTES: usize = 80;

/// Whether a scalar, written as JSON, replaces a text that was removed.
pub(super) fn is_masked(scalar: &[u8]) -> bool {
    let [b'"', inner @ .., b'"'] = scalar else { return false };
    match inner {
        [b'*' | b'#', ..] => inner.len() > 2 && inner.iter().all(|byte| *byte == inner[0]),
        [b'[', words @ .., b']'] | [b'<', words @ .., b'>'] => {
            let is_of_words = |byte: &u8| byte.is_ascii_alphanumeric() || b" _-:.,'".contains(byte);
            words.len() <= LONGEST_BYTES
                && words.first().is_some_and(u8::is_ascii_alphabetic)
                && words.iter().all(is_of_words)
        }
        _ => HIDDEN.contains(&inner),
    }
}

/// Koog's replacements for a text.
const HIDDEN: [&[u8]; 2] = [b"HIDDEN:non-empty", b"HIDDEN:empty"];

/// Whether a text that is not JSON begins like JSON, and so was cut off.
pub(super) fn is_cut(text: &str) -> bool {
    let begins = text.trim_start().as_bytes();
    let is_open = match begins {
        [b'{', ..] => !text.trim_end().ends_with('}'),
        [b'[', b'{' | b'"', ..] => !text.trim_end().ends_with(']'),
        _ => false,
    };
    is_open && begins.len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_something_else_is_told_from_what_is_meant() {
        for masked in [
            "****",
            "***",
            "####",
            "[REDACTED]",
            "<REDACTED>",
            "[EMAIL_ADDRESS]",
            "<PERSON>",
            "[removed]",
            "[Scrubbed due to 'auth']",
            "<truncated due to size exceeding limit>",
            "HIDDEN:non-empty",
            "HIDDEN:empty",
        ] {
            assert!(is_masked(format!("\"{masked}\"").as_bytes()), "{masked}");
        }
        for meant in [
            "",
            "*",
            "**",
            "***a",
            "[]",
            "[1]",
            "<>",
            "<a href=\\\"x\\\">",
            "see [PERSON]",
            "<b>x</b>",
            "- [ ] done",
            "HIDDEN:door",
        ] {
            assert!(!is_masked(format!("\"{meant}\"").as_bytes()), "{meant}");
        }
        assert!(!is_masked(b"12") && !is_masked(b"null") && !is_masked(b"\""));
    }

    #[test]
    fn what_begins_like_json_and_does_not_end_was_cut() {
        for cut in ["{\"code\": \"import pandas", " {'a': [1,", "[{\"a\":", "[\"a\", \"b"] {
            assert!(is_cut(cut), "{cut}");
        }
        for whole in ["{", "{x for x in y}", "[urgent] call", "find {id}", "\"a\" site:b", ""] {
            assert!(!is_cut(whole), "{whole}");
        }
    }
}
