//! The slow reference model: computes everything again from decoded spans, in floats, directly from the documents.
//!
//! It shares the engine's options and its plain input and output data, and none of its code. Decoded spans become traces
//! ([`gather`]), each of which is read ([`trace`]: its tree, its model calls, its tool calls, its loops); traces become sessions
//! with signals and scores, and sessions become agents; everything is compared with what the engine shows ([`compare`]). Bounds,
//! predictions, drops, versions and expectations are not part of it.
//!
//! The values of the engine, which sums integers incrementally, must be within 1e-9 of the model's.

mod agents;
mod arguments;
pub mod compare;
pub mod credal;
pub mod gather;
mod loops;
mod models;
mod names;
mod price;
pub mod princeton;
mod runs;
pub mod score;
mod series;
mod sessions;
mod signals;
pub mod text;
mod tools;
mod trace;
mod tree;
