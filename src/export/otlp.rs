//! Scores out: sends the judge's scores as `gen_ai.evaluation.result` log records on the judged trace and its root span.
//!
//! `POST {url}/v1/logs`, protobuf, gzip. Records wait in a bounded queue, are sent in batches, and are sent again while the
//! endpoint is down. Records beyond the queue or after the last attempt are counted and dropped. No stage waits for any of this,
//! and records under agentgauge's own scope that return to its ports are not read.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::LazyLock;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus::IntCounterVec;
use prost::Message;
use tokio::sync::mpsc;

use super::push::{Push, Signal};
use crate::engine::convention::{
    OWN_SCOPE, RESULT, ScoreValue, score_attributes, sender_attributes,
};
use crate::engine::judging::Score;
use crate::engine::options::{DAY, HOUR, MILLISECOND, SECOND, human};
use crate::outbound::EndpointError;
use crate::registry::Registry;
use crate::secret::Secret;

crate::engine::options! {
    /// Exported scores; without an address nothing is sent.
    pub struct ScoresOutOptions in "scores_out" {
        /// An OTLP/HTTP endpoint, such as `https://collector:4318`, that receives the judge's scores, as
        /// `gen_ai.evaluation.result` log records; empty: none. Over https it has to show a certificate of an authority that
        /// the system knows, or of one in the file that `SSL_CERT_FILE` names.
        pub url: String = String::new();
        /// Send over plain http too, where the address says so.
        pub allow_http: bool = false;
        /// Environment variable that holds the value of the header authorization; empty: none.
        pub authorization_env: String = "AGENTGAUGE_SCORES_OUT_AUTHORIZATION".to_owned();
        /// File that holds it, instead of the variable; empty: none.
        pub authorization_file: std::path::PathBuf = std::path::PathBuf::new();
        /// Compress what is sent, with gzip.
        pub gzip: bool = true;
        /// Scores that wait; further ones are dropped.
        pub max_queue: usize = 10_000, within 1..=1 << 20;
        /// Scores in one request.
        pub max_batch: usize = 500, within 1..=100_000;
        /// How long a score waits for others to be sent with.
        #[serde(with = "human")]
        pub interval: Duration = SECOND, within MILLISECOND..=HOUR;
        /// How long one request may take.
        #[serde(with = "human")]
        pub timeout: Duration = 10 * SECOND, within MILLISECOND..=HOUR;
        /// Requests for one batch, the first one included.
        pub max_attempts: u32 = 5, within 1..=100;
        /// The wait before a request is made again, doubled each time.
        #[serde(with = "human")]
        pub backoff: Duration = SECOND, within MILLISECOND..=HOUR;
        /// The interval at which the metrics of /metrics are sent there as OTLP metrics, for those who do not scrape; 0s: they
        /// are not sent.
        #[serde(with = "human")]
        pub metrics_interval: Duration = Duration::ZERO, within Duration::ZERO..=DAY;
    }
}

/// Sends scores.
#[derive(Debug)]
pub struct ScoresOut {
    options: ScoresOutOptions,
    push: Push,
    inbox: mpsc::Receiver<Score>,
}

/// Why scores cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum ScoresOutError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The metrics of scores out cannot be set up.
    #[error("cannot set up the metrics of scores out: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The longest time for the last scores when the daemon stops; longer than their producers have.
const GRACE: Duration = Duration::from_secs(6);

impl ScoresOut {
    /// Sets up scores out; scores go into the returned channel.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be used.
    pub fn new(
        options: &ScoresOutOptions,
        key: Option<&Secret>,
        registry: &Registry,
    ) -> Result<(Self, mpsc::Sender<Score>), ScoresOutError> {
        let (sender, inbox) = mpsc::channel(options.max_queue.max(1));
        let push = Push::new(options, key, Signal::Logs, outcomes(registry)?)?;
        Ok((Self { options: options.clone(), push, inbox }, sender))
    }

    /// Sends scores until all senders are dropped. After `stop`, the producers stop, too: scores that wait then have `GRACE` to be
    /// sent, and scores that are unsent after that are lost with the process.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        let mut work = pin!(self.work());
        tokio::select! {
            biased;
            () = &mut work => return,
            () = stop => {}
        }
        let _ = tokio::time::timeout(GRACE, work).await;
    }

    async fn work(&mut self) {
        loop {
            let batch = self.batch().await;
            if batch.is_empty() {
                return;
            }
            self.send(&batch).await;
        }
    }

    /// Waits for the next batch: at most `max_batch` scores, collected until the first has waited long enough. Empty after the
    /// last.
    async fn batch(&mut self) -> Vec<Score> {
        let mut batch = Vec::new();
        batch.extend(self.inbox.recv().await);
        let max = self.options.max_batch;
        let more = async {
            while !batch.is_empty() && batch.len() < max {
                match self.inbox.recv().await {
                    Some(score) => batch.push(score),
                    None => break,
                }
            }
        };
        // When the time is over, the batch is what there is.
        let _ = tokio::time::timeout(self.options.interval, more).await;
        batch
    }

    async fn send(&self, batch: &[Score]) {
        let sent = batch.len() as u64;
        self.push.send_and_count(request(batch).encode_to_vec(), sent).await;
    }
}

/// The id that distinguishes this process from others that send to the same endpoint: a random UUID, new at each start.
static INSTANCE: LazyLock<String> = LazyLock::new(|| {
    let random = |which: u8| u128::from(RandomState::new().hash_one(which));
    // A UUID of version 4 and the usual variant.
    let id = (random(0) << 64 | random(1)) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{id:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
});

/// The scope of agentgauge's records.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: OWN_SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// The resource of this process.
pub(super) fn resource() -> Resource {
    Resource { attributes: attributes(sender_attributes(&INSTANCE)), ..Resource::default() }
}

/// The OTLP request of a batch.
fn request(batch: &[Score]) -> ExportLogsServiceRequest {
    let records = ScopeLogs {
        scope: Some(scope()),
        log_records: batch.iter().map(record).collect(),
        ..ScopeLogs::default()
    };
    let logs = ResourceLogs {
        resource: Some(resource()),
        scope_logs: vec![records],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest { resource_logs: vec![logs] }
}

fn record(score: &Score) -> LogRecord {
    LogRecord {
        time_unix_nano: score.time.0,
        observed_time_unix_nano: score.time.0,
        event_name: RESULT.to_owned(),
        attributes: attributes(score_attributes(score)),
        trace_id: score.trace_id.0.to_vec(),
        span_id: score.span_id.map(|span| span.0.to_vec()).unwrap_or_default(),
        ..LogRecord::default()
    }
}

fn attributes(told: Vec<(&'static str, ScoreValue)>) -> Vec<KeyValue> {
    let attribute = |(key, value): (&str, ScoreValue)| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(match value {
                ScoreValue::Text(text) => Value::StringValue(text),
                ScoreValue::Number(number) => Value::DoubleValue(number),
            }),
        }),
        ..KeyValue::default()
    };
    told.into_iter().map(attribute).collect()
}

/// Registers the counter of scores.
pub(crate) fn outcomes(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Scores sent to another OTLP endpoint, by outcome.";
    registry.counters("scores_out_total", help, &["outcome"])
}
