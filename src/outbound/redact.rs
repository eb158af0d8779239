//! Removes from a transcript what must not leave the process: values under certain keys, and texts that match patterns.
//!
//! A text that is JSON is searched by key, and its strings as texts, and written again; any other text is searched for names before
//! a colon or an equals sign. Then the patterns are applied to every text. If a pattern cannot be decided for a text, the whole
//! text is removed, because it may contain something secret.
//!
//! Most patterns run on an engine with linear time. Those with look-around, back-references or possessive quantifiers run on one
//! that backtracks.

use std::borrow::Cow;

use serde_json::Value;

use super::keyed::{Keyed, plain};
use crate::engine::trace::{Transcript, TranscriptStep};

/// The text that replaces what was removed.
pub const REDACTED: &str = "[redacted]";

/// The keys and patterns of what is removed.
#[derive(Clone, Debug)]
pub struct Redactor {
    /// Words as [`plain`] writes them; the value of a key that contains one is removed.
    keys: Vec<String>,
    keyed: Keyed,
    patterns: Vec<Pattern>,
}

/// A pattern, compiled for the engine that can run it.
#[derive(Clone, Debug)]
enum Pattern {
    Linear(regex::Regex),
    Backtracking(fancy_regex::Regex),
}

/// Why no redactor can be made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BadRedaction {
    /// A pattern that is no regular expression, as it was written, and why.
    #[error("`{0}` in `judge.redact_patterns` is not a regular expression: {1}")]
    Pattern(String, String),
    /// Keys for which no pattern can be made.
    #[error("`judge.redact_keys` are too many or too long: {0}")]
    Keys(String),
}

impl Redactor {
    /// Makes a redactor of values under keys that contain one of these words in any case, and of matches of these patterns.
    ///
    /// # Errors
    ///
    /// Fails on a pattern that is no regular expression, and on keys that are too many or too long.
    pub fn new(keys: &[String], patterns: &[String]) -> Result<Self, BadRedaction> {
        let bad = |pattern: &str, why| BadRedaction::Pattern(pattern.to_owned(), why);
        let keyed = Keyed::new(keys).map_err(|error| BadRedaction::Keys(error.to_string()))?;
        let compiled = patterns
            .iter()
            .map(|pattern| Pattern::new(pattern).map_err(|error| bad(pattern, error.to_string())));
        Ok(Self {
            keys: keys.iter().map(|key| plain(key)).filter(|key| !key.is_empty()).collect(),
            keyed,
            patterns: compiled.collect::<Result<_, _>>()?,
        })
    }

    /// The transcript without secrets.
    pub fn transcript(&self, transcript: Transcript) -> Transcript {
        let text = |text: Option<String>| text.map(|text| self.text(&text));
        let step = |step: TranscriptStep| TranscriptStep {
            name: text(step.name),
            input: text(step.input),
            output: text(step.output),
            calls: step.calls.iter().map(|call| self.text(call)).collect(),
            ..step
        };
        Transcript {
            input: text(transcript.input),
            output: text(transcript.output),
            steps: transcript.steps.into_iter().map(step).collect(),
            ..transcript
        }
    }

    /// The text of a field without secrets; all of it is secret if the field's name says so.
    pub fn field(&self, name: &str, text: &str) -> String {
        if self.is_secret(name) { REDACTED.to_owned() } else { self.text(text) }
    }

    /// A text without secrets.
    pub fn text(&self, text: &str) -> String {
        self.redacted(text).unwrap_or_else(|| text.to_owned())
    }

    /// A text without secrets; `None` if nothing is removed.
    fn redacted(&self, text: &str) -> Option<String> {
        let mut left = self.call(text);
        for pattern in &self.patterns {
            match pattern.redacted(left.as_deref().unwrap_or(text)) {
                Some(Cow::Borrowed(_)) => {}
                Some(Cow::Owned(redacted)) => left = Some(redacted),
                None => return Some(REDACTED.to_owned()),
            }
        }
        left
    }

    /// Whether a value with this name must not leave the process.
    fn is_secret(&self, name: &str) -> bool {
        let name = plain(name);
        self.keys.iter().any(|word| name.contains(word))
    }

    /// JSON, a call `name(..)` with JSON, or another text, redacted by key; `None` if nothing is removed.
    fn call(&self, text: &str) -> Option<String> {
        if let Some(mut value) = json(text) {
            return self.walk(&mut value, 0).then(|| value.to_string());
        }
        let called = text.split_once('(').and_then(|(name, rest)| {
            let arguments = json(rest.strip_suffix(')')?)?;
            Some((name, arguments))
        });
        if let Some((name, mut arguments)) = called {
            return self.walk(&mut arguments, 0).then(|| format!("{name}({arguments})"));
        }
        self.keyed.redacted(text)
    }

    /// Whether an object is an entry of a name and a value, and the name says that the value must not leave the process.
    fn is_secret_entry(&self, map: &serde_json::Map<String, Value>) -> bool {
        let names = ["name", "key"].into_iter().filter_map(|key| map.get(key)?.as_str());
        map.contains_key("value") && names.into_iter().any(|name| self.is_secret(name))
    }

    /// Redacts a value in place; returns whether anything was removed.
    fn walk(&self, value: &mut Value, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            *value = Value::String(REDACTED.to_owned());
            return true;
        }
        match value {
            Value::Object(map) => {
                let mut any = false;
                let named = self.is_secret_entry(map);
                for (key, value) in map.iter_mut() {
                    if self.is_secret(key) || (named && key == "value") {
                        *value = Value::String(REDACTED.to_owned());
                        any = true;
                    } else {
                        any |= self.walk(value, depth + 1);
                    }
                }
                any
            }
            Value::Array(items) => {
                // Not `any`, which would stop at the first changed item.
                items.iter_mut().filter_map(|item| self.walk(item, depth + 1).then_some(())).count()
                    > 0
            }
            // A match of a pattern may contain escapes in the JSON form of the string.
            Value::String(text) => match self.redacted(text) {
                Some(redacted) => {
                    *text = redacted;
                    true
                }
                None => false,
            },
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
}

/// The object or list in a text; `None` for other texts.
fn json(text: &str) -> Option<Value> {
    let is_some = text.trim_start().starts_with(['{', '[']);
    is_some.then(|| serde_json::from_str(text).ok()).flatten()
}

impl Pattern {
    fn new(pattern: &str) -> Result<Self, Box<fancy_regex::Error>> {
        // One engine reads these as repeated repetitions, the other as possessive ones. They also differ in where they find empty
        // matches, for patterns that have any.
        let possessive = ["*+", "++", "?+", "}+"].iter().any(|form| pattern.contains(form));
        let finds_some = regex_syntax::parse(pattern)
            .is_ok_and(|parsed| parsed.properties().minimum_len().is_some_and(|least| least > 0));
        match regex::Regex::new(pattern) {
            Ok(regex) if finds_some && !possessive => Ok(Self::Linear(regex)),
            Ok(_) | Err(_) => {
                fancy_regex::Regex::new(pattern).map(Self::Backtracking).map_err(Box::new)
            }
        }
    }

    /// The text without the matches of the pattern; `None` if the search fails, for instance after too many steps.
    fn redacted<'t>(&self, text: &'t str) -> Option<Cow<'t, str>> {
        match self {
            Self::Linear(regex) => Some(regex.replace_all(text, regex::NoExpand(REDACTED))),
            Self::Backtracking(regex) => {
                regex.try_replacen(text, 0, fancy_regex::NoExpand(REDACTED)).ok()
            }
        }
    }
}

/// The greatest depth of nesting that is searched; deeper values are removed.
const MAX_DEPTH: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::judge::JudgeOptions;

    fn redactor() -> Redactor {
        let options = JudgeOptions::default();
        Redactor::new(&options.redact_keys, &options.redact_patterns).unwrap()
    }

    #[test]
    fn values_under_named_keys_go_however_deep() {
        let redacted =
            redactor().text(r#"{"q":1,"a":[{"API_Key":"x"}],"s":"{\"password\":{\"v\":1}}"}"#);
        assert_eq!(
            redacted,
            r#"{"q":1,"a":[{"API_Key":"[redacted]"}],"s":"{\"password\":\"[redacted]\"}"}"#
        );
        let call = redactor().text(r#"login({"user":"u","password":"p"})"#);
        assert_eq!(call, r#"login({"user":"u","password":"[redacted]"})"#);
    }

    #[test]
    fn a_name_counts_however_it_is_written() {
        for (text, left) in [
            (r#"{"accessToken":"x"}"#, r#"{"accessToken":"[redacted]"}"#),
            (r#"{"X-Api-Key":"x"}"#, r#"{"X-Api-Key":"[redacted]"}"#),
            (r#"{"DB.PASSWORD":"x"}"#, r#"{"DB.PASSWORD":"[redacted]"}"#),
            (r#"[{"name":"Cookie","value":"x"}]"#, r#"[{"name":"Cookie","value":"[redacted]"}]"#),
            (
                r#"[{"key":"auth-token","value":{"stringValue":"x"}}]"#,
                r#"[{"key":"auth-token","value":"[redacted]"}]"#,
            ),
            (r#"{"name":"get_secret","input":"x"}"#, r#"{"name":"get_secret","input":"x"}"#),
            (
                r#"{"max_tokens":5,"key":"a","value":"b"}"#,
                r#"{"max_tokens":5,"key":"a","value":"b"}"#,
            ),
        ] {
            assert_eq!(redactor().text(text), left);
        }
    }

    #[test]
    fn what_was_cut_off_or_is_said_in_other_words_goes_by_name_too() {
        for text in [
            r#"login({"user":"u","password":"hunter2","note":"a long one [90 bytes left out]"#,
            r#"{"log":"connecting with password=hunter2 to the host"}"#,
            r#"{"args":"{\"a\":[{\"apiKey\":\"hunter2\"}]"#,
            "{'password': 'hunter2', 'ok': True}",
            "My password is in {\"password\": \"hunter2\"} as you know.",
        ] {
            let redacted = redactor().text(text);
            assert!(redacted.contains(REDACTED) && !redacted.contains("hunter2"), "{redacted}");
        }
    }

    #[test]
    fn keys_in_plain_text_go() {
        for (text, gone) in [
            ("use sk-abcdefghijklmnopqrstuvwxyz123456 please", "abcdefgh"),
            ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.x.y", "eyJ"),
            ("id AKIAIOSFODNN7EXAMPLE", "AKIA"),
            ("Authorization: Basic dXNlcjpwYXNz", "dXNl"),
            ("git clone https://bob:hunter2@example.com/x", "hunter2"),
            ("sk_live_abcdefghijklmnopqrst", "sk_live"),
            ("github_pat_11ABCDEFG0abcdefghijkl_mn", "github"),
        ] {
            let redacted = redactor().text(text);
            assert!(redacted.contains(REDACTED) && !redacted.contains(gone), "{redacted}");
        }
        assert_eq!(redactor().text("my skis cost 12.50"), "my skis cost 12.50");
    }

    #[test]
    fn escapes_of_json_hide_nothing() {
        for (text, left) in [
            (
                r#"{"at":"https:\/\/bob:hunter2@example.com\/x"}"#,
                r#"{"at":"https[redacted]example.com/x"}"#,
            ),
            (r#"f(["\u0073k-abcdefghijklmnopqrstuvwxyz"])"#, r#"f(["[redacted]"])"#),
            (
                r#"{"log":"{\"at\":\"https:\\/\\/bob:hunter2@b\"}"}"#,
                r#"{"log":"{\"at\":\"https[redacted]b\"}"}"#,
            ),
            (r#"{"at":"https:\/\/example.com"}"#, r#"{"at":"https:\/\/example.com"}"#),
        ] {
            assert_eq!(redactor().text(text), left);
        }
    }

    #[test]
    fn what_cannot_be_decided_goes_whole() {
        let slow = Redactor::new(&[], &["(a|b|ab)*(?=c)\\1".to_owned()]).unwrap();
        let redacted = slow.text(&"ab".repeat(200));
        assert_eq!(redacted, REDACTED);
        assert!(Redactor::new(&[], &["(".to_owned()]).is_err());
    }

    #[test]
    fn our_patterns_take_a_time_that_grows_with_the_text() {
        let linear = |pattern: &Pattern| matches!(pattern, Pattern::Linear(_));
        assert!(redactor().patterns.iter().all(linear));
        for pattern in [r"(?=a)b", r"(a)\1", r"a*+a", r"a{2}+a", r"(?>a|ab)c"] {
            assert!(!linear(&Pattern::new(pattern).unwrap()), "{pattern}");
        }
    }

    /// The result of a pattern on a text, by both engines.
    fn by_both(pattern: &str, text: &str) -> Option<(String, String)> {
        let Pattern::Linear(linear) = Pattern::new(pattern).ok()? else { return None };
        let slow = Pattern::Backtracking(fancy_regex::Regex::new(pattern).ok()?);
        // If one gives up there is nothing to compare.
        let by_slow = slow.redacted(text)?.into_owned();
        Some((Pattern::Linear(linear).redacted(text)?.into_owned(), by_slow))
    }

    proptest! {
        #[test]
        fn both_engines_find_the_same_by_our_patterns(
            parts in prop::collection::vec(
                prop_oneof![
                    "[a-zA-Z0-9_. =:/+-]{0,24}",
                    "(sk-|AKIA|ghp_|xoxb-|AIza|bearer |Bearer\\t|eyJ)[A-Za-z0-9_.-]{8,40}",
                    "-----(BEGIN|END) (RSA |EC |)PRIVATE KEY-----",
                    "\\PC{0,6}",
                    "[\n\t \u{a0}é\u{212a}\u{17f}]{1,3}",
                ],
                0..12,
            ),
        ) {
            let text = parts.concat();
            for pattern in &JudgeOptions::default().redact_patterns {
                let (linear, slow) = by_both(pattern, &text).unwrap();
                prop_assert_eq!(linear, slow, "{}", pattern);
            }
        }

        #[test]
        fn both_engines_find_the_same_by_patterns_that_others_write(
            parts in prop::collection::vec(
                prop_oneof![
                    "[a-z]{0,3}[.@][a-z]{2,5}[.](com|org)",
                    "[0-9]{3,4}[ .-]?[0-9]{3,4}[ .-]?[0-9]{4}",
                    "(password|PASSWORD|pin)[:= ]{1,2}[a-z0-9é]{0,6}",
                    "[A-Z]{2}[0-9]{2}[A-Z0-9]{10,20}",
                    "[ \n\t,;é_\u{212a}]{0,3}",
                ],
                0..10,
            ),
        ) {
            let text = parts.concat();
            for pattern in [
                r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b",
                r"\b(?:\d[ -]?){13,16}\b",
                r"(?i)\b(password|pin)\b\s*[:=]\s*\S+",
                r"\b[A-Z]{2}\d{2}[A-Z0-9]{11,30}\b",
                r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
                r"(?m)^\w+[:=].*$",
                r"\B\d{4}\B",
            ] {
                let (linear, slow) = by_both(pattern, &text).unwrap();
                prop_assert_eq!(linear, slow, "{}", pattern);
            }
        }
    }
}
