//! When a trace is over, under which name it is shown, and when it is counted: roots come last, late, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agentgauge::engine::assemble::{Assembler, Input, Learned};
use agentgauge::engine::counters::Counter;
use agentgauge::engine::facts::{OverBy, TraceState};
use agentgauge::engine::pipeline::{EngineOptions, Pipeline};
use agentgauge::engine::route::Route;
use agentgauge::engine::sessions::NoSessionStore;
use agentgauge::engine::span::{
    Arguments, Operation, Resource, SessionName, Span, SpanId, Status, Timestamp, ToolFacts,
    TraceId,
};
use agentgauge::engine::tenants::Shares;

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use crate::recorded::restarted;

const START: Timestamp = Timestamp(1_800_000_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn at(after: Duration) -> Timestamp {
    START.after(after)
}

/// A pipeline, and the names under which anything was ever shown.
struct Daemon {
    pipeline: Pipeline,
    shown: BTreeSet<String>,
}

impl Daemon {
    fn new(shards: u32) -> Self {
        let pipeline = Pipeline::new(&EngineOptions::default(), shards);
        Self { pipeline, shown: BTreeSet::new() }
    }

    /// Runs the clock; results are read every second.
    fn run_to(&mut self, from: Duration, to: Duration) {
        let mut now = from;
        while now < to {
            now = (now + SECOND).min(to);
            self.pipeline.advance(at(now));
            self.look();
        }
    }

    fn send(&mut self, spans: Vec<Span>, now: Duration) {
        self.pipeline.apply(spans, vec![], vec![], at(now));
        self.look();
    }

    fn look(&mut self) {
        for agent in self.pipeline.board().keys() {
            if !self.shown.contains(&*agent.agent_name) {
                self.shown.insert(agent.agent_name.to_string());
            }
        }
    }

    /// All counters of a family, added up over agents of this name.
    fn count(&self, agent: &str, family: Counter, labels: &[&str]) -> u64 {
        let board = self.pipeline.board().iter();
        let of_name = board.filter(|(key, _)| *key.agent_name == *agent);
        of_name.filter_map(|(_, update)| update.counters.get(family, labels)).sum()
    }

    /// Verdicts of whole traces: passed and failed.
    fn verdicts(&self, agent: &str) -> (u64, u64) {
        let of = |verdict| self.count(agent, Counter::TraceEvaluations, &["trace_risk", verdict]);
        (of("pass"), of("fail"))
    }

    fn decided_on(&mut self, session: &str, trace: u64) -> (String, bool) {
        let (_, _, sessions, _) = self.pipeline.lasting();
        let explained = sessions
            .iter()
            .find_map(|stage| stage.explain(("", session, None), trace_id(trace), &NoSessionStore))
            .unwrap();
        (explained.decided_on, explained.counted)
    }
}

/// A table in which nothing is known.
fn nothing() -> Learned {
    Learned::new(&EngineOptions::default().assemble, Shares::default())
}

fn trace_id(trace: u64) -> TraceId {
    TraceId((u128::from(trace) + 1).to_be_bytes())
}

/// A span of a service, in a trace, begun and ended this long after the start.
fn span(trace: u64, id: u8, parent: u8, times: (Duration, Duration)) -> Span {
    Span {
        trace_id: trace_id(trace),
        span_id: SpanId([id; 8]),
        parent: (parent > 0).then_some(SpanId([parent; 8])),
        start: at(times.0),
        end: at(times.1),
        convention: Some("test"),
        scope: 7,
        resource: Arc::new(Resource {
            service_name: Some(Arc::from("shop")),
            ..Resource::default()
        }),
        ..Span::default()
    }
}

fn tool(trace: u64, id: u8, parent: u8, times: (Duration, Duration)) -> Span {
    let facts = ToolFacts {
        name: Some(Arc::from("search")),
        arguments: Some(Arguments::from_canonical(b"{}", &[], true)),
        result_hash: Some(1),
        ..ToolFacts::default()
    };
    let operation = Operation::ExecuteTool;
    Span { tool: Some(facts), operation, ..span(trace, id, parent, times) }
}

/// The root, which alone names the agent and the session, and failed.
fn root(trace: u64, times: (Duration, Duration)) -> Span {
    Span {
        operation: Operation::InvokeAgent,
        name: Arc::from("invoke_agent support"),
        agent_name: Some(Arc::from("support")),
        session: Some(SessionName {
            attribute: Arc::from("session.id"),
            id: Arc::from(format!("conversation {trace}")),
        }),
        status: Status::Error,
        failed: true,
        ..span(trace, 1, 0, times)
    }
}

/// A model call, then a tool call that takes this long, and the root: each is sent when it ends.
fn run(daemon: &mut Daemon, trace: u64, begun: Duration, step: Duration) -> Duration {
    let chat = begun + SECOND;
    let model = Span { operation: Operation::Chat, ..span(trace, 2, 1, (begun, chat)) };
    daemon.send(vec![model], chat);
    let done = chat + step;
    daemon.run_to(chat, done);
    daemon.send(vec![tool(trace, 3, 1, (chat, done))], done);
    let ended = done + SECOND;
    daemon.run_to(done, ended);
    daemon.send(vec![root(trace, (begun, ended))], ended);
    ended
}

#[test]
fn a_run_with_a_long_step_is_its_agent_s_and_counts_once() {
    for (step, shards) in [(90 * SECOND, 1), (7 * MINUTE, 1), (50 * MINUTE, 1), (7 * MINUTE, 3)] {
        let mut daemon = Daemon::new(shards);
        let mut now = Duration::ZERO;
        for trace in 0..5 {
            let ended = run(&mut daemon, trace, now, step);
            now = ended + 20 * SECOND;
            daemon.run_to(ended, now);
            assert_eq!(daemon.verdicts("support"), (0, trace + 1), "{step:?}");
            let session = format!("conversation {trace}");
            assert_eq!(daemon.decided_on(&session, trace), ("root".to_owned(), true));
        }
        let document = daemon.pipeline.document();
        assert_eq!(document.agents.len(), 1);
        daemon.run_to(now, now + 2 * HOUR);
        assert_eq!(daemon.verdicts("support"), (0, 5), "{step:?}");
        assert_eq!(daemon.count("support", Counter::ToolCalls, &["ok"]), 5);
        assert_eq!(daemon.count("support", Counter::Traces, &[]), 5);
        let names: Vec<&str> = daemon.shown.iter().map(String::as_str).collect();
        assert_eq!(names, ["", "support"], "no name but what a span said");
    }
}

#[test]
fn where_parents_come_a_trace_waits_for_its_root_from_the_second_run_on() {
    let mut daemon = Daemon::new(1);
    let ended = run(&mut daemon, 0, Duration::ZERO, SECOND);
    let now = ended + 20 * SECOND;
    daemon.run_to(ended, now);
    daemon.send(vec![tool(1, 3, 1, (now, now))], now);
    daemon.run_to(now, now + 55 * MINUTE);
    let trace = trace_id(1).to_string();
    assert_eq!(daemon.decided_on(&trace, 1), ("parents_come".to_owned(), false));
    let window = |daemon: &Daemon, traces| {
        let board = daemon.pipeline.board().values();
        assert_eq!(board.map(|update| update.view.traces).sum::<u64>(), traces);
    };
    window(&daemon, 1);
    // Its agent died: its usage counts under the name of its service, when its time is over; how it ended is unknown.
    daemon.run_to(now + 55 * MINUTE, now + 66 * MINUTE);
    window(&daemon, 2);
    assert_eq!(daemon.decided_on(&trace, 1), ("age".to_owned(), false));
    assert_eq!((daemon.verdicts("shop"), daemon.count("shop", Counter::Traces, &[])), ((0, 0), 1));
    let skipped = daemon.count("shop", Counter::TraceEvaluations, &["trace_risk", "skipped"]);
    assert_eq!((skipped, daemon.count("shop", Counter::ToolCalls, &["ok"])), (1, 1));
    let (_, stages, _, _) = daemon.pipeline.lasting();
    assert_eq!(stages[0].counts().get("traces_partial", "age"), 1);
}

#[test]
fn a_run_of_hours_counts_once_when_its_root_comes_and_once_as_taken_for_over() {
    let mut daemon = Daemon::new(1);
    let (mut now, step) = (Duration::ZERO, 4 * MINUTE);
    for id in 2..32 {
        let begun = now;
        daemon.run_to(begun, begun + step);
        now = begun + step;
        daemon.send(vec![tool(0, id, 1, (begun, now))], now);
    }
    assert_eq!((daemon.verdicts("support"), daemon.verdicts("shop")), ((0, 0), (0, 0)));
    daemon.send(vec![root(0, (Duration::ZERO, now))], now);
    daemon.run_to(now, now + HOUR);
    assert_eq!((daemon.verdicts("support"), daemon.verdicts("shop")), ((0, 1), (0, 0)));
    let (_, stages, _, _) = daemon.pipeline.lasting();
    assert_eq!(stages[0].counts().get("traces_partial", "age"), 1);
}

#[test]
fn a_run_that_goes_on_after_a_pause_is_one_trace_however_long_it_lasts() {
    for known in [false, true] {
        let mut daemon = Daemon::new(1);
        let mut now = Duration::ZERO;
        if known {
            let ended = run(&mut daemon, 1, now, SECOND);
            now = ended + MINUTE;
            daemon.run_to(ended, now);
        }
        let begun = now;
        // A person answers after fifty minutes; a build takes seven, in the second hour.
        let steps = [4, 4, 50, 4, 7, 7, 45, 1].into_iter().cycle().take(24);
        for (id, step) in (2..).zip(steps) {
            let from = now;
            now += step * MINUTE;
            daemon.run_to(from, now);
            daemon.send(vec![tool(0, id, 1, (from, now))], now);
        }
        assert_eq!(daemon.verdicts("shop"), (0, 0), "{known}");
        daemon.send(vec![root(0, (begun, now))], now);
        daemon.run_to(now, now + 2 * HOUR);
        let runs = if known { 2 } else { 1 };
        assert_eq!((daemon.verdicts("support"), daemon.verdicts("shop")), ((0, runs), (0, 0)));
        let calls = if known { 25 } else { 24 };
        assert_eq!(daemon.count("support", Counter::ToolCalls, &["ok"]), calls);
        let (_, stages, _, _) = daemon.pipeline.lasting();
        assert_eq!(stages[0].counts().get("late", "dropped"), 0);
    }
}

#[test]
fn a_loop_is_shown_at_once_under_the_one_agent_that_is_known_and_counted_when_its_trace_is_done() {
    let looping = |daemon: &Daemon, agent: &str| -> u64 {
        let board = daemon.pipeline.board().iter();
        let of_name = board.filter(|(key, _)| *key.agent_name == *agent);
        of_name.flat_map(|(_, update)| update.sessions_looping.values()).sum()
    };
    let calls = |trace, now| (2..8).map(|id| tool(trace, id, 1, (now, now))).collect();
    let mut daemon = Daemon::new(1);
    daemon.send(calls(0, SECOND), SECOND);
    assert_eq!((looping(&daemon, ""), looping(&daemon, "support")), (1, 0));
    assert_eq!(daemon.count("", Counter::Loops, &["exact_repeat"]), 0);
    // The root has arrived: the trace is not done, but its agent is known, of this trace and of others.
    daemon.send(vec![root(0, (Duration::ZERO, 2 * SECOND))], 2 * SECOND);
    assert_eq!((looping(&daemon, ""), looping(&daemon, "support")), (0, 1));
    assert_eq!(daemon.count("support", Counter::Loops, &["exact_repeat"]), 0);
    daemon.send(calls(1, 3 * SECOND), 3 * SECOND);
    assert_eq!((looping(&daemon, ""), looping(&daemon, "support")), (0, 2));
    daemon.run_to(3 * SECOND, 90 * SECOND);
    assert_eq!(daemon.count("support", Counter::Loops, &["exact_repeat"]), 1);
    assert_eq!(
        daemon.count("support", Counter::LoopsDetected, &["exact_repeat", "warning", "full"]),
        1
    );
    daemon.send(vec![root(1, (3 * SECOND, 90 * SECOND))], 90 * SECOND);
    assert_eq!(daemon.count("support", Counter::Loops, &["exact_repeat"]), 1);
    daemon.run_to(90 * SECOND, 101 * SECOND);
    assert_eq!(daemon.count("support", Counter::Loops, &["exact_repeat"]), 2);
    // A second agent of the same service: before the root arrives, the trace may belong to either.
    let named =
        Span { agent_name: Some(Arc::from("billing")), ..root(2, (101 * SECOND, 102 * SECOND)) };
    daemon.send(vec![named], 102 * SECOND);
    daemon.run_to(102 * SECOND, 130 * SECOND);
    daemon.send(calls(3, 130 * SECOND), 130 * SECOND);
    assert_eq!(looping(&daemon, ""), 1);
    let names: Vec<&str> = daemon.shown.iter().map(String::as_str).collect();
    assert_eq!(names, ["", "billing", "support"]);
}

/// Arrivals, this long after the previous ones: parts of a trace, at least one.
#[derive(Clone, Debug)]
struct Coming {
    after: Duration,
    trace: u64,
    /// Tool calls, all alike.
    calls: u8,
    /// The root names one of three agents.
    root: Option<u8>,
}

/// Some of it comes within minutes, some after hours, when traces are final for want of a root.
fn coming() -> impl Strategy<Value = Vec<Coming>> {
    let after = prop_oneof![Just(0), 0_u64..100, 0_u64..100, 200_u64..6_000];
    let one = (after, 0_u64..24, 0_u8..7, prop::option::weighted(0.4, 0_u8..3));
    let one = one.prop_map(|(seconds, trace, calls, root)| Coming {
        after: Duration::from_secs(seconds),
        trace,
        calls: if root.is_none() { calls.max(1) } else { calls },
        root,
    });
    prop::collection::vec(one, 1..40)
}

/// The spans of an arrival; traces belong to one of two services.
fn spans_of(coming: &Coming, now: Duration) -> Vec<Span> {
    let trace = coming.trace;
    let calls = (2..2 + coming.calls).map(|id| tool(trace, id, 1, (now, now)));
    let root = coming.root.map(|agent| Span {
        agent_name: Some(Arc::from(format!("agent {agent}"))),
        ..root(trace, (now, now))
    });
    let service = Resource {
        service_name: Some(Arc::from(format!("service {}", trace % 2))),
        ..Resource::default()
    };
    let service = Arc::new(service);
    calls.chain(root).map(|span| Span { resource: Arc::clone(&service), ..span }).collect()
}

/// All sessions, why each of their traces is done or is not, and what is shown of agents that have sessions now.
fn shown_now(pipeline: &mut Pipeline) -> (Vec<String>, BTreeMap<String, String>) {
    let sessions = pipeline.document().sessions;
    let (_, _, stages, _) = pipeline.lasting();
    let sessions = sessions.iter().map(|session| {
        let of = ("", session.session_id.as_str(), Some(session.scope.as_str()));
        let decided = session.traces.iter().map(|trace| {
            let id = TraceId(u128::from_str_radix(&trace.trace_id, 16).unwrap().to_be_bytes());
            let explained = stages.iter().find_map(|stage| stage.explain(of, id, &NoSessionStore));
            explained.map(|explained| (explained.decided_on, explained.counted))
        });
        format!("{} {:?}", serde_json::to_string(session).unwrap(), decided.collect::<Vec<_>>())
    });
    let sessions = sessions.collect();
    let board = pipeline.board().iter().filter(|(_, facts)| facts.sessions_active > 0);
    let agents = board.map(|(agent, facts)| {
        let shown = (facts.sessions_active, &facts.sessions_looping, facts.looping);
        (format!("{agent:?}"), format!("{shown:?}"))
    });
    (sessions, agents.collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shown_of_traces_in_flight_is_the_same_whatever_the_number_of_shards(
        coming in coming(),
        shards in 2_u32..6,
        // What comes in one request.
        together in 1_usize..4,
        // A new process begins after this many requests.
        restart in 0_usize..30,
    ) {
        let options = EngineOptions::default();
        let mut one = Pipeline::new(&options, 1);
        let mut many = Pipeline::new(&options, shards);
        let mut now = Duration::ZERO;
        for (number, requests) in coming.chunks(together).enumerate() {
            now += requests[0].after;
            if number == restart {
                many.advance(at(now));
                many = restarted(many, &options, Route::new(shards, 0));
            }
            let spans: Vec<Span> = requests.iter().flat_map(|one| spans_of(one, now)).collect();
            for pipeline in [&mut one, &mut many] {
                pipeline.advance(at(now));
                pipeline.apply(spans.clone(), vec![], vec![], at(now));
            }
            prop_assert_eq!(shown_now(&mut one), shown_now(&mut many), "at {:?}", now);
            now += 10 * SECOND;
            one.advance(at(now));
            many.advance(at(now));
            prop_assert_eq!(shown_now(&mut one), shown_now(&mut many), "at {:?}", now);
        }
    }
}

/// When a trace is first shown as done; `None`: not within the time.
fn done_after(daemon: &mut Daemon, from: Duration, within: Duration) -> Option<Duration> {
    let traces = |daemon: &Daemon| -> u64 {
        daemon.pipeline.board().values().map(|update| update.view.traces).sum()
    };
    let (before, mut now) = (traces(daemon), from);
    while now < from + within {
        daemon.run_to(now, now + SECOND);
        now += SECOND;
        if traces(daemon) > before {
            return Some(now - from);
        }
    }
    None
}

#[test]
fn a_workflow_that_another_process_called_counts_as_the_root() {
    for (workflow, expected) in [(Some("refunds"), 10 * SECOND), (None, 5 * MINUTE)] {
        let mut daemon = Daemon::new(1);
        let around = Span {
            operation: Operation::Other,
            workflow: workflow.map(Arc::from),
            remote_parent: Some(true),
            ..span(0, 8, 9, (SECOND, SECOND))
        };
        let agent = Span { parent: Some(around.span_id), ..root(0, (SECOND, SECOND)) };
        daemon.send(vec![around, agent], SECOND);
        assert_eq!(done_after(&mut daemon, SECOND, 10 * MINUTE), Some(expected), "{workflow:?}");
    }
}

/// The span of a request that only begins the work, and ends at once.
fn request(trace: u64, begun: Duration) -> Span {
    Span {
        operation: Operation::Other,
        convention: None,
        name: Arc::from("POST /run"),
        ..span(trace, 8, 0, (begun, begun + SECOND / 20))
    }
}

/// A model call of the agent that a request begins, and the agent; it failed.
fn work(trace: u64, times: (Duration, Duration)) -> [Span; 2] {
    let operation = Operation::Chat;
    let model = Span { operation, remote_parent: Some(false), ..span(trace, 2, 1, times) };
    [model, Span { parent: Some(SpanId([8; 8])), ..root(trace, times) }]
}

#[test]
fn a_root_that_ends_before_the_work_does_not_end_its_trace() {
    for shards in [1, 3] {
        let mut daemon = Daemon::new(shards);
        // It is known that parents of such model calls arrive.
        let mut now = Duration::ZERO;
        for trace in 0..3 {
            let [model, agent] = work(trace, (now, now + SECOND));
            let last = Span { end: at(now + SECOND), ..request(trace, now) };
            daemon.send(vec![model, agent, last], now + SECOND);
            assert_eq!(done_after(&mut daemon, now + SECOND, MINUTE), Some(10 * SECOND));
            now += MINUTE;
        }
        assert_eq!(daemon.verdicts("support"), (0, 3));
        let (session, id) = (trace_id(3).to_string(), 3);
        let first = work(id, (now, now + SECOND))[0].clone();
        daemon.send(vec![request(id, now), first], now + SECOND);
        daemon.run_to(now + SECOND, now + 20 * MINUTE);
        assert_eq!(daemon.decided_on(&session, id), ("parents_come".to_owned(), false));
        now += 20 * MINUTE;
        let [model, agent] = work(id, (now - MINUTE, now));
        daemon.send(vec![Span { span_id: SpanId([3; 8]), ..model }, agent], now);
        assert_eq!(done_after(&mut daemon, now, 10 * MINUTE), Some(10 * SECOND));
        assert_eq!(daemon.decided_on("conversation 3", id), ("root".to_owned(), true));
        daemon.run_to(now + MINUTE, now + 2 * HOUR);
        assert_eq!(daemon.verdicts("support"), (0, 4));
        let names: Vec<&str> = daemon.shown.iter().map(String::as_str).collect();
        assert_eq!(names, ["support"], "not that of the service");
    }
}

#[test]
fn a_trace_that_outlasts_its_root_goes_by_its_missing_parents() {
    let after = |spans: Vec<Span>| {
        let mut daemon = Daemon::new(1);
        daemon.send(spans, SECOND);
        let after = done_after(&mut daemon, SECOND, 61 * MINUTE);
        (after, daemon.verdicts("shop") != (0, 0))
    };
    let chat = |parent, remote_parent, end| {
        let times = (Duration::ZERO, end);
        Span { operation: Operation::Chat, remote_parent, ..span(0, 2, parent, times) }
    };
    let root = request(0, Duration::ZERO);
    // All parents are in: the host of a span may have another clock, or it is of something that was left to be done.
    for end in [SECOND / 20, SECOND] {
        let whole = after(vec![chat(8, None, end), root.clone()]);
        assert_eq!(whole, (Some(10 * SECOND), true));
    }
    // One is missing, and the root ended last.
    let last = after(vec![chat(9, None, SECOND / 20), root.clone()]);
    assert_eq!(last, (Some(10 * SECOND), true));
    // It did not: nothing is known, or the caller of an agent still runs.
    let lacking = after(vec![chat(9, None, SECOND), root.clone()]);
    assert_eq!(lacking, (Some(5 * MINUTE), false));
    let local = Span { operation: Operation::InvokeAgent, ..chat(9, Some(false), SECOND) };
    assert_eq!(after(vec![local, root.clone()]), (Some(HOUR), false));
    // An evaluator comes when all is over.
    let operation = Operation::Evaluation;
    let evaluation = Span { operation, span_id: SpanId([4; 8]), ..chat(8, None, MINUTE) };
    let judged = after(vec![chat(9, None, SECOND / 20), evaluation, root.clone()]);
    assert_eq!(judged, (Some(10 * SECOND), true));
}

#[test]
fn what_is_waited_for_follows_from_flags_and_from_earlier_traces() {
    let agent = |trace, remote, now| Span {
        remote_parent: Some(remote),
        status: Status::Unset,
        failed: false,
        ..Span { parent: Some(SpanId([9; 8])), ..root(trace, (now, now)) }
    };
    let mut daemon = Daemon::new(1);
    let mut now = Duration::ZERO;
    let mut after = |daemon: &mut Daemon, spans: Vec<Span>, within: Duration| {
        let sent = now;
        daemon.send(spans, sent);
        let after = done_after(daemon, sent, within);
        now = sent + after.unwrap_or(within);
        after
    };
    // The parent is of another process: what is there is the root, also of what hangs beside it.
    let beside = Span {
        operation: Operation::Chat,
        scope: 8,
        remote_parent: Some(true),
        ..span(0, 2, 9, (SECOND, SECOND))
    };
    let took = after(&mut daemon, vec![agent(0, true, SECOND), beside], MINUTE);
    assert_eq!(took, Some(10 * SECOND));
    assert_eq!(daemon.decided_on("conversation 0", 0), ("remote_parent".to_owned(), false));
    // It is of this process, and nothing is known: its caller still runs.
    let took = after(&mut daemon, vec![agent(1, false, SECOND)], 59 * MINUTE);
    assert_eq!(took, None);
    assert_eq!(daemon.decided_on("conversation 1", 1).0, "local_parent");
    let took = after(&mut daemon, vec![span(1, 8, 9, (SECOND, SECOND))], 61 * MINUTE);
    assert_eq!(took, Some(MINUTE), "it is of age, whatever comes");
    assert_eq!(daemon.decided_on("conversation 1", 1).0, "age");
    // A model call says nothing by its flags.
    for trace in 2..7 {
        let model = Span {
            operation: Operation::Chat,
            scope: 8,
            remote_parent: Some(false),
            ..span(trace, 2, 1, (SECOND, SECOND))
        };
        let took = after(&mut daemon, vec![model], 10 * MINUTE);
        // Three earlier ones were quiet without their parents.
        let learned = trace >= 5;
        let (expected, evidence) = if learned {
            (10 * SECOND, "parents_never_come")
        } else {
            (5 * MINUTE, "nothing_known")
        };
        assert_eq!(took, Some(expected), "{trace}");
        let session = trace_id(trace).to_string();
        assert_eq!(daemon.decided_on(&session, trace), (evidence.to_owned(), false));
    }
}

#[test]
fn verdicts_of_traces_without_a_root_count_when_they_are_final() {
    let mut daemon = Daemon::new(1);
    daemon.send(vec![tool(0, 3, 1, (SECOND, SECOND))], SECOND);
    daemon.run_to(SECOND, 59 * MINUTE);
    assert_eq!(daemon.shown, BTreeSet::from([String::new()]));
    assert_eq!(daemon.verdicts(""), (0, 0));
    // Its root arrives in time: the trace is that agent's, and failed.
    daemon.send(vec![root(0, (SECOND, 59 * MINUTE))], 59 * MINUTE);
    daemon.run_to(59 * MINUTE, 59 * MINUTE + 20 * SECOND);
    assert_eq!(daemon.verdicts("support"), (0, 1));
    // Of another one it never comes, though such roots do: it goes by the name of its service, but has no verdict.
    daemon.send(vec![tool(1, 3, 1, (SECOND, SECOND))], HOUR);
    daemon.run_to(HOUR, HOUR + 66 * MINUTE);
    assert_eq!((daemon.verdicts("shop"), daemon.verdicts("support")), ((0, 0), (0, 1)));
    assert_eq!(daemon.count("shop", Counter::Traces, &[]), 1);
    // If nothing is known about roots, it has one.
    let elsewhere = Span { scope: 9, ..tool(2, 3, 1, (SECOND, SECOND)) };
    daemon.send(vec![elsewhere], 3 * HOUR);
    daemon.run_to(3 * HOUR, 3 * HOUR + 66 * MINUTE);
    assert_eq!((daemon.verdicts("shop"), daemon.count("shop", Counter::Traces, &[])), ((1, 0), 2));
    assert!(daemon.pipeline.board().keys().all(|agent| !agent.agent_name.is_empty()));
}

#[test]
fn a_hundred_thousand_traces_whose_root_never_comes_are_closed_at_their_age() {
    const TRACES: u64 = 100_000;
    let options = EngineOptions::default();
    let new = || Assembler::new(options.assemble.clone(), options.loops.clone(), &options.cost);
    let mut stage = new();
    let apply = |stage: &mut Assembler, span: Span, now| {
        stage.handle(Input::Span(Box::new(span)), at(now));
    };
    // Roots come here, so each of them is waited for.
    apply(&mut stage, tool(TRACES, 2, 1, (SECOND, SECOND)), SECOND);
    apply(&mut stage, root(TRACES, (SECOND, SECOND)), SECOND);
    let mut known = nothing();
    stage.handle_timeout(at(20 * SECOND), &known);
    stage.drain(&known);
    known.learn(stage.lessons());
    for trace in 0..TRACES {
        let now = 20 * SECOND + Duration::from_millis(trace);
        let model = Span {
            operation: Operation::Chat,
            failed: trace % 3 == 0,
            ..span(trace, 2, 1, (now, now))
        };
        // Such a span has a parent that came: a tool call.
        let call = tool(trace, 3, 1, (now, now));
        apply(&mut stage, if trace % 2 == 0 { model } else { call }, now);
    }
    let (mut told, mut final_traces) = (0, 0);
    let mut now = 2 * MINUTE;
    while now < 70 * MINUTE {
        stage.handle_timeout(at(now), &known);
        let updates = stage.drain(&known);
        known.learn(stage.lessons());
        for update in updates {
            told += 1;
            let trace = u64::try_from(u128::from_be_bytes(update.trace_id.0) - 1).unwrap();
            if update.state == TraceState::Sealed && trace < TRACES {
                assert!(!update.uncertain);
                assert_eq!(update.error, trace % 6 == 0, "{trace}");
                assert_eq!(update.partial, trace % 2 == 1, "{trace}");
                final_traces += 1;
            } else if trace < TRACES {
                assert!(update.uncertain, "{update:?}");
            }
        }
        assert!(stage.open_traces() <= options.assemble.max_open_traces);
        if now == 30 * MINUTE {
            assert_eq!(stage.open_traces() as u64, TRACES);
            let mut next = new();
            let saved = rmp_serde::to_vec_named(&stage.save()).unwrap();
            next.restore(rmp_serde::from_slice(&saved).unwrap());
            assert_eq!(next.ages(at(now)), stage.ages(at(now)));
            assert_eq!(
                next.ages(at(now))[3],
                50_000,
                "the others are done, and wait for their roots"
            );
            stage = next;
        }
        now += MINUTE;
    }
    assert_eq!((final_traces, stage.open_traces(), stage.ages(at(now))), (TRACES, 0, [0; 5]));
    assert_eq!(stage.counts().get("traces_partial", "age"), TRACES / 2);
    assert!(told <= 3 * TRACES + 10, "{told}");
}

#[test]
fn over_the_bound_the_quietest_open_trace_goes_as_partial() {
    let mut options = EngineOptions::default();
    options.assemble.max_open_traces = 100;
    let mut stage = Assembler::new(options.assemble.clone(), options.loops.clone(), &options.cost);
    let mut gone = Vec::new();
    for trace in 0..300_u64 {
        let now = SECOND * u32::try_from(trace).unwrap() / 100;
        stage.handle(Input::Span(Box::new(tool(trace, 2, 1, (now, now)))), at(now));
        // The first ones continue, so they are not the quietest.
        for early in 0..10 {
            let id = u8::try_from(trace % 200).unwrap() + 20;
            stage.handle(Input::Span(Box::new(tool(early, id, 1, (now, now)))), at(now));
        }
        gone.extend(
            stage.drain(&nothing()).into_iter().filter(|update| update.state == TraceState::Sealed),
        );
        assert!(stage.open_traces() <= 101);
    }
    assert_eq!(gone.len(), 200);
    assert!(gone.iter().all(|update| update.partial && update.evidence == OverBy::Room));
    let ids: Vec<TraceId> = gone.iter().map(|update| update.trace_id).collect();
    let expected: Vec<TraceId> = (10..210).map(trace_id).collect();
    assert_eq!(ids, expected);
    assert_eq!(stage.counts().get("traces_partial", "room"), 200);
}

#[test]
fn a_crash_changes_no_verdict_of_traces_without_a_root() {
    let options = EngineOptions::default();
    let verdicts = |crash: Option<u32>| {
        let mut pipeline = Pipeline::new(&options, 2);
        let calls = (0..200).map(|trace| {
            let call = tool(trace, 2, 1, (SECOND, SECOND));
            Span { failed: trace % 3 == 0, ..call }
        });
        pipeline.apply(calls.collect(), vec![], vec![], at(SECOND));
        for minute in 1..70 {
            pipeline.advance(at(minute * MINUTE));
            if crash == Some(minute) {
                pipeline = restarted(pipeline, &options, Route::new(2, 0));
            }
        }
        let board = pipeline.board().iter();
        let counted: BTreeMap<_, _> = board
            .map(|(agent, update)| {
                let of = |family: Counter| update.counters.family(family).to_vec();
                (
                    agent.clone(),
                    (of(Counter::Traces), of(Counter::TraceEvaluations), of(Counter::ToolCalls)),
                )
            })
            .collect();
        format!("{counted:?}")
    };
    let straight = verdicts(None);
    assert!(straight.contains("\"trace_risk\""), "{straight}");
    for crash in [1, 7, 59, 61] {
        assert_eq!(straight, verdicts(Some(crash)), "{crash}");
    }
}

#[test]
fn silence_counts_from_when_the_daemon_listens() {
    let options = EngineOptions::default();
    for listens in [false, true] {
        let mut pipeline = Pipeline::new(&options, 2);
        let times = (Duration::ZERO, SECOND);
        let parent = Some(SpanId([9; 8]));
        let agent = Span { parent, remote_parent: Some(false), ..root(0, times) };
        pipeline.apply(vec![agent], vec![], vec![], at(SECOND));
        pipeline.advance(at(MINUTE));
        let mut next = restarted(pipeline, &options, Route::new(2, 0));
        if listens {
            let (_, _, sessions, _) = next.lasting();
            sessions.iter_mut().for_each(|stage| stage.take_over(at(26 * MINUTE)));
        }
        let mut stalled = |minute| -> u64 {
            next.advance(at(minute * MINUTE));
            next.board().values().map(|update| update.view.traces_stalled).sum()
        };
        let missed = u64::from(!listens);
        assert_eq!([stalled(26), stalled(40), stalled(42)], [missed, missed, 1]);
    }
}

/// Two weeks of 500 traces a day, one in a hundred of which loses its root; then ten hang within an hour.
#[test]
fn where_roots_are_lost_again_and_again_only_many_silent_traces_stall() {
    let mut daemon = Daemon::new(2);
    let pace = Duration::from_secs(173);
    let stalled = |daemon: &Daemon| -> u64 {
        daemon.pipeline.board().values().map(|update| update.view.traces_stalled).sum()
    };
    // A trace, and whether its root comes.
    let send = |daemon: &mut Daemon, trace: u64, whole: bool| {
        let now = pace * u32::try_from(trace).unwrap();
        daemon.pipeline.advance(at(now));
        let times = (now, now + SECOND);
        let spans = [tool(trace, 2, 1, times), root(trace, times)];
        daemon.send(spans.into_iter().take(1 + usize::from(whole)).collect(), now + SECOND);
    };
    let (mut alerts, mut was_stalled) = (Vec::new(), false);
    for trace in 0_u64..7_000 {
        // At a time that nothing repeats, as chance has it.
        let lost = xxh3_64(&trace.to_be_bytes()).is_multiple_of(100);
        send(&mut daemon, trace, !lost);
        let is_stalled = stalled(&daemon) > 0;
        if is_stalled && !was_stalled {
            alerts.push(trace);
        }
        was_stalled = is_stalled;
    }
    // Before it is known that they are lost again and again, each of them may hang.
    assert!(
        (1..=3).contains(&alerts.len()) && alerts.iter().all(|trace| *trace < 500),
        "{alerts:?}"
    );
    (7_000..7_010).for_each(|trace| send(&mut daemon, trace, false));
    daemon.pipeline.advance(at(pace * 7_010 + Duration::from_secs(900)));
    assert!(stalled(&daemon) >= 9, "{}", stalled(&daemon));
}

/// A turn of a conversation that is one trace: tool calls below its own root, all with ids that no other turn has.
fn turn(number: u8, calls: u8, begun: Duration) -> Vec<Span> {
    let first = number * 20 + 1;
    let ends = |call: u8| begun + SECOND * u32::from(call);
    let called = (1..=calls).map(|call| tool(0, first + call, first, (ends(call - 1), ends(call))));
    let named = Span { span_id: SpanId([first; 8]), ..root(0, (begun, ends(calls) + SECOND)) };
    called.chain([named]).collect()
}

#[test]
fn what_runs_on_behind_a_turn_that_is_sealed_is_late_and_begins_none() {
    let mut daemon = Daemon::new(1);
    daemon.send(turn(0, 3, Duration::ZERO), 5 * SECOND);
    daemon.run_to(5 * SECOND, 10 * MINUTE);
    // A summary is written behind the answer, and what was sent is sent again, both roots and calls.
    let behind = Span { operation: Operation::Chat, ..span(0, 90, 1, (7 * MINUTE, 8 * MINUTE)) };
    let job = Span { convention: None, ..span(0, 91, 1, (7 * MINUTE, 8 * MINUTE)) };
    daemon.send([vec![behind, job], turn(0, 3, Duration::ZERO)].concat(), 10 * MINUTE);
    daemon.run_to(10 * MINUTE, 3 * HOUR);
    assert_eq!(daemon.verdicts("support"), (0, 1));
    assert_eq!(daemon.verdicts("shop"), (0, 0));
    assert_eq!(daemon.count("support", Counter::ToolCalls, &["ok"]), 3);
}

#[test]
fn a_root_that_comes_for_a_trace_that_was_sealed_without_it_has_a_counter() {
    let mut daemon = Daemon::new(1);
    daemon.send(vec![tool(0, 2, 1, (SECOND, SECOND))], SECOND);
    daemon.run_to(SECOND, 2 * HOUR);
    let late = [tool(0, 3, 1, (SECOND, SECOND)), root(0, (Duration::ZERO, 2 * HOUR))];
    daemon.send(late.to_vec(), 2 * HOUR);
    daemon.run_to(2 * HOUR, 4 * HOUR);
    assert_eq!(daemon.verdicts("support"), (0, 0));
    let (_, stages, _, _) = daemon.pipeline.lasting();
    let late = |outcome| stages[0].counts().get("late", outcome);
    assert_eq!((late("dropped"), late("root_dropped")), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn each_turn_of_a_trace_id_that_comes_when_those_before_are_sealed_counts_once(
        turns in prop::collection::vec((0_u8..12, 8_u64..90), 1..6),
        order in prop::collection::vec(any::<u16>(), 17),
        // Repeated parts of earlier turns, between two requests.
        again in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        (shards, together, restart) in (1_u32..5, 1_usize..6, 0_usize..8),
    ) {
        let options = EngineOptions::default();
        let mut pipeline = Pipeline::new(&options, shards);
        let (mut now, mut earlier) = (Duration::ZERO, Vec::<Span>::new());
        let (mut calls, mut late) = (0, 0);
        for (number, (called, minutes)) in turns.iter().enumerate() {
            if number == restart {
                pipeline = restarted(pipeline, &options, Route::new(shards, 0));
            }
            let mut spans = turn(u8::try_from(number).unwrap(), *called, now);
            calls += u64::from(*called);
            let kept = spans.clone();
            spans.sort_by_key(|span| order[usize::from(span.span_id.0[0]) % order.len()]);
            now += 20 * SECOND;
            for request in spans.chunks(together) {
                pipeline.apply(request.to_vec(), vec![], vec![], at(now));
                let old = again.iter().filter(|_| !earlier.is_empty());
                let old: Vec<Span> = old.map(|again| again.get(&earlier).clone()).collect();
                late += old.len() as u64;
                pipeline.apply(old, vec![], vec![], at(now));
                now += Duration::from_millis(900);
                pipeline.advance(at(now));
            }
            earlier.extend(kept);
            // Sealed after five minutes and a few seconds.
            now += MINUTE * u32::try_from(*minutes).unwrap();
            pipeline.advance(at(now));
        }
        pipeline.advance(at(now + 3 * HOUR));
        let count = |family: Counter, labels: &[&str]| -> u64 {
            let board = pipeline.board().values();
            board.filter_map(|update| update.counters.get(family, labels)).sum()
        };
        let traces = count(Counter::TraceEvaluations, &["trace_risk", "fail"]);
        let evaluated = (traces, count(Counter::Traces, &[]), count(Counter::ToolCalls, &["ok"]));
        let (_, stages, _, _) = pipeline.lasting();
        let dropped: u64 = stages.iter().map(|stage| stage.counts().get("late", "dropped")).sum();
        prop_assert_eq!(evaluated, (turns.len() as u64, turns.len() as u64, calls));
        // A restart resets the counts of stages.
        if restart == 0 || restart >= turns.len() {
            prop_assert_eq!(dropped, late);
        }
    }
}
