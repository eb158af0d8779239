//! What must hold for any bytes that come in: the fuzz targets look for bytes for which it does not, and
//! `tests/engine/corpus` replays those that were kept.
//!
//! Of a request the first byte chooses the signal, the rest is the body.

pub(crate) mod asked;
pub(crate) mod stored;

use std::io::Write;
use std::sync::LazyLock;

use agentgauge::engine::options::ConventionOptions;
use agentgauge::ingest::decode::{Decoder, IngestLimits};
use agentgauge::ingest::prescan::{Bounds, Scan, scan};
use agentgauge::ingest::{Batch, Compression, Encoding, Refusal, Signal};
use bytes::Bytes;

const MAX_ITEMS: usize = 10_000;
const MAX_NESTING: usize = 32;
const MAX_REQUEST_BYTES: usize = 1 << 16;

static DECODER: LazyLock<Decoder> = LazyLock::new(decoder);

/// Reads every span the long way.
static LONG_WAY: LazyLock<Decoder> = LazyLock::new(|| decoder().without_plans());

fn decoder() -> Decoder {
    let limits = IngestLimits {
        max_request_bytes: MAX_REQUEST_BYTES,
        max_request_items: MAX_ITEMS,
        max_nesting: MAX_NESTING,
        ..IngestLimits::default()
    };
    Decoder::new(limits, ConventionOptions::default())
}

/// The pre-scan keeps its bounds, and what it lets through whole under tight ones it lets through under wide ones.
pub(crate) fn prescan(bytes: &[u8]) {
    let Some((signal, body)) = chosen(bytes) else { return };
    if let Ok(tight) = scanned(signal, body, 100, 4) {
        assert!(tight.items <= 100 && tight.records <= 100);
        if !tight.deep {
            assert_eq!(scanned(signal, body, MAX_ITEMS, MAX_NESTING), Ok(tight));
        }
    }
}

/// What is decoded is what was counted, each span and record is kept or rejected, a request sent twice over in one is its
/// parts, and plans, which are made once a kind of span comes again, change nothing.
pub(crate) fn walk(bytes: &[u8]) {
    let Some((signal, body)) = chosen(bytes) else { return };
    let decoded = decoded(signal, Encoding::Protobuf, body);
    for _ in 0..2 {
        planned_or_not(signal, body);
    }
    let counted = scanned(signal, body, MAX_ITEMS, MAX_NESTING);
    assert!(decoded.is_err() || counted.is_ok() || body.len() > MAX_REQUEST_BYTES);
    let (Ok(batch), Ok(counted)) = (decoded, counted) else { return };
    let tally = &batch.tally;
    assert_eq!(tally.spans + tally.logs + tally.metric_points, counted.records);
    if let Ok(twice) = self::decoded(signal, Encoding::Protobuf, &[body, body].concat()) {
        assert_eq!(twice.spans.len(), 2 * batch.spans.len());
        assert_eq!(twice.reports.len(), 2 * batch.reports.len());
        assert_eq!(twice.tally.spans, 2 * tally.spans);
    }
}

/// Plans, those of earlier requests too, are held against the long way.
fn planned_or_not(signal: Signal, body: &[u8]) {
    let [planned, not] =
        [&DECODER, &LONG_WAY].map(|decoder| decoder.decode_plain(signal, Encoding::Protobuf, body));
    assert_eq!(planned.is_ok(), not.is_ok());
    if let (Ok(planned), Ok(not)) = (planned, not) {
        assert_eq!(planned.spans, not.spans);
        assert_eq!(planned.logs, not.logs);
        assert_eq!(planned.reports, not.reports);
        assert_eq!(planned.tally, not.tally);
    }
}

/// The same of JSON, as far as it can be told.
pub(crate) fn json(bytes: &[u8]) {
    let Some((signal, body)) = chosen(bytes) else { return };
    let _ = decoded(signal, Encoding::Json, body);
}

/// No bytes inflate to more than the limit; what was compressed, in one piece or in two, is what it was.
pub(crate) fn inflate(bytes: &[u8]) {
    let Some((signal, body)) = chosen(bytes) else { return };
    for compression in [Compression::Gzip, Compression::Zstd] {
        let _ = prepared(signal, compression, body);
    }
    let plain = prepared(signal, Compression::None, body);
    let (first, second) = body.split_at(body.len() / 2);
    for (compression, compress) in
        [(Compression::Gzip, gzipped as fn(&[u8]) -> Vec<u8>), (Compression::Zstd, zstandard)]
    {
        let members = [compress(first), compress(second)].concat();
        for compressed in [compress(body), members] {
            let same = prepared(signal, compression, &compressed);
            assert!(body.len() > MAX_REQUEST_BYTES || same == plain, "{compression:?}");
        }
    }
}

fn chosen(bytes: &[u8]) -> Option<(Signal, &[u8])> {
    let (first, body) = bytes.split_first()?;
    let signals = [Signal::Traces, Signal::Logs, Signal::Metrics];
    Some((signals[usize::from(*first) % signals.len()], body))
}

fn scanned(
    signal: Signal,
    body: &[u8],
    max_items: usize,
    max_nesting: usize,
) -> Result<Scan, Refusal> {
    scan(signal, body, Bounds { max_items, max_nesting })
}

/// Decodes a request; each of its spans and records is in the batch or was left out for a reason.
fn decoded(signal: Signal, encoding: Encoding, body: &[u8]) -> Result<Batch, Refusal> {
    let batch = DECODER.decode_plain(signal, encoding, body)?;
    let left_out: u64 = batch.tally.rejected.values().sum();
    let kept = u64::try_from(batch.spans.len()).expect("fits");
    assert!(kept <= batch.tally.spans && batch.tally.spans <= kept + left_out);
    Ok(batch)
}

fn prepared(signal: Signal, compression: Compression, body: &[u8]) -> Result<usize, Refusal> {
    let body = Bytes::copy_from_slice(body);
    let prepared = DECODER.prepare(signal, Encoding::Protobuf, compression, body)?;
    Ok(prepared.estimated_bytes())
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("into memory");
    encoder.finish().expect("into memory")
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("into memory")
}
