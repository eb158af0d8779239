//! Signals: one number per trace, in `[0,1]`, higher is better, or absent.
//!
//! One signal, one file, which opens with the formula; one line in [`SIGNALS`].

pub mod argument_correctness;
pub mod coherence;
pub mod confidence;
pub mod error;
pub mod loop_detection;
pub mod outcome;
pub mod thresholds;
pub mod tool_loop;

/// The reported score that says that a rule was broken; its label is the severity.
pub const CONSTRAINT_VIOLATION: &str = "constraint_violation";

/// A signal that we know by name.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its name in results and labels.
    pub name: &'static str,
    /// What it says, for people.
    pub doc: &'static str,
    /// Whether it is one of the documents' four.
    pub in_documents: bool,
}

/// All signals that are computed, two of them from what a model was asked: coherence from its embeddings,
/// `argument_correctness` from its verdicts; and the outcome, which is reported or judged.
pub const SIGNALS: &[Signal] = &[
    Signal {
        name: argument_correctness::NAME,
        doc: "Share of tool calls whose arguments were right",
        in_documents: false,
    },
    Signal {
        name: coherence::NAME,
        doc: "Nearness of the output to the input",
        in_documents: true,
    },
    Signal {
        name: confidence::NAME,
        doc: "Share of steps that neither failed nor repeated",
        in_documents: false,
    },
    Signal { name: error::NAME, doc: "Whether the trace ended in error", in_documents: false },
    Signal {
        name: loop_detection::NAME,
        doc: "Unlikeness of the output to the ones before",
        in_documents: true,
    },
    Signal {
        name: outcome::NAME,
        doc: "Whether the trace did what it was there for",
        in_documents: false,
    },
    Signal { name: tool_loop::NAME, doc: "Whether tool calls went in a loop", in_documents: false },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sorted() {
        assert!(SIGNALS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
