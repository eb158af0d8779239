//! Translates agentgauge's options to librdkafka's.

use std::io;
use std::path::Path;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::options::{KafkaOptions, SaslMechanism};
use crate::files;

/// Why a Kafka source cannot be set up: only problems that do not pass by themselves.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file that an option names cannot be read.
    #[error("cannot read {path} (`{key}`): {source}")]
    File {
        /// The file.
        path: String,
        /// The option.
        key: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The system cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The client cannot be set up.
    #[error("cannot set up the Kafka client from the options under `kafka`: {0}")]
    Client(#[from] KafkaError),
}

/// The time between commits of stored offsets.
const COMMIT_INTERVAL_MS: &str = "5000";

/// The time within which a topic that was missing, or a partition that was added, is found.
const METADATA_INTERVAL_MS: &str = "10000";

/// The least time after which the group takes the partitions of a consumer that is not polled, in milliseconds.
const POLL_INTERVAL_MS: u128 = 300_000;

/// The longest time that the delivery of a dead letter may take.
const DELIVERY_TIMEOUT_MS: &str = "30000";

/// The largest dead letter that is tried; the broker has its own limit.
const MAX_DEAD_LETTER_BYTES: &str = "100000000";

/// The configuration of a consumer.
pub fn consumer(options: &KafkaOptions) -> Result<ClientConfig, SourceError> {
    let mut config = client(options)?;
    be_silent_for(options.session_timeout, &mut config);
    config
        .set("group.id", &options.group)
        .set("partition.assignment.strategy", "cooperative-sticky")
        // This applies to a group that begins at the end as well: if the brokers no longer have its offset, it reads what they
        // have.
        .set("auto.offset.reset", "earliest")
        // librdkafka commits stored offsets; the source stores those of applied records.
        .set("enable.auto.offset.store", "false")
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", COMMIT_INTERVAL_MS)
        .set("allow.auto.create.topics", "false")
        .set("topic.metadata.refresh.interval.ms", METADATA_INTERVAL_MS)
        .set("queued.max.messages.kbytes", (options.max_queued_bytes >> 10).max(1).to_string())
        .set("check.crcs", "true");
    if !options.group_instance_id.is_empty() {
        config.set("group.instance.id", &options.group_instance_id);
    }
    Ok(config)
}

/// Sets how long a member of a group may be silent.
pub(crate) fn be_silent_for(timeout: Duration, config: &mut ClientConfig) {
    let timeout = timeout.as_millis();
    config
        .set("session.timeout.ms", timeout.to_string())
        .set("max.poll.interval.ms", timeout.max(POLL_INTERVAL_MS).to_string())
        .set("heartbeat.interval.ms", (timeout / 15).clamp(100, 3000).to_string());
}

/// Checks that clients can be made with these options; makes none, so nothing is sent.
///
/// # Errors
///
/// Fails if a file cannot be read, or librdkafka does not accept an option.
pub fn check(options: &KafkaOptions) -> Result<(), SourceError> {
    consumer(options)?.create_native_config()?;
    producer(options)?.create_native_config()?;
    Ok(())
}

/// The configuration of the producer of dead letters.
pub(super) fn producer(options: &KafkaOptions) -> Result<ClientConfig, SourceError> {
    let mut config = client(options)?;
    config
        .set("acks", "all")
        .set("message.timeout.ms", DELIVERY_TIMEOUT_MS)
        .set("message.max.bytes", MAX_DEAD_LETTER_BYTES);
    Ok(config)
}

pub(crate) fn client(options: &KafkaOptions) -> Result<ClientConfig, SourceError> {
    let mut config = ClientConfig::new();
    let mechanism = options.sasl_mechanism;
    config
        .set("bootstrap.servers", options.brokers.join(","))
        .set("client.id", "agentgauge")
        .set("socket.keepalive.enable", "true")
        .set("security.protocol", protocol(options.tls, mechanism));
    for (name, key, path) in [
        ("ssl.ca.location", "kafka.tls_ca_file", &options.tls_ca_file),
        ("ssl.certificate.location", "kafka.tls_certificate_file", &options.tls_certificate_file),
        ("ssl.key.location", "kafka.tls_key_file", &options.tls_key_file),
    ] {
        if !path.is_empty() {
            // librdkafka reads the file later, and would not name the option in an error.
            read(key, path)?;
            config.set(name, path);
        }
    }
    if let Some(name) = mechanism.name() {
        config
            .set("sasl.mechanism", name)
            .set("sasl.username", &options.sasl_username)
            .set("sasl.password", password(options)?);
    }
    Ok(config)
}

fn protocol(tls: bool, mechanism: SaslMechanism) -> &'static str {
    match (tls, mechanism) {
        (false, SaslMechanism::None) => "plaintext",
        (true, SaslMechanism::None) => "ssl",
        (false, _) => "sasl_plaintext",
        (true, _) => "sasl_ssl",
    }
}

fn password(options: &KafkaOptions) -> Result<String, SourceError> {
    if options.sasl_password_file.is_empty() {
        return Ok(options.sasl_password.reveal().to_owned());
    }
    let text = read("kafka.sasl_password_file", &options.sasl_password_file)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn read(key: &'static str, path: &str) -> Result<String, SourceError> {
    files::read_text(Path::new(path)).map_err(|source| SourceError::File {
        path: path.to_owned(),
        key,
        source,
    })
}

/// Why a consumer cannot continue after this error, and what to do.
pub(crate) fn fatal<C: ConsumerContext>(consumer: &BaseConsumer<C>, error: &KafkaError) -> String {
    match consumer.client().fatal_error() {
        Some((RDKafkaErrorCode::FencedInstanceId, _)) => {
            "another instance took its place in the group; give each its own `kafka.group_instance_id`, and restart"
                .to_owned()
        }
        Some((code, reason)) => format!("{reason} ({code}); restart"),
        None => format!("{error}; restart"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_file_may_end_in_a_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "a secret \r\n").unwrap();
        let options = KafkaOptions {
            sasl_password_file: path.to_string_lossy().into_owned(),
            ..KafkaOptions::default()
        };
        assert_eq!(password(&options).unwrap(), "a secret ");
    }

    #[test]
    fn a_file_that_is_not_there_is_named_with_its_option() {
        let options = KafkaOptions {
            sasl_mechanism: SaslMechanism::Plain,
            sasl_password_file: "/nowhere/password".to_owned(),
            ..KafkaOptions::default()
        };
        let error = consumer(&options).unwrap_err().to_string();
        assert!(error.contains("/nowhere/password (`kafka.sasl_password_file`)"), "{error}");
    }

    #[test]
    fn a_consumer_commits_only_what_it_was_told_to_store() {
        let config = consumer(&KafkaOptions::default()).unwrap();
        assert_eq!(config.get("enable.auto.offset.store"), Some("false"));
        assert_eq!(config.get("security.protocol"), Some("plaintext"));
        assert_eq!(config.get("session.timeout.ms"), Some("45000"));
    }
}
