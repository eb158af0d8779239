//! The spans of a trace for which nothing comes at the moment, as part of other bytes: names that traces have in common are
//! numbers, and where all spans come from is kept beside them.

use std::mem;
use std::sync::Arc;

use super::{Before, Origin, Spans};
use crate::engine::bytes::{Reader, Writer};
use crate::engine::span::{Resource, SpanId};
use crate::engine::trace::names::Names;

/// How the id of a span is written: as it is, or else its place among the ids, from this number on.
const UNKNOWN: u64 = 0;
const KNOWN: u64 = 1;

/// The id of a span as it is read.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum ReadId {
    /// As it was written.
    As(SpanId),
    /// Its place among the ids.
    At(usize),
}

impl Spans {
    /// Where all of them come from; `None` if they do not rest: if that is not one place, or they hold what few traces do.
    pub fn rests(&self) -> Option<&Arc<Resource>> {
        let (first, others) = self.origins.split_first()?;
        let one = others.iter().all(|other| other.resource == first.resource);
        (one && self.attempts.is_empty()).then_some(&first.resource)
    }

    /// Writes the id of a span, which mostly is one of these.
    pub(in crate::engine) fn write_id(&self, id: SpanId, to: &mut Writer) {
        match self.ids.iter().position(|other| *other == id) {
            Some(at) => to.number(KNOWN + at as u64),
            None => {
                to.number(UNKNOWN);
                to.raw(&id.0);
            }
        }
    }

    /// Reads it.
    pub(in crate::engine) fn read_id(from: &mut Reader<'_>) -> ReadId {
        match from.number() {
            UNKNOWN => ReadId::As(SpanId(from.array())),
            at => ReadId::At(usize::try_from(at - KNOWN).unwrap_or(usize::MAX)),
        }
    }

    /// The id that was read.
    pub(in crate::engine) fn id(&self, read: ReadId) -> Option<SpanId> {
        match read {
            ReadId::As(id) => Some(id),
            ReadId::At(at) => self.ids.get(at).copied(),
        }
    }

    /// Takes the long texts out, which are kept as they are: nobody has to copy them.
    pub fn take_texts(&mut self) -> [Vec<Arc<str>>; 2] {
        self.extra_bytes = 0;
        [&mut self.texts, &mut self.extra].map(mem::take)
    }

    /// Puts them back.
    pub fn put_texts(&mut self, texts: [Vec<Arc<str>>; 2]) {
        [self.texts, self.extra] = texts;
        self.count_texts();
    }

    /// Fills in what is not written down.
    pub fn count_texts(&mut self) {
        self.extra_bytes = self.extra.iter().map(|text| text.len()).sum();
    }

    /// Writes spans that rest, without their long texts; `base` is a time near theirs.
    pub(in crate::engine) fn write(&self, base: u64, names: &mut Names, to: &mut Writer) {
        to.number(self.ids.len() as u64);
        self.ids.iter().for_each(|id| to.raw(&id.0));
        to.bytes(&self.bytes);
        to.number(self.ends.len() as u64);
        for at in 0..self.ends.len() {
            names.write(self.written(at).unwrap_or_default(), to);
        }
        to.number(u64::from(self.forgone));
        to.number(self.values.len() as u64);
        self.values.iter().for_each(|value| to.raw(&value.to_le_bytes()));
        to.number(self.origins.len() as u64);
        self.origins.iter().for_each(|origin| to.raw(&origin.scope.to_le_bytes()));
        to.apart(base, self.before.start);
        to.number(u64::from(self.before.parent.is_some()));
        self.before.parent.into_iter().for_each(|parent| self.write_id(parent, to));
    }

    /// Reads them; `resource` is where they come from.
    pub(in crate::engine) fn read(
        base: u64,
        resource: &Arc<Resource>,
        names: &Names,
        from: &mut Reader<'_>,
    ) -> Self {
        let ids: Vec<SpanId> = (0..from.size()).map(|_| SpanId(from.array())).collect();
        let bytes = from.bytes().to_vec();
        let mut spans = Self { ids, bytes, ..Self::default() };
        let count = from.size();
        spans.ends.reserve_exact(count);
        for _ in 0..count {
            spans.write_text(names.read(from));
        }
        spans.forgone = from.number() > 0;
        spans.values = (0..from.size()).map(|_| u64::from_le_bytes(from.array())).collect();
        let count = from.size();
        let origin =
            |_| Origin { resource: Arc::clone(resource), scope: u64::from_le_bytes(from.array()) };
        spans.origins = (0..count).map(origin).collect();
        let start = from.apart(base);
        let parent = (from.number() > 0).then(|| Self::read_id(from));
        let parent = parent.and_then(|parent| spans.id(parent));
        spans.before = Before { start, parent };
        spans
    }
}
