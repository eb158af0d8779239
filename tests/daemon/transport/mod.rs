//! OTLP over real sockets: the answers to senders, and the input of the engine.

mod grpc;
mod http;
mod server;
mod support;
