//! Loops within a trace, over chains of traces, and outputs that repeat from one trace to the next.

use proptest::prelude::*;

use super::record::TraceRecord;
use super::*;
use crate::facts::{AgentParts, TurnStart};

#[test]
fn a_repeated_output_is_a_loop_and_a_late_trace_rescores_those_after_it() {
    let mut stage = stage();
    stage.handle(trace(2, 20).output(&[7]).done(), at(30));
    stage.handle(trace(3, 30).output(&[8]).done(), at(31));
    let loops = |stage: &Sessions| {
        let view = stage.session("", "s").unwrap();
        let traces = view.traces.iter();
        traces
            .map(|trace| {
                trace.loops.iter().map(|found| found.trace_ids.clone()).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let none: Vec<Vec<Vec<String>>> = vec![vec![], vec![]];
    assert_eq!(loops(&stage), none);
    stage.handle(trace(1, 10).output(&[8]).done(), at(32));
    let found: Vec<Vec<Vec<String>>> = vec![vec![], vec![], vec![vec![hex(1), hex(3)]]];
    assert_eq!(loops(&stage), found);
    let update = only(stage.drain());
    // A trace before it may still change what it repeats.
    assert_eq!(counter(&update, Counter::Loops, &["output_repeat"]), 0);
    stage.handle(trace(3, 30).revision(2).sealed(), at(600));
    stage.handle(trace(3, 30).revision(3).sealed(), at(600));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::Loops, &["output_repeat"]), 1);
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["loop_detection", "fail"]), 1);
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["loop_detection", "pass"]), 2);
    assert_eq!(counter(&update, Counter::TraceEvaluations, &["coherence", "skipped"]), 3);
}

#[test]
fn a_repeated_output_counts_when_its_session_goes() {
    let options = SessionOptions { max_sessions: 1, ..SessionOptions::default() };
    let mut stage = stage_of(options, AgentOptions::default());
    for id in [1, 2] {
        stage.handle(trace(id, 10 * u64::from(id)).output(&[8]).done(), at(30));
    }
    stage.handle(trace(3, 30).session("other").output(&[9]).done(), at(31));
    assert_eq!(counter(&only(stage.drain()), Counter::Loops, &["output_repeat"]), 1);
}

#[test]
fn a_loop_counts_in_flight_and_goes_on_until_it_was_quiet() {
    let mut stage = stage();
    stage.handle(trace(1, 10).looping(3, Severity::Warning), at(20));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::LoopsDetected, &["exact_repeat", "warning", "full"]), 1);
    assert_eq!(counter(&update, Counter::Tokens, &["input"]), 0);
    assert_eq!(looping(&update), [("warning", 1)]);
    stage.handle(trace(1, 10).revision(2).looping(10, Severity::Critical), at(40));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::LoopsDetected, &["exact_repeat", "warning", "full"]), 1);
    assert_eq!(counter(&update, Counter::LoopsDetected, &["exact_repeat", "critical", "full"]), 1);
    assert_eq!(counter(&update, Counter::Loops, &["exact_repeat"]), 1);
    assert_eq!(looping(&update), [("critical", 1)]);
    // Not grown: the hold runs from 40 s.
    stage.handle(trace(1, 10).revision(3).looping(10, Severity::Critical), at(60));
    stage.handle_timeout(at(339));
    assert_eq!(looping(&only(stage.drain())), [("critical", 1)]);
    stage.handle_timeout(at(340));
    assert_eq!(looping(&only(stage.drain())), []);
}

#[test]
fn a_session_with_loops_of_two_kinds_counts_once_and_each_kind_by_itself() {
    let repeats =
        |id, revision, count| trace(id, 10).revision(revision).looping(count, Severity::Warning);
    let cycles = |id, revision, count| {
        let mut update = repeats(id, revision, count);
        update.loops[0].kind = LoopKind::Cycle;
        update
    };
    for swapped in [false, true] {
        let mut stage = stage();
        let mut both = [repeats(1, 1, 3), cycles(2, 1, 3)];
        if swapped {
            both.reverse();
        }
        for update in both {
            stage.handle(update, at(20));
            assert_eq!(only(stage.drain()).looping, 1);
        }
        stage.handle(trace(3, 10).session("other").looping(3, Severity::Warning), at(20));
        let update = only(stage.drain());
        let by_kind: Vec<_> = update.sessions_looping.iter().map(|(of, n)| (of.kind, *n)).collect();
        assert_eq!(by_kind, [(LoopKind::ExactRepeat, 2), (LoopKind::Cycle, 1)]);
        assert_eq!(update.looping, 2);
        // One kind of it continues for longer than the other.
        stage.handle(cycles(2, 2, 4), at(200));
        stage.handle_timeout(at(320));
        let update = only(stage.drain());
        assert_eq!((update.sessions_looping.len(), update.looping), (1, 1));
        stage.handle_timeout(at(500));
        let update = only(stage.drain());
        assert_eq!((update.sessions_looping.len(), update.looping), (0, 0));
    }
}

#[test]
fn an_agent_of_which_a_session_begins_to_run_away_is_told_before_others() {
    let mut stage = stage();
    let of_other = |update: TraceFacts| TraceFacts {
        agent: Some(AgentParts { service_name: "other".into(), ..AgentParts::default() }.into()),
        ..update
    };
    stage.handle(of_other(trace(1, 10).session("t").done()), at(20));
    assert!(!stage.is_urgent());
    stage.handle(trace(2, 10).looping(3, Severity::Warning), at(20));
    assert!(stage.is_urgent());
    assert_eq!(looping(&only(stage.drain_urgent(10))), [("warning", 1)]);
    assert!(!stage.is_urgent() && stage.drain_urgent(10).is_empty());
    // A running loop is sent with the rest.
    stage.handle(trace(2, 10).revision(2).looping(4, Severity::Warning), at(21));
    assert!(!stage.is_urgent());
    assert_eq!(stage.drain().len(), 2);
    // So is what became worse, if that comes first.
    stage.handle(trace(2, 10).revision(3).looping(10, Severity::Critical), at(22));
    assert!(stage.is_urgent());
    assert_eq!(looping(&only(stage.drain())), [("critical", 1)]);
    assert!(!stage.is_urgent());
}

#[test]
fn a_critical_loop_counts_the_same_seen_at_once_or_step_by_step() {
    let mut stage = stage();
    stage.handle(trace(1, 10).looping(10, Severity::Critical).done(), at(20));
    let update = only(stage.drain());
    assert_eq!(counter(&update, Counter::LoopsDetected, &["exact_repeat", "warning", "full"]), 1);
    assert_eq!(counter(&update, Counter::LoopsDetected, &["exact_repeat", "critical", "full"]), 1);
    assert_eq!(counter(&update, Counter::LoopWastedTokens, &["input", "full"]), 5);
    assert_eq!(looping(&update), [("critical", 1)]);
}

#[test]
fn a_critical_loop_is_seen_for_five_minutes_however_short_it_was() {
    for seconds in [1, 12, 300] {
        let mut stage = stage();
        // Twelve calls, each told as it comes; with the last of them the trace is done.
        let arrival = |call: u64| Timestamp(at(100).0 + seconds * 1_000_000_000 / 12 * call);
        let mut told = Vec::new();
        for call in 3..=12 {
            let severity = if call < 10 { Severity::Warning } else { Severity::Critical };
            let update = trace(1, 10).revision(call).looping(call, severity);
            let update = TraceFacts { touched_unix_nano: arrival(call).0, ..update };
            stage.handle(update.clone(), arrival(call));
            told.extend(stage.runaways().into_iter().map(|(_, cause, _)| cause.severity()));
            stage.drain();
            if call == 12 {
                stage
                    .handle(update.revision(13).done(), arrival(12).after(Duration::from_secs(10)));
            }
        }
        assert_eq!(told, [Severity::Warning, Severity::Critical], "{seconds} s");
        assert_eq!(stage.runaways(), []);
        let end = arrival(12).after(Duration::from_secs(300));
        stage.handle_timeout(Timestamp(end.0 - 1));
        let update = only(stage.drain());
        assert_eq!(looping(&update), [("critical", 1)], "{seconds} s");
        stage.handle_timeout(end);
        assert_eq!(looping(&only(stage.drain())), [], "{seconds} s");
    }
}

#[test]
fn a_loop_that_comes_with_its_whole_trace_is_seen_and_told() {
    let mut stage = stage();
    stage.handle(trace(1, 10).looping(12, Severity::Critical).done(), at(20));
    let told: Vec<Severity> =
        stage.runaways().into_iter().map(|(_, cause, _)| cause.severity()).collect();
    assert_eq!(told, [Severity::Critical]);
    // A second one that began later is seen for longer, in the same series.
    stage.handle(trace(2, 30).looping(12, Severity::Critical).done(), at(40));
    stage.handle_timeout(at(339));
    assert_eq!(looping(&only(stage.drain())), [("critical", 1)]);
    stage.handle_timeout(at(340));
    assert_eq!(looping(&only(stage.drain())), []);
}

#[test]
fn a_loop_of_names_alone_moves_nothing() {
    let mut stage = stage();
    let mut named = trace(1, 10).looping(20, Severity::Warning).done();
    named.loops[0].evidence = Evidence::Names;
    stage.handle(named.clone(), at(20));
    assert_eq!(stage.runaways(), []);
    let update = only(stage.drain());
    let detected = |update: &SessionFacts, evidence| {
        counter(update, Counter::LoopsDetected, &["exact_repeat", "warning", evidence])
    };
    assert_eq!((detected(&update, "names"), detected(&update, "full")), (1, 0));
    assert_eq!(counter(&update, Counter::LoopWastedTokens, &["input", "names"]), 0);
    assert_eq!(looping(&update), [("warning", 1)], "it is shown, apart");
    assert!(update.sessions_looping.keys().all(|labels| labels.evidence == Evidence::Names));
    assert_eq!(update.done_traces[0].looped, Some(false));
    let view = stage.session("", "s").unwrap();
    assert_eq!(view.traces[0].loops.len(), 1);
    assert_eq!(view.traces[0].signals["tool_loop"].score.to_bits(), 1.0_f64.to_bits());
    let explained = stage.explain(("", "s", None), TraceId([1; 16]), &NoSessionStore).unwrap();
    assert_eq!(explained.loops[0].without, explained.now);
    // Arguments come later: it is more than names, and weighs.
    let mut known = TraceFacts { loops: named.loops, ..trace(1, 10).revision(2).done() };
    known.loops[0].evidence = Evidence::Arguments;
    stage.handle(known, at(30));
    let update = only(stage.drain());
    assert_eq!((detected(&update, "names"), detected(&update, "arguments")), (1, 1));
    assert_eq!(counter(&update, Counter::LoopWastedTokens, &["input", "arguments"]), 5);
    assert_eq!(stage.runaways().len(), 1);
}

#[test]
fn a_loop_counts_once_though_its_results_are_told_later() {
    let mut stage = stage();
    let told = |revision: u64, evidence: Evidence, count: u64| {
        let mut update = trace(1, 10).revision(revision).looping(count, Severity::Warning);
        update.loops[0].evidence = evidence;
        update
    };
    let steps = [(Evidence::Arguments, 3), (Evidence::Full, 4), (Evidence::Arguments, 5)];
    for (revision, (evidence, count)) in (1..).zip(steps) {
        stage.handle(told(revision, evidence, count), at(20));
    }
    let update = only(stage.drain());
    let detected =
        |evidence| counter(&update, Counter::LoopsDetected, &["exact_repeat", "warning", evidence]);
    assert_eq!((detected("arguments"), detected("full")), (1, 0));
    assert_eq!(counter(&update, Counter::LoopWastedTokens, &["input", "arguments"]), 5);
    assert_eq!(counter(&update, Counter::LoopWastedTokens, &["input", "full"]), 0);
}

#[test]
fn what_is_called_again_after_a_compaction_is_no_repeat_over_traces_either() {
    let loops = |compacted: &[u64]| {
        let mut stage = stage();
        for (id, second) in [(1, 10), (2, 20), (3, 30), (4, 40)] {
            let remarks = Remarks { compacted_unix_nano: compacted.to_vec(), ..Remarks::default() };
            let update = TraceFacts {
                tools: vec![call(second)],
                turn_start: TurnStart::Continued,
                remarks: (id == 3).then(|| Box::new(remarks)),
                ..trace(id, second).done()
            };
            stage.handle(update, at(50));
        }
        let view = stage.session("", "s").unwrap();
        view.traces.iter().map(|trace| trace.loops.len()).sum::<usize>()
    };
    assert_eq!((loops(&[]), loops(&[at(29).0])), (1, 0));
    // Three before it are a loop of their own.
    assert_eq!(loops(&[at(35).0]), 1);
}

/// The places of the calls of each loop of a trace, as they are shown.
fn shown(stage: &Sessions, trace: u8) -> Vec<Vec<(String, u64)>> {
    let explained = stage.explain(("", "s", None), TraceId([trace; 16]), &NoSessionStore).unwrap();
    let loops = explained.loops.into_iter();
    loops
        .map(|found| {
            let calls = found.calls.into_iter();
            calls.map(|call| (call.trace_id[..2].to_owned(), call.index)).collect()
        })
        .collect()
}

#[test]
fn a_loop_shows_its_own_calls_and_not_those_of_an_equal_one() {
    let mut stage = stage();
    let other = ToolCall { name: Arc::from("other"), ..call(20) };
    let tools = [vec![call(11); 3], vec![other], vec![call(30); 3]].concat();
    let found = |first| Loop {
        tools: vec![Arc::from("search")],
        trace_ids: vec![TraceId([1; 16])],
        calls: Some((first, first + 2)),
        ..trace(1, 10).looping(3, Severity::Warning).loops.remove(0)
    };
    let loops = vec![found(0), found(4)];
    stage.handle(TraceFacts { tools, loops, ..trace(1, 10).done() }, at(50));
    let of = |places: [u64; 3]| places.map(|at| ("01".to_owned(), at)).to_vec();
    assert_eq!(shown(&stage, 1), [of([0, 1, 2]), of([4, 5, 6])]);
}

#[test]
fn a_loop_over_traces_has_calls_of_a_sub_agent_between_its_own() {
    let mut stage = stage();
    for (id, second) in [(1, 10), (2, 20), (3, 30)] {
        let own = ToolCall { end_unix_nano: at(second + 5).0, ..call(second) };
        let inner = |after| ToolCall { within: Some(7), ..call(second + after) };
        let turn_start = TurnStart::Continued;
        let mut tools = vec![own, inner(1), inner(2)];
        // A loop of the sub-agent in one of them.
        tools.extend((id == 2).then(|| inner(3)));
        stage.handle(TraceFacts { tools, turn_start, ..trace(id, second).done() }, at(50));
    }
    let of = |calls: [(&str, u64); 3]| calls.map(|(id, at)| (id.to_owned(), at)).to_vec();
    let own = of([("01", 0), ("02", 0), ("03", 0)]);
    assert_eq!(shown(&stage, 3), std::slice::from_ref(&own));
    assert_eq!(shown(&stage, 2), [of([("02", 1), ("02", 2), ("02", 3)]), own]);
}

#[test]
fn a_chain_that_is_looked_at_in_parts_is_counted() {
    let cuts = |max_traces: usize| {
        let loops = LoopOptions { max_traces, ..LoopOptions::default() };
        let mut stage = Sessions::new(3, SessionOptions::default(), loops, AgentOptions::default());
        for (id, second) in [(1, 10), (2, 20), (3, 30)] {
            let turn_start = TurnStart::Continued;
            stage.handle(TraceFacts { turn_start, ..trace(id, second).done() }, at(50));
        }
        stage.counts().get("loop_chains", "cut")
    };
    assert_eq!([3, 2].map(cuts), [0, 1]);
}

/// A trace that continues the previous one with the same call.
fn step(id: u8) -> TraceFacts {
    let second = 10 * u64::from(id);
    let (tools, turn_start) = (vec![call(second)], TurnStart::Continued);
    TraceFacts { tools, turn_start, ..trace(id, second).tokens(7, 3).done() }
}

/// What loops have counted: how many there are, those that were warnings, those that were critical, and what was wasted.
fn counted(stage: &mut Sessions) -> [u64; 5] {
    let updates = stage.drain();
    let of = |family, labels: &[&str]| -> u64 {
        updates.iter().map(|update| counter(update, family, labels)).sum()
    };
    [
        of(Counter::Loops, &["exact_repeat"]),
        of(Counter::LoopsDetected, &["exact_repeat", "warning", "full"]),
        of(Counter::LoopsDetected, &["exact_repeat", "critical", "full"]),
        of(Counter::LoopWastedTokens, &["input", "full"]),
        of(Counter::LoopWastedTokens, &["output", "full"]),
    ]
}

#[test]
fn a_loop_over_traces_counts_once_though_its_first_trace_comes_last() {
    let counted = |order: [u8; 6]| {
        let mut stage = stage();
        order.into_iter().for_each(|id| stage.handle(step(id), at(100)));
        counted(&mut stage)
    };
    let in_turn = counted([1, 2, 3, 4, 5, 6]);
    assert_eq!(in_turn[..3], [1, 1, 0]);
    assert_eq!(counted([2, 3, 4, 5, 6, 1]), in_turn);
}

#[test]
fn a_loop_over_traces_counts_once_though_its_first_trace_goes_to_another_session() {
    let mut stage = stage();
    (1..7).for_each(|id| stage.handle(step(id), at(100)));
    let before = counted(&mut stage);
    let left = trace(1, 10).revision(2);
    stage.handle(TraceFacts { tombstone: true, ..left }, at(101));
    stage.handle(step(1).revision(3).session("other"), at(101));
    stage.handle(step(7), at(102));
    let [loops, warnings, _, input, _] = counted(&mut stage);
    assert_eq!([loops, warnings, input], [1, 1, before[3]], "as many calls as before");
    stage.handle(step(8), at(103));
    assert_eq!(counted(&mut stage)[3], before[3] + 7);
}

#[test]
fn a_loop_that_a_late_trace_cuts_in_two_has_wasted_no_more_for_it() {
    let other = |id| TraceFacts { turn_start: TurnStart::Asked, ..step(id) };
    let counted = |order: [u8; 7]| {
        let mut stage = stage();
        for id in order {
            stage.handle(if id == 4 { other(id) } else { step(id) }, at(100));
        }
        counted(&mut stage)
    };
    let [in_turn, late] = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 5, 6, 7, 4]].map(counted);
    assert_eq!((in_turn[0], in_turn), (2, late));
}

proptest! {
    #[test]
    fn loops_over_traces_count_the_same_in_whatever_order_these_come(
        order in prop::collection::btree_set(1_u8..20, 1..16)
            .prop_flat_map(|ids| Just(ids.into_iter().collect::<Vec<_>>()).prop_shuffle()),
        max_traces in 1_usize..20,
        drains in any::<u32>(),
    ) {
        let loops = LoopOptions { max_traces, ..LoopOptions::default() };
        let counted = |order: &[u8], drains: u32| {
            let (options, agents) = (SessionOptions::default(), AgentOptions::default());
            let mut stage = Sessions::new(3, options, loops.clone(), agents);
            for (number, id) in order.iter().enumerate() {
                stage.handle(step(*id), at(100));
                if drains >> number & 1 == 1 {
                    stage.handle_timeout(at(100));
                    stage.drain();
                }
            }
            stage.finish(at(100));
            counted(&mut stage)
        };
        let mut in_turn = order.clone();
        in_turn.sort_unstable();
        prop_assert_eq!(counted(&order, drains), counted(&in_turn, 0));
    }

    #[test]
    fn chains_in_parts_are_kept_as_a_search_anew_finds_them(
        steps in prop::collection::vec((1_u8..14, 1_u64..20, 0_u8..4, any::<bool>()), 1..60),
        max_traces in 1_usize..5,
    ) {
        let loops = LoopOptions { max_traces, ..LoopOptions::default() };
        let (options, agents) = (SessionOptions::default(), AgentOptions::default());
        let mut stage = Sessions::new(3, options, loops.clone(), agents);
        for (revision, (id, second, kind, ends)) in (1..).zip(steps) {
            let turn_start = if kind == 0 { TurnStart::Asked } else { TurnStart::Continued };
            let facts = trace(id, second).revision(revision);
            let update = TraceFacts { tools: vec![call(second)], turn_start, ..facts };
            let update = TraceFacts { tombstone: kind == 3, ..update };
            stage.handle(if ends { update.done() } else { update }, at(50));
            for session in stage.sessions.iter() {
                let records: Vec<&TraceRecord> = session.traces.iter().collect();
                for chain in records.chunk_by(|before, after| chain::goes_on(before, after)) {
                    for part in chain.chunks(max_traces) {
                        let anew = if part.len() > 1 {
                            chain::links(part, &loops).into_iter().map(Some).collect()
                        } else {
                            vec![None; part.len()]
                        };
                        for (record, link) in part.iter().zip(anew) {
                            prop_assert_eq!(record.rare().link.as_deref(), link.as_ref());
                        }
                    }
                }
            }
        }
    }
}

/// A call that is the same wherever it is made.
fn call(second: u64) -> ToolCall {
    ToolCall {
        name: Arc::from("search"),
        arguments_hash: Some(1),
        result_hash: Some(1),
        start_unix_nano: at(second).0,
        end_unix_nano: at(second).0 + 1,
        ..ToolCall::default()
    }
}
