mod aged;
mod full;
mod judged;
mod roots;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::memory_bounds::Sums;
use super::*;
use crate::expect::{Judgements, Spec};
use crate::facts::TraceState;
use crate::math::Quanta;
use crate::span::{
    Arguments, Attempt, IdHash, ModelFacts, Operation, Pause, RECORD_SCOPE, Remarks, Resource,
    SessionName, Source, SpanId, Status, Text, Tokens, ToolFacts, ToolResult,
};
use crate::tenants::{TenantOptions, tenant_hash};

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp(1_000 * SECOND + seconds * SECOND)
}

fn span(id: u8, parent: u8, operation: Operation) -> Span {
    Span {
        trace_id: TraceId([7; 16]),
        span_id: SpanId([id; 8]),
        parent: (parent > 0).then_some(SpanId([parent; 8])),
        start: Timestamp(u64::from(id) * 100),
        end: Timestamp(u64::from(id) * 100 + 50),
        name: Arc::from("a span"),
        operation,
        ..Span::default()
    }
}

fn tool(id: u8) -> Span {
    let facts = ToolFacts {
        name: Some(Arc::from("search")),
        arguments: Some(Arguments::from_canonical(b"{}", &[], true)),
        result_hash: Some(1),
        ..ToolFacts::default()
    };
    Span { tool: Some(facts), ..span(id, 1, Operation::ExecuteTool) }
}

fn root() -> Span {
    let mut root = span(1, 0, Operation::InvokeAgent);
    root.end = Timestamp(100_000);
    root.session = Some(SessionName { attribute: Arc::from("session"), id: Arc::from("s1") });
    root
}

fn stage() -> Assembler {
    Assembler::new(AssembleOptions::default(), LoopOptions::default(), &CostOptions::default())
}

/// A table in which nothing is known.
fn nothing() -> Learned {
    Learned::new(&AssembleOptions::default(), Shares::default())
}

fn feed(stage: &mut Assembler, spans: Vec<Span>, now: Timestamp) -> Vec<Box<TraceFacts>> {
    spans.into_iter().for_each(|span| stage.handle(Input::Span(Box::new(span)), now));
    stage.drain(&nothing())
}

/// Feeds the spans and lets the trace rest until it is done.
fn done(stage: &mut Assembler, spans: Vec<Span>, now: Timestamp) -> Vec<Box<TraceFacts>> {
    let mut updates = feed(stage, spans, now);
    stage.handle_timeout(now.after(Duration::from_secs(10)), &nothing());
    updates.extend(stage.drain(&nothing()));
    updates
}

fn report(score: i64) -> Report {
    Report {
        target: Target::Trace(TraceId([7; 16])),
        name: Arc::from("confidence"),
        score: Quanta(score),
        label: None,
        success: None,
        explanation: None,
        source: Source::Reported,
        identifier: Arc::from(""),
        judge: None,
        time: at(0),
        tenant: None,
    }
}

fn log(tenant: &str) -> Log {
    Log {
        trace_id: TraceId([7; 16]),
        span_id: None,
        time: at(0),
        index: 0,
        id: 1,
        input: None,
        output: Some(Text { rank: 1, text: tenant.into() }),
        tool_calls: Vec::new(),
        tool_results: Vec::new(),
        failed: false,
        error_type: None,
        asked_by_user: None,
        violations: Vec::new(),
        pause: None,
        tenant: Some(tenant.into()),
    }
}

/// A span that ended for a person to answer.
fn interrupted(span: Span) -> Span {
    let remarks = Remarks { interrupted: true, ..Remarks::default() };
    Span { remarks: Some(Box::new(remarks)), ..span }
}

/// A model span that calls tools with these ids and receives the result of the previous call.
fn calling(id: u8, calls: &[&str], told: Option<&str>) -> Span {
    let call = |id: &&str| ToolFacts {
        name: Some(Arc::from("search")),
        call_id: Some(IdHash::from(*id)),
        ..ToolFacts::default()
    };
    let result = |id| ToolResult { call_id: Some(IdHash::from(id)), failed: false, hash: Some(1) };
    let model = ModelFacts {
        tool_calls: calls.iter().map(call).collect(),
        tool_results: told.map(result).into_iter().collect(),
        ..ModelFacts::default()
    };
    Span { model: Some(model), ..span(id, 1, Operation::Chat) }
}

#[test]
fn a_tool_that_waits_for_a_person_has_not_run() {
    let tools = |spans: Vec<Span>| done(&mut stage(), spans, at(0)).last().unwrap().tools.len();
    let asked = || vec![calling(2, &["1"], None), calling(3, &["2"], Some("1"))];
    assert_eq!(tools([vec![root()], asked()].concat()), 2);
    // The run as a whole waits, or a step of it: the first call has a result.
    assert_eq!(tools([vec![interrupted(root())], asked()].concat()), 1);
    let step = interrupted(span(4, 1, Operation::Other));
    assert_eq!(tools([vec![root(), step], asked()].concat()), 1);
    // The call that waits has a span.
    let waits = interrupted(tool(4));
    assert_eq!(tools(vec![root(), calling(2, &["1"], None), waits.clone()]), 0);
    assert_eq!(tools(vec![root(), tool(5), waits]), 1);
}

#[test]
fn a_call_that_two_libraries_tell_counts_once_though_one_hangs_further_out() {
    let call = |id, parent, scope, tokens| {
        let tokens = Tokens { input: Some(tokens), output: Some(5), ..Tokens::default() };
        let model = ModelFacts { tokens, ..ModelFacts::default() };
        Span { scope, model: Some(model), ..span(id, parent, Operation::Chat) }
    };
    let calls = |framework: Span, sdk: Span| {
        let sdk = Span { start: framework.start, end: framework.end, ..sdk };
        let step = span(2, 1, Operation::Other);
        let updates = done(&mut stage(), vec![root(), step, framework, sdk], at(0));
        updates.last().unwrap().llm_calls
    };
    assert_eq!(calls(call(3, 2, 1, 10), call(4, 1, 2, 10)), 1);
    assert_eq!(calls(call(3, 2, 1, 10), call(4, 1, 2, 11)), 2, "other tokens, another call");
    assert_eq!(calls(call(3, 2, 1, 10), call(4, 1, 1, 10)), 2, "one library, two calls");
    let elsewhere = Span { parent: Some(SpanId([9; 8])), ..call(4, 1, 2, 10) };
    assert_eq!(calls(call(3, 2, 1, 10), elsewhere), 2, "nothing links them");
}

#[test]
fn a_call_that_two_spans_tell_failed_if_the_last_of_the_inner_ones_did() {
    let inner = |id, failed| {
        let span = tool(id);
        Span { parent: Some(SpanId([2; 8])), failed, ..span }
    };
    let outer = || Span { end: Timestamp(1_000), ..tool(2) };
    let errors = |inside: Vec<Span>| {
        let updates = done(&mut stage(), [vec![root(), outer()], inside].concat(), at(0));
        let tools = updates.last().unwrap().tools.iter();
        tools.map(|call| call.error == Some(true)).collect::<Vec<_>>()
    };
    assert_eq!(errors(vec![inner(3, true)]), [true]);
    assert_eq!(errors(vec![inner(3, true), inner(4, false)]), [false]);
    assert_eq!(errors(vec![inner(3, false), inner(4, true)]), [true]);
}

#[test]
fn a_call_and_its_trace_have_the_kind_of_error_that_their_spans_tell() {
    let failed = |span: Span, kind: &str| {
        let remarks = Remarks { error_type: Some(Arc::from(kind)), ..Remarks::default() };
        Span { failed: true, remarks: Some(Box::new(remarks)), ..span }
    };
    let told = |spans: Vec<Span>| {
        let update = done(&mut stage(), spans, at(0)).pop().unwrap();
        let calls = update.tools.iter().map(|call| call.error_type.as_deref().map(str::to_owned));
        (update.error_type.as_deref().map(str::to_owned), calls.collect::<Vec<_>>())
    };
    let some = |kind: &str| Some(kind.to_owned());
    let inner = |id| Span { parent: Some(SpanId([2; 8])), ..tool(id) };
    let outer = || Span { end: Timestamp(1_000), ..tool(2) };
    assert_eq!(told(vec![root(), tool(2)]), (None, vec![None]));
    assert_eq!(told(vec![root(), failed(tool(2), "a")]), (some("a"), vec![some("a")]));
    let both = vec![failed(root(), "r"), failed(tool(2), "a")];
    assert_eq!(told(both), (some("r"), vec![some("a")]), "the outermost span tells of the trace");
    let inside = vec![root(), outer(), failed(inner(3), "i")];
    assert_eq!(told(inside), (some("i"), vec![some("i")]));
    let last = vec![root(), outer(), failed(inner(3), "i"), inner(4)];
    assert_eq!(told(last), (some("i"), vec![None]), "the call went well in the end");
}

#[test]
fn a_run_failed_if_its_outermost_agent_did_and_nothing_went_on_after_it() {
    let error = |status, spans: Vec<Span>| {
        let root = Span { status, operation: Operation::Other, ..root() };
        done(&mut stage(), [vec![root], spans].concat(), at(0)).last().unwrap().error
    };
    let agent = |id, parent| span(id, parent, Operation::InvokeAgent);
    let failed = |id, parent| Span { failed: true, status: Status::Error, ..agent(id, parent) };
    assert!(error(Status::Unset, vec![failed(2, 1)]));
    assert!(!error(Status::Unset, vec![failed(2, 1), agent(3, 1)]), "another took over");
    assert!(error(Status::Unset, vec![agent(2, 1), failed(3, 1)]));
    assert!(!error(Status::Unset, vec![agent(2, 1), failed(3, 2)]), "the caller recovered");
    assert!(!error(Status::Unset, vec![tool(2), failed(3, 2)]), "the tool recovered");
}

#[test]
fn a_run_failed_with_a_part_that_says_so_unless_another_run_went_well_after_it() {
    let error = |spans: Vec<Span>| {
        let root = Span { status: Status::Ok, operation: Operation::Other, ..root() };
        done(&mut stage(), [vec![root], spans].concat(), at(0)).last().unwrap().error
    };
    let agent = |id| Span { status: Status::Ok, ..span(id, 1, Operation::InvokeAgent) };
    let part = |id, parent| {
        let remarks = Remarks { failed_run: true, ..Remarks::default() };
        Span {
            remarks: Some(Box::new(remarks)),
            failed: true,
            ..span(id, parent, Operation::Other)
        }
    };
    assert!(error(vec![agent(2), part(3, 2)]));
    assert!(!error(vec![agent(2), part(3, 2), agent(4)]), "it was run again");
    assert!(error(vec![agent(2), agent(3), part(4, 3)]), "the last run failed");
    assert!(error(vec![agent(2), part(3, 2), agent(4), part(5, 4)]), "and again");
    assert!(error(vec![agent(2), part(3, 2), Span { failed: true, ..agent(4) }]));
    assert!(!error(vec![agent(2), tool(4), part(5, 4)]), "a tool's own");
}

#[test]
fn a_step_that_went_well_around_agents_says_nothing_of_them() {
    let error = |operation, spans: Vec<Span>| {
        let root = Span { status: Status::Ok, operation, ..root() };
        done(&mut stage(), [vec![root], spans].concat(), at(0)).last().unwrap().error
    };
    let agent = |id, parent| span(id, parent, Operation::InvokeAgent);
    let failed = |id, parent| Span { failed: true, status: Status::Error, ..agent(id, parent) };
    let step = || Span { status: Status::Ok, ..span(2, 1, Operation::Other) };
    for around in [Operation::Other, Operation::CreateAgent] {
        assert!(error(around, vec![failed(2, 1)]), "{around:?}");
        assert!(error(around, vec![step(), failed(3, 2)]), "{around:?}");
        assert!(error(around, vec![agent(2, 1), failed(3, 1)]), "{around:?}");
        assert!(!error(around, vec![failed(2, 1), agent(3, 1)]), "{around:?}: another took over");
        let call = span(3, 1, Operation::Chat);
        assert!(!error(around, vec![failed(2, 1), call]), "{around:?}: it went on without");
        let beside = Span { end: Timestamp(1_000), ..agent(2, 1) };
        assert!(!error(around, vec![beside, failed(3, 1)]), "{around:?}: another went well");
        assert!(!error(around, vec![agent(2, 1), failed(3, 2)]), "{around:?}: it was called");
    }
    assert!(!error(Operation::InvokeAgent, vec![failed(2, 1)]), "an agent recovered");
    let call = Span { failed: true, ..span(2, 1, Operation::Chat) };
    assert!(!error(Operation::Other, vec![call]), "no agent failed");
}

#[test]
fn an_item_of_a_batch_that_failed_and_was_not_made_good_fails_the_trace() {
    let item = |id: u8, conversation: &str, failed: bool| {
        let name = SessionName { attribute: Arc::from("session"), id: Arc::from(conversation) };
        let status = if failed { Status::Error } else { Status::Unset };
        let agent = span(id, 1, Operation::InvokeAgent);
        Span { agent_name: Some(Arc::from("Item")), session: Some(name), failed, status, ..agent }
    };
    let error = |operation, spans: Vec<Span>| {
        let root = Span { operation, session: None, ..root() };
        done(&mut stage(), [vec![root], spans].concat(), at(0)).last().unwrap().error
    };
    let batch = |spans: Vec<Span>| error(Operation::Other, spans);
    let (lost, fine) = (|id, of| item(id, of, true), |id, of| item(id, of, false));
    assert!(batch(vec![lost(2, "a"), fine(3, "b"), fine(4, "c")]));
    assert!(!batch(vec![fine(2, "a"), fine(3, "b")]));
    assert!(!batch(vec![lost(2, "a"), fine(3, "b"), fine(4, "a")]), "it was made good");
    assert!(batch(vec![fine(2, "a"), lost(3, "a"), fine(4, "b")]), "it failed after that");
    assert!(!batch(vec![lost(2, "a"), fine(3, "a")]), "there is but one");
    let other = Span { agent_name: Some(Arc::from("Fallback")), ..fine(3, "b") };
    assert!(!batch(vec![lost(2, "a"), other]), "another agent took over");
    let unnamed = |spans: Vec<Span>| -> Vec<Span> {
        spans.into_iter().map(|span| Span { session: None, ..span }).collect()
    };
    assert!(!batch(unnamed(vec![lost(2, ""), fine(3, "")])), "it may have tried again");
    let inner = |span: Span| Span { parent: Some(SpanId([2; 8])), ..span };
    let called = vec![fine(2, "x"), inner(lost(3, "a")), inner(fine(4, "b"))];
    assert!(!batch(called), "an agent called them");
    let all = vec![lost(2, "a"), fine(3, "b")];
    assert!(!error(Operation::InvokeAgent, all), "an agent is around them");
    let run = |span: Span, run: &str| {
        let (task, run) = (Some(Arc::from("t")), Some(Arc::from(run)));
        let attempt = Some(Box::new(Attempt { task, run, ..Attempt::default() }));
        Span { session: None, attempt, ..span }
    };
    assert!(batch(vec![run(lost(2, ""), "1"), run(fine(3, ""), "2")]));
}

#[test]
fn a_tool_span_directly_inside_one_of_the_same_call_counts_with_it() {
    let of_call = |id, parent, name: &str, call: Option<u64>| {
        let mut span = Span { parent: Some(SpanId([parent; 8])), ..tool(id) };
        let tool = span.tool.as_mut().unwrap();
        tool.name = Some(Arc::from(name));
        tool.call_id = call.map(|call| IdHash::of(&call.to_be_bytes()));
        span
    };
    let tools = |spans: Vec<Span>| {
        let update = done(&mut stage(), [vec![root()], spans].concat(), at(0)).pop().unwrap();
        let told = update.tools.iter().map(|call| (call.name.to_string(), call.error));
        told.collect::<Vec<_>>()
    };
    let outer = || Span { end: Timestamp(1_000), ..of_call(2, 1, "search", Some(1)) };
    let method = || of_call(3, 2, "call_tool", Some(1));
    let innermost = Span { failed: true, ..of_call(4, 3, "search", None) };
    let one = |failed| vec![("search".to_owned(), Some(failed))];
    assert_eq!(tools(vec![outer(), method()]), one(false));
    assert_eq!(tools(vec![outer(), method(), innermost]), one(true));
    // With an agent between, it is that agent's call, whatever its id.
    let agent = span(5, 2, Operation::InvokeAgent);
    assert_eq!(tools(vec![outer(), agent, of_call(6, 5, "other", Some(1))]).len(), 2);
    assert_eq!(tools(vec![outer(), of_call(3, 2, "call_tool", Some(2))]).len(), 2);
    assert_eq!(tools(vec![outer(), of_call(3, 2, "call_tool", None)]).len(), 2);
}

#[test]
fn a_trace_is_done_when_its_root_is_in_and_it_was_quiet() {
    let mut stage = stage();
    assert_eq!(feed(&mut stage, vec![root(), tool(2)], at(0)), []);
    assert_eq!(stage.poll_timeout(), Some(at(10)));
    stage.handle_timeout(at(10), &nothing());
    assert_eq!(stage.drain(&nothing())[0].state, TraceState::Done);
    assert_eq!(stage.poll_timeout(), Some(at(310)));
    stage.handle_timeout(at(310), &nothing());
    assert_eq!(stage.drain(&nothing())[0].state, TraceState::Sealed);
    assert_eq!((stage.open_traces(), stage.poll_timeout()), (0, None));
}

#[test]
fn a_turn_whose_agent_waits_for_somebody_is_not_over_until_it_went_on_or_is_of_age() {
    let pause = |second: u64, waits: bool| Log {
        trace_id: TraceId([7; 16]),
        id: second,
        pause: Some(Pause { at: at(second), waits }),
        output: None,
        tenant: None,
        ..log("")
    };
    let told = |stage: &mut Assembler, second: u64| {
        stage.handle_timeout(at(second), &nothing());
        stage.drain(&nothing()).pop().map(|update| update.state)
    };
    let mut stage = stage();
    feed(&mut stage, vec![tool(2)], at(0));
    stage.handle(Input::Log(Box::new(pause(1, true))), at(1));
    let update = {
        stage.handle_timeout(at(20), &nothing());
        stage.drain(&nothing()).pop().unwrap()
    };
    assert_eq!(update.remarks.unwrap().waits_since_unix_nano, Some(at(1).0));
    // Without the pause it would be over after `rootless_idle`.
    assert_eq!(told(&mut stage, 600), None);
    stage.handle(Input::Log(Box::new(pause(700, false))), at(700));
    assert_ne!(told(&mut stage, 720), Some(TraceState::Done));
    assert_eq!(told(&mut stage, 1_000), Some(TraceState::Done));
    // A root that ends after the pause is the end.
    let mut stage = self::stage();
    feed(&mut stage, vec![Span { end: at(2), ..root() }], at(0));
    stage.handle(Input::Log(Box::new(pause(1, true))), at(1));
    assert_eq!(told(&mut stage, 20), Some(TraceState::Done));
}

#[test]
fn a_loop_of_calls_that_models_made_without_a_name_is_told_while_it_runs() {
    let asked = |id: u8| {
        let call = ToolFacts {
            name: None,
            call_id: Some(IdHash::from(&*id.to_string())),
            ..tool(id).tool.unwrap()
        };
        let model = ModelFacts { tool_calls: vec![call], ..ModelFacts::default() };
        Span { model: Some(model), ..span(id + 10, 1, Operation::Chat) }
    };
    let ran = |id: u8| {
        let call = ToolFacts {
            arguments: None,
            call_id: Some(IdHash::from(&*id.to_string())),
            ..tool(id).tool.unwrap()
        };
        Span { tool: Some(call), ..tool(id) }
    };
    let mut stage = stage();
    let updates = feed(&mut stage, (2..5).flat_map(|id| [asked(id), ran(id)]).collect(), at(0));
    assert_eq!((updates[0].state, updates[0].loops.len()), (TraceState::Open, 1));
}

#[test]
fn a_root_names_the_agent_of_other_traces_however_often_its_tools_were_called() {
    let service =
        Arc::new(Resource { service_name: Some(Arc::from("shop")), ..Resource::default() });
    let of_shop = |span: Span| Span { resource: Arc::clone(&service), ..span };
    let ran = |id: u8| {
        let mut span = of_shop(tool(id));
        let arguments = Arguments::from_canonical(format!("{{\"n\":{id}}}").as_bytes(), &[], true);
        span.tool.as_mut().unwrap().arguments = Some(arguments);
        span
    };
    let named = Span { agent_name: Some(Arc::from("support")), ..of_shop(root()) };
    let other = Span { trace_id: TraceId([8; 16]), ..of_shop(tool(2)) };
    let mut stage = stage();
    assert_eq!(feed(&mut stage, vec![other], at(0)), []);
    assert_eq!(feed(&mut stage, (2..6).map(ran).chain([named]).collect(), at(5)), []);
    // The trace with the root is not over before 15.
    stage.handle_timeout(at(10), &nothing());
    let mut known = nothing();
    known.learn(stage.lessons());
    let told = stage.drain(&known).into_iter().find(|update| update.trace_id == TraceId([8; 16]));
    assert_eq!(&*told.unwrap().agent.unwrap().agent_name, "support");
}

#[test]
fn what_can_wait_of_an_open_trace_is_told_now_and_then() {
    let mut stage = stage();
    assert_eq!(feed(&mut stage, vec![tool(2)], at(0)), []);
    assert_eq!(feed(&mut stage, vec![tool(3)], at(9)), []);
    stage.handle_timeout(at(10), &nothing());
    let updates = stage.drain(&nothing());
    assert_eq!((updates[0].state, updates[0].tools.len()), (TraceState::Open, 2));
    stage.handle_timeout(at(40), &nothing());
    assert_eq!(stage.drain(&nothing()), []);
    // The root is in: it is done before there would be more to tell.
    let mut failed = tool(4);
    failed.failed = true;
    assert_eq!(feed(&mut stage, vec![failed, root()], at(41)), []);
    stage.handle_timeout(at(51), &nothing());
    let updates = stage.drain(&nothing());
    assert_eq!(updates.last().map(|update| update.state), Some(TraceState::Done));
}

#[test]
fn all_is_told_when_that_is_asked_for() {
    let mut stage = stage();
    assert_eq!(feed(&mut stage, vec![root(), tool(2)], at(0)), []);
    stage.tell_all();
    assert_eq!(stage.drain(&nothing())[0].state, TraceState::Open);
    stage.tell_all();
    assert_eq!(stage.drain(&nothing()), []);
}

#[test]
fn a_trace_that_another_may_go_on_with_is_told_at_once() {
    let mut model = span(1, 0, Operation::Chat);
    model.model = Some(ModelFacts { asked_by_user: Some(true), ..ModelFacts::default() });
    assert_eq!(feed(&mut stage(), vec![model.clone()], at(0))[0].state, TraceState::Open);
    // An agent's turn continues the previous one only if its first model call does.
    let below = |id, asked| {
        let facts = ModelFacts { asked_by_user: Some(asked), ..ModelFacts::default() };
        Span { model: Some(facts), ..span(id, 1, Operation::Chat) }
    };
    let turn = vec![root(), below(2, true), below(3, false)];
    assert_eq!(feed(&mut stage(), turn, at(0)), []);
    let turn = vec![root(), below(3, true), below(2, false)];
    assert_eq!(feed(&mut stage(), turn, at(0)).len(), 1);
}

#[test]
fn a_late_span_reopens_the_trace_until_it_is_sealed() {
    let mut stage = stage();
    feed(&mut stage, vec![root()], at(0));
    stage.handle_timeout(at(10), &nothing());
    stage.drain(&nothing());
    let updates = feed(&mut stage, vec![tool(2)], at(100));
    assert_eq!((updates[0].state, updates[0].tools.len()), (TraceState::Open, 1));
    assert_eq!(stage.counts().get("late", "revised"), 1);
    stage.handle_timeout(at(1_000), &nothing());
    stage.handle_timeout(at(1_000), &nothing());
    stage.drain(&nothing());
    assert_eq!(feed(&mut stage, vec![tool(3)], at(1_001)), []);
    assert_eq!(stage.counts().get("late", "dropped"), 1);
}

#[test]
fn a_trace_without_a_root_is_done_later_and_one_that_never_rests_is_cut() {
    let mut stage = stage();
    feed(&mut stage, vec![tool(2)], at(0));
    stage.handle_timeout(at(10), &nothing());
    assert_eq!(stage.drain(&nothing())[0].state, TraceState::Open);
    assert_eq!(stage.poll_timeout(), Some(at(300)));
    for minute in 1..=90_u8 {
        feed(&mut stage, vec![tool(minute + 2)], at(u64::from(minute) * 50));
        stage.handle_timeout(at(u64::from(minute) * 50), &nothing());
        let updates = stage.drain(&nothing());
        if let Some(update) = updates.iter().find(|update| update.state == TraceState::Done) {
            assert!(update.partial);
            assert_eq!(minute, 72);
            return;
        }
    }
    panic!("it was never done");
}

#[test]
fn a_session_that_is_named_late_moves_the_trace() {
    let mut stage = stage();
    let first = done(&mut stage, vec![tool(2)], at(0));
    assert_eq!(&*first[0].session.as_ref().unwrap().source, "trace");
    let second = done(&mut stage, vec![root()], at(11));
    assert!(second[0].tombstone);
    assert_eq!(second[0].session, first[0].session);
    assert_eq!(&*second[1].session.as_ref().unwrap().id, "s1");
    assert!(second[1].revision > first[0].revision);
}

#[test]
fn a_loop_is_told_with_the_span_that_closes_it() {
    let mut stage = stage();
    let mut spans = vec![root()];
    spans.extend((2..6).map(tool));
    for span in spans {
        let id = span.span_id.0[0];
        let updates = feed(&mut stage, vec![span], at(0));
        let loops = updates.iter().flat_map(|update| &update.loops);
        let counts: Vec<u64> = loops.map(|found| found.count).collect();
        assert_eq!(counts, if id >= 4 { vec![u64::from(id) - 1] } else { vec![] });
    }
}

#[test]
fn a_long_trace_is_searched_for_loops_no_more_often_than_its_length_allows() {
    let mut stage = stage();
    let numbered = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let span_id = SpanId([1, high, low, 0, 0, 0, 0, 0]);
        let start = 1_000 + u64::from(number) * 100;
        Span { span_id, start: Timestamp(start), end: Timestamp(start + 50), ..tool(2) }
    };
    let told = |stage: &mut Assembler, number, now| -> u64 {
        let updates = feed(stage, vec![numbered(number)], now);
        updates.iter().flat_map(|update| &update.loops).map(|found| found.count).sum()
    };
    feed(&mut stage, (0..999).map(numbered).collect(), at(0));
    let millis = |millis| at(0).after(Duration::from_millis(millis));
    // 100 microseconds a span.
    assert_eq!(told(&mut stage, 999, millis(1)), 0);
    assert_eq!(told(&mut stage, 1_000, millis(101)), 1_001);
    assert_eq!(told(&mut stage, 1_001, millis(102)), 0);
    // It is sent when it may be searched again, even if nothing arrives.
    let mut updates = Vec::new();
    while updates.is_empty() {
        let due = stage.poll_timeout().unwrap();
        assert!(due <= millis(202), "{due:?}");
        stage.handle_timeout(due, &nothing());
        updates = stage.drain(&nothing());
    }
    assert_eq!(updates[0].loops[0].count, 1_002);
}

#[test]
fn traces_without_an_agent_are_counted_and_kept_back() {
    let mut stage = stage();
    assert_eq!(feed(&mut stage, vec![span(1, 0, Operation::Other)], at(0)), []);
    stage.handle_timeout(at(10), &nothing());
    assert_eq!(stage.drain(&nothing()), []);
    assert_eq!(stage.counts().get("traces_ignored", "no_agent"), 1);
}

#[test]
fn a_report_waits_for_its_trace_and_gives_up() {
    let mut stage = stage();
    stage.handle(Input::Report(Box::new(report(5))), at(0));
    assert_eq!(stage.drain(&nothing()), []);
    let updates = done(&mut stage, vec![root()], at(1));
    assert_eq!(updates[0].reported[0].score_quanta, 5);

    let mut stage = self::stage();
    stage.handle(Input::Report(Box::new(report(5))), at(0));
    stage.handle_timeout(at(600), &nothing());
    assert_eq!(stage.counts().get("reports", "unmatched"), 1);
    assert_eq!(done(&mut stage, vec![root()], at(601))[0].reported, []);
}

#[test]
fn what_comes_of_a_done_trace_is_read_and_stays() {
    let text = |text: &str| Some(Text { text: Arc::from(text), rank: 0 });
    let mut stage = stage().embedding(Some(1_000));
    feed(&mut stage, vec![Span { input: text("Hello"), output: text("Hi"), ..root() }], at(0));
    stage.handle_timeout(at(10), &nothing());
    let [update] = stage.drain(&nothing()).try_into().unwrap();
    assert!(update.reported.is_empty());
    assert_eq!(update.coherence_quanta, None);
    let [asked] = stage.embed_requests().try_into().unwrap();

    stage.handle(Input::Report(Box::new(report(5))), at(11));
    let [update] = stage.drain(&nothing()).try_into().unwrap();
    assert_eq!(update.reported[0].score_quanta, 5);

    let embedded =
        Embedded { texts: asked.texts, coherence: Some(Quanta(7)), ..Embedded::default() };
    stage.handle(Input::Embedded(TraceId([7; 16]).into(), embedded), at(12));
    let [update] = stage.drain(&nothing()).try_into().unwrap();
    assert_eq!(update.coherence_quanta, Some(7));

    stage.handle(Input::Report(Box::new(report(6))), at(13));
    stage.finish(at(14), &nothing());
    let [update] = stage.drain(&nothing()).try_into().unwrap();
    assert_eq!((update.reported[0].score_quanta, update.coherence_quanta), (6, Some(7)));
    assert_eq!((update.state, update.unchanged), (TraceState::Sealed, false));
    assert!(stage.embed_requests().is_empty(), "it was asked about once");
}

#[test]
fn of_a_trace_that_was_told_nothing_is_said_at_its_end_but_that_it_ended() {
    let mut stage = stage();
    feed(&mut stage, vec![root()], at(0));
    stage.handle_timeout(at(10), &nothing());
    let [told] = stage.drain(&nothing()).try_into().unwrap();
    assert_eq!(told.state, TraceState::Done);
    stage.handle_timeout(stage.poll_timeout().unwrap(), &nothing());
    let [last] = stage.drain(&nothing()).try_into().unwrap();
    let said = TraceFacts {
        trace_id: told.trace_id,
        revision: told.revision + 1,
        session: told.session,
        state: TraceState::Sealed,
        unchanged: true,
        ..TraceFacts::default()
    };
    assert_eq!(*last, said);
    assert_eq!(stage.poll_timeout(), None, "it is gone");
}

#[test]
fn a_done_trace_is_held_against_expectations_and_its_texts_stay_here() {
    let spec = Spec::parse(
        "agent: a
queries:
  - query: Hello
    correctness: {exact_match: Hi}
    path: {expected_tools: [search]}
    span_assertions:
      - selector: {kind: TOOL, name: search}
        asserts: [{type: equals, field: attributes.tool.args.k, value: '5'}]
",
    );
    let text = |text: &str| Some(Text { text: Arc::from(text), rank: 0 });
    let root = Span { input: text("Hello"), output: text("Hi"), ..root() };
    let mut call = tool(2);
    let facts = call.tool.as_mut().unwrap();
    facts.arguments = Some(Arguments::from_canonical(br#"{"k":5}"#, &[], true));
    let mut stage = stage().expecting(Arc::new([Suite::new(spec.unwrap(), [])]));
    let done = done(&mut stage, vec![root, call], at(0)).remove(0);
    let [held] = done.expectations.as_slice() else { panic!("{done:?}") };
    let statuses = held.layers().map(|(_, layer)| layer.unwrap().status.name());
    assert_eq!(statuses, ["pass", "pass", "skip", "skip"], "{held:?}");
    assert_eq!((&done.content, &done.tools[0].arguments), (&None, &None));
    // A late span says more: it is held against them again once it is done again.
    let mut late = tool(3);
    late.tool.as_mut().unwrap().arguments = Some(Arguments::from_canonical(b"{}", &[], true));
    assert_eq!(feed(&mut stage, vec![late], at(11))[0].expectations, []);
    stage.handle_timeout(at(21), &nothing());
    assert!(stage.drain(&nothing())[0].expectations[0].hard_fail);
}

#[test]
fn over_the_bound_the_trace_whose_time_is_nearest_goes() {
    let mut stage = Assembler::new(
        AssembleOptions { max_open_traces: 1, ..AssembleOptions::default() },
        LoopOptions::default(),
        &CostOptions::default(),
    );
    feed(&mut stage, vec![root()], at(0));
    let mut other = root();
    other.trace_id = TraceId([8; 16]);
    let updates = feed(&mut stage, vec![other], at(1));
    assert_eq!(updates.len(), 1);
    assert!(updates[0].partial && updates[0].state == TraceState::Sealed);
    assert_eq!((stage.open_traces(), stage.counts().get("traces", "evicted")), (1, 1));
}

/// The bytes that the traces hold, recounted.
fn held_bytes(stage: &Assembler) -> Sums {
    let ids: Vec<_> = stage.deadlines.traces().collect();
    let bytes = || ids.iter().filter_map(|id| stage.traces.get(*id)).map(OpenTrace::bytes);
    let sum = |of: fn(Bytes) -> u32| bytes().map(|bytes| of(bytes) as usize).sum();
    Sums { all: sum(|bytes| bytes.all), extra: sum(|bytes| bytes.extra) }
}

/// A model call of a trace that answers with so many bytes.
fn answer(trace: u8, number: u8, bytes: usize) -> Span {
    let text = Text { text: "a".repeat(bytes).into(), rank: 0 };
    let span = span(number, 1, Operation::Chat);
    Span { trace_id: TraceId([trace; 16]), output: Some(text), ..span }
}

#[test]
fn over_the_bound_on_bytes_done_traces_go_then_quiet_ones() {
    let options = AssembleOptions { max_bytes: 100_000, ..AssembleOptions::default() };
    let mut stage = Assembler::new(options, LoopOptions::default(), &CostOptions::default());
    let of = |id: u8| Span { trace_id: TraceId([id; 16]), ..root() };
    done(&mut stage, vec![answer(1, 2, 40_000), of(1)], at(0));
    feed(&mut stage, vec![answer(2, 2, 40_000)], at(20));
    let mut gone = Vec::new();
    for (id, second) in [(3, 21), (4, 22), (3, 23), (5, 24)] {
        let sealed = feed(&mut stage, vec![answer(id, second, 40_000)], at(second.into()));
        let sealed = sealed.iter().filter(|update| update.state == TraceState::Sealed);
        gone.extend(sealed.map(|update| (update.trace_id.0[0], update.partial)));
        assert!(stage.bytes.all().all <= 100_000);
        assert_eq!(stage.bytes.all(), held_bytes(&stage));
    }
    // The first was done; the third got something after the fourth.
    assert_eq!(gone, [(1, false), (2, true), (4, true), (3, true)]);
    assert_eq!(stage.counts().get("traces", "evicted"), 4);
}

#[test]
fn a_trace_that_is_too_large_loses_its_texts_and_then_takes_no_more() {
    let options = AssembleOptions { max_trace_bytes: 100_000, ..AssembleOptions::default() };
    let mut stage = Assembler::new(options, LoopOptions::default(), &CostOptions::default());
    let of = |number: u8, bytes| answer(7, number, bytes);
    feed(&mut stage, vec![of(2, 40_000), of(3, 40_000), of(4, 40_000), of(5, 30)], at(0));
    let held = stage.bytes.all().all;
    assert!((30..10_000).contains(&held), "{held}");
    assert_eq!(stage.counts().get("texts", "trace_full"), 1);
    // The answer came after those that went.
    let root = Span { output: Some(Text { text: "well done".into(), rank: 0 }), ..root() };
    let update = done(&mut stage, vec![root], at(1));
    let answered = update.iter().find_map(|update| update.output_digest.as_ref());
    assert_eq!(answered.map(|digest| digest.tokens.len()), Some(2));
    // Names cannot go.
    let named = (10..250).map(|number| Span {
        name: format!("{number}{}", "n".repeat(900)).into(),
        ..span(number, 1, Operation::Other)
    });
    feed(&mut stage, named.collect(), at(2));
    // They leave a quarter to what the agent does.
    assert!((75_000..85_000).contains(&stage.bytes.all().all));
    assert_eq!(stage.bytes.all(), held_bytes(&stage));
    assert!(stage.refused().trace_full > 100);
}

#[test]
fn spans_that_may_move_to_another_turn_are_held_by_what_they_weigh() {
    let options = AssembleOptions { max_turn_spans: 20, ..AssembleOptions::default() };
    let mut stage = Assembler::new(options, LoopOptions::default(), &CostOptions::default());
    let said = |session: u64, number: u8, bytes: usize| {
        let spoken = answer(0, number, bytes);
        Span { trace_id: TraceId::of_session(session), scope: RECORD_SCOPE, ..spoken }
    };
    // Each weighs five, but for those without texts, which weigh one.
    for session in 1..5 {
        feed(&mut stage, vec![said(session, 2, 4_096), said(session, 2, 4_096)], at(session));
    }
    assert_eq!((stage.turns.weighs(), stage.counts().get("turns", "span_settled")), (20, 0));
    feed(&mut stage, vec![said(4, 3, 0)], at(5));
    // Those of the quietest sessions settle, session by session, until half of the room is free.
    assert_eq!((stage.turns.weighs(), stage.counts().get("turns", "span_settled")), (6, 3));
    feed(&mut stage, (4..18).map(|number| said(5, number, 0)).collect(), at(6));
    assert_eq!((stage.turns.weighs(), stage.counts().get("turns", "span_settled")), (20, 3));
}

#[test]
fn of_large_traces_fewer_are_read_at_a_time() {
    let mut stage = stage();
    for id in 1..=3 {
        let of = |span: Span| Input::Span(Box::new(Span { trace_id: TraceId([id; 16]), ..span }));
        [root(), tool(2)].into_iter().for_each(|span| stage.handle(of(span), at(0)));
    }
    stage.tell_all();
    let at_most = AtMost { traces: 64, spans: 3 };
    let mut read = || {
        let (updates, all) = stage.drain_some(at_most, &nothing());
        (updates.iter().map(|update| update.trace_id.0[0]).collect::<Vec<_>>(), all)
    };
    assert_eq!([read(), read()], [(vec![1, 2], false), (vec![3], true)]);
}

/// A span of session 1 from a log record, at a time; the first one of a turn if it is a prompt.
fn recorded(number: u64, time: u64, prompt: bool) -> Span {
    let trace_id = if prompt { TraceId::of_turn(1, number) } else { TraceId::of_session(1) };
    let (span_id, parent) = (SpanId((1 + number).to_be_bytes()), SpanId([u8::MAX; 8]));
    Span {
        trace_id,
        span_id: if prompt { trace_id.prompt() } else { span_id },
        parent: (!prompt).then_some(parent),
        start: Timestamp(time),
        end: Timestamp(time),
        scope: RECORD_SCOPE,
        operation: if prompt { Operation::InvokeAgent } else { Operation::Chat },
        ..Span::default()
    }
}

/// The number of spans in the traces, those that have left included.
fn spans_in_traces(stage: &Assembler) -> usize {
    let traces = stage.deadlines.traces().filter_map(|id| stage.traces.get(id));
    traces.map(|held| held.parts.len()).sum()
}

#[test]
fn prompts_that_arrive_together_move_each_span_once() {
    let (mut stage, prompts) = (stage(), 1_000);
    let calls = (0..500).map(|number| recorded(number, 2_000 + number, false));
    let first = calls.chain([recorded(5_000, 1, true)]).collect::<Vec<_>>();
    let places = (0..first.len()).collect();
    stage.spans(SpanBatch { all: Arc::new(first), places }, at(0));
    assert_eq!(spans_in_traces(&stage), 500 + 500 + 1);
    // Before all calls, each later than the one before: the last of them takes all.
    let all: Vec<Span> = (0..prompts).map(|at| recorded(1 + at, 100 + at, true)).collect();
    let places = (0..all.len()).collect();
    stage.spans(SpanBatch { all: Arc::new(all), places }, at(1));
    assert_eq!(spans_in_traces(&stage), 500 + 500 + 500 + 1 + 1_000);
    let last = TraceKey { id: TraceId::of_turn(1, prompts), tenant: tenant_hash(None) };
    assert_eq!(stage.traces.get(last).map(|held| held.parts.len()), Some(501));
    assert_eq!(stage.counts().get("turns", "span_settled"), 0);
    assert_eq!(stage.turns.weighs(), 500);
}

#[test]
fn each_of_hundreds_of_prompts_that_arrive_together_has_its_own_call() {
    let mut stage = stage();
    let turn = |number: u64| {
        [recorded(number, 10 * number, true), recorded(number, 10 * number + 1, false)]
    };
    let all: Vec<Span> = (1..=600).flat_map(turn).collect();
    let places = (0..all.len()).collect();
    stage.spans(SpanBatch { all: Arc::new(all), places }, at(0));
    assert_eq!(spans_in_traces(&stage), 600 + 2 * 600);
    let turns =
        (1..=600).map(|turn| TraceKey { id: TraceId::of_turn(1, turn), tenant: tenant_hash(None) });
    assert!(turns.filter_map(|id| stage.traces.get(id)).all(|held| held.parts.len() == 2));
    let counts = ["prompt_forgotten", "span_settled"].map(|what| stage.counts().get("turns", what));
    assert_eq!((counts, stage.turns.weighs()), ([344, 344], 256));
}

#[test]
fn prompts_that_arrive_late_one_by_one_move_a_span_a_few_times() {
    let mut stage = stage();
    feed(
        &mut stage,
        (0..100).map(|number| recorded(number, 2_000 + number, false)).collect(),
        at(0),
    );
    for number in 1..=300 {
        feed(&mut stage, vec![recorded(number, 100 + number, true)], at(1));
    }
    assert_eq!(spans_in_traces(&stage), 100 + 8 * 100 + 300);
    assert_eq!(stage.counts().get("turns", "span_settled"), 100);
    assert_eq!((stage.turns.weighs(), stage.counts().get("turns", "prompt_forgotten")), (0, 44));
}

#[test]
fn what_is_done_goes_before_what_is_open() {
    let mut stage = Assembler::new(
        AssembleOptions { max_open_traces: 2, ..AssembleOptions::default() },
        LoopOptions::default(),
        &CostOptions::default(),
    );
    let of = |id: u8| Span { trace_id: TraceId([id; 16]), ..root() };
    done(&mut stage, vec![of(1)], at(0));
    feed(&mut stage, vec![of(2)], at(11));
    let sealed = feed(&mut stage, vec![of(3)], at(12));
    assert_eq!((sealed[0].state, sealed[0].partial), (TraceState::Sealed, false));
    assert_eq!(sealed[0].trace_id, TraceId([1; 16]));
}

#[test]
fn what_is_begun_by_another_span_began_no_earlier_whatever_the_clock_of_its_host_says() {
    let behind = |id, parent| Span {
        start: Timestamp(7),
        end: Timestamp(9),
        ..span(id, parent, Operation::InvokeAgent)
    };
    let start = |spans: Vec<Span>| done(&mut stage(), spans, at(0)).pop().unwrap().start_unix_nano;
    let root = || Span { start: Timestamp(1_000), ..root() };
    assert_eq!(start(vec![behind(3, 2), tool(2), root()]), 1_000);
    // Nothing known began it, or nothing but one that it began.
    assert_eq!(start(vec![behind(3, 9), tool(2), root()]), 7);
    assert_eq!(start(vec![behind(3, 2), Span { parent: Some(SpanId([3; 8])), ..tool(2) }]), 7);
}

#[test]
fn the_version_and_environment_of_another_service_are_not_the_agent_s() {
    let of = |service: &str, version: &str| {
        let told = || Some(Arc::from(version)).filter(|version: &Arc<str>| !version.is_empty());
        let service_name = Some(Arc::from(service));
        let (service_version, environment) = (told(), told());
        let resource =
            Resource { service_name, service_version, environment, ..Resource::default() };
        Arc::new(resource)
    };
    let told = |own, other| {
        let spans = vec![Span { resource: other, ..tool(2) }, Span { resource: own, ..root() }];
        let agent = done(&mut stage(), spans, at(0)).pop().unwrap().agent.unwrap();
        assert_eq!(agent.agent_version, agent.environment);
        (agent.service_name.to_string(), agent.agent_version.to_string())
    };
    let expected = |service: &str, version: &str| (service.to_owned(), version.to_owned());
    assert_eq!(told(of("shop", ""), of("stock", "9")), expected("shop", ""));
    assert_eq!(told(of("shop", ""), of("shop", "9")), expected("shop", "9"));
    assert_eq!(told(of("shop", "1"), of("shop", "9")), expected("shop", "1"));
}

#[test]
fn traces_in_which_no_agent_is_at_work_go_first() {
    let options = AssembleOptions { max_open_traces: 4, ..AssembleOptions::default() };
    let empty = || Assembler::new(options.clone(), LoopOptions::default(), &CostOptions::default());
    let of = |id: u8, parent, operation| Span {
        trace_id: TraceId([id; 16]),
        ..span(2, parent, operation)
    };
    let held = |stage: &Assembler| {
        let mut ids: Vec<u8> = stage.deadlines.traces().map(|trace| trace.id.0[0]).collect();
        ids.sort_unstable();
        ids
    };
    // Open ones, though those of agents have been quiet for longer.
    let mut stage = empty();
    feed(&mut stage, [1, 2].map(|id| of(id, 1, Operation::ExecuteTool)).into(), at(0));
    for id in 3..60 {
        feed(&mut stage, vec![of(id, 1, Operation::Other)], at(u64::from(id)));
    }
    assert_eq!(held(&stage), [1, 2, 58, 59]);
    // Done ones, though those of agents are sealed sooner.
    let mut stage = empty();
    done(&mut stage, [1, 2].map(|id| of(id, 0, Operation::InvokeAgent)).into(), at(0));
    for id in 3..20 {
        done(&mut stage, vec![of(id, 0, Operation::Other)], at(u64::from(id) * 11));
    }
    assert_eq!(held(&stage), [1, 2, 18, 19]);
    // Where there is no other, those of agents.
    (20..24).for_each(|id| {
        let trace = vec![of(id, 0, Operation::InvokeAgent)];
        done(&mut stage, trace, at(u64::from(id) * 11));
    });
    assert_eq!(held(&stage), [20, 21, 22, 23]);
}

#[test]
fn a_model_call_is_counted_once() {
    let model = |response: &str| {
        Some(ModelFacts {
            response_id: Some(IdHash::from(response)),
            tokens: Tokens { input: Some(10), output: Some(1), ..Default::default() },
            ..ModelFacts::default()
        })
    };
    let mut outer = span(2, 1, Operation::Chat);
    outer.model = model("a");
    let mut inner = span(3, 2, Operation::Chat);
    inner.model = model("b");
    let mut twin = span(4, 1, Operation::Chat);
    twin.model = model("b");
    let update = done(&mut stage(), vec![root(), outer, inner, twin], at(0)).remove(0);
    assert_eq!((update.llm_calls, update.tokens.unwrap().input), (1, Some(10)));
}

#[test]
fn ids_that_come_again_hide_neither_tool_calls_nor_model_calls() {
    // Where a model gives calls no ids, some frameworks give all calls of a tool the tool's name for one.
    let called = |id: u8, scope| {
        let facts = ToolFacts { call_id: Some(IdHash::from("search")), ..tool(id).tool.unwrap() };
        Span { tool: Some(facts), scope, ..tool(id) }
    };
    let calls = |spans: Vec<Span>| {
        done(&mut stage(), [vec![root()], spans].concat(), at(0)).remove(0).tools.len()
    };
    assert_eq!(calls((2..8).map(|id| called(id, 1)).collect()), 6);
    assert_eq!(calls(vec![called(2, 1), called(3, 2)]), 1, "two libraries tell one call");
    let answered = |id: u8, scope, output| {
        let facts = ModelFacts {
            response_id: Some(IdHash::from("chatcmpl-7")),
            tokens: Tokens { input: Some(10), output: Some(output), ..Tokens::default() },
            ..ModelFacts::default()
        };
        Span { model: Some(facts), scope, ..span(id, 1, Operation::Chat) }
    };
    let answers = |spans: Vec<Span>| {
        let facts = done(&mut stage(), [vec![root()], spans].concat(), at(0)).remove(0);
        (facts.llm_calls, facts.tokens.unwrap().output)
    };
    assert_eq!(answers(vec![answered(2, 1, 1), answered(3, 1, 2)]), (2, Some(3)));
    assert_eq!(answers(vec![answered(2, 1, 1), answered(3, 1, 1)]), (1, Some(1)));
    assert_eq!(answers(vec![answered(2, 1, 1), answered(3, 2, 2)]).0, 1);
}

#[test]
fn a_request_and_its_streamed_answer_are_one_call() {
    let request = |id: u8, from: u64| Span {
        start: Timestamp(from),
        end: Timestamp(from + 10),
        model: Some(ModelFacts::default()),
        ..span(id, 1, Operation::Chat)
    };
    let answer = |id: u8, from: u64| {
        let tokens = Tokens { input: Some(7), output: Some(1), ..Default::default() };
        Span {
            streamed: true,
            model: Some(ModelFacts { tokens, ..ModelFacts::default() }),
            ..request(id, from)
        }
    };
    let calls = |spans: Vec<Span>| {
        let spans = [vec![root()], spans].concat();
        let update = done(&mut stage(), spans, at(0)).remove(0);
        (update.llm_calls, update.tokens.unwrap().input, update.longest_model_nanos)
    };
    // The first request was cancelled, so its usage is not known.
    let answered = vec![request(2, 100), request(3, 200), answer(4, 215)];
    assert_eq!(calls(answered.clone()), (2, Some(7), 25));
    assert_eq!(calls(vec![request(2, 100)]), (1, None, 10));
    // Without its request, an answer is a call by itself; a request that ended later is none of its own.
    assert_eq!(calls(vec![answer(4, 215)]), (1, Some(7), 10));
    assert_eq!(calls(vec![answer(4, 215), request(5, 210)]), (2, Some(7), 10));
    let again = [answered, vec![request(5, 230), answer(6, 245)]].concat();
    assert_eq!(calls(again), (3, Some(14), 25));
    let failed = vec![request(2, 100), Span { failed: true, ..answer(3, 115) }];
    let update = done(&mut stage(), [vec![root()], failed].concat(), at(0)).remove(0);
    assert_eq!((update.llm_calls, update.failed_model_calls), (1, 1));
}

#[test]
fn a_model_without_a_price_costs_what_the_model_that_was_asked_for_would() {
    let cost = |model: &str, requested: &str| {
        let tokens = Tokens { input: Some(9), output: Some(1), ..Default::default() };
        let (model, requested) = (Some(Arc::from(model)), Some(Arc::from(requested)));
        let model = Some(ModelFacts { model, requested, tokens, ..ModelFacts::default() });
        let call = Span { model, ..span(2, 1, Operation::Chat) };
        let update = done(&mut stage(), vec![root(), call], at(0)).remove(0);
        (update.cost_quanta, update.unpriced.len())
    };
    assert_eq!(cost("gpt-of-ours", "gpt-4o"), cost("gpt-4o", "gpt-4o-mini"));
    assert!(cost("gpt-of-ours", "gpt-4o").0.is_some());
    assert_eq!(cost("gpt-of-ours", "gpt-of-others"), (None, 1));
}

#[test]
fn calls_of_what_a_model_call_runs_are_calls_of_their_own() {
    let model = |input: u64| {
        let tokens = Tokens { input: Some(input), output: Some(1), ..Default::default() };
        Some(ModelFacts { tokens, ..ModelFacts::default() })
    };
    for step in [Operation::ExecuteTool, Operation::InvokeAgent] {
        // Two libraries tell of the call that runs a tool or an agent within it.
        let mut outer = span(2, 1, Operation::Chat);
        outer.model = model(10);
        let mut same = span(3, 2, Operation::Chat);
        same.model = model(10);
        let ran = span(4, 3, step);
        let mut inner = span(5, 4, Operation::Chat);
        inner.model = model(7);
        let update = done(&mut stage(), vec![root(), outer, same, ran, inner], at(0)).remove(0);
        assert_eq!((update.llm_calls, update.tokens.unwrap().input), (2, Some(17)));
    }
}

#[test]
fn a_call_that_two_libraries_wrap_says_all_that_both_know() {
    let call = ToolFacts {
        name: Some(Arc::from("search")),
        call_id: Some(IdHash::from("c1")),
        arguments: Some(Arguments::from_canonical(b"{\"q\":1}", &[1], true)),
        ..ToolFacts::default()
    };
    let mut outer = span(2, 1, Operation::Chat);
    outer.model = Some(ModelFacts { tool_calls: vec![call], ..ModelFacts::default() });
    let mut inner = span(3, 2, Operation::Chat);
    let tokens = Tokens { input: Some(10), output: Some(1), ..Default::default() };
    inner.model = Some(ModelFacts { tokens, ..ModelFacts::default() });
    let update = done(&mut stage(), vec![root(), outer, inner], at(0)).remove(0);
    assert_eq!((update.llm_calls, update.tokens.unwrap().input), (1, Some(10)));
    assert_eq!(&*update.tools[0].name, "search");
}

#[test]
fn an_evaluator_that_comes_later_is_no_behaviour() {
    let mut judge = span(9, 1, Operation::Evaluation);
    judge.end = Timestamp(9_999_999);
    let mut judging = span(10, 9, Operation::Chat);
    judging.failed = true;
    let update = done(&mut stage(), vec![root(), judge, judging], at(0)).remove(0);
    assert_eq!((update.end_unix_nano, update.llm_calls, update.error), (100_000, 0, false));
}

#[test]
fn a_tool_span_without_arguments_has_those_that_the_model_called_it_with() {
    let arguments = Some(Arguments::from_canonical(b"{\"q\":1}", &[1], true));
    let call = |arguments| ToolFacts {
        call_id: Some(IdHash::from("c1")),
        name: Some(Arc::from("search")),
        arguments,
        ..ToolFacts::default()
    };
    let mut model = span(2, 1, Operation::Chat);
    model.model = Some(ModelFacts { tool_calls: vec![call(arguments)], ..ModelFacts::default() });
    let mut tool = span(3, 1, Operation::ExecuteTool);
    tool.tool = Some(call(None));
    let update = done(&mut stage(), vec![root(), model, tool], at(0)).remove(0);
    assert_eq!(update.tools.len(), 1);
    assert!(update.tools[0].arguments_hash.is_some() && update.tools[0].error == Some(false));
}

fn deliveries() -> impl Strategy<Value = (Vec<usize>, Vec<bool>)> {
    let order = Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle();
    (order, prop::collection::vec(any::<bool>(), 12))
}

#[test]
fn of_two_spans_of_one_id_one_is_counted_as_left_out_whichever_came_first() {
    let [one, other] = [tool(2), Span { failed: true, ..tool(2) }];
    for spans in [vec![one.clone(), other.clone()], vec![other, one]] {
        let mut stage = stage();
        feed(&mut stage, spans, at(0));
        assert_eq!(stage.counts().get("spans", "duplicate"), 1);
    }
}

proptest! {
    #[test]
    fn no_order_and_no_duplicate_changes_a_trace((order, drains) in deliveries()) {
        let spans: Vec<Span> = (0..12_u8).map(|id| match id {
            0 => root(),
            9 => Span { failed: true, ..tool(9) },
            // The same id with another end: the greater holds.
            10 => Span { end: Timestamp(777), ..tool(3) },
            11 => span(11, 2, Operation::Chat),
            id => tool(id + 1),
        }).collect();
        let last = |order: &[usize], drains: &[bool]| {
            let mut stage = stage();
            let mut updates = Vec::new();
            for (at_index, drain) in order.iter().zip(drains) {
                stage.handle(Input::Span(Box::new(spans[*at_index].clone())), at(0));
                if *drain {
                    stage.handle(Input::Span(Box::new(spans[*at_index].clone())), at(0));
                    updates.extend(stage.drain(&nothing()));
                }
            }
            stage.finish(at(0), &nothing());
            updates.extend(stage.drain(&nothing()));
            // How often it changed, and whom it told, are matters of the delivery.
            TraceFacts { revision: 0, told: Vec::new(), ..*updates.pop().unwrap() }
        };
        let plain: Vec<usize> = (0..12).collect();
        prop_assert_eq!(last(&order, &drains), last(&plain, &[false; 12]));
    }
}

fn of_tenant(name: &str) -> Arc<Resource> {
    Arc::new(Resource { tenant: Some(name.into()), ..Resource::default() })
}

#[test]
fn tenants_that_use_one_trace_id_have_a_trace_each() {
    let reported = |score, tenant: Option<&str>| Report {
        tenant: tenant.map(Arc::from),
        name: Arc::from(format!("{tenant:?}")),
        ..report(score)
    };
    let mut stage = stage();
    // What comes before its trace waits for that of its tenant.
    stage.handle(Input::Report(Box::new(reported(1, Some("bank")))), at(0));
    stage.handle(Input::Log(Box::new(log("shop"))), at(0));
    let of = |tenant, span| Span { resource: of_tenant(tenant), ..span };
    // One request may have spans of both.
    let all =
        vec![of("shop", root()), of("bank", root()), of("bank", tool(2)), of("shop", tool(3))];
    let places = (0..all.len()).collect();
    stage.spans(SpanBatch { all: Arc::new(all), places }, at(0));
    stage.handle(Input::Log(Box::new(log("bank"))), at(0));
    for (score, tenant) in [(2, Some("bank")), (3, Some("shop")), (4, None)] {
        stage.handle(Input::Report(Box::new(reported(score, tenant))), at(0));
    }
    stage.handle_timeout(at(10), &nothing());
    let mut told: Vec<_> = stage.drain(&nothing());
    told.sort_by_key(|update| update.agent.clone());
    let told: Vec<_> = told
        .iter()
        .map(|update| {
            let scores = update.reported.iter().map(|made| made.score_quanta);
            let tenants =
                [&update.agent.as_ref().unwrap().tenant, &update.session.as_ref().unwrap().tenant];
            (tenants.map(|tenant| &**tenant), scores.collect::<BTreeSet<_>>(), update.tools.len())
        })
        .collect();
    assert_eq!(told, [(["bank"; 2], [2].into(), 1), (["shop"; 2], [3].into(), 1)]);
    assert!(stage.counts().iter().all(|(what, _, _)| what != "spans"), "none is dropped");
    // Sealed is sealed for whom it is.
    stage.handle_timeout(at(10_000), &nothing());
    stage.drain(&nothing());
    assert_eq!(done(&mut stage, vec![of("clinic", root())], at(10_001)).len(), 1);
    feed(&mut stage, vec![of("shop", root())], at(10_002));
    assert_eq!(stage.counts().get("late", "dropped"), 1);
}

#[test]
fn one_tenant_s_traces_do_not_push_out_another_s() {
    let options = AssembleOptions { max_open_traces: 8, ..AssembleOptions::default() };
    let empty = || {
        Assembler::new(options.clone(), LoopOptions::default(), &CostOptions::default())
            .shared_by(TenantOptions::default().shares(2))
    };
    let mut stage = empty();
    let open = |stage: &mut Assembler, number: u64, tenant: &str| {
        let trace_id = TraceId(u128::from(number).to_be_bytes());
        let span = Span { trace_id, resource: of_tenant(tenant), ..tool(2) };
        feed(stage, vec![span], at(number));
    };
    (0..4).for_each(|number| open(&mut stage, number, "bank"));
    (4..100).for_each(|number| open(&mut stage, number, "shop"));
    let held = |stage: &Assembler, tenant: &str| {
        let own = tenant_hash(Some(tenant));
        stage.deadlines.traces().filter(|trace| trace.tenant == own).count()
    };
    assert_eq!((held(&stage, "bank"), held(&stage, "shop")), (4, 4));
    // Within its share a newcomer takes from who is over it; at it, from itself.
    let mut stage = empty();
    (0..8).for_each(|number| open(&mut stage, 1_000 + number, "shop"));
    (8..99).for_each(|number| open(&mut stage, 1_000 + number, "bank"));
    assert_eq!((held(&stage, "bank"), held(&stage, "shop")), (4, 4));
}

#[test]
fn an_open_trace_is_small() {
    assert_eq!(size_of::<OpenTrace>(), 336);
}

#[test]
fn what_a_library_of_agents_tells_first_is_waited_with() {
    let late = |convention| {
        let mut stage = stage();
        // A guardrail, while the agent and what is above it have still to end.
        feed(&mut stage, vec![Span { convention, ..span(3, 2, Operation::Other) }], at(0));
        while let Some(due) = stage.poll_timeout().filter(|due| *due <= at(1_200)) {
            stage.handle_timeout(due, &nothing());
            stage.drain(&nothing());
        }
        done(&mut stage, vec![span(2, 1, Operation::InvokeAgent)], at(1_200)).len()
    };
    assert!(late(Some("openinference")) > 0);
    // What no such library tells is not waited with.
    assert_eq!(late(None), 0);
}
