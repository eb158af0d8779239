//! What all network transports do with a request: read it, admit it, decode it, hand it on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::admission::{Admission, Admitted, NotAdmitted};
use super::decode::Decoder;
use super::{Batch, Compression, Encoding, Overloaded, Refusal, Signal, Sink, Tally};
use crate::engine::span::Timestamp;

/// Who is told what came in.
pub trait Observe: Send + Sync {
    /// A request was decoded; `transport` is `grpc` or `http`, `encoding` `protobuf` or `json`.
    fn received(&self, transport: &'static str, encoding: &'static str, tally: &Tally);

    /// A request was refused whole.
    fn refused(&self, reason: &'static str);
}

/// Reads the time.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Receives requests for a sink. Cheap to clone.
#[derive(Clone)]
pub struct Receiver<S> {
    decoder: Decoder,
    sink: S,
    admission: Admission,
    observe: Arc<dyn Observe>,
    now: Now,
    read_timeout: Duration,
}

/// What is known of a request before its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) transport: &'static str,
    pub(super) signal: Signal,
    pub(super) encoding: Encoding,
}

/// Why a request was not applied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Problem {
    /// Sending it again changes nothing.
    Refused(Refusal),
    /// There is no room at the moment.
    Overloaded(Overloaded),
    /// The body did not come in time.
    Slow,
    /// The connection broke.
    Broken,
    /// A fault of ours.
    Internal,
}

impl<S: Sink> Receiver<S> {
    /// A receiver; a body has to come within `read_timeout`.
    pub fn new(
        decoder: Decoder,
        sink: S,
        observe: Arc<dyn Observe>,
        now: Now,
        read_timeout: Duration,
    ) -> Self {
        let admission = Admission::new(decoder.limits().max_decoded_bytes);
        Self { decoder, sink, admission, observe, now, read_timeout }
    }

    /// Reads a body within the limits; its bytes count against the budget as they come.
    pub(super) async fn read(
        &self,
        body: Body,
        overhead: usize,
    ) -> Result<(Bytes, Admitted), Problem> {
        let max = self.decoder.limits().max_request_bytes.saturating_add(overhead);
        let reading = async {
            let mut body = body;
            let mut share = self.admission.open();
            let mut bytes = BytesMut::new();
            while let Some(frame) = body.frame().await {
                let Ok(chunk) = frame.map_err(|_| Problem::Broken)?.into_data() else { continue };
                if bytes.len() + chunk.len() > max {
                    let what = "the request";
                    return Err(Problem::Refused(Refusal::TooLarge {
                        what,
                        max,
                        key: "ingest.max_request_bytes",
                    }));
                }
                share.grow(chunk.len())?;
                bytes.extend_from_slice(&chunk);
            }
            Ok((bytes.freeze(), share))
        };
        tokio::time::timeout(self.read_timeout, reading).await.unwrap_or(Err(Problem::Slow))
    }

    /// Decodes and applies a request; its share of the budget is given back when that is done.
    pub(super) async fn apply(
        &self,
        envelope: Envelope,
        compression: Compression,
        body: Bytes,
        mut share: Admitted,
    ) -> Result<Tally, Problem> {
        let batch = self.decode(envelope, compression, body, &mut share)?;
        let tally = batch.tally.clone();
        self.sink.submit(batch).await?;
        let encoding = match envelope.encoding {
            Encoding::Protobuf => "protobuf",
            Encoding::Json => "json",
        };
        self.observe.received(envelope.transport, encoding, &tally);
        Ok(tally)
    }

    /// Counts a problem on its way to the sender.
    pub(super) fn note(&self, problem: Problem) -> Problem {
        self.observe.refused(problem.reason());
        problem
    }

    fn decode(
        &self,
        envelope: Envelope,
        compression: Compression,
        body: Bytes,
        share: &mut Admitted,
    ) -> Result<Batch, Problem> {
        // A fault in a decoder costs this request and nothing else.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let prepared =
                self.decoder.prepare(envelope.signal, envelope.encoding, compression, body)?;
            share.grow(prepared.estimated_bytes())?;
            Ok(self.decoder.decode(prepared, Some((self.now)()), None)?)
        }));
        outcome.unwrap_or(Err(Problem::Internal))
    }
}

impl Problem {
    /// The reason that is counted.
    fn reason(&self) -> &'static str {
        match self {
            Self::Refused(Refusal::TooLarge { .. }) => "too_large",
            Self::Refused(Refusal::Malformed { .. }) => "malformed",
            Self::Overloaded(_) => "overloaded",
            Self::Slow => "slow",
            Self::Broken => "broken",
            Self::Internal => "internal",
        }
    }

    /// What the sender is told.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.to_string(),
            Self::Overloaded(_) => "no room at the moment; come back".to_owned(),
            Self::Slow => "the body did not come in time".to_owned(),
            Self::Broken => "the body broke off".to_owned(),
            Self::Internal => "a fault in the server; the request was not applied".to_owned(),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Overloaded> for Problem {
    fn from(overloaded: Overloaded) -> Self {
        Self::Overloaded(overloaded)
    }
}

impl From<NotAdmitted> for Problem {
    fn from(not_admitted: NotAdmitted) -> Self {
        match not_admitted {
            NotAdmitted::Never(refusal) => Self::Refused(refusal),
            NotAdmitted::Later(overloaded) => Self::Overloaded(overloaded),
        }
    }
}

/// What a partial success says of the rejected; `None` if there are none.
pub(super) fn rejected(tally: &Tally) -> Option<(i64, String)> {
    let count: u64 = tally.rejected.values().sum();
    let reasons = tally.rejected.iter().map(|(why, count)| format!("{count} {why}"));
    let message = format!("rejected: {}", reasons.collect::<Vec<_>>().join(", "));
    (count > 0).then(|| (i64::try_from(count).unwrap_or(i64::MAX), message))
}
