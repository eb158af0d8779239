//! Decoding: JSON and protobuf mean the same, and no bytes crash it.

use std::fs;
use std::path::{Path, PathBuf};

use agentgauge::engine::options::ConventionOptions;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::{Batch, Encoding, Signal, file};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use proptest::prelude::*;
use prost::Message;

fn decoder() -> Decoder {
    Decoder::new(IngestLimits::default(), ConventionOptions::default())
}

/// All recorded requests: what they are, and their bytes.
pub(crate) fn recorded() -> Vec<(Signal, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures");
    let files = file::list(&[folder]).unwrap();
    let recordings = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "pb"));
    recordings
        .map(|path| {
            let logs = path.file_name().unwrap().to_string_lossy().contains("logs");
            (if logs { Signal::Logs } else { Signal::Traces }, fs::read(path).unwrap())
        })
        .collect()
}

pub(crate) fn to_json(signal: Signal, body: &[u8]) -> Vec<u8> {
    if signal == Signal::Logs {
        serde_json::to_vec(&ExportLogsServiceRequest::decode(body).unwrap()).unwrap()
    } else {
        serde_json::to_vec(&ExportTraceServiceRequest::decode(body).unwrap()).unwrap()
    }
}

fn same(a: &Batch, b: &Batch) {
    assert_eq!(a.spans, b.spans);
    assert_eq!(a.logs, b.logs);
    assert_eq!(a.reports, b.reports);
    assert_eq!(a.tally, b.tally);
}

#[test]
fn json_says_what_protobuf_says() {
    let decoder = decoder();
    for (signal, body) in recorded() {
        let json = to_json(signal, &body);
        let from_protobuf = decoder.decode_plain(signal, Encoding::Protobuf, &body).unwrap();
        same(&from_protobuf, &decoder.decode_plain(signal, Encoding::Json, &json).unwrap());
        assert!(from_protobuf.tally.rejected.is_empty());
    }
}

#[test]
fn files_of_every_kind_are_read() {
    let decoder = decoder();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let traces: Vec<Vec<u8>> = recorded()
        .into_iter()
        .filter(|(signal, _)| *signal == Signal::Traces)
        .map(|(_, body)| body)
        .take(2)
        .collect();
    let json: Vec<Vec<u8>> = traces.iter().map(|body| to_json(Signal::Traces, body)).collect();
    let spans = |path: &Path| -> usize {
        file::read(path, &decoder).unwrap().iter().map(|batch| batch.spans.len()).sum()
    };
    let one = spans(&write("traces.pb", &traces[0]));
    assert!(one > 0);
    assert_eq!(spans(&write("traces.pb.zst", &zstd::encode_all(&traces[0][..], 3).unwrap())), one);
    assert_eq!(spans(&write("one.json", &json[0])), one);
    let lines = [&json[0][..], b"\n", &json[1], b"\n"].concat();
    let both = spans(&write("lines.jsonl", &lines));
    assert_eq!(both, one + spans(&write("traces-2.pb", &traces[1])));
    // Half an emoji, and a number as Python writes one, over several lines and in one of them.
    let odd = String::from_utf8(json[0].clone()).unwrap();
    let odd = odd.replacen("\"resourceSpans\":", "\"n\\ud83d\":\nNaN,\n\"resourceSpans\":", 1);
    assert_eq!(spans(&write("odd.json", odd.as_bytes())), one);
    let line = odd.replace('\n', "");
    let lines = [line.as_bytes(), b"\n", &json[1], b"\n"].concat();
    assert_eq!(spans(&write("odd.jsonl", &lines)), both);
    let error =
        file::read(&write("bad.jsonl", &[&json[0][..], b"\n{"].concat()), &decoder).unwrap_err();
    assert!(error.to_string().contains("bad.jsonl, line 2: malformed JSON"), "{error}");
    let error = file::read(&write("what.pb", &traces[0]), &decoder).unwrap_err();
    assert!(error.to_string().contains("`traces` or `logs` in it"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(body in prop::collection::vec(any::<u8>(), 0..400)) {
        for signal in [Signal::Traces, Signal::Logs, Signal::Metrics] {
            for encoding in [Encoding::Protobuf, Encoding::Json] {
                let _ = decoder().decode_plain(signal, encoding, &body);
            }
        }
    }

    #[test]
    fn a_damaged_request_is_decoded_or_refused(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let recorded = recorded();
        let (signal, mut body) = recorded[which.index(recorded.len())].clone();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body.truncate(cut.index(body.len()) + body.len() / 2);
        if let Ok(batch) = decoder().decode_plain(signal, Encoding::Protobuf, &body) {
            let spans = batch.spans.len() as u64 + batch.tally.rejected.values().sum::<u64>();
            prop_assert!(signal == Signal::Logs || spans == batch.tally.spans);
        }
        let _ = decoder().decode_plain(signal, Encoding::Json, &body);
    }
}
