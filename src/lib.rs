//! agentgauge turns the OpenTelemetry spans of AI agents into live reliability metrics.
//!
//! ```text
//!  OTLP gRPC --+
//!  OTLP HTTP --+-> ingest --Span, Log, Report--> assemble --TraceFacts--> sessions --SessionFacts--> agents --> board --> /metrics
//!  files    ---'                                 (by trace)                (by session)                (by agent)       '-> JSON API
//! ```
//!
//! [`engine`] is pure; everything else is a thin shell around it.

pub mod access;
mod blocking;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod embed;
pub mod export;
mod fair;
pub mod files;
pub mod fleet;
pub mod health;
pub mod ingest;
pub mod judge;
pub mod memory;
pub mod outbound;
pub mod reference;
mod refused;
pub mod registry;
pub mod rules;
mod runbook;
pub mod secret;
pub mod store;
pub mod telemetry;
mod tenant_queue;
mod vital;
pub mod webhook;

pub use agentgauge_engine as engine;
