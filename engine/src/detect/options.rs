//! How drops are found: the options.

use std::collections::BTreeMap;
use std::time::Duration;

use super::budget::days;
use crate::options::{DAY, human};

crate::options! {
    /// When a level of failures is a drop.
    pub struct DropOptions in "drop" {
        /// Most false pages of the whole daemon in a quarter of a year, on average. Warnings may be ten times as many, and as
        /// many again from streams that only warn.
        pub false_pages_per_quarter: f64 = 1.0, within 1e-3..=1e3;
        /// Rise of the share of failing traces that is tolerated; the larger of this and `tolerance_ratio` applies.
        pub tolerance: f64 = 0.03, within 0.0..=0.5;
        /// Multiple of the usual share that is tolerated.
        pub tolerance_ratio: f64 = 1.3, within 1.0..=10.0;
        /// The share of good traces that is expected of an agent without a past.
        pub objective: f64 = 0.9, within 0.0..=0.9999;
        /// Objectives of single agents, by name, such as `{ "batch-importer" = 0.5 }`.
        pub objectives: BTreeMap<String, f64> = BTreeMap::new();
        /// Half-life of the past in what counts as usual, at least a day. Agents silent for four half-lives are forgotten; at
        /// most four times `agents.max_agents` are remembered, the most recent ones.
        #[serde(with = "human")]
        pub memory: Duration = 14 * DAY, within DAY..=366 * DAY;
        /// How long a drop lasts until its level is taken for the usual one; 0s: until it is accepted.
        #[serde(with = "human")]
        pub accept_after: Duration = Duration::ZERO, within Duration::ZERO..=366 * DAY;
        /// Deployments that are remembered (POST /api/v1/deployments); beyond that, the oldest of the tenant that has the most
        /// in proportion to its share is dropped.
        pub max_deployments: usize = 1_000, within 1..=100_000;
    }
}

/// The limits of one stream that follow from the options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropLimits {
    /// Mean days to a false page of one stream.
    pub(super) page: f64,
    pub(super) tolerance: f64,
    pub(super) ratio: f64,
    /// The failure rate of the objective.
    pub(super) objective: f64,
    /// The least level that counts as usual.
    pub(super) least: f64,
    /// Half-life of the past, in days.
    pub(super) memory: f64,
    pub(super) accept_after: Option<Duration>,
}

impl DropOptions {
    /// The limits of each of `streams` streams, which share the false pages evenly. They may change at any time without losing
    /// evidence, which is in days.
    pub fn limits(&self, streams: usize) -> DropLimits {
        self.limits_against(self.objective, streams)
    }

    /// The limits of each of `streams` streams that are compared with this success rate while they have no past.
    pub fn limits_against(&self, objective: f64, streams: usize) -> DropLimits {
        let streams = f64::from(u32::try_from(streams.max(1)).unwrap_or(u32::MAX));
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        DropLimits {
            page: QUARTER * streams / self.false_pages_per_quarter,
            tolerance: self.tolerance,
            ratio: self.tolerance_ratio,
            objective: (1.0 - objective).clamp(LEAST, 1.0 - LEAST),
            least: 0.0,
            memory: days(nanos(self.memory)),
            accept_after: (!self.accept_after.is_zero()).then_some(self.accept_after),
        }
    }

    /// The limits for warnings of ranks, for one of `streams` streams. Ranks among past traces have a mean of 0.5 while nothing
    /// changes, so a lower level is not usual: after a time of light work, the return to the earlier level is no rise.
    pub fn limits_of_ranks(&self, streams: usize) -> DropLimits {
        DropLimits { least: 0.5, ..self.limits_against(0.5, streams) }
    }

    /// The success rate that an agent of this name is compared with while it has no past.
    pub fn objective_of(&self, agent: &str) -> f64 {
        self.objectives.get(agent).copied().unwrap_or(self.objective)
    }
}

/// Days in a quarter of a year.
const QUARTER: f64 = 365.25 / 4.0;

/// The failure rate of the strictest objective: against 0, the first failure would be proof.
const LEAST: f64 = 1e-4;
