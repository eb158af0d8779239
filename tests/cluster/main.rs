//! Kafka as a source, and several instances that share the work over it.
#![cfg(feature = "kafka")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod fleet;
mod kafka;
