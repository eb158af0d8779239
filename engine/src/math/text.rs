//! Texts: tokens, sets of tokens, and the similarity of two texts.
//!
//! Source: PandaProbe, `trace/loop_detection/metric.py` and `utils.py`. The words are
//! Python's: runs of `\w`, which is the general categories L* and N* and the underscore.

use std::borrow::Cow;
use std::fmt::Write;
use std::mem;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smallvec::SmallVec;
use unicode_general_category::{GeneralCategory, get_general_category};
use xxhash_rust::xxh3::xxh3_64;

use crate::facts::OutputDigest;

/// Words that say nothing about the subject of a text.
const STOP_WORDS: [&str; 70] = [
    "a", "above", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "before",
    "being", "below", "both", "but", "by", "can", "could", "did", "do", "does", "during", "each",
    "either", "every", "few", "for", "from", "had", "has", "have", "in", "into", "is", "it", "its",
    "may", "might", "more", "most", "neither", "no", "nor", "not", "of", "on", "only", "or",
    "other", "own", "same", "shall", "should", "so", "some", "such", "than", "the", "through",
    "to", "too", "very", "was", "were", "will", "with", "would", "yet",
];

/// Length of the longest stop word, in bytes.
const LONGEST: usize = 7;

/// Length of most words including the separator, or more, in bytes.
const USUAL: usize = 6;

/// Number of large cells of an embedding that are multiplied in parallel.
const LANES: usize = 4;

/// Number of products of small cells whose sum certainly fits into an `i32`: none is over 2^14.
const SUMMED: usize = 1 << 16;

/// The stop words as numbers, each at the index that it hashes to, or the next free one.
const STOPS: [u64; 256] = {
    let (mut stops, mut at) = ([0; 256], 0);
    while at < STOP_WORDS.len() {
        let number = number(STOP_WORDS[at].as_bytes());
        let mut free = stop_at(number);
        while stops[free as usize] != 0 {
            free = free.wrapping_add(1);
        }
        stops[free as usize] = number;
        at += 1;
    }
    stops
};

/// The ASCII characters of words, in lower case.
const LETTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789_";

/// The codes of separators, of characters that are not ASCII, and of the first of [`LETTERS`].
const BETWEEN: u8 = 0;
const OTHER: u8 = 1;
const LETTER: u8 = 2;

/// The code of each byte of a text, in lower case.
const CODES: [u8; 256] = {
    let (mut codes, mut byte, mut letter) = ([BETWEEN; 256], 0x80, 0);
    while byte < codes.len() {
        codes[byte] = OTHER;
        byte += 1;
    }
    let mut code = LETTER;
    while letter < LETTERS.len() {
        codes[LETTERS[letter] as usize] = code;
        (letter, code) = (letter + 1, code + 1);
    }
    codes
};

/// Number of indices at which features are counted: one for each dimension and sign, and as many that are never read.
const PLACES: usize = 1 << 10;

/// The index for whatever does not count: no feature has it.
const NOWHERE: u16 = 512;

/// The number of sequences of three codes of six bits each.
const SEQUENCES: usize = 1 << 18;

/// The bits of the last three codes, with a mark instead of the last one.
const MARKED: usize = (SEQUENCES - 1) & !0x3f;

/// The indices of all pieces of ASCII words, by the codes of their three characters: a separator stands for the marks around a
/// word. Most characters of most texts end such a piece, and a hash takes longer than a table look-up.
static PIECES: LazyLock<Box<[u16]>> = LazyLock::new(|| {
    let mut pieces = vec![NOWHERE; SEQUENCES];
    let letters = || (usize::from(LETTER)..).zip(LETTERS);
    let mark = usize::from(BETWEEN);
    for (first, a) in letters().chain([(mark, &b'^')]) {
        for (second, b) in letters() {
            for (third, c) in letters().chain([(mark, &b'$')]) {
                pieces[first << 12 | second << 6 | third] = place(xxh3_64(&[*a, *b, *c]));
            }
        }
    }
    pieces.into()
});

/// The embedding of a text, in whole numbers, so that a cosine has the same bits everywhere.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(from = "Vec<i32>", into = "Vec<i32>")]
pub struct Embedding {
    cells: Cells,
    /// The sum of the squares of the cells, as the bits of a float.
    square: u64,
}

/// A number for each dimension. Counts of words are small, except in long texts; sessions hold many of them.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Cells {
    /// All numbers fit into this type.
    Small(Box<[i8]>),
    /// One does not.
    Large(Box<[i32]>),
}

impl Embedding {
    /// A number for each dimension; empty: there is no embedding.
    pub fn cells(&self) -> Cow<'_, [i32]> {
        self.cells.large()
    }

    /// The number of dimensions.
    pub fn dimensions(&self) -> usize {
        match &self.cells {
            Cells::Small(cells) => cells.len(),
            Cells::Large(cells) => cells.len(),
        }
    }

    /// The bytes of memory that its cells take.
    pub fn bytes(&self) -> usize {
        match &self.cells {
            Cells::Small(cells) => size_of_val(&**cells),
            Cells::Large(cells) => size_of_val(&**cells),
        }
    }

    /// Cosine similarity to another embedding, clamped to `[0,1]`; 0 if one of them is zero.
    pub fn cosine(&self, other: &Self) -> f64 {
        let norms = f64::from_bits(self.square) * f64::from_bits(other.square);
        if norms > 0.0 {
            (self.cells.dot(&other.cells) / norms.sqrt()).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

impl From<&[i32]> for Embedding {
    fn from(cells: &[i32]) -> Self {
        // The bits that differ from the sign in any of them, without branches.
        let bits = cells.iter().fold(0, |bits, cell| bits | cell ^ cell >> 31);
        #[expect(clippy::cast_possible_truncation, reason = "none has more bits")]
        let cells = if bits <= i32::from(i8::MAX) {
            Cells::Small(cells.iter().map(|cell| *cell as i8).collect())
        } else {
            Cells::Large(cells.into())
        };
        Self { square: cells.dot(&cells).to_bits(), cells }
    }
}

impl From<Vec<i32>> for Embedding {
    fn from(cells: Vec<i32>) -> Self {
        Self::from(&*cells)
    }
}

impl From<Embedding> for Vec<i32> {
    fn from(embedding: Embedding) -> Self {
        embedding.cells.large().into_owned()
    }
}

impl FromIterator<i32> for Embedding {
    fn from_iter<T: IntoIterator<Item = i32>>(cells: T) -> Self {
        Self::from(&*SmallVec::<[i32; 256]>::from_iter(cells))
    }
}

impl Default for Cells {
    fn default() -> Self {
        Self::Small(Box::default())
    }
}

impl Cells {
    fn large(&self) -> Cow<'_, [i32]> {
        match self {
            Self::Small(cells) => cells.iter().map(|cell| i32::from(*cell)).collect(),
            Self::Large(cells) => Cow::Borrowed(cells),
        }
    }

    /// The dot product. Products and their sum are integers that floats hold exactly for texts of up to 2^26 features, which is
    /// more than a span may have, so the order of the sum does not matter.
    fn dot(&self, other: &Self) -> f64 {
        let (Self::Small(a), Self::Small(b)) = (self, other) else {
            return dot(&self.large(), &other.large());
        };
        let sum = |(a, b): (&[i8], &[i8])| {
            a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>()
        };
        a.chunks(SUMMED).zip(b.chunks(SUMMED)).map(sum).map(f64::from).sum()
    }
}

fn dot(a: &[i32], b: &[i32]) -> f64 {
    let product = |a: i32, b: i32| f64::from(a) * f64::from(b);
    let ((a, last_a), (b, last_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        sums = std::array::from_fn(|lane| sums[lane] + product(a[lane], b[lane]));
    }
    let last = last_a.iter().zip(last_b).map(|(a, b)| product(*a, *b));
    sums.into_iter().chain(last).sum()
}

/// The digest by which a text is compared; `None` for an empty text.
pub fn digest(text: &str) -> Option<OutputDigest> {
    if text.is_empty() {
        return None;
    }
    let lower = text.to_lowercase();
    let mut features = Features::new(lower.len() / USUAL);
    // As an array of this size, accesses need no bounds check: it has an entry for any three codes.
    let pieces = PIECES.as_array::<SEQUENCES>()?;
    let bytes = lower.as_bytes();
    // The index of the next byte, the start of the word, and the codes of the last characters.
    let (mut at, mut start, mut last) = (0, 0, 0);
    while let Some(byte) = bytes.get(at) {
        let code = CODES[usize::from(*byte)];
        let before = last << 6 & MARKED;
        last = before | usize::from(code);
        at += 1;
        if code >= LETTER {
            features.add(pieces[last]);
        } else if code == BETWEEN {
            features.add(pieces[last]);
            let word = &bytes[start..at - 1];
            features.add_word(word, word.len() > 1);
            start = at;
        } else {
            start = features.add_other(&lower, start, at - 1, pieces[before]);
            (at, last) = (start, 0);
        }
    }
    features.add(pieces[last << 6 & MARKED]);
    features.add_word(&bytes[start..], bytes.len() - start > 1);
    let tokens = each_once(&features.tokens).into();
    Some(OutputDigest { tokens, embedding: features.cells(), ..OutputDigest::default() })
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

/// The distinct hashes, in order. They are bucketed by their first bytes: few share a bucket, as hashes are spread evenly.
fn each_once(hashes: &[u64]) -> Vec<u64> {
    let first = |hash: u64| usize::from(hash.to_be_bytes()[0]);
    let mut places = [0_usize; 256];
    hashes.iter().for_each(|hash| places[first(*hash)] += 1);
    let mut before = 0;
    for place in &mut places {
        before += mem::replace(place, before);
    }
    let mut sorted = vec![0; hashes.len()];
    for hash in hashes {
        let place = &mut places[first(*hash)];
        sorted[*place] = *hash;
        *place += 1;
    }
    let alike = sorted.chunk_by_mut(|one, other| first(*one) == first(*other));
    alike.filter(|alike| alike.len() > 1).for_each(<[u64]>::sort_unstable);
    sorted.dedup();
    // In a block of the exact size, as sessions hold many of them.
    sorted.as_slice().into()
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

fn is_stop_word(word: &[u8]) -> bool {
    if word.len() > LONGEST {
        return false;
    }
    let number = number(word);
    let mut at = stop_at(number);
    while ![0, number].contains(&STOPS[usize::from(at)]) {
        at = at.wrapping_add(1);
    }
    STOPS[usize::from(at)] == number
}

/// A word of at most eight bytes as a number.
const fn number(word: &[u8]) -> u64 {
    match (word, word.first_chunk(), word.last_chunk()) {
        // The two overlap, and are equal there.
        (_, Some(first), Some(last)) => {
            let high = u32::from_be_bytes(*first) as u64;
            high << (8 * (word.len() - 4)) | u32::from_be_bytes(*last) as u64
        }
        ([one], ..) => *one as u64,
        ([one, two], ..) => u16::from_be_bytes([*one, *two]) as u64,
        ([one, two, three], ..) => u32::from_be_bytes([0, *one, *two, *three]) as u64,
        _ => 0,
    }
}

/// The index in [`STOPS`] where the search for the number of a word starts.
const fn stop_at(number: u64) -> u8 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}

/// The index at which a feature is counted, by its hash: the dimension is the lowest byte, the sign the highest bit.
fn place(hash: u64) -> u16 {
    let [.., high, low] = hash.rotate_left(1).to_be_bytes();
    u16::from_be_bytes([high & 1, low])
}

/// Words and their three-character pieces, counted in hashed dimensions with a hashed sign, so that unrelated texts have a
/// similarity near zero.
struct Features {
    // For each dimension the number of features with the sign plus, and minus; the rest is never read.
    counts: [i32; PLACES],
    // The hashes of words that describe the subject of a text.
    tokens: Vec<u64>,
    // A buffer for a word between its marks.
    padded: String,
}

impl Features {
    fn new(words: usize) -> Self {
        Self { counts: [0; PLACES], tokens: Vec::with_capacity(words), padded: String::new() }
    }

    /// Counts a word, if it is not empty; it is a token if it has several characters and is not a stop word.
    #[inline]
    fn add_word(&mut self, word: &[u8], several: bool) {
        if word.is_empty() {
            return;
        }
        let hash = xxh3_64(word);
        self.add(place(hash));
        if several && !is_stop_word(word) {
            self.tokens.push(hash);
        }
    }

    /// Handles the character at `at`, which is not ASCII: it ends the word that begins at `start`, or is part of it. Counts that
    /// word. Returns where the next word begins.
    #[cold]
    fn add_other(&mut self, text: &str, start: usize, at: usize, last_piece: u16) -> usize {
        let rest = &text[at..];
        let letters = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &text[start..at + letters];
        if letters > 0 {
            // Each of the characters before it except the first has ended a piece.
            self.add_pieces(word, (at - start).saturating_sub(1));
        } else {
            self.add(last_piece);
        }
        self.add_word(word.as_bytes(), word.chars().nth(1).is_some());
        let between = rest[letters..].chars().next().map_or(0, char::len_utf8);
        at + letters + between
    }

    /// Counts the pieces of a word, except the first `without`.
    fn add_pieces(&mut self, word: &str, without: usize) {
        let mut padded = mem::take(&mut self.padded);
        padded.clear();
        padded.extend(["^", word, "$"]);
        let ends = padded.char_indices().map(|(at, c)| at + c.len_utf8()).skip(2);
        for ((start, _), end) in padded.char_indices().zip(ends).skip(without) {
            self.add(place(xxh3_64(&padded.as_bytes()[start..end])));
        }
        self.padded = padded;
    }

    /// Counts a feature at its index.
    fn add(&mut self, place: u16) {
        self.counts[usize::from(place) % PLACES] += 1;
    }

    fn cells(&self) -> Embedding {
        let mut cells = [0; 256];
        for (cell, [plus, minus]) in cells.iter_mut().zip(self.counts.as_chunks().0) {
            *cell = plus - minus;
        }
        Embedding::from(&cells[..])
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::words::Words;
    use super::*;

    /// The same, character by character.
    fn slow(text: &str) -> OutputDigest {
        let lower = text.to_lowercase();
        let words = lower.split(|c| !is_word(c)).filter(|word| !word.is_empty());
        let (mut tokens, mut cells) = (BTreeSet::new(), vec![0; 256]);
        for word in words {
            if word.chars().count() > 1 && !STOP_WORDS.contains(&word) {
                tokens.insert(xxh3_64(word.as_bytes()));
            }
            let padded: Vec<char> = format!("^{word}$").chars().collect();
            let pieces = padded.windows(3).map(|piece| piece.iter().collect());
            for feature in pieces.chain([word.to_owned()]) {
                let hash = xxh3_64(feature.as_bytes());
                cells[usize::try_from(hash % 256).unwrap()] += if hash >> 63 == 0 { 1 } else { -1 };
            }
        }
        let tokens = tokens.into_iter().collect();
        OutputDigest { tokens, embedding: cells.into(), ..OutputDigest::default() }
    }

    proptest! {
        #[test]
        fn a_digest_is_what_its_characters_make_it(
            any in ".{0,60}",
            words in "([a-cA-CéÉßΣσşİ0_]{1,9}[ ,\u{301}\u{a0}-]{1,2}){0,9}",
            stops in prop::collection::vec(prop::sample::select(&STOP_WORDS[..]), 0..9),
        ) {
            for text in [any, words, stops.join(" "), stops.join("x ").to_uppercase()] {
                let expected = (!text.is_empty()).then(|| slow(&text));
                prop_assert_eq!(digest(&text), expected, "{}", text);
            }
        }
    }

    proptest! {
        #[test]
        fn cells_of_any_size_are_multiplied_alike(
            a in prop::collection::vec(-200_i32..200, 0..40),
            b in prop::collection::vec(-200_i32..200, 0..40),
            small in any::<(bool, bool)>(),
        ) {
            let of = |cells: &[i32], small| -> Vec<i32> {
                cells.iter().take(a.len().min(b.len())).map(|cell| if small { cell % 128 } else { *cell }).collect()
            };
            let (a, b) = (of(&a, small.0), of(&b, small.1));
            let [one, other] = [&a, &b].map(|cells| Embedding::from(&**cells));
            let (found, expected) = (one.cells.dot(&other.cells), dot(&a, &b));
            prop_assert!(found.total_cmp(&expected).is_eq() || a.is_empty(), "{} {}", found, expected);
            prop_assert_eq!(Vec::from(one), a);
        }
    }

    #[test]
    fn sums_of_small_cells_do_not_overflow() {
        let least = Embedding::from(vec![i32::from(i8::MIN); 3 * SUMMED]);
        assert!(matches!(&least.cells, Cells::Small(_)));
        assert!((least.cosine(&least) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn words_are_pythons() {
        let set = |text: &str| digest(text).unwrap().tokens;
        let hashes = |words: &[&str]| {
            let hashes: BTreeSet<u64> = words.iter().map(|word| xxh3_64(word.as_bytes())).collect();
            hashes.into_iter().collect::<Words>()
        };
        assert_eq!(set("The x² of Straße_1, the ΣΑΣ!"), hashes(&["straße_1", "x²", "σας"]));
        // A combining mark ends a word.
        assert_eq!(set("cafe\u{301}s"), hashes(&["cafe"]));
    }

    #[test]
    fn a_text_is_like_itself_and_unlike_another() {
        let a = digest("Find cheap flights to Paris").unwrap();
        let b = digest("Quarterly tax filing deadlines").unwrap();
        assert!((a.embedding.cosine(&a.embedding) - 1.0).abs() < 1e-12);
        assert!(a.embedding.cosine(&b.embedding) < 0.4);
        assert!((a.tokens.jaccard(&a.tokens) - 1.0).abs() < 1e-12);
        assert!(a.tokens.jaccard(&b.tokens) < 1e-12);
        assert!(Words::default().jaccard(&Words::default()) < 1e-12);
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
