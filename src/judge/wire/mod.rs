//! How endpoints are spoken to: a call becomes a request, a reply becomes an answer. One format, one file; no IO here.

mod anthropic;
mod gemini;
mod openai;

pub(crate) use openai::bearer;

use std::fmt;

use serde_json::Value;

use super::options::Format;
use super::prompt::Prompt;
use super::stage::Stage;
use crate::outbound::Secret;

/// A call as every format takes it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The model.
    pub model: &'a str,
    /// The words.
    pub prompt: &'a Prompt,
    /// What is asked: its schema goes along.
    pub stage: Stage,
    /// How freely it answers.
    pub temperature: f64,
    /// Tokens of the answer.
    pub max_output_tokens: u32,
    /// How much of it the endpoint understands.
    pub dialect: Dialect,
}

/// How much of the format an endpoint understands. One that refuses a request as malformed is asked in the next one.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Dialect {
    /// All of it.
    #[default]
    Full,
    /// Schemas, but no temperature, and the newer name of the limit: models that think by themselves refuse the others.
    WithoutTemperature,
    /// No schemas: the form stands in the words alone.
    WithoutSchema,
    /// Neither.
    Bare,
}

/// A request to be posted.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// Where to.
    pub url: String,
    /// Headers beside the content type, the key among them.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Value,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| *name).collect();
        f.debug_struct("Request").field("headers", &names).finish_non_exhaustive()
    }
}

/// What was answered.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Tokens that were read; `None`: not said.
    pub input_tokens: Option<u64>,
    /// Tokens that were written; `None`: not said.
    pub output_tokens: Option<u64>,
}

/// Why there is no answer in a reply that came whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoAnswer {
    /// The model, or a filter before it, would not answer.
    #[error("the judge refused to answer")]
    Refused,
    /// It ran into the limit of tokens.
    #[error("the answer was cut off at `judge.max_output_tokens`")]
    CutOff,
    /// It is not what the format says.
    #[error("the reply does not have the configured format (`judge.format`)")]
    NotOfFormat,
}

impl NoAnswer {
    /// As counters carry it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::CutOff => "cut_off",
            Self::NotOfFormat => "not_of_format",
        }
    }
}

impl Dialect {
    /// The next plainer one; `None` if there is none.
    pub fn plainer(self) -> Option<Self> {
        match self {
            Self::Full => Some(Self::WithoutTemperature),
            Self::WithoutTemperature => Some(Self::WithoutSchema),
            Self::WithoutSchema => Some(Self::Bare),
            Self::Bare => None,
        }
    }

    /// Whether it has schemas.
    pub fn has_schema(self) -> bool {
        matches!(self, Self::Full | Self::WithoutTemperature)
    }

    /// Whether it has a temperature.
    pub fn has_temperature(self) -> bool {
        matches!(self, Self::Full | Self::WithoutSchema)
    }
}

impl Format {
    /// The request for a call; `None` without a judge.
    pub fn request(self, url: &str, key: Option<&Secret>, call: &Call<'_>) -> Option<Request> {
        match self {
            Self::None => None,
            Self::Openai => Some(openai::request(url, key, call)),
            Self::Anthropic => Some(anthropic::request(url, key, call)),
            Self::Gemini => Some(gemini::request(url, key, call)),
        }
    }

    /// The answer in a reply, and the tokens that it took even where there is none.
    pub fn answer(self, reply: &Value) -> (Answer, Option<NoAnswer>) {
        match self {
            Self::None => (Answer::default(), Some(NoAnswer::NotOfFormat)),
            Self::Openai => openai::answer(reply),
            Self::Anthropic => anthropic::answer(reply),
            Self::Gemini => gemini::answer(reply),
        }
    }
}

/// The address of a call: the configured one if it names the call itself, else with the call's path behind it.
pub(crate) fn address(url: &str, call: &str) -> String {
    let (path, query) =
        url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let path = path.trim_end_matches('/');
    let whole = if path.ends_with(call) { path.to_owned() } else { format!("{path}/{call}") };
    query.map_or_else(|| whole.clone(), |query| format!("{whole}?{query}"))
}

/// A count under a path of keys.
fn count(reply: &Value, pointer: &str) -> Option<u64> {
    reply.pointer(pointer)?.as_u64()
}

/// The text of an answer, or that the reply is not of the format.
fn texts(texts: Option<String>) -> (String, Option<NoAnswer>) {
    texts.map_or((String::new(), Some(NoAnswer::NotOfFormat)), |text| (text, None))
}

#[cfg(test)]
mod tests;
