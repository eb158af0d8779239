//! How a worker handles what it cannot read, keep or hand over.

use std::path::Path;
use std::thread;

use rdkafka::Offset;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use tokio::runtime::Handle;

use super::*;
use crate::engine::pipeline::EngineOptions;
use crate::export::board::Board;
use crate::fleet::agents::FleetStage;
use crate::fleet::metrics::FleetMetrics;
use crate::fleet::options::Role;
use crate::fleet::partition::TakenOver;
use crate::fleet::wire::{Envelope, Message, pack};
use crate::health::Health;
use crate::ingest::kafka::{SaslMechanism, WithoutMetrics};

fn topics() -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["spans", "traces", "agents"] {
        cluster.create_topic(&format!("agentgauge.{topic}"), 2, 1).unwrap();
    }
    cluster
}

fn options() -> FleetOptions {
    FleetOptions { partitions: 2, ..FleetOptions::default() }
}

/// A worker, and the handle that stops it.
fn worker(
    brokers: String,
    place: &Path,
    families: &FleetMetrics,
) -> (Worker<FleetStage>, watch::Sender<bool>) {
    let stage = FleetStage { options: EngineOptions::default(), board: Arc::new(Board::default()) };
    worker_of(stage, &options(), brokers, place, families)
}

fn worker_of<S: Stage>(
    stage: S,
    fleet: &FleetOptions,
    brokers: String,
    place: &Path,
    families: &FleetMetrics,
) -> (Worker<S>, watch::Sender<bool>) {
    let kafka = KafkaOptions { brokers: vec![brokers], ..KafkaOptions::default() };
    let clock = Clock::system();
    let (stop, stopping) = watch::channel(false);
    let setup = Setup {
        kafka: &kafka,
        fleet,
        checkpoints: Checkpoints::open(&place.to_string_lossy(), 2, Handle::current()).unwrap(),
        clock: clock.clone(),
        metrics: families.of(S::ROLE),
        status: Arc::new(Status::new(Arc::new(WithoutMetrics), &kafka.brokers)),
        lease: Lease::new(clock, fleet.session_timeout),
        questions: None,
        stopping,
    };
    (Worker::new(stage, setup).unwrap(), stop)
}

/// A partition with one applied record.
fn held(
    worker: &Worker<FleetStage>,
    partition: u32,
) -> OwnedPartition<<FleetStage as Stage>::State> {
    let taken = TakenOver { partition, generation: 1, checkpoint: None };
    OwnedPartition {
        next: 1,
        now: Timestamp(1),
        seen: (Timestamp(1), Timestamp(1)),
        ..OwnedPartition::caught_up(worker.stage.take_over(&taken).unwrap())
    }
}

/// How many checkpoints were written or failed.
fn checkpoints(health: &Health) -> f64 {
    let page = health.registry().gather();
    let all = page.iter().find(|family| family.name() == "agentgauge_fleet_checkpoints_total");
    all.unwrap().get_metric().iter().map(|one| one.get_counter().get_value()).sum()
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
        let owned = held(&worker, u32::try_from(partition).unwrap());
        worker.held.insert(partition, owned);
    }
    // As if its disk were gone.
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::write(&place, b"").unwrap();
    thread::spawn(move || worker.hand_over(&[0, 1])).join().unwrap();
    let why = families.unhindered().unwrap_err();
    assert!(why.contains("`fleet.checkpoints`"), "{why}");
    assert!((checkpoints(&health) - 1.0).abs() < 1e-9, "one failed, and no other was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_holds_up_no_record() {
    let cluster = topics();
    let folder = tempfile::tempdir().unwrap();
    let health = Health::new(Timestamp(1)).unwrap();
    let families = FleetMetrics::new(&health).unwrap();
    let (mut worker, _stop) = worker(cluster.bootstrap_servers(), folder.path(), &families);
    let owned = held(&worker, 1);
    worker.held.insert(1, owned);
    // A pipe where the file should be: it cannot be opened before it has a reader.
    let place = folder.path().join("agentgauge.agents").join("1");
    std::fs::create_dir_all(&place).unwrap();
    let pipe = place.join(format!("{:020}-{:020}.state.part", 1, 1));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let turns = thread::spawn(move || {
        worker.unsaved.push_back(1);
        (0..100).for_each(|_| worker.save_next());
        assert!(worker.writing.is_some());
        worker
    });
    let mut worker = turns.join().unwrap();
    assert!(checkpoints(&health) < 0.5);
    // It cannot be synced either, which is reported.
    drop(std::fs::File::open(&pipe).unwrap());
    let ends = thread::spawn(move || {
        while worker.writing.is_some() {
            worker.save_next();
            thread::park_timeout(Duration::from_millis(5));
        }
    });
    ends.join().unwrap();
    assert!(families.unhindered().unwrap_err().contains("`fleet.checkpoints`"));
    assert!((checkpoints(&health) - 1.0).abs() < 1e-9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_takes_no_further_partition_over() {
    let cluster = topics();
    let folder = tempfile::tempdir().unwrap();
    let health = Health::new(Timestamp(1)).unwrap();
    let families = FleetMetrics::new(&health).unwrap();
    let (mut worker, stop) = worker(cluster.bootstrap_servers(), folder.path(), &families);
    stop.send_replace(true);
    let taken = thread::spawn(move || (worker.take_over(&[0, 1]), worker.held.len()));
    let (partitions, held) = taken.join().unwrap();
    let offsets: Vec<_> =
        partitions.elements().iter().map(TopicPartitionListElem::offset).collect();
    assert_eq!((offsets, held), (vec![Offset::Invalid; 2], 0));
    assert!(!folder.path().join("agentgauge.agents").exists(), "and claims none");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_new_consumer_it_owns_nothing_and_says_why() {
    let cluster = topics();
    let folder = tempfile::tempdir().unwrap();
    let health = Health::new(Timestamp(1)).unwrap();
    let families = FleetMetrics::new(&health).unwrap();
    let (mut worker, stop) = worker(cluster.bootstrap_servers(), folder.path(), &families);
    // As if a secret were missing while it is replaced.
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

/// A stage that counts its records, and panics in the middle of those of a certain time.
struct Fragile;

#[derive(Default)]
struct Applied(usize);

impl Stage for Fragile {
    type State = Applied;

    const ROLE: Role = Role::Fleet;

    const HOP: Hop = Hop::Agents;

    const BEGIN: Begin = Begin::Lookback;

    const PACE: TimeSource = TimeSource::Clock;

    fn take_over(&self, taken: &TakenOver<'_>) -> Result<Applied, String> {
        let saved = taken.checkpoint.and_then(|held| held.sections.get("applied"));
        Ok(Applied(saved.map_or(0, Vec::len)))
    }
}

impl PartitionState for Applied {
    fn apply(
        &mut self,
        _: Message,
        _: i64,
        now: Timestamp,
        _: &mut Vec<Record>,
    ) -> Result<(), &'static str> {
        self.0 += 1;
        assert_ne!(now, PANICS_AT);
        Ok(())
    }

    fn due(&self) -> Option<Timestamp> {
        None
    }

    fn timers(&mut self, _: Timestamp, _: &mut Vec<Record>) {}

    fn publish(&mut self, _: Timestamp, _: &mut Vec<Record>) {}

    fn save(&self) -> Option<BTreeMap<String, Vec<u8>>> {
        Some([("applied".to_owned(), vec![0; self.0])].into())
    }

    fn give_up(&mut self) {}

    fn holds(&self) -> (&'static str, usize) {
        ("agents", self.0)
    }

    fn counts(&self) -> Vec<(String, &'static str, &'static str, u64)> {
        Vec::new()
    }
}

const PANICS_AT: Timestamp = Timestamp(13);

#[tokio::test(flavor = "multi_thread")]
async fn a_record_at_which_the_stage_panics_leaves_nothing_in_the_state() {
    let cluster = topics();
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    let producer: BaseProducer = config.create().unwrap();
    for time in [11, 12, 13, 14] {
        let time = Timestamp(time);
        let message = Message::Inputs(Vec::new());
        let payload = pack(&Envelope { message, shard: 0, generation: 0, time }).unwrap();
        let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to("agentgauge.agents");
        producer.send(record.partition(1).payload(&payload)).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(Duration::from_secs(60)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let health = Health::new(Timestamp(1)).unwrap();
    let families = FleetMetrics::new(&health).unwrap();
    // Further back than there is time.
    let lookback = Duration::from_secs(100 * 366 * 24 * 3600);
    let fleet = FleetOptions { lookback, ..options() };
    let brokers = cluster.bootstrap_servers();
    let (worker, stop) = worker_of(Fragile, &fleet, brokers, folder.path(), &families);
    let worker = thread::spawn(move || worker.run());
    let value = |name: &str, label: &str| {
        let page = health.registry().gather();
        let family = page.iter().find(|family| family.name() == name)?;
        let mut series = family.get_metric().iter();
        let one = series.find(|one| one.get_label().iter().any(|it| it.value() == label))?;
        Some(one.get_gauge().get_value().max(one.get_counter().get_value()))
    };
    let applied = || value("agentgauge_held", "agents");
    for _ in 0..600 {
        if applied() == Some(3.0) {
            break;
        }
        thread::park_timeout(Duration::from_millis(50));
    }
    assert_eq!(applied(), Some(3.0));
    assert_eq!(value("agentgauge_fleet_records_total", "internal"), Some(1.0));
    stop.send_replace(true);
    assert_eq!(worker.join().unwrap(), None);
}
