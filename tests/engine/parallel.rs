//! Concurrent work: parallel calls, agents and traces do not continue one another.

use std::sync::Arc;

use agentgauge::engine::loops::Severity;
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::span::{
    Arguments, IdHash, ModelFacts, Operation, SessionName, Span, SpanId, Status, Text, Timestamp,
    ToolFacts, TraceId,
};
use agentgauge::engine::view::{LoopView, TraceView};
use xxhash_rust::xxh3::xxh3_64;

const MILLISECOND: u64 = 1_000_000;
const START: u64 = 1_800_000_000_000 * MILLISECOND;
const ROOT: u64 = 1;

/// A span of a trace, by its times in milliseconds.
fn span(
    (trace, id): (u8, u64),
    parent: Option<u64>,
    operation: Operation,
    (start, end): (u64, u64),
) -> Span {
    Span {
        trace_id: TraceId([trace; 16]),
        span_id: SpanId(id.to_be_bytes()),
        parent: parent.map(|parent| SpanId(parent.to_be_bytes())),
        operation,
        start: Timestamp(START + start * MILLISECOND),
        end: Timestamp(START + end * MILLISECOND),
        session: Some(SessionName { attribute: Arc::from("session.id"), id: Arc::from("s") }),
        convention: Some("test"),
        ..Span::default()
    }
}

fn agent(id: u64, parent: Option<u64>, name: &str, times: (u64, u64)) -> Span {
    let agent_name = Some(Arc::from(name));
    Span { agent_name, ..span((1, id), parent, Operation::InvokeAgent, times) }
}

fn chat(id: u64, parent: u64, times: (u64, u64)) -> Span {
    let model = Some(ModelFacts::default());
    Span { model, ..span((1, id), Some(parent), Operation::Chat, times) }
}

/// A call of a tool with one value, always with the same result.
fn tool(id: u64, parent: u64, (name, value): (&str, u64), times: (u64, u64)) -> Span {
    let tool = Some(asked(name, value));
    Span { tool, ..span((1, id), Some(parent), Operation::ExecuteTool, times) }
}

fn asked(name: &str, value: u64) -> ToolFacts {
    let arguments = Arguments::from_canonical(
        format!("[{value}]").as_bytes(),
        &[xxh3_64(&value.to_be_bytes())],
        true,
    );
    ToolFacts {
        name: Some(Arc::from(name)),
        arguments: Some(arguments),
        result_hash: Some(7),
        ..ToolFacts::default()
    }
}

fn failed(span: Span) -> Span {
    Span { failed: true, status: Status::Error, ..span }
}

fn root(end: u64) -> Span {
    agent(ROOT, None, "boss", (0, end))
}

/// The traces of these spans, which come together.
fn traces(spans: &[Span]) -> Vec<TraceView> {
    traces_with(&EngineOptions::default(), spans)
}

fn traces_with(options: &EngineOptions, spans: &[Span]) -> Vec<TraceView> {
    let mut pipeline = Pipeline::new(options, 2);
    let now = Timestamp(START + 1_000_000 * MILLISECOND);
    pipeline.apply(spans.to_vec(), Vec::new(), Vec::new(), now);
    pipeline.finish(now);
    let sessions = pipeline.document().sessions.into_iter();
    sessions.flat_map(|session| session.traces).collect()
}

/// For each loop its kind, its severity and its count.
fn kinds(loops: &[LoopView]) -> Vec<(&'static str, Severity, u64)> {
    let mut kinds: Vec<_> =
        loops.iter().map(|found| (found.kind.name(), found.severity, found.count)).collect();
    kinds.sort_unstable();
    kinds
}

fn loops(spans: &[Span]) -> Vec<(&'static str, Severity, u64)> {
    traces(spans).iter().flat_map(|trace| kinds(&trace.loops)).collect()
}

/// The loops that are known after each span, where these come one by one as they end.
fn loops_after_each(spans: &[Span]) -> Vec<Vec<(&'static str, Severity, u64)>> {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.end);
    let mut pipeline = Pipeline::new(&EngineOptions::default(), 1);
    let known = spans.into_iter().map(|span| {
        let now = Timestamp(span.end.0 + MILLISECOND);
        pipeline.apply(vec![span], Vec::new(), Vec::new(), now);
        let sessions = pipeline.document().sessions.into_iter();
        let traces = sessions.flat_map(|session| session.traces);
        traces.flat_map(|trace| kinds(&trace.loops)).collect()
    });
    known.collect()
}

const CRITICAL: Severity = Severity::Critical;

/// Agents of these names below the root, each with one call that all of them make.
fn workers(names: &[&str], times: impl Fn(u64) -> (u64, u64)) -> Vec<Span> {
    let mut spans = vec![root(1_000_000)];
    for (at, name) in (0..).zip(names) {
        let (start, end) = times(at);
        let id = 10 * at + 10;
        spans.extend([
            agent(id, Some(ROOT), name, (start, end)),
            chat(id + 1, id, (start, start + 3_000)),
            tool(id + 2, id, ("read", 1), (start + 3_001, start + 3_050)),
            chat(id + 3, id, (start + 3_100, end)),
        ]);
    }
    spans
}

#[test]
fn agents_that_work_at_the_same_time_are_no_loop_of_each_other() {
    let spans = workers(&["worker"; 12], |at| (1_000 + 100 * at, 55_000));
    assert_eq!(loops(&spans), []);
    assert_eq!(traces(&spans)[0].signals["confidence"].score.to_string(), "1");
    // A few at a time.
    let pool = workers(&["worker"; 40], |at| (1_000 + 2_500 * at, 11_000 + 2_500 * at));
    assert_eq!(loops(&pool), []);
    // Nor while they are at work, when none of their own spans has arrived.
    for known in [loops_after_each(&spans), loops_after_each(&pool)] {
        assert!(known.iter().all(Vec::is_empty), "{known:?}");
    }
}

#[test]
fn agents_that_follow_one_another_are_one_series() {
    let found = [("exact_repeat", CRITICAL, 12)];
    let in_turn = |at: u64| (1_000 + 10_000 * at, 10_000 + 10_000 * at);
    assert_eq!(loops(&workers(&["worker"; 12], in_turn)), found);
    assert_eq!(loops(&workers(&["a", "b"].repeat(6), in_turn)), found);
    // Beside another one, which is at work for as long.
    let mut beside = workers(&["worker"; 12], in_turn);
    beside.push(agent(900, Some(ROOT), "watcher", (500, 500_000)));
    assert_eq!(loops(&beside), found);
    // The loops that are known while the agents run, with the last of their spans still to come.
    let known = loops_after_each(&workers(&["worker"; 12], in_turn));
    assert!(known.iter().any(|loops| loops[..] == [("exact_repeat", CRITICAL, 10)]));
}

#[test]
fn agents_that_follow_one_another_with_other_inputs_do_not_go_on_from_each_other() {
    let in_turn = |at: u64| (1_000 + 10_000 * at, 10_000 + 10_000 * at);
    let given = |names: &[&str], inputs: &[&str]| -> Vec<Span> {
        let mut spans = workers(names, in_turn);
        let agents = spans.iter_mut().skip(1).step_by(4);
        for (agent, text) in agents.zip(inputs.iter().cycle()) {
            agent.input = Some(Text { rank: 0, text: Arc::default() });
            agent.input_hash = Some(IdHash::from(*text));
        }
        spans
    };
    let items = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let spans = given(&["worker"; 12], &items);
    assert_eq!(loops(&spans), []);
    assert_eq!(traces(&spans)[0].signals["confidence"].score.to_string(), "1");
    let known = loops_after_each(&spans);
    assert!(known.iter().all(Vec::is_empty), "{known:?}");
    // An agent that is started again with the same input makes no progress.
    let found = [("exact_repeat", CRITICAL, 12)];
    assert_eq!(loops(&given(&["worker"; 12], &["a"])), found);
    // As do those that talk to each other, whatever they say.
    assert_eq!(loops(&given(&["a", "b"].repeat(6), &items)), found);
    let again = given(&["worker"; 12], &[&items[..2], &["z"; 10]].concat());
    assert_eq!(loops(&again), [("exact_repeat", CRITICAL, 10)]);
}

#[test]
fn agents_that_work_at_the_same_time_do_not_hide_each_others_loops() {
    let mut spans = vec![root(100_000)];
    for (worker, name) in [(100, "a"), (200, "b")] {
        spans.push(agent(worker, Some(ROOT), name, (1_000, 60_000 + worker)));
        for at in 0..10 {
            let start = 2_000 + 4_000 * at + if worker == 100 { 0 } else { 500 * (at % 3) + 100 };
            spans.push(chat(worker + 2 * at + 1, worker, (start, start + 40)));
            spans.push(tool(worker + 2 * at + 2, worker, (name, 1), (start + 50, start + 60)));
        }
    }
    let both = [("exact_repeat", CRITICAL, 10); 2];
    assert_eq!(loops(&spans), both);
    // All but the root and the agents themselves.
    let known = loops_after_each(&spans);
    assert_eq!(known[known.len() - 4], both);
}

/// What a call asks, by its name and value, and when it starts and ends in its round.
type Call<'n> = ((&'n str, u64), (u64, u64));

/// Rounds of a model call and then these calls.
fn rounds(count: u64, calls: &[Call<'_>]) -> Vec<Span> {
    let mut spans = vec![root(count * 10_000 + 10_000)];
    for round in 0..count {
        let start = 1_000 + round * 10_000;
        let id = 100 + round * 20;
        spans.push(chat(id, ROOT, (start, start + 2_000)));
        for (at, (asked, (from, to))) in (1..).zip(calls) {
            spans.push(tool(id + at, ROOT, *asked, (start + from, start + to)));
        }
    }
    spans
}

#[test]
fn rounds_of_parallel_calls_are_a_loop() {
    let (search, fetch) = (("search", 1), ("fetch", 2));
    let times = [(3_000, 4_000), (3_001, 4_100)];
    let cycle = [("cycle", CRITICAL, 15)];
    assert_eq!(loops(&rounds(15, &[(search, times[0]), (fetch, times[1])])), cycle);
    assert_eq!(loops(&rounds(15, &[(search, times[0]), (("search", 3), times[1])])), cycle);
    // In whatever order the calls of a round begin.
    let turned: Vec<Span> = [(fetch, search), (search, fetch)]
        .into_iter()
        .flat_map(|(one, other)| rounds(15, &[(one, times[0]), (other, times[1])]))
        .enumerate()
        .filter(|(at, span)| {
            let first = *at < rounds(15, &[(fetch, times[0]), (search, times[1])]).len();
            let id = u64::from_be_bytes(span.span_id.0);
            if first { id < 100 || (id / 20) % 2 == 0 } else { id >= 100 && (id / 20) % 2 == 1 }
        })
        .map(|(_, span)| span)
        .collect();
    assert_eq!(loops(&turned), cycle);
    // The same call twice, each time.
    let twice = rounds(12, &[(search, times[0]), (search, times[1])]);
    assert_eq!(loops(&twice), [("exact_repeat", CRITICAL, 12)]);
    let failing = |calls: &[Call<'_>]| {
        let rounds = rounds(12, calls).into_iter();
        let fails = |span: Span| if span.tool.is_some() { failed(span) } else { span };
        loops(&rounds.map(fails).collect::<Vec<Span>>())
    };
    let retry = [("error_retry", CRITICAL, 12)];
    assert_eq!(failing(&[(search, times[0]), (("search", 3), times[1])]), retry);
    // A parallel step within a longer period.
    let longer = [(search, times[0]), (fetch, times[1]), (("read", 1), (5_000, 5_500))];
    assert_eq!(loops(&rounds(15, &longer)), cycle);
    // One round is none, however many calls it has; nor are rounds that differ.
    let at_once: Vec<_> = (0..12).map(|at| (search, (3_000 + at, 4_000 + at))).collect();
    assert_eq!(loops(&rounds(1, &at_once)), []);
    let mut differing = rounds(15, &[(search, times[0]), (fetch, times[1])]);
    for (at, span) in (0..).zip(&mut differing) {
        span.tool.iter_mut().for_each(|tool| tool.result_hash = Some(at));
    }
    assert_eq!(loops(&differing), []);
}

#[test]
fn a_long_call_beside_a_loop_does_not_hide_it() {
    let long = tool(9_000, ROOT, ("watch", 1), (500, 900_000));
    let one = rounds(12, &[(("search", 1), (3_000, 4_000))]);
    let found = loops(&[one, vec![long.clone()]].concat());
    assert_eq!(found, [("exact_repeat", CRITICAL, 12)]);
    let two = rounds(12, &[(("search", 1), (3_000, 4_000)), (("fetch", 2), (3_001, 4_100))]);
    assert_eq!(loops(&[two, vec![long]].concat()), [("cycle", CRITICAL, 12)]);
    // Calls are parallel if a few of them run at any time.
    let mut pool = vec![root(100_000)];
    pool.extend((0..30).map(|at| {
        failed(tool(100 + at, ROOT, ("fetch", at), (1_000 * at + 500, 1_000 * at + 2_900)))
    }));
    assert_eq!(loops(&pool), []);
}

fn error(spans: &[Span]) -> bool {
    traces(spans)[0].error
}

#[test]
fn whether_a_trace_failed_does_not_hang_on_which_parallel_call_began_last() {
    // Two calls at once, one of which fails while the other answers.
    for (fails, answers) in [((1_000, 3_000), (1_500, 2_500)), ((1_500, 3_100), (1_000, 3_000))] {
        let spans = [root(9_000), chat(2, ROOT, answers), failed(chat(3, ROOT, fails))];
        assert!(!error(&spans));
    }
    let after = [root(9_000), chat(2, ROOT, (1_000, 2_000)), failed(chat(3, ROOT, (3_000, 4_000)))];
    assert!(error(&after));
    // All of those at once fail.
    let both =
        [root(9_000), failed(chat(2, ROOT, (1_000, 2_000))), failed(chat(3, ROOT, (1_500, 4_000)))];
    assert!(error(&both));
    // The root says that it succeeded all the same.
    let well = Span { status: Status::Ok, ..root(9_000) };
    assert!(!error(&[&[well], &after[1..]].concat()));
}

#[test]
fn of_the_model_calls_those_of_the_outermost_agent_decide_whether_a_trace_failed() {
    // A worker's call fails, whichever it is, and the boss continues; or its clock is ahead.
    for late in [0, 100, 60_000] {
        let mut spans = workers(&["worker"; 12], |at| (1_000 + 100 * at, 55_000 + late));
        spans.push(chat(2, ROOT, (500, 900)));
        spans.push(chat(3, ROOT, (56_000, 57_000)));
        spans.push(failed(chat(4, 10, (54_000 + late, 54_900 + late))));
        assert!(!error(&spans));
    }
    let mut within = vec![root(9_000), chat(2, ROOT, (1_000, 2_000))];
    within.push(tool(3, ROOT, ("ask", 1), (2_500, 8_000)));
    within.push(failed(chat(4, 3, (3_000, 7_000))));
    assert!(!error(&within));
    // Where the outermost one makes none itself, those of the agents next to it do.
    let mut pipeline = vec![root(90_000), agent(2, Some(ROOT), "a", (1_000, 2_000))];
    pipeline.extend([chat(3, 2, (1_100, 1_900)), agent(4, Some(ROOT), "b", (3_000, 9_000))]);
    pipeline.push(failed(chat(5, 4, (3_100, 8_900))));
    assert!(error(&pipeline));
}

#[test]
fn traces_of_a_session_that_run_at_the_same_time_do_not_continue_each_other() {
    let trace = |number: u8, (start, end): (u64, u64)| {
        let model = ModelFacts { asked_by_user: Some(false), ..ModelFacts::default() };
        let of = |id, operation, times| span((number, id), (id > 1).then_some(1), operation, times);
        let tool = Some(asked("read", 1));
        [
            of(1, Operation::Other, (start, end)),
            Span { tool, ..of(2, Operation::ExecuteTool, (start + 10, start + 20)) },
            Span { model: Some(model), ..of(3, Operation::Chat, (start + 30, end - 10)) },
        ]
    };
    let run = |times: &dyn Fn(u64) -> (u64, u64)| -> Vec<Span> {
        (1..13).flat_map(|at| trace(at, times(u64::from(at)))).collect()
    };
    let found = [("exact_repeat", CRITICAL, 12)];
    assert_eq!(loops(&run(&|at| (20 * at, 20 * at + 30_000))), []);
    assert_eq!(loops(&run(&|_| (0, 30_000))), []);
    assert_eq!(loops(&run(&|at| (1_000 * at, 1_000 * at + 990))), found);
    // Of two hosts with clocks that differ a little.
    let skewed = |at: u64| (1_000 * at + at % 2 * 300, 1_000 * at + at % 2 * 300 + 900);
    assert_eq!(loops(&run(&skewed)), found);
}

#[test]
fn of_several_spans_without_a_parent_the_one_that_names_the_agent_tells_how_it_ended() {
    let request = span((1, 5), None, Operation::Other, (0, 9_000));
    let request = Span { status: Status::Ok, ..request };
    let own = agent(6, None, "boss", (100, 8_000));
    let call = chat(7, 6, (200, 7_000));
    assert!(!error(&[request.clone(), own.clone(), call.clone()]));
    assert!(error(&[request, failed(own), call]));
}

#[test]
fn an_attempt_below_a_model_call_that_succeeded_fails_nothing() {
    let mut spans = vec![root(9_000), chat(2, ROOT, (1_000, 8_000))];
    spans.extend((0..2).map(|at| failed(chat(10 + at, 2, (1_100 + at * 100, 1_150 + at * 100)))));
    let beside = [&spans[..], &[chat(20, 2, (2_000, 7_000))]].concat();
    for spans in [&spans, &beside] {
        let trace = &traces(spans)[0];
        assert!(!trace.error);
        assert_eq!(trace.signals["confidence"].score.to_string(), "1");
    }
    let failing = failed(chat(2, ROOT, (1_000, 8_000)));
    assert!(error(&[&[root(9_000), failing], &spans[2..]].concat()));
}

#[test]
fn attempts_beside_a_model_call_that_succeeded_at_once_are_one_step_with_it() {
    let confidence = |spans: &[Span]| {
        let spans = [&[root(9_000)], spans].concat();
        traces(&spans)[0].signals["confidence"].score.to_string()
    };
    let call = |id: u64, times| chat(id, ROOT, times);
    let attempts = [failed(call(10, (1_000, 1_100))), failed(call(11, (1_200, 1_300)))];
    let and = |after: &[Span]| confidence(&[&attempts[..], after].concat());
    assert_eq!(and(&[call(12, (1_400, 2_000))]), "1");
    // None that succeeds, a tool's call between, another parent, or at the same time: each failed by itself.
    assert_eq!(confidence(&attempts), "0");
    let after_tool = [tool(20, ROOT, ("read", 1), (1_350, 1_390)), call(12, (1_400, 2_000))];
    assert_eq!(and(&after_tool), "0.5");
    let elsewhere = [agent(30, Some(ROOT), "other", (1_350, 3_000)), chat(12, 30, (1_400, 2_000))];
    assert_eq!(and(&elsewhere), "0.333333333333");
    // The second one began while the first was still running: only the second was repeated.
    let beside = [failed(call(10, (1_000, 1_250))), attempts[1].clone(), call(12, (1_400, 2_000))];
    assert_eq!(confidence(&beside), "0.5");
    // What goes well later is another step.
    assert_eq!(and(&[call(12, (1_400, 2_000)), call(13, (2_100, 3_000))]), "1");
}

#[test]
fn a_tool_that_may_be_called_again_wastes_no_step() {
    let mut spans = vec![root(90_000)];
    spans.extend((0..31).map(|at| {
        let start = 1_000 + at * 2_000;
        tool(10 + at, ROOT, ("job_status", 1), (start, start + 200))
    }));
    let mut options = EngineOptions::default();
    assert_ne!(traces_with(&options, &spans)[0].signals["confidence"].score.to_string(), "1");
    options.loops.allow = vec!["job_*".to_owned()];
    let trace = &traces_with(&options, &spans)[0];
    assert_eq!(trace.signals["confidence"].score.to_string(), "1");
    assert!(trace.loops.is_empty());
}
