//! Distributions of the effort of an agent's runs. Runs can be subtracted exactly, and the bits do not depend on the order of runs
//! or on the shards that hold them, except for runs of weeks that had been dropped before they arrived.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::results::Results;
use crate::facts::{Effort, PartialSum, ScopedId};
use crate::named::named;
use crate::span::Timestamp;

/// Least number of runs among which others are ranked.
pub const LEAST_RUNS: u64 = 20;

/// Weeks that are kept: the latest ones that have runs. After two weeks of light work, such as holidays, most of the kept runs are
/// still those of usual weeks.
const WEEKS: usize = 6;

const WEEK: u64 = 7 * 24 * 3_600_000_000_000;

named! {
    /// A measure of a run.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Measure {
        /// Model calls.
        ModelCalls = "model_calls",
        /// Tool calls.
        ToolCalls = "tool_calls",
        /// Tokens written.
        OutputTokens = "output_tokens",
        /// Cost.
        Cost = "cost",
        /// Time.
        Duration = "duration",
        /// Time of the longest call of a model or a tool.
        LongestCall = "longest_call",
        /// Distinct words of the last answer.
        Answer = "answer",
    }
}

impl Measure {
    /// Whether more of it is more effort.
    pub fn is_effort(self) -> bool {
        self != Self::Answer
    }

    /// The bucket of a run; 0 if not known.
    pub(super) fn bucket(self, effort: &Effort) -> f64 {
        self.of(effort).map_or(0.0, |value| f64::from(bucket(value)))
    }

    /// The value for a run; `None` if not known.
    pub fn of(self, effort: &Effort) -> Option<u64> {
        Self::all_of(effort)[self as usize]
    }

    /// The values of all measures for a run, in their order; `None` if not known.
    fn all_of(effort: &Effort) -> [Option<u64>; Self::ALL.len()] {
        let bucket_value =
            |bucket_value: PartialSum| (bucket_value.traces > 0).then_some(bucket_value.sum);
        [
            Some(effort.model_calls),
            Some(effort.tool_calls),
            bucket_value(effort.output_tokens),
            bucket_value(effort.cost_quanta),
            Some(effort.nanos),
            Some(effort.longest_call_nanos),
            effort.answer_words,
        ]
    }
}

/// The buckets of a run, by measure: everything that distributions and sums use of it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct EffortBuckets([u16; Measure::ALL.len()]);

impl From<&Effort> for EffortBuckets {
    fn from(effort: &Effort) -> Self {
        Self(Measure::all_of(effort).map(|value| value.map_or(UNTOLD, bucket)))
    }
}

impl EffortBuckets {
    /// The buckets of a run about which nothing is known.
    const NOTHING: Self = Self([UNTOLD; Measure::ALL.len()]);

    /// The bucket of each measure; `None` if not known.
    fn each(self) -> [Option<u16>; Measure::ALL.len()] {
        self.0.map(bucket_value)
    }

    /// For each measure, the bucket of this run and that of another; `None` if they are the same.
    fn changes_to(self, after: Self) -> impl Iterator<Item = Option<Change>> {
        let both = self.0.into_iter().zip(after.0);
        both.map(|(before, after)| {
            (before != after).then(|| (bucket_value(before), bucket_value(after)))
        })
    }
}

/// The buckets of two runs, where known.
type Change = (Option<u16>, Option<u16>);

/// The bucket of an unknown value; no number is in it.
const UNTOLD: u16 = u16::MAX;

/// The distribution of efforts, by measure and by the week in which runs started: one list, as it is copied often.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(from = "Weeks", into = "Weeks")]
pub struct Spread(
    // Numbers of runs by measure, week and bucket, in this order; places without runs are left out. Invariant: every run has a
    // number of model calls, the first measure.
    Vec<(Place, u32)>,
);

/// A measure in the upper three bits, a week in the next sixteen, a bucket in the rest.
type Place = u32;

/// Bits of a place for a bucket, and for a bucket and a week.
const BUCKET_BITS: u32 = 13;
const MEASURE_SHIFT: u32 = 29;

/// A distribution of efforts as it is serialised: weeks, and in them the buckets of each measure.
#[derive(Deserialize, Serialize)]
struct Weeks {
    weeks: BTreeMap<u64, [Counts; Measure::ALL.len()]>,
}

/// Numbers of runs by bucket, in the order of the buckets; buckets without runs are left out.
type Counts = Vec<(u16, u32)>;

/// The start of a run, and its effort.
pub type StartedRun = (Timestamp, EffortBuckets);

impl Spread {
    /// Adds a run that started at `start`, unless that is in a week before the kept ones.
    pub fn add(&mut self, start: Timestamp, effort: impl Into<EffortBuckets>) {
        let week = week_of(start);
        if !self.has(week)
            && let weeks = self.weeks()
            && let Some(first) = weeks.first().filter(|_| weeks.len() == WEEKS)
        {
            if week < *first {
                return;
            }
            self.0.retain(|(held, _)| week_in(*held) != *first);
        }
        for (measure, bucket) in (0..).zip(effort.into().each()) {
            bucket.into_iter().for_each(|bucket| add(&mut self.0, place(week, measure, bucket), 1));
        }
    }

    /// The distribution of these efforts, whatever the starts of the runs.
    pub fn of_runs<'e>(efforts: impl IntoIterator<Item = &'e Effort>) -> Self {
        let mut spread = Self::default();
        efforts.into_iter().for_each(|effort| spread.add(Timestamp::default(), effort));
        spread
    }

    /// Subtracts a run that was added.
    pub fn remove(&mut self, start: Timestamp, effort: impl Into<EffortBuckets>) {
        let week = week_of(start);
        for (measure, bucket) in (0..).zip(effort.into().each()) {
            bucket.into_iter().for_each(|bucket| remove(&mut self.0, place(week, measure, bucket)));
        }
    }

    /// Subtracts a run that was added, if `before` is one, and adds another, if `after` is one; only the differences are touched.
    pub fn replace(&mut self, before: Option<StartedRun>, after: Option<StartedRun>) {
        if let (Some((start, before)), Some((other, after))) = (before, after)
            && week_of(start) == week_of(other)
            && self.has(week_of(start))
        {
            let week = week_of(start);
            for (measure, change) in (0..).zip(before.changes_to(after)) {
                let at = |bucket| place(week, measure, bucket);
                let (before, after) = change.unwrap_or_default();
                before.into_iter().for_each(|bucket| remove(&mut self.0, at(bucket)));
                after.into_iter().for_each(|bucket| add(&mut self.0, at(bucket), 1));
            }
            return;
        }
        before.into_iter().for_each(|(start, effort)| self.remove(start, effort));
        after.into_iter().for_each(|(start, effort)| self.add(start, effort));
    }

    /// Whether any run started in a week after the next one, because the wall clock was set back since: it would count among the
    /// latest ones until that week is over.
    pub fn is_ahead(&self, wall: Timestamp) -> bool {
        self.weeks().last().is_some_and(|last| *last >= first_ahead(wall))
    }

    /// Removes such runs.
    pub fn forget_ahead(&mut self, wall: Timestamp) {
        self.0.retain(|(held, _)| week_in(*held) < first_ahead(wall));
    }

    /// The sum of these distributions, over the latest weeks of any of them, as many as are kept.
    pub fn of_all(spreads: &[Arc<Self>]) -> Self {
        let all = spreads.iter().flat_map(|spread| &spread.0);
        let mut all: Vec<(Place, u32)> = all.copied().collect();
        all.sort_unstable();
        all.dedup_by(|(place, more), (before, runs)| {
            let same = place == before;
            *runs = runs.saturating_add(if same { *more } else { 0 });
            same
        });
        let mut all = Self(all);
        let first = all.weeks().into_iter().rev().nth(WEEKS - 1).unwrap_or(0);
        all.0.retain(|(place, _)| week_in(*place) >= first);
        all
    }

    /// The share of runs that took less than `value`, in `[0,1]`; runs in the same bucket count half. `None` with fewer than
    /// [`LEAST_RUNS`] known values.
    pub(crate) fn rank(&self, measure: Measure, value: u64) -> Option<f64> {
        let own = bucket(value);
        let (mut less, mut alike, mut more) = (0, 0, 0);
        for (held, runs) in self.of(measure) {
            let sum = match held.cmp(&own) {
                Ordering::Less => &mut less,
                Ordering::Equal => &mut alike,
                Ordering::Greater => &mut more,
            };
            *sum += u64::from(runs);
        }
        rank(less, alike, less + alike + more)
    }

    /// Whether it holds no run.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The buckets of a measure, with their runs, in order within a week.
    fn of(&self, measure: Measure) -> impl Iterator<Item = (u16, u32)> {
        let measure = measure as u32;
        let counts = &self.0[self.before(place(0, measure, 0))..];
        let own = counts.iter().take_while(move |(at, _)| at >> MEASURE_SHIFT == measure);
        own.map(|(at, runs)| (bucket_of(*at), *runs))
    }

    /// Whether any run started in a week.
    fn has(&self, week: u32) -> bool {
        let first = self.0.get(self.before(place(week, 0, 0)));
        first.is_some_and(|(held, _)| *held >> BUCKET_BITS == week)
    }

    /// The weeks that have runs, in order.
    fn weeks(&self) -> SmallVec<[u32; WEEKS]> {
        let (mut weeks, mut at) = (SmallVec::new(), 0);
        while let Some((held, _)) = self.0.get(at).filter(|(held, _)| held >> MEASURE_SHIFT == 0) {
            let week = week_in(*held);
            weeks.push(week);
            at = self.before(place(week + 1, 0, 0));
        }
        weeks
    }

    /// The number of places before this one.
    fn before(&self, place: Place) -> usize {
        self.0.partition_point(|(held, _)| *held < place)
    }
}

impl From<Weeks> for Spread {
    fn from(Weeks { weeks }: Weeks) -> Self {
        let mut spread = Self::default();
        for (week, counts) in weeks.iter().rev().take(WEEKS) {
            let week = u32::from(u16::try_from(*week).unwrap_or(u16::MAX));
            for (measure, counts) in (0..).zip(counts) {
                for (bucket, runs) in counts {
                    add(&mut spread.0, place(week, measure, *bucket), *runs);
                }
            }
        }
        spread
    }
}

impl From<Spread> for Weeks {
    fn from(spread: Spread) -> Self {
        let mut weeks: BTreeMap<u64, [Counts; Measure::ALL.len()]> = BTreeMap::new();
        for (place, runs) in spread.0 {
            let week = weeks.entry(week_in(place).into()).or_default();
            let measure = place >> MEASURE_SHIFT;
            if let Some(counts) = week.iter_mut().zip(0..).find(|(_, of)| *of == measure) {
                counts.0.push((bucket_of(place), runs));
            }
        }
        Self { weeks }
    }
}

/// A distribution prepared to rank many runs: for each measure the buckets of all weeks in order, each with the number of runs in
/// it or below.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking([Vec<(u16, u64)>; Measure::ALL.len()]);

impl From<&Spread> for Ranking {
    fn from(spread: &Spread) -> Self {
        Self(Measure::ALL.map(|measure| {
            let mut counts = Counts::new();
            spread.of(measure).for_each(|(bucket, runs)| add(&mut counts, bucket, runs));
            let mut below = 0;
            let summed = counts.into_iter().map(|(bucket, runs)| {
                below += u64::from(runs);
                (bucket, below)
            });
            summed.collect()
        }))
    }
}

impl Ranking {
    /// The rank of a value; see [`Spread::rank`].
    pub(super) fn rank(&self, measure: Measure, value: u64) -> Option<f64> {
        self.rank_of(measure, bucket(value))
    }

    fn rank_of(&self, measure: Measure, own: u16) -> Option<f64> {
        let summed = &self.0[measure as usize];
        let (below, others) = summed.split_at(summed.partition_point(|(held, _)| *held < own));
        let less = below.last().map_or(0, |(_, runs)| *runs);
        let same = others.first().filter(|(held, _)| *held == own);
        rank(less, same.map_or(0, |(_, runs)| runs - less), summed.last()?.1)
    }

    /// The number of these runs apart from one with this effort, which is among them, and their mean effort by its ranks among
    /// `all`; `None` if there are no others, or no rank is known.
    pub(super) fn others(&self, effort: &Effort, all: &Self) -> Option<(u64, f64)> {
        let means = Measure::ALL.into_iter().filter(|measure| measure.is_effort());
        let means = means.filter_map(|measure| {
            let own = measure.of(effort).map(bucket);
            let (mut ranks, mut runs, mut before) = (0.0, 0, 0);
            for (bucket, below) in &self.0[measure as usize] {
                let others = below - before - u64::from(own == Some(*bucket));
                before = *below;
                ranks += others as f64 * all.rank_of(measure, *bucket)?;
                runs += others;
            }
            (runs > 0).then(|| (runs, ranks / runs as f64))
        });
        let (mut others, mut sum, mut measures) = (0, 0.0, 0_u32);
        for (runs, mean) in means {
            (others, sum, measures) = (runs.max(others), sum + mean, measures + 1);
        }
        (measures > 0).then(|| (others, sum / f64::from(measures)))
    }

    /// Mean and standard deviation of the runs' buckets; `None` with fewer than [`LEAST_RUNS`] known values, or if all buckets are
    /// equal.
    pub(super) fn moments(&self, measure: Measure) -> Option<(f64, f64)> {
        let (mut runs, mut sum, mut squares) = (0_u64, 0_u64, 0_u64);
        for (bucket, below) in &self.0[measure as usize] {
            let (bucket, count) = (u64::from(*bucket), below - runs);
            runs = *below;
            sum += count * bucket;
            squares += count * bucket * bucket;
        }
        if runs < LEAST_RUNS {
            return None;
        }
        let mean = sum as f64 / runs as f64;
        let variance = squares as f64 / runs as f64 - mean * mean;
        (variance > 0.0).then(|| (mean, variance.sqrt()))
    }
}

/// The rankings of one agent.
#[derive(Clone, Debug, Default)]
pub struct Rankings {
    /// The ranking of whole sessions.
    pub sessions: Ranking,
    /// The ranking of single traces.
    pub traces: Ranking,
    /// The runs at tasks that have two or more.
    pub tasks: Arc<BTreeMap<Arc<str>, TaskRuns>>,
}

/// The runs at one task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskRuns {
    /// The ranking of all.
    pub ranking: Ranking,
    /// The tool results of the last [`MOST_COMPARED`] runs, by session.
    pub results: Vec<(Arc<ScopedId>, Results)>,
}

/// Most runs of one task whose results are compared.
pub const MOST_COMPARED: usize = 100;

impl TaskRuns {
    /// The number of other runs whose results can be compared with those of this session's run, and the mean share that differs;
    /// `None` if there are none.
    pub(super) fn difference(&self, session: &ScopedId) -> Option<(u64, f64)> {
        let (_, own) = self.results.iter().find(|(other, _)| **other == *session)?;
        let others = self.results.iter().filter(|(other, _)| **other != *session);
        let common = others.filter_map(|(_, results)| own.in_common(results));
        let (others, sum) =
            common.fold((0, 0.0), |(others, sum), common| (others + 1, sum + common));
        (others > 0).then(|| (others, 1.0 - sum / others as f64))
    }
}

/// Sums of the efforts of many runs, by measure: how many values are known, and the sum of their buckets. Runs can be subtracted
/// exactly.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct EffortSums([PartialSum; Measure::ALL.len()]);

impl EffortSums {
    /// Subtracts the effort of a run, if `before` is one, and adds that of another, if `after` is one; only the differences are
    /// touched. Not inlined, so that its instructions can be counted.
    #[inline(never)]
    pub fn replace(&mut self, before: Option<EffortBuckets>, after: Option<EffortBuckets>) {
        let [before, after] = [before, after].map(|of| of.unwrap_or(EffortBuckets::NOTHING).0);
        for ((held, before), after) in self.0.iter_mut().zip(before).zip(after) {
            if before != after {
                let (one, other) = (told_sum(before), told_sum(after));
                held.traces = held.traces.saturating_sub(one.traces).saturating_add(other.traces);
                held.sum = held.sum.saturating_sub(one.sum).saturating_add(other.sum);
            }
        }
    }

    /// Adds the sums of other runs.
    pub fn merge(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    /// Subtracts the sums of other runs, which were added.
    pub fn unmerge(&mut self, other: &Self) {
        self.combine(other, u64::saturating_sub);
    }

    /// The number of runs with a known value of a measure, and the sum of their buckets.
    pub(super) fn sums_of(&self, measure: Measure) -> PartialSum {
        self.0[measure as usize]
    }

    fn combine(&mut self, other: &Self, of: impl Fn(u64, u64) -> u64) {
        for (held, other) in self.0.iter_mut().zip(&other.0) {
            *held =
                PartialSum { traces: of(held.traces, other.traces), sum: of(held.sum, other.sum) };
        }
    }
}

fn bucket_value(bucket: u16) -> Option<u16> {
    (bucket != UNTOLD).then_some(bucket)
}

/// The contribution of the bucket of one run to a sum.
fn told_sum(bucket: u16) -> PartialSum {
    let sum = if bucket == UNTOLD { 0 } else { bucket.into() };
    PartialSum { traces: u64::from(bucket != UNTOLD), sum }
}

/// The share of runs that took less, with those in the same bucket counted half; `None` with fewer than [`LEAST_RUNS`] runs.
fn rank(less: u64, alike: u64, all: u64) -> Option<f64> {
    (all >= LEAST_RUNS).then(|| (less as f64 + alike as f64 / 2.0) / all as f64)
}

fn add<K: Copy + Ord>(counts: &mut Vec<(K, u32)>, key: K, runs: u32) {
    match counts.binary_search_by_key(&key, |(held, _)| *held) {
        Ok(at) => counts[at].1 = counts[at].1.saturating_add(runs),
        Err(at) => counts.insert(at, (key, runs)),
    }
}

fn remove(counts: &mut Vec<(Place, u32)>, place: Place) {
    let Ok(at) = counts.binary_search_by_key(&place, |(held, _)| *held) else { return };
    counts[at].1 = counts[at].1.saturating_sub(1);
    if counts[at].1 == 0 {
        counts.remove(at);
    }
}

/// The week of a start. Timestamps have 30,500 weeks.
fn week_of(start: Timestamp) -> u32 {
    u32::try_from(start.0 / WEEK).unwrap_or(0)
}

/// The week after the next one.
fn first_ahead(wall: Timestamp) -> u32 {
    week_of(wall) + 2
}

/// The place of a bucket of a measure in a week. There are fewer than 1,000 buckets.
fn place(week: u32, measure: u32, bucket: u16) -> Place {
    (measure << MEASURE_SHIFT) | (week << BUCKET_BITS) | u32::from(bucket)
}

/// The week of a place.
fn week_in(place: Place) -> u32 {
    (place & ((1 << MEASURE_SHIFT) - 1)) >> BUCKET_BITS
}

/// The bucket of a place.
fn bucket_of(place: Place) -> u16 {
    u16::try_from(place & ((1 << BUCKET_BITS) - 1)).unwrap_or(UNTOLD)
}

/// The bucket of a number: numbers below 32 have one each; above, each power of two is divided into sixteen.
fn bucket(value: u64) -> u16 {
    let Some(octave) = value.checked_ilog2().filter(|octave| *octave >= 5) else {
        return u16::try_from(value).unwrap_or(u16::MAX);
    };
    let within = (value >> (octave - 4)) & 15;
    u16::try_from(32 + u64::from(octave - 5) * 16 + within).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(model_calls: u64) -> Effort {
        Effort { model_calls, ..Effort::default() }
    }

    #[test]
    fn buckets_are_in_the_order_of_numbers_and_a_sixteenth_wide() {
        let mut last = bucket(0);
        for value in 1..100_000_u64 {
            let next = bucket(value);
            assert!(next == last || next == last + 1, "{value}: {last}, {next}");
            last = next;
        }
        assert!(bucket(1000) < bucket(1064) && bucket(u64::MAX) < 1000);
    }

    #[test]
    fn a_run_is_ranked_once_there_are_twenty() {
        let mut spread = Spread::default();
        for calls in 0..19 {
            spread.add(Timestamp(5), &run(calls));
        }
        assert_eq!(spread.rank(Measure::ModelCalls, 18), None);
        spread.add(Timestamp(5), &run(19));
        assert_eq!(spread.rank(Measure::ModelCalls, 19), Some(0.975));
        assert_eq!(spread.rank(Measure::ModelCalls, 100), Some(1.0));
        assert_eq!(spread.rank(Measure::OutputTokens, 100), None);
        assert_eq!(Ranking::from(&spread).rank(Measure::OutputTokens, 100), None);
    }

    #[test]
    fn only_the_last_six_weeks_count() {
        let mut spread = Spread::default();
        for week in [1, 0, 2, 3, 4, 5, 7] {
            for _ in 0..20 {
                spread.add(Timestamp(week * WEEK), &run(week));
            }
        }
        assert_eq!(spread.rank(Measure::ModelCalls, 1), Some(10.0 / 120.0));
        assert_eq!(spread.rank(Measure::ModelCalls, 7), Some(110.0 / 120.0));
    }

    #[test]
    fn runs_of_weeks_to_come_are_left_out() {
        let mut spread = Spread::default();
        for week in [1, 2, 3, 9] {
            (0..20).for_each(|_| spread.add(Timestamp(week * WEEK), &run(week)));
        }
        let wall = Timestamp(2 * WEEK + 5);
        assert!(spread.is_ahead(wall) && !spread.is_ahead(Timestamp(8 * WEEK)));
        let before = spread.clone();
        spread.forget_ahead(Timestamp(8 * WEEK));
        assert_eq!(spread, before);
        spread.forget_ahead(wall);
        assert!(!spread.is_ahead(wall));
        assert_eq!(spread.weeks()[..], [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn any_order_and_split_says_the_same_and_what_is_taken_back_leaves_nothing(
            runs in prop::collection::vec((0..9_u64, 0..50_u64, any::<bool>()), 20..60),
        ) {
            let (mut one, mut first, mut second) = <(Spread, Spread, Spread)>::default();
            for (week, calls, _) in &runs {
                one.add(Timestamp(week * WEEK), &run(*calls));
            }
            for (week, calls, split) in runs.iter().rev() {
                let shard = if *split { &mut first } else { &mut second };
                shard.add(Timestamp(week * WEEK), &run(*calls));
            }
            let parts = [Arc::new(first), Arc::new(second)];
            prop_assert_eq!(&Spread::of_all(&parts), &one);
            let ranking = Ranking::from(&one);
            for calls in 0..60 {
                let rank = one.rank(Measure::ModelCalls, calls);
                prop_assert_eq!(ranking.rank(Measure::ModelCalls, calls), rank);
            }
            for (week, calls, _) in &runs {
                one.remove(Timestamp(week * WEEK), &run(*calls));
            }
            prop_assert!(one.is_empty());
        }

        #[test]
        fn a_run_in_the_place_of_another_is_one_taken_back_and_one_added(
            held in prop::collection::vec((0..2_u64, 0..50_u64), 1..20),
            moves in prop::collection::vec(
                (0..20_usize, prop::option::of((0..2_u64, 0..50_u64, any::<bool>()))),
                1..20,
            ),
        ) {
            let started = |week: u64, calls: u64, tells: bool| {
                let tokens = PartialSum { traces: u64::from(tells), sum: calls };
                let effort = Effort { output_tokens: tokens, ..run(calls) };
                (Timestamp(week * WEEK), EffortBuckets::from(&effort))
            };
            let mut runs: Vec<Option<StartedRun>> =
                held.iter().map(|(week, calls)| Some(started(*week, *calls, true))).collect();
            let (mut one, mut sums) = <(Spread, EffortSums)>::default();
            for run in &runs {
                one.replace(None, *run);
                sums.replace(None, run.map(|(_, effort)| effort));
            }
            let (mut other, mut others) = (one.clone(), sums);
            for (at, to) in moves {
                let after = to.map(|(week, calls, tells)| started(week, calls, tells));
                let at = at % runs.len();
                let before = std::mem::replace(&mut runs[at], after);
                one.replace(before, after);
                before.into_iter().for_each(|(start, effort)| other.remove(start, effort));
                after.into_iter().for_each(|(start, effort)| other.add(start, effort));
                sums.replace(before.map(|(_, effort)| effort), after.map(|(_, effort)| effort));
                others.replace(before.map(|(_, effort)| effort), None);
                others.replace(None, after.map(|(_, effort)| effort));
            }
            prop_assert_eq!((one, sums), (other, others));
        }
    }
}
