//! Sends the parts of a decoded batch to the shards, and waits for their acknowledgements.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;

use super::durable::{Answers, Durable, section};
use super::tasks::{ShardBatch, ToAgents, ToAssemble, ToSessions};
use crate::engine::assemble::{Input, Learned};
use crate::engine::facts::Barrier;
use crate::engine::resolve::ResponseIndex;
use crate::engine::route::{Route, Takers};
use crate::engine::span::{Report, Span, Timestamp};
use crate::ingest::{Batch, LeftOut, Overloaded, Sink};
use crate::store::{Kind, Record, Section};

/// When a refused sender should retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Splits batches by shard. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    pub(super) route: Route,
    pub(super) assemble: Vec<mpsc::Sender<ToAssemble>>,
    pub(super) sessions: Vec<mpsc::Sender<ToSessions>>,
    pub(super) agents: mpsc::Sender<ToAgents>,
    pub(super) resolve: Arc<Mutex<ResponseIndex>>,
    /// Read by a batch on its way to the shards, written while a snapshot begins. So a report that was taken out of `resolve` is
    /// either still in its saved state, or ahead of the barrier. A batch takes it before it has a place in any channel, and the
    /// barrier needs places: a holder of a place never waits for a task that needs one.
    pub(super) on_the_way: Arc<tokio::sync::RwLock<()>>,
    /// What the assemble tasks have learned.
    pub(super) learned: Arc<RwLock<Learned>>,
    pub(super) durable: Option<Durable>,
}

/// A sink before the stages start: until it is opened, batches are refused with a time to retry after.
#[derive(Clone, Default)]
pub(super) struct LateRouter {
    router: Arc<OnceLock<Router>>,
}

impl LateRouter {
    /// Opens it: batches go to this router.
    pub(super) fn open(&self, router: Router) {
        // It is opened once.
        let _ = self.router.set(router);
    }
}

impl Sink for LateRouter {
    fn keeps_log(&self) -> bool {
        self.router.get().is_some_and(Router::keeps_log)
    }

    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        match self.router.get() {
            Some(router) => router.submit(batch).await,
            None => Err(Overloaded::after(RETRY_AFTER)),
        }
    }
}

impl Sink for Router {
    fn keeps_log(&self) -> bool {
        self.durable.is_some()
    }

    /// Refuses the batch before any shard has a part of it if a channel that it needs is full. Otherwise, every shard has applied
    /// its part, and forwarded the results, when this returns. If a log is kept, the batch is in it before any shard has a part.
    async fn submit(&self, batch: Batch) -> Result<LeftOut, Overloaded> {
        let now = batch.arrival;
        let items = batch.spans.len() + batch.logs.len();
        let record = self.durable.as_ref().and_then(|durable| Some((durable, record(&batch)?)));
        let mut parts: Vec<ShardBatch> = self.assemble.iter().map(|_| Default::default()).collect();
        for (shard, spans) in self.route.spans(&batch.spans) {
            parts[shard].spans = spans;
        }
        let mut put = |trace, input| parts[self.route.trace(trace)].inputs.push(input);
        for log in batch.logs {
            put(log.trace_id, Input::Log(Box::new(log)));
        }
        for reply in batch.judged {
            put(reply.trace.id, Input::Judged(Box::new(reply)));
        }
        for (trace, embedded) in batch.embedded {
            put(trace.id, Input::Embedded(trace, embedded));
        }
        let on_the_way = self.on_the_way.read().await;
        let permits = self.reserve(&parts)?;
        let ticket = match record {
            Some((durable, record)) => Some(durable.append(record, items).await?),
            None => None,
        };
        // There is room, and if a log is kept the batch is in it: from here on it is not refused for want of room.
        for report in self.resolved(&batch.spans, batch.reports, now) {
            let Takers { assemble, sessions, agents } = self.route.report(&report);
            for shard in sessions {
                // A closed channel means that the daemon is stopping; the batch is not acknowledged.
                let word = ToSessions::Report(None, Box::new(report.clone()), now);
                let sent = self.sessions[shard].send(word).await;
                sent.map_err(|_| Overloaded::after(RETRY_AFTER))?;
            }
            if agents {
                let sent = self.agents.send(ToAgents::Report(Box::new(report), now)).await;
                sent.map_err(|_| Overloaded::after(RETRY_AFTER))?;
            } else if let Some(shard) = assemble {
                parts[shard].inputs.push(Input::Report(Box::new(report)));
            }
        }
        let spans = Arc::new(batch.spans);
        let applied = self.hand_on(&spans, parts, permits, now).await?;
        drop(on_the_way);
        let mut left_out = LeftOut::default();
        for acknowledged in applied {
            let own = acknowledged.await.map_err(|_| Overloaded::after(RETRY_AFTER))?;
            left_out = left_out.and(own);
        }
        // A shard may hold them until its next drain.
        Arc::into_inner(spans).into_iter().for_each(|spans| batch.rooms.give_back(spans));
        if let Some(ticket) = ticket {
            ticket.applied();
        }
        Ok(left_out)
    }
}

/// The record of a batch in the log; `None` if nothing of it is logged.
fn record(batch: &Batch) -> Option<Record> {
    let told = !(batch.spans.is_empty() && batch.logs.is_empty() && batch.reports.is_empty());
    let request = batch.request.as_ref().filter(|_| told);
    let (kind, payload) = match request {
        Some(request) => (Kind::Request, request.to_bytes()),
        None if batch.judged.is_empty() && batch.embedded.is_empty() => return None,
        None => (Kind::Judged, Answers::bytes(batch)?),
    };
    Some(Record { arrival: batch.arrival, kind, payload })
}

impl Router {
    /// Reserves a place in the channel of each shard that gets a part; fails, and takes none, if one is full.
    fn reserve(
        &self,
        parts: &[ShardBatch],
    ) -> Result<Vec<Option<OwnedPermit<ToAssemble>>>, Overloaded> {
        let place = |(shard, part): (&mpsc::Sender<_>, &ShardBatch)| {
            let place = (!part.is_empty()).then(|| shard.clone().try_reserve_owned());
            place.transpose().map_err(|_| Overloaded::after(RETRY_AFTER))
        };
        self.assemble.iter().zip(parts).map(place).collect()
    }

    /// The reports of a batch whose targets are known, and the earlier ones that waited for one of its
    /// response ids.
    fn resolved(&self, spans: &[Span], reports: Vec<Report>, now: Timestamp) -> Vec<Report> {
        let mut resolve = self.resolve.lock().unwrap_or_else(PoisonError::into_inner);
        resolve.handle_timeout(now);
        let mut known = Vec::new();
        for span in spans {
            if let Some(id) = span.model.as_ref().and_then(|model| model.response_id) {
                known.extend(resolve.seen(span.resource.tenant.as_deref(), id, span.trace_id, now));
            }
        }
        known.extend(reports.into_iter().filter_map(|report| resolve.report(report, now)));
        known
    }

    /// Returns a function that counts the messages waiting before each stage. It keeps no channel open.
    pub(super) fn queues(&self) -> impl Fn() -> Vec<(&'static str, usize)> + Send + Sync + 'static {
        let assemble: Vec<_> = self.assemble.iter().map(mpsc::Sender::downgrade).collect();
        let sessions: Vec<_> = self.sessions.iter().map(mpsc::Sender::downgrade).collect();
        let agents = [self.agents.downgrade()];
        move || {
            vec![
                ("assemble", waiting(&assemble)),
                ("sessions", waiting(&sessions)),
                ("agents", waiting(&agents)),
            ]
        }
    }

    /// Sends a barrier to every shard.
    pub(super) async fn barrier(&self, barrier: Barrier) -> Result<(), Overloaded> {
        for shard in &self.assemble {
            let sent = shard.send(ToAssemble::Barrier(barrier)).await;
            sent.map_err(|_| Overloaded::after(RETRY_AFTER))?;
        }
        Ok(())
    }

    /// The section of the reports that wait for their response ids.
    pub(super) fn saved_resolve(&self) -> Option<Section> {
        let resolve = self.resolve.lock().unwrap_or_else(PoisonError::into_inner);
        section("resolve".to_owned(), &*resolve)
    }

    /// The section of what the assemble tasks have learned.
    pub(super) fn saved_learned(&self) -> Option<Section> {
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        section("learned".to_owned(), &learned.save())
    }

    /// Sends every shard its part; each reports what it left out, once it has applied it.
    async fn hand_on(
        &self,
        spans: &Arc<Vec<Span>>,
        parts: Vec<ShardBatch>,
        permits: Vec<Option<OwnedPermit<ToAssemble>>>,
        now: Timestamp,
    ) -> Result<Vec<oneshot::Receiver<LeftOut>>, Overloaded> {
        let mut applied = Vec::with_capacity(parts.len());
        for ((shard, share), permit) in self.assemble.iter().zip(parts).zip(permits) {
            if share.is_empty() {
                continue;
            }
            let (acknowledge, acknowledged) = oneshot::channel();
            let message = ToAssemble::Inputs { spans: Arc::clone(spans), share, now, acknowledge };
            match permit {
                Some(permit) => drop(permit.send(message)),
                // This shard gets only reports, so no place was reserved: wait for room, as all other parts have theirs.
                None => {
                    shard.send(message).await.map_err(|_| Overloaded::after(RETRY_AFTER))?;
                }
            }
            applied.push(acknowledged);
        }
        Ok(applied)
    }
}

/// The number of messages in these channels, including reserved places.
fn waiting<M>(channels: &[mpsc::WeakSender<M>]) -> usize {
    let open = channels.iter().filter_map(mpsc::WeakSender::upgrade);
    open.map(|channel| channel.max_capacity() - channel.capacity()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_waits_is_counted_and_keeps_no_channel_open() {
        let (sender, mut inbox) = mpsc::channel(4);
        let (other, _other_inbox) = mpsc::channel(4);
        let channels = [sender.downgrade(), other.downgrade()];
        assert_eq!(waiting(&channels), 0);
        sender.send(1).await.unwrap();
        sender.send(2).await.unwrap();
        other.send(3).await.unwrap();
        assert_eq!(waiting(&channels), 3);
        inbox.recv().await.unwrap();
        assert_eq!(waiting(&channels), 2);
        drop(sender);
        assert_eq!(waiting(&channels), 1);
        assert_eq!((inbox.recv().await, inbox.recv().await), (Some(2), None));
    }
}
