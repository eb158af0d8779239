//! Evicting and restoring sessions changes no result: in any order of arrival, whatever the room, over restarts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::sessions::{SessionPlace, SessionStore, Sessions};
use agentgauge::engine::span::Timestamp;
use agentgauge::engine::view::Document;
use proptest::prelude::*;

use crate::recorded::{self, Item, apply, items, reordered};

/// How the items are delivered, and what happens meanwhile.
#[derive(Clone, Debug)]
struct Delivery {
    shards: u32,
    max_sessions: usize,
    max_bytes: usize,
    idle: Duration,
    /// A sort key for each item, again and again.
    order: Vec<u16>,
    /// How many items make a batch.
    batch: usize,
    /// Time between batches.
    pause: Duration,
    /// Every nth batch is followed by a restart.
    restart: usize,
}

/// A session store that outlives the pipeline.
#[derive(Clone, Default)]
pub(crate) struct MemoryStore(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    by_place: BTreeMap<u64, Vec<u8>>,
    next: u64,
    freed: u64,
}

impl SessionStore for MemoryStore {
    fn put(&mut self, bytes: &[u8]) -> Option<SessionPlace> {
        let mut stored = self.0.lock().unwrap();
        let at = stored.next;
        stored.next += 1;
        stored.by_place.insert(at, bytes.to_vec());
        Some(SessionPlace { file: 1, at, bytes: 0, sum: 0 })
    }

    fn get(&self, place: SessionPlace) -> Option<Vec<u8>> {
        self.0.lock().unwrap().by_place.get(&place.at).cloned()
    }

    fn free(&mut self, place: SessionPlace) {
        let mut stored = self.0.lock().unwrap();
        assert!(stored.by_place.remove(&place.at).is_some(), "it was freed before");
        stored.freed += 1;
    }

    fn keep(&mut self) -> bool {
        true
    }
}

const CAPTURES: [&str; 7] = [
    "oi-openai",
    "oi-langgraph",
    "js-otel-openai-evals",
    "oi-anthropic",
    "openlit-scores",
    "pydantic-ai-v1",
    "google-adk-legacy",
];

fn options(delivery: &Delivery, max_sessions: usize, max_bytes: usize) -> EngineOptions {
    let mut options = EngineOptions::default();
    options.assemble.keep_content = true;
    options.session.max_sessions = max_sessions;
    options.session.max_bytes = max_bytes;
    options.session.session_idle = delivery.idle;
    options
}

pub(crate) fn session_stores(
    session_store: Option<&MemoryStore>,
    shards: u32,
) -> Vec<Box<dyn SessionStore + Send>> {
    (0..shards).filter_map(|_| Some(Box::new(session_store?.clone()) as _)).collect()
}

/// The pipeline of the next process, restored from a snapshot, with the same session store.
fn restarted(
    mut before: Pipeline,
    options: &EngineOptions,
    session_store: Option<&MemoryStore>,
) -> Pipeline {
    let shards = u32::try_from(before.lasting().2.len()).unwrap();
    let mut after = recorded::restarted(before, options, Route::new(shards, 0));
    if session_store.is_some() {
        after.use_session_store(session_stores(session_store, shards));
    }
    after
}

/// The documents at the end; with a session store sessions are evicted to it, without one there is room for all.
fn run(items: &[Item], delivery: &Delivery, session_store: Option<&MemoryStore>) -> Document {
    let (room, bytes) =
        session_store.map_or((10_000, 1 << 30), |_| (delivery.max_sessions, delivery.max_bytes));
    let options = options(delivery, room, bytes);
    let mut pipeline = Pipeline::new(&options, delivery.shards);
    if session_store.is_some() {
        pipeline.use_session_store(session_stores(session_store, delivery.shards));
    }
    let mut now = Timestamp(1_800_000_000_000_000_000);
    for (number, batch) in items.chunks(delivery.batch).enumerate() {
        apply(&mut pipeline, batch, now);
        let held = pipeline.lasting().2.iter().map(Sessions::held_sessions);
        assert!(held.max().unwrap_or_default() <= room, "after each batch the others are evicted");
        now = now.after(delivery.pause);
        pipeline.advance(now);
        if number % delivery.restart == delivery.restart - 1 {
            pipeline = restarted(pipeline, &options, session_store);
        }
    }
    pipeline.finish(now);
    pipeline.document()
}

fn deliveries() -> impl Strategy<Value = Delivery> {
    let order = prop::collection::vec(any::<u16>(), 1..64);
    let idle = prop_oneof![Just(12), Just(60), Just(3_600)];
    // This many sessions, or this many bytes.
    let room = prop_oneof![
        (1_usize..3, Just(1 << 30)),
        (Just(10_000), prop_oneof![Just(1_000), 1_000_usize..50_000])
    ];
    (1_u32..4, room, idle, order, 1_usize..12, 0_u64..400, 5_usize..80).prop_map(
        |(shards, (max_sessions, max_bytes), idle, order, batch, pause, restart)| Delivery {
            shards,
            max_sessions,
            max_bytes,
            idle: Duration::from_secs(idle),
            order,
            batch,
            pause: Duration::from_millis(pause),
            restart,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 8, ..ProptestConfig::default() })]

    #[test]
    fn a_session_that_left_for_want_of_room_comes_back_as_it_was(delivery in deliveries()) {
        let all: Vec<Item> = CAPTURES.into_iter().flat_map(items).collect();
        let items = reordered(&all, &delivery.order);
        let session_store = MemoryStore::default();
        let roomy = serde_json::to_string_pretty(&run(&items, &delivery, None)).unwrap();
        let away = serde_json::to_string_pretty(&run(&items, &delivery, Some(&session_store))).unwrap();
        prop_assert_eq!(away, roomy);
        let stored = session_store.0.lock().unwrap();
        let few = delivery.shards > 1 || (delivery.max_sessions > 1 && delivery.max_bytes > 1_000);
        prop_assert!(stored.freed > 0 || few, "some were restored");
        prop_assert!(stored.by_place.is_empty(), "at the end all were restored or dropped");
    }
}
