//! The slow model: everything again from what was decoded, in floats, straight from the documents.
//!
//! It shares the engine's options and the plain data that it is fed with and shows, and none of its code. What was decoded becomes
//! traces ([`gather`]), each of which is read ([`trace`]: its tree, its model calls, its tool calls, its loops); traces become
//! sessions with signals and scores, and sessions agents; and all of it is held against what the engine shows ([`compare`]).
//! Bounds, what is predicted, drops, versions and expectations are none of its business.
//!
//! The engine's incremental integers must come out within 1e-9 of this.

mod agents;
mod arguments;
pub mod compare;
pub mod credal;
pub mod gather;
mod loops;
mod models;
mod names;
pub mod pandaprobe;
mod price;
pub mod princeton;
mod runs;
pub mod score;
mod sessions;
mod signals;
pub mod text;
mod tools;
mod trace;
mod tree;
