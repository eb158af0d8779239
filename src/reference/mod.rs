//! The slow model: scores recomputed from the start, in floats, straight from the documents.
//!
//! The engine's incremental integers must come out within 1e-9 of this.

pub mod credal;
pub mod pandaprobe;
pub mod princeton;
pub mod score;
