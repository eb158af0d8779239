//! The formats of endpoints: from a call to a request, and from a reply to an answer. Each format has a file; no I/O here.

mod anthropic;
mod gemini;
mod openai;

use std::fmt;

use serde_json::Value;

use super::options::Format;
use super::prompt::Prompt;
use super::stage::Stage;
use crate::secret::Secret;

/// A call, the same for every format.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The model.
    pub model: &'a str,
    /// The prompt.
    pub prompt: &'a Prompt,
    /// The stage, whose schema is sent with the request.
    pub stage: Stage,
    /// The temperature: how freely the model answers.
    pub temperature: f64,
    /// The most tokens of the answer.
    pub max_output_tokens: u32,
    /// How much of the format the endpoint understands.
    pub dialect: Dialect,
}

/// How much of the format an endpoint understands. If it refuses a request as malformed, the next dialect is tried.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Dialect {
    /// All of the format.
    #[default]
    Full,
    /// Schemas, but no temperature, and the newer name of the token limit: reasoning models refuse a temperature and the older name.
    WithoutTemperature,
    /// No schemas: only the prompt describes the form of the answer.
    WithoutSchema,
    /// Neither schemas nor a temperature.
    Bare,
}

/// A request to be posted.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// The address.
    pub url: String,
    /// Headers besides the content type, including the key.
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

/// The answer in a reply, and its tokens.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Tokens of the prompt; `None` if the reply does not say.
    pub input_tokens: Option<u64>,
    /// Tokens of the answer; `None` if the reply does not say.
    pub output_tokens: Option<u64>,
}

/// Why a complete reply has no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoAnswer {
    /// The model, or a filter before it, refused to answer.
    #[error("the judge refused to answer")]
    Refused,
    /// The answer reached the limit of tokens.
    #[error("the answer was cut off at `judge.max_output_tokens`")]
    CutOff,
    /// The reply does not have the format.
    #[error("the reply does not have the configured format (`judge.format`)")]
    NotOfFormat,
}

impl NoAnswer {
    /// Its name as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::CutOff => "cut_off",
            Self::NotOfFormat => "not_of_format",
        }
    }
}

impl Dialect {
    /// The next plainer dialect; `None` if there is none.
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

    /// The answer in a reply, or why there is none, with its tokens in both cases.
    pub fn answer(self, reply: &Value) -> (Answer, Option<NoAnswer>) {
        match self {
            Self::None => (Answer::default(), Some(NoAnswer::NotOfFormat)),
            Self::Openai => openai::answer(reply),
            Self::Anthropic => anthropic::answer(reply),
            Self::Gemini => gemini::answer(reply),
        }
    }
}

/// The count at a JSON pointer.
fn count(reply: &Value, pointer: &str) -> Option<u64> {
    reply.pointer(pointer)?.as_u64()
}

/// The text of an answer, or that the reply is not in the format.
fn texts(texts: Option<String>) -> (String, Option<NoAnswer>) {
    texts.map_or((String::new(), Some(NoAnswer::NotOfFormat)), |text| (text, None))
}

#[cfg(test)]
mod tests;
