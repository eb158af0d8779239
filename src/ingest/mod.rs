//! Bytes to spans, logs and reports: transports, encodings and their limits.
//!
//! Limits come before allocation, and one bad span never fails a batch.

pub mod admission;
mod arrival;
mod builder;
pub mod decode;
mod entrance;
pub mod file;
pub mod grpc;
pub mod http;
mod inflate;
mod json;
pub mod kafka;
mod outline;
mod peer;
pub mod prescan;
mod protobuf;
mod receiver;
mod repair;
pub mod report;
mod request;
mod rooms;
pub mod server;
mod spans;
mod status;
mod tree;
mod walk;
mod wire;
mod write_timeout;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use crate::engine::embedding::Embedded;
use crate::engine::judging::JudgeReply;
use crate::engine::span::{Log, Report, Span, Timestamp};
use crate::engine::tenants::TraceKey;

pub use receiver::{Now, Observe, Receiver};
pub use request::Request;
pub use rooms::Rooms;

/// The content of one request, decoded and normalised.
#[derive(Debug, Default)]
pub struct Batch {
    /// When the request arrived.
    pub arrival: Timestamp,
    /// Spans, in the order sent.
    pub spans: Vec<Span>,
    /// Takes the list of spans back when they are applied.
    pub rooms: Rooms,
    /// Log records that a convention recognised.
    pub logs: Vec<Log>,
    /// Scores found on spans and in log records.
    pub reports: Vec<Report>,
    /// The judge's replies about traces; `reports` then holds the scores from these replies.
    pub judged: Vec<JudgeReply>,
    /// An embedding model's results for texts, by trace.
    pub embedded: Vec<(TraceKey, Embedded)>,
    /// Counts of what the request held, what could not be used and what was mended.
    pub tally: RequestCounts,
    /// The request itself, for the write-ahead log; `None` if the sink keeps none.
    pub request: Option<Request>,
}

/// Counts of the content of a request and the outcome for it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RequestCounts {
    /// Spans in the request.
    pub spans: u64,
    /// Log records in the request.
    pub logs: u64,
    /// Metric data points in the request: accepted and dropped.
    pub metric_points: u64,
    /// Reports over agentgauge's own API that were accepted.
    pub reports: u64,
    /// Reports that were rejected: position and reason.
    pub rejected_reports: Vec<(usize, String)>,
    /// Spans and logs left out, by reason; these go into `partial_success`.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Spans and logs kept after a repair, by reason.
    pub repaired: BTreeMap<&'static str, u64>,
    /// Log records that no convention recognised, reports that are no score: fine, but unused.
    pub unused: BTreeMap<&'static str, u64>,
}

impl RequestCounts {
    /// Also counts as rejected what was left out for this reason.
    pub fn reject(&mut self, why: &'static str, count: u64) {
        if count > 0 {
            *self.rejected.entry(why).or_default() += count;
        }
    }
}

/// The reason for rejecting spans and log records of a full trace.
pub const TRACE_FULL: &str = "trace_full";

/// The reason for rejecting spans and log records of traces in a full session.
pub const SESSION_FULL: &str = "session_full";

/// The reason for rejecting spans and log records that are too large for a record between the stages.
pub const RECORD_TOO_LARGE: &str = "record_too_large";

/// The kind of data that a request carries.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Signal {
    /// `ExportTraceServiceRequest`.
    Traces,
    /// `ExportLogsServiceRequest`.
    Logs,
    /// `ExportMetricsServiceRequest`: counted and dropped.
    Metrics,
    /// `ReportRequest` of agentgauge's own API.
    Reports,
}

impl Signal {
    /// The signal that is sent to a path; `None` if the path is not among these.
    fn at(path: &str, paths: &[(&str, Self)]) -> Option<Self> {
        paths.iter().find(|(known, _)| *known == path).map(|(_, signal)| *signal)
    }
}

/// How a request is written.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Encoding {
    /// Protobuf.
    Protobuf,
    /// OTLP JSON.
    Json,
}

/// How a request is compressed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, any number of members.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Encoding {
    /// Its name as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Protobuf => "protobuf",
            Self::Json => "json",
        }
    }
}

impl Compression {
    /// The compression with this name, in any case, as in headers; `None` if it is not supported.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [(Self::None, "identity"), (Self::Gzip, "gzip"), (Self::Zstd, "zstd")]
            .into_iter()
            .find(|(_, known)| name.trim().eq_ignore_ascii_case(known))
            .map(|(compression, _)| compression)
    }
}

/// Why a whole request is refused for good: sending it again changes nothing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// A size is over its limit.
    #[error("{what} is over the limit of {max}; send smaller batches or raise `{key}`")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit.
        max: usize,
        /// The option that sets it.
        key: &'static str,
    },
    /// The bytes are not what they claim to be.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// What should have been there.
        what: &'static str,
        /// What is wrong, at most 256 bytes, without any of the payload.
        why: String,
    },
}

/// There is no room at the moment: the sender should retry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Overloaded {
    /// When to retry.
    pub retry_after: Duration,
    /// What was missing.
    pub lacks: Lacks,
}

impl Overloaded {
    /// Too many requests are in flight.
    pub fn after(retry_after: Duration) -> Self {
        Self { retry_after, lacks: Lacks::Turn }
    }
}

/// What a request lacked that has to be retried.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Lacks {
    /// A turn among the requests in flight.
    #[error("too many requests in flight")]
    Turn,
    /// Room in the store's budget.
    #[error("the store is full (`store.max_bytes`)")]
    Budget,
    /// Room on the store's disk.
    #[error("the disk of `store.directory` is full")]
    Disk,
    /// A store that can be written.
    #[error("`store.directory` cannot be written")]
    Store,
    /// The store's directory.
    #[error("the directory of `store.directory` is not there")]
    Directory,
    /// Brokers that take records.
    #[error("the Kafka brokers (`kafka.brokers`) do not accept records")]
    Brokers,
}

impl Lacks {
    /// The reason under which the request is counted.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Turn => "overloaded",
            Self::Budget => "store_full",
            Self::Disk => "disk_full",
            Self::Store | Self::Directory => "store_failed",
            Self::Brokers => "brokers_failed",
        }
    }
}

/// Counts of spans and log records of a batch that were not applied, because their traces or sessions had no room.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeftOut {
    /// Those over `assemble.max_spans_per_trace`.
    pub trace_full: u64,
    /// Those of traces over `session.max_traces_per_session`.
    pub session_full: u64,
    /// Those that exceed the size of a record between the stages; no stage has received them.
    pub record_too_large: u64,
}

impl LeftOut {
    /// The sums of both counts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            trace_full: self.trace_full.saturating_add(other.trace_full),
            session_full: self.session_full.saturating_add(other.session_full),
            record_too_large: self.record_too_large.saturating_add(other.record_too_large),
        }
    }
}

/// Where decoded batches go.
pub trait Sink: Clone + Send + Sync + 'static {
    /// Whether the sink writes requests to a log, and so needs them with their batches.
    fn keeps_log(&self) -> bool {
        false
    }

    /// Applies a batch; returns when every shard has applied its part, with the counts of what the shards had no room for.
    fn submit(&self, batch: Batch) -> impl Future<Output = Result<LeftOut, Overloaded>> + Send;
}
