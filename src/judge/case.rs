//! One trace that is judged: the next call, the input of each call, and the results of all calls.
//!
//! Metrics are judged one after the other. A call that several metrics need is made once, and if it fails, all of them fail.

use std::collections::{BTreeMap, BTreeSet};

use super::metric::{Answers, Metric, Next, Outcome};
use super::prompt::{Prompt, Record, prompt};
use super::stage::Stage;
use crate::engine::judging::RubricRequest;
use crate::engine::trace::Transcript;

/// One trace and its metrics.
#[derive(Clone, Debug)]
pub struct TraceCase {
    metrics: Vec<Metric>,
    answers: Answers,
    failed: BTreeMap<Stage, &'static str>,
    /// The transcript as JSON.
    trace: String,
    /// The rules to be kept, one per line.
    rules: String,
    names: BTreeSet<String>,
}

impl TraceCase {
    /// The case of a trace, to be judged by these metrics, and by these rules if a metric needs rules.
    pub fn new(
        metrics: &[Metric],
        transcript: &Transcript,
        rules: &BTreeMap<String, String>,
    ) -> Self {
        // Cannot fail: a transcript has only strings, numbers and lists.
        Self::of(metrics, serde_json::to_string_pretty(transcript).unwrap_or_default(), rules)
    }

    /// The case of a trace in JSON.
    pub fn of(metrics: &[Metric], trace: String, rules: &BTreeMap<String, String>) -> Self {
        let ruled = |metric: &&Metric| **metric != Metric::ConstraintViolation || !rules.is_empty();
        let names = rules.keys().cloned().collect();
        let rules: String = rules.iter().map(|(name, rule)| format!("{name}: {rule}\n")).collect();
        Self {
            metrics: metrics.iter().filter(ruled).copied().collect(),
            answers: Answers::new(),
            failed: BTreeMap::new(),
            trace,
            rules,
            names,
        }
    }

    /// The next call, and the first metric that needs it.
    pub fn next(&self) -> Option<(Metric, Stage)> {
        self.metrics.iter().find_map(|metric| match metric.next(&self.answers) {
            Next::Ask(stage) if !self.failed.contains_key(&stage) => Some((*metric, stage)),
            Next::Ask(_) | Next::Done(_) => None,
        })
    }

    /// The prompt of a call.
    pub fn prompt(&self, stage: Stage) -> Prompt {
        let shown: Vec<(&str, String)> = stage
            .shown()
            .iter()
            .filter_map(|shown| Some((shown.name(), self.answers.get(shown)?.to_string())))
            .collect();
        let mut records: Vec<Record<'_>> =
            shown.iter().map(|(name, text)| (*name, text.as_str())).collect();
        if stage == Stage::Violations {
            records.push(("rules", &self.rules));
        }
        if stage.sees_trace() {
            records.push(("trace", &self.trace));
        }
        prompt(stage, &records)
    }

    /// The prompt of a call about a rule, for the agent's answer or for a text by itself.
    pub fn rubric(&self, rubric: &RubricRequest) -> Prompt {
        if let Some(judged) = &rubric.judged {
            return prompt(Stage::RubricOfText, &[("rule", &rubric.rule), ("text", &judged.text)]);
        }
        let scale = rubric.scale.join("\n");
        let examples: String =
            rubric.examples.iter().map(|example| format!("{example}\n")).collect();
        let parts = [("rule", &rubric.rule), ("scale", &scale), ("examples", &examples)];
        let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
        let mut records: Vec<Record<'_>> =
            parts.map(|(name, text)| (name, text.as_str())).collect();
        records.push(("trace", &self.trace));
        prompt(Stage::Rubric, &records)
    }

    /// Takes the answer to a call, which has the form of its stage.
    pub fn answer(&mut self, stage: Stage, answer: serde_json::Value) {
        self.answers.insert(stage, answer);
    }

    /// Notes that a call failed, and why.
    pub fn fail(&mut self, stage: Stage, why: &'static str) {
        self.failed.insert(stage, why);
    }

    /// The result of each metric, or why it has none; complete once `next` is `None`.
    pub fn results(&self) -> impl Iterator<Item = (Metric, Result<Outcome, &'static str>)> + '_ {
        self.metrics.iter().map(|metric| {
            let result = match metric.next(&self.answers) {
                Next::Done(outcome) => Ok(outcome),
                Next::Ask(stage) => Err(self.failed.get(&stage).copied().unwrap_or("not_asked")),
            };
            (*metric, result)
        })
    }

    /// Whether one of the rules has this name.
    pub fn has_rule(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules() -> BTreeMap<String, String> {
        [("no_pii".to_owned(), "Do not show personal data.".to_owned())].into()
    }

    fn answer(stage: Stage) -> serde_json::Value {
        json!({
            "score": 1, "verdict": 1, "confidence": 1, "task": "the task", "plan": ["a"],
            "tool_calls": [{}], "verdicts": [{"verdict": "yes"}], "violations": [], "for": stage.name(),
        })
    }

    #[test]
    fn what_one_metric_extracts_the_next_does_not_ask_for_again() {
        let mut case = TraceCase::new(&Metric::ALL, &Transcript::default(), &rules());
        let mut asked = Vec::new();
        while let Some((_, stage)) = case.next() {
            asked.push(stage);
            case.answer(stage, answer(stage));
        }
        // 2 + 2 + 3 + 2 + 1 + 3 + 3 + 1, less the task twice and the plan once.
        assert_eq!(asked.len(), 14);
        assert!(case.results().all(|(_, result)| result.is_ok()));
    }

    #[test]
    fn a_call_that_failed_fails_whoever_needs_it_and_nobody_else() {
        let mut case = TraceCase::new(&Metric::ALL, &Transcript::default(), &rules());
        while let Some((_, stage)) = case.next() {
            if stage == Stage::Task {
                case.fail(stage, "timeout");
            } else {
                case.answer(stage, answer(stage));
            }
        }
        let failed: Vec<_> = case
            .results()
            .filter(|(_, result)| *result == Err("timeout"))
            .map(|(m, _)| m)
            .collect();
        assert_eq!(failed, [Metric::StepEfficiency, Metric::PlanAdherence, Metric::PlanQuality]);
    }

    #[test]
    fn a_line_of_a_rule_is_no_rule() {
        let rules = [("tone".to_owned(), "Be kind.\nno_pii: see the other.".to_owned())];
        let case = TraceCase::new(&Metric::ALL, &Transcript::default(), &rules.into());
        assert_eq!(
            ["tone", "no_pii", "to", ""].map(|name| case.has_rule(name)),
            [true, false, false, false]
        );
    }

    #[test]
    fn a_call_is_shown_what_it_is_about_and_no_more() {
        let transcript = Transcript { input: Some("SECRET-FREE".into()), ..Transcript::default() };
        let mut case = TraceCase::new(&Metric::ALL, &transcript, &BTreeMap::new());
        assert!(!case.results().any(|(metric, _)| metric == Metric::ConstraintViolation));
        case.answer(Stage::Task, json!({ "task": "THE-TASK" }));
        case.answer(Stage::Plan, json!({ "plan": ["THE-PLAN"] }));
        let quality = case.prompt(Stage::Quality).user;
        assert!(quality.contains("THE-TASK") && quality.contains("THE-PLAN"));
        assert!(!quality.contains("SECRET-FREE"));
        assert!(case.prompt(Stage::Confidence).user.contains("SECRET-FREE"));
    }
}
