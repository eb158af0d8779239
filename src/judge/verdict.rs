//! The judge's results as scores and reports: who judged, and the value of each result.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::case::TraceCase;
use super::metric::{Metric, Outcome, Violation};
use super::prompt::VERSION;
use crate::engine::expect::Judgements;
use crate::engine::expect::judge::{self, Judgement};
use crate::engine::facts::AgentKey;
use crate::engine::judging::Score;
use crate::engine::math::Quanta;
use crate::engine::signal::outcome;
use crate::engine::span::{Report, Source, SpanId, Target, Timestamp, TraceId};

/// A metric, and the judge that used it on a trace.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) metric: Metric,
    /// The evaluator: the model and the version of the prompts.
    pub(super) judge: String,
    /// Whether nothing to score counts as 1.
    pub(super) empty_is_one: bool,
}

/// The judged trace.
#[derive(Clone, Debug)]
pub(super) struct JudgedTrace {
    pub(super) trace_id: TraceId,
    pub(super) root: Option<SpanId>,
    pub(super) agent: AgentKey,
}

/// One score, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JudgedScore {
    pub(super) metric: Metric,
    pub(super) score: Quanta,
    pub(super) label: Option<String>,
    /// The evaluator; for a broken rule, the name of the rule.
    pub(super) identifier: String,
    /// The evaluator, if this is about a broken rule.
    pub(super) judge: Option<String>,
    pub(super) explanation: Option<String>,
}

impl Judged {
    /// The scores in an outcome.
    pub(super) fn verdicts(&self, outcome: Outcome, case: &TraceCase) -> Vec<JudgedScore> {
        let score = |score, label: Option<&str>, explanation| JudgedScore {
            metric: self.metric,
            score,
            label: label.map(str::to_owned),
            identifier: self.judge.clone(),
            judge: None,
            explanation,
        };
        let one = Quanta(Quanta::ONE);
        match outcome {
            Outcome::Score(value, why) => vec![score(value, None, why)],
            Outcome::Nothing(missing) if self.empty_is_one => {
                vec![score(one, None, Some(missing.to_owned()))]
            }
            Outcome::Nothing(_) => Vec::new(),
            Outcome::Violations(violations) => {
                let broken = worst(violations, case);
                if broken.is_empty() {
                    // The judge checked, and found no broken rule.
                    return vec![score(one, Some("none"), None)];
                }
                let verdict = |violation: Violation| JudgedScore {
                    metric: self.metric,
                    score: kept(&violation.severity),
                    label: Some(violation.severity),
                    identifier: violation.constraint,
                    judge: Some(self.judge.clone()),
                    explanation: violation.reason,
                };
                broken.into_values().map(verdict).collect()
            }
        }
    }
}

impl JudgedScore {
    /// The score for recipients other than the engine.
    pub(super) fn score(&self, request: &JudgedTrace, judge: &str, now: Timestamp) -> Score {
        Score {
            trace_id: request.trace_id,
            span_id: request.root,
            agent: request.agent.clone(),
            name: self.metric.name().to_owned(),
            score: self.score,
            label: self.label.clone(),
            explanation: self.explanation.as_deref().map(brief).map(str::to_owned),
            evaluator: judge.to_owned(),
            rule: self.judge.is_some().then(|| self.identifier.clone()),
            time: now,
        }
    }

    /// The report for the engine.
    pub(super) fn report(self, asked: &JudgedTrace, now: Timestamp) -> Report {
        Report {
            target: Target::Trace(asked.trace_id),
            name: Arc::from(self.metric.name()),
            score: self.score,
            label: self.label.map(Arc::from),
            success: outcome::success_of(self.metric.name(), None, self.score, None),
            explanation: self.explanation.map(|why| Arc::from(brief(&why))),
            source: Source::Judge,
            identifier: Arc::from(self.identifier),
            judge: self.judge.map(Arc::from),
            time: now,
            tenant: Some(&*asked.agent.tenant).filter(|name| !name.is_empty()).map(Arc::from),
        }
    }
}

/// The evaluator's name in scores: the model, and the version of the prompts.
pub(super) fn evaluator(model: &str) -> String {
    format!("judge/{model}/p{VERSION}")
}

/// The scores of the rules of expectations for recipients other than the engine: one for each rule and judge, as a share of the
/// greatest score.
pub(super) fn told_of_rules<'j>(
    judgements: &'j Judgements,
    request: &'j JudgedTrace,
    now: Timestamp,
) -> impl Iterator<Item = Score> + 'j {
    let told = move |(rule, verdict): (&'j String, &'j judge::JudgeVerdict)| Score {
        trace_id: request.trace_id,
        span_id: request.root,
        agent: request.agent.clone(),
        name: RUBRIC.to_owned(),
        score: judge::share(verdict.score),
        label: Some(verdict.label.name().to_owned()),
        explanation: verdict.rationale.clone(),
        evaluator: verdict.judge.clone().unwrap_or_default(),
        rule: Some(rule.clone()),
        time: now,
    };
    let of_each = |(rule, judgement): (&'j String, &'j Judgement)| {
        judgement.verdicts().iter().map(move |verdict| (rule, verdict))
    };
    judgements.iter().flat_map(of_each).map(told)
}

/// AgentCI's name for a score by a rule.
const RUBRIC: &str = "llm_judge";

/// An outcome as one number, for broken rules that of the worst; `None` if there was nothing to score.
pub(super) fn as_score(outcome: &Outcome) -> Option<Quanta> {
    match outcome {
        Outcome::Score(score, _) => Some(*score),
        Outcome::Nothing(_) => None,
        Outcome::Violations(violations) => {
            let kept = violations.iter().map(|violation| kept(&violation.severity));
            Some(kept.min().unwrap_or(Quanta(Quanta::ONE)))
        }
    }
}

/// The beginning of an explanation, at most `MAX_EXPLANATION_BYTES` long.
pub(super) fn brief(why: &str) -> &str {
    let end = (0..=MAX_EXPLANATION_BYTES.min(why.len())).rev().find(|at| why.is_char_boundary(*at));
    why.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// The most bytes of an explanation that are kept with its score.
const MAX_EXPLANATION_BYTES: usize = 500;

/// The worst violation of each rule; unknown rules are left out.
fn worst(violations: Vec<Violation>, case: &TraceCase) -> BTreeMap<String, Violation> {
    let mut worst: BTreeMap<String, Violation> = BTreeMap::new();
    for violation in violations.into_iter().filter(|found| case.has_rule(&found.constraint)) {
        let held = worst.get(&violation.constraint);
        if held.is_none_or(|held| kept(&violation.severity) < kept(&held.severity)) {
            worst.insert(violation.constraint.clone(), violation);
        }
    }
    worst
}

/// The score of a broken rule: 1 less the weight of its severity. Source: Princeton, agent reliability, "Safety": low 0.25, medium 0.5,
/// high 1.
fn kept(severity: &str) -> Quanta {
    let weight = match severity {
        "low" => Quanta::ONE / 4,
        "high" => Quanta::ONE,
        _ => Quanta::ONE / 2,
    };
    Quanta(Quanta::ONE - weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::trace::Transcript;

    fn judged(metric: Metric, empty_is_one: bool) -> Judged {
        Judged { metric, judge: "judge/m/p1".to_owned(), empty_is_one }
    }

    fn case() -> TraceCase {
        let rules =
            [("no_pii".to_owned(), "..".to_owned()), ("polite".to_owned(), "..".to_owned())];
        TraceCase::new(&Metric::ALL, &Transcript::default(), &rules.into())
    }

    fn violation(constraint: &str, severity: &str) -> Violation {
        Violation { constraint: constraint.into(), severity: severity.into(), reason: None }
    }

    #[test]
    fn each_rule_is_told_once_at_its_worst_and_made_up_ones_not() {
        let found = vec![
            violation("no_pii", "low"),
            violation("no_pii", "high"),
            violation("made_up", "high"),
            violation("polite", "medium"),
        ];
        let judged = judged(Metric::ConstraintViolation, false);
        let told: Vec<_> = judged
            .verdicts(Outcome::Violations(found), &case())
            .into_iter()
            .map(|verdict| (verdict.identifier, verdict.label.unwrap(), verdict.score.to_f64()))
            .collect();
        assert_eq!(
            told,
            [("no_pii".into(), "high".into(), 0.0), ("polite".into(), "medium".into(), 0.5)]
        );
        let one = |severity| {
            judged.verdicts(Outcome::Violations(vec![violation("polite", severity)]), &case())
        };
        let kept = ["low", "medium", "high"].map(|severity| one(severity)[0].score);
        assert_eq!(kept, [3, 2, 0].map(|quarters| Quanta(quarters * Quanta::ONE / 4)));
        let clean = judged.verdicts(Outcome::Violations(vec![]), &case());
        assert_eq!(
            (clean[0].label.as_deref(), clean[0].score),
            (Some("none"), Quanta(Quanta::ONE))
        );
    }

    #[test]
    fn nothing_to_score_is_absent_unless_one_was_asked_for() {
        let nothing = || Outcome::Nothing("no_plan");
        assert!(judged(Metric::PlanQuality, false).verdicts(nothing(), &case()).is_empty());
        let one = judged(Metric::PlanQuality, true).verdicts(nothing(), &case());
        assert_eq!(one[0].score, Quanta(Quanta::ONE));
    }
}
