//! The requests of one pass, which are stamped, compressed and framed before it is measured.

use std::io::{self, Write};
use std::thread;

use bytes::Bytes;
use flate2::write::GzEncoder;

use crate::Case;
use crate::stamp::{Finder, Stamp, Template};
use crate::workload::BLOCK_SPANS;
use agentgauge::engine::span::Timestamp;
use agentgauge::ingest::Compression;

/// The number of different blocks; a pass that needs more uses the same blocks again, under other ids.
const BLOCKS: u64 = 8;

/// How long ago the first spans of a pass began, in nanoseconds; they are shorter.
const AGO: u64 = 5_000_000_000;

/// The default level of gzip in clients, and the fastest level of Zstandard.
const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 1;

/// The material of the passes of one case.
pub(super) struct Material {
    compression: Compression,
    blocks: Vec<Encoded>,
    // Invariant: greater than every used seed.
    seed: u64,
}

/// A block as templates.
struct Encoded {
    templates: Vec<Template>,
    traces: u64,
}

/// The requests of a pass, which are sent once.
#[derive(Default)]
pub(super) struct Pass {
    /// gRPC messages: a flag, four bytes of length, the request.
    pub(super) messages: Vec<Bytes>,
    /// The number of spans of each message, in the same order.
    pub(super) message_spans: Vec<u64>,
    /// The number of traces.
    pub(super) traces: u64,
    /// Bytes of the requests before compression.
    pub(super) plain_bytes: u64,
}

impl Material {
    /// The material of a case.
    pub(super) fn new(case: &Case) -> Self {
        let finder = Finder::new();
        let encode = |number| {
            let block = case.workload.block(number);
            let requests = block.requests(case.batch);
            let templates = requests.iter().map(|request| finder.template(request)).collect();
            Encoded { templates, traces: block.traces }
        };
        let blocks = (0..BLOCKS).map(encode).collect();
        Self { compression: case.compression, blocks, seed: 0 }
    }

    /// A pass of at least `spans` spans that were never sent, with times just before `now`.
    ///
    /// # Errors
    ///
    /// Fails if a request cannot be compressed.
    pub(super) fn pass(&mut self, spans: u64, now: Timestamp) -> io::Result<Pass> {
        let count = spans.div_ceil(BLOCK_SPANS as u64).max(1);
        let first = self.seed;
        self.seed += count;
        let start = now.0.saturating_sub(AGO);
        let stamps: Vec<Stamp> = (first..self.seed).map(|seed| Stamp { seed, start }).collect();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let part = stamps.len().div_ceil(threads);
        let material = &*self;
        let parts: Vec<io::Result<Pass>> = thread::scope(|scope| {
            let workers: Vec<_> = stamps
                .chunks(part)
                .map(|stamps| scope.spawn(move || material.stamped(stamps)))
                .collect();
            let gone = |_| Err(io::Error::other("a thread that makes requests panicked"));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(gone)).collect()
        });
        let mut whole = Pass::default();
        for part in parts {
            whole.append(part?);
        }
        Ok(whole)
    }

    fn stamped(&self, stamps: &[Stamp]) -> io::Result<Pass> {
        let mut pass = Pass::default();
        let mut scratch = Vec::new();
        for stamp in stamps {
            let Some(block) = self.blocks.get(usize::try_from(stamp.seed % BLOCKS).unwrap_or(0))
            else {
                continue;
            };
            pass.traces += block.traces;
            for template in &block.templates {
                scratch.clear();
                template.write(*stamp, &mut scratch);
                pass.messages.push(message(&scratch, self.compression)?);
                pass.message_spans.push(template.spans);
                pass.plain_bytes += template.len() as u64;
            }
        }
        Ok(pass)
    }
}

impl Pass {
    /// The number of spans of all messages.
    pub(super) fn spans(&self) -> u64 {
        self.message_spans.iter().sum()
    }

    /// The bytes of all messages, as sent.
    pub(super) fn wire_bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.len() as u64).sum()
    }

    fn append(&mut self, mut other: Self) {
        self.messages.append(&mut other.messages);
        self.message_spans.append(&mut other.message_spans);
        self.traces += other.traces;
        self.plain_bytes += other.plain_bytes;
    }
}

/// The message of a request.
///
/// # Errors
///
/// Fails if it cannot be compressed.
pub(super) fn message(request: &[u8], compression: Compression) -> io::Result<Bytes> {
    let compressed = match compression {
        Compression::None => None,
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL));
            encoder.write_all(request)?;
            Some(encoder.finish()?)
        }
        Compression::Zstd => Some(zstd::bulk::compress(request, ZSTD_LEVEL)?),
    };
    let (flag, body) = compressed.as_deref().map_or((0, request), |bytes| (1, bytes));
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(5 + body.len());
    message.push(flag);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    Ok(message.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::workload::Workload;
    use agentgauge::engine::options::ConventionOptions;
    use agentgauge::ingest::decode::{Decoder, IngestLimits};
    use agentgauge::ingest::{Encoding, Signal};

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);

    #[test]
    fn no_pass_repeats_a_trace_whatever_its_batches_and_compression() {
        let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let workload = Workload::Lean;
            let case = Case { workload, compression, batch: 16, frame: 16_384 };
            let mut material = Material::new(&case);
            let mut seen = BTreeSet::new();
            let mut traces = 0;
            for _ in 0..2 {
                let pass = material.pass(5_000, NOW).unwrap();
                assert_eq!(pass.spans(), 10 * 512);
                assert_eq!(pass.messages.len(), 320);
                traces += pass.traces;
                for message in &pass.messages {
                    let body = message.slice(5..);
                    assert_eq!(message[0], u8::from(compression != Compression::None));
                    assert_eq!(message[1..5], u32::try_from(body.len()).unwrap().to_be_bytes());
                    let (signal, encoding) = (Signal::Traces, Encoding::Protobuf);
                    let prepared = decoder.prepare(signal, encoding, compression, body).unwrap();
                    let batch = decoder.decode(prepared, Some(NOW), None).unwrap();
                    assert!(batch.tally.rejected.is_empty() && batch.tally.repaired.is_empty());
                    seen.extend(batch.spans.iter().map(|span| span.trace_id));
                }
            }
            assert_eq!(seen.len() as u64, traces);
        }
    }
}
