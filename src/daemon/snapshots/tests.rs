//! Snapshots of stages whose disk and clock a test owns.

use std::io::Write;

use prometheus::TextEncoder;
use serde_json::json;

use super::*;
use crate::clock::Hand;
use crate::config::Config;
use crate::daemon::durable::{Directory, recover_from};
use crate::daemon::tasks::ToSessions;
use crate::daemon::tasks::barriers::BarrierRoom;
use crate::daemon::{Board, Common, Health, spawn};
use crate::engine::facts::{SessionKey, TraceFacts};
use crate::engine::options::ConventionOptions;
use crate::ingest::decode::{Decoder, IngestLimits};
use crate::ingest::{Batch, Compression, Encoding, Overloaded, Request, Signal, Sink};
use crate::store::tests::simulated::Simulated;
use crate::store::{Durability, Lock, Watch as _};

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Stages with a store on a disk that a test owns, by a clock that it sets.
struct Rig {
    router: Router,
    snapshots: Snapshots,
    stream: Stream,
    health: Arc<Health>,
    hand: Hand,
    requests: u64,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(disk: &Simulated, edit: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.engine.shards = 2;
        config.store.durability = Durability::Fsync;
        edit(&mut config);
        let (clock, hand) = Hand::clock(1_800_000_000);
        let health = Health::new(clock.wall()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        let directory = Directory { lock, disk: Arc::new(disk.clone()) };
        let options = config.engine_options(Vec::new().into());
        let recovered = recover_from(directory, &config, &options, &clock, health.registry());
        let (stages, recovered) = recovered.unwrap();
        let (durable, snapshots) = recovered.start(&config).unwrap();
        let (saving, saved) = mpsc::channel(4 * stages.assemble.len() + 2);
        let common = Common {
            barrier_room: Arc::new(BarrierRoom::new(config.ingest.max_decoded_bytes)),
            clock,
            health: health.clone(),
            judge: None,
            embedder: None,
            webhook: None,
            durable: Some(durable.clone()),
            saving: Some(saving),
        };
        let board = Arc::new(Board::new(config.api));
        let capacity = config.engine.channel_capacity;
        let (router, _, _) = spawn(stages, capacity, &board, &common, Some(durable)).unwrap();
        let stream = Stream { router: router.clone(), epoch: Arc::default(), saved, pace: None };
        Self { router, snapshots, stream, health, hand, requests: 0, _folder: folder }
    }

    /// A request with its own trace.
    fn batch(&mut self) -> Batch {
        self.requests += 1;
        let now = self.snapshots.clock.now();
        let chat = json!({ "key": "gen_ai.operation.name", "value": { "stringValue": "chat" } });
        let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [{
            "traceId": format!("{:032x}", self.requests), "spanId": "0000000000000001", "name": "step",
            "startTimeUnixNano": now.0.to_string(), "endTimeUnixNano": now.0.to_string(),
            "attributes": [chat],
        }]}]}]});
        let body = bytes::Bytes::from(body.to_string());
        let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
        let (signal, encoding, compression) = (Signal::Traces, Encoding::Json, Compression::None);
        let prepared = decoder.prepare(signal, encoding, compression, body.clone()).unwrap();
        let batch = decoder.decode(prepared, Some(now), None).unwrap();
        let request = Request { signal, encoding, compression, sent: None, tenant: None, body };
        Batch { arrival: now, request: Some(request), ..batch }
    }

    async fn send(&mut self) -> Result<(), Overloaded> {
        let batch = self.batch();
        self.router.submit(batch).await.map(drop)
    }

    async fn look(&mut self) {
        self.snapshots.look(&mut self.stream, false).await;
    }

    /// The number of snapshots that were written.
    fn written(&self) -> u64 {
        self.count("store_snapshots_total{outcome=\"written\"}")
    }

    /// One of the daemon's own counters.
    fn count(&self, series: &str) -> u64 {
        let page = TextEncoder.encode_to_string(&self.health.registry().gather()).unwrap();
        let series = format!("agentgauge_{series} ");
        let count = page.lines().find_map(|line| line.strip_prefix(&series));
        count.map_or(0, |count| count.parse().unwrap())
    }
}

async fn until(mut there: impl FnMut() -> bool) {
    let comes = async {
        while !there() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, comes).await.expect("it comes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_begins_while_requests_have_all_places_lets_them_through() {
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |config| config.engine.channel_capacity = 1);
    rig.send().await.unwrap();
    // One request for each shard, and more.
    let router = rig.router.clone();
    disk.hold_syncs(true);
    let mut requests = Vec::new();
    for _ in 0..8 {
        let (batch, router) = (rig.batch(), router.clone());
        requests.push(tokio::spawn(async move { router.submit(batch).await }));
    }
    until(|| disk.syncing() > 0).await;
    let Rig { mut snapshots, mut stream, .. } = rig;
    let snapshot = tokio::spawn(async move {
        snapshots.take(&mut stream).await;
        snapshots.last
    });
    until(|| router.on_the_way.try_read().is_err()).await;
    disk.hold_syncs(false);
    let mut taken = 0;
    for request in requests {
        let answer = timeout(PATIENCE, request).await.expect("every request is answered");
        taken += u64::from(answer.unwrap().is_ok());
    }
    assert!(taken > 0, "no request had a place");
    let last = timeout(PATIENCE, snapshot).await.expect("the snapshot ends").unwrap();
    assert_eq!(last, 1, "the snapshot was written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_takes_requests_again_once_a_snapshot_can_free_some() {
    let disk = Simulated::default();
    // From an earlier process, and no longer needed.
    let mut left = disk.create("evicted-0-000000000001").unwrap();
    left.write_all(&[0; 1 << 20]).unwrap();
    left.sync().unwrap();
    disk.sync_names().unwrap();
    let mut rig = Rig::new(&disk, |config| config.store.max_bytes = 1 << 20);
    let mut refused = 0;
    while rig.send().await.is_err() {
        refused += 1;
        assert!(refused < 10, "the store is full for good");
        rig.hand.pass(60);
        rig.look().await;
    }
    assert!(refused > 0, "the store was not full");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_that_make_no_room_are_far_apart() {
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |_| ());
    rig.send().await.unwrap();
    rig.look().await;
    assert_eq!(rig.written(), 0, "nobody needs room");
    let durable = rig.router.durable.clone().unwrap();
    for _ in 0..60 {
        rig.hand.pass(1);
        // Few bytes fit into the log, and many do not.
        durable.note_time(rig.snapshots.clock.now()).await;
        rig.snapshots.metrics.refused(1, 1_000, Refused::Budget);
        rig.look().await;
    }
    assert!((2..=7).contains(&rig.written()), "{} in a minute", rig.written());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_makes_room_is_written_at_once() {
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |_| ());
    for round in 1..=5 {
        for _ in 0..20 {
            rig.send().await.unwrap();
        }
        rig.snapshots.metrics.refused(1, 1_000, Refused::Budget);
        rig.look().await;
        assert_eq!(rig.written(), round);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_for_which_too_much_would_wait_is_given_up_and_the_next_one_is_written() {
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |config| config.ingest.max_decoded_bytes = 1 << 20);
    rig.send().await.unwrap();
    // One assemble shard has passed the barrier, and continues; the other one has not.
    let (sessions, now) = (rig.router.sessions.clone(), rig.snapshots.clock.now());
    let barrier = Barrier { epoch: 1_000, log_sequence: Some(1) };
    sessions[0].send(ToSessions::Barrier(0, barrier)).await.unwrap();
    let text = "x".repeat(10_000);
    for number in 0..200 {
        let id = format!("{number}{text}").into();
        let session = Some(SessionKey { id, ..SessionKey::default() });
        let facts = TraceFacts { session, ..TraceFacts::default() };
        let message = ToSessions::Traces(0, vec![Box::new(facts)], now);
        sessions[0].send(message).await.unwrap();
    }
    let given_up = timeout(PATIENCE, rig.stream.saved.recv()).await.expect("it is given up");
    let (epoch, section) = given_up.unwrap();
    assert!(epoch == 1_000 && section.is_none());
    assert_eq!(rig.count("limits_reached_total{limit=\"snapshot_waiting\"}"), 1);
    // The barrier passes all the same.
    sessions[0].send(ToSessions::Barrier(1, barrier)).await.unwrap();
    for from in 0..2 {
        sessions[1].send(ToSessions::Barrier(from, barrier)).await.unwrap();
    }
    let mut saved = Vec::new();
    for _ in 0..2 {
        let next = timeout(PATIENCE, rig.stream.saved.recv()).await.expect("a section");
        saved.push(next.unwrap().1.unwrap().name);
    }
    assert_eq!(saved, ["sessions/1", "agents"]);
    rig.snapshots.take(&mut rig.stream).await;
    assert_eq!(rig.written(), 1);
}

/// The log alone can fill a disk that is smaller than the store may become, and then there is no room for the snapshot that would free
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_the_store_itself_has_filled_takes_requests_again() {
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |config| config.store.segment_bytes = 2_000);
    for _ in 0..2 {
        for _ in 0..40 {
            rig.send().await.unwrap();
        }
        rig.snapshots.take(&mut rig.stream).await;
    }
    assert_eq!(rig.written(), 2);
    let used: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
    disk.limit(Some(usize::try_from(used).unwrap() + 3_000));
    let mut filled = 0;
    while rig.send().await.is_ok() {
        filled += 1;
        assert!(filled < 100, "the disk has no limit");
    }
    let mut refused = 0;
    while rig.send().await.is_err() {
        refused += 1;
        assert!(refused < 10, "the disk is full for good");
        rig.hand.pass(60);
        rig.look().await;
    }
    assert_eq!(rig.count("store_snapshot_failing"), 0);
    assert!(rig.written() > 2 && filled > 0);
}

/// The disk has no more room than the store may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_being_written_is_within_the_limit() {
    const MAX_BYTES: u64 = 60_000;
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |config| {
        config.store.max_bytes = MAX_BYTES;
        config.store.segment_bytes = 2_000;
        config.store.snapshot_bytes = 4_000;
    });
    // Beside it there are the marks, and a snapshot may be larger than the one before.
    disk.limit(Some(usize::try_from(MAX_BYTES + MAX_BYTES / 10).unwrap()));
    let mut accepted = 0;
    for round in 0..400 {
        accepted += u64::from(rig.send().await.is_ok());
        if round % 4 == 0 {
            rig.hand.pass(15);
            rig.look().await;
        }
        let sizes = disk.list().unwrap().into_iter().map(|(_, bytes)| bytes);
        assert!(sizes.sum::<u64>() <= MAX_BYTES + MAX_BYTES / 10);
    }
    assert_eq!(rig.count("store_snapshots_total{outcome=\"failed\"}"), 0);
    assert_eq!(rig.count("store_refused_total{reason=\"disk_full\"}"), 0);
    assert!(rig.written() > 5 && accepted > 100, "{} {accepted}", rig.written());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_could_not_be_written_is_tried_again_after_a_rest() {
    let disk = Simulated::default();
    let mut rig = Rig::new(&disk, |_| ());
    rig.send().await.unwrap();
    let used: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
    disk.limit(Some(usize::try_from(used).unwrap() + 100));
    rig.snapshots.take(&mut rig.stream).await;
    let counts =
        |rig: &Rig| (rig.written(), rig.count("store_snapshots_total{outcome=\"failed\"}"));
    assert_eq!(counts(&rig), (0, 1));
    assert_eq!(rig.count("store_snapshot_failing"), 1);
    disk.limit(None);
    rig.look().await;
    assert_eq!(counts(&rig), (0, 1), "it rests");
    rig.hand.pass(10);
    rig.look().await;
    assert_eq!(counts(&rig), (1, 1));
    assert_eq!(rig.count("store_snapshot_failing"), 0);
    rig.hand.pass(10);
    rig.look().await;
    assert_eq!(counts(&rig), (1, 1), "nobody needs another one");
}
