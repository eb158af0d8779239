//! Cuts names and texts to their limits.

use std::cell::Cell;
use std::sync::Arc;

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

    /// An id that is only compared, of at most `convention.max_name_bytes`.
    pub(super) fn id(&self, id: &str) -> IdHash {
        IdHash::from(self.name(id))
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

/// A name cut to at most `max` bytes, between two characters; notes in `cut` whether it was longer.
fn capped<'v>(name: &'v str, max: usize, cut: &Cell<bool>) -> &'v str {
    let kept = &name[..name.floor_char_boundary(max)];
    cut.set(cut.get() || kept.len() < name.len());
    kept
}
