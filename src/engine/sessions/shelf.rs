//! Where sessions are kept: found by id, listed in the order of ids and in that in which they go; those that rest are bytes.
//!
//! Each has a number while it is held, which is all that is known of it anywhere else.

use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::HashTable;
use serde::ser::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::codec::Codec;
use super::key::{Agent, SessionId};
use super::packed::{self, Packed};
use super::rules::Rules;
use super::session::{Session, Standing};
use crate::engine::heap::{Heap, Place};
use crate::engine::sorted::Sorted;
use crate::engine::span::{Timestamp, TraceId};

/// All sessions.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    slots: Vec<Slot>,
    free: Vec<u32>,
    // Invariant: these have the numbers of all of them, each once.
    by_id: HashTable<u32>,
    in_order: Sorted<u32>,
    // As they are filed: where their standing and quiet time put them, or, of the same standing, before. A session of which
    // more comes stays where it is until its turn comes.
    filed: Filed,
    resting: Heap,
    codec: Codec,
}

/// The sessions of each standing by when they were quiet.
#[derive(Clone, Debug, Default)]
struct Filed([Sorted<Entry>; STANDINGS.len()]);

/// When it was quiet, in two halves so that an entry is no larger than what it holds, and its number.
type Entry = (u32, u32, u32);

#[derive(Clone, Debug)]
enum Slot {
    Free,
    Awake(Box<Session>),
    /// Filed where it belongs.
    AtRest(Place),
}

/// A session that somebody looks at.
pub(super) enum Seen<'a> {
    /// As it is kept.
    Awake(&'a Session),
    /// Unpacked for the purpose.
    Copy(Box<Session>),
}

/// A session as it is kept.
pub(super) enum Kept<'a> {
    /// As it is.
    Awake(&'a Session),
    /// As bytes.
    AtRest(Packed<'a>),
}

/// All sessions as they are written down: one after the other, so that few are unpacked at a time.
pub(super) struct Written<'a>(pub(super) &'a Shelf, pub(super) &'a Rules);

/// A tenant, and the id and scope of a session.
type Name<'a> = (&'a str, &'a str, &'a str);

impl Shelf {
    /// No sessions yet, for panes of these widths.
    pub(super) fn new(widths: Arc<[u64]>) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashTable::new(),
            in_order: Sorted::default(),
            filed: Filed::default(),
            resting: Heap::default(),
            codec: Codec::new(widths),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is one of this id.
    pub(super) fn contains(&self, id: &SessionId) -> bool {
        self.number(id).is_some()
    }

    /// The session of this id.
    pub(super) fn get(&self, id: &SessionId, rules: &Rules) -> Option<Seen<'_>> {
        self.seen(self.number(id)?, rules)
    }

    /// Unpacks the session of this id; `None` if it is not at rest.
    pub(super) fn wake(&mut self, id: &SessionId, rules: &Rules) -> Option<&mut Session> {
        let number = self.number(id)?;
        let session = Box::new(self.packed(number)?.unpack(rules, &self.codec));
        self.put(number, Slot::Awake(session));
        self.tidy();
        self.awake_one(number)
    }

    /// The session of this id, if it is not at rest.
    pub(super) fn awake(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.awake_one(self.number(id)?)
    }

    /// Keeps a session, and files it; there is none of its id.
    pub(super) fn insert(&mut self, mut session: Box<Session>) {
        session.filed = session.place();
        let (standing, quiet) = session.filed;
        let id = Arc::clone(&session.id);
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(Slot::Free);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.put(number, Slot::Awake(session));
        let Self { slots, resting, by_id, in_order, .. } = self;
        let name = |number: u32| name_of(slots, resting, number);
        by_id.insert_unique(hash(named(&id)), number, |number| hash(name(*number)));
        in_order.insert(number, |other| name(other).cmp(&named(&id)));
        self.filed.insert((standing, quiet, number));
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, id: &SessionId, rules: &Rules) -> Option<Box<Session>> {
        self.wake(id, rules);
        let number = self.number(id)?;
        let (standing, quiet) = self.awake_one(number)?.filed;
        self.filed.remove((standing, quiet, number));
        let Self { slots, resting, by_id, in_order, .. } = self;
        let name = |number: u32| name_of(slots, resting, number);
        in_order.remove(|other| name(other).cmp(&named(id)));
        if let Ok(entry) = by_id.find_entry(hash(named(id)), |other| *other == number) {
            entry.remove();
        }
        // Gives memory back after a burst.
        if by_id.capacity() > 4 * by_id.len().max(1_024) {
            by_id.shrink_to(2 * by_id.len(), |number| hash(name(*number)));
        }
        let Slot::Awake(session) = std::mem::replace(self.slots.get_mut(at(number))?, Slot::Free)
        else {
            return None;
        };
        self.free.push(number);
        if self.by_id.is_empty() {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
        Some(session)
    }

    /// Files a session where it belongs in the order in which sessions go; returns whether it was not there.
    pub(super) fn refile(&mut self, id: &SessionId) -> bool {
        // One at rest is where it belongs.
        let Some(number) = self.number(id) else { return false };
        let Some(session) = self.awake_one(number) else { return false };
        let (before, after) = (session.filed, session.place());
        if before == after {
            return false;
        }
        session.filed = after;
        let (before, after) = ((before.0, before.1, number), (after.0, after.1, number));
        self.filed.remove(before);
        self.filed.insert(after)
    }

    /// Where a session belongs in the order in which sessions go.
    pub(super) fn place(&self, id: &SessionId) -> Option<(Standing, Timestamp)> {
        match self.slots.get(at(self.number(id)?))? {
            Slot::Free => None,
            Slot::Awake(session) => Some(session.place()),
            Slot::AtRest(place) => Some(Packed(self.resting.get(*place)).place()),
        }
    }

    /// Since when the one of this standing is quiet that is filed first, and its number for `id_of`.
    pub(super) fn quietest(&self, standing: Standing) -> Option<(Timestamp, u32)> {
        self.filed.first(standing)
    }

    /// The id of a session.
    pub(super) fn id_of(&self, number: u32) -> Arc<SessionId> {
        if let Some(Slot::Awake(session)) = self.slots.get(at(number)) {
            return Arc::clone(&session.id);
        }
        Arc::new(SessionId::from(self.name(number)))
    }

    /// The session that is filed first; of several the first by id.
    pub(super) fn first_to_go(&self) -> Option<(Standing, Arc<SessionId>)> {
        let (standing, quiet) = STANDINGS
            .into_iter()
            .find_map(|standing| Some((standing, self.filed.first(standing)?.0)))?;
        let same = self.filed.iter(standing).take_while(|other| other.0 == quiet);
        let number = same.map(|(_, number)| number).min_by_key(|number| self.name(*number))?;
        Some((standing, self.id_of(number)))
    }

    /// Packs a session, if it rests; returns whether it does.
    pub(super) fn pack(&mut self, id: &SessionId, rules: &Rules) -> bool {
        self.refile(id);
        let Some(number) = self.number(id) else { return false };
        let Some(slot @ Slot::Awake(_)) = self.slots.get_mut(at(number)) else { return false };
        let Slot::Awake(session) = std::mem::replace(slot, Slot::Free) else { return false };
        match packed::pack(session, rules, &mut self.codec) {
            Ok(bytes) => {
                *slot = Slot::AtRest(self.resting.insert(number, &bytes));
                self.tidy();
                true
            }
            Err(session) => {
                *slot = Slot::Awake(session);
                false
            }
        }
    }

    /// Notes that nothing more will come of a trace, under this revision. Returns its agent; `None` if it is not held as one
    /// that is done.
    pub(super) fn seal(&mut self, id: &SessionId, trace: TraceId, revision: u64) -> Option<Agent> {
        let number = self.number(id)?;
        match self.slots.get_mut(at(number))? {
            Slot::Free => None,
            Slot::Awake(session) => session.traces.get_mut(&trace)?.seal(revision),
            Slot::AtRest(place) => {
                let packed = Packed(self.resting.get(*place));
                let (bytes, agent) = packed.seal(trace, revision, &mut self.codec)?;
                let place = self.resting.insert(number, &bytes);
                self.put(number, Slot::AtRest(place));
                self.tidy();
                Some(agent)
            }
        }
    }

    /// The sessions of this id that have traces, in the order of their scopes.
    pub(super) fn of_id(&self, tenant: &str, id: &str) -> Vec<Arc<SessionId>> {
        let place = |number| self.name(number).cmp(&(tenant, id, ""));
        let numbers = self.in_order.from(&place);
        numbers
            .take_while(|number| (self.name(*number).0, self.name(*number).1) == (tenant, id))
            .filter(|number| match self.slots.get(at(*number)) {
                Some(Slot::Awake(session)) => !session.traces.is_empty(),
                Some(Slot::AtRest(_)) => true,
                Some(Slot::Free) | None => false,
            })
            .map(|number| self.id_of(number))
            .collect()
    }

    /// All sessions, in the order of tenants and ids.
    pub(super) fn iter<'a>(&'a self, rules: &'a Rules) -> impl Iterator<Item = Seen<'a>> {
        self.in_order.iter().filter_map(|number| self.seen(number, rules))
    }

    /// The ids of all, in their order.
    pub(super) fn ids(&self) -> impl Iterator<Item = Arc<SessionId>> + '_ {
        self.in_order.iter().map(|number| self.id_of(number))
    }

    /// What packed sessions are read with.
    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The sessions of a tenant, or of all, after one.
    pub(super) fn following<'a>(
        &'a self,
        tenant: Option<&'a str>,
        after: Option<&SessionId>,
    ) -> impl Iterator<Item = Kept<'a>> {
        let place = |number| match after {
            // It is before all that follow.
            Some(after) => self.name(number).cmp(&named(after)).then(Ordering::Less),
            None => self.name(number).cmp(&(tenant.unwrap_or_default(), "", "")),
        };
        let numbers = self.in_order.from(&place);
        numbers
            .take_while(move |number| tenant.is_none_or(|tenant| self.name(*number).0 == tenant))
            .filter_map(|number| self.kept(number))
    }

    fn kept(&self, number: u32) -> Option<Kept<'_>> {
        match self.slots.get(at(number))? {
            Slot::Free => None,
            Slot::Awake(session) => Some(Kept::Awake(session)),
            Slot::AtRest(place) => Some(Kept::AtRest(Packed(self.resting.get(*place)))),
        }
    }

    fn number(&self, id: &SessionId) -> Option<u32> {
        let name = named(id);
        self.by_id.find(hash(name), |number| self.name(*number) == name).copied()
    }

    fn name(&self, number: u32) -> Name<'_> {
        name_of(&self.slots, &self.resting, number)
    }

    fn seen(&self, number: u32, rules: &Rules) -> Option<Seen<'_>> {
        Some(match self.slots.get(at(number))? {
            Slot::Free => return None,
            Slot::Awake(session) => Seen::Awake(session),
            Slot::AtRest(place) => {
                let packed = Packed(self.resting.get(*place));
                Seen::Copy(Box::new(packed.unpack(rules, &self.codec)))
            }
        })
    }

    fn awake_one(&mut self, number: u32) -> Option<&mut Session> {
        match self.slots.get_mut(at(number))? {
            Slot::Awake(session) => Some(session),
            Slot::Free | Slot::AtRest(_) => None,
        }
    }

    fn packed(&self, number: u32) -> Option<Packed<'_>> {
        match self.slots.get(at(number))? {
            Slot::AtRest(place) => Some(Packed(self.resting.get(*place))),
            Slot::Free | Slot::Awake(_) => None,
        }
    }

    /// Puts something else in a slot.
    fn put(&mut self, number: u32, with: Slot) {
        let Some(slot) = self.slots.get_mut(at(number)) else { return };
        if let Slot::AtRest(place) = std::mem::replace(slot, with) {
            self.resting.remove(place);
        }
    }

    /// Closes gaps between sessions at rest, if there are too many.
    fn tidy(&mut self) {
        while let Some(emptied) = self.resting.empty_one() {
            let slots = &self.slots;
            let holds = |number, place| matches!(slots.get(at(number)), Some(Slot::AtRest(held)) if *held == place);
            for (number, bytes) in emptied.held(holds) {
                let place = self.resting.insert(number, bytes);
                if let Some(slot) = self.slots.get_mut(at(number)) {
                    *slot = Slot::AtRest(place);
                }
            }
        }
    }
}

impl Filed {
    fn iter(&self, standing: Standing) -> impl Iterator<Item = (Timestamp, u32)> + '_ {
        self.0[standing as usize]
            .iter()
            .map(|(high, low, number)| (Timestamp(u64::from(high) << 32 | u64::from(low)), number))
    }

    fn first(&self, standing: Standing) -> Option<(Timestamp, u32)> {
        self.iter(standing).next()
    }

    /// Returns whether it was not there.
    fn insert(&mut self, (standing, quiet, number): (Standing, Timestamp, u32)) -> bool {
        let entry = entry(quiet, number);
        self.0[standing as usize].insert(entry, |other| other.cmp(&entry))
    }

    fn remove(&mut self, (standing, quiet, number): (Standing, Timestamp, u32)) {
        let entry = entry(quiet, number);
        self.0[standing as usize].remove(|other| other.cmp(&entry));
    }
}

fn entry(Timestamp(quiet): Timestamp, number: u32) -> Entry {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (half(quiet >> 32), half(quiet), number)
}

fn name_of<'a>(slots: &'a [Slot], resting: &'a Heap, number: u32) -> Name<'a> {
    match slots.get(at(number)) {
        Some(Slot::Awake(session)) => named(&session.id),
        Some(Slot::AtRest(place)) => Packed(resting.get(*place)).name(),
        Some(Slot::Free) | None => ("", "", ""),
    }
}

fn named(id: &SessionId) -> Name<'_> {
    (&id.tenant, &id.id, &id.scope)
}

fn hash((tenant, id, scope): Name<'_>) -> u64 {
    let seed = xxh3_64_with_seed(scope.as_bytes(), xxh3_64_with_seed(tenant.as_bytes(), 0));
    xxh3_64_with_seed(id.as_bytes(), seed)
}

/// In the order in which sessions go.
const STANDINGS: [Standing; 3] = [Standing::Empty, Standing::Closed, Standing::Open];

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl<'a> Kept<'a> {
    /// The tenant, the id and the scope.
    pub(super) fn name(&self) -> Name<'a> {
        match self {
            Kept::Awake(session) => named(&session.id),
            Kept::AtRest(packed) => packed.name(),
        }
    }

    /// Whether a trace is in it.
    pub(super) fn holds(&self, trace: TraceId) -> bool {
        match self {
            Kept::Awake(session) => session.traces.contains_key(&trace),
            Kept::AtRest(packed) => packed.records().1.any(|record| record.starts_with(&trace.0)),
        }
    }
}

impl Deref for Seen<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            Seen::Awake(session) => session,
            Seen::Copy(session) => session,
        }
    }
}

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Session::serialize(self, to)
    }
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // The number of them comes first.
        let numbers: Vec<_> = self.0.in_order.iter().collect();
        to.collect_seq(numbers.into_iter().map(|number| self.0.seen(number, self.1)))
    }
}
