//! Well-behaved senders, and how many of their requests are answered beside attackers.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use agentgauge::clock::Clock;
use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::daemon::Daemon;

pub(crate) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Hundredths of their rate that honest senders have to keep. They do keep 90, on a quiet machine and in a release build:
/// `AGENTGAUGE_ATTACK_KEPT` asks for as many as it says.
const KEPT: u64 = 60;

/// Rounds, one of which has to succeed.
const ROUNDS: u32 = 4;

/// Senders, and requests of each in a round; `AGENTGAUGE_ATTACK_REQUESTS` for another number of these.
const SENDERS: u64 = 8;
const REQUESTS: u64 = 40;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Grpc,
    Http,
}

/// How honest senders send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Honest {
    pub(crate) protocol: Protocol,
    pub(crate) token: Option<&'static str>,
}

/// The outcome of some requests.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Nanoseconds of each that was answered well.
    answered: Vec<u64>,
    refused: u64,
    /// Connections that were lost; a sender makes another one.
    broken: u64,
}

enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

struct Sender {
    address: String,
    honest: Honest,
    connection: Option<Connection>,
}

impl Honest {
    /// Runs rounds without and with an attack until one shows that its senders keep their rate; nothing may be refused.
    pub(crate) async fn keeps_its_rate<A>(self, daemon: &Daemon, attack: impl AsyncFn() -> A) {
        let requests = number("AGENTGAUGE_ATTACK_REQUESTS", REQUESTS);
        let kept = number("AGENTGAUGE_ATTACK_KEPT", KEPT) as f64 / 100.0;
        let mut shares = Vec::new();
        // Costs that a first round would pay for all.
        self.round(daemon, REQUESTS, LONG).await;
        for _ in 0..ROUNDS {
            let (quiet, before) = self.round(daemon, requests, LONG).await;
            let all = usize::try_from(SENDERS * requests).unwrap();
            assert_eq!((before.answered.len(), before.refused), (all, 0), "{self:?}");
            let attacking = attack().await;
            let (attacked, beside) = self.round(daemon, requests, 3 * quiet).await;
            let resident = daemon.metric("process_resident_memory_bytes");
            drop(attacking);
            let rate = |outcome: &Outcome, took: Duration| {
                outcome.answered.len() as f64 / took.as_secs_f64()
            };
            let (quiet, attacked) = (rate(&before, quiet), rate(&beside, attacked));
            let share = attacked / quiet;
            shares.push(share);
            println!(
                "{self:?}: {quiet:.0} requests/s, p99 {:.1} ms; attacked {attacked:.0} ({:.0} %), p99 {:.1} ms, {} refused, {} connections lost, {:.0} MB",
                p99(&before),
                100.0 * share,
                p99(&beside),
                beside.refused,
                beside.broken,
                resident / 1e6,
            );
            assert_eq!(beside.refused, 0, "{self:?}: {shares:.2?}");
            if share >= kept {
                return;
            }
        }
        panic!("{self:?} kept only {shares:.2?} of their rates");
    }

    /// This many requests of each sender on their own connections, once each has one, or as many as are answered within a time; and
    /// how long that took.
    async fn round(self, daemon: &Daemon, requests: u64, within: Duration) -> (Duration, Outcome) {
        let clock = Clock::system();
        let connected = Arc::new(Barrier::new(usize::try_from(SENDERS + 1).unwrap()));
        let mut senders = JoinSet::new();
        for number in 0..SENDERS {
            let mut sender = Sender::new(daemon, self);
            let (clock, connected) = (clock.clone(), Arc::clone(&connected));
            let messages: Vec<Bytes> =
                (0..8).map(|request| message(number * REQUESTS + request)).collect();
            senders.spawn(async move {
                let mut outcome = Outcome::default();
                let mut unmeasured = Outcome::default();
                let first = sender.send(&messages[0], &mut unmeasured);
                assert!(timeout(LONG, first).await.unwrap(), "a first request was refused");
                connected.wait().await;
                let end = clock.now().0 + u64::try_from(within.as_nanos()).unwrap();
                for message in messages.iter().cycle().take(usize::try_from(requests).unwrap()) {
                    let sent = clock.now().0;
                    let left = Duration::from_nanos(end.saturating_sub(sent));
                    match timeout(left, sender.send(message, &mut outcome)).await {
                        Ok(true) => outcome.answered.push(clock.now().0 - sent),
                        Ok(false) => outcome.refused += 1,
                        Err(_) => break,
                    }
                }
                outcome
            });
        }
        connected.wait().await;
        let begin = clock.now();
        let mut all = Outcome::default();
        while let Some(outcome) = senders.join_next().await {
            let Outcome { answered, refused, broken } = outcome.unwrap();
            all.answered.extend(answered);
            all.refused += refused;
            all.broken += broken;
        }
        all.answered.sort_unstable();
        (Duration::from_nanos(clock.now().0 - begin.0), all)
    }

    pub(crate) fn address(self, daemon: &Daemon) -> String {
        match self.protocol {
            Protocol::Grpc => daemon.grpc.clone(),
            Protocol::Http => daemon.otlp_http.clone(),
        }
    }

    /// A request of its kind with this body, framed as it has to be.
    pub(crate) fn request<B>(self, body: B) -> Request<B> {
        let request = Request::post(match self.protocol {
            Protocol::Grpc => format!("http://localhost{EXPORT}"),
            Protocol::Http => "/v1/traces".to_owned(),
        });
        let request = match self.protocol {
            Protocol::Grpc => request.header("content-type", "application/grpc"),
            Protocol::Http => {
                request.header("host", "localhost").header("content-type", "application/x-protobuf")
            }
        };
        let authorization = self.token.map(|token| format!("Bearer {token}"));
        let request = authorization
            .into_iter()
            .fold(request, |request, authorization| request.header("authorization", authorization));
        request.body(body).unwrap()
    }
}

impl Sender {
    fn new(daemon: &Daemon, honest: Honest) -> Self {
        Self { address: honest.address(daemon), honest, connection: None }
    }

    /// Sends until it is answered; whether that was well.
    async fn send(&mut self, message: &Bytes, outcome: &mut Outcome) -> bool {
        loop {
            if let Ok(is_well) = self.exchange(message).await {
                return is_well;
            }
            outcome.broken += 1;
            self.connection = None;
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether a request was answered well.
    async fn exchange(&mut self, message: &Bytes) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.address, self.honest.protocol).await?),
        };
        let answer = match connection {
            Connection::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(self.honest.request(Full::new(message.clone()))).await?
            }
            Connection::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(self.honest.request(Full::new(framed(message)))).await?
            }
        };
        Ok(is_well(answer).await?)
    }
}

async fn connect(
    address: &str,
    protocol: Protocol,
) -> Result<Connection, Box<dyn Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let stream = TokioIo::new(stream);
    Ok(match protocol {
        Protocol::Http => {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Connection::Http1(sender)
        }
        Protocol::Grpc => {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Connection::Http2(sender)
        }
    })
}

async fn is_well(answer: Response<Incoming>) -> Result<bool, hyper::Error> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = trailers.get("grpc-status").or_else(|| head.headers.get("grpc-status"));
    Ok(head.status.is_success() && status.is_none_or(|status| status == "0"))
}

/// A number that a variable of the environment says.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    let found = std::env::vars_os().find(|(key, _)| key == name);
    found.map_or(default, |(_, value)| value.to_str().unwrap().parse().unwrap())
}

/// Milliseconds that one of a hundred takes at least.
fn p99(outcome: &Outcome) -> f64 {
    let at = (outcome.answered.len() * 99 / 100).min(outcome.answered.len().saturating_sub(1));
    outcome.answered.get(at).map_or(f64::NAN, |nanos| *nanos as f64 / 1e6)
}

/// A message as gRPC frames it.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.extend_from_slice(message);
    frame.freeze()
}

/// A request of a few spans; every fourth has texts, and is larger than what is read before its turn.
fn message(number: u64) -> Bytes {
    let text = if number.is_multiple_of(4) { 10_000 } else { 100 };
    let attribute = |key: &str, value: String| {
        let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value)) });
        KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
    };
    let spans = (1..=10_u64).map(|span| Span {
        trace_id: u128::from(number + 1).to_be_bytes().to_vec(),
        span_id: span.to_be_bytes().to_vec(),
        name: "chat".to_owned(),
        attributes: vec![
            attribute("gen_ai.operation.name", "chat".to_owned()),
            attribute("some.text", "x".repeat(text)),
        ],
        ..Span::default()
    });
    let scope_spans = vec![ScopeSpans { spans: spans.collect(), ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec().into()
}
