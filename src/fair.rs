//! Room that is shared fairly by the requests that wait for it.
//!
//! Free room goes to the waiting tenant that was given least, then to the connection of that tenant that was given least, then in
//! the order of requests. No other gets room before there is enough for that one, so large requests are served, too. Waiting takes
//! no room.
//!
//! Only waiting tenants and connections are compared: one that begins to wait starts level with the one that was given least,
//! whatever it had before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// The sender of a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Requester {
    /// The tenant, else the name of the sender.
    pub(crate) tenant: Arc<str>,
    /// The number of the connection.
    pub(crate) connection: u64,
}

/// The room, in units.
#[derive(Debug)]
pub(crate) struct Fair {
    all: u32,
    max_waiting: usize,
    state: Mutex<State>,
}

/// A share of the room, returned when dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    room: Arc<Fair>,
    units: u32,
}

/// The outcome of a request for room.
#[derive(Debug)]
pub(crate) enum Entered {
    /// There was room at once.
    AtOnce(Grant),
    /// There was room after a wait.
    Waited(Grant),
    /// There was no room in time, or too many waited.
    TurnedAway,
}

#[derive(Debug, Default)]
struct State {
    // Invariant: free units and those of turns add up to `all`.
    free: u32,
    // Invariant: the number of waiters in all lines; at most `max_waiting`.
    waiting: usize,
    asked: u64,
    // Invariant: every tenant has a line, and no line is empty.
    tenants: BTreeMap<Arc<str>, Tenant>,
}

/// A tenant with waiting requests.
#[derive(Debug, Default)]
struct Tenant {
    given: u64,
    waiting: usize,
    lines: BTreeMap<u64, Line>,
}

/// The waiting requests of one connection.
#[derive(Debug, Default)]
struct Line {
    given: u64,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    units: u32,
    granted: oneshot::Sender<Grant>,
}

/// A place in a line, which is left when this is dropped.
struct QueueSlot<'r> {
    room: &'r Arc<Fair>,
    requester: &'r Requester,
    number: u64,
}

impl Fair {
    /// Room of `all` units, for which `max_waiting` requests may wait.
    pub(crate) fn new(all: u32, max_waiting: usize) -> Arc<Self> {
        let state = Mutex::new(State { free: all, ..State::default() });
        Arc::new(Self { all, max_waiting, state })
    }

    /// The number of units, free or not.
    pub(crate) fn all(&self) -> u32 {
        self.all
    }

    /// The number of free units.
    #[cfg(test)]
    pub(crate) fn free(&self) -> u32 {
        self.state().free
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// Takes `units`, or all if there are fewer; waits for `max_wait` at most.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        requester: &Requester,
        units: u32,
        max_wait: Duration,
    ) -> Entered {
        let units = units.clamp(1, self.all);
        let (place, mut granted) = {
            let mut state = self.state();
            if state.waiting == 0 && state.free >= units {
                state.free -= units;
                return Entered::AtOnce(Grant { room: Arc::clone(self), units });
            }
            let (granted, turn) = oneshot::channel();
            let number = state.stand(requester, units, granted);
            // A displaced waiter notices that its sender is dropped.
            if state.waiting > self.max_waiting {
                state.displace();
            }
            (QueueSlot { room: self, requester, number }, turn)
        };
        let entered = match timeout(max_wait, &mut granted).await {
            Ok(Ok(turn)) => Entered::Waited(turn),
            Ok(Err(_)) | Err(_) => Entered::TurnedAway,
        };
        drop(place);
        entered
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free units to the waiters whose turn it is.
    fn give(self: &Arc<Self>) {
        loop {
            let next = self.state().next();
            let Some(Waiter { units, granted, .. }) = next else { return };
            // If the waiter left meanwhile, the turn is dropped and returns its units.
            drop(granted.send(Grant { room: Arc::clone(self), units }));
        }
    }
}

impl State {
    /// Adds a waiter to the end of its line; returns its number.
    fn stand(&mut self, requester: &Requester, units: u32, granted: oneshot::Sender<Grant>) -> u64 {
        self.asked += 1;
        self.waiting += 1;
        let number = self.asked;
        let least = self.tenants.values().map(|tenant| tenant.given).min().unwrap_or(0);
        let tenant = self
            .tenants
            .entry(Arc::clone(&requester.tenant))
            .or_insert_with(|| Tenant { given: least, ..Tenant::default() });
        tenant.waiting += 1;
        let least = tenant.lines.values().map(|line| line.given).min().unwrap_or(0);
        let line = tenant
            .lines
            .entry(requester.connection)
            .or_insert_with(|| Line { given: least, ..Line::default() });
        line.waiters.push_back(Waiter { number, units, granted });
        number
    }

    /// Takes out the waiter whose turn it is, with its units, if enough are free.
    fn next(&mut self) -> Option<Waiter> {
        let (name, tenant) = self.tenants.iter_mut().min_by_key(|(_, tenant)| tenant.given)?;
        let (connection, line) = tenant
            .lines
            .iter_mut()
            .min_by_key(|(_, line)| (line.given, line.waiters.front().map(|first| first.number)))?;
        let units = line.waiters.front()?.units;
        self.free = self.free.checked_sub(units)?;
        line.given += u64::from(units);
        tenant.given += u64::from(units);
        let requester = Requester { tenant: Arc::clone(name), connection: *connection };
        self.take(&requester, |_| Some(0))
    }

    /// Turns away the last waiter in the longest line of the tenant with the most waiters.
    fn displace(&mut self) {
        let most = self.tenants.iter().max_by_key(|(_, tenant)| tenant.waiting);
        let line = most.and_then(|(name, tenant)| {
            let most = tenant.lines.iter().max_by_key(|(_, line)| line.waiters.len());
            most.map(|(connection, _)| Requester {
                tenant: Arc::clone(name),
                connection: *connection,
            })
        });
        if let Some(requester) = line {
            drop(self.take(&requester, |waiters| waiters.len().checked_sub(1)));
        }
    }

    /// Takes a waiter out of a line, by its position.
    fn take(
        &mut self,
        requester: &Requester,
        position: impl FnOnce(&VecDeque<Waiter>) -> Option<usize>,
    ) -> Option<Waiter> {
        let tenant = self.tenants.get_mut(&requester.tenant)?;
        let line = tenant.lines.get_mut(&requester.connection)?;
        let waiter = position(&line.waiters).and_then(|at| line.waiters.remove(at))?;
        self.waiting -= 1;
        tenant.waiting -= 1;
        if line.waiters.is_empty() {
            tenant.lines.remove(&requester.connection);
        }
        if tenant.lines.is_empty() {
            self.tenants.remove(&requester.tenant);
        }
        Some(waiter)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.room.state().free += self.units;
        self.room.give();
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        let of = |waiters: &VecDeque<Waiter>| {
            waiters.iter().position(|waiter| waiter.number == self.number)
        };
        let left = self.room.state().take(self.requester, of).is_some();
        // A waiter behind it may need less.
        if left {
            self.room.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::poll;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    type Entering = Pin<Box<dyn Future<Output = Entered>>>;

    /// Requests room, and waits.
    async fn ask(room: &Arc<Fair>, tenant: &str, connection: u64, units: u32) -> Entering {
        let (room, requester) = (Arc::clone(room), Requester { tenant: tenant.into(), connection });
        let mut asked: Entering =
            Box::pin(async move { room.enter(&requester, units, LONG).await });
        assert!(poll!(&mut asked).is_pending());
        asked
    }

    fn turn(of: Entered) -> (Grant, bool) {
        match of {
            Entered::AtOnce(turn) => (turn, false),
            Entered::Waited(turn) => (turn, true),
            Entered::TurnedAway => panic!("turned away"),
        }
    }

    #[tokio::test]
    async fn turns_of_one_connection_come_in_the_order_of_asking() {
        let room = Fair::new(100, 10);
        let (first, waited) = turn(room.enter(&Requester::default(), 60, LONG).await);
        assert!(!waited);
        let large = ask(&room, "", 0, 50).await;
        // There would be room for this one, but it came later.
        let small = ask(&room, "", 0, 10).await;
        assert_eq!(room.waiting(), 2);
        drop(first);
        let (large, small) = (turn(large.await), turn(small.await));
        assert!(large.1 && small.1);
        assert_eq!((room.waiting(), room.state().free), (0, 40));
    }

    #[tokio::test]
    async fn what_comes_free_goes_around_tenants_and_their_connections() {
        let room = Fair::new(10, 100);
        let (mut held, _) = turn(room.enter(&Requester::default(), 10, LONG).await);
        let mut asked = Vec::new();
        for (tenant, connection) in
            [("a", 1), ("a", 1), ("a", 1), ("a", 2), ("a", 2), ("b", 3), ("b", 3)]
        {
            asked.push((format!("{tenant}{connection}"), ask(&room, tenant, connection, 10).await));
        }
        let mut order = Vec::new();
        while !asked.is_empty() {
            drop(held);
            let mut granted = None;
            for (at, (_, asked)) in asked.iter_mut().enumerate() {
                if let std::task::Poll::Ready(entered) = poll!(asked) {
                    assert!(granted.is_none());
                    granted = Some((at, turn(entered).0));
                }
            }
            let (at, turn) = granted.unwrap();
            order.push(asked.remove(at).0);
            held = turn;
        }
        assert_eq!(order, ["a1", "b3", "a2", "b3", "a1", "a2", "a1"]);
    }

    #[tokio::test]
    async fn whoever_waits_too_long_is_turned_away_and_leaves_nothing() {
        let room = Fair::new(100, 10);
        let requester = Requester::default();
        let (held, _) = turn(room.enter(&requester, u32::MAX, LONG).await);
        assert!(matches!(room.enter(&requester, 1, Duration::ZERO).await, Entered::TurnedAway));
        let (large, small) = (ask(&room, "", 1, 100).await, ask(&room, "", 2, 1).await);
        drop(large);
        drop(held);
        assert_eq!(turn(small.await).0.units, 1);
        let state = room.state();
        assert_eq!((state.waiting, state.free, state.tenants.len()), (0, 100, 0));
    }

    #[tokio::test]
    async fn of_too_many_the_last_one_is_turned_away_of_whom_most_wait() {
        let room = Fair::new(10, 3);
        let (held, _) = turn(room.enter(&Requester::default(), 10, LONG).await);
        let first = ask(&room, "a", 1, 1).await;
        let (second, third) = (ask(&room, "a", 1, 1).await, ask(&room, "a", 2, 1).await);
        let other = ask(&room, "b", 3, 1).await;
        assert!(matches!(second.await, Entered::TurnedAway));
        drop(held);
        for granted in [first, third, other] {
            assert!(turn(granted.await).1);
        }
    }
}
