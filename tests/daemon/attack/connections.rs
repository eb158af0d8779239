//! More connections than are permitted.

use bytes::Bytes;

use super::attackers::Attack;
use super::honest::{Honest, Protocol, number};
use crate::support::daemon::Daemon;

const SHOP: &str = "a-token-of-the-shop-0001";

/// Connections that there may be; with `AGENTGAUGE_ATTACK_CONNECTIONS` as many as by default, and that many attackers.
fn few() -> (&'static str, &'static str) {
    let few = if number("AGENTGAUGE_ATTACK_CONNECTIONS", 0) > 0 { "1024" } else { "32" };
    ("AGENTGAUGE__SERVER__MAX_CONNECTIONS", few)
}

fn some(connections: u64) -> u64 {
    number("AGENTGAUGE_ATTACK_CONNECTIONS", connections)
}

const BOTH: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];

const DISPLACED: &str = "agentgauge_connections_closed_total{reason=\"displaced\"}";

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_nobody_out() {
    let daemon = Daemon::start_with(&[few()]);
    for protocol in BOTH {
        let honest = Honest { protocol, token: None };
        let address = honest.address(&daemon);
        honest.keeps_its_rate(&daemon, async || Attack::idle(&address, some(320)).await).await;
    }
    assert!(daemon.metric(DISPLACED) >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_keep_nobody_out() {
    let daemon = Daemon::start_with(&[few()]);
    for protocol in BOTH {
        let honest = Honest { protocol, token: None };
        let address = honest.address(&daemon);
        honest.keeps_its_rate(&daemon, async || Attack::slow_heads(&address, some(40)).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_on_every_connection_keep_nobody_out() {
    let daemon = Daemon::start_with(&[few()]);
    let honest = Honest { protocol: Protocol::Http, token: None };
    honest
        .keeps_its_rate(&daemon, async || Attack::slow_bodies(&daemon, some(40), None).await)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_of_nobody_keep_nobody_out() {
    let tokens = r#"[{ name = "shop", env = "SHOP", may = ["ingest"] }]"#;
    let access = [
        ("AGENTGAUGE__ACCESS__TOKENS", tokens),
        ("AGENTGAUGE__ACCESS__OPEN", r#"["metrics"]"#),
        ("SHOP", SHOP),
    ];
    let daemon = Daemon::start_with(&[&access[..], &[few()]].concat());
    let honest = Honest { protocol: Protocol::Http, token: Some(SHOP) };
    let attack = async || Attack::slow_bodies(&daemon, some(40), None).await;
    honest.keeps_its_rate(&daemon, attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_taken_hold_up_nobody() {
    let daemon = Daemon::start_with(&[few()]);
    // A span with an invalid id: its answer has a message.
    let body = Bytes::from_static(&[10, 6, 18, 4, 18, 2, 18, 0]);
    for protocol in BOTH {
        let honest = Honest { protocol, token: None };
        let attack = async || Attack::stalled_windows(&daemon, 40, &body).await;
        honest.keeps_its_rate(&daemon, attack).await;
    }
}
