//! The metrics of the judge, and the calls of each.
//!
//! ```text
//! task_completion       task_outcome, task_verdict                  verdict
//! tool_correctness      tool_context, tool_score                    score
//! argument_correctness  call_context, call_verdicts, call_reason    yes / verdicts
//! step_efficiency       task, step_efficiency                       score
//! confidence            confidence                                  confidence
//! plan_adherence        task, plan, plan_adherence                  score
//! plan_quality          task, plan, plan_quality                    score
//! constraint_violation  violations                                  one report for each rule broken
//! ```
//!
//! Source: PandaProbe, trace metrics; Princeton, safety. Short cuts: without tool calls argument_correctness ends after the first
//! call, and without a plan the two metrics of plans end after the second; then there is nothing to score, and the document's 1 is
//! reported only with `empty_score = "one"`. A trace without tools is judged for tool_correctness all the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::stage::Stage;
use crate::engine::math::Quanta;
use crate::engine::signal::{CONSTRAINT_VIOLATION, argument_correctness};

/// A score that a judge makes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Whether the agent did what was asked.
    TaskCompletion,
    /// Whether it chose the right tools.
    ToolCorrectness,
    /// Whether it called them with the right arguments.
    ArgumentCorrectness,
    /// Whether it took a direct way.
    StepEfficiency,
    /// Whether it was confident.
    Confidence,
    /// Whether it kept to its plan.
    PlanAdherence,
    /// Whether its plan was good.
    PlanQuality,
    /// Which rules it broke.
    ConstraintViolation,
}

/// The judge's answers so far, each in the form of its stage.
pub type Answers = BTreeMap<Stage, Value>;

/// The next step of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Make this call.
    Ask(Stage),
    /// No more calls: this is the result.
    Done(Outcome),
}

/// The result of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A score in `[0,1]`, and its reason, if the judge gave one.
    Score(Quanta, Option<String>),
    /// There was nothing to score; the name of the missing part.
    Nothing(&'static str),
    /// The rules that were broken.
    Violations(Vec<Violation>),
}

/// A rule that was broken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The rule's name.
    pub constraint: String,
    /// `low`, `medium`, `high`.
    pub severity: String,
    /// How it was broken, if the judge said.
    pub reason: Option<String>,
}

impl Metric {
    /// All metrics, in order.
    pub const ALL: [Self; 8] = [
        Self::TaskCompletion,
        Self::ToolCorrectness,
        Self::ArgumentCorrectness,
        Self::StepEfficiency,
        Self::Confidence,
        Self::PlanAdherence,
        Self::PlanQuality,
        Self::ConstraintViolation,
    ];

    /// Its name in reports and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::TaskCompletion => "task_completion",
            Self::ToolCorrectness => "tool_correctness",
            Self::ArgumentCorrectness => argument_correctness::NAME,
            Self::StepEfficiency => "step_efficiency",
            Self::Confidence => "confidence",
            Self::PlanAdherence => "plan_adherence",
            Self::PlanQuality => "plan_quality",
            Self::ConstraintViolation => CONSTRAINT_VIOLATION,
        }
    }

    /// Its calls, in order.
    pub fn stages(self) -> &'static [Stage] {
        match self {
            Self::TaskCompletion => &[Stage::TaskOutcome, Stage::TaskVerdict],
            Self::ToolCorrectness => &[Stage::ToolContext, Stage::ToolScore],
            Self::ArgumentCorrectness => {
                &[Stage::CallContext, Stage::CallVerdicts, Stage::CallReason]
            }
            Self::StepEfficiency => &[Stage::Task, Stage::Efficiency],
            Self::Confidence => &[Stage::Confidence],
            Self::PlanAdherence => &[Stage::Task, Stage::Plan, Stage::Adherence],
            Self::PlanQuality => &[Stage::Task, Stage::Plan, Stage::Quality],
            Self::ConstraintViolation => &[Stage::Violations],
        }
    }

    /// The next call, or the result if there is none.
    pub fn next(self, answers: &Answers) -> Next {
        for stage in self.stages() {
            let Some(answer) = answers.get(stage) else { return Next::Ask(*stage) };
            if let Some(missing) = short_cut(*stage, answer) {
                return Next::Done(Outcome::Nothing(missing));
            }
        }
        Next::Done(self.outcome(answers))
    }

    fn outcome(self, answers: &Answers) -> Outcome {
        let last = self.stages().last().and_then(|stage| answers.get(stage));
        let number = |key: &str| last.and_then(|answer| answer.get(key)?.as_f64());
        let reason = last.and_then(|answer| text(answer, "reason"));
        let score = match self {
            Self::ConstraintViolation => return Outcome::Violations(violations(last)),
            Self::ArgumentCorrectness => {
                let calls = items(answers.get(&Stage::CallContext), "tool_calls").len() as u64;
                let verdicts = verdicts(answers);
                if verdicts.is_empty() {
                    return Outcome::Nothing("no_verdicts");
                }
                argument_correctness::score(calls, &verdicts)
            }
            Self::TaskCompletion => number("verdict").and_then(Quanta::from_f64),
            Self::Confidence => number("confidence").and_then(Quanta::from_f64),
            Self::ToolCorrectness
            | Self::StepEfficiency
            | Self::PlanAdherence
            | Self::PlanQuality => number("score").and_then(Quanta::from_f64),
        };
        // Invariant: the answer has the form of its stage, so the number is there.
        score.map_or(Outcome::Nothing("no_score"), |score| Outcome::Score(score, reason))
    }
}

/// Whether the arguments of each call were right, according to the judge.
pub fn verdicts(answers: &Answers) -> Vec<bool> {
    let verdicts = items(answers.get(&Stage::CallVerdicts), "verdicts").iter();
    verdicts.map(|verdict| verdict.get("verdict").and_then(Value::as_str) == Some("yes")).collect()
}

/// The name of the missing part, if an answer leaves nothing to score.
fn short_cut(stage: Stage, answer: &Value) -> Option<&'static str> {
    let empty = |key: &str| items(Some(answer), key).is_empty();
    if stage == Stage::CallContext && empty("tool_calls") {
        return Some("no_tool_calls");
    }
    (stage == Stage::Plan && empty("plan")).then_some("no_plan")
}

fn violations(answer: Option<&Value>) -> Vec<Violation> {
    let read = |item: &Value| {
        Some(Violation {
            constraint: text(item, "constraint")?,
            severity: text(item, "severity")?,
            reason: text(item, "reason"),
        })
    };
    items(answer, "violations").iter().filter_map(read).collect()
}

fn items<'a>(answer: Option<&'a Value>, key: &str) -> &'a [Value] {
    answer.and_then(|answer| answer.get(key)?.as_array()).map(Vec::as_slice).unwrap_or_default()
}

fn text(answer: &Value, key: &str) -> Option<String> {
    answer.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Runs a metric against fixed answers; returns the stages that were asked, and the result.
    fn run(metric: Metric, answer: impl Fn(Stage) -> Value) -> (Vec<Stage>, Outcome) {
        let mut answers = Answers::new();
        let mut asked = Vec::new();
        loop {
            match metric.next(&answers) {
                Next::Ask(stage) => {
                    asked.push(stage);
                    answers.insert(stage, answer(stage));
                }
                Next::Done(outcome) => return (asked, outcome),
            }
        }
    }

    fn full(stage: Stage) -> Value {
        json!({
            "for": stage.name(), "verdict": 0.75, "score": 0.75, "confidence": 0.75, "reason": "so",
            "tool_calls": [{}, {}], "plan": ["look", "answer"],
            "verdicts": [{"verdict": "yes"}, {"verdict": "no"}, {"verdict": "yes"}, {"verdict": "yes"}],
            "violations": [{"constraint": "c", "severity": "high"}],
        })
    }

    #[test]
    fn every_metric_takes_its_calls_and_gives_its_score() {
        let counts = [2, 2, 3, 2, 1, 3, 3, 1];
        for (metric, calls) in Metric::ALL.into_iter().zip(counts) {
            let (asked, outcome) = run(metric, full);
            assert_eq!((asked.len(), asked.as_slice()), (calls, metric.stages()));
            if metric != Metric::ConstraintViolation {
                let score = Quanta::from_f64(0.75).unwrap();
                assert_eq!(outcome, Outcome::Score(score, Some("so".into())), "{metric:?}");
            }
        }
    }

    #[test]
    fn what_leaves_nothing_to_score_ends_early() {
        let empty = |stage: Stage| {
            let mut answer = full(stage);
            answer["tool_calls"] = json!([]);
            answer["plan"] = json!([]);
            answer
        };
        for (metric, calls, missing) in [
            (Metric::ArgumentCorrectness, 1, "no_tool_calls"),
            (Metric::PlanAdherence, 2, "no_plan"),
            (Metric::PlanQuality, 2, "no_plan"),
        ] {
            let (asked, outcome) = run(metric, empty);
            assert_eq!((asked.len(), outcome), (calls, Outcome::Nothing(missing)));
        }
        assert_eq!(run(Metric::ToolCorrectness, empty).0.len(), 2);
    }

    #[test]
    fn violations_are_listed_one_by_one() {
        let (_, outcome) = run(Metric::ConstraintViolation, full);
        let Outcome::Violations(violations) = outcome else { panic!("{outcome:?}") };
        assert_eq!((&*violations[0].constraint, &*violations[0].severity), ("c", "high"));
        let none = |_| json!({ "violations": [] });
        assert_eq!(run(Metric::ConstraintViolation, none).1, Outcome::Violations(vec![]));
    }
}
