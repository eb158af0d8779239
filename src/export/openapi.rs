//! The description of the query API, in OpenAPI 3.1, derived from the types of its answers.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::about::AboutView;
use super::alerts::AlertsPage;
use super::api::{AgentsPage, FleetPage, SessionRowsPage, SessionsPage};
use super::history::HistoryView;
use super::live::Changes;
use super::params::{AgentParams, OneAgent, OneSession, SessionParams, SessionScope, TraceParams};
use super::problems::ProblemsPage;
use crate::engine::drops::STREAMS;
use crate::engine::explained::{AgentFilter, TraceExplanation};
use crate::engine::view::SessionView;

/// One operation: its path, its parameters and its answer.
struct Operation {
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    params: fn(&mut SchemaGenerator) -> Vec<Value>,
    answer: fn(&mut SchemaGenerator) -> Value,
    content_type: &'static str,
    missing: Option<&'static str>,
}

const JSON: &str = "application/json";

/// What most operations have in common.
const READ: Operation = Operation {
    path: "",
    id: "",
    summary: "",
    params: |_| Vec::new(),
    answer: |_| Value::Null,
    content_type: JSON,
    missing: None,
};

/// All operations that only read; those that accept data are described by hand.
#[rustfmt::skip] // A row is one operation.
const OPERATIONS: &[Operation] = &[
    Operation { path: "/api/v1/agents", id: "listAgents",
        summary: "Agents, with every score, window, version and task.",
        params: query::<AgentParams>,
        answer: schema::<AgentsPage>, ..READ },
    Operation { path: "/api/v1/fleet", id: "listFleet",
        summary: "Agents, one row each, with a sparkline.",
        params: query::<AgentParams>,
        answer: schema::<FleetPage>, ..READ },
    Operation { path: "/api/v1/problems", id: "listProblems",
        summary: "Current problems, the worst first: drops, ongoing loops, traces that hang.",
        params: query::<AgentParams>,
        answer: schema::<ProblemsPage>, ..READ },
    Operation { path: "/api/v1/alerts", id: "listAlerts",
        summary: "The alerts of this daemon and its agents: those of Prometheus, or those that the rules would raise.",
        answer: schema::<AlertsPage>, ..READ },
    Operation { path: "/api/v1/about", id: "about",
        summary: "Facts about the daemon that the page needs.",
        answer: schema::<AboutView>, ..READ },
    Operation { path: "/api/v1/agents/history", id: "getAgentHistory",
        summary: "The history of one agent, as far as the daemon has it.",
        params: query::<OneAgent>,
        answer: schema::<HistoryView>, missing: Some("agent_not_found"), ..READ },
    Operation { path: "/api/v1/sessions", id: "listSessions",
        summary: "Sessions by start, worst score, loops or cost.",
        params: query::<SessionParams>,
        answer: sessions, ..READ },
    Operation { path: "/api/v1/sessions/{id}", id: "getSession",
        summary: "One session, with its traces.",
        params: |generator| below("id", "The session id.", query::<SessionScope>(generator)),
        answer: schema::<SessionView>, missing: Some("session_not_found"), ..READ },
    Operation { path: "/api/v1/session", id: "findSession",
        summary: "One session, as `/api/v1/sessions/{id}` has it, for any id: clients resolve `.` and `..` in a path.",
        params: query::<OneSession>,
        answer: schema::<SessionView>, missing: Some("session_not_found"), ..READ },
    Operation { path: "/api/v1/traces/{id}", id: "explainTrace",
        summary: "Why a trace has its score: signals, their evidence, loops, and the scores without them.",
        params: |generator| below("id", "The trace id: 32 hex digits.", query::<TraceParams>(generator)),
        answer: schema::<TraceExplanation>, missing: Some("trace_not_found"), ..READ },
    Operation { path: "/api/v1/events", id: "watchAgents",
        summary: "Changes as they happen: server-sent events `agents`, whose data is a Changes.",
        params: query::<AgentFilter>,
        answer: schema::<Changes>, content_type: "text/event-stream", ..READ },
];

/// The OpenAPI document.
pub fn openapi() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        paths.insert(
            operation.path.to_owned(),
            json!({ "get": described(operation, &mut generator) }),
        );
    }
    paths.insert("/api/v1/reports".to_owned(), json!({ "post": reports() }));
    paths.insert("/api/v1/agents/baseline".to_owned(), json!({ "post": acceptance() }));
    paths.insert("/api/v1/deployments".to_owned(), json!({ "post": deployment() }));
    let mut schemas: Map<String, Value> = generator.take_definitions(true);
    schemas.insert("Error".to_owned(), error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "agentgauge",
            "version": "v1",
            "description": "What agents do, as numbers. Fields may be added; those that are here keep their names and meaning. Absent is null.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn described(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    let answer = (operation.answer)(generator);
    responses.insert(
        "200".to_owned(),
        json!({
            "description": "The answer.",
            "content": { (operation.content_type): { "schema": answer } },
        }),
    );
    responses.insert("400".to_owned(), failure("`bad_request`: a parameter cannot be read."));
    if let Some(code) = operation.missing {
        responses.insert("404".to_owned(), failure(&format!("`{code}`: it is not held.")));
    }
    if operation.missing == Some("session_not_found") {
        let several = "`session_ambiguous`: several sessions have the id; `scopes` names theirs.";
        responses.insert("409".to_owned(), failure(several));
    }
    let no_room = match operation.content_type {
        JSON => {
            "`too_many_lists`, `too_many_histories`, `too_much_unread`: retry later, or ask for less at a time."
        }
        _ => "`too_many_streams`, `too_much_unread`: retry later.",
    };
    responses.insert("503".to_owned(), failure(no_room));
    json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": (operation.params)(generator),
        "responses": responses,
    })
}

fn reports() -> Value {
    let text = json!({ "type": "string" });
    let agent = json!({ "type": "object", "properties": agent() });
    let run = json!({ "type": "object", "required": ["agent", "task_id", "run_id"], "properties": {
        "agent": agent, "task_id": text, "run_id": text, "perturbation": text,
    }});
    let report = json!({ "type": "object", "required": ["name"], "properties": {
        "id": text, "trace_id": text, "response_id": text, "session_id": text, "scope": text, "run": run, "agent": agent, "name": text,
        "score": { "type": ["number", "boolean"] }, "label": text,
        "time_unix_nano": { "type": ["integer", "string"] },
    }});
    json!({
        "operationId": "report",
        "summary": "Scores, outcomes and violations from other evaluators. Each report has one target.",
        "requestBody": { "required": true, "content": { JSON: { "schema": {
            "type": "object", "required": ["reports"],
            "properties": { "reports": { "type": "array", "items": report } },
        }}}},
        "responses": taken_in(),
    })
}

/// The schema of a request to accept an agent's present level as usual.
fn acceptance() -> Value {
    let mut properties = agent();
    let names: Vec<&str> = STREAMS.iter().map(|stream| stream.name).collect();
    properties.insert("stream".to_owned(), json!({ "type": "string", "enum": names }));
    json!({
        "operationId": "acceptBaseline",
        "summary": "Accepts the current level of an agent version as usual, which ends its drops; for one stream, or for all.",
        "parameters": [tenant()],
        "requestBody": { "required": true, "content": { JSON: { "schema": {
            "type": "object", "properties": properties,
        }}}},
        "responses": taken_in_of_a_tenant(),
    })
}

/// The schema of a request about a deployment.
fn deployment() -> Value {
    let mut properties = agent();
    for name in ["id", "name"] {
        properties.insert(name.to_owned(), json!({ "type": "string" }));
    }
    properties.insert("accept".to_owned(), json!({ "type": "boolean" }));
    properties.insert("time_unix_nano".to_owned(), json!({ "type": ["integer", "string"] }));
    json!({
        "operationId": "tellDeployment",
        "summary": "Reports that this version was rolled out for all matching agents: an omitted field matches any. With `accept` its level becomes the usual one: drops end, and nothing is compared with the past. One of the same `id`, or without one of the same time, counts once.",
        "parameters": [tenant()],
        "requestBody": { "required": true, "content": { JSON: { "schema": {
            "type": "object", "properties": properties,
        }}}},
        "responses": taken_in_of_a_tenant(),
    })
}

/// The tenant of the agents.
fn tenant() -> Value {
    json!({
        "name": "tenant", "in": "query", "schema": { "type": "string" },
        "description": "The tenant, for senders without a tenant that may read, and so see all tenants.",
    })
}

/// The properties that name an agent.
fn agent() -> Map<String, Value> {
    let names = ["service_name", "agent_name", "agent_version", "environment"];
    names.into_iter().map(|name| (name.to_owned(), json!({ "type": "string" }))).collect()
}

fn taken_in_of_a_tenant() -> Value {
    let mut responses = taken_in();
    responses["400"] = failure("`malformed`: it is not accepted; the message says why.");
    responses["403"] = failure("`forbidden`: it names a tenant, which its sender may not.");
    responses
}

fn taken_in() -> Value {
    let rejected = json!({ "type": "object", "required": ["index", "error"], "properties": {
        "index": { "type": "integer" }, "error": { "type": "string" },
    }});
    json!({
        "200": { "description": "The result.", "content": { JSON: { "schema": {
            "type": "object", "required": ["accepted", "rejected"], "properties": {
                "accepted": { "type": "integer" },
                "rejected": { "type": "array", "items": rejected },
            },
        }}}},
        "400": failure("`malformed`: it cannot be read; the message says why."),
        "413": failure("`too_large`."),
        "503": failure("There is no room now; Retry-After says when to retry."),
    })
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn sessions(generator: &mut SchemaGenerator) -> Value {
    json!({ "anyOf": [schema::<SessionsPage>(generator), schema::<SessionRowsPage>(generator)] })
}

/// The fields of a type as parameters of a query; none of them is required.
fn query<T: JsonSchema>(_: &mut SchemaGenerator) -> Vec<Value> {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let properties = schema.get("properties").and_then(Value::as_object).cloned();
    let parameter = |(name, mut schema): (String, Value)| {
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        json!({ "name": name, "in": "query", "description": description, "schema": schema })
    };
    properties.unwrap_or_default().into_iter().map(parameter).collect()
}

/// The parameters of a path with one name in it, before those of the query.
fn below(name: &str, description: &str, query: Vec<Value>) -> Vec<Value> {
    let named = json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": { "type": "string" },
    });
    [vec![named], query].concat()
}

fn failure(description: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": description, "content": { JSON: { "schema": schema } } })
}

fn error_schema() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object", "required": ["error"],
        "properties": { "error": {
            "type": "object", "required": ["code", "message"],
            "properties": {
                "code": text, "message": text, "scopes": { "type": "array", "items": text },
            },
        }},
    })
}
