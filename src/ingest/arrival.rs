//! The arrival of a body: its minimum pace, and the bound of all larger bodies that are arriving.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Extensions;
use http_body::Body as _;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::peer::Peer;
use super::status::Failure;
use crate::access::Identity;
use crate::fair::{Grant, Requester};

/// The sender of a request, and the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    pub(super) requester: Requester,
    peer: Arc<Peer>,
}

/// The fewest bytes that must arrive in each window of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    window: Duration,
    least_bytes: usize,
}

/// A body that has not arrived completely.
pub(super) struct Arrival<'b> {
    body: &'b mut Body,
    pace: PaceCheck,
    hurry: PaceCheck,
    large: Option<Large>,
    peer: Arc<Peer>,
    requester: Requester,
}

/// Checks that a body keeps its pace.
struct PaceCheck {
    pace: Pace,
    came_bytes: usize,
    // Set when the body is first waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The larger bodies that are arriving.
#[derive(Debug)]
pub(super) struct Arrivals {
    max_bytes: usize,
    held: Mutex<OpenBodies>,
}

#[derive(Debug, Default)]
struct OpenBodies {
    // Invariant: the sum over `bodies`.
    bytes: usize,
    next: u64,
    bodies: BTreeMap<u64, OpenBody>,
}

/// The bytes that a larger body holds.
#[derive(Debug)]
struct OpenBody {
    requester: Requester,
    bytes: usize,
    // When this is dropped, the receiver in `Large` learns that the body is displaced.
    _displaced: oneshot::Sender<()>,
}

/// A larger body's share, which is returned when this is dropped.
#[derive(Debug)]
struct Large {
    arrivals: Arc<Arrivals>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

/// The time over which a body's pace is measured, and after which it is first checked.
const WINDOW: Duration = Duration::from_secs(5);

/// The pace at which a body keeps its place: others should not wait for a slower one.
const HURRY: Pace = Pace { window: Duration::from_millis(100), least_bytes: 64 << 10 };

impl Source {
    /// The source of a request with these extensions.
    pub(super) fn of(extensions: &Extensions) -> Self {
        let identity = extensions.get::<Identity>();
        let tenant = identity.map(|identity| identity.tenant.as_ref().unwrap_or(&identity.name));
        let peer = extensions.get::<Arc<Peer>>().cloned().unwrap_or_default();
        let tenant = tenant.cloned().unwrap_or_default();
        Self { requester: Requester { tenant, connection: peer.number() }, peer }
    }
}

impl Pace {
    /// A pace of `bytes_per_second`, over five seconds or, if that is shorter, over `patience`.
    pub(super) fn new(bytes_per_second: usize, patience: Duration) -> Self {
        let window = patience.min(WINDOW);
        let millis = usize::try_from(window.as_millis()).unwrap_or(usize::MAX);
        let least_bytes = (bytes_per_second.saturating_mul(millis) / 1000).max(1);
        Self { window, least_bytes }
    }
}

impl<'b> Arrival<'b> {
    /// The arrival of a body that has not been read yet.
    pub(super) fn new(body: &'b mut Body, source: &Source, pace: Pace) -> Self {
        let Source { requester, peer } = source.clone();
        let (pace, hurry) = (PaceCheck::new(pace), PaceCheck::new(HURRY));
        Self { body, pace, hurry, large: None, peer, requester }
    }

    /// Waits for the next bytes of the body; `None` at its end. A slow body loses its place and continues without one.
    pub(super) async fn next(
        &mut self,
        place: &mut Option<Grant>,
    ) -> Result<Option<Bytes>, Failure> {
        poll_fn(|context| {
            loop {
                let frame = match Pin::new(&mut *self.body).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => frame,
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Failure::Broken)),
                    Poll::Ready(None) => return Poll::Ready(Ok(None)),
                    Poll::Pending => break,
                };
                match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Poll::Ready(self.came(data).map(Some)),
                    Ok(_) | Err(_) => {}
                }
            }
            if self.large.as_mut().is_some_and(|large| large.is_displaced(context)) {
                return Poll::Ready(Err(Failure::Displaced));
            }
            if place.is_some() && self.hurry.is_late(context) {
                *place = None;
            }
            if self.pace.is_late(context) {
                self.peer.stalled();
                return Poll::Ready(Err(Failure::Slow));
            }
            Poll::Pending
        })
        .await
    }

    /// Counts the body among the larger ones. The measurement of its pace restarts, as it was not read while it waited for its
    /// place.
    pub(super) fn goes_on(
        &mut self,
        came_bytes: usize,
        arrivals: &Arc<Arrivals>,
    ) -> Result<(), Failure> {
        (self.pace.timer, self.hurry.timer) = (None, None);
        let large = arrivals.enter(self.requester.clone());
        large.grow(came_bytes)?;
        self.large = Some(large);
        Ok(())
    }

    fn came(&mut self, data: Bytes) -> Result<Bytes, Failure> {
        self.pace.came_bytes += data.len();
        self.hurry.came_bytes += data.len();
        if let Some(large) = &self.large {
            large.grow(data.len())?;
        }
        Ok(data)
    }
}

impl PaceCheck {
    fn new(pace: Pace) -> Self {
        Self { pace, came_bytes: 0, timer: None }
    }

    /// Whether fewer bytes arrived in a window than the pace demands; called while there is nothing to read.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let window = self.pace.window;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(window)));
        while timer.as_mut().poll(context).is_ready() {
            if self.came_bytes < self.pace.least_bytes {
                return true;
            }
            self.came_bytes = 0;
            // The next window begins now, however late the timer was noticed.
            timer.as_mut().set(sleep(window));
        }
        false
    }
}

impl Arrivals {
    /// Room of `max_bytes` for larger bodies.
    pub(super) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { max_bytes, held: Mutex::default() })
    }

    fn enter(self: &Arc<Self>, requester: Requester) -> Large {
        let (sender, displaced) = oneshot::channel();
        let mut held = self.held();
        let number = held.next;
        held.next += 1;
        held.bodies.insert(number, OpenBody { requester, bytes: 0, _displaced: sender });
        Large { arrivals: Arc::clone(self), number, displaced }
    }

    fn held(&self) -> MutexGuard<'_, OpenBodies> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenBodies {
    /// The largest body of the connection that holds most, of the tenant that holds most.
    fn most(&self) -> Option<u64> {
        let mut tenants: BTreeMap<&str, (usize, BTreeMap<u64, usize>)> = BTreeMap::new();
        for OpenBody { requester, bytes, .. } in self.bodies.values() {
            let (all, connections) = tenants.entry(&requester.tenant).or_default();
            *all += bytes;
            *connections.entry(requester.connection).or_default() += bytes;
        }
        let (tenant, (_, connections)) = tenants.iter().max_by_key(|(_, (bytes, _))| *bytes)?;
        let (connection, _) = connections.iter().max_by_key(|(_, bytes)| **bytes)?;
        let of = |share: &OpenBody| {
            *share.requester.tenant == **tenant && share.requester.connection == *connection
        };
        let bodies = self.bodies.iter().filter(|(_, share)| of(share));
        bodies.max_by_key(|(_, share)| share.bytes).map(|(number, _)| *number)
    }

    fn leave(&mut self, number: u64) {
        if let Some(share) = self.bodies.remove(&number) {
            self.bytes -= share.bytes;
        }
    }
}

impl Large {
    /// Takes room for more bytes. If there is none, the largest body of the connection that holds most is displaced, which may be
    /// this one.
    fn grow(&self, bytes: usize) -> Result<(), Failure> {
        let mut held = self.arrivals.held();
        let share = held.bodies.get_mut(&self.number).ok_or(Failure::Displaced)?;
        share.bytes += bytes;
        held.bytes += bytes;
        while held.bytes > self.arrivals.max_bytes {
            let Some(most) = held.most() else { break };
            held.leave(most);
        }
        held.bodies.contains_key(&self.number).then_some(()).ok_or(Failure::Displaced)
    }

    fn is_displaced(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.displaced).poll(context).is_ready()
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.arrivals.held().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requester(tenant: &str, connection: u64) -> Requester {
        Requester { tenant: tenant.into(), connection }
    }

    #[test]
    fn who_holds_most_makes_room() {
        let arrivals = Arrivals::new(100);
        let [first, second] = [30, 20].map(|bytes| {
            let large = arrivals.enter(requester("a", 1));
            large.grow(bytes).unwrap();
            large
        });
        let other = arrivals.enter(requester("a", 2));
        other.grow(40).unwrap();
        let slow = arrivals.enter(requester("b", 3));
        slow.grow(10).unwrap();
        // Its tenant holds most, and its connection holds most of that.
        slow.grow(10).unwrap();
        assert_eq!(first.grow(1), Err(Failure::Displaced));
        for large in [&second, &other, &slow] {
            large.grow(0).unwrap();
        }
        assert_eq!(other.grow(100), Err(Failure::Displaced));
        drop((first, second, other, slow));
        let held = arrivals.held();
        assert_eq!((held.bytes, held.bodies.len()), (0, 0));
    }

    #[test]
    fn a_pace_is_over_five_seconds_or_less() {
        let pace = Pace::new(4096, Duration::from_secs(30));
        assert_eq!((pace.window, pace.least_bytes), (WINDOW, 20_480));
        let pace = Pace::new(4096, Duration::from_millis(50));
        assert_eq!((pace.window, pace.least_bytes), (Duration::from_millis(50), 204));
        assert_eq!(Pace::new(0, Duration::from_secs(30)).least_bytes, 1);
    }
}
