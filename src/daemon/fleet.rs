//! A daemon that shares its work with other instances: which parts it runs, and how they are wired.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use tokio::sync::watch;

use super::clients::Clients;
use super::security::ListenerSecurity;
use super::tasks::assemble::offer;
use super::tasks::sessions::tell;
use super::{
    Check, Daemon, Listeners, SessionQuery, StartError, Work, background, ended, exporter, opener,
    receiver, source, webhook,
};
use crate::access::Listener;
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::expect::Suite;
use crate::engine::pipeline::EngineOptions;
use crate::engine::sessions::NoSessionStore;
use crate::export::board::Board;
use crate::fleet::{FleetError, Gateway, InstanceParts, Role, WAITING, Workers};
use crate::health::Health;
use crate::ingest::kafka::{SourceMetrics, WithoutMetrics};
use crate::ingest::{grpc, http};

/// The options of the stages, with what the judge and the embedder need.
fn engine_options(config: &Config, expected: Arc<[Suite]>) -> EngineOptions {
    EngineOptions {
        judging: config.judge.rules(),
        embedding: config.embed.wanted(),
        ..config.engine_options(expected)
    }
}

/// Starts the parts for this instance's roles.
pub(super) async fn start(
    clock: Clock,
    health: Arc<Health>,
    config: &Config,
    expected: Arc<[Suite]>,
) -> Result<Daemon, StartError> {
    let security = ListenerSecurity::open(config, &health)?;
    let (bound, listeners) = Listeners::bind(config, &security).await?;
    let board = Arc::new(Board::new(config.api));
    background::begin(&board, config.api.history_step, clock.clone(), &health.vital);
    let (shutdown, stopping) = watch::channel(false);
    let open = opener(security, config, &health, &stopping);
    let query = SessionQuery::default();
    let (asking, questions) = sync_channel(WAITING);
    let mut exporter = exporter(config, &board, &query, &clock, &health)?;
    exporter.stopping = stopping.clone();
    exporter.about = config.about(bound.otlp_http.map(|address| address.to_string()));
    let Listeners { grpc, otlp, http: export } = listeners;
    let mut routes = exporter.router();

    let (webhook, telling) = webhook(config, &clock, &health)?.unzip();
    let telling_all = webhook.map(|webhook| webhook.run(ended(stopping.clone())));
    let tasks = telling_all.map(|run| health.vital.spawn("the webhook", run)).into_iter().collect();
    // The spending of earlier processes on the judge is not known here: the budget is this instance's, from its start on.
    let (clients, judge, embedder) = Clients::new(config, &clock, &health, Vec::new(), &board)?;
    let (working, halting) = watch::channel(false);
    let share = InstanceParts {
        kafka: &config.kafka,
        fleet: &config.fleet,
        engine: engine_options(config, expected),
        shards: config.engine.shards,
        clock: clock.clone(),
        health: health.clone(),
        board: board.clone(),
        ask: Arc::new(move |stage, now| {
            offer(stage, embedder.as_ref(), judge.as_ref(), now);
        }),
        runaways: Arc::new(move |stage, now| tell(stage, &NoSessionStore, now, telling.as_ref())),
        questions: Some(questions),
        stopping: halting,
    };
    let workers = share.start()?;
    let (mut checks, mut sources) = (vec![Arc::new(workers.check()) as Check], Vec::new());
    if config.fleet.has(Role::Gateway) || config.fleet.has(Role::Assemble) {
        let listens = config.fleet.has(Role::Gateway);
        let gateway = gateway(config, &workers)?;
        let status = gateway.status().clone();
        if listens {
            checks.push(Arc::new(move || status.ready()));
        }
        // Their answers go to the gateway, as requests do.
        sources.extend(clients.start(&gateway, &health.vital, &stopping));
        let receiver = receiver(config, gateway, &clock, &health);
        if listens
            && !(config.kafka.traces_topics.is_empty() && config.kafka.logs_topics.is_empty())
        {
            let kafka = source(config, &receiver, &health, &stopping)?;
            let (reading, check): (Vec<_>, Vec<_>) = kafka.into_iter().unzip();
            sources.extend(reading);
            checks.extend(check);
        }
        if listens {
            routes = http::reports(&receiver).merge(routes);
        }
        let (otlp_grpc, otlp_http) =
            (grpc::answers(receiver.clone(), bound.otlp_http), http::answers(receiver));
        sources.extend(grpc.map(|listener| open(Listener::OtlpGrpc, listener, otlp_grpc)));
        sources.extend(otlp.map(|listener| open(Listener::OtlpHttp, listener, otlp_http)));
    }
    query.open_shared(config.fleet.has(Role::Score).then_some(asking), checks);
    sources.push(open(Listener::Http, export, routes.into()));
    let (work, stop_step) = (Work::Shared(workers, working), watch::Sender::default());
    Ok(Daemon { bound, board, work, health, shutdown, stop_step, sources, tasks })
}

/// The gateway, which only shows whether it is ready if this instance listens: otherwise it exists for the answers of the judge and
/// embeddings.
fn gateway(config: &Config, workers: &Workers) -> Result<Gateway, FleetError> {
    let Config { kafka, fleet, .. } = config;
    let watch: Arc<dyn SourceMetrics> =
        if fleet.has(Role::Gateway) { workers.watch_gateway() } else { Arc::new(WithoutMetrics) };
    Ok(Gateway::new(kafka, &fleet.prefix, fleet.partitions, watch)?)
}
