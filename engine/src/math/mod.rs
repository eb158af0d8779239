//! Numbers: exact sums, text, sequences, patterns.

mod fixed;
pub mod glob;
pub mod myers;
pub mod named_array;
pub mod ordered;
pub mod sequence;
pub mod text;
pub mod words;

pub use fixed::{Quanta, ratio};
