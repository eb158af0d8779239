//! The open numbers of the agent reliability score, and the values chosen here.
//!
//! The source publishes the six components, 0.6 and 0.4 of source fidelity, and the bands. Weights, ceilings, the optimum of loops
//! and the two scores for nothing retrieved are not published: all defaults here are agentgauge's choice.

use std::collections::BTreeMap;

use super::part::ComponentName;

crate::options! {
    /// Numbers of the agent reliability score; the source gives none of these defaults.
    pub struct ArsOptions in "ars" {
        /// How much each component counts; those without data are left out, and the others share the whole.
        pub weights: ArsWeights = ArsWeights::default();
        /// Mean seconds of a run from which latency scores 0; without it latency is absent.
        pub latency_ceiling_seconds: Option<f64> = None;
        /// Mean US dollars of a run from which cost scores 0; without it cost is absent.
        pub cost_ceiling_usd: Option<f64> = None;
        /// Model calls that a run needs at best, where its test case is not listed below; without either, trajectory is
        /// the success of tools alone.
        pub optimum_loops: Option<u64> = None;
        /// Model calls that a run of a task needs at best, by task, such as `{ "book a flight" = 4 }`.
        pub optimum_loops_by_case: BTreeMap<String, u64> = BTreeMap::new();
        /// Source fidelity, 0 to 100, of a run that retrieved nothing and cited nothing; without it such a run has none.
        pub fidelity_of_nothing: Option<f64> = None;
        /// Source fidelity, 0 to 100, of a run that cited sources though nothing was retrieved.
        pub fidelity_without_retrieval: f64 = 25.0, within 0.0..=100.0;
        /// Runs of one agent, at most a million; a further one is not taken until another is removed.
        // In the daemon `agents.max_runs` says it.
        #[serde(skip)]
        pub max_runs: usize = 10_000;
    }
}

crate::options! {
    /// How much each component counts, in any unit: only the proportions matter. What is negative or not finite counts as 0.
    #[derive(Copy)]
    pub struct ArsWeights in "ars.weights" {
        /// Mean rubric score or outcome.
        pub accuracy: f64 = 0.35;
        /// Citations against retrieved documents.
        pub source_fidelity: f64 = 0.2;
        /// Steadiness over the runs of a test case.
        pub consistency: f64 = 0.15;
        /// Success of tools and length of the path.
        pub trajectory: f64 = 0.1;
        /// Response time.
        pub latency: f64 = 0.1;
        /// Spend.
        pub cost: f64 = 0.1;
    }
}

impl ArsWeights {
    /// Each weight.
    pub fn all(&self) -> [f64; 6] {
        [
            self.accuracy,
            self.source_fidelity,
            self.consistency,
            self.trajectory,
            self.latency,
            self.cost,
        ]
    }
}

impl ArsOptions {
    /// Model calls that a run of this test case needs at best, if known.
    pub fn optimum_loops_of(&self, case: Option<&str>) -> Option<u64> {
        let own = case.and_then(|case| self.optimum_loops_by_case.get(case));
        own.copied().or(self.optimum_loops)
    }
}

impl ArsWeights {
    /// The weight of a component, at least 0.
    pub(super) fn of(&self, part: ComponentName) -> f64 {
        let weight = match part {
            ComponentName::Accuracy => self.accuracy,
            ComponentName::SourceFidelity => self.source_fidelity,
            ComponentName::Consistency => self.consistency,
            ComponentName::Trajectory => self.trajectory,
            ComponentName::Latency => self.latency,
            ComponentName::Cost => self.cost,
        };
        if weight.is_finite() { weight.max(0.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_over_their_defaults() {
        let text = "cost_ceiling_usd = 0.5\n[weights]\naccuracy = 1.0\n[optimum_loops_by_case]\nrefund = 3\n";
        let options: ArsOptions = toml::from_str(text).unwrap();
        assert_eq!(options.cost_ceiling_usd, Some(0.5));
        assert_eq!(options.weights, ArsWeights { accuracy: 1.0, ..ArsWeights::default() });
        assert_eq!(options.optimum_loops_of(Some("refund")), Some(3));
        assert_eq!(options.optimum_loops_of(Some("other")), None);
        assert!(toml::from_str::<ArsOptions>("ceiling = 1.0").is_err());
    }
}
