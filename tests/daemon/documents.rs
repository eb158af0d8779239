//! Documents that are written from the code are those of this code, and what they show works.

use std::process::Command;

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
    let page = agentgauge::export::page();
    assert!(
        include_str!("../../docs/metrics.md") == page,
        "docs/metrics.md is stale; write it anew with `cargo run -- metrics > docs/metrics.md`"
    );
}

const README: &str = include_str!("../../README.md");

/// The blocks of one language in a document.
fn blocks<'d>(document: &'d str, language: &str) -> impl Iterator<Item = &'d str> {
    let fence = format!("\n```{language}\n");
    let blocks: Vec<&str> = document.split(&fence).skip(1).collect();
    blocks.into_iter().filter_map(|rest| rest.split("\n```").next())
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
