//! No order, duplication or number of shards changes a series of `/metrics`, except for the families that are listed here with the
//! reason. Roots come before or after the spans below them. For agents that send log records the prompts come first, as they are
//! sent: if only their order assigns records to turns, a record before its prompt has counted for the previous turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::options::AssembleOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{RECORD_SCOPE, Timestamp};
use agentgauge::export::prometheus::{Detail, Format, render};
use proptest::prelude::*;

use crate::recorded::{Delivery, Item, apply, captures, deliveries, items, plain, reordered};

/// Series that may differ: their family, what they are labelled with, and why.
const EXEMPT: &[(&str, &str, &str)] = &[
    ("agentgauge_agent_last_trace_timestamp_seconds", "", "when things came is what it tells"),
    (
        "agentgauge_trajectory_gate_breaches_total",
        "",
        "the gate takes each trace once, in the order in which traces are done",
    ),
    (
        "agentgauge_trace_evaluations_total",
        "signal=\"loop_detection\"",
        "a verdict counts once, when the trace is done, beside those of its neighbours that are in by then",
    ),
    ("agentgauge_trace_evaluations_total", "signal=\"trace_risk\"", "loop_detection is part of it"),
    (
        "agentgauge_trace_signal_score",
        "signal=\"loop_detection\"",
        "a score counts once, when the trace is done, beside those of its neighbours that are in by then",
    ),
];

const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000_000);

/// Lines by family, as a daemon exports them when all is over.
type Families = BTreeMap<String, BTreeSet<String>>;

fn exported(items: &[Item], delivery: &Delivery) -> Families {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), delivery.shards);
    let mut now = BEGIN;
    for batch in items.chunks(delivery.batch.max(1)) {
        apply(&mut pipeline, batch, now);
        now = now.after(delivery.pause);
        pipeline.advance(now);
    }
    // Long enough for every trace to be final; sessions are still open or closed, whenever their last trace came.
    pipeline.advance(BEGIN.after(Duration::from_secs(20_000)));
    let board: Vec<_> = pipeline.board().values().cloned().map(Arc::new).collect();
    let page = render(&board, Format::Text, Detail::Full);
    let mut families = Families::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            rest.split(' ').next().unwrap().clone_into(&mut family);
        } else if !line.starts_with('#') {
            families.entry(family.clone()).or_default().insert(line.to_owned());
        }
    }
    families
}

/// The time between batches, shortened if a trace would be done between two of its spans: values that count once, when a trace is
/// done, count what has arrived until then.
fn pause(delivered: &[Item], delivery: &Delivery) -> Duration {
    let mut newest = BTreeMap::new();
    let mut longest = 1;
    for (at, item) in delivered.iter().enumerate() {
        let Item::Span(span) = item else { continue };
        let batch = at / delivery.batch.max(1);
        if let Some(before) = newest.insert(span.trace_id, batch) {
            longest = longest.max(batch - before);
        }
    }
    let most = AssembleOptions::default().trace_idle * 9 / 10;
    delivery.pause.min(most / u32::try_from(longest).unwrap())
}

/// The families in which a delivery differs from all at once.
fn differing(capture: &str, delivery: &Delivery) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let items = items(capture);
    let mut delivered = reordered(&items, &delivery.order);
    delivered.sort_by_key(|item| match item {
        Item::Span(span) => span.parent.is_some() || span.scope != RECORD_SCOPE,
        Item::Log(_) | Item::Report(_) => true,
    });
    let delivery = &Delivery { pause: pause(&delivered, delivery), ..delivery.clone() };
    let again: Vec<Item> = delivered.iter().step_by(delivery.twice.max(1)).cloned().collect();
    delivered.extend(again);
    let (expected, actual) = (exported(&items, &plain()), exported(&delivered, delivery));
    let names: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
    let none = BTreeSet::new();
    let mut differing = BTreeMap::new();
    for name in names {
        let may_differ = |line: &str| {
            EXEMPT.iter().any(|(family, label, _)| family == name && line.contains(label))
        };
        let lines = |families: &Families| -> BTreeSet<String> {
            let lines = families.get(name).unwrap_or(&none).iter();
            lines.filter(|line| !may_differ(line)).cloned().collect()
        };
        let (one, other) = (lines(&expected), lines(&actual));
        if one != other {
            let left = |one: &BTreeSet<String>, other| one.difference(other).cloned().collect();
            differing.insert(name.clone(), (left(&one, &other), left(&other, &one)));
        }
    }
    differing
}

/// Captures with traces, by name.
fn names() -> Vec<String> {
    let folders = std::fs::read_dir(captures()).unwrap().map(|entry| entry.unwrap().path());
    let complete = folders.filter(|path| path.join("expected.json").exists());
    let mut names: Vec<String> =
        complete.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn shuffled_and_doubled_captures_export_what_they_do_in_order() {
    // One hard delivery of every capture: backwards at first, all of it twice, in small batches.
    let order: Vec<u16> = (0..61).map(|at| u16::MAX - at * 977).collect();
    let delivery =
        Delivery { shards: 3, order, twice: 1, batch: 3, pause: Duration::from_millis(200) };
    let names = names();
    assert!(names.len() >= 60, "captures are missing: {names:?}");
    let found = names.iter().map(|name| (name, differing(name, &delivery)));
    let found: BTreeMap<_, _> = found.filter(|(_, differing)| !differing.is_empty()).collect();
    assert!(found.is_empty(), "{found:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_delivery_changes_a_series(delivery in deliveries(), which in any::<prop::sample::Index>()) {
        let names = names();
        let name = which.get(&names);
        let differing = differing(name, &delivery);
        prop_assert!(differing.is_empty(), "{name}: {differing:#?}");
    }
}

#[test]
fn what_is_exempt_is_exported() {
    let page = agentgauge::export::page(&[]);
    for (family, _, _) in EXEMPT {
        assert!(page.contains(family), "{family} is in no list of metrics");
    }
}
