//! What goes on beside the stages, for as long as somebody has the board.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::export::board::Board;
use crate::memory;

/// Begins it; `step` is the time between two points of an agent's past.
pub(super) fn begin(board: &Arc<Board>, step: Duration, clock: Clock) {
    tokio::spawn(history(Arc::downgrade(board), step, clock));
    tokio::spawn(give_back(Arc::downgrade(board)));
}

/// Adds a point to every agent's past, at every step, for as long as somebody has the board.
async fn history(board: Weak<Board>, step: Duration, clock: Clock) {
    loop {
        tokio::time::sleep(step).await;
        let Some(board) = board.upgrade() else { return };
        board.sample(clock.now());
    }
}

/// Gives back the memory that is not used any more, for as long as somebody has the board.
async fn give_back(board: Weak<Board>) {
    while board.strong_count() > 0 {
        memory::give_back();
        tokio::time::sleep(memory::KEPT_FOR).await;
    }
}
