//! Spans of single libraries, as they send them.

use super::*;

#[test]
fn what_ag2_books_of_a_model_call_is_no_call() {
    let booked = |kind| {
        let list = [
            ("ag2.span.type", text(kind)),
            ("gen_ai.response.model", text("gpt-4o-mini")),
            ("gen_ai.usage.input_tokens", RawValue::Int(100)),
        ];
        read(&raw("record_usage model_call", &list)).span
    };
    let usage = booked("usage");
    assert_eq!((usage.operation, usage.model), (Operation::Other, None));
    assert_eq!(booked("llm").operation, Operation::Chat);
    let agent = [("ag2.span.type", text("agent")), ("gen_ai.operation.name", text("invoke_agent"))];
    assert_eq!(read(&raw("invoke_agent a", &agent)).span.operation, Operation::InvokeAgent);
}

#[test]
fn a_tool_of_adk_for_java_that_threw_failed() {
    let failed = |response| {
        let key = "gcp.vertex.agent.tool_response";
        let list = [("gcp.vertex.agent.event_id", text("e")), (key, text(response))];
        read(&raw("execute_tool crash_tool", &list)).span.failed
    };
    assert!(failed(r#"{"status":"error","message":"An internal error occurred."}"#));
    // What tools say themselves is their result.
    assert!(!failed(r#"{"status":"error","message":"no such order"}"#));
    assert!(!failed(r#"{"result":"An internal error occurred."}"#));
}

#[test]
fn spans_of_spring_ai_are_told_by_their_kind() {
    let of = |kind, more: &[(&'static str, RawValue<'static>)]| {
        let framework = ("gen_ai.operation.name", text("framework"));
        let list = [&[framework, ("spring.ai.kind", text(kind))], more].concat();
        read(&raw("spring_ai chat_client", &list)).span
    };
    let session = ("spring.ai.chat.client.conversation.id", text("s"));
    let client = of("chat_client", &[session]);
    assert_eq!(client.operation, Operation::InvokeAgent);
    assert_eq!(client.session.as_ref().map(|session| &*session.id), Some("s"));
    assert!(is_generic(&client.name));
    assert_eq!(of("advisor", &[]).operation, Operation::Other);
    let tool = of(
        "tool_call",
        &[
            ("spring.ai.tool.definition.name", text("get_order")),
            ("spring.ai.tool.call.arguments", text(r#"{"order_id": "X"}"#)),
            ("spring.ai.tool.call.result", text("shipped")),
        ],
    );
    assert_eq!(tool.output.map(|text| text.text).as_deref(), Some("shipped"));
    let tool = tool.tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("get_order"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"order_id":"X"}"#);
    assert!(tool.result_hash.is_some());
}

#[test]
fn none_is_no_model() {
    let model = |answered, asked| {
        let list = [
            ("gen_ai.operation.name", text("chat")),
            ("gen_ai.response.model", text(answered)),
            ("gen_ai.request.model", text(asked)),
        ];
        let model = read(&raw("chat", &list)).span.model.unwrap();
        (model.model.as_deref().map(str::to_owned), model.requested.is_some())
    };
    assert_eq!(model("none", "gpt-4o"), (Some("gpt-4o".into()), false));
    assert_eq!(model("none", "none"), (None, false));
    assert_eq!(model("unknown_model", "unknown_model"), (None, false));
    assert_eq!(model("gpt-4o-2024", "none"), (Some("gpt-4o-2024".into()), false));
    assert_eq!(model("nonesuch-1b", "gpt-4o"), (Some("nonesuch-1b".into()), true));
}

#[test]
fn spans_of_laminar_have_a_type_and_what_a_function_was_called_with() {
    let of = |kind, parent: Option<SpanId>| {
        let list = [
            ("lmnr.span.type", text(kind)),
            ("lmnr.association.properties.session_id", text("s")),
            ("lmnr.association.properties.user_id", text("u")),
            ("lmnr.span.input", text(r#"{"city":"Paris"}"#)),
            ("lmnr.span.output", text(r#""18 C""#)),
        ];
        read(&RawSpan { parent, ..raw("weather", &list) }).span
    };
    let inside = Some(SpanId([2; 8]));
    let root = of("DEFAULT", None);
    assert_eq!((root.operation, root.workflow.as_deref()), (Operation::Other, Some("weather")));
    assert_eq!(root.session.as_ref().map(|session| &*session.id), Some("s"));
    assert_eq!(root.user.as_deref(), Some("u"));
    let texts = [root.input, root.output].map(|text| text.map(|text| text.text.to_string()));
    assert_eq!(texts, [Some("Paris".into()), Some("18 C".into())]);
    assert_eq!(of("DEFAULT", inside).workflow, None);
    assert_eq!(of("LLM", inside).operation, Operation::Chat);
    assert_eq!(of("EVALUATOR", inside).operation, Operation::Evaluation);
    assert_eq!(of("EVALUATION", None).operation, Operation::Other);
    let tool = of("TOOL", inside).tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("weather"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"city":"Paris"}"#);
    assert!(tool.result_hash.is_some());
}

#[test]
fn spans_of_langwatch_have_a_type_and_values_that_have_one() {
    let of = |kind, input, output| {
        let list = [
            ("langwatch.span.type", text(kind)),
            ("langwatch.input", text(input)),
            ("langwatch.output", text(output)),
            ("metadata", text(r#"{"thread_id": "s", "user_id": "u"}"#)),
        ];
        read(&raw("weather", &list)).span
    };
    let said = |span: &Span| {
        let text = |text: &Option<Text>| text.as_ref().map(|text| text.text.to_string());
        (text(&span.input), text(&span.output))
    };
    let asked = r#"{"type": "chat_messages", "value": [{"role": "user", "content": "hi"}]}"#;
    let answer = r#"{"type": "text", "value": "18 C"}"#;
    let root = of("span", asked, answer);
    assert_eq!((root.operation, root.workflow.as_deref()), (Operation::Other, Some("weather")));
    assert_eq!(root.session_in_json.as_ref().map(|session| &*session.id), Some("s"));
    assert_eq!(root.user.as_deref(), Some("u"));
    let model = of("llm", asked, answer);
    assert_eq!(said(&model), (Some("hi".into()), Some("18 C".into())));
    assert_eq!(model.model.unwrap().asked_by_user, Some(true));
    assert_eq!(said(&of("agent", "of no type", "[]")), (None, None));
    let kinds = ["agent", "rag", "evaluation", "guardrail"];
    let operations = kinds.map(|kind| of(kind, asked, answer).operation);
    let retrieval = [Operation::InvokeAgent, Operation::Retrieval];
    assert_eq!(operations[..2], retrieval);
    assert_eq!(operations[2..], [Operation::Evaluation, Operation::Other]);
    let tool = of("tool", r#"{"type": "json", "value": {"city": "Paris"}}"#, answer);
    assert_eq!(said(&tool), (None, Some("18 C".into())));
    let tool = tool.tool.unwrap();
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"city":"Paris"}"#);
    assert!(tool.result_hash.is_some());
}

#[test]
fn an_agent_of_haystack_is_one_though_openinference_takes_it_for_a_chain() {
    let of = |scope, name, kind| {
        read_in(scope, name, &[("openinference.span.kind", text(kind))]).operation
    };
    let haystack = "openinference.instrumentation.haystack";
    for name in ["Agent.run", "Agent.run_async", "SupportAgent.run"] {
        assert_eq!(of(haystack, name, "CHAIN"), Operation::InvokeAgent);
    }
    for name in ["Pipeline.run", "AgentBuilder.run", "Agent.warm_up"] {
        assert_eq!(of(haystack, name, "CHAIN"), Operation::Other);
    }
    assert_eq!(of("openinference.instrumentation", "Agent.run", "CHAIN"), Operation::Other);
    assert_eq!(of(haystack, "OpenAIGenerator.run", "LLM"), Operation::Chat);
}

#[test]
fn tokens_of_a_cache_are_added_to_an_input_that_does_not_have_them() {
    let tokens = |list: &[(&'static str, RawValue<'static>)]| {
        let list = [&[("gen_ai.operation.name", text("chat"))], list].concat();
        let Tokens { input, cached, cache_written, output } =
            read(&raw("chat", &list)).span.model.unwrap().tokens;
        [input, cached, cache_written, output]
    };
    let int = RawValue::Int;
    // Strands on Bedrock.
    let strands = |read, total| {
        tokens(&[
            ("gen_ai.usage.input_tokens", int(4_299)),
            ("gen_ai.usage.cache_read_input_tokens", int(read)),
            ("gen_ai.usage.cache_write_input_tokens", int(1_000)),
            ("gen_ai.usage.output_tokens", int(631)),
            ("gen_ai.usage.total_tokens", int(total)),
        ])
    };
    let large = [Some(40_873), Some(35_574), Some(1_000), Some(631)];
    assert_eq!(strands(35_574, 41_504), large);
    assert_eq!(strands(35_574, 0), large, "the input cannot have them");
    assert_eq!(strands(100, 6_030)[0], Some(5_399), "the sum has them beside it");
    assert_eq!(strands(100, 4_930)[0], Some(4_299), "the input has them");
    let openinference = |total| {
        tokens(&[
            ("openinference.span.kind", text("LLM")),
            ("llm.token_count.prompt", int(10)),
            ("llm.token_count.completion", int(2)),
            ("llm.token_count.prompt_details.cache_read", int(8)),
            ("llm.token_count.total", int(total)),
        ])
    };
    assert_eq!(openinference(20)[0], Some(18));
    assert_eq!(openinference(12)[0], Some(10));
    let usage = r#"{"input":10,"output":2,"cache_read_input_tokens":8,"cache_creation_input_tokens":3,"total":23}"#;
    let langfuse = [
        ("langfuse.observation.type", text("generation")),
        ("langfuse.observation.usage_details", text(usage)),
    ];
    assert_eq!(tokens(&langfuse), [Some(21), Some(8), Some(3), Some(2)]);
}

#[test]
fn the_result_of_a_tool_is_no_question_though_a_library_tells_it_as_the_users() {
    let span = read(&raw(
        "Anthropic Messages",
        &[
            ("openinference.span.kind", text("LLM")),
            ("llm.input_messages.0.message.role", text("user")),
            ("llm.input_messages.0.message.content", text("where is it?")),
            ("llm.input_messages.1.message.role", text("assistant")),
            ("llm.input_messages.1.message.tool_calls.0.tool_call.function.name", text("f")),
            ("llm.input_messages.2.message.role", text("user")),
            ("llm.input_messages.2.message.tool_call_id", text("toolu_1")),
            ("llm.input_messages.2.message.content", text("Error: no such order")),
        ],
    ))
    .span;
    assert_eq!(span.input.unwrap().text.as_ref(), "where is it?");
    let model = span.model.unwrap();
    assert_eq!(model.asked_by_user, Some(false));
    let told: Vec<_> = model.tool_results.iter().map(|result| result.call_id).collect();
    assert_eq!(told, [Some(IdHash::from("toolu_1"))]);
}

#[test]
fn asking_azure_how_far_a_run_is_is_no_model_call() {
    let of = |name: &'static str, more: &[(&'static str, RawValue<'static>)]| {
        let named = [
            ("gen_ai.operation.name", text(name)),
            ("gen_ai.response.model", text("gpt-4o")),
            ("gen_ai.thread.run.id", text("run_1")),
        ];
        read(&raw(name, &[&named, more].concat())).span.operation
    };
    let used = ("gen_ai.usage.output_tokens", RawValue::Int(7));
    for name in ["start_thread_run", "get_thread_run", "submit_tool_outputs"] {
        assert_eq!(of(name, &[]), Operation::Other, "{name}");
        assert_eq!(of(name, std::slice::from_ref(&used)), Operation::Chat, "{name}");
    }
    assert_eq!(of("process_thread_run", &[used]), Operation::InvokeAgent);
}

#[test]
fn spans_with_a_kind_are_told_by_it_and_their_values_are_read() {
    let of = |kind, more: &[(&'static str, RawValue<'static>)]| {
        let list = [&[("gen_ai.span.kind", text(kind))], more].concat();
        read(&raw("a step", &list)).span
    };
    let tool = of(
        "TOOL",
        &[
            ("tool.name", text("get_order")),
            ("tool.parameters", text(r#"{"order_id": "X"}"#)),
            ("input.value", text(r#"{"order_id": "X"}"#)),
            ("output.value", text("shipped")),
        ],
    );
    assert_eq!(tool.operation, Operation::ExecuteTool);
    assert_eq!(tool.output.map(|text| text.text).as_deref(), Some("shipped"));
    let tool = tool.tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("get_order"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"order_id":"X"}"#);
    let model = of("LLM", &[("gen_ai.model_name", text("gpt-4o-mini"))]);
    assert_eq!(model.operation, Operation::Chat);
    assert_eq!(model.model.unwrap().model.as_deref(), Some("gpt-4o-mini"));
    assert_eq!(of("AGENT", &[]).operation, Operation::InvokeAgent);
    assert_eq!(of("TASK", &[]).operation, Operation::Other);
    // What a span is said to do goes before its kind.
    let step = [("gen_ai.operation.name", text("invoke_agent"))];
    assert_eq!(of("CHAIN", &step).operation, Operation::InvokeAgent);
}

#[test]
fn an_answer_that_ended_in_an_error_failed() {
    let failed = |messages| {
        let list = [
            ("gen_ai.operation.name", text("invoke_agent")),
            ("gen_ai.output.messages", text(messages)),
        ];
        read(&raw("invoke_agent a", &list)).span.failed
    };
    assert!(failed(r#"[{"role":"assistant","parts":[],"finish_reason": "error"}]"#));
    assert!(!failed(r#"[{"role":"assistant","parts":[],"finish_reason":"stop"}]"#));
    let said = r#"[{"role":"assistant","parts":[{"type":"text","content":"error"}]}]"#;
    assert!(!failed(said));
}

#[test]
fn a_step_that_openlit_takes_for_an_agent_is_none() {
    let of = |scope, more: &[(&'static str, RawValue<'static>)]| {
        let list = [&[("gen_ai.operation.name", text("invoke_agent"))], more].concat();
        read_in(scope, "invoke_agent generate_plan", &list).operation
    };
    let crewai = "openlit.instrumentation.crewai";
    assert_eq!(of(crewai, &[]), Operation::Other);
    assert_eq!(of(crewai, &[("gen_ai.agent.name", text("support"))]), Operation::InvokeAgent);
    assert_eq!(of("openlit.instrumentation.agno", &[]), Operation::InvokeAgent);
    // What failed has nothing but a name.
    let failed = read_in(crewai, "invoke_agent support", &[]).operation;
    assert_eq!(failed, Operation::InvokeAgent);
}

/// Reads a span of the scope of this name.
fn sent_in(scope: &'static str, raw: &RawSpan<'_>) -> Span {
    let scope = RawScope { name: scope.into(), ..RawScope::default() };
    span_of(&Conventions::new(options()), raw, &scope).span
}

#[test]
fn what_koog_hides_is_not_known() {
    let list = [
        ("gen_ai.operation.name", text("execute_tool")),
        ("gen_ai.tool.name", text("get_order")),
        ("gen_ai.tool.call.arguments", text("HIDDEN:non-empty")),
        ("gen_ai.tool.call.result", text("HIDDEN:non-empty")),
    ];
    let span = read(&raw("execute_tool get_order", &list)).span;
    let tool = span.tool.unwrap();
    assert_eq!((tool.arguments, tool.result_hash, span.output), (None, None, None));
    let list = [
        ("gen_ai.operation.name", text("invoke_agent")),
        ("gen_ai.input.messages", text("HIDDEN:non-empty")),
        ("gen_ai.output.messages", text(r#"[{"role":"assistant","content":"HIDDEN:non-empty"}]"#)),
    ];
    let span = read(&raw("invoke_agent support", &list)).span;
    assert_eq!((span.input, span.output), (None, None));
}

#[test]
fn the_trace_of_the_agents_sdk_is_no_agent_by_traceai_either() {
    let kind = ("gen_ai.span.kind", text("AGENT"));
    let workflow =
        sent_in("traceai_openai_agents", &raw("Agent workflow", std::slice::from_ref(&kind)));
    assert_eq!(workflow.operation, Operation::Other);
    let agent = [kind.clone(), ("graph.node.id", text("support"))];
    let agent = sent_in("traceai_openai_agents", &raw("support", &agent));
    assert_eq!(agent.operation, Operation::InvokeAgent);
    assert_eq!(read(&raw("support", &[kind])).span.operation, Operation::InvokeAgent);
}

#[test]
fn a_turn_of_the_agents_sdk_that_failed_failed_its_run() {
    let fails_run = |name: &'static str, status, message: &'static str| {
        let list = [("openinference.span.kind", text("CHAIN"))];
        let turn = RawSpan { status, status_message: message.into(), ..raw(name, &list) };
        let span = sent_in("openinference.instrumentation.openai_agents", &turn);
        span.remarks.is_some_and(|remarks| remarks.failed_run)
    };
    assert!(fails_run("turn", Status::Error, "Tool not found: {'tool_name': 'f'}"));
    assert!(!fails_run("turn", Status::Ok, ""));
    assert!(!fails_run("turn", Status::Error, "Guardrail tripwire triggered: {}"));
    assert!(!fails_run("lookup", Status::Error, "no such order"));
}

#[test]
fn fast_agent_names_agents_and_tools_by_their_spans() {
    let sent = |name: &'static str, list: &[(&'static str, RawValue<'static>)]| {
        sent_in("fast_agent.agents.llm_decorator", &raw(name, list))
    };
    let agent = sent("Agent: 'support' generate", &[]);
    assert_eq!(
        (agent.operation, agent.agent_name.as_deref()),
        (Operation::InvokeAgent, Some("support"))
    );
    let names = [("tool_name", text("f")), ("namespaced_tool_name", text("shop__f"))];
    let tool = sent("MCP Tool: shop__f", &names).tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("shop__f"));
    assert_eq!(sent("shop", &[]).operation, Operation::Other);
}

#[test]
fn a_root_of_laminar_without_a_type_is_the_workflow() {
    let list = [
        ("lmnr.span.path", RawValue::Array(vec![text("support")])),
        ("lmnr.span.instrumentation_source", text("javascript")),
    ];
    let root = read(&raw("support", &list)).span;
    assert_eq!(root.workflow.as_deref(), Some("support"));
    let inside = RawSpan { parent: Some(SpanId([2; 8])), ..raw("support", &list) };
    assert_eq!(read(&inside).span.workflow, None);
}

#[test]
fn llama_index_tells_a_call_in_what_the_step_was_called_with() {
    const SCOPE: &str = "llamaindex.opentelemetry.tracer";
    const SUMMARY: &str = "llamaindex.step.input_summary";
    let call = |summary: &'static str| {
        let list = [(SUMMARY, text(summary))];
        sent_in(SCOPE, &raw("FunctionTool.acall", &list)).tool.unwrap()
    };
    let whole = call("ToolCall(tool_name='get_order', tool_kwargs={'order_id': 'A'}, tool_id='c')");
    assert_eq!(whole.name.as_deref(), Some("get_order"));
    assert_eq!(&**whole.arguments.unwrap().text().unwrap(), r#"{"order_id":"A"}"#);
    assert_eq!(whole.call_id, Some(IdHash::of(b"c")));
    let cut = call("ToolCall(tool_name='get_order', tool_kwargs={'order_id': 'A...");
    assert_eq!((cut.name.as_deref(), cut.arguments), (Some("get_order"), None));
    // The method that calls any tool names none.
    let bare = sent_in(SCOPE, &raw("FunctionTool.acall", &[])).tool.unwrap();
    assert_eq!(bare.name, None);
    let step = [(SUMMARY, text("AgentInput(input=[], current_agent_name='support')"))];
    let step = sent_in(SCOPE, &raw("BaseWorkflowAgent.setup_agent", &step));
    assert_eq!((step.operation, step.agent_name.as_deref()), (Operation::Other, Some("support")));
    let agent = sent_in(SCOPE, &raw("FunctionAgent.run", &[]));
    assert_eq!(agent.agent_name.as_deref().map(is_generic), Some(true));
}

#[test]
fn llama_index_tells_a_model_call_in_its_events() {
    let event = |name: &'static str, list: &[(&'static str, RawValue<'static>)]| RawEvent {
        name: name.into(),
        attributes: attributes(list),
        ..RawEvent::default()
    };
    let asked =
        r#"[{"role":"user","additional_kwargs":{},"blocks":[{"block_type":"text","text":"Hi"}]}]"#;
    let said =
        r#"[{"finish_reason":"stop","index":0,"message":{"content":"Hello.","role":"assistant"}}]"#;
    let events = vec![
        event("LLMChatStartEvent", &[("messages", text(asked))]),
        event(
            "LLMChatEndEvent",
            &[
                ("response.raw.id", text("chatcmpl-1")),
                ("response.raw.model", text("gpt-4o-mini")),
                ("response.raw.choices", text(said)),
                ("response.raw.usage.prompt_tokens", RawValue::Int(100)),
                ("response.raw.usage.completion_tokens", RawValue::Int(10)),
                ("response.raw.usage.prompt_tokens_details.cached_tokens", RawValue::Int(40)),
            ],
        ),
    ];
    let raw = RawSpan { events, ..raw("OpenAILike.achat", &[]) };
    let span = sent_in("llamaindex.opentelemetry.tracer", &raw);
    let model = span.model.unwrap();
    assert_eq!(model.model.as_deref(), Some("gpt-4o-mini"));
    let tokens = model.tokens;
    assert_eq!((tokens.input, tokens.cached, tokens.output), (Some(100), Some(40), Some(10)));
    assert_eq!(span.output.map(|text| text.text).as_deref(), Some("Hello."));
}

#[test]
fn events_of_beeai_in_python_are_steps() {
    const SCOPE: &str = "openinference.instrumentation.beeai";
    let kind = |kind| ("openinference.span.kind", text(kind));
    let path = |path| ("metadata.path", text(path));
    let error = raw("error", &[kind("TOOL"), path("tool.custom.get_order.error")]);
    assert_eq!(sent_in(SCOPE, &error).operation, Operation::Other);
    let answer = raw("final_answer", &[kind("AGENT"), path("agent.requirement.final_answer")]);
    assert_eq!(sent_in(SCOPE, &answer).operation, Operation::Other);
    let list = [
        kind("TOOL"),
        ("tool.name", text("get_order")),
        ("input.value", text(r#"{"input": {"order_id": "A"}, "options": null}"#)),
    ];
    let tool = sent_in(SCOPE, &raw("get_order", &list)).tool.unwrap();
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"order_id":"A"}"#);
    // By its name in a model's answer, too, what ends the run is no call.
    let called = |name: &'static str| {
        let key = "llm.output_messages.0.message.tool_calls.0.tool_call.function.name";
        let list = [kind("LLM"), (key, text(name))];
        sent_in(SCOPE, &raw("OpenAIChatModel", &list)).model.unwrap().tool_calls[0].phantom
    };
    assert!(called("final_answer") && !called("get_order"));
}

#[test]
fn spans_of_judgeval_have_a_kind() {
    let of = |kind, more: &[(&'static str, RawValue<'static>)]| {
        let list = [&[("judgment.span_kind", text(kind))], more].concat();
        read(&raw("support", &list)).span
    };
    let agent = of("agent", &[("judgment.session_id", text("s"))]);
    assert_eq!(agent.operation, Operation::InvokeAgent);
    assert_eq!(agent.session.as_ref().map(|session| &*session.id), Some("s"));
    let call = of(
        "llm",
        &[
            ("judgment.llm.model", text("gpt-4o-mini")),
            ("judgment.usage.non_cached_input_tokens", RawValue::Int(60)),
            ("judgment.usage.cache_read_input_tokens", RawValue::Int(40)),
            ("judgment.usage.output_tokens", RawValue::Int(10)),
        ],
    );
    let model = call.model.unwrap();
    assert_eq!(model.model.as_deref(), Some("gpt-4o-mini"));
    let tokens = model.tokens;
    assert_eq!((tokens.input, tokens.cached, tokens.output), (Some(100), Some(40), Some(10)));
    let asked = ("judgment.input", text(r#"{"city":"Paris"}"#));
    let tool = of("tool", &[asked, ("judgment.output", text("18 C"))]).tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("support"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"city":"Paris"}"#);
    assert!(tool.result_hash.is_some());
}

#[test]
fn spans_of_netra_have_a_type() {
    let of = |kind, more: &[(&'static str, RawValue<'static>)]| {
        let list = [&[("netra.span.type", text(kind))], more].concat();
        read(&raw("get_order", &list)).span
    };
    let named = ("netra.agent.name", text("support"));
    let agent = of("AGENT", &[named.clone(), ("netra.session_id", text("s"))]);
    assert_eq!(agent.operation, Operation::InvokeAgent);
    assert_eq!(agent.agent_name.as_deref(), Some("support"));
    assert_eq!(agent.session.as_ref().map(|session| &*session.id), Some("s"));
    let asked = ("input", text(r#"{"order_id":"A"}"#));
    let error = ("netra.entity.error", text("order A not found"));
    let call = of("TOOL", &[named, asked, error, ("netra.entity.type", text("task"))]);
    assert!(call.failed && call.operation == Operation::ExecuteTool);
    let tool = call.tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("get_order"));
    assert_eq!(&**tool.arguments.unwrap().text().unwrap(), r#"{"order_id":"A"}"#);
}

#[test]
fn a_traced_function_of_mirascope_names_the_workflow() {
    let list = [
        ("mirascope.type", text("trace")),
        ("mirascope.ops.session.id", text("s")),
        ("mirascope.trace.output", text("Hello.")),
    ];
    let root = read(&raw("recommend", &list)).span;
    assert_eq!(root.workflow.as_deref(), Some("recommend"));
    assert_eq!(root.session.as_ref().map(|session| &*session.id), Some("s"));
}

#[test]
fn a_run_of_upsonic_is_not_named_after_what_was_asked() {
    let asked = [("langfuse.trace.name", text("hello?")), ("langfuse.trace.input", text("hello?"))];
    let by_langfuse = read(&raw("run", &asked)).span;
    assert_eq!(by_langfuse.workflow, None);
    let list = [&asked[..], &[("upsonic.agent.name", text("support"))]].concat();
    let agent = read(&raw("agent.run", &list)).span;
    assert_eq!(agent.operation, Operation::InvokeAgent);
    assert_eq!(agent.agent_name.as_deref(), Some("support"));
    let list = [("upsonic.tool.name", text("get_order")), ("upsonic.tool.call_id", text("c"))];
    let tool = read(&raw("tool.execute", &list)).span.tool.unwrap();
    assert_eq!(tool.name.as_deref(), Some("get_order"));
    assert!(tool.call_id.is_some());
}

#[test]
fn that_an_agent_of_agno_is_ok_says_nothing_by_openlit() {
    let list =
        [("gen_ai.operation.name", text("invoke_agent")), ("gen_ai.provider.name", text("agno"))];
    let agent = RawSpan { status: Status::Ok, ..raw("invoke_agent support", &list) };
    assert_eq!(sent_in("openlit.instrumentation.agno", &agent).status, Status::Unset);
    let list = [list[0].clone(), ("gen_ai.provider.name", text("strands"))];
    let agent = RawSpan { status: Status::Ok, ..raw("invoke_agent support", &list) };
    assert_eq!(sent_in("openlit.instrumentation.strands", &agent).status, Status::Ok);
}

#[test]
fn a_graph_of_langgraph_that_is_an_agent_is_one_by_traceai() {
    let metadata = r#"{"ls_integration": "langchain_create_agent", "lc_agent_name": "support"}"#;
    let list = [("gen_ai.span.kind", text("CHAIN")), ("metadata", text(metadata))];
    let graph = sent_in("traceai_langchain", &raw("support", &list));
    assert_eq!(graph.operation, Operation::InvokeAgent);
    assert_eq!(graph.agent_name.as_deref(), Some("support"));
}

#[test]
fn a_hook_of_qwen_code_that_failed_fails_nothing() {
    let list = [("error.type", text("hook_error")), ("success", RawValue::Bool(false))];
    let hook = RawSpan { status: Status::Error, ..raw("qwen-code.hook", &list) };
    let hook = sent_in("qwen-code", &hook);
    assert_eq!((hook.operation, hook.failed, hook.remarks), (Operation::Other, false, None));
}

#[test]
fn a_record_of_qwen_code_goes_into_the_trace_that_it_names() {
    let told = |event: &'static str, trace_id| {
        let list = [
            ("event.name", text(event)),
            ("session.id", text("s")),
            ("prompt_id", text("s########0")),
            ("response_id", text("r")),
        ];
        let raw =
            RawLog { trace_id, span_id: trace_id.map(|_| SpanId([3; 8])), ..record("", &list) };
        let scope = RawScope { name: "qwen-code".into(), ..RawScope::default() };
        let conventions = Conventions::new(options());
        let emitter = Emitter { scope: conventions.scope(&scope), resource: &Arc::default() };
        conventions.log(&raw, emitter).spans.remove(0)
    };
    let own = TraceId([1; 16]);
    let call = told("qwen-code.api_response", Some(own));
    assert_eq!((call.trace_id, call.parent), (own, Some(SpanId([3; 8]))));
    // The prompt's record names none, and does not make a turn by itself.
    let prompt = told("qwen-code.user_prompt", None);
    assert_eq!((prompt.parent, prompt.operation), (None, Operation::Other));
    assert_eq!(told("qwen-code.api_response", None).trace_id, prompt.trace_id);
}
