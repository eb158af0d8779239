//! Starts the workers of an instance, one for each role that reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::agents::FleetStage;
use super::assemble::{Ask, AssembleStage};
use super::checkpoint::{CheckpointError, Checkpoints};
use super::lease::Lease;
use super::metrics::FleetMetrics;
use super::options::{FleetOptions, Role};
use super::partition::Stage;
use super::question::Question;
use super::score::{Runaways, ScoreStage};
use super::wire::{Map, SHARDS};
use super::worker::{Setup, Worker};
use crate::clock::Clock;
use crate::engine::pipeline::EngineOptions;
use crate::export::board::Board;
use crate::health::Health;
use crate::ingest::kafka::{KafkaOptions, Problem, SourceError, SourceMetrics, Status};

/// Why an instance cannot join the cluster.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The client cannot be set up.
    #[error(transparent)]
    Client(#[from] SourceError),
    /// Checkpoints cannot be kept.
    #[error(transparent)]
    Checkpoints(#[from] CheckpointError),
    /// The daemon's own metrics cannot be set up.
    #[error("cannot set up the daemon's own metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The system cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// The parts of an instance.
pub struct InstanceParts<'s> {
    /// The way to the brokers.
    pub kafka: &'s KafkaOptions,
    /// The options of the cluster, with the roles of this instance.
    pub fleet: &'s FleetOptions,
    /// The options of the stages.
    pub engine: EngineOptions,
    /// The number of shards of a single process; the bounds in `engine` are for one of them.
    pub shards: u32,
    /// The clock.
    pub clock: Clock,
    /// The daemon's own metrics.
    pub health: Arc<Health>,
    /// The board that shows agents.
    pub board: Arc<Board>,
    /// The function that takes requests about traces.
    pub ask: Ask,
    /// The function that takes sessions that run away.
    pub runaways: Runaways,
    /// The questions about sessions.
    pub questions: Option<Receiver<Question>>,
    /// Whether the daemon is stopping.
    pub stopping: watch::Receiver<bool>,
}

/// The workers of an instance.
pub struct Workers {
    ends: Vec<oneshot::Receiver<()>>,
    statuses: Vec<Arc<Status>>,
    families: FleetMetrics,
}

impl InstanceParts<'_> {
    /// Starts a worker for each role that reads.
    ///
    /// # Errors
    ///
    /// Fails if a worker cannot be set up with these options; brokers that do not answer are no error.
    pub fn start(mut self) -> Result<Workers, FleetError> {
        let families = FleetMetrics::new(&self.health)?;
        let mut workers = Workers { ends: Vec::new(), statuses: Vec::new(), families };
        let reads = [Role::Assemble, Role::Score, Role::Fleet];
        if !reads.iter().any(|role| self.fleet.has(*role)) {
            return Ok(workers);
        }
        spread(&mut self.engine, self.shards, self.fleet.partitions);
        let (place, partitions) = (&self.fleet.checkpoints, self.fleet.partitions);
        let checkpoints = Checkpoints::open(place, partitions, Handle::current())?;
        let map = Map::new(self.fleet.partitions);
        if self.fleet.has(Role::Assemble) {
            let (options, ask) = (self.engine.clone(), self.ask.clone());
            let stage = AssembleStage { options, map, ask };
            self.work(stage, &checkpoints, &mut workers)?;
        }
        if self.fleet.has(Role::Score) {
            let (options, runaways) = (self.engine.clone(), self.runaways.clone());
            let tell_all_interval = self.fleet.retention / 4;
            let stage = ScoreStage { options, map, runaways, tell_all_interval };
            self.work(stage, &checkpoints, &mut workers)?;
        }
        if self.fleet.has(Role::Fleet) {
            let (options, board) = (self.engine.clone(), self.board.clone());
            let stage = FleetStage { options, board };
            let lease = self.work(stage, &checkpoints, &mut workers)?;
            self.board.show_while(move || lease.holds());
        }
        Ok(workers)
    }

    fn work<S: Stage + 'static>(
        &mut self,
        stage: S,
        checkpoints: &Checkpoints,
        workers: &mut Workers,
    ) -> Result<Lease, FleetError> {
        let metrics = workers.families.of(S::ROLE);
        let status = Arc::new(Status::new(metrics.clone(), &self.kafka.brokers));
        let lease = Lease::new(self.clock.clone(), self.fleet.session_timeout);
        let setup = Setup {
            kafka: self.kafka,
            fleet: self.fleet,
            checkpoints: checkpoints.clone(),
            clock: self.clock.clone(),
            metrics,
            status: status.clone(),
            lease: lease.clone(),
            questions: self.questions.take_if(|_| S::ROLE == Role::Score),
            stopping: self.stopping.clone(),
        };
        let worker = Worker::new(stage, setup)?;
        let (running, ended) = oneshot::channel::<()>();
        let (stopping, told, health) = (self.stopping.clone(), status.clone(), self.health.clone());
        let name = thread::Builder::new().name(S::ROLE.name().to_owned());
        name.spawn(move || {
            let _running = running;
            let ended = catch_unwind(AssertUnwindSafe(|| worker.run()));
            let cause = ended.unwrap_or_else(|_| Some("a worker has ended; restart".to_owned()));
            // An error means that the daemon has ended.
            let stops = *stopping.borrow() || stopping.has_changed().is_err();
            if let Some(why) = cause.filter(|_| !stops) {
                told.problem(Problem::Other { why });
                // Its partitions would wait for the next start, while requests are acknowledged.
                health.vital.give_up("a worker of the fleet");
            }
        })
        .map_err(FleetError::Thread)?;
        workers.ends.push(ended);
        workers.statuses.push(status);
        Ok(lease)
    }
}

/// Converts the bounds, which are for one of `shards` shards of a single process, to those for a logical shard, or for a partition
/// if one trace or session may take more than a shard's share; and gives each partition its part of the false pages.
pub(super) fn spread(engine: &mut EngineOptions, shards: u32, partitions: u32) {
    let count = |shards: u32| usize::try_from(shards).unwrap_or(1).max(1);
    let (alone, all, parts) = (count(shards), count(SHARDS), count(partitions));
    let share = |bound: usize, of: usize| bound.saturating_mul(alone).div_ceil(of).max(1);
    let EngineOptions { assemble, session, agents, judging, drops, .. } = engine;
    let of_judge = judging.as_mut().map(|judging| &mut judging.max_open_bytes);
    // `session.max_waiting_reports` does not change: it bounds the outcomes of runs too, which every shard gets.
    let bounds = [
        &mut assemble.max_open_traces,
        &mut assemble.max_sealed_traces,
        &mut assemble.max_turn_sessions,
        &mut session.max_sessions,
        &mut session.max_departed_traces,
        &mut session.max_outstanding_outcomes,
    ];
    bounds.into_iter().chain(of_judge).for_each(|bound| *bound = share(*bound, all));
    let waiting = share(assemble.max_waiting_reports, all);
    assemble.max_waiting_reports = waiting.max(assemble.max_reports_per_trace);
    for (bound, of_one) in [
        (&mut assemble.max_bytes, assemble.max_trace_bytes),
        (&mut assemble.max_turn_spans, assemble.max_spans_per_trace),
        (&mut session.max_bytes, session.max_session_bytes),
    ] {
        *bound = share(*bound, parts).max(of_one);
    }
    // Agents are held by partition, and each partition watches its streams by itself.
    agents.max_run_bytes = agents.max_run_bytes.div_ceil(parts);
    drops.false_pages_per_quarter /= f64::from(partitions.max(1));
}

impl Workers {
    /// Waits until all workers have ended.
    pub async fn end(&mut self) {
        for end in self.ends.drain(..) {
            // This fails when the worker ends and drops the other half.
            let _ = end.await;
        }
    }

    /// The watch of this instance's gateway.
    pub fn watch_gateway(&self) -> Arc<dyn SourceMetrics> {
        self.families.gateway()
    }

    /// A check that fails until all workers have their partitions and have caught up.
    pub fn check(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let (statuses, families) = (self.statuses.clone(), self.families.clone());
        move || {
            // Checked first: a worker that cannot begin with a partition has, for that reason, not joined its group either.
            families.unhindered()?;
            statuses.iter().try_for_each(|status| status.ready())?;
            families.ready()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trace_and_one_session_may_have_what_they_have_in_one_process() {
        let alone = EngineOptions::default();
        for partitions in [1, 3, 16, 256] {
            let mut engine = alone.clone();
            spread(&mut engine, 4, partitions);
            let EngineOptions { assemble, session, .. } = engine;
            let (trace, spans) =
                (alone.assemble.max_trace_bytes, alone.assemble.max_spans_per_trace);
            assert_eq!(assemble.max_trace_bytes, trace);
            assert!(assemble.max_bytes >= trace && assemble.max_turn_spans >= spans);
            assert_eq!(session.max_session_bytes, alone.session.max_session_bytes);
            assert!(session.max_bytes >= session.max_session_bytes);
            assert!(assemble.max_waiting_reports >= assemble.max_reports_per_trace);
            assert_eq!(session.max_waiting_reports, alone.session.max_waiting_reports);
            // All partitions together have as much as one process, apart from the needs of one trace and one session.
            let all = |bound: usize, of_one: usize| {
                let partitions = usize::try_from(partitions).unwrap();
                (4 * bound).max(of_one * partitions) + partitions
            };
            let partitions = usize::try_from(partitions).unwrap();
            assert!(assemble.max_bytes * partitions <= all(alone.assemble.max_bytes, trace));
            let of_one = alone.session.max_session_bytes;
            assert!(session.max_bytes * partitions <= all(alone.session.max_bytes, of_one));
        }
    }
}
