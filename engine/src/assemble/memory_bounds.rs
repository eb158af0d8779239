//! Bounds on the memory of open and done traces: `assemble.max_bytes` for all of it, and `judge.max_open_bytes` for the texts that
//! are kept for a judge alone. Tenants share both.
//!
//! A tenant may use all of it while no other tenant needs any. If none is left, the tenant that holds the most relative to its
//! share makes room: for the first bound, its traces are sealed early, as if there were too many of them; for the second, its
//! quietest traces lose their texts. If that is the tenant that needs room for texts, its new spans are kept without theirs.
//!
//! One trace has `assemble.max_trace_bytes`. Above it, the trace loses its texts, as most of them are answers other than the last
//! one; a trace that is as large without them is full, like one with `assemble.max_spans_per_trace` spans. Both bounds limit
//! memory, but not what is known about the agent: spans of no known operation take at most half of the places and three quarters of
//! the bytes; and spans without a parent and those of agents, which arrive last and show the agent and how the trace ended, have a
//! reserve beyond both.

use std::collections::BTreeMap;

use super::{Assembler, OpenTrace, State, TraceKey};
use crate::facts::OverBy;
use crate::options::AssembleOptions;
use crate::span::{Operation, Span};
use crate::tenants::{Shares, TenantHash};
use crate::trace::Bytes;

/// The bytes of memory of traces.
#[derive(Debug, Default)]
pub(super) struct HeldBytes {
    all: Sums,
    // By tenant, of those that have any.
    of: BTreeMap<TenantHash, Sums>,
}

/// Sums of the [`Bytes`] of traces.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Sums {
    /// All of them.
    pub(super) all: usize,
    /// Bytes of long texts that only people and models read.
    pub(super) extra: usize,
}

impl Sums {
    fn change(&mut self, before: Bytes, after: Bytes) {
        self.all = self.all + wide(after.all) - wide(before.all);
        self.extra = self.extra + wide(after.extra) - wide(before.extra);
    }
}

impl HeldBytes {
    /// The bytes of all tenants.
    pub(super) fn all(&self) -> Sums {
        self.all
    }

    /// The bytes of all tenants after a change of the bytes of a trace.
    pub(super) fn after(&self, before: Bytes, after: Bytes) -> Sums {
        let mut all = self.all;
        all.change(before, after);
        all
    }

    /// Notes that the bytes of a trace changed.
    pub(super) fn change(&mut self, id: TraceKey, before: Bytes, after: Bytes) {
        if before == after {
            return;
        }
        self.all.change(before, after);
        let own = self.of.entry(id.tenant).or_default();
        own.change(before, after);
        if *own == Sums::default() {
            self.of.remove(&id.tenant);
        }
    }

    /// The tenant that holds the most bytes of some kind relative to its share, counting what the newcomer needs.
    fn most_over_share(
        &self,
        shares: &Shares,
        of: impl Fn(&Sums) -> usize,
        newcomer: Option<(TenantHash, usize)>,
    ) -> Option<TenantHash> {
        let wanted =
            |tenant| newcomer.filter(|(other, _)| *other == tenant).map_or(0, |(_, wanted)| wanted);
        let held = self
            .of
            .iter()
            .map(|(tenant, bytes)| (*tenant, of(bytes).saturating_add(wanted(*tenant))));
        let new = newcomer.filter(|(tenant, _)| !self.of.contains_key(tenant));
        shares.most_over_share(held.chain(new))
    }
}

impl OpenTrace {
    /// The bytes of memory that it takes; none once it is sealed, as it is about to be removed.
    pub(super) fn bytes(&self) -> Bytes {
        if self.state == State::Sealed {
            return Bytes::default();
        }
        self.parts.bytes().and(size_of::<Self>())
    }

    /// Drops the texts of a trace that takes too much memory, if the texts are the reason; returns whether it did.
    pub(super) fn slim(&mut self, max_bytes: usize) -> bool {
        let all = wide(self.parts.bytes().all);
        let slims = all > max_bytes && self.parts.text_bytes() > all / 2;
        if slims {
            (self.lacks_judge_texts, self.leaves_texts_out) = (true, false);
            self.parts.drop_texts();
        }
        slims
    }

    /// Whether there is room for one more log record.
    pub(super) fn has_room(&self, options: &AssembleOptions) -> bool {
        self.is_within(options.max_spans_per_trace, options.max_trace_bytes)
    }

    /// Whether there is room for a span.
    pub(super) fn has_room_for(&self, span: &Span, options: &AssembleOptions) -> bool {
        let (spans, bytes) = (options.max_spans_per_trace, options.max_trace_bytes);
        let reserve = (spans / RESERVE).max(LEAST_RESERVE);
        let within_reserve = |reserve| {
            self.is_within(spans.saturating_add(reserve), bytes.saturating_add(bytes / RESERVE))
        };
        match span.operation {
            _ if span.parent.is_none() => within_reserve(reserve),
            Operation::InvokeAgent => within_reserve(reserve / 2),
            Operation::Other => {
                self.parts.spans.others() < spans.div_ceil(2)
                    && self.is_within(spans, bytes - bytes / 4)
            }
            Operation::Chat
            | Operation::CreateAgent
            | Operation::Embeddings
            | Operation::Evaluation
            | Operation::ExecuteTool
            | Operation::Retrieval => self.has_room(options),
        }
    }

    /// Whether it has fewer spans and log records, and takes fewer bytes.
    fn is_within(&self, spans: usize, bytes: usize) -> bool {
        self.parts.len() < spans && wide(self.parts.bytes().all) < bytes
    }
}

impl Assembler {
    /// Seals traces early, done ones first, until the memory is within bounds.
    pub(super) fn make_room(&mut self) {
        while self.bytes.all().all > self.options.max_bytes {
            let most_over_share = self.bytes.most_over_share(&self.shares, |held| held.all, None);
            let Some(id) = most_over_share.and_then(|tenant| self.least_lost(tenant)) else {
                return;
            };
            self.evict(id);
        }
    }

    /// Makes room for one more trace of a tenant.
    pub(super) fn make_room_for_trace(&mut self, tenant: TenantHash) {
        if self.traces.len() < self.options.max_open_traces {
            return;
        }
        let most_over_share = self.deadlines.most_over_share(&self.shares, tenant);
        if let Some(id) = most_over_share.and_then(|tenant| self.least_lost(tenant)) {
            self.evict(id);
        }
    }

    /// The trace of a tenant that is removed first: the done one that is sealed first, else the quietest open one; of either, traces
    /// without an agent's work before others, so that spans of other services cost agents nothing.
    fn least_lost(&mut self, tenant: TenantHash) -> Option<TraceKey> {
        if let Some(id) = self.deadlines.first_done(tenant) {
            return Some(id);
        }
        let open = self.deadlines.open_of(tenant);
        self.quietest.next(tenant, &self.traces, open, |held| held.state == State::Open)
    }

    /// Seals a trace early. Its last update is sent with the next drain; until then it is held beyond the bounds.
    fn evict(&mut self, id: TraceKey) {
        self.take_for_over(id, OverBy::Room);
        self.seal(id);
        self.counts.add("traces", "evicted");
    }

    /// Makes room for the texts of spans of one trace, from tenants that hold more relative to their share; returns whether
    /// there is room.
    pub(super) fn make_text_room<'s>(
        &mut self,
        id: TraceKey,
        spans: impl Iterator<Item = &'s Span>,
    ) -> bool {
        let Some(max_bytes) = self.judging.as_ref().map(|rules| rules.max_open_bytes) else {
            return true;
        };
        let wanted = spans.map(said_bytes).fold(0, usize::saturating_add);
        while self.bytes.all().extra.saturating_add(wanted) > max_bytes {
            let newcomer = Some((id.tenant, wanted));
            let most_over_share =
                self.bytes.most_over_share(&self.shares, |held| held.extra, newcomer);
            let giver = most_over_share.filter(|tenant| *tenant != id.tenant);
            let Some(quietest) = giver.and_then(|tenant| self.quietest_with_texts(tenant)) else {
                break;
            };
            self.drop_texts_of(quietest);
            self.counts.add("texts", "given_up");
        }
        self.bytes.all().extra < max_bytes
    }

    fn quietest_with_texts(&mut self, tenant: TenantHash) -> Option<TraceKey> {
        let all = self.deadlines.traces_of(tenant);
        self.quietest_with_texts.next(tenant, &self.traces, all, |held| held.bytes().extra > 0)
    }
}

/// The fraction of a trace's bounds that is added to them for spans without a parent and those of agents (one in so many), and the
/// least number of such spans. Agents' spans with a parent have half of these places.
const RESERVE: usize = 100;
const LEAST_RESERVE: usize = 64;

/// Bytes of all texts of a span, at least as many as are kept.
pub(super) fn said_bytes(span: &Span) -> usize {
    let said = [&span.input, &span.output].into_iter().flatten().map(|said| said.text.len());
    let calls = span.model.iter().flat_map(|model| &model.tool_calls).chain(&span.tool);
    let arguments = calls.filter_map(|call| call.arguments.as_ref()?.text());
    said.chain(arguments.map(|text| text.len())).sum()
}

fn wide(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
