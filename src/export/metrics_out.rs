//! Metrics out: sends what `/metrics` shows as OTLP metrics, for those who do not scrape.
//!
//! ```text
//! gauge                     Gauge
//! counter  name_total       Sum name, cumulative and monotonic, since the process began
//! histogram                 Histogram, cumulative since then; buckets (lower, upper], as there, with their exemplars
//! ```
//!
//! The daemon's own metrics are sent, too. Labels are attributes, and empty ones are left out. Units stay in the names, so that
//! Prometheus series made of these metrics are those of the page. `POST {url}/v1/metrics`, protobuf, gzip, in requests of bounded size.
//! A round that could not be sent is not kept, as the next one replaces it.
//! Metrics that come in on our own ports are counted and dropped, so there is no feedback.

use std::mem::{replace, take};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    self as otlp, AggregationTemporality, Exemplar, Gauge, HistogramDataPoint, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar, metric, number_data_point,
};
use prometheus::IntCounterVec;
use prometheus::proto::{self, Bucket, MetricFamily, MetricType};
use prost::Message;

use super::families::{Family, Kind};
use super::http::give_way;
use super::otlp::{ScoresOutError, ScoresOutOptions, resource, scope};
use super::prometheus::{agent_labels, shown};
use super::push::{Push, Signal};
use super::samples::{Detail, Histogram, Samples, Sink};
use crate::engine::agent_facts::AgentFacts;
use crate::engine::facts::{self, AgentKey};
use crate::engine::math::Quanta;
use crate::engine::span::Timestamp;
use crate::registry::Registry;
use crate::secret::Secret;

/// Returns the agents, the daemon's own metrics, and the time of both.
pub type Metrics =
    Arc<dyn Fn() -> (Vec<Arc<AgentFacts>>, Vec<MetricFamily>, Timestamp) + Send + Sync>;

/// Sends metrics.
pub struct MetricsOut {
    push: Push,
    interval: Duration,
    begun: Timestamp,
    detail: Detail,
    metrics: Metrics,
}

/// The most points of one request.
const MAX_POINTS: usize = 4_000;

/// The longest time for the last round when the daemon stops.
const GRACE: Duration = Duration::from_secs(5);

impl MetricsOut {
    /// Sets up the sender, for a process that began at `begun`.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be used.
    pub fn new(
        options: &ScoresOutOptions,
        key: Option<&Secret>,
        registry: &Registry,
        (metrics, detail): (Metrics, Detail),
        begun: Timestamp,
    ) -> Result<Self, ScoresOutError> {
        let push = Push::new(options, key, Signal::Metrics, outcomes(registry)?)?;
        Ok(Self { push, interval: options.metrics_interval, begun, detail, metrics })
    }

    /// Sends a round after each interval until `stop`, and then a last one.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let mut stop = pin!(stop);
        let rounds = async {
            loop {
                tokio::time::sleep(self.interval).await;
                self.round().await;
            }
        };
        tokio::select! {
            biased;
            () = &mut stop => {}
            () = rounds => {}
        }
        // Points that are not sent by then are lost with the process.
        let _ = tokio::time::timeout(GRACE, self.round()).await;
    }

    async fn round(&self) {
        let (agents, own, now) = (self.metrics)();
        let mut samples = Samples::new(agents, self.detail, Requests::new(self.begun, now));
        for step in 0_u64.. {
            give_way(step).await;
            if !samples.step() {
                break;
            }
            self.send(&mut samples.sink).await;
        }
        let mut requests = samples.sink;
        for family in &own {
            requests.own(family);
        }
        requests.end();
        self.send(&mut requests).await;
    }

    async fn send(&self, requests: &mut Requests) {
        for Batch { metrics, points } in take(&mut requests.full) {
            self.push.send_and_count(request(metrics).encode_to_vec(), points as u64).await;
        }
    }
}

/// Metrics by requests: those that are full, and the one that is filled.
#[derive(Debug)]
struct Requests {
    begun: Timestamp,
    now: Timestamp,
    full: Vec<Batch>,
    filling: Batch,
}

/// The metrics of a request, and how many points they have.
#[derive(Debug, Default)]
struct Batch {
    metrics: Vec<Metric>,
    points: usize,
}

impl Requests {
    /// Requests of points of a process that began at `begun`.
    fn new(begun: Timestamp, now: Timestamp) -> Self {
        // If the clock was set back, the start must not be in the future.
        Self { begun: begun.min(now), now, full: Vec::new(), filling: Batch::default() }
    }

    /// Makes room for a point of a metric, and returns where it belongs.
    fn data(&mut self, Head { name, help, kind }: Head<'_>) -> Option<&mut metric::Data> {
        if self.filling.points == MAX_POINTS {
            self.end();
        }
        let Batch { metrics, points } = &mut self.filling;
        *points += 1;
        if metrics.last().is_none_or(|last| last.name != name) {
            metrics.push(Metric {
                name: name.to_owned(),
                description: help.to_owned(),
                data: Some(data(kind)),
                ..Metric::default()
            });
        }
        metrics.last_mut().and_then(|metric| metric.data.as_mut())
    }

    /// Ends the request that is filled.
    fn end(&mut self) {
        if self.filling.points > 0 {
            self.full.push(take(&mut self.filling));
        }
    }

    fn number_point(&mut self, head: Head<'_>, attributes: Vec<KeyValue>, number: f64) {
        let start = if head.kind == Kind::Counter { self.begun } else { Timestamp::default() };
        let point = NumberDataPoint {
            attributes,
            start_time_unix_nano: start.0,
            time_unix_nano: self.now.0,
            value: Some(number_data_point::Value::AsDouble(number)),
            ..NumberDataPoint::default()
        };
        match self.data(head) {
            Some(metric::Data::Gauge(gauge)) => gauge.data_points.push(point),
            Some(metric::Data::Sum(sum)) => sum.data_points.push(point),
            _ => {}
        }
    }

    fn histogram_point(&mut self, head: Head<'_>, point: HistogramDataPoint) {
        let point = HistogramDataPoint {
            start_time_unix_nano: self.begun.0,
            time_unix_nano: self.now.0,
            ..point
        };
        if let Some(metric::Data::Histogram(histogram)) = self.data(head) {
            histogram.data_points.push(point);
        }
    }

    /// Adds a family of the daemon's own metrics.
    fn own(&mut self, family: &MetricFamily) {
        let (name, help) = (family.name(), family.help());
        let counter = name.strip_suffix("_total").unwrap_or(name);
        for series in family.get_metric() {
            let labels = series.get_label().iter();
            let labels = attributes(labels.map(|label| (label.name(), label.value())));
            match family.get_field_type() {
                MetricType::COUNTER => {
                    let number = series.get_counter().get_value();
                    self.number_point(
                        Head { name: counter, help, kind: Kind::Counter },
                        labels,
                        number,
                    );
                }
                MetricType::GAUGE => {
                    let number = series.get_gauge().get_value();
                    self.number_point(Head { name, help, kind: Kind::Gauge }, labels, number);
                }
                MetricType::HISTOGRAM => {
                    let point = own_histogram(labels, series.get_histogram());
                    self.histogram_point(Head { name, help, kind: Kind::Histogram }, point);
                }
                // We have none.
                MetricType::SUMMARY | MetricType::UNTYPED => {}
            }
        }
    }
}

impl Sink for Requests {
    type Labels = Vec<KeyValue>;

    fn labels(agent: &AgentKey) -> Self::Labels {
        attributes(agent_labels(agent).map(|(name, value)| (name, shown(value))))
    }

    fn begin(&mut self, _: &'static Family, _: bool) {}

    fn number<V: AsRef<str>>(
        &mut self,
        family: &Family,
        agent: &Self::Labels,
        values: &[V],
        number: f64,
    ) {
        let attributes = of_series(family, agent, values);
        self.number_point(family.into(), attributes, number);
    }

    fn histogram(
        &mut self,
        family: &Family,
        agent: &Self::Labels,
        values: &[&str],
        histogram: &Histogram<'_>,
    ) {
        let exemplar = |exemplar: &facts::Exemplar| Exemplar {
            trace_id: exemplar.trace_id.0.to_vec(),
            time_unix_nano: exemplar.end_unix_nano,
            value: Some(exemplar::Value::AsDouble(Quanta(exemplar.score_quanta).to_f64())),
            ..Exemplar::default()
        };
        let point = HistogramDataPoint {
            attributes: of_series(family, agent, values),
            count: histogram.buckets.count,
            sum: Some(histogram.sum()),
            bucket_counts: histogram.counts().collect(),
            explicit_bounds: histogram.bounds.upper.clone(),
            exemplars: histogram.buckets.exemplars.iter().map(exemplar).collect(),
            ..HistogramDataPoint::default()
        };
        self.histogram_point(family.into(), point);
    }

    fn is_full(&self) -> bool {
        !self.full.is_empty()
    }
}

/// A metric, without its points.
#[derive(Clone, Copy)]
struct Head<'h> {
    name: &'h str,
    help: &'h str,
    kind: Kind,
}

impl From<&Family> for Head<'static> {
    fn from(Family { name, help, kind, .. }: &Family) -> Self {
        Self { name, help, kind: *kind }
    }
}

/// No points of a kind.
fn data(kind: Kind) -> metric::Data {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match kind {
        Kind::Gauge => metric::Data::Gauge(Gauge::default()),
        Kind::Counter => {
            metric::Data::Sum(Sum { aggregation_temporality, is_monotonic: true, ..Sum::default() })
        }
        Kind::Histogram => metric::Data::Histogram(otlp::Histogram {
            aggregation_temporality,
            ..otlp::Histogram::default()
        }),
    }
}

/// The attributes of a series: the agent's, and those of the family.
fn of_series<V: AsRef<str>>(family: &Family, agent: &[KeyValue], values: &[V]) -> Vec<KeyValue> {
    let own = family.labels.iter().zip(values).map(|(name, value)| (*name, shown(value.as_ref())));
    [agent, &attributes(own)].concat()
}

/// A histogram of the daemon's own; its buckets have cumulative counts, and the infinite one is not among them.
fn own_histogram(attributes: Vec<KeyValue>, own: &proto::Histogram) -> HistogramDataPoint {
    let count = own.get_sample_count();
    let sums = own.get_bucket().iter().map(Bucket::cumulative_count).chain([count]);
    let counts = sums.scan(0, |below, sum| Some(sum.saturating_sub(replace(below, sum))));
    HistogramDataPoint {
        attributes,
        count,
        sum: Some(own.get_sample_sum()),
        bucket_counts: counts.collect(),
        explicit_bounds: own.get_bucket().iter().map(Bucket::upper_bound).collect(),
        ..HistogramDataPoint::default()
    }
}

/// Attributes for labels that are not empty.
fn attributes<V: Into<String> + AsRef<str>>(
    labels: impl IntoIterator<Item = (impl Into<String>, V)>,
) -> Vec<KeyValue> {
    let known = labels.into_iter().filter(|(_, value)| !value.as_ref().is_empty());
    let attribute = |(name, value): (_, V)| KeyValue {
        key: Into::into(name),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.into())) }),
        ..KeyValue::default()
    };
    known.map(attribute).collect()
}

fn request(metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    let metrics = ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() };
    let metrics = ResourceMetrics {
        resource: Some(resource()),
        scope_metrics: vec![metrics],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![metrics] }
}

/// Registers the counter of points.
pub(crate) fn outcomes(registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Points of metrics sent to another OTLP endpoint, by outcome.";
    registry.counters("metrics_out_total", help, &["outcome"])
}

#[cfg(test)]
mod tests {
    use super::super::prometheus::tests::{agent, full};
    use super::super::prometheus::{Format, render};
    use super::*;

    fn requests(agents: Vec<Arc<AgentFacts>>) -> Vec<Batch> {
        let requests = Requests::new(Timestamp(1), Timestamp(9));
        let mut samples = Samples::new(agents, Detail::Full, requests);
        while samples.step() {}
        samples.sink.end();
        samples.sink.full
    }

    /// The lines of a page with these attributes and this number.
    fn line(
        name: &str,
        attributes: &[KeyValue],
        le: Option<&str>,
        number: &impl ToString,
    ) -> String {
        let label = |attribute: &KeyValue| {
            let value = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(any_value::Value::StringValue(text)) => text,
                other => panic!("{other:?}"),
            };
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{}=\"{value}\"", attribute.key)
        };
        let mut labels: Vec<String> = attributes.iter().map(label).collect();
        labels.extend(le.map(|le| format!("le=\"{le}\"")));
        format!("{name}{{{}}} {}", labels.join(","), number.to_string())
    }

    fn number_lines(name: &str, points: &[NumberDataPoint]) -> Vec<String> {
        let line = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsDouble(it)) => {
                line(name, &point.attributes, None, &it)
            }
            ref other => panic!("{other:?}"),
        };
        points.iter().map(line).collect()
    }

    fn histogram_lines(name: &str, point: &HistogramDataPoint) -> Vec<String> {
        let bounds = point.explicit_bounds.iter().map(|bound| format!("{bound:?}"));
        let bounds = bounds.chain(["+Inf".to_owned()]);
        let mut below = 0;
        let bucket = |(bound, count): (String, &u64)| {
            below += count;
            line(&format!("{name}_bucket"), &point.attributes, Some(&bound), &below)
        };
        let mut lines: Vec<String> = bounds.zip(&point.bucket_counts).map(bucket).collect();
        lines.push(line(&format!("{name}_sum"), &point.attributes, None, &point.sum.unwrap()));
        lines.push(line(&format!("{name}_count"), &point.attributes, None, &point.count));
        lines
    }

    /// The lines of a page that have what a metric tells.
    fn lines(Metric { name, data, .. }: Metric) -> Vec<String> {
        match data {
            Some(metric::Data::Gauge(it)) => number_lines(&name, &it.data_points),
            Some(metric::Data::Sum(it)) => {
                assert!(it.is_monotonic && it.data_points[0].start_time_unix_nano == 1);
                number_lines(&format!("{name}_total"), &it.data_points)
            }
            Some(metric::Data::Histogram(it)) => {
                it.data_points.iter().flat_map(|point| histogram_lines(&name, point)).collect()
            }
            None | Some(metric::Data::ExponentialHistogram(_) | metric::Data::Summary(_)) => {
                panic!("{data:?}")
            }
        }
    }

    /// A page line without labels whose value is empty.
    fn without_empty(line: &str) -> String {
        let mut line = line.to_owned();
        while let Some(at) = line.find("=\"\"") {
            let from = line[..at].rfind(',').unwrap();
            line.replace_range(from..at + 3, "");
        }
        line
    }

    #[test]
    fn what_is_sent_is_what_the_page_shows() {
        let agents = vec![agent("plain"), full("quo\"te"), full("\u{fc}n\r\n\u{ef}code")];
        let page = render(&agents, Format::Text, Detail::Full);
        let mut shown: Vec<_> =
            page.lines().filter(|line| !line.starts_with('#')).map(without_empty).collect();
        let batches = requests(agents).into_iter();
        let mut sent: Vec<_> = batches.flat_map(|batch| batch.metrics).flat_map(lines).collect();
        shown.sort();
        sent.sort();
        assert_eq!(sent, shown);
    }

    #[test]
    fn a_histogram_names_traces() {
        let metrics = requests(vec![agent("a")]).remove(0).metrics;
        let signal =
            metrics.into_iter().find(|it| it.name == "agentgauge_trace_signal_score").unwrap();
        let Some(metric::Data::Histogram(signal)) = signal.data else { panic!() };
        let [exemplar] = signal.data_points[0].exemplars.as_slice() else { panic!("{signal:?}") };
        assert_eq!(exemplar.trace_id, [0xab; 16]);
        assert_eq!(exemplar.time_unix_nano, 1_700_000_000_250_000_000);
        assert_eq!(exemplar.value, Some(exemplar::Value::AsDouble(0.25)));
    }

    #[test]
    fn requests_are_bounded() {
        let agents: Vec<_> = (0..300).map(|number| agent(&format!("agent-{number:03}"))).collect();
        let points: usize = requests(vec![agent("a")]).iter().map(|batch| batch.points).sum();
        let sent: Vec<usize> = requests(agents).iter().map(|batch| batch.points).collect();
        let (last, full) = sent.split_last().unwrap();
        assert!(full.len() > 1 && full.iter().all(|points| *points == MAX_POINTS), "{sent:?}");
        assert_eq!(sent.iter().sum::<usize>(), 300 * points);
        assert!(*last <= MAX_POINTS);
    }

    #[test]
    fn the_daemons_own_metrics_are_sent() {
        let registry = Registry::new();
        let spans: IntCounterVec = registry.counters("spans_total", "Spans.", &["kind"]).unwrap();
        spans.with_label_values(&["a"]).inc();
        registry.gauge("open", "Open.").map(|open: prometheus::IntGauge| open.set(3)).unwrap();
        let took = prometheus::Histogram::with_opts(
            prometheus::HistogramOpts::new("took", "Took.").buckets(vec![1.0, 2.0]),
        );
        let took = took.unwrap();
        registry.register(Box::new(took.clone())).unwrap();
        [0.5, 1.5, 1.5, 9.0].into_iter().for_each(|seconds| took.observe(seconds));
        let mut requests = Requests::new(Timestamp(1), Timestamp(9));
        for family in registry.gather() {
            requests.own(&family);
        }
        let sent: Vec<_> = requests.filling.metrics.into_iter().flat_map(lines).collect();
        let buckets = ["took_bucket{le=\"1.0\"} 1", "took_bucket{le=\"2.0\"} 3"];
        let rest = ["took_bucket{le=\"+Inf\"} 4", "took_sum{} 12.5", "took_count{} 4"];
        let numbers = ["agentgauge_open{} 3", "agentgauge_spans_total{kind=\"a\"} 1"];
        assert_eq!(sent, [&numbers[..], &buckets, &rest].concat());
    }
}
