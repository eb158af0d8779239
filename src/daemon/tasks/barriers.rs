//! Aligns barriers: holds messages back while the barrier of a snapshot has arrived on some inputs of a stage and not on others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::{ToAgents, ToSessions};
use crate::engine::facts::Barrier;
use crate::engine::saved;

/// The bytes of messages that wait at barriers, of all stages together, and their limit.
pub(in crate::daemon) struct BarrierRoom {
    max_bytes: usize,
    taken: AtomicUsize,
}

impl BarrierRoom {
    /// Room for this many bytes.
    pub(in crate::daemon) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, taken: AtomicUsize::new(0) }
    }

    /// Takes room; returns whether there was enough.
    fn take(&self, bytes: usize) -> bool {
        self.taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.max_bytes
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Aligns the barriers of a stage: counts each until it has arrived on every input. Inputs past the barrier of a snapshot that
/// others have not reached have to wait, so that a stage with the barrier on all inputs holds exactly what came before it. If there
/// is no room for the waiting messages, the snapshot is abandoned.
pub(super) struct Alignment<M> {
    inputs: usize,
    passed: BTreeMap<u64, usize>,
    /// The snapshot whose barrier some inputs have passed.
    epoch: u64,
    past: BTreeSet<usize>,
    /// The messages of these inputs.
    waiting: VecDeque<M>,
    bytes: usize,
    room: Arc<BarrierRoom>,
    /// Abandoned snapshots whose barrier has not arrived on all inputs.
    given_up: BTreeSet<u64>,
}

/// The next action of a stage.
pub(super) enum Next<M> {
    /// It handles a message other than a barrier.
    Handle(M),
    /// It passes on a barrier that has arrived on all inputs, and saves its state before, if `saves` is set.
    Pass { barrier: Barrier, saves: bool },
    /// It reports that there will be no snapshot of this epoch.
    GiveUp(u64),
    /// Nothing.
    Wait,
}

/// A message that may come from one of the inputs.
pub(super) trait StageMessage {
    /// The number of its input; `None` if it comes from none.
    fn input(&self) -> Option<usize>;

    /// The barrier in this message, with its input.
    fn barrier(&self) -> Option<(usize, Barrier)>;

    /// An estimate of the bytes that it takes.
    fn bytes(&self) -> usize;
}

impl StageMessage for ToSessions {
    fn input(&self) -> Option<usize> {
        match self {
            Self::Traces(from, ..) | Self::Barrier(from, _) => Some(*from),
            Self::Report(from, ..) => *from,
            Self::Ask(_) => None,
        }
    }

    fn barrier(&self) -> Option<(usize, Barrier)> {
        if let Self::Barrier(from, barrier) = self { Some((*from, *barrier)) } else { None }
    }

    fn bytes(&self) -> usize {
        let content = match self {
            Self::Traces(_, updates, _) => updates.iter().map(|update| bytes(&**update)).sum(),
            Self::Report(_, report, _) => bytes(&**report),
            Self::Barrier(..) | Self::Ask(_) => 0,
        };
        content + size_of::<Self>()
    }
}

impl StageMessage for ToAgents {
    fn input(&self) -> Option<usize> {
        match self {
            Self::Updates(from, ..) | Self::Barrier(from, _) => Some(*from),
            Self::Report(..) => None,
        }
    }

    fn barrier(&self) -> Option<(usize, Barrier)> {
        if let Self::Barrier(from, barrier) = self { Some((*from, *barrier)) } else { None }
    }

    fn bytes(&self) -> usize {
        let content = match self {
            Self::Updates(_, updates, _) => updates.iter().map(bytes).sum(),
            Self::Report(report, _) => bytes(&**report),
            Self::Barrier(..) => 0,
        };
        content + size_of::<Self>()
    }
}

/// An estimate of the bytes of facts: the struct, and the data that it points to, as large as when serialised.
fn bytes<T: Serialize>(facts: &T) -> usize {
    size_of::<T>() + saved::write(facts).map_or(0, |written| written.len())
}

impl<M: StageMessage> Alignment<M> {
    pub(super) fn new(inputs: usize, room: Arc<BarrierRoom>) -> Self {
        Self {
            inputs,
            passed: BTreeMap::new(),
            epoch: 0,
            past: BTreeSet::new(),
            waiting: VecDeque::new(),
            bytes: 0,
            room,
            given_up: BTreeSet::new(),
        }
    }

    /// Takes the next message; `rest` has those after it. Messages that need not wait any more are put in front of them.
    pub(super) fn take(&mut self, message: M, rest: &mut VecDeque<M>) -> Next<M> {
        if message.input().is_some_and(|from| self.past.contains(&from)) {
            return self.hold_back(message, rest);
        }
        let Some((from, barrier)) = message.barrier() else { return Next::Handle(message) };
        let passed = self.passed.entry(barrier.epoch).or_default();
        *passed += 1;
        let is_snapshot = barrier.log_sequence.is_some();
        if *passed < self.inputs {
            if is_snapshot && !self.given_up.contains(&barrier.epoch) {
                self.epoch = barrier.epoch;
                self.past.insert(from);
            }
            return Next::Wait;
        }
        self.passed.remove(&barrier.epoch);
        let saves = is_snapshot && !self.given_up.remove(&barrier.epoch);
        if saves {
            self.release(rest);
        }
        Next::Pass { barrier, saves }
    }

    /// Holds a message back; abandons the snapshot if there is no room for it.
    fn hold_back(&mut self, message: M, rest: &mut VecDeque<M>) -> Next<M> {
        let bytes = message.bytes();
        self.waiting.push_back(message);
        self.bytes += bytes;
        if self.room.take(bytes) {
            return Next::Wait;
        }
        self.release(rest);
        self.given_up.insert(self.epoch);
        Next::GiveUp(self.epoch)
    }

    /// Puts the waiting messages in front of `rest`.
    fn release(&mut self, rest: &mut VecDeque<M>) {
        self.past.clear();
        self.room.give_back(mem::take(&mut self.bytes));
        self.waiting.append(rest);
        mem::swap(&mut self.waiting, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message from an input: a number, or a barrier.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    enum Message {
        Number(usize, u64),
        Barrier(usize, Barrier),
    }

    impl StageMessage for Message {
        fn input(&self) -> Option<usize> {
            match self {
                Self::Number(from, _) | Self::Barrier(from, _) => Some(*from),
            }
        }

        fn barrier(&self) -> Option<(usize, Barrier)> {
            if let Self::Barrier(from, barrier) = self { Some((*from, *barrier)) } else { None }
        }

        fn bytes(&self) -> usize {
            10
        }
    }

    fn snapshot(from: usize, epoch: u64) -> Message {
        Message::Barrier(from, Barrier { epoch, log_sequence: Some(7) })
    }

    fn flush(from: usize, epoch: u64) -> Message {
        Message::Barrier(from, Barrier { epoch, log_sequence: None })
    }

    fn number(from: usize, number: u64) -> Message {
        Message::Number(from, number)
    }

    /// What a stage with two inputs does, in order: numbers that it handles, and epochs that it passes (`+` if it saves) or
    /// abandons.
    fn done(max_bytes: usize, messages: &[Message]) -> (Vec<String>, usize) {
        let room = Arc::new(BarrierRoom::new(max_bytes));
        let mut alignment = Alignment::new(2, Arc::clone(&room));
        let mut rest: VecDeque<Message> = messages.iter().copied().collect();
        let mut done = Vec::new();
        while let Some(message) = rest.pop_front() {
            match alignment.take(message, &mut rest) {
                Next::Handle(Message::Number(_, number)) => done.push(number.to_string()),
                Next::Handle(Message::Barrier(..)) => panic!("a barrier is not handled"),
                Next::Pass { barrier, saves } => {
                    let mark = if saves { "+" } else { "" };
                    done.push(format!("pass {}{mark}", barrier.epoch));
                }
                Next::GiveUp(epoch) => done.push(format!("give up {epoch}")),
                Next::Wait => {}
            }
        }
        assert!(alignment.waiting.is_empty() && alignment.given_up.is_empty());
        (done, room.taken.load(Ordering::Relaxed))
    }

    #[test]
    fn what_comes_after_the_barrier_of_a_snapshot_waits_for_the_other_inputs() {
        let messages =
            [number(0, 1), snapshot(0, 1), number(0, 2), flush(0, 2), number(1, 3), snapshot(1, 1)];
        let (done, taken) = done(100, &[&messages[..], &[number(0, 4), flush(1, 2)]].concat());
        assert_eq!((done.join(" "), taken), ("1 3 pass 1+ 2 4 pass 2".to_owned(), 0));
    }

    #[test]
    fn a_snapshot_for_which_too_much_would_wait_is_given_up_and_nothing_is_lost() {
        let messages = [
            snapshot(0, 1),
            number(0, 1),
            number(0, 2),
            number(0, 3),
            number(0, 4),
            // The next snapshot begins before the late barrier of the first has arrived.
            snapshot(0, 2),
            number(0, 5),
            number(1, 6),
            snapshot(1, 1),
            number(1, 7),
            number(0, 8),
            snapshot(1, 2),
            number(1, 9),
        ];
        let (done, taken) = done(30, &messages);
        let expected = "give up 1 1 2 3 4 6 pass 1 7 pass 2+ 5 8 9";
        assert_eq!((done.join(" "), taken), (expected.to_owned(), 0));
    }

    #[test]
    fn a_barrier_that_waits_itself_is_taken_in_its_order() {
        let messages = [
            snapshot(0, 1),
            number(0, 1),
            snapshot(0, 2),
            number(0, 2),
            snapshot(1, 1),
            number(1, 3),
            snapshot(1, 2),
        ];
        let (done, taken) = done(100, &messages);
        assert_eq!((done.join(" "), taken), ("pass 1+ 1 3 pass 2+ 2".to_owned(), 0));
    }
}
