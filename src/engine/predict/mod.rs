//! Which runs fail: how much effort a session took beside its agent's others, and the chance that it failed.
//!
//! Sessions tell their agents what they took ([`Spread`]); runs with an outcome are kept by the agent ([`KnownRun`]). Both meet
//! where a session is looked at: nothing is computed, and no session grows, before somebody asks.

mod model;
mod spread;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

pub use model::{FEATURES, KnownRun, Model, Prediction, Ranked};
pub use spread::{LEAST_RUNS, Measure, Spread};

use super::agent_update::AgentUpdate;
use super::update::AgentKey;
use super::view::{PredictionView, SessionView};

/// Models of several agents, each made when it is first needed.
#[derive(Debug, Default)]
pub struct Models(BTreeMap<AgentKey, Option<Model>>);

impl Models {
    /// Looks at a session as its agent stands, which `find` knows.
    pub fn look_at<A: Borrow<AgentUpdate>>(
        &mut self,
        session: &mut SessionView,
        find: impl FnOnce(&AgentKey) -> Option<A>,
    ) {
        let key = AgentKey::from(&session.agent);
        let model = match self.0.entry(key) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(room) => {
                let model = find(room.key()).map(|agent| {
                    let agent = agent.borrow();
                    Model::new(Spread::of_all(&agent.spreads), &agent.known_runs)
                });
                room.insert(model)
            }
        };
        model.iter().for_each(|model| look_at(session, model));
    }
}

/// Says of a session of this agent how much effort it took, and how likely it failed; nothing before there are [`LEAST_RUNS`] to
/// compare it with.
fn look_at(session: &mut SessionView, model: &Model) {
    let effort = &session.took;
    let Some(ranked) = model.ranked(effort) else { return };
    let tasks = session.traces.iter().filter_map(|trace| trace.attempt.as_ref());
    let task = tasks.filter_map(|attempt| attempt.task.as_deref()).next();
    let predicted = model.predict(&session.name(), task, effort);
    session.effort = Some(ranked.effort);
    session.predicted_failure = predicted.as_ref().map(|predicted| predicted.failure);
    let ranks = Measure::ALL.iter().filter(|measure| measure.is_effort());
    session.prediction = predicted.map(|predicted| PredictionView {
        more_than: ranks
            .filter_map(|measure| Some((measure.name(), ranked.ranks[*measure as usize]?)))
            .collect(),
        carried_by: FEATURES
            .iter()
            .zip(predicted.carried_by)
            .map(|(feature, carried)| (feature.name, carried))
            .collect(),
        outcomes_known: model.outcomes() as u64,
    });
}
