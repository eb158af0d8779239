//! A real OTLP client, with tonic, over gRPC.

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use tonic::transport::{Channel, Endpoint};

use super::story::SentTraces;
use crate::cli::CliError;

/// Sends the spans and log records of the agents.
pub(super) struct Sender {
    address: String,
    traces: TraceServiceClient<Channel>,
    logs: LogsServiceClient<Channel>,
}

impl Sender {
    /// A client of the OTLP/gRPC receiver at `address`.
    pub(super) async fn connect(address: &str) -> Result<Self, CliError> {
        let failed = |error: tonic::transport::Error| CliError::Client {
            address: address.to_owned(),
            why: error.to_string(),
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
        let channel = endpoint.connect().await.map_err(failed)?;
        Ok(Self {
            address: address.to_owned(),
            traces: TraceServiceClient::new(channel.clone()),
            logs: LogsServiceClient::new(channel),
        })
    }

    /// Sends all requests.
    pub(super) async fn send(&mut self, sent: SentTraces) -> Result<(), CliError> {
        let failed = |status: tonic::Status| CliError::Client {
            address: self.address.clone(),
            why: status.to_string(),
        };
        for spans in sent.spans {
            self.traces.export(spans).await.map_err(failed)?;
        }
        for logs in sent.logs {
            self.logs.export(logs).await.map_err(failed)?;
        }
        Ok(())
    }
}
