//! Paces calls: each session once per cooldown, and only so many sessions a minute. A trace that moves to another session when its
//! root comes counts as reported there, too.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::engine::facts::ScopedId;
use crate::engine::span::Timestamp;

/// The sessions and traces that were reported, and when. It holds at most what the cap lets through in a cooldown.
#[derive(Debug)]
pub(super) struct Pace {
    cooldown: Duration,
    max_per_minute: usize,
    told: BTreeSet<Key>,
    order: VecDeque<(Timestamp, Key)>,
    minute: VecDeque<Timestamp>,
}

/// A key by which a reported session is recognised.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Key {
    /// A tenant's session.
    Session(String, ScopedId),
    /// A trace that runs away, by its id.
    Trace(String),
}

impl Pace {
    pub(super) fn new(cooldown: Duration, max_per_minute: usize) -> Self {
        let (told, order) = (BTreeSet::new(), VecDeque::new());
        Self { cooldown, max_per_minute, told, order, minute: VecDeque::new() }
    }

    /// Lets a session through; fails with the reason if it is held back: `cooldown` or `capped`.
    pub(super) fn admit(&mut self, keys: Vec<Key>, now: Timestamp) -> Result<(), &'static str> {
        while let Some((_, told)) =
            self.order.pop_front_if(|(at, _)| at.after(self.cooldown) <= now)
        {
            self.told.remove(&told);
        }
        while self.minute.pop_front_if(|at| at.after(MINUTE) <= now).is_some() {}
        if keys.iter().any(|key| self.told.contains(key)) {
            return Err("cooldown");
        }
        if self.minute.len() >= self.max_per_minute {
            return Err("capped");
        }
        self.order.extend(keys.iter().map(|key| (now, key.clone())));
        self.told.extend(keys);
        self.minute.push_back(now);
        Ok(())
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn of(tenant: &str, id: &str) -> Vec<Key> {
        vec![Key::Session(tenant.to_owned(), ScopedId { id: id.into(), ..ScopedId::default() })]
    }

    fn session(id: &str) -> Vec<Key> {
        of("", id)
    }

    #[test]
    fn a_session_is_told_once_per_cooldown() {
        let mut pace = Pace::new(Duration::from_secs(600), 10);
        assert_eq!(pace.admit(session("a"), at(0)), Ok(()));
        assert_eq!(pace.admit(session("a"), at(599)), Err("cooldown"));
        assert_eq!(pace.admit(session("b"), at(599)), Ok(()));
        assert_eq!(pace.admit(of("t", "a"), at(599)), Ok(()));
        assert_eq!(pace.admit(session("a"), at(600)), Ok(()));
    }

    #[test]
    fn a_trace_that_was_told_of_is_not_told_again_in_another_session() {
        let mut pace = Pace::new(Duration::from_secs(600), 10);
        let with =
            |id: &str, trace: &str| [session(id), vec![Key::Trace(trace.to_owned())]].concat();
        assert_eq!(pace.admit(with("before its root", "1"), at(0)), Ok(()));
        assert_eq!(pace.admit(with("after its root", "1"), at(1)), Err("cooldown"));
        assert_eq!(pace.admit(with("after its root", "2"), at(1)), Ok(()));
        assert_eq!(pace.admit(with("another", "1"), at(600)), Ok(()));
    }

    #[test]
    fn so_many_a_minute_are_told_and_those_held_back_may_come_again() {
        let mut pace = Pace::new(Duration::from_secs(600), 2);
        assert_eq!(pace.admit(session("a"), at(0)), Ok(()));
        assert_eq!(pace.admit(session("b"), at(30)), Ok(()));
        assert_eq!(pace.admit(session("c"), at(59)), Err("capped"));
        assert_eq!(pace.admit(session("c"), at(60)), Ok(()));
        assert_eq!(pace.admit(session("d"), at(61)), Err("capped"));
        assert_eq!((pace.told.len(), pace.minute.len()), (3, 2));
    }
}
