//! Aligns barriers: holds messages back while a barrier has come in on some inputs of a stage and not on others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{ToAgents, ToSessions};
use crate::engine::facts::Barrier;

/// Counts barriers until one has come in on every input.
pub(super) struct Alignment {
    inputs: usize,
    seen: BTreeMap<u64, usize>,
}

impl Alignment {
    pub(super) fn new(inputs: usize) -> Self {
        Self { inputs, seen: BTreeMap::new() }
    }

    /// Counts a barrier; returns whether it was the last one of its epoch.
    pub(super) fn complete(&mut self, barrier: Barrier) -> bool {
        let seen = self.seen.entry(barrier.epoch).or_default();
        *seen += 1;
        let complete = *seen == self.inputs;
        if complete {
            self.seen.remove(&barrier.epoch);
        }
        complete
    }
}

/// Inputs that are past the barrier of a snapshot which others have not reached: their messages wait, so that a stage that
/// has seen the barrier on all inputs holds exactly what came before it. There is one snapshot at a time.
pub(super) struct Waiting<M> {
    /// Inputs that are past the barrier.
    pub(super) past: BTreeSet<usize>,
    messages: VecDeque<M>,
}

/// A message that may come from one of the inputs.
pub(super) trait StageMessage {
    /// The number of the input that it comes from; `None` if it comes from none.
    fn input(&self) -> Option<usize>;
}

impl StageMessage for ToSessions {
    fn input(&self) -> Option<usize> {
        match self {
            Self::Traces(from, ..) | Self::Barrier(from, _) => Some(*from),
            Self::Report(from, ..) => *from,
            Self::One { .. }
            | Self::Places { .. }
            | Self::Rows { .. }
            | Self::Find { .. }
            | Self::Away { .. }
            | Self::Explain { .. } => None,
        }
    }
}

impl StageMessage for ToAgents {
    fn input(&self) -> Option<usize> {
        match self {
            Self::Updates(from, ..) | Self::Barrier(from, _) => Some(*from),
            Self::Report(..) => None,
        }
    }
}

impl<M: StageMessage> Waiting<M> {
    pub(super) fn new() -> Self {
        Self { past: BTreeSet::new(), messages: VecDeque::new() }
    }

    /// Returns the message, unless it has to wait.
    pub(super) fn admit(&mut self, message: M) -> Option<M> {
        if message.input().is_some_and(|from| self.past.contains(&from)) {
            self.messages.push_back(message);
            return None;
        }
        Some(message)
    }

    /// Puts the waiting messages in front of `rest`, as the barrier has come in on all inputs.
    pub(super) fn release(&mut self, rest: &mut VecDeque<M>) {
        self.past.clear();
        self.messages.append(rest);
        std::mem::swap(&mut self.messages, rest);
    }
}
