//! The scores of one agent version as series: where a level shifted, and whether it differs from an earlier version.
//!
//! Each done trace counts once, in the order of (start, trace id). Traces of several shards come in another order, so
//! a trace waits until none that started before it is likely to come (`drift.lag`); one that comes later still is left out
//! and counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::drift::DriftOptions;
use super::drift::page_hinkley::{Direction, PageHinkley};
use super::drift::sequential::MeanSequence;
use super::math::Quanta;
use super::saved::{self, Name};
use super::span::{Timestamp, TraceId};
use super::update::LastTrace;
use super::view::ChangePointView;

/// Change points that are shown; older ones are only counted.
const SHOWN: usize = 20;

/// Traces that wait for their turn; over it the earliest are taken before theirs.
const MAX_WAITING: usize = 10_000;

/// The series of one agent version.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct DriftWatch {
    waiting: BTreeMap<(Timestamp, TraceId), LastTrace>,
    // Everything up to here was taken.
    taken: Option<(Timestamp, TraceId)>,
    #[serde(deserialize_with = "saved::by_name")]
    series: BTreeMap<Name, PageHinkley>,
    #[serde(deserialize_with = "saved::by_names")]
    points: BTreeMap<(Name, Name), (u64, Timestamp)>,
    shown: Vec<ChangePointView>,
    level: MeanSequence,
    /// When a trace was last taken.
    pub last: Timestamp,
}

impl DriftWatch {
    /// Takes a trace that is done for the first time.
    pub fn observe(&mut self, trace: LastTrace, counts: &mut Counts) {
        let Ok(id) = <[u8; 16]>::try_from(trace.trace_id.as_slice()).map(TraceId) else { return };
        let place = (Timestamp(trace.start_unix_nano), id);
        if self.taken.is_some_and(|taken| place <= taken) {
            counts.add("drift", "late");
        } else {
            self.waiting.insert(place, trace);
        }
    }

    /// The wall clock was set back: what came before has its turn, and what comes is held against nothing of it. Otherwise
    /// traces would be late, or wait, until the clock gets to where it was.
    pub fn stepped_back(&mut self, options: &DriftOptions, counts: &mut Counts) {
        self.advance(Timestamp(u64::MAX), options, counts);
        self.taken = None;
    }

    /// Takes the traces whose turn has come by wall time; returns whether there were any.
    pub fn advance(&mut self, now: Timestamp, options: &DriftOptions, counts: &mut Counts) -> bool {
        let until = now.before(options.lag);
        let mut any = false;
        while let Some((place, trace)) = self.waiting.pop_first() {
            let full = self.waiting.len() >= MAX_WAITING;
            if place.0 > until && !full {
                self.waiting.insert(place, trace);
                break;
            }
            if place.0 > until {
                counts.add("drift", "hurried");
            }
            self.taken = Some(place);
            self.take(place.0, &trace, options);
            any = true;
        }
        any
    }

    /// When the next trace's turn comes, by wall time.
    pub fn poll_timeout(&self, options: &DriftOptions) -> Option<Timestamp> {
        self.waiting.first_key_value().map(|((start, _), _)| start.after(options.lag))
    }

    /// How often each score shifted, and when it last did.
    pub fn points(&self) -> BTreeMap<(String, &'static str), (u64, Timestamp)> {
        let points = self.points.iter();
        points.map(|((score, way), point)| (((*score).to_owned(), *way), *point)).collect()
    }

    /// The latest shifts.
    pub fn shown(&self) -> &[ChangePointView] {
        &self.shown
    }

    /// The mean of 1 - risk, for comparison with other versions.
    pub fn level(&self) -> &MeanSequence {
        &self.level
    }

    fn take(&mut self, at: Timestamp, trace: &LastTrace, options: &DriftOptions) {
        self.last = self.last.max(at);
        let safe = |quanta: i64| Quanta((Quanta::ONE - quanta).clamp(0, Quanta::ONE));
        let values = [
            ("consistency", trace.uncertainty_quanta.map(safe)),
            ("reliability", trace.risk_quanta.map(safe)),
        ];
        for (score, value) in values {
            let Some(value) = value else { continue };
            if score == "reliability" {
                self.level.observe(value, options);
            }
            let Some(shift) = self.series.entry(score).or_default().observe(value, at, options)
            else {
                continue;
            };
            let direction = match shift.direction {
                Direction::Down => "down",
                Direction::Up => "up",
            };
            let point = self.points.entry((score, direction)).or_default();
            *point = (point.0 + 1, at);
            self.shown.push(ChangePointView {
                score: score.to_owned(),
                direction,
                before: shift.before,
                after: shift.after,
                unix_nano: at.0.to_string(),
                began_unix_nano: shift.began.0.to_string(),
            });
            if self.shown.len() > SHOWN {
                self.shown.remove(0);
            }
        }
    }
}
