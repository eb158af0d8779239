//! Which runs fail: how much effort a session took beside its agent's others, the chance that it failed, how often the agent's
//! sessions succeed, and how good all of that has been.
//!
//! Sessions tell their agents what they took ([`Spread`], [`EffortSums`]); runs with an outcome are kept by the agent
//! ([`KnownRun`]). Both meet in [`Learned`], when somebody looks at the agent or at one of its sessions: nothing is computed before.

mod model;
mod quality;
pub(crate) mod spread;
mod success;

use std::collections::BTreeMap;

pub use model::{FEATURES, KnownRun, Model, Prediction, Ranked};
pub use quality::Quality;
pub use spread::{EffortSums, LEAST_RUNS, Measure, Spread};

use self::success::{LabelledRun, Others, success_ratio};
use super::span::Timestamp;
use super::view::{AgentView, PredictionView, SessionView, SuccessView};

/// The sessions of an agent in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Population {
    /// The least end of a session in it whose outcome is known; `None` if there is none.
    pub told_since: Option<Timestamp>,
    /// How many there are.
    pub sessions: u64,
    /// What they took.
    pub efforts: EffortSums,
}

/// What is learned of an agent from its sessions and their outcomes.
#[derive(Clone, Debug)]
pub struct Learned {
    model: Model,
    quality: Quality,
    success: BTreeMap<String, SuccessView>,
}

impl Learned {
    /// Learns from these, each in the order of their starts.
    pub fn new(
        spread: Spread,
        known: &[KnownRun],
        populations: &BTreeMap<String, Population>,
    ) -> Self {
        let model = Model::new(spread, known);
        let success = populations.iter().filter_map(|(window, population)| {
            Some((window.clone(), success(model.spread(), known, population)?))
        });
        Self { quality: quality::quality(&model, known), success: success.collect(), model }
    }

    /// How good it has been.
    pub fn quality(&self) -> &Quality {
        &self.quality
    }

    /// How often sessions succeed, by window.
    pub fn success(&self) -> &BTreeMap<String, SuccessView> {
        &self.success
    }

    /// Says of the agent what is learned of it.
    pub fn look_at_agent(&self, agent: &mut AgentView) {
        agent.success.clone_from(&self.success);
        agent.signal_auroc.clone_from(&self.quality.auroc);
        agent.calibration = self.quality.calibration;
    }

    /// Says of a session of this agent how much effort it took, and how likely it failed; nothing before there are [`LEAST_RUNS`]
    /// to compare it with.
    pub fn look_at(&self, session: &mut SessionView) {
        look_at(session, &self.model);
    }
}

/// The share of sessions that succeed. What is known of all of them is their effort: the mean over the measures, each in buckets, set to mean 0 and
/// deviation 1 over the agent's sessions. It is a sum over measures, so its mean over a window follows from the sums.
fn success(spread: &Spread, known: &[KnownRun], population: &Population) -> Option<SuccessView> {
    let since = population.told_since?;
    let known: Vec<&KnownRun> = known.iter().filter(|run| run.end >= since).collect();
    let mut sums = population.efforts;
    known.iter().for_each(|run| sums.unmerge(&EffortSums::of(&run.effort)));
    let others = population.sessions.saturating_sub(known.len() as u64);
    let everywhere = |measure: &Measure| {
        measure.is_effort()
            && population.efforts.told(*measure).traces == population.sessions
            && known.iter().all(|run| measure.of(&run.effort).is_some())
    };
    let measures = Measure::ALL.into_iter().filter(everywhere);
    let measures: Vec<(Measure, (f64, f64))> =
        measures.filter_map(|measure| Some((measure, spread.moments(measure)?))).collect();
    let mean_of = |bucket: &dyn Fn(Measure) -> f64| {
        let deviations = measures
            .iter()
            .map(|(measure, (mean, deviation))| (bucket(*measure) - mean) / deviation);
        deviations.sum::<f64>() / measures.len().max(1) as f64
    };
    let told: Vec<LabelledRun> = known
        .iter()
        .map(|run| LabelledRun {
            label: if run.failed { 0.0 } else { 1.0 },
            predictor: mean_of(&|measure| measure.bucket(&run.effort)),
        })
        .collect();
    // How the effort of the others varies is not kept: nobody chose by it who is told.
    let runs = told.len() as f64;
    let mean = told.iter().map(|run| run.predictor).sum::<f64>() / runs;
    let variance = told.iter().map(|run| (run.predictor - mean).powi(2)).sum::<f64>() / runs;
    let others = (others > 0).then(|| Others {
        runs: others,
        mean: mean_of(&|measure| sums.told(measure).sum as f64 / others as f64),
        variance,
    });
    success_ratio(&told, others)
}

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
