//! The panes of rolling windows: exact sums from which traces can be subtracted.
//!
//! A trace is in the pane of its end. For every window the current pane, the 60 before it and a few more for late traces are kept;
//! a trace that ended earlier is in no pane of that window. Beside the windows there is one pane for everything, of width 0.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::scoring::TraceScores;
use crate::facts::{Level, PaneSum, SignalSum};
use crate::math::Quanta;
use crate::predict::{EffortBuckets, EffortSums};
use crate::score::agent_consistency::AgentConsistency;
use crate::signal::SignalName;
use crate::small_map::SmallMap;
use crate::span::Timestamp;
use crate::window::PANES;

/// A pane among those of its width.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct PaneKey {
    /// `floor(end / width)`; 0 for the pane of everything.
    pub(super) index: u64,
    /// How often the wall clock had been set when the pane was made. After it is set back a pane may have the index of a removed
    /// one: traces of the old pane must not be subtracted from the new one.
    pub(super) era: u32,
}

/// The panes in which a trace, or a session, counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct PaneSet {
    // The first bit is for the pane of everything, then one for each width in their order.
    bits: u32,
    // The era of the panes of windows.
    era: u32,
}

impl PaneSet {
    /// Whether there is none.
    pub(super) fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// How many there are.
    pub(super) fn len(self) -> usize {
        usize::try_from(self.bits.count_ones()).unwrap_or(usize::MAX)
    }

    /// The same panes for another list of widths; panes of widths that are not in it are left out.
    #[must_use]
    pub(super) fn translated(self, from: &[u64], to: &[u64]) -> Self {
        let kept =
            numbered(from).filter(|(bit, _)| self.bits & bit > 0).filter_map(|(_, width)| {
                numbered(to).find(|(_, other)| *other == width).map(|(bit, _)| bit)
            });
        Self { bits: kept.fold(self.bits & 1, |bits, bit| bits | bit), ..self }
    }

    /// Each column in which it has a pane, and the key of that pane, given the end.
    fn keys(self, widths: &[u64], end: Timestamp) -> impl Iterator<Item = (usize, PaneKey)> {
        let columns = [0].into_iter().chain(widths.iter().copied()).enumerate();
        columns.filter_map(move |(column, width)| Some((column, self.key(column, width, end)?)))
    }

    /// The key of its pane in the column of this number and width, given the end.
    fn key(self, column: usize, width: u64, end: Timestamp) -> Option<PaneKey> {
        let bits = u32::try_from(column).ok().and_then(|column| self.bits.checked_shr(column))?;
        let of_window = |index| PaneKey { index, era: self.era };
        (bits & 1 > 0).then(|| end.0.checked_div(width).map_or(EVERYTHING, of_window))
    }
}

/// The widths of panes, ascending; a single pointer, as each session has one.
pub(super) type Widths = Arc<Box<[u64]>>;

/// Where a session counts: the end of its newest trace, and the panes of that trace.
pub(super) type Mark = (Timestamp, PaneSet);

/// Each width with its bit.
fn numbered(widths: &[u64]) -> impl Iterator<Item = (u32, u64)> {
    widths.iter().zip(1..u32::BITS).map(|(width, at)| (1 << at, *width))
}

/// The panes of one agent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Panes {
    #[serde(skip)]
    widths: Widths,
    // The column of everything, then one for each width, in their order.
    columns: Vec<Column>,
    era: u32,
}

/// The panes of one width; 0: everything.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Column {
    width: u64,
    // In the order of their keys.
    panes: Vec<(PaneKey, Pane)>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Pane {
    // Since the pane was last sent.
    #[serde(skip)]
    changed: bool,
    traces: u64,
    risks: u64,
    levels: BTreeMap<i32, u64>,
    judged_levels: BTreeMap<i32, u64>,
    uncertainty: AgentConsistency,
    signals: SmallMap<SignalName, (u64, i128)>,
    sessions: u64,
    efforts: EffortSums,
}

/// What a trace adds to each of its panes.
struct Addend<'s> {
    level: Option<i32>,
    judged_level: Option<i32>,
    uncertainty: Option<Quanta>,
    sums: SmallVec<[(&'s SignalName, Quanta); 8]>,
}

impl<'s> From<&'s TraceScores> for Addend<'s> {
    fn from(trace: &'s TraceScores) -> Self {
        Self {
            level: trace.own_risk().map(level),
            judged_level: trace.judged_risk().map(level),
            uncertainty: trace.own_uncertainty(),
            sums: trace.sums().collect(),
        }
    }
}

impl Column {
    /// The index of a pane, or where to insert it; nearly always among the newest.
    fn place(&self, key: PaneKey) -> Result<usize, usize> {
        let newest = self.panes.len().saturating_sub(NEWEST);
        for (at, (held, _)) in self.panes.iter().enumerate().skip(newest).rev() {
            match held.cmp(&key) {
                Ordering::Equal => return Ok(at),
                Ordering::Less => return Err(at + 1),
                Ordering::Greater => {}
            }
        }
        self.panes[..newest].binary_search_by_key(&key, |(held, _)| *held)
    }

    /// A mutable pane, if it is kept.
    fn pane(&mut self, key: PaneKey) -> Option<&mut Pane> {
        let at = self.place(key).ok()?;
        let (_, pane) = self.panes.get_mut(at)?;
        pane.changed = true;
        Some(pane)
    }
}

impl Panes {
    /// No panes yet, for windows with panes of these widths.
    pub(super) fn new(widths: Widths) -> Self {
        let all = [0].into_iter().chain(widths.iter().copied());
        let columns = all.map(|width| Column { width, panes: Vec::new() }).collect();
        Self { widths, columns, era: 0 }
    }

    /// Takes over the panes from a snapshot whose widths are still configured; all count as changed.
    pub(super) fn restore(&mut self, saved: Self) {
        self.era = saved.era;
        for Column { width, panes } in saved.columns {
            let own = self.columns.iter_mut().find(|own| own.width == width);
            own.into_iter().for_each(|own| own.panes.clone_from(&panes));
        }
        self.tell_all();
    }

    /// Marks every pane as changed, so that it is sent again.
    pub(super) fn tell_all(&mut self) {
        self.each_mut().for_each(|pane| pane.changed = true);
    }

    /// Returns whether there is no pane.
    pub(super) fn is_empty(&self) -> bool {
        self.columns.iter().flat_map(|column| &column.panes).all(|(_, pane)| pane.is_empty())
    }

    /// The panes of a trace with this end, at this wall time.
    pub(super) fn of(&self, end: Timestamp, wall: Timestamp) -> PaneSet {
        let windows = numbered(&self.widths);
        let windows = windows.filter(|(_, width)| kept(*width, wall).contains(&(end.0 / width)));
        PaneSet { bits: windows.fold(1, |bits, (bit, _)| bits | bit), era: self.era }
    }

    /// How many windows there are.
    pub(super) fn windows(&self) -> usize {
        self.widths.len()
    }

    /// Adds a trace with this end to panes.
    pub(super) fn observe(&mut self, panes: PaneSet, end: Timestamp, trace: &TraceScores) {
        let trace = Addend::from(trace);
        for (column, key) in panes.keys(&self.widths, end) {
            let Some(column) = self.columns.get_mut(column) else { continue };
            let place = column.place(key);
            let (Ok(at) | Err(at)) = place;
            if place.is_err() {
                column.panes.insert(at, (key, Pane::default()));
            }
            if let Some((_, pane)) = column.panes.get_mut(at) {
                pane.observe(&trace);
                pane.changed = true;
            }
        }
    }

    /// Subtracts a trace from the panes that it was added to and that are still kept.
    pub(super) fn forget(&mut self, panes: PaneSet, end: Timestamp, trace: &TraceScores) {
        let trace = Addend::from(trace);
        self.change(panes, end, |pane| pane.forget(&trace));
    }

    /// Moves a session, with its effort, from the panes of its former mark to those of its new one; panes in both are left alone.
    pub(super) fn mark(
        &mut self,
        before: Option<Mark>,
        after: Option<Mark>,
        took: Option<EffortBuckets>,
    ) {
        for (number, column) in self.columns.iter_mut().enumerate() {
            let key = |(end, panes): Mark| panes.key(number, column.width, end);
            let [before, after] = [before, after].map(|mark| mark.and_then(key));
            if before == after {
                continue;
            }
            if let Some(pane) = before.and_then(|key| column.pane(key)) {
                pane.sessions = pane.sessions.saturating_sub(1);
                pane.efforts.replace(took, None);
            }
            if let Some(pane) = after.and_then(|key| column.pane(key)) {
                pane.sessions += 1;
                pane.efforts.replace(None, took);
            }
        }
    }

    /// Replaces the effort of a session in the panes of this mark.
    pub(super) fn spend(
        &mut self,
        mark: Option<Mark>,
        before: Option<EffortBuckets>,
        after: Option<EffortBuckets>,
    ) {
        if let Some((end, panes)) = mark.filter(|_| before != after) {
            self.change(panes, end, |pane| pane.efforts.replace(before, after));
        }
    }

    /// Removes panes that are no longer in any window or, after the wall clock was set back, not yet in one. Receivers of updates
    /// do the same by themselves.
    pub(super) fn expire(&mut self, wall: Timestamp) {
        for Column { width, panes } in self.columns.iter_mut().filter(|column| column.width > 0) {
            let kept = kept(*width, wall);
            panes.retain(|(key, _)| kept.contains(&key.index));
        }
    }

    /// Starts a new era, as the wall clock was set: later traces go to other panes than earlier ones.
    pub(super) fn stepped(&mut self) {
        self.era = self.era.saturating_add(1);
    }

    /// The panes that changed since the last call, summed over eras; empty panes are removed.
    pub(super) fn drain(&mut self) -> Vec<PaneSum> {
        // Usually one of each width has changed.
        let mut sums = Vec::with_capacity(self.columns.len());
        for Column { width, panes } in &mut self.columns {
            let mut emptied = false;
            for eras in panes.chunk_by_mut(|(one, _), (next, _)| one.index == next.index) {
                let mut changed = false;
                for (_, pane) in eras.iter_mut() {
                    changed |= mem::take(&mut pane.changed);
                    emptied |= pane.is_empty();
                }
                if let Some(((key, first), rest)) = eras.split_first().filter(|_| changed) {
                    let others: Vec<&Pane> = rest.iter().map(|(_, pane)| pane).collect();
                    sums.push(first.sum(&others).message(*width, key.index));
                }
            }
            if emptied {
                panes.retain(|(_, pane)| !pane.is_empty());
            }
        }
        sums
    }

    fn change(&mut self, panes: PaneSet, end: Timestamp, mut change: impl FnMut(&mut Pane)) {
        for (column, key) in panes.keys(&self.widths, end) {
            let column = self.columns.get_mut(column);
            column.and_then(|column| column.pane(key)).into_iter().for_each(&mut change);
        }
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut Pane> {
        let panes = self.columns.iter_mut().flat_map(|column| &mut column.panes);
        panes.map(|(_, pane)| pane)
    }
}

impl Pane {
    fn observe(&mut self, trace: &Addend<'_>) {
        self.traces += 1;
        if let Some(level) = trace.level {
            self.risks += 1;
            *self.levels.entry(level).or_default() += 1;
        }
        if let Some(level) = trace.judged_level {
            *self.judged_levels.entry(level).or_default() += 1;
        }
        if let Some(uncertainty) = trace.uncertainty {
            self.uncertainty.observe(uncertainty);
        }
        let mut next = 0;
        for (name, score) in &trace.sums {
            let (count, sum) = self.signals.or_default_next(&mut next, name);
            *count += 1;
            *sum += i128::from(score.0);
        }
    }

    fn forget(&mut self, trace: &Addend<'_>) {
        self.traces -= 1;
        if let Some(level) = trace.level {
            self.risks -= 1;
            lower(&mut self.levels, level);
        }
        if let Some(level) = trace.judged_level {
            lower(&mut self.judged_levels, level);
        }
        if let Some(uncertainty) = trace.uncertainty {
            self.uncertainty.forget(uncertainty);
        }
        for (name, score) in &trace.sums {
            let Some((count, sum)) = self.signals.get_mut(*name) else { continue };
            *count -= 1;
            *sum -= i128::from(score.0);
            if *count == 0 {
                self.signals.remove(*name);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.traces == 0 && self.sessions == 0
    }

    /// The sum with these others; usually there are none.
    fn sum(&self, others: &[&Self]) -> Cow<'_, Self> {
        let mut sum = Cow::Borrowed(self);
        others.iter().for_each(|other| sum.to_mut().merge(other));
        sum
    }

    fn merge(&mut self, other: &Self) {
        self.traces += other.traces;
        self.risks += other.risks;
        for (level, count) in &other.levels {
            *self.levels.entry(*level).or_default() += count;
        }
        for (level, count) in &other.judged_levels {
            *self.judged_levels.entry(*level).or_default() += count;
        }
        self.uncertainty.merge(other.uncertainty);
        let mut next = 0;
        for (name, (count, sum)) in other.signals.iter() {
            let held = self.signals.or_default_next(&mut next, name);
            *held = (held.0 + count, held.1 + sum);
        }
        self.sessions += other.sessions;
        self.efforts.merge(&other.efforts);
    }

    fn message(&self, width_nanos: u64, index: u64) -> PaneSum {
        let levels = |levels: &BTreeMap<i32, u64>| {
            levels.iter().map(|(level, count)| Level { level: *level, count: *count }).collect()
        };
        let sums = self.signals.iter();
        let sums = sums.map(|(name, (count, sum_quanta))| {
            (name.into(), SignalSum { count: *count, sum_quanta: *sum_quanta })
        });
        PaneSum {
            width_nanos,
            index,
            traces: self.traces,
            risk_count: self.risks,
            levels: levels(&self.levels),
            judged_levels: levels(&self.judged_levels),
            uncertainty_count: self.uncertainty.count,
            uncertainty_squares: self.uncertainty.squares,
            signals: sums.collect(),
            sessions: self.sessions,
            efforts: self.efforts,
        }
    }
}

/// Lowers the count of a level by one.
fn lower(levels: &mut BTreeMap<i32, u64>, level: i32) {
    let left = levels.get_mut(&level).map(|count| {
        *count -= 1;
        *count
    });
    if left == Some(0) {
        levels.remove(&level);
    }
}

/// The widths of the panes of these windows, each once; a window without length has none.
pub(super) fn widths(windows: &[Duration]) -> Widths {
    let widths: BTreeSet<u64> = windows
        .iter()
        .filter_map(|window| u64::try_from(window.as_nanos() / u128::from(PANES)).ok())
        .filter(|width| *width > 0)
        .collect();
    Arc::new(widths.into_iter().collect())
}

/// A risk in steps of 1e-4, rounded half away from zero.
pub(super) fn level(risk: Quanta) -> i32 {
    let half = if risk.0 < 0 { -LEVEL / 2 } else { LEVEL / 2 };
    let level = risk.0.saturating_add(half) / LEVEL;
    i32::try_from(level).unwrap_or(if level < 0 { i32::MIN } else { i32::MAX })
}

/// The indexes of the panes that are kept: a window back from the wall clock, and as far ahead of it.
fn kept(width: u64, wall: Timestamp) -> std::ops::RangeInclusive<u64> {
    let open = wall.0 / width;
    open.saturating_sub(PANES + STRAGGLERS)..=open.saturating_add(PANES)
}

/// The pane that every done trace is in.
const EVERYTHING: PaneKey = PaneKey { index: 0, era: 0 };

/// How many of the newest panes are searched linearly before the binary search.
const NEWEST: usize = 4;

/// Panes kept beyond a window, for a receiver whose clock is a little behind.
const STRAGGLERS: u64 = 2;

/// Quanta in a level.
const LEVEL: i64 = Quanta::ONE / 10_000;

#[cfg(test)]
mod tests {
    use super::super::scoring::{Signal, UnjudgedScores};
    use super::*;
    use crate::facts::Effort;
    use crate::score::risk::TraceRisk;
    use crate::span::Source;

    #[test]
    fn a_level_is_rounded_half_away_from_zero() {
        let levels = [0, 49_999_999, 50_000_000, -50_000_000, -49_999_999, i64::MAX]
            .map(|quanta| level(Quanta(quanta)));
        assert_eq!(levels, [0, 0, 1, -1, 0, 92_233_720_368_i64.try_into().unwrap_or(i32::MAX)]);
    }

    #[test]
    fn a_trace_that_ended_before_a_window_is_only_in_the_pane_of_everything() {
        let panes = Panes::new(widths(&[Duration::from_secs(60), Duration::ZERO]));
        let now = Timestamp(1_000_000_000_000);
        let keys = |end| panes.of(end, now).keys(&panes.widths, end).collect::<Vec<_>>();
        let recent = keys(Timestamp(999_500_000_000));
        assert_eq!(recent, [(0, EVERYTHING), (1, PaneKey { index: 999, era: 0 })]);
        assert_eq!(keys(Timestamp(900_000_000_000)), [(0, EVERYTHING)]);
        assert_eq!(keys(Timestamp(2_000_000_000_000)), [(0, EVERYTHING)]);
    }

    #[test]
    fn panes_by_other_widths_are_the_same_as_far_as_there_are_such() {
        let (from, to) = ([10, 20, 30], [5, 10, 30, 60]);
        let set = PaneSet { bits: 0b1011, era: 7 };
        let end = Timestamp(300);
        // By column; the first is everything.
        let widths = |keys: &mut dyn Iterator<Item = (usize, PaneKey)>, widths: &[u64]| {
            keys.map(|(at, key)| (at.checked_sub(1).map(|at| widths[at]), key)).collect::<Vec<_>>()
        };
        let kept = widths(&mut set.translated(&from, &to).keys(&to, end), &to);
        let held = widths(&mut set.keys(&from, end), &from).into_iter();
        assert_eq!(kept, held.filter(|(width, _)| *width != Some(20)).collect::<Vec<_>>());
        assert_eq!(set.translated(&from, &from), set);
    }

    #[test]
    fn panes_leave_on_the_side_to_which_the_wall_clock_was_set() {
        let minute = Duration::from_secs(60);
        let observed = || {
            let mut panes = Panes::new(widths(&[minute]));
            for second in [970, 1_000, 1_030] {
                let end = Timestamp(second * 1_000_000_000);
                panes.observe(panes.of(end, end), end, &TraceScores::default());
            }
            panes
        };
        for (wall, left) in [(1_000, 3), (1_050, 2), (950, 2), (1_200, 0), (800, 0)] {
            let mut panes = observed();
            panes.expire(Timestamp(wall * 1_000_000_000));
            let kept: Vec<usize> = panes.columns.iter().map(|column| column.panes.len()).collect();
            assert_eq!(kept, [1, left], "at {wall}");
        }
    }

    #[test]
    fn a_pane_that_went_is_not_the_one_that_the_clock_comes_back_to() {
        let end = Timestamp(1_000_000_000_000);
        let mut panes = Panes::new(widths(&[Duration::from_secs(60)]));
        let (trace, later) = (TraceScores::default(), Timestamp(9_000_000_000_000));
        let before = panes.of(end, end);
        panes.observe(before, end, &trace);
        for wall in [later, end] {
            panes.stepped();
            panes.expire(wall);
        }
        let after = panes.of(end, end);
        panes.observe(after, end, &trace);
        panes.forget(before, end, &trace);
        let sums = panes.drain();
        assert_eq!(sums.iter().map(|sum| sum.traces).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn forgetting_a_trace_leaves_an_empty_pane_that_is_sent_once() {
        let mut panes = Panes::new(widths(&[Duration::from_secs(60)]));
        let end = Timestamp(5);
        let set = panes.of(end, end);
        let confidence = Signal { score: Quanta(5), source: Source::Judge, is_summed: true };
        let (risk, uncertainty) = (Some(Quanta(3)), Some(Quanta(4)));
        let trace = TraceScores {
            risk: TraceRisk { risk, uncertainty, ..TraceRisk::default() },
            signals: [("confidence".into(), confidence)].into_iter().collect(),
            unasked: Some(Box::new(UnjudgedScores {
                confidence: Some(Quanta(6)),
                ..UnjudgedScores::default()
            })),
        };
        panes.observe(set, end, &trace);
        let took = Some(EffortBuckets::from(&Effort { model_calls: 3, ..Effort::default() }));
        panes.mark(None, Some((end, set)), None);
        panes.spend(Some((end, set)), None, took);
        let sums = panes.drain();
        assert!(sums.len() == 2 && sums.iter().all(|sum| sum.efforts != EffortSums::default()));
        panes.forget(set, end, &trace);
        panes.mark(Some((end, set)), None, took);
        let sums = panes.drain();
        assert!(sums.iter().all(|sum| sum.traces == 0 && sum.judged_levels.is_empty()));
        assert!(sums.iter().all(|sum| sum.signals.is_empty() && sum.uncertainty_count == 0));
        assert!(sums.iter().all(|sum| sum.sessions == 0 && sum.efforts == EffortSums::default()));
        assert!(panes.drain().is_empty() && panes.is_empty());
    }
}
