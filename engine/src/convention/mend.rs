//! Mends texts with small faults, so that the rest of them can be read: half an emoji, as JavaScript cuts one (`\ud83d`); bytes
//! that are not UTF-8; numbers that no float holds (`1e400`), and `NaN` and `Infinity` as Python writes them.
//!
//! Only what a strict reader has refused is mended, so valid input costs nothing.

use std::mem;
use std::str;

/// How to mend.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How deep lists and objects may be inside each other; deeper ones become `null`.
    pub max_depth: usize,
    /// The replacement for a number that JSON cannot express.
    pub numbers: Numbers,
    /// Whether control characters may occur in strings without an escape.
    pub controls: bool,
}

/// The replacement for a number that JSON cannot express.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Numbers {
    /// The string that protobuf's JSON has for it: `"NaN"`, `"Infinity"`, `"-Infinity"`.
    Named,
    /// `null`.
    Absent,
}

/// A mended text, and what was done to it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Mended {
    /// The mended text, at most twice as long as what was sent.
    pub text: String,
    /// Number of strings that contained invalid characters.
    pub strings: u64,
    /// Number of numbers that JSON cannot express.
    pub numbers: u64,
    /// Number of control characters that were in strings without an escape.
    pub controls: u64,
    /// Number of lists and objects that were too deep.
    pub deep: u64,
}

/// Mends JSON. A wrong structure stays wrong, and some faults end the text where they are found.
pub fn json(sent: &[u8], rules: Rules) -> Mended {
    let text = String::with_capacity(sent.len());
    let done = Mended { text, ..Mended::default() };
    let mut mending = Mending { rest: sent, rules, depth: 0, done };
    while let Some((first, rest)) = mending.rest.split_first() {
        match first {
            b'"' => mending.string(),
            b'{' | b'[' => mending.open(*first),
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' | b'}' | b']' => {
                mending.depth -= usize::from(matches!(first, b'}' | b']')).min(mending.depth);
                mending.done.text.push(char::from(*first));
                mending.rest = rest;
            }
            _ => mending.word(),
        }
    }
    mending.done
}

/// Replaces what is not UTF-8 by question marks: one for each byte, and one for half a surrogate pair.
pub fn utf8(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut halves = 0_u8;
    for chunk in bytes.utf8_chunks() {
        if !chunk.valid().is_empty() {
            halves = 0;
        }
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Half a surrogate pair is three bytes, each of which is a chunk of its own.
            halves = match (halves, byte) {
                (_, 0xed) => 1,
                (1, 0xa0..=0xbf) => 2,
                (2, 0x80..=0xbf) => 3,
                _ => 0,
            };
            match halves {
                2 => {}
                3 => halves = 0,
                _ => text.push('?'),
            }
        }
    }
    text
}

struct Mending<'a> {
    rest: &'a [u8],
    rules: Rules,
    depth: usize,
    done: Mended,
}

impl<'a> Mending<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn open(&mut self, bracket: u8) {
        if self.depth < self.rules.max_depth {
            self.depth += 1;
            self.done.text.push(char::from(bracket));
            self.take(1);
            return;
        }
        self.done.deep += 1;
        // If it has no end, neither it nor the whole text is JSON.
        if let Some(length) = balanced(self.rest) {
            self.take(length);
            self.done.text.push_str("null");
        } else {
            self.rest = &[];
        }
    }

    /// Consumes a number or a word of JSON; anything else is invalid and ends the text.
    fn word(&mut self) {
        let is_of_it = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = self.rest.iter().take_while(|byte| is_of_it(byte)).count();
        let word = str::from_utf8(self.take(length)).unwrap_or_default();
        let name = match word {
            "true" | "false" | "null" => None,
            "NaN" => Some("NaN"),
            "Infinity" => Some("Infinity"),
            "-Infinity" => Some("-Infinity"),
            number => match float(number) {
                Some(f64::INFINITY) => Some("Infinity"),
                Some(f64::NEG_INFINITY) => Some("-Infinity"),
                Some(_) => None,
                None => {
                    self.done.text.push_str(if word.is_empty() { "?" } else { word });
                    self.rest = &[];
                    return;
                }
            },
        };
        let Some(name) = name else { return self.done.text.push_str(word) };
        self.done.numbers += 1;
        match self.rules.numbers {
            Numbers::Absent => self.done.text.push_str("null"),
            Numbers::Named => {
                self.done.text.push('"');
                self.done.text.push_str(name);
                self.done.text.push('"');
            }
        }
    }

    fn string(&mut self) {
        let (content, is_whole) = match string_end(self.rest) {
            Some(end) => (&self.take(end)[1..end - 1], true),
            None => (&mem::take(&mut self.rest)[1..], false),
        };
        self.done.text.push('"');
        let before = self.done.strings;
        match str::from_utf8(content) {
            Ok(content) => self.characters(content),
            Err(_) => {
                self.done.strings += 1;
                self.characters(&utf8(content));
            }
        }
        // A string counts once, whatever was wrong with it.
        self.done.strings = self.done.strings.min(before + 1);
        self.done.text.push_str(if is_whole { "\"" } else { "" });
    }

    /// Consumes the content of a string; valid escapes stay unchanged.
    fn characters(&mut self, content: &str) {
        let mut rest = content;
        while let Some(at) = rest.find(|c: char| c == '\\' || c < ' ') {
            let (plain, special) = rest.split_at(at);
            self.done.text.push_str(plain);
            let length = self.special(special);
            rest = &special[length..];
        }
        self.done.text.push_str(rest);
    }

    /// Consumes an escape or a control character and returns its length in bytes.
    fn special(&mut self, text: &str) -> usize {
        let length = match unit(text) {
            Some(0xd800..=0xdbff) if is_second(text.get(UNIT..)) => 2 * UNIT,
            Some(0xd800..=0xdfff) => {
                self.done.strings += 1;
                self.done.text.push('?');
                return UNIT;
            }
            _ if text.starts_with('\\') => 1 + text[1..].chars().next().map_or(0, char::len_utf8),
            _ if self.rules.controls => {
                self.done.controls += 1;
                // Most others have longer escapes, and the mended text is at most twice as long as what was sent.
                self.done.text.push_str(match text.as_bytes().first() {
                    Some(b'\n') => "\\n",
                    Some(b'\r') => "\\r",
                    Some(b'\t') => "\\t",
                    _ => "?",
                });
                return 1;
            }
            _ => 1,
        };
        self.done.text.push_str(&text[..length]);
        length
    }
}

/// The length of an escaped unit of UTF-16, in characters.
const UNIT: usize = 6;

/// The unit of UTF-16 that is escaped at the beginning of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
}

fn is_second(text: Option<&str>) -> bool {
    matches!(text.and_then(unit), Some(0xdc00..=0xdfff))
}

/// A number, infinite if no float holds it.
fn float(word: &str) -> Option<f64> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    // Rust would also parse names, such as `inf`.
    digits.starts_with(|c: char| c.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

/// Bytes of the string that a text begins with, quotes included.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    let end = text.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map(|end| end + 2)
}

/// Bytes of the list or object that a text begins with.
fn balanced(text: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at += string_end(&text[at..])?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const RULES: Rules = Rules { max_depth: 4, numbers: Numbers::Named, controls: true };

    #[test]
    fn what_is_no_character_is_a_question_mark() {
        assert_eq!(utf8(b"a\xff\xfeb\xe2\x82"), "a??b??");
        assert_eq!(utf8("grün".as_bytes()), "grün");
        // Halves of pairs, as an encoder that does not look writes them; cut ones; and a letter that begins alike.
        assert_eq!(utf8(b"a\xed\xa0\xbdb\xed\xb8\x80\xed\xa0\xbd"), "a?b??");
        assert_eq!(utf8(b"\xed\xa0c\xed\xa0"), "?c?");
        assert_eq!(utf8(b"\xed\x95\x9c\xff"), "한?");
    }

    #[test]
    fn what_json_cannot_say_is_mended_and_counted() {
        for (sent, text, [strings, numbers, controls, deep]) in [
            (r#"{"a": [1, "b\"\\"]}"#, r#"{"a": [1, "b\"\\"]}"#, [0, 0, 0, 0]),
            (r#""\ud83d""#, r#""?""#, [1, 0, 0, 0]),
            (
                r#"["\uDE00\ud83d\ud83d\ude00", "\\ud83d"]"#,
                r#"["??\ud83d\ude00", "\\ud83d"]"#,
                [1, 0, 0, 0],
            ),
            (r#"{"\ud83d\u0041": "\ud83"}"#, r#"{"?\u0041": "\ud83"}"#, [1, 0, 0, 0]),
            (
                "[1e400, -1e400, 1e-400, -0]",
                r#"["Infinity", "-Infinity", 1e-400, -0]"#,
                [0, 2, 0, 0],
            ),
            ("[NaN,Infinity,-Infinity]", r#"["NaN","Infinity","-Infinity"]"#, [0, 3, 0, 0]),
            (r#"["NaN 1e400", inf, NaN]"#, r#"["NaN 1e400", inf"#, [0, 0, 0, 0]),
            ("[é, NaN]", "[?", [0, 0, 0, 0]),
            ("\"a\nb\u{1}c\"", r#""a\nb?c""#, [0, 0, 2, 0]),
            (r#"[[[1], ["\"]", {}]]]"#, r#"[[[1], ["\"]", {}]]]"#, [0, 0, 0, 0]),
            (r#"[[[[[1, "]\""], {"a": []}, 2]]]]"#, "[[[[null, null, 2]]]]", [0, 0, 0, 2]),
            ("[[[[[[", "[[[[", [0, 0, 0, 1]),
            (r#""\ud83d"#, r#""?"#, [1, 0, 0, 0]),
        ] {
            let mended = json(sent.as_bytes(), RULES);
            let expected = Mended { text: text.to_owned(), strings, numbers, controls, deep };
            assert_eq!(mended, expected, "{sent}");
        }
        let content = Rules { numbers: Numbers::Absent, controls: false, ..RULES };
        assert_eq!(json(b"[NaN, \"\n\"]", content).text, "[null, \"\n\"]");
        assert_eq!(json(b"\"a\xf0\x9f\"", RULES).text, "\"a??\"");
    }

    proptest! {
        #[test]
        fn what_is_json_stays_as_it_is(text in any::<String>(), number in any::<f64>(), key in ".{0,20}") {
            let text = serde_json::json!({&key: [text, number, {"b": key}], "a": i64::MIN}).to_string();
            prop_assert_eq!(json(text.as_bytes(), RULES), Mended { text, ..Mended::default() });
        }

        #[test]
        fn what_was_mended_needs_no_mending(sent in prop::collection::vec(any::<u8>(), 0..64)) {
            let once = json(&sent, RULES);
            prop_assert!(once.text.len() <= 2 * sent.len());
            prop_assert_eq!(&json(once.text.as_bytes(), RULES).text, &once.text);
        }

        #[test]
        fn strings_and_numbers_refuse_nothing(
            text in r"(\\ud83d|\\ude00|\\n|[a-z\n\t])*",
            number in r"(-?[1-9][0-9]{0,3}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,4})?|NaN|-?Infinity)",
        ) {
            let sent = format!(r#"{{"{text}": [{number}, "{text}"]}}"#);
            let mended = json(sent.as_bytes(), RULES).text;
            prop_assert!(serde_json::from_str::<Value>(&mended).is_ok(), "{} {}", sent, mended);
        }
    }
}
