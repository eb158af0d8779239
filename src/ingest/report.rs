//! Reports over agentgauge's own API: protobuf over gRPC, JSON over HTTP.
//!
//! Each report is accepted or rejected on its own. A rejection says which field is wrong and what to do.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Refusal;
use super::builder::Builder;
use super::json::unmarked;
use super::tree::Json;
use crate::engine::agents::BASELINE;
use crate::engine::convention::{Caps, SentReport, trace_id};
use crate::engine::drops::{DEPLOYMENT, STREAMS, Stream};
use crate::engine::facts::{AgentKey, AgentParts};
use crate::engine::math::Quanta;
use crate::engine::span::{Report, RunTarget, Source, Target, Timestamp};

use v1::{ReportRequest, ReportResponse, report};

/// The messages of `proto/agentgauge/v1/report.proto`.
pub mod v1 {
    #![expect(missing_docs, reason = "generated from proto/, where the messages are documented")]
    include!(concat!(env!("OUT_DIR"), "/agentgauge.v1.rs"));
}

/// The most rejections that an answer lists; further ones are only counted.
pub(super) const MAX_LISTED: usize = 100;

/// A report in JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a report as an object")]
struct JsonReport {
    id: String,
    trace_id: Option<String>,
    response_id: Option<String>,
    session_id: Option<String>,
    scope: Option<String>,
    run: Option<JsonRun>,
    agent: Option<JsonAgent>,
    name: String,
    score: Option<Number>,
    label: Option<String>,
    time_unix_nano: Option<Nanos>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a run as an object")]
struct JsonRun {
    agent: JsonAgent,
    task_id: String,
    run_id: String,
    perturbation: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an agent as an object")]
struct JsonAgent {
    service_name: String,
    agent_name: String,
    agent_version: String,
    environment: String,
}

/// The agents whose present level is to be accepted as usual, and the stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an accepted level as an object")]
struct JsonAcceptance {
    service_name: String,
    agent_name: String,
    agent_version: String,
    environment: String,
    stream: Option<String>,
}

/// A deployment, and the agents that it deploys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a deployment as an object")]
struct JsonDeployment {
    service_name: String,
    agent_name: String,
    agent_version: String,
    environment: String,
    id: String,
    name: Option<String>,
    accept: bool,
    time_unix_nano: Option<Value>,
}

/// A score: a number, or a verdict as a boolean.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or a boolean")]
enum Number {
    Number(f64),
    JudgeVerdict(bool),
}

/// Nanoseconds: a number, or a string as in OTLP's JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected nanoseconds as a number or a string of digits")]
enum Nanos {
    Number(u64),
    Text(String),
}

/// Takes the reports of a protobuf request.
pub(super) fn protobuf(request: ReportRequest, builder: &mut Builder<'_>) {
    for (index, report) in request.reports.into_iter().enumerate() {
        let read = |caps: &Caps<'_>, tenant: Option<&Arc<str>>| accept(caps, tenant, report);
        builder.report(index, read);
    }
}

/// Takes the reports of a JSON request, `{"reports": [..]}`; `{}` has none.
pub(super) fn json(request: &Json<'_>, builder: &mut Builder<'_>) -> Result<(), Refusal> {
    let is_empty = request.as_object().is_some_and(<[_]>::is_empty);
    let reports = request.get("reports").and_then(Json::as_list);
    if reports.is_none() && !is_empty {
        let why = "it must be {\"reports\": [..]}, with a list".to_owned();
        return Err(Refusal::Malformed { what: "ReportRequest", why });
    }
    for (index, report) in reports.into_iter().flatten().enumerate() {
        let read = |caps: &Caps<'_>, tenant: Option<&Arc<str>>| {
            let report = JsonReport::deserialize(report).map_err(|error| error.to_string())?;
            accept(caps, tenant, report.try_into()?)
        };
        builder.report(index, read);
    }
    Ok(())
}

/// The answer to a request.
pub(super) fn response(accepted: u64, rejected: &[(usize, String)]) -> ReportResponse {
    let rejected = rejected
        .iter()
        .map(|(index, error)| v1::Rejected { index: *index as u64, error: error.clone() })
        .collect();
    ReportResponse { accepted, rejected }
}

/// The answer to a request in JSON.
pub(super) fn response_json(accepted: u64, rejected: &[(usize, String)]) -> String {
    let rejected: Vec<Value> =
        rejected.iter().map(|(index, error)| json!({ "index": index, "error": error })).collect();
    json!({ "accepted": accepted, "rejected": rejected }).to_string()
}

fn accept(
    caps: &Caps<'_>,
    tenant: Option<&Arc<str>>,
    mut report: v1::Report,
) -> Result<Report, String> {
    let target = target(caps, report.target.take(), report.scope.take(), tenant)?;
    if let Target::Agent(_) = target {
        let name = report.name.clone();
        let about = of_agents(caps, target, report);
        return match name.as_str() {
            BASELINE => acceptance(about),
            DEPLOYMENT => Ok(about),
            other => Err(format!(
                "`name` must be `{BASELINE}` or `{DEPLOYMENT}` with `agent`: `{other:.60}`"
            )),
        };
    }
    let sent = SentReport {
        target,
        name: &report.name,
        score: report.score,
        label: report.label.as_deref().filter(|label| !label.is_empty()),
        id: &report.id,
        time: Timestamp(report.time_unix_nano),
    };
    caps.reported(&sent).map_err(|why| explained(why, &report.name).clone())
}

/// A report about agents as a whole. Its score only means yes or no.
fn of_agents(caps: &Caps<'_>, target: Target, report: v1::Report) -> Report {
    let label = report.label.filter(|label| !label.is_empty());
    Report {
        target,
        name: Arc::from(report.name),
        score: Quanta(if report.score.unwrap_or(0.0) > 0.0 { Quanta::ONE } else { 0 }),
        label: label.map(|label| caps.shared(Arc::from(label))),
        success: None,
        explanation: None,
        source: Source::Reported,
        identifier: Arc::from(caps.id(&report.id)),
        judge: None,
        time: Timestamp(report.time_unix_nano),
        tenant: None,
    }
}

/// Checks a report that accepts the present level of agents as usual: its label must name a stream, if it has one.
fn acceptance(report: Report) -> Result<Report, String> {
    let label = report.label.as_deref();
    if let Some(label) = label.filter(|label| Stream::named(label).is_none()) {
        let known: Vec<&str> = STREAMS.iter().map(|stream| stream.name).collect();
        return Err(format!("there is no stream `{label:.60}`: {}", known.join(", ")));
    }
    Ok(report)
}

/// Turns the body of a request to accept a level, `{"service_name": .., "stream": ..}`, into a request of reports.
///
/// # Errors
///
/// Fails if the body is no such request.
pub fn acceptance_json(body: &[u8]) -> Result<Bytes, String> {
    let JsonAcceptance { service_name, agent_name, agent_version, environment, stream } =
        one(body)?;
    let agent = json!({
        "service_name": service_name, "agent_name": agent_name, "agent_version": agent_version,
        "environment": environment,
    });
    let report = json!({ "agent": agent, "name": BASELINE, "label": stream });
    Ok(json!({ "reports": [report] }).to_string().into())
}

/// Turns the body of a request about a deployment, `{"service_name": .., "agent_version": .., "accept": ..}`, into a request of reports.
///
/// # Errors
///
/// Fails if the body is no such request.
pub fn deployment_json(body: &[u8]) -> Result<Bytes, String> {
    let told: JsonDeployment = one(body)?;
    let JsonDeployment { service_name, agent_name, agent_version, environment, .. } = told;
    let agent = json!({
        "service_name": service_name, "agent_name": agent_name, "agent_version": agent_version,
        "environment": environment,
    });
    let report = json!({
        "agent": agent, "id": told.id, "name": DEPLOYMENT, "label": told.name, "score": told.accept,
        "time_unix_nano": told.time_unix_nano,
    });
    Ok(json!({ "reports": [report] }).to_string().into())
}

/// The most bytes of a body with one object of names.
const MAX_OBJECT_BYTES: usize = 64 << 10;

/// The one object of a body.
fn one<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if body.len() > MAX_OBJECT_BYTES {
        return Err(format!(
            "it has {} bytes; an object of {MAX_OBJECT_BYTES} at most is read",
            body.len()
        ));
    }
    let tree: Json<'_> =
        serde_json::from_slice(unmarked(body)).map_err(|error| error.to_string())?;
    T::deserialize(&tree).map_err(|error| error.to_string())
}

/// The target of a report; names and ids are cut as those of spans are, so that they stay the same.
fn target(
    caps: &Caps<'_>,
    target: Option<report::Target>,
    scope: Option<String>,
    tenant: Option<&Arc<str>>,
) -> Result<Target, String> {
    if scope.is_some() && !matches!(target, Some(report::Target::SessionId(_))) {
        return Err("`scope` is that of a session: it needs `session_id`".to_owned());
    }
    let tenant = tenant.cloned();
    let named = |id: String, field: &str| {
        if id.is_empty() { Err(format!("`{field}` is empty")) } else { Ok(Arc::from(caps.id(&id))) }
    };
    match target {
        Some(report::Target::TraceId(id)) => trace_id(&id).map(Target::Trace).ok_or_else(|| {
            format!("`trace_id` must be 32 hex digits and not all zero: `{id:.40}`")
        }),
        Some(report::Target::ResponseId(id)) => {
            Ok(Target::Response { tenant, id: named(id, "response_id")? })
        }
        Some(report::Target::SessionId(id)) => Ok(Target::Session {
            tenant,
            id: named(id, "session_id")?,
            scope: scope.map(|scope| Arc::from(caps.name(&scope))),
        }),
        Some(report::Target::Agent(agent)) => {
            Ok(Target::Agent(Box::new(whose(caps, agent, tenant.as_deref(), "agent")?)))
        }
        Some(report::Target::Run(run)) => {
            let agent = whose(caps, run.agent.unwrap_or_default(), tenant.as_deref(), "run.agent")?;
            let perturbation = Some(run.perturbation).filter(|text| !text.is_empty());
            Ok(Target::Run(Box::new(RunTarget {
                agent,
                task: named(run.task_id, "run.task_id")?,
                run: named(run.run_id, "run.run_id")?,
                perturbation: perturbation.map(|text| Arc::from(caps.name(&text))),
            })))
        }
        None => Err(
            "a target is missing: one of `trace_id`, `response_id`, `session_id`, `run`, `agent`"
                .to_owned(),
        ),
    }
}

/// The key of an agent that a report names. The tenant is the sender's, and never taken from a request.
fn whose(
    caps: &Caps<'_>,
    agent: v1::Agent,
    tenant: Option<&str>,
    field: &str,
) -> Result<AgentKey, String> {
    let cut = |name: String| Arc::<str>::from(caps.name(&name));
    let [service_name, agent_name, agent_version, environment] =
        [agent.service_name, agent.agent_name, agent.agent_version, agent.environment].map(cut);
    if service_name.is_empty() && agent_name.is_empty() {
        return Err(format!("`{field}` must name a service or an agent"));
    }
    let tenant = tenant.unwrap_or_default().into();
    Ok(AgentParts { tenant, service_name, agent_name, agent_version, environment }.into())
}

/// An explanation for people of what is wrong with a report.
fn explained(why: &str, name: &str) -> String {
    match why {
        "report_without_name" => "`name` is missing".to_owned(),
        "report_without_score" => format!(
            "`{name:.60}` has neither a `score` nor a `label` that is one (pass, fail, success, failure, true, false)"
        ),
        "report_out_of_range" => format!(
            "`score` of `{name:.60}` is not in [0,1]; if it has another range, set it in `convention.score_ranges`"
        ),
        other => other.to_owned(),
    }
}

impl TryFrom<JsonReport> for v1::Report {
    type Error = String;

    fn try_from(json: JsonReport) -> Result<Self, String> {
        let targets = [
            json.trace_id.map(report::Target::TraceId),
            json.response_id.map(report::Target::ResponseId),
            json.session_id.map(report::Target::SessionId),
            json.run.map(|run| report::Target::Run(run.into())),
            json.agent.map(|agent| report::Target::Agent(agent.into())),
        ];
        let mut targets = targets.into_iter().flatten();
        let target = targets.next();
        if targets.next().is_some() {
            return Err(
                "there must be only one of `trace_id`, `response_id`, `session_id`, `run`, `agent`"
                    .to_owned(),
            );
        }
        let time_unix_nano = match json.time_unix_nano {
            None => 0,
            Some(Nanos::Number(nanos)) => nanos,
            Some(Nanos::Text(text)) => text
                .parse()
                .map_err(|_| format!("`time_unix_nano` must be nanoseconds: `{text:.40}`"))?,
        };
        Ok(Self {
            id: json.id,
            scope: json.scope,
            target,
            name: json.name,
            score: json.score.map(|score| match score {
                Number::Number(score) => score,
                Number::JudgeVerdict(verdict) => f64::from(u8::from(verdict)),
            }),
            label: json.label,
            time_unix_nano,
        })
    }
}

impl From<JsonAgent> for v1::Agent {
    fn from(agent: JsonAgent) -> Self {
        let JsonAgent { service_name, agent_name, agent_version, environment } = agent;
        Self { service_name, agent_name, agent_version, environment }
    }
}

impl From<JsonRun> for v1::Run {
    fn from(run: JsonRun) -> Self {
        Self {
            agent: Some(run.agent.into()),
            task_id: run.task_id,
            run_id: run.run_id,
            perturbation: run.perturbation,
        }
    }
}
