//! What all transports do with a request: read, admit, decode, hand on and count it.

use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::admission::{Admission, Permit, RETRY_AFTER};
use super::arrival::{Arrival, Arrivals, Pace, Source};
use super::decode::Decoder;
use super::entrance::{Entrance, entered};
use super::inflate::inflate_small;
use super::status::Failure;
use super::{
    Batch, Compression, Encoding, Overloaded, RECORD_TOO_LARGE, Refusal, Request, RequestCounts,
    SESSION_FULL, Signal, Sink, TRACE_FULL,
};
use crate::blocking::{NotDone, blocking};
#[cfg(feature = "kafka")]
use crate::engine::span::Timestamp;
use crate::engine::time::Moment;
use crate::fair::Grant;

/// Counts incoming requests.
pub trait Observe: Send + Sync {
    /// Counts an applied request; `transport` is `grpc`, `http` or `kafka`, `encoding` `protobuf` or `json`.
    fn received(&self, transport: &'static str, encoding: &'static str, tally: &RequestCounts);

    /// Counts a request that was refused whole, for one of a few reasons.
    fn refused(&self, reason: &'static str);

    /// Counts a request that had to wait for a turn or a place; `outcome` is `entered` or `refused`.
    fn waited(&self, outcome: &'static str);
}

/// Reads the time, and the wall clock.
pub type Now = Arc<dyn Fn() -> Moment + Send + Sync>;

/// Takes requests of all transports; clones share the budget.
#[derive(Clone)]
pub struct Receiver<S: Sink> {
    shared: Arc<ReceiverState<S>>,
}

struct ReceiverState<S> {
    decoder: Decoder,
    sink: S,
    observe: Arc<dyn Observe>,
    now: Now,
    read_timeout: Duration,
    pace: Pace,
    admission: Admission,
    entrance: Entrance,
    arrivals: Arc<Arrivals>,
    // Bounds the requests that are inflated but not admitted yet: one per core.
    decoding: Arc<Semaphore>,
    // Buffers of decoded bodies, kept for later bodies, as the kernel has to clear new memory.
    // Invariant: at most one per core, each of at most `MAX_KEPT_BYTES`.
    rooms: Mutex<Vec<BytesMut>>,
    max_rooms: usize,
}

/// What is known about a request before its body.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) transport: &'static str,
    pub(super) signal: Signal,
    pub(super) encoding: Encoding,
    pub(super) compression: Compression,
    /// The tenant, by the identity of the sender.
    pub(super) tenant: Option<Arc<str>>,
}

/// A body that was read whole, with its share of the budget.
pub(super) struct Received {
    pub(super) body: Bytes,
    pub(super) permit: Permit,
    pub(super) turn: Grant,
}

/// The part of a body that has arrived so far, with its share of the budget.
struct ReadBody {
    // A body that arrives in one piece is taken unchanged.
    first: Bytes,
    bytes: BytesMut,
    permit: Permit,
    // The length of the body according to its sender; 0: unknown.
    announced: usize,
}

/// A decoded message, with its share of the budget.
pub(super) struct DecodedRequest {
    transport: &'static str,
    batch: Batch,
    permit: Permit,
    // Returned when the batch is applied.
    _turn: Option<Grant>,
    encoding: Encoding,
}

/// Bytes of a body that are read before it needs a place; fewer than HTTP/2 buffers unread.
const SMALL_BODY_BYTES: usize = 64 << 10;

/// The most that is reserved for a larger body when its first bytes arrive, whatever length its sender announced.
const FIRST_BYTES: usize = 2 << 20;

/// The part of the budget for larger bodies that are arriving is the budget divided by this.
const ARRIVING_SHARE: usize = 2;

/// The least and the greatest size of buffers that are kept for later bodies.
const MIN_KEPT_BYTES: usize = 32 << 10;
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The largest bodies, inflated, that are decoded on the thread that read them.
const SMALL_BYTES: usize = 256 << 10;

/// The largest compressed bodies that may be small: these are inflated on the thread that read them, up to that size.
const SMALL_COMPRESSED_BYTES: usize = 4 << 10;

/// The most that is read and discarded of a refused body, so that its sender gets to read the answer.
const MAX_DISCARDED_BYTES: usize = 256 << 20;

impl<S: Sink> Receiver<S> {
    /// A receiver that decodes by `decoder`, within its limits, and hands batches to `sink`. Some part of a body has to arrive
    /// within `read_timeout`, and a larger body that was read waits no longer than that for its turn.
    pub fn new(
        decoder: Decoder,
        sink: S,
        observe: Arc<dyn Observe>,
        now: Now,
        read_timeout: Duration,
    ) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let limits = decoder.limits();
        let admission = Admission::new(limits.max_decoded_bytes);
        let entrance = Entrance::new(limits.max_decoded_bytes, limits.max_wait);
        let arriving_bytes = limits.max_decoded_bytes / ARRIVING_SHARE;
        let arrivals = Arrivals::new(arriving_bytes.max(limits.max_request_bytes));
        let pace = Pace::new(limits.body_progress, read_timeout);
        let decoding = Arc::new(Semaphore::new(cores));
        let shared = ReceiverState {
            decoder,
            sink,
            observe,
            now,
            read_timeout,
            pace,
            admission,
            entrance,
            arrivals,
            decoding,
            rooms: Mutex::default(),
            max_rooms: cores,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The budget that all requests in flight share.
    pub fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// The number of requests that wait for their turn or for room.
    pub fn waiting(&self) -> usize {
        self.shared.entrance.waiting()
    }

    /// Counts a failure on its way to the sender.
    pub(super) fn note(&self, failure: &Failure) {
        self.shared.observe.refused(failure.reason());
    }

    /// The largest size of a message in bytes, inflated or not.
    pub(super) fn max_request_bytes(&self) -> usize {
        self.shared.decoder.limits().max_request_bytes
    }

    /// The refusal of a larger message.
    pub(super) fn too_large(&self) -> Failure {
        let max = self.max_request_bytes();
        Refusal::TooLarge { what: "the request", max, key: "ingest.max_request_bytes" }.into()
    }

    /// Reads a body, which is a message and at most `framing` bytes around it, at its pace and within the budget. The rest of a
    /// larger body is read when there is a place for it. Returns when the body has its turn.
    pub(super) async fn read(
        &self,
        body: &mut Body,
        framing: usize,
        compression: Compression,
        source: &Source,
    ) -> Result<Received, Failure> {
        let ReceiverState { read_timeout, entrance, .. } = &*self.shared;
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > self.max_request_bytes().saturating_add(framing) {
            return Err(self.too_large());
        }
        let permit = self.shared.admission.permit();
        let (first, bytes) = Default::default();
        let mut gathered = ReadBody { first, bytes, permit, announced };
        let mut arrival = Arrival::new(body, source, self.shared.pace);
        // Kept until the body has its turn, so that no more bodies are read than there are turns for.
        let mut place = None;
        let mut max_wait = entrance.max_wait();
        let mut is_large = false;
        while let Some(data) = arrival.next(&mut place).await? {
            if !is_large && gathered.len() + data.len() > SMALL_BODY_BYTES.min(entrance.all_bytes())
            {
                is_large = true;
                gathered.expect(&data, framing);
                place = self.place(&gathered, source).await?;
                arrival.goes_on(gathered.len() + data.len(), &self.shared.arrivals)?;
                // If it were refused, all of it would have to be sent again.
                max_wait = *read_timeout;
            }
            self.gather(&mut gathered, data, framing)?;
        }
        drop(arrival);
        let ReadBody { first, bytes, permit, .. } = gathered;
        let body = if bytes.is_empty() { first } else { bytes.freeze() };
        let turn = entrance.turn(&source.requester, compression, body.len(), max_wait).await;
        let turn = self.waited(entered(turn))?;
        Ok(Received { body, permit, turn })
    }

    /// Discards the rest of a body while its sender is answered, within limits: a connection that is closed while its sender still
    /// writes can lose the answer.
    pub(super) fn discard(&self, mut body: Body, source: Source) {
        let ReceiverState { pace, read_timeout, .. } = *self.shared;
        let rest = async move {
            let mut left = MAX_DISCARDED_BYTES;
            let mut arrival = Arrival::new(&mut body, &source, pace);
            while let Ok(Some(data)) = arrival.next(&mut None).await {
                let Some(less) = left.checked_sub(data.len()) else { break };
                left = less;
            }
        };
        // Whether the body is read to its end does not matter. A connection has one such body at a time.
        tokio::spawn(timeout(read_timeout, rest));
    }

    /// Applies a request and counts its content. It runs to its end even if the sender disconnects meanwhile, so that no batch is
    /// left half applied.
    pub(super) async fn apply(
        &self,
        envelope: Envelope,
        received: Received,
    ) -> Result<RequestCounts, Failure> {
        let run = RunToEnd(Some(Box::pin(self.clone().run(envelope, received))));
        run.await.unwrap_or_else(|_| Err(panicked()))
    }

    /// Decodes an uncompressed message in place, on the caller's thread, if there is room for it. Its times are compared with
    /// `sent`, the time at which its broker had it.
    #[cfg(feature = "kafka")]
    pub(super) fn take(
        &self,
        envelope: Envelope,
        body: &[u8],
        sent: Option<Timestamp>,
    ) -> Result<DecodedRequest, Failure> {
        let Envelope { transport, signal, encoding, compression, tenant } = envelope;
        let ReceiverState { decoder, sink, now, admission, .. } = &*self.shared;
        let mut permit = admission.permit();
        let prepared = decoder.inspect(signal, encoding, body)?;
        permit.grow(prepared.estimated_bytes())?;
        let Moment { now, wall } = now();
        let sent = sent.map_or(wall, |sent| sent.min(wall));
        let mut batch = decoder.decode(prepared, Some(sent), tenant.as_ref())?;
        batch.request = sink.keeps_log().then(|| {
            let body = Bytes::copy_from_slice(body);
            Request { signal, encoding, compression, sent: Some(sent), tenant, body }
        });
        // A backlog is read much faster than it was written: timers follow the time at which a message is read.
        batch.arrival = now;
        Ok(DecodedRequest { transport, batch, permit, _turn: None, encoding })
    }

    /// Applies a decoded message and counts its content; returns the counts, with what the stages left out.
    pub(super) async fn hand_on(&self, taken: DecodedRequest) -> Result<RequestCounts, Overloaded> {
        let DecodedRequest { transport, batch, permit, _turn, encoding } = taken;
        let mut tally = batch.tally.clone();
        let left_out = self.shared.sink.submit(batch).await?;
        drop(permit);
        tally.reject(RECORD_TOO_LARGE, left_out.record_too_large);
        self.shared.observe.received(transport, encoding.name(), &tally);
        // The stages have counted what they left out.
        tally.reject(TRACE_FULL, left_out.trace_full);
        tally.reject(SESSION_FULL, left_out.session_full);
        Ok(tally)
    }

    /// Waits for a place for the rest of a larger body.
    async fn place(&self, gathered: &ReadBody, source: &Source) -> Result<Option<Grant>, Failure> {
        // A body of unknown length may become as long as is allowed.
        let most = match gathered.announced {
            0 => self.max_request_bytes(),
            announced => announced,
        };
        let left = most.saturating_sub(gathered.len());
        self.waited(self.shared.entrance.place(&source.requester, left).await).map(Some)
    }

    /// Counts a request that waited for a turn or a place.
    fn waited(&self, entered: Option<(Grant, bool)>) -> Result<Grant, Failure> {
        let Some((turn, waited)) = entered else {
            self.shared.observe.waited("refused");
            return Err(Overloaded::after(RETRY_AFTER).into());
        };
        if waited {
            self.shared.observe.waited("entered");
        }
        Ok(turn)
    }

    /// Adds arrived bytes to the body, within the limit and the budget.
    fn gather(&self, gathered: &mut ReadBody, data: Bytes, framing: usize) -> Result<(), Failure> {
        let max = self.max_request_bytes().saturating_add(framing);
        let came = gathered.len();
        gathered.expect(&data, framing);
        if data.len() > max - came || gathered.announced > max {
            return Err(self.too_large());
        }
        gathered.permit.grow(data.len())?;
        if came == 0 {
            gathered.first = data;
            return Ok(());
        }
        if gathered.bytes.is_empty() {
            gathered.bytes = self.room();
            gathered.bytes.extend_from_slice(&mem::take(&mut gathered.first));
        }
        let bytes = &mut gathered.bytes;
        // Once enough bytes have arrived, the announced length is believed.
        if came > SMALL_BODY_BYTES && bytes.capacity() < gathered.announced.min(FIRST_BYTES) {
            bytes.reserve(gathered.announced.min(FIRST_BYTES) - bytes.len());
        }
        bytes.extend_from_slice(&data);
        Ok(())
    }

    /// A buffer for a body: that of an earlier body if one is kept.
    fn room(&self) -> BytesMut {
        let mut rooms = self.shared.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.pop().unwrap_or_default()
    }

    /// Keeps the buffer of a body that is no longer used.
    fn keep_room(&self, body: Bytes) {
        let Ok(mut room) = body.try_into_mut() else { return };
        room.clear();
        if (MIN_KEPT_BYTES..=MAX_KEPT_BYTES).contains(&room.capacity()) {
            let mut rooms = self.shared.rooms.lock().unwrap_or_else(PoisonError::into_inner);
            if rooms.len() < self.shared.max_rooms {
                rooms.push(room);
            }
        }
    }

    async fn run(self, envelope: Envelope, received: Received) -> Result<RequestCounts, Failure> {
        let Envelope { transport, encoding, .. } = envelope;
        let Received { body, permit, turn } = received;
        let (batch, permit) = self.decode_by_size(envelope, body, permit).await?;
        Ok(self
            .hand_on(DecodedRequest { transport, batch, permit, _turn: Some(turn), encoding })
            .await?)
    }

    /// Decodes a small body on the thread that read it, a larger one on a thread for that.
    async fn decode_by_size(
        &self,
        envelope: Envelope,
        body: Bytes,
        permit: Permit,
    ) -> Result<(Batch, Permit), Failure> {
        if let Some(inflated) = self.small(envelope.compression, &body)? {
            return self.decode(envelope, body, Some(inflated), permit);
        }
        let thread = Arc::clone(&self.shared.decoding).acquire_owned().await;
        let receiver = self.clone();
        let decoded = blocking(move || {
            let _thread = thread;
            receiver.decode(envelope, body, None, permit)
        });
        decoded.await.unwrap_or_else(failed)
    }

    /// The inflated body if it is too small for its decoding to be worth another thread. A body of a few bytes can inflate to a
    /// thousand times as many.
    fn small(&self, compression: Compression, body: &Bytes) -> Result<Option<Bytes>, Refusal> {
        let max = match compression {
            Compression::None => SMALL_BYTES,
            Compression::Gzip | Compression::Zstd => SMALL_COMPRESSED_BYTES,
        };
        if body.len() > max {
            return Ok(None);
        }
        inflate_small(compression, body.clone(), SMALL_BYTES.min(self.max_request_bytes()))
    }

    /// Decodes a body, of which `inflated` is the content if it is known.
    fn decode(
        &self,
        envelope: Envelope,
        body: Bytes,
        inflated: Option<Bytes>,
        mut permit: Permit,
    ) -> Result<(Batch, Permit), Failure> {
        let ReceiverState { decoder, sink, now, entrance, .. } = &*self.shared;
        let Envelope { signal, encoding, compression, tenant, .. } = envelope;
        let Moment { now, wall } = now();
        let request = sink.keeps_log().then(|| {
            let (tenant, body) = (tenant.clone(), body.clone());
            // A replay compares the times of spans with the same wall time.
            let sent = (wall != now).then_some(wall);
            Request { signal, encoding, compression, sent, tenant, body }
        });
        let prepared = match inflated {
            Some(inflated) => decoder.inspect(signal, encoding, inflated)?,
            None => decoder.prepare(signal, encoding, compression, body.clone())?,
        };
        let estimated = prepared.estimated_bytes();
        entrance.came_to(compression, body.len(), body.len().saturating_add(estimated));
        permit.grow(estimated)?;
        let mut batch = decoder.decode(prepared, Some(wall), tenant.as_ref())?;
        batch.arrival = now;
        batch.request = request;
        self.keep_room(body);
        Ok((batch, permit))
    }
}

impl ReadBody {
    /// Takes the length of the body from its first bytes, if they state it.
    fn expect(&mut self, data: &[u8], framing: usize) {
        if self.len() == 0 {
            self.announced = self.announced.max(framed_bytes(data, framing));
        }
    }

    fn len(&self) -> usize {
        self.first.len() + self.bytes.len()
    }
}

/// A future that runs in its caller, and continues in its own task when the caller drops it before its end.
struct RunToEnd<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Future for RunToEnd<F> {
    /// Fails where the future panics.
    type Output = thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(run) = &mut self.0 else { return Poll::Pending };
        let polled = catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(context)));
        let ended = match polled {
            Ok(polled) => Ok(ready!(polled)),
            Err(panic) => Err(panic),
        };
        self.0 = None;
        Poll::Ready(ended)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for RunToEnd<F> {
    fn drop(&mut self) {
        if let (Some(run), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(run);
        }
    }
}

impl<S: Sink> fmt::Debug for Receiver<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("limits", self.shared.decoder.limits())
            .field("admission", &self.shared.admission)
            .finish_non_exhaustive()
    }
}

/// The length of a body according to the length of its message in the first bytes; without one, the length of the framing.
fn framed_bytes(first: &[u8], framing: usize) -> usize {
    let length = first.get(..framing).and_then(|frame| frame.last_chunk());
    let length = length.map_or(0, |length| u32::from_be_bytes(*length));
    usize::try_from(length).unwrap_or(usize::MAX).saturating_add(framing)
}

/// The failure of a request that was not decoded: a panic is a bug of the daemon, a thread may be available soon.
fn failed<T>(why: NotDone) -> Result<T, Failure> {
    match why {
        NotDone::Panicked => Err(panicked()),
        NotDone::NoThread => Err(Overloaded::after(Duration::from_secs(1)).into()),
    }
}

/// The failure of a request that made the daemon panic.
fn panicked() -> Failure {
    tracing::error!("a request made the daemon panic; it was refused");
    Failure::Internal
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;

    use prost::encoding::encode_varint;
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::options::ConventionOptions;
    use crate::ingest::LeftOut;
    use crate::ingest::decode::IngestLimits;

    #[derive(Clone)]
    struct Ignored;

    impl Sink for Ignored {
        async fn submit(&self, _: Batch) -> Result<LeftOut, Overloaded> {
            Ok(LeftOut::default())
        }
    }

    impl Observe for Ignored {
        fn received(&self, _: &'static str, _: &'static str, _: &RequestCounts) {}
        fn refused(&self, _: &'static str) {}
        fn waited(&self, _: &'static str) {}
    }

    fn compressed(compression: Compression, content: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        match compression {
            Compression::None => content.to_vec(),
            Compression::Gzip => gzip.write_all(content).and_then(|()| gzip.finish()).unwrap(),
            Compression::Zstd => zstd::encode_all(content, 3).unwrap(),
        }
    }

    #[tokio::test]
    async fn a_body_is_decoded_on_the_thread_that_read_it_if_its_content_is_small() {
        let decoded_on = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&decoded_on);
        let now = move || {
            *noted.lock().unwrap() = Some(thread::current().id());
            Moment::default()
        };
        let decoder = Decoder::new(IngestLimits::default(), ConventionOptions::default());
        let patience = Duration::from_secs(20);
        let receiver = Receiver::new(decoder, Ignored, Arc::new(Ignored), Arc::new(now), patience);
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            for (bytes, is_small) in [(10_000, true), (SMALL_BYTES, false), (2_000_000, false)] {
                // A field that nobody knows.
                let mut content = vec![0xfa, 0x07];
                encode_varint(bytes as u64, &mut content);
                content.resize(content.len() + bytes, b'x');
                let body = compressed(compression, &content);
                assert!(compression == Compression::None || body.len() < SMALL_COMPRESSED_BYTES);
                let envelope = Envelope {
                    transport: "http",
                    signal: Signal::Traces,
                    encoding: Encoding::Protobuf,
                    compression,
                    tenant: None,
                };
                let permit = receiver.admission().permit();
                let decoded = receiver.decode_by_size(envelope, body.into(), permit).await;
                assert!(decoded.is_ok());
                let thread = decoded_on.lock().unwrap().take().unwrap();
                let is_own = thread == thread::current().id();
                assert_eq!(is_own, is_small, "{compression:?} {bytes}");
            }
        }
    }

    #[tokio::test]
    async fn what_was_begun_runs_to_its_end_without_whoever_waited_for_it() {
        let ((go, goes), (end, ended)) = (oneshot::channel::<()>(), oneshot::channel());
        let mut run = RunToEnd(Some(Box::pin(async move {
            goes.await.unwrap();
            end.send("ended").unwrap();
        })));
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut run).poll(context))).await;
        assert!(polled.is_pending());
        drop(run);
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok("ended"));
    }

    #[tokio::test]
    async fn a_panic_is_the_end_of_one_request() {
        let run = RunToEnd(Some(Box::pin(async { panic!("a fault") })));
        let ended: thread::Result<()> = run.await;
        assert!(ended.is_err());
    }
}
