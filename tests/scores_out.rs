//! Scores on their way to a collector: in batches, again while it is down, and no more than there is room for.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[path = "support/endpoint.rs"]
mod endpoint;

use std::time::Duration;

use agentgauge::engine::judging::Score;
use agentgauge::engine::math::Quanta;
use agentgauge::engine::span::TraceId;
use agentgauge::export::otlp::{ScoresOut, ScoresOutOptions};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prometheus::Registry;
use prost::Message;

use self::endpoint::Endpoint;

fn options(collector: &Endpoint) -> ScoresOutOptions {
    ScoresOutOptions {
        url: collector.url.trim_end_matches("/v1").to_owned(),
        allow_http: true,
        max_batch: 4,
        max_attempts: 3,
        backoff: Duration::from_millis(1),
        ..ScoresOutOptions::default()
    }
}

fn score(number: u8) -> Score {
    let trace_id = TraceId([number; 16]);
    Score {
        trace_id,
        name: "confidence".to_owned(),
        score: Quanta(Quanta::ONE),
        ..Score::default()
    }
}

/// Sends ten scores; how many records each request had, how many scores found no room, and what is counted.
async fn sent(collector: &Endpoint, options: &ScoresOutOptions) -> (Vec<usize>, usize, String) {
    let registry = Registry::new();
    let (out, sender) = ScoresOut::new(options, None, &registry).unwrap();
    let refused = (0..10).filter(|number| sender.try_send(score(*number)).is_err()).count();
    drop(sender);
    out.run(std::future::pending()).await;
    let seen = collector.seen();
    let requests = seen.iter().map(|seen| ExportLogsServiceRequest::decode(&*seen.raw).unwrap());
    let records = requests.map(|request| request.resource_logs[0].scope_logs[0].log_records.len());
    let counts = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    (records.collect(), refused, counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_go_in_batches_and_again_while_the_collector_is_down() {
    let collector = Endpoint::start();
    collector.is_down_for(2);
    let (requests, refused, counts) = sent(&collector, &options(&collector)).await;
    // The first batch three times, as nothing of it was taken twice.
    assert_eq!((requests, refused), (vec![4, 4, 4, 4, 2], 0));
    assert!(counts.contains("agentgauge_scores_out_total{outcome=\"sent\"} 10\n"), "{counts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_collector_does_not_take_in_time_goes_and_is_counted() {
    let collector = Endpoint::start();
    collector.is_down_for(3);
    let (requests, _, counts) = sent(&collector, &options(&collector)).await;
    assert_eq!(requests, [4, 4, 4, 4, 2]);
    for line in ["{outcome=\"dropped\"} 4\n", "{outcome=\"sent\"} 6\n"] {
        assert!(counts.contains(line), "{line} {counts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_waits_than_there_is_room_for() {
    let collector = Endpoint::start();
    let options = ScoresOutOptions { max_queue: 6, ..options(&collector) };
    let (requests, refused, _) = sent(&collector, &options).await;
    assert_eq!((requests, refused), (vec![4, 2], 4));
}
