//! The series with which promtool tests the rules of drops: what a daemon exports for simulated agents, scrape by scrape.
//!
//! Agents work through the daemon's own stages, which are given the time, and the exporter writes a page at each scrape.
//! `cases.yml` has what is expected of the rules, `deploy/prometheus/drops.test.yml` has both.

mod agents;
mod pieces;
mod series;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::Path;

use agentgauge::config::Config;

use self::agents::{Level, Work, Worker};
use self::series::Scrapes;

/// A stretch of time that is scraped, after a past that is not.
struct Scenario {
    name: &'static str,
    past_seconds: u64,
    scraped_seconds: u64,
    /// Each of these scrapes shows everything: an agent while it moves from one instance to another.
    instances: &'static [&'static str],
    /// When nothing is scraped, in seconds after the first scrape: the daemon restarts.
    away: Range<u64>,
    workers: Vec<Worker>,
}

/// Seconds between two scrapes.
const INTERVAL: usize = 30;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// When something changes: after the first half hour of scrapes.
const CHANGE: u64 = 6 * HOUR;

fn scenarios() -> Vec<Scenario> {
    let changing = |name, hours, before, after| Scenario {
        workers: vec![worker("support", "2", vec![(0, before), (CHANGE, after)])],
        ..scenario(name, hours * HOUR)
    };
    let mut one_to_forty = changing("one_to_forty", 4, 0.01, 0.4);
    one_to_forty.workers.push(worker("billing", "7", vec![(0, 0.05)]));
    let slow = |agent, levels| Worker { every_seconds: 300, ..worker(agent, "2", levels) };
    vec![
        one_to_forty,
        changing("ten_to_forty", 3, 0.1, 0.4),
        changing("outage", 2, 0.1, 1.0),
        Scenario {
            workers: vec![worker(
                "support",
                "2",
                vec![(0, 0.01), (CHANGE, 0.4), (CHANGE + HOUR, 0.01)],
            )],
            ..scenario("recovery", 6 * HOUR)
        },
        Scenario {
            instances: &["gauge-0:9464", "gauge-1:9464"],
            ..changing("two_instances", 2, 0.01, 0.4)
        },
        Scenario { away: HOUR..HOUR + 4 * MINUTE, ..changing("restart", 2, 0.01, 0.4) },
        Scenario {
            past_seconds: 28 * DAY,
            workers: vec![Worker { every_seconds: 1200, ..slow("billing", vec![(0, 0.02)]) }],
            ..scenario("month", 6 * HOUR)
        },
        Scenario {
            workers: vec![
                worker("support", "1", vec![(0, 0.01)]),
                Worker { from: CHANGE, ..worker("support", "2", vec![(0, 0.4)]) },
            ],
            ..scenario("new_version", 2 * HOUR)
        },
        Scenario {
            workers: vec![
                worker("support", "1", vec![(0, 0.01), (CHANGE, 0.4)]),
                Worker { from: CHANGE, ..worker("support", "2", vec![(0, 0.4)]) },
            ],
            ..scenario("both_versions", 2 * HOUR)
        },
        Scenario {
            past_seconds: 2 * DAY - HOUR / 2,
            workers: vec![
                Worker { until: Some(2 * DAY), ..slow("support", vec![(0, 0.01)]) },
                slow("billing", vec![(0, 0.01)]),
            ],
            ..scenario("stopped", 3 * HOUR)
        },
    ]
}

fn scenario(name: &'static str, scraped_seconds: u64) -> Scenario {
    Scenario {
        name,
        past_seconds: CHANGE - HOUR / 2,
        scraped_seconds,
        instances: &["gauge:9464"],
        away: 0..0,
        workers: Vec::new(),
    }
}

fn worker(agent: &'static str, version: &'static str, levels: Vec<Level>) -> Worker {
    Worker { agent, version, levels, every_seconds: 60, from: 0, until: None }
}

fn run(scenario: &Scenario, rules: &str) -> String {
    let mut work = Work::new(&scenario.workers);
    let end = scenario.past_seconds + scenario.scraped_seconds;
    let mut scrapes = Scrapes::new(scenario.past_seconds);
    for at in (scenario.past_seconds..=end).step_by(INTERVAL) {
        let page = work.page(at);
        let is_away = scenario.away.contains(&(at - scenario.past_seconds));
        scrapes.add(if is_away { "" } else { &page }, rules);
    }
    scrapes.written(scenario.instances)
}

/// The cases with their series.
fn written(rules: &str) -> String {
    let cases = include_str!("cases.yml");
    let series: BTreeMap<&str, String> = std::thread::scope(|scope| {
        let runs = scenarios().into_iter();
        let runs: Vec<_> = runs.map(|of| scope.spawn(move || (of.name, run(&of, rules)))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut text = String::new();
    for line in cases.lines() {
        match line.strip_prefix("  input_series: ") {
            None => {
                let _ = writeln!(text, "{line}");
            }
            Some(name) => {
                let series = series.get(name);
                let series = series.unwrap_or_else(|| panic!("cases.yml: no scenario {name}"));
                let _ = write!(text, "  input_series:\n{series}");
            }
        }
    }
    text
}

#[test]
fn the_simulated_series_are_not_stale() {
    let prometheus = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    let rules = fs::read_to_string(prometheus.join("agentgauge.rules.yml")).unwrap();
    let text = written(&rules);
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drops.test.yml");
    fs::write(&fresh, &text).unwrap();
    let committed = fs::read_to_string(prometheus.join("drops.test.yml")).unwrap_or_default();
    assert!(
        committed == text,
        "`just simulate` writes deploy/prometheus/drops.test.yml anew, or copy {} there",
        fresh.display()
    );
}

/// Days of simulated traffic; `AGENTGAUGE_DAYS` for more.
const DAYS: u64 = 3;

#[test]
fn days_of_traffic_leave_no_more_behind_than_two() {
    let asked = std::env::vars_os().find(|(key, _)| key == "AGENTGAUGE_DAYS");
    let days = asked.map_or(DAYS, |(_, days)| days.to_str().unwrap().parse().unwrap());
    let mut config = Config::default();
    // Bounds that bite within a day: until they do it grows.
    config.assemble.max_sealed_traces = 200;
    config.session.max_departed_traces = 200;
    config.session.max_outstanding_outcomes = 200;
    let worker =
        |agent, share| Worker { every_seconds: 300, ..worker(agent, "1", vec![(0, share)]) };
    let mut work = Work::with(&config, &[worker("support", 0.05), worker("billing", 0.2)]);
    let first = work.held_bytes(2 * DAY);
    let held: Vec<usize> = (3..=days).map(|day| work.held_bytes(day * DAY)).collect();
    println!("after two days {first} bytes, then {held:?}");
    assert!(
        !held.is_empty() && held.iter().all(|held| *held < first + first / 10),
        "{first}: {held:?}"
    );
}
