//! What a start recovers: its tenants, data of other releases, and how much at most.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::support::{BETWEEN, Daemon, LOOKS, command, fails, now, post, request, send_as, traces};

#[test]
fn a_store_of_another_format_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    assert_eq!(post(&daemon.otlp_http, &request(0, now())).unwrap().0, 200);
    daemon.ends_well();
    let files = fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let snapshot = files.filter(|path| name(path).starts_with("snapshot-")).max().unwrap();
    let own = fs::read(&snapshot).unwrap()[6];
    for version in [1, own - 1, own + 1] {
        let mut bytes = fs::read(&snapshot).unwrap();
        bytes[6] = version;
        let sum = crc32c::crc32c(&bytes[..16]);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        fs::write(&snapshot, bytes).unwrap();
        let text = fails(store.path(), &[]);
        assert!(text.contains(&name(&snapshot)) && text.contains("`store.directory`"), "{text}");
        assert!(text.contains(&format!("format {version}")), "{text}");
    }
}

/// Senders with tenants, and one without; queries need no token, and so see all.
const TENANTS: &str = r#"[access]
open = ["read", "metrics"]
tokens = [
  { name = "shop", env = "SHOP", tenant = "shop", may = ["ingest"] },
  { name = "bank", env = "BANK", tenant = "bank", may = ["ingest"] },
  { name = "plain", env = "PLAIN", may = ["ingest"] },
]
"#;

#[test]
fn what_is_replayed_is_whose_it_was() {
    let store = tempfile::tempdir().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), TENANTS).unwrap();
    let senders = [("SHOP", "shop"), ("BANK", "bank"), ("PLAIN", "")];
    let token = |variable: &str| format!("a-token-of-{variable}-0123456789");
    let start = || {
        let mut command = command(store.path(), &[]);
        command.arg("--config").arg(config.path());
        command.envs(senders.map(|(variable, _)| (variable, token(variable))));
        Daemon::of(command.spawn().unwrap())
    };
    let shown = |daemon: &Daemon| {
        senders.map(|(_, tenant)| {
            let path = format!("/api/v1/sessions/session-0?tenant={tenant}");
            let session: Value = serde_json::from_str(&daemon.get(&path)).unwrap();
            let reported = session["signals"]["helpfulness"]["score"].as_f64();
            (session["agent"]["tenant"].clone(), reported, traces(&[session]))
        })
    };
    let daemon = start();
    let base = now();
    // One session id, and to each sender a trace of it; what is reported of a session is its sender's alone.
    for (trace, (variable, _)) in senders.into_iter().enumerate() {
        let token = token(variable);
        for number in [2 * trace, 2 * trace + 1] {
            let target = ("/v1/traces", "application/x-protobuf");
            let body = request(number, base);
            let answer = send_as(Some(&token), &daemon.otlp_http, target, &body).unwrap();
            assert_eq!(answer.0, 200, "{}", answer.1);
        }
        let score = serde_json::json!({
            "session_id": "session-0", "name": "helpfulness", "score": trace as f64 / 4.0
        });
        let body = serde_json::json!({ "reports": [score] }).to_string();
        let target = ("/api/v1/reports", "application/json");
        let answer = send_as(Some(&token), &daemon.http, target, body.as_bytes()).unwrap();
        assert_eq!(answer.0, 200, "{}", answer.1);
    }
    let expected = [("shop", 0_u8), ("bank", 1), ("", 2)].map(|(tenant, trace)| {
        let tenant = if tenant.is_empty() { Value::Null } else { tenant.into() };
        (tenant, Some(f64::from(trace) / 4.0), BTreeSet::from([usize::from(trace)]))
    });
    let mut before = shown(&daemon);
    for _ in 0..LOOKS {
        if before == expected {
            break;
        }
        std::thread::park_timeout(BETWEEN);
        before = shown(&daemon);
    }
    assert_eq!(before, expected);
    daemon.dies();
    // From the log alone, then from a snapshot.
    for records in [9.0, 0.0] {
        let daemon = start();
        let found = daemon.metric("agentgauge_store_recovered{what=\"records\"}");
        assert!((found - records).abs() < 0.5, "{found}");
        assert_eq!(shown(&daemon), expected);
        daemon.ends_well();
    }
}

/// However few bytes they are: what a start takes its time over is bounded.
#[test]
fn what_is_replayed_is_bounded_in_spans_too() {
    let store = tempfile::tempdir().unwrap();
    let environment = [
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "1000000000"),
        ("AGENTGAUGE__STORE__SNAPSHOT_SPANS", "60"),
    ];
    let daemon = Daemon::start(store.path(), &environment);
    let (base, mut sent) = (now(), 0);
    let written = "agentgauge_store_snapshots_total{outcome=\"written\"} 2";
    while !daemon.get("/metrics").contains(written) {
        assert!(sent < 5_000);
        assert_eq!(post(&daemon.otlp_http, &request(sent, base)).unwrap().0, 200);
        sent += 1;
    }
    daemon.dies();
    let daemon = Daemon::start(store.path(), &environment);
    let replayed = daemon.metric("agentgauge_store_recovered{what=\"records\"}");
    assert!(sent > 20 && replayed < sent as f64 / 2.0, "{replayed} of {sent}");
    assert_eq!(traces(&daemon.sessions()).len(), sent.div_ceil(2));
}
