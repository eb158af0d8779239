//! Agents that send log records, beyond their captures: with spans too, without details, cut off, several at once, late, and from
//! the configuration.

use agentgauge::engine::convention::LogConvention;
use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::span::{RECORD_SCOPE, Timestamp};
use agentgauge::engine::view::{Document, TraceView};
use agentgauge::ingest::decode::Decoder;
use agentgauge::ingest::decode::IngestLimits;
use agentgauge::ingest::{Encoding, Signal};
use serde_json::{Map, Value, json};

use crate::recorded::{Item, apply, items, restarted};

const TRACE: &str = "5b8aa5a2d2c872e8321cf37308d69df2";

/// A moment, in milliseconds after the first.
fn at(ms: u64) -> u64 {
    1_795_334_650_000_000_000 + ms * 1_000_000
}

fn attributes(sent: &Value) -> Value {
    let sent: &Map<String, Value> = sent.as_object().unwrap();
    let value = |value: &Value| match value {
        Value::String(text) => json!({"stringValue": text}),
        Value::Bool(flag) => json!({"boolValue": flag}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        other @ (Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            json!({"intValue": other.to_string()})
        }
    };
    sent.iter().map(|(key, sent)| json!({"key": key, "value": value(sent)})).collect()
}

fn record(ms: u64, event: &str, sent: Value) -> Value {
    let mut sent = sent;
    sent["event.name"] = json!(event);
    let mut record = json!({"timeUnixNano": at(ms).to_string(), "attributes": attributes(&sent)});
    for id in ["traceId", "spanId"] {
        if let Some(own) = sent.get(id) {
            record[id] = own.clone();
        }
    }
    record
}

fn logs(service: &str, scope: &str, records: &[Value]) -> (Signal, Value) {
    let resource = json!({"attributes": attributes(&json!({"service.name": service}))});
    let scopes = json!([{"scope": {"name": scope}, "logRecords": records}]);
    (Signal::Logs, json!({"resourceLogs": [{"resource": resource, "scopeLogs": scopes}]}))
}

fn claude(records: &[Value]) -> (Signal, Value) {
    logs("claude-code", "com.anthropic.claude_code.events", records)
}

fn decode(options: &ConventionOptions, requests: &[(Signal, Value)]) -> Vec<Item> {
    let decoder = Decoder::new(IngestLimits::default(), options.clone());
    let mut items = Vec::new();
    for (signal, request) in requests {
        let body = serde_json::to_vec(request).unwrap();
        let batch = decoder.decode_plain(*signal, Encoding::Json, &body).unwrap();
        items.extend(batch.spans.into_iter().map(|span| Item::Span(Box::new(span))));
        items.extend(batch.logs.into_iter().map(|log| Item::Log(Box::new(log))));
    }
    items
}

fn document(items: &[Item], shards: u32) -> Document {
    let mut options = EngineOptions::default();
    options.assemble.keep_content = true;
    let mut pipeline = Pipeline::new(&options, shards);
    apply(&mut pipeline, items, Timestamp(at(0)));
    pipeline.finish(Timestamp(at(0)));
    pipeline.document()
}

/// The results, which are the same backwards, doubled, and with any number of shards.
fn read(options: &ConventionOptions, requests: &[(Signal, Value)]) -> Document {
    let sent = decode(options, requests);
    let straight = document(&sent, 1);
    let backwards: Vec<Item> = sent.iter().rev().cloned().collect();
    let twice: Vec<Item> = backwards.iter().chain(&sent).cloned().collect();
    for (other, shards) in [(&sent, 5), (&backwards, 1), (&backwards, 3), (&twice, 1)] {
        let other = document(other, shards);
        assert_eq!(json!(other.sessions), json!(straight.sessions));
        assert_eq!(json!(other.agents), json!(straight.agents));
    }
    straight
}

fn only(document: &Document) -> &TraceView {
    let traces: Vec<&TraceView> =
        document.sessions.iter().flat_map(|session| &session.traces).collect();
    let [trace] = traces.as_slice() else { panic!("{traces:#?}") };
    trace
}

fn tools(trace: &TraceView) -> Vec<(&str, Option<bool>)> {
    trace.tools.iter().map(|tool| (tool.name.as_deref().unwrap_or_default(), tool.error)).collect()
}

/// A turn of Claude Code in records, in the trace of its spans or in a separate one.
fn turn(own: Option<&str>) -> Vec<Value> {
    let base = |more: Value| {
        let mut sent = json!({"session.id": "s", "prompt.id": "p"});
        if let Some(trace) = own {
            (sent["traceId"], sent["spanId"]) = (json!(trace), json!("00000000000000a1"));
        }
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sent
    };
    let call = |id: &str, ms: u64, input: u64| {
        record(
            ms,
            "api_request",
            base(json!({
                "model": "m", "input_tokens": input, "output_tokens": 5, "cache_read_tokens": 100,
                "cache_creation_tokens": 10, "cost_usd": 0.25, "duration_ms": 90, "request_id": id,
                "query_source": "repl_main_thread"
            })),
        )
    };
    let said = |id: &str, ms: u64, text: &str| {
        let sent = json!({"response": text, "request_id": id, "query_source": "repl_main_thread"});
        record(ms, "assistant_response", base(sent))
    };
    vec![
        record(0, "user_prompt", base(json!({"prompt": "why?", "prompt_length": "4"}))),
        record(
            95,
            "tool_decision",
            base(json!({"tool_name": "Bash", "tool_use_id": "t1", "decision": "accept"})),
        ),
        call("r1", 100, 1),
        said("r1", 100, "I look."),
        record(
            150,
            "tool_result",
            base(
                json!({"tool_name": "Bash", "tool_use_id": "t1", "success": "false", "duration_ms": "50", "tool_input": "{\"command\":\"ls\"}"}),
            ),
        ),
        call("r2", 300, 2),
        said("r2", 301, "Because."),
        record(
            400,
            "api_request",
            base(
                json!({"model": "small", "input_tokens": 7, "output_tokens": 3, "cost_usd": 0.5, "request_id": "r3", "query_source": "prompt_suggestion"}),
            ),
        ),
    ]
}

/// The same turn in spans.
fn spans() -> (Signal, Value) {
    let span = |id: u64, parent: u64, name: &str, (start, end): (u64, u64), sent: Value| {
        let mut sent = sent;
        sent["span.type"] = json!(name);
        sent["session.id"] = json!("s");
        let mut span = json!({
            "traceId": TRACE, "spanId": format!("{id:016x}"), "name": format!("claude_code.{name}"),
            "startTimeUnixNano": at(start).to_string(), "endTimeUnixNano": at(end).to_string(),
            "attributes": attributes(&sent)
        });
        if parent > 0 {
            span["parentSpanId"] = json!(format!("{parent:016x}"));
        }
        span
    };
    let call = |input: u64| json!({"gen_ai.request.model": "m", "input_tokens": input, "output_tokens": 5, "cache_read_tokens": 100, "cache_creation_tokens": 10, "success": true});
    let tool = json!({"tool_name": "Bash", "full_command": "ls", "gen_ai.tool.call.id": "t1"});
    let small = json!({"gen_ai.request.model": "small", "input_tokens": 7, "output_tokens": 3});
    let spans = [
        span(0xa1, 0, "interaction", (0, 410), json!({"interaction.sequence": 1})),
        span(0xa2, 0xa1, "llm_request", (9, 99), call(1)),
        span(0xa3, 0xa1, "tool", (96, 151), tool),
        span(0xa4, 0xa3, "tool.execution", (97, 150), json!({"success": false, "error": "exit 1"})),
        span(0xa5, 0xa1, "llm_request", (205, 302), call(2)),
        span(0xa6, 0xa1, "llm_request", (390, 400), small),
    ];
    let resource = json!({"attributes": attributes(&json!({"service.name": "claude-code"}))});
    let scopes = json!([{"scope": {"name": "com.anthropic.claude_code.tracing"}, "spans": spans}]);
    (Signal::Traces, json!({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}))
}

#[test]
fn a_turn_in_records_spans_or_both_counts_each_call_once() {
    let options = ConventionOptions::default();
    for (requests, records) in [
        (vec![claude(&turn(None))], true),
        (vec![spans()], false),
        (vec![spans(), claude(&turn(Some(TRACE)))], true),
    ] {
        let document = read(&options, &requests);
        let trace = only(&document);
        assert_eq!(trace.llm_calls, 3);
        assert_eq!(tools(trace), [("Bash", Some(true))]);
        let tokens = &trace.tokens;
        assert_eq!((tokens.input, tokens.output), (Some(101 + 102 + 20 + 7), Some(13)));
        assert!(trace.complete && !trace.error);
        if records {
            assert_eq!(trace.cost_usd, Some(1.0));
            assert_eq!(trace.tools[0].arguments, Some(json!({"command": "ls"})));
            assert_eq!(trace.input.as_deref(), Some("why?"));
            // An answer that the client requests for its own purposes does not count.
            assert_eq!(trace.output.as_deref(), Some("Because."));
        }
        let agents: Vec<_> =
            document.agents.iter().map(|agent| agent.agent.agent_name.as_deref()).collect();
        assert_eq!(agents, [Some("claude-code")]);
    }
}

#[test]
fn what_a_person_refused_is_no_call_and_what_settings_refused_is_one_that_failed() {
    let codex = "codex.tool_decision";
    let turn = |service: &str, scope: &str, sent: &[(&str, Value)]| {
        let records = sent.iter().zip(0..).map(|((event, own), at)| {
            let mut sent = json!({"session.id": "s", "conversation.id": "s", "prompt.id": "p", "prompt": "why?"});
            sent.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            record(at * 100, event, sent)
        });
        let records: Vec<Value> = records.collect();
        read(&ConventionOptions::default(), &[logs(service, scope, &records)])
    };
    let edit = |more: Value| {
        let mut sent = json!({"tool_name": "Edit", "tool_use_id": "t1", "call_id": "t1", "function_name": "Edit"});
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sent
    };
    let decided = |by: &str| {
        let decision = edit(json!({"decision": "reject", "source": by}));
        let result = edit(json!({"success": "false", "duration_ms": "5"}));
        let list =
            [("user_prompt", json!({})), ("tool_decision", decision), ("tool_result", result)];
        turn("claude-code", "com.anthropic.claude_code.events", &list)
    };
    for by in ["user_reject", "user_abort"] {
        let document = decided(by);
        let trace = only(&document);
        assert_eq!(tools(trace), []);
        assert_eq!((trace.rejected_edits, trace.error), (1, false));
    }
    for by in ["config", "hook"] {
        assert_eq!(tools(only(&decided(by))), [("Edit", Some(true))]);
    }
    let of_codex = |decision: &str, by: &str| {
        let decided = edit(json!({"decision": decision, "source": by}));
        let result = edit(json!({"success": "false", "output": "no", "duration_ms": "5"}));
        let list =
            [("codex.user_prompt", json!({})), (codex, decided), ("codex.tool_result", result)];
        let document = turn("codex_exec", "codex_otel.log_only", &list);
        tools(only(&document)).len()
    };
    assert_eq!((of_codex("denied", "User"), of_codex("abort", "User")), (0, 0));
    assert_eq!((of_codex("denied", "Config"), of_codex("timed_out", "User")), (1, 1));
    let of_gemini = |decision: &str| {
        let call = edit(json!({"decision": decision, "success": false, "duration_ms": 5}));
        let list = [("gemini_cli.user_prompt", json!({})), ("gemini_cli.tool_call", call)];
        let document = turn("gemini-cli", "gemini-cli", &list);
        tools(only(&document)).len()
    };
    assert_eq!((of_gemini("reject"), of_gemini("accept")), (0, 1));
}

#[test]
fn an_answer_without_an_id_belongs_to_the_call_whose_record_came_just_before() {
    let sent = |sequence: u64, event: &str, more: Value| {
        let mut sent = json!({"session.id": "s", "prompt.id": "p", "event.sequence": sequence});
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record(100 * sequence, event, sent)
    };
    let call = || json!({"model": "m", "input_tokens": 1, "output_tokens": 5});
    let records = [
        sent(1, "user_prompt", json!({"prompt": "why?"})),
        sent(2, "api_request", call()),
        sent(3, "assistant_response", json!({"response": "I look."})),
        sent(5, "api_request", call()),
        sent(6, "assistant_response", json!({"response": "Because."})),
    ];
    let document = read(&ConventionOptions::default(), &[claude(&records)]);
    let trace = only(&document);
    assert_eq!((trace.llm_calls, trace.output.as_deref()), (2, Some("Because.")));
    // The record of an answer does not name the sub-agent that gave it.
    let helper = |name| json!({"query_source": "agent:custom", "agent.name": name});
    let (mut call, mut answer) = (call(), json!({"response": "Done."}));
    call.as_object_mut().unwrap().extend(helper(json!("expert")).as_object().unwrap().clone());
    answer.as_object_mut().unwrap().extend(helper(Value::Null).as_object().unwrap().clone());
    let aside = [sent(3, "api_request", call), sent(4, "assistant_response", answer)];
    let records = [&records[..2], &aside, &records[3..]].concat();
    let document = read(&ConventionOptions::default(), &[claude(&records)]);
    let trace = only(&document);
    let helpers: Vec<_> =
        trace.sub_agents.iter().map(|helper| (&*helper.name, helper.model_calls)).collect();
    assert_eq!((trace.output.as_deref(), helpers), (Some("Because."), vec![("expert", 1)]));
}

#[test]
fn a_turn_that_was_killed_says_what_it_began() {
    let document = read(&ConventionOptions::default(), &[claude(&turn(None)[..4])]);
    let trace = only(&document);
    assert_eq!(tools(trace), [("Bash", None)]);
    assert_eq!((trace.llm_calls, trace.output.as_deref()), (1, Some("I look.")));
}

#[test]
fn sessions_in_one_process_and_sub_agents_are_told_apart() {
    let of = |session: &str, prompt: &str, ms: u64, event: &str, more: Value| {
        let mut sent = json!({"session.id": session, "prompt.id": prompt});
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record(ms, event, sent)
    };
    let call = |source: &str, agent: &str| json!({"model": "m", "input_tokens": 1, "output_tokens": 1, "request_id": source, "query_source": source, "agent.name": agent});
    let records = [
        of("one", "p1", 0, "user_prompt", json!({"prompt": "<REDACTED>"})),
        of("two", "p2", 0, "user_prompt", json!({"prompt": "<REDACTED>"})),
        of("one", "p1", 5, "api_request", call("agent:builtin:general-purpose", "general-purpose")),
        of("one", "p1", 6, "subagent_completed", json!({"total_tokens": 99})),
        of("one", "p1", 7, "api_request", call("sdk", "")),
        of("two", "p2", 8, "api_error", json!({"model": "m", "error": "no", "status_code": 500})),
        of("one", "p3", 90, "user_prompt", json!({})),
        of(
            "one",
            "p3",
            95,
            "tool_decision",
            json!({"tool_name": "Edit", "tool_use_id": "t", "decision": "reject"}),
        ),
        of(
            "one",
            "p3",
            99,
            "tool_result",
            json!({"tool_name": "mcp_tool", "tool_use_id": "u", "success": "true", "tool_parameters": "{\"mcp_server_name\":\"shop\",\"mcp_tool_name\":\"find\"}"}),
        ),
    ];
    let document = read(&ConventionOptions::default(), &[claude(&records)]);
    let sessions: Vec<_> = document.sessions.iter().map(|session| session.traces.len()).collect();
    assert_eq!(sessions, [2, 1]);
    let one = document.sessions.iter().find(|session| session.session_id == "one").unwrap();
    let [first, second] = one.traces.as_slice() else { panic!() };
    assert_eq!((first.llm_calls, first.tokens.input), (2, Some(2)));
    assert_eq!((first.rejected_edits, second.accepted_edits, second.rejected_edits), (0, 0, 1));
    assert_eq!(first.input, None);
    assert_eq!(tools(second), [("Edit", Some(true)), ("mcp__shop__find", Some(false))]);
    let two = document.sessions.iter().find(|session| session.session_id == "two").unwrap();
    assert!(two.traces[0].error);
}

#[test]
fn an_agent_that_the_user_made_is_named_by_the_record_that_names_it() {
    let call = |more: Value| {
        let mut sent = json!({"session.id": "s", "prompt.id": "p", "request_id": "r", "query_source": "agent:custom"});
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sent
    };
    let request = json!({"model": "m", "input_tokens": 3, "output_tokens": 1});
    let records = [
        record(0, "user_prompt", json!({"session.id": "s", "prompt.id": "p", "prompt": "Hi"})),
        record(5, "assistant_response", call(json!({"response": "x", "agent.name": "expert"}))),
        record(6, "api_request", call(request)),
    ];
    let document = read(&ConventionOptions::default(), &[claude(&records)]);
    let trace = &document.sessions[0].traces[0];
    assert_eq!(trace.llm_calls, 1);
    let agents: Vec<_> =
        trace.sub_agents.iter().map(|agent| (&*agent.name, agent.model_calls)).collect();
    assert_eq!(agents, [("expert", 1)]);
}

/// Records of a session, whatever their prompt is.
fn of_prompt(prompt: &str, ms: u64, event: &str, more: Value) -> Value {
    let Value::Object(mut sent) = more else { panic!("{more} is no object") };
    sent.extend([("session.id".to_owned(), json!("s")), ("prompt.id".to_owned(), json!(prompt))]);
    record(ms, event, Value::Object(sent))
}

#[test]
fn a_command_of_the_client_is_a_turn_where_it_calls_a_model() {
    let command = |name: &str| json!({"prompt": format!("/{name}"), "command_name": name, "command_source": "builtin"});
    let call = |source: &str| json!({"model": "m", "input_tokens": 1, "output_tokens": 1, "request_id": source, "query_source": source});
    let records = [
        of_prompt("p1", 0, "user_prompt", json!({"prompt": "why?"})),
        of_prompt("p1", 5, "api_request", call("repl_main_thread")),
        of_prompt("p2", 20, "user_prompt", command("compact")),
        of_prompt("p2", 30, "api_request", call("compact")),
        of_prompt("p3", 50, "user_prompt", command("exit")),
    ];
    let document = read(&ConventionOptions::default(), &[claude(&records)]);
    let [session] = document.sessions.as_slice() else { panic!() };
    let turns: Vec<_> =
        session.traces.iter().map(|trace| (trace.input.as_deref(), trace.llm_calls)).collect();
    assert_eq!(turns, [(Some("why?"), 1), (Some("/compact"), 1)]);
    let names = session.traces.iter().map(|trace| trace.agent.agent_name.as_deref());
    assert!(names.into_iter().all(|name| name == Some("claude-code")));
}

#[test]
fn an_agent_that_another_one_began_gives_no_trace_its_name() {
    let of_agent = json!({"model": "m", "input_tokens": 2, "output_tokens": 5, "cache_read_tokens": 100, "cache_creation_tokens": 10, "duration_ms": 90, "request_id": "r2", "query_source": "agent:builtin:general-purpose", "agent.name": "general-purpose"});
    let mut helped = of_prompt("p", 302, "api_request", of_agent);
    helped["traceId"] = json!(TRACE);
    helped["spanId"] = json!("00000000000000a4");
    // Before the span of its turn has arrived, too; and if its call has a span, it is the agent's all the same.
    for (requests, calls) in
        [(vec![claude(&[helped.clone()]), spans()], 3), (vec![claude(&[helped])], 1)]
    {
        let document = read(&ConventionOptions::default(), &requests);
        let trace = only(&document);
        assert_eq!(trace.agent.agent_name.as_deref(), Some("claude-code"));
        assert_eq!(trace.llm_calls, calls);
        let [part] = trace.sub_agents.as_slice() else { panic!("{:?}", trace.sub_agents) };
        assert_eq!((part.name.as_str(), part.model_calls), ("general-purpose", 1));
        assert_eq!(part.input_tokens, 112);
    }
}

#[test]
fn sub_agents_that_begin_with_the_same_call_are_no_loop_of_each_other() {
    let loops = |own_id: bool| {
        let mut records = vec![of_prompt("p", 0, "user_prompt", json!({"prompt": "Look around"}))];
        for sub_agent in 0..12_u64 {
            let mut sent = json!({
                "tool_name": "Read", "tool_use_id": format!("r{sub_agent}"), "success": "true", "duration_ms": "5",
                "tool_input": "{\"file_path\":\"CLAUDE.md\"}", "tool_result_size_bytes": "500",
            });
            if own_id {
                sent["agent_id"] = json!(format!("a{sub_agent}"));
            }
            records.push(of_prompt("p", 100 + 10 * sub_agent, "tool_result", sent));
        }
        let document = read(&ConventionOptions::default(), &[claude(&records)]);
        let loops = only(&document).loops.iter();
        loops.map(|found| (found.kind.name(), found.count)).collect::<Vec<_>>()
    };
    assert_eq!(loops(true), []);
    assert_eq!(loops(false), [("exact_repeat", 12)]);
}

#[test]
fn a_loop_that_the_agent_reports_is_one_where_arguments_were_not_sent() {
    let of = |ms, event: &str, more: Value| {
        let mut sent = json!({"session.id": "s"});
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record(ms, event, sent)
    };
    let call = |ms| {
        let sent =
            json!({"prompt_id": "s", "function_name": "grep", "success": true, "duration_ms": 4});
        of(ms, "gemini_cli.tool_call", sent)
    };
    let looped =
        || json!({"loop_type": "consecutive_identical_tool_calls", "count": 5, "prompt_id": ""});
    let records = [
        of(0, "gemini_cli.user_prompt", json!({"prompt_id": "s", "prompt_length": 3})),
        call(10),
        of(30, "gemini_cli.user_prompt", json!({"prompt_id": "s", "prompt_length": 3})),
        call(40),
        call(50),
        call(60),
        call(70),
        of(80, "loop_detected", looped()),
        of(81, "loop_detected", looped()),
        of(
            82,
            "gen_ai.client.inference.operation.details",
            json!({"gen_ai.usage.input_tokens": 4}),
        ),
    ];
    let document =
        read(&ConventionOptions::default(), &[logs("gemini-cli", "gemini-cli", &records)]);
    let [session] = document.sessions.as_slice() else { panic!() };
    let loops = |trace: &TraceView| {
        trace.loops.iter().map(|found| (found.kind.name(), found.count)).collect::<Vec<_>>()
    };
    let loops: Vec<_> = session.traces.iter().map(loops).collect();
    assert_eq!(loops, [vec![], vec![("reported", 4)]]);
}

#[test]
fn a_command_that_prints_the_same_makes_no_progress_whatever_the_client_measured() {
    let records: Vec<Value> = (0..4)
        .flat_map(|n| {
            let output = format!("Chunk ID: {n}\nWall time: 0.{n} seconds\nProcess exited with code 1\nOutput:\nnone");
            let base = json!({"conversation.id": "c", "tool_name": "exec_command", "call_id": n.to_string()});
            let mut done = base.clone();
            let more = json!({"success": "true", "duration_ms": "3", "arguments": "{\"cmd\":\"x\"}", "output": output});
            done.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let (began, ended) = (n * 10 + 1, n * 10 + 5);
            [record(began, "codex.tool_decision", base), record(ended, "codex.tool_result", done)]
        })
        .collect();
    let prompt =
        record(0, "codex.user_prompt", json!({"conversation.id": "c", "prompt": "[REDACTED]"}));
    let failed = json!({"conversation.id": "c", "http.response.status_code": 503, "attempt": 0, "error.message": "busy"});
    let counted = json!({"conversation.id": "c", "event.kind": "response.completed", "input_token_count": "12", "output_token_count": "3"});
    let bare = json!({"conversation.id": "c", "event.kind": "response.completed"});
    let rest = [
        prompt,
        record(50, "codex.api_request", failed),
        record(
            60,
            "codex.api_request",
            json!({"conversation.id": "c", "http.response.status_code": 200}),
        ),
        record(61, "codex.sse_event", bare),
        record(62, "codex.sse_event", counted),
    ];
    let all: Vec<Value> = records.into_iter().chain(rest).collect();
    let document =
        read(&ConventionOptions::default(), &[logs("codex_cli", "codex_otel.log_only", &all)]);
    let trace = only(&document);
    let [found] = trace.loops.as_slice() else { panic!("{:?}", trace.loops) };
    assert_eq!((found.kind.name(), found.count), ("exact_repeat", 4));
    // The exit status is the command's: the client says that the call went well.
    assert!(tools(trace).iter().all(|(_, error)| *error == Some(false)));
    assert_eq!((trace.llm_calls, trace.tokens.input), (2, Some(12)));
    assert_eq!(trace.input, None);
}

#[test]
fn an_agent_of_the_configuration_is_read_by_its_events() {
    let own = LogConvention {
        name: "mine".to_owned(),
        prompts: vec!["mine.asked".to_owned()],
        model_calls: vec!["mine.thought".to_owned()],
        tool_calls: vec!["mine.did".to_owned()],
        session: vec!["mine.session".to_owned()],
        tool_name: vec!["mine.tool".to_owned()],
        ..LogConvention::usual()
    };
    let options = ConventionOptions { logs: vec![own], ..ConventionOptions::default() };
    let of = |ms, event: &str, more: Value| {
        let mut sent = json!({"mine.session": "s"});
        sent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record(ms, event, sent)
    };
    let records = [
        of(0, "mine.asked", json!({"prompt": "one"})),
        of(5, "mine.thought", json!({"input_tokens": 4, "output_tokens": 2, "cost_usd": 0.5})),
        of(6, "mine.did", json!({"mine.tool": "look", "arguments": "{\"a\":1}", "success": false})),
        of(10, "mine.asked", json!({"prompt": "two"})),
        of(15, "mine.thought", json!({"input_tokens": 4, "output_tokens": 2, "response": "done"})),
        of(16, "mine.slept", json!({})),
    ];
    let document = read(&options, &[logs("mine", "any", &records)]);
    let [session] = document.sessions.as_slice() else { panic!() };
    let [first, second] = session.traces.as_slice() else { panic!() };
    assert_eq!((session.session_id.as_str(), first.llm_calls, second.llm_calls), ("s", 1, 1));
    assert_eq!(tools(first), [("look", Some(true))]);
    assert_eq!(first.cost_usd, Some(0.5));
    assert_eq!((second.input.as_deref(), second.output.as_deref()), (Some("two"), Some("done")));
}

#[test]
fn a_restart_and_a_late_prompt_change_nothing() {
    for capture in ["codex-logs", "gemini-cli-logs"] {
        let all = items(capture);
        let straight = document(&all, 2);
        let is_prompt = |item: &Item| matches!(item, Item::Span(span) if span.parent.is_none() && span.scope == RECORD_SCOPE);
        let (late, first): (Vec<Item>, Vec<Item>) = all.into_iter().partition(is_prompt);
        assert_eq!(late.len(), 4, "{capture}");
        let mut options = EngineOptions::default();
        options.assemble.keep_content = true;
        let mut pipeline = Pipeline::new(&options, 2);
        apply(&mut pipeline, &first, Timestamp(at(0)));
        apply(&mut pipeline, &late[1..3], Timestamp(at(0)));
        let route = Route::new(2, 0);
        let mut pipeline = restarted(pipeline, &options, route);
        apply(&mut pipeline, &late[3..], Timestamp(at(1)));
        apply(&mut pipeline, &late[..1], Timestamp(at(2)));
        pipeline.finish(Timestamp(at(3)));
        let document = pipeline.document();
        assert_eq!(json!(document.sessions), json!(straight.sessions), "{capture}");
    }
}

#[test]
fn a_turn_is_done_when_the_next_one_begins_and_else_when_it_was_quiet_for_long() {
    let prompt =
        |ms, id: &str| record(ms, "user_prompt", json!({"session.id": "s", "prompt.id": id}));
    let result = |ms, id: &str, call: &str| {
        let sent = json!({"session.id": "s", "prompt.id": id, "tool_name": "Bash", "tool_use_id": call, "success": "true"});
        record(ms, "tool_result", sent)
    };
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    let send = |pipeline: &mut Pipeline, seconds: u64, records: &[Value]| {
        let now = Timestamp(at(seconds * 1000));
        pipeline.advance(now);
        let sent = decode(&ConventionOptions::default(), &[claude(records)]);
        apply(pipeline, &sent, now);
    };
    let done = |pipeline: &mut Pipeline, seconds: u64| {
        pipeline.advance(Timestamp(at(seconds * 1000)));
        pipeline.document().agents.iter().map(|agent| agent.traces).sum::<u64>()
    };
    send(&mut pipeline, 0, &[prompt(0, "p"), result(500, "p", "a")]);
    assert_eq!(done(&mut pipeline, 200), 0);
    // A tool that took long, and then the next prompt.
    send(&mut pipeline, 250, &[result(250_000, "p", "b")]);
    assert_eq!(done(&mut pipeline, 400), 0);
    send(&mut pipeline, 400, &[prompt(400_000, "q"), result(400_500, "q", "c")]);
    assert_eq!(done(&mut pipeline, 415), 1);
    assert_eq!(done(&mut pipeline, 690), 1);
    assert_eq!(done(&mut pipeline, 705), 2);
    // Nothing has begun after it, so later records still belong to it.
    send(&mut pipeline, 2000, &[result(2_000_000, "q", "d")]);
    pipeline.finish(Timestamp(at(2_001_000)));
    let document = pipeline.document();
    let calls: Vec<_> = document
        .sessions
        .iter()
        .flat_map(|session| &session.traces)
        .map(|trace| trace.tools.len())
        .collect();
    assert_eq!(calls, [2, 2]);
}
