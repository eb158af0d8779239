//! The same captures in other orders, doubled, cut into single spans, and without content.

use std::fs;
use std::path::Path;
use std::thread;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::logs::v1::{ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use prost::Message;
use serde_json::Value;

use super::{compare_tools, expected, folders, replay, traces_of};

/// One request.
#[derive(Clone)]
enum Request {
    Traces(ExportTraceServiceRequest),
    Logs(ExportLogsServiceRequest),
}

/// Another way in which the same could have arrived.
struct Shake {
    name: &'static str,
    shake: fn(Vec<Request>) -> Vec<Request>,
}

const SHAKES: [Shake; 6] = [
    Shake { name: "shuffled", shake: shuffled },
    Shake { name: "doubled", shake: doubled },
    Shake { name: "cut into single spans", shake: cut },
    Shake { name: "cut and shuffled", shake: |requests| shuffled(cut(requests)) },
    Shake { name: "logs first", shake: |requests| logs_at(requests, true) },
    Shake { name: "logs last", shake: |requests| logs_at(requests, false) },
];

#[test]
fn order_and_duplication_change_nothing() {
    let differences = on_all(|folder| {
        let straight = replay(folder);
        let requests = requests(folder);
        SHAKES
            .iter()
            .filter_map(|shake| {
                let shaken = replay_of(&(shake.shake)(requests.clone()));
                let difference = difference("", &straight, &shaken)?;
                Some(format!("{}, {}: {difference}", folder.display(), shake.name))
            })
            .collect()
    });
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn loops_are_found_without_content_where_names_suffice() {
    let checked = on_all(|folder| {
        let bare: Vec<Request> = requests(folder).into_iter().map(without_content).collect();
        let document = replay_of(&bare);
        let expected = expected(folder);
        let turns = expected["turns"].as_array().unwrap().iter();
        turns
            .filter_map(|turn| {
                let traces = traces_of(&document, turn).ok()?;
                // Without tool spans nothing is left of the calls.
                compare_tools(turn, &traces, false, false).ok()?;
                Some((turn, traces))
            })
            .filter_map(|(turn, traces)| {
                let name = || format!("{} turn {}", folder.display(), turn["turn"]);
                let loops: Vec<&Value> = traces
                    .iter()
                    .flat_map(|(_, trace)| trace["loops"].as_array().unwrap())
                    .filter(|entry| entry["kind"] != "output_repeat")
                    .collect();
                let count = turn["loop_count"].as_u64().unwrap_or(0);
                if turn["loop"] == Value::Bool(false) {
                    assert_eq!(loops, Vec::<&Value>::new(), "{}", name());
                }
                if turn["loop"] != Value::Bool(true) || count < 5 {
                    return None;
                }
                let [entry] = loops.as_slice() else { panic!("{}: {loops:?}", name()) };
                assert_eq!(entry["evidence"], "names", "{}", name());
                assert_eq!(entry["severity"], "warning", "{}", name());
                assert_eq!(entry["count"], count, "{}", name());
                Some(name())
            })
            .collect()
    });
    assert!(checked.len() >= 30, "too few loops are left: {checked:#?}");
}

/// The first place where two documents differ, with both values.
fn difference(at: &str, a: &Value, b: &Value) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            a.iter().find_map(|(key, value)| difference(&format!("{at}/{key}"), value, &b[key]))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.into_iter().find_map(|(n, (a, b))| difference(&format!("{at}/{n}"), a, b))
        }
        _ if a == b => None,
        _ => Some(format!("{at}: {a} is {b}")),
    }
}

/// Runs a check on every capture, a few at a time; all that it returns, in order.
fn on_all(check: impl Fn(&Path) -> Vec<String> + Sync) -> Vec<String> {
    let folders = folders();
    let chunks = folders.chunks(folders.len().div_ceil(4));
    let check = &check;
    thread::scope(|scope| {
        let threads: Vec<_> = chunks
            .map(|chunk| {
                scope.spawn(move || {
                    chunk.iter().flat_map(|folder| check(folder)).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn requests(folder: &Path) -> Vec<Request> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let pb = paths.iter().filter(|path| path.extension().is_some_and(|kind| kind == "pb"));
    pb.map(|path| {
        let bytes = fs::read(path).unwrap();
        if path.file_name().unwrap().to_string_lossy().contains("logs") {
            Request::Logs(ExportLogsServiceRequest::decode(bytes.as_slice()).unwrap())
        } else {
            Request::Traces(ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap())
        }
    })
    .collect()
}

fn replay_of(requests: &[Request]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    for (at, request) in requests.iter().enumerate() {
        let (kind, bytes) = match request {
            Request::Traces(traces) => ("traces", traces.encode_to_vec()),
            Request::Logs(logs) => ("logs", logs.encode_to_vec()),
        };
        fs::write(folder.path().join(format!("{at:05}-{kind}.pb")), bytes).unwrap();
    }
    replay(folder.path())
}

/// Every third one first, the rest backwards: far from any order that a client would send in.
fn shuffled(requests: Vec<Request>) -> Vec<Request> {
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for (at, request) in requests.into_iter().enumerate() {
        if at % 3 == 1 { first.push(request) } else { rest.push(request) }
    }
    first.extend(rest.into_iter().rev());
    first
}

fn doubled(requests: Vec<Request>) -> Vec<Request> {
    let again = requests.clone().into_iter().rev();
    requests.into_iter().flat_map(|request| [request.clone(), request]).chain(again).collect()
}

fn logs_at(requests: Vec<Request>, first: bool) -> Vec<Request> {
    let (mut logs, mut traces): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|request| matches!(request, Request::Logs(_)));
    if first {
        logs.append(&mut traces);
        logs
    } else {
        traces.append(&mut logs);
        traces
    }
}

fn cut(requests: Vec<Request>) -> Vec<Request> {
    requests
        .into_iter()
        .flat_map(|request| match request {
            Request::Traces(traces) => cut_traces(traces),
            Request::Logs(logs) => cut_logs(logs),
        })
        .collect()
}

fn cut_traces(traces: ExportTraceServiceRequest) -> Vec<Request> {
    let mut single = Vec::new();
    for resource in traces.resource_spans {
        for scope in &resource.scope_spans {
            for span in &scope.spans {
                let scope_spans = vec![ScopeSpans { spans: vec![span.clone()], ..scope.clone() }];
                let resource_spans = vec![ResourceSpans { scope_spans, ..resource.clone() }];
                single.push(Request::Traces(ExportTraceServiceRequest { resource_spans }));
            }
        }
    }
    single
}

/// Cuts the records of agents that send log records. Other records with one time are ordered only by their place in the request.
fn cut_logs(logs: ExportLogsServiceRequest) -> Vec<Request> {
    if !logs.resource_logs.iter().flat_map(|logs| &logs.scope_logs).all(speaks) {
        return vec![Request::Logs(logs)];
    }
    let mut single = Vec::new();
    for resource in logs.resource_logs {
        for scope in &resource.scope_logs {
            for record in &scope.log_records {
                let scope_logs =
                    vec![ScopeLogs { log_records: vec![record.clone()], ..scope.clone() }];
                let resource_logs = vec![ResourceLogs { scope_logs, ..resource.clone() }];
                single.push(Request::Logs(ExportLogsServiceRequest { resource_logs }));
            }
        }
    }
    single
}

/// Whether these records are from an agent that sends no spans.
fn speaks(logs: &ScopeLogs) -> bool {
    let name = logs.scope.as_ref().map_or("", |scope| scope.name.as_str());
    let known = ["com.anthropic.claude_code", "codex_otel", "gemini-cli", "qwen-code"];
    known.iter().any(|known| name.starts_with(known))
}

/// What a library sends when it is configured to leave out texts and arguments.
fn without_content(request: Request) -> Request {
    match request {
        Request::Traces(mut traces) => {
            let scopes = traces.resource_spans.iter_mut().flat_map(|spans| &mut spans.scope_spans);
            for span in scopes.flat_map(|scope| &mut scope.spans) {
                span.attributes.retain(is_bare);
                for event in &mut span.events {
                    event.attributes.retain(is_bare);
                }
            }
            Request::Traces(traces)
        }
        Request::Logs(mut logs) => {
            let scopes = logs.resource_logs.iter_mut().flat_map(|logs| &mut logs.scope_logs);
            for scope in scopes {
                if !speaks(scope) {
                    scope.log_records.clear();
                }
                for record in &mut scope.log_records {
                    record.attributes.retain(|attribute| {
                        is_bare(attribute) && !DETAILS.contains(&attribute.key.as_str())
                    });
                }
            }
            Request::Logs(logs)
        }
    }
}

/// What agents leave out of their records when they are configured to leave out details.
const DETAILS: [&str; 7] = [
    "prompt",
    "tool_input",
    "tool_parameters",
    "arguments",
    "function_args",
    "response_text",
    "request_text",
];

/// Whether an attribute carries neither text nor arguments.
fn is_bare(attribute: &KeyValue) -> bool {
    const CONTENT: [&str; 21] = [
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.args",
        "tool.parameters",
        "tool_arguments",
        "tool_response",
        "final_result",
        "content",
        "message",
        "tool.result",
        "ai.response.text",
        "ai.response.toolCalls",
        "ai.toolCall.args",
        "ai.toolCall.result",
        "raw_input",
        "input",
        "output",
        "response",
        "events",
        "gcp.vertex.agent.tool_call_args",
        "gcp.vertex.agent.tool_response",
    ];
    const PARTS: [&str; 31] = [
        "messages",
        "gen_ai.prompt",
        "gen_ai.completion",
        "input.value",
        "output.value",
        "entity.input",
        "entity.output",
        "observation.input",
        "observation.output",
        "trace.input",
        "trace.output",
        "ai.prompt",
        "spanInputs",
        "spanOutputs",
        "llm_request",
        "llm_response",
        "spring.ai.tool.call.",
        "lmnr.span.input",
        "lmnr.span.output",
        "langwatch.input",
        "langwatch.output",
        "agentops.tool.",
        "agentops.entity.",
        "agentops.task.",
        "function_tool.arguments",
        "function_tool.output",
        "lk.chat_ctx",
        "genkit:input",
        "genkit:output",
        "braintrust.input",
        "braintrust.output",
    ];
    let key = attribute.key.as_str();
    let by_mastra =
        key.starts_with("mastra.") && (key.ends_with(".input") || key.ends_with(".output"));
    !by_mastra && !CONTENT.contains(&key) && !PARTS.iter().any(|part| key.contains(part))
}
