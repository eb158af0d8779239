//! Scrapes as the input series of promtool.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The samples of each series, scrape by scrape.
pub(super) struct Scrapes {
    /// Unix time of the first scrape, which is time 0 of promtool.
    begin: f64,
    count: usize,
    series: BTreeMap<String, Vec<Option<f64>>>,
}

impl Scrapes {
    /// The series of a daemon whose first scrape is after this many seconds of the simulation.
    pub(super) fn new(first_seconds: u64) -> Self {
        let begin = super::agents::BEGIN + first_seconds;
        Self { begin: begin as f64, count: 0, series: BTreeMap::new() }
    }

    /// Takes what the rules ask for of a page.
    pub(super) fn add(&mut self, page: &str, rules: &str) {
        self.count += 1;
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (name, _) = line.split_once('{').unwrap();
            // Only the verdicts on whole traces.
            let other = name == VERDICTS && !line.contains("signal=\"trace_risk\"");
            if other || !rules.contains(name) {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let mut value: f64 = value.parse().unwrap();
            if name.ends_with("_timestamp_seconds") {
                value -= self.begin;
            }
            let samples = self.series.entry(series.to_owned()).or_default();
            samples.resize(self.count - 1, None);
            samples.push(Some(value));
        }
    }

    /// The series as each of these instances shows them.
    pub(super) fn written(&self, instances: &[&str]) -> String {
        let mut text = String::new();
        for (series, samples) in &self.series {
            for instance in instances {
                let series = series.trim_end_matches('}');
                // A label may have an apostrophe, which YAML has twice.
                let series = series.replace('\'', "''");
                let _ = writeln!(
                    text,
                    "  - series: '{series},job=\"agentgauge\",instance=\"{instance}\"}}'\n    values: '{}'",
                    notation(samples, self.count)
                );
            }
        }
        text
    }
}

const VERDICTS: &str = "agentgauge_trace_evaluations_total";

/// Samples in promtool's notation: `2x3` is 2 four times, `_x3` nothing three times. A series that leaves the page is stale.
fn notation(samples: &[Option<f64>], count: usize) -> String {
    let mut words = Vec::new();
    let mut all: Vec<String> = Vec::with_capacity(count);
    let mut before = None;
    for sample in samples.iter().copied().chain([None; 1]).take(count) {
        all.push(match (before, sample) {
            (_, Some(value)) => value.to_string(),
            (Some(_), None) => "stale".to_owned(),
            (None, None) => "_".to_owned(),
        });
        before = sample;
    }
    for run in all.chunk_by(|one, other| one == other) {
        let (value, times) = (&run[0], run.len());
        match value.as_str() {
            _ if times == 1 => words.push(value.clone()),
            "_" => words.push(format!("_x{times}")),
            _ => words.push(format!("{value}x{}", times - 1)),
        }
    }
    words.join(" ")
}
