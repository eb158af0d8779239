//! What is asked about the sessions of an instance, between records.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::engine::sessions::Sessions;

/// Questions that may wait.
pub const WAITING: usize = 1_024;

/// Questions that are answered before records have their turn.
const AT_ONCE: usize = 64;

/// How long is waited for the next question: a page is many small ones, one after the other.
const NEXT: Duration = Duration::from_millis(1);

/// A logical shard, and what somebody wants to know of its sessions; dropped if they are not here.
pub type Question = (u32, Box<dyn FnOnce(&Sessions) + Send>);

/// Answers what waits, and what comes right after. Returns whether anything was asked.
pub(super) fn answer<'s>(
    questions: &Receiver<Question>,
    sessions: impl Fn(u32) -> Option<&'s Sessions>,
) -> bool {
    let mut asked = false;
    for _ in 0..AT_ONCE {
        let next =
            if asked { questions.recv_timeout(NEXT).ok() } else { questions.try_recv().ok() };
        let Some((shard, question)) = next else { break };
        asked = true;
        if let Some(sessions) = sessions(shard) {
            question(sessions);
        }
    }
    asked
}
