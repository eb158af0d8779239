//! Measures the cost from Kafka to gauges, beside a reader that consumes the same records and drops them.
//!
//! All records are at the brokers before any is read; unless brokers are given, they are librdkafka's mock ones, in this process.
//! Reader and daemon set the same options, and each runs on the server's core; each is measured from its start until it has read
//! all records, and the daemon until it has scored them.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use serde::{Deserialize, Serialize};

use crate::measure::Cpu;
use crate::pass::{Material, Pass};
use crate::report::Spread;
use crate::{Bench, BenchError, Case, Sent, Server, compression_name, cores, failed};
use agentgauge::ingest::Compression;
use agentgauge::ingest::kafka::{KafkaOptions, consumer};

/// Bytes of a partition; librdkafka's brokers drop everything beyond five MiB.
const PARTITION_BYTES: u64 = 2 << 20;

/// The most bytes of a record.
const RECORD_BYTES: &str = "16777216";

/// How long brokers may take for a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a poll waits, and how many polls may return nothing.
const POLL: Duration = Duration::from_millis(100);
const MAX_POLLS: u32 = 600;

/// The brokers.
enum Brokers {
    /// librdkafka's brokers in this process.
    Mock(MockCluster<'static, DefaultProducerContext>),
    /// Other brokers, at this address.
    Real(String),
}

/// The line of JSON that a reader prints when it has read everything.
#[derive(Debug, Deserialize, Serialize)]
struct HasRead {
    bytes: u64,
    cpu_nanos: u64,
}

/// The costs of reader and daemon in one repeat, in microseconds a span.
struct Turn {
    reader: f64,
    daemon: f64,
}

impl Bench<'_> {
    /// Measures reader and daemon over the same records; `address` is that of the brokers, or empty for those of this process.
    pub(super) fn kafka(&mut self, case: Case, address: &str) -> Result<(), BenchError> {
        let failed = BenchError::Generator;
        let brokers = Brokers::new(address).map_err(failed)?;
        // Brokers compress batches of records, not requests.
        let mut material = Material::new(&Case { compression: Compression::None, ..case });
        let (mut turns, mut bytes) = (Vec::new(), 0);
        for repeat in 1..=self.plan.repeats {
            let pass = self.passes(&mut material, self.plan.spans)?.measured;
            let topic = format!("agentgauge-bench-{}-{repeat}", std::process::id());
            let partitions = i32::try_from(pass.wire_bytes() / PARTITION_BYTES + 1).unwrap_or(1);
            self.runtime.block_on(brokers.create(&topic, partitions)).map_err(failed)?;
            brokers.fill(&topic, partitions, &pass, case.compression).map_err(failed)?;
            let read = self.read(&brokers, &topic, &pass).map_err(failed)?;
            let micros = |nanos: u64| nanos as f64 / 1e3 / pass.spans() as f64;
            let daemon = micros(self.score(&brokers, &topic, &pass)?);
            let turn = Turn { reader: micros(read.cpu_nanos), daemon };
            let Turn { reader, daemon } = turn;
            let said = format_args!("{reader:.3} us/span read and dropped, {daemon:.3} to gauges");
            self.say(case, repeat, said);
            turns.push(turn);
            bytes = read.bytes / pass.spans();
        }
        let each = |figure: fn(&Turn) -> f64| Spread::of(turns.iter().map(figure));
        let figures = vec![
            ("a span, bytes", Spread::of([bytes as f64].into_iter())),
            ("read and dropped, CPU us/span", each(|turn| turn.reader)),
            ("to gauges, CPU us/span", each(|turn| turn.daemon)),
            ("x read and dropped", each(|turn| turn.daemon / turn.reader)),
        ];
        self.report.add_figures(case, brokers.name(), figures);
        Ok(())
    }

    /// Runs a reader in a separate process; returns what it prints.
    fn read(&self, brokers: &Brokers, topic: &str, pass: &Pass) -> io::Result<HasRead> {
        cores::pin(&self.cores.server)?;
        let reader = Command::new(std::env::current_exe()?)
            .args(["server", "kafka", "--brokers", &brokers.address(), "--topic", topic])
            .args(["--records", &pass.messages.len().to_string()])
            .stdin(Stdio::null())
            .output();
        cores::pin(&self.cores.generator)?;
        let reader = reader?;
        serde_json::from_slice(&reader.stdout).map_err(|_| {
            io::Error::other(format!("the reader: {}", String::from_utf8_lossy(&reader.stderr)))
        })
    }

    /// Runs the daemon; returns the nanoseconds that it was on a core until it had scored everything.
    fn score(&self, brokers: &Brokers, topic: &str, pass: &Pass) -> Result<u64, BenchError> {
        let list = |text: &str| serde_json::json!([text]).to_string();
        let environment = [
            ("AGENTGAUGE__KAFKA__BROKERS", list(&brokers.address())),
            ("AGENTGAUGE__KAFKA__TRACES_TOPICS", list(topic)),
            ("AGENTGAUGE__KAFKA__LOGS_TOPICS", "[]".to_owned()),
            ("AGENTGAUGE__KAFKA__GROUP", format!("{topic}-daemon")),
        ];
        let running = Server::Daemon.start_with(&self.cores, &environment).map_err(failed)?;
        let mut cpu = Cpu::watch(running.id()).map_err(failed)?;
        let sent = Sent { spans: pass.spans(), traces: pass.traces };
        self.settle(&running, &mut cpu, sent)?;
        cpu.nanos().map_err(failed)
    }
}

impl Brokers {
    fn new(address: &str) -> io::Result<Self> {
        if address.is_empty() {
            return MockCluster::new(1).map(Self::Mock).map_err(io::Error::other);
        }
        Ok(Self::Real(address.to_owned()))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Mock(_) => "from librdkafka's own brokers",
            Self::Real(_) => "from Kafka",
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Mock(cluster) => cluster.bootstrap_servers(),
            Self::Real(address) => address.clone(),
        }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address()).set("message.max.bytes", RECORD_BYTES);
        config
    }

    async fn create(&self, topic: &str, partitions: i32) -> io::Result<()> {
        if let Self::Mock(cluster) = self {
            return cluster.create_topic(topic, partitions, 1).map_err(io::Error::other);
        }
        let admin: AdminClient<DefaultClientContext> =
            self.config().create().map_err(io::Error::other)?;
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1))
            .set("max.message.bytes", RECORD_BYTES);
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        let made = admin.create_topics([&topic], &options).await.map_err(io::Error::other)?;
        let refused = made.into_iter().find_map(Result::err);
        refused.map_or(Ok(()), |(topic, why)| Err(io::Error::other(format!("{topic}: {why}"))))
    }

    /// Writes all requests of a pass, to the partitions in turn.
    fn fill(
        &self,
        topic: &str,
        partitions: i32,
        pass: &Pass,
        compression: Compression,
    ) -> io::Result<()> {
        let mut config = self.config();
        config.set("acks", "all").set("compression.codec", compression_name(compression));
        let producer: BaseProducer = config.create().map_err(io::Error::other)?;
        for (message, partition) in pass.messages.iter().zip((0..partitions).cycle()) {
            // A record lacks the flag and the length of gRPC messages.
            let payload = message.get(5..).unwrap_or_default();
            let mut next: BaseRecord<'_, (), [u8]> =
                BaseRecord::to(topic).partition(partition).payload(payload);
            while let Err((error, back)) = producer.send(next) {
                if error.rdkafka_error_code() != Some(rdkafka::types::RDKafkaErrorCode::QueueFull) {
                    return Err(io::Error::other(error));
                }
                producer.poll(Duration::from_millis(10));
                next = back;
            }
        }
        producer.flush(PATIENCE).map_err(io::Error::other)
    }
}

/// Reads this many records of a topic and drops them, then prints the cost in one line of JSON.
///
/// # Errors
///
/// Fails if the records do not come.
pub(crate) fn read_and_drop(
    brokers: &str,
    topic: &str,
    records: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let options = KafkaOptions {
        brokers: vec![brokers.to_owned()],
        group: format!("{topic}-reader"),
        ..KafkaOptions::default()
    };
    let config = consumer(&options).map_err(io::Error::other)?;
    let consumer: BaseConsumer = config.create().map_err(io::Error::other)?;
    consumer.subscribe(&[topic]).map_err(io::Error::other)?;
    let (mut left, mut bytes, mut polls) = (records, 0, 0);
    while left > 0 {
        match consumer.poll(POLL) {
            Some(Ok(record)) => {
                bytes += record.payload_len() as u64;
                (left, polls) = (left - 1, 0);
            }
            // Errors pass; a change of the group ends a poll as well.
            Some(Err(_)) | None if polls < MAX_POLLS => polls += 1,
            Some(Err(_)) | None => {
                let none = format!("{left} of {records} records did not come");
                return Err(io::Error::other(none));
            }
        }
    }
    let read = HasRead { bytes, cpu_nanos: Cpu::watch(std::process::id())?.nanos()? };
    writeln!(out, "{}", serde_json::to_string(&read)?)
}
