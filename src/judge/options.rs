//! The options of the judge: the section `[judge]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::metric::Metric;
use crate::engine::judging::JudgeRules;
use crate::engine::options::{DAY, HOUR, MAX_PRICE, MILLISECOND, MINUTE, SECOND, human, words};

crate::engine::options! {
    /// The judge; without a format there is no judge.
    pub struct JudgeOptions in "judge" {
        /// API of the judge's endpoint: none (there is no judge), openai (chat completions: OpenAI, Azure, vLLM, Ollama,
        /// LiteLLM), anthropic, gemini.
        pub format: Format = Format::None;
        /// Address of the endpoint, up to the version, such as `https://api.openai.com/v1`; or the whole address of the call,
        /// which may name the model: then the `model` options below have no effect. A key in it is refused.
        pub url: String = String::new();
        /// Send over plain http too, where the address says so.
        pub allow_http: bool = false;
        /// Environment variable that holds the key; empty: none.
        pub api_key_env: String = "AGENTGAUGE_JUDGE_API_KEY".to_owned();
        /// File that holds the key, instead of the variable; empty: none.
        pub api_key_file: PathBuf = PathBuf::new();
        /// The model.
        pub model: String = String::new();
        /// Other models for single metrics, such as `{ confidence = "a-small-one" }`.
        pub models: BTreeMap<String, String> = BTreeMap::new();
        /// Other models for single agents, by name; those of metrics take precedence.
        pub agent_models: BTreeMap<String, String> = BTreeMap::new();
        /// Temperature; 0 is as repeatable as the model can be.
        pub temperature: f64 = 0.0, within 0.0..=2.0;
        /// Most tokens of one answer.
        pub max_output_tokens: u32 = 2_048, within 16..=1 << 20;
        /// What is judged: `task_completion`, `tool_correctness`, `argument_correctness`, `step_efficiency`, confidence,
        /// `plan_adherence`, `plan_quality`, `constraint_violation`.
        pub metrics: Vec<Metric> = vec![Metric::ToolCorrectness, Metric::Confidence, Metric::ConstraintViolation];
        /// Rules that agents have to keep, by name, such as `{ no_pii = "Does not show personal data of others." }`; without any
        /// `constraint_violation` is not judged.
        pub constraints: BTreeMap<String, String> = BTreeMap::new();
        /// Share of sessions that is judged, 0 to 1.
        pub sample_rate: f64 = 0.1, within 0.0..=1.0;
        /// Sample rates of single agents, by name.
        pub sample_rates: BTreeMap<String, f64> = BTreeMap::new();
        /// Judge traces that ended in error, looped, or failed an expectation, whatever the rate. Texts of a trace that is not
        /// sampled, and whose spans came from one process only, are kept until its root has arrived: if later spans show that
        /// it looped or failed, it is not judged, and counted as `unread`.
        pub flagged: bool = true;
        /// Share of judged traces that are judged a second time, 0 to 1; `agentgauge_judge_noise` shows how much repeated
        /// judgements differ.
        pub rejudge_rate: f64 = 0.0, within 0.0..=1.0;
        /// The time between two rounds of traces with known answers, the first at the start; `agentgauge_judge_drift` shows how
        /// far the judge is from them. 0s: there are none.
        #[serde(with = "human")]
        pub canary_interval: Duration = Duration::ZERO, within Duration::ZERO..=365 * DAY;
        /// File of traces with known answers, a JSON list of `{ name, trace, known = { confidence = 0.9 } }`; empty: the
        /// built-in ones.
        pub canaries_file: PathBuf = PathBuf::new();
        /// Most dollars in any hour; beyond that nothing is judged, and computed signals stand in.
        pub usd_per_hour: f64 = 1.0, within 0.0..=1e6;
        /// Dollars per million tokens read, where `cost.prices` has no price of the model; 0 for one that costs nothing.
        pub input_usd_per_million: f64 = 5.0, within 0.0..=MAX_PRICE;
        /// Dollars per million tokens written, likewise.
        pub output_usd_per_million: f64 = 25.0, within 0.0..=MAX_PRICE;
        /// Traces that are judged at the same time.
        pub concurrency: usize = 4, within 1..=10_000;
        /// Traces that wait; beyond that, the newest of the tenant that holds the most relative to its share is dropped.
        pub max_queue: usize = 1_000, within 1..=1 << 20;
        /// Bytes of texts of all traces that wait or are judged; beyond that, traces are dropped in the same way.
        pub max_pending_bytes: usize = 67_108_864, within 1 << 16..=usize::MAX;
        /// Bytes of long texts that each shard holds for the judge in traces that are open or being judged; beyond that, the
        /// quietest traces of the tenant that holds the most relative to its share lose their texts (a new span keeps none if
        /// it is that tenant's own). A trace without texts is not judged, and counted as `unread`.
        pub max_open_bytes: usize = 67_108_864, within 1 << 16..=usize::MAX;
        /// Bytes of texts of one trace; steps in the middle are left out.
        pub max_transcript_bytes: usize = 65_536, within 1 << 10..=16 << 20;
        /// Bytes of one reply.
        pub max_reply_bytes: usize = 1_048_576, within 1 << 10..=64 << 20;
        /// How long one call may take.
        #[serde(with = "human")]
        pub timeout: Duration = 30 * SECOND, within MILLISECOND..=HOUR;
        /// How long judging a trace may take, from when it was done; scores that are missing then stay absent.
        #[serde(with = "human")]
        pub deadline: Duration = 5 * MINUTE, within MILLISECOND..=DAY;
        /// Calls for one answer, the first one included.
        pub max_attempts: u32 = 3, within 1..=10;
        /// The wait before a call is made again, doubled each time.
        #[serde(with = "human")]
        pub backoff: Duration = SECOND, within Duration::ZERO..=HOUR;
        /// Failures in a row after which the endpoint is left alone for a while.
        pub max_failures: u32 = 5, within 1..=1_000_000;
        /// How long the endpoint is left alone.
        #[serde(with = "human")]
        pub pause: Duration = 30 * SECOND, within MILLISECOND..=DAY;
        /// Values are not sent if their names contain one of these words: keys of JSON, and what precedes `:` or `=` in other
        /// texts.
        pub redact_keys: Vec<String> = words(&[
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
        ]);
        /// Texts that match one of these regular expressions are not sent.
        pub redact_patterns: Vec<String> = words(&[
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
        ]);
    }
}

/// The format of an endpoint.
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

    /// The rules for which traces it judges; `None` without a judge.
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

    /// The model for rules about an agent's answers.
    pub fn model_of(&self, agent: &str) -> &str {
        self.agent_models.get(agent).unwrap_or(&self.model)
    }
}
