//! What comes out: the board, the metrics, the HTTP endpoints.

pub mod board;
mod families;
pub mod http;
mod page;
pub mod prometheus;
mod runbook;

pub use page::page;
