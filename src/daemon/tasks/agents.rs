//! The task of the agents stage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::barriers::{Alignment, Waiting};
use super::{BURST, Common, SLICE, ToAgents, save, sleep_until};
use crate::daemon::pace::Pace;
use crate::engine::agent_update::AgentUpdate;
use crate::engine::agents::Agents;
use crate::export::board::Board;

/// Runs the agents stage until its channel closes, and keeps the board up to date.
pub(in crate::daemon) async fn run(
    mut stage: Agents,
    mut inbox: mpsc::Receiver<ToAgents>,
    (board, flushed): (Arc<Board>, watch::Sender<u64>),
    inputs: usize,
    common: Common,
) {
    let (mut alignment, mut waiting) = (Alignment::new(inputs), Waiting::new());
    let mut burst = Vec::with_capacity(BURST);
    let (mut pace, mut urgent) = (Pace::default(), Pace::default());
    let mut shift = common.clock.shift();
    loop {
        let paces = [pace.due(), urgent.due()];
        let due = paces.into_iter().chain([stage.poll_timeout()]).flatten().min();
        let wait = sleep_until(due, &common.clock);
        tokio::select! {
            taken = inbox.recv_many(&mut burst, BURST) => if taken == 0 { return },
            () = wait => {}
            () = common.clock.stepped_from(shift) => {}
        }
        let now = common.clock.now();
        shift = common.clock.shift();
        stage.shift_to(shift);
        let mut epoch = None;
        let mut left: VecDeque<ToAgents> = burst.drain(..).collect();
        while let Some(message) = left.pop_front() {
            match waiting.admit(message) {
                Some(ToAgents::Updates(_, updates, now)) => {
                    updates.into_iter().for_each(|update| stage.handle(update, now));
                }
                Some(ToAgents::Report(report, now)) => stage.report(*report, now),
                Some(ToAgents::Barrier(from, barrier)) => {
                    let saves = barrier.log_sequence.is_some();
                    if !alignment.complete(barrier) {
                        waiting.past.extend(saves.then_some(from));
                    } else if saves {
                        stage.settle();
                        save(&common, barrier, || Some(("agents".to_owned(), stage.save())));
                        waiting.release(&mut left);
                    } else {
                        epoch = epoch.max(Some(barrier.epoch));
                    }
                }
                None => {}
            }
        }
        stage.handle_timeout(now);
        pace.note();
        if stage.is_urgent() {
            urgent.note();
        }
        if pace.is_due(now) || epoch.is_some() {
            let took = post(&mut stage, Agents::drain_some, &board, &common).await;
            common.health.counts("agents", stage.counts().iter());
            common.health.held("agents", "", board.len());
            pace.told(took, common.clock.now());
        } else if urgent.is_due(now) {
            let took = post(&mut stage, Agents::drain_urgent, &board, &common).await;
            urgent.told(took, common.clock.now());
        }
        if let Some(epoch) = epoch {
            flushed.send_replace(epoch);
        }
    }
}

/// Puts what is drained on the board, slice by slice; returns the time that it spent on that.
async fn post(
    stage: &mut Agents,
    drain: fn(&mut Agents, usize) -> Vec<AgentUpdate>,
    board: &Board,
    common: &Common,
) -> Duration {
    let mut took = Duration::ZERO;
    loop {
        let began = common.clock.now();
        let updates = drain(stage, SLICE);
        if updates.is_empty() {
            return took;
        }
        updates.into_iter().for_each(|update| board.apply(update));
        took += common.clock.now().since(began);
        tokio::task::yield_now().await;
    }
}
