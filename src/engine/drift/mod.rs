//! Drift: has an agent changed, and are two versions of it different?
//!
//! [`page_hinkley`] watches one series of scores for a shift of its mean; [`sequential`] compares the means of two. Both
//! take one value for each done trace, in the order of (start, trace id), each once: a value is not taken back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::options::human;

pub mod page_hinkley;
pub mod sequential;

/// How drift is found.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DriftOptions {
    /// How long a done trace waits, from its start, for others that started before it. A trace that comes later than one
    /// that was taken is left out of the series, and counted.
    #[serde(with = "human")]
    pub lag: Duration,
    /// Values after which a series is watched for a shift, at its start and after each alarm; at least 2.
    pub warm_up: u64,
    /// Values, from its start and from each alarm on, that a series' usual level is taken from; later ones are held against
    /// it and do not move it, so that a slow decline is no usual level. At least `warm_up`.
    pub baseline: u64,
    /// The least standard deviation that is believed; smaller ones are taken for this.
    pub sigma_floor: f64,
    /// Standard deviations that one value counts at most, so that one outlier is no shift.
    pub max_step: f64,
    /// Standard deviations of each step that are forgiven; shifts of twice as much are found soonest.
    pub delta: f64,
    /// Sum of steps, in standard deviations, over which there is an alarm; greater is later and surer.
    pub lambda: f64,
    /// How likely two equal versions are ever told apart, however long one looks, in `(0,1)`.
    pub alpha: f64,
}

impl Default for DriftOptions {
    fn default() -> Self {
        Self {
            lag: Duration::from_secs(600),
            warm_up: 30,
            baseline: 100,
            sigma_floor: 0.05,
            max_step: 3.0,
            delta: 0.5,
            lambda: 15.0,
            alpha: 0.05,
        }
    }
}
