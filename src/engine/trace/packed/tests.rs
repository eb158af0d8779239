use proptest::prelude::*;

use super::*;
use crate::engine::span::{Arguments, ModelFacts, SessionName, ToolFacts, ToolResult};

fn name() -> impl Strategy<Value = Option<Arc<str>>> {
    prop::option::of("[a-dé]{0,3}".prop_map(Arc::from))
}

fn text() -> impl Strategy<Value = Option<Text>> {
    let text = (any::<u8>(), prop_oneof!["[a-dé]{0,9}", "[a-dé]{250,260}"]);
    prop::option::of(text.prop_map(|(rank, text)| Text { rank, text: Arc::from(text) }))
}

fn tool() -> impl Strategy<Value = ToolFacts> {
    let arguments = ("[a-d]{0,9}", prop::collection::vec(any::<u64>(), 0..4));
    let arguments = arguments.prop_map(|(text, values)| Arguments::from_canonical(text, values));
    let facts = (name(), name(), prop::option::of(arguments), any::<Option<u64>>(), any::<bool>());
    facts.prop_map(|(name, call_id, arguments, result_hash, phantom)| ToolFacts {
        name,
        call_id,
        arguments,
        result_hash,
        phantom,
    })
}

fn model() -> impl Strategy<Value = ModelFacts> {
    let told = (name(), any::<bool>(), any::<Option<u64>>());
    let told = told.prop_map(|(call_id, failed, hash)| ToolResult { call_id, failed, hash });
    let counts = any::<(Option<u64>, Option<u64>, Option<u64>, Option<i64>, Option<bool>)>();
    let lists = (prop::collection::vec(tool(), 0..3), prop::collection::vec(told, 0..3));
    (name(), name(), counts, lists).prop_map(|(model, response_id, counts, lists)| {
        let (input, cached, output, cost, asked_by_user) = counts;
        let (tool_calls, tool_results) = lists;
        let (tokens, cost) = (Tokens { input, cached, output }, cost.map(Quanta));
        ModelFacts { model, response_id, tokens, cost, tool_calls, tool_results, asked_by_user }
    })
}

fn span() -> impl Strategy<Value = Span> {
    let ids = (0_u8..9, any::<Option<[u8; 8]>>(), any::<(u64, u64)>());
    let what = (0_usize..8, 0_usize..3, any::<bool>(), 0_u64..3, any::<bool>());
    let names = (name(), name(), name(), name(), name(), name(), name());
    let facts = (prop::option::of(tool()), prop::option::of(model()), text(), text());
    (ids, what, names, facts).prop_map(|(ids, what, names, facts)| {
        let (operation, status, failed, scope, attempted) = what;
        let (name, agent_name, agent_version, environment, user, session, service_name) = names;
        let session = session.map(|id| SessionName { attribute: Arc::from("session.id"), id });
        let attempt = Attempt { success: Some(failed), ..Attempt::default() };
        let (tool, model, input, output) = facts;
        Span {
            span_id: SpanId([ids.0; 8]),
            parent: ids.1.map(SpanId),
            start: Timestamp(ids.2.0.min(ids.2.1)),
            end: Timestamp(ids.2.0.max(ids.2.1)),
            name: name.unwrap_or_default(),
            operation: OPERATIONS[operation],
            status: STATUSES[status],
            failed,
            scope,
            resource: Arc::new(Resource { service_name, ..Resource::default() }),
            agent_name,
            agent_version,
            environment,
            session_in_json: session.clone(),
            session,
            user,
            tool,
            model,
            attempt: attempted.then(|| Box::new(attempt)),
            input,
            output,
            ..Span::default()
        }
    })
}

fn without_extra<'a>(seen: &Seen<'a>) -> Seen<'a> {
    let short = |text: &Option<&'a str>| text.filter(|text| text.len() < LONG_BYTES);
    let said = |said: &Said<'a>| Said { text: short(&said.text), ..*said };
    let tool = |tool: &Tool<'a>| {
        let arguments = tool.arguments.as_ref();
        let arguments = arguments.map(|asked| Asked { text: short(&asked.text), ..*asked });
        Tool { arguments, ..*tool }
    };
    let mut seen = seen.clone();
    seen.input = seen.input.as_ref().map(said);
    if seen.operation == Operation::ExecuteTool {
        seen.output = seen.output.as_ref().map(said);
    }
    seen.tool = seen.tool.as_ref().map(tool);
    seen.model = seen.model.map(|model| {
        let calls = model.calls.iter().map(tool).collect();
        Model { calls, ..model }
    });
    seen
}

#[test]
fn times_in_nanoseconds_are_read_as_earlier_releases_wrote_them() {
    let (id, resource) = (SpanId([1; 8]), Arc::<Resource>::default());
    let mut spans = Spans { ids: vec![id, id], ..Spans::default() };
    spans.origins.push(Origin { resource, scope: 0 });
    for (start, lasting) in [(1_790_000_000_000_000_000, 9_000), (-20_000, 123)] {
        [IN_PLACE, 0, 0].into_iter().for_each(|number| spans.number(number));
        spans.signed(start);
        spans.number(lasting);
    }
    let read: Vec<_> = spans.iter().map(|seen| (seen.start.0, seen.end.0)).collect();
    let second = 1_789_999_999_999_980_000;
    let expected = [(1_790_000_000_000_000_000, 1_790_000_000_000_009_000), (second, second + 123)];
    assert_eq!(read, expected);
}

proptest! {
    #[test]
    fn what_is_packed_is_what_counts_of_the_greatest_of_each_id(
        sent in prop::collection::vec(span(), 0..90),
        texts in any::<bool>(),
    ) {
        let mut spans = Spans::default();
        let mut greatest: Vec<Seen<'_>> = Vec::new();
        for span in &sent {
            let seen = Seen::of(span, texts);
            let held = greatest.iter_mut().find(|held| held.span_id == seen.span_id);
            let added = spans.add(span, texts);
            match held {
                Some(held) if held.holds_against(&seen) => prop_assert_eq!(added, Added::Known),
                Some(held) => {
                    *held = seen;
                    prop_assert_eq!(added, Added::Instead);
                }
                None => {
                    greatest.push(seen);
                    prop_assert_eq!(added, Added::New);
                }
            }
        }
        spans.shrink();
        prop_assert_eq!(&spans.iter().collect::<Vec<_>>(), &greatest);
        prop_assert_eq!(spans.len(), spans.operations().count());
        let written = rmp_serde::to_vec_named(&spans).unwrap();
        let again: Spans = rmp_serde::from_slice(&written).unwrap();
        prop_assert_eq!(again.iter().collect::<Vec<_>>(), spans.iter().collect::<Vec<_>>());
        // Of what is forgone only the long texts that nobody else reads are gone, and what comes again is known.
        spans.forgo();
        let forgone: Vec<_> = greatest.iter().map(|seen| Seen { at: 0, ..without_extra(seen) }).collect();
        prop_assert_eq!(spans.iter().collect::<Vec<_>>(), forgone);
        for span in sent.iter().filter(|span| greatest.contains(&Seen::of(span, texts))) {
            prop_assert_eq!(spans.add(span, texts), Added::Known);
        }
    }

    #[test]
    fn of_spans_of_one_id_the_same_is_kept_in_any_order_and_with_or_without_texts(
        mut sent in prop::collection::vec(span(), 2..6),
        forgoes_after in 0_usize..6,
    ) {
        for span in &mut sent {
            *span = Span { span_id: SpanId([1; 8]), parent: None, ..span.clone() };
            (span.start, span.end, span.scope) = (Timestamp(1), Timestamp(2), 0);
        }
        let one = |spans: &[Span], texts: bool| {
            let mut kept = Spans::default();
            for (at, span) in spans.iter().enumerate() {
                if at == forgoes_after && !texts {
                    kept.forgo();
                }
                kept.add(span, true);
            }
            format!("{:?}", kept.iter().next().unwrap().without_texts())
        };
        let kept = one(&sent, true);
        prop_assert_eq!(&one(&sent, false), &kept);
        sent.reverse();
        prop_assert_eq!(&one(&sent, true), &kept);
        prop_assert_eq!(&one(&sent, false), &kept);
    }

    #[test]
    fn names_stay_what_they_are_however_many_there_are(count in 0_usize..300) {
        let names: Vec<Arc<str>> = (0..count).map(|at| Arc::from(format!("n{}", at % 97))).collect();
        let mut spans = Spans::default();
        for (at, name) in (0_u64..).zip(&names) {
            let span = Span { span_id: SpanId(at.to_be_bytes()), agent_name: Some(name.clone()), ..Span::default() };
            spans.add(&span, false);
        }
        let read: Vec<&str> = spans.iter().filter_map(|seen| seen.agent_name).collect();
        prop_assert_eq!(read, names.iter().map(|name| &**name).collect::<Vec<_>>());
    }
}
