//! How often each tool was called in a trace, counted as its spans come.

use std::fmt;

use crate::engine::few::Few;
use crate::engine::loops::Least;
use crate::engine::trace::{Sign, Spans};

/// Calls by the hash of the tool's name; `None` where the spans have to be asked.
pub(super) struct Calls(Option<Few<u64, Called>>);

/// How often a tool was called.
#[derive(Default)]
struct Called {
    /// With arguments that are on the wire.
    known: usize,
    /// With or without.
    all: usize,
}

impl Calls {
    /// None yet.
    pub(super) fn none() -> Self {
        Self(Some(Few::default()))
    }

    /// Counts what a span says. One that holds in place of another counts again: there may be fewer calls than are counted,
    /// never more.
    pub(super) fn note(&mut self, sign: Sign) {
        self.0.iter_mut().for_each(|calls| count(calls, sign));
    }

    /// Whether some tool was called often enough for a loop.
    pub(super) fn may_loop(&mut self, least: Least, spans: &Spans) -> bool {
        let calls = self.0.get_or_insert_with(|| {
            let mut calls = Few::default();
            spans.signs().for_each(|sign| count(&mut calls, sign));
            calls
        });
        calls.values().any(|called| called.known >= least.known || called.all >= least.names)
    }
}

/// A trace that was written down: its spans have to be asked.
impl Default for Calls {
    fn default() -> Self {
        Self(None)
    }
}

/// Nothing: it follows from the spans, whether it is there or not.
impl fmt::Debug for Calls {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Calls")
    }
}

fn count(calls: &mut Few<u64, Called>, sign: Sign) {
    if let Some((tool, arguments)) = sign.tool {
        let called = calls.or_default(tool);
        called.known += usize::from(arguments);
        called.all += 1;
    }
}
