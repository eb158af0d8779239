//! The query API over gRPC, with reflection, on the port of the JSON API: the same requests and answers, converted field by field.
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
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

use self::v1::query_service_server::{QueryService, QueryServiceServer};
use super::body_timeout::awaited;
use super::http::Exporter;
use super::live::Stream;
use super::params::{SessionParams, SessionScope, TraceParams, bad_request};
use super::query::Query;
use crate::access::Identity;
use crate::engine::explained::Sort;
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

/// The service, which uses the same functions as the JSON API.
struct Service<Q>(Exporter<Q>);

/// The routes.
pub(super) fn router<Q: Query>(exporter: &Exporter<Q>) -> Router<Exporter<Q>> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let service = QueryServiceServer::new(Service(exporter.clone()));
    let mut router = Router::new().route_service(&all_of(&service), service);
    // Building fails only if the embedded descriptors cannot be read.
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
        let params = asked("ListAgentsRequest", request.get_ref())?;
        carried("AgentsPage", self.0.agents(&identity(&request), params)?)
    }

    async fn list_fleet(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::FleetPage>, Status> {
        let params = asked("ListAgentsRequest", request.get_ref())?;
        let (identity, requester) = (identity(&request), requester(&request));
        carried("FleetPage", self.0.fleet(&identity, &requester, params).await?)
    }

    async fn list_problems(
        &self,
        request: Request<v1::ListAgentsRequest>,
    ) -> Result<Response<v1::ProblemsPage>, Status> {
        let params = asked("ListAgentsRequest", request.get_ref())?;
        carried("ProblemsPage", self.0.problems(&identity(&request), params).await?)
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
        let (identity, requester) = (identity(&request), requester(&request));
        let agent = asked("GetAgentHistoryRequest", request.get_ref())?;
        carried("HistoryView", self.0.history(&identity, &requester, agent).await?)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::SessionRowsPage>, Status> {
        let identity = identity(&request);
        let mut request = request.into_inner();
        let sort = sort(request.sort());
        request.set_sort(v1::Sort::Unspecified);
        let params = SessionParams { sort, ..asked("ListSessionsRequest", &request)? };
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
            self.0.session(&identity, &session_id, SessionScope { scope, tenant }).await?,
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
        let filter = asked("WatchAgentsRequest", request.get_ref())?;
        let changes = stream::unfold(Stream::new(&self.0, &identity, filter, None)?, Stream::next);
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

/// Whether a request with these headers is gRPC.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/grpc"))
}

/// The sender of a request; a router without a guard serves everybody.
fn identity<T>(request: &Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_default()
}

/// The requester whose turn it is, for answers that are made in turns.
fn requester<T>(request: &Request<T>) -> fair::Requester {
    request.extensions().get::<fair::Requester>().cloned().unwrap_or_default()
}

fn sort(sort: v1::Sort) -> Sort {
    match sort {
        v1::Sort::Unspecified => Sort::Start,
        v1::Sort::Recent => Sort::Recent,
        v1::Sort::Reliability => Sort::Reliability,
        v1::Sort::Loops => Sort::Loops,
        v1::Sort::Cost => Sort::Cost,
    }
}

fn failed() -> Status {
    Status::internal("the message could not be carried over")
}

/// The descriptor of the message with this name.
fn descriptor(name: &str) -> Result<MessageDescriptor, Status> {
    let pool = POOL.as_ref().ok_or_else(failed)?;
    pool.get_message_by_name(&format!("agentgauge.v1.{name}")).ok_or_else(failed)
}

/// Converts a request, which is the message with this name, by way of its JSON object to the parameters of the JSON API.
fn asked<P: DeserializeOwned>(name: &str, request: &impl Message) -> Result<P, Status> {
    let mut message = DynamicMessage::new(descriptor(name)?);
    message.transcode_from(request).map_err(|_| failed())?;
    let options =
        SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
    let params = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|_| failed())?;
    P::deserialize(params).map_err(|why| bad_request(&why.to_string()).into())
}

/// Converts a value, by way of its JSON object, to the message with this name.
fn carried<T: Message + Default>(name: &str, value: impl Serialize) -> Result<Response<T>, Status> {
    let value = serde_json::to_value(value).map_err(|_| failed())?;
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(descriptor(name)?, value, &options)
        .map_err(|_| failed())?;
    message.transcode_to().map(Response::new).map_err(|_| failed())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost_reflect::{Kind, Value};

    use super::*;
    use crate::engine::explained::AgentFilter;
    use crate::export::history::Range;
    use crate::export::openapi;
    use crate::export::params::{AgentParams, OneAgent};

    #[test]
    fn a_request_asks_for_what_its_fields_say() {
        let request = v1::ListSessionsRequest {
            service_name: Some(String::new()),
            open: Some(false),
            failing: Some(true),
            tool: Some("search".to_owned()),
            limit: Some(7),
            ..v1::ListSessionsRequest::default()
        };
        let params: SessionParams = asked("ListSessionsRequest", &request).unwrap();
        assert_eq!((params.service_name.as_deref(), params.agent_name), (Some(""), None));
        assert_eq!((params.open, params.loops, params.failing), (Some(false), None, Some(true)));
        assert_eq!((params.tool.as_deref(), params.limit), (Some("search"), Some(7)));
        let range = |range: &str| {
            let request = v1::GetAgentHistoryRequest { range: range.to_owned(), ..<_>::default() };
            asked("GetAgentHistoryRequest", &request).map(|agent: OneAgent| agent.range)
        };
        assert_eq!(range("").unwrap(), Range::Hour);
        assert_eq!(range("7d").unwrap(), Range::Week);
        let refused = range("2d").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("`24h`"), "{refused}");
    }

    #[test]
    fn every_field_of_a_request_is_a_parameter() {
        fn takes<P: DeserializeOwned>(name: &str) {
            let descriptor = descriptor(name).unwrap();
            let mut message = DynamicMessage::new(descriptor.clone());
            for field in descriptor.fields() {
                let value = match (field.name(), field.kind()) {
                    ("range", _) => Value::String("7d".to_owned()),
                    // This field has other names here.
                    ("sort", _) => continue,
                    (_, Kind::String) => Value::String("x".to_owned()),
                    (_, Kind::Bool) => Value::Bool(true),
                    _ => Value::U64(1),
                };
                message.set_field(&field, value);
            }
            asked::<P>(name, &message).unwrap();
        }
        takes::<AgentParams>("ListAgentsRequest");
        takes::<OneAgent>("GetAgentHistoryRequest");
        takes::<SessionParams>("ListSessionsRequest");
        takes::<AgentFilter>("WatchAgentsRequest");
    }

    #[test]
    fn the_messages_have_the_fields_of_the_objects() {
        let pool = POOL.as_ref().unwrap();
        let document = openapi();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut compared = 0;
        for (name, schema) in schemas {
            // A message has an enumeration as its word.
            let Some(properties) = schema["properties"].as_object() else { continue };
            let Some(message) = pool.get_message_by_name(&format!("agentgauge.v1.{name}")) else {
                // gRPC has a status instead of the one; the other exists only in JSON.
                let json_only = ["Error", "SessionsPage"];
                assert!(json_only.contains(&name.as_str()), "{name} is not in query.proto");
                continue;
            };
            let fields: BTreeSet<String> =
                message.fields().map(|field| field.name().to_owned()).collect();
            let mut properties: BTreeSet<String> = properties.keys().cloned().collect();
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
