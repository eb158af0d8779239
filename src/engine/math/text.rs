//! Texts: tokens, their sets, and how alike two of them are.
//!
//! Source: PandaProbe, `trace/loop_detection/metric.py` and `utils.py` (metrics.md 1.4). The words are
//! Python's: runs of `\w`, which is the general categories L* and N* and the underscore.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;
use unicode_general_category::{GeneralCategory, get_general_category};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::update::OutputDigest;

/// Dimensions of the hashed embedding.
const DIMENSIONS: u64 = 256;

/// Words that say nothing about what a text is about.
const STOP_WORDS: [&str; 70] = [
    "a", "above", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "before",
    "being", "below", "both", "but", "by", "can", "could", "did", "do", "does", "during", "each",
    "either", "every", "few", "for", "from", "had", "has", "have", "in", "into", "is", "it", "its",
    "may", "might", "more", "most", "neither", "no", "nor", "not", "of", "on", "only", "or",
    "other", "own", "same", "shall", "should", "so", "some", "such", "than", "the", "through",
    "to", "too", "very", "was", "were", "will", "with", "would", "yet",
];

/// Bytes of the longest stop word.
const LONGEST: usize = 7;

/// Returns what a text is compared by; `None` for an empty one.
pub fn digest(text: &str) -> Option<OutputDigest> {
    if text.is_empty() {
        return None;
    }
    let lower = text.to_lowercase();
    let mut embedding = Embedding::default();
    let mut tokens = Vec::new();
    for word in words(&lower) {
        embedding.add(word);
        if is_token(word) {
            tokens.push(xxh3_64(word.as_bytes()));
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokens.shrink_to_fit();
    Some(OutputDigest { tokens, embedding: embedding.cells, ..OutputDigest::default() })
}

/// Returns the set of tokens of a text: its lower-case words without stop words and single characters.
pub fn tokens(text: &str) -> BTreeSet<String> {
    let lower = text.to_lowercase();
    words(&lower).filter(|word| is_token(word)).map(str::to_owned).collect()
}

/// Jaccard similarity of two sorted sets, in `[0,1]`; 0 for two empty ones.
pub fn jaccard(a: &[u64], b: &[u64]) -> f64 {
    let (mut at_a, mut at_b, mut common) = (0, 0, 0_usize);
    while let (Some(x), Some(y)) = (a.get(at_a), b.get(at_b)) {
        at_a += usize::from(x <= y);
        at_b += usize::from(y <= x);
        common += usize::from(x == y);
    }
    let union = a.len() + b.len() - common;
    if union == 0 { 0.0 } else { common as f64 / union as f64 }
}

/// Cosine similarity of two embeddings, clamped to `[0,1]`; 0 where one of them is zero.
///
/// Dot product and norms are integers, so the bits are the same everywhere.
pub fn cosine(a: &[i32], b: &[i32]) -> f64 {
    // 64 bits hold the sum for texts of up to 2^26 features, which is more than a span may have.
    let dot = |x: &[i32], y: &[i32]| -> f64 {
        let products = x.iter().zip(y).map(|(x, y)| i64::from(*x) * i64::from(*y));
        products.fold(0_i64, i64::wrapping_add) as f64
    };
    let norms = dot(a, a) * dot(b, b);
    if norms > 0.0 { (dot(a, b) / norms.sqrt()).clamp(0.0, 1.0) } else { 0.0 }
}

/// Writes a value as the reference does: null as nothing, a string as it is, anything else as Python's
/// `json.dumps` does, ASCII only.
pub fn to_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let mut text = String::new();
            dump(value, &mut text);
            text
        }
    }
}

/// The words of a text in lower case.
fn words(lower: &str) -> impl Iterator<Item = &str> {
    lower.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    matches!(
        get_general_category(c),
        GeneralCategory::UppercaseLetter
            | GeneralCategory::LowercaseLetter
            | GeneralCategory::TitlecaseLetter
            | GeneralCategory::ModifierLetter
            | GeneralCategory::OtherLetter
            | GeneralCategory::DecimalNumber
            | GeneralCategory::LetterNumber
            | GeneralCategory::OtherNumber
    )
}

fn is_token(word: &str) -> bool {
    let is_stop_word = || word.len() <= LONGEST && STOP_WORDS.binary_search(&word).is_ok();
    word.chars().nth(1).is_some() && !is_stop_word()
}

/// Words and their three-character pieces, counted in hashed dimensions with a hashed sign, so that unrelated texts
/// come out near zero.
struct Embedding {
    cells: Vec<i32>,
    // A word between its marks.
    padded: String,
}

impl Default for Embedding {
    fn default() -> Self {
        Self { cells: vec![0; 256], padded: String::new() }
    }
}

impl Embedding {
    fn add(&mut self, word: &str) {
        self.count(word.as_bytes());
        let mut padded = std::mem::take(&mut self.padded);
        padded.clear();
        padded.push('^');
        padded.push_str(word);
        padded.push('$');
        let ends = padded.char_indices().map(|(at, c)| at + c.len_utf8()).skip(2);
        for ((start, _), end) in padded.char_indices().zip(ends) {
            self.count(&padded.as_bytes()[start..end]);
        }
        self.padded = padded;
    }

    fn count(&mut self, feature: &[u8]) {
        let hash = xxh3_64(feature);
        let sign = if hash >> 63 == 0 { 1 } else { -1 };
        let cell = usize::try_from(hash % DIMENSIONS).ok().and_then(|at| self.cells.get_mut(at));
        if let Some(cell) = cell {
            *cell = cell.saturating_add(sign);
        }
    }
}

fn dump(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => text.push_str(&float_repr(float)),
            None => text.push_str(&number.to_string()),
        },
        Value::String(string) => dump_string(string, text),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                dump(item, text);
            }
            text.push(']');
        }
        Value::Object(entries) => {
            text.push('{');
            for (at, (key, entry)) in entries.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                dump_string(key, text);
                text.push_str(": ");
                dump(entry, text);
            }
            text.push('}');
        }
    }
}

fn dump_string(string: &str, text: &mut String) {
    text.push('"');
    for c in string.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            ' '..='~' => text.push(c),
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text.push('"');
}

/// Python's `repr` of a float: the shortest digits that read back, with an exponent below 1e-4 and
/// from 1e16.
fn float_repr(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || value.to_bits() << 1 == 0 {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }

    #[test]
    fn words_are_pythons() {
        let set = |text: &str| tokens(text).into_iter().collect::<Vec<_>>();
        assert_eq!(set("The x² of Straße_1, the ΣΑΣ!"), ["straße_1", "x²", "σας"]);
        // A combining mark ends a word.
        assert_eq!(set("cafe\u{301}s"), ["cafe"]);
    }

    #[test]
    fn a_text_is_like_itself_and_unlike_another() {
        let a = digest("Find cheap flights to Paris").unwrap();
        let b = digest("Quarterly tax filing deadlines").unwrap();
        assert!((cosine(&a.embedding, &a.embedding) - 1.0).abs() < 1e-12);
        assert!(cosine(&a.embedding, &b.embedding) < 0.4);
        assert!((jaccard(&a.tokens, &a.tokens) - 1.0).abs() < 1e-12);
        assert!(jaccard(&a.tokens, &b.tokens) < 1e-12);
        assert!(jaccard(&[], &[]) < 1e-12);
        assert_eq!(digest(""), None);
    }

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, text) in [
            (1.0, "1.0"),
            (1e16, "1e+16"),
            (2.5e-10, "2.5e-10"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(float_repr(value), text);
        }
        assert_eq!(
            to_text(&serde_json::json!({"n": 2.5e-10, "é": [1, null, true]})),
            "{\"n\": 2.5e-10, \"\\u00e9\": [1, null, true]}"
        );
    }
}
