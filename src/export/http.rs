//! The HTTP endpoints: metrics, health, and the JSON API.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, TextEncoder};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;
use tonic::Status;

use super::about::AboutView;
use super::alerts::AlertSource;
use super::board::Board;
use super::lists::{self, Lists};
use super::live::Streams;
use super::prometheus::{Detail, Exposition, Format};
use super::query::Query;
use super::readers::{Caller, Readers};
use super::scrapes::Scrapes;
use super::{api, grpc, web};
use crate::access::Insider;
use crate::engine::convention::id_within;
use crate::engine::span::Timestamp;
use crate::refused::Refused;
use crate::{runbook as runbooks, telemetry};

/// The time within which some part of an answer has to be read, unless set otherwise.
const READ_TIME: Duration = Duration::from_secs(30);

/// The pause after each `PIECES` pieces of a scrape. Yielding to ready tasks, as between all pieces, is not enough: decoding
/// threads need the core, too.
const PAUSE: Duration = Duration::from_millis(1);
const PIECES: u64 = 4;

/// Gathers the daemon's own metrics.
pub type Gather = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// Reads wall time.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Counts an event, by one of a few reasons.
pub type Count = Arc<dyn Fn(&'static str) + Send + Sync>;

/// What the endpoints read.
#[derive(Clone)]
pub struct Exporter<Q> {
    pub(super) board: Arc<Board>,
    health: Gather,
    pub(super) query: Q,
    detail: Detail,
    pub(super) readers: Arc<Readers>,
    scrapes: Scrapes,
    /// Turns for answers about sessions, and for answers from the stored history.
    pub(super) lists: Lists,
    pub(super) pasts: Lists,
    /// Room for live streams; more are refused.
    pub(super) streams: Streams,
    /// True once the daemon shuts down, which ends streams.
    pub stopping: watch::Receiver<bool>,
    /// The bytes to which names and ids are cut when they are stored: those in requests are cut likewise.
    pub max_name_bytes: usize,
    /// The facts about the daemon that the page needs.
    pub about: AboutView,
    /// The Prometheus that is asked for the state of alerts.
    pub alert_source: Option<AlertSource>,
    /// The clock by which ranges of time end.
    pub(super) now: Now,
}

impl<Q: Query> Exporter<Q> {
    /// Endpoints over the board, the daemon's own metrics, and the sessions, by a clock.
    pub fn new(board: Arc<Board>, health: Gather, query: Q, detail: Detail, now: Now) -> Self {
        let readers = Readers::new(board.options(), READ_TIME, Arc::new(|_| {}), Arc::new(|_| {}));
        let readers = Arc::new(readers);
        let scrapes = Scrapes::new(Arc::clone(&readers));
        let lists = Lists::of_sessions(READ_TIME, Arc::new(|_| {}));
        let pasts = Lists::of_the_past(READ_TIME, Arc::new(|_| {}));
        let streams = Streams::new(board.options().max_streams, Arc::new(|_| {}));
        let (_, stopping) = watch::channel(false);
        let about = AboutView::default();
        Self {
            board,
            health,
            query,
            detail,
            readers,
            scrapes,
            lists,
            pasts,
            streams,
            stopping,
            max_name_bytes: usize::MAX,
            about,
            alert_source: None,
            now,
        }
    }

    /// A name as it is stored.
    pub(super) fn kept<'n>(&self, name: &'n str) -> &'n str {
        &name[..name.floor_char_boundary(self.max_name_bytes)]
    }

    /// An id as it is stored.
    pub(super) fn kept_id<'i>(&self, id: &'i str) -> Cow<'i, str> {
        id_within(id, self.max_name_bytes)
    }

    /// Cuts off every answer that is not read for `patience`. Calls `cut` for every answer that is cut off, with the reason, and
    /// `full` for every answer or stream without room, with the limit.
    #[must_use]
    pub fn counting(self, patience: Duration, cut: Count, full: Count) -> Self {
        let options = self.board.options();
        let readers = Arc::new(Readers::new(options, patience, cut, Arc::clone(&full)));
        let lists = Lists::of_sessions(patience, Arc::clone(&full));
        let pasts = Lists::of_the_past(patience, Arc::clone(&full));
        let streams = Streams::new(options.max_streams, full);
        let scrapes = Scrapes::new(Arc::clone(&readers));
        Self { scrapes, readers, lists, pasts, streams, ..self }
    }

    /// The routes.
    pub fn router(self) -> Router {
        let answers = (self.lists.clone(), Arc::clone(&self.readers));
        Router::new()
            .route("/runbook/{alert}", get(runbook))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready::<Q>))
            .merge(api::router())
            .merge(web::router())
            .merge(grpc::router(&self))
            .layer(from_fn_with_state(answers, hold))
            // A scrape counts its pieces as they are rendered.
            .route("/metrics", get(metrics::<Q>))
            .fallback(|| async {
                error(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path")
            })
            .method_not_allowed_fallback(|| async {
                let message = "there is something at this path, but not for this method";
                error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
            })
            .layer(map_response(hardened))
            .with_state(self)
    }
}

/// Answers a scrape. The page is sent piece by piece as it is rendered, so that neither its size nor a slow reader delays others.
async fn metrics<Q: Query>(State(exporter): State<Exporter<Q>>, request: Request) -> Response {
    let (headers, caller) = (request.headers(), Caller::of(request.extensions(), true));
    let Some((making, reading)) = exporter.scrapes.begin(&caller).await else {
        let message = "too many scrapes are in progress (`api.max_scrapes`); retry later";
        return error(StatusCode::SERVICE_UNAVAILABLE, "too_many_scrapes", message);
    };
    let accept =
        headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    // A tenant does not see the daemon's own metrics, which cover all tenants.
    let families = if caller.is_tenant() { Vec::new() } else { (exporter.health)() };
    let mut last = match health(&families, format) {
        Ok(text) => text,
        Err(problem) => {
            return error(StatusCode::INTERNAL_SERVER_ERROR, "metrics", &problem.to_string());
        }
    };
    if format == Format::OpenMetrics {
        last.push_str("# EOF\n");
    }
    let agents = exporter.board.wanted(|update| caller.who.sees(&update.agent.tenant));
    let page = Exposition::new(agents, format, exporter.detail);
    let step = telemetry::step("scrape");
    tokio::spawn(async move {
        making.send(page.chain([last]), give_way).await;
        drop(step);
    });
    ([(header::CONTENT_TYPE, format.content_type())], Body::new(reading)).into_response()
}

/// Makes an answer when it is its turn and counts it until it is sent; without room, answers that there is none.
async fn hold(
    State((lists, readers)): State<(Lists, Arc<Readers>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = Caller::of(request.extensions(), false);
    let is_grpc = grpc::is_asked(request.headers());
    let requester = lists::requester(&caller.who, caller.line.connection_number());
    request.extensions_mut().insert(requester.clone());
    let held = async {
        let path = request.uri().path();
        // Kept until the answer is counted, so that only few uncounted answers exist.
        let _turn = match lists::looks_into_sessions(path) {
            true => Some(lists.turn(&requester).await?),
            false => None,
        };
        let answer = next.run(request).await;
        readers.hold(caller, answer).await
    };
    match held.await {
        Ok(answer) => answer,
        Err(refused) if is_grpc => Status::from(refused).into_http(),
        Err(refused) => refused.into_response(),
    }
}

/// Yields to other tasks before the piece of a page with this number.
pub(super) async fn give_way(number: u64) {
    if !number.is_multiple_of(PIECES) {
        yield_now().await;
    } else if number > 0 {
        sleep(PAUSE).await;
    }
}

/// The daemon's own metrics as text; OpenMetrics names a counter's family without its `_total`.
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

/// Answers whether the daemon is ready, for everybody; the reason can name brokers and topics, so only those who may read
/// everything get it.
async fn ready<Q: Query>(
    State(exporter): State<Exporter<Q>>,
    insider: Option<Extension<Insider>>,
) -> Response {
    match exporter.query.ready() {
        Ok(()) => {
            let remark = insider.and_then(|_| exporter.query.remark());
            remark
                .map_or_else(|| "ready\n".to_owned(), |what| format!("ready, but {what}\n"))
                .into_response()
        }
        Err(why) => {
            let why = insider.map_or("the log says why", |_| &why);
            error(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why)
        }
    }
}

/// Answers with a section of the runbook, such as the one about an alert.
async fn runbook(Path(name): Path<String>) -> Response {
    match runbooks::section(&name) {
        Some((heading, text)) => format!("{heading}\n\n{text}\n").into_response(),
        None => error(StatusCode::NOT_FOUND, "not_found", "the runbook has no such section"),
    }
}

fn error(status: StatusCode, code: &'static str, message: &str) -> Response {
    Refused::new(status, code, message).into_response()
}

/// The policy of the page: it loads nothing from elsewhere, runs no text as code, and is in no frame.
const CONTENT_SECURITY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
);

/// Adds headers that make browsers trust the stated type and load nothing from elsewhere.
async fn hardened(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::http::HeaderMap;
    use http_body_util::BodyExt;
    use prometheus::{IntCounter, Registry};
    use prost::Message;
    use tower::ServiceExt;

    use super::super::grpc::v1::ListAgentsRequest;
    use super::super::lists::MAX_LISTS;
    use super::*;
    use crate::engine::agent_facts::AgentFacts;
    use crate::engine::explained::{SessionRow, TraceExplanation};
    use crate::engine::sessions::Found;
    use crate::engine::span::TraceId;
    use crate::engine::view::{SessionView, TraceView};
    use crate::export::openapi::openapi;
    use crate::export::query::{ListRequest, Listing};
    use crate::fair::Requester;

    /// Counts its calls.
    #[derive(Clone, Default)]
    struct FixedAnswers(Arc<AtomicU64>);

    impl Query for FixedAnswers {
        async fn list(&self, request: ListRequest) -> Listing {
            self.0.fetch_add(1, Ordering::Relaxed);
            let heavy = request.filter.agent.service_name.as_deref() == Some("heavy");
            let ids = if heavy { ["heavy"; 3] } else { ["a", "b", "c"] };
            let ids = ids.into_iter().skip(request.offset).take(request.limit);
            let rows = ids
                .map(|id| SessionRow { session_id: id.to_owned(), ..SessionRow::default() })
                .collect();
            Listing { rows, total: 3, partial: false }
        }

        async fn session(&self, _: &str, id: &str, _: Option<&str>) -> Found {
            self.0.fetch_add(1, Ordering::Relaxed);
            let traces = if id == "heavy" { 6_000 } else { 0 };
            let traces = vec![TraceView::default(); traces];
            let view = SessionView { session_id: id.to_owned(), traces, ..SessionView::default() };
            if id == "nobody" { Found::Nothing } else { Found::One(Box::new(view)) }
        }

        async fn explain(
            &self,
            _: Option<&str>,
            _: Option<(&str, Option<&str>)>,
            _: TraceId,
        ) -> Option<TraceExplanation> {
            self.0.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn ready(&self) -> Result<(), String> {
            Ok(())
        }
    }

    fn exporter() -> Exporter<FixedAnswers> {
        let health = Registry::new();
        health
            .register(Box::new(IntCounter::new("agentgauge_test_total", "A test.").unwrap()))
            .unwrap();
        let board = Arc::new(Board::default());
        board.apply(AgentFacts { looping: 1, ..AgentFacts::default() });
        let gather = Arc::new(move || health.gather());
        let query = FixedAnswers::default();
        Exporter::new(board, gather, query, Detail::Core, Arc::new(Timestamp::default))
    }

    async fn ask(path: &str, accept: &str) -> (StatusCode, HeaderMap, String) {
        let request =
            Request::get(path).header(header::ACCEPT, accept).body(Body::empty()).unwrap();
        let response = exporter().router().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn sessions_are_looked_into_in_turn_and_everything_else_at_once() {
        let counted: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let counts = Arc::clone(&counted);
        let full = Arc::new(move |what| counts.lock().unwrap().push(what));
        let exporter = exporter().counting(Duration::from_millis(10), Arc::new(|_| {}), full);
        let (turns, asked) = (Arc::clone(&exporter.lists.turns), Arc::clone(&exporter.query.0));
        let described = openapi();
        let paths = described["paths"].as_object().unwrap();
        let router = exporter.router();
        let ask = async |path: &str| {
            let path = path.replace("{id}", "0123456789abcdef0123456789abcdef");
            let request = Request::get(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap().status()
        };
        let all = turns.enter(&Requester::default(), MAX_LISTS, READ_TIME).await;
        let mut refused = 0;
        for path in paths.keys() {
            let status = ask(path).await;
            assert_eq!(asked.load(Ordering::Relaxed), 0, "{path}");
            refused += usize::from(status == StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(*counted.lock().unwrap(), vec!["api_lists"; refused]);
        // Alerts included, which are problems if there is no Prometheus to ask.
        assert_eq!(refused, 6);
        drop(all);
        assert_eq!(ask("/api/v1/problems").await, StatusCode::OK);
        assert_eq!(ask("/api/v1/sessions").await, StatusCode::OK);
        assert!(asked.load(Ordering::Relaxed) >= 2);
    }

    #[tokio::test]
    async fn the_kept_past_is_read_in_turn() {
        let counted: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let counts = Arc::clone(&counted);
        let full = Arc::new(move |what| counts.lock().unwrap().push(what));
        let exporter = exporter().counting(Duration::from_millis(10), Arc::new(|_| {}), full);
        let turns = Arc::clone(&exporter.pasts.turns);
        let router = exporter.router();
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap().status()
        };
        let call = async |method: &str, message: Vec<u8>| {
            let body = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat();
            let request = Request::post(format!("/agentgauge.v1.QueryService/{method}"))
                .header(header::CONTENT_TYPE, "application/grpc")
                .body(Body::from(body))
                .unwrap();
            let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
            let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
            let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status"));
            status.unwrap().to_str().unwrap().to_owned()
        };
        let of_a_day = ListAgentsRequest { range: "24h".to_owned(), ..Default::default() };
        let of_a_day = of_a_day.encode_to_vec();
        let all = turns.enter(&Requester::default(), MAX_LISTS, READ_TIME).await;
        let refused = StatusCode::SERVICE_UNAVAILABLE;
        for path in ["fleet?range=6h", "fleet?range=24h", "fleet?range=7d", "agents/history"] {
            assert_eq!(ask(&format!("/api/v1/{path}")).await, refused, "{path}");
        }
        assert_eq!(call("ListFleet", of_a_day.clone()).await, "14");
        assert_eq!(call("GetAgentHistory", Vec::new()).await, "14");
        assert_eq!(*counted.lock().unwrap(), ["api_history"; 6]);
        // The last hour is in memory.
        assert_eq!(ask("/api/v1/fleet").await, StatusCode::OK);
        assert_eq!(call("ListFleet", Vec::new()).await, "0");
        assert_eq!(ask("/api/v1/sessions").await, StatusCode::OK);
        drop(all);
        assert_eq!(ask("/api/v1/fleet?range=7d").await, StatusCode::OK);
        assert_eq!(call("ListFleet", of_a_day).await, "0");
        assert_eq!(counted.lock().unwrap().len(), 6);
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
        assert_eq!(body["total"], 3);
        let (_, _, body) = ask("/api/v1/sessions?detail=row", "*/*").await;
        assert!(body.contains("worst_loop"), "{body}");
        assert_eq!(ask("/api/v1/sessions/a%2Fb", "*/*").await.0, StatusCode::OK);
    }

    /// Browsers and proxies take these for steps in a path, escaped or not.
    #[tokio::test]
    async fn a_session_whose_id_no_path_can_name_is_found_by_a_parameter() {
        for id in ["a/b", ".", "..", "%2e%2e", ""] {
            let escaped: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
            let (status, _, body) = ask(&format!("/api/v1/session?id={escaped}"), "*/*").await;
            assert_eq!(status, StatusCode::OK, "{id}: {body}");
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["session_id"], id);
        }
        let (status, _, _) = ask("/api/v1/session?id=nobody", "*/*").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(ask("/api/v1/session", "*/*").await.0, StatusCode::BAD_REQUEST);
        let script = include_str!("web/session.js");
        assert!(!script.contains("/api/v1/sessions/"), "the page names sessions in paths");
    }

    #[tokio::test]
    async fn a_page_of_whole_sessions_ends_before_it_is_huge() {
        let (_, _, body) = ask("/api/v1/sessions?service_name=heavy", "*/*").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        // Two of them would have more than 10,000 traces together; their total is reported all the same.
        assert_eq!(body["sessions"].as_array().unwrap().len(), 1);
        assert_eq!(body["total"], 3);
    }

    #[tokio::test]
    async fn what_is_asked_wrongly_is_told_so() {
        for path in [
            "/api/v1/sessions?limit=x",
            "/api/v1/sessions?offset=1000000000",
            "/api/v1/sessions?sort=best",
            "/api/v1/sessions?limti=1",
            "/api/v1/sessions?limit=-1",
            "/api/v1/agents?sort=loops",
            "/api/v1/traces/xyz",
            "/api/v1/sessions/%ff",
            "/api/v1/alerts?service_name=x",
            "/api/v1/about?x=1",
        ] {
            let (status, _, body) = ask(path, "*/*").await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
            assert!(body.starts_with(r#"{"error":{"code":"bad_request""#), "{path}: {body}");
        }
    }

    #[tokio::test]
    async fn a_request_that_does_not_come_is_given_up() {
        for (method, expected) in [
            ("agentgauge.v1.QueryService/ListAgents", "4"),
            // A stream of requests, which then ends.
            ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "0"),
        ] {
            let nothing = futures_util::stream::pending::<Result<&str, std::io::Error>>();
            let request = Request::post(format!("/{method}"))
                .header(header::CONTENT_TYPE, "application/grpc")
                .body(Body::from_stream(nothing))
                .unwrap();
            let patience = Duration::from_millis(20);
            let exporter = exporter().counting(patience, Arc::new(|_| {}), Arc::new(|_| {}));
            let (head, body) = exporter.router().oneshot(request).await.unwrap().into_parts();
            let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
            let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status"));
            assert_eq!(status.unwrap(), expected, "{method}");
        }
    }

    #[tokio::test]
    async fn the_page_comes_from_the_binary() {
        for path in ["/", "/assets/app.js", "/assets/style.css", "/assets/uplot/uPlot.min.css"] {
            let (status, headers, body) = ask(path, "*/*").await;
            assert_eq!((status, body.is_empty()), (StatusCode::OK, false), "{path}");
            let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"));
        }
        assert_eq!(ask("/assets/../Cargo.toml", "*/*").await.0, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn what_is_not_there_says_so_in_json() {
        for path in [
            "/nothing",
            "/api/v1/sessions/nobody",
            "/api/v1/traces/00000000000000000000000000000001",
            "/api/v1/agents/history?service_name=nobody",
            "/runbook/Nothing",
        ] {
            let (status, _, body) = ask(path, "*/*").await;
            assert_eq!(status, StatusCode::NOT_FOUND);
            assert!(body.starts_with(r#"{"error":{"code":"#), "{body}");
        }
        assert_eq!(ask("/healthz", "*/*").await.2, "ok\n");
        assert_eq!(ask("/readyz", "*/*").await.2, "ready\n");
        assert_eq!(ask("/api/v1/agents", "*/*").await.0, StatusCode::OK);
    }
}
