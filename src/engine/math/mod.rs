//! Numbers: exact sums, text, sequences.

mod fixed;
pub mod myers;
pub mod ordered;
pub mod sequence;
pub mod sheet;
pub mod text;

pub use fixed::{Quanta, ratio};
