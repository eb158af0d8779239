//! The query API against the running daemon, and every answer against its description.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agentgauge::export::grpc::v1;
use serde_json::{Value, json};

use crate::support::daemon::Daemon;

/// One turn of an agent with this many equal tool calls, as OTLP JSON.
fn turn(number: u8, session: &str, calls: u8, failed: bool) -> Value {
    #[expect(clippy::disallowed_methods, reason = "spans of now")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let trace = format!("{number:032x}");
    let attribute =
        |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let span = |id: u8, parent: Option<u8>, attributes: Vec<Value>| {
        let start = now + u128::from(id) * 1_000_000;
        json!({
            "traceId": trace, "spanId": format!("{:016x}", u16::from(id) + 1), "name": "span", "kind": 1,
            "parentSpanId": parent.map(|id| format!("{:016x}", u16::from(id) + 1)).unwrap_or_default(),
            "startTimeUnixNano": start.to_string(), "endTimeUnixNano": (start + 500_000).to_string(),
            "attributes": attributes,
            "status": { "code": if failed && id == 0 { 2 } else { 0 } },
        })
    };
    let mut spans = vec![span(
        0,
        None,
        vec![
            attribute("gen_ai.operation.name", "invoke_agent"),
            attribute("gen_ai.agent.name", "helper"),
            attribute("gen_ai.conversation.id", session),
        ],
    )];
    spans.extend((1..=calls).map(|id| {
        span(
            id,
            Some(0),
            vec![
                attribute("gen_ai.operation.name", "execute_tool"),
                attribute("gen_ai.tool.name", "search"),
                attribute("gen_ai.tool.call.arguments", r#"{"query":"refund"}"#),
                attribute("gen_ai.tool.call.result", "nothing"),
            ],
        )
    }));
    json!({ "resourceSpans": [{
        "resource": { "attributes": [attribute("service.name", "shop")] },
        "scopeSpans": [{ "spans": spans }],
    }]})
}

fn send(daemon: &Daemon, body: &Value) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(&daemon.otlp_http).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/traces HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains(" 200 "), "{line}");
}

/// A daemon with three sessions: one fine, one looping, one failed; all traces done.
fn fed() -> Daemon {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__API__HISTORY_STEP", "100ms")]);
    send(&daemon, &turn(1, "fine", 1, false));
    send(&daemon, &turn(2, "looping", 1, false));
    send(&daemon, &turn(3, "looping", 4, false));
    send(&daemon, &turn(4, "failed", 0, true));
    daemon.settles_at(
        "agentgauge_traces_total{service_name=\"shop\",gen_ai_agent_name=\"helper\"",
        4.0,
    );
    daemon
}

fn ask(daemon: &Daemon, path: &str) -> Value {
    serde_json::from_str(&daemon.get(path)).unwrap()
}

fn ids(answer: &Value) -> Vec<&str> {
    let sessions = answer["sessions"].as_array().unwrap();
    sessions.iter().map(|session| session["session_id"].as_str().unwrap()).collect()
}

#[test]
fn sessions_come_by_what_is_wrong_with_them() {
    let daemon = fed();
    let list = |query: &str| ask(&daemon, &format!("/api/v1/sessions?detail=row&{query}"));
    assert_eq!(ids(&list("")), ["fine", "looping", "failed"]);
    assert_eq!(ids(&list("sort=reliability&limit=2")), ["failed", "looping"]);
    assert_eq!(ids(&list("sort=loops&limit=1")), ["looping"]);
    assert_eq!(ids(&list("loops=false&offset=1")), ["failed"]);
    assert_eq!(list("loops=false&limit=1")["total"], 2);
    assert_eq!(list("agent_name=nobody")["total"], 0);
    assert_eq!(list("agent_name=helper&agent_version=&open=true")["total"], 3);
    let whole = ask(&daemon, "/api/v1/sessions?sort=reliability&limit=1");
    assert_eq!(whole["sessions"][0]["traces"][0]["error"], true);
}

#[test]
fn sessions_are_found_by_what_they_did() {
    let daemon = fed();
    let list = |query: &str| ask(&daemon, &format!("/api/v1/sessions?detail=row&{query}"));
    // Half of the calls of the one that loops repeat, and the other one failed.
    assert_eq!(ids(&list("failing=true")), ["looping", "failed"]);
    assert_eq!(ids(&list("failing=false")), ["fine"]);
    assert_eq!(ids(&list("id=oop")), ["looping"]);
    assert_eq!(ids(&list("tool=sear")), ["fine", "looping"]);
    assert_eq!(list("tool=find")["total"], 0);
    assert_eq!(list("user=nobody")["total"], 0);
}

#[test]
fn what_is_wrong_now_is_one_answer_with_an_example() {
    let daemon = fed();
    let found = ask(&daemon, "/api/v1/problems");
    assert_eq!(found["total"], 1, "{found}");
    let problem = &found["problems"][0];
    assert_eq!((&problem["kind"], &problem["what"]), (&json!("loop"), &json!("exact_repeat")));
    assert_eq!((&problem["severity"], &problem["count"]), (&json!("warning"), &json!(1)));
    assert_eq!((&problem["tool"], &problem["calls"]), (&json!("search"), &json!(4)));
    assert_eq!(problem["agent"]["agent_name"], "helper");
    assert_eq!(problem["session"]["session_id"], "looping");
    // Since the first call of the loop, which is after the beginning of its trace.
    let trace = &ask(&daemon, &format!("/api/v1/traces/{:032x}", 3))["trace"];
    assert_eq!(problem["since_unix_nano"], trace["tools"][0]["start_unix_nano"]);
    assert_eq!(ask(&daemon, "/api/v1/problems?service_name=bank")["total"], 0);
    let totals = &ask(&daemon, "/api/v1/fleet?limit=0")["totals"];
    assert_eq!((&totals["traces"], &totals["sessions_looping"]), (&json!(4), &json!(1)));
}

#[test]
fn steps_of_a_trace_are_there_where_content_is_kept() {
    let trace = format!("/api/v1/traces/{:032x}", 1);
    assert_eq!(ask(&fed(), &trace)["trace"]["steps"], json!([]));
    let daemon = Daemon::start_with(&[("AGENTGAUGE__ASSEMBLE__KEEP_CONTENT", "true")]);
    send(&daemon, &turn(1, "fine", 2, false));
    daemon.settles_at(
        "agentgauge_traces_total{service_name=\"shop\",gen_ai_agent_name=\"helper\"",
        1.0,
    );
    let steps = &ask(&daemon, &trace)["trace"]["steps"];
    assert_eq!(steps.as_array().unwrap().len(), 2, "{steps}");
    assert_eq!((&steps[0]["kind"], &steps[0]["name"]), (&json!("tool"), &json!("search")));
    assert_eq!(steps[0]["arguments"], json!({ "query": "refund" }));
    assert_eq!(steps[1]["result"], "nothing");
    assert_eq!(ask(&daemon, "/api/v1/about")["content_kept"], true);
}

#[test]
fn a_trace_is_explained_by_its_signals_and_its_loop() {
    let daemon = fed();
    let path = format!("/api/v1/traces/{:032x}", 3);
    let found = ask(&daemon, &path);
    assert_eq!(found["session_id"], "looping");
    assert_eq!(ask(&daemon, &format!("{path}?session=looping")), found);
    assert_eq!(ask(&daemon, &format!("{path}?session=fine"))["error"]["code"], "trace_not_found");
    // Three of four calls repeat: 1 - 3/4 of confidence weighs more than the loop's warning.
    let signals = found["signals"].as_array().unwrap();
    assert_eq!((&signals[0]["name"], &signals[0]["decides"]), (&json!("confidence"), &json!(true)));
    assert_eq!(
        signals[0]["evidence"][0],
        "3 of 4 steps (model and tool calls) failed or repeated an earlier call"
    );
    assert_eq!((&signals[1]["name"], &signals[1]["risk"]), (&json!("tool_loop"), &json!(0.6)));
    assert_eq!(
        signals[1]["evidence"][0],
        "exact_repeat of search, 4 times: warning, by names, arguments and results"
    );
    // Without confidence the loop's 0.6 is the greatest risk of two traces: 0.9 * 0.6 + 0.1 * 0.6.
    assert_eq!(found["now"]["session_reliability"], 0.25);
    assert_eq!(signals[0]["without"]["trace_risk"], 0.6);
    assert_eq!(signals[0]["without"]["session_reliability"], 0.4);
    let looped = &found["loops"][0];
    assert_eq!(looped["kind"], "exact_repeat");
    let calls = looped["calls"].as_array().unwrap();
    let places: Vec<_> = calls.iter().map(|call| call["index"].as_u64().unwrap()).collect();
    assert_eq!(places, [0, 1, 2, 3]);
    // (1 + 0.75's penalty of 0) instead of (1 + 0.6): the loop weighs on the consistency.
    assert_eq!(looped["without"]["trace_risk"], 0.75);
    let consistency = |of: &Value| of["session_consistency"].as_f64().unwrap();
    assert!(consistency(&looped["without"]) > consistency(&found["now"]));
}

#[test]
fn an_agent_has_a_past() {
    let daemon = fed();
    let path = "/api/v1/agents/history?service_name=shop&agent_name=helper";
    for _ in 0..100 {
        let past = ask(&daemon, path);
        let points = past["unix_nano"].as_array().unwrap().len();
        if points > 2 && past["reliability"]["last_50"][points - 1].is_number() {
            assert_eq!(past["traces"].as_array().unwrap().len(), points);
            let row = &ask(&daemon, "/api/v1/fleet")["agents"][0];
            assert!(row["spark"].as_array().unwrap().len() > 1, "{row}");
            return;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(ask(&daemon, path), "a past");
}

#[test]
fn changes_come_as_a_stream_that_ends_with_the_daemon() {
    let daemon = Daemon::start();
    let mut stream = TcpStream::connect(&daemon.http).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /api/v1/events?agent_name=helper HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains(" 200 "));
    send(&daemon, &turn(1, "fine", 1, false));
    let told = lines.find(|line| line.contains("\"agent_name\":\"helper\"")).unwrap();
    let changes: Value = serde_json::from_str(told.strip_prefix("data: ").unwrap()).unwrap();
    fits(&changes, &json!({ "$ref": "#/components/schemas/Changes" }));
    #[cfg(unix)]
    daemon.ends_well();
    assert!(lines.all(|line| !line.contains("error")));
}

#[test]
fn streams_over_the_limit_are_told_to_come_back() {
    let daemon = Daemon::start_with(&[("AGENTGAUGE__API__MAX_STREAMS", "1")]);
    let mut first = TcpStream::connect(&daemon.http).unwrap();
    write!(first, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(&first).read_line(&mut line).unwrap();
    assert!(line.contains(" 200 "), "{line}");
    assert_eq!(ask(&daemon, "/api/v1/events")["error"]["code"], "too_many_streams");
}

/// Asks over gRPC and collects the first `most` answers.
fn call<Q, A>(
    daemon: &Daemon,
    method: &str,
    question: Q,
    most: usize,
) -> Result<Vec<A>, tonic::Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", daemon.http));
        let mut client = tonic::client::Grpc::new(endpoint.unwrap().connect().await.unwrap());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let path = format!("/{method}").parse().unwrap();
        let question = tonic::Request::new(futures_util::stream::iter([question]));
        let mut answers = client.streaming(question, path, codec).await?.into_inner();
        let mut all = Vec::new();
        while all.len() < most
            && let Some(answer) = answers.message().await?
        {
            all.push(answer);
        }
        Ok(all)
    })
}

#[test]
fn the_same_answers_come_over_grpc() {
    let daemon = fed();
    let question = v1::ExplainTraceRequest {
        trace_id: format!("{:032x}", 3),
        session_id: None,
        ..v1::ExplainTraceRequest::default()
    };
    let method = "agentgauge.v1.QueryService/ExplainTrace";
    let found: Vec<v1::TraceExplanation> = call(&daemon, method, question, 1).unwrap();
    let json = ask(&daemon, &format!("/api/v1/traces/{:032x}", 3));
    assert_eq!(json["reason"], found[0].reason);
    assert_eq!(json["now"]["session_reliability"], found[0].now.unwrap().session_reliability());
    assert_eq!(found[0].loops[0].calls.len(), 4);
    let start = found[0].trace.as_ref().unwrap().start_unix_nano.to_string();
    assert_eq!(json["trace"]["start_unix_nano"], start);

    let sort = v1::Sort::Reliability.into();
    let question = v1::ListSessionsRequest { sort, limit: Some(1), ..Default::default() };
    let method = "agentgauge.v1.QueryService/ListSessions";
    let page: Vec<v1::SessionRowsPage> = call(&daemon, method, question, 1).unwrap();
    assert_eq!((page[0].sessions[0].session_id.as_str(), page[0].total), ("failed", 3));

    let method = "agentgauge.v1.QueryService/ListAgents";
    let agents: Vec<v1::AgentsPage> =
        call(&daemon, method, v1::ListAgentsRequest::default(), 1).unwrap();
    assert_eq!(agents[0].agents[0].traces, 4);
    assert!(agents[0].agents[0].windows.contains_key("last_50"));

    let method = "agentgauge.v1.QueryService/WatchAgents";
    let told: Vec<v1::Changes> =
        call(&daemon, method, v1::WatchAgentsRequest::default(), 1).unwrap();
    assert_eq!(told[0].agents[0].agent_name(), "helper");

    let method = "agentgauge.v1.QueryService/GetSession";
    let question = v1::GetSessionRequest {
        session_id: "nobody".to_owned(),
        ..v1::GetSessionRequest::default()
    };
    let refused = call::<_, v1::SessionView>(&daemon, method, question, 1).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}

#[test]
fn reflection_tells_the_service() {
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
    let daemon = Daemon::start();
    let method = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let question = ServerReflectionRequest { host: String::new(), message_request };
    let told: Vec<ServerReflectionResponse> = call(&daemon, method, question, 1).unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = &told[0].message_response else {
        return assert_eq!(format!("{told:?}"), "a list of services");
    };
    assert!(services.service.iter().any(|service| service.name == "agentgauge.v1.QueryService"));
}

fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Fails unless a value is what its schema says.
fn fits(value: &Value, schema: &Value) {
    let mut whole = schema.clone();
    whole["components"] = document()["components"].clone();
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let problems: Vec<_> = validator
        .iter_errors(value)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{problems:#?} in {value:#}");
}

#[test]
fn every_answer_is_what_the_description_says() {
    let daemon = fed();
    let described = ask(&daemon, "/api/v1/openapi.json");
    // Too long to be shown if they differ at the end.
    let is_current = described == document();
    assert!(is_current, "docs/openapi.json is stale: save /api/v1/openapi.json there");
    let trace = format!("/api/v1/traces/{:032x}", 3);
    for (path, asked) in [
        ("/api/v1/agents", "/api/v1/agents"),
        ("/api/v1/fleet", "/api/v1/fleet"),
        ("/api/v1/problems", "/api/v1/problems"),
        ("/api/v1/about", "/api/v1/about"),
        ("/api/v1/agents/history", "/api/v1/agents/history?service_name=shop&agent_name=helper"),
        ("/api/v1/sessions", "/api/v1/sessions"),
        ("/api/v1/sessions", "/api/v1/sessions?detail=row&sort=cost"),
        ("/api/v1/sessions/{id}", "/api/v1/sessions/looping"),
        ("/api/v1/traces/{id}", trace.as_str()),
    ] {
        let content = &described["paths"][path]["get"]["responses"]["200"]["content"];
        let answer = ask(&daemon, asked);
        assert_eq!(answer["error"], Value::Null, "{asked}");
        fits(&answer, &content["application/json"]["schema"]);
    }
    let error = json!({ "$ref": "#/components/schemas/Error" });
    fits(&ask(&daemon, "/api/v1/sessions/nobody"), &error);
    fits(&ask(&daemon, "/api/v1/sessions?sort=best"), &error);
    // Every path and parameter that is described is understood, and no other.
    for (path, item) in described["paths"].as_object().unwrap() {
        let Some(get) = item.get("get").filter(|_| !path.ends_with("events")) else { continue };
        let other = ask(&daemon, &format!("{}?colour=red", path.replace("{id}", &"1".repeat(32))));
        let message = other["error"]["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("unknown field `colour`") || path.ends_with(".json"),
            "{path}: {other}"
        );
        for parameter in get["parameters"].as_array().unwrap() {
            let name = parameter["name"].as_str().unwrap();
            if parameter["in"] == "query" {
                let path = path.replace("{id}", &"0".repeat(31)).replace("traces/0", "traces/10");
                let answer = ask(&daemon, &format!("{path}?{name}="));
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                assert!(!message.contains("unknown field"), "{path}: {name}: {message}");
            }
        }
    }
}

/// What came back whole: the status, and the body.
fn answer(daemon: &Daemon, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(&daemon.http).unwrap();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: application/json\r\n"), "{path}: {head}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The code of an error. The error contains nothing of the request, nor of the daemon's internals.
fn refused(daemon: &Daemon, (method, path): (&str, &str), status: u16) -> String {
    let (told, body) = answer(daemon, method, path);
    assert_eq!(told, status, "{path}: {body}");
    assert!(body.len() < 700, "{path}: {} bytes", body.len());
    for detail in ["HOSTILE", "<", "src/", ".rs", "panicked", "agentgauge::", "127.0.0.1"] {
        assert!(!body.contains(detail), "{path}: {body}");
    }
    let body: Value = serde_json::from_str(&body).unwrap();
    let error = body["error"].as_object().unwrap();
    assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message"], "{path}");
    error["code"].as_str().unwrap().to_owned()
}

#[test]
fn what_is_only_posted_is_refused_in_the_same_form() {
    let daemon = fed();
    for path in ["/api/v1/reports", "/api/v1/deployments", "/api/v1/agents/baseline"] {
        assert_eq!(refused(&daemon, ("GET", path), 405), "method_not_allowed");
        let (status, body) = daemon.post(path, "{\"report\": ");
        assert_eq!(status, 400, "{path}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["code"], "malformed", "{path}: {body}");
    }
}

#[test]
fn ids_that_are_not_held_are_not_found_and_not_repeated() {
    let daemon = fed();
    let long = "HOSTILE".repeat(1_000);
    for id in ["nobody", "%3Cscript%3EHOSTILE", "..%2F..%2Fetc%2Fpasswd", "%00", "%E2%80%AE", &long]
    {
        let code = refused(&daemon, ("GET", &format!("/api/v1/sessions/{id}")), 404);
        assert_eq!(code, "session_not_found");
        let path = format!("/api/v1/sessions/fine?tenant={id}");
        assert_eq!(refused(&daemon, ("GET", &path), 404), "session_not_found");
        let path = format!("/api/v1/traces/{:032x}?session={id}", 1);
        assert_eq!(refused(&daemon, ("GET", &path), 404), "trace_not_found");
        let path = format!("/api/v1/agents/history?service_name={id}");
        assert_eq!(refused(&daemon, ("GET", &path), 404), "agent_not_found");
        for path in [format!("/runbook/{id}"), format!("/assets/{id}"), format!("/api/v1/{id}")] {
            assert_eq!(refused(&daemon, ("GET", &path), 404), "not_found");
        }
    }
    assert_eq!(
        refused(&daemon, ("GET", &format!("/api/v1/traces/{:032x}", 99)), 404),
        "trace_not_found"
    );
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/api/v1/agents", "/api/v1/sessions/fine", "/metrics", "/"] {
            assert_eq!(refused(&daemon, (method, path), 405), "method_not_allowed");
        }
    }
}

#[test]
fn a_session_is_found_by_its_whole_id_though_that_was_cut() {
    let daemon = Daemon::start();
    // Cut between two characters, at 255 bytes.
    let id = format!("s{}", "\u{fc}".repeat(200));
    let spans = crate::support::turn::spans().replace("s-judged", &id);
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
    let asked = format!("s{}", "%C3%BC".repeat(200));
    daemon.settles_at("agentgauge_traces_total{", 1.0);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    for path in [
        format!("/api/v1/sessions/{asked}"),
        format!("/api/v1/traces/{trace}?session={asked}"),
        format!("/api/v1/sessions?id={asked}"),
    ] {
        let (status, body) = answer(&daemon, "GET", &path);
        assert!(status == 200 && body.contains(trace), "{path}: {body}");
    }
}

#[test]
fn filters_that_cannot_be_read_are_told_in_a_few_words() {
    let daemon = Daemon::start();
    let long = "HOSTILE".repeat(1_000);
    for path in [
        "/api/v1/sessions?limit=",
        "/api/v1/sessions?limit=-1",
        "/api/v1/sessions?limit=1e9",
        "/api/v1/sessions?limit=99999999999999999999",
        "/api/v1/sessions?limit=1&limit=2",
        "/api/v1/sessions?offset=100001",
        "/api/v1/sessions?open=HOSTILE",
        "/api/v1/sessions?sort=reliability%27--",
        "/api/v1/sessions?detail=everything",
        "/api/v1/agents?offset=100001",
        "/api/v1/agents?tenants=x",
        "/api/v1/fleet?limit=x",
        "/api/v1/agents/history?agent=x",
        "/api/v1/events?limit=1",
        "/api/v1/sessions/fine?session=x",
        "/api/v1/traces/0",
        "/api/v1/traces/00000000000000000000000000000000",
        "/api/v1/traces/+1111111111111111111111111111111",
        "/api/v1/traces/HOSTILE",
        "/api/v1/sessions/%FF",
        &format!("/api/v1/traces/{long}"),
        &format!("/api/v1/sessions?offset={}", "9".repeat(6_000)),
    ] {
        assert_eq!(refused(&daemon, ("GET", path), 400), "bad_request");
    }
    // An unknown value is named, but no more of it than fits.
    let (status, body) = answer(&daemon, "GET", &format!("/api/v1/sessions?{long}=1"));
    assert_eq!(status, 400);
    assert!(body.len() < 700, "{} bytes", body.len());
}

#[test]
fn pages_have_an_end_however_much_is_asked_for() {
    let daemon = fed();
    let most = u64::MAX;
    for path in ["sessions", "sessions?detail=row", "agents", "fleet"] {
        let query = if path.contains('?') { "&" } else { "?" };
        let page = ask(&daemon, &format!("/api/v1/{path}{query}limit={most}"));
        assert!(page["total"].as_u64() > Some(0), "{path}: {page}");
        let page = ask(&daemon, &format!("/api/v1/{path}{query}limit={most}&offset=100000"));
        let list = if path.starts_with("sessions") { "sessions" } else { "agents" };
        assert_eq!(page[list], json!([]), "{path}");
        let page = ask(&daemon, &format!("/api/v1/{path}{query}limit=0"));
        assert_eq!(page[list], json!([]), "{path}");
    }
}

#[test]
fn a_reader_that_does_not_read_is_cut_and_holds_nobody_up() {
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__SERVER__READ_TIMEOUT", "1s"),
        ("AGENTGAUGE__SERVER__MAX_CONNECTIONS", "2"),
    ]);
    let before = daemon.metric("process_resident_memory_bytes");
    let asks_on = |mut stream: TcpStream| {
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let question = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
        // Until the daemon has stopped to read on.
        while stream.write_all(question.as_bytes()).is_ok() {}
        stream
    };
    let slow = [(); 2].map(|()| asks_on(TcpStream::connect(&daemon.http).unwrap()));
    // Both places are theirs until they are cut.
    assert_eq!(answer(&daemon, "GET", "/api/v1/agents").0, 200);
    let grown = daemon.metric("process_resident_memory_bytes") - before;
    assert!(grown < 64e6, "answers that nobody takes pile up: {grown} bytes");
    drop(slow);
}

#[test]
fn over_grpc_bad_input_is_told_likewise() {
    let daemon = fed();
    let hostile = || "<HOSTILE>".repeat(500);
    let service = |method: &str| format!("agentgauge.v1.QueryService/{method}");
    let session =
        v1::GetSessionRequest { session_id: hostile(), ..v1::GetSessionRequest::default() };
    let session_id = "fine".to_owned();
    let foreign = v1::GetSessionRequest { session_id, tenant: hostile(), scope: None };
    let trace = |trace_id: String| v1::ExplainTraceRequest { trace_id, ..Default::default() };
    let history = v1::GetAgentHistoryRequest { service_name: hostile(), ..Default::default() };
    let list = v1::ListSessionsRequest { offset: Some(u64::MAX), ..Default::default() };
    let get = |question| {
        call::<_, v1::SessionView>(&daemon, &service("GetSession"), question, 1).unwrap_err()
    };
    let explain = |question| {
        call::<_, v1::TraceExplanation>(&daemon, &service("ExplainTrace"), question, 1).unwrap_err()
    };
    for (status, code) in [
        (get(session), tonic::Code::NotFound),
        (get(foreign), tonic::Code::NotFound),
        (explain(trace(hostile())), tonic::Code::InvalidArgument),
        (explain(trace("9".repeat(32))), tonic::Code::NotFound),
        (
            call::<_, v1::HistoryView>(&daemon, &service("GetAgentHistory"), history, 1)
                .unwrap_err(),
            tonic::Code::NotFound,
        ),
        (
            call::<_, v1::SessionRowsPage>(&daemon, &service("ListSessions"), list, 1).unwrap_err(),
            tonic::Code::InvalidArgument,
        ),
        (
            // Another message's bytes: a number where a text should be.
            call::<_, v1::SessionView>(
                &daemon,
                &service("GetSession"),
                v1::SessionRowsPage { total: 1, ..Default::default() },
                1,
            )
            .unwrap_err(),
            tonic::Code::Internal,
        ),
        (
            call::<_, v1::SessionView>(&daemon, &service("DropAll"), v1::Changes::default(), 1)
                .unwrap_err(),
            tonic::Code::Unimplemented,
        ),
    ] {
        assert_eq!(status.code(), code, "{status:?}");
        assert!(
            !status.message().contains("HOSTILE") && status.message().len() < 512,
            "{status:?}"
        );
    }
    let huge = v1::ListSessionsRequest { limit: Some(u64::MAX), ..Default::default() };
    let page: Vec<v1::SessionRowsPage> = call(&daemon, &service("ListSessions"), huge, 1).unwrap();
    assert_eq!((page[0].sessions.len(), page[0].total), (3, 3));
}
