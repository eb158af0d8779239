//! Signals: one number per trace, in `[0,1]`, higher is better, or absent.
//!
//! One signal, one file, which opens with the formula; one line in [`SIGNALS`], which has all that there is to know of it.

pub mod argument_correctness;
pub mod coherence;
pub mod confidence;
pub mod error;
pub mod loop_detection;
pub(crate) mod name;
pub mod outcome;
pub mod thresholds;
pub mod tool_loop;
pub mod tool_success;

pub(crate) use self::name::SignalName;
use crate::loops::Severity;
use crate::math::Quanta;
use crate::update::OutputDigest;

/// The reported score that says that a rule was broken; its label is the severity.
pub const CONSTRAINT_VIOLATION: &str = "constraint_violation";

/// A signal that we know by name.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its name in results and labels.
    pub name: &'static str,
    /// What it says, for people.
    pub doc: &'static str,
    /// Its weight, unless something else is configured; without one it has no part in scores.
    pub weight: Option<f64>,
    /// Whether it is one of the four that the documents' scores are made of.
    pub in_documents: bool,
    /// How it is computed; absent: somebody reports it, or a judge says it.
    pub computed: Option<Computation>,
}

/// How a signal is computed.
#[derive(Clone, Copy, Debug)]
pub struct Computation {
    /// The score; `None` where there is nothing to compute it from.
    pub score: fn(&Facts<'_>) -> Option<Quanta>,
    /// What it was made of, for people.
    pub evidence: fn(&Facts<'_>, &Grounds) -> Vec<String>,
    /// Whether the documents compute it so: in their profile no other is computed.
    pub in_documents: bool,
}

/// What signals of a trace are computed from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// The root or the last model call failed.
    pub error: bool,
    /// Model and tool calls.
    pub steps: u64,
    /// Those that failed or repeated an earlier call.
    pub wasted_steps: u64,
    /// Tool calls of which the wire tells how they went, and those of them that failed.
    pub tool_calls: (u64, u64),
    /// The worst severity of the loops that it has a call in.
    pub loops: Option<Severity>,
    /// Its output, if any arrived.
    pub output: Option<&'a OutputDigest>,
    /// Those of the traces before it in its session, oldest first.
    pub earlier: &'a [Option<&'a OutputDigest>],
    /// How near the output is to the input, if an embedding model was asked.
    pub coherence: Option<Quanta>,
    /// What the similarity to nothing is worth; absent: nothing.
    pub empty: Option<Quanta>,
}

/// What an explanation names beside the numbers.
#[derive(Clone, Debug, Default)]
pub struct Grounds {
    /// The loops that have a call in the trace, each described.
    pub loops: Vec<String>,
    /// What the output was compared with, and how.
    pub compared: String,
    /// The traces whose output it repeats; empty: none.
    pub repeated: Vec<String>,
}

/// All signals that have a meaning of ours: those that are computed; the outcome, which is reported or judged;
/// `argument_correctness`, which a judge says; and `tool_correctness`, which only others report.
pub const SIGNALS: &[Signal] = &[
    Signal {
        name: argument_correctness::NAME,
        doc: "Share of tool calls whose arguments were right",
        weight: None,
        in_documents: false,
        computed: None,
    },
    Signal {
        name: coherence::NAME,
        doc: "Nearness of the output to the input",
        weight: Some(1.0),
        in_documents: true,
        computed: Some(coherence::COMPUTATION),
    },
    Signal {
        name: confidence::NAME,
        doc: "Share of steps that neither failed nor repeated",
        weight: Some(1.0),
        in_documents: true,
        computed: Some(confidence::COMPUTATION),
    },
    Signal {
        name: error::NAME,
        doc: "Whether the trace ended in error",
        weight: Some(1.0),
        in_documents: false,
        computed: Some(error::COMPUTATION),
    },
    Signal {
        name: loop_detection::NAME,
        doc: "Unlikeness of the output to the ones before",
        weight: Some(1.0),
        in_documents: true,
        computed: Some(loop_detection::COMPUTATION),
    },
    Signal {
        name: outcome::NAME,
        doc: "Whether the trace did what it was there for",
        weight: Some(1.0),
        in_documents: false,
        computed: None,
    },
    Signal {
        name: "tool_correctness",
        doc: "Whether the right tools were called, as somebody reports it",
        weight: Some(0.8),
        in_documents: true,
        computed: None,
    },
    Signal {
        name: tool_loop::NAME,
        doc: "Whether tool calls went in a loop",
        weight: Some(1.0),
        in_documents: false,
        computed: Some(tool_loop::COMPUTATION),
    },
    Signal {
        name: tool_success::NAME,
        doc: "Share of tool calls that did not fail, unless the trace ended in error; has no weight unless one is set",
        weight: None,
        in_documents: false,
        computed: Some(tool_success::COMPUTATION),
    },
];

/// The signal of this name, if it is one of ours.
pub fn of(name: &str) -> Option<&'static Signal> {
    SIGNALS.iter().find(|signal| signal.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sorted() {
        assert!(SIGNALS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
