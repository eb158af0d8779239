//! How agentgauge's scores are sent to others: as the log record that the conventions define for a score.

use super::evaluation;
use crate::judging::Score;

/// The scope of everything that agentgauge sends. Log records that arrive under it are its own and are not read again.
pub const OWN_SCOPE: &str = "agentgauge";

/// The event name of the log record of a score.
pub const RESULT: &str = evaluation::RESULT;

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum ScoreValue {
    /// A text.
    Text(String),
    /// A number.
    Number(f64),
}

/// The attributes of the record of a score, in order; unknown values are left out.
pub fn score_attributes(score: &Score) -> Vec<(&'static str, ScoreValue)> {
    let text = |text: &str| {
        Some(text).filter(|text| !text.is_empty()).map(|text| ScoreValue::Text(text.to_owned()))
    };
    let attributes = [
        ("gen_ai.evaluation.name", text(&score.name)),
        ("gen_ai.evaluation.score.value", Some(ScoreValue::Number(score.score.to_f64()))),
        ("gen_ai.evaluation.score.label", score.label.as_deref().and_then(text)),
        ("gen_ai.evaluation.explanation", score.explanation.as_deref().and_then(text)),
        ("gen_ai.agent.name", text(&score.agent.agent_name)),
        ("agentgauge.evaluator", text(&score.evaluator)),
        ("agentgauge.rule", score.rule.as_deref().and_then(text)),
        ("agentgauge.service.name", text(&score.agent.service_name)),
    ];
    attributes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The attributes of the resource that sends scores; `instance` is its id.
pub fn sender_attributes(instance: &str) -> Vec<(&'static str, ScoreValue)> {
    let own = |text: &str| ScoreValue::Text(text.to_owned());
    vec![
        ("service.name", own(OWN_SCOPE)),
        ("service.version", own(env!("CARGO_PKG_VERSION"))),
        ("service.instance.id", own(instance)),
    ]
}
