//! Undoes compression, never beyond a bound.

use std::io::{self, Read};

use bytes::Bytes;
use libdeflater::{Crc, DecompressionError, Decompressor};
use memchr::memmem;
use zstd::zstd_safe::get_error_name;

use super::{Compression, Refusal};

/// The checksum and the size at the end of a gzip member.
const TRAILER_BYTES: usize = 8;

/// A bound for the ratio of deflate, which cannot do better than about 1,032 to 1.
const MAX_DEFLATE_RATIO: usize = 1_040;

/// The usual ratio of compression, for a first guess at the size.
const USUAL_RATIO: usize = 8;

/// The largest window that is accepted, as a power of two: 8 MiB, which the format asks every decoder to support.
const MAX_WINDOW_LOG: u32 = 23;

/// What zstd returns of a larger one: its error 16, negated.
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

fn gzip(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    // The last four bytes state the size of the last member, by the sender: a hint, no more.
    let (rest, trailer) =
        body.split_last_chunk::<TRAILER_BYTES>().ok_or_else(|| malformed("gzip", "truncated"))?;
    let [.., a, b, c, d] = *trailer;
    let size = u32::from_le_bytes([a, b, c, d]);
    let bound = max.min(body.len().saturating_mul(MAX_DEFLATE_RATIO));
    let mut capacity = usize::try_from(size).unwrap_or(max).clamp(1, bound.max(1));
    let mut decompressor = Decompressor::new();
    loop {
        let mut inflated = vec![0; capacity];
        match decompressor.gzip_decompress(body, &mut inflated) {
            Ok(length) => {
                inflated.truncate(length);
                // Only the first member was read. It is the only one if its trailer ends the body and occurs nowhere else.
                let whole =
                    trailer_of(&inflated) == *trailer && memmem::find(rest, trailer).is_none();
                return if whole { Ok(inflated) } else { members(body, max) };
            }
            Err(DecompressionError::InsufficientSpace) if capacity < bound => {
                capacity = capacity.saturating_mul(2).min(bound);
            }
            Err(DecompressionError::InsufficientSpace) => return Err(too_large(max)),
            Err(DecompressionError::BadData) => return Err(malformed("gzip", "damaged")),
        }
    }
}

/// Inflates any number of members.
fn members(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    read(flate2::read::MultiGzDecoder::new(body), body.len(), "gzip", max)
}

fn zstd(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    let mut decoder =
        zstd::stream::read::Decoder::new(body).map_err(|_| malformed("zstd", "not decodable"))?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(|_| malformed("zstd", "not decodable"))?;
    read(decoder, body.len(), "zstd", max)
}

/// What is wrong with a body that was not inflated.
fn why(error: &io::Error) -> &'static str {
    if error.to_string() == get_error_name(WINDOW_TOO_LARGE) {
        "its window is over 8 MiB; compress at level 19 or lower, without `--long`"
    } else {
        "damaged or truncated"
    }
}

fn read(
    decoder: impl Read,
    compressed: usize,
    what: &'static str,
    max: usize,
) -> Result<Vec<u8>, Refusal> {
    let mut inflated = Vec::with_capacity(compressed.saturating_mul(USUAL_RATIO).min(max));
    let beyond = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    decoder
        .take(beyond)
        .read_to_end(&mut inflated)
        .map_err(|error| malformed(what, why(&error)))?;
    if inflated.len() > max { Err(too_large(max)) } else { Ok(inflated) }
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
