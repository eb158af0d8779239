//! OTLP over real sockets: what senders are told, and what reaches the engine.

mod grpc;
mod http;
mod server;
mod support;
