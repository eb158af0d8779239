//! The thread of the Kafka source, and its metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Check, StartError, stopped};
use crate::health::Health;
use crate::ingest::kafka::{KafkaOptions, Source, SourceMetrics};
use crate::ingest::{Receiver, Sink};
use crate::registry::{Registry, metrics};

/// The name of the source, for a report of its panic.
const NAME: &str = "the Kafka source";

/// How long the source may take to end: it waits for the records in flight, then for the brokers to accept its offsets.
const GRACE: Duration = Duration::from_secs(10);

metrics! {
    /// The families of metrics of the source.
    struct Families {
        applied: IntCounterVec = counters("kafka_records_total", "Records applied.", &["topic"]),
        skipped: IntCounterVec = counters("kafka_records_skipped_total",
            "Records that cannot be read, by reason.", &["topic", "reason"]),
        gone: IntCounterVec = counters("kafka_records_lost_total",
            "Records that the brokers deleted before they were read.", &["topic"]),
        dead_letters: IntCounterVec = counters("kafka_dead_letters_total",
            "Records sent to the dead-letter topic, by outcome.", &["outcome"]),
        lag: IntGaugeVec = gauges("kafka_consumer_lag_records",
            "Records of an assigned partition that are not yet applied.", &["topic", "partition"]),
        ready: IntGauge = gauge("kafka_ready", "Whether the source is in its group and no problem is known."),
        paused: IntGauge = gauge("kafka_paused", "Whether the source is paused for want of room."),
        pauses: IntCounter = counter("kafka_pauses_total", "Times that the source paused for want of room."),
    }
}

/// The metrics of the source.
pub(super) struct Gauges {
    families: Families,
    /// The partitions whose lag is exported.
    known: Mutex<Vec<(String, i32)>>,
}

/// Starts the source, if there are brokers; returns the task that waits for its end, and its readiness check.
pub(super) fn start<S: Sink>(
    options: &KafkaOptions,
    receiver: Receiver<S>,
    health: &Health,
    stopping: watch::Receiver<bool>,
) -> Result<Option<(JoinHandle<()>, Check)>, StartError> {
    if !options.enabled() {
        return Ok(None);
    }
    let gauges = Gauges::new(health.registry())?;
    gauges.begin(options.traces_topics.iter().chain(&options.logs_topics));
    let gauges = Arc::new(gauges);
    let source = Source::new(options, receiver, gauges, Handle::current(), stopping.clone())?;
    let status = source.status().clone();
    let (running, ended) = oneshot::channel();
    // In its own thread: the runtime would wait for one of its threads for ever.
    let name = thread::Builder::new().name("kafka".to_owned());
    let alarm = health.vital.alarm(NAME);
    name.spawn(move || {
        let _alarm = alarm;
        let _running: oneshot::Sender<()> = running;
        source.run();
    })
    .map_err(StartError::Thread)?;
    let end = health.vital.spawn(NAME, end(ended, stopping));
    Ok(Some((end, Arc::new(move || status.ready()))))
}

/// Waits until the daemon stops, and then for the thread.
async fn end(ended: oneshot::Receiver<()>, stopping: watch::Receiver<bool>) {
    stopped(stopping).await;
    // The thread sends nothing: `ended` returns when its half is dropped.
    if timeout(GRACE, ended).await.is_err() {
        tracing::warn!(
            "the Kafka brokers did not accept the last offsets; records will be read again"
        );
    }
}

impl Gauges {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self { families: Families::new(registry)?, known: Mutex::default() })
    }

    /// Exports counters of these topics from zero on, as an alert sees no rise in a series that did not exist.
    fn begin<'t>(&self, topics: impl Iterator<Item = &'t String>) {
        for topic in topics {
            self.families.applied.with_label_values(&[topic]);
            self.families.gone.with_label_values(&[topic]);
            for reason in ["malformed", "too_large", "internal"] {
                self.families.skipped.with_label_values(&[topic, reason]);
            }
        }
        for outcome in ["delivered", "failed"] {
            self.families.dead_letters.with_label_values(&[outcome]);
        }
    }
}

impl SourceMetrics for Gauges {
    fn applied(&self, topic: &str) {
        self.families.applied.with_label_values(&[topic]).inc();
    }

    fn skipped(&self, topic: &str, reason: &'static str) {
        self.families.skipped.with_label_values(&[topic, reason]).inc();
    }

    fn gone(&self, topic: &str, records: u64) {
        self.families.gone.with_label_values(&[topic]).inc_by(records);
    }

    fn dead_letter(&self, delivered: bool) {
        let outcome = if delivered { "delivered" } else { "failed" };
        self.families.dead_letters.with_label_values(&[outcome]).inc();
    }

    fn paused(&self, paused: bool) {
        self.families.paused.set(i64::from(paused));
        self.families.pauses.inc_by(u64::from(paused));
    }

    fn ready(&self, ready: bool) {
        self.families.ready.set(i64::from(ready));
    }

    fn lags(&self, lags: &BTreeMap<(String, i32), i64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for key in known.iter().filter(|key| !lags.contains_key(key)) {
            // An error means that the partition was not exported.
            let _ = self.families.lag.remove_label_values(&[&key.0, &key.1.to_string()]);
        }
        for ((topic, partition), lag) in lags {
            self.families.lag.with_label_values(&[topic, &partition.to_string()]).set(*lag);
        }
        *known = lags.keys().cloned().collect();
    }
}
