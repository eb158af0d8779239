//! Traces of a session that go on with one another: loops are found in them as one sequence.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::chain;
use super::held::Held;
use super::session::{Session, Shared};
use crate::engine::options::LoopOptions;
use crate::engine::span::{Timestamp, TraceId};

impl Session {
    /// Finds loops anew in the chains of traces around these places; returns the traces for which something changed.
    pub(super) fn relink(
        &mut self,
        places: &[(Timestamp, TraceId)],
        shared: &Shared,
    ) -> Vec<TraceId> {
        if places.iter().all(|place| self.stands_alone(*place)) {
            return Vec::new();
        }
        let mut around: BTreeSet<(Timestamp, TraceId)> = BTreeSet::new();
        for place in places {
            around.extend(self.order.range(..place).next_back());
            around.extend(self.order.range(place..).take(2));
        }
        let mut seen = BTreeSet::new();
        let mut changed = Vec::new();
        for place in around {
            if seen.contains(&place.1) {
                continue;
            }
            let chain = self.chain(place);
            seen.extend(chain.iter().copied());
            for part in chain.chunks(shared.rules.loops.max_traces) {
                changed.extend(self.link(part, &shared.rules.loops));
            }
        }
        changed
    }

    /// Whether no trace around this place is or was part of a chain, as mostly.
    fn stands_alone(&self, place: (Timestamp, TraceId)) -> bool {
        let before = self.order.range(..place).next_back();
        let around = before.into_iter().chain(self.order.range(place..).take(2));
        let mut last: Option<&Held> = None;
        around.filter_map(|(_, id)| self.traces.get(id)).all(|held| {
            let held = held.as_ref();
            let goes_on = last.replace(held).is_some_and(|last| chain::goes_on(last, held));
            !goes_on && held.link.is_none()
        })
    }

    /// Finds loops in one chain; returns the traces for which something changed.
    fn link(&mut self, chain: &[TraceId], options: &LoopOptions) -> Vec<TraceId> {
        let held: Vec<&Held> =
            chain.iter().filter_map(|id| self.traces.get(id)).map(AsRef::as_ref).collect();
        // A trace that stands alone has its own loops.
        let links = if held.len() > 1 { chain::links(&held, options) } else { Vec::new() };
        let mut links = links.into_iter();
        let mut changed = Vec::new();
        for id in chain {
            let link = links.next();
            let Some(held) = self.traces.get_mut(id) else { continue };
            if held.link.as_deref() != link.as_ref() {
                held.link = link.map(Box::new);
                changed.push(*id);
            }
        }
        changed
    }

    /// The traces that hang together with the one at this place, in order.
    fn chain(&self, place: (Timestamp, TraceId)) -> Vec<TraceId> {
        let goes_on = |before: TraceId, after: TraceId| {
            let held = |id| self.traces.get(&id);
            held(before)
                .zip(held(after))
                .is_some_and(|(before, after)| chain::goes_on(before, after))
        };
        let mut ids = vec![place.1];
        for (_, before) in self.order.range(..place).rev() {
            if !ids.last().is_some_and(|after| goes_on(*before, *after)) {
                break;
            }
            ids.push(*before);
        }
        ids.reverse();
        for (_, after) in self.order.range((Bound::Excluded(place), Bound::Unbounded)) {
            if !ids.last().is_some_and(|before| goes_on(*before, *after)) {
                break;
            }
            ids.push(*after);
        }
        ids
    }
}
