//! Drift: are two versions of an agent different?
//!
//! [`sequential`] compares the means of two series. Each takes one value for each trace when that is done, in the order in
//! which traces are done; a value is not taken back.

use serde::{Deserialize, Serialize};

pub mod sequential;

/// How versions are compared.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DriftOptions {
    /// How likely two equal versions are ever told apart, however long one looks, in `(0,1)`.
    pub alpha: f64,
}

impl Default for DriftOptions {
    fn default() -> Self {
        Self { alpha: 0.05 }
    }
}
