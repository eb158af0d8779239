//! Rules for answers and the reference's vectors, through the scripted endpoint: AgentCI's and PandaProbe's results for an answer
//! are the results behind the wire, in each format; an invalid answer is no verdict.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use agentgauge::engine::expect::judge::{self, JudgeVerdict, Judgement};
use agentgauge::engine::judging::Judges;
use agentgauge::judge::options::Format;
use agentgauge::judge::{Metric, Stage};
use serde_json::{Value, json};

use crate::support::daemon::Daemon;
use crate::support::endpoint::Endpoint;
use crate::support::judged::{Judged, all_judged, options, request, rule, transcript};
use crate::support::turn::spans_saying;

const FORMATS: [Format; 3] = [Format::Openai, Format::Anthropic, Format::Gemini];

const RULE: &str = "Is it polite?";

fn vectors(family: &str) -> Vec<Value> {
    let path = format!("{}/tests/data/vectors/{family}-open.json", env!("CARGO_MANIFEST_DIR"));
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let Value::Array(cases) = file["cases"].take() else { return Vec::new() };
    assert!(!cases.is_empty());
    cases
}

/// The one rule before models, several of which decide together.
async fn ruled(endpoint: &Endpoint, format: Format, models: &[String]) -> Judged {
    let mut request = rule(RULE);
    if let [_, _, ..] = models {
        request.rubrics[0].judges =
            Judges { models: models.to_vec(), ensemble: true, ..Judges::default() };
    }
    all_judged(&options(endpoint, format, &models[0], &[]), vec![request]).await
}

fn single(judged: &Judged) -> Option<&JudgeVerdict> {
    match judged.judgements.get(RULE)? {
        Judgement::Single(verdict) => Some(verdict),
        Judgement::Ensemble(_) | Judgement::Failed(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_judged_or_not_at_all() {
    let endpoint = Endpoint::start();
    // The fault, how it counts, how often it is asked if the fault persists, and whether asking again helps.
    for (failure, counts_as, calls, helps) in [
        ("wrong_form", "not_json", 3, true),
        ("out_of_range", "out_of_range", 3, true),
        ("cut_off", "cut_off", 3, true),
        ("not_of_format", "not_of_format", 3, true),
        ("rate_limited", "rate_limited", 3, true),
        ("server_error", "server_error", 3, true),
        ("broken_off", "broken_off", 3, true),
        ("refused", "refused", 1, false),
        ("unauthorized", "unauthorized", 1, false),
        ("redirect", "redirect", 1, false),
    ] {
        for format in FORMATS {
            for (often, good) in [("once", helps), ("always", false)] {
                let model = format!("rubric.{failure}.{often}.{format:?}");
                let judged = ruled(&endpoint, format, std::slice::from_ref(&model)).await;
                assert_eq!(single(&judged).is_some(), good, "{model} {}", judged.metrics);
                let result = if good { "scored" } else { counts_as };
                judged.counts(&format!("results_total{{metric=\"rubric\",result=\"{result}\"}} 1"));
                let expected = if often == "always" || !helps { calls } else { 2 };
                assert_eq!(endpoint.asked(&model).len(), expected, "{model}");
            }
        }
    }
}

/// The checks of AgentCI that need a judge, in their order: what is asked only if all before it have passed.
const CHECKS: &str = "agent: a
queries:
  - query: Refund me
    correctness:
      expected_in_answer: [refunded]
      llm_judge: [{rule: polite}, {rule: short}]
      safety_check: {rule: safe}
      hallucination_check: {rule: true to facts}
";

/// Checks an answer against these rules until that reaches a status, with this many rules judged or given up; returns the rules
/// that were asked about.
fn checked(
    (answer, model): (&str, &str),
    (endpoint, url): (&Endpoint, &str),
    (status, rules): (&str, usize),
) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agentci_spec.yaml");
    std::fs::write(&file, CHECKS).unwrap();
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__JUDGE__FORMAT", "openai"),
        ("AGENTGAUGE__JUDGE__URL", url),
        ("AGENTGAUGE__JUDGE__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__JUDGE__MODEL", model),
        ("AGENTGAUGE__JUDGE__FLAGGED", "false"),
        ("AGENTGAUGE__JUDGE__SAMPLE_RATE", "0.0"),
        ("AGENTGAUGE__JUDGE__BACKOFF", "1ms"),
        ("AGENTGAUGE__EXPECT__FILES", &format!("[{:?}]", file.to_str().unwrap())),
    ]);
    let spans = spans_saying("Refund me", answer);
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
    let told = || {
        let session = daemon.get("/api/v1/sessions/s-judged");
        let session: Value = serde_json::from_str(&session).unwrap_or_default();
        let layer = &session["traces"][0]["expectations"][0]["correctness"];
        let page = daemon.get("/metrics");
        let of_rules = "agentgauge_judge_results_total{metric=\"rubric\",";
        let lines = page.lines().filter(|line| line.starts_with(of_rules));
        let over = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum();
        (layer["status"].as_str().unwrap_or("none").to_owned(), over)
    };
    let expected = (status.to_owned(), rules);
    for _ in 0..300 {
        if told() == expected {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(told(), expected, "{model}");
    #[cfg(unix)]
    daemon.ends_well();
    let asked = endpoint.seen().into_iter().filter(|seen| seen.model == model).map(|seen| {
        let user = seen.body.pointer("/messages/1/content").unwrap().as_str().unwrap();
        user.lines().nth(1).unwrap().to_owned()
    });
    asked.collect()
}

#[test]
fn checks_are_asked_in_their_order_and_none_passes_unasked() {
    let endpoint = Endpoint::start();
    endpoint.model_answers("pleased", json!({ "score": 5, "label": "pass", "rationale": "" }));
    endpoint.model_answers("hard", json!({ "score": 1, "label": "fail", "rationale": "" }));
    endpoint.model_answers("mumbling", json!("I would rather not say."));
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = format!("http://{dead}/v1");
    let (good, bad, url) = ("You have been refunded.", "No way.", &endpoint.url);
    for (said, url, told, asked) in [
        ((good, "pleased"), url, ("pass", 4), &["polite", "safe", "short", "true to facts"][..]),
        // All rules of one check, and no further ones.
        ((good, "hard"), url, ("fail", 2), &["polite", "short"]),
        // What needs no judge is decided first.
        ((bad, "not-asked"), url, ("fail", 0), &[]),
        ((good, "mumbling"), url, ("warn", 2), &["polite", "short"]),
        ((good, "m"), &dead, ("warn", 2), &[]),
    ] {
        let rules = checked(said, (&endpoint, url), told);
        assert!(rules.iter().eq(asked), "{said:?}: {rules:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_judge_of_several_that_does_not_judge_leaves_the_rule_open() {
    let endpoint = Endpoint::start();
    let models = ["one", "rubric.not_of_format.always.two", "three"].map(str::to_owned);
    let judged = ruled(&endpoint, Format::Openai, &models).await;
    assert!(judged.judgements.is_empty());
    judged.counts("results_total{metric=\"rubric\",result=\"not_of_format\"} 1");
    assert!(endpoint.asked("three").is_empty(), "nobody pays for what decides nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_are_what_the_reference_reads_in_the_same_answers() {
    let endpoint = Endpoint::start();
    let (mut read, mut decided) = (0, 0);
    for (format, case) in FORMATS
        .into_iter()
        .flat_map(|f| vectors("aci-judge-verdict").into_iter().map(move |c| (f, c)))
    {
        let (input, expected) = (&case["input"], &case["expected"]);
        let name = format!("{format:?}-{}", case["name"].as_str().unwrap());
        let threshold = input["threshold"].as_f64().unwrap_or(0.5);
        let say = |model: &str, verdict: &Value| {
            let (score, label) = (&verdict["score"], &verdict["label"]);
            let said = json!({ "score": score, "label": label, "rationale": "" });
            endpoint.model_answers(model, said);
        };
        if let Some(raw) = input["raw"].as_str() {
            endpoint.model_answers(&name, json!(raw));
            let judged = ruled(&endpoint, format, std::slice::from_ref(&name)).await;
            let known = judge::read(raw).filter(|verdict| judge::is_in_range(verdict.score));
            // An answer without a verdict is the worst for the reference, and no verdict here.
            assert_eq!(single(&judged).is_some(), known.is_some(), "{name}");
            if let Some(verdict) = single(&judged) {
                read += 1;
                let ours = json!({ "score": verdict.score, "label": verdict.label });
                assert_eq!(
                    ours,
                    json!({ "score": expected["score"], "label": expected["label"] }),
                    "{name}"
                );
            }
            continue;
        }
        decided += 1;
        let outcome = if let Some(verdicts) = input["ensemble"].as_array() {
            let models: Vec<String> = (0..verdicts.len()).map(|n| format!("{name}-{n}")).collect();
            models.iter().zip(verdicts).for_each(|(model, verdict)| say(model, verdict));
            let judged = ruled(&endpoint, format, &models).await;
            match judged.judgements.get(RULE).unwrap() {
                Judgement::Ensemble(verdicts) => judge::ensemble(verdicts, threshold).unwrap(),
                Judgement::Single(verdict) => judge::single(verdict, threshold),
                Judgement::Failed(why) => panic!("{why}"),
            }
        } else {
            say(&name, input);
            let judged = ruled(&endpoint, format, std::slice::from_ref(&name)).await;
            judge::single(single(&judged).unwrap(), threshold)
        };
        assert_eq!(json!(outcome.passed), expected["passed"], "{name}");
    }
    assert!(read >= 3 * 5 && decided >= 3 * 40, "{read} {decided}");
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_scored_as_the_reference_scores_the_same_answers() {
    let endpoint = Endpoint::start();
    let mut scored = 0;
    for case in vectors("pp-argument-correctness") {
        let (input, expected) = (&case["input"], &case["expected"]);
        let calls = usize::try_from(input["tool_calls"].as_u64().unwrap()).unwrap();
        let calls = vec![json!({ "name": "search", "parameters": {}, "reasoning": "" }); calls];
        let verdicts = input["verdicts"].as_array().unwrap().iter();
        let verdicts: Vec<Value> =
            verdicts.map(|verdict| json!({ "verdict": verdict, "reason": null })).collect();
        let is_empty = calls.is_empty() || verdicts.is_empty();
        endpoint.answers(Stage::CallContext, json!({ "user_input": "", "tool_calls": calls }));
        endpoint.answers(Stage::CallVerdicts, json!({ "verdicts": verdicts }));
        for format in FORMATS {
            let model = format!("{format:?}-{}", case["name"].as_str().unwrap());
            let options = options(&endpoint, format, &model, &[Metric::ArgumentCorrectness]);
            let judged = all_judged(&options, vec![request(7, transcript("found"))]).await;
            let asked = endpoint.asked(&model);
            assert_eq!(asked.len(), expected["judge_calls"].as_array().unwrap().len(), "{model}");
            let score = judged.score("argument_correctness");
            // The reference says 1 where nothing was judged.
            assert_eq!(score.is_none(), is_empty, "{model}");
            if let Some(score) = score {
                scored += 1;
                assert!((score - expected["score"].as_f64().unwrap()).abs() < 1e-9, "{model}");
            }
        }
    }
    assert!(scored > 0);
}
