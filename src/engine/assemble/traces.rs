//! The traces that can still change, found by id: those for which nothing comes at the moment are bytes.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;
use serde::ser::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use super::held::Held;
use crate::engine::bytes::Reader;
use crate::engine::hash::FixedMap;
use crate::engine::heap::{Heap, Place};
use crate::engine::span::{Resource, Timestamp, TraceId};
use crate::engine::trace::Names;

/// How long nothing has come for a trace before it is packed.
const REST: Duration = Duration::from_secs(1);

/// All traces.
#[derive(Debug, Default)]
pub(super) struct Traces {
    slots: Vec<Slot>,
    free: Vec<u32>,
    // Invariant: these have the numbers of all of them, each once.
    by_id: HashTable<u32>,
    resting: Heap,
    // Long texts of those at rest that have some.
    texts: FixedMap<u32, [Vec<Arc<str>>; 2]>,
    names: Names,
    now: Timestamp,
    // Invariant: every trace that is not at rest, and when it was last looked at; some may be gone.
    awake: VecDeque<(Timestamp, TraceId)>,
}

#[derive(Debug)]
struct Slot {
    id: TraceId,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    /// None: the slot is free.
    Awake(Option<Box<Held>>),
    /// Where its bytes are, and where its spans come from.
    AtRest(Place, Arc<Resource>),
}

/// A trace that somebody looks at.
pub(super) enum Seen<'a> {
    /// As it is kept.
    Awake(&'a Held),
    /// Unpacked for the purpose.
    Copy(Box<Held>),
}

impl Traces {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is one of this id.
    pub(super) fn contains(&self, id: TraceId) -> bool {
        self.number(id).is_some()
    }

    /// Notes the time.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The trace of this id, as it is.
    pub(super) fn get(&self, id: TraceId) -> Option<Seen<'_>> {
        let number = self.number(id)?;
        match &self.slots.get(at(number))?.kept {
            Kept::Awake(held) => held.as_deref().map(Seen::Awake),
            Kept::AtRest(place, resource) => {
                let bytes = self.resting.get(*place);
                let mut held = Held::unpack(bytes, resource, &self.names);
                let texts = self.texts.get(&number).cloned();
                held.parts.spans.put_texts(texts.unwrap_or_default());
                Some(Seen::Copy(Box::new(held)))
            }
        }
    }

    /// The trace of this id without its spans, as far as that costs less.
    pub(super) fn head(&self, id: TraceId) -> Option<Seen<'_>> {
        match &self.slots.get(at(self.number(id)?))?.kept {
            Kept::Awake(held) => held.as_deref().map(Seen::Awake),
            Kept::AtRest(place, resource) => {
                let mut bytes = Reader(self.resting.get(*place));
                Some(Seen::Copy(Box::new(Held::unpack_head(&mut bytes, resource).0)))
            }
        }
    }

    /// Bytes of its long texts that only people and models read.
    pub(super) fn text_bytes(&self, id: TraceId) -> usize {
        let Some(number) = self.number(id) else { return 0 };
        match self.slots.get(at(number)).map(|slot| &slot.kept) {
            Some(Kept::Awake(Some(held))) => held.parts.spans.extra_bytes(),
            Some(Kept::AtRest(..)) => {
                let extra = self.texts.get(&number).map(|[_, extra]| extra);
                extra.into_iter().flatten().map(|text| text.len()).sum()
            }
            Some(Kept::Awake(None)) | None => 0,
        }
    }

    /// The trace of this id, to be changed.
    pub(super) fn get_mut(&mut self, id: TraceId) -> Option<&mut Held> {
        let number = self.number(id)?;
        let slot = self.slots.get_mut(at(number))?;
        if let Kept::AtRest(place, resource) = &slot.kept {
            let place = *place;
            let mut held = Held::unpack(self.resting.get(place), resource, &self.names);
            held.parts.spans.put_texts(self.texts.remove(&number).unwrap_or_default());
            slot.kept = Kept::Awake(Some(Box::new(held)));
            self.awake.push_back((self.now, id));
            self.resting.remove(place);
            self.tidy();
        }
        match &mut self.slots.get_mut(at(number))?.kept {
            Kept::Awake(held) => held.as_deref_mut(),
            Kept::AtRest(..) => None,
        }
    }

    /// Keeps a trace; there is none of its id.
    pub(super) fn insert(&mut self, id: TraceId, held: Box<Held>) {
        let slot = Slot { id, kept: Kept::Awake(Some(held)) };
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(free) = self.slots.get_mut(at(number)) {
                    *free = slot;
                }
                number
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let slots = &self.slots;
        self.by_id.insert_unique(hash(id), number, |number| hash_of(slots, *number));
        self.awake.push_back((self.now, id));
    }

    /// Takes a trace out; returns where its entry among the deadlines is.
    pub(super) fn remove(&mut self, id: TraceId) -> Option<Timestamp> {
        let queued = self.head(id)?.queued;
        let number = self.number(id)?;
        if let Ok(entry) = self.by_id.find_entry(hash(id), |other| *other == number) {
            entry.remove();
        }
        if let Some(slot) = self.slots.get_mut(at(number))
            && let Kept::AtRest(place, _) = std::mem::replace(&mut slot.kept, Kept::Awake(None))
        {
            self.resting.remove(place);
            self.texts.remove(&number);
            self.tidy();
        }
        self.free.push(number);
        // Gives memory back after a burst.
        let slots = &self.slots;
        if self.by_id.capacity() > 4 * self.by_id.len().max(1_024) {
            self.by_id.shrink_to(2 * self.by_id.len(), |number| hash_of(slots, *number));
        }
        if self.by_id.is_empty() {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
        Some(queued)
    }

    /// Packs traces for which nothing has come for a while. Nobody waits for it: it is done along with something else.
    pub(super) fn rest(&mut self) {
        let now = self.now;
        while let Some((_, id)) = self.awake.pop_front_if(|(since, _)| since.after(REST) <= now) {
            let Some(number) = self.number(id) else { continue };
            let Some(slot) = self.slots.get_mut(at(number)) else { continue };
            let Kept::Awake(Some(held)) = &mut slot.kept else { continue };
            let quiet = held.touched.after(REST) <= now;
            match held.rests().filter(|_| quiet) {
                Some(resource) => {
                    let resource = Arc::clone(resource);
                    let texts = held.parts.spans.take_texts();
                    if texts.iter().any(|texts| !texts.is_empty()) {
                        self.texts.insert(number, texts);
                    }
                    let bytes = held.pack(&mut self.names);
                    slot.kept = Kept::AtRest(self.resting.insert(number, &bytes), resource);
                }
                // One that does not rest yet is looked at again later.
                None => self.awake.push_back((now, id)),
            }
        }
        if self.texts.capacity() > 4 * self.texts.len().max(1_024) {
            self.texts.shrink_to(2 * self.texts.len());
        }
        if self.awake.capacity() > 4 * self.awake.len().max(1_024) {
            self.awake.shrink_to(2 * self.awake.len());
        }
    }

    fn number(&self, id: TraceId) -> Option<u32> {
        let is = |number: &u32| self.slots.get(at(*number)).is_some_and(|slot| slot.id == id);
        self.by_id.find(hash(id), is).copied()
    }

    /// Closes gaps between traces at rest, if there are too many.
    fn tidy(&mut self) {
        while let Some(emptied) = self.resting.empty_one() {
            let slots = &self.slots;
            let holds = |number, place| {
                let kept = slots.get(at(number)).map(|slot| &slot.kept);
                matches!(kept, Some(Kept::AtRest(held, _)) if *held == place)
            };
            for (number, bytes) in emptied.held(holds) {
                let to = self.resting.insert(number, bytes);
                let kept = self.slots.get_mut(at(number)).map(|slot| &mut slot.kept);
                if let Some(Kept::AtRest(place, _)) = kept {
                    *place = to;
                }
            }
        }
    }
}

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Held::serialize(self, to)
    }
}

impl Deref for Seen<'_> {
    type Target = Held;

    fn deref(&self) -> &Held {
        match self {
            Seen::Awake(held) => held,
            Seen::Copy(held) => held,
        }
    }
}

fn hash_of(slots: &[Slot], number: u32) -> u64 {
    slots.get(at(number)).map_or(0, |slot| hash(slot.id))
}

fn hash(id: TraceId) -> u64 {
    xxh3_64(&id.0)
}

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
