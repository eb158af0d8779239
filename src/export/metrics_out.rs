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
            for part in parts(&piece, &mut head, self.begun.min(now), now) {
                for full in batch.add(part) {
                    self.send(full).await;
                }
            }
        }
        self.send(batch).await;
    }

    async fn send(&self, batch: Batch) {
        if batch.points > 0 {
            let metrics = batch.parts.into_iter().map(Part::metric).collect();
            self.push.tell(request(metrics).encode_to_vec(), batch.points as u64).await;
        }
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

/// A family, or a part of it, with its points, which are of one kind.
#[derive(Clone, Debug)]
struct Part {
    head: Head,
    numbers: Vec<NumberDataPoint>,
    distributions: Vec<HistogramDataPoint>,
}

/// What the next request has.
#[derive(Debug, Default)]
struct Batch {
    parts: Vec<Part>,
    points: usize,
}

/// The families in a piece of a page in either format; `head` is the last head before it, and then the last one in it. Families
/// without a sample are left out.
fn parts(piece: &str, head: &mut Head, begun: Timestamp, now: Timestamp) -> Vec<Part> {
    let mut families = vec![(head.clone(), Vec::new())];
    for line in piece.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            head.help = rest.split_once(' ').map_or("", |(_, help)| help).to_owned();
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            (head.name, head.kind) = (name.to_owned(), kind.to_owned());
            families.push((head.clone(), Vec::new()));
        } else if let Some((_, samples)) = families.last_mut() {
            samples.extend(sample(line));
        }
    }
    families.retain(|(_, samples)| !samples.is_empty());
    families.into_iter().map(|(head, samples)| Part::new(head, &samples, begun, now)).collect()
}

impl Part {
    fn new(head: Head, samples: &[Sample<'_>], begun: Timestamp, now: Timestamp) -> Self {
        let (mut numbers, mut distributions) = (Vec::new(), Vec::new());
        match head.kind.as_str() {
            "histogram" => distributions = distributions_of(&head.name, samples, begun, now),
            "counter" => numbers = numbers_of(samples, begun, now),
            _ => numbers = numbers_of(samples, Timestamp::default(), now),
        }
        Self { head, numbers, distributions }
    }

    fn len(&self) -> usize {
        self.numbers.len() + self.distributions.len()
    }

    /// Takes away what is after the first points of a request.
    fn rest(&mut self) -> Self {
        Self {
            head: self.head.clone(),
            numbers: self.numbers.split_off(MAX_POINTS.min(self.numbers.len())),
            distributions: self.distributions.split_off(MAX_POINTS.min(self.distributions.len())),
        }
    }

    fn metric(self) -> Metric {
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let Self { head: Head { mut name, help, kind }, numbers, distributions } = self;
        let data = match kind.as_str() {
            "counter" => {
                name.truncate(name.strip_suffix("_total").unwrap_or(&name).len());
                let sum = Sum { data_points: numbers, aggregation_temporality, is_monotonic: true };
                metric::Data::Sum(sum)
            }
            "histogram" => {
                let histogram = Histogram { data_points: distributions, aggregation_temporality };
                metric::Data::Histogram(histogram)
            }
            _ => metric::Data::Gauge(Gauge { data_points: numbers }),
        };
        Metric { name, description: help, data: Some(data), ..Metric::default() }
    }
}

fn numbers_of(samples: &[Sample<'_>], begun: Timestamp, now: Timestamp) -> Vec<NumberDataPoint> {
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
fn distributions_of(
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

impl Batch {
    /// Adds a part of a family, in pieces if it is large; returns the batches that got full.
    fn add(&mut self, mut part: Part) -> Vec<Self> {
        let mut full = Vec::new();
        while part.len() > 0 {
            let rest = part.rest();
            if self.points + part.len() > MAX_POINTS {
                full.push(std::mem::take(self));
            }
            self.points += part.len();
            match self.parts.last_mut() {
                Some(last) if last.head.name == part.head.name => {
                    last.numbers.extend(part.numbers);
                    last.distributions.extend(part.distributions);
                }
                _ => self.parts.push(part),
            }
            part = rest;
        }
        full
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
        let parts = parts(PAGE, &mut Head::default(), Timestamp(1), Timestamp(9));
        let metrics: Vec<_> = parts.into_iter().map(Part::metric).collect();
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
            let parts = parts(&piece, &mut head, Timestamp(1), Timestamp(9));
            parts.into_iter().for_each(|part| sent.extend(batch.add(part)));
        }
        sent.push(batch);
        let shape = |batch: &Batch| -> Vec<(String, usize)> {
            batch.parts.iter().map(|part| (part.clone().metric().name, part.len())).collect()
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
