//! The query API over gRPC, with reflection, on the port of the JSON API: the same answers, converted field by field.
//!
//! `proto/agentgauge/v1/query.proto` has the messages; a test compares their fields with those of the JSON objects.

use std::future::ready;
use std::pin::Pin;
use std::sync::LazyLock;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::map_request;
use futures_util::{Stream as Events, StreamExt, stream};
use prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage};
use serde::Serialize;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

use self::v1::query_service_server::{QueryService, QueryServiceServer};
use super::awaited::awaited;
use super::history::Range;
use super::http::Exporter;
use super::live::Stream;
use super::params::{AgentParams, OneAgent, SessionParams, TraceParams, Whose};
use super::query::Query;
use crate::access::Identity;
use crate::engine::explained::{AgentFilter, Sort};
use crate::fair;
use crate::refused::Refused;

/// The messages and the service, generated from `proto/agentgauge/v1/query.proto`.
#[expect(
    missing_docs,
    unused_qualifications,
    clippy::doc_markdown,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated from proto/, where the messages are documented"
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/query/agentgauge.v1.rs"));
}

/// The descriptors of the messages, for reflection and for converting JSON.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/query/descriptors.bin"));

static POOL: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).ok());

/// The service, which answers by the same functions as the JSON API.
struct Service<Q>(Exporter<Q>);

/// The routes.
pub(super) fn router<Q: Query>(exporter: &Exporter<Q>) -> Router<Exporter<Q>> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let service = QueryServiceServer::new(Service(exporter.clone()));
    let mut router = Router::new().route_service(&all_of(&service), service);
    // Building fails only if our own descriptors cannot be read.
    if let Ok(v1) = reflection().build_v1() {
        router = router.route_service(&all_of(&v1), v1);
    }
    if let Ok(v1alpha) = reflection().build_v1alpha() {
        router = router.route_service(&all_of(&v1alpha), v1alpha);
    }
    let patience = exporter.readers.patience;
    router.route_layer(map_request(move |request| ready(awaited(request, patience))))
}

fn all_of<S: NamedService>(_: &S) -> String {
    format!("/{}/{{*method}}", S::NAME)
}

#[tonic::async_trait]
impl<Q: Query> QueryService for Service<Q> {
    async fn list_agents(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::AgentsPage>, Status> {
        let identity = identity(&request);
        carried("AgentsPage", self.0.agents(&identity, agents(request.into_inner()))?)
    }

    async fn list_fleet(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::FleetPage>, Status> {
        let (identity, whose) = (identity(&request), whose(&request));
        let request = request.into_inner();
        let range = ranged(&request.range)?;
        let params = AgentParams { range, ..agents(request) };
        carried("FleetPage", self.0.fleet(&identity, &whose, params).await?)
    }

    async fn list_problems(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ProblemsPage>, Status> {
        let identity = identity(&request);
        let page = self.0.problems(&identity, agents(request.into_inner())).await?;
        carried("ProblemsPage", page)
    }

    async fn list_alerts(
        &self,
        request: Request<v1::ListAlertsRequest>,
    ) -> Result<Response<v1::AlertsPage>, Status> {
        let identity = identity(&request);
        carried("AlertsPage", self.0.alerts(&identity).await?)
    }

    async fn about(&self, _: Request<v1::AboutRequest>) -> Result<Response<v1::AboutView>, Status> {
        carried("AboutView", self.0.described())
    }

    async fn get_agent_history(
        &self,
        request: Request<v1::GetAgentHistoryRequest>,
    ) -> Result<Response<v1::HistoryView>, Status> {
        let (identity, whose) = (identity(&request), whose(&request));
        let v1::GetAgentHistoryRequest {
            service_name,
            agent_name,
            agent_version,
            environment,
            tenant,
            range,
        } = request.into_inner();
        let range = ranged(&range)?;
        let agent =
            OneAgent { service_name, agent_name, agent_version, environment, tenant, range };
        carried("HistoryView", self.0.history(&identity, &whose, agent).await?)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::SessionRowsPage>, Status> {
        let identity = identity(&request);
        let params = sessions(request.into_inner());
        carried("SessionRowsPage", self.0.session_rows(&identity, params).await?)
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> Result<Response<v1::SessionView>, Status> {
        let identity = identity(&request);
        let v1::GetSessionRequest { session_id, tenant, scope } = request.into_inner();
        carried(
            "SessionView",
            self.0.session(&identity, &session_id, Whose { scope, tenant }).await?,
        )
    }

    async fn explain_trace(
        &self,
        request: Request<v1::ExplainTraceRequest>,
    ) -> Result<Response<v1::TraceExplanation>, Status> {
        let identity = identity(&request);
        let v1::ExplainTraceRequest { trace_id, session_id: session, tenant, scope } =
            request.into_inner();
        let params = TraceParams { session, scope, tenant };
        carried("TraceExplanation", self.0.trace(&identity, &trace_id, params).await?)
    }

    type WatchAgentsStream = Pin<Box<dyn Events<Item = Result<v1::Changes, Status>> + Send>>;

    async fn watch_agents(
        &self,
        request: Request<v1::WatchAgentsRequest>,
    ) -> Result<Response<Self::WatchAgentsStream>, Status> {
        let identity = identity(&request);
        let v1::WatchAgentsRequest { service_name, agent_name, agent_version, environment, tenant } =
            request.into_inner();
        let whose = AgentFilter { service_name, agent_name, agent_version, environment, tenant };
        let changes = stream::unfold(Stream::new(&self.0, &identity, whose, None)?, Stream::next);
        let messages =
            changes.map(|(changes, _)| carried("Changes", changes).map(Response::into_inner));
        Ok(Response::new(messages.boxed()))
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let Refused { status, message, .. } = refused;
        match status {
            StatusCode::BAD_REQUEST => Self::invalid_argument(message),
            StatusCode::NOT_FOUND => Self::not_found(message),
            StatusCode::CONFLICT => Self::failed_precondition(message),
            StatusCode::SERVICE_UNAVAILABLE => Self::unavailable(message),
            _ => Self::internal(message),
        }
    }
}

/// Whether a request with these headers is one of gRPC.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/grpc"))
}

/// Who asks; a router without a guard serves anybody.
fn identity<T>(request: &Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_default()
}

/// Whose turn it is at what is answered in turns.
fn whose<T>(request: &Request<T>) -> fair::Whose {
    request.extensions().get::<fair::Whose>().cloned().unwrap_or_default()
}

fn agents(request: v1::ListAgentsRequest) -> AgentParams {
    AgentParams {
        service_name: request.service_name,
        agent_name: request.agent_name,
        agent_version: request.agent_version,
        environment: request.environment,
        tenant: request.tenant,
        limit: request.limit.map(size),
        offset: request.offset.map(size),
        ..AgentParams::default()
    }
}

fn sessions(request: v1::ListSessionsRequest) -> SessionParams {
    let sort = match request.sort() {
        v1::Sort::Unspecified => Sort::Start,
        v1::Sort::Recent => Sort::Recent,
        v1::Sort::Reliability => Sort::Reliability,
        v1::Sort::Loops => Sort::Loops,
        v1::Sort::Cost => Sort::Cost,
    };
    SessionParams {
        service_name: request.service_name,
        agent_name: request.agent_name,
        agent_version: request.agent_version,
        environment: request.environment,
        tenant: request.tenant,
        open: request.open,
        loops: request.loops,
        failing: request.failing,
        over_limit: request.over_limit,
        silent: request.silent,
        id: request.id,
        tool: request.tool,
        user: request.user,
        sort,
        limit: request.limit.map(size),
        offset: request.offset.map(size),
        ..SessionParams::default()
    }
}

/// The range that a text names; an hour if it is empty.
fn ranged(text: &str) -> Result<Range, Status> {
    if text.is_empty() {
        return Ok(Range::default());
    }
    let read = serde_json::from_value(text.into());
    read.map_err(|_| Status::invalid_argument("`range` is `1h`, `6h`, `24h` or `7d`"))
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Converts a value, by way of its JSON object, to the message of this name.
fn carried<T: Message + Default>(name: &str, value: impl Serialize) -> Result<Response<T>, Status> {
    let failed = || Status::internal("the answer could not be carried over");
    let pool = POOL.as_ref().ok_or_else(failed)?;
    let message = pool.get_message_by_name(&format!("agentgauge.v1.{name}")).ok_or_else(failed)?;
    let value = serde_json::to_value(value).map_err(|_| failed())?;
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message =
        DynamicMessage::deserialize_with_options(message, value, &options).map_err(|_| failed())?;
    message.transcode_to().map(Response::new).map_err(|_| failed())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::export::openapi;

    #[test]
    fn the_messages_have_the_fields_of_the_objects() {
        let pool = POOL.as_ref().unwrap();
        let document = openapi();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut compared = 0;
        for (name, schema) in schemas {
            let Some(message) = pool.get_message_by_name(&format!("agentgauge.v1.{name}")) else {
                // The one is told by a status, the other only with JSON.
                let json_only = ["Error", "SessionsPage", "ScoreValue", "ListDetail", "Sort"];
                assert!(json_only.contains(&name.as_str()), "{name} is not in query.proto");
                continue;
            };
            let fields: BTreeSet<String> =
                message.fields().map(|field| field.name().to_owned()).collect();
            let mut properties: BTreeSet<String> =
                schema["properties"].as_object().unwrap().keys().cloned().collect();
            if name == "ExpectationView" {
                let layers = ["correctness", "path", "retrieval", "cost"];
                properties.extend(layers.map(str::to_owned));
            }
            assert_eq!(fields, properties, "{name}");
            compared += 1;
        }
        assert!(compared > 20, "{compared}");
    }
}
