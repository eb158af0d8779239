//! Scores on their way to a collector: in batches, sent again while it is down, and within bounds; and agentgauge ignores them when
//! they come back.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentgauge::clock::Clock;
use agentgauge::engine::facts::AgentParts;
use agentgauge::engine::judging::Score;
use agentgauge::engine::math::Quanta;
use agentgauge::engine::span::{SpanId, Timestamp, TraceId};
use agentgauge::export::otlp::{ScoresOut, ScoresOutOptions};
use agentgauge::registry::Registry;
use agentgauge::secret::Secret;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Metric, NumberDataPoint, number_data_point,
};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::support::collector::{Collector, ReceivedExport};
use crate::support::daemon::{Daemon, until};
use crate::support::endpoint::Endpoint;
use crate::support::turn::{spans, spans_saying};

fn options(collector: &Collector) -> ScoresOutOptions {
    ScoresOutOptions {
        url: collector.url.clone(),
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
async fn sent(collector: &Collector, options: &ScoresOutOptions) -> (Vec<usize>, usize, String) {
    let registry = Registry::new();
    let (out, sender) = ScoresOut::new(options, None, &registry).unwrap();
    let refused = (0..10).filter(|number| sender.try_send(score(*number)).is_err()).count();
    drop(sender);
    out.run(std::future::pending()).await;
    let records = collector.told().iter().map(|seen| records(seen).len()).collect();
    let counts = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    (records, refused, counts)
}

fn records(told: &ReceivedExport) -> Vec<LogRecord> {
    let request = ExportLogsServiceRequest::decode(&*told.body).unwrap();
    let scopes = request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs);
    scopes.flat_map(|logs| logs.log_records).collect()
}

fn counted(counts: &str, outcomes: &[(&str, u64)]) {
    for (outcome, count) in outcomes {
        let line = format!("agentgauge_scores_out_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(counts.contains(&line), "{line} {counts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_go_in_batches_and_again_while_the_collector_is_down() {
    let collector = Collector::start();
    collector.is_down_for(2);
    let (requests, refused, counts) = sent(&collector, &options(&collector)).await;
    // The first batch three times, as nothing of it was taken twice.
    assert_eq!((requests, refused), (vec![4, 4, 4, 4, 2], 0));
    counted(&counts, &[("sent", 10)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_collector_does_not_take_in_time_goes_and_is_counted() {
    let collector = Collector::start();
    collector.is_down_for(3);
    let (requests, _, counts) = sent(&collector, &options(&collector)).await;
    assert_eq!(requests, [4, 4, 4, 4, 2]);
    counted(&counts, &[("dropped", 4), ("sent", 6)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_not_be_taken_is_not_sent_again() {
    let collector = Collector::start();
    collector.replies("400 Bad Request", "", &[]);
    // A status that passes elsewhere is not retryable in OTLP.
    collector.replies("500 Internal Server Error", "", &[]);
    let partial_success =
        Some(ExportLogsPartialSuccess { rejected_log_records: 2, ..Default::default() });
    let partial = ExportLogsServiceResponse { partial_success }.encode_to_vec();
    collector.replies("200 OK", "", &partial);
    let options = ScoresOutOptions { max_batch: 3, ..options(&collector) };
    let (requests, _, counts) = sent(&collector, &options).await;
    assert_eq!(requests, [3, 3, 3, 1]);
    counted(&counts, &[("dropped", 6), ("rejected", 2), ("sent", 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_is_left_alone_for_as_long_as_it_asks() {
    let collector = Collector::start();
    collector.replies("429 Too Many Requests", "Retry-After: 1\r\n", &[]);
    let clock = Clock::system();
    let before = clock.now();
    let (requests, _, counts) = sent(&collector, &options(&collector)).await;
    assert!(clock.now() >= before.after(Duration::from_secs(1)));
    assert_eq!(requests, [4, 4, 4, 2]);
    counted(&counts, &[("sent", 10)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_waits_than_there_is_room_for() {
    let collector = Collector::start();
    let options = ScoresOutOptions { max_queue: 6, ..options(&collector) };
    let (requests, refused, _) = sent(&collector, &options).await;
    assert_eq!((requests, refused), (vec![4, 2], 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_others_at_the_end_still_goes() {
    let collector = Collector::start();
    let options = ScoresOutOptions { interval: Duration::from_secs(3_600), ..options(&collector) };
    let (out, sender) = ScoresOut::new(&options, None, &Registry::new()).unwrap();
    (0..3).for_each(|number| sender.try_send(score(number)).unwrap());
    // All three are out of the queue, and wait for a fourth.
    let taken = async move {
        while sender.capacity() < sender.max_capacity() {
            tokio::task::yield_now().await;
        }
    };
    out.run(taken).await;
    let told: usize = collector.told().iter().map(|seen| records(seen).len()).sum();
    assert_eq!(told, 3);
}

/// Attributes as text, in order.
fn told(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().unwrap().value.as_ref() {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::DoubleValue(number)) => format!("{number:?}"),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_says_whose_score_it_is_and_who_made_it() {
    let collector = Collector::start();
    for gzip in [true, false] {
        let options = ScoresOutOptions { gzip, ..options(&collector) };
        let key = Secret::new("Bearer of-the-collector");
        let (out, sender) = ScoresOut::new(&options, key.as_ref(), &Registry::new()).unwrap();
        let score = Score {
            span_id: Some(SpanId([2; 8])),
            agent: AgentParts {
                agent_name: "a".into(),
                service_name: "shop".into(),
                ..AgentParts::default()
            }
            .into(),
            score: Quanta(Quanta::ONE / 4),
            label: Some("fail".to_owned()),
            explanation: Some("so".to_owned()),
            evaluator: "judge/m/p1".to_owned(),
            rule: Some("no_pii".to_owned()),
            time: Timestamp(5),
            ..score(1)
        };
        sender.try_send(score).unwrap();
        drop(sender);
        out.run(std::future::pending()).await;
    }
    let seen = collector.told();
    for (seen, gzip) in seen.iter().zip([true, false]) {
        assert_eq!(seen.path, "/v1/logs");
        let has = |header: &str| seen.head.to_ascii_lowercase().contains(header);
        assert!(has("authorization: bearer of-the-collector\r\n"), "{}", seen.head);
        assert!(has("content-type: application/x-protobuf\r\n"), "{}", seen.head);
        assert_eq!(has("content-encoding: gzip\r\n"), gzip, "{}", seen.head);
    }
    assert_eq!(seen[0].body, seen[1].body);
    let request = ExportLogsServiceRequest::decode(&*seen[0].body).unwrap();
    let [logs] = request.resource_logs.as_slice() else { panic!("{request:?}") };
    let version = env!("CARGO_PKG_VERSION");
    let mut resource = told(&logs.resource.as_ref().unwrap().attributes);
    // A UUID that is none but this process's.
    let (key, instance) = resource.pop().unwrap();
    assert_eq!((key.as_str(), instance.len(), &instance[14..15]), ("service.instance.id", 36, "4"));
    assert_eq!(resource, pairs(&[("service.name", "agentgauge"), ("service.version", version)]));
    let [logs] = logs.scope_logs.as_slice() else { panic!("{request:?}") };
    let scope = logs.scope.as_ref().unwrap();
    assert_eq!((scope.name.as_str(), scope.version.as_str()), ("agentgauge", version));
    let [record] = logs.log_records.as_slice() else { panic!("{request:?}") };
    assert_eq!(
        (record.trace_id.as_slice(), record.span_id.as_slice()),
        (&[1; 16][..], &[2; 8][..])
    );
    assert_eq!((record.time_unix_nano, record.observed_time_unix_nano), (5, 5));
    assert_eq!(record.event_name, "gen_ai.evaluation.result");
    assert_eq!(
        told(&record.attributes),
        pairs(&[
            ("gen_ai.evaluation.name", "confidence"),
            ("gen_ai.evaluation.score.value", "0.25"),
            ("gen_ai.evaluation.score.label", "fail"),
            ("gen_ai.evaluation.explanation", "so"),
            ("gen_ai.agent.name", "a"),
            ("agentgauge.evaluator", "judge/m/p1"),
            ("agentgauge.rule", "no_pii"),
            ("agentgauge.service.name", "shop"),
        ])
    );
}

/// A daemon whose judge finds two scores for each trace, and which sends them out.
fn telling(endpoint: &Endpoint, collector: &str, metrics_interval: &str) -> Daemon {
    Daemon::judging(
        "anthropic",
        &endpoint.url,
        &[
            ("AGENTGAUGE__JUDGE__METRICS", "[\"confidence\", \"tool_correctness\"]"),
            ("AGENTGAUGE__SCORES_OUT__URL", collector),
            ("AGENTGAUGE__SCORES_OUT__ALLOW_HTTP", "true"),
            ("AGENTGAUGE__SCORES_OUT__INTERVAL", "50ms"),
            ("AGENTGAUGE__SCORES_OUT__METRICS_INTERVAL", metrics_interval),
            ("AGENTGAUGE_SCORES_OUT_AUTHORIZATION", "Bearer for-the-collector"),
        ],
    )
}

#[test]
fn others_are_told_on_the_judged_trace_and_we_do_not_believe_our_own_word() {
    let (endpoint, collector) = (Endpoint::start(), Collector::start());
    let daemon = telling(&endpoint, &collector.url, "0s");
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans()).0, 200);
    daemon.settles_at("agentgauge_scores_out_total{outcome=\"sent\"}", 2.0);
    let seen = collector.told();
    for seen in &seen {
        assert!(seen.path == "/v1/logs" && seen.head.contains("Bearer for-the-collector"));
    }
    let records: Vec<_> = seen.iter().flat_map(records).collect();
    assert_eq!(records.len(), 2);
    for record in records {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&record.trace_id), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(hex(&record.span_id), "b7ad6b7169203331");
        assert!(
            told(&record.attributes).contains(&pairs(&[("agentgauge.evaluator", "judge/m/p1")])[0])
        );
    }
    // The same records come back, as from a collector that sends everything everywhere.
    for seen in &seen {
        assert_eq!(daemon.post_protobuf("/v1/logs", &seen.body), 200);
    }
    daemon.settles_at("agentgauge_records_unused_total{reason=\"own_score\"}", 2.0);
    #[cfg(unix)]
    daemon.ends_well();
}

#[test]
fn a_rule_is_told_with_what_was_said_of_it_on_the_outermost_span_that_there_is() {
    let (endpoint, collector) = (Endpoint::start(), Collector::start());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agentci_spec.yaml");
    let spec =
        "agent: a\nqueries: [{query: Refund me, correctness: {llm_judge: [{rule: Polite?}]}}]\n";
    std::fs::write(&file, spec).unwrap();
    let daemon = Daemon::judging(
        "openai",
        &endpoint.url,
        &[
            ("AGENTGAUGE__JUDGE__METRICS", "[\"constraint_violation\"]"),
            ("AGENTGAUGE__JUDGE__CONSTRAINTS", "{ no_pii = \"Shows no personal data.\" }"),
            ("AGENTGAUGE__EXPECT__FILES", &format!("[{:?}]", file.to_str().unwrap())),
            ("AGENTGAUGE__ASSEMBLE__ROOTLESS_IDLE", "200ms"),
            ("AGENTGAUGE__SCORES_OUT__URL", &collector.url),
            ("AGENTGAUGE__SCORES_OUT__ALLOW_HTTP", "true"),
            ("AGENTGAUGE__SCORES_OUT__INTERVAL", "50ms"),
        ],
    );
    // What would be above it never comes.
    let spans = spans_saying("Refund me", "No way.");
    let mut spans: serde_json::Value = serde_json::from_str(&spans).unwrap();
    let outermost = &mut spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    outermost["parentSpanId"] = "00000000000000ff".into();
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans.to_string()).0, 200);
    daemon.settles_at("agentgauge_scores_out_total{outcome=\"sent\"}", 2.0);
    let records: Vec<_> = collector.told().iter().flat_map(records).collect();
    let span = 0xb7ad_6b71_6920_3331_u64.to_be_bytes();
    assert!(records.iter().all(|record| record.span_id == span), "{records:?}");
    let said: BTreeSet<_> = records.iter().map(|record| told(&record.attributes)).collect();
    let record = |name, value, label, rule| {
        pairs(&[
            ("gen_ai.evaluation.name", name),
            ("gen_ai.evaluation.score.value", value),
            ("gen_ai.evaluation.score.label", label),
            ("gen_ai.evaluation.explanation", if rule == "no_pii" { "a name" } else { "so" }),
            ("gen_ai.agent.name", "a"),
            ("agentgauge.evaluator", "judge/m/p1"),
            ("agentgauge.rule", rule),
            ("agentgauge.service.name", "shop"),
        ])
    };
    let expected = [
        record("constraint_violation", "0.75", "low", "no_pii"),
        // Four of five.
        record("llm_judge", "0.8", "pass", "Polite?"),
    ];
    assert_eq!(said, expected.into());
    #[cfg(unix)]
    daemon.ends_well();
}

#[test]
fn a_collector_that_takes_nothing_holds_nobody_up() {
    let (endpoint, collector) = (Endpoint::start(), Collector::start());
    // It wants to be left alone for longer than any sender waits.
    collector.replies("503 Service Unavailable", "Retry-After: 3600\r\n", &[]);
    let daemon = Daemon::judging(
        "openai",
        &endpoint.url,
        &[
            ("AGENTGAUGE__JUDGE__METRICS", "[\"confidence\"]"),
            ("AGENTGAUGE__SCORES_OUT__URL", &collector.url),
            ("AGENTGAUGE__SCORES_OUT__ALLOW_HTTP", "true"),
            ("AGENTGAUGE__SCORES_OUT__MAX_QUEUE", "1"),
            ("AGENTGAUGE__SCORES_OUT__MAX_BATCH", "1"),
        ],
    );
    for number in 0..5 {
        let spans = spans().replace("0af7651916cd43d", &format!("{number}af7651916cd43d"));
        assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
        until(|| !collector.told().is_empty());
    }
    // The first is on its way, one waits, and there is no room for the others; all of them are judged.
    daemon.settles_at("agentgauge_judge_dropped_total{reason=\"scores_out_full\"}", 3.0);
    daemon
        .settles_at("agentgauge_judge_results_total{metric=\"confidence\",result=\"scored\"}", 5.0);
    assert_eq!(collector.told().len(), 1);
    #[cfg(unix)]
    daemon.ends_well();
}

/// An address that leads to another, as soon as that is known.
fn relay() -> (String, Arc<OnceLock<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, to) = (format!("http://{}", listener.local_addr().unwrap()), Arc::default());
    let known: Arc<OnceLock<String>> = Arc::clone(&to);
    std::thread::spawn(move || {
        for from in listener.incoming().flatten() {
            let to = TcpStream::connect(known.wait()).unwrap();
            for (mut read, mut write) in [
                (from.try_clone().unwrap(), to.try_clone().unwrap()),
                (to.try_clone().unwrap(), from.try_clone().unwrap()),
            ] {
                // Ends with either side.
                std::thread::spawn(move || {
                    drop(std::io::copy(&mut read, &mut write));
                    drop(write.shutdown(std::net::Shutdown::Write));
                });
            }
        }
    });
    (url, to)
}

#[test]
fn who_tells_itself_says_no_more_for_it() {
    let endpoint = Endpoint::start();
    let (url, itself) = relay();
    let daemon = telling(&endpoint, &url, "50ms");
    itself.set(daemon.otlp_http.clone()).unwrap();
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans()).0, 200);
    daemon.settles_at("agentgauge_records_unused_total{reason=\"own_score\"}", 2.0);
    // Rounds of metrics arrive as well, and each is as large as the previous one except for new series.
    let points = "agentgauge_metrics_out_total{outcome=\"sent\"}";
    let some = daemon.metric_when(points, |points| points > 0.0);
    daemon.metric_when(points, |points| points > 5.0 * some);
    let page = daemon.get("/metrics");
    let value = |start: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with(start));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    for (start, expected) in [
        ("agentgauge_scores_out_total{", 2.0),
        ("agentgauge_records_unused_total{reason=\"own_score\"}", 2.0),
        ("agentgauge_traces_total{", 1.0),
        ("agentgauge_judge_results_total{", 2.0),
    ] {
        assert!((value(start) - expected).abs() < 1e-9, "{start} {page}");
    }
    // Three calls for two scores: nothing was judged again.
    assert_eq!(endpoint.seen().len(), 3);
    #[cfg(unix)]
    daemon.ends_well();
}

/// The metrics of the last round that came whole.
fn last_round(collector: &Collector) -> Vec<Metric> {
    let seen = collector.told().into_iter().rfind(|seen| seen.path == "/v1/metrics");
    let request = seen.map(|seen| ExportMetricsServiceRequest::decode(&*seen.body).unwrap());
    let metrics = request.into_iter().flat_map(|request| request.resource_metrics);
    metrics.flat_map(|metrics| metrics.scope_metrics).flat_map(|scope| scope.metrics).collect()
}

/// A series as one text, in a normal form: empty labels are left out.
fn series(name: &str, mut labels: Vec<(String, String)>, value: f64) -> String {
    labels.retain(|(_, value)| !value.is_empty());
    labels.sort();
    format!("{name} {labels:?} {value:?}")
}

/// What Prometheus would make of a metric.
fn as_series(metric: &Metric) -> Vec<String> {
    let cumulative = AggregationTemporality::Cumulative as i32;
    let numbers = |name: &str, points: &[NumberDataPoint]| -> Vec<String> {
        let number = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsDouble(value)) => {
                series(name, told(&point.attributes), value)
            }
            other => panic!("{other:?}"),
        };
        points.iter().map(number).collect()
    };
    let name = metric.name.as_str();
    match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => numbers(name, &gauge.data_points),
        Data::Sum(sum) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality == cumulative, "{name}");
            let points = &sum.data_points;
            assert!(points.iter().all(|p| (1..p.time_unix_nano).contains(&p.start_time_unix_nano)));
            numbers(&format!("{name}_total"), points)
        }
        Data::Histogram(histogram) => {
            assert_eq!(histogram.aggregation_temporality, cumulative, "{name}");
            let mut all = Vec::new();
            for point in &histogram.data_points {
                assert!((1..point.time_unix_nano).contains(&point.start_time_unix_nano));
                let labels = || told(&point.attributes);
                let bounds = point.explicit_bounds.iter().copied().chain([f64::INFINITY]);
                let mut below = 0;
                for (bound, count) in bounds.zip(&point.bucket_counts) {
                    below += count;
                    let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
                    let labels = labels().into_iter().chain([("le".to_owned(), bound)]).collect();
                    all.push(series(&format!("{name}_bucket"), labels, below as f64));
                }
                all.push(series(&format!("{name}_sum"), labels(), point.sum.expect(name)));
                all.push(series(&format!("{name}_count"), labels(), point.count as f64));
            }
            all
        }
        other @ (Data::ExponentialHistogram(_) | Data::Summary(_)) => panic!("{other:?}"),
    }
}

/// The series of a page.
fn on_page(page: &str) -> BTreeSet<String> {
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let label = |label: &str| {
            let (name, value) = label.split_once("=\"").unwrap();
            // A bound is a number, however it is written.
            let value = value.trim_end_matches('"');
            let bound = (name == "le" && value != "+Inf").then(|| value.parse::<f64>().unwrap());
            (name.to_owned(), bound.map_or_else(|| value.to_owned(), |bound| bound.to_string()))
        };
        series(name, labels.map(label).collect(), value.parse().unwrap())
    };
    page.lines().filter(|line| !line.starts_with('#')).map(line).collect()
}

/// Whether a series changes by being looked at, or by itself.
fn is_still(series: &str) -> bool {
    let of = ["agent_", "session_", "sessions_", "trace_", "traces_total", "judge_", "scores_out_"];
    of.iter().any(|of| series.strip_prefix("agentgauge_").is_some_and(|rest| rest.starts_with(of)))
}

#[test]
fn who_does_not_scrape_is_sent_what_a_scrape_shows() {
    let (endpoint, collector) = (Endpoint::start(), Collector::start());
    let daemon = telling(&endpoint, &collector.url, "100ms");
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans()).0, 200);
    daemon.settles_at("agentgauge_scores_out_total{outcome=\"sent\"}", 2.0);
    let sent =
        || -> BTreeSet<String> { last_round(&collector).iter().flat_map(as_series).collect() };
    let still = |all: BTreeSet<String>| -> BTreeSet<String> {
        all.into_iter().filter(|series| is_still(series)).collect()
    };
    let differ = || -> Vec<String> {
        let (sent, shown) = (still(sent()), still(on_page(&daemon.get("/metrics"))));
        sent.symmetric_difference(&shown).cloned().collect()
    };
    until(|| differ().is_empty() && sent().len() > 100);
    assert_eq!(differ(), Vec::<String>::new());
    // Only the names of the others: their counts change with every check.
    let named = |all: BTreeSet<String>| -> BTreeSet<String> {
        all.into_iter().map(|series| series.split(' ').next().unwrap().to_owned()).collect()
    };
    let (sent, shown) = (named(sent()), named(on_page(&daemon.get("/metrics"))));
    assert!(sent.contains("agentgauge_judge_cost_usd_total") && sent.len() > 30, "{sent:?}");
    assert_eq!(sent, shown);
    let exemplars = last_round(&collector).into_iter().filter_map(|metric| match metric.data? {
        Data::Histogram(histogram) => Some(histogram.data_points),
        Data::Gauge(_) | Data::Sum(_) | Data::ExponentialHistogram(_) | Data::Summary(_) => None,
    });
    let exemplars: Vec<_> = exemplars.flatten().flat_map(|point| point.exemplars).collect();
    assert!(!exemplars.is_empty());
    assert!(exemplars.iter().all(|exemplar| exemplar.trace_id[..2] == [0x0a, 0xf7]));
    #[cfg(unix)]
    daemon.ends_well();
}

/// A certificate for `localhost` and its key, and the authority that has signed it, as PEM in files.
fn certified(folder: &Path) -> [String; 3] {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.signed_by(&key, &authority).unwrap();
    let files = [("cert", own.pem()), ("key", key.serialize_pem()), ("authority", authority.pem())];
    files.map(|(name, pem)| {
        let path = folder.join(name);
        std::fs::write(&path, pem).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn an_endpoint_over_tls_has_to_be_who_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let [cert, key, authority] = certified(folder.path());
    let told = Daemon::start_with(&[
        ("AGENTGAUGE__TLS__LISTENERS", "[\"otlp_http\"]"),
        ("AGENTGAUGE__TLS__CERT_FILE", &cert),
        ("AGENTGAUGE__TLS__KEY_FILE", &key),
    ]);
    let url = format!("https://localhost:{}", told.otlp_http.rsplit(':').next().unwrap());
    let telling = |roots: (&str, &str)| {
        Daemon::start_with(&[
            ("AGENTGAUGE__SCORES_OUT__URL", &url),
            ("AGENTGAUGE__SCORES_OUT__METRICS_INTERVAL", "100ms"),
            ("AGENTGAUGE__SCORES_OUT__MAX_ATTEMPTS", "1"),
            roots,
        ])
    };
    // An endpoint that the system does not know gets nothing.
    let unknown = telling(("AGENTGAUGE__SCORES_OUT__TIMEOUT", "5s"));
    unknown.metric_when("agentgauge_metrics_out_total{outcome=\"dropped\"}", |count| count > 0.0);
    let points = "agentgauge_metric_points_received_total";
    let page = told.get("/metrics");
    let received = page.lines().filter(|line| line.starts_with(points));
    assert!(received.clone().all(|line| line.ends_with(" 0")), "{page}");
    let known = telling(("SSL_CERT_FILE", &authority));
    known.metric_when("agentgauge_metrics_out_total{outcome=\"sent\"}", |count| count > 0.0);
    told.metric_when(points, |count| count > 0.0);
}
