//! The daemon's own metrics: what it received, refused, repaired and dropped, and how much it holds. They are in a registry of the
//! `prometheus` crate and exported after the scores.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use crate::clock::Clock;
use crate::engine::assemble::AGES;
use crate::engine::span::Timestamp;
use crate::ingest::RequestCounts;
use crate::registry::{Registry, metrics};
use crate::vital::Vital;

metrics! {
    /// The content of requests.
    struct Requests {
        spans: IntCounterVec = counters("spans_received_total", "Spans received.", &["transport", "encoding"]),
        logs: IntCounterVec = counters("log_records_received_total", "Log records received.", &["transport", "encoding"]),
        points: IntCounterVec = counters("metric_points_received_total",
            "Metric data points received; they are dropped.", &["transport", "encoding"]),
        refused: IntCounterVec = counters("requests_refused_total", "Requests refused as a whole, by reason.", &["reason"]),
    }
}

/// The daemon's own metrics.
#[derive(Debug)]
pub struct Health {
    registry: Registry,
    /// The tasks that must not end.
    pub(crate) vital: Vital,
    requests: Requests,
    stages: BTreeMap<&'static str, IntCounterVec>,
    held: Sums,
    held_bytes: Sums,
    open: Sums,
    // The last totals of each stage and shard, by kind and reason.
    totals: Mutex<BTreeMap<String, Totals>>,
}

/// The last totals of one stage or shard.
type Totals = BTreeMap<(&'static str, &'static str), u64>;

/// How much of one kind a shard holds. The shard sets it whenever it changes; a scrape adds up all shards.
#[derive(Clone, Debug, Default)]
pub struct ShardGauge(Arc<AtomicU64>);

/// Gauges that are sums over shards, made at each scrape.
#[derive(Clone, Debug, Default)]
struct Sums {
    // By the value of the gauge's label and the shard.
    shards: Arc<Mutex<BTreeMap<(&'static str, String), ShardGauge>>>,
}

/// A family of counters that stages feed: the name that stages use, the metric, its label, its help.
type Family = (&'static str, &'static str, &'static str, &'static str);

/// The families, by the names that stages use. Counts with any other name go to the family of their reason: see [`by_reason`].
#[rustfmt::skip] // A row is one family.
const FAMILIES: &[Family] = &[
    ("spans", "spans_rejected_total", "reason", "Spans left out, by reason."),
    ("duplicates", "duplicates_total", "what",
        "Duplicates of spans, logs, reports and, in a cluster, done traces, by kind."),
    ("logs", "logs_rejected_total", "reason", "Log records left out, by reason."),
    ("repaired", "spans_repaired_total", "reason", "Spans and logs kept after a repair, by reason."),
    ("unused", "records_unused_total", "reason",
        "Records without anything usable, by reason."),
    ("late", "late_spans_total", "outcome", "Spans and log records that arrived after their trace was done, by outcome: revised (the trace was reopened), dropped, or root_dropped (a root whose trace had been sealed without it)."),
    ("traces_partial", "traces_partial_total", "reason",
        "Traces scored without all of their spans, by reason: age, room (both ended early) or full."),
    ("turns", "turns_forgotten_total", "what",
        "State of turns from log records that was dropped for want of room, by kind."),
    ("traces_ignored", "traces_ignored_total", "reason", "Traces without any agent activity, by reason."),
    ("reports", "reports_total", "outcome", "Reported scores, by outcome."),
    ("label_values_limited", "label_values_limited_total", "label", "Series merged into __overflow__."),
    (CERTIFICATES, "certificate_reloads_total", "outcome",
        "Reloads of changed certificate files, by outcome: loaded, or failed (the old files stay in use)."),
    ("evicted_sessions", "sessions_evicted_total", "event",
        "Sessions evicted from memory, by event: evicted (written to disk), restored (from it), or lost (they could not be read)."),
    (WAITED, "requests_waited_total", "outcome",
        "Requests that waited for their turn or for room, by outcome: entered or refused."),
    (CLOSED, "connections_closed_total", "reason",
        "Connections that the daemon closed, by reason: displaced (by new ones), idle, slow_head, slow_bodies, stalled (the client read nothing of a response), or protocol (the client violated or flooded HTTP/2)."),
    (CUT, "answers_cut_total", "reason",
        "Responses of the HTTP port that were cut off, by reason: displaced (by another scrape of the same identity), memory, time, or stalled (the client read nothing)."),
    ("truncated", "texts_truncated_total", "what",
        "Texts for a model that were cut to size, by kind: transcript or embedded_text."),
    (FORGOTTEN, "forgotten_total", "what",
        "Old entries that were dropped as intended, for want of room or at the end of their time, by kind."),
    (IGNORED, "updates_ignored_total", "update",
        "Updates between stages that were not applied because they were stale or of no use, by update."),
    (LIMITS, "limits_reached_total", "limit",
        "How often a limit was reached and something was left out."),
];

/// The family of old entries that make room for newer ones as intended: such a count is no sign of a fault.
const FORGOTTEN: &str = "forgotten";

/// The family of messages between stages that had no effect.
const IGNORED: &str = "ignored";

/// The family of limits.
const LIMITS: &str = "limits";

/// The family of a count that has none by its name, and its label in it.
fn by_reason(what: &str, why: &str) -> (&'static str, String) {
    match why {
        "forgotten" | "idle" | "expired" => (FORGOTTEN, what.to_owned()),
        "late" | "malformed" | "outside_window" | "stale" | "unheld" => {
            (IGNORED, format!("{what}_{why}"))
        }
        _ => (LIMITS, format!("{what}_{why}")),
    }
}

/// The family of certificates.
const CERTIFICATES: &str = "certificates";

/// The family of requests that waited.
const WAITED: &str = "waited";

/// The family of connections that were closed.
const CLOSED: &str = "closed";

/// The family of answers that were cut off.
const CUT: &str = "cut";

impl Health {
    /// Metrics of a daemon that started at `started`.
    ///
    /// # Errors
    ///
    /// Fails if two metrics have the same name.
    pub fn new(started: Timestamp) -> Result<Arc<Self>, prometheus::Error> {
        let registry = Registry::new();
        let mut stages = BTreeMap::new();
        for (what, name, label, help) in FAMILIES {
            stages.insert(*what, registry.counters(name, help, &[label])?);
        }
        let help = "Resident memory size in bytes.";
        registry.sampled(IntGauge::new("process_resident_memory_bytes", help), |gauge| {
            let status = std::fs::read_to_string("/proc/self/status");
            let bytes = status.ok().and_then(|status| resident_bytes(&status));
            bytes.inspect(|bytes| gauge.set(*bytes)).is_some()
        })?;
        let start = registry.add(Gauge::new(
            "process_start_time_seconds",
            "Start time of the process since the Unix epoch in seconds.",
        ))?;
        start.set(started.0 as f64 / 1e9);
        let build: IntGaugeVec =
            registry.gauges("build_info", "The running version; always 1.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Arc::new(Self {
            vital: Vital::default(),
            requests: Requests::new(&registry)?,
            held: Sums::new(
                &registry,
                "held",
                "Traces, sessions and agents held in memory, by kind; sessions_evicted are on disk.",
                "what",
            )?,
            held_bytes: Sums::new(
                &registry,
                "held_bytes",
                "Estimated bytes of memory held by unsealed traces, by sessions and by runs.",
                "what",
            )?,
            open: Sums::new(
                &registry,
                "open_traces",
                "Open traces, by time since their first span arrived.",
                "age",
            )?,
            stages,
            registry,
            totals: Mutex::default(),
        }))
    }

    /// The registry, to be encoded.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts the items of one request; `transport` is `grpc`, `http` or `kafka`, `encoding` is `protobuf` or `json`.
    pub fn received(&self, transport: &str, encoding: &str, tally: &RequestCounts) {
        let labels = [transport, encoding];
        self.requests.spans.with_label_values(&labels).inc_by(tally.spans);
        self.requests.logs.with_label_values(&labels).inc_by(tally.logs);
        self.requests.points.with_label_values(&labels).inc_by(tally.metric_points);
        for (what, reasons) in
            [("spans", &tally.rejected), ("repaired", &tally.repaired), ("unused", &tally.unused)]
        {
            for (reason, count) in reasons {
                self.add(what, reason, *count);
            }
        }
    }

    /// Counts a request that was refused whole.
    pub fn refused(&self, reason: &str) {
        self.requests.refused.with_label_values(&[reason]).inc();
    }

    /// Counts a request that waited for room; `outcome` is `entered` or `refused`.
    pub fn waited(&self, outcome: &str) {
        self.add(WAITED, outcome, 1);
    }

    /// Counts a connection that the daemon closed.
    pub fn closed(&self, why: &str) {
        self.add(CLOSED, why, 1);
    }

    /// Counts an answer that was cut off.
    pub fn cut(&self, why: &str) {
        self.add(CUT, why, 1);
    }

    /// Counts a reading of certificate files that had changed; `outcome` is `loaded` or `failed`.
    pub fn certificates(&self, outcome: &str) {
        self.add(CERTIFICATES, outcome, 1);
    }

    /// Exports the counters of [`Self::certificates`] from zero on, so that the first failure shows as a rise.
    pub fn watches_certificates(&self) {
        for outcome in ["loaded", "failed"] {
            self.stages[CERTIFICATES].with_label_values(&[outcome]);
        }
    }

    /// Counts that a bound was reached outside of the engine.
    pub fn limit_reached(&self, limit: &str) {
        self.add(LIMITS, limit, 1);
    }

    /// Counts that an old entry made room outside of the engine.
    pub fn forgot(&self, what: &str) {
        self.add(FORGOTTEN, what, 1);
    }

    /// Takes the totals of a stage, as (kind, reason, count); `source` names the stage and its shard. Adds only the growth of each
    /// total since the last call.
    pub fn counts(
        &self,
        source: &str,
        counts: impl IntoIterator<Item = (&'static str, &'static str, u64)>,
    ) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let own = match totals.get_mut(source) {
            Some(own) => own,
            None => totals.entry(source.to_owned()).or_default(),
        };
        for (what, why, count) in counts {
            let before = own.entry((what, why)).or_default();
            let more = count.saturating_sub(*before);
            *before = count.max(*before);
            match (what, why) {
                _ if more == 0 => {}
                (_, "duplicate") => self.add("duplicates", what, more),
                _ if self.stages.contains_key(what) => self.add(what, why, more),
                _ => {
                    let (family, label) = by_reason(what, why);
                    self.add(family, &label, more);
                }
            }
        }
    }

    /// Forgets the totals of a stage that is gone; its counts stay counted.
    pub fn forget(&self, source: &str) {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).remove(source);
    }

    /// How many of `what` (such as `traces`, `sessions`, `agents`) one shard holds.
    pub fn held(&self, what: &'static str, shard: &str) -> ShardGauge {
        self.held.of_shard(what, shard)
    }

    /// How many bytes of memory the traces or sessions of one shard take, or the runs of all agents.
    pub fn held_bytes(&self, what: &'static str, shard: &str) -> ShardGauge {
        self.held_bytes.of_shard(what, shard)
    }

    /// How many open traces of each of [`AGES`] one shard holds.
    pub fn open_traces(&self, shard: &str) -> [ShardGauge; AGES.len()] {
        AGES.map(|(age, _)| self.open.of_shard(age, shard))
    }

    /// Exports how many messages wait before each stage; `lengths` counts them at each scrape.
    ///
    /// # Errors
    ///
    /// Fails if the metric is registered already.
    pub fn queues(
        &self,
        lengths: impl Fn() -> Vec<(&'static str, usize)> + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        let opts = Opts::new("agentgauge_queue_messages", "Messages waiting before a stage.");
        self.registry.sampled(IntGaugeVec::new(opts, &["stage"]), move |gauge| {
            for (stage, length) in lengths() {
                let length = i64::try_from(length).unwrap_or(i64::MAX);
                gauge.with_label_values(&[stage]).set(length);
            }
            true
        })
    }

    /// Exports how often the wall clock was set.
    ///
    /// # Errors
    ///
    /// Fails if the metric is registered already.
    pub fn clock(&self, clock: &Clock) -> Result<(), prometheus::Error> {
        let help = "Steps of the wall clock of a second or more, at the start against the time of the store, by direction: forward \
                    or back.";
        let opts = Opts::new("agentgauge_clock_steps_total", help);
        // Held while the counters are raised to the clock's counts.
        let (clock, asked) = (clock.clone(), Mutex::new(()));
        self.registry.sampled(IntCounterVec::new(opts, &["direction"]), move |family| {
            let _asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            for (direction, count) in clock.steps() {
                let counter = family.with_label_values(&[direction]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
            true
        })
    }

    fn add(&self, what: &str, why: &str, count: u64) {
        if let Some(family) = self.stages.get(what).filter(|_| count > 0) {
            family.with_label_values(&[why]).inc_by(count);
        }
    }
}

impl ShardGauge {
    /// Sets how much the shard holds now.
    pub fn set(&self, count: usize) {
        self.0.store(count as u64, Ordering::Relaxed);
    }
}

impl Sums {
    /// Registers gauges with this label; their family is called `agentgauge_` followed by `name`.
    fn new(
        registry: &Registry,
        name: &str,
        help: &str,
        label: &str,
    ) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(format!("agentgauge_{name}"), help);
        let sums = Self::default();
        let shown = sums.clone();
        registry.sampled(IntGaugeVec::new(opts, &[label]), move |gauge| shown.show(gauge))?;
        Ok(sums)
    }

    /// The gauge of one shard.
    fn of_shard(&self, label: &'static str, shard: &str) -> ShardGauge {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.entry((label, shard.to_owned())).or_default().clone()
    }

    fn show(&self, gauge: &IntGaugeVec) -> bool {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums: BTreeMap<&'static str, u64> = BTreeMap::new();
        for ((label, _), ShardGauge(count)) in &*shards {
            *sums.entry(label).or_default() += count.load(Ordering::Relaxed);
        }
        for (label, sum) in sums {
            gauge.with_label_values(&[label]).set(i64::try_from(sum).unwrap_or(i64::MAX));
        }
        true
    }
}

fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(health: &Health) -> String {
        prometheus::TextEncoder::new().encode_to_string(&health.registry().gather()).unwrap()
    }

    #[test]
    fn counts_of_shards_add_up_and_are_taken_once() {
        let health = Health::new(Timestamp(0)).unwrap();
        for _ in 0..2 {
            health.counts("assemble/0", [("late", "dropped", 2), ("spans", "duplicate", 1)]);
            health.counts("assemble/1", [("late", "dropped", 3), ("traces", "evicted", 4)]);
        }
        health.counts("assemble/0", [("late", "dropped", 5)]);
        health.forget("assemble/1");
        assert_eq!(health.totals.lock().unwrap().len(), 1);
        let text = text(&health);
        assert!(text.contains("agentgauge_late_spans_total{outcome=\"dropped\"} 8\n"), "{text}");
        assert!(text.contains("agentgauge_duplicates_total{what=\"spans\"} 1\n"), "{text}");
        let limit = "agentgauge_limits_reached_total{limit=\"traces_evicted\"} 4\n";
        assert!(text.contains(limit), "{text}");
    }

    #[test]
    fn what_shards_hold_adds_up() {
        let health = Health::new(Timestamp(0)).unwrap();
        for (what, shard, count) in
            [("traces", "0", 7), ("traces", "1", 2), ("traces", "0", 3), ("sessions", "0", 9)]
        {
            health.held(what, shard).set(count);
        }
        health.open_traces("0")[3].set(2);
        health.open_traces("1")[3].set(3);
        assert!(text(&health).contains("agentgauge_open_traces{age=\"15m_to_1h\"} 5\n"));
        assert!(text(&health).contains("agentgauge_held{what=\"traces\"} 5\n"));
        for (shard, bytes) in [("0", 70), ("1", 20)] {
            health.held_bytes("traces", shard).set(bytes);
        }
        assert!(text(&health).contains("agentgauge_held_bytes{what=\"traces\"} 90\n"));
    }

    #[test]
    fn queues_are_counted_when_they_are_asked_for() {
        let health = Health::new(Timestamp(0)).unwrap();
        let waiting = Arc::new(Mutex::new(3));
        let counted = Arc::clone(&waiting);
        health.queues(move || vec![("sessions", *counted.lock().unwrap())]).unwrap();
        for expected in [3, 0] {
            *waiting.lock().unwrap() = expected;
            let line = format!("agentgauge_queue_messages{{stage=\"sessions\"}} {expected}\n");
            assert!(text(&health).contains(&line));
        }
    }

    #[test]
    fn a_request_is_counted_with_what_became_of_it() {
        let health = Health::new(Timestamp(1_500_000_000)).unwrap();
        let mut tally = RequestCounts { spans: 3, ..RequestCounts::default() };
        tally.rejected.insert("invalid_trace_id", 1);
        health.received("grpc", "protobuf", &tally);
        health.refused("too_large");
        let text = text(&health);
        for line in [
            "agentgauge_spans_received_total{encoding=\"protobuf\",transport=\"grpc\"} 3\n",
            "agentgauge_spans_rejected_total{reason=\"invalid_trace_id\"} 1\n",
            "agentgauge_requests_refused_total{reason=\"too_large\"} 1\n",
            "process_start_time_seconds 1.5\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_bytes("Name: x\nVmRSS:\t   12 kB\n"), Some(12_288));
        assert_eq!(resident_bytes("Name: x\n"), None);
    }
}
