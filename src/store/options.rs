//! The durability of the daemon, and its limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::options::{SECOND, human};

crate::engine::options! {
    /// Options of the store.
    pub struct StoreOptions in "store" {
        /// What an acknowledgement means beside "applied": memory (a restart forgets), flush (outlives the process), fsync (is on
        /// disk).
        pub durability: Durability = Durability::Memory;
        /// Where the log and the snapshots are, for one process alone; files are readable only by their owner, as requests hold
        /// prompts.
        pub directory: String = String::new();
        /// Bytes of log, snapshots and evicted sessions; beyond that, senders are told to retry until a snapshot has freed
        /// some. The sessions take half of it at most.
        pub max_bytes: u64 = 8 << 30, within 1 << 12..=1 << 50;
        /// Size of one file of the log, in bytes.
        pub segment_bytes: u64 = 64 << 20, within 1 << 12..=1 << 30;
        /// Bytes of log after which a snapshot is written; more if the last snapshot was larger.
        pub snapshot_bytes: u64 = 256 << 20, within 1 << 12..=1 << 40;
        /// Spans and log records after which a snapshot is written although `snapshot_bytes` is not reached, once the log is an
        /// eighth of the snapshots: it bounds the replay time of a start, which grows with spans, however they were compressed.
        pub snapshot_spans: u64 = 200_000, within 1..=1 << 40;
        /// How long a group commit waits for more records; 0s: only while the previous group is written.
        #[serde(with = "human")]
        pub commit_interval: Duration = Duration::ZERO, within Duration::ZERO..=SECOND;
        /// What to do at the start if acknowledged records are damaged or missing, or the file that shows whether any are
        /// (`end.marks`) is: refuse (say where, and do not start), skip (count them).
        pub damaged_records: DamagedRecords = DamagedRecords::Refuse;
    }
}

/// What an acknowledgement means, besides that the request was applied.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing more: a restart forgets.
    #[default]
    Memory,
    /// The system has it: it survives the end of the process, but not of the machine.
    Flush,
    /// It is on disk.
    Fsync,
}

/// What to do about acknowledged records that cannot be read.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DamagedRecords {
    /// Do not start, and report where they are.
    #[default]
    Refuse,
    /// Leave them out, and count them.
    Skip,
}
