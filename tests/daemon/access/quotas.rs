//! Data of one tenant takes nothing from another one's share of the bounds.

use http::StatusCode;
use serde_json::{Value, json};

use super::support::{BANK, Running, SCRAPER, SHOP, eventually, spans, text};
use crate::support::account::{Account, sum};

/// Room for four agents and eight sessions, for two tenants.
async fn small() -> Running {
    let options = r#"[access]
    tokens = [
      { name = "shop", env = "SHOP", tenant = "shop", may = ["ingest", "read", "metrics"] },
      { name = "bank", env = "BANK", tenant = "bank", may = ["ingest", "read", "metrics"] },
      { name = "scraper", file = "{}/scraper", may = ["metrics"] },
    ]
    [engine]
    shards = 1
    [assemble]
    trace_idle = "50ms"
    [agents]
    max_agents = 4
    [session]
    max_sessions = 8
    "#;
    Running::start(&[("scraper", SCRAPER)], options).await
}

/// One model call of an agent of this name.
fn of_agent(number: usize, agent: &str) -> Value {
    let mut request =
        spans(&format!("{:016x}", number + 1).repeat(2), &format!("session-{number}"));
    request["resourceSpans"][0]["resource"]["attributes"][0]["value"] =
        json!({"stringValue": agent});
    request
}

async fn agents(running: &Running, token: &str) -> Vec<Value> {
    let agents = running.json("/api/v1/agents", token).await;
    agents["agents"].as_array().unwrap().iter().map(|row| row["service_name"].clone()).collect()
}

/// All of this many traces with one span each are counted, of every agent and session: as done, or as evicted with their session
/// before that.
async fn adds_up(running: &Running, sent: u64) {
    let page = async || text(&running.get("/metrics", SCRAPER).await);
    let held = async || {
        let page = page().await;
        sum(&page, "agentgauge_traces_total", "")
            + sum(&page, "agentgauge_limits_reached_total", "sessions_trace_not_done")
    };
    eventually("every trace is counted", async || held().await == sent).await;
    Account { sent, held: held().await, ..Account::default() }.adds_up("", &page().await);
}

#[tokio::test]
async fn agents_of_one_tenant_keep_no_other_s_new_one_out() {
    let running = small().await;
    for number in 0..40 {
        let request = of_agent(number, &format!("shop-{number}"));
        assert_eq!(running.export(SHOP, &request).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    eventually("the shop has its share", async || agents(&running, SHOP).await.len() == 2).await;
    assert_eq!(running.export(BANK, &of_agent(99, "teller")).await.status, StatusCode::OK);
    running.daemon.flush().await;
    eventually("the bank's agent has series", async || {
        let page = text(&running.get("/metrics", BANK).await);
        page.contains("service_name=\"teller\"")
    })
    .await;
    assert_eq!(agents(&running, BANK).await, [json!("teller")]);
    let page = text(&running.get("/metrics", SCRAPER).await);
    assert!(page.contains("tenant_overflow"), "{page}");
    adds_up(&running, 41).await;
    running.daemon.stop().await;
}

#[tokio::test]
async fn sessions_of_one_tenant_push_out_no_other_s() {
    let running = small().await;
    for number in 0..4 {
        assert_eq!(running.export(BANK, &of_agent(number, "teller")).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    let held = async |token: &str| {
        let sessions = running.json("/api/v1/sessions", token).await;
        sessions["sessions"].as_array().unwrap().len()
    };
    eventually("the bank's sessions are there", async || held(BANK).await == 4).await;
    for number in 10..50 {
        assert_eq!(running.export(SHOP, &of_agent(number, "clerk")).await.status, StatusCode::OK);
    }
    running.daemon.flush().await;
    eventually("the shop's last session is evaluated", async || {
        running.json("/api/v1/sessions/session-49", SHOP).await["traces_evaluated"] == 1
    })
    .await;
    assert_eq!((held(BANK).await, held(SHOP).await), (4, 4));
    adds_up(&running, 44).await;
    running.daemon.stop().await;
}
