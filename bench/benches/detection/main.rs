//! How soon drops are found, how they end, how often there is a false alarm, and the cost of a value.
//!
//! Everything but the cost is simulated, from fixed seeds other than those used to choose constants. Arguments name the tables:
//! `delays`, `small`, `ends`, `months`, `alarms`, `shared`, `sessions`, `streams`, `predicted`, `cost`, and `fast` and
//! `fast-streams`, which take half an hour each; without arguments all others are made. A number sets the number of seeds of
//! `months`, `sessions` and `streams`, or of agents of `predicted`.

#![expect(clippy::print_stdout, reason = "the tables are what this is for")]

mod agent;
mod alarms;
mod changes;
mod cost;
mod months;
mod predicted;
mod sessions;
mod small;
mod stage;
mod streams;

/// The seeds from here on are those of the tables.
const FIRST_SEED: u64 = 5_000_000;

fn main() {
    let tables: [(&str, fn()); 12] = [
        ("delays", changes::delays),
        ("small", small::small),
        ("ends", changes::ends),
        ("months", months::table),
        ("alarms", alarms::slow),
        ("fast", alarms::fast),
        ("shared", alarms::shared),
        ("sessions", sessions::tables),
        ("streams", streams::slow),
        ("fast-streams", streams::fast),
        ("predicted", predicted::tables),
        ("cost", cost::cost),
    ];
    let mut wanted: Vec<String> =
        std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    // Like other benches, once and quickly, to check that it runs.
    if wanted.is_empty() && std::env::args().any(|argument| argument == "--test") {
        wanted.push("cost".to_owned());
    }
    for (name, table) in tables {
        let all = wanted.is_empty() && !name.starts_with("fast");
        if all || wanted.iter().any(|wanted| wanted == name) {
            table();
        }
    }
}

/// The number of seeds of a table: an argument that is a number, else `usual`.
fn seeds(usual: u64) -> u64 {
    let number = std::env::args().find_map(|argument| argument.parse::<u32>().ok());
    number.map_or(usual, u64::from).max(1)
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / count
}

/// The value below which `percent` in a hundred lie.
fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(place).copied().unwrap_or(f64::NAN)
}
