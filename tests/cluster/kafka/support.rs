//! A broker in the process, a producer, and a source with a sink that can misbehave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::clock::Clock;
use agentgauge::config::Config;
use agentgauge::daemon::Daemon;
use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::time::Moment;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::kafka::{KafkaOptions, Source, SourceMetrics, Status};
use agentgauge::ingest::{Batch, LeftOut, Observe, Overloaded, Receiver, RequestCounts, Sink};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long anything is waited for.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) type Cluster = MockCluster<'static, DefaultProducerContext>;

/// A broker with these topics, each with this many partitions.
pub(crate) fn cluster(topics: &[&str], partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    for topic in topics {
        cluster.create_topic(topic, partitions, 1).unwrap();
    }
    cluster
}

pub(crate) fn options(cluster: &Cluster) -> KafkaOptions {
    KafkaOptions {
        brokers: vec![cluster.bootstrap_servers()],
        probe_interval: Duration::from_millis(200),
        ..KafkaOptions::default()
    }
}

/// Sends records and waits until the broker has them.
pub(crate) struct Sender(BaseProducer);

impl Sender {
    pub(crate) fn new(cluster: &Cluster, codec: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        config.set("compression.codec", codec).set("message.max.bytes", "20000000");
        Self(config.create().unwrap())
    }

    pub(crate) fn send(&self, topic: &str, key: Option<&[u8]>, payload: Option<&[u8]>) {
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic);
        if let Some(key) = key {
            record = record.key(key);
        }
        if let Some(payload) = payload {
            record = record.payload(payload);
        }
        self.0.send(record).map_err(|(error, _)| error).unwrap();
        self.0.flush(DEADLINE).unwrap();
    }
}

/// A daemon with this Kafka source.
pub(crate) async fn daemon(kafka: KafkaOptions, change: impl FnOnce(&mut Config)) -> Daemon {
    let mut config = Config { kafka, ..Config::default() };
    for address in
        [&mut config.listen.otlp_grpc, &mut config.listen.otlp_http, &mut config.listen.http]
    {
        "127.0.0.1:0".clone_into(address);
    }
    change(&mut config);
    Daemon::start(&config).await.unwrap()
}

/// The answer of a daemon, head and body.
pub(crate) async fn get(daemon: &Daemon, path: &str) -> String {
    let mut stream = TcpStream::connect(daemon.bound().http).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Asks a daemon until it answers with all of these.
pub(crate) async fn answers(daemon: &Daemon, path: &str, wanted: &[&str]) {
    let mut last = String::new();
    let asked = tokio::time::timeout(DEADLINE, async {
        loop {
            last = get(daemon, path).await;
            if wanted.iter().all(|wanted| last.contains(wanted)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let answered = asked.await.is_ok();
    let missing: Vec<_> = wanted.iter().filter(|wanted| !last.contains(**wanted)).collect();
    assert!(answered, "waited in vain for {missing:?} at {path}:\n{last}");
}

/// Polls until it holds.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let polled = tokio::time::timeout(DEADLINE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(polled.await.is_ok(), "{what}");
}

/// The behaviour of a sink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mood {
    Accept,
    Refuse,
    /// Takes a batch and answers when the mood changes.
    Hold,
    /// Panics on a span of this name.
    PanicAt(&'static str),
}

/// A sink and a watch that remember.
#[derive(Clone)]
pub(crate) struct Recorder {
    mood: watch::Sender<Mood>,
    seen: Arc<Mutex<Recorded>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    /// Names of spans that were applied, in order.
    pub(crate) spans: Vec<String>,
    /// Arrivals of batches, and start times of their first spans.
    pub(crate) times: Vec<(Timestamp, Timestamp)>,
    pub(crate) skipped: BTreeMap<&'static str, u64>,
    pub(crate) paused: bool,
    pub(crate) pauses: u64,
    pub(crate) lags: BTreeMap<(String, i32), i64>,
}

impl Recorder {
    pub(crate) fn new(mood: Mood) -> Self {
        Self { mood: watch::Sender::new(mood), seen: Arc::default() }
    }

    pub(crate) fn becomes(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    pub(crate) fn seen(&self) -> Recorded {
        self.seen.lock().unwrap().clone()
    }

    /// The names of the spans that were applied, in order of their names.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut spans = self.seen().spans;
        spans.sort();
        spans
    }

    pub(crate) fn lag(&self) -> Option<i64> {
        let lags = self.seen().lags;
        (!lags.is_empty()).then(|| lags.values().sum())
    }
}

impl Sink for Recorder {
    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        let mut mood = self.mood.subscribe();
        let now = *mood.wait_for(|mood| *mood != Mood::Hold).await.unwrap();
        if now == Mood::Refuse {
            return Err(Overloaded::after(Duration::from_secs(1)));
        }
        if let Mood::PanicAt(name) = now {
            assert!(batch.spans.iter().all(|span| &*span.name != name), "told to");
        }
        let mut seen = self.seen.lock().unwrap();
        seen.times.extend(batch.spans.first().map(|span| (batch.arrival, span.start)));
        seen.spans.extend(batch.spans.iter().map(|span| span.name.to_string()));
        Ok(LeftOut::default())
    }
}

impl Observe for Recorder {
    fn received(&self, transport: &'static str, _: &'static str, _: &RequestCounts) {
        assert_eq!(transport, "kafka");
    }

    fn refused(&self, _: &'static str) {}

    fn waited(&self, _: &'static str) {}
}

impl SourceMetrics for Recorder {
    fn applied(&self, _: &str) {}

    fn skipped(&self, _: &str, reason: &'static str) {
        *self.seen.lock().unwrap().skipped.entry(reason).or_default() += 1;
    }

    fn gone(&self, _: &str, _: u64) {}

    fn dead_letter(&self, _: bool) {}

    fn paused(&self, paused: bool) {
        let mut seen = self.seen.lock().unwrap();
        seen.paused = paused;
        seen.pauses += u64::from(paused);
    }

    fn ready(&self, _: bool) {}

    fn lags(&self, lags: &BTreeMap<(String, i32), i64>) {
        self.seen.lock().unwrap().lags.clone_from(lags);
    }
}

/// A source that runs.
pub(crate) struct Running {
    pub(crate) status: Arc<Status>,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(options: &KafkaOptions, recorder: &Recorder) -> Self {
        let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
        let receiver = Receiver::new(
            decoder,
            recorder.clone(),
            Arc::new(recorder.clone()),
            Arc::new(|| Moment { now: Timestamp(NOW), wall: Timestamp(NOW) }),
            Duration::from_secs(10),
        );
        let (stop, stopping) = watch::channel(false);
        let stages = tokio::runtime::Handle::current();
        let source =
            Source::new(options, receiver, Arc::new(recorder.clone()), stages, stopping).unwrap();
        let status = source.status().clone();
        Self { status, stop, thread: tokio::task::spawn_blocking(move || source.run()) }
    }

    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        self.thread.await.unwrap();
    }
}

/// After all records of these tests were sent.
pub(crate) const NOW: u64 = 4_000_000_000_000_000_000;

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// A trace in its own session, with enough text to be worth compressing.
pub(crate) fn trace(number: u64, session: &str) -> ExportTraceServiceRequest {
    let now = Clock::system().now().0;
    let span = Span {
        trace_id: u128::from(number + 1).to_be_bytes().to_vec(),
        span_id: 7_u64.to_be_bytes().to_vec(),
        name: session.to_owned(),
        start_time_unix_nano: now,
        end_time_unix_nano: now,
        attributes: vec![
            attribute("gen_ai.operation.name", "invoke_agent"),
            attribute("session.id", session),
            attribute("filler", &"again and ".repeat(500)),
        ],
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }
}

/// Three log records.
pub(crate) fn logs() -> ExportLogsServiceRequest {
    let record = LogRecord {
        time_unix_nano: Clock::system().now().0,
        event_name: "gen_ai.evaluation.result".to_owned(),
        attributes: vec![attribute("filler", &"again and ".repeat(500))],
        ..LogRecord::default()
    };
    let scope_logs = vec![ScopeLogs { log_records: vec![record; 3], ..ScopeLogs::default() }];
    let resource_logs = vec![ResourceLogs { scope_logs, ..ResourceLogs::default() }];
    ExportLogsServiceRequest { resource_logs }
}
