//! The spans of a trace for which nothing comes at the moment, as part of other bytes: names that traces have in common are
//! numbers, and where all spans come from is kept beside them.

use std::sync::Arc;

use super::{Before, Origin, Spans};
use crate::engine::bytes::{Reader, Writer};
use crate::engine::span::{Resource, SpanId};
use crate::engine::trace::names::Names;

/// How the parent of the last span is written: not at all, as it is, or else its place among the ids, from this number on.
const NO_PARENT: u64 = 0;
const UNKNOWN: u64 = 1;
const KNOWN: u64 = 2;

impl Spans {
    /// Where all of them come from; `None` if they do not rest: if that is not one place, or they hold what few traces do.
    pub fn rests(&self) -> Option<&Arc<Resource>> {
        let (first, others) = self.origins.split_first()?;
        let one = others.iter().all(|other| other.resource == first.resource);
        (one && self.attempts.is_empty()).then_some(&first.resource)
    }

    /// Writes spans that rest.
    pub(in crate::engine) fn write(&self, names: &mut Names, to: &mut Writer) {
        to.number(self.ids.len() as u64);
        self.ids.iter().for_each(|id| to.raw(&id.0));
        to.bytes(&self.bytes);
        to.number(self.ends.len() as u64);
        for at in 0..self.ends.len() {
            names.write(self.written(at).unwrap_or_default(), to);
        }
        to.number(self.texts.len() as u64);
        self.texts.iter().for_each(|text| to.bytes(text.as_bytes()));
        to.number(self.values.len() as u64);
        self.values.iter().for_each(|value| to.raw(&value.to_le_bytes()));
        to.number(self.origins.len() as u64);
        self.origins.iter().for_each(|origin| to.raw(&origin.scope.to_le_bytes()));
        to.raw(&self.before.start.to_le_bytes());
        let Some(parent) = self.before.parent else { return to.number(NO_PARENT) };
        match self.ids.iter().position(|id| *id == parent) {
            Some(at) => to.number(KNOWN + at as u64),
            None => {
                to.number(UNKNOWN);
                to.raw(&parent.0);
            }
        }
    }

    /// Reads them; `resource` is where they come from.
    pub(in crate::engine) fn read(
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
        let count = from.size();
        let text = |_| Arc::from(String::from_utf8_lossy(from.bytes()));
        spans.texts = (0..count).map(text).collect();
        spans.values = (0..from.size()).map(|_| u64::from_le_bytes(from.array())).collect();
        let count = from.size();
        let origin =
            |_| Origin { resource: Arc::clone(resource), scope: u64::from_le_bytes(from.array()) };
        spans.origins = (0..count).map(origin).collect();
        let start = u64::from_le_bytes(from.array());
        let parent = match from.number() {
            NO_PARENT => None,
            UNKNOWN => Some(SpanId(from.array())),
            at => usize::try_from(at - KNOWN).ok().and_then(|at| spans.ids.get(at).copied()),
        };
        spans.before = Before { start, parent };
        spans
    }
}
