//! Background tasks beside the stages, which run as long as the board exists.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::StartError;
use crate::blocking::blocking;
use crate::clock::Clock;
use crate::config::Config;
use crate::export::alerts::AlertSource;
use crate::export::board::Board;
use crate::export::http::Now;
use crate::export::kept_history::KeptHistory;
use crate::health::Health;
use crate::memory;
use crate::vital::Vital;

/// Time between two checks of the wall clock.
const LOOK: Duration = Duration::from_secs(1);

/// Time between two rows of an agent's kept history.
const ROW: Duration = Duration::from_secs(60);

/// Starts the background tasks; `step` is the time between two points of an agent's history.
pub(super) fn begin(board: &Arc<Board>, step: Duration, clock: Clock, vital: &Vital) {
    vital.spawn("the clock", watch(Arc::downgrade(board), clock.clone()));
    vital.spawn("the history", history(Arc::downgrade(board), step, clock));
    vital.spawn("memory", give_back(Arc::downgrade(board)));
}

/// Checks regularly for steps of the wall clock, as there may be no requests that would notice them, as long as the board exists.
async fn watch(board: Weak<Board>, clock: Clock) {
    while board.strong_count() > 0 {
        clock.watch();
        tokio::time::sleep(LOOK).await;
    }
}

/// Adds a point to every agent's history at every step, as long as the board exists.
async fn history(board: Weak<Board>, step: Duration, clock: Clock) {
    loop {
        tokio::time::sleep(step).await;
        let Some(board) = board.upgrade() else { return };
        board.sample(clock.wall());
    }
}

/// Keeps the history of agents below the store's directory, as long as the board exists.
///
/// # Errors
///
/// Fails if the history cannot be read or created.
pub(super) fn keep_history(
    config: &Config,
    board: &Arc<Board>,
    clock: &Clock,
    health: &Arc<Health>,
    stopping: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, StartError> {
    let path = Path::new(&config.store.directory).join("history");
    let shares = config.tenants.shares(config.known_tenants());
    let kept = KeptHistory::open(&path, config.api.history_agents, shares);
    board.keep(kept.map_err(|source| StartError::History { path, source })?);
    let rows = rows(Arc::downgrade(board), clock.clone(), Arc::clone(health), stopping);
    Ok(health.vital.spawn("the kept history", rows))
}

/// The Prometheus that is asked for the state of alerts, if one is configured.
///
/// # Errors
///
/// Fails if TLS cannot be set up.
pub(super) fn alert_source(config: &Config) -> Result<Option<AlertSource>, StartError> {
    let url = &config.links.prometheus_url;
    let source = (!url.is_empty()).then(|| AlertSource::new(url)).transpose();
    source.map_err(StartError::Prometheus)
}

/// A function that returns wall time.
pub(super) fn wall(clock: &Clock) -> Now {
    let clock = clock.clone();
    Arc::new(move || clock.wall())
}

/// Writes a row of every agent to the kept history each minute, and when the daemon stops.
async fn rows(
    board: Weak<Board>,
    clock: Clock,
    health: Arc<Health>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut stops = false;
    while !stops {
        stops = tokio::select! {
            () = tokio::time::sleep(ROW) => false,
            _ = stopping.wait_for(|stops| *stops) => true,
        };
        let Some(board) = board.upgrade() else { return };
        let now = clock.wall();
        match blocking(move || board.keep_rows(now)).await {
            Ok((missed, displaced)) => {
                missed.iter().for_each(|why| health.limit_reached(why.name()));
                (0..displaced).for_each(|_| health.forgot("history_agents"));
            }
            Err(error) => {
                tracing::warn!(%error, "no agent has a row of this minute in the stored history");
            }
        }
    }
}

/// Gives unused memory back to the kernel regularly, as long as the board exists.
async fn give_back(board: Weak<Board>) {
    while board.strong_count() > 0 {
        memory::give_back();
        tokio::time::sleep(memory::KEPT_FOR).await;
    }
}
