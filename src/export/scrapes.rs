//! Pages of metrics that are being sent to their readers.
//!
//! A few pages are rendered at a time, for identities and the connections of each in turn. They wait for their readers: a slow
//! reader holds bytes and no turn. The number of pages of one identity that wait for their readers is bounded; beyond the bound the
//! page is cut off whose reader has read nothing for longest. The waiting bytes are bounded for each reader, whose page is not
//! rendered further meanwhile, and together with those of all other answers ([`super::readers`]). A page that has begun is not
//! refused for them, as a missed scrape blinds its Prometheus.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::lists::requester;
use super::readers::{Caller, Reader, Readers};
use super::response_body::{ResponseBody, UnreadBytes};
use crate::fair::{Entered, Fair, Grant, Requester};

/// The most pages that are rendered at a time, for operators and for tenants each.
const MAX_RENDERED: u32 = 4;

/// The most pages that wait for their turn, of operators and of tenants each: one for each usual connection.
const MAX_WAITING: usize = 1_024;

/// The longest time for a scrape. Prometheus waits ten seconds by default.
const SCRAPE_TIME: Duration = Duration::from_secs(30);

/// `max_unread_bytes / max_scrapes` divided by this is the number of bytes beyond which a page is not rendered further.
const READERS_SHARE: usize = 4;

/// All pages that are being sent.
#[derive(Clone)]
pub(super) struct Scrapes {
    operators: Arc<Fair>,
    tenants: Arc<Fair>,
    readers: Arc<Readers>,
}

/// The rendering of a page, until its reader has all of it.
pub(super) struct Making {
    scrapes: Scrapes,
    requester: Requester,
    is_tenant: bool,
    number: u64,
    held: Arc<UnreadBytes>,
    turn: Option<Grant>,
}

impl Scrapes {
    /// No scrapes yet, among all answers of these readers.
    pub(super) fn new(readers: Arc<Readers>) -> Self {
        let turns = || Fair::new(MAX_RENDERED, MAX_WAITING);
        Self { operators: turns(), tenants: turns(), readers }
    }

    /// Waits for the turn to render a page; `None` if too many others wait.
    pub(super) async fn begin(&self, caller: &Caller) -> Option<(Making, ResponseBody)> {
        let requester = requester(&caller.who, caller.line.connection_number());
        let is_tenant = caller.is_tenant();
        let Some(turn) = self.turn(&requester, is_tenant).await else {
            (self.readers.cut)("displaced");
            return None;
        };
        // Not before, as everything that is done for a reader searches all of them.
        let (number, held) = self.readers.enter(&mut self.readers.state(), caller, 0);
        let (scrapes, turn) = (self.clone(), Some(turn));
        let reading = self.readers.reading(number);
        Some((Making { scrapes, requester, is_tenant, number, held, turn }, reading))
    }

    /// Waits for the turn to render; `None` if too many others wait.
    async fn turn(&self, requester: &Requester, is_tenant: bool) -> Option<Grant> {
        let turns = if is_tenant { &self.tenants } else { &self.operators };
        match turns.enter(requester, 1, SCRAPE_TIME).await {
            Entered::AtOnce(turn) | Entered::Waited(turn) => Some(turn),
            Entered::TurnedAway => None,
        }
    }

    /// If an identity has too many unread pages, cuts off the stalest of them.
    fn displace(&self, number: u64) {
        let state = self.readers.state();
        let Some(caller) = state.readers.get(&number).map(|reader| &reader.caller) else { return };
        let given = |reader: &Reader| reader.is_held() && reader.scrapes_as(caller);
        let count = state.readers.values().filter(|reader| given(reader)).count();
        let most = self.readers.options.max_scrapes;
        let stalest = state.stalest(given).filter(|_| count > most);
        drop(state);
        stalest.into_iter().for_each(|stalest| self.readers.cut_off(stalest, "displaced"));
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
            self.turn = None;
            readers.whole(number);
            while readers.holds(number) {
                self.held.changed.notified().await;
            }
        });
        if sent.await.is_err() {
            readers.cut_off(number, "time");
        }
    }

    /// Adds a piece when there is room for it; `None` if the reader is gone.
    async fn push(&mut self, piece: String) -> Option<()> {
        let readers = Arc::clone(&self.scrapes.readers);
        let share =
            readers.options.max_unread_bytes / readers.options.max_scrapes.max(1) / READERS_SHARE;
        while readers.holds(self.number) && self.held.bytes() > share {
            // Other pages can be rendered meanwhile.
            self.turn = None;
            self.held.changed.notified().await;
        }
        if self.turn.is_none() {
            self.take_turn().await?;
        }
        readers.push(self.number, piece.into())?;
        self.scrapes.displace(self.number);
        readers.holds(self.number).then_some(())
    }

    /// Waits for the turn to be rendered; `None` if the reader is gone, or is cut off because too many others wait.
    async fn take_turn(&mut self) -> Option<()> {
        let mut waits = std::pin::pin!(self.scrapes.turn(&self.requester, self.is_tenant));
        loop {
            tokio::select! {
                turn = &mut waits => {
                    if turn.is_none() {
                        self.scrapes.readers.cut_off(self.number, "displaced");
                    }
                    self.turn = Some(turn?);
                    return Some(());
                }
                () = self.held.changed.notified() => {
                    if !self.scrapes.readers.holds(self.number) {
                        return None;
                    }
                }
            }
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // If the page is incomplete, its reader would wait for ever.
        let readers = &self.scrapes.readers;
        if readers.is_waiting(self.number) {
            readers.cut_off(self.number, "time");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http_body_util::BodyExt;
    use tokio::task::yield_now;

    use super::*;
    use crate::access::{Identity, Line};
    use crate::export::history::ApiOptions;

    fn who(tenant: Option<&str>) -> Caller {
        let mut identity = Identity::default();
        identity.tenant = tenant.map(Arc::from);
        Caller { who: Arc::new(identity), line: Line::default(), is_scrape: true }
    }

    fn scrapes(max_scrapes: usize, max_unread_bytes: usize) -> (Scrapes, Arc<AtomicUsize>) {
        let options = ApiOptions { max_scrapes, max_unread_bytes, ..ApiOptions::default() };
        let cut = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&cut);
        let count = move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let readers = Readers::new(options, SCRAPE_TIME, Arc::new(count), Arc::new(|_| {}));
        (Scrapes::new(Arc::new(readers)), cut)
    }

    fn pieces(count: usize) -> impl Iterator<Item = String> + Send + 'static {
        (0..count).map(|_| "x".repeat(100))
    }

    /// The next piece, or the error that it was cut off.
    async fn next(reading: &mut ResponseBody) -> Option<Result<Bytes, axum::Error>> {
        Some(reading.frame().await?.map(|frame| frame.into_data().unwrap()))
    }

    #[tokio::test]
    async fn those_who_do_not_read_hold_no_turn_and_go_for_those_who_come() {
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
        while scrapes.operators.free() < MAX_RENDERED {
            yield_now().await;
        }
        assert_eq!(cut.load(Ordering::Relaxed), 12);
        let (making, reading) = scrapes.begin(&who(None)).await.unwrap();
        let sending = tokio::spawn(making.send(pieces(5), |_| yield_now()));
        assert_eq!(reading.collect().await.unwrap().to_bytes().len(), 500);
        sending.await.unwrap();
        assert!(next(&mut slow[0]).await.unwrap().is_err());
        assert_eq!(next(&mut slow[19]).await.unwrap().unwrap().len(), 100);
    }

    #[tokio::test]
    async fn a_page_that_is_not_read_waits_without_a_turn_and_then_goes_on() {
        let (scrapes, cut) = scrapes(2, 2_000);
        let (making, mut reading) = scrapes.begin(&who(None)).await.unwrap();
        tokio::spawn(making.send(pieces(50), |_| yield_now()));
        while scrapes.operators.free() < MAX_RENDERED {
            yield_now().await;
        }
        // A quarter of the half of it that each of two may have.
        assert_eq!(scrapes.readers.state().readers[&0].held.bytes(), 300);
        let mut read = 0;
        while let Some(piece) = next(&mut reading).await {
            read += piece.unwrap().len();
        }
        assert_eq!((read, cut.load(Ordering::Relaxed)), (5_000, 0));
    }

    #[tokio::test]
    async fn who_asks_for_thousands_at_once_makes_nobody_else_wait_for_all_of_them() {
        let (scrapes, cut) = scrapes(16, 1 << 20);
        let many = || Caller { line: Line::new(Arc::default(), Arc::default()), ..who(None) };
        let all = scrapes.operators.enter(&Requester::default(), MAX_RENDERED, SCRAPE_TIME).await;
        let greedy: Vec<Caller> = (0..20).map(|_| many()).collect();
        for caller in greedy.iter().cycle().take(2 * MAX_WAITING) {
            let (scrapes, caller) = (scrapes.clone(), caller.clone());
            tokio::spawn(async move {
                let (making, reading) = scrapes.begin(&caller).await?;
                making.send(pieces(5), |_| yield_now()).await;
                drop(reading);
                Some(())
            });
        }
        while cut.load(Ordering::Relaxed) < MAX_WAITING {
            yield_now().await;
        }
        let others = scrapes.clone();
        let other = tokio::spawn(async move {
            let (making, reading) = others.begin(&many()).await?;
            tokio::spawn(making.send(pieces(5), |_| yield_now()));
            Some(reading.collect().await.unwrap().to_bytes().len())
        });
        while cut.load(Ordering::Relaxed) == MAX_WAITING {
            yield_now().await;
        }
        drop(all);
        assert_eq!(other.await.unwrap(), Some(500));
        // At most one of each connection came before it.
        assert!(scrapes.operators.waiting() > MAX_WAITING / 2);
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
        while cut.load(Ordering::Relaxed) == 0
            || scrapes.readers.state().readers[&5].held.bytes() == 0
        {
            yield_now().await;
        }
        let state = scrapes.readers.state();
        assert!(state.readers.contains_key(&4) && state.readers.contains_key(&5));
        let tenants = state.readers.values().filter(|reader| reader.caller.is_tenant());
        assert!(tenants.map(|reader| reader.held.bytes()).sum::<usize>() <= 800);
    }

    #[tokio::test]
    async fn pages_that_were_read_or_given_up_by_their_readers_are_not_cut_off() {
        let (scrapes, cut) = scrapes(1, 1 << 20);
        for read in 0..40 {
            let (making, mut reading) = scrapes.begin(&who(None)).await.unwrap();
            let sending = tokio::spawn(making.send(pieces(5), |_| yield_now()));
            assert!(next(&mut reading).await.unwrap().is_ok());
            if read % 2 == 0 {
                assert_eq!(reading.collect().await.unwrap().to_bytes().len(), 400);
            } else {
                drop(reading);
            }
            sending.await.unwrap();
        }
        assert_eq!(cut.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_was_not_sent_to_its_end_never_says_that_it_was_whole() {
        let (scrapes, cut) = scrapes(4, 1_600);
        let (making, mut reading) = scrapes.begin(&who(None)).await.unwrap();
        let sending = tokio::spawn(making.send(pieces(50), |_| yield_now()));
        assert!(next(&mut reading).await.unwrap().is_ok());
        sending.abort();
        assert!(sending.await.is_err());
        assert!(next(&mut reading).await.unwrap().is_err());
        assert_eq!(cut.load(Ordering::Relaxed), 1);
    }
}
