//! The options of the Kafka source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Encoding;
use crate::engine::options::{HOUR, MILLISECOND, SECOND, human};
use crate::secret::Secret;

crate::engine::options! {
    /// Where records come from and how they are read; without brokers there is no Kafka source.
    pub struct KafkaOptions in "kafka" {
        /// Brokers to start from, as host:port, such as `["broker:9092"]`; none: no Kafka source.
        pub brokers: Vec<String> = Vec::new();
        /// Consumer group.
        pub group: String = "agentgauge".to_owned();
        /// Static member id of this instance within its group; empty: a dynamic member.
        pub group_instance_id: String = String::new();
        /// How long an instance may be silent before the group gives its partitions to others. An instance without a static id
        /// that is killed and restarted waits that long, too.
        #[serde(with = "human")]
        pub session_timeout: Duration = 45 * SECOND, within SECOND..=HOUR / 2;
        /// Topics of traces.
        pub traces_topics: Vec<String> = vec!["otlp_spans".to_owned()];
        /// How records of traces are written: `otlp_proto`, `otlp_json`.
        pub traces_encoding: KafkaEncoding = KafkaEncoding::default();
        /// Topics of logs.
        pub logs_topics: Vec<String> = vec!["otlp_logs".to_owned()];
        /// How records of logs are written: `otlp_proto`, `otlp_json`.
        pub logs_encoding: KafkaEncoding = KafkaEncoding::default();
        /// Where a group without an offset in a topic starts: earliest, latest. A partition that is added later is read from
        /// its first record; so is a partition whose offset the broker no longer has.
        pub start: Start = Start::default();
        /// Topic for records that cannot be read; empty: they are skipped and counted only.
        pub dead_letter_topic: String = String::new();
        /// The tenant of each topic, such as `{ shop_spans = "shop" }`; a topic that is not listed has no tenant.
        pub tenants: BTreeMap<String, Arc<str>> = BTreeMap::new();
        /// Header of a record that names its tenant and overrides that of its topic, if you trust all who write to the topics;
        /// empty: none.
        pub tenant_header: String = String::new();
        /// Most records handed to the stages and not yet applied; at this number the source waits, then pauses.
        pub max_in_flight: usize = 64, within 1..=100_000;
        /// Records fetched ahead, in bytes.
        pub max_queued_bytes: usize = 64 << 20, within 1 << 20..=1 << 30;
        /// How often topics and lag are checked.
        #[serde(with = "human")]
        pub probe_interval: Duration = 5 * SECOND, within 10 * MILLISECOND..=HOUR;
        /// Use TLS; needs a build with the feature kafka-tls.
        pub tls: bool = false;
        /// Certificates of the authorities that brokers are checked against, as a PEM file; empty: the system's.
        pub tls_ca_file: String = String::new();
        /// The client certificate, as a PEM file; empty: none.
        pub tls_certificate_file: String = String::new();
        /// The key of the client certificate, as a PEM file.
        pub tls_key_file: String = String::new();
        /// SASL mechanism: none, plain, `scram_sha256`, `scram_sha512`; the last two need the feature kafka-tls.
        pub sasl_mechanism: SaslMechanism = SaslMechanism::default();
        /// User name.
        pub sasl_username: String = String::new();
        /// The password; better in a file.
        pub sasl_password: Secret = Secret::default();
        /// A file that holds the password; a line break after it is ignored.
        pub sasl_password_file: String = String::new();
    }
}

/// How records are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KafkaEncoding {
    /// OTLP protobuf.
    #[default]
    OtlpProto,
    /// OTLP JSON.
    OtlpJson,
}

/// Where to begin without an offset.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// With the oldest record.
    #[default]
    Earliest,
    /// With records that arrive from now on.
    Latest,
}

/// How agentgauge authenticates to the brokers.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SaslMechanism {
    /// Not at all.
    #[default]
    None,
    /// By name and password in plain text.
    Plain,
    /// By proof of the password, with SHA-256; needs a build with the feature `kafka-tls`.
    ScramSha256,
    /// By proof of the password, with SHA-512; needs a build with the feature `kafka-tls`.
    ScramSha512,
}

impl KafkaOptions {
    /// Whether a Kafka source is configured.
    pub fn enabled(&self) -> bool {
        !self.brokers.is_empty()
    }
}

impl KafkaEncoding {
    /// Its name in the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::OtlpProto => "otlp_proto",
            Self::OtlpJson => "otlp_json",
        }
    }
}

impl From<KafkaEncoding> for Encoding {
    fn from(encoding: KafkaEncoding) -> Self {
        match encoding {
            KafkaEncoding::OtlpProto => Self::Protobuf,
            KafkaEncoding::OtlpJson => Self::Json,
        }
    }
}

impl SaslMechanism {
    /// The brokers' name of the mechanism; `None` without one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Plain => Some("PLAIN"),
            Self::ScramSha256 => Some("SCRAM-SHA-256"),
            Self::ScramSha512 => Some("SCRAM-SHA-512"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let options = KafkaOptions { sasl_password: "hunter2".into(), ..KafkaOptions::default() };
        assert!(!format!("{options:?}").contains("hunter2"));
        assert!(!serde_json::to_string(&options).unwrap().contains("hunter2"));
        assert_eq!(options.sasl_password.reveal(), "hunter2");
    }
}
