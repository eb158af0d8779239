//! Clients that are slow or idle, until they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::honest::{EXPORT, Honest, LONG, Protocol, framed};
use crate::support::daemon::Daemon;

/// The announced length of a body; one byte of it is sent.
const ANNOUNCED: u32 = 16 << 20;

/// Requests of a connection whose answers are not read: their handling is work, too.
const STREAMS: u64 = 8;

/// The pause of a slow client.
const PAUSE: Duration = Duration::from_millis(250);

/// Clients that continue until this is dropped.
#[derive(Default)]
pub(crate) struct Attack {
    clients: JoinSet<()>,
    made: Arc<AtomicU64>,
}

impl Attack {
    /// One connection that announces four large bodies a second and sends a byte of each.
    pub(crate) async fn slow_streams(daemon: &Daemon, token: Option<&'static str>) -> Self {
        let mut attack = Self::default();
        let honest = Honest { protocol: Protocol::Grpc, token };
        let (address, made) = (daemon.grpc.clone(), Arc::clone(&attack.made));
        attack.clients.spawn(async move {
            loop {
                // It may be closed; then there is another one.
                let _ = slow_streams(&address, honest, &made).await;
                sleep(PAUSE).await;
            }
        });
        attack.has_made(4).await
    }

    /// Connections that announce a large body and send a byte of it, and so on with others.
    pub(crate) async fn slow_bodies(
        daemon: &Daemon,
        connections: u64,
        token: Option<&'static str>,
    ) -> Self {
        let mut attack = Self::default();
        for _ in 0..connections {
            let (address, made) = (daemon.otlp_http.clone(), Arc::clone(&attack.made));
            attack.clients.spawn(async move {
                loop {
                    let mut head = format!(
                        "POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\ncontent-length: {ANNOUNCED}\r\n"
                    );
                    if let Some(token) = token {
                        head = format!("{head}authorization: Bearer {token}\r\n");
                    }
                    if let Ok(mut stream) = TcpStream::connect(&address).await {
                        let begun = stream.write_all(format!("{head}\r\n\n").as_bytes()).await;
                        made.fetch_add(1, Ordering::Relaxed);
                        // As long as turns were held for such bodies, and a little.
                        let answered = stream.read_u8();
                        if begun.is_ok() {
                            let _ = timeout(4 * PAUSE, answered).await;
                        }
                    }
                    sleep(PAUSE / 10).await;
                }
            });
        }
        attack.has_made(connections).await
    }

    /// Connections without data; a dropped client does not return.
    pub(crate) async fn idle(address: &str, connections: u64) -> Self {
        let mut attack = Self::default();
        for _ in 0..connections {
            let (address, made) = (address.to_owned(), Arc::clone(&attack.made));
            attack.clients.spawn(async move {
                let stream = TcpStream::connect(&address).await;
                made.fetch_add(1, Ordering::Relaxed);
                if let Ok(mut stream) = stream {
                    let _ = stream.read_u8().await;
                    std::future::pending::<()>().await;
                }
            });
        }
        // Those over what the system queues are not even connected.
        attack.has_made(connections.min(100)).await
    }

    /// Connections on which the head of a request arrives a byte at a time; a dropped client reconnects.
    pub(crate) async fn slow_heads(address: &str, connections: u64) -> Self {
        let mut attack = Self::default();
        for _ in 0..connections {
            let (address, made) = (address.to_owned(), Arc::clone(&attack.made));
            attack.clients.spawn(async move {
                loop {
                    if let Ok(mut stream) = TcpStream::connect(&address).await {
                        let begun = stream.write_all(b"POST /v1/traces HTTP/1.1\r\nx-").await;
                        made.fetch_add(1, Ordering::Relaxed);
                        let mut open = begun.is_ok();
                        while open {
                            let answered = timeout(PAUSE, stream.read_u8()).await.is_ok();
                            open = !answered && stream.write_all(b"x").await.is_ok();
                        }
                    }
                    sleep(PAUSE).await;
                }
            });
        }
        attack.has_made(connections.min(100)).await
    }

    /// Connections that send requests and take none of the answers' bytes.
    pub(crate) async fn stalled_windows(daemon: &Daemon, connections: u64, body: &Bytes) -> Self {
        let mut attack = Self::default();
        let honest = Honest { protocol: Protocol::Grpc, token: None };
        for _ in 0..connections {
            let (address, made) = (daemon.grpc.clone(), Arc::clone(&attack.made));
            let body = framed(body);
            attack.clients.spawn(async move {
                let stream = TcpStream::connect(&address).await.unwrap();
                let (mut client, connection) = h2::client::Builder::new()
                    .initial_window_size(0)
                    .handshake::<_, Bytes>(stream)
                    .await
                    .unwrap();
                tokio::spawn(connection);
                let mut answers = Vec::new();
                for _ in 0..STREAMS {
                    let Ok(ready) = client.ready().await else { break };
                    client = ready;
                    let Ok((answer, mut sending)) = client.send_request(honest.request(()), false)
                    else {
                        break;
                    };
                    let _ = sending.send_data(body.clone(), true);
                    made.fetch_add(1, Ordering::Relaxed);
                    answers.push((answer, sending));
                }
                std::future::pending::<()>().await;
            });
        }
        attack.has_made(connections).await
    }

    /// Readers of metrics that take nothing of them.
    pub(crate) async fn stalled_readers(
        daemon: &Daemon,
        readers: u64,
        token: Option<&'static str>,
    ) -> Self {
        let mut attack = Self::default();
        for _ in 0..readers {
            let (address, made) = (daemon.http.clone(), Arc::clone(&attack.made));
            attack.clients.spawn(async move {
                let stream = TcpStream::connect(&address).await.unwrap();
                let (client, connection) = h2::client::Builder::new()
                    .initial_window_size(0)
                    .handshake::<_, Bytes>(stream)
                    .await
                    .unwrap();
                tokio::spawn(connection);
                let mut client = client.ready().await.unwrap();
                let mut request = Request::get("http://localhost/metrics");
                if let Some(token) = token {
                    request = request.header("authorization", format!("Bearer {token}"));
                }
                let (answer, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
                made.fetch_add(1, Ordering::Relaxed);
                // The head comes; more than that is not taken.
                let _answer = answer.await;
                std::future::pending::<()>().await;
            });
        }
        attack.has_made(readers).await
    }

    /// Waits until it is under way.
    async fn has_made(self, least: u64) -> Self {
        let made = timeout(LONG, async {
            while self.made.load(Ordering::Relaxed) < least {
                sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(made.await.is_ok(), "no attack");
        self
    }
}

async fn slow_streams(address: &str, honest: Honest, made: &AtomicU64) -> Result<(), h2::Error> {
    let stream = TcpStream::connect(address).await.map_err(|_| h2::Reason::CONNECT_ERROR)?;
    let (mut client, connection) = h2::client::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let mut streams = Vec::new();
    let mut first = true;
    while !connection.is_finished() {
        client = client.ready().await?;
        let (answer, mut body) = client.send_request(honest.request(()), false)?;
        let begin = [&[0][..], &ANNOUNCED.to_be_bytes(), &[10]].concat();
        body.send_data(begin.into(), false)?;
        made.fetch_add(1, Ordering::Relaxed);
        streams.push((answer, body));
        // The first ones at once, so that a round need not wait for them.
        first &= streams.len() < 4;
        if !first {
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Begins a gRPC request with an unfinished body; returns the answer.
pub(crate) async fn slow_stream(
    client: &mut h2::client::SendRequest<Bytes>,
) -> Result<http::Response<h2::RecvStream>, h2::Error> {
    let request = Request::post(format!("http://localhost{EXPORT}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let (answer, mut body) = client.send_request(request, false)?;
    body.send_data(Bytes::from_static(&[0, 1, 0, 0, 0, 10]), false)?;
    answer.await
}
