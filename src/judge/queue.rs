//! The way from the engine to the judge: it never waits. What there is no room for is counted and goes unjudged.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::meter::Meter;
use super::options::JudgeOptions;
use super::pace::Pace;
use crate::engine::judging::{Attention, JudgeRequest};
use crate::engine::span::Timestamp;

/// The engine's end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    sender: mpsc::Sender<Waiting>,
    pending: Arc<AtomicUsize>,
    max_pending_bytes: usize,
    deadline: Duration,
    meter: Arc<Meter>,
    pace: Arc<Mutex<Pace>>,
    // It has enough to do, and is not yet short of it.
    sated: Arc<AtomicBool>,
}

/// The judge's end.
#[derive(Debug)]
pub struct Inbox {
    pub(super) receiver: mpsc::Receiver<Waiting>,
    pub(super) meter: Arc<Meter>,
    pub(super) pace: Arc<Mutex<Pace>>,
}

/// How long it goes on that a judge was away; each trace that it is asked about says so anew.
const AWAY_HOLDS: Duration = Duration::from_secs(5);

/// A trace that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: JudgeRequest,
    /// What is not there by then stays absent.
    pub(super) due: Timestamp,
    /// Why it was not even read, if so: it is given up.
    pub(super) left: Option<&'static str>,
    /// Its share of the bytes that may be held, given back when the trace has been judged.
    pub(super) share: HeldBytes,
}

/// Bytes held by one trace.
#[derive(Debug)]
pub(super) struct HeldBytes {
    bytes: usize,
    pending: Arc<AtomicUsize>,
    meter: Arc<Meter>,
}

/// Both ends, as long as the options say.
pub fn queue(options: &JudgeOptions, meter: Meter) -> (Handle, Inbox) {
    let meter = Arc::new(meter);
    let (sender, receiver) = mpsc::channel(options.max_queue.max(1));
    let handle = Handle {
        sender,
        pending: Arc::default(),
        max_pending_bytes: options.max_pending_bytes,
        deadline: options.deadline,
        meter: meter.clone(),
        pace: Arc::new(Mutex::new(Pace::new(options))),
        sated: Arc::default(),
    };
    let pace = handle.pace.clone();
    (handle, Inbox { receiver, meter, pace })
}

impl Handle {
    /// Whether what is asked at `now` is read. Once as many wait as can be judged in time it is not before a quarter of them
    /// has gone: what begins until then would find the queue full for the most part.
    pub fn attention(&self, now: Timestamp) -> Attention {
        let (away, of_use) = {
            let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            (why_away(&pace, now), pace.of_use(now))
        };
        if away.is_some() {
            return Attention::Away;
        }
        let waiting = self.sender.max_capacity() - self.sender.capacity();
        let bytes = self.pending.load(Ordering::Relaxed);
        let fills = |of: usize, most: usize| (of >= most, of < most - most / 4);
        let filled = [
            fills(waiting, self.sender.max_capacity().min(of_use)),
            fills(bytes, self.max_pending_bytes),
        ];
        let full = filled.iter().any(|(full, _)| *full);
        let short = filled.iter().all(|(_, short)| *short);
        let sated = full || (!short && self.sated.load(Ordering::Relaxed));
        self.sated.store(sated, Ordering::Relaxed);
        if sated { Attention::Full } else { Attention::Reads }
    }

    /// Hands over a trace that was done at `now`, if there is room.
    pub fn offer(&self, request: JudgeRequest, now: Timestamp) {
        let left = self.away(now).filter(|_| request.unread);
        if request.unread && left.is_none() {
            // There is room again, or the judge is back.
            return self.meter.dropped("unread");
        }
        let bytes = request.bytes();
        let share = HeldBytes::new(bytes, &self.pending, &self.meter);
        if share.total() > self.max_pending_bytes {
            return self.meter.dropped("memory");
        }
        let due = now.after(self.deadline);
        match self.sender.try_send(Waiting { request, due, left, share }) {
            Ok(()) => self.meter.waiting.inc(),
            Err(mpsc::error::TrySendError::Full(_)) => self.meter.dropped("queue_full"),
            Err(mpsc::error::TrySendError::Closed(_)) => self.meter.dropped("stopped"),
        }
    }

    fn away(&self, now: Timestamp) -> Option<&'static str> {
        why_away(&self.pace.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}

/// Where little comes, what came last says nothing of what comes next.
fn why_away(pace: &Pace, now: Timestamp) -> Option<&'static str> {
    pace.away.filter(|(_, at)| now < at.after(AWAY_HOLDS)).map(|(why, _)| why)
}

impl Inbox {
    /// The next trace; `None` when the engine has gone.
    pub(super) async fn next(&mut self) -> Option<Waiting> {
        let waiting = self.receiver.recv().await?;
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

    fn total(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
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
    use crate::engine::trace::Transcript;

    fn request(bytes: usize) -> JudgeRequest {
        let transcript = Transcript { input: Some("x".repeat(bytes)), ..Transcript::default() };
        JudgeRequest { transcript, ..JudgeRequest::default() }
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_goes() {
        let registry = prometheus::Registry::new();
        let options =
            JudgeOptions { max_queue: 2, max_pending_bytes: 100, ..JudgeOptions::default() };
        let (handle, mut inbox) = queue(&options, Meter::new(&registry).unwrap());
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
        drop(inbox.receiver.try_recv().unwrap());
        handle.offer(request(60), Timestamp(0));
        assert_eq!(inbox.receiver.len(), 2);
    }

    #[test]
    fn nothing_is_read_for_a_judge_that_is_away_or_has_no_room() {
        let registry = prometheus::Registry::new();
        let options = JudgeOptions { max_queue: 2, ..JudgeOptions::default() };
        let (handle, mut inbox) = queue(&options, Meter::new(&registry).unwrap());
        let (now, later) = (Timestamp(0), Timestamp(0).after(AWAY_HOLDS));
        assert_eq!(handle.attention(now), Attention::Reads);
        inbox.pace.lock().unwrap().away = Some(("endpoint_down", now));
        assert_eq!(handle.attention(now), Attention::Away);
        let unread = JudgeRequest { unread: true, ..JudgeRequest::default() };
        handle.offer(unread.clone(), now);
        assert_eq!(inbox.receiver.try_recv().unwrap().left, Some("endpoint_down"));
        assert_eq!(handle.attention(later), Attention::Reads, "nobody has said so since");
        handle.offer(request(1), later);
        handle.offer(request(1), later);
        assert_eq!(handle.attention(later), Attention::Full);
        handle.offer(unread, later);
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(text.contains("agentgauge_judge_dropped_total{reason=\"unread\"} 1\n"), "{text}");
    }

    #[test]
    fn a_judge_with_enough_to_do_reads_again_when_it_is_nearly_short_of_it() {
        let registry = prometheus::Registry::new();
        let options = JudgeOptions { max_queue: 8, ..JudgeOptions::default() };
        let (handle, mut inbox) = queue(&options, Meter::new(&registry).unwrap());
        let now = Timestamp(0);
        for waits in 0..8 {
            assert_eq!(handle.attention(now), Attention::Reads, "{waits} wait");
            handle.offer(request(1), now);
        }
        for waits in [8, 7, 6] {
            assert_eq!(handle.attention(now), Attention::Full, "{waits} wait");
            inbox.receiver.try_recv().unwrap();
        }
        assert_eq!(handle.attention(now), Attention::Reads);
        // Five wait, and a trace takes a whole deadline: the judge has more than it can do.
        inbox.pace.lock().unwrap().begin(now);
        assert_eq!(handle.attention(now.after(options.deadline)), Attention::Full);
    }
}
