//! Access over real sockets: TLS, certificates of clients, tokens, tenants.

mod hosts;
mod quotas;
mod support;
mod tenants;
mod tls;
mod tokens;
