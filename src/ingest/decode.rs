//! Decodes bytes to a [`Batch`]: one path for all transports.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::builder::Builder;
use super::prescan::{self, Bounds, Scan};
use super::repair::Repair;
use super::{Batch, Compression, Encoding, Refusal, Rooms, Signal, inflate, json, protobuf};
use crate::engine::convention::{Conventions, Names};
use crate::engine::options::{ConventionOptions, DAY, MINUTE, SECOND, human};
use crate::engine::span::Timestamp;

crate::engine::options! {
    /// Limits that hold before anything is allocated.
    pub struct IngestLimits in "ingest" {
        /// Largest request, in bytes after decompression; a larger one is refused for good.
        pub max_request_bytes: usize = 16 << 20, within 1024..=1 << 30;
        /// Spans, log records, events, links and attributes of one request, together; a request with more is refused for good.
        pub max_request_items: usize = 1 << 20, within 1..=1 << 30;
        /// Nesting of attribute values; deeper values are left out.
        // Nested values are walked recursively, on the stack.
        /// How deep attribute values may nest; deeper parts are left out.
        pub max_nesting: usize = 32, within 1..=128;
        /// Estimated bytes of decoded requests in flight, over all transports; beyond that, senders are told to retry later.
        pub max_decoded_bytes: usize = 512 << 20;
        /// A time further in the future than this is replaced by the time of arrival.
        #[serde(with = "human")]
        pub max_clock_skew: Duration = 5 * MINUTE, within Duration::ZERO..=DAY;
        /// Slowest body, in bytes per second over five seconds. A slower body is aborted; several of them cost their
        /// connection. 0: any progress will do.
        pub body_progress: usize = 4 << 10, within 0..=1 << 20;
        /// How long a request waits for room before its sender is told to retry later.
        #[serde(with = "human")]
        pub max_wait: Duration = SECOND, within Duration::ZERO..=MINUTE;
        /// A time further in the past than this is replaced by the time of arrival.
        #[serde(with = "human")]
        pub max_span_age: Duration = DAY, within SECOND..=366 * DAY;
    }
}

/// Decodes requests.
#[derive(Clone, Debug)]
pub struct Decoder {
    limits: IngestLimits,
    conventions: Arc<Conventions>,
    plans: bool,
    // Names that recurred in earlier requests: as many sets as requests were ever decoded at the same time.
    names: Arc<Mutex<Vec<Names>>>,
    rooms: Rooms,
}

/// A request that is within the limits but not decoded yet; its body is owned or borrowed.
#[derive(Debug)]
pub struct Prepared<B = Bytes> {
    signal: Signal,
    encoding: Encoding,
    body: B,
    scan: Scan,
}

impl Decoder {
    /// A decoder with these limits and conventions.
    pub fn new(limits: IngestLimits, options: ConventionOptions) -> Self {
        let conventions = Arc::new(Conventions::new(options));
        let (names, rooms) = Default::default();
        Self { limits, conventions, plans: true, names, rooms }
    }

    /// The same decoder without plans: it reads every span in full. Tests compare plans with it.
    #[must_use]
    pub fn without_plans(self) -> Self {
        Self { plans: false, names: Arc::default(), ..self }
    }

    /// The limits in force.
    pub fn limits(&self) -> &IngestLimits {
        &self.limits
    }

    /// Inflates a request and scans it, within the limits and before anything is decoded.
    ///
    /// # Errors
    ///
    /// Refuses a request that is over a limit, and one that is malformed.
    pub fn prepare(
        &self,
        signal: Signal,
        encoding: Encoding,
        compression: Compression,
        body: Bytes,
    ) -> Result<Prepared, Refusal> {
        self.inspect(
            signal,
            encoding,
            inflate::inflate(compression, body, self.limits.max_request_bytes)?,
        )
    }

    /// Scans an uncompressed request in place.
    ///
    /// # Errors
    ///
    /// As [`Decoder::prepare`].
    pub fn inspect<B: AsRef<[u8]>>(
        &self,
        signal: Signal,
        encoding: Encoding,
        body: B,
    ) -> Result<Prepared<B>, Refusal> {
        let max = self.limits.max_request_bytes;
        if body.as_ref().len() > max {
            let (what, key) = ("the request", "ingest.max_request_bytes");
            return Err(Refusal::TooLarge { what, max, key });
        }
        let scan = match encoding {
            Encoding::Protobuf => prescan::records(signal, body.as_ref(), self.bounds())?,
            Encoding::Json => json::scan(body.as_ref(), self.bounds())?,
        };
        Ok(Prepared { signal, encoding, body, scan })
    }

    /// Decodes a prepared request. `arrival` is `None` for files, which have no arrival times: then only times of
    /// zero are repaired. One bad span is mended or rejected alone, and counted.
    ///
    /// # Errors
    ///
    /// Refuses a request that is malformed as a whole.
    pub fn decode<B: AsRef<[u8]>>(
        &self,
        prepared: Prepared<B>,
        arrival: Option<Timestamp>,
        tenant: Option<&Arc<str>>,
    ) -> Result<Batch, Refusal> {
        let Prepared { signal, encoding, body, scan } = prepared;
        let IngestLimits { max_clock_skew, max_span_age, .. } = self.limits;
        let repair = Repair::new(arrival, max_clock_skew, max_span_age);
        let mut names = self.take_names();
        let mut builder = Builder::new(&self.conventions, &mut names, repair, tenant)
            .with_rooms(self.rooms.clone());
        let (body, bounds) = (body.as_ref(), self.bounds());
        let decoded = match encoding {
            Encoding::Protobuf => protobuf::decode(signal, body, &scan, bounds, &mut builder),
            Encoding::Json => json::decode(signal, body, &scan, bounds, &mut builder),
        };
        let batch = builder.finish();
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push(names);
        decoded.map(|()| batch)
    }

    fn take_names(&self) -> Names {
        let known = self.names.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let new = || if self.plans { Names::default() } else { Names::without_plans() };
        known.unwrap_or_else(new)
    }

    /// Prepares and decodes an uncompressed request.
    ///
    /// # Errors
    ///
    /// As [`Decoder::prepare`] and [`Decoder::decode`].
    pub fn decode_plain(
        &self,
        signal: Signal,
        encoding: Encoding,
        body: &[u8],
    ) -> Result<Batch, Refusal> {
        self.decode(self.inspect(signal, encoding, body)?, None, None)
    }

    fn bounds(&self) -> Bounds {
        Bounds { max_items: self.limits.max_request_items, max_nesting: self.limits.max_nesting }
    }
}

impl<B> Prepared<B> {
    /// The most that decoding allocates, in bytes, which admission counts.
    pub fn estimated_bytes(&self) -> usize {
        self.scan.estimated_bytes
    }
}
