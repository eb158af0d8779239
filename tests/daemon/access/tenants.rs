//! A tenant sees only its own data: over HTTP, in the stream of changes, and over gRPC.

use std::collections::BTreeSet;

use agentgauge::export::grpc::v1;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::support::{
    BANK, LONG, OPERATOR, Running, SCRAPER, SHOP, anonymous, eventually, plain, post, spans, text,
};

#[tokio::test]
async fn a_tenant_is_who_sends_and_sees_only_its_own() {
    let running = Running::with_tokens().await;
    let (first, second) = ("1".repeat(32), "2".repeat(32));
    // The same session id; then the shop uses the id of the bank's trace for one of its own.
    for (token, trace) in [(SHOP, &first), (BANK, &second), (SHOP, &second)] {
        assert_eq!(running.export(token, &spans(trace, "same")).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    for (token, traces) in [(SHOP, vec![&first, &second]), (BANK, vec![&second])] {
        eventually("the traces are evaluated", async || {
            running.json("/api/v1/sessions/same", token).await["traces_evaluated"] == traces.len()
        })
        .await;
        let session = running.json("/api/v1/sessions/same", token).await;
        let held = session["traces"].as_array().unwrap().iter();
        let held: BTreeSet<_> = held.map(|trace| trace["trace_id"].to_string()).collect();
        assert_eq!(
            held,
            traces.into_iter().map(|trace| json!(trace).to_string()).collect(),
            "{session}"
        );
        // The requested tenant makes no difference to these identities.
        let asked = running.json("/api/v1/sessions/same?tenant=bank", token).await;
        assert_eq!(asked, session);
        let sessions = running.json("/api/v1/sessions", token).await;
        assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
    }
    let session = running.json("/api/v1/sessions/same?tenant=bank", OPERATOR).await;
    assert_eq!(session["traces"][0]["trace_id"], json!(second));
    let missing = running.get("/api/v1/sessions/same", OPERATOR).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);

    both_are_named(&running).await;
    eventually("both agents are on the page", async || {
        let page = text(&running.get("/metrics", SCRAPER).await);
        page.contains("tenant=\"shop\"") && page.contains("tenant=\"bank\"")
    })
    .await;
    let page = text(&running.get("/metrics", SCRAPER).await);
    assert!(!page.contains("liar"), "{page}");
    assert!(!page.contains("agentgauge_spans_rejected_total{"), "no span is dropped: {page}");
    let page = text(&running.get("/metrics", SHOP).await);
    assert!(page.contains("tenant=\"shop\"") && !page.contains("bank"), "{page}");
    assert!(!page.contains("agentgauge_requests_refused_total"), "{page}");
    let agents = running.json("/api/v1/agents", BANK).await;
    assert_eq!(agents["agents"].as_array().unwrap().len(), 1, "{agents}");
    assert_eq!(
        running.json("/api/v1/agents", OPERATOR).await["agents"].as_array().unwrap().len(),
        2
    );
    running.daemon.stop().await;
}

#[tokio::test]
async fn an_operator_names_the_tenant_whose_agents_a_deployment_is_of() {
    let (running, _) = with_tenants().await;
    let deploy = async |path: &str, token: &str, name: &str| {
        let body = json!({ "service_name": "support", "name": name });
        let request = post(path, &format!("Bearer {token}"), &body);
        assert_eq!(plain(running.http(), request).await.status, StatusCode::OK);
    };
    deploy("/api/v1/deployments?tenant=bank", OPERATOR, "by the operator").await;
    // A tenant's data is its own, whatever it names.
    deploy("/api/v1/deployments?tenant=bank", SHOP, "by the shop").await;
    for (token, name) in [(BANK, "by the operator"), (SHOP, "by the shop")] {
        eventually("the deployment is shown", async || {
            let page = running.json("/api/v1/agents", token).await;
            let deployments = page["agents"][0]["deployments"].as_array().cloned();
            let names = deployments.iter().flatten().map(|one| one["name"].clone());
            names.collect::<Vec<_>>() == [json!(name)]
        })
        .await;
    }
    running.daemon.stop().await;
}

#[tokio::test]
async fn who_does_not_see_all_tenants_names_none() {
    let options = r#"[access]
    open = ["ingest", "read"]
    tokens = [
      { name = "shop", env = "SHOP", tenant = "shop", may = ["ingest", "read"] },
      { name = "collector", env = "BANK", may = ["ingest"] },
    ]
    "#;
    let running = Running::start(&[], options).await;
    for path in ["/api/v1/deployments", "/api/v1/agents/baseline"] {
        let named = format!("{path}?tenant=shop");
        let ask = |path: &str, token: &str| {
            post(path, &format!("Bearer {token}"), &json!({ "service_name": "support" }))
        };
        for request in [ask(&named, BANK), anonymous(ask(&named, ""))] {
            let answer = plain(running.http(), request).await;
            let said = String::from_utf8_lossy(&answer.body);
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}: {said}");
            assert!(said.contains("`?tenant=`"), "{said}");
        }
        // A tenant's own name is accepted, and a sender without a tenant may name the data of no tenant.
        for request in [ask(&named, SHOP), ask(path, BANK), anonymous(ask(path, ""))] {
            let answer = plain(running.http(), request).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {:?}", answer.body);
        }
    }
    running.daemon.stop().await;
}

/// Waits until both agents are on the board by name: before their traces are done, nothing has named them.
async fn both_are_named(running: &Running) {
    eventually("both agents are on the board by name", async || {
        let board = running.daemon.board().sorted();
        board.len() == 2 && board.iter().all(|update| !update.agent.agent_name.is_empty())
    })
    .await;
}

/// A shop and a bank with agents of the same names, and sessions of the same id; the bank's trace is the second.
async fn with_tenants() -> (Running, [String; 2]) {
    let running = Running::with_tokens().await;
    let traces = ["1".repeat(32), "2".repeat(32)];
    for (token, trace) in [SHOP, BANK].into_iter().zip(&traces) {
        assert_eq!(running.export(token, &spans(trace, "same")).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    both_are_named(&running).await;
    (running, traces)
}

fn tenants(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["tenant"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn whatever_is_asked_a_tenant_is_told_of_its_own() {
    let (running, [first, second]) = with_tenants().await;
    for path in ["agents", "agents?tenant=bank", "fleet", "fleet?tenant=bank"] {
        let page = running.json(&format!("/api/v1/{path}"), SHOP).await;
        assert_eq!((tenants(&page["agents"]), &page["total"]), (vec!["shop"], &json!(1)), "{path}");
    }
    for path in ["sessions", "sessions?detail=row", "sessions?detail=row&tenant=bank&sort=recent"] {
        let page = running.json(&format!("/api/v1/{path}"), SHOP).await;
        assert_eq!(
            (&page["sessions"][0]["agent"]["tenant"], &page["total"]),
            (&json!("shop"), &json!(1))
        );
        assert_eq!(page["sessions"].as_array().unwrap().len(), 1, "{path}");
    }
    for (asked, own, other) in [(SHOP, &first, &second), (BANK, &second, &first)] {
        let explained = running.json(&format!("/api/v1/traces/{own}"), asked).await;
        assert_eq!(explained["trace"]["trace_id"], json!(own), "{explained}");
        for query in ["", "?session=same", "?tenant=shop", "?tenant=bank", "?tenant="] {
            let foreign = running.get(&format!("/api/v1/traces/{other}{query}"), asked).await;
            assert_eq!(foreign.status, StatusCode::NOT_FOUND, "{query}");
        }
    }
    let history = "/api/v1/agents/history?service_name=support&agent_name=support";
    for (query, token, tenant) in
        [("&tenant=bank", SHOP, "shop"), ("", BANK, "bank"), ("&tenant=bank", OPERATOR, "bank")]
    {
        let past = running.json(&format!("{history}{query}"), token).await;
        assert_eq!(past["agent"]["tenant"], tenant, "{past}");
    }
    assert_eq!(running.get(history, OPERATOR).await.status, StatusCode::NOT_FOUND);
    running.daemon.stop().await;
}

#[tokio::test]
async fn who_has_no_tenant_sees_all_and_can_ask_for_one() {
    let (running, [_, second]) = with_tenants().await;
    for path in ["/api/v1/agents", "/api/v1/fleet"] {
        let page = running.json(path, OPERATOR).await;
        assert_eq!((tenants(&page["agents"]), &page["total"]), (vec!["bank", "shop"], &json!(2)));
        let page = running.json(&format!("{path}?tenant=bank"), OPERATOR).await;
        assert_eq!(tenants(&page["agents"]), ["bank"]);
    }
    for detail in ["row", "full"] {
        let path = format!("/api/v1/sessions?detail={detail}");
        let page = running.json(&path, OPERATOR).await;
        assert_eq!((page["sessions"].as_array().unwrap().len(), &page["total"]), (2, &json!(2)));
        let page = running.json(&format!("{path}&tenant=bank"), OPERATOR).await;
        assert_eq!(
            (&page["sessions"][0]["agent"]["tenant"], &page["total"]),
            (&json!("bank"), &json!(1))
        );
    }
    let path = format!("/api/v1/traces/{second}");
    assert_eq!(running.get(&format!("{path}?tenant=bank"), OPERATOR).await.status, StatusCode::OK);
    // A query with only the id of a trace finds the trace, and its tenant.
    assert_eq!(running.json(&path, OPERATOR).await["tenant"], "bank");
    assert_eq!(
        running.get(&format!("{path}?tenant="), OPERATOR).await.status,
        StatusCode::NOT_FOUND
    );
    running.daemon.stop().await;
}

/// The data of the first events of the stream of changes, until this agent's tenant is mentioned.
async fn events(running: &Running, token: &str, query: &str, until: &str) -> String {
    let mut stream = TcpStream::connect(running.http()).await.unwrap();
    let head = format!(
        "GET /api/v1/events{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut told, mut piece) = (String::new(), [0; 4096]);
    while !told.contains(until) {
        let read = timeout(LONG, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "{told}");
        told.push_str(str::from_utf8(&piece[..read]).unwrap());
    }
    told
}

#[tokio::test]
async fn changes_are_told_to_whom_they_concern() {
    let (running, _) = with_tenants().await;
    let shop = "\"tenant\":\"shop\"";
    let bank = "\"tenant\":\"bank\"";
    for query in ["", "?tenant=bank", "?service_name=support"] {
        let told = events(&running, SHOP, query, shop).await;
        assert!(!told.contains("bank"), "{told}");
    }
    let told = events(&running, OPERATOR, "", shop).await;
    assert!(told.contains(bank), "{told}");
    assert!(!events(&running, OPERATOR, "?tenant=bank", bank).await.contains("shop"));
    running.daemon.stop().await;
}

/// Asks over gRPC; the first answer.
async fn call<Q, A>(running: &Running, method: &str, token: &str, question: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let endpoint = Endpoint::from_shared(format!("http://{}", running.http())).unwrap();
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    let path = format!("/{method}").parse().unwrap();
    let mut question = tonic::Request::new(futures_util::stream::iter([question]));
    let value = format!("Bearer {token}").parse().unwrap();
    question.metadata_mut().insert("authorization", value);
    let mut answers = client.streaming(question, path, codec).await?.into_inner();
    Ok(timeout(LONG, answers.message()).await.unwrap()?.unwrap())
}

#[tokio::test]
async fn over_grpc_a_tenant_is_told_of_its_own() {
    let (running, [first, second]) = with_tenants().await;
    let bank = || Some("bank".to_owned());
    let service = |method: &str| format!("agentgauge.v1.QueryService/{method}");
    let listed = v1::ListAgentsRequest { tenant: bank(), ..v1::ListAgentsRequest::default() };
    for (token, expected) in [(SHOP, "shop"), (OPERATOR, "bank")] {
        let page: v1::AgentsPage =
            call(&running, &service("ListAgents"), token, listed.clone()).await.unwrap();
        assert_eq!((page.total, page.agents[0].tenant()), (1, expected));
        let page: v1::FleetPage =
            call(&running, &service("ListFleet"), token, listed.clone()).await.unwrap();
        assert_eq!((page.total, page.agents[0].tenant()), (1, expected));
        let asked = v1::GetAgentHistoryRequest {
            service_name: "support".to_owned(),
            agent_name: "support".to_owned(),
            tenant: "bank".to_owned(),
            ..v1::GetAgentHistoryRequest::default()
        };
        let past: v1::HistoryView =
            call(&running, &service("GetAgentHistory"), token, asked).await.unwrap();
        assert_eq!(past.agent.unwrap().tenant(), expected);
        let asked =
            v1::ListSessionsRequest { tenant: bank(), ..v1::ListSessionsRequest::default() };
        let page: v1::SessionRowsPage =
            call(&running, &service("ListSessions"), token, asked).await.unwrap();
        assert_eq!((page.total, page.sessions[0].agent.clone().unwrap().tenant()), (1, expected));
        let asked = v1::GetSessionRequest {
            session_id: "same".to_owned(),
            tenant: "bank".to_owned(),
            scope: None,
        };
        let session: v1::SessionView =
            call(&running, &service("GetSession"), token, asked).await.unwrap();
        assert_eq!(session.agent.unwrap().tenant(), expected);
        let asked = v1::WatchAgentsRequest { tenant: bank(), ..v1::WatchAgentsRequest::default() };
        let changes: v1::Changes =
            call(&running, &service("WatchAgents"), token, asked).await.unwrap();
        let told: Vec<_> = changes.agents.iter().map(v1::FleetRow::tenant).collect();
        assert_eq!(told, [expected]);
    }
    for (trace, code) in [(first, Code::Ok), (second, Code::NotFound)] {
        let asked = v1::ExplainTraceRequest {
            trace_id: trace,
            session_id: None,
            tenant: Some("bank".to_owned()),
            scope: None,
        };
        let explained: Result<v1::TraceExplanation, _> =
            call(&running, &service("ExplainTrace"), SHOP, asked).await;
        assert_eq!(explained.err().map_or(Code::Ok, |status| status.code()), code);
    }
    for (token, code) in [("wrong", Code::Unauthenticated), (SCRAPER, Code::PermissionDenied)] {
        for method in [
            service("ListAgents"),
            service("WatchAgents"),
            "grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned(),
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo".to_owned(),
        ] {
            let denied: Result<v1::AgentsPage, _> =
                call(&running, &method, token, v1::ListAgentsRequest::default()).await;
            assert_eq!(denied.err().map(|status| status.code()), Some(code), "{method}");
        }
    }
    running.daemon.stop().await;
}
