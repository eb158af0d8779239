//! One call to the judge: its question, its input, and the form of its answer.
//!
//! Source: PandaProbe, trace metrics, "How it works" of each metric; Princeton's violations; AgentCI's rubrics. Stages that extract
//! are shared: `task` is the same for three metrics, `plan` for two, and each is asked once.

use serde_json::Value;

use super::form::Form;

/// The stages in order: the name in schemas and labels, which is also the name of the file with the question; whether the call is
/// shown the trace itself; and the earlier stages whose answers it is shown.
macro_rules! stages {
    ($($(#[$doc:meta])* $stage:ident = $name:literal, $sees_trace:literal, [$($shown:ident),*];)*) => {
        /// A call to the judge.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Stage {
            $($(#[$doc])* $stage,)*
        }

        impl Stage {
            /// All stages, in order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$stage),*];

            /// Its name, in schemas and labels.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$stage => $name,)*
                }
            }

            /// The text of the question.
            pub fn question(self) -> &'static str {
                match self {
                    $(Self::$stage => include_str!(concat!("prompts/", $name, ".md")),)*
                }
            }

            /// The earlier stages whose answers the call is shown.
            pub fn shown(self) -> &'static [Self] {
                match self {
                    $(Self::$stage => &[$(Self::$shown),*],)*
                }
            }

            /// Whether the call is shown the trace itself.
            pub fn sees_trace(self) -> bool {
                match self {
                    $(Self::$stage => $sees_trace,)*
                }
            }
        }
    };
}

stages! {
    /// Task and outcome, from the trace.
    TaskOutcome = "task_outcome", true, [];
    /// How far the outcome fulfils the task.
    TaskVerdict = "task_verdict", false, [TaskOutcome];
    /// Tools called and available, from the trace.
    ToolContext = "tool_context", true, [];
    /// How well the tools were chosen.
    ToolScore = "tool_score", false, [ToolContext];
    /// Tool calls with their reasons, from the trace.
    CallContext = "call_context", true, [];
    /// Whether each tool call had the right arguments.
    CallVerdicts = "call_verdicts", false, [CallContext];
    /// What was wrong with the arguments.
    CallReason = "call_reason", false, [CallVerdicts];
    /// The task alone, from the trace.
    Task = "task", true, [];
    /// How directly the agent went about its task.
    Efficiency = "step_efficiency", true, [Task];
    /// How confident the agent was.
    Confidence = "confidence", true, [];
    /// The agent's plan, from the trace.
    Plan = "plan", true, [];
    /// How closely the agent kept to the plan.
    Adherence = "plan_adherence", true, [Task, Plan];
    /// How good the plan is.
    Quality = "plan_quality", false, [Task, Plan];
    /// Which rules the agent broke.
    Violations = "violations", true, [];
    /// Whether the agent's answer keeps a rule.
    Rubric = "rubric", true, [];
    /// Whether another text of the trace keeps a rule.
    RubricOfText = "rubric_of_text", false, [];
}

impl Stage {
    /// Whether every object in its answer has a fixed list of keys, as strict modes require.
    pub fn is_closed(self) -> bool {
        !matches!(self, Self::ToolContext | Self::CallContext)
    }

    /// The JSON schema that an answer must fit. Other keys are ignored.
    pub fn schema(self) -> Value {
        self.form().schema()
    }

    /// The schema that is sent to endpoints: all keys required, no others allowed, and no ranges, which not all endpoints know.
    pub fn sent_schema(self) -> Value {
        self.form().sent_schema()
    }

    /// The form of an answer.
    pub(super) fn form(self) -> Form {
        let scored = |key| Form::object(&[(key, Form::Share)], &[("reason", Form::MaybeText)]);
        match self {
            Self::TaskOutcome => {
                Form::object(&[("task", Form::Text), ("outcome", Form::Text)], &[])
            }
            Self::TaskVerdict => scored("verdict"),
            Self::ToolContext => {
                let called = [("name", Form::Text), ("parameters", Form::Open)];
                let description = ("description", Form::MaybeText);
                let known = Form::object(&[("name", Form::Text)], &[description]);
                Form::object(
                    &[
                        ("user_input", Form::Text),
                        ("tools_called", Form::list(Form::object(&called, &[]))),
                        ("available_tools", Form::list(known)),
                    ],
                    &[],
                )
            }
            Self::CallContext => {
                let called = [("name", Form::Text), ("parameters", Form::Open)];
                let call = Form::object(&called, &[("reasoning", Form::MaybeText)]);
                Form::object(&[("user_input", Form::Text), ("tool_calls", Form::list(call))], &[])
            }
            Self::CallVerdicts => {
                let verdict = ("verdict", Form::OneOf(&["yes", "no"]));
                let verdict = Form::object(&[verdict], &[("reason", Form::MaybeText)]);
                Form::object(&[("verdicts", Form::list(verdict))], &[])
            }
            Self::CallReason => Form::object(&[("reason", Form::Text)], &[]),
            Self::Task => Form::object(&[("task", Form::Text)], &[]),
            Self::ToolScore | Self::Efficiency | Self::Adherence | Self::Quality => scored("score"),
            Self::Confidence => scored("confidence"),
            Self::Plan => Form::object(&[("plan", Form::list(Form::Text))], &[]),
            Self::Violations => {
                let severity = Form::OneOf(&["low", "medium", "high"]);
                let violation = Form::object(
                    &[("constraint", Form::Text), ("severity", severity)],
                    &[("reason", Form::MaybeText)],
                );
                Form::object(&[("violations", Form::list(violation))], &[])
            }
            Self::Rubric | Self::RubricOfText => Form::object(
                &[
                    ("score", Form::Whole),
                    ("label", Form::OneOf(&["pass", "fail", "borderline"])),
                    ("rationale", Form::Text),
                ],
                &[],
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_stand_in_order_under_names_of_their_own() {
        assert!(Stage::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        let names: std::collections::BTreeSet<_> =
            Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert_eq!(names.len(), Stage::ALL.len());
    }

    #[test]
    fn a_stage_is_shown_the_trace_or_an_answer() {
        // A single text is shown by itself.
        for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::RubricOfText) {
            assert!(stage.sees_trace() || !stage.shown().is_empty(), "{}", stage.name());
            assert!(stage.shown().iter().all(|shown| *shown < stage));
        }
    }
}
