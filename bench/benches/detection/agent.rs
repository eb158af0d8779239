//! A simulated agent: random traces, and a detector that observes them.

use agentgauge::engine::detect::{
    Detector, DropLimits, DropOptions, DropState, Observation, Severity,
};
use agentgauge::engine::span::Timestamp;

/// Seconds.
pub(crate) const DAY: f64 = 86_400.0;

pub(crate) struct Agent {
    pub(crate) detector: Detector,
    pub(crate) limits: DropLimits,
    pub(crate) random: Random,
    /// Seconds.
    pub(crate) now: f64,
    /// Traces a second.
    pub(crate) rate: f64,
    pub(crate) pages: u64,
    pub(crate) warnings: u64,
}

/// Random numbers: splitmix64.
#[derive(Clone, Copy)]
pub(crate) struct Random(u64);

impl Agent {
    pub(crate) fn new(limits: DropLimits, rate: f64, seed: u64) -> Self {
        let random = Random::new(seed);
        let detector = Detector::default();
        Self { detector, limits, random, now: 0.0, rate, pages: 0, warnings: 0 }
    }

    /// One more trace, which fails with this probability.
    pub(crate) fn trace(&mut self, level: f64) -> Option<Severity> {
        let failed = self.random.below(level);
        self.value(Observation::verdict(failed))
    }

    /// One more value.
    pub(crate) fn value(&mut self, value: Observation) -> Option<Severity> {
        self.now += self.random.gap(self.rate);
        let severity = self.detector.observe(self.at(), value, &self.limits)?;
        self.pages += u64::from(severity == Severity::Critical);
        self.warnings += u64::from(severity == Severity::Warning);
        Some(severity)
    }

    pub(crate) fn at(&self) -> Timestamp {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a few years of nanoseconds, over 0"
        )]
        let nanos = (self.now * 1e9) as u64;
        Timestamp(nanos)
    }

    pub(crate) fn state(&self) -> DropState {
        self.detector.state(&self.limits)
    }

    pub(crate) fn severity(&self) -> Severity {
        self.state().severity
    }

    /// The next version of this agent.
    pub(crate) fn deploy(&mut self) {
        self.detector = self.detector.successor(&self.limits);
    }

    /// The detector as another process restores it.
    pub(crate) fn restart(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let written = rmp_serde::to_vec_named(&self.detector)?;
        self.detector = rmp_serde::from_slice(&written)?;
        Ok(())
    }
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD129_0A2F_5DA5_9B17))
    }

    /// In `[0,1)`.
    pub(crate) fn number(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub(crate) fn below(&mut self, level: f64) -> bool {
        self.number() < level
    }

    /// Seconds to the next of independent events at this rate per second.
    pub(crate) fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.number()).ln() / rate
    }
}

/// Options under which an agent with this level is not bad from its first trace on.
pub(crate) fn options(level: f64) -> DropOptions {
    DropOptions { objective: 0.9_f64.min(0.95 - level), ..DropOptions::default() }
}
