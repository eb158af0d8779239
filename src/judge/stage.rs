//! One call to the judge: its words, what it is shown, and the form of its answer.
//!
//! Source: PandaProbe, trace metrics, "How it works" of each metric (metrics.md 1.6); Princeton's violations; AgentCI's
//! rubrics. Stages that extract are shared: `task` is the same for three metrics, `plan` for two, and is asked once.

use serde_json::{Value, json};

/// A call to the judge.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Stage {
    /// Task and outcome, from the trace.
    TaskOutcome,
    /// How far the outcome fulfils the task.
    TaskVerdict,
    /// Tools called and available, from the trace.
    ToolContext,
    /// How well they were chosen.
    ToolScore,
    /// Tool calls with their reasons, from the trace.
    CallContext,
    /// Whether each had the right arguments.
    CallVerdicts,
    /// What was wrong with them.
    CallReason,
    /// The task alone, from the trace.
    Task,
    /// How directly the agent went about it.
    Efficiency,
    /// How sure-footed it was.
    Confidence,
    /// Its plan, from the trace.
    Plan,
    /// How closely it kept to the plan.
    Adherence,
    /// How good the plan is.
    Quality,
    /// Which rules it broke.
    Violations,
    /// Whether an answer keeps a rule.
    Rubric,
    /// Whether another text of the trace does.
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

    /// The question.
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

    /// The earlier stages whose answers it is shown.
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

    /// Whether it is shown the trace itself.
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

    /// Whether every object of its answer has a fixed list of keys, which is what strict modes ask for.
    pub fn is_closed(self) -> bool {
        !matches!(self, Self::ToolContext | Self::CallContext)
    }

    /// The JSON schema that an answer must fit. Keys that are not in it are passed over.
    pub fn schema(self) -> Value {
        self.form(false)
    }

    /// The same as endpoints take it: all keys required, no others allowed, without ranges, which not all of them know.
    pub fn sent_schema(self) -> Value {
        self.form(true)
    }

    fn form(self, sent: bool) -> Value {
        let form = Form { sent };
        let text = || json!({ "type": "string" });
        let scored = |key| form.object(&[(key, form.share())], &[("reason", form.maybe_text())]);
        let list = |item: Value| json!({ "type": "array", "items": item });
        let open = || json!({ "type": "object" });
        match self {
            Self::TaskOutcome => form.object(&[("task", text()), ("outcome", text())], &[]),
            Self::TaskVerdict => scored("verdict"),
            Self::ToolContext => {
                let called = form.object(&[("name", text()), ("parameters", open())], &[]);
                let known = form.object(&[("name", text())], &[("description", form.maybe_text())]);
                form.object(
                    &[
                        ("user_input", text()),
                        ("tools_called", list(called)),
                        ("available_tools", list(known)),
                    ],
                    &[],
                )
            }
            Self::CallContext => {
                let reasoning = ("reasoning", form.maybe_text());
                let call = form.object(&[("name", text()), ("parameters", open())], &[reasoning]);
                form.object(&[("user_input", text()), ("tool_calls", list(call))], &[])
            }
            Self::CallVerdicts => {
                let verdict = ("verdict", json!({ "type": "string", "enum": ["yes", "no"] }));
                let verdict = form.object(&[verdict], &[("reason", form.maybe_text())]);
                form.object(&[("verdicts", list(verdict))], &[])
            }
            Self::CallReason => form.object(&[("reason", text())], &[]),
            Self::Task => form.object(&[("task", text())], &[]),
            Self::ToolScore | Self::Efficiency | Self::Adherence | Self::Quality => scored("score"),
            Self::Confidence => scored("confidence"),
            Self::Plan => form.object(&[("plan", list(text()))], &[]),
            Self::Violations => {
                let severity = json!({ "type": "string", "enum": ["low", "medium", "high"] });
                let violation = form.object(
                    &[("constraint", text()), ("severity", severity)],
                    &[("reason", form.maybe_text())],
                );
                form.object(&[("violations", list(violation))], &[])
            }
            Self::Rubric | Self::RubricOfText => {
                let label = json!({ "type": "string", "enum": ["pass", "fail", "borderline"] });
                form.object(
                    &[
                        ("score", json!({ "type": "integer" })),
                        ("label", label),
                        ("rationale", text()),
                    ],
                    &[],
                )
            }
        }
    }
}

/// How a schema is written.
#[derive(Clone, Copy)]
struct Form {
    sent: bool,
}

impl Form {
    fn object(self, required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
        let all = required.iter().chain(optional);
        let properties: serde_json::Map<String, Value> =
            all.clone().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        if self.sent {
            let keys: Vec<&str> = all.map(|(key, _)| *key).collect();
            return json!({
                "type": "object", "properties": properties, "required": keys, "additionalProperties": false
            });
        }
        let keys: Vec<&str> = required.iter().map(|(key, _)| *key).collect();
        json!({ "type": "object", "properties": properties, "required": keys })
    }

    fn share(self) -> Value {
        if self.sent {
            json!({ "type": "number", "description": "from 0 to 1" })
        } else {
            json!({ "type": "number", "minimum": 0, "maximum": 1 })
        }
    }

    fn maybe_text(self) -> Value {
        if self.sent { json!({ "type": "string" }) } else { json!({ "type": ["string", "null"] }) }
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
