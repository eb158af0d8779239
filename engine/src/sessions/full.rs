//! Sessions at `max_traces_per_session` or `max_session_bytes` without any done trace, so that they cannot be closed and restarted:
//! the assemble stage refuses further traces as long as their senders can still be notified.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::facts::SessionId;

/// Most full sessions that are named; traces of other full sessions are dropped and counted when they arrive here.
const MAX_NAMED: usize = 1_000;

/// The full sessions of a shard.
#[derive(Clone, Debug, Default)]
pub(super) struct FullSessions {
    // Invariant: at most `MAX_NAMED`.
    ids: BTreeSet<Arc<SessionId>>,
    changed: bool,
}

impl FullSessions {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Adds a session.
    pub(super) fn add(&mut self, id: &SessionId) {
        if self.ids.len() < MAX_NAMED && !self.ids.contains(id) {
            self.ids.insert(Arc::new(id.clone()));
            self.changed = true;
        }
    }

    /// Removes a session that has room again, or is no longer in memory.
    pub(super) fn remove(&mut self, id: &SessionId) {
        self.changed |= self.ids.remove(id);
    }

    /// All full sessions, if they have changed since the last call.
    pub(super) fn news(&mut self) -> Option<BTreeSet<Arc<SessionId>>> {
        std::mem::take(&mut self.changed).then(|| self.ids.clone())
    }
}
