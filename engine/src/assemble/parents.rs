//! Whether the missing parent of a span will come.
//!
//! SDKs send a span when it ends, so a parent comes after its children; and many applications never send it. Which of the two
//! it is, is told by spans of earlier traces with the same service, scope, operation and name. Each shard learns from its own
//! traces, when one of them is over or was quiet for long; this decides when a trace is done, never what it comes to.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::recent::{Recent, Saved, Topic};
use crate::facts::OverBy;
use crate::span::{Operation, Resource, Timestamp};
use crate::tenants::{Shares, tenant_hash};
use crate::trace::{Hanging, Spans};

/// What earlier traces showed of the parents of spans, by kind of span.
#[derive(Clone, Debug)]
pub(super) struct Parents {
    kinds: Recent<ParentsSeen>,
    // Room for the kinds of a trace.
    topics: Vec<Topic>,
}

/// What spans of one kind showed of their parents.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct ParentsSeen {
    /// When a parent last came.
    came: Option<Timestamp>,
    /// Traces in a row that were quiet for `rootless_idle` without the parent.
    quiet: u8,
    /// Traces in a row that became final without the parent, and in whose time no other trace got one.
    without: u8,
}

/// Traces in a row without a parent from which on none is waited for: if none ever came, and if one did.
const FEW: u8 = 3;
const MANY: u8 = 16;

impl ParentsSeen {
    /// Whether enough traces in a row became final without the parent.
    fn never(self) -> bool {
        self.without >= if self.came.is_some() { MANY } else { FEW }
    }

    fn evidence(self) -> Option<OverBy> {
        match self.came {
            _ if self.never() => Some(OverBy::ParentsNeverCome),
            Some(_) => Some(OverBy::ParentsCome),
            None if self.quiet >= FEW => Some(OverBy::ParentsNeverCome),
            None => None,
        }
    }
}

impl Parents {
    /// An empty table of at most `max` kinds of spans.
    pub(super) fn new(max: usize) -> Self {
        Self { kinds: Recent::new(max), topics: Vec::new() }
    }

    /// Sets the shares of tenants by which room is made.
    pub(super) fn shared_by(&mut self, shares: Shares) {
        self.kinds.shared_by(shares);
    }

    /// The evidence for a trace without a root: that of the missing parent that is waited for longest.
    pub(super) fn outlook(&self, spans: &Spans) -> OverBy {
        let missing = spans.hanging().filter(|span| !span.has_parent);
        missing.map(|span| self.of(&span)).max().unwrap_or(OverBy::NothingKnown)
    }

    /// Whether traces such as this one became final without a root time and again.
    pub(super) fn never_come(&self, spans: &Spans) -> bool {
        let mut missing = spans.hanging().filter(|span| !span.has_parent).peekable();
        let never = |span: &Hanging<'_>| {
            let late = self.kinds.get(of_service(span.resource)).is_some();
            !late && self.kinds.get(kind(span)).is_some_and(|shown| shown.never())
        };
        missing.peek().is_some() && missing.all(|span| never(&span))
    }

    /// Learns from a done trace that parents come of those kinds of spans whose parents are in.
    pub(super) fn came(&mut self, spans: &Spans, now: Timestamp) {
        self.learn_each(spans, true, |shown| {
            *shown = ParentsSeen { came: Some(now), ..ParentsSeen::default() };
        });
    }

    /// Learns that a trace was quiet for long without its root.
    pub(super) fn quiet(&mut self, spans: &Spans) {
        self.learn_each(spans, false, |shown| shown.quiet = shown.quiet.saturating_add(1));
    }

    /// Learns that a trace that opened at `opened` is final without its root.
    pub(super) fn without(&mut self, spans: &Spans, opened: Timestamp) {
        self.learn_each(spans, false, |shown| {
            let none_came = shown.came.is_none_or(|came| came < opened);
            shown.without = shown.without.saturating_add(none_came.into());
        });
    }

    /// Learns that a root came after its trace was final: traces of this service are not made final early from then on.
    pub(super) fn too_late(&mut self, resource: &Resource, now: Timestamp) {
        self.kinds.learn(of_service(resource)).came = Some(now);
    }

    /// The number of entries forgotten since the last call.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        self.kinds.take_forgotten()
    }

    /// The table for a snapshot.
    pub(super) fn save(&self) -> Saved<&ParentsSeen> {
        self.kinds.save()
    }

    /// Takes over the table of a snapshot.
    pub(super) fn restore(&mut self, saved: Saved<ParentsSeen>) {
        self.kinds.restore(saved);
    }

    fn of(&self, span: &Hanging<'_>) -> OverBy {
        let agent = span.operation == Operation::InvokeAgent;
        if agent && span.remote == Some(true) {
            return OverBy::RemoteParent;
        }
        let shown = self.kinds.get(kind(span)).and_then(|shown| shown.evidence());
        shown.unwrap_or(match span.remote {
            Some(false) if agent => OverBy::LocalParent,
            Some(_) | None => OverBy::NothingKnown,
        })
    }

    /// Learns something of each kind of spans whose parent is in, or is missing, once.
    fn learn_each(&mut self, spans: &Spans, has_parent: bool, learn: impl Fn(&mut ParentsSeen)) {
        let mut last: Option<(&Arc<Resource>, Topic)> = None;
        let hanging = spans.hanging().filter(|span| span.has_parent == has_parent);
        self.topics.clear();
        self.topics.extend(hanging.map(|span| {
            let service = match last {
                Some((resource, service)) if Arc::ptr_eq(resource, span.resource) => service,
                Some(_) | None => of_service(span.resource),
            };
            last = Some((span.resource, service));
            of_kind(service, &span)
        }));
        self.topics.sort_unstable();
        self.topics.dedup();
        self.topics.iter().for_each(|key| learn(self.kinds.learn(*key)));
        self.topics.shrink_to(MOST_KEPT);
    }
}

/// Number of kinds of a trace for which room is kept; few traces have more.
const MOST_KEPT: usize = 64;

fn kind(span: &Hanging<'_>) -> Topic {
    of_kind(of_service(span.resource), span)
}

fn of_kind((tenant, service): Topic, span: &Hanging<'_>) -> Topic {
    let name = if span.name.is_empty() { 0 } else { xxh3_64(span.name.as_bytes()) };
    let remote = span.remote.map_or(2, u64::from);
    (tenant, hash([span.scope, name, (span.operation as u64) << 2 | remote], service))
}

/// The topic of a service.
pub(super) fn of_service(resource: &Resource) -> Topic {
    let name = resource.service_name.as_deref();
    let name = name.map_or(0, |name| xxh3_64_with_seed(name.as_bytes(), 1));
    (tenant_hash(resource.tenant.as_deref()), hash([name, 0, 0], 0))
}

pub(super) fn hash(numbers: [u64; 3], seed: u64) -> u64 {
    let [a, b, c] = numbers.map(u64::to_le_bytes);
    xxh3_64_with_seed([a, b, c].as_flattened(), seed)
}
