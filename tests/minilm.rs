//! A sentence-transformers model in this process, compared with the results of sentence-transformers itself for the same texts.
//!
//! `AGENTGAUGE_MINILM` names the directory of all-MiniLM-L6-v2 (`tests/real/minilm/run` fetches it);
//! `tests/data/minilm/pairs.py` has computed `pairs.json`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

#[path = "daemon/support/daemon.rs"]
mod daemon;
#[path = "daemon/support/turn.rs"]
mod turn;

use std::path::{Path, PathBuf};

use agentgauge::embed::minilm::{Model, ModelError};
use agentgauge::engine::math::text::digest;
use agentgauge::engine::signal::coherence;
use serde_json::{Value, json};

use self::daemon::{Daemon, until};
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
    let shared = first.tokens.jaccard(&second.tokens);
    let (by_model, by_hashes) =
        (near(turns[0].1, turns[1].1), first.embedding.cosine(&second.embedding));
    assert!(((by_model - by_hashes) * shared).abs() > 0.01, "the two cannot be told apart");
    let expected = [
        (0, "coherence", near(turns[0].0, turns[0].1)),
        (1, "coherence", near(turns[1].0, turns[1].1)),
        (1, "loop_detection", 1.0 - by_model * shared),
    ];
    for (number, name, expected) in expected {
        let is_right = || signal(number, name).is_some_and(|shown| (shown - expected).abs() < 1e-4);
        until(&is_right);
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

/// The real model in a directory that differs in some files; one that is null is not there.
fn changed(changes: &[(&str, Value)]) -> (tempfile::TempDir, Result<Model, ModelError>) {
    let (from, to) = (directory(), tempfile::tempdir().unwrap());
    std::fs::create_dir(to.path().join("1_Pooling")).unwrap();
    for file in [
        "modules.json",
        "config.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    let weights = "model.safetensors";
    let (real, own) = (from.join(weights), to.path().join(weights));
    std::fs::hard_link(&real, &own).or_else(|_| std::fs::copy(&real, &own).map(drop)).unwrap();
    for (file, value) in changes {
        std::fs::remove_file(to.path().join(file)).unwrap();
        if !value.is_null() {
            std::fs::write(to.path().join(file), value.to_string()).unwrap();
        }
    }
    let model = Model::load(to.path(), 1);
    (to, model)
}

/// One of the real files with a change.
fn but(file: &str, change: impl Fn(&mut Value)) -> Value {
    let mut value =
        serde_json::from_slice(&std::fs::read(directory().join(file)).unwrap()).unwrap();
    change(&mut value);
    value
}

#[test]
fn a_model_of_another_kind_is_refused_by_name() {
    let cases: [(&str, Value, &str); 13] = [
        (
            "modules.json",
            but("modules.json", |value| {
                value[2]["type"] = json!("sentence_transformers.models.Dense");
            }),
            "Dense",
        ),
        ("modules.json", json!([]), "Transformer"),
        (
            "1_Pooling/config.json",
            but("1_Pooling/config.json", |value| value["pooling_mode_max_tokens"] = json!(true)),
            "mean",
        ),
        ("1_Pooling/config.json", json!({ "pooling_mode": ["mean", "cls"] }), "mean"),
        ("1_Pooling/config.json", json!({ "pooling_mode": "lasttoken" }), "lasttoken"),
        ("config.json", but("config.json", |v| v["model_type"] = json!("mpnet")), "model_type"),
        ("config.json", but("config.json", |v| v["hidden_act"] = json!("swish")), "swish"),
        (
            "config_sentence_transformers.json",
            json!({ "prompts": { "query": "query: " }, "default_prompt_name": "query" }),
            "default_prompt_name",
        ),
        ("sentence_bert_config.json", json!({ "do_lower_case": true }), "do_lower_case"),
        ("tokenizer.json", json!({}), "tokenizer.json"),
        ("tokenizer.json", Value::Null, "cannot read"),
        ("model.safetensors", Value::Null, "cannot read"),
        ("model.safetensors", json!("not weights"), "cannot use"),
    ];
    for (file, value, part) in cases {
        let said = changed(&[(file, value)]).1.unwrap_err().to_string();
        let file = if file == "sentence_bert_config.json" { "tokenizer.json" } else { file };
        assert!(said.contains(file) && said.contains(part), "{said}");
    }
}

/// More tokens than any model of this kind takes.
fn long() -> String {
    (0..600).map(|number| format!("{number} parcels ")).collect()
}

/// The parts of two vectors that differ by more than rounding.
fn apart(one: &[f32], other: &[f32]) -> usize {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).filter(|(a, b)| (*a - *b).abs() > 1e-6).count()
}

#[test]
fn a_model_is_read_as_any_version_has_saved_it() {
    let long = long();
    let texts = ["Where is my parcel?", long.as_str()];
    let embed = |changes: &[(&str, Value)]| {
        let (_folder, model) = changed(changes);
        let vectors: [Vec<f32>; 2] = model.unwrap().embed(&texts).unwrap().try_into().unwrap();
        vectors
    };
    let real = embed(&[]);
    // As 6.2 writes it: names of ways to pool, the limit with the tokenizer, prompts that are none.
    let types = ["Transformer", "Pooling", "Normalize"]
        .map(|name| format!("sentence_transformers.sentence_transformer.modules.{name}"));
    let new = [
        (
            "modules.json",
            but("modules.json", |value| (0..3).for_each(|at| value[at]["type"] = json!(types[at]))),
        ),
        ("1_Pooling/config.json", json!({ "embedding_dimension": 384, "pooling_mode": "mean" })),
        ("sentence_bert_config.json", json!({ "transformer_task": "feature-extraction" })),
        ("tokenizer_config.json", json!({ "model_max_length": 256 })),
        (
            "config_sentence_transformers.json",
            json!({ "prompts": { "query": "" }, "default_prompt_name": null }),
        ),
    ];
    assert_eq!(embed(&new), real);
    // Without a limit it is the model's own, and an endless one is none.
    let unlimited = [("sentence_bert_config.json", Value::Null)];
    let endless = json!({ "model_max_length": 1e30 });
    let whole = embed(&[("tokenizer_config.json", endless), unlimited[0].clone()]);
    assert_eq!(whole, embed(&unlimited));
    assert!(apart(&whole[0], &real[0]) == 0 && apart(&whole[1], &real[1]) > 0);
    // The first token, and a vector of whatever length: other vectors than the real one's, and those of each other.
    let modules = but("modules.json", |value| drop(value.as_array_mut().unwrap().pop()));
    let first = embed(&[("1_Pooling/config.json", json!({ "pooling_mode": "cls" }))]);
    let old = json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false });
    assert_eq!(embed(&[("1_Pooling/config.json", old)]), first);
    assert!(apart(&first[0], &real[0]) > 300);
    let raw = embed(&[("modules.json", modules)]);
    let length = |vector: &[f32]| vector.iter().map(|part| part * part).sum::<f32>().sqrt();
    assert!((length(&real[0]) - 1.0).abs() < 1e-5 && (length(&raw[0]) - 1.0).abs() > 0.1);
    assert!((coherence::score(&raw[0], &real[0]).unwrap().to_f64() - 1.0).abs() < 1e-6);
}

#[test]
fn a_text_has_one_vector_whatever_is_beside_it() {
    let model = Model::load(&directory(), 2).unwrap();
    let long = long();
    let texts = ["", " ", "a", "今天天气怎么样?", "\u{0}\u{fffd}", "مرحبا بالعالم", long.as_str()];
    let together = model.embed(&texts).unwrap();
    for (text, vector) in texts.iter().zip(&together) {
        assert_eq!(&model.embed(&[text]).unwrap()[0], vector, "{text}");
        assert!(vector.len() == 384 && vector.iter().all(|part| part.is_finite()));
    }
    // Text beyond 256 tokens is not read, and text before is.
    let vector = |text: &str| model.embed(&[text]).unwrap().remove(0);
    assert_eq!(vector(&format!("{long} and a refund")), together[6]);
    assert!(apart(&vector(&format!("a refund {long}")), &together[6]) > 100);
    assert!(model.embed(&[]).unwrap().is_empty());
}
