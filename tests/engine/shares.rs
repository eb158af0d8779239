//! The usage of a trace, and the share of each of its agents.

use std::sync::Arc;

use agentgauge::engine::options::AgentOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{
    Arguments, ModelFacts, Operation, Span, SpanId, Timestamp, Tokens, ToolFacts, TraceId,
};
use agentgauge::engine::view::TraceView;
use agentgauge::export::prometheus::{Detail, Format, render};

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1_800_000_000 * SECOND;

/// A span of trace 1 that begins in this second, and ends within it unless it has others below.
fn span(id: u8, parent: u8, second: u64, operation: Operation) -> Span {
    let start = BEGIN + second * SECOND;
    Span {
        trace_id: TraceId([1; 16]),
        span_id: SpanId([id; 8]),
        parent: (parent > 0).then_some(SpanId([parent; 8])),
        start: Timestamp(start),
        end: Timestamp(start + SECOND / 2),
        operation,
        convention: Some("test"),
        ..Span::default()
    }
}

fn agent(id: u8, parent: u8, name: &str, (from, to): (u64, u64)) -> Span {
    Span {
        agent_name: Some(Arc::from(name)),
        end: Timestamp(BEGIN + to * SECOND),
        ..span(id, parent, from, Operation::InvokeAgent)
    }
}

fn chat(id: u8, parent: u8, second: u64, model: &str, (input, output): (u64, u64)) -> Span {
    let tokens = Tokens { input: Some(input), output: Some(output), ..Tokens::default() };
    let facts = ModelFacts { model: Some(Arc::from(model)), tokens, ..ModelFacts::default() };
    Span { model: Some(facts), ..span(id, parent, second, Operation::Chat) }
}

fn tool(id: u8, parent: u8, second: u64, failed: bool) -> Span {
    let facts = ToolFacts {
        name: Some(Arc::from("search")),
        arguments: Some(Arguments::from_canonical(b"{}", &[], true)),
        ..ToolFacts::default()
    };
    Span { tool: Some(facts), failed, ..span(id, parent, second, Operation::ExecuteTool) }
}

fn over(options: &EngineOptions, spans: Vec<Span>) -> Pipeline {
    let mut pipeline = Pipeline::new(options, 2);
    let now = Timestamp(BEGIN + 100 * SECOND);
    pipeline.apply(spans, Vec::new(), Vec::new(), now);
    pipeline.finish(now);
    pipeline
}

/// A turn of `boss`, which lets `helper` look something up three times without a result.
fn team() -> Vec<Span> {
    vec![
        agent(1, 0, "boss", (0, 20)),
        chat(2, 1, 1, "gpt-4o", (1_000, 100)),
        agent(3, 1, "helper", (2, 18)),
        chat(4, 3, 3, "gpt-4o", (3_000, 100)),
        chat(5, 3, 4, "of-our-own", (500, 50)),
        tool(6, 3, 5, true),
        tool(7, 3, 6, true),
        tool(8, 3, 7, true),
    ]
}

fn only(pipeline: &Pipeline) -> TraceView {
    let mut sessions = pipeline.document().sessions;
    assert_eq!((sessions.len(), sessions[0].traces.len()), (1, 1));
    sessions.remove(0).traces.remove(0)
}

#[test]
fn what_a_sub_agent_did_is_told_beside_the_whole() {
    let pipeline = over(&EngineOptions::default(), team());
    let trace = only(&pipeline);
    let [helper] = trace.sub_agents.as_slice() else { panic!("{:?}", trace.sub_agents) };
    assert_eq!(helper.name, "helper");
    assert_eq!((helper.model_calls, helper.tool_calls, helper.errors, helper.loops), (2, 3, 3, 1));
    assert_eq!((helper.input_tokens, helper.output_tokens), (3_500, 150));
    // 3,000 x 2.50 + 100 x 10 millionths of a dollar; of 1,000 x 2.50 more in all.
    assert!((helper.cost_usd - 0.0085).abs() < 1e-12, "{}", helper.cost_usd);
    assert_eq!((trace.llm_calls, trace.tokens.input), (3, Some(4_500)));
    assert!((trace.cost_usd.unwrap() - 0.012).abs() < 1e-12);
    let agents = pipeline.document().agents;
    assert_eq!(agents.len(), 1);
    assert_eq!(agents[0].sub_agents, trace.sub_agents);
}

#[test]
fn a_model_that_no_table_has_is_told_by_its_name() {
    let pipeline = over(&EngineOptions::default(), team());
    assert_eq!(only(&pipeline).calls_without_cost, 1);
    let agents = pipeline.document().agents;
    let unpriced: Vec<_> = agents[0].unpriced_models.iter().collect();
    assert_eq!(unpriced, [(&"of-our-own".to_owned(), &1)]);
    // Names are bounded, and what is over the bound is counted.
    let agents = AgentOptions { max_names_per_agent: 1, ..AgentOptions::default() };
    let pipeline = over(&EngineOptions { agents, ..EngineOptions::default() }, team());
    let agent = pipeline.document().agents.remove(0);
    let names = agent.unpriced_models.keys().chain(agent.sub_agents.iter().map(|part| &part.name));
    assert_eq!(names.collect::<Vec<_>>(), ["of-our-own", "__overflow__"]);
}

#[test]
fn what_a_trace_took_is_in_each_distribution_once_and_only_with_full_detail() {
    let pipeline = over(&EngineOptions::default(), team());
    let board: Vec<_> = pipeline.board().values().cloned().map(Arc::new).collect();
    let full = render(&board, Format::Text, Detail::Full);
    let line = |start: &str| {
        let mut lines = full.lines().filter(|line| line.starts_with(start));
        lines.next_back().unwrap_or_else(|| panic!("no {start} in {full}")).to_owned()
    };
    for (family, sum) in [
        ("gen_ai_invoke_agent_duration_seconds", "20"),
        ("gen_ai_invoke_agent_inference_calls", "3"),
        ("gen_ai_invoke_agent_tool_calls", "3"),
        ("agentgauge_trace_tokens", "4750"),
        ("agentgauge_trace_cost_usd", "0.012"),
    ] {
        assert!(line(&format!("{family}_count{{")).ends_with("} 1"));
        assert!(line(&format!("{family}_bucket{{")).ends_with("le=\"+Inf\"} 1"));
        let told = line(&format!("{family}_sum{{"));
        assert!(told.ends_with(&format!("}} {sum}")), "{told}");
    }
    assert!(full.contains("gen_ai_sub_agent_name=\"helper\",type=\"input\"} 3500"), "{full}");
    let core = render(&board, Format::Text, Detail::Core);
    assert!(!core.contains("gen_ai_invoke_agent") && !core.contains("gen_ai_sub_agent_name"));
}

#[test]
fn a_call_that_is_made_again_after_the_conversation_was_compacted_is_no_repeat() {
    let loops = |compacted: bool| {
        let mut between = chat(9, 1, 4, "gpt-4o", (10, 1));
        between.model.as_mut().unwrap().compacted = compacted;
        let spans = vec![
            agent(1, 0, "boss", (0, 20)),
            tool(2, 1, 2, false),
            tool(3, 1, 3, false),
            between,
            tool(4, 1, 5, false),
        ];
        only(&over(&EngineOptions::default(), spans)).loops.len()
    };
    assert_eq!((loops(false), loops(true)), (1, 0));
}
