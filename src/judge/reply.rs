//! Reads an answer of the judge: JSON, bare or in one fence, of the stage's form, and in range.
//!
//! Nothing is guessed and nothing is clamped: a question whose answer does not have the form is asked again, and in the end the
//! score is absent. Source: PandaProbe strips the fences and refuses what does not fit its schema. A rubric's answer is read as
//! AgentCI reads it, which takes a score wherever it finds one; see `engine::expect::judge`. Departure: in AgentCI an answer
//! without a score fails the check, and any score is taken; here an answer without a score in range is no answer.

use serde::Deserialize;
use serde_json::{Value, json};

use super::stage::Stage;
use crate::engine::expect::judge::{self, JudgeVerdict, Label};

/// Why an answer cannot be used.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
pub enum ReplyError {
    /// The answer is not JSON.
    #[error("the answer is not JSON")]
    NotJson,
    /// A key is missing, or has a value of the wrong kind.
    #[error("the answer does not have the requested form")]
    WrongForm,
    /// A number is not in its range.
    #[error("a number in the answer is out of range")]
    OutOfRange,
}

impl ReplyError {
    /// Its name as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::WrongForm => "wrong_form",
            Self::OutOfRange => "out_of_range",
        }
    }
}

/// Reads an answer.
///
/// # Errors
///
/// Fails if the answer does not have the stage's form.
pub fn read(stage: Stage, answer: &str) -> Result<Value, ReplyError> {
    if matches!(stage, Stage::Rubric | Stage::RubricOfText) {
        let verdict = judge::read(answer).ok_or(ReplyError::NotJson)?;
        if !judge::is_in_range(verdict.score) {
            return Err(ReplyError::OutOfRange);
        }
        let rationale = verdict.rationale.unwrap_or_default();
        return Ok(
            json!({ "score": verdict.score, "label": verdict.label, "rationale": rationale }),
        );
    }
    let value: Value = serde_json::from_str(bare(answer)).map_err(|_| ReplyError::NotJson)?;
    stage.form().check(&value)?;
    Ok(value)
}

/// The verdict in the answer to a rubric; `None` if there is none.
pub fn verdict(answer: &Value) -> Option<JudgeVerdict> {
    Some(JudgeVerdict {
        score: answer.get("score")?.as_i64()?,
        label: Label::deserialize(answer.get("label")?).ok()?,
        rationale: answer.get("rationale").and_then(Value::as_str).map(str::to_owned),
        judge: None,
    })
}

/// The answer without the one fence around it, if there is one.
fn bare(answer: &str) -> &str {
    let answer = answer.trim();
    let fenced = answer.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    fenced.map_or(answer, |inner| {
        let inner = inner.trim_start();
        inner.strip_prefix("json").unwrap_or(inner).trim()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_of_the_form_or_refused() {
        let stage = Stage::TaskVerdict;
        for good in [
            r#"{"verdict": 0.5}"#,
            r#" {"verdict": 1, "reason": null, "more": 2} "#,
            "```json\n{\"verdict\": 0}\n```",
            "```\n{\"verdict\": 0.25, \"reason\": \"```\"}```",
        ] {
            assert!(read(stage, good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", ReplyError::NotJson),
            ("Sure! {\"verdict\": 1}", ReplyError::NotJson),
            ("{\"verdict\": 1", ReplyError::NotJson),
            ("{\"verdict\": NaN}", ReplyError::NotJson),
            ("```json\n{\"verdict\": 1}\n``` as asked", ReplyError::NotJson),
            ("{\"score\": 1}", ReplyError::WrongForm),
            ("{\"verdict\": \"1\"}", ReplyError::WrongForm),
            ("{\"verdict\": true}", ReplyError::WrongForm),
            ("[0.5]", ReplyError::WrongForm),
            ("{\"verdict\": 1.01}", ReplyError::OutOfRange),
            ("{\"verdict\": -0.01}", ReplyError::OutOfRange),
            ("{\"verdict\": 85}", ReplyError::OutOfRange),
        ] {
            assert_eq!(read(stage, bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn a_rubric_s_answer_has_a_score_that_there_is_or_is_refused() {
        let read = |answer: &str| read(Stage::Rubric, answer).map(|answer| answer["score"].clone());
        for good in [
            r#"{"score": 5, "label": "pass", "rationale": ""}"#,
            "Well: {\"score\": 5, \"label\": \"pass\", \"rationale\": \"ok\"}, I would say.",
            r#"{"score": 5, "rationale": "cut of"#,
        ] {
            assert_eq!(read(good), Ok(json!(5)), "{good}");
        }
        for (bad, why) in [
            ("", ReplyError::NotJson),
            ("It is polite.", ReplyError::NotJson),
            (r#"{"label": "pass"}"#, ReplyError::NotJson),
            (r#"{"score": 0, "label": "fail", "rationale": ""}"#, ReplyError::OutOfRange),
            (r#"{"score": 9, "label": "pass", "rationale": ""}"#, ReplyError::OutOfRange),
            (r#"{"score": 85, "label": "pass", "rationale": ""}"#, ReplyError::OutOfRange),
        ] {
            assert_eq!(read(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn verdicts_are_yes_or_no() {
        let read = |verdict: &str| {
            read(Stage::CallVerdicts, &format!(r#"{{"verdicts": [{{"verdict": "{verdict}"}}]}}"#))
        };
        assert!(read("yes").is_ok());
        assert_eq!(read("Yes"), Err(ReplyError::WrongForm));
        assert_eq!(read("maybe"), Err(ReplyError::WrongForm));
    }
}
