//! The daemon: wiring only. It is the one place that names every stage.

mod background;
mod check;
mod clients;
mod durable;
mod error;
mod families;
#[cfg(feature = "kafka")]
mod fleet;
#[cfg(feature = "kafka")]
mod kafka;
mod pace;
mod query;
mod router;
mod security;
mod snapshots;
mod store_metrics;
mod tasks;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use check::check;
pub use error::{Failed, StartError};
pub use families::own_families;
pub use query::SessionQuery;
pub use router::Router;

use self::clients::Clients;
use self::durable::{Durable, Recovered};
use self::router::LateRouter;
use self::security::ListenerSecurity;
use self::snapshots::{Snapshots, Stream};
use self::tasks::Common;
use self::tasks::agents::AgentsTask;
use self::tasks::assemble::AssembleTask;
use self::tasks::barriers::BarrierRoom;
use self::tasks::sessions::{SessionTask, tell_of_replayed};
use crate::access::{Answer, Listener};
use crate::blocking::blocking;
use crate::clock::Clock;
use crate::config::Config;
use crate::config::expect::Expectations;
use crate::config::key;
use crate::engine::assemble::Assembler;
use crate::engine::expect::Suite;
use crate::engine::facts::Barrier;
use crate::engine::math::Quanta;
use crate::engine::options::ConventionOptions;
use crate::engine::pipeline::Stages;
use crate::export::board::Board;
use crate::export::http::{Count, Exporter};
use crate::files;
use crate::fleet::Role;
use crate::health::Health;
use crate::ingest::decode::Decoder;
use crate::ingest::server::{Event, serve};
use crate::ingest::{Observe, Receiver, RequestCounts, Sink, grpc, http};
use crate::telemetry::Telemetry;
use crate::webhook::{self, SavedPace, Webhook};

/// A running daemon.
pub struct Daemon {
    bound: Bound,
    board: Arc<Board>,
    work: Work,
    health: Arc<Health>,
    shutdown: watch::Sender<bool>,
    stop_step: watch::Sender<&'static str>,
    /// The tasks that feed the stages: listeners, clients, and the one that waits for the Kafka source to end.
    sources: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

/// Where the stages run.
enum Work {
    /// All of them in this process.
    Local(LocalStages),
    /// Shared with other instances.
    #[cfg(feature = "kafka")]
    Shared(crate::fleet::Workers, watch::Sender<bool>),
}

/// The way to the stages of this process.
struct LocalStages {
    router: Router,
    epoch: Arc<AtomicU64>,
    flushed: watch::Receiver<u64>,
    snapshots: Option<SnapshotTask>,
}

/// The task that writes snapshots: what stops it, and whether it then lost what was acknowledged.
struct SnapshotTask {
    stop: watch::Sender<bool>,
    lost: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

/// The open listeners of a daemon.
struct Listeners {
    grpc: Option<TcpListener>,
    otlp: Option<TcpListener>,
    http: TcpListener,
}

/// The addresses that a daemon listens on, as in the line of JSON at its start.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bound {
    /// OTLP/gRPC; none without the role `gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_grpc: Option<SocketAddr>,
    /// OTLP/HTTP; none without the role `gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_http: Option<SocketAddr>,
    /// Metrics, health and API.
    pub http: SocketAddr,
}

/// The router to the stages, their tasks, and the last epoch whose updates are all on the board.
type Running = (Router, Vec<JoinHandle<()>>, watch::Receiver<u64>);

/// A readiness check of one part: fails with the reason while the part is not ready.
type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

impl Daemon {
    /// Binds all addresses, then starts all tasks.
    ///
    /// # Errors
    ///
    /// Fails if an address cannot be listened on, or if a certificate, a token or a file of expectations cannot be used.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_by(Clock::system(), config).await
    }

    /// Binds all addresses, then starts all tasks, with this clock.
    async fn start_by(clock: Clock, config: &Config) -> Result<Self, StartError> {
        let expected = check(config)?;
        expected.remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
        let health = Health::new(clock.wall())?;
        health.clock(&clock)?;
        let own = config.listen.telemetry();
        let telemetry = Telemetry::start(&config.telemetry, &own, health.registry())?;
        let mut daemon = Self::start_stages(clock, health, config, expected).await?;
        if let Some(telemetry) = telemetry {
            let stop = stopped(daemon.shutdown.subscribe());
            daemon.tasks.push(tokio::spawn(async {
                stop.await;
                telemetry.stop().await;
            }));
        }
        Ok(daemon)
    }

    async fn start_stages(
        clock: Clock,
        health: Arc<Health>,
        config: &Config,
        expected: Expectations,
    ) -> Result<Self, StartError> {
        #[cfg(feature = "kafka")]
        if config.fleet.enabled() {
            return fleet::start(clock, health, config, expected.suites.into()).await;
        }
        let security = ListenerSecurity::open(config, &health)?;
        let (bound, Listeners { grpc, otlp, http }) = Listeners::bind(config, &security).await?;
        let board = Arc::new(Board::new(config.api));
        // Upkeep is not among the tasks that are waited for: it ends when the board is dropped.
        background::begin(&board, config.api.history_step, clock.clone(), &health.vital);
        let (shutdown, stopping) = watch::channel(false);
        let late_router = LateRouter::default();
        let receiver = receiver(config, late_router.clone(), &clock, &health);
        let open = opener(security, config, &health, &stopping);

        // This listener serves during recovery, to say that the daemon is not ready. On an error `shutdown` is dropped, which ends
        // it.
        let query = SessionQuery::default();
        let mut exporter = exporter(config, &board, &query, &clock, &health)?;
        exporter.stopping = stopping.clone();
        exporter.about = config.about(bound.otlp_http.map(|address| address.to_string()));
        let routes = http::reports(&receiver).merge(exporter.router());
        let mut sources = vec![open(Listener::Http, http, routes.into())];

        let (mut stages, recovered) =
            recover(config, expected.suites.into(), &clock, &health).await?;
        let paid: Vec<(u64, Quanta)> =
            stages.assemble.iter().flat_map(Assembler::paid_to_judge).collect();
        let lost_records = recovered.as_ref().map_or(0, Recovered::lost_records);
        let keep = || background::keep_history(config, &board, &clock, &health, stopping.clone());
        let keeping = recovered.as_ref().map(|_| keep()).transpose()?;
        let pace = recovered.as_ref().map(Recovered::pace).unwrap_or_default();
        let (durable, snapshots) = recovered.map(|it| it.start(config)).transpose()?.unzip();
        let (saving, saved) = mpsc::channel(4 * stages.assemble.len() + 2);
        let saving = snapshots.as_ref().map(|_| saving);
        let (webhook, telling) = resumed_webhook(config, &clock, &health, &mut stages, pace)?;
        let pace = telling.as_ref().map(webhook::Handle::pace);
        let (clients, judge, embedder) = Clients::new(config, &clock, &health, paid, &board)?;
        let common = Common {
            clock: clock.clone(),
            health: health.clone(),
            webhook: telling,
            durable: durable.clone(),
            // Messages that wait at barriers may take as much memory as the requests that they came from.
            barrier_room: Arc::new(BarrierRoom::new(config.ingest.max_decoded_bytes)),
            saving,
            judge,
            embedder,
        };
        let (router, mut tasks, flushed) =
            spawn(stages, config.engine.channel_capacity, &board, &common, durable)?;
        tasks.extend(keeping);
        let run = |webhook: Webhook| webhook.run(ended(stopping.clone()));
        tasks.extend(webhook.map(|it| health.vital.spawn("the webhook", run(it))));
        let epoch = Arc::new(AtomicU64::new(0));
        let stored = snapshots.as_ref().map(Snapshots::check);
        let snapshots = snapshots.map(|snapshots| {
            let stream = Stream { router: router.clone(), epoch: epoch.clone(), saved, pace };
            SnapshotTask::start(snapshots, stream, &health)
        });
        late_router.open(router.clone());
        let kafka = source(config, &receiver, &health, &stopping)?;
        let (reading, checks): (Vec<_>, Vec<_>) = kafka.into_iter().unzip();
        sources.extend(reading);
        // Clients stop as listeners do: they begin nothing new, and work in progress is applied before the last flush.
        sources.extend(clients.start(&router, &health.vital, &stopping));
        query.open(&router, checks.into_iter().chain(stored).collect(), lost_records);
        let (otlp_grpc, otlp_http) =
            (grpc::answers(receiver.clone(), bound.otlp_http), http::answers(receiver));
        sources.extend(grpc.map(|listener| open(Listener::OtlpGrpc, listener, otlp_grpc)));
        sources.extend(otlp.map(|listener| open(Listener::OtlpHttp, listener, otlp_http)));
        let work = Work::Local(LocalStages { router, epoch, flushed, snapshots });
        let stop_step = watch::Sender::default();
        Ok(Self { bound, board, work, health, shutdown, stop_step, sources, tasks })
    }

    /// Returns when the daemon has to be restarted: a sync of the log has failed, so that nothing more can be made durable, or an
    /// essential task has panicked, or a worker of its cluster cannot continue.
    pub async fn failed(&self) -> Failed {
        tokio::select! {
            () = self.sync_failed() => Failed::Sync,
            name = self.health.vital.panicked() => Failed::Task(name),
        }
    }

    /// The current step of a stop, for the message if it takes too long.
    pub fn stop_step(&self) -> watch::Receiver<&'static str> {
        self.stop_step.subscribe()
    }

    async fn sync_failed(&self) {
        let durable = match &self.work {
            Work::Local(stages) => stages.router.durable.as_ref(),
            #[cfg(feature = "kafka")]
            Work::Shared(..) => None,
        };
        match durable {
            Some(durable) => durable.committer.stopped().await,
            None => std::future::pending().await,
        }
    }

    /// The addresses that it listens on.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The board with the latest values of all agents.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Waits until everything that was acknowledged before is on the board, if all stages are in this process.
    ///
    /// Sends a barrier through every channel; returns early if the tasks have ended.
    pub async fn flush(&self) {
        match &self.work {
            Work::Local(stages) => stages.flush().await,
            #[cfg(feature = "kafka")]
            Work::Shared(..) => {}
        }
    }

    /// Stops accepting, lets requests in flight finish, and waits until they are applied; returns what failed.
    pub async fn stop(mut self) -> Option<Failed> {
        self.shutdown.send_replace(true);
        self.stop_step.send_replace("requests and calls that are under way have not ended");
        for source in std::mem::take(&mut self.sources) {
            // A source that panicked has nothing left to finish.
            let _ = source.await;
        }
        let failed = match &mut self.work {
            Work::Local(stages) => stages.end(&self.stop_step).await,
            #[cfg(feature = "kafka")]
            Work::Shared(workers, stop) => {
                self.stop_step.send_replace(
                    "partitions are not handed over, so their next owners read back from their last checkpoints",
                );
                stop.send_replace(true);
                workers.end().await;
                None
            }
        };
        let tasks = std::mem::take(&mut self.tasks);
        self.stop_step.send_replace("not every task has ended");
        // This drops the last senders: the tasks end one after the other as their channels close.
        drop(self);
        for task in tasks {
            let _ = task.await;
        }
        failed
    }
}

impl SnapshotTask {
    fn start(snapshots: Snapshots, stream: Stream, health: &Health) -> Self {
        let (stop, stopping) = watch::channel(false);
        let (lose, lost) = watch::channel(false);
        let task = health.vital.spawn("snapshots", snapshots.run(stream, stopping, lose));
        Self { stop, lost, task }
    }
}

impl LocalStages {
    async fn flush(&self) {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        if self.router.barrier(Barrier { epoch, log_sequence: None }).await.is_err() {
            return;
        }
        // An error means that the agents task has ended: nothing will be flushed any more.
        let _ = self.flushed.clone().wait_for(|flushed| *flushed >= epoch).await;
    }

    async fn end(&mut self, step: &watch::Sender<&'static str>) -> Option<Failed> {
        step.send_replace("what was acknowledged is not applied; with a store it is in the log");
        self.flush().await;
        step.send_replace("the last snapshot is not written, so the next start replays the log");
        let SnapshotTask { stop, lost, task } = self.snapshots.take()?;
        stop.send_replace(true);
        // If the last snapshot fails, the next start replays more, provided that the log is there.
        let _ = task.await;
        let lost = *lost.borrow();
        lost.then_some(Failed::Lost)
    }
}

impl Listeners {
    /// Listens at the addresses that this instance serves, and warns of those that are not secured.
    async fn bind(
        config: &Config,
        security: &ListenerSecurity,
    ) -> Result<(Bound, Self), StartError> {
        let listen = &config.listen;
        let fleet = &config.fleet;
        let gateway = !fleet.enabled() || fleet.has(Role::Gateway);
        let (mut grpc, mut otlp, mut bound_grpc, mut bound_http) = (None, None, None, None);
        if gateway {
            let (listener, address) = bind(&listen.otlp_grpc, "listen.otlp_grpc").await?;
            (grpc, bound_grpc) = (Some(listener), Some(address));
            let (listener, address) = bind(&listen.otlp_http, "listen.otlp_http").await?;
            (otlp, bound_http) = (Some(listener), Some(address));
        }
        let (http, address) = bind(&listen.http, "listen.http").await?;
        let bound = Bound { otlp_grpc: bound_grpc, otlp_http: bound_http, http: address };
        security.warn(&bound);
        Ok((bound, Self { grpc, otlp, http }))
    }
}

/// Recovers the stages from the store, on a dedicated thread.
async fn recover(
    config: &Config,
    expected: Arc<[Suite]>,
    clock: &Clock,
    health: &Arc<Health>,
) -> Result<(Stages, Option<Recovered>), StartError> {
    let (config, clock, health) = (config.clone(), clock.clone(), health.clone());
    let recovery =
        blocking(move || durable::recover(&config, expected, &clock, health.registry())).await;
    recovery.unwrap_or_else(|why| Err(StartError::Recovery(why.to_string())))
}

/// Runs the stages as tasks; returns the router, the tasks and the last flushed epoch.
fn spawn(
    stages: Stages,
    capacity: usize,
    board: &Arc<Board>,
    common: &Common,
    durable: Option<Durable>,
) -> Result<Running, prometheus::Error> {
    let Stages {
        route,
        resolve,
        assemble,
        learned,
        sessions,
        session_stores,
        agents,
        board: recovered,
    } = stages;
    recovered.into_values().for_each(|update| board.apply(update));
    let (flushed_sender, flushed) = watch::channel(0);
    let (agents_sender, agents_inbox) = mpsc::channel(capacity);
    let inputs = assemble.len();
    let task = AgentsTask {
        stage: agents,
        board: board.clone(),
        flushed: flushed_sender,
        common: common.clone(),
    };
    let vital = &common.health.vital;
    let mut tasks = vec![vital.spawn("agents", task.run(agents_inbox, inputs))];

    let (mut session_senders, mut full) = (Vec::new(), Vec::new());
    for (shard, (stage, session_store)) in sessions.into_iter().zip(session_stores).enumerate() {
        let (sender, inbox) = mpsc::channel(capacity);
        let (full_sender, full_sessions) = watch::channel(tasks::FullSessions::new());
        let agents = agents_sender.clone();
        let task = SessionTask::new(shard, stage, session_store, agents, common.clone());
        tasks.push(vital.spawn("sessions", task.run(inbox, inputs, full_sender)));
        session_senders.push(sender);
        full.push(full_sessions);
    }
    let learned = Arc::new(RwLock::new(learned));
    let mut assemble_senders = Vec::new();
    for (shard, stage) in assemble.into_iter().enumerate() {
        let (sender, inbox) = mpsc::channel(capacity);
        let (learned, sessions) = (learned.clone(), session_senders.clone());
        let common = common.clone();
        let task = AssembleTask { shard, stage, learned, sessions, route, common };
        tasks.push(vital.spawn("assemble", task.run(inbox, full.clone())));
        assemble_senders.push(sender);
    }
    let router = Router {
        route,
        assemble: assemble_senders,
        sessions: session_senders,
        agents: agents_sender,
        resolve: Arc::new(Mutex::new(resolve)),
        on_the_way: Arc::default(),
        learned,
        durable,
    };
    common.health.queues(router.queues())?;
    Ok((router, tasks, flushed))
}

/// How spans are read: texts are kept if any of these features needs them.
fn convention(config: &Config) -> ConventionOptions {
    let read = config.judge.is_on() || !config.expect.files.is_empty();
    let embedded = config.embed.wanted().is_some();
    let keep_texts = read || embedded || config.assemble.keep_content;
    ConventionOptions { keep_texts, ..config.convention() }
}

/// Listens at the address that option `key` sets; port 0 takes a free one.
async fn bind(address: &str, key: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { address: address.to_owned(), key, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The task of the Kafka source and its readiness check, if one is configured.
#[cfg(feature = "kafka")]
fn source<S: Sink>(
    config: &Config,
    receiver: &Receiver<S>,
    health: &Health,
    stopping: &watch::Receiver<bool>,
) -> Result<Option<(JoinHandle<()>, Check)>, StartError> {
    kafka::start(&config.kafka, receiver.clone(), health, stopping.clone())
}

/// No source: this build is without Kafka.
#[cfg(not(feature = "kafka"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as where there is one")]
fn source<S: Sink>(
    _: &Config,
    _: &Receiver<S>,
    _: &Health,
    _: &watch::Receiver<bool>,
) -> Result<Option<(JoinHandle<()>, Check)>, StartError> {
    Ok(None)
}

/// The webhook and the stages' handle to it, if one is configured.
fn webhook(
    config: &Config,
    clock: &Clock,
    health: &Health,
) -> Result<Option<(Webhook, webhook::Handle)>, StartError> {
    let options = config.webhook.clone();
    if options.url.is_empty() {
        return Ok(None);
    }
    let secret = key::read("webhook.secret_file", &options.secret_file, &options.secret_env)?;
    let shares = config.tenants.shares(config.known_tenants());
    let (webhook, handle) =
        Webhook::new(options, secret, shares, clock.clone(), health.registry())?;
    Ok(Some((webhook, handle.linked(config.links.base()))))
}

impl Observe for Health {
    fn received(&self, transport: &'static str, encoding: &'static str, tally: &RequestCounts) {
        Self::received(self, transport, encoding, tally);
    }

    fn refused(&self, reason: &'static str) {
        Self::refused(self, reason);
    }

    fn waited(&self, outcome: &'static str) {
        Self::waited(self, outcome);
    }
}

/// The receiver that decodes requests for this sink.
fn receiver<S: Sink>(config: &Config, sink: S, clock: &Clock, health: &Arc<Health>) -> Receiver<S> {
    let decoder = Decoder::new(config.ingest.clone(), convention(config));
    let clock = clock.clone();
    let now = Arc::new(move || clock.moment());
    Receiver::new(decoder, sink, health.clone(), now, config.server.read_timeout)
}

/// The webhook and the handle to it, which continue with the pace of an earlier process.
fn resumed_webhook(
    config: &Config,
    clock: &Clock,
    health: &Health,
    stages: &mut Stages,
    pace: SavedPace,
) -> Result<(Option<Webhook>, Option<webhook::Handle>), StartError> {
    let mut webhook = webhook(config, clock, health)?;
    if let Some((webhook, handle)) = &mut webhook {
        webhook.restore(pace);
        tell_of_replayed(stages, webhook, handle, clock.now());
    }
    Ok(webhook.unzip())
}

/// Returns a function that answers requests at a listener until the daemon stops.
fn opener(
    security: ListenerSecurity,
    config: &Config,
    health: &Arc<Health>,
    stopping: &watch::Receiver<bool>,
) -> impl Fn(Listener, TcpListener, Answer) -> JoinHandle<()> + use<> {
    let options = config.server.clone().within(files::most_open());
    let (health, stopping) = (health.clone(), stopping.clone());
    move |name, listener, answers| {
        let answers = security.guard(name, listener.local_addr().ok(), answers, &health);
        let port = security.port(name, listener);
        let stop = stopped(stopping.clone());
        let serving = serve(port, answers, options.clone(), count_events(&health), stop);
        health.vital.spawn("a listener", serving)
    }
}

/// The endpoints over the board and the sessions.
fn exporter(
    config: &Config,
    board: &Arc<Board>,
    query: &SessionQuery,
    clock: &Clock,
    health: &Arc<Health>,
) -> Result<Exporter<SessionQuery>, StartError> {
    let gathered = health.clone();
    let gather = Arc::new(move || gathered.registry().gather());
    let (detail, wall) = (config.metrics.detail, background::wall(clock));
    let (cut, full) = (counted(health, Health::cut), counted(health, Health::limit_reached));
    let mut exporter = Exporter::new(board.clone(), gather, query.clone(), detail, wall).counting(
        config.server.read_timeout,
        cut,
        full,
    );
    exporter.alert_source = background::alert_source(config)?;
    exporter.max_name_bytes = config.convention.max_name_bytes;
    Ok(exporter)
}

/// A callback with which endpoints count events in the metrics.
fn counted(health: &Arc<Health>, count: fn(&Health, &str)) -> Count {
    let health = Arc::clone(health);
    Arc::new(move |what| count(&health, what))
}

/// A callback with which listeners count events of connections in the metrics.
fn count_events(health: &Arc<Health>) -> impl Fn(Event) + Send + Sync + 'static {
    let health = Arc::clone(health);
    move |event| match event {
        Event::Full => health.limit_reached("server_connections"),
        Event::Handshake => health.refused("tls_handshake"),
        Event::LongHead => health.refused("head_too_large"),
        Event::BadHead => health.refused("head_malformed"),
        Event::Closed(why) => health.closed(why),
    }
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the daemon was dropped, which is a stop too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Returns once the daemon has stopped and everything that it accepted is applied.
async fn ended(mut stopping: watch::Receiver<bool>) {
    // This always ends with an error, as the daemon, which has the sender, is dropped then.
    let _ = stopping.wait_for(|_| false).await;
}

/// A random seed of the route, so that no sender can target one shard.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Duration::ZERO)
}
