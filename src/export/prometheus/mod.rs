//! The Prometheus text format and OpenMetrics, rendered at each scrape.
//!
//! The agent's labels are rendered once per agent.

mod line;
mod page;

use std::sync::Arc;

pub(super) use self::line::{agent_labels, shown};
use self::page::Page;
pub use super::samples::Detail;
use super::samples::Samples;
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

/// A page in pieces, one after the other, so that other tasks can run between two pieces.
///
/// A piece may be empty. Each takes its thread for a bounded time, however many agents there are.
#[derive(Debug)]
pub struct Exposition(Samples<Page>);

/// The bytes after which a piece ends.
const PIECE_BYTES: usize = 56 << 10;

impl Exposition {
    /// The page of these agents, which come in the order of their names.
    pub fn new(agents: Vec<Arc<AgentFacts>>, format: Format, detail: Detail) -> Self {
        Self(Samples::new(agents, detail, Page::new(format)))
    }
}

impl Iterator for Exposition {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0.sink.text.reserve(PIECE_BYTES + PIECE_BYTES / 8);
        let is_more = self.0.step();
        let text = &mut self.0.sink.text;
        is_more.then(|| if text.is_empty() { String::new() } else { std::mem::take(text) })
    }
}

#[cfg(test)]
pub(super) mod tests;
