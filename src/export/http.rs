//! The HTTP endpoints: metrics, health, and the JSON API.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query as Params, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, TextEncoder};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::board::Board;
use super::prometheus::{Detail, Format, render};
use crate::access::Identity;
use crate::engine::view::{AgentView, SessionView};

/// Scrapes at a time; more wait.
const MAX_SCRAPES: usize = 4;

/// Sessions on one page, unless asked for otherwise, and at most.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

/// Who can be asked about sessions.
pub trait Query: Clone + Send + Sync + 'static {
    /// A page of the sessions of a tenant, or of all, by start of their first trace, then id.
    fn sessions(
        &self,
        tenant: Option<&str>,
        limit: usize,
        offset: usize,
    ) -> impl Future<Output = Vec<SessionView>> + Send;

    /// One session; `None` if it is not held.
    fn session(&self, tenant: &str, id: &str) -> impl Future<Output = Option<SessionView>> + Send;

    /// Whether all stages are running.
    fn ready(&self) -> bool;
}

/// Gathers the daemon's own metrics.
pub type Gather = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// What the endpoints read.
#[derive(Clone)]
pub struct Exporter<Q> {
    board: Arc<Board>,
    health: Gather,
    query: Q,
    detail: Detail,
    scrapes: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Page {
    limit: Option<usize>,
    offset: Option<usize>,
}

/// Whose session is asked for, by those who see all.
#[derive(Deserialize)]
struct Whose {
    #[serde(default)]
    tenant: String,
}

impl<Q: Query> Exporter<Q> {
    /// Endpoints over the board, the daemon's own metrics, and the sessions.
    pub fn new(board: Arc<Board>, health: Gather, query: Q, detail: Detail) -> Self {
        Self { board, health, query, detail, scrapes: Arc::new(Semaphore::new(MAX_SCRAPES)) }
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics::<Q>))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready::<Q>))
            .route("/api/v1/agents", get(agents::<Q>))
            .route("/api/v1/sessions", get(sessions::<Q>))
            .route("/api/v1/sessions/{id}", get(session::<Q>))
            .fallback(|| async {
                error(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path")
            })
            .layer(map_response(hardened))
            .with_state(self)
    }
}

async fn metrics<Q: Query>(
    State(exporter): State<Exporter<Q>>,
    identity: Identity,
    headers: HeaderMap,
) -> Response {
    // The semaphore is never closed.
    let _permit = exporter.scrapes.acquire().await.ok();
    let accept =
        headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let mut agents = exporter.board.sorted();
    agents.retain(|update| identity.sees(&update.agent.tenant));
    let mut page = render(&agents, format, exporter.detail);
    // A tenant is told nothing of what the daemon does for others.
    let families = if identity.tenant.is_some() { Vec::new() } else { (exporter.health)() };
    match health(&families, format) {
        Ok(text) => page.push_str(&text),
        Err(problem) => {
            return error(StatusCode::INTERNAL_SERVER_ERROR, "metrics", &problem.to_string());
        }
    }
    if format == Format::OpenMetrics {
        page.push_str("# EOF\n");
    }
    ([(header::CONTENT_TYPE, format.content_type())], page).into_response()
}

/// The daemon's own metrics; OpenMetrics names a counter's family without its `_total`.
fn health(families: &[MetricFamily], format: Format) -> Result<String, prometheus::Error> {
    let mut bytes = Vec::new();
    TextEncoder::new().encode(families, &mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    if format == Format::Text {
        return Ok(text.into_owned());
    }
    let line = |line: &str| {
        let head = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        match head
            .and_then(|head| head.split(' ').next())
            .and_then(|name| Some((name, name.strip_suffix("_total")?)))
        {
            Some((name, family)) => line.replacen(name, family, 1) + "\n",
            None => format!("{line}\n"),
        }
    };
    Ok(text.lines().map(line).collect())
}

async fn ready<Q: Query>(State(exporter): State<Exporter<Q>>) -> Response {
    if exporter.query.ready() {
        "ready\n".into_response()
    } else {
        error(StatusCode::SERVICE_UNAVAILABLE, "not_ready", "a stage is not running")
    }
}

async fn agents<Q: Query>(State(exporter): State<Exporter<Q>>, identity: Identity) -> Response {
    let mut agents = exporter.board.sorted();
    agents.retain(|update| identity.sees(&update.agent.tenant));
    let agents: Vec<AgentView> = agents.iter().map(|update| update.view.clone()).collect();
    Json(json!({ "agents": agents })).into_response()
}

async fn sessions<Q: Query>(
    State(exporter): State<Exporter<Q>>,
    identity: Identity,
    page: Result<Params<Page>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Ok(Params(page)) = page else {
        return error(
            StatusCode::BAD_REQUEST,
            "bad_request",
            "`limit` and `offset` are whole numbers from 0",
        );
    };
    let limit = page.limit.unwrap_or(PAGE).min(MAX_PAGE);
    let sessions =
        exporter.query.sessions(identity.tenant.as_deref(), limit, page.offset.unwrap_or(0));
    let sessions = sessions.await;
    Json(json!({ "sessions": sessions })).into_response()
}

async fn session<Q: Query>(
    State(exporter): State<Exporter<Q>>,
    identity: Identity,
    Path(id): Path<String>,
    Params(whose): Params<Whose>,
) -> Response {
    let tenant = identity.tenant.as_deref().unwrap_or(&whose.tenant);
    match exporter.query.session(tenant, &id).await {
        Some(session) => Json(session).into_response(),
        None => error(
            StatusCode::NOT_FOUND,
            "session_not_found",
            "no session of this id is held; it may have been evicted",
        ),
    }
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({ "error": { "code": code, "message": message } }))).into_response()
}

/// Browsers are to take answers for what they say they are, and to load nothing from elsewhere.
async fn hardened(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'self'"));
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use prometheus::{IntCounter, Registry};
    use tower::ServiceExt;

    use super::*;
    use crate::engine::agents::AgentUpdate;

    #[derive(Clone)]
    struct Held;

    impl Query for Held {
        async fn sessions(&self, _: Option<&str>, limit: usize, offset: usize) -> Vec<SessionView> {
            let ids = ["a", "b", "c"].into_iter().skip(offset).take(limit);
            ids.map(|id| SessionView { session_id: id.to_owned(), ..SessionView::default() })
                .collect()
        }

        async fn session(&self, _: &str, id: &str) -> Option<SessionView> {
            (id == "a/b").then(SessionView::default)
        }

        fn ready(&self) -> bool {
            true
        }
    }

    async fn ask(path: &str, accept: &str) -> (StatusCode, HeaderMap, String) {
        let health = Registry::new();
        health
            .register(Box::new(IntCounter::new("agentgauge_test_total", "A test.").unwrap()))
            .unwrap();
        let board = Arc::new(Board::default());
        board.apply(AgentUpdate::default());
        let request =
            Request::get(path).header(header::ACCEPT, accept).body(Body::empty()).unwrap();
        let response = Exporter::new(board, Arc::new(move || health.gather()), Held, Detail::Core)
            .router()
            .oneshot(request)
            .await
            .unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn metrics_come_in_the_format_that_was_asked_for() {
        let (status, headers, body) = ask("/metrics", "text/plain").await;
        assert_eq!(
            (status, &headers[header::X_CONTENT_TYPE_OPTIONS]),
            (StatusCode::OK, &HeaderValue::from_static("nosniff"))
        );
        assert!(body.contains("# TYPE agentgauge_test_total counter\nagentgauge_test_total 0\n"));
        assert!(!body.contains("# EOF"));
        let (_, headers, body) =
            ask("/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
        assert!(
            headers[header::CONTENT_TYPE]
                .to_str()
                .unwrap()
                .starts_with("application/openmetrics-text")
        );
        assert!(body.contains("# TYPE agentgauge_test counter\nagentgauge_test_total 0\n"));
        assert!(body.ends_with("# EOF\n"));
    }

    #[tokio::test]
    async fn sessions_come_in_pages() {
        let (_, _, body) = ask("/api/v1/sessions?limit=1&offset=1", "*/*").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["sessions"][0]["session_id"], "b");
        assert_eq!(body["sessions"].as_array().unwrap().len(), 1);
        assert_eq!(ask("/api/v1/sessions?limit=x", "*/*").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(ask("/api/v1/sessions/a%2Fb", "*/*").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn what_is_not_there_says_so_in_json() {
        for path in ["/nothing", "/api/v1/sessions/nobody"] {
            let (status, _, body) = ask(path, "*/*").await;
            assert_eq!(status, StatusCode::NOT_FOUND);
            assert!(body.starts_with(r#"{"error":{"code":"#), "{body}");
        }
        assert_eq!(ask("/healthz", "*/*").await.2, "ok\n");
        assert_eq!(ask("/readyz", "*/*").await.2, "ready\n");
        assert_eq!(ask("/api/v1/agents", "*/*").await.0, StatusCode::OK);
    }
}
