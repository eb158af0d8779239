//! Pages of metrics on their way to their readers.
//!
//! A few pages are rendered at a time, and wait here for their readers: a slow reader holds bytes and no permit. The pages of one
//! identity are bounded in number; over the bound the page is cut off whose reader has taken nothing for longest. The bytes that wait
//! are bounded for each reader, whose page is not rendered further meanwhile; and for all operators together and for all tenants
//! together: over that bound, a page of the identity that holds most is cut off. So no identity keeps others from reading, and no
//! tenant keeps an operator, which is any identity without a tenant.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::history::ApiOptions;
use super::http::Count;
use crate::access::Identity;

/// The most pages that are rendered at a time, for operators and for tenants each.
const MAX_RENDERED: usize = 4;

/// The longest time for a scrape. Prometheus waits ten seconds by default.
const SCRAPE_TIME: Duration = Duration::from_secs(30);

/// The most scrapes of an identity, those included that wait to be rendered, as a multiple of `max_scrapes`.
const WAITING: usize = 8;

/// The divisor of `max_scrape_bytes / max_scrapes` that gives the bytes over which a page is not rendered further.
const READERS_SHARE: usize = 4;

/// All pages that are under way.
#[derive(Clone)]
pub(super) struct Scrapes {
    operators: Arc<Semaphore>,
    tenants: Arc<Semaphore>,
    readers: Arc<Readers>,
}

struct Readers {
    options: ApiOptions,
    cut: Count,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    // Rises with each piece that is read, and each one added for a reader without any.
    moves: u64,
    readers: BTreeMap<u64, Reader>,
}

/// One page and its reader.
#[derive(Debug)]
struct Reader {
    who: Arc<Identity>,
    moved: u64,
    pieces: VecDeque<String>,
    // Invariant: the sum over `pieces`.
    bytes: usize,
    is_whole: bool,
    waker: Option<Waker>,
    // Notified when a piece was read, and when the reader is removed.
    changed: Arc<Notify>,
}

/// The rendering of a page, until its reader has all of it.
pub(super) struct Making {
    scrapes: Scrapes,
    who: Arc<Identity>,
    number: u64,
    changed: Arc<Notify>,
    permit: Option<OwnedSemaphorePermit>,
}

/// The reader's end of a page: its pieces, then its end, or an error if it was cut off. Dropped when reading ends.
pub(super) struct Reading {
    readers: Arc<Readers>,
    number: u64,
}

impl Scrapes {
    /// Scrapes without any page; `cut` counts pages that are cut off.
    pub(super) fn new(options: ApiOptions, cut: Count) -> Self {
        let permits = || Arc::new(Semaphore::new(MAX_RENDERED));
        let readers = Readers { options, cut, state: Mutex::default() };
        Self { operators: permits(), tenants: permits(), readers: Arc::new(readers) }
    }

    /// Waits for the turn to render a page for an identity; `None` if it was cut off meanwhile.
    pub(super) async fn begin(&self, who: &Identity) -> Option<(Making, Reading)> {
        let who = Arc::new(who.clone());
        let (number, changed) = self.readers.enter(&who);
        let reading = Reading { readers: Arc::clone(&self.readers), number };
        let scrapes = self.clone();
        let mut making = Making { scrapes, who, number, changed, permit: None };
        making.permit().await?;
        Some((making, reading))
    }
}

impl Making {
    /// Renders the page from these pieces, with `before` awaited before each, and waits for its reader; `SCRAPE_TIME` at most.
    pub(super) async fn send<F: Future<Output = ()>>(
        mut self,
        pieces: impl Iterator<Item = String>,
        before: impl Fn(u64) -> F,
    ) {
        let number = self.number;
        let readers = Arc::clone(&self.scrapes.readers);
        let sent = timeout(SCRAPE_TIME, async {
            for (number, piece) in (0_u64..).zip(pieces) {
                before(number).await;
                if !piece.is_empty() && self.push(piece).await.is_none() {
                    return;
                }
            }
            self.permit = None;
            readers.whole(number);
            while readers.holds(number) {
                self.changed.notified().await;
            }
        });
        if sent.await.is_err() {
            readers.cut_off(number, "time");
        }
    }

    /// Adds a piece when there is room for it; `None` if the reader is gone.
    async fn push(&mut self, piece: String) -> Option<()> {
        let readers = Arc::clone(&self.scrapes.readers);
        while readers.waits_for(self.number)? {
            // Other pages can be rendered meanwhile.
            self.permit = None;
            self.changed.notified().await;
        }
        if self.permit.is_none() {
            self.permit().await?;
        }
        readers.push(self.number, piece)
    }

    /// Waits for the turn to be rendered; `None` if the reader is gone.
    async fn permit(&mut self) -> Option<()> {
        let Scrapes { operators, tenants, readers } = &self.scrapes;
        let turns = if self.who.tenant.is_none() { operators } else { tenants };
        let mut permit = std::pin::pin!(Arc::clone(turns).acquire_owned());
        loop {
            tokio::select! {
                // The semaphore is never closed.
                permit = &mut permit => {
                    self.permit = permit.ok();
                    return Some(());
                }
                () = self.changed.notified() => {
                    if !readers.holds(self.number) {
                        return None;
                    }
                }
            }
        }
    }
}

impl Readers {
    /// Adds a reader; if its identity has far too many, another one is cut off.
    fn enter(&self, who: &Arc<Identity>) -> (u64, Arc<Notify>) {
        let mut state = self.state();
        let own = |reader: &Reader| reader.who.is_same(who);
        let count = state.readers.values().filter(|reader| own(reader)).count();
        let most = self.options.max_scrapes.saturating_mul(WAITING);
        let stalest = state.stalest(own).filter(|_| count >= most);
        let (number, moved) = (state.next, state.moves);
        state.next += 1;
        let changed = Arc::<Notify>::default();
        let reader = Reader {
            who: Arc::clone(who),
            moved,
            pieces: VecDeque::new(),
            bytes: 0,
            is_whole: false,
            waker: None,
            changed: Arc::clone(&changed),
        };
        state.readers.insert(number, reader);
        drop(state);
        stalest.into_iter().for_each(|stalest| self.cut_off(stalest, "displaced"));
        (number, changed)
    }

    /// Whether a reader has to take something before more is rendered; `None` if it is gone.
    fn waits_for(&self, number: u64) -> Option<bool> {
        let ApiOptions { max_scrapes, max_scrape_bytes, .. } = self.options;
        let share = max_scrape_bytes / max_scrapes.max(1) / READERS_SHARE;
        self.state().readers.get(&number).map(|reader| reader.bytes > share)
    }

    /// Adds a piece for a reader; `None` if the reader is gone, or is cut off for lack of room.
    fn push(&self, number: u64, piece: String) -> Option<()> {
        let ApiOptions { max_scrapes, max_scrape_bytes, .. } = self.options;
        let mut state = self.state();
        let State { moves, readers, .. } = &mut *state;
        let reader = readers.get_mut(&number)?;
        if reader.pieces.is_empty() {
            // The time without a move begins here, as there is something to read.
            *moves += 1;
            reader.moved = *moves;
        }
        reader.bytes += piece.len();
        reader.pieces.push_back(piece);
        let who = Arc::clone(&reader.who);
        let waker = reader.waker.take();
        let given = |reader: &Reader| !reader.pieces.is_empty() && reader.who.is_same(&who);
        let count = state.readers.values().filter(|reader| given(reader)).count();
        let stalest = state.stalest(given).filter(|_| count > max_scrapes);
        let most = state.over(who.tenant.is_some(), max_scrape_bytes / 2);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        stalest.into_iter().for_each(|stalest| self.cut_off(stalest, "displaced"));
        most.into_iter().for_each(|most| self.cut_off(most, "memory"));
        self.holds(number).then_some(())
    }

    fn whole(&self, number: u64) {
        let mut state = self.state();
        let Some(reader) = state.readers.get_mut(&number) else { return };
        reader.is_whole = true;
        let waker = reader.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn holds(&self, number: u64) -> bool {
        self.state().readers.contains_key(&number)
    }

    fn cut_off(&self, number: u64, why: &'static str) {
        if self.remove(number) {
            (self.cut)(why);
        }
    }

    /// Removes a reader and wakes both ends; false if it was removed before.
    fn remove(&self, number: u64) -> bool {
        let Some(reader) = self.state().readers.remove(&number) else { return false };
        reader.changed.notify_one();
        reader.waker.into_iter().for_each(Waker::wake);
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The reader among `of` for which nothing has moved for longest; those with something to read come first.
    fn stalest(&self, of: impl Fn(&Reader) -> bool) -> Option<u64> {
        let readers = self.readers.iter().filter(|(_, reader)| of(reader));
        let key = |(_, reader): &(&u64, &Reader)| (reader.pieces.is_empty(), reader.moved);
        readers.min_by_key(key).map(|(number, _)| *number)
    }

    /// The reader to cut off if all tenants, or all operators, together hold more than `max_bytes`.
    fn over(&self, is_tenant: bool, max_bytes: usize) -> Option<u64> {
        let readers =
            self.readers.values().filter(|reader| reader.who.tenant.is_some() == is_tenant);
        let mut held: BTreeMap<_, usize> = BTreeMap::new();
        for reader in readers {
            *held.entry((&reader.who.tenant, &reader.who.name)).or_default() += reader.bytes;
        }
        if held.values().sum::<usize>() <= max_bytes {
            return None;
        }
        let (most, _) = held.iter().max_by_key(|(_, bytes)| **bytes)?;
        self.stalest(|reader| (&reader.who.tenant, &reader.who.name) == *most && reader.bytes > 0)
    }
}

impl Stream for Reading {
    type Item = io::Result<String>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.readers.state();
        let State { moves, readers, .. } = &mut *state;
        // The page was cut off, and its reader has to know that it is not whole.
        let Some(reader) = readers.get_mut(&self.number) else {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        };
        if let Some(piece) = reader.pieces.pop_front() {
            reader.bytes -= piece.len();
            *moves += 1;
            reader.moved = *moves;
            reader.changed.notify_one();
            return Poll::Ready(Some(Ok(piece)));
        }
        if reader.is_whole {
            return Poll::Ready(None);
        }
        reader.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.readers.remove(self.number);
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // If the page is not whole, its reader would wait for ever.
        let readers = &self.scrapes.readers;
        let whole = readers.state().readers.get(&self.number).is_none_or(|reader| reader.is_whole);
        if !whole {
            readers.cut_off(self.number, "time");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::StreamExt;
    use tokio::task::yield_now;

    use super::*;

    fn who(tenant: Option<&str>) -> Identity {
        let mut identity = Identity::default();
        identity.tenant = tenant.map(Arc::from);
        identity
    }

    fn scrapes(max_scrapes: usize, max_scrape_bytes: usize) -> (Scrapes, Arc<AtomicUsize>) {
        let options = ApiOptions { max_scrapes, max_scrape_bytes, ..ApiOptions::default() };
        let cut = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&cut);
        let count = move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (Scrapes::new(options, Arc::new(count)), cut)
    }

    fn pieces(count: usize) -> impl Iterator<Item = String> + Send + 'static {
        (0..count).map(|_| "x".repeat(100))
    }

    #[tokio::test]
    async fn those_who_do_not_read_hold_no_permit_and_go_for_those_who_come() {
        let (scrapes, cut) = scrapes(8, 1 << 20);
        let mut slow = Vec::new();
        for _ in 0..20 {
            let (making, reading) = scrapes.begin(&who(None)).await.unwrap();
            tokio::spawn(making.send(pieces(5), |_| yield_now()));
            slow.push(reading);
        }
        while cut.load(Ordering::Relaxed) < 12 {
            yield_now().await;
        }
        while scrapes.operators.available_permits() < MAX_RENDERED {
            yield_now().await;
        }
        assert_eq!(cut.load(Ordering::Relaxed), 12);
        let (making, reading) = scrapes.begin(&who(None)).await.unwrap();
        let sending = tokio::spawn(making.send(pieces(5), |_| yield_now()));
        let read: Vec<_> = reading.map(Result::unwrap).collect().await;
        assert_eq!(read.len(), 5);
        sending.await.unwrap();
        assert!(slow[0].next().await.unwrap().is_err());
        assert_eq!(slow[19].next().await.unwrap().unwrap().len(), 100);
    }

    #[tokio::test]
    async fn a_page_that_is_not_read_waits_without_a_permit_and_then_goes_on() {
        let (scrapes, cut) = scrapes(2, 2_000);
        let (making, mut reading) = scrapes.begin(&who(None)).await.unwrap();
        tokio::spawn(making.send(pieces(50), |_| yield_now()));
        while scrapes.operators.available_permits() < MAX_RENDERED {
            yield_now().await;
        }
        // A quarter of the half of it that each of two may have.
        assert_eq!(scrapes.readers.state().readers[&0].bytes, 300);
        let mut read = 0;
        while let Some(piece) = reading.next().await {
            read += piece.unwrap().len();
        }
        assert_eq!((read, cut.load(Ordering::Relaxed)), (5_000, 0));
    }

    #[tokio::test]
    async fn tenants_make_room_for_each_other_and_never_an_operator() {
        let (scrapes, cut) = scrapes(4, 1_600);
        let mut reading = Vec::new();
        for tenant in [Some("a"), Some("a"), Some("a"), Some("a"), Some("b"), None] {
            let (making, slow) = scrapes.begin(&who(tenant)).await.unwrap();
            tokio::spawn(making.send(pieces(50), |_| yield_now()));
            reading.push(slow);
        }
        while cut.load(Ordering::Relaxed) == 0 || scrapes.readers.state().readers[&5].bytes == 0 {
            yield_now().await;
        }
        let state = scrapes.readers.state();
        assert!(state.readers.contains_key(&4) && state.readers.contains_key(&5));
        let tenants = state.readers.values().filter(|reader| reader.who.tenant.is_some());
        assert!(tenants.map(|reader| reader.bytes).sum::<usize>() <= 800);
    }

    #[tokio::test]
    async fn what_was_not_sent_to_its_end_never_says_that_it_was_whole() {
        let (scrapes, cut) = scrapes(4, 1_600);
        let (making, mut reading) = scrapes.begin(&who(None)).await.unwrap();
        let sending = tokio::spawn(making.send(pieces(50), |_| yield_now()));
        assert!(reading.next().await.unwrap().is_ok());
        sending.abort();
        assert!(sending.await.is_err());
        assert!(reading.next().await.unwrap().is_err());
        assert_eq!(cut.load(Ordering::Relaxed), 1);
    }
}
