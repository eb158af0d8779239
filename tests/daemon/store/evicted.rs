//! Sessions without room: on disk until something arrives for them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{BETWEEN, Daemon, LOOKS, equal_scores, now, post, replayed, report, request};

/// Waits until a session is shown as a replay shows it.
fn equals(daemon: &Daemon, session: &Value) {
    let path = format!("/api/v1/sessions/{}", session["session_id"].as_str().unwrap());
    let mut shown = Value::Null;
    for _ in 0..LOOKS {
        shown = serde_json::from_str(&daemon.get(&path)).unwrap_or_default();
        if shown == *session {
            break;
        }
        std::thread::park_timeout(BETWEEN);
    }
    assert_eq!(shown, *session, "bit for bit");
}

/// Files of sessions for which there was no room.
fn evicted_files(store: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.to_string_lossy().contains("/evicted-")).collect();
    files.sort();
    files
}

/// Room for two sessions in each shard.
const LITTLE_ROOM: [(&str, &str); 4] = [
    ("AGENTGAUGE__SESSION__MAX_SESSIONS", "2"),
    ("AGENTGAUGE__ENGINE__SHARDS", "2"),
    ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "20000"),
    ("AGENTGAUGE__STORE__SEGMENT_BYTES", "20000"),
];

/// All first parts, then all second ones, each acknowledged: every session is left alone for long.
fn speak_again(daemon: &mut Daemon, (store, recordings): (&Path, &Path), count: usize) {
    let base = now();
    let order = (0..count).step_by(2).chain((1..count).step_by(2));
    for (place, number) in order.enumerate() {
        let body = request(number, base);
        fs::write(recordings.join(format!("{place:06}-traces.pb")), &body).unwrap();
        assert_eq!(post(&daemon.otlp_http, &body).unwrap().0, 200);
        if place % (count / 4) == count / 8 {
            daemon.process.kill().unwrap();
            daemon.process.wait().unwrap();
            *daemon = Daemon::start(store, &LITTLE_ROOM);
        }
    }
}

/// Many more sessions than there is room for: the others are on disk, data arrives for them again, and kills change nothing about
/// that.
#[test]
fn sessions_that_left_for_want_of_room_come_back() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 400);
    let expected = replayed(recordings.path());
    expected["sessions"].as_array().unwrap().iter().for_each(|session| equals(&daemon, session));
    for session in expected["sessions"].as_array().unwrap() {
        let trace = session["traces"][0]["trace_id"].as_str().unwrap();
        let found: Value =
            serde_json::from_str(&daemon.get(&format!("/api/v1/traces/{trace}"))).unwrap();
        assert_eq!(found["session_id"], session["session_id"], "{found}");
    }
    equal_scores(&daemon, &expected);
    assert!(daemon.metric("agentgauge_held{what=\"sessions_evicted\"}") > 50.0);
    assert!(daemon.metric("agentgauge_sessions_evicted_total{event=\"restored\"}") > 10.0);
    assert!(daemon.metric("agentgauge_store_bytes{what=\"evicted\"}") > 10_000.0);
    assert!(!daemon.get("/metrics").contains("event=\"lost\""));
    assert!(!daemon.get("/metrics").contains("limit=\"sessions_evicted\""));
    let list: Value = serde_json::from_str(&daemon.get("/api/v1/sessions")).unwrap();
    assert_eq!(list["partial"], true, "those that are away are in no list");
    daemon.ends_well();
    // Evicted sessions are named in the snapshot: nothing is replayed, and with room for all the results are the same.
    let daemon = Daemon::start(store.path(), &[("AGENTGAUGE__ENGINE__SHARDS", "2")]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"records\"}") < 1.0);
    expected["sessions"].as_array().unwrap().iter().for_each(|session| equals(&daemon, session));
    equal_scores(&daemon, &expected);
}

#[test]
fn damage_to_a_session_on_disk_costs_that_one_alone() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 240);
    let expected = replayed(recordings.path());
    let sessions = expected["sessions"].as_array().unwrap();
    sessions.iter().for_each(|session| equals(&daemon, session));
    daemon.ends_well();
    let hurt = "session-17";
    let mut found = 0;
    for path in evicted_files(store.path()) {
        let mut bytes = fs::read(&path).unwrap();
        let places: Vec<usize> = (0..bytes.len().saturating_sub(hurt.len()))
            .filter(|at| bytes[*at..].starts_with(hurt.as_bytes()))
            .collect();
        places.iter().for_each(|at| bytes[*at] ^= 1);
        found += places.len();
        fs::write(&path, bytes).unwrap();
    }
    assert!(found > 0);
    let daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    let others = sessions.iter().filter(|session| session["session_id"] != hurt);
    others.for_each(|session| equals(&daemon, session));
    assert!(daemon.get(&format!("/api/v1/sessions/{hurt}")).contains("error"));
    // Whoever speaks of it again finds that out.
    let score = serde_json::json!({ "session_id": hurt, "name": "quality", "score": 0.5 });
    let (status, answer) = report(&daemon.http, &serde_json::json!([score])).unwrap();
    assert_eq!(status, 200, "{answer}");
    let lost = "agentgauge_sessions_evicted_total{event=\"lost\"} 1\n";
    let told = (0..LOOKS).any(|_| {
        std::thread::park_timeout(BETWEEN);
        daemon.get("/metrics").contains(lost)
    });
    assert!(told, "{}", daemon.get("/metrics"));
}

#[test]
fn a_file_of_sessions_that_is_removed_under_the_daemon_is_counted() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 240);
    let before = daemon.metric("agentgauge_store_bytes{what=\"evicted\"}");
    let gone = evicted_files(store.path());
    gone.iter().for_each(|path| fs::remove_file(path).unwrap());
    let (mut missing, mut after) = (0.0, before);
    for _ in 0..LOOKS {
        missing = daemon.metric("agentgauge_store_files_missing_total");
        after = daemon.metric("agentgauge_store_bytes{what=\"evicted\"}");
        if missing > 0.5 && after < before {
            break;
        }
        std::thread::park_timeout(BETWEEN);
    }
    assert!(missing > 0.5 && missing < gone.len() as f64 + 0.5, "{missing} of {}", gone.len());
    assert!(after < before, "{after} bytes of {before} are gone");
    // It continues, with the existing files.
    let base = now();
    for number in 0..60 {
        assert_eq!(post(&daemon.otlp_http, &request(20_000 + number, base)).unwrap().0, 200);
    }
    daemon.ends_well();
}

/// They go with the second snapshot that names nothing in them; what is away stays within its part of the budget.
#[test]
fn files_of_sessions_that_are_not_needed_go() {
    let (store, recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut daemon = Daemon::start(store.path(), &LITTLE_ROOM);
    speak_again(&mut daemon, (store.path(), recordings.path()), 240);
    daemon.ends_well();
    let before = evicted_files(store.path());
    assert!(before.len() > 2, "{before:?}");
    // Sessions close, and are released: none of the files is needed any more.
    let soon = [("AGENTGAUGE__SESSION__SESSION_IDLE", "500ms")];
    let environment: Vec<_> = LITTLE_ROOM.into_iter().chain(soon).collect();
    let daemon = Daemon::start(store.path(), &environment);
    let base = now();
    let gone = (0..LOOKS).any(|look| {
        // Enough for a snapshot every few looks.
        for number in 0..10 {
            let body = request(10_000 + 10 * usize::try_from(look).unwrap() + number, base);
            assert_eq!(post(&daemon.otlp_http, &body).unwrap().0, 200);
        }
        std::thread::park_timeout(BETWEEN);
        let after = evicted_files(store.path());
        !before.iter().any(|path| after.contains(path))
    });
    assert!(gone, "{:?}", evicted_files(store.path()));
}
