//! What a worker does with what it cannot read, keep or hand over.

use std::path::Path;
use std::thread;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use tokio::runtime::Handle;

use super::*;
use crate::engine::pipeline::EngineOptions;
use crate::engine::time::WallShift;
use crate::export::board::Board;
use crate::fleet::agents::FleetStage;
use crate::fleet::metrics::FleetMetrics;
use crate::fleet::partition::TakenOver;
use crate::health::Health;
use crate::ingest::kafka::{SaslMechanism, Unwatched};

fn topics() -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["spans", "traces", "agents"] {
        cluster.create_topic(&format!("agentgauge.{topic}"), 2, 1).unwrap();
    }
    cluster
}

/// A worker, and what stops it.
fn worker(
    brokers: String,
    place: &Path,
    families: &FleetMetrics,
) -> (Worker<FleetStage>, watch::Sender<bool>) {
    let kafka = KafkaOptions { brokers: vec![brokers], ..KafkaOptions::default() };
    let fleet = FleetOptions { partitions: 2, ..FleetOptions::default() };
    let clock = Clock::system();
    let (stop, stopping) = watch::channel(false);
    let setup = Setup {
        kafka: &kafka,
        fleet: &fleet,
        checkpoints: Checkpoints::open(&place.to_string_lossy(), 2, Handle::current()).unwrap(),
        clock: clock.clone(),
        metrics: families.of(FleetStage::ROLE),
        status: Arc::new(Status::new(Arc::new(Unwatched), &kafka.brokers)),
        lease: Lease::new(clock, fleet.session_timeout),
        questions: None,
        stopping,
    };
    let stage = FleetStage { options: EngineOptions::default(), board: Arc::new(Board::default()) };
    (Worker::new(stage, setup).unwrap(), stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_of_checkpoints_ends_where_the_store_fails_and_says_so() {
    let cluster = topics();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("checkpoints");
    let health = Health::new(Timestamp(1)).unwrap();
    let families = FleetMetrics::new(&health).unwrap();
    let (mut worker, _stop) = worker(cluster.bootstrap_servers(), &place, &families);
    for partition in [0, 1] {
        let number = u32::try_from(partition).unwrap();
        let taken = TakenOver { partition: number, generation: 1, checkpoint: None };
        let held = OwnedPartition {
            part: worker.stage.take_over(&taken).unwrap(),
            generation: 1,
            next: 1,
            target: 0,
            live: true,
            listened: None,
            at_end: true,
            whole: true,
            now: Timestamp(1),
            seen: (Timestamp(1), Timestamp(1)),
            shift: WallShift::default(),
            ticked: Timestamp(0),
            senders: BTreeMap::new(),
            saved: None,
        };
        worker.held.insert(partition, held);
    }
    // As if its disk had gone.
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::write(&place, b"").unwrap();
    thread::spawn(move || worker.checkpoint(&[0, 1])).join().unwrap();
    let why = families.unhindered().unwrap_err();
    assert!(why.contains("`fleet.checkpoints`"), "{why}");
    let page = health.registry().gather();
    let all = page.iter().find(|family| family.name() == "agentgauge_fleet_checkpoints_total");
    let counts = all.unwrap().get_metric().iter().map(|one| one.get_counter().get_value());
    assert!((counts.sum::<f64>() - 1.0).abs() < 1e-9, "one failed, and no other was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_new_consumer_it_owns_nothing_and_says_why() {
    let cluster = topics();
    let folder = tempfile::tempdir().unwrap();
    let health = Health::new(Timestamp(1)).unwrap();
    let families = FleetMetrics::new(&health).unwrap();
    let (mut worker, stop) = worker(cluster.bootstrap_servers(), folder.path(), &families);
    // As if a secret were away while it is replaced.
    worker.kafka.sasl_mechanism = SaslMechanism::Plain;
    worker.kafka.sasl_password_file = "/nowhere/password".to_owned();
    worker.broken = Some("a test".to_owned());
    let worker = thread::spawn(move || worker.run());
    let said = || families.unhindered().err().unwrap_or_default();
    for _ in 0..600 {
        if said().contains("/nowhere/password (`kafka.sasl_password_file`)") {
            break;
        }
        thread::park_timeout(Duration::from_millis(50));
    }
    assert!(said().contains("/nowhere/password (`kafka.sasl_password_file`)"), "{}", said());
    let page = health.registry().gather();
    let owned = page.iter().find(|family| family.name() == "agentgauge_fleet_partitions_owned");
    let owned = owned.map(|family| family.get_metric()[0].get_gauge().get_value());
    assert_eq!(owned, Some(0.0));
    stop.send_replace(true);
    assert_eq!(worker.join().unwrap(), None);
}
