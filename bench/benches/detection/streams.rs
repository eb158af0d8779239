//! False warnings about usage: `effort`, `cost` and `latency` of agents that do not change.
//!
//! Times and dollars have heavy tails (a Pareto tail of index 1.2, which has no variance) and are correlated; calls are few, and
//! many traces have the same number. The stage that watches agents receives the traces one by one, as shards send them.

use agentgauge::engine::detect::DropOptions;
use agentgauge::engine::facts::{DoneTrace, Effort, PartialSum};

use crate::agent::{DAY, Random};
use crate::stage::{Stage, done, whole};
use crate::{FIRST_SEED, seeds};

/// The behaviour of an agent while nothing is wrong.
#[derive(Clone, Copy)]
enum Life {
    Steady,
    RateOfDay,
    LevelOfDay,
    ThreeInARow,
    Versions,
    Restarts,
    Wanders,
}

/// Each with its name.
const LIVES: [(Life, &str); 7] = [
    (Life::Steady, "steady"),
    (Life::RateOfDay, "rate 0.1 to 1.9 of the mean, daily"),
    (Life::LevelOfDay, "mean percentile up and down by 0.8 of the tolerance, daily"),
    (Life::ThreeInARow, "three traces in a row that take twenty times as much, daily"),
    (Life::Versions, "a new version of equal quality, daily"),
    (Life::Restarts, "written down and read back, daily"),
    (Life::Wanders, "what traces take wanders by a tenth around the usual, over some 20 traces"),
];

const STREAMS: [&str; 3] = ["effort", "cost", "latency"];

/// The seeds, unless an argument is another number.
const SEEDS: u64 = 20;

/// The index of the tails.
const TAIL: f64 = 1.2;

/// A factor that takes the mean percentile from 0.5 to 0.62, which is 0.8 of what is tolerated: `c^-1.2 / 2 = 0.38`.
const TOLERATED: f64 = 1.257;

pub(crate) fn slow() {
    table((20.0 / DAY, 1), 365.0, "20 traces a day, 365 days");
    table((1.0 / 60.0, 1), 30.0, "1/min, 30 days");
}

pub(crate) fn fast() {
    table((0.5, 16), 30.0, "0.5/s, 30 days");
}

/// Traces a second, and how many of them are sent at once.
type Rate = (f64, usize);

fn table(rate: Rate, days: f64, name: &str) {
    let seeds = seeds(SEEDS);
    let dial = days * seeds as f64 / (365.25 / 4.0);
    println!(
        "{name}: warnings of {seeds} seeds each, of an agent whose streams (these and `loops`, which"
    );
    println!("has none) share the warnings of one dial, which allows {:.1} in a row.", dial * 10.0);
    println!();
    println!("| | {} |", STREAMS.map(|stream| format!("`{stream}`")).join(" | "));
    println!("|---|---|---|---|");
    for (life, name) in LIVES {
        let mut warnings = [0_u64; STREAMS.len()];
        for seed in FIRST_SEED..FIRST_SEED + seeds {
            let mut watched = Watched::new(life, rate, seed);
            watched.run(days);
            warnings.iter_mut().zip(watched.warnings).for_each(|(all, own)| *all += own);
        }
        println!("| {name} | {} |", warnings.map(|count| count.to_string()).join(" | "));
    }
    println!();
}

/// One agent, and the number of warnings about it.
struct Watched {
    life: Life,
    mean_rate: f64,
    at_once: usize,
    waiting: Vec<DoneTrace>,
    stage: Stage,
    random: Random,
    /// Seconds.
    now: f64,
    version: u64,
    told: u64,
    /// Days begun, each at three tenths of it.
    day: f64,
    /// Traces in a row with more usage.
    more: u32,
    /// Logarithm of the factor on usual usage.
    off: f64,
    is_warning: [bool; STREAMS.len()],
    warnings: [u64; STREAMS.len()],
}

impl Watched {
    fn new(life: Life, (mean_rate, at_once): Rate, seed: u64) -> Self {
        Self {
            life,
            mean_rate,
            at_once,
            waiting: Vec::new(),
            stage: Stage::new(DropOptions::default()),
            random: Random::new(seed),
            now: 0.0,
            version: 0,
            told: 0,
            day: 0.0,
            more: 0,
            off: 0.0,
            is_warning: [false; STREAMS.len()],
            warnings: [0; STREAMS.len()],
        }
    }

    fn run(&mut self, days: f64) {
        while self.now < days * DAY {
            if self.now >= (self.day + 0.3) * DAY {
                self.day += 1.0;
                self.look();
                self.daily();
            }
            let rate = match self.life {
                Life::RateOfDay => self.mean_rate * (1.0 + 0.9 * self.turn()),
                Life::Steady
                | Life::LevelOfDay
                | Life::ThreeInARow
                | Life::Versions
                | Life::Restarts
                | Life::Wanders => self.mean_rate,
            };
            self.now += self.random.gap(rate);
            self.trace();
        }
    }

    fn daily(&mut self) {
        match self.life {
            Life::ThreeInARow => self.more = 3,
            Life::Versions => {
                self.version += 1;
                self.is_warning = [false; STREAMS.len()];
            }
            Life::Restarts => match self.stage.restarted(DropOptions::default()) {
                Ok(stage) => self.stage = stage,
                Err(error) => println!("not read back: {error}"),
            },
            Life::Steady | Life::RateOfDay | Life::LevelOfDay | Life::Wanders => {}
        }
    }

    /// One more trace.
    fn trace(&mut self) {
        let factor = self.factor();
        let long = self.heavy();
        // Slow traces mostly cost more.
        let dear = if self.random.below(0.7) { long } else { self.heavy() };
        let mut calls = 1.0;
        while self.random.below(1.0 - 0.4 / factor) && calls < 50.0 {
            calls += 1.0;
        }
        let effort = Effort {
            model_calls: whole(calls),
            tool_calls: whole(calls - 1.0),
            output_tokens: PartialSum { traces: 1, sum: whole(80.0 * calls * self.heavy()) },
            cost_quanta: PartialSum { traces: 1, sum: whole(factor * dear * 1e10) },
            nanos: whole(factor * long * 1e9),
            ..Effort::default()
        };
        self.tell(effort);
    }

    /// The factor on the usual usage of the next trace.
    fn factor(&mut self) -> f64 {
        if self.more > 0 {
            self.more -= 1;
            return 20.0;
        }
        match self.life {
            Life::LevelOfDay => TOLERATED.powf(self.turn()),
            Life::Wanders => {
                self.off += 0.05 * (0.7 * (self.random.number() - 0.5) - self.off);
                self.off.exp()
            }
            Life::Steady
            | Life::RateOfDay
            | Life::ThreeInARow
            | Life::Versions
            | Life::Restarts => 1.0,
        }
    }

    /// At least 1, of a distribution without a variance.
    fn heavy(&mut self) -> f64 {
        (1.0 - self.random.number()).powf(-1.0 / TAIL).min(1e6)
    }

    fn turn(&self) -> f64 {
        (self.now / DAY * std::f64::consts::TAU).sin()
    }

    fn tell(&mut self, effort: Effort) {
        self.told += 1;
        let done = done(self.told, effort.nanos, whole(self.now * 1e9));
        self.waiting.push(DoneTrace { effort: Some(effort), ..done });
        if self.waiting.len() >= self.at_once {
            self.look();
        }
    }

    fn look(&mut self) {
        for drop in self.stage.tell(self.version, std::mem::take(&mut self.waiting)) {
            let Some(place) = STREAMS.iter().position(|name| *name == drop.stream) else {
                continue;
            };
            let warns = matches!(drop.severity, "warning" | "critical");
            self.warnings[place] += u64::from(warns && !self.is_warning[place]);
            self.is_warning[place] = warns;
        }
    }
}
