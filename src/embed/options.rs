//! The options of embeddings: the section `[embed]`.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::options::{DAY, HOUR, MILLISECOND, SECOND, human};

crate::engine::options! {
    /// Embeddings. Without an address and a directory, texts are compared by hashed words, which suffices for loops but not
    /// for coherence.
    pub struct EmbedOptions in "embed" {
        /// An endpoint with /embeddings as OpenAI defined it, up to the version, such as `https://api.openai.com/v1`; empty,
        /// and no directory: texts are compared by hashed words, which suffices for loops; coherence is then absent.
        pub url: String = String::new();
        /// Send over plain http too, where the address says so.
        pub allow_http: bool = false;
        /// Environment variable that holds the key; empty: none.
        pub api_key_env: String = "AGENTGAUGE_EMBED_API_KEY".to_owned();
        /// File that holds the key, instead of the variable; empty: none.
        pub api_key_file: PathBuf = PathBuf::new();
        /// The model; in this process, the name of its vectors, by default that of its directory.
        pub model: String = String::new();
        /// A directory with a sentence-transformers model (BERT, such as all-MiniLM-L6-v2) to load in this process, instead of an
        /// address; needs a build with the feature minilm; empty: none.
        pub directory: PathBuf = PathBuf::new();
        /// Threads that compute a model in this process.
        pub threads: usize = 1, within 1..=1_024;
        /// Texts in one request.
        pub max_batch: usize = 64, within 1..=10_000;
        /// Traces that wait; further ones get no embeddings.
        pub max_queue: usize = 1_000, within 1..=1 << 20;
        /// Vectors that are kept, for texts that recur.
        pub max_cached: usize = 2_048, within 0..=1 << 24;
        /// Bytes of one text; the rest is cut.
        pub max_text_bytes: usize = 8_192, within 16..=16 << 20;
        /// Bytes of one reply.
        pub max_reply_bytes: usize = 16_777_216, within 1 << 10..=1 << 30;
        /// How long one request may take.
        #[serde(with = "human")]
        pub timeout: Duration = 30 * SECOND, within MILLISECOND..=HOUR;
        /// Requests for one batch, the first one included.
        pub max_attempts: u32 = 3, within 1..=10;
        /// The wait before a request is made again, doubled each time.
        #[serde(with = "human")]
        pub backoff: Duration = SECOND, within Duration::ZERO..=HOUR;
        /// Failures in a row after which the endpoint is left alone for a while.
        pub max_failures: u32 = 5, within 1..=1_000_000;
        /// How long the endpoint is left alone; also the longest wait before a request is made again.
        #[serde(with = "human")]
        pub pause: Duration = 30 * SECOND, within MILLISECOND..=DAY;
    }
}

impl EmbedOptions {
    /// The most bytes of one text; `None` without a model to embed it.
    pub fn wanted(&self) -> Option<usize> {
        let any = !self.url.is_empty() || !self.directory.as_os_str().is_empty();
        any.then_some(self.max_text_bytes)
    }
}
