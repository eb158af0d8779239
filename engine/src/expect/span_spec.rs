//! Assertions on spans, as they are written under `span_assertions`.
//!
//! Source: AgentCI v2, `schema/spec_models.py`.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::checked::share;
use super::pattern::Pattern;
use super::spec::Rubric;
use crate::named::named;

/// An assertion about every span of a kind and name; there must be at least one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanAssertion {
    /// The spans that it is about.
    pub selector: SpanSelector,
    /// What must be true of them, one or more.
    #[serde(deserialize_with = "some_asserts")]
    pub asserts: Vec<SpanAssert>,
}

/// Spans of a kind and name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SpanSelector {
    /// Their kind.
    pub kind: SpanKind,
    /// Their name.
    pub name: String,
}

named! {
    /// The kind of a span, in AgentCI's words.
    #[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum SpanKind {
        /// A tool call.
        Tool = "TOOL",
        /// An agent, or a node of a graph.
        Node = "NODE",
        /// Work handed to another agent.
        Handoff = "HANDOFF",
        /// A guardrail.
        Guardrail = "GUARDRAIL",
        /// A model call.
        Llm = "LLM",
    }
}

/// An assertion about a field of a span.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "WrittenAssert")]
pub struct SpanAssert {
    /// The field: `output_data`, `attributes.tool.args.query`.
    pub field: String,
    /// What must be true of it.
    pub check: SpanCheck,
}

/// A check of a text.
#[derive(Clone, Debug)]
pub enum SpanCheck {
    /// The text contains this.
    Contains(String),
    /// The text does not contain this.
    NotContains(String),
    /// The text is this.
    Equals(String),
    /// The pattern is found in the text.
    Regex(Pattern),
    /// A judge finds that the text keeps the rule.
    Judge(Rubric),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAssert {
    #[serde(rename = "type")]
    kind: CheckKind,
    field: String,
    rule: Option<String>,
    value: Option<String>,
    #[serde(default = "span_threshold", deserialize_with = "share")]
    threshold: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CheckKind {
    LlmJudge,
    Contains,
    NotContains,
    Regex,
    Equals,
}

impl SpanAssert {
    /// The rubric by which a judge judges the field, if one does.
    pub fn rubric(&self) -> Option<&Rubric> {
        if let SpanCheck::Judge(rubric) = &self.check { Some(rubric) } else { None }
    }
}

impl TryFrom<WrittenAssert> for SpanAssert {
    type Error = String;

    fn try_from(written: WrittenAssert) -> Result<Self, String> {
        let value = || written.value.clone().ok_or("`value` is missing");
        let check = match written.kind {
            CheckKind::Contains => SpanCheck::Contains(value()?),
            CheckKind::NotContains => SpanCheck::NotContains(value()?),
            CheckKind::Equals => SpanCheck::Equals(value()?),
            CheckKind::Regex => {
                SpanCheck::Regex(Pattern::new(&value()?).map_err(|error| error.to_string())?)
            }
            CheckKind::LlmJudge => SpanCheck::Judge(Rubric {
                rule: written.rule.ok_or("`rule` is missing")?,
                scale: None,
                threshold: written.threshold,
                few_shot_examples: None,
                context_file: None,
            }),
        };
        Ok(Self { field: written.field, check })
    }
}

fn span_threshold() -> f64 {
    0.8
}

fn some_asserts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SpanAssert>, D::Error> {
    let asserts = Vec::deserialize(deserializer)?;
    if asserts.is_empty() { Err(D::Error::custom("this is empty")) } else { Ok(asserts) }
}
