//! Files: recorded requests in protobuf (`.pb`), OTLP JSON, JSON lines as the Collector's file exporter writes them, and
//! plain lists of spans; each also compressed (`.gz`, `.zst`). Directories are read in the order of names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::decode::Decoder;
use super::{Batch, Compression, Encoding, Refusal, Signal};

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system does not allow reading it.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Its name does not tell how it is written.
    #[error("cannot recognise the content of {}: {hint}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What the name should look like.
        hint: &'static str,
    },
    /// Its content is refused.
    #[error("{}, line {line}: {source}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 1 for files without lines.
        line: usize,
        /// Why.
        source: Refusal,
    },
}

/// The recordings under some paths, in order: a file itself, and every recording in a folder.
///
/// # Errors
///
/// Fails if a path cannot be read.
pub fn list(paths: &[PathBuf]) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    for path in paths {
        let read = |source| FileError::Read { path: path.clone(), source };
        if !fs::metadata(path).map_err(read)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries: Result<Vec<_>, _> = fs::read_dir(path)
            .map_err(read)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect();
        let mut entries = entries.map_err(read)?;
        entries.sort();
        for entry in entries {
            if entry.is_dir() {
                files.extend(list(&[entry])?);
            } else if recording(&entry).is_some() {
                files.push(entry);
            }
        }
    }
    Ok(files)
}

/// Reads one recording: a batch for each request in it.
///
/// # Errors
///
/// Fails if the file cannot be read, is no recording by its name, or does not hold what its name says.
pub fn read(path: &Path, decoder: &Decoder) -> Result<Vec<Batch>, FileError> {
    let hint = "use a name that ends in .pb (with `traces` or `logs` in it), .json or .jsonl, and .gz or .zst after it";
    let unknown = || FileError::Unknown { path: path.to_owned(), hint };
    let (encoding, compression, logs) = recording(path).ok_or_else(unknown)?;
    let bytes =
        fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let refused = |line| move |source| FileError::Refused { path: path.to_owned(), line, source };
    let decode = |signal, bytes: Bytes, compression| {
        decoder
            .prepare(signal, encoding, compression, bytes)
            .and_then(|prepared| decoder.decode(prepared, None, None))
    };
    if encoding == Encoding::Protobuf {
        let signal = logs.ok_or_else(unknown)?;
        return Ok(vec![decode(signal, bytes.into(), compression).map_err(refused(1))?]);
    }
    let mut text =
        super::inflate::inflate(compression, bytes.into(), usize::MAX).map_err(refused(1))?;
    text = text.slice_ref(super::json::unmarked(&text));
    if let Some(request) = super::spans::request(&text) {
        text = request.into();
    }
    let mut batches = Vec::new();
    // The text is one document, or one document per line.
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    let first = lines.iter().find(|line| !line.iter().all(u8::is_ascii_whitespace));
    let whole = serde_json::from_slice::<IgnoredAny>(&text).is_ok();
    // A document that has to be mended does not parse unchanged; then the first line shows which of the two it is.
    if whole || first.is_some_and(|line| !super::json::is_nearly(line)) {
        lines = vec![&text[..]];
    }
    for (number, line) in (1..).zip(lines) {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        for signal in signals(line) {
            batches.push(
                decode(signal, text.slice_ref(line), Compression::None).map_err(refused(number))?,
            );
        }
    }
    Ok(batches)
}

/// Encoding, compression and signal of a file by its name; `None` if it is no recording.
fn recording(path: &Path) -> Option<(Encoding, Compression, Option<Signal>)> {
    let name = path.file_name()?.to_str()?;
    let (name, compression) = match name.rsplit_once('.') {
        Some((name, "gz")) => (name, Compression::Gzip),
        Some((name, "zst")) => (name, Compression::Zstd),
        _ => (name, Compression::None),
    };
    let signal = if name.contains("traces") {
        Some(Signal::Traces)
    } else {
        name.contains("logs").then_some(Signal::Logs)
    };
    match name.rsplit_once('.')?.1 {
        "pb" => Some((Encoding::Protobuf, compression, signal)),
        "json" | "jsonl" | "ndjson" => Some((Encoding::Json, compression, signal)),
        _ => None,
    }
}

/// The lists at the top of a JSON request.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Lists {
    #[serde(alias = "resource_logs")]
    resource_logs: Option<IgnoredAny>,
    #[serde(alias = "resource_metrics")]
    resource_metrics: Option<IgnoredAny>,
    #[serde(alias = "resource_spans")]
    resource_spans: Option<IgnoredAny>,
}

/// The signals of a JSON request, by the names in it; metrics are left out.
fn signals(line: &[u8]) -> Vec<Signal> {
    let text = String::from_utf8_lossy(line);
    // A request that has to be mended is searched for the names.
    let within = |name: &str| text.contains(name).then_some(IgnoredAny);
    let lists = serde_json::from_slice(line).unwrap_or_else(|_| Lists {
        resource_logs: within("resourceLogs").or_else(|| within("resource_logs")),
        resource_metrics: within("resourceMetrics").or_else(|| within("resource_metrics")),
        resource_spans: within("resourceSpans").or_else(|| within("resource_spans")),
    });
    let Lists { resource_logs, resource_metrics, resource_spans } = lists;
    let mut signals = Vec::new();
    if resource_logs.is_some() {
        signals.push(Signal::Logs);
    }
    if resource_spans.is_some() || (signals.is_empty() && resource_metrics.is_none()) {
        signals.push(Signal::Traces);
    }
    signals
}
