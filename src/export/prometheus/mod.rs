//! The Prometheus text format and OpenMetrics, from live state at each scrape: a series that ended is not exported.
//!
//! The agent's labels are rendered once per agent. A score over nothing has no series.

mod line;
mod page;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::line::label_block;
use self::page::Page;
pub(super) use self::page::at_most;
use super::families::{
    COUNTERS, CounterFamily, DISTRIBUTIONS, DistributionFamily, Family, SCORES,
    SESSION_CONSISTENCY, SESSION_RELIABILITY, ScoreFamily, TRACE_SIGNAL,
};
use super::gauges::{Gauge, RUNS, SESSIONS, WINDOWS};
use super::watched::WATCHED;
use crate::engine::agent_facts::AgentFacts;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// The format of an exposition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The best format that an `Accept` header takes: OpenMetrics if it is named, else text.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// The content type of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Renders all agents in one piece. OpenMetrics needs `# EOF` after the last metrics, which the caller adds.
pub fn render(agents: &[Arc<AgentFacts>], format: Format, detail: Detail) -> String {
    Exposition::new(agents.to_vec(), format, detail).collect()
}

/// Which families are exported.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// Those that alerts and the headline need.
    #[default]
    Core,
    /// All.
    Full,
}

/// A page in pieces, one after the other, so that other tasks can run between two pieces.
///
/// A piece may be empty. Each takes its thread for a bounded time, however many agents there are.
#[derive(Debug)]
pub struct Exposition {
    // Agents whose labels are not rendered yet.
    waiting: std::vec::IntoIter<Arc<AgentFacts>>,
    agents: Vec<Exported>,
    parts: Vec<Section>,
    page: Page,
    // The position of the next sample: part and agent.
    part: usize,
    agent: usize,
}

/// The bytes, and the visits to an agent, after which a piece ends.
const PIECE_BYTES: usize = 56 << 10;
const PIECE_LOOKS: usize = 500;

/// The agents that a piece drops once everything is written: updates that were replaced meanwhile are freed here.
const PIECE_AGENTS: usize = 50;

#[derive(Debug)]
struct Exported {
    update: Arc<AgentFacts>,
    // Rendered once: `service_name="..",...`.
    labels: String,
}

/// A part of the page, written for one agent after the other, as the samples of a family have to be together.
#[derive(Clone, Copy, Debug)]
enum Section {
    Gauge(&'static Gauge),
    RunScore(&'static ScoreFamily),
    TraceSignal,
    ClosedSessions(&'static Family, &'static str),
    Taken(&'static DistributionFamily),
    Counter(&'static CounterFamily, Detail),
}

impl Exposition {
    /// The page of these agents, which come in the order of their names.
    pub fn new(agents: Vec<Arc<AgentFacts>>, format: Format, detail: Detail) -> Self {
        Self {
            agents: Vec::with_capacity(agents.len()),
            waiting: agents.into_iter(),
            parts: Section::all(detail),
            page: Page::new(format),
            part: 0,
            agent: 0,
        }
    }

    /// Writes the next piece.
    fn write(&mut self) -> String {
        self.page.text.reserve(PIECE_BYTES + PIECE_BYTES / 8);
        for _ in 0..PIECE_LOOKS {
            let Some(part) = self.parts.get(self.part) else { break };
            if self.agent == 0 {
                self.page.begin(part);
            }
            if let Some(agent) = self.agents.get(self.agent) {
                self.page.write(part, agent);
            }
            self.agent += 1;
            if self.agent >= self.agents.len() {
                (self.part, self.agent) = (self.part + 1, 0);
            }
            if self.page.text.len() >= PIECE_BYTES {
                break;
            }
        }
        std::mem::take(&mut self.page.text)
    }
}

impl Iterator for Exposition {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.waiting.len() > 0 {
            let labelled = self.waiting.by_ref().take(PIECE_LOOKS).map(Exported::new);
            self.agents.extend(labelled);
        } else if self.part < self.parts.len() {
            return Some(self.write());
        } else {
            let left = self.agents.len().checked_sub(1)?.saturating_sub(PIECE_AGENTS);
            self.agents.truncate(left);
        }
        Some(String::new())
    }
}

impl Exported {
    fn new(update: Arc<AgentFacts>) -> Self {
        let labels = label_block(&update.agent);
        Self { update, labels }
    }
}

/// All families, in the order of the page.
pub(super) fn families() -> impl Iterator<Item = &'static Family> {
    Section::all(Detail::Full).into_iter().map(|part| part.family().0)
}

impl Section {
    /// All parts, in the order of the page.
    fn all(detail: Detail) -> Vec<Self> {
        let mut parts: Vec<Self> = WINDOWS.iter().map(Self::Gauge).collect();
        parts.extend(SCORES.iter().map(Self::RunScore));
        parts.extend([RUNS, WATCHED, SESSIONS].into_iter().flatten().map(Self::Gauge));
        parts.extend([
            Self::TraceSignal,
            Self::ClosedSessions(&SESSION_RELIABILITY, "reliability"),
            Self::ClosedSessions(&SESSION_CONSISTENCY, "consistency"),
        ]);
        parts.extend(DISTRIBUTIONS.iter().map(Self::Taken));
        parts.extend(COUNTERS.iter().map(|counter| Self::Counter(counter, detail)));
        parts.retain(|part| part.family().0.core || detail == Detail::Full);
        parts
    }

    /// The family of the part, and whether it has a head even if no agent has a sample.
    fn family(self) -> (&'static Family, bool) {
        match self {
            Self::Gauge(gauge) => (&gauge.family, gauge.always),
            Self::RunScore(score) => (&score.family, false),
            Self::TraceSignal => (&TRACE_SIGNAL, true),
            Self::ClosedSessions(family, _) => (family, true),
            Self::Taken(taken) => (&taken.family, false),
            Self::Counter(counter, _) => (&counter.family, counter.family.core),
        }
    }
}

#[cfg(test)]
mod tests;
