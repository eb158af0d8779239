//! The options of an instance in a cluster.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::options::{DAY, HOUR, MILLISECOND, SECOND, human};

crate::engine::options! {
    /// The part of this instance in work that several share through Kafka; without roles it does all the work alone.
    pub struct FleetOptions in "fleet" {
        /// Roles of this instance: gateway, assemble, score, fleet; empty: it does all the work alone.
        pub roles: Vec<Role> = Vec::new();
        /// Prefix of the names of the topics between the stages, and of the groups that read them.
        pub prefix: String = "agentgauge".to_owned();
        /// Partitions of each topic, at most 256; the same for all instances, and never changed. An instance takes no partition
        /// if its topics have another number.
        pub partitions: u32 = 16, within 1..=256;
        /// Replicas of each partition, for `topics create`.
        pub replication: u32 = 1, within 1..=100;
        /// How long the topics keep records, for `topics create`; it must exceed the longest time without a reader. The state
        /// of all agents is republished four times in it.
        #[serde(with = "human")]
        pub retention: Duration = 49 * HOUR, within 10 * MILLISECOND..=366 * DAY;
        /// Where checkpoints are: a directory that all instances share, or `s3://bucket/prefix` (with the credentials of the
        /// AWS tools).
        pub checkpoints: String = String::new();
        /// Time between two checkpoints.
        #[serde(with = "human")]
        pub checkpoint_interval: Duration = 10 * SECOND, within 10 * MILLISECOND..=HOUR;
        /// How far back an instance reads if it finds no checkpoint.
        #[serde(with = "human")]
        pub lookback: Duration = 2 * HOUR, within 10 * MILLISECOND..=366 * DAY;
        /// Time between two messages about the same agent.
        #[serde(with = "human")]
        pub tell_interval: Duration = SECOND, within 10 * MILLISECOND..=HOUR;
        /// How long an instance may be silent before others take over; from then on it shows no agents.
        #[serde(with = "human")]
        pub session_timeout: Duration = 45 * SECOND, within SECOND..=HOUR / 2;
    }
}

/// The role of an instance.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Accepts requests, and records of the Kafka source, and writes spans by trace.
    Gateway,
    /// Assembles traces from spans.
    Assemble,
    /// Assembles sessions from traces, and scores them.
    Score,
    /// Sums up agents, and shows them.
    Fleet,
}

impl FleetOptions {
    /// Whether it is part of a cluster.
    pub fn enabled(&self) -> bool {
        !self.roles.is_empty()
    }

    /// Whether this instance has the role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

impl Role {
    /// Its name in the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Assemble => "assemble",
            Self::Score => "score",
            Self::Fleet => "fleet",
        }
    }
}
