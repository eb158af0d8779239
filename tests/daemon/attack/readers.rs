//! Readers of metrics and of the API that do not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::attackers::Attack;
use super::honest::{LONG, framed};
use crate::support::daemon::Daemon;
use crate::support::turn;

/// How long Prometheus waits by default.
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
        .replace("s-judged", &format!("s{agent}"))
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
    let line = cut.lines().find(|line| line.starts_with("agentgauge_answers_cut_total{"));
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

/// The least bytes that `api.max_unread_bytes` may be; half of it is for those without a tenant.
const BUDGET: (&str, &str) = ("AGENTGAUGE__API__MAX_UNREAD_BYTES", "1048576");
const SOON: (&str, &str) = ("AGENTGAUGE__SERVER__READ_TIMEOUT", "4s");

const SESSIONS: &str = "/api/v1/sessions?limit=1000";

/// A thousand agents, as gRPC asks for them.
const ALL: [u8; 3] = [0x28, 0xe8, 0x07];

/// So many sessions that two lists of them do not fit.
const SESSION_COUNT: u32 = 150;

/// Large answers that are asked for at once on a connection that takes nothing of them.
const UNREAD: u64 = 30;

/// The outcome of unread answers.
#[derive(Default)]
struct Unread {
    /// Answers that have begun and were not ended by the daemon, and the most of them at a time.
    open: AtomicUsize,
    most: AtomicUsize,
    ended: AtomicUsize,
    refused: AtomicUsize,
}

impl Unread {
    /// Waits for the answer, and for its end.
    async fn watch(&self, answer: h2::client::ResponseFuture) {
        // The connection may be closed.
        let Ok(answer) = answer.await else { return };
        let is_refused = answer.headers().get("grpc-status").is_some_and(|status| status == "14");
        if is_refused || answer.status() == StatusCode::SERVICE_UNAVAILABLE {
            assert!(is_refused || answer.headers().contains_key("retry-after"), "{answer:?}");
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        assert_eq!(answer.status(), StatusCode::OK);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
        let mut body = answer.into_body();
        assert!(body.data().await.is_none_or(|data| data.is_err()));
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Asks for an answer many times on a connection that takes nothing of any.
async fn ask_and_take_nothing(
    daemon: &Daemon,
    request: Request<()>,
    message: &Bytes,
) -> (Arc<Unread>, JoinSet<()>) {
    let stream = TcpStream::connect(&daemon.http).await.unwrap();
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    let (unread, mut tasks) = (Arc::<Unread>::default(), JoinSet::new());
    tasks.spawn(async { drop(connection.await) });
    for _ in 0..UNREAD {
        client = client.ready().await.unwrap();
        let (answer, mut sending) = client.send_request(request.clone(), false).unwrap();
        sending.send_data(message.clone(), true).unwrap();
        let unread = Arc::clone(&unread);
        tasks.spawn(async move { unread.watch(answer).await });
    }
    (unread, tasks)
}

/// The status and the body of an answer over HTTP/1, which is read to its end.
async fn ask(daemon: &Daemon, path: &str) -> (StatusCode, Bytes) {
    let stream = TokioIo::new(TcpStream::connect(&daemon.http).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "localhost").body(Full::<Bytes>::default());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    let status = answer.status();
    (status, answer.into_body().collect().await.unwrap().to_bytes())
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let soon = timeout(LONG, async {
        while !is_so().await {
            sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(soon.await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_hold_a_bounded_memory_and_give_it_back() {
    let daemon = Daemon::start_with(&[BUDGET, SOON]);
    for session in 1..=SESSION_COUNT {
        send(&daemon, SHOP, session).await;
    }
    let is_large = async || ask(&daemon, SESSIONS).await.1.len() > 300_000;
    eventually("a large answer", is_large).await;
    let request = Request::get(format!("http://localhost{SESSIONS}")).body(()).unwrap();
    let (unread, asking) = ask_and_take_nothing(&daemon, request, &Bytes::new()).await;
    let are_refused = async || unread.refused.load(Ordering::Relaxed) > 0;
    eventually("some are refused", are_refused).await;
    // Others continue: small answers at once, larger ones as soon as it is known that the previous ones are not read.
    assert_eq!(ask(&daemon, "/readyz").await.0, StatusCode::OK);
    assert!(scrape(&daemon, None).await.contains("agentgauge_build_info{"));
    let is_served = async || {
        let (status, body) = ask(&daemon, SESSIONS).await;
        status == StatusCode::OK && body.len() > 300_000
    };
    eventually("others are served", is_served).await;
    let are_over = async || {
        let over = unread.ended.load(Ordering::Relaxed) + unread.refused.load(Ordering::Relaxed);
        over as u64 == UNREAD
    };
    eventually("all are ended or refused", are_over).await;
    // Two of them do not fit; of one that makes way for the next it may be learned late that it was ended.
    assert!((1..=2).contains(&unread.most.load(Ordering::Relaxed)));
    assert!(is_served().await);
    let page = scrape(&daemon, None).await;
    assert!(page.contains("agentgauge_limits_reached_total{limit=\"api_unread_bytes\"}"), "{page}");
    assert!(page.contains("agentgauge_answers_cut_total{reason="), "{page}");
    drop(asking);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_answer_ends_by_itself_and_grpc_says_that_it_has_no_room() {
    let daemon = Daemon::start_with(&[BUDGET, SOON]);
    for session in 1..=SESSION_COUNT {
        send(&daemon, SHOP, session).await;
    }
    let all = format!("\"total\":{SESSION_COUNT}");
    let are_shown = async || {
        let page = ask(&daemon, "/api/v1/agents?limit=1").await.1;
        String::from_utf8_lossy(&page).contains(&all)
    };
    eventually("all agents are shown", are_shown).await;
    let path = "http://localhost/agentgauge.v1.QueryService/ListAgents";
    let request = Request::post(path).header("content-type", "application/grpc");
    let request = request.body(()).unwrap();
    let (unread, _asking) = ask_and_take_nothing(&daemon, request, &framed(&ALL)).await;
    let are_over = async || {
        let over = unread.ended.load(Ordering::Relaxed) + unread.refused.load(Ordering::Relaxed);
        over as u64 == UNREAD
    };
    eventually("all are ended or refused", are_over).await;
    assert!(unread.refused.load(Ordering::Relaxed) > 0);
    let page = scrape(&daemon, None).await;
    assert!(page.contains("agentgauge_answers_cut_total{reason=\"stalled\"}"), "{page}");
}
