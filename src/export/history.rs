//! What was on the board before: a ring of points for each agent, in memory, for sparklines and the page.
//!
//! Prometheus keeps the past; this is the last hour for whoever has none at hand. Scores are held to four decimals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::agent_update::AgentUpdate;
use crate::engine::span::Timestamp;
use crate::engine::view::AgentName;

/// The query API, and what it remembers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiOptions {
    /// Time between two points of an agent's past.
    #[serde(with = "crate::engine::options::human")]
    pub history_step: Duration,
    /// Points held of each agent; over it the oldest goes.
    pub history_points: usize,
    /// Live streams of one identity at a time; further ones are told to come back.
    pub max_streams: usize,
    /// Scrapes of one identity at a time; for one more the one goes whose reader is slowest.
    pub max_scrapes: usize,
    /// Bytes of metrics that wait for slow readers, half of it for those of tenants; over it the slowest is cut off of whoever
    /// holds most.
    pub max_scrape_bytes: usize,
}

/// One agent over time: columns of equal length, oldest first.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct HistoryView {
    /// Whose past this is.
    pub agent: AgentName,
    /// Seconds between two points.
    pub step_seconds: f64,
    /// When.
    pub unix_nano: Vec<String>,
    /// Reliability by window, to four decimals; null where there was none.
    pub reliability: BTreeMap<String, Vec<Option<f64>>>,
    /// Consistency by window, likewise.
    pub consistency: BTreeMap<String, Vec<Option<f64>>>,
    /// Share of failing traces by window, likewise.
    pub failure_ratio: BTreeMap<String, Vec<Option<f64>>>,
    /// The share of failing traces that was usual; null before the first done trace.
    pub usual: Vec<Option<f64>>,
    /// What was said of the share of failing traces: `quiet`, `recovering`, `warning`, `critical`; null before the first done trace.
    pub state: Vec<Option<&'static str>>,
    /// Done traces seen.
    pub traces: Vec<u64>,
    /// Open sessions.
    pub sessions_active: Vec<u64>,
    /// Sessions in which a loop goes on that is known by more than names.
    pub sessions_looping: Vec<u64>,
    /// Dollars spent so far; null without any known.
    pub cost_usd: Vec<Option<f64>>,
}

/// The last points of one agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    // Names of windows, each once; points refer to them by position.
    windows: Vec<String>,
    points: VecDeque<Point>,
}

#[derive(Clone, Debug)]
struct Point {
    at: Timestamp,
    scores: Box<[Scores]>,
    usual: u16,
    state: Option<&'static str>,
    traces: u64,
    active: u64,
    looping: u64,
    cost: Option<f64>,
}

/// Scores in ten-thousandths; over [`MOST`]: there is none.
#[derive(Clone, Copy, Debug)]
struct Scores {
    window: u8,
    reliability: u16,
    consistency: u16,
    failing: u16,
}

const MOST: u16 = 10_000;

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            history_step: Duration::from_secs(15),
            history_points: 240,
            max_streams: 64,
            max_scrapes: 16,
            max_scrape_bytes: 64 << 20,
        }
    }
}

impl Ring {
    /// Notes how an agent stands.
    pub(super) fn note(&mut self, update: &AgentUpdate, now: Timestamp, max_points: usize) {
        while self.points.len() >= max_points.max(1) {
            self.points.pop_front();
        }
        let mut scores = Vec::with_capacity(update.windows.len());
        for (name, window) in &update.windows {
            let Some(position) = self.position(name) else { continue };
            scores.push(Scores {
                window: position,
                reliability: packed(window.reliability),
                consistency: packed(window.consistency),
                failing: packed(window.failure_ratio),
            });
        }
        let verdict = update.view.drops.iter().find(|drop| drop.stream == "verdict");
        self.points.push_back(Point {
            at: now,
            scores: scores.into(),
            usual: packed(verdict.map(|drop| drop.usual)),
            state: verdict.map(|drop| drop.severity),
            traces: update.view.traces,
            active: update.sessions_active,
            looping: update.looping(),
            cost: update.view.cost_usd,
        });
    }

    /// The whole past.
    pub(super) fn view(&self, agent: AgentName, step: Duration) -> HistoryView {
        let column = |of: fn(&Scores) -> u16| -> BTreeMap<String, Vec<Option<f64>>> {
            let names = self.windows.iter().zip(0_u8..);
            let columns = names.map(|(name, at)| (name.clone(), self.column(at, of)));
            columns.filter(|(_, values)| values.iter().any(Option::is_some)).collect()
        };
        let points = || self.points.iter();
        HistoryView {
            agent,
            step_seconds: step.as_secs_f64(),
            unix_nano: points().map(|point| point.at.0.to_string()).collect(),
            reliability: column(|scores| scores.reliability),
            consistency: column(|scores| scores.consistency),
            failure_ratio: column(|scores| scores.failing),
            usual: points().map(|point| unpacked(point.usual)).collect(),
            state: points().map(|point| point.state).collect(),
            traces: points().map(|point| point.traces).collect(),
            sessions_active: points().map(|point| point.active).collect(),
            sessions_looping: points().map(|point| point.looping).collect(),
            cost_usd: points().map(|point| point.cost).collect(),
        }
    }

    /// The share of failing traces in one window, the last `points` of it.
    pub(super) fn failing(&self, window: &str, points: usize) -> Vec<Option<f64>> {
        let named = self.windows.iter().zip(0_u8..).find(|(name, _)| *name == window);
        let column = named.map_or_else(Vec::new, |(_, at)| self.column(at, |held| held.failing));
        column[column.len().saturating_sub(points)..].to_vec()
    }

    fn column(&self, window: u8, of: fn(&Scores) -> u16) -> Vec<Option<f64>> {
        let value = |point: &Point| {
            let scores = point.scores.iter().find(|scores| scores.window == window)?;
            unpacked(of(scores))
        };
        self.points.iter().map(value).collect()
    }

    fn position(&mut self, name: &str) -> Option<u8> {
        let held = self.windows.iter().position(|window| window == name);
        let position = held.unwrap_or_else(|| {
            self.windows.push(name.to_owned());
            self.windows.len() - 1
        });
        u8::try_from(position).ok()
    }
}

fn packed(score: Option<f64>) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what fits; a score that is no number is 0"
    )]
    score.map_or(u16::MAX, |score| (score.clamp(0.0, 1.0) * f64::from(MOST)).round() as u16)
}

fn unpacked(score: u16) -> Option<f64> {
    (score <= MOST).then(|| f64::from(score) / f64::from(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::view::WindowView;

    fn update(reliability: Option<f64>) -> AgentUpdate {
        let window =
            WindowView { reliability, failure_ratio: reliability, ..WindowView::default() };
        AgentUpdate { windows: [("5m".to_owned(), window)].into(), ..AgentUpdate::default() }
    }

    #[test]
    fn the_oldest_point_goes_first() {
        let mut ring = Ring::default();
        for (at, score) in [(1, Some(0.1)), (2, None), (3, Some(0.33333))] {
            ring.note(&update(score), Timestamp(at), 2);
        }
        let view = ring.view(AgentName::default(), Duration::from_secs(15));
        assert_eq!(view.unix_nano, ["2", "3"]);
        assert_eq!(view.reliability["5m"], [None, Some(0.3333)]);
        assert!(view.consistency.is_empty());
        assert_eq!(view.failure_ratio["5m"], [None, Some(0.3333)]);
        assert_eq!((view.usual, view.state), (vec![None, None], vec![None, None]));
        assert_eq!(ring.failing("5m", 1), [Some(0.3333)]);
        assert!(ring.failing("1h", 1).is_empty());
    }
}
