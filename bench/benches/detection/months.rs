//! Months of agents whose traces and failures are uneven: how soon a drop is found in them, and how often there is a false page.

use agentgauge::engine::detect::Severity;

use crate::agent::{Agent, DAY, options};
use crate::{FIRST_SEED, percentile, seeds};

/// A month in the life of an agent. Times are in days; levels and rates are functions of time.
struct Month {
    name: &'static str,
    /// How often a trace fails.
    level: fn(f64) -> f64,
    /// Traces, as a multiple of those of its volume.
    rate: fn(f64) -> f64,
    /// The duration of a drop that begins at [`BEGIN`]; 0: there is none.
    lasts: f64,
}

/// The result for the drop of one agent.
#[derive(Default)]
struct Found {
    /// Traces and hours until it paged; none: it did not.
    paged: Option<(f64, f64)>,
    /// Pages before the drop, or after its first page.
    others: u64,
}

/// When drops begin, in days.
const BEGIN: f64 = 15.0;

/// Days of each month.
const LENGTH: f64 = 45.0;

/// Traces a day, and the divisor of the number of seeds for this volume.
const VOLUMES: [(f64, u64); 4] = [(20.0, 1), (200.0, 1), (2_000.0, 1), (20_000.0, 4)];

/// The seeds, unless an argument is another number.
const SEEDS: u64 = 20;

const MONTHS: [Month; 11] = [
    Month::new("2 -> 20 % within 12 hours", |day| rising(day, 0.5), steady, 5.0),
    Month::new("2 -> 20 % within 2 days", |day| rising(day, 2.0), steady, 6.0),
    Month::new("2 -> 20 % within 7 days", |day| rising(day, 7.0), steady, 12.0),
    Month::new("2 -> 20 % within 14 days", |day| rising(day, 14.0), steady, 20.0),
    Month::new("2 -> 100 % for 2 hours", |day| during(day, 1.0 / 12.0, 1.0), steady, 1.0 / 12.0),
    Month::new(
        "2 -> 30 % in a week of a tenth of the traces",
        |day| during(day, 5.0, 0.3),
        light,
        5.0,
    ),
    Month::new("2 -> 30 % after a week without a trace", |day| during(day, 5.0, 0.3), back, 5.0),
    Month::new(
        "2 -> 30 %, all traces within 20 minutes a night",
        |day| during(day, 5.0, 0.3),
        nightly,
        5.0,
    ),
    Month::new("1 % by day, 10 % by night -> 40 %", nights, steady, 3.0),
    Month::new("5 %, fifty times the traces for an hour every other day", |_| 0.05, spikes, 0.0),
    Month::new(
        "5 %, every other week without a trace",
        |_| 0.05,
        |day| f64::from(u8::from(day % 14.0 < 7.0)),
        0.0,
    ),
];

/// How soon drops of such months are found.
pub(crate) fn table() {
    let seeds = seeds(SEEDS);
    println!(
        "Traces and hours until the page, 50 % and how many of {seeds} agents (20,000 a day: of a fourth);"
    );
    println!("and pages besides: before it, or again while it lasts or after it.");
    println!();
    println!("| | 20 a day | 200 | 2,000 | 20,000 | Besides |");
    println!("|---|---|---|---|---|---|");
    for month in &MONTHS {
        let mut others = 0;
        let cells = VOLUMES.map(|(per_day, part)| {
            let seeds = FIRST_SEED..FIRST_SEED + (seeds / part).max(1);
            let found: Vec<Found> = seeds.map(|seed| month.run(per_day, seed)).collect();
            others += found.iter().map(|found| found.others).sum::<u64>();
            let (mut traces, mut hours): (Vec<f64>, Vec<f64>) =
                found.iter().filter_map(|found| found.paged).unzip();
            if traces.is_empty() {
                return String::new();
            }
            let middle = (percentile(&mut traces, 50), percentile(&mut hours, 50));
            format!("{:.0}, {:.1} h: {}", middle.0, middle.1, traces.len())
        });
        println!("| {} | {} | {others} |", month.name, cells.join(" | "));
    }
    println!();
}

impl Month {
    const fn new(
        name: &'static str,
        level: fn(f64) -> f64,
        rate: fn(f64) -> f64,
        lasts: f64,
    ) -> Self {
        Self { name, level, rate, lasts }
    }

    fn run(&self, per_day: f64, seed: u64) -> Found {
        let mut agent = Agent::new(options(0.05).limits(3), per_day / DAY, seed);
        let (mut found, mut traces) = (Found::default(), 0.0);
        while agent.now < LENGTH * DAY {
            let day = agent.now / DAY;
            let rate = (self.rate)(day);
            if rate <= 0.0 {
                agent.now += MINUTE;
                continue;
            }
            agent.rate = per_day / DAY * rate;
            let is_in_drop = day >= BEGIN && day < BEGIN + self.lasts;
            traces += f64::from(u8::from(is_in_drop));
            if agent.trace((self.level)(day)) != Some(Severity::Critical) {
                continue;
            }
            if is_in_drop && found.paged.is_none() {
                found.paged = Some((traces, (agent.now / DAY - BEGIN) * 24.0));
            } else {
                found.others += 1;
            }
        }
        found
    }
}

fn steady(_: f64) -> f64 {
    1.0
}

/// 2 %, and from the beginning of the drop on another level for this many days.
fn during(day: f64, lasts: f64, level: f64) -> f64 {
    if (BEGIN..BEGIN + lasts).contains(&day) { level } else { 0.02 }
}

/// 2 %, which rises evenly to 20 % within this many days, stays there for five, and is 2 % again.
fn rising(day: f64, within: f64) -> f64 {
    let risen = ((day - BEGIN) / within).min(1.0);
    during(day, within + 5.0, 0.02 + 0.18 * risen)
}

/// 1 %, and 10 % for eight hours a night; 40 % for the three days of the drop.
fn nights(day: f64) -> f64 {
    let usual = if day.fract() < 1.0 / 3.0 { 0.1 } else { 0.01 };
    if (BEGIN..BEGIN + 3.0).contains(&day) { 0.4 } else { usual }
}

/// A week of a tenth of the traces, from two days before the drop on.
fn light(day: f64) -> f64 {
    if (BEGIN - 2.0..BEGIN + 5.0).contains(&day) { 0.1 } else { 1.0 }
}

/// No trace in the week before the drop.
fn back(day: f64) -> f64 {
    if (BEGIN - 7.0..BEGIN).contains(&day) { 0.0 } else { 1.0 }
}

/// All traces within 20 minutes a night.
fn nightly(day: f64) -> f64 {
    if day.fract() < 1.0 / 72.0 { 72.0 } else { 0.0 }
}

/// An hour of fifty times the traces every other day.
fn spikes(day: f64) -> f64 {
    if day % 2.0 < 1.0 / 24.0 { 50.0 } else { 1.0 }
}

/// Seconds.
const MINUTE: f64 = 60.0;
