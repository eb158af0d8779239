//! What becomes of a trace in its session: revisions, what is refused, what leaves, what it counts.

use super::*;
use crate::facts::{CountedUsage, Expectation, ExpectedLayer, ExpectedStatus, ToldLoops};

#[test]
fn an_older_revision_is_stale_and_a_newer_one_replaces() {
    let mut stage = stage();
    stage.handle(trace(1, 10).revision(2).error().done(), at(20));
    stage.handle(trace(1, 10).revision(1).done(), at(21));
    assert_eq!(stage.counts().get("trace_updates", "stale"), 1);
    assert_eq!(stage.session("", "s").unwrap().reliability, Some(0.0));
    stage.handle(trace(1, 10).revision(3).done(), at(22));
    assert_eq!(stage.session("", "s").unwrap().reliability, Some(0.75));
    let update = only(stage.drain());
    assert_eq!(everything(&update).traces, 1);
    assert_eq!(counter(&update, Counter::Traces, &[]), 1);
}

#[test]
fn a_trace_that_left_stays_away_and_counts_once_where_it_went() {
    let mut stage = stage();
    let update = || trace(1, 10).tokens(7, 3).done();
    stage.handle(update(), at(20));
    stage.drain();
    let gone = TraceFacts { tombstone: true, ..update().revision(2) };
    stage.handle(gone, at(21));
    stage.handle(update(), at(22));
    assert_eq!(stage.session("", "s"), None);
    stage.handle(update().revision(2).session("other"), at(23));
    assert_eq!(ids(&stage.session("", "other").unwrap()), [hex(1)]);
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::Traces, &[]), 1);
    assert_eq!(counter(&update, Counter::Tokens, &["input"]), 7);
    assert_eq!((everything(&update).traces, everything(&update).sessions), (1, 1));
}

#[test]
fn a_trace_that_left_before_it_came_is_remembered_for_a_while() {
    let mut stage = stage();
    stage.handle(TraceFacts { tombstone: true, ..trace(1, 10).revision(5) }, at(20));
    stage.handle_timeout(at(21));
    stage.handle(trace(1, 10).revision(4), at(22));
    assert_eq!((stage.session("", "s"), stage.counts().get("trace_updates", "stale")), (None, 1));
    assert_eq!((stage.open_sessions(), stage.held_sessions()), (0, 1));
    stage.handle_timeout(at(20 + 1800));
    assert_eq!(stage.held_sessions(), 0);
}

#[test]
fn a_trace_that_was_done_where_it_was_is_not_done_again_where_it_goes() {
    let mut before = stage();
    before.handle(trace(1, 10).done(), at(20));
    before.handle(TraceFacts { tombstone: true, ..trace(1, 10).revision(2) }, at(21));
    assert_eq!(counter(&only(before.drain()), Counter::Traces, &[]), 1);
    let told = ToldLoops { spent: Some(CountedUsage::default()), ..ToldLoops::default() };
    let mut after = stage();
    let there = trace(1, 10).revision(2).session("other").done();
    after.handle(TraceFacts { told: vec![told], ..there }, at(22));
    assert_eq!(counter(&only(after.drain()), Counter::Traces, &[]), 0);
}

#[test]
fn verdicts_count_a_trace_once_however_often_it_reopens() {
    let mut stage = stage();
    stage.handle(trace(1, 10).done(), at(20));
    stage.drain();
    stage.handle(trace(1, 10).revision(2), at(21));
    assert_eq!(everything(&only(stage.drain())).traces, 0);
    stage.handle(trace(1, 10).revision(3).error().done(), at(22));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["error", "pass"]), 1);
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["error", "fail"]), 0);
    assert_eq!(everything(&update).traces, 1);
}

#[test]
fn expectations_count_a_trace_once_and_are_shown() {
    let expected = |status: ExpectedStatus| {
        let layer = ExpectedLayer {
            status,
            problems: vec!["too slow".to_owned()],
            details: r#"{"loops":2}"#.to_owned(),
            ..ExpectedLayer::default()
        };
        Expectation {
            query: "q".to_owned(),
            hard_fail: true,
            path: Some(layer),
            ..Expectation::default()
        }
    };
    let trace = |revision, status| {
        let mut update = trace(1, 10).revision(revision).done();
        update.expectations = vec![expected(status)];
        update
    };
    let mut stage = stage();
    stage.handle(trace(1, ExpectedStatus::Warn), at(20));
    stage.handle(trace(2, ExpectedStatus::Fail), at(21));
    stage.drain();
    stage.handle(trace(3, ExpectedStatus::Fail), at(22));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::Expectations, &["correctness", "skip"]), 1);
    let path =
        ["warn", "fail"].map(|result| counter(&update, Counter::Expectations, &["path", result]));
    assert_eq!(path.iter().sum::<u64>(), 1);
    let view = stage.session("", "s").unwrap();
    let [held] = view.traces[0].expectations.as_slice() else { panic!("{view:?}") };
    let layer = &held.layers["path"];
    assert_eq!((held.query.as_str(), held.hard_fail, layer.status), ("q", true, "fail"));
    assert_eq!((&layer.details["loops"], held.layers["cost"].status), (&2.into(), "skip"));
}

#[test]
fn spend_counts_by_the_excess_and_never_falls() {
    let mut stage = stage();
    let tools =
        [Some(true), Some(false), None].map(|error| ToolCall { error, ..ToolCall::default() });
    let update =
        TraceFacts { tools: tools.into(), llm_calls: 4, ..trace(1, 10).tokens(9, 1).done() };
    stage.handle(update, at(20));
    stage.handle(trace(1, 10).revision(2).tokens(5, 4).done(), at(21));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::Tokens, &["input"]), 9);
    assert_eq!(counter(&update, Counter::Tokens, &["output"]), 4);
    assert_eq!(counter(&update, Counter::ModelCalls, &[]), 4);
    assert_eq!(counter(&update, Counter::ToolCalls, &["unknown"]), 1);
}

#[test]
fn a_trace_over_the_cap_of_its_session_is_refused() {
    let options = SessionOptions { max_traces_per_session: 1, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    stage.handle(trace(1, 10), at(20));
    stage.handle(trace(2, 10), at(20));
    stage.handle(trace(1, 10).revision(2).done(), at(20));
    assert_eq!(stage.counts().get("trace_updates", "session_full"), 1);
    assert_eq!(stage.session("", "s").unwrap().traces_evaluated, 1);
}

#[test]
fn what_cannot_be_used_is_counted() {
    let mut stage = stage();
    stage.handle(TraceFacts { trace_id: TraceId([0; 16]), ..trace(1, 10) }, at(1));
    stage.handle(TraceFacts { session: None, ..trace(1, 10) }, at(1));
    stage.handle(trace(1, 10).session(""), at(1));
    stage.handle(TraceFacts { agent: None, ..trace(1, 10) }, at(1));
    assert_eq!(stage.counts().get("trace_updates", "malformed"), 4);
}
