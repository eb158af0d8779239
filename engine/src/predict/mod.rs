//! Which runs fail: how much effort a session took compared with others of its agent, the probability that it failed, how often the
//! agent's sessions succeed, and how good these predictions have been.
//!
//! Sessions send their efforts to their agents ([`Spread`], [`EffortSums`]); the agent keeps runs with an outcome ([`KnownRun`]).
//! Both are combined in [`Learned`] when the agent or one of its sessions is read: nothing is computed before.

pub(crate) mod learner;
mod model;
mod quality;
mod results;
pub(crate) mod spread;
mod success;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use model::{FEATURES, KnownRun, Model, Prediction, Ranked, Whole};
pub use quality::Quality;
pub use results::Results;
pub use spread::{
    EffortBuckets, EffortSums, LEAST_RUNS, MOST_COMPARED, Measure, Ranking, Rankings, Spread,
    StartedRun, TaskRuns,
};

use self::success::{LabelledRun, Others, success_ratio};
use super::facts::ScopedId;
use super::small_map::SmallMap;
use super::span::Timestamp;
use super::view::{AgentView, PredictionView, SessionView, SuccessView, TraceView};

/// The sessions of an agent in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Population {
    /// The least end of a session in the window whose outcome is known; `None` if there is none.
    pub told_since: Option<Timestamp>,
    /// The number of sessions.
    pub sessions: u64,
    /// Sums of their efforts.
    pub efforts: EffortSums,
}

/// What is learned about an agent from its sessions and their outcomes.
#[derive(Clone, Debug)]
pub struct Learned {
    model: Model,
    quality: Quality,
    success: BTreeMap<String, SuccessView>,
}

impl Learned {
    /// Learns from rankings and from runs with known outcomes, in the order of their starts.
    pub fn new(
        rankings: Rankings,
        known: &[KnownRun],
        populations: &SmallMap<Arc<str>, Population>,
    ) -> Self {
        let model = Model::new(rankings, known);
        let success = populations.iter().filter_map(|(window, population)| {
            let ranking = model.ranking(Whole::Session);
            Some((window.to_string(), success(ranking, known, population)?))
        });
        Self { quality: quality::quality(&model, known), success: success.collect(), model }
    }

    /// How good predictions and signals have been.
    pub fn quality(&self) -> &Quality {
        &self.quality
    }

    /// How often sessions succeed, by window.
    pub fn success(&self) -> &BTreeMap<String, SuccessView> {
        &self.success
    }

    /// Adds to the agent what is learned about it.
    pub fn look_at_agent(&self, agent: &mut AgentView) {
        agent.success.clone_from(&self.success);
        agent.signal_auroc.clone_from(&self.quality.auroc);
        agent.calibration = self.quality.calibration;
    }

    /// Adds to a session of this agent its effort and its probability of failure; nothing before there are [`LEAST_RUNS`] sessions
    /// to compare it with.
    pub fn look_at(&self, session: &mut SessionView) {
        let tasks = session.traces.iter().filter_map(|trace| trace.attempt.as_ref());
        let task = tasks.filter_map(|attempt| attempt.task.as_deref()).next();
        let name = session.name();
        let predicted = self.model.predict(Whole::Session, &name, task, &session.took);
        let Some(predicted) = predicted else { return };
        session.effort = Some(predicted.ranked.effort);
        session.predicted_failure = Some(predicted.failure);
        session.prediction = Some(self.explain(&predicted));
    }

    /// Adds to a done trace its effort compared with its agent's other traces, and the probability that its session failed, judging
    /// by this trace alone; returns the prediction. The model is learned from whole sessions.
    pub fn look_at_trace(&self, session: &ScopedId, trace: &mut TraceView) -> Option<Prediction> {
        let task = trace.attempt.as_ref().and_then(|attempt| attempt.task.as_deref());
        let took = trace.took.as_ref()?;
        let predicted = self.model.predict(Whole::Trace, session, task, took)?;
        trace.effort = Some(predicted.ranked.effort);
        trace.predicted_failure = Some(predicted.failure);
        Some(predicted)
    }

    /// The explanation of a prediction: its inputs.
    pub fn explain(&self, predicted: &Prediction) -> PredictionView {
        let ranks = Measure::ALL.iter().filter(|measure| measure.is_effort());
        let ranks = ranks.filter_map(|of| Some((of.name(), predicted.ranked.ranks[*of as usize]?)));
        let carried = FEATURES.iter().zip(predicted.carried_by);
        PredictionView {
            more_than: ranks.collect(),
            carried_by: carried.map(|(feature, carried)| (feature.name, carried)).collect(),
            outcomes_known: self.model.outcomes() as u64,
        }
    }
}

/// The runs that the judge was asked about, if they are enough, as their selection probabilities are known; else all runs.
fn whose_selection_is_known(known: Vec<&KnownRun>) -> Vec<&KnownRun> {
    let judged = || known.iter().copied().filter(|run| run.probability.is_some());
    if judged().count() >= success::LEAST_TOLD { judged().collect() } else { known }
}

/// The share of sessions that succeed. The predictor, which is known for all sessions, is their effort: the mean of the measures'
/// buckets, each scaled to mean 0 and deviation 1 over the agent's sessions. Its mean over a window follows from the window's sums.
fn success(ranking: &Ranking, known: &[KnownRun], population: &Population) -> Option<SuccessView> {
    let since = population.told_since?;
    let known: Vec<&KnownRun> = known.iter().filter(|run| run.end >= since).collect();
    let known = whose_selection_is_known(known);
    let mut sums = population.efforts;
    known.iter().for_each(|run| sums.replace(Some((&run.effort).into()), None));
    let others = population.sessions.saturating_sub(known.len() as u64);
    let everywhere = |measure: &Measure| {
        measure.is_effort()
            && population.efforts.sums_of(*measure).traces == population.sessions
            && known.iter().all(|run| measure.of(&run.effort).is_some())
    };
    let measures = Measure::ALL.into_iter().filter(everywhere);
    let measures: Vec<(Measure, (f64, f64))> =
        measures.filter_map(|measure| Some((measure, ranking.moments(measure)?))).collect();
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
            probability: run.probability,
        })
        .collect();
    // The variance of the other sessions' effort is not kept; that of the known ones replaces it, as effort did not decide which
    // outcomes are reported.
    let runs = told.len() as f64;
    let mean = told.iter().map(|run| run.predictor).sum::<f64>() / runs;
    let variance = told.iter().map(|run| (run.predictor - mean).powi(2)).sum::<f64>() / runs;
    let others = (others > 0).then(|| Others {
        runs: others,
        mean: mean_of(&|measure| sums.sums_of(measure).sum as f64 / others as f64),
        variance,
    });
    success_ratio(&told, others)
}
