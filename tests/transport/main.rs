//! OTLP over real sockets: what senders are told, and what reaches the engine.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set up has failed")]

mod grpc;
mod http;
mod server;
mod support;
