//! Calls to endpoints of others, such as the judge's or a collector's: one client with one set of guards.

pub mod address;
pub mod client;
mod connect;

pub use address::{EndpointError, check, check_keyless};
pub use client::{CallError, Client, ClientOptions, backoff};
