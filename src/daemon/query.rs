//! Answers questions about sessions by asking the shards, a little at a time.

use std::collections::BTreeMap;
#[cfg(feature = "kafka")]
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::Check;
use super::router::Router;
#[cfg(feature = "kafka")]
use super::tasks;
use super::tasks::ToSessions;
use crate::engine::explained::TraceExplanation;
use crate::engine::route::Route;
#[cfg(feature = "kafka")]
use crate::engine::sessions::{Nowhere, Sessions};
use crate::engine::sessions::{Part, Sought};
use crate::engine::span::TraceId;
use crate::engine::view::SessionView;
use crate::export::query::{ListRequest, Listing, Query};
#[cfg(feature = "kafka")]
use crate::fleet::{self, Question};

/// Traces that a shard looks at for one message: what a question holds ingest up by at most.
const BUDGET: usize = 100;

/// Sessions that a shard looks into for a trace, likewise.
const LOOKS: usize = 200;

/// Between two messages of a question, so that what comes in goes first.
const PAUSE: Duration = Duration::from_millis(1);

/// The way to the shards.
#[derive(Clone, Default)]
pub struct SessionQuery {
    stages: Arc<OnceLock<Open>>,
}

/// Whom to ask, once there are stages.
struct Open {
    route: Route,
    shards: usize,
    way: Way,
    checks: Vec<Check>,
}

/// How a shard is asked.
enum Way {
    /// Each is a task of this process.
    Tasks(Vec<mpsc::Sender<ToSessions>>),
    /// A worker has some of them, others are with other instances; none: all are.
    #[cfg(feature = "kafka")]
    Worker(Option<SyncSender<Question>>),
}

impl SessionQuery {
    /// From here on there is something to be asked.
    pub(super) fn open(&self, router: &Router, checks: Vec<Check>) {
        let way = Way::Tasks(router.sessions.clone());
        let open = Open { route: router.route, shards: router.sessions.len(), way, checks };
        // Only the first time counts, and there is one.
        let _ = self.stages.set(open);
    }

    /// From here on a worker can be asked, if this instance has one that makes sessions.
    #[cfg(feature = "kafka")]
    pub(super) fn open_shared(&self, worker: Option<SyncSender<Question>>, checks: Vec<Check>) {
        let (route, shards) = fleet::shards();
        // Likewise.
        let _ = self.stages.set(Open { route, shards, way: Way::Worker(worker), checks });
    }

    fn shards(&self) -> usize {
        self.stages.get().map_or(0, |open| open.shards)
    }

    async fn ask<T>(
        &self,
        shard: usize,
        message: impl FnOnce(oneshot::Sender<T>) -> ToSessions,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let message = message(reply);
        match &self.stages.get()?.way {
            // Fails only while the daemon goes down.
            Way::Tasks(tasks) => tasks.get(shard)?.send(message).await.ok()?,
            #[cfg(feature = "kafka")]
            Way::Worker(worker) => {
                let question =
                    Box::new(move |stage: &Sessions| tasks::answer(stage, &Nowhere, message));
                worker.as_ref()?.try_send((u32::try_from(shard).ok()?, question)).ok()?;
            }
        }
        answer.await.ok()
    }

    async fn find(&self, tenant: &str, trace: TraceId) -> Option<String> {
        for shard in 0..self.shards() {
            let mut after = None;
            loop {
                let tenant = tenant.to_owned();
                let ask = |reply| ToSessions::Find { tenant, after, trace, budget: LOOKS, reply };
                let Some(Sought { session, next }) = self.ask(shard, ask).await else { break };
                if session.is_some() {
                    return session;
                }
                if next.is_none() {
                    break;
                }
                after = next;
                sleep(PAUSE).await;
            }
        }
        None
    }
}

impl Query for SessionQuery {
    async fn list(&self, request: ListRequest) -> Listing {
        let (mut best, mut total, mut partial) = (BTreeMap::new(), 0, false);
        let most = request.limit.saturating_add(request.offset);
        for shard in 0..self.shards() {
            let away = self.ask(shard, |reply| ToSessions::Away { reply }).await;
            partial |= away.is_some_and(|away| away > 0);
            let mut after = None;
            loop {
                let filter = request.filter.clone();
                let ask = |reply| ToSessions::Rows { after, filter, budget: BUDGET, reply };
                let Some(Part { rows, next }) = self.ask(shard, ask).await else {
                    partial = true;
                    break;
                };
                total += rows.len() as u64;
                for row in rows {
                    best.insert(request.sort.place(&row), row);
                    if best.len() > most {
                        best.pop_last();
                    }
                }
                if next.is_none() {
                    break;
                }
                after = next;
                sleep(PAUSE).await;
            }
        }
        Listing { rows: best.into_values().skip(request.offset).collect(), total, partial }
    }

    async fn session(&self, tenant: &str, id: &str) -> Option<SessionView> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        let shard = self.stages.get()?.route.session(&tenant, &id);
        self.ask(shard, |reply| ToSessions::One { tenant, id, reply }).await.flatten()
    }

    async fn explain(
        &self,
        tenant: &str,
        session: Option<&str>,
        trace: TraceId,
    ) -> Option<TraceExplanation> {
        let id = match session {
            Some(id) => id.to_owned(),
            None => self.find(tenant, trace).await?,
        };
        let (shard, tenant) = (self.stages.get()?.route.session(tenant, &id), tenant.to_owned());
        let ask = |reply| ToSessions::Explain { tenant, id, trace, reply };
        self.ask(shard, ask).await.flatten().map(|explanation| *explanation)
    }

    fn ready(&self) -> Result<(), String> {
        let Some(open) = self.stages.get() else {
            return Err("the store is being recovered".to_owned());
        };
        match &open.way {
            Way::Tasks(tasks) if tasks.iter().any(mpsc::Sender::is_closed) => {
                return Err("a stage is not running".to_owned());
            }
            Way::Tasks(_) => {}
            #[cfg(feature = "kafka")]
            Way::Worker(_) => {}
        }
        open.checks.iter().try_for_each(|check| check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn before_it_has_recovered_it_is_not_ready_and_has_nothing_to_show() {
        let query = SessionQuery::default();
        assert!(query.ready().is_err());
        assert!(query.session("", "x").await.is_none());
        assert!(query.explain("", None, TraceId([1; 16])).await.is_none());
    }
}
