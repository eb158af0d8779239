//! Signals: one number per trace, in `[0,1]`, higher is better, or absent.
//!
//! Each signal has one file, which opens with the formula, and one entry in [`SIGNALS`].

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
use crate::facts::OutputDigest;
use crate::loops::Severity;
use crate::math::Quanta;

/// The name of the reported score for a broken rule; its label is the severity.
pub const CONSTRAINT_VIOLATION: &str = "constraint_violation";

/// A built-in signal.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its name in results and labels.
    pub name: &'static str,
    /// What it measures, for people.
    pub doc: &'static str,
    /// Its default weight; without a weight it is not part of scores.
    pub weight: Option<f64>,
    /// Whether it is one of the four signals in the source documents' scores.
    pub in_documents: bool,
    /// How it is computed; `None`: it is reported or judged.
    pub computed: Option<Computation>,
}

/// How a signal is computed.
#[derive(Clone, Copy, Debug)]
pub struct Computation {
    /// Computes the score; `None` if there is nothing to compute it from.
    pub score: fn(&Facts<'_>) -> Option<Quanta>,
    /// Explains to people what the score was computed from.
    pub evidence: fn(&Facts<'_>, &Grounds) -> Vec<String>,
    /// Whether the source documents compute it this way; in their profile only such signals are computed.
    pub in_documents: bool,
}

/// The facts of a trace that signals are computed from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// Whether the root or the last model call failed.
    pub error: bool,
    /// Number of model and tool calls.
    pub steps: u64,
    /// Number of steps that failed or repeated an earlier call.
    pub wasted_steps: u64,
    /// Number of tool calls with a known outcome, and of those that failed.
    pub tool_calls: (u64, u64),
    /// The worst severity of the loops that have a call in the trace.
    pub loops: Option<Severity>,
    /// Its output, if any arrived.
    pub output: Option<&'a OutputDigest>,
    /// The outputs of the traces before it in its session, oldest first.
    pub earlier: &'a [Option<&'a OutputDigest>],
    /// The similarity of the output to the input, if an embedding model was asked.
    pub coherence: Option<Quanta>,
    /// The score of `loop_detection` if there is nothing to compare with; `None`: it is absent.
    pub empty: Option<Quanta>,
}

/// Facts that an explanation mentions beside the numbers.
#[derive(Clone, Debug, Default)]
pub struct Grounds {
    /// The loops that have a call in the trace, each described.
    pub loops: Vec<String>,
    /// What the output was compared with, and how.
    pub compared: String,
    /// The traces whose output it repeats; empty: none.
    pub repeated: Vec<String>,
}

/// All built-in signals: those that are computed; the outcome, which is reported or judged; `argument_correctness`, which is
/// judged; and `tool_correctness`, which is only reported.
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
        doc: "Similarity of the output to the input",
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
        doc: "Dissimilarity of the output to earlier ones",
        weight: Some(1.0),
        in_documents: true,
        computed: Some(loop_detection::COMPUTATION),
    },
    Signal {
        name: outcome::NAME,
        doc: "Whether the trace completed its task",
        weight: Some(1.0),
        in_documents: false,
        computed: None,
    },
    Signal {
        name: "tool_correctness",
        doc: "Whether the right tools were called, as reported",
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

/// The built-in signal of this name, if there is one.
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
