//! What can be set of an instance among several.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::options::human;

/// The part of an instance in work that several share through Kafka; without roles it does everything by itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetOptions {
    /// What this instance does; none: everything, alone.
    pub roles: Vec<Role>,
    /// What the names of the topics between the stages, and of the groups that read them, begin with.
    pub prefix: String,
    /// Partitions of each topic, 1 to 256; the same for all instances, and for good.
    pub partitions: u32,
    /// Replicas of each partition, for `topics create`.
    pub replication: u32,
    /// How long the topics keep records, for `topics create`; all that is known of agents is told anew four times in it.
    #[serde(with = "human")]
    pub retention: Duration,
    /// Where checkpoints are: a directory, or `s3://bucket/prefix`.
    pub checkpoints: String,
    /// Time between two checkpoints.
    #[serde(with = "human")]
    pub checkpoint_interval: Duration,
    /// How far back an instance reads that finds no checkpoint.
    #[serde(with = "human")]
    pub lookback: Duration,
    /// Time between two words about the same agent.
    #[serde(with = "human")]
    pub tell_interval: Duration,
    /// How long an instance may be silent before others take its place; it shows no agents from then on.
    #[serde(with = "human")]
    pub session_timeout: Duration,
}

/// What an instance does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Takes requests, and records of the Kafka source, and writes spans by trace.
    Gateway,
    /// Makes traces of spans.
    Assemble,
    /// Makes sessions of traces, and scores them.
    Score,
    /// Sums up agents, and shows them.
    Fleet,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            roles: Vec::new(),
            prefix: "agentgauge".to_owned(),
            partitions: 16,
            replication: 1,
            retention: Duration::from_secs(49 * 3600),
            checkpoints: String::new(),
            checkpoint_interval: Duration::from_secs(10),
            lookback: Duration::from_secs(2 * 3600),
            tell_interval: Duration::from_secs(1),
            session_timeout: Duration::from_secs(45),
        }
    }
}

impl FleetOptions {
    /// Whether it is one instance of several.
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
