//! The outputs: the board, the metrics, the HTTP endpoints, the page.

pub mod about;
pub mod alerts;
mod api;
pub mod board;
mod body_timeout;
mod families;
mod gauges;
pub mod grpc;
pub mod history;
pub mod http;
pub mod kept_history;
mod lists;
mod live;
pub mod metrics_out;
mod openapi;
pub mod otlp;
mod page;
mod params;
mod problems;
pub mod prometheus;
mod push;
pub mod query;
mod readers;
mod response_body;
mod samples;
mod scrapes;
mod watched;
mod web;

pub use openapi::openapi;
pub use page::page;
