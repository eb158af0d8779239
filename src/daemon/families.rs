//! The families of the daemon's own metrics, as its parts register them, for the document that lists them.

use std::sync::Arc;

use super::StartError;
use super::store_metrics::StoreMetrics;
use crate::clock::Clock;
use crate::engine::span::Timestamp;
use crate::export::{metrics_out, otlp};
use crate::health::Health;
use crate::judge::meter::Meter;
use crate::registry::OwnFamilies;
use crate::store::Budget;
use crate::{embed, telemetry, webhook};

/// All families of the daemon's own metrics. Every function that registers some is called here; a test scrapes daemons to find
/// missing ones.
///
/// # Errors
///
/// Fails if two families have the same name.
pub fn own_families() -> Result<Vec<OwnFamilies>, StartError> {
    let health = Health::new(Timestamp(0))?;
    let registry = health.registry();
    let mut all = Vec::new();
    let mut with = |with| all.push(OwnFamilies { with, families: registry.take_families() });
    health.clock(&Clock::system())?;
    health.queues(Vec::new)?;
    with("");
    StoreMetrics::new(registry, Clock::system(), Arc::new(Budget::new(0)))?;
    with("store.directory");
    #[cfg(feature = "kafka")]
    {
        super::kafka::Gauges::new(registry)?;
        with("kafka.brokers");
        crate::fleet::register_metrics(&health)?;
        with("fleet.roles");
    }
    Meter::new(registry)?;
    with("judge.format");
    embed::outcomes(registry)?;
    with("embed.url` or `embed.directory");
    otlp::outcomes(registry)?;
    with("scores_out.url");
    metrics_out::outcomes(registry)?;
    with("scores_out.metrics_interval");
    webhook::outcomes(registry)?;
    with("webhook.url");
    telemetry::outcomes(registry)?;
    with("telemetry.otlp_endpoint");
    Ok(all)
}
