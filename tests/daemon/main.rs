//! The daemon as users run it: its sockets, its command line, its store, its documents.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking"
)]

mod access;
mod api;
mod attack;
mod cli;
mod config;
mod documents;
mod drops;
mod embed;
mod end_to_end;
mod expectations;
mod judge;
mod limits;
mod loops;
mod overload;
mod past;
mod reports;
mod rules;
mod scopes;
mod scores_out;
mod simulated;
mod spoken;
mod store;
mod support;
mod telemetry;
#[cfg(target_os = "linux")]
mod threads;
mod transport;
mod webhook;
