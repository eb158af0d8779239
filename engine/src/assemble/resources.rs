//! Resources of spans, each stored once, as every export has its own copy.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::span::Resource;

/// Number of known resources at which all are forgotten.
const MOST: usize = 1_024;

/// Known resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    known: BTreeSet<Arc<Resource>>,
    // The last resource to arrive, and the known one that equals it.
    last: Option<(Arc<Resource>, Arc<Resource>)>,
}

impl Resources {
    /// The known resource that equals this one.
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

/// The known resource that equals this one, which is added if there is none.
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
