//! The streams of an agent in which drops are looked for. This is the one list: state, metrics, documents and API go by it.

use crate::update::DoneTrace;

/// A stream: one value for each trace that has it.
#[derive(Debug)]
pub struct Stream {
    /// Its name, in labels and in the API.
    pub name: &'static str,
    /// A drop of it pages; of others it only warns, and without a past they are held against one half, as they have no
    /// objective.
    pub pages: bool,
    /// What is bad.
    pub doc: &'static str,
    pub(super) failed: fn(&DoneTrace) -> Option<bool>,
}

/// All of them.
pub const STREAMS: &[Stream] = &[
    Stream {
        name: "verdict",
        pages: true,
        doc: "the trace fails, by computed signals alone",
        failed: |trace| trace.failed,
    },
    Stream {
        name: "outcome",
        pages: true,
        doc: "somebody told an outcome, of the trace or of its session, that is no success",
        failed: |trace| trace.outcome_failed,
    },
    Stream {
        name: "tool_failures",
        pages: false,
        doc: "a tool call of the trace failed, of traces whose tool calls tell",
        failed: |trace| trace.tools_failed,
    },
    Stream {
        name: "loops",
        pages: false,
        doc: "the trace has part in a loop that is known by more than names, or repeats an earlier output",
        failed: |trace| trace.looped,
    },
];

/// The success rate that streams without an objective are held against while they have no past.
pub(super) const NO_OBJECTIVE: f64 = 0.5;

impl Stream {
    /// The stream of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        STREAMS.iter().find(|stream| stream.name == name)
    }
}
