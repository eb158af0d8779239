//! Windows: the panes of an agent, added up.
//!
//! Risks lie on a grid of 1e-4, as a sparse map from level to count. So a window is exact on that grid, panes are added and
//! subtracted without drift, and the sum over shards has the same bits in any order. The scores are within 5e-5 of the formula over
//! unrounded risks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::facts::{LastTrace, Level, PaneSum};
use super::math::{Quanta, ratio};
use super::predict::{EffortSums, Population};
use super::score::agent_consistency::AgentConsistency;
use super::score::agent_reliability::reliability;
use super::score::risk::FLAG_OVER;
use super::small_map::SmallMap;
use super::span::Timestamp;
use super::view::WindowView;

/// Number of panes that make a window together with the open one.
pub const PANES: u64 = 60;

/// The level of a risk of 1.
const LEVELS: i128 = 10_000;

/// The least level of a failing trace: its risk is over one half.
const FAILING: i32 = 5_001;

/// The sum of some panes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Window {
    traces: u64,
    sessions: u64,
    risks: u64,
    levels: BTreeMap<i32, u64>,
    judged_levels: BTreeMap<i32, u64>,
    consistency: AgentConsistency,
    signals: SmallMap<Cow<'static, str>, (u64, i128)>,
    efforts: EffortSums,
}

impl Window {
    /// Its sessions, without their outcomes.
    pub fn population(&self) -> Population {
        Population { sessions: self.sessions, efforts: self.efforts, ..Population::default() }
    }

    /// Adds a pane.
    pub fn add(&mut self, pane: &PaneSum) {
        self.replace(&PaneSum::default(), pane);
    }

    /// Subtracts a pane that was added.
    pub fn remove(&mut self, pane: &PaneSum) {
        self.replace(pane, &PaneSum::default());
    }

    /// Replaces a pane that was added; only the differences are touched.
    pub fn replace(&mut self, before: &PaneSum, after: &PaneSum) {
        self.traces = self.traces - before.traces + after.traces;
        self.sessions = self.sessions - before.sessions + after.sessions;
        self.efforts.unmerge(&before.efforts);
        self.efforts.merge(&after.efforts);
        self.risks = self.risks - before.risk_count + after.risk_count;
        replace_levels(&mut self.levels, &before.levels, &after.levels);
        replace_levels(&mut self.judged_levels, &before.judged_levels, &after.judged_levels);
        self.consistency.unmerge(consistency(before));
        self.consistency.merge(consistency(after));
        self.add_signals(after.signals.iter().map(|(name, sum)| (name, sum.count, sum.sum_quanta)));
        let mut next = 0;
        for (name, sum) in before.signals.iter() {
            let held = self.signals.or_default_next(&mut next, name);
            *held = (held.0 - sum.count, held.1 - sum.sum_quanta);
        }
        self.signals.retain(|_, (count, _)| *count > 0);
    }

    /// Adds another window.
    pub fn merge(&mut self, other: &Self) {
        self.traces += other.traces;
        self.sessions += other.sessions;
        self.efforts.merge(&other.efforts);
        self.risks += other.risks;
        for (level, count) in &other.levels {
            *self.levels.entry(*level).or_default() += count;
        }
        for (level, count) in &other.judged_levels {
            *self.judged_levels.entry(*level).or_default() += count;
        }
        self.consistency.merge(other.consistency);
        self.add_signals(other.signals.iter().map(|(name, (count, sum))| (name, *count, *sum)));
    }

    fn add_signals<'a>(
        &mut self,
        signals: impl Iterator<Item = (&'a Cow<'static, str>, u64, i128)>,
    ) {
        let mut next = 0;
        for (name, count, sum) in signals {
            let held = self.signals.or_default_next(&mut next, name);
            *held = (held.0 + count, held.1 + sum);
        }
    }

    /// The scores and the signals.
    pub fn view(&self) -> WindowView {
        let mean = |(name, (count, sum)): (&Cow<'static, str>, &(u64, i128))| {
            (name.clone(), ratio(*sum, i128::from(*count) * i128::from(Quanta::ONE)))
        };
        WindowView { signals: self.signals.iter().map(mean).collect(), ..self.scores() }
    }

    /// The scores; each is `None` over nothing.
    pub fn scores(&self) -> WindowView {
        let over = |levels: &BTreeMap<i32, u64>, traces: u64| {
            let greatest_first =
                levels.iter().rev().map(|(level, count)| (i128::from(*level), *count));
            reliability(traces, greatest_first, LEVELS)
        };
        let judged = self.judged_levels.values().sum::<u64>();
        let (reliability, with_judge) =
            (over(&self.levels, self.risks), over(&self.judged_levels, judged));
        let failing = self.levels.range(FAILING..).map(|(_, count)| count).sum::<u64>();
        let whole = i128::from(self.risks);
        WindowView {
            traces: self.traces,
            sessions: self.sessions,
            traces_evaluated: self.risks,
            traces_with_confidence: self.consistency.count,
            traces_judged: judged,
            judged_reliability: with_judge.map(|found| found.score),
            reliability: reliability.map(|found| found.score),
            failure_ratio: (self.risks > 0).then(|| ratio(i128::from(failing), whole)),
            consistency: self.consistency.result().map(|found| found.score),
            max_risk: reliability.map(|found| found.max_risk),
            ..WindowView::default()
        }
    }
}

/// The scores of the last `max` traces by (start, trace id), unrounded.
pub fn last_traces<'a>(
    last: impl Iterator<Item = &'a LastTrace> + Clone,
    max: usize,
) -> WindowView {
    let mut traces: Vec<&LastTrace> = Vec::with_capacity(last.clone().count());
    traces.extend(last);
    traces.sort_by(|a, b| (b.start_unix_nano, &b.trace_id).cmp(&(a.start_unix_nano, &a.trace_id)));
    traces.truncate(max);
    let mut risks = Vec::with_capacity(traces.len());
    risks.extend(traces.iter().filter_map(|trace| trace.risk_quanta));
    risks.sort_unstable_by(|a, b| b.cmp(a));
    let failing = risks.iter().take_while(|risk| **risk > FLAG_OVER.0).count() as u64;
    let whole = i128::from(risks.len() as u64);
    let greatest_first = risks.iter().map(|risk| (i128::from(*risk), 1));
    let found = reliability(risks.len() as u64, greatest_first, i128::from(Quanta::ONE));
    let mut judged: Vec<i64> = traces.iter().filter_map(|trace| trace.judged_quanta).collect();
    judged.sort_unstable_by(|a, b| b.cmp(a));
    let greatest_first = judged.iter().map(|risk| (i128::from(*risk), 1));
    let with_judge = reliability(judged.len() as u64, greatest_first, i128::from(Quanta::ONE));
    let mut consistency = AgentConsistency::default();
    traces
        .iter()
        .filter_map(|trace| trace.uncertainty_quanta)
        .for_each(|one| consistency.observe(Quanta(one)));
    WindowView {
        traces: traces.len() as u64,
        traces_evaluated: risks.len() as u64,
        traces_with_confidence: consistency.count,
        traces_judged: judged.len() as u64,
        judged_reliability: with_judge.map(|found| found.score),
        reliability: found.map(|found| found.score),
        failure_ratio: (whole > 0).then(|| ratio(i128::from(failing), whole)),
        consistency: consistency.result().map(|found| found.score),
        max_risk: found.map(|found| found.max_risk),
        ..WindowView::default()
    }
}

/// Subtracts some levels and adds others, both in order.
fn replace_levels(held: &mut BTreeMap<i32, u64>, mut before: &[Level], mut after: &[Level]) {
    loop {
        let level = match (before, after) {
            ([one, less @ ..], [other, more @ ..]) if one == other => {
                (before, after) = (less, more);
                continue;
            }
            ([one, ..], [other, ..]) => one.level.min(other.level),
            ([one, ..], []) | ([], [one, ..]) => one.level,
            ([], []) => return,
        };
        let (less, more) = (take(&mut before, level), take(&mut after, level));
        let count = held.entry(level).or_default();
        *count = *count - less + more;
        if *count == 0 {
            held.remove(&level);
        }
    }
}

/// Removes the first level if it is this one, and returns its count; else returns 0.
fn take(levels: &mut &[Level], level: i32) -> u64 {
    match levels {
        [first, rest @ ..] if first.level == level => {
            *levels = rest;
            first.count
        }
        _ => 0,
    }
}

fn consistency(pane: &PaneSum) -> AgentConsistency {
    AgentConsistency { count: pane.uncertainty_count, squares: pane.uncertainty_squares }
}

/// The name of a window: `90s`, `5m`, `24h`.
pub fn window_name(window: Duration) -> String {
    let seconds = window.as_secs();
    match seconds {
        seconds if seconds > 0 && seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        seconds if seconds > 0 && seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

/// The start of a window: the least end of a trace in it.
pub(super) fn window_begin(window: Duration, wall: Timestamp) -> Timestamp {
    let width = pane_width(window);
    Timestamp((wall.0 / width).saturating_sub(PANES) * width)
}

/// The width of a window's panes in nanoseconds: a sixtieth of it, at least one.
pub(super) fn pane_width(window: Duration) -> u64 {
    u64::try_from(window.as_nanos() / u128::from(PANES)).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::score::agent_reliability::AgentReliability;

    #[test]
    fn windows_are_named_as_queries_write_them() {
        let names =
            [90, 300, 3_600, 86_400].map(|seconds| window_name(Duration::from_secs(seconds)));
        assert_eq!(names, ["90s", "5m", "1h", "24h"]);
    }

    fn pane(risks: &[f64]) -> PaneSum {
        let level =
            |risk: &f64| Level { level: format!("{:.0}", risk * 1e4).parse().unwrap(), count: 1 };
        PaneSum {
            traces: risks.len() as u64,
            risk_count: risks.len() as u64,
            levels: risks.iter().map(level).collect(),
            ..PaneSum::default()
        }
    }

    proptest! {
        #[test]
        fn a_window_is_within_half_a_level_of_the_formula(risks in prop::collection::vec(0.0..1.0_f64, 1..200), split in 0..200_usize) {
            let (left, right) = risks.split_at(split.min(risks.len()));
            let mut window = Window::default();
            window.add(&pane(left));
            window.add(&pane(right));
            let mut exact = AgentReliability::default();
            risks.iter().for_each(|risk| exact.observe(Quanta::from_f64(*risk).unwrap()));
            let difference = window.view().reliability.unwrap() - exact.result().unwrap().score;
            prop_assert!(difference.abs() <= 5e-5 + 1e-12, "{difference}");
        }

        #[test]
        fn taking_a_pane_back_undoes_adding_it(left in prop::collection::vec(0.0..1.0_f64, 0..20), right in prop::collection::vec(0.0..1.0_f64, 0..20)) {
            let mut window = Window::default();
            window.add(&pane(&left));
            let mut before = window.clone();
            window.add(&pane(&right));
            window.remove(&pane(&right));
            prop_assert_eq!(&window, &before);
            window.add(&pane(&right));
            window.replace(&pane(&right), &pane(&left));
            before.add(&pane(&left));
            prop_assert_eq!(window, before);
        }
    }

    #[test]
    fn the_last_traces_are_the_greatest_by_start_and_id() {
        let trace = |start: u64, risk: i64| LastTrace {
            start_unix_nano: start,
            risk_quanta: Some(risk * Quanta::ONE / 10),
            ..LastTrace::default()
        };
        let traces = [trace(3, 2), trace(1, 9), trace(2, 1)];
        let view = last_traces(traces.iter(), 2);
        assert_eq!((view.traces, view.max_risk), (2, Some(0.2)));
        assert_eq!(last_traces([].iter(), 2).reliability, None);
    }
}
