//! Agents that send log records, over the transport that they use by default.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use prost::Message;
use serde_json::Value;

use crate::support::daemon::{Daemon, until};

/// The requests of a recording, in their order.
fn requests(capture: &str) -> Vec<ExportLogsServiceRequest> {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures").join(capture);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.to_string_lossy().ends_with("-logs.pb")).collect();
    files.sort();
    let read = |path| ExportLogsServiceRequest::decode(&*std::fs::read(path).unwrap()).unwrap();
    files.iter().map(read).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_that_come_over_grpc_are_those_that_come_over_http() {
    let (over_grpc, over_http) = (Daemon::start(), Daemon::start());
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", over_grpc.grpc));
    let mut client = LogsServiceClient::new(channel.unwrap().connect().await.unwrap());
    for capture in ["claude-code-logs", "codex-logs", "gemini-cli-logs", "qwen-code-logs"] {
        let sent = requests(capture);
        assert!(!sent.is_empty(), "{capture}");
        for request in sent {
            assert_eq!(over_http.post_protobuf("/v1/logs", &request.encode_to_vec()), 200);
            client.export(request).await.unwrap();
        }
    }
    let turns = |daemon: &Daemon| -> Vec<(String, u64)> {
        let list: Value =
            serde_json::from_str(&daemon.get("/api/v1/sessions?detail=row&limit=1000")).unwrap();
        let rows = list["sessions"].as_array().unwrap().iter();
        let told = rows.map(|row| {
            let calls = row["tool_calls"].as_u64().unwrap();
            (row["session_id"].as_str().unwrap().to_owned(), calls)
        });
        let mut told: Vec<_> = told.collect();
        told.sort();
        told
    };
    // Both are reported once the open traces have been read, within seconds: all calls of the recordings, in the order of session
    // ids.
    let told =
        |daemon: &Daemon| turns(daemon).into_iter().map(|(_, calls)| calls).collect::<Vec<_>>();
    until(|| told(&over_http) == CALLS && told(&over_grpc) == CALLS);
    assert_eq!(turns(&over_grpc), turns(&over_http));
}

/// Tool calls of the recorded sessions.
const CALLS: [u64; 4] = [7, 6, 7, 6];
