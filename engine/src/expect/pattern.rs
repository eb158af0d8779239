//! Regular expressions in the syntax of Python's `re.search`, for `regex_match` and assertions on spans.
//!
//! Where Python's syntax differs from that of the engines, the pattern is rewritten: `$` outside multi-line mode is the end or a newline
//! before it, `\Z` the very end, `\<` and `\>` are themselves, and `[`, `&&`, `--` and `~~` inside a class are characters.
//!
//! Patterns without look-around and back-references, as most are, take linear time in the text.

use serde::Deserialize;

/// Number of backtracks after which a search gives up.
const MAX_BACKTRACKS: usize = 1_000_000;

/// A pattern that can be searched for.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    source: String,
    engine: Engine,
}

/// The engine that searches for a pattern.
#[derive(Clone, Debug)]
enum Engine {
    Linear(regex::Regex),
    Backtracking(fancy_regex::Regex),
}

/// A search that backtracked too often, so that it is not known whether the pattern is in the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the pattern needs too many steps for this text")]
pub struct GaveUp;

/// The error of a text that is not a pattern.
#[derive(Debug, thiserror::Error)]
#[error("this is not a regular expression: {0}")]
pub struct NoPattern(Box<fancy_regex::Error>);

impl Pattern {
    /// Reads a pattern in Python's syntax.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a pattern.
    pub fn new(source: &str) -> Result<Self, NoPattern> {
        let rewritten = rewritten(source);
        let engine = match regex::Regex::new(&rewritten) {
            Ok(regex) if !is_read_otherwise(source) => Engine::Linear(regex),
            Ok(_) | Err(_) => {
                let mut builder = fancy_regex::RegexBuilder::new(&rewritten);
                let regex = builder.backtrack_limit(MAX_BACKTRACKS).build();
                Engine::Backtracking(regex.map_err(|error| NoPattern(Box::new(error)))?)
            }
        };
        Ok(Self { source: source.to_owned(), engine })
    }

    /// The pattern as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the pattern is anywhere in the text.
    ///
    /// # Errors
    ///
    /// Fails if the search takes too many steps.
    pub fn search(&self, text: &str) -> Result<bool, GaveUp> {
        match &self.engine {
            Engine::Linear(regex) => Ok(regex.is_match(text)),
            Engine::Backtracking(regex) => regex.is_match(text).map_err(|_| GaveUp),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = NoPattern;

    fn try_from(source: String) -> Result<Self, NoPattern> {
        Self::new(&source)
    }
}

/// The current place while a pattern is rewritten.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Place {
    Outside,
    /// After the bracket that opens a class, where `]` is a character.
    ClassStart,
    Class,
}

fn rewritten(source: &str) -> String {
    let end = if has_flag(source, 'm') { "$" } else { r"(?=\n?\z)" };
    let mut text = String::with_capacity(source.len());
    let mut place = Place::Outside;
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        let next = match (place, c) {
            (_, '\\') => {
                match chars.next() {
                    Some('Z') if place == Place::Outside => text.push_str(r"\z"),
                    Some(c @ ('<' | '>')) => text.push(c),
                    Some(c) => text.extend(['\\', c]),
                    None => text.push('\\'),
                }
                if place == Place::ClassStart { Place::Class } else { place }
            }
            (Place::Outside, '$') => {
                text.push_str(end);
                place
            }
            (Place::Outside, '[') => {
                text.push('[');
                Place::ClassStart
            }
            (Place::ClassStart, '^') => {
                text.push('^');
                place
            }
            (Place::ClassStart, ']') => {
                text.push_str(r"\]");
                Place::Class
            }
            (Place::Class, ']') => {
                text.push(']');
                Place::Outside
            }
            (Place::ClassStart | Place::Class, '[') => {
                text.push_str(r"\[");
                Place::Class
            }
            (Place::ClassStart | Place::Class, '&' | '~' | '-') if chars.peek() == Some(&c) => {
                text.extend(['\\', c]);
                Place::Class
            }
            (_, c) => {
                text.push(c);
                if place == Place::ClassStart { Place::Class } else { place }
            }
        };
        place = next;
    }
    text
}

/// Whether the linear engine would read a pattern differently: possessive quantifiers as repeated ones, and space in a class of a
/// verbose pattern as nothing.
fn is_read_otherwise(source: &str) -> bool {
    has_flag(source, 'x') || ["*+", "++", "?+", "}+"].iter().any(|form| source.contains(form))
}

/// Whether flags inside the pattern turn this one on.
fn has_flag(source: &str, flag: char) -> bool {
    source.match_indices("(?").any(|(at, mark)| {
        let flags = source[at + mark.len()..].chars().take_while(char::is_ascii_alphabetic);
        let flags: String = flags.collect();
        let rest = &source[at + mark.len() + flags.len()..];
        flags.contains(flag) && rest.starts_with([')', ':', '-'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_python() {
        let cases = [
            (r"a.b", "a\nb", false),
            (r"(?s)a.b", "a\nb", true),
            (r"^\d+$", "12\n", true),
            (r"^\d+$", "12\n\n", false),
            (r"\d+\Z", "12\n", false),
            (r"(?m)^b$", "a\nb\nc", true),
            (r"^b$", "a\nb\nc", false),
            (r"\<b\>", "a <b>", true),
            (r"[[]x]", "[x]", true),
            (r"[]x]y", "]y", true),
            (r"[^]x]", "]x", false),
            (r"[a&&b]+$", "a&b", true),
            (r"[$]5", "$5", true),
            (r"(?P<c>.)(?P=c)", "book", true),
            (r"q(?=u)", "quit", true),
            (r"(?<!not )ok", "not ok", false),
            (r"(?i)ÉTÉ", "été", true),
            (r"\bstraße\b", "die straße.", true),
            (r#"{"a": \d}"#, r#"{"a": 1}"#, true),
            (r"^a{,2}$", "aa", true),
            (r"^a{,2}$", "aaa", false),
            (r"^a{b}$", "a{b}", true),
            (r"^a{$", "a{", true),
            (r"^a{2,}$", "aaa", true),
            (
                r"(?x) a # then b$
                b",
                "ab",
                true,
            ),
            (r"^(a)?(?(1)b|c)$", "ab", true),
            (r"\u0041\x42", "AB", true),
            (r"^[\w.+-]+@[\w-]+\.\w+$", "a.b@c.de", true),
            (r"^[a-z&&[b]$", "[", true),
            (r"\/x\-y\'", "/x-y'", true),
            (r"\s+a*\s+", "\n", false),
            (r"\s+a*\s+", "\n ", true),
            (r"^a++a", "aaa", false),
            (r"^a{1,2}+a", "aa", false),
            (r"(?x)[a b]c", " c", true),
        ];
        for (pattern, text, found) in cases {
            let pattern = Pattern::new(pattern).unwrap();
            assert_eq!(pattern.search(text), Ok(found), "{} in {text:?}", pattern.source());
        }
        assert!(Pattern::new("(").is_err());
    }

    #[test]
    fn a_search_that_explodes_is_given_up() {
        let pattern = Pattern::new(r"^(a|b|ab)*(?>c)").unwrap();
        assert_eq!(pattern.search(&format!("{} c", "ab".repeat(40))), Err(GaveUp));
    }
}
