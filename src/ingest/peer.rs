//! The connections of a listener, and which of them is closed first when there is no room for another.
//!
//! Connections are ranked by their use. The least useful are those on which no request was ever answered successfully: they are
//! idle or slow, or their sender has no access. Next come those that have nothing under way or wait for a body. A connection with a
//! request that has arrived completely is never closed. Among equals, the one without progress for longest is closed. New
//! connections get time for a first request: as long as they are few, they rank like served ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// A connection, as its requests and its server see it.
#[derive(Debug, Default)]
pub(super) struct Peer {
    number: u64,
    // Counts progress on all connections of the listener, so that no clock has to be read.
    moves: Arc<AtomicU64>,
    moved: AtomicU64,
    started: AtomicU64,
    running: AtomicUsize,
    arriving: AtomicUsize,
    streaming: AtomicUsize,
    served: AtomicBool,
    slow: AtomicUsize,
    leaving: AtomicBool,
    leave: Notify,
    end: Arc<Notify>,
}

/// The connections of a listener.
#[derive(Debug)]
pub(super) struct Peers {
    max_new: usize,
    moves: Arc<AtomicU64>,
    // Invariant: one entry for each [`Connected`], so no more than there may be connections.
    all: Mutex<BTreeMap<u64, Arc<Peer>>>,
}

/// A connection, which its listener's [`Peers`] list until this is dropped.
#[derive(Debug)]
pub(super) struct Connected {
    peers: Arc<Peers>,
    pub(super) peer: Arc<Peer>,
    /// The address that the connection comes from.
    pub(super) address: SocketAddr,
}

/// Counts a request as running until it is dropped.
#[derive(Debug)]
pub(super) struct Running(Arc<Peer>);

/// Counts a request's body as arriving until it is dropped.
#[derive(Debug)]
pub(super) struct Arriving(Arc<Peer>);

/// Counts an answer as under way until it is dropped.
#[derive(Debug)]
pub(super) struct Streaming(Arc<Peer>);

/// Stalled bodies after which a connection is closed: a single one can be bad luck.
const MAX_SLOW: usize = 4;

/// The number of the next connection, over all listeners.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// The divisor of `max_connections` for the number of connections without a successful answer that may rank as served.
const NEW_SHARE: usize = 8;

impl Peers {
    /// The connections of a listener that accepts at most `max`.
    pub(super) fn new(max: usize) -> Self {
        Self { max_new: max / NEW_SHARE, moves: Arc::default(), all: Mutex::default() }
    }

    /// Adds a connection from this address.
    pub(super) fn connect(self: &Arc<Self>, address: SocketAddr) -> Connected {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let peer = Arc::new(Peer { number, moves: Arc::clone(&self.moves), ..Peer::default() });
        peer.moves_on();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(number, Arc::clone(&peer));
        Connected { peers: Arc::clone(self), peer, address }
    }

    /// Asks the least useful connection to leave; false if all of them are busy or leaving already.
    pub(super) fn displace(&self) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = || all.values().filter(|peer| !peer.is_busy() && !peer.is_leaving());
        let few_are_new = idle().filter(|peer| !peer.is_served()).count() <= self.max_new;
        let worth = |peer: &&Arc<Peer>| {
            (few_are_new || peer.is_served(), peer.moved.load(Ordering::Relaxed))
        };
        let Some(peer) = idle().min_by_key(worth) else { return false };
        peer.leaves();
        true
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut all = self.peers.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.peer.number);
    }
}

impl Peer {
    /// The number of the connection in this process; 0: none.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Notes progress on the connection: bytes arrived or were sent.
    pub(super) fn moves_on(&self) {
        self.moved.store(self.moves.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts a body as arriving.
    pub(super) fn arriving(self: &Arc<Self>) -> Arriving {
        self.arriving.fetch_add(1, Ordering::Relaxed);
        Arriving(Arc::clone(self))
    }

    /// Counts an answer as under way: one that is not complete when its head is sent.
    pub(super) fn streams(self: &Arc<Self>) -> Streaming {
        self.streaming.fetch_add(1, Ordering::Relaxed);
        Streaming(Arc::clone(self))
    }

    /// Whether nothing is under way: neither a request nor an answer.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_running() && self.streaming.load(Ordering::Relaxed) == 0
    }

    /// Counts a stalled body; after too many the connection is asked to leave.
    pub(super) fn stalled(&self) {
        if self.slow.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_SLOW {
            self.leaves();
        }
    }

    /// Counts a request as running.
    pub(super) fn runs(self: &Arc<Self>) -> Running {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        self.moves_on();
        Running(Arc::clone(self))
    }

    /// The number of requests so far.
    pub(super) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Whether a request is under way.
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Notes that a request that needs access was answered successfully.
    pub(super) fn was_served(&self) {
        // Mostly it is set already, and a cache line that is not written stays in the caches of all cores that read it.
        if !self.served.load(Ordering::Relaxed) {
            self.served.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a request that needs access was answered successfully.
    pub(super) fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Whether too many bodies of the connection stalled.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) >= MAX_SLOW
    }

    /// Ends the connection when it is notified.
    pub(super) fn end(&self) -> &Arc<Notify> {
        &self.end
    }

    /// Waits until the connection is asked to leave.
    pub(super) async fn told_to_leave(&self) {
        self.leave.notified().await;
    }

    fn leaves(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Whether a request has arrived completely and is not answered yet.
    fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > self.arriving.load(Ordering::Relaxed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.streaming.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    fn leaving(peers: &Peers) -> Vec<u64> {
        let all = peers.all.lock().unwrap();
        all.values().filter(|peer| peer.is_leaving()).map(|peer| peer.number).collect()
    }

    #[test]
    fn who_was_never_served_goes_first_and_who_is_busy_never() {
        let peers = Arc::new(Peers::new(1));
        let [idle, served, new, busy] = [(); 4].map(|()| peers.connect(ANYWHERE));
        served.peer.was_served();
        let running = busy.peer.runs();
        // It was opened first, but made progress last.
        idle.peer.moves_on();
        for expected in [&new, &idle, &served] {
            assert!(peers.displace());
            assert!(leaving(&peers).contains(&expected.peer.number));
        }
        assert!(!peers.displace());
        // An arriving body protects no connection.
        let arriving = busy.peer.arriving();
        assert!(peers.displace());
        drop((arriving, running));
        drop((idle, served, new, busy));
        assert!(peers.all.lock().unwrap().is_empty());
    }

    #[test]
    fn a_few_new_ones_are_given_time() {
        let peers = Arc::new(Peers::new(2 * NEW_SHARE));
        let served = peers.connect(ANYWHERE);
        served.peer.was_served();
        let new = [peers.connect(ANYWHERE), peers.connect(ANYWHERE)];
        assert!(peers.displace());
        assert_eq!(leaving(&peers), [served.peer.number]);
        let third = peers.connect(ANYWHERE);
        assert!(peers.displace());
        assert_eq!(leaving(&peers), [served.peer.number, new[0].peer.number]);
        drop(third);
    }

    #[test]
    fn one_stalled_body_is_bad_luck_and_several_are_not() {
        let peers = Arc::new(Peers::new(1));
        let connected = peers.connect(ANYWHERE);
        for _ in 1..MAX_SLOW {
            connected.peer.stalled();
            assert!(!connected.peer.is_slow() && leaving(&peers).is_empty());
        }
        connected.peer.stalled();
        assert!(connected.peer.is_slow() && leaving(&peers) == [connected.peer.number]);
    }
}
