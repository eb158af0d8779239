//! What comes out: the board, the metrics, the HTTP endpoints, the page.

mod api;
pub mod board;
mod families;
pub mod grpc;
pub mod history;
pub mod http;
mod live;
mod openapi;
pub mod otlp;
mod page;
pub mod prometheus;
pub mod query;
mod runbook;
mod web;

pub use openapi::openapi;
pub use page::page;
