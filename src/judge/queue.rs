//! The queue from the engine to the judge, which the engine never waits for. A trace without room is counted and not judged.
//! Tenants share the room and the judge's time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::meter::Meter;
use super::options::JudgeOptions;
use super::pace::JudgeThroughput;
use crate::engine::judging::{JudgeAvailability, JudgeRequest};
use crate::engine::span::Timestamp;
use crate::engine::tenants::Shares;
use crate::tenant_queue::{self, Excess, TenantQueue, lock};

/// The engine's end of the queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    lines: Arc<Mutex<TenantQueue<Waiting>>>,
    // Signalled when a trace waits; once all clones are dropped, no more traces come.
    wake: mpsc::Sender<()>,
    pending: Arc<AtomicUsize>,
    max_queue: usize,
    max_pending_bytes: usize,
    deadline: Duration,
    meter: Arc<Meter>,
    pace: Arc<Mutex<JudgeThroughput>>,
    // Whether the queue was full and has not gone below three quarters since.
    was_full: Arc<AtomicBool>,
}

/// The judge's end of the queue.
#[derive(Debug)]
pub struct Inbox {
    lines: Arc<Mutex<TenantQueue<Waiting>>>,
    woken: mpsc::Receiver<()>,
    pub(super) meter: Arc<Meter>,
    pub(super) pace: Arc<Mutex<JudgeThroughput>>,
}

/// How long the judge counts as unavailable after a trace found it so.
const AWAY_HOLDS: Duration = Duration::from_secs(5);

/// A trace that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: JudgeRequest,
    /// The deadline; scores that are missing then stay absent.
    pub(super) due: Timestamp,
    /// Why its texts were not read, in which case it is not judged.
    pub(super) left: Option<&'static str>,
    /// The bytes that it holds, which are returned when the trace has been judged.
    pub(super) share: HeldBytes,
}

/// Bytes held by one trace.
#[derive(Debug)]
pub(super) struct HeldBytes {
    bytes: usize,
    pending: Arc<AtomicUsize>,
    meter: Arc<Meter>,
}

/// Makes both ends of a queue as long as the options say; without room, the shares decide which trace is dropped.
pub fn queue(options: &JudgeOptions, meter: Meter, shares: Shares) -> (Handle, Inbox) {
    let meter = Arc::new(meter);
    let (wake, woken) = mpsc::channel(1);
    let handle = Handle {
        lines: Arc::new(Mutex::new(TenantQueue::new(shares))),
        wake,
        pending: Arc::default(),
        max_queue: options.max_queue.max(1),
        max_pending_bytes: options.max_pending_bytes,
        deadline: options.deadline,
        meter: meter.clone(),
        pace: Arc::new(Mutex::new(JudgeThroughput::new(options))),
        was_full: Arc::default(),
    };
    let (lines, pace) = (handle.lines.clone(), handle.pace.clone());
    (handle, Inbox { lines, woken, meter, pace })
}

impl Handle {
    /// Whether traces are read for the judge at `now`. Once as many wait as can be judged in time, no more are read until a quarter
    /// of these is judged: most traces that begin before would find the queue full. Meanwhile tenants with less than their share
    /// are read.
    pub fn attention(&self, now: Timestamp) -> JudgeAvailability {
        let (away, max_useful) = {
            let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            (why_away(&pace, now), pace.max_useful(now))
        };
        if away.is_some() {
            return JudgeAvailability::Away;
        }
        let lines = lock(&self.lines);
        let most = self.max_queue.min(max_useful);
        let bytes = self.pending.load(Ordering::Relaxed);
        let fills = |of: usize, most: usize| (of >= most, of < most - most / 4);
        let filled = [fills(lines.len(), most), fills(bytes, self.max_pending_bytes)];
        let full = filled.iter().any(|(full, _)| *full);
        let short = filled.iter().all(|(_, short)| *short);
        let was_full = full || (!short && self.was_full.load(Ordering::Relaxed));
        self.was_full.store(was_full, Ordering::Relaxed);
        if was_full {
            JudgeAvailability::Full(Arc::new(lines.over(most, self.max_pending_bytes)))
        } else {
            JudgeAvailability::Available
        }
    }

    /// Hands over a trace that was done at `now`. Without room, drops the newest trace of the tenant that holds the most relative
    /// to its share.
    pub fn offer(&self, request: JudgeRequest, now: Timestamp) {
        let left = self.away(now).filter(|_| request.unread);
        if request.unread && left.is_none() {
            // Its texts were not read because the queue was full, or because the judge was unavailable and is back.
            return self.meter.dropped("unread");
        }
        if self.wake.is_closed() {
            return self.meter.dropped("stopped");
        }
        let share = HeldBytes::new(request.bytes(), &self.pending, &self.meter);
        let (tenant, due) = (request.trace().tenant, now.after(self.deadline));
        let mut lines = lock(&self.lines);
        let bytes = share.bytes;
        lines.put(tenant, Waiting { request, due, left, share }, bytes);
        self.meter.waiting.inc();
        while self.pending.load(Ordering::Relaxed) > self.max_pending_bytes
            && lines.evict_last(Excess::Bytes).is_some()
        {
            self.pushed_out("memory");
        }
        while lines.len() > self.max_queue && lines.evict_last(Excess::Items).is_some() {
            self.pushed_out("queue_full");
        }
        drop(lines);
        // Fails if a signal is already pending.
        let _ = self.wake.try_send(());
    }

    fn pushed_out(&self, why: &'static str) {
        self.meter.waiting.dec();
        self.meter.dropped(why);
    }

    fn away(&self, now: Timestamp) -> Option<&'static str> {
        why_away(&self.pace.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}

/// Why the judge is unavailable; `None` if that was last noticed at least `AWAY_HOLDS` ago, as it may be back.
fn why_away(pace: &JudgeThroughput, now: Timestamp) -> Option<&'static str> {
    pace.away.filter(|(_, at)| now < at.after(AWAY_HOLDS)).map(|(why, _)| why)
}

impl Inbox {
    /// Waits for the next trace; `None` when the engine's end is dropped.
    pub(super) async fn next(&mut self) -> Option<Waiting> {
        let waiting = tenant_queue::next(&self.lines, &mut self.woken).await?;
        self.meter.waiting.dec();
        Some(waiting)
    }
}

impl HeldBytes {
    fn new(bytes: usize, pending: &Arc<AtomicUsize>, meter: &Arc<Meter>) -> Self {
        let total = pending.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        meter.pending_bytes.set(i64::try_from(total).unwrap_or(i64::MAX));
        Self { bytes, pending: pending.clone(), meter: meter.clone() }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let before = self.pending.fetch_sub(self.bytes, Ordering::Relaxed);
        let left = before.saturating_sub(self.bytes);
        self.meter.pending_bytes.set(i64::try_from(left).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tenants::tenant_hash;
    use crate::engine::trace::Transcript;

    fn request(bytes: usize) -> JudgeRequest {
        let transcript = Transcript { input: Some("x".repeat(bytes)), ..Transcript::default() };
        JudgeRequest { transcript, ..JudgeRequest::default() }
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_goes() {
        let registry = crate::registry::Registry::new();
        let options =
            JudgeOptions { max_queue: 2, max_pending_bytes: 100, ..JudgeOptions::default() };
        let (handle, inbox) = queue(&options, Meter::new(&registry).unwrap(), Shares::default());
        for bytes in [60, 60, 30, 1] {
            handle.offer(request(bytes), Timestamp(0));
        }
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            "agentgauge_judge_dropped_total{reason=\"memory\"} 1\n",
            "agentgauge_judge_dropped_total{reason=\"queue_full\"} 1\n",
            "agentgauge_judge_pending_bytes 90\n",
            "agentgauge_judge_queue_traces 2\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        drop(lock(&inbox.lines).take().unwrap());
        handle.offer(request(60), Timestamp(0));
        assert_eq!(lock(&inbox.lines).len(), 2);
    }

    #[test]
    fn nothing_is_read_for_a_judge_that_is_away_or_has_no_room() {
        let registry = crate::registry::Registry::new();
        let options = JudgeOptions { max_queue: 2, ..JudgeOptions::default() };
        let (handle, inbox) = queue(&options, Meter::new(&registry).unwrap(), Shares::default());
        let (now, later) = (Timestamp(0), Timestamp(0).after(AWAY_HOLDS));
        assert_eq!(handle.attention(now), JudgeAvailability::Available);
        inbox.pace.lock().unwrap().away = Some(("endpoint_down", now));
        assert_eq!(handle.attention(now), JudgeAvailability::Away);
        let unread = JudgeRequest { unread: true, ..JudgeRequest::default() };
        handle.offer(unread.clone(), now);
        assert_eq!(lock(&inbox.lines).take().unwrap().left, Some("endpoint_down"));
        assert_eq!(
            handle.attention(later),
            JudgeAvailability::Available,
            "nobody has said so since"
        );
        handle.offer(request(1), later);
        handle.offer(request(1), later);
        assert!(!handle.attention(later).reads(0));
        handle.offer(unread, later);
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(text.contains("agentgauge_judge_dropped_total{reason=\"unread\"} 1\n"), "{text}");
    }

    #[test]
    fn a_judge_with_enough_to_do_reads_again_when_it_is_nearly_short_of_it() {
        let registry = crate::registry::Registry::new();
        let options = JudgeOptions { max_queue: 8, ..JudgeOptions::default() };
        let (handle, inbox) = queue(&options, Meter::new(&registry).unwrap(), Shares::default());
        let now = Timestamp(0);
        for waits in 0..8 {
            assert_eq!(handle.attention(now), JudgeAvailability::Available, "{waits} wait");
            handle.offer(request(1), now);
        }
        for waits in [8, 7, 6] {
            assert!(!handle.attention(now).reads(0), "{waits} wait");
            lock(&inbox.lines).take().unwrap();
        }
        assert_eq!(handle.attention(now), JudgeAvailability::Available);
        // Five wait, and a trace takes a whole deadline: the judge has more than it can do.
        inbox.pace.lock().unwrap().begin(now);
        assert!(!handle.attention(now.after(options.deadline)).reads(0));
    }

    #[test]
    fn a_tenant_that_floods_the_queue_takes_neither_room_nor_turns_of_another() {
        let registry = crate::registry::Registry::new();
        let options =
            JudgeOptions { max_queue: 8, max_pending_bytes: 1_000, ..JudgeOptions::default() };
        let shares = Shares::default();
        let (handle, inbox) = queue(&options, Meter::new(&registry).unwrap(), shares);
        let [flood, quiet] = ["flood", "quiet"].map(|tenant| tenant_hash(Some(tenant)));
        let of = |tenant: &str, bytes| {
            let request = request(bytes);
            let agent = request.agent.with(|parts| parts.tenant = tenant.into());
            JudgeRequest { agent, ..request }
        };
        let now = Timestamp(0);
        (0..100).for_each(|_| handle.offer(of("flood", 1), now));
        let attention = handle.attention(now);
        assert!(!attention.reads(flood) && attention.reads(quiet), "{attention:?}");
        (0..3).for_each(|_| handle.offer(of("quiet", 200), now));
        (0..100).for_each(|_| handle.offer(of("flood", 300), now));
        let order: Vec<_> = std::iter::from_fn(|| lock(&inbox.lines).take()).collect();
        let whose: Vec<_> = order.iter().map(|one| &*one.request.agent.tenant).collect();
        assert_eq!(whose.iter().filter(|tenant| **tenant == "quiet").count(), 3);
        let last = whose.iter().rposition(|tenant| *tenant == "quiet");
        assert!(last < Some(6), "they take turns: {whose:?}");
        let bytes: usize = order.iter().map(|one| one.share.bytes).sum();
        assert!(order.len() <= 8 && bytes <= 1_000, "{whose:?}");
    }
}
