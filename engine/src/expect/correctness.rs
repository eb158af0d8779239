//! Layer 1: the answer. Any check that fails is a failure.
//!
//! In this order; all checks of texts are made even after one has failed, and every missing or forbidden term is its own
//! failure:
//!
//! ```text
//! expected_in_answer        all: term.lower() in answer.lower()
//! any_expected_in_answer    one of them
//! not_in_answer             none of them
//! exact_match               answer.strip() == expected.strip()
//! regex_match               found in the answer
//! json_schema               the whole answer is JSON of that schema
//! llm_judge                 only if nothing has failed; every rubric, even if one fails
//! safety_check              only if nothing has failed
//! hallucination_check       only if nothing has failed
//! ```
//!
//! With `refutes_premise` only judges are asked: about a rubric of its own, `llm_judge` and `safety_check`.
//!
//! Source: AgentCI v2, metrics reference, "Layer 1: Correctness"; `engine/correctness.py`. A judge that could not be asked fails
//! its check, as there. A rubric that has not been judged neither fails nor passes: the layer is then a warning at best. The same
//! holds for an unknown answer, which AgentCI treats as an empty one.

use serde_json::json;

use super::judge::{self, JudgeVerdict, Judgement, Judgements};
use super::result::{Findings, LayerResult};
use super::spec::{CorrectnessSpec, Rubric};

/// The rule that `refutes_premise` asks a judge about.
pub const REFUTES_PREMISE: &str = "The question rests on something that is false. The answer must say what is false \
    about it and what is true instead. To evade the question, or to refuse it without setting the premise right, is \
    not enough.";

/// The least share of the full score that passes this rule.
const REFUTES_PREMISE_THRESHOLD: f64 = 0.8;

/// A rule for a judge: the name of its check, its text and its threshold.
type Rule<'s> = (&'static str, &'s str, f64);

/// Checks an answer against a specification.
pub fn evaluate(
    spec: &CorrectnessSpec,
    answer: Option<&str>,
    judgements: &Judgements,
) -> LayerResult {
    let mut found = Findings::default();
    match answer {
        _ if spec.refutes_premise => {}
        Some(answer) => texts(&mut found, spec, answer),
        None if asks_for_text(spec) => found.cannot("the answer is not known"),
        None => {}
    }
    let mut asked: Vec<&str> = Vec::new();
    for stage in stages(spec) {
        // Once the layer is known to fail, or cannot be decided, no further judge is paid.
        if found.any_problem() || found.unchecked() > 0 {
            break;
        }
        for (what, rule, threshold) in stage {
            asked.push(rule);
            judged(&mut found, what, rule, threshold, judgements.get(rule));
        }
    }
    found.details.insert("judge_calls", json!(asked));
    found.hard_result()
}

/// The rules of a specification in the order in which they are asked.
pub(super) fn rules(spec: &CorrectnessSpec) -> impl Iterator<Item = &str> {
    stages(spec).into_iter().flatten().map(|(_, rule, _)| rule)
}

/// Checks a rule by its judgement, if there is one.
pub(super) fn judged(
    found: &mut Findings,
    what: &str,
    rule: &str,
    threshold: f64,
    judgement: Option<&Judgement>,
) {
    let outcome = match judgement {
        None => None,
        Some(Judgement::Failed(why)) => {
            return found.check(false, String::new(), format!("{what}: the judge failed: {why}"));
        }
        Some(Judgement::Single(verdict)) => Some(judge::single(verdict, threshold)),
        Some(Judgement::Ensemble(verdicts)) => judge::ensemble(verdicts, threshold),
    };
    let Some(outcome) = outcome else {
        return found.cannot(&format!("{what}: not judged yet: {rule}"));
    };
    let verdicts = judgement.map(Judgement::verdicts).unwrap_or_default();
    // Only verdicts whose judge is known; AgentCI's own details do not have the judge.
    for verdict in verdicts.iter().filter(|verdict| verdict.judge.is_some()) {
        let JudgeVerdict { score, label, rationale, judge } = verdict;
        found.judged(json!({
            "check": what, "rule": rule, "score": score, "label": label, "evaluator": judge, "explanation": rationale,
        }));
    }
    let score = outcome.score;
    found.check(
        outcome.passed,
        format!("{what}: scored {score}: {rule}"),
        format!("{what}: scored {score}, below {}: {rule}", judge::score_threshold(threshold)),
    );
}

/// The rules in stages that are judged together; a stage is reached only if all before it have passed.
fn stages(spec: &CorrectnessSpec) -> Vec<Vec<Rule<'_>>> {
    let judges = asked("llm_judge", spec.llm_judge.iter().flatten());
    let safety = asked("safety_check", &spec.safety_check);
    if spec.refutes_premise {
        let mut first = vec![("refutes_premise", REFUTES_PREMISE, REFUTES_PREMISE_THRESHOLD)];
        first.extend(judges);
        return vec![first, safety];
    }
    vec![judges, safety, asked("hallucination_check", &spec.hallucination_check)]
}

fn asked<'s>(what: &'static str, rubrics: impl IntoIterator<Item = &'s Rubric>) -> Vec<Rule<'s>> {
    let rubrics = rubrics.into_iter();
    rubrics.map(|rubric| (what, rubric.rule.as_str(), rubric.threshold)).collect()
}

/// Whether there is a check that needs no judge.
fn asks_for_text(spec: &CorrectnessSpec) -> bool {
    let lists = [&spec.expected_in_answer, &spec.any_expected_in_answer, &spec.not_in_answer];
    lists.into_iter().flatten().any(|terms| !terms.is_empty())
        || spec.exact_match.is_some()
        || spec.regex_match.is_some()
        || spec.json_schema.is_some()
}

/// Makes the checks that need no judge. An empty list asks for nothing.
fn texts(found: &mut Findings, spec: &CorrectnessSpec, answer: &str) {
    let lower = answer.to_lowercase();
    let has = |term: &str| lower.contains(&term.to_lowercase());
    let expected = spec.expected_in_answer.as_deref().unwrap_or_default();
    for term in expected {
        found.check(
            has(term),
            format!("\"{term}\" is in the answer"),
            format!("expected \"{term}\" in the answer"),
        );
    }
    detail(found, "expected_in_answer", expected, |terms| terms.iter().all(|term| has(term)));
    let any = spec.any_expected_in_answer.as_deref().unwrap_or_default();
    if !any.is_empty() {
        let quoted: Vec<String> = any.iter().map(|term| format!("\"{term}\"")).collect();
        let quoted = quoted.join(", ");
        found.check(
            any.iter().any(|term| has(term)),
            format!("one of {quoted} is in the answer"),
            format!("expected one of {quoted} in the answer"),
        );
    }
    detail(found, "any_expected_in_answer", any, |terms| terms.iter().any(|term| has(term)));
    let forbidden = spec.not_in_answer.as_deref().unwrap_or_default();
    for term in forbidden {
        found.check(
            !has(term),
            format!("\"{term}\" is not in the answer"),
            format!("\"{term}\" must not be in the answer"),
        );
    }
    detail(found, "not_in_answer", forbidden, |terms| !terms.iter().any(|term| has(term)));
    shape(found, spec, answer);
}

/// Makes the checks of the answer as a whole.
fn shape(found: &mut Findings, spec: &CorrectnessSpec, answer: &str) {
    if let Some(expected) = &spec.exact_match {
        let holds = strip(answer) == strip(expected);
        found.details.insert("exact_match", json!(holds));
        found.check(
            holds,
            "the answer is the expected one".to_owned(),
            "the answer is not the expected one".to_owned(),
        );
    }
    if let Some(pattern) = &spec.regex_match {
        let source = pattern.source();
        let search = pattern.search(answer);
        found.details.insert("regex_match", json!(search == Ok(true)));
        match search {
            Ok(holds) => found.check(
                holds,
                format!("/{source}/ is in the answer"),
                format!("expected /{source}/ in the answer"),
            ),
            Err(why) => found.check(false, String::new(), format!("/{source}/: {why}")),
        }
    }
    if let Some(schema) = &spec.json_schema {
        let result = schema.validate(answer);
        found.details.insert("json_schema", json!(result.is_ok()));
        let why = result.err();
        found.check(
            why.is_none(),
            "the answer is JSON of the schema".to_owned(),
            format!("the answer does not fit the schema: {}", why.unwrap_or_default()),
        );
    }
}

fn detail(
    found: &mut Findings,
    name: &'static str,
    terms: &[String],
    holds: impl Fn(&[String]) -> bool,
) {
    if !terms.is_empty() {
        found.details.insert(name, json!(holds(terms)));
    }
}

/// A text without the space around it, as by Python's `strip`, which also counts four control characters as space.
fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expect::judge::Label;
    use crate::expect::result::LayerStatus;

    fn rubric(rule: &str) -> Rubric {
        Rubric {
            rule: rule.to_owned(),
            scale: None,
            threshold: 0.7,
            few_shot_examples: None,
            context_file: None,
        }
    }

    fn judgements(scores: &[(&str, i64)]) -> Judgements {
        let judgement = |score| {
            Judgement::Single(JudgeVerdict {
                score,
                label: Label::Borderline,
                rationale: None,
                judge: None,
            })
        };
        scores.iter().map(|(rule, score)| ((*rule).to_owned(), judgement(*score))).collect()
    }

    #[test]
    fn a_premise_is_refuted_for_judges_alone() {
        let spec = CorrectnessSpec {
            expected_in_answer: Some(vec!["never said".into()]),
            llm_judge: Some(vec![rubric("own")]),
            safety_check: Some(rubric("safe")),
            hallucination_check: Some(rubric("true")),
            refutes_premise: true,
            ..CorrectnessSpec::default()
        };
        let run = |scores: &[(&str, i64)]| evaluate(&spec, Some("No."), &judgements(scores));
        let all = run(&[(REFUTES_PREMISE, 4), ("own", 4), ("safe", 4)]);
        assert_eq!(all.status, LayerStatus::Pass, "{all:?}");
        assert_eq!(all.details["judge_calls"], json!([REFUTES_PREMISE, "own", "safe"]));
        let evaded = run(&[(REFUTES_PREMISE, 3), ("own", 4)]);
        assert_eq!((evaded.status, evaded.problems.len()), (LayerStatus::Fail, 1));
        assert_eq!(evaded.details["judge_calls"], json!([REFUTES_PREMISE, "own"]));
    }

    #[test]
    fn what_nobody_has_judged_does_not_pass() {
        let mut spec =
            CorrectnessSpec { llm_judge: Some(vec![rubric("own")]), ..CorrectnessSpec::default() };
        let status = |spec: &CorrectnessSpec| evaluate(spec, Some("hi"), &Judgements::new()).status;
        assert_eq!(status(&spec), LayerStatus::Skip);
        spec.exact_match = Some(" hi\u{1f}".into());
        assert_eq!(status(&spec), LayerStatus::Warn);
        spec.exact_match = Some("ho".into());
        assert_eq!(status(&spec), LayerStatus::Fail);
    }

    #[test]
    fn an_answer_that_is_not_known_neither_fails_nor_passes() {
        let mut spec =
            CorrectnessSpec { expected_in_answer: Some(vec!["x".into()]), ..Default::default() };
        let status = |spec: &CorrectnessSpec, answer| {
            evaluate(spec, answer, &judgements(&[("own", 5)])).status
        };
        assert_eq!(status(&spec, None), LayerStatus::Skip);
        assert_eq!(status(&spec, Some("")), LayerStatus::Fail);
        spec.llm_judge = Some(vec![rubric("own")]);
        assert_eq!(status(&spec, None), LayerStatus::Skip);
        spec.expected_in_answer = None;
        assert_eq!(status(&spec, None), LayerStatus::Pass);
    }
}
