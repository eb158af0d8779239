//! The task of the agents stage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::barriers::{Alignment, Next};
use super::{BURST, Common, SLICE, ToAgents, give_up, save};
use crate::daemon::pace::Pace;
use crate::engine::agent_facts::AgentFacts;
use crate::engine::agents::Agents;
use crate::export::board::Board;

/// The agents stage, with the board that receives its updates.
pub(in crate::daemon) struct AgentsTask {
    pub(in crate::daemon) stage: Agents,
    pub(in crate::daemon) board: Arc<Board>,
    /// The last epoch whose updates are all on the board.
    pub(in crate::daemon) flushed: watch::Sender<u64>,
    pub(in crate::daemon) common: Common,
}

impl AgentsTask {
    /// Runs the stage until its channel, which has `inputs` inputs, closes, and keeps the board up to date.
    pub(in crate::daemon) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<ToAgents>,
        inputs: usize,
    ) {
        let mut alignment = Alignment::new(inputs, self.common.barrier_room.clone());
        let mut burst = Vec::with_capacity(BURST);
        let (mut pace, mut urgent) = (Pace::default(), Pace::default());
        let mut shift = self.common.clock.shift();
        let mut timer = self.common.clock.timer();
        loop {
            let paces = [pace.due(), urgent.due()];
            let due = paces.into_iter().chain([self.stage.poll_timeout()]).flatten().min();
            tokio::select! {
                taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
                () = timer.until(due) => {}
                () = self.common.clock.stepped_from(shift) => {}
            }
            let now = self.common.clock.now();
            shift = self.common.clock.shift();
            self.stage.shift_to(shift);
            let mut epoch = None;
            let mut left: VecDeque<ToAgents> = burst.drain(..).collect();
            while let Some(message) = left.pop_front() {
                match alignment.take(message, &mut left) {
                    Next::Handle(ToAgents::Updates(_, updates, now)) => {
                        updates.into_iter().for_each(|update| self.stage.handle(update, now));
                    }
                    Next::Handle(ToAgents::Report(report, now)) => self.stage.report(*report, now),
                    Next::Pass { barrier, saves: true } => {
                        self.stage.settle();
                        save(&self.common, barrier, || {
                            Some(("agents".to_owned(), self.stage.save()))
                        });
                    }
                    Next::Pass { barrier, saves: false } => {
                        epoch = epoch.max(barrier.log_sequence.is_none().then_some(barrier.epoch));
                    }
                    Next::GiveUp(epoch) => give_up(&self.common, epoch),
                    Next::Handle(ToAgents::Barrier(..)) | Next::Wait => {}
                }
            }
            self.stage.handle_timeout(now);
            pace.note();
            if self.stage.is_urgent() {
                urgent.note();
            }
            if pace.is_due(now) || epoch.is_some() {
                let took = self.post(Agents::drain_some).await;
                self.common.health.counts("agents", self.stage.counts().iter());
                self.common.health.held("agents", "").set(self.board.len());
                self.common.health.held_bytes("runs", "").set(self.stage.run_bytes());
                pace.note_round(took, self.common.clock.now());
            } else if urgent.is_due(now) {
                let took = self.post(Agents::drain_urgent).await;
                urgent.note_round(took, self.common.clock.now());
            }
            if let Some(epoch) = epoch {
                // Two barriers may arrive on all inputs in another order than they began.
                self.flushed.send_modify(|flushed| *flushed = epoch.max(*flushed));
            }
        }
    }

    /// Puts the drained updates on the board, slice by slice; returns the time that this took.
    async fn post(&mut self, drain: fn(&mut Agents, usize) -> Vec<AgentFacts>) -> Duration {
        let mut took = Duration::ZERO;
        loop {
            let began = self.common.clock.now();
            let updates = drain(&mut self.stage, SLICE);
            if updates.is_empty() {
                return took;
            }
            updates.into_iter().for_each(|update| self.board.apply(update));
            took += self.common.clock.now().since(began);
            tokio::task::yield_now().await;
        }
    }
}
