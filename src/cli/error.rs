//! Why a command failed, and its exit code.

use std::error::Error;
use std::fmt::Write;
use std::io;
use std::time::Duration;

use super::{EXIT_FAILURE, EXIT_GATE, EXIT_USAGE};
use crate::config::ConfigError;
use crate::config::expect::ExpectError;
use crate::daemon::StartError;
use crate::ingest::file::FileError;
use crate::rules::RulesError;
use crate::store::StoreError;
use crate::telemetry::TelemetryError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Expectations cannot be used.
    #[error(transparent)]
    Expect(#[from] ExpectError),
    /// Rules for Prometheus that could never fire.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A recording cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no recording in the given paths.
    #[error("found no recording (.pb, .json or .jsonl) in {paths}")]
    NoRecording {
        /// Where.
        paths: String,
    },
    /// The recordings have no spans and no log records.
    #[error("found no span or log record in {paths}{}", left_out(*rejected))]
    NoSpans {
        /// Where.
        paths: String,
        /// Spans and log records that cannot be used.
        rejected: u64,
    },
    /// The daemon does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There are no brokers at which topics could be created.
    #[error("no brokers: set `kafka.brokers`, in a build with the feature `kafka`")]
    NoBrokers,
    /// The topics cannot be created.
    #[cfg(feature = "kafka")]
    #[error(transparent)]
    Topics(#[from] crate::fleet::topics::TopicsError),
    /// A sync of the log failed while the daemon ran.
    #[error(
        "the disk of `store.directory` failed to sync, and nothing was acknowledged after that: check the disk, then start again"
    )]
    Sync,
    /// At the stop files of the store were gone, and no last snapshot could be written in their place.
    #[error(
        "files in `store.directory` are gone and no last snapshot could be written in their place, so not all that was acknowledged is stored: if it was moved, put the directory back before the next start"
    )]
    Lost,
    /// A task of the daemon panicked, or a worker of its cluster cannot continue.
    #[error(
        "a task of the daemon has failed ({task}), and the daemon cannot run without it: restart it; the log has the reason, and if it panicked, please report it"
    )]
    Task {
        /// Its name.
        task: &'static str,
    },
    /// The daemon did not stop in time.
    #[error("shutdown took longer than {limit:?} and was aborted: {left}")]
    Stop {
        /// The limit.
        limit: Duration,
        /// What was not finished.
        left: &'static str,
    },
    /// The runtime does not start.
    #[error("failed to start the runtime")]
    Runtime(#[source] io::Error),
    /// The result cannot be written.
    #[error("failed to write the output")]
    Output(#[source] io::Error),
    /// The result cannot be written as JSON.
    #[error("failed to write the output")]
    Json(#[source] serde_json::Error),
    /// The demo's client cannot reach the daemon.
    #[error("failed to reach {address}: {why}")]
    Client {
        /// The address.
        address: String,
        /// Why.
        why: String,
    },
    /// A score is below its floor.
    #[error("{agent}: {score} is {was}, below {floor}")]
    Gate {
        /// The agent.
        agent: String,
        /// The name of the score.
        score: &'static str,
        /// The least over all agents; `absent` if it has none.
        was: String,
        /// The floor that was given.
        floor: f64,
    },
    /// No trace answers any query, so nothing was checked.
    #[error("no trace answers a query of the expectations")]
    Unanswered,
    /// Expectations are not met.
    #[error("{failed} of {evaluated} expectations failed")]
    Expectations {
        /// The number of failures that must stop a build.
        failed: usize,
        /// How many pairs of a query and a trace were evaluated.
        evaluated: usize,
    },
    /// Engine and reference model differ.
    #[error("the engine differs from the reference model in {count} of {compared} values")]
    Different {
        /// How many values differ.
        count: usize,
        /// How many values were compared.
        compared: usize,
    },
}

/// The end of the message, about spans and log records that could not be used.
fn left_out(rejected: u64) -> String {
    if rejected == 0 { String::new() } else { format!(": {rejected} could not be used") }
}

impl CliError {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Expect(_)
            | Self::Rules(_)
            | Self::NoBrokers
            | Self::Start(
                StartError::Expect(_)
                | StartError::Access(_)
                | StartError::Embed(_)
                | StartError::History { .. }
                | StartError::Judge(_)
                | StartError::Key(_)
                | StartError::ScoresOut(_)
                | StartError::Store(StoreError::Directory { .. })
                | StartError::Prometheus(_)
                | StartError::Telemetry(TelemetryError::Endpoint(_) | TelemetryError::Own { .. })
                | StartError::Webhook(_),
            ) => EXIT_USAGE,
            #[cfg(feature = "kafka")]
            Self::Start(StartError::Kafka(_)) => EXIT_USAGE,
            #[cfg(feature = "kafka")]
            Self::Topics(_) => EXIT_FAILURE,
            Self::Gate { .. } | Self::Unanswered | Self::Expectations { .. } => EXIT_GATE,
            Self::File(_)
            | Self::NoRecording { .. }
            | Self::NoSpans { .. }
            | Self::Start(_)
            | Self::Stop { .. }
            | Self::Sync
            | Self::Lost
            | Self::Task { .. }
            | Self::Runtime(_)
            | Self::Output(_)
            | Self::Json(_)
            | Self::Client { .. }
            | Self::Different { .. } => EXIT_FAILURE,
        }
    }

    /// The error and what caused it, in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some errors include their cause.
            let error_text = error.to_string();
            if !text.contains(&error_text) {
                let _ = write!(text, ": {error_text}");
            }
            cause = error.source();
        }
        text
    }
}
