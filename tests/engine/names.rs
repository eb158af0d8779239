//! The agent of a trace: the name that the user gave, from the shapes that frameworks send, whatever order they come in.

use std::collections::BTreeSet;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{Span, Timestamp};
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use serde_json::{Value, json};

use super::recorded::{batches, captures};

/// A span: its name, the place of its parent, its attributes.
type Sent = (&'static str, Option<usize>, &'static [(&'static str, &'static str)]);

/// The spans of a trace of the service `shop`, in a scope, and the name of its agent.
struct Case {
    scope: &'static str,
    spans: &'static [Sent],
    agent: &'static str,
}

const AGENT: (&str, &str) = ("openinference.span.kind", "AGENT");
const CHAIN: (&str, &str) = ("openinference.span.kind", "CHAIN");
const LLM: (&str, &str) = ("openinference.span.kind", "LLM");
const INVOKE: (&str, &str) = ("gen_ai.operation.name", "invoke_agent");
const WORKFLOW: (&str, &str) = ("gen_ai.operation.name", "invoke_workflow");
const TOOL: (&str, &str) = ("gen_ai.operation.name", "execute_tool");
const CHAT: (&str, &str) = ("gen_ai.operation.name", "chat");
const OPENAI_AGENTS: &str = "openinference.instrumentation.openai_agents";
const LANGCHAIN: &str = "openinference.instrumentation.langchain";

const CASES: &[Case] = &[
    // The SDK's own name of a workflow yields to the agent below it.
    Case {
        scope: OPENAI_AGENTS,
        spans: &[
            ("Agent workflow", None, &[AGENT]),
            ("Agent workflow", Some(0), &[CHAIN]),
            ("support", Some(1), &[AGENT, ("agent.name", "support")]),
            ("response", Some(2), &[LLM]),
        ],
        agent: "support",
    },
    // The SDK's trace is the workflow around the agents, though its span is of an agent's kind.
    Case {
        scope: OPENAI_AGENTS,
        spans: &[
            ("refunds", None, &[AGENT]),
            ("support", Some(0), &[AGENT, ("agent.name", "support")]),
        ],
        agent: "support",
    },
    Case {
        scope: OPENAI_AGENTS,
        spans: &[("refunds", None, &[AGENT]), ("response", Some(0), &[LLM])],
        agent: "refunds",
    },
    // An agent that a workflow calls as a tool does a part of its work.
    Case {
        scope: "opentelemetry.instrumentation.genai.langchain",
        spans: &[
            ("invoke_workflow boss", None, &[WORKFLOW, ("gen_ai.workflow.name", "boss")]),
            ("execute_tool task", Some(0), &[TOOL, ("gen_ai.tool.name", "task")]),
            ("invoke_agent weather", Some(1), &[INVOKE, ("gen_ai.agent.name", "weather")]),
            ("chat gpt-4o-mini", Some(2), &[CHAT]),
        ],
        agent: "boss",
    },
    // Of two agents below it the outermost, not the first to come.
    Case {
        scope: OPENAI_AGENTS,
        spans: &[
            ("Agent workflow", None, &[AGENT]),
            ("triage", Some(0), &[AGENT, ("agent.name", "triage")]),
            ("refunds", Some(1), &[AGENT, ("agent.name", "refunds")]),
        ],
        agent: "triage",
    },
    Case {
        scope: "opentelemetry.instrumentation.openai_agents",
        spans: &[
            ("Agent workflow", None, &[INVOKE]),
            ("unknown", Some(0), &[("gen_ai.agent.name", "OpenAI Agent")]),
            ("invoke_agent support", Some(1), &[INVOKE, ("gen_ai.agent.name", "support")]),
        ],
        agent: "support",
    },
    // A graph is a chain, and one of its nodes may be called `agent`.
    Case {
        scope: LANGCHAIN,
        spans: &[
            ("support", None, &[CHAIN]),
            ("agent", Some(0), &[AGENT]),
            ("ChatOpenAI", Some(1), &[LLM]),
        ],
        agent: "support",
    },
    Case {
        scope: LANGCHAIN,
        spans: &[
            ("LangGraph", None, &[CHAIN]),
            ("agent", Some(0), &[AGENT, ("metadata", r#"{"lc_agent_name": "support"}"#)]),
        ],
        agent: "support",
    },
    Case {
        scope: LANGCHAIN,
        spans: &[
            ("LangGraph", None, &[CHAIN]),
            ("agent", Some(0), &[AGENT]),
            ("call_model", Some(0), &[CHAIN]),
            ("ChatOpenAI", Some(2), &[LLM]),
        ],
        agent: "shop",
    },
    Case {
        scope: "langsmith",
        spans: &[
            ("support", None, &[("langsmith.span.kind", "chain")]),
            ("model", Some(0), &[("langsmith.span.kind", "chain")]),
            ("ChatOpenAI", Some(1), &[("langsmith.span.kind", "llm")]),
        ],
        agent: "support",
    },
    // An agent's span without a name; the workflow, and then the id, stand in for it.
    Case {
        scope: "my.app",
        spans: &[
            ("invoke_agent", None, &[INVOKE, ("gen_ai.agent.id", "asst_7")]),
            ("chat gpt", Some(0), &[CHAT]),
        ],
        agent: "asst_7",
    },
    Case {
        scope: "my.app",
        spans: &[
            ("invoke_workflow", None, &[("gen_ai.workflow.name", "refunds")]),
            ("invoke_agent", Some(0), &[INVOKE, ("gen_ai.agent.id", "asst_7")]),
        ],
        agent: "refunds",
    },
    Case {
        scope: "my.app",
        spans: &[
            ("invoke_workflow", None, &[("gen_ai.workflow.name", "refunds")]),
            ("invoke_agent support", Some(0), &[INVOKE, ("gen_ai.agent.name", "support")]),
        ],
        agent: "support",
    },
    // An agent that another one calls as a tool does not own the trace, even if it alone has a name.
    Case {
        scope: "github.copilot",
        spans: &[
            ("invoke_agent", None, &[INVOKE]),
            ("execute_tool task", Some(0), &[TOOL]),
            ("invoke_agent explore", Some(1), &[INVOKE, ("gen_ai.agent.name", "explore")]),
            ("execute_tool view", Some(2), &[TOOL, ("gen_ai.agent.name", "explore")]),
        ],
        agent: "shop",
    },
    // A service of Quarkus is recognised by the name of its span.
    Case {
        scope: "io.quarkus.opentelemetry",
        spans: &[
            ("langchain4j.aiservices.Support.answer", None, &[]),
            ("completion gpt", Some(0), &[CHAT]),
            ("langchain4j.tools.lookup", Some(0), &[]),
        ],
        agent: "Support",
    },
    // A random id is none: it would be another agent with each process.
    Case {
        scope: "agent_framework",
        spans: &[(
            "invoke_agent 8e956a3d-8312-4ced-812a-20f6050d53b8",
            None,
            &[INVOKE, ("gen_ai.agent.id", "8e956a3d-8312-4ced-812a-20f6050d53b8")],
        )],
        agent: "shop",
    },
    // An unnamed run of version 7 of the AI SDK is called after its model.
    Case {
        scope: "gen_ai",
        spans: &[(
            "invoke_agent gpt-4o-mini",
            None,
            &[
                INVOKE,
                ("gen_ai.request.model", "gpt-4o-mini"),
                ("gen_ai.usage.input_tokens", "12"),
                ("gen_ai.usage.output_tokens", "3"),
            ],
        )],
        agent: "shop",
    },
    Case {
        scope: "traceloop.tracer",
        spans: &[
            (
                "support.workflow",
                None,
                &[("traceloop.span.kind", "workflow"), ("traceloop.workflow.name", "support")],
            ),
            ("openai.chat", Some(0), &[CHAT, ("traceloop.workflow.name", "support")]),
        ],
        agent: "support",
    },
    // The agent that a tool began is another one.
    Case {
        scope: "com.anthropic.claude_code",
        spans: &[
            ("claude_code.interaction", None, &[("span.type", "interaction")]),
            ("claude_code.tool", Some(0), &[("span.type", "tool"), ("subagent_type", "reviewer")]),
        ],
        agent: "shop",
    },
    Case {
        scope: "openinference.instrumentation.smolagents",
        spans: &[("support.run", None, &[AGENT]), ("Step 1", Some(0), &[CHAIN])],
        agent: "support",
    },
    Case {
        scope: "openinference.instrumentation.smolagents",
        spans: &[("CodeAgent.run", None, &[AGENT]), ("Step 1", Some(0), &[CHAIN])],
        agent: "shop",
    },
];

#[test]
fn the_name_that_the_user_gave_goes_before_a_generic_one() {
    for case in CASES {
        let spans = spans(case);
        for order in orders(spans.len()) {
            let sent = order.iter().map(|at| spans[*at].clone()).collect();
            assert_eq!(
                agents(vec![sent]),
                BTreeSet::from([case.agent.to_owned()]),
                "{:?} in the order {order:?}",
                case.spans
            );
        }
    }
}

/// The captures in which a name is better than that of a framework or of the service.
#[test]
fn agents_of_captures_have_the_names_that_their_users_gave() {
    for (capture, agent) in [
        ("js-openai-agents-openinference", "support-agent"),
        ("js-openai-agents-openlit", "travel_agent"),
        ("js-langgraph-openinference", "support-agent"),
        ("laminar", "support"),
        ("langwatch", "support"),
        ("langsmith-otel", "support-agent"),
        ("litellm", "support"),
        ("litellm-failing", "support"),
        ("mlflow-langgraph", "support-agent"),
        ("oi-langgraph", "support-agent"),
        ("oi-google-genai", "support"),
        ("oi-langgraph-supervisor", "team"),
        ("oi-openai-agents-below-a-server", "support"),
        ("oi-openai-agents-responses", "support-agent"),
        ("otel-openai-agents-v2", "support-turn"),
        ("smolagents", "support_agent"),
        ("strands-graph", "first"),
    ] {
        let requests = batches(&captures().join(capture));
        let spans = requests.into_iter().map(|(spans, _, _)| spans).collect();
        assert_eq!(agents(spans), BTreeSet::from([agent.to_owned()]), "{capture}");
    }
}

/// The names of the agents of these requests.
fn agents(requests: Vec<Vec<Span>>) -> BTreeSet<String> {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 2);
    let now = requests.iter().flatten().map(|span| span.end).max().unwrap_or(Timestamp(0));
    for spans in requests {
        pipeline.apply(spans, Vec::new(), Vec::new(), now);
    }
    pipeline.finish(now);
    let traces = pipeline.document().sessions.into_iter().flat_map(|session| session.traces);
    traces.map(|trace| trace.agent.agent_name.unwrap_or_default()).collect()
}

/// The spans of a case.
fn spans(case: &Case) -> Vec<Span> {
    let span = |(at, (name, parent, attributes)): (usize, &Sent)| {
        let id = |at: usize| format!("{:016x}", at + 1);
        let start = 1_790_000_000_000_000_000 + at as u64 * 1_000_000;
        let value = |value: &str| match value.parse::<u64>() {
            Ok(number) => json!({"intValue": number}),
            Err(_) => json!({"stringValue": value}),
        };
        let attributes =
            attributes.iter().map(|(key, said)| json!({"key": key, "value": value(said)}));
        json!({
            "traceId": "5a".repeat(16),
            "spanId": id(at),
            "parentSpanId": parent.map(id).unwrap_or_default(),
            "name": name,
            "startTimeUnixNano": start,
            "endTimeUnixNano": start + 20_000_000 - at as u64 * 2_000_000,
            "attributes": attributes.collect::<Vec<Value>>(),
        })
    };
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
        "scopeSpans": [{
            "scope": {"name": case.scope},
            "spans": case.spans.iter().enumerate().map(span).collect::<Vec<Value>>(),
        }],
    }]});
    let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
    let body = serde_json::to_vec(&body).unwrap();
    decoder.decode_plain(Signal::Traces, Encoding::Json, &body).unwrap().spans
}

/// All orders of this many.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let all = shorter.iter().flat_map(|order| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, count - 1);
            order
        })
    });
    all.collect()
}
