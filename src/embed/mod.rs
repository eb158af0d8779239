//! Embeddings: texts to vectors, by an endpoint or by a model in this process, each text once.
//!
//! ```text
//!                                                 .--POST /v1/embeddings--.
//! engine --EmbedRequest--> Handle --queue--> Embedder                   Embedded --> engine
//!                                                 '--MiniLM, in process---'
//! ```
//!
//! Nothing waits for embeddings. Without them coherence is absent, and loop_detection uses hashed embeddings.

mod cache;
mod endpoint;
#[cfg(feature = "minilm")]
pub mod minilm;
pub mod options;
mod queue;
mod source;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use prometheus::IntCounterVec;

use self::cache::Cache;
pub use self::options::EmbedOptions;
pub use self::queue::{Handle, Inbox, queue};
use self::source::{Lost, Source};
use crate::clock::Clock;
use crate::engine::embedding::{EmbedRequest, Embedded};
use crate::engine::tenants::TraceKey;
use crate::ingest::{Batch, Sink};
use crate::outbound::EndpointError;
use crate::outbound::redact::Redactor;
use crate::registry::Registry;
use crate::secret::Secret;

/// A vector, shared by all traces with the same text.
type Vector = Arc<[f32]>;

/// The worker that gets texts embedded and sends the results to the engine.
#[derive(Debug)]
pub struct Embedder {
    options: EmbedOptions,
    source: Source,
    clock: Clock,
    inbox: Inbox,
    cache: Cache,
}

/// Why embeddings cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// No model is named.
    #[error("`embed.model` must name a model")]
    NoModel,
    /// Both an endpoint and a directory are named.
    #[error("`embed.url` and `embed.directory` exclude each other")]
    TwoModels,
    /// The build lacks support for models in this process.
    #[cfg(not(feature = "minilm"))]
    #[error("`embed.directory` needs a build with the feature `minilm`")]
    NotBuilt,
    /// The model's directory cannot be used.
    #[cfg(feature = "minilm")]
    #[error("`embed.directory`: {0}")]
    Model(#[from] minilm::ModelError),
    /// Its metrics cannot be set up.
    #[error("cannot set up the metrics of embeddings: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl Embedder {
    /// Sets up the embedder, which takes texts from its end of a queue.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint or the model cannot be used.
    pub fn new(
        options: &EmbedOptions,
        key: Option<Secret>,
        redactor: Redactor,
        clock: Clock,
        inbox: Inbox,
    ) -> Result<Self, EmbedError> {
        let source = Source::new(options, key, redactor, clock.clone())?;
        let cache = Cache::new(options.max_cached);
        Ok(Self { options: options.clone(), source, clock, inbox, cache })
    }

    /// Works until `stop`, or until the engine's end of the queue is dropped.
    pub async fn run<S: Sink>(mut self, sink: S, stop: impl Future<Output = ()> + Send) {
        let mut stop = pin!(stop);
        loop {
            let requests = tokio::select! {
                biased;
                () = &mut stop => return,
                requests = self.inbox.next(self.options.max_batch) => requests,
            };
            if requests.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = self.serve(&requests, &sink) => {}
            }
        }
    }

    /// Embeds the texts of these traces and sends the results to the engine.
    async fn serve<S: Sink>(&mut self, requests: &[EmbedRequest], sink: &S) {
        let texts = requests.iter().flat_map(|request| request.input.iter().chain(&request.output));
        let mut vectors: BTreeMap<&str, Vector> = BTreeMap::new();
        let mut missing: Vec<&str> = Vec::new();
        for text in texts {
            if vectors.contains_key(text.as_str()) || missing.contains(&text.as_str()) {
                continue;
            }
            match self.cache.get(text) {
                Some(vector) => {
                    self.count("cached", 1);
                    vectors.insert(text, vector);
                }
                None => missing.push(text),
            }
        }
        let mut waiting: VecDeque<&[&str]> = missing.chunks(self.options.max_batch).collect();
        while let Some(chunk) = waiting.pop_front() {
            let embedded = match self.source.embed(chunk).await {
                Ok(embedded) => embedded,
                Err(Lost::Batch) => {
                    waiting.extend(chunk.chunks(1));
                    continue;
                }
                Err(Lost::Now) => {
                    self.count("failed", chunk.len());
                    continue;
                }
            };
            self.count("embedded", chunk.len());
            for (text, vector) in chunk.iter().zip(embedded) {
                self.cache.insert(text, vector.clone());
                vectors.insert(text, vector);
            }
        }
        let embedded: Vec<(TraceKey, Embedded)> = requests
            .iter()
            .filter_map(|request| {
                let of = |text: &Option<String>| vectors.get(text.as_deref()?).map(AsRef::as_ref);
                // Sent even if nothing follows from the vectors, so that the trace is not requested again.
                let (input, output) = (of(&request.input), of(&request.output)?);
                let embedded = Embedded::new(request, self.source.name(), input, Some(output));
                Some((request.trace, embedded))
            })
            .collect();
        self.deliver(embedded, sink).await;
    }

    /// Sends the results to the engine; if it is overloaded, retries, up to `max_attempts` times.
    async fn deliver<S: Sink>(&self, embedded: Vec<(TraceKey, Embedded)>, sink: &S) {
        if embedded.is_empty() {
            return;
        }
        for _ in 0..self.options.max_attempts {
            let batch =
                Batch { arrival: self.clock.now(), embedded: embedded.clone(), ..Batch::default() };
            match sink.submit(batch).await {
                Ok(_) => return,
                Err(overloaded) => tokio::time::sleep(overloaded.retry_after).await,
            }
        }
        self.count("dropped", embedded.len());
    }

    fn count(&self, outcome: &str, count: usize) {
        self.inbox.texts.with_label_values(&[outcome]).inc_by(count as u64);
    }
}

/// Registers the counter of texts.
pub(crate) fn outcomes(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Texts for the embedding model, by outcome; dropped counts traces.";
    registry.counters("embed_texts_total", help, &["outcome"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tenants::Shares;

    fn refused(options: &EmbedOptions) -> String {
        let redactor = Redactor::new(&[], &[]).unwrap();
        let (_, inbox) = queue(1, Shares::default(), &Registry::new()).unwrap();
        let made = Embedder::new(options, None, redactor, Clock::default(), inbox);
        made.unwrap_err().to_string()
    }

    #[test]
    fn there_is_one_model() {
        let directory = EmbedOptions { directory: "model".into(), ..EmbedOptions::default() };
        let url = "https://localhost/v1".to_owned();
        assert!(refused(&EmbedOptions { url, ..directory.clone() }).contains("exclude each other"));
        let why = refused(&directory);
        let expected = if cfg!(feature = "minilm") { "modules.json" } else { "feature `minilm`" };
        assert!(why.contains(expected), "{why}");
    }
}
