//! A request as it was received: what the write-ahead log holds.
//!
//! ```text
//! byte  0   signal: 1 traces, 2 logs, 3 metrics, 4 reports of our own API
//!       1   encoding: 1 protobuf, 2 JSON
//!       2   compression: 0 none, 1 gzip, 2 zstd; plus 128 if a time follows
//!       3.. the time that its times are held against, 8 bytes, big-endian; without one: its arrival
//!       ..  body, as it came
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Compression, Encoding, Signal};
use crate::engine::span::Timestamp;

/// A request that was within all limits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// What it carries.
    pub signal: Signal,
    /// How it is written.
    pub encoding: Encoding,
    /// How it is compressed.
    pub compression: Compression,
    /// When a broker had it, if that was before its arrival: its times are held against this.
    pub sent: Option<Timestamp>,
    /// Its body.
    pub body: Bytes,
}

impl Request {
    /// Its bytes in the log.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD + TIME + self.body.len());
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
        let compression = match self.compression {
            Compression::None => 0,
            Compression::Gzip => 1,
            Compression::Zstd => 2,
        };
        bytes.put_u8(compression | if self.sent.is_some() { TIMED } else { 0 });
        if let Some(sent) = self.sent {
            bytes.put_u64(sent.0);
        }
        bytes.put_slice(&self.body);
        bytes.freeze()
    }

    /// Reads what [`Request::to_bytes`] wrote; `None` if it is none of that.
    pub fn from_bytes(mut bytes: Bytes) -> Option<Self> {
        let [signal, encoding, compression] = *bytes.get(..HEAD)? else { return None };
        let timed = compression & TIMED != 0;
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
        let compression = match compression & !TIMED {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Zstd,
            _ => return None,
        };
        let mut body = bytes.split_off(HEAD);
        let sent = if timed { Some(Timestamp(body.try_get_u64().ok()?)) } else { None };
        Some(Self { signal, encoding, compression, sent, body })
    }
}

/// Bytes in front of the body, and those of a time.
const HEAD: usize = 3;
const TIME: usize = 8;

/// The bit that says that a time follows.
const TIMED: u8 = 1 << 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_and_these_are_its_bytes_for_ever() {
        let body = Bytes::from_static(b"body");
        let (signal, encoding, compression) = (Signal::Logs, Encoding::Json, Compression::Zstd);
        let request = Request { signal, encoding, compression, sent: None, body };
        assert_eq!(&request.to_bytes()[..], b"\x02\x02\x02body");
        let timed = Request { sent: Some(Timestamp(0x0102)), ..request.clone() };
        assert_eq!(&timed.to_bytes()[..], b"\x02\x02\x82\0\0\0\0\0\0\x01\x02body");
        assert_eq!(Request::from_bytes(timed.to_bytes()), Some(timed));
        for signal in [Signal::Traces, Signal::Logs, Signal::Metrics, Signal::Reports] {
            for encoding in [Encoding::Protobuf, Encoding::Json] {
                for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
                    let request = Request { signal, encoding, compression, ..request.clone() };
                    assert_eq!(Request::from_bytes(request.to_bytes()), Some(request));
                }
            }
        }
        for bytes in [
            &b"\x01\x01"[..],
            b"\x09\x01\x01x",
            b"\x01\x09\x01x",
            b"\x01\x01\x09x",
            b"\x01\x01\x80x",
        ] {
            assert_eq!(Request::from_bytes(Bytes::from_static(bytes)), None);
        }
    }
}
