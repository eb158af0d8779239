//! Clients of other services: the judge, the embedding model, a collector. Each exists only if it is configured, each has a bounded
//! queue that nothing waits for, and all of them stop as listeners do.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{StartError, stopped};
use crate::clock::Clock;
use crate::config::Config;
use crate::config::key;
use crate::embed::{self, EmbedError, Embedder};
use crate::engine::judging::Score;
use crate::engine::math::Quanta;
use crate::engine::options::EmptyScore;
use crate::export::board::Board;
use crate::export::metrics_out::{Metrics, MetricsOut};
use crate::export::otlp::ScoresOut;
use crate::health::Health;
use crate::ingest::Sink;
use crate::judge::{Handle, Judge, JudgeError, JudgeParts};
use crate::outbound::redact::Redactor;
use crate::vital::Vital;

/// The configured clients.
pub(super) struct Clients {
    judge: Option<Judge>,
    embedder: Option<Embedder>,
    scores_out: Option<ScoresOut>,
    metrics_out: Option<MetricsOut>,
}

impl Clients {
    /// Sets up the clients and the handles by which the stages reach them; `paid` is the judge's spending in earlier processes.
    pub(super) fn new(
        config: &Config,
        clock: &Clock,
        health: &Arc<Health>,
        paid: Vec<(u64, Quanta)>,
        board: &Arc<Board>,
    ) -> Result<(Self, Option<Handle>, Option<embed::Handle>), StartError> {
        let (sender, scores) = scores_out(config, health)?.unzip();
        let metrics_out = metrics_out(config, clock, health, board)?;
        let (judge, judging) = judge(config, clock, health, scores, paid)?.unzip();
        let (embedder, embedding) = embedder(config, clock, health)?.unzip();
        Ok((Self { judge, embedder, scores_out: sender, metrics_out }, judging, embedding))
    }

    /// Starts the clients; their answers go to `router`, as requests do.
    pub(super) fn start<S: Sink>(
        self,
        router: &S,
        vital: &Vital,
        stopping: &watch::Receiver<bool>,
    ) -> Vec<JoinHandle<()>> {
        let stop = || stopped(stopping.clone());
        let judge = self.judge.map(|it| vital.spawn("the judge", it.run(router.clone(), stop())));
        let embedder =
            self.embedder.map(|it| vital.spawn("embeddings", it.run(router.clone(), stop())));
        let scores_out = self.scores_out.map(|it| vital.spawn("scores out", it.run(stop())));
        let metrics_out = self.metrics_out.map(|it| vital.spawn("metrics out", it.run(stop())));
        judge.into_iter().chain(embedder).chain(scores_out).chain(metrics_out).collect()
    }
}

/// The judge and the stages' handle to it, if one is configured.
fn judge(
    config: &Config,
    clock: &Clock,
    health: &Health,
    scores_out: Option<mpsc::Sender<Score>>,
    paid: Vec<(u64, Quanta)>,
) -> Result<Option<(Judge, Handle)>, StartError> {
    let options = &config.judge;
    if !options.is_on() {
        return Ok(None);
    }
    let key = key::read("judge.api_key_file", &options.api_key_file, &options.api_key_env)?;
    let given = JudgeParts {
        key,
        cost: &config.cost,
        empty_is_one: config.session.empty_score == EmptyScore::One,
        clock: clock.clone(),
        registry: health.registry(),
        scores_out,
        paid,
        shares: config.tenants.shares(config.known_tenants()),
    };
    Ok(Some(Judge::new(options, given)?))
}

/// The embedder and the stages' handle to it, if one is configured.
fn embedder(
    config: &Config,
    clock: &Clock,
    health: &Health,
) -> Result<Option<(Embedder, embed::Handle)>, StartError> {
    let options = &config.embed;
    if options.wanted().is_none() {
        return Ok(None);
    }
    let key = key::read("embed.api_key_file", &options.api_key_file, &options.api_key_env)?;
    // Texts that must not be sent to a judge must not be sent anywhere.
    let judge = &config.judge;
    let redactor =
        Redactor::new(&judge.redact_keys, &judge.redact_patterns).map_err(JudgeError::from)?;
    let shares = config.tenants.shares(config.known_tenants());
    let (handle, inbox) =
        embed::queue(options.max_queue, shares, health.registry()).map_err(EmbedError::from)?;
    Ok(Some((Embedder::new(options, key, redactor, clock.clone(), inbox)?, handle)))
}

/// The sender of scores and the channel that feeds it, if an endpoint is configured.
fn scores_out(
    config: &Config,
    health: &Health,
) -> Result<Option<(ScoresOut, mpsc::Sender<Score>)>, StartError> {
    let options = &config.scores_out;
    if options.url.is_empty() {
        return Ok(None);
    }
    let (file, variable) = (&options.authorization_file, &options.authorization_env);
    let key = key::read("scores_out.authorization_file", file, variable)?;
    Ok(Some(ScoresOut::new(options, key.as_ref(), health.registry())?))
}

/// The sender of the content of `/metrics`, if an endpoint and an interval are configured.
fn metrics_out(
    config: &Config,
    clock: &Clock,
    health: &Health,
    board: &Arc<Board>,
) -> Result<Option<MetricsOut>, StartError> {
    let options = &config.scores_out;
    if options.url.is_empty() || options.metrics_interval.is_zero() {
        return Ok(None);
    }
    let (file, variable) = (&options.authorization_file, &options.authorization_env);
    let key = key::read("scores_out.authorization_file", file, variable)?;
    let (board, begun, detail, clock) =
        (Arc::clone(board), clock.wall(), config.metrics.detail, clock.clone());
    let own = health.registry().clone();
    let metrics: Metrics = Arc::new(move || (board.sorted(), own.gather(), clock.wall()));
    Ok(Some(MetricsOut::new(options, key.as_ref(), health.registry(), (metrics, detail), begun)?))
}
