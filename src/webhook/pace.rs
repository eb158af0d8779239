//! Paces calls: each session once per cooldown, and only a limited number of sessions per minute, for each tenant its share of
//! them. A trace that moves to another session when its root arrives counts as reported there, too.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::facts::ScopedId;
use crate::engine::span::Timestamp;
use crate::engine::tenants::{Shares, TenantHash};

/// The sessions and traces that were reported, and when. It holds at most what the cap admits in a cooldown.
#[derive(Debug)]
pub(super) struct WebhookRate {
    cooldown: Duration,
    max_per_minute: usize,
    told: BTreeSet<Key>,
    order: VecDeque<(Timestamp, Key)>,
    // The last minute's calls, each with its tenant.
    minute: VecDeque<(Timestamp, TenantHash)>,
    shares: Shares,
}

/// The calls that a pace has admitted, as saved in a snapshot.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct SavedPace {
    order: VecDeque<(Timestamp, Key)>,
    minute: VecDeque<(Timestamp, TenantHash)>,
}

/// A key by which a reported session is recognised.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) enum Key {
    /// A tenant's session.
    Session(String, ScopedId),
    /// A tenant's trace that runs away, by its id.
    Trace(String, String),
}

impl WebhookRate {
    pub(super) fn new(cooldown: Duration, max_per_minute: usize, shares: Shares) -> Self {
        let (told, order) = (BTreeSet::new(), VecDeque::new());
        Self { cooldown, max_per_minute, told, order, minute: VecDeque::new(), shares }
    }

    /// The calls that it has admitted.
    pub(super) fn save(&self) -> SavedPace {
        SavedPace { order: self.order.clone(), minute: self.minute.clone() }
    }

    /// Continues with the calls that an earlier process admitted.
    pub(super) fn restore(&mut self, saved: SavedPace) {
        let SavedPace { order, minute } = saved;
        self.told = order.iter().map(|(_, key)| key.clone()).collect();
        (self.order, self.minute) = (order, minute);
    }

    /// Whether a call that was admitted at that time still matters.
    pub(super) fn still_counts(&self, at: Timestamp, now: Timestamp) -> bool {
        at.after(self.cooldown.max(MINUTE)) > now
    }

    /// Forgets a session that was admitted and is not reported after all: it may be admitted again.
    pub(super) fn take_back(&mut self, keys: &[Key]) {
        self.order.retain(|(_, told)| !keys.contains(told));
        self.told.retain(|told| !keys.contains(told));
    }

    /// Admits a session of a tenant; fails with the reason if it is held back: `cooldown` or `capped`.
    pub(super) fn admit(
        &mut self,
        keys: &[Key],
        tenant: TenantHash,
        now: Timestamp,
    ) -> Result<(), &'static str> {
        while let Some((_, told)) =
            self.order.pop_front_if(|(at, _)| at.after(self.cooldown) <= now)
        {
            self.told.remove(&told);
        }
        while self.minute.pop_front_if(|(at, _)| at.after(MINUTE) <= now).is_some() {}
        if keys.iter().any(|key| self.told.contains(key)) {
            return Err("cooldown");
        }
        let own = self.minute.iter().filter(|(_, of)| *of == tenant).count();
        let quota = self.shares.quota(tenant, self.max_per_minute);
        if own >= quota || self.minute.len() >= self.max_per_minute {
            return Err("capped");
        }
        self.order.extend(keys.iter().map(|key| (now, key.clone())));
        self.told.extend(keys.iter().cloned());
        self.minute.push_back((now, tenant));
        Ok(())
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tenants::TenantOptions;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn of(tenant: &str, id: &str) -> Vec<Key> {
        vec![Key::Session(tenant.to_owned(), ScopedId { id: id.into(), ..ScopedId::default() })]
    }

    fn pace(max: usize) -> WebhookRate {
        WebhookRate::new(Duration::from_secs(600), max, Shares::default())
    }

    fn session(id: &str) -> Vec<Key> {
        of("", id)
    }

    #[test]
    fn a_session_is_told_once_per_cooldown() {
        let mut pace = pace(10);
        assert_eq!(pace.admit(&session("a"), 0, at(0)), Ok(()));
        assert_eq!(pace.admit(&session("a"), 0, at(599)), Err("cooldown"));
        assert_eq!(pace.admit(&session("b"), 0, at(599)), Ok(()));
        assert_eq!(pace.admit(&of("t", "a"), 0, at(599)), Ok(()));
        assert_eq!(pace.admit(&session("a"), 0, at(600)), Ok(()));
    }

    #[test]
    fn what_is_taken_back_may_come_again_and_counts_in_its_minute() {
        let mut pace = pace(2);
        assert_eq!(pace.admit(&session("a"), 0, at(0)), Ok(()));
        pace.take_back(&session("a"));
        assert_eq!((pace.admit(&session("a"), 0, at(1)), pace.order.len()), (Ok(()), 1));
        pace.take_back(&session("a"));
        assert_eq!(pace.admit(&session("a"), 0, at(2)), Err("capped"));
    }

    #[test]
    fn a_trace_that_was_told_of_is_not_told_again_in_another_session() {
        let mut pace = pace(10);
        let with = |id: &str, trace: &str| {
            [session(id), vec![Key::Trace(String::new(), trace.to_owned())]].concat()
        };
        assert_eq!(pace.admit(&with("before its root", "1"), 0, at(0)), Ok(()));
        assert_eq!(pace.admit(&with("after its root", "1"), 0, at(1)), Err("cooldown"));
        assert_eq!(pace.admit(&with("after its root", "2"), 0, at(1)), Ok(()));
        assert_eq!(pace.admit(&with("another", "1"), 0, at(600)), Ok(()));
    }

    #[test]
    fn so_many_a_minute_are_told_and_those_held_back_may_come_again() {
        let mut pace = pace(2);
        assert_eq!(pace.admit(&session("a"), 0, at(0)), Ok(()));
        assert_eq!(pace.admit(&session("b"), 0, at(30)), Ok(()));
        assert_eq!(pace.admit(&session("c"), 0, at(59)), Err("capped"));
        assert_eq!(pace.admit(&session("c"), 0, at(60)), Ok(()));
        assert_eq!(pace.admit(&session("d"), 0, at(61)), Err("capped"));
        assert_eq!((pace.told.len(), pace.minute.len()), (3, 2));
    }

    #[test]
    fn what_an_earlier_process_told_of_holds_back_and_counts() {
        let mut before = pace(2);
        assert_eq!(before.admit(&session("a"), 0, at(0)), Ok(()));
        assert_eq!(before.admit(&session("b"), 0, at(30)), Ok(()));
        let mut pace = pace(2);
        pace.restore(before.save());
        assert_eq!(pace.save(), before.save());
        assert_eq!(pace.admit(&session("a"), 0, at(40)), Err("cooldown"));
        assert_eq!(pace.admit(&session("c"), 0, at(40)), Err("capped"));
        assert_eq!(pace.admit(&session("a"), 0, at(600)), Ok(()));
        assert_eq!(pace.admit(&session("b"), 0, at(600)), Err("cooldown"));
    }

    #[test]
    fn a_tenant_that_runs_away_leaves_others_theirs() {
        let shares = TenantOptions::default().shares(2);
        let mut pace = WebhookRate::new(Duration::from_secs(600), 4, shares);
        let mut told = |tenant: TenantHash, id: &str| {
            pace.admit(&of(&tenant.to_string(), id), tenant, at(0)).is_ok()
        };
        assert_eq!(["a", "b", "c"].map(|id| told(1, id)), [true, true, false]);
        assert_eq!(["a", "b", "c"].map(|id| told(2, id)), [true, true, false]);
    }
}
