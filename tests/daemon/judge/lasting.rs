//! The judge's answers outlive the process: no answer is paid for twice, and open questions are asked again.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::Path;

use agentgauge::judge::{Metric, Stage};
use serde_json::{Value, json};

use crate::support::daemon::{Daemon, until};
use crate::support::endpoint::Endpoint;
use crate::support::turn::{spans, spans_saying};

/// A model that does not answer the call for the plan the first time that it is asked.
const MODEL: &str = "plan.timeout.once.m";

/// Dollars of one call to the scripted endpoint: 100 tokens at 5 and 10 at 25 a million.
const CALL_USD: f64 = 0.000_75;

/// The calls for all metrics of a trace without rules.
const CALLS: usize = 13;

fn start(directory: &Path, endpoint: &Endpoint, others: &[(&str, &str)]) -> Daemon {
    let metrics = Metric::ALL.map(|metric| format!("{:?}", metric.name())).join(", ");
    let metrics = format!("[{metrics}]");
    let mut environment = vec![
        ("AGENTGAUGE__STORE__DURABILITY", "fsync"),
        ("AGENTGAUGE__STORE__DIRECTORY", directory.to_str().unwrap()),
        ("AGENTGAUGE__JUDGE__FORMAT", "openai"),
        ("AGENTGAUGE__JUDGE__URL", &endpoint.url),
        ("AGENTGAUGE__JUDGE__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__JUDGE__MODEL", MODEL),
        ("AGENTGAUGE__JUDGE__METRICS", &metrics),
        ("AGENTGAUGE__JUDGE__SAMPLE_RATE", "1.0"),
        ("AGENTGAUGE__JUDGE__TIMEOUT", "1h"),
    ];
    environment.extend(others);
    Daemon::start_with(&environment)
}

fn send(daemon: &Daemon, spans: &str) {
    let (status, answer) = daemon.post_to(&daemon.otlp_http, "/v1/traces", spans);
    assert_eq!(status, 200, "{answer}");
}

/// How often each stage was asked.
fn asked(endpoint: &Endpoint) -> BTreeMap<Stage, usize> {
    let mut often = BTreeMap::new();
    endpoint.asked(MODEL).into_iter().for_each(|stage| *often.entry(stage).or_default() += 1);
    often
}

/// The judged scores of a session's only trace.
fn judged(daemon: &Daemon, session: &str) -> BTreeMap<String, f64> {
    let session = daemon.get(&format!("/api/v1/sessions/{session}"));
    let session: Value = serde_json::from_str(&session).unwrap_or_default();
    let signals = session["traces"][0]["signals"].as_object().cloned().unwrap_or_default();
    let judged = signals.into_iter().filter(|(_, signal)| signal["source"] == "judge");
    judged.filter_map(|(name, signal)| Some((name, signal["score"].as_f64()?))).collect()
}

/// A daemon that has asked for the plan and waits.
fn waits_for_the_plan(directory: &Path, endpoint: &Endpoint) -> Daemon {
    let daemon = start(directory, endpoint, &[]);
    send(&daemon, &spans());
    until(|| asked(endpoint).contains_key(&Stage::Plan));
    daemon
}

/// The rest is asked, and nothing else; what was spent before is spent.
fn goes_on(directory: &Path, endpoint: &Endpoint) -> Daemon {
    let daemon = start(directory, endpoint, &[]);
    daemon.settles_at(
        "agentgauge_judge_results_total{metric=\"plan_quality\",result=\"scored\"}",
        1.0,
    );
    for (stage, often) in asked(endpoint) {
        assert_eq!(often, if stage == Stage::Plan { 2 } else { 1 }, "{}", stage.name());
    }
    assert_eq!(asked(endpoint).len(), CALLS);
    let left = daemon.metric("agentgauge_judge_budget_left_usd ");
    assert!((left - (1.0 - CALLS as f64 * CALL_USD)).abs() < 1e-9, "{left}");
    until(|| judged(&daemon, "s-judged").len() >= 3);
    daemon
}

#[test]
fn a_crash_between_two_questions_costs_no_answer_that_was_given() {
    let (endpoint, folder) = (Endpoint::start(), tempfile::tempdir().unwrap());
    waits_for_the_plan(folder.path(), &endpoint).crashes();
    goes_on(folder.path(), &endpoint).ends_well();
}

#[test]
fn an_end_between_two_questions_costs_none_either() {
    let (endpoint, folder) = (Endpoint::start(), tempfile::tempdir().unwrap());
    waits_for_the_plan(folder.path(), &endpoint).ends_well();
    goes_on(folder.path(), &endpoint).crashes();
}

#[test]
fn what_was_judged_stays_judged_after_a_crash() {
    let (endpoint, folder) = (Endpoint::start(), tempfile::tempdir().unwrap());
    waits_for_the_plan(folder.path(), &endpoint).crashes();
    let daemon = goes_on(folder.path(), &endpoint);
    let before = judged(&daemon, "s-judged");
    let questions = endpoint.seen().len();
    daemon.crashes();
    let daemon = start(folder.path(), &endpoint, &[]);
    assert_eq!(judged(&daemon, "s-judged"), before);
    // Later calls come after anything that would have been asked again.
    send(
        &daemon,
        &spans().replace("0af7651916cd43dd", "1bf7651916cd43dd").replace("s-judged", "s-2"),
    );
    until(|| judged(&daemon, "s-2").len() == before.len());
    assert_eq!(endpoint.seen().len(), questions + CALLS);
    daemon.ends_well();
}

#[test]
fn texts_that_were_embedded_are_not_embedded_again() {
    let (endpoint, folder) = (Endpoint::start(), tempfile::tempdir().unwrap());
    let start = || {
        Daemon::start_with(&[
            ("AGENTGAUGE__STORE__DURABILITY", "fsync"),
            ("AGENTGAUGE__STORE__DIRECTORY", folder.path().to_str().unwrap()),
            ("AGENTGAUGE__EMBED__URL", &endpoint.url),
            ("AGENTGAUGE__EMBED__ALLOW_HTTP", "true"),
            ("AGENTGAUGE__EMBED__MODEL", "m"),
        ])
    };
    let coherence = |daemon: &Daemon, session: &str| {
        let session = daemon.get(&format!("/api/v1/sessions/{session}"));
        let session: Value = serde_json::from_str(&session).unwrap_or_default();
        session["traces"][0]["signals"]["coherence"]["score"].as_f64()
    };
    let daemon = start();
    send(&daemon, &spans_saying("a refund", "a refund and the weather"));
    until(|| coherence(&daemon, "s-judged").is_some());
    let before = coherence(&daemon, "s-judged");
    daemon.crashes();
    let daemon = start();
    until(|| coherence(&daemon, "s-judged") == before);
    // Later calls come after anything that would have been asked again.
    let other = spans_saying("the weather", "a refund");
    send(
        &daemon,
        &other.replace("0af7651916cd43dd", "1bf7651916cd43dd").replace("s-judged", "s-2"),
    );
    until(|| coherence(&daemon, "s-2").is_some());
    let asked: Vec<Value> = endpoint.seen().iter().map(|seen| seen.body["input"].clone()).collect();
    assert_eq!(
        asked,
        [json!(["a refund", "a refund and the weather"]), json!(["the weather", "a refund"])]
    );
    daemon.ends_well();
    // A snapshot has it, too.
    let daemon = start();
    until(|| coherence(&daemon, "s-judged") == before);
    assert_eq!(endpoint.seen().len(), 2);
    daemon.ends_well();
}

#[test]
fn rules_that_were_judged_are_not_judged_again() {
    let (endpoint, folder) = (Endpoint::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("agentci_spec.yaml");
    let spec = "agent: a
judge_config: {temperature: 0.25, ensemble: {enabled: true, models: [one, two, rubric.timeout.once.three]}}
queries: [{query: Refund me, correctness: {llm_judge: [{rule: Is it polite?}]}}]
";
    std::fs::write(&file, spec).unwrap();
    let files = format!("[{:?}]", file.to_str().unwrap());
    let others =
        [("AGENTGAUGE__EXPECT__FILES", &*files), ("AGENTGAUGE__JUDGE__SAMPLE_RATE", "0.0")];
    let directory = folder.path().join("store");
    let asked = |model: &str| endpoint.asked(model).len();
    let daemon = start(&directory, &endpoint, &others);
    send(&daemon, &spans_saying("Refund me", "No way."));
    until(|| asked("rubric.timeout.once.three") == 1);
    daemon.crashes();
    let daemon = start(&directory, &endpoint, &others);
    daemon.settles_at("agentgauge_judge_results_total{metric=\"rubric\",result=\"scored\"}", 1.0);
    assert_eq!((asked("one"), asked("two"), asked("rubric.timeout.once.three")), (1, 1, 2));
    assert!(endpoint.seen().iter().all(|seen| seen.body["temperature"] == 0.25));
    daemon.ends_well();
}
