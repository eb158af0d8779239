//! Sessions that have as many traces as they may: the assemble stage refuses further ones while their senders can be told.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::key::SessionId;

/// Sessions that are named at most; traces of further full ones are dropped, and counted, when they come here.
const MAX_NAMED: usize = 1_000;

/// The full sessions of a shard.
#[derive(Clone, Debug, Default)]
pub(super) struct FullSessions {
    // Invariant: at most `MAX_NAMED`.
    ids: BTreeSet<Arc<SessionId>>,
    changed: bool,
}

impl FullSessions {
    /// The session has its most.
    pub(super) fn add(&mut self, id: &SessionId) {
        if self.ids.len() < MAX_NAMED && !self.ids.contains(id) {
            self.ids.insert(Arc::new(id.clone()));
            self.changed = true;
        }
    }

    /// The session takes traces, or is not held any more.
    pub(super) fn remove(&mut self, id: &SessionId) {
        self.changed |= self.ids.remove(id);
    }

    /// All of them, if they are others than when this was asked last.
    pub(super) fn news(&mut self) -> Option<BTreeSet<Arc<SessionId>>> {
        std::mem::take(&mut self.changed).then(|| self.ids.clone())
    }
}
