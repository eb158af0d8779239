//! False alarms: what a detector reports for streams in which nothing is wrong.

use agentgauge::engine::detect::Observation;

use crate::FIRST_SEED;
use crate::agent::{Agent, DAY, options};

/// The behaviour of a stream while nothing is wrong.
#[derive(Clone, Copy)]
enum Life {
    Steady,
    RateOfDay,
    LevelOfDay,
    ThreeInARow,
    Versions,
    Restarts,
    FailuresFollow,
    Spells,
    Creep,
    Predicted,
}

/// Each with its name.
const LIVES: [(Life, &str); 10] = [
    (Life::Steady, "steady"),
    (Life::RateOfDay, "rate 0.1 to 1.9 of the mean, daily"),
    (Life::LevelOfDay, "level up and down by 0.8 of the tolerance, daily"),
    (Life::ThreeInARow, "three failures in a row, daily"),
    (Life::Versions, "a new version of equal quality, daily"),
    (Life::Restarts, "written down and read back, daily"),
    (Life::FailuresFollow, "half of all failures are followed by one, up to seven in a row"),
    (Life::Spells, "30 traces at three times the level or 10 % over it, daily"),
    (Life::Creep, "level up by 0.8 of the tolerance to the end"),
    (Life::Predicted, "predicted failures that wander around the level"),
];

const LEVELS: [f64; 5] = [0.0, 0.01, 0.05, 0.1, 0.2];

const SEEDS: u64 = 20;

pub(crate) fn slow() {
    table(20.0 / DAY, 365.0, "20 traces a day, 365 days");
    table(1.0 / 60.0, 30.0, "1/min, 30 days");
    table(0.5, 30.0, "0.5/s, 30 days");
}

pub(crate) fn fast() {
    table(8.0, 30.0, "8/s, 30 days");
}

fn table(rate: f64, days: f64, name: &str) {
    let dial = days * SEEDS as f64 / (365.25 / 4.0);
    println!("{name}: pages / warnings of {SEEDS} seeds each, one stream with the whole dial,");
    println!("which allows {dial:.1} pages and {:.0} warnings in each cell.", dial * 10.0);
    println!();
    println!("| | 0 % | 1 % | 5 % | 10 % | 20 % |");
    println!("|---|---|---|---|---|---|");
    for (life, name) in LIVES {
        let cells = LEVELS.map(|level| {
            let (mut pages, mut warnings) = (0, 0);
            for seed in FIRST_SEED..FIRST_SEED + SEEDS {
                let mut stream = Stream::new(life, level, rate, seed);
                stream.run(days);
                pages += stream.agent.pages;
                warnings += stream.agent.warnings;
            }
            format!("{pages} / {warnings}")
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
    println!();
}

/// Streams that share the dial.
const SHARING: usize = 3_000;

pub(crate) fn shared() {
    let (mut pages, mut warnings) = (0, 0);
    for number in 0..SHARING {
        let (life, level) = (LIVES[number % LIVES.len()].0, LEVELS[number / 10 % LEVELS.len()]);
        let mut stream = Stream::new(life, level, 1.0 / 60.0, FIRST_SEED + number as u64);
        stream.agent.limits = options(level).limits(SHARING);
        stream.run(30.0);
        pages += stream.agent.pages;
        warnings += stream.agent.warnings;
    }
    println!(
        "{SHARING} streams of all of these kinds and levels, 1/min, 30 days, which share the dial:"
    );
    println!("{pages} pages and {warnings} warnings; it allows 0.33 and 3.3.");
    println!();
}

struct Stream {
    life: Life,
    level: f64,
    rate: f64,
    agent: Agent,
    days: f64,
    /// Days begun, each at three tenths of it.
    day: f64,
    /// Traces that are left of a spell.
    spell: u32,
    /// Failures in a row.
    run: u32,
    /// The error of a prediction, which changes slowly.
    off: f64,
}

impl Stream {
    fn new(life: Life, level: f64, rate: f64, seed: u64) -> Self {
        let agent = Agent::new(options(level).limits(1), rate, seed);
        Self { life, level, rate, agent, days: 0.0, day: 0.0, spell: 0, run: 0, off: 0.0 }
    }

    fn run(&mut self, days: f64) {
        self.days = days;
        while self.agent.now < days * DAY {
            if self.agent.now >= (self.day + 0.3) * DAY {
                self.day += 1.0;
                self.daily();
            }
            let value = self.value();
            self.agent.value(value);
        }
    }

    fn daily(&mut self) {
        match self.life {
            Life::ThreeInARow => {
                (0..3).for_each(|_| {
                    self.agent.value(Observation::verdict(true));
                });
            }
            Life::Versions => self.agent.deploy(),
            Life::Restarts => {
                if let Err(error) = self.agent.restart() {
                    println!("not read back: {error}");
                }
            }
            Life::Spells => self.spell = 30,
            Life::Steady
            | Life::RateOfDay
            | Life::LevelOfDay
            | Life::FailuresFollow
            | Life::Creep
            | Life::Predicted => {}
        }
    }

    fn value(&mut self) -> Observation {
        let level = self.level;
        let tolerance = (0.3 * level).max(0.03);
        let turn = || (self.agent.now / DAY * std::f64::consts::TAU).sin();
        let now = match self.life {
            Life::Steady | Life::ThreeInARow | Life::Versions | Life::Restarts => level,
            Life::RateOfDay => {
                self.agent.rate = self.rate * (1.0 + 0.9 * turn());
                level
            }
            Life::LevelOfDay => level + 0.8 * tolerance * turn(),
            Life::Creep => level + 0.8 * tolerance * self.agent.now / (self.days * DAY),
            Life::Spells => {
                let spell = self.spell > 0;
                self.spell = self.spell.saturating_sub(1);
                if spell { (3.0 * level).min(level + 0.1) } else { level }
            }
            Life::FailuresFollow => match self.run {
                0 => 0.5 * level / (1.0 - level),
                1..7 => 0.5,
                _ => 0.0,
            },
            Life::Predicted => return self.prediction(),
        };
        let failed = self.agent.random.below(now);
        self.run = if failed { self.run + 1 } else { 0 };
        Observation::verdict(failed)
    }

    fn prediction(&mut self) -> Observation {
        let random = &mut self.agent.random;
        self.off += 0.1 * (random.number() - 0.5 - 0.1 * self.off);
        let value = self.level * (1.0 + 0.5 * self.off + 0.1 * (random.number() - 0.5));
        Observation::level(value.clamp(0.0, 1.0)).unwrap_or_else(|| Observation::verdict(true))
    }
}
