//! What goes on beside the stages, for as long as somebody has the board.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::export::board::Board;
use crate::memory;

/// How often the wall clock is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Begins it; `step` is the time between two points of an agent's past.
pub(super) fn begin(board: &Arc<Board>, step: Duration, clock: Clock) {
    tokio::spawn(watch(Arc::downgrade(board), clock.clone()));
    tokio::spawn(history(Arc::downgrade(board), step, clock));
    tokio::spawn(give_back(Arc::downgrade(board)));
}

/// Takes note of steps of the wall clock that no request came upon, for as long as somebody has the board.
async fn watch(board: Weak<Board>, clock: Clock) {
    while board.strong_count() > 0 {
        clock.watch();
        tokio::time::sleep(LOOK).await;
    }
}

/// Adds a point to every agent's past, at every step, for as long as somebody has the board.
async fn history(board: Weak<Board>, step: Duration, clock: Clock) {
    loop {
        tokio::time::sleep(step).await;
        let Some(board) = board.upgrade() else { return };
        board.sample(clock.wall());
    }
}

/// Gives back the memory that is not used any more, for as long as somebody has the board.
async fn give_back(board: Weak<Board>) {
    while board.strong_count() > 0 {
        memory::give_back();
        tokio::time::sleep(memory::KEPT_FOR).await;
    }
}
