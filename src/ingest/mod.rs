//! Bytes to spans, logs and reports: transports, encodings and their limits.
//!
//! Limits come before allocation, and one bad span never fails a batch.

use std::collections::BTreeMap;

use crate::engine::span::{Log, Report, Span};

/// What one request held, decoded and normalised.
#[derive(Debug, Default)]
pub struct Batch {
    /// Spans, in the order sent.
    pub spans: Vec<Span>,
    /// Log records that a convention recognised.
    pub logs: Vec<Log>,
    /// Scores found on spans and in log records.
    pub reports: Vec<Report>,
    /// What could not be used, and what was mended.
    pub tally: Tally,
}

/// Counts of what was in a request and what became of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Spans in the request.
    pub spans: u64,
    /// Log records in the request.
    pub logs: u64,
    /// Metric data points in the request: accepted and dropped.
    pub metric_points: u64,
    /// Spans and logs left out, by reason; these go into `partial_success`.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Spans and logs kept after a repair, by reason.
    pub repaired: BTreeMap<&'static str, u64>,
    /// Log records that no convention recognised, reports that are no score: fine, but unused.
    pub unused: BTreeMap<&'static str, u64>,
}
