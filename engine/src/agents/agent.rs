//! One agent as reported by its shards: the panes of each shard, and the windows that they add up to.

use std::collections::BTreeMap;

use crate::facts::{PaneSum, SessionFacts, Silences};
use crate::run_scores::AgentRuns;
use crate::span::Timestamp;
use crate::window::{PANES, Window};

/// One agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) shards: BTreeMap<u32, Shard>,
    // By the width of their panes; 0 is the window over everything.
    pub(super) windows: BTreeMap<u64, Window>,
    // Present once a run was reported.
    pub(super) runs: Option<Box<AgentRuns>>,
}

/// What one shard has reported about an agent.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) revision: u64,
    // By width and index, each with the revision under which it was sent. Invariant: the sum over shards is in `windows`.
    panes: BTreeMap<(u64, u64), (u64, PaneSum)>,
    // The rest of the newest update, without its panes.
    pub(super) rest: SessionFacts,
}

impl Agent {
    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.runs.is_none()
    }

    /// Whether it can change as time passes.
    pub(super) fn has_panes_or_runs(&self) -> bool {
        self.runs.is_some()
            || self.shards.values().any(|shard| shard.panes.keys().any(|(width, _)| *width > 0))
    }

    /// Whether something is certain to be this agent's: a run, or a trace.
    pub(super) fn is_certain(&self) -> bool {
        self.runs.is_some() || self.shards.values().any(|shard| !shard.rest.uncertain)
    }

    /// Whether some of its open traces are silent.
    pub(super) fn is_silent(&self) -> bool {
        self.shards.values().any(|shard| !shard.rest.silences.open.is_empty())
    }

    /// Adds the silences of its done traces to these.
    pub(super) fn add_done_silences_to(&self, silences: &mut Silences) {
        self.shards.values().for_each(|shard| silences.learn_from(&shard.rest.silences));
    }

    /// Adds its lost traces to these silences.
    pub(super) fn add_lost_to(&self, silences: &mut Silences) {
        self.shards.values().for_each(|shard| silences.add_losses_of(&shard.rest.silences));
    }

    /// Replaces one pane of one shard under a revision; deletes it if it has neither traces nor sessions, or is in no window.
    pub(super) fn replace(&mut self, number: u32, revision: u64, pane: PaneSum, wall: Timestamp) {
        let key = (pane.width_nanos, pane.index);
        let shard = self.shards.entry(number).or_default();
        let window = self.windows.entry(pane.width_nanos).or_default();
        if (pane.traces > 0 || pane.sessions > 0) && !is_out(key, wall) {
            let (told, held) = shard.panes.entry(key).or_default();
            window.replace(held, &pane);
            (*told, *held) = (revision, pane);
        } else if let Some((_, old)) = shard.panes.remove(&key) {
            window.remove(&old);
        }
    }

    /// Drops what a shard sent under a lower revision; returns whether there was any.
    pub(super) fn began(&mut self, number: u32, revision: u64) -> bool {
        let Some(shard) = self.shards.get_mut(&number) else { return false };
        if shard.revision < revision {
            self.forget(number);
            return true;
        }
        let old = shard.panes.extract_if(.., |_, (told, _)| *told < revision);
        let old: Vec<PaneSum> = old.map(|(_, (_, pane))| pane).collect();
        for pane in &old {
            if let Some(window) = self.windows.get_mut(&pane.width_nanos) {
                window.remove(pane);
            }
        }
        !old.is_empty()
    }

    /// Drops everything that a shard has sent.
    pub(super) fn forget(&mut self, number: u32) {
        let Some(shard) = self.shards.remove(&number) else { return };
        for ((width, _), (_, pane)) in shard.panes {
            if let Some(window) = self.windows.get_mut(&width) {
                window.remove(&pane);
            }
        }
    }

    /// Drops panes that are no longer in any window or, after the wall clock was set back, not yet in one; returns whether there
    /// were any.
    pub(super) fn expire(&mut self, wall: Timestamp) -> bool {
        let mut any = false;
        for shard in self.shards.values_mut() {
            let out = shard.panes.keys().copied().filter(|key| is_out(*key, wall));
            let keys: Vec<(u64, u64)> = out.collect();
            for key in keys {
                if let Some(((_, pane), window)) =
                    shard.panes.remove(&key).zip(self.windows.get_mut(&key.0))
                {
                    window.remove(&pane);
                    any = true;
                }
            }
        }
        any
    }
}

/// Whether the pane of this width and index is in no window.
fn is_out((width, index): (u64, u64), wall: Timestamp) -> bool {
    width > 0 && index.abs_diff(wall.0 / width) > PANES
}
