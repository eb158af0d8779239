//! Numbers: exact sums, order statistics, text, sequences.

mod fixed;

pub use fixed::{Quanta, ratio};
