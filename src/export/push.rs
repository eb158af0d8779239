//! Sends requests to another OTLP endpoint over HTTP, with gzip if configured. A request whose failure may pass is sent again, with
//! growing waits, up to a number of attempts.

use std::sync::LazyLock;
use std::time::Duration;

use libdeflater::{CompressionLvl, Compressor};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prometheus::IntCounterVec;
use prost::Message;

use super::otlp::ScoresOutOptions;
use crate::blocking::blocking;
use crate::outbound::{CallError, Client, ClientOptions, EndpointError, backoff, check};
use crate::secret::Secret;

/// Sends requests of one signal.
#[derive(Debug)]
pub(super) struct Push {
    client: Client,
    url: String,
    headers: Vec<(&'static str, String)>,
    gzip: bool,
    max_attempts: u32,
    backoff: Duration,
    outcomes: IntCounterVec,
}

/// A signal, by the path of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    Logs,
    Metrics,
}

/// The most bytes of a reply, as replies are short.
const MAX_REPLY_BYTES: usize = 65_536;

/// The longest wait that an endpoint may ask for, so that one reply does not stop the sender for days.
const MAX_ASKED_WAIT: Duration = Duration::from_secs(300);

impl Push {
    /// Sets up the requests of a signal; `outcomes` counts the outcomes of its items.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be used.
    pub(super) fn new(
        options: &ScoresOutOptions,
        key: Option<&Secret>,
        signal: Signal,
        outcomes: IntCounterVec,
    ) -> Result<Self, EndpointError> {
        let allowed = options.allow_http;
        check("scores_out.url", "scores_out.allow_http", &options.url, allowed)?;
        let limits = ClientOptions {
            allow_http: allowed,
            max_reply_bytes: MAX_REPLY_BYTES,
            timeout: options.timeout,
        };
        // From zero on, so that the first failure shows as a rise.
        for outcome in ["dropped", "rejected"] {
            outcomes.with_label_values(&[outcome]);
        }
        let gzip = options.gzip.then(|| ("content-encoding", "gzip".to_owned()));
        let key = key.map(|key| ("authorization", key.reveal().to_owned()));
        Ok(Self {
            client: Client::new("scores_out.url", limits)?,
            url: signal.address(&options.url),
            headers: key.into_iter().chain(gzip).collect(),
            gzip: options.gzip,
            max_attempts: options.max_attempts,
            backoff: options.backoff,
            outcomes,
        })
    }

    /// Sends a request with this number of items, and counts their outcome.
    pub(super) async fn send_and_count(&self, body: Vec<u8>, items: u64) {
        let count = |outcome, count| self.outcomes.with_label_values(&[outcome]).inc_by(count);
        match self.send(body).await {
            Ok(reply) => {
                let rejected = rejected(&reply).min(items);
                count("rejected", rejected);
                count("sent", items - rejected);
            }
            Err(error) => {
                let error = error.name();
                tracing::warn!(url = self.url, error, items, "scores or metrics were not sent");
                count("dropped", items);
            }
        }
    }

    /// Sends a request; returns the reply, or the error of the last attempt.
    async fn send(&self, body: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let body = if self.gzip { compressed(body).await? } else { body };
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
            let wait = backoff(self.backoff, attempt - 1);
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

    /// The address of its requests: below that of the endpoint, which may end in the path of one of the signals.
    fn address(self, url: &str) -> String {
        let base = url.trim_end_matches('/');
        let known = [Self::Logs, Self::Metrics].map(Self::path);
        let base = known.iter().find_map(|path| base.strip_suffix(path)).unwrap_or(base);
        format!("{base}{}", self.path())
    }
}

/// The number of items that the endpoint rejected, from its reply, which is the same message for every signal; 0 if it cannot be
/// read.
fn rejected(reply: &[u8]) -> u64 {
    let response = ExportLogsServiceResponse::decode(reply).unwrap_or_default();
    let rejected = response.partial_success.map_or(0, |partial| partial.rejected_log_records);
    u64::try_from(rejected).unwrap_or(0)
}

/// Whether a request may be sent again: after a status that OTLP calls retryable, or another failure that may pass.
fn may_retry(error: CallError) -> bool {
    if let CallError::Status { code, .. } = error {
        matches!(code, 429 | 502 | 503 | 504)
    } else {
        error.is_passing()
    }
}

fn asked_wait(error: CallError) -> Duration {
    error.asked_wait().unwrap_or_default().min(MAX_ASKED_WAIT)
}

/// The lowest level that compresses: the one that libdeflate calls the fastest only stores bytes.
static QUICK: LazyLock<CompressionLvl> =
    LazyLock::new(|| CompressionLvl::new(1).unwrap_or_default());

/// Compresses a body with gzip, quickly rather than well; on a thread that may block, as a round of metrics is large.
async fn compressed(body: Vec<u8>) -> Result<Vec<u8>, CallError> {
    let compress = move || {
        let mut compressor = Compressor::new(*QUICK);
        let mut gzip = vec![0; compressor.gzip_compress_bound(body.len())];
        let length = compressor.gzip_compress(&body, &mut gzip).ok()?;
        gzip.truncate(length);
        Some(gzip)
    };
    // The buffer has room for any result, so this fails only without a thread.
    blocking(compress).await.ok().flatten().ok_or(CallError::BrokenOff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_with_gzip_is_smaller() {
        let body = b"agentgauge_agent_reliability_score".repeat(1_000);
        let gzip = compressed(body.clone()).await.unwrap();
        assert!(gzip.len() < body.len() / 10, "{}", gzip.len());
    }

    #[test]
    fn an_endpoint_is_not_listened_to_for_days() {
        let asks = |seconds: u64| {
            let retry_after = Some(Duration::from_secs(seconds));
            asked_wait(CallError::Status { code: 503, retry_after }).as_secs()
        };
        assert_eq!([asks(0), asks(30), asks(86_400)], [0, 30, 300]);
    }

    #[test]
    fn a_signal_has_its_place_below_the_endpoint() {
        for url in ["https://c:4318", "https://c:4318/", "https://c:4318/v1/logs"] {
            assert_eq!(Signal::Logs.address(url), "https://c:4318/v1/logs");
            assert_eq!(Signal::Metrics.address(url), "https://c:4318/v1/metrics");
        }
        assert_eq!(Signal::Metrics.address("https://c/otlp"), "https://c/otlp/v1/metrics");
    }
}
