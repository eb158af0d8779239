use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::span::Values;

fn call(at: u64, name: &str, arguments: Option<u64>, result: Option<u64>) -> ToolCall {
    ToolCall {
        name: Arc::from(name),
        arguments_hash: arguments,
        argument_values: arguments.into_iter().collect(),
        result_hash: result,
        error: Some(false),
        start_unix_nano: at * 10 + 1,
        end_unix_nano: at * 10 + 6,
        ..ToolCall::default()
    }
}

fn calls(list: &[(&str, Option<u64>, Option<u64>)]) -> Vec<ToolCall> {
    (0..)
        .zip(list)
        .map(|(at, (name, arguments, result))| call(at, name, *arguments, *result))
        .collect()
}

/// Kind, first call, calls, count, evidence of each loop.
fn found(calls: &[ToolCall]) -> Vec<(&'static str, usize, usize, u64, &'static str)> {
    let found = find(calls, &[], &LoopOptions::default()).into_iter();
    found
        .map(|found| {
            let Found { calls, entry, .. } = found;
            (entry.kind.name(), calls.start, calls.len(), entry.count, entry.evidence.name())
        })
        .collect()
}

fn one(
    kind: &'static str,
    first: usize,
    calls: usize,
    count: u64,
    evidence: &'static str,
) -> Vec<(&'static str, usize, usize, u64, &'static str)> {
    vec![(kind, first, calls, count, evidence)]
}

#[test]
fn equal_calls_in_a_row_are_a_loop_from_three() {
    let list = calls(&[("f", Some(1), Some(2)); 4]);
    assert_eq!(found(&list), one("exact_repeat", 0, 4, 4, "full"));
    assert_eq!(found(&list[..3]), one("exact_repeat", 0, 3, 3, "full"));
    assert_eq!(found(&list[..2]), []);
}

#[test]
fn calls_that_are_told_something_else_in_the_end_have_waited_for_it() {
    let pending = [("status", Some(1), Some(1)); 12];
    let then = |last| found(&calls(&[&pending[..], &[last]].concat()));
    assert_eq!(then(("status", Some(1), Some(2))), []);
    let stuck = one("exact_repeat", 0, 12, 12, "full");
    assert_eq!(then(("status", Some(2), Some(2))), stuck, "something else was asked");
    assert_eq!(then(("other", Some(1), Some(2))), stuck);
    let again = [[("status", Some(1), Some(2)); 4], [("status", Some(1), Some(3)); 4]].concat();
    let list = calls(&[&pending[..], &again].concat());
    assert_eq!(
        found(&list),
        one("exact_repeat", 16, 4, 4, "full"),
        "nothing came of the last ones"
    );
    let mut failed = calls(&[&pending[..], &[("status", Some(1), Some(2))]].concat());
    failed[12].error = Some(true);
    assert_eq!(found(&failed), stuck, "it broke off");
    // Nor is a wait in which something else is called in between.
    let slept = [("status", Some(1), Some(1)), ("sleep", Some(30), Some(9))].repeat(10);
    let list = calls(&[&slept[..], &[("status", Some(1), Some(2))]].concat());
    assert_eq!(found(&list), []);
    let list = calls(&[&slept[..], &[slept[0], slept[1], ("status", Some(1), Some(2))]].concat());
    assert_eq!(found(&list), []);
    assert_eq!(found(&calls(&slept)), one("cycle", 0, 20, 10, "full"));
}

#[test]
fn a_changing_result_is_polling() {
    let list: Vec<_> = (0..6).map(|at| call(at, "f", Some(1), Some(at))).collect();
    assert_eq!(found(&list), []);
    // A cycle too: wait, ask, wait, ask.
    let list: Vec<_> = (0..12)
        .map(|at| {
            if at % 2 == 0 {
                call(at, "wait", Some(1), Some(1))
            } else {
                call(at, "f", Some(2), Some(at))
            }
        })
        .collect();
    assert_eq!(found(&list), []);
}

#[test]
fn time_is_progress_where_a_result_is_not_on_the_wire_and_it_is_no_jitter() {
    let timed = |took: &[u64], result: Option<u64>| -> Vec<ToolCall> {
        let one = |(at, took): (u64, &u64)| ToolCall {
            start_unix_nano: at * 100_000_000_000,
            end_unix_nano: at * 100_000_000_000 + took,
            timed: true,
            ..call(at, "f", Some(1), result)
        };
        (0..).zip(took).map(one).collect()
    };
    let (micro, milli, second) = (1_000, 1_000_000, 1_000_000_000);
    let waits = [second, 2 * second, 4 * second, 8 * second];
    assert_eq!(found(&timed(&waits, None)), []);
    assert_eq!(found(&timed(&waits, Some(1))), one("exact_repeat", 0, 4, 4, "full"));
    for jitter in [
        [micro, 9 * micro, 2 * micro, 40 * micro],
        [90 * milli, 400 * milli, 900 * milli, 80 * milli],
        [6 * second, 7 * second, 11 * second, 8 * second],
    ] {
        assert_eq!(found(&timed(&jitter, None)), one("exact_repeat", 0, 4, 4, "arguments"));
    }
    // The time of the model call that asked for it says nothing of a call.
    let mut list = timed(&waits, None);
    list.iter_mut().for_each(|call| call.timed = false);
    assert_eq!(found(&list), one("exact_repeat", 0, 4, 4, "arguments"));
}

#[test]
fn a_tool_that_may_be_called_again_and_again_is_in_no_loop_of_its_own() {
    let options = LoopOptions {
        allow: vec!["poll_*".to_owned(), "wait".to_owned()],
        ..LoopOptions::default()
    };
    let (poll, wait, other) =
        (("poll_job", Some(1), Some(1)), ("wait", Some(1), Some(1)), ("search", Some(1), Some(1)));
    let loops = |list: &[(&str, Option<u64>, Option<u64>)]| find(&calls(list), &[], &options).len();
    assert_eq!(loops(&[poll; 20]), 0);
    assert_eq!(loops(&[poll, wait].repeat(10)), 0);
    // Another tool goes round with it.
    assert_eq!(loops(&[poll, other].repeat(3)), 1);
    assert_eq!(loops(&[("poll", Some(1), Some(1)); 3]), 1);
    let mut failing = calls(&[poll; 20]);
    failing.iter_mut().for_each(|call| call.error = Some(true));
    assert_eq!(find(&failing, &[], &options).len(), 0);
}

#[test]
fn a_long_run_that_is_no_loop_is_not_followed_from_each_of_its_calls() {
    // Minutes, were it.
    let allow = LoopOptions { allow: vec!["wait".to_owned()], ..LoopOptions::default() };
    let never = Thresholds { warning: u64::MAX, critical: u64::MAX };
    let kinds = [LoopKind::ExactRepeat, LoopKind::NearRepeat, LoopKind::Cycle];
    let off = LoopOptions { by_kind: kinds.map(|kind| (kind, never)).into(), ..allow.clone() };
    let other = [("search", Some(1), Some(1)); 3];
    let waits = vec![("wait", Some(1), Some(1)); 50_000];
    let polls = vec![("poll", Some(1), Some(1)); 50_000];
    assert_eq!(find(&calls(&[&other[..], &waits].concat()), &[], &allow).len(), 1);
    assert_eq!(find(&calls(&[&other[..], &polls].concat()), &[], &off).len(), 0);
}

#[test]
fn one_retry_is_a_retry_and_failures_in_a_row_are_a_loop() {
    let failing = |errors: &[bool]| -> Vec<ToolCall> {
        let fail = |(at, error): (u64, &bool)| ToolCall {
            error: Some(*error),
            ..call(at, "f", Some(at), None)
        };
        (0..).zip(errors).map(fail).collect()
    };
    assert_eq!(found(&failing(&[true, true, false])), []);
    assert_eq!(found(&failing(&[true, true, true])), one("error_retry", 0, 3, 3, "arguments"));
    // The same arguments make it no exact repeat: the tool keeps refusing.
    let mut list = calls(&[("f", Some(1), Some(2)); 3]);
    list[1].error = Some(true);
    assert_eq!(found(&list), []);
}

#[test]
fn failures_without_arguments_take_nothing_from_those_with_arguments() {
    let failing = |known: &[bool]| -> Vec<ToolCall> {
        let fail = |(at, known): (u64, &bool)| ToolCall {
            error: Some(true),
            ..call(at, "f", known.then_some(at), None)
        };
        (0..).zip(known).map(fail).collect()
    };
    let loops = |known: &[bool]| -> Vec<(&'static str, Severity, u64)> {
        let found = find(&failing(known), &[], &LoopOptions::default()).into_iter();
        found
            .map(|Found { entry, .. }| (entry.evidence.name(), entry.severity, entry.count))
            .collect()
    };
    let (twelve, nine) = ([true; 12], [false; 9]);
    assert_eq!(loops(&[&twelve[..], &[false]].concat()), [("arguments", Severity::Critical, 13)]);
    assert_eq!(loops(&[&[false], &twelve[..]].concat()), [("arguments", Severity::Critical, 13)]);
    assert_eq!(loops(&[true, true, false, true]), [("arguments", Severity::Warning, 4)]);
    // Only those with arguments may be critical.
    assert_eq!(loops(&[&nine[..], &[true; 3]].concat()), [("arguments", Severity::Warning, 12)]);
    assert_eq!(loops(&[&nine[..], &[true; 2]].concat()), [("names", Severity::Warning, 11)]);
    assert_eq!(loops(&[true, true, false, false]), []);
}

#[test]
fn parallel_calls_are_no_loop() {
    for kind in [["f", "f", "f", "f", "f", "f"], ["f", "g", "f", "g", "f", "g"]] {
        let mut list: Vec<_> =
            (0..).zip(kind).map(|(at, name)| call(at, name, Some(1), Some(2))).collect();
        list.iter_mut().for_each(|call| call.end_unix_nano = 1_000);
        assert_eq!(found(&list), []);
        list.iter_mut().for_each(|call| call.error = Some(true));
        assert_eq!(found(&list), []);
    }
}

#[test]
fn calls_at_the_same_time_are_one_step_of_a_loop() {
    let round = |at: u64, calls: [(&str, u64, u64); 2]| {
        calls.map(|(name, start, took)| ToolCall {
            start_unix_nano: at * 100 + start,
            end_unix_nano: at * 100 + start + took,
            ..call(0, name, Some(1), Some(2))
        })
    };
    let rounds = |calls: [(&str, u64, u64); 2]| -> Vec<ToolCall> {
        (0..4).flat_map(|at| round(at, calls)).collect()
    };
    let both = rounds([("f", 1, 20), ("g", 3, 50)]);
    assert_eq!(found(&both), one("cycle", 0, 8, 4, "full"));
    let tools =
        |calls: &[ToolCall]| find(calls, &[], &LoopOptions::default())[0].entry.tools.clone();
    assert_eq!(tools(&both), ["f", "g"].map(Arc::from));
    assert_eq!(tools(&rounds([("g", 1, 20), ("f", 3, 50)])), ["f", "g"].map(Arc::from));
    let twice = rounds([("f", 1, 20), ("f", 3, 50)]);
    assert_eq!(found(&twice), one("exact_repeat", 0, 8, 4, "full"));
    assert_eq!(tools(&twice), ["f"].map(Arc::from));
    // Two rounds are none, though the tool was called four times.
    assert_eq!(found(&twice[..4]), []);
    // A call beside all of them is a step by itself.
    let mut beside = twice;
    let long = ToolCall { end_unix_nano: 1_000, ..call(0, "h", Some(1), Some(2)) };
    beside.insert(0, long);
    assert_eq!(found(&beside), one("exact_repeat", 1, 8, 4, "full"));
}

#[test]
fn unknown_tools_are_never_equal() {
    assert_eq!(found(&calls(&[("", Some(1), None); 12])), []);
    assert_eq!(found(&calls(&[("", Some(1), None), ("g", Some(1), None)].repeat(6))), []);
}

#[test]
fn what_is_not_on_the_wire_lowers_the_evidence() {
    assert_eq!(found(&calls(&[("f", None, None); 4])), []);
    assert_eq!(found(&calls(&[("f", None, None); 20])), one("exact_repeat", 0, 20, 20, "names"));
    // Results make it more than names; arguments may differ nevertheless.
    assert_eq!(found(&calls(&[("f", None, Some(1)); 4])), []);
    let list = calls(&[("f", None, Some(1)); 20]);
    assert_eq!(found(&list), one("exact_repeat", 0, 20, 20, "results"));
    let polled: Vec<_> = (0..20).map(|at| call(at, "f", None, Some(at))).collect();
    assert_eq!(found(&polled), []);
    let severity = |list: &[ToolCall]| find(list, &[], &LoopOptions::default())[0].entry.severity;
    assert_eq!(severity(&calls(&[("f", None, None); 20])), Severity::Warning);
    assert_eq!(severity(&list), Severity::Warning);
    assert_eq!(severity(&calls(&[("f", Some(1), None); 20])), Severity::Critical);
    let list = calls(&[
        ("f", Some(1), Some(1)),
        ("f", Some(1), None),
        ("f", Some(1), Some(1)),
        ("f", Some(2), Some(2)),
    ]);
    assert_eq!(found(&list), one("exact_repeat", 0, 3, 3, "arguments"));
}

#[test]
fn a_result_that_is_yet_to_come_takes_nothing_from_those_that_came() {
    let known = calls(&[("f", None, Some(2)); 12]);
    let with_last = |name| [&*known, &[call(12, name, None, None)]].concat();
    assert_eq!(found(&known), one("exact_repeat", 0, 12, 12, "results"));
    assert_eq!(found(&with_last("f")), one("exact_repeat", 0, 13, 13, "results"));
    // Too few with results.
    let few = [&known[8..], &with_last("f")[12..]].concat();
    assert_eq!(found(&few), one("exact_repeat", 0, 5, 5, "names"));
    let mut cycle = calls(&[("f", None, Some(1)), ("g", None, Some(2))].repeat(10));
    assert_eq!(found(&cycle), one("cycle", 0, 20, 10, "results"));
    cycle.extend([call(20, "f", None, None), call(21, "g", None, None)]);
    assert_eq!(found(&cycle), one("cycle", 0, 22, 11, "results"));
}

#[test]
fn nearly_equal_arguments_with_one_result_are_a_loop() {
    let near = |at: u64, result| near(at, at % 2, result);
    let list: Vec<_> = (0..4).map(|at| near(at, Some(1))).collect();
    // The second call has a value of its own.
    assert_eq!(found(&list), one("near_repeat", 1, 3, 3, "full"));
    let list: Vec<_> = (0..4).map(|at| near(at, Some(at))).collect();
    assert_eq!(found(&list), []);
    let list: Vec<_> = (0..3).map(|at| call(at, "f", Some(at), Some(1))).collect();
    assert_eq!(found(&list), []);
}

/// A call with twenty values; one of them may differ from those of the others.
fn near(at: u64, value: u64, result: Option<u64>) -> ToolCall {
    let values: Vec<u64> = [value].into_iter().chain(100..119).collect();
    ToolCall { argument_values: values.into(), ..call(at, "f", Some(value), result) }
}

#[test]
fn to_go_on_from_one_value_to_the_next_is_no_loop() {
    let calls = |values: &[u64], result| -> Vec<ToolCall> {
        (0..).zip(values).map(|(at, value)| near(at, *value, result)).collect()
    };
    let pages: Vec<u64> = (0..20).collect();
    for result in [Some(1), None] {
        assert_eq!(found(&calls(&pages, result)), []);
        // A page that is read again is no loop, wherever it comes.
        assert_eq!(found(&calls(&[0, 1, 2, 2, 3, 4, 3, 5, 6, 7, 8, 9, 10], result)), []);
    }
    // Where it then goes back and forth, that is one.
    let back = [0, 1, 2, 3, 4, 3, 4, 3, 4];
    assert_eq!(found(&calls(&back, Some(1))), one("near_repeat", 4, 5, 5, "full"));
    // In rounds of calls at the same time.
    let round = |at: u64, values: [u64; 2]| {
        values.map(|value| ToolCall { end_unix_nano: at * 10 + 6, ..near(at, value, Some(1)) })
    };
    let rounds: Vec<ToolCall> = (0..6).flat_map(|at| round(at, [2 * at, 2 * at + 1])).collect();
    assert_eq!(found(&rounds), []);
    let again: Vec<ToolCall> = [[0, 1], [2, 1], [0, 3], [2, 3], [0, 3]]
        .into_iter()
        .zip(0..)
        .flat_map(|(values, at)| round(at, values))
        .collect();
    assert_eq!(found(&again), one("near_repeat", 4, 6, 3, "full"));
}

#[test]
fn a_cycle_counts_full_periods() {
    let cycle = [("a", Some(1), Some(1)), ("b", Some(2), Some(2)), ("b", Some(3), None)];
    let mut list = calls(&cycle.repeat(4));
    list.truncate(11);
    assert_eq!(found(&list), one("cycle", 0, 9, 3, "arguments"));
    list.truncate(8);
    assert_eq!(found(&list), []);
    let tools = find(&calls(&cycle.repeat(4)), &[], &LoopOptions::default())[0].entry.tools.clone();
    assert_eq!(tools, ["a", "b", "b"].map(Arc::from));
}

#[test]
fn a_cycle_is_found_whatever_comes_before_it() {
    // Two periods of (a, b) are no loop and must not hide three of (a, b, c).
    let (a, b, c) = (("a", Some(1), Some(1)), ("b", Some(2), Some(2)), ("c", Some(3), Some(3)));
    let list = calls(&[a, b, a, b, c, a, b, c, a, b, c]);
    assert_eq!(found(&list), one("cycle", 2, 9, 3, "full"));
}

#[test]
fn one_run_gives_one_entry_and_its_neighbours_give_theirs() {
    let (a, b) = (("a", Some(1), Some(1)), ("b", Some(2), Some(2)));
    let list = calls(&[a, b, a, b, a, b, b, b]);
    // The first kind that fits takes its calls; what is left is too short for another.
    assert_eq!(found(&list), one("exact_repeat", 5, 3, 3, "full"));
    let list = calls(&[a, b, a, b, a, b, a, a, a]);
    let both = [one("cycle", 0, 6, 3, "full"), one("exact_repeat", 6, 3, 3, "full")].concat();
    assert_eq!(found(&list), both);
}

#[test]
fn thresholds_are_per_kind() {
    let mut options = LoopOptions::default();
    options.by_kind.insert(LoopKind::Cycle, Thresholds { warning: 2, critical: 3 });
    let list = calls(&[("a", Some(1), Some(1)), ("b", Some(2), Some(2))].repeat(2));
    assert_eq!(find(&list, &[], &options)[0].entry.severity, Severity::Warning);
    let list = calls(&[("a", Some(1), Some(1)), ("b", Some(2), Some(2))].repeat(3));
    assert_eq!(find(&list, &[], &options)[0].entry.severity, Severity::Critical);
}

/// What a short model call spends that begins at this time.
fn spend(start: u64) -> Spend {
    Spend {
        start: Timestamp(start),
        end: Timestamp(start + 1),
        tokens: Tokens { input: Some(10), output: None, ..Default::default() },
        cost: Some(Quanta(7)),
    }
}

#[test]
fn a_loop_costs_what_its_model_calls_cost() {
    let list = calls(&[("f", Some(1), Some(2)); 3]);
    let spends = [0, 7, 17, 27].map(spend);
    let entry = &find(&list, &spends, &LoopOptions::default())[0].entry;
    let tokens = entry.tokens.unwrap();
    assert_eq!((tokens.input, tokens.output, entry.cost_quanta), (Some(20), None, Some(14)));
}

/// Calls of `f` one after the other, and within each as many calls of `g`: for each its level, name, start and end.
fn nested(outer: u64, inner: u64) -> Vec<ToolCall> {
    let one = |within, name, start, took| ToolCall {
        within,
        start_unix_nano: start,
        end_unix_nano: start + took,
        ..call(0, name, Some(1), Some(2))
    };
    let of = |at: u64| {
        let own = one(None, "f", at * 1_000, 900);
        let within = u32::try_from(at).ok();
        let calls = (1..=inner).map(move |place| one(within, "g", at * 1_000 + place * 10, 5));
        std::iter::once(own).chain(calls)
    };
    (1..=outer).flat_map(of).collect()
}

#[test]
fn calls_within_a_call_follow_one_another_and_no_others() {
    assert_eq!(found(&nested(4, 1)), [("exact_repeat", 0, 7, 4, "full")]);
    // Each in another call.
    assert_eq!(found(&nested(2, 2)), []);
    // A sub-agent that loops, called twice.
    let both = [("exact_repeat", 1, 3, 3, "full"), ("exact_repeat", 5, 3, 3, "full")];
    assert_eq!(found(&nested(2, 3)), both);
    // Two that work at the same time.
    let mut at_once = nested(2, 3);
    for call in &mut at_once {
        call.start_unix_nano %= 1_000;
        call.end_unix_nano %= 1_000;
    }
    at_once.sort_by_key(|call| call.start_unix_nano);
    assert_eq!(
        found(&at_once),
        [("exact_repeat", 2, 5, 3, "full"), ("exact_repeat", 3, 5, 3, "full")]
    );
}

#[test]
fn what_is_spent_in_a_loop_within_a_loop_counts_once() {
    let list = nested(3, 3);
    let spends: Vec<Spend> = list.iter().map(|call| spend(call.start_unix_nano + 5)).collect();
    let found = find(&list, &spends, &LoopOptions::default());
    let spent = |entry: &Loop| (entry.tool.to_string(), entry.cost_quanta.unwrap() / 7);
    let spent: Vec<(String, i64)> = found.iter().map(|found| spent(&found.entry)).collect();
    let of = |name: &str, calls| (name.to_owned(), calls);
    // Of twelve model calls, two after each of the first calls within a call.
    assert_eq!(spent, [of("f", 12 - 3 * 2), of("g", 2), of("g", 2), of("g", 2)]);
}

/// Calls whose arguments have few values or many, all but one of them equal; some differ only in their order.
fn alike() -> impl Strategy<Value = Vec<ToolCall>> {
    let arguments =
        prop::option::weighted(0.8, (0_u64..3, prop_oneof![Just(0_u64), 1_u64..4, 8_u64..11]));
    let within = prop::option::weighted(0.3, 0_u32..2);
    let name = prop_oneof![Just("f"), Just("f"), Just("g"), Just("")];
    // Some go on while the next ones begin.
    let took = prop_oneof![3 => Just(5_u64), 1 => Just(12), 1 => Just(24)];
    let sent = (name, arguments, any::<bool>(), within, took);
    prop::collection::vec(sent, 0..9).prop_map(|sent| {
        let sent = sent.into_iter().enumerate();
        let calls = sent.map(|(at, (name, arguments, failed, within, took))| ToolCall {
            within,
            end_unix_nano: at as u64 * 10 + 1 + took,
            arguments_hash: arguments.map(|(hash, values)| 100 * values + hash),
            argument_values: arguments.map_or_else(Values::new, |(hash, values)| {
                (1..values).chain((values > 0).then_some(100 + hash / 2)).collect()
            }),
            error: Some(failed && at % 2 == 0),
            ..call(at as u64, name, None, None)
        });
        calls.collect()
    })
}

proptest! {
    #[test]
    fn where_calls_have_too_little_in_common_there_is_no_loop(
        calls in alike(),
        names_only in 2_u64..6,
        near_repeat_similarity in 0.5..1.0,
    ) {
        let options = LoopOptions { names_only, near_repeat_similarity, ..LoopOptions::default() };
        let mut searched = search(&calls, &options);
        count_spend(&mut searched, &[]);
        prop_assert_eq!(find(&calls, &[], &options), searched);
    }
}
