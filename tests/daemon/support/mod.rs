//! Common parts of these tests: the real daemon, endpoints that it calls, spans to send to it.

pub(crate) mod account;
pub(crate) mod collector;
pub(crate) mod daemon;
pub(crate) mod endpoint;
pub(crate) mod judged;
pub(crate) mod promql;
pub(crate) mod turn;
