//! Reads packed spans.

use std::iter;
use std::sync::Arc;

use super::{
    Before, EXTRA_TEXT, FAILED, IN_PLACE, IN_UNITS, LONG_TEXT, NO_TEXT, OPERATIONS, PARENT,
    SAME_PARENT, SHORT_TEXT, STATUSES, Spans,
};
use crate::engine::bytes;
use crate::engine::math::Quanta;
use crate::engine::span::{Attempt, SpanId, Timestamp, Tokens};
use crate::engine::trace::seen::{Asked, Model, Said, Seen, Session, Told, Tool};

/// Reads spans in order of arrival.
pub(super) struct Reader<'a> {
    spans: &'a Spans,
    at: usize,
    bytes: &'a [u8],
    texts: &'a [Arc<str>],
    extra: &'a [Arc<str>],
    values: &'a [u64],
    before: Before,
    // Whether the texts of the span stand where they are read; else they are among the names.
    in_place: bool,
}

impl<'a> Iterator for Reader<'a> {
    type Item = Seen<'a>;

    fn next(&mut self) -> Option<Seen<'a>> {
        let span_id = *self.spans.ids.get(self.at)?;
        self.at += 1;
        self.span(span_id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.spans.ids.len().saturating_sub(self.at);
        (left, Some(left))
    }
}

impl<'a> Reader<'a> {
    /// Begins with the first.
    pub(super) fn new(spans: &'a Spans) -> Self {
        Self {
            spans,
            at: 0,
            bytes: &spans.bytes,
            texts: &spans.texts,
            extra: &spans.extra,
            values: &spans.values,
            before: Before::default(),
            in_place: true,
        }
    }

    fn span(&mut self, span_id: SpanId) -> Option<Seen<'a>> {
        let head = self.number()?;
        self.in_place = head & IN_PLACE != 0;
        let has = self.number()?;
        let has = |at: u32| has & 1 << at != 0;
        let origin = self.spans.origins.get(self.place()?)?;
        let parent = match (head & PARENT != 0, head & SAME_PARENT != 0) {
            (false, _) => None,
            (true, true) => self.before.parent,
            (true, false) => Some(SpanId(self.take()?)),
        };
        let (start, end) = if head & IN_UNITS != 0 {
            let mut from = bytes::Reader(self.bytes);
            let start = from.apart(self.before.start);
            let end = start.wrapping_add(from.time());
            self.bytes = from.0;
            (start, end)
        } else {
            let start = self.before.start.wrapping_add(self.signed()?.cast_unsigned());
            (start, start.wrapping_add(self.number()?))
        };
        self.before = Before { start, parent };
        Some(Seen {
            span_id,
            parent,
            start: Timestamp(start),
            end: Timestamp(end),
            operation: *OPERATIONS.get(usize::try_from(head & 7).ok()?)?,
            status: *STATUSES.get(usize::try_from(head >> 3 & 3).ok()?)?,
            failed: head & FAILED != 0,
            scope: origin.scope,
            resource: &origin.resource,
            name: self.optional(has(0), Self::name)?.unwrap_or_default(),
            agent_name: self.optional(has(1), Self::name)?,
            agent_version: self.optional(has(2), Self::name)?,
            environment: self.optional(has(3), Self::name)?,
            session: self.optional(has(4), Self::session)?,
            session_in_json: self.optional(has(5), Self::session)?,
            user: self.optional(has(6), Self::name)?,
            tool: self.optional(has(7), Self::tool)?,
            model: self.optional(has(8), Self::model)?,
            attempt: self.optional(has(9), Self::attempt)?,
            input: self.optional(has(10), Self::said)?,
            output: self.optional(has(11), Self::said)?,
            at: 0,
        })
    }

    /// Reads what is there; `None` where that is not what was written.
    #[inline]
    fn optional<T>(
        &mut self,
        there: bool,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if there { read(self).map(Some) } else { Some(None) }
    }

    fn session(&mut self) -> Option<Session<'a>> {
        Some(Session { attribute: self.name()?, id: self.name()? })
    }

    fn attempt(&mut self) -> Option<&'a Attempt> {
        self.spans.attempts.get(self.place()?)
    }

    fn said(&mut self) -> Option<Said<'a>> {
        let [rank] = self.take()?;
        Some(Said { rank, text: self.text()? })
    }

    fn tool(&mut self) -> Option<Tool<'a>> {
        let has = self.number()?;
        Some(Tool {
            name: self.optional(has & 1 != 0, Self::name)?,
            call_id: self.optional(has & 2 != 0, Self::hash)?,
            arguments: self.optional(has & 4 != 0, Self::arguments)?,
            result: self.optional(has & 8 != 0, Self::hash)?,
            phantom: has & 16 != 0,
        })
    }

    fn arguments(&mut self) -> Option<Asked<'a>> {
        let hash = self.hash()?;
        let count = self.place()?;
        let (values, rest) = self.values.split_at_checked(count)?;
        self.values = rest;
        Some(Asked { hash, values, text: self.text()? })
    }

    fn model(&mut self) -> Option<Model<'a>> {
        let has = self.number()?;
        let has = |at: u32| has & 1 << at != 0;
        let (name, response_id) =
            (self.optional(has(0), Self::name)?, self.optional(has(1), Self::hash)?);
        let tokens = Tokens {
            input: self.optional(has(2), Self::number)?,
            cached: self.optional(has(3), Self::number)?,
            output: self.optional(has(4), Self::number)?,
        };
        let cost = self.optional(has(5), Self::signed)?.map(Quanta);
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        if has(6) {
            let count = self.place()?;
            calls = iter::repeat_with(|| self.tool()).take(count).collect::<Option<_>>()?;
            let count = self.place()?;
            results = iter::repeat_with(|| self.told()).take(count).collect::<Option<_>>()?;
        }
        let asked_by_user = has(7).then_some(has(8));
        Some(Model { name, response_id, tokens, cost, calls, results, asked_by_user })
    }

    fn told(&mut self) -> Option<Told> {
        let has = self.number()?;
        Some(Told {
            call_id: self.optional(has & 1 != 0, Self::hash)?,
            failed: has & 2 != 0,
            hash: self.optional(has & 4 != 0, Self::hash)?,
        })
    }

    fn name(&mut self) -> Option<&'a str> {
        let at = self.place()?;
        self.spans.written(at)
    }

    fn text(&mut self) -> Option<Option<&'a str>> {
        let how = self.number()?;
        if how == NO_TEXT {
            return Some(None);
        }
        if !self.in_place {
            return self.spans.written(usize::try_from(how - 1).ok()?).map(Some);
        }
        if how == LONG_TEXT {
            let (text, rest) = self.texts.split_first()?;
            self.texts = rest;
            return Some(Some(text));
        }
        if how == EXTRA_TEXT && self.spans.forgone {
            return Some(None);
        }
        if how == EXTRA_TEXT {
            let (text, rest) = self.extra.split_first()?;
            self.extra = rest;
            return Some(Some(text));
        }
        let (text, rest) = self.bytes.split_at_checked(usize::try_from(how - SHORT_TEXT).ok()?)?;
        self.bytes = rest;
        std::str::from_utf8(text).ok().map(Some)
    }

    fn hash(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn place(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        // Most are places, flags and short times.
        if let [byte @ ..0x80, rest @ ..] = self.bytes {
            self.bytes = rest;
            return Some(u64::from(*byte));
        }
        self.long_number()
    }

    fn long_number(&mut self) -> Option<u64> {
        let mut number = 0;
        let mut shift = 0;
        loop {
            let [byte] = self.take()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }
}
