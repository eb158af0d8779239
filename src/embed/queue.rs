//! The queue from the engine to the embedding model, which the engine never waits for. Tenants share its room and take turns; texts
//! without room are counted and not embedded.

use std::sync::{Arc, Mutex};

use prometheus::IntCounterVec;
use tokio::sync::mpsc;

use super::outcomes;
use crate::engine::embedding::EmbedRequest;
use crate::engine::tenants::Shares;
use crate::registry::Registry;
use crate::tenant_queue::{self, Excess, TenantQueue, lock};

/// The engine's end of the queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    lines: Arc<Mutex<TenantQueue<EmbedRequest>>>,
    // Signalled when a trace waits; once all clones are dropped, no more traces come.
    wake: mpsc::Sender<()>,
    max_queue: usize,
    texts: IntCounterVec,
}

/// The model's end of the queue.
#[derive(Debug)]
pub struct Inbox {
    lines: Arc<Mutex<TenantQueue<EmbedRequest>>>,
    woken: mpsc::Receiver<()>,
    pub(super) texts: IntCounterVec,
}

/// Makes both ends of a queue of at most `max_queue` traces, for tenants with these shares.
///
/// # Errors
///
/// Fails if its metrics exist already.
pub fn queue(
    max_queue: usize,
    shares: Shares,
    registry: &Registry,
) -> Result<(Handle, Inbox), prometheus::Error> {
    let texts = outcomes(registry)?;
    let lines = Arc::new(Mutex::new(TenantQueue::new(shares)));
    let (wake, woken) = mpsc::channel(1);
    let inbox = Inbox { lines: Arc::clone(&lines), woken, texts: texts.clone() };
    Ok((Handle { lines, wake, max_queue: max_queue.max(1), texts }, inbox))
}

impl Handle {
    /// Hands over the texts of a trace. Without room, drops the newest trace of the tenant that holds the most relative to its
    /// share.
    pub fn offer(&self, request: EmbedRequest) {
        let mut lines = lock(&self.lines);
        let bytes =
            [&request.input, &request.output].map(|text| text.as_ref().map_or(0, String::len));
        lines.put(request.trace.tenant, request, bytes.iter().sum());
        let dropped = self.wake.is_closed() || lines.len() > self.max_queue;
        if dropped && lines.evict_last(Excess::Items).is_some() {
            self.texts.with_label_values(&["dropped"]).inc();
        }
        drop(lines);
        // Fails if a signal is already pending.
        let _ = self.wake.try_send(());
    }
}

impl Inbox {
    /// Waits for traces and takes those that wait, up to `most`; none when the engine's end is dropped.
    pub(super) async fn next(&mut self, most: usize) -> Vec<EmbedRequest> {
        let first = tenant_queue::next(&self.lines, &mut self.woken).await;
        let mut lines = lock(&self.lines);
        first.into_iter().chain(std::iter::from_fn(|| lines.take())).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::facts::Content;
    use crate::engine::span::TraceId;
    use crate::engine::tenants::{TraceKey, tenant_hash};

    #[test]
    fn a_tenant_that_floods_the_queue_takes_neither_room_nor_turns_of_another() {
        let registry = Registry::new();
        let (handle, inbox) = queue(8, Shares::default(), &registry).unwrap();
        let [flood, quiet] = ["flood", "quiet"].map(|tenant| tenant_hash(Some(tenant)));
        let content = Content { output: Some(Arc::from("x")), ..Content::default() };
        let of = |tenant| {
            let trace = TraceKey { id: TraceId([1; 16]), tenant };
            EmbedRequest::new(trace, &content, 100).unwrap()
        };
        (0..100).for_each(|_| handle.offer(of(flood)));
        (0..3).for_each(|_| handle.offer(of(quiet)));
        (0..100).for_each(|_| handle.offer(of(flood)));
        let order = std::iter::from_fn(|| lock(&inbox.lines).take());
        let whose: Vec<_> = order.map(|request| request.trace.tenant).collect();
        assert_eq!((whose.len(), whose.iter().filter(|tenant| **tenant == quiet).count()), (8, 3));
        let last = whose.iter().rposition(|tenant| *tenant == quiet);
        assert!(last < Some(6), "they take turns: {whose:?}");
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let dropped = "agentgauge_embed_texts_total{outcome=\"dropped\"} 195\n";
        assert!(text.contains(dropped), "{text}");
    }
}
