//! Recurring values, stored once: names of agents, models, tools and sessions, and resources; and kinds of spans, with their plans.

use std::str;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::plan::{Plans, same};
use crate::span::Resource;

/// Recent names and resources, and plans of spans; each reader has its own and keeps it from request to request.
#[derive(Debug, Default)]
pub struct Names {
    pub(super) shared: Shared,
    pub(super) plans: Plans,
    resources: Resources,
}

/// Resources and their bytes, each in the slot of its hash.
#[derive(Debug)]
struct Resources {
    slots: Box<[Option<KnownResource>]>,
}

/// A resource and the bytes that it was read from.
#[derive(Clone, Debug)]
struct KnownResource {
    sent: Box<[u8]>,
    resource: Arc<Resource>,
}

/// Names, each in the slot of its hash; a newer name replaces an older one.
#[derive(Debug)]
pub(super) struct Shared {
    slots: Box<[Option<Arc<str>>]>,
}

/// Most names that are kept.
const MAX_SLOTS: usize = 512;

/// Most resources that are kept, and most bytes of one.
const MAX_RESOURCES: usize = 64;
const MAX_RESOURCE_BYTES: usize = 4_096;

impl Names {
    /// Makes one that keeps only names: every span and resource is read in full.
    pub fn without_plans() -> Self {
        let resources = Resources { slots: Box::default() };
        Self { plans: Plans::none(), resources, ..Self::default() }
    }

    /// The resource that was read from these bytes, if it is known.
    pub fn resource(&self, sent: &[u8], tenant: Option<&Arc<str>>) -> Option<&Arc<Resource>> {
        let known = self.resources.slots.get(slot(sent, MAX_RESOURCES))?.as_ref()?;
        let is_same = *known.sent == *sent && known.resource.tenant.as_ref() == tenant;
        is_same.then_some(&known.resource)
    }

    /// Keeps a resource in which nothing had to be mended.
    pub fn keep_resource(&mut self, sent: &[u8], resource: &Arc<Resource>) {
        if sent.len() <= MAX_RESOURCE_BYTES
            && let Some(slot) = self.resources.slots.get_mut(slot(sent, MAX_RESOURCES))
        {
            *slot = Some(KnownResource { sent: Box::from(sent), resource: Arc::clone(resource) });
        }
    }

    /// Returns the kept copy of the name, if there is one, else a new one.
    pub(super) fn share(&mut self, name: &str) -> Arc<str> {
        self.shared.share(name.as_bytes()).unwrap_or_else(|| Arc::from(name))
    }
}

impl Shared {
    /// Returns the name of these bytes, shared; `None` if they are not valid UTF-8. Known names are not checked again.
    pub(super) fn share(&mut self, name: &[u8]) -> Option<Arc<str>> {
        let slot = self.slots.get_mut(slot(name, MAX_SLOTS))?;
        match slot {
            Some(known) if same(known.as_bytes(), name) => Some(Arc::clone(known)),
            _ => Some(Arc::clone(slot.insert(Arc::from(str::from_utf8(name).ok()?)))),
        }
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self { slots: vec![None; MAX_SLOTS].into_boxed_slice() }
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self { slots: vec![None; MAX_RESOURCES].into_boxed_slice() }
    }
}

/// The slot of these bytes.
#[inline]
fn slot(bytes: &[u8], slots: usize) -> usize {
    usize::try_from(xxh3_64(bytes) % slots as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_names_are_one() {
        let mut names = Names::default();
        let (first, second) = (names.share("agent"), names.share("agent"));
        assert!(Arc::ptr_eq(&first, &second));
        assert_ne!(names.share("tool"), first);
    }

    proptest! {
        #[test]
        fn a_name_stays_what_it_is(sent in prop::collection::vec("[a-c]{0,3}", 0..200)) {
            let mut names = Names::default();
            for name in sent {
                prop_assert_eq!(&*names.share(&name), name.as_str());
            }
        }
    }
}
