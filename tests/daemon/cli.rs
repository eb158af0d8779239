//! The command line as scripts use it: arguments, output and exit codes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const USAGE: Option<i32> = Some(64);
const GATE: Option<i32> = Some(2);
const FAILURE: Option<i32> = Some(1);

fn agentgauge(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_agentgauge")).args(arguments).output().unwrap()
}

fn capture(name: &str) -> String {
    data(&format!("captures/{name}"))
}

fn data(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/data", name].iter().collect();
    path.to_str().unwrap().to_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["replay", "--help"], &["help"]] {
        let output = agentgauge(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(out(&output).contains("agentgauge"), "{arguments:?}");
    }
}

#[test]
fn every_command_is_in_the_manual_and_completed() {
    let help = out(&agentgauge(&["--help"]));
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // An indented line continues the previous one.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.contains(&"serve") && commands.contains(&"man"), "{commands:?}");
    let manual = out(&agentgauge(&["man"]));
    assert!(manual.contains(".TH agentgauge 1"), "{manual}");
    let shells = ["bash", "elvish", "fish", "powershell", "zsh"];
    let completions = shells.map(|shell| out(&agentgauge(&["completions", shell])));
    for command in commands {
        assert!(manual.contains(&format!(".SS \"agentgauge {command}\"")), "{command}");
        assert!(completions.iter().all(|text| text.contains(command)), "{command}");
    }
    assert_eq!(agentgauge(&["completions", "none"]).status.code(), USAGE);
}

#[test]
fn wrong_usage_exits_with_64() {
    for arguments in [
        &["nonsense"][..],
        &["replay"],
        &["replay", "x.pb", "--fail-under", "reliability=2"],
        &["replay", "x.pb", "--output", "xml"],
        &["serve", "--nonsense"],
        &["serve", "--kafka-brokers", ""],
        &["serve", "--kafka-topics", " , "],
        &["demo", "--for", "soon"],
    ] {
        let output = agentgauge(arguments);
        assert_eq!(output.status.code(), USAGE, "{arguments:?}");
        assert!(out(&output).is_empty() && !err(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_wrong_configuration_exits_with_64_and_names_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, "[assemble]\ntrace_idel = \"5s\"\n").unwrap();
    for command in [&["check"][..], &["serve"], &["demo"], &["replay", "x.pb"]] {
        let mut arguments = command.to_vec();
        arguments.extend(["--config", path.to_str().unwrap()]);
        let output = agentgauge(&arguments);
        assert_eq!(output.status.code(), USAGE, "{command:?}");
        let message = err(&output);
        assert!(message.contains("assemble.trace_idel"), "{message}");
        assert!(message.contains("line 2") && message.contains("mine.toml"), "{message}");
        assert!(message.contains("`assemble.trace_idle`"), "{message}");
    }
    let output = agentgauge(&["--http", "nowhere"]);
    assert_eq!(output.status.code(), USAGE);
    assert!(err(&output).contains("--http"), "{}", err(&output));
}

/// Configurations that cannot start: a file's text, in which `{}` is a folder, and the names in the message.
const BAD: &[(&str, &str)] = &[
    ("[listen]\nhttp = \"here\"", "listen.http"),
    ("[engine]\nshards = 0", "engine.shards"),
    ("[tenants]\nshares = { bank = 2.0 }", "tenants.shares"),
    ("[listen]\nhttp = \"0.0.0.0:4318\"", "`listen.otlp_http`"),
    ("[store]\ndurability = \"fsync\"", "store.directory"),
    ("[store]\ndirectory = \"{}\"", "memory to keep nothing there"),
    ("[assemble]\ntrace_idle = 5", "like \"10s\""),
    ("level = \"info\"", "did you mean `log.level`?"),
    ("[store]\ndurability = \"fsync\"\ndirectory = \"{}/bad.toml\"", "`store.directory`"),
    ("[store]\ndurability = \"fsync\"\ndirectory = \"{}/bad.toml/new\"", "`store.directory`"),
    ("[tls]\ncert_file = \"{}/none.crt\"\nkey_file = \"{}/none.key\"", "none.crt"),
    ("[access]\ntokens = [{ name = \"a\", file = \"{}/none\", may = [\"read\"] }]", "none"),
    ("[expect]\nfiles = [\"{}/none.yaml\"]", "none.yaml"),
    ("[judge]\nformat = \"openai\"\nmodel = \"m\"\nurl = \"http://judge.example.org/v1\"", "judge"),
    (
        "[judge]\nformat = \"openai\"\nmodel = \"m\"\nurl = \"https://judge.example.org/v1\"\nredact_patterns = [\"(\"]",
        "redact_patterns",
    ),
    (
        "[judge]\nformat = \"openai\"\nmodel = \"m\"\nurl = \"https://judge.example.org/v1\"\napi_key_file = \"{}/none\"",
        "judge.api_key_file",
    ),
    ("[embed]\nurl = \"http://embed.example.org/v1\"\nmodel = \"m\"", "embed"),
    ("[scores_out]\nurl = \"http://out.example.org\"", "scores_out"),
    (
        "[scores_out]\nurl = \"https://out.example.org\"\nauthorization_file = \"{}/none\"",
        "scores_out.authorization_file",
    ),
    ("[webhook]\nurl = \"http://hook.example.org\"\nsecret_file = \"{}/bad.toml\"", "webhook"),
    (
        "[webhook]\nurl = \"https://hook.example.org\"\nsecret_file = \"{}/none\"",
        "webhook.secret_file",
    ),
    ("[fleet]\nroles = [\"score\"]", "kafka.brokers"),
];

#[test]
fn what_serve_refuses_check_refuses_in_the_same_words_and_nobody_starts_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.toml");
    for (text, names) in BAD {
        std::fs::write(&path, text.replace("{}", folder.path().to_str().unwrap())).unwrap();
        let said = ["check", "serve"].map(|command| {
            let output = agentgauge(&[command, "--config", path.to_str().unwrap()]);
            assert_eq!(output.status.code(), USAGE, "{command} {text}: {}", err(&output));
            assert!(out(&output).is_empty(), "{command} {text}");
            err(&output).lines().last().unwrap_or_default().to_owned()
        });
        assert_eq!(said[0], said[1], "{text}");
        assert!(said[0].contains(names), "{text}: {}", said[0]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_that_cannot_be_written_to_is_refused_by_check_and_serve() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let may = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    may(folder.path(), 0o755);
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let path = folder.path().join("mine.toml");
    for directory in ["store", "store/below", "missing/below"] {
        let directory = folder.path().join(directory);
        let text = format!("[store]\ndurability = \"fsync\"\ndirectory = {directory:?}\n");
        std::fs::write(&path, text).unwrap();
        may(&store, 0o555);
        may(folder.path(), 0o555);
        let said = ["check", "serve"].map(|command| {
            let mut command_line = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
            command_line.args([command, "--config", path.to_str().unwrap()]);
            if std::fs::metadata(&path).unwrap().uid() == 0 {
                // Root may write anywhere.
                command_line.uid(65_534);
            }
            let output = command_line.output().unwrap();
            assert_eq!(output.status.code(), USAGE, "{command}: {}", err(&output));
            err(&output).lines().last().unwrap_or_default().to_owned()
        });
        may(folder.path(), 0o755);
        assert_eq!(said[0], said[1]);
        assert!(said[0].contains("`store.directory`") && said[0].contains("denied"), "{}", said[0]);
    }
    assert!(!folder.path().join("missing").exists());
}

#[test]
fn a_store_of_another_format_is_refused_by_check_and_serve() {
    for (magic, name) in [
        (b"AGSLOG", "log-00000000000000000001-00000000.wal"),
        (b"AGSNAP", "snapshot-00000000000000000001"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut head = [&magic[..], &7_u16.to_le_bytes(), &1_u64.to_le_bytes()].concat();
        head.extend(crc32c::crc32c(&head).to_le_bytes());
        std::fs::write(folder.path().join(name), head).unwrap();
        let path = folder.path().join("mine.toml");
        let text = format!("[store]\ndurability = \"flush\"\ndirectory = {:?}\n", folder.path());
        std::fs::write(&path, text).unwrap();
        let said = ["check", "serve"].map(|command| {
            let output = agentgauge(&[command, "--config", path.to_str().unwrap()]);
            assert_eq!(output.status.code(), FAILURE, "{command}: {}", err(&output));
            err(&output).lines().last().unwrap_or_default().to_owned()
        });
        assert_eq!(said[0], said[1]);
        assert!(said[0].contains(name) && said[0].contains("of format 7"), "{}", said[0]);
    }
}

#[test]
fn the_listed_defaults_pass_the_check() {
    for file in ["config/agentgauge.toml", "config/starter.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let output = agentgauge(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert!(out(&output).contains("127.0.0.1:4317"));
    }
}

#[test]
fn check_takes_the_flags_of_serve_and_tells_of_what_will_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let judge =
        "[judge]\nformat = \"openai\"\nmodel = \"m\"\nurl = \"https://judge.example.org/v1\"\n";
    let check = |text: &str, flags: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let of_file = ["check", "--config", path.to_str().unwrap()];
        agentgauge(&[&of_file, flags].concat())
    };
    let output = check(judge, &["--otlp-http", "127.0.0.1:9999"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let said = out(&output);
    assert!(said.contains("OTLP/HTTP on 127.0.0.1:9999"), "{said}");
    assert!(said.contains("`judge.url` is asked without a key"), "{said}");
    let keyless = format!("{judge}api_key_env = \"\"\n");
    assert!(!out(&check(&keyless, &[])).contains("key"), "nobody expected one");
    let output = check("", &["--durability", "flsh"]);
    assert_eq!(output.status.code(), USAGE);
    assert!(err(&output).contains("--durability"), "{}", err(&output));
}

#[test]
fn a_variable_of_the_environment_is_checked() {
    let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .arg("check")
        .env("AGENTGAUGE__ENGINE__SHARDS", "0")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), USAGE);
    assert!(err(&output).contains("AGENTGAUGE__ENGINE__SHARDS"), "{}", err(&output));
}

#[cfg(unix)]
#[test]
fn a_variable_that_would_set_an_option_has_to_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let check = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
        command.arg("check").env(name, OsStr::from_bytes(b"\xff")).output().unwrap()
    };
    for (name, right) in [
        ("AGENTGAUGE_STORE__DIRECTORY", "AGENTGAUGE__STORE__DIRECTORY"),
        ("AGENTGAUGE_STORE_MAX_BYTES", "AGENTGAUGE__STORE__MAX_BYTES"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
        let output = command.arg("check").env(name, "1").output().unwrap();
        assert_eq!(output.status.code(), USAGE);
        assert!(err(&output).contains(&format!("write {right}")), "{}", err(&output));
    }
    // Those are set by Kubernetes, or are keys.
    for name in ["AGENTGAUGE_SERVICE_HOST", "AGENTGAUGE_JUDGE_API_KEY", "AGENTGAUGE_PORT"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentgauge"));
        assert_eq!(command.arg("check").env(name, "1").output().unwrap().status.code(), Some(0));
    }
    let output = check("AGENTGAUGE__STORE__DIRECTORY");
    assert_eq!(output.status.code(), USAGE);
    assert!(err(&output).contains("AGENTGAUGE__STORE__DIRECTORY"), "{}", err(&output));
    assert_eq!(check("OTHER").status.code(), Some(0));
}

#[cfg(unix)]
#[test]
fn files_that_options_name_are_not_read_without_end() {
    for (text, key) in [
        (
            "[access]\ntokens = [{ name = \"a\", file = \"/dev/zero\", may = [\"read\"] }]",
            "access.tokens",
        ),
        ("[tls]\ncert_file = \"/dev/zero\"\nkey_file = \"/dev/zero\"", "tls.cert_file"),
        ("[expect]\nfiles = [\"/dev/zero\"]", "/dev/zero"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agentgauge.toml");
        std::fs::write(&path, text).unwrap();
        let output = agentgauge(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), USAGE, "{key}");
        let err = err(&output);
        assert!(err.contains(key) && err.contains("16777216 bytes"), "{err}");
    }
    assert_eq!(agentgauge(&["check", "--config", "/dev/zero"]).status.code(), USAGE);
}

#[test]
fn a_replay_prints_one_document() {
    let output = agentgauge(&["replay", &capture("oi-openai"), "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let session = &document["sessions"][0];
    assert_eq!(session["total_traces"], 6);
    assert!(session["reliability"].is_f64());
    assert_eq!(session["traces"][0]["content"], "kept");
    let agents = document["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 1, "{agents:?}");
    assert_eq!(agents[0]["traces"], 6);
}

#[test]
fn a_replay_prints_a_table() {
    let output = agentgauge(&["replay", &capture("oi-openai")]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains("sess-7f3a-0001") && text.contains("exact_repeat 1"), "{text}");
}

/// A recording of this many sessions with one trace each; every third one fails.
fn recording(sessions: u64) -> Value {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let span = |number: u64| {
        json!({
            "traceId": format!("{:032x}", number + 1), "spanId": format!("{:016x}", number + 1), "name": "invoke_agent",
            "startTimeUnixNano": format!("{}", 1_800_000_000_000_000_000 + number),
            "endTimeUnixNano": format!("{}", 1_800_000_001_000_000_000 + number),
            "attributes": [
                text("gen_ai.operation.name", "invoke_agent"), text("gen_ai.agent.name", "many"),
                text("gen_ai.conversation.id", &format!("session-{number}")),
            ],
            "status": {"code": if number.is_multiple_of(3) { 2 } else { 1 }},
        })
    };
    let spans: Vec<Value> = (0..sessions).map(span).collect();
    json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
}

#[test]
fn a_replay_of_many_sessions_shows_the_worst_and_says_where_the_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.json");
    std::fs::write(&path, recording(3_000).to_string()).unwrap();
    let output = agentgauge(&["replay", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let shown: Vec<&str> = text.lines().filter(|line| line.contains("session-")).collect();
    assert_eq!(shown.len(), 20, "{text}");
    assert!(shown.iter().all(|line| line.contains("0.0000")), "all of them failed: {text}");
    let rest = "The 20 worst of 3000 sessions; the other 2980 are in `--output json`.";
    assert!(text.contains(rest) && text.lines().count() < 60, "{text}");
}

#[test]
fn a_recording_without_spans_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.json");
    std::fs::write(&path, r#"{"resourceSpans":[]}"#).unwrap();
    let output = agentgauge(&["replay", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), FAILURE);
    assert!(out(&output).is_empty() && err(&output).contains("empty.json"), "{}", err(&output));
}

#[test]
fn a_daemon_that_scripts_start_says_in_a_line_of_json_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("state");
    let listen = ["--otlp-grpc", "--otlp-http", "--http"].map(|flag| [flag, "127.0.0.1:0"]);
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .arg("serve")
        .args(listen.iter().flatten())
        .args(["--data-dir", data.to_str().unwrap(), "--durability", "flush"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(daemon.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let bound: Value = serde_json::from_str(&line).unwrap();
    let addresses = ["http", "otlp_http", "otlp_grpc"].map(|name| bound[name].as_str());
    assert!(addresses.iter().all(|address| address.is_some_and(|text| !text.ends_with(":0"))));
    assert!(std::fs::read_dir(&data).unwrap().next().is_some(), "nothing is in {}", data.display());
}

#[test]
fn the_number_of_shards_and_the_order_of_files_change_nothing() {
    let folder = capture("oi-openai");
    let whole = agentgauge(&["replay", &folder, "--output", "json"]);
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .filter(|path| path.ends_with(".pb"))
        .collect();
    files.sort();
    files.reverse();
    let mut arguments = vec!["replay", "--output", "json"];
    arguments.extend(files.iter().map(String::as_str));
    let backwards = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
        .args(arguments)
        .env("AGENTGAUGE__ENGINE__SHARDS", "7")
        .output()
        .unwrap();
    assert_eq!(out(&whole), out(&backwards));
}

#[test]
fn a_floor_that_is_not_held_exits_with_2() {
    let folder = capture("oi-openai");
    let held = agentgauge(&["replay", &folder, "--fail-under", "reliability=0.1"]);
    assert_eq!(held.status.code(), Some(0), "{}", err(&held));
    let output = agentgauge(&[
        "replay",
        &folder,
        "--fail-under",
        "reliability=0.1",
        "--fail-under",
        "consistency=0.99",
    ]);
    assert_eq!(output.status.code(), GATE);
    assert!(err(&output).contains("consistency"), "{}", err(&output));
    assert!(out(&output).contains("sess-7f3a-0001"), "the result is printed all the same");
    let document = agentgauge(&["replay", &folder, "--output", "json"]);
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    let agent = document["agents"][0]["agent_name"].as_str().unwrap();
    assert!(err(&output).contains(agent), "it names the agent: {}", err(&output));
}

#[test]
fn traces_are_held_against_expectations() {
    let (folder, spec) = (capture("oi-openai"), data("expect/spec.yaml"));
    let arguments = ["replay", &folder, "--expect", &spec];
    let output = agentgauge(&[&arguments[..], &["--output", "json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(err(&output).contains("no agent is run"));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let summary = &document["expectations"];
    assert_eq!((&summary["evaluated"], &summary["hard_failures"]), (&json!(3), &json!(0)));
    assert_eq!(summary["unanswered"], json!(["Nobody asked this."]));
    assert_eq!(summary["remarks"].as_array().unwrap().len(), 2, "{summary}");
    let traces = document["sessions"][0]["traces"].as_array().unwrap();
    let layers: Vec<[&Value; 4]> = traces
        .iter()
        .flat_map(|trace| trace["expectations"].as_array().unwrap())
        .map(|held| ["correctness", "path", "retrieval", "cost"].map(|name| &held[name]["status"]))
        .collect();
    assert_eq!(
        layers,
        [
            ["pass", "pass", "skip", "pass"],
            // Nobody has judged the rubric, and what the search gave back is not in the document.
            ["warn", "pass", "skip", "pass"],
            ["pass", "warn", "skip", "warn"],
        ]
    );
    let path = &traces[0]["expectations"][0]["path"];
    assert_eq!(
        path["details"],
        json!({
            "tool_recall": 1.0, "tool_precision": 1.0, "tool_f1": 1.0, "sequence_similarity": 1.0, "edit_similarity": 1.0, "loops": 0,
            "match": true, "forbidden": [],
        })
    );
    let output = agentgauge(&arguments);
    let text = out(&output);
    assert!(text.contains("no trace") && text.contains("path: loops: 4 > 3"), "{text}");
    let without = agentgauge(&["replay", &folder, "--output", "json"]);
    let document: Value = serde_json::from_slice(&without.stdout).unwrap();
    assert_eq!(document.get("expectations"), None);
}

#[test]
fn expectations_that_fail_hard_exit_with_2() {
    let (folder, spec) = (capture("oi-openai"), data("expect/failing.yaml"));
    let output = agentgauge(&["replay", &folder, "--expect", &spec]);
    assert_eq!(output.status.code(), GATE);
    assert!(err(&output).contains("2 of 3 expectations failed"), "{}", err(&output));
    let text = out(&output);
    for problem in [
        "correctness: \"cloudy\" must not be in the answer",
        "path: forbidden tools were used: get_order",
        "cost: tokens: 1759 > 10",
    ] {
        assert!(text.contains(problem), "{text}");
    }
    // Where nothing is checked, nothing holds.
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("spec.yaml");
    std::fs::write(&path, "agent: a\nqueries: [{query: Nobody asked this.}]\n").unwrap();
    let output = agentgauge(&["replay", &folder, "--expect", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), GATE);
    assert!(err(&output).contains("no trace answers"), "{}", err(&output));
}

#[test]
fn a_wrong_specification_exits_with_64_and_names_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.yaml");
    std::fs::write(&path, "agent: a\nqueries:\n  - query: q\n    path: {max_loop: 3}\n").unwrap();
    let spec = path.to_str().unwrap();
    let output = agentgauge(&["replay", &capture("oi-openai"), "--expect", spec]);
    assert_eq!(output.status.code(), USAGE);
    let message = err(&output);
    assert!(message.contains("mine.yaml: line 4, `queries[0].path.max_loop`"), "{message}");
    assert!(message.contains("the nearest is `max_loops`"), "{message}");
    for command in ["check", "serve"] {
        let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
            .arg(command)
            .env("AGENTGAUGE__EXPECT__FILES", json!([spec]).to_string())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), USAGE, "{command}");
        assert!(err(&output).contains("mine.yaml: line 4"), "{}", err(&output));
    }
    let output = agentgauge(&["replay", &capture("oi-openai"), "--expect", "/nowhere/spec.yaml"]);
    assert_eq!(output.status.code(), USAGE);
    assert!(err(&output).contains("/nowhere/spec.yaml"), "{}", err(&output));
}

#[test]
fn what_cannot_be_read_exits_with_1() {
    let empty = tempfile::tempdir().unwrap();
    for path in ["/nowhere/traces.pb", empty.path().to_str().unwrap()] {
        for command in ["replay", "verify"] {
            let output = agentgauge(&[command, path]);
            assert_eq!(output.status.code(), FAILURE, "{command} {path}");
            assert!(err(&output).contains(path), "{}", err(&output));
        }
    }
}

#[test]
fn the_engine_agrees_with_the_reference_model() {
    for name in ["oi-openai", "oi-langgraph", "otel-genai-openai-span-only", "js-otel-openai-evals"]
    {
        let output = agentgauge(&["verify", &capture(name)]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}{}", out(&output), err(&output));
        assert!(out(&output).contains("agree"), "{}", out(&output));
    }
}
