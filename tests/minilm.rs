//! A sentence-transformers model in this process, against what sentence-transformers itself makes of the same texts.
//!
//! `AGENTGAUGE_MINILM` names the directory of all-MiniLM-L6-v2 (`tests/real/minilm/run` fetches it);
//! `tests/data/minilm/pairs.py` has computed `pairs.json`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/turn.rs"]
mod turn;

use std::path::{Path, PathBuf};

use agentgauge::embed::minilm::{Model, ModelError};
use agentgauge::engine::math::text::{cosine, digest, jaccard};
use agentgauge::engine::signal::coherence;
use serde_json::{Value, json};

use self::daemon::Daemon;
use self::turn::spans_saying;

fn directory() -> PathBuf {
    let mut variables = std::env::vars_os();
    let named = variables.find(|(name, _)| name == "AGENTGAUGE_MINILM");
    named.map(|(_, path)| path.into()).unwrap()
}

#[test]
fn coherence_is_what_sentence_transformers_says() {
    let model = Model::load(&directory(), 1).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/minilm/pairs.json");
    let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut worst = 0.0_f64;
    for pair in file["pairs"].as_array().unwrap() {
        let texts = ["a", "b"].map(|side| pair[side].as_str().unwrap());
        let [a, b] = model.embed(&texts).unwrap().try_into().unwrap();
        let ours = coherence::score(&a, &b).unwrap().to_f64();
        let theirs = pair["cosine"].as_f64().unwrap();
        assert!((ours - theirs).abs() < 1e-4, "{ours} instead of {theirs}: {pair}");
        worst = worst.max((ours - theirs).abs());
    }
    println!("at most {worst:.1e} off");
}

#[test]
fn coherence_and_loops_of_the_daemon_are_by_it() {
    let directory = directory();
    let model = Model::load(&directory, 1).unwrap();
    let daemon =
        Daemon::start_with(&[("AGENTGAUGE__EMBED__DIRECTORY", directory.to_str().unwrap())]);
    let turns = [
        ("Where is my parcel?", "Your parcel should arrive on Thursday."),
        ("And when will it be here?", "The parcel was late; it should arrive on Friday."),
    ];
    for (number, (question, answer)) in turns.iter().enumerate() {
        let spans = spans_saying(question, answer);
        let spans = spans.replace("0af7651916cd43dd", &format!("0af7651916cd43d{number}"));
        assert_eq!(daemon.post_to(&daemon.otlp_http, "/v1/traces", &spans).0, 200);
        let embedded = 2.0 * (number + 1) as f64;
        daemon.settles_at("agentgauge_embed_texts_total{outcome=\"embedded\"}", embedded);
    }
    let signal = |number: usize, name: &str| {
        let session = daemon.get("/api/v1/sessions/s-judged");
        let session: Value = serde_json::from_str(&session).unwrap_or_default();
        session["traces"][number]["signals"][name]["score"].as_f64()
    };
    let near = |text: &str, other: &str| {
        let [a, b] = model.embed(&[text, other]).unwrap().try_into().unwrap();
        coherence::score(&a, &b).unwrap().to_f64()
    };
    let [first, second] = turns.map(|(_, answer)| digest(answer).unwrap());
    let shared = jaccard(&first.tokens, &second.tokens);
    let (by_model, by_hashes) =
        (near(turns[0].1, turns[1].1), cosine(&first.embedding, &second.embedding));
    assert!(((by_model - by_hashes) * shared).abs() > 0.01, "the two cannot be told apart");
    let expected = [
        (0, "coherence", near(turns[0].0, turns[0].1)),
        (1, "coherence", near(turns[1].0, turns[1].1)),
        (1, "loop_detection", 1.0 - by_model * shared),
    ];
    for (number, name, expected) in expected {
        let is_right = || signal(number, name).is_some_and(|shown| (shown - expected).abs() < 1e-4);
        for _ in 0..300 {
            if is_right() {
                break;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(100));
        }
        assert!(is_right(), "{name} {number}: {:?} instead of {expected}", signal(number, name));
    }
    #[cfg(unix)]
    daemon.ends_well();
}

#[test]
fn a_directory_without_a_model_stops_the_start_and_is_named() {
    let (nothing, model) = (tempfile::tempdir().unwrap(), directory());
    let start = |environment: &[(&str, &str)]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_agentgauge"))
            .args(["--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0"])
            .args(["--http", "127.0.0.1:0"])
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let setting = "AGENTGAUGE__EMBED__DIRECTORY";
    let said = start(&[(setting, nothing.path().to_str().unwrap())]);
    assert!(said.contains("embed.directory") && said.contains("modules.json"), "{said}");
    let said = start(&[
        (setting, model.to_str().unwrap()),
        ("AGENTGAUGE__EMBED__URL", "https://127.0.0.1:1/v1"),
    ]);
    assert!(said.contains("embed.directory") && said.contains("embed.url"), "{said}");
    let said = start(&[(setting, model.to_str().unwrap()), ("AGENTGAUGE__EMBED__THREADS", "0")]);
    assert!(said.contains("embed.threads"), "{said}");
}

/// A directory that differs from the real one in one file.
fn changed(name: &str, change: impl Fn(&mut Value)) -> ModelError {
    let (from, to) = (directory(), tempfile::tempdir().unwrap());
    std::fs::create_dir(to.path().join("1_Pooling")).unwrap();
    for file in [
        "modules.json",
        "config.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "tokenizer.json",
    ] {
        let mut text = std::fs::read(from.join(file)).unwrap();
        if file == name {
            let mut value: Value = serde_json::from_slice(&text).unwrap();
            change(&mut value);
            text = value.to_string().into_bytes();
        }
        std::fs::write(to.path().join(file), text).unwrap();
    }
    Model::load(to.path(), 1).unwrap_err()
}

#[test]
fn a_model_of_another_kind_is_refused_by_name() {
    let why = |name: &str, change: fn(&mut Value)| changed(name, change).to_string();
    let said = why("modules.json", |value| {
        value[2]["type"] = json!("sentence_transformers.models.Dense");
    });
    assert!(said.contains("modules.json") && said.contains("Dense"), "{said}");
    let said = why("1_Pooling/config.json", |value| value["pooling_mode_max_tokens"] = json!(true));
    assert!(said.contains("1_Pooling") && said.contains("mean"), "{said}");
    let said = why("config.json", |value| value["model_type"] = json!("mpnet"));
    assert!(said.contains("config.json") && said.contains("model_type"), "{said}");
    let said = why("config.json", |value| value["hidden_act"] = json!("swish"));
    assert!(said.contains("config.json") && said.contains("swish"), "{said}");
    let said = why("tokenizer.json", |value| *value = json!({}));
    assert!(said.contains("tokenizer.json"), "{said}");
    let said = why("", |_| {});
    assert!(said.contains("model.safetensors"), "{said}");
}
