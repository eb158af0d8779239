//! What comes again and again: names of agents, models, tools, sessions, of which one copy is kept; and lists of keys, of
//! which it is remembered what they are used for.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::index::Looked;
use super::raw::RawAttributes;

/// Names met lately, each in the slot of its hash; a newer one takes the place of an older one.
#[derive(Debug)]
pub struct Names {
    // Invariant: a power of two, for what a mask finds.
    slots: Vec<Option<Arc<str>>>,
    // Lists of keys that were looked up, the latest last; where few spans come, one that nobody asks for, as room.
    looked: Vec<Looked>,
    few: bool,
}

/// Slots at most: what is sent at once has fewer names that come again.
const MAX_SLOTS: usize = 512;

/// Lists of keys at most, and spans from which on they are remembered: each kind of span has its own.
const MAX_LISTS: usize = 16;
const MANY_SPANS: u64 = 8;

impl Names {
    /// Room for the names of about so many spans.
    pub fn of_spans(spans: u64) -> Self {
        let slots = usize::try_from(spans).unwrap_or(MAX_SLOTS).saturating_mul(4);
        let slots = vec![None; slots.clamp(16, MAX_SLOTS).next_power_of_two()];
        Self { slots, looked: Vec::new(), few: spans < MANY_SPANS }
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
    /// What is known of the keys of these attributes, which is nothing of new ones; and whether to remember that.
    pub(super) fn take_looked(&mut self, attributes: &RawAttributes<'_>) -> (Looked, bool) {
        let known = self.looked.iter().rposition(|looked| looked.is_of(attributes));
        let looked = match known {
            Some(at) => self.looked.remove(at),
            None if self.few || self.looked.len() >= MAX_LISTS => {
                if self.looked.is_empty() {
                    Looked::default()
                } else {
                    self.looked.remove(0)
                }
            }
            None => Looked::default(),
        };
        (looked, !self.few)
    }

    /// Keeps what was looked up.
    pub(super) fn give_looked(&mut self, looked: Looked) {
        self.looked.push(looked);
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
