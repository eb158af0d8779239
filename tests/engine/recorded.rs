//! The content of captures of real clients, a pipeline that is fed with it, and the same pipeline in the next process.

#![allow(dead_code, reason = "no test needs all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::span::{Log, Report, Span, Timestamp};
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What was in one request.
pub(crate) type Batch = (Vec<Span>, Vec<Log>, Vec<Report>);

/// One thing to apply.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Span(Box<Span>),
    Log(Box<Log>),
    Report(Box<Report>),
}

/// How the items of a recording are delivered.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) shards: u32,
    /// A sort key for each item, again and again.
    pub(crate) order: Vec<u16>,
    /// Every nth item comes twice.
    pub(crate) twice: usize,
    /// How many items make a batch.
    pub(crate) batch: usize,
    /// Time between batches.
    pub(crate) pause: Duration,
}

/// The folder of all captures.
pub(crate) fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures")
}

/// The requests of a capture, in their order, with their texts, as `verify` decodes them.
pub(crate) fn batches(capture: &Path) -> Vec<Batch> {
    let mut files: Vec<_> =
        fs::read_dir(capture).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pb"));
    files.sort();
    let options = ConventionOptions { keep_texts: true, ..ConventionOptions::default() };
    let decoder = Decoder::new(IngestLimits::default(), options);
    let read = |path: &PathBuf| {
        let logs = path.file_name().unwrap().to_string_lossy().contains("logs");
        let signal = if logs { Signal::Logs } else { Signal::Traces };
        let body = fs::read(path).unwrap();
        let batch = decoder.decode_plain(signal, Encoding::Protobuf, &body).unwrap();
        (batch.spans, batch.logs, batch.reports)
    };
    files.iter().map(read).collect()
}

/// All that is in a capture, one by one.
pub(crate) fn items(capture: &str) -> Vec<Item> {
    items_in(&captures().join(capture))
}

/// Likewise, of the capture in a folder.
pub(crate) fn items_in(capture: &Path) -> Vec<Item> {
    let mut items = Vec::new();
    for (spans, logs, reports) in batches(capture) {
        items.extend(spans.into_iter().map(|span| Item::Span(Box::new(span))));
        items.extend(logs.into_iter().map(|log| Item::Log(Box::new(log))));
        items.extend(reports.into_iter().map(|report| Item::Report(Box::new(report))));
    }
    items
}

/// In another order, by sort keys that are taken again and again.
pub(crate) fn reordered(items: &[Item], order: &[u16]) -> Vec<Item> {
    let key = |at: usize| order[at % order.len()].wrapping_mul(1 + u16::try_from(at).unwrap());
    let mut keyed: Vec<(u16, usize)> = (0..items.len()).map(|at| (key(at), at)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, at)| items[at].clone()).collect()
}

/// All at once, in order, on one shard.
pub(crate) fn plain() -> Delivery {
    Delivery {
        shards: 1,
        order: vec![0],
        twice: usize::MAX,
        batch: usize::MAX,
        pause: Duration::ZERO,
    }
}

/// Any order, some of it twice, in batches on several shards.
pub(crate) fn deliveries() -> impl Strategy<Value = Delivery> {
    let order = prop::collection::vec(any::<u16>(), 1..64);
    // At most 600 batches of at most 400 ms each: everything stays within `late_horizon`, though well beyond `trace_idle`.
    (1_u32..9, order, 1_usize..8, 1_usize..12, 0_u64..400).prop_map(
        |(shards, order, twice, batch, pause)| Delivery {
            shards,
            order,
            twice,
            batch,
            pause: Duration::from_millis(pause),
        },
    )
}

/// Has them come at once.
pub(crate) fn apply(pipeline: &mut Pipeline, items: &[Item], now: Timestamp) {
    let (mut spans, mut logs, mut reports) = Batch::default();
    for item in items.iter().cloned() {
        match item {
            Item::Span(span) => spans.push(*span),
            Item::Log(log) => logs.push(*log),
            Item::Report(report) => reports.push(*report),
        }
    }
    pipeline.apply(spans, logs, reports, now);
}

fn again<T: DeserializeOwned>(state: &impl Serialize) -> T {
    rmp_serde::from_slice(&rmp_serde::to_vec_named(state).unwrap()).unwrap()
}

/// The pipeline of the next process: it has what was saved.
pub(crate) fn restarted(mut before: Pipeline, options: &EngineOptions, route: Route) -> Pipeline {
    let mut after = Pipeline::routed(options, again(&route));
    after.learned().restore(again(&before.learned().save()));
    let (resolve, assemble, sessions, agents) = before.lasting();
    let (new_resolve, new_assemble, new_sessions, new_agents) = after.lasting();
    new_resolve.restore(again(resolve));
    for (old, new) in assemble.iter().zip(new_assemble) {
        new.restore(again(&old.save()));
    }
    for (old, new) in sessions.iter().zip(new_sessions) {
        let saved = rmp_serde::to_vec_named(&old.save()).unwrap();
        agentgauge::engine::saved::read_with(&mut saved.as_slice(), |from| new.restore(from))
            .unwrap();
    }
    new_agents.restore(again(&agents.save()));
    after
}
