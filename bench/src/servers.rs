//! The servers to compare with, each in a separate process, which show the cost of receiving and that of decoding.
//!
//! Both are tonic's server in one thread, with the frame and window sizes of the daemon. `floor` joins the bytes of a message, as
//! tonic does before it decodes, and drops them. `stock` is the generated service: tonic inflates a message, prost decodes it, and
//! it is dropped.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use clap::ValueEnum;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::Service;

use agentgauge::ingest::server::{MAX_STREAMS, STREAM_WINDOW_BYTES};

/// The kind of server.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sink {
    /// Receives and drops bytes.
    Floor,
    /// Decodes and drops.
    Stock,
    /// Reads from Kafka and drops.
    #[cfg(feature = "kafka")]
    Kafka,
}

/// The flag and the length before a message.
const PREFIX_BYTES: usize = 5;

/// A message of no bytes: not compressed, length 0.
const EMPTY: &[u8] = &[0; PREFIX_BYTES];

/// The greatest allocation at once, which is more than any request of the bench needs.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Serves on a free port of the loopback until the process is ended; prints the address in one line of JSON.
///
/// # Errors
///
/// Fails if no port is free or the address cannot be written.
pub(crate) fn serve(which: Sink, out: &mut dyn Write) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let incoming =
            TcpIncoming::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.with_nodelay(Some(true));
        let bound = serde_json::json!({ "otlp_grpc": incoming.local_addr()? });
        writeln!(out, "{bound}")?;
        out.flush()?;
        let mut server = Server::builder()
            .max_frame_size(256 << 10)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(MAX_STREAMS * STREAM_WINDOW_BYTES)
            .max_concurrent_streams(MAX_STREAMS);
        let router = match which {
            Sink::Floor => server.add_service(Floor),
            #[cfg(feature = "kafka")]
            Sink::Kafka => return Err(std::io::Error::other("it reads, and serves nobody")),
            Sink::Stock => {
                let service = TraceServiceServer::new(Stock)
                    .accept_compressed(CompressionEncoding::Gzip)
                    .accept_compressed(CompressionEncoding::Zstd);
                server.add_service(service)
            }
        };
        router.serve_with_incoming(incoming).await.map_err(std::io::Error::other)
    })
}

/// The stock server, which decodes and drops.
struct Stock;

#[tonic::async_trait]
impl TraceService for Stock {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        drop(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The floor, which receives and drops.
#[derive(Clone)]
struct Floor;

impl NamedService for Floor {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<Request<Body>> for Floor {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async { Ok(answer(received(request.into_body()).await)) })
    }
}

/// Receives a message; returns whether all of it arrived.
async fn received(mut body: Body) -> bool {
    let mut message = BytesMut::new();
    let mut length = None;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let Some(data) = frame.data_ref() else { continue };
        message.extend_from_slice(data);
        if length.is_none() {
            length = length_of(&message);
            // Makes room for the whole message at once, as tonic does.
            message.reserve(length.unwrap_or(0).min(MAX_MESSAGE_BYTES));
        }
    }
    length.is_some_and(|length| length + PREFIX_BYTES == message.len())
}

/// The length of a message by its prefix; `None` if the prefix has not arrived yet.
fn length_of(message: &[u8]) -> Option<usize> {
    let (&[_, ref length @ ..], _) = message.split_first_chunk::<PREFIX_BYTES>()?;
    usize::try_from(u32::from_be_bytes(*length)).ok()
}

fn answer(whole: bool) -> Response<Body> {
    // 13: INTERNAL
    let status = HeaderValue::from_static(if whole { "0" } else { "13" });
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), status)]);
    let body = Full::new(Bytes::from_static(EMPTY)).with_trailers(std::future::ready(Some(Ok::<
        _,
        Infallible,
    >(
        trailers,
    ))));
    let mut response = Response::new(Body::new(body));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}
