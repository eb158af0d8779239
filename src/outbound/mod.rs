//! Calls to other people's endpoints: the judge's, a collector's. One client with one set of guards, and the keys.

pub mod client;
pub mod secret;

pub use client::{CallError, Client, ClientOptions, EndpointError, check, check_keyless};
pub use secret::Secret;
