//! The meaning of a judge's verdict; no model is called here.
//!
//! ```text
//! mapped threshold = clamp(trunc(threshold * 5 + 0.5), 1, 5)
//! one judge        passes if score >= mapped threshold or its label is `pass`
//! several judges   pass if the most frequent label is not `fail` and the mean score >= mapped threshold
//! ```
//!
//! Source: AgentCI v2, metrics reference, "LLM Judge Score Mapping"; `engine/judge.py`, by which a label `pass` is enough
//! (on the page the score alone counts). Of equally frequent labels, for which AgentCI has no rule, the worst counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::result::rounded;
use crate::math::Quanta;
use crate::named::named;

/// The greatest score.
const MAX_SCORE: i64 = 5;

/// The least score with which a verdict without a label passes.
const PASSING_SCORE: i64 = 3;

named! {
    /// The label of a verdict. The order is from the worst to the best.
    #[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Label {
        /// The rule is broken.
        Fail = "fail",
        /// The rule is neither kept nor broken.
        Borderline = "borderline",
        /// The rule is kept.
        Pass = "pass",
    }
}

/// A judge's verdict on a text under a rule.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JudgeVerdict {
    /// The score, from 1 to 5; others are accepted unchanged.
    pub score: i64,
    /// The label.
    pub label: Label,
    /// The judge's reason; `None` if it could not be read.
    pub rationale: Option<String>,
    /// The judge, its model and the version of its prompts; `None` if not known.
    pub judge: Option<String>,
}

/// The result for a rule that was to be judged.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Judgement {
    /// One judge's verdict.
    Single(JudgeVerdict),
    /// The verdicts of several judges.
    Ensemble(Vec<JudgeVerdict>),
    /// The reason why the judge could not be asked, which fails the check.
    Failed(String),
}

impl Judgement {
    /// The verdicts.
    pub fn verdicts(&self) -> &[JudgeVerdict] {
        match self {
            Self::Single(verdict) => std::slice::from_ref(verdict),
            Self::Ensemble(verdicts) => verdicts,
            Self::Failed(_) => &[],
        }
    }
}

/// Judgements by the text of the rule, and, for texts other than the answer, by [`key`]; rules that are not in here have not been judged.
pub type Judgements = BTreeMap<String, Judgement>;

/// The outcome of a judgement for a threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Whether the rule is kept.
    pub passed: bool,
    /// The score; for several judges their mean, rounded to two decimals.
    pub score: f64,
    /// The label; for several judges the most frequent one.
    pub label: Label,
}

/// A score as a share of the greatest score, like thresholds, in `[0,1]`.
pub fn share(score: i64) -> Quanta {
    Quanta(score.clamp(0, MAX_SCORE) * (Quanta::ONE / MAX_SCORE))
}

/// The key of the judgement of a text that is not the answer. Equal texts are judged once.
pub fn key(rule: &str, text: &str) -> String {
    format!("{rule} [{:016x}]", xxh3_64(text.as_bytes()))
}

/// The least score that passes, for a threshold in `[0,1]`.
pub fn score_threshold(threshold: f64) -> i64 {
    let scaled = (threshold * MAX_SCORE as f64 + 0.5).clamp(1.0, MAX_SCORE as f64);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "within 1 and 5, and truncation is the rule"
    )]
    let score = scaled as i64;
    score
}

/// The outcome of one judge's verdict for a threshold.
pub fn single(verdict: &JudgeVerdict, threshold: f64) -> Outcome {
    let passed = verdict.score >= score_threshold(threshold) || verdict.label == Label::Pass;
    Outcome { passed, score: verdict.score as f64, label: verdict.label }
}

/// The outcome of several judges' verdicts for a threshold; `None` without a verdict.
pub fn ensemble(verdicts: &[JudgeVerdict], threshold: f64) -> Option<Outcome> {
    let mut votes: BTreeMap<Label, usize> = BTreeMap::new();
    for verdict in verdicts {
        *votes.entry(verdict.label).or_default() += 1;
    }
    // Of equally frequent labels this is the worst, which is the last in reverse order.
    let (label, _) = votes.into_iter().rev().max_by_key(|(_, count)| *count)?;
    let sum: i128 = verdicts.iter().map(|verdict| i128::from(verdict.score)).sum();
    let count = verdicts.len() as i128;
    let high = sum >= i128::from(score_threshold(threshold)) * count;
    let score = rounded(crate::math::ratio(sum, count), 2);
    Some(Outcome { passed: label != Label::Fail && high, score, label })
}

/// Reads a judge's answer as AgentCI does: an answer without a score is the worst verdict.
pub fn parse(answer: &str) -> JudgeVerdict {
    read(answer).unwrap_or(JudgeVerdict {
        score: 1,
        label: Label::Fail,
        rationale: None,
        judge: None,
    })
}

/// Reads a judge's answer: fenced JSON, JSON, the first object with a score, else the score alone; `None` without a score.
pub fn read(answer: &str) -> Option<JudgeVerdict> {
    let text = fenced(answer).unwrap_or(answer).trim();
    whole(text).or_else(|| whole(scored_object(text)?)).or_else(|| pieces(text))
}

/// Whether a score is in the range of scores.
pub fn is_in_range(score: i64) -> bool {
    (1..=MAX_SCORE).contains(&score)
}

/// The object in the first fence that contains one, up to the first closing brace before a fence.
fn fenced(text: &str) -> Option<&str> {
    text.match_indices("```").find_map(|(at, fence)| {
        let body = &text[at + fence.len()..];
        let body = body.strip_prefix("json").unwrap_or(body).trim_start();
        let closes = |(at, _): &(usize, &str)| body[at + 1..].trim_start().starts_with("```");
        let (end, _) = body.match_indices('}').find(closes)?;
        body.starts_with('{').then(|| &body[..=end])
    })
}

/// Reads a whole verdict: all three keys, of the right kind; numbers may be in quotes.
fn whole(text: &str) -> Option<JudgeVerdict> {
    let object: Map<String, Value> = serde_json::from_str(text).ok()?;
    let score = match object.get("score")? {
        Value::Number(number) => number.as_i64().or_else(|| integral(number.as_f64()?)),
        Value::String(text) => {
            let text = text.trim();
            text.parse().ok().or_else(|| integral(text.parse().ok()?))
        }
        Value::Bool(flag) => Some(i64::from(*flag)),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }?;
    let label = Label::deserialize(object.get("label")?).ok()?;
    let rationale = object.get("rationale")?.as_str()?;
    Some(JudgeVerdict { score, label, rationale: Some(rationale.to_owned()), judge: None })
}

fn integral(value: f64) -> Option<i64> {
    // Below 2^53 every whole float is that integer.
    #[expect(clippy::cast_possible_truncation, reason = "whole and small, checked here")]
    (value.fract().abs() < f64::MIN_POSITIVE && value.abs() < 9e15).then_some(value as i64)
}

/// The first pair of braces that has `"score"` and no braces between.
fn scored_object(text: &str) -> Option<&str> {
    text.match_indices('{').find_map(|(at, _)| {
        let rest = &text[at + 1..];
        let end = rest.find(['{', '}'])?;
        let body = &rest[..end];
        (rest[end..].starts_with('}') && body.contains("\"score\""))
            .then(|| &text[at..at + end + 2])
    })
}

/// Reads what can be read of an answer that was cut off or is not JSON.
fn pieces(text: &str) -> Option<JudgeVerdict> {
    let digit = |value: &str| value.chars().next()?.to_digit(10).map(i64::from);
    let score = values(text, "\"score\"").find_map(digit)?;
    let labels = [
        ("\"pass\"", Label::Pass),
        ("\"fail\"", Label::Fail),
        ("\"borderline\"", Label::Borderline),
    ];
    let label = values(text, "\"label\"").find_map(|value| {
        labels.iter().find(|(word, _)| value.starts_with(word)).map(|(_, label)| *label)
    });
    let inferred = if score >= PASSING_SCORE { Label::Pass } else { Label::Fail };
    Some(JudgeVerdict { score, label: label.unwrap_or(inferred), rationale: None, judge: None })
}

/// The texts after each `key :`.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(key).filter_map(move |(at, _)| {
        let rest = text[at + key.len()..].trim_start().strip_prefix(':')?;
        Some(rest.trim_start())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> (i64, Label) {
        let verdict = parse(answer);
        (verdict.score, verdict.label)
    }

    #[test]
    fn an_answer_is_read_as_far_as_it_goes() {
        let cases = [
            (r#"{"score": 9, "label": "fail", "rationale": ""}"#, (9, Label::Fail)),
            (r#"{"score": 4.0, "label": "borderline", "rationale": ""}"#, (4, Label::Borderline)),
            // Half a point is no score: the digit before the dot is taken.
            (r#"{"score": 2.5, "label": "pass", "rationale": ""}"#, (2, Label::Pass)),
            (r#"{"score": 2}"#, (2, Label::Fail)),
            (r#"x {"a": {"score": 3, "label": "fail", "rationale": ""}} y"#, (3, Label::Fail)),
            (
                "``` {\"score\": 5, \"label\": \"fail\", \"rationale\": \"}\"}\n``` tail",
                (5, Label::Fail),
            ),
            (r#"{"score": null}"#, (1, Label::Fail)),
            ("{", (1, Label::Fail)),
        ];
        for (answer, expected) in cases {
            assert_eq!(read(answer), expected, "{answer}");
        }
    }

    #[test]
    fn of_labels_that_are_equally_frequent_the_worst_counts() {
        let verdict = |score, label| JudgeVerdict { score, label, rationale: None, judge: None };
        let tie = [verdict(5, Label::Pass), verdict(5, Label::Fail)];
        let outcome = ensemble(&tie, 0.5).unwrap();
        assert_eq!((outcome.label, outcome.passed), (Label::Fail, false));
        assert_eq!(ensemble(&[], 0.5), None);
    }
}
