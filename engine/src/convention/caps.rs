//! Cuts names and texts to their limits.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Conventions;
use crate::span::{IdHash, Text, Violation};

/// Cuts the names and texts of one span, record, resource or report, and notes whether any had to be cut.
#[derive(Debug)]
pub struct Caps<'c> {
    pub(super) conventions: &'c Conventions,
    names: Cell<bool>,
    texts: Cell<bool>,
}

impl Conventions {
    /// Makes the caps of one span, record, resource or report.
    pub fn caps(&self) -> Caps<'_> {
        Caps { conventions: self, names: Cell::default(), texts: Cell::default() }
    }
}

impl Caps<'_> {
    /// A name, cut at `convention.max_name_bytes`.
    pub fn name<'v>(&self, name: &'v str) -> &'v str {
        capped(name, self.conventions.options.max_name_bytes, &self.names)
    }

    /// An id that tells things apart, kept as [`id_within`] `convention.max_name_bytes`.
    pub fn id<'v>(&self, id: &'v str) -> Cow<'v, str> {
        let kept = id_within(id, self.conventions.options.max_name_bytes);
        self.names.set(self.names.get() || matches!(kept, Cow::Owned(_)));
        kept
    }

    /// A shared id, kept as [`Self::id`].
    pub(super) fn shared_id(&self, id: Arc<str>) -> Arc<str> {
        match self.id(&id) {
            Cow::Borrowed(_) => id,
            Cow::Owned(kept) => Arc::from(kept),
        }
    }

    /// An id that is only compared, kept as [`Self::id`].
    pub(super) fn hashed_id(&self, id: &str) -> IdHash {
        IdHash::from(&*self.id(id))
    }

    /// A shared name, cut at `convention.max_name_bytes`.
    pub fn shared(&self, name: Arc<str>) -> Arc<str> {
        let kept = self.name(&name);
        if kept.len() == name.len() { name } else { Arc::from(kept) }
    }

    /// Names of a list, which are cut one by one; together they are cut as a text.
    pub(super) fn names(&self, names: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let names = names.into_iter().map(|name| self.shared(name));
        self.list(names.map(|name| (name.len(), name)))
    }

    /// Violations, of names that are cut; together they are cut as a text.
    pub(super) fn violations(&self, violations: Vec<Violation>) -> Vec<Violation> {
        let cut = violations.into_iter().map(|Violation { constraint, severity }| Violation {
            constraint: self.shared(constraint),
            severity: severity.map(|severity| self.shared(severity)),
        });
        self.list(
            cut.map(|one| {
                (one.constraint.len() + one.severity.as_deref().map_or(0, str::len), one)
            }),
        )
    }

    /// The first items of a list, which with what an item takes beside its bytes have `convention.max_text_bytes`.
    fn list<T>(&self, items: impl Iterator<Item = (usize, T)>) -> Vec<T> {
        let mut left = self.conventions.options.max_text_bytes;
        let mut kept = Vec::new();
        for (bytes, item) in items {
            let Some(rest) = left.checked_sub(bytes + ITEM_BYTES) else {
                self.texts.set(true);
                break;
            };
            left = rest;
            kept.push(item);
        }
        kept
    }

    /// The whole words of a text, cut at `convention.max_text_bytes`.
    pub(super) fn words<'v>(&self, text: &'v str) -> &'v str {
        let kept = whole_words(text, self.conventions.options.max_text_bytes);
        self.texts.set(self.texts.get() || kept.len() < text.len());
        kept
    }

    /// A text, cut at `convention.max_text_bytes`.
    pub(super) fn text(&self, text: Text) -> Text {
        let kept = self.words(&text.text);
        if kept.len() == text.text.len() { text } else { Text { text: Arc::from(kept), ..text } }
    }

    /// An input, cut as a text, without its words unless texts are kept.
    pub(super) fn input(&self, text: Text) -> Text {
        let text = self.text(text);
        if self.conventions.options.keep_texts { text } else { text.unread() }
    }

    /// What was cut, as reasons of a repair: `name_cut`, `text_cut`.
    pub fn cuts(&self) -> Vec<&'static str> {
        let cuts = [("name_cut", &self.names), ("text_cut", &self.texts)];
        cuts.into_iter().filter_map(|(why, cut)| cut.get().then_some(why)).collect()
    }
}

/// Bytes that an item of a list takes beside its own.
const ITEM_BYTES: usize = 32;

/// At most `max` bytes of a text, cut before the word that they would break off in, unless that is too long to be one: half of a
/// key could not be recognised as a key.
pub fn whole_words(text: &str, max: usize) -> &str {
    let of_word = |c: char| c.is_alphanumeric() || "-_.~+/=%".contains(c);
    let (beginning, rest) = text.split_at(text.floor_char_boundary(max));
    if !rest.starts_with(of_word) {
        return beginning;
    }
    let before = beginning.trim_end_matches(of_word);
    let is_word = !before.is_empty() && beginning.len() - before.len() <= MAX_WORD_BYTES;
    if is_word { before } else { beginning }
}

/// Length of the longest key that is expected, in bytes: some tokens are whole documents.
const MAX_WORD_BYTES: usize = 4_096;

/// An id of at most `max` bytes, which are 16 at least. A longer one keeps its beginning and ends in a hash of the whole id, so that ids
/// that only begin alike stay different ones.
pub fn id_within(id: &str, max: usize) -> Cow<'_, str> {
    if id.len() <= max {
        return Cow::Borrowed(id);
    }
    let beginning = &id[..id.floor_char_boundary(max.saturating_sub(HASH_BYTES))];
    Cow::Owned(format!("{beginning}~{:015x}", xxh3_64(id.as_bytes()) >> 4))
}

/// Bytes of the mark and the hash that a long id ends in.
const HASH_BYTES: usize = 16;

/// A name cut to at most `max` bytes, between two characters; notes in `cut` whether it was longer.
fn capped<'v>(name: &'v str, max: usize, cut: &Cell<bool>) -> &'v str {
    let kept = &name[..name.floor_char_boundary(max)];
    cut.set(cut.get() || kept.len() < name.len());
    kept
}
