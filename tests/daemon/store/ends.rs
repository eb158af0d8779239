//! Killed under load, and stopped in order: nothing acknowledged is lost, and the results are those of a replay.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;

use super::support::{
    BETWEEN, Daemon, LASTING, LOOKS, Load, attribute, command, equal_scores, exported, now, post,
    replayed, replayed_with, report, request, traces,
};
use crate::support::daemon::until;

/// How the name of the log's first file begins.
const FIRST_SEGMENT: &str = "log-00000000000000000001-";

fn number(name: &str, default: usize) -> usize {
    let found = std::env::vars_os().find(|(key, _)| key == name);
    found.map_or(default, |(_, value)| value.to_str().unwrap().parse().unwrap())
}

fn survives_kills(durability: &str, kills: usize) {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let environment = [
        ("AGENTGAUGE__STORE__DURABILITY", durability),
        // However long many kills take, no session goes because it was quiet.
        ("AGENTGAUGE__SESSION__SESSION_IDLE", "1d"),
    ];
    let mut daemon = Daemon::start(store.path(), &environment);
    let total = (kills + 1) * 60;
    let (load, senders) = Load::start(&daemon, recordings.path(), 6, total);
    let mut replays = 0.0;
    for kill in 1..=kills {
        // Somewhere in the middle of what is under way.
        while load.acknowledged.lock().unwrap().len() < kill * 60 - 17 {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let acknowledged = load.acknowledged.lock().unwrap().clone();
        daemon.dies();
        daemon = Daemon::start(store.path(), &environment);
        assert_eq!(daemon.get("/readyz"), "ready\n");
        let shown = traces(&daemon.sessions());
        let lost: Vec<usize> = acknowledged
            .iter()
            .map(|number| number / 2)
            .filter(|trace| !shown.contains(trace))
            .collect();
        assert!(lost.is_empty(), "kill {kill}: acknowledged, and lost: {lost:?}");
        assert!(daemon.metric("agentgauge_store_recovered{what=\"lost_records\"}") < 1.0);
        replays += daemon.metric("agentgauge_store_recovered{what=\"records\"}");
        load.address.lock().unwrap().clone_from(&daemon.otlp_http);
    }
    for sender in senders {
        sender.join().unwrap();
    }
    assert_eq!(load.acknowledged.lock().unwrap().len(), total);
    assert!(replays > 0.0, "nothing was ever replayed");
    equals_the_replay(&daemon, recordings.path());
    daemon.ends_well();
    // In order, there is nothing to replay, and nothing changes.
    let daemon = Daemon::start(store.path(), &environment);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 1.0);
    equals_the_replay(&daemon, recordings.path());
    if durability == "fsync" {
        let mut names = fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let first = names.find(|name| name.to_string_lossy().starts_with(FIRST_SEGMENT));
        assert_eq!(first, None, "the log is never let go");
    }
}

/// Waits until every trace is done, and compares what is shown with an offline replay of what was acknowledged.
fn equals_the_replay(daemon: &Daemon, recordings: &Path) {
    let expected = replayed(recordings);
    equal_scores(daemon, &expected);
    let sessions = daemon.sessions();
    let expected = expected["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), expected.len());
    for (session, expected) in sessions.iter().zip(expected) {
        assert_eq!(session, expected, "bit for bit");
    }
}

#[test]
fn no_kill_loses_what_was_acknowledged_and_the_scores_are_those_of_a_replay() {
    survives_kills("fsync", number("AGENTGAUGE_KILLS", 20));
}

#[test]
fn what_is_flushed_outlives_the_process() {
    survives_kills("flush", number("AGENTGAUGE_KILLS", 20).div_ceil(5));
}

/// A trace of an agent that begins to fail at a certain one, from now.
fn failing(trace: usize, fails_from: usize) -> Vec<u8> {
    let start = now();
    let span = |id: u64, parent: u64, attributes: Vec<KeyValue>| Span {
        trace_id: (trace as u128 + 1).to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: if parent == 0 { Vec::new() } else { parent.to_be_bytes().to_vec() },
        name: "step".to_owned(),
        start_time_unix_nano: start,
        end_time_unix_nano: start + 1_000,
        attributes,
        ..Span::default()
    };
    let mut root = vec![
        attribute("gen_ai.operation.name", "invoke_agent"),
        attribute("gen_ai.agent.name", "failing"),
        attribute("gen_ai.conversation.id", &format!("session-{trace}")),
    ];
    let mut call = vec![
        attribute("gen_ai.operation.name", "execute_tool"),
        attribute("gen_ai.tool.name", "search"),
    ];
    if trace >= fails_from {
        root.push(attribute("error.type", "timeout"));
        call.push(attribute("error.type", "timeout"));
    }
    exported(vec![span(1, 0, root), span(2, 1, call)])
}

/// What was reported of a run.
fn reported(number: usize) -> Value {
    let run = serde_json::json!({
        "agent": { "service_name": "bench", "agent_name": "reported" },
        "task_id": format!("task-{}", number % 4),
        "run_id": number.to_string(),
    });
    serde_json::json!([
        { "id": "ci", "run": run, "name": "outcome", "score": number % 7 > 1 },
        { "id": "self", "run": run, "name": "confidence", "score": (number % 10) as f64 / 10.0 },
    ])
}

/// An agent by its name.
fn agent(daemon: &Daemon, name: &str) -> Value {
    let agents: Value = serde_json::from_str(&daemon.get("/api/v1/agents")).unwrap();
    let found = agents["agents"].as_array().unwrap().iter();
    let mut found = found.filter(|agent| agent["agent_name"] == name);
    found.next().cloned().unwrap_or(Value::Null)
}

#[test]
fn runs_that_were_only_reported_and_rising_evidence_outlive_kills() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let environment = [
        // With several shards, chance decides which of two traces done at once is reported first.
        ("AGENTGAUGE__ENGINE__SHARDS", "1"),
        // Some of the recovered data is in a snapshot, some in the log.
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "4096"),
    ];
    let mut daemon = Daemon::start(store.path(), &environment);
    // From the 50th on all fail: some kills are in the middle of what becomes a drop, one is after it.
    let (total, kills) = (100, [13, 50, 52, 54, 90]);
    for number in 0..total {
        let body = failing(number, 50);
        fs::write(recordings.path().join(format!("{number:06}-traces.pb")), &body).unwrap();
        assert_eq!(post(&daemon.otlp_http, &body).unwrap().0, 200);
        assert_eq!(report(&daemon.http, &reported(number)).unwrap().0, 200);
        if kills.contains(&number) {
            daemon.dies();
            daemon = Daemon::start(store.path(), &environment);
            assert_eq!(daemon.get("/readyz"), "ready\n");
            let scores = &agent(&daemon, "reported")["score_samples"];
            assert_eq!(scores["accuracy"].as_u64(), Some(number as u64 + 1), "{scores}");
        }
    }
    // Another one, which never died and received the same.
    let other = tempfile::tempdir().unwrap();
    let undisturbed = Daemon::start(other.path(), &environment);
    for number in 0..total {
        assert_eq!(report(&undisturbed.http, &reported(number)).unwrap().0, 200);
    }
    for daemon in [&undisturbed, &daemon] {
        let all = (0..LOOKS).any(|_| {
            std::thread::park_timeout(BETWEEN);
            agent(daemon, "reported")["score_samples"]["accuracy"].as_u64() == Some(total as u64)
        });
        assert!(all, "{}", agent(daemon, "reported")["score_samples"]);
    }
    for key in LASTING {
        let told = agent(&undisturbed, "reported")[key].clone();
        assert_eq!(agent(&daemon, "reported")[key], told, "{key}");
    }
    let drops = |environment: &[(&str, &str)]| {
        replayed_with(recordings.path(), environment)["agents"][0]["drops"].clone()
    };
    let mut expected = drops(&[]);
    // The agent that was only reported of has a stream that pages, too: what may be false is shared with it.
    let shared = drops(&[("AGENTGAUGE__DROP__FALSE_PAGES_PER_QUARTER", "0.5")]);
    let streams = expected.as_array_mut().unwrap().iter_mut().zip(shared.as_array().unwrap());
    for (stream, shared) in streams.filter(|(stream, _)| stream["pages"] == true) {
        stream.clone_from(shared);
    }
    let expected = &expected;
    assert_eq!(expected[0]["severity"], "critical", "{expected}");
    assert!(expected[0]["drop"]["traces"].as_u64() >= Some(50), "{expected}");
    let shown = |daemon: &Daemon| {
        let found = (0..LOOKS).any(|_| {
            std::thread::park_timeout(BETWEEN);
            agent(daemon, "failing")["drops"] == *expected
        });
        assert!(found, "{} is not {expected}", agent(daemon, "failing")["drops"]);
    };
    shown(&daemon);
    daemon.ends_well();
    shown(&Daemon::start(store.path(), &environment));
}

/// Sends both requests of a trace.
fn send(daemon: &Daemon, trace: usize, base: u64) {
    for number in [2 * trace, 2 * trace + 1] {
        assert_eq!(post(&daemon.otlp_http, &request(number, base)).unwrap().0, 200);
    }
}

/// How many traces have counted as done, by agent, once one of this agent has.
fn done_traces(daemon: &Daemon, agent: &str) -> BTreeMap<String, u64> {
    let mut done = BTreeMap::new();
    for _ in 0..LOOKS {
        let page = daemon.get("/metrics");
        let lines = page.lines().filter_map(|line| line.strip_prefix("agentgauge_traces_total{"));
        let counts = lines.map(|line| {
            let (labels, count) = line.rsplit_once(' ').unwrap();
            let name = labels.split("gen_ai_agent_name=\"").nth(1).unwrap();
            (name.split('"').next().unwrap().to_owned(), count.parse().unwrap())
        });
        done = counts.filter(|(_, count)| *count > 0).collect();
        if done.contains_key(agent) {
            return done;
        }
        std::thread::park_timeout(BETWEEN);
    }
    panic!("no trace of {agent} is done: {done:?}");
}

fn one_of(agent: &str) -> BTreeMap<String, u64> {
    [(agent.to_owned(), 1)].into()
}

#[test]
fn what_had_counted_before_a_kill_does_not_count_again_though_nothing_came_after_it() {
    let store = tempfile::tempdir().unwrap();
    for trace in 0..3 {
        let daemon = Daemon::start(store.path(), &[]);
        send(&daemon, trace, now());
        let agent = format!("agent-{trace}");
        // What would count again does so before this trace is quiet for long enough.
        assert_eq!(done_traces(&daemon, &agent), one_of(&agent));
        daemon.dies();
    }
}

#[test]
fn what_had_not_counted_before_a_kill_counts_after_it() {
    let store = tempfile::tempdir().unwrap();
    let environment = [("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "4s")];
    let daemon = Daemon::start(store.path(), &environment);
    send(&daemon, 0, now());
    daemon.dies();
    let daemon = Daemon::start(store.path(), &environment);
    assert_eq!(done_traces(&daemon, "agent-0"), one_of("agent-0"));
}

#[test]
fn a_stop_under_load_loses_nothing_and_leaves_nothing_to_replay() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start(store.path(), &[]);
    let (load, senders) = Load::start(&daemon, recordings.path(), 4, usize::MAX);
    while load.acknowledged.lock().unwrap().len() < 150 {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    daemon.ends_well();
    load.over.store(true, Ordering::Relaxed);
    // What was under way at the end was not acknowledged: it is among the last few.
    let before = load.acknowledged.lock().unwrap().clone();
    for sender in senders {
        sender.join().unwrap();
    }
    let daemon = Daemon::start(store.path(), &[]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 1.0);
    let shown = traces(&daemon.sessions());
    for number in before {
        assert!(shown.contains(&(number / 2)), "request {number} is lost");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_terminal_that_could_close_sighup_does_not_end_it() {
    let store = tempfile::tempdir().unwrap();
    let inner = command(store.path(), &[]);
    let by = |outer: &mut Command| {
        outer.arg(inner.get_program()).args(inner.get_args());
        outer.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let outer = outer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Daemon::of(outer.spawn().unwrap())
    };
    // Whatever runs the tests may have it ignored.
    let daemon = by(Command::new("env").arg("--default-signal=HUP"));
    assert_eq!(post(&daemon.otlp_http, &request(1, now())).unwrap().0, 200);
    daemon.signal("-HUP");
    assert_eq!(post(&daemon.otlp_http, &request(2, now())).unwrap().0, 200);
    daemon.ends_well();
    // As `nohup` does it.
    let daemon = by(Command::new("env").arg("--ignore-signal=HUP"));
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 0.5);
    daemon.signal("-HUP");
    assert_eq!(post(&daemon.otlp_http, &request(3, now())).unwrap().0, 200);
    until(|| traces(&daemon.sessions()) == [0, 1].into());
    assert_eq!(traces(&daemon.sessions()), [0, 1].into());
    daemon.ends_well();
}
