//! The history of the board: a ring of points for each agent, in memory, for sparklines and the page.
//!
//! Prometheus keeps the history; this is the last hour for users without Prometheus, and with a store a week (`kept_history.rs`).
//! Scores are held to four decimals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crc32c::crc32c;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kept_history::ROW;
use crate::engine::agent_facts::AgentFacts;
use crate::engine::options::{DAY, MILLISECOND, SECOND};
use crate::engine::span::Timestamp;
use crate::engine::view::{AgentName, WindowView};

crate::engine::options! {
    /// The query API, and what it remembers.
    #[derive(Copy)]
    pub struct ApiOptions in "api" {
        /// Time between two points of an agent's history, as the page shows it.
        #[serde(with = "crate::engine::options::human")]
        pub history_step: Duration = 15 * SECOND, within 100 * MILLISECOND..=DAY;
        /// Points in memory of each agent; beyond that, the oldest is dropped.
        pub history_points: usize = 240, within 1..=10_000;
        /// Agents whose history is kept in the store's directory for a week, 48 kB each; beyond that, the one that has been
        /// quiet for longest makes room. Without a store only `history_points` are kept.
        pub history_agents: usize = 2_000, within 1..=100_000;
        /// Live streams of one identity (a token, a certificate, or all anonymous clients) at a time; more are told to retry
        /// later.
        pub max_streams: usize = 64, within 1..=10_000;
        /// Scrapes of one identity (a token, a certificate, or all anonymous clients) at a time; one more replaces the one with
        /// the slowest reader.
        pub max_scrapes: usize = 16, within 1..=10_000;
        /// Bytes of responses (API, page, metrics, gRPC) that wait to be read, half of it for tenants; beyond that, responses
        /// that nobody reads are cut off, then those of the identity that holds most; else new ones get 503. A response larger
        /// than this is sent when there is no other.
        pub max_unread_bytes: usize = 64 << 20, within 1 << 20..=usize::MAX;
    }
}

/// One agent over time: columns of equal length, oldest first.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct HistoryView {
    /// The agent.
    pub agent: AgentName,
    /// Seconds between two points, except for the newest hour of a longer history.
    pub step_seconds: f64,
    /// When versions of the agent were first seen, after the first one and including this one, the oldest first.
    pub new_versions: Vec<NewVersionView>,
    /// The times of the points.
    pub unix_nano: Vec<String>,
    /// Reliability by window, to four decimals; null where there was none.
    pub reliability: BTreeMap<String, Vec<Option<f64>>>,
    /// Consistency by window, likewise.
    pub consistency: BTreeMap<String, Vec<Option<f64>>>,
    /// Share of failing traces by window, likewise.
    pub failure_ratio: BTreeMap<String, Vec<Option<f64>>>,
    /// The share of failing traces that was usual; null before the first done trace.
    pub usual: Vec<Option<f64>>,
    /// The state of the share of failing traces: `quiet`, `recovering`, `warning`, `critical`; null before the first done trace.
    pub state: Vec<Option<&'static str>>,
    /// Done traces.
    pub traces: Vec<u64>,
    /// Open sessions.
    pub sessions_active: Vec<u64>,
    /// Sessions with a running loop that is known by more than names.
    pub sessions_looping: Vec<u64>,
    /// Dollars spent so far; null without any known.
    pub cost_usd: Vec<Option<f64>>,
}

/// A new version.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct NewVersionView {
    /// The version; null if none was sent.
    pub agent_version: Option<String>,
    /// When it was first seen.
    pub unix_nano: String,
}

/// A range of the history.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq)]
pub enum Range {
    /// The last hour.
    #[default]
    #[serde(rename = "1h")]
    Hour,
    /// Six hours.
    #[serde(rename = "6h")]
    SixHours,
    /// A day.
    #[serde(rename = "24h")]
    Day,
    /// A week.
    #[serde(rename = "7d")]
    Week,
}

/// A range of time, and its end.
#[derive(Clone, Copy, Debug)]
pub struct Lookback {
    /// The length of the range.
    pub range: Range,
    /// The end of the range, in wall time.
    pub now: Timestamp,
}

/// An archive: the rows at one step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Archive {
    /// Rows of a minute, for six hours.
    Minutes,
    /// Rows of five minutes, for a day.
    FiveMinutes,
    /// Rows of half an hour, for a week.
    HalfHours,
}

/// A point as it is stored in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Seconds since 1970.
    pub(super) at: u32,
    pub(super) failing: u16,
    reliability: u16,
    consistency: u16,
    usual: u16,
    /// The position in [`STATES`] plus one; 0: none.
    state: u8,
    active: u32,
    looping: u32,
    traces: u64,
    /// NaN: none.
    cost: f64,
}

/// The last points of one agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    // Names of windows, each once; points refer to them by position.
    windows: Vec<String>,
    points: VecDeque<Point>,
}

/// The state of an agent at one time.
#[derive(Clone, Debug)]
pub(super) struct Point {
    at: Timestamp,
    scores: Box<[Scores]>,
    usual: u16,
    state: Option<&'static str>,
    traces: u64,
    active: u64,
    looping: u64,
    cost: Option<f64>,
}

/// Scores in ten-thousandths; over [`MOST`]: none.
#[derive(Clone, Copy, Debug)]
struct Scores {
    window: u8,
    reliability: u16,
    consistency: u16,
    failing: u16,
}

const MOST: u16 = 10_000;

impl Ring {
    /// Adds a point for the state of an agent.
    pub(super) fn note(&mut self, update: &AgentFacts, now: Timestamp, max_points: usize) {
        while self.points.len() >= max_points.max(1) {
            self.points.pop_front();
        }
        let mut scores = Vec::with_capacity(update.view.windows.len());
        for (name, window) in &update.view.windows {
            let Some(position) = self.position(name) else { continue };
            scores.push(Scores::of(position, window));
        }
        self.points.push_back(Point::of(update, now, scores.into()));
    }

    /// The points in memory, after the older ones in `kept`: a window and its stored rows.
    pub(super) fn view(
        &self,
        agent: AgentName,
        step: Duration,
        kept: (&str, &[Row]),
    ) -> HistoryView {
        let mut windows = self.windows.clone();
        let held = windows.iter().position(|name| name == kept.0).unwrap_or(windows.len());
        if held == windows.len() {
            windows.push(kept.0.to_owned());
        }
        let first = self.points.front().map_or(Timestamp(u64::MAX), |point| point.at);
        let window = u8::try_from(held).unwrap_or(u8::MAX);
        let kept = kept.1.iter().map(|row| row.point(window)).filter(|point| point.at < first);
        let points: Vec<Point> = kept.chain(self.points.iter().cloned()).collect();
        view(agent, step, &windows, &points)
    }

    /// The share of failing traces in one window, for the last `points` points.
    pub(super) fn failing(&self, window: &str, points: usize) -> Vec<Option<f64>> {
        let named = self.windows.iter().zip(0_u8..).find(|(name, _)| *name == window);
        let skipped = self.points.len().saturating_sub(points);
        let column = |(_, at)| {
            let points = self.points.iter().skip(skipped);
            points.map(|point| point.value(at, |held| held.failing)).collect()
        };
        named.map_or_else(Vec::new, column)
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

impl Scores {
    fn of(window: u8, view: &WindowView) -> Self {
        Self {
            window,
            reliability: packed(view.reliability),
            consistency: packed(view.consistency),
            failing: packed(view.failure_ratio),
        }
    }
}

impl Point {
    fn of(update: &AgentFacts, at: Timestamp, scores: Box<[Scores]>) -> Self {
        let verdict = update.view.drops.iter().find(|drop| drop.stream == "verdict");
        Self {
            at,
            scores,
            usual: packed(verdict.map(|drop| drop.usual)),
            state: verdict.map(|drop| drop.severity),
            traces: update.view.traces,
            active: update.sessions_active,
            looping: update.looping,
            cost: update.view.cost_usd,
        }
    }

    fn value(&self, window: u8, of: fn(&Scores) -> u16) -> Option<f64> {
        let scores = self.scores.iter().find(|scores| scores.window == window)?;
        unpacked(of(scores))
    }
}

/// The columns of points.
fn view(agent: AgentName, step: Duration, windows: &[String], points: &[Point]) -> HistoryView {
    let column = |of: fn(&Scores) -> u16| -> BTreeMap<String, Vec<Option<f64>>> {
        let named = windows.iter().zip(0_u8..);
        let values = |at| points.iter().map(|point| point.value(at, of)).collect();
        let columns = named.map(|(name, at)| (name.clone(), values(at)));
        columns.filter(|(_, values): &(_, Vec<_>)| values.iter().any(Option::is_some)).collect()
    };
    let points = || points.iter();
    HistoryView {
        agent,
        step_seconds: step.as_secs_f64(),
        new_versions: Vec::new(),
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

impl Range {
    /// The length of the range.
    pub(super) fn lasting(self) -> Duration {
        let hours = match self {
            Self::Hour => 1,
            Self::SixHours => 6,
            Self::Day => 24,
            Self::Week => 168,
        };
        Duration::from_secs(3_600 * hours)
    }

    /// The finest archive that covers the range.
    pub(super) fn archive(self) -> Archive {
        match self {
            Self::Hour | Self::SixHours => Archive::Minutes,
            Self::Day => Archive::FiveMinutes,
            Self::Week => Archive::HalfHours,
        }
    }
}

impl Archive {
    pub(super) const ALL: [Self; 3] = [Self::Minutes, Self::FiveMinutes, Self::HalfHours];

    /// Seconds between two rows.
    pub(super) fn step(self) -> u32 {
        match self {
            Self::Minutes => 60,
            Self::FiveMinutes => 300,
            Self::HalfHours => 1_800,
        }
    }

    /// The number of rows of all archives.
    pub(super) const fn all_rows() -> usize {
        Self::Minutes.rows() + Self::FiveMinutes.rows() + Self::HalfHours.rows()
    }

    /// The number of rows.
    pub(super) const fn rows(self) -> usize {
        match self {
            Self::Minutes => 360,
            Self::FiveMinutes => 288,
            Self::HalfHours => 336,
        }
    }
}

#[cfg(test)]
impl Row {
    /// A row with nothing but a share of failing traces.
    pub(super) fn failing(at: u32, failing: u16) -> Self {
        Self { at, failing, ..Self::default() }
    }
}

impl Row {
    /// The row for the state of an agent, with the scores of one window.
    pub(super) fn of(update: &AgentFacts, window: Option<&WindowView>, now: Timestamp) -> Self {
        let scores = window.map(|window| Scores::of(0, window));
        let point = Point::of(update, now, scores.into_iter().collect());
        let state = point.state.and_then(|state| STATES.iter().position(|known| *known == state));
        let short = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            at: short(now.0 / 1_000_000_000),
            failing: scores.map_or(u16::MAX, |scores| scores.failing),
            reliability: scores.map_or(u16::MAX, |scores| scores.reliability),
            consistency: scores.map_or(u16::MAX, |scores| scores.consistency),
            usual: point.usual,
            state: state.map_or(0, |at| u8::try_from(at + 1).unwrap_or(0)),
            active: short(point.active),
            looping: short(point.looping),
            traces: point.traces,
            cost: point.cost.unwrap_or(f64::NAN),
        }
    }

    /// This row, which replaces `before`: if both belong to the same step, it keeps the worse state and the greater number of
    /// looping sessions, so that no drop is lost between two rows.
    #[must_use]
    pub(super) fn after(self, before: Option<Self>, archive: Archive) -> Self {
        let same = before.filter(|row| row.at / archive.step() == self.at / archive.step());
        let state = same.map_or(self.state, |row| row.state.max(self.state));
        let looping = same.map_or(self.looping, |row| row.looping.max(self.looping));
        Self { state, looping, ..self }
    }

    fn point(&self, window: u8) -> Point {
        let Self { failing, reliability, consistency, .. } = *self;
        Point {
            at: Timestamp(u64::from(self.at) * 1_000_000_000),
            scores: [Scores { window, reliability, consistency, failing }].into(),
            usual: self.usual,
            state: STATES.get(usize::from(self.state).wrapping_sub(1)).copied(),
            traces: self.traces,
            active: self.active.into(),
            looping: self.looping.into(),
            cost: Some(self.cost).filter(|cost| !cost.is_nan()),
        }
    }

    /// The bytes in the file: little-endian values, and their CRC-32C.
    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = self.at.to_le_bytes().to_vec();
        for share in [self.failing, self.reliability, self.consistency, self.usual] {
            bytes.extend(share.to_le_bytes());
        }
        bytes.extend([self.state, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(self.active.to_le_bytes());
        bytes.extend(self.looping.to_le_bytes());
        bytes.extend(self.traces.to_le_bytes());
        bytes.extend(self.cost.to_le_bytes());
        bytes.extend(crc32c(&bytes).to_le_bytes());
        debug_assert_eq!(bytes.len(), ROW);
        bytes
    }

    /// Reads a row; `None` if its checksum is wrong.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (row, sum) = bytes.split_last_chunk::<4>()?;
        let sound = row.len() == ROW - 4 && crc32c(row).to_le_bytes() == *sum;
        let row = Some(row).filter(|_| sound)?;
        let short = |at: usize| Some(u16::from_le_bytes(row.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(row.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(row.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            at: word(0)?,
            failing: short(4)?,
            reliability: short(6)?,
            consistency: short(8)?,
            usual: short(10)?,
            state: *row.get(12)?,
            active: word(20)?,
            looping: word(24)?,
            traces: long(28)?,
            cost: f64::from_bits(long(36)?),
        })
    }

    /// The share of failing traces.
    pub(super) fn failure_ratio(&self) -> Option<f64> {
        unpacked(self.failing)
    }
}

/// The states of the share of failing traces, the worst last.
const STATES: [&str; 4] = ["quiet", "recovering", "warning", "critical"];

fn packed(score: Option<f64>) -> u16 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what fits"
    )]
    score
        .filter(|score| !score.is_nan())
        .map_or(u16::MAX, |score| (score.clamp(0.0, 1.0) * f64::from(MOST)).round() as u16)
}

fn unpacked(score: u16) -> Option<f64> {
    (score <= MOST).then(|| f64::from(score) / f64::from(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::view::{AgentView, WindowView};

    fn update(reliability: Option<f64>) -> AgentFacts {
        let window =
            WindowView { reliability, failure_ratio: reliability, ..WindowView::default() };
        let view = AgentView { windows: [("5m".into(), window)].into(), ..AgentView::default() };
        AgentFacts { view, ..AgentFacts::default() }
    }

    #[test]
    fn the_oldest_point_goes_first() {
        let mut ring = Ring::default();
        for (at, score) in [(1, Some(0.1)), (2, None), (3, Some(0.33333))] {
            ring.note(&update(score), Timestamp(at), 2);
        }
        let view = ring.view(AgentName::default(), Duration::from_secs(15), ("5m", &[]));
        assert_eq!(view.unix_nano, ["2", "3"]);
        assert_eq!(view.reliability["5m"], [None, Some(0.3333)]);
        assert!(view.consistency.is_empty());
        assert_eq!(view.failure_ratio["5m"], [None, Some(0.3333)]);
        assert_eq!((view.usual, view.state), (vec![None, None], vec![None, None]));
        assert_eq!(ring.failing("5m", 1), [Some(0.3333)]);
        assert!(ring.failing("1h", 1).is_empty());
    }

    #[test]
    fn what_was_kept_comes_before_what_is_held() {
        let mut ring = Ring::default();
        let now = Timestamp(120_000_000_000);
        ring.note(&update(Some(0.5)), now, 9);
        let whole = update(Some(0.25));
        let window = whole.view.windows.get("5m");
        let kept = [60_000_000_000, 120_000_000_000]
            .map(|at| Row::of(&whole, window, Timestamp(at)))
            .map(|row| Row::read(&row.bytes()).unwrap());
        let view = ring.view(AgentName::default(), Duration::from_secs(60), ("5m", &kept));
        assert_eq!(view.unix_nano, ["60000000000", "120000000000"]);
        assert_eq!(view.failure_ratio["5m"], [Some(0.25), Some(0.5)]);
        assert_eq!(view.cost_usd, [None, None]);
    }
}
