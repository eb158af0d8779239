//! The streams of an agent in which drops are looked for. This is the one list: state, metrics, documents and API go by it.

use crate::detect::Observation;
use crate::predict::spread::{Measure, Spread};
use crate::update::{DoneTrace, Effort};

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
    pub(super) measure: Reading,
}

/// How the value of a trace is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// It is bad or not.
    Failed(fn(&DoneTrace) -> Option<bool>),
    /// The mean of the shares of the agent's usual traces that took less of these measures, as far as they are known of it.
    Rank(&'static [Measure]),
}

/// One value of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) observation: Observation,
    /// The trace is an example of what is bad.
    pub(super) bad: bool,
}

/// All of them.
pub const STREAMS: &[Stream] = &[
    Stream {
        name: "verdict",
        pages: true,
        doc: "the trace fails, by computed signals alone",
        measure: Reading::Failed(|trace| trace.failed),
    },
    Stream {
        name: "outcome",
        pages: true,
        doc: "somebody told an outcome, of the trace, its session or its run, that is no success",
        measure: Reading::Failed(|trace| trace.outcome_failed),
    },
    Stream {
        name: "tool_failures",
        pages: false,
        doc: "a tool call of the trace failed, of traces whose tool calls tell",
        measure: Reading::Failed(|trace| trace.tools_failed),
    },
    Stream {
        name: "loops",
        pages: false,
        doc: "the trace has part in a loop that is known by more than names, or repeats an earlier output",
        measure: Reading::Failed(|trace| trace.looped),
    },
    Stream {
        name: "effort",
        pages: false,
        doc: "the trace has more model calls, tool calls and output tokens than the agent's usual traces: its percentile among them",
        measure: Reading::Rank(&[Measure::ModelCalls, Measure::ToolCalls, Measure::OutputTokens]),
    },
    Stream {
        name: "cost",
        pages: false,
        doc: "the trace costs more than the agent's usual traces: its percentile among them",
        measure: Reading::Rank(&[Measure::Cost]),
    },
    Stream {
        name: "latency",
        pages: false,
        doc: "the trace takes longer than the agent's usual traces: its percentile among them",
        measure: Reading::Rank(&[Measure::Duration]),
    },
];

/// The success rate that streams without an objective are held against while they have no past.
pub(super) const NO_OBJECTIVE: f64 = 0.5;

impl Stream {
    /// The stream of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        STREAMS.iter().find(|stream| stream.name == name)
    }

    /// Whether values are percentiles among the agent's usual traces, and not shares of traces that fail.
    pub(super) fn ranks(&self) -> bool {
        matches!(self.measure, Reading::Rank(_))
    }

    /// What this stream has of a trace; `None`: nothing, or too little is known of what is usual.
    pub(super) fn value(&self, trace: &DoneTrace, usual: &Spread) -> Option<Value> {
        match self.measure {
            Reading::Failed(failed) => {
                failed(trace).map(|bad| Value { observation: Observation::verdict(bad), bad })
            }
            Reading::Rank(measures) => {
                let level = rank(trace.effort.as_ref()?, measures, usual)?;
                Some(Value { observation: Observation::level(level)?, bad: level >= UNUSUAL })
            }
        }
    }
}

fn rank(effort: &Effort, measures: &[Measure], usual: &Spread) -> Option<f64> {
    let ranks = measures.iter().filter_map(|measure| usual.rank(*measure, measure.of(effort)?));
    let (sum, known) = ranks.fold((0.0, 0_u32), |(sum, known), rank| (sum + rank, known + 1));
    (known > 0).then(|| sum / f64::from(known))
}

/// The percentile from which on a trace is an example of a rise.
const UNUSUAL: f64 = 0.9;
