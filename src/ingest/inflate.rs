//! Decompresses bodies within bounds.

use std::cell::Cell;
use std::io::{self, Read};

use bytes::Bytes;
use libdeflater::{Crc, DecompressionError, Decompressor};
use memchr::memmem;
use zstd::zstd_safe::get_error_name;

use super::{Compression, Refusal};

/// The checksum and the size at the end of a gzip member.
const TRAILER_BYTES: usize = 8;

/// A bound for the ratio of deflate, which cannot exceed about 1,032 to 1.
const MAX_DEFLATE_RATIO: usize = 1_040;

/// The most bytes of a gzip body that are inflated in one go, without checks of the output in between.
const AT_ONCE_BYTES: usize = 1 << 20;

/// The bytes that a body may be ahead of its output: no compressor makes a text longer by more than a few bytes, while code tables
/// that are never used cost a decoder far more time than texts.
const AHEAD_BYTES: usize = 256 << 10;

/// The bytes that are inflated between two such checks.
const STEP_BYTES: u64 = 64 << 10;

/// What is wrong with a body that is too far ahead.
const LONGER: &str = "it is longer than its inflated content";

/// The usual ratio of compression, for a first guess at the size.
const USUAL_RATIO: usize = 8;

/// The largest window that is accepted, as a power of two: 8 MiB, which the format asks every decoder to support.
const MAX_WINDOW_LOG: u32 = 23;

/// What zstd returns for a larger window: its error 16, negated.
const WINDOW_TOO_LARGE: usize = 0_usize.wrapping_sub(16);

/// Inflates a body to at most `max` bytes.
///
/// # Errors
///
/// Refuses a body that inflates to more, and one that is not compressed as stated.
pub(super) fn inflate(compression: Compression, body: Bytes, max: usize) -> Result<Bytes, Refusal> {
    let inflated = match compression {
        Compression::None => body,
        Compression::Gzip => gzip(&body, max)?.into(),
        Compression::Zstd => zstd(&body, max)?.into(),
    };
    if inflated.len() > max { Err(too_large(max)) } else { Ok(inflated) }
}

/// Inflates a body that inflates to at most `bound` bytes; `None` if it inflates to more.
///
/// # Errors
///
/// Refuses a body that is not compressed as stated.
pub(super) fn inflate_small(
    compression: Compression,
    body: Bytes,
    bound: usize,
) -> Result<Option<Bytes>, Refusal> {
    match inflate(compression, body, bound) {
        Err(Refusal::TooLarge { .. }) => Ok(None),
        inflated => inflated.map(Some),
    }
}

fn gzip(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    if body.len() > AT_ONCE_BYTES {
        return members(body, max);
    }
    // The last four bytes state the size of the last member, according to the sender: a mere hint.
    let (rest, trailer) =
        body.split_last_chunk::<TRAILER_BYTES>().ok_or_else(|| malformed("gzip", "truncated"))?;
    let [.., a, b, c, d] = *trailer;
    let size = u32::from_le_bytes([a, b, c, d]);
    let bound = max.min(body.len().saturating_mul(MAX_DEFLATE_RATIO));
    let mut inflated = vec![0; usize::try_from(size).unwrap_or(max).clamp(1, bound.max(1))];
    match Decompressor::new().gzip_decompress(body, &mut inflated) {
        Ok(length) => {
            inflated.truncate(length);
            // Only the first member was read. It is the only one if its trailer ends the body and occurs nowhere else.
            let whole = trailer_of(&inflated) == *trailer && memmem::find(rest, trailer).is_none();
            if whole { Ok(inflated) } else { members(body, max) }
        }
        // The size is that of another member, or wrong.
        Err(DecompressionError::InsufficientSpace) => members(body, max),
        Err(DecompressionError::BadData) => Err(malformed("gzip", "damaged")),
    }
}

/// Inflates any number of members.
fn members(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    let inflated = Cell::default();
    read(
        flate2::read::MultiGzDecoder::new(Fed::new(body, &inflated)),
        (body.len(), &inflated),
        "gzip",
        max,
    )
}

fn zstd(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    let inflated = Cell::default();
    let mut decoder = zstd::stream::read::Decoder::new(Fed::new(body, &inflated))
        .map_err(|_| malformed("zstd", "not decodable"))?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(|_| malformed("zstd", "not decodable"))?;
    read(decoder, (body.len(), &inflated), "zstd", max)
}

/// A body that is fed to its decoder as long as it is not too far ahead of the output.
struct Fed<'a> {
    body: &'a [u8],
    given: usize,
    inflated: &'a Cell<usize>,
}

impl<'a> Fed<'a> {
    fn new(body: &'a [u8], inflated: &'a Cell<usize>) -> Self {
        Self { body, given: 0, inflated }
    }
}

impl Read for Fed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given > self.inflated.get() + AHEAD_BYTES {
            return Err(io::Error::other(LONGER));
        }
        let read = self.body.read(into)?;
        self.given += read;
        Ok(read)
    }
}

/// Why a body was not inflated.
fn why(error: &io::Error) -> &'static str {
    match error.to_string() {
        said if said == get_error_name(WINDOW_TOO_LARGE) => {
            "its window is over 8 MiB; compress at level 19 or lower, without `--long`"
        }
        said if said == LONGER => LONGER,
        _ => "damaged or truncated",
    }
}

fn read(
    mut decoder: impl Read,
    (compressed, so_far): (usize, &Cell<usize>),
    what: &'static str,
    max: usize,
) -> Result<Vec<u8>, Refusal> {
    let mut inflated = Vec::with_capacity(compressed.saturating_mul(USUAL_RATIO).min(max));
    loop {
        let step = decoder.by_ref().take(STEP_BYTES).read_to_end(&mut inflated);
        let read = step.map_err(|error| malformed(what, why(&error)))?;
        so_far.set(inflated.len());
        match read {
            _ if inflated.len() > max => return Err(too_large(max)),
            0 => return Ok(inflated),
            _ => {}
        }
    }
}

/// The checksum and the size, modulo 2^32, at the end of the member that holds these bytes.
fn trailer_of(inflated: &[u8]) -> [u8; TRAILER_BYTES] {
    let mut sum = Crc::new();
    sum.update(inflated);
    let [.., a, b, c, d] = (inflated.len() as u64).to_be_bytes();
    let size = u32::from_be_bytes([a, b, c, d]);
    (u64::from(size) << 32 | u64::from(sum.sum())).to_le_bytes()
}

fn malformed(what: &'static str, why: &str) -> Refusal {
    Refusal::Malformed { what, why: why.to_owned() }
}

fn too_large(max: usize) -> Refusal {
    Refusal::TooLarge { what: "the inflated request", max, key: "ingest.max_request_bytes" }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_member_is_read() {
        let body = [gzipped(b"first, "), gzipped(b"second")].concat();
        let inflated = inflate(Compression::Gzip, body.into(), 100).unwrap();
        assert_eq!(&inflated[..], b"first, second");
    }

    #[test]
    fn a_member_that_comes_again_is_read_again() {
        let body = gzipped(b"twice, ").repeat(2);
        let inflated = inflate(Compression::Gzip, body.into(), 100).unwrap();
        assert_eq!(&inflated[..], b"twice, twice, ");
    }

    #[test]
    fn the_bound_holds_for_what_comes_out() {
        let text = vec![b'x'; 1_000_000];
        for (compression, body) in [
            (Compression::Gzip, gzipped(&text)),
            (Compression::Zstd, zstd::encode_all(&text[..], 3).unwrap()),
        ] {
            assert_eq!(
                inflate(compression, body.clone().into(), 1_000_000).unwrap().len(),
                1_000_000
            );
            assert!(matches!(
                inflate(compression, body.into(), 999_999),
                Err(Refusal::TooLarge { .. })
            ));
        }
    }

    #[test]
    fn a_size_that_is_wrong_does_not_matter() {
        let text = vec![b'x'; 100_000];
        for size in [0, 1, 99_999, u32::MAX] {
            let mut body = gzipped(&text);
            body.truncate(body.len() - 4);
            body.extend(u32::to_le_bytes(size));
            assert!(matches!(
                inflate(Compression::Gzip, body.into(), 1_000_000),
                Err(Refusal::Malformed { .. })
            ));
        }
        let large = [gzipped(&text), gzipped(b"small")].concat();
        let inflated = inflate(Compression::Gzip, large.into(), 1_000_000).unwrap();
        assert_eq!(inflated.len(), 100_005);
    }

    #[test]
    fn a_body_that_is_longer_than_its_content_is_given_up() {
        // Empty blocks: five bytes each of gzip, three of zstd.
        let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
        gzip.extend([0, 0, 0, 255, 255].repeat(2 * AT_ONCE_BYTES / 5));
        let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x58];
        zstd.extend([0, 0, 0].repeat(2 * AT_ONCE_BYTES / 3));
        for (compression, body) in [(Compression::Gzip, gzip), (Compression::Zstd, zstd)] {
            let refused = inflate(compression, body.into(), 1_000_000).unwrap_err().to_string();
            assert!(refused.contains(LONGER), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_compressed_is_not_given_up() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_be_bytes()[0]
        };
        let text: Vec<u8> = (0..3 * AT_ONCE_BYTES).map(|_| next()).collect();
        for (compression, body) in [
            (Compression::Gzip, gzipped(&text)),
            (Compression::Zstd, zstd::encode_all(&text[..], 3).unwrap()),
        ] {
            assert!(body.len() > AT_ONCE_BYTES);
            assert_eq!(inflate(compression, body.into(), text.len()).unwrap(), text);
        }
    }

    #[test]
    fn a_window_that_is_too_large_is_told_from_damage() {
        let told = |window_log, end| {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(window_log).unwrap();
            encoder.write_all(&[b'x'; 100]).unwrap();
            let body = encoder.finish().unwrap();
            inflate(Compression::Zstd, body[..body.len() - end].to_vec().into(), 1_000)
        };
        assert_eq!(told(MAX_WINDOW_LOG, 0).unwrap().len(), 100);
        let large = told(MAX_WINDOW_LOG + 1, 0).unwrap_err().to_string();
        assert!(large.contains("window is over 8 MiB; compress at level 19 or lower"), "{large}");
        let damaged = told(MAX_WINDOW_LOG, 2).unwrap_err().to_string();
        assert!(damaged.contains("damaged or truncated"), "{damaged}");
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let body = gzipped(b"a text that is long enough to be cut somewhere");
        for body in [Vec::new(), b"plain".to_vec(), body[..body.len() - 9].to_vec()] {
            assert!(matches!(
                inflate(Compression::Gzip, body.clone().into(), 100),
                Err(Refusal::Malformed { .. })
            ));
        }
    }

    proptest! {
        #[test]
        fn what_was_compressed_comes_out(text in prop::collection::vec(any::<u8>(), 0..5_000)) {
            prop_assert_eq!(&inflate(Compression::Gzip, gzipped(&text).into(), 5_000).unwrap()[..], &text[..]);
            let body = zstd::encode_all(&text[..], 3).unwrap();
            prop_assert_eq!(&inflate(Compression::Zstd, body.into(), 5_000).unwrap()[..], &text[..]);
        }

        #[test]
        fn any_bytes_are_inflated_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = inflate(Compression::Gzip, body.clone().into(), 1_000);
            let _ = inflate(Compression::Zstd, body.into(), 1_000);
        }
    }
}
