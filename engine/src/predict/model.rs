//! The probability that a run failed: a logistic model over [`FEATURES`], which starts with fixed priors and learns from the known
//! outcomes of the agent's runs.
//!
//! ```text
//! P(failed) = 1 / (1 + exp(-(b_0 + sum of b_i x_i)))
//! b = the most likely one, if b_i is normal around the prior of feature i (ridge regression), by Newton's method
//! ```
//!
//! It is a function of the runs with known outcomes, in the order of their starts, and of the agent's distributions; it does not
//! depend on when it is read. The priors are not fitted: public recordings of agents with known outcomes agree that more effort
//! than usual goes with failure, and that nearly all runs that end in an error fail (docs/outcomes.md); hardly any other sign is
//! taken for granted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::spread::{Measure, Ranking, Rankings};
use crate::facts::{Effort, ScopedId};
use crate::math::Quanta;
use crate::span::Timestamp;

/// Most steps of Newton's method; it usually takes a handful.
const STEPS: usize = 30;

/// Number of runs with the agent's usual failure rate that are added to the record of a task.
const TASK_WEIGHT: f64 = 2.0;

/// Number of runs with the agent's usual failure rate that are added to the record of a tool or of models.
const CALLED_WEIGHT: f64 = 4.0;

/// A feature of a run: a number on which the probability of failure depends.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Its name in results.
    pub name: &'static str,
    /// Its meaning, for people.
    pub doc: &'static str,
    /// Its coefficient before any outcome is known.
    prior: f64,
    /// The standard deviation of coefficients around the prior.
    spread: f64,
    value: fn(&Inputs) -> f64,
}

/// The features; the first is the intercept.
pub const FEATURES: [Feature; 17] = [
    // The prior assumes that a quarter of the runs fail: anything from 2 to 87 % within two standard deviations.
    feature("base", "How often this agent's runs fail", -1.1, 1.5, |_| 1.0),
    feature("effort", "More effort than the agent's other runs", 3.0, 2.0, |run| run.effort - 0.5),
    // Effort indicates hard tasks: among runs at one task it hardly shows which ones fail, so the effort of the others says as much
    // as a run's own.
    feature(
        "others_at_task",
        "More effort of the other runs of the same task than of this one",
        2.0,
        1.0,
        |run| run.others_at_task,
    ),
    feature(
        "other_results",
        "Other results of tools than other runs of the same task got",
        2.0,
        1.0,
        |run| run.other_results,
    ),
    feature("model_calls", "Model calls beyond the rest of the effort", 0.0, 1.0, |run| {
        run.beyond(Measure::ModelCalls)
    }),
    feature("output_tokens", "Tokens written beyond the rest of the effort", 1.0, 1.0, |run| {
        run.beyond(Measure::OutputTokens)
    }),
    feature("cost", "Dollars beyond the rest of the effort", 0.0, 1.0, |run| {
        run.beyond(Measure::Cost)
    }),
    feature("duration", "Time beyond the rest of the effort", 0.0, 1.0, |run| {
        run.beyond(Measure::Duration)
    }),
    feature(
        "longest_call",
        "A longer single call beyond the rest of the effort",
        0.0,
        1.0,
        |run| run.beyond(Measure::LongestCall),
    ),
    feature("answer", "A longer last answer than usual", 0.0, 1.0, |run| {
        run.beyond(Measure::Answer)
    }),
    feature("failed_calls", "Share of tool calls that failed", 0.5, 1.0, |run| run.failed_share),
    feature("failed_model_calls", "Share of model calls that failed", 0.0, 1.0, |run| {
        run.failed_models
    }),
    feature("stopped", "A model call, or the agent, was stopped before its end", 0.0, 1.0, |run| {
        f64::from(u8::from(run.stopped))
    }),
    feature("ended_in_error", "It ended in an error", 3.0, 1.0, |run| {
        f64::from(u8::from(run.ended_in_error))
    }),
    feature("last_tool", "How other runs went that called the same tool last", 1.0, 0.5, |run| {
        run.of_tool
    }),
    // Models differ in effort and in failure rate: without this feature, effort would stand in for the model that was used.
    feature("model", "How other runs went that called the same models", 1.0, 0.5, |run| {
        run.of_models
    }),
    feature("task", "How other runs of the same task went", 1.0, 0.5, |run| run.of_task),
];

const fn feature(
    name: &'static str,
    doc: &'static str,
    prior: f64,
    spread: f64,
    value: fn(&Inputs) -> f64,
) -> Feature {
    Feature { name, doc, prior, spread, value }
}

/// The number of features.
pub(super) const N: usize = FEATURES.len();

/// The features of one run.
pub(super) type Row = [f64; N];

/// The numbers that features are computed from.
#[derive(Clone, Copy, Debug, Default)]
struct Inputs {
    effort: f64,
    ranks: [Option<f64>; Measure::ALL.len()],
    /// How far the mean effort of the other runs at its task is above its own, shrunk towards 0 if they are few.
    others_at_task: f64,
    /// How much the results of its tools differ from those of others at its task, from -0.5 to 0.5, shrunk towards 0 if these are
    /// few.
    other_results: f64,
    failed_share: f64,
    failed_models: f64,
    stopped: bool,
    ended_in_error: bool,
    of_tool: f64,
    of_models: f64,
    of_task: f64,
}

/// The records of similar runs: how far the log-odds of their failure are above those of all runs, the run itself left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alike {
    /// For runs at the same task.
    task: f64,
    /// For runs that called the same tool last, or also none.
    tool: f64,
    /// For runs that called the same models last, or also none.
    models: f64,
    /// How far the mean effort of the other runs at the task is above its own, shrunk towards 0 if they are few.
    others_at_task: f64,
    /// How much the results of its tools differ from those of others at its task, from -0.5 to 0.5, shrunk towards 0 if these are
    /// few.
    other_results: f64,
}

impl Inputs {
    /// How far the rank by a measure is above the effort as a whole; 0 if not known.
    fn beyond(&self, measure: Measure) -> f64 {
        self.ranks[measure as usize].map_or(0.0, |rank| rank - self.effort)
    }
}

/// A run with a known outcome; several runs of one session count as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownRun {
    /// Its session.
    pub session: Arc<ScopedId>,
    /// Its task, if it has one.
    pub task: Option<Arc<str>>,
    /// End of its last trace.
    pub end: Timestamp,
    /// Its effort.
    pub effort: Effort,
    /// The worst score of each signal over its traces.
    pub signals: BTreeMap<Cow<'static, str>, Quanta>,
    /// The risks of its traces by all signals except the outcome.
    pub risks: Vec<Quanta>,
    /// Whether it is not a success.
    pub failed: bool,
    /// The probability that the judge was asked about it, in `(0,1]`; `None`: others reported the outcome, with an unknown
    /// probability.
    pub probability: Option<f64>,
}

impl KnownRun {
    /// Adds the signals of some of its traces.
    pub fn add_signals(&mut self, signals: &[(Cow<'static, str>, Quanta)]) {
        for (name, score) in signals {
            let worst = self.signals.entry(name.clone()).or_insert(*score);
            *worst = (*score).min(*worst);
        }
    }
}

/// How much effort a run took compared with the agent's others.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// The mean rank by measures of effort, in `[0,1]`.
    pub effort: f64,
    /// The rank by each measure: the share of runs that took less, in `[0,1]`; `None`: not known.
    pub ranks: [Option<f64>; Measure::ALL.len()],
}

/// The prediction for a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// How much effort it took.
    pub ranked: Ranked,
    /// The probability that it failed, in `[0,1]`.
    pub failure: f64,
    /// What each feature adds to the log-odds of failure.
    pub carried_by: [f64; N],
}

/// The unit that a prediction is made from: a session among sessions, or a trace among traces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Whole {
    /// A session.
    Session,
    /// A trace.
    Trace,
}

/// The model of one agent.
#[derive(Clone, Debug)]
pub struct Model {
    rankings: Rankings,
    coefficients: [f64; N],
    // Curvature of the function that is minimised, at the coefficients.
    curve: [[f64; N]; N],
    tasks: BTreeMap<Arc<str>, Record>,
    // By the tool that was called last.
    tools: BTreeMap<Option<u64>, Record>,
    // By the models that were called last.
    models: BTreeMap<Option<u64>, Record>,
    all: Record,
    sessions: BTreeMap<Arc<ScopedId>, KnownSession>,
}

/// A session with a known outcome.
#[derive(Clone, Debug)]
struct KnownSession {
    task: Option<Arc<str>>,
    tool: Option<u64>,
    models: Option<u64>,
    failed: bool,
}

/// The record of runs of one kind: how many there were, and how many failed.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    runs: u64,
    failed: u64,
}

impl Model {
    /// Learns from the runs with known outcomes.
    pub fn new(rankings: Rankings, known: &[KnownRun]) -> Self {
        let mut all = Record::default();
        let mut tasks: BTreeMap<Arc<str>, Record> = BTreeMap::new();
        let (mut tools, mut models) = <(BTreeMap<_, Record>, BTreeMap<_, Record>)>::default();
        for run in known {
            all.add(run.failed);
            tools.entry(run.effort.last_tool).or_default().add(run.failed);
            models.entry(run.effort.last_models).or_default().add(run.failed);
            if let Some(task) = &run.task {
                tasks.entry(Arc::clone(task)).or_default().add(run.failed);
            }
        }
        let session_of = |run: &KnownRun| KnownSession {
            task: run.task.clone(),
            tool: run.effort.last_tool,
            models: run.effort.last_models,
            failed: run.failed,
        };
        let mut model = Self {
            rankings,
            coefficients: FEATURES.map(|feature| feature.prior),
            curve: [[0.0; N]; N],
            tasks,
            tools,
            models,
            all,
            sessions: known.iter().map(|run| (Arc::clone(&run.session), session_of(run))).collect(),
        };
        let rows: Vec<([f64; N], f64)> = known
            .iter()
            .filter_map(|run| {
                let (_, row) = model.row_of(run)?;
                Some((row, if run.failed { 1.0 } else { 0.0 }))
            })
            .collect();
        if !rows.is_empty() {
            (model.coefficients, model.curve) = fit(&rows);
        }
        model
    }

    /// The ranking of the agent's sessions, or of its traces.
    pub(super) fn ranking(&self, whole: Whole) -> &Ranking {
        match whole {
            Whole::Session => &self.rankings.sessions,
            Whole::Trace => &self.rankings.traces,
        }
    }

    /// The number of outcomes that it has learned from.
    pub fn outcomes(&self) -> usize {
        self.sessions.len()
    }

    /// Predicts the outcome of a session, by its effort or by that of one of its traces; the session's own outcome is left out of
    /// the records that it is compared with. `None` before there are enough sessions or traces to rank it among.
    pub fn predict(
        &self,
        whole: Whole,
        session: &ScopedId,
        task: Option<&str>,
        effort: &Effort,
    ) -> Option<Prediction> {
        let (ranked, row) = self.row(whole, session, task, effort)?;
        let mut carried_by = [0.0; N];
        for ((carried, value), coefficient) in carried_by.iter_mut().zip(row).zip(self.coefficients)
        {
            *carried = value * coefficient;
        }
        Some(Prediction { ranked, failure: logistic(carried_by.iter().sum()), carried_by })
    }

    /// For each run that it learned from: its effort, the probability of failure by the model without this run, and whether it
    /// failed.
    pub(super) fn left_out(&self, known: &[KnownRun]) -> Vec<(f64, f64, bool)> {
        let odds = |run: &KnownRun| {
            let (ranked, row) = self.row_of(run)?;
            let odds: f64 =
                row.iter().zip(self.coefficients).map(|(value, held)| value * held).sum();
            let chance = logistic(odds);
            let leverage: f64 =
                solve(self.curve, row).iter().zip(row).map(|(one, two)| one * two).sum();
            let failed = if run.failed { 1.0 } else { 0.0 };
            let without = leverage * (failed - chance) / (1.0 - leverage * chance * (1.0 - chance));
            Some((ranked.effort, logistic(odds - without), run.failed))
        };
        known.iter().filter_map(odds).collect()
    }

    fn row_of(&self, run: &KnownRun) -> Option<(Ranked, Row)> {
        self.row(Whole::Session, &run.session, run.task.as_deref(), &run.effort)
    }

    fn row(
        &self,
        whole: Whole,
        session: &ScopedId,
        task: Option<&str>,
        effort: &Effort,
    ) -> Option<(Ranked, Row)> {
        let all = self.ranking(whole);
        let ranked = ranked(effort, |measure, value| all.rank(measure, value))?;
        let own = self.sessions.get(session);
        let others = self.all.without(own);
        let above = |alike: Option<&Record>, has_own: bool, weight: f64| {
            let alike = alike.copied().unwrap_or_default();
            alike.without(own.filter(|_| has_own)).above(others, weight)
        };
        let has_own = |is_alike: &dyn Fn(&KnownSession) -> bool| own.is_some_and(is_alike);
        let (tool, models) = (effort.last_tool, effort.last_models);
        let (of_tool, of_models) = (self.tools.get(&tool), self.models.get(&models));
        let of_task = |task: &str| {
            let own = has_own(&|own| own.task.as_deref() == Some(task));
            above(self.tasks.get(task), own, TASK_WEIGHT)
        };
        // A trace may be only a part of a run, so it is not compared with runs.
        let at_task =
            task.filter(|_| whole == Whole::Session).and_then(|task| self.rankings.tasks.get(task));
        let others = at_task.and_then(|at_task| at_task.ranking.others(effort, all));
        let different = at_task.and_then(|at_task| at_task.difference(session));
        let drawn = |(others, difference): (u64, f64)| {
            let others = others as f64;
            difference * others / (others + 1.0)
        };
        let alike = Alike {
            task: task.map_or(0.0, of_task),
            tool: above(of_tool, has_own(&|own| own.tool == tool), CALLED_WEIGHT),
            models: above(of_models, has_own(&|own| own.models == models), CALLED_WEIGHT),
            others_at_task: others.map_or(0.0, |(n, effort)| drawn((n, effort - ranked.effort))),
            other_results: different.map_or(0.0, |(n, share)| drawn((n, share - 0.5))),
        };
        let row = row(&ranked, effort, alike);
        Some((ranked, row))
    }
}

impl Record {
    fn add(&mut self, failed: bool) {
        self.runs += 1;
        self.failed += u64::from(failed);
    }

    /// The record without a run that is in it: the outcome of a run must not predict itself.
    fn without(self, own: Option<&KnownSession>) -> Self {
        own.map_or(self, |own| Self {
            runs: self.runs - 1,
            failed: self.failed - u64::from(own.failed),
        })
    }

    /// The share that failed, with one success and one failure added.
    fn usual(self) -> f64 {
        (self.failed as f64 + 1.0) / (self.runs as f64 + 2.0)
    }

    /// How far the log-odds of failure of these runs are above those of all, after adding `weight` runs with the overall failure
    /// rate; 0 if these runs are none, or all.
    fn above(self, all: Self, weight: f64) -> f64 {
        if self.runs == 0 || self.runs == all.runs {
            return 0.0;
        }
        let usual = all.usual();
        log_odds((self.failed as f64 + weight * usual) / (self.runs as f64 + weight))
            - log_odds(usual)
    }
}

/// Ranks a run by `rank`, the share of others that took less of a measure; `None` if no rank is known.
pub(super) fn ranked(
    effort: &Effort,
    rank: impl Fn(Measure, u64) -> Option<f64>,
) -> Option<Ranked> {
    let ranks = Measure::ALL.map(|measure| rank(measure, measure.of(effort)?));
    let of_effort = Measure::ALL.iter().filter(|measure| measure.is_effort());
    let known = of_effort.filter_map(|measure| ranks[*measure as usize]);
    let (sum, known) = known.fold((0.0, 0_u32), |(sum, known), rank| (sum + rank, known + 1));
    (known > 0).then(|| Ranked { effort: sum / f64::from(known), ranks })
}

/// The features of a run, from its ranks among others and the records of similar runs.
pub(super) fn row(ranked: &Ranked, effort: &Effort, alike: Alike) -> Row {
    let share = |part: u64, all: u64| part as f64 / all.max(part).max(1) as f64;
    let inputs = Inputs {
        effort: ranked.effort,
        ranks: ranked.ranks,
        others_at_task: alike.others_at_task,
        other_results: alike.other_results,
        failed_share: share(effort.failed_calls, effort.judged_calls),
        failed_models: share(effort.failed_model_calls, effort.model_calls),
        stopped: effort.stopped_calls > 0,
        ended_in_error: effort.ended_in_error,
        of_tool: alike.tool,
        of_models: alike.models,
        of_task: alike.task,
    };
    FEATURES.map(|feature| (feature.value)(&inputs))
}

/// The most likely coefficients, and the curvature at them.
pub(super) fn fit(rows: &[([f64; N], f64)]) -> ([f64; N], [[f64; N]; N]) {
    let priors = FEATURES.map(|feature| feature.prior);
    let precisions = FEATURES.map(|feature| 1.0 / (feature.spread * feature.spread));
    let mut coefficients = priors;
    let mut curve = [[0.0; N]; N];
    for _ in 0..STEPS {
        let mut slope = [0.0; N];
        curve = [[0.0; N]; N];
        for i in 0..N {
            slope[i] = precisions[i] * (coefficients[i] - priors[i]);
            curve[i][i] = precisions[i];
        }
        for (row, failed) in rows {
            let odds: f64 = row.iter().zip(coefficients).map(|(value, held)| value * held).sum();
            let chance = logistic(odds);
            let weight = chance * (1.0 - chance);
            for i in 0..N {
                slope[i] += row[i] * (chance - failed);
                for j in 0..=i {
                    curve[i][j] += row[i] * row[j] * weight;
                }
            }
        }
        let step = solve(curve, slope);
        let longest = step.iter().fold(0.0, |longest: f64, step| longest.max(step.abs()));
        // Far from the optimum a full step may overshoot.
        let scale = 1.0 / longest.max(1.0);
        for (held, step) in coefficients.iter_mut().zip(step) {
            *held -= step * scale;
        }
        if longest < 1e-9 {
            break;
        }
    }
    (coefficients, curve)
}

/// Solves `matrix x = right` by Cholesky decomposition; the matrix must be positive definite, and only its lower half is read.
fn solve(mut matrix: [[f64; N]; N], right: [f64; N]) -> [f64; N] {
    for i in 0..N {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| matrix[i][k] * matrix[j][k]).sum();
            let rest = matrix[i][j] - known;
            matrix[i][j] =
                if i == j { rest.max(f64::MIN_POSITIVE).sqrt() } else { rest / matrix[j][j] };
        }
    }
    let mut solved = right;
    for i in 0..N {
        let known: f64 = (0..i).map(|k| matrix[i][k] * solved[k]).sum();
        solved[i] = (solved[i] - known) / matrix[i][i];
    }
    for i in (0..N).rev() {
        let known: f64 = (i + 1..N).map(|k| matrix[k][i] * solved[k]).sum();
        solved[i] = (solved[i] - known) / matrix[i][i];
    }
    solved
}

pub(super) fn logistic(odds: f64) -> f64 {
    1.0 / (1.0 + (-odds).exp())
}

pub(super) fn log_odds(chance: f64) -> f64 {
    (chance / (1.0 - chance)).ln()
}

#[cfg(test)]
mod tests {
    use super::super::spread::{Spread, TaskRuns};
    use super::*;

    fn session(id: &str) -> ScopedId {
        ScopedId { id: id.into(), ..ScopedId::default() }
    }

    fn effort(calls: u64) -> Effort {
        Effort {
            model_calls: calls,
            tool_calls: 2 * calls,
            nanos: calls * 1000,
            ..Effort::default()
        }
    }

    /// Runs of 1 to 100 model calls.
    fn rankings() -> Rankings {
        let runs: Vec<Effort> = (1..=100).map(effort).collect();
        Rankings { sessions: Ranking::from(&Spread::of_runs(&runs)), ..Rankings::default() }
    }

    fn run(calls: u64, task: Option<&str>, failed: bool) -> KnownRun {
        let session = Arc::new(session(&calls.to_string()));
        let (task, effort) = (task.map(Arc::from), effort(calls));
        KnownRun { session, task, effort, failed, ..KnownRun::default() }
    }

    fn predict(
        model: &Model,
        session: &ScopedId,
        task: Option<&str>,
        calls: u64,
    ) -> Option<Prediction> {
        model.predict(Whole::Session, session, task, &effort(calls))
    }

    fn chance(model: &Model, calls: u64, task: Option<&str>) -> f64 {
        predict(model, &session("another"), task, calls).unwrap().failure
    }

    #[test]
    fn without_outcomes_more_effort_is_more_likely_a_failure() {
        let model = Model::new(rankings(), &[]);
        assert!(chance(&model, 90, None) > 2.0 * chance(&model, 10, None));
        assert_eq!(model.outcomes(), 0);
        assert_eq!(predict(&Model::new(Rankings::default(), &[]), &session("s"), None, 5), None);
    }

    #[test]
    fn where_short_runs_fail_fifty_outcomes_are_enough_to_learn_it() {
        let known: Vec<KnownRun> = (1..=50).map(|i| run(2 * i, None, i <= 20)).collect();
        let model = Model::new(rankings(), &known);
        assert!(chance(&model, 10, None) > 0.5 && chance(&model, 90, None) < 0.3);
    }

    #[test]
    fn a_run_that_ends_with_a_tool_after_which_others_failed_is_more_likely_to_fail() {
        let with = |tool: Option<u64>, run: KnownRun| KnownRun {
            effort: Effort { last_tool: tool, ..run.effort },
            ..run
        };
        let known: Vec<KnownRun> = (1..=40)
            .map(|i| with((i % 4 > 0).then_some(i % 4), run(2 * i, None, i % 4 == 1)))
            .collect();
        let model = Model::new(rankings(), &known);
        let last = |id: &str, last_tool| {
            let effort = Effort { last_tool, ..effort(50) };
            model.predict(Whole::Session, &session(id), None, &effort).unwrap()
        };
        assert!(last("another", Some(1)).failure > 0.6);
        assert!(last("another", Some(2)).failure < 0.2 && last("another", None).failure < 0.2);
        let at = FEATURES.iter().position(|feature| feature.name == "last_tool").unwrap();
        assert!(last("another", Some(9)).carried_by[at].abs() < 1e-12, "no run ended with it");
        // The run's own outcome does not count.
        let (own, other) = (last("2", Some(1)), last("another", Some(1)));
        assert!(own.carried_by[at] < other.carried_by[at]);
        let untold = Model::new(rankings(), &[]);
        let effort = Effort { last_tool: Some(1), ..effort(50) };
        let said = untold.predict(Whole::Session, &session("s"), None, &effort).unwrap();
        assert!(said.carried_by[at].abs() < 1e-12);
    }

    /// Two models serve one agent: the one that takes more fails less often, and of each those runs fail that take more.
    #[test]
    fn what_models_differ_in_does_not_stand_for_what_their_runs_differ_in() {
        let of = |models: u64, run: KnownRun| KnownRun {
            effort: Effort { last_models: Some(models), ..run.effort },
            ..run
        };
        let short = (1..=40).map(|i| of(1, run(i, None, i > 10 && i % 8 > 0)));
        let long = (61..=100).map(|i| of(2, run(i, None, i > 92)));
        let known: Vec<KnownRun> = short.chain(long).collect();
        let model = Model::new(rankings(), &known);
        let failure = |model: &Model, last_models, calls| {
            let effort = Effort { last_models, ..effort(calls) };
            model.predict(Whole::Session, &session("another"), None, &effort).unwrap().failure
        };
        for models in [Some(1), Some(2)] {
            let (least, most) = if models == Some(1) { (2, 39) } else { (62, 99) };
            assert!(failure(&model, models, most) > failure(&model, models, least), "{models:?}");
        }
        assert!(failure(&model, Some(1), 50) > failure(&model, Some(2), 50) + 0.2);
        // Where all runs called the same, that says nothing.
        let one: Vec<KnownRun> = known.iter().cloned().map(|run| of(1, run)).collect();
        let model = Model::new(rankings(), &one);
        assert!(failure(&model, Some(1), 50).to_bits() == failure(&model, Some(7), 50).to_bits());
        // It cannot tell runs of the two apart, and takes what the models differ in for what their runs do.
        assert!(failure(&model, Some(1), 99) < failure(&model, Some(1), 2));
    }

    #[test]
    fn model_calls_that_failed_and_what_was_stopped_tell_what_outcomes_say_that_they_do() {
        let stopped = |run: KnownRun| KnownRun {
            effort: Effort { stopped_calls: 1, failed_model_calls: 2, ..run.effort },
            ..run
        };
        let known: Vec<KnownRun> = (1..=40).map(|i| run(2 * i, None, i % 2 == 0)).collect();
        let odd = |run: KnownRun| if run.failed { stopped(run) } else { run };
        let known: Vec<KnownRun> = known.into_iter().map(odd).collect();
        let of = |model: &Model, effort: Effort| {
            model.predict(Whole::Session, &session("s"), None, &effort).unwrap().failure
        };
        let told = |effort: Effort| Effort { stopped_calls: 1, failed_model_calls: 2, ..effort };
        let untold = Model::new(rankings(), &[]);
        let same = of(&untold, told(effort(50))) - of(&untold, effort(50));
        assert!(same.abs() < 1e-12, "no sign is taken for granted: {same}");
        let model = Model::new(rankings(), &known);
        assert!(of(&model, told(effort(50))) > of(&model, effort(50)) + 0.2);
    }

    #[test]
    fn of_two_runs_alike_that_at_a_task_where_others_took_more_is_likelier_to_have_failed() {
        let at = |calls: &[u64]| {
            let efforts: Vec<Effort> = calls.iter().map(|calls| effort(*calls)).collect();
            TaskRuns { ranking: Ranking::from(&Spread::of_runs(&efforts)), ..TaskRuns::default() }
        };
        let tasks = [("hard", at(&[50, 90, 95])), ("easy", at(&[50, 5, 10])), ("once", at(&[50]))];
        let tasks = tasks.map(|(task, runs)| (Arc::from(task), runs));
        let rankings = Rankings { tasks: Arc::new(tasks.into()), ..rankings() };
        let model = Model::new(rankings, &[]);
        assert!(chance(&model, 50, Some("hard")) > chance(&model, 50, None) + 0.05);
        assert!(chance(&model, 50, Some("easy")) < chance(&model, 50, None) - 0.05);
        // Where there are no others, nothing is said.
        assert!(chance(&model, 50, Some("once")).to_bits() == chance(&model, 50, None).to_bits());
    }

    #[test]
    fn a_run_whose_tools_returned_what_those_of_others_at_the_task_did_not_is_likelier_to_have_failed()
     {
        let of =
            |id: &str, results: &[u64]| (Arc::new(session(id)), results.iter().copied().collect());
        let results = vec![
            of("alike", &[1, 2, 3]),
            of("other", &[1, 2, 3, 4]),
            of("third", &[1, 2, 3]),
            of("odd", &[7, 8]),
        ];
        let ranking = Ranking::from(&Spread::of_runs(&[effort(50); 4]));
        let tasks = BTreeMap::from([(Arc::from("t"), TaskRuns { ranking, results })]);
        let model = Model::new(Rankings { tasks: Arc::new(tasks), ..rankings() }, &[]);
        let of = |id: &str| predict(&model, &session(id), Some("t"), 50).unwrap().failure;
        assert!(of("odd") > of("unknown") && of("unknown") > of("alike"));
        assert!(of("unknown").to_bits() == chance(&model, 50, None).to_bits());
    }

    #[test]
    fn what_ended_in_an_error_probably_failed_unless_outcomes_say_that_it_did_not() {
        let ended_in_error = |effort: Effort| Effort { ended_in_error: true, ..effort };
        let of = |model: &Model, effort: Effort| {
            model.predict(Whole::Session, &session("s"), None, &effort).unwrap().failure
        };
        let untold = Model::new(rankings(), &[]);
        assert!(of(&untold, ended_in_error(effort(50))) > of(&untold, effort(50)) + 0.5);
        let known = (1..=60).map(|i| {
            let run = run(i, None, i % 2 == 0);
            let effort = if run.failed { run.effort } else { ended_in_error(run.effort) };
            KnownRun { effort, ..run }
        });
        let model = Model::new(rankings(), &known.collect::<Vec<_>>());
        assert!(of(&model, ended_in_error(effort(50))) < of(&model, effort(50)));
    }

    #[test]
    fn a_task_that_failed_before_is_more_likely_to_fail_again_whatever_is_told_of_the_run_itself() {
        let known = [
            run(10, Some("hard"), true),
            run(20, Some("hard"), true),
            run(30, Some("easy"), false),
            run(40, Some("easy"), false),
        ];
        let model = Model::new(rankings(), &known);
        assert!(chance(&model, 50, Some("hard")) > chance(&model, 50, None));
        assert!(chance(&model, 50, Some("easy")) < chance(&model, 50, None));
        let alone = Model::new(rankings(), &known[..1]);
        let own = predict(&alone, &session("10"), Some("hard"), 10).unwrap();
        assert!(own.carried_by[N - 1].abs() < 1e-12);
    }

    #[test]
    fn a_run_that_is_left_out_is_predicted_nearly_as_by_a_model_without_it() {
        let known: Vec<KnownRun> = (1..=40).map(|i| run(2 * i, None, i % 3 == 0)).collect();
        let model = Model::new(rankings(), &known);
        for (at, (_, chance, failed)) in model.left_out(&known).into_iter().enumerate() {
            let mut others = known.clone();
            let own = others.remove(at);
            let calls = own.effort.model_calls;
            let exact =
                predict(&Model::new(rankings(), &others), &session(""), None, calls).unwrap();
            let with = predict(&model, &session(""), None, calls).unwrap();
            let error = (chance - exact.failure).abs();
            assert!(error < 0.01 && error < (with.failure - exact.failure).abs(), "{at}: {error}");
            assert_eq!(failed, own.failed);
        }
    }

    #[test]
    fn coefficients_are_those_at_which_the_slope_is_zero() {
        let known: Vec<KnownRun> = (1..=40).map(|i| run(2 * i, None, i % 3 == 0)).collect();
        let model = Model::new(rankings(), &known);
        for (i, feature) in FEATURES.iter().enumerate() {
            let precision = 1.0 / (feature.spread * feature.spread);
            let mut slope = precision * (model.coefficients[i] - feature.prior);
            for run in &known {
                let (_, row) = model.row_of(run).unwrap();
                let calls = run.effort.model_calls;
                let chance = predict(&model, &run.session, None, calls).unwrap().failure;
                slope += row[i] * (chance - if run.failed { 1.0 } else { 0.0 });
            }
            assert!(slope.abs() < 1e-9, "{}: {slope}", feature.name);
        }
    }
}
