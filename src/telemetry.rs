//! The daemon's own telemetry: a span for each request and for each slow step, sampled, and its log, to an OTLP/HTTP endpoint.
//!
//! It is off unless `telemetry.otlp_endpoint` is set. OpenTelemetry's SDK has a bounded queue and its own thread, so nothing waits
//! for the endpoint. Telemetry never causes telemetry: requests from an agentgauge, which is recognised by its `user-agent`, have
//! no span, and a start refuses an endpoint that is the daemon's own.

use std::sync::OnceLock;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{Request, Response};
use opentelemetry::logs::{AnyValue, LogRecord, Logger, LoggerProvider, Severity};
use opentelemetry::trace::{Span as _, SpanKind, Tracer, TracerProvider};
use opentelemetry::{KeyValue, Value};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::logs::tonic::group_logs_by_resource_and_scope;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::logs::{LogBatch, LogExporter, SdkLogger, SdkLoggerProvider};
use opentelemetry_sdk::trace::{
    Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter,
};
use prometheus::IntCounterVec;
use prost::Message;
use tokio::runtime::Handle;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::blocking::blocking;
use crate::outbound::{Client, ClientOptions, EndpointError, check};
use crate::registry::Registry;

crate::engine::options! {
    /// Where the daemon's own telemetry goes.
    pub struct TelemetryOptions in "telemetry" {
        /// An OTLP/HTTP endpoint, such as `https://collector:4318`; empty: none. Not this daemon.
        pub otlp_endpoint: String = String::new();
        /// Send over plain http too, where the address says so.
        pub allow_http: bool = false;
        /// The share of requests and slow steps that have a span, from 0 to 1.
        pub sample_rate: f64 = 0.01, within 0.0..=1.0;
        /// Send the log there too.
        pub logs: bool = false;
    }
}

/// Why telemetry cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint is the daemon's own.
    #[error(
        "`telemetry.otlp_endpoint` is this daemon's own `{key}`, so its telemetry would return to it; name another collector"
    )]
    Own {
        /// The option that sets the address.
        key: &'static str,
    },
    /// The metrics of telemetry cannot be set up.
    #[error("cannot set up the metrics of telemetry: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The running telemetry, which sends until it is stopped.
#[derive(Debug)]
pub struct Telemetry {
    tracers: SdkTracerProvider,
    loggers: Option<SdkLoggerProvider>,
}

/// A step in progress; its span, if it has one, ends when it is dropped.
#[derive(Debug)]
pub struct Step(Option<Span>);

/// A layer of the subscriber that sends the program's log events, if that is configured.
#[derive(Clone, Copy, Debug)]
pub struct Logs;

/// Posts requests from the threads of the SDK.
#[derive(Clone, Debug)]
struct Sender {
    client: Client,
    url: String,
    runtime: Handle,
    outcomes: IntCounterVec,
}

/// Exports the data of this resource.
#[derive(Debug)]
struct Exporter {
    sender: Sender,
    resource: ResourceAttributesWithSchema,
}

/// The addresses at which the daemon itself accepts telemetry, each with its option.
pub type OwnAddresses<'a> = [(&'static str, &'a str); 2];

/// The tracer and the logger of the process.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();
static LOGGER: OnceLock<SdkLogger> = OnceLock::new();

/// The most bytes of a reply that are read.
const MAX_REPLY_BYTES: usize = 65_536;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long the last request of each signal may take while the daemon stops.
const LAST: Duration = Duration::from_secs(1);

/// The name of the service, the tracer and the logger.
const NAME: &str = "agentgauge";

/// The target of this module's log events, which are not sent: an event about a failed request would cause another request.
const OWN_TARGET: &str = module_path!();

impl Telemetry {
    /// Checks the options as [`Self::start`] does.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be used, or is the daemon's own.
    pub fn check(options: &TelemetryOptions, own: &OwnAddresses<'_>) -> Result<(), TelemetryError> {
        let (key, allow) = ("telemetry.otlp_endpoint", "telemetry.allow_http");
        if options.otlp_endpoint.is_empty() {
            return Ok(());
        }
        let uri = check(key, allow, &options.otlp_endpoint, options.allow_http)?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if options.allow_http { 80 } else { 443 });
        let is_here = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "::1" | "0.0.0.0");
        for (key, own) in *own {
            let Some((own_host, own_port)) = own.rsplit_once(':') else { continue };
            let own_host = own_host.trim_matches(['[', ']']);
            let is_own =
                own_host == host || (is_here(host) && (is_here(own_host) || own_host == "::"));
            if is_own && own_port == port.to_string() {
                return Err(TelemetryError::Own { key });
            }
        }
        Ok(())
    }

    /// Starts sending, if there is an endpoint.
    ///
    /// # Errors
    ///
    /// As [`Self::check`], and if the client or the metrics cannot be set up.
    pub fn start(
        options: &TelemetryOptions,
        own: &OwnAddresses<'_>,
        registry: &Registry,
    ) -> Result<Option<Self>, TelemetryError> {
        Self::check(options, own)?;
        if options.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let outcomes = outcomes(registry)?;
        let limits = ClientOptions {
            allow_http: options.allow_http,
            max_reply_bytes: MAX_REPLY_BYTES,
            timeout: TIMEOUT,
        };
        let client = Client::new("telemetry.otlp_endpoint", limits)?;
        let url = options.otlp_endpoint.trim_end_matches('/').to_owned();
        let sender = Sender { client, url, runtime: Handle::current(), outcomes };
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource =
            Resource::builder_empty().with_service_name(NAME).with_attribute(version).build();
        let nothing = ResourceAttributesWithSchema::default;
        let spans = Exporter { sender: sender.clone(), resource: nothing() };
        let tracers = SdkTracerProvider::builder()
            .with_sampler(Sampler::TraceIdRatioBased(options.sample_rate))
            .with_resource(resource.clone())
            .with_batch_exporter(spans)
            .build();
        // Fails only for a second daemon in the process, which uses the tracer of the first.
        let _ = TRACER.set(tracers.tracer(NAME));
        let loggers = options.logs.then(|| {
            let records = Exporter { sender, resource: nothing() };
            let loggers = SdkLoggerProvider::builder().with_resource(resource);
            loggers.with_batch_exporter(records).build()
        });
        loggers.iter().for_each(|loggers| drop(LOGGER.set(loggers.logger(NAME))));
        Ok(Some(Self { tracers, loggers }))
    }

    /// Sends what is left, and stops.
    pub async fn stop(self) {
        let stopped = blocking(move || {
            // Data that the endpoint does not accept within this time is lost.
            let _ = self.tracers.shutdown_with_timeout(LAST);
            let _ = self.loggers.map(|loggers| loggers.shutdown_with_timeout(LAST));
        });
        // It does not panic; if it did, there would be nothing left to send.
        let _ = stopped.await;
    }
}

/// Begins a slow step.
pub fn step(name: &'static str) -> Step {
    Step(TRACER.get().map(|tracer| tracer.start(name)))
}

/// Begins the step of a request; it has no span if the request is from an agentgauge.
pub fn request<B>(request: &Request<B>) -> Step {
    let Some(tracer) = TRACER.get() else { return Step(None) };
    let agent = request.headers().get(USER_AGENT).map(http::HeaderValue::as_bytes);
    if agent.is_some_and(|agent| agent.starts_with(b"agentgauge/")) {
        return Step(None);
    }
    let route = route(request.uri().path());
    let method = request.method().as_str().to_owned();
    let builder = tracer.span_builder(route).with_kind(SpanKind::Server);
    let attributes =
        [KeyValue::new("http.request.method", method), KeyValue::new("http.route", route)];
    Step(Some(builder.with_attributes(attributes).start(tracer)))
}

/// The known beginning of a path; `other` if there is none. The rest may contain names of sessions, or anything else.
fn route(path: &str) -> &'static str {
    let known = ROUTES.iter().find(|route| {
        path.strip_prefix(**route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    known.copied().unwrap_or("other")
}

const ROUTES: [&str; 12] = [
    "/v1/traces",
    "/v1/logs",
    "/v1/metrics",
    "/opentelemetry.proto.collector.trace.v1.TraceService",
    "/opentelemetry.proto.collector.logs.v1.LogsService",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService",
    "/metrics",
    "/healthz",
    "/readyz",
    "/api/v1/sessions",
    "/api/v1/agents",
    "/api/v1",
];

impl Step {
    /// Sets an attribute of its span, if it has one.
    pub fn note(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Self(Some(span)) = self {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Sets the status of the answer to its request.
    pub fn answered<B>(&mut self, response: &Response<B>) {
        self.note("http.response.status_code", i64::from(response.status().as_u16()));
        let status = response.headers().get("grpc-status").and_then(|status| status.to_str().ok());
        if let Some(status) = status.and_then(|status| status.parse::<i64>().ok()) {
            self.note("rpc.grpc.status_code", status);
        }
    }
}

impl Sender {
    async fn send(
        &self,
        signal: &'static str,
        path: &'static str,
        count: usize,
        body: Vec<u8>,
    ) -> OTelSdkResult {
        let (client, url) = (self.client.clone(), format!("{}{path}", self.url));
        let post =
            async move { client.post(&url, &[], "application/x-protobuf", body).await.is_ok() };
        let sent = self.runtime.spawn(post).await.unwrap_or(false);
        let outcome = if sent { "sent" } else { "dropped" };
        self.outcomes.with_label_values(&[signal, outcome]).inc_by(count as u64);
        let failed = || OTelSdkError::InternalFailure("the endpoint did not take it".to_owned());
        if sent { Ok(()) } else { Err(failed()) }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        self.sender.send("spans", "/v1/traces", count, body).await
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

impl LogExporter for Exporter {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let count = batch.iter().count();
        let resource_logs = group_logs_by_resource_and_scope(&batch, &self.resource);
        let body = ExportLogsServiceRequest { resource_logs }.encode_to_vec();
        self.sender.send("logs", "/v1/logs", count, body).await
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

impl<S: Subscriber> Layer<S> for Logs {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(logger) = LOGGER.get() else { return };
        let target = event.metadata().target();
        if !target.starts_with(NAME) || target == OWN_TARGET {
            return;
        }
        let mut record = logger.create_log_record();
        let level = *event.metadata().level();
        record.set_severity_number(severity(level));
        record.set_severity_text(level.as_str());
        event.record(&mut Fields(&mut record));
        logger.emit(record);
    }
}

fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        Level::TRACE => Severity::Trace,
    }
}

/// Writes the fields of an event into its log record.
struct Fields<'r, R>(&'r mut R);

impl<R: LogRecord> Fields<'_, R> {
    fn add(&mut self, field: &Field, value: impl Into<AnyValue>) {
        if field.name() == "message" {
            self.0.set_body(value.into());
        } else {
            self.0.add_attribute(field.name(), value);
        }
    }
}

impl<R: LogRecord> Visit for Fields<'_, R> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

/// Registers the counter of spans and log records.
pub(crate) fn outcomes(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Spans and log records of the daemon's own telemetry, by signal and outcome: sent or dropped.";
    registry.counters("telemetry_out_total", help, &["signal", "outcome"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> TelemetryOptions {
        let otlp_endpoint = url.to_owned();
        TelemetryOptions { otlp_endpoint, allow_http: true, ..TelemetryOptions::default() }
    }

    #[test]
    fn its_own_address_is_refused() {
        let listen = [("listen.otlp_http", "0.0.0.0:4318"), ("listen.otlp_grpc", "[::1]:4317")];
        for url in ["http://localhost:4318", "http://127.0.0.1:4318/", "http://0.0.0.0:4318"] {
            let refused = Telemetry::check(&options(url), &listen);
            assert!(
                matches!(refused, Err(TelemetryError::Own { key: "listen.otlp_http" })),
                "{url}"
            );
        }
        for url in ["http://localhost:14318", "http://collector:4318", ""] {
            assert!(Telemetry::check(&options(url), &listen).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_route_says_nothing_that_a_sender_made_up() {
        let routes = ["/v1/traces", "/api/v1/sessions/secret?x", "/metricsx", "/api/v1/new"];
        let expected = ["/v1/traces", "/api/v1/sessions", "other", "/api/v1"];
        assert_eq!(routes.map(route), expected);
    }
}
