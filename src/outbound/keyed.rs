//! Finds the values of keys in a text that is not JSON: a line of a log, headers, a query, a printed dictionary of Python, XML,
//! or JSON that was cut off.
//!
//! ```text
//! name rest-of-name quote? (: | = | =>) value      <name attributes> value
//! value = in quotes up to the same quote | in brackets up to the one that closes | up to where a value without either ends
//! ```
//!
//! Quotes may have backslashes before them, as in JSON inside JSON. A value that is not closed was cut off, and extends to the end
//! of the text.

use regex::Regex;

use super::redact::REDACTED;

/// Finds values by the names before them.
#[derive(Clone, Debug)]
pub(super) struct Keyed {
    // `None` without words.
    names: Option<Regex>,
}

impl Keyed {
    /// Makes a finder of values after names that contain one of these words in any case.
    pub(super) fn new(words: &[String]) -> Result<Self, regex::Error> {
        let words: Vec<String> =
            words.iter().map(|word| spelled(word)).filter(|word| !word.is_empty()).collect();
        if words.is_empty() {
            return Ok(Self { names: None });
        }
        let words = words.join("|");
        let named = format!(
            r#"(?i)(?:{words})[\w.-]*(?:\\*["'])?\]?[ \t]*(?:=>|[:=])[ \t]*|<[\w:.-]*(?:{words})[^<>]*>"#
        );
        Ok(Self { names: Some(Regex::new(&named)?) })
    }

    /// The text without the values; `None` if there are none.
    pub(super) fn redacted(&self, text: &str) -> Option<String> {
        let names = self.names.as_ref()?;
        let mut redacted = String::new();
        let mut done = 0;
        while let Some(name) = names.find_at(text, done) {
            let value = value(text, name.end(), name.as_str().starts_with('<'));
            redacted.push_str(&text[done..value.start]);
            if !value.is_empty() {
                redacted.push_str(REDACTED);
            }
            done = value.end;
        }
        if done == 0 {
            return None;
        }
        redacted.push_str(&text[done..]);
        (redacted != text).then_some(redacted)
    }
}

/// A word in lower case without separators between its parts, the same for `api_key`, `api-key` and `apiKey`.
pub(super) fn plain(word: &str) -> String {
    word.chars().filter(|c| !is_between(*c)).flat_map(char::to_lowercase).collect()
}

/// The pattern of a word, with or without separators between its parts.
fn spelled(word: &str) -> String {
    let parts = word.split(is_between).filter(|part| !part.is_empty());
    parts.map(regex::escape).collect::<Vec<_>>().join("[-_. ]?")
}

fn is_between(c: char) -> bool {
    matches!(c, '-' | '_' | '.' | ' ')
}

/// The range of the value that begins at `at`, without its quotes.
fn value(text: &str, at: usize, in_element: bool) -> std::ops::Range<usize> {
    let rest = &text[at..];
    if in_element {
        return at..at + rest.find('<').unwrap_or(rest.len());
    }
    let slashes = rest.bytes().take_while(|byte| *byte == b'\\').count();
    match rest.as_bytes().get(slashes) {
        Some(quote @ (b'"' | b'\'')) => {
            let start = at + slashes + 1;
            start..start + quoted(&text[start..], *quote, slashes)
        }
        Some(b'{' | b'[') if slashes == 0 => at..at + bracketed(rest),
        Some(_) | None => at..at + bare(rest, text[..at].trim_end().ends_with(':')),
    }
}

/// The length up to the closing quote: the first with at most `most` backslashes before it.
fn quoted(rest: &str, quote: u8, most: usize) -> usize {
    let mut slashes = 0;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'\\' => slashes += 1,
            _ if byte == quote && slashes <= most => return at - slashes,
            _ => slashes = 0,
        }
    }
    rest.len()
}

/// The length up to the bracket that closes the first one, inclusive.
fn bracketed(rest: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    rest.len()
}

/// The length of a value without quotes. After a colon, as in headers and prose, it may contain spaces.
fn bare(rest: &str, has_spaces: bool) -> usize {
    let bytes = rest.as_bytes();
    let ends = |at: usize| match bytes[at] {
        b'\n' | b'\r' | b'"' | b'<' | b'}' | b']' | b')' => true,
        b',' => bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace),
        b'&' | b';' | b' ' | b'\t' => !has_spaces,
        _ => false,
    };
    (0..bytes.len()).find(|at| ends(*at)).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::judge::JudgeOptions;

    fn keyed() -> Keyed {
        Keyed::new(&JudgeOptions::default().redact_keys).unwrap()
    }

    fn redacted(text: &str) -> String {
        keyed().redacted(text).unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn a_value_goes_by_the_name_before_it() {
        for (text, left) in [
            ("password=hunter2", "password=[redacted]"),
            ("user=bob password=hunter2 ok=1", "user=bob password=[redacted] ok=1"),
            ("GET /x?API_KEY=abc&q=1", "GET /x?API_KEY=[redacted]&q=1"),
            ("accessToken=abc x-api-key: d e", "accessToken=[redacted] x-api-key: [redacted]"),
            ("The access token: abc", "The access token: [redacted]"),
            ("Authorization: Basic dXNlcjpwYXNz\nHost: a", "Authorization: [redacted]\nHost: a"),
            ("Set-Cookie: a=b; c=d\r\n", "Set-Cookie: [redacted]\r\n"),
            ("{'db_password': 'it\\'s', 'n': 1}", "{'db_password': '[redacted]', 'n': 1}"),
            ("{password: hunter2, user: bob}", "{password: [redacted], user: bob}"),
            ("config['secret'] = \"a b\";", "config['secret'] = \"[redacted]\";"),
            (":client_secret => 'x', :a => 1", ":client_secret => '[redacted]', :a => 1"),
            ("<Password>hunter2</Password>", "<Password>[redacted]</Password>"),
            (
                "<ns:api_key type=\"a\">k</ns:api_key>",
                "<ns:api_key type=\"a\">[redacted]</ns:api_key>",
            ),
            ("credentials={'a': ['b', {}]} next", "credentials=[redacted] next"),
            ("no secret here, and no passwords", "no secret here, and no passwords"),
            ("password=", "password="),
        ] {
            assert_eq!(redacted(text), left);
        }
    }

    #[test]
    fn what_was_cut_off_goes_to_the_end() {
        for (text, left) in [
            (
                r#"{"q": 1, "password": "hunt [90 bytes left out]"#,
                r#"{"q": 1, "password": "[redacted]"#,
            ),
            (
                r#"login({"password":"hunter2","note":"cut"#,
                r#"login({"password":"[redacted]","note":"cut"#,
            ),
            (
                r#"{"s":"{\"password\":\"hunter2\",\"n\":1"#,
                r#"{"s":"{\"password\":\"[redacted]\",\"n\":1"#,
            ),
            (r#"{"password":{"a":["hunter2""#, r#"{"password":[redacted]"#),
            (r#"{"password":"a\"b","n":1"#, r#"{"password":"[redacted]","n":1"#),
        ] {
            assert_eq!(redacted(text), left);
        }
    }

    #[test]
    fn without_words_nothing_is_found() {
        assert_eq!(Keyed::new(&[String::new()]).unwrap().redacted("=: a=b"), None);
    }

    proptest! {
        #[test]
        fn whatever_the_text_a_value_that_ends_with_it_is_gone(
            before in "\\PC{0,40}",
            name in "(password|Api_Key|my\\.secret|cookie2)",
            between in "(=|: |\": \"|' => '|\\\\\": \\\\\")",
            value in "[a-zA-Z0-9]{6,20}",
        ) {
            let text = format!("{before} {name}{between}{value}");
            prop_assert!(!redacted(&text).contains(&value), "{text}");
        }

        #[test]
        fn no_text_is_too_strange(text in "([\"'\\\\{}\\[\\]<>:=,; \na-z]|password|secret|é){0,60}") {
            let once = redacted(&text);
            prop_assert_eq!(redacted(&once), once.clone(), "{}", text);
        }
    }
}
