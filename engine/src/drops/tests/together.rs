//! Predictions and outcomes watched together, on simulated agents of fixed seeds: how soon, beside outcomes alone, and how often falsely.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::stream::PREDICTED;
use super::super::*;
use crate::detect::Severity;
use crate::facts::Effort;
use crate::span::TraceId;

const MINUTE: u64 = 60_000_000_000;

/// Traces before a change.
const PAST: u64 = 4_000;

/// An agent with a trace a minute; a tenth of them have an outcome, which is reported a minute later.
struct Agent {
    drops: Drops,
    counts: Counts,
    seed: u64,
    minute: u64,
    later: Option<DoneTrace>,
}

impl Agent {
    /// One false page in so many days, for each of the streams that share them.
    fn new(seed: u64, days: f64) -> Self {
        // It fails in a quarter of its traces, and always did.
        let options = DropOptions { objective: 0.6, ..DropOptions::default() };
        let drops = Drops::new(options, 10);
        let mut agent = Self { drops, counts: Counts::default(), seed, minute: 0, later: None };
        agent.dial(days);
        agent
    }

    fn dial(&mut self, days: f64) {
        self.drops.options.false_pages_per_quarter = 365.25 / 4.0 / days;
    }

    /// In `[0,1)`, by what it is for.
    fn draw(&self, what: u64) -> f64 {
        let drawn = xxh3_64_with_seed(&self.minute.to_le_bytes(), self.seed << 8 | what);
        (drawn >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A trace that fails at this rate, whose effort tells that with an AUROC of 0.70, and is so many deviations more than usual.
    fn trace(&mut self, rate: f64, heavier: f64) {
        self.minute += 1;
        let failed = self.draw(0) < rate;
        // Nearly normal, of deviation 1; two of them half a deviation and a half apart have that AUROC.
        let normal = (1..=12).map(|what| self.draw(what)).sum::<f64>() - 6.0;
        let effort = (normal + heavier + if failed { 0.742 } else { 0.0 }).exp() * 1e4;
        let calls = format!("{effort:.0}").parse().unwrap();
        let at = self.minute * MINUTE;
        let done = DoneTrace {
            trace_id: Some(TraceId(u128::from(self.minute).to_be_bytes())),
            start_unix_nano: at,
            at_unix_nano: at,
            touched_unix_nano: at,
            looped: Some(false),
            effort: Some(Effort {
                model_calls: calls,
                tool_calls: calls,
                nanos: calls,
                longest_call_nanos: calls,
                ..Effort::default()
            }),
            ..DoneTrace::default()
        };
        let told = self.later.take();
        self.later = (self.draw(13) < 0.1).then(|| DoneTrace {
            outcome_failed: Some(failed),
            looped: None,
            at_unix_nano: at + MINUTE,
            touched_unix_nano: at + MINUTE,
            ..done.clone()
        });
        for told in told.into_iter().chain([done]) {
            self.drops.observe(&AgentKey::default(), [told], WallShift::default());
        }
        self.drops.settle(&DriftOptions::default(), &mut self.counts);
    }

    /// `None`: there is no such stream.
    fn severity(&self, stream: &str) -> Option<Severity> {
        let agent = AgentKey::default();
        let watched = self.drops.watches.get(&agent)?.streams.get(stream)?;
        let stream = Stream::named(stream)?;
        let limits = self.drops.shares.limits(&self.drops.options, &agent, stream);
        Some(watched.detector.state(&limits).severity)
    }

    /// How many traces of this kind until each of these pages.
    fn until(&mut self, rate: f64, heavier: f64, most: u64) -> [u64; 2] {
        let mut found = [None; 2];
        for trace in 1..=most {
            self.trace(rate, heavier);
            for (found, stream) in found.iter_mut().zip(["outcome", PREDICTED]) {
                if found.is_none() && self.severity(stream) == Some(Severity::Critical) {
                    *found = Some(trace);
                }
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        found.map(|found| found.unwrap_or(most))
    }
}

/// Mean traces to the pages of outcomes alone, and of both together, with a false page in 2,000 traces at most.
fn delays(agents: std::ops::Range<u64>, rate: f64) -> [f64; 2] {
    let mut found = Vec::new();
    for seed in agents {
        let mut agent = Agent::new(seed, 1e6);
        (0..PAST).for_each(|_| agent.trace(0.26, 0.0));
        // What there is of evidence stays, whatever the dial.
        agent.dial(2_000.0 / 1_440.0 / 2.0);
        let pages = agent.until(rate, 0.0, 5_000);
        // One that would have paged before, had the dial been so then, says nothing of a delay.
        if !pages.contains(&1) {
            found.push(pages);
        }
    }
    let runs = found.len() as f64;
    let mean = |at: usize| found.iter().map(|found| found[at] as f64).sum::<f64>() / runs;
    [mean(0), mean(1)]
}

#[test]
fn a_rise_is_found_sooner_by_predictions_and_outcomes_than_by_outcomes_alone() {
    let (mut alone, mut together) = (0.0, 0.0);
    for rate in [0.4, 0.55] {
        let means = delays(1..17, rate);
        (alone, together) = (alone + means[0], together + means[1]);
    }
    assert!(together < alone, "{together} of {alone}");
}

#[test]
fn predictions_of_a_healthy_agent_do_not_page() {
    // Five agents of seven days, each of whose streams may page once in sixty.
    let pages = (100..105).filter(|seed| {
        let mut agent = Agent::new(*seed, 30.0);
        (0..10_000).any(|_| {
            agent.trace(0.26, 0.0);
            agent.severity(PREDICTED) == Some(Severity::Critical)
        })
    });
    assert!(pages.count() <= 2);
}

#[test]
fn heavier_runs_that_do_not_fail_more_often_page_hardly_more_often() {
    let pages = (200..205).filter(|seed| {
        let mut agent = Agent::new(*seed, 30.0);
        (0..PAST).for_each(|_| agent.trace(0.26, 0.0));
        agent.until(0.26, 0.5, 5_000)[1] < 5_000
    });
    // Predictions alone would page in all of them.
    assert!(pages.count() <= 2);
}

#[test]
fn without_outcomes_there_is_no_stream_of_predictions() {
    let mut agent = Agent::new(1, 30.0);
    for _ in 0..1_000 {
        agent.trace(0.26, 0.0);
        agent.later = None;
    }
    assert_eq!(agent.severity(PREDICTED), None);
    assert_eq!(agent.severity("effort"), Some(Severity::Quiet));
}
