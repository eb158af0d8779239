//! No order, duplication, lateness or number of shards changes a result.

use std::time::Duration;

use agentgauge::engine::counters::Counter;
use agentgauge::engine::math::text::digest;
use agentgauge::engine::options::ConventionOptions;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::signal::loop_detection;
use agentgauge::engine::span::{Span, Timestamp};
use agentgauge::engine::view::Document;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Encoding, Signal};
use proptest::prelude::*;

use crate::pandaprobe;
use crate::recorded::{Delivery, Item, apply, deliveries, items, plain, reordered};

const CAPTURES: [&str; 10] = [
    "oi-openai",
    "oi-langgraph",
    "otel-genai-openai-span-only",
    "js-otel-openai-evals",
    "oi-anthropic",
    "openlit-scores",
    "pydantic-ai-v1",
    "traceloop-anthropic",
    "js-mastra",
    "google-adk-legacy",
];

fn run(items: &[Item], delivery: &Delivery) -> Document {
    let mut options = EngineOptions::default();
    options.assemble.keep_content = true;
    let mut pipeline = Pipeline::new(&options, delivery.shards);
    let mut now = Timestamp(1_800_000_000_000_000_000);
    for batch in items.chunks(delivery.batch.max(1)) {
        apply(&mut pipeline, batch, now);
        now = now.after(delivery.pause);
        pipeline.advance(now);
    }
    pipeline.finish(now);
    let mut document = pipeline.document();
    // Drops follow from the order in which traces come, and from when.
    for agent in &mut document.agents {
        agent.drops.clear();
        (agent.last_trace_unix_nano, agent.usual_gap_seconds) = (None, None);
    }
    document
}

/// In another order, and some of them twice.
fn delivered(items: &[Item], delivery: &Delivery) -> Vec<Item> {
    let mut delivered = reordered(items, &delivery.order);
    let again: Vec<Item> = delivered.iter().step_by(delivery.twice.max(1)).cloned().collect();
    delivered.extend(again);
    delivered
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_delivery_changes_a_result(delivery in deliveries(), which in 0..CAPTURES.len()) {
        let items = items(CAPTURES[which]);
        let expected = serde_json::to_string_pretty(&run(&items, &plain())).unwrap();
        let actual = serde_json::to_string_pretty(&run(&delivered(&items, &delivery), &delivery)).unwrap();
        prop_assert_eq!(actual, expected);
    }
}

proptest! {
    #[test]
    fn loop_detection_is_what_the_slow_model_says(
        outputs in prop::collection::vec(prop::collection::vec("(order|refund|flight|paris|the|of)", 0..6), 1..6),
    ) {
        let outputs: Vec<String> = outputs.iter().map(|words| words.join(" ")).collect();
        let (current, earlier) = outputs.split_last().unwrap();
        let digests: Vec<_> = earlier.iter().map(|text| digest(text)).collect();
        let held: Vec<_> = digests.iter().map(Option::as_ref).collect();
        let score = loop_detection::score(&held, digest(current).as_ref());
        let embed = |text: &str| {
            Some(digest(text)?.embedding.cells().iter().copied().map(f64::from).collect())
        };
        let slow = pandaprobe::loop_detection(earlier, current, &embed).unwrap();
        match slow.note {
            // If nothing was compared the slow model says 1, and the engine nothing, except for a first trace.
            Some(_) if !earlier.is_empty() => prop_assert_eq!(score, None),
            _ => prop_assert!((score.unwrap().to_f64() - slow.score).abs() <= 5e-5 + 1e-9),
        }
    }
}

#[test]
fn a_recording_has_sessions_with_scores() {
    for capture in CAPTURES {
        let document = run(&items(capture), &plain());
        let session = document.sessions.first().unwrap();
        assert_eq!(session.traces.len(), 6, "{capture}");
        assert!(session.reliability.is_some() && session.consistency.is_some(), "{capture}");
    }
}

/// This many traces of a tool call, and a root of each that is sent when the calls of all of them have been taken. The root names a
/// session; the first part has a root that names another one, if `is_named`, else it names none.
fn in_two_parts(traces: u32, is_named: bool) -> (Vec<Span>, Vec<Span>) {
    let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
    let text =
        |key: &str, value: &str| serde_json::json!({"key": key, "value": {"stringValue": value}});
    let span = |trace: u32, id: u32, parent: &str, session: Option<String>| {
        let (operation, start) = match id {
            1 => ("invoke_agent", 1),
            2 => ("execute_tool", 3),
            _ => ("invoke_agent", 2),
        };
        let mut attributes = vec![
            text("gen_ai.operation.name", operation),
            text("gen_ai.agent.name", "one"),
            text("gen_ai.tool.name", "search"),
        ];
        attributes.extend(session.map(|session| text("gen_ai.conversation.id", &session)));
        serde_json::json!({
            "traceId": format!("{:032x}", trace + 1), "spanId": format!("{id:016x}"), "parentSpanId": parent,
            "name": operation, "startTimeUnixNano": (1_800_000_000_000_000_000_u64 + start).to_string(),
            "endTimeUnixNano": "1800000000000001000", "attributes": attributes,
        })
    };
    let decode = |spans: Vec<serde_json::Value>| {
        let body =
            serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).to_string();
        decoder.decode_plain(Signal::Traces, Encoding::Json, body.as_bytes()).unwrap().spans
    };
    let parent = format!("{:016x}", if is_named { 3 } else { 1 });
    let first = (0..traces).flat_map(|trace| {
        let root = is_named.then(|| span(trace, 3, "", Some(format!("first-{trace}"))));
        [span(trace, 2, &parent, None)].into_iter().chain(root)
    });
    let second = (0..traces).map(|trace| span(trace, 1, "", Some(format!("session-{trace}"))));
    (decode(first.collect()), decode(second.collect()))
}

#[test]
fn what_a_trace_spent_counts_once_though_a_root_comes_late_and_names_another_session() {
    for (is_named, shards) in [(false, 1), (false, 8), (true, 1), (true, 8)] {
        let mut pipeline = Pipeline::new(&EngineOptions::default(), shards);
        let (first, second) = in_two_parts(40, is_named);
        let now = Timestamp(1_800_000_000_000_000_000);
        pipeline.apply(first, Vec::new(), Vec::new(), now);
        let late = now.after(Duration::from_secs(90));
        pipeline.advance(late);
        pipeline.apply(second, Vec::new(), Vec::new(), late);
        pipeline.advance(late.after(Duration::from_secs(30)));
        let board = pipeline.board();
        let count = |counter| -> u64 {
            let counters = board.values().flat_map(|agent| agent.counters.family(counter));
            counters.map(|(.., count)| count).sum()
        };
        let counted = [Counter::ToolCalls, Counter::Traces].map(count);
        assert_eq!(counted, [40, 40], "{shards} shards, named before: {is_named}");
        let sessions = pipeline.document().sessions.into_iter();
        let moved = sessions.filter(|session| session.session_id.starts_with("session-"));
        assert_eq!(moved.count(), 40, "{shards} shards, named before: {is_named}");
    }
}
