//! What captures of real clients hold, a pipeline that is fed with it, and the same pipeline in the next process.

#![allow(dead_code, reason = "no test needs all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::span::{Log, Report, Span, Timestamp};
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
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

/// The folder of all captures.
pub(crate) fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures")
}

/// The requests of a capture, in their order.
pub(crate) fn batches(capture: &Path) -> Vec<Batch> {
    let mut files: Vec<_> =
        fs::read_dir(capture).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pb"));
    files.sort();
    let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
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
    let mut items = Vec::new();
    for (spans, logs, reports) in batches(&captures().join(capture)) {
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
    let (resolve, assemble, sessions, agents) = before.lasting();
    let (new_resolve, new_assemble, new_sessions, new_agents) = after.lasting();
    new_resolve.restore(again(resolve));
    for (old, new) in assemble.iter().zip(new_assemble) {
        new.restore(again(&old.save()));
    }
    for (old, new) in sessions.iter().zip(new_sessions) {
        let saved = rmp_serde::to_vec_named(&old.save()).unwrap();
        new.restore(&mut rmp_serde::Deserializer::from_read_ref(&saved)).unwrap();
    }
    new_agents.restore(again(&agents.save()));
    after
}
