//! Calls to external endpoints, such as the judge's or a collector's: one client with one set of guards.

pub mod address;
pub mod breaker;
pub mod client;
mod connect;
mod keyed;
pub mod redact;

pub use address::{EndpointError, bearer, check, check_keyless, with_path};
pub use client::{CallError, Client, ClientOptions, backoff};
