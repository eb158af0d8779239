//! Undocumented behaviour of endpoints: what they refuse, how they count, when they ask for a retry, and how they end, or do not.

use std::time::Duration;

use agentgauge::judge::options::Format;
use agentgauge::judge::{JudgeOptions, Metric, Stage};
use serde_json::Value;

use crate::support::endpoint::Endpoint;
use crate::support::judged::{all_judged, judged, options, request, transcript};

const FORMATS: [Format; 3] = [Format::Openai, Format::Anthropic, Format::Gemini];

/// What one call of `confidence` costs at most: its words, 2048 bytes more, and 2048 tokens of an answer.
fn most_of_a_call(endpoint: &Endpoint, answers: usize) -> f64 {
    let body = &endpoint.seen()[0].body;
    let words = ["/messages/0/content", "/messages/1/content"];
    let bytes: usize =
        words.iter().map(|at| body.pointer(at).unwrap().as_str().unwrap().len()).sum();
    let price = (bytes + 2_048) as f64 * 5.0 + 2_048.0 * 25.0;
    answers as f64 * price / 1e6
}

fn spent(metrics: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with("agentgauge_judge_cost_usd_total "));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Whether a body has a schema, and a temperature.
fn parts(body: &Value) -> (bool, bool) {
    let has = |places: &[&str]| places.iter().any(|at| body.pointer(at).is_some());
    let schema = ["/response_format", "/tools", "/generationConfig/responseJsonSchema"];
    (has(&schema), has(&["/temperature", "/generationConfig/temperature"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_refuses_is_left_out_and_nothing_else() {
    let endpoint = Endpoint::start();
    for format in FORMATS {
        for (refuses, left, calls) in [
            ("no_temperature", (true, false), 2),
            ("no_schemas", (false, true), 3),
            ("neither", (false, false), 4),
        ] {
            let model = format!("confidence.{refuses}.always.{format:?}");
            let options = options(&endpoint, format, &model, &[Metric::Confidence]);
            let options = JudgeOptions { concurrency: 1, ..options };
            let requests = (0..2).map(|number| request(number, transcript("found"))).collect();
            let judged = all_judged(&options, requests).await;
            judged.counts("results_total{metric=\"confidence\",result=\"scored\"} 2");
            let seen = endpoint.seen().into_iter().filter(|seen| seen.model == model);
            let seen: Vec<_> = seen.map(|seen| parts(&seen.body)).collect();
            // Found out by the first trace, and known to the second.
            assert_eq!((seen.len(), seen.last()), (calls + 1, Some(&left)), "{model}");
            assert_eq!(seen[0], (true, true));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_go_by_the_name_that_goes_with_the_rest() {
    let endpoint = Endpoint::start();
    let model = "confidence.no_temperature.always.m";
    judged(&options(&endpoint, Format::Openai, model, &[Metric::Confidence]), transcript("")).await;
    let names: Vec<_> = endpoint
        .seen()
        .iter()
        .map(|seen| ["max_tokens", "max_completion_tokens"].map(|name| seen.body[name].is_u64()))
        .collect();
    assert_eq!(names, [[true, false], [false, true]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_refused_does_not_change_how_others_are_asked() {
    let endpoint = Endpoint::start();
    for format in FORMATS {
        // At one stage a filter does not like the trace; the other metric is asked after that.
        let model = format!("task_outcome.filtered.always.{format:?}");
        let metrics = [Metric::TaskCompletion, Metric::Confidence];
        let judged = judged(&options(&endpoint, format, &model, &metrics), transcript("")).await;
        judged.counts("results_total{metric=\"task_completion\",result=\"client_error\"} 1");
        judged.counts("results_total{metric=\"confidence\",result=\"scored\"} 1");
        judged.counts("degraded 0");
        judged.counts("cost_usd_total 0.00075");
        let seen = endpoint.seen().into_iter().filter(|seen| seen.model == model);
        let asked: Vec<_> = seen.map(|seen| (seen.stage.unwrap(), parts(&seen.body))).collect();
        assert_eq!(asked.last(), Some(&(Stage::Confidence, (true, true))), "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_counted_is_taken_to_have_cost_the_most() {
    for (how, calls) in [("uncounted", 1), ("counted_as_nothing", 1), ("gateway_timeout", 3)] {
        let endpoint = Endpoint::start();
        let model = format!("confidence.{how}.always.m");
        let options = options(&endpoint, Format::Openai, &model, &[Metric::Confidence]);
        let judged = judged(&options, transcript("found")).await;
        let most = most_of_a_call(&endpoint, calls);
        assert_eq!(endpoint.seen().len(), calls);
        assert!((spent(&judged.metrics) - most).abs() < 1e-9, "{how} {most} {}", judged.metrics);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hour_s_dollars_hold_however_many_are_judged_at_once() {
    let sounding = Endpoint::start();
    let metrics = [Metric::Confidence];
    let _ = judged(&options(&sounding, Format::Openai, "m", &metrics), transcript("found")).await;
    // Enough for three calls that say nothing of what they took, and nearly for a fourth.
    let usd_per_hour = most_of_a_call(&sounding, 4) - 1e-6;
    let endpoint = Endpoint::start();
    let model = "confidence.uncounted.always.m";
    let options = JudgeOptions {
        concurrency: 8,
        usd_per_hour,
        ..options(&endpoint, Format::Openai, model, &metrics)
    };
    let requests = (0..8).map(|number| request(number, transcript("found"))).collect();
    let judged = all_judged(&options, requests).await;
    assert_eq!(endpoint.seen().len(), 3);
    assert!(spent(&judged.metrics) <= usd_per_hour);
    judged.counts("results_total{metric=\"confidence\",result=\"scored\"} 3");
    judged.counts("results_total{metric=\"confidence\",result=\"over_budget\"} 5");
    judged.counts("degraded 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_counts_a_hundred_times_too_much_breaks_the_cap_by_one_call() {
    let endpoint = Endpoint::start();
    let model = "confidence.overcounted.always.m";
    let metrics = [Metric::Confidence];
    let options = JudgeOptions {
        concurrency: 32,
        usd_per_hour: 12.0,
        output_usd_per_million: 25.0,
        ..options(&endpoint, Format::Openai, model, &metrics)
    };
    let requests = (0..64).map(|number| request(number, transcript("found"))).collect();
    let judged = all_judged(&options, requests).await;
    // Each says that it cost 5 dollars, where 2,048 tokens cost 5 cents.
    let (spent, calls) = (spent(&judged.metrics), endpoint.seen().len());
    assert!(spent <= 12.0 + 5.1 && calls <= 3, "{spent} in {calls} calls");
    assert!(spent > 5.0, "{spent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_aside_for_others_is_waited_for() {
    let sounding = Endpoint::start();
    let metrics = [Metric::Confidence];
    let _ = judged(&options(&sounding, Format::Openai, "m", &metrics), transcript("found")).await;
    // Enough for one call at the most and for many at what they cost.
    let endpoint = Endpoint::start();
    let options = JudgeOptions {
        concurrency: 4,
        usd_per_hour: most_of_a_call(&sounding, 1) + 0.02,
        ..options(&endpoint, Format::Openai, "m", &metrics)
    };
    let requests = (0..8).map(|number| request(number, transcript("found"))).collect();
    let judged = all_judged(&options, requests).await;
    judged.counts("results_total{metric=\"confidence\",result=\"scored\"} 8");
    judged.counts("degraded 0");
    assert_eq!((endpoint.seen().len(), endpoint.most_at_once()), (8, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_when_to_come_back_is_not_asked_before() {
    let endpoint = Endpoint::start();
    for format in FORMATS {
        for (how, outcome) in
            [("come_back_later", "rate_limited"), ("come_back_by_a_date", "server_error")]
        {
            let model = format!("confidence.{how}.always.{format:?}");
            let options = options(&endpoint, format, &model, &[Metric::Confidence]);
            let judged = judged(&options, transcript("found")).await;
            judged.counts("results_total{metric=\"confidence\",result=\"deadline\"} 1");
            judged.counts(&format!("calls_total{{outcome=\"{outcome}\"}} 1"));
            assert_eq!(endpoint.asked(&model).len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_overloaded_or_has_no_such_model_is_left_alone() {
    let endpoint = Endpoint::start();
    for (how, outcome, calls) in
        [("overloaded", "server_error", 2), ("no_such_model", "client_error", 1)]
    {
        let model = format!("confidence.{how}.always.m");
        let options = JudgeOptions {
            concurrency: 1,
            max_failures: 2,
            max_attempts: calls,
            ..options(&endpoint, Format::Anthropic, &model, &[Metric::Confidence])
        };
        let requests = (0..4).map(|number| request(number, transcript("found"))).collect();
        let judged = all_judged(&options, requests).await;
        judged.counts(&format!("calls_total{{outcome=\"{outcome}\"}} 2"));
        judged.counts("degraded 1");
        assert_eq!(endpoint.asked(&model).len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_never_understands_is_left_alone() {
    let endpoint = Endpoint::start();
    for format in FORMATS {
        // Gemini says so of a key that it does not know.
        let model = format!("confidence.filtered.always.{format:?}");
        let options = JudgeOptions {
            concurrency: 1,
            max_failures: 2,
            ..options(&endpoint, format, &model, &[Metric::Confidence])
        };
        let requests = (0..4).map(|number| request(number, transcript("found"))).collect();
        let judged = all_judged(&options, requests).await;
        // Two traces, each in four ways.
        assert_eq!(endpoint.asked(&model).len(), 8);
        judged.counts("results_total{metric=\"confidence\",result=\"endpoint_down\"} 2");
        judged.counts("degraded 1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_end_is_left_at_its_bound_and_in_its_time() {
    let endpoint = Endpoint::start();
    for format in FORMATS {
        for (how, result) in
            [("endless", "too_large"), ("dripping", "timeout"), ("compressed", "not_of_format")]
        {
            let model = format!("confidence.{how}.always.{format:?}");
            let options = JudgeOptions {
                max_attempts: 1,
                timeout: Duration::from_millis(if how == "dripping" { 300 } else { 20_000 }),
                ..options(&endpoint, format, &model, &[Metric::Confidence])
            };
            let judged = judged(&options, transcript("found")).await;
            judged.counts(&format!("results_total{{metric=\"confidence\",result=\"{result}\"}} 1"));
            assert_eq!(judged.score("confidence"), None);
        }
    }
}
