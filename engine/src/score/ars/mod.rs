//! Agent reliability score (ARS): six components of an agent's runs, as one number from 0 to 100.
//!
//! ```text
//! accuracy        = 100 * mean(rubric score or outcome)                                   over runs
//! source_fidelity = 100 * mean(0.6 precision + 0.4 coverage)                              over runs
//! consistency     = 100 * mean(clamp(1 - s / mean of the scores, 0, 1))                   over test cases with 2 or more runs
//! trajectory      = 100 * (0.5 successful / all tool calls + 0.5 mean(min(1, optimum / loops)))
//! latency         = 100 * clamp(1 - mean seconds / ceiling, 0, 1)
//! cost            = 100 * clamp(1 - mean dollars / ceiling, 0, 1)
//! score           = sum of weight * component / sum of weights                            over components with data
//! ```
//!
//! Source: Credal, "Agent Reliability Score", which has no code and leaves some things open: the weights, the ceilings, how
//! variation becomes a score and the halves of trajectory are agentgauge's choice ([`ArsOptions`]). `s` is the sample deviation. A
//! test case whose scores are all 0 is left out of consistency, as it is steady only in failure. Trajectory is absent without tool
//! calls; its second half is over the runs with a known optimum, and if there is none, trajectory is the success of tools alone.
//!
//! Exact: each run's numbers are quantised once, sums are integers, and a run that is replaced or removed leaves no trace.

mod options;
mod part;
mod run;
mod tally;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use options::{ArsOptions, ArsWeights};
pub use part::{ComponentName, Components};
pub use run::ArsRun;

use self::run::Contribution;
use self::tally::{Mean, Measured, Tally};
use crate::math::Quanta;

/// The runs of one agent, and their sums.
#[derive(Clone, Debug, PartialEq)]
pub struct ArsAgent {
    options: ArsOptions,
    // Invariant: each case has a run.
    cases: BTreeMap<Arc<str>, Case>,
    /// Runs of no test case.
    loose: BTreeMap<Arc<str>, Contribution>,
    // Invariant: the sums over all runs, with or without a case, and over the steadiness of each case.
    total: Tally,
    consistency: Mean,
}

/// The score and its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Ars {
    /// 0 to 100.
    pub score: f64,
    /// The source's name for a score of this height.
    pub band: &'static str,
    /// The components that have data.
    pub components: Components,
}

/// One component of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component {
    /// 0 to 100.
    pub score: f64,
    /// Its share of the whole score, in `[0,1]`; the shares of all components with data add up to 1.
    pub weight: f64,
    /// Number of runs that it was measured over; for consistency, of test cases; for trajectory, of runs with tool calls.
    pub samples: u64,
}

/// One test case in the breakdown.
#[derive(Clone, Debug, PartialEq)]
pub struct ArsCase {
    /// Number of its runs.
    pub runs: u64,
    /// Accuracy, cost, latency and source fidelity, 0 to 100, each if it has data.
    pub components: BTreeMap<&'static str, f64>,
}

/// The runs of one test case, and their sums.
#[derive(Clone, Debug, Default, PartialEq)]
struct Case {
    runs: BTreeMap<Arc<str>, Contribution>,
    tally: Tally,
}

impl ArsAgent {
    /// An agent without runs.
    pub fn new(options: ArsOptions) -> Self {
        Self {
            options,
            cases: BTreeMap::new(),
            loose: BTreeMap::new(),
            total: Tally::default(),
            consistency: Mean::default(),
        }
    }

    /// Adds a run, or replaces the one of the same test case and id.
    ///
    /// Returns whether it was accepted: a new run is not if there are `max_runs` already.
    pub fn upsert(&mut self, run: ArsRun) -> bool {
        let contribution = Contribution::new(&run, &self.options);
        let room = self.options.max_runs.min(MAX_RUNS);
        let full = usize::try_from(self.total.runs).is_ok_and(|held| held >= room);
        if full && !self.holds(&run) {
            return false;
        }
        let old = match run.case {
            None => self.loose.insert(run.id, contribution),
            Some(name) => {
                let case = self.cases.entry(name).or_default();
                self.consistency.forget(case.tally.steadiness());
                let old = case.runs.insert(run.id, contribution);
                old.iter().for_each(|old| case.tally.forget(old));
                case.tally.observe(&contribution);
                self.consistency.observe(case.tally.steadiness());
                old
            }
        };
        old.iter().for_each(|old| self.total.forget(old));
        self.total.observe(&contribution);
        true
    }

    fn holds(&self, run: &ArsRun) -> bool {
        match &run.case {
            None => self.loose.contains_key(&run.id),
            Some(name) => self.cases.get(name).is_some_and(|case| case.runs.contains_key(&run.id)),
        }
    }

    /// Removes a run; returns whether there was one.
    pub fn remove(&mut self, case: Option<&str>, id: &str) -> bool {
        let removed = match case {
            Some(name) => self.remove_of_case(name, id),
            None => self.loose.remove(id),
        };
        if let Some(contribution) = &removed {
            self.total.forget(contribution);
        }
        removed.is_some()
    }

    /// The score; `None` while no component with a weight has data.
    pub fn score(&self) -> Option<Ars> {
        let (mut whole, mut weighted) = (0.0, 0.0);
        let mut components = Components::default();
        for part in ComponentName::ALL {
            let Some((score, samples)) = self.component(part) else { continue };
            let weight = self.options.weights.of(part);
            whole += weight;
            weighted += weight * score;
            components.set(part, Some(Component { score: 100.0 * score, weight, samples }));
        }
        if whole <= 0.0 {
            return None;
        }
        let score = 100.0 * weighted / whole;
        let components =
            components.map(|component| Component { weight: component.weight / whole, ..component });
        Some(Ars { score, band: band(score), components })
    }

    /// The breakdown by test case, without the runs that have none.
    pub fn cases(&self) -> BTreeMap<Arc<str>, ArsCase> {
        let breakdown = |Case { tally, .. }: &Case| {
            let measured = ComponentName::OF_CASE.into_iter().filter_map(|part| {
                let (score, _) = tally.component(part, &self.options)?;
                Some((part.name(), 100.0 * score))
            });
            ArsCase { runs: tally.runs, components: measured.collect() }
        };
        self.cases.iter().map(|(name, case)| (Arc::clone(name), breakdown(case))).collect()
    }

    fn component(&self, part: ComponentName) -> Option<Measured> {
        if part == ComponentName::Consistency {
            self.consistency.result()
        } else {
            self.total.component(part, &self.options)
        }
    }

    fn remove_of_case(&mut self, name: &str, id: &str) -> Option<Contribution> {
        let case = self.cases.get_mut(name)?;
        let contribution = case.runs.remove(id)?;
        self.consistency.forget(case.tally.steadiness());
        case.tally.forget(&contribution);
        self.consistency.observe(case.tally.steadiness());
        if case.runs.is_empty() {
            self.cases.remove(name);
        }
        Some(contribution)
    }
}

/// The source's name for a score from 0 to 100.
pub fn band(score: f64) -> &'static str {
    // Rounded, as weighted sums of floats may be slightly too low.
    match Quanta::from_f64(score).unwrap_or_default() {
        score if score >= Quanta(80 * Quanta::ONE) => "excellent",
        score if score >= Quanta(60 * Quanta::ONE) => "good",
        score if score >= Quanta(40 * Quanta::ONE) => "needs improvement",
        _ => "significant issues",
    }
}

/// Number of runs up to which all sums are exact.
const MAX_RUNS: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: &str, id: &str, accuracy: f64) -> ArsRun {
        ArsRun {
            case: Some(Arc::from(case)),
            id: Arc::from(id),
            accuracy: Quanta::from_f64(accuracy),
            ..ArsRun::default()
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn an_agent_without_data_has_no_score() {
        let mut agent = ArsAgent::new(ArsOptions::default());
        assert_eq!(agent.score(), None);
        // Neither ceilings nor tools nor documents: nothing to say.
        agent.upsert(ArsRun { latency_seconds: Some(1.0), loops: 3, ..ArsRun::default() });
        assert_eq!(agent.score(), None);
    }

    #[test]
    fn components_without_data_leave_their_weight_to_the_others() {
        let options = ArsOptions { latency_ceiling_seconds: Some(10.0), ..ArsOptions::default() };
        let mut agent = ArsAgent::new(options);
        agent.upsert(ArsRun { latency_seconds: Some(4.0), ..run("a", "1", 0.9) });
        let ars = agent.score().unwrap();
        assert!(near(ars.score, (0.35 * 90.0 + 0.1 * 60.0) / 0.45));
        assert_eq!(ars.band, "excellent");
        let latency = ars.components.get(ComponentName::Latency).unwrap();
        assert!(near(latency.score, 60.0) && near(latency.weight, 0.1 / 0.45));
        assert_eq!(latency.samples, 1);
    }

    #[test]
    fn consistency_is_over_test_cases_with_more_than_one_run() {
        let mut agent = ArsAgent::new(ArsOptions::default());
        for (case, id, accuracy) in
            [("a", "1", 0.8), ("a", "2", 0.8), ("b", "1", 1.0), ("b", "2", 0.0), ("c", "1", 0.5)]
        {
            agent.upsert(run(case, id, accuracy));
        }
        let consistency =
            agent.score().unwrap().components.get(ComponentName::Consistency).unwrap();
        assert!(near(consistency.score, 50.0));
        assert_eq!(consistency.samples, 2);
    }

    #[test]
    fn a_removed_run_leaves_no_trace() {
        let mut agent = ArsAgent::new(ArsOptions::default());
        agent.upsert(run("a", "1", 0.8));
        let before = agent.clone();
        agent.upsert(run("b", "1", 0.1));
        agent.upsert(run("a", "1", 0.3));
        agent.upsert(run("a", "1", 0.8));
        assert!(agent.remove(Some("b"), "1"));
        assert!(!agent.remove(None, "1"));
        assert_eq!(agent, before);
    }

    #[test]
    fn a_full_agent_takes_no_new_run_and_still_replaces() {
        let mut agent = ArsAgent::new(ArsOptions { max_runs: 1, ..ArsOptions::default() });
        assert!(agent.upsert(run("a", "1", 0.8)));
        assert!(!agent.upsert(run("a", "2", 0.8)));
        assert!(agent.upsert(run("a", "1", 0.4)));
        assert!(near(agent.score().unwrap().score, 40.0));
    }

    #[test]
    fn bands_begin_at_their_lower_end() {
        for (score, name) in [
            (80.0, "excellent"),
            (79.999_999_999_999_9, "excellent"),
            (79.5, "good"),
            (60.0, "good"),
            (40.0, "needs improvement"),
            (39.9, "significant issues"),
        ] {
            assert_eq!(band(score), name);
        }
    }
}
