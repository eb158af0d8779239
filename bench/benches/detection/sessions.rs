//! Failures of one session and failures of an agent: how often the former page falsely, and how soon the latter page.
//!
//! The stage that watches agents receives the traces of agents with 500 traces a day, one by one, as shards send them.

use agentgauge::engine::facts::{DoneTrace, ScopedId};

use crate::agent::{DAY, Random, options};
use crate::stage::{Stage, done, whole};
use crate::{FIRST_SEED, mean, seeds};

/// Traces a second.
const RATE: f64 = 500.0 / DAY;

/// Traces of a session, on average.
const LENGTH: f64 = 8.0;

/// The seeds, unless an argument is another number.
const SEEDS: u64 = 20;

/// Numbers of concurrent sessions, each with its name; none: each trace is a session.
const AT_A_TIME: [(usize, &str); 4] = [
    (0, "a trace each"),
    (10, "ten at a time"),
    (1, "one after another"),
    (usize::MAX, "one alone"),
];

/// Changes of the level.
const CHANGES: [(f64, f64); 4] = [(0.01, 0.4), (0.01, 1.0), (0.0, 0.4), (0.1, 0.4)];

/// Sessions that fail alone: how often each day, how often in a row, and their name.
const FAILING: [(f64, u32, &str); 3] = [
    (1.0, 10, "a session that fails 10 times in a row, daily"),
    (1.0, 30, "a session that fails 30 times in a row, daily"),
    (0.1, 10, "a session that fails 10 times in a row, every ten days"),
];

pub(crate) fn tables() {
    false_pages();
    delays();
}

fn false_pages() {
    let (seeds, days) = (seeds(SEEDS), 90.0);
    let allowed = days * seeds as f64 / (365.25 / 4.0);
    println!(
        "Pages of {seeds} agents in {days} days, of which ten sessions go on at a time; the dial allows {allowed:.1}:"
    );
    println!();
    println!("| | 1 % | 5 % | 10 % |");
    println!("|---|---|---|---|");
    for (daily, in_a_row, name) in FAILING {
        let pages = [0.01, 0.05, 0.1].map(|level| {
            let of = |seed| {
                let mut agent = Agent::new(level, 10, seed);
                agent.run(level, days, Some((daily, in_a_row)));
                agent.pages
            };
            (FIRST_SEED..FIRST_SEED + seeds).map(of).sum::<u64>().to_string()
        });
        println!("| {name} | {} |", pages.join(" | "));
    }
    println!();
}

fn delays() {
    let runs = seeds(SEEDS) * 10;
    println!(
        "Mean traces to the page, of {runs} agents each, after 14 days of past, by the sessions that go on:"
    );
    println!();
    println!("| Change | {} |", AT_A_TIME.map(|(_, name)| name).join(" | "));
    println!("|---|---|---|---|---|");
    for (from, to) in CHANGES {
        let found = AT_A_TIME.map(|(at_a_time, _)| {
            let of = |seed| {
                let mut agent = Agent::new(from, at_a_time, seed);
                agent.run(from, 14.0, None);
                agent.until_page(to)
            };
            format!("{:.1}", mean((FIRST_SEED..FIRST_SEED + runs).filter_map(of)))
        });
        println!("| {} -> {} % | {} |", from * 100.0, to * 100.0, found.join(" | "));
    }
    println!();
}

/// One agent, and how often its verdicts paged.
struct Agent {
    stage: Stage,
    random: Random,
    /// Seconds.
    now: f64,
    told: u64,
    at_a_time: usize,
    /// Running sessions: their numbers, and how many traces each has left.
    going_on: Vec<(u64, u32)>,
    sessions: u64,
    is_critical: bool,
    pages: u64,
}

impl Agent {
    fn new(level: f64, at_a_time: usize, seed: u64) -> Self {
        Self {
            stage: Stage::new(options(level)),
            random: Random::new(seed),
            now: 0.0,
            told: 0,
            at_a_time,
            going_on: Vec::new(),
            sessions: 0,
            is_critical: false,
            pages: 0,
        }
    }

    /// Runs for this many days; `failing` sessions come this often a day, and fail this often in a row, three traces a minute.
    fn run(&mut self, level: f64, days: f64, failing: Option<(f64, u32)>) {
        while self.now < days * DAY {
            self.now += self.random.gap(RATE);
            let session = self.session();
            let failed = self.random.below(level);
            self.trace(session, failed);
            let Some((daily, in_a_row)) = failing else { continue };
            if self.random.below(daily * RATE.recip() / DAY) {
                self.sessions += 1;
                for _ in 0..in_a_row {
                    self.now += 20.0;
                    self.trace(self.sessions, true);
                }
            }
        }
    }

    /// Traces at this level until the page; `None` if it was in a drop before.
    fn until_page(&mut self, level: f64) -> Option<f64> {
        if self.is_critical {
            return None;
        }
        let mut traces = 0.0;
        while !self.is_critical && traces < 10_000.0 {
            traces += 1.0;
            self.now += self.random.gap(RATE);
            let session = self.session();
            let failed = self.random.below(level);
            self.trace(session, failed);
        }
        Some(traces)
    }

    /// The session of the next trace.
    fn session(&mut self) -> u64 {
        if self.at_a_time == usize::MAX {
            return 0;
        }
        let at_a_time = self.at_a_time.max(1);
        while self.going_on.len() < at_a_time {
            self.sessions += 1;
            let mut left = 1;
            while self.at_a_time > 0 && !self.random.below(1.0 / LENGTH) {
                left += 1;
            }
            self.going_on.push((self.sessions, left));
        }
        let place = usize::try_from(whole(self.random.number() * at_a_time as f64)).unwrap_or(0);
        let (session, left) = &mut self.going_on[place];
        let session = *session;
        *left -= 1;
        if *left == 0 {
            self.going_on.swap_remove(place);
        }
        session
    }

    fn trace(&mut self, session: u64, failed: bool) {
        self.told += 1;
        let trace = DoneTrace {
            failed: Some(failed),
            session: ScopedId { id: session.to_string().into(), ..ScopedId::default() },
            ..done(self.told, 1, whole(self.now * 1e9))
        };
        for drop in self.stage.tell(0, vec![trace]) {
            if drop.stream == "verdict" {
                let is_critical = drop.severity == "critical";
                self.pages += u64::from(is_critical && !self.is_critical);
                self.is_critical = is_critical;
            }
        }
    }
}
