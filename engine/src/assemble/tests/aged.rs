//! Traces that are older than `trace_max_age`, to which more comes.

use super::*;

/// Feeds the arrivals of a second; returns the updates that are sent then.
fn look(stage: &mut Assembler, spans: Vec<Span>, second: u64) -> Vec<Box<TraceFacts>> {
    spans.into_iter().for_each(|span| stage.handle(Input::Span(Box::new(span)), at(second)));
    stage.handle_timeout(at(second), &nothing());
    stage.drain(&nothing())
}

/// One of many model calls of a trace.
fn answer(number: u64) -> Span {
    Span { span_id: SpanId((1_000 + number).to_be_bytes()), ..span(2, 1, Operation::Chat) }
}

/// A stage with a trace to which something came each minute, until it was of age.
fn aged(root: Span) -> Assembler {
    let mut stage = stage();
    look(&mut stage, vec![root], 0);
    (0..70).for_each(|minute| drop(look(&mut stage, vec![answer(minute)], 60 * minute)));
    stage
}

#[test]
fn a_trace_that_is_of_age_is_told_no_more_often_than_any_other() {
    // Another trace may go on with one that invokes no agent.
    for root in [root(), Span { operation: Operation::Other, ..root() }] {
        is_told_seldom(aged(root));
    }
}

fn is_told_seldom(mut stage: Assembler) {
    // Rare arrivals are sent at once.
    let told = look(&mut stage, vec![answer(100)], 4_200);
    assert_eq!((told.len(), told[0].state, told[0].llm_calls), (1, TraceState::Done, 71));
    let mut told = Vec::new();
    for second in 4_201..4_301 {
        told.extend(look(&mut stage, vec![answer(second)], second));
    }
    assert_eq!(told.len(), 10);
    told.extend((4_301..4_310).flat_map(|second| look(&mut stage, vec![], second)));
    let last = told.last().unwrap();
    assert_eq!((last.state, last.llm_calls), (TraceState::Done, 171));
    assert_eq!(stage.counts().get("traces_partial", "age"), 1);
    // It is final as any other, after the last of it.
    let told: Vec<_> = (4_310..4_700).flat_map(|second| look(&mut stage, vec![], second)).collect();
    assert_eq!(told.iter().map(|update| update.state).collect::<Vec<_>>(), [TraceState::Sealed]);
}

#[test]
fn a_loop_of_a_trace_that_is_of_age_is_told_at_once() {
    let mut stage = aged(root());
    look(&mut stage, vec![answer(100)], 4_200);
    assert_eq!(look(&mut stage, vec![tool(10), tool(11)], 4_202), []);
    let told = look(&mut stage, vec![tool(12)], 4_203);
    assert_eq!((told.len(), told[0].loops.len()), (1, 1));
    let told: Vec<_> = (4_204..4_211).flat_map(|second| look(&mut stage, vec![], second)).collect();
    assert_eq!(told.iter().map(|update| update.state).collect::<Vec<_>>(), [TraceState::Done]);
}
