//! Who comes in, over real sockets: TLS, certificates of clients, tokens, tenants.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;
mod tenants;
mod tls;
mod tokens;
