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
    pub(super) fn shared(&mut self, resource: &Arc<Resource>) -> &Arc<Resource> {
        let known = &mut self.known;
        let (last, same) =
            self.last.get_or_insert_with(|| (Arc::clone(resource), met(known, resource)));
        if !Arc::ptr_eq(last, resource) {
            (*last, *same) = (Arc::clone(resource), met(known, resource));
        }
        same
    }
}

/// The one among these that is the same; where there is none it is added.
fn met(known: &mut BTreeSet<Arc<Resource>>, resource: &Arc<Resource>) -> Arc<Resource> {
    if let Some(same) = known.get(resource) {
        return Arc::clone(same);
    }
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(Arc::clone(resource));
    Arc::clone(resource)
}
