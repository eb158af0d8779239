//! Generated documents match this code, and their examples work.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use agentgauge::engine::options::AgentOptions;
use agentgauge::engine::signal::SIGNALS;
use agentgauge::engine::window::window_name;

use crate::support::daemon::Daemon;

#[test]
fn the_page_of_conventions_is_not_stale() {
    let page = agentgauge::engine::convention::page();
    assert!(
        include_str!("../../docs/conventions.md") == page,
        "docs/conventions.md is stale; write it anew with `cargo run -- conventions > docs/conventions.md`"
    );
}

#[test]
fn the_page_of_metrics_is_not_stale() {
    let page = agentgauge::export::page(&agentgauge::daemon::own_families().unwrap());
    assert!(
        include_str!("../../docs/metrics.md") == page,
        "docs/metrics.md is stale; write it anew with `cargo run -- metrics > docs/metrics.md`"
    );
}

#[test]
fn the_files_that_documents_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["engine/", "src/", "bench/", "tests/", "deploy/", "config/", "proto/"];
    // A path may also begin below the folder that its sentence is about.
    let bases = ["", "src", "engine/src", "bench", "tests"];
    let mut missing = Vec::new();
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/operations.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        // Every other piece is code.
        for code in text.split('`').skip(1).step_by(2) {
            // A name that stands for any other ends the path.
            let path = code.split(['<', '*', '{', ' ', ':']).next().unwrap_or_default();
            let is_source = path.contains('/') && path.ends_with(".rs");
            let named = is_source || folders.iter().any(|folder| code.starts_with(folder));
            if named && !bases.iter().any(|base| root.join(base).join(path).exists()) {
                missing.push(format!("{document}: {code}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// A daemon with all parts that have their own metrics and need no other process.
#[test]
fn every_family_that_a_daemon_exports_is_in_the_page_of_metrics() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = "http://127.0.0.1:9/";
    let daemon = Daemon::start_with(&[
        ("AGENTGAUGE__METRICS__DETAIL", "full"),
        ("AGENTGAUGE__STORE__DIRECTORY", directory.path().to_str().unwrap()),
        ("AGENTGAUGE__STORE__DURABILITY", "memory"),
        ("AGENTGAUGE__JUDGE__FORMAT", "openai"),
        ("AGENTGAUGE__JUDGE__URL", nowhere),
        ("AGENTGAUGE__JUDGE__MODEL", "m"),
        ("AGENTGAUGE__JUDGE__ALLOW_HTTP", "true"),
        ("AGENTGAUGE__WEBHOOK__URL", nowhere),
        ("AGENTGAUGE__WEBHOOK__ALLOW_HTTP", "true"),
        ("AGENTGAUGE_WEBHOOK_SECRET", "s"),
    ]);
    daemon.send_capture("oi-openai");
    daemon.metric("agentgauge_loops_detected_total{");
    let listed = include_str!("../../docs/metrics.md");
    let page = daemon.get("/metrics");
    let mut own = 0;
    for head in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = head.split_once(' ').unwrap();
        let row = format!("| `{name}` | {kind} | ");
        let row = listed.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("{name} ({kind}) is not in docs/metrics.md"));
        let help = page.lines().find_map(|line| line.strip_prefix(&format!("# HELP {name} ")));
        assert!(row.contains(&format!(" | {}", help.unwrap())), "{row}: {help:?}");
        own += usize::from(!row.contains("*full*") && !name.starts_with("agentgauge_agent_"));
    }
    assert!(own > 20, "{page}");
}

#[test]
fn the_options_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config: toml::Table = include_str!("../../config/agentgauge.toml").parse().unwrap();
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let docs = ["docs", "docs/guides"].map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let docs = docs.into_iter().flatten().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut unknown = Vec::new();
    for path in documents.into_iter().chain(docs) {
        let text = std::fs::read_to_string(&path).unwrap();
        for code in text.split('`').skip(1).step_by(2) {
            let Some((section, option)) = code.split_once('.') else { continue };
            let Some(options) = config.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            let option = option.split(['.', ' ', '=', '[', '{']).next().unwrap_or_default();
            let is_name = option.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            let other = ["session.id", "session.llm", "session.previous_id", "fleet.py"]
                .iter()
                .any(|name| code.starts_with(name));
            if is_name && !other && !option.is_empty() && !options.contains_key(option) {
                unknown.push(format!("{}: `{code}`", path.display()));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}

/// The text of the comments above each option of a file, without marks of code, by `section.option`. `section` finds where the options of a
/// section begin, `option` is what a line declares.
fn comments(
    lines: &str,
    mark: &str,
    section: impl Fn(&str) -> Option<String>,
    option: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, String> {
    let (mut found, mut inside, mut comment) = (BTreeMap::new(), None, String::new());
    for line in lines.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix(mark) {
            comment = format!("{comment} {}", text.trim()).replace('`', "");
        } else if let Some(section) = section(line) {
            (inside, comment) = (Some(section), String::new());
        } else if let (Some(section), Some(option)) = (&inside, option(line)) {
            found.insert(format!("{section}.{option}"), std::mem::take(&mut comment));
        } else if !line.starts_with("#[") {
            comment.clear();
        }
        if mark == "///" && line == "}" {
            inside = None;
        }
    }
    found
}

#[test]
fn an_option_has_one_text_in_the_code_and_in_the_configuration() {
    let in_file = comments(
        include_str!("../../config/agentgauge.toml"),
        "#",
        |line| Some(line.strip_prefix('[')?.strip_suffix(']')?.to_owned()),
        |line| Some(line.split_once(" = ")?.0.to_owned()),
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("engine/src"), root.join("src")];
    let mut compared = 0;
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let in_code = comments(
                &std::fs::read_to_string(&path).unwrap_or_default(),
                "///",
                |line| Some(line.split_once(" in \"")?.1.strip_suffix("\" {")?.to_owned()),
                |line| Some(line.strip_prefix("pub ")?.split_once(": ")?.0.to_owned()),
            );
            for (option, text) in in_code {
                // Tables, and options without a default, are together there.
                let Some(told) = in_file.get(&option) else { continue };
                assert_eq!(&text, told, "`{option}` in {}", path.display());
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

/// Options that are limits, or count as such, whatever they are called.
const LIMITS: [&str; 12] = [
    "ingest.body_progress",
    "server.header_read_timeout",
    "server.read_timeout",
    "server.idle_timeout",
    "engine.channel_capacity",
    "assemble.trace_max_age",
    "judge.usd_per_hour",
    "api.history_points",
    "api.history_agents",
    "limits.trace_duration",
    "limits.session_duration",
    "store.max_bytes",
];

#[test]
fn every_limit_of_the_configuration_is_told_in_operations() {
    let config: toml::Table = include_str!("../../config/agentgauge.toml").parse().unwrap();
    let options = config.iter().flat_map(|(section, options)| {
        let options = options.as_table().unwrap().keys();
        options.map(move |option| (section.clone(), format!("{section}.{option}"), option.clone()))
    });
    let options: Vec<_> = options.collect();
    let is_limit = |(section, name, option): &&(String, String, String)| {
        let of_runs = section == "limits" && option != "agents";
        option.starts_with("max_") || of_runs || LIMITS.contains(&name.as_str())
    };
    let operations = include_str!("../../docs/operations.md");
    let (_, table) = operations.split_once("\n## Limits\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let told: Vec<_> = rows
        .flat_map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            assert!(cells.len() >= 3 && !cells[1].is_empty() && !cells[2].is_empty(), "{row}");
            assert_ne!(cells[2], "not counted", "{row}");
            cells[0].split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    for (_, name, _) in options.iter().filter(is_limit) {
        assert_eq!(told.iter().filter(|told| *told == name).count(), 1, "`{name}` has one row");
    }
    let known = |told: &String| options.iter().any(|(_, name, _)| name == told);
    let unknown: Vec<_> = told.iter().filter(|told| !known(told)).collect();
    assert!(unknown.is_empty(), "no option: {unknown:?}");
}

const README: &str = include_str!("../../README.md");

/// The blocks of one language in a document.
fn blocks<'d>(document: &'d str, language: &str) -> impl Iterator<Item = &'d str> {
    let fence = format!("\n```{language}\n");
    let blocks: Vec<&str> = document.split(&fence).skip(1).collect();
    blocks.into_iter().filter_map(|rest| rest.split("\n```").next())
}

#[test]
fn the_signals_of_the_readme_are_those_that_there_are() {
    let (_, table) = README.split_once("| Signal | Measured from |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|row| row.starts_with('|'));
    let named = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    let named: Vec<&str> = named.collect();
    for signal in SIGNALS.iter().filter(|signal| signal.computed.is_some()) {
        let rows = named.iter().filter(|name| **name == signal.name).count();
        assert_eq!(rows, 1, "`{}` has one row in README.md", signal.name);
    }
    for name in named {
        assert!(SIGNALS.iter().any(|signal| signal.name == name), "`{name}` is no signal");
    }
}

#[test]
fn the_windows_that_the_readme_and_the_dashboards_offer_are_the_default_ones() {
    let AgentOptions { windows, last_traces, .. } = AgentOptions::default();
    let windows: Vec<String> = windows.into_iter().map(window_name).collect();
    let told = windows.iter().map(|window| format!("`{window}`")).collect::<Vec<_>>().join(", ");
    let told =
        format!("Windows are {told} and the last {last_traces} traces (`last_{last_traces}`).");
    assert!(README.contains(&told), "README.md does not say: {told}");
    let choice_of = [windows, vec![format!("last_{last_traces}")]].concat();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/grafana");
    let mut choices = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let dashboard = std::fs::read_to_string(&path).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        for choice in variables.iter().filter(|variable| variable["name"] == "window") {
            assert_eq!(choice["query"], choice_of.join(","), "{}", path.display());
            let offered = choice["options"].as_array().unwrap().iter();
            let offered: Vec<_> = offered.map(|option| option["value"].as_str().unwrap()).collect();
            assert_eq!(offered, choice_of, "{}", path.display());
            choices += 1;
        }
    }
    assert!(choices > 0, "no dashboard lets one choose a window");
}

#[test]
fn the_commands_of_the_readme_run() {
    let stand_ins = [
        ("recording/", "tests/data/captures/oi-openai"),
        ("agentci_spec.yaml", "tests/data/expect/spec.yaml"),
        ("--config agentgauge.toml", "--config config/starter.toml"),
    ];
    let mut count = 0;
    for line in blocks(README, "sh").flat_map(str::lines) {
        let command = line.split('#').next().unwrap_or_default().trim();
        let Some(arguments) = command.strip_prefix("agentgauge ") else { continue };
        // What runs on and on is run by a test with real parts.
        if ["replay", "verify", "check"].iter().all(|word| !arguments.starts_with(word)) {
            continue;
        }
        let arguments =
            stand_ins.iter().fold(arguments.to_owned(), |all, (from, to)| all.replace(from, to));
        let output = Command::new(env!("CARGO_BIN_EXE_agentgauge"))
            .args(arguments.split_whitespace())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let is_gate = arguments.contains("--fail-under") || arguments.contains("--expect");
        let code = output.status.code();
        let is_right = code == Some(0) || is_gate && code == Some(2);
        assert!(is_right, "{line}: {code:?} {}", String::from_utf8_lossy(&output.stderr));
        count += 1;
    }
    assert!(count >= 5, "only {count} are found");
}

#[test]
fn the_reports_of_the_readme_are_taken() {
    let block = blocks(README, "sh").find(|block| block.contains("/api/v1/reports")).unwrap();
    let (_, body) = block.split_once("-d '").unwrap();
    let (status, answer) = Daemon::start().post("/api/v1/reports", body.trim_end_matches('\''));
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["accepted"]), (200, &2.into()), "{answer}");
}
