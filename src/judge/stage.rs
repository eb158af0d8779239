//! One call to the judge: its question, what it is shown, and the form of its answer.
//!
//! Source: PandaProbe, trace metrics, "How it works" of each metric; Princeton's violations; AgentCI's
//! rubrics. Stages that extract are shared: `task` is the same for three metrics, `plan` for two, and is asked once.

use serde_json::Value;

use super::form::Form;

/// A call to the judge.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Stage {
    /// Task and outcome, from the trace.
    TaskOutcome,
    /// How far the outcome fulfils the task.
    TaskVerdict,
    /// Tools called and available, from the trace.
    ToolContext,
    /// How well the tools were chosen.
    ToolScore,
    /// Tool calls with their reasons, from the trace.
    CallContext,
    /// Whether each tool call had the right arguments.
    CallVerdicts,
    /// What was wrong with the arguments.
    CallReason,
    /// The task alone, from the trace.
    Task,
    /// How directly the agent went about its task.
    Efficiency,
    /// How sure-footed the agent was.
    Confidence,
    /// The agent's plan, from the trace.
    Plan,
    /// How closely the agent kept to the plan.
    Adherence,
    /// How good the plan is.
    Quality,
    /// Which rules the agent broke.
    Violations,
    /// Whether the agent's answer keeps a rule.
    Rubric,
    /// Whether another text of the trace keeps a rule.
    RubricOfText,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 16] = [
        Self::TaskOutcome,
        Self::TaskVerdict,
        Self::ToolContext,
        Self::ToolScore,
        Self::CallContext,
        Self::CallVerdicts,
        Self::CallReason,
        Self::Task,
        Self::Efficiency,
        Self::Confidence,
        Self::Plan,
        Self::Adherence,
        Self::Quality,
        Self::Violations,
        Self::Rubric,
        Self::RubricOfText,
    ];

    /// Its name, in schemas and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::TaskOutcome => "task_outcome",
            Self::TaskVerdict => "task_verdict",
            Self::ToolContext => "tool_context",
            Self::ToolScore => "tool_score",
            Self::CallContext => "call_context",
            Self::CallVerdicts => "call_verdicts",
            Self::CallReason => "call_reason",
            Self::Task => "task",
            Self::Efficiency => "step_efficiency",
            Self::Confidence => "confidence",
            Self::Plan => "plan",
            Self::Adherence => "plan_adherence",
            Self::Quality => "plan_quality",
            Self::Violations => "violations",
            Self::Rubric => "rubric",
            Self::RubricOfText => "rubric_of_text",
        }
    }

    /// The text of the question.
    pub fn question(self) -> &'static str {
        match self {
            Self::TaskOutcome => include_str!("prompts/task_outcome.md"),
            Self::TaskVerdict => include_str!("prompts/task_verdict.md"),
            Self::ToolContext => include_str!("prompts/tool_context.md"),
            Self::ToolScore => include_str!("prompts/tool_score.md"),
            Self::CallContext => include_str!("prompts/call_context.md"),
            Self::CallVerdicts => include_str!("prompts/call_verdicts.md"),
            Self::CallReason => include_str!("prompts/call_reason.md"),
            Self::Task => include_str!("prompts/task.md"),
            Self::Efficiency => include_str!("prompts/step_efficiency.md"),
            Self::Confidence => include_str!("prompts/confidence.md"),
            Self::Plan => include_str!("prompts/plan.md"),
            Self::Adherence => include_str!("prompts/plan_adherence.md"),
            Self::Quality => include_str!("prompts/plan_quality.md"),
            Self::Violations => include_str!("prompts/violations.md"),
            Self::Rubric => include_str!("prompts/rubric.md"),
            Self::RubricOfText => include_str!("prompts/rubric_of_text.md"),
        }
    }

    /// The earlier stages whose answers the call is shown.
    pub fn shown(self) -> &'static [Self] {
        match self {
            Self::TaskVerdict => &[Self::TaskOutcome],
            Self::ToolScore => &[Self::ToolContext],
            Self::CallVerdicts => &[Self::CallContext],
            Self::CallReason => &[Self::CallVerdicts],
            Self::Efficiency => &[Self::Task],
            Self::Adherence | Self::Quality => &[Self::Task, Self::Plan],
            Self::TaskOutcome
            | Self::ToolContext
            | Self::CallContext
            | Self::Task
            | Self::Confidence
            | Self::Plan
            | Self::Violations
            | Self::Rubric
            | Self::RubricOfText => &[],
        }
    }

    /// Whether the call is shown the trace itself.
    pub fn sees_trace(self) -> bool {
        match self {
            Self::TaskOutcome
            | Self::ToolContext
            | Self::CallContext
            | Self::Task
            | Self::Efficiency
            | Self::Confidence
            | Self::Plan
            | Self::Adherence
            | Self::Violations
            | Self::Rubric => true,
            Self::TaskVerdict
            | Self::ToolScore
            | Self::CallVerdicts
            | Self::CallReason
            | Self::Quality
            | Self::RubricOfText => false,
        }
    }

    /// Whether every object of its answer has a fixed list of keys, as strict modes require.
    pub fn is_closed(self) -> bool {
        !matches!(self, Self::ToolContext | Self::CallContext)
    }

    /// The JSON schema that an answer must fit. Other keys are ignored.
    pub fn schema(self) -> Value {
        self.form().schema()
    }

    /// The schema that endpoints are sent: all keys required, no others allowed, and no ranges, which not all endpoints know.
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
        // A text alone is shown by itself.
        for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::RubricOfText) {
            assert!(stage.sees_trace() || !stage.shown().is_empty(), "{}", stage.name());
            assert!(stage.shown().iter().all(|shown| *shown < stage));
        }
    }
}
