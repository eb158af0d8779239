//! What comes out: the board, the metrics, the HTTP endpoints.

pub mod board;
mod families;
pub mod http;
pub mod otlp;
mod page;
pub mod prometheus;

pub use page::page;
