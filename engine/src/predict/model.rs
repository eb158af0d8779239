//! The chance that a run failed: a logistic model over [`FEATURES`], which begins with a prior that ships and learns from the
//! outcomes of the agent's runs that somebody told.
//!
//! ```text
//! P(failed) = 1 / (1 + exp(-(b_0 + sum of b_i x_i)))
//! b = the most likely one, if b_i is normal around the prior of feature i (ridge regression), by Newton's method
//! ```
//!
//! It is a function of the runs that are told, in the order of their starts, and of the agent's distributions: not of when who
//! asks. The priors are no fit: that more effort than usual goes with failure is what public recordings of agents with known
//! outcomes agree on (docs/outcomes.md); of nothing else the sign is taken for granted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::spread::{Measure, Spread, Spreads};
use crate::math::Quanta;
use crate::span::Timestamp;
use crate::update::{Effort, ScopedId};

/// Steps of Newton's method at most; a handful is what it takes.
const STEPS: usize = 30;

/// A task's record counts as if so many more runs had gone as the agent's others.
const RECORD_WEIGHT: f64 = 2.0;

/// A number that a run is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// As results carry it.
    pub name: &'static str,
    /// What it says, for people.
    pub doc: &'static str,
    /// Its coefficient before any outcome is known.
    prior: f64,
    /// The standard deviation of coefficients around the prior.
    spread: f64,
    value: fn(&Inputs) -> f64,
}

/// The features; the first is the intercept.
pub const FEATURES: [Feature; 10] = [
    // A quarter of the runs fails, as far as is known: anything from 6 to 64 % within two standard deviations.
    feature("base", "How often this agent's runs fail", (-1.1, 1.5), |_| 1.0),
    feature("effort", "More effort than the agent's other runs", (3.0, 2.0), |run| {
        run.effort - 0.5
    }),
    feature("model_calls", "Model calls beyond the rest of the effort", (0.0, 1.0), |run| {
        run.beyond(Measure::ModelCalls)
    }),
    feature("output_tokens", "Tokens written beyond the rest of the effort", (0.0, 1.0), |run| {
        run.beyond(Measure::OutputTokens)
    }),
    feature("cost", "Dollars beyond the rest of the effort", (0.0, 1.0), |run| {
        run.beyond(Measure::Cost)
    }),
    feature("duration", "Time beyond the rest of the effort", (0.0, 1.0), |run| {
        run.beyond(Measure::Duration)
    }),
    feature(
        "longest_call",
        "A longer single call beyond the rest of the effort",
        (0.0, 1.0),
        |run| run.beyond(Measure::LongestCall),
    ),
    feature("answer", "A longer last answer than usual", (0.0, 1.0), |run| {
        run.beyond(Measure::Answer)
    }),
    feature("failed_calls", "Share of tool calls that failed", (0.5, 1.0), |run| run.failed_share),
    feature("task", "How other runs of the same task went", (1.0, 0.5), |run| run.record),
];

const fn feature(
    name: &'static str,
    doc: &'static str,
    (prior, spread): (f64, f64),
    value: fn(&Inputs) -> f64,
) -> Feature {
    Feature { name, doc, prior, spread, value }
}

/// How many there are.
pub(super) const N: usize = FEATURES.len();

/// The features of one run.
pub(super) type Row = [f64; N];

/// What features are computed from.
#[derive(Clone, Copy, Debug, Default)]
struct Inputs {
    effort: f64,
    ranks: [Option<f64>; Measure::ALL.len()],
    failed_share: f64,
    record: f64,
}

impl Inputs {
    /// How far a rank is above the effort as a whole; 0 where it is not known.
    fn beyond(&self, measure: Measure) -> f64 {
        self.ranks[measure as usize].map_or(0.0, |rank| rank - self.effort)
    }
}

/// A run whose outcome somebody told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownRun {
    /// The session that it is, or is part of.
    pub session: Arc<ScopedId>,
    /// Its task, if it has one.
    pub task: Option<Arc<str>>,
    /// End of its last trace.
    pub end: Timestamp,
    /// What it took.
    pub effort: Effort,
    /// The worst score of each signal over its traces.
    pub signals: BTreeMap<Cow<'static, str>, Quanta>,
    /// The risk of each of its traces that has one, but for what was told of the outcome.
    pub risks: Vec<Quanta>,
    /// It is no success.
    pub failed: bool,
    /// How likely our judge was to be asked about it, in `(0,1]`; `None`: it was not, and others told, who knows why.
    pub probability: Option<f64>,
}

impl KnownRun {
    /// Takes the signals of some of its traces.
    pub fn add_signals(&mut self, signals: &[(Cow<'static, str>, Quanta)]) {
        for (name, score) in signals {
            let worst = self.signals.entry(name.clone()).or_insert(*score);
            *worst = (*score).min(*worst);
        }
    }
}

/// How much effort a run took beside the agent's others.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Mean of the ranks of what is effort, in `[0,1]`.
    pub effort: f64,
    /// The share of runs that took less, in `[0,1]`; `None` where the wire does not tell.
    pub ranks: [Option<f64>; Measure::ALL.len()],
}

/// What is predicted of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The chance that it failed, in `[0,1]`.
    pub failure: f64,
    /// What each feature adds to the log-odds.
    pub carried_by: [f64; N],
}

/// What is predicted: a session among sessions, or a trace among traces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Whole {
    /// A session.
    Session,
    /// A trace.
    Trace,
}

/// A model of one agent.
#[derive(Clone, Debug)]
pub struct Model {
    spreads: Spreads,
    coefficients: [f64; N],
    // Curvature of what is minimised, at the coefficients.
    curve: [[f64; N]; N],
    tasks: BTreeMap<Arc<str>, Record>,
    // Log-odds of failure over all runs that are told, one success and one failure more.
    base: f64,
    sessions: BTreeMap<Arc<ScopedId>, (Option<Arc<str>>, bool)>,
}

/// How runs of one task went.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    runs: u64,
    failed: u64,
}

impl Model {
    /// Learns from the runs that are told.
    pub fn new(spreads: Spreads, known: &[KnownRun]) -> Self {
        let failed = known.iter().filter(|run| run.failed).count() as f64;
        let mut tasks: BTreeMap<Arc<str>, Record> = BTreeMap::new();
        for run in known {
            let Some(task) = &run.task else { continue };
            let record = tasks.entry(Arc::clone(task)).or_default();
            record.runs += 1;
            record.failed += u64::from(run.failed);
        }
        let sessions = known.iter();
        let mut model = Self {
            spreads,
            coefficients: FEATURES.map(|feature| feature.prior),
            curve: [[0.0; N]; N],
            tasks,
            base: log_odds((failed + 1.0) / (known.len() as f64 + 2.0)),
            sessions: sessions
                .map(|run| (Arc::clone(&run.session), (run.task.clone(), run.failed)))
                .collect(),
        };
        let rows: Vec<([f64; N], f64)> = known
            .iter()
            .filter_map(|run| {
                let row = model.row_of(run)?;
                Some((row, if run.failed { 1.0 } else { 0.0 }))
            })
            .collect();
        if !rows.is_empty() {
            (model.coefficients, model.curve) = fit(&rows);
        }
        model
    }

    /// The distributions of the agent's sessions, or of its traces.
    pub(super) fn spread(&self, whole: Whole) -> &Spread {
        match whole {
            Whole::Session => &self.spreads.sessions,
            Whole::Trace => &self.spreads.traces,
        }
    }

    /// How many outcomes it has learned from.
    pub fn outcomes(&self) -> usize {
        self.sessions.len()
    }

    /// Ranks a session or a trace among the others; `None` before there are enough.
    pub fn ranked(&self, whole: Whole, effort: &Effort) -> Option<Ranked> {
        ranked(self.spread(whole), effort)
    }

    /// Predicts how a session went, by what it took, or by what one of its traces took; what is told of that session itself has no
    /// part in its task's record. `None` before there are enough to rank it among.
    pub fn predict(
        &self,
        whole: Whole,
        (session, task): (&ScopedId, Option<&str>),
        effort: &Effort,
    ) -> Option<Prediction> {
        let row = self.row(session, task, (whole, effort))?;
        let mut carried_by = [0.0; N];
        for ((carried, value), coefficient) in carried_by.iter_mut().zip(row).zip(self.coefficients)
        {
            *carried = value * coefficient;
        }
        Some(Prediction { failure: logistic(carried_by.iter().sum()), carried_by })
    }

    /// Each of the runs that it learned from, with the chance that it would give it had it not.
    pub(super) fn left_out(&self, known: &[KnownRun]) -> Vec<(f64, bool)> {
        let odds = |run: &KnownRun| {
            let row = self.row_of(run)?;
            let odds: f64 =
                row.iter().zip(self.coefficients).map(|(value, held)| value * held).sum();
            let chance = logistic(odds);
            let leverage: f64 =
                solve(self.curve, row).iter().zip(row).map(|(one, two)| one * two).sum();
            let failed = if run.failed { 1.0 } else { 0.0 };
            let without = leverage * (failed - chance) / (1.0 - leverage * chance * (1.0 - chance));
            Some((logistic(odds - without), run.failed))
        };
        known.iter().filter_map(odds).collect()
    }

    fn row_of(&self, run: &KnownRun) -> Option<[f64; N]> {
        self.row(&run.session, run.task.as_deref(), (Whole::Session, &run.effort))
    }

    fn row(
        &self,
        session: &ScopedId,
        task: Option<&str>,
        (whole, effort): (Whole, &Effort),
    ) -> Option<[f64; N]> {
        let record = task.map_or(0.0, |task| self.record(session, task));
        row(self.spread(whole), effort, record)
    }

    /// How far the log-odds of failure of a task's other runs are above those of all runs.
    fn record(&self, session: &ScopedId, task: &str) -> f64 {
        let Record { mut runs, mut failed } = self.tasks.get(task).copied().unwrap_or_default();
        if let Some((own, own_failed)) = self.sessions.get(session)
            && own.as_deref() == Some(task)
        {
            runs -= 1;
            failed -= u64::from(*own_failed);
        }
        let usual = RECORD_WEIGHT * logistic(self.base);
        let share = (failed as f64 + usual) / (runs as f64 + RECORD_WEIGHT);
        log_odds(share) - self.base
    }
}

/// Ranks a run among others; `None` before there are enough.
fn ranked(spread: &Spread, effort: &Effort) -> Option<Ranked> {
    let ranks = Measure::ALL.map(|measure| spread.rank(measure, measure.of(effort)?));
    let of_effort = Measure::ALL.iter().filter(|measure| measure.is_effort());
    let known: Vec<f64> = of_effort.filter_map(|measure| ranks[*measure as usize]).collect();
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    (!known.is_empty()).then_some(Ranked { effort: mean, ranks })
}

/// The features of a run among others, with its task's record; `None` before there are enough.
pub(super) fn row(spread: &Spread, effort: &Effort, record: f64) -> Option<Row> {
    let Ranked { effort: mean, ranks } = ranked(spread, effort)?;
    let failed_share = effort.failed_calls as f64 / effort.judged_calls.max(1) as f64;
    let inputs = Inputs { effort: mean, ranks, failed_share, record };
    Some(FEATURES.map(|feature| (feature.value)(&inputs)))
}

/// The most likely coefficients, and the curvature there.
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
        // Far from the optimum a whole step may overshoot.
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

/// Solves `matrix x = right` by Cholesky's decomposition; of the matrix, which is positive definite, the lower half is read.
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
    use super::*;
    use crate::span::Timestamp;

    fn session(id: &str) -> ScopedId {
        ScopedId { id: id.to_owned(), ..ScopedId::default() }
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
    fn spread() -> Spreads {
        let mut sessions = Spread::default();
        (1..=100).for_each(|calls| sessions.add(Timestamp(1), &effort(calls)));
        Spreads { sessions, traces: Spread::default() }
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
        model.predict(Whole::Session, (session, task), &effort(calls))
    }

    fn chance(model: &Model, calls: u64, task: Option<&str>) -> f64 {
        predict(model, &session("another"), task, calls).unwrap().failure
    }

    #[test]
    fn without_outcomes_more_effort_is_more_likely_a_failure() {
        let model = Model::new(spread(), &[]);
        assert!(chance(&model, 90, None) > 2.0 * chance(&model, 10, None));
        assert_eq!(model.outcomes(), 0);
        assert_eq!(predict(&Model::new(Spreads::default(), &[]), &session("s"), None, 5), None);
    }

    #[test]
    fn where_short_runs_fail_fifty_outcomes_are_enough_to_learn_it() {
        let known: Vec<KnownRun> = (1..=50).map(|i| run(2 * i, None, i <= 20)).collect();
        let model = Model::new(spread(), &known);
        assert!(chance(&model, 10, None) > 0.5 && chance(&model, 90, None) < 0.3);
    }

    #[test]
    fn a_task_that_failed_before_is_more_likely_to_fail_again_whatever_is_told_of_the_run_itself() {
        let known = [
            run(10, Some("hard"), true),
            run(20, Some("hard"), true),
            run(30, Some("easy"), false),
            run(40, Some("easy"), false),
        ];
        let model = Model::new(spread(), &known);
        assert!(chance(&model, 50, Some("hard")) > chance(&model, 50, None));
        assert!(chance(&model, 50, Some("easy")) < chance(&model, 50, None));
        let alone = Model::new(spread(), &known[..1]);
        let own = predict(&alone, &session("10"), Some("hard"), 10).unwrap();
        assert!(own.carried_by[N - 1].abs() < 1e-12);
    }

    #[test]
    fn a_run_that_is_left_out_is_predicted_nearly_as_by_a_model_without_it() {
        let known: Vec<KnownRun> = (1..=40).map(|i| run(2 * i, None, i % 3 == 0)).collect();
        let model = Model::new(spread(), &known);
        for (at, (chance, failed)) in model.left_out(&known).into_iter().enumerate() {
            let mut others = known.clone();
            let own = others.remove(at);
            let calls = own.effort.model_calls;
            let exact = predict(&Model::new(spread(), &others), &session(""), None, calls).unwrap();
            let with = predict(&model, &session(""), None, calls).unwrap();
            let error = (chance - exact.failure).abs();
            assert!(error < 0.01 && error < (with.failure - exact.failure).abs(), "{at}: {error}");
            assert_eq!(failed, own.failed);
        }
    }

    #[test]
    fn coefficients_are_those_at_which_the_slope_is_zero() {
        let known: Vec<KnownRun> = (1..=40).map(|i| run(2 * i, None, i % 3 == 0)).collect();
        let model = Model::new(spread(), &known);
        for (i, feature) in FEATURES.iter().enumerate() {
            let precision = 1.0 / (feature.spread * feature.spread);
            let mut slope = precision * (model.coefficients[i] - feature.prior);
            for run in &known {
                let row = model.row_of(run).unwrap();
                let chance = chance(&model, run.effort.model_calls, None);
                slope += row[i] * (chance - if run.failed { 1.0 } else { 0.0 });
            }
            assert!(slope.abs() < 1e-9, "{}: {slope}", feature.name);
        }
    }
}
