//! Later turns of a trace id.
//!
//! A conversation may be one trace, whatever the number of its turns. A turn that arrives while the trace can still change is part
//! of it. After that, spans with the same id that began after the end of the sealed turn belong to a later turn: a trace of its
//! own, in the same session, held under [`crate::span::TraceId::of_further_turn`]. Spans that began earlier are late. Their own
//! times decide, not the time of arrival, so the order in which the spans of a turn arrive makes no difference, and resent spans
//! begin no turn.
//!
//! A turn has begun once a span without a parent or an agent's span has arrived. If neither arrives until it would be sealed, its
//! spans belonged to the turn before, such as work that continues in the background after an answer: it is dropped as late, and no
//! message is sent.

use super::open_trace::{OpenTrace, State};
use super::sealed::Ending;
use super::{Assembler, Span, Timestamp, TraceKey};

impl Assembler {
    /// The trace to which spans with this id belong: its key, and the time after which spans must have begun to belong to it.
    pub(super) fn turn_of(&self, sent: TraceKey) -> (TraceKey, Timestamp) {
        let is_held = self.traces.get(sent).is_some_and(|held| held.state != State::Sealed);
        let sealed = if is_held { None } else { self.sealed.ending(sent) };
        // Turns from log records have ids of their own.
        let further = sealed.filter(|ending| {
            ending.turns < u16::MAX && sent.id.session_of_turn().is_none() && ending.end.0 > 0
        });
        further.map_or((sent, Timestamp(0)), |ending| (turn(sent, ending.turns), ending.end))
    }

    /// Applies spans with an id whose earlier turns are sealed; those that began after `end` belong to a later turn.
    pub(super) fn further_spans<'s>(
        &mut self,
        (sent, turn): (TraceKey, TraceKey),
        end: Timestamp,
        spans: impl Iterator<Item = &'s Span>,
        now: Timestamp,
    ) {
        let (own, late): (Vec<&Span>, Vec<&Span>) = spans.partition(|span| span.start > end);
        if !late.is_empty() {
            self.dropped(sent, late.into_iter(), now);
        }
        if !own.is_empty() {
            self.group_of(turn, own.into_iter(), now);
        }
    }

    /// The last turn of this id that a report of this time can be about.
    pub(super) fn reported_turn(&self, sent: TraceKey, time: Timestamp) -> TraceKey {
        let (next, end) = self.turn_of(sent);
        if next == sent || (end < time && self.traces.get(next).is_some_and(OpenTrace::has_begun)) {
            return next;
        }
        let turns = self.sealed.ending(sent).map_or(0, |ending| ending.turns);
        turn(sent, turns.saturating_sub(1))
    }

    /// The number of the turn that a trace with this key is if it is opened, given the id on its spans.
    pub(super) fn number_of_turn(&self, (sent, id): (TraceKey, TraceKey)) -> u16 {
        let sealed = if sent == id { None } else { self.sealed.ending(sent) };
        sealed.map_or(0, |ending| ending.turns)
    }

    /// Remembers that a trace is sealed, so that nothing more is accepted for it.
    pub(super) fn note_sealed(&mut self, id: TraceKey, ending: Ending) {
        let max = self.options.max_sealed_traces;
        let own = turn(id, ending.turns.saturating_sub(1));
        let mut forgotten = self.sealed.insert((own, ending), max, &self.shares);
        if own != id {
            // Reports name it by the id under which it was held.
            let one = Ending { turns: u16::MAX, ..ending };
            forgotten += self.sealed.insert((id, one), max, &self.shares);
        }
        self.counts.add_many("sealed_traces", "forgotten", forgotten);
    }
}

impl OpenTrace {
    /// Whether it is a first turn, or has a span that begins a later one.
    pub(super) fn has_begun(&self) -> bool {
        self.turn == 0 || self.begins()
    }
}

/// The key of a turn of an id; applied to that key again, the key of the id.
fn turn(sent: TraceKey, turn: u16) -> TraceKey {
    TraceKey { id: sent.id.of_further_turn(turn), ..sent }
}
