//! How embeddings are had: the section `[embed]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::options::human;

/// Embeddings. Without an address and a directory they are hashed, which does for loops and not for coherence.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmbedOptions {
    /// An endpoint with `/embeddings` as OpenAI defined it, up to the version; empty: none.
    pub url: String,
    /// Send over plain HTTP too, where the address says so.
    pub allow_http: bool,
    /// The environment variable that holds the key; empty: none.
    pub api_key_env: String,
    /// The file that holds the key, instead of the variable; empty: none.
    pub api_key_file: PathBuf,
    /// The model.
    pub model: String,
    /// A sentence-transformers model to load in this process, instead of an address; empty: none.
    pub directory: PathBuf,
    /// Threads that such a model computes on.
    pub threads: usize,
    /// Texts in one request.
    pub max_batch: usize,
    /// Traces that wait; further ones go without.
    pub max_queue: usize,
    /// Vectors that are kept, for texts that come again.
    pub max_cached: usize,
    /// Bytes of one text; the rest is cut.
    pub max_text_bytes: usize,
    /// Bytes of one reply.
    pub max_reply_bytes: usize,
    /// How long one request may take.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// Requests for one batch, the first one included.
    pub max_attempts: u32,
    /// The wait before a request is made again, doubled each time.
    #[serde(with = "human")]
    pub backoff: Duration,
    /// Failures in a row after which the endpoint is left alone.
    pub max_failures: u32,
    /// For how long; also the longest wait before a request is made again.
    #[serde(with = "human")]
    pub pause: Duration,
}

impl EmbedOptions {
    /// The most bytes of one text; `None` without a model to embed it.
    pub fn wanted(&self) -> Option<usize> {
        let any = !self.url.is_empty() || !self.directory.as_os_str().is_empty();
        any.then_some(self.max_text_bytes)
    }
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            allow_http: false,
            api_key_env: "AGENTGAUGE_EMBED_API_KEY".to_owned(),
            api_key_file: PathBuf::new(),
            model: String::new(),
            directory: PathBuf::new(),
            threads: 1,
            max_batch: 64,
            max_queue: 1_000,
            max_cached: 2_048,
            max_text_bytes: 8_192,
            max_reply_bytes: 16_777_216,
            timeout: Duration::from_secs(30),
            max_attempts: 3,
            backoff: Duration::from_secs(1),
            max_failures: 5,
            pause: Duration::from_secs(30),
        }
    }
}
