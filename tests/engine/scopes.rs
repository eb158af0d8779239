//! What distinguishes sessions with the same id: the namespace of their services, their outermost agent, or nothing; whatever order
//! spans come in.

use std::time::Duration;

use agentgauge::engine::options::{ConventionOptions, SessionScope};
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{Span, Timestamp};
use agentgauge::engine::view::SessionView;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use serde_json::{Value, json};

const START: u64 = 1_800_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// A turn of session 42: an agent, which names itself, and a model call below it that says the session as well.
#[derive(Clone, Copy)]
struct Turn {
    trace: u64,
    service: &'static str,
    namespace: &'static str,
    agent: &'static str,
    answer: &'static str,
}

/// The root and what is below it.
fn spans(turn: Turn) -> [Vec<Span>; 2] {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
    let sent = |id: u64, parent: u64, attributes: Value| {
        let mut resource = vec![text("service.name", turn.service)];
        resource.extend(
            (!turn.namespace.is_empty()).then(|| text("service.namespace", turn.namespace)),
        );
        let begin = START + 10 * turn.trace * SECOND;
        let span = json!({
            "traceId": format!("{:032x}", turn.trace), "spanId": format!("{id:016x}"), "name": "invoke_agent",
            "parentSpanId": if parent > 0 { format!("{parent:016x}") } else { String::new() },
            "startTimeUnixNano": begin.to_string(), "endTimeUnixNano": (begin + SECOND).to_string(),
            "attributes": attributes,
        });
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": resource }, "scopeSpans": [{ "spans": [span] }],
        }]});
        let body = body.to_string();
        decoder.decode_plain(Signal::Traces, Encoding::Json, body.as_bytes()).unwrap().spans
    };
    let answer =
        json!([{ "role": "assistant", "parts": [{ "type": "text", "content": turn.answer }] }]);
    let mut root = vec![
        text("gen_ai.operation.name", "invoke_agent"),
        text("gen_ai.conversation.id", "42"),
        text("gen_ai.output.messages", &answer.to_string()),
    ];
    root.extend((!turn.agent.is_empty()).then(|| text("gen_ai.agent.name", turn.agent)));
    let chat = [text("gen_ai.operation.name", "chat"), text("gen_ai.conversation.id", "42")];
    [sent(1, 0, root.into()), sent(2, 1, json!(chat))]
}

fn options(scope: SessionScope) -> EngineOptions {
    let mut options = EngineOptions::default();
    options.session.scope = scope;
    options
}

/// The sessions after these turns: all at once, the root of each first or last; or with roots that come a minute after the rest.
fn sessions(turns: &[Turn], scope: SessionScope, shards: u32, order: Roots) -> Vec<SessionView> {
    let mut pipeline = Pipeline::new(&options(scope), shards);
    let (mut roots, mut below) = (Vec::new(), Vec::new());
    for turn in turns {
        let [root, rest] = spans(*turn);
        roots.extend(root);
        below.extend(rest);
    }
    let mut now = Timestamp(START);
    let parts = if order == Roots::First { [roots, below] } else { [below, roots] };
    for part in parts {
        pipeline.apply(part, vec![], vec![], now);
        if order == Roots::Late {
            now = now.after(Duration::from_secs(60));
            pipeline.advance(now);
        }
    }
    pipeline.finish(now.after(Duration::from_secs(3_600)));
    pipeline.document().sessions
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Roots {
    First,
    Last,
    Late,
}

/// Scopes and how many traces there are in each, in every order and number of shards.
fn scopes(turns: &[Turn], scope: SessionScope) -> Vec<(String, u64)> {
    let first = sessions(turns, scope, 1, Roots::First);
    for shards in [1, 4] {
        for order in [Roots::Last, Roots::Late] {
            assert_eq!(sessions(turns, scope, shards, order), first, "{shards} shards, {order:?}");
        }
    }
    let scopes = first.iter().map(|session| (session.scope.clone(), session.total_traces));
    let mut scopes: Vec<_> = scopes.collect();
    scopes.sort();
    scopes
}

fn turn(trace: u64, service: &'static str, agent: &'static str) -> Turn {
    Turn { trace, service, namespace: "", agent, answer: "Your money is on its way." }
}

fn named(scopes: &[(&str, u64)]) -> Vec<(String, u64)> {
    scopes.iter().map(|(scope, traces)| ((*scope).to_owned(), *traces)).collect()
}

#[test]
fn agents_that_number_their_sessions_do_not_share_them() {
    let turns =
        [turn(1, "shop", "billing"), turn(2, "shop", "support"), turn(3, "shop", "billing")];
    assert_eq!(scopes(&turns, SessionScope::Service), named(&[("billing", 2), ("support", 1)]));
    // The same answer was given in another conversation: that is no loop.
    let both = sessions(&turns[..2], SessionScope::Service, 1, Roots::Last);
    assert!(both.iter().all(|session| session.traces[0].loops.is_empty()), "{both:#?}");
    assert!(both.iter().all(|session| session.reliability == Some(1.0)), "{both:#?}");
    let one = sessions(&turns[..2], SessionScope::Tenant, 1, Roots::Last);
    assert!(one[0].reliability < Some(0.5), "{one:#?}");
}

#[test]
fn with_tenant_as_the_scope_an_id_is_one_session() {
    let turns = [turn(1, "shop", "billing"), turn(2, "bank", "support")];
    assert_eq!(scopes(&turns, SessionScope::Tenant), named(&[("", 2)]));
}

#[test]
fn services_of_one_namespace_share_sessions_and_those_of_another_do_not() {
    let of = |namespace, turn| Turn { namespace, ..turn };
    let turns = [
        of("shop", turn(1, "billing", "billing")),
        of("shop", turn(2, "support", "support")),
        of("bank", turn(3, "support", "support")),
    ];
    assert_eq!(scopes(&turns, SessionScope::Service), named(&[("bank", 1), ("shop", 2)]));
}

#[test]
fn where_nobody_names_an_agent_services_tell_sessions_apart() {
    let turns = [turn(1, "billing", ""), turn(2, "support", ""), turn(3, "billing", "")];
    assert_eq!(scopes(&turns, SessionScope::Service), named(&[("billing", 2), ("support", 1)]));
}

#[test]
fn a_trace_that_spans_services_is_one_trace_of_the_outermost_agents_session() {
    let [root, _] = spans(turn(1, "shop", "triage"));
    let [mut inner, below] = spans(turn(1, "bank", "refunds"));
    inner[0].span_id.0[0] = 9;
    inner[0].parent = Some(root[0].span_id);
    let mut pipeline = Pipeline::new(&options(SessionScope::Service), 4);
    // The inner agent is known first, and the trace is in its session until the outer one comes.
    pipeline.apply([inner, below].concat(), vec![], vec![], Timestamp(START));
    pipeline.advance(Timestamp(START + 60 * SECOND));
    let before = pipeline.document().sessions;
    assert_eq!((before.len(), before[0].scope.as_str()), (1, "refunds"));
    pipeline.apply(root, vec![], vec![], Timestamp(START + 61 * SECOND));
    pipeline.finish(Timestamp(START + 3_600 * SECOND));
    let after = pipeline.document().sessions;
    assert_eq!((after.len(), after[0].scope.as_str(), after[0].total_traces), (1, "triage", 1));
}

#[test]
fn a_trace_that_names_no_session_is_its_own_and_has_no_scope() {
    let [mut root, mut below] = spans(turn(1, "shop", "billing"));
    (root[0].session, below[0].session) = (None, None);
    let mut pipeline = Pipeline::new(&options(SessionScope::Service), 1);
    pipeline.apply([root, below].concat(), vec![], vec![], Timestamp(START));
    pipeline.finish(Timestamp(START + 3_600 * SECOND));
    let session = pipeline.document().sessions.remove(0);
    assert_eq!((session.scope.as_str(), session.session_source.as_str()), ("", "trace"));
    assert_eq!(session.session_id, format!("{:032x}", 1));
}
