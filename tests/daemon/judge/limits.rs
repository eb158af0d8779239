//! Which model is called, how many calls at once, for how long; and the effects of an unavailable judge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::time::Duration;

use agentgauge::engine::facts::AgentParts;
use agentgauge::judge::options::Format;
use agentgauge::judge::{JudgeOptions, Metric};
use serde_json::Value;

use crate::support::daemon::{Daemon, until};
use crate::support::endpoint::Endpoint;
use crate::support::judged::{all_judged, judged, options, request, transcript};
use crate::support::turn::spans_saying;

#[tokio::test(flavor = "multi_thread")]
async fn a_model_may_be_named_for_a_metric_and_for_an_agent() {
    let endpoint = Endpoint::start();
    let metrics = [Metric::Confidence, Metric::ToolCorrectness];
    let options = JudgeOptions {
        models: [("confidence".to_owned(), "of-confidence".to_owned())].into(),
        agent_models: [("vip".to_owned(), "of-vip".to_owned())].into(),
        ..options(&endpoint, Format::Openai, "m", &metrics)
    };
    let agent = AgentParts { agent_name: "vip".into(), ..AgentParts::default() }.into();
    let mut theirs = request(2, transcript("found"));
    theirs.agent = agent;
    let judged = all_judged(&options, vec![request(1, transcript("found")), theirs]).await;
    assert_eq!(judged.reports.len(), 4);
    // Two calls of tool_correctness each; the metric's model goes before the agent's.
    let asked = |model: &str| endpoint.asked(model).len();
    assert_eq!((asked("m"), asked("of-vip"), asked("of-confidence")), (2, 2, 2));
    let judges: BTreeMap<String, usize> =
        judged.reports.iter().fold(BTreeMap::new(), |mut sum, report| {
            *sum.entry(report.identifier.to_string()).or_default() += 1;
            sum
        });
    let expected = [("judge/m/p1", 1), ("judge/of-confidence/p1", 2), ("judge/of-vip/p1", 1)];
    assert_eq!(judges, expected.map(|(judge, often)| (judge.to_owned(), often)).into());
    assert!(endpoint.seen().iter().all(|seen| seen.body["temperature"] == 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_asked_at_once_than_may_be() {
    let endpoint = Endpoint::start();
    let options = JudgeOptions {
        concurrency: 3,
        ..options(
            &endpoint,
            Format::Openai,
            "confidence.three_at_once.always.m",
            &[Metric::Confidence],
        )
    };
    let requests = (0..8).map(|number| request(number, transcript("found"))).collect();
    let judged = all_judged(&options, requests).await;
    judged.counts("results_total{metric=\"confidence\",result=\"scored\"} 8");
    assert_eq!((endpoint.seen().len(), endpoint.most_at_once()), (8, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_answered_in_time_is_not_asked_again() {
    let endpoint = Endpoint::start();
    let options = JudgeOptions {
        deadline: Duration::from_secs(30),
        backoff: Duration::from_secs(3_600),
        ..options(
            &endpoint,
            Format::Openai,
            "confidence.server_error.once.m",
            &[Metric::Confidence],
        )
    };
    let judged = judged(&options, transcript("found")).await;
    assert_eq!((endpoint.seen().len(), judged.score("confidence")), (1, None));
    judged.counts("results_total{metric=\"confidence\",result=\"deadline\"} 1");
}

#[test]
fn a_trace_that_is_flagged_is_judged_whatever_the_rate() {
    let endpoint = Endpoint::start();
    let daemon = Daemon::judging(
        "openai",
        &endpoint.url,
        &[
            ("AGENTGAUGE__JUDGE__METRICS", "[\"confidence\"]"),
            ("AGENTGAUGE__JUDGE__SAMPLE_RATE", "0.0"),
            ("AGENTGAUGE__JUDGE__SAMPLE_RATES", "{ vip = 1.0 }"),
        ],
    );
    let said = |number: u8, agent: &str, failed: bool| {
        let mut spans: Value = serde_json::from_str(&spans_saying("Refund me", "No.")).unwrap();
        let root = &mut spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        root["attributes"][1]["value"]["stringValue"] = agent.into();
        root["status"]["code"] = if failed { 2 } else { 1 }.into();
        let spans =
            spans.to_string().replace("0af7651916cd43d", &format!("{number}af7651916cd43d"));
        let spans = spans.replace("s-judged", &format!("s-{number}"));
        assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
    };
    said(1, "a", false);
    said(2, "a", true);
    said(3, "vip", false);
    daemon
        .settles_at("agentgauge_judge_results_total{metric=\"confidence\",result=\"scored\"}", 2.0);
    daemon.metric_when("agentgauge_traces_total{", |count| count >= 1.0);
    let source = |number: u8| {
        let session: Value =
            serde_json::from_str(&daemon.get(&format!("/api/v1/sessions/s-{number}"))).unwrap();
        session["traces"][0]["signals"]["confidence"]["source"]
            .as_str()
            .unwrap_or("none")
            .to_owned()
    };
    until(|| [2, 3].map(source) == ["judge", "judge"] && source(1) != "none");
    assert_eq!([1, 2, 3].map(source), ["computed", "judge", "judge"]);
    assert_eq!(endpoint.seen().len(), 2);
    #[cfg(unix)]
    daemon.ends_well();
}

/// An address on which nothing listens.
fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

/// The values shown for agents, traces and sessions, except for times.
fn shown(daemon: &Daemon) -> BTreeSet<String> {
    let page = daemon.get("/metrics");
    let of =
        ["agentgauge_agent_", "agentgauge_trace_", "agentgauge_session_", "agentgauge_traces_"];
    let is_shown = |line: &&str| of.iter().any(|start| line.starts_with(start));
    // The time of the last arrival differs between two daemons.
    let is_time = |line: &str| line.starts_with("agentgauge_agent_last_trace_timestamp_seconds");
    page.lines().filter(|line| is_shown(line) && !is_time(line)).map(str::to_owned).collect()
}

/// Four turns of an agent, all of them scored.
fn turns(daemon: &Daemon) {
    for number in 0_u8..4 {
        let spans = spans_saying("Refund me", "You have been refunded.");
        let spans = spans.replace("0af7651916cd43d", &format!("{number}af7651916cd43d"));
        assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
        // A verdict is that of the moment when its trace was done: one after the other, or it is another's turn that is the first.
        daemon.settles_at("agentgauge_traces_total{", f64::from(number) + 1.0);
    }
}

/// A daemon whose judge gets every trace, and is given up after the first failure.
fn judging((url, model): (&str, &str), usd_per_hour: &str) -> Daemon {
    let metrics = Metric::ALL.map(|metric| format!("{:?}", metric.name())).join(", ");
    Daemon::judging(
        "openai",
        url,
        &[
            ("AGENTGAUGE__JUDGE__MODEL", model),
            ("AGENTGAUGE__JUDGE__METRICS", &format!("[{metrics}]")),
            ("AGENTGAUGE__JUDGE__CONSTRAINTS", "{ no_pii = \"Shows no personal data.\" }"),
            ("AGENTGAUGE__JUDGE__USD_PER_HOUR", usd_per_hour),
            ("AGENTGAUGE__JUDGE__MAX_FAILURES", "1"),
            ("AGENTGAUGE__JUDGE__MAX_ATTEMPTS", "1"),
            ("AGENTGAUGE__JUDGE__PAUSE", "1h"),
        ],
    )
}

/// No trace of the session has anything from a judge, nor in place of it.
fn nothing_is_judged(session: &str) {
    let session: Value = serde_json::from_str(session).unwrap();
    let traces = session["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 4);
    for signals in traces.iter().map(|trace| trace["signals"].as_object().unwrap()) {
        assert!(signals.values().all(|signal| signal["source"] != "judge"), "{signals:?}");
        for name in judged_alone() {
            let signal = signals.get(name);
            assert!(signal.is_none_or(|signal| signal["score"].is_null()), "{name}: {signals:?}");
        }
    }
}

/// Metrics for which there is nothing to compute.
fn judged_alone() -> impl Iterator<Item = &'static str> {
    let names = Metric::ALL.into_iter().map(Metric::name);
    names.filter(|name| !["confidence", "argument_correctness"].contains(name))
}

#[test]
fn a_judge_that_is_away_leaves_what_depends_on_it_absent() {
    let without = Daemon::start();
    turns(&without);
    let (dead, endpoint) = (dead(), Endpoint::start());
    endpoint.model_answers("mumbling", Value::String("I would rather not say.".to_owned()));
    // A judge that does not answer, one that costs more than there is, and one with useless answers.
    for (url, model, usd_per_hour, why) in [
        (&dead, "m", "1000.0", "endpoint_down"),
        (&endpoint.url, "m", "0.000001", "over_budget"),
        (&endpoint.url, "mumbling", "1000.0", "not_json"),
    ] {
        let daemon = judging((url, model), usd_per_hour);
        turns(&daemon);
        if model == "m" {
            daemon.settles_at("agentgauge_judge_degraded ", 1.0);
        }
        let left =
            format!("agentgauge_judge_results_total{{metric=\"plan_quality\",result=\"{why}\"}}");
        daemon.settles_at(&left, 4.0);
        let page = daemon.get("/metrics");
        let some = ["result=\"scored\"", "result=\"nothing\""].map(|result| page.contains(result));
        assert_eq!(some, [false, false], "{page}");
        // What it shows is what a daemon shows that has no judge: what can be computed, and nothing in place of the rest.
        let other = || -> Vec<String> {
            shown(&daemon).symmetric_difference(&shown(&without)).cloned().collect()
        };
        // A gauge may be a little behind.
        until(|| other().is_empty());
        assert!(other().is_empty(), "{:#?}", other());
        nothing_is_judged(&daemon.get("/api/v1/sessions/s-judged"));
        #[cfg(unix)]
        daemon.ends_well();
    }
    assert!(endpoint.asked("m").is_empty());
    let page = shown(&without);
    for name in judged_alone() {
        let signal = format!("signal=\"{name}\"");
        let is_said = |line: &&String| !line.contains("verdict=\"skipped\"");
        let said: Vec<_> =
            page.iter().filter(|line| line.contains(&signal)).filter(is_said).collect();
        assert!(said.is_empty(), "{said:#?}");
    }
}
