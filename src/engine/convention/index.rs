//! From attribute names to the lines that read them: each attribute of a span is looked up once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::iter;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::draft::Draft;
use super::lines::Says;
use super::raw::{RawAttributes, RawScope, RawSpan, RawValue};
use super::{CONVENTIONS, Mark, custom};
use crate::engine::options::ConventionOptions;

/// All lines of all conventions and of the configuration.
#[derive(Debug)]
pub(super) struct Index {
    // Invariant: in the order in which they are taken.
    rules: Vec<Rule>,
    by_key: HashMap<String, Vec<Use>, BuildHasherDefault<KeyHasher>>,
    session_json_keys: Vec<(String, String)>,
    // By first byte: the lengths of keys that begin with it, as bits. Most keys are nobody's.
    lengths: [u64; 256],
    /// Conventions without marks.
    always: u64,
}

/// One line.
#[derive(Debug)]
struct Rule {
    says: Says,
    rank: u8,
    key: String,
    /// The convention, by its place in the list; `None`: the configuration.
    convention: Option<usize>,
}

/// What an attribute is used for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Use {
    /// It marks a convention.
    Mark(usize),
    /// It is a session key: its place in the list.
    Session(usize),
    /// Its JSON holds a session key: its place in the list.
    SessionJson(usize),
    /// It is what a line reads.
    Rule(usize),
}

/// What was found among the attributes of one span.
pub(super) struct Hits<'i> {
    index: &'i Index,
    // Invariant: sorted by use; of equal keys the last attribute, which holds, is first.
    found: Vec<Found>,
    recognised: u64,
}

/// An attribute that is used: its use, and its place from the end. One number, as many are sorted for each span.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Found(u64);

impl Found {
    /// Bits of a place: no span has as many attributes.
    const PLACE: u32 = 32;

    fn new(used: Use, at: usize) -> Self {
        let place = u64::from(u32::MAX) - at as u64;
        Self(used.code() << Self::PLACE | place)
    }

    fn used(self) -> Use {
        Use::of(self.0 >> Self::PLACE)
    }

    fn at(self) -> usize {
        let place = u64::from(u32::MAX) - (self.0 & u64::from(u32::MAX));
        usize::try_from(place).unwrap_or(usize::MAX)
    }
}

impl Use {
    /// Bits of a number in a list.
    const NUMBER: u32 = 28;

    /// A number that orders as uses do.
    fn code(self) -> u64 {
        let (kind, number) = match self {
            Self::Mark(number) => (0, number),
            Self::Session(number) => (1, number),
            Self::SessionJson(number) => (2, number),
            Self::Rule(number) => (3, number),
        };
        kind << Self::NUMBER | number as u64
    }

    fn of(code: u64) -> Self {
        let number = usize::try_from(code & ((1 << Self::NUMBER) - 1)).unwrap_or(usize::MAX);
        match code >> Self::NUMBER {
            0 => Self::Mark(number),
            1 => Self::Session(number),
            2 => Self::SessionJson(number),
            _ => Self::Rule(number),
        }
    }
}

/// Hashes keys; the keys are known before any span comes, so nobody can make them collide.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // What ends a string.
    fn write_u8(&mut self, byte: u8) {
        self.0 ^= u64::from(byte);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Index {
    pub(super) fn new(options: &ConventionOptions) -> Self {
        let mut rules = custom::rules(&options.attributes)
            .map(|(says, key)| Rule { says, rank: 0, key: key.to_owned(), convention: None })
            .collect::<Vec<_>>();
        let mut by_key: HashMap<String, Vec<Use>, BuildHasherDefault<KeyHasher>> =
            HashMap::default();
        let mut always = 0;
        for (at, convention) in CONVENTIONS.iter().enumerate() {
            rules.extend(convention.lines().iter().map(|line| Rule {
                says: line.says,
                rank: line.rank,
                key: line.key.to_owned(),
                convention: Some(at),
            }));
            if convention.marks().is_empty() {
                always |= 1 << at;
            }
            for mark in convention.marks() {
                if let Mark::Key(key) = mark {
                    by_key.entry((*key).to_owned()).or_default().push(Use::Mark(at));
                }
            }
        }
        rules.sort_by_key(|rule| (rule.says.order(), rule.rank));
        for (at, rule) in rules.iter().enumerate() {
            by_key.entry(rule.key.clone()).or_default().push(Use::Rule(at));
        }
        for (at, key) in options.session_keys.iter().enumerate() {
            by_key.entry(key.clone()).or_default().push(Use::Session(at));
        }
        let mut session_json_keys = Vec::new();
        for (at, key) in options.session_json_keys.iter().enumerate() {
            let parts = key.strip_suffix('}').and_then(|key| key.split_once('{'));
            let (attribute, inner) = parts.unwrap_or((key, ""));
            by_key.entry(attribute.to_owned()).or_default().push(Use::SessionJson(at));
            session_json_keys.push((key.clone(), inner.to_owned()));
        }
        let mut index = Self { rules, by_key, session_json_keys, lengths: [0; 256], always };
        let keys = index.rules.iter().map(|rule| rule.key.as_str());
        let marks = CONVENTIONS.iter().flat_map(|convention| convention.marks());
        let marks =
            marks.filter_map(|mark| if let Mark::Key(key) = mark { Some(*key) } else { None });
        let sessions = options.session_keys.iter().map(String::as_str);
        let inside = options.session_json_keys.iter();
        let inside =
            inside.flat_map(|key| [key.as_str(), key.split('{').next().unwrap_or_default()]);
        for key in keys.chain(marks).chain(sessions).chain(inside) {
            index.lengths[first(key)] |= length(key);
        }
        index
    }

    /// Whether a key may be one that is used.
    fn may_use(&self, key: &str) -> bool {
        self.lengths[first(key)] & length(key) != 0
    }

    /// Conventions that are always read.
    pub(super) fn always(&self) -> u64 {
        self.always
    }

    /// Conventions that are always read, and those that a scope's name tells.
    pub(super) fn by_scope(&self, scope: &RawScope<'_>) -> u64 {
        let told =
            |mark: &Mark| matches!(mark, Mark::Scope(start) if scope.name.starts_with(start));
        let conventions = CONVENTIONS.iter().enumerate();
        conventions
            .filter(|(_, convention)| !scope.name.is_empty() && convention.marks().iter().any(told))
            .fold(self.always, |all, (at, _)| all | 1 << at)
    }
}

fn first(key: &str) -> usize {
    key.as_bytes().first().map_or(0, |byte| usize::from(*byte))
}

fn length(key: &str) -> u64 {
    1 << (key.len() % 64)
}

impl<'i> Hits<'i> {
    /// Looks all attributes up; `recognised` are the conventions that are read without a mark among them.
    pub(super) fn new(index: &'i Index, attributes: &RawAttributes<'_>, recognised: u64) -> Self {
        let mut found = Vec::with_capacity(attributes.len() + 4);
        for (at, (key, value)) in attributes.iter().enumerate() {
            if index.may_use(key)
                && !matches!(value, RawValue::Null)
                && let Some(uses) = index.by_key.get(key.as_ref())
            {
                found.extend(uses.iter().map(|used| Found::new(*used, at)));
            }
        }
        found.sort_unstable();
        found.dedup_by_key(|found| found.0 >> Found::PLACE);
        let marks = found.iter().map_while(|found| match found.used() {
            Use::Mark(at) => Some(1 << at),
            Use::Session(_) | Use::SessionJson(_) | Use::Rule(_) => None,
        });
        let recognised = marks.fold(recognised, |all, mark| all | mark);
        Self { index, found, recognised }
    }

    /// Finds what the span is about.
    pub(super) fn take_operation<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>)
    where
        'i: 'v,
    {
        for (rule, value) in self.rules(&raw.attributes) {
            if !matches!(rule.says, Says::Operation(_)) {
                break;
            }
            if draft.operation.wants(rule.rank) {
                rule.says.take(rule.rank, (&rule.key, value), draft);
                let name = rule.convention.map_or("custom", |at| CONVENTIONS[at].name());
                draft.convention.offer(rule.rank, draft.operation.get().map(|_| name));
            }
        }
        for convention in self.conventions() {
            if let Some((rank, operation)) = convention.operation(raw) {
                draft.operation.offer(rank, operation);
                draft.convention.offer(rank, convention.name());
            }
        }
    }

    /// Reads everything else.
    pub(super) fn take_rest<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>)
    where
        'i: 'v,
    {
        let operation = draft.operation.get().copied().unwrap_or_default();
        for (rule, value) in self.rules(&raw.attributes) {
            let read = matches!(rule.says, Says::Operation(_));
            if !read && rule.says.belongs_on(operation) {
                rule.says.take(rule.rank, (&rule.key, value), draft);
            }
        }
        for convention in self.conventions() {
            convention.read(raw, draft);
        }
    }

    /// Reads what a resource may say for all of its spans.
    pub(super) fn take_attempt<'v>(&self, attributes: &'v RawAttributes<'_>, draft: &mut Draft<'v>)
    where
        'i: 'v,
    {
        for (rule, value) in self.rules(attributes) {
            if rule.says.order() >= Says::Task.order() {
                rule.says.take(rule.rank, (&rule.key, value), draft);
            }
        }
    }

    /// The session keys that are there, best first.
    pub(super) fn sessions<'v>(
        &self,
        attributes: &'v RawAttributes<'v>,
    ) -> impl Iterator<Item = (&'v str, &'v RawValue<'v>)> {
        self.found.iter().filter_map(|found| {
            let Use::Session(_) = found.used() else { return None };
            let (key, value) = attributes.at(found.at())?;
            Some((key.as_ref(), value))
        })
    }

    /// The JSON values that may hold a session key, best first: the key as configured, the name inside, the value.
    pub(super) fn session_json<'a>(
        &'a self,
        attributes: &'a RawAttributes<'_>,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a RawValue<'a>)> {
        self.found.iter().filter_map(|found| {
            let Use::SessionJson(number) = found.used() else { return None };
            let (key, inner) = self.index.session_json_keys.get(number)?;
            Some((key.as_str(), inner.as_str(), &attributes.at(found.at())?.1))
        })
    }

    /// The lines to take, in order, with the values that they read.
    fn rules<'v>(
        &self,
        attributes: &'v RawAttributes<'v>,
    ) -> impl Iterator<Item = (&'i Rule, &'v RawValue<'v>)> {
        let (rules, marked) = (&self.index.rules, self.recognised);
        self.found.iter().filter_map(move |found| {
            let Use::Rule(number) = found.used() else { return None };
            let rule = rules.get(number)?;
            let recognised = rule.convention.is_none_or(|at| marked & (1 << at) != 0);
            recognised.then_some((rule, &attributes.at(found.at())?.1))
        })
    }

    /// Whether a name stands for no tool, by any of the conventions.
    pub(super) fn phantom(&self, name: &str) -> bool {
        self.conventions().any(|convention| convention.phantoms().contains(&name))
    }

    fn conventions(&self) -> impl Iterator<Item = &'static dyn super::Convention> + '_ {
        let mut left = self.recognised;
        iter::from_fn(move || {
            let at = usize::try_from(left.trailing_zeros()).ok()?;
            // Clears the lowest bit.
            left &= left.wrapping_sub(1);
            CONVENTIONS.get(at).copied()
        })
    }
}
