//! The streams of an agent in which drops are searched for. State, metrics, documents and API follow from this one list.

use super::ArrivedTrace;
use super::watch::AgentWatch;
use crate::detect::{EarlierChance, Observation};
use crate::facts::{DoneTrace, Effort};
use crate::predict::spread::{Measure, Spread};

/// A stream: one value for each trace that has it.
#[derive(Debug)]
pub struct Stream {
    /// Its name, in labels and in the API.
    pub name: &'static str,
    /// Whether its drops page. Drops of other streams only warn; as these have no objective, they are compared with one half while
    /// they have no past.
    pub pages: bool,
    /// What is bad, for the documents.
    pub doc: &'static str,
    pub(super) measure: ValueSource,
}

/// How the value of a trace is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueSource {
    /// Whether the trace is bad.
    Failed(fn(&DoneTrace) -> Option<bool>),
    /// The mean rank of the trace among the agent's usual traces, over those of these measures that are known for it.
    Rank(&'static [Measure]),
    /// The outcome of the trace, or without one the probability that it failed.
    Predicted,
}

/// One value of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) observation: Observation,
    /// Whether the trace is an example of failure.
    pub(super) bad: bool,
}

/// All streams.
pub const STREAMS: &[Stream] = &[
    Stream {
        name: "verdict",
        pages: true,
        doc: "the trace fails, by computed signals alone",
        measure: ValueSource::Failed(|trace| trace.failed),
    },
    Stream {
        name: "outcome",
        pages: true,
        doc: "the reported outcome of the trace, its session or its run is not a success",
        measure: ValueSource::Failed(|trace| trace.outcome_failed),
    },
    Stream {
        name: PREDICTED,
        pages: true,
        doc: "outcomes as above and, for traces without one, the chance that they failed, once it is learnt from 32 outcomes",
        measure: ValueSource::Predicted,
    },
    Stream {
        name: "tool_failures",
        pages: false,
        doc: "a tool call of the trace failed; only traces whose tool calls say whether they failed",
        measure: ValueSource::Failed(|trace| trace.tools_failed),
    },
    Stream {
        name: "loops",
        pages: false,
        doc: "the trace is part of a loop with more evidence than names, or repeats an earlier output",
        measure: ValueSource::Failed(|trace| trace.looped),
    },
    Stream {
        name: "effort",
        pages: false,
        doc: "the trace has more model calls, tool calls and output tokens than the agent's usual traces: its percentile among them",
        measure: ValueSource::Rank(&[
            Measure::ModelCalls,
            Measure::ToolCalls,
            Measure::OutputTokens,
        ]),
    },
    Stream {
        name: "cost",
        pages: false,
        doc: "the trace costs more than the agent's usual traces: its percentile among them",
        measure: ValueSource::Rank(&[Measure::Cost]),
    },
    Stream {
        name: "latency",
        pages: false,
        doc: "the trace takes longer than the agent's usual traces: its percentile among them",
        measure: ValueSource::Rank(&[Measure::Duration]),
    },
];

/// The name of the stream of predictions.
pub(super) const PREDICTED: &str = "predicted_failure";

/// The success rate with which streams without an objective are compared while they have no past.
pub(super) const NO_OBJECTIVE: f64 = 0.5;

impl Stream {
    /// The stream of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        STREAMS.iter().find(|stream| stream.name == name)
    }

    /// Whether values are percentiles among the agent's usual traces, and not shares of traces that fail.
    pub(super) fn ranks(&self) -> bool {
        matches!(self.measure, ValueSource::Rank(_))
    }

    /// The value of a trace in this stream; `None`: it has none, or too little is known about what is usual.
    pub(super) fn value(&self, told: &ArrivedTrace, watch: &AgentWatch) -> Option<Value> {
        let trace = &told.trace;
        match self.measure {
            ValueSource::Failed(failed) => {
                failed(trace).map(|bad| Value { observation: Observation::verdict(bad), bad })
            }
            ValueSource::Rank(measures) => {
                let effort = trace.effort.as_ref().filter(|_| trace.is_first())?;
                let level = rank(effort, measures, &watch.usual)?;
                Some(Value { observation: Observation::level(level)?, bad: level >= UNUSUAL })
            }
            ValueSource::Predicted => predicted(told, watch),
        }
    }
}

/// The value of a trace in the stream of predictions; `None` before there is a model. An outcome that is reported later replaces
/// the probability, if that was counted when the trace was done.
fn predicted(told: &ArrivedTrace, watch: &AgentWatch) -> Option<Value> {
    let trace = &told.trace;
    let effort = trace.effort.as_ref().filter(|_| watch.learner.is_made());
    let chance = effort.and_then(|effort| watch.learner.chance(effort, &watch.usual));
    match (trace.outcome_failed, chance) {
        (Some(bad), chance) if watch.learner.is_made() => {
            let earlier = chance.filter(|_| !trace.is_first());
            let earlier = earlier.map(|chance| EarlierChance { chance, began: told.began });
            Some(Value { observation: Observation::outcome(bad, earlier), bad })
        }
        (None, Some(chance)) if trace.is_first() => {
            Some(Value { observation: Observation::chance(chance)?, bad: chance >= LIKELY })
        }
        _ => None,
    }
}

fn rank(effort: &Effort, measures: &[Measure], usual: &Spread) -> Option<f64> {
    let ranks = measures.iter().filter_map(|measure| usual.rank(*measure, measure.of(effort)?));
    let (sum, known) = ranks.fold((0.0, 0_u32), |(sum, known), rank| (sum + rank, known + 1));
    (known > 0).then(|| sum / f64::from(known))
}

/// The least predicted probability for a trace to be an example of failure.
const LIKELY: f64 = 0.5;

/// The least percentile for a trace to be an example of a rise.
const UNUSUAL: f64 = 0.9;
