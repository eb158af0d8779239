//! Tokens: answers without a valid one, and the permissions of each.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::net::TcpStream;

use super::support::{Running, SCRAPER, SHOP, anonymous, get, http2, no_spans, plain, spans};

#[tokio::test]
async fn without_a_good_token_nothing_is_answered_but_health() {
    let running = Running::with_tokens().await;
    for path in ["/healthz", "/readyz"] {
        let answer = plain(running.http(), anonymous(get(path, ""))).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
    }
    let mut bodies = Vec::new();
    for request in [
        anonymous(get("/api/v1/agents", "")),
        get("/api/v1/agents", "Bearer wrong"),
        get("/api/v1/agents", &format!("Bearer {SHOP}x")),
        get("/api/v1/agents", "Bearer "),
        get("/api/v1/agents", &format!("Digest {SHOP}")),
        get("/api/v1/nothing", "Bearer wrong"),
    ] {
        let answer = plain(running.http(), request).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        bodies.push(answer.body);
    }
    // The same answer whatever was wrong.
    bodies.dedup();
    let [body] = bodies.as_slice() else { unreachable!("{bodies:?}") };
    assert!(body.starts_with(br#"{"error":{"code":"unauthenticated""#), "{body:?}");
    assert_eq!(running.get("/api/v1/agents", SCRAPER).await.status, StatusCode::FORBIDDEN);
    assert_eq!(
        running.export(SCRAPER, &spans(&"1".repeat(32), "s")).await.status,
        StatusCode::FORBIDDEN
    );
    // A browser and a scraper can only send a user and a password.
    let basic = format!("Basic {}", base64(&format!("me:{SCRAPER}")));
    let answer = plain(running.http(), get("/metrics", &basic)).await;
    assert_eq!(answer.status, StatusCode::OK);
    let page = String::from_utf8(answer.body.to_vec()).unwrap();
    for line in [
        "agentgauge_requests_refused_total{reason=\"unauthenticated\"} 6\n",
        "agentgauge_requests_refused_total{reason=\"forbidden\"} 2\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    running.daemon.stop().await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn why_it_is_not_ready_is_for_those_who_may_read_everything() {
    use super::support::OPERATOR;
    use serde_json::json;
    let options = r#"[access]
    tokens = [
      { name = "shop", env = "SHOP", tenant = "shop", may = ["read"] },
      { name = "operator", env = "OPERATOR", may = ["read"] },
    ]
    [kafka]
    brokers = ["127.0.0.1:1"]
    "#;
    let running = Running::start(&[], options).await;
    let nobody = anonymous(get("/readyz", ""));
    for request in [nobody, get("/readyz", "Bearer x"), get("/readyz", &format!("Bearer {SHOP}"))] {
        let answer = plain(running.http(), request).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"], json!({"code": "not_ready", "message": "the log says why"}));
    }
    let body = running.json("/readyz", OPERATOR).await;
    assert!(body["error"]["message"].as_str().unwrap().contains("Kafka"), "{body}");
    running.daemon.stop().await;
}

#[tokio::test]
async fn senders_are_refused_in_their_own_words() {
    let running = Running::with_tokens().await;
    let answer = running.export("wrong", &spans(&"1".repeat(32), "s")).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["code"], 16);
    // The page, which explains how to send data, knows that a token is needed.
    assert_eq!(running.json("/api/v1/about", SHOP).await["needs_token"], true);

    let request = Request::post("/v1/traces")
        .header("content-type", "application/x-protobuf")
        .body(Full::from(vec![0; 4 << 20]))
        .unwrap();
    let answer = plain(running.otlp(), request).await;
    assert_eq!(answer.headers["content-type"], "application/x-protobuf");
    let status: tonic_types::Status = prost::Message::decode(answer.body).unwrap();
    assert_eq!(status.code, 16);

    let stream = TcpStream::connect(running.daemon.bound().otlp_grpc.unwrap()).await.unwrap();
    let mut sender = http2(stream).await;
    for (token, code) in [("wrong", "16"), (SCRAPER, "7"), (SHOP, "0")] {
        let mut request = no_spans("http");
        let bearer = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        let answer = sender.send_request(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let status = head.headers.get("grpc-status").or_else(|| trailers.get("grpc-status"));
        assert_eq!(status.unwrap(), code, "{token}");
    }
    running.daemon.stop().await;
}

#[tokio::test]
async fn every_path_of_the_api_and_the_page_needs_read() {
    let running = Running::with_tokens().await;
    for path in [
        "/",
        "/assets/app.js",
        "/api/v1/openapi.json",
        "/api/v1/agents",
        "/api/v1/agents/history",
        "/api/v1/fleet",
        "/api/v1/events",
        "/api/v1/sessions",
        "/api/v1/sessions/same",
        "/api/v1/traces/11111111111111111111111111111111",
    ] {
        let nobody = plain(running.http(), anonymous(get(path, ""))).await;
        assert_eq!(nobody.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(running.get(path, SCRAPER).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(running.get("/", SHOP).await.status, StatusCode::OK);
    running.daemon.stop().await;
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::prelude::BASE64_STANDARD.encode(text)
}
