//! A request as it was received: the content of the write-ahead log.
//!
//! ```text
//! byte  0   signal: 1 traces, 2 logs, 3 metrics, 4 reports of our own API
//!       1   encoding: 1 protobuf, 2 JSON
//!       2   compression: 0 none, 1 gzip, 2 zstd; plus 128 if a time follows, plus 64 if a tenant does
//!       3.. the time that the times of spans are held against, 8 bytes, big-endian; without one: the arrival
//!       ..  the length of the tenant's name, 4 bytes, big-endian, and the name; without one: no tenant
//!       ..  body, as it came
//! ```

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Compression, Encoding, Signal};
use crate::engine::span::Timestamp;

/// A request that was within all limits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// The kind of data that it carries.
    pub signal: Signal,
    /// How it is written.
    pub encoding: Encoding,
    /// How it is compressed.
    pub compression: Compression,
    /// The time that the times of spans are compared with, if it is not the arrival: the broker's, or wall time at the arrival.
    pub sent: Option<Timestamp>,
    /// The tenant, by the identity of the sender; the body does not state it.
    pub tenant: Option<Arc<str>>,
    /// Its body.
    pub body: Bytes,
}

impl Request {
    /// The bytes of the request in the log.
    pub fn to_bytes(&self) -> Bytes {
        let name_bytes = self.tenant.as_ref().map_or(0, |tenant| LENGTH + tenant.len());
        let mut bytes = BytesMut::with_capacity(HEAD + TIME + name_bytes + self.body.len());
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
        let timed = if self.sent.is_some() { TIMED } else { 0 };
        let owned = if self.tenant.is_some() { OWNED } else { 0 };
        bytes.put_u8(compression | timed | owned);
        if let Some(sent) = self.sent {
            bytes.put_u64(sent.0);
        }
        if let Some(tenant) = &self.tenant {
            bytes.put_u32(u32::try_from(tenant.len()).unwrap_or(u32::MAX));
            bytes.put_slice(tenant.as_bytes());
        }
        bytes.put_slice(&self.body);
        bytes.freeze()
    }

    /// Reads what [`Request::to_bytes`] wrote; `None` if the bytes are no request.
    pub fn from_bytes(mut bytes: Bytes) -> Option<Self> {
        let [signal, encoding, compression] = *bytes.get(..HEAD)? else { return None };
        let (timed, owned) = (compression & TIMED != 0, compression & OWNED != 0);
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
        let compression = match compression & !(TIMED | OWNED) {
            0 => Compression::None,
            1 => Compression::Gzip,
            2 => Compression::Zstd,
            _ => return None,
        };
        let mut body = bytes.split_off(HEAD);
        let sent = if timed { Some(Timestamp(body.try_get_u64().ok()?)) } else { None };
        let tenant = if owned { Some(tenant(&mut body)?) } else { None };
        Some(Self { signal, encoding, compression, sent, tenant, body })
    }
}

/// Takes the name of a tenant off the front of `bytes`.
fn tenant(bytes: &mut Bytes) -> Option<Arc<str>> {
    let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
    let name = (length <= bytes.len()).then(|| bytes.split_to(length))?;
    str::from_utf8(&name).ok().map(Arc::from)
}

/// The bytes before the time, the tenant and the body; the bytes of a time, and of the length of a tenant's name.
const HEAD: usize = 3;
const TIME: usize = 8;
const LENGTH: usize = 4;

/// The bits that mark a time, and a tenant.
const TIMED: u8 = 1 << 7;
const OWNED: u8 = 1 << 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_and_these_are_its_bytes_for_ever() {
        let body = Bytes::from_static(b"body");
        let (signal, encoding, compression) = (Signal::Logs, Encoding::Json, Compression::Zstd);
        let request = Request { signal, encoding, compression, sent: None, tenant: None, body };
        assert_eq!(&request.to_bytes()[..], b"\x02\x02\x02body");
        let timed = Request { sent: Some(Timestamp(0x0102)), ..request.clone() };
        assert_eq!(&timed.to_bytes()[..], b"\x02\x02\x82\0\0\0\0\0\0\x01\x02body");
        let owned = Request { tenant: Some("shop".into()), ..request.clone() };
        assert_eq!(&owned.to_bytes()[..], b"\x02\x02\x42\0\0\0\x04shopbody");
        let both = Request { tenant: Some("shop".into()), ..timed.clone() };
        assert_eq!(&both.to_bytes()[..], b"\x02\x02\xc2\0\0\0\0\0\0\x01\x02\0\0\0\x04shopbody");
        for request in [timed, owned, both] {
            assert_eq!(Request::from_bytes(request.to_bytes()), Some(request));
        }
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
            b"\x01\x01\x40\0\0\x01",
            b"\x01\x01\x40\0\0\0\x05shop",
            b"\x01\x01\x40\0\0\0\x01\xff",
        ] {
            assert_eq!(Request::from_bytes(Bytes::from_static(bytes)), None);
        }
    }
}
