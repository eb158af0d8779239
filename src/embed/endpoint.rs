//! An embedding model behind an address: redacted texts, in batches, tried again for a while.

use std::time::Duration;

use super::{EmbedError, EmbedOptions, Vector, wire};
use crate::clock::Clock;
use crate::judge::budget::Breaker;
use crate::judge::redact::Redactor;
use crate::outbound::{CallError, Client, ClientOptions, Secret, check, check_keyless};

/// The endpoint.
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

    /// The vectors of texts, in their order; `None` if they cannot be had.
    pub(super) async fn embed(&mut self, texts: &[&str]) -> Option<Vec<Vector>> {
        let texts: Vec<String> = texts.iter().map(|text| self.redactor.text(text)).collect();
        let body = wire::request(&self.options.model, &texts);
        let headers = wire::headers(&self.url, self.key.as_ref());
        for attempt in 0..self.options.max_attempts {
            if !self.breaker.admits(self.clock.now()) {
                return None;
            }
            let posted =
                self.client.post(&self.url, &headers, "application/json", body.clone()).await;
            self.breaker.record(posted.is_ok(), self.clock.now());
            let asked = match posted {
                Ok(reply) => return wire::vectors(&reply, texts.len()),
                Err(error) if !error.is_passing() => return None,
                Err(CallError::Status { retry_after, .. }) => retry_after.unwrap_or_default(),
                Err(_) => Duration::ZERO,
            };
            let doubled = 2_u32.saturating_pow(attempt.min(16));
            let wait = self.options.backoff.saturating_mul(doubled).max(asked);
            tokio::time::sleep(wait.min(self.options.pause)).await;
        }
        None
    }
}
