//! Chains of traces of a session, each searched for loops as one sequence.

use std::mem;
use std::ops::Range;

use super::chain;
use super::record::TraceRecord;
use super::session::{Session, ShardContext};
use super::tally::CountedLoops;
use crate::options::LoopOptions;
use crate::span::{Timestamp, TraceId};

impl Session {
    /// Searches the chains of traces around these places for loops again; returns the traces for which something changed.
    pub(super) fn relink(
        &mut self,
        places: &[(Timestamp, TraceId)],
        shared: &mut ShardContext,
    ) -> Vec<TraceId> {
        if places.iter().all(|place| self.stands_alone(*place)) {
            return Vec::new();
        }
        // Each chain, and the first of its traces around which something changed.
        let mut chains: Vec<(Range<usize>, usize)> = Vec::new();
        for number in places.iter().flat_map(|place| self.around(*place)) {
            match chains.iter_mut().find(|(chain, _)| chain.contains(&number)) {
                Some((_, first)) => *first = number.min(*first),
                None => chains.push((self.chain(number), number)),
            }
        }
        let (mut changed, mut parts) = (Vec::new(), Vec::new());
        let most = shared.rules.loops.max_traces.max(1);
        for (Range { start, end }, first) in chains {
            let is_cut = end - start > most;
            shared.counts.add_many("loop_chains", "cut", u64::from(is_cut));
            // Parts are counted from the start of the chain: those before the change stay the same.
            let first = first - (first - start) % most;
            for first in (first..end).step_by(most) {
                let part = first..end.min(first.saturating_add(most));
                self.link(part.clone(), &shared.rules.loops, &mut changed);
                parts.push(part);
            }
        }
        if !changed.is_empty() {
            self.share_out(&parts);
        }
        changed
    }

    /// Redistributes what loops in these parts of chains have counted among their traces, as a different trace may now be the one
    /// that counts a loop.
    fn share_out(&mut self, parts: &[Range<usize>]) {
        let traces = || parts.iter().flat_map(Range::clone);
        let mut counted = CountedLoops::default();
        traces().for_each(|number| self.traces[number].release_loop_counts(&mut counted));
        if counted.is_empty() {
            return;
        }
        traces().for_each(|number| self.traces[number].assign_loop_counts(&mut counted));
        traces()
            .take(1)
            .for_each(|first| self.traces[first].assign_remaining_counts(mem::take(&mut counted)));
    }

    /// Passes what a removed trace has counted for loops that continue in others to the trace after it, or before it.
    pub(super) fn hand_on_loop_counts(&mut self, gone: &mut TraceRecord) {
        let number = self.traces.before(gone.position());
        let before =
            number.checked_sub(1).filter(|before| chain::goes_on(&self.traces[*before], gone));
        let after = Some(number).filter(|after| *after < self.traces.len());
        let after = after.filter(|after| chain::goes_on(gone, &self.traces[*after]));
        if let Some(heir) = after.or(before) {
            let counted = gone.leave_chain();
            self.traces[heir].assign_remaining_counts(counted);
        }
    }

    /// The traces before, at and after a place.
    fn around(&self, place: (Timestamp, TraceId)) -> Range<usize> {
        let at = self.traces.before(place);
        at.saturating_sub(1)..self.traces.len().min(at + 2)
    }

    /// Whether no trace around this place is or was part of a chain; this is the common case.
    fn stands_alone(&self, place: (Timestamp, TraceId)) -> bool {
        let around = self.traces.some(self.around(place));
        let goes_on =
            |pair: &[TraceRecord]| matches!(pair, [before, after] if chain::goes_on(before, after));
        around.iter().all(|record| record.rare().link.is_none()) && !around.windows(2).any(goes_on)
    }

    /// Finds loops in one chain, and adds the traces for which something changed.
    fn link(&mut self, chain: Range<usize>, options: &LoopOptions, changed: &mut Vec<TraceId>) {
        // A trace in no chain has its own loops.
        let links = match self.traces.some(chain.clone()) {
            [] | [_] => Vec::new(),
            records => chain::links(&records.iter().collect::<Vec<_>>(), options),
        };
        let mut links = links.into_iter();
        for number in chain {
            let record = &mut self.traces[number];
            if record.link(links.next()) {
                changed.push(record.id);
            }
        }
    }

    /// The chain of the trace of this number.
    fn chain(&self, number: usize) -> Range<usize> {
        let goes_on = |before: usize| {
            self.traces.len() > before + 1
                && chain::goes_on(&self.traces[before], &self.traces[before + 1])
        };
        let (mut first, mut last) = (number, number);
        while first > 0 && goes_on(first - 1) {
            first -= 1;
        }
        while goes_on(last) {
            last += 1;
        }
        first..last + 1
    }
}
