//! JSON, borrowed from the text it is in: strings without escapes, which are nearly all, are not copied.
//!
//! It accepts, understands and writes JSON like `serde_json`, with which the tests compare it; but it rejects a text of more than
//! 262,144 values, so that the memory stays in proportion to the text.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::mem;

use serde_json::Number;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::mend::{self, Numbers, Rules};
use super::raw::RawValue;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Object(Object<'a>),
}

/// The entries of an object, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Object<'a> {
    // Invariant: each key once.
    entries: Vec<(Cow<'a, str>, Json<'a>)>,
}

/// Written JSON, without an allocation if it is short.
pub(super) type Written = SmallVec<[u8; 1024]>;

/// How content is mended; the strict reader limits its depth.
const NEARLY: Rules = Rules { max_depth: usize::MAX, numbers: Numbers::Absent, controls: false };

/// How deep lists and objects may be inside each other, as for `serde_json`.
const MAX_DEPTH: usize = 127;

/// Most values of a text: in memory, a text of short values is many times as large.
const MAX_VALUES: usize = 1 << 18;

/// The number of items or entries that most lists and objects do not exceed.
const USUAL: usize = 2;

/// The number of entries up to which each key is compared with each other.
const FEW: usize = 16;

/// Reads a text that is JSON, or nearly: half an emoji, or a number that no float holds, is lost alone. `None` for any other text.
pub(super) fn read(text: &str) -> Option<Json<'_>> {
    parse(text).or_else(|| {
        let mended = mend::json(text.as_bytes(), NEARLY);
        let is_other = mended.strings + mended.numbers > 0;
        is_other.then(|| parse(&mended.text).map(Json::into_owned)).flatten()
    })
}

/// Reads a text that is JSON; `None` for any other.
pub(super) fn parse(text: &str) -> Option<Json<'_>> {
    let mut lexer = Lexer::of(text);
    let value = lexer.value::<true>(MAX_DEPTH)?;
    lexer.is_over().then_some(value)
}

/// The items of a text that is a JSON list, each a text that is JSON; `None` for any other, and where there are none.
pub(super) fn items(text: &str) -> Option<Vec<&str>> {
    let mut lexer = Lexer::of(text);
    let mut items = Vec::new();
    let mut goes_on = lexer.take(b'[');
    while goes_on {
        lexer.next()?;
        let start = lexer.at;
        lexer.value::<false>(MAX_DEPTH - 1)?;
        items.push(&text[start..lexer.at]);
        goes_on = lexer.take(b',');
    }
    let is_list = !items.is_empty() && lexer.take(b']') && lexer.is_over();
    is_list.then_some(items)
}

/// An object of a few scalars, each as it is written: by key, without escapes.
pub(super) struct Flat<'a>(SmallVec<[(&'a str, &'a str); 4]>);

/// Reads such an object, as arguments mostly are, without building a tree; `None` for any other text.
pub(super) fn flat(text: &str) -> Option<Flat<'_>> {
    let mut lexer = Lexer::of(text);
    let mut entries = SmallVec::new();
    lexer.take(b'{').then_some(())?;
    let mut goes_on = true;
    while goes_on && entries.len() < FEW {
        let Cow::Borrowed(key) = lexer.text()? else { return None };
        lexer.take(b':').then_some(())?;
        entries.push((key, lexer.scalar()?));
        goes_on = lexer.take(b',');
    }
    let is_whole = !goes_on && lexer.take(b'}') && lexer.is_over();
    entries.sort_unstable();
    let differ = |pair: &[(&str, &str)]| pair[0].0 < pair[1].0;
    (is_whole && entries.windows(2).all(differ)).then_some(Flat(entries))
}

impl Flat<'_> {
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| *key)
    }

    /// As [`Json::write_scalars`].
    pub(super) fn write_scalars(&self, text: &mut Written, scalar: &mut impl FnMut(u64, &[u8])) {
        write_all(&self.0, b"{}", text, |(_, (key, value)), text| {
            let parts: [&[u8]; 4] = [b"\"", key.as_bytes(), b"\":", value.as_bytes()];
            parts.iter().for_each(|part| text.extend_from_slice(part));
            scalar(below(0, key.as_bytes()), value.as_bytes());
        });
    }
}

impl<'a> Json<'a> {
    /// The JSON value of an attribute: a string that holds JSON stays a string.
    pub(super) fn of(value: &'a RawValue<'_>) -> Self {
        match value {
            RawValue::Null => Self::Null,
            RawValue::Str(text) => Self::Text(Cow::Borrowed(text)),
            RawValue::Bool(value) => Self::Bool(*value),
            RawValue::Int(value) => Self::Number(Number::from(*value)),
            RawValue::Double(value) => Number::from_f64(*value).map_or(Self::Null, Self::Number),
            RawValue::Bytes(bytes) => Self::Text(String::from_utf8_lossy(bytes)),
            RawValue::Array(items) => Self::List(items.iter().map(Self::of).collect()),
            RawValue::Map(entries) => {
                let entries = entries.iter();
                let entries = entries.map(|(key, value)| (Cow::Borrowed(&**key), Self::of(value)));
                Self::Object(entries.collect())
            }
        }
    }

    /// The value under a key; `None` if this is not an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    pub(super) fn as_text(&self) -> Option<&Cow<'a, str>> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        self.as_text().map(|text| &**text)
    }

    pub(super) fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    pub(super) fn as_object(&self) -> Option<&Object<'a>> {
        if let Self::Object(object) = self { Some(object) } else { None }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self { number.as_u64() } else { None }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        if let Self::Number(number) = self { number.as_f64() } else { None }
    }

    /// Whether it is neither a list nor an object.
    pub(super) fn is_scalar(&self) -> bool {
        self.as_list().is_none() && self.as_object().is_none()
    }

    /// Returns the same value, which borrows nothing.
    pub(super) fn into_owned(self) -> Json<'static> {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(value),
            Self::Number(number) => Json::Number(number),
            Self::Text(text) => Json::Text(Cow::Owned(text.into_owned())),
            Self::List(items) => Json::List(items.into_iter().map(Self::into_owned).collect()),
            Self::Object(object) => {
                let entries = object.entries.into_iter();
                let owned = |(key, value): (Cow<'_, str>, Self)| {
                    (Cow::Owned(key.into_owned()), value.into_owned())
                };
                Json::Object(Object { entries: entries.map(owned).collect() })
            }
        }
    }

    /// Writes it without spaces.
    pub(super) fn write(&self, text: &mut Written) {
        self.walk::<false>(0, text, &mut |_, _| ());
    }

    /// Writes it without spaces, and calls `scalar` for each scalar with its place and its written form. A place is a hash of the
    /// keys that lead to it, and of its index in each list on the way whose order matters: a list of lists and objects, or the
    /// outermost list.
    pub(super) fn write_scalars(&self, text: &mut Written, scalar: &mut impl FnMut(u64, &[u8])) {
        if let Self::List(items) = self {
            write_all(items, b"[]", text, |(at, item), text| {
                item.walk::<true>(below(0, &at.to_le_bytes()), text, scalar);
            });
        } else {
            self.walk::<true>(0, text, scalar);
        }
    }

    fn walk<const PLACED: bool>(
        &self,
        place: u64,
        text: &mut Written,
        scalar: &mut impl FnMut(u64, &[u8]),
    ) {
        let start = text.len();
        match self {
            Self::Null => text.extend_from_slice(b"null"),
            Self::Bool(true) => text.extend_from_slice(b"true"),
            Self::Bool(false) => text.extend_from_slice(b"false"),
            Self::Number(number) => {
                // Writing to memory cannot fail.
                let _ = write!(AsText(text), "{number}");
            }
            Self::Text(string) => write_string(string, text),
            Self::List(items) => {
                return write_all(items, b"[]", text, |(at, item), text| {
                    let is_placed = PLACED && !item.is_scalar();
                    let place = if is_placed { below(place, &at.to_le_bytes()) } else { place };
                    item.walk::<PLACED>(place, text, scalar);
                });
            }
            Self::Object(object) => {
                return write_all(&object.entries, b"{}", text, |(_, (key, value)), text| {
                    write_string(key, text);
                    text.push(b':');
                    let place = if PLACED { below(place, key.as_bytes()) } else { place };
                    value.walk::<PLACED>(place, text, scalar);
                });
            }
        }
        scalar(place, &text[start..]);
    }
}

/// Writes the items of a list or an object, with commas between them.
fn write_all<T>(
    items: &[T],
    [open, close]: &[u8; 2],
    text: &mut Written,
    mut write: impl FnMut((usize, &T), &mut Written),
) {
    text.push(*open);
    for (at, item) in items.iter().enumerate() {
        text.extend_from_slice(if at == 0 { b"" } else { b"," });
        write((at, item), text);
    }
    text.push(*close);
}

/// The place below another place, under a key or an index.
fn below(place: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, place)
}

/// Adapts the output to writers of text.
struct AsText<'t>(&'t mut Written);

impl Write for AsText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Written::new();
        self.write(&mut text);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl<'a> Object<'a> {
    /// Makes an object; a duplicate key has the position of its first entry and the value of its last.
    fn of(mut entries: Vec<(Cow<'a, str>, Json<'a>)>) -> Self {
        let differ = |at: usize| entries[..at].iter().all(|(key, _)| *key != entries[at].0);
        if entries.len() > FEW || !(1..entries.len()).all(differ) {
            let mut places: Vec<usize> = (0..entries.len()).collect();
            places.sort_by(|a, b| entries[*a].0.cmp(&entries[*b].0));
            let mut again = vec![false; entries.len()];
            let mut rest = &places[..];
            while let [first, after @ ..] = rest {
                let key = &entries[*first].0;
                let equal = after.iter().take_while(|at| entries[**at].0 == *key).count();
                let (equal, others) = after.split_at(equal);
                if let Some(last) = equal.last() {
                    entries[*first].1 = mem::replace(&mut entries[*last].1, Json::Null);
                    equal.iter().for_each(|at| again[*at] = true);
                }
                rest = others;
            }
            let mut again = again.into_iter();
            entries.retain(|_| again.next() == Some(false));
        }
        Self { entries }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &Json<'a>)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    pub(super) fn values(&self) -> impl DoubleEndedIterator<Item = &Json<'a>> {
        self.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Json<'a>> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// Keeps the entries that fit.
    pub(super) fn retain(&mut self, fits: impl Fn(&str, &Json<'a>) -> bool) {
        self.entries.retain(|(key, value)| fits(key, value));
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn into_entries(self) -> impl Iterator<Item = (Cow<'a, str>, Json<'a>)> {
        self.entries.into_iter()
    }

    /// Returns the object with each value changed, in the order of the keys.
    pub(super) fn sorted(self, change: fn(Json<'a>) -> Json<'a>) -> Self {
        let mut entries = self.entries;
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (_, value) in &mut entries {
            *value = change(mem::replace(value, Json::Null));
        }
        Self { entries }
    }
}

impl<'a> FromIterator<(Cow<'a, str>, Json<'a>)> for Object<'a> {
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, Json<'a>)>>(entries: I) -> Self {
        Self::of(entries.into_iter().collect())
    }
}

/// Reads a text from its beginning.
pub(super) struct Lexer<'a> {
    text: &'a str,
    // Invariant: between two characters.
    at: usize,
    // How many more values may be kept.
    room: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, at: 0, room: MAX_VALUES }
    }

    /// Reads a value with lists and objects at most `depth` deep inside each other; keeps what is in them only if `KEPT`.
    fn value<const KEPT: bool>(&mut self, depth: usize) -> Option<Json<'a>> {
        if KEPT {
            self.room = self.room.checked_sub(1)?;
        }
        match self.next()? {
            b'"' => self.string().map(Json::Text),
            b'{' => self.object::<KEPT>(depth.checked_sub(1)?).map(Json::Object),
            b'[' => self.list::<KEPT>(depth.checked_sub(1)?).map(Json::List),
            b'n' => self.word("null", Json::Null),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            _ => self.number().map(Json::Number),
        }
    }

    fn list<const KEPT: bool>(&mut self, depth: usize) -> Option<Vec<Json<'a>>> {
        self.at += 1;
        if self.take(b']') {
            return Some(Vec::new());
        }
        let mut items = Vec::with_capacity(if KEPT { USUAL } else { 0 });
        loop {
            let item = self.value::<KEPT>(depth)?;
            if KEPT {
                items.push(item);
            }
            if !self.take(b',') {
                return self.take(b']').then_some(items);
            }
        }
    }

    fn object<const KEPT: bool>(&mut self, depth: usize) -> Option<Object<'a>> {
        self.at += 1;
        if self.take(b'}') {
            return Some(Object::default());
        }
        let mut entries = Vec::with_capacity(if KEPT { USUAL } else { 0 });
        loop {
            let key = self.text()?;
            let value = if self.take(b':') { self.value::<KEPT>(depth)? } else { return None };
            if KEPT {
                entries.push((key, value));
            }
            if !self.take(b',') {
                return self.take(b'}').then(|| Object::of(entries));
            }
        }
    }

    /// Consumes this key and the colon after it, if they come next and the key is written without escapes.
    pub(super) fn key(&mut self, key: &str) -> Option<()> {
        self.next()?;
        let rest = self.text.get(self.at..)?;
        let rest = rest.strip_prefix('"')?.strip_prefix(key)?.strip_prefix('"')?;
        self.at = self.text.len() - rest.len();
        self.take(b':').then_some(())
    }

    /// Consumes a string, if it comes next.
    pub(super) fn text(&mut self) -> Option<Cow<'a, str>> {
        if self.next()? == b'"' { self.string() } else { None }
    }

    /// Consumes a string, borrowed if it has no escapes.
    fn string(&mut self) -> Option<Cow<'a, str>> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let (mut end, mut escaped) = (start + 1, false);
        loop {
            end += plain(bytes.get(end..)?);
            match bytes.get(end)? {
                b'"' => break,
                b'\\' => (end, escaped) = (end + 2, true),
                _ => return None,
            }
        }
        self.at = end + 1;
        if escaped {
            return serde_json::from_str(&self.text[start..=end]).ok();
        }
        Some(Cow::Borrowed(&self.text[start + 1..end]))
    }

    /// Consumes a scalar whose canonical form equals its written one: a string without escapes, a short integer or a word.
    fn scalar(&mut self) -> Option<&'a str> {
        self.next()?;
        let start = self.at;
        let value = self.value::<false>(0)?;
        let written = self.text.get(start..self.at)?;
        let is_whole =
            |text: &str| text.len() < 19 && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_so = match value {
            Json::Null | Json::Bool(_) => true,
            Json::Number(_) => is_whole(written),
            Json::Text(text) => matches!(text, Cow::Borrowed(_)),
            Json::List(_) | Json::Object(_) => false,
        };
        is_so.then_some(written)
    }

    /// Consumes a number; a short one of digits alone is read directly.
    fn number(&mut self) -> Option<Number> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let is_of_it = |byte: &&u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let length = rest.iter().take_while(is_of_it).count();
        let digits = self.text.get(self.at..self.at + length)?;
        self.at += length;
        let is_short = digits.len() < 19 && (digits == "0" || !digits.starts_with('0'));
        if is_short && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return digits.parse::<u64>().ok().map(Number::from);
        }
        serde_json::from_str(digits).ok()
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Option<Json<'a>> {
        let rest = self.text.as_bytes().get(self.at..)?;
        self.at += word.len();
        rest.starts_with(word.as_bytes()).then_some(value)
    }

    /// Whether nothing but white space is left.
    pub(super) fn is_over(&mut self) -> bool {
        self.next().is_none()
    }

    /// Consumes a character, if it comes next, and returns whether it did.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.next() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Skips white space and returns the byte after it.
    fn next(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                other => return other.copied(),
            }
        }
    }
}

/// The number of bytes before the first one that ends a string, begins an escape or is not allowed in a string.
fn plain(bytes: &[u8]) -> usize {
    // Most strings are keys, and end in the first words.
    let (short, long) = bytes.split_at(bytes.len().min(16));
    let (words, rest) = short.as_chunks();
    for (at, word) in words.iter().enumerate() {
        let special = specials(u64::from_le_bytes(*word));
        if special > 0 {
            return 8 * at + usize::try_from(special.trailing_zeros() / 8).unwrap_or(0);
        }
    }
    if let Some(at) = rest.iter().position(is_special) {
        return short.len() - rest.len() + at;
    }
    let end = memchr::memchr2(b'"', b'\\', long).unwrap_or(long.len());
    let least = long[..end].iter().fold(u8::MAX, |least, byte| least.min(*byte));
    let plain = if least < b' ' { long.iter().position(is_special) } else { None };
    short.len() + plain.unwrap_or(end)
}

fn is_special(byte: &u8) -> bool {
    *byte < b' ' || *byte == b'"' || *byte == b'\\'
}

/// Bits of which the lowest set one is in the first special byte of a word; 0 if there is none.
fn specials(word: u64) -> u64 {
    let all = |byte: u8| u64::from_ne_bytes([byte; 8]);
    let zeros = |word: u64| word.wrapping_sub(all(1)) & !word & all(0x80);
    zeros(word ^ all(b'"')) | zeros(word ^ all(b'\\')) | zeros(word & all(!(b' ' - 1)))
}

fn write_string(string: &str, text: &mut Written) {
    text.push(b'"');
    let mut rest = string;
    loop {
        let (as_it_is, special) = rest.split_at(plain(rest.as_bytes()));
        text.extend_from_slice(as_it_is.as_bytes());
        let Some(byte) = special.bytes().next() else { break };
        match byte {
            b'"' => text.extend_from_slice(b"\\\""),
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            0x8 => text.extend_from_slice(b"\\b"),
            0xc => text.extend_from_slice(b"\\f"),
            _ => {
                // Writing to memory cannot fail.
                let _ = write!(AsText(text), "\\u{byte:04x}");
            }
        }
        rest = &special[1..];
    }
    text.push(b'"');
}
