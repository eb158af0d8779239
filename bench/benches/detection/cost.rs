//! The cost of a value, and the memory of a detector.

use agentgauge::engine::detect::{Detector, DropOptions, Observation};
use agentgauge::engine::span::Timestamp;
use divan::Bencher;
use divan::counter::ItemsCount;

use crate::agent::{Agent, options};

pub(crate) fn cost() {
    let mut agent = Agent::new(DropOptions::default().limits(3), 1.0, 1);
    (0..10_000).for_each(|_| {
        agent.trace(0.05);
    });
    let written = rmp_serde::to_vec_named(&agent.detector).map_or(0, |written| written.len());
    println!("A detector: {} bytes, written down {written}.", size_of::<Detector>());
    println!();
    divan::Divan::default().main();
}

/// Values per sample.
const VALUES: u64 = 100_000;

#[divan::bench(args = [0.0, 0.01, 0.05, 0.2, 0.5], sample_count = 50, sample_size = 1)]
fn observe(bencher: Bencher<'_, '_>, level: f64) {
    let mut agent = Agent::new(options(level).limits(3), 1.0, 1);
    (0..10_000).for_each(|_| {
        agent.trace(level);
    });
    let values: Vec<Observation> =
        (0..VALUES).map(|_| Observation::verdict(agent.random.below(level))).collect();
    let mut now = agent.at().0;
    bencher.counter(ItemsCount::new(VALUES)).bench_local(|| {
        for value in &values {
            now += 1_000_000_000;
            agent.detector.observe(Timestamp(now), *value, &agent.limits);
        }
    });
}
