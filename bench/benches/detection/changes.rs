//! Changes: how soon they are found, and how the drops end.

use agentgauge::engine::detect::{DropLimits, DropOptions, Severity};

use crate::agent::{Agent, DAY, options};
use crate::{FIRST_SEED, mean, percentile};

/// A change that has to be found.
struct Change {
    name: &'static str,
    /// Level before; `None`: a new agent.
    before: Option<f64>,
    after: f64,
    /// Traces a second.
    rate: f64,
    /// It comes with the first trace of a version.
    version: bool,
}

const MINUTE: f64 = 1.0 / 60.0;

const CHANGES: [Change; 10] = [
    Change::new("1 -> 40 %, 1/min", Some(0.01), 0.4, MINUTE),
    Change::new("1 -> 40 %, 1 in 5 min", Some(0.01), 0.4, MINUTE / 5.0),
    Change::new("10 -> 40 %, 1/min", Some(0.1), 0.4, MINUTE),
    Change::new("20 -> 60 %, 0.5/s", Some(0.2), 0.6, 0.5),
    Change::new("1 -> 100 %, 0.5/s", Some(0.01), 1.0, 0.5),
    Change::new("10 -> 100 %, 1/min", Some(0.1), 1.0, MINUTE),
    Change { version: true, ..Change::new("1 -> 15 %, new version, 0.5/s", Some(0.01), 0.15, 0.5) },
    Change::new("1 -> 15 %, 0.5/s", Some(0.01), 0.15, 0.5),
    Change::new("none -> 50 %, new agent, 0.5/s", None, 0.5, 0.5),
    Change::new("0 -> 40 %, 1/min", Some(0.0), 0.4, MINUTE),
];

/// Runs of each change.
const RUNS: u64 = 2_000;

/// The cost of a page.
struct Found {
    warned: f64,
    paged: f64,
    /// Traces between the change and its reported beginning.
    off: f64,
}

impl Change {
    const fn new(name: &'static str, before: Option<f64>, after: f64, rate: f64) -> Self {
        Self { name, before, after, rate, version: false }
    }

    /// An agent just before the change; `None` if there is a false page at that moment.
    fn past(&self, limits: DropLimits, days: f64, seed: u64) -> Option<Agent> {
        let mut agent = Agent::new(limits, self.rate, seed);
        let Some(before) = self.before else { return Some(agent) };
        while agent.now < days * DAY {
            agent.trace(before);
        }
        if self.version {
            agent.deploy();
        }
        (agent.severity() <= Severity::Warning).then_some(agent)
    }

    fn found(&self, mut agent: Agent) -> Option<Found> {
        let (begun, mut warned) = (agent.now, None);
        for trace in 1..1_000_000 {
            let severity = agent.trace(self.after);
            if severity >= Some(Severity::Warning) {
                warned.get_or_insert_with(|| f64::from(trace));
            }
            if severity == Some(Severity::Critical) {
                let since = agent.state().drop?.since.0 as f64 / 1e9;
                let off = (since - begun).abs() * self.rate;
                let paged = f64::from(trace);
                return Some(Found { warned: warned.unwrap_or(paged), paged, off });
            }
        }
        None
    }

    fn runs(&self, limits: DropLimits, days: f64, runs: u64) -> Vec<Found> {
        let seeds = FIRST_SEED..FIRST_SEED + runs;
        let agents = seeds.filter_map(|seed| self.past(limits, days, seed));
        agents.filter_map(|agent| self.found(agent)).collect()
    }
}

pub(crate) fn delays() {
    println!("Traces to a page, {RUNS} runs of each. One false page a year; 12 hours of past.");
    println!();
    println!(
        "| Change | Bound | Mean | 50 % | 95 % | Warning | Begin off by | 14 days of past | 1 of 3,000 streams |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for change in &CHANGES {
        let level = change.before.unwrap_or(0.0);
        let yearly = DropOptions { false_pages_per_quarter: 0.25, ..options(level) }.limits(1);
        let shared = options(level).limits(3_000);
        let found = change.runs(yearly, 0.5, RUNS);
        let mut paged: Vec<f64> = found.iter().map(|found| found.paged).collect();
        let few = |limits: DropLimits, days: f64| {
            mean(change.runs(limits, days, RUNS / 10).into_iter().map(|found| found.paged))
        };
        println!(
            "| {} | {} | {:.1} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {:.1} |",
            change.name,
            bound(change),
            mean(paged.iter().copied()),
            percentile(&mut paged, 50),
            percentile(&mut paged, 95),
            mean(found.iter().map(|found| found.warned)),
            mean(found.iter().map(|found| found.off)),
            few(yearly, 14.0),
            few(shared, 14.0),
        );
    }
    println!();
}

/// The least mean delay, of a detector that knows both levels; for a new agent, against the objective.
fn bound(change: &Change) -> String {
    let before = change.before.unwrap_or(0.1);
    if before <= 0.0 {
        return "1".to_owned();
    }
    let part = |after: f64, before: f64| {
        if after > 0.0 { after * (after / before).ln() } else { 0.0 }
    };
    let divergence = part(change.after, before) + part(1.0 - change.after, 1.0 - before);
    format!("{:.0}", (365.25 * DAY * change.rate).ln() / divergence)
}

/// Bad traces before a level is good again.
const BAD: u32 = 200;

/// Bad traces in which no drop should end, and good ones in which each should.
const LONG: u32 = 10_000;

pub(crate) fn ends() {
    println!("Good traces after {BAD} bad ones, {RUNS} runs of each, default options, one stream;");
    println!("and how often a drop ended in {LONG} bad traces, of {} runs.", RUNS / 20);
    println!();
    println!(
        "| Change | Recovering, mean | 50 % | 95 % | Quiet, mean | 50 % | 95 % | Relapses | Left critical while bad |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for change in CHANGES.iter().filter(|change| !change.version) {
        let Some(before) = change.before else { continue };
        let limits = options(before).limits(1);
        let (mut recovering, mut quiet, mut relapses) = (Vec::new(), Vec::new(), 0);
        for seed in FIRST_SEED..FIRST_SEED + RUNS {
            let Some(mut agent) = change.past(limits, 0.5, seed) else { continue };
            (0..BAD).for_each(|_| {
                agent.trace(change.after);
            });
            if agent.severity() == Severity::Critical {
                let end = End::of(&mut agent, before);
                recovering.push(end.recovering);
                quiet.push(end.quiet);
                relapses += end.relapses;
            }
        }
        let left: u64 = (0..RUNS / 20).map(|run| change.left(limits, FIRST_SEED + run)).sum();
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {relapses} | {left} |",
            change.name,
            mean(recovering.iter().copied()),
            percentile(&mut recovering, 50),
            percentile(&mut recovering, 95),
            mean(quiet.iter().copied()),
            percentile(&mut quiet, 50),
            percentile(&mut quiet, 95),
        );
    }
    println!();
    short();
    better();
    lasting();
    coming_and_going();
}

/// Bad traces of a drop after which it is over.
const SHORT: [u32; 5] = [6, 10, 20, 50, 200];

/// How soon short drops end.
fn short() {
    let runs = RUNS / 10;
    println!(
        "Good traces until a drop of so many bad ones recovers, 50 % and 95 % of those of {runs} runs that paged:"
    );
    println!();
    println!("| Change | {} |", SHORT.map(|bad| bad.to_string()).join(" | "));
    println!("|---|---|---|---|---|---|");
    let rate = 200.0 / DAY;
    for change in [
        Change::new("0 -> 100 %, 200 a day", Some(0.0), 1.0, rate),
        Change::new("2 -> 100 %, 200 a day", Some(0.02), 1.0, rate),
        Change::new("2 -> 50 %, 200 a day", Some(0.02), 0.5, rate),
        Change::new("10 -> 100 %, 200 a day", Some(0.1), 1.0, rate),
    ] {
        let cells = SHORT.map(|bad| {
            let of = |seed| change.recovers(bad, seed);
            let mut traces: Vec<f64> = (FIRST_SEED..FIRST_SEED + runs).filter_map(of).collect();
            format!("{:.0}, {:.0}", percentile(&mut traces, 50), percentile(&mut traces, 95))
        });
        println!("| {} | {} |", change.name, cells.join(" | "));
    }
    println!();
}

/// How a drop ended, in good traces.
#[derive(Default)]
struct End {
    recovering: f64,
    quiet: f64,
    relapses: u64,
}

impl End {
    fn of(agent: &mut Agent, level: f64) -> Self {
        let mut end = Self { quiet: f64::from(LONG), ..Self::default() };
        for trace in 1..LONG {
            match agent.trace(level) {
                Some(Severity::Recovering) if end.recovering <= 0.0 => {
                    end.recovering = f64::from(trace);
                }
                Some(Severity::Critical) => end.relapses += 1,
                Some(Severity::Quiet) => {
                    end.quiet = f64::from(trace);
                    break;
                }
                Some(Severity::Recovering | Severity::Warning) | None => {}
            }
        }
        end
    }
}

impl Change {
    /// Good traces until a drop of this many bad ones recovers; `None`: it did not page.
    fn recovers(&self, bad: u32, seed: u64) -> Option<f64> {
        let before = self.before?;
        let mut agent = self.past(options(before).limits(1), 14.0, seed)?;
        (0..bad).for_each(|_| {
            agent.trace(self.after);
        });
        let is_critical = agent.severity() == Severity::Critical;
        is_critical.then(|| End::of(&mut agent, before).recovering)
    }

    /// How often a drop stops being critical while the level is bad.
    fn left(&self, limits: DropLimits, seed: u64) -> u64 {
        let Some(mut agent) = self.past(limits, 0.5, seed) else { return 0 };
        while agent.severity() != Severity::Critical {
            agent.trace(self.after);
        }
        let left = |agent: &mut Agent| agent.trace(self.after) == Some(Severity::Recovering);
        (0..LONG).map(|_| u64::from(left(&mut agent))).sum()
    }
}

/// The end of a drop to a level that improves, but does not become good.
fn better() {
    println!(
        "1 -> 40 %, 1/min, and after {BAD} traces a level between: states of {RUNS} runs after so many more."
    );
    println!();
    println!("| Level, traces | Critical | Recovering | Quiet | Pages after the first, each run |");
    println!("|---|---|---|---|---|");
    for (level, traces) in [(0.15, 500), (0.15, 2_000), (0.08, 500), (0.08, 2_000)] {
        let (mut severities, mut pages) = (Vec::new(), 0);
        for seed in FIRST_SEED..FIRST_SEED + RUNS {
            let Some(mut agent) = CHANGES[0].past(options(0.01).limits(1), 0.5, seed) else {
                continue;
            };
            (0..BAD).for_each(|_| {
                agent.trace(CHANGES[0].after);
            });
            let before = agent.pages;
            (0..traces).for_each(|_| {
                agent.trace(level);
            });
            severities.push(agent.severity());
            pages += agent.pages - before;
        }
        let share = |severity: Severity| {
            let of = severities.iter().filter(|other| **other == severity).count();
            100.0 * of as f64 / severities.len() as f64
        };
        println!(
            "| {:.0} %, {traces} | {:.0} % | {:.0} % | {:.0} % | {:.2} |",
            100.0 * level,
            share(Severity::Critical),
            share(Severity::Recovering),
            share(Severity::Quiet) + share(Severity::Warning),
            pages as f64 / severities.len() as f64,
        );
    }
    println!();
}

/// Drops to slightly more than what is tolerated: levels before and after.
const MODERATE: [(f64, f64); 5] =
    [(0.01, 0.08), (0.01, 0.15), (0.05, 0.15), (0.1, 0.2), (0.1, 0.25)];

/// The duration of such a drop: traces a second, and days.
const LASTING: [(f64, f64); 4] = [(20.0 / DAY, 120.0), (MINUTE, 14.0), (0.5, 4.0), (8.0, 2.0)];

/// Traces before such a drop, or those of 12 hours if that is more.
const KNOWN: f64 = 600.0;

/// How often a continuing drop pages again.
fn lasting() {
    println!("Pages after the first of drops that go on, of {} runs:", RUNS / 100);
    println!();
    println!("| Change | 20 a day, 120 days | 1/min, 14 days | 0.5/s, 4 days | 8/s, 2 days |");
    println!("|---|---|---|---|---|");
    for (before, after) in MODERATE {
        let cells = LASTING.map(|(rate, days)| {
            let change = Change::new("", Some(before), after, rate);
            let limits = options(before).limits(1);
            let again = |seed| change.again(limits, days, seed);
            let pages: u64 = (FIRST_SEED..FIRST_SEED + RUNS / 100).filter_map(again).sum();
            pages.to_string()
        });
        println!("| {:.0} -> {:.0} % | {} |", 100.0 * before, 100.0 * after, cells.join(" | "));
    }
    println!();
}

impl Change {
    /// Pages after the first of a drop that continues for this many days.
    fn again(&self, limits: DropLimits, days: f64, seed: u64) -> Option<u64> {
        let mut agent = self.past(limits, (KNOWN / self.rate / DAY).max(0.5), seed)?;
        while agent.severity() != Severity::Critical {
            agent.trace(self.after);
        }
        let (before, end) = (agent.pages, agent.now + days * DAY);
        while agent.now < end {
            agent.trace(self.after);
        }
        Some(agent.pages - before)
    }
}

/// Hours for which a level is bad and good in turn.
const SPELLS: [(f64, f64); 6] =
    [(1.0, 1.0), (3.0, 3.0), (0.5, 3.0), (1.0, 8.0), (12.0, 12.0), (1.0, 23.0)];

/// Traces a day, and the bad level; the good one is 2 %.
const COMING: [(f64, f64); 5] =
    [(500.0, 0.4), (2_000.0, 0.15), (2_000.0, 0.4), (20_000.0, 0.15), (20_000.0, 0.4)];

/// How often a level that comes and goes pages.
fn coming_and_going() {
    println!("2 % and a bad level in turn, for ten days: pages of each of {} runs", RUNS / 100);
    println!();
    println!(
        "| Bad, good | 500 a day, 40 % | 2,000, 15 % | 2,000, 40 % | 20,000, 15 % | 20,000, 40 % |"
    );
    println!("|---|---|---|---|---|---|");
    for (bad, good) in SPELLS {
        let cells = COMING.map(|(daily, level)| {
            let pages = |seed| {
                let change = Change::new("", Some(0.02), level, daily / DAY);
                let mut agent = change.past(options(0.02).limits(1), 14.0, seed)?;
                let (before, begun) = (agent.pages, agent.now);
                while agent.now < begun + 10.0 * DAY {
                    let hours = (agent.now - begun) / 3_600.0;
                    agent.trace(if hours % (bad + good) < bad { level } else { 0.02 });
                }
                Some((agent.pages - before) as f64)
            };
            let seeds = FIRST_SEED..FIRST_SEED + RUNS / 100;
            format!("{:.1}", mean(seeds.filter_map(pages)))
        });
        println!("| {bad} h, {good} h | {} |", cells.join(" | "));
    }
    println!();
}
