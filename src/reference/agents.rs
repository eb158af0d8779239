//! Agents: their scores over all their traces and in every window.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::score::{self, Scores, TraceScore};
use super::sessions::{Scored, Session};
use crate::engine::options::AgentOptions;
use crate::engine::span::Timestamp;
use crate::engine::view::AgentName;

/// The number of panes of a window before the open pane.
const PANES: u64 = 60;

/// The numbers of an agent in one window.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) traces: usize,
    pub(super) sessions: usize,
    /// The scores without the judge's answers.
    pub(super) scores: Scores,
    pub(super) with_confidence: usize,
    pub(super) failing: usize,
    pub(super) judged: Scores,
    /// The mean of each signal.
    pub(super) signals: BTreeMap<String, f64>,
}

/// A trace of an agent and the number of its session.
type Own<'s> = (usize, &'s Scored);

/// The agents of these sessions, each with its traces.
pub(super) fn agents(sessions: &[Session]) -> BTreeMap<AgentName, Vec<Own<'_>>> {
    let mut agents: BTreeMap<AgentName, Vec<Own<'_>>> = BTreeMap::new();
    for (number, session) in sessions.iter().enumerate() {
        for scored in &session.traces {
            agents.entry(scored.trace.agent.clone()).or_default().push((number, scored));
        }
    }
    agents
}

/// The numbers over all of an agent's traces.
pub(super) fn all(own: &[Own<'_>]) -> Window {
    let sessions: BTreeSet<usize> = own.iter().map(|(session, _)| *session).collect();
    Window { sessions: sessions.len(), ..window(own) }
}

/// The windows by name, at a moment of wall time.
pub(super) fn windows(
    own: &[Own<'_>],
    options: &AgentOptions,
    wall: Timestamp,
) -> BTreeMap<String, Window> {
    let mut windows = BTreeMap::new();
    for width in &options.windows {
        let pane = u64::try_from(width.as_nanos() / u128::from(PANES)).unwrap_or(u64::MAX).max(1);
        let is_in = |scored: &Scored| (ended(scored) / pane).abs_diff(wall.0 / pane) <= PANES;
        let inside: Vec<Own<'_>> = own.iter().filter(|(_, one)| is_in(one)).copied().collect();
        // A session counts by its newest trace of the agent.
        let mut newest: BTreeMap<usize, &Scored> = BTreeMap::new();
        for (session, scored) in own {
            let held = newest.entry(*session).or_insert(scored);
            if ended(scored) > ended(held) {
                *held = scored;
            }
        }
        let sessions = newest.values().filter(|scored| is_in(scored)).count();
        windows.insert(name(*width), Window { sessions, ..window(&inside) });
    }
    if options.last_traces > 0 {
        let mut last = own.to_vec();
        last.sort_by_key(|(_, one)| (one.trace.start, one.trace.id));
        let last = &last[last.len().saturating_sub(options.last_traces)..];
        let summed = Window { signals: BTreeMap::new(), ..window(last) };
        windows.insert(format!("last_{}", options.last_traces), summed);
    }
    windows
}

fn window(own: &[Own<'_>]) -> Window {
    let worths = || own.iter().map(|(_, scored)| &scored.worth);
    let scores: Vec<TraceScore> = worths().map(|worth| worth.own.clone()).collect();
    let judged: Vec<TraceScore> =
        worths().filter(|worth| worth.is_judged).map(|worth| worth.all.clone()).collect();
    let mut sums: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for worth in worths() {
        let computed = worth.computed_confidence.map(|score| ("confidence".to_owned(), score));
        let signals = worth.signals.iter().map(|(name, signal)| {
            let judged = name == "confidence" && computed.is_some();
            let name = if judged { "judged_confidence" } else { name };
            (name.to_owned(), signal.score)
        });
        for (name, score) in signals.chain(computed.clone()) {
            let (sum, count) = sums.entry(name).or_default();
            (*sum, *count) = (*sum + score, *count + 1);
        }
    }
    Window {
        traces: own.len(),
        sessions: 0,
        with_confidence: scores.iter().filter(|score| score.uncertainty.is_some()).count(),
        failing: scores.iter().filter(|score| score.risk.is_some_and(fails)).count(),
        scores: score::scores(&scores),
        judged: score::scores(&judged),
        signals: sums.into_iter().map(|(name, (sum, n))| (name, sum / n as f64)).collect(),
    }
}

/// Whether a risk is over one half, on the grid of 1e-4 on which agents keep risks.
fn fails(risk: f64) -> bool {
    (risk * 1e4).round() > 5_000.0
}

fn ended(scored: &Scored) -> u64 {
    scored.trace.end.max(scored.trace.start)
}

/// The name of a window, such as `90s`, `5m` or `24h`.
fn name(window: Duration) -> String {
    match window.as_secs() {
        hours if hours > 0 && hours % 3_600 == 0 => format!("{}h", hours / 3_600),
        minutes if minutes > 0 && minutes % 60 == 0 => format!("{}m", minutes / 60),
        seconds => format!("{seconds}s"),
    }
}
