//! Takes out of a transcript what must not leave: values under certain keys, and texts of certain forms.
//!
//! A text that is JSON is looked through by key and written again; then the patterns go over every text. A text that a
//! pattern cannot be decided on is taken out whole: what is not known to be harmless stays.

use fancy_regex::Regex;
use serde_json::Value;

use crate::engine::trace::{Step, Transcript};

/// What stands for what was taken out.
pub const REDACTED: &str = "[redacted]";

/// What is taken out.
#[derive(Clone, Debug)]
pub struct Redactor {
    /// Lower case; a key that contains one of them counts.
    keys: Vec<String>,
    patterns: Vec<Regex>,
}

/// A pattern that is none.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{pattern}` in `judge.redact_patterns` is no regular expression: {why}")]
pub struct BadPattern {
    /// As it was written.
    pub pattern: String,
    /// What is wrong with it.
    pub why: String,
}

impl Redactor {
    /// Takes out values under keys that contain one of these words in any case, and what these patterns find.
    ///
    /// # Errors
    ///
    /// Fails on a pattern that is no regular expression.
    pub fn new(keys: &[String], patterns: &[String]) -> Result<Self, BadPattern> {
        let compiled = patterns.iter().map(|pattern| {
            Regex::new(pattern)
                .map_err(|error| BadPattern { pattern: pattern.clone(), why: error.to_string() })
        });
        Ok(Self {
            keys: keys.iter().map(|key| key.to_lowercase()).collect(),
            patterns: compiled.collect::<Result<_, _>>()?,
        })
    }

    /// The transcript without what must not leave.
    pub fn transcript(&self, transcript: Transcript) -> Transcript {
        let text = |text: Option<String>| text.map(|text| self.text(&text));
        let step = |step: Step| Step {
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

    /// The text of a field, which may be one that must not leave by its name.
    pub fn field(&self, name: &str, text: &str) -> String {
        if self.is_kept(name) { REDACTED.to_owned() } else { self.text(text) }
    }

    /// A text without what must not leave.
    pub fn text(&self, text: &str) -> String {
        let by_key = self.call(text);
        let mut text = by_key.unwrap_or_else(|| text.to_owned());
        for pattern in &self.patterns {
            match pattern.try_replacen(&text, 0, REDACTED) {
                Ok(replaced) => text = replaced.into_owned(),
                Err(_) => return REDACTED.to_owned(),
            }
        }
        text
    }

    /// Whether what goes by this name must not leave.
    fn is_kept(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.keys.iter().any(|word| name.contains(word))
    }

    /// JSON, or the JSON in `name(..)`, by key; `None` if the text is neither or nothing is taken out.
    fn call(&self, text: &str) -> Option<String> {
        if let Some(json) = self.json(text) {
            return Some(json);
        }
        let (name, rest) = text.split_once('(')?;
        let json = self.json(rest.strip_suffix(')')?)?;
        Some(format!("{name}({json})"))
    }

    fn json(&self, text: &str) -> Option<String> {
        if !text.trim_start().starts_with(['{', '[']) {
            return None;
        }
        let mut value: Value = serde_json::from_str(text).ok()?;
        self.walk(&mut value, 0).then(|| value.to_string())
    }

    /// Redacts in place; returns whether there was anything.
    fn walk(&self, value: &mut Value, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            *value = Value::String(REDACTED.to_owned());
            return true;
        }
        match value {
            Value::Object(map) => {
                let mut any = false;
                for (key, value) in map.iter_mut() {
                    if self.is_kept(key) {
                        *value = Value::String(REDACTED.to_owned());
                        any = true;
                    } else {
                        any |= self.walk(value, depth + 1);
                    }
                }
                any
            }
            Value::Array(items) => {
                // All of them, also after one that had something.
                items.iter_mut().filter_map(|item| self.walk(item, depth + 1).then_some(())).count()
                    > 0
            }
            Value::String(text) => match self.json(text) {
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

/// Nesting beyond this is not looked into, and so taken out.
const MAX_DEPTH: usize = 64;

#[cfg(test)]
mod tests {
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
    fn keys_in_plain_text_go() {
        for (text, gone) in [
            ("use sk-abcdefghijklmnopqrstuvwxyz123456 please", "abcdefgh"),
            ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.x.y", "eyJ"),
            ("id AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ] {
            let redacted = redactor().text(text);
            assert!(redacted.contains(REDACTED) && !redacted.contains(gone), "{redacted}");
        }
        assert_eq!(redactor().text("my skis cost 12.50"), "my skis cost 12.50");
    }

    #[test]
    fn what_cannot_be_decided_goes_whole() {
        let slow = Redactor::new(&[], &["(a|b|ab)*(?=c)\\1".to_owned()]).unwrap();
        let redacted = slow.text(&"ab".repeat(200));
        assert_eq!(redacted, REDACTED);
        assert!(Redactor::new(&[], &["(".to_owned()]).is_err());
    }
}
