//! The state of alerts: from Prometheus if `links.prometheus_url` is set, else the alerts that the rules would raise.
//!
//! The daemon sends Prometheus one fixed query, so that a browser need not reach it, and keeps the answer for some seconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::http::Exporter;
use super::lists::requester;
use super::params::AgentParams;
use super::problems::Problem;
use super::query::Query;
use crate::access::Identity;
use crate::engine::span::Timestamp;
use crate::engine::view::AgentName;
use crate::outbound::{CallError, Client, ClientOptions, EndpointError};
use crate::refused::Refused;
use crate::runbook;

/// The alerts of this daemon and its agents.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub(super) struct AlertsPage {
    /// `prometheus`: from Prometheus; `rules`: what the rules would raise, as there is no Prometheus to ask.
    pub(super) source: &'static str,
    /// The alerts, firing ones first.
    pub(super) alerts: Vec<AlertView>,
    /// Why Prometheus could not be asked; null if it was, or need not be.
    pub(super) problem: Option<String>,
}

/// An alert.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub(super) struct AlertView {
    /// Its rule.
    pub(super) name: String,
    /// `firing` or `pending`, from Prometheus; `expected` if the rule would raise it.
    pub(super) state: String,
    /// `warning` or `critical`; null if the rule sets none.
    pub(super) severity: Option<String>,
    /// The agent that it is about; without names if it is about the daemon.
    pub(super) agent: AgentName,
    /// The stream of a drop, the kind of a loop, the limit of a run; null for others.
    pub(super) what: Option<String>,
    /// Since when; null if that is not known.
    pub(super) since_unix_nano: Option<String>,
    /// Its summary.
    pub(super) summary: Option<String>,
}

/// A Prometheus that evaluates the rules.
#[derive(Clone, Debug)]
pub struct AlertSource {
    url: String,
    client: Client,
    // One query at a time; others that waited use its answer.
    asking: Arc<Semaphore>,
    answer: Arc<Mutex<Option<(Timestamp, Answer)>>>,
}

type Answer = Result<Vec<AlertView>, CallError>;

/// How long an answer is used.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// The most alerts in an answer.
const MAX_ALERTS: usize = 1_000;

impl AlertSource {
    /// The Prometheus at an address that was checked with the configuration.
    ///
    /// # Errors
    ///
    /// Fails if TLS cannot be set up.
    pub fn new(url: &str) -> Result<Self, EndpointError> {
        let limits = ClientOptions {
            allow_http: true,
            max_reply_bytes: 8 << 20,
            timeout: Duration::from_secs(3),
        };
        let url = format!("{}/api/v1/alerts", url.trim_end_matches('/'));
        let client = Client::new("links.prometheus_url", limits)?;
        let asking = Arc::new(Semaphore::new(1));
        Ok(Self { url, client, asking, answer: Arc::default() })
    }

    async fn alerts(&self, now: Timestamp) -> Answer {
        // The semaphore is never closed.
        let _permit = self.asking.acquire().await.ok();
        let held = self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, answer)) = held
            && u128::from(now.0.abs_diff(at.0)) < KEPT_FOR.as_nanos()
        {
            return answer;
        }
        let reply = self.client.get(&self.url).await;
        let answer = reply.and_then(|reply| read(&reply).ok_or(CallError::BrokenOff));
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, answer.clone()));
        answer
    }
}

/// The alerts of agentgauge's rules in an answer of Prometheus; `None` if the answer cannot be read.
fn read(reply: &[u8]) -> Option<Vec<AlertView>> {
    let Reply { data } = serde_json::from_slice(reply).ok()?;
    let mut alerts: Vec<AlertView> = data.alerts.into_iter().filter_map(Raised::view).collect();
    let place = |alert: &AlertView| (alert.state != "firing", alert.name.clone());
    alerts.sort_by_key(place);
    Some(alerts)
}

#[derive(Deserialize)]
struct Reply {
    data: Alerts,
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Raised>,
}

/// An alert in an answer of Prometheus.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raised {
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    state: String,
    active_at: Option<String>,
}

impl Raised {
    /// The alert, if it comes from one of agentgauge's rules.
    fn view(mut self) -> Option<AlertView> {
        let name = self.labels.remove("alertname")?;
        runbook::section(&name)?;
        let mut label = |name: &str| self.labels.remove(name).filter(|value| !value.is_empty());
        let since = self.active_at.as_deref().and_then(unix_nano).map(|nanos| nanos.to_string());
        Some(AlertView {
            severity: label("severity"),
            agent: AgentName {
                service_name: label("service_name"),
                agent_name: label("gen_ai_agent_name"),
                agent_version: label("gen_ai_agent_version"),
                environment: label("deployment_environment_name"),
                tenant: label("tenant"),
            },
            what: label("stream").or_else(|| label("limit")).or_else(|| label("kind")),
            since_unix_nano: since,
            summary: self.annotations.remove("summary"),
            state: self.state,
            name,
        })
    }
}

/// A time as Prometheus writes it, `2026-01-02T03:04:05.5Z`, in nanoseconds since 1970.
fn unix_nano(text: &str) -> Option<u64> {
    let prost_types::Timestamp { seconds, nanos } =
        text.strip_suffix('Z').and_then(|_| text.parse().ok())?;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(nanos.try_into().ok()?)
}

impl<Q: Query> Exporter<Q> {
    /// The alerts that an identity may see.
    pub(super) async fn alerts(&self, identity: &Identity) -> Result<AlertsPage, Refused> {
        let asked = match &self.alert_source {
            Some(source) => Some(source.alerts((self.now)()).await),
            None => None,
        };
        let problem = match asked {
            Some(Ok(mut alerts)) => {
                alerts.retain(|alert| identity.sees(alert.agent.tenant.as_deref().unwrap_or("")));
                alerts.truncate(MAX_ALERTS);
                return Ok(AlertsPage { source: "prometheus", alerts, problem: None });
            }
            Some(Err(error)) => Some(format!("Prometheus could not be asked ({})", error.name())),
            None => None,
        };
        let params = AgentParams { limit: Some(MAX_ALERTS), ..AgentParams::default() };
        // Not before: Prometheus may be slow.
        let _turn = self.lists.turn(&requester(identity, 0)).await?;
        let problems = self.problems(identity, params).await?.problems;
        let alerts = problems.into_iter().map(expected).collect();
        Ok(AlertsPage { source: "rules", alerts, problem })
    }
}

/// The alert that the rules raise about a problem.
fn expected(problem: Problem) -> AlertView {
    AlertView {
        name: problem.alert.to_owned(),
        state: "expected".to_owned(),
        severity: Some(problem.severity.name().to_owned()),
        agent: problem.agent,
        what: problem.what,
        since_unix_nano: problem.since_unix_nano,
        summary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_of_other_rules_are_left_out() {
        let reply = r#"{"status": "success", "data": {"alerts": [
            {"labels": {"alertname": "AgentStalled", "severity": "warning", "service_name": "shop", "gen_ai_agent_name": "support"},
             "annotations": {"summary": "3 hang"}, "state": "pending", "activeAt": "2026-01-02T03:04:05.5Z", "value": "3e+00"},
            {"labels": {"alertname": "NodeDown"}, "annotations": {}, "state": "firing", "activeAt": "2026-01-02T03:04:05Z"},
            {"labels": {"alertname": "AgentReliabilityDrop", "stream": "verdict"}, "state": "firing"}]}}"#;
        let alerts = read(reply.as_bytes()).unwrap();
        let [drop, stalled] = &alerts[..] else { panic!("{alerts:?}") };
        assert_eq!(
            (drop.name.as_str(), drop.what.as_deref()),
            ("AgentReliabilityDrop", Some("verdict"))
        );
        assert_eq!(
            (stalled.state.as_str(), stalled.summary.as_deref()),
            ("pending", Some("3 hang"))
        );
        assert_eq!(stalled.since_unix_nano.as_deref(), Some("1767323045500000000"));
        assert_eq!(stalled.agent.agent_name.as_deref(), Some("support"));
        assert_eq!(read(b"{}"), None);
        assert_eq!(unix_nano("2000-02-29T00:00:00Z"), Some(951_782_400_000_000_000));
        assert_eq!(unix_nano("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(unix_nano("2026-13-01T00:00:00Z"), None);
        assert_eq!(unix_nano("2026-01-02T03:04:05+01:00"), None);
    }
}
