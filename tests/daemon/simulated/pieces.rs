//! Runs of minutes whose spans are sent as they end, some late, twice and shuffled: each counts as if it had arrived at once, and
//! as if the engine had never been saved and restored in between.

#[path = "../../engine/recorded.rs"]
mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use agentgauge::config::Config;
use agentgauge::engine::pipeline::Pipeline;
use agentgauge::engine::route::Route;
use agentgauge::engine::span::{Operation, Span, SpanId, Timestamp, TraceId};
use agentgauge::export::prometheus::{Detail, Format, render};

use super::agents::{BEGIN, Random, SECOND, STEP, Worker, at, spans};
use super::{CHANGE, HOUR, MINUTE, worker};

/// A run of an agent.
struct Run {
    agent: &'static str,
    /// When its root is sent, in nanoseconds from the begin of the simulation.
    sent: u64,
    fails: bool,
    /// Its spans in the order of their ends, each with when it ends.
    spans: Vec<(u64, Span)>,
}

/// The spans of each request, by arrival.
type Requests = BTreeMap<u64, Vec<Span>>;

const SHARDS: u32 = 2;

/// Until when runs begin, in seconds, and when all is over.
const LAST: u64 = CHANGE + 3 * HOUR;
const OVER: u64 = LAST + HOUR;

/// Series that show the order or the time of arrivals, or count a trace as it is when it is first done: for them, late is too late.
const AS_IT_CAME: &[(&str, &str)] = &[
    ("agentgauge_agent_drop", ""),
    ("agentgauge_agent_last_trace_timestamp_seconds", ""),
    ("agentgauge_trace_evaluations_total", "signal=\"tool_success\""),
    ("agentgauge_trace_signal_score", ""),
    ("agentgauge_trace_tokens", ""),
    ("gen_ai_invoke_agent_", ""),
];

/// The runs of an agent.
fn runs(worker: &Worker, random: &mut Random) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut begun = random.gap(worker);
    while begun < LAST * SECOND {
        let number = worker.every_seconds << 32 | runs.len() as u64;
        let fails = random.next() < worker.level(begun);
        runs.push(run(worker, number, begun, fails, random));
        begun += random.gap(worker);
    }
    runs
}

/// Model calls of some seconds and tool calls of one to five minutes in turn, for ten minutes or so. Only the root names the agent;
/// the clock of the tools is behind.
fn run(worker: &Worker, number: u64, begun: u64, fails: bool, random: &mut Random) -> Run {
    let time = |nanos: u64| Timestamp(BEGIN * SECOND + nanos);
    let trace_id = TraceId(u128::from(number).to_be_bytes());
    let (mut now, mut all) = (begun, Vec::new());
    while now < begun + 8 * MINUTE * SECOND {
        let turn = spans(worker, number << 8 | all.len() as u64, now, false);
        for span in turn.into_iter().filter(|span| span.parent.is_some()) {
            let (takes, behind) = if span.operation == Operation::Chat {
                (SECOND + random.below(20 * SECOND), 0)
            } else {
                (MINUTE * SECOND + random.below(4 * MINUTE * SECOND), 3 * SECOND)
            };
            let (start, end) = (time(now - behind), time(now + takes - behind));
            now += takes;
            let span_id = SpanId((all.len() as u64 + 1).to_be_bytes());
            all.push((now, Span { trace_id, span_id, agent_name: None, start, end, ..span }));
        }
    }
    let root = spans(worker, number, now, fails).into_iter().filter(|span| span.parent.is_none());
    all.extend(root.map(|root| (now, Span { trace_id, start: time(begun), ..root })));
    Run { agent: worker.agent, sent: flushed(now), fails, spans: all }
}

/// When an exporter sends what ends at a time.
fn flushed(end: u64) -> u64 {
    end.next_multiple_of(5 * SECOND)
}

/// Each run in one piece, when its root is sent.
fn whole(runs: &[Run]) -> Requests {
    let mut requests = Requests::new();
    for run in runs {
        let spans = run.spans.iter().map(|(_, span)| span.clone());
        requests.entry(run.sent).or_default().extend(spans);
    }
    requests
}

/// Spans as they end, one in twenty up to four minutes after its root; one request in ten again within a minute; each shuffled.
fn in_pieces(runs: &[Run], random: &mut Random) -> Requests {
    let mut requests = Requests::new();
    for run in runs {
        for (end, span) in &run.spans {
            let is_late = span.parent.is_some() && random.next() < 0.05;
            let late = run.sent + 30 * SECOND + random.below(210 * SECOND);
            let sent = if is_late { late } else { flushed(*end) };
            requests.entry(sent).or_default().push(span.clone());
        }
    }
    for (sent, spans) in requests.clone() {
        if random.next() < 0.1 {
            let again = sent + SECOND + random.below(MINUTE * SECOND);
            requests.entry(again).or_default().extend(spans);
        }
    }
    requests.values_mut().for_each(|spans| spans.sort_by_cached_key(|_| random.below(u64::MAX)));
    requests
}

/// The pages of every ten minutes, each with its second; `restarts`: the engine is saved and restored after each of them.
fn pages(requests: Requests, restarts: bool) -> Vec<(u64, String)> {
    let options = Config::default().engine_options(Arc::from([]));
    let new = || Pipeline::new(&options, SHARDS);
    let mut pipeline = new();
    let mut requests = requests.into_iter().peekable();
    let seconds = (0..=OVER).step_by(600);
    let page = |until: u64| {
        if restarts {
            let before = mem::replace(&mut pipeline, new());
            pipeline = recorded::restarted(before, &options, Route::new(SHARDS, 0));
        }
        while let Some((now, spans)) = requests.next_if(|(now, _)| *now <= until * SECOND) {
            pipeline.advance_in_steps(at(now), STEP);
            pipeline.apply(spans, Vec::new(), Vec::new(), at(now));
        }
        pipeline.advance_in_steps(at(until * SECOND), STEP);
        let board = pipeline.board().values().cloned().map(Arc::new).collect::<Vec<_>>();
        (until, render(&board, Format::Text, Detail::Full))
    };
    seconds.map(page).collect()
}

/// The sum of a family's series that have these labels.
fn sum(page: &str, family: &str, labels: &[&str]) -> u64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
    let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Each run has counted once its root came and nothing more for `assemble.trace_idle`, never before, with its verdict and under its
/// agent; and nothing else has.
fn assert_counted(runs: &[Run], (seconds, page): &(u64, String)) {
    let over = runs.iter().filter(|run| run.sent + 10 * SECOND <= seconds * SECOND);
    let verdicts = "agentgauge_trace_evaluations_total";
    for agent in ["support", "billing"] {
        let name = &format!("agent_name=\"{agent}\"");
        let own = over.clone().filter(|run| run.agent == agent);
        for (fails, verdict) in [(true, "verdict=\"fail\""), (false, "verdict=\"pass\"")] {
            let counted = sum(page, verdicts, &["signal=\"trace_risk\"", name, verdict]);
            let expected = own.clone().filter(|run| run.fails == fails).count() as u64;
            assert_eq!(counted, expected, "{agent}, {verdict}, after {seconds} s");
        }
    }
    let traces = sum(page, "agentgauge_traces_total", &[]);
    assert_eq!(traces, over.count() as u64, "after {seconds} s");
}

/// When an agent's drop is first seen.
fn paged(pages: &[(u64, String)], agent: &str) -> Option<u64> {
    let labels = [&format!("agent_name=\"{agent}\""), "stream=\"verdict\"", "critical"];
    let page = pages.iter().find(|(_, page)| sum(page, "agentgauge_agent_drop", &labels) > 0);
    page.map(|(seconds, _)| *seconds)
}

/// The series that are the same whenever and in whichever order spans came.
fn comparable(page: &str) -> BTreeSet<&str> {
    let as_it_came = |line: &str| {
        let mut series = AS_IT_CAME.iter();
        series.any(|(family, label)| line.starts_with(family) && line.contains(label))
    };
    page.lines().filter(|line| !line.starts_with('#') && !as_it_came(line)).collect()
}

fn assert_same([one, other]: [BTreeSet<&str>; 2], seconds: u64) {
    let differing: Vec<_> = one.symmetric_difference(&other).collect();
    assert!(differing.is_empty(), "after {seconds} s: {differing:#?}");
    assert!(one.len() > 100 || seconds < HOUR, "{} series after {seconds} s", one.len());
}

#[test]
fn runs_count_the_same_in_pieces_as_whole_and_over_restarts() {
    let random = &mut Random(11);
    let support = worker("support", "2", vec![(0, 0.01), (CHANGE, 0.4)]);
    let billing = worker("billing", "7", vec![(0, 0.05)]);
    let mut all = runs(&support, random);
    all.extend(runs(&Worker { every_seconds: 300, ..billing }, random));
    let requests = in_pieces(&all, random);
    let restarted = pages(requests.clone(), true);
    let [whole, pieces] = &[whole(&all), requests].map(|requests| pages(requests, false));
    whole.iter().chain(pieces).for_each(|page| assert_counted(&all, page));
    for ((seconds, page), (_, other)) in pieces.iter().zip(&restarted) {
        assert_same([page, other].map(|page| page.lines().collect()), *seconds);
    }
    let found = paged(whole, "support").unwrap();
    assert!((CHANGE..CHANGE + HOUR).contains(&found), "{found}");
    assert!(paged(pieces, "support").unwrap().abs_diff(found) <= 600);
    assert_eq!([paged(whole, "billing"), paged(pieces, "billing")], [None; 2]);
    assert_same([whole, pieces].map(|pages| comparable(&pages.last().unwrap().1)), OVER);
}
