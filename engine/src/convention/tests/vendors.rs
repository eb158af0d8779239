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
