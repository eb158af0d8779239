//! Answers queries about sessions by asking the shards, a little at a time.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(feature = "kafka")]
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::Check;
use super::router::Router;
use super::tasks::ToSessions;
use crate::engine::explained::{SessionRow, TraceExplanation};
use crate::engine::facts::SessionId;
use crate::engine::route::Route;
#[cfg(feature = "kafka")]
use crate::engine::sessions::NoSessionStore;
use crate::engine::sessions::{Found, ListPosition, SessionStore, Sessions, Wanted};
use crate::engine::span::TraceId;
use crate::export::query::{ListRequest, Listing, Query};
#[cfg(feature = "kafka")]
use crate::fleet::{self, Question};

/// Cards that a shard reads for one message, which bounds how long a query delays ingest.
const BUDGET: usize = 20_000;

/// The most traces that a shard reads in full for one message.
const WHOLE_BUDGET: usize = 100;

/// The pause between two messages of a query to a shard that has other messages waiting, so that ingest goes first.
const PAUSE: Duration = Duration::from_millis(1);

/// Answers queries by asking the shards, once they run.
#[derive(Clone, Default)]
pub struct SessionQuery {
    stages: Arc<OnceLock<OpenShards>>,
}

/// The shards to ask, and the readiness of the daemon.
struct OpenShards {
    route: Route,
    shards: usize,
    access: ShardAccess,
    checks: Vec<Check>,
    /// Acknowledged records that the start did not find in the log.
    lost_records: u64,
}

/// The way to a shard.
enum ShardAccess {
    /// Each shard is a task of this process.
    Tasks(Vec<mpsc::Sender<ToSessions>>),
    /// The worker of this instance has some of the shards, other instances have the rest; without a worker, they have all.
    #[cfg(feature = "kafka")]
    Worker(Option<SyncSender<Question>>),
}

impl SessionQuery {
    /// Opens it for queries to the tasks of this process.
    pub(super) fn open(&self, router: &Router, checks: Vec<Check>, lost_records: u64) {
        let access = ShardAccess::Tasks(router.sessions.clone());
        let (route, shards) = (router.route, router.sessions.len());
        let open = OpenShards { route, shards, access, checks, lost_records };
        // It is opened once.
        let _ = self.stages.set(open);
    }

    /// Opens it for queries to this instance's worker, if it has one with session shards.
    #[cfg(feature = "kafka")]
    pub(super) fn open_shared(&self, worker: Option<SyncSender<Question>>, checks: Vec<Check>) {
        let (route, shards) = fleet::shards();
        // It is opened once.
        let _ = self.stages.set(OpenShards {
            route,
            shards,
            access: ShardAccess::Worker(worker),
            checks,
            lost_records: 0,
        });
    }

    fn shards(&self) -> usize {
        self.stages.get().map_or(0, |open| open.shards)
    }

    /// Asks a shard; no answer if it does not run.
    async fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        question: impl FnOnce(&Sessions, &dyn SessionStore) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        // The answer may no longer be wanted.
        let question = move |stage: &Sessions, session_store: &dyn SessionStore| {
            drop(reply.send(question(stage, session_store)));
        };
        match &self.stages.get()?.access {
            // Fails only during shutdown.
            ShardAccess::Tasks(tasks) => {
                tasks.get(shard)?.send(ToSessions::Ask(Box::new(question))).await.ok()?;
            }
            #[cfg(feature = "kafka")]
            ShardAccess::Worker(worker) => {
                let question = Box::new(move |stage: &Sessions| question(stage, &NoSessionStore));
                worker.as_ref()?.try_send((u32::try_from(shard).ok()?, question)).ok()?;
            }
        }
        answer.await.ok()
    }

    /// Lets other messages to a shard go first; pauses only if there are any, as a query may take thousands of messages.
    async fn give_way(&self, shard: usize) {
        let is_idle = match self.stages.get().map(|open| &open.access) {
            Some(ShardAccess::Tasks(tasks)) => {
                tasks.get(shard).is_none_or(|task| task.capacity() == task.max_capacity())
            }
            #[cfg(feature = "kafka")]
            Some(ShardAccess::Worker(_)) => false,
            None => true,
        };
        if is_idle { yield_now().await } else { sleep(PAUSE).await }
    }

    /// Asks every shard: all at once if each is a task, one after the other if one worker has them. Answers come in any order; once
    /// `enough` returns true, the rest are not waited for.
    async fn ask_all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        ask: impl Fn(Self, usize) -> F,
        mut enough: impl FnMut(T) -> bool,
    ) {
        let at_once = match self.stages.get().map(|open| &open.access) {
            #[cfg(feature = "kafka")]
            Some(ShardAccess::Worker(_)) => 1,
            Some(ShardAccess::Tasks(_)) | None => usize::MAX,
        };
        let (mut asked, mut shards) = (JoinSet::new(), 0..self.shards());
        loop {
            while asked.len() < at_once
                && let Some(shard) = shards.next()
            {
                asked.spawn(ask(self.clone(), shard));
            }
            let Some(answered) = asked.join_next().await else { return };
            // A query of a shard that panicked has no answer.
            if answered.is_ok_and(&mut enough) {
                return;
            }
        }
    }

    /// The session of one shard that holds a trace, if any.
    async fn find_in(
        self,
        shard: usize,
        tenant: Option<String>,
        trace: TraceId,
    ) -> Option<SessionId> {
        let find = move |stage: &Sessions, session_store: &dyn SessionStore| {
            stage.find(tenant.as_deref(), trace, session_store)
        };
        self.ask(shard, find).await.flatten()
    }

    /// The session that holds a trace; of several, the first in order, whichever shard answers first.
    async fn find(&self, tenant: Option<&str>, trace: TraceId) -> Option<SessionId> {
        let mut sessions = BTreeSet::new();
        let ask = |query: Self, shard| query.find_in(shard, tenant.map(str::to_owned), trace);
        self.ask_all(ask, |found| {
            sessions.extend(found);
            false
        })
        .await;
        sessions.pop_first()
    }

    /// One shard's part of a list.
    async fn list_of(self, shard: usize, request: Arc<ListRequest>) -> ShardList {
        let evicted = self.ask(shard, |stage, _| stage.evicted_sessions()).await;
        let mut list =
            ShardList { partial: evicted.is_some_and(|evicted| evicted > 0), ..<_>::default() };
        let most = request.limit.saturating_add(request.offset);
        let mut after = None;
        loop {
            let request = Arc::clone(&request);
            let places = move |stage: &Sessions, _: &dyn SessionStore| {
                let wanted = Wanted { filter: &request.filter, sort: request.sort, most };
                stage.places(after, &wanted, BUDGET)
            };
            let Some(part) = self.ask(shard, places).await else {
                list.partial = true;
                return list;
            };
            list.total += part.total;
            list.keep_first(part.places, most);
            if part.next.is_none() {
                return list;
            }
            after = part.next;
            self.give_way(shard).await;
        }
    }
}

/// The sessions of a list that were found so far.
#[derive(Debug, Default)]
struct ShardList {
    first: BTreeSet<ListPosition>,
    total: u64,
    /// Whether sessions may be missing: some are evicted, or a shard did not answer.
    partial: bool,
}

impl ShardList {
    fn keep_first(&mut self, places: BTreeSet<ListPosition>, most: usize) {
        self.first.extend(places);
        while self.first.len() > most {
            self.first.pop_last();
        }
    }
}

impl SessionQuery {
    /// The rows of these sessions in their order, without sessions that no longer exist; and whether all shards answered.
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
                let read =
                    move |stage: &Sessions, _: &dyn SessionStore| stage.rows(&asked, WHOLE_BUDGET);
                let Some(some) = self.ask(shard, read).await else {
                    all = false;
                    break;
                };
                let looked = some.len().clamp(1, ids.len());
                rows.extend(ids.drain(..looked).zip(some));
                self.give_way(shard).await;
            }
        }
        (page.iter().filter_map(|id| rows.remove(id).flatten()).collect(), all)
    }
}

impl Query for SessionQuery {
    async fn list(&self, request: ListRequest) -> Listing {
        let request = Arc::new(request);
        let most = request.limit.saturating_add(request.offset);
        let mut list = ShardList::default();
        let ask = |query: Self, shard| query.list_of(shard, Arc::clone(&request));
        self.ask_all(ask, |part: ShardList| {
            list.total += part.total;
            list.partial |= part.partial;
            list.keep_first(part.first, most);
            false
        })
        .await;
        let ShardList { first, total, partial } = list;
        let page: Vec<_> =
            first.into_iter().skip(request.offset).map(ListPosition::session).collect();
        let (rows, all) = self.rows(&page).await;
        Listing { rows, total, partial: partial || !all }
    }

    async fn session(&self, tenant: &str, id: &str, scope: Option<&str>) -> Found {
        let Some(open) = self.stages.get() else { return Found::Nothing };
        let shard = open.route.session(tenant, id);
        let (tenant, id, scope) = (tenant.to_owned(), id.to_owned(), scope.map(str::to_owned));
        let found = move |stage: &Sessions, session_store: &dyn SessionStore| {
            stage.found((&tenant, &id, scope.as_deref()), session_store)
        };
        self.ask(shard, found).await.unwrap_or_default()
    }

    async fn explain(
        &self,
        tenant: Option<&str>,
        session: Option<(&str, Option<&str>)>,
        trace: TraceId,
    ) -> Option<TraceExplanation> {
        let (tenant, id, scope) = match session {
            Some((id, scope)) => {
                (tenant.unwrap_or_default().to_owned(), id.to_owned(), scope.map(str::to_owned))
            }
            None => {
                let SessionId { tenant, id, scope } = self.find(tenant, trace).await?;
                (tenant.to_string(), id.to_string(), Some(scope.to_string()))
            }
        };
        let shard = self.stages.get()?.route.session(&tenant, &id);
        let explain = move |stage: &Sessions, session_store: &dyn SessionStore| {
            stage.explain((&tenant, &id, scope.as_deref()), trace, session_store)
        };
        self.ask(shard, explain).await.flatten()
    }

    fn ready(&self) -> Result<(), String> {
        let Some(open) = self.stages.get() else {
            return Err("the store is being recovered".to_owned());
        };
        match &open.access {
            ShardAccess::Tasks(tasks) if tasks.iter().any(mpsc::Sender::is_closed) => {
                return Err("a stage is not running".to_owned());
            }
            ShardAccess::Tasks(_) => {}
            #[cfg(feature = "kafka")]
            ShardAccess::Worker(_) => {}
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
        assert!(query.explain(None, None, TraceId([1; 16])).await.is_none());
    }
}
