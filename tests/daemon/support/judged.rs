//! A judge alone, with the scripted endpoint.

#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::clock::Clock;
use agentgauge::engine::expect::Judgements;
use agentgauge::engine::judging::{JudgeRequest, RubricRequest};
use agentgauge::engine::options::CostOptions;
use agentgauge::engine::span::{Report, Source, TraceId};
use agentgauge::engine::tenants::Shares;
use agentgauge::engine::trace::{Transcript, TranscriptStep};
use agentgauge::ingest::{Batch, LeftOut, Overloaded, Sink};
use agentgauge::judge::options::Format;
use agentgauge::judge::{Judge, JudgeOptions, JudgeParts, Metric};
use agentgauge::registry::Registry;
use agentgauge::secret::Secret;

use crate::support::endpoint::Endpoint;

/// Keeps what is reported, and what is judged by rules.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<(Vec<Report>, Judgements)>>);

impl Sink for Kept {
    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        let mut kept = self.0.lock().unwrap();
        kept.0.extend(batch.reports);
        kept.1.extend(batch.judged.into_iter().flat_map(|reply| reply.judgements));
        Ok(LeftOut::default())
    }
}

/// The result of judging.
pub(crate) struct Judged {
    pub reports: Vec<Report>,
    pub judgements: Judgements,
    pub metrics: String,
}

impl Judged {
    pub(crate) fn score(&self, name: &str) -> Option<f64> {
        let report = self.reports.iter().find(|report| &*report.name == name)?;
        assert_eq!(report.source, Source::Judge);
        Some(report.score.to_f64())
    }

    pub(crate) fn counts(&self, line: &str) {
        let line = format!("agentgauge_judge_{line}\n");
        assert!(self.metrics.contains(&line), "{line}{}", self.metrics);
    }
}

pub(crate) fn options(
    endpoint: &Endpoint,
    format: Format,
    model: &str,
    metrics: &[Metric],
) -> JudgeOptions {
    JudgeOptions {
        format,
        url: endpoint.url.clone(),
        allow_http: true,
        model: model.to_owned(),
        metrics: metrics.to_vec(),
        constraints: [("no_pii".to_owned(), "Shows no personal data.".to_owned())].into(),
        usd_per_hour: 1_000.0,
        backoff: Duration::from_millis(1),
        timeout: Duration::from_secs(20),
        max_reply_bytes: 1 << 20,
        ..JudgeOptions::default()
    }
}

pub(crate) fn transcript(answer: &str) -> Transcript {
    let step = TranscriptStep {
        kind: "tool",
        name: Some("search".into()),
        input: Some(r#"{"q":"order 7"}"#.into()),
        output: Some(answer.into()),
        ..TranscriptStep::default()
    };
    Transcript { input: Some("refund order 7".into()), steps: vec![step], ..Transcript::default() }
}

/// A request for the metrics of a trace.
pub(crate) fn request(number: u8, transcript: Transcript) -> JudgeRequest {
    let trace_id = TraceId([number; 16]);
    JudgeRequest { trace_id, metrics: true, transcript, ..JudgeRequest::default() }
}

/// A request for one rule, and for no metrics.
pub(crate) fn rule(rule: &str) -> JudgeRequest {
    let rubric =
        RubricRequest { key: rule.to_owned(), rule: rule.to_owned(), ..RubricRequest::default() };
    JudgeRequest { metrics: false, rubrics: vec![rubric], ..request(7, transcript("found")) }
}

/// Judges one trace and waits until that is over.
pub(crate) async fn judged(options: &JudgeOptions, transcript: Transcript) -> Judged {
    all_judged(options, vec![request(7, transcript)]).await
}

/// Judges traces and waits until that is over.
pub(crate) async fn all_judged(options: &JudgeOptions, requests: Vec<JudgeRequest>) -> Judged {
    let registry = Registry::new();
    let given = JudgeParts {
        key: Secret::new("sk-the-key-of-the-judge"),
        cost: &CostOptions::default(),
        empty_is_one: false,
        clock: Clock::system(),
        registry: &registry,
        scores_out: None,
        paid: Vec::new(),
        shares: Shares::default(),
    };
    let (judge, handle) = Judge::new(options, given).unwrap();
    assert!(!format!("{judge:?}").contains("the-key"));
    let now = Clock::system().now();
    requests.into_iter().for_each(|request| handle.offer(request, now));
    // Nobody else will ask.
    drop(handle);
    let kept = Kept::default();
    judge.run(kept.clone(), std::future::pending()).await;
    let (reports, judgements) = kept.0.lock().unwrap().clone();
    let metrics = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    Judged { reports, judgements, metrics }
}
