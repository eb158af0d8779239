//! The index from attribute names to the lines that read them: each attribute of a span is looked up once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::iter;

use super::draft::Draft;
use super::lines::Concept;
use super::plan::PlanStep;
use super::raw::{RawAttributes, RawScope, RawSpan, RawValue};
use super::{CONVENTIONS, Mark, Trigger, custom, evaluation};
use crate::options::ConventionOptions;

/// All lines of all conventions and of the configuration.
#[derive(Debug)]
pub(super) struct Index {
    // Invariant: in the order in which they are applied.
    rules: Vec<Rule>,
    keys: Keys,
    session_json_keys: Vec<(String, String)>,
    /// Conventions without marks, which are always read; conventions are bits here and below.
    always: u64,
    /// Conventions whose code runs on any span.
    asked: u64,
    /// Conventions whose code looks for events.
    by_event: u64,
    /// Span names that the code of conventions looks for.
    by_name: Vec<(&'static str, u64)>,
    // The lengths of these, as bits.
    name_lengths: u64,
    /// Beginnings of keys that the code of conventions looks for.
    by_start: Vec<(&'static str, u64)>,
    // By first byte: the entries of `by_start` that begin with it, as bits.
    starts: [u64; 256],
    // Beginnings of scope names that identify a convention.
    by_scope: Vec<(&'static str, u64)>,
}

/// All keys that are used.
#[derive(Debug)]
struct Keys {
    uses: HashMap<String, Uses, BuildHasherDefault<KeyHasher>>,
    // By first byte: the lengths of keys that begin with it, as bits. Most keys of spans are used by no convention.
    lengths: [u64; 256],
}

/// The uses of a key, by lines and by code.
#[derive(Debug, Default)]
struct Uses {
    lines: Vec<Use>,
    asked: u64,
}

/// The bit, after those of the conventions, of the code that finds scores on spans.
const SCORES: u64 = 1 << CONVENTIONS.len();

/// One line of a convention or of the configuration.
#[derive(Debug)]
struct Rule {
    concept: Concept,
    rank: u8,
    key: String,
    /// The convention, by its place in the list; `None`: the configuration.
    convention: Option<usize>,
}

/// What an attribute is used for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Use {
    /// A mark of a convention: the convention's place in the list.
    Mark(usize),
    /// A session key: its place in the list.
    Session(usize),
    /// JSON that may hold a session key: that key's place in the list.
    SessionJson(usize),
    /// What a line reads: the line's place among the rules.
    Rule(usize),
}

/// What was found among the attributes of one span.
pub(super) struct Hits<'i> {
    index: &'i Index,
    // Invariant: sorted by use; of equal keys the last attribute, which holds, is first.
    found: Vec<Found>,
    recognised: u64,
    // Conventions whose code has something to read, as bits.
    asked: u64,
}

/// A use of an attribute, and the attribute's position from the end, in one number, as many are sorted for each span.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Found(u64);

impl Found {
    /// Bits of a place: no span has more attributes than they can count.
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

    /// A number; the numbers of uses are in the order of the uses.
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

/// Hashes keys by their length, beginning, middle and end; the keys are fixed before any span arrives, so no sender can make them
/// collide.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl KeyHasher {
    /// The hash of a list of keys, from the hash of all but its last key.
    #[inline]
    pub(super) fn next(before: u64, key: &[u8]) -> u64 {
        let mut hasher = Self(before);
        hasher.write(key);
        hasher.0
    }

    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let middle = bytes.get(bytes.len() / 2..).unwrap_or_default();
        let words = [bytes.first_chunk(), middle.first_chunk(), bytes.last_chunk()];
        let mut hash = self.0 ^ bytes.len() as u64;
        if let [Some(first), middle, Some(last)] = words {
            for word in [first, middle.unwrap_or(last), last] {
                hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(Self::ODD);
                hash ^= hash >> 32;
            }
        } else {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(Self::ODD);
                hash ^= hash >> 32;
            }
        }
        self.0 = hash.wrapping_mul(Self::ODD);
    }

    // The byte that ends a string is ignored, as the length is in the hash.
    #[inline]
    fn write_u8(&mut self, _byte: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Index {
    pub(super) fn new(options: &ConventionOptions) -> Self {
        let mut rules = custom::rules(&options.attributes)
            .map(|(concept, key)| Rule { concept, rank: 0, key: key.to_owned(), convention: None })
            .collect::<Vec<_>>();
        let mut keys = Keys { uses: HashMap::default(), lengths: [0; 256] };
        let mut always = 0;
        for (at, convention) in CONVENTIONS.iter().enumerate() {
            rules.extend(convention.lines.iter().map(|line| Rule {
                concept: line.concept,
                rank: line.rank,
                key: line.key.to_owned(),
                convention: Some(at),
            }));
            if convention.marks.is_empty() {
                always |= 1 << at;
            }
            for mark in convention.marks {
                if let Mark::Key(key) = mark {
                    keys.of(key).lines.push(Use::Mark(at));
                }
            }
        }
        rules.sort_by_key(|rule| (rule.concept.order(), rule.rank));
        for (at, rule) in rules.iter().enumerate() {
            keys.of(&rule.key).lines.push(Use::Rule(at));
        }
        for (at, key) in options.session_keys.iter().enumerate() {
            keys.of(key).lines.push(Use::Session(at));
        }
        let mut session_json_keys = Vec::new();
        for (at, key) in options.session_json_keys.iter().enumerate() {
            let parts = key.strip_suffix('}').and_then(|key| key.split_once('{'));
            let (attribute, inner) = parts.unwrap_or((key, ""));
            keys.of(attribute).lines.push(Use::SessionJson(at));
            session_json_keys.push((key.clone(), inner.to_owned()));
        }
        let mut index = Self {
            rules,
            keys,
            session_json_keys,
            always,
            asked: 0,
            by_event: 0,
            by_name: Vec::new(),
            name_lengths: 0,
            by_start: Vec::new(),
            starts: [0; 256],
            by_scope: Vec::new(),
        };
        index.look();
        index
    }

    /// Notes the triggers of each convention's code.
    fn look(&mut self) {
        for (at, convention) in CONVENTIONS.iter().enumerate() {
            let looks_for = convention.looks_for;
            if looks_for.is_empty() && !convention.marks.is_empty() {
                self.asked |= 1 << at;
            }
            self.look_for(1 << at, looks_for);
            self.by_scope.extend(convention.marks.iter().filter_map(|mark| match mark {
                Mark::Scope(start) => Some((*start, 1 << at)),
                Mark::Key(_) => None,
            }));
        }
        self.look_for(SCORES, evaluation::LOOKS_FOR);
    }

    fn look_for(&mut self, asked: u64, looks_for: &[Trigger]) {
        for look in looks_for {
            match look {
                Trigger::Key(key) => self.keys.of(key).asked |= asked,
                Trigger::Keys(start) => {
                    self.starts[first(start)] |= 1 << self.by_start.len();
                    self.by_start.push((start, asked));
                }
                Trigger::Event => self.by_event |= asked,
                Trigger::Span(name) => {
                    self.by_name.push((name, asked));
                    self.name_lengths |= length(name.as_bytes());
                }
            }
        }
    }

    /// Whether the code of a convention looks for spans of this name.
    pub(super) fn looks_for_name(&self, name: &[u8]) -> bool {
        self.name_lengths & length(name) != 0
            && self.by_name.iter().any(|(known, _)| known.as_bytes() == name)
    }

    /// Conventions that are always read.
    pub(super) fn always(&self) -> u64 {
        self.always
    }

    /// The conventions whose code looks for keys that begin as this one does.
    fn asked_by_start(&self, key: &str) -> u64 {
        let (mut left, mut asked) = (self.starts[first(key)], 0);
        while left != 0 {
            let found = usize::try_from(left.trailing_zeros()).ok();
            let start = found.and_then(|at| self.by_start.get(at));
            if let Some((_, conventions)) = start.filter(|(start, _)| key.starts_with(start)) {
                asked |= conventions;
            }
            left &= left.wrapping_sub(1);
        }
        asked
    }

    pub(super) fn ask_all(&mut self) {
        self.asked = u64::MAX;
    }

    /// Conventions that are always read, and those that a scope's name identifies.
    pub(super) fn by_scope(&self, scope: &RawScope<'_>) -> u64 {
        let told = self.by_scope.iter().filter(|(start, _)| scope.name.starts_with(start));
        told.fold(self.always, |all, (_, convention)| all | convention)
    }
}

impl Keys {
    /// The uses of a key, to add to.
    fn of(&mut self, key: &str) -> &mut Uses {
        self.lengths[first(key)] |= length(key.as_bytes());
        self.uses.entry(key.to_owned()).or_default()
    }

    #[inline]
    fn get(&self, key: &str) -> Option<&Uses> {
        let may_be = self.lengths[first(key)] & length(key.as_bytes()) != 0;
        if may_be { self.uses.get(key) } else { None }
    }
}

fn first(key: &str) -> usize {
    key.as_bytes().first().map_or(0, |byte| usize::from(*byte))
}

fn length(key: &[u8]) -> u64 {
    1 << (key.len() % 64)
}

impl<'i> Hits<'i> {
    /// Looks all attributes up; `recognised` are the conventions that are read without a mark among the attributes.
    pub(super) fn new(
        index: &'i Index,
        attributes: &RawAttributes<'_>,
        mut recognised: u64,
    ) -> Self {
        let (mut found, mut asked) = (Vec::new(), index.asked);
        for (at, (key, value)) in attributes.iter().enumerate() {
            asked |= index.asked_by_start(key);
            if !matches!(value, RawValue::Null)
                && let Some(uses) = index.keys.get(key)
            {
                found.extend(uses.lines.iter().map(|used| Found::new(*used, at)));
                asked |= uses.asked;
            }
        }
        found.sort_unstable();
        found.dedup_by_key(|found| found.0 >> Found::PLACE);
        for found in &found {
            let Use::Mark(at) = found.used() else { break };
            recognised |= 1 << at;
        }
        Self { index, found, recognised, asked }
    }

    /// Looks up attributes of something other than a span.
    pub(super) fn once(index: &'i Index, attributes: &RawAttributes<'_>) -> Self {
        Self::new(index, attributes, index.always())
    }

    /// Adds the conventions whose code is triggered by the events or the name of a span.
    pub(super) fn on(mut self, raw: &RawSpan<'_>) -> Self {
        if !raw.events.is_empty() {
            self.asked |= self.index.by_event;
        }
        let named = self.index.by_name.iter().filter(|(name, _)| *name == raw.name);
        self.asked |= named.fold(0, |all, (_, asked)| all | asked);
        self
    }

    /// Whether there may be scores on the span.
    pub(super) fn may_be_scored(&self) -> bool {
        self.asked & SCORES != 0
    }

    /// Whether code, apart from the lines, has something to read on the span.
    pub(super) fn asks_code(&self) -> bool {
        (self.recognised | SCORES) & self.asked != 0
    }

    /// Finds the operation of the span.
    pub(super) fn take_operation<'v>(&self, raw: &'v RawSpan<'_>, draft: &mut Draft<'v>)
    where
        'i: 'v,
    {
        for (rule, value) in self.rules(&raw.attributes) {
            if !matches!(rule.concept, Concept::Operation(_)) {
                break;
            }
            if draft.operation.wants(rule.rank) {
                rule.concept.take(rule.rank, &rule.key, value, draft);
                let name = rule.convention.map_or("custom", |at| CONVENTIONS[at].name);
                draft.convention.offer(rule.rank, draft.operation.get().map(|_| name));
            }
        }
        for convention in conventions(self.recognised & self.asked) {
            if let Some((rank, operation)) = (convention.operation)(raw) {
                draft.operation.offer(rank, operation);
                draft.convention.offer(rank, convention.name);
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
            let read = matches!(rule.concept, Concept::Operation(_));
            if !read && rule.concept.belongs_on(operation) {
                rule.concept.take(rule.rank, &rule.key, value, draft);
            }
        }
        for convention in conventions(self.recognised & self.asked) {
            (convention.read)(raw, draft);
        }
    }

    /// Reads the values of a resource that apply to all of its spans.
    pub(super) fn take_attempt<'v>(&self, attributes: &'v RawAttributes<'_>, draft: &mut Draft<'v>)
    where
        'i: 'v,
    {
        for (rule, value) in self.rules(attributes) {
            if rule.concept.order() >= Concept::Task.order() {
                rule.concept.take(rule.rank, &rule.key, value, draft);
            }
        }
    }

    /// The session keys that are present, best first.
    pub(super) fn sessions<'v>(
        &self,
        attributes: &'v RawAttributes<'v>,
    ) -> impl Iterator<Item = (&'v str, &'v RawValue<'v>)> {
        self.session_places().filter_map(|at| {
            let (key, value) = attributes.at(at)?;
            Some((key.as_ref(), value))
        })
    }

    /// The positions of the session keys that are present, best first.
    pub(super) fn session_places(&self) -> impl Iterator<Item = usize> {
        let is_session = |found: &&Found| matches!(found.used(), Use::Session(_));
        self.found.iter().filter(is_session).map(|found| found.at())
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

    /// The steps to apply, in order: lines, with the positions of what they read.
    pub(super) fn steps(&self) -> impl Iterator<Item = PlanStep> {
        self.lines().map(|(rule, at)| PlanStep { concept: rule.concept, rank: rule.rank, at })
    }

    /// The lines to apply, in order, with the values that they read.
    fn rules<'v>(
        &self,
        attributes: &'v RawAttributes<'v>,
    ) -> impl Iterator<Item = (&'i Rule, &'v RawValue<'v>)> {
        self.lines().filter_map(|(rule, at)| Some((rule, &attributes.at(at)?.1)))
    }

    /// The lines to apply, in order, with the positions of what they read.
    fn lines(&self) -> impl Iterator<Item = (&'i Rule, usize)> {
        let (rules, marked) = (&self.index.rules, self.recognised);
        self.found.iter().filter_map(move |found| {
            let Use::Rule(number) = found.used() else { return None };
            let rule = rules.get(number)?;
            let recognised = rule.convention.is_none_or(|at| marked & (1 << at) != 0);
            recognised.then_some((rule, found.at()))
        })
    }

    /// Names that mean no tool.
    pub(super) fn phantoms(&self) -> Vec<&'static str> {
        conventions(self.recognised).flat_map(|convention| convention.phantoms).copied().collect()
    }

    /// Whether a name means no tool, by any of the conventions.
    pub(super) fn phantom(&self, name: &str) -> bool {
        conventions(self.recognised).any(|convention| convention.phantoms.contains(&name))
    }
}

/// The conventions of these bits.
fn conventions(bits: u64) -> impl Iterator<Item = &'static super::Convention> {
    let mut left = bits;
    iter::from_fn(move || {
        let at = usize::try_from(left.trailing_zeros()).ok()?;
        // Clears the lowest bit.
        left &= left.wrapping_sub(1);
        CONVENTIONS.get(at)
    })
}
