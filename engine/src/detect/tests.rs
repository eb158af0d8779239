//! What a detector decides, on simulated streams of fixed seeds; `docs/detection.md` has the figures of many more.

use std::time::Duration;

use proptest::prelude::*;

use super::baseline::ValueSum;
use super::budget::Budget;
use super::evidence::{BETS, Evidence, WEIGHTS};
use super::*;
use crate::span::Timestamp;

const MINUTE: u64 = 60_000_000_000;

/// A stream of one value a minute, or as often as it says.
struct Stream {
    detector: Detector,
    gap: Duration,
    limits: DropLimits,
    now: Timestamp,
    random: u64,
}

impl Stream {
    fn new(seed: u64) -> Self {
        let limits = DropOptions::default().limits(3);
        let (detector, gap) = (Detector::default(), Duration::from_secs(60));
        Self { detector, gap, limits, now: Timestamp(MINUTE), random: seed }
    }

    /// With so many values of the past.
    fn after(seed: u64, level: f64, count: u32) -> Self {
        Self::every(60, seed, level, count)
    }

    /// With so many values of the past, each so many seconds after the one before.
    fn every(seconds: u64, seed: u64, level: f64, count: u32) -> Self {
        let limits = DropOptions { objective: 0.9_f64.min(0.95 - level), ..DropOptions::default() };
        let (limits, gap) = (limits.limits(3), Duration::from_secs(seconds));
        let mut stream = Self { limits, gap, ..Self::new(seed) };
        assert!(!stream.verdicts(level, count).contains(&Severity::Critical));
        stream
    }

    /// In `[0,1)`.
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn value(&mut self, value: Observation) -> Option<Severity> {
        self.now = self.now.after(self.gap);
        self.detector.observe(self.now, value, &self.limits)
    }

    /// So many verdicts with this share of failures; returns the resulting severities.
    fn verdicts(&mut self, level: f64, count: u32) -> Vec<Severity> {
        let mut severities = Vec::new();
        for _ in 0..count {
            let failed = self.random() < level;
            severities.extend(self.value(Observation::verdict(failed)));
        }
        severities
    }

    /// Verdicts until this severity; returns how many.
    fn until(&mut self, severity: Severity, level: f64) -> u32 {
        self.within(20_000, severity, level).unwrap()
    }

    /// Verdicts until this severity, at most so many.
    fn within(&mut self, count: u32, severity: Severity, level: f64) -> Option<u32> {
        (1..count).find(|_| self.verdicts(level, 1) == [severity])
    }

    /// Bad values until this severity, if it is another one.
    fn until_or_now(&mut self, severity: Severity) {
        if self.severity() != severity {
            self.until(severity, 1.0);
        }
    }

    fn state(&self) -> DropState {
        self.detector.state(&self.limits)
    }

    fn severity(&self) -> Severity {
        self.state().severity
    }
}

/// Sessions of eight traces, one after another.
struct Sessions {
    stream: Stream,
    left: u32,
    failed: usize,
}

impl Sessions {
    fn after(seed: u64, level: f64, count: u32) -> Self {
        let limits = DropOptions { objective: 0.85, ..DropOptions::default() }.limits(3);
        let stream = Stream { limits, ..Stream::new(seed) };
        let mut sessions = Self { stream, left: 0, failed: 0 };
        assert_eq!(sessions.traces(level, count), 0);
        sessions
    }

    /// One more trace; returns whether that pages.
    fn trace(&mut self, is_bad: bool) -> bool {
        let is_change = self.left == 0;
        if is_change {
            (self.left, self.failed) = (8, 0);
        }
        self.left -= 1;
        let session = InSession { failed: self.failed, is_change };
        self.failed = if is_bad { self.failed + 1 } else { 0 };
        let value = Observation::verdict(is_bad).within(session);
        self.stream.value(value) == Some(Severity::Critical)
    }

    /// So many traces of this level; returns how often they page.
    fn traces(&mut self, level: f64, count: u32) -> usize {
        let mut pages = 0;
        for _ in 0..count {
            let is_bad = self.stream.random() < level;
            pages += usize::from(self.trace(is_bad));
        }
        pages
    }

    /// A session that fails so often, to its end; returns how often that pages.
    fn failing(&mut self, count: u32) -> usize {
        self.left = 0;
        let pages = usize::from(self.trace(true));
        self.left = count - 1;
        pages + self.traces(1.0, count - 1)
    }
}

#[test]
fn a_session_that_fails_to_its_end_pages_a_few_times_though_no_other_runs_beside_it() {
    for level in [0.02, 0.1] {
        let mut pages = [0; 3];
        let mut sessions = Sessions::after(42, level, 5_000);
        for number in 0..30 {
            pages[number / 10] += sessions.failing(20) + sessions.traces(level, 1_000);
        }
        assert!((1..=4).contains(&pages[0]), "{level} {pages:?}");
        assert!(pages[1] + pages[2] <= 1, "{level} {pages:?}");
        // An outage continues in the next session, and pages there at the latest; so does the next one.
        for _ in 0..3 {
            let found = (1..200).find(|_| sessions.trace(true));
            assert!(found.is_some_and(|traces| traces <= 24), "{level} {found:?}");
            sessions.traces(1.0, 100);
            sessions.traces(level, 3_000);
        }
    }
}

#[test]
fn a_session_that_fails_hundreds_of_times_is_not_the_agent() {
    for level in [0.01, 0.05] {
        let mut stream = Stream::every(300, 44, level, 3_000);
        let fails = |stream: &mut Stream, failed: usize| {
            let session = InSession { failed, is_change: failed == 0 };
            stream.now = stream.now.after(Duration::from_secs(1));
            stream.detector.observe(
                stream.now,
                Observation::verdict(true).within(session),
                &stream.limits,
            )
        };
        let found: Vec<_> = (0..300).filter_map(|failed| fails(&mut stream, failed)).collect();
        assert!(!found.contains(&Severity::Critical), "{level} {found:?}");
        // An outage is found nevertheless.
        assert!(stream.within(30, Severity::Critical, 1.0).is_some(), "{level}");
    }
}

#[test]
fn an_outage_within_a_session_is_no_habit_of_sessions() {
    let mut sessions = Sessions::after(43, 0.02, 5_000);
    for _ in 0..5 {
        // There is only one session, and it continues.
        sessions.left = 2_000;
        let found = (1..200).find(|_| sessions.trace(true));
        assert!(found.is_some_and(|traces| traces <= 8), "{found:?}");
        sessions.traces(1.0, 60);
        sessions.traces(0.02, 1_000);
    }
}

#[test]
fn a_drop_is_found_with_its_begin_and_both_levels() {
    let mut stream = Stream::after(1, 0.01, 2_000);
    let before = stream.now;
    let traces = stream.until(Severity::Critical, 0.4);
    assert!(traces < 40, "{traces}");
    let state = stream.state();
    let drop = state.drop.unwrap();
    assert_eq!(state.against, Against::Past);
    assert!(state.evidence >= 1.0, "{state:?}");
    assert!(drop.since > before && drop.since < before.after(Duration::from_secs(600)), "{drop:?}");
    assert!((drop.from - 0.01).abs() < 0.01 && drop.to > 0.25, "{drop:?}");
    assert!(drop.traces > 3 && drop.traces <= u64::from(traces), "{drop:?}");
    assert!(drop.confidence > 0.9 && drop.confidence <= 1.0, "{drop:?}");
}

#[test]
fn a_rise_that_is_tolerated_is_no_drop() {
    for (from, to) in [(0.01, 0.03), (0.1, 0.12), (0.2, 0.25)] {
        let mut stream = Stream::after(2, from, 3_000);
        let severities = stream.verdicts(to, 20_000);
        assert!(!severities.contains(&Severity::Critical), "{from} {to}");
    }
}

#[test]
fn a_rise_to_little_more_than_is_tolerated_is_found_before_it_is_usual() {
    const DAY: u32 = 86_400;
    for (seconds, from, to) in [(2, 0.01, 0.06), (60, 0.01, 0.06), (2, 0.1, 0.16)] {
        for seed in 0..20 {
            let mut stream = Stream::every(u64::from(seconds), 200 + seed, from, DAY / seconds);
            let found = stream.within(20_000, Severity::Critical, to);
            assert!(found.is_some(), "{seconds} {from} {to} {seed}: {:?}", stream.state());
        }
    }
    // At the edge: 9 days of all of them, of which chance may have one page in 27.
    let at_edge = |seed: u64| Stream::every(2, 200 + seed, 0.01, DAY / 2).verdicts(0.04, 20_000);
    let pages = (0..20).filter(|seed| at_edge(*seed).contains(&Severity::Critical)).count();
    assert!(pages <= 1, "{pages}");
}

#[test]
fn a_tolerated_level_becomes_usual() {
    for seconds in [2, 60, 4_000] {
        let mut stream = Stream::every(seconds, 26, 0.01, 3_000);
        let days = |days: u64| u32::try_from(days * 86_400 / seconds).unwrap();
        stream.verdicts(0.03, days(10).max(1_000));
        let usual = stream.state().usual;
        assert!(usual > 0.02, "{seconds} {usual}");
    }
}

#[test]
fn three_failures_in_a_row_are_one_cause_and_eight_are_an_outage() {
    let mut stream = Stream::after(3, 0.01, 3_000);
    for _ in 0..20 {
        stream.verdicts(1.0, 3);
        stream.verdicts(0.01, 1_000);
        assert_eq!(stream.severity(), Severity::Quiet);
    }
    let mut outage = Stream::after(4, 0.01, 3_000);
    assert!(outage.until(Severity::Critical, 1.0) <= 8);
}

#[test]
fn a_short_outage_that_comes_again_is_found_each_time() {
    for (seed, count) in [(70, 10), (71, 12), (72, 16), (73, 8)] {
        let mut stream = Stream::after(seed, 0.01, 10_000);
        for number in 0..12 {
            stream.verdicts(0.01, 1_500);
            assert_eq!(stream.severity(), Severity::Quiet, "{count} {number}");
            let found = stream.verdicts(1.0, count);
            assert!(found.contains(&Severity::Critical), "{count} {number} {found:?}");
        }
    }
}

#[test]
fn a_drop_lasts_while_the_level_is_bad_and_ends_by_evidence_alone() {
    let mut stream = Stream::after(5, 0.01, 3_000);
    stream.until(Severity::Critical, 0.3);
    assert_eq!(stream.verdicts(0.3, 5_000), []);
    // A month without a value says nothing.
    stream.now = stream.now.after(Duration::from_secs(30 * 86_400));
    assert_eq!(stream.verdicts(0.01, 1), []);
    let recovered = stream.until(Severity::Recovering, 0.01);
    let drop = stream.state().drop.unwrap();
    assert!((drop.to - 0.3).abs() < 0.02, "{drop:?}");
    let quiet = stream.until(Severity::Quiet, 0.01);
    assert!(recovered < 120 && quiet < 120, "{recovered} {quiet}");
    assert_eq!(stream.state().drop, None);
}

#[test]
fn a_moderate_drop_that_goes_on_is_one_drop_at_any_rate() {
    for (from, to) in [(0.01, 0.08), (0.1, 0.2)] {
        for (gap, traces) in [(125, 300_000), (2_000, 150_000), (60_000, 20_000)] {
            let mut stream = Stream::after(25, from, 3_000);
            stream.until(Severity::Critical, to);
            for number in 0..traces {
                stream.now = stream.now.after(Duration::from_millis(gap));
                let value = Observation::verdict(stream.random() < to);
                let found = stream.detector.observe(stream.now, value, &stream.limits);
                assert_eq!(found, None, "{from} {to} {gap} {number}");
            }
        }
    }
}

#[test]
fn what_gets_worse_while_it_recovers_is_the_same_drop() {
    let mut stream = Stream::after(6, 0.01, 3_000);
    stream.until(Severity::Critical, 0.5);
    let since = stream.state().drop.unwrap().since;
    stream.verdicts(0.5, 100);
    stream.until(Severity::Recovering, 0.0);
    let relapse = stream.until(Severity::Critical, 0.5);
    let drop = stream.state().drop.unwrap();
    assert!(relapse < 30, "{relapse}");
    assert_eq!(drop.since, since);
    assert!(drop.to > 0.3 && drop.traces <= u64::from(relapse), "{drop:?}");
}

#[test]
fn the_good_values_by_which_a_drop_ends_are_not_of_it() {
    let mut stream = Stream::after(19, 0.01, 3_000);
    stream.verdicts(0.6, 60);
    stream.until(Severity::Recovering, 0.0);
    let drop = stream.state().drop.unwrap();
    assert!(drop.to > 0.5 && (50..=62).contains(&drop.traces), "{drop:?}");
}

#[test]
fn a_short_drop_is_over_about_as_soon_as_a_long_one() {
    for seed in 0..5 {
        let past = Stream::every(300, 190 + seed, 0.0, 3_000);
        let after = |count| {
            let mut stream = Stream { detector: past.detector.clone(), ..past };
            stream.verdicts(1.0, count);
            stream.until(Severity::Recovering, 0.0)
        };
        let long = after(200);
        for short in [6, 10, 20] {
            assert!(after(short) < long + 20, "{short} {} {long}", after(short));
        }
    }
}

#[test]
fn what_gets_better_but_not_good_is_the_same_drop() {
    let mut again = 0;
    for (from, bad, better) in [(0.01, 0.4, 0.08), (0.05, 1.0, 0.15)] {
        for gap in [4, 45] {
            for seed in 0..10 {
                let mut stream = Stream::every(gap, 700 + seed, from, 5_000);
                stream.until(Severity::Critical, bad);
                stream.verdicts(bad, 2_000);
                let severities = stream.verdicts(better, 5_000);
                again += severities.iter().filter(|to| **to == Severity::Critical).count();
                // When it is good it ends.
                stream.verdicts(from, 10_000);
                assert!(stream.severity() < Severity::Critical, "{from} {gap} {seed}");
            }
        }
    }
    assert!(again <= 15, "{again} of 40");
}

#[test]
fn what_does_not_settle_stays_critical() {
    let mut stream = Stream::after(20, 0.02, 5_000);
    stream.until(Severity::Critical, 0.5);
    stream.verdicts(0.5, 50);
    // Half as much again as is tolerated.
    let severities = stream.verdicts(0.075, 50_000);
    assert!(severities.len() <= 8, "{severities:?}");
    assert_eq!(stream.severity(), Severity::Critical);
}

#[test]
fn what_comes_and_goes_is_one_drop() {
    for (bad, good) in [(360, 360), (180, 1_080), (1_080, 1_800)] {
        let mut stream = Stream::every(10, 26, 0.01, 5_000);
        let mut pages = 0;
        for _ in 0..20 {
            let mut severities = stream.verdicts(0.4, bad);
            severities.extend(stream.verdicts(0.01, good));
            pages += severities.iter().filter(|found| **found == Severity::Critical).count();
        }
        // The first, and that it came back.
        assert_eq!(pages, 2, "{bad} {good}");
        assert_eq!(stream.severity(), Severity::Critical);
        // Then it is over after half as long again as it was.
        let severities = stream.verdicts(0.01, good);
        assert_eq!(severities, [Severity::Quiet], "{bad} {good}");
    }
}

#[test]
fn a_drop_that_came_back_is_shown_and_can_be_accepted_while_it_counts_as_going_on() {
    let mut stream = Stream::every(10, 27, 0.01, 5_000);
    for _ in 0..2 {
        stream.until(Severity::Critical, 0.4);
        stream.verdicts(0.4, 360);
        stream.verdicts(0.0, 360);
    }
    let state = stream.state();
    let drop = state.drop.unwrap();
    assert!(state.severity == Severity::Critical && drop.to > 0.3, "{state:?}");
    assert!(stream.detector.accept(stream.now));
    let state = stream.state();
    assert!(state.severity == Severity::Quiet && (state.usual - drop.to).abs() < 0.05, "{state:?}");
}

#[test]
fn a_drop_that_comes_back_after_a_day_is_another_one() {
    let mut stream = Stream::every(60, 28, 0.01, 5_000);
    let mut ends = Vec::new();
    for _ in 0..3 {
        stream.until(Severity::Critical, 0.4);
        stream.verdicts(0.4, 60);
        ends.push(stream.until(Severity::Recovering, 0.0));
        stream.verdicts(0.01, 1_440);
        assert_eq!(stream.severity(), Severity::Quiet);
    }
    assert!(ends.iter().all(|traces| *traces < 100), "{ends:?}");
}

#[test]
fn an_hour_that_is_bad_day_after_day_is_a_drop_a_few_times_and_then_usual_at_that_hour_alone() {
    const HOUR: u64 = 60 * MINUTE;
    let mut stream = Stream::every(30, 29, 0.02, 5_000);
    let mut pages = 0;
    for _ in 0..20 * 2_880 {
        let level = if stream.now.0 / HOUR % 24 == 2 { 0.3 } else { 0.02 };
        let found = stream.verdicts(level, 1);
        pages += found.iter().filter(|found| **found == Severity::Critical).count();
    }
    assert!((3..=5).contains(&pages), "{pages}");
    assert!(stream.state().usual < 0.025, "{:?}", stream.state());
    // A drop at another hour is found as soon as ever, and one at that hour to much more.
    while stream.now.0 / HOUR % 24 != 10 {
        stream.verdicts(0.02, 1);
    }
    let mut outage = Stream { detector: stream.detector.clone(), ..stream };
    let found = stream.within(1_000, Severity::Critical, 0.15);
    assert!(found.is_some_and(|traces| traces < 400), "{found:?}");
    while outage.now.0 / HOUR % 24 != 2 {
        outage.verdicts(0.02, 1);
    }
    let found = outage.within(120, Severity::Critical, 1.0);
    assert!(found.is_some_and(|traces| traces < 30), "{found:?}");
}

#[test]
fn a_bad_hour_that_moves_is_a_drop_a_few_times_and_then_usual_where_it_is() {
    const DAY: u64 = 24 * 60 * MINUTE;
    for (seed, level) in [(34, 0.3), (35, 0.6), (36, 1.0)] {
        let mut stream = Stream::every(60, seed, 0.02, 5_000);
        let begin = stream.now.0;
        let mut pages = [0; 9];
        while stream.now.0 < begin + 63 * DAY {
            let day = (stream.now.0 - begin) / DAY;
            let is_bad = stream.now.0 % DAY / (60 * MINUTE) == if day < 35 { 2 } else { 4 };
            let found = stream.verdicts(if is_bad { level } else { 0.02 }, 1);
            let week = usize::try_from(day / 7).unwrap().min(8);
            pages[week] += found.iter().filter(|is| **is == Severity::Critical).count();
        }
        assert!((1..=3).contains(&pages[5]), "{level} {pages:?}");
        assert!(pages[1..5].iter().chain(&pages[6..]).sum::<usize>() <= 1, "{level} {pages:?}");
        // What is much worse is a drop there, too, and what stays is.
        while stream.now.0 % DAY / (60 * MINUTE) != 4 {
            stream.verdicts(0.02, 1);
        }
        let found = stream.within(300, Severity::Critical, if level < 0.5 { 0.9 } else { level });
        assert!(found.is_some(), "{level}");
    }
}

#[test]
fn nights_with_few_traces_that_are_worse_become_usual() {
    const HOUR: u64 = 60 * MINUTE;
    let mut stream = Stream::every(60, 31, 0.02, 5_000);
    let mut pages = [0; 6];
    let begin = stream.now.0;
    while stream.now.0 < begin + 60 * 24 * HOUR {
        let is_night = stream.now.0 / HOUR % 24 < 8;
        let (seconds, level) = if is_night { (300, 0.15) } else { (60, 0.02) };
        stream.gap = Duration::from_secs(seconds);
        let found = stream.verdicts(level, 1);
        let ten_days = usize::try_from((stream.now.0 - begin - 1) / (240 * HOUR)).unwrap();
        pages[ten_days.min(5)] += found.iter().filter(|is| **is == Severity::Critical).count();
    }
    assert!(pages.iter().sum::<usize>() <= 6 && pages[3..].iter().sum::<usize>() <= 2, "{pages:?}");
}

#[test]
fn weekends_that_are_worse_become_usual_and_nothing_else_does() {
    const DAY: u64 = 24 * 60 * MINUTE;
    let mut stream = Stream::every(120, 32, 0.03, 5_000);
    let begin = stream.now.0 / DAY + 1;
    let mut pages = [0; 10];
    while stream.now.0 / DAY < begin + 70 {
        let day = (stream.now.0 / DAY).saturating_sub(begin);
        let found = stream.verdicts(if day % 7 >= 5 { 0.15 } else { 0.03 }, 1);
        let week = usize::try_from(day / 7).unwrap();
        pages[week] += found.iter().filter(|is| **is == Severity::Critical).count();
    }
    assert!((3..=5).contains(&pages.iter().sum::<usize>()), "{pages:?}");
    assert_eq!(pages[5..], [0; 5]);
    assert!(stream.state().usual < 0.04, "{:?}", stream.state());
    // On a workday the same level is a drop, and at a weekend a worse one is.
    let mut workday = Stream { detector: stream.detector.clone(), ..stream };
    let found = workday.within(1_000, Severity::Critical, 0.15);
    assert!(found.is_some_and(|traces| traces < 400), "{found:?}");
    while stream.now.0 / DAY < begin + 76 {
        let day = stream.now.0 / DAY - begin;
        stream.verdicts(if day % 7 >= 5 { 0.15 } else { 0.03 }, 1);
    }
    let found = stream.within(300, Severity::Critical, 0.7);
    assert!(found.is_some_and(|traces| traces < 60), "{found:?}");
}

#[test]
fn what_is_bad_for_weeks_on_end_is_usual_at_no_hour_of_the_week() {
    let mut stream = Stream::every(600, 33, 0.01, 5_000);
    stream.until(Severity::Critical, 0.4);
    stream.verdicts(0.4, 40 * 144);
    stream.until(Severity::Quiet, 0.0);
    for _ in 0..7 {
        let mut now = Stream { detector: stream.detector.clone(), ..stream };
        let found = now.within(100, Severity::Critical, 0.4);
        assert!(found.is_some(), "{:?}", now.state());
        stream.verdicts(0.01, 144);
    }
}

#[test]
fn what_is_bad_for_days_on_end_is_usual_at_no_hour() {
    let mut stream = Stream::every(60, 30, 0.01, 5_000);
    stream.until(Severity::Critical, 0.4);
    stream.verdicts(0.4, 10 * 1_440);
    stream.until(Severity::Quiet, 0.0);
    for _ in 0..24 {
        let mut now = Stream { detector: stream.detector.clone(), ..stream };
        let found = now.within(100, Severity::Critical, 0.4);
        assert!(found.is_some(), "{:?}", now.state());
        stream.verdicts(0.01, 60);
    }
}

#[test]
fn what_was_nearly_a_drop_is_not_usual() {
    let mut stream = Stream::after(21, 0.01, 3_000);
    stream.until(Severity::Warning, 0.2);
    let usual = stream.state().usual;
    assert!(usual < 0.015, "{usual}");
    stream.until(Severity::Quiet, 0.0);
    assert!((stream.state().usual - usual).abs() < 1e-5, "{usual} {}", stream.state().usual);
}

#[test]
fn the_usual_level_is_that_of_the_last_weeks() {
    let mut stream = Stream::after(24, 0.04, 60 * 1_440);
    stream.verdicts(0.05, 28 * 1_440);
    // It would be 0.043 of all of them.
    assert!(stream.state().usual > 0.046, "{}", stream.state().usual);
}

#[test]
fn an_absence_is_no_evidence() {
    let mut stream = Stream::after(23, 0.0, 3_000);
    stream.now = stream.now.after(Duration::from_secs(400 * 86_400));
    assert!(!stream.verdicts(1.0, 3).contains(&Severity::Critical));
}

#[test]
fn bad_hours_do_not_become_usual() {
    let mut stream = Stream::after(7, 0.02, 5_000);
    let usual = stream.state().usual;
    stream.until(Severity::Critical, 0.5);
    stream.verdicts(0.5, 5_000);
    assert_eq!(stream.state().usual.to_bits(), usual.to_bits());
    stream.until(Severity::Quiet, 0.02);
    assert!((stream.state().usual - usual).abs() < 0.002, "{} {usual}", stream.state().usual);
}

#[test]
fn the_usual_level_follows_the_past_without_bias() {
    for level in [0.0, 0.01, 0.1, 0.3] {
        let limits = DropOptions { objective: 0.5, ..DropOptions::default() }.limits(3);
        let mut stream = Stream { limits, ..Stream::new(8) };
        stream.verdicts(level, 20_000);
        let usual = stream.state().usual;
        assert!((usual - level).abs() < 0.1 * level + 0.001, "{level} {usual}");
    }
}

#[test]
fn a_new_agent_is_held_against_the_objective() {
    let mut bad = Stream::new(9);
    let traces = bad.until(Severity::Critical, 0.5);
    assert!(traces < 90, "{traces}");
    let state = bad.state();
    assert_eq!(state.against, Against::Objective);
    assert!((state.drop.unwrap().from - 0.1).abs() < 1e-9, "{state:?}");
    let mut new = Stream::new(10);
    new.verdicts(0.02, 90);
    assert_eq!(new.state().against, Against::Objective);
    new.verdicts(0.02, 60);
    assert_eq!(new.state().against, Against::Past);
    // It stays until the level is accepted or better.
    assert_eq!(bad.verdicts(0.5, 5_000), []);
    for level in [0.0, 0.02, 0.09] {
        assert_eq!(Stream::new(10).verdicts(level, 3_000), [], "{level}");
    }
}

#[test]
fn a_level_over_the_objective_is_one_drop_and_no_flood_of_them() {
    let mut stream = Stream::new(11);
    stream.until(Severity::Critical, 0.6);
    let severities = stream.verdicts(0.2, 20_000);
    assert!(severities.len() < 10, "{severities:?}");
    assert_eq!(stream.severity(), Severity::Critical);
}

#[test]
fn a_new_level_can_be_accepted() {
    let mut stream = Stream::after(12, 0.01, 3_000);
    assert!(!stream.detector.accept(stream.now), "there is nothing to accept");
    stream.until(Severity::Critical, 0.3);
    stream.verdicts(0.3, 300);
    assert!(stream.detector.accept(stream.now));
    assert_eq!(stream.severity(), Severity::Quiet);
    assert!((stream.state().usual - 0.3).abs() < 0.06, "{:?}", stream.state());
    assert!(!stream.verdicts(0.3, 5_000).contains(&Severity::Critical));
    assert!(stream.until(Severity::Critical, 0.8) < 60);
}

#[test]
fn a_new_level_is_accepted_after_a_time_if_that_is_set() {
    let options =
        DropOptions { accept_after: Duration::from_secs(3_600), ..DropOptions::default() };
    let mut stream = Stream::after(13, 0.01, 3_000);
    stream.limits = options.limits(3);
    stream.until(Severity::Critical, 0.4);
    assert_eq!(stream.verdicts(0.4, 59), []);
    assert_eq!(stream.verdicts(0.4, 1), [Severity::Quiet]);
    assert!(stream.state().usual > 0.25);
}

#[test]
fn a_version_is_held_against_the_one_before_and_found_soonest_at_its_begin() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..20 {
        let mut stream = Stream::after(100 + seed, 0.01, 3_000);
        let mut next = Stream { random: stream.random, now: stream.now, ..Stream::new(0) };
        next.detector = stream.detector.clone().successor(&stream.limits);
        assert_eq!(next.state().usual.to_bits(), stream.state().usual.to_bits());
        old += stream.until(Severity::Critical, 0.15);
        new += next.until(Severity::Critical, 0.15);
    }
    assert!(new * 10 < old * 7, "{new} {old}");
}

#[test]
fn unspent_time_is_left_to_one_version_alone() {
    let mut stream = Stream::after(14, 0.01, 3_000);
    let limits = stream.limits;
    let begun = |stream: &mut Stream| stream.detector.successor(&limits).state(&limits).evidence;
    let own = stream.state().evidence;
    assert!(begun(&mut stream) > own / 2.0);
    assert!((begun(&mut stream) - own / 4.0).abs() < 1e-9);
    // However long there was no version: no more than may be left to chance at a deploy.
    for _ in 0..400 {
        stream.now = stream.now.after(Duration::from_secs(86_400));
        stream.verdicts(0.0, 1);
    }
    let own = stream.state().evidence;
    assert!((begun(&mut stream) - own / 2.0 - 0.01).abs() < 1e-9);
}

#[test]
fn more_streams_need_more_evidence_and_forget_none() {
    let mut stream = Stream::after(15, 0.01, 3_000);
    stream.verdicts(1.0, 2);
    let few = stream.detector.state(&DropOptions::default().limits(3)).evidence;
    let many = stream.detector.state(&DropOptions::default().limits(3_000)).evidence;
    assert!(few > 0.0 && (few / many - 1_000.0).abs() < 1e-6, "{few} {many}");
    stream.limits = DropOptions::default().limits(3_000);
    assert!((3..20).contains(&stream.until(Severity::Critical, 1.0)));
}

#[test]
fn a_predicted_failure_is_watched_as_a_verdict_is() {
    let mut stream = Stream::new(16);
    let predict = |stream: &mut Stream, level: f64| {
        let value = level + 0.1 * (stream.random() - 0.5);
        stream.value(Observation::level(value).unwrap())
    };
    for _ in 0..5_000 {
        assert_eq!(predict(&mut stream, 0.1), None);
    }
    let traces = (1..1_000).find(|_| predict(&mut stream, 0.25) == Some(Severity::Critical));
    assert!(traces.is_some_and(|traces| traces < 60), "{traces:?}");
}

#[test]
fn values_that_come_at_once_count_each() {
    let mut stream = Stream::after(17, 0.01, 3_000);
    let at = stream.now.after(Duration::from_secs(1));
    let mut value =
        |failed: bool| stream.detector.observe(at, Observation::verdict(failed), &stream.limits);
    (0..50).for_each(|_| assert_eq!(value(false), None));
    let traces = (1..100).find(|_| value(true) == Some(Severity::Critical));
    assert!(traces.is_some_and(|traces| traces <= 10), "{traces:?}");
}

#[test]
fn an_agent_of_few_traces_is_watched_too() {
    let day = |stream: &mut Stream, level: f64| {
        let severities = stream.verdicts(level, 20);
        stream.now = stream.now.after(Duration::from_secs(86_400 - 20 * 60));
        severities.contains(&Severity::Critical)
    };
    // 20 streams of 100 days, each sharing a page a quarter with two others: 7 false ones.
    let mut pages = 0;
    for seed in 0..20 {
        let mut stream = Stream::new(2_000 + seed);
        pages += (0..100).filter(|_| day(&mut stream, 0.02)).count();
        if stream.severity() < Severity::Critical {
            assert!((0..3).any(|_| day(&mut stream, 0.5)), "{seed} {:?}", stream.state());
        }
    }
    assert!(pages <= 7, "{pages}");
}

#[test]
fn there_are_no_more_false_pages_than_the_dial_says() {
    // Of each 20 streams of 30 days that share nothing: 6 quarters, as many pages, and ten times as many warnings.
    for level in [0.01, 0.05, 0.1] {
        let (mut pages, mut warnings) = (0, 0);
        for seed in 0..20 {
            let limits = DropOptions::default().limits(1);
            let mut stream = Stream { limits, ..Stream::new(1_000 + seed) };
            for severity in stream.verdicts(level, 30 * 1_440) {
                pages += u32::from(severity == Severity::Critical);
                warnings += u32::from(severity == Severity::Warning);
            }
        }
        assert!(pages <= 6 && warnings <= 65, "{level}: {pages} {warnings}");
    }
}

#[test]
fn what_is_not_in_the_range_is_no_observation() {
    for value in [f64::NAN, f64::INFINITY, -1e-9, 1.0 + 1e-9] {
        assert_eq!(Observation::level(value), None);
    }
}

#[test]
fn the_weights_of_the_bets_add_up_to_one() {
    assert!((WEIGHTS.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!(BETS.iter().all(|bet| *bet > 0.0 && *bet < 1.0));
}

proptest! {
    /// The step that makes it an e-detector: over values of a mean of no more than `m`, whatever they are, evidence grows by
    /// what is spent, at most.
    #[test]
    fn evidence_grows_by_no_more_than_is_spent_while_nothing_changed(
        mean in 0.001..1.0_f64,
        values in prop::collection::vec((0.0..1.0_f64, 0.01..1.0_f64), 1..6),
        before in prop::collection::vec(0.0..5.0_f64, 0..20),
        spent in 0.0..2.0_f64,
        first in 0..2_usize,
    ) {
        let weight: f64 = values.iter().map(|(_, weight)| weight).sum();
        let own: f64 = values.iter().map(|(value, weight)| value * weight).sum::<f64>() / weight;
        let scale = (mean / own.max(1e-12)).min(1.0);
        let mut evidence = Evidence::default();
        before.iter().for_each(|ratio| evidence.observe(*ratio, 0.5, 0));
        let after = values.iter().map(|(value, weight)| {
            let mut next = evidence;
            next.observe(value * scale / mean, spent, first);
            next.days() * weight
        });
        let after = after.sum::<f64>() / weight;
        prop_assert!(after <= (evidence.days() + spent) * (1.0 + 1e-9), "{after} {}", evidence.days());
    }

    /// The other half of the promise: nothing spends time that has not passed.
    #[test]
    fn no_more_time_is_spent_than_has_passed(gaps in prop::collection::vec(0..200_000_000_000_000_u64, 1..300)) {
        let mut budget = Budget::default();
        let (mut now, mut spent) = (Timestamp(1), 0.0);
        for gap in &gaps {
            now = Timestamp(now.0 + gap);
            spent += budget.spend(now);
            let passed = (now.0 - 1) as f64 / 86_400e9 + 1e-12;
            prop_assert!(spent + budget.saved <= passed, "{spent} {passed}");
        }
    }

    /// Whatever comes, numbers are numbers in their range, and a restart at any moment changes nothing.
    #[test]
    fn any_stream_gives_states_in_range_and_survives_a_restart(
        steps in prop::collection::vec((0..4_u8, 0.0..=1.0_f64, 0..10_000_000_000_000_u64), 1..600),
        streams in 1..100_usize,
        objective in 0.0..=1.0_f64,
        tolerance in 0.0..0.5_f64,
    ) {
        let limits = DropOptions { objective, tolerance, ..DropOptions::default() }.limits(streams);
        let (mut kept, mut read) = (Detector::default(), Detector::default());
        let mut now = 10_u64;
        for (index, (kind, level, gap)) in steps.iter().enumerate() {
            // Times may go back, too.
            now = if *kind == 3 { now.saturating_sub(*gap) } else { now + gap };
            let value = match (kind, index / 150 % 2) {
                (0, 1) => Observation::level(*level).unwrap(),
                (_, half) => Observation::verdict(*level < 0.02 + 0.5 * half as f64),
            };
            let found = kept.observe(Timestamp(now), value, &limits);
            prop_assert_eq!(read.observe(Timestamp(now), value, &limits), found);
            if index % 37 == 0 {
                read = rmp_serde::from_slice(&rmp_serde::to_vec_named(&read).unwrap()).unwrap();
            }
            let state = kept.state(&limits);
            prop_assert!(state.evidence >= 0.0 && state.evidence.is_finite(), "{state:?}");
            prop_assert!((0.0..=1.0).contains(&state.usual), "{state:?}");
            let ongoing = matches!(state.severity, Severity::Critical | Severity::Recovering);
            prop_assert!(state.drop.is_some() || !ongoing, "{state:?}");
            prop_assert!(state.drop.is_none() || state.severity > Severity::Quiet, "{state:?}");
            if let Some(drop) = state.drop {
                prop_assert!((0.0..=1.0).contains(&drop.to) && (0.0..=1.0).contains(&drop.confidence), "{drop:?}");
                prop_assert!(drop.traces > 0, "{drop:?}");
            }
        }
        prop_assert_eq!(kept, read);
    }

    #[test]
    fn a_tally_without_its_begin_is_the_rest(counts in (0..1_000_u64, 0..1_000_u64), sums in (0.0..9.0_f64, 0.0..9.0_f64)) {
        let begin = ValueSum { count: counts.0, sum: sums.0 };
        let all = ValueSum { count: counts.0 + counts.1, sum: sums.0 + sums.1 };
        let rest = all.minus(begin);
        prop_assert_eq!(rest.count, counts.1);
        prop_assert!((rest.sum - sums.1).abs() < 1e-9);
    }
}

#[test]
fn an_accepted_level_of_all_or_nearly_all_pages_no_more() {
    for (bad, seconds) in [(8, 60), (20, 60), (100, 4_000), (200, 2), (1_000, 60)] {
        for good in [0, 1, bad / 50] {
            let mut stream = Stream { gap: Duration::from_secs(seconds), ..Stream::new(40) };
            stream.verdicts(1.0, bad);
            stream.verdicts(0.0, good);
            stream.until_or_now(Severity::Critical);
            assert!(stream.detector.accept(stream.now), "{bad} {good}");
            let severities = stream.verdicts(1.0, 10_000);
            assert_eq!(severities, [], "{bad} of {} each {seconds} s", bad + good);
            // What is better becomes usual in some months, and what is worse than that is a drop.
            stream.gap = Duration::from_secs(1_000);
            stream.verdicts(0.05, 10_000);
            assert_eq!(stream.severity(), Severity::Quiet);
            assert!(stream.within(200, Severity::Critical, 0.6).is_some(), "{bad} {good}");
        }
    }
}

#[test]
fn what_mostly_fails_drops_as_its_successes_do() {
    for seed in 0..5 {
        let mut stream = Stream::every(5, 410 + seed, 0.5, 10_000);
        assert!(stream.within(3_000, Severity::Critical, 0.7).is_some(), "{seed}");
    }
}

#[test]
fn a_level_near_one_that_is_known_may_still_rise() {
    let mut stream = Stream::new(41);
    stream.until(Severity::Critical, 0.8);
    stream.verdicts(0.8, 3_000);
    assert!(stream.detector.accept(stream.now));
    assert_eq!(stream.verdicts(0.8, 10_000), []);
    assert!(stream.within(2_000, Severity::Critical, 1.0).is_some());
}
