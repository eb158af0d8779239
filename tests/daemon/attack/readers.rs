//! Readers of metrics that do not read.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::attackers::Attack;
use super::honest::LONG;
use crate::support::daemon::Daemon;
use crate::support::turn;

/// How long Prometheus waits unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

const SHOP: &str = "a-token-of-the-shop-0001";
const BANK: &str = "a-token-of-the-bank-0001";
const OPERATOR: &str = "a-token-of-the-operator-";

const TOKENS: [(&str, &str); 4] = [
    (
        "AGENTGAUGE__ACCESS__TOKENS",
        r#"[{ name = "shop", env = "SHOP", tenant = "shop", may = ["ingest", "metrics"] }, { name = "bank", env = "BANK", tenant = "bank", may = ["metrics"] }, { name = "operator", env = "OPERATOR", may = ["metrics"] }]"#,
    ),
    ("SHOP", SHOP),
    ("BANK", BANK),
    ("OPERATOR", OPERATOR),
];

/// Agents of a tenant.
const AGENTS: u32 = 60;

/// A scrape as Prometheus makes it: whole and in time.
async fn scrape(daemon: &Daemon, token: Option<&str>) -> String {
    let scraped = timeout(PATIENCE, async {
        let stream = TokioIo::new(TcpStream::connect(&daemon.http).await.unwrap());
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut request = Request::get("/metrics").header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        connection.abort();
        String::from_utf8(body.to_vec()).unwrap()
    });
    scraped.await.unwrap()
}

/// Sends the turn of an agent of this number.
async fn send(daemon: &Daemon, token: &str, agent: u32) {
    let spans = turn::spans()
        .replace(r#""stringValue":"a""#, &format!(r#""stringValue":"a{agent}""#))
        .replace("0af7651916cd43dd8448eb211c80319c", &format!("{agent:032x}"));
    let stream = TokioIo::new(TcpStream::connect(&daemon.otlp_http).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("/v1/traces")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {token}"));
    let request = request.body(Full::<Bytes>::from(spans)).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_do_not_read_blind_nobody() {
    let daemon = Daemon::start();
    let mut attacks = Vec::new();
    for readers in [8, 8, 40] {
        attacks.push(Attack::stalled_readers(&daemon, readers, None).await);
        for _ in 0..5 {
            assert!(scrape(&daemon, None).await.contains("agentgauge_build_info{"));
        }
    }
    let cut = scrape(&daemon, None).await;
    let line = cut.lines().find(|line| line.starts_with("agentgauge_scrapes_cut_total{"));
    assert!(line.is_some_and(|line| line.contains("displaced")), "{cut}");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_of_a_tenant_blind_no_operator_no_other_tenant_and_not_even_it() {
    let daemon = Daemon::start_with(&TOKENS);
    // A page of more than is on its way at a time.
    for agent in 1..=AGENTS {
        send(&daemon, SHOP, agent).await;
    }
    let last = format!("gen_ai_agent_name=\"a{AGENTS}\"");
    let shown = timeout(LONG, async {
        while !scrape(&daemon, Some(SHOP)).await.contains(&last) {
            sleep(Duration::from_millis(50)).await;
        }
    });
    shown.await.unwrap();
    let _attack = Attack::stalled_readers(&daemon, 40, Some(SHOP)).await;
    for _ in 0..5 {
        assert!(scrape(&daemon, Some(OPERATOR)).await.contains("agentgauge_build_info{"));
        for tenant in [BANK, SHOP] {
            assert!(!scrape(&daemon, Some(tenant)).await.contains("agentgauge_build_info{"));
        }
    }
}
