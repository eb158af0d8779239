//! Requests to another OTLP endpoint over HTTP: what fails for now is sent again, with growing waits, up to a number of
//! attempts.

use std::time::Duration;

use super::otlp::ScoresOutOptions;
use crate::outbound::{CallError, Client, ClientOptions, EndpointError, Secret, check};

/// Sends requests of one signal.
#[derive(Debug)]
pub(super) struct Push {
    client: Client,
    url: String,
    headers: Vec<(&'static str, String)>,
    max_attempts: u32,
    backoff: Duration,
}

/// A signal, by the path of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    Logs,
    Metrics,
}

/// Bytes of a reply; it says little.
const MAX_REPLY_BYTES: usize = 65_536;

impl Push {
    /// Sets it up.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be used.
    pub(super) fn new(
        options: &ScoresOutOptions,
        key: Option<&Secret>,
        signal: Signal,
    ) -> Result<Self, EndpointError> {
        let allowed = options.allow_http;
        check("scores_out.url", "scores_out.allow_http", &options.url, allowed)?;
        let limits = ClientOptions {
            allow_http: allowed,
            max_reply_bytes: MAX_REPLY_BYTES,
            timeout: options.timeout,
        };
        let headers = key.map(|key| ("authorization", key.reveal().to_owned()));
        Ok(Self {
            client: Client::new("scores_out.url", limits)?,
            url: signal.address(&options.url),
            headers: headers.into_iter().collect(),
            max_attempts: options.max_attempts,
            backoff: options.backoff,
        })
    }

    /// Sends a request; the reply to it.
    ///
    /// # Errors
    ///
    /// Fails as the last attempt did.
    pub(super) async fn send(&self, body: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let mut attempt = 0;
        loop {
            let posted =
                self.client.post(&self.url, &self.headers, "application/x-protobuf", body.clone());
            let error = match posted.await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            attempt += 1;
            if !may_retry(error) || attempt >= self.max_attempts {
                return Err(error);
            }
            let doubled = 2_u32.saturating_pow((attempt - 1).min(16));
            let wait = self.backoff.saturating_mul(doubled);
            tokio::time::sleep(wait.max(asked_wait(error))).await;
        }
    }
}

impl Signal {
    fn path(self) -> &'static str {
        match self {
            Self::Logs => "/v1/logs",
            Self::Metrics => "/v1/metrics",
        }
    }

    /// Where its requests go: below the endpoint, which may be given with the path of one of the signals.
    fn address(self, url: &str) -> String {
        let base = url.trim_end_matches('/');
        let known = [Self::Logs, Self::Metrics].map(Self::path);
        let base = known.iter().find_map(|path| base.strip_suffix(path)).unwrap_or(base);
        format!("{base}{}", self.path())
    }
}

/// Of statuses those that OTLP calls retryable; of failures those that may pass.
fn may_retry(error: CallError) -> bool {
    match error {
        CallError::Status { code, .. } => matches!(code, 429 | 502 | 503 | 504),
        CallError::Connect
        | CallError::Timeout
        | CallError::BrokenOff
        | CallError::TooLarge
        | CallError::Redirect => error.is_passing(),
    }
}

fn asked_wait(error: CallError) -> Duration {
    match error {
        CallError::Status { retry_after, .. } => retry_after.unwrap_or_default(),
        CallError::Connect
        | CallError::Timeout
        | CallError::BrokenOff
        | CallError::TooLarge
        | CallError::Redirect => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_its_place_below_the_endpoint() {
        for url in ["https://c:4318", "https://c:4318/", "https://c:4318/v1/logs"] {
            assert_eq!(Signal::Logs.address(url), "https://c:4318/v1/logs");
            assert_eq!(Signal::Metrics.address(url), "https://c:4318/v1/metrics");
        }
        assert_eq!(Signal::Metrics.address("https://c/otlp"), "https://c/otlp/v1/metrics");
    }
}
