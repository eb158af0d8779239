//! Texts on their way to an embedding model at an endpoint, and the results: in order, each text once, and none from a useless
//! answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::clock::Clock;
use agentgauge::embed::{EmbedOptions, Embedder, queue};
use agentgauge::engine::embedding::{EmbedRequest, Embedded};
use agentgauge::engine::facts::Content;
use agentgauge::engine::span::TraceId;
use agentgauge::engine::tenants::{Shares, TraceKey};
use agentgauge::ingest::{Batch, LeftOut, Overloaded, Sink};
use agentgauge::judge::JudgeOptions;
use agentgauge::outbound::redact::Redactor;
use agentgauge::registry::Registry;
use agentgauge::secret::Secret;
use serde_json::{Value, json};

use crate::support::collector::{Collector, ReceivedExport};
use crate::support::daemon::{Daemon, comes_true};
use crate::support::turn::spans_saying;

/// Keeps the inputs of the engine, once it has room.
#[derive(Clone, Default)]
struct Kept {
    embedded: Arc<Mutex<BTreeMap<TraceKey, Embedded>>>,
    full_for: Arc<AtomicUsize>,
}

impl Sink for Kept {
    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        let less = |left: usize| left.checked_sub(1);
        if self.full_for.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Err(Overloaded::after(Duration::from_millis(1)));
        }
        self.embedded.lock().unwrap().extend(batch.embedded);
        Ok(LeftOut::default())
    }
}

/// A model that knows two words: how often a text has `a`, and how often `b`. The last text comes first.
fn model() -> Collector {
    Collector::answering(|told| {
        let texts = texts(told);
        let vector = |(index, text): (usize, &String)| {
            let often = |word: &str| text.matches(word).count();
            json!({ "index": index, "embedding": [often("a"), often("b")] })
        };
        let data: Vec<Value> = texts.iter().enumerate().rev().map(vector).collect();
        json!({ "data": data }).to_string().into_bytes()
    })
}

/// The texts of a request.
fn texts(told: &ReceivedExport) -> Vec<String> {
    let body: Value = serde_json::from_slice(&told.body).unwrap();
    serde_json::from_value(body["input"].clone()).unwrap()
}

/// How many texts each request had.
fn sizes(model: &Collector) -> Vec<usize> {
    model.told().iter().map(|told| texts(told).len()).collect()
}

fn options(model: &Collector) -> EmbedOptions {
    EmbedOptions {
        url: format!("{}/v1", model.url),
        allow_http: true,
        model: "m".to_owned(),
        max_batch: 4,
        backoff: Duration::from_millis(1),
        pause: Duration::from_secs(3_600),
        ..EmbedOptions::default()
    }
}

/// The outcome of requests and answers, and the counts.
struct Outcome {
    embedded: BTreeMap<TraceKey, Embedded>,
    counts: String,
}

impl Outcome {
    /// The coherence of the trace of this number.
    fn coherence(&self, number: u8) -> Option<f64> {
        Some(self.embedded.get(&TraceId([number; 16]).into())?.coherence?.to_f64())
    }

    fn counted(&self, outcomes: &[(&str, u64)]) {
        let line = |(outcome, count)| {
            format!("agentgauge_embed_texts_total{{outcome=\"{outcome}\"}} {count}")
        };
        let mut expected: Vec<String> = outcomes.iter().copied().map(line).collect();
        expected.sort();
        let counts: Vec<&str> = self.counts.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(counts, expected);
    }
}

/// Has questions and answers embedded, of one trace each.
async fn embedded(options: &EmbedOptions, turns: &[(&str, &str)]) -> Outcome {
    embedded_for(options, turns, &Kept::default()).await
}

async fn embedded_for(options: &EmbedOptions, turns: &[(&str, &str)], kept: &Kept) -> Outcome {
    let registry = Registry::new();
    let judge = JudgeOptions::default();
    let redactor = Redactor::new(&judge.redact_keys, &judge.redact_patterns).unwrap();
    let (key, clock) = (Secret::new("sk-m"), Clock::system());
    let (handle, inbox) = queue(options.max_queue, Shares::default(), &registry).unwrap();
    let embedder = Embedder::new(options, key, redactor, clock, inbox).unwrap();
    for ((input, output), number) in turns.iter().zip(0..) {
        let content = Content {
            input: Some(Arc::from(*input)),
            output: Some(Arc::from(*output)),
            ..Content::default()
        };
        let max = options.wanted().unwrap();
        handle.offer(EmbedRequest::new(TraceId([number; 16]).into(), &content, max).unwrap());
    }
    drop(handle);
    embedder.run(kept.clone(), std::future::pending()).await;
    let counts = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let embedded = kept.embedded.lock().unwrap().clone();
    Outcome { embedded, counts }
}

/// Whether two numbers are the same but for rounding.
fn is(found: Option<f64>, expected: f64) -> bool {
    found.is_some_and(|found| (found - expected).abs() < 1e-9)
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_go_in_batches_each_once_and_come_back_in_order() {
    let model = model();
    let turns = [("a", "a a"), ("a", "b"), ("ab", "a"), ("ab", "ab ab ab")];
    let came = embedded(&options(&model), &turns).await;
    // Of eight texts three come again.
    assert_eq!(sizes(&model), [4, 1]);
    let told = &model.told()[0];
    let body: Value = serde_json::from_slice(&told.body).unwrap();
    let expected =
        json!({ "model": "m", "input": ["a", "a a", "b", "ab"], "encoding_format": "float" });
    assert!(told.path == "/v1/embeddings" && told.head.contains("Bearer sk-m"), "{}", told.head);
    assert_eq!(body, expected);
    for (number, coherence) in [(0, 1.0), (1, 0.0), (2, 0.5_f64.sqrt()), (3, 1.0)] {
        assert!(is(came.coherence(number), coherence), "{number}: {:?}", came.coherence(number));
    }
    assert_eq!(
        *came.embedded[&TraceKey::from(TraceId([3; 16]))].output.cells(),
        [707_107, 707_107]
    );
    came.counted(&[("embedded", 5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_kept_up_to_a_number() {
    for (max_cached, requests, counts) in [
        (2, 2, [("embedded", 2), ("cached", 4)]),
        // The one drives the other out.
        (1, 4, [("embedded", 4), ("cached", 2)]),
        (0, 6, [("embedded", 6), ("cached", 0)]),
    ] {
        let model = model();
        // A trace and a text at a time.
        let options = EmbedOptions { max_cached, max_batch: 1, ..options(&model) };
        let came = embedded(&options, &[("a", "b"); 3]).await;
        assert_eq!(sizes(&model), vec![1; requests]);
        assert!((0..3).all(|number| is(came.coherence(number), 0.0)));
        let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        came.counted(&counts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_fails_is_asked_again_and_then_left_alone() {
    let failure = |model: &Collector, status: &str, often: usize| {
        (0..often).for_each(|_| model.replies(status, "Retry-After: 0\r\n", b"{}"));
    };
    for (status, often, requests, coherence) in [
        ("429 Too Many Requests", 2, 3, Some(1.0)),
        ("503 Service Unavailable", 2, 3, Some(1.0)),
        ("500 Internal Server Error", 3, 3, None),
        // What does not pass is not asked again.
        ("401 Unauthorized", 1, 1, None),
        ("404 Not Found", 1, 1, None),
    ] {
        let model = model();
        failure(&model, status, often);
        let came = embedded(&options(&model), &[("a", "a a")]).await;
        assert_eq!((sizes(&model).len(), came.coherence(0)), (requests, coherence), "{status}");
        let outcome = if coherence.is_some() { "embedded" } else { "failed" };
        came.counted(&[(outcome, 2)]);
    }
    // After two failures in a row the endpoint is not called for an hour, although it would answer.
    let model = model();
    failure(&model, "500 Internal Server Error", 2);
    let options = EmbedOptions { max_failures: 2, max_batch: 1, ..options(&model) };
    let came = embedded(&options, &[("a", "b"), ("aa", "bb")]).await;
    assert_eq!(sizes(&model), [1, 1]);
    came.counted(&[("failed", 4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_silent_costs_its_time_and_no_more() {
    let model = Collector::answering(|_| {
        std::thread::park_timeout(Duration::from_secs(5));
        Vec::new()
    });
    let options =
        EmbedOptions { timeout: Duration::from_millis(100), max_attempts: 2, ..options(&model) };
    let came = embedded(&options, &[("a", "b")]).await;
    assert!(came.embedded.is_empty());
    came.counted(&[("failed", 2)]);
}

/// A reply with these vectors.
fn reply(vectors: &[Value]) -> Vec<u8> {
    let item = |(index, embedding)| json!({ "index": index, "embedding": embedding });
    let data: Vec<Value> = vectors.iter().enumerate().map(item).collect();
    json!({ "data": data }).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_together_is_asked_for_one_by_one() {
    let replies = [
        ("400 Bad Request", b"{}".to_vec()),
        ("413 Payload Too Large", b"{}".to_vec()),
        ("422 Unprocessable Entity", b"{}".to_vec()),
        ("200 OK", b"no JSON".to_vec()),
        ("200 OK", reply(&[json!([1, 0])])),
        ("200 OK", reply(&[json!([1, 0]), json!([1, 0]), json!([1, 0])])),
        ("200 OK", reply(&[json!([1, 0]), json!([1, 0, 0])])),
        ("200 OK", reply(&[json!([1, 0]), json!([null, 0])])),
        ("200 OK", reply(&[json!([1, 0]), json!([1e99, 0])])),
        ("200 OK", reply(&[json!([]), json!([])])),
        ("200 OK", reply(&vec![json!(vec![0; 20_000]); 2])),
        ("200 OK", vec![b' '; 70_000]),
    ];
    for (status, body) in replies {
        let model = model();
        model.replies(status, "", &body);
        let options = EmbedOptions { max_reply_bytes: 60_000, ..options(&model) };
        let came = embedded(&options, &[("a", "ab")]).await;
        assert_eq!(sizes(&model), [2, 1, 1], "{status}");
        assert!(is(came.coherence(0), 0.5_f64.sqrt()), "{status} {:?}", came.coherence(0));
        came.counted(&[("embedded", 2)]);
    }
    // One text is to blame: the others have their vectors all the same, and it is left alone.
    let model = model();
    for status in ["400 Bad Request", "400 Bad Request"] {
        model.replies(status, "", b"{}");
    }
    let came = embedded(&options(&model), &[("too long", "a"), ("ab", "a")]).await;
    assert_eq!(sizes(&model), [3, 1, 1, 1]);
    assert_eq!(came.coherence(0), None);
    assert!(is(came.coherence(1), 0.5_f64.sqrt()));
    came.counted(&[("embedded", 2), ("failed", 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_takes_nothing_is_not_asked_for_everything() {
    let model = Collector::start();
    let options = EmbedOptions { max_batch: 64, max_failures: 3, ..options(&model) };
    let answers: Vec<String> = (0..30).map(|number| format!("a{number}")).collect();
    let turns: Vec<(&str, &str)> = answers.iter().map(|answer| ("a", answer.as_str())).collect();
    let came = embedded(&options, &turns).await;
    // All together, and three alone.
    assert_eq!(sizes(&model), [31, 1, 1, 1]);
    assert!(came.embedded.is_empty());
    came.counted(&[("failed", 31)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_that_are_not_alike_make_no_coherence_and_those_without_length_are_none() {
    let model = model();
    let options = EmbedOptions { max_batch: 1, ..options(&model) };
    // The model behind the address has changed between two texts.
    model.replies("200 OK", "", &reply(&[json!([1, 0, 0])]));
    model.replies("200 OK", "", &reply(&[json!([1, 0])]));
    let came = embedded(&options, &[("a", "b"), ("aa", "nothing")]).await;
    let changed = &came.embedded[&TraceKey::from(TraceId([0; 16]))];
    assert_eq!((changed.coherence, &*changed.output.cells()), (None, &[1_000_000, 0][..]));
    // A vector of zeros has no direction.
    assert!(!came.embedded.contains_key(&TraceKey::from(TraceId([1; 16]))));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_traces_wait_than_there_is_room_for_and_the_engine_may_be_full_for_a_while() {
    let turns = [("a", "b"); 5];
    let model = model();
    let full = EmbedOptions { max_queue: 3, ..options(&model) };
    let came = embedded(&full, &turns).await;
    assert_eq!(came.embedded.len(), 3);
    came.counted(&[("dropped", 2), ("embedded", 2)]);
    for (full_for, arrived) in [(2, 1), (3, 0)] {
        let kept = Kept { full_for: Arc::new(full_for.into()), ..Kept::default() };
        let came = embedded_for(&options(&model), &turns[..1], &kept).await;
        assert_eq!(came.embedded.len(), arrived);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_cut_and_what_must_not_leave_does_not() {
    let text = "the key is sk-abcdefghijklmnopqrstuv, ééé ééé";
    for (max_text_bytes, left) in [
        (100, "the key is [redacted], ééé ééé"),
        (48, "the key is [redacted], ééé "),
        // A key that is cut in two would not be known for one.
        (20, "the key is "),
    ] {
        let model = model();
        let options = EmbedOptions { max_text_bytes, ..options(&model) };
        let _ = embedded(&options, &[(text, "b")]).await;
        assert_eq!(texts(&model.told()[0]), [left, "b"]);
    }
}

/// A daemon that has texts embedded there.
fn embedding(url: &str) -> Daemon {
    Daemon::start_with(&[
        ("AGENTGAUGE__EMBED__URL", url),
        ("AGENTGAUGE__EMBED__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__EMBED__MODEL", "m"),
        ("AGENTGAUGE__EMBED__BACKOFF", "1ms"),
        ("AGENTGAUGE_EMBED_API_KEY", "sk-of-the-embedder"),
    ])
}

/// A turn of the session whose trace ends with this digit.
fn turn_of(daemon: &Daemon, number: u8, question: &str, answer: &str) -> String {
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let own = format!("{}{number}", &trace[..31]);
    let spans = spans_saying(question, answer).replace(trace, &own);
    assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
    own
}

/// Looks at a trace's explanation until it is as it should be; what it was last.
fn explained(daemon: &Daemon, trace: &str, is_right: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let is_so = comes_true(|| {
        let path = format!("/api/v1/traces/{trace}");
        last = serde_json::from_str(&daemon.get(&path)).unwrap_or_default();
        is_right(&last)
    });
    assert!(is_so, "{last:#}");
    last
}

/// A signal of an explanation.
fn signal<'v>(explained: &'v Value, name: &str) -> &'v Value {
    let mut signals = explained["signals"].as_array().into_iter().flatten();
    signals.find(|signal| signal["name"] == name).unwrap_or(&Value::Null)
}

#[test]
fn a_daemon_goes_by_the_model_where_it_has_read_a_text_and_says_where_it_has_not() {
    let model = model();
    model.is_down_for(1);
    let daemon = embedding(&format!("{}/v1", model.url));
    let first = turn_of(&daemon, 1, "a", "a b and more sk-abcdefghijklmnopqrstuv");
    let coherence = |explained: &Value| explained["trace"]["signals"]["coherence"].clone();
    let shown = explained(&daemon, &first, |explained| !coherence(explained).is_null());
    assert!(is(coherence(&shown)["score"].as_f64(), 0.948_683_298_051), "{shown}");
    assert_eq!(coherence(&shown)["source"], "computed");
    // Three of the one and one of the other. Once in vain; what is a secret has not left.
    let told = model.told();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|told| told.head.contains("Bearer sk-of-the-embedder")));
    assert_eq!(texts(&told[1])[1], "a b and more [redacted]");
    let second = turn_of(&daemon, 2, "a", "b and more sk-abcdefghijklmnopqrstuv a a a");
    let by = |name: &str| {
        format!("compared with the outputs of the traces before it, three at most, by {name}")
    };
    let loops = |explained: &Value| signal(explained, "loop_detection").clone();
    let is_by = |explained: &Value, name: &str| {
        loops(explained)["evidence"].as_array().is_some_and(|said| said.contains(&json!(by(name))))
    };
    let shown = explained(&daemon, &second, |explained| is_by(explained, "the embedding model"));
    assert!(is_by(&shown, "the embedding model"), "{shown}");
    // A model that is gone leaves coherence absent, and loops to hashes.
    model.is_down_for(100);
    let third = turn_of(&daemon, 3, "b", "b and more still");
    daemon.settles_at("agentgauge_embed_texts_total{outcome=\"failed\"}", 2.0);
    let shown = explained(&daemon, &third, |explained| is_by(explained, "hashed embeddings"));
    assert!(is_by(&shown, "hashed embeddings"), "{shown}");
    assert!(coherence(&shown).is_null(), "{shown}");
    #[cfg(unix)]
    daemon.ends_well();
}
