//! Questions about the sessions of an instance, which are answered between records.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::engine::sessions::Sessions;

/// The most questions that may wait.
pub const WAITING: usize = 1_024;

/// The most questions that are answered before records have their turn.
const AT_ONCE: usize = 64;

/// How long to wait for the next question, as a page asks many small ones in a row.
const NEXT: Duration = Duration::from_millis(1);

/// A logical shard and a question about its sessions, which is dropped if the shard is not here.
pub type Question = (u32, Box<dyn FnOnce(&Sessions) + Send>);

/// Answers the questions that wait or arrive right after; returns whether there were any.
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
