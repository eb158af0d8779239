//! Runs that go over a limit.

use super::*;
use crate::limits::{AgentLimits, Cause, HumanDuration, LimitOptions, RunLimit};

fn limited() -> Sessions {
    let own = AgentLimits { trace_model_calls: Some(0), ..AgentLimits::default() };
    let limits = LimitOptions {
        trace_model_calls: 10,
        session_model_calls: 25,
        session_calls_without_tool: 22,
        agents: [("free".to_owned(), own)].into(),
        ..LimitOptions::default()
    };
    stage_of(SessionOptions { limits, ..SessionOptions::default() }, AgentOptions::default())
}

fn calls(id: u8, second: u64, llm_calls: u64) -> TraceFacts {
    TraceFacts { llm_calls, revision: llm_calls, ..trace(id, second) }
}

fn over(update: &SessionFacts) -> Vec<[&'static str; 2]> {
    update.sessions_over_limit.keys().map(|limit| [limit.run().name(), limit.name()]).collect()
}

fn counted(update: &SessionFacts, limit: RunLimit) -> u64 {
    counter(update, Counter::RunLimits, &limit.values())
}

#[test]
fn a_trace_over_a_limit_is_told_while_it_runs_and_counts_once() {
    let mut stage = limited();
    stage.handle(calls(1, 10, 9), at(20));
    assert_eq!(over(&only(stage.drain())), [] as [[&str; 2]; 0]);
    assert_eq!(stage.runaways(), []);
    stage.handle(calls(1, 10, 12), at(40));
    let update = only(stage.drain());
    assert_eq!(over(&update), [["trace", "model_calls"]]);
    assert_eq!(counted(&update, RunLimit::TraceModelCalls), 1);
    let causes: Vec<Cause> = stage.runaways().into_iter().map(|(_, cause, _)| cause).collect();
    assert_eq!(causes, [Cause::Limit(RunLimit::TraceModelCalls)]);
    let session = views(&stage).remove(0);
    let found = &session.traces[0].limits[0];
    assert_eq!(
        (found.limit, found.run, found.used, found.most),
        ("model_calls", "trace", 12.0, 10.0)
    );
    assert!(session.limits.is_empty());
    // It is still running, and has not grown since 60 s when it is done.
    stage.handle(calls(1, 10, 13), at(60));
    stage.handle(calls(1, 10, 13).revision(14).done(), at(90));
    stage.handle_timeout(at(359));
    let update = only(stage.drain());
    assert_eq!(over(&update), [["trace", "model_calls"]]);
    assert_eq!(counted(&update, RunLimit::TraceModelCalls), 1);
    assert_eq!(counter(&update, Counter::LoopsDetected, &["exact_repeat", "critical", "full"]), 0);
    stage.handle_timeout(at(360));
    assert_eq!(over(&only(stage.drain())), [] as [[&str; 2]; 0]);
    assert_eq!(stage.runaways(), []);
}

#[test]
fn a_session_goes_over_its_limits_with_all_of_its_traces() {
    let mut stage = limited();
    for id in 1..=3 {
        stage.handle(calls(id, u64::from(id) * 10, 8).done(), at(u64::from(id) * 10 + 5));
    }
    // Twenty-four calls, none of a tool.
    let update = only(stage.drain());
    assert_eq!(over(&update), [["session", "calls_without_tool"]]);
    let called = ToolCall { name: Arc::from("search"), ..ToolCall::default() };
    stage.handle(TraceFacts { tools: vec![called], ..calls(4, 40, 2).done() }, at(50));
    let update = only(stage.drain());
    assert_eq!(over(&update), [["session", "model_calls"], ["session", "calls_without_tool"]]);
    assert_eq!(counted(&update, RunLimit::SessionModelCalls), 1);
    let limits = views(&stage).remove(0).limits;
    assert_eq!(limits.iter().map(|limit| limit.limit).collect::<Vec<_>>(), ["model_calls"]);
    // A trace that leaves takes along what it used.
    stage.handle(TraceFacts { tombstone: true, ..calls(1, 10, 9) }, at(60));
    assert_eq!(views(&stage).remove(0).limits, []);
}

#[test]
fn a_limit_that_has_stopped_growing_is_not_told_again() {
    let mut stage = limited();
    let told = |stage: &mut Sessions| -> Vec<Cause> {
        stage.drain();
        stage.runaways().into_iter().map(|(_, cause, _)| cause).collect()
    };
    let over = [Cause::Limit(RunLimit::TraceModelCalls)];
    stage.handle(calls(1, 10, 12), at(20));
    assert_eq!(told(&mut stage), over);
    // `loop_hold` later, and again when the session has closed, the trace is sent again, with other news.
    for (revision, second) in [(13, 400), (14, 800), (15, 3_000)] {
        stage.handle_timeout(at(second));
        stage.handle(calls(1, 10, 12).revision(revision).done(), at(second));
        assert_eq!(told(&mut stage), [], "at {second}");
    }
    stage.handle(calls(1, 10, 13).revision(16).done(), at(3_100));
    assert_eq!(told(&mut stage), over);
    // What falls below a limit and goes over it again is new.
    for (llm_calls, revision, second) in [(9, 17, 4_000), (11, 18, 4_001)] {
        stage.handle(calls(1, 10, llm_calls).revision(revision).done(), at(second));
    }
    assert_eq!(told(&mut stage), over);
}

#[test]
fn a_session_that_lost_a_trace_may_go_over_its_limit_again() {
    let mut stage = limited();
    let called = || vec![ToolCall { name: Arc::from("search"), ..ToolCall::default() }];
    let with_tool = |id: u8, llm_calls: u64| TraceFacts {
        tools: called(),
        ..calls(id, u64::from(id) * 10, llm_calls).done()
    };
    let told = |stage: &mut Sessions| -> Vec<Cause> {
        stage.drain();
        stage.runaways().into_iter().map(|(_, cause, _)| cause).collect()
    };
    (1..=4).for_each(|id| stage.handle(with_tool(id, 9), at(50)));
    assert_eq!(told(&mut stage), [Cause::Limit(RunLimit::SessionModelCalls)]);
    for id in [1, 2] {
        stage.handle(TraceFacts { tombstone: true, ..calls(id, 10, 10) }, at(60));
    }
    stage.handle_timeout(at(1_000));
    assert_eq!(told(&mut stage), []);
    // Twenty-six: less than it once had.
    stage.handle(with_tool(5, 8), at(1_000));
    assert_eq!(told(&mut stage), [Cause::Limit(RunLimit::SessionModelCalls)]);
}

#[test]
fn a_session_lasts_to_its_last_end_whichever_trace_ends_last() {
    let limits = LimitOptions {
        session_duration: HumanDuration(Duration::from_secs(600)),
        ..LimitOptions::default()
    };
    let options = SessionOptions { limits, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    stage.handle(TraceFacts { end_unix_nano: at(700).0, ..trace(1, 10) }, at(700));
    assert_eq!(over(&only(stage.drain())), [["session", "duration"]]);
    // One that starts later, as a sub-task that runs beside it, ends long before.
    stage.handle(TraceFacts { end_unix_nano: at(30).0, ..trace(2, 20) }, at(701));
    let limits = views(&stage).remove(0).limits;
    assert_eq!(limits.iter().map(|limit| limit.used).collect::<Vec<_>>(), [690.0]);
}

#[test]
fn an_agent_has_limits_of_its_own_and_nothing_counts_before_it_is_certain_whose_it_is() {
    let mut stage = limited();
    stage.handle(calls(1, 10, 12).agent("free"), at(20));
    assert_eq!(over(&only(stage.drain())), [] as [[&str; 2]; 0]);
    let update = TraceFacts { uncertain: true, ..calls(2, 10, 12).session("other") };
    stage.handle(update, at(20));
    let update = stage.drain().into_iter().find(|update| !over(update).is_empty()).unwrap();
    assert_eq!(counted(&update, RunLimit::TraceModelCalls), 0);
    stage.handle(calls(2, 10, 13).session("other"), at(30));
    assert_eq!(counted(&only(stage.drain()), RunLimit::TraceModelCalls), 1);
}
