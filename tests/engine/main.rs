//! The engine by itself: formulas, vectors, captures, and properties over order, duplication and shards.
#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod architecture;
mod captures;
mod clocks;
mod conformance;
mod corpus;
mod credal;
mod decode;
mod drift;
mod drops;
mod evicted;
mod families;
mod lenient;
mod limits;
mod loops;
mod names;
mod over;
mod pandaprobe;
mod parallel;
mod predict;
mod princeton;
mod properties;
mod recorded;
mod reference;
mod retold;
mod runs;
mod saved;
mod scopes;
mod shares;
mod silence;
mod spoken;
mod stretched;
