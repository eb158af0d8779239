//! A YAML document as a tree that knows its lines, so that it can be merged first and read into types afterwards, and
//! errors still have their place.

use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_saphyr::Spanned;

/// The least similarity to an unknown key with which a known key is suggested.
const MIN_SIMILARITY: f64 = 0.7;

/// A value and the line on which it begins, from 1.
#[derive(Clone, Debug)]
pub(super) struct Node {
    line: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    line: u64,
    value: Node,
}

/// An error of a specification, and its place.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub struct SpecError {
    /// The line, from 1; 0 if it is not known.
    pub line: u64,
    /// The key, dotted, with positions from 0: `queries[2].path.max_loops`; empty for the whole document.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
    /// Whether a required key is missing; one that is missing in the defaults may be in the queries.
    pub(super) missing: bool,
}

/// Parses a document. Only `true` and `false` become booleans here: `y`, `no` and `on` are texts unless a boolean is
/// asked for.
pub(super) fn parse(text: &str) -> Result<Node, SpecError> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        let problem = error.without_snippet().to_string();
        SpecError { line, key: String::new(), problem, missing: false }
    })
}

impl Node {
    /// The value of a key, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let value = &self.entries().iter().find(|entry| entry.key == key)?.value;
        (!matches!(value.kind, Kind::Null)).then_some(value)
    }

    /// Replaces each item of the list under a key by the result of `change`.
    pub(super) fn map_items(&mut self, key: &str, change: impl Fn(Self) -> Self) {
        let Kind::Table(entries) = &mut self.kind else { return };
        let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) else { return };
        if let Kind::List(items) = &mut entry.value.kind {
            *items = std::mem::take(items).into_iter().map(change).collect();
        }
    }

    /// Both trees merged, key by key and as deep as both are tables; elsewhere `over` wins, unless it is null.
    pub(super) fn merged(&self, over: Self) -> Self {
        let (Kind::Table(base), Kind::Table(_)) = (&self.kind, &over.kind) else {
            return if matches!(over.kind, Kind::Null) { self.clone() } else { over };
        };
        let line = over.line;
        let mut entries = base.clone();
        for entry in over.into_entries() {
            match entries.iter_mut().find(|held| held.key == entry.key) {
                Some(held) => {
                    held.line = entry.line;
                    held.value = held.value.merged(entry.value);
                }
                None => entries.push(entry),
            }
        }
        Self { line, kind: Kind::Table(entries) }
    }

    /// Reads the tree into a type.
    pub(super) fn read<'de, T: Deserialize<'de>>(&'de self) -> Result<T, SpecError> {
        T::deserialize(self).map_err(|error| error.on(self.line))
    }

    fn entries(&self) -> &[Entry] {
        if let Kind::Table(entries) = &self.kind { entries } else { &[] }
    }

    fn into_entries(self) -> Vec<Entry> {
        if let Kind::Table(entries) = self.kind { entries } else { Vec::new() }
    }
}

impl SpecError {
    fn new(problem: String) -> Self {
        Self { line: 0, key: String::new(), problem, missing: false }
    }

    /// The error with a line, if it has none yet.
    pub(super) fn on(mut self, line: u64) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }

    /// The error with its key below another key or position.
    pub(super) fn below(mut self, segment: &str) -> Self {
        let dot = if self.key.is_empty() || self.key.starts_with('[') { "" } else { "." };
        self.key = format!("{segment}{dot}{}", self.key);
        self
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if !self.key.is_empty() {
            write!(f, ", `{}`", self.key)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl de::Error for SpecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let similar = expected.iter().map(|known| (strsim::jaro_winkler(field, known), known));
        let nearest = similar
            .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
            .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)));
        Self::new(match nearest {
            Some((_, known)) => format!("there is no such key; the nearest is `{known}`"),
            None => format!("there is no such key; there are {}", expected.join(", ")),
        })
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: true, ..Self::new(format!("`{field}` is missing")) }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), kind: value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let value = map.next_value()?;
            entries.push(Entry { key: key.value, line: key.referenced.line(), value });
        }
        Ok(Kind::Table(entries))
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = SpecError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        match &self.kind {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool(value) => visitor.visit_bool(*value),
            Kind::Signed(value) => visitor.visit_i64(*value),
            Kind::Unsigned(value) => visitor.visit_u64(*value),
            Kind::Float(value) => visitor.visit_f64(*value),
            Kind::Text(value) => visitor.visit_borrowed_str(value),
            Kind::List(items) => visitor.visit_seq(Items { items, at: 0 }),
            Kind::Table(entries) => visitor.visit_map(Entries { entries, value: None }),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        if let Kind::Text(text) = &self.kind
            && let Some(value) = truth(text)
        {
            return visitor.visit_bool(value);
        }
        self.deserialize_any(visitor)
    }

    /// Reads a count; `1.0` is one, too.
    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        // A whole float is printed without a point, and only such a text can be parsed as an integer.
        if let Kind::Float(value) = &self.kind
            && let Ok(whole) = value.to_string().parse()
        {
            return visitor.visit_u64(whole);
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SpecError> {
        if matches!(self.kind, Kind::Null) {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        visitor.visit_newtype_struct(self)
    }

    /// Reads a name, as no enum of a specification carries a value.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SpecError> {
        let Kind::Text(value) = &self.kind else { return self.deserialize_any(visitor) };
        visitor.visit_enum(value.as_str().into_deserializer())
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The boolean that a word stands for in YAML 1.1, which AgentCI reads.
fn truth(word: &str) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    if is(&["true", "yes", "on"]) {
        Some(true)
    } else if is(&["false", "no", "off"]) {
        Some(false)
    } else {
        None
    }
}

/// The items of a list; an error gets its position.
struct Items<'de> {
    items: &'de [Node],
    at: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = SpecError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, SpecError> {
        let Some(item) = self.items.get(self.at) else { return Ok(None) };
        let segment = format!("[{}]", self.at);
        self.at += 1;
        seed.deserialize(item).map(Some).map_err(|error| error.on(item.line).below(&segment))
    }
}

/// The entries of a table; an error gets its key.
struct Entries<'de> {
    entries: &'de [Entry],
    value: Option<&'de Entry>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = SpecError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, SpecError> {
        let Some((entry, rest)) = self.entries.split_first() else { return Ok(None) };
        self.entries = rest;
        self.value = Some(entry);
        let key = entry.key.as_str().into_deserializer();
        let place = |error: SpecError| error.on(entry.line).below(&entry.key);
        seed.deserialize(key).map(Some).map_err(place)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, SpecError> {
        // Serde asks for a value after each key.
        let entry =
            self.value.take().ok_or_else(|| SpecError::new("a key is missing".to_owned()))?;
        let place = |error: SpecError| error.on(entry.value.line).below(&entry.key);
        seed.deserialize(&entry.value).map_err(place)
    }
}
