//! Bodies that are announced and do not arrive.

use std::io::{Read, Write};
use std::time::Duration;

use agentgauge::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::attackers::{Attack, slow_stream};
use super::honest::{Honest, LONG, Protocol};
use crate::support::account::{Account, sum};
use crate::support::daemon::Daemon;

const SHOP: &str = "a-token-of-the-shop-0001";
const BANK: &str = "a-token-of-the-bank-0001";

/// Two tenants that may send.
const TOKENS: [(&str, &str); 4] = [
    (
        "AGENTGAUGE__ACCESS__TOKENS",
        r#"[{ name = "shop", env = "SHOP", tenant = "shop", may = ["ingest"] }, { name = "bank", env = "BANK", tenant = "bank", may = ["ingest"] }]"#,
    ),
    ("AGENTGAUGE__ACCESS__OPEN", r#"["metrics"]"#),
    ("SHOP", SHOP),
    ("BANK", BANK),
];

/// Looks at the pace of bodies every second.
const SOON: (&str, &str) = ("AGENTGAUGE__SERVER__READ_TIMEOUT", "1s");

const BOTH: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];

#[tokio::test(flavor = "multi_thread")]
async fn slow_streams_of_one_connection_hold_up_nobody() {
    let daemon = Daemon::start();
    for protocol in BOTH {
        let honest = Honest { protocol, token: None };
        honest.keeps_its_rate(&daemon, async || Attack::slow_streams(&daemon, None).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_of_a_few_connections_hold_up_nobody() {
    let daemon = Daemon::start();
    for protocol in BOTH {
        let honest = Honest { protocol, token: None };
        honest.keeps_its_rate(&daemon, async || Attack::slow_bodies(&daemon, 12, None).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_of_a_tenant_hold_up_no_other() {
    let daemon = Daemon::start_with(&TOKENS);
    for protocol in BOTH {
        let honest = Honest { protocol, token: Some(SHOP) };
        let attack = async || {
            let streams = Attack::slow_streams(&daemon, Some(BANK)).await;
            (streams, Attack::slow_bodies(&daemon, 12, Some(BANK)).await)
        };
        honest.keeps_its_rate(&daemon, attack).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_budget_is_shared_as_a_large_one_is() {
    let budget = ("AGENTGAUGE__INGEST__MAX_DECODED_BYTES", "67108864");
    let daemon = Daemon::start_with(&[budget]);
    let honest = Honest { protocol: Protocol::Grpc, token: None };
    let attack = async || {
        let streams = Attack::slow_streams(&daemon, None).await;
        (streams, Attack::slow_bodies(&daemon, 12, None).await)
    };
    honest.keeps_its_rate(&daemon, attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_on_a_slow_link_is_served_however_long_it_takes() {
    let daemon = Daemon::start_with(&[SOON]);
    // An empty list of attributes of a resource, and so on: nothing, at length.
    let body = [0x0a_u8, 0].repeat(150_000);
    let mut stream = TcpStream::connect(&daemon.otlp_http).await.unwrap();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let clock = Clock::system();
    let begin = clock.now();
    stream.write_all(head.as_bytes()).await.unwrap();
    // 64 KB a second.
    for piece in body.chunks(6_400) {
        stream.write_all(piece).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(clock.now().0 - begin.0 > 4_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_is_told_so_before_the_body_has_come() {
    // Nobody is given up for want of progress while the test runs.
    let patient =
        [("AGENTGAUGE__INGEST__BODY_PROGRESS", "0"), ("AGENTGAUGE__SERVER__READ_TIMEOUT", "1h")];
    let daemon = Daemon::start_with(&[&patient[..], &TOKENS].concat());
    let authorization = format!("authorization: Bearer {SHOP}\r\n");
    for (path, headers, expected) in [
        ("/v1/traces", &*authorization, "HTTP/1.1 413 "),
        ("/v1/nothing", &authorization, "HTTP/1.1 404 "),
        ("/v1/traces", "", "HTTP/1.1 401 "),
    ] {
        let mut stream = TcpStream::connect(&daemon.otlp_http).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-type: application/x-protobuf\r\ncontent-length: 99000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let trickle = tokio::spawn(async move {
            while writing.write_all(&[10; 100]).await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        });
        let mut answer = [0; 13];
        timeout(LONG, reading.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), expected, "{path}");
        trickle.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_go_on_is_told_so_and_its_connection_is_closed() {
    let daemon = Daemon::start_with(&[SOON]);
    let mut stream = TcpStream::connect(&daemon.otlp_http).await.unwrap();
    let head = "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // Less than four kilobytes a second, but something all the time.
    let (mut reading, mut writing) = stream.into_split();
    let trickle = tokio::spawn(async move {
        while writing.write_all(&[10; 100]).await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    });
    let mut answer = Vec::new();
    // An error is an end too: what is still sent makes the system reset the connection.
    let ended = timeout(LONG, reading.read_to_end(&mut answer)).await;
    assert!(ended.is_ok());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 504 ") && answer.contains("body_progress"), "{answer}");
    trickle.abort();
    daemon.settles_at("agentgauge_requests_refused_total{reason=\"slow\"}", 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_does_not_go_on_is_ended_and_after_several_its_connection() {
    let daemon = Daemon::start_with(&[SOON]);
    let stream = TcpStream::connect(&daemon.grpc).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    for _ in 0..4 {
        let answer = timeout(LONG, slow_stream(&mut client)).await.unwrap();
        // With the last one the connection goes, maybe before it is answered.
        let Ok(answer) = answer else { break };
        assert_eq!(answer.headers()["grpc-status"], "4");
    }
    assert!(timeout(LONG, connection).await.is_ok());
    daemon.settles_at("agentgauge_requests_refused_total{reason=\"slow\"}", 4.0);
    let closed = "agentgauge_connections_closed_total{reason=\"slow_bodies\"}";
    daemon.settles_at(closed, 1.0);
}

#[test]
fn an_object_of_many_names_is_read_in_time() {
    let daemon = Daemon::start();
    let names: Vec<String> = (0..200_000).map(|name| format!("\"{name}\":1")).collect();
    let report = format!(r#"{{"reports":[{{"score":{{{}}}}}]}}"#, names.join(","));
    let (address, length) = (&daemon.http, report.len());
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /api/v1/reports HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), report.as_bytes()].concat()).unwrap();
    // Before the answer, for which a daemon that compares each name with all others takes minutes.
    daemon.settles_at("agentgauge_spans_rejected_total{reason=\"report\"}", 1.0);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("expected a number or a boolean"), "{answer}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_request_of_small_things_in_json_takes_no_more_than_there_is_for_requests() {
    const CAP: u64 = 256 << 20;
    let head = r#"{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"0102030405060708","name":"x","attributes":["#;
    // Bodies that are small on the wire and become one ordered map each; most of them are admitted.
    for (item, many) in [(r#"{"key":"a"}"#, 500_000), (r#"{"a":1}"#, 510_000), ("1", 1_550_000)] {
        let daemon = Daemon::start_with(&[("AGENTGAUGE__INGEST__MAX_DECODED_BYTES", "268435456")]);
        let before = daemon.peak_bytes();
        let body = format!("{head}{}]}}]}}]}}]}}", vec![item; many].join(","));
        let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &body);
        assert_eq!(status, 200, "{item}: {answer}");
        let took = daemon.peak_bytes() - before;
        assert!(took <= CAP, "{item}: {took} bytes");
        // One that could take more is told so.
        let body = format!("{head}{}]}}]}}]}}]}}", vec![item; 2 * many].join(","));
        let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", &body);
        assert!(status == 413 && answer.contains("max_decoded_bytes"), "{item}: {answer}");
        assert!(daemon.peak_bytes() - before <= CAP);
        // Of one span that is taken and one that is refused the first is a trace that is no agent's.
        let account = Account { sent: 2, refused: 1, ..Account::default() };
        account.comes_to_add_up(
            || daemon.get("/metrics"),
            |page| sum(page, "agentgauge_traces_ignored_total", ""),
        );
    }
}
