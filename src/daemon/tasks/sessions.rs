//! The task of a session shard.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::barriers::{Alignment, Next};
use super::{BURST, Common, FullSessions, Gone, SLICE, ToAgents, ToSessions, give_up, save};
use crate::blocking::blocking;
use crate::daemon::pace::Pace;
use crate::engine::facts::{Barrier, SessionFacts};
use crate::engine::pipeline::Stages;
use crate::engine::sessions::{NoSessionStore, SessionStore, Sessions};
use crate::engine::span::Timestamp;
use crate::webhook::{self, Runaway, Webhook};

/// One session shard, with the channel for its updates.
pub(in crate::daemon) struct SessionTask {
    shard: usize,
    stage: Sessions,
    session_store: Box<dyn SessionStore + Send>,
    agents: mpsc::Sender<ToAgents>,
    // The paces of all updates, and of urgent ones.
    pace: Pace,
    urgent: Pace,
    common: Common,
}

/// Notifies the webhook, if there is one, of sessions that run away.
pub(in crate::daemon) fn tell(
    stage: &mut Sessions,
    session_store: &dyn SessionStore,
    at: Timestamp,
    webhook: Option<&webhook::Handle>,
) {
    for (id, cause, _) in stage.runaways() {
        if let Some(webhook) = webhook.filter(|webhook| webhook.wants(cause.severity())) {
            webhook.enqueue(|| {
                let session = Box::new(stage.session_in(&id, session_store)?);
                Some(Runaway { tenant: id.tenant.to_string(), cause, at, session })
            });
        }
    }
}

/// Notes for the webhook the sessions that ran away in a replayed log: the previous process has reported them.
pub(in crate::daemon) fn tell_of_replayed(
    stages: &mut Stages,
    webhook: &mut Webhook,
    handle: &webhook::Handle,
    now: Timestamp,
) {
    let mut replayed = Vec::new();
    for (shard, stage) in stages.sessions.iter_mut().enumerate() {
        let runaways = stage.runaways().into_iter();
        replayed.extend(runaways.map(|(id, cause, at)| (at, id, cause, shard)));
    }
    replayed.retain(|(at, _, cause, _)| {
        handle.wants(cause.severity()) && webhook.still_counts(*at, now)
    });
    replayed.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    for (at, id, cause, shard) in replayed {
        let view = stages.sessions[shard].session_in(&id, &*stages.session_stores[shard]);
        let Some(session) = view.map(Box::new) else { continue };
        let tenant = id.tenant.to_string();
        webhook.restore_call(&Runaway { tenant, cause, at, session });
    }
}

impl SessionTask {
    /// A shard that evicts sessions to `session_store`.
    pub(in crate::daemon) fn new(
        shard: usize,
        stage: Sessions,
        session_store: Box<dyn SessionStore + Send>,
        agents: mpsc::Sender<ToAgents>,
        common: Common,
    ) -> Self {
        let (pace, urgent) = (Pace::default(), Pace::default());
        Self { shard, stage, session_store, agents, pace, urgent, common }
    }

    /// Runs the shard until its channel, which has `inputs` inputs, closes; `full` receives its sessions that accept no further
    /// trace.
    pub(in crate::daemon) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<ToSessions>,
        inputs: usize,
        full: watch::Sender<FullSessions>,
    ) {
        let mut alignment = Alignment::new(inputs, self.common.barrier_room.clone());
        let mut burst = Vec::with_capacity(BURST);
        let mut shift = self.common.clock.shift();
        let mut timer = self.common.clock.timer();
        loop {
            let paces = [self.pace.due(), self.urgent.due()];
            let due = paces.into_iter().chain([self.stage.poll_timeout()]).flatten().min();
            tokio::select! {
                taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
                () = timer.until(due) => {}
                () = self.common.clock.stepped_from(shift) => {}
            }
            let now = self.common.clock.now();
            shift = self.common.clock.shift();
            self.stage.shift_to(shift);
            let mut left: VecDeque<ToSessions> = burst.drain(..).collect();
            while let Some(message) = left.pop_front() {
                match alignment.take(message, &mut left) {
                    Next::Handle(message) => {
                        self.take(message);
                        // Assemble tasks learn of full sessions before the change shows anywhere else.
                        if let Some(named) = self.stage.full_sessions() {
                            full.send_replace(named);
                        }
                    }
                    Next::Pass { barrier, saves } => {
                        if self.pass(barrier, saves, now).await.is_err() {
                            return;
                        }
                    }
                    Next::GiveUp(epoch) => give_up(&self.common, epoch),
                    Next::Wait => {}
                }
            }
            self.common.note_timers(self.stage.next_end(), now).await;
            self.stage.run_timers(now, self.session_store.as_mut());
            tell(
                &mut self.stage,
                &*self.session_store,
                shift.wall(now),
                self.common.webhook.as_ref(),
            );
            self.pace.note();
            if self.stage.is_urgent() {
                self.urgent.note();
            }
            let handed_on = if self.pace.is_due(now) {
                self.hand_on(now).await
            } else if self.urgent.is_due(now) {
                self.hand_on_urgent(now).await
            } else {
                Ok(())
            };
            if handed_on.is_err() {
                return;
            }
        }
    }

    fn take(&mut self, message: ToSessions) {
        let Self { stage, session_store, .. } = self;
        match message {
            ToSessions::Traces(_, updates, now) => {
                for update in updates {
                    stage.restore_for(&update, session_store.as_mut());
                    stage.handle(update, now);
                }
            }
            ToSessions::Report(_, report, now) => {
                stage.restore_for_report(&report, session_store.as_mut());
                stage.report(*report, now);
            }
            ToSessions::Ask(question) => question(stage, session_store.as_ref()),
            // `run` handles barriers.
            ToSessions::Barrier(..) => {}
        }
    }

    /// Passes on a barrier that has arrived on all inputs: results of everything before it are sent first, and only that is saved.
    async fn pass(&mut self, barrier: Barrier, saves: bool, now: Timestamp) -> Result<(), Gone> {
        self.hand_on(now).await?;
        if saves {
            let safe = self.keep().await;
            let Self { shard, stage, common, .. } = &*self;
            save(common, barrier, || safe.then(|| (format!("sessions/{shard}"), stage.save())));
        }
        let shard = self.shard;
        self.agents.send(ToAgents::Barrier(shard, barrier)).await.map_err(|_| Gone)
    }

    /// Makes the evicted sessions as safe on disk as the snapshot that is about to refer to them; returns whether they are.
    async fn keep(&mut self) -> bool {
        let none: Box<dyn SessionStore + Send> = Box::new(NoSessionStore);
        let session_store = Arc::new(Mutex::new(mem::replace(&mut self.session_store, none)));
        let lent = Arc::clone(&session_store);
        let keep = move || lent.lock().unwrap_or_else(PoisonError::into_inner).keep();
        let safe = blocking(keep).await.unwrap_or(false);
        // It is back even if there was no thread for it.
        let mut back = session_store.lock().unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut self.session_store, &mut *back);
        drop(back);
        safe
    }

    /// Sends all updates, makes room for sessions, and updates the metrics.
    async fn hand_on(&mut self, now: Timestamp) -> Result<(), Gone> {
        let took = self.send(Sessions::drain_some, now).await?;
        self.stage.fit(self.session_store.as_mut());
        let Self { shard, stage, common, .. } = &*self;
        let source = format!("sessions/{shard}");
        common.health.counts(&source, stage.counts().iter());
        common.health.held("sessions", &source).set(stage.open_sessions());
        common.health.held_bytes("sessions", &source).set(stage.held_bytes());
        common.health.held("sessions_evicted", &source).set(stage.evicted_sessions());
        self.pace.note_round(took, self.common.clock.now());
        Ok(())
    }

    /// Sends the urgent updates.
    async fn hand_on_urgent(&mut self, now: Timestamp) -> Result<(), Gone> {
        let took = self.send(Sessions::drain_urgent, now).await?;
        self.urgent.note_round(took, self.common.clock.now());
        Ok(())
    }

    /// Sends the drained updates, slice by slice; returns the time that draining took.
    async fn send(&mut self, drain: Drain, now: Timestamp) -> Result<Duration, Gone> {
        let mut took = Duration::ZERO;
        loop {
            let began = self.common.clock.now();
            let updates = drain(&mut self.stage, SLICE);
            took += self.common.clock.now().since(began);
            if updates.is_empty() {
                return Ok(took);
            }
            let message = ToAgents::Updates(self.shard, updates, now);
            self.agents.send(message).await.map_err(|_| Gone)?;
            tokio::task::yield_now().await;
        }
    }
}

/// A method that drains the updates of a limited number of agents from a session stage.
type Drain = fn(&mut Sessions, usize) -> Vec<SessionFacts>;
