//! Predictions and outcomes together: how soon a rise is found compared with outcomes alone, and how often falsely.
//!
//! An agent has a trace a minute, and the outcome of one in ten is reported, a minute later. The effort of a trace is lognormal,
//! and greater by some deviations if it failed. The stage that watches agents receives the traces, and learns its model from them.

use std::error::Error;

use agentgauge::engine::detect::DropOptions;
use agentgauge::engine::facts::{DoneTrace, Effort};
use agentgauge::engine::view::DropView;

use crate::agent::{DAY, Random, options};
use crate::stage::{Stage, done, whole};
use crate::{FIRST_SEED, mean, seeds};

const STREAMS: [&str; 2] = ["outcome", "predicted_failure"];

/// The share of traces whose outcome is reported.
const TOLD: f64 = 0.1;

/// Traces a second.
const MINUTE: f64 = 1.0 / 60.0;

/// The number of agents for each delay, unless an argument is another number, and for each count of false pages a fifteenth of
/// that.
const AGENTS: u64 = 300;

/// Deviations of the logarithm between the effort of failed traces and of others, at which its rank has an AUROC of 0.60, 0.70 and
/// 0.75.
const TELLING: [(f64, &str); 3] = [(0.358, ".60"), (0.742, ".70"), (0.954, ".75")];

pub(crate) fn tables() {
    let agents = seeds(AGENTS);
    delays(agents);
    alarms(agents.div_ceil(15), 30.0);
}

/// One agent.
struct PredictedAgent {
    stage: Stage,
    options: DropOptions,
    outcomes: Random,
    efforts: Random,
    telling: f64,
    /// Traces a second.
    rate: f64,
    /// Seconds.
    now: f64,
    version: u64,
    traces: u64,
    later: Option<DoneTrace>,
    /// Traces that were not reported yet.
    waiting: Vec<DoneTrace>,
}

impl PredictedAgent {
    fn new(telling: f64, options: DropOptions, seed: u64) -> Self {
        Self {
            stage: Stage::new(options.clone()),
            options,
            outcomes: Random::new(seed),
            efforts: Random::new(!seed),
            telling,
            rate: MINUTE,
            now: 0.0,
            version: 0,
            traces: 0,
            later: None,
            waiting: Vec::new(),
        }
    }

    /// The state of its streams.
    fn look(&mut self) -> Vec<DropView> {
        self.stage.tell(self.version, std::mem::take(&mut self.waiting))
    }

    /// One more trace.
    fn trace(&mut self, failed: bool, heavier: f64) {
        self.traces += 1;
        self.now += self.outcomes.gap(self.rate);
        let more = heavier + if failed { self.telling } else { 0.0 };
        let took = whole((self.efforts.normal() + more).exp() * 1e4);
        let done = done(self.traces, took, whole(self.now * 1e9));
        let effort = Effort {
            model_calls: took,
            tool_calls: took,
            nanos: took,
            longest_call_nanos: took,
            ..Effort::default()
        };
        let done = DoneTrace { effort: Some(effort), ..done };
        let told = self.later.take();
        let later = done.at_unix_nano + 60_000_000_000;
        self.later = self.outcomes.below(TOLD).then(|| DoneTrace {
            outcome_failed: Some(failed),
            looped: None,
            at_unix_nano: later,
            touched_unix_nano: later,
            ..done.clone()
        });
        self.waiting.extend(told.into_iter().chain([done]));
    }

    /// One more trace that fails with this probability.
    fn at_level(&mut self, level: f64, heavier: f64) {
        let failed = self.outcomes.below(level);
        self.trace(failed, heavier);
    }

    /// The same agent as another process restores it; all traces must have been reported.
    fn restarted(&self) -> Result<Self, Box<dyn Error>> {
        let stage = self.stage.restarted(self.options.clone())?;
        let (options, later) = (self.options.clone(), self.later.clone());
        Ok(Self { stage, options, later, waiting: Vec::new(), ..*self })
    }

    /// Its next version; all traces of the previous one must have been reported.
    fn deploy(&mut self) {
        self.version += 1;
        self.later = None;
    }
}

impl Random {
    /// Nearly normal, of mean 0 and deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.number()).sum::<f64>() - 6.0
    }
}

/// Traces before a change.
const PAST: u32 = 4_000;

/// Traces without a change in which alarms are counted.
const HEALTHY: u32 = 6_000;

/// The most traces after a change.
const MOST: u32 = 3_000;

/// Traces between false alarms.
const BETWEEN: f64 = 2_000.0;

/// Days to a false page while delays are measured: thresholds are applied afterwards.
const NEVER: f64 = 1e6;

/// The most traces, and the number of traces between two checks.
type Steps = (u32, usize);

/// Level before and after, and how many deviations more effort traces take.
type Change = (f64, f64, f64);

/// Each with how well the effort of traces shows whether they failed.
const CHANGES: [(&[Change], &[usize]); 2] = [
    (&[(0.26, 0.40, 0.0), (0.26, 0.55, 0.0), (0.26, 0.26, 0.5)], &[0, 1, 2]),
    (&[(0.10, 0.30, 0.0), (0.10, 0.10, 0.5)], &[1]),
];

fn delays(agents: u64) {
    println!(
        "Mean traces from a change to its page, of {agents} agents of 1/min that were as usual for {PAST}"
    );
    println!(
        "traces; one in ten is told its outcome. \"As promised\": by one false page in {BETWEEN} traces or"
    );
    println!(
        "fewer; \"as they come\": where each stream has one false page in {BETWEEN} traces, as measured."
    );
    println!();
    println!(
        "| Change | AUROC | As promised: outcomes | together | | As they come: outcomes | together | |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (changes, telling) in CHANGES {
        for telling in telling {
            let (telling, auroc) = TELLING[*telling];
            rows(changes, telling, auroc, agents);
        }
    }
    println!();
}

fn rows(changes: &[Change], telling: f64, auroc: &str, agents: u64) {
    let mut healthy = Vec::new();
    let mut changed: Vec<Vec<[Course; 2]>> = changes.iter().map(|_| Vec::new()).collect();
    let level = changes[0].0;
    let never = DropOptions { false_pages_per_quarter: QUARTER / NEVER, ..options(level) };
    for seed in FIRST_SEED..FIRST_SEED + agents {
        let mut agent = PredictedAgent::new(telling, never.clone(), seed);
        (0..PAST).for_each(|_| agent.at_level(level, 0.0));
        let begin = days(&agent.look());
        let go_on = |change: Change, steps: Steps| match agent.restarted() {
            Ok(agent) => Some(follow(agent, begin, change, steps)),
            Err(error) => {
                println!("not read back: {error}");
                None
            }
        };
        healthy.extend(go_on((level, level, 0.0), (HEALTHY, 5)));
        for (change, found) in changes.iter().zip(&mut changed) {
            found.extend(go_on(*change, (MOST, 1)));
        }
    }
    let promised = [BETWEEN * MINUTE_OF_DAY; 2];
    let come = [0, 1].map(|stream| calibrated(&healthy.iter().map(|courses| &courses[stream])));
    for ((before, after, heavier), found) in changes.iter().zip(&changed) {
        let cells = [promised, come].map(|limits| {
            let [alone, together] = means(found, limits);
            format!("{alone:.0} | {together:.0} | {:.2}", together / alone)
        });
        let heavier = if *heavier > 0.0 { ", heavier" } else { "" };
        println!(
            "| {:.0} -> {:.0} %{heavier} | {auroc} | {} |",
            100.0 * before,
            100.0 * after,
            cells.join(" | ")
        );
    }
}

/// The records of a stream's evidence: after how many traces, and days.
type Course = Vec<(u32, f64)>;

/// The evidence of streams in this order, in days; 0 for a stream that does not exist yet.
fn days(views: &[DropView]) -> [f64; 2] {
    STREAMS.map(|stream| {
        let view = views.iter().find(|view| view.stream == stream);
        // Two streams page.
        view.map_or(0.0, |view| view.evidence * 2.0 * NEVER)
    })
}

/// Continues until there is enough evidence of everything.
fn follow(
    mut agent: PredictedAgent,
    begin: [f64; 2],
    (_, level, heavier): Change,
    (most, step): Steps,
) -> [Course; 2] {
    let mut courses = begin.map(|days| vec![(0, days)]);
    for trace in (0..=most).step_by(step).skip(1) {
        (0..step).for_each(|_| agent.at_level(level, heavier));
        let found = days(&agent.look());
        let mut enough = true;
        for (course, days) in courses.iter_mut().zip(found) {
            let highest = course.last().map_or(0.0, |(_, days)| *days);
            if days > highest {
                course.push((trace, days));
            }
            enough &= highest.max(days) >= BETWEEN * MINUTE_OF_DAY;
        }
        if enough {
            break;
        }
    }
    courses
}

/// After how many traces there was evidence of this many days.
fn crosses(course: &Course, days: f64) -> Option<u32> {
    course.iter().find(|(_, held)| *held >= days).map(|(trace, _)| *trace)
}

/// Mean traces to this evidence of each stream, for agents that did not have as much before; `MOST` if they never do.
fn means(found: &[[Course; 2]], limits: [f64; 2]) -> [f64; 2] {
    let crossed = found.iter().map(|courses| {
        [0, 1].map(|stream| crosses(&courses[stream], limits[stream]).unwrap_or(MOST))
    });
    let crossed: Vec<[u32; 2]> = crossed.filter(|crossed| !crossed.contains(&0)).collect();
    [0, 1].map(|stream| mean(crossed.iter().map(|crossed| f64::from(crossed[stream]))))
}

/// The least evidence, in days, that agents without a change reach at most once in `BETWEEN` traces.
fn calibrated<'c>(healthy: &(impl Iterator<Item = &'c Course> + Clone)) -> f64 {
    let between = |days: f64| {
        let crossed = healthy.clone().map(|course| crosses(course, days));
        let (mut traces, mut alarms) = (0.0, 0.0);
        for crossed in crossed.filter(|crossed| *crossed != Some(0)) {
            traces += f64::from(crossed.unwrap_or(HEALTHY));
            alarms += if crossed.is_some() { 1.0 } else { 0.0 };
        }
        traces / alarms
    };
    let (mut low, mut high) = (1e-6_f64, BETWEEN * MINUTE_OF_DAY);
    for _ in 0..40 {
        let middle = (low * high).sqrt();
        if between(middle) >= BETWEEN { high = middle } else { low = middle }
    }
    high
}

/// Days of a minute.
const MINUTE_OF_DAY: f64 = 1.0 / 1_440.0;

/// Days of a quarter of a year.
const QUARTER: f64 = 365.25 / 4.0;

/// Traces that are reported together while false pages are counted: fewer than any page or warning lasts.
const AT_ONCE: usize = 8;

/// The behaviour of an agent while nothing is wrong.
#[derive(Clone, Copy)]
enum Life {
    Steady,
    RateOfDay,
    LevelOfDay,
    ThreeInARow,
    Versions,
    Restarts,
    FailuresFollow,
    Heavier,
    EffortOfDay,
    EffortWanders,
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
    (Life::Heavier, "traces take half a deviation more from a third of the time on"),
    (Life::EffortOfDay, "what traces take goes up and down by half a deviation, daily"),
    (Life::EffortWanders, "what traces take wanders by half a deviation, over some 200 traces"),
];

const LEVELS: [f64; 2] = [0.05, 0.26];

fn alarms(seeds: u64, days: f64) {
    let dial = days * seeds as f64 / QUARTER;
    println!(
        "1/min, {days} days, AUROC .70: pages / warnings of {seeds} seeds each, of an agent whose two streams share"
    );
    println!(
        "the dial, which allows {:.1} pages and {:.0} warnings in each cell.",
        dial / 2.0,
        dial * 5.0
    );
    println!();
    println!("| | 5 %: `outcome` | `predicted_failure` | 26 %: `outcome` | `predicted_failure` |");
    println!("|---|---|---|---|---|");
    for (life, name) in LIVES {
        let cells = LEVELS.map(|level| {
            let mut found = [[0_u64; 2]; 2];
            for seed in FIRST_SEED..FIRST_SEED + seeds {
                let mut lived = Lived::new(life, level, seed);
                lived.run(days);
                for (all, own) in found.iter_mut().flatten().zip(lived.found.iter().flatten()) {
                    *all += own;
                }
            }
            found.map(|[pages, warnings]| format!("{pages} / {warnings}")).join(" | ")
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
    println!();
}

/// One agent, and what its streams reported.
struct Lived {
    life: Life,
    level: f64,
    agent: PredictedAgent,
    /// Days begun, each at three tenths of it.
    day: f64,
    /// Failures in a row.
    run: u32,
    /// Deviations by which the effort of traces is greater.
    off: f64,
    severities: [&'static str; 2],
    /// Pages and warnings of each stream.
    found: [[u64; 2]; 2],
}

impl Lived {
    fn new(life: Life, level: f64, seed: u64) -> Self {
        Self {
            life,
            level,
            agent: PredictedAgent::new(TELLING[1].0, options(level), seed),
            day: 0.0,
            run: 0,
            off: 0.0,
            severities: ["quiet"; 2],
            found: [[0; 2]; 2],
        }
    }

    fn run(&mut self, days: f64) {
        while self.agent.now < days * DAY {
            if self.agent.now >= (self.day + 0.3) * DAY {
                self.day += 1.0;
                self.look();
                self.daily();
            }
            if matches!(self.life, Life::Heavier) && self.agent.now > days * DAY / 3.0 {
                self.off = 0.5;
            }
            let level = self.next_level();
            let failed = self.agent.outcomes.below(level);
            self.trace(failed);
        }
    }

    fn daily(&mut self) {
        match self.life {
            Life::ThreeInARow => (0..3).for_each(|_| self.trace(true)),
            Life::Versions => {
                self.agent.deploy();
                self.severities = ["quiet"; 2];
            }
            Life::Restarts => match self.agent.restarted() {
                Ok(agent) => self.agent = agent,
                Err(error) => println!("not read back: {error}"),
            },
            Life::Steady
            | Life::RateOfDay
            | Life::LevelOfDay
            | Life::FailuresFollow
            | Life::Heavier
            | Life::EffortOfDay
            | Life::EffortWanders => {}
        }
    }

    fn next_level(&mut self) -> f64 {
        let level = self.level;
        let turn = (self.agent.now / DAY * std::f64::consts::TAU).sin();
        match self.life {
            Life::RateOfDay => self.agent.rate = MINUTE * (1.0 + 0.9 * turn),
            Life::EffortOfDay => self.off = 0.5 * turn,
            Life::EffortWanders => {
                self.off += 0.005 * (34.6 * (self.agent.efforts.number() - 0.5) - self.off);
            }
            Life::LevelOfDay => return level + 0.8 * (0.3 * level).max(0.03) * turn,
            Life::FailuresFollow => {
                return match self.run {
                    0 => 0.5 * level / (1.0 - level),
                    1..7 => 0.5,
                    _ => 0.0,
                };
            }
            Life::Steady | Life::ThreeInARow | Life::Versions | Life::Restarts | Life::Heavier => {}
        }
        level
    }

    fn trace(&mut self, failed: bool) {
        self.run = if failed { self.run + 1 } else { 0 };
        self.agent.trace(failed, self.off);
        if self.agent.waiting.len() >= AT_ONCE {
            self.look();
        }
    }

    fn look(&mut self) {
        for view in self.agent.look() {
            let Some(place) = STREAMS.iter().position(|name| *name == view.stream) else {
                continue;
            };
            let (before, found) = (&mut self.severities[place], &mut self.found[place]);
            if *before != view.severity {
                found[0] += u64::from(view.severity == "critical");
                found[1] += u64::from(view.severity == "warning");
            }
            *before = view.severity;
        }
    }
}
