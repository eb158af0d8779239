//! Drift: are two versions of an agent different?
//!
//! [`sequential`] compares the means of two series. Each takes one value for each trace when it is done, in the order in which
//! traces are done; values are never subtracted.

pub mod sequential;

crate::options! {
    /// How versions are compared.
    #[derive(Copy)]
    pub struct DriftOptions in "drift" {
        /// Chance of ever reporting a difference between two equal versions, however long they run.
        pub alpha: f64 = 0.05, within 1e-9..=0.5;
    }
}
