//! Where spans come from, said once: each export says it anew.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::span::Resource;

/// So many are known; then all are forgotten.
const MOST: usize = 1_024;

/// Resources that were met.
#[derive(Debug, Default)]
pub(super) struct Resources {
    known: BTreeSet<Arc<Resource>>,
    // The one met last, and the one that is the same.
    last: Option<(Arc<Resource>, Arc<Resource>)>,
}

impl Resources {
    /// The same resource as it was met before.
    pub(super) fn shared(&mut self, resource: &Arc<Resource>) -> Arc<Resource> {
        if let Some((_, same)) = self.last.as_ref().filter(|(last, _)| Arc::ptr_eq(last, resource))
        {
            return Arc::clone(same);
        }
        let same = self.known.get(resource).cloned().unwrap_or_else(|| {
            if self.known.len() >= MOST {
                self.known.clear();
            }
            self.known.insert(Arc::clone(resource));
            Arc::clone(resource)
        });
        self.last = Some((Arc::clone(resource), Arc::clone(&same)));
        same
    }
}
