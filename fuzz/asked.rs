//! What must hold for whatever a judge says, a configuration has, somebody asks the API for, or tells it.

use std::sync::{Arc, LazyLock};
use std::{env, fs, process};

use agentgauge::config::Config;
use agentgauge::engine::explained::TraceExplanation;
use agentgauge::engine::sessions::Found;
use agentgauge::engine::span::{Timestamp, TraceId};
use agentgauge::export::board::Board;
use agentgauge::export::http::Exporter;
use agentgauge::export::prometheus::Detail;
use agentgauge::export::query::{ListRequest, Listing, Query};
use agentgauge::ingest::report::{acceptance_json, deployment_json};
use agentgauge::ingest::{Encoding, Signal};
use agentgauge::judge::options::Format;
use agentgauge::judge::{Stage, reply};
use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use tower::ServiceExt;

use super::DECODER;

/// A judge's reply has an answer or none, and an answer is of its stage's form or refused.
pub(crate) fn judged(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    answered(&text);
    let Ok(value) = serde_json::from_str::<Value>(&text) else { return };
    for format in [Format::None, Format::Openai, Format::Anthropic, Format::Gemini] {
        let (answer, none) = format.answer(&value);
        assert!(none.is_none() || answer.text.is_empty(), "{format:?} both answers and does not");
        answered(&answer.text);
    }
}

fn answered(text: &str) {
    for stage in Stage::ALL {
        if let Ok(value) = reply::read(stage, text) {
            let again = reply::read(stage, &value.to_string());
            assert!(again.is_ok(), "{stage:?}: {value}");
            let _ = reply::verdict(&value);
        }
    }
}

/// A configuration is read or refused in words; what is read is fit for the stages.
pub(crate) fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // Each process has its own.
    let path = env::temp_dir().join(format!("agentgauge-fuzz-{}.toml", process::id()));
    fs::write(&path, text.as_bytes()).expect("a temporary file");
    let lines = text.lines().filter_map(|line| line.split_once(" = "));
    let environment = lines.map(|(key, value)| {
        let key = key.to_uppercase().replace('.', "__");
        (format!("AGENTGAUGE__{key}"), value.trim_matches('"').to_owned())
    });
    for read in [Config::load(Some(&path), [], &[]), Config::load(None, environment, &[])] {
        match read {
            Ok(config) => {
                assert!(config.known_tenants() > 0);
                drop(config.engine_options(Arc::default()));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    fs::remove_file(&path).expect("the temporary file");
}

/// Whatever is asked for is answered or refused, and no list is asked for without a bound.
pub(crate) fn query(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let path = format!("/{}", text.trim_start_matches('/'));
    // What ends with its reader alone is not read here.
    if path.starts_with("/api/v1/events") {
        return;
    }
    let Ok(request) = Request::get(&path).body(Body::empty()) else { return };
    let exporter = Exporter::new(
        Arc::new(Board::default()),
        Arc::new(Vec::new),
        Bounded,
        Detail::Full,
        Arc::new(Timestamp::default),
    );
    let answer = RUNTIME.block_on(exporter.router().oneshot(request));
    let status = answer.expect("a router does not fail").status();
    assert!(!status.is_server_error(), "{path}: {status}");
}

/// A body of reports is read or refused; what follows from the other bodies is a body of reports.
pub(crate) fn report(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let decoded =
        |encoding, body: &[u8]| DECODER.decode_plain(Signal::Reports, encoding, body).map(drop);
    let made = match kind % 4 {
        0 => return drop(decoded(Encoding::Protobuf, body)),
        1 => return drop(decoded(Encoding::Json, body)),
        2 => acceptance_json(body),
        _ => deployment_json(body),
    };
    if let Ok(made) = made {
        let text = String::from_utf8_lossy(&made);
        assert!(decoded(Encoding::Json, &made).is_ok(), "{text}");
    }
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
});

/// Has nothing, and is asked for a bounded list alone.
#[derive(Clone)]
struct Bounded;

impl Query for Bounded {
    async fn list(&self, request: ListRequest) -> Listing {
        assert!(request.limit <= 1_000 && request.offset <= 100_000, "{request:?}");
        Listing::default()
    }

    async fn session(&self, _: &str, _: &str, _: Option<&str>) -> Found {
        Found::Nothing
    }

    async fn explain(
        &self,
        _: Option<&str>,
        _: Option<(&str, Option<&str>)>,
        _: TraceId,
    ) -> Option<TraceExplanation> {
        None
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
}
