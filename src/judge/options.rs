//! How the judge is set up: the section `[judge]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::metric::Metric;
use crate::engine::judging::JudgeRules;
use crate::engine::options::human;

/// The judge. Without a format there is none.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeOptions {
    /// How the endpoint wants to be spoken to; `none`: there is no judge.
    pub format: Format,
    /// Where it is: up to the version for `openai` and `gemini` (`https://api.openai.com/v1`), or the whole address of
    /// the call, query included; a key in the query is refused.
    pub url: String,
    /// Send over plain HTTP too, where the address says so.
    pub allow_http: bool,
    /// The environment variable that holds the key; empty: none.
    pub api_key_env: String,
    /// The file that holds the key, instead of the variable; empty: none.
    pub api_key_file: PathBuf,
    /// The model.
    pub model: String,
    /// Other models for single metrics, by name.
    pub models: BTreeMap<String, String>,
    /// Other models for single agents, by name; those of metrics go before.
    pub agent_models: BTreeMap<String, String>,
    /// How freely it answers; 0 is as repeatable as the model can.
    pub temperature: f64,
    /// Tokens of one answer.
    pub max_output_tokens: u32,
    /// What is judged.
    pub metrics: Vec<Metric>,
    /// Rules that agents have to keep, by name; without any `constraint_violation` is not judged.
    pub constraints: BTreeMap<String, String>,
    /// Share of sessions that is judged, in `[0,1]`.
    pub sample_rate: f64,
    /// The same of single agents, by name.
    pub sample_rates: BTreeMap<String, f64>,
    /// Traces that ended in error, looped, or failed an expectation are judged whatever the rate.
    pub flagged: bool,
    /// Share of judged traces that are judged a second time, in `[0,1]`, to see how far the judge is from itself.
    pub rejudge_rate: f64,
    /// The time between two rounds of traces with known answers; zero: there are none.
    #[serde(with = "human")]
    pub canary_interval: Duration,
    /// The file of traces with known answers; empty: ours.
    pub canaries_file: PathBuf,
    /// The most dollars in any hour; over it nothing is judged.
    pub usd_per_hour: f64,
    /// Dollars per million tokens read, where `cost.prices` has no price of the model.
    pub input_usd_per_million: f64,
    /// Dollars per million tokens written, likewise.
    pub output_usd_per_million: f64,
    /// Traces that are judged at the same time.
    pub concurrency: usize,
    /// Traces that wait; over it the one goes that came last, of the tenant that has the most of its share.
    pub max_queue: usize,
    /// Bytes of texts of all traces that wait or are judged; over it likewise.
    pub max_pending_bytes: usize,
    /// Bytes of long texts that each shard holds for the judge in traces that are open or with it; over it the quietest traces do without of
    /// the tenant that has the most of its share, or the one that came last if that is its own. One that does without is not judged.
    pub max_open_bytes: usize,
    /// Bytes of texts of one trace; the steps in the middle are left out.
    pub max_transcript_bytes: usize,
    /// Bytes of one answer, as sent.
    pub max_reply_bytes: usize,
    /// How long one call may take.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// How long a trace may take, from when it was done; what is missing then is absent.
    #[serde(with = "human")]
    pub deadline: Duration,
    /// Calls for one answer, the first one included.
    pub max_attempts: u32,
    /// The wait before a call is made again, doubled each time.
    #[serde(with = "human")]
    pub backoff: Duration,
    /// Failures in a row after which the endpoint is left alone.
    pub max_failures: u32,
    /// For how long.
    #[serde(with = "human")]
    pub pause: Duration,
    /// Words in names whose values do not leave: keys of JSON, and what stands before `:` or `=` in other texts.
    pub redact_keys: Vec<String>,
    /// Regular expressions of texts that do not leave.
    pub redact_patterns: Vec<String>,
}

/// How an endpoint wants to be spoken to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// There is no judge.
    #[default]
    None,
    /// Chat completions: OpenAI, Azure, vLLM, Ollama, LiteLLM.
    Openai,
    /// Anthropic's messages.
    Anthropic,
    /// Google's `generateContent`.
    Gemini,
}

impl JudgeOptions {
    /// Whether there is a judge.
    pub fn is_on(&self) -> bool {
        self.format != Format::None
    }

    /// Which traces it is asked about; `None` without a judge.
    pub fn rules(&self) -> Option<JudgeRules> {
        self.is_on().then(|| JudgeRules {
            sample_rate: self.sample_rate,
            sample_rates: self.sample_rates.clone(),
            flagged: self.flagged,
            max_transcript_bytes: self.max_transcript_bytes,
            max_open_bytes: self.max_open_bytes,
        })
    }

    /// The model for a metric of an agent.
    pub fn model(&self, metric: Metric, agent: &str) -> &str {
        self.models.get(metric.name()).map_or_else(|| self.model_of(agent), String::as_str)
    }

    /// The model for rules for an agent's answers.
    pub fn model_of(&self, agent: &str) -> &str {
        self.agent_models.get(agent).unwrap_or(&self.model)
    }
}

impl Default for JudgeOptions {
    fn default() -> Self {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        Self {
            format: Format::None,
            url: String::new(),
            allow_http: false,
            api_key_env: "AGENTGAUGE_JUDGE_API_KEY".to_owned(),
            api_key_file: PathBuf::new(),
            model: String::new(),
            models: BTreeMap::new(),
            agent_models: BTreeMap::new(),
            temperature: 0.0,
            max_output_tokens: 2_048,
            metrics: vec![Metric::ToolCorrectness, Metric::Confidence, Metric::ConstraintViolation],
            constraints: BTreeMap::new(),
            sample_rate: 0.1,
            sample_rates: BTreeMap::new(),
            flagged: true,
            rejudge_rate: 0.0,
            canary_interval: Duration::ZERO,
            canaries_file: PathBuf::new(),
            usd_per_hour: 1.0,
            input_usd_per_million: 5.0,
            output_usd_per_million: 25.0,
            concurrency: 4,
            max_queue: 1_000,
            max_pending_bytes: 67_108_864,
            max_open_bytes: 67_108_864,
            max_transcript_bytes: 65_536,
            max_reply_bytes: 1_048_576,
            timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(300),
            max_attempts: 3,
            backoff: Duration::from_secs(1),
            max_failures: 5,
            pause: Duration::from_secs(30),
            redact_keys: words(&[
                "password",
                "passwd",
                "secret",
                "api_key",
                "apikey",
                "api-key",
                "access_key",
                "private_key",
                "authorization",
                "cookie",
                "credential",
                "access_token",
                "refresh_token",
                "id_token",
                "auth_token",
                "session_token",
                "passphrase",
                "client_secret",
            ]),
            redact_patterns: words(&[
                r"\bsk-[A-Za-z0-9_-]{16,}",
                r"\bAKIA[0-9A-Z]{16}\b",
                r"\bgh[pousr]_[A-Za-z0-9]{20,}",
                r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
                r"\bAIza[0-9A-Za-z_-]{30,}",
                r"\b(?:[sr]k_(?:live|test)_|github_pat_|glpat-|hf_|npm_|ya29\.)[A-Za-z0-9_-]{16,}",
                r"://[^/\s:@]{1,64}:[^/\s@]{1,256}@",
                r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}",
                r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
                r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|$)",
            ]),
        }
    }
}
