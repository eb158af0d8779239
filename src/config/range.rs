//! Ranges that options must keep, each with its key.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::fleet;
use super::kafka;
use super::layer::Origins;
use super::{Config, ConfigError, Origin};
use crate::access::is_host;
use crate::engine::convention::concepts;
use crate::engine::loops::LoopKind;
use crate::engine::options::{Thresholds, human};
use crate::engine::score::princeton::AgentTasks;
use crate::export::about::is_http;
use crate::judge::Metric;
use crate::judge::worker::names;
use crate::outbound;
use crate::store::Durability;

/// The greatest weight; a greater one would have no further effect, and a sum of many must not overflow.
const MAX_WEIGHT: f64 = 1000.0;

/// The greatest price, in dollars per million tokens; a greater one is a mistake, and a call's cost must not overflow.
const MAX_PRICE: f64 = 1_000_000.0;

/// The greatest limit of cost, in dollars; a greater one would limit nothing, and it must not overflow.
const MAX_DOLLARS: f64 = 1_000_000.0;

/// The most windows that agents may have; each takes some 40 series.
const MAX_WINDOWS: usize = 8;

/// Panes of a window; a pane must last whole seconds.
const PANES: u64 = 60;

/// The most bytes that a record in the log has beside its request.
const RECORD_BYTES: u64 = 1 << 20;

pub(super) struct Check<'o> {
    origins: &'o Origins,
    error: Option<ConfigError>,
}

/// A duration, written as the configuration has it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Human(Duration);

/// Checks every range; the error is about the first option that is out of its range.
pub(super) fn check(config: &Config, origins: &Origins) -> Result<(), ConfigError> {
    let mut check = Check { origins, error: None };
    shell(config, &mut check);
    ingest(config, &mut check);
    tenants(config, &mut check);
    kafka::check(config, &mut check);
    fleet::check(config, &mut check);
    engine(config, &mut check);
    loops(config, &mut check);
    limits(config, &mut check);
    sessions(config, &mut check);
    windows(config, &mut check);
    runs(config, &mut check);
    drops(config, &mut check);
    judge(config, &mut check);
    embed(config, &mut check);
    scores_out(config, &mut check);
    telemetry(config, &mut check);
    api(config, &mut check);
    webhook(config, &mut check);
    endpoints(config, &mut check);
    store(config, &mut check);
    check.error.map_or(Ok(()), Err)
}

impl Check<'_> {
    pub(super) fn within<T: Copy + PartialOrd + fmt::Display>(
        &mut self,
        key: &'static str,
        was: T,
        min: T,
        max: T,
    ) {
        if !(was >= min && was <= max) {
            self.fail(key, format!("from {min} to {max}"), was);
        }
    }

    pub(super) fn lasting(
        &mut self,
        key: &'static str,
        was: Duration,
        min: Duration,
        max: Duration,
    ) {
        self.within(key, Human(was), Human(min), Human(max));
    }

    /// Checks an option whose least value follows from another one, which may be the one to change.
    fn at_least<T: Copy + PartialOrd + fmt::Display>(
        &mut self,
        key: &'static str,
        was: T,
        least: T,
        other: &'static str,
    ) {
        if was < least {
            let origin = self.origin(other);
            self.fail(key, format!("at least {least}, because of `{other}` {origin}"), was);
        }
    }

    fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    pub(super) fn fail(&mut self, key: &'static str, expected: String, was: impl fmt::Display) {
        let origin = self.origin(key);
        let error = ConfigError::Range { key, origin, expected, was: was.to_string() };
        self.error.get_or_insert(error);
    }
}

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human::render(self.0))
    }
}

fn shell(config: &Config, check: &mut Check<'_>) {
    let addresses = [
        ("listen.otlp_grpc", &config.listen.otlp_grpc),
        ("listen.otlp_http", &config.listen.otlp_http),
        ("listen.http", &config.listen.http),
    ];
    for (key, address) in addresses {
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            check.fail(key, "an address like 127.0.0.1:4317".to_owned(), format!("`{address}`"));
        }
    }
    for (at, (key, address)) in addresses.iter().enumerate() {
        let taken = addresses[..at].iter().find(|(_, other)| is_same_place(address, other));
        if let Some((other, _)) = taken {
            let expected = format!("a port of its own, other than that of `{other}`");
            check.fail(key, expected, format!("`{address}`"));
        }
    }
    if let Some(host) = config.listen.hosts.iter().find(|host| !is_host(host)) {
        let expected = "names of hosts without a scheme or a port, like gauge.example.org";
        check.fail("listen.hosts", expected.to_owned(), format!("`{host}`"));
    }
    let server = &config.server;
    check.within("server.max_connections", server.max_connections, 1, 1_000_000);
    check.within("server.max_header_bytes", server.max_header_bytes, 1024, 1 << 20);
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
    check.lasting("server.header_read_timeout", server.header_read_timeout, short, long);
    check.lasting("server.read_timeout", server.read_timeout, short, long);
    check.lasting("server.idle_timeout", server.idle_timeout, short, 24 * long);
    check.lasting("server.drain_timeout", server.drain_timeout, short, long);
    check.lasting("tls.reload_interval", config.tls.reload_interval, short, 24 * long);
    check.within("engine.shards", config.engine.shards, 1, 256);
    check.within("engine.channel_capacity", config.engine.channel_capacity, 1, 1 << 20);
}

/// Whether only one of two listeners could have its address: the port is the same, and so is the host, or one of them is every host.
fn is_same_place(one: &str, other: &str) -> bool {
    let (Some((host, port)), Some((other_host, other_port))) =
        (one.rsplit_once(':'), other.rsplit_once(':'))
    else {
        return false;
    };
    let is_every = |host: &str| ["0.0.0.0", "[::]"].contains(&host);
    port == other_port
        && port != "0"
        && (host == other_host || is_every(host) || is_every(other_host))
}

fn ingest(config: &Config, check: &mut Check<'_>) {
    let ingest = &config.ingest;
    check.within("ingest.max_request_bytes", ingest.max_request_bytes, 1024, 1 << 30);
    check.within("ingest.max_request_items", ingest.max_request_items, 1, 1 << 30);
    // Nested values are walked recursively, on the stack.
    check.within("ingest.max_nesting", ingest.max_nesting, 1, 128);
    let (decoded, request) = (ingest.max_decoded_bytes, ingest.max_request_bytes);
    check.at_least("ingest.max_decoded_bytes", decoded, request, "ingest.max_request_bytes");
    check.within("ingest.body_progress", ingest.body_progress, 0, 1 << 20);
    let minute = Duration::from_secs(60);
    check.lasting("ingest.max_wait", ingest.max_wait, Duration::ZERO, minute);
    let day = Duration::from_secs(86_400);
    check.lasting("ingest.max_clock_skew", ingest.max_clock_skew, Duration::ZERO, day);
    let year = day * 366;
    check.lasting("ingest.max_span_age", ingest.max_span_age, Duration::from_secs(1), year);
    let convention = &config.convention;
    check.within("convention.max_text_bytes", convention.max_text_bytes, 1, 16 << 20);
    check.within("convention.max_name_bytes", convention.max_name_bytes, 16, 4096);
    for concept in convention.attributes.keys() {
        if !concepts().any(|known| known == concept) {
            let known = concepts().collect::<Vec<_>>().join(", ");
            check.fail("convention.attributes", format!("one of {known}"), format!("`{concept}`"));
        }
    }
    for own in &convention.logs {
        let begins = [&own.prompts, &own.model_calls, &own.tool_calls];
        if begins.iter().all(|events| events.is_empty()) {
            let form = "events under `prompts`, `model_calls` or `tool_calls`".to_owned();
            check.fail("convention.logs", form, format!("none of `{}`", own.name));
        }
        if own.session.is_empty() {
            let form = "an attribute under `session`".to_owned();
            check.fail("convention.logs", form, format!("none of `{}`", own.name));
        }
    }
    for key in &convention.session_json_keys {
        let parts = key.strip_suffix('}').and_then(|key| key.split_once('{'));
        if parts.is_none_or(|(attribute, inner)| attribute.is_empty() || inner.is_empty()) {
            let form = "written as attribute{key}".to_owned();
            check.fail("convention.session_json_keys", form, format!("`{key}`"));
        }
    }
    for (name, [min, max]) in &convention.score_ranges {
        if !(min.is_finite() && max.is_finite() && min < max) {
            let was = format!("[{min}, {max}] for `{name}`");
            check.fail(
                "convention.score_ranges",
                "[least, greatest], in this order".to_owned(),
                was,
            );
        }
    }
}

fn engine(config: &Config, check: &mut Check<'_>) {
    let assemble = &config.assemble;
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(86_400));
    check.lasting("assemble.trace_idle", assemble.trace_idle, short, long);
    check.lasting("assemble.rootless_idle", assemble.rootless_idle, short, long);
    check.lasting("assemble.trace_max_age", assemble.trace_max_age, short, long);
    let (age, idle) = (Human(assemble.trace_max_age), Human(assemble.trace_idle));
    check.at_least("assemble.trace_max_age", age, idle, "assemble.trace_idle");
    check.lasting("assemble.late_horizon", assemble.late_horizon, Duration::ZERO, long);
    check.lasting("assemble.report_wait", assemble.report_wait, Duration::ZERO, long);
    let most = 1 << 30;
    check.within("assemble.max_open_traces", assemble.max_open_traces, 1, most);
    check.within("assemble.max_bytes", assemble.max_bytes, 1 << 20, 1 << 40);
    check.within("assemble.max_trace_bytes", assemble.max_trace_bytes, 1 << 16, 1 << 30);
    let (all, one) = (assemble.max_bytes, assemble.max_trace_bytes);
    check.at_least("assemble.max_bytes", all, one, "assemble.max_trace_bytes");
    check.within("assemble.max_spans_per_trace", assemble.max_spans_per_trace, 1, most);
    check.within("assemble.max_sealed_traces", assemble.max_sealed_traces, 1, most);
    check.within("assemble.max_waiting_reports", assemble.max_waiting_reports, 1, most);
    check.within("assemble.max_reports_per_trace", assemble.max_reports_per_trace, 1, most);
    check.within("assemble.max_learned", assemble.max_learned, 1, most);
    check.within("assemble.max_turn_sessions", assemble.max_turn_sessions, 1, most);
    check.within("assemble.max_turn_spans", assemble.max_turn_spans, 1, most);
}

fn loops(config: &Config, check: &mut Check<'_>) {
    let loops = &config.loops;
    check.within("loops.warning", loops.warning, 2, u64::MAX);
    check.at_least("loops.critical", loops.critical, loops.warning, "loops.warning");
    check.within("loops.names_only", loops.names_only, 2, u64::MAX);
    check.within("loops.near_repeat_similarity", loops.near_repeat_similarity, 0.5, 1.0);
    check.within("loops.max_traces", loops.max_traces, 2, 10_000);
    if loops.allow.iter().any(String::is_empty) {
        check.fail(
            "loops.allow",
            "names of tools, `*` for any text".to_owned(),
            "an empty name".to_owned(),
        );
    }
    for (kind, Thresholds { warning, critical }) in &loops.by_kind {
        if !kind.has_thresholds() {
            let kinds = LoopKind::ALL.iter().filter(|kind| kind.has_thresholds());
            let names: Vec<&str> = kinds.map(|kind| kind.name()).collect();
            check.fail(
                "loops.by_kind",
                format!("one of {}", names.join(", ")),
                format!("`{kind}`"),
            );
        }
        if *warning < 2 || critical < warning {
            let was = format!("warning = {warning}, critical = {critical} for `{kind}`");
            check.fail("loops.by_kind", "2 <= warning <= critical".to_owned(), was);
        }
    }
    for price in &config.cost.prices {
        let dollars = [Some(price.input), Some(price.output), price.cached, price.cache_written];
        let wrong = dollars.iter().flatten().find(|dollars| !(0.0..=MAX_PRICE).contains(*dollars));
        if let Some(was) = wrong {
            let expected = format!("dollars per million tokens from 0 to {MAX_PRICE}");
            check.fail("cost.prices", expected, format!("{was} for `{}`", price.model));
        }
    }
}

fn limits(config: &Config, check: &mut Check<'_>) {
    let limits = &config.limits;
    check.within("limits.trace_cost_usd", limits.trace_cost_usd, 0.0, MAX_DOLLARS);
    check.within("limits.session_cost_usd", limits.session_cost_usd, 0.0, MAX_DOLLARS);
    for (agent, own) in &limits.agents {
        let dollars = [own.trace_cost_usd, own.session_cost_usd];
        if let Some(was) = dollars.iter().flatten().find(|was| !(0.0..=MAX_DOLLARS).contains(*was))
        {
            let expected = format!("dollars from 0 to {MAX_DOLLARS}");
            check.fail("limits.agents", expected, format!("{was} for `{agent}`"));
        }
    }
}

fn sessions(config: &Config, check: &mut Check<'_>) {
    let session = &config.session;
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(30 * 86_400));
    check.lasting("session.session_idle", session.session_idle, short, long);
    check.lasting("session.loop_hold", session.loop_hold, short, long);
    check.lasting("session.stall_after", session.stall_after, short, long);
    check.within("session.max_sessions", session.max_sessions, 1, 1 << 30);
    check.within("session.max_bytes", session.max_bytes, 1 << 20, 1 << 40);
    check.within("session.max_session_bytes", session.max_session_bytes, 1 << 16, 1 << 40);
    let (all, one) = (session.max_bytes, session.max_session_bytes);
    check.at_least("session.max_bytes", all, one, "session.max_session_bytes");
    check.within("session.max_traces_per_session", session.max_traces_per_session, 1, 1 << 30);
    check.within("session.max_reports_per_session", session.max_reports_per_session, 1, 1 << 20);
    check.lasting("session.report_wait", session.report_wait, Duration::ZERO, long);
    check.within("session.max_waiting_reports", session.max_waiting_reports, 1, 1 << 30);
    check.within("session.max_departed_traces", session.max_departed_traces, 1, 1 << 30);
    check.within("session.max_outstanding_outcomes", session.max_outstanding_outcomes, 0, 1 << 30);
    let threshold = session.loop_detection_threshold;
    check.within("session.loop_detection_threshold", threshold, 0.0, 1.0);
    check.within("session.gate_window", session.gate_window, 1, 1 << 20);
    check.within("session.gate_target", session.gate_target, 0.0, 1.0);
    check.within("session.gate_gain", session.gate_gain, 0.0, 1.0);
    check.within("session.gate_drop", session.gate_drop, 0.0, 1.0);
    for (signal, threshold) in &session.signal_thresholds {
        if !(0.0..=1.0).contains(threshold) {
            let was = format!("{threshold} for `{signal}`");
            check.fail("session.signal_thresholds", "from 0 to 1".to_owned(), was);
        }
    }
    for (signal, weight) in &session.signal_weights {
        if !(0.0..=MAX_WEIGHT).contains(weight) {
            let was = format!("{weight} for `{signal}`");
            check.fail("session.signal_weights", format!("from 0 to {MAX_WEIGHT}"), was);
        }
    }
}

fn webhook(config: &Config, check: &mut Check<'_>) {
    let webhook = &config.webhook;
    let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
    check.lasting("webhook.cooldown", webhook.cooldown, second, day);
    check.within("webhook.max_per_minute", webhook.max_per_minute, 1, 1_000);
    check.lasting("webhook.timeout", webhook.timeout, Duration::from_millis(1), 60 * second);
    check.within("webhook.max_attempts", webhook.max_attempts, 1, 10);
}

fn runs(config: &Config, check: &mut Check<'_>) {
    let agents = &config.agents;
    check.within("agents.max_runs", agents.max_runs, 1, 1_000_000);
    check.within("agents.max_traces_per_run", agents.max_traces_per_run, 1, 100_000);
    check.within("agents.max_run_bytes", agents.max_run_bytes, 1 << 20, 1 << 40);
    let (short, long) = (Duration::from_secs(60), Duration::from_secs(366 * 86_400));
    check.lasting("agents.run_memory", agents.run_memory, short, long);
    check.lasting("agents.memory", agents.memory, short, long);
    let tasks = &config.tasks;
    check.within("tasks.last_runs", tasks.last_runs, 2, AgentTasks::MAX_LAST_RUNS);
    check.within("tasks.max_tasks", tasks.max_tasks, 1, 1_000_000);
    check.within("tasks.max_actions_per_run", tasks.max_actions_per_run, 1, 10_000);
    let weights = tasks.weights.all();
    if !weights.iter().all(|weight| (0.0..=MAX_WEIGHT).contains(weight)) {
        check.fail("tasks.weights", format!("from 0 to {MAX_WEIGHT}"), format!("{weights:?}"));
    }
    let ars = &config.ars;
    let weights = ars.weights.all();
    if !weights.iter().all(|weight| (0.0..=MAX_WEIGHT).contains(weight)) {
        check.fail("ars.weights", format!("from 0 to {MAX_WEIGHT}"), format!("{weights:?}"));
    }
    let ceiling = |ceiling: Option<f64>| ceiling.unwrap_or(1.0);
    let least = f64::MIN_POSITIVE;
    let latency = ceiling(ars.latency_ceiling_seconds);
    check.within("ars.latency_ceiling_seconds", latency, least, f64::MAX);
    check.within("ars.cost_ceiling_usd", ceiling(ars.cost_ceiling_usd), least, f64::MAX);
    check.within("ars.optimum_loops", ars.optimum_loops.unwrap_or(1), 1, u64::MAX);
    if let Some((case, _)) = ars.optimum_loops_by_case.iter().find(|(_, optimum)| **optimum == 0) {
        let was = format!("0 for `{case}`");
        check.fail("ars.optimum_loops_by_case", "at least 1".to_owned(), was);
    }
    let nothing = ars.fidelity_of_nothing.unwrap_or(0.0);
    check.within("ars.fidelity_of_nothing", nothing, 0.0, 100.0);
    check.within("ars.fidelity_without_retrieval", ars.fidelity_without_retrieval, 0.0, 100.0);
    let drift = &config.drift;
    check.within("drift.alpha", drift.alpha, 1e-9, 0.5);
}

fn drops(config: &Config, check: &mut Check<'_>) {
    let drop = &config.drop;
    check.within("drop.false_pages_per_quarter", drop.false_pages_per_quarter, 1e-3, 1e3);
    check.within("drop.tolerance", drop.tolerance, 0.0, 0.5);
    check.within("drop.tolerance_ratio", drop.tolerance_ratio, 1.0, 10.0);
    check.within("drop.objective", drop.objective, 0.0, 0.9999);
    for (agent, objective) in &drop.objectives {
        if !(0.0..=0.9999).contains(objective) {
            let was = format!("{objective} for `{agent}`");
            check.fail("drop.objectives", "from 0 to 0.9999".to_owned(), was);
        }
    }
    let day = Duration::from_secs(86_400);
    check.lasting("drop.memory", drop.memory, day, 366 * day);
    check.lasting("drop.accept_after", drop.accept_after, Duration::ZERO, 366 * day);
    check.within("drop.max_deployments", drop.max_deployments, 1, 100_000);
}

fn judge(config: &Config, check: &mut Check<'_>) {
    let judge = &config.judge;
    check.within("judge.temperature", judge.temperature, 0.0, 2.0);
    check.within("judge.max_output_tokens", judge.max_output_tokens, 16, 1 << 20);
    check.within("judge.sample_rate", judge.sample_rate, 0.0, 1.0);
    for rate in judge.sample_rates.values() {
        check.within("judge.sample_rates", *rate, 0.0, 1.0);
    }
    for name in judge.models.keys() {
        if !Metric::ALL.iter().any(|metric| metric.name() == name) {
            check.fail("judge.models", names(&Metric::ALL), format!("`{name}`"));
        }
    }
    for name in judge.constraints.keys() {
        if name.is_empty() || name.contains([':', '\n']) {
            let expected = "names without colons and line breaks".to_owned();
            check.fail("judge.constraints", expected, format!("`{name}`"));
        }
    }
    check.within("judge.rejudge_rate", judge.rejudge_rate, 0.0, 1.0);
    let year = 365 * 24 * Duration::from_secs(3_600);
    check.lasting("judge.canary_interval", judge.canary_interval, Duration::ZERO, year);
    check.within("judge.usd_per_hour", judge.usd_per_hour, 0.0, 1e6);
    check.within("judge.input_usd_per_million", judge.input_usd_per_million, 0.0, MAX_PRICE);
    check.within("judge.output_usd_per_million", judge.output_usd_per_million, 0.0, MAX_PRICE);
    check.within("judge.concurrency", judge.concurrency, 1, 10_000);
    check.within("judge.max_queue", judge.max_queue, 1, 1 << 20);
    check.within("judge.max_pending_bytes", judge.max_pending_bytes, 1 << 16, usize::MAX);
    check.within("judge.max_open_bytes", judge.max_open_bytes, 1 << 16, usize::MAX);
    check.within("judge.max_transcript_bytes", judge.max_transcript_bytes, 1 << 10, 16 << 20);
    check.within("judge.max_reply_bytes", judge.max_reply_bytes, 1 << 10, 64 << 20);
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
    check.lasting("judge.timeout", judge.timeout, short, long);
    check.lasting("judge.deadline", judge.deadline, short, 24 * long);
    check.within("judge.max_attempts", judge.max_attempts, 1, 10);
    check.lasting("judge.backoff", judge.backoff, Duration::ZERO, long);
    check.within("judge.max_failures", judge.max_failures, 1, 1_000_000);
    check.lasting("judge.pause", judge.pause, short, 24 * long);
}

fn embed(config: &Config, check: &mut Check<'_>) {
    let embed = &config.embed;
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
    check.within("embed.threads", embed.threads, 1, 1_024);
    check.within("embed.max_batch", embed.max_batch, 1, 10_000);
    check.within("embed.max_queue", embed.max_queue, 1, 1 << 20);
    check.within("embed.max_cached", embed.max_cached, 0, 1 << 24);
    check.within("embed.max_text_bytes", embed.max_text_bytes, 16, 16 << 20);
    check.within("embed.max_reply_bytes", embed.max_reply_bytes, 1 << 10, 1 << 30);
    check.lasting("embed.timeout", embed.timeout, short, long);
    check.within("embed.max_attempts", embed.max_attempts, 1, 10);
    check.lasting("embed.backoff", embed.backoff, Duration::ZERO, long);
    check.within("embed.max_failures", embed.max_failures, 1, 1_000_000);
    check.lasting("embed.pause", embed.pause, short, 24 * long);
}

fn scores_out(config: &Config, check: &mut Check<'_>) {
    let out = &config.scores_out;
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
    check.within("scores_out.max_queue", out.max_queue, 1, 1 << 20);
    check.within("scores_out.max_batch", out.max_batch, 1, 100_000);
    check.lasting("scores_out.interval", out.interval, short, long);
    check.lasting("scores_out.timeout", out.timeout, short, long);
    check.within("scores_out.max_attempts", out.max_attempts, 1, 100);
    check.lasting("scores_out.backoff", out.backoff, short, long);
    check.lasting("scores_out.metrics_interval", out.metrics_interval, Duration::ZERO, 24 * long);
}

fn telemetry(config: &Config, check: &mut Check<'_>) {
    check.within("telemetry.sample_rate", config.telemetry.sample_rate, 0.0, 1.0);
}

fn api(config: &Config, check: &mut Check<'_>) {
    let api = &config.api;
    let (short, long) = (Duration::from_millis(100), Duration::from_secs(86_400));
    check.lasting("api.history_step", api.history_step, short, long);
    check.within("api.history_points", api.history_points, 1, 10_000);
    check.within("api.history_agents", api.history_agents, 1, 100_000);
    check.within("api.max_streams", api.max_streams, 1, 10_000);
    check.within("api.max_scrapes", api.max_scrapes, 1, 10_000);
    check.within("api.max_unread_bytes", api.max_unread_bytes, 1 << 20, usize::MAX);
    let links = &config.links;
    if !links.has_own_host() {
        let expected = "an address without a path, like https://gauge.example.org".to_owned();
        check.fail("links.public_url", expected, format!("`{}`", links.public_url));
    }
    if !links.is_sound() {
        let expected =
            "an http address with {trace_id} in it, or a preset such as jaeger+http://jaeger:16686";
        check.fail("links.trace", expected.to_owned(), format!("`{}`", links.trace));
    }
    let prometheus = &links.prometheus_url;
    if !prometheus.is_empty()
        && (!is_http(prometheus)
            || outbound::check("links.prometheus_url", "", prometheus, true).is_err())
    {
        let expected = "an address like http://prometheus:9090".to_owned();
        check.fail("links.prometheus_url", expected, format!("`{prometheus}`"));
    }
}

/// Checks the addresses of the endpoints that are used, none of which is repeated, as it may have a password in it.
fn endpoints(config: &Config, check: &mut Check<'_>) {
    let Config { judge, embed, webhook, scores_out, telemetry, .. } = config;
    // A judge needs an address, the others are off without one.
    let judge_url = Some(&*judge.url).filter(|_| judge.is_on());
    for (key, allow, url, http) in [
        ("judge.url", "judge.allow_http", judge_url, judge.allow_http),
        ("embed.url", "embed.allow_http", set(&embed.url), embed.allow_http),
        ("webhook.url", "webhook.allow_http", set(&webhook.url), webhook.allow_http),
        ("scores_out.url", "scores_out.allow_http", set(&scores_out.url), scores_out.allow_http),
        (
            "telemetry.otlp_endpoint",
            "telemetry.allow_http",
            set(&telemetry.otlp_endpoint),
            telemetry.allow_http,
        ),
    ] {
        let Some(url) = url else { continue };
        if let Err(why) = outbound::check(key, allow, url, http) {
            let origin = check.origin(key);
            check.error.get_or_insert(ConfigError::Endpoint { origin, why });
        }
    }
}

fn store(config: &Config, check: &mut Check<'_>) {
    let store = &config.store;
    if store.durability != Durability::Memory && store.directory.is_empty() {
        let expected = "a directory, as `store.durability` is not memory".to_owned();
        check.fail("store.directory", expected, "empty");
    }
    let is_default = matches!(check.origin("store.durability"), Origin::Default);
    if !store.directory.is_empty() && is_default {
        let expected =
            "set too, as `store.directory` is: fsync or flush, or memory to keep nothing there";
        check.fail("store.durability", expected.to_owned(), "not set");
    }
    check.within("store.segment_bytes", store.segment_bytes, 1 << 12, 1 << 30);
    check.within("store.snapshot_bytes", store.snapshot_bytes, 1 << 12, 1 << 40);
    check.within("store.snapshot_spans", store.snapshot_spans, 1, 1 << 40);
    check.within("store.max_bytes", store.max_bytes, 1 << 12, 1 << 50);
    let key = "store.max_bytes";
    check.at_least(key, store.max_bytes, store.segment_bytes, "store.segment_bytes");
    // A request is one record, which is in one segment.
    let request = (config.ingest.max_request_bytes as u64).saturating_add(RECORD_BYTES);
    check.at_least(key, store.max_bytes, request, "ingest.max_request_bytes");
    let second = Duration::from_secs(1);
    check.lasting("store.commit_interval", store.commit_interval, Duration::ZERO, second);
}

fn tenants(config: &Config, check: &mut Check<'_>) {
    check.within("tenants.share", config.tenants.share, 0.0, 1.0);
    for (name, share) in &config.tenants.shares {
        if !(*share > 0.0 && *share <= 1.0) {
            let expected = "shares above 0 and up to 1".to_owned();
            check.fail("tenants.shares", expected, format!("{share} of `{name}`"));
        }
    }
}

fn windows(config: &Config, check: &mut Check<'_>) {
    let agents = &config.agents;
    check.within("agents.last_traces", agents.last_traces, 1, 10_000);
    check.within("agents.max_agents", agents.max_agents, 1, 1_000_000);
    check.within("agents.max_signals_per_agent", agents.max_signals_per_agent, 1, 10_000);
    check.within("agents.max_names_per_agent", agents.max_names_per_agent, 1, 10_000);
    let key = "agents.windows";
    if agents.windows.len() > MAX_WINDOWS {
        check.fail(key, format!("at most {MAX_WINDOWS} windows"), agents.windows.len());
    }
    let mut seen = BTreeSet::new();
    for window in &agents.windows {
        let whole = window.subsec_nanos() == 0 && window.as_secs() % PANES == 0;
        if !whole || window.is_zero() || window.as_secs() > 30 * 86_400 {
            check.fail(key, "whole minutes up to 30d".to_owned(), human::render(*window));
        }
        if !seen.insert(*window) {
            check.fail(key, "different from each other".to_owned(), human::render(*window));
        }
    }
}

/// An address, if it is set.
fn set(url: &str) -> Option<&str> {
    Some(url).filter(|url| !url.is_empty())
}
