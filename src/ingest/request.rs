//! A request as it was received: what the write-ahead log holds.
//!
//! ```text
//! byte  0   signal: 1 traces, 2 logs, 3 metrics, 4 reports of our own API
//!       1   encoding: 1 protobuf, 2 JSON
//!       2   compression: 0 none, 1 gzip, 2 zstd
//!       3.. body, as it came
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use super::{Compression, Encoding, Signal};

/// A request that was within all limits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// What it carries.
    pub signal: Signal,
    /// How it is written.
    pub encoding: Encoding,
    /// How it is compressed.
    pub compression: Compression,
    /// Its body.
    pub body: Bytes,
}

impl Request {
    /// Its bytes in the log.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD + self.body.len());
        bytes.put_u8(match self.signal {
            Signal::Traces => 1,
            Signal::Logs => 2,
            Signal::Metrics => 3,
            Signal::Reports => 4,
        });
        bytes.put_u8(match self.encoding {
            Encoding::Protobuf => 1,
            Encoding::Json => 2,
        });
        bytes.put_u8(match self.compression {
            Compression::None => 0,
            Compression::Gzip => 1,
            Compression::Zstd => 2,
        });
        bytes.put_slice(&self.body);
        bytes.freeze()
    }

    /// Reads what [`Request::to_bytes`] wrote; `None` if it is none of that.
    pub fn from_bytes(mut bytes: Bytes) -> Option<Self> {
        let [signal, encoding, compression] = *bytes.get(..HEAD)? else { return None };
        let signal = match signal {
            1 => Signal::Traces,
            2 => Signal::Logs,
            3 => Signal::Metrics,
            4 => Signal::Reports,
            _ => return None,
        };
        let encoding = match encoding {
            1 => Encoding::Protobuf,
            2 => Encoding::Json,
            _ => return None,
        };
        let compression = match compression {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Zstd,
            _ => return None,
        };
        Some(Self { signal, encoding, compression, body: bytes.split_off(HEAD) })
    }
}

/// Bytes in front of the body.
const HEAD: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_and_these_are_its_bytes_for_ever() {
        let body = Bytes::from_static(b"body");
        let (signal, encoding, compression) = (Signal::Logs, Encoding::Json, Compression::Zstd);
        let request = Request { signal, encoding, compression, body };
        assert_eq!(&request.to_bytes()[..], b"\x02\x02\x02body");
        for signal in [Signal::Traces, Signal::Logs, Signal::Metrics, Signal::Reports] {
            for encoding in [Encoding::Protobuf, Encoding::Json] {
                for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
                    let request = Request { signal, encoding, compression, ..request.clone() };
                    assert_eq!(Request::from_bytes(request.to_bytes()), Some(request));
                }
            }
        }
        for bytes in [&b"\x01\x01"[..], b"\x09\x01\x01x", b"\x01\x09\x01x", b"\x01\x01\x09x"] {
            assert_eq!(Request::from_bytes(Bytes::from_static(bytes)), None);
        }
    }
}
