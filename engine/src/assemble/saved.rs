//! The state of a shard in a snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::open_trace::{OpenTrace, State};
use super::sealed::Sealed;
use super::turns::Turns;
use super::{Assembler, TraceId, TraceKey, Waiting};

/// The serialised state of a shard: traces, sealed ones, waiting reports.
#[derive(Debug, Deserialize, Serialize)]
struct Saved<T, S, W, U> {
    traces: T,
    sealed: S,
    waiting: W,
    #[serde(default)]
    paid: BTreeMap<u64, i64>,
    turns: U,
}

/// All traces, for serialisation.
struct Written<'a>(&'a Assembler);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // Their number is written first.
        let held = |id: &TraceKey| self.0.traces.contains(*id);
        let ids: Vec<TraceKey> = self.0.deadlines.traces().filter(held).collect();
        to.collect_seq(ids.into_iter().map(|id| (id, self.0.traces.get(id))))
    }
}

/// The state of a shard that was read from a snapshot.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct SavedTraces(Read);

type Read = Saved<Vec<(TraceKey, Box<OpenTrace>)>, Sealed, Waiting<TraceId>, Turns>;

impl Assembler {
    /// The state for a snapshot; nothing may wait to be drained.
    pub fn save(&self) -> impl Serialize + '_ {
        Saved {
            traces: Written(self),
            sealed: &self.sealed,
            waiting: &self.waiting,
            paid: self.paid.clone(),
            turns: &self.turns,
        }
    }

    /// Takes over the state from a snapshot.
    pub fn restore(&mut self, saved: SavedTraces) {
        let Saved { traces, sealed, waiting, paid, turns } = saved.0;
        for (id, mut held) in traces {
            held.id = id;
            held.restored(&mut self.symbols);
            self.bytes.change(id, Default::default(), held.bytes());
            self.deadlines.insert(&held);
            if held.state == State::Open {
                self.ages.add(held.opened);
            }
            self.traces.insert(held);
        }
        self.sealed = sealed;
        // It may have been written with a larger bound.
        let over = self.sealed.make_room(self.options.max_sealed_traces, &self.shares);
        self.counts.add_many("sealed_traces", "forgotten", over);
        let over = self.waiting.restore(waiting, &self.shares);
        self.counts.add_many("reports", "waiting_full", over);
        self.paid = paid;
        self.turns = turns;
    }
}
