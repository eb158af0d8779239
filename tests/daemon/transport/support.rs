//! A daemon's ingest on a free port, with a sink that records, and clients that can misbehave.

use std::collections::BTreeMap;
use std::future::pending;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::time::Moment;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::server::{ServerOptions, serve};
use agentgauge::ingest::{
    Batch, LeftOut, Observe, Overloaded, Receiver, RequestCounts, Sink, grpc, http,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

pub(crate) const NOW: u64 = 1_790_000_000_000_000_000;

/// The behaviour of a sink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mood {
    Accept,
    Refuse,
    Panic,
    /// Waits for [`Recorder::let_go`].
    Hold,
}

/// A sink that remembers what it accepted.
#[derive(Clone)]
pub(crate) struct Recorder {
    mood: Arc<Mutex<Mood>>,
    batches: Arc<Mutex<Vec<Batch>>>,
    entered: Arc<AtomicU64>,
    seen: Arc<Mutex<Recorded>>,
    gate: Arc<Semaphore>,
}

/// The counts of a recorder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    /// Requests and spans by transport and encoding.
    pub(crate) received: BTreeMap<(&'static str, &'static str), (u64, u64)>,
    pub(crate) rejected: BTreeMap<&'static str, u64>,
    pub(crate) repaired: BTreeMap<&'static str, u64>,
    pub(crate) refused: BTreeMap<&'static str, u64>,
    pub(crate) waited: BTreeMap<&'static str, u64>,
}

/// Ingest that runs.
pub(crate) struct Ingest {
    pub(crate) address: SocketAddr,
    pub(crate) receiver: Receiver<Recorder>,
    pub(crate) sink: Recorder,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

/// How to set ingest up.
pub(crate) struct Setup {
    pub(crate) limits: IngestLimits,
    pub(crate) options: ServerOptions,
    pub(crate) grpc: bool,
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Recorder {
    fn new() -> Self {
        Self {
            mood: Arc::new(Mutex::new(Mood::Accept)),
            batches: Arc::default(),
            entered: Arc::default(),
            seen: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }

    pub(crate) fn becomes(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(crate) fn let_go(&self) {
        self.gate.add_permits(1);
    }

    /// Batches that arrived, whatever their outcome.
    pub(crate) fn entered(&self) -> u64 {
        self.entered.load(Ordering::SeqCst)
    }

    pub(crate) fn span_names(&self) -> Vec<String> {
        let batches = self.batches.lock().unwrap();
        batches.iter().flat_map(|batch| &batch.spans).map(|span| span.name.to_string()).collect()
    }

    /// What was counted.
    pub(crate) fn seen(&self) -> Recorded {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn batches(&self) -> usize {
        self.batches.lock().unwrap().len()
    }
}

impl Sink for Recorder {
    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Accept => {}
            Mood::Refuse => return Err(Overloaded::after(Duration::from_secs(7))),
            Mood::Panic => panic!("the sink was told to"),
            Mood::Hold => self.gate.acquire().await.unwrap().forget(),
        }
        self.batches.lock().unwrap().push(batch);
        Ok(LeftOut::default())
    }
}

impl Observe for Recorder {
    fn waited(&self, outcome: &'static str) {
        *self.seen.lock().unwrap().waited.entry(outcome).or_default() += 1;
    }

    fn received(&self, transport: &'static str, encoding: &'static str, tally: &RequestCounts) {
        let mut seen = self.seen.lock().unwrap();
        let (requests, spans) = seen.received.entry((transport, encoding)).or_default();
        (*requests, *spans) = (*requests + 1, *spans + tally.spans);
        for (reason, count) in &tally.rejected {
            *seen.rejected.entry(reason).or_default() += count;
        }
        for (reason, count) in &tally.repaired {
            *seen.repaired.entry(reason).or_default() += count;
        }
    }

    fn refused(&self, reason: &'static str) {
        *self.seen.lock().unwrap().refused.entry(reason).or_default() += 1;
    }
}

impl Setup {
    pub(crate) fn http() -> Self {
        let (limits, options) = Default::default();
        Self { limits, options, grpc: false }
    }

    pub(crate) fn grpc() -> Self {
        Self { grpc: true, ..Self::http() }
    }

    pub(crate) fn max_request_bytes(mut self, max: usize) -> Self {
        self.limits.max_request_bytes = max;
        self
    }

    pub(crate) async fn start(self) -> Ingest {
        let sink = Recorder::new();
        let decoder = Decoder::new(self.limits, ConventionOptions::default());
        let receiver = Receiver::new(
            decoder,
            sink.clone(),
            Arc::new(sink.clone()),
            Arc::new(|| Moment { now: Timestamp(NOW), wall: Timestamp(NOW) }),
            self.options.read_timeout,
        );
        let answers = if self.grpc {
            grpc::answers(receiver.clone(), "127.0.0.1:4318".parse().ok())
        } else {
            http::answers(receiver.clone())
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(listener, answers, self.options, |_| {}, async {
            if stopped.await.is_err() {
                pending::<()>().await;
            }
        }));
        Ingest { address, receiver, sink, stop: Some(stop), served }
    }
}

impl Ingest {
    /// Posts over HTTP/1.
    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
        let body = Full::new(Bytes::from(body));
        exchange_http1(self.address, request("POST", path, headers, body)).await
    }

    /// Asks to stop, without waiting.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Whether it has stopped.
    pub(crate) fn stopped(&self) -> bool {
        self.served.is_finished()
    }
}

pub(crate) fn request<B>(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: B,
) -> Request<B> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

/// One exchange over HTTP/1.
pub(crate) async fn exchange_http1<B>(address: SocketAddr, request: Request<B>) -> Answer
where
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let answer = answer(sender.send_request(request).await.unwrap()).await;
    connection.abort();
    answer
}

/// One exchange over HTTP/2.
pub(crate) async fn exchange_http2(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    answer(sender.send_request(request).await.unwrap()).await
}

async fn answer(response: hyper::Response<hyper::body::Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    Answer { status: head.status, headers: head.headers, body: body.to_bytes(), trailers }
}

/// Polls until it holds.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let polled = tokio::time::timeout(Duration::from_secs(60), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(polled.await.is_ok(), "{what}");
}

/// A request with one span of this name.
pub(crate) fn spans(names: &[&str]) -> ExportTraceServiceRequest {
    let span = |(at, name): (usize, &&str)| Span {
        trace_id: vec![7; 16],
        span_id: (at as u64 + 1).to_be_bytes().into(),
        name: (*name).to_owned(),
        start_time_unix_nano: NOW - 2_000,
        end_time_unix_nano: NOW - 1_000,
        ..Span::default()
    };
    let spans = names.iter().enumerate().map(span).collect();
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }],
    }
}

pub(crate) fn protobuf(names: &[&str]) -> Vec<u8> {
    spans(names).encode_to_vec()
}

pub(crate) fn json(names: &[&str]) -> Vec<u8> {
    serde_json::to_vec(&spans(names)).unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}
