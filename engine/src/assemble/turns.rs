//! Turns of agents that send log records, if only the order of the records separates them.
//!
//! A record belongs to the latest prompt of its session that is not later than the record, by their own times. If a prompt arrives
//! late, the records after it move from the turn before it. So the turns are the same in whatever order records arrive, as long as
//! they arrive within `late_horizon` of each other, and few batches with late prompts move the same record. A moved record leaves an
//! empty span behind, which replaces all others with its id.
//!
//! A turn ends with the next prompt of its session, or when it was quiet for `rootless_idle`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Assembler;
use super::memory_bounds::said_bytes;
use crate::span::{Operation, RECORD_SCOPE, Span, SpanId, Timestamp, TraceId};
use crate::tenants::{Shares, TenantHash, TraceKey, tenant_hash};

/// The sessions with known prompts.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Turns {
    tenants: BTreeMap<TenantHash, OfTenant>,
    // Sessions of all tenants.
    sessions: usize,
    // Total weight of the movable spans of all tenants.
    held: usize,
}

/// The sessions of one tenant.
#[derive(Debug, Default, Deserialize, Serialize)]
struct OfTenant {
    sessions: BTreeMap<u64, Session>,
    // Invariant: one entry for each session, by when it last got a span.
    quietest: BTreeSet<(Timestamp, u64)>,
    // Total weight of the movable spans of all its sessions.
    held: usize,
}

/// The time of a prompt, and its turn.
type Prompt = (Timestamp, TraceId);

/// The prompts of a session, and its movable spans.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Session {
    heard: Timestamp,
    prompts: BTreeSet<Prompt>,
    // Spans that only their time puts into their turn, as long as a late prompt may take them.
    movable: BTreeMap<(Timestamp, SpanId), Movable>,
    // Their total weight.
    held: usize,
    // Number of movable spans at which old ones are dropped: twice the number left the last time.
    #[serde(default)]
    room: usize,
}

/// A span that a late prompt may take.
#[derive(Debug, Deserialize, Serialize)]
struct Movable {
    arrived: Timestamp,
    /// How often it has moved.
    moves: u8,
    span: Span,
}

/// The effect of a span from a log record on the turns of its session.
#[derive(Debug, Default)]
struct Change {
    /// The span, with its turn.
    span: Span,
    /// Spans that move to another turn, each with the turn that it leaves.
    moved: Vec<(TraceId, Span)>,
    /// Turns that are followed by another prompt.
    followed: Vec<TraceId>,
    forgotten: Forgotten,
}

/// How many of each were forgotten for want of room.
#[derive(Clone, Copy, Debug, Default)]
struct Forgotten {
    sessions: u64,
    spans: u64,
    prompts: u64,
}

impl Assembler {
    /// Adds a span from a log record to the turn that the prompts of its session put it in.
    pub(super) fn add_record_span(&mut self, span: Span, now: Timestamp) {
        let limits = TurnBounds {
            now,
            late: now.before(self.options.late_horizon),
            old: now.before(self.options.trace_max_age),
            max_sessions: self.options.max_turn_sessions,
            max_spans: self.options.max_turn_spans,
        };
        let tenant = tenant_hash(span.resource.tenant.as_deref());
        let change = self.turns.apply(span, tenant, limits, &self.shares);
        for (left, span) in change.moved {
            self.span(void(&span, left), now);
            self.span(span, now);
        }
        self.span(change.span, now);
        for turn in change.followed {
            self.is_followed(TraceKey { id: turn, tenant }, now);
        }
        let Forgotten { sessions, spans, prompts } = change.forgotten;
        self.counts.add_many("turns", "session_forgotten", sessions);
        self.counts.add_many("turns", "span_settled", spans);
        self.counts.add_many("turns", "prompt_forgotten", prompts);
    }

    /// Notes that the session of a turn has a later prompt, so that the turn is no longer waited for.
    fn is_followed(&mut self, turn: TraceKey, now: Timestamp) {
        let Some(held) = self.traces.get_mut(turn).filter(|held| !held.followed) else { return };
        held.followed = true;
        held.shorten(now, &self.options);
        self.deadlines.reschedule(turn, held);
    }
}

/// Bounds of what is known.
#[derive(Clone, Copy, Debug)]
struct TurnBounds {
    now: Timestamp,
    /// Spans that arrived before this time are not moved.
    late: Timestamp,
    /// Sessions that got no span since this time are forgotten.
    old: Timestamp,
    max_sessions: usize,
    max_spans: usize,
}

impl Turns {
    /// Total weight of all movable spans.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Total weight of all movable spans, recomputed.
    #[cfg(test)]
    pub(super) fn weighs(&self) -> usize {
        let own = self.tenants.values();
        let sessions = own.flat_map(|own| own.sessions.values());
        let spans = sessions.flat_map(|session| session.movable.values());
        let weighed = spans.map(|movable| weight(&movable.span)).sum();
        assert_eq!(weighed, self.held);
        weighed
    }

    fn apply(
        &mut self,
        span: Span,
        tenant: TenantHash,
        limits: TurnBounds,
        shares: &Shares,
    ) -> Change {
        let mut change = Change { span, ..Change::default() };
        let Some(key) = change.span.trace_id.session_of_turn() else { return change };
        let own = self.tenants.entry(tenant).or_default();
        self.sessions += usize::from(own.touch(key, limits.now));
        let Some(session) = own.sessions.get_mut(&key) else { return change };
        let before = session.held;
        session.forget_old(limits.late);
        if change.span.parent.is_none() {
            session.begin(&mut change, limits.late);
        } else if change.span.trace_id.is_some_turn() {
            let turn = session.turn_at(change.span.end).unwrap_or(change.span.trace_id);
            hang(&mut change.span, turn);
            session.hold(change.span.clone(), limits.now);
        }
        let after = session.held;
        own.held = (own.held + after).saturating_sub(before);
        self.held = (self.held + after).saturating_sub(before);
        let (sessions, spans) = self.fit(limits, shares);
        change.forgotten.sessions += sessions;
        change.forgotten.spans += spans;
        change
    }

    /// Forgets what there is no room or no use for; returns how many sessions and spans were forgotten for want of room.
    fn fit(&mut self, limits: TurnBounds, shares: &Shares) -> (u64, u64) {
        let (mut sessions, mut spans) = (0, 0);
        while let Some(tenant) = self.quietest().filter(|(heard, _)| *heard < limits.old) {
            self.forget_quietest_of(tenant.1);
        }
        while self.sessions > limits.max_sessions {
            let held = self.tenants.iter().map(|(tenant, own)| (*tenant, own.sessions.len()));
            let Some(tenant) = shares.most_over_share(held) else { break };
            self.forget_quietest_of(tenant);
            sessions += 1;
        }
        while self.held > limits.max_spans {
            let held = self.tenants.iter().map(|(tenant, own)| (*tenant, own.held));
            let most_over_share = shares.most_over_share(held);
            let Some(own) = most_over_share.and_then(|tenant| self.tenants.get_mut(&tenant)) else {
                break;
            };
            let quota = shares.quota(most_over_share.unwrap_or_default(), limits.max_spans);
            let (settled, weighed) = own.settle(own.held.min(quota) / 2);
            self.held = self.held.saturating_sub(weighed);
            spans += settled as u64;
        }
        (sessions, spans)
    }

    /// When the quietest session last got a span, and its tenant.
    fn quietest(&self) -> Option<(Timestamp, TenantHash)> {
        let first = |own: &OfTenant| own.quietest.first().map(|(heard, _)| *heard);
        self.tenants.iter().filter_map(|(tenant, own)| Some((first(own)?, *tenant))).min()
    }

    fn forget_quietest_of(&mut self, tenant: TenantHash) {
        let Some(own) = self.tenants.get_mut(&tenant) else { return };
        if let Some(gone) = own.forget_quietest() {
            self.sessions = self.sessions.saturating_sub(1);
            self.held = self.held.saturating_sub(gone);
        }
        if own.sessions.is_empty() {
            self.tenants.remove(&tenant);
        }
    }
}

impl OfTenant {
    /// Notes that a session got a span; returns whether the session is new.
    fn touch(&mut self, key: u64, now: Timestamp) -> bool {
        let before = self.sessions.len();
        let session = self.sessions.entry(key).or_default();
        self.quietest.remove(&(session.heard, key));
        session.heard = session.heard.max(now);
        self.quietest.insert((session.heard, key));
        self.sessions.len() > before
    }

    /// Forgets the quietest session; returns the weight of its spans.
    fn forget_quietest(&mut self) -> Option<usize> {
        let (_, key) = self.quietest.pop_first()?;
        let gone = self.sessions.remove(&key).map_or(0, |session| session.held);
        self.held = self.held.saturating_sub(gone);
        Some(gone)
    }

    /// Leaves spans in their turns for good, those of the quietest sessions first, until the movable ones weigh at most `at_most`;
    /// returns how many, and their weight.
    fn settle(&mut self, at_most: usize) -> (usize, usize) {
        let (before, mut settled) = (self.held, 0);
        for (_, key) in &self.quietest {
            if self.held <= at_most {
                break;
            }
            let Some(session) = self.sessions.get_mut(key) else { continue };
            self.held = self.held.saturating_sub(std::mem::take(&mut session.held));
            settled += session.movable.len();
            session.movable.clear();
        }
        (settled, before - self.held)
    }
}

impl Session {
    /// Holds a span that arrived at `now` for as long as it may move.
    fn hold(&mut self, span: Span, now: Timestamp) {
        self.held += weight(&span);
        let place = (span.end, span.span_id);
        let before = self.movable.remove(&place);
        self.held -= before.as_ref().map_or(0, |before| weight(&before.span));
        let moves = before.map_or(0, |before| before.moves);
        self.movable.insert(place, Movable { arrived: now, moves, span });
    }

    /// Drops movable spans that arrived before `late`; only now and then, as it scans all of them.
    fn forget_old(&mut self, late: Timestamp) {
        if self.movable.len() >= self.room {
            self.movable.retain(|_, movable| movable.arrived >= late);
            self.held = self.movable.values().map(|movable| weight(&movable.span)).sum();
            self.room = 2 * self.movable.len().max(8);
        }
    }

    /// Begins the turn of a prompt, and ends the one before it; spans that arrived before `late` stay in the earlier turn.
    fn begin(&mut self, change: &mut Change, late: Timestamp) {
        let prompt = (change.span.start, change.span.trace_id);
        if !self.prompts.insert(prompt) {
            return;
        }
        let before = self.prompts.range(..prompt).next_back();
        let after = self.prompts.range(prompt..).nth(1).copied();
        change.followed.extend(before.map(|(_, turn)| *turn));
        change.followed.extend(after.map(|_| prompt.1));
        self.take(prompt, after, change, late);
        while self.prompts.len() > MAX_PROMPTS {
            let Some(gone) = self.prompts.pop_first() else { break };
            let next = self.prompts.first().copied();
            // Without that prompt it is not known which of the spans after it a late prompt would take.
            change.forgotten.spans += self.settle(gone.0, next, late, |_| true);
            change.forgotten.prompts += 1;
        }
    }

    /// Moves the spans between two prompts into the turn of the first, except for those that arrived before `late`. Those that have
    /// moved too often stay there for good.
    fn take(
        &mut self,
        prompt: Prompt,
        after: Option<Prompt>,
        change: &mut Change,
        late: Timestamp,
    ) {
        let from = (prompt.0, SpanId::default());
        let to = after.map(|(time, _)| (time, SpanId::default()));
        let mut some_stay = false;
        for (place, movable) in self.movable.range_mut(from..) {
            if to.is_some_and(|to| *place >= to) {
                break;
            }
            let left = movable.span.trace_id;
            if left != prompt.1 && movable.arrived >= late {
                hang(&mut movable.span, prompt.1);
                movable.moves = movable.moves.saturating_add(1);
                change.moved.push((left, movable.span.clone()));
            }
            some_stay |= movable.moves >= MAX_MOVES || movable.arrived < late;
        }
        if some_stay {
            let stays = |movable: &Movable| movable.moves >= MAX_MOVES;
            change.forgotten.spans += self.settle(prompt.0, after, late, stays);
        }
    }

    /// Leaves spans between two prompts in their turns for good: those that arrived before `late`, and those for which `settles` is
    /// true. Returns the number of those that might have moved.
    fn settle(
        &mut self,
        from: Timestamp,
        to: Option<Prompt>,
        late: Timestamp,
        settles: impl Fn(&Movable) -> bool,
    ) -> u64 {
        let between = self.movable.range((from, SpanId::default())..);
        let between = between.take_while(|(place, _)| to.is_none_or(|to| place.0 < to.0));
        let stays = |movable: &Movable| movable.arrived < late || settles(movable);
        let settled = between.filter(|(_, movable)| stays(movable)).map(|(place, _)| *place);
        let mut early = 0;
        for place in settled.collect::<Vec<_>>() {
            let Some(gone) = self.movable.remove(&place) else { continue };
            self.held -= weight(&gone.span);
            early += u64::from(gone.arrived >= late);
        }
        early
    }

    /// The turn in progress at this time.
    fn turn_at(&self, time: Timestamp) -> Option<TraceId> {
        const LAST: TraceId = TraceId([u8::MAX; 16]);
        self.prompts.range(..=(time, LAST)).next_back().map(|(_, turn)| *turn)
    }
}

/// The weight of a span: one, and one more for each KiB of its texts.
fn weight(span: &Span) -> usize {
    1 + said_bytes(span) / WEIGHED
}

/// Puts a span into a turn, below its root if the span was below the root of another turn.
fn hang(span: &mut Span, turn: TraceId) {
    if span.parent == Some(span.trace_id.prompt()) {
        span.parent = Some(turn.prompt());
    }
    span.trace_id = turn;
}

/// What remains of a span in a trace that it has left: no behaviour, and it replaces all others with its id.
fn void(span: &Span, left: TraceId) -> Span {
    Span {
        trace_id: left,
        span_id: span.span_id,
        parent: Some(SpanId([u8::MAX; 8])),
        start: span.start,
        end: span.end,
        operation: Operation::Evaluation,
        scope: RECORD_SCOPE,
        resource: Arc::clone(&span.resource),
        ..Span::default()
    }
}

/// Bytes of texts that weigh as much as a span without texts.
const WEIGHED: usize = 1_024;

/// How often a span may move; then it stays in its turn for good. A batch moves each span at most once, so only prompts of as many
/// batches that arrive late, one after the other, reach it.
const MAX_MOVES: u8 = 8;

/// Most known prompts of one session; the oldest are forgotten.
const MAX_PROMPTS: usize = 256;
