//! The board: the agents as they stand, for everybody who reads. The one concurrent map.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;

use super::history::{ApiOptions, HistoryView, Ring};
use crate::engine::agent_update::AgentUpdate;
use crate::engine::span::Timestamp;
use crate::engine::update::AgentKey;
use crate::engine::view::AgentName;

/// The newest word on each agent, and a little of its past.
#[derive(Debug, Default)]
pub struct Board {
    agents: DashMap<AgentKey, Posted>,
    // Rises with everything that is written.
    revision: AtomicU64,
    options: ApiOptions,
    shown: OnceLock<Shown>,
}

/// Whether agents are shown at all.
struct Shown(Box<dyn Fn() -> bool + Send + Sync>);

/// An agent on the board.
#[derive(Clone, Debug)]
struct Posted {
    update: Arc<AgentUpdate>,
    revision: u64,
    past: Ring,
}

impl Board {
    /// An empty board that remembers so much.
    pub fn new(options: ApiOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Shows agents only while this holds: otherwise somebody else may own them.
    pub fn show_while(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        // Only the first time counts, and there is one.
        let _ = self.shown.set(Shown(Box::new(holds)));
    }

    /// Writes an agent down, or wipes it off if it is gone.
    pub fn apply(&self, update: AgentUpdate) {
        let revision = self.revision.fetch_add(1, Ordering::Relaxed) + 1;
        if update.gone {
            self.agents.remove(&update.agent);
            return;
        }
        let key = update.agent.clone();
        let update = Arc::new(update);
        let mut posted = self.agents.entry(key).or_insert_with(|| Posted {
            update: Arc::clone(&update),
            revision,
            past: Ring::default(),
        });
        posted.update = update;
        posted.revision = revision;
    }

    /// Adds a point to every agent's past.
    pub fn sample(&self, now: Timestamp) {
        for update in self.sorted() {
            if let Some(mut posted) = self.agents.get_mut(&update.agent) {
                let Posted { update, past, .. } = &mut *posted;
                past.note(update, now, self.options.history_points);
            }
        }
    }

    /// All agents, in the order of their names.
    pub fn sorted(&self) -> Vec<Arc<AgentUpdate>> {
        self.changed(0).0
    }

    /// The agents that were written down since a revision, in the order of their names, and the revision now.
    #[expect(clippy::disallowed_methods, reason = "sorted before anybody sees it")]
    pub fn changed(&self, since: u64) -> (Vec<Arc<AgentUpdate>>, u64) {
        // Read first: what is written meanwhile may be told twice, but is not missed.
        let revision = self.revision.load(Ordering::Relaxed);
        if self.shown.get().is_some_and(|shown| !(shown.0)()) {
            return (Vec::new(), revision);
        }
        let posted =
            self.agents.iter().filter(|entry| since == 0 || entry.value().revision > since);
        let mut agents: Vec<_> = posted.map(|entry| Arc::clone(&entry.value().update)).collect();
        agents.sort_by(|a, b| a.agent.cmp(&b.agent));
        (agents, revision)
    }

    /// The revision now.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// One agent as it stands.
    pub fn agent(&self, key: &AgentKey) -> Option<Arc<AgentUpdate>> {
        self.agents.get(key).map(|posted| Arc::clone(&posted.update))
    }

    /// Whether an agent is on the board.
    pub fn holds(&self, key: &AgentKey) -> bool {
        self.agents.contains_key(key)
    }

    /// An agent's past; `None` if it is not on the board.
    pub fn history(&self, key: &AgentKey, agent: AgentName) -> Option<HistoryView> {
        let posted = self.agents.get(key)?;
        Some(posted.past.view(agent, self.options.history_step))
    }

    /// The last points of an agent's share of failing traces in one window.
    pub fn failing(&self, key: &AgentKey, window: &str, points: usize) -> Vec<Option<f64>> {
        let posted = self.agents.get(key);
        posted.map_or_else(Vec::new, |posted| posted.past.failing(window, points))
    }

    /// What it remembers.
    pub fn options(&self) -> ApiOptions {
        self.options
    }

    /// How many agents there are.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentUpdate {
        let agent = AgentKey { agent_name: name.to_owned(), ..AgentKey::default() };
        AgentUpdate { agent, ..AgentUpdate::default() }
    }

    #[test]
    fn only_what_changed_is_told_again() {
        let board = Board::default();
        board.apply(agent("b"));
        board.apply(agent("a"));
        let (all, revision) = board.changed(0);
        assert_eq!(
            all.iter().map(|update| &update.agent.agent_name).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert!(board.changed(revision).0.is_empty());
        board.apply(agent("b"));
        assert_eq!(board.changed(revision).0.len(), 1);
        board.apply(AgentUpdate { gone: true, ..agent("b") });
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
    }

    #[test]
    fn the_past_goes_with_its_agent() {
        let board = Board::default();
        board.apply(agent("a"));
        board.sample(Timestamp(1));
        let past = |board: &Board| board.history(&agent("a").agent, AgentName::default());
        assert_eq!(past(&board).unwrap().unix_nano, ["1"]);
        board.apply(AgentUpdate { gone: true, ..agent("a") });
        assert_eq!(past(&board), None);
    }
}
