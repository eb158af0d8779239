//! Whether the missing parent of a span will arrive.
//!
//! SDKs send a span when it ends, so a parent arrives after its children; but many applications never send it. Spans of earlier
//! traces with the same service, scope, operation and name show which of the two it is, once these traces are done or were quiet
//! for long. This decides when a trace is done, never what its facts are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::learned::Lessons;
use super::recent::{Join, LearnedKey, Recent};
use crate::facts::OverBy;
use crate::span::{Operation, Resource, SpanId, Timestamp, TraceId};
use crate::tenants::{Shares, tenant_hash};
use crate::trace::{Hanging, Spans};

/// What earlier traces showed about the parents of spans, by kind of span.
#[derive(Clone, Debug)]
pub(super) struct Parents {
    pub(super) kinds: Recent<ParentsSeen>,
    /// How long after the arrival of a parent of some kind another such arrival is no news.
    renewed: Duration,
    /// How long roots of a service are waited for after one arrived late.
    late: Duration,
}

/// What spans of one kind showed about their parents.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct ParentsSeen {
    /// When a parent last arrived.
    recent_batches: Option<Timestamp>,
    /// Traces that were quiet for `rootless_idle` without the parent, if none ever arrived; no more of them than matter.
    quiet: Vec<u64>,
    /// Traces that became final without the parent, each with the time at which it opened; only the last ones that opened since a
    /// parent arrived, no more of them than matter.
    without: Vec<(Timestamp, u64)>,
}

/// Number of traces in a row without a parent after which none is waited for: if none ever arrived, and if one did.
const FEW: usize = 3;
const MANY: usize = 16;

impl ParentsSeen {
    fn recent_batches(at: Timestamp) -> Self {
        Self { recent_batches: Some(at), ..Self::default() }
    }

    /// Whether enough traces in a row became final without the parent.
    fn never(&self) -> bool {
        self.without.len() >= if self.recent_batches.is_some() { MANY } else { FEW }
    }

    fn evidence(&self) -> Option<OverBy> {
        match self.recent_batches {
            _ if self.never() => Some(OverBy::ParentsNeverCome),
            Some(_) => Some(OverBy::ParentsCome),
            None if self.quiet.len() >= FEW => Some(OverBy::ParentsNeverCome),
            None => None,
        }
    }
}

impl Join for ParentsSeen {
    fn join(&mut self, other: Self) {
        self.recent_batches = self.recent_batches.max(other.recent_batches);
        self.quiet.extend(other.quiet);
        self.quiet.sort_unstable();
        self.quiet.dedup();
        self.quiet.truncate(if self.recent_batches.is_some() { 0 } else { FEW });
        self.without.extend(other.without);
        self.without.retain(|(opened, _)| {
            self.recent_batches.is_none_or(|recent_batches| recent_batches < *opened)
        });
        self.without.sort_unstable_by(|one, other| other.cmp(one));
        self.without.dedup();
        self.without.truncate(MANY);
    }
}

impl Parents {
    /// An empty table of at most `max` kinds of spans; `of_age` is the age until which traces are waited for.
    pub(super) fn new(max: usize, of_age: Duration, shares: Shares) -> Self {
        let mut kinds = Recent::new(max);
        kinds.shared_by(shares);
        // This is precise enough to know whether a parent arrived while a trace was open.
        Self { kinds, renewed: of_age / 4, late: of_age.saturating_mul(24) }
    }

    /// The evidence for a trace without a root: that of the missing parent that is waited for longest. What the span of an agent or
    /// a workflow states about its parent applies to all spans below that parent.
    pub(super) fn outlook(&self, spans: &Spans) -> OverBy {
        let missing = || spans.hanging().filter(|span| !span.has_parent);
        let remote: BTreeSet<SpanId> =
            missing().filter(has_remote_caller).map(|span| span.parent).collect();
        let of = |span: Hanging<'_>| {
            let remote = remote.contains(&span.parent);
            if remote { OverBy::RemoteParent } else { self.of(&span) }
        };
        missing().map(of).max().unwrap_or(OverBy::NothingKnown)
    }

    /// Whether similar traces repeatedly became final without a root, apart from what this one showed itself.
    pub(super) fn never_come(&self, spans: &Spans, recent_batches: &[LearnedKey]) -> bool {
        let mut missing = spans.hanging().filter(|span| !span.has_parent).peekable();
        let never = |span: &Hanging<'_>| {
            let kind = kind(span);
            !recent_batches.contains(&kind) && self.kinds.get(kind).is_some_and(ParentsSeen::never)
        };
        missing.peek().is_some() && missing.all(|span| never(&span))
    }

    /// Whether a root of one of the services whose spans lack a parent arrived late, not long ago.
    pub(super) fn come_late(&self, spans: &Spans, now: Timestamp) -> bool {
        let mut missing = spans.hanging().filter(|span| !span.has_parent);
        missing.any(|span| {
            let late =
                self.kinds.get(of_service(span.resource)).and_then(|seen| seen.recent_batches);
            late.is_some_and(|late| late.after(self.late) > now)
        })
    }

    /// Learns from a done trace that parents of some kinds of spans arrive; returns the kinds for which that is news.
    pub(super) fn recent_batches(
        &self,
        spans: &Spans,
        now: Timestamp,
        lessons: &mut Lessons,
    ) -> Vec<LearnedKey> {
        let is_new = |seen: &ParentsSeen| {
            let lately = seen
                .recent_batches
                .is_some_and(|recent_batches| recent_batches.after(self.renewed) > now);
            !lately || !seen.quiet.is_empty() || !seen.without.is_empty()
        };
        let news = kinds(spans, true).filter(|kind| self.is_news(*kind, is_new));
        news.inspect(|kind| lessons.showed(*kind, ParentsSeen::recent_batches(now))).collect()
    }

    /// Learns that a trace was quiet for long without its root.
    pub(super) fn quiet(&self, trace: TraceId, spans: &Spans, lessons: &mut Lessons) {
        for kind in kinds(spans, false) {
            if self.is_news(kind, |seen| seen.recent_batches.is_none() && seen.quiet.len() < FEW) {
                let quiet = vec![xxh3_64(&trace.0)];
                lessons.showed(kind, ParentsSeen { quiet, ..ParentsSeen::default() });
            }
        }
    }

    /// Learns that a trace that opened at `opened` is final without its root.
    pub(super) fn without(
        &self,
        (trace, opened): (TraceId, Timestamp),
        spans: &Spans,
        lessons: &mut Lessons,
    ) {
        for kind in kinds(spans, false) {
            let is_news = |seen: &ParentsSeen| {
                seen.without.len() < MANY
                    && seen.recent_batches.is_none_or(|recent_batches| recent_batches < opened)
            };
            if self.is_news(kind, is_news) {
                let without = vec![(opened, xxh3_64(&trace.0))];
                lessons.showed(kind, ParentsSeen { without, ..ParentsSeen::default() });
            }
        }
    }

    /// Whether a fact about a kind should be handed out: there is none yet, it would be forgotten for want of room, or it is new.
    fn is_news(&self, kind: LearnedKey, is_new: impl FnOnce(&ParentsSeen) -> bool) -> bool {
        self.kinds.get(kind).is_none_or(is_new) || !self.kinds.is_safe(kind)
    }

    fn of(&self, span: &Hanging<'_>) -> OverBy {
        let agent = span.operation == Operation::InvokeAgent;
        let shown = self.kinds.get(kind(span)).and_then(ParentsSeen::evidence);
        shown.unwrap_or(match span.remote {
            Some(false) if agent => OverBy::LocalParent,
            Some(_) | None => OverBy::NothingKnown,
        })
    }
}

/// Whether a span is of an agent or a workflow that another process called.
fn has_remote_caller(span: &Hanging<'_>) -> bool {
    span.is_run && span.remote == Some(true)
}

/// Learns that a root arrived after its trace was made final early, or would have been: for a long time, no trace of this service
/// is.
pub(super) fn too_late(resource: &Resource, now: Timestamp, lessons: &mut Lessons) {
    lessons.showed(of_service(resource), ParentsSeen::recent_batches(now));
}

/// The kinds of spans whose parent is present, or missing; a kind may occur several times, which makes no difference.
fn kinds(spans: &Spans, has_parent: bool) -> impl Iterator<Item = LearnedKey> {
    let mut last: Option<(&Arc<Resource>, LearnedKey)> = None;
    let hanging = spans.hanging().filter(move |span| span.has_parent == has_parent);
    hanging.map(move |span| {
        let service = match last {
            Some((resource, service)) if Arc::ptr_eq(resource, span.resource) => service,
            Some(_) | None => of_service(span.resource),
        };
        last = Some((span.resource, service));
        of_kind(service, &span)
    })
}

fn kind(span: &Hanging<'_>) -> LearnedKey {
    of_kind(of_service(span.resource), span)
}

fn of_kind((tenant, service): LearnedKey, span: &Hanging<'_>) -> LearnedKey {
    let name = if span.name.is_empty() { 0 } else { xxh3_64(span.name.as_bytes()) };
    let remote = span.remote.map_or(2, u64::from);
    (tenant, hash([span.scope, name, (span.operation as u64) << 2 | remote], service))
}

/// The topic of a service.
pub(super) fn of_service(resource: &Resource) -> LearnedKey {
    let name = resource.service_name.as_deref();
    let name = name.map_or(0, |name| xxh3_64_with_seed(name.as_bytes(), 1));
    (tenant_hash(resource.tenant.as_deref()), hash([name, 0, 0], 0))
}

pub(super) fn hash(numbers: [u64; 3], seed: u64) -> u64 {
    let [a, b, c] = numbers.map(u64::to_le_bytes);
    xxh3_64_with_seed([a, b, c].as_flattened(), seed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen() -> impl Strategy<Value = ParentsSeen> {
        let at = (0_u64..40).prop_map(Timestamp);
        prop_oneof![
            at.clone().prop_map(ParentsSeen::recent_batches),
            (0_u64..6)
                .prop_map(|trace| ParentsSeen { quiet: vec![trace], ..ParentsSeen::default() }),
            (at, 0_u64..60).prop_map(|without| ParentsSeen {
                without: vec![without],
                ..ParentsSeen::default()
            }),
        ]
    }

    fn joined(seen: impl IntoIterator<Item = ParentsSeen>) -> ParentsSeen {
        let mut all = ParentsSeen::default();
        seen.into_iter().for_each(|one| all.join(one));
        all
    }

    proptest! {
        #[test]
        fn the_order_in_which_shards_learn_makes_no_difference(
            (some, shuffled) in prop::collection::vec(seen(), 0..60)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
            split in 0_usize..60,
        ) {
            let (first, second) = shuffled.split_at(split.min(shuffled.len()));
            let both = [joined(first.to_vec()), joined(second.to_vec()), joined(first.to_vec())];
            let all = joined(some);
            prop_assert!(all.quiet.len() <= FEW && all.without.len() <= MANY);
            prop_assert_eq!(joined(both), all);
        }
    }
}
