//! Answers questions about sessions by asking the shards, a little at a time.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::engine::explained::{SessionRow, TraceExplanation};
use crate::engine::route::Route;
use crate::engine::sessions::{Found, Place, SessionId, Sought};
#[cfg(feature = "kafka")]
use crate::engine::sessions::{Nowhere, Sessions};
use crate::engine::span::TraceId;
use crate::export::query::{ListRequest, Listing, Query};
#[cfg(feature = "kafka")]
use crate::fleet::{self, Question};

/// Traces that a shard looks at for one message: what a question holds ingest up by at most.
const BUDGET: usize = 2_000;

/// Traces that it looks at as a whole, likewise.
const WHOLE_BUDGET: usize = 100;

/// Sessions that it looks into for a trace, likewise.
const LOOKS: usize = 2_000;

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
    /// Acknowledged records that the start did not find in the log.
    lost_records: u64,
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
    pub(super) fn open(&self, router: &Router, checks: Vec<Check>, lost_records: u64) {
        let way = Way::Tasks(router.sessions.clone());
        let (route, shards) = (router.route, router.sessions.len());
        let open = Open { route, shards, way, checks, lost_records };
        // Only the first time counts, and there is one.
        let _ = self.stages.set(open);
    }

    /// From here on a worker can be asked, if this instance has one that makes sessions.
    #[cfg(feature = "kafka")]
    pub(super) fn open_shared(&self, worker: Option<SyncSender<Question>>, checks: Vec<Check>) {
        let (route, shards) = fleet::shards();
        // Likewise.
        let _ = self.stages.set(Open {
            route,
            shards,
            way: Way::Worker(worker),
            checks,
            lost_records: 0,
        });
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

    async fn find(&self, tenant: &str, trace: TraceId) -> Option<SessionId> {
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

impl SessionQuery {
    /// Rows of these sessions in their order, without those that have gone meanwhile; and whether all were asked for.
    async fn rows(&self, page: &[SessionId]) -> (Vec<SessionRow>, bool) {
        let Some(open) = self.stages.get() else { return (Vec::new(), page.is_empty()) };
        let mut by_shard: BTreeMap<usize, Vec<SessionId>> = BTreeMap::new();
        for id in page {
            by_shard.entry(open.route.session(&id.tenant, &id.id)).or_default().push(id.clone());
        }
        let (mut rows, mut all) = (BTreeMap::new(), true);
        for (shard, mut ids) in by_shard {
            while !ids.is_empty() {
                let asked = ids.clone();
                let ask = |reply| ToSessions::Rows { ids: asked, budget: WHOLE_BUDGET, reply };
                let Some(some) = self.ask(shard, ask).await else {
                    all = false;
                    break;
                };
                let looked = some.len().clamp(1, ids.len());
                rows.extend(ids.drain(..looked).zip(some));
                sleep(PAUSE).await;
            }
        }
        (page.iter().filter_map(|id| rows.remove(id).flatten()).collect(), all)
    }
}

impl Query for SessionQuery {
    async fn list(&self, request: ListRequest) -> Listing {
        let request = Arc::new(request);
        let (mut first, mut total, mut partial) = (BTreeSet::new(), 0, false);
        for shard in 0..self.shards() {
            let away = self.ask(shard, |reply| ToSessions::Away { reply }).await;
            partial |= away.is_some_and(|away| away > 0);
            let mut after = None;
            loop {
                let request = Arc::clone(&request);
                let most = request.limit.saturating_add(request.offset);
                let ask = |reply| ToSessions::Places { after, request, budget: BUDGET, reply };
                let Some(part) = self.ask(shard, ask).await else {
                    partial = true;
                    break;
                };
                total += part.total;
                first.extend(part.places);
                while first.len() > most {
                    first.pop_last();
                }
                if part.next.is_none() {
                    break;
                }
                after = part.next;
                sleep(PAUSE).await;
            }
        }
        let page: Vec<_> = first.into_iter().skip(request.offset).map(Place::session).collect();
        let (rows, all) = self.rows(&page).await;
        Listing { rows, total, partial: partial || !all }
    }

    async fn session(&self, tenant: &str, id: &str, scope: Option<&str>) -> Found {
        let Some(open) = self.stages.get() else { return Found::Nothing };
        let shard = open.route.session(tenant, id);
        let (tenant, id, scope) = (tenant.to_owned(), id.to_owned(), scope.map(str::to_owned));
        let found = self.ask(shard, |reply| ToSessions::One { tenant, id, scope, reply }).await;
        found.unwrap_or_default()
    }

    async fn explain(
        &self,
        tenant: &str,
        session: Option<(&str, Option<&str>)>,
        trace: TraceId,
    ) -> Option<TraceExplanation> {
        let (id, scope) = match session {
            Some((id, scope)) => (id.to_owned(), scope.map(str::to_owned)),
            None => self.find(tenant, trace).await.map(|found| (found.id, Some(found.scope)))?,
        };
        let (shard, tenant) = (self.stages.get()?.route.session(tenant, &id), tenant.to_owned());
        let ask = |reply| ToSessions::Explain { tenant, id, scope, trace, reply };
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

    fn remark(&self) -> Option<String> {
        let lost = self.stages.get().map(|open| open.lost_records).filter(|lost| *lost > 0)?;
        Some(format!("{lost} acknowledged records were missing from the log at the start"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn before_it_has_recovered_it_is_not_ready_and_has_nothing_to_show() {
        let query = SessionQuery::default();
        assert!(query.ready().is_err());
        assert_eq!(query.session("", "x", None).await, Found::Nothing);
        assert!(query.explain("", None, TraceId([1; 16])).await.is_none());
    }
}
