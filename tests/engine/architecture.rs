//! Checks the import rules: which parts of the tree may use which.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders and the top-level modules of the crate that their files may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("reference", &["engine", "reference"]),
    ("fair", &[]),
    ("blocking", &[]),
    ("vital", &[]),
    ("tenant_queue", &["engine"]),
    ("files", &[]),
    ("secret", &[]),
    ("refused", &[]),
    ("access", &["access", "blocking", "engine", "files", "refused", "secret", "vital"]),
    (
        "ingest",
        &[
            "access",
            "blocking",
            "engine",
            "fair",
            "files",
            "ingest",
            "refused",
            "secret",
            "telemetry",
        ],
    ),
    (
        "export",
        &[
            "access",
            "blocking",
            "engine",
            "export",
            "fair",
            "outbound",
            "refused",
            "registry",
            "runbook",
            "secret",
            "store",
            "telemetry",
        ],
    ),
    ("outbound", &["blocking", "engine", "outbound", "secret"]),
    ("telemetry", &["blocking", "engine", "outbound", "registry", "telemetry"]),
    ("webhook", &["clock", "engine", "tenant_queue", "outbound", "registry", "secret", "webhook"]),
    ("store", &["engine", "store", "telemetry"]),
    (
        "embed",
        &[
            "blocking",
            "clock",
            "embed",
            "engine",
            "ingest",
            "tenant_queue",
            "outbound",
            "registry",
            "secret",
        ],
    ),
    (
        "judge",
        &[
            "clock",
            "engine",
            "files",
            "ingest",
            "tenant_queue",
            "outbound",
            "registry",
            "secret",
            "telemetry",
        ],
    ),
    (
        "fleet",
        &[
            "blocking",
            "clock",
            "engine",
            "export",
            "fleet",
            "health",
            "ingest",
            "registry",
            "store",
            "telemetry",
        ],
    ),
    (
        "config",
        &[
            "access",
            "config",
            "embed",
            "engine",
            "export",
            "files",
            "fleet",
            "ingest",
            "judge",
            "outbound",
            "secret",
            "store",
            "telemetry",
            "webhook",
        ],
    ),
];

/// APIs that a pure state machine must not use, and that its list of dependencies cannot exclude.
const IMPURE: &[&str] = &[
    "async fn",
    ".await",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "println!",
];

#[test]
fn a_module_names_only_the_modules_below_it() {
    let mut wrong = Vec::new();
    for (folder, allowed) in ALLOWED {
        for (path, code) in sources(folder) {
            for name in named_after(&code, "crate::") {
                if !allowed.contains(&name.as_str()) {
                    wrong.push(format!("{}: crate::{name}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports that point upwards:\n{}", wrong.join("\n"));
}

#[test]
fn the_engine_is_pure() {
    let mut wrong = Vec::new();
    for (path, code) in engine("") {
        // State is read from whatever the caller has: the trait alone reads nothing.
        let code = code.replace("use std::io::Read;", "");
        for word in IMPURE.iter().filter(|word| code.contains(**word)) {
            wrong.push(format!("{}: {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "the engine does IO, waits or reads a clock:\n{}", wrong.join("\n"));
}

#[test]
fn stages_share_only_messages() {
    let stages = ["assemble", "sessions", "agents"];
    let mut wrong = Vec::new();
    for stage in stages {
        for (path, code) in engine(stage) {
            for other in stages.iter().filter(|other| **other != stage) {
                if code.contains(&format!("crate::{other}::"))
                    || code.contains(&format!("super::{other}::"))
                {
                    wrong.push(format!("{}: {other}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "stages that know each other:\n{}", wrong.join("\n"));
}

#[test]
fn attribute_names_live_in_conventions_alone() {
    let marks =
        ["\"gen_ai.", "\"openinference.", "\"llm.", "\"session.id", "\"langfuse.", "\"traceloop."];
    let mut wrong = Vec::new();
    for (path, code) in everything() {
        // The demo plays an SDK: it sends attributes, and reads none.
        if path
            .components()
            .any(|part| ["convention", "demo"].iter().any(|name| part.as_os_str() == *name))
        {
            continue;
        }
        for mark in marks.iter().filter(|mark| code.contains(**mark)) {
            wrong.push(format!("{}: {mark}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "attribute names outside engine/convention:\n{}", wrong.join("\n"));
}

#[test]
fn the_clock_is_read_in_one_file() {
    for (path, code) in everything() {
        let reads = code.contains("Instant::now()") || code.contains("SystemTime::now()");
        assert!(!reads || path.ends_with("clock.rs"), "{} reads the clock", path.display());
    }
}

/// The sources under `src/FOLDER` (or `src/FOLDER.rs`), without their tests and comments.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    below("src", folder)
}

/// The same of the engine.
fn engine(folder: &str) -> Vec<(PathBuf, String)> {
    below("engine/src", folder)
}

fn everything() -> Vec<(PathBuf, String)> {
    [sources(""), engine("")].concat()
}

fn below(root: &str, folder: &str) -> Vec<(PathBuf, String)> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let mut found = Vec::new();
    collect(&place.join(folder), &mut found);
    if !folder.is_empty() {
        collect_file(&place.join(format!("{folder}.rs")), &mut found);
    }
    assert!(!found.is_empty(), "no sources under {root}/{folder}");
    found.sort();
    found
}

fn collect(path: &Path, found: &mut Vec<(PathBuf, String)>) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_tests = path.file_name().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_tests {
            collect(&path, found);
        } else {
            collect_file(&path, found);
        }
    }
}

fn collect_file(path: &Path, found: &mut Vec<(PathBuf, String)>) {
    let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
    if is_test || path.extension().is_none_or(|extension| extension != "rs") {
        return;
    }
    if let Ok(text) = fs::read_to_string(path) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        found.push((path.to_owned(), lines.collect::<Vec<_>>().join("\n")));
    }
}

/// The first path segment after each `prefix`.
fn named_after(code: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let list = list.split('}').next().unwrap_or("");
            names.extend(
                list.split(',')
                    .filter_map(|item| item.trim().split([':', ' ']).next().map(str::to_owned)),
            );
        } else {
            names.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names.retain(|name| !name.is_empty());
    names
}
