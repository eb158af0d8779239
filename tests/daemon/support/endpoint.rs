//! A scripted model endpoint: it supports every format, answers every stage, and fails as the model's name says.
//!
//! A model is named `stage.failure.how_often.number`: at that stage it fails so, `once` or `always`.

#![allow(dead_code, reason = "no test needs all of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentgauge::judge::Stage;
use serde_json::{Value, json};

/// A request as it was received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub path: String,
    pub head: String,
    pub body: Value,
    pub model: String,
    pub stage: Option<Stage>,
    pub raw: Vec<u8>,
}

pub(crate) struct Endpoint {
    pub url: String,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    answers: Arc<Mutex<Answers>>,
    open: Arc<Open>,
}

/// The answer at each stage, and the answers of some models at any. A text is sent unchanged.
#[derive(Default)]
struct Answers {
    of_stages: BTreeMap<Stage, Value>,
    of_models: BTreeMap<String, Value>,
}

/// Requests that are being answered, and the most that ever were.
#[derive(Default)]
struct Open {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Open {
    /// Waits until three requests have been there at once, and a little for a fourth.
    fn three_at_once(&self) {
        for _ in 0..1_000 {
            let enough = self.most.load(Ordering::SeqCst) >= 3;
            std::thread::park_timeout(Duration::from_millis(20));
            if enough {
                return;
            }
        }
    }
}

type Shared = (Arc<Mutex<Vec<ReceivedRequest>>>, Arc<Mutex<Answers>>, Arc<Open>);

impl Endpoint {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let of_stages = Stage::ALL.into_iter().map(|stage| (stage, good(stage))).collect();
        let answers = Arc::new(Mutex::new(Answers { of_stages, ..Answers::default() }));
        let endpoint = Self { url, seen: Arc::default(), answers, open: Arc::default() };
        let shared = (endpoint.seen.clone(), endpoint.answers.clone(), endpoint.open.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A client that gave up is what some tests are about.
                std::thread::spawn(move || drop(serve(&stream, &shared)));
            }
        });
        endpoint
    }

    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// The stages that a model was asked, in order.
    pub(crate) fn asked(&self, model: &str) -> Vec<Stage> {
        let seen = self.seen();
        seen.into_iter().filter(|seen| seen.model == model).filter_map(|seen| seen.stage).collect()
    }

    /// The most requests that it had at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.open.most.load(Ordering::SeqCst)
    }

    pub(crate) fn answers(&self, stage: Stage, answer: Value) {
        self.answers.lock().unwrap().of_stages.insert(stage, answer);
    }

    /// A model answers so whatever it is asked.
    pub(crate) fn model_answers(&self, model: &str, answer: Value) {
        self.answers.lock().unwrap().of_models.insert(model.to_owned(), answer);
    }
}

/// An answer of the form of a stage.
fn good(stage: Stage) -> Value {
    let score = if stage.name().starts_with("rubric") { json!(4) } else { json!(0.75) };
    let all = json!({
        "task": "refund the order", "outcome": "the order was refunded", "verdict": 0.75, "score": score,
        "confidence": 0.75, "reason": "so", "user_input": "refund", "plan": ["look", "refund"],
        "tools_called": [{"name": "search", "parameters": {}}], "available_tools": [],
        "tool_calls": [{"name": "search", "parameters": {}, "reasoning": ""}],
        "verdicts": [{"verdict": "yes"}, {"verdict": "yes"}, {"verdict": "no"}, {"verdict": "yes"}],
        "violations": [{"constraint": "no_pii", "severity": "low", "reason": "a name"}],
        "label": "pass", "rationale": "so",
    });
    let schema = stage.schema();
    let keys = schema["properties"].as_object().unwrap().keys();
    keys.map(|key| (key.clone(), all[key].clone())).collect::<serde_json::Map<_, _>>().into()
}

fn serve(mut stream: &TcpStream, (seen, answers, open): &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let request = understood(path, head, body);
    let before = {
        let mut seen = seen.lock().unwrap();
        let same =
            |other: &&ReceivedRequest| other.model == request.model && other.stage == request.stage;
        let before = seen.iter().filter(same).count();
        seen.push(request.clone());
        before
    };
    let now = open.now.fetch_add(1, Ordering::SeqCst) + 1;
    open.most.fetch_max(now, Ordering::SeqCst);
    let answer = request.stage.map(|stage| {
        let answers = answers.lock().unwrap();
        answers.of_models.get(&request.model).unwrap_or_else(|| &answers.of_stages[&stage]).clone()
    });
    let answered = reply(&request, answer, before);
    match failure(&request, before) {
        // Until the client has had enough.
        Some("timeout") => drop(stream.read(&mut [0])),
        // The first call of a model comes alone.
        Some("three_at_once") if before > 0 => open.three_at_once(),
        // Until the client has had enough: a reply that does not end, and one that takes its time.
        Some(how @ ("endless" | "dripping")) => return go_on(stream, how == "endless"),
        Some(_) | None => {}
    }
    // Before the client knows, who may ask the next thing at once.
    open.now.fetch_sub(1, Ordering::SeqCst);
    stream.write_all(&answered)
}

/// Says that there is more, and more.
fn go_on(mut stream: &TcpStream, at_once: bool) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let text = "x".repeat(if at_once { 0x1_0000 } else { 1 });
    for _ in 0..0x1_0000 {
        write!(stream, "{:x}\r\n{text}\r\n", text.len())?;
        if !at_once {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn understood(path: String, head: String, raw: Vec<u8>) -> ReceivedRequest {
    let body: Value = serde_json::from_slice(&raw).unwrap_or_default();
    let system = ["/system", "/messages/0/content", "/systemInstruction/parts/0/text"];
    let system = system.iter().find_map(|at| body.pointer(at)?.as_str()).unwrap_or_default();
    let stage = Stage::ALL.into_iter().find(|stage| system.ends_with(stage.question()));
    let in_path = || path.rsplit('/').next().unwrap().split(':').next().unwrap().to_owned();
    let model = body["model"].as_str().map_or_else(in_path, str::to_owned);
    ReceivedRequest { path, head, body, model, stage, raw }
}

/// How this call is to fail, if it is.
fn failure(request: &ReceivedRequest, before: usize) -> Option<&str> {
    let mut parts = request.model.split('.');
    let (stage, failure, how_often) = (parts.next()?, parts.next()?, parts.next()?);
    let now = how_often == "always" || before == 0;
    (request.stage.is_some_and(|own| own.name() == stage) && now).then_some(failure)
}

fn reply(request: &ReceivedRequest, answer: Option<Value>, before: usize) -> Vec<u8> {
    if request.path.ends_with("/embeddings") {
        return embeddings(request);
    }
    // As a collector.
    if ["/v1/logs", "/v1/metrics"].contains(&request.path.as_str()) {
        return http("200 OK", "", "");
    }
    let Some(answer) = answer else { return http("404 Not Found", "", "{}") };
    let text = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
    let has = |places: &[&str]| places.iter().any(|at| request.body.pointer(at).is_some());
    let has_schema = has(&["/response_format", "/tools", "/generationConfig/responseJsonSchema"]);
    let has_temperature = has(&["/temperature", "/generationConfig/temperature"]);
    let good = |text: &str| http("200 OK", "", &wrapped(request, text, "").to_string());
    match failure(request, before) {
        None | Some("three_at_once") => good(&text),
        // Less sure of itself every second time.
        Some("noisy") => good(&if before % 2 == 1 { text.replace("0.75", "0.55") } else { text }),
        Some("fenced") => good(&format!("```json\n{text}\n```")),
        Some("not_json") => good(&format!("Here you are: {text}")),
        Some("wrong_form") => good(r#"{"something": "else"}"#),
        Some("out_of_range") => {
            let mut answer = answer;
            for key in ["score", "verdict", "confidence"] {
                if answer.get(key).is_some() {
                    answer[key] = json!(75);
                }
            }
            good(&answer.to_string())
        }
        Some("refused") => http("200 OK", "", &wrapped(request, "", "refused").to_string()),
        Some("cut_off") => http("200 OK", "", &wrapped(request, &text, "cut_off").to_string()),
        Some("not_of_format") => http("200 OK", "", r#"{"hello": "world"}"#),
        Some("rate_limited") => http("429 Too Many Requests", "Retry-After: 0\r\n", "{}"),
        Some("server_error") => http("500 Internal Server Error", "", "{}"),
        Some("unauthorized") => http("401 Unauthorized", "", "{}"),
        Some("echoes_the_key") => http("401 Unauthorized", "", &request.head),
        Some("redirect") => {
            // To the port at the end of the model's name, or to one without a listener.
            let port = request.model.rsplit('.').next().and_then(|port| port.parse::<u16>().ok());
            let to = format!("Location: http://127.0.0.1:{}/v1\r\n", port.unwrap_or(1));
            http("307 Temporary Redirect", &to, "")
        }
        Some("too_large") => good(&"x".repeat(10 << 20)),
        Some("no_schemas" | "neither") if has_schema => http("400 Bad Request", "", "{}"),
        Some("no_temperature" | "neither") if has_temperature => http("400 Bad Request", "", "{}"),
        Some("no_schemas" | "no_temperature" | "neither") => good(&text),
        Some("filtered") => http("400 Bad Request", "", r#"{"error": {"code": "content_filter"}}"#),
        Some("no_such_model") => http("404 Not Found", "", "{}"),
        Some("overloaded") => http("529 Site is overloaded", "", "{}"),
        Some("gateway_timeout") => http("504 Gateway Timeout", "", "{}"),
        Some("come_back_later") => http("429 Too Many Requests", "Retry-After: 3600\r\n", "{}"),
        Some("come_back_by_a_date") => {
            let dates = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 09:49:37 GMT\r\n";
            http("503 Service Unavailable", dates, "{}")
        }
        Some(how @ ("uncounted" | "overcounted" | "counted_as_nothing")) => {
            http("200 OK", "", &miscounted(wrapped(request, &text, ""), how))
        }
        // A body that claims to be small when inflated or not.
        Some("compressed") => http("200 OK", "Content-Encoding: gzip\r\n", "\u{1f}not really"),
        Some("broken_off") => {
            let mut whole = good(&text);
            whole.truncate(whole.len() - 20);
            whole
        }
        Some("timeout") => Vec::new(),
        Some(_) => http("418 No such failure", "", "{}"),
    }
}

/// A reply that does not say what it took, forgets to count the question, or counts far more than it was asked for.
fn miscounted(mut reply: Value, how: &str) -> String {
    match how {
        "uncounted" => {
            reply.as_object_mut().unwrap().retain(|key, _| !key.starts_with("usage"));
            reply.to_string()
        }
        "overcounted" => reply.to_string().replace(":10}", ":200000}").replace(":10,", ":200000,"),
        _ => reply.to_string().replace(":100", ":0"),
    }
}

/// A text in the reply format of the request.
fn wrapped(request: &ReceivedRequest, text: &str, how: &str) -> Value {
    let ended = |good: &'static str, cut_off: &'static str, refused: &'static str| match how {
        "cut_off" => cut_off,
        "refused" => refused,
        _ => good,
    };
    if request.path.ends_with("/messages") {
        let parsed: Option<Value> = serde_json::from_str(text).ok();
        let block = match parsed.filter(|_| request.body["tools"].is_array()) {
            Some(input) => json!({ "type": "tool_use", "id": "1", "name": "n", "input": input }),
            None => json!({ "type": "text", "text": text }),
        };
        return json!({
            "content": [block], "stop_reason": ended("end_turn", "max_tokens", "refusal"),
            "usage": { "input_tokens": 100, "output_tokens": 10 },
        });
    }
    if request.path.contains(":generateContent") {
        return json!({
            "candidates": [{
                "content": { "parts": [{ "text": "hm", "thought": true }, { "text": text }] },
                "finishReason": ended("STOP", "MAX_TOKENS", "SAFETY"),
            }],
            "usageMetadata": { "promptTokenCount": 100, "candidatesTokenCount": 8, "thoughtsTokenCount": 2 },
        });
    }
    let refusal = if how == "refused" { json!("I cannot") } else { Value::Null };
    json!({
        "choices": [{
            "message": { "role": "assistant", "content": text, "refusal": refusal },
            "finish_reason": ended("stop", "length", "stop"),
        }],
        "usage": { "prompt_tokens": 100, "completion_tokens": 10 },
    })
}

fn http(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Vectors of two parts: which of `refund` and `weather` a text mentions; last first.
fn embeddings(request: &ReceivedRequest) -> Vec<u8> {
    let texts = request.body["input"].as_array().unwrap().iter().enumerate();
    let vector = |(index, text): (usize, &Value)| {
        let has = |word| f64::from(u8::from(text.as_str().unwrap().contains(word)));
        json!({ "index": index, "embedding": [has("refund"), has("weather")] })
    };
    let data: Vec<Value> = texts.rev().map(vector).collect();
    http("200 OK", "", &json!({ "object": "list", "data": data }).to_string())
}
