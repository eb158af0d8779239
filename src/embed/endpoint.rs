//! An embedding model at an endpoint: texts are redacted and sent in batches, with several attempts.

use super::source::Lost;
use super::{EmbedError, EmbedOptions, Vector, wire};
use crate::clock::Clock;
use crate::outbound::breaker::Breaker;
use crate::outbound::redact::Redactor;
use crate::outbound::{CallError, Client, ClientOptions, backoff, check, check_keyless};
use crate::secret::Secret;

/// The client of an embedding endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    options: EmbedOptions,
    key: Option<Secret>,
    url: String,
    client: Client,
    redactor: Redactor,
    clock: Clock,
    breaker: Breaker,
}

impl Endpoint {
    pub(super) fn new(
        options: &EmbedOptions,
        key: Option<Secret>,
        redactor: Redactor,
        clock: Clock,
    ) -> Result<Self, EmbedError> {
        let url = check("embed.url", "embed.allow_http", &options.url, options.allow_http)?;
        check_keyless("embed.url", &url)?;
        if options.model.is_empty() {
            return Err(EmbedError::NoModel);
        }
        let limits = ClientOptions {
            allow_http: options.allow_http,
            max_reply_bytes: options.max_reply_bytes,
            timeout: options.timeout,
        };
        Ok(Self {
            options: options.clone(),
            key,
            url: wire::address(&options.url),
            client: Client::new("embed.url", limits)?,
            redactor,
            clock,
            breaker: Breaker::new(options.max_failures, options.pause),
        })
    }

    pub(super) fn model(&self) -> &str {
        &self.options.model
    }

    /// The vectors of texts, in their order.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint does not return them.
    pub(super) async fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vector>, Lost> {
        let texts: Vec<String> = texts.iter().map(|text| self.redactor.text(text)).collect();
        let body = wire::request(&self.options.model, &texts);
        let headers = wire::headers(&self.url, self.key.as_ref());
        for attempt in 0..self.options.max_attempts {
            if !self.breaker.admits(self.clock.now()) {
                return Err(Lost::Now);
            }
            let posted =
                self.client.post(&self.url, &headers, "application/json", body.clone()).await;
            let vectors = posted.map(|reply| wire::vectors(&reply, texts.len()));
            // If several texts are refused, one of them may be to blame, and the endpoint is up; with a single text it counts as
            // failing.
            let together = texts.len() > 1 && is_refused(&vectors);
            self.breaker.record(together || matches!(vectors, Ok(Some(_))), self.clock.now());
            let asked = match vectors {
                Ok(Some(vectors)) => return Ok(vectors),
                Ok(None) => return Err(Lost::Batch),
                Err(_) if together => return Err(Lost::Batch),
                Err(error) if !error.is_passing() => return Err(Lost::Now),
                Err(error) => error.asked_wait().unwrap_or_default(),
            };
            let wait = backoff(self.options.backoff, attempt).max(asked);
            tokio::time::sleep(wait.min(self.options.pause)).await;
        }
        Err(Lost::Now)
    }
}

/// Whether the endpoint rejects the texts: by its status, or by a reply that is too large or has no valid vectors.
fn is_refused(vectors: &Result<Option<Vec<Vector>>, CallError>) -> bool {
    match vectors {
        Ok(vectors) => vectors.is_none(),
        Err(CallError::Status { code, .. }) => matches!(code, 400 | 413 | 422),
        Err(error) => *error == CallError::TooLarge,
    }
}
