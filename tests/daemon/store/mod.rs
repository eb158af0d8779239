//! The real binary with a store: killed under load, stopped in order, with damaged, full and foreign directories.
#![cfg(unix)]

mod ends;
mod evicted;
mod replays;
mod support;
mod trouble;
