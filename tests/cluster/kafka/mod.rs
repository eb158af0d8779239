//! The Kafka source against librdkafka's broker in the process.

#![cfg(feature = "kafka")]

mod support;

use std::path::Path;
use std::time::Duration;

use agentgauge::config::Config;
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::kafka::{KafkaEncoding, KafkaOptions, Start};
use agentgauge::store::Durability;
use prost::Message as _;
use rdkafka::ClientConfig;
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Headers;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};

use self::support::{
    Cluster, DEADLINE, Mood, NOW, Recorder, Running, Sender, answers, cluster, daemon, eventually,
    get, logs, options, trace,
};

const TOPICS: [&str; 2] = ["otlp_spans", "otlp_logs"];
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

/// As much of the time as a shutdown may take at most.
const STOP: Duration = Duration::from_secs(20);

/// Every codec, keyed and not, to a daemon; traces in one encoding and logs in the other.
async fn are_read(traces_encoding: KafkaEncoding, logs_encoding: KafkaEncoding) {
    let cluster = cluster(&TOPICS, 2);
    let kafka = KafkaOptions { traces_encoding, logs_encoding, ..options(&cluster) };
    let daemon = daemon(kafka, |_| {}).await;
    for (at, codec) in CODECS.iter().enumerate() {
        let sender = Sender::new(&cluster, codec);
        for (number, key) in [(2 * at, None), (2 * at + 1, Some(&b"key"[..]))] {
            let trace = trace(number as u64, &format!("session-{number}"));
            let (trace, logs) = match traces_encoding {
                KafkaEncoding::OtlpProto => {
                    (trace.encode_to_vec(), serde_json::to_vec(&logs()).unwrap())
                }
                KafkaEncoding::OtlpJson => {
                    (serde_json::to_vec(&trace).unwrap(), logs().encode_to_vec())
                }
            };
            sender.send("otlp_spans", key, Some(&trace));
            sender.send("otlp_logs", key, Some(&logs));
        }
    }
    let encoding = |of: KafkaEncoding| match of {
        KafkaEncoding::OtlpProto => "protobuf",
        KafkaEncoding::OtlpJson => "json",
    };
    let (traces, logs) = (encoding(traces_encoding), encoding(logs_encoding));
    let received = [
        format!(
            "agentgauge_spans_received_total{{encoding=\"{traces}\",transport=\"kafka\"}} 10\n"
        ),
        format!(
            "agentgauge_log_records_received_total{{encoding=\"{logs}\",transport=\"kafka\"}} 30\n"
        ),
        "agentgauge_kafka_records_total{topic=\"otlp_spans\"} 10\n".to_owned(),
        "agentgauge_kafka_records_total{topic=\"otlp_logs\"} 10\n".to_owned(),
        "agentgauge_kafka_consumer_lag_records{partition=\"1\",topic=\"otlp_spans\"} 0\n"
            .to_owned(),
        "agentgauge_kafka_ready 1\n".to_owned(),
    ];
    answers(&daemon, "/metrics", &received.each_ref().map(String::as_str)).await;
    answers(&daemon, "/readyz", &["200 OK"]).await;
    daemon.flush().await;
    let sessions = get(&daemon, "/api/v1/sessions").await;
    for number in 0..2 * CODECS.len() {
        assert!(sessions.contains(&format!("\"session-{number}\"")), "{number}: {sessions}");
    }
    let page = get(&daemon, "/metrics").await;
    let mut skipped =
        page.lines().filter(|line| line.starts_with("agentgauge_kafka_records_skipped_total{"));
    assert!(skipped.all(|line| line.ends_with(" 0")), "{page}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_in_protobuf_and_logs_in_json_are_read_in_every_compression() {
    are_read(KafkaEncoding::OtlpProto, KafkaEncoding::OtlpJson).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_in_json_and_logs_in_protobuf_are_read_in_every_compression() {
    are_read(KafkaEncoding::OtlpJson, KafkaEncoding::OtlpProto).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_skipped_counted_and_sent_on() {
    let cluster = cluster(&["otlp_spans", "otlp_logs", "dead"], 1);
    let kafka = KafkaOptions { dead_letter_topic: "dead".to_owned(), ..options(&cluster) };
    let daemon = daemon(kafka, |config| config.ingest.max_request_bytes = 64 << 10).await;
    let sender = Sender::new(&cluster, "lz4");
    let json = serde_json::to_vec(&trace(9, "json")).unwrap();
    let large = vec![0; 100_000];
    let poison: [Option<&[u8]>; 5] =
        [None, Some(b""), Some(b"\x0a\xff\xff\xff"), Some(&json), Some(&large)];
    for payload in poison {
        sender.send("otlp_spans", Some(b"key"), payload);
    }
    sender.send("otlp_spans", None, Some(&trace(1, "good").encode_to_vec()));
    let skipped = |reason: &str, count| {
        let labels = format!("reason=\"{reason}\",topic=\"otlp_spans\"");
        format!("agentgauge_kafka_records_skipped_total{{{labels}}} {count}\n")
    };
    let wanted = [
        skipped("malformed", 4),
        skipped("too_large", 1),
        "agentgauge_kafka_dead_letters_total{outcome=\"delivered\"} 5\n".to_owned(),
        "agentgauge_kafka_records_total{topic=\"otlp_spans\"} 1\n".to_owned(),
        "agentgauge_kafka_consumer_lag_records{partition=\"0\",topic=\"otlp_spans\"} 0\n"
            .to_owned(),
    ];
    answers(&daemon, "/metrics", &wanted.each_ref().map(String::as_str)).await;
    daemon.stop().await;

    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "reader");
    let consumer: BaseConsumer = config.set("auto.offset.reset", "earliest").create().unwrap();
    consumer.subscribe(&["dead"]).unwrap();
    for (offset, sent) in poison.into_iter().enumerate() {
        let letter = loop {
            if let Some(letter) = consumer.poll(Duration::from_secs(30)) {
                break letter.unwrap();
            }
        };
        assert_eq!(letter.payload().unwrap_or_default(), sent.unwrap_or_default());
        assert_eq!(letter.key(), Some(&b"key"[..]));
        let headers: Vec<_> = letter
            .headers()
            .unwrap()
            .iter()
            .map(|header| (header.key, String::from_utf8_lossy(header.value.unwrap()).into_owned()))
            .collect();
        let reason = if offset == 4 { "too_large" } else { "malformed" };
        let expected = [
            ("agentgauge.reason", reason.to_owned()),
            ("agentgauge.topic", "otlp_spans".to_owned()),
            ("agentgauge.partition", "0".to_owned()),
            ("agentgauge.offset", offset.to_string()),
        ];
        assert_eq!(headers, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_makes_the_daemon_panic_holds_up_none_after_it() {
    let cluster = cluster(&TOPICS, 1);
    let recorder = Recorder::new(Mood::PanicAt("bad"));
    let running = Running::start(&options(&cluster), &recorder);
    let sender = Sender::new(&cluster, "none");
    for name in ["first", "bad", "last"] {
        sender.send("otlp_spans", None, Some(&trace(1, name).encode_to_vec()));
    }
    eventually("two are applied", || recorder.seen().spans.len() == 2).await;
    eventually("nothing is left", || recorder.lag() == Some(0)).await;
    assert_eq!(recorder.seen().skipped["internal"], 1);
    running.stop().await;
}

/// More records than may be in flight, to a sink in this mood that then accepts.
async fn are_paused(mood: Mood) {
    let cluster = cluster(&TOPICS, 2);
    let recorder = Recorder::new(mood);
    let options = KafkaOptions { max_in_flight: 4, ..options(&cluster) };
    let running = Running::start(&options, &recorder);
    let sender = Sender::new(&cluster, "zstd");
    for number in 0..20 {
        let name = format!("{number:02}");
        sender.send("otlp_spans", None, Some(&trace(number, &name).encode_to_vec()));
    }
    eventually("it pauses", || recorder.seen().paused).await;
    eventually("the lag is told while it pauses", || recorder.lag() == Some(20)).await;
    assert_eq!(running.status.ready(), Ok(()));
    assert!(recorder.seen().spans.is_empty());
    recorder.becomes(Mood::Accept);
    eventually("all are applied", || recorder.seen().spans.len() >= 20).await;
    eventually("nothing is left", || recorder.lag() == Some(0)).await;
    assert!(!recorder.seen().paused);
    let expected: Vec<String> = (0..20).map(|number| format!("{number:02}")).collect();
    assert_eq!(recorder.sorted(), expected);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_pauses_while_the_stages_have_no_room() {
    are_paused(Mood::Refuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_pauses_while_too_many_records_are_in_flight() {
    are_paused(Mood::Hold).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_applied_is_committed() {
    let cluster = cluster(&TOPICS, 1);
    let sender = Sender::new(&cluster, "none");
    let recorder = Recorder::new(Mood::Accept);
    let running = Running::start(&options(&cluster), &recorder);
    for number in 0..3 {
        sender.send("otlp_spans", None, Some(&trace(number, "applied").encode_to_vec()));
    }
    eventually("three are applied", || recorder.lag() == Some(0)).await;
    for mood in [Mood::Refuse, Mood::Hold] {
        recorder.becomes(mood);
        sender.send("otlp_spans", None, Some(&trace(9, "not").encode_to_vec()));
    }
    eventually("two wait", || recorder.lag() == Some(2)).await;
    running.stop().await;
    assert_eq!(recorder.sorted(), ["applied"; 3]);

    assert_eq!(committed(&cluster, 0), Offset::Offset(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_record_mends_its_spans_and_the_time_of_reading_drives_timers() {
    let cluster = cluster(&TOPICS, 1);
    let recorder = Recorder::new(Mood::Accept);
    let running = Running::start(&options(&cluster), &recorder);
    let sender = Sender::new(&cluster, "none");
    sender.send("otlp_spans", None, Some(&trace(1, "old").encode_to_vec()));
    eventually("it is applied", || !recorder.seen().spans.is_empty()).await;
    // It is read decades after it was sent: held against the time of reading, its start would be too old.
    let (arrival, start) = recorder.seen().times[0];
    assert_eq!(arrival, Timestamp(NOW));
    assert!(start < Timestamp(NOW / 2), "{start:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_can_begin_at_the_end() {
    let cluster = cluster(&TOPICS, 1);
    let sender = Sender::new(&cluster, "none");
    sender.send("otlp_spans", None, Some(&trace(1, "before").encode_to_vec()));
    let recorder = Recorder::new(Mood::Accept);
    let options = KafkaOptions { start: Start::Latest, ..options(&cluster) };
    let running = Running::start(&options, &recorder);
    eventually("it is in its group", || running.status.ready().is_ok()).await;
    let name = |number: u64| format!("after-{number}");
    // Records that are sent before the position in the topic is known are not read, so sending continues.
    let told = tokio::time::timeout(DEADLINE, async {
        for number in 0.. {
            if !recorder.seen().spans.is_empty() {
                return;
            }
            sender.send("otlp_spans", None, Some(&trace(number, &name(number)).encode_to_vec()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(told.await.is_ok(), "nothing is read");
    assert!(recorder.seen().spans.iter().all(|name| name != "before"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_named_until_it_is_there() {
    let cluster = cluster(&["otlp_spans"], 1);
    let daemon = daemon(options(&cluster), |_| {}).await;
    let wanted = ["503 Service Unavailable", "otlp_logs", "kafka.logs_topics"];
    answers(&daemon, "/readyz", &wanted).await;
    // The other topic is read meanwhile.
    let read = "agentgauge_kafka_consumer_lag_records{partition=\"0\",topic=\"otlp_spans\"} 0\n";
    answers(&daemon, "/metrics", &[read, "agentgauge_kafka_ready 0\n"]).await;
    cluster.create_topic("otlp_logs", 1, 1).unwrap();
    answers(&daemon, "/readyz", &["200 OK"]).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_reached_is_named() {
    let options = KafkaOptions {
        brokers: vec!["127.0.0.1:1".to_owned()],
        probe_interval: Duration::from_millis(200),
        ..KafkaOptions::default()
    };
    let daemon = daemon(options, |_| {}).await;
    let wanted = ["503 Service Unavailable", "127.0.0.1:1", "kafka.brokers"];
    answers(&daemon, "/readyz", &wanted).await;
    answers(&daemon, "/metrics", &["agentgauge_kafka_ready 0\n"]).await;
    assert!(tokio::time::timeout(STOP, daemon.stop()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_passes() {
    let cluster = cluster(&TOPICS, 1);
    let recorder = Recorder::new(Mood::Accept);
    let running = Running::start(&options(&cluster), &recorder);
    eventually("it is ready", || running.status.ready().is_ok()).await;
    cluster.broker_down(1).unwrap();
    eventually("it is not", || running.status.ready().is_err()).await;
    cluster.broker_up(1).unwrap();
    eventually("it is again", || running.status.ready().is_ok()).await;
    let sender = Sender::new(&cluster, "none");
    sender.send("otlp_spans", None, Some(&trace(1, "after").encode_to_vec()));
    eventually("it reads on", || recorder.sorted() == ["after"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_down_in_time_without_its_broker() {
    let cluster = cluster(&TOPICS, 1);
    let daemon = daemon(options(&cluster), |_| {}).await;
    Sender::new(&cluster, "none").send("otlp_spans", None, Some(&trace(1, "one").encode_to_vec()));
    let read = "agentgauge_kafka_records_total{topic=\"otlp_spans\"} 1\n";
    answers(&daemon, "/metrics", &[read]).await;
    cluster.broker_down(1).unwrap();
    assert!(tokio::time::timeout(STOP, daemon.stop()).await.is_ok());
}

/// Offsets are committed, so applied records are not read again: they are in the log before.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_is_in_the_log() {
    let cluster = cluster(&TOPICS, 1);
    let (store, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let durable = |config: &mut Config, directory: &Path| {
        config.store.durability = Durability::Fsync;
        config.store.directory = directory.to_string_lossy().into_owned();
        config.assemble.trace_idle = Duration::from_millis(100);
    };
    let tenants = [("otlp_spans".to_owned(), "shop".into())].into();
    let owned = KafkaOptions { tenants, ..options(&cluster) };
    let first = daemon(owned, |config| durable(config, store.path())).await;
    let sender = Sender::new(&cluster, "zstd");
    for number in 0..5 {
        let trace = trace(number, &format!("session-{number}"));
        sender.send("otlp_spans", None, Some(&trace.encode_to_vec()));
    }
    let read = ["agentgauge_kafka_records_total{topic=\"otlp_spans\"} 5\n"];
    answers(&first, "/metrics", &read).await;
    // As a kill would leave it: without a snapshot.
    let held = std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
    for path in held.filter(|path| path.is_file()) {
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let second = daemon(KafkaOptions::default(), |config| durable(config, copy.path())).await;
    let recovered = ["agentgauge_store_recovered{what=\"records\"} 5\n"];
    answers(&second, "/metrics", &recovered).await;
    for number in 0..5 {
        let path = format!("/api/v1/sessions/session-{number}?tenant=shop");
        let owned = ["\"traces_evaluated\":1", "\"tenant\":\"shop\""];
        answers(&first, &path, &owned).await;
        answers(&second, &path, &owned).await;
        let body = |text: String| text.split_once("\r\n\r\n").unwrap().1.to_owned();
        assert_eq!(body(get(&first, &path).await), body(get(&second, &path).await));
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_for_dead_letters_is_named_before_one_is_lost() {
    let cluster = cluster(&TOPICS, 1);
    let kafka = KafkaOptions { dead_letter_topic: "dead".to_owned(), ..options(&cluster) };
    let daemon = daemon(kafka, |_| {}).await;
    answers(&daemon, "/readyz", &["503", "`dead`", "`kafka.dead_letter_topic`"]).await;
    cluster.create_topic("dead", 1, 1).unwrap();
    answers(&daemon, "/readyz", &["200"]).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_not_taken_for_a_while_is_held_until_it_is() {
    let cluster = cluster(&["otlp_spans", "otlp_logs", "dead"], 1);
    let sender = Sender::new(&cluster, "none");
    sender.send("otlp_spans", None, Some(b"\x0a\xff\xff\xff"));
    sender.send("otlp_spans", None, Some(&trace(1, "good").encode_to_vec()));
    let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::Produce, &[forbidden; 8]);
    let kafka = KafkaOptions { dead_letter_topic: "dead".to_owned(), ..options(&cluster) };
    let daemon = daemon(kafka, |_| {}).await;
    answers(&daemon, "/readyz", &["503", "`kafka.dead_letter_topic`", "authorization"]).await;
    // Meanwhile the group does not go past it, and what follows it is read.
    let applied = "agentgauge_kafka_records_total{topic=\"otlp_spans\"} 1\n";
    let lag = "agentgauge_kafka_consumer_lag_records{partition=\"0\",topic=\"otlp_spans\"}";
    let letters = "agentgauge_kafka_dead_letters_total{outcome=";
    answers(&daemon, "/metrics", &[applied, &format!("{lag} 2\n")]).await;
    let wanted = [
        format!("{lag} 0\n"),
        format!("{letters}\"delivered\"}} 1\n"),
        format!("{letters}\"failed\"}} 0\n"),
        "agentgauge_kafka_records_skipped_total{reason=\"malformed\",topic=\"otlp_spans\"} 1\n"
            .to_owned(),
    ];
    answers(&daemon, "/metrics", &wanted.each_ref().map(String::as_str)).await;
    answers(&daemon, "/readyz", &["200"]).await;
    daemon.stop().await;
}

/// The offset that the group has committed in a partition of `otlp_spans`.
fn committed(cluster: &Cluster, partition: i32) -> Offset {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "agentgauge");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition("otlp_spans", partition);
    let committed = consumer.committed_offsets(partitions, Duration::from_secs(30)).unwrap();
    committed.find_partition("otlp_spans", partition).unwrap().offset()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_began_at_the_end_reads_what_comes_while_nobody_reads() {
    let cluster = cluster(&TOPICS, 2);
    let sender = Sender::new(&cluster, "none");
    sender.send("otlp_spans", None, Some(&trace(1, "before").encode_to_vec()));
    let options = KafkaOptions { start: Start::Latest, ..options(&cluster) };
    let first = Running::start(&options, &Recorder::new(Mood::Accept));
    eventually("it is in its group", || first.status.ready().is_ok()).await;
    // No record has arrived, and the beginning is known all the same.
    let known = || [0, 1].iter().all(|of| committed(&cluster, *of) != Offset::Invalid);
    eventually("the group has its offsets", known).await;
    first.stop().await;
    let names: Vec<String> = (0..6).map(|number| format!("while-{number}")).collect();
    for (number, name) in (1..).zip(&names) {
        sender.send("otlp_spans", None, Some(&trace(number, name).encode_to_vec()));
    }
    let recorder = Recorder::new(Mood::Accept);
    let second = Running::start(&options, &recorder);
    eventually("all is read", || recorder.sorted() == names).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_reads_a_new_partition_from_its_first_record() {
    let cluster = cluster(&TOPICS, 2);
    // The group has read one partition, and does not know of the other.
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "agentgauge");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut known = TopicPartitionList::new();
    known.add_partition_offset("otlp_spans", 0, Offset::Offset(0)).unwrap();
    consumer.commit(&known, CommitMode::Sync).unwrap();
    drop(consumer);
    let sender = Sender::new(&cluster, "none");
    let names: Vec<String> = (0..8).map(|number| format!("{number}")).collect();
    for (number, name) in (1..).zip(&names) {
        sender.send(
            "otlp_spans",
            Some(name.as_bytes()),
            Some(&trace(number, name).encode_to_vec()),
        );
    }
    let recorder = Recorder::new(Mood::Accept);
    let options = KafkaOptions { start: Start::Latest, ..options(&cluster) };
    let running = Running::start(&options, &recorder);
    eventually("all is read", || recorder.sorted() == names).await;
    running.stop().await;
}
