//! Names that come again and again: agents, models, tools, sessions. Of equal ones one copy is kept.

use std::mem;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::index::Found;

/// Names met lately, each in the slot of its hash; a newer one takes the place of an older one.
#[derive(Debug)]
pub struct Names {
    // Invariant: a power of two, for what a mask finds.
    slots: Vec<Option<Arc<str>>>,
    // What the lines found of one span are kept in, for the next one.
    room: Vec<Found>,
}

/// Slots at most: what is sent at once has fewer names that come again.
const MAX_SLOTS: usize = 512;

impl Names {
    /// Room for the names of about so many spans.
    pub fn of_spans(spans: u64) -> Self {
        let slots = usize::try_from(spans).unwrap_or(MAX_SLOTS).saturating_mul(4);
        let slots = vec![None; slots.clamp(16, MAX_SLOTS).next_power_of_two()];
        Self { slots, room: Vec::new() }
    }

    /// The name, shared with its equals before it where they are remembered.
    pub fn share(&mut self, name: &str) -> Arc<str> {
        let hash = usize::try_from(xxh3_64(name.as_bytes()) & (MAX_SLOTS as u64 - 1)).unwrap_or(0);
        let at = hash & (self.slots.len() - 1);
        let Some(slot) = self.slots.get_mut(at) else { return Arc::from(name) };
        match slot {
            Some(known) if **known == *name => Arc::clone(known),
            _ => Arc::clone(slot.insert(Arc::from(name))),
        }
    }
}

impl Names {
    pub(super) fn take_room(&mut self) -> Vec<Found> {
        mem::take(&mut self.room)
    }

    pub(super) fn give_room(&mut self, room: Vec<Found>) {
        self.room = room;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_names_are_one() {
        let mut names = Names::of_spans(100);
        let (first, second) = (names.share("agent"), names.share("agent"));
        assert!(Arc::ptr_eq(&first, &second));
        assert_ne!(names.share("tool"), first);
    }

    proptest! {
        #[test]
        fn a_name_stays_what_it_is(sent in prop::collection::vec("[a-c]{0,3}", 0..200), spans in 0_u64..40) {
            let mut names = Names::of_spans(spans);
            for name in sent {
                prop_assert_eq!(&*names.share(&name), name.as_str());
            }
        }
    }
}
