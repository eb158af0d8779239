//! Rises to slightly more than what is tolerated: whether they are found before they become usual.

use agentgauge::engine::detect::Severity;

use crate::agent::{Agent, DAY, options};
use crate::{FIRST_SEED, percentile};

/// Levels before and after.
const RISES: [(f64, f64); 7] =
    [(0.01, 0.05), (0.01, 0.06), (0.05, 0.09), (0.05, 0.1), (0.1, 0.15), (0.1, 0.16), (0.13, 0.18)];

/// Traces a second, and the most traces.
const RATES: [(f64, u32); 4] =
    [(20.0 / DAY, 20_000), (1.0 / 60.0, 60_000), (0.5, 100_000), (8.0, 200_000)];

const RUNS: u64 = 20;

/// Traces before the rise, or those of a day if that is more.
const KNOWN: f64 = 600.0;

pub(crate) fn small() {
    println!(
        "Small rises: how many of {RUNS} runs paged, and after how many traces, median and most;"
    );
    println!("default options, one stream, a day of past.");
    println!();
    println!("| Change | 20 a day | 1/min | 0.5/s | 8/s |");
    println!("|---|---|---|---|---|");
    for (before, after) in RISES {
        let cells = RATES.map(|(rate, most)| {
            let seeds = FIRST_SEED..FIRST_SEED + RUNS;
            let agents: Vec<Agent> = seeds.filter_map(|seed| past(before, rate, seed)).collect();
            let of = agents.len();
            let found = |mut agent: Agent| {
                (1..=most).find(|_| agent.trace(after) == Some(Severity::Critical))
            };
            let mut paged: Vec<f64> = agents.into_iter().filter_map(found).map(f64::from).collect();
            format!(
                "{} of {of}: {:.0}, {:.0}",
                paged.len(),
                percentile(&mut paged, 50),
                percentile(&mut paged, 100)
            )
        });
        println!("| {:.0} -> {:.0} % | {} |", 100.0 * before, 100.0 * after, cells.join(" | "));
    }
    println!();
}

/// An agent just before the rise; `None` if there is a false page at that moment.
fn past(level: f64, rate: f64, seed: u64) -> Option<Agent> {
    let mut agent = Agent::new(options(level).limits(1), rate, seed);
    while agent.now < (KNOWN / rate).max(DAY) {
        agent.trace(level);
    }
    (agent.severity() <= Severity::Warning).then_some(agent)
}
