//! The webhook against an endpoint that answers as it is told to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ring::hmac;
use serde_json::Value;

use crate::support::daemon::Daemon;

const DEADLINE: Duration = Duration::from_secs(30);
const SECRET: &str = "a secret of ours";

/// One request: its headers by lower-case name, and its body.
struct Call {
    head: String,
    body: String,
}

impl Call {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).unwrap().1
    }

    fn is_signed(&self) -> bool {
        let text = format!("{}.{}", self.header("x-agentgauge-timestamp"), self.body);
        let tag = self.header("x-agentgauge-signature").strip_prefix("v1=").unwrap();
        let tag: Vec<u8> = (0..tag.len() / 2)
            .map(|at| u8::from_str_radix(&tag[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        hmac::verify(&key, text.as_bytes(), &tag).is_ok()
    }
}

/// Answers with these statuses, one after the other, then always with the last; where it is, and what came.
fn endpoint(statuses: &'static [u16]) -> (String, Receiver<Call>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/runaway", listener.local_addr().unwrap());
    let (sender, calls) = mpsc::channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.iter();
        let mut status = 200;
        for stream in listener.incoming() {
            status = statuses.next().copied().unwrap_or(status);
            if sender.send(answer(stream.unwrap(), status)).is_err() {
                return;
            }
        }
    });
    (url, calls)
}

fn answer(mut stream: TcpStream, status: u16) -> Call {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let call = Call { head: head.to_owned(), body: body.to_owned() };
        if body.len() == call.header("content-length").parse::<usize>().unwrap() {
            write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .unwrap();
            return call;
        }
    }
}

fn daemon(url: &str, more: &[(&str, &str)]) -> Daemon {
    let mut environment = vec![
        ("AGENTGAUGE__WEBHOOK__URL", url),
        ("AGENTGAUGE__WEBHOOK__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__WEBHOOK__SEVERITY", "warning"),
        ("AGENTGAUGE_WEBHOOK_SECRET", SECRET),
    ];
    environment.extend(more);
    Daemon::start_with(&environment)
}

const SENT: &str = "agentgauge_webhook_sessions_total{outcome=\"sent\"}";

#[test]
fn a_looping_session_is_told_once_signed_and_with_evidence() {
    let (url, calls) = endpoint(&[503, 200]);
    let daemon = daemon(&url, &[("AGENTGAUGE__WEBHOOK__DRY_RUN", "false")]);
    daemon.send_capture("oi-openai");
    let (first, second) =
        (calls.recv_timeout(DEADLINE).unwrap(), calls.recv_timeout(DEADLINE).unwrap());
    assert!(first.is_signed() && second.is_signed());
    assert_eq!(first.body, second.body);
    assert_eq!(first.header("x-agentgauge-delivery"), second.header("x-agentgauge-delivery"));
    let body: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!(body["event"], "session_runaway");
    assert_eq!(body["session_id"], "sess-7f3a-0001");
    assert!(body["scope"].is_string());
    assert_eq!((&body["kind"], &body["severity"]), (&"exact_repeat".into(), &"warning".into()));
    let found = &body["loops"][0];
    assert_eq!(found["tool"], "search_docs");
    assert!(found["count"].as_u64().unwrap() >= 3);
    assert!(!second.body.contains("Mars"), "an argument got out: {}", second.body);
    assert!(!daemon.get("/metrics").contains(SECRET));
    daemon.settles_at(SENT, 1.0);
    // The session goes on looping: nobody is told again.
    assert!(calls.recv_timeout(Duration::from_millis(500)).is_err());
}

#[test]
fn by_default_nothing_is_sent() {
    let (url, calls) = endpoint(&[200]);
    let daemon = daemon(&url, &[]);
    daemon.send_capture("oi-openai");
    daemon.settles_at("agentgauge_webhook_sessions_total{outcome=\"dry_run\"}", 1.0);
    assert!(calls.try_recv().is_err());
}

#[test]
fn a_loop_that_is_not_bad_enough_is_not_told() {
    let (url, calls) = endpoint(&[200]);
    let more =
        [("AGENTGAUGE__WEBHOOK__DRY_RUN", "false"), ("AGENTGAUGE__WEBHOOK__SEVERITY", "critical")];
    let daemon = daemon(&url, &more);
    daemon.send_capture("oi-openai");
    daemon.metric("agentgauge_agent_reliability_score{");
    assert!(calls.try_recv().is_err());
    assert!(!daemon.get("/metrics").contains("agentgauge_webhook_sessions_total{"));
}

#[test]
fn what_the_endpoint_refuses_is_not_sent_again() {
    let (url, calls) = endpoint(&[400]);
    let daemon = daemon(&url, &[("AGENTGAUGE__WEBHOOK__DRY_RUN", "false")]);
    daemon.send_capture("oi-openai");
    assert!(calls.recv_timeout(DEADLINE).unwrap().is_signed());
    daemon.settles_at("agentgauge_webhook_sessions_total{outcome=\"failed\"}", 1.0);
    assert!(calls.recv_timeout(Duration::from_millis(1_500)).is_err());
}

#[test]
fn a_webhook_that_cannot_be_used_stops_the_start() {
    for (url, allow, words) in [
        ("https://hook.example/runaway", "false", "webhook.secret_file"),
        ("http://hook.example/runaway", "false", "webhook.allow_http"),
        ("http://169.254.169.254/", "true", "link-local"),
        ("nowhere", "false", "webhook.url"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
            .args(["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"])
            .args(["--http", "127.0.0.1:0"])
            .env("AGENTGAUGE__WEBHOOK__URL", url)
            .env("AGENTGAUGE__WEBHOOK__ALLOW_HTTP", allow)
            .env_remove("AGENTGAUGE_WEBHOOK_SECRET")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(64), "{url}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(words), "{url}: {message}");
    }
}
