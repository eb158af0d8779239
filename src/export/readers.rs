//! Answers that are being sent to their readers, and a budget for their unsent bytes.
//!
//! Every answer of more than a few bytes counts from when it is made until it is sent or dropped, whatever holds it: its body, a
//! stream or the buffers of a connection. Half of the budget is for tenants, half for operators, which are identities without a
//! tenant. If an answer would exceed it, another one is cut off: the one that was not read for longest; or, if all are being read,
//! one of the identity that holds most, if that holds more than the new answer's identity would. If there is neither, the answer is
//! refused. So a client that reads nothing keeps no other from reading, and no tenant keeps out an operator. An answer that is not
//! read for `server.read_timeout` is cut off in any case.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::history::ApiOptions;
use super::http::Count;
use super::response_body::{Piece, Progress, ResponseBody, UnreadBytes};
use crate::access::{Identity, Line};
use crate::refused::Refused;

/// The bytes of an answer that are given to its connection at a time. Its reader has to read as many within `server.read_timeout`.
const PIECE_BYTES: usize = 16 << 10;

/// The most bytes of an answer that is not counted: a stream takes more than that itself. Errors are always answered.
const MAX_SMALL_BYTES: usize = 1 << 10;

/// The longest time after which an unread answer makes room for others.
const STEP: Duration = Duration::from_secs(1);

/// The steps in `server.read_timeout`, at least.
const MIN_STEPS: u32 = 4;

/// The steps after which a connection is ended whose buffers still hold an answer that was cut off.
const MAX_STUCK: u32 = 2;

/// The most answers, of operators and of tenants each, that wait for the room of answers that were cut off, and the longest time
/// for that.
const MAX_WAITING: usize = 4;
const MAX_WAIT: Duration = Duration::from_secs(3);

/// All answers that are being sent.
pub(super) struct Readers {
    pub(super) options: ApiOptions,
    /// The time within which a client has to read, or to send, something.
    pub(super) patience: Duration,
    step: Duration,
    // The steps without progress after which an answer is cut off.
    max_still: u32,
    pub(super) cut: Count,
    full: Count,
    moves: Arc<Progress>,
    // Places to wait for room, for operators and for tenants.
    waiting: [Semaphore; 2],
    state: Mutex<State>,
}

/// The sender of a request for an answer.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) who: Arc<Identity>,
    pub(super) line: Line,
    pub(super) is_scrape: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    next: u64,
    // Whether a task watches the readers; it ends when there is none.
    is_watched: bool,
    pub(super) readers: BTreeMap<u64, Reader>,
}

/// One answer and its reader.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) caller: Caller,
    pub(super) held: Arc<UnreadBytes>,
    pub(super) pieces: VecDeque<Bytes>,
    pub(super) is_whole: bool,
    pub(super) waker: Option<Waker>,
    // The last progress that a step has noticed, and the steps since.
    seen: u64,
    still: u32,
    // Whether all of it was handed to the connection, whose buffers hold the rest.
    pub(super) is_over: bool,
    // Whether it was cut off.
    is_cut: bool,
}

/// Why there is no room for an answer.
#[derive(Debug, Eq, PartialEq)]
enum NoRoom {
    /// Answers that were cut off are being freed.
    Freeing,
    /// There will be room once this reader is cut off.
    CutOff(u64),
    /// All readers keep reading.
    Full,
}

impl Readers {
    /// No readers yet; each has to read something within `patience`. `cut` counts answers that are cut off, `full` those that are
    /// refused.
    pub(super) fn new(options: ApiOptions, patience: Duration, cut: Count, full: Count) -> Self {
        let step = STEP.min(patience / MIN_STEPS).max(Duration::from_millis(1));
        let max_still = patience.as_millis().div_ceil(step.as_millis());
        let max_still = u32::try_from(max_still).unwrap_or(u32::MAX);
        let waiting = [(); 2].map(|()| Semaphore::new(MAX_WAITING));
        let (moves, state) = (Arc::default(), Mutex::default());
        Self { options, patience, step, max_still, cut, full, moves, waiting, state }
    }

    /// Counts an answer until it is sent or dropped.
    pub(super) async fn hold(
        self: &Arc<Self>,
        caller: Caller,
        answer: Response,
    ) -> Result<Response, Refused> {
        let (head, mut body) = answer.into_parts();
        let left = body.size_hint().exact();
        // What is available at once; a stream may have nothing yet.
        let first = poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await;
        let first = match first {
            Poll::Ready(None) => return Ok(Response::from_parts(head, Body::empty())),
            Poll::Ready(first) => first,
            Poll::Pending => None,
        };
        let (data, ahead) = match first.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => (data, None),
            Some(Ok(Err(frame))) => (Bytes::new(), Some(Ok(frame))),
            Some(Err(error)) => (Bytes::new(), Some(Err(error))),
            None => (Bytes::new(), None),
        };
        if body.is_end_stream() && ahead.is_none() && data.len() <= MAX_SMALL_BYTES {
            return Ok(Response::from_parts(head, data.into()));
        }
        let number = self.admit(&caller, data.len()).await?;
        self.add(number, data);
        let (readers, body) = (Arc::clone(self), Some(body));
        let reading = ResponseBody { readers, number, ahead, body, left };
        Ok(Response::from_parts(head, Body::new(reading)))
    }

    /// Admits an answer with this number of bytes, as soon as there is room for it.
    async fn admit(self: &Arc<Self>, caller: &Caller, bytes: usize) -> Result<u64, Refused> {
        let refused = || {
            (self.full)("api_unread_bytes");
            let message = format!(
                "this answer has {bytes} bytes, and other answers that wait to be read leave no room for it (`api.max_unread_bytes`); \
                 retry later, or ask for less at a time"
            );
            Refused::new(StatusCode::SERVICE_UNAVAILABLE, "too_much_unread", &message)
        };
        let waiting = &self.waiting[usize::from(caller.is_tenant())];
        let mut place = None;
        let admitted = timeout(MAX_WAIT, async {
            loop {
                // Whatever is freed from here on wakes it.
                let freed = self.moves.freed.notified();
                match self.enter_if_room(caller, bytes) {
                    Ok(number) => return Some(number),
                    Err(NoRoom::CutOff(number)) => self.cut_off(number, "memory"),
                    Err(NoRoom::Freeing) => {
                        if place.is_none() {
                            place = Some(waiting.try_acquire().ok()?);
                        }
                        freed.await;
                    }
                    Err(NoRoom::Full) => return None,
                }
            }
        });
        admitted.await.ok().flatten().ok_or_else(refused)
    }

    fn enter_if_room(self: &Arc<Self>, caller: &Caller, bytes: usize) -> Result<u64, NoRoom> {
        let mut state = self.state();
        state.room(caller, bytes, self.max_bytes())?;
        Ok(self.enter(&mut state, caller, bytes).0)
    }

    /// The most bytes that are held for operators, or for tenants.
    fn max_bytes(&self) -> usize {
        self.options.max_unread_bytes / 2
    }

    /// Adds a reader for whom this number of bytes is held.
    pub(super) fn enter(
        self: &Arc<Self>,
        state: &mut State,
        caller: &Caller,
        bytes: usize,
    ) -> (u64, Arc<UnreadBytes>) {
        if !state.is_watched {
            state.is_watched = true;
            tokio::spawn(Arc::clone(self).watch());
        }
        let number = state.next;
        state.next += 1;
        let held = Arc::new(UnreadBytes::new(bytes, &self.moves));
        let reader = Reader {
            caller: caller.clone(),
            held: Arc::clone(&held),
            pieces: VecDeque::new(),
            is_whole: false,
            waker: None,
            seen: u64::MAX,
            still: 0,
            is_over: false,
            is_cut: false,
        };
        state.readers.insert(number, reader);
        (number, held)
    }

    /// The body for the reader with this number, of pieces that are added until it is complete.
    pub(super) fn reading(self: &Arc<Self>, number: u64) -> ResponseBody {
        ResponseBody { readers: Arc::clone(self), number, ahead: None, body: None, left: None }
    }

    /// Gives a reader data that is already counted, and wakes it.
    fn add(&self, number: u64, data: Bytes) {
        let mut state = self.state();
        let Some(reader) = state.readers.get_mut(&number) else { return };
        let mut rest = Piece::counted(data, &reader.held);
        // If it was cut off meanwhile, this returns what was counted.
        while !rest.is_empty() && !reader.is_over {
            reader.pieces.push_back(rest.split_to(rest.len().min(PIECE_BYTES)));
        }
        let waker = reader.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Counts data for a reader and gives it the data. Over the budget, an answer of the identity that holds most is cut off;
    /// `None` if that is this one, or this one was cut off before.
    pub(super) fn push(&self, number: u64, data: Bytes) -> Option<()> {
        let mut state = self.state();
        let reader = state.readers.get_mut(&number).filter(|reader| !reader.is_over)?;
        if reader.held.bytes() == 0 {
            // The time without progress begins here, as there is something to read.
            reader.held.moves_on();
        }
        reader.held.grow(data.len());
        let is_tenant = reader.caller.is_tenant();
        let most = state.over(is_tenant, self.max_bytes());
        drop(state);
        self.add(number, data);
        most.into_iter().for_each(|most| self.cut_off(most, "memory"));
        self.holds(number).then_some(())
    }

    /// Notes that a reader's answer is complete.
    pub(super) fn whole(&self, number: u64) {
        let mut state = self.state();
        let Some(reader) = state.readers.get_mut(&number) else { return };
        reader.is_whole = true;
        let waker = reader.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether a reader still has something of its answer to receive.
    pub(super) fn holds(&self, number: u64) -> bool {
        self.state().readers.get(&number).is_some_and(|reader| !reader.is_over)
    }

    /// Whether a reader waits for more than was added.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        self.state().readers.get(&number).is_some_and(|reader| !reader.is_over && !reader.is_whole)
    }

    /// Cuts off an answer: what is not in the buffers of its connection is dropped, and its stream ends.
    pub(super) fn cut_off(&self, number: u64, why: &'static str) {
        if let Some(line) = self.finish(number, true) {
            line.end_stream();
            (self.cut)(why);
        }
    }

    /// Gives a reader nothing more, and wakes both ends; returns its line if this changes anything.
    pub(super) fn finish(&self, number: u64, is_cut: bool) -> Option<Line> {
        let mut state = self.state();
        let reader = state.readers.get_mut(&number).filter(|reader| !reader.is_cut)?;
        if reader.is_over && !is_cut {
            return None;
        }
        (reader.is_over, reader.is_cut, reader.still) = (true, is_cut, 0);
        let (pieces, waker) = (std::mem::take(&mut reader.pieces), reader.waker.take());
        let (held, line) = (Arc::clone(&reader.held), reader.caller.line.clone());
        drop(state);
        drop(pieces);
        held.changed.notify_one();
        waker.into_iter().for_each(Waker::wake);
        Some(line)
    }

    /// Watches the readers until there is none.
    async fn watch(self: Arc<Self>) {
        loop {
            sleep(self.step).await;
            if !self.look() {
                return;
            }
        }
    }

    /// Cuts off answers that were not read for too long; false if there is no reader.
    fn look(&self) -> bool {
        let mut state = self.state();
        state.sweep();
        state.is_watched = !state.readers.is_empty();
        let is_watched = state.is_watched;
        let late = state.step(self.max_still);
        drop(state);
        late.into_iter().for_each(|late| self.cut_off(late, "stalled"));
        is_watched
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes readers who are done.
    pub(super) fn sweep(&mut self) {
        self.readers.retain(|_, reader| !reader.is_over || reader.held.bytes() > 0);
    }

    /// The readers that have read nothing for `max_still` steps.
    fn step(&mut self, max_still: u32) -> Vec<u64> {
        let mut late = Vec::new();
        for (number, reader) in &mut self.readers {
            let moved = reader.held.moved();
            let waits = reader.held.bytes() > 0 && moved == reader.seen;
            reader.still = if waits { reader.still + 1 } else { 0 };
            reader.seen = moved;
            if reader.is_cut && reader.still >= MAX_STUCK {
                reader.caller.line.end_connection();
            } else if reader.still >= max_still && !reader.is_cut {
                late.push(*number);
            }
        }
        late
    }

    /// Whether an answer with this number of bytes is within `max_bytes`, or what has to happen first. One that is larger is sent
    /// alone.
    fn room(&mut self, caller: &Caller, bytes: usize, max_bytes: usize) -> Result<(), NoRoom> {
        self.sweep();
        let side = |reader: &Reader| reader.caller.is_tenant() == caller.is_tenant();
        let live = |reader: &Reader| side(reader) && reader.is_held();
        let own = |reader: &Reader| live(reader) && reader.caller.who.is_same(&caller.who);
        let fits = |held: usize| bytes == 0 || held == 0 || held + bytes <= max_bytes;
        if fits(self.sum(side)) {
            return Ok(());
        }
        if fits(self.sum(live)) {
            return Err(NoRoom::Freeing);
        }
        if let Some(stalled) = self.stalest(|reader| live(reader) && reader.still > 0) {
            return Err(NoRoom::CutOff(stalled));
        }
        let own = self.sum(own) + bytes;
        let most = self.most(caller.is_tenant()).filter(|(_, held)| *held > own);
        Err(most.map_or(NoRoom::Full, |(number, _)| NoRoom::CutOff(number)))
    }

    /// The bytes that these readers hold.
    fn sum(&self, of: impl Fn(&Reader) -> bool) -> usize {
        let readers = self.readers.values().filter(|reader| of(reader));
        readers.map(|reader| reader.held.bytes()).sum()
    }

    /// The answer to cut off if all tenants, or all operators, together hold more than `max_bytes`.
    fn over(&self, is_tenant: bool, max_bytes: usize) -> Option<u64> {
        let live = |reader: &Reader| reader.caller.is_tenant() == is_tenant && reader.is_held();
        if self.sum(live) <= max_bytes {
            return None;
        }
        self.most(is_tenant).map(|(number, _)| number)
    }

    /// The stalest answer of the tenant, or of the operator, that holds most, and the bytes that it holds.
    fn most(&self, is_tenant: bool) -> Option<(u64, usize)> {
        let mut held: BTreeMap<_, usize> = BTreeMap::new();
        let live = |reader: &Reader| reader.caller.is_tenant() == is_tenant && reader.is_held();
        for reader in self.readers.values().filter(|reader| live(reader)) {
            *held.entry(reader.caller.name()).or_default() += reader.held.bytes();
        }
        let (most, bytes) = held.iter().max_by_key(|(_, bytes)| **bytes)?;
        let stalest = self.stalest(|reader| live(reader) && reader.caller.name() == *most)?;
        Some((stalest, *bytes))
    }

    /// The reader without progress for longest; those with something to read come first.
    pub(super) fn stalest(&self, of: impl Fn(&Reader) -> bool) -> Option<u64> {
        let readers = self.readers.iter().filter(|(_, reader)| of(reader) && !reader.is_cut);
        let key = |(_, reader): &(&u64, &Reader)| (reader.held.bytes() == 0, reader.held.moved());
        readers.min_by_key(key).map(|(number, _)| *number)
    }
}

impl Caller {
    /// The sender of a request with these extensions.
    pub(super) fn of(extensions: &Extensions, is_scrape: bool) -> Self {
        let who = Arc::new(extensions.get().cloned().unwrap_or_default());
        Self { who, line: extensions.get().cloned().unwrap_or_default(), is_scrape }
    }

    pub(super) fn is_tenant(&self) -> bool {
        self.who.tenant.is_some()
    }

    fn name(&self) -> (Option<&str>, &str) {
        (self.who.tenant.as_deref(), &self.who.name)
    }
}

impl Reader {
    /// Whether it is a scrape by this identity that is not cut off.
    pub(super) fn scrapes_as(&self, caller: &Caller) -> bool {
        self.caller.is_scrape && !self.is_cut && self.caller.who.is_same(&caller.who)
    }

    /// Whether it has something to read, and is not cut off.
    pub(super) fn is_held(&self) -> bool {
        !self.is_cut && self.held.bytes() > 0
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::Notify;

    use super::*;

    const MOST: usize = 100_000;

    fn caller(tenant: Option<&str>, name: &str) -> Caller {
        let mut identity = Identity::default();
        (identity.tenant, identity.name) = (tenant.map(Arc::from), name.into());
        Caller { who: Arc::new(identity), line: Line::default(), is_scrape: false }
    }

    /// Readers that must read something within a minute, and the reasons that are counted.
    fn readers() -> (Arc<Readers>, Arc<Mutex<Vec<&'static str>>>) {
        let options = ApiOptions { max_unread_bytes: 2 * MOST, ..ApiOptions::default() };
        let counted = Arc::<Mutex<Vec<_>>>::default();
        let count = || -> Count {
            let counted = Arc::clone(&counted);
            Arc::new(move |why| counted.lock().unwrap().push(why))
        };
        let readers = Readers::new(options, Duration::from_secs(60), count(), count());
        (Arc::new(readers), Arc::clone(&counted))
    }

    fn bytes(count: usize) -> Response {
        Response::new(vec![b'x'; count].into())
    }

    fn held(readers: &Readers) -> usize {
        readers.state().sum(|_| true)
    }

    #[tokio::test]
    async fn an_answer_counts_until_its_last_byte_is_dropped() {
        let (readers, _) = readers();
        let answer = readers.hold(caller(None, ""), bytes(50_000)).await.unwrap();
        assert_eq!((answer.size_hint().exact(), held(&readers)), (Some(50_000), 50_000));
        let mut body = answer.into_body();
        let mut pieces = Vec::new();
        while !body.is_end_stream() {
            pieces.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        drop(body);
        assert_eq!(
            pieces.iter().map(Bytes::len).collect::<Vec<_>>(),
            [16_384, 16_384, 16_384, 848]
        );
        pieces.truncate(1);
        // It is one piece of memory.
        assert_eq!(held(&readers), 50_000);
        drop(pieces);
        assert_eq!(held(&readers), 0);
        let small = readers.hold(caller(None, ""), bytes(MAX_SMALL_BYTES)).await.unwrap();
        assert_eq!((small.size_hint().exact(), held(&readers)), (Some(1024), 0));
    }

    #[tokio::test]
    async fn what_nobody_reads_makes_room_and_what_somebody_reads_does_not() {
        let (readers, counted) = readers();
        let slow = readers.hold(caller(None, ""), bytes(60_000)).await.unwrap();
        let refused = readers.hold(caller(None, ""), bytes(60_000)).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.message.contains("api.max_unread_bytes"), "{}", refused.message);
        // Tenants have their own room.
        let other = readers.hold(caller(Some("a"), ""), bytes(60_000)).await.unwrap();
        let mut cut = slow.into_body();
        let first = cut.frame().await.unwrap().unwrap();
        for _ in 0..2 {
            readers.look();
        }
        let waiting = {
            let readers = Arc::clone(&readers);
            tokio::spawn(async move { readers.hold(caller(None, ""), bytes(60_000)).await })
        };
        while counted.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert!(cut.frame().await.unwrap().is_err());
        // All of its memory is held as long as a piece is.
        assert!(!waiting.is_finished() && held(&readers) == 120_000);
        drop(first);
        let next = waiting.await.unwrap().unwrap();
        assert_eq!(*counted.lock().unwrap(), ["api_unread_bytes", "memory"]);
        let read = next.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((read.len(), held(&readers)), (60_000, 60_000));
        drop((read, other));
        assert_eq!(held(&readers), 0);
    }

    #[tokio::test]
    async fn nobody_holds_the_room_of_others() {
        let (readers, counted) = readers();
        let much = caller(Some("a"), "");
        let most = [(); 3].map(|()| readers.hold(much.clone(), bytes(33_000)));
        let most = futures_util::future::join_all(most).await;
        let other = readers.hold(caller(Some("b"), ""), bytes(33_000)).await;
        assert!(other.is_ok() && most.iter().all(Result::is_ok));
        assert_eq!(*counted.lock().unwrap(), ["memory"]);
        // An answer of the same size would hold more than any other.
        assert!(readers.hold(much, bytes(33_000)).await.is_err());
    }

    #[tokio::test]
    async fn an_answer_that_is_larger_than_the_budget_is_sent_alone() {
        let (readers, counted) = readers();
        let large = readers.hold(caller(None, "a"), bytes(3 * MOST)).await.unwrap();
        let waiting = {
            let readers = Arc::clone(&readers);
            tokio::spawn(async move { readers.hold(caller(None, "b"), bytes(2_000)).await })
        };
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!((*counted.lock().unwrap()).as_slice(), ["memory"]);
        drop(large);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_ends_and_then_its_connection() {
        let (readers, counted) = readers();
        let look = |times| (0..times).for_each(|_| _ = readers.look());
        let [stream, connection] = [(); 2].map(|()| Arc::<Notify>::default());
        let line = Line::new(Arc::clone(&stream), Arc::clone(&connection));
        let stalled = Caller { line, ..caller(None, "") };
        let mut body = readers.hold(stalled, bytes(50_000)).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap();
        look(60);
        assert!(held(&readers) == 50_000 && counted.lock().unwrap().is_empty());
        drop(first);
        let second = body.frame().await.unwrap().unwrap();
        look(60);
        assert!(counted.lock().unwrap().is_empty());
        look(1);
        assert_eq!((*counted.lock().unwrap()).as_slice(), ["stalled"]);
        stream.notified().await;
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(held(&readers), 50_000);
        look(2);
        connection.notified().await;
        drop(second);
        assert_eq!(held(&readers), 0);
        assert!(!readers.look());
    }

    #[tokio::test]
    async fn a_stream_counts_what_it_has_given() {
        let (readers, _) = readers();
        let frames = [Bytes::from(vec![0; 20_000]), Bytes::from(vec![0; 30_000])];
        let frames = frames.map(|data| Ok::<_, io::Error>(Frame::data(data)));
        let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
        let answer = readers.hold(caller(None, ""), Response::new(body)).await.unwrap();
        assert_eq!(held(&readers), 20_000);
        let read = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((read.len(), held(&readers)), (50_000, 0));
    }
}
