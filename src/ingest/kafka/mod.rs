//! Kafka: records that each hold one OTLP request, as the OpenTelemetry Collector's Kafka exporter writes them, with or without
//! keys.
//!
//! One thread polls librdkafka, decodes each record in place and hands it to the stages. The offset of a record is stored for the
//! next commit once every shard has applied the record and all records read before it. So records are read again after a crash,
//! which changes nothing, as every hop is an idempotent upsert.

#[cfg(feature = "kafka")]
mod assignment;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod context;
#[cfg(feature = "kafka")]
mod dead_letter;
#[cfg(feature = "kafka")]
mod flight;
mod options;
#[cfg(feature = "kafka")]
mod probe;
#[cfg(feature = "kafka")]
mod reading;
#[cfg(feature = "kafka")]
mod source;
#[cfg(feature = "kafka")]
mod start_offsets;
#[cfg(feature = "kafka")]
mod status;
#[cfg(feature = "kafka")]
mod topic;

pub use options::{KafkaEncoding, KafkaOptions, SaslMechanism, Start};

#[cfg(feature = "kafka")]
pub(crate) use self::{
    assignment::{Assignment, Change},
    client::{be_silent_for, client, fatal},
    status::{Problem, WithoutMetrics},
};
#[cfg(feature = "kafka")]
pub use self::{
    client::{SourceError, check, consumer},
    source::Source,
    status::{SourceMetrics, Status},
};
