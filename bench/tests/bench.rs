//! `agentgauge-bench` at a small size: everything is sent, scored and reported; figures are not judged.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    bench_with(arguments, "AGENTGAUGE__LOG__FORMAT", "text")
}

/// The daemon takes its configuration from the environment.
fn bench_with(arguments: &[&str], name: &str, value: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_agentgauge-bench"))
        .args(["--spans", "2000", "--repeats", "1"])
        .args(arguments)
        // So that traces are done soon.
        .env("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "2s")
        .env(name, value)
        .output()
        .unwrap()
}

/// The median of a figure in a report as JSON.
fn figure(output: &Output, name: &str) -> f64 {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = report["cases"][0]["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    assert!(found.is_some(), "no {name}");
    found.unwrap()["median"].as_f64().unwrap()
}

#[test]
fn every_server_gets_a_figure_and_the_daemon_scores_every_trace() {
    let arguments = ["--workload", "content", "--compression", "gzip", "--output", "json"];
    let output = bench(&arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let case = &report["cases"][0];
    assert_eq!(case["compression"], "gzip");
    assert!(case["wire_bytes_per_span"].as_f64() < case["bytes_per_span"].as_f64());
    let servers = case["servers"].as_array().unwrap();
    let names: Vec<_> = servers.iter().map(|of| of["server"].as_str().unwrap()).collect();
    for name in ["floor", "stock", "stock-mimalloc", "daemon"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for of in servers {
        assert!(of["cpu_micros_per_span"]["median"].as_f64() > Some(0.0), "{of}");
        assert!(of["peak_resident_megabytes"]["median"].as_f64() > Some(1.0), "{of}");
    }
}

#[test]
fn a_daemon_that_seals_traces_early_gets_no_figure() {
    let arguments = ["--workload", "lean", "--servers", "daemon"];
    let output = bench_with(&arguments, "AGENTGAUGE__ASSEMBLE__MAX_OPEN_TRACES", "10");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("agentgauge_limits_reached_total"), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn cores_that_are_not_there_leave_the_run_unpinned_and_say_so() {
    let output = bench(&["--batch", "16", "--servers", "floor,daemon", "--cores", "0/1023"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(text.contains("NOT PINNED") && text.contains("1023"), "{text}");
    assert!(text.contains("daemon"), "{text}");
}

#[test]
fn overload_and_scaling_are_measured_with_the_daemon_alone() {
    let questions = [
        ("--overload", "accepted / saturation"),
        ("--scaling", "x one core"),
        ("--latency", "80 %: loop visible, p99, ms"),
        ("--burst", "given back, share"),
    ];
    for (question, head) in questions {
        let output = bench(&["--workload", "lean", question]);
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{error}");
        assert!(text.contains(head), "{text}");
    }
}

#[test]
fn readers_are_measured_beside_requests_without_any() {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge-bench"))
        .args(["--readers", "--agents", "20", "--sessions", "400", "--repeats", "1"])
        .args(["--output", "json"])
        .env("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "2s")
        .output()
        .unwrap();
    let figure = |name: &str| figure(&output, name);
    assert!((figure("sessions") - 400.0).abs() < 0.5);
    assert!(figure("a scrape, MB") > 0.0 && figure("a page of an agent, ms") > 0.0);
    assert!(figure("a request, p99, ms") > 0.0);
}

#[test]
fn what_is_held_is_measured_while_spans_come_in_for_so_long() {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge-bench"))
        .args(["--workload", "lean", "--sustained", "2", "--rate", "2000", "--repeats", "1"])
        .args(["--output", "json"])
        .output()
        .unwrap();
    // Whole blocks of 512 spans each second.
    let spans = figure(&output, "spans/s") * figure(&output, "seconds");
    assert!((spans - 4_096.0).abs() < 0.5, "{spans}");
    assert!(figure(&output, "peak resident, MB") > 1.0);
}

#[test]
fn durability_is_measured_and_a_start_over_what_was_logged() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().to_str().unwrap();
    let output = bench(&["--workload", "lean", "--durability", place]);
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    for figure in ["fsync, CPU x memory", "fsync, spans/s x memory", "a start, s/GiB"] {
        assert!(text.contains(figure), "{text}");
    }
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 0);
}

#[cfg(feature = "kafka")]
#[test]
fn the_way_from_kafka_is_measured_beside_a_reader_that_drops() {
    let output = bench(&["--workload", "lean", "--kafka"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(text.contains("x read and dropped"), "{text}");
}

#[test]
fn wrong_usage_exits_with_64() {
    let readers = &["--readers"][..]; // No --spans with it.
    for wrong in [readers, &["--cores", "1"], &["--compression", "lz4"], &["--batch", "0"]] {
        assert_eq!(bench(wrong).status.code(), Some(64), "{wrong:?}");
    }
}

#[test]
fn without_a_collector_it_says_how_to_build_one() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("agentgauge-bench");
    std::fs::copy(env!("CARGO_BIN_EXE_agentgauge-bench"), &alone).unwrap();
    let arguments = ["--servers", "collector", "--spans", "2000", "--repeats", "1"];
    let output = Command::new(alone).args(arguments).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("`bench/collector/build`"), "{error}");
}
