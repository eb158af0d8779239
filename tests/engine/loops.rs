//! Planted loops are found, by the call that completes them; none is invented.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::counters::Counter;
use agentgauge::engine::loops::Severity;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{
    Arguments, IdHash, ModelFacts, Operation, SessionName, Span, SpanId, Timestamp, ToolFacts,
    ToolResult, TraceId,
};
use agentgauge::engine::view::LoopView;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// One call as the agent makes it.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    tool: String,
    arguments: Vec<u64>,
    result: Option<u64>,
    failed: bool,
    /// It began together with the call before it.
    parallel: bool,
}

/// What an agent does for a while.
#[derive(Clone, Debug)]
enum Phase {
    /// Different calls.
    Healthy(usize),
    /// The same call, each time with another result.
    Polling(usize),
    /// A call that fails, and again, now well.
    Retry,
    /// The same call, several times at once.
    Parallel(usize),
    /// The same call, the same result.
    Exact(usize),
    /// One tool, failing each time, with other arguments.
    Failing(usize),
    /// Arguments of twenty values, one of which goes back and forth, the same result.
    Near(usize),
    /// Arguments of twenty values, one of which is new each time, the same result.
    Pages(usize),
    /// Different calls, in the same order again and again: how many, how often.
    Cycle(usize, usize),
}

/// A loop that must be found: its kind, its count, and after how many of all calls.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Planted {
    kind: &'static str,
    count: u64,
    known_after: usize,
}

/// Numbers that no two calls share unless they are meant to.
struct Fresh(u64);

impl Fresh {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    fn call(&mut self) -> Call {
        Call {
            // Few tools: what differs are arguments and results.
            tool: format!("tool{}", self.next() % 3),
            arguments: vec![self.next(), self.next()],
            result: Some(self.next()),
            failed: false,
            parallel: false,
        }
    }
}

fn part() -> impl Strategy<Value = Phase> {
    prop_oneof![
        (1_usize..6).prop_map(Phase::Healthy),
        (3_usize..12).prop_map(Phase::Polling),
        Just(Phase::Retry),
        (3_usize..12).prop_map(Phase::Parallel),
        (3_usize..13).prop_map(Phase::Exact),
        (3_usize..13).prop_map(Phase::Failing),
        (4_usize..14).prop_map(Phase::Near),
        (3_usize..13).prop_map(Phase::Pages),
        (2_usize..9, 3_usize..12).prop_map(|(calls, times)| Phase::Cycle(calls, times)),
    ]
}

/// The calls of all parts, and what must be found in them.
fn script(parts: &[Phase]) -> (Vec<Call>, Vec<Planted>) {
    let mut fresh = Fresh(0);
    let mut calls: Vec<Call> = Vec::new();
    let mut planted = Vec::new();
    for part in parts {
        let start = calls.len();
        // Something else comes between two parts.
        calls.push(fresh.call());
        let own = of_part(part, &mut fresh);
        let mut plant = |kind, count: usize, calls: usize| {
            planted.push(Planted { kind, count: count as u64, known_after: start + 1 + calls });
        };
        match part {
            Phase::Exact(times) => plant("exact_repeat", *times, 3),
            Phase::Failing(times) => plant("error_retry", *times, 3),
            // The second call is another one.
            Phase::Near(times) => plant("near_repeat", *times - 1, 4),
            Phase::Cycle(different, times) => plant("cycle", *times, 3 * different),
            Phase::Healthy(_)
            | Phase::Polling(_)
            | Phase::Retry
            | Phase::Parallel(_)
            | Phase::Pages(_) => {}
        }
        calls.extend(own);
    }
    (calls, planted)
}

fn of_part(part: &Phase, fresh: &mut Fresh) -> Vec<Call> {
    let same = fresh.call();
    match part {
        Phase::Healthy(times) => (0..*times).map(|_| fresh.call()).collect(),
        Phase::Polling(times) => {
            let again = |_| Call { result: Some(fresh.next()), ..same.clone() };
            (0..*times).map(again).collect()
        }
        Phase::Retry => vec![Call { failed: true, result: None, ..same.clone() }, same],
        Phase::Parallel(times) => {
            (0..*times).map(|at| Call { parallel: at > 0, ..same.clone() }).collect()
        }
        Phase::Exact(times) => vec![same; *times],
        Phase::Failing(times) => {
            let again = |_| Call {
                failed: true,
                result: None,
                arguments: vec![fresh.next()],
                ..same.clone()
            };
            (0..*times).map(again).collect()
        }
        Phase::Near(times) | Phase::Pages(times) => {
            let most: Vec<u64> = (0..19).map(|_| fresh.next()).collect();
            let values: Vec<u64> = (0..*times).map(|_| fresh.next()).collect();
            let period = if matches!(part, Phase::Near(_)) { 2 } else { *times };
            let call = |value: &u64| Call {
                arguments: most.iter().chain([value]).copied().collect(),
                ..same.clone()
            };
            values[..period].iter().cycle().take(*times).map(call).collect()
        }
        Phase::Cycle(different, times) => {
            let period: Vec<Call> = (0..*different).map(|_| fresh.call()).collect();
            vec![period; *times].concat()
        }
    }
}

/// Start and end of each call, in nanoseconds; parallel ones share both.
fn times(calls: &[Call]) -> Vec<(u64, u64)> {
    let mut clock = 1_800_000_000_000_000_000;
    let mut times: Vec<(u64, u64)> = Vec::new();
    for call in calls {
        match times.last() {
            Some(last) if call.parallel => times.push(*last),
            _ => {
                clock += 100_000_001;
                times.push((clock, clock + 50_000_000));
            }
        }
    }
    times
}

fn facts(call: &Call) -> ToolFacts {
    let text = format!("{:?}", call.arguments);
    let values: Vec<u64> =
        call.arguments.iter().map(|value| xxh3_64(&value.to_be_bytes())).collect();
    ToolFacts {
        name: Some(Arc::from(call.tool.as_str())),
        arguments: Some(Arguments::from_canonical(text.as_bytes(), &values, true)),
        result_hash: call.result,
        ..ToolFacts::default()
    }
}

fn span(trace: u64, id: u64, (start, end): (u64, u64)) -> Span {
    let mut trace_id = [1; 16];
    trace_id[..8].copy_from_slice(&trace.to_be_bytes());
    Span {
        trace_id: TraceId(trace_id),
        span_id: SpanId((id + 1).to_be_bytes()),
        start: Timestamp(start),
        end: Timestamp(end),
        session: Some(SessionName { attribute: Arc::from("session.id"), id: Arc::from("s") }),
        convention: Some("test"),
        ..Span::default()
    }
}

/// The calls as tool spans below one agent, which has not ended.
fn one_trace(calls: &[Call]) -> Vec<Span> {
    let below = |(id, (call, times)): (u64, (&Call, (u64, u64)))| Span {
        parent: Some(SpanId([9; 8])),
        operation: Operation::ExecuteTool,
        failed: call.failed,
        tool: Some(facts(call)),
        ..span(1, id, times)
    };
    (0..).zip(calls.iter().zip(times(calls))).map(below).collect()
}

/// The calls as model calls, each in its own trace, which reports the result of the previous call.
fn many_traces(calls: &[Call]) -> Vec<Span> {
    let mut before: Option<(u64, &Call)> = None;
    let mut spans = Vec::new();
    for (id, (call, times)) in (0..).zip(calls.iter().zip(times(calls))) {
        let call_id = |id: u64| Some(IdHash::from(&*format!("call{id}")));
        let asked = ToolFacts { call_id: call_id(id), result_hash: None, ..facts(call) };
        let told = before.map(|(id, call)| ToolResult {
            call_id: call_id(id),
            failed: call.failed,
            hash: call.result,
        });
        let model = ModelFacts {
            tool_calls: vec![asked],
            asked_by_user: Some(told.is_none()),
            tool_results: told.into_iter().collect(),
            ..ModelFacts::default()
        };
        let model =
            Span { operation: Operation::Chat, model: Some(model), ..span(id + 2, id, times) };
        spans.push(model);
        before = Some((id, call));
    }
    spans
}

/// Applies the spans one by one; returns, after each, all loops in calls of the session. Also checks the counters: nothing before
/// the agent of the traces is certain, and each loop once at the end.
fn loops_after_each(spans: Vec<Span>, shards: u32) -> Vec<Vec<LoopView>> {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), shards);
    let mut now = Timestamp(1_800_000_100_000_000_000);
    let mut after_each = Vec::new();
    for span in spans {
        pipeline.apply(vec![span], Vec::new(), Vec::new(), now);
        now = now.after(Duration::from_millis(1));
        let document = pipeline.document();
        let traces = document.sessions.into_iter().flat_map(|session| session.traces);
        let loops = traces.flat_map(|trace| trace.loops);
        after_each.push(loops.filter(|found| found.kind.is_of_calls()).collect());
    }
    let counted = |pipeline: &Pipeline| -> u64 {
        let counters = pipeline.board().values().flat_map(|agent| &agent.view.loops);
        counters.filter(|(kind, _)| *kind != "output_repeat").map(|(_, count)| count).sum()
    };
    assert_eq!(counted(&pipeline), 0);
    pipeline.finish(now);
    assert_eq!(
        counted(&pipeline),
        after_each.last().map_or(0, |loops: &Vec<LoopView>| loops.len() as u64)
    );
    after_each
}

/// What was planted is found at the end, each once, and no later than it had to be; nothing else ever is.
fn check(
    after_each: &[Vec<LoopView>],
    planted: &[Planted],
    told_late: usize,
) -> Result<(), TestCaseError> {
    let summary = |loops: &[LoopView]| {
        let mut summary: Vec<(String, u64)> =
            loops.iter().map(|found| (found.kind.name().to_owned(), found.count)).collect();
        summary.sort();
        summary
    };
    let mut expected: Vec<(String, u64)> =
        planted.iter().map(|planted| (planted.kind.to_owned(), planted.count)).collect();
    expected.sort();
    prop_assert_eq!(summary(after_each.last().unwrap()), expected);
    for planted in planted {
        let known = after_each.get(planted.known_after + told_late - 1);
        if let Some(loops) = known {
            prop_assert!(
                loops.iter().any(|found| found.kind.name() == planted.kind),
                "{planted:?} is late"
            );
        }
    }
    for loops in after_each {
        let kinds: BTreeSet<&str> = loops.iter().map(|found| found.kind.name()).collect();
        let planted: BTreeSet<&str> = planted.iter().map(|planted| planted.kind).collect();
        // A run of a kind with a higher threshold may pass for another kind only if that was planted too.
        prop_assert!(kinds.is_subset(&planted), "{kinds:?} were not all planted: {planted:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn planted_loops_are_found_in_a_trace(parts in prop::collection::vec(part(), 1..8)) {
        let (calls, planted) = script(&parts);
        let after_each = loops_after_each(one_trace(&calls), 1);
        check(&after_each, &planted, 0)?;
        for found in after_each.last().unwrap() {
            prop_assert_eq!(found.severity == Severity::Critical, found.count >= 10);
        }
    }

    #[test]
    fn planted_loops_are_found_over_traces(parts in prop::collection::vec(part(), 1..5), shards in 1_u32..4) {
        let (mut calls, planted) = script(&parts);
        // The result of the last call is reported by the next one.
        calls.push(Fresh(1 << 40).call());
        // A model call asks for one tool: there are none side by side.
        let one_by_one = |call: &Call| !call.parallel;
        prop_assume!(calls.iter().all(one_by_one));
        let after_each = loops_after_each(many_traces(&calls), shards);
        // Failures and results are known one model call after the call.
        check(&after_each, &planted, 1)?;
    }

    #[test]
    fn new_user_input_ends_a_run(times in 3_usize..12) {
        let (calls, _) = script(&[Phase::Exact(times)]);
        let mut spans = many_traces(&calls);
        for span in &mut spans {
            let model = span.model.as_mut().unwrap();
            model.asked_by_user = Some(true);
            model.tool_results.clear();
        }
        prop_assert_eq!(loops_after_each(spans, 1).pop(), Some(Vec::new()));
    }
}

/// The counts of loops in a session with these traces, which arrive in some order, with a pause after each.
fn counted(traces: &[Vec<Span>], shards: u32, pause: Duration) -> Vec<(Counter, Vec<String>, u64)> {
    let mut pipeline = Pipeline::new(&EngineOptions::default(), shards);
    let mut now = Timestamp(1_800_000_000_000_000_000);
    for spans in traces {
        pipeline.apply(spans.clone(), vec![], vec![], now);
        now = now.after(pause);
        pipeline.advance(now);
    }
    pipeline.advance(now.after(Duration::from_secs(10_000)));
    let families = [
        Counter::Loops,
        Counter::LoopsDetected,
        Counter::LoopWastedTokens,
        Counter::LoopWastedCostUsd,
    ];
    let mut sums: BTreeMap<(Counter, Vec<String>), u64> = BTreeMap::new();
    for update in pipeline.board().values() {
        for (family, labels, value) in update.counters.iter() {
            if families.contains(family) {
                *sums
                    .entry((*family, labels.iter().map(ToString::to_string).collect()))
                    .or_default() += value;
            }
        }
    }
    sums.into_iter().map(|((family, labels), sum)| (family, labels, sum)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_loop_over_traces_counts_the_same_in_whatever_order_these_come(
        order in (3_u64..14).prop_flat_map(|traces| Just((0..traces).collect::<Vec<_>>()).prop_shuffle()),
        shards in 1_u32..4,
        pause in 0_u64..20,
    ) {
        let trace = |number: u64| {
            let same = Call {
                tool: "tool".to_owned(),
                arguments: vec![1],
                result: Some(1),
                failed: false,
                parallel: false,
            };
            let start = 1_800_000_000_000_000_000 + number * 1_000_000_000;
            let call = Span {
                operation: Operation::ExecuteTool,
                tool: Some(facts(&same)),
                ..span(number + 2, number, (start, start + 1_000_000))
            };
            vec![call]
        };
        let traces: Vec<_> = order.iter().map(|number| trace(*number)).collect();
        let mut in_turn = order;
        in_turn.sort_unstable();
        let in_turn: Vec<_> = in_turn.into_iter().map(trace).collect();
        let expected = counted(&in_turn, 1, Duration::from_secs(1));
        prop_assert!(expected.iter().any(|(family, _, sum)| *family == Counter::Loops && *sum == 1), "{:?}", expected);
        prop_assert_eq!(counted(&traces, shards, Duration::from_secs(pause)), expected);
    }
}
