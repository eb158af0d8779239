//! Reads a serialised shard, one session after the other.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Sessions;
use super::evicted::EvictedSession;
use super::session::Session;
use super::shard_agents;
use super::summary::Summary;
use crate::facts::SessionId;
use crate::saved::{ReadError, Source};

/// The fields of a serialised shard.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Field {
    Sessions,
    Departed,
    Outstanding,
    Waiting,
    RunOutcomes,
    Runs,
    ShardAgents,
    Now,
    Evicted,
    #[serde(other)]
    Other,
}

/// The number of these fields.
const NEEDED: usize = 9;

struct Shard<'s>(&'s mut Sessions);

struct All<'s>(&'s mut Sessions);

impl Sessions {
    /// Takes over the state of an earlier process. After an error, part of the state may have been taken over.
    ///
    /// # Errors
    ///
    /// Fails if the input is not what [`Sessions::save`] wrote.
    pub fn restore(&mut self, from: &mut Source<'_>) -> Result<(), ReadError> {
        from.deserialize_map(Shard(self))
    }

    pub(super) fn put(&mut self, mut session: Session) {
        session.adopt(&mut self.shared);
        self.file(Box::new(session));
    }
}

impl<'de> Visitor<'de> for Shard<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("what a shard held")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let stage = self.0;
        let (mut evicted, mut found) = (Vec::new(), 0);
        while let Some(field) = map.next_key()? {
            found += 1;
            match field {
                Field::Sessions => map.next_value_seed(All(stage))?,
                Field::Departed => {
                    let over = stage.departed.restore(map.next_value()?, &stage.shares);
                    stage.shared.counts.add_many("departed_traces", "forgotten", over);
                }
                Field::Outstanding => {
                    stage.outstanding.restore(map.next_value()?, &stage.shares);
                }
                Field::Waiting => {
                    let over = stage.waiting.restore(map.next_value()?, &stage.shares);
                    stage.shared.counts.add_many("reports", "waiting_full", over);
                }
                Field::RunOutcomes => {
                    let over = stage.run_outcomes.restore(map.next_value()?, &stage.shares);
                    stage.shared.counts.add_many("run_outcomes", "forgotten", over);
                }
                Field::Runs => stage.shared.runs = map.next_value()?,
                Field::ShardAgents => {
                    stage
                        .shared
                        .shard_agents
                        .restore(map.next_value::<shard_agents::Saved<Summary>>()?);
                }
                Field::Now => {
                    let now = map.next_value()?;
                    stage.advance(now);
                }
                Field::Evicted => evicted = map.next_value::<Vec<(SessionId, EvictedSession)>>()?,
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                    found -= 1;
                }
            }
        }
        if found != NEEDED {
            return Err(A::Error::custom(format!("{found} parts of a shard, not {NEEDED}")));
        }
        // After the fleet, as they share its agents.
        stage.restore_evicted(evicted);
        stage.share_outstanding();
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for All<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for All<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("sessions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sessions: A) -> Result<(), A::Error> {
        while let Some(session) = sessions.next_element()? {
            self.0.put(session);
        }
        Ok(())
    }
}
