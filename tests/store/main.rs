//! The real binary with a store: killed under load, ended in order, with damaged, full and foreign directories.
#![cfg(unix)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod away;
mod ends;
mod replays;
mod support;
mod trouble;
