//! The daemon: wiring only. The one place that names every stage.

mod askers;
#[cfg(feature = "kafka")]
mod kafka;
mod query;
mod router;
mod tasks;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use query::SessionQuery;
pub use router::Router;

use self::askers::Askers;
use self::tasks::{Common, ToAssemble};
use crate::clock::Clock;
use crate::config::expect::{self, ExpectError, Expectations};
use crate::config::key::KeyError;
use crate::config::{Config, Listen};
use crate::embed::EmbedError;
use crate::engine::agents::{Agents, AgentsOptions};
use crate::engine::assemble::Assemble;
use crate::engine::expect::Suite;
use crate::engine::options::ConventionOptions;
use crate::engine::resolve::Resolve;
use crate::engine::route::Route;
use crate::engine::sessions::Sessions;
use crate::engine::update::Barrier;
use crate::export::board::Board;
use crate::export::http::Exporter;
use crate::export::otlp::ScoresOutError;
use crate::health::Health;
use crate::ingest::decode::Decoder;
use crate::ingest::server::serve;
use crate::ingest::{Observe, Receiver, Tally, grpc, http};
use crate::judge::JudgeError;

/// A running daemon.
pub struct Daemon {
    bound: Bound,
    board: Arc<Board>,
    router: Router,
    epoch: AtomicU64,
    flushed: watch::Receiver<u64>,
    shutdown: watch::Sender<bool>,
    /// Listeners, and what waits for the Kafka source to end.
    sources: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The addresses that a daemon listens on, as its line of JSON says.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bound {
    /// OTLP/gRPC.
    pub otlp_grpc: SocketAddr,
    /// OTLP/HTTP.
    pub otlp_http: SocketAddr,
    /// Metrics, health and API.
    pub http: SocketAddr,
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address} (`{key}`): {source}; is another process using it? port 0 takes a free one"
    )]
    Bind {
        /// The address.
        address: String,
        /// The option that sets it.
        key: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// What traces are expected to be cannot be read.
    #[error(transparent)]
    Expect(#[from] ExpectError),
    /// The judge cannot be set up.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// Texts cannot be embedded.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// Scores cannot be sent to others.
    #[error(transparent)]
    ScoresOut(#[from] ScoresOutError),
    /// The key of an endpoint cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The Kafka source cannot be set up.
    #[cfg(feature = "kafka")]
    #[error(transparent)]
    Kafka(#[from] crate::ingest::kafka::SourceError),
    /// The system has no thread for a source.
    #[cfg(feature = "kafka")]
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The daemon's own metrics cannot be set up.
    #[error("cannot set up the daemon's own metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Fails, and says why, while a part is not ready.
type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

impl Daemon {
    /// Binds all addresses, then starts all tasks.
    ///
    /// # Errors
    ///
    /// Fails if an address cannot be listened on or a file of expectations cannot be used.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let expected = expect::read(&config.expect.files)?;
        remark(&expected, config);
        let ([grpc_listener, http_listener, export_listener], bound) =
            bind_all(&config.listen).await?;

        let clock = Clock::system();
        let health = Health::new(clock.now())?;
        let board = Arc::new(Board::new(config.api));
        let (askers, common) = Askers::new(config, &clock, &health)?;
        let (router, tasks, flushed) = stages(config, &expected.suites.into(), &board, &common);

        let sampler =
            tasks::history(Arc::downgrade(&board), config.api.history_step, clock.clone());
        // Not one of the tasks: it ends when the board has gone.
        tokio::spawn(sampler);

        let (shutdown, stopping) = watch::channel(false);
        let convention =
            ConventionOptions { keep_results: config.judge.is_on(), ..config.convention.clone() };
        let receiver = Receiver::new(
            Decoder::new(config.ingest.clone(), convention),
            router.clone(),
            health.clone(),
            Arc::new(move || clock.now()),
            config.server.read_timeout,
        );
        #[cfg(feature = "kafka")]
        let kafka =
            kafka::start(&config.kafka, receiver.clone(), health.registry(), stopping.clone())?;
        #[cfg(not(feature = "kafka"))]
        let kafka: Option<(JoinHandle<()>, Check)> = None;
        let (mut sources, checks): (Vec<_>, Vec<_>) = kafka.into_iter().unzip();
        let query = SessionQuery { route: router.route, sessions: router.sessions.clone(), checks };
        let gathered = health.clone();
        let gather = move || gathered.registry().gather();
        let exporter = Exporter::new(board.clone(), Arc::new(gather), query, config.metrics.detail)
            .stopping(stopping.clone());
        let stop = || stopped(stopping.clone());
        sources.extend([
            tokio::spawn(serve(
                grpc_listener,
                grpc::router(receiver.clone()),
                config.server.clone(),
                full(&health),
                stop(),
            )),
            tokio::spawn(serve(
                http_listener,
                http::router(receiver.clone()),
                config.server.clone(),
                full(&health),
                stop(),
            )),
            tokio::spawn(serve(
                export_listener,
                http::reports(receiver).merge(exporter.router()),
                config.server.clone(),
                full(&health),
                stop(),
            )),
        ]);
        // They stop as listeners do: nothing new, and what is under way is applied before the last flush.
        sources.extend(askers.start(&router, &stopping));
        Ok(Self {
            bound,
            board,
            router,
            epoch: AtomicU64::new(0),
            flushed,
            shutdown,
            sources,
            tasks,
        })
    }

    /// The addresses that it listens on.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// The agents as they stand.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Waits until everything that was acknowledged before is on the board.
    ///
    /// Sends a barrier through every channel; returns early if the tasks have gone.
    pub async fn flush(&self) {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        for shard in &self.router.assemble {
            if shard.send(ToAssemble::Barrier(Barrier { epoch })).await.is_err() {
                return;
            }
        }
        // An error means that the agents task has gone: nothing will be flushed any more.
        let _ = self.flushed.clone().wait_for(|flushed| *flushed >= epoch).await;
    }

    /// Stops accepting, lets what is in flight finish, and waits until it is applied.
    pub async fn stop(mut self) {
        self.shutdown.send_replace(true);
        for source in std::mem::take(&mut self.sources) {
            // One that panicked has nothing left to finish.
            let _ = source.await;
        }
        self.flush().await;
        let tasks = std::mem::take(&mut self.tasks);
        // The last senders: the tasks end one after the other when their channels close.
        drop(self);
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// Starts the stages; returns the way in, their tasks and how far they have come.
fn stages(
    config: &Config,
    expected: &Arc<[Suite]>,
    board: &Arc<Board>,
    common: &Common,
) -> (Router, Vec<JoinHandle<()>>, watch::Receiver<u64>) {
    let shards = config.engine.shards.max(1);
    let route = Route::new(shards, seed());
    let capacity = config.engine.channel_capacity;
    let (flushed_sender, flushed) = watch::channel(0);
    let (agents_sender, agents_inbox) = mpsc::channel(capacity);
    let inputs = usize::try_from(shards).unwrap_or(1);
    let stage = Agents::new(AgentsOptions {
        agents: config.agents.clone(),
        tasks: config.tasks.clone(),
        ars: config.ars.clone(),
        drift: config.drift,
    });
    let outputs = (board.clone(), flushed_sender);
    let mut tasks =
        vec![tokio::spawn(tasks::agents(stage, agents_inbox, outputs, inputs, common.clone()))];

    let mut session_senders = Vec::new();
    for shard in 0..shards {
        let (sender, inbox) = mpsc::channel(capacity);
        let (session, loops) = (config.session.clone(), config.loops.clone());
        let stage = Sessions::new(shard, session, loops, config.agents.clone());
        let channels = (inbox, agents_sender.clone());
        let number = usize::try_from(shard).unwrap_or(0);
        tasks.push(tokio::spawn(tasks::sessions(number, stage, channels, inputs, common.clone())));
        session_senders.push(sender);
    }
    let mut assemble_senders = Vec::new();
    for shard in 0..inputs {
        let (sender, inbox) = mpsc::channel(capacity);
        let stage = Assemble::new(config.assemble.clone(), config.loops.clone(), &config.cost)
            .expecting(expected.clone())
            .judging(config.judge.rules())
            .embedding(config.embed.wanted());
        let channels = (inbox, session_senders.clone());
        tasks.push(tokio::spawn(tasks::assemble(shard, stage, channels, route, common.clone())));
        assemble_senders.push(sender);
    }
    let resolve = Resolve::new(config.assemble.max_waiting_reports, config.assemble.report_wait);
    let router = Router {
        route,
        assemble: assemble_senders,
        sessions: session_senders,
        agents: agents_sender,
        resolve: Arc::new(Mutex::new(resolve)),
    };
    (router, tasks, flushed)
}

/// Says what files of expectations ask for that is not done.
fn remark(expected: &Expectations, config: &Config) {
    let unjudged = expected.unjudged.iter().filter(|_| !config.judge.is_on());
    expected.remarks.iter().chain(unjudged).for_each(|remark| tracing::warn!("{remark}"));
}

/// Listens for OTLP/gRPC, OTLP/HTTP and everything else, in this order.
async fn bind_all(listen: &Listen) -> Result<([TcpListener; 3], Bound), StartError> {
    let (grpc_listener, otlp_grpc) = bind(&listen.otlp_grpc, "listen.otlp_grpc").await?;
    let (http_listener, otlp_http) = bind(&listen.otlp_http, "listen.otlp_http").await?;
    let (export_listener, http) = bind(&listen.http, "listen.http").await?;
    let bound = Bound { otlp_grpc, otlp_http, http };
    Ok(([grpc_listener, http_listener, export_listener], bound))
}

/// Listens at the address that this option sets; the port may be a free one.
async fn bind(address: &str, key: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { address: address.to_owned(), key, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

impl Observe for Health {
    fn received(&self, transport: &'static str, encoding: &'static str, tally: &Tally) {
        Self::received(self, transport, encoding, tally);
    }

    fn refused(&self, reason: &'static str) {
        Self::refused(self, reason);
    }
}

/// Counts that a listener has as many connections as it may.
fn full(health: &Arc<Health>) -> impl Fn() + Send + 'static {
    let health = Arc::clone(health);
    move || health.limit_reached("server_connections")
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the daemon has gone: that is a stop too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Drawn anew by every process, so that nobody outside can aim at one shard.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Duration::ZERO)
}
