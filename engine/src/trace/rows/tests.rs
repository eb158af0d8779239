use proptest::prelude::*;

use super::*;
use crate::math::Quanta;
use crate::price::shipped;
use crate::span::{Arguments, IdHash, ModelFacts, Text, ToolFacts, ToolResult};
use crate::trace::span_view::{Model, Named, TextView, Tool, WholeView};

fn name() -> impl Strategy<Value = Option<Arc<str>>> {
    prop::option::of("[a-dé]{0,3}".prop_map(Arc::from))
}

fn text() -> impl Strategy<Value = Option<Text>> {
    let text = (any::<u8>(), prop_oneof!["[a-dé]{0,9}", "[a-dé]{250,260}"]);
    prop::option::of(text.prop_map(|(rank, text)| Text { rank, text: Arc::from(text) }))
}

fn id() -> impl Strategy<Value = Option<IdHash>> {
    name().prop_map(|id| id.as_deref().map(IdHash::from))
}

fn tool() -> impl Strategy<Value = ToolFacts> {
    let arguments = ("[a-d]{0,9}", prop::collection::vec(any::<u64>(), 0..4));
    let arguments = arguments
        .prop_map(|(text, values)| Arguments::from_canonical(text.as_bytes(), &values, true));
    let facts = (name(), id(), prop::option::of(arguments), any::<Option<u64>>(), any::<bool>());
    facts.prop_map(|(name, call_id, arguments, result_hash, phantom)| ToolFacts {
        name,
        call_id,
        arguments,
        result_hash,
        phantom,
    })
}

fn model() -> impl Strategy<Value = ModelFacts> {
    let told = (id(), any::<bool>(), any::<Option<u64>>());
    let told = told.prop_map(|(call_id, failed, hash)| ToolResult { call_id, failed, hash });
    let count = prop_oneof![Just(None), Just(Some(0)), (1_u64..1 << 34).prop_map(Some)];
    let rarely = prop::option::weighted(0.2, any::<u64>());
    let cached = (count.clone(), rarely);
    let counts = (count.clone(), cached, count, prop::option::weighted(0.2, any::<i64>()));
    let lists = (prop::collection::vec(tool(), 0..2), prop::collection::vec(told, 0..2));
    let asked = (any::<Option<bool>>(), any::<bool>());
    let names = (name(), name());
    (names, id(), counts, lists, asked).prop_map(|(names, response_id, counts, lists, asked)| {
        let (model, requested) = names;
        let (input, (cached, rarely), output, cost) = counts;
        let (tool_calls, tool_results) = lists;
        let tokens = Tokens { input, cached, cache_written: rarely, output };
        let (cost, (asked_by_user, compacted)) = (cost.map(Quanta), asked);
        let first_chunk_nanos = rarely;
        ModelFacts {
            model,
            requested,
            response_id,
            tokens,
            cost,
            tool_calls,
            tool_results,
            asked_by_user,
            compacted,
            first_chunk_nanos,
            local: asked_by_user == Some(false),
        }
    })
}

fn span() -> impl Strategy<Value = Span> {
    let ids = (0_u8..9, any::<Option<[u8; 8]>>(), any::<(u64, u64)>(), any::<Option<bool>>());
    let what = (0_usize..8, 0_usize..3, any::<bool>(), 0_u64..3, any::<bool>());
    let names = (name(), name(), name(), name(), name(), name(), name(), name(), name());
    let facts = (prop::option::of(tool()), prop::option::of(model()), text(), text());
    (ids, what, names, facts).prop_map(|(ids, what, names, facts)| {
        let (operation, status, failed, scope, attempted) = what;
        let (
            name,
            agent_name,
            workflow,
            agent_id,
            agent_version,
            environment,
            user,
            session,
            service_name,
        ) = names;
        let session = session.map(|id| SessionName { attribute: Arc::from("session.id"), id });
        let stopped = failed != attempted;
        let attempt = Attempt { success: Some(failed), ..Attempt::default() };
        let remarks = Remarks { accepted_edit: Some(failed), ..Remarks::default() };
        let (tool, model, input, output) = facts;
        Span {
            span_id: SpanId([ids.0; 8]),
            parent: ids.1.map(SpanId),
            remote_parent: ids.3,
            start: Timestamp(ids.2.0.min(ids.2.1)),
            end: Timestamp(ids.2.0.max(ids.2.1)),
            name: name.unwrap_or_default(),
            operation: OPERATIONS[operation],
            status: [Status::Unset, Status::Ok, Status::Error][status],
            failed,
            stopped,
            streamed: failed && attempted,
            scope,
            resource: Arc::new(Resource { service_name, ..Resource::default() }),
            agent_name,
            workflow,
            agent_id,
            agent_version,
            environment,
            session_in_json: session.clone(),
            session,
            user,
            tool,
            model,
            attempt: attempted.then(|| Box::new(attempt)),
            remarks: attempted.then(|| Box::new(remarks)),
            input_hash: input.as_ref().map(|text: &Text| IdHash::from(&*text.text)),
            input,
            output,
            ..Span::default()
        }
    })
}

const OPERATIONS: [Operation; 8] = [
    Operation::Chat,
    Operation::CreateAgent,
    Operation::Embeddings,
    Operation::Evaluation,
    Operation::ExecuteTool,
    Operation::InvokeAgent,
    Operation::Other,
    Operation::Retrieval,
];

/// The lower half of a hash.
fn mark(hash: IdHash) -> u32 {
    u32::try_from(hash.number() % (1 << 32)).unwrap()
}

/// What counts of a span, straight from it.
fn seen_of(span: &Span, texts: bool) -> WholeView<'_> {
    let named = matches!(span.operation, Operation::InvokeAgent | Operation::Other)
        || (texts && span.operation == Operation::Chat);
    let tool = span.operation == Operation::ExecuteTool;
    let call = |facts| {
        let mut tool = Tool::of(facts);
        tool.arguments.iter_mut().filter(|_| !texts).for_each(|asked| asked.text = None);
        tool
    };
    let priced = |text| Named { text, price: shipped(text) };
    let unpriced =
        |facts: &ModelFacts| facts.model.as_deref().is_some_and(|name| shipped(name).is_none());
    WholeView {
        span_id: span.span_id,
        parent: span.parent,
        remote_parent: span.remote_parent,
        start: span.start,
        end: span.end,
        name: if named { &span.name } else { "" },
        operation: span.operation,
        status: span.status,
        failed: span.failed,
        stopped: span.stopped,
        streamed: span.streamed,
        scope: span.scope,
        resource: &span.resource,
        agent_name: span.agent_name.as_deref(),
        workflow: span.workflow.as_deref(),
        agent_id: span.agent_id.as_deref(),
        agent_version: span.agent_version.as_deref(),
        environment: span.environment.as_deref(),
        session: span.session.as_ref(),
        session_in_json: span.session_in_json.as_ref(),
        user: span.user.as_deref(),
        tool: span.tool.as_ref().map(call),
        model: span.model.as_ref().map(|facts| Model {
            name: facts.model.as_ref().map(priced),
            requested: facts.requested.as_ref().filter(|_| unpriced(facts)).map(priced),
            response_id: facts.response_id,
            tokens: facts.tokens,
            cost: facts.cost,
            calls: facts.tool_calls.iter().map(call).collect(),
            results: facts.tool_results.clone(),
            asked_by_user: facts.asked_by_user,
            compacted: facts.compacted,
            local: facts.local,
            first_chunk_nanos: facts.first_chunk_nanos.filter(|_| texts),
        }),
        attempt: span.attempt.as_deref(),
        remarks: span.remarks.as_deref(),
        input: span.input.as_ref().map(|text| TextView {
            text: texts.then_some(&text.text),
            mark: span.input_hash.map_or(0, mark),
            ..TextView::of(text)
        }),
        output: span.output.as_ref().filter(|_| texts || !tool).map(TextView::of),
    }
}

fn add(spans: &mut Spans, span: &Span, texts: bool) -> Added {
    spans.add(span, &span.resource, &mut Symbols::default(), texts)
}

/// All that is said of each.
fn wholes(spans: &Spans) -> Vec<WholeView<'_>> {
    spans.iter().map(|span| span.whole()).collect()
}

/// The texts of a span that only people and models read.
fn extra<'a>(seen: &WholeView<'a>) -> Vec<&'a str> {
    let calls = seen.model.iter().flat_map(|model| &model.calls).chain(&seen.tool);
    let asked = calls.filter_map(|call| call.arguments?.text);
    let result = seen.output.filter(|_| seen.operation == Operation::ExecuteTool);
    asked
        .chain(seen.input.and_then(|said| said.text))
        .chain(result.and_then(|said| said.text))
        .map(|text| &**text)
        .collect()
}

proptest! {
    #[test]
    fn what_is_held_is_what_counts_of_the_greatest_of_each_id(
        sent in prop::collection::vec(span(), 0..90),
        texts in any::<bool>(),
    ) {
        let mut spans = Spans::default();
        let mut greatest: Vec<WholeView<'_>> = Vec::new();
        for span in &sent {
            let seen = seen_of(span, texts);
            let held = greatest.iter_mut().find(|held| held.span_id == seen.span_id);
            let added = add(&mut spans, span, texts);
            match held {
                Some(held) if held.holds_against(&seen) => prop_assert_eq!(added, Added::Dropped),
                Some(held) => {
                    *held = seen;
                    prop_assert_eq!(added, Added::Replaced);
                }
                None => {
                    greatest.push(seen);
                    prop_assert_eq!(added, Added::New);
                }
            }
        }
        prop_assert_eq!(&wholes(&spans), &greatest);
        prop_assert_eq!(spans.len(), spans.operations().count());
        prop_assert!(spans.origins.len() <= greatest.len());
        let tools = greatest.iter().filter_map(|seen| seen.tool);
        let tools = tools.filter_map(|tool| Some((&**tool.name?, tool.arguments.is_some())));
        prop_assert_eq!(spans.called_tools().collect::<Vec<_>>(), tools.collect::<Vec<_>>());
        let models = || greatest.iter().filter_map(|seen| Some((seen, seen.model.as_ref()?)));
        prop_assert_eq!(spans.calls_of_models(), models().map(|(_, model)| model.calls.len()).sum::<usize>());
        let first = models().min_by_key(|(seen, _)| (seen.start, seen.end, seen.span_id));
        prop_assert_eq!(spans.goes_on(), first.is_some_and(|(_, model)| model.asked_by_user == Some(false)));
        prop_assert_eq!(spans.has_root(), greatest.iter().any(|seen| seen.parent.is_none()));
        let long = greatest.iter().flat_map(extra).map(str::len).filter(|bytes| *bytes >= 256);
        prop_assert_eq!(spans.bytes().extra, u32::try_from(long.sum::<usize>()).unwrap());
        let written = rmp_serde::to_vec_named(&spans).unwrap();
        let mut again: Spans = rmp_serde::from_slice(&written).unwrap();
        again.restored(&mut Symbols::default());
        prop_assert_eq!(wholes(&again), wholes(&spans));
        prop_assert_eq!(again.bytes(), spans.bytes());
        again.fit();
        prop_assert_eq!(again.rows.capacity(), again.rows.len());
        prop_assert_eq!(wholes(&again), wholes(&spans));
        // With `drops_readable_texts`, only the texts that only people and models read are gone, and resent spans are recognised.
        spans.drop_readable_texts();
        for (seen, held) in greatest.iter().zip(wholes(&spans)) {
            prop_assert!(extra(&held).is_empty());
            let mut expected = seen.without_texts();
            (expected.name, expected.output) = (seen.name, held.output);
            prop_assert_eq!(&held, &expected);
            let text = |said: Option<TextView<'_>>| said.map(|said| said.rank);
            prop_assert_eq!(text(held.output), text(seen.output));
        }
        for span in sent.iter().filter(|span| greatest.contains(&seen_of(span, texts))) {
            prop_assert_eq!(add(&mut spans, span, texts), Added::Dropped);
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
                    kept.drop_readable_texts();
                }
                add(&mut kept, span, true);
            }
            format!("{:?}", kept.iter().next().unwrap().whole().without_texts())
        };
        let kept = one(&sent, true);
        prop_assert_eq!(&one(&sent, false), &kept);
        sent.reverse();
        prop_assert_eq!(&one(&sent, true), &kept);
        prop_assert_eq!(&one(&sent, false), &kept);
    }
}

#[test]
fn a_row_is_small() {
    assert_eq!(size_of::<SpanRow>(), 48);
}
