//! How often an endpoint is told: each session once per cooldown, and so many a minute.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::engine::span::Timestamp;

/// Whom it was told of, and when. It holds at most what the cap lets through in a cooldown.
#[derive(Debug)]
pub(super) struct Pace {
    cooldown: Duration,
    max_per_minute: usize,
    told: BTreeSet<Key>,
    order: VecDeque<(Timestamp, Key)>,
    minute: VecDeque<Timestamp>,
}

/// A session: its tenant and its id.
pub(super) type Key = (String, String);

impl Pace {
    pub(super) fn new(cooldown: Duration, max_per_minute: usize) -> Self {
        let (told, order) = (BTreeSet::new(), VecDeque::new());
        Self { cooldown, max_per_minute, told, order, minute: VecDeque::new() }
    }

    /// Lets a session through, or says what holds it back: `cooldown` or `capped`.
    pub(super) fn admit(&mut self, session: &Key, now: Timestamp) -> Result<(), &'static str> {
        while let Some((_, told)) =
            self.order.pop_front_if(|(at, _)| at.after(self.cooldown) <= now)
        {
            self.told.remove(&told);
        }
        while self.minute.pop_front_if(|at| at.after(MINUTE) <= now).is_some() {}
        if self.told.contains(session) {
            return Err("cooldown");
        }
        if self.minute.len() >= self.max_per_minute {
            return Err("capped");
        }
        self.told.insert(session.clone());
        self.order.push_back((now, session.clone()));
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

    fn session(id: &str) -> Key {
        (String::new(), id.to_owned())
    }

    #[test]
    fn a_session_is_told_once_per_cooldown() {
        let mut pace = Pace::new(Duration::from_secs(600), 10);
        assert_eq!(pace.admit(&session("a"), at(0)), Ok(()));
        assert_eq!(pace.admit(&session("a"), at(599)), Err("cooldown"));
        assert_eq!(pace.admit(&session("b"), at(599)), Ok(()));
        assert_eq!(pace.admit(&("t".to_owned(), "a".to_owned()), at(599)), Ok(()));
        assert_eq!(pace.admit(&session("a"), at(600)), Ok(()));
    }

    #[test]
    fn so_many_a_minute_are_told_and_those_held_back_may_come_again() {
        let mut pace = Pace::new(Duration::from_secs(600), 2);
        assert_eq!(pace.admit(&session("a"), at(0)), Ok(()));
        assert_eq!(pace.admit(&session("b"), at(30)), Ok(()));
        assert_eq!(pace.admit(&session("c"), at(59)), Err("capped"));
        assert_eq!(pace.admit(&session("c"), at(60)), Ok(()));
        assert_eq!(pace.admit(&session("d"), at(61)), Err("capped"));
        assert_eq!((pace.told.len(), pace.minute.len()), (3, 2));
    }
}
