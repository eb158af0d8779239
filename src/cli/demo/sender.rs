//! A real OTLP client: tonic's, over gRPC.

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use tonic::transport::{Channel, Endpoint};

use super::recording::{Recording, Stamp};
use crate::cli::CliError;
use crate::clock::Clock;

/// Sends turns of recordings.
pub(super) struct Sender {
    address: String,
    clock: Clock,
    seed: u64,
    traces: TraceServiceClient<Channel>,
    logs: LogsServiceClient<Channel>,
}

impl Sender {
    /// A client of the OTLP/gRPC receiver at `address`.
    pub(super) async fn connect(address: &str, clock: Clock) -> Result<Self, CliError> {
        let failed = |error: tonic::transport::Error| CliError::Client {
            address: address.to_owned(),
            why: error.to_string(),
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
        let channel = endpoint.connect().await.map_err(failed)?;
        Ok(Self {
            address: address.to_owned(),
            // So that a second demo sends other sessions.
            seed: clock.wall().0,
            clock,
            traces: TraceServiceClient::new(channel.clone()),
            logs: LogsServiceClient::new(channel),
        })
    }

    /// Sends one turn as it would be sent if it had just ended; nothing after the last.
    pub(super) async fn turn(
        &mut self,
        recording: &Recording,
        turn: usize,
        round: u64,
    ) -> Result<(), CliError> {
        let stamp = Stamp { seed: self.seed, round, now: self.clock.wall().0 };
        let Some((spans, logs)) = recording.stamped(turn, stamp) else { return Ok(()) };
        let failed = |status: tonic::Status| CliError::Client {
            address: self.address.clone(),
            why: status.to_string(),
        };
        self.traces.export(spans).await.map_err(failed)?;
        if !logs.resource_logs.is_empty() {
            self.logs.export(logs).await.map_err(failed)?;
        }
        Ok(())
    }
}
