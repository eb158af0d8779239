//! How often each tool was called in a trace.

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::few::Few;
use crate::engine::loops::Least;
use crate::engine::span::Span;
use crate::engine::trace::Spans;

/// Calls by the hash of the tool's name.
#[derive(Debug, Default)]
pub(super) struct Calls(Few<u64, Called>);

/// How often a tool was called.
#[derive(Clone, Copy, Debug, Default)]
struct Called {
    /// With arguments that are on the wire.
    known: usize,
    /// With or without.
    all: usize,
}

impl Calls {
    /// Those of these spans.
    pub(super) fn of(spans: &Spans) -> Self {
        let mut calls = Self::default();
        spans.called_tools().for_each(|(tool, arguments)| calls.count(tool, arguments));
        calls
    }

    /// Counts what a span says. One that holds in place of another counts again: there may be fewer calls than are counted,
    /// never more.
    pub(super) fn note(&mut self, span: &Span) {
        if let Some(tool) = &span.tool
            && let Some(name) = &tool.name
        {
            self.count(name, tool.arguments.is_some());
        }
    }

    /// Whether some tool was called often enough for a loop.
    pub(super) fn may_loop(&self, least: Least) -> bool {
        self.0.values().any(|called| called.known >= least.known || called.all >= least.names)
    }

    fn count(&mut self, tool: &str, arguments: bool) {
        let called = self.0.or_default(xxh3_64(tool.as_bytes()));
        called.known += usize::from(arguments);
        called.all += 1;
    }
}
