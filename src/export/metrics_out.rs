//! Metrics out: sends what `/metrics` shows as OTLP metrics, for those who do not scrape.
//!
//! ```text
//! gauge                     Gauge
//! counter  name_total       Sum name, cumulative and monotonic, since the process began
//! histogram                 Histogram, cumulative since then; buckets (lower, upper], as there, with their exemplars
//! ```
//!
//! The page, with the daemon's own metrics, is rendered and parsed piece by piece, so that both outputs agree and neither holds up
//! other tasks. Labels are attributes, and empty ones are left out. Units stay in the names, so that Prometheus series made of these
//! metrics are those of the page. `POST {url}/v1/metrics`, protobuf, gzip, in requests of bounded size. A round that could not be sent
//! is not kept, as the next one replaces it.
//! Metrics that come in on our own ports are counted and dropped, so there is no feedback.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar, metric, number_data_point,
};
use prometheus::IntCounterVec;
use prometheus::proto::MetricFamily;
use prost::Message;

use super::http::{give_way, health};
use super::otlp::{ScoresOutError, ScoresOutOptions, resource, scope};
use super::prometheus::{Exposition, Format};
use super::push::{Push, Signal};
use crate::engine::span::Timestamp;
use crate::registry::Registry;
use crate::secret::Secret;

/// Returns the page of the agents as OpenMetrics, the daemon's own metrics, and the time of both.
pub type Page = Arc<dyn Fn() -> (Exposition, Vec<MetricFamily>, Timestamp) + Send + Sync>;

/// Sends metrics.
pub struct MetricsOut {
    push: Push,
    interval: Duration,
    begun: Timestamp,
    page: Page,
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
        page: Page,
        begun: Timestamp,
    ) -> Result<Self, ScoresOutError> {
        let push = Push::new(options, key, Signal::Metrics, outcomes(registry)?)?;
        Ok(Self { push, interval: options.metrics_interval, begun, page })
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
        let (page, own, now) = (self.page)();
        let (mut head, mut batch) = (Head::default(), Batch::default());
        // Metrics that cannot be rendered are left out; a scrape reports the error.
        let own = health(&own, Format::Text).unwrap_or_default();
        for (number, piece) in (0_u64..).zip(page.chain([own])) {
            give_way(number).await;
            // If the clock was set back, the start must not be in the future.
            for metric in families(&piece, &mut head, self.begun.min(now), now) {
                for full in batch.add(metric) {
                    self.send(full).await;
                }
            }
        }
        self.send(batch.metrics).await;
    }

    async fn send(&self, metrics: Vec<Metric>) {
        let sent = metrics.iter().map(points).sum::<usize>() as u64;
        if sent == 0 {
            return;
        }
        self.push.tell(request(metrics).encode_to_vec(), sent).await;
    }
}

/// A sample of a page.
#[derive(Clone, Debug)]
struct Sample<'p> {
    name: &'p str,
    labels: Labels<'p>,
    value: f64,
    exemplar: Option<Exemplar>,
}

type Labels<'p> = Vec<(&'p str, String)>;

/// The head of a family; a piece of a page may go on with the family of the piece before.
#[derive(Clone, Debug, Default)]
struct Head {
    name: String,
    help: String,
    kind: String,
}

/// A family, or a part of it, with its samples.
struct Family<'p> {
    head: Head,
    samples: Vec<Sample<'p>>,
}

/// The metrics of the next request.
#[derive(Debug, Default)]
struct Batch {
    metrics: Vec<Metric>,
    points: usize,
}

/// The metrics in a piece of a page in either format; `head` is the last head before it, and then the last one in it. Families
/// without a sample are left out.
fn families(piece: &str, head: &mut Head, begun: Timestamp, now: Timestamp) -> Vec<Metric> {
    let mut families = vec![Family { head: head.clone(), samples: Vec::new() }];
    for line in piece.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            head.help = rest.split_once(' ').map_or("", |(_, help)| help).to_owned();
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            (head.name, head.kind) = (name.to_owned(), kind.to_owned());
            families.push(Family { head: head.clone(), samples: Vec::new() });
        } else if let Some(family) = families.last_mut() {
            family.samples.extend(sample(line));
        }
    }
    families.retain(|family| !family.samples.is_empty());
    families.into_iter().map(|family| family.metric(begun, now)).collect()
}

impl Family<'_> {
    fn metric(self, begun: Timestamp, now: Timestamp) -> Metric {
        let cumulative = AggregationTemporality::Cumulative.into();
        let Head { name, help, kind } = &self.head;
        let (name, data) = match kind.as_str() {
            "counter" => {
                let data_points = numbers(&self.samples, begun, now);
                let sum =
                    Sum { data_points, aggregation_temporality: cumulative, is_monotonic: true };
                let name = name.strip_suffix("_total").unwrap_or(name);
                (name, metric::Data::Sum(sum))
            }
            "histogram" => {
                let data_points = distributions(name, &self.samples, begun, now);
                let histogram = Histogram { data_points, aggregation_temporality: cumulative };
                (name.as_str(), metric::Data::Histogram(histogram))
            }
            _ => {
                let data_points = numbers(&self.samples, Timestamp::default(), now);
                (name.as_str(), metric::Data::Gauge(Gauge { data_points }))
            }
        };
        Metric {
            name: name.to_owned(),
            description: help.clone(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

fn numbers(samples: &[Sample<'_>], begun: Timestamp, now: Timestamp) -> Vec<NumberDataPoint> {
    let point = |sample: &Sample<'_>| NumberDataPoint {
        attributes: labelled(&sample.labels),
        start_time_unix_nano: begun.0,
        time_unix_nano: now.0,
        value: Some(number_data_point::Value::AsDouble(sample.value)),
        ..NumberDataPoint::default()
    };
    samples.iter().map(point).collect()
}

/// The samples of a histogram put together, by their labels beside `le`, in the order of the page.
fn distributions(
    name: &str,
    samples: &[Sample<'_>],
    begun: Timestamp,
    now: Timestamp,
) -> Vec<HistogramDataPoint> {
    let mut order: Vec<String> = Vec::new();
    let mut points: BTreeMap<String, (HistogramDataPoint, u64)> = BTreeMap::new();
    for sample in samples {
        let (bound, others): (Vec<_>, Vec<_>) =
            sample.labels.iter().cloned().partition(|(label, _)| *label == "le");
        let key = format!("{others:?}");
        let (point, below) = points.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            let point = HistogramDataPoint {
                attributes: labelled(&others),
                start_time_unix_nano: begun.0,
                time_unix_nano: now.0,
                ..HistogramDataPoint::default()
            };
            (point, 0)
        });
        point.exemplars.extend(sample.exemplar.clone());
        match sample.name.strip_prefix(name) {
            Some("_sum") => point.sum = Some(sample.value),
            Some("_count") => point.count = whole(sample.value),
            Some("_bucket") => {
                // On the page the count of a bucket includes all buckets below.
                let count = whole(sample.value);
                point.bucket_counts.push(count.saturating_sub(*below));
                *below = count;
                let bound = bound.first().and_then(|(_, bound)| bound.parse::<f64>().ok());
                point.explicit_bounds.extend(bound.filter(|bound| bound.is_finite()));
            }
            Some(_) | None => {}
        }
    }
    order.iter().filter_map(|key| points.remove(key)).map(|(point, _)| point).collect()
}

/// A count that a page shows.
fn whole(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts are whole, not negative, and far below 2^53"
    )]
    let count = value.max(0.0) as u64;
    count
}

/// A line of a page; `None` if it is no sample.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(labels) => labels_of(labels)?,
        None => (Vec::new(), rest),
    };
    let (value, exemplar) = match rest.split_once(" # ") {
        Some((value, exemplar)) => (value, exemplar_of(exemplar)),
        None => (rest, None),
    };
    Some(Sample { name, labels, value: value.trim().parse().ok()?, exemplar })
}

/// Labels as they are written, up to the closing brace: `a="x",b="y"}`, with escapes by backslashes; and the text
/// after them.
fn labels_of(mut text: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim_start_matches(','), value));
        text = rest.get(end + 1..)?;
    }
}

/// An exemplar as OpenMetrics has it: `{trace_id=".."} value seconds`.
fn exemplar_of(text: &str) -> Option<Exemplar> {
    let (labels, rest) = labels_of(text.strip_prefix('{')?)?;
    let (_, trace_id) = labels.into_iter().find(|(name, _)| *name == "trace_id")?;
    let (value, time) = rest.trim_start().split_once(' ')?;
    let (seconds, millis) = time.split_once('.')?;
    let millis = seconds.parse::<u64>().ok()?.checked_mul(1_000)? + millis.parse::<u64>().ok()?;
    Some(Exemplar {
        trace_id: u128::from_str_radix(&trace_id, 16).ok()?.to_be_bytes().to_vec(),
        time_unix_nano: millis.checked_mul(1_000_000)?,
        value: Some(exemplar::Value::AsDouble(value.parse().ok()?)),
        ..Exemplar::default()
    })
}

/// The attributes for labels that are not empty.
fn labelled(labels: &[(&str, String)]) -> Vec<KeyValue> {
    let known = labels.iter().filter(|(_, value)| !value.is_empty());
    let attribute = |(name, value): &(&str, String)| KeyValue {
        key: (*name).to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.clone())) }),
        ..KeyValue::default()
    };
    known.map(attribute).collect()
}

fn points(metric: &Metric) -> usize {
    match &metric.data {
        Some(metric::Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(metric::Data::Sum(sum)) => sum.data_points.len(),
        Some(metric::Data::Histogram(histogram)) => histogram.data_points.len(),
        Some(metric::Data::ExponentialHistogram(_) | metric::Data::Summary(_)) | None => 0,
    }
}

impl Batch {
    /// Adds a metric, in parts if it is large; returns the requests that got full.
    fn add(&mut self, metric: Metric) -> Vec<Vec<Metric>> {
        let mut full = Vec::new();
        for part in parts(metric) {
            let more = points(&part);
            if self.points + more > MAX_POINTS {
                full.push(std::mem::take(self).metrics);
            }
            self.points += more;
            let other = match self.metrics.last_mut() {
                Some(last) => join(last, part),
                None => Some(part),
            };
            self.metrics.extend(other);
        }
        full
    }
}

/// Adds the points of a metric to `last` if that is of the same name; else returns the metric.
fn join(last: &mut Metric, more: Metric) -> Option<Metric> {
    if last.name != more.name {
        return Some(more);
    }
    match (&mut last.data, more.data) {
        (Some(metric::Data::Gauge(last)), Some(metric::Data::Gauge(more))) => {
            last.data_points.extend(more.data_points);
        }
        (Some(metric::Data::Sum(last)), Some(metric::Data::Sum(more))) => {
            last.data_points.extend(more.data_points);
        }
        (Some(metric::Data::Histogram(last)), Some(metric::Data::Histogram(more))) => {
            last.data_points.extend(more.data_points);
        }
        // A name always has one kind, so this does not happen.
        (_, data) => return Some(Metric { data, ..more }),
    }
    None
}

/// Splits a metric into parts that fit a request.
fn parts(metric: Metric) -> Vec<Metric> {
    let Metric { name, description, data, .. } = metric;
    let part = |data| Metric {
        name: name.clone(),
        description: description.clone(),
        data: Some(data),
        ..Metric::default()
    };
    match data {
        Some(metric::Data::Gauge(Gauge { data_points })) => data_points
            .chunks(MAX_POINTS)
            .map(|points| part(metric::Data::Gauge(Gauge { data_points: points.to_vec() })))
            .collect(),
        Some(metric::Data::Sum(sum)) => sum
            .data_points
            .chunks(MAX_POINTS)
            .map(|points| part(metric::Data::Sum(Sum { data_points: points.to_vec(), ..sum })))
            .collect(),
        Some(metric::Data::Histogram(histogram)) => histogram
            .data_points
            .chunks(MAX_POINTS)
            .map(|points| {
                let points = points.to_vec();
                part(metric::Data::Histogram(Histogram { data_points: points, ..histogram }))
            })
            .collect(),
        // Other kinds of metrics are not made here.
        Some(metric::Data::ExponentialHistogram(_) | metric::Data::Summary(_)) | None => Vec::new(),
    }
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
    use super::*;

    const PAGE: &str = r#"# HELP score A score.
# TYPE score gauge
score{service_name="a \"b\\c\"\n,{x} # {y} 1",version="",window="1h"} 0.25
# HELP empty Nothing.
# TYPE empty gauge
# HELP traces_total Traces.
# TYPE traces_total counter
traces_total{service_name="a"} 3
# HELP risk Risks.
# TYPE risk histogram
risk_bucket{service_name="a",le="0.1"} 1
risk_bucket{service_name="a",le="0.5"} 1 # {trace_id="000102030405060708090a0b0c0d0e0f"} 0.4 17.250
risk_bucket{service_name="a",le="+Inf"} 4
risk_sum{service_name="a"} 2.5
risk_count{service_name="a"} 4
"#;

    fn text(attribute: &KeyValue) -> (&str, &str) {
        match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(any_value::Value::StringValue(text)) => (&attribute.key, text),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_page_is_told_as_it_is() {
        let metrics = families(PAGE, &mut Head::default(), Timestamp(1), Timestamp(9));
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names, ["score", "traces", "risk"]);
        let [
            Some(metric::Data::Gauge(gauge)),
            Some(metric::Data::Sum(sum)),
            Some(metric::Data::Histogram(risk)),
        ] = [0, 1, 2].map(|at| metrics[at].data.clone())
        else {
            panic!("{metrics:?}")
        };
        let [score] = gauge.data_points.as_slice() else { panic!() };
        let attributes: Vec<_> = score.attributes.iter().map(text).collect();
        assert_eq!(attributes, [("service_name", "a \"b\\c\"\n,{x} # {y} 1"), ("window", "1h")]);
        assert_eq!(score.value, Some(number_data_point::Value::AsDouble(0.25)));
        assert_eq!((score.start_time_unix_nano, score.time_unix_nano), (0, 9));
        assert!(sum.is_monotonic && sum.data_points[0].start_time_unix_nano == 1);
        let [risk] = risk.data_points.as_slice() else { panic!() };
        assert_eq!(risk.bucket_counts, [1, 0, 3]);
        assert_eq!(risk.explicit_bounds, [0.1, 0.5]);
        assert_eq!((risk.count, risk.sum), (4, Some(2.5)));
        let [exemplar] = risk.exemplars.as_slice() else { panic!("{risk:?}") };
        assert_eq!(exemplar.trace_id, (0..16).collect::<Vec<u8>>());
        assert_eq!(exemplar.time_unix_nano, 17_250_000_000);
        assert_eq!(exemplar.value, Some(exemplar::Value::AsDouble(0.4)));
    }

    #[test]
    fn requests_are_bounded() {
        let line = |agent: usize| format!("score{{service_name=\"{agent}\"}} 1\n");
        let page: String = (0..MAX_POINTS * 2 + 1).map(line).collect();
        let page = format!("# TYPE score gauge\n{page}{PAGE}");
        // A piece ends between two series, wherever that is in a family.
        let lines: Vec<&str> = page.split_inclusive('\n').take(1 + MAX_POINTS * 2 + 1).collect();
        let pieces = lines.chunks(101).map(<[&str]>::concat).chain([PAGE.to_owned()]);
        let (mut head, mut batch) = (Head::default(), Batch::default());
        let mut sent = Vec::new();
        for piece in pieces {
            let metrics = families(&piece, &mut head, Timestamp(1), Timestamp(9));
            metrics.into_iter().for_each(|metric| sent.extend(batch.add(metric)));
        }
        sent.push(batch.metrics);
        let shape = |metrics: &Vec<Metric>| -> Vec<(String, usize)> {
            metrics.iter().map(|metric| (metric.name.clone(), points(metric))).collect()
        };
        let named = |name: &str, points| (name.to_owned(), points);
        let shapes: Vec<_> = sent.iter().map(shape).collect();
        let [first, second, third] = shapes.as_slice() else { panic!("{shapes:?}") };
        let [[(_, some)], [(_, more)]] = [first, second].map(Vec::as_slice) else {
            panic!("{shapes:?}")
        };
        assert!(*some.max(more) <= MAX_POINTS && *some.min(more) > MAX_POINTS - 101);
        let rest = MAX_POINTS * 2 + 2 - some - more;
        assert_eq!(*third, [named("score", rest), named("traces", 1), named("risk", 1)]);
    }
}
