mod vendors;

use proptest::prelude::*;

use super::*;
use crate::math::Quanta;
use crate::span::{IdHash, Pause, SpanId, Status, Text, Timestamp, Tokens, TraceId};

fn attributes(list: &[(&'static str, RawValue<'static>)]) -> RawAttributes<'static> {
    list.iter().map(|(key, value)| ((*key).into(), value.clone())).collect()
}

fn text(value: &'static str) -> RawValue<'static> {
    RawValue::Str(value.into())
}

fn raw(name: &'static str, list: &[(&'static str, RawValue<'static>)]) -> RawSpan<'static> {
    RawSpan {
        trace_id: TraceId([1; 16]),
        span_id: SpanId([1; 8]),
        name: name.into(),
        attributes: attributes(list),
        ..RawSpan::default()
    }
}

fn span_of(conventions: &Conventions, raw: &RawSpan<'_>, scope: &RawScope<'_>) -> DecodedSpan {
    let emitter = Emitter { scope: conventions.scope(scope), resource: &Arc::default() };
    conventions.span(raw, emitter, &mut Names::default())
}

/// Options that keep texts.
fn options() -> ConventionOptions {
    ConventionOptions { keep_texts: true, ..ConventionOptions::default() }
}

fn read(raw: &RawSpan<'_>) -> DecodedSpan {
    read_with(options(), raw)
}

fn read_with(options: ConventionOptions, raw: &RawSpan<'_>) -> DecodedSpan {
    span_of(&Conventions::new(options), raw, &RawScope::default())
}

fn record(event: &'static str, list: &[(&'static str, RawValue<'static>)]) -> RawLog<'static> {
    RawLog { event_name: event.into(), attributes: attributes(list), ..RawLog::default() }
}

fn read_log(raw: &RawLog<'_>) -> DecodedLog {
    read_log_with(ConventionOptions::default(), raw)
}

fn read_log_with(options: ConventionOptions, raw: &RawLog<'_>) -> DecodedLog {
    let conventions = Conventions::new(options);
    let scope = conventions.scope(&RawScope::default());
    conventions.log(raw, Emitter { scope, resource: &Arc::default() })
}

#[test]
fn a_log_record_that_elides_its_content_has_no_text() {
    for event in ["gen_ai.user.message", "gen_ai.choice"] {
        let body = RawValue::Map([("content".into(), text("<elided>"))].into_iter().collect());
        let raw = RawLog { trace_id: Some(TraceId([1; 16])), body, ..record(event, &[]) };
        let log = read_log(&raw).log;
        assert_eq!(log.as_ref().and_then(|log| log.input.clone()), None, "{event}");
        assert_eq!(log.and_then(|log| log.output), None, "{event}");
    }
}

#[test]
fn a_genai_tool_span_is_read() {
    let span = read(&raw(
        "execute_tool get_weather",
        &[
            ("gen_ai.operation.name", text("execute_tool")),
            ("gen_ai.tool.call.arguments", text(r#"{"city": "Paris"}"#)),
            ("error.type", text("timeout")),
        ],
    ))
    .span;
    let tool = span.tool.unwrap();
    assert_eq!((span.operation, span.failed), (Operation::ExecuteTool, true));
    assert_eq!(tool.name.as_deref(), Some("get_weather"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"city":"Paris"}"#);
    assert_eq!(tool.result_hash, None);
}

#[test]
fn a_tool_call_of_mcp_is_named_after_its_tool() {
    for name in ["tools/call get_weather", "MCP send tools/call get_weather"] {
        let served = raw(name, &[("mcp.method.name", text("tools/call"))]);
        let span = read(&RawSpan { parent: Some(SpanId([2; 8])), ..served.clone() }).span;
        assert_eq!(span.operation, Operation::ExecuteTool);
        assert_eq!(span.tool.unwrap().name.as_deref(), Some("get_weather"));
        assert_eq!(read(&served).span.operation, Operation::Other, "a server's, of no agent");
    }
}

#[test]
fn a_run_of_langsmith_with_an_exception_has_failed_though_its_status_is_ok() {
    let failed = |list: &[(&'static str, RawValue<'static>)]| {
        let event = RawEvent { name: "exception".into(), ..RawEvent::default() };
        read(&RawSpan { status: Status::Ok, events: vec![event], ..raw("run", list) }).span.failed
    };
    assert!(failed(&[("langsmith.span.kind", text("chain"))]));
    assert!(!failed(&[("gen_ai.operation.name", text("invoke_agent"))]));
}

#[test]
fn the_kind_of_error_is_that_of_an_attribute_else_that_of_the_last_exception() {
    let kind = |status, attribute: Option<&'static str>, exceptions: &[&'static str]| {
        let tool = ("gen_ai.operation.name", text("execute_tool"));
        let list: Vec<_> =
            attribute.map(|kind| ("error.type", text(kind))).into_iter().chain([tool]).collect();
        let event = |kind: &&'static str| RawEvent {
            name: "exception".into(),
            attributes: attributes(&[("exception.type", text(kind))]),
            ..RawEvent::default()
        };
        let events = exceptions.iter().map(event).collect();
        let span = read(&RawSpan { status, events, ..raw("f", &list) }).span;
        span.remarks.and_then(|remarks| remarks.error_type)
    };
    let (unset, ok, error) = (Status::Unset, Status::Ok, Status::Error);
    assert_eq!(kind(unset, Some("Timeout"), &["a.Other"]).as_deref(), Some("Timeout"));
    assert_eq!(kind(error, None, &["a.First", "a.Last"]).as_deref(), Some("a.Last"));
    assert_eq!(kind(error, None, &[]), None);
    assert_eq!(kind(error, Some("_OTHER"), &[]), None, "the name of no kind");
    assert_eq!(kind(ok, None, &["a.Handled"]), None, "it has not failed");
    let long = "x".repeat(10_000).leak();
    assert_eq!(kind(error, Some(long), &[]).unwrap().len(), 256);
}

#[test]
fn what_waits_for_a_person_has_not_failed() {
    let tool = ("gen_ai.operation.name", text("execute_tool"));
    let by_type = |named| read(&raw("f", &[tool.clone(), ("error.type", text(named))])).span.failed;
    assert!(by_type("ValueError") && by_type("my.GraphInterruptError"));
    assert!(!by_type("GraphInterrupt") && !by_type("langgraph.errors.GraphInterrupt"));
    let by_level = |told| {
        let level = ("langfuse.observation.level", text("ERROR"));
        let told = ("langfuse.observation.status_message", text(told));
        read(&raw("f", &[("langfuse.observation.type", text("tool")), level, told])).span.failed
    };
    assert!(by_level("ValueError") && !by_level("(Interrupt(value={'ask': 1}, id='1'),)"));
    let by_event = |status, key, told: &'static str| {
        let attributes = attributes(&[(key, text(told))]);
        let event = RawEvent { name: "exception".into(), attributes, ..RawEvent::default() };
        let span = raw("f", std::slice::from_ref(&tool));
        read(&RawSpan { status, events: vec![event], ..span }).span.failed
    };
    for status in [Status::Unset, Status::Error] {
        assert!(by_event(status, "exception.type", "ValueError"));
        assert!(!by_event(status, "exception.type", "langgraph.errors.NodeInterrupt"));
        assert!(!by_event(status, "exception.message", "GraphInterrupt((Interrupt(value=1),))"));
    }
    let status_message = "(Interrupt(value={'ask': 'send?'}, id='1'),)".into();
    let span = raw("f", std::slice::from_ref(&tool));
    let span = read(&RawSpan { status: Status::Error, status_message, ..span }).span;
    assert!(!span.failed && span.remarks.unwrap().interrupted);
}

#[test]
fn control_flow_and_the_decision_of_a_guardrail_are_no_failures() {
    let agent = ("gen_ai.operation.name", text("invoke_agent"));
    let by_type = |named| read(&raw("a", &[agent.clone(), ("error.type", text(named))])).span;
    for named in ["ParentCommand", "langgraph.errors.ParentCommand", "GraphBubbleUp"] {
        let span = by_type(named);
        assert!(!span.failed && span.remarks.is_none(), "{named}: nothing waits");
    }
    assert!(by_type("my.ParentCommandError").failed && by_type("MaxTurnsExceeded").failed);
    let by_status = |told: &'static str| {
        let span = raw("a", std::slice::from_ref(&agent));
        read(&RawSpan { status: Status::Error, status_message: told.into(), ..span }).span
    };
    let logfire = |error| {
        let list = [
            ("logfire.msg_template", text("Agent run: {name!r}")),
            ("logfire.level_num", RawValue::Int(17)),
            ("error", text(error)),
        ];
        read(&raw("a", &list)).span
    };
    let blocked = [
        by_type("agents.exceptions.InputGuardrailTripwireTriggered"),
        by_status("OutputGuardrailTripwireTriggered: no advice on shares"),
        by_status("Guardrail tripwire triggered: {'guardrail': 'finance'}"),
        by_status(r#"Error in agent run: {"error":"InputGuardrailTripwireTriggered: \"x\""}"#),
        logfire(r#"{"message":"Guardrail tripwire triggered","data":{"guardrail":"finance"}}"#),
    ];
    let told = |span: &Span| span.remarks.clone().and_then(|remarks| remarks.guardrail);
    for span in &blocked {
        let result = told(span).and_then(|guardrail| guardrail.result);
        assert_eq!((span.failed, result.as_deref()), (false, Some("tripwire triggered")));
    }
    assert_eq!(told(&blocked[4]).and_then(|told| told.name).as_deref(), Some("finance"));
    assert!(by_status("ValueError: no guardrail").failed);
    assert!(logfire(r#"{"message":"Max turns exceeded"}"#).failed);
}

#[test]
fn what_waits_for_a_person_is_interrupted() {
    let interrupted = |list: &[(&'static str, RawValue<'static>)]| {
        let span = read(&raw("send_email", list)).span;
        assert!(!span.failed);
        span.remarks.is_some_and(|remarks| remarks.interrupted)
    };
    let tool = ("langfuse.observation.type", text("tool"));
    let message = "langfuse.observation.status_message";
    assert!(interrupted(&[
        tool.clone(),
        ("langfuse.observation.level", text("ERROR")),
        (message, text("GraphInterrupt: [{\"id\": \"1\"}]")),
    ]));
    assert!(interrupted(&[
        tool.clone(),
        (message, text("(Interrupt(value={'ask': 1}, id='1'),)"))
    ]));
    assert!(!interrupted(&[tool, (message, text("an Interrupt"))]));
    let run = |result| interrupted(&[("agent_name", text("a")), ("final_result", text(result))]);
    assert!(run(r#"{"calls":[],"approvals":[{"tool_name":"send_email","tool_call_id":"1"}]}"#));
    assert!(!run(r#"{"calls":[{"tool_name":"ask_user","tool_call_id":"1"}],"approvals":[]}"#));
    assert!(!run(r#"{"approvals":["of a form"]}"#));
    let framework = |output| {
        let list = [
            ("gen_ai.operation.name", text("invoke_agent")),
            ("gen_ai.output.messages", text(output)),
        ];
        let span = read_in("agent_framework", "invoke_agent a", &list);
        span.remarks.is_some_and(|remarks| remarks.interrupted)
    };
    assert!(framework(
        r#"[{"role":"assistant","parts":[{"type":"function_approval_request","id":"1"}]}]"#
    ));
    assert!(!framework(
        r#"[{"role":"assistant","parts":[{"type":"text","content":"\"function_approval_request\""}]}]"#
    ));
}

/// The span that is read in this scope.
fn read_in(
    scope: &'static str,
    name: &'static str,
    list: &[(&'static str, RawValue<'static>)],
) -> Span {
    let scope = RawScope { name: scope.into(), ..RawScope::default() };
    span_of(&Conventions::new(options()), &raw(name, list), &scope).span
}

#[test]
fn the_run_of_an_agent_of_langchain_has_the_name_in_its_metadata() {
    let openinference = |name, kind, agent: &'static str| {
        let list = [("openinference.span.kind", text(kind)), ("metadata", text(agent))];
        read_in("openinference.instrumentation.langchain", name, &list).operation
    };
    let expert = r#"{"lc_agent_name": "expert"}"#;
    assert_eq!(openinference("expert", "CHAIN", expert), Operation::InvokeAgent);
    assert_eq!(openinference("model", "CHAIN", expert), Operation::Other);
    assert_eq!(openinference("My.before_agent", "AGENT", expert), Operation::Other);
    assert_eq!(openinference("my agent", "AGENT", "{}"), Operation::InvokeAgent);
    assert_eq!(openinference("call_agent", "AGENT", expert), Operation::Other);
    let graph = r#"{"ls_integration": "langgraph"}"#;
    let node = r#"{"ls_integration": "langgraph", "langgraph_node": "team"}"#;
    assert_eq!(openinference("team", "CHAIN", graph), Operation::InvokeAgent);
    assert_eq!(openinference("team", "CHAIN", node), Operation::Other);
    assert_eq!(openinference("LangGraph", "CHAIN", graph), Operation::Other);
    let list = [("openinference.span.kind", text("AGENT")), ("tool.name", text("ask_agent"))];
    let tool = read_in("openinference.instrumentation.langchain", "ask_agent", &list);
    assert_eq!(tool.operation, Operation::ExecuteTool);
    let langsmith = |name| {
        let kind = ("langsmith.span.kind", text("chain"));
        let operation = ("gen_ai.operation.name", text("chain"));
        let agent = ("langsmith.metadata.lc_agent_name", text("expert"));
        read(&raw(name, &[kind, operation, agent])).span.operation
    };
    assert_eq!(langsmith("expert"), Operation::InvokeAgent);
    assert_eq!(langsmith("tools"), Operation::Other);
    let langfuse = |name, kind| {
        let kind = ("langfuse.observation.type", text(kind));
        let agent = ("langfuse.observation.metadata.lc_agent_name", text("\"expert\""));
        read(&raw(name, &[kind, agent])).span
    };
    assert_eq!(langfuse("expert", "chain").operation, Operation::InvokeAgent);
    assert_eq!(langfuse("expert", "tool").operation, Operation::ExecuteTool);
    assert_eq!(langfuse("model", "span").operation, Operation::Other);
    assert_eq!(langfuse("My.after_agent", "agent").operation, Operation::Other);
    assert_eq!(langfuse("model", "span").agent_name.as_deref(), Some("expert"));
}

#[test]
fn langfuse_keeps_the_session_the_user_and_the_name_of_a_langchain_run_in_metadata() {
    let span = read(&raw(
        "support-agent",
        &[
            ("langfuse.observation.type", text("span")),
            ("langfuse.observation.metadata.langfuse_session_id", text("s1")),
            ("langfuse.observation.metadata.langfuse_user_id", text("u1")),
            ("langfuse.observation.metadata.thread_id", text("t1")),
        ],
    ))
    .span;
    assert_eq!(&*span.session.unwrap().id, "s1");
    assert_eq!(
        (span.user.as_deref(), span.workflow.as_deref()),
        (Some("u1"), Some("support-agent"))
    );
}

#[test]
fn what_only_looks_like_an_agent_or_a_tool_is_none() {
    let task = read(&raw(
        "Find it.task",
        &[("gen_ai.operation.name", text("invoke_agent")), ("crewai.task.id", text("1"))],
    ));
    assert_eq!(task.span.operation, Operation::Other);
    let dspy = |name| {
        let list = [("openinference.span.kind", text("TOOL"))];
        let tool = read_in("openinference.instrumentation.dspy", name, &list).tool.unwrap();
        (tool.name.unwrap().to_string(), tool.phantom)
    };
    assert_eq!(dspy("search.__call__"), ("search".to_owned(), false));
    assert_eq!(dspy("finish.__call__"), ("finish".to_owned(), true));
    let agents = "openinference.instrumentation.openai_agents";
    let kind = ("openinference.span.kind", text("AGENT"));
    let trace = read_in(agents, "support", std::slice::from_ref(&kind));
    assert_eq!((trace.operation, trace.workflow.as_deref()), (Operation::Other, Some("support")));
    let ended = |status, list: &[_]| {
        let raw = RawSpan { status, ..raw("support", list) };
        let scope = RawScope { name: agents.into(), ..RawScope::default() };
        let span = span_of(&Conventions::new(options()), &raw, &scope).span;
        (span.status, span.failed)
    };
    assert_eq!(ended(Status::Ok, std::slice::from_ref(&kind)), (Status::Unset, false));
    assert_eq!(ended(Status::Error, std::slice::from_ref(&kind)), (Status::Error, true));
    let named = [kind.clone(), ("agent.name", text("support-agent"))];
    assert_eq!(ended(Status::Ok, &named), (Status::Ok, false));
    let agent = read_in(agents, "support", &[kind, ("agent.name", text("support-agent"))]);
    assert_eq!(agent.operation, Operation::InvokeAgent);
    assert!(is_generic("ClaudeAgentSDK.query") && is_generic("crewai.workflow"));
}

#[test]
fn a_tool_name_on_a_model_span_makes_no_tool() {
    let span = read(&raw(
        "chat",
        &[("gen_ai.operation.name", text("chat")), ("gen_ai.tool.name", text("f"))],
    ))
    .span;
    assert_eq!((span.operation, span.tool), (Operation::Chat, None));
}

#[test]
fn openinference_messages_are_put_together() {
    let span = read(&raw(
        "ChatCompletion",
        &[
            ("openinference.span.kind", text("LLM")),
            ("llm.input_messages.0.message.role", text("user")),
            ("llm.input_messages.0.message.content", text("old")),
            ("llm.input_messages.10.message.role", text("user")),
            ("llm.input_messages.10.message.contents.0.message_content.text", text("Hi")),
            ("llm.output_messages.0.message.role", text("assistant")),
            ("llm.output_messages.0.message.tool_calls.0.tool_call.function.name", text("f")),
            ("llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments", text("{}")),
            ("llm.output_messages.1.message.role", text("assistant")),
            ("llm.output_messages.1.message.content.0", text("Hello")),
            ("llm.token_count.prompt", RawValue::Int(7)),
        ],
    ))
    .span;
    let model = span.model.unwrap();
    assert_eq!(span.input.unwrap().text.as_ref(), "Hi");
    assert_eq!(span.output.unwrap().text.as_ref(), "Hello");
    assert_eq!((model.tokens.input, model.tokens.output), (Some(7), None));
    assert_eq!(model.tool_calls[0].name.as_deref(), Some("f"));
}

#[test]
fn the_id_of_a_response_names_no_session() {
    let response = "resp_4ceae2606c5e40b6960c2c3c";
    for (id, named) in [(response, None), ("resp_team", Some("resp_team"))] {
        let reading = read(&raw("chat", &[("gen_ai.conversation.id", text(id))]));
        assert_eq!(reading.span.session.as_ref().map(|session| &*session.id), named, "{id}");
    }
    let both = [("gen_ai.conversation.id", text(response)), ("langwatch.thread.id", text("t"))];
    assert_eq!(&*read(&raw("chat", &both)).span.session.unwrap().id, "t");
}

#[test]
fn the_first_key_of_the_list_names_the_session() {
    let span = raw(
        "x",
        &[
            ("gen_ai.conversation.id", text("c")),
            ("session.id", text("s")),
            ("metadata", text(r#"{"thread_id":"t"}"#)),
        ],
    );
    let reading = read(&span).span;
    assert_eq!(reading.session.unwrap().id.as_ref(), "s");
    assert_eq!(reading.session_in_json.unwrap().id.as_ref(), "t");
}

#[test]
fn attributes_of_ones_own_go_first() {
    let mut options = ConventionOptions::default();
    for (concept, key) in
        [("operation", "my.kind"), ("tool_name", "my.tool"), ("session", "my.session")]
    {
        options.attributes.insert(concept.to_owned(), vec![key.to_owned()]);
    }
    let span = raw(
        "x",
        &[
            ("my.kind", text("tool")),
            ("my.tool", text("f")),
            ("my.session", text("s")),
            ("session.id", text("t")),
        ],
    );
    let span = read_with(options, &span).span;
    assert_eq!(span.convention, Some("custom"));
    assert_eq!(span.tool.unwrap().name.as_deref(), Some("f"));
    assert_eq!(span.session.unwrap().id.as_ref(), "s");
}

#[test]
fn scores_come_as_floats_integers_strings_and_labels() {
    for (value, label, score) in [
        (Some(RawValue::Double(0.82)), None, Ok(0.82)),
        (Some(RawValue::Int(1)), None, Ok(1.0)),
        (Some(text("0.75")), Some("Pass"), Ok(0.75)),
        (None, Some("Fail"), Ok(0.0)),
        (None, Some("so-so"), Err("report_without_score")),
        (Some(RawValue::Int(4)), None, Err("report_out_of_range")),
        (Some(RawValue::Double(f64::NAN)), None, Err("report_without_score")),
    ] {
        let mut list = vec![("gen_ai.evaluation.name", text("x"))];
        list.extend(value.map(|value| ("gen_ai.evaluation.score.value", value)));
        list.extend(label.map(|label| ("gen_ai.evaluation.score.label", text(label))));
        let mut record = record("gen_ai.evaluation.result", &list);
        record.trace_id = Some(TraceId([1; 16]));
        let reading = read_log(&record);
        match score {
            Ok(score) => assert_eq!(reading.reports[0].score, Quanta::from_f64(score).unwrap()),
            Err(why) => assert_eq!(reading.unused, [why]),
        }
    }
}

#[test]
fn an_outcome_is_what_its_label_says_and_a_grade_what_its_threshold_says() {
    let told = |name: &'static str, value, label: Option<&'static str>| {
        let mut list = vec![
            ("gen_ai.evaluation.name", text(name)),
            ("gen_ai.evaluation.score.value", RawValue::Double(value)),
        ];
        list.extend(label.map(|label| ("gen_ai.evaluation.score.label", text(label))));
        let mut record = record("gen_ai.evaluation.result", &list);
        record.trace_id = Some(TraceId([1; 16]));
        let options = ConventionOptions {
            signal_thresholds: BTreeMap::from([("goal_success".to_owned(), 0.9)]),
            ..ConventionOptions::default()
        };
        let reading = read_log_with(options, &record);
        reading.reports.first().map(|report| (report.score.to_f64(), report.is_success()))
    };
    assert_eq!(told("task_completion", 0.85, Some("pass")), Some((0.85, true)));
    assert_eq!(told("task_completion", 0.85, None), Some((0.85, true)));
    assert_eq!(told("task_completion", 0.45, None), Some((0.45, false)));
    assert_eq!(told("task_completion", 0.85, Some("fail")), Some((0.85, false)));
    assert_eq!(told("goal_success", 0.85, None), Some((0.85, false)));
    // Only 1 is a success, as of a reward.
    assert_eq!(told("outcome", 0.99, None), Some((0.99, false)));
    assert_eq!(told("outcome", 0.99, Some("so-so")), Some((0.99, false)));
    assert_eq!(told("outcome", 0.9, Some("pass")), Some((0.9, true)));
    // The label counts where the value is out of range; where it says nothing, or of no outcome, there is no score.
    assert_eq!(told("task_completion", 5.0, Some("Pass")), Some((1.0, true)));
    assert_eq!(told("outcome", 2.0, Some("failed")), Some((0.0, false)));
    assert_eq!(told("outcome", 2.0, Some("so-so")), None);
    assert_eq!(told("task_adherence", 5.0, Some("pass")), None);
}

#[test]
fn a_failed_evaluator_made_no_score() {
    let mut record = record(
        "",
        &[
            ("event.name", text("gen_ai.evaluation.result")),
            ("gen_ai.evaluation.name", text("coherence")),
            ("gen_ai.evaluation.score.value", RawValue::Double(0.5)),
            ("error.type", text("timeout")),
        ],
    );
    record.trace_id = Some(TraceId([1; 16]));
    assert_eq!(read_log(&record).unused, ["evaluator_failed"]);
}

#[test]
fn a_score_in_an_event_has_the_time_of_the_event() {
    let list = [
        ("gen_ai.evaluation.name", text("outcome")),
        ("gen_ai.evaluation.score.value", RawValue::Int(1)),
    ];
    let event = |time| RawEvent {
        name: "gen_ai.evaluation.result".into(),
        time: Timestamp(time),
        attributes: attributes(&list),
    };
    let mut span = raw("chat", &[]);
    (span.start, span.end) = (Timestamp(100), Timestamp(200));
    // One without a time, and one whose time is not by the same clock.
    span.events = vec![event(120), event(180), event(0), event(7)];
    let reading = read(&span);
    let times: Vec<u64> = reading.reports.iter().map(|report| report.time.0).collect();
    assert_eq!(times, [120, 180, 200, 100]);
}

#[test]
fn a_score_is_about_a_trace_a_response_or_a_session() {
    let list = [
        ("gen_ai.evaluation.name", text("x")),
        ("gen_ai.evaluation.score.value", RawValue::Int(1)),
    ];
    let with = |key: &'static str| {
        read_log(&record("gen_ai.evaluation.result", &[&list[..], &[(key, text("id"))]].concat()))
    };
    let id: Arc<str> = Arc::from("id");
    assert_eq!(
        with("gen_ai.response.id").reports[0].target,
        Target::Response { tenant: None, id: id.clone() }
    );
    assert_eq!(
        with("gen_ai.conversation.id").reports[0].target,
        Target::Session { tenant: None, id, scope: None }
    );
    assert_eq!(with("other").unused, ["report_without_target"]);
}

#[test]
fn annotations_are_about_what_they_link_to() {
    let mut span = raw(
        "evaluation",
        &[
            ("openinference.span.kind", text("EVALUATOR")),
            ("session.id", text("s")),
            ("evaluations.0.evaluation.name", text("a")),
            ("evaluations.0.evaluation.score", RawValue::Int(0)),
            ("session.annotations.0.annotation.name", text("b")),
            ("session.annotations.0.annotation.score", RawValue::Double(0.95)),
        ],
    );
    span.links.push(RawLink { trace_id: TraceId([9; 16]), ..RawLink::default() });
    let reports = read(&span).reports;
    assert_eq!(reports[0].target, Target::Trace(TraceId([9; 16])));
    assert!(matches!(&reports[1].target, Target::Session { id, .. } if id.as_ref() == "s"));
}

#[test]
fn message_records_carry_texts_and_calls() {
    let body = RawValue::Map(vec![("content".into(), text("Hi"))]);
    let mut user = record("", &[("event.name", text("gen_ai.user.message"))]);
    user.body = body.clone();
    user.trace_id = Some(TraceId([1; 16]));
    user.time = Timestamp(5);
    assert_eq!(read_log(&user).log.unwrap().input.unwrap().text.as_ref(), "Hi");
    let mut choice = record("gen_ai.choice", &[]);
    choice.body = RawValue::Map(vec![("message".into(), body)]);
    choice.trace_id = Some(TraceId([1; 16]));
    assert_eq!(read_log(&choice).log.unwrap().output.unwrap().text.as_ref(), "Hi");
    let mut empty = record("gen_ai.choice", &[]);
    empty.trace_id = Some(TraceId([1; 16]));
    assert_eq!(read_log(&empty).unused, ["log_without_content"]);
}

#[test]
fn long_names_and_texts_are_cut_at_a_character() {
    let options = ConventionOptions { max_name_bytes: 4, max_text_bytes: 5, ..options() };
    let span = raw(
        "x",
        &[
            ("agent.name", text("abcé")),
            ("openinference.span.kind", text("AGENT")),
            ("input.value", text("éééé")),
        ],
    );
    let read = |options| read_with(options, &span);
    let unread = read(ConventionOptions { keep_texts: false, ..options.clone() });
    let DecodedSpan { span, repaired, .. } = read(options);
    assert_eq!(span.agent_name.as_deref(), Some("abc"));
    assert_eq!(span.input.as_ref().unwrap().text.as_ref(), "éé");
    assert_eq!(repaired, ["name_cut", "text_cut"]);
    // The presence of an input, and that it is too long, is recorded even if nothing reads it.
    assert_eq!(unread.span.input, span.input.map(Text::unread));
    assert_eq!(unread.repaired, repaired);
    // An agent's input is still distinguished from other inputs.
    assert!(unread.span.input_hash.is_some());
    assert_eq!(unread.span.input_hash, span.input_hash);
}

#[test]
fn long_ids_that_only_begin_alike_stay_different_ones() {
    let options = ConventionOptions { max_name_bytes: 20, ..options() };
    let read_id = |end: &str| {
        let id = format!("é{}{end}", "x".repeat(1_000));
        let span = raw(
            "chat",
            &[
                ("gen_ai.operation.name", text("chat")),
                ("gen_ai.conversation.id", RawValue::Str(id.clone().into())),
                ("gen_ai.response.id", RawValue::Str(id.clone().into())),
                ("agentgauge.run.id", RawValue::Str(id.clone().into())),
            ],
        );
        let DecodedSpan { span, repaired, .. } = read_with(options.clone(), &span);
        assert_eq!(repaired, ["name_cut"]);
        let session = span.session.unwrap().id;
        assert_eq!(span.attempt.unwrap().run, Some(Arc::clone(&session)));
        assert_eq!(*session, *id_within(&id, 20));
        // What is asked for by the id that is shown is found.
        assert_eq!(*session, *id_within(&session, 20));
        (session, span.model.unwrap().response_id)
    };
    let (one, other) = (read_id("1"), read_id("2"));
    assert!(one.0.len() <= 20 && one.0.starts_with("éxx~"), "{}", one.0);
    assert!(one.0 != other.0 && one.1 != other.1);
    assert_eq!(one, read_id("1"));
}

/// Half of a key would leave, as no pattern finds it.
#[test]
fn a_text_is_not_cut_within_a_word() {
    let options = ConventionOptions { max_text_bytes: 12, ..options() };
    let sent = [
        ("openinference.span.kind", text("AGENT")),
        ("input.value", text("the key sk-abcdef")),
        ("output.value", text("no key at all")),
    ];
    let DecodedSpan { span, repaired, .. } = read_with(options, &raw("x", &sent));
    assert_eq!(&*span.input.unwrap().text, "the key ");
    assert_eq!(&*span.output.unwrap().text, "no key at ");
    assert_eq!(repaired, ["text_cut"]);
}

#[test]
fn a_decorated_function_is_a_tool_or_an_agent() {
    let tool = read(&raw(
        "get_weather.tool",
        &[
            ("traceloop.span.kind", text("tool")),
            ("traceloop.entity.name", text("get_weather")),
            ("traceloop.entity.input", text(r#"{"args": [], "kwargs": {"city": "Paris"}}"#)),
        ],
    ));
    assert!(tool.repaired.is_empty());
    let tool = tool.span.tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("get_weather"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"city":"Paris"}"#);
    let agent = read(&raw(
        "helper.agent",
        &[
            ("traceloop.span.kind", text("agent")),
            ("traceloop.entity.name", text("helper")),
            ("traceloop.entity.input", text(r#"{"args": ["Hi"], "kwargs": {}}"#)),
            ("traceloop.entity.output", text(r#""Hello""#)),
        ],
    ));
    assert_eq!(agent.span.agent_name.as_deref(), Some("helper"));
    assert_eq!(agent.span.input.unwrap().text.as_ref(), "Hi");
    assert_eq!(agent.span.output.unwrap().text.as_ref(), "Hello");
}

#[test]
fn an_observation_is_read() {
    let span = read(&raw(
        "openai-generation",
        &[
            ("langfuse.observation.type", text("generation")),
            ("langfuse.observation.input", text(r#"[{"role":"user","content":"Hi"}]"#)),
            ("langfuse.observation.output", text(r#"{"role":"assistant","content":"Hello"}"#)),
            (
                "langfuse.observation.usage_details",
                text(r#"{"input":30,"input_cached_tokens":6,"output":4,"total":40}"#),
            ),
            ("langfuse.observation.cost_details", text(r#"{"total":0.5}"#)),
            ("langfuse.observation.level", text("ERROR")),
        ],
    ))
    .span;
    let model = span.model.unwrap();
    assert_eq!(
        (span.input.unwrap().text.as_ref(), span.output.unwrap().text.as_ref()),
        ("Hi", "Hello")
    );
    assert_eq!((model.tokens.input, model.tokens.output), (Some(36), Some(4)));
    assert_eq!((model.cost, span.failed), (Quanta::from_f64(0.5), true));
}

#[test]
fn older_messages_are_flattened_over_attributes() {
    let span = read(&raw(
        "openai.chat",
        &[
            ("llm.request.type", text("chat")),
            ("gen_ai.prompt.0.role", text("user")),
            ("gen_ai.prompt.0.content", text("Hi")),
            ("gen_ai.prompt.1.role", text("tool")),
            ("gen_ai.prompt.1.content", text("18 C")),
            ("gen_ai.prompt.1.tool_call_id", text("c1")),
            ("gen_ai.completion.0.role", text("assistant")),
            ("gen_ai.completion.0.tool_calls.0.id", text("c2")),
            ("gen_ai.completion.0.tool_calls.0.name", text("f")),
            ("gen_ai.completion.0.tool_calls.0.arguments", text(r#"{"a":1}"#)),
            ("gen_ai.usage.prompt_tokens", RawValue::Int(7)),
        ],
    ))
    .span;
    let model = span.model.unwrap();
    assert_eq!(span.input.unwrap().text.as_ref(), "Hi");
    assert_eq!((model.tokens.input, model.asked_by_user), (Some(7), Some(false)));
    assert_eq!(model.tool_results[0].call_id, Some(IdHash::from("c1")));
    assert_eq!(&**model.tool_calls[0].arguments.as_ref().unwrap().text().unwrap(), r#"{"a":1}"#);
}

#[test]
fn claude_code_counts_cached_tokens_apart() {
    let span = read(&raw(
        "claude_code.llm_request",
        &[
            ("span.type", text("llm_request")),
            ("model", text("claude")),
            ("input_tokens", RawValue::Int(10)),
            ("cache_read_tokens", RawValue::Int(100)),
            ("cache_creation_tokens", RawValue::Int(5)),
            ("output_tokens", RawValue::Int(3)),
            ("success", text("false")),
        ],
    ))
    .span;
    let model = span.model.unwrap();
    let tokens =
        Tokens { input: Some(115), cached: Some(100), cache_written: Some(5), output: Some(3) };
    assert_eq!((model.tokens, model.model.as_deref(), span.failed), (tokens, Some("claude"), true));
    let tool = read(&raw(
        "claude_code.tool",
        &[
            ("span.type", text("claude_code.tool")),
            ("tool_name", text("Bash")),
            ("full_command", text("ls")),
        ],
    ));
    let tool = tool.span.tool.unwrap();
    assert_eq!(
        (tool.name.as_deref(), &**tool.arguments.unwrap().text().unwrap()),
        (Some("Bash"), r#""ls""#)
    );
}

#[test]
fn litellm_writes_its_calls_onto_the_span_around_them() {
    let sent = |name, status, list: &[_]| {
        let raw = RawSpan { status, ..raw(name, list) };
        let scope = RawScope { name: "litellm".into(), ..RawScope::default() };
        span_of(&Conventions::new(options()), &raw, &scope).span
    };
    let call = [
        ("litellm.call_id", text("c1")),
        ("gen_ai.operation.name", text("chat")),
        ("gen_ai.response.model", text("m")),
    ];
    let caller = sent("invoke_agent support", Status::Ok, &call);
    assert_eq!((caller.operation, caller.status), (Operation::InvokeAgent, Status::Unset));
    assert_eq!(sent("litellm_request", Status::Ok, &call).operation, Operation::Chat);
    // A call that was not answered has no span but this.
    let failed = sent("invoke_agent support", Status::Error, &call[..2]);
    assert_eq!((failed.operation, failed.failed), (Operation::Chat, true));
    let own = sent(
        "raw_gen_ai_request",
        Status::Ok,
        &[
            ("llm.openai.messages", text("[{'role': 'user', 'content': 'Hi'}]")),
            ("llm.openai.id", text("r1")),
            ("llm.openai.model", text("gpt")),
            (
                "llm.openai.choices",
                text("[{'index': 0, 'message': {'content': 'Hello', 'role': 'assistant'}}]"),
            ),
            ("llm.openai.usage", text("{'completion_tokens': 10, 'prompt_tokens': 100}")),
        ],
    );
    let model = own.model.unwrap();
    assert_eq!((own.operation, model.model.as_deref()), (Operation::Chat, Some("gpt")));
    assert_eq!(model.response_id, Some(IdHash::from("r1")));
    assert_eq!((model.tokens.input, model.tokens.output), (Some(100), Some(10)));
    assert_eq!((&*own.input.unwrap().text, &*own.output.unwrap().text), ("Hi", "Hello"));
    assert_eq!(sent("raw_gen_ai_request", Status::Ok, &[]).operation, Operation::Other);
}

#[test]
fn what_logfire_writes_as_json_without_there_being_any_is_absent() {
    let list = [
        ("logfire.msg_template", text("OpenAI Agents trace: {name}")),
        ("group_id", text("null")),
        ("metadata", text("null")),
    ];
    let span = read(&raw("trace", &list)).span;
    assert_eq!((span.session, span.session_in_json), (None, None));
    let list = [("logfire.msg_template", list[0].1.clone()), ("group_id", text("nullable"))];
    assert_eq!(&*read(&raw("trace", &list)).span.session.unwrap().id, "nullable");
}

#[test]
fn a_turn_of_the_agents_sdk_is_a_step_of_the_agent_that_logfire_names_on_it() {
    let turn = |kind: Option<&'static str>| {
        let template = ("logfire.msg_template", text("Turn {turn} for agent support"));
        let kind = kind.map(|kind| ("sdk_span_type", text(kind)));
        let list: Vec<_> =
            [template, ("agent_name", text("support"))].into_iter().chain(kind).collect();
        read(&raw("Turn {turn} for agent support", &list)).span.operation
    };
    assert_eq!(turn(Some("turn")), Operation::Other);
    assert_eq!(turn(None), Operation::InvokeAgent);
}

#[test]
fn the_log_of_a_streamed_answer_of_logfire_is_the_answer_to_a_request() {
    let template = text("streaming response from {request_data[model]!r} took {duration:.2f}s");
    let list = [("logfire.msg_template", template), ("duration", RawValue::Double(1.5))];
    let ended = Timestamp(4_000_000_000);
    let span = read(&RawSpan { start: ended, end: ended, ..raw("streaming", &list) }).span;
    assert_eq!((span.operation, span.streamed), (Operation::Chat, true));
    assert_eq!((span.start, span.end), (Timestamp(2_500_000_000), ended));
    let request = [("logfire.msg_template", text("Chat Completion with {request_data[model]!r}"))];
    assert!(!read(&raw("chat", &request)).span.streamed);
}

#[test]
fn tokens_of_caches_are_read_where_libraries_tell_them_and_are_a_part_of_the_input() {
    let tokens = |list: &[(&'static str, RawValue<'static>)]| {
        let Tokens { input, cached, cache_written, output } =
            read(&raw("x", list)).span.model.unwrap().tokens;
        [input, cached, cache_written, output]
    };
    let sent = |input| {
        [
            ("gen_ai.request.model", text("m")),
            ("gen_ai.usage.input_tokens", RawValue::Int(input)),
            ("gen_ai.usage.output_tokens", RawValue::Int(2)),
        ]
    };
    let (whole, own) = (sent(14), sent(9));
    let all = [Some(14), Some(4), Some(1), Some(2)];
    let usage = r#"{"input_tokens":14,"output_tokens":2,"input_token_details":{"cache_read":4,"cache_creation":1}}"#;
    let langsmith =
        [("langsmith.span.kind", text("llm")), ("langsmith.metadata.usage_metadata", text(usage))];
    assert_eq!(tokens(&[&whole[..], &langsmith].concat()), all);
    let usage = r#"{"input_tokens":14,"output_tokens":2,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":1}}"#;
    let template = ("logfire.msg_template", text("Chat completion with {gen_ai.request.model!r}"));
    assert_eq!(tokens(&[&whole[..], &[template, ("usage", text(usage))]].concat()), all);
    // Older versions have the usage of a streamed answer in no other place.
    let template =
        ("logfire.msg_template", text("streaming response from {request_data[model]!r}"));
    let data = r#"{"message":{},"usage":{"prompt_tokens":14,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    let streamed = tokens(&[template, ("response_data", text(data))]);
    assert_eq!(streamed, [Some(14), Some(4), None, Some(2)]);
    let vercel = |metadata| {
        let more = [
            ("ai.operationId", text("ai.generateText.doGenerate")),
            ("ai.response.providerMetadata", text(metadata)),
        ];
        tokens(&[&own[..], &more].concat())
    };
    assert_eq!(
        vercel(
            r#"{"anthropic":{"usage":{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":4,"cache_creation_input_tokens":1}}}"#
        ),
        all
    );
    assert_eq!(
        vercel(r#"{"anthropic":{"cacheReadInputTokens":4,"cacheCreationInputTokens":1}}"#),
        all
    );
    assert_eq!(vercel(r#"{"openai":{}}"#), [Some(9), None, None, Some(2)]);
}

#[test]
fn the_model_that_was_asked_is_known_if_it_has_another_name_than_the_one_that_answered() {
    let requested = |answered| {
        let list = [("gen_ai.request.model", text("a")), ("gen_ai.response.model", text(answered))];
        read(&raw("chat", &list)).span.model.unwrap().requested
    };
    assert_eq!((requested("b").as_deref(), requested("a")), (Some("a"), None));
}

#[test]
fn a_call_that_read_and_wrote_nothing_tells_no_tokens() {
    let tokens = |input, output| {
        let list = [
            ("gen_ai.operation.name", text("chat")),
            ("gen_ai.usage.input_tokens", RawValue::Int(input)),
            ("gen_ai.usage.output_tokens", RawValue::Int(output)),
        ];
        read(&raw("chat", &list)).span.model.unwrap().tokens
    };
    assert_eq!(tokens(0, 0), Tokens::default());
    assert_eq!((tokens(7, 0).output, tokens(0, 7).input), (Some(0), Some(0)));
}

#[test]
fn the_answer_of_a_model_call_of_the_agents_sdk_is_read_by_logfire_though_it_was_streamed() {
    let output = r#"[{"object":"response","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello"}]}]}]"#;
    let of = |template| {
        let list = [("logfire.msg_template", text(template)), ("output", text(output))];
        read(&raw("x", &list)).span.output
    };
    assert_eq!(&*of("Chat completion with {gen_ai.request.model!r}").unwrap().text, "Hello");
    assert_eq!(of("a span of the user's own"), None);
}

#[test]
fn a_step_of_llama_index_that_calls_a_tool_is_a_tool_call() {
    let list = [
        ("traceloop.span.kind", text("task")),
        ("traceloop.entity.name", text("BaseWorkflowAgent.task")),
        ("tool.name", text("f")),
        ("tool.arguments", text(r#"{"a": 1}"#)),
        (
            "traceloop.entity.output",
            text(r#"{"tool_id": "c1", "tool_output": {"raw_output": "no", "is_error": true}}"#),
        ),
    ];
    let span = read(&raw("BaseWorkflowAgent.task", &list)).span;
    let tool = span.tool.unwrap();
    assert_eq!((tool.name.as_deref(), tool.call_id), (Some("f"), Some(IdHash::from("c1"))));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"a":1}"#);
    assert_eq!((span.failed, &*span.output.unwrap().text), (true, "no"));
    assert_eq!(read(&raw("BaseWorkflowAgent.task", &list[..2])).span.operation, Operation::Other);
}

#[test]
fn a_crew_is_asked_what_its_tasks_are_and_a_task_is_no_agent() {
    let agent = ("gen_ai.operation.name", text("invoke_agent"));
    let list = [
        agent.clone(),
        (
            "crewai.crew.tasks",
            text(r#"[{"description": "Find it."}, {"description": "Write it."}]"#),
        ),
        ("crewai.crew.result", text("Done.")),
    ];
    let crew = read(&raw("crewai.workflow", &list)).span;
    assert_eq!(&*crew.input.unwrap().text, "Find it.\nWrite it.");
    assert_eq!(&*crew.output.unwrap().text, "Done.");
    let task =
        [agent, ("crewai.task.id", text("1")), ("crewai.task.description", text("Find it."))];
    let task = read(&raw("Find it.task", &task)).span;
    assert_eq!((task.operation, &*task.input.unwrap().text), (Operation::Other, "Find it."));
}

#[test]
fn spans_of_haystack_are_told_by_their_names_and_by_the_classes_of_components() {
    let component =
        |class| read(&raw("haystack.component.run", &[("haystack.component.type", text(class))]));
    for (class, operation) in [
        ("Agent", Operation::InvokeAgent),
        ("OpenAIChatGenerator", Operation::Chat),
        ("DALLEImageGenerator", Operation::Other),
        ("InMemoryBM25Retriever", Operation::Retrieval),
        ("FaithfulnessEvaluator", Operation::Evaluation),
        ("ToolInvoker", Operation::Other),
    ] {
        assert_eq!(component(class).span.operation, operation, "{class}");
    }
    // Without content, the name is all that there is.
    let silent = read(&raw("haystack.agent.step.llm", &[])).span;
    assert_eq!((silent.operation, silent.convention), (Operation::Chat, Some("haystack")));
    let asked = r#"{"messages": [{"role": "user", "content": [{"text": "Weather?"}]},
        {"role": "assistant", "content": [{"tool_call": {"tool_name": "f", "arguments": {}, "id": "c1"}}]},
        {"role": "tool", "content": [{"tool_call_result": {"result": "no", "error": true, "origin": {"tool_name": "f", "arguments": {}, "id": "c1"}}}]}]}"#;
    let answered = r#"{"replies": [{"role": "assistant", "content": [{"text": "18 C"}, {"tool_call": {"tool_name": "g", "arguments": {"a": 1}, "id": "c2"}}],
        "meta": {"model": "gpt-4o", "finish_reason": "length", "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}}}]}"#;
    let list = [
        ("haystack.agent.step.llm.input", text(asked)),
        ("haystack.agent.step.llm.output", text(answered)),
    ];
    let span = read(&raw("haystack.agent.step.llm", &list)).span;
    let model = span.model.unwrap();
    assert_eq!((&*span.input.unwrap().text, &*span.output.unwrap().text), ("Weather?", "18 C"));
    assert_eq!((model.model.as_deref(), span.stopped), (Some("gpt-4o"), true));
    let Tokens { input, cached, output, .. } = model.tokens;
    assert_eq!((input, cached, output), (Some(9), Some(4), Some(2)));
    let result = model.tool_results[0];
    assert_eq!((result.call_id, result.failed), (Some(IdHash::from("c1")), true));
    assert_eq!(&**model.tool_calls[0].arguments.as_ref().unwrap().text().unwrap(), r#"{"a":1}"#);
    let tool = [("haystack.tool.name", text("f")), ("haystack.tool.error", RawValue::Bool(true))];
    let tool = read(&raw("haystack.agent.step.tool", &tool)).span;
    assert_eq!((tool.failed, tool.tool.unwrap().name.as_deref()), (true, Some("f")));
}

#[test]
fn a_generator_of_haystack_that_completes_a_prompt_answers_with_plain_texts() {
    let list = [
        ("haystack.component.type", text("OpenAIGenerator")),
        ("haystack.component.input", text(r#"{"prompt": "Weather?"}"#)),
        (
            "haystack.component.output",
            text(
                r#"{"replies": ["18 C"], "meta": [{"model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}]}"#,
            ),
        ),
    ];
    let span = read(&raw("haystack.component.run", &list)).span;
    assert_eq!((&*span.input.unwrap().text, &*span.output.unwrap().text), ("Weather?", "18 C"));
    assert_eq!(span.model.unwrap().tokens.input, Some(9));
}

#[test]
fn spans_of_genkit_are_told_by_their_types() {
    let of = |list: &[(&'static str, RawValue<'static>)]| {
        let list: Vec<_> = list.iter().cloned().chain([("genkit:name", text("x"))]).collect();
        read(&RawSpan { parent: Some(SpanId([2; 8])), ..raw("x", &list) }).span
    };
    let action = |kind| [("genkit:type", text("action")), ("genkit:metadata:subtype", text(kind))];
    assert_eq!(of(&[("genkit:type", text("util"))]).operation, Operation::Other);
    let flow = of(&[&action("flow")[..], &[("genkit:input", text(r#""Weather?""#))]].concat());
    assert_eq!((flow.operation, flow.workflow.as_deref()), (Operation::Other, Some("x")));
    assert_eq!(&*flow.input.unwrap().text, "Weather?");
    let asked = r#"{"messages": [{"role": "user", "content": [{"text": "Weather?"}]}, {"role": "tool", "content": [{"toolResponse": {"name": "f", "ref": "c1", "output": "no"}}]}]}"#;
    let answered = r#"{"finishReason": "blocked", "message": {"role": "model", "content": [{"text": "18 C"}, {"toolRequest": {"name": "g", "ref": "c2", "input": {"a": 1}}}]},
        "usage": {"inputTokens": 9, "outputTokens": 2}, "raw": {"model": "gpt-4o", "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}}}"#;
    let texts = [("genkit:input", text(asked)), ("genkit:output", text(answered))];
    let span = of(&[&action("model")[..], &texts].concat());
    let model = span.model.unwrap();
    assert_eq!((span.operation, span.stopped), (Operation::Chat, true));
    assert_eq!((&*span.input.unwrap().text, &*span.output.unwrap().text), ("Weather?", "18 C"));
    assert_eq!((model.model.as_deref(), model.tokens.cached), (Some("gpt-4o"), Some(4)));
    assert_eq!(model.tool_results[0].call_id, Some(IdHash::from("c1")));
    assert_eq!(model.tool_calls[0].call_id, Some(IdHash::from("c2")));
    let failed = [("genkit:state", text("error")), ("genkit:input", text(r#"{"a":1}"#))];
    let tool = of(&[&action("tool")[..], &failed].concat());
    assert!(tool.failed && tool.tool.unwrap().arguments.is_some());
}

#[test]
fn names_of_other_libraries_are_not_taken_for_ones_own() {
    // `input`, `name`, `model` and `success` are read only of the libraries that use them bare.
    let span = read(&raw(
        "GET /orders",
        &[
            ("name", text("orders")),
            ("input", text("x")),
            ("model", text("m")),
            ("success", text("false")),
            ("agent_id", text("a")),
        ],
    ))
    .span;
    assert_eq!((span.operation, span.failed, span.convention), (Operation::Other, false, None));
    assert_eq!((span.input, span.agent_name), (None, None));
}

#[test]
fn what_is_said_of_an_attempt_is_read() {
    let mut span = raw(
        "turn",
        &[
            ("agentgauge.task.id", text("t1")),
            ("test.suite.run.id", text("r1")),
            ("agentgauge.trial.index", RawValue::Int(2)),
            ("test.case.result.status", text("pass")),
            ("agentgauge.perturbation.type", text("prompt")),
            ("agentgauge.baseline", RawValue::Bool(false)),
            ("agentgauge.expected.tools", RawValue::Array(vec![text("f"), text("g")])),
            ("gen_ai.retrieval.documents", text(r#"[{"id":"d1","score":0.9},{"id":"d2"}]"#)),
            ("agentgauge.cited.document_ids", text(r#"["d1"]"#)),
        ],
    );
    span.events.push(RawEvent {
        name: "agentgauge.constraint.violation".into(),
        attributes: attributes(&[
            ("agentgauge.constraint.id", text("no-pii")),
            ("agentgauge.constraint.severity", text("High")),
        ]),
        ..RawEvent::default()
    });
    let attempt = read(&span).span.attempt.unwrap();
    let names = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(attempt.task.as_deref(), Some("t1"));
    assert_eq!((attempt.run.as_deref(), attempt.trial.as_deref()), (Some("r1"), Some("2")));
    assert_eq!((attempt.success, attempt.baseline), (Some(true), Some(false)));
    assert_eq!(attempt.perturbation.as_deref(), Some("prompt"));
    assert_eq!(names(&attempt.expected_tools), ["f", "g"]);
    assert_eq!(names(&attempt.retrieved), ["d1", "d2"]);
    assert_eq!(names(&attempt.cited), ["d1"]);
    assert_eq!(attempt.violations[0].severity.as_deref(), Some("high"));
}

#[test]
fn whatever_names_an_attempt_is_cut_and_a_list_of_names_as_a_text_is() {
    let options = ConventionOptions { max_name_bytes: 16, max_text_bytes: 100, ..options() };
    let long = || text("abcdefghijklmnopq");
    let many = RawValue::Array(vec![long(); 9]);
    let expected = "x".repeat(200);
    let list = [
        ("agentgauge.task.id", long()),
        ("agentgauge.run.id", long()),
        ("agentgauge.trial.id", long()),
        ("agentgauge.perturbation.type", long()),
        ("agentgauge.perturbation.id", long()),
        ("agentgauge.expected.output", RawValue::Str(expected.into())),
        ("agentgauge.expected.tools", many.clone()),
        ("gen_ai.retrieval.documents", many.clone()),
        ("agentgauge.cited.document_ids", many),
        ("agentgauge.constraint.id", long()),
    ];
    let DecodedSpan { span, repaired, .. } = read_with(options.clone(), &raw("x", &list));
    let attempt = span.attempt.unwrap();
    assert_eq!(attempt.perturbation.as_deref(), Some("abcdefghijklmnop"));
    for id in [&attempt.task, &attempt.run, &attempt.trial, &attempt.perturbation_id] {
        assert_eq!(id.as_deref(), Some(&*id_within("abcdefghijklmnopq", 16)));
    }
    assert_eq!(attempt.expected_output.unwrap().len(), 100);
    for names in [attempt.expected_tools, attempt.retrieved, attempt.cited] {
        let names = names.iter().map(AsRef::as_ref);
        assert_eq!(names.collect::<Vec<&str>>(), ["abcdefghijklmnop"; 2]);
    }
    assert_eq!(attempt.violations[0].constraint.as_ref(), "abcdefghijklmnop");
    assert_eq!(repaired, ["name_cut", "text_cut"]);
    let whole = Conventions::new(options);
    let resource = RawResource { attributes: attributes(&list) };
    let (resource, cut) = whole.resource(&resource, None);
    let run = resource.attempt.as_ref().unwrap().run.as_deref();
    assert_eq!(run, Some(&*id_within("abcdefghijklmnopq", 16)));
    assert_eq!(cut, ["name_cut", "text_cut"]);
}

#[test]
fn documents_of_a_retriever_are_read() {
    let span = read(&raw(
        "retrieve",
        &[
            ("openinference.span.kind", text("RETRIEVER")),
            ("retrieval.documents.1.document.id", text("b")),
            ("retrieval.documents.0.document.id", text("a")),
        ],
    ));
    let retrieved = span.span.attempt.unwrap().retrieved;
    assert_eq!(retrieved.iter().map(AsRef::as_ref).collect::<Vec<&str>>(), ["a", "b"]);
}

#[test]
fn a_broken_rule_is_a_score_with_its_severity() {
    let mut record = record(
        "gen_ai.evaluation.result",
        &[
            ("gen_ai.evaluation.name", text("constraint_violation")),
            ("gen_ai.evaluation.score.label", text("low")),
        ],
    );
    record.trace_id = Some(TraceId([1; 16]));
    let report = &read_log(&record).reports[0];
    assert_eq!(report.score, Quanta::from_f64(0.75).unwrap());
    assert_eq!(report.label.as_deref(), Some("low"));
}

#[test]
fn a_scope_tells_a_library_whose_spans_have_names_alone() {
    let scope = RawScope { name: "llama_index.observability".into(), ..RawScope::default() };
    let of = |name: &'static str| {
        let raw = raw(name, &[]);
        let conventions = Conventions::new(ConventionOptions::default());
        span_of(&conventions, &raw, &scope).span.operation
    };
    assert_eq!(of("FunctionTool.acall"), Operation::ExecuteTool);
    assert_eq!(of("OpenAI.astream_chat"), Operation::Chat);
    assert_eq!(of("OpenAI._prepare_chat_with_tools"), Operation::Other);
    assert_eq!(of("Embedder.embed"), Operation::Other);
}

#[test]
fn every_convention_says_what_it_is_and_how_to_use_it() {
    for convention in CONVENTIONS {
        let Convention { name, title, session, agent, .. } = convention;
        assert!([name, title, session, agent].iter().all(|text| !text.is_empty()), "{name}");
    }
}

#[test]
fn no_two_lines_contradict_each_other() {
    use std::collections::BTreeSet;
    // Of equal ranks the first in the list would hold: ranks must tell, except where one key is read for two reasons.
    let mut seen = BTreeSet::new();
    for convention in CONVENTIONS {
        for line in convention.lines {
            let new = seen.insert((line.concept.name(), line.rank, line.key));
            let ranked = seen
                .iter()
                .filter(|(name, rank, _)| (*name, *rank) == (line.concept.name(), line.rank));
            assert!(
                ranked.count() <= 1 || !new || line.concept.name() == "failed",
                "{} of {}",
                line.key,
                convention.name
            );
        }
    }
}

/// Attributes of spans of several kinds and conventions, some of them sent twice or without a value.
fn any_attributes() -> impl Strategy<Value = Vec<(&'static str, RawValue<'static>)>> {
    let keys = [
        "gen_ai.operation.name",
        "gen_ai.request.model",
        "gen_ai.tool.name",
        "gen_ai.usage.input_tokens",
        "gen_ai.conversation.id",
        "session.id",
        "openinference.span.kind",
        "llm.model_name",
        "langfuse.observation.type",
        "traceloop.entity.name",
        "metadata",
        "error.type",
    ];
    let value = prop_oneof![
        Just(RawValue::Null),
        Just(RawValue::Int(7)),
        Just(text("chat")),
        Just(text("LLM")),
        Just(text("{\"session_id\": \"s\"}")),
    ];
    prop::collection::vec((prop::sample::select(keys.to_vec()), value), 0..6)
}

proptest! {
    #[test]
    fn what_was_read_before_changes_nothing(
        kinds in prop::collection::vec(any_attributes(), 1..24),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let conventions = Conventions::new(ConventionOptions::default());
        let scope = conventions.scope(&RawScope::default());
        let mut names = Names::default();
        for kind in order {
            let raw = raw("a span", kind.get::<Vec<_>>(&kinds));
            let emitter = Emitter { scope, resource: &Arc::default() };
            let read = conventions.span(&raw, emitter, &mut names);
            prop_assert_eq!(read, span_of(&conventions, &raw, &RawScope::default()));
        }
    }
}

#[test]
fn what_a_call_cost_is_read_whole_or_in_parts_and_reasoning_is_a_part_of_the_output() {
    let chat = |list: &[(&'static str, RawValue<'static>)]| {
        let operation = ("gen_ai.operation.name", text("chat"));
        let list: Vec<_> = [operation].into_iter().chain(list.iter().cloned()).collect();
        read(&raw("chat", &list)).span
    };
    let double = RawValue::Double;
    let cost = |list: &[(&'static str, RawValue<'static>)]| chat(list).model.unwrap().cost;
    let dollars = |value| Quanta::from_f64(value);
    let parts =
        [("gen_ai.usage.cost.input", double(0.25)), ("gen_ai.usage.cost.output", double(0.5))];
    assert_eq!(cost(&parts), dollars(0.75));
    assert_eq!(cost(&parts[..1]), None);
    let cached = ("gen_ai.usage.cost.cache_read", double(0.125));
    assert_eq!(cost(&[parts[0].clone(), parts[1].clone(), cached]), dollars(0.875));
    assert_eq!(cost(&[("gen_ai.usage.cost.total", double(0.5)), parts[0].clone()]), dollars(0.5));
    assert_eq!(cost(&[("gen_ai.cost.total_tokens", double(0.03))]), dollars(0.03));
    assert_eq!(cost(&[("gen_ai.cost.total_cost", double(0.02))]), dollars(0.02));
    let sentry =
        [("gen_ai.cost.input_tokens", double(0.5)), ("gen_ai.cost.output_tokens", double(1.0))];
    assert_eq!(cost(&sentry), dollars(1.5));
    let in_currency = |currency| {
        let total = ("gen_ai.usage.cost", double(0.5));
        cost(&[total, ("gen_ai.usage.cost.currency", text(currency))])
    };
    assert_eq!((in_currency("usd"), in_currency("EUR")), (dollars(0.5), None));
    let local = |key, provider| chat(&[(key, text(provider))]).model.unwrap().local;
    assert!(local("gen_ai.provider.name", "ollama") && local("gen_ai.system", "vLLM"));
    assert!(local("ai.model.provider", "ollama.chat") && local("gen_ai.system", "lm_studio"));
    assert!(!local("gen_ai.provider.name", "openai") && !local("gen_ai.system", "ollama-cloud"));
    let tokens = chat(&[
        ("gen_ai.usage.output_tokens", RawValue::Int(10)),
        ("gen_ai.usage.reasoning.output_tokens", RawValue::Int(7)),
        ("gen_ai.usage.cache_write.input_tokens", RawValue::Int(3)),
        ("gen_ai.react.round", RawValue::Int(2)),
        ("gen_ai.response.time_to_first_chunk", double(0.2)),
    ]);
    let tokens = tokens.model.unwrap().tokens;
    assert_eq!((tokens.output, tokens.cache_written), (Some(10), Some(3)));
}

#[test]
fn guardrails_earlier_sessions_and_first_chunks_are_read() {
    let chat = |list: &[(&'static str, RawValue<'static>)]| {
        let mut list = list.to_vec();
        list.push(("gen_ai.operation.name", text("chat")));
        read(&raw("chat", &list)).span
    };
    let first = |seconds: RawValue<'static>| {
        let key = "gen_ai.response.time_to_first_chunk";
        chat(&[(key, seconds)]).model.unwrap().first_chunk_nanos
    };
    assert_eq!(first(RawValue::Double(0.25)), Some(250_000_000));
    assert_eq!(first(RawValue::Double(-1.0)), None);
    assert_eq!(first(RawValue::Double(1e9)), None);
    let span = chat(&[
        ("session.id", text("b")),
        ("session.previous_id", text("a")),
        ("gen_ai.guardrail.name", text("no-pii")),
        ("gen_ai.guardrail.action", text("block")),
        ("gen_ai.guardrail.status", text("FAILED")),
    ]);
    let remarks = span.remarks.unwrap();
    assert_eq!(remarks.previous_session.as_deref(), Some("a"));
    let guardrail = remarks.guardrail.unwrap();
    assert_eq!(guardrail.name.as_deref(), Some("no-pii"));
    assert_eq!(guardrail.result.as_deref(), Some("FAILED"));
    assert_eq!(chat(&[("session.previous_id", text(""))]).remarks, None);
    let step = read(&raw("react step", &[("gen_ai.operation.name", text("react"))])).span;
    assert_eq!(step.operation, Operation::Other);
}

#[test]
fn the_last_pause_of_a_span_or_a_record_tells_whether_the_agent_waits() {
    let event = |name: &'static str, at: u64| RawEvent {
        name: name.into(),
        time: Timestamp(at),
        ..RawEvent::default()
    };
    let mut span = raw("agent", &[("gen_ai.operation.name", text("invoke_agent"))]);
    let pause = |span: &RawSpan<'_>| read(span).span.remarks.and_then(|remarks| remarks.pause);
    assert_eq!(pause(&span), None);
    span.events = vec![event("gen_ai.agent.resumed", 7), event("gen_ai.agent.paused", 5)];
    assert_eq!(pause(&span), Some(Pause { at: Timestamp(7), waits: false }));
    span.events.push(event("gen_ai.agent.paused", 9));
    assert_eq!(pause(&span), Some(Pause { at: Timestamp(9), waits: true }));
    let record = record("gen_ai.agent.paused", &[]);
    let record = RawLog { trace_id: Some(TraceId([1; 16])), time: Timestamp(9), ..record };
    let log = read_log(&record).log.unwrap();
    assert_eq!(log.pause, Some(Pause { at: Timestamp(9), waits: true }));
}

#[test]
fn how_an_agent_or_a_call_over_mcp_ended_tells_whether_it_failed() {
    let failed = |name: &'static str, key: &'static str, value: RawValue<'static>| {
        read(&raw("x", &[("gen_ai.operation.name", text(name)), (key, value)])).span.failed
    };
    for (reason, expected) in
        [("max_iterations", true), ("error", true), ("guardrail", false), ("stop", false)]
    {
        let agent = failed("invoke_agent", "gen_ai.agent.finish_reason", text(reason));
        assert_eq!(agent, expected, "{reason}");
    }
    let code = "rpc.response.status_code";
    assert!(failed("execute_tool", code, text("-32602")));
    assert!(failed("execute_tool", code, RawValue::Int(-32000)));
    assert!(!failed("execute_tool", code, RawValue::Int(0)));
    assert!(!failed("execute_tool", code, text("OK")));
}

#[test]
fn what_stopped_a_model_call_or_an_agent_before_its_end_is_told_by_finish_reasons() {
    let stopped = |operation: &'static str, key: &'static str, value: RawValue<'static>| {
        read(&raw("x", &[("gen_ai.operation.name", text(operation)), (key, value)])).span.stopped
    };
    let list = |reason: &'static str| RawValue::Array(vec![text(reason)]);
    let reasons = "gen_ai.response.finish_reasons";
    for (reason, expected) in [
        ("stop", false),
        ("tool_calls", false),
        ("error", false),
        ("length", true),
        ("MAX_TOKENS", true),
        ("content-filter", true),
        ("refusal", true),
    ] {
        assert_eq!(stopped("chat", reasons, list(reason)), expected, "{reason}");
        assert_eq!(stopped("chat", "ai.response.finishReason", text(reason)), expected, "{reason}");
    }
    assert!(stopped("chat", reasons, text(r#"["stop", "length"]"#)));
    assert!(stopped("invoke_agent", "gen_ai.agent.finish_reason", text("guardrail")));
    assert!(!stopped("execute_tool", reasons, list("length")), "of a tool it says nothing");
}

#[test]
fn an_exception_of_an_operation_fails_its_model_call_on_the_span_and_in_a_record() {
    let mut span = raw("chat", &[("gen_ai.operation.name", text("chat"))]);
    assert!(!read(&span).span.failed);
    span.events = vec![RawEvent {
        name: "gen_ai.client.operation.exception".into(),
        attributes: attributes(&[("exception.type", text("RateLimitError"))]),
        ..RawEvent::default()
    }];
    let kind = |span: Span| span.remarks.and_then(|remarks| remarks.error_type);
    let read = read(&span).span;
    assert!(read.failed);
    assert_eq!(kind(read).as_deref(), Some("RateLimitError"));
    let record =
        record("gen_ai.client.operation.exception", &[("exception.type", text("Timeout"))]);
    let record =
        RawLog { trace_id: Some(TraceId([1; 16])), span_id: Some(SpanId([1; 8])), ..record };
    let log = read_log(&record).log.unwrap();
    assert!(log.failed);
    assert_eq!(log.error_type.as_deref(), Some("Timeout"));
}

#[test]
fn a_session_and_a_compaction_are_read_by_the_names_that_vendors_and_proposals_have() {
    let span = read(&raw(
        "chat",
        &[
            ("gen_ai.operation.name", text("chat")),
            ("gen_ai.session.id", text("s-1")),
            ("gen_ai.conversation.compacted", RawValue::Bool(true)),
        ],
    ))
    .span;
    assert_eq!(span.session.unwrap().id.as_ref(), "s-1");
    assert!(span.model.unwrap().compacted);
}

#[test]
fn a_score_is_within_the_range_that_it_was_sent_with() {
    let score = |range: Option<&'static str>, value: f64| {
        let mut list = vec![
            ("gen_ai.evaluation.name", text("Quality")),
            ("gen_ai.evaluation.score.value", RawValue::Double(value)),
        ];
        list.extend(range.map(|range| ("gen_ai.evaluation.score.range", text(range))));
        let record = RawLog {
            trace_id: Some(TraceId([1; 16])),
            ..record("gen_ai.evaluation.result", &list)
        };
        read_log(&record).reports.first().map(|report| report.score)
    };
    assert_eq!(score(Some("[1, 5]"), 4.0), Quanta::from_f64(0.75));
    assert_eq!(score(Some("0-10"), 5.0), Quanta::from_f64(0.5));
    assert_eq!(score(None, 4.0), None);
    assert_eq!(score(Some("5"), 0.5), Quanta::from_f64(0.5));
}
