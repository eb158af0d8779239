//! Ranges of options, each with its key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use super::fleet;
use super::kafka;
use super::layer::Origins;
use super::{Config, ConfigError, Origin};
use crate::access::is_host;
use crate::engine::convention::concepts;
use crate::engine::loops::LoopKind;
use crate::engine::options::{self, Bounded, MAX_PRICE, Ranges, Thresholds, human};
use crate::export::about::is_http;
use crate::judge::Metric;
use crate::judge::worker::names;
use crate::outbound;
use crate::store::Durability;

/// The greatest weight; a greater one would have no further effect, and a sum of many must not overflow.
const MAX_WEIGHT: f64 = 1000.0;

/// The greatest limit of cost, in dollars; a greater one would limit nothing, and it must not overflow.
const MAX_DOLLARS: f64 = 1_000_000.0;

/// The most windows that agents may have; each takes some 40 series.
const MAX_WINDOWS: usize = 8;

/// Panes of a window; a pane must last whole seconds.
const PANES: u64 = 60;

/// The most bytes of a record in the log besides its request.
const RECORD_BYTES: u64 = 1 << 20;

pub(super) struct Check<'o> {
    origins: &'o Origins,
    error: Option<ConfigError>,
}

/// Checks every range; the error is about the first option that is out of its range.
pub(super) fn check(config: &Config, origins: &Origins) -> Result<(), ConfigError> {
    let mut check = Check { origins, error: None };
    declared(config, &mut check);
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
    check.each("drop.objectives", &config.drop.objectives, 0.9999);
    judge(config, &mut check);
    links(config, &mut check);
    endpoints(config, &mut check);
    store(config, &mut check);
    check.error.map_or(Ok(()), Err)
}

impl Check<'_> {
    fn within<T: Bounded>(&mut self, key: &'static str, was: T, range: RangeInclusive<T>) {
        options::within(key, was, range, &mut |key, expected, was| self.fail(key, expected, was));
    }

    /// Checks the numbers of a table, each under a name.
    fn each<N: fmt::Display>(&mut self, key: &'static str, table: &BTreeMap<N, f64>, most: f64) {
        for (name, was) in table.iter().filter(|(_, was)| !(0.0..=most).contains(*was)) {
            self.fail(key, format!("from 0 to {most}"), format!("{was} for `{name}`"));
        }
    }

    /// Checks an option whose least value follows from another one, which may be the one to change.
    fn at_least<T: Bounded>(&mut self, key: &'static str, was: T, least: T, other: &'static str) {
        if was < least {
            let origin = self.origin(other);
            let least = least.shown();
            self.fail(key, format!("at least {least}, because of `{other}` {origin}"), was.shown());
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

/// Checks the ranges that options declare.
#[rustfmt::skip] // Lists of names.
fn declared(config: &Config, check: &mut Check<'_>) {
    // A new section has to be added here.
    let Config {
        access: _, agents, api, ars, assemble, convention, cost, drift, drop, embed, engine,
        expect: _, fleet, ingest, judge, kafka, limits: _, links, listen, log: _, loops, metrics: _,
        scores_out, server, session, store, tasks, telemetry, tenants: _, tls, webhook,
    } = config;
    let sections: [&dyn Ranges; 25] = [
        listen, server, tls, engine, ingest, convention, kafka, fleet, assemble, loops, cost,
        session, agents, tasks, ars, drift, drop, judge, embed, scores_out, telemetry, api, links,
        webhook, store,
    ];
    for section in sections {
        section.ranges(&mut |key, expected, was| check.fail(key, expected, was));
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
}

/// Whether two listeners cannot both have their addresses: the port is the same, and so is the host, or one of them is every host.
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
    let (decoded, request) = (ingest.max_decoded_bytes, ingest.max_request_bytes);
    check.at_least("ingest.max_decoded_bytes", decoded, request, "ingest.max_request_bytes");
    let convention = &config.convention;
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
    let (age, idle) = (assemble.trace_max_age, assemble.trace_idle);
    check.at_least("assemble.trace_max_age", age, idle, "assemble.trace_idle");
    let (all, one) = (assemble.max_bytes, assemble.max_trace_bytes);
    check.at_least("assemble.max_bytes", all, one, "assemble.max_trace_bytes");
}

fn loops(config: &Config, check: &mut Check<'_>) {
    let loops = &config.loops;
    check.at_least("loops.critical", loops.critical, loops.warning, "loops.warning");
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
    check.within("limits.trace_cost_usd", limits.trace_cost_usd, 0.0..=MAX_DOLLARS);
    check.within("limits.session_cost_usd", limits.session_cost_usd, 0.0..=MAX_DOLLARS);
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
    let (all, one) = (session.max_bytes, session.max_session_bytes);
    check.at_least("session.max_bytes", all, one, "session.max_session_bytes");
    check.each("session.signal_thresholds", &session.signal_thresholds, 1.0);
    check.each("session.signal_weights", &session.signal_weights, MAX_WEIGHT);
}

fn runs(config: &Config, check: &mut Check<'_>) {
    let Config { tasks, ars, .. } = config;
    for (key, weights) in
        [("tasks.weights", &tasks.weights.all()[..]), ("ars.weights", &ars.weights.all())]
    {
        if !weights.iter().all(|weight| (0.0..=MAX_WEIGHT).contains(weight)) {
            check.fail(key, format!("from 0 to {MAX_WEIGHT}"), format!("{weights:?}"));
        }
    }
    let ceiling = |ceiling: Option<f64>| ceiling.unwrap_or(1.0);
    let least = f64::MIN_POSITIVE;
    let latency = ceiling(ars.latency_ceiling_seconds);
    check.within("ars.latency_ceiling_seconds", latency, least..=f64::MAX);
    check.within("ars.cost_ceiling_usd", ceiling(ars.cost_ceiling_usd), least..=f64::MAX);
    check.within("ars.optimum_loops", ars.optimum_loops.unwrap_or(1), 1..=u64::MAX);
    if let Some((case, _)) = ars.optimum_loops_by_case.iter().find(|(_, optimum)| **optimum == 0) {
        let was = format!("0 for `{case}`");
        check.fail("ars.optimum_loops_by_case", "at least 1".to_owned(), was);
    }
    let nothing = ars.fidelity_of_nothing.unwrap_or(0.0);
    check.within("ars.fidelity_of_nothing", nothing, 0.0..=100.0);
}

fn judge(config: &Config, check: &mut Check<'_>) {
    let judge = &config.judge;
    for rate in judge.sample_rates.values() {
        check.within("judge.sample_rates", *rate, 0.0..=1.0);
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
}

fn links(config: &Config, check: &mut Check<'_>) {
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

/// Checks the addresses of the endpoints that are used; errors repeat none of them, as an address may contain a password.
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
    let key = "store.max_bytes";
    check.at_least(key, store.max_bytes, store.segment_bytes, "store.segment_bytes");
    // A request is one record, which is in one segment.
    let request = (config.ingest.max_request_bytes as u64).saturating_add(RECORD_BYTES);
    check.at_least(key, store.max_bytes, request, "ingest.max_request_bytes");
}

fn tenants(config: &Config, check: &mut Check<'_>) {
    check.within("tenants.share", config.tenants.share, 0.0..=1.0);
    for (name, share) in &config.tenants.shares {
        if !(*share > 0.0 && *share <= 1.0) {
            let expected = "shares above 0 and up to 1".to_owned();
            check.fail("tenants.shares", expected, format!("{share} of `{name}`"));
        }
    }
}

fn windows(config: &Config, check: &mut Check<'_>) {
    let agents = &config.agents;
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
