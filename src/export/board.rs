//! The board: the newest update of each agent, for all readers. It is the only map that threads share.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use std::{fmt, mem};

use super::history::{ApiOptions, HistoryView, Lookback, NewVersionView, Range, Ring, Row};
use super::kept_history::{KeptHistory, NotKept};
use crate::engine::agent_facts::AgentFacts;
use crate::engine::facts::AgentKey;
use crate::engine::span::Timestamp;
use crate::engine::view::{AgentName, WindowView};

/// The newest update of each agent, and some of its history.
#[derive(Debug, Default)]
pub struct Board {
    // Invariant: while it is locked, nothing waits and nothing is read from a disk.
    posts: RwLock<Posts>,
    options: ApiOptions,
    shown: OnceLock<Shown>,
    kept: OnceLock<KeptHistory>,
}

/// The condition under which agents are shown at all.
struct Shown(Box<dyn Fn() -> bool + Send + Sync>);

/// The agents on the board.
#[derive(Debug, Default)]
struct Posts {
    agents: BTreeMap<AgentKey, Posted>,
    // Rises with every update.
    revision: u64,
}

/// An agent on the board.
#[derive(Debug)]
struct Posted {
    update: Arc<AgentFacts>,
    revision: u64,
    past: Ring,
    /// The time of its first point in the history.
    began: Option<Timestamp>,
}

impl Board {
    /// An empty board with these bounds of the history.
    pub fn new(options: ApiOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Shows agents only while `holds` is true: otherwise another instance may own them.
    pub fn show_while(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        // Only the first call counts, and there is only one.
        let _ = self.shown.set(Shown(Box::new(holds)));
    }

    /// Replaces the update of an agent, or removes an agent that is gone.
    pub fn apply(&self, update: AgentFacts) {
        let update = Arc::new(update);
        let mut posts = self.write();
        posts.revision += 1;
        let revision = posts.revision;
        // The old update may take long to free, so it is dropped after the lock is released.
        if update.gone {
            let gone = posts.agents.remove(&update.agent);
            drop(posts);
            return drop(gone);
        }
        if let Some(posted) = posts.agents.get_mut(&update.agent) {
            posted.revision = revision;
            let old = mem::replace(&mut posted.update, update);
            drop(posts);
            return drop(old);
        }
        let key = update.agent.clone();
        let posted = Posted { update, revision, past: Ring::default(), began: None };
        posts.agents.insert(key, posted);
    }

    /// Adds a point to every agent's history.
    pub fn sample(&self, now: Timestamp) {
        if !self.is_shown() {
            return;
        }
        for Posted { update, past, began, .. } in self.write().agents.values_mut() {
            began.get_or_insert(now);
            past.note(update, now, self.options.history_points);
        }
    }

    /// From here on keeps the history of agents in `history`.
    pub fn keep(&self, history: KeptHistory) {
        // Only the first call counts, and there is only one.
        let _ = self.kept.set(history);
    }

    /// Writes a row of every agent to the kept history, if there is one; returns why rows were not written, and how many agents
    /// lost their slots to others since the last time.
    pub fn keep_rows(&self, now: Timestamp) -> (Vec<NotKept>, usize) {
        let Some(kept) = self.kept.get() else { return Default::default() };
        let agents = self.sorted();
        let rows = agents.iter().map(|update| {
            let window = headline(update).map(|(_, window)| window);
            kept.note(&update.agent, Row::of(update, window, now))
        });
        (rows.filter_map(Result::err).collect(), kept.take_displaced())
    }

    /// How far back the history reaches.
    pub fn remembers(&self) -> Duration {
        let held = self
            .options
            .history_step
            .saturating_mul(u32::try_from(self.options.history_points).unwrap_or(u32::MAX));
        self.kept.get().map_or(held, |_| Range::Week.lasting())
    }

    /// All agents, in the order of their names.
    pub fn sorted(&self) -> Vec<Arc<AgentFacts>> {
        self.wanted(|_| true)
    }

    /// The agents that `wanted` admits, in the order of their names.
    pub fn wanted(&self, wanted: impl Fn(&AgentFacts) -> bool) -> Vec<Arc<AgentFacts>> {
        self.changed(0, wanted).0
    }

    /// The agents that `wanted` admits and that were updated after the revision `since`, and the revision that this covers. While
    /// no agents are shown, the revision does not advance.
    pub fn changed(
        &self,
        since: u64,
        wanted: impl Fn(&AgentFacts) -> bool,
    ) -> (Vec<Arc<AgentFacts>>, u64) {
        if !self.is_shown() {
            return (Vec::new(), since);
        }
        let posts = self.read();
        let posted = posts.agents.values().filter(|posted| posted.revision > since);
        let updates = posted.map(|posted| &posted.update).filter(|update| wanted(update));
        (updates.cloned().collect(), posts.revision)
    }

    /// The current revision.
    pub fn revision(&self) -> u64 {
        self.read().revision
    }

    /// The newest update of one agent.
    pub fn agent(&self, key: &AgentKey) -> Option<Arc<AgentFacts>> {
        self.read().agents.get(key).map(|posted| Arc::clone(&posted.update))
    }

    /// Whether an agent is on the board.
    pub fn holds(&self, key: &AgentKey) -> bool {
        self.read().agents.contains_key(key)
    }

    /// An agent's history; `None` if it is not on the board. Reads the disk if the history is kept there.
    pub fn history(
        &self,
        key: &AgentKey,
        agent: AgentName,
        lookback: Lookback,
    ) -> Option<HistoryView> {
        let update = self.agent(key)?;
        let window = headline(&update).map_or("", |(name, _)| name);
        let rows = self.rows(key, lookback);
        let new_versions = self.new_versions(key);
        let step = if lookback.range == Range::Hour {
            self.options.history_step
        } else {
            Duration::from_secs(lookback.range.archive().step().into())
        };
        let posts = self.read();
        let past = &posts.agents.get(key)?.past;
        Some(HistoryView { new_versions, ..past.view(agent, step, (window, &rows)) })
    }

    /// The last points of an agent's share of failing traces in one window. Reads the disk for more than the last hour.
    pub fn failing(
        &self,
        key: &AgentKey,
        window: &str,
        points: usize,
        lookback: Lookback,
    ) -> Vec<Option<f64>> {
        let held = |posts: &Posts| Some(posts.agents.get(key)?.past.failing(window, points));
        let held = held(&self.read()).unwrap_or_default();
        if lookback.range == Range::Hour {
            return held;
        }
        let rows = self.rows(key, lookback);
        // The last known value of each stretch of time.
        let each = rows.len().div_ceil(points).max(1);
        let last = |rows: &[Row]| rows.iter().rev().find_map(Row::failure_ratio);
        let kept: Vec<Option<f64>> = rows.chunks(each).map(last).collect();
        if kept.is_empty() { held } else { kept }
    }

    /// The kept rows of an agent.
    fn rows(&self, key: &AgentKey, lookback: Lookback) -> Vec<Row> {
        let Lookback { range, now } = lookback;
        let since = now.0.saturating_sub(nanos(range.lasting())) / 1_000_000_000;
        let since = u32::try_from(since).unwrap_or(u32::MAX);
        let kept = self.kept.get();
        kept.map_or_else(Vec::new, |kept| kept.read(key, range.archive(), since))
    }

    /// When versions of an agent were first seen, without the first known one.
    fn new_versions(&self, key: &AgentKey) -> Vec<NewVersionView> {
        let posted: Vec<(AgentKey, Option<Timestamp>)> = {
            let posts = self.read();
            let own = posts.agents.get_key_value(key);
            let alike = own.into_iter().chain(key.other_versions(&posts.agents));
            alike.map(|(other, posted)| (other.clone(), posted.began)).collect()
        };
        // Writers of the board do not wait for the disk.
        let began = posted.into_iter().filter_map(|(other, posted)| {
            let kept = self.kept.get().and_then(|kept| kept.began(&other));
            Some((kept.or(posted)?, other.agent_version.to_string()))
        });
        let mut versions: Vec<(Timestamp, String)> = began.collect();
        versions.sort();
        let first = versions.first().map(|(began, _)| *began);
        versions.retain(|(began, _)| Some(*began) > first);
        let view = |(began, version): (Timestamp, String)| NewVersionView {
            agent_version: Some(version).filter(|version| !version.is_empty()),
            unix_nano: began.0.to_string(),
        };
        versions.into_iter().map(view).collect()
    }

    /// The bounds of the history, and the other options of the API.
    pub fn options(&self) -> ApiOptions {
        self.options
    }

    /// The number of agents.
    pub fn len(&self) -> usize {
        self.read().agents.len()
    }

    /// Whether there are no agents.
    pub fn is_empty(&self) -> bool {
        self.read().agents.is_empty()
    }

    fn is_shown(&self) -> bool {
        self.shown.get().is_none_or(|shown| (shown.0)())
    }

    fn read(&self) -> RwLockReadGuard<'_, Posts> {
        self.posts.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Posts> {
        self.posts.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The window whose numbers are an agent's headline: that of the last traces if there is one, as windows of time can be empty; else
/// the first.
pub(super) fn headline(update: &AgentFacts) -> Option<(&Arc<str>, &WindowView)> {
    let last = update.view.windows.iter().find(|(name, _)| name.starts_with("last_"));
    last.or_else(|| update.view.windows.iter().next())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::engine::facts::AgentParts;
    use crate::engine::tenants::Shares;

    fn agent(name: &str) -> AgentFacts {
        let agent = AgentParts { agent_name: name.into(), ..AgentParts::default() }.into();
        AgentFacts { agent, ..AgentFacts::default() }
    }

    #[test]
    fn only_what_changed_is_told_again() {
        let board = Board::default();
        board.apply(agent("b"));
        board.apply(agent("a"));
        let (all, revision) = board.changed(0, |_| true);
        assert_eq!(
            all.iter().map(|update| &*update.agent.agent_name).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert!(board.changed(revision, |_| true).0.is_empty());
        board.apply(agent("b"));
        assert_eq!(board.changed(revision, |_| true).0.len(), 1);
        board.apply(AgentFacts { gone: true, ..agent("b") });
        assert!(!board.holds(&agent("b").agent));
    }

    #[test]
    fn agents_that_somebody_else_may_own_are_not_shown() {
        let board = Board::default();
        board.apply(agent("a"));
        let own = Arc::new(AtomicU64::new(1));
        let asked = own.clone();
        board.show_while(move || asked.load(Ordering::Relaxed) > 0);
        assert_eq!(board.sorted().len(), 1);
        own.store(0, Ordering::Relaxed);
        assert!(board.sorted().is_empty());
        // Changes made meanwhile are sent once agents are shown again.
        board.apply(agent("b"));
        let (none, up_to) = board.changed(1, |_| true);
        assert!(none.is_empty());
        own.store(1, Ordering::Relaxed);
        assert_eq!(board.changed(up_to, |_| true).0.len(), 1);
    }

    #[test]
    fn the_past_goes_with_its_agent() {
        let board = Board::default();
        board.apply(agent("a"));
        board.sample(Timestamp(1));
        let lookback = Lookback { range: Range::Hour, now: Timestamp(2) };
        let past = |board: &Board| board.history(&agent("a").agent, AgentName::default(), lookback);
        assert_eq!(past(&board).unwrap().unix_nano, ["1"]);
        board.apply(AgentFacts { gone: true, ..agent("a") });
        assert_eq!(past(&board), None);
    }

    #[test]
    fn the_past_outlives_the_process_where_it_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let minute = 60_000_000_000;
        let version = |version: &str| {
            let update = agent("a");
            let agent =
                AgentParts { agent_version: version.into(), ..AgentParts::clone(&update.agent) }
                    .into();
            AgentFacts { agent, ..update }
        };
        let board = |minutes: &[u64]| {
            let board = Board::default();
            board.keep(KeptHistory::open(directory.path(), 2, Shares::default()).unwrap());
            for at in minutes {
                board.apply(version("1"));
                if *at > 5 {
                    board.apply(version("2"));
                }
                board.sample(Timestamp(at * minute));
                assert_eq!(board.keep_rows(Timestamp(at * minute)), (vec![], 0));
            }
            board
        };
        board(&[1, 2, 6]);
        let board = board(&[100]);
        let past = |range| {
            let lookback = Lookback { range, now: Timestamp(100 * minute) };
            board.history(&version("1").agent, AgentName::default(), lookback).unwrap()
        };
        let at = |minutes: u64| (minutes * minute).to_string();
        assert_eq!(past(Range::Hour).unix_nano, [at(100)]);
        assert_eq!(past(Range::SixHours).unix_nano, [at(1), at(2), at(6), at(100)]);
        let [deployed] = &past(Range::Week).new_versions[..] else { panic!("one is new") };
        assert_eq!(
            deployed,
            &NewVersionView { agent_version: Some("2".to_owned()), unix_nano: at(6) }
        );
    }
}
