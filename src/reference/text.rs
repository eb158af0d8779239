//! Outputs: their tokens, their hashed vectors, and the likeness of two outputs.

use std::collections::BTreeSet;

use unicode_general_category::{GeneralCategory, get_general_category};
use xxhash_rust::xxh3::xxh3_64;

/// Words that do not show what a text is about.
const STOP_WORDS: &str = "a above after all an and any are as at be been before being below both but by can could did \
    do does during each either every few for from had has have in into is it its may might more most neither no nor \
    not of on only or other own same shall should so some such than the through to too very was were will with would yet";

/// Dimensions of a hashed vector.
const DIMENSIONS: u64 = 256;

/// The digest for comparing an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Digest {
    tokens: BTreeSet<String>,
    vector: Vec<f64>,
}

impl Digest {
    /// The digest of a text; `None` if it is empty.
    pub fn of(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self { tokens: tokens(text), vector: vector(text) })
    }

    /// The number of different tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The lower-case words of a text, each once, without stop words and single characters.
pub fn tokens(text: &str) -> BTreeSet<String> {
    let stops: BTreeSet<&str> = STOP_WORDS.split_whitespace().collect();
    let counts = |word: &String| word.chars().count() > 1 && !stops.contains(word.as_str());
    words(text).into_iter().filter(counts).collect()
}

/// `cosine * jaccard`, in `[0,1]`.
pub fn likeness(a: &Digest, b: &Digest) -> f64 {
    cosine(&a.vector, &b.vector) * jaccard(&a.tokens, &b.tokens)
}

/// The number of common elements over that of all; 0 for two empty sets.
pub fn jaccard<T: Ord>(a: &BTreeSet<T>, b: &BTreeSet<T>) -> f64 {
    let all = a.union(b).count();
    if all == 0 { 0.0 } else { a.intersection(b).count() as f64 / all as f64 }
}

/// Runs of Python's `\w` in lower case: letters, numbers of any kind and the underscore.
fn words(text: &str) -> Vec<String> {
    let is_word = |c: char| {
        use GeneralCategory::{
            DecimalNumber, LetterNumber, LowercaseLetter, ModifierLetter, OtherLetter, OtherNumber,
            TitlecaseLetter, UppercaseLetter,
        };
        let letters =
            [UppercaseLetter, LowercaseLetter, TitlecaseLetter, ModifierLetter, OtherLetter];
        let category = get_general_category(c);
        c == '_'
            || letters.contains(&category)
            || [DecimalNumber, LetterNumber, OtherNumber].contains(&category)
    };
    let lower = text.to_lowercase();
    lower.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The vector of a text: its words, and the three-character pieces of each word with marks at its ends, are counted in hashed
/// dimensions; the highest bit of the hash is the sign.
fn vector(text: &str) -> Vec<f64> {
    let mut features = Vec::new();
    for word in words(text) {
        let marked: Vec<char> = format!("^{word}$").chars().collect();
        features.extend(marked.windows(3).map(|piece| piece.iter().collect::<String>()));
        features.push(word);
    }
    let mut vector = vec![0.0; 256];
    for hash in features.iter().map(|feature| xxh3_64(feature.as_bytes())) {
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        if let Some(cell) =
            usize::try_from(hash % DIMENSIONS).ok().and_then(|at| vector.get_mut(at))
        {
            *cell += sign;
        }
    }
    vector
}

/// The cosine, clamped to `[0,1]`; 0 if one vector is zero.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { (dot(a, b) / norms).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_python() {
        let expected = ["order_7", "r\u{e9}sum\u{e9}", "\u{bd}x"].map(str::to_owned);
        assert_eq!(tokens("The ORDER_7, a r\u{e9}sum\u{e9}: \u{bd}x i"), expected.into());
    }

    #[test]
    fn a_text_is_like_itself_and_unlike_another() {
        let digest = |text| Digest::of(text).unwrap();
        assert!(
            (likeness(&digest("refund order 7"), &digest("Order 7: refund")) - 1.0).abs() < 1e-9
        );
        assert!(likeness(&digest("refund order"), &digest("weather paris")) < 0.1);
        assert!(likeness(&digest("the of"), &digest("the of")) < 1e-12);
    }
}
