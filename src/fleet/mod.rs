//! Several instances that share the work through Kafka.
//!
//! ```text
//! OTLP --> gateway --spans, by trace--> assemble --traces, by session--> score --agents, by (agent, shard, pane)--> fleet --> board
//! ```
//!
//! The stages and the results are those of a single process: there are 256 logical shards, each owned by one instance at a time,
//! and a sum over shards has the same bits wherever they are. Every hop is an upsert, so records may be repeated after a crash.
//! Each record says which owner of its shard sent it, and records of a replaced owner are ignored. The state of each partition is
//! in checkpoints, with the offset to continue from.

#[cfg(feature = "kafka")]
mod agents;
#[cfg(feature = "kafka")]
mod assemble;
#[cfg(feature = "kafka")]
mod checkpoint;
#[cfg(feature = "kafka")]
mod context;
#[cfg(feature = "kafka")]
mod gateway;
#[cfg(feature = "kafka")]
mod lease;
#[cfg(feature = "kafka")]
mod metrics;
mod options;
#[cfg(feature = "kafka")]
mod outbox;
#[cfg(feature = "kafka")]
mod owned;
#[cfg(feature = "kafka")]
mod partition;
#[cfg(feature = "kafka")]
mod question;
#[cfg(feature = "kafka")]
mod score;
#[cfg(feature = "kafka")]
mod start;
#[cfg(feature = "kafka")]
pub mod topics;
#[cfg(feature = "kafka")]
mod wire;
#[cfg(feature = "kafka")]
mod worker;

pub use options::{FleetOptions, Role};

#[cfg(feature = "kafka")]
pub use self::{
    assemble::Ask,
    checkpoint::CheckpointError,
    gateway::Gateway,
    lease::Lease,
    question::{Question, WAITING},
    score::Runaways,
    start::{FleetError, InstanceParts, Workers},
    wire::{rewritten, shards},
};

/// Registers the metrics of the workers, for the document that lists them.
#[cfg(feature = "kafka")]
pub(crate) fn register_metrics(
    health: &std::sync::Arc<crate::health::Health>,
) -> Result<(), prometheus::Error> {
    metrics::FleetMetrics::new(health).map(drop)
}
