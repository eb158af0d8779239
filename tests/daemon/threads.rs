//! A daemon that gets no more threads for a while, as in a container with a limit of processes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, getrlimit, getuid};
use serde_json::json;

use super::support::daemon::{Daemon, until};

/// A user that no process has; for root there is no such limit.
const NOBODY: u32 = 65_531;

/// The binary, as a user to whom the limit applies, and who may write below `folder`.
fn limited(folder: &Path) -> Command {
    let binary = env!("CARGO_BIN_EXE_agentgauge");
    if !getuid().is_root() {
        return Command::new(binary);
    }
    let own = folder.join("agentgauge");
    fs::copy(binary, &own).unwrap();
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(own);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    command
}

/// Sets how many threads the user may have.
fn allow(daemon: &Daemon, threads: Option<u64>) {
    let most = getrlimit(Resource::Nproc).maximum;
    let current = threads.or(most).map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
    let mut command = Command::new("prlimit");
    command.args(["--pid", &daemon.id().to_string(), &format!("--nproc={current}:")]);
    if getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    assert!(command.status().unwrap().success());
}

/// Whether it has a thread for work that blocks, which is kept for some seconds.
fn has_spare_thread(daemon: &Daemon) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter_map(Result::ok).any(|name| name.trim() == "blocking")
}

/// A request with one trace, and this much unused text.
fn request(trace: u64, bytes: usize) -> String {
    let start = "1790000000000000000";
    let chat = json!({ "key": "gen_ai.operation.name", "value": { "stringValue": "chat" } });
    json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [{
        "traceId": format!("{trace:032x}"), "spanId": "0000000000000001", "name": "step",
        "startTimeUnixNano": start, "endTimeUnixNano": start, "attributes": [chat],
    }]}]}], "unknown": "x".repeat(bytes) })
    .to_string()
}

#[test]
fn a_passing_shortage_of_threads_costs_only_what_is_refused_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let environment = [
        ("AGENTGAUGE__STORE__DIRECTORY", store.to_str().unwrap()),
        ("AGENTGAUGE__STORE__DURABILITY", "fsync"),
        ("AGENTGAUGE__STORE__SNAPSHOT_SPANS", "1"),
    ];
    let daemon = Daemon::begun_by(limited(folder.path()), &environment, Stdio::inherit());
    let send =
        |trace, bytes| daemon.post_to(&daemon.otlp_http, "/v1/traces", &request(trace, bytes)).0;
    until(|| !has_spare_thread(&daemon));
    allow(&daemon, Some(1));
    for trace in 1..=5 {
        assert_eq!(send(trace, 400_000), 503, "large bodies are decoded on a thread of their own");
    }
    assert_eq!(send(6, 0), 200);
    daemon.settles_at("agentgauge_store_snapshots_total{outcome=\"failed\"}", 1.0);
    daemon.settles_at("agentgauge_store_snapshot_failing", 1.0);
    allow(&daemon, None);
    assert_eq!(send(7, 400_000), 200);
    daemon.settles_at("agentgauge_store_snapshot_failing", 0.0);
    until(|| !has_spare_thread(&daemon));
    allow(&daemon, Some(1));
    assert_eq!(send(8, 0), 200);
    daemon.ends_well();
}
