//! Traces that have more spans than a trace may have.

use super::*;

/// A stage in which a trace has a hundred spans at most.
fn small() -> Assembler {
    let options = AssembleOptions { max_spans_per_trace: 100, ..AssembleOptions::default() };
    Assembler::new(options, LoopOptions::default(), &CostOptions::default())
}

/// So many spans, each with an id of its own.
fn many(number: u64, from: u64, like: &Span) -> Vec<Span> {
    let ids = (from..from + number).map(|id| SpanId((1_000 + id).to_be_bytes()));
    ids.map(|span_id| Span { span_id, ..like.clone() }).collect()
}

/// The root, which names the agent and failed.
fn failed() -> Span {
    let agent_name = Some(Arc::from("support"));
    Span { agent_name, failed: true, status: Status::Error, ..root() }
}

#[test]
fn what_does_not_tell_of_the_agent_leaves_half_of_a_trace_to_what_does() {
    let mut stage = small();
    feed(&mut stage, many(120, 0, &span(2, 1, Operation::Other)), at(0));
    feed(&mut stage, many(40, 200, &tool(2)), at(1));
    let update = done(&mut stage, vec![failed()], at(2)).pop().unwrap();
    assert_eq!((update.tools.len(), update.error, update.partial), (40, true, false));
    assert_eq!(stage.counts().get("spans", TRACE_FULL), 70);
    assert_eq!(stage.counts().get("traces_partial", FULL), 0, "nothing of the agent is missing");
}

#[test]
fn a_full_trace_takes_what_says_whose_it_is_and_how_it_ended() {
    let mut stage = small();
    feed(&mut stage, many(150, 0, &tool(2)), at(0));
    let below = Span { agent_name: Some(Arc::from("below")), ..span(2, 1, Operation::InvokeAgent) };
    feed(&mut stage, many(100, 200, &below), at(1));
    let update = done(&mut stage, vec![failed()], at(2)).pop().unwrap();
    assert_eq!(&*update.agent.as_ref().unwrap().agent_name, "support");
    assert_eq!((update.tools.len(), update.error, update.partial), (100, true, true));
    assert!(update.complete && !update.unjudged);
    // The reserve has a bound too; half of it is for spans without a parent.
    feed(&mut stage, many(100, 400, &root()), at(3));
    assert_eq!(stage.traces.get(TraceKey::from(TraceId([7; 16]))).unwrap().parts.len(), 164);
    assert_eq!(stage.counts().get("spans", TRACE_FULL), 50 + 68 + 69);
    assert_eq!(stage.counts().get("traces_partial", FULL), 1);
}

#[test]
fn half_of_a_run_without_a_name_has_no_verdict() {
    let sealed = |stage: &mut Assembler, calls: u64| {
        feed(stage, many(calls, 0, &tool(2)), at(0));
        let mut last = None;
        while let Some(due) = stage.poll_timeout() {
            stage.handle_timeout(due, &nothing());
            last = stage.drain(&nothing()).pop().or(last);
        }
        last.map(|update| (update.state, update.partial, update.unjudged))
    };
    assert_eq!(sealed(&mut small(), 100), Some((TraceState::Sealed, false, false)));
    assert_eq!(sealed(&mut small(), 101), Some((TraceState::Sealed, true, true)));
}
