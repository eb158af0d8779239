//! The way from the engine to the judge: it never waits. What there is no room for is counted and goes unjudged.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use super::meter::Meter;
use super::options::JudgeOptions;
use crate::engine::judging::JudgeRequest;
use crate::engine::span::Timestamp;

/// The engine's end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    sender: mpsc::Sender<Waiting>,
    pending: Arc<AtomicUsize>,
    max_pending_bytes: usize,
    deadline: std::time::Duration,
    meter: Arc<Meter>,
    away: Away,
}

/// Why no call would go out, if none would.
pub(super) type Away = Arc<Mutex<Option<&'static str>>>;

/// The judge's end.
#[derive(Debug)]
pub struct Inbox {
    pub(super) receiver: mpsc::Receiver<Waiting>,
    pub(super) meter: Arc<Meter>,
    pub(super) away: Away,
}

/// A trace that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: JudgeRequest,
    /// What is not there by then stays absent.
    pub(super) due: Timestamp,
    /// Why it was not even read, if so: it is given up.
    pub(super) left: Option<&'static str>,
    /// Its share of the bytes that may be held, given back when the trace has been judged.
    pub(super) share: Share,
}

/// Bytes held by one trace.
#[derive(Debug)]
pub(super) struct Share {
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
        away: Arc::default(),
    };
    let away = handle.away.clone();
    (handle, Inbox { receiver, meter, away })
}

impl Handle {
    /// Whether what a trace says would be read: there is room, and calls go out.
    pub fn reads(&self) -> bool {
        let bytes = self.pending.load(Ordering::Relaxed);
        let room = self.sender.capacity() > 0 && bytes < self.max_pending_bytes;
        room && self.away().is_none()
    }

    /// Hands over a trace that was done at `now`, if there is room.
    pub fn offer(&self, request: JudgeRequest, now: Timestamp) {
        let left = self.away().filter(|_| request.unread);
        if request.unread && left.is_none() {
            // There was no room when it was asked about.
            return self.meter.dropped("queue_full");
        }
        let bytes = request.bytes();
        let share = Share::new(bytes, &self.pending, &self.meter);
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

    fn away(&self) -> Option<&'static str> {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// The next trace; `None` when the engine has gone.
    pub(super) async fn next(&mut self) -> Option<Waiting> {
        let waiting = self.receiver.recv().await?;
        self.meter.waiting.dec();
        Some(waiting)
    }
}

impl Share {
    fn new(bytes: usize, pending: &Arc<AtomicUsize>, meter: &Arc<Meter>) -> Self {
        let total = pending.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        meter.pending_bytes.set(i64::try_from(total).unwrap_or(i64::MAX));
        Self { bytes, pending: pending.clone(), meter: meter.clone() }
    }

    fn total(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
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
        assert!(handle.reads());
        *inbox.away.lock().unwrap() = Some("endpoint_down");
        assert!(!handle.reads());
        let unread = JudgeRequest { unread: true, ..JudgeRequest::default() };
        handle.offer(unread.clone(), Timestamp(0));
        assert_eq!(inbox.receiver.try_recv().unwrap().left, Some("endpoint_down"));
        *inbox.away.lock().unwrap() = None;
        for _ in 0..2 {
            assert!(handle.reads());
            handle.offer(request(1), Timestamp(0));
        }
        assert!(!handle.reads());
        handle.offer(unread, Timestamp(0));
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(
            text.contains("agentgauge_judge_dropped_total{reason=\"queue_full\"} 1\n"),
            "{text}"
        );
    }
}
